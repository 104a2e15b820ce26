"""Tiny problems as data, the spaces that a search takes them from, and the sharp ones that theorems are checked on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex.federation import Federation
from fedconvex.losses import Logistic, SmoothedHinge, Squared
from fedconvex.problems import Problem
from fedconvex.theorems.parts.theorem import Check, Instance, MethodRule, Theorem

LOSSES: Mapping[str, Callable[[], Any]] = {"squared": Squared, "logistic": Logistic, "hinge": SmoothedHinge}


class Tiny(NamedTuple):
    """A problem of a few rows, where its run starts, for how long, and the numbers of its method.

    Parameters
    ----------
    rows : tuple of tuple of float
        Features of all rows, client after client.
    labels : tuple of float
    sizes : tuple of int
        Rows of every client.
    offset : tuple of float
        The start less the minimiser; zeros start at the minimiser.
    rounds : int
    knobs : mapping from str to float
        What the theorem's space calls its method with.
    l2 : float
    weights : tuple of float or None
        Of the clients; None for equal ones.
    loss : str
        "squared", "logistic" or "hinge" (smoothed).

    Examples
    --------
    >>> from fedconvex.verify import Tiny
    >>> knobs = {"share": 0.25, "local_steps": 2, "batch_size": 0}
    >>> tiny = Tiny(((1.0,), (1.0,)), (1.0, -1.0), (1, 1), (1.0,), 1, knobs)
    >>> tiny.problem().federation.K
    2
    """

    rows: tuple[tuple[float, ...], ...]
    labels: tuple[float, ...]
    sizes: tuple[int, ...]
    offset: tuple[float, ...]
    rounds: int
    knobs: Mapping[str, float]
    l2: float = 0.0
    weights: tuple[float, ...] | None = None
    loss: str = "squared"

    def problem(self) -> Problem:
        """Make the problem; the number "copies", where a space has it, says how often every client is there."""
        copies = int(self.knobs.get("copies", 1))
        rows, labels = np.array(self.rows * copies, dtype=float), np.array(self.labels * copies, dtype=float)
        weights: Any = "uniform"
        if self.weights is not None:
            weights = np.array(self.weights * copies) / (copies * math.fsum(self.weights))
        who = np.repeat(np.arange(copies * len(self.sizes)), self.sizes * copies)
        return Problem(Federation.from_arrays(rows, labels, who), LOSSES[self.loss](), self.l2, weights)

    def start(self, problem: Any) -> np.ndarray:
        """Return the model that a run starts at."""
        return np.asarray(problem.solve().w + np.array(self.offset))

    def scaled(self, features: float, labels: float = 1.0) -> Tiny:
        """Return the problem in other units, for methods whose numbers have none.

        Features are multiplied by the one factor, and labels by the other where they are numbers.
        """
        labels = labels if self.loss == "squared" else 1.0
        return self._replace(
            rows=tuple(tuple(float(f"{features * x:.6g}") for x in row) for row in self.rows),
            labels=tuple(float(f"{labels * y:.6g}") for y in self.labels),
            offset=tuple(float(f"{labels / features * x:.6g}") for x in self.offset),
            l2=float(f"{features**2 * self.l2:.6g}"),
        )


class Whole(NamedTuple):
    """Whole numbers from low to high."""

    low: int
    high: int


class Real(NamedTuple):
    """Positive numbers from low to high, on a logarithmic scale.

    With ``beyond`` above 1 some are up to so many times larger than the theorem allows: it refuses them, if it does.
    """

    low: float
    high: float
    beyond: float = 1.0


class Space(NamedTuple):
    """Where a search for sharp instances looks.

    Parameters
    ----------
    method : callable
        Takes the numbers of the method (``knobs``) and returns the rule that makes it.
    knobs : mapping from str to Whole or Real
        Between which limits they lie.
    designs : tuple of str
        Features: "any"; "equal", the same rows for all clients, hence equal Hessians; "alike", the same row everywhere
        up to its sign, so that the noise of a mini-batch is bounded as well; "classes", copies of one row per class;
        "shared", one row for all, and a short one of each client's own, nearly a linear function.
    losses : tuple of str
    rounds : tuple of int
        Fewest and most rounds.
    weighted : bool
        Whether clients may weigh unequally.
    problem : callable
        What the theorem speaks about, made of a tiny problem.
    start : callable
        The model that a run starts at, from the tiny problem and what was made of it.
    tries : int
        Candidates that `fedconvex verify` takes unless it is told how many; fewer where they are costly.
    """

    method: Callable[[Mapping[str, Any]], MethodRule]
    knobs: Mapping[str, Whole | Real]
    designs: tuple[str, ...] = ("any", "equal", "alike")
    losses: tuple[str, ...] = ("squared",)
    rounds: tuple[int, int] = (1, 100)
    weighted: bool = False
    problem: Callable[[Tiny], Any] = Tiny.problem
    start: Callable[[Tiny, Any], np.ndarray] = Tiny.start
    tries: int = 24

    def check(self, tiny: Tiny, name: str = "candidate", words: str = "") -> Check:
        """Return the check of a theorem on a tiny problem."""
        d, n = len(tiny.offset), len(tiny.rows)
        start = "starts at the minimiser" if not any(tiny.offset) else f"starts {math.hypot(*tiny.offset):.3g} from it"
        what = f"{n} row{'s' * (n != 1)}, {d} feature{'s' * (d != 1)}, {start}"
        make, first = partial(self.problem, tiny), partial(self.start, tiny)
        instance = Instance(name, f"{words}, {what}" if words else what, "searched", make, tiny)
        return Check(instance, self.method(tiny.knobs), tiny.rounds, first)


def from_zero(tiny: Tiny, problem: Any) -> np.ndarray:
    """Return the model zero: where dual methods and boosting start."""
    return np.zeros(problem.model_shape)


def from_offset(tiny: Tiny, problem: Any) -> np.ndarray:
    """Return the offset itself, without the minimiser: for runs in a ball around zero."""
    return np.array(tiny.offset)


_NO_MORE: Mapping[str, Whole | Real] = {}


def local_sgd_space(
    rule: Callable[..., MethodRule],
    top: float | None = None,
    *settings: Any,
    batches: int = 2,
    most: int = 64,
    more: Mapping[str, Whole | Real] = _NO_MORE,
    **space: Any,
) -> Space:
    """Return the space of FedAvg, or of a method like it, with 1 to 64 local steps on all rows or some of them.

    Parameters
    ----------
    rule : callable
        Returns the method's rule from ``local_steps`` and ``batch_size``.
    top : float, optional
        The largest step, as a share of 1/L, which is then the first argument of ``rule``; some are up to twice that.
    *settings
        Further arguments of ``rule``.
    batches : int
        Rows of the largest mini-batch; with 0 all rows are taken.
    most : int
        Local steps at most.
    more : mapping from str to Whole or Real
        Further numbers of the method, by name.
    **space
        Fields of `Space`.
    """
    knobs: dict[str, Whole | Real] = {} if top is None else {"share": Real(0.02 * top, top, 2.0)}
    knobs |= {"local_steps": Whole(1, most)} | ({"batch_size": Whole(0, batches)} if batches else {}) | dict(more)

    def method(k: Mapping[str, Any]) -> MethodRule:
        work = {name: value for name, value in k.items() if name not in ("share", "copies")}
        if "batch_size" in work:
            work["batch_size"] = work["batch_size"] or None
        return rule(*(() if top is None else (k["share"],)), *settings, **work)

    return Space(method, knobs, **space)


class Sharp(NamedTuple):
    """What a search found: an instance that presses on a bound, or on one of its terms.

    Parameters
    ----------
    term : str
        The term that it isolates; empty for the whole bound.
    share : float
        Of the bound that was measured; or of the term, what the other terms do not cover.
    seed : int or str
        Of the search; or where the instance comes from.
    tiny : Tiny
    """

    term: str
    share: float
    seed: int | str
    tiny: Tiny


def with_sharp(theorem: Theorem, found: Mapping[str, Sequence[Sharp]]) -> Theorem:
    """Return a theorem that is also checked on what searches against it have found."""
    mine = found.get(theorem.name, ())
    return theorem._replace(checks=(*theorem.checks, *sharp_checks(theorem.space, mine))) if mine else theorem


def sharp_checks(space: Space, found: Sequence[Sharp], called: str = "sharp") -> tuple[Check, ...]:
    """Return the checks of what a search found, called "sharp 1" and so on."""
    out = []
    for i, s in enumerate(found, 1):
        name = f"{called} {i}" + (f", {s.term}" if s.term else "")
        out.append(space.check(s.tiny, name, f"found with seed {s.seed}" if isinstance(s.seed, int) else s.seed))
    return tuple(out)


def read_sharp(path: Path) -> dict[str, tuple[Sharp, ...]]:
    """Read what searches have found, by theorem."""
    return {
        name: tuple(Sharp(term, share, seed, tiny_of(tiny)) for term, share, seed, tiny in rows)
        for name, rows in json.loads(path.read_text()).items()
    }


def write_sharp(found: Mapping[str, Sequence[Sharp]], path: Path) -> None:
    """Write what searches have found, an instance a line; fields that have their default are left out."""
    blocks = []
    for name, mine in found.items():
        rows = [[s.term, s.share, s.seed, _told(s.tiny)] for s in mine]
        blocks.append(f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n ]")
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


def tiny_of(data: Mapping[str, Any]) -> Tiny:
    """Return the tiny problem that was written as JSON."""
    lists = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    return Tiny(**lists | {"rows": tuple(map(tuple, data["rows"]))})


def _told(tiny: Tiny) -> dict[str, Any]:
    return {k: v for k, v in tiny._asdict().items() if k not in Tiny._field_defaults or v != Tiny._field_defaults[k]}
