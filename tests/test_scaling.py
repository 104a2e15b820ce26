"""Standardising numbers whose squares are no doubles: scaled safely, or refused by name; never a silent zero column."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex.tables import Frame
from fedconvex.tables.planning import Wishes, planned


def scaling(X, y=None, labels=("a", "b")):
    """The record of features X, and its standardised features and target."""
    frame = Frame.of(X)
    frame = Frame({**frame.cells, "y": np.array([1.0, -1.0, 1.0, -1.0]) if y is None else y}, rows=frame.rows,
                  row_names=frame.row_names, unnamed=True)  # fmt: skip
    wishes = Wishes(target="y", guard=False, task="classes" if labels else "numbers")
    found = planned(frame, wishes).fit(frame, standardise_target=labels is None)
    return (
        found,
        found.standardised(found.matrix(frame)),
        (found.target(frame) - found.target_center) / found.target_scale,
    )


BASE = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0], [-2.0, 4.0]])


@pytest.mark.parametrize("unit", [1e-280, 1e-200, 1e-120, 1e-90, 1.0, 1e90, 1e120, 1e200, 1e280])
@pytest.mark.parametrize("sparse", [False, True])
def test_units_do_not_matter(unit, sparse):
    """A column in another unit becomes the same standardised column."""
    kind = sp.csr_array if sparse else np.asarray
    a, b = scaling(kind(BASE))[1], scaling(kind(BASE * [unit, 1.0]))[1]
    a, b = (v.toarray() if sparse else v for v in (a, b))
    np.testing.assert_allclose(b, a, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_targets_in_any_unit(unit):
    y = np.array([1.0, 2.0, 4.0, -3.0])
    np.testing.assert_allclose(scaling(BASE, unit * y, None)[2], scaling(BASE, y, None)[2], rtol=1e-13)


def test_ordinary_columns_keep_their_bits():
    """Beside a column of another unit too."""
    found = scaling(BASE * [1e200, 1.0])[0]
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
