"""The constants of an objective, computed from its rows; `docs/constants.md` holds the formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex._check import among, bad, flag, raw, real, vector, whole
from fedconvex.constants.record import (
    AT_CENTRE,
    BOUND,
    BOUND_ON_BALL,
    EXACT,
    EXACT_ON_BALL,
    INFINITE,
    NO_MINIMISER,
    UNKNOWN,
    Constants,
    noise_factor,
)
from fedconvex.federation import Federation
from fedconvex.kernels import row_losses
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.solution import Solution

GROUPED = 100_000  # entries up to which equal rows are looked for: sorting them costs more than a pass


def problem_constants(
    problem: Objective,
    best: Solution,
    alone: Sequence[Solution],
    *,
    batch_size: int | None = None,
    replacement: bool = False,
    batch_draw: str = "uniform",
    start: Any = None,
    center: Any = None,
    radius: float | None = None,
) -> Constants:
    """Compute all constants of an objective from its solution and those of its clients; see `Problem.constants`."""
    fed, who = problem.federation, "Problem.constants"
    if radius is not None:
        radius = real(f"{who}: radius", radius, low=0.0, high=1e150)
    x0 = np.zeros(problem.size) if start is None else _flat(f"{who}: start", start, problem.size)
    c0 = best.w.ravel() if center is None else _flat(f"{who}: center", center, problem.size)
    phi = _batch_factor(who, fed, batch_size, flag(f"{who}: replacement", replacement))
    among(f"{who}: batch_draw", batch_draw, ("uniform", "weighted"))
    if batch_draw == "weighted" and batch_size is not None and not replacement:
        raise bad(f"{who}: batch_draw", "be 'uniform', or come with replacement=True", "'weighted'")
    by_weight = batch_draw == "weighted" and batch_size is not None and fed.sample_weight is not None
    grams = [_gram(problem, k) for k in range(fed.K)]
    how: dict[str, str] = {}
    v: dict[str, Any] = {"K": fed.K, "p": problem.weights}
    v.update(_smoothness(problem, grams, how, by_weight))
    v.update(_convexity(problem, grams, c0, radius, how))
    v.update(_optima(problem, best, alone, x0, how))
    here = problem.client_gradients(problem.unflatten(c0)).reshape(fed.K, -1)
    v.update(_heterogeneity(problem, best, here, how))
    v["zeta"], how["zeta"] = _zeta(problem, grams, here - problem.weights @ here, radius)
    noise = phi * problem.gradient_variance(best.w, by_weight)
    v["sigma2_star_k"], v["sigma2_star"] = noise, float(problem.weights @ noise)
    how["sigma2_star_k"] = how["sigma2_star"] = how["zeta_star"]
    if radius is None and center is not None:
        v["sigma2_k"] = phi * problem.gradient_variance(problem.unflatten(c0), by_weight)
        v["G2_k"] = np.sum(here**2, axis=1) + v["sigma2_k"]
        how["sigma2_k"] = how["G2_k"] = AT_CENTRE
    else:
        reach = math.inf if radius is None else radius
        v["sigma2_k"], v["G2_k"] = _noise(problem, grams, phi, c0, reach, how, by_weight)
    for name in ("sigma2", "G2"):
        v[name], how[name] = float(v[f"{name}_k"].max()), how[f"{name}_k"]
    return Constants(how=how, **v)


def _batch_factor(who: str, fed: Federation, batch_size: int | None, replacement: bool) -> np.ndarray:
    """Return phi of every client, (K,); full batches are not random."""
    if batch_size is None:
        return np.asarray(noise_factor(fed.sizes, fed.sizes, False))
    B, least = whole(f"{who}: batch_size", batch_size, low=1), fed.sizes.min()
    if not replacement and least < B:
        rows = f"lie in 1, ..., {least} (client {fed.labels[int(np.argmin(fed.sizes))]} has {least} rows)"
        raise bad(f"{who}: batch_size", rows, B)
    return np.asarray(noise_factor(fed.sizes, np.full(fed.K, B), replacement))


def _smoothness(problem: Objective, grams: list[np.ndarray], how: dict[str, str], by_weight: bool) -> dict[str, Any]:
    """L_k, L and L_s: exact where every row is roughest at w = 0."""
    s, r = problem.traits.smoothness, problem.l2
    if not math.isfinite(s):
        how["L_k"] = how["L"] = how["L_s"] = INFINITE
        return {"L_k": np.full(len(grams), math.inf), "L": math.inf, "L_s": math.inf}
    how["L_k"] = how["L"] = how["L_s"] = EXACT if _roughest_at_zero(problem) else BOUND
    L_k = s * np.array([_largest(S) for S in grams]) + r
    if problem.free is not None:
        how["L_s"] = BOUND
        L_k = np.array([_largest(s * S + _ridge(problem)) for S in grams])
    rough = _weighed(problem, problem.federation.row_norms2)
    if by_weight:  # what is drawn is the loss of a row as it is
        rough = np.where(problem.per_row > 0.0, problem.federation.row_norms2, 0.0)
    L_s = float(s * rough.max() + r)
    return {"L_k": L_k, "L": float(L_k.max()), "L_s": L_s}


def _optima(
    problem: Objective, best: Solution, alone: Sequence[Solution], x0: np.ndarray, how: dict[str, str]
) -> dict[str, Any]:
    """Minimisers and minima of F and of every F_k, and how far they are from each other and from the start."""
    attained = best.attained and all(a.attained for a in alone)
    strict = attained and all(a.unique for a in alone)
    least = np.array([a.value if a.attained and a.gap <= 1e-6 * (1.0 + abs(a.value)) else a.lower for a in alone])
    how["w_star"] = how["F_star"] = EXACT if best.attained else BOUND
    how["F_k_star"] = how["Gamma"] = EXACT if attained else BOUND
    how["D"] = EXACT if best.unique else "to one of the minimisers" if best.attained else NO_MINIMISER
    how["xi"] = EXACT if strict else INFINITE
    return {
        "w_star": best.w,
        "F_star": best.value,
        "F_k_star": least,
        "Gamma": max(0.0, best.value - float(problem.weights @ least)),
        "D": float(np.linalg.norm(x0 - best.w.ravel())),
        "xi": max(float(np.linalg.norm(a.w - best.w)) for a in alone) if strict else math.inf,
    }


def _heterogeneity(problem: Objective, best: Solution, here: np.ndarray, how: dict[str, str]) -> dict[str, Any]:
    """zeta_star, and B at the centre, where the clients' gradients are ``here`` (K, size)."""
    p, at_star = problem.weights, problem.client_gradients(best.w).reshape(len(here), -1)
    zeta_star = math.sqrt(float(p @ np.sum(at_star**2, axis=1)))
    how["zeta_star"] = EXACT if best.attained else NO_MINIMISER
    size, B = float(np.linalg.norm(p @ here)), math.inf
    if size > 1e-14 * (1.0 + zeta_star):
        B = math.sqrt(float(p @ np.sum(here**2, axis=1))) / size
    how["B"] = EXACT if math.isfinite(B) else INFINITE
    return {"zeta_star": zeta_star, "B": B}


def _roughest_at_zero(problem: Objective) -> bool:
    """Whether l'' attains its supremum on every row at w = 0, where then Hessians do."""
    kind, zero = problem.traits, np.zeros(problem.size)
    if kind.several:
        return kind.multinomial and 1.0 / kind.outputs == kind.smoothness  # equal halves
    if not kind.curved:
        return False
    return bool((problem.curvatures(zero) == kind.smoothness * problem.per_row).all())


def _gram(problem: Objective, k: int) -> np.ndarray:
    """X_k'X_k / n_k, dense (d, d), with rows times the roots of their relative weights."""
    fed, rows = problem.federation, slice(int(problem.federation.ptr[k]), int(problem.federation.ptr[k + 1]))
    X, s = fed.X[rows], problem.relative_weights
    if s is not None:
        root = np.sqrt(s[rows])[:, None]
        X = X.multiply(root).tocsr() if fed.is_sparse else X * root
    with np.errstate(over="ignore", invalid="ignore"):
        S = X.T @ X
        S = np.asarray(S.toarray() if fed.is_sparse else S) / X.shape[0]
    if not np.isfinite(S).all():
        most = float(np.abs(fed.X.data if fed.is_sparse else fed.X).max())
        raise bad("constants: features", "have squares whose sums are numbers", f"{most:g}", "scale the features")
    return S


def _largest(S: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(S)[-1])


def _ridge(problem: Objective) -> np.ndarray:
    """Hessian of the ridge term for one output, (d, d)."""
    return np.eye(problem.federation.d) * np.broadcast_to(problem.ridge, problem.size)[: problem.federation.d]


def _least(S: np.ndarray) -> float:
    """Least eigenvalue of a Gram matrix, zero where it is at the level of rounding."""
    lam = np.linalg.eigvalsh(S)
    return float(lam[0]) if lam[0] > 8 * len(S) * np.finfo(float).eps * lam[-1] else 0.0


def _weighed(problem: Objective, rows: np.ndarray) -> np.ndarray:
    """Return numbers of the rows (n,) times their relative weights."""
    return rows if problem.relative_weights is None else problem.relative_weights * rows


def _convexity(
    problem: Objective, grams: list[np.ndarray], c: np.ndarray, radius: float | None, how: dict[str, str]
) -> dict[str, Any]:
    """mu and mu_k: exact for quadratic losses; else l2 on R^d, or a rigorous lower bound on the ball."""
    fed, p = problem.federation, problem.weights
    R, r, h = (0.0, problem.l2, np.zeros(fed.n)) if problem.free is None else (_ridge(problem), 0.0, np.zeros(fed.n))
    if radius is not None and not problem.traits.several:
        h = problem.traits.least_curvature(np.abs(fed.X @ c) + radius * np.sqrt(fed.row_norms2))
    if problem.traits.quadratic:
        mu_k = np.array([_least(S + R) for S in grams]) + r
        mu, label = _least(np.einsum("k,kij->ij", p, np.array(grams)) + R) + r, EXACT
    elif h.any():
        hessians = []
        for k in range(fed.K):
            X, _ = fed.client_rows(k)
            hessians.append((X * problem.weigh(k, h[fed.ptr[k] : fed.ptr[k + 1]])[:, None]).T @ X / X.shape[0] + R)
        mu_k = np.array([max(float(np.linalg.eigvalsh(H)[0]), 0.0) for H in hessians]) + r
        H = np.einsum("k,kij->ij", p, np.array(hessians))
        mu, label = max(float(np.linalg.eigvalsh(H)[0]), 0.0) + r, BOUND_ON_BALL
    else:
        mu_k, mu, label = np.full(fed.K, problem.strong_convexity), problem.strong_convexity, BOUND
    how["mu"] = how["mu_k"] = label
    return {"mu": float(mu), "mu_k": mu_k}


def _zeta(
    problem: Objective, grams: list[np.ndarray], deviation: np.ndarray, radius: float | None
) -> tuple[float, str]:
    """sup of max_k ‖grad F_k - grad F‖; ``deviation`` (K, p) holds grad F_k - grad F at the centre of the ball."""
    fed, p, loss = problem.federation, problem.weights, problem.traits
    if fed.K == 1:
        return 0.0, EXACT
    centre = np.linalg.norm(deviation, axis=1)
    if loss.quadratic:
        mean = np.einsum("k,kij->ij", p, np.array(grams))
        gaps = np.array(grams) - mean
        if np.abs(gaps).max() <= 1e-13 * np.abs(mean).max():  # equal Hessians: the same everywhere
            return float(centre.max()), EXACT
        if radius is None:
            return math.inf, INFINITE
        return math.sqrt(_maxima(gaps @ gaps, np.einsum("kij,kj->ki", gaps, deviation), centre**2, radius).max()), (
            EXACT_ON_BALL
        )
    if not math.isfinite(loss.lipschitz):
        return math.inf, INFINITE if radius is None else UNKNOWN
    everywhere = _spread_of_slopes(problem)
    if radius is None or not math.isfinite(loss.smoothness):
        return everywhere, BOUND
    mean = np.einsum("k,kij->ij", p, np.array(grams))
    # both Hessians, less the common l2, lie between 0 and smoothness * X'X/n
    spread = loss.smoothness * np.maximum([_largest(S) for S in grams], _largest(mean))
    near = float((centre + radius * spread).max())
    return (near, BOUND_ON_BALL) if near < everywhere else (everywhere, BOUND)


def _spread_of_slopes(problem: Objective) -> float:
    """Return a bound of max_k sup_w ‖grad F_k - grad F‖ from the range of every row's slope.

    The deviation is sum_r v_kr l'_r x_r with v_kr = share of row r in client k less its share in F. Slopes lie within
    h_r of m_r: at most ‖sum_r v_kr m_r x_r‖ + sum_r |v_kr| h_r ‖x_r‖. Rows that several clients hold are counted once.
    """
    fed, p, loss = problem.federation, problem.weights, problem.traits
    share = _weighed(problem, np.ones(fed.n)) / np.repeat(fed.sizes, fed.sizes)
    if loss.several:
        middle, half = np.zeros(fed.n), np.full(fed.n, loss.lipschitz)
    else:
        low, high = loss.slope_range(fed.y)
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
    length = half * np.sqrt(fed.row_norms2)
    centres = np.array([_rows_sum(fed, k, share * middle) for k in range(fed.K)])
    far = np.linalg.norm(centres - p @ centres, axis=1)
    if fed.is_sparse or fed.n * fed.d > GROUPED:
        lengths = np.add.reduceat(share * length, fed.ptr[:-1])
        return float((far + (1.0 - 2.0 * p) * lengths + p @ lengths).max())
    _, first, group = np.unique(np.column_stack([fed.X, fed.y]), axis=0, return_index=True, return_inverse=True)
    shares = np.zeros((fed.K, len(first)))
    np.add.at(shares, (np.repeat(np.arange(fed.K), fed.sizes), group.ravel()), share)
    return float((far + np.abs(shares - p @ shares) @ length[first]).max())


def _rows_sum(fed: Federation, k: int, factor: np.ndarray) -> np.ndarray:
    """Return the sum of client k's rows times their factors, (d,)."""
    rows = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
    return np.asarray(fed.X[rows].T @ factor[rows]).ravel()


def _noise(
    problem: Objective,
    grams: list[np.ndarray],
    phi: np.ndarray,
    c: np.ndarray,
    radius: float,
    how: dict[str, str],
    by_weight: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Suprema of sigma_k^2 and G_k^2 over the ball around c, or over R^d (radius inf)."""
    fed, r, loss = problem.federation, problem.l2, problem.traits
    s2, G2 = np.zeros(fed.K), np.full(fed.K, math.inf)
    how["sigma2_k"] = how["G2_k"] = BOUND_ON_BALL if math.isfinite(radius) else BOUND
    if loss.quadratic and math.isfinite(radius):
        g, H = problem.client_gradients(c).reshape(fed.K, -1), np.array(grams) + _ridge(problem)
        parts = [_variance_quadratic(problem, k, c, grams[k], by_weight) for k in range(fed.K)]
        A, beta, const = (phi.reshape(-1, *[1] * np.ndim(v[0])) * np.array(v) for v in zip(*parts, strict=True))
        s2 = _maxima(A, beta, const, radius)
        G2 = _maxima(H @ H + A, np.einsum("kij,kj->ki", H, g) + beta, np.sum(g**2, axis=1) + const, radius)
        how["sigma2_k"] = how["G2_k"] = EXACT_ON_BALL
    elif math.isfinite(loss.lipschitz):
        norms = np.sqrt(fed.row_norms2)
        steep = _weighed(problem, np.full(fed.n, loss.lipschitz))
        share = np.ones(fed.n)
        if not loss.several and math.isfinite(radius):  # |slope| of a convex loss is largest at an end of the reach
            steep = _steepest(problem, fed.X @ c, radius * norms)
        if by_weight and problem.relative_weights is not None:
            share, s = problem.relative_weights, problem.relative_weights
            steep = steep / np.where(s > 0.0, s, 1.0)
        # variance <= second moment, and the l2 term is not random
        s2 = phi * np.add.reduceat(share * (norms * steep) ** 2, fed.ptr[:-1]) / fed.sizes
        shift = r * (float(np.linalg.norm(c)) + radius) if r > 0.0 else 0.0
        G2 = np.add.reduceat(share * (norms * steep + shift) ** 2, fed.ptr[:-1]) / fed.sizes
    elif loss.quadratic and radius == math.inf:
        at_zero = problem.gradient_variance(problem.unflatten(np.zeros(problem.size)), by_weight)
        same = np.array([_one_direction(fed, k) for k in range(fed.K)])
        s2 = np.where(phi > 0.0, np.where(same, phi * at_zero, math.inf), 0.0)
        how["sigma2_k"] = EXACT
    else:
        s2[phi > 0.0] = math.inf
    for name, v in (("sigma2_k", s2), ("G2_k", G2)):
        if not np.isfinite(v).all():
            how[name] = UNKNOWN if math.isfinite(radius) else INFINITE
    if not phi.any():
        how["sigma2_k"] = EXACT
    return np.maximum(s2, 0.0), np.maximum(G2, 0.0)  # not below it by rounding


def _maxima(A: np.ndarray, beta: np.ndarray, const: np.ndarray, radius: float) -> np.ndarray:
    """Maxima of d'A d + 2 beta'd + const over ‖d‖ <= radius; A (K, p, p), beta (K, p), const (K,)."""
    from fedconvex.solvers.minimax.ball import largest_on_ball

    return np.asarray(const + 2.0 * largest_on_ball(A, -beta, radius))


def _one_direction(fed: Federation, k: int) -> bool:
    """Whether client k's rows are all x or -x: then their squares have one Hessian, and the same noise for all w."""
    X, _ = fed.client_rows(k)
    return bool(np.all(np.all(X == X[0], axis=1) | np.all(X == -X[0], axis=1)))


def _steepest(problem: Objective, z: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Return max |l'| over scores within reach of z, (n,)."""
    ends = np.column_stack([z - reach, z + reach])
    row_losses.row_slopes(problem.row_loss, ends, problem.row_labels)
    return np.abs(ends).max(axis=1)


def _variance_quadratic(
    problem: Objective, k: int, c: np.ndarray, S: np.ndarray, by_weight: bool
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return A, beta, const with V_k(c + d) = d'A d + 2 beta'd + const, for squared loss."""
    X, y = problem.federation.client_rows(k)
    sX = problem.weigh(k, X)
    n, q, e = X.shape[0], np.einsum("ij,ij->i", sX, sX), problem.weigh(k, X @ c - y)
    if by_weight:  # probabilities s/n of rows as they are, in the place of 1/n of rows times s
        q, g = np.einsum("ij,ij->i", sX, X), (X @ c - y)[:, None] * X
        g = g - problem.weigh(k, g).mean(axis=0)
        A, beta = (X * q[:, None]).T @ X / n - S @ S, sX.T @ np.einsum("ij,ij->i", X, g) / n
        return 0.5 * (A + A.T), beta, float(np.mean(problem.weigh(k, np.sum(g**2, axis=1))))
    g = e[:, None] * X
    g = g - g.mean(axis=0)  # centred before it is squared
    A = (X * q[:, None]).T @ X / n - S @ S
    beta = sX.T @ np.einsum("ij,ij->i", X, g) / n
    return 0.5 * (A + A.T), beta, float(np.mean(np.sum(g**2, axis=1)))


def _flat(who: str, w: Any, size: int) -> np.ndarray:
    """Return a model as a vector."""
    return vector(who, raw(who, w).ravel(), size)
