"""Weight divergence of FedAvg from centralised gradient descent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.loss_traits import traits
from fedconvex.problems import Problem
from fedconvex.theorems import weight_divergence
from fedconvex.theorems.parts.setting import Setting, full_steps, local_sgd
from fedconvex.theorems.parts.theorem import Theorem
from fedconvex.theory.bound import WEIGHT_DIVERGENCE, Bound, Hypothesis, require

__all__ = ["THEOREMS"]


def _descent(s: Setting, rounds: int) -> np.ndarray:
    """Gradient descent with as many steps as the clients take: w_c at the synchronisations, (rounds+1, *model)."""
    w, out = np.array(s.start), [np.array(s.start)]
    for _ in range(rounds):
        for _ in range(full_steps(s.method)):
            w = w - s.method.step_size * s.problem.gradient(w)
        out.append(w)
    return np.array(out)


def _divergence(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    central, wanted = _descent(s, max(rounds)), set(rounds)
    runs = iterate(s.method, s.problem, rounds=max(rounds), start=s.start)
    out = {t: float(np.linalg.norm(state.w[0] - central[t])) for t, state in runs if t in wanted}
    return np.array([out[t] for t in rounds])


def _full_steps(name: str, s: Setting) -> tuple[float, int]:
    settings, m = local_sgd(name, s), s.method
    require(name, Hypothesis("full local gradients", f"batch_size={m.batch_size}", m.batch_size is None))
    return settings["step_size"], settings["local_steps"]


def _diverging(s: Setting) -> Bound:
    """Unroll the convex bound over the rounds."""
    eta, T = _full_steps(weight_divergence.CONVEX, s)
    c, central = s.constants(), _descent(s, s.rounds)
    previous, bound = 0.0, None
    for t in range(s.rounds):
        gaps = weight_divergence.gradient_gaps(s.problem, central[t], step_size=eta, local_steps=T)
        bound = weight_divergence.divergence_convex(c, gaps, step_size=eta, local_steps=T, previous=previous)
        previous = bound.value
    assert bound is not None
    return bound


def _diverging_zhao(s: Setting) -> Bound:
    """Unroll Zhao et al.'s bound over the rounds; the class losses are those of the pooled rows of the class."""
    name = weight_divergence.ZHAO
    eta, T = _full_steps(name, s)
    p, fed = s.problem, s.problem.federation
    labelled = traits(p.loss).task == "classification"
    require(name, Hypothesis("labels that are classes", f"{p.loss!r}", labelled), _same_conditionals(p))
    classes = Problem(Federation.from_arrays(fed.X, fed.y, fed.y), p.loss, p.l2, "uniform")
    lipschitz, shares = classes.constants().L_k, weight_divergence.class_shares(p)
    central = _descent(s, s.rounds)
    previous, bound = 0.0, None
    for t in range(s.rounds):
        w, largest = central[t], np.empty(T - 1)
        for j in range(T - 1):
            largest[j] = np.linalg.norm(classes.client_gradients(w).reshape(classes.federation.K, -1), axis=1).max()
            w = w - eta * p.gradient(w)
        bound = weight_divergence.divergence_zhao(
            s.constants(), shares, lipschitz, largest, step_size=eta, local_steps=T, previous=previous
        )
        previous = bound.value
    assert bound is not None
    return bound


def _same_conditionals(p: Problem) -> Hypothesis:
    """Compare the empirical distributions of every class over the clients that hold it."""
    fed = p.federation
    seen: dict[float, tuple[int, np.ndarray, np.ndarray]] = {}
    text = "all clients share the class conditionals"
    for k in range(fed.K):
        rows = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
        X, y = (fed.X[rows].toarray() if fed.is_sparse else fed.X[rows]), fed.y[rows]
        for label in np.unique(y):
            points, counts = np.unique(X[y == label], axis=0, return_counts=True)
            first = seen.setdefault(float(label), (k, points, counts / counts.sum()))
            same = first[1].shape == points.shape and np.array_equal(first[1], points)
            if not (same and np.allclose(first[2], counts / counts.sum(), rtol=0, atol=1e-12)):
                who = f"clients {fed.labels[first[0]]} and {fed.labels[k]} differ in class {label:g}"
                return Hypothesis(text, who, False)
    return Hypothesis(text, f"rows of {len(seen)} classes compared")


_BETWEEN = WEIGHT_DIVERGENCE

THEOREMS = (
    Theorem(
        "weight-divergence-convex",
        _BETWEEN,
        _diverging,
        "Weight divergence, convex form",
        "weight_divergence",
        exact=_divergence,
    ),
    Theorem(
        "weight-divergence-zhao",
        _BETWEEN,
        _diverging_zhao,
        "Weight divergence (Zhao et al.)",
        "weight_divergence",
        exact=_divergence,
    ),
)
