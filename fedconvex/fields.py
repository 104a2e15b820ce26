"""Settings of methods, checked by the rules that their fields are declared with.

A method is a frozen, keyword-only dataclass that inherits `CheckedFields` and annotates its fields by rules::

    momentum: Share = 0.5
    batch_size: Count | None = None

A rule is called with the field's name ("HeavyBall.momentum") and what was given; it returns what is kept, or raises.
It may have ``fit(name, kept, problem, R)``, which raises where a setting does not fit a problem or its R trajectories.

* `Positive`: a finite number above 0, as a step size.
* `AtLeastZero`: a finite number of at least 0, as a regularisation weight.
* `Share`: a number in [0, 1), as a momentum.
* `Inside`: a number in (0, 1), as the probability of communicating.
* `Count`: a whole number of at least 1, as rows of a mini-batch.
* `OneOrTwo`: 1 or 2, as the options of SCAFFOLD.
* `Flag`: True or False.
* `BatchDraw`: "uniform" or "weighted", how rows of mini-batches are drawn.
* `PositivePerTrajectory`: a positive number, or one for each trajectory.
* `CountPerClient`: a whole number of at least 1, or one for each client, as local steps.

>>> from dataclasses import dataclass
>>> from fedconvex.fields import CheckedFields, Count, Share
>>> @dataclass(frozen=True, kw_only=True)
... class Settings(CheckedFields):
...     momentum: Share = 0.5
...     batch_size: Count | None = None
>>> Settings(batch_size=8)
Settings(momentum=0.5, batch_size=8)
>>> Settings(momentum=1.0)
Traceback (most recent call last):
...
ValueError: Settings.momentum must lie in [0, 1); got 1.0
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, NamedTuple, Self, get_args, get_type_hints

import numpy as np

from fedconvex._check import among, bad, finite, flag, nearest, numeric, real, whole, wrong_type

__all__ = [
    "AtLeastZero",
    "BatchDraw",
    "CheckedFields",
    "Count",
    "CountPerClient",
    "Flag",
    "Inside",
    "OneOrMore",
    "OneOrTwo",
    "Positive",
    "PositivePerTrajectory",
    "Share",
]


@dataclass(frozen=True, kw_only=True)
class CheckedFields:
    """Fields that are checked once, when a method is made, and once more against the problem when a run starts.

    Raises
    ------
    ValueError, TypeError
        If a field breaks its rule, or a name is no field.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from fedconvex.fields import CheckedFields, Positive
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Descent(CheckedFields):
    ...     step_size: Positive
    >>> Descent(step_size=-1.0)
    Traceback (most recent call last):
    ...
    ValueError: Descent.step_size must be positive and finite; got -1.0
    """

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """Refuse names that are no fields, before ``__init__`` does so without a cure."""
        known = [f.name for f in fields(cls) if f.init]
        for name in given.keys() - known:
            raise wrong_type(
                cls.__name__, f"be given its own settings ({', '.join(known)})", name, nearest(name, known)
            )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, rule, optional in rules_of(type(self)):
            x = getattr(self, name)
            if x is not None or not optional:
                object.__setattr__(self, name, rule(f"{type(self).__name__}.{name}", x))

    def check_fit(self, problem: Any, R: int) -> None:
        """Raise if a setting does not fit the problem, or its R trajectories."""
        for name, rule, _ in rules_of(type(self)):
            x = getattr(self, name)
            if x is not None and hasattr(rule, "fit"):
                rule.fit(f"{type(self).__name__}.{name}", x, problem, R)


_rules: dict[type, list[tuple[str, Any, bool]]] = {}  # of classes that were asked for


def rules_of(cls: type) -> list[tuple[str, Any, bool]]:
    """Return the fields that have rules: name, rule, and whether None may stand in its place."""
    if cls in _rules:
        return _rules[cls]
    hints = get_type_hints(cls, include_extras=True)
    found: list[tuple[str, Any, bool]] = []
    for field in fields(cls):
        either = (hints[field.name], *get_args(hints[field.name]))
        rules = [rule for hint in either for rule in getattr(hint, "__metadata__", ())]
        found += [(field.name, rules[0], type(None) in either)] if rules else []
    _rules[cls] = found
    return found


# ---------------------------------------------------------------- rules


class OneOrMore(NamedTuple):
    """One number, kept as it is, or one for each trajectory (client, node), kept as a tuple.

    Attributes
    ----------
    number : callable
        The rule of every number: takes the field's name and the number, returns what is kept.
    words : str
        What they must be.
    each : {"trajectory", "client", "node"}
        What there is one for.

    Examples
    --------
    >>> from fedconvex.fields import OneOrMore, count
    >>> rule = OneOrMore(count, "whole numbers of at least 1", "client")
    >>> rule("Mine.local_steps", 3), rule("Mine.local_steps", [1, 2])
    (3, (1, 2))
    """

    number: Callable[[str, Any], Any]  # the rule of every number
    words: str  # what they must be
    each: str = "trajectory"

    def __call__(self, who: str, x: Any) -> Any:
        """Return x as one number, or as a tuple of them."""
        if not isinstance(x, (list, tuple)) and np.ndim(x) == 0:
            return self.number(who, x.item() if isinstance(x, np.ndarray) else x)
        v, error = numeric(who, x), bad(who, f"be {self.words}, one per {self.each}", f"{x!r}")
        finite(who, v)
        if v.ndim != 1 or v.size == 0:
            raise error
        try:
            return tuple(self.number(who, entry) for entry in np.asarray(x).tolist())
        except ValueError:
            raise error from None

    def fit(self, who: str, x: Any, problem: Any, R: int) -> None:
        """Raise if they are as many as something else."""
        count = R if self.each == "trajectory" else problem.federation.K
        if isinstance(x, tuple) and len(x) != count:
            raise bad(who, f"be one number per {self.each} ({count})", f"{len(x)}")


def batch_draw(who: str, x: Any) -> str:
    """Return "uniform" or "weighted"."""
    among(who, x, ("uniform", "weighted"))
    return str(x)


def share(who: str, x: Any) -> float:
    """Return a number in [0, 1)."""
    if not 0.0 <= real(who, x) < 1.0:
        raise bad(who, "lie in [0, 1)", x)
    return float(x)


def inside(who: str, x: Any) -> float:
    """Return a number in (0, 1)."""
    if not 0.0 < real(who, x) < 1.0:
        raise bad(who, "lie strictly between 0 and 1", x)
    return float(x)


positive, nonnegative = partial(real, low=0.0, strict=True), partial(real, low=0.0)
count = partial(whole, low=1)


def label(who: str, x: Any) -> str | int:
    """Return what may be the label of a client, or its number."""
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, (str, int, np.integer)):
        raise wrong_type(who, "be the label of a client, or its number", f"{x!r}")
    return x if isinstance(x, str) else int(x)


Positive = Annotated[float, positive]
AtLeastZero = Annotated[float, nonnegative]
Share = Annotated[float, share]
Inside = Annotated[float, inside]
Count = Annotated[int, count]
Label = Annotated[Any, label]
OneOrTwo = Annotated[int, partial(whole, low=1, high=2)]
Flag = Annotated[bool, flag]
BatchDraw = Annotated[str, batch_draw]
PositivePerTrajectory = Annotated[Any, OneOrMore(positive, "positive numbers")]
CountPerClient = Annotated[Any, OneOrMore(count, "whole numbers of at least 1", "client")]


def read_kind(x: Any, *kinds: type) -> Any:
    """Return one of some kinds that a command line names, such as "TopK(3)" or "CoordinateMedian"; else x as it is.

    Examples
    --------
    >>> from fedconvex.fields import read_kind
    >>> from fedconvex.methods import CoordinateMedian, TrimmedMean
    >>> [read_kind(text, CoordinateMedian, TrimmedMean) for text in ("TrimmedMean(0.1)", "CoordinateMedian", "other")]
    [TrimmedMean(share=0.1), CoordinateMedian(), 'other']
    """
    found = re.fullmatch(r"\s*(\w+)\s*(?:\(\s*([-+.\deE]*)\s*\))?\s*", x) if isinstance(x, str) else None
    kind = {k.__name__: k for k in kinds}.get(found[1]) if found else None
    if found is None or kind is None:
        return x
    try:
        return kind(*[float(n) if re.search(r"[.eE]", n) else int(n) for n in [found[2]] if n])
    except (TypeError, ValueError):  # not a number, or too many or too few
        return x
