"""Implementations in plain NumPy, half with one planted error, that `conform` is to answer right in 20 CPU seconds.

Right ones: those of `conformance_further`, and averaging ones of random conventions (`conformance_random`), which must
not be accused of an error. Wrong ones: those of `conformance_further`, and averaging ones with errors that are in no
list of `conform`. Each must be called a deviation, with a counterexample whose script fails with it.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import conformance_random
import numpy as np
from conformance_further import RIGHT, WRONG, implementation, slope

from fedconvex.conformance import conform

SECONDS = 20.0  # of processor time for an answer


def averaging(clients: Any, h: Any, rounds: int, bug: str = "") -> Any:
    """FedAvg, FedProx, SCAFFOLD or FedAdam, with the error that is named after the colon."""
    kind, _, error = bug.partition(": ")
    w, models, n = h["start"], [], np.array([len(y) for _, y in clients], float)
    c, own, m, v = 0 * w, [0 * w for _ in clients], 0 * w, 0 * w + h["epsilon"] ** 2
    for t in range(rounds):
        ends, news = [], []
        for k, (X, y) in enumerate(clients):
            x, labels = w, np.roll(y, 1) if error == "labels of the row before" else y
            for i in range(h["local_steps"]):
                g = slope(h, X, labels, x)
                if kind == "prox":
                    mu = h["proximal_mu"] / (1 + t if error == "mu decays" else 1)
                    g = g + mu * (x - (0.5 * w if error == "half an anchor" else w))
                if kind == "scaffold":
                    g = g - own[k - 1 if error == "another client's c" else k] + c
                g = g / max(1.0, np.linalg.norm(g)) if error == "clipped" else g
                g = g * (np.arange(w.size) > 0) if error == "frozen entry" else g
                x = x - h["step_size"] * (0.5 if error == "half steps later" and i else 1.0) * g
            news.append(own[k] - c + (w - x) / (h["local_steps"] * h["step_size"]))
            ends.append(np.round(x, 4) if error == "rounded" else x)
        p = n / n.sum() if error != "first client twice" else (n + n[0] * (np.arange(n.size) == 0)) / (n.sum() + n[0])
        p = np.sqrt(n) / np.sqrt(n).sum() if error == "roots of sizes" else p
        delta = sum(a * (x - w) for a, x in zip(p, ends, strict=True))
        if kind == "scaffold":
            c = c + sum((new - old) / n.size for new, old in zip(news, own, strict=True))
            own, delta = news, h["server_step_size"] * delta
        if kind == "adam":
            m = h["beta1"] * m + (1 - h["beta1"]) * delta
            v = h["beta2"] * v + (1 - h["beta2"]) * (np.abs(delta) if error == "absolute values" else delta**2)
            delta = h["server_step_size"] * m / (np.sqrt(v) + h["epsilon"])
        w = w + delta - (h["step_size"] * h["l2"] * w if error == "ridge again" else 0)
        models.append(w)
    return models


def slipped(clients: Any, h: Any, rounds: int, bug: str = "") -> Any:
    """As `averaging`, with another kind of error: what is sent, what gradients are, who counts, what is kept."""
    kind, _, error = bug.partition(": ")
    w, models, n = h["start"], [], np.array([len(y) for _, y in clients], float)
    c, own, m, v, top, old = 0 * w, [0 * w for _ in clients], 0 * w, 0 * w + h["epsilon"] ** 2, 0 * w, 0 * w
    for t in range(rounds):
        ends, news = [], []
        for k, (X, y) in enumerate(clients):
            x, path, E = w, [], h["local_steps"]
            X = X - X.mean(axis=0) if error == "features centred" else X
            for i in range(E):
                g = slope(h, X, y, w if error == "gradients at the start" else x)
                g = g - h["l2"] * x * (np.arange(w.size) == 0) if error == "no ridge on the first" else g
                if kind == "prox":
                    d = x - (0.5 * (w + ends[k - 1]) if error == "two anchors" and k else w)
                    g = g + h["proximal_mu"] * d * (np.linalg.norm(d) if error == "cubed" else 1)
                g = g - own[k] + c if kind == "scaffold" else g
                g = {"length one": g / np.linalg.norm(g), "signs": np.sign(g)}.get(error, g)
                g = g * (np.abs(g) < np.abs(g).max()) if error == "largest entry dropped" else g
                long = 2.0 if error == "last step doubled" and i == E - 1 else 1.0
                long /= (1 + t) ** (0.75 if error == "steps fade" else 0)
                x = x - h["step_size"] * long * g
                path.append(x)
            x = np.mean(path, axis=0) if error == "mean of steps" else x
            news.append(own[k] - c + (w - x) / ((E + (error == "one step more")) * h["step_size"]))
            d = x - w
            d = d * min(1.0, 0.1 / np.linalg.norm(d)) if error == "updates clipped" else d
            ends.append((w + d).astype(np.float16).astype(float) if error == "half precision" else w + d)
        p = n / n.sum() if error != "squares of sizes" else n**2 / (n**2).sum()
        p = n * (np.arange(n.size) < n.size - 1) / n[:-1].sum() if error == "last never heard" else p
        delta = sum(a * (x - w) for a, x in zip(p, ends, strict=True))
        delta = np.median(ends, axis=0) - w if error == "median" else delta
        if kind == "scaffold":
            rate = h["server_step_size"] if error == "c by the server's step" else 1.0
            c = c + rate * sum((new - o) / n.size for new, o in zip(news, own, strict=True))
            own, delta = news, h["server_step_size"] * delta
        if kind == "adam":
            m = h["beta1"] * m + (1 - h["beta1"]) * delta
            v = h["beta2"] * v + (1 - h["beta2"]) * delta**2
            top = np.maximum(top, v) if error == "largest v" else v
            ahead = h["beta1"] * m + (1 - h["beta1"]) * delta if error == "looks ahead" else m
            delta = h["server_step_size"] * ahead / (np.sqrt(top) + h["epsilon"])
            delta = delta - (0.1 * w if error == "decay" else 0)
        w, old = w + delta - (0.3 * old if error == "takes the last move back" else 0), delta
        models.append(w)
    return models


FAMILY = {"avg": "fedavg", "prox": "fedprox", "scaffold": "scaffold", "adam": "fedopt"}
ERRORS = (
    *("avg: labels of the row before", "avg: clipped", "avg: frozen entry", "avg: half steps later", "avg: rounded"),
    *("avg: first client twice", "avg: roots of sizes", "avg: ridge again", "prox: mu decays", "prox: half an anchor"),
    *("scaffold: another client's c", "adam: absolute values"),
)
SLIPS = (
    *("avg: length one", "avg: signs", "avg: no ridge on the first", "avg: mean of steps", "avg: median"),
    *("avg: squares of sizes", "avg: last never heard", "avg: half precision", "avg: steps fade"),
    *("avg: features centred", "avg: updates clipped", "avg: last step doubled", "avg: largest entry dropped"),
    *("avg: gradients at the start", "avg: takes the last move back", "prox: cubed", "prox: two anchors"),
    *("scaffold: c by the server's step", "scaffold: one step more", "adam: largest v", "adam: decay"),
    *("adam: looks ahead",),
)
NAMES = tuple(f"right: {name}" for name in (*RIGHT, *FAMILY)) + tuple(
    f"wrong: {name}" for name in (*WRONG, *ERRORS, *SLIPS)
)


def made(name: str) -> tuple[str, Any]:
    """Return the family and the implementation of a name."""
    for table in (RIGHT, WRONG):
        if name in table:
            family, function, settings, _ = table[name]
            return family, implementation(function, settings)
    function = slipped if name in SLIPS else averaging
    return FAMILY[name.partition(":")[0]], implementation(function, {"bug": name})


def examine(name: str) -> dict[str, Any]:
    """Hold the answer about an implementation against what it is."""
    kind, _, which = name.partition(": ")
    family, train = made(which)
    begun = time.process_time()
    found = conform(train, family)
    seconds, line = time.process_time() - begun, str(found).splitlines()[0]
    if kind == "right":
        assert found.conforms, (name, line)
    else:
        assert found.grade == "deviation" and line.startswith("Not the published algorithm"), (name, line)
        assert which not in WRONG or WRONG[which][3] in line, (name, line)
        _reproduces(found, name, train)
    assert seconds <= SECONDS, (name, seconds)
    return {"name": name, "seconds": round(seconds, 2), "first line": line}


def _reproduces(found: Any, name: str, train: Any) -> None:
    """Run the script of a counterexample with the implementation in the place of its import."""
    assert found.counterexample is not None, name
    script = found.counterexample.script("mymodule:train").replace("from mymodule import train\n", "")
    try:
        exec(script, {"train": train, "print": lambda *_: None})
    except AssertionError:
        return
    raise AssertionError(f"{name}: its counterexample does not show a departure")


def correct_trial(rng: np.random.Generator) -> dict[str, Any]:
    """Return the answer about a correct implementation, written in one of several ways: it is never accused.

    What is drawn: one of `conformance_further`, an averaging one with the published or with random conventions; how its
    rows lie in memory, whether models differ in the last bit, and whether they come as a tuple.
    """
    which = int(rng.integers(4))
    if which == 0:
        name = str(rng.choice([n for n in NAMES if n.startswith("right: ")]))
        family, train = made(name.removeprefix("right: "))
    else:
        family, c = conformance_random.draw(rng)
        name, train = f"{family} {c}", conformance_random.implementation(family, c, rng)
    how = str(rng.choice(["as it is", "columns first", "float bits", "a tuple"]))
    begun = time.process_time()
    found = conform(varied(train, how), family)
    seconds, line = time.process_time() - begun, str(found).splitlines()[0]
    assert found.verdict == "matches", (name, how, line)
    assert seconds <= SECONDS, (name, how, seconds)
    return {"name": name, "how": how, "seconds": round(seconds, 2), "first line": line}


def varied(train: Any, how: str) -> Any:
    """Return an implementation that computes the same in another way; what it says that it can do goes with it."""

    @functools.wraps(train)
    def other(clients: Any, hyper: Any, rounds: int) -> Any:
        if how == "columns first":
            clients = [(np.asfortranarray(X), y.copy()) for X, y in clients]
        models = train(clients, hyper, rounds)
        if how == "float bits" and isinstance(models, list):
            return [np.nextafter(np.asarray(w, dtype=float), np.inf) for w in models]
        return tuple(models) if how == "a tuple" and isinstance(models, list) else models

    return other


def trial(rng: np.random.Generator) -> dict[str, Any]:
    """Return the answer about one of all implementations, or of random conventions that are no error."""
    if rng.random() < 0.5:
        return examine(str(rng.choice(NAMES)))
    family, c = conformance_random.draw(rng)
    train = conformance_random.implementation(family, c, rng)
    begun = time.process_time()
    found = conform(train, family)
    seconds = time.process_time() - begun
    assert found.verdict == "matches", (family, c, str(found).splitlines()[0])
    assert seconds <= SECONDS, (family, c, seconds)
    return {"name": family, "seconds": round(seconds, 2), "first line": str(found).splitlines()[0]}
