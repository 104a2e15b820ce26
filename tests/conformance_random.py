"""Correct implementations of random conventions, written row by row and free of the references that examine them."""

from __future__ import annotations

import numpy as np

from fedconvex.conformance import can

COMMON = {
    "weights": ("n_k/n", "1/K"),
    "loss": ("mean", "sum"),
    "squared": ("half", "whole"),
    "ridge": ("l2/2", "l2"),
    "share": ("renormalised", "of all", "Scheme II"),
    "sampling": ("distinct", "replacement"),
    "work": ("shuffled", "in order"),
    "last batch": ("kept", "dropped", "filled"),
    "draw": ("distinct", "replacement", "passes", "stream"),
}
OWN = {
    "fedavg": {"schedule": ("constant", "1/(1+t)", "1/sqrt(1+t)"), "client": ("sgd", "momentum", "nesterov")},
    "fedprox": {"prox": ("(mu/2) d^2", "mu d^2", "(mu/2) d")},
    "scaffold": {"option": ("I", "II"), "server c": ("N", "S")},
    "fedopt": {
        "server": ("plain", "heavy-ball", "damped", "nesterov", "adam", "yogi", "adagrad"),
        "v_0": ("tau^2", "0", "0.1", "1e-6, m too"),
        "epsilon": ("outside", "inside"),
        "bias correction": ("none", "both", "both, t + 1"),
    },
    "afl": {
        "ascent": ("projected", "exponentiated"),
        "order": ("at once", "weights first", "model first"),
        "output": ("average before", "average after", "average of all", "last"),
        "first weights": ("uniform", "n_k/n"),
    },
}


def draw(rng):
    """A family, and a choice for each of its conventions."""
    family = str(rng.choice(list(OWN)))
    return family, {name: str(rng.choice(values)) for name, values in (COMMON | OWN[family]).items()}


def slope(h, c, w, X, y):
    """The gradient over a batch: one row after the other."""
    g = np.zeros_like(w)
    for row, label in zip(X, y, strict=True):
        if h["loss"] == "squared":
            g += (row @ w - label) * row * (2 if c["squared"] == "whole" else 1)
        elif h["loss"] == "logistic":
            g += (1 / (1 + np.exp(-row @ w)) - label) * row
        else:
            p = np.exp(w @ row)
            p /= p.sum()
            p[label] -= 1
            g += np.outer(p, row)
    g = g / len(y) if c["loss"] == "mean" else g
    return g + h["l2"] * w * (2 if c["ridge"] == "l2" else 1)


def value(h, c, w, X, y):
    """The loss of a domain, without the ridge."""
    total = sum((row @ w - label) ** 2 for row, label in zip(X, y, strict=True))
    total = total if c["squared"] == "whole" else total / 2
    return total if c["loss"] == "sum" else total / len(y)


def batches(h, c, n, rng):
    """The rows of every local step."""
    b = h["batch_size"]
    if b is None:
        return [np.arange(n)] * h["local_steps"]
    if not h["epochs"]:
        steps = h["local_steps"]
        if c["draw"] in ("passes", "stream"):
            passes = [rng.permutation(n) for _ in range(steps * b)]
            rows = passes if c["draw"] == "passes" else [np.concatenate(passes)]
            return [part[i : i + b] for part in rows for i in range(0, len(part), b)][:steps]
        return [rng.choice(n, min(b, n), replace=c["draw"] == "replacement") for _ in range(steps)]
    order = rng.permutation(n) if c["work"] == "shuffled" else np.arange(n)
    if c["last batch"] == "filled":
        again = rng.permutation(n) if c["work"] == "shuffled" else np.arange(n)
        order = np.concatenate([order, again[: -n % b]])
    cut = [order[i : i + b] for i in range(0, n, b)]
    return cut[:-1] if c["last batch"] == "dropped" and len(cut) > 1 and len(cut[-1]) < b else cut


def simplex(x):
    """The nearest point of the simplex, by bisection on what is taken off every entry."""
    low, high = x.min() - 1, x.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(x - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(x - (low + high) / 2, 0)


class Client:
    """A client, with what it remembers."""

    def __init__(self, X, y, shape):
        self.X, self.y, self.control = X, y, np.zeros(shape)

    def work(self, h, c, family, w, t, server, rng):
        """Its model after local steps."""
        v, m = w.copy(), 0 * w
        eta = h["step_size"] / {"1/(1+t)": 1 + t, "1/sqrt(1+t)": np.sqrt(1 + t)}.get(c.get("schedule"), 1)
        steps = batches(h, c, len(self.y), rng)
        for rows in steps:
            g = slope(h, c, v, self.X[rows], self.y[rows])
            if family == "fedprox":
                away, far = v - w, np.linalg.norm(v - w)
                g = g + h["proximal_mu"] * {"(mu/2) d^2": 1, "mu d^2": 2}.get(c["prox"], 0.5 / (far or 1)) * away
            if family == "scaffold":
                g = g - self.control + server
            m = h["client_momentum"] * m + g
            v = v - eta * {"momentum": m, "nesterov": g + h["client_momentum"] * m}.get(c.get("client"), g)
        if family == "scaffold":
            old = self.control
            second = old - server + (w - v) / (len(steps) * eta)
            self.control = slope(h, c, w, self.X, self.y) if c["option"] == "I" else second
            return v, self.control - old
        return v, None


class Server:
    """What the server of FedOpt remembers, and its step."""

    def __init__(self, h, c, w):
        v_0 = {"tau^2": h["epsilon"] ** 2, "0.1": 0.1, "1e-6, m too": 1e-6}.get(c.get("v_0"), 0)
        self.m, self.v, self.t = 0 * w, v_0 + 0 * w, 0
        if v_0 == 1e-6 and c["server"] in ("adam", "yogi", "adagrad"):
            self.m = self.m - 1e-6

    def step(self, h, c, delta):
        how, lr, b1, b2 = c["server"], h["server_step_size"], h["beta1"], h["beta2"]
        self.t += 1
        if how in ("plain", "heavy-ball", "damped", "nesterov"):
            beta = 0 if how == "plain" else h["momentum"]
            self.m = beta * self.m + ((1 - beta) if how == "damped" else 1) * delta
            return lr * (delta + beta * self.m if how == "nesterov" else self.m)
        self.m, square = b1 * self.m + (1 - b1) * delta, delta**2
        if how == "yogi":
            self.v = self.v - (1 - b2) * square * np.sign(self.v - square)
        else:
            self.v = self.v + square if how == "adagrad" else b2 * self.v + (1 - b2) * square
        m, v, n = self.m, self.v, self.t + (c["bias correction"] == "both, t + 1")
        if how != "adagrad" and c["bias correction"] != "none":
            m, v = m / (1 - b1**n), v / (1 - b2**n)
        return lr * m / (np.sqrt(v + h["epsilon"]) if c["epsilon"] == "inside" else np.sqrt(v) + h["epsilon"])


def averaging(family, c):
    """An implementation of an averaging family with conventions c."""

    def train(clients, h, rounds):
        rng, w, models = np.random.default_rng(h["seed"]), h["start"], []
        K, everyone = len(clients), [Client(X, y, w.shape) for X, y in clients]
        opt, control, n = Server(h, c, w), 0 * w, sum(len(y) for _, y in clients)
        for t in range(rounds):
            m = h["participants"]
            who = range(K) if m is None else rng.choice(K, m, replace=c["sampling"] == "replacement")
            done = {k: everyone[k].work(h, c, family, w, t, control, rng) for k in dict.fromkeys(who)}
            share = {k: len(clients[k][1]) / n if c["weights"] == "n_k/n" else 1 / K for k in done}
            total = sum(share[k] for k in who) if c["share"] == "renormalised" or m is None else 1
            delta = sum(share[k] / total * (done[k][0] - w) for k in who)
            if c["share"] == "Scheme II" and m is not None:
                delta = sum(share[k] * K / m * done[k][0] for k in who) - w
            if family == "scaffold":
                delta = delta * h["server_step_size"]
                control = control + sum(done[k][1] for k in who) / (K if c["server c"] == "N" else len(who))
            w = w + (opt.step(h, c, delta) if family == "fedopt" else delta)
            models.append(w)
        return models

    return train


def agnostic(c):
    """An implementation of AFL with conventions c."""

    def train(clients, h, rounds):
        w, models, met, K = h["start"], [], [], len(clients)
        p = np.array([len(y) for _, y in clients], float) if c["first weights"] == "n_k/n" else np.ones(K)
        p = p / p.sum()

        def up(p, at):
            losses = h["domain_step_size"] * np.array([value(h, c, at, X, y) for X, y in clients])
            if c["ascent"] == "projected":
                return simplex(p + losses)
            q = p * np.exp(losses)
            return q / q.sum()

        for _ in range(rounds):
            p = up(p, w) if c["order"] == "weights first" else p
            new = w - h["step_size"] * sum(a * slope(h, c, w, X, y) for a, (X, y) in zip(p, clients, strict=True))
            if c["order"] != "weights first":
                p = up(p, new if c["order"] == "model first" else w)
            if c["output"] == "average of all" and not met:
                met.append(w)
            met.append(w if c["output"] == "average before" else new)
            models.append(new if c["output"] == "last" else np.mean(met, axis=0))
            w = new
        return models

    return train


def implementation(family, c, rng):
    """An implementation with conventions c; what it says that it can do is drawn, too."""
    if family == "afl":
        return can(losses=("squared",), partial=False, batches=())(agnostic(c))
    again = family in ("scaffold",) and c["sampling"] == "replacement"  # a client drawn twice renews c_i once
    loss = str(rng.choice(["squared", "logistic", "multinomial"], p=[0.7, 0.2, 0.1]))
    partial = bool(rng.random() < 0.5) and not again
    ways = [(), ("epochs",), ("steps",)][rng.integers(3)] if family != "fedopt" else ()
    return can(losses=(loss,), partial=partial, batches=ways)(averaging(family, c))
