"""Constants of a problem: smoothness, convexity, noise and heterogeneity, each with how it was obtained.

Definitions and exact formulas stand in docs/constants.md: F = sum_k
p_k F_k, w* minimises F, w_k* minimises F_k, all norms Euclidean. With a mini-batch of B out of n rows the noise carries
phi = (n - B)/((n - 1) B) without replacement and 1/B with replacement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from fedconvex._check import bad, flag, real, vector, whole
from fedconvex.kernels import row_losses
from fedconvex.solvers.exact import solve
from fedconvex.solvers.objective import Objective
from fedconvex.solvers.solution import Solution

__all__ = [
    "AT_CENTRE",
    "BOUND",
    "BOUND_ON_BALL",
    "EXACT",
    "EXACT_ON_BALL",
    "INFINITE",
    "MEASURED",
    "Constants",
    "ball_maximum",
    "noise_factor",
]

EXACT = "exact"
EXACT_ON_BALL = "exact on a ball"
BOUND = "rigorous bound"
BOUND_ON_BALL = "rigorous bound on a ball"
INFINITE = "infinite"
UNKNOWN = "no finite bound known"
MEASURED = "measured along the run"
AT_CENTRE = "exact at the centre"


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Constants of a federated problem; ``how[name]`` says how each was obtained.

    Build one by hand to evaluate a bound for a class of problems, or take ``Problem.constants()``. Entries that do not
    apply are None.

    Attributes
    ----------
    L, mu : float
        Largest client smoothness max_k L_k, and strong convexity of F.
    L_k, mu_k : array (K,)
        Smoothness and strong convexity of every F_k.
    L_s : float
        Smoothness of the roughest single-row loss (with its l2 term).
    w_star, F_star : array, float
        Minimiser and minimum of F.
    F_k_star : array (K,)
        Minima of the clients' own objectives (lower bounds where they are not attained).
    Gamma : float
        F* - sum_k p_k F_k*, at least 0.
    D : float
        Distance of the start from w*.
    sigma2_k, sigma2 : array (K,), float
        sup of the mini-batch gradient variance E‖g_k - grad F_k‖^2 (over the ball, over R^d, or at one point), and its
        maximum over clients.
    sigma2_star_k, sigma2_star : array (K,), float
        The same at w*, and its mean sum_k p_k sigma2_star_k.
    G2_k, G2 : array (K,), float
        sup of E‖g_k‖^2 over the same set, and its maximum over clients.
    zeta : float
        sup over models of max_k ‖grad F_k - grad F‖ (on the ball if one is given).
    zeta_star : float
        sqrt(sum_k p_k ‖grad F_k(w*)‖^2).
    xi : float
        max_k ‖w_k* - w*‖.
    B : float
        Dissimilarity sqrt(sum_k p_k ‖grad F_k‖^2)/‖grad F‖ at ``center``.
    K, p : int, array (K,)
        Number of clients and their weights.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> Constants(L=4.0, mu=0.5).kappa
    8.0
    """

    L: float | None = None
    mu: float | None = None
    L_k: np.ndarray | None = None
    mu_k: np.ndarray | None = None
    L_s: float | None = None
    w_star: np.ndarray | None = None
    F_star: float | None = None
    F_k_star: np.ndarray | None = None
    Gamma: float | None = None
    D: float | None = None
    sigma2_k: np.ndarray | None = None
    sigma2: float | None = None
    sigma2_star_k: np.ndarray | None = None
    sigma2_star: float | None = None
    G2_k: np.ndarray | None = None
    G2: float | None = None
    zeta: float | None = None
    zeta_star: float | None = None
    xi: float | None = None
    B: float | None = None
    K: int | None = None
    p: np.ndarray | None = None
    how: Mapping[str, str] = field(default_factory=dict)

    @property
    def kappa(self) -> float:
        """Condition number L/mu."""
        if self.L is None or not self.mu:
            return math.inf
        return self.L / self.mu

    def __str__(self) -> str:
        lines = []
        for f in fields(self):
            v = getattr(self, f.name)
            if v is None or f.name in ("how", "p", "K", "w_star"):
                continue
            shown = f"{v:.6g}" if np.ndim(v) == 0 else f"{np.min(v):.4g} ... {np.max(v):.4g} over {np.size(v)} clients"
            lines.append(f"{f.name:>14} = {shown:<42} {self.how.get(f.name, '')}")
        return "\n".join(lines)


def noise_factor(n: Any, batch_size: Any, replacement: bool) -> Any:
    """Return phi(n, B): 1/B with replacement, (n - B)/((n - 1) B) without.

    Examples
    --------
    >>> from fedconvex.constants import noise_factor
    >>> noise_factor(5, 2, False), noise_factor(5, 2, True)
    (0.375, 0.5)
    """
    n, B = np.asarray(n, dtype=float), np.asarray(batch_size, dtype=float)
    if (B < 1).any() or (n < 1).any() or (not replacement and (B > n).any()):
        raise bad(
            "noise_factor: batch_size", "lie in 1, ..., n (or exceed n with replacement)", f"{batch_size}, n = {n}"
        )
    phi = 1.0 / B if replacement else (n - B) / (np.maximum(n - 1.0, 1.0) * B)
    return float(phi) if np.ndim(phi) == 0 else phi


def ball_maximum(A: np.ndarray, beta: np.ndarray, c: float, radius: float) -> float:
    """Return max of d'A d + 2 beta'd + c over ‖d‖ <= radius, for positive semidefinite A: a trust-region problem.

    The maximum lies on the sphere and d_j = beta_j/(nu - lam_j) in eigencoordinates, where nu > lam_max solves the
    secular equation sum_j (beta_j/(nu - lam_j))^2 = radius^2; in the hard case a multiple of the top eigenvector is
    added to reach the sphere.

    Parameters
    ----------
    A : array (d, d)
        Symmetric, positive semidefinite.
    beta : array (d,)
    c, radius : float
        radius >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.constants import ball_maximum
    >>> ball_maximum(np.diag([1.0, 2.0]), np.zeros(2), 0.0, 3.0)
    18.0
    """
    if real("ball_maximum: radius", radius, low=0.0) == 0.0:
        return float(c)
    lam, V = np.linalg.eigh(A)
    b = V.T @ beta
    top, scale = lam[-1], max(abs(lam[-1]), float(np.linalg.norm(b)) / radius, 1e-300)
    is_top = lam >= top - 1e-13 * scale

    def norm2(nu: float) -> float:
        return float(np.sum((b / (nu - lam)) ** 2))

    low, high = top + np.linalg.norm(b[is_top]) / radius, top + np.linalg.norm(b) / radius
    rest = b[~is_top] / (top - lam[~is_top])
    if np.linalg.norm(b[is_top]) <= 1e-15 * scale * radius and rest @ rest <= radius**2:  # hard case
        d = np.zeros_like(b)
        d[~is_top] = rest
        d[-1] = math.sqrt(max(radius**2 - rest @ rest, 0.0))
    else:
        low = max(low, np.nextafter(top, math.inf))
        for _ in range(200):  # bisection: norm2 decreases in nu
            nu = 0.5 * (low + high)
            if nu <= low or nu >= high:
                break
            low, high = (nu, high) if norm2(nu) > radius**2 else (low, nu)
        nu = high
        d = b / np.maximum(nu - lam, 1e-300)
        d *= radius / np.linalg.norm(d)
    return float(d @ (lam * d) + 2.0 * b @ d + c)


def problem_constants(
    problem: Objective,
    best: Solution,
    *,
    batch_size: int | None = None,
    replacement: bool = False,
    start: Any = None,
    center: Any = None,
    radius: float | None = None,
) -> Constants:
    """Compute all constants of an objective whose solution is ``best``; see `Problem.constants`."""
    fed, r, p = problem.federation, problem.l2, problem.weights
    how: dict[str, str] = {}
    if radius is not None:
        radius = real("Problem.constants: radius", radius, low=0.0)
    x0 = np.zeros(problem.size) if start is None else vector("Problem.constants: start", np.ravel(start), problem.size)
    c0 = best.w.ravel() if center is None else vector("Problem.constants: center", np.ravel(center), problem.size)
    replacement = flag("Problem.constants: replacement", replacement)
    if batch_size is not None:
        batch_size = whole("Problem.constants: batch_size", batch_size, low=1)
    if batch_size is None:
        replacement = False  # full batches are not random
    B = fed.sizes if batch_size is None else np.full(fed.K, batch_size)
    if batch_size is not None and not replacement and batch_size > fed.sizes.min():
        k = int(np.argmin(fed.sizes))
        raise bad(
            "Problem.constants: batch_size",
            f"lie in 1, ..., {fed.sizes.min()} (client {fed.labels[k]} has {fed.sizes.min()} rows)",
            batch_size,
        )
    phi = noise_factor(fed.sizes, B, replacement)
    grams = [_gram(problem, k) for k in range(fed.K)]
    v: dict[str, Any] = {"K": fed.K, "p": p}

    # smoothness and convexity
    s = problem.traits.smoothness
    top = np.array([_largest(S) for S in grams])
    v["L_k"] = s * top + r if math.isfinite(s) else np.full(fed.K, math.inf)
    v["L"] = float(v["L_k"].max())
    how["L_k"] = how["L"] = INFINITE if not math.isfinite(s) else EXACT if _roughest_at_zero(problem) else BOUND
    row_norms = _row_norms2(problem)
    v["L_s"] = float(s * row_norms.max() + r) if math.isfinite(s) else math.inf
    how["L_s"] = how["L"]
    v.update(_convexity(problem, grams, c0, radius, how))

    # optima
    v["w_star"], v["F_star"] = best.w, best.value
    how["w_star"] = how["F_star"] = EXACT if best.attained else BOUND
    alone = [solve(problem.alone(k), None) for k in range(fed.K)]
    v["F_k_star"] = np.array([a.value if a.attained else a.lower for a in alone])
    attained = best.attained and all(a.attained for a in alone)
    v["Gamma"] = max(0.0, best.value - float(p @ v["F_k_star"]))
    how["F_k_star"] = how["Gamma"] = EXACT if attained else BOUND
    v["D"] = float(np.linalg.norm(x0 - best.w.ravel()))
    how["D"] = EXACT if best.unique else "to one of the minimisers" if best.attained else "to no minimiser"
    strict = attained and all(a.unique for a in alone)
    v["xi"] = max(float(np.linalg.norm(a.w - best.w)) for a in alone) if strict else math.inf
    how["xi"] = EXACT if strict else INFINITE

    # heterogeneity
    at_star = problem.client_gradients(best.w).reshape(fed.K, -1)
    v["zeta_star"] = math.sqrt(float(p @ np.sum(at_star**2, axis=1)))
    how["zeta_star"] = EXACT if best.attained else "at no minimiser"
    here = problem.client_gradients(problem.unflatten(c0)).reshape(fed.K, -1)
    mean = p @ here
    size = float(np.linalg.norm(mean))
    v["B"] = math.sqrt(float(p @ np.sum(here**2, axis=1))) / size if size > 1e-14 * (1.0 + v["zeta_star"]) else math.inf
    how["B"] = EXACT if math.isfinite(v["B"]) else INFINITE
    v["zeta"], how["zeta"] = _zeta(problem, grams, here - mean, radius)

    # noise
    noise = problem.gradient_variance(best.w)
    v["sigma2_star_k"], v["sigma2_star"] = phi * noise, float(p @ (phi * noise))
    how["sigma2_star_k"] = how["sigma2_star"] = how["zeta_star"]
    if radius is None and center is not None:
        v["sigma2_k"] = phi * problem.gradient_variance(problem.unflatten(c0))
        v["G2_k"] = np.sum(here**2, axis=1) + v["sigma2_k"]
        how["sigma2_k"] = how["G2_k"] = AT_CENTRE
    else:
        reach = math.inf if radius is None else radius
        v["sigma2_k"], v["G2_k"] = _noise(problem, grams, phi, c0, reach, row_norms, how)
    for name in ("sigma2", "G2"):
        v[name], how[name] = float(v[f"{name}_k"].max()), how[f"{name}_k"]
    return Constants(how=how, **v)


def _roughest_at_zero(problem: Objective) -> bool:
    """Whether l'' attains its supremum on every row at w = 0, where then Hessians do."""
    kind, zero = problem.traits, np.zeros(problem.size)
    if kind.several:
        return kind.multinomial and 1.0 / kind.outputs == kind.smoothness  # equal halves
    if not kind.curved:
        return False
    return bool(
        (problem.curvatures(zero) == kind.smoothness * np.repeat(problem.row_weights, problem.federation.sizes)).all()
    )


def _gram(problem: Objective, k: int) -> np.ndarray:
    """X_k'X_k / n_k, dense (d, d)."""
    fed = problem.federation
    X = fed.X[int(fed.ptr[k]) : int(fed.ptr[k + 1])]
    S = X.T @ X
    return np.asarray(S.toarray() if fed.is_sparse else S) / X.shape[0]


def _largest(S: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(S)[-1])


def _least(S: np.ndarray) -> float:
    """Least eigenvalue of a Gram matrix, zero where it is at the level of rounding."""
    lam = np.linalg.eigvalsh(S)
    return float(lam[0]) if lam[0] > 8 * len(S) * np.finfo(float).eps * lam[-1] else 0.0


def _row_norms2(problem: Objective) -> np.ndarray:
    X = problem.federation.X
    return (
        np.asarray(X.multiply(X).sum(axis=1)).ravel() if problem.federation.is_sparse else np.einsum("ij,ij->i", X, X)
    )


def _convexity(
    problem: Objective, grams: list[np.ndarray], c: np.ndarray, radius: float | None, how: dict[str, str]
) -> dict[str, Any]:
    """mu and mu_k: exact for quadratic losses; else l2 on R^d, or a rigorous lower bound on the ball."""
    fed, r, p = problem.federation, problem.l2, problem.weights
    h = np.zeros(fed.n)
    if radius is not None and not problem.traits.several:
        h = problem.traits.least_curvature(np.abs(fed.X @ c) + radius * np.sqrt(_row_norms2(problem)))
    if problem.traits.quadratic:
        mu_k = np.array([_least(S) for S in grams]) + r
        mu, label = _least(np.einsum("k,kij->ij", p, np.array(grams))) + r, EXACT
    elif h.any():
        hessians = []
        for k in range(fed.K):
            rows = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
            X = fed.X[rows].toarray() if fed.is_sparse else fed.X[rows]
            hessians.append((X * h[rows, None]).T @ X / X.shape[0])
        mu_k = np.array([max(float(np.linalg.eigvalsh(H)[0]), 0.0) for H in hessians]) + r
        H = np.einsum("k,kij->ij", p, np.array(hessians))
        mu, label = max(float(np.linalg.eigvalsh(H)[0]), 0.0) + r, BOUND_ON_BALL
    else:
        mu_k, mu, label = np.full(fed.K, r), r, BOUND
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
        gaps = [S - mean for S in grams]
        if max(np.abs(A).max() for A in gaps) <= 1e-13 * np.abs(mean).max():  # equal Hessians: the same everywhere
            return float(centre.max()), EXACT
        if radius is None:
            return math.inf, INFINITE
        return math.sqrt(
            max(ball_maximum(A @ A, A @ d, float(d @ d), radius) for A, d in zip(gaps, deviation, strict=True))
        ), EXACT_ON_BALL
    if not math.isfinite(loss.lipschitz):
        return math.inf, INFINITE if radius is None else UNKNOWN
    norms = loss.lipschitz * np.add.reduceat(np.sqrt(_row_norms2(problem)), fed.ptr[:-1]) / fed.sizes
    others = np.array([np.delete(norms, k).max() for k in range(fed.K)])
    everywhere = float(((1.0 - p) * (norms + others)).max())
    if radius is None or not math.isfinite(loss.smoothness):
        return everywhere, BOUND
    mean = np.einsum("k,kij->ij", p, np.array(grams))
    # both Hessians, less the common l2, lie between 0 and smoothness * X'X/n
    spread = loss.smoothness * np.maximum([_largest(S) for S in grams], _largest(mean))
    near = float((centre + radius * spread).max())
    return (near, BOUND_ON_BALL) if near < everywhere else (everywhere, BOUND)


def _noise(
    problem: Objective,
    grams: list[np.ndarray],
    phi: np.ndarray,
    c: np.ndarray,
    radius: float,
    row_norms: np.ndarray,
    how: dict[str, str],
) -> tuple[np.ndarray, np.ndarray]:
    """Suprema of sigma_k^2 and G_k^2 over the ball around c, or over R^d (radius inf)."""
    fed, r, loss = problem.federation, problem.l2, problem.traits
    s2, G2 = np.zeros(fed.K), np.full(fed.K, math.inf)
    how["sigma2_k"] = how["G2_k"] = BOUND_ON_BALL if math.isfinite(radius) else BOUND
    if loss.quadratic and math.isfinite(radius):
        gradients = problem.client_gradients(c).reshape(fed.K, -1)
        for k in range(fed.K):
            A, beta, const = _variance_quadratic(problem, k, c, grams[k])
            H, g = grams[k] + r * np.eye(fed.d), gradients[k]
            s2[k] = phi[k] * ball_maximum(A, beta, const, radius)
            G2[k] = ball_maximum(H @ H + phi[k] * A, H @ g + phi[k] * beta, float(g @ g) + phi[k] * const, radius)
        how["sigma2_k"] = how["G2_k"] = EXACT_ON_BALL
    elif math.isfinite(loss.lipschitz):
        norms = np.sqrt(row_norms)
        steep = np.full(fed.n, loss.lipschitz)
        if not loss.several and math.isfinite(radius):  # |slope| of a convex loss is largest at an end of the reach
            steep = _steepest(problem, fed.X @ c, radius * norms)
        # variance <= second moment, and the l2 term is not random
        s2 = phi * np.add.reduceat((norms * steep) ** 2, fed.ptr[:-1]) / fed.sizes
        shift = r * (float(np.linalg.norm(c)) + radius) if r > 0.0 else 0.0
        G2 = np.add.reduceat((norms * steep + shift) ** 2, fed.ptr[:-1]) / fed.sizes
    else:
        s2[phi > 0.0] = math.inf
    for name, v in (("sigma2_k", s2), ("G2_k", G2)):
        if not np.isfinite(v).all():
            how[name] = UNKNOWN if math.isfinite(radius) else INFINITE
    if not phi.any():
        how["sigma2_k"] = EXACT
    return s2, G2


def _steepest(problem: Objective, z: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Return max |l'| over scores within reach of z, (n,)."""
    ends = np.column_stack([z - reach, z + reach])
    row_losses.row_slopes(problem.loss, ends, problem.federation.y)
    return np.abs(ends).max(axis=1)


def _variance_quadratic(
    problem: Objective, k: int, c: np.ndarray, S: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return A, beta, const with V_k(c + d) = d'A d + 2 beta'd + const, for squared loss."""
    fed = problem.federation
    rows = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
    X = fed.X[rows].toarray() if fed.is_sparse else fed.X[rows]
    n, q, e = X.shape[0], np.einsum("ij,ij->i", X, X), X @ c - fed.y[rows]
    g = e[:, None] * X
    g = g - g.mean(axis=0)  # centred before it is squared
    A = (X * q[:, None]).T @ X / n - S @ S
    beta = X.T @ np.einsum("ij,ij->i", X, g) / n
    return 0.5 * (A + A.T), beta, float(np.mean(np.sum(g**2, axis=1)))
