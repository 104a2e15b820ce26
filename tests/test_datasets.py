"""Synthetic federations against truth recomputed from their raw arrays; partitions against their definitions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedconvex.datasets import (
    fedprox_synthetic,
    linear_federation,
    logistic_federation,
    partition_dirichlet,
    partition_iid,
    partition_shards,
    partition_similarity,
)
from fedconvex.federation import Federation
from fedconvex.losses import Logistic, Softmax


def clients_of(fed):
    return [(fed.X[a:b], fed.y[a:b]) for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]


def truth_from_rows(fed):
    """W, w_star, zeta_star and Gamma by least squares on the raw rows; nothing of the generator is used."""
    parts = clients_of(fed)
    p = np.array([len(y) for _, y in parts]) / fed.n

    def mean_loss(X, y, w):
        return float(np.mean((X @ w - y) ** 2) / 2)

    W = np.array([np.linalg.lstsq(X, y)[0] for X, y in parts])
    w_star = np.linalg.lstsq(fed.X, fed.y)[0]
    gradients = np.array([X.T @ (X @ w_star - y) / len(y) for X, y in parts])
    zeta = np.sqrt(p @ np.sum(gradients**2, axis=1))
    best = sum(p_k * mean_loss(X, y, w) for p_k, (X, y), w in zip(p, parts, W, strict=True))
    return W, w_star, zeta, mean_loss(fed.X, fed.y, w_star) - best


def agree(a, b, tol=1e-10):
    np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


# ---------------------------------------------------------------------- linear
@given(
    K=st.integers(2, 12),
    d=st.integers(2, 8),
    extra=st.integers(1, 20),
    size_skew=st.sampled_from([0.0, 0.5, 2.0]),
    feature_shift=st.sampled_from([0.0, 0.3, 1.0]),
    model_shift=st.sampled_from([0.0, 0.1, 3.0]),
    noise=st.sampled_from([0.0, 0.1, 2.0]),
    condition=st.sampled_from([1.0, 10.0, 1000.0]),
    seed=st.integers(0, 2**40),
)
def test_linear_truth_is_what_least_squares_finds(
    K, d, extra, size_skew, feature_shift, model_shift, noise, condition, seed
):
    data = linear_federation(
        K,
        d,
        d + extra,
        size_skew=size_skew,
        feature_shift=feature_shift,
        model_shift=model_shift,
        noise=noise,
        condition=condition,
        seed=seed,
    )
    fed, p = data.federation, data.federation.sizes / data.federation.n
    assert fed.n == K * (d + extra) and fed.sizes.min() > d
    W, w_star, zeta, gap = truth_from_rows(fed)
    tol = 1e-12 * condition * np.exp(3 * feature_shift) + 1e-10  # least squares loses the condition number
    agree(data.W, W, tol)
    agree(data.w_star, w_star, tol)
    agree(data.zeta_star, zeta, tol)
    agree(data.gamma_gap, gap, tol)
    agree(p @ data.W, data.w)
    agree(np.sqrt(p @ np.sum((data.W - data.w) ** 2, axis=1)), model_shift)
    for (X, y), w in zip(clients_of(fed), data.W, strict=True):
        agree(np.sqrt(np.mean((X @ w - y) ** 2)), noise)


@pytest.mark.parametrize("feature_shift", [0.0, 0.4])
@pytest.mark.parametrize("size_skew", [0.0, 1.0])
@pytest.mark.parametrize("value", [1e-3, 0.7, 25.0])
def test_one_exact_dial(value, size_skew, feature_shift):
    options = {
        "n_clients": 7,
        "n_features": 4,
        "rows_per_client": 20,
        "size_skew": size_skew,
        "feature_shift": feature_shift,
    }
    for seed in range(3):
        data = linear_federation(**options, zeta_star=value, seed=seed)
        assert truth_from_rows(data.federation)[2] == pytest.approx(value, rel=1e-10), f"seed {seed}"
        assert data.zeta_star == pytest.approx(value, rel=1e-13)
        data = linear_federation(**options, gamma_gap=value, seed=seed)
        # Gamma is a difference of objectives of size max(value, noise^2/2): compare on that scale
        assert truth_from_rows(data.federation)[3] == pytest.approx(value, rel=1e-10, abs=1e-13), f"seed {seed}"
        assert data.gamma_gap == pytest.approx(value, rel=1e-13)


@pytest.mark.parametrize("ratio", [0.02, 0.1, 0.37, 0.9])
@pytest.mark.parametrize("feature_shift", [0.0, 0.1])
def test_both_exact_dials(ratio, feature_shift):
    for seed in range(3):
        gap = 0.3
        zeta = np.sqrt(2 * gap * ratio)
        data = linear_federation(
            8, 5, 30, condition=100.0, feature_shift=feature_shift, zeta_star=zeta, gamma_gap=gap, seed=seed
        )
        _, _, zeta_found, gap_found = truth_from_rows(data.federation)
        assert zeta_found == pytest.approx(zeta, rel=1e-10), f"seed {seed}"
        assert gap_found == pytest.approx(gap, rel=1e-10), f"seed {seed}"


def test_equal_hessians_of_curvature_one_tie_the_dials():
    # H_k = I: grad F_k(w*) = w* - w_k, hence zeta*^2 = 2 Gamma = model_shift^2
    data = linear_federation(6, 4, 20, condition=1.0, model_shift=0.5, size_skew=0.7)
    agree([data.zeta_star**2, 2 * data.gamma_gap], [0.25, 0.25], 1e-12)
    data = linear_federation(6, 4, 20, condition=1.0, zeta_star=0.5, gamma_gap=0.125)
    agree([data.zeta_star, data.gamma_gap], [0.5, 0.125], 1e-12)


def test_zero_heterogeneity():
    for dial in ({}, {"zeta_star": 0.0}, {"gamma_gap": 0.0}, {"zeta_star": 0.0, "gamma_gap": 0.0}):
        data = linear_federation(5, 3, 10, feature_shift=0.5, noise=1.0, **dial)
        assert data.zeta_star < 1e-14 and data.gamma_gap < 1e-28
        agree(truth_from_rows(data.federation)[2:], [0.0, 0.0], 1e-13)


def test_without_feature_shift_all_hessians_are_equal_with_the_given_spectrum():
    fed = linear_federation(5, 6, 9, condition=50.0, size_skew=1.0).federation
    spectrum = np.geomspace(1 / 50, 1, 6)
    first = fed.X[: fed.ptr[1]].T @ fed.X[: fed.ptr[1]] / fed.sizes[0]
    for X, y in clients_of(fed):
        H = X.T @ X / len(y)
        agree(H, first, 1e-13)
        agree(np.linalg.eigvalsh(H), spectrum, 1e-13)
    assert np.abs(first - np.diag(np.diag(first))).max() > 0.01  # in no special basis


def test_feature_shift_moves_means_and_hessians():
    fed = linear_federation(20, 3, 30, feature_shift=0.5).federation
    means = np.array([X.mean(axis=0) for X, _ in clients_of(fed)])
    agree(means.mean(axis=0), np.zeros(3), 1e-13)
    agree(np.mean(np.sum(means**2, axis=1)), 0.25, 1e-13)
    tops = [np.linalg.eigvalsh(np.cov(X.T, bias=True))[-1] for X, _ in clients_of(fed)]
    assert max(tops) > 2 * min(tops)


def test_dials_share_their_random_numbers():
    options = {"n_clients": 4, "n_features": 3, "rows_per_client": 10, "feature_shift": 0.5, "seed": 3}
    plain, shifted = linear_federation(**options), linear_federation(**options, model_shift=2.0, noise=1.0)
    np.testing.assert_array_equal(plain.federation.X, shifted.federation.X)
    np.testing.assert_array_equal(plain.w, shifted.w)
    again = linear_federation(**options)
    assert again.federation.digest == plain.federation.digest
    assert linear_federation(**{**options, "seed": 4}).federation.digest != plain.federation.digest


def test_size_skew_is_log_normal():
    seed = 5
    sizes = logistic_federation(2000, 1, 1000, size_skew=0.8, condition=1.0, seed=seed).federation.sizes
    logs = np.log(sizes)
    assert sizes.sum() == 2_000_000
    # standard error of a standard deviation of 2000 normals: 0.8 / sqrt(4000) = 0.013
    assert abs(logs.std() - 0.8) < 4 * 0.013, f"seed {seed}"
    assert stats.kstest((logs - logs.mean()) / logs.std(), "norm").pvalue > 1e-3, f"seed {seed}"


# ---------------------------------------------------------------------- logistic
def test_logistic_labels_follow_their_models():
    seed = 11
    data = logistic_federation(4, 3, 20_000, model_shift=1.5, feature_shift=0.3, signal=1.0, seed=seed)
    fed = data.federation
    Logistic().check_labels(fed.y)
    for k, (X, y) in enumerate(clients_of(fed)):
        # the score of the log-likelihood at the true model has mean 0 and covariance the Fisher information:
        # its normalised square is chi-squared with d = 3 degrees of freedom
        s = 1 / (1 + np.exp(-X @ data.W[k]))
        score = X.T @ ((y + 1) / 2 - s)
        fisher = (X * (s * (1 - s))[:, None]).T @ X
        assert stats.chi2.sf(score @ np.linalg.solve(fisher, score), 3) > 1e-3, f"seed {seed}, client {k}"
    agree(np.mean(np.sum((data.W - data.w) ** 2, axis=1)), 1.5**2, 1e-12)
    agree(data.W.mean(axis=0), data.w, 1e-12)


def test_logistic_signal_is_the_spread_of_the_score():
    seed = 2
    data = logistic_federation(2, 5, 100_000, signal=3.0, condition=30.0, seed=seed)
    sd = float(np.std(data.federation.X @ data.w))
    assert abs(sd - 3.0) < 4 * 3.0 / np.sqrt(2 * 200_000), f"seed {seed}"
    fair = logistic_federation(2, 5, 100_000, signal=0.0, seed=seed).federation.y
    assert abs(fair.mean()) < 4 / np.sqrt(200_000), f"seed {seed}"


def test_logistic_takes_clients_of_one_row():
    assert logistic_federation(3, 10, 1).federation.sizes.tolist() == [1, 1, 1]


# ---------------------------------------------------------------------- FedProx
def test_fedprox_sizes():
    seed = 7
    sizes = fedprox_synthetic(0, 0, seed=seed, n_users=400, n_features=2, n_classes=2).federation.sizes
    assert sizes.min() >= 50
    # sizes are floor(lognormal) + 50, so size - 49 rounds it up: share at or below the median e^4 is one half
    below = np.mean(sizes - 50 < np.floor(np.exp(4.0)))
    assert abs(below - stats.norm.cdf((np.log(np.floor(np.exp(4.0))) - 4) / 2)) < 4 * 0.5 / np.sqrt(400), f"seed {seed}"
    logs = np.log(sizes[sizes > 100] - 49.5)  # far from 50 the rounding hardly moves the logarithm
    cut = (np.log(51) - 4) / 2  # sizes > 100 are lognormal >= 51
    law = stats.truncnorm(cut, np.inf, loc=4, scale=2)
    assert stats.kstest(logs, law.cdf).pvalue > 1e-3, f"seed {seed}"


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.5, 2.0), (1.0, 1.0)])
def test_fedprox_laws(alpha, beta):
    seed, K = 13, 60
    data = fedprox_synthetic(alpha, beta, seed=seed, n_users=K)
    fed = data.federation
    assert data.W.shape == (K, 10, 60) and data.b.shape == (K, 10)
    Softmax(10).check_labels(fed.y)
    says = f"seed {seed}, alpha {alpha}, beta {beta}"
    # entries of W_k and b_k are N(u_k, 1), of v_k are N(B_k, 1)
    entries = np.concatenate([(data.W - data.u[:, None, None]).ravel(), (data.b - data.u[:, None]).ravel()])
    assert stats.kstest(entries, "norm").pvalue > 1e-3, says
    if alpha:  # alpha is a standard deviation: with a variance this rejects at alpha = 0.5
        assert stats.kstest(data.u / alpha, "norm").pvalue > 1e-3, says
    else:
        assert np.all(data.u == 0)
    # mean of v_k over 60 entries is N(0, beta^2 + 1/60)
    assert stats.kstest(data.v.mean(axis=1) / np.sqrt(beta**2 + 1 / 60), "norm").pvalue > 1e-3, says
    # rows are N(v_k, diag(j^-1.2)), labels the largest score without noise
    for k, (X, y) in enumerate(clients_of(fed)):
        scores = np.einsum("cd,nd->nc", data.W[k], X) + data.b[k]
        np.testing.assert_array_equal(np.argmax(scores, axis=1), y)
    z = np.concatenate([(X - data.v[k]) * np.arange(1, 61) ** 0.6 for k, (X, _) in enumerate(clients_of(fed))])
    n = len(z)
    assert np.abs(z.mean(axis=0)).max() < 5 / np.sqrt(n), says
    assert np.abs(z.var(axis=0) - 1).max() < 5 * np.sqrt(2 / n), says
    correlation = np.corrcoef(z.T) - np.eye(60)
    assert np.abs(correlation).max() < 5.5 / np.sqrt(n), says  # 1770 pairs


def test_fedprox_standard_deviations_not_variances():
    # u ~ N(0, 3) by standard deviation (as a variance, 3 would give 1.73); entries of b_k around 0 have spread
    # sqrt(3^2 + 1); of v_k, sqrt(4^2 + 1). Standard error of a spread s of 1000 draws: s / sqrt(2000)
    seed, K = 17, 1000
    data = fedprox_synthetic(3.0, 4.0, seed=seed, n_users=K, n_features=1, n_classes=2)
    for values, spread in ((data.u, 3.0), (data.b[:, 0], 10**0.5), (data.W[:, 0, 0], 10**0.5), (data.v, 17**0.5)):
        assert abs(values.std() / spread - 1) < 4 / np.sqrt(2 * K), f"seed {seed}"
        assert abs(values.mean()) < 4 * spread / np.sqrt(K), f"seed {seed}"
    assert stats.kstest((data.b - data.u[:, None]).ravel(), "norm").pvalue > 1e-3, f"seed {seed}"


def test_fedprox_iid_clients_share_one_law():
    data = fedprox_synthetic(0, 0, iid=True, seed=1)
    assert np.all(data.v == 0) and np.ptp(data.W, axis=0).max() == 0 and np.ptp(data.b, axis=0).max() == 0
    assert data.federation.K == 30 and data.federation.d == 60
    different = fedprox_synthetic(0, 0, seed=1)
    assert np.ptp(different.W, axis=0).min() > 0


def test_fedprox_is_reproducible():
    first, again = (fedprox_synthetic(0.5, 0.5, seed=1, n_users=3).federation.digest for _ in range(2))
    assert first == again != fedprox_synthetic(0.5, 0.5, seed=2, n_users=3).federation.digest


# ---------------------------------------------------------------------- partitions
def is_partition(clients, n, K):
    assert clients.shape == (n,) and clients.dtype == np.int64
    assert np.bincount(clients, minlength=K).size == K  # every row has one owner 0, ..., K-1
    assert np.bincount(clients, minlength=K).min() >= 1
    assert Federation.from_arrays(np.zeros((n, 1)), np.zeros(n), clients).K == K


labelled = st.integers(1, 120).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 5), min_size=n, max_size=n).map(np.array), st.integers(1, n), st.integers(0, 2**40)
    )
)


@given(labelled)
def test_partition_iid(case):
    y, K, seed = case
    clients = partition_iid(y.size, K, seed)
    is_partition(clients, y.size, K)
    assert np.ptp(np.bincount(clients)) <= 1
    np.testing.assert_array_equal(clients, partition_iid(y.size, K, seed))


@given(labelled, st.floats(0.0, 100.0))
def test_partition_iid_with_skewed_sizes(case, skew):
    y, K, seed = case
    clients = partition_iid(y.size, K, seed, size_skew=skew)
    is_partition(clients, y.size, K)
    if skew == 0.0:
        assert np.ptp(np.bincount(clients)) <= 1
    np.testing.assert_array_equal(clients, partition_iid(y.size, K, seed, size_skew=skew))


@given(labelled, st.floats(1e-300, 1e100), st.integers(1, 4))
def test_partition_dirichlet(case, alpha, min_rows):
    y, K, seed = case
    K = max(1, K // min_rows)
    clients = partition_dirichlet(y, K, alpha, seed, min_rows=min(min_rows, y.size // K))
    is_partition(clients, y.size, K)
    assert np.bincount(clients).min() >= min(min_rows, y.size // K)
    np.testing.assert_array_equal(clients, partition_dirichlet(y, K, alpha, seed, min(min_rows, y.size // K)))


@given(labelled, st.integers(1, 4))
def test_partition_shards(case, s):
    y, K, seed = case
    K = max(1, K // s)
    s = min(s, y.size // K)
    clients = partition_shards(y, K, s, seed)
    is_partition(clients, y.size, K)
    base = y.size // (K * s)
    sizes = np.bincount(clients)
    assert s * base <= sizes.min() and sizes.max() <= s * (base + 1)
    np.testing.assert_array_equal(clients, partition_shards(y, K, s, seed))


@given(labelled, st.one_of(st.floats(0.0, 100.0), st.sampled_from([0, 10, 100])))
def test_partition_similarity(case, s):
    y, K, seed = case
    clients = partition_similarity(y, K, s, seed)
    is_partition(clients, y.size, K)
    assert np.ptp(np.bincount(clients)) <= 1
    if s == 0:  # sorted by label: no client has a label below the largest of the one before
        tops = [(y[clients == k].min(), y[clients == k].max()) for k in range(K)]
        assert all(a[1] <= b[0] for a, b in pairwise(tops))
    np.testing.assert_array_equal(clients, partition_similarity(y, K, s, seed))


def test_dirichlet_shares_have_dirichlet_moments():
    # share of a class at a client is Beta(a, (K-1)a): mean 1/K, variance (1/K)(1-1/K)/(Ka+1)
    seed, K, alpha, C = 3, 5, 0.7, 2000
    y = np.repeat(np.arange(C), 200)
    clients = partition_dirichlet(y, K, alpha, seed)
    shares = np.bincount(y * K + clients, minlength=C * K).reshape(C, K) / 200
    variance = 0.2 * 0.8 / (K * alpha + 1)
    assert np.abs(shares.mean(axis=0) - 0.2).max() < 4 * np.sqrt(variance / C), f"seed {seed}"
    law = stats.beta(alpha, (K - 1) * alpha)
    # standard error of the variance of C shares, from the kurtosis of the law
    error = variance * np.sqrt((law.stats("k") + 2) / C)
    assert np.abs(shares.var(axis=0) - variance).max() < 4 * error, f"seed {seed}"
    assert abs(shares.var() - variance) < 4 * error / np.sqrt(K), f"seed {seed}"


def test_dirichlet_extremes():
    y = np.repeat(["a", "b", "c"], 1000)
    even = partition_dirichlet(y, 4, 1e8, seed=1)
    for label in "abc":
        assert np.ptp(np.bincount(even[y == label], minlength=4)) <= 2
    concentrated = partition_dirichlet(y, 4, 1e-6, seed=1)
    # one owner per class, but for the single rows that went to clients without any
    assert all(np.bincount(concentrated[y == label]).max() >= 990 for label in "abc")


def test_shards_hold_few_classes():
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    clients = partition_shards(y, 100, 2, seed=4)  # 200 shards of 30 rows: 20 whole shards per class
    assert np.all(np.bincount(clients) == 60)
    assert max(np.unique(y[clients == k]).size for k in range(100)) == 2


def test_similarity_percentages():
    y = np.repeat([0, 1], 5000)
    seed = 6
    for s in (0, 10, 50, 100):
        first = y[partition_similarity(y, 2, s, seed) == 0].mean()
        # client 0 takes s% of its 5000 rows at random (half ones) and else zeros
        assert abs(first - s / 200) < 4 * 0.5 / np.sqrt(5000), f"seed {seed}, s {s}"


def test_labels_may_be_strings_lists_or_real_numbers():
    assert partition_shards(["b", "a", "b", "a"], 2, 1).tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    assert partition_similarity(np.array([0.5, 0.1, 0.9, 0.2]), 2, 0).tolist() == [1, 0, 1, 0]
    assert partition_dirichlet(np.array(["x", "y"], dtype=object), 1, 1.0).tolist() == [0, 0]


# ---------------------------------------------------------------------- bad input
Y = np.repeat([0, 1], 5)
BAD = [
    (lambda: linear_federation(0), ValueError, "linear_federation: n_clients must be at least 1; got 0"),
    (lambda: linear_federation(n_features=2.0), TypeError, "linear_federation: n_features must be a whole number"),
    (lambda: linear_federation(rows_per_client=10), ValueError, "rows_per_client must exceed n_features = 10"),
    (lambda: linear_federation(size_skew=-1), ValueError, "linear_federation: size_skew must be a number in [0, 100]"),
    (lambda: linear_federation(feature_shift=11), ValueError, "feature_shift must be a number in [0, 10]; got 11"),
    (lambda: linear_federation(model_shift=-0.1), ValueError, "model_shift must be nonnegative and finite; got -0.1"),
    (lambda: linear_federation(noise=np.nan), ValueError, "noise must be nonnegative and finite; got nan"),
    (lambda: linear_federation(condition=0.5), ValueError, "condition must be a number in [1, inf); got 0.5"),
    (lambda: linear_federation(n_features=1), ValueError, "condition must be 1 with a single feature; got 10"),
    (lambda: linear_federation(seed=-1), ValueError, "linear_federation: seed must be at least 0; got -1"),
    (lambda: linear_federation(seed=None), TypeError, "seed must be a whole number; got NoneType"),
    (lambda: linear_federation(zeta_star=-1.0), ValueError, "zeta_star must be nonnegative and finite; got -1"),
    (lambda: linear_federation(gamma_gap="1"), TypeError, "linear_federation: gamma_gap must be a number; got str"),
    (lambda: linear_federation(1, zeta_star=1.0), ValueError, "n_clients must be at least 2 for a model shift"),
    (lambda: linear_federation(1, model_shift=1.0), ValueError, "n_clients must be at least 2 for a model shift"),
    (
        lambda: linear_federation(zeta_star=1.0, model_shift=1.0),
        ValueError,
        "model_shift must be left out when zeta_star sets the shift; got 1.0",
    ),
    (
        lambda: linear_federation(zeta_star=0.0, gamma_gap=1.0),
        ValueError,
        "zeta_star and gamma_gap must be both zero or both positive; got 0 and 1",
    ),
    (
        lambda: linear_federation(zeta_star=2.0, gamma_gap=1.0),
        ValueError,
        "must have zeta_star**2 / (2 gamma_gap) in [0.1, 1] for these features; got 2 and 1, ratio 2: raise condition",
    ),
    (
        lambda: linear_federation(condition=1.0, zeta_star=1.0, gamma_gap=1.0),
        ValueError,
        "must have zeta_star**2 / (2 gamma_gap) in [1, 1] for these features; got 1 and 1, ratio 0.5",
    ),
    (lambda: logistic_federation(-3), ValueError, "logistic_federation: n_clients must be at least 1; got -3"),
    (lambda: logistic_federation(signal=-1), ValueError, "signal must be nonnegative and finite; got -1"),
    (lambda: logistic_federation(rows_per_client=0), ValueError, "rows_per_client must be at least 1; got 0"),
    (lambda: logistic_federation(1, model_shift=1), ValueError, "n_clients must be at least 2 for a model shift"),
    (lambda: fedprox_synthetic(-1, 0), ValueError, "fedprox_synthetic: alpha must be nonnegative and finite; got -1"),
    (lambda: fedprox_synthetic(0, np.inf), ValueError, "fedprox_synthetic: beta must be nonnegative and finite"),
    (lambda: fedprox_synthetic(1, 1, iid=True), ValueError, "alpha and beta must be 0 when iid=True; got 1 and 1"),
    (lambda: fedprox_synthetic(1, 1, n_classes=1), ValueError, "n_classes must be at least 2; got 1"),
    (lambda: fedprox_synthetic(1, 1, n_users=0), ValueError, "n_users must be at least 1; got 0"),
    (lambda: partition_iid(3, 4), ValueError, "partition_iid: n_clients must be at most the number of rows 3; got 4"),
    (lambda: partition_iid(Y, 2), TypeError, "partition_iid: n_rows must be a whole number; got ndarray"),
    (lambda: partition_iid(10, 0), ValueError, "partition_iid: n_clients must be at least 1; got 0"),
    (lambda: partition_iid(10, 2, seed=0.5), TypeError, "partition_iid: seed must be a whole number; got float 0.5"),
    (
        lambda: partition_iid(10, 2, size_skew=-1.0),
        ValueError,
        "partition_iid: size_skew must be a number in [0, 100]; got -1",
    ),
    (lambda: partition_iid(1, 2, size_skew=1.0), ValueError, "n_clients must be at most the number of rows 1; got 2"),
    (lambda: partition_dirichlet(Y, 2, 0.0), ValueError, "partition_dirichlet: alpha must be a number in (0, 1e+100]"),
    (lambda: partition_dirichlet(Y, 2, "1"), TypeError, "partition_dirichlet: alpha must be a number; got str '1'"),
    (lambda: partition_dirichlet(Y, 2, 1.0, min_rows=6), ValueError, "be at most n_rows / n_clients = 10/2; got 6"),
    (lambda: partition_dirichlet(Y + 0.5, 2, 1.0), ValueError, "y must hold class labels; got 0.5: bin real targets"),
    (lambda: partition_dirichlet([], 1, 1.0), ValueError, "y must be a nonempty vector of labels; got shape (0,)"),
    (lambda: partition_dirichlet([[1]], 1, 1.0), ValueError, "y must be a nonempty vector of labels; got shape (1, 1)"),
    (lambda: partition_shards(Y, 4, 3), ValueError, "n_clients * shards_per_client must be at most the number of rows"),
    (lambda: partition_shards(Y, 4, 0), ValueError, "partition_shards: shards_per_client must be at least 1; got 0"),
    (lambda: partition_shards([1, None], 1), TypeError, "y must be all numbers or all strings; got dtype object"),
    (lambda: partition_similarity(Y, 2, 101), ValueError, "s (percent) must be a number in [0, 100]; got 101"),
    (lambda: partition_similarity(Y, 2, -1), ValueError, "s (percent) must be a number in [0, 100]; got -1"),
    (
        lambda: partition_similarity([0.0, np.nan], 2, 1),
        ValueError,
        "y must be finite; got nan at row 1: drop the rows",
    ),
]


@pytest.mark.parametrize(("call", "error", "says"), BAD, ids=range(len(BAD)))
def test_bad_input(call, error, says):
    with pytest.raises(error) as caught:
        call()
    assert says in str(caught.value) and " must " in str(caught.value) and "; got " in str(caught.value)
