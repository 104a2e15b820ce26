"""How names and arguments of the public API leave it: they warn for two minor versions, and say what to use instead."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from fedconvex._check import bad

_F = TypeVar("_F", bound=Callable[..., Any])


def deprecated(since: str, gone: str, instead: str) -> Callable[[_F], _F]:
    """Return a decorator of a function, a method or a class that warns whenever it is called.

    Parameters
    ----------
    since, gone : str
        Versions: the first that warns, and the one that no longer has it, two minor versions later or more.
    instead : str
        What to use, as a user would type it.

    Raises
    ------
    ValueError
        If gone is not at least two minor versions, or a major one, after since.

    Examples
    --------
    >>> import warnings
    >>> from fedconvex._deprecation import deprecated
    >>> @deprecated("1.2", "1.4", "cubed")
    ... def cube(x):
    ...     return x**3
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     cube(2)
    8
    >>> print(said[0].message)
    cube is deprecated since fedconvex 1.2 and will be gone in 1.4: use cubed
    """
    _check_versions(since, gone)

    def decorate(f: Any) -> Any:
        says = f"{f.__name__} is deprecated since fedconvex {since} and will be gone in {gone}: use {instead}"
        if inspect.isclass(f):
            built = f.__init__

            @functools.wraps(built)
            def init(self: Any, *args: Any, **more: Any) -> None:
                if type(self) is f:  # subclasses are not told what their authors cannot change at the call
                    warnings.warn(says, DeprecationWarning, stacklevel=2)
                built(self, *args, **more)

            for name, value in (("__init__", init), ("__deprecated__", says)):
                setattr(f, name, value)
            return f

        @functools.wraps(f)
        def call(*args: Any, **more: Any) -> Any:
            warnings.warn(says, DeprecationWarning, stacklevel=2)
            return f(*args, **more)

        call.__deprecated__ = says  # type: ignore[attr-defined]  # where type checkers look (PEP 702)
        return call

    return decorate


def renamed_argument(old: str, new: str, since: str, gone: str) -> Callable[[_F], _F]:
    """Return a decorator of a function that still takes a keyword by its old name, and warns.

    Parameters
    ----------
    old, new : str
        Names of the keyword.
    since, gone : str
        As for `deprecated`.

    Raises
    ------
    ValueError
        As `deprecated` does.
    TypeError
        When the function is called with both names.

    Examples
    --------
    >>> import warnings
    >>> from fedconvex._deprecation import renamed_argument
    >>> @renamed_argument("lam", "l2", "1.2", "1.4")
    ... def ridge(l2=0.0):
    ...     return l2
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     ridge(lam=0.5)
    0.5
    >>> print(said[0].message)
    ridge: lam is deprecated since fedconvex 1.2 and will be gone in 1.4: use l2
    """
    _check_versions(since, gone)

    def decorate(f: Any) -> Any:
        says = f"{f.__name__}: {old} is deprecated since fedconvex {since} and will be gone in {gone}: use {new}"

        @functools.wraps(f)
        def call(*args: Any, **more: Any) -> Any:
            if old in more:
                if new in more:
                    raise TypeError(f"{f.__name__} must be given {new}; got {old} too, its old name: leave it out")
                warnings.warn(says, DeprecationWarning, stacklevel=2)
                more[new] = more.pop(old)
            return f(*args, **more)

        return call

    return decorate


def _check_versions(since: str, gone: str) -> None:
    """Raise unless a version is at least two minor versions, or a major one, after another."""
    try:
        (a, b), (c, d) = ([int(n) for n in text.split(".")] for text in (since, gone))
    except ValueError:
        raise bad("deprecated", 'be given versions such as "1.2" and "1.4"', f"{since!r} and {gone!r}") from None
    if not (c > a or (c == a and d >= b + 2)):
        raise bad("deprecated: gone", "be two minor versions after since, or the next major one", f"{since} and {gone}")
