"""The constants of a problem, each with how it was obtained.

Definitions and exact formulas stand in docs/constants.md: F = sum_k p_k F_k, w* minimises F, w_k* minimises F_k, all
norms Euclidean. With a mini-batch of B out of n rows the noise carries phi = (n - B)/((n - 1) B) without replacement
and 1/B with replacement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from fedconvex._check import bad, flag, numeric, wrong_type

EXACT = "exact"
EXACT_ON_BALL = "exact on a ball"
BOUND = "rigorous bound"
BOUND_ON_BALL = "rigorous bound on a ball"
INFINITE = "infinite"
UNKNOWN = "no finite bound known"
MEASURED = "measured along the run"
AT_CENTRE = "exact at the centre"
NO_MINIMISER = "at no minimiser"

ROUNDING = 1e-6  # of weights that sum to one, as of `reweighted`; what is computed of them inherits it
_NUMBERS = ("L", "mu", "L_s", "Gamma", "D", "sigma2", "sigma2_star", "G2", "zeta", "zeta_star", "xi")
_OF_CLIENTS = ("L_k", "mu_k", "sigma2_k", "sigma2_star_k", "G2_k", "p")


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
        Smoothness and strong convexity of every F_k (mu_k below 0 where F_k is not convex).
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
    how : mapping from str to str
        How each was obtained: "exact", "on the ball", "given", ...

    Raises
    ------
    ValueError
        If no problem has such constants: a smoothness, distance, norm or variance below 0; mu above L or L_s; B below
        1; weights below 0 or of another sum than one; a K that counts no clients; arrays that are not of K numbers.
        Rounding passes (a relative 1e-6), and so do infinity and NaN.
    TypeError
        If a constant is not a number, or an array of numbers where it should be.

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

    def __post_init__(self) -> None:
        given, B, K, p = self.__dict__, self.B, self.K, self.p
        sizes = possible("Constants", given, _NUMBERS, _OF_CLIENTS)
        if B is not None and B < 1.0 - ROUNDING:
            raise bad("Constants: B", "be at least 1", B, "a mean of squares is at least the square of the mean")
        if K is not None and (K < 1 or K % 1 != 0):
            raise bad("Constants: K", "be a whole number of clients, at least 1", K)
        if len({*sizes.values(), *([] if K is None else [K])}) > 1:
            shown = ", ".join(f"{n} in {name}" for name, n in sizes.items())
            raise bad("Constants", "have K numbers in each array of clients", f"K = {K}, {shown}")
        if p is not None and abs(float(np.add.reduce(p)) - 1.0) > ROUNDING:
            raise bad("Constants: p", "sum to one", f"a sum of {np.sum(p):.9g}", "divide the weights by their sum")
        for least, most in (("mu", "L"), ("mu", "L_s"), ("mu_k", "L_k")):
            if (low := given[least]) is not None and (high := given[most]) is not None:
                no_steeper(f"Constants: {least}", low, most, high)

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


def possible(who: str, given: Mapping[str, Any], numbers: Sequence[str], arrays: Sequence[str] = ()) -> dict[str, int]:
    """Return the lengths of the arrays, or raise if an entry is below 0, which mu_k may be."""
    sizes = {}
    for name in numbers:
        if (v := given[name]) is not None:
            nonnegative(f"{who}: {name}", v)
    for name in arrays:
        if (v := given[name]) is not None:
            v = v if isinstance(v, np.ndarray) else numeric(f"{who}: {name}", v)
            if name != "mu_k" and np.count_nonzero(v < 0.0):
                nonnegative(f"{who}: {name}", v.min())
            if v.ndim == 1:
                sizes[name] = len(v)
    return sizes


def nonnegative(who: str, v: Any) -> None:
    """Raise if v is below 0 or no number; NaN passes, of which nothing is known."""
    if not isinstance(v, (float, int, np.floating, np.integer)):
        raise wrong_type(who, "be a number", f"{type(v).__name__} {v!r}")
    if v < 0.0:
        raise bad(who, "be nonnegative", v, "leave it out where it is not known")


def no_steeper(who: str, mu: Any, name: str, smooth: Any) -> None:
    """Raise if a strong convexity, or that of a client, exceeds the smoothness of the same function."""
    if np.count_nonzero(np.asarray(mu) > (1.0 + ROUNDING) * np.asarray(smooth)):
        cure = "no function is more strongly convex than it is smooth"
        raise bad(who, f"be at most {name}", f"{mu}, {name} = {smooth}", cure)


def noise_factor(n: Any, batch_size: Any, replacement: bool) -> Any:
    """Return phi(n, B): 1/B with replacement, (n - B)/((n - 1) B) without.

    Parameters
    ----------
    n : int or array
        Rows that are drawn from.
    batch_size : int or array
        B; at most n without replacement.
    replacement : bool
        Whether rows are drawn with replacement.

    Raises
    ------
    ValueError, TypeError
        If n and batch_size are not finite numbers or arrays of one shape, or a batch without replacement exceeds n.

    Examples
    --------
    >>> from fedconvex.constants import noise_factor
    >>> noise_factor(5, 2, False), noise_factor(5, 2, True)
    (0.375, 0.5)
    """
    given, replacement = batch_size, flag("noise_factor: replacement", replacement)
    n, B = numeric("noise_factor: n", n), numeric("noise_factor: batch_size", batch_size)
    known = B.size and n.size and np.isfinite(B).all() and np.isfinite(n).all()
    if not known or (n.ndim * B.ndim > 0 and n.shape != B.shape):
        raise bad("noise_factor", "be given finite numbers, or arrays of one shape", f"{given}, n = {n}")
    if (B < 1).any() or (n < 1).any() or (not replacement and (B > n).any()):
        raise bad(
            "noise_factor: batch_size", "lie in 1, ..., n (or exceed n with replacement)", f"{batch_size}, n = {n}"
        )
    phi = 1.0 / B if replacement else (n - B) / (np.maximum(n - 1.0, 1.0) * B)
    return float(phi) if np.ndim(phi) == 0 else phi
