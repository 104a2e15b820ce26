"""Names and arguments that leave the public API warn once a call, at the caller's line, and still work."""

from __future__ import annotations

import inspect
import warnings

import pytest

from fedconvex._deprecation import deprecated, renamed_argument


def test_functions_and_methods_warn_at_the_callers_line():
    @deprecated("1.0", "1.2", "new(x)")
    def old(x, *, y=1):
        """Add."""
        return x + y

    with pytest.warns(
        DeprecationWarning, match=r"old is deprecated since fedconvex 1\.0 .* in 1\.2: use new\(x\)"
    ) as said:
        assert old(1, y=2) == 3
    assert len(said) == 1 and said[0].filename == __file__
    assert old.__doc__ == "Add." and "y" in inspect.signature(old).parameters and "use new" in old.__deprecated__


def test_classes_warn_and_their_subclasses_do_not():
    @deprecated("1.0", "2.0", "New")
    class Old:
        def __init__(self, x):
            self.x = x

    class Mine(Old):
        pass

    with pytest.warns(DeprecationWarning, match="use New"):
        assert Old(3).x == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Mine(4).x == 4 and isinstance(Mine(4), Old)


def test_old_names_of_arguments_are_taken_and_both_are_refused():
    @renamed_argument("lam", "l2", "1.0", "1.2")
    def f(x, l2=0.0):
        return x, l2

    with pytest.warns(DeprecationWarning, match="f: lam is deprecated") as said:
        assert f(1, lam=2.0) == (1, 2.0)
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert f(1, l2=2.0) == f(1, 2.0) == (1, 2.0)
    with pytest.raises(TypeError, match="must be given l2; got lam too"):
        f(1, lam=1.0, l2=2.0)


@pytest.mark.parametrize(
    ("since", "gone"), [("1.0", "1.1"), ("1.3", "1.3"), ("2.0", "1.9"), ("one", "two"), ("1", "2")]
)
def test_two_minor_versions_lie_between(since, gone):
    for make in (lambda: deprecated(since, gone, "x"), lambda: renamed_argument("a", "b", since, gone)):
        with pytest.raises(ValueError, match="deprecated"):
            make()
