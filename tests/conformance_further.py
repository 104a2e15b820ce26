"""Plain implementations of further families, each with places where one error can be planted; no reference is used."""

from __future__ import annotations

import numpy as np

from fedconvex.conformance import can

FULL = {"losses": ("squared",), "partial": False, "batches": ()}


def slope(h, X, y, w):
    return X.T @ (X @ w - y) / len(y) + h["l2"] * w


def shares(clients):
    n = np.array([len(y) for _, y in clients], float)
    return n / n.sum()


def fedlin(clients, h, rounds, own=1.0, every=True, tau=True):
    w, models, p, g = h["start"], [], shares(clients), None
    for _ in range(rounds):
        at = [slope(h, X, y, w) for X, y in clients]
        g = sum(a * b for a, b in zip(p, at, strict=True)) if every or g is None else g
        new, steps = 0 * w, h["local_steps"]
        for a, (X, y), mine in zip(p, clients, at, strict=True):
            x = w.copy()
            for _ in range(steps):
                x -= h["step_size"] / (steps if tau else 1) * (slope(h, X, y, x) - own * mine + g)
            new = new + a * x
        w = new
        models.append(w)
    return models


def mime(clients, h, rounds, lite=False, beta=None, moving=False):
    w, models, m, p = h["start"], [], 0 * h["start"], shares(clients)
    b = h["momentum"] if beta is None else beta
    for _ in range(rounds):
        at = [slope(h, X, y, w) for X, y in clients]
        c, new = sum(a * g for a, g in zip(p, at, strict=True)), 0 * w
        for a, (X, y), mine in zip(p, clients, at, strict=True):
            x, mom = w, m
            for _ in range(h["local_steps"]):
                g = slope(h, X, y, x) + (0 if lite else c - mine)
                d = (1 - b) * g + b * mom
                x, mom = x - h["step_size"] * d, d if moving else mom
            new = new + a * x
        m, w = b * m + (1 - b) * c, new
        models.append(w)
    return models


def scaffnew(clients, h, rounds, p_of=lambda p: p, sign=1.0):
    rng, w, models, p = np.random.default_rng(h["seed"]), h["start"], [], h["probability"]
    tilt, q = [0 * w for _ in clients], shares(clients)
    for _ in range(rounds):
        steps, ends = rng.geometric(p), []
        for (X, y), t in zip(clients, tilt, strict=True):
            x = w
            for _ in range(steps):
                x = x - h["step_size"] * (slope(h, X, y, x) - sign * t)
            ends.append(x)
        w = sum(a * x for a, x in zip(q, ends, strict=True))
        tilt = [t + p_of(p) / h["step_size"] * (w - x) for t, x in zip(tilt, ends, strict=True)]
        models.append(w)
    return models


def dane(clients, h, rounds, double=1.0, mean=True):
    w, models, p = h["start"], [], shares(clients)
    for _ in range(rounds):
        at = [slope(h, X, y, w) for X, y in clients]
        g, new = sum(a * b for a, b in zip(p, at, strict=True)), 0 * w
        for a, (X, y), mine in zip(p, clients, at, strict=True):
            mu, n = double * h["proximal_mu"], len(y)
            H = X.T @ X / n + (h["l2"] + mu) * np.eye(w.size)
            new = new + a * np.linalg.solve(H, X.T @ y / n + mine - (g if mean else 0) + mu * w)
        w = new
        models.append(w)
    return models


def top(v, k):
    return np.where(np.abs(v) >= np.sort(np.abs(v))[-k], v, 0.0)


def ef21(clients, h, rounds, start=True, keep=True, server=True):
    w, models, g, p = h["start"], [], 0 * h["start"], shares(clients)
    known = [0 * w for _ in clients]
    for t in range(rounds):
        sent = []
        for i, (X, y) in enumerate(clients):
            d = slope(h, X, y, w) - known[i]
            c = d if start and t == 0 else top(d, h["top"])
            known[i] = known[i] + c if keep else c
            sent.append(c)
        c = sum(a * v for a, v in zip(p, sent, strict=True))
        g = g + c if server else c
        w = w - h["step_size"] * g
        models.append(w)
    return models


def diana(clients, h, rounds, scaled=True, alpha=True, server=True):
    rng, w, models, p = np.random.default_rng(h["seed"]), h["start"], [], shares(clients)
    known, mean, d, k = [0 * w for _ in clients], 0 * w, w.size, h["top"]
    for _ in range(rounds):
        total = 0 * w
        for i, (X, y) in enumerate(clients):
            m, at = 0 * w, rng.choice(d, k, replace=False)
            m[at] = (d / k if scaled else 1) * (slope(h, X, y, w) - known[i])[at]
            known[i], total = known[i] + (h["alpha"] if alpha else 1) * m, total + p[i] * m
        w = w - h["step_size"] * (mean + total)
        mean = mean + h["alpha"] * total if server else mean
        models.append(w)
    return models


def robust(clients, h, rounds, how="median"):
    w, models = h["start"], []
    for _ in range(rounds):
        ends = []
        for X, y in clients:
            x = w
            for _ in range(h["local_steps"]):
                x = x - h["step_size"] * slope(h, X, y, x)
            ends.append(x)
        cut, sorted_ = int(h["trim"] * len(clients)), np.sort(np.array(ends), axis=0)
        kept = sorted_[cut : len(ends) - cut] if how == "trimmed" else sorted_[: len(ends) - cut]
        w = np.median(ends, axis=0) if how == "median" else kept.mean(axis=0)
        models.append(w)
    return models


def qfedavg(clients, h, rounds, squared=2, after=False, lipschitz=True):
    w, models, q, L = h["start"], [], h["q"], 1 / h["step_size"] if lipschitz else 1.0
    for _ in range(rounds):
        top_, bottom = 0 * w, 0.0
        for X, y in clients:
            x = w
            for _ in range(h["local_steps"]):
                x = x - h["step_size"] * slope(h, X, y, x)
            at = x if after else w
            F = ((X @ at - y) ** 2).mean() / 2 + h["l2"] * at @ at / 2
            D = L * (w - x)
            top_, bottom = top_ + F**q * D, bottom + q * F ** (q - 1) * np.linalg.norm(D) ** squared + L * F**q
        w = w - top_ / bottom
        models.append(w)
    return models


RIGHT = {  # family, settings: conventions that must be read
    "fedlin": ("fedlin", fedlin, {}, {"correction": "both", "local step": "eta/tau"}),
    "fedlin, whole steps": ("fedlin", fedlin, {"tau": False}, {"local step": "eta"}),
    "mime": ("mime", mime, {}, {"correction": "both", "base": "momentum"}),
    "mimelite": ("mime", mime, {"lite": True}, {"correction": "lite"}),
    "scaffnew": ("scaffnew", scaffnew, {}, {"shift": "g - h_i", "factor": "p/gamma"}),
    "dane": ("dane", dane, {}, {"correction": "both", "prox": "(mu/2) d^2"}),
    "dane, doubled": ("dane", dane, {"double": 2.0}, {"prox": "mu d^2"}),
    "ef21": ("ef21", ef21, {}, {"first": "whole", "compressed": "difference"}),
    "ef21, compressed": ("ef21", ef21, {"start": False}, {"first": "compressed"}),
    "diana": ("diana", diana, {}, {"scale": "d/k", "client memory": "alpha"}),
    "median": ("robust", robust, {}, {"aggregate": "median", "weights": "1/K"}),
    "trimmed": ("robust", robust, {"how": "trimmed"}, {"aggregate": "trimmed, whole clients"}),
    "qfedavg": ("qfedavg", qfedavg, {}, {"power": "q", "h": "both", "F_k": "with ridge"}),
}
WRONG = {  # family, the planted error, words of the first line
    "fedlin, stale": ("fedlin", fedlin, {"every": False}, ""),
    "fedlin, own": ("fedlin", fedlin, {"own": 0.0}, "the client's gradient at x is missing"),
    "mime, moving": ("mime", mime, {"moving": True}, "the momentum moves in local steps"),
    "mime, beta": ("mime", mime, {"beta": 0.3}, "the server's momentum is 0.6 times what is asked"),
    "scaffnew, p": ("scaffnew", scaffnew, {"p_of": lambda p: 1.0}, "p is missing"),
    "scaffnew, sign": ("scaffnew", scaffnew, {"sign": -1.0}, "the sign is wrong"),
    "dane, mean": ("dane", dane, {"mean": False}, "grad F is missing"),
    "dane, factor": ("dane", dane, {"double": 1.5}, "mu of the proximal term is 1.5 times"),
    "ef21, client": ("ef21", ef21, {"keep": False}, "the old one is lost"),
    "ef21, server": ("ef21", ef21, {"server": False}, "the server takes what was sent as g"),
    "diana, scale": ("diana", diana, {"scaled": False}, "not multiplied by d/k"),
    "diana, alpha": ("diana", diana, {"alpha": False}, "alpha is missing"),
    "diana, server": ("diana", diana, {"server": False}, "the server never renews h"),
    "one side": ("robust", robust, {"how": "one side"}, "only the largest entries are left out"),
    "qfedavg, norm": ("qfedavg", qfedavg, {"squared": 1}, "the norm is not squared"),
    "qfedavg, after": ("qfedavg", qfedavg, {"after": True}, "after the local steps"),
    "qfedavg, L": ("qfedavg", qfedavg, {"lipschitz": False}, "L is 1"),
}


def implementation(function, settings):
    @can(**FULL)
    def train(clients, hyper, rounds):
        with np.errstate(all="ignore"):  # errors diverge
            return function(clients, hyper, rounds, **settings)

    return train
