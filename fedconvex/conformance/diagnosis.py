"""What is nearly there: one change that turns a reading without errors into what an implementation computes.

Changes are of two kinds. Factors are fitted: the server's update, or a hyper-parameter, is c times what it should be.
Others are tried as they are: a term is missing in the first or the last local step, or clients start from the server's
model of one round earlier. A change counts only if with it every exam is matched to the tolerance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.conformance import averaging
from fedconvex.conformance.conventions import Reading, departs, expand
from fedconvex.conformance.exams import ORDERS, Exam
from fedconvex.conformance.families import Family
from fedconvex.conformance.first_fit import fit, separable
from fedconvex.conformance.readings_search import AT_ONCE, Asked, Search, count_outcomes, follow, predict, within

BASES = 40  # readings that changes are tried on, at most
SPREAD = (1.0, 0.5, 2.0, 0.0)  # where the fit of a factor begins
FACTORS = {  # hyper-parameters, and how a factor of theirs is told
    "step_size": "the local step size",
    "l2": "the weight of the ridge",
    "proximal_mu": "mu of the proximal term",
    "alpha": "alpha of FedDyn's terms",
    "server_step_size": "the server's step size",
    "momentum": "the server's momentum",
    "client_momentum": "the clients' momentum",
    "beta1": "beta_1",
    "beta2": "beta_2",
    "epsilon": "epsilon",
    "rho": "rho",
    "domain_step_size": "the step size of the domain weights",
    "softmax_mu": "mu of the softmax",
}
TERMS = {  # what may be missing in one step: the convention, its value without the term, and the term's name
    "prox": ("absent", "the proximal term"),
    "control": ("absent", "the control variates"),
    "ridge": ("absent", "the ridge"),
    "perturbation": ("absent", "the perturbation"),
}


class Change(NamedTuple):
    """One change of a reading.

    Parameters
    ----------
    says : str
        In words; {c} stands for the factor, if there is one.
    family : callable
        Of a family, a reading and c: the family with the change.
    exam : callable
        Of an exam and c: the exam as the reading must see it.
    fitted : bool
        Whether there is a factor.
    """

    says: str
    family: Callable[[Family, float], Family] = lambda family, c: family
    exam: Callable[[Exam, float], Exam] = lambda exam, c: exam
    fitted: bool = False

    def told(self, c: float) -> str:
        """Return it in words."""
        return self.says.format(c=f"{c:.6g}")


def changes(family: Family, r: Reading) -> Iterator[Change]:
    """Yield what may be changed about a reading of a family."""
    yield Change("the server moves by {c} times the average difference", _scaled_moves, fitted=True)
    for name, words in FACTORS.items():
        if name in ("step_size", "l2") or name in family.knows:
            yield Change(f"{words} is {{c}} times what is asked", exam=_with_factor(name), fitted=True)
    if family.reply is averaging.reply and r.get("solver") != "exact":
        for (convention, (without, term)), first in itertools.product(TERMS.items(), (True, False)):
            if r.get(convention, without) != without:
                where = "first" if first else "last"
                yield Change(f"{term} is missing in the {where} local step", _one_step(convention, without, first))
        yield Change("clients start from the server's model of one round earlier", _stale)


def _scaled_moves(family: Family, c: float) -> Family:
    def move(exam: Exam, r: Reading, state: Any, *answers: Any) -> Any:
        new = family.move(exam, r, state, *answers)
        w = state["w"] + c * (new["w"] - state["w"])
        return new | {"w": w, "sent": w if new["sent"] is new["w"] else new["sent"]}

    return family._replace(move=move)


def _with_factor(name: str) -> Callable[[Exam, float], Exam]:
    return lambda exam, c: exam._replace(hyper=exam.hyper | {name: c * exam.hyper[name]})


def _one_step(convention: str, without: str, first: bool) -> Callable[[Family, float], Family]:
    """Return the family whose clients take the first or the last of their steps without a term."""

    def changed(family: Family, c: float) -> Family:
        def reply(exam: Exam, r: Reading, state: Any, k: int, batches: Sequence[Any], before: Any) -> Any:
            cut = 1 if first else len(batches) - 1
            other = r | {convention: without}
            if len(batches) == 1:
                return family.reply(exam, other, state, k, batches, before)
            one, two = (other, r) if first else (r, other)
            answer = family.reply(exam, one, state, k, batches[:cut], before)
            later = family.reply(exam, two, state | {"sent": answer["w"]}, k, batches[cut:], None)
            both = later | {name: answer[name] + later[name] for name in ("steps", "total")}
            return both | ({"c_i": averaging.renewed(exam, r, state, k, both["w"], both)} if "control" in r else {})

        return family._replace(reply=reply)

    return changed


def _stale(family: Family, c: float) -> Family:
    def reply(exam: Exam, r: Reading, state: Any, *rest: Any) -> Any:
        return family.reply(exam, r, state | {"sent": state["before"]}, *rest)

    return family._replace(reply=reply)


# ---------------------------------------------------------------- which one


class Diagnosis(NamedTuple):
    """A change in words, and the readings that match all exams with it."""

    says: str
    found: Search


def diagnose(family: Family, asked: Sequence[Asked], tol: float) -> Diagnosis | None:
    """Return the change of a reading without errors that matches all exams, or None.

    Readings nearer to the paper come first.
    """
    family = family._replace(kept=False)  # what clients answer is not kept: factors change it
    bases, at = _bases(family, asked, tol)
    if at is None:
        return None
    tried = set()
    for r in bases:
        for change in changes(family, r):
            c = _fitted(family, at, r, change, tol) if change.fitted else 1.0
            if c is None or (change.says, round(c, 9)) in tried:
                continue
            if not change.fitted and follow(change.family(family, c), at, r, tol, tol).distance > tol:
                continue
            tried.add((change.says, round(c, 9)))
            changed = [a._replace(exam=change.exam(a.exam, c)) for a in asked]
            matching, n, passed = within(change.family(family, c), changed, tol, 0)
            if matching:
                return Diagnosis(change.told(c), Search(matching, passed, n))
    return None


def _bases(family: Family, asked: Sequence[Asked], tol: float) -> tuple[list[Reading], Asked | None]:
    """Return the readings without errors that pass the most exams, completed for the next one; and that exam.

    It is None where the next exam draws something: factors are fitted to rounds that are certain.
    """
    alive: list[Reading] = [{}]
    for i, a in enumerate(asked):
        ahead = [r for before in alive for r in expand(family.conventions, a.exam, before, 0)]
        ahead = [r for r in ahead if count_outcomes(a.exam, r) <= ORDERS]
        if i == 0 and separable(family, a.exam):
            passing = [r for r, _ in fit(family, a.exam, a.runs[0][0], tol, 0, AT_ONCE).near]
        else:
            passing = [r for r in ahead if follow(family, a, r, tol, tol).distance <= tol]
        if not passing:
            ahead.sort(key=lambda r: departs(family.conventions, r))
            return ahead[:BASES], None if a.exam.events else a
        alive = passing
    return [], None


def _fitted(family: Family, a: Asked, r: Reading, change: Change, tol: float) -> float | None:
    """Return the factor with which a reading matches an exam, by Gauss and Newton's iteration, or None."""
    seen = np.stack(a.runs[0])
    scale = max(1e-3, float(np.abs(seen).max()))

    def off(c: float) -> Any:
        models = predict(change.family(family, c), change.exam(a.exam, c), r)
        return (np.stack(models) - seen).ravel() / scale

    with np.errstate(all="ignore"):
        for start in SPREAD:
            before, c, line = np.inf, start, (seen, seen)
            for i in range(12):
                here = off(c)
                far = float(np.abs(here).max())
                slope = (off(c + 1e-6) - here) / 1e-6
                step = float(slope @ here) / max(float(slope @ slope), 1e-300)
                if far <= tol:
                    return None if abs(c - 1.0) <= 1e-6 else c - step
                if not (far < 0.7 * before and np.isfinite(slope).all() and slope @ slope > 0.0):
                    break
                if start == SPREAD[0] and i == 1 and _straight(here, line, c - start):
                    return None  # the models depend on c in a straight line, and its nearest point is too far
                before, c, line = far, c - step, (here, slope)
    return None


def _straight(here: np.ndarray, line: tuple[np.ndarray, np.ndarray], moved: float) -> bool:
    """Return whether differences are where a straight line through the ones before says that they are."""
    told = line[0] + moved * line[1]
    return float(np.abs(here - told).max()) <= 1e-6 * float(np.abs(here).max())
