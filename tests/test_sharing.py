"""Data sharing: which rows go where, and exactly what that does to label and gradient heterogeneity."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fedconvex import FedAvg, Federation, GradientDescent, Logistic, Problem, Softmax, Squared, run
from fedconvex.datasets import partition_dirichlet, share
from fedconvex.theorems.weight_divergence import class_shares, divergence, gradient_gaps, label_distance


def skewed(seed=0, K=5, n=200, C=3, d=4, alpha=0.3, sparse=False, equal=False):
    """Federations with label skew; row number n (unique) is the first feature."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, C, size=n).astype(float)
    X = np.column_stack([np.arange(n), rng.normal(size=(n, d - 1)) + y[:, None]])
    order = np.argsort(y, kind="stable")
    clients = np.empty(n, dtype=int)
    clients[order] = np.repeat(np.arange(K), n // K)
    clients = clients if equal else partition_dirichlet(y, K, alpha, seed=seed, min_rows=4)
    domains = np.array(["north", "south"])[rng.integers(0, 2, size=n)]
    return Federation.from_arrays(sp.csr_array(X) if sparse else X, y, [f"client {k}" for k in clients], domains)


def row_numbers(fed):
    X = fed.X.toarray() if fed.is_sparse else fed.X
    return [X[a:b, 0].astype(int) for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_who_gets_what(alpha, sparse):
    fed = skewed(sparse=sparse)
    found = share(fed, fraction=0.15, alpha=alpha, seed=3)
    public = row_numbers(found.shared)[0]
    size = round(0.15 / 1.15 * fed.n)
    assert public.size == size
    assert abs(size - 0.15 * (fed.n - size)) < 1
    assert np.ptp(np.bincount(found.shared.y.astype(int))) <= 1  # uniform over classes
    whole = dict(zip(np.concatenate(row_numbers(fed)), zip(fed.y, fed.domain, strict=True), strict=True))
    before, after = row_numbers(fed), row_numbers(found.federation)
    portions = []
    for k in range(fed.K):
        own = [i for i in before[k] if i not in public]
        np.testing.assert_array_equal(after[k][: len(own)], own)
        portion = after[k][len(own) :]
        assert portion.size == round(alpha * size)
        assert set(portion) <= set(public)
        assert np.unique(portion).size == portion.size
        rows = slice(found.federation.ptr[k] + len(own), found.federation.ptr[k + 1])
        assert alpha == 0.0 or np.ptp(np.bincount(found.federation.y[rows].astype(int), minlength=3)) <= 1
        assert found.own[k] == len(own) / (len(own) + portion.size)
        portions.append(tuple(portion))
    assert len(set(portions)) == (5 if alpha == 0.4 else 1)  # everybody draws for itself
    for number, y, q in zip(np.concatenate(after), found.federation.y, found.federation.domain, strict=True):
        assert whole[number] == (y, q)
    np.testing.assert_array_equal(found.federation.labels, fed.labels)
    np.testing.assert_array_equal(found.federation.ids, fed.ids)
    np.testing.assert_array_equal(found.federation.domain_labels, fed.domain_labels)
    again = share(fed, fraction=0.15, alpha=alpha, seed=3)
    assert again.federation.digest == found.federation.digest
    assert share(fed, fraction=0.15, alpha=alpha, seed=4).shared.digest != found.shared.digest


def test_rows_of_a_holdout():
    fed, other = skewed(seed=0), skewed(seed=1)
    found = share(fed, fraction=0.1, holdout=other, alpha=0.5, seed=1)
    assert found.shared.n == 20
    public = set(row_numbers(found.shared)[0])
    for before, after in zip(row_numbers(fed), row_numbers(found.federation), strict=True):
        np.testing.assert_array_equal(after[: before.size], before)
        assert after.size == before.size + 10
        assert set(after[before.size :]) <= public


def test_no_fraction_changes_no_bit():
    fed = skewed()
    found = share(fed, fraction=0.0)
    assert found.shared is None
    np.testing.assert_array_equal(found.own, 1.0)
    assert found.federation.digest == fed.digest
    method = FedAvg(step_size=1e-5, local_steps=3, batch_size=2, participation=3)
    a, b = (run(method, Problem(f, Softmax(3), 0.1), rounds=4, seed=2, tol=0) for f in (fed, found.federation))
    np.testing.assert_array_equal(a.w, b.w)
    np.testing.assert_array_equal(a.trace.value, b.trace.value)


def test_portions_do_not_depend_on_who_else_is_there():
    fed, other = skewed(seed=0), skewed(seed=1)
    few = fed.subset([3, 1])
    size = 24
    a = share(fed, fraction=size / fed.n, alpha=0.5, holdout=other)
    b = share(few, fraction=size / few.n, alpha=0.5, holdout=other)
    np.testing.assert_array_equal(row_numbers(a.federation)[3], row_numbers(b.federation)[0])
    np.testing.assert_array_equal(row_numbers(a.federation)[1], row_numbers(b.federation)[1])


# ---------------------------------------------------------------- heterogeneity


def plain_shares(fed, weights):
    """p_k(y) and their mean, from counts."""
    P = np.array([[np.mean(fed.y[a:b] == c) for c in range(3)] for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)])
    return P, weights @ P


@given(
    seed=st.integers(0, 50),
    beta=st.sampled_from([0.06, 0.12, 0.24]),
    alpha=st.sampled_from([0.25, 0.5, 1.0]),
    equal=st.booleans(),
)
def test_label_distance_after_sharing(seed, beta, alpha, equal):
    """p_k' - p' = s_k (p_k - p) + (s_k - s)(p - q) in general; EMD_k' = s_k EMD_k for clients of equal size."""
    fed, other = skewed(seed=seed, equal=equal), skewed(seed=seed + 100, n=600)
    found = share(fed, fraction=beta, alpha=alpha, holdout=other)  # |G| in {12, 24, 48}: equal classes in all portions
    g = alpha * beta * fed.n
    before, after = Problem(fed, Softmax(3)), Problem(found.federation, Softmax(3))
    (P, p), (P2, p2) = plain_shares(fed, before.weights), plain_shares(found.federation, after.weights)
    s_k, s = fed.sizes / (fed.sizes + g), fed.n / (fed.n + fed.K * g)
    np.testing.assert_allclose(found.own, s_k, rtol=1e-14)
    q = np.full(3, 1 / 3)
    np.testing.assert_allclose(P2 - p2, s_k[:, None] * (P - p) + (s_k - s)[:, None] * (p - q), rtol=0, atol=1e-14)
    np.testing.assert_allclose(label_distance(after), np.abs(P2 - p2).sum(axis=1), rtol=0, atol=1e-14)
    limit = s_k * label_distance(before) + np.abs(s_k - s) * np.abs(p - q).sum()
    assert np.all(label_distance(after) <= limit + 1e-14)
    if equal:
        np.testing.assert_allclose(label_distance(after), s_k * label_distance(before), rtol=0, atol=1e-14)
        np.testing.assert_allclose(s_k, 1 / (1 + fed.K * alpha * beta), rtol=1e-14)


def test_label_distance_where_the_shared_classes_are_the_populations():
    """Unequal sizes, q = p: n_k in (2, 4, 6) with 6 rows of each of two classes, G with 2 of each."""
    y = np.array([0, 0, 1, 1, 1, 0, 1, 1, 1, 0, 0, 0], dtype=float)
    fed = Federation.from_arrays(np.zeros((12, 1)), y, [0] * 2 + [1] * 4 + [2] * 6)
    other = Federation.from_clients([(np.zeros((8, 1)), [0.0, 1.0] * 4)])
    found = share(fed, fraction=4 / 12, holdout=other)
    a, b = (label_distance(Problem(f, Softmax(2))) for f in (fed, found.federation))
    np.testing.assert_allclose(a, [1.0, 0.5, 0.0], atol=1e-15)
    np.testing.assert_allclose(b, a * [2 / 6, 4 / 8, 6 / 10], atol=1e-15)
    np.testing.assert_allclose(class_shares(Problem(found.federation, Softmax(2))).sum(axis=1), 1.0)


def test_gradient_differences_shrink_by_the_same_factor(rng):
    """alpha = 1: (grad F_k' - grad F')(w) = s (grad F_k - grad F)(w) for equal clients, at every model."""
    fed, other = skewed(equal=True), skewed(seed=9, n=600)
    found = share(fed, fraction=0.15, holdout=other)
    s = 1 / (1 + 5 * 0.15)
    for loss, l2 in ((Softmax(3), 0.1), (Squared(), 0.0)):
        before, after = Problem(fed, loss, l2), Problem(found.federation, loss, l2)
        w = rng.normal(size=before.model_shape)
        gaps = []
        for problem in (before, after):
            g = problem.client_gradients(w)
            gaps.append(g - g.mean(axis=0))
        np.testing.assert_allclose(gaps[1], s * gaps[0], rtol=1e-9, atol=1e-9)
        ratio = gradient_gaps(after, w, step_size=1e-6, local_steps=2) / gradient_gaps(
            before, w, step_size=1e-6, local_steps=2
        )
        np.testing.assert_allclose(ratio, s, rtol=1e-9)


@pytest.mark.slow
def test_weight_divergence_falls():
    """Two equal clients with one class each, all of G for both: the divergence falls faster than its bound's factor s.

    To first order in the step size it is proportional to sum_k p_k (H_k - H)(grad F_k - grad F), both factors of which
    carry an s: DC falls like s^2.
    """
    rng = np.random.default_rng(4)
    y = np.repeat([-1.0, 1.0], 300)
    X = rng.normal(size=(600, 3)) + 1.5 * y[:, None] * [1.0, 0.5, 0.0]
    hold = rng.permutation(600)[:300]
    keep = np.setdiff1d(np.arange(600), hold)
    fed = Federation.from_arrays(X[keep], y[keep], (y[keep] > 0).astype(int))
    other = Federation.from_clients([(X[hold], y[hold])])
    found, s = [], 1 / (1 + 2 * np.array([0.0, 0.05, 0.25, 0.5]))
    for beta in (0.0, 0.05, 0.25, 0.5):
        problem = Problem(share(fed, fraction=beta, holdout=other).federation, Logistic(), 0.01, "uniform")
        federated = run(FedAvg(step_size=0.04, local_steps=5), problem, rounds=20, tol=0).w
        central = run(GradientDescent(step_size=0.04), problem, rounds=100, tol=0).w
        found.append(divergence(federated, central))
    assert np.all(np.array(found[1:]) < s[1:] * found[0])
    np.testing.assert_allclose(np.array(found) / found[0], s**2, rtol=0.1)


# ---------------------------------------------------------------- bad input


def test_settings_out_of_range():
    fed = skewed()
    for how, text in (
        ({"fraction": -0.1}, "fraction must be nonnegative"),
        ({"fraction": 0.1, "alpha": 1.5}, "alpha must be a number in"),
        ({"fraction": 0.1, "balanced": 1}, "balanced must be True or False"),
        ({"fraction": 1e-6}, "at least one row of 200"),
        ({"fraction": 50.0}, "at most the .* rows of class"),
        ({"fraction": 50.0, "balanced": False}, "at most the 195 rows"),
        ({"fraction": 0.1, "holdout": (fed.X, fed.y)}, "holdout must be a Federation"),
        ({"fraction": 0.1, "holdout": Federation.from_clients([(np.ones((2, 3)), [0, 1])])}, "have 4 features"),
        ({"fraction": 0.1, "holdout": Federation(fed.X, fed.y, fed.ptr)}, "the federation's domains"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            share(fed, **how)
    plain = Federation(fed.X, fed.y, fed.ptr)
    with pytest.raises(ValueError, match="no row of class 2"):
        share(plain, fraction=0.1, holdout=Federation.from_clients([(np.ones((2, 4)), [0, 1])]))
    real = Federation(fed.X, fed.y + 0.5, fed.ptr)
    with pytest.raises(ValueError, match=r"labels must be classes .* got 0\.5: pass balanced=False"):
        share(real, fraction=0.1)
    found = share(real, fraction=0.1, balanced=False)
    assert found.shared.n == 18
    assert found.federation.sizes.min() > 18
    with pytest.raises(TypeError, match="be a Federation"):
        share(fed.X, fraction=0.1)
