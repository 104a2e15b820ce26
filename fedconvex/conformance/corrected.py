"""Corrected local steps in NumPy: FedLin, Mime, Scaffnew and DANE, with full participation and full batches.

FedLin (Mitra et al. 2021), Mime and MimeLite with momentum (Karimireddy et al. 2021, Algorithm 1, from memory),
Scaffnew (Mishchenko et al. 2022, Algorithm 2), DANE (Shamir, Srebro, Zhang 2014, Figure 1). Where the gradient of all
clients is asked for first, a round is the whole exchange: a model after every second message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedconvex.conformance import averaging
from fedconvex.conformance.algorithm_family import DETERMINISTIC, Family
from fedconvex.conformance.conventions import LOCAL, PLAIN, Value, only, pick
from fedconvex.conformance.exams import Exam
from fedconvex.conformance.objectives import gradient, minimiser

State = dict[str, Any]
PUBLISHED, ERROR = "published", "error"
BASICS = (*PLAIN, *only(LOCAL, "steps"))


def _rounds(exam: Exam, r: Mapping[str, str]) -> bool:
    return exam.rounds > 1


def all_gradients(exam: Exam, r: Mapping[str, str], x: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the clients' gradients at x, and their weighted mean."""
    own = [gradient(exam.hyper, r, X, y, x) for X, y in exam.clients]
    return own, np.tensordot(averaging.shares(exam, r, range(len(own))), np.stack(own), 1)


CORRECTION = pick(
    "correction",
    Value("both", "local steps follow grad f_i(x_i) - grad f_i(x) + g, g the mean gradient at x", PUBLISHED),
    Value("own missing", "local steps follow grad f_i(x_i) + g: the client's gradient at x is missing", ERROR),
    Value("global missing", "local steps follow grad f_i(x_i) - grad f_i(x): the mean gradient is missing", ERROR),
    Value("reversed", "local steps follow grad f_i(x_i) + grad f_i(x) - g: the signs are wrong", ERROR),
)
NONE = Value("absent", "local steps follow grad f_i(x_i) alone: the correction is not used", ERROR)
READ = pick(
    "gradients at",
    Value("current", "the correction's gradients are those at the model that was just sent", PUBLISHED),
    Value("stale", "the correction's gradients are those at the model of one round earlier", ERROR),
    Value("stale mean", "the mean gradient is that at the model of one round earlier", ERROR),
    Value("first mean", "the mean gradient is that of the first round: it is never renewed", ERROR),
    shown=_rounds,
)


def correction(exam: Exam, r: Mapping[str, str], state: State, k: int) -> np.ndarray:
    """Return what is added to a client's gradients."""
    at = r.get("gradients at")
    own, mean = all_gradients(exam, r, state["before"] if at == "stale" else state["sent"])
    if at in ("stale mean", "first mean"):
        mean = all_gradients(exam, r, state["before"] if at == "stale mean" else exam.hyper["start"])[1]
    of = {"own missing": mean, "global missing": -own[k], "reversed": own[k] - mean, "absent": 0.0 * mean}
    return of.get(r.get("correction", "both"), mean - own[k])


# ---------------------------------------------------------------- FedLin

LOCAL_STEP = pick(
    "local step",
    Value("eta/tau", "local steps are eta divided by their number", PUBLISHED),
    Value("eta", "local steps are eta, whatever their number"),
)


def reply_fedlin(exam: Exam, r: Mapping[str, str], state: State, k: int, batches: Sequence[Any], before: Any) -> Any:
    """Return a client's model after corrected steps."""
    (X, y), w, added = exam.clients[k], state["sent"], correction(exam, r, state, k)
    eta, asked = averaging.step_size(exam, r, 0, 0), averaging.asked(r, batches)
    eta /= len(asked) if r.get("local step") == "eta/tau" and asked else 1.0
    for _ in asked:
        w = w - eta * (gradient(exam.hyper, r, X, y, w) + added)
    return {"w": w, "steps": len(asked)}


# ---------------------------------------------------------------- Mime

BASE_STEP = pick(
    "base",
    Value("momentum", "local steps follow (1 - beta) g + beta m, m fixed in a round", PUBLISHED),
    Value("sgd", "local steps follow g: there is no momentum", PUBLISHED),
    Value("heavy", "local steps follow g + beta m, m fixed in a round"),
    Value("moving", "the momentum moves in local steps: it is the clients' own", ERROR),
)
STATISTICS = pick(
    "statistics",
    Value("gradients", "the server's m follows the mean gradient at the model that was sent", PUBLISHED),
    Value("updates", "the server's m follows the mean update divided by its steps", ERROR),
    Value("never", "the server's m is never renewed", ERROR),
    shown=lambda exam, r: exam.rounds > 1 and r.get("base") != "sgd",
)
FIRST = pick(
    "order",
    Value("m before", "clients use m of the round before", PUBLISHED),
    Value("m first", "m is renewed before clients use it"),
    shown=lambda exam, r: r.get("base") != "sgd",
)


def _renewed(exam: Exam, r: Mapping[str, str], m: np.ndarray, g: np.ndarray) -> np.ndarray:
    beta = exam.hyper["momentum"]
    return beta * m + (1.0 if r.get("base") == "heavy" else 1.0 - beta) * g


def reply_mime(exam: Exam, r: Mapping[str, str], state: State, k: int, batches: Sequence[Any], before: Any) -> Any:
    """Return a client's model after local steps with the server's momentum."""
    (X, y), w, m, beta = exam.clients[k], state["sent"], state["m"], exam.hyper["momentum"]
    mean, eta, asked = all_gradients(exam, r, w)[1], averaging.step_size(exam, r, 0, 0), averaging.asked(r, batches)
    added = 0.0 * w if r.get("correction") == "lite" else correction(exam, r, state, k)
    m = _renewed(exam, r, m, mean) if r.get("order") == "m first" else m
    for _ in asked:
        g = gradient(exam.hyper, r, X, y, w) + added
        by = {"sgd": g, "heavy": g + beta * m}.get(r.get("base", ""), (1.0 - beta) * g + beta * m)
        m = by if r.get("base") == "moving" else m
        w = w - eta * by
    return {"w": w, "steps": len(asked), "mean": mean}


def move_mime(exam: Exam, r: Mapping[str, str], state: State, who: Sequence[int], replies: Any) -> State:
    """Return the state after models were averaged and the momentum renewed."""
    new = averaging.move(exam, r, state, who, replies)
    steps = max(1, replies[0]["steps"]) * averaging.step_size(exam, r, 0, 0)
    g = (state["sent"] - new["w"]) / steps if r.get("statistics") == "updates" else replies[0]["mean"]
    return new | {"m": state["m"] if r.get("statistics") == "never" else _renewed(exam, r, state["m"], g)}


# ---------------------------------------------------------------- Scaffnew

SHIFT = pick(
    "shift",
    Value("g - h_i", "local steps follow grad f_i(x_i) - h_i", PUBLISHED),
    Value("g + h_i", "local steps follow grad f_i(x_i) + h_i: the sign is wrong", ERROR),
    Value("absent", "local steps follow grad f_i(x_i) alone: h_i is not used", ERROR),
)
FACTOR = pick(
    "factor",
    Value("p/gamma", "h_i <- h_i + (p/gamma) (x - xhat_i)", PUBLISHED),
    Value("1/gamma", "h_i <- h_i + (1/gamma) (x - xhat_i): p is missing", ERROR),
    Value("p", "h_i <- h_i + p (x - xhat_i): the division by gamma is missing", ERROR),
    Value("-p/gamma", "h_i <- h_i - (p/gamma) (x - xhat_i): the sign is wrong", ERROR),
    shown=lambda exam, r: r.get("shift") == "g - h_i",
)
MEMORY = pick(
    "client memory",
    Value("kept", "clients keep h_i between rounds", PUBLISHED),
    Value("lost", "clients take (p/gamma) (x - xhat_i) alone: the old h_i is lost", ERROR),
    shown=lambda exam, r: r.get("shift") == "g - h_i",
)


def reply_scaffnew(exam: Exam, r: Mapping[str, str], state: State, k: int, batches: Sequence[Any], before: Any) -> Any:
    """Return xhat_i after as many shifted steps as the coins allow."""
    (X, y), w, h = exam.clients[k], state["sent"], state["c_i"][k]
    sign = {"g + h_i": 1.0, "absent": 0.0}.get(r.get("shift", ""), -1.0)
    for _ in batches:
        w = w - averaging.step_size(exam, r, 0, 0) * (gradient(exam.hyper, r, X, y, w) + sign * h)
    return {"w": w, "steps": len(batches)}


def move_scaffnew(exam: Exam, r: Mapping[str, str], state: State, who: Sequence[int], replies: Any) -> State:
    """Return the state after models were averaged, and the clients' h_i renewed."""
    new, p, gamma = averaging.move(exam, r, state, who, replies), exam.hyper["probability"], exam.hyper["step_size"]
    by = {"1/gamma": 1.0 / gamma, "p": p, "-p/gamma": -p / gamma}.get(r.get("factor", ""), p / gamma)
    kept = 0.0 if r.get("client memory") == "lost" else 1.0
    pairs = zip(state["c_i"], replies, strict=True)
    return new | {"c_i": tuple(kept * h + by * (new["w"] - a["w"]) for h, a in pairs)}


# ---------------------------------------------------------------- DANE

TERMS = pick(
    "correction",
    Value("both", "clients minimise f_i(x) - <grad f_i(x_t) - grad F(x_t), x> + (mu/2)|x - x_t|^2", PUBLISHED),
    Value("own missing", "clients minimise f_i(x) + <grad F(x_t), x> + ...: their own gradient is missing", ERROR),
    Value("global missing", "clients minimise f_i(x) - <grad f_i(x_t), x> + ...: grad F is missing", ERROR),
    Value("reversed", "clients minimise f_i(x) + <grad f_i(x_t) - grad F(x_t), x> + ...: the sign is wrong", ERROR),
    Value("absent", "clients minimise f_i(x) + (mu/2)|x - x_t|^2: the linear term is missing", ERROR),
)
PROXIMAL = pick(
    "prox",
    Value("(mu/2) d^2", "the proximal term is (mu/2)|x - x_t|^2", PUBLISHED),
    Value("mu d^2", "the proximal term is mu |x - x_t|^2"),
)


def reply_dane(exam: Exam, r: Mapping[str, str], state: State, k: int, batches: Sequence[Any], before: Any) -> Any:
    """Return the minimiser of a client's problem, to rounding."""
    mu = exam.hyper["proximal_mu"] * (2.0 if r.get("prox") == "mu d^2" else 1.0)
    around = state["sent"] - correction(exam, r, state, k) / mu
    return {"w": minimiser(exam.hyper, r, *exam.clients[k], around, mu), "steps": 1}


LITE = Value("lite", "local steps follow grad f_i(x_i): MimeLite", PUBLISHED)
FAMILIES = (
    Family("fedlin", "averaging of corrected steps", "Mitra et al., NeurIPS 2021, Algorithm 1",
           (*BASICS, CORRECTION._replace(values=(*CORRECTION.values, NONE)), READ, LOCAL_STEP), DETERMINISTIC,
           reply=reply_fedlin, at_server=()),
    Family("mime", "averaging with the server's momentum in local steps",
           "Karimireddy et al., NeurIPS 2021, Algorithm 1",
           (*BASICS, CORRECTION._replace(values=(*CORRECTION.values, LITE)), BASE_STEP, STATISTICS, FIRST),
           DETERMINISTIC, knows=("momentum",), reply=reply_mime, move=move_mime, at_server=()),
    Family("scaffnew", "local steps of a random number, shifted", "Mishchenko et al., ICML 2022, Algorithm 2",
           (*PLAIN, SHIFT, FACTOR, MEMORY), ("coins",), knows=("probability",), reply=reply_scaffnew,
           move=move_scaffnew, at_server=()),
    Family("dane", "averaging of corrected minimisers", "Shamir, Srebro, Zhang, ICML 2014, Figure 1",
           (*only(PLAIN, "weights", "loss", "squared", "ridge"), TERMS, PROXIMAL), ("one step", "four rounds"),
           knows=("proximal_mu",), reply=reply_dane, at_server=()),
)  # fmt: skip
