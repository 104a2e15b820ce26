"""Hypotheses on constants that several theorems share."""

from __future__ import annotations

import numpy as np

from fedconvex._check import instance, real, whole
from fedconvex.constants import BOUND, EXACT, Constants
from fedconvex.problems import Problem
from fedconvex.theory.bound import AssumptionError, Hypothesis, known_constants, require


def client_weights(theorem: str, constants: Constants) -> np.ndarray:
    """Return the weights p_k, 1/K each where only the number of clients is given."""
    instance(f"{theorem}: constants", constants, Constants)
    if constants.p is not None:
        return np.asarray(constants.p, dtype=float)
    (K,) = known_constants(theorem, constants, "K")
    return np.full(K, 1.0 / K)


def client_noise(theorem: str, constants: Constants, clients: int) -> np.ndarray:
    """Return sigma_k^2, finite; sigma^2 for all where only that is given."""
    if constants.sigma2_k is None:
        return np.full(clients, float(known_constants(theorem, constants, "sigma2")[0]))
    sigma2 = np.asarray(known_constants(theorem, constants, "sigma2_k")[0], dtype=float)
    if not np.isfinite(sigma2).all():
        how = constants.how.get("sigma2_k", "given")
        raise AssumptionError(f"{theorem} does not apply: needs a finite sigma2_k, got {sigma2.max()} ({how})")
    return sigma2


def local_work(step_size: float, local_steps: int, rounds: int) -> tuple[float, int, int]:
    """Return eta, tau and T, checked."""
    eta = real("step_size", step_size, low=0.0, strict=True)
    return eta, whole("local_steps", local_steps, low=1), whole("rounds", rounds, low=1)


def equal_weights(p: np.ndarray, cure: str = 'weights="uniform", --weights uniform') -> Hypothesis:
    """Return the hypothesis that all clients weigh the same."""
    return Hypothesis(
        f"equal client weights ({cure})", f"weights from {p.min():g} to {p.max():g}", bool(np.ptp(p) <= 1e-12 * p.max())
    )


def where_taken(constants: Constants, *names: str) -> tuple[Hypothesis, ...]:
    """Return, for constants that do not hold on all of R^d, what the run has to satisfy for them to apply."""
    everywhere = (None, EXACT, BOUND)
    return tuple(
        Hypothesis(f"{name} covers the run", f"{name} is {constants.how[name]}")
        for name in names
        if constants.how.get(name) not in everywhere
    )


def least_convexity(theorem: str, constants: Constants) -> float:
    """Return the least mu_k, or mu where only that is given."""
    if constants.mu_k is not None:
        return float(np.min(constants.mu_k))
    return float(known_constants(theorem, constants, "mu")[0])


def sampling_share(theorem: str, scheme: str, participants: int, p: np.ndarray) -> float:
    """Return the variance of the average of those drawn, as a share of the variance among all clients.

    Parameters
    ----------
    theorem : str
        For error messages.
    scheme : str
        "everyone", "proportional" (scheme I) or "uniform" (scheme II).
    participants : int
        Devices drawn in a round, for the two schemes.
    p : array (K,)
        Client weights.

    Raises
    ------
    AssumptionError
        If the scheme is another one, or "uniform" with unequal weights.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theorems.parts.assumptions import sampling_share
    >>> [sampling_share("mine", scheme, 2, np.full(4, 0.25)) for scheme in ("everyone", "proportional")]
    [0.0, 0.5]
    """
    require(theorem, known_scheme(scheme))
    if scheme == "everyone":
        return 0.0
    K = whole("participants", participants, low=1, high=None if scheme == "proportional" else p.size)
    if scheme == "proportional":
        return 1.0 / K
    require(theorem, equal_weights(p))
    return (p.size - K) / max(p.size - 1, 1) / K


def known_scheme(scheme: str) -> Hypothesis:
    """Return the hypothesis that clients are drawn in a way that theorems know."""
    schemes = ("everyone", "proportional", "uniform")
    return Hypothesis("all devices, or scheme I or II", f"{scheme!r}", isinstance(scheme, str) and scheme in schemes)


def same_conditionals(p: Problem) -> Hypothesis:
    """Compare the empirical distributions of every class over the clients that hold it."""
    fed = p.federation
    seen: dict[float, tuple[int, np.ndarray, np.ndarray]] = {}
    text = "all clients share the class conditionals"
    for k in range(fed.K):
        X, y = fed.client_rows(k)
        weight = p.weigh(k, np.ones(y.size))
        for label in np.unique(y[weight > 0.0]):
            mine = (y == label) & (weight > 0.0)
            points, code = np.unique(X[mine], axis=0, return_inverse=True)
            counts = np.bincount(code.ravel(), weight[mine])
            first = seen.setdefault(float(label), (k, points, counts / counts.sum()))
            same = first[1].shape == points.shape and np.array_equal(first[1], points)
            if not (same and np.allclose(first[2], counts / counts.sum(), rtol=0, atol=1e-12)):
                who = f"clients {fed.labels[first[0]]} and {fed.labels[k]} differ in class {label:g}"
                return Hypothesis(text, who, False)
    return Hypothesis(text, f"rows of {len(seen)} classes compared")
