"""Runs on squared losses that draw mini-batches or clients: their exact second moments as lines of NumPy.

The vector (w, W_1, ..., W_K, 1), models less the minimiser, is multiplied by a matrix in every step, drawn from a list
that is enumerated: S is the expectation of its square.
"""

from __future__ import annotations

import math

from fedconvex.theory.bound import LAST_SYNCHRONISED, MEAN_SQUARE_DEVIATION, SHADOW_AVERAGE, STEADY_STATE_MSD, Quantity
from fedconvex.traits import LocalSteps, Traits

MEASURED: dict[Quantity, str] = {
    SHADOW_AVERAGE: "total / (T * tau)",
    LAST_SYNCHRONISED: "np.trace(H @ S[:d, :d]) / 2",
    MEAN_SQUARE_DEVIATION: "np.trace(S[:d, :d])",
    STEADY_STATE_MSD: "np.trace(S[:d, :d])",
}
MATRICES = 20_000  # that a text may make

STEP = """\
K, d = len(p), len(w)
H = sum(p[k] * (X[k].T @ X[k] / len(y[k]) + l2 * np.eye(d)) for k in clients)
def step(draw, eta):
    A = np.eye((K + 1) * d + 1)
    for k, rows in enumerate(draw):
        x, z, at = X[k][list(rows)], y[k][list(rows)], slice((k + 1) * d, (k + 2) * d)
        A[at, at] -= eta * (x.T @ x / len(z) + l2 * np.eye(d))
        A[at, -1] -= eta * (x.T @ (x @ best - z) / len(z) + l2 * best)
    return A
def blocks(M):
    A = np.eye((K + 1) * d + 1)
    A[:-1, :-1] = np.kron(M, np.eye(d))
    return A
def answers(u):
    return blocks(np.vstack([[1 - sum(u), *u], np.eye(K + 1)[1:]]))
send = blocks(np.outer(np.ones(K + 1), np.eye(K + 1)[0]))"""


def moment_lines(t: Traits, loss: str, quantity: Quantity, rounds: int) -> list[str] | None:
    """Return the lines from the problem up to the last round, or None where there are none."""
    local = t.local
    if loss != "squared" or quantity not in MEASURED or local is None or not local.plain or not t.averages:
        return None
    counts = [math.comb(n, B) for n, B in zip(local.sizes.tolist(), local.batch_size.tolist(), strict=True)]
    draws = math.prod(counts) if not local.replacement else math.inf
    constant = isinstance(local.step_size, float)
    made = draws * (1 if constant else rounds * (local.equal_steps or 0))
    if not local.fresh or local.equal_steps is None or made > MATRICES or not (local.factor == local.factor[0]).all():
        return None
    lines = [*STEP.splitlines(), *_draws(local)]
    lines += [f"averages = [(q, answers(u)) for q, u in {samples(t)}]", "v = np.append(np.tile(w - best, K + 1), 1)"]
    lines += ["S = np.outer(v, v)", *["total, mean = 0, np.kron([0, *p], np.eye(d))"] * (quantity is SHADOW_AVERAGE)]
    lines += ["steps = [step(draw, eta) for draw in draws]"] * constant
    lines += ["for t in range(T):", "    S = send @ S @ send.T", "    for i in range(tau):"]
    if not constant:
        at = "t" if local.step_size.by_round else "t * tau + i"
        lines.append(f"        steps = [step(draw, eta({at})) for draw in draws]")
    lines.append("        S = sum(A @ S @ A.T for A in steps) / len(steps)")
    if quantity is SHADOW_AVERAGE:
        lines.append("        total += np.trace(H @ mean @ S[:-1, :-1] @ mean.T) / 2")
    return [*lines, "    S = sum(q * A @ S @ A.T for q, A in averages)"]


def _draws(local: LocalSteps) -> list[str]:
    """Return the line of all mini-batches of all clients in a step."""
    sizes = f"[{', '.join(map(str, local.batch_size.tolist()))}]"
    every = f"itertools.combinations(range(len(y[k])), {sizes}[k])"
    return [f"draws = list(itertools.product(*({every} for k in clients)))"]


def samples(t: Traits) -> str:
    """Return the list of who may be drawn in a round: the probability, and all clients' weights in the average.

    Examples
    --------
    >>> from fedconvex.traits import Traits
    >>> from fedconvex.verify.moment_text import samples
    >>> samples(Traits(sampling="proportional", participants=2))
    '[(np.prod([p[k] for k in s]), [s.count(k) / 2 for k in clients]) for s in itertools.product(clients, repeat=2)]'
    """
    m = t.participants
    if t.sampling == "everyone":
        return "[(1, p)]"
    if t.sampling == "proportional":
        chance, weight, who = "np.prod([p[k] for k in s])", f"s.count(k) / {m}", f"product(clients, repeat={m})"
    else:
        weight = f"len(p) / {m} * p[k]" if t.sampling == "scaled" else "p[k] / sum(p[j] for j in s)"
        chance, weight, who = f"1 / math.comb(len(p), {m})", f"{weight} * (k in s)", f"combinations(clients, {m})"
    return f"[({chance}, [{weight} for k in clients]) for s in itertools.{who}]"
