"""Synthetic federations whose truth is known: client models, pooled optimum, heterogeneity.

With the same seed, turning one dial leaves the random numbers behind the others alone: for instance, two values of
``model_shift`` share every feature and every noise direction.

What the dials of `linear_federation` and `logistic_federation` mean
--------------------------------------------------------------------
Sizes
    ``rows_per_client`` is the mean n/K; ``size_skew`` the standard deviation of the log-sizes, 0 for equal sizes.
Features
    The common covariance has eigenvalues spaced evenly on the log scale between 1/condition and 1, in a random basis
    (condition = 1 if d = 1). With ``feature_shift`` > 0 the rows of client k have mean m_k, and the eigenvalues of
    their covariance are multiplied by exp(feature_shift g_k), g_k standard normal (d,), where sum_k p_k m_k = 0 and
    sum_k p_k ||m_k||^2 = feature_shift^2.
Models
    w_k = w + model_shift c_k with sum_k p_k c_k = 0 and sum_k p_k ||c_k||^2 = 1: ``model_shift`` is the root mean
    square distance of the client models from the shared one.
Exact heterogeneity (least squares)
    Labels are y_k = X_k w_k + e_k with X_k'e_k = 0 (the noise is projected off the columns of X_k), so w_k is exactly
    the minimiser of F_k(w) = ||X_k w - y_k||^2 / (2 n_k), and F_k(w_k) = noise^2 / 2. With H_k = X_k'X_k / n_k and
    H = sum_k p_k H_k, w_star = H^-1 sum_k p_k H_k w_k and

        zeta_star^2 = sum_k p_k ||H_k (w_star - w_k)||^2,    Gamma = sum_k p_k (w_star - w_k)'H_k (w_star - w_k) / 2.

    Both are quadratic in the size of the model shift. Scaling the shift therefore sets either of them exactly and
    **thereby fixes the other**: their ratio depends only on directions. To set both, the directions themselves are
    turned, c_k to H^t c_k with the t that gives the ratio; zeta_star^2 / (2 Gamma) can be no smaller than about the
    smallest and no larger than about the largest eigenvalue of H (exactly these where all H_k are equal).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedconvex._check import Rng, bad, flag, real, takes_rng, whole
from fedconvex.datasets.partition import lognormal_sizes
from fedconvex.federation import Federation


@dataclass(frozen=True, eq=False)
class LinearFederation:
    """A federated least-squares problem and its truth; see `linear_federation`.

    With F_k(w) = ||X_k w - y_k||^2 / (2 n_k), weights p_k = n_k / n and F = sum_k p_k F_k.

    Attributes
    ----------
    federation : Federation
        The data.
    w : array (d,)
        Shared model, the weighted mean of the client models.
    W : array (K, d)
        The client models; W[k] is the only minimiser of F_k.
    w_star : array (d,)
        The only minimiser of F.
    zeta_star : float
        Heterogeneity at the optimum: zeta_star^2 = sum_k p_k ||grad F_k(w_star)||^2.
    gamma_gap : float
        Gamma = F(w_star) - sum_k p_k F_k(W[k]).

    Examples
    --------
    >>> from fedconvex import Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> data = linear_federation(n_clients=3, n_features=2, model_shift=1.0)
    >>> best = Problem(data.federation, Squared()).solve()
    >>> bool(abs(best.w - data.w_star).max() < 1e-9), data.W.shape
    (True, (3, 2))
    """

    federation: Federation
    w: np.ndarray
    W: np.ndarray
    w_star: np.ndarray
    zeta_star: float
    gamma_gap: float


@dataclass(frozen=True, eq=False)
class LogisticFederation:
    """A federated logistic regression problem and the models that drew its labels; see `logistic_federation`.

    The minimisers of the losses are not among the attributes: with finitely many rows they are not the models that
    drew the labels and have no closed form.

    Attributes
    ----------
    federation : Federation
        The data, labels -1/+1.
    w : array (d,)
        Shared model, the weighted mean of the client models.
    W : array (K, d)
        The client models: client k's labels are +1 with probability 1 / (1 + exp(-x'W[k])).

    Examples
    --------
    >>> from fedconvex.datasets import logistic_federation
    >>> data = logistic_federation(n_clients=3, n_features=2)
    >>> data.w.shape, data.W.shape  # without a shift all clients have the shared model
    ((2,), (3, 2))
    """

    federation: Federation
    w: np.ndarray
    W: np.ndarray


@dataclass(frozen=True, eq=False)
class FedProxSynthetic:
    """The Synthetic(alpha, beta) data and what drew it; see `fedprox_synthetic`.

    Attributes
    ----------
    federation : Federation
        The data, labels 0, ..., C-1 for ``Softmax(C)``; ``with_intercept()`` adds the column that ``b`` belongs to.
    W : array (K, C, d)
        The client models.
    b : array (K, C)
        Their intercepts.
    u : array (K,)
        Means of the entries of W[k] and b[k].
    v : array (K, d)
        Means of the clients' features.

    Examples
    --------
    >>> from fedconvex import Problem, Softmax
    >>> from fedconvex.datasets import fedprox_synthetic
    >>> data = fedprox_synthetic(0.5, 0.5, n_users=3, n_features=4, n_classes=3)
    >>> Problem(data.federation.with_intercept(), Softmax(3), l2=0.1).model_shape, data.b.shape
    ((3, 5), (3, 3))
    """

    federation: Federation
    W: np.ndarray
    b: np.ndarray
    u: np.ndarray
    v: np.ndarray


@takes_rng
def linear_federation(
    n_clients: int = 10, n_features: int = 10, rows_per_client: int = 50, *, size_skew: float = 0.0,
    feature_shift: float = 0.0, model_shift: float = 0.0, noise: float = 0.1, condition: float = 10.0,
    zeta_star: float | None = None, gamma_gap: float | None = None, seed: int = 0, rng: Rng = None,
) -> LinearFederation:  # fmt: skip
    """Return a least-squares federation with exactly known minimisers and heterogeneity; dials: see the module.

    Parameters
    ----------
    n_clients, n_features, rows_per_client : int
        K, d, and the mean number of rows n / K, at least d + 1: every client has at least d + 1 rows, so that its
        minimiser is unique and leaves room for noise.
    size_skew, feature_shift, condition : float
        With feature_shift = 0 every H_k is the same matrix exactly: rows are centred and whitened.
    model_shift : float
        Around a shared model with ||w|| = 1.
    noise : float
        Root mean square of every client's residual at its own minimiser.
    zeta_star, gamma_gap : float, optional
        Exact value of zeta_star (not squared) or of Gamma (Li et al., ICLR 2020, Section 3.1; Khaled, Mishchenko,
        Richtarik, AISTATS 2020), or both, in place of ``model_shift``.
    seed : int
        Seed of all draws.

    Raises
    ------
    ValueError
        If a dial is outside its range, ``model_shift`` is given along with an exact dial, rows_per_client <= d,
        heterogeneity is asked of a single client, or no shift has the wanted zeta_star and gamma_gap together.

    Examples
    --------
    >>> import numpy as np
    >>> problem = linear_federation(n_clients=3, n_features=2, zeta_star=0.5)
    >>> X, y = problem.federation.X, problem.federation.y
    >>> residual = (X @ problem.w_star - y).reshape(3, 50)
    >>> gradients = np.einsum("kn,knd->kd", residual, X.reshape(3, 50, 2)) / 50
    >>> round(float(np.sqrt(np.mean(np.sum(gradients**2, axis=1)))), 12)
    0.5
    """
    plan = _plan("linear_federation", n_clients, n_features, rows_per_client, size_skew, condition, seed, True)
    shift, sd = real(f"{plan.who}: model_shift", model_shift, low=0.0), real(f"{plan.who}: noise", noise, low=0.0)
    exact = _exact(plan, shift, {"zeta_star": zeta_star, "gamma_gap": gamma_gap})
    return _least_squares(plan, feature_shift, shift, sd, exact)


def _exact(plan: _Plan, shift: float, targets: dict[str, float | None]) -> dict[str, float]:
    """Return the exact dials that are given, checked against the others."""
    exact = {name: real(f"{plan.who}: {name}", v, low=0.0) for name, v in targets.items() if v is not None}
    if exact and shift:
        raise bad(f"{plan.who}: model_shift", f"be left out when {' and '.join(exact)} sets the shift", shift)
    if plan.K == 1 and (shift or any(exact.values())):
        raise bad(f"{plan.who}: n_clients", "be at least 2 for a model shift: one client is its own optimum", 1)
    return exact


def _least_squares(
    plan: _Plan, feature_shift: float, shift: float, sd: float, exact: dict[str, float]
) -> LinearFederation:
    """Draw models, rows and labels, in this order."""
    w = _unit(plan.shared.standard_normal(plan.d))
    C = _balanced(plan.shared.standard_normal((plan.K, plan.d)), plan.sizes)
    streams = plan.streams()
    X = _shifted(plan, [_white(Z) for Z in _standard(plan, streams)], feature_shift)
    ptr = np.concatenate([[0], np.cumsum(plan.sizes)])
    C, scale = _dialled(X, ptr, C, exact) if exact else (C, shift)
    centre, zeta, gap = _heterogeneity(X, ptr, scale * C)
    W = w + scale * C
    y = np.einsum("ij,ij->i", X, np.repeat(W, plan.sizes, axis=0))
    for k, rng in enumerate(streams):
        rows = slice(ptr[k], ptr[k + 1])
        y[rows] += sd * _residual(X[rows], rng.standard_normal(plan.sizes[k]))
    return LinearFederation(Federation(X, y, ptr), w, W, w + centre, zeta, gap)


@takes_rng
def logistic_federation(
    n_clients: int = 10,
    n_features: int = 10,
    rows_per_client: int = 50,
    *,
    size_skew: float = 0.0,
    feature_shift: float = 0.0,
    model_shift: float = 0.0,
    signal: float = 2.0,
    condition: float = 10.0,
    seed: int = 0,
    rng: Rng = None,
) -> LogisticFederation:
    """Return a federation whose labels follow a logistic model per client; dials: see the module.

    Client k's rows are normal with mean m_k and its own covariance, and y = +1 with probability 1 / (1 + exp(-x'w_k)).

    Parameters
    ----------
    n_clients, n_features, rows_per_client : int
        K, d, and the mean number of rows n / K.
    size_skew, feature_shift, model_shift, condition : float
        With feature_shift = 0 all clients' rows have one distribution, of mean zero.
    signal : float
        Standard deviation of the score x'w of a row of the common distribution: 0 is pure noise, 10 almost separable.
        It plays the part of (one over) ``noise`` in `linear_federation`.
    seed : int
        Seed of all draws.

    Raises
    ------
    ValueError
        If a dial is outside its range, or a model shift is asked of a single client.

    Examples
    --------
    >>> problem = logistic_federation(n_clients=4, n_features=3, rows_per_client=5, model_shift=1.0)
    >>> problem.federation, sorted(set(problem.federation.y.tolist()))
    (Federation(4 clients, 20 rows, 3 features, dense), [-1.0, 1.0])
    >>> bool(abs(problem.W.mean(axis=0) - problem.w).max() < 1e-12)
    True
    """
    plan = _plan("logistic_federation", n_clients, n_features, rows_per_client, size_skew, condition, seed, False)
    shift = real(f"{plan.who}: model_shift", model_shift, low=0.0)
    if plan.K == 1 and shift:
        raise bad(f"{plan.who}: n_clients", "be at least 2 for a model shift", 1)
    direction = plan.shared.standard_normal(plan.d)
    sd = float(np.linalg.norm(np.sqrt(plan.eigenvalues) * (plan.basis.T @ direction)))
    w = real(f"{plan.who}: signal", signal, low=0.0) * direction / sd
    W = w + shift * _balanced(plan.shared.standard_normal((plan.K, plan.d)), plan.sizes)
    streams = plan.streams()
    X = _shifted(plan, _standard(plan, streams), feature_shift)
    score = np.einsum("ij,ij->i", X, np.repeat(W, plan.sizes, axis=0))
    u = np.concatenate([rng.random(n_k) for rng, n_k in zip(streams, plan.sizes, strict=True)])
    y = np.where(u < 0.5 * (1.0 + np.tanh(0.5 * score)), 1.0, -1.0)
    return LogisticFederation(Federation(X, y, np.concatenate([[0], np.cumsum(plan.sizes)])), w, W)


@takes_rng
def fedprox_synthetic(
    alpha: float,
    beta: float,
    iid: bool = False,
    seed: int = 0,
    n_users: int = 30,
    n_features: int = 60,
    n_classes: int = 10,
    *,
    rng: Rng = None,
) -> FedProxSynthetic:
    """Return the Synthetic(alpha, beta) data of the FedProx paper.

    For client k: n_k = floor(lognormal(4, 2)) + 50 rows, u_k ~ N(0, alpha), B_k ~ N(0, beta); entries of W_k and b_k
    ~ N(u_k, 1), entries of v_k ~ N(B_k, 1); rows x ~ N(v_k, diag(j^-1.2)), labels y = argmax(W_k x + b_k), without
    noise. Here N(m, s) has **standard deviation** s, as in the authors' program; the paper writes variances, which is
    the same for the published pairs (0, 0) and (1, 1), not for (0.5, 0.5).

    Parameters
    ----------
    alpha, beta : float
        Standard deviations of u_k and B_k: how much the client models, and the clients' features, differ.
    iid : bool
        The paper's control, for which alpha and beta must be 0: one W and one b with N(0, 1) entries for all clients,
        and v_k = 0. (Synthetic(0, 0) is not it: there each client has its own W_k, b_k and v_k.)
    seed : int
        Seed of all draws. The law is that of the public data, the random numbers are not.
    n_users, n_features, n_classes : int
        K clients, d features, C >= 2 classes, of which a client need not have all.

    Raises
    ------
    ValueError
        If alpha or beta is negative, or nonzero with iid.

    References
    ----------
    Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020,
    Section 5.1 and Appendix C.1; similar to Shamir, Srebro and Zhang 2014.

    Examples
    --------
    >>> data = fedprox_synthetic(1.0, 1.0, n_users=5)
    >>> data.federation.K, data.federation.d, int(data.federation.sizes.min()) >= 50, data.W.shape
    (5, 60, True, (5, 10, 60))
    """
    who = "fedprox_synthetic"
    sd_models, sd_features = real(f"{who}: alpha", alpha, low=0.0), real(f"{who}: beta", beta, low=0.0)
    if flag(f"{who}: iid", iid) and (sd_models or sd_features):
        got = f"{alpha!r} and {beta!r}"
        raise bad(f"{who}: alpha and beta", "be 0 when iid=True", got, "clients then share one law")
    K, d = whole(f"{who}: n_users", n_users, low=1), whole(f"{who}: n_features", n_features, low=1)
    C, key = whole(f"{who}: n_classes", n_classes, low=2), whole(f"{who}: seed", seed)
    return _synthetic(sd_models, sd_features, iid, key, (K, d, C))


def _synthetic(
    sd_models: float, sd_features: float, iid: bool, key: int, shape: tuple[int, int, int]
) -> FedProxSynthetic:
    """Draw sizes and means, then every client from a stream of its own."""
    K, d, C = shape
    shared = np.random.default_rng(np.random.SeedSequence(key, spawn_key=(0,)))
    sizes = shared.lognormal(4.0, 2.0, K).astype(np.int64) + 50
    u, B = sd_models * shared.standard_normal(K), sd_features * shared.standard_normal(K)
    W, b, v = np.empty((K, C, d)), np.empty((K, C)), np.zeros((K, d))
    W[:], b[:] = shared.standard_normal((C, d)), shared.standard_normal(C)
    sd_rows = np.arange(1, d + 1) ** -0.6  # variances j^-1.2
    clients = []
    for k in range(K):
        rng = np.random.default_rng(np.random.SeedSequence(key, spawn_key=(1, k)))
        if not iid:
            v[k] = B[k] + rng.standard_normal(d)
            W[k] = u[k] + rng.standard_normal((C, d))
            b[k] = u[k] + rng.standard_normal(C)
        x = v[k] + sd_rows * rng.standard_normal((sizes[k], d))
        clients.append((x, np.argmax(x @ W[k].T + b[k], axis=1).astype(np.float64)))
    return FedProxSynthetic(Federation.from_clients(clients), W, b, u, v)


# ---------------------------------------------------------------------- features
class _Plan(NamedTuple):
    """What both generators draw first."""

    who: str
    K: int
    d: int
    sizes: np.ndarray  # (K,)
    shared: np.random.Generator
    basis: np.ndarray  # (d, d) of the common covariance
    eigenvalues: np.ndarray  # (d,)
    seed: int

    def streams(self) -> list[np.random.Generator]:
        """Return a generator for every client."""
        return [np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(1, k))) for k in range(self.K)]


def _plan(
    who: str, n_clients: int, n_features: int, rows: int, size_skew: float, condition: float, seed: int, full: bool
) -> _Plan:
    """Check the dials that all have in common, and draw sizes and the common covariance."""
    K, d = whole(f"{who}: n_clients", n_clients, low=1), whole(f"{who}: n_features", n_features, low=1)
    least = d + 1 if full else 1
    m, skew = whole(f"{who}: rows_per_client", rows, low=1), real(f"{who}: size_skew", size_skew, low=0.0, high=100.0)
    if m < least:
        raise bad(f"{who}: rows_per_client", f"exceed n_features = {d} (every client has one minimiser)", m)
    ratio = real(f"{who}: condition", condition, low=1.0)
    if d == 1 and ratio != 1.0:
        raise bad(f"{who}: condition", "be 1 with a single feature", condition)
    shared = np.random.default_rng(np.random.SeedSequence(whole(f"{who}: seed", seed), spawn_key=(0,)))
    sizes = lognormal_sizes(K * m, K, skew, least, shared)
    Q, R = np.linalg.qr(shared.standard_normal((d, d)))
    basis = Q * np.sign(np.diag(R))  # Haar
    return _Plan(who, K, d, sizes, shared, basis, np.geomspace(1.0, 1.0 / ratio, d), seed)


def _standard(plan: _Plan, streams: list[np.random.Generator]) -> list[np.ndarray]:
    """Return standard normal rows of every client."""
    return [rng.standard_normal((n_k, plan.d)) for rng, n_k in zip(streams, plan.sizes, strict=True)]


def _shifted(plan: _Plan, blocks: list[np.ndarray], feature_shift: float) -> np.ndarray:
    """Return all rows (n, d): each client's standard block with its own covariance and mean."""
    shift = real(f"{plan.who}: feature_shift", feature_shift, low=0.0, high=10.0)
    means = shift * _balanced(plan.shared.standard_normal((plan.K, plan.d)), plan.sizes)
    scales = np.sqrt(plan.eigenvalues * np.exp(shift * plan.shared.standard_normal(means.shape)))
    return np.concatenate([m + (Z * s) @ plan.basis.T for Z, s, m in zip(blocks, scales, means, strict=True)])


def _white(Z: np.ndarray) -> np.ndarray:
    """Return a block (n_k, d) with column means 0 and Z'Z/n_k = I, n_k > d."""
    Q = np.linalg.qr(Z - Z.mean(axis=0))[0]
    Q = np.linalg.qr(Q - Q.mean(axis=0))[0]
    return math.sqrt(Z.shape[0]) * Q


def _unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v)


def _balanced(C: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the directions (K, d) with sum_k p_k c_k = 0 and sum_k p_k ||c_k||^2 = 1 (zero for one client)."""
    if len(C) == 1:
        return np.zeros_like(C)
    p = sizes / sizes.sum()
    centred = C - p @ C
    return centred / math.sqrt(float(p @ np.sum(centred**2, axis=1)))


def _residual(X: np.ndarray, e: np.ndarray) -> np.ndarray:
    """Return e projected off the columns of X, with mean square 1."""
    Q = np.linalg.qr(X)[0]
    for _ in range(2):  # twice is enough (Kahan; Parlett 1980)
        e = e - Q @ (Q.T @ e)
    return e / math.sqrt(float(e @ e) / e.size)


# ---------------------------------------------------------------------- exact heterogeneity
def _heterogeneity(X: np.ndarray, ptr: np.ndarray, C: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return w_star - w, zeta_star and Gamma for client minimisers w + c_k; all homogeneous in C.

    With p_k = n_k/n: H = X'X/n, sum_k p_k H_k c_k = X'z/n where z_i = x_i'c_k for row i of client k, and Gamma is the
    mean of (x_i'(w_star - w_k))^2 / 2.
    """
    n, sizes = X.shape[0], np.diff(ptr)
    z = np.einsum("ij,ij->i", X, np.repeat(C, sizes, axis=0))
    centre = np.linalg.solve(X.T @ X, X.T @ z)
    z = X @ centre - z
    gradients = np.add.reduceat(X * z[:, None], ptr[:-1]) / sizes[:, None]
    zeta = math.sqrt(float(sizes / n @ np.sum(gradients**2, axis=1)))
    return centre, zeta, float(z @ z) / (2 * n)


def _dialled(X: np.ndarray, ptr: np.ndarray, C: np.ndarray, exact: dict[str, float]) -> tuple[np.ndarray, float]:
    """Return directions (K, d) and the scale at which zeta_star and/or Gamma take their wanted values."""
    if not any(exact.values()):
        return C, 0.0
    if len(exact) == 2:
        C = _turned(X, ptr, C, exact["zeta_star"], exact["gamma_gap"])
    _, zeta, gap = _heterogeneity(X, ptr, C)
    return C, exact["zeta_star"] / zeta if "zeta_star" in exact else math.sqrt(exact["gamma_gap"] / gap)


def _turned(X: np.ndarray, ptr: np.ndarray, C: np.ndarray, zeta_star: float, gamma_gap: float) -> np.ndarray:
    """Return H^t C, rescaled, with the t at which zeta^2 / (2 Gamma) has the wanted value."""
    from scipy.optimize import brentq

    who, sizes = "linear_federation: zeta_star and gamma_gap", np.diff(ptr)
    if zeta_star == 0.0 or gamma_gap == 0.0:
        raise bad(who, "be both zero or both positive", f"{zeta_star:g} and {gamma_gap:g}")
    wanted = math.log(zeta_star) * 2.0 - math.log(2.0 * gamma_gap)
    eigenvalues, Q = np.linalg.eigh(X.T @ X / len(X))
    exponents = np.log(eigenvalues)
    spread = float(exponents[-1] - exponents[0])

    def turned(t: float) -> np.ndarray:
        power = t * exponents / max(spread, 1e-12)
        return _balanced(((C @ Q) * np.exp(power - power.max())) @ Q.T, sizes)

    def excess(t: float) -> float:
        _, zeta, gap = _heterogeneity(X, ptr, turned(t))
        return 2.0 * math.log(zeta) - math.log(2.0 * gap) - wanted

    if abs(excess(0.0)) < 1e-12:
        return C
    low, high = sorted((excess(-1e3), excess(1e3))) if spread > 1e-9 else (excess(0.0), excess(0.0))
    if low > 0.0 or high < 0.0:
        span = f"[{math.exp(low + wanted):.6g}, {math.exp(high + wanted):.6g}]"
        cure = "raise condition, or set one of the two alone"
        got = f"{zeta_star:g} and {gamma_gap:g}, ratio {math.exp(wanted):.6g}"
        raise bad(who, f"have zeta_star**2 / (2 gamma_gap) in {span} for these features", got, cure)
    return turned(brentq(excess, -1e3, 1e3, xtol=1e-14, rtol=1e-15, maxiter=500))
