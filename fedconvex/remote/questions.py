"""What a method's schedule asks of a site: the fields of its messages, and what its certificate is measured at.

Compiled kernels check no length: a shorter array would be read beyond its end, and what stands there be answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedconvex.kernels.domain_sums import domains_of
from fedconvex.remote.kinds import Kind, kind_of
from fedconvex.remote.messages import LARGEST, Refused, form_of, forms
from fedconvex.solvers.posteriors.gaussians import packed_size

_FLOATS = np.dtype(np.float64)
Shapes = tuple[tuple[int, ...], ...]


class Field(NamedTuple):
    """A field of messages: the shapes that it may have in one trajectory, and the rule of its numbers."""

    shapes: Callable[[Any, Any], Shapes]  # of method and problem
    rule: str = ""
    keeps: Callable[[np.ndarray], np.ndarray] | None = None
    dtype: np.dtype[Any] = _FLOATS


def _kind(problem: Any) -> Kind:
    kind = kind_of(problem)
    if kind is None:
        raise Refused(f"no site works on {type(problem).__name__}")
    return kind


def _models(method: Any, problem: Any) -> Shapes:
    """Return the shape of a model: of (K, d), what is shared, or a client's own one, is (d,)."""
    model = tuple(problem.model_shape)
    return (model[1:] if _kind(problem).own_part else model,)


def _before(method: Any, problem: Any) -> Shapes:
    model = tuple(problem.model_shape)
    return model, (*model[:-1], 0)


def _by_domain(method: Any, problem: Any) -> Shapes:
    return ((domains_of(problem.federation).held.shape[1],),)


def _number(method: Any, problem: Any) -> Shapes:
    return _kind(problem).weights


def _features(method: Any, problem: Any) -> Shapes:
    return tuple(problem.model_shape)[-1:], (0,)


def _asks(method: Any, problem: Any) -> Shapes:
    return ((0,), (1,)) if method.rho == "auto" else ((0,),)


def _shift(method: Any, problem: Any) -> Shapes:
    return ((problem.federation.d,),)


def _precision(method: Any, problem: Any) -> Shapes:
    return ((packed_size(problem.federation.d, problem.diagonal),),)


_MODEL, _WEIGHTS = Field(_models), Field(_by_domain, "not be negative", lambda a: ~(a < 0.0))
_SWITCH = Field(lambda method, problem: (), dtype=np.dtype(bool))
FIELDS = {
    **dict.fromkeys(("w", "c", "z", "gradient", "moved", "own", "own_mean", "total", "mean"), _MODEL),
    **dict.fromkeys(("alpha", "domain_weights", "counts"), _WEIGHTS),
    "before": Field(_before),
    "mu": Field(_number, "be finite and not negative", lambda a: (a >= 0.0) & np.isfinite(a)),
    "rho": Field(_number, "be positive and finite", lambda a: (a > 0.0) & np.isfinite(a)),
    "frequency": Field(_features, "not be negative", lambda a: ~(a < 0.0)),
    "first": _SWITCH,
    "counting": _SWITCH,
    "precision": Field(_precision),
    "shift": Field(_shift),
    "asks": Field(_asks),
}


def check_message(method: Any, problem: Any, arrays: Mapping[str, np.ndarray], R: int) -> None:
    """Raise `Refused` unless the fields of a message are what kernels expect of R trajectories.

    Of a method that is not of this package only ``w`` is known, and that arrays have an axis of R trajectories.
    """
    ours, fields = type(method).__module__.startswith("fedconvex."), [k.removeprefix("message/") for k in arrays]
    kind = form_of(method, fields)
    apart = {*getattr(kind, "per_client", ()), *getattr(kind, "per_place", ())}
    for name, (key, a) in zip(fields, arrays.items(), strict=True):
        if a.ndim and len(a) != R:
            raise Refused(f"{key[:40]} has shape {a.shape}, for {R} trajectories")
        if name in FIELDS and (ours or name == "w"):
            _check_field(key, FIELDS[name], a, FIELDS[name].shapes(method, problem), name in apart)
    if why := _kind(problem).refuses(arrays):
        raise Refused(why)


def _check_field(key: str, field: Field, a: np.ndarray, shapes: Shapes, apart: bool) -> None:
    """Raise `Refused` unless an array (R, *shape), (R, 1, *shape) where it is sent apart, fits its field."""
    wanted = [(1, *shape) if apart else shape for shape in shapes]
    fits = a.ndim > 0 and a.shape[1:] in wanted if shapes else a.ndim == 0
    if not fits or a.dtype != field.dtype:
        shape = f"(R, {', '.join(map(str, wanted[0]))})" if shapes else "()"
        raise Refused(f"{key} has shape {a.shape}, {a.dtype}, not {shape}, {field.dtype}")
    if field.keeps is not None and not field.keeps(a).all():
        raise Refused(f"{key} must {field.rule}")


def check_measured(method: Any, problem: Any, asked: Mapping[str, np.ndarray], R: int) -> int:
    """Return how many models a request measures.

    Raises
    ------
    Refused
        If the certificate of the method is not made of what it asks for, or it has more than R models.
    """
    if (kind := _kind(problem)).measured is not None:
        if (models := kind.measured(problem, asked)) > R:
            raise Refused(f"it asks about {models} models, and {R} are run")
        return models
    wanted = kind.asked(method, problem)
    if asked.keys() not in wanted:
        names = " or ".join(", ".join(sorted(names)) for names in wanted)
        raise Refused(f"the certificate of {type(method).__name__} is not made of it: it must hold {names}")
    sizes = {len(a) if a.ndim else 0 for a in asked.values()}
    if len(sizes) > 1 or not 1 <= max(sizes) <= R:
        shapes = ", ".join(f"{a.shape}" for a in asked.values())
        raise Refused(f"its arrays have shape {shapes}, not of at most {R} models, as many as are run")
    if (asked.get("alpha", np.zeros(0)) < 0.0).any():
        raise Refused("its weights of domains must not be negative")
    return max(sizes)


def longest(method: Any, problem: Any, models: int) -> int:
    """Return how many bytes a request has at most that asks about so many models: twice those of all its arrays.

    Of a method that is not of this package the messages are not known.
    """
    if not type(method).__module__.startswith("fedconvex."):
        return LARGEST
    held = [kind._fields for kind in forms(method)] + [("w", *names) for names in _kind(problem).asked(method, problem)]
    sizes = [sum(_size(name, method, problem) for name in {*names}) for names in held]
    K = int(problem.federation.K)  # who takes part in sums, of each model, and the public keys of all
    return min(16 * (models * (max(sizes) + K + 1) + 4 * K + 16), LARGEST)


def _size(name: str, method: Any, problem: Any) -> int:
    """Return how many numbers a field has at most in one trajectory."""
    shapes = FIELDS[name].shapes(method, problem) if name in FIELDS else ()
    return max((math.prod(shape) for shape in shapes), default=1)


def check_statistic(problem: Any, k: int, name: str, a: np.ndarray) -> str:
    """Return what a client's statistic must be and is not, or nothing: places in arrays, counts, bounds, bases."""
    mass = float(problem.federation.masses[k])
    with np.errstate(all="ignore"):
        if not np.isfinite(a).all():
            return "be finite"
        if name == "client_domain" and (a.size != 1 or a.item() not in range(problem.p)):
            return f"be a domain, 0 to {problem.p - 1}"
        if name == "environment" and (a.ravel()[0] not in range(problem.n_environments) or not 0.0 < a.ravel()[1]):
            return f"be an environment, 0 to {problem.n_environments - 1}, and its rows"
        if name == "domain_counts" and ((a < 0).any() or abs(float(a.sum()) - mass) > 1e-6 * mass):
            return f"be counts of {mass:g} rows"
        if name in ("smoothness", "convexity", "squared_norm") and (a < 0).any():
            return "not be negative"
        if name == "row_space" and (len(a) > a.shape[1] or np.abs(a @ a.T - np.eye(len(a))).max(initial=0.0) > 1e-6):
            return "be an orthonormal basis"
    return ""
