"""FedDyn in NumPy (Acar et al. 2021, Algorithm 1): its conventions, what clients answer, what the server makes of it.

Client k minimises f_k(w) - <l_k, w> + (alpha/2)|w - w_t|^2, renews l_k <- l_k - alpha (w_k - w_t), and the server takes
the mean of the models less h/alpha, h being the mean of all l_k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedconvex.conformance import averaging
from fedconvex.conformance.conventions import BASE, Value, always, only, pick
from fedconvex.conformance.exams import Exam

State = dict[str, Any]


def _rounds(exam: Exam, r: Mapping[str, str]) -> bool:
    return exam.rounds > 1


def _by_steps(r: Mapping[str, str]) -> bool:
    return r.get("solver") != "exact"


def _linear(exam: Exam, r: Mapping[str, str]) -> bool:
    return exam.rounds > 1 and r.get("local terms") in ("both", "reversed")


WEIGHTS = only(BASE, "weights")[0]
UNIFORM = (  # the paper averages plainly
    WEIGHTS._replace(
        values=(
            WEIGHTS.value("1/K")._replace(kind="published"),
            WEIGHTS.value("n_k/n")._replace(kind="convention"),
            *(v for v in WEIGHTS.values if v.kind == "error"),
        )
    ),
    *only(BASE, "loss", "squared", "ridge", "direction"),
)

DYNAMIC = (
    pick(
        "local terms",
        Value("both", "clients add -<l_k, w> + (alpha/2) |w - w_t|^2", "published"),
        Value("no linear term", "clients add (alpha/2) |w - w_t|^2 alone: the linear term is missing", "error"),
        Value("neither", "clients add nothing: the linear and the quadratic term are missing", "error", _by_steps),
        Value("reversed", "clients add +<l_k, w>: the linear term has the wrong sign", "error"),
    ),
    pick(
        "renewal",
        Value("-alpha", "clients renew l_k <- l_k - alpha (w_k - w_t)", "published"),
        Value("+alpha", "clients renew l_k <- l_k + alpha (w_k - w_t): the sign is wrong", "error"),
        Value("replaced", "clients take l_k = -alpha (w_k - w_t): the old l_k is lost", "error"),
        shown=_linear,
    ),
    pick(
        "server state",
        Value("of all", "h <- h - (alpha/m) sum_k (w_k - w_t), m the number of all clients", "published"),
        Value("of those drawn", "h <- h - alpha times the mean of w_k - w_t over a round's clients"),
        Value("once", "h <- h - (alpha/m) (sum_k w_k - w_t): w_t is subtracted once, not once a client", "error"),
        Value("never", "h is not renewed, or not used", "error"),
        Value("+alpha", "h <- h + (alpha/m) sum_k (w_k - w_t): the sign is wrong", "error"),
        shown=always,
    ),
)


def first(exam: Exam, r: Mapping[str, str]) -> State:
    """Return the state before the first round: the start, and l_k = h = 0."""
    state = averaging.first(exam, r)
    return state | {"l": (state["c"],) * len(exam.clients), "h": state["c"]}


def reply(exam: Exam, r: Mapping[str, str], state: State, k: int, batches: Sequence[Any], before: Any) -> Any:
    """Return a client's model, and its l_k: both terms together are (alpha/2)|w - w_t - l_k/alpha|^2."""
    alpha, how, linear = exam.hyper["alpha"], r.get("local terms", "both"), state["l"][k]
    anchor = state["sent"] + {"both": 1.0, "reversed": -1.0}.get(how, 0.0) * linear / alpha
    around = state | {"w": anchor, "mu": 0.0 if how == "neither" and _by_steps(r) else alpha}
    answer = averaging.reply(exam, {**r, "prox": "(mu/2) d^2"}, around, k, batches, before)
    change = alpha * (answer["w"] - state["sent"])
    renewed = {"+alpha": linear + change, "replaced": -change}.get(r.get("renewal", ""), linear - change)
    return answer | {"l": renewed}


def move(exam: Exam, r: Mapping[str, str], state: State, who: Sequence[int], replies: Any) -> State:
    """Return the state after the models were averaged, and the mean of all l_k was taken off."""
    new, w, alpha = averaging.move(exam, r, state, who, replies), state["sent"], exam.hyper["alpha"]
    kept = dict(zip(who, (a["l"] for a in replies), strict=True))
    new["l"] = tuple(kept.get(k, old) for k, old in enumerate(state["l"]))
    how, m = r.get("server state", "of all"), len(who) if r.get("server state") == "of those drawn" else len(state["l"])
    change = sum(a["w"] for a in replies) - (1 if how == "once" else len(who)) * w
    new["h"] = state["h"] - {"never": 0.0, "+alpha": -1.0}.get(how, 1.0) * alpha / m * change
    new["w"] = new["w"] - new["h"] / alpha
    return new | {"sent": new["w"]}
