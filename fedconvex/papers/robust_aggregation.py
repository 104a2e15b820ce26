"""Which aggregate: mean, coordinate-wise median, trimmed mean or geometric median, and what each converges to.

1. Means: F_k(w) = ‖w - a_k‖^2/2 in the plane. Every round moves every client's answer by the same share of the way to
   a_k, and aggregates commute with shifts and scalings: FedAvg with any of them ends at that aggregate of the a_k.
2. Liars hold a share alpha of the weight; their rows say a_k = D u. The mean moves in proportion to alpha D; the others
   stay, up to the share at which they break down.
3. Least squares: clients with rows and truths of their own, over a dial of heterogeneity. The limit of FedSGD, which is
   where the aggregate of gradients vanishes, is held against the minimiser of the honest clients' F.
4. Clients alike, a_k normal: the variance of every aggregate over that of the mean, the price where nobody lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import integrate, special, stats

from fedconvex.datasets import linear_federation
from fedconvex.driver import iterate, run
from fedconvex.federation import Federation
from fedconvex.losses import Squared
from fedconvex.methods import CoordinateMedian, FedAvg, FedSGD, GeometricMedian, TrimmedMean, WeightedMean
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.style import COLOURS, DASHED, DOTTED, blank, legend, panel
from fedconvex.problems import Problem

_CUT = 0.25  # beta of the trimmed mean
MEAN, MEDIAN, TRIMMED, GEOMETRIC = "mean", "median", "trimmed mean", "geometric median"
AGGREGATES: dict[str, Any] = {
    MEAN: WeightedMean(),
    MEDIAN: CoordinateMedian(),
    TRIMMED: TrimmedMean(_CUT),
    GEOMETRIC: GeometricMedian(),
}
_BREAKS = {
    MEAN: 0.0,
    MEDIAN: 0.5,
    TRIMMED: _CUT,
    GEOMETRIC: 0.5,
}  # the share of liars that an aggregate does not stand
HONEST, FEATURES = 16, 5


class AggregationScale(NamedTuple):
    """How large the experiment is."""

    lies: tuple[float, ...]  # D
    shares: tuple[float, ...]  # alpha
    dials: tuple[float, ...]  # of heterogeneity
    problems: int  # least-squares problems at each
    rounds: int
    draws: int  # of clients that are alike


FULL = AggregationScale(
    tuple(10.0**j for j in range(7)), tuple(np.arange(0.0, 0.65, 0.05).round(2).tolist()),
    (0.03125, 0.125, 0.5, 2.0, 8.0), 5, 2000, 20000,
)  # fmt: skip
QUICK = AggregationScale((1.0, 1e3), (0.0, 0.2, 0.4, 0.6), (0.125, 4.0), 2, 1500, 4000)


def means(centres: np.ndarray, weights: np.ndarray) -> Problem:
    """Return the clients of F_k(w) = ‖w - a_k‖^2/2, a_k the rows of centres (K, d)."""
    d = centres.shape[1]
    return Problem(Federation.from_clients([(np.sqrt(d) * np.eye(d), np.sqrt(d) * a) for a in centres]), Squared(),
                   weights=weights)  # fmt: skip


def honest(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return centres (HONEST, 2), skewed, and unequal weights."""
    rng = np.random.default_rng([seed, 1])
    return rng.exponential(1.0, (HONEST, 2)), rng.dirichlet(np.full(HONEST, 5.0))


def _with_liars(centres: np.ndarray, weights: np.ndarray, share: float, far: float) -> tuple[np.ndarray, np.ndarray]:
    """Return centres and weights with four liars, who hold this share of the weight and say far u, u = (0.6, 0.8)."""
    if share == 0.0:
        return centres, weights
    lies = np.tile(far * np.array([0.6, 0.8]), (4, 1)) * np.linspace(1.0, 1.3, 4)[:, None]
    return np.concatenate([centres, lies]), np.concatenate([(1.0 - share) * weights, np.full(4, share / 4)])


def moved(seed: int, share: float, far: float) -> Iterator[dict[str, Any]]:  # 1, 2
    """Yield where FedAvg with every aggregate ends, and how far that is from the aggregate of the honest."""
    mine, p = honest(seed)
    centres, weights = _with_liars(mine, p, share, far)
    for name, by in AGGREGATES.items():
        method = FedAvg(step_size=0.5, local_steps=2, aggregation=by)
        w = run(method, means(centres, weights), rounds=60, tol=0.0).w
        expected, before = by.of(weights[None], centres[None])[0], by.of(p[None], mine[None])[0]
        low, high = mine.min(axis=0), mine.max(axis=0)
        radius = float(np.linalg.norm(mine - before, axis=1).max())
        yield {
            "aggregate": name,
            "share": share,
            "lie": far,
            "off": float(np.linalg.norm(w - expected)) / max(1.0, far),
            "moved": float(np.linalg.norm(w - before)),
            "inside": bool((w >= low - 1e-9).all() and (w <= high + 1e-9).all()),
            "radius": radius,
        }


def rough(seed: int, dial: float, lie: float) -> tuple[Problem, np.ndarray]:
    """Return least-squares clients, of whom four of 20 lie if lie > 0, and the minimiser of the honest ones' F."""
    made = linear_federation(HONEST + 4, FEATURES, 30, feature_shift=min(1.0, dial), model_shift=dial, seed=seed)
    fed, keep = made.federation, np.arange(HONEST)
    best = Problem(fed.subset(keep), Squared(), weights="uniform").solve().w
    if lie == 0.0:
        return Problem(fed.subset(keep), Squared(), weights="uniform"), best
    rows = [fed.client_rows(k) for k in range(HONEST + 4)]
    rows[HONEST:] = [(X, X @ np.full(FEATURES, lie)) for X, _ in rows[HONEST:]]
    return Problem(Federation.from_clients(rows), Squared(), weights="uniform"), best


def limits(seed: int, dial: float, lie: float, rounds: int) -> Iterator[dict[str, Any]]:  # 3
    """Yield the distance of FedSGD's limit from the honest minimiser, over that of the clients' minimisers from it."""
    problem, best = rough(seed, dial, lie)
    eta = 0.5 / float(problem.constants().L or 1.0)
    own = [np.linalg.lstsq(*problem.federation.client_rows(k), rcond=None)[0] for k in range(HONEST)]
    spread = float(np.sqrt(np.mean([np.sum((w - best) ** 2) for w in own])))
    for name, by in AGGREGATES.items():
        trail = [s.w[0] for _, s in iterate(FedSGD(step_size=eta, aggregation=by), problem, rounds=rounds)][-50:]
        end = np.mean(trail, axis=0)
        yield {
            "seed": seed,
            "aggregate": name,
            "dial": dial,
            "lie": lie,
            "distance": float(np.linalg.norm(end - best)) / spread,
            "restless": float(np.ptp(trail, axis=0).max()) / spread,
        }


def variances(seed: int, draws: int, K: int = 21, d: int = FEATURES) -> list[dict[str, Any]]:  # 4
    """Return the mean square of every aggregate of K normal vectors over that of their mean, with a 99 % interval."""
    rng, rows = np.random.default_rng([seed, 4]), []
    a = rng.standard_normal((draws, K, d))
    q = np.full((draws, K), 1.0 / K)
    for name, by in AGGREGATES.items():
        ratio = K * np.mean(by.of(q, a) ** 2, axis=1)
        half = stats.norm.ppf(0.995) * ratio.std(ddof=1) / np.sqrt(draws)
        rows.append({"aggregate": name, "K": K, "d": d, "ratio": float(ratio.mean()), "half": float(half)})
    return rows


def median_variance(K: int) -> float:
    """Return the variance of the median of K normal numbers, K odd, times K: by the density of the middle one.

    Examples
    --------
    >>> from fedconvex.papers.robust_aggregation import median_variance
    >>> median_variance(1), round(median_variance(3), 3), round(median_variance(1001), 3)  # towards pi/2 = 1.571
    (1.0, 1.346, 1.57)
    """
    m = (K - 1) // 2
    log_c = special.gammaln(K + 1) - 2.0 * special.gammaln(m + 1)

    def square(x: float) -> float:
        logs = log_c + m * (special.log_ndtr(x) + special.log_ndtr(-x)) - 0.5 * x * x - 0.5 * np.log(2.0 * np.pi)
        return float(x * x * np.exp(logs))

    return round(K * 2.0 * integrate.quad(square, 0.0, 8.0, epsabs=1e-12)[0], 9)


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Run means with liars, least squares over the dial, and clients that are alike."""
    scale = QUICK if quick else FULL
    tell(0.0, "means and liars")
    far = [row for lie in scale.lies for row in moved(seed, 0.2, lie)]
    many = [row for share in scale.shares for row in moved(seed, share, 1e4)]
    rows: list[dict[str, Any]] = []
    for i, dial in enumerate(scale.dials):
        tell(0.2 + 0.6 * i / len(scale.dials), f"least squares, dial {dial:g}")
        for lie in (0.0, 30.0):
            rows += [r for n in range(scale.problems) for r in limits(1000 * seed + n, dial, lie, scale.rounds)]
    tell(0.8, "clients that are alike")
    alike = variances(seed, scale.draws)
    return Findings(
        "Which aggregation? Mean, median, trimmed mean, geometric median",
        tuple(claims(far, many, rows, alike)),
        _notes(scale),
        {"aggregation": _draw(far, many, rows)},
        {"lies": far, "shares": many, "limits": rows, "alike": alike},
    )


EXPERIMENT = Experiment(
    "aggregation",
    "what FedAvg and FedSGD converge to with medians and trimmed means in the place of the mean; liars among clients",
    study,
    smaller="two lies, four shares, two problems at two dials, 4,000 draws",
)


# ---------------------------------------------------------------- what came out


def claims(
    far: Sequence[dict[str, Any]],
    many: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    alike: Sequence[dict[str, Any]],
) -> Iterator[Claim]:
    """Judge the runs."""
    off = max(r["off"] for r in [*far, *many])
    text = "Means: FedAvg ends at the aggregate of the clients' own minimisers"
    yield Claim(text, off <= 1e-9, f"{len(far) + len(many)} runs: at most {off:.1e} of max(1, D) off", True)
    large = [r["moved"] / (r["share"] * r["lie"]) for r in [*far, *many] if r["aggregate"] == MEAN and r["moved"] > 1e3]
    text = "The mean goes as far as the liars want: alpha times the mean of what they say, 1.15 D"
    good = bool(large) and all(abs(x - 1.15) <= 0.01 for x in large)
    yield Claim(text, good, f"moved/(alpha D) {min(large, default=0):.4f} to {max(large, default=0):.4f}", True)
    robust = [r for r in [*far, *many] if r["share"] < _BREAKS[r["aggregate"]]]
    text = "Below their share median and trimmed mean stay in the honest clients' box, the geometric median in its ball"
    good = all(_stays(r) for r in robust)
    worst = max((r["moved"] / r["radius"] for r in robust), default=0.0)
    yield Claim(text, good, f"{len(robust)} runs: moved by at most {worst:.2f} of the honest radius", True)
    broken = [r["moved"] / r["lie"] for r in many if r["aggregate"] != MEAN and r["share"] > _BREAKS[r["aggregate"]]]
    text = "Beyond their share they go where the liars want"
    good = bool(broken) and min(broken) >= 0.05
    yield Claim(text, good, f"{len(broken)} runs: moved by {min(broken, default=0):.3f} D and more", True)
    yield from _least_squares(rows)
    by = {r["aggregate"]: r for r in alike}
    exact, seen = median_variance(by[MEDIAN]["K"]), by[MEDIAN]
    text = f"Clients alike: the median's variance over the mean's is what order statistics say, {exact:.4f} for K = 21"
    yield Claim(text, abs(seen["ratio"] - exact) <= seen["half"], f"{seen['ratio']:.4f} ± {seen['half']:.4f}", True)
    text = "Clients alike: the geometric median costs less than the median by coordinates, and more than the mean"
    values = [by[n]["ratio"] for n in (MEAN, GEOMETRIC, MEDIAN)]
    halves = [by[n]["half"] for n in (MEAN, GEOMETRIC, MEDIAN)]
    good = values[0] + halves[0] < values[1] - halves[1] and values[1] + halves[1] < values[2] - halves[2]
    yield Claim(text, good, ", ".join(f"{v:.3f} ± {h:.3f}" for v, h in zip(values, halves, strict=True)))


def _stays(row: dict[str, Any]) -> bool:
    """Whether a run below the share of its aggregate ended where its bound says."""
    if row["aggregate"] == GEOMETRIC:
        a = row["share"]
        return bool(row["moved"] <= 2.0 * (1.0 - a) / (1.0 - 2.0 * a) * row["radius"] * (1.0 + 1e-9))
    return bool(row["inside"])


def _least_squares(rows: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    """Judge the limits on least squares."""

    def distances(name: str, dial: float, lie: bool) -> list[float]:
        return [r["distance"] for r in rows if (r["aggregate"], r["dial"], r["lie"] > 0.0) == (name, dial, lie)]

    dials = sorted({r["dial"] for r in rows})
    mine = [x for dial in dials for x in distances(MEAN, dial, False)]
    text = "Least squares, nobody lies: FedSGD with the mean ends at the minimiser of F, whatever the heterogeneity"
    yield Claim(text, max(mine) <= 1e-6, f"at most {max(mine):.1e} of the spread of the clients' minimisers off", True)
    other = [min(distances(n, dial, False)) for n in (MEDIAN, TRIMMED, GEOMETRIC) for dial in dials]
    text = "With none of the others it does: clients that differ are not distinguished from liars"
    values = ", ".join(f"{n} {np.median(distances(n, dials[-1], False)):.2f}" for n in (MEDIAN, TRIMMED, GEOMETRIC))
    yield Claim(text, min(other) >= 1e-4, f"{min(other):.1e} and more; medians at the largest dial: {values}", True)
    rest = max(r["restless"] for r in rows)
    yield Claim("All of them come to rest", rest <= 1e-6, f"the last 50 models differ by at most {rest:.1e}")
    for name in (MEDIAN, TRIMMED, GEOMETRIC):
        better = [np.median(distances(name, dial, True)) < np.median(distances(MEAN, dial, True)) for dial in dials]
        text = f"Where four of twenty lie, the {name} ends nearer to the honest minimiser than the mean does"
        yield Claim(text, all(better), f"at {sum(better)} of {len(dials)} dials, by medians")


def _notes(scale: AggregationScale) -> tuple[str, ...]:
    return (
        "The aggregates: Yin et al. (ICML 2018) for median and trimmed mean, Pillutla et al. (2022) for the geometric "
        "median. Their statements about rates are not tried here.",
        f"Chosen here: {HONEST} honest clients; a liar holds rows of its own making, the same in every round. Liars "
        "that send whatever they like do no more: the bounds by box and ball hold for any answers. Least squares: "
        f"{scale.problems} problems a dial, {FEATURES} features, 30 rows a client, equal weights; liars' rows follow "
        f"w = (30, ..., 30) without noise; step 1/(2 L), {scale.rounds} rounds, the mean of the last 50 models. "
        "Distances below 0.001 are drawn there.",
    )


# ---------------------------------------------------------------- figure


def _draw(far: Sequence[dict[str, Any]], many: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> Any:
    """Draw distances over the size of the lie, over the share of liars, and over the dial of heterogeneity."""
    figure, axes = blank(3, width=3.7, height=3.4)
    for name, colour in zip(AGGREGATES, COLOURS, strict=False):
        for axis, found, x in ((axes[0], far, "lie"), (axes[1], many, "share")):
            mine = [r for r in found if r["aggregate"] == name]
            axis.plot([r[x] for r in mine], [max(r["moved"], 1e-3) for r in mine], ".-", color=colour, label=name)
        for lie, dash in ((False, "-"), (True, DASHED)):
            mine = [r for r in rows if r["aggregate"] == name and (r["lie"] > 0.0) == lie]
            dials = sorted({r["dial"] for r in mine})
            y = [np.median([r["distance"] for r in mine if r["dial"] == dial]) for dial in dials]
            axes[2].plot(dials, np.maximum(y, 1e-3), color=colour, linestyle=dash)
    for share in (_CUT, 0.5):
        axes[1].axvline(share, color="0.5", linestyle=DOTTED, linewidth=1.0)
    panel(axes[0], "means, a fifth lies", "the lie, D", "moved by the lie", "xy")
    panel(axes[1], "means, D = 10,000", "share of liars, α", "moved by the lie", "y")
    panel(axes[2], "least squares, medians", "heterogeneity", "distance / spread of clients", "xy")
    looks: dict[str, dict[str, Any]] = {
        "nobody lies": {"color": "0.3", "linestyle": "-"},
        "four of twenty lie": {"color": "0.3", "linestyle": DASHED},
        "β and 1/2": {"color": "0.5", "linestyle": DOTTED},
    }
    legend(figure, axes[0], looks, columns=7)
    return figure
