"""The agnostic family in NumPy: AFL, its optimistic variant, AgnosticFedAvg and softmax weights.

Mohri, Sivek, Suresh (2019, Figure 2); Malitsky, Tam (2020); Ro et al. (2021, Algorithm 1). Every client is a domain.

Functions take an exam, a reading and a state, and change none of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedconvex.conformance import averaging
from fedconvex.conformance.exams import Exam
from fedconvex.conformance.objectives import rows_loss, values_gradients

State = dict[str, Any]
AFL_SERVER = (  # clients answer gradients and losses: all steps are the server's
    *("direction", "schedule", "ascent", "domain direction", "first weights", "order", "output", "optimism"),
    "descent weights",
)
AT_SERVER = (  # conventions that the first round's model knows from `move` alone: the ascent only shows in the next
    *("sampling", "domain rule", "ascent", "domain direction", "domain loss", "first weights", "model weights"),
    "first window",
)


def first(exam: Exam, r: Mapping[str, str]) -> State:
    """Return the state before the first round: the start, and the first domain weights."""
    n = np.array(exam.sizes, dtype=float)
    mix = n / n.sum() if r.get("first weights") == "n_k/n" else np.full(n.size, 1.0 / n.size)
    w = into_ball(exam, exam.hyper["start"])
    own = {"mix": mix, "average": w, "point": w, "g": None, "F": None}
    window = n if r.get("first window") == "sizes" else np.ones(n.size)
    return averaging.first(exam, r) | own | {"window": window, "heard": np.zeros(n.size)}


def project(x: np.ndarray) -> np.ndarray:
    """Return the point of the simplex that is nearest to x (Duchi et al. 2008).

    >>> project(np.array([0.7, 0.9, -1.0])).round(12)
    array([0.4, 0.6, 0. ])
    """
    u = np.sort(x)[::-1]
    excess = (np.cumsum(u) - 1.0) / np.arange(1, x.size + 1)
    return np.maximum(x - excess[np.flatnonzero(u > excess)[-1]], 0.0)


def into_ball(exam: Exam, w: np.ndarray) -> np.ndarray:
    """Return w, projected onto the ball of the exam's radius if there is one."""
    radius, norm = exam.hyper["radius"], float(np.sqrt(np.sum(w * w)))
    return w if radius is None or norm <= radius else w * (radius / norm)


def ascended(exam: Exam, r: Mapping[str, str], mix: np.ndarray, F: np.ndarray) -> np.ndarray:
    """Return the domain weights after a step towards domains that lose more."""
    step = exam.hyper["domain_step_size"] * (-1.0 if r.get("domain direction") == "descent" else 1.0) * F
    how = r.get("ascent", "projected")
    if how == "projected":
        return project(mix + step)
    if how == "clipped":
        x = np.maximum(mix + step, 0.0)
        return x / x.sum()
    x = {"softmax": np.exp(step - step.max()), "linear": mix * np.maximum(1.0 + step, 0.0)}.get(how)
    if how == "exponentiated, not normalised":
        return mix * np.exp(step)
    x = mix * np.exp(step - step.max()) if x is None else x
    return x / x.sum()


def domain_loss(exam: Exam, r: Mapping[str, str], k: int, w: np.ndarray) -> float:
    """Return the loss of a domain as the ascent sees it."""
    X, y = exam.clients[k]
    if r.get("domain loss") == "with ridge":
        return values_gradients(exam.hyper, r, X, y, w)[0]
    losses = rows_loss(exam.hyper["loss"], X, y, w)[0]
    scale = 2.0 if exam.hyper["loss"] == "squared" and r.get("squared") == "whole" else 1.0
    return scale * float(losses.sum() if "sum" in (r.get("domain loss"), r.get("loss")) else losses.mean())


# ---------------------------------------------------------------- AFL: one gradient a round


def reply_afl(exam: Exam, r: Mapping[str, str], state: State, k: int, batches: Sequence[Any], before: Any) -> Any:
    """Return a client's gradient and loss at the model that it is sent."""
    X, y = exam.clients[k]
    rows = list(batches[0])
    answer = {"w": state["point"], "g": values_gradients(exam.hyper, r, X[rows], y[rows], state["point"])[1]}
    small = exam._replace(clients=((X[rows], y[rows]),))
    return answer | {"F": domain_loss(small, r, 0, state["point"]), "steps": 1}


def move_afl(exam: Exam, r: Mapping[str, str], state: State, who: Sequence[int], replies: Any) -> State:
    """Return the state after both players' steps."""
    G, F = np.stack([a["g"] for a in replies]), np.array([a["F"] for a in replies])
    mix, w, t, order = state["mix"], state["point"], state["t"], r.get("order", "at once")
    eta, stacked = averaging.step_size(exam, r, t, t), F.ndim > 1
    if order == "weights first":
        mix = _each(exam, r, mix, F) if stacked else ascended(exam, r, mix, F)
    by_size = (mix.T * np.array(exam.sizes)).T
    weights = by_size / by_size.sum(axis=0) if r.get("descent weights") == "by size" else mix
    g = np.tensordot(weights, G, 1) if weights.ndim == 1 else np.einsum("kn,kn...->n...", weights, G)
    steered, seen = g, F
    if r.get("optimism") == "optimistic" and state["g"] is not None:
        steered, seen = 2.0 * g - state["g"], 2.0 * F - state["F"]
    point = into_ball(exam, w - eta * steered)
    if order == "model first" and not stacked:
        seen = np.array([domain_loss(exam, r, k, point) for k in range(len(F))])
    if order != "weights first" and not stacked:  # a stack is of a first round, whose model does not hear of it
        mix = ascended(exam, r, mix, seen)
    output = r.get("output", "average before")
    share = 1.0 / (t + 2.0) if output == "average of all" else 1.0 / (t + 1.0)  # of what is new in the average
    met = w if output == "average before" else point
    new = state | {"t": t + 1, "point": point, "mix": mix, "g": g, "F": F}
    new["average"] = point if output == "last" else state["average"] * (1.0 - share) + share * met
    return new | {"w": new["average"]}


def _each(exam: Exam, r: Mapping[str, str], mix: np.ndarray, F: np.ndarray) -> np.ndarray:
    """Return the domain weights after a step, (K, N), for losses of a stack of readings, (K, N)."""
    return np.stack([ascended(exam, r, mix, f) for f in F.T], axis=1)


# ---------------------------------------------------------------- AgnosticFedAvg: local steps


def reply(exam: Exam, r: Mapping[str, str], state: State, k: int, batches: Sequence[Any], before: Any) -> Any:
    """Return a client's model after local steps, and its loss at the model that it was sent."""
    answer = averaging.reply(exam, r, state, k, batches, before)
    at = answer["w"] if r.get("losses at") == "local model" else state["w"]
    return answer | {"F": domain_loss(exam, r, k, at)}


def move(exam: Exam, r: Mapping[str, str], state: State, who: Sequence[int], replies: Any) -> State:
    """Return the state after models are averaged by domain weights, and these have followed the losses."""
    n, F, at = np.array(exam.sizes, dtype=float), np.array([a["F"] for a in replies]), list(who)
    F = F if F.ndim == 1 else F[:, 0]  # of a stack: a first round's model does not depend on losses
    softmax = r.get("domain rule") == "softmax"
    mix = state["mix"]
    if softmax:
        x = np.exp(exam.hyper["softmax_mu"] * (state["heard"] - state["heard"].max()))
        mix = x / x.sum()
    elif r.get("order") == "weights first":
        mix = ascended(exam, r, mix, _all(state["heard"], at, F))
    alpha = mix / (n if softmax else state["window"])
    beta = {"lambda": mix, "lambda n_k": mix * n}.get("" if softmax else r.get("model weights", ""), alpha * n)[at]
    w = averaging.average(exam, {}, state["w"], beta / beta.sum(), [a["w"] for a in replies])
    seen = F if r.get("losses at") != "new model" else np.array([domain_loss(exam, r, k, w) for k in at])
    new = state | {"t": state["t"] + 1, "heard": _all(state["heard"], at, seen)}
    if not softmax and r.get("order") != "weights first":
        mix = ascended(exam, r, mix, _all(np.zeros(n.size), at, seen))
    window = _all(np.zeros(n.size), at, n[at])
    new["window"] = np.where(window > 0.0, window, state["window"])
    return new | {"w": w, "sent": w, "mix": mix, "own": averaging.first(exam, r)["own"]}


def _all(old: np.ndarray, who: Sequence[int], values: np.ndarray) -> np.ndarray:
    new = old.copy()
    new[list(who)] = values
    return new
