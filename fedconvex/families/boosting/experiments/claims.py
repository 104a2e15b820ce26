"""What boosting with several sources shows: estimates, claims, tables, notes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex.families.boosting.experiments.data import Sources
from fedconvex.families.boosting.experiments.runs import (
    ALL,
    BY_Q,
    CHOOSE,
    CLASSIFIERS,
    CLIENTS,
    CROSSED,
    FED,
    FEW,
    LONG,
    MULTI,
    MULTI_TREES,
    OPTIMAL,
    PLAIN,
    SAMPLED,
    SHRUNK,
    SMOOTHING,
    TEMPERED,
    TRAIN,
    TREES,
    UNIFORM,
    WORDS,
    BoostScale,
    BoostStudy,
)
from fedconvex.papers.findings import Claim
from fedconvex.papers.intervals import Interval, every, mean_interval, short

NEAR = 0.02  # what errors may differ by and still count as near
COARSE = 11  # points of the sweep over the weights of two domains
CURVES = (ALL, PLAIN, MULTI, CROSSED, FED)  # drawn over rounds
ALIKE = (LONG, PLAIN, MULTI, CROSSED)  # compared at equal training loss
CHOSEN = {FED: "eta_0", TEMPERED: "power of Q", SHRUNK: "tau", FEW: "components"}


def estimate(values: np.ndarray) -> Interval:
    """Return the mean of one number a division; divisions share rows."""
    return mean_interval(values, (1.0 - TRAIN - CHOOSE) / TRAIN)


QUANTITIES = ("training loss", "test loss", "test loss with a factor", "test error")


def by_domain(study: BoostStudy, method: str, quantity: str) -> np.ndarray:
    """Return a quantity of every division and domain, (J, p)."""
    mine = [o for o in study.outcomes if o.method == method]
    if quantity == "training loss":
        return np.array([o.last[0] for o in mine])
    return np.array([o.chosen[QUANTITIES.index(quantity) - 1].test for o in mine])


def _worst(study: BoostStudy, method: str, quantity: str) -> np.ndarray:
    return np.asarray(by_domain(study, method, quantity).max(axis=1))


def methods_of(study: BoostStudy) -> list[str]:
    """Return the methods' names, in their order."""
    return list(dict.fromkeys(o.method for o in study.outcomes))


def single_sources(study: BoostStudy) -> list[str]:
    """Return the names of the boosts of one source."""
    return [f"AdaBoost-{name}" for name in study.names]


def judge(study: BoostStudy) -> Iterator[Claim]:
    """Judge what the paper concludes, by intervals over divisions."""
    best = study.optimum
    limit, above = math.log(len(study.names)) / SMOOTHING, best.multi - best.lower
    fed = estimate(_difference(study, FED, MULTI, "test error"))
    yield _own_domain(study)
    for method, quantity in itertools.product((MULTI, PLAIN), QUANTITIES):
        yield _below(study, method, quantity)
    trees = estimate(_difference(study, MULTI_TREES, TREES, "test error"))
    yield Claim(
        "Trees of depth two: MultiBoost's worst-domain test error is below AdaBoost-all's after as many rounds",
        trees.below(),
        f"{estimate(_worst(study, MULTI_TREES, 'test error'))} and {estimate(_worst(study, TREES, 'test error'))}; "
        f"difference {trees}",
    )
    yield _alike(study)
    yield Claim(
        f"FedMultiBoost is near MultiBoost: its worst-domain test error is at most {NEAR:g} above",
        fed.below(NEAR),
        f"{estimate(_worst(study, FED, 'test error'))} and {estimate(_worst(study, MULTI, 'test error'))}; "
        f"difference {fed}",
    )
    yield Claim(
        "On a fixed dictionary MultiBoost comes within log(p)/mu of the certified minimum of the worst-domain loss",
        above <= limit,
        f"{best.classifiers} classifiers: MultiBoost {best.multi:.5f} after {best.multi_rounds} rounds, minimum in "
        f"[{best.lower:.5f}, {best.value:.5f}], log(p)/mu = {limit:.4f}; "
        f"FedMultiBoost {best.fed:.5f} at best in {best.fed_rounds} rounds",
    )
    yield Claim(
        "The optimal combinations are optimal: certified gaps of at most 1e-3",
        best.own_gap <= 1e-3,
        f"largest gap {best.own_gap:.1e}",
        refutable=True,
    )


def _difference(study: BoostStudy, method: str, other: str, quantity: str) -> np.ndarray:
    return _worst(study, method, quantity) - _worst(study, other, quantity)


def _own_domain(study: BoostStudy) -> Claim:
    each = np.array([by_domain(study, m, "test error") for m in single_sources(study)])  # (source, division, domain)
    E = each.mean(axis=1)
    p, own = len(E), np.diag(E)
    more = [estimate(each[k, :, i] - each[i, :, i]) for i in range(p) for k in range(p) if k != i]
    least = np.where(np.eye(p, dtype=bool), math.inf, E).min(axis=0)
    most = np.where(np.eye(p, dtype=bool), -math.inf, E).max(axis=0)
    rows = zip(study.names, own, least, most, strict=True)
    return Claim(
        "A boost of one source does badly elsewhere: on every domain it errs more than the domain's own boost",
        every(d.above() for d in more),
        f"least difference {min(more, key=lambda d: d.low)}; test errors: "
        + "; ".join(f"{k} {a:.3f}, of others {b:.3f}" + (f" to {c:.3f}" if p > 2 else "") for k, a, b, c in rows),
    )


def _below(study: BoostStudy, method: str, quantity: str) -> Claim:
    """Compare in pairs with the best AdaBoost-k, AdaBoost-all and the combinations; on test rows also with more.

    AdaBoost-all with p T rounds and own boosts weighted by Q have p T base classifiers, and so a lower training loss.
    """
    best = min(single_sources(study), key=lambda m: float(np.mean(_worst(study, m, quantity))))
    training = quantity == QUANTITIES[0]
    baselines = "each of the paper's baselines" if training else "every baseline"
    others = (best, ALL, UNIFORM, OPTIMAL, *(() if training else (LONG, BY_Q)))
    paired = {m: estimate(_difference(study, method, m, quantity)) for m in others}
    numbers = "; ".join(f"{m} {short(float(np.mean(_worst(study, m, quantity))))}, {d}" for m, d in paired.items())
    unsure = [m for m, d in paired.items() if abs(d.mean) <= d.half]
    return Claim(
        f"{method}: the worst domain's {quantity} is below that of {baselines}",
        every(d.below() for d in paired.values()),
        f"{estimate(_worst(study, method, quantity))}. Baseline and difference: {numbers}. "
        + (f"Within the interval of the difference: {', '.join(unsure)}." if unsure else "All intervals leave out 0."),
    )


def at_equal_loss(study: BoostStudy) -> list[dict[str, Any]]:
    """Return, for every division, the first rounds at which methods have come down to the same training loss."""
    found = []
    for split in dict.fromkeys(o.split for o in study.outcomes):
        curves = {o.method: o.curves for o in study.outcomes if o.split == split and o.method in ALIKE}
        level = max(float(c[0].min()) for c in curves.values())  # the lowest that all reach
        for method, (train, test, _) in curves.items():
            t = int(np.argmax(train <= level))
            row = {"division": split, "method": method, "level": level, "rounds": t}
            found.append(row | {"training loss": train[t], "test loss": test[t], "gap": test[t] - train[t]})
    return found


def _alike(study: BoostStudy) -> Claim:
    """Compare how much is lost from training to test rows, where as much has been learned."""
    rows = at_equal_loss(study)
    gap = {m: np.array([r["gap"] for r in rows if r["method"] == m]) for m in ALIKE}
    more = estimate(gap[MULTI] - gap[LONG])
    level = estimate(np.array([r["level"] for r in rows if r["method"] == MULTI]))
    return Claim(
        "At equal training loss MultiBoost loses no more on test rows than AdaBoost-all: the gap of their worst-domain "
        f"losses is at most {NEAR:g} larger",
        more.below(NEAR),
        f"training loss {level}; gaps: {'; '.join(f'{m} {estimate(v)}' for m, v in gap.items())}; difference {more}",
    )


# ---------------------------------------------------------------- tables and notes


def tables(study: BoostStudy) -> dict[str, list[dict[str, Any]]]:
    """Return all tables by name."""
    return {
        "table": list(_method_rows(study)),
        "domains": list(_domain_rows(study)),
        "differences": list(_paired_rows(study)),
        "domain_weights": list(_sweep_rows(study)),
        "rounds": list(_round_rows(study)),
        "equal_loss": at_equal_loss(study),
        "splits": list(_split_rows(study)),
        "certificate": [study.optimum._asdict()],
    }


def _method_rows(study: BoostStudy) -> Iterator[dict[str, Any]]:
    """Yield one row a method: worst-domain quantities, and rounds chosen."""
    for method in methods_of(study):
        row = {"method": method} | {q: str(estimate(_worst(study, method, q))) for q in QUANTITIES}
        chosen = [o.chosen[2].rounds for o in study.outcomes if o.method == method]
        yield row | {"rounds": "" if method in (UNIFORM, OPTIMAL, BY_Q) else f"{np.median(chosen):g}"}


def _domain_rows(study: BoostStudy) -> Iterator[dict[str, Any]]:
    for method, quantity in itertools.product(methods_of(study), QUANTITIES):
        values = by_domain(study, method, quantity)
        for name, mine in [*zip(study.names, values.T, strict=True), ("worst", values.max(axis=1))]:
            yield {"method": method, "quantity": quantity, "domain": name, **estimate(mine)._asdict()}


def _paired_rows(study: BoostStudy) -> Iterator[dict[str, Any]]:
    mine = (MULTI, PLAIN, TEMPERED, SHRUNK, FEW, CROSSED, FED, MULTI_TREES)
    for method, other, quantity in itertools.product(mine, methods_of(study), QUANTITIES):
        if method != other:
            d = _difference(study, method, other, quantity)
            row = {"method": method, "minus": other, "quantity": quantity, **estimate(d)._asdict()}
            yield row | {"lower in": int((d < 0.0).sum())}


def _sweep_rows(study: BoostStudy) -> Iterator[dict[str, Any]]:
    """Yield test error and loss of (1 - lambda) first + lambda second domain."""
    pairs = list(itertools.combinations(enumerate(study.names), 2))
    for method, quantity in itertools.product(methods_of(study), QUANTITIES[1:]):
        values = by_domain(study, method, quantity)
        for ((a, first), (b, second)), lam in itertools.product(pairs, np.linspace(0.0, 1.0, COARSE).tolist()):
            found = estimate((1.0 - lam) * values[:, a] + lam * values[:, b])
            row = {"method": method, "quantity": quantity, "first": first, "second": second, "lambda": lam}
            yield row | found._asdict()


def _round_rows(study: BoostStudy) -> Iterator[dict[str, Any]]:
    for method in methods_of(study):
        curves = np.array([o.curves for o in study.outcomes if o.method == method])
        for t in range(0, curves.shape[2], 5):
            row: dict[str, Any] = {"method": method, "round": t}
            for i, quantity in enumerate(("training loss", "test loss", "test error")):
                found = estimate(curves[:, i, t])
                row |= {quantity: found.mean, f"{quantity}, half width": found.half}
            yield row


def _split_rows(study: BoostStudy) -> Iterator[dict[str, Any]]:
    for o in study.outcomes:
        for kind, choice in zip(QUANTITIES[1:], o.chosen, strict=True):
            row: dict[str, Any] = {"division": o.split, "method": o.method, "quantity": kind, "rounds": choice.rounds}
            row |= {"setting": choice.setting, "factor": choice.factor, "held out": choice.held}
            yield row | dict(zip(study.names, choice.test.tolist(), strict=True))


def notes(rows: Sources, scale: BoostScale, study: BoostStudy) -> tuple[str, ...]:
    """Say what the data are, what is taken from the paper, and what is chosen here."""
    n, d = rows.X.shape
    shares = f"{TRAIN:.0%} of the rows to train, {CHOOSE:.0%} to choose on, {1 - TRAIN - CHOOSE:.0%} to test on"
    presence = f"presence of the {min(WORDS, d)} columns that most training rows have"
    kept = presence if sp.issparse(rows.X) else f"{d} columns"
    of = {m: by_domain(study, m, "test error").mean(axis=0) for m in (*single_sources(study), ALL, MULTI)}
    pooled = [f"{k} {of[f'AdaBoost-{k}'][i]:.3f}, {of[ALL][i]:.3f}" for i, k in enumerate(rows.names)]
    last = {m: np.mean([o.last[:2].max(axis=1) for o in study.outcomes if o.method == m], axis=0) for m in CURVES[:3]}
    gaps = "; ".join(f"{m} {short(train)} and {short(test)}" for m, (train, test) in last.items())
    chosen = {m: sorted({o.chosen[2].setting for o in study.outcomes if o.method == m}) for m in CHOSEN}
    settings = (f"{CHOSEN[m]} {', '.join('all' if v == math.inf else f'{v:g}' for v in c)}" for m, c in chosen.items())
    right = np.mean(study.accuracy, axis=0)
    return (
        f"Data: {rows.name}, {n:,} rows, {kept}; domains {', '.join(rows.names)}. {scale.splits} random divisions, "
        f"{shares}; equal rows stay on one side ({n - int(rows.group.max()) - 1} rows repeat another).",
        "Intervals: 95 %, t, over divisions, with the variance of Nadeau and Bengio (2003) for divisions that share "
        "rows. Differences are paired. A claim holds, or fails, where the whole interval lies on one side of what it "
        "states.",
        f"Chosen here: Phi = exp, {scale.rounds} rounds at most, mu = {SMOOTHING:g}, the grid of l2 for Q; for "
        f"FedMultiBoost {CLIENTS} clients a domain, {SAMPLED} of them and {CLASSIFIERS} stumps of each source a round. "
        "The paper's text was not at hand: its claims are taken as they are usually quoted.",
        f"Q names the domain of {right[0]:.1%} of training and {right[1]:.1%} of test rows; l2 "
        f"{', '.join(f'{c:g}' for c in sorted(set(study.penalties)))}.",
        f"After all rounds, at training losses that differ, worst-domain training and test loss: {gaps}.",
        f"Does it help to leave other sources out? Test error of a domain's own AdaBoost, and of AdaBoost-all: "
        f"{'; '.join(pooled)}.",
        f"Chosen by error, in one division or another: {'; '.join(settings)}.",
    )
