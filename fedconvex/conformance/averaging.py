"""The averaging family in NumPy: what clients answer and what the server makes of it, as a reading has it.

FedAvg (McMahan et al. 2017), FedProx (Li et al. 2020), SCAFFOLD (Karimireddy et al. 2020, Algorithm 1), FedOpt (Reddi
et al. 2021, Algorithms 1 and 2), FedNova (Wang et al. 2020), FedSAM (Qu et al. 2022), DynamicFedAvg (Rizk et al. 2020).
Functions take an exam, a reading and a state, and change none of them. Lines that the papers share stand once; a
convention that a family does not have keeps its first value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedconvex.conformance.exams import Exam
from fedconvex.conformance.objectives import gradient, minimiser, values_gradients

State = dict[str, Any]
SERVER_STEP = (  # conventions of the server's step along the average difference
    *("server step", "server", "v_0", "epsilon", "bias correction", "first moment", "square", "v read"),
    *("yogi sign", "betas", "delta"),
)
AT_SERVER = ("weights", "share", "sampling", "normalisation", *SERVER_STEP)  # that only `move` reads in a first round


def first(exam: Exam, r: Mapping[str, str]) -> State:
    """Return the state before the first round: the start, and memories at zero."""
    w, K = exam.hyper["start"], len(exam.clients)
    zero = np.zeros_like(w)
    v = {"0": 0.0, "tau^2": exam.hyper["epsilon"] ** 2, "tau": exam.hyper["epsilon"], "0.1": 0.1, "1e-6": 1e-6}
    m_0 = -1e-6 if r.get("v_0", "").endswith("m too") else 0.0  # m is of Delta, and what they start that of -Delta
    return {
        "t": 0, "w": w, "sent": w, "w0": w, "before": w, "own": (w,) * K, "s": 1.0, "velocity": (zero,) * K,
        "c": zero, "c_before": zero, "c_i": (zero,) * K, "m": zero + m_0,
        "v": zero + v[r.get("v_0", "0").split(",")[0]], "mu": exam.hyper["proximal_mu"], "falls": 0,
    }  # fmt: skip


def step_size(exam: Exam, r: Mapping[str, str], t: int, i: int) -> float:
    """Return the local step size in round t, after i local steps in all."""
    eta = exam.hyper["step_size"] * (-1.0 if r.get("direction") == "ascent" else 1.0)
    divisor = {"1/(1+t)": 1.0 + t, "1/sqrt(1+t)": (1.0 + t) ** 0.5, "1/(1+i)": 1.0 + i}.get(r.get("schedule", ""), 1.0)
    return eta / divisor


# ---------------------------------------------------------------- clients


def reply(
    exam: Exam, r: Mapping[str, str], state: State, k: int, batches: Sequence[Any], before: Any
) -> dict[str, Any]:
    """Return what client k answers after steps on these batches; before is the answer of the client before it."""
    X, y = exam.clients[k]
    starts = {"own": state["own"][k], "previous": before["w"] if before else state["sent"]}
    w: Any = starts.get(r.get("start", ""), state["sent"])
    if r.get("solver") == "exact":
        mu: float = state["mu"] * (2.0 if r["prox"] == "mu d^2" else 1.0)
        return {"w": minimiser(exam.hyper, r, X, y, state["w"], mu), "steps": exam.steps} | _rise(exam, r, state, k)
    batches = asked(r, batches) if exam.events != "batches" else batches
    memory, total = (state["velocity"][k], np.zeros_like(w)), 0.0
    for i, rows in enumerate(batches):
        number = state["t"] * len(batches) + i
        eta = step_size(exam, r, state["t"], number)
        eta /= len(batches) if r.get("local step") == "eta/E" else 1.0
        g = _slope(exam, r, X[list(rows)], y[list(rows)], w, number) + _pull(exam, r, state, k, w, len(batches))
        g = state["bend"](g, w, i) if "bend" in state else g
        move_by, memory = _client_step(exam, r, g, memory, i + 1)
        w, total = w - eta * move_by, total + eta
    answer = {"w": w, "steps": len(batches), "total": total, "velocity": memory[0]}
    if "control" in r:
        answer["c_i"] = renewed(exam, r, state, k, w, answer)
    return answer | _rise(exam, r, state, k)


def _rise(exam: Exam, r: Mapping[str, str], state: State, k: int) -> dict[str, float]:
    """Return by how much a client's objective rose in the last round, where mu goes by it."""
    if r.get("mu rule") != "adaptive":
        return {}
    now, then = (values_gradients(exam.hyper, r, *exam.clients[k], u)[0] for u in (state["w"], state["before"]))
    return {"rise": now - then if abs(now - then) > 1e-13 * (abs(now) + abs(then)) else 0.0}


def asked(r: Mapping[str, str], batches: Sequence[Any]) -> Sequence[Any]:
    """Return the full batches of a client's local steps: as many as asked, or not."""
    kinds = {"fewer": batches[:-1], "more": [*batches, batches[-1]], "one": batches[:1]}
    return kinds.get(r.get("steps", ""), batches)


def _slope(exam: Exam, r: Mapping[str, str], X: np.ndarray, y: np.ndarray, w: np.ndarray, number: int) -> np.ndarray:
    """Return the gradient over a batch, at w or, in local step so and so, at the worst point near it."""
    b = exam.hyper["batch_size"]
    full = r.get("last batch") == "full divisor" and b is not None and len(y) < b

    def slope(u: np.ndarray) -> np.ndarray:
        if not full:
            return gradient(exam.hyper, r, X, y, u)
        ridge = gradient(exam.hyper | {"l2": 0.0}, r, X, y, u)
        return gradient(exam.hyper, r, X, y, u) + (len(y) / b - 1.0) * ridge

    g, how, rho = slope(w), r.get("perturbation", "absent"), exam.hyper["rho"]
    rho /= 1.0 + number if r.get("rho rule") == "1/(1+i)" else 1.0
    if how == "absent":
        return g
    length = {"not normalised": 1.0, "squared norm": np.sum(g * g)}.get(how, np.sqrt(np.sum(g * g)))
    return slope(w + (-rho if how == "downhill" else rho) * g / length) if np.any(g) else g


def _pull(exam: Exam, r: Mapping[str, str], state: State, k: int, w: np.ndarray, steps: int) -> Any:
    """Return what is added to the gradient: the proximal term's, or the control variates."""
    if "prox" in r:
        anchors = {"stale": state["before"], "zero": 0.0 * w, "first": state["w0"], "own": state["own"][k]}
        d, mu = w - anchors.get(r.get("anchor", ""), state["w"]), state["mu"]
        norm = np.sqrt(np.sum(d * d))
        of = {"(mu/2) d^2": mu * d, "mu d^2": 2.0 * mu * d, "-(mu/2) d^2": -mu * d, "absent": 0.0 * d, "d^2/2": d}
        return of[r["prox"]] if r["prox"] in of else (0.5 * mu if norm == 0.0 else 0.5 * mu / norm) * d
    if "control" in r:
        c, c_k = state["c_before"] if r.get("c read") == "stale" else state["c"], state["c_i"][k]
        of = {"-c_i + c": c - c_k, "+c_i - c": c_k - c, "-c_i": -c_k, "+c": c, "-c_i - c": -c_k - c, "absent": 0.0 * c}
        return of[r["control"]]
    return 0.0


def _client_step(exam: Exam, r: Mapping[str, str], g: np.ndarray, memory: Any, t: int) -> tuple[np.ndarray, Any]:
    """Return the direction of a client optimiser's step number t, and its memory."""
    how, h, (m, v) = r.get("client", "sgd"), exam.hyper, memory
    if how == "sgd":
        return g, memory
    if how == "adam":
        m, v = h["beta1"] * m + (1.0 - h["beta1"]) * g, h["beta2"] * v + (1.0 - h["beta2"]) * g * g
        fixed = m / (1.0 - h["beta1"] ** t), v / (1.0 - h["beta2"] ** t)
        return fixed[0] / (np.sqrt(fixed[1]) + h["epsilon"]), (m, v)
    beta = h["client_momentum"]
    m = beta * m + (1.0 - beta if how == "damped" else 1.0) * g
    return g + beta * m if how == "nesterov" else m, (m, v)


def renewed(exam: Exam, r: Mapping[str, str], state: State, k: int, y: np.ndarray, answer: Mapping[str, Any]) -> Any:
    """Return c_i^+ of SCAFFOLD, by option I or II."""
    x, c, c_k = state["w"], state["c_before"] if r.get("c read") == "stale" else state["c"], state["c_i"][k]
    if r.get("option", "II") == "I":
        return gradient(exam.hyper, r, *exam.clients[k], x)
    if r.get("renewal") == "never" or not answer["steps"]:
        return c_k
    eta, K = answer["total"] / answer["steps"], answer["steps"]
    divisor = {"K": K, "eta": eta, "1": 1.0}.get(r.get("divisor", ""), answer["total"])
    mean = (x - y) / divisor
    of = {"c_i + c": c_k + c + mean, "c_i": c_k + mean, "-c": mean - c, "without": mean}
    return of.get(r.get("renewal", ""), c_k - c + mean)


# ---------------------------------------------------------------- server


def shares(exam: Exam, r: Mapping[str, str], who: Sequence[int]) -> np.ndarray:
    """Return what the answers of a round's clients are multiplied by."""
    n, K, name = (
        np.array(exam.hyper.get("sizes", exam.sizes), dtype=float),
        len(exam.sizes),
        r.get("weights", "n_k/n").split(",")[0],
    )
    one, inverse = np.ones(K), 1.0 / n
    p = {"n_k/n": n / n.sum(), "1/K": one / K, "n_k": n, "1": one, "1/n_k": inverse / inverse.sum()}[name]
    q, how = p[list(who)], r.get("share", "renormalised") if exam.events == "partial" else "renormalised"
    if name in ("n_k", "1"):
        return q
    if how == "plain":
        return np.full(len(who), 1.0 / len(who))
    scale = K / len(who) if how in ("unbiased", "Scheme II", "twice") else 1.0
    return scale * (q / q.sum() if how in ("renormalised", "twice") else q)


def average(exam: Exam, r: Mapping[str, str], w: np.ndarray, q: np.ndarray, models: Sequence[np.ndarray]) -> np.ndarray:
    """Return the average of models that weigh q, seen from w: what is missing to 1 stays at w."""
    summed = r.get("share") in ("shrinking", "Scheme II") and exam.events == "partial"
    if summed or r.get("weights", "").endswith("models"):
        return np.tensordot(q, np.stack(models), 1)
    return w + np.tensordot(q, np.stack([u - w for u in models]), 1)


def move(
    exam: Exam, r: Mapping[str, str], state: State, who: Sequence[int], replies: Sequence[Mapping[str, Any]]
) -> State:
    """Return the state after the server has heard a round's clients."""
    w, q, models = state["sent"], shares(exam, r, who), [a["w"] for a in replies]
    if "normalisation" in r:
        models = _normalised(r, w, q, replies)
    new = state | {"t": state["t"] + 1, "before": w, "c_before": state["c"], "own": _put(state["own"], who, models)}
    if r.get("late") == "dropped" and exam.events == "stragglers":
        q, models = _in_time(exam, r, who, replies, w)
    if r.get("velocity") == "kept" and r.get("client") in ("momentum", "damped", "nesterov"):
        new["velocity"] = _put(state["velocity"], who, [a["velocity"] for a in replies])
    if "control" in r:
        _controls(exam, r, state, new, who, replies)
    if r.get("mu rule") == "adaptive":
        rise = float(shares(exam, r, who) @ np.array([a["rise"] for a in replies]))
        falls = state["falls"] + 1 if rise < 0.0 else 0
        shrink = max(state["mu"] - 0.1, 0.0) if falls >= 5 else state["mu"]
        new["mu"], new["falls"] = (state["mu"] + 0.1 if rise > 0.0 else shrink), falls % 5
    _server_step(exam, r, state, new, average(exam, r, w, q, models) - w)
    new["sent"] = new["w"]
    if r.get("acceleration") == "fista":
        new["s"] = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * state["s"] ** 2))
        new["sent"] = new["w"] + (state["s"] - 1.0) / new["s"] * (new["w"] - state["w"])
    return new


def _put(old: Sequence[Any], who: Sequence[int], values: Sequence[Any]) -> tuple[Any, ...]:
    at = dict(zip(who, values, strict=True))
    return tuple(at.get(k, u) for k, u in enumerate(old))


def _in_time(exam: Exam, r: Mapping[str, str], who: Sequence[int], replies: Any, w: np.ndarray) -> Any:
    """Return the weights and models of clients that did all their steps, or the model alone."""
    kept = [j for j, a in enumerate(replies) if a["steps"] == exam.steps]
    return (shares(exam, r, [who[j] for j in kept]), [replies[j]["w"] for j in kept]) if kept else (np.ones(1), [w])


def _normalised(r: Mapping[str, str], w: np.ndarray, q: np.ndarray, replies: Any) -> list[np.ndarray]:
    """Return the models of FedNova: updates per step, times an effective number of steps."""
    tau = np.array([max(1, a["steps"]) for a in replies], dtype=float)
    effective = {"mean": tau.mean(), "largest": tau.max(), "1": 1.0}.get(r["normalisation"], float(q @ tau / q.sum()))
    scale = np.ones_like(tau) if r["normalisation"] == "absent" else effective / tau
    return [w + s * (a["w"] - w) for s, a in zip(scale, replies, strict=True)]


def _controls(exam: Exam, r: Mapping[str, str], state: State, new: State, who: Sequence[int], replies: Any) -> None:
    """Renew the control variates of SCAFFOLD in the new state."""
    changes = np.stack([a["c_i"] - state["c_i"][k] for k, a in zip(who, replies, strict=True)])
    new["c_i"] = _put(state["c_i"], who, [a["c_i"] for a in replies])
    if r.get("client memory") == "lost":
        new["c_i"] = state["c_i"]
    name = r.get("weights", "1/K") if r.get("c weights") == "as models" else "1/K"
    p = shares(exam._replace(events="partial"), {"weights": name, "share": "of all"}, who)
    how, N, S = r.get("server c", "N"), len(exam.clients), len(who)
    factor = {"S": N / S, "never": 0.0, "-": -1.0, "sum": float(N)}.get(how, 1.0)
    new["c"] = (0.0 if how == "replaced" else state["c"]) + factor * np.tensordot(p, changes, 1)


def stepped(exam: Exam, r: Mapping[str, str], state: State, delta: np.ndarray) -> np.ndarray:
    """Return the model after the server's first step along an average difference, or along each of a stack."""
    new = state | {"t": 1}
    _server_step(exam, r, state, new, delta)
    return np.asarray(new["w"])


def _server_step(exam: Exam, r: Mapping[str, str], state: State, new: State, delta: np.ndarray) -> None:
    """Move the new state's model along the average difference, by SERVEROPT."""
    how, h, w = r.get("server", "average"), exam.hyper, state["sent"]
    own = "server step" in r or how != "average"
    lr = h["server_step_size"] if own and r.get("server step") != "ignored" else 1.0
    delta = -delta if r.get("delta") == "reversed" else delta
    if how in ("average", "plain"):
        new["w"] = w + lr * delta
    elif how in ("adam", "yogi", "adagrad"):
        new["w"] = w + lr * _adaptive(r, h, state, new, delta)
    else:
        beta = h["momentum"]
        m = beta * state["m"] + (1.0 - beta if "damped" in how else 1.0) * delta
        m = -beta * state["m"] + delta if how == "negative momentum" else m
        new["m"], new["w"] = m, w + lr * (beta * m + delta if how == "nesterov" else m)
        if how == "nesterov, damped":
            new["w"] = w + lr * (beta * m + (1.0 - beta) * delta)


def _squared_norm(h: Mapping[str, Any], delta: np.ndarray) -> Any:
    """Return the squared norm of an update, or of each in a stack."""
    return np.sum(delta * delta, axis=tuple(range(-h["start"].ndim, 0)), keepdims=True)


def _adaptive(r: Mapping[str, str], h: Mapping[str, Any], state: State, new: State, delta: np.ndarray) -> np.ndarray:
    """Return the direction of FedAdam, FedYogi or FedAdagrad, and renew m and v in the new state."""
    b1, b2, tau, t = h["beta1"], h["beta2"], h["epsilon"], new["t"]
    b1, b2 = (b2, b1) if r.get("betas") == "swapped" and r["server"] != "adagrad" else (b1, b2)
    first_moment = r.get("first moment", "damped")
    m = delta if first_moment == "absent" else b1 * state["m"] + (1.0 - b1 if first_moment == "damped" else 1.0) * delta
    s = {"of m": m * m, "norm": _squared_norm(h, delta) + 0.0 * delta}.get(r.get("square", ""), delta * delta)
    s = state["square"](delta) if "square" in state else s
    v = state["v"]
    towards = {"yogi": -(1.0 - b2) * s * np.sign(v - s), "yogi reversed": (1.0 - b2) * s * np.sign(v - s)}
    if r["server"] == "yogi":
        v = v + towards["yogi reversed" if r.get("yogi sign") == "reversed" else "yogi"]
    else:
        v = v + s if r["server"] == "adagrad" else b2 * v + (1.0 - b2) * s
    new["m"], new["v"] = m, v
    m = b1 * m + (1.0 - b1) * delta if "ahead" in state else m
    if "largest" in state:
        new["largest"] = v = np.maximum(v, state["largest"])
    bias = r.get("bias correction", "none") if r["server"] != "adagrad" else "none"
    used = state["v"] if r.get("v read") == "stale" else v
    n = t + bias.endswith("t + 1")
    if bias.startswith("step"):
        m = m / (1.0 - b1**n) * np.sqrt(1.0 - b2**n)
    elif bias != "none":
        m, used = m / (1.0 - b1**n), used if bias == "m only" else used / (1.0 - b2**n)
    used = np.maximum(used, 0.0)
    root = {"inside": np.sqrt(used + tau), "inside, squared": np.sqrt(used + tau * tau), "no root": used + tau}
    return m / root.get(r.get("epsilon", ""), np.sqrt(used) + tau)
