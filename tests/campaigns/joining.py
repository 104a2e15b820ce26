"""Simulated federations of `compare`: whether what is said of all clients together holds as often as it says.

Every trial draws clients with shifted features and models, compares, and takes from the comparison what its decision
and its page print: the intervals of the differences by client of the joint model they name, the interval of the mean
difference, those against the base rate, and those of each client's own error. The true errors of the fitted linear
models are exact for squared errors (moments) and for two classes of normal features (quadrature in the plane of the
true score and the model's); else they are means over `FRESH` rows per client, with the true probabilities of labels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import fedconvex
from fedconvex import Federation
from fedconvex.comparison.decision import best_joint
from fedconvex.comparison.outcomes import Outcome
from fedconvex.comparison.scores import errors_of
from fedconvex.comparison.skewed_intervals import mean_of

FRESH = 20_000  # the same for all models
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


class Client(NamedTuple):
    """Where a client's rows come from."""

    shift: np.ndarray  # (d,) of the features
    w: np.ndarray  # (C, d) true model, C = 1 but for several classes
    c: np.ndarray  # (C,)


class World(NamedTuple):
    """A federation and where it comes from."""

    federation: Federation
    clients: list[Client]
    features: str  # "normal" or "t3", independent
    noise: str  # of real targets
    classes: int  # 1 for a real target


def drawn(rng: np.random.Generator, kind: str, size: Any) -> np.ndarray:
    """Return standard normal numbers, or Student's with three degrees of freedom, whose variance is 3."""
    return rng.normal(size=size) if kind == "normal" else rng.standard_t(3, size=size)


def world(rng: np.random.Generator, classes: int) -> World:
    """Return clients of 40 to 160 rows, or of 11 to 40, alike or shifted; a rare class, or an even one."""
    K, d, C = int(rng.choice([4, 6, 8])), int(rng.integers(2, 6)), classes if classes > 2 else 1
    spread, strength = float(rng.choice([0.0, 0.3, 1.0])), float(rng.choice([0.7, 1.5, 3.0]))
    features = "t3" if rng.random() < 1 / 3 else "normal"
    noise = "t3" if classes == 1 and rng.random() < 1 / 5 else "normal"
    middle = strength * rng.normal(size=(C, d)) / np.sqrt(d)
    base = float(rng.choice([0.0, -1.0, -2.0])) if classes == 2 else 0.0
    low, high = (11, 41) if rng.random() < 0.25 else (40, 161)
    pairs, clients = [], []
    for _ in range(K):
        shift = spread * rng.normal(size=d)
        w = middle + spread * strength * rng.normal(size=(C, d)) / np.sqrt(d)
        mine = Client(shift, w, base + 0.5 * spread * rng.normal(size=C) - w @ shift)
        X = shift + drawn(rng, features, (int(rng.integers(low, high)), d))
        Z = X @ mine.w.T + mine.c
        if classes == 1:
            y = Z[:, 0] + drawn(rng, noise, len(X))
        else:
            P = probabilities(Z).cumsum(axis=1)
            y = (rng.random((len(X), 1)) > P[:, :-1]).sum(axis=1).astype(float)
            y = y if classes > 2 else 2.0 * y - 1.0
        pairs.append((X, y))
        clients.append(mine)
    return World(Federation.from_clients(pairs), clients, features, noise, classes)


def probabilities(Z: np.ndarray) -> np.ndarray:
    """Return the probabilities (n, C) of classes from scores (n, C), or of two from log odds (n, 1)."""
    Z = np.hstack([np.zeros_like(Z), Z]) if Z.shape[1] == 1 else Z
    P = np.exp(Z - Z.max(axis=1, keepdims=True))
    return P / P.sum(axis=1, keepdims=True)


def expected(
    given: World, k: int, models: list[tuple[np.ndarray, np.ndarray]], rng: np.random.Generator
) -> list[float]:
    """Return the mean errors of linear models, coef (C, d) and intercept (C,), over the rows of a client."""
    mine = given.clients[k]
    if given.classes == 1:
        return [_moments(given, mine, coef[0], float(intercept[0])) for coef, intercept in models]
    if given.classes == 2 and given.features == "normal":
        return [_quadrature(mine, coef[0], float(intercept[0])) for coef, intercept in models]
    X = mine.shift + drawn(rng, given.features, (FRESH, mine.shift.size))  # the same rows for all models
    P = probabilities(X @ mine.w.T + mine.c)
    Q = [probabilities(X @ coef.T + intercept) for coef, intercept in models]
    return [float(-(P * np.log(np.maximum(q, 1e-300))).sum(axis=1).mean()) for q in Q]


def _moments(given: World, mine: Client, coef: np.ndarray, intercept: float) -> float:
    """Return the mean squared error; features and noise are independent, of variance 1 or 3."""
    variance = {"normal": 1.0, "t3": 3.0}
    off = coef - mine.w[0]
    middle = off @ mine.shift + intercept - mine.c[0]
    return float(variance[given.noise] + middle**2 + variance[given.features] * off @ off)


def _quadrature(mine: Client, coef: np.ndarray, intercept: float) -> float:
    """Return the mean log loss where the true score and the model's are normal, with a covariance."""
    w = mine.w[0]
    size = float(np.linalg.norm(coef))
    along = float(coef @ w) / size if size > 0.0 else 0.0
    left = np.sqrt(max(float(w @ w) - along**2, 0.0))
    z = coef @ mine.shift + intercept + size * _NODES  # the model's score
    true = w @ mine.shift + mine.c[0] + along * _NODES[:, None] + left * _NODES[None, :]
    p = (_WEIGHTS / (1.0 + np.exp(-true))).sum(axis=1)
    return float(_WEIGHTS @ (p * np.logaddexp(0.0, -z) + (1.0 - p) * np.logaddexp(0.0, z)))


def trial_real(rng: np.random.Generator) -> dict[str, Any]:
    """A federation with a real target."""
    return figures(world(rng, 1), rng)


def trial_classes(rng: np.random.Generator) -> dict[str, Any]:
    """A federation with two classes, or three."""
    return figures(world(rng, 3 if rng.random() < 0.15 else 2), rng)


def figures(given: World, rng: np.random.Generator) -> dict[str, Any]:
    """Return what held of what a comparison of this federation says, as 0 or 1, and as shares.

    `joint` and `student` count a federation as one; `student` is what Student's intervals would have been.
    """
    methods = ["pooled"] if given.classes > 2 or rng.random() < 0.85 else ["pooled", "mean-regularised"]
    seed = int(rng.integers(2**31))
    found = fedconvex.compare(given.federation, methods=methods, seed=seed, progress=False)
    joint, K = found[best_joint(found)], found.rows.K
    draws = np.random.SeedSequence(seed).spawn(K)  # every model of a client is judged on the same fresh rows
    three = (joint, found["alone"], found["base rate"])
    true = {m.name: np.zeros(K) for m in three}
    for k in range(K):
        weights, linear = [], []
        for r, repeat in enumerate(found.splits):
            for v, split in enumerate(repeat):
                weights.append((found.rows.client[split.at] == k).sum())
                each = [m.fitted[r][v] for m in three]
                linear += [(w.coef[k % len(w.coef)], w.intercept[k % len(w.coef)]) for w in each]
        share = np.array(weights) / np.sum(weights)
        values = expected(given, k, linear, np.random.default_rng(draws[k]))
        for m, mine in zip(three, np.reshape(values, (share.size, 3)).T, strict=True):
            true[m.name][k] = share @ mine
    known = [k for k in range(K) if joint.joins[k].outcome is not Outcome.FEW]
    assert len(known) == K and np.isfinite(np.array(list(true.values()))).all()
    out = counted([j.difference for j in joint.joins], true[joint.name] - true["alone"])
    over = {m.name: counted([j.difference for j in m.over_base], true[m.name] - true["base rate"])
            for m in (joint, found["alone"])}  # fmt: skip
    own = [counted([m.clients[k].error for k in known], true[m.name]) for m in (joint, found["alone"])]
    share = found.test_rows / found.test_rows.sum()
    paired = counted([joint.paired.difference], [float(share @ (true[joint.name] - true["alone"]))])
    client = found.rows.client[found.held]
    beside = errors_of(found.rows, joint.scores, found.held, found["alone"].scores).values
    each = 1.0 - (1.0 - found.settings.level) / K
    plain = [mean_of(beside[client == k], each) for k in known]
    student = counted(plain, true[joint.name] - true["alone"])
    wide = [(j.difference.high - j.difference.low) / (e.high - e.low) for j, e in zip(joint.joins, plain, strict=True)]
    said = [j.outcome in (Outcome.GAINS, Outcome.LOSES) for j in joint.joins]
    kind = given.features + (f", {given.noise} noise" if given.classes == 1 else f", {given.classes} classes")
    held = float(out[0] + out[1] == 0)
    return {
        "joint": held,
        f"joint: {kind}": held,
        "below": out[0],
        "above": out[1],
        "over base": float(all(sum(v) == 0 for v in over.values())),
        f"over base: {kind}": float(all(sum(v) == 0 for v in over.values())),
        "paired": float(sum(paired) == 0),
        "own error, joint model": 1.0 - sum(own[0]) / K,
        "own error, alone": 1.0 - sum(own[1]) / K,
        f"own error, both: {kind}": 1.0 - (sum(own[0]) + sum(own[1])) / (2.0 * K),
        "student": float(sum(student) == 0),
        f"student: {kind}": float(sum(student) == 0),
        "width over Student's": float(np.median(wide)),
        "clients": K,
        "decided": sum(said) / K,
        "decided by Student's": sum(bool(e.high < 0.0 or e.low > 0.0) for e in plain) / K,
    }


def counted(intervals: Any, true: Any) -> tuple[int, int]:
    """Return how many true values lie below their interval, and how many above."""
    pairs = list(zip(intervals, true, strict=True))
    return sum(bool(t < e.low) for e, t in pairs), sum(bool(t > e.high) for e, t in pairs)


def table(summaries: list[dict[str, Any]]) -> str:
    """Return the figures of docs/compare.md from summaries of campaigns, as the runner writes them."""
    lines = [
        "| target: features | federations | differences hold | by Student's | over base rate hold | own errors held |"
    ]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    for found in summaries:
        mean, target = found["mean"], "real" if found["campaign"].endswith("real") else "class"
        for name in sorted(key.removeprefix("joint: ") for key in mean if key.startswith("joint: ")):
            own = f"own error, both: {name}"
            shares = [mean[f"{what}: {name}"][1] for what in ("joint", "student", "over base")] + [mean[own][1]]
            cells = " | ".join(f"{100.0 * share:.1f} %" for share in shares)
            lines.append(f"| {target}: {name} | {mean[f'joint: {name}'][0]} | {cells} |")
        both = 0.5 * (mean["own error, joint model"][1] + mean["own error, alone"][1])
        shares = [*(mean[what][1] for what in ("joint", "student", "over base")), both]
        lines.append(
            f"| {target}: all | {found['trials']} | {' | '.join(f'{100.0 * share:.1f} %' for share in shares)} |"
        )
    return "\n".join(lines)
