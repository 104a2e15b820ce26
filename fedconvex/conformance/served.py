"""Other aggregates of local steps in NumPy: robust ones, and the one of qFedAvg.

Coordinate-wise medians and trimmed means (Yin et al. 2018, Definitions 1 and 2) in the place of FedAvg's mean; qFedAvg
(Li, Sanjabi, Beirami, Smith 2020, Algorithm 2, its formulas from memory).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedconvex.conformance import averaging
from fedconvex.conformance.algorithm_family import DETERMINISTIC, Family
from fedconvex.conformance.conventions import LOCAL, PLAIN, Value, only, pick
from fedconvex.conformance.exams import Exam
from fedconvex.conformance.objectives import rows_loss, values_gradients

State = dict[str, Any]
PUBLISHED, ERROR = "published", "error"

# ---------------------------------------------------------------- robust aggregates

AGGREGATE = pick(
    "aggregate",
    Value("median", "the server takes the median of every entry", PUBLISHED),
    Value("trimmed", "the server takes the mean of every entry, less the share beta of smallest and largest weight",
          PUBLISHED),
    Value("trimmed, whole clients", "the server leaves out the floor(beta K) smallest and largest of every entry",
          PUBLISHED),
    Value("mean", "the server takes the mean: nothing is left out", ERROR),
    Value("one side", "only the largest entries are left out, by weight, not the smallest", ERROR),
    Value("one side, whole clients", "only the largest entries are left out, by clients, not the smallest", ERROR),
)  # fmt: skip


def median(values: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return the weighted median of values (K, n); where half of the weight lies below a gap, its middle.

    >>> median(np.array([[0.0], [1.0], [2.0], [97.0]]), np.full(4, 0.25)).tolist()
    [1.5]
    """
    out = []
    for column in values.T:
        at = np.argsort(column, kind="stable")
        below = np.cumsum(q[at]) / q.sum()
        i = int(np.flatnonzero(below >= 0.5 - 1e-12)[0])
        j = i + 1 if abs(below[i] - 0.5) <= 1e-12 else i
        out.append(0.5 * (column[at[i]] + column[at[j]]))
    return np.array(out)


def trimmed(values: np.ndarray, q: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return means of values (K, n) over the weight between the quantiles low and high.

    >>> trimmed(np.array([[0.0], [1.0], [2.0], [97.0]]), np.full(4, 0.25), 0.25, 0.75).tolist()
    [1.5]
    """
    out = []
    for column in values.T:
        at = np.argsort(column, kind="stable")
        ends = np.concatenate([[0.0], np.cumsum(q[at]) / q.sum()])
        kept = np.diff(np.clip(ends, low, high))
        out.append(float(kept @ column[at]) / (high - low))
    return np.array(out)


def move_robust(exam: Exam, r: Mapping[str, str], state: State, who: Sequence[int], replies: Any) -> State:
    """Return the state after the server has taken an aggregate."""
    new, how, beta = averaging.move(exam, r, state, who, replies), r.get("aggregate", "median"), exam.hyper["trim"]
    if how == "mean":
        return new
    W, q = np.stack([a["w"].ravel() for a in replies]), averaging.shares(exam, r, who)
    if how.endswith("whole clients"):
        cut = int(beta * len(W) + 1e-9)
        w = np.sort(W, axis=0)[cut if how.startswith("trimmed") else 0 : len(W) - cut].mean(axis=0)
    elif how == "median":
        w = median(W, q)
    else:
        w = trimmed(W, q, 0.0 if how == "one side" else beta, 1.0 - beta)
    w = w.reshape(state["w"].shape)
    return new | {"w": w, "sent": w}


# ---------------------------------------------------------------- qFedAvg

POWER = pick(
    "power",
    Value("q", "updates are multiplied by F_k^q", PUBLISHED),
    Value("q + 1", "updates are multiplied by F_k^(q + 1)", ERROR),
    Value("0", "updates are not multiplied by powers of F_k: q is not used", ERROR),
)
STEP = pick(
    "h",
    Value("both", "h_k = q F_k^(q - 1) |D_k|^2 + L F_k^q", PUBLISHED),
    Value("first missing", "h_k = L F_k^q: its first term is missing", ERROR),
    Value("second missing", "h_k = q F_k^(q - 1) |D_k|^2: its second term is missing", ERROR),
    Value("not squared", "h_k = q F_k^(q - 1) |D_k| + L F_k^q: the norm is not squared", ERROR),
)
SMOOTHNESS = pick(
    "L",
    Value("1/eta", "D_k is (w - w_k)/eta: L is one over the step size", PUBLISHED),
    Value("1", "D_k is w - w_k: L is 1", ERROR),
)
LOSS_AT = pick(
    "losses at",
    Value("sent model", "F_k is the loss of the model that was sent", PUBLISHED),
    Value("local model", "F_k is the loss after the local steps", ERROR),
)
OBJECTIVE = pick(
    "F_k",
    Value("with ridge", "F_k is the client's objective with its ridge", PUBLISHED),
    Value("rows alone", "F_k is the loss of the rows, without the ridge"),
)
SUMMED = pick(
    "terms",
    Value("1", "clients are summed alike", PUBLISHED),
    Value("n_k/n", "clients' terms weigh n_k/n"),
)


def reply_fair(exam: Exam, r: Mapping[str, str], state: State, k: int, batches: Sequence[Any], before: Any) -> Any:
    """Return a client's model after local steps, and its loss."""
    answer, (X, y) = averaging.reply(exam, r, state, k, batches, before), exam.clients[k]
    at = answer["w"] if r.get("losses at") == "local model" else state["w"]
    if r.get("F_k", "with ridge") == "with ridge":
        return answer | {"F": float(values_gradients(exam.hyper, r, X, y, at)[0])}
    scale = 2.0 if exam.hyper["loss"] == "squared" and r.get("squared") == "whole" else 1.0
    losses = rows_loss(exam.hyper["loss"], X, y, at)[0]
    return answer | {"F": scale * float(losses.sum() if r.get("loss") == "sum" else losses.mean())}


def move_fair(exam: Exam, r: Mapping[str, str], state: State, who: Sequence[int], replies: Any) -> State:
    """Return the state after the server's step of Algorithm 2, line 8."""
    q, L = exam.hyper["q"], 1.0 if r.get("L") == "1" else 1.0 / exam.hyper["step_size"]
    n, w, top, bottom = np.array(exam.sizes, dtype=float), state["w"], 0.0 * state["w"], 0.0
    for k, a in zip(who, replies, strict=True):
        D, share = L * (w - a["w"]), n[k] / n.sum() if r.get("terms") == "n_k/n" else 1.0
        F = a["F"] ** {"q + 1": q + 1.0, "0": 0.0}.get(r.get("power", ""), q)
        far = float(np.sum(D * D))
        one = q * a["F"] ** (q - 1.0) * (far**0.5 if r.get("h") == "not squared" else far)
        h = {"first missing": L * F, "second missing": one}.get(r.get("h", ""), one + L * F)
        top, bottom = top + share * F * D, bottom + share * h
    new = averaging.move(exam, {}, state, who, replies)
    moved = w - top / bottom
    return new | {"w": moved, "sent": moved}


FAMILIES = (
    Family("robust", "local steps, and a median or a trimmed mean", "Yin et al., ICML 2018, Algorithm 1",
           (*PLAIN, *only(LOCAL, "steps"), AGGREGATE), (*DETERMINISTIC, "five clients"), knows=("trim",),
           move=move_robust, at_server=()),
    Family("qfedavg", "averaging by powers of losses", "Li et al., ICLR 2020, Algorithm 2",
           (*only(PLAIN, "loss", "squared", "ridge", "direction"), SUMMED, *only(LOCAL, "steps"), POWER, STEP,
            SMOOTHNESS, LOSS_AT, OBJECTIVE), DETERMINISTIC, knows=("q",), reply=reply_fair, move=move_fair,
           at_server=()),
)  # fmt: skip
