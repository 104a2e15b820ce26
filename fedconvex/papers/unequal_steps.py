"""Clients that take different numbers of local steps: the inconsistent objective of Wang et al. (NeurIPS 2020).

1. Means: F_k(w) = ‖w - e_k‖^2/2 in the plane, three clients, tau = 1, 4, 16 full local steps. FedAvg ends at
   sum p_k s_k e_k / sum p_k s_k, s_k = 1 - (1 - eta)^tau_k, for small steps at the mean of the e_k with weights
   p_k tau_k.
2. Least squares: eight drawn clients of unequal size, tau_k uniform in 1..16. For small steps FedAvg minimises the
   surrogate sum w_k F_k, w_k = p_k tau_k / sum p_j tau_j, in the place of F = sum p_k F_k.
3. How far the exact limit is from both minimisers, over the step size: FedAvg with these tau_k; with their mean for
   everybody; with steps eta/tau_k (DynamicFedAvg), which move every client equally far, as FedNova's normalised
   averaging does.
4. SCAFFOLD with the same tau_k.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.datasets import linear_federation
from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Squared
from fedconvex.methods import SCAFFOLD, DynamicFedAvg, FedAvg
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.style import COLOURS, DASHED, blank, legend, panel
from fedconvex.problems import Problem
from fedconvex.theory.fixed_points import Quadratic, fedavg_round, quadratic
from fedconvex.theory.moments import Moments

CLIENTS, MOST, L2 = 8, 16, 0.1
CENTRES, MEAN_STEPS = ((0.0, 0.0), (4.0, 0.0), (1.0, 3.0)), (1, 4, 16)
UNEQUAL, EQUAL, NORMALISED = "tau_k steps", "equally many steps", "steps eta/tau_k"


class StepsScale(NamedTuple):
    """How large the experiment is."""

    problems: int
    rounds: int
    shares: tuple[float, ...]  # step sizes times L


FULL = StepsScale(20, 200, tuple(2.0**-j for j in range(1, 15)))
QUICK = StepsScale(3, 50, tuple(2.0**-j for j in (1, 13, 14)))


def means() -> Problem:
    """Return the clients of F_k(w) = ‖w - e_k‖^2/2."""
    clients = [(np.sqrt(2.0) * np.eye(2), np.sqrt(2.0) * np.array(e)) for e in CENTRES]
    return Problem(Federation.from_clients(clients), Squared())


def drawn(seed: int) -> tuple[Problem, tuple[int, ...]]:
    """Return least-squares clients of unequal size, and their tau_k."""
    made = linear_federation(CLIENTS, 5, 30, size_skew=0.5, feature_shift=1.0, model_shift=1.0, seed=seed)
    tau = np.random.default_rng([seed, 1]).integers(1, MOST + 1, CLIENTS)
    return Problem(made.federation, Squared(), L2), tuple(tau.tolist())


def surrogate(q: Quadratic, tau: Sequence[int]) -> Quadratic:
    """Return the quadratic of the surrogate: weights p_k tau_k / sum p_j tau_j.

    Examples
    --------
    >>> from fedconvex.papers.unequal_steps import means, surrogate
    >>> from fedconvex.theory.fixed_points import quadratic
    >>> surrogate(quadratic(means()), (1, 4, 16)).minimiser.round(4)  # (1·e_1 + 4·e_2 + 16·e_3)/21
    array([1.5238, 2.2857])
    """
    w = q.p * np.asarray(tau)
    return q._replace(p=w / w.sum())


def mean_limit(eta: float, tau: Sequence[int]) -> np.ndarray:
    """Return where FedAvg ends on `means`: sum s_k e_k / sum s_k, s_k = 1 - (1 - eta)^tau_k."""
    s = 1.0 - (1.0 - eta) ** np.asarray(tau)
    return np.asarray(s @ np.array(CENTRES) / s.sum())


def limits(number: int, problem: Problem, tau: tuple[int, ...], scale: StepsScale) -> Iterator[dict[str, Any]]:  # 3
    """Yield distances of the exact limits from the minimisers of F and of the surrogate."""
    best, L = problem.solve().w, float(problem.constants().L or 1.0)
    other = surrogate(quadratic(problem), tau).minimiser
    even = max(1, round(float(np.mean(tau))))
    for share in scale.shares:
        eta = share / L
        for name, method in (
            (UNEQUAL, FedAvg(step_size=eta, local_steps=tau)),
            (EQUAL, FedAvg(step_size=eta, local_steps=even)),
            (NORMALISED, DynamicFedAvg(step_size=eta, local_steps=tau)),
        ):
            end = best + Moments.of(method, problem).steady_state().mean_error
            row = {"problem": number, "method": name, "eta L": share, "apart": float(np.linalg.norm(other - best))}
            far = {
                "from F's": float(np.linalg.norm(end - best)),
                "from surrogate's": float(np.linalg.norm(end - other)),
            }
            yield row | far


def followed(problem: Problem, tau: tuple[int, ...], scale: StepsScale) -> float:
    """Return how far models of a run with eta = 1/(2 L) are from the exact map of its rounds, over the largest."""
    eta = 0.5 / float(problem.constants().L or 1.0)
    map_, w, far, size = fedavg_round(problem, step_size=eta, local_steps=tau), np.zeros(problem.size), 0.0, 0.0
    for t, state in iterate(FedAvg(step_size=eta, local_steps=tau), problem, rounds=scale.rounds):
        w = w if t == 0 else map_.matrix @ w + map_.offset
        far, size = max(far, float(np.abs(state.w[0] - w).max())), max(size, float(np.abs(w).max()))
    return far / size


def bounded(problem: Problem, tau: tuple[int, ...]) -> dict[str, float]:
    """Return ‖grad F‖^2 at the surrogate's minimiser, and its bound chi^2 sum w_k ‖grad F_k‖^2."""
    q = quadratic(problem)
    s = surrogate(q, tau)
    G = q.gradients(s.minimiser)
    chi2 = float(np.sum((q.p - s.p) ** 2 / s.p))
    square, bound = float(np.sum((q.p @ G) ** 2)), chi2 * float(s.p @ np.sum(G**2, axis=1))
    return {"chi2": chi2, "gradient2": square, "bound": bound}


def controlled(problem: Problem, tau: tuple[int, ...], rounds: int) -> float:  # 4
    """Return ‖w - w*‖ of SCAFFOLD's model after so many rounds, over ‖w*‖."""
    method = SCAFFOLD(step_size=0.5 / float(problem.constants().L or 1.0), local_steps=tau)
    w = np.zeros(problem.size)
    for _, state in iterate(method, problem, rounds=rounds):
        w = state.w[0]
    best = problem.solve().w
    return float(np.linalg.norm(w - best) / np.linalg.norm(best))


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Compare runs and exact limits on drawn problems."""
    scale = QUICK if quick else FULL
    rows: list[dict[str, Any]] = []
    each: list[dict[str, Any]] = []
    for number in range(scale.problems):
        tell(number / scale.problems, f"problem {number + 1}")
        problem, tau = drawn(1000 * seed + number)
        rows += limits(number, problem, tau, scale)
        own = {"run": followed(problem, tau, scale), "scaffold": controlled(problem, tau, 40 * scale.rounds)}
        each.append({"problem": number, "tau": " ".join(map(str, tau))} | own | bounded(problem, tau))
    at = [_mean_row(eta, scale.rounds) for eta in (0.5, 0.1, 0.01)]
    return Findings(
        "Unequal numbers of local steps (Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020)",
        tuple(claims(at, rows, each)),
        _notes(scale),
        {"unequal-steps": _draw(rows)},
        {"table": _table(rows), "means": at, "limits": rows, "problems": each},
    )


def _mean_row(eta: float, rounds: int) -> dict[str, Any]:
    w = np.zeros(2)
    for _, state in iterate(
        FedAvg(step_size=eta, local_steps=MEAN_STEPS), means(), rounds=max(rounds, round(10 / eta))
    ):
        w = state.w[0]
    end = mean_limit(eta, MEAN_STEPS)
    return {"eta": eta, "w1": w[0], "w2": w[1], "closed form 1": end[0], "closed form 2": end[1]}


EXPERIMENT = Experiment(
    "unequal-steps",
    "FedAvg with tau_k local steps at client k: the objective that it minimises, SCAFFOLD and normalised steps",
    study,
    smaller="three problems, 50 rounds, three step sizes",
)


# ---------------------------------------------------------------- what came out


def claims(
    at: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]], each: Sequence[dict[str, Any]]
) -> Iterator[Claim]:
    """Judge every problem; none may fail."""
    off = max(abs(r[f"w{i}"] - r[f"closed form {i}"]) for r in at for i in (1, 2))
    text = "Means: FedAvg ends at sum s_k e_k / sum s_k, s_k = 1 - (1 - eta)^tau_k"
    yield Claim(text, off <= 1e-10, f"eta {', '.join(str(r['eta']) for r in at)}: at most {off:.1e} off", True)
    worst = max(r["run"] for r in each)
    text = "Least squares: every model of a run is that of the exact map of a round"
    yield Claim(text, worst <= 1e-10, f"{len(each)} problems: at most {worst:.1e} of the largest model off", True)
    for name, to, text in (
        (UNEQUAL, "from surrogate's", "the limit of FedAvg is the minimiser of sum p_k tau_k F_k, not of F"),
        (EQUAL, "from F's", "with equally many steps it is the minimiser of F"),
        (NORMALISED, "from F's", "with tau_k steps of size eta/tau_k it is the minimiser of F"),
    ):
        ratios, ends = _small(rows, name, to)
        good = all(abs(r - 0.5) <= 0.02 for r in ratios) and all(e <= 0.02 for e in ends)
        numbers = (
            f"half the smallest step leaves {min(ratios):.3f} to {max(ratios):.3f} of the distance; at the smallest it "
            f"is {max(ends):.1e} of that between the minimisers, at most"
        )
        yield Claim(f"For small steps {text}, to first order in eta", good, numbers, True)
    chi = [r["gradient2"] / r["bound"] for r in each]
    text = "At the surrogate's minimiser ‖grad F‖^2 <= chi^2 sum w_k ‖grad F_k‖^2, chi^2 = sum (p_k - w_k)^2/w_k"
    values = f"ratio {min(chi):.3f} to {max(chi):.3f}; chi^2 {min(r['chi2'] for r in each):.2g} and more"
    yield Claim(text, max(chi) <= 1.0 and min(chi) > 0.0, values, True)
    far = max(r["scaffold"] for r in each)
    yield Claim("SCAFFOLD with the same tau_k ends at the minimiser of F", far <= 1e-8, f"at most {far:.1e} ‖w*‖ off")


def _small(rows: Sequence[dict[str, Any]], method: str, to: str) -> tuple[list[float], list[float]]:
    """Return per problem the ratio of the distances at the two smallest steps, and the smallest over the gap."""
    ratios, ends = [], []
    for number in sorted({r["problem"] for r in rows}):
        mine = sorted((r for r in rows if (r["problem"], r["method"]) == (number, method)), key=lambda r: r["eta L"])
        ratios.append(mine[0][to] / mine[1][to])
        ends.append(mine[0][to] / mine[0]["apart"])
    return ratios, ends


def _table(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the medians over problems of the distances, over that between the minimisers."""
    out = []
    for key in dict.fromkeys((r["method"], r["eta L"]) for r in rows):
        mine = [r for r in rows if (r["method"], r["eta L"]) == key]
        far = {to: float(np.median([r[to] / r["apart"] for r in mine])) for to in ("from F's", "from surrogate's")}
        out.append({"method": key[0], "eta L": key[1]} | far)
    return out


def _notes(scale: StepsScale) -> tuple[str, ...]:
    return (
        "Of the paper: F_k = ‖w - e_k‖^2/2 with tau_k steps ends at sum tau_k e_k / sum tau_k for small steps (its "
        "introductory example), FedAvg minimises a surrogate with weights p_k tau_k (Theorem 1), and chi^2 between p "
        "and w bounds what that does to F (Theorem 2, whose constants are larger: the bound here is its "
        "Cauchy-Schwarz step at the surrogate's minimiser). From memory, without a second look at the paper.",
        f"Chosen here: {scale.problems} drawn problems of {CLIENTS} clients, d = 5, l2 = {L2:g}, p_k = n_k/n, tau_k "
        f"uniform in 1..{MOST}, full gradients, everybody takes part. Limits are exact (`fedconvex.theory.moments`).",
    )


# ---------------------------------------------------------------- figure


def _draw(rows: Sequence[dict[str, Any]]) -> Any:
    """Draw runs in the plane of the means, and distances over the step size."""
    figure, axes = blank(2, width=4.4, height=3.8)
    E = np.array(CENTRES)
    axes[0].plot(*E.T, "^", color="0.4", markersize=7)
    for e, tau in zip(CENTRES, MEAN_STEPS, strict=True):
        axes[0].annotate(f"  $e_k$, τ = {tau}", e, fontsize=8, va="bottom")
    for steps, colour in ((MEAN_STEPS, COLOURS[0]), ((7, 7, 7), COLOURS[1])):
        states = iterate(FedAvg(step_size=0.02, local_steps=steps), means(), rounds=150, start=np.array([4.0, 2.5]))
        axes[0].plot(*np.array([s.w[0] for _, s in states]).T, ".-", color=colour, markersize=3, linewidth=0.8)
    curve = np.array([mean_limit(eta, MEAN_STEPS) for eta in np.geomspace(1e-4, 1.0 - 1e-9, 200)])
    axes[0].plot(*curve.T, color="black", linestyle=DASHED, linewidth=1.0)
    axes[0].plot(*surrogate(quadratic(means()), MEAN_STEPS).minimiser, "s", color="black", markersize=6)
    axes[0].plot(*E.mean(axis=0), "*", color="black", markersize=11)
    axes[0].set_xlim(-0.4, 5.2)
    panel(axes[0], "three means, η = 0.02", "$w_1$", "$w_2$")
    table = _table(rows)
    for (method, to), colour in zip(
        ((UNEQUAL, "from F's"), (UNEQUAL, "from surrogate's"), (EQUAL, "from F's"), (NORMALISED, "from F's")),
        (COLOURS[0], "black", COLOURS[1], COLOURS[2]),
        strict=True,
    ):
        mine = [r for r in table if r["method"] == method]
        x, y = [r["eta L"] for r in mine], [r[to] for r in mine]
        of = "F" if to == "from F's" else "$Σ p_k τ_k F_k$"
        label = f"{method}, from the minimiser of {of}".replace("tau_k", "$τ_k$").replace("eta", "η")
        axes[1].plot(x, y, color=colour, label=label, linewidth=1.6)
    panel(axes[1], "limits, least squares, median", "η L", "distance / distance of the minimisers", "xy")
    looks: dict[str, dict[str, Any]] = {
        "minimiser of F": {"marker": "*", "markersize": 10, "color": "black", "linestyle": "none"},
        "minimiser of $Σ p_k τ_k F_k$": {"marker": "s", "markersize": 6, "color": "black", "linestyle": "none"},
        "limits over η": {"color": "black", "linestyle": DASHED, "linewidth": 1.0},
    }
    legend(figure, axes[1], looks, columns=2)
    return figure
