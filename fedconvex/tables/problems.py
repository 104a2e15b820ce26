"""What is wrong with columns, all of it in one message, each with the option that settles it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

_SHOWN = 40  # troubles that a message spells out
_MISSING = (
    "missing cells: impute='median' (of names the most frequent), 'mode' (the most frequent) or 'indicator' (median, "
    "and a feature that marks them); drop=[...] leaves a column out"
)
_MISSING_SHELL = (
    "missing cells: --impute median (of names the most frequent), mode (the most frequent) or indicator (median, and a "
    "feature that marks them); --drop COL leaves a column out"
)


class Trouble(NamedTuple):
    """One column that needs a decision.

    Attributes
    ----------
    column, what : str
        Which, and what was found.
    option : str
        "drop", "as_category", "impute", "missing", "decimal" or "" where only the file can be corrected.
    value : str
        Of the option, where it is not the column.
    keep : bool
        Whether keep= takes the column as it is.
    also : tuple of two str
        A second option, and its value, that the first one makes necessary.

    Examples
    --------
    >>> from fedconvex.tables import Trouble
    >>> Trouble("patient", "identifies rows: 300 values in 300 rows", "drop").option
    'drop'
    """

    column: str
    what: str  # what was found
    option: str  # "drop", "as_category", "impute", "missing", "decimal" or "" where only the file can be corrected
    value: str = ""  # of the option, where it is not the column
    keep: bool = True  # whether keep= takes the column as it is
    also: tuple[str, str] = ("", "")  # a second option, and its value, that the first one makes necessary


class ColumnProblems(ValueError):
    """Columns that cannot be features without a decision: str(error) lists them all, with what settles each.

    Attributes
    ----------
    origin, read_as : str
        What was read, and how.
    troubles : tuple of Trouble

    Examples
    --------
    >>> from fedconvex.tables import Frame, read_table
    >>> try:
    ...     _ = read_table({"patient_id": range(20), "ill": [0, 1] * 10}, target="ill")
    ... except ValueError as error:
    ...     print(error)  # doctest: +ELLIPSIS
    the frame: 1 column needs a decision
      'patient_id': ...
    settled by: drop=['patient_id']; keep=[...] takes a column as it is
    """

    def __init__(self, origin: str, read_as: str, troubles: Sequence[Trouble]) -> None:
        self.origin, self.read_as, self.troubles = origin, read_as, tuple(troubles)
        super().__init__(self.text(_python))

    def __reduce__(self) -> tuple[type, tuple[str, str, tuple[Trouble, ...]]]:
        return type(self), (self.origin, self.read_as, self.troubles)

    @property
    def cures(self) -> dict[str, list[str]]:
        """Values of every option that settles something."""
        found: dict[str, list[str]] = {}
        for option, value in [(t.option, t.value or t.column) for t in self.troubles] + [t.also for t in self.troubles]:
            values = found.setdefault(option, [])
            if value not in values:
                values.append(value)
        found.pop("", None)
        return found

    def without(self, option: str) -> ColumnProblems:
        """Return the same without an option that the caller does not have."""
        kept = [t._replace(also=("", "")) if t.also[0] == option else t for t in self.troubles]
        return ColumnProblems(self.origin, self.read_as, kept)

    @property
    def command_line(self) -> str:
        """The message in the words of the command line."""
        return self.text(_options)

    def text(self, spelt: object) -> str:
        """Return the message, the options spelt as a function says."""
        n = len({t.column for t in self.troubles})
        reading = f" (read with {self.read_as})" if self.read_as else ""
        lines = [f"{self.origin}: {n} column{'s need' if n > 1 else ' needs'} a decision{reading}"]
        lines += [f"  {t.column!r}: {t.what}" for t in self.troubles[:_SHOWN]]
        if len(self.troubles) > _SHOWN:
            lines.append(f"  and {len(self.troubles) - _SHOWN} more")
        settled = spelt(self.cures)  # type: ignore[operator]
        if settled:
            lines.append(f"settled by: {settled}" + self._keeping(spelt))
        unsettled = list(dict.fromkeys(repr(t.column) for t in self.troubles if not t.option))
        if unsettled:
            words = f"to be corrected in the data, or rows to be removed: {', '.join(unsettled)}"
            lines.append(words + ("" if settled else self._keeping(spelt)))
        if "impute" in self.cures:
            lines.append(_MISSING_SHELL if spelt is _options else _MISSING)
        return "\n".join(lines)

    def _keeping(self, spelt: object) -> str:
        if not any(t.keep for t in self.troubles):
            return ""
        return "; --keep COL takes a column as it is" if spelt is _options else "; keep=[...] takes a column as it is"


def _python(cures: dict[str, list[str]]) -> str:
    lists = ("drop", "as_category", "missing")
    return ", ".join(f"{name}={values if name in lists else repr(values[0])}" for name, values in cures.items())


def _options(cures: dict[str, list[str]]) -> str:
    """Return options to paste; a column whose name holds a comma gets an option of its own."""
    words: list[str] = []
    for name, values in cures.items():
        plain = [v for v in values if "," not in v]
        for value in ([",".join(plain)] if plain else []) + [v for v in values if "," in v]:
            option = f"--{name.replace('_', '-')}"  # a column called like an option is tied to its own by "="
            words += [f"{option}={shlex.quote(value)}"] if value.startswith("-") else [option, shlex.quote(value)]
    return " ".join(words)
