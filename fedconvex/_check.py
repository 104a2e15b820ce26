"""Error messages with one shape, "who must X; got Y: cure", and the few checks that many modules share."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

_MOST = 2**63 - 1
ROUNDS = 1000  # most rounds of `run`, `sweep`, `bench` and the linear estimators, where none are given


def bad(who: str, must: str, got: object, cure: str = "") -> ValueError:
    """Return the ValueError "who must ...; got ...: cure"."""
    return ValueError(_message(who, must, got, cure))


def wrong_type(who: str, must: str, got: object, cure: str = "") -> TypeError:
    """Return the TypeError "who must ...; got ...: cure"."""
    return TypeError(_message(who, must, got, cure))


def _message(who: str, must: str, got: object, cure: str) -> str:
    got = got.item() if isinstance(got, np.generic) else got  # -1.0, not np.float64(-1.0)
    shown = got if isinstance(got, str) else repr(got)
    shown = shown if len(shown) <= 200 else shown[:197] + "..."
    return f"{who} must {must}; got {shown}" + (f": {cure}" if cure else "")


def nearest(given: str, names: Iterable[str]) -> str:
    """Return the question whether a name was meant that is much like what was given; "" without such a name.

    >>> nearest("fedvg", ["fedavg", "scaffold"]), nearest("x", ["fedavg"])
    ('did you mean fedavg?', '')
    """
    plain = {re.sub(r"[-_]", "", name).lower(): name for name in names}
    found = difflib.get_close_matches(re.sub(r"[-_]", "", given).lower(), plain, 1, 0.7)
    return f"did you mean {plain[found[0]]}?" if found else ""


def unknown(who: str, got: object, names: Iterable[str], more: str = "") -> ValueError:
    """Return the ValueError of a name that is none of the names, with the one that may have been meant."""
    names = list(names)
    cure = nearest(got, names) if isinstance(got, str) else ""
    listed = ", ".join(names) if len(names) <= 60 or not cure else f"{len(names)} names"
    return bad(who, f"be one of {listed}{more}", got if got is None else repr(got), cure)


def printable(text: str) -> str:
    r"""Return the text with what is not printable escaped: controls, marks of direction, unusual spaces.

    >>> printable("a\x1b[31m\u202eb")
    'a\\x1b[31m\\u202eb'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def real(who: str, x: Any, *, low: float = -math.inf, high: float = math.inf, strict: bool = False) -> float:
    """Return x as a finite float in [low, high] (above low if strict)."""
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, (int, float, np.integer, np.floating)):
        raise wrong_type(who, "be a number", f"{type(x).__name__} {x!r}")
    try:
        v = float(x)
    except OverflowError:
        v = math.inf
    if not math.isfinite(v) or v < low or v > high or (strict and v == low):
        if low == 0 and high == math.inf:
            raise bad(who, "be positive and finite" if strict else "be nonnegative and finite", x)
        brackets = f"{'(' if strict else '['}{low:g}, {high:g}{')' if high == math.inf else ']'}"
        raise bad(who, "be finite" if low == -math.inf else f"be a number in {brackets}", x)
    return v


def whole(who: str, x: Any, *, low: int = 0, high: int | None = None) -> int:
    """Return x as an int in [low, high], at most 2^63 - 1; floats such as 3.0 are refused."""
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, (int, np.integer)):
        raise wrong_type(who, "be a whole number", f"{type(x).__name__} {x!r}")
    v, high = int(x), _MOST if high is None and x > _MOST else high
    if v < low or (high is not None and v > high):
        raise bad(who, f"be at least {low}" if high is None or v < low else f"be at most {high}", x)
    return v


def vector(who: str, x: Any, size: int | None = None) -> np.ndarray:
    """Return x as a fresh finite float64 vector of the given size."""
    a = numeric(who, x)
    if a.ndim != 1:
        raise bad(who, "be one-dimensional", f"shape {a.shape}")
    if size is not None and a.size != size:
        raise bad(who, f"have {size} entries", f"{a.size}")
    finite(who, a)
    return a


_FEW = 256  # entries that are asked one by one in less time than it takes to silence a sum's overflow


def numeric(who: str, x: Any, copy: bool = True) -> np.ndarray:
    """Return x as a float64 C-order array; objects, strings, complex numbers and ragged lists are refused."""
    if type(x) is np.ndarray and x.dtype == np.float64 and x.flags.c_contiguous:  # what most calls give
        return x.copy() if copy else x
    given = raw(who, x)
    if given.dtype.kind not in "fiub":
        cure = "encode categories as numbers first" if given.dtype.kind in "OUS" else ""
        raise wrong_type(who, "hold real numbers", f"dtype {given.dtype}", cure)
    a = np.ascontiguousarray(given, dtype=np.float64).reshape(given.shape)
    return a.copy() if copy and np.shares_memory(a, given) else a


def finite(who: str, a: np.ndarray) -> None:
    """Raise if a holds NaN or infinity, and say where."""
    if a.size <= _FEW and np.isfinite(a).all():
        return
    with np.errstate(over="ignore", invalid="ignore"):
        total = a.sum()
    if a.size and not np.isfinite(total):  # a finite sum proves finite entries; otherwise look closer
        wrong = ~np.isfinite(a)
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            place = where[0] if len(where) == 1 else where
            raise bad(
                who, "be finite", f"{a[where]} at {place}", f"{int(wrong.sum())} such entries; drop or impute them"
            )


def flag(who: str, x: Any) -> bool:
    """Return x as a bool; words and numbers are refused."""
    if not isinstance(x, (bool, np.bool_)):
        raise wrong_type(who, "be True or False", f"{x!r}")
    return bool(x)


def maybe_flag(who: str, x: Any) -> bool | None:
    """Return x as a bool, or None, which leaves it to the callee."""
    return None if x is None else flag(who, x)


def instance(who: str, x: object, *kinds: type) -> None:
    """Raise unless x is an instance of one of the kinds."""
    if not isinstance(x, kinds):
        raise wrong_type(who, "be a " + " or ".join(k.__name__ for k in kinds), f"{type(x).__name__} {x!r}")


def array(who: str, x: Any, shape: tuple[int | None, ...], copy: bool = True) -> np.ndarray:
    """Return x as a finite float64 array of that shape; None stands for any length."""
    a = numeric(who, x, copy=copy)
    if a.ndim != len(shape) or any(m not in (None, n) for n, m in zip(a.shape, shape, strict=True)):
        shown = ", ".join("any" if m is None else str(m) for m in shape)
        raise bad(who, f"have shape ({shown}{',' if len(shape) == 1 else ''})", f"{a.shape}")
    finite(who, a)
    return a


def raw(who: str, x: Any) -> np.ndarray:
    """Return x as an array of whatever entries; ragged lists and masked entries are refused."""
    try:
        a = np.asarray(x)
    except ValueError as error:
        raise bad(who, "be a rectangular array", f"a ragged sequence ({error})") from None
    unmasked(who, x)
    return a


def unmasked(who: str, x: Any) -> None:
    """Raise if entries of x are masked: NumPy would forget it."""
    if np.ma.is_masked(x):
        raise bad(who, "have no masked entries", f"{int(np.ma.getmaskarray(x).sum())} masked", "fill or drop them")


def codes(who: str, x: Any, size: int | None = None, most: int | None = None) -> np.ndarray:
    """Return x as a vector of whole numbers in [0, most): by default there are fewer than it has entries."""
    a = raw(who, x)
    if a.ndim != 1 or a.dtype.kind not in "iu" or size not in (None, a.size):
        many = "" if size is None else f"{size} "
        raise bad(who, f"be a vector of {many}whole numbers", f"{a.dtype} of shape {a.shape}")
    most = max(a.size, 1) if most is None else most
    if a.size and not (a.min() >= 0 and a.max() < most):
        raise bad(who, f"lie in 0, ..., {most - 1}", f"{a.min()}, ..., {a.max()}")
    return a.astype(np.int64)


def text(who: str, x: Any) -> str:
    """Return x, a string."""
    if not isinstance(x, str):
        raise wrong_type(who, "be a string", f"{type(x).__name__} {x!r}")
    return x


def function(who: str, x: Any) -> None:
    """Raise unless x can be called; a class is none."""
    if isinstance(x, type) or not callable(x):
        raise wrong_type(who, "be a function", f"{type(x).__name__} {x!r}")


def items(who: str, x: Any) -> tuple[Any, ...]:
    """Return what an iterable holds; a text is none."""
    if isinstance(x, (str, bytes)) or not hasattr(x, "__iter__") or (hasattr(x, "dtype") and np.ndim(x) == 0):
        raise wrong_type(who, "be a list", f"{type(x).__name__} {x!r}")
    return tuple(x)


def matrix(who: str, x: Any, known: bool = False) -> np.ndarray:
    """Return x as a float64 array with two axes, not empty, with finite entries if they are known; not a copy."""
    a = numeric(who, x, copy=False)
    if a.ndim != 2 or a.size == 0:
        raise bad(who, "have two axes and entries", f"shape {a.shape}")
    if known:
        finite(who, a)
    return a


def among(who: str, x: object, names: Sequence[str]) -> None:
    """Raise unless x is one of the names."""
    if not isinstance(x, str) or x not in names:
        cure = nearest(x, names) if isinstance(x, str) else ""
        raise bad(who, "be one of " + ", ".join(repr(n) for n in names), x, cure)


_T = TypeVar("_T", bound=type)


def equal_by_type(cls: _T) -> _T:
    """Make instances equal only to instances of the same class (bare tuples would make Logistic() == Squared())."""

    def equal(self: tuple, other: object) -> bool:
        return type(self) is type(other) and tuple.__eq__(self, other)  # type: ignore[arg-type]

    def unequal(self: tuple, other: object) -> bool:
        return not equal(self, other)

    for name, method in (("__eq__", equal), ("__ne__", unequal), ("__hash__", tuple.__hash__)):
        setattr(cls, name, method)
    return cls


# ---------------------------------------------------------------- seeds

Rng = int | np.integer | np.random.Generator | np.random.SeedSequence | np.random.BitGenerator | None
_F = TypeVar("_F", bound=Callable[..., Any])
_PARAMETERS = re.compile(r"\n( *)Parameters\n *-+\n.*?(?=\n\n *[A-Z][a-z]+(?: [A-Z]\w+)?\n *-+|\s*\Z)", re.S)
_RNG = """
{0}rng : int, numpy.random.Generator, SeedSequence or BitGenerator, optional
{0}    In the place of ``seed`` (SPEC 7): a whole number is the seed itself; from a generator one number is drawn."""


def seed_of(who: str, rng: Any) -> int:
    """Return the seed that stands for what SPEC 7 allows as ``rng``; a generator advances by one number."""
    if isinstance(rng, np.random.SeedSequence):
        return int(rng.generate_state(1, np.uint64)[0] >> np.uint64(1))
    if isinstance(rng, np.random.BitGenerator):
        rng = np.random.Generator(rng)
    if isinstance(rng, np.random.Generator):
        return int(rng.integers(0, _MOST, dtype=np.int64))
    if isinstance(rng, bool) or not isinstance(rng, (int, np.integer)):
        cure = "np.random.default_rng(...) makes a Generator"
        raise wrong_type(who, "be a whole number, a Generator, SeedSequence or BitGenerator", type(rng).__name__, cure)
    return whole(who, rng)


def takes_rng(f: _F) -> _F:
    """Let a function with the arguments ``seed`` and ``rng`` be given either: ``rng`` becomes the seed.

    The function itself is never given ``rng``, whose line is added to its docstring.
    """
    at = list(inspect.signature(f).parameters).index("seed")

    @functools.wraps(f)
    def call(*args: Any, rng: Any = None, **given: Any) -> Any:
        if rng is not None:
            if "seed" in given or len(args) > at:
                raise bad(f"{f.__name__}: rng", "be given in the place of seed", "both", "leave one of them out")
            given["seed"] = seed_of(f"{f.__name__}: rng", rng)
        return f(*args, **given)

    section = _PARAMETERS.search(f.__doc__ or "")
    if section is not None:
        text, end = str(f.__doc__), section.end()
        call.__doc__ = text[:end] + _RNG.format(section[1]) + text[end:]
    return call  # type: ignore[return-value]
