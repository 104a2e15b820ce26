"""What a reading is made of: conventions, the values that papers and toolkits give them, and the errors that occur.

A reading is one choice for every convention: a dictionary from the convention's name to the value's. A value is
"published" (in the paper), a "convention" (found elsewhere, and no error), or an "error" (computes something else than
any paper). The first value of a convention is the one that others are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedconvex.conformance.exams import Exam

Reading = dict[str, str]


class Value(NamedTuple):
    """One way to read a line of the algorithm."""

    name: str
    says: str  # the sentence that the answer prints
    kind: str = "convention"  # "published", "convention" or "error"
    when: Callable[[Mapping[str, str]], bool] | None = None  # given the conventions before; elsewhere it equals another


def always(exam: Exam, r: Mapping[str, str]) -> bool:
    """Whether an exam shows what a convention changes: every one does."""
    return True


class Convention(NamedTuple):
    """A line of the algorithm that is read in several ways."""

    name: str
    values: tuple[Value, ...]
    shown: Callable[[Exam, Mapping[str, str]], bool] = always  # by an exam, given the conventions before this one

    def value(self, name: str) -> Value:
        """Return the value of that name."""
        return next(v for v in self.values if v.name == name)


def pick(name: str, *values: Value, shown: Callable[[Exam, Mapping[str, str]], bool] = always) -> Convention:
    """Return a convention."""
    return Convention(name, values, shown)


def only(conventions: Sequence[Convention], *names: str) -> tuple[Convention, ...]:
    """Return the conventions of these names."""
    return tuple(c for c in conventions if c.name in names)


def errors(conventions: Sequence[Convention], r: Mapping[str, str]) -> int:
    """Return how many of a reading's values are errors."""
    return sum(c.value(r[c.name]).kind == "error" for c in conventions if c.name in r)


def departs(conventions: Sequence[Convention], r: Mapping[str, str]) -> int:
    """Return how many of a reading's values are no errors, and yet not the paper's."""
    chosen = [(c, c.value(r[c.name])) for c in conventions if c.name in r]
    return sum(v.kind == "convention" and any(o.kind == "published" for o in c.values) for c, v in chosen)


def expand(conventions: Sequence[Convention], exam: Exam, r: Reading, budget: int) -> Iterator[Reading]:
    """Yield the readings that add to r what an exam shows, with at most so many errors in all."""
    for c in conventions:
        if c.name in r or not c.shown(exam, r):
            continue
        for v in c.values:
            if v.when is not None and not v.when(r):
                continue
            cost = v.kind == "error"
            if cost <= budget:
                yield from expand(conventions, exam, r | {c.name: v.name}, budget - cost)
        return
    yield r


def _squared(exam: Exam, r: Mapping[str, Any]) -> bool:
    return exam.hyper["loss"] == "squared"


def _ridge(exam: Exam, r: Mapping[str, Any]) -> bool:
    return exam.hyper["l2"] > 0.0


def _partial(exam: Exam, r: Mapping[str, Any]) -> bool:
    return exam.events == "partial"


def _batches(exam: Exam, r: Mapping[str, Any]) -> bool:
    return exam.events == "batches"


def unequal(r: Mapping[str, str]) -> bool:
    """Whether clients weigh differently; equal ones are averaged plainly by all of several rules."""
    return r.get("weights") != "1/K"


BASE = (
    pick(
        "weights",
        Value("n_k/n", "clients weigh n_k/n, their shares of all rows", "published"),
        Value("1/K", "clients weigh 1/K, all the same"),
        Value("n_k", "updates are summed with n_k: the division by n is missing", "error"),
        Value("1", "updates are summed, not averaged: the division by their number is missing", "error"),
        Value("n_k, models", "models are summed with n_k: the division by n is missing", "error"),
        Value("1, models", "models are summed, not averaged: the division by their number is missing", "error"),
        Value("1/n_k", "clients weigh in proportion to 1/n_k: the weights are inverted", "error"),
    ),
    pick(
        "loss",
        Value("mean", "the loss of a batch is the mean over its rows", "published"),
        Value("sum", "the loss of a batch is the sum over its rows"),
    ),
    pick(
        "squared",
        Value("half", "the squared loss is (z - y)^2/2", "published"),
        Value("whole", "the squared loss is (z - y)^2"),
        shown=_squared,
    ),
    pick(
        "ridge",
        Value("l2/2", "the ridge is (l2/2) |w|^2", "published"),
        Value("l2", "the ridge is l2 |w|^2"),
        Value("absent", "there is no ridge", "error"),
        shown=_ridge,
    ),
    pick(
        "direction",
        Value("descent", "steps go down the gradient", "published"),
        Value("ascent", "steps go up the gradient: the sign is wrong", "error"),
    ),
    pick(
        "schedule",
        Value("constant", "the step size is constant", "published"),
        Value("1/(1+t)", "the step size is eta/(1 + t) in round t"),
        Value("1/sqrt(1+t)", "the step size is eta/sqrt(1 + t) in round t"),
        Value("1/(1+i)", "the step size is eta/(1 + i), i all local steps so far"),
    ),
)

LOCAL = (
    pick(
        "steps",
        Value("asked", "clients take as many local steps as asked", "published"),
        Value("fewer", "clients take one local step too few", "error"),
        Value("more", "clients take one local step too many", "error"),
        Value("one", "clients take one local step, whatever is asked", "error"),
        shown=lambda exam, r: exam.events != "batches",
    ),
    pick(
        "start",
        Value("server", "clients start from the server's model", "published"),
        Value("own", "clients go on from their own last model: the server's is not taken over", "error"),
        Value("previous", "each client goes on from the model of the one before: one model is shared by all", "error"),
        shown=lambda exam, r: not exam.events,
    ),
    pick(
        "work",
        Value("shuffled", "an epoch is a pass over the rows in random order, batch by batch", "published"),
        Value("in order", "an epoch is a pass over the rows in their given order, batch by batch"),
        Value("fresh", "an epoch is as many steps as a pass has, each on a fresh batch of different rows"),
        Value("full", "an epoch is one step on all rows, whatever the batch size", "error"),
        shown=lambda exam, r: _batches(exam, r) and bool(exam.hyper["epochs"]),
    ),
    pick(
        "draw",
        Value("distinct", "a local step draws a fresh batch of different rows"),
        Value("replacement", "a local step draws a fresh batch, rows with replacement"),
        Value("passes", "local steps go through the rows in random order, batch by batch, and shuffle them anew"),
        Value("stream", "local steps take batches off passes in random order; a batch may span two passes"),
        Value("first rows", "a local step takes the first rows, always the same", "error"),
        shown=lambda exam, r: _batches(exam, r) and not exam.hyper["epochs"],
    ),
    pick(
        "last batch",
        Value("kept", "the last batch of a pass is taken though it is smaller", "published"),
        Value("dropped", "the last batch of a pass is left out if it is smaller"),
        Value("filled", "the last batch of a pass is filled up with the first rows of another pass"),
        Value(
            "full divisor", "the last batch of a pass is divided by the batch size, though it has fewer rows", "error"
        ),
        shown=lambda exam, r: _batches(exam, r) and exam.ragged and r.get("work") in ("shuffled", "in order"),
    ),
)

PARTIAL = (
    pick(
        "sampling",
        Value("distinct", "the clients of a round are different ones, drawn uniformly", "published"),
        Value("replacement", "the clients of a round are drawn with replacement, and count as often as drawn"),
        Value("everybody", "all clients take part, whatever is asked", "error"),
        shown=_partial,
    ),
    pick(
        "share",
        Value("renormalised", "the weights of a round's clients are divided by their sum", "published"),
        Value("plain", "a round's clients are averaged plainly, whatever they weigh otherwise", when=unequal),
        Value("of all", "a round's clients keep their weights among all, and the rest of the model stays"),
        Value("unbiased", "the weights of a round's clients are multiplied by K/m", when=unequal),
        Value(
            "Scheme II",
            "a round's models are summed with p_k K/m, which need not sum to 1 (Li et al. 2020, Scheme II as printed)",
            when=unequal,
        ),
        Value("twice", "a round's clients are averaged, and the update is multiplied by K/m on top of that", "error"),
        Value("shrinking", "a round's clients keep their weights among all, so that the model shrinks", "error"),
        shown=_partial,
    ),
)

PLAIN = (  # what papers that average plainly share: their form for clients of unequal size is as good
    BASE[0]._replace(
        values=tuple(v._replace(kind="published") if v.name == "1/K" else v for v in BASE[0].values),
    ),
    *only(BASE, "loss", "squared", "ridge", "direction"),
)
