"""Names that are numbers: "1" and "1.0" are one name, however files, frames and people spell it.

A number with digits and at most a point has one spelling, `spelt`: that of the shortest decimal, exact in any number of
digits. So have truth values: TRUE of one program and true of another are Python's True. Leading zeros and exponents are
habits of identifiers ("007", "2E1"), so such cells stay as they are written; they are found by their number where no
name is spelt like them. Two spellings of one number within a column (`doubles`), and names that differ in the case of
their letters only (`alike`), are asked about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

_PLAIN = re.compile(r"[+-]?(?=[.]?[0-9])(?:0|[1-9][0-9]*)?(?:[.][0-9]*)?")
_NUMBER = re.compile(r"[+-]?(?=[.]?[0-9])[0-9]*(?:[.,][0-9]*)?(?:[eE][+-]?[0-9]{1,3})?")
_GROUPS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")  # 54,053 is 54053 to some
EXACT = 2.0**53  # largest whole number up to which all are doubles
_TRUTH = {"true": "True", "false": "False"}
_LONG = 1e22  # whole numbers from here on are written with an exponent


def as_text(value: Any) -> str:
    """Return how a value is written as a name: 7.0 as "7".

    >>> as_text(7.0), as_text(0.5), as_text("07"), as_text(1e20)
    ('7', '0.5', '07', '100000000000000000000')
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < _LONG:
        return str(int(value if abs(value) <= EXACT else Decimal(repr(value))))
    return str(value)


def spelt(cell: str) -> str:
    """Return the one spelling of a cell that is a plain number or a truth value, and any other cell as it is.

    >>> [spelt(cell) for cell in ("1", "1.0", "+1.", "-0.50", "007", "2E1", "12345678901234567890.0", "1,5", "TRUE")]
    ['1', '1', '1', '-0.5', '007', '2E1', '12345678901234567890', '1,5', 'True']
    """
    if _PLAIN.fullmatch(cell) is None:
        return _TRUTH.get(cell.lower(), cell)
    whole, _, part = cell.lstrip("+-").partition(".")
    part = part.rstrip("0")
    sign = "-" if cell[0] == "-" and (part or whole.strip("0")) else ""
    if not part:
        return sign + (whole or "0")
    number = float(cell)  # as a frame of numbers would write it, unless it has more digits than a double
    exact = f"{sign}{whole or '0'}.{part}"
    return as_text(number) if Decimal(repr(number)) == Decimal(exact) else exact


def number_of(cell: str) -> Decimal | None:
    """Return the number that a cell is in any notation, or None; a comma is a point but where it may divide thousands.

    >>> number_of("007") == number_of("7,0") == number_of("0.7e1"), number_of("f"), number_of("1_000")
    (True, None, None)
    """
    if _NUMBER.fullmatch(cell) is None or _GROUPS.fullmatch(cell) is not None:
        return None
    return Decimal(cell.replace(",", "."))


def merged(cells: Iterable[str]) -> str:
    """Return in words which spellings of cells are one name, "" if every name has one spelling.

    >>> merged(["1", "1.0", "2", "1.00"])
    "'1', '1.0' and '1.00' are one name"
    """
    spellings: dict[str, list[str]] = {}
    for cell in dict.fromkeys(cells):
        spellings.setdefault(spelt(cell), []).append(cell)
    several = [sorted(found) for found in spellings.values() if len(found) > 1]
    if not several:
        return ""
    shown = "; ".join(
        f"{', '.join(map(repr, some[:-1][:3]))} and {some[-1]!r} are one name" for some in sorted(several)[:2]
    )
    return shown + ("; ..." if len(several) > 2 else "")


def doubles(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two different names that are one number, "07" and "7", or None.

    >>> doubles(["7", "8", "07"]), doubles(["7", "8"])
    (('7', '07'), None)
    """
    first: dict[Decimal, str] = {}
    for name in dict.fromkeys(names):
        number = number_of(name)
        if number is not None and first.setdefault(number, name) != name:
            return first[number], name
    return None


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two different names that differ in the case of letters and in blanks only, or None.

    >>> alike(["no", "Yes", "yes"]), alike(["type 1", "Type1"]), alike(["a", "b"])
    (('Yes', 'yes'), ('type 1', 'Type1'), None)
    """
    first: dict[str, str] = {}
    for name in dict.fromkeys(names):
        plain = "".join(name.casefold().split())
        if first.setdefault(plain, name) != name:
            return first[plain], name
    return None


def all_differ(names: Sequence[Any]) -> bool:
    """Whether all labels are different names: 1, "1" and "1.0" are one.

    >>> all_differ([1, "2", "x"]), all_differ([1, "1.0"]), all_differ([[1], [2]])
    (True, False, False)
    """
    try:
        return len(set(names)) == len({spelt(as_text(name)) for name in names}) == len(names)
    except TypeError:  # some are no names at all
        return False


class Names:
    """Where names stand in a list: as they are spelt, else as the one name that is the same number.

    Examples
    --------
    >>> known = Names(["07", "12", "f"])
    >>> known.places(["12.0", "7", "7.5", "f"]).tolist()
    [1, 0, -1, 2]
    """

    def __init__(self, names: Sequence[Any]) -> None:
        self.exact: dict[str, int] = {}
        self.by_number: dict[Decimal, int] = {}
        for j, name in enumerate(names):
            text = spelt(as_text(name))
            self.exact.setdefault(text, j)
            number = number_of(text)
            if number is not None:
                self.by_number[number] = -1 if number in self.by_number else j

    def place(self, name: Any) -> int:
        """Return the position of a name, -1 if there is none."""
        text = spelt(as_text(name))
        if text in self.exact:
            return self.exact[text]
        number = number_of(text)
        return -1 if number is None else self.by_number.get(number, -1)

    def places(self, names: Iterable[Any]) -> np.ndarray:
        """Return the positions of names (n,), -1 where there is none."""
        found: dict[Any, int] = {}
        return np.array([found[c] if c in found else found.setdefault(c, self.place(c)) for c in names], dtype=np.int64)
