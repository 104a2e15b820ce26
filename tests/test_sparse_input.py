"""No public door hands a sparse matrix to a kernel, or to SciPy, whose indices or pointers lead outside."""

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Federation, Logistic, Problem, Squared
from fedconvex._sparse import read_only_throughout, sound
from fedconvex.datasets import load_npz
from fedconvex.estimators import (
    FederatedLogisticRegression,
    FederatedMultiTaskClassifier,
    VerticalLogisticRegression,
)
from fedconvex.hybrid_federation import HybridFederation
from fedconvex.problems import GaussianPosteriorProblem, MeanRegularised, MultiTaskProblem, QEnsemble, Stump
from fedconvex.tables import Frame
from fedconvex.vertical_federation import VerticalFederation

RNG = np.random.default_rng(0)
DENSE = RNG.normal(size=(12, 3)) * (RNG.random((12, 3)) < 0.7)
DENSE[0] = 1.0
Y = np.where(RNG.random(12) < 0.5, -1.0, 1.0)
CLIENTS = np.arange(12) % 3


def csr():
    return sp.csr_array(DENSE)


def spoilt(kind):
    """Return the matrix with one fault each."""
    X = csr()
    if kind in ("7", "-5", "1e9"):
        X.indices[4] = int(float(kind))
    elif kind == "pointer beyond":
        X.indptr[-1] = X.nnz + 1000
    elif kind == "pointer back":
        X.indptr[3] = X.indptr[6]
    elif kind == "pointer below":
        X.indptr[1] = -4
    elif kind == "far in the middle, none at the end":  # "no entries" by SciPy's count, which then checks no more
        X.indptr[5], X.indptr[-1] = 10**6, 0
    elif kind == "starts late":
        X.indptr[0] = 1
    elif kind == "few pointers":
        X.indptr = X.indptr[:-2]
    elif kind == "few entries":
        X.data = X.data[:-3]
    elif kind == "csc":
        X = X.tocsc()
        X.indices[2] = 10**9
    elif kind == "csc pointers":
        X = X.tocsc()
        X.indptr[1] = 10**6
    elif kind == "bsr":
        X = X.tobsr((2, 3))
        X.indices[1] = 10**6
    elif kind == "coo rows":
        X = X.tocoo()
        X.row[3] = 10**8
    elif kind == "coo columns":
        X = X.tocoo()
        X.col[3] = -1
    elif kind == "complex":
        X = X.astype(complex)
    elif kind == "fractions":
        X.indices = X.indices.astype(float)
    return X


FAULTS = {
    "7": r"column indices in 0, \.\.\., 2; got 7",
    "-5": "got -5",
    "1e9": "got 1000000000",
    "pointer beyond": "end at most at",
    "pointer back": "never decrease",
    "pointer below": "never decrease",
    "far in the middle, none at the end": "never decrease",
    "starts late": "begin with 0",
    "few pointers": "have 13 pointers",
    "few entries": "one index and entry each",
    "csc": "row indices",
    "csc pointers": "end at most at|never decrease",
    "bsr": "block column indices",
    "coo rows": "row indices",
    "coo columns": "column indices",
    "complex": "real numbers",
    "fractions": "whole numbers",
}


@cache
def model():
    return Problem(Federation.from_arrays(csr(), Y, CLIENTS), Logistic(), 0.1).solve().model()


@cache
def posterior():
    return GaussianPosteriorProblem(Federation.from_arrays(DENSE, Y, CLIENTS), Squared()).solve().posterior


@cache
def fitted(kind):
    return kind().fit(csr(), Y, clients=CLIENTS)


PROBLEM = Problem(Federation.from_arrays(DENSE, Y, CLIENTS), Logistic(), 0.1)
TASKS = MultiTaskProblem(Federation.from_arrays(DENSE, Y, CLIENTS), Logistic(), MeanRegularised(0.1, 0.1))
DOORS = {
    "Federation": lambda X: Federation(X, Y, [0, 6, 12]),
    "from_arrays": lambda X: Federation.from_arrays(X, Y, CLIENTS),
    "from_clients": lambda X: Federation.from_clients([(X, Y), (csr(), Y)]),
    "VerticalFederation": lambda X: VerticalFederation.from_blocks([X, csr()], Y),
    "HybridFederation": lambda X: HybridFederation.from_blocks({"a": (X, [*range(12)], [*range(3)], Y)}),
    "Problem.scores": lambda X: PROBLEM.scores(np.ones(3), X),
    "Problem.predict": lambda X: PROBLEM.predict(np.ones(3), X),
    "MultiTaskProblem.scores": lambda X: TASKS.scores(np.ones((3, 3)), X, CLIENTS),
    "LinearModel": lambda X: model().predict(X),
    "GaussianPosterior": lambda X: posterior().predict(X),
    "Frame": lambda X: Frame.of(X),
    "estimator.fit": lambda X: FederatedLogisticRegression().fit(X, Y, clients=CLIENTS),
    "estimator.predict": lambda X: fitted(FederatedLogisticRegression).predict(X),
    "tasks.predict": lambda X: fitted(FederatedMultiTaskClassifier).predict(X, CLIENTS),
    "vertical.fit": lambda X: VerticalLogisticRegression(method="fedbcd").fit([X, csr()], Y),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_are_named(kind):
    with pytest.raises((ValueError, TypeError), match="the rows must .*(" + FAULTS[kind] + ")"):
        sound("the rows", spoilt(kind))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", FAULTS)
def test_no_door_lets_a_fault_in(door, kind):
    """In the words of the check, not those of whatever came across the fault later."""
    with pytest.raises((ValueError, TypeError), match=FAULTS[kind]):
        DOORS[door](spoilt(kind))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"])
def test_sound_matrices_pass(door, form):
    DOORS[door](csr().asformat(form))


def test_an_npz_file_says_what_it_likes(tmp_path):
    X = spoilt("far in the middle, none at the end")
    parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": X.shape, "y": Y}
    np.savez(tmp_path / "rows.npz", **parts)
    with pytest.raises(ValueError, match="never decrease"):
        load_npz(tmp_path / "rows.npz")


def test_what_is_changed_after_the_check_changes_nothing():
    """A matrix whose entries are read-only was not copied, and its indices could be written to."""
    X = csr()
    X.sum_duplicates()
    X.data.flags.writeable = False
    fed = Federation(X, Y, [0, 6, 12])
    before = fed.X.toarray()
    X.indices[:] = 10**6
    X.indptr[1:] = 10**6
    assert np.array_equal(fed.X.toarray(), before) and np.array_equal(before, DENSE)
    assert fed.rows.indices.max() < 3 and not fed.rows.indices.flags.writeable


def test_read_only_views_of_what_can_be_written_are_copied():
    X = csr()
    parts = [X.data.copy(), X.indices.copy(), X.indptr.copy()]
    views = [a.view() for a in parts]
    for v in views:
        v.flags.writeable = False
    assert not any(map(read_only_throughout, views))
    fed = Federation(sp.csr_array(tuple(views), shape=X.shape), Y, [0, 6, 12])
    parts[1][:] = 10**6
    assert np.array_equal(fed.X.toarray(), DENSE)


def test_memory_that_nobody_can_write_to_is_shared():
    parts = [a.copy() for a in (csr().data, csr().indices, csr().indptr)]
    for a in parts:
        a.flags.writeable = False
    X = sp.csr_array(tuple(parts), shape=DENSE.shape)
    assert np.shares_memory(Federation(X, Y, [0, 6, 12]).X.data, X.data)
    fed = Federation(csr(), Y, [0, 6, 12])  # and rows that a federation has made its own
    assert np.shares_memory(Federation(fed.X, Y, [0, 12]).X.indices, fed.X.indices)
    for a in (fed.X.data, fed.X.indices, fed.X.indptr):
        assert read_only_throughout(a)


def test_a_matrix_that_lies_about_its_duplicates():
    """SciPy believes a flag that anybody may set; squared lengths of rows were then sums of squares of parts."""
    X = sp.csr_array((np.array([1.0, 2.0, 1.0]), np.array([0, 0, 0]), np.array([0, 2, 3])), shape=(2, 1))
    X.has_canonical_format = True
    fed = Federation(X, [1.0, -1.0], [0, 1, 2])
    assert fed.row_norms2.tolist() == [9.0, 1.0] and fed.X.nnz == 2


def test_a_stump_of_a_crafted_file_looks_at_a_column_that_there_is(tmp_path):
    """A negative number of a column counts from the last one."""
    ensemble = QEnsemble([Stump(0, 0.0, -1.0, 1.0)], [0], [1.0])
    ensemble.save(tmp_path / "model.npz")
    arrays = dict(np.load(tmp_path / "model.npz"))
    arrays["stumps"][0, 0] = -1.0
    np.savez(tmp_path / "crafted.npz", **arrays)
    with pytest.raises(ValueError, match="feature of a stump must"):
        QEnsemble.load(tmp_path / "crafted.npz")
