"""Standardising numbers whose squares are no doubles: scaled safely, or refused by name; never a silent zero column."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Federation, Logistic, Squared
from fedconvex.cli.data import scaling_of

ARGS = Namespace(no_standardize=False, no_intercept=False)


def scaling(X, y=None, labels=("a", "b"), args=ARGS):
    y = np.array([1.0, -1.0, 1.0, -1.0]) if y is None else y
    fed = Federation.from_arrays(X, y, [0, 0, 1, 1])
    names = tuple(f"x{j + 1}" for j in range(fed.d))
    return scaling_of(
        args, SimpleNamespace(train=fed, labels=labels, names=names, loss=Logistic() if labels else Squared())
    ), fed


BASE = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0], [-2.0, 4.0]])


@pytest.mark.parametrize("unit", [1e-280, 1e-200, 1e-120, 1e-90, 1.0, 1e90, 1e120, 1e200, 1e280])
@pytest.mark.parametrize("sparse", [False, True])
def test_units_do_not_matter(unit, sparse):
    """A column in another unit becomes the same standardised column."""
    kind = sp.csr_array if sparse else np.asarray
    plain, fed = scaling(kind(BASE))
    other, far = scaling(kind(BASE * [unit, 1.0]))
    a, b = (s.apply(f, True).X for s, f in ((plain, fed), (other, far)))
    a, b = (v.toarray() if sparse else v for v in (a, b))
    np.testing.assert_allclose(b, a, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_targets_in_any_unit(unit):
    y = np.array([1.0, 2.0, 4.0, -3.0])
    plain, fed = scaling(BASE, y, None)
    other, far = scaling(BASE, unit * y, None)
    np.testing.assert_allclose(other.apply(far, True).y, plain.apply(fed, True).y, rtol=1e-13)


def test_ordinary_columns_keep_their_bits():
    """Beside a column of another unit too."""
    found, _ = scaling(BASE * [1e200, 1.0])
    mean = BASE[:, 1].mean()
    assert found.center[1] == mean
    assert found.scale[1] == np.sqrt(((BASE[:, 1] - mean) ** 2).mean())


@pytest.mark.parametrize("number", [1e308, -1e308, 1e300, 5e-324, 1e-300])
def test_what_cannot_be_scaled_is_refused_by_name(number):
    X = BASE.copy()
    X[:, 1] = 0.0
    X[2, 1] = number
    with pytest.raises(ValueError, match="column 'x2' must have numbers between"):
        scaling(X)
    with pytest.raises(ValueError, match="column 'the target' must"):
        scaling(BASE, np.array([0.0, 0.0, number, 0.0]), None)


def test_constant_columns_stay():
    X = BASE.copy()
    X[:, 1] = 1e200
    assert scaling(X)[0].scale[1] == 1.0
    X[:, 1] = 0.0
    assert scaling(X)[0].scale[1] == 1.0
