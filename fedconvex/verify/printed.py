"""Instances as one prints them: what is measured beside the bound, as NumPy, as LaTeX, and as data."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedconvex._check import bad, instance
from fedconvex._files import write_file
from fedconvex._latex import escaped, fraction
from fedconvex.theorems import Theorem
from fedconvex.theorems.parts.theorem import Check
from fedconvex.theorems.parts.tiny import Tiny
from fedconvex.theory.bound import AssumptionError, Bound
from fedconvex.verify.checking import problem_of, setting_of
from fedconvex.verify.descriptions import described
from fedconvex.verify.numpy_text import numpy_text
from fedconvex.verify.search import share_of
from fedconvex.verify.shrinking import as_tiny, shrunk
from fedconvex.verify.tightness import WorstData
from fedconvex.verify.verdicts import find_theorem

NO_TEXT = (
    "There is no NumPy text of this run: those are for FedAvg, FedSGD, FedProx, SCAFFOLD and Dynamic FedAvg, and for "
    "what is drawn on squared losses only."
)
UNCONFIRMED = "A NumPy text of this run was written, but did not give the same number when it was run: it is left out."


@dataclass(frozen=True)
class PrintedInstance:
    """A theorem on an instance of a few numbers.

    Attributes
    ----------
    theorem : str
    words : str
        The setting in full.
    tiny : Tiny or WorstData
        The instance as data: rows, or gradients and values of the functions of an exact worst case.
    measured : float
        The exact value of what the theorem bounds.
    bound : Bound
    numpy : str or None
        A program of NumPy, without this package, that prints what is measured and the bound; None where there is none,
        or none that gave the same number.
    latex : str
        The instance in words and formulas.
    without : str
        Why there is no program.

    Examples
    --------
    >>> from fedconvex.theory.bound import LAST_SYNCHRONISED, Bound
    >>> from fedconvex.verify import PrintedInstance
    >>> bound = Bound({"start": 0.5}, LAST_SYNCHRONISED, "mine")
    >>> found = PrintedInstance("mine", "one client, one round", None, 0.75, bound, None, "$f = x^2$", "by hand")
    >>> found.measured > found.bound.value, found.without
    (True, 'by hand')
    """

    theorem: str
    words: str
    tiny: Tiny | WorstData
    measured: float
    bound: Bound
    numpy: str | None
    latex: str
    without: str = ""

    @property
    def heading(self) -> str:
        """What is measured beside the bound, in as many digits as tell them apart."""
        both = self.measured, self.bound.value
        digits = next((k for k in range(6, 17) if f"{both[0]:.{k}g}" != f"{both[1]:.{k}g}"), 17)
        sign = ">" if both[0] > both[1] else "<="
        return f"{self.theorem}: {both[0]:.{digits}g} {sign} {both[1]:.{digits}g}"

    def __str__(self) -> str:
        text = self.numpy if self.numpy is not None else f"# {self.without}\n# {self.tiny}\n"
        return f"# {self.heading}; {self.words}\n{text}"

    def document(self) -> dict[str, Any]:
        """Return everything as data that JSON can hold."""
        numbers = {"measured": self.measured, "bound": self.bound.value, "terms": dict(self.bound.terms)}
        texts = {"numpy": self.numpy, "latex": self.latex}
        return {"theorem": self.theorem, "words": self.words, "instance": self.tiny._asdict(), **numbers, **texts}


def printed(theorem: Theorem | str, tiny: Tiny) -> PrintedInstance:
    """Return an instance as one prints it.

    Parameters
    ----------
    theorem : Theorem or str
        With a ``space``.
    tiny : Tiny
        As `tightest` finds it, or `shrunk` returns it.

    Raises
    ------
    ValueError
        If the theorem has no space, does not apply, or its quantity is not exact there.

    Examples
    --------
    >>> from fedconvex.theorems.parts.tiny import Tiny
    >>> from fedconvex.verify import printed
    >>> knobs = {"share": 0.25, "local_steps": 1, "batch_size": 0}
    >>> found = printed("fedavg-convex", Tiny(((1.0,),), (0.0,), (1,), (1.0,), 1, knobs))
    >>> print(found.numpy.splitlines()[-2])
    bound = 2.0  # start
    """
    theorem = find_theorem(theorem)
    instance("printed: tiny", tiny, Tiny)
    if theorem.space is None:
        raise bad("printed: theorem", "declare a space", theorem.name, "give Theorem(space=Space(...))")
    check = theorem.space.check(tiny, "the instance")
    s = setting_of(theorem, check, problem_of(theorem, check.instance))
    bound, found = theorem.at(s), theorem.expectation(s, [s.rounds])
    if found is None:
        raise bad("printed: tiny", f"have an exact value of {theorem.quantity.words}", "Monte Carlo only")
    measured = float(found.values[0])
    words = described(check.instance, s, theorem, check.method or theorem.method)[1]  # type: ignore[arg-type]
    words = words.removeprefix(check.instance.words).partition("; ")[2]
    text = numpy_text(s, theorem.quantity, bound, measured)
    without = "" if text else NO_TEXT if text is None else UNCONFIRMED
    latex = _latex(theorem, tiny, words, bound, measured)
    return PrintedInstance(theorem.name, words, tiny, measured, bound, text or None, latex, without)


def counterexample(
    theorem: Theorem, check: Check, progress: Callable[[float, str], None] | None = None
) -> PrintedInstance | None:
    """Return the instance of a check that violates a theorem, shrunk and printed; None where it is no small problem."""
    try:
        tiny = check.instance.tiny or as_tiny(theorem, check)
        if tiny is None or not share_of(theorem, tiny) > 1.0:
            return None
        return printed(theorem, shrunk(theorem, tiny, progress=progress))
    except AssumptionError:
        return None


def write_instances(
    folder: str | os.PathLike[str],
    suite: Iterable[Check],
    known: Mapping[str, Theorem],
    progress: Callable[[float, str], None] | None = None,
) -> Iterator[Path]:
    """Write what searches found in a suite to a folder, each as NumPy, LaTeX and JSON, and yield the programs' files.

    Where there is no program, the file of JSON is yielded; where the theorem does not apply, nothing is written.
    """
    used, found_by_searches = set[str](), [check for check in suite if check.instance.tiny is not None]
    for i, check in enumerate(found_by_searches):
        if progress is not None:
            progress(i / len(found_by_searches), f"{check.theorem}: {check.instance.name}")
        try:
            found = printed(known[check.theorem], check.instance.tiny)
        except ValueError:
            continue
        name = re.sub(r"[^a-z0-9]+", "-", f"{check.theorem} {check.instance.name}".lower()).strip("-")[:100]
        name = next(n for n in itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2))) if n not in used)
        used.add(name)
        texts = {"json": json.dumps(found.document(), indent=1), "tex": found.latex}
        texts |= {} if found.numpy is None else {"py": str(found)}
        files = [(Path(folder) / f"{name}.{kind}", text) for kind, text in texts.items()]
        for file, text in files:
            write_file(file, text.encode())
        yield files[-1 if found.numpy is not None else 0][0]
    if progress is not None:
        progress(1.0, "done")


# ---------------------------------------------------------------- LaTeX

HINGE = r"h(m) = \frac{1}{2} - m \ (m \le 0), \ \frac{1}{2}(1 - m)^2 \ (0 \le m \le 1), \ 0 \ (m \ge 1)"


def _latex(theorem: Theorem, tiny: Tiny, words: str, bound: Bound, measured: float) -> str:
    """Return the problem as formulas, the run in words, and what it shows."""
    plain = theorem.space.problem is Tiny.problem
    sign = ">" if measured > bound.value else r"\le"
    terms = ", ".join(f"{name} {value:.6g}" for name, value in bound.terms.items())
    lines = [
        f"% {theorem.name}",
        *(_formulas(tiny) if plain else [f"{escaped(str(tiny))}."]),
        f"{escaped(words)}.",
        "",
        f"{escaped(theorem.quantity.words)}: ${fraction(measured)} {sign} {fraction(bound.value)}$,",
        f"where the bound has the terms {escaped(terms)}.",
    ]
    return "\n".join(lines) + "\n"


def _formulas(tiny: Tiny) -> list[str]:
    """Return F, the clients' f_k, and the start."""
    copies = int(tiny.knobs.get("copies", 1))
    weights = tiny.weights or (1.0,) * len(tiny.sizes)
    F = " + ".join(f"{fraction(q / sum(weights))} f_{{{k}}}" for k, q in enumerate(weights, 1))
    lines, first = [f"$F(w) = {F if len(weights) > 1 else 'f_{1}'}$" + ("" if copies == 1 else f", {copies} times,")], 0
    for k, n in enumerate(tiny.sizes, 1):
        rows = zip(tiny.rows[first : first + n], tiny.labels[first : first + n], strict=True)
        inside = " + ".join(_row(tiny.loss, row, y) for row, y in rows)
        ridge = rf" + {fraction(tiny.l2 / 2)}\|w\|^2" if tiny.l2 else ""
        mean = inside if n == 1 else rf"{fraction(1 / n)} \left( {inside} \right)"
        lines.append(rf"\[ f_{{{k}}}(w) = {mean}{ridge} \]")
        first += n
    if tiny.loss == "hinge":
        lines.append(f"${HINGE}$,")
    start = ", ".join(map(fraction, tiny.offset))
    return [*lines, f"from $w_0 = w^* + ({start})$:" if any(tiny.offset) else "from the minimiser $w_0 = w^*$:"]


def _row(loss: str, row: tuple[float, ...], y: float) -> str:
    """Return the loss of a row."""
    names = ["w"] if len(row) == 1 else [f"w_{{{j}}}" for j in range(1, len(row) + 1)]
    z = " + ".join(("" if x == 1.0 else fraction(x)) + name for x, name in zip(row, names, strict=True) if x) or "0"
    z = z.replace("+ -", "- ")
    if loss == "squared":
        away = f" - {fraction(y)}" if y > 0.0 else f" + {fraction(-y)}" if y < 0.0 else ""
        return rf"\frac{{1}}{{2}} {z if z == 'w' and not away else f'({z}{away})'}^2"
    return f"h({_signed(z, y)})" if loss == "hinge" else rf"\log(1 + e^{{{_signed(z, -y)}}})"


def _signed(z: str, y: float) -> str:
    """Return z for a positive y, and -z for a negative one."""
    return z if y > 0.0 else f"-{z}" if "+" not in z and "-" not in z else f"-({z})"
