"""Solving needs little memory beside the rows, which may be larger than what the process may use."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Federation, Hinge, Logistic, Problem
from fedconvex.solvers.kinked.row_ascent import squares
from fedconvex.solvers.rows.hessians import weighted_gram


@pytest.mark.compiled(only="minutes of pure Python")
@pytest.mark.parametrize("d", [100, 5_000])
def test_sparse_rows_are_solved_in_a_third_of_their_memory(d):
    """Newton's method, and quasi-Newton steps: indices are counted in pieces, and nothing of the rows is copied."""
    rng = np.random.default_rng(0)
    X = sp.random_array((20_000, d), density=min(0.5, 100 / d), rng=rng, format="csr", data_sampler=rng.standard_normal)
    fed = Federation(X, rng.choice([-1.0, 1.0], 20_000), [0, 10_000, 20_000])
    Problem(fed, Logistic(), 1e-2).solve(tol=1e-6)
    tracemalloc.start()
    found = Problem(Federation(fed.X, fed.y, fed.ptr), Logistic(), 1e-2).solve(tol=1e-6)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.gap <= 1e-6 * (1.0 + found.value)
    assert peak < (fed.X.data.nbytes + fed.X.indices.nbytes) / 3


@pytest.mark.compiled(only="minutes of pure Python")
@pytest.mark.parametrize(("loss", "share"), [(Hinge(), 0.3), (Logistic(), 0.24)], ids=repr)
def test_sparse_rows_of_few_entries_are_solved_in_few_numbers_a_row(loss, share):
    """12 entries a row, as in w8a: a number a row is a twentieth of them.

    Coordinate ascent took twelve numbers a row, among them scores, values and costs of all rows at once, and Newton's
    method one that said of every row that it weighs something.
    """
    rng = np.random.default_rng(0)
    X = sp.random_array((40_000, 300), density=0.04, rng=rng, format="csr", data_sampler=rng.standard_normal)
    fed = Federation(X, np.sign(X @ rng.standard_normal(300) + rng.standard_normal(40_000)), [0, 40_000])
    Problem(fed, loss, 1e-2).solve(tol=1e-4)
    data = sum(a.nbytes for a in (fed.X.data, fed.X.indices, fed.X.indptr, fed.y))
    tracemalloc.start()
    found = Problem(Federation(fed.X, fed.y, fed.ptr), loss, 1e-2).solve(tol=1e-4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.gap <= 1e-4 * (1.0 + found.value)
    assert peak < share * data


SCRIPT = """
import resource, sys
import numpy as np
from fedconvex import Federation, Logistic, Problem, Squared

X = np.load(sys.argv[1], mmap_mode="r")
y = np.where(np.arange(len(X)) % 3 == 0, -1.0, 1.0)
losses, few = (Logistic(), Squared()), Federation(np.array(X[:4000]), y[:4000], [0, 4000])
for loss in losses:
    Problem(few, loss, 1e-3).solve(tol=1e-6)  # what is compiled and loaded does not count
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
limit = 1024 * int(status["VmData"].split()[0]) + X.nbytes // 3
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.abs(X)
except MemoryError:
    print("no copy fits")
fed = Federation(X, y, [0, len(X) // 2, len(X)])
for loss in losses:
    best = Problem(fed, loss, 1e-3).solve(tol=1e-6)
    print(best.gap <= 1e-6 * (1.0 + best.value))
"""


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.skipif(sys.platform != "linux", reason="limits of private memory are those of Linux")
def test_memory_mapped_rows_larger_than_the_allowed_memory_are_solved(tmp_path):
    rows = np.lib.format.open_memmap(tmp_path / "X.npy", "w+", shape=(100_000, 100))
    rng = np.random.default_rng(0)
    for lo in range(0, len(rows), 10_000):
        rows[lo : lo + 10_000] = rng.normal(size=(10_000, 100))
    rows.flush()
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "X.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == ["no copy fits", "True", "True"]


def test_sizes_of_columns_and_grams_make_no_copy_of_the_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 20))
    fed, h = Federation(X, np.sign(X[:, 0]), [0, 40_000]), rng.random(40_000)
    some = np.where(h < 0.4, h, 0.0)
    tracemalloc.start()
    np.testing.assert_array_equal(fed.column_sizes, [max(X[:, j].max(), -X[:, j].min()) for j in range(20)])
    grams = [weighted_gram(fed.X, v) for v in (h, some, np.ones(40_000))]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    for v, H in zip((h, some, np.ones(40_000)), grams, strict=True):
        np.testing.assert_allclose(H, (X * v[:, None]).T @ X, rtol=1e-11, atol=1e-9)
    assert peak < 0.3 * X.nbytes  # a copy of the rows that count, or of |X|, was a half or all of it


def test_scores_and_lengths_of_sparse_rows_make_no_copy_of_their_entries():
    rng = np.random.default_rng(0)
    X = sp.csr_array((rng.random(400_000), np.tile(np.arange(10), 40_000), np.arange(0, 400_001, 10)), (40_000, 12))
    fed, w = Federation(X, np.ones(40_000), [0, 40_000]), rng.normal(size=(1, 12))
    problem, entries = Problem(fed, Logistic()), fed.X.data.nbytes
    tracemalloc.start()
    scores, lengths = problem._scores(w, 0, 40_000), squares(fed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(scores, X @ w.T)
    np.testing.assert_allclose(lengths, X.power(2).sum(axis=1), rtol=1e-14)
    assert peak < 0.75 * entries  # squares of all entries were 1, a copy of entries and columns 1.5
