"""RADFed beside FedAvg: models that move between clients S times before they are averaged (Xue, Klabjan, Luo 2021).

1. 20 to 200 clients of equally many rows, at random or with one class each; multinomial logistic regression,
   l2 = 0.001, from w = 0; everybody, five local steps on all rows of a client.
2. FedAvg, and RADFed with S = 2, 5, 10 trainings of every model between two averages.
3. Test accuracy, and the weight divergence DC(t) = ‖w_t - c_t‖/‖c_t‖ from gradient descent on all rows, c_t after as
   many steps: at equal numbers of rounds (work, messages), and of averages, which the paper counts.
4. The limit: least squares on the same rows; the mean of RADFed's models over draws and late rounds beside FedAvg's
   exact fixed point and the minimiser.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedconvex.datasets import partition_iid, partition_shards
from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Softmax, Squared
from fedconvex.methods import FedAvg, RADFed
from fedconvex.papers.agnostic_clients.data import L2, SplitData, TrainTest, load_splits
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.images import accuracies
from fedconvex.papers.intervals import every
from fedconvex.papers.repeated import Repeated, draw_curves, higher, repeat
from fedconvex.papers.style import blank, legend, panel
from fedconvex.problems import Problem
from fedconvex.theory.fixed_points import fedavg_round

STEP, LOCAL, SAME = 0.3, 5, 0.02
LIMIT_L2, LIMIT_DRAWS = 0.1, 50  # of the least-squares problem
IID, LABEL = "at random", "one class each"


class RadfedScale(NamedTuple):
    """How large the experiment is."""

    repetitions: int
    clients: tuple[int, ...]
    redistributions: tuple[int, ...]  # S; 1 is FedAvg
    rounds: int
    block: int


FULL = RadfedScale(5, (20, 100, 200), (1, 2, 5, 10), 100, 1)
QUICK = RadfedScale(3, (20, 50), (1, 10), 60, 2)


def equal_clients(rows: TrainTest, K: int, division: str, seed: int, y: np.ndarray) -> Federation:
    """Return K clients of equally many rows, with labels y."""
    n = len(rows.y) // K * K
    part = np.random.default_rng(seed).permutation(len(rows.y))[:n]
    X, labels = rows.X[part], rows.y[part]
    owner = partition_iid(n, K, seed) if division == IID else partition_shards(labels, K, 1, seed)
    return Federation.from_arrays(X, y[part], owner)


def curves(rows: TrainTest, number: int, scale: RadfedScale, seed: int) -> Iterator[dict[str, Any]]:
    """Yield accuracy and DC(t) of every method over the rounds."""
    key = 1000 * seed + number
    for division in (IID, LABEL):
        for K in scale.clients:
            fed = equal_clients(rows, K, division, key, rows.y)
            problem = Problem(fed, Softmax(int(rows.y.max()) + 1), L2)
            central = _descent(problem, scale.rounds)
            for S in scale.redistributions:
                work: dict[str, Any] = {"step_size": STEP, "local_steps": LOCAL}
                method = FedAvg(**work) if S == 1 else RADFed(redistributions=S, **work)
                for t, state in iterate(method, problem, rounds=scale.rounds, seed=key):
                    if t and t % max(scale.redistributions) == 0:
                        row = {"division": division, "clients": K, "S": S, "repetition": number, "round": t}
                        c = central[t]
                        accuracy = float(accuracies(state.w, rows.X_test, rows.y_test)[0])
                        far = float(np.linalg.norm(state.w[0] - c) / np.linalg.norm(c))
                        yield row | {"averages": t // S, "accuracy": accuracy, "DC": far}


def _descent(problem: Problem, rounds: int) -> list[np.ndarray]:
    """Return the models of gradient descent after t rounds' worth of steps, t = 0, ..., rounds."""
    path = [np.zeros(problem.model_shape)]
    for _ in range(rounds):
        w = path[-1]
        for _ in range(LOCAL):
            w = w - STEP * problem.gradient(w)
        path.append(w)
    return path


def limits(rows: TrainTest, number: int, scale: RadfedScale, seed: int) -> Iterator[dict[str, Any]]:  # 4
    """Yield how far the mean of RADFed's late models is from FedAvg's fixed point and from the minimiser."""
    key = 1000 * seed + number
    y = np.where(rows.y % 2 == 1, 1.0, -1.0)
    problem = Problem(equal_clients(rows, scale.clients[0], LABEL, key, y), Squared(), LIMIT_L2)
    eta = 1.0 / float(problem.constants().L or 1.0)
    fixed, best = fedavg_round(problem, step_size=eta, local_steps=LOCAL).limit(), problem.solve().w
    S = max(scale.redistributions)
    method = RADFed(step_size=eta, local_steps=LOCAL, redistributions=S)
    late = []
    for t, state in iterate(method, problem, rounds=20 * S, seed=key, trajectories=LIMIT_DRAWS):
        if t > 10 * S and t % S == 0:
            late.append(state.w.mean(axis=0))
    mean, bias = np.mean(late, axis=0), float(np.linalg.norm(fixed - best))
    to_fixed, to_best = float(np.linalg.norm(mean - fixed)) / bias, float(np.linalg.norm(mean - best)) / bias
    row = {"repetition": number, "bias": bias, "from FedAvg's fixed point": to_fixed, "from the minimiser": to_best}
    yield row | {"difference": to_best - to_fixed}


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Run the methods on every division of the rows; data: a path as for `load_splits`."""
    scale = QUICK if quick else FULL
    loaded = load_splits(data, scale.repetitions, seed, scale.block)
    rows = repeat(scale.repetitions, lambda r: curves(loaded.splits[r], r, scale, seed), tell)
    ends = repeat(scale.repetitions, lambda r: limits(loaded.splits[r], r, scale, seed), lambda *_: None, "limit")
    found, limit = Repeated(tuple(rows), loaded.overlap), Repeated(tuple(ends), loaded.overlap)
    last = found.where(round=max(found.kinds("round")))
    return Findings(
        f"RADFed beside FedAvg (Xue, Klabjan, Luo 2021): {loaded.name}",
        tuple(claims(found, limit)),
        _notes(loaded, scale),
        {"radfed": _draw(found)},
        {"table": last.table(("division", "clients", "S"), ("accuracy", "DC")), "curves": rows, "limit": ends},
    )


EXPERIMENT = Experiment(
    "radfed",
    "test accuracy and weight divergence of RADFed and FedAvg over redistributions, up to 200 clients; their limit",
    study,
    "optional npz with x_train, y_train, x_test, y_test (MNIST); default the bundled digits",
    "three divisions, 20 and 50 clients, S = 10, 60 rounds, coarser images",
)


# ---------------------------------------------------------------- what came out


def claims(found: Repeated, limit: Repeated) -> Iterator[Claim]:
    """Judge by intervals over the divisions."""
    last, S = max(found.kinds("round")), max(found.kinds("S"))
    counts = found.kinds("clients")

    def named(division: str, what: str, one: dict[str, Any], other: dict[str, Any]) -> list[Any]:
        each = ({"division": division, "clients": K} for K in counts)
        return [(f"{at['clients']} clients", found.minus(what, at | one, at | other)) for at in each]

    many, few, plain = {"S": S, "round": last}, {"S": 1, "round": last // S // S * S or S}, {"S": 1, "round": last}
    ahead = named(LABEL, "accuracy", many, few)
    text = f"One class each, at as many averages: RADFed (S = {S}) has a higher test accuracy than FedAvg"
    yield higher(text, ahead)
    text = f"One class each, at as many rounds: FedAvg has a higher test accuracy than RADFed (S = {S})"
    yield higher(text, named(LABEL, "accuracy", plain, many))
    text = f"One class each, at as many rounds: RADFed's model (S = {S}) is nearer to gradient descent than FedAvg's"
    yield higher(text, named(LABEL, "DC", plain, many))
    same = named(IID, "accuracy", plain, many)
    yield Claim(
        f"At random, at as many rounds: accuracies are the same, within {100 * SAME:g} points",
        every(d.within(SAME) for _, d in same),
        "; ".join(f"{name} {d}" for name, d in same),
    )
    text = "Least squares: the mean of RADFed's late models is nearer to FedAvg's fixed point than to the minimiser"
    yield higher(text, [("distances over the bias, difference", limit.interval("difference"))])


def _notes(data: SplitData, scale: RadfedScale) -> tuple[str, ...]:
    rows = data.splits[0]
    return (
        f"Data: {data.name}, {data.about}{len(rows.y):,} rows to train and {len(rows.y_test):,} to test on, "
        f"{scale.repetitions} divisions; everybody takes part, {LOCAL} steps of size {STEP:g}, {scale.rounds} rounds.",
        "A round is one training of every model at one client, so that messages are counted alike; the paper counts S "
        "of them as one. As many averages compares RADFed after all rounds with FedAvg after a tenth of them (S = 10).",
        f"The limit: odd against even digits, l2 = {LIMIT_L2:g}, steps 1/L, {LIMIT_DRAWS} draws, ten late averages. "
        "The paper gives curves of networks; its numbers were not at hand.",
    )


def _draw(found: Repeated) -> Any:
    """Draw accuracy and DC over the rounds for clients with one class each: fewest and most clients."""
    figure, axes = blank(4, width=3.0, height=3.3)
    counts = found.kinds("clients")
    cases = [(K, what) for what in ("accuracy", "DC") for K in (counts[0], counts[-1])]
    for axis, (K, what) in zip(axes, cases, strict=True):
        mine = found.where(division=LABEL, clients=K)
        named = tuple(r | {"method": "FedAvg" if r["S"] == 1 else f"RADFed, S = {r['S']}"} for r in mine.rows)
        draw_curves(axis, Repeated(named), "round", what, "method")
        panel(axis, f"one class each, {K} clients", "rounds", "test accuracy" if what == "accuracy" else "DC(t)")
    legend(figure, axes[0], columns=4)
    return figure
