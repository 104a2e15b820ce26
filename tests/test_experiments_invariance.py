"""The experiments on invariance: moments against their draws, quick versions, and planted results for each claim."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex.datasets import chain_federation, coloured_federation
from fedconvex.papers import EXPERIMENTS, summary
from fedconvex.papers.invariance import against, chain, colour
from fedconvex.papers.invariance.against import Found, Risks, _claims, _crossing
from fedconvex.papers.invariance.shifts import SHIFTS, population


@pytest.mark.parametrize("name", SHIFTS)
def test_moments_of_shifts(name):
    """Moments are those of draws, affine along the line, and what the federation of the population holds."""
    shift, rng = SHIFTS[name], np.random.default_rng(0)
    for t in (-1.0, 0.5, shift.far):
        X, y = shift.draw(t, 20000, rng)
        rows = np.column_stack([X, y])
        S, b, c = shift.moments(t)
        M = np.block([[S, b[:, None]], [b[None], np.array([[c]])]])
        error = np.sqrt(np.einsum("ni,nj->ij", rows**2, rows**2) / len(y)) / np.sqrt(len(y))
        assert (np.abs(rows.T @ rows / len(y) - M) <= 5.0 * error + 1e-12).all()
    ends = [shift.moments(t) for t in (-1.0, 1.0)]
    for part, low, high in zip(shift.moments(2.0), *ends, strict=True):
        np.testing.assert_allclose(part, 0.5 * (low + high) + high - low, rtol=1e-12, atol=1e-12)
    w, fed = rng.standard_normal(2), population(shift)
    values = 0.5 * (fed.X @ w - fed.y) ** 2
    assert [values[:3].mean(), values[3:].mean()] == pytest.approx([shift.risk(w, -1.0), shift.risk(w, 1.0)])
    assert shift.least_risk(1.0) <= shift.risk(w, 1.0)


def flat(value, new=None):
    return Risks(value, value, value if new is None else new)


def found(**planted):
    """Risks for which every claim holds, then what is planted: {shift: {model: risks}}."""
    mine = {}
    for name in SHIFTS:
        exact = {k: Risks(0.2, 0.3, 0.9) for k in against.MODELS}
        exact |= {"pooled": Risks(0.1, 0.25, 0.8), "AFL": Risks(0.15, 0.2, 0.5), "FedAvg": Risks(0.11, 0.26, 0.8)}
        if name == "colour":
            exact |= {"AFL": Risks(0.15, 0.2, 0.7), "IRMv1, strong": flat(0.4), "invariant features": flat(0.3)}
        if name == "chain, effect":
            exact |= {"invariant features": flat(0.3)}
        if name == "chain, target":
            exact |= {"invariant features": flat(0.3, 1.1)}
        if name == "label":
            exact |= {"AFL": flat(0.2), "game": flat(0.2)}
        exact |= planted.get(name, {})
        jitter = np.array([-0.01, 0.0, 0.01])
        draws = {k: [r._replace(new=r.new + x * (1 + i)) for x in jitter] for i, (k, r) in enumerate(exact.items())}
        runs = dict.fromkeys(("FedAvg", "OptimisticAFL", "IRMv1"), (0.0, 0.001))
        mine[name] = Found(exact, draws, {"AFL": 1e-9}, 10.0, runs, 0.05, 0.7 if name == "label" else 1.0)
    return mine


def failing(mine):
    return [i for i, claim in enumerate(_claims(mine)) if claim.holds is False]


@pytest.mark.parametrize(
    ("planted", "fails"),
    [
        ({}, []),
        ({"label": {"FedAvg": Risks(0.05, 0.26, 0.8)}}, [0]),
        ({"colour": {"IRMv1, weak": Risks(0.15, 0.1, 0.7)}}, [0]),
        ({"colour": {"AFL": Risks(0.15, 0.2, 0.45)}}, [1]),
        ({"colour": {"IRMv1, strong": flat(0.4, 0.6)}}, [1]),
        ({"chain, effect": {"AFL": Risks(0.15, 0.2, 0.85)}}, [2]),
        ({"chain, target": {"invariant features": flat(0.3, 0.85)}}, [3]),
        ({"covariate": {"IRMv1, weak": Risks(0.2, 0.3, 0.4)}}, [4]),
        ({"label": {"AFL": Risks(0.2, 0.2, 0.21)}}, [5]),
        ({"colour": {"game": Risks(0.2, 0.3, 0.4)}}, [6]),
        ({"covariate": {"IRMv1, strong": Risks(0.12, 0.3, 0.9)}}, [7]),
    ],
)
def test_claims_about_shifts_can_fail(planted, fails):
    assert failing(found(**planted)) == fails


def test_other_claims_about_shifts_can_fail_or_stay_open():
    """Orders of samples, runs that end beyond their certificates, a gap that certifies nothing, AFL's weights."""
    mine = found()
    label = mine["label"]
    worse = label.draws | {"AFL": label.draws["FedAvg"], "FedAvg": label.draws["AFL"]}
    assert failing(mine | {"label": label._replace(draws=worse)}) == [13]
    wide = [r._replace(new=r.new + x) for r, x in zip(label.draws["AFL"], (-5.0, 0.0, 5.0), strict=True)]
    unclear = list(_claims(mine | {"label": label._replace(draws=label.draws | {"AFL": wide})}))
    assert unclear[13].holds is None
    assert failing(mine | {"label": label._replace(runs=label.runs | {"IRMv1": (0.1, 1e-3)})}) == [14]
    assert failing(mine | {"label": label._replace(gaps={"AFL": 1e-3})}) == [0]
    assert failing(mine | {"colour": mine["colour"]._replace(weight=0.5)}) == [5]


def test_crossings():
    """From t = 5 on a flat 0.5 is below the line 0 + 0.1 t; nowhere where it stays above, everywhere where below."""
    line, flat_ = Risks(0.0, 0.1, 1.0), Risks(0.5, 0.5, 0.5)
    f = found()["label"]._replace(exact={"a": line, "b": flat_, "c": flat(2.0), "d": flat(-1.0)})
    assert _crossing(f, "b", "a") == pytest.approx(5.0)
    assert np.isnan(_crossing(f, "c", "a")) and _crossing(f, "d", "a") == -np.inf


@pytest.mark.slow
def test_agnostic_against_invariant(monkeypatch):
    """Populations are exact, so their claims hold whatever the seed; three draws leave orders of samples open."""
    monkeypatch.setattr(against, "QUICK_DRAWS", 3)
    monkeypatch.setattr(against, "ROUNDS", 100)
    findings = EXPERIMENTS["agnostic-against-invariant"].run(quick=True, seed=4)
    assert findings.holds, summary(findings)
    assert {row["shift"] for row in findings.tables["table"]} == set(SHIFTS)
    assert set(findings.figures) == {"shifts"}


# ---------------------------------------------------------------- irm-chain


@pytest.mark.parametrize("setting", chain.SETTINGS)
def test_population_of_chains(setting):
    """Moments of five chains are those of samples, in the same order of features."""
    exact, drawn = (
        chain.population(setting, (0.5,)),
        chain_federation((0.5,), 20000, 5, **chain.noises(setting, (0.5,))),
    )
    M, N = ((R.T @ R) / len(R) for R in (np.column_stack([f.X, f.y]) for f in (exact, drawn)))
    assert np.abs(M - N).max() <= 0.03 * np.abs(M).max()
    assert np.abs(M[0, 5] - 0.5) <= 1e-12 and abs(M[0, 6]) <= 1e-12  # x_1 goes with z_1, and not with z_2


def test_published_is_closed_form():
    """The published means of least squares are within 2 % and 5 % of the closed form."""
    assert chain.closed_form("target", chain.SCALES) == pytest.approx(0.8208, rel=0.02)
    assert chain.closed_form("effect", chain.SCALES) == pytest.approx(0.00909, rel=0.05)


def chains(setting="target", exact=None, draws=None, **other):
    """Results for which every claim holds, then what is planted in one setting."""
    mine = {}
    for k in chain.SETTINGS:
        c = chain.closed_form(k, chain.SCALES)
        published = {"target": (0.8208, 0.8207), "effect": (0.00909, 0.00898)}[k]
        game, middle = ((e * e / (1.0 + e * e)) ** 2 for e in chain.SCALES[:2])
        models = {"least squares, three": c, "least squares, two": 0.4, "game": game, "game, three": middle}
        models |= {f"IRMv1, {w:g}": 0.1 / w for w in chain.WEIGHTS} | {"IRMv1, chosen": 0.1, "invariant features": 0.0}
        jitter = np.linspace(-1e-4, 1e-4, 20)
        drawn = {n: [chain.Errors(e + i * x, e + i * x) for x in jitter] for i, (n, e) in enumerate(models.items(), 1)}
        drawn["least squares, three"] = [chain.Errors(*(p + x for p in published)) for x in jitter]
        errors = {n: chain.Errors(e, e) for n, e in models.items()}
        mine[k] = chain.Found(errors, drawn, [0.0] * 20, [True] * 20, 1e-9, 1e-9)
    f = mine[setting]
    mine[setting] = f._replace(exact=f.exact | (exact or {}), draws=f.draws | (draws or {}), **other)
    return mine


def chain_failing(mine):
    claims = [*chain._exact_claims(mine), *chain._sample_claims(mine)]
    return [i for i, claim in enumerate(claims) if claim.holds is False], [c.holds for c in claims].count(None)


@pytest.mark.parametrize(
    ("planted", "fails"),
    [
        ({}, []),
        ({"exact": {"least squares, three": chain.Errors(0.8215, 0.8215)}}, [0]),
        ({"exact": {"IRMv1, 100": chain.Errors(0.02, 0.02)}}, [1]),
        ({"gap": 1e-3}, [1]),
        ({"setting": "effect", "exact": {"invariant features": chain.Errors(1e-3, 0.0)}}, [2]),
        ({"exact": {"game": chain.Errors(0.002, 0.0)}}, [3]),
        ({"exact": {"game, three": chain.Errors(0.002, 0.0)}}, [3]),
        ({"equilibrium": 0.1}, [3]),
        ({"draws": {"least squares, three": [chain.Errors(0.6 + 1e-4 * (i % 2), 0.82) for i in range(20)]}}, [4]),
        ({"causes": [True, False] * 10}, [5]),
        ({"chosen": [0.0] * 19 + [1.0]}, [6]),
        ({"draws": {"IRMv1, 1000": [chain.Errors(0.5 + 1e-3 * i, 0.0) for i in range(20)]}}, [7]),
        ({"setting": "effect", "draws": {"IRMv1, 1000": [chain.Errors(0.5 + 1e-3 * i, 0.0) for i in range(20)]}}, [8]),
    ],
)
def test_claims_about_chains_can_fail(planted, fails):
    assert chain_failing(chains(**planted)) == (fails, 0)


def test_claims_about_chains_may_stay_open():
    wide = {"IRMv1, 1000": [chain.Errors(10.0 * (-1) ** i, 0.0) for i in range(20)]}
    assert chain_failing(chains(draws=wide)) == ([], 1)
    assert chain_failing(chains(causes=[True] * 5)) == ([], 1)


@pytest.mark.slow
@pytest.mark.compiled
def test_irm_chain(monkeypatch):
    monkeypatch.setattr(chain, "QUICK_DRAWS", 2)
    findings = EXPERIMENTS["irm-chain"].run(quick=True, seed=1)
    assert findings.holds, summary(findings)
    assert {row["noise at"] for row in findings.tables["table"]} == set(chain.SETTINGS)
    assert [row["theirs"] for row in findings.tables["published"]] == ["ERM", "IRM", "ICP"] * 2


# ---------------------------------------------------------------- irm-colour


def test_environments_of_colours():
    """Two signs are the coloured population; components stand in the channel of their colour; flips are exact."""
    flip = 0.2
    rows = colour.environment(np.ones((1, 1)), np.ones(1), flip, colour.KINDS[0])
    fed = coloured_federation((flip,))
    theirs = sorted(zip((fed.X * fed.y[:, None]).tolist(), fed.sample_weight.tolist(), strict=True))
    ours = sorted(zip((rows.X * rows.y[:, None]).tolist(), rows.weight.tolist(), strict=True))
    assert [x for x, _ in ours] == [x for x, _ in theirs]
    assert [p for _, p in ours] == pytest.approx([p for _, p in theirs])
    assert rows.accuracy(np.array([1.0, 0.0])) == pytest.approx(0.75)
    assert rows.accuracy(np.array([0.0, 1.0])) == pytest.approx(0.8)
    assert rows.accuracy(np.zeros(2)) == pytest.approx(0.5)
    image = np.array([[2.0, 3.0]])
    wide = colour.environment(image, np.array([-1.0]), flip, colour.KINDS[2])
    assert {tuple(x) for x in wide.X.tolist()} == {(2.0, 3.0, 0.0, 0.0, 1.0), (0.0, 0.0, 2.0, 3.0, -1.0)}
    assert wide.weight @ (wide.y == -1.0) == pytest.approx(0.75)
    assert wide.weight @ (wide.X[:, -1] == wide.y) == pytest.approx(1.0 - flip)


def colours(planted=None):
    """Results for which every claim holds, then what is planted: {(features and loss, model): models}."""
    model, mine = colour.Model, {}
    names = [colour._name(weight) for weight in colour.WEIGHTS]
    for kind in ("two signs, squared", "two signs, logistic"):
        late = [model(0.75, 0.75 if i > 2 else 0.1, 1e-9, np.log([3.0, 17.0 / 3.0])) for i in range(len(names))]
        mine |= {(kind, name): [m] for name, m in zip(names, late, strict=True)}
    for loss in ("squared", "logistic"):
        for i, name in enumerate(names):
            late = [model(0.85 - 0.03 * i + 0.001 * j, 0.1 + 0.1 * i - 0.002 * j, 1e-9, np.zeros(2)) for j in range(4)]
            mine["score and colour, " + loss, name] = late
    wide = f"{colour.KINDS[2]}, squared"
    mine |= {(wide, name): [model(0.8, 0.3, 1e-9, np.zeros(2))] * 4 for name in (*names, "shape alone")}
    mine |= {
        (f"{k}, squared", "game"): [model(0.85, 0.1, 1e-9, np.zeros(2))] * n
        for k, n in zip(colour.KINDS[:2], (1, 4), strict=True)
    }
    return mine | (planted or {})


@pytest.mark.parametrize(
    ("where", "test", "gap", "fails"),
    [
        ((), 0.0, 0.0, []),
        (("two signs, squared", "IRMv1, 10"), 0.75, 1e-9, [0]),
        (("two signs, squared", "IRMv1, 100"), 0.1, 1e-9, [0]),
        (("two signs, squared", "IRMv1, 100"), 0.75, 1e-3, [0]),
        (("two signs, logistic", "IRMv1, 100"), 0.1, 1e-9, [1]),
        (("score and colour, squared", "game"), 0.6, 1e-9, [2]),
        (("score and colour, squared", "IRMv1, 10000"), 0.05, 1e-9, [3]),
        (("score and colour, logistic", "IRMv1, 10000"), 0.05, 1e-9, [4]),
        ((f"{colour.KINDS[2]}, squared", "IRMv1, 1000"), 0.6, 1e-9, [5]),
        ((f"{colour.KINDS[2]}, squared", "IRMv1, 1000"), 0.3, 1e-3, [6]),
    ],
)
def test_claims_about_colours_can_fail(where, test, gap, fails):
    mine = colours()
    if where:
        n = len(mine[where])
        planted = [colour.Model(0.9 + 0.001 * j, test + 0.001 * j, gap, mine[where][0].w) for j in range(n)]
        mine = colours({where: planted})
    assert [i for i, claim in enumerate(colour._claims(mine)) if claim.holds is False] == fails


def test_other_claims_about_colours():
    """Pooled logistic training off naive Bayes by 1e-4 fails; gains that differ between splits stay open."""
    far = colour.Model(0.85, 0.1, 1e-9, np.log([3.0, 17.0 / 3.0]) + 1e-4)
    claims = list(colour._claims(colours({("two signs, logistic", "pooled"): [far]})))
    assert [c.holds for c in claims] == [True, False, True, True, True, True, True]
    unclear = [colour.Model(0.7, 0.1 + 0.5 * (j % 2), 1e-9, np.zeros(2)) for j in range(4)]
    claims = list(colour._claims(colours({("score and colour, squared", "IRMv1, 10000"): unclear})))
    assert claims[3].holds is None


@pytest.mark.slow
@pytest.mark.compiled
def test_irm_colour(monkeypatch):
    monkeypatch.setattr(colour, "QUICK_SPLITS", 2)
    monkeypatch.setattr(colour, "COMPONENTS", 8)
    findings = EXPERIMENTS["irm-colour"].run(quick=True, seed=2)
    assert findings.holds, summary(findings)
    assert [row["model"] for row in findings.tables["published"]] == ["ERM", "IRM", "grey images", "F-IRM game"]
