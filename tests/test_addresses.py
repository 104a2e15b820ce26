"""Last bits do not depend on where arrays lie in memory.

LLVM asks at run time whether arrays overlap where a loop stores into one and adds up from another, and takes arrays
that lie close to each other for overlapping; the loop that it then takes adds in another order. So kernels that add
are given the same numbers at many distances from each other, and whole runs among arrays that come and go.
"""

from itertools import pairwise

import numpy as np
import pytest
from campaigns.determinism import outcome, problem_of
from test_contract import EVERY, kinds

from fedconvex import Exponential, Logistic, Softmax
from fedconvex.families.multitask import dual_nodes
from fedconvex.kernels import row_losses
from fedconvex.kernels.cache import reduction
from fedconvex.kernels.penalised import group_epochs
from fedconvex.kernels.rows import row_axpy
from fedconvex.solvers.kinked import dual

pytestmark = [pytest.mark.slow, pytest.mark.compiled]
rng = np.random.default_rng(4)
SIZES = (9, 13, 17, 23, 31, 40)  # arrays of these sizes that follow each other begin within 128 or 256 bytes


@reduction
def _step(X, w, b):
    for i in range(X.shape[0]):
        for t in range(w.size):
            w[t] = 0.9 * w[t] - 0.1 * b[t]
        row_axpy(X, i, 0.3, w)


@reduction
def _answer(X, alpha, v, out):
    dual_nodes.answer(Logistic(), X, 0, X.shape[0], 0.7, alpha, v, True, out)


@reduction
def _gap(loss, X, y, norms, alpha, u, out):
    out[0], out[1] = dual.task_gap(loss, X, y, norms, 0, X.shape[0], alpha, u, np.zeros(2))


def calls(d):
    """Kernels that add and store, with arrays of d numbers."""
    X, y = rng.normal(size=(9, d)), np.where(rng.random(9) < 0.5, 1.0, -1.0)
    H, ptr = np.cov(rng.normal(size=(d, d + 30))), np.array([0, d // 3, d])
    steep = np.array([np.linalg.eigvalsh(H[a:b, a:b])[-1] * 1.01 for a, b in pairwise(ptr)])
    norms, kinds = np.sum(X**2, axis=1), rng.integers(0, d, 9).astype(float)
    Z, lone, a = rng.normal(size=(9, d)), rng.normal(size=(9, 1)), 0.3 * y
    return {
        "single rows": (_step, (X, X[0], X[1])),
        "answer": (_answer, (X, a, X[0], X[1])),
        "task_gap": (lambda *arrays: _gap(Logistic(), *arrays), (X, y, norms, a, X[0], np.zeros(2))),
        "softmax slopes": (lambda Z: row_losses.row_slopes(Softmax(d), Z, kinds), (Z,)),
        "row values": (lambda Z, out: row_losses.row_values(Exponential(), Z, y, out), (lone, np.zeros((9, 1)))),
        "groups": (lambda H, x, r: group_epochs(H, ptr, np.full(2, 0.05), steep, x, r, 5, 0.0), (H, X[0], X[1])),
    }


def placed(arrays):
    """Copies of the arrays in one block of memory, in some order and at some distances."""
    order, gaps = rng.permutation(len(arrays)), rng.integers(0, 24, len(arrays))
    block, at, found = np.zeros(sum(a.size for a in arrays) + int(gaps.sum())), 0, [None] * len(arrays)
    for i, gap in zip(order, gaps, strict=True):
        at += int(gap)
        found[i] = block[at : at + arrays[i].size].reshape(arrays[i].shape)
        found[i][...] = arrays[i]
        at += arrays[i].size
    return found


def results(call, arrays, times=60):
    """All different results of a kernel, as bytes."""
    found = set()
    for _ in range(times):
        here = placed(arrays)
        call(*here)
        found.add(b"".join(a.tobytes() for a in here))
    return len(found)


@pytest.mark.parametrize("name", calls(9))
def test_kernels_give_the_same_bits_wherever_arrays_lie(name):
    for d in SIZES:
        call, arrays = calls(d)[name]
        assert results(call, arrays) == 1, d


def test_what_depends_on_addresses_is_noticed():
    """Planted: a sum whose order depends on where its numbers begin; from the left it is 0, from the right 1."""

    def planted(x, out):
        far = abs(x.ctypes.data - out.ctypes.data) >= 128
        out[0] = sum(x if far else x[::-1])

    assert results(planted, (np.array([1.0, 1e16, -1e16]), np.zeros(9))) == 2


@pytest.mark.parametrize("name", ["FedAvg epochs", "FedSAM", "MOCHA", "SVRG"])
def test_runs_give_the_same_bits_among_arrays_that_come_and_go(name):
    found, kept = set(), []
    for _ in range(3):
        kept = [np.empty(int(n)) for n in rng.integers(1, 400, 60)] + kept[::2]
        problem = problem_of(kinds(name)[0], 7, 17)
        found.add(b"".join(v.tobytes() for k, v in sorted(outcome(EVERY[name], problem).items()) if k[:5] == "state"))
    assert len(found) == 1
