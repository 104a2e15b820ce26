"""The smallest exam in which an implementation departs from the published algorithm, as numbers and as a script.

The published algorithm is the family with no value left that the paper does not have; where the paper leaves a line
open, any value may stand. The first exam that none of its readings passes is shrunk while the implementation still
departs: fewer rounds, clients, rows and features, fewer local steps, then whole numbers and halves in rows and start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.conformance.conventions import Reading, expand
from fedconvex.conformance.exams import DEFAULTS, ORDERS, Exam
from fedconvex.conformance.families import FAMILIES, Family
from fedconvex.conformance.implementation import Abilities, ask
from fedconvex.conformance.readings_search import BRANCHES, Asked, count_outcomes, outcomes, within

EXACT = 17  # digits
SECONDS = 4.0  # of processor time, for asking an implementation smaller questions
VISIBLE = 1e-6  # a departure, relative to the largest entry of the models, that a smaller exam must keep at least
_HYPERS = {name for family in FAMILIES.values() for name in family.knows} | {"radius"}  # of some families only


class Counterexample(NamedTuple):
    """An exam, and the first round after which the models are not the published ones."""

    exam: Exam
    round: int  # 1, 2, ...
    expected: np.ndarray  # the model after that round, as published; where a round draws something, the nearest one
    got: np.ndarray
    knows: tuple[str, ...]  # hyper-parameters of the family beyond those of all
    float32: bool = False
    pairs: bool = False  # whether the implementation returns a model and what was sent

    @property
    def hyper(self) -> dict[str, Any]:
        """What ``train`` is given that some algorithm of the family knows."""
        return {n: v for n, v in self.exam.hyper.items() if n not in _HYPERS or n in self.knows}

    def to_dict(self) -> dict[str, Any]:
        """Return it as numbers, lists and dictionaries."""
        return {
            "exam": self.exam.name,
            "clients": [{"X": X.tolist(), "y": y.tolist()} for X, y in self.exam.clients],
            "hyper": {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in self.hyper.items()},
            "rounds": self.exam.rounds,
            "round": self.round,
            "expected": self.expected.tolist(),
            "got": self.got.tolist(),
        }

    def lines(self) -> Iterator[str]:
        """Yield it in words."""
        sizes = ", ".join(str(n) for n in self.exam.sizes)
        features = self.exam.clients[0][0].shape[1]
        drawn = ", the nearest that may be drawn" if self.exam.events else ""
        yield (
            f"{self.exam.name}: rows of the clients: {sizes}; features: {features}; after round {self.round} of "
            f"{self.exam.rounds}"
        )
        yield f"  as published{drawn}: {_numbers(self.expected, 8)}"
        yield f"  from this implementation: {_numbers(self.got, 8)}"

    def script(self, train: str) -> str:
        """Return a script that shows it without this package; train is "module:function"."""
        module, _, name = train.partition(":")
        kind, digits = (", dtype=np.float32", 9) if self.float32 else ("", EXACT)
        clients = ", ".join(f"(np.array({_numbers(X, digits)}{kind}), np.array({_numbers(y, digits)}"
                            f"{kind if y.dtype == float else ''}))" for X, y in self.exam.clients)  # fmt: skip
        start = f"np.array({_numbers(self.exam.hyper['start'], digits)}{kind})"
        hyper = ", ".join(f"{n!r}: {start if n == 'start' else repr(v)}" for n, v in self.hyper.items())
        first = "[0]" if self.pairs else ""
        return "\n".join([
            "import numpy as np",
            f"from {module} import {name}",
            f"clients = [{clients}]",
            f"hyper = {{{hyper}}}",
            f"got = np.asarray({name}(clients, hyper, {self.exam.rounds})[{self.round - 1}]{first})",
            f"expected = np.array({_numbers(self.expected, EXACT)})",
            'print("from this implementation", got.tolist())',
            'print("as published            ", expected.tolist())',
            f"assert np.allclose(got, expected, rtol=0, atol={1e-4 if self.float32 else 1e-8} * abs(got).max())",
        ]) + "\n"  # fmt: skip


def _numbers(a: np.ndarray, digits: int) -> str:
    """Return an array as nested lists of short numbers."""
    if np.ndim(a):
        return "[" + ", ".join(_numbers(row, digits) for row in a) + "]"
    if not isinstance(a, np.floating):
        return str(a)
    return repr(float(a)) if digits == EXACT else f"{a:.{digits}g}"


def as_published(family: Family) -> Family:
    """Return a family without the values that are not the paper's."""
    conventions = []
    for c in family.conventions:
        published = tuple(v for v in c.values if v.kind == "published")
        conventions.append(c._replace(values=published or tuple(v for v in c.values if v.kind != "error")))
    return family._replace(conventions=tuple(conventions), kept=False)


def departs_in(paper: Family, asked: Sequence[Asked], tol: float) -> tuple[Asked, list[Reading]] | None:
    """Return the first exam that no reading as published passes, and those that passed all before it; or None."""
    passed: list[Reading] = [{}]
    for n in range(1, len(asked) + 1):
        found = within(paper, asked[:n], tol, 0)[0]
        if not found:
            return asked[n - 1], passed
        passed = [f.reading for f in found]
    return None


def counterexample(family: Family, train: Any, a: Abilities, asked: Sequence[Asked], tol: float) -> Any:
    """Return the `Counterexample` of an implementation, or None if some published reading passes all exams."""
    paper = as_published(family)
    where = departs_in(paper, asked, tol)
    if where is None:
        return None
    (exam, runs), passed = where
    found = _departure(paper, passed, exam, runs, tol)
    if found is None:  # draws too many to enumerate
        return None

    def departs(smaller: Exam) -> Departure | None:
        return _asked_again(paper, passed, smaller, train, a, tol)

    best, until = (exam, found), time.process_time() + SECONDS
    for _ in range(2):
        for smaller in _SMALLER if not exam.events else ():
            best = _shrunk(best, smaller, departs, until, a.hyper)
    exam, (t, expected, got, seed) = best
    if exam.events:
        exam = exam._replace(hyper=exam.hyper | {"seed": seed})
    shown = Counterexample(exam, t, expected, got, family.knows, a.float32, a.floats)
    try:
        train(list(exam.clients), shown.hyper, exam.rounds)
    except Exception:  # it reads hyper-parameters of other families
        return shown._replace(knows=tuple(sorted(_HYPERS)))
    return shown


Departure = tuple[int, np.ndarray, np.ndarray, int]  # the round, the published model, that of the implementation; seed


def _departure(
    paper: Family, passed: Sequence[Reading], exam: Exam, runs: Sequence[Sequence[np.ndarray]], tol: float
) -> Departure | None:
    """Return where the nearest published reading and the models of some run part, latest of all readings; or None."""
    latest: Any = None
    for seed, models in enumerate(runs):
        per_run: Any = None
        for r in (r for before in passed for r in expand(paper.conventions, exam, before, 0)):
            if count_outcomes(exam, r) > ORDERS:
                return None
            found = _parting(paper, exam, r, models, tol)
            if found is None:
                per_run = None
                break
            if per_run is None or (found[0], -found[3]) > (per_run[0], -per_run[3]):
                per_run = found
        else:
            if per_run is not None and (latest is None or per_run[0] < latest[0]):
                latest = (*per_run[:3], seed)
    return latest


def _parting(paper: Family, exam: Exam, r: Reading, models: Sequence[np.ndarray], tol: float) -> Any:
    """Return the first round after which a reading differs, its nearest model, the one seen, and the distance."""
    scale = max(1e-3, *(float(np.abs(w).max()) for w in models))
    states = [paper.first(exam, r)]
    for t, w in enumerate(models, 1):
        ahead = [new for state in states for new, _ in outcomes(paper, exam, r, state)]
        ahead.sort(key=lambda new: float(np.abs(new["w"] - w).max()))
        far = float(np.abs(ahead[0]["w"] - w).max()) / scale
        if not far <= tol:
            return t, ahead[0]["w"], w, far
        states = [s for s in ahead[:BRANCHES] if float(np.abs(s["w"] - w).max()) / scale <= tol]
    return None


def _asked_again(
    paper: Family, passed: Sequence[Reading], exam: Exam, train: Any, a: Abilities, tol: float
) -> Departure | None:
    """Return how an implementation departs in another exam, visibly; None if it does not, or fails there."""
    try:
        models = ask(train, exam, a)
    except (ValueError, TypeError, NotImplementedError):
        return None
    if not all(np.isfinite(w).all() for w in models):
        return None
    return _departure(paper, passed, exam, [models], max(VISIBLE, 100.0 * tol))


def _shrunk(
    best: Any, smaller: Callable[[Exam], Iterator[Exam]], departs: Any, until: float, fixed: Mapping[str, Any]
) -> Any:
    """Return the exam with what is left out that may be left out, again and again; what is fixed stays."""
    going = True
    while going and time.process_time() < until:
        going = False
        for exam in smaller(best[0]):
            kept = all(exam.hyper[name] == best[0].hyper[name] for name in fixed)
            if kept and time.process_time() < until and (found := departs(exam)) is not None:
                best, going = (exam, found), True
                break
    return best


def _fewer_rounds(exam: Exam) -> Iterator[Exam]:
    yield from (exam._replace(rounds=n) for n in range(1, exam.rounds))


def _fewer_clients(exam: Exam) -> Iterator[Exam]:
    for k in range(len(exam.clients)) if len(exam.clients) > 1 else ():
        yield exam._replace(clients=exam.clients[:k] + exam.clients[k + 1 :])


def _fewer_rows(exam: Exam) -> Iterator[Exam]:
    for k, (X, y) in enumerate(exam.clients):
        for i in range(len(y) - 1, -1, -1) if len(y) > 1 else ():
            rows = np.delete(X, i, axis=0), np.delete(y, i)
            yield exam._replace(clients=(*exam.clients[:k], rows, *exam.clients[k + 1 :]))


def _fewer_features(exam: Exam) -> Iterator[Exam]:
    d = exam.clients[0][0].shape[1]
    for j in range(d - 1, -1, -1) if d > 1 else ():
        clients = tuple((np.delete(X, j, axis=1), y) for X, y in exam.clients)
        start = np.delete(exam.hyper["start"], j, axis=-1)
        yield exam._replace(clients=clients, hyper=exam.hyper | {"start": start})


def _fewer_steps(exam: Exam) -> Iterator[Exam]:
    steps = exam.steps
    yield from (exam._replace(hyper=exam.hyper | {"local_steps": n, "epochs": n}) for n in range(1, steps))


def _plainer(exam: Exam) -> Iterator[Exam]:
    """Yield exams with whole numbers, or halves, in the rows, the labels and the start; the ridge last."""
    for at, zeros in ((1.0, True), (1.0, False), (2.0, True), (2.0, False)):
        clients = tuple((_plain(X, at, zeros), _plain(y, at, zeros)) for X, y in exam.clients)
        start = _plain(exam.hyper["start"], at, True)
        plainer = exam._replace(clients=clients, hyper=exam.hyper | {"start": start})
        if not _same(exam, plainer):
            yield plainer
    for name, value in (("l2", 0.0), ("start", np.zeros_like(exam.hyper["start"])), ("step_size", 0.5)):
        plainer = exam._replace(hyper=exam.hyper | {name: value})
        if exam.hyper[name] is not None and not _same(exam, plainer) and (name == "start" or _is_default(exam, name)):
            yield plainer


def _plain(x: np.ndarray, at: float, zeros: bool) -> np.ndarray:
    """Return numbers as multiples of 1/at; where zeros are not wanted, ones in their place. Labels stay."""
    if x.dtype != float:
        return x
    found = np.round(x * at) / at
    return np.asarray(found if zeros else np.where(found == 0.0, 1.0, found))


def _is_default(exam: Exam, name: str) -> bool:
    return bool(exam.hyper[name] == DEFAULTS[name])


def _same(one: Exam, two: Exam) -> bool:
    pairs = zip(one.clients, two.clients, strict=True)
    rows = all(np.array_equal(X, U) and np.array_equal(y, v) for (X, y), (U, v) in pairs)
    names = ("l2", "step_size")
    hyper = all(one.hyper[n] == two.hyper[n] for n in names)
    return rows and hyper and np.array_equal(one.hyper["start"], two.hyper["start"])


_SMALLER = (_fewer_rounds, _fewer_clients, _fewer_rows, _fewer_features, _fewer_steps, _plainer)
