"""Default step sizes: the step that a theorem gives, from the constants of a problem.

=================== ======================================= ============================================================
function            step                                    theorem
=================== ======================================= ============================================================
`descent_step`      1/L, L of F                             Nesterov, Lectures on Convex Optimization, 2018, Cor. 2.1.2
`local_step`        1/L, L of the roughest client           fedconvex, R1# (docs/theory/fedavg_refined.md)
`batch_step`        1/(2 L), L of mini-batches              Gower et al., ICML 2019, Prop. 3.8 and Theorem 3.1
`decaying_step`     2/(mu (gamma + t))                      Li et al., ICLR 2020, Theorems 1-3
`control_step`      min{1/(81 L), S/(15 N mu)}/(K eta_g)    Karimireddy et al., ICML 2020, Lemma 15
`contraction_step`  2/(L + mu), L of the roughest client    Nesterov 2018, Theorem 2.1.15; see `Scaffnew`
`difference_step`   1/(L (1 + 6 omega/n))                   derived, see `DIANA`
`feedback_step`     1/(L_F + Lt sqrt(2 beta/theta))         Richtarik et al., NeurIPS 2021, Theorem 2; see `EF21`
`similarity_step`   sqrt(2)/delta, or 1/sigma of a leader   derived, see `SDANE`
`even_step`         a/L, a the maximum of a c(a, tau)       derived, see `FedLin`
`invariant_step`    1/L of the quartic where it is <= J(0)  fedconvex, below
`reduction_step`    the least factor of an epoch            Johnson, Zhang, NIPS 2013, Theorem 1 (docs/theory/svrg.md)
=================== ======================================= ============================================================

`error_feedback_step` and `compressed_descent_step` are those of one client: see `ErrorFeedback` and
`CompressedGradientDescent`. `batch_step` is at most half of `local_step`, hence covered by R1# too where clients take
several steps.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from fedconvex._check import bad
from fedconvex.federation import Federation
from fedconvex.loss_traits import traits


class Schedule(NamedTuple):
    """Step eta_t = scale/(shift + t) for step t = 0, 1, ...; ``Decay(*schedule)`` runs it.

    Attributes
    ----------
    scale, shift : float
        2/mu, and gamma.

    Examples
    --------
    >>> from fedconvex.theorems.fedavg_strongly_convex import Schedule
    >>> schedule = Schedule(scale=4.0, shift=64.0)
    >>> schedule.scale / (schedule.shift + 0)  # eta_0
    0.0625
    """

    scale: float  # 2/mu
    shift: float  # gamma


class DefaultStep(NamedTuple):
    """A step size, and where it comes from."""

    value: Any  # float or Schedule
    formula: str
    source: str

    def __str__(self) -> str:
        shown = f"{self.value:.4g} = " if isinstance(self.value, float) else ""
        return f"{shown}{self.formula} ({self.source})"


# ---------------------------------------------------------------- smoothness


class Smoothness(NamedTuple):
    """Smoothness of F, of the roughest client and of the roughest row, each with its l2 term."""

    F: float
    client: float
    row: float
    exact: bool = True  # or upper bounds, where Hessians are too large
    where: str = ""  # " where ...", if not on all of R^d

    @property
    def name(self) -> str:
        """L as formulas write it."""
        return f"L{'' if self.exact else ' (bound)'}{self.where}"


def smoothness_of(fed: Federation, weights: np.ndarray, loss: Any, l2: float, exact: bool = True) -> Smoothness:
    """Return the smoothness of F = sum_k p_k f_k and of its parts.

    Parameters
    ----------
    fed : Federation
    weights : array (K,)
        p_k.
    loss : loss
        Without smoothness, but Lipschitz (hinge), its curvature counts as 1, a scale for `kink_step`; where a loss
        declares ``curvature_below`` (exponential), F <= F(0) bounds it.
    l2 : float
    exact : bool
        Take eigenvalues of X'X, else bounds that do without it.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Squared
    >>> from fedconvex.constants.default_steps import smoothness_of
    >>> fed = Federation.from_clients([(np.array([[2.0], [0.0]]), [0, 0]), (np.array([[1.0]]), [0])])
    >>> smoothness_of(fed, np.array([0.5, 0.5]), Squared(), 0.25)[:3]
    (1.75, 2.25, 4.25)
    """
    kind = traits(loss)
    s = kind.smoothness
    if kind.self_bounded and not kind.several:
        relative = _relative_weights(fed)
        start = float((np.repeat(weights / fed.sizes, fed.sizes) * relative) @ [loss.value(0.0, y) for y in fed.y])
        top = kind.curvature_below(start) * float(fed.row_norms2.max()) + l2
        return Smoothness(top, top, top, False, " where F <= F(0)")
    if math.isinf(s) and math.isfinite(kind.lipschitz):
        s = 1.0
    known, key = _TOPS.setdefault(fed, {}), (np.asarray(weights, np.float64).tobytes(), exact)
    if key not in known:
        known[key] = _tops(fed, weights, exact)
    F, client, row = (s * top + l2 for top in known[key])
    return Smoothness(F, client, row, exact)


_TOPS = WeakKeyDictionary[Federation, dict[tuple[bytes, bool], tuple[float, float, float]]]()  # rows do not change


def _relative_weights(fed: Federation) -> np.ndarray:
    """Return the weights of the rows over the mean of their client's, (n,), or (1,) for equal ones."""
    if fed.sample_weight is None:
        return np.ones(1)
    return fed.sample_weight * np.repeat(fed.sizes / fed.masses, fed.sizes)


def _tops(fed: Federation, weights: np.ndarray, exact: bool) -> tuple[float, float, float]:
    """Return the largest eigenvalues of sum_k (p_k/n_k) X_k'X_k, of a client's X_k'X_k/n_k, and of a row's x x'."""
    X, rough, relative = fed.X, fed.row_norms2, _relative_weights(fed)
    if fed.sample_weight is not None:  # rows times the roots of their relative weights
        root = np.sqrt(relative)[:, None]
        X, rough = X.multiply(root).tocsr() if fed.is_sparse else X * root, rough * relative
    tops, per_row = np.empty(fed.K), np.repeat(weights / fed.sizes, fed.sizes)
    for k in range(fed.K):
        mine, n_k = slice(int(fed.ptr[k]), int(fed.ptr[k + 1])), int(fed.sizes[k])
        if exact:
            tops[k] = _top_eigenvalue(X[mine].T @ X[mine] / n_k)
        else:
            tops[k] = top_eigenvalue_bound(X[mine], rough[mine], np.full(n_k, 1.0 / n_k))
    if exact:
        whole = _top_eigenvalue(X.T @ (X.multiply(per_row[:, None]) if fed.is_sparse else X * per_row[:, None]))
    else:
        whole = top_eigenvalue_bound(X, rough, per_row)
    return whole, float(tops.max()), float(rough.max())


def _top_eigenvalue(gram: Any) -> float:
    gram = gram if isinstance(gram, np.ndarray) else gram.toarray()
    if not np.isfinite(gram).all():  # LAPACK's words for it say nothing of the rows
        raise bad("Federation.X", "have squares that are finite, for a smoothness", "others", "use other units")
    return float(np.linalg.eigvalsh(gram)[-1])


def top_eigenvalue_bound(X: Any, norms2: np.ndarray, weights: np.ndarray) -> float:
    """Upper bound of the largest eigenvalue of A = X'diag(weights)X, without forming it.

    The smaller of its trace and of max_j (Bv)_j / v_j with B = |X|'diag(weights)|X|, which bounds the Perron root of B,
    and so that of A, for every positive v (Collatz and Wielandt); power steps improve v.

    Parameters
    ----------
    X : array or CSR (n, d)
    norms2 : array (n,)
        Squared norms of the rows.
    weights : array (n,)
        Nonnegative.
    """
    best, size = float(weights @ norms2), abs(X)
    v = np.ones(X.shape[1])
    for _ in range(20):
        u = size.T @ (weights * (size @ v))
        best = min(best, float(np.max(u / v)))
        v = u / max(float(u.max()), 1e-300) + 1e-6
    return best * (1.0 + 1e-12)


def expected_smoothness(n: Any, batch_size: Any, L: float, L_row: float, replacement: bool = False) -> float:
    """Return the expected smoothness of mini-batches of b out of n rows, the largest over such groups of rows.

    n (b-1)/(b (n-1)) L + (n-b)/(b (n-1)) L_row with b = min(batch_size, n): Gower et al. 2019, Proposition 3.8; with
    replacement (b-1)/b L + 1/b L_row.

    Examples
    --------
    >>> from fedconvex.constants.default_steps import expected_smoothness
    >>> [expected_smoothness([5], b, L=1.0, L_row=3.0) for b in (1, 3, 5)]
    [3.0, 1.3333333333333335, 1.0]
    """
    n = np.asarray(n)
    if replacement:
        b = np.asarray(batch_size, dtype=float)
        return float(np.max((b - 1.0) / b * L + 1.0 / b * L_row))
    b, m = np.minimum(batch_size, n).astype(float), np.maximum(n - 1.0, 1.0)
    return float(np.max(n * (b - 1.0) / (b * m) * L + (n - b) / (b * m) * L_row))


# ---------------------------------------------------------------- steps


def _inverse(L: float) -> float:
    """Return 1/L, or raise if there is no such step."""
    if not 0.0 < L < math.inf:
        got = "a loss of unbounded curvature" if L > 0.0 else "no curvature at all"
        raise bad("the default step size", "come from a positive, finite smoothness", got, "give a step size")
    return 1.0 / L


def descent_step(smooth: Smoothness) -> DefaultStep:
    """Return 1/L of F, for gradient descent: F(w_t) - F* <= 2 L ‖w_0 - w*‖^2/(t + 4)."""
    return DefaultStep(_inverse(smooth.F), f"1/({smooth.name} of F)", "Nesterov 2018, Corollary 2.1.2")


def local_step(smooth: Smoothness) -> DefaultStep:
    """Return 1/L of the roughest client, for several full gradient steps at every client."""
    return DefaultStep(_inverse(smooth.client), f"1/{smooth.name}", "fedconvex, R1#")


def batch_step(smooth: Smoothness, sizes: Any, batch_size: Any, replacement: bool = False) -> DefaultStep:
    """Return 1/(2 L) with the expected smoothness L of mini-batches of clients with so many rows.

    Pooled rows are one client: ``smooth._replace(client=smooth.F)``.
    """
    rough = expected_smoothness(sizes, batch_size, smooth.client, smooth.row, replacement)
    return DefaultStep(_inverse(2.0 * rough), f"1/(2 {smooth.name} of mini-batches)", "Gower et al. 2019, Theorem 3.1")


def kink_step(smooth: Smoothness, mu: float) -> DefaultStep:
    """Return 2/(mu (t + t_0)) with t_0 = 2 L/mu, for losses with a kink: the first step is that of a curvature of 1.

    Lacoste-Julien, Schmidt, Bach (arXiv:1212.2002) have t_0 = 1; a later start takes out the first, wild steps.
    """
    _inverse(smooth.F)
    if not mu > 0.0:
        raise bad(
            "the default step size", "come with l2 > 0 for a loss with a kink", f"l2 = {mu:g}", "give a step size"
        )
    shift = 2.0 * smooth.F / mu
    formula = f"2/(l2 (t + {shift:.4g})), decaying: hinge has a kink"
    return DefaultStep(Schedule(2.0 / mu, shift), formula, "after Lacoste-Julien et al. 2012")


def decaying_step(L: float, mu: float, local_steps: int) -> DefaultStep:
    """Return 2/(mu (gamma + t)), gamma = max{8 L/mu, E}, for FedAvg with sampled clients.

    Examples
    --------
    >>> from fedconvex.constants.default_steps import decaying_step
    >>> decaying_step(4.0, 0.5, 5).value
    Schedule(scale=4.0, shift=64.0)
    """
    value = Schedule(2.0 / mu, max(8.0 * L / mu, float(local_steps)))
    return DefaultStep(value, f"2/(mu ({value.shift:.4g} + t)), t local steps", "Li et al. 2020, Theorems 1-3")


def control_step(L: float, mu: float, N: int, S: int, local_steps: int, server_step: float) -> DefaultStep:
    """Return the largest local step of SCAFFOLD's theorem, for S of N clients.

    Examples
    --------
    >>> from fedconvex.constants.default_steps import control_step
    >>> control_step(L=1 / 81, mu=0.0, N=10, S=10, local_steps=2, server_step=1.0).value
    0.5
    """
    value = min(1.0 / (81.0 * L), S / (15.0 * N * mu) if mu > 0.0 else math.inf) / (local_steps * server_step)
    formula = "min{1/(81 L), S/(15 N mu)}/(local_steps server_step)"
    return DefaultStep(value, formula, "Karimireddy et al. 2020, Lemma 15")


def contraction_step(smooth: Smoothness, mu: float) -> DefaultStep:
    """Return 2/(L + mu), at which gradient steps of all clients contract most.

    Examples
    --------
    >>> from fedconvex.constants.default_steps import Smoothness, contraction_step
    >>> contraction_step(Smoothness(1.0, 3.0, 9.0), 1.0).value
    0.5
    """
    value = 2.0 * _inverse(smooth.client + mu)
    return DefaultStep(value, f"2/({smooth.name} + mu)", "Nesterov 2018, Theorem 2.1.15")


def even_step(smooth: Smoothness, local_steps: int) -> DefaultStep:
    """Return a/L at which 1 - 2 a c mu/L, the factor of a round of FedLin, is least.

    c = 1 - delta - (a/2) (1 + delta)^2, delta = s a, s = (tau - 1)/(2 tau); (a c)' = 1 - (1 + 2 s) a - 3 s a^2
    - 2 s^2 a^3 falls in a, and its root is the maximum.

    Examples
    --------
    >>> from fedconvex.constants.default_steps import Smoothness, even_step
    >>> [round(even_step(Smoothness(1.0, 1.0, 1.0), tau).value, 3) for tau in (1, 5, 10**6)]
    [1.0, 0.423, 0.379]
    """
    s = 0.5 * (local_steps - 1.0) / local_steps
    a = (
        1.0
        if s == 0.0
        else float(min(r.real for r in np.roots([-2.0 * s * s, -3.0 * s, -1.0 - 2.0 * s, 1.0]) if r.real > 0))
    )
    return DefaultStep(a * _inverse(smooth.client), f"{a:.4g}/{smooth.name}", "derived, see FedLin")


def difference_step(smooth: Smoothness, omega: float, n: int) -> DefaultStep:
    """Return 1/(L (1 + 6 omega/n)) for compressed differences of n clients.

    Examples
    --------
    >>> from fedconvex.constants.default_steps import Smoothness, difference_step
    >>> difference_step(Smoothness(1.0, 2.0, 9.0), omega=2.0, n=4).value
    0.125
    """
    value = _inverse(smooth.client) / (1.0 + 6.0 * omega / n)
    return DefaultStep(value, f"1/({smooth.name} (1 + 6 omega/n))", "derived, see DIANA")


def feedback_step(smooth: Smoothness, L_mean: float, delta: float) -> DefaultStep:
    """Return 1/(L_F + Lt sqrt(2 beta/theta)), theta = 1 - sqrt(1 - delta), beta = (1 - delta)/theta.

    Lt is the root of the mean square of the clients' L.

    Examples
    --------
    >>> from fedconvex.constants.default_steps import Smoothness, feedback_step
    >>> feedback_step(Smoothness(2.0, 4.0, 9.0), L_mean=3.0, delta=1.0).value
    0.5
    """
    theta = 1.0 - math.sqrt(1.0 - delta)
    value = 1.0 / (1.0 / _inverse(smooth.F) + L_mean * math.sqrt(2.0 * (1.0 - delta)) / theta)
    return DefaultStep(value, f"1/({smooth.name} of F + Lt sqrt(2 beta/theta))", "Richtarik et al. 2021, Theorem 2")


def error_feedback_step(smooth: Smoothness, mu: float, delta: float) -> DefaultStep:
    """Return (2/(L + mu)) (1 - s)/(1 + s), s = sqrt(1 - delta): the step of the least factor for one client.

    Examples
    --------
    >>> from fedconvex.constants.default_steps import Smoothness, error_feedback_step
    >>> error_feedback_step(Smoothness(3.0, 3.0, 3.0), mu=1.0, delta=0.75).value
    0.16666666666666666
    """
    s, source = math.sqrt(1.0 - delta), "Thomsen, Taylor, Dieuleveut 2025 (docs/theory/error_feedback.md)"
    value = 2.0 * (1.0 - s) / ((1.0 / _inverse(smooth.client) + mu) * (1.0 + s))
    return DefaultStep(value, f"2/({smooth.name} + mu) (1 - s)/(1 + s), s = sqrt(1 - delta)", source)


def compressed_descent_step(smooth: Smoothness, mu: float, delta: float) -> DefaultStep:
    """Return 2/((1 + s) L + (1 - s) mu), s = sqrt(1 - delta): the step of the least factor for one client.

    Examples
    --------
    >>> from fedconvex.constants.default_steps import Smoothness, compressed_descent_step
    >>> compressed_descent_step(Smoothness(3.0, 3.0, 3.0), mu=1.0, delta=0.75).value
    0.4
    """
    s, source = math.sqrt(1.0 - delta), "docs/theory/compressed_descent.md"
    value = 2.0 / ((1.0 + s) / _inverse(smooth.client) + (1.0 - s) * mu)
    return DefaultStep(value, f"2/((1 + s) {smooth.name} + (1 - s) mu), s = sqrt(1 - delta)", source)


def similarity_step(
    problem: Any, smooth: Smoothness, leader: int | None = None, accuracy: float | None = None
) -> DefaultStep:
    """Return sqrt(2)/delta, delta the dissimilarity of the clients' Hessians; with a leader 1/sigma, of it and F.

    Where clients solve to an accuracy theta only, (1 - theta^2)/delta.

    At most 10^6/L: any smaller step is as good for the theorems, and larger ones would be divided by rounding.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.constants.default_steps import Smoothness, similarity_step
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [1.0])]), Squared())
    >>> similarity_step(problem, Smoothness(2.5, 4.0, 4.0), leader=0).value  # Hessians 1 and 4, F has 2.5
    0.6666666666666666
    """
    from fedconvex.constants.similarity import leader_dissimilarity, second_order_dissimilarity

    if leader is None:
        found, root = second_order_dissimilarity(problem), math.sqrt(2.0)
        formula, source = "sqrt(2)/delta", "derived, see SDANE"
        if accuracy is not None:
            root, formula = 1.0 - accuracy**2, "(1 - theta^2)/delta"
    else:
        found, root = leader_dissimilarity(problem, leader), 1.0
        formula, source = "1/sigma", "Hendrikx et al. 2020; derived, see DANE"
    least = 1e-6 / _inverse(smooth.client)
    bound = "" if found.exact else ", a bound that does not see similarity"
    return DefaultStep(root / max(found.value, least), f"{formula}, of Hessians of clients{bound}", source)


def reduction_step(L: float, L_row: float, mu: float, inner_steps: int, noise_factor: float) -> DefaultStep:
    """Return the step of SVRG at which the factor of an epoch is least.

    Examples
    --------
    >>> from fedconvex.constants.default_steps import reduction_step
    >>> round(reduction_step(L=1.0, L_row=1.0, mu=0.1, inner_steps=500, noise_factor=1.0).value, 4)
    0.082
    """
    a, c, A = (
        (1.0 - noise_factor) * L + 2.0 * noise_factor * L_row,
        2.0 * noise_factor * L_row,
        1.0 / (mu * inner_steps),
    )
    value = A / (a * A + math.sqrt(a**2 * A**2 + c * A))
    return DefaultStep(value, "A/(a A + sqrt(a^2 A^2 + 2 phi L_s A)), A = 1/(mu m)", "Johnson, Zhang 2013, Theorem 1")


def invariant_step(environments: Any) -> DefaultStep:
    """1/L for IRMv1 with squared loss, L = ‖sum_e S_e‖ (1 + 4 sqrt(lam J_0)) + 2 lam sum_e ‖S_e‖ q_e, J_0 = J(0).

    Derived here. Where J <= J_0, |g_e| <= sqrt(J_0/lam), and the mean of (x'w - y)^2 is at most 2 J_0 in every
    environment, so that ‖2 S_e w - b_e‖^2 = ‖E x (2 x'w - y)‖^2 <= ‖S_e‖ q_e with q_e = (2 sqrt(2 J_0) + sqrt(c_e))^2.
    Hess J = sum_e (1 + 4 lam g_e) S_e + 2 lam sum_e (2 S_e w - b_e)(2 S_e w - b_e)' has norm at most L there. A step of
    at most 1/L from such a w never leaves: along it J falls for as long as it has not left.
    """
    S, c, lam = environments.S, environments.c, environments.lam
    J = float(c.sum()) / 2.0
    sizes = np.linalg.norm(S, 2, axis=(1, 2))
    bend = 2.0 * lam * float(sizes @ (2.0 * math.sqrt(2.0 * J) + np.sqrt(c)) ** 2) if lam else 0.0
    L = float(np.linalg.norm(S.sum(axis=0), 2)) * (1.0 + 4.0 * math.sqrt(lam * J)) + bend
    return DefaultStep(_inverse(L), "1/L where J <= J(0)", "fedconvex, constants.default_steps.invariant_step")
