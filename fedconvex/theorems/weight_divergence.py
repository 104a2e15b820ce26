"""Weight divergence of FedAvg from centralised descent: Zhao et al. (2018), Proposition 3.1, and a convex form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.assumptions import same_conditionals
from fedconvex.theorems.parts.rounding import model_rounding

__all__ = [
    "STATEMENT",
    "THEOREMS",
    "WEIGHT_DIVERGENCE",
    "class_shares",
    "divergence",
    "divergence_convex",
    "divergence_zhao",
    "gradient_gaps",
    "label_distance",
]

_ZHAO = "Zhao et al. 2018, arXiv:1806.00582, Proposition 3.1 (re-derived)"
CONVEX = "fedconvex, weight divergence of convex FedAvg (docs/theory/weight_divergence.md)"

WEIGHT_DIVERGENCE = Quantity(
    "‖w_federated - w_centralised‖ after a round", "weight divergence", dimension=Dimension.LENGTH, least=0.0
)

STATEMENT = Statement(
    page="weight_divergence",
    title="Weight divergence",
    scope=EVERYWHERE,
    setting="""
Clients with shares p_k of the rows; T local full-gradient steps of size eta between synchronisations, against
gradient descent on F = sum p_k F_k with the same eta. w_f, w_c: the two models after a synchronisation,
w_c^j: the centralised model j steps into the round.
""",
    assumptions="""
Zhao: F_k(w) = sum_y p_k(y) l_y(w): **all clients share the class conditionals** and differ in their class shares
p_k(y) only; grad l_y is lambda_y-Lipschitz; p(y) = sum_k p_k p_k(y). Convex: every F_k is mu_k-strongly convex
(mu_k >= 0) and L_k-smooth.
""",
    statement="""
Zhao, a_k = 1 + eta sum_y p_k(y) lambda_y, EMD_k = sum_y |p_k(y) - p(y)|, g_max(w) = max_y ‖grad l_y(w)‖:
    ‖w_f - w_c‖ <= sum p_k a_k^T ‖previous‖ + eta sum p_k EMD_k sum_{j=1}^{T-1} a_k^j g_max(w_c^{T-1-j}).
Convex, c_k = max{|1 - eta mu_k|, |1 - eta L_k|} (<= 1 for eta <= 2/L_k):
    ‖w_f - w_c‖ <= sum p_k c_k^T ‖previous‖ + eta sum p_k sum_{j=1}^{T-1} c_k^j ‖(grad F_k - grad F)(w_c^{T-1-j})‖.
""",
    source="""
Zhao, Li, Lai, Suda, Civin, Chandra, "Federated learning with non-IID data", arXiv:1806.00582, Proposition 3.1.
FROM-MEMORY: its text could not be re-read. The inequality above, with the sum from j = 1, is derived here,
constants included. The convex form is this project's.
""",
    differs="""
j starts at 1 because the last local step's client terms cancel in the average (for T = 1 FedAvg is gradient
descent): unrolling client by client would give a needless j = 0 term. The classes' gradients must be those of the
same functions on every client; for finite data with other class conditionals use the convex form, whose factor is
c_k <= 1 instead of a_k > 1.
""",
    meaning="""
Divergence comes from the clients' gradients differing along the centralised path, and, without
convexity, may grow like a_k^T. Convex problems forget: c_k ≤ 1 for η ≤ 2/L. Sharing α|G| public rows with
every client multiplies EMD_k by n_k/(n_k + α|G|) if G has the population's class shares or all clients have the same
size (`fedconvex.datasets.share`). For finite data class conditionals differ; the convex form asks for nothing of the
kind.

DC = ‖w_f - w_c‖/‖w_c‖ is `divergence`; EMD_k is `label_distance`.
""",
    proof="""
Of both forms. d_j = ‖w_k^j - w_c^j‖ for client k, j steps into the round, d_0 = ‖previous‖.

1. w_k^{j+1} - w_c^{j+1} = [w_k - η∇F_k(w_k)] - [w_c - η∇F_k(w_c)] - η(∇F_k - ∇F)(w_c). The bracket difference is at
   most factor_k·d_j: a_k by the Lipschitz gradients, c_k since F_k - (μ_k/2)‖·‖² is convex and (L_k - μ_k)-smooth.
2. d_{j+1} ≤ factor_k d_j + ηh_k^j with h_k^j = ‖(∇F_k - ∇F)(w_c^j)‖ ≤ EMD_k g_max(w_c^j).
3. Last step: Σ p_k(∇F_k - ∇F)(w_c^{T-1}) = 0, so ‖w_f - w_c‖ = ‖Σ p_k(bracket difference)‖ ≤ Σ p_k factor_k d_{T-1}:
   no h term.
4. Unroll 2 to T-1 and insert in 3; j counts back from the last step. ∎

Without step 3 the sum would start at j = 0 and not vanish for T = 1, where FedAvg *is* gradient descent.
""",
    loose="""
The triangle inequality over clients: gaps of opposite sign do not cancel. Attained by the convex form where one of two
clients forgets in a step. Zhao's form is never below the convex one; at η = 1/L and T = 20 its factor a_k^T is at least
2²⁰. But it allows any step: with η far beyond 2/L, where the truth grows like (ηλ - 1)^T, two clients with a class
each attain 0.91 of it (η = 20/L, T = 2), and 0.75 after a second round.
""",
    figure="""
Relative divergence of FedAvg from gradient descent. Left, over rounds: exact 0.02, convex bound 0.5, Zhao's bound
grows to 1e42 after 30 rounds. Right, over local steps of one round: exact up to 0.03, convex bound up to 0.55, Zhao's
grows exponentially.
""",
    caption="""
Logistic regression with l2, four clients that mix the same two classes in shares 4:0, 3:1, 1:3, 0:4, η = 1/L; bounds
of a round enter the next as previous. The divergence settles, as the convex bound says; that is 14 to 25 times too
high, for in it the gaps of clients that lack opposite classes do not cancel. Zhao's form grows by a constant factor
per step.
""",
)


def divergence(w_federated: Any, w_centralised: Any) -> float:
    """Return DC = ‖w_f - w_c‖/‖w_c‖.

    Parameters
    ----------
    w_federated, w_centralised : array, of one shape
        Models; the second is not zero.

    Raises
    ------
    ValueError, TypeError
        If the models have different shapes or are not finite, or w_centralised is zero.

    Examples
    --------
    >>> from fedconvex.theorems.weight_divergence import divergence
    >>> divergence([3.0, 4.0], [3.0, 0.0])
    1.3333333333333333
    """
    f, c = numeric("w_federated", w_federated), numeric("w_centralised", w_centralised)
    if f.shape != c.shape:
        raise bad("w_federated", f"have the shape {c.shape} of w_centralised", f"{f.shape}")
    finite("w_federated", f)
    finite("w_centralised", c)
    size = float(np.linalg.norm(c))
    if size == 0.0:
        raise bad("w_centralised", "be nonzero", "the zero model")
    return float(np.linalg.norm(f - c)) / size


def class_shares(problem: Problem) -> np.ndarray:
    """Return p_k(y), the share of every class among the rows of client k, or of their weight: (K, C).

    Parameters
    ----------
    problem : Problem
        With labels of a few classes.

    Raises
    ------
    TypeError
        If problem is no `Problem`.

    Examples
    --------
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.theorems.weight_divergence import class_shares, label_distance
    >>> fed = Federation.from_clients([([[1.0], [2.0]], [1.0, 1.0]), ([[1.0], [2.0]], [1.0, -1.0])])
    >>> class_shares(Problem(fed, Logistic()))
    array([[0. , 1. ],
           [0.5, 0.5]])
    >>> label_distance(Problem(fed, Logistic()))
    array([0.5, 0.5])
    """
    instance("class_shares: problem", problem, Problem)
    fed = problem.federation
    classes, code = np.unique(fed.y, return_inverse=True)
    counts = np.zeros((fed.K, classes.size))
    each = 1.0 if fed.sample_weight is None else fed.sample_weight
    np.add.at(counts, (np.repeat(np.arange(fed.K), fed.sizes), code), each)
    return counts / fed.masses[:, None]


def label_distance(problem: Problem) -> np.ndarray:
    """Return EMD_k = sum_y |p_k(y) - p(y)| with p = sum_k p_k p_k(y): (K,), between 0 and 2.

    Parameters
    ----------
    problem : Problem
        With labels of a few classes.

    Raises
    ------
    TypeError
        If problem is no `Problem`.

    Examples
    --------
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.theorems.weight_divergence import label_distance
    >>> apart = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [-1.0])])
    >>> label_distance(Problem(apart, Logistic()))  # each client has one class, half of all rows
    array([1., 1.])
    """
    instance("label_distance: problem", problem, Problem)
    return _label_distance(class_shares(problem), problem.weights)


def gradient_gaps(problem: Problem, w: Any, *, step_size: float, local_steps: int) -> np.ndarray:
    """Return ‖(grad F_k - grad F)(w_c^j)‖ along T - 1 steps of gradient descent from w, j = 0..T-2: (T-1, K).

    Parameters
    ----------
    problem : Problem
        Of a smooth loss.
    w : array of the model's shape
        Where the round begins.
    step_size : float
        eta, positive.
    local_steps : int
        T, at least 1.

    Raises
    ------
    ValueError, TypeError
        If w is no model of the problem, step_size not positive, or local_steps below 1.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.weight_divergence import gradient_gaps
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> gradient_gaps(problem, np.zeros(1), step_size=0.5, local_steps=3)
    array([[1., 1.],
           [1., 1.]])
    """
    eta, T = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    instance("gradient_gaps: problem", problem, Problem)
    x, gaps = array("gradient_gaps: w", w, problem.model_shape), np.empty((T - 1, problem.federation.K))
    for j in range(T - 1):
        g = problem.client_gradients(x)
        mean = np.tensordot(problem.weights, g, 1)
        gaps[j] = np.linalg.norm((g - mean).reshape(len(g), -1), axis=1)
        x = x - eta * mean
    return gaps


def divergence_convex(
    constants: Constants, gaps: Any, *, step_size: float, local_steps: int, previous: float = 0.0
) -> Bound:
    """Return the convex bound of ‖w_f - w_c‖ after a round.

    Parameters
    ----------
    constants : Constants
        L_k (or L), mu_k (default 0), and p or K.
    gaps : array (T-1, K)
        ‖(grad F_k - grad F)(w_c^j)‖, as `gradient_gaps` gives them.
    step_size, local_steps : float, int
        eta <= 2/L_k, T.
    previous : float
        ‖w_f - w_c‖ at the start of the round.

    Raises
    ------
    ValueError, TypeError
        If previous is negative, step_size not positive, local_steps below 1, or a path has another shape.
    AssumptionError
        If a constant is missing, a client not convex, or the step above 2/L.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.weight_divergence import divergence_convex
    >>> divergence_convex(Constants(L=1.0, K=2), [[1.0, 1.0]], step_size=0.5, local_steps=2, previous=1.0).value
    1.5
    """
    instance("divergence_convex: constants", constants, Constants)
    eta, T = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    start = real("previous", previous, low=0.0)
    p = client_weights(CONVEX, constants)
    if constants.L_k is not None:
        L = np.asarray(known_constants(CONVEX, constants, "L_k")[0], dtype=float)
    else:
        L = np.full(p.size, known_constants(CONVEX, constants, "L")[0])
    mu = np.zeros(p.size) if constants.mu_k is None else np.asarray(constants.mu_k, dtype=float)
    top = float(L.max())
    requires = require(
        CONVEX,
        Hypothesis("every F_k convex", f"smallest mu_k = {mu.min():g}", bool(mu.min() >= 0.0)),
        Hypothesis("step_size <= 2/L", f"step_size = {eta:g}, L = {top:g}", eta * top <= 2.0),
    )
    G = _path("gaps", gaps, (T - 1, p.size))
    return _unrolled(CONVEX, p, np.maximum(np.abs(1.0 - eta * mu), np.abs(1.0 - eta * L)), G, eta, T, start, requires)


def divergence_zhao(
    constants: Constants,
    shares: Any,
    lipschitz: Any,
    gradient_norms: Any,
    *,
    step_size: float,
    local_steps: int,
    previous: float = 0.0,
) -> Bound:
    """Return Proposition 3.1.

    Parameters
    ----------
    constants : Constants
        p or K.
    shares : array (K, C)
        p_k(y).
    lipschitz : array (C,)
        lambda_y.
    gradient_norms : array (T-1,)
        g_max(w_c^j), j = 0..T-2.
    step_size, local_steps : float, int
        eta, T.
    previous : float
        ‖w_f - w_c‖ at the start of the round.

    Raises
    ------
    ValueError, TypeError
        If previous is negative, step_size not positive, local_steps below 1, or a path has another shape.
    AssumptionError
        If shares of classes do not sum to one, or a constant is negative or not finite.

    Examples
    --------
    >>> from fedconvex.constants import Constants
    >>> from fedconvex.theorems.weight_divergence import divergence_zhao
    >>> one_class_each = [[1.0, 0.0], [0.0, 1.0]]
    >>> bound = divergence_zhao(Constants(K=2), one_class_each, [1.0, 1.0], [1.0], step_size=0.5, local_steps=2)
    >>> bound.value
    0.75
    """
    instance("divergence_zhao: constants", constants, Constants)
    eta, T = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    start = real("previous", previous, low=0.0)
    p = client_weights(_ZHAO, constants)
    lam = vector("lipschitz", lipschitz)
    P = _path("shares", shares, (p.size, lam.size))
    g = _path("gradient_norms", gradient_norms, (T - 1,))
    off = float(np.abs(P.sum(axis=1) - 1.0).max())
    requires = require(
        _ZHAO,
        Hypothesis("all clients share the class conditionals", f"{P.shape[1]} classes"),
        Hypothesis("class shares that sum to one", f"largest deviation {off:g}", off <= 1e-9),
        Hypothesis("finite lambda_y >= 0", f"largest {lam.max():g}", bool(np.isfinite(lam).all() and (lam >= 0).all())),
    )
    a = 1.0 + eta * (P @ lam)
    return _unrolled(_ZHAO, p, a, np.outer(g, _label_distance(P, p)), eta, T, start, requires)


def _label_distance(shares: np.ndarray, p: np.ndarray) -> np.ndarray:
    return np.abs(shares - p @ shares).sum(axis=1)


def _path(name: str, x: Any, shape: tuple[int, ...]) -> np.ndarray:
    a = numeric(name, x) if raw(name, x).size else np.zeros((0, *shape[1:]))
    if a.shape != shape:
        raise bad(name, f"have shape {shape}", f"{a.shape}")
    if not np.isfinite(a).all() or (a < 0.0).any():
        raise AssumptionError(f"weight divergence: needs finite nonnegative {name}")
    return a


def _unrolled(
    theorem: str,
    p: np.ndarray,
    factor: np.ndarray,
    gaps: np.ndarray,
    eta: float,
    T: int,
    start: float,
    requires: tuple[Hypothesis, ...],
) -> Bound:
    """sum_k p_k [factor_k^T start + eta sum_{j=0}^{T-2} factor_k^{T-1-j} gaps_{j,k}]."""
    powers = factor ** np.arange(T - 1, 0, -1)[:, None]
    terms = {"previous": float(p @ factor**T) * start, "drift": eta * float(np.sum((powers * gaps) @ p))}
    return Bound(terms, WEIGHT_DIVERGENCE, theorem, requires)


# ---------------------------------------------------------------- read off a setting


def _descent(s: Setting, rounds: int) -> np.ndarray:
    """Gradient descent with as many steps as the clients take: w_c at the synchronisations, (rounds+1, *model)."""
    eta, steps = _full_steps(CONVEX, s)
    w, out = np.array(s.start), [np.array(s.start)]
    for _ in range(rounds):
        for _ in range(steps):
            w = w - eta * s.problem.gradient(w)
        out.append(w)
    return np.array(out)


def _divergence(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    apart = values_along(lambda state: state.w[0], s, rounds, 0, 1) - _descent(s, max(rounds))[list(rounds)]
    return np.linalg.norm(apart.reshape(len(rounds), -1), axis=1)


def _rounding(s: Setting, value: float) -> float:
    """Of two runs; the minimiser is no part of it. A step of gradient descent stretches what is there by eta L - 1."""
    (eta, steps), L = _full_steps(CONVEX, s), s.constants().L or 0.0
    with np.errstate(over="ignore"):
        stretched = np.float64(max(1.0, eta * L - 1.0)) ** (steps * s.rounds)
    return 2.0 * model_rounding(s) * float(stretched)


def _full_steps(name: str, s: Setting) -> tuple[float, int]:
    local, numbers = plain_local_sgd(name, s), local_sgd(name, s)
    require(name, Hypothesis("full local gradients", f"batches from {local.batch_size.min()} rows", local.full))
    return numbers["step_size"], numbers["local_steps"]


def _read_convex(s: Setting) -> Reading:
    eta, T = _full_steps(CONVEX, s)
    central = _descent(s, s.rounds)
    gaps = np.array([gradient_gaps(s.problem, central[t], step_size=eta, local_steps=T) for t in range(s.rounds)])
    return Reading({"constants": s.constants(), "gaps": gaps, "step_size": eta, "local_steps": T})


def _read_zhao(s: Setting) -> Reading:
    """Take the pooled rows of a class for the losses of the class."""
    eta, T = _full_steps(_ZHAO, s)
    p, fed = s.problem, s.problem.federation
    labelled = traits(p.loss).task == "classification"
    labels = Hypothesis("labels that are classes", f"{p.loss!r}", labelled)
    require(_ZHAO, labels, same_conditionals(p))
    pooled = Federation.from_arrays(fed.X, fed.y, fed.y, sample_weight=fed.sample_weight)
    classes = Problem(pooled, p.loss, p.l2, "uniform", intercept=p.intercept)
    central, largest = _descent(s, s.rounds), np.empty((s.rounds, T - 1))
    for t in range(s.rounds):
        w = central[t]
        for j in range(T - 1):
            slopes = classes.client_gradients(w).reshape(classes.federation.K, -1)
            largest[t, j] = np.linalg.norm(slopes, axis=1).max()
            w = w - eta * p.gradient(w)
    numbers = {"lipschitz": classes.constants().L_k, "gradient_norms": largest, "step_size": eta, "local_steps": T}
    return Reading({"constants": s.constants(), "shares": class_shares(p), **numbers})


def _convex_rounds(*, gaps: np.ndarray, **at: Any) -> Bound:
    """Unroll the convex bound over the rounds: gaps (rounds, T-1, K)."""
    return _last_round(lambda g, before: divergence_convex(gaps=g, previous=before, **at), gaps)


def _zhao_rounds(*, gradient_norms: np.ndarray, **at: Any) -> Bound:
    """Unroll Zhao et al.'s bound over the rounds: gradient_norms (rounds, T-1)."""
    return _last_round(lambda g, before: divergence_zhao(gradient_norms=g, previous=before, **at), gradient_norms)


def _last_round(bound: Callable[[np.ndarray, float], Bound], along: np.ndarray) -> Bound:
    found = bound(along[0], 0.0)
    for g in along[1:]:
        found = bound(g, found.value)
    return found


THEOREMS = (
    Theorem(
        name="weight-divergence-convex",
        title="Weight divergence, convex form",
        quantity=WEIGHT_DIVERGENCE,
        bound=_convex_rounds,
        read=_read_convex,
        exact=_divergence,
        tolerance=_rounding,
        statement=STATEMENT,
        says="FedAvg leaves gradient descent as clients' gradients differ along its path; convex problems forget.",
        loose="The triangle inequality over clients: gaps of opposite sign do not cancel. 14 to 25 times at step 1/L; "
        "attained where all clients but one forget in a step.",
        method=fixed_step(1.0, local_steps=5),
        rounds=10,
        space=local_sgd_space(
            fixed_step, 1.0, batches=0, weighted=True, losses=("squared", "logistic"), rounds=(1, 10)
        ),
        checks=(
            shifted_logistic,
            copied_rows,
            breast_cancer,
            diabetes,
            Check(shifted_logistic, fixed_step(1.0, local_steps=5, batch_size=4)),  # mini-batches
        ),
    ),
    Theorem(
        name="weight-divergence-zhao",
        title="Weight divergence (Zhao et al.)",
        quantity=WEIGHT_DIVERGENCE,
        bound=_zhao_rounds,
        read=_read_zhao,
        exact=_divergence,
        tolerance=_rounding,
        statement=STATEMENT,
        says="The same by the distance of label distributions, for clients that share the class conditionals.",
        loose="It grows exponentially with local steps and rounds, which is true of steps far beyond 2/L only.",
        method=fixed_step(1.0, local_steps=3),
        rounds=5,
        space=local_sgd_space(
            fixed_step, 20.0, designs=("classes",), losses=("logistic",), rounds=(1, 12), batches=0, most=8
        ),
        checks=(copied_rows, breast_cancer_copied, breast_cancer, diabetes),  # the last two: other conditionals
    ),
)
