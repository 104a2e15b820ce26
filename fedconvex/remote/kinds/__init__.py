"""Kinds of problems over sites: what a client answers about its rows, and what the server concludes from it.

A problem names the module of its kind, whose `KIND` is looked up when it is needed: ``over_sites``. A problem without
one is run in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from fedconvex.problems import Measure
from fedconvex.remote.messages import Refused

__all__ = ["FLOATS", "Kind", "check_models", "check_weights", "kind_of", "or_inf", "unknown"]

FLOATS = np.dtype(np.float64)
Arrays = Mapping[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]


def _nothing(*_: Any) -> Any:
    return None


class Kind(NamedTuple):
    """What is asked and answered about problems of one kind.

    Attributes
    ----------
    report : callable
        (problem, client, asked) -> a client's part of the certificate, from its own rows; raises `Refused`.
    shapes : callable
        (problem, asked) -> the shapes of what a report holds.
    measure : callable
        (roster, w, *more) -> values and certified gaps of R models from what all clients report, None where they do
        not answer.
    asked : callable
        (method, problem) -> the names of arrays that a certificate is measured at, all that are allowed.
    offers : mapping
        What a roster has beside, by name: functions of the roster.
    points : callable
        (problem, asked, report) -> what a report says of a convex function at R models, as arguments of
        `fedconvex.remote.witness.Point` one after the other; None where it says nothing of one.
    statistic : callable
        (problem, client, name) -> what a client answers when it is asked for a statistic.
    audited : callable
        (problem, worked) -> the problem whose losses the answers to a round's work, or to a measurement, tell; or None.
    check : callable
        (problem) -> raises where clients cannot share it.
    plain : bool
        Whether values and gradients are those of f_k: sums of them may be masked, a quadratic f_k is known by two.
    rays : bool
        Whether values and slopes along rays are told.
    own_part : bool
        Whether a client is sent its own part (d,) of models (K, d) only.
    scale : callable
        (problem, client, mass) -> by what the mean loss of a client's rows is multiplied in what it reports; default
        1, or the mass of its rows in sums by domain.
    weights : tuple of shapes
        That a weight of a proximal term may have.
    refuses : callable
        (arrays of a message) -> why they are not worked on, or nothing.
    measured : callable, optional
        (problem, asked) -> about how many models a request for a measurement is; raises `Refused` where it is none.
        By default such requests hold what ``asked`` says.
    models, slopes : callable, optional
        (problem, asked) -> the models (R, size) whose gradients a measurement tells, or None, and (problem, model) ->
        the slopes of a site's rows (n, C) there, and their curvatures where Hessians are told: for the audit of kinds
        whose questions are not about ``w`` alone.
    """

    report: Callable[[Any, int, Arrays], dict[str, np.ndarray]]
    shapes: Callable[[Any, Arrays], Shapes]
    measure: Callable[..., Measure | None]
    asked: Callable[[Any, Any], list[set[str]]]
    offers: Mapping[str, Callable[..., Any]] = {}
    points: Callable[[Any, Arrays, Arrays], Any] = _nothing
    statistic: Callable[[Any, int, str], Any] | None = None
    audited: Callable[[Any, bool], Any] = _nothing
    check: Callable[[Any], None] = _nothing
    plain: bool = False
    rays: bool = False
    own_part: bool = False
    scale: Callable[[Any, int, float], float] | None = None
    weights: tuple[tuple[int, ...], ...] = ((),)
    refuses: Callable[[Arrays], str] = lambda arrays: ""
    measured: Callable[[Any, Arrays], int] | None = None
    models: Callable[[Any, Arrays], np.ndarray | None] | None = None
    slopes: Callable[[Any, np.ndarray], tuple[np.ndarray, ...]] | None = None

    @property
    def convex(self) -> bool:
        """Whether reports say something of a convex function."""
        return self.points is not _nothing


def kind_of(problem: Any) -> Kind | None:
    """Return what is asked and answered about a problem, None for problems that sites do not share."""
    module = getattr(problem, "over_sites", "")
    return _imported(f"fedconvex.{module}").KIND if module else None


_imported: Any = cache(import_module)


# ---------------------------------------------------------------- what kinds have in common


def check_models(wanted: tuple[int, ...], *models: np.ndarray) -> None:
    """Raise unless arrays are of R models of these shapes."""
    for a in models:
        if a.dtype != FLOATS or a.shape[1:] != wanted or len(a) != len(models[0]):
            raise Refused(f"no models (R, {', '.join(map(str, wanted))}) to be measured")


def check_weights(alpha: np.ndarray, R: int, p: int) -> None:
    """Raise unless an array holds weights of p domains for each of R models: kernels do not look."""
    if alpha.dtype != FLOATS or alpha.shape != (R, p):
        raise Refused(f"its weights of domains have shape {alpha.shape}, {alpha.dtype}, not {(R, p)}")


def or_inf(gap: np.ndarray) -> np.ndarray:
    """Return gaps, inf for those that are NaN: where squares overflow nothing is known."""
    return np.where(np.isnan(gap), np.inf, gap)


def unknown(w: np.ndarray) -> Measure:
    """Return the measure of models that not all clients have seen: NaN and inf; inf where they are not finite."""
    lost = ~np.isfinite(w.reshape(len(w), -1)).all(axis=1)
    return Measure(np.where(lost, np.inf, np.nan), np.full(len(w), np.inf))
