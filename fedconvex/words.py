"""How methods say what they do: in full for a sentence, in short for a table.

A method defines ``words(problem)``, which returns `Words`. One that does not is described by its settings, as its class
names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

__all__ = ["Words"]


class Words(NamedTuple):
    """How a method works on a problem.

    Attributes
    ----------
    work : str
        Its name and what clients do: "FedAvg with 5 local steps on 20 rows".
    short : tuple of str
        The same for tables: "tau 5".
    more : tuple of str
        What tables have after the number of rounds: "B 20", "5 of 10".
    who : str
        Who takes part.
    rules : tuple of str
        What else there is, a part of the sentence each.
    chosen : tuple of str and number
        What is chosen from a problem's constants, with its value where it is one number: "step size", 0.1.

    Examples
    --------
    >>> from fedconvex.words import Words
    >>> Words("FedAvg with 5 local steps", short=("tau 5",), who="everybody takes part").short
    ('tau 5',)
    """

    work: str
    short: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    who: str = ""
    rules: tuple[str, ...] = ()
    chosen: tuple[str, float | None] = ("", None)


def words_of(method: Any, problem: Any) -> Words:
    """Return how a method says that it works on a problem; its settings, where it says nothing.

    Examples
    --------
    >>> from fedconvex import FedAvg, GradientDescent, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.words import words_of
    >>> problem = Problem(linear_federation(n_clients=4, seed=0).federation, Squared())
    >>> words_of(FedAvg(step_size=0.1, local_steps=3, participation=0.5), problem).short
    ('tau 3',)
    >>> words_of(GradientDescent(step_size=0.1), problem).work
    'GradientDescent with step size 0.1'
    """
    if callable(getattr(method, "words", None)):
        return method.words(problem)  # type: ignore[no-any-return]
    if not is_dataclass(method):
        return Words(f"{method!r}")
    known = [(f.name.replace("_", " "), getattr(method, f.name)) for f in fields(method)]
    listed = tuple(f"{name} {f'{v:.4g}' if isinstance(v, float) else v}" for name, v in known)
    name = type(method).__name__
    return Words(f"{name} with {', '.join(listed)}" if listed else name, listed)


def counted(n: Any, what: str) -> str:
    """Return a number of things: "1 local step", "3 local steps"."""
    return f"{n} {what}{'s' * (n != 1)}"


def spanned(steps: int | Sequence[int]) -> Any:
    """Return a number of steps, or the least and the largest of several: "2 to 5"."""
    low, high = (steps, steps) if isinstance(steps, int) else (min(steps), max(steps))
    return low if low == high else f"{low} to {high}"


def steps_in_words(
    method: Any,
    steps: int | Sequence[int] | None,
    batch: Any,
    who: str = "",
    *,
    kind: str = "local step",
    letter: str = "tau",
    lead: tuple[str, ...] = (),
    rules: tuple[str, ...] = (),
    chosen: tuple[str, Any] | None = None,
) -> Words:
    """Return the words of a method whose clients take steps on some rows.

    Parameters
    ----------
    method : method
    steps : int, sequence of int or None
        In a round; one number a client; None for exact solutions.
    batch : int or None
        Rows of a step, None for all.
    who : str
        Who takes part, "" for everybody.
    kind, letter : str
        What the steps are called, in full and in short.
    lead, rules : tuple of str
        What stands before the steps in short; what else there is in full.
    chosen : tuple, optional
        As in `Words`; default the step size.
    """
    if steps is None:
        tau, work = "exact", "exact solutions"
    else:
        number = spanned(steps)
        tau, work = f"{letter} {number}", counted(number, kind)
    eta = getattr(method, "step_size", None)
    if chosen is None:
        chosen = ("penalty" if eta is None else "step size", eta if isinstance(eta, float) else None)
    return Words(
        f"{type(method).__name__} with {work} on {'all' if batch is None else batch} rows",
        (*lead, tau),
        (() if batch is None else (f"B {batch}",)) + ((who,) if who else ()),
        f"{who} take part" if who else "full participation",
        rules,
        chosen,
    )
