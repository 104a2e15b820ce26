"""Compressed gradients in NumPy: EF21 with the largest entries, DIANA with random ones.

EF21 (Richtarik, Sokolov, Fatkhullin 2021, Algorithm 2), DIANA (Mishchenko et al. 2019, Algorithm 1, without momentum).
``hyper["top"]`` is the number of entries that are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedconvex.conformance import averaging
from fedconvex.conformance.algorithm_family import Family
from fedconvex.conformance.conventions import PLAIN, Value, pick
from fedconvex.conformance.exams import Exam
from fedconvex.conformance.objectives import gradient

State = dict[str, Any]
PUBLISHED, ERROR = "published", "error"


def _rounds(exam: Exam, r: Mapping[str, str]) -> bool:
    return exam.rounds > 1


def largest(v: np.ndarray, k: int) -> np.ndarray:
    """Return v with all entries but the k largest, by size, at zero.

    >>> largest(np.array([1.0, -3.0, 2.0]), 2)
    array([ 0., -3.,  2.])
    """
    kept, flat = np.zeros(v.size), v.ravel()
    at = np.argsort(-np.abs(flat), kind="stable")[:k]
    kept[at] = flat[at]
    return kept.reshape(v.shape)


def first(exam: Exam, r: Mapping[str, str]) -> State:
    """Return the state before the first round: the server's g or h, and what clients keep, at zero."""
    state = averaging.first(exam, r)
    return state | {"g": state["c"], "g_i": state["c_i"]}


def _mean(exam: Exam, r: Mapping[str, str], who: Sequence[int], sent: Sequence[np.ndarray]) -> Any:
    return np.tensordot(averaging.shares(exam, r, who), np.stack(sent), 1)


# ---------------------------------------------------------------- EF21

START = pick(
    "first",
    Value("whole", "the first g_i is the gradient, sent whole", PUBLISHED),
    Value("compressed", "the first g_i is the compressed gradient", PUBLISHED),
)
COMPRESSED = pick(
    "compressed",
    Value("difference", "clients compress grad f_i(x) - g_i", PUBLISHED),
    Value("gradient", "clients compress grad f_i(x): it is compressed gradient descent", ERROR),
    Value("with error", "clients compress gradients with what was lost before: it is error feedback", ERROR),
    shown=_rounds,
)
OWN = pick(
    "client memory",
    Value("kept", "clients add what they sent to g_i", PUBLISHED),
    Value("replaced", "clients take what they sent as g_i: the old one is lost", ERROR),
    Value("exact", "clients take the gradient as g_i, not what the server knows of it", ERROR),
    shown=lambda exam, r: exam.rounds > 1 and r.get("compressed") == "difference",
)
SERVER = pick(
    "server memory",
    Value("kept", "the server adds what was sent to g", PUBLISHED),
    Value("replaced", "the server takes what was sent as g: the old one is lost", ERROR),
    shown=lambda exam, r: exam.rounds > 1 and r.get("compressed") == "difference",
)


def reply_ef21(exam: Exam, r: Mapping[str, str], state: State, k: int, batches: Sequence[Any], before: Any) -> Any:
    """Return what a client sends, and what it keeps."""
    g, old, top = gradient(exam.hyper, r, *exam.clients[k], state["sent"]), state["g_i"][k], exam.hyper["top"]
    how = r.get("compressed", "difference")
    if how == "with error":
        sent = largest(g + old, top) if state["t"] or r.get("first") == "compressed" else g
        return {"w": state["sent"], "sent": sent, "kept": g + old - sent}
    if not state["t"]:
        sent = g if r.get("first") == "whole" else largest(g, top)
        return {"w": state["sent"], "sent": sent, "kept": sent}
    sent = largest(g - old if how == "difference" else g, top)
    kept = {"replaced": sent, "exact": g}.get(r.get("client memory", ""), old + sent)
    return {"w": state["sent"], "sent": sent, "kept": kept}


def move_ef21(exam: Exam, r: Mapping[str, str], state: State, who: Sequence[int], replies: Any) -> State:
    """Return the state after a step along g."""
    sent = _mean(exam, r, who, [a["sent"] for a in replies])
    adds = r.get("compressed", "difference") == "difference" and r.get("server memory", "kept") == "kept"
    g = state["g"] + sent if adds else sent
    w = state["w"] - averaging.step_size(exam, r, 0, 0) * g
    moved = {"t": state["t"] + 1, "g": g, "g_i": tuple(a["kept"] for a in replies)}
    return state | moved | {"w": w, "sent": w, "before": state["w"]}


# ---------------------------------------------------------------- DIANA

SCALE = pick(
    "scale",
    Value("d/k", "entries that are drawn are multiplied by d/k, so that their mean is right", PUBLISHED),
    Value("1", "entries that are drawn are not multiplied by d/k", ERROR),
)
SHIFTED = pick(
    "compressed",
    Value("difference", "clients compress grad f_i(x) - h_i", PUBLISHED),
    Value("gradient", "clients compress grad f_i(x): h_i is not used", ERROR),
)
ALPHA = pick(
    "client memory",
    Value("alpha", "clients renew h_i <- h_i + alpha m_i", PUBLISHED),
    Value("1", "clients renew h_i <- h_i + m_i: alpha is missing", ERROR),
    Value("lost", "clients take h_i = alpha m_i: the old one is lost", ERROR),
    Value("-alpha", "clients renew h_i <- h_i - alpha m_i: the sign is wrong", ERROR),
    shown=lambda exam, r: r.get("compressed") == "difference",
)
MEAN = pick(
    "server memory",
    Value("alpha", "the server renews h <- h + alpha sum_i p_i m_i", PUBLISHED),
    Value("1", "the server renews h <- h + sum_i p_i m_i: alpha is missing", ERROR),
    Value("never", "the server never renews h, or does not use it", ERROR),
    shown=lambda exam, r: r.get("compressed") == "difference",
)


def reply_diana(exam: Exam, r: Mapping[str, str], state: State, k: int, batches: Sequence[int], before: Any) -> Any:
    """Return what a client sends, with the entries that it drew, and its h_i."""
    g, h, alpha = gradient(exam.hyper, r, *exam.clients[k], state["sent"]), state["g_i"][k], exam.hyper["alpha"]
    v = (g - h if r.get("compressed", "difference") == "difference" else g).ravel()
    m, at = np.zeros(v.size), list(batches)
    m[at] = (v.size / len(at) if r.get("scale", "d/k") == "d/k" else 1.0) * v[at]
    m = m.reshape(g.shape)
    kept = {"1": h + m, "lost": alpha * m, "-alpha": h - alpha * m}.get(r.get("client memory", ""), h + alpha * m)
    return {"w": state["sent"], "sent": m, "kept": kept}


def move_diana(exam: Exam, r: Mapping[str, str], state: State, who: Sequence[int], replies: Any) -> State:
    """Return the state after a step along h and what was sent."""
    sent, alpha = _mean(exam, r, who, [a["sent"] for a in replies]), exam.hyper["alpha"]
    shifted = r.get("compressed", "difference") == "difference"
    w = state["w"] - averaging.step_size(exam, r, 0, 0) * (state["g"] + sent if shifted else sent)
    by = {"1": 1.0, "never": 0.0}.get(r.get("server memory", ""), alpha)
    moved = {"t": state["t"] + 1, "g": state["g"] + by * sent, "g_i": tuple(a["kept"] for a in replies)}
    return state | moved | {"w": w, "sent": w, "before": state["w"]}


FAMILIES = (
    Family("ef21", "gradient descent with compressed differences", "Richtarik et al., NeurIPS 2021, Algorithm 2",
           (*PLAIN, START, COMPRESSED, OWN, SERVER), ("one step", "four rounds"), {"local_steps": 1, "epochs": 1},
           ("top",), first=first, reply=reply_ef21, move=move_ef21, at_server=()),
    Family("diana", "gradient descent with unbiased compressed differences", "Mishchenko et al., 2019, Algorithm 1",
           (*PLAIN, SCALE, SHIFTED, ALPHA, MEAN), ("coordinates",), {"alpha": 0.3}, ("alpha", "top"),
           first=first, reply=reply_diana, move=move_diana, at_server=()),
)  # fmt: skip
