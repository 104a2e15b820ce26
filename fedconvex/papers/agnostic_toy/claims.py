"""What the toy regression shows: claims, tables, notes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedconvex.driver import Result
from fedconvex.papers.agnostic_toy.problem import CENTRES, QUIET, ROUNDING
from fedconvex.papers.agnostic_toy.runs import (
    BATCH,
    NOISY_STEP,
    STEP,
    LineSolution,
    RateCheck,
    ToyScale,
    ToySetting,
)
from fedconvex.papers.findings import Claim
from fedconvex.papers.intervals import Interval, every


def judge(
    settings: Sequence[ToySetting], rates: Sequence[RateCheck], scale: ToyScale, line: LineSolution
) -> Iterator[Claim]:
    """Judge the exact solutions, the methods, their certificates and the rate theorem."""
    equal, noisy = settings
    off = max(_formula_error(setting) for setting in settings)
    yield Claim(
        "The mean loss of domain i is ‖h - c_i‖² + Var_i (largest difference at 100 points h)",
        off <= ROUNDING * 100.0,
        f"{off:.1e}",
        everywhere=True,
    )
    r2, apart = equal.circle.value, float(np.linalg.norm(equal.minimax.w - equal.circle.h))
    yield Claim(
        "With equal variances the agnostic solution is the centre of the smallest circle around the means",
        apart <= 1e-6 and abs(equal.minimax.value - (r2 + QUIET)) <= 1e-8,
        f"distance {apart:.1e}; minimax value {equal.minimax.value:.10f}, radius² + variance {r2 + QUIET:.10f}",
        everywhere=True,
    )
    apart = float(np.linalg.norm(noisy.minimax.w - noisy.circle.h))
    there = float(noisy.problem.domain_values(noisy.circle.h).max())
    yield Claim(
        "With unequal variances it is not: the centre of the circle serves the noisy domain worse",
        there > noisy.minimax.value + 1e-6 and apart > 1e-3,
        f"distance {apart:.3f}; worst domain {there:.4f} at the centre of the circle, {noisy.minimax.value:.4f} at the "
        "agnostic solution",
        everywhere=True,
    )
    yield _by_hand(settings)
    yield _line(line)
    yield _reached(settings, scale.close)
    yield _certified(settings)
    yield _pooled_is_worse(settings)
    yield Claim(
        "With mini-batches and the theorem's step sizes the mean suboptimality of AFL stays below its bound",
        every(Interval(r.mean, 3.0 * r.error).below(r.bound.value) for r in rates),
        "; ".join(
            f"{r.setting}, T = {r.rounds}: {r.mean:.3g} (s.e. {r.error:.1g}), bound {r.bound.value:.3g}" for r in rates
        ),
    )


def _formula_error(setting: ToySetting) -> float:
    h = np.random.default_rng(0).uniform(-2.0, 5.0, (100, 2))
    mine = ((h[:, None] - CENTRES) ** 2).sum(axis=2) + setting.variances
    return float(np.abs(setting.problem.domain_values(h) - mine).max())


def _line(line: LineSolution) -> Claim:
    """Whether the outermost domains a, b decide: (h - c_a)^2 + v_a = (h - c_b)^2 + v_b."""
    a, b = int(line.means.argmin()), int(line.means.argmax())
    c, v = line.means, line.variances
    off = (v[b] - v[a]) / (2.0 * (c[b] - c[a]))
    return Claim(
        "In FedJAX's recipe variances are equal in the mean only, so that the solution is off the middle of the "
        "outermost means by (v_b - v_a)/(2(c_b - c_a))",
        abs(line.h - line.middle - off) <= 1e-6 and abs(off) > 1e-6,
        f"variances {v[a]:.3f} and {v[b]:.3f}: off by {line.h - line.middle:+.4f}, formula {off:+.4f}",
    )


def _by_hand(settings: Sequence[ToySetting]) -> Claim:
    errors = []
    for s in settings:
        point, weights = s.minimax.w - s.exact.h, s.minimax.domain_weights - s.exact.domain_weights
        errors.append(float(np.abs([s.minimax.value - s.exact.value, *point, *weights]).max()))
    rows = zip(settings, errors, strict=True)
    return Claim(
        "solve_minimax agrees with the solution by hand in value, point and weights, and certifies itself",
        max(errors) <= 1e-6 and all(s.minimax.lower <= s.exact.value + ROUNDING for s in settings),
        "; ".join(f"{s.name}: off by {e:.1e}, certified gap {s.minimax.gap:.1e}" for s, e in rows),
        everywhere=True,
    )


def _reached(settings: Sequence[ToySetting], close: float) -> Claim:
    """Whether every method ends close to the minimax value, and within its own certificate of it."""
    shares: dict[str, float] = {}
    holds: list[bool | None] = []
    for setting in settings:
        for name, result in setting.results.items():
            value, gap, _ = _last(result)
            excess = value - setting.exact.value
            near = excess <= close * setting.exact.value  # every run
            holds += [bool((excess <= gap + ROUNDING).all()), True if near.all() else None if near.any() else False]
            shares[name] = max(shares.get(name, 0.0), float(np.median(excess)) / setting.exact.value)
    return Claim(
        f"AFL, OptimisticAFL and AgnosticFedAvg reach the minimax value, within {close:.0%} in every run, and within "
        "their certificates",
        every(holds),
        "excess over the minimax value, median of the runs, the larger of both settings: "
        + ", ".join(f"{name} {max(share, 0.0):.1e}" for name, share in shares.items()),
    )


def _certified(settings: Sequence[ToySetting]) -> Claim:
    """Whether certified gaps bound the true ones, which come from the solution by hand."""
    traces = [(s.exact.value, result.trace) for s in settings for result in s.results.values()]
    short = np.concatenate([(trace.value - least - trace.gap).ravel() for least, trace in traces])
    return Claim(
        "The certified gap is an upper bound of the true one along every trace",
        bool((short <= ROUNDING).all()),
        f"largest true gap minus certified gap {short.max():.1e} in {short.size:,} records",
        everywhere=True,
    )


def _pooled_is_worse(settings: Sequence[ToySetting]) -> Claim:
    holds, words = True, []
    for setting in settings:
        end = setting.paths["FedAvg"][-1]
        value = float(setting.problem.domain_values(end).max())
        lost = float(setting.problem.value(setting.minimax.w) - setting.problem.value(setting.pooled))
        holds &= value > 1.01 * setting.minimax.value and float(np.linalg.norm(end - setting.pooled)) <= 1e-6
        words.append(
            f"{setting.name}: worst domain {value:.3f} against {setting.minimax.value:.3f}; the agnostic solution "
            f"costs {lost:.3f} of the pooled objective"
        )
    return Claim("FedAvg goes to the pooled mean, whose worst domain is worse", holds, "; ".join(words))


# ---------------------------------------------------------------- tables


def _last(result: Result) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values (R,), certified gaps (R,) and domain weights (R, p) of the last record."""
    trace = result.trace
    lam = trace["domain_weights"][-1]
    return np.ravel(trace.value[-1]), np.ravel(trace.gap[-1]), lam.reshape(-1, lam.shape[-1])


def method_rows(settings: Sequence[ToySetting]) -> Iterator[dict[str, Any]]:
    """Yield how far every method is from the exact solution after its last round."""

    def row(setting: ToySetting, name: str, rounds: int, excess: Any, w: Any) -> dict[str, Any]:
        far = np.linalg.norm(np.reshape(w, (-1, 2)) - setting.exact.h, axis=1)
        found = {"setting": setting.name, "method": name, "rounds": str(rounds)}
        found |= {"h(w) - min h": f"{np.median(excess):.2e}", "certified": "", "distance": f"{np.median(far):.2e}"}
        return found | {"distance of lambda": ""}

    for setting in settings:
        for name, result in setting.results.items():
            value, gap, lam = _last(result)
            off = np.linalg.norm(lam - setting.exact.domain_weights, axis=1)
            known = {"certified": f"{np.median(gap):.2e}", "distance of lambda": f"{np.median(off):.2e}"}
            yield row(setting, name, result.rounds, value - setting.exact.value, result.w) | known
        path, excess = setting.paths["FedAvg"], setting.fedavg["value"][-1] - setting.exact.value
        yield row(setting, "FedAvg", len(path) - 1, excess, path[-1])


def _solution_rows(settings: Sequence[ToySetting]) -> Iterator[dict[str, Any]]:
    """Yield the points, with their worst domain and their pooled objective."""
    for setting in settings:
        none = np.full(len(CENTRES), math.nan)
        points = {
            "agnostic, solve_minimax": (setting.minimax.w, setting.minimax.domain_weights),
            "agnostic, by hand": (setting.exact.h, setting.exact.domain_weights),
            "centre of the smallest circle": (setting.circle.h, none),
            "pooled": (setting.pooled, none),
        }
        for name, (h, lam) in points.items():
            F = setting.problem.domain_values(h)
            row: dict[str, Any] = {"setting": setting.name, "point": name, "h_1": float(h[0]), "h_2": float(h[1])}
            row |= {"worst domain": float(F.max()), "pooled objective": float(setting.problem.value(h))}
            row |= {f"F_{i + 1}": float(f) for i, f in enumerate(F)}
            yield row | {f"lambda_{i + 1}": float(m) for i, m in enumerate(lam)}


def _curve_rows(settings: Sequence[ToySetting]) -> Iterator[dict[str, Any]]:
    """Yield value, excess, certified gap and domain weights at rounds that grow by a constant factor."""
    for setting in settings:
        for name, result in setting.results.items():
            trace = result.trace
            T = len(trace.round)
            value, gap = (np.median(np.reshape(trace[key], (T, -1)), axis=1) for key in ("value", "gap"))
            lam = np.median(trace["domain_weights"].reshape(T, -1, trace["domain_weights"].shape[-1]), axis=1)
            for i in np.unique(np.geomspace(1, T, 60).round().astype(int)) - 1:
                t = int(trace.round[i])
                row: dict[str, Any] = {"setting": setting.name, "method": name, "round": t, "value": float(value[i])}
                row |= {"excess": float(value[i] - setting.exact.value), "certified gap": float(gap[i])}
                yield row | {f"lambda_{k + 1}": float(m) for k, m in enumerate(lam[i])}


def tables(settings: Sequence[ToySetting]) -> dict[str, list[dict[str, Any]]]:
    """Return all tables by name."""
    return {
        "table": list(method_rows(settings)),
        "solutions": list(_solution_rows(settings)),
        "curves": list(_curve_rows(settings)),
    }


def notes(scale: ToyScale) -> tuple[str, ...]:
    """Say what is taken from the literature and what is chosen here."""
    return (
        "Taken from the literature: domains of points, squared distance, all domain weights. "
        "Chosen here: means, numbers of points, variances, step sizes: "
        f"{STEP:g} for both players, {NOISY_STEP:g} for λ with mini-batches of {BATCH} rows.",
        "A point is two rows: 2e_1 with target 2z_1, 2e_2 with target 2z_2; (x'h - y)²/2 averaged over both is "
        "‖h - z‖². A mini-batch therefore draws single coordinates.",
        f"{scale.rounds} rounds; with mini-batches the median of {scale.runs} runs. AFL's points are averages. All "
        "domains have the same Hessian, so that local steps cause no drift here: AgnosticFedAvg's limit is exact.",
        "λ is the vector of barycentric weights of the solution in the means: h = Σ λ_i c_i, over the worst domains.",
    )
