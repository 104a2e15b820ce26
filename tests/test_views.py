"""A stretch of an array is the slice of it, a line its row, in Python and in kernels; both lend the array's memory."""

import numpy as np
import pytest

from fedconvex.kernels.cache import kernel
from fedconvex.kernels.views import line, stretch


@kernel
def _written(whole, first, size, x):
    """Add x to a stretch, and return its size, its sum before, and that of a stretch of it."""
    part = stretch(whole, first, size)
    before, inner = 0, 0
    for i in range(part.size):
        before += part[i]
        part[i] += x
    for v in stretch(part, 1, part.size - 2):
        inner += v
    return part.size, before, inner


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_a_stretch_is_the_slice(kind):
    whole = np.arange(12).astype(kind)
    expected = whole.copy()
    expected[3:8] += 5
    assert _written(whole, np.uint64(3), 5, kind(5)) == (5, 25, expected[4:7].sum())
    np.testing.assert_array_equal(whole, expected)
    assert _written(whole, 12, 0, kind(5)) == (0, 0, 0)


@kernel
def _kept(n):
    """Return what outlives the array that it was cut out of."""
    return stretch(np.arange(n), 2, 3)


@pytest.mark.slow
@pytest.mark.compiled
def test_a_stretch_keeps_its_memory_alive():
    parts = [_kept(1000 + i) for i in range(200)]
    for part in parts:
        np.testing.assert_array_equal(part, [2, 3, 4])


@kernel
def _lined(whole, i, x):
    """Add x to a line, and return its size and its sum before."""
    its, before = line(whole, i), 0
    for j in range(its.size):
        before += its[j]
        its[j] += x
    return its.size, before


@pytest.mark.slow
@pytest.mark.compiled
def test_a_line_is_the_row():
    whole = np.arange(12.0).reshape(3, 4)
    assert _lined(whole, 2, 5.0) == (4, 38.0) and _lined(whole, np.uint64(0), 1.0) == (4, 6.0)
    np.testing.assert_array_equal(whole, [[1, 2, 3, 4], [4, 5, 6, 7], [13, 14, 15, 16]])
