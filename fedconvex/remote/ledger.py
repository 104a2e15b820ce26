"""What a site has answered, counted against what its rows hold, and the limits that it sets.

n rows of d columns and their labels are n (d + 1) unknown numbers. A server that chooses the models it asks about can
determine them once it has about as many answers, whatever the method, and single rows long before: at models along a
line, far out, the slope of a single row jumps from one to the next, and the gradients differ by that row. So the
numbers that are answered are counted over all runs of a site, questions are those of its method's schedule, and two
answers must not differ by one row.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedconvex._check import real, whole
from fedconvex.kernels.row_changes import SMALLER, few_changed
from fedconvex.kernels.row_losses import row_curvatures, row_slopes
from fedconvex.remote.kinds import kind_of
from fedconvex.remote.messages import Refused

_AGAIN = 8  # how often a round may be asked again with other models: by a server that goes back to a checkpoint
_REMEMBERED = 4096  # questions whose repetition is known
_SLOPES = 128  # models whose slopes are compared with those of a new one
_AT_ONCE = 1 << 18  # slopes that are compared in one piece
_STILL = 1e-13  # slopes that change by less say nothing
_MADE_OF = 5.0  # rows that make up a Hessian at least, in effective number, or half of a site's
_SINGLE = (
    "its answer would differ from an earlier one, or from nothing, by a single row: so do honest ones where a row is "
    "far larger than the others, or a loss has kinks; its operator may allow it (Limits(rows=0))"
)
_FEW = (
    "the Hessian there would be made of fewer than five rows, where all others are certain of their labels: take l2 "
    "larger, or start nearer to the solution; its operator may allow it (Limits(rows=0))"
)
_OVERFLOW = (
    "the slopes of some rows overflow there, and its answer would be made of the others where these have zeros: take "
    "smaller steps"
)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a site answers at most: an option of the site, which no server can change.

    Parameters
    ----------
    share : float
        Numbers answered at most, over all runs, as a multiple of the numbers that the rows hold (rows times columns,
        and labels); infinity for no limit. A round of `FedAvg` on d columns takes d numbers, its measurement d + 3.
    trajectories : int
        Models in one request at most.
    rounds : int, optional
        Requests of later rounds are refused; default any.
    rows : float
        Answers that differ from an earlier one by fewer rows are refused (gradients at a model, also of a task or an
        environment: in effective number, (sum |delta|)^2 / sum delta^2 of the changes of slopes, and of curvatures
        where Hessians are told; in each domain, where a server weighs them); never more than a tenth of the site's
        rows, or of the domain's. With it goes that a Hessian is made of five rows at least.
        Losses with kinks, and rows far larger than the others, do that in honest rounds too: 0 allows it.

    Raises
    ------
    ValueError, TypeError
        If a limit is out of range.

    Examples
    --------
    >>> from fedconvex.remote import Limits
    >>> Limits(share=5.0).allowed(200 * 11)  # of 200 rows of ten columns and a label
    11000.0
    """

    share: float = 1.0
    trajectories: int = 64
    rounds: int | None = None
    rows: float = 2.0

    def __post_init__(self) -> None:
        if not (isinstance(self.share, float) and self.share == math.inf):
            real("Limits.share", self.share, low=0.0, strict=True)
        whole("Limits.trajectories", self.trajectories, low=1)
        if self.rounds is not None:
            whole("Limits.rounds", self.rounds, low=1)
        real("Limits.rows", self.rows, low=0.0)

    def allowed(self, unknown: int) -> float:
        """Return how many numbers may be answered about so many unknown ones."""
        return self.share * unknown


TRIAL = Limits(
    share=math.inf, trajectories=1 << 62, rows=0.0
)  # where the server shares the site's memory, and could read the rows there


def unknowns(federation: Any) -> int:
    """Return how many numbers rows hold: entries, those that are stored of sparse rows, and labels."""
    X = federation.X
    return int(X.nnz if hasattr(X, "nnz") else X.size) + int(federation.n)


Views = tuple[np.ndarray, ...]


class Ledger:
    """What a site has answered, and what it has refused to.

    Parameters
    ----------
    limits : Limits
    unknown : int
        Numbers that the rows hold.
    label
        What the site is called, in the log.

    Attributes
    ----------
    numbers, answers, refused : int
        Numbers answered, answers that gave new ones, and requests that were refused for the limits' sake.

    Examples
    --------
    >>> from fedconvex.remote.ledger import Ledger, Limits
    >>> Ledger(Limits(), 2200, "north")
    Ledger(0 numbers in 0 answers, 0% of the 2,200 that the rows hold; at most 2,200; 0 refused)
    """

    def __init__(self, limits: Limits, unknown: int, label: Any) -> None:
        self.limits, self.unknown, self.label = limits, unknown, label
        self.numbers, self.answers, self.refused = 0, 0, 0
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._asked: dict[tuple[int, int], int] = {}  # models by kind and round
        self._told = 0.5  # share of the allowance at which the log speaks next

    def __repr__(self) -> str:
        most, share = self.limits.allowed(self.unknown), self.numbers / max(self.unknown, 1)
        limit = "no limit" if most == math.inf else f"at most {most:,.0f}"
        counted = f"{self.numbers:,} numbers in {self.answers:,} answers, {share:.0%} of the {self.unknown:,}"
        return f"Ledger({counted} that the rows hold; {limit}; {self.refused:,} refused)"

    def is_known(self, question: bytes) -> bool:
        """Whether a question was answered before: its answer says nothing new."""
        return question in self._known

    def admit(self, kind: int, t: int, models: int, trajectories: int) -> None:
        """Let a new question pass, and count one number: that it is answered, or why it is not, tells something too.

        Raises
        ------
        Refused
            If it is none of the schedule, or nothing more may be answered.
        """
        name, most = (kind, t), self.limits.rounds
        if most is not None and t >= most:
            raise self.over(f"round {t} is not one of the {most} that the site allows")
        if self.numbers >= self.limits.allowed(self.unknown):
            raise self._full(0)
        if self._asked.get(name, 0) + models > _AGAIN * trajectories:
            raise self.over(f"round {t} asks for more models than its method has in a round")
        self.numbers += 1

    def enter(self, kind: int, t: int, models: int, question: bytes, answer: Mapping[str, np.ndarray]) -> None:
        """Count what a new question that was admitted is answered.

        Raises
        ------
        Refused
            If there is no room for as many numbers.
        """
        size = max(sum(int(a.size) for a in answer.values()) - 1, 0)  # one is counted
        most = self.limits.allowed(self.unknown)
        if self.numbers + size > most:
            raise self._full(size)
        self.numbers, self.answers = self.numbers + size, self.answers + 1
        self._asked[kind, t] = self._asked.get((kind, t), 0) + models
        if len(self._asked) > _REMEMBERED:
            del self._asked[next(iter(self._asked))]
        self._known[question] = None
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        if self.numbers > self._told * min(most, self.unknown):
            self._told = max(2.0 * self._told, 2.0 ** math.ceil(math.log2(self.numbers / min(most, self.unknown))))
            logging.getLogger("fedconvex").warning("site %s: %r", self.label, self)

    def over(self, why: str) -> Refused:
        """Count a refusal, and return it."""
        self.refused += 1
        logging.getLogger("fedconvex").warning("site %s: refused: %s; %r", self.label, why, self)
        return Refused(why)

    def _full(self, size: int) -> Refused:
        counted = f"{self.numbers:,} numbers are answered about rows that hold {self.unknown:,}"
        more = f", and {size:,} more are asked for" if size else ""
        return self.over(f"{counted}{more}: its operator allows no more (Limits(share={self.limits.share:g}))")


def question(begun: tuple[Any, ...], kind: int, t: int, asked: bytes) -> bytes:
    """Return the digest of a question and all else that its answer depends on.

    Parameters
    ----------
    begun : tuple
        Session, invitation and memory.
    kind, t : int
        Measurements and statistics do not depend on the round.
    asked : bytes
        The digest of its arrays.
    """
    return hashlib.blake2b(repr((begun, kind, t, asked)).encode(), digest_size=16).digest()


def asked_about(problem: Any, arrays: Mapping[str, np.ndarray], worked: bool) -> tuple[np.ndarray, bool] | None:
    """Return the models (R, size) whose gradients a message asks for, and whether by domain.

    None where a problem answers no gradients at models, or kernels will refuse the message.

    Parameters
    ----------
    problem : problem
        As a site has it, with its own rows only.
    arrays : mapping from name to array
    worked : bool
        Whether it asks for a round's work; else for a measurement.
    """
    w = next((arrays[name] for name in (("message/w", "message/z") if worked else ("w",)) if name in arrays), None)
    kind = kind_of(problem)
    if kind is not None and kind.models is not None:
        models = None if worked else kind.models(problem, arrays)
        return None if models is None else (models, False)
    if kind is None or kind.audited(problem, worked) is None:
        return None
    if w is None or w.dtype != np.float64 or w.ndim < 2 or not w.size:
        return None
    size = problem.federation.d if kind.own_part else math.prod(problem.model_shape)
    by_domain = not {"alpha", "message/alpha", "message/domain_weights"}.isdisjoint(arrays)
    return (w.reshape(len(w), size), by_domain) if w[0].size == size else None


class Latest:
    """The last tuples of arrays of some shapes, those of equal places side by side; in which order does not matter.

    Parameters
    ----------
    most : int
        How many are kept.
    """

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0  # of all that were added
        self._held: tuple[np.ndarray, ...] = ()

    def __len__(self) -> int:
        return min(self.count, self.most)

    def array(self, place: int, shape: tuple[int, ...], zeros: bool = False) -> np.ndarray:
        """Return the arrays at a place of the tuples, of this shape, one after the other, and zeros before them."""
        if not self._held:
            return np.zeros((int(zeros), *shape))
        return self._held[place][0 if zeros else 1 : 1 + len(self)]

    def add(self, tuples: list[Views]) -> None:
        """Keep some more; beyond the most that are kept the oldest are overwritten."""
        for one in tuples:
            if not self._held or self.count == len(self._held[0]) - 1 < self.most:  # there is no room
                room = min(max(2 * self.count, 8), self.most)
                grown = tuple(np.empty((1 + room, *a.shape)) for a in one)
                for new, old in zip(grown, self._held or [np.zeros((1, *a.shape)) for a in one], strict=True):
                    new[: len(old)] = old
                self._held = grown
            for held, a in zip(self._held, one, strict=True):
                held[1 + self.count % self.most] = a
            self.count += 1


class Audit:
    """Whether answers about models differ by fewer rows than a limit: then their difference would be these rows.

    Parameters
    ----------
    rows : float
        As in `Limits`.
    hessians : bool
        Whether answers hold Hessians of losses: sums of x x' with the curvatures of rows.
    """

    def __init__(self, rows: float, hessians: bool = False) -> None:
        self.rows, self.hessians = rows, hessians
        self.models: list[np.ndarray] = []  # (size,) the last that were answered, which a checkpoint holds
        self._views = Latest(_SLOPES)  # and what rows weigh in answers there
        self._new: tuple[list[np.ndarray], list[Views]] = [], []  # of the question that was looked at last

    def few(self, problem: Any, w: np.ndarray, by_domain: bool) -> str:
        """Return why models (R, size) must not be answered, or nothing."""
        self._new = [], []
        fed = problem.federation
        parts: list[np.ndarray | None] = [None]  # all rows
        sizes, kind = [fed.n], kind_of(problem)
        if by_domain and fed.domain is not None:
            domains = [np.flatnonzero(fed.domain == q) for q in np.unique(fed.domain)]
            parts, sizes = [None, *domains], [fed.n, *(part.size for part in domains)]
        own = self.hessians and self.rows > 0.0 and (kind is None or kind.slopes is None)  # others have rules of theirs
        if min(self.rows, 0.1 * max(sizes)) <= 1.0 and not own:
            return ""
        if len(self._views) < len(self.models):
            self._views = Latest(_SLOPES)
            self._views.add(self._seen(problem, np.array(self.models)))
        new = self._seen(problem, w)
        whole = [_are_finite(views) for views in new]
        if not all(whole):  # the answer is NaN
            rest = [views for views, finite in zip(new, whole, strict=True) if not finite]
            if fed.is_sparse and any(np.isfinite(a).any() for views in rest for a in views):
                return _OVERFLOW
            w, new = w[whole], [views for views, finite in zip(new, whole, strict=True) if finite]
        for i, views in enumerate(new):
            if own and is_made_of_few(views[1]):
                return _FEW
            if self._near(views, new[:i], parts):
                return _SINGLE
        self._new = [one.copy() for one in w], new
        return ""

    def _near(self, views: Views, others: list[Views], parts: list[np.ndarray | None]) -> bool:
        """Whether what rows weigh differs from nothing, or from others, by fewer rows than allowed."""
        for i, now in enumerate(views):
            earlier = self._views.array(i, now.shape, zeros=i == 0)  # `is_made_of_few` looks at curvatures
            for then in (earlier, *(one[i][None] for one in others)):
                if any(self._is_few(then, now, part) for part in parts):
                    return True
        return False

    def _is_few(self, then: np.ndarray, now: np.ndarray, part: np.ndarray | None) -> bool:
        """Whether what all rows, or a domain's, weigh now (n, C) differs from then (m, n, C) by fewer than allowed."""
        n, outputs = now.shape
        least = min(self.rows, 0.1 * (n if part is None else part.size))
        if least <= 1.0 or not len(then):
            return False
        if part is None and outputs == 1:
            return bool(few_changed(then.reshape(-1, n), now.ravel(), least, _STILL))
        some = max(1, _AT_ONCE // now.size)  # as many as fit are compared at once
        pieces = (then[first : first + some] for first in range(0, len(then), some))
        return any(_any_few(piece, now, part, least) for piece in pieces)

    def keep(self) -> None:
        """Keep the models that were looked at last, once they are answered."""
        w, views = self._new
        self.models += w
        del self.models[:-_SLOPES]
        self._views.add(views)
        self._new = [], []

    def _seen(self, problem: Any, w: np.ndarray) -> list[Views]:
        """Return what rows weigh in gradients at each of R models, (n, C), and in Hessians where these are told."""
        fed = problem.federation
        out: list[Views] = []
        kind = kind_of(problem)
        if kind is not None and kind.slopes is not None:
            return [kind.slopes(problem, one) for one in w]
        risk = problem if kind is None else kind.audited(problem, False)
        for one in w:
            S = np.ascontiguousarray(fed.X @ one.reshape(-1, fed.d).T)
            scores = S.copy() if self.hessians else S
            row_slopes(risk.row_loss, S, risk.row_labels)
            out.append((S, curvatures_at(risk, scores, S)) if self.hessians else (S,))
        return out


def _are_finite(views: Views) -> bool:
    """Whether all numbers are finite: if their sum is, they are."""
    return all(math.isfinite(a.sum()) or bool(np.isfinite(a).all()) for a in views)


def _any_few(then: np.ndarray, now: np.ndarray, part: np.ndarray | None, rows: float) -> bool:
    """Whether one of the changes (m, n, C) of what rows weigh, all or a part, is that of fewer rows than so many."""
    for scale in (1.0, SMALLER):
        with np.errstate(over="ignore"):
            delta = np.abs(scale * then - scale * now).sum(axis=2)
            delta = delta if part is None else delta[:, part]
            squares = rows * np.square(delta).sum(axis=1)
            few = (delta.sum(axis=1) ** 2 < squares) & (delta.max(axis=1) > scale * _STILL)
        if few.any():
            return True
        then = then[~(squares < math.inf)]  # of these the squares overflow
        if not len(then):
            break
    return False


def is_made_of_few(h: np.ndarray) -> bool:
    """Whether weights (n, C) are those of fewer than five rows, or than half, by (sum h)^2/sum h^2 of any output."""
    n, top = len(h), h.max(axis=0)
    h = h[:, top > 0.0] / top[top > 0.0]  # squares of small ones would be zero
    rows = np.min(h.sum(axis=0) ** 2 / np.square(h).sum(axis=0), initial=math.inf)
    return not rows >= min(_MADE_OF, 0.5 * n)  # also where they are not numbers


def curvatures_at(risk: Any, scores: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Return what rows weigh in a Hessian, (n, C): of several outputs those of its diagonal blocks, p (1 - p)."""
    if scores.shape[1] > 1:
        return np.abs(slopes) * (1.0 - np.abs(slopes))
    out, n = np.empty(len(scores)), len(scores)
    row_curvatures(risk.row_loss, scores.ravel(), risk.row_labels, np.array([0, n]), np.ones(1), out)
    return out[:, None]
