"""What `compare` says of its figures: cross-validation without optimism or leaks, calibration without artefacts."""

import numpy as np
import pytest

import fedconvex
from fedconvex import Federation, Logistic, Problem, Squared
from fedconvex.comparison import local_runs
from fedconvex.comparison.compared_rows import rows_of
from fedconvex.comparison.cross_validation import L2S, Folds, tune, tuned_by_sums
from fedconvex.comparison.designs import Models
from fedconvex.comparison.intake import intake
from fedconvex.comparison.kinds import Alone, Shared, Training
from fedconvex.comparison.l2_path import ALIKE, interpolated
from fedconvex.comparison.method_costs import OWN_L2, shortened
from fedconvex.comparison.outcomes import Joining, Outcome, joining, standings
from fedconvex.comparison.scores import calibration_bins, label_variance, measures
from fedconvex.comparison.skewed_intervals import Differences, Estimate
from fedconvex.comparison.splits import fold_of
from fedconvex.datasets import logistic_federation

RNG = np.random.default_rng(0)


def test_losses_of_any_sign_choose_the_same():
    """Less 10 a row, the least mean is as far below the others; of ties, and where nothing is known, the largest l2."""
    l2s, rows = (1.0, 0.1, 0.01), np.array([[4.0, 6.0]])
    for sums, place in (([[3.0, 1.0], [2.0, 1.0], [4.0, 1.0]], 1), ([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]], 0),
                        ([[np.nan, np.nan], [np.inf, 1.0], [2.0, 1.0]], 2), ([[np.inf, np.inf]] * 3, 0)):  # fmt: skip
        for less in (0.0, 10.0):
            assert tuned_by_sums(np.array([sums]) - less * rows[:, None], rows, l2s).l2 == l2s[place]
    with np.errstate(all="ignore"):
        assert tuned_by_sums(np.full((1, 3, 2), np.nan), rows, l2s).l2 == 1.0


@pytest.mark.parametrize("base", [Alone, Shared])
def test_the_loss_of_a_kind_does_not_flatter_its_choices(base):
    """Thirteen models of noise: the least of their losses is too low, the expected loss of each is known."""
    K, n = 60, 10
    X, y = RNG.normal(size=(K * n, 2)), RNG.choice([-1.0, 1.0], K * n)
    rows = rows_of(Federation.from_arrays(X, y, np.repeat(np.arange(K), n)))
    data = Training(rows, X, np.arange(K * n))

    class Noise(base):
        def path(self, data, l2s):
            for _ in l2s:
                yield Models(RNG.normal(size=(K, 1, 2)), np.zeros((K, 1)))

    found = tune(Noise(), data, Folds.of(data, fold_of(rows, data.train, 5, 0)), 2, lambda share: None)
    spread = 4.0 * 0.9 / np.sqrt(K * n)  # the loss of a row has a deviation of about 0.9
    assert abs(found.loss - found.losses.mean()) < spread
    if base is Alone:
        assert found.l2.shape == (K,) and len(set(found.l2)) > 5


def test_what_fills_gaps_in_a_fold_comes_from_its_own_training_rows():
    n = 40
    x, ward = RNG.normal(size=n), np.repeat(["a", "b"], n // 2)
    x[::7] = np.nan
    sex = np.where(np.arange(n) == 3, "other", np.where(np.arange(n) % 2, "f", "m"))
    table = {"x": x, "sex": sex, "ward": ward, "ill": RNG.choice([0, 1], n)}
    rows = intake(table, "ill", "ward", None, None, impute="median")
    train = np.arange(n)
    data = Training(rows, rows.features(train), train)
    fold = fold_of(rows, train, 5, 0)
    folds = Folds.of(data, fold)
    assert data.X.shape == (n, 4)
    for part, X in ((part, inner.X) for part, inner in folds.inner.items()):
        own = np.nanmedian(x[fold != part])
        assert (X[np.isnan(x), 0] == own).all()
        assert X.shape[1] == (3 if fold[3] == part else 4)  # x, f, m, and "other" where the fold has seen it
    assert len({id(inner.X) for inner in folds.inner.values()}) > 1


def test_equal_probabilities_stay_in_one_bin():
    hit = np.repeat([0.0, 1.0], [300, 100])  # in the order of the target
    assert calibration_bins(np.full(400, 0.25), hit) == [(400, 0.25, 0.25)]
    two = calibration_bins(np.repeat([0.1, 0.9], [105, 95]), np.repeat([0.0, 1.0], [100, 100]))
    assert [n for n, _, _ in two] == [105, 95]
    many = calibration_bins(np.arange(25) / 25, np.zeros(25))
    assert [n for n, _, _ in many] == [3, 3, 3, 3, 3, 2, 2, 2, 2, 2]
    fed = Federation.from_arrays(np.zeros((400, 1)), 2.0 * hit - 1.0, np.arange(400) % 2)
    rows = rows_of(fed)
    scores = np.full(400, np.log(0.25 / 0.75))
    assert measures(rows, scores, np.arange(400), 0.95).calibration < 1e-12


@pytest.mark.parametrize("classes", [2, 3])
def test_the_variance_over_labels_is_that_of_drawn_labels(classes):
    n, C = 6, 1 if classes == 2 else classes
    fed = Federation.from_arrays(
        np.zeros((n, 1)), np.arange(n) % classes * (2.0 if C == 1 else 1.0) - (C == 1), [0, 1] * 3
    )
    rows = rows_of(fed)
    Z, own = (RNG.normal(size=(n, C)).squeeze(), 3.0 * RNG.normal(size=(n, C)).squeeze())

    def log_probabilities(scores):
        S = np.column_stack([np.zeros(n), scores]) if C == 1 else scores
        return S - np.logaddexp.reduce(S, axis=1, keepdims=True)

    a, b = log_probabilities(Z), log_probabilities(own)
    share = 0.5 * (np.exp(a) + np.exp(b))
    first, second = (share * (b - a)).sum(axis=1), (share * (b - a) ** 2).sum(axis=1)
    np.testing.assert_allclose(label_variance(rows, Z, own), second - first**2, rtol=1e-9)


def test_verdicts_of_few_rows_hold_together_as_often_as_they_say():
    """Twenty clients, two fixed models, the second too sure; the true differences are known, labels drawn 200 times."""
    rng, K, m = np.random.default_rng(0), 20, 20
    z = 1.5 * rng.normal(size=(K, m))
    joint, own = 0.8 * z, 2.5 * z + rng.normal(size=(K, m))
    p = 1.0 / (1.0 + np.exp(-z))
    client, labels = np.repeat(np.arange(K), m), np.resize([-1.0, 1.0], K * m)
    rows = rows_of(Federation.from_arrays(np.zeros((K * m, 1)), labels, client))
    at_one, at_zero = (np.logaddexp(0.0, -s * joint) - np.logaddexp(0.0, -s * own) for s in (1.0, -1.0))
    true = (p * at_one + (1.0 - p) * at_zero).mean(axis=1)
    doubt = label_variance(rows, joint.ravel(), own.ravel())
    held = {}
    for name, given in (("plain", np.zeros(K * m)), ("doubted", doubt)):
        held[name] = 0
        draws = np.random.default_rng(1)
        for _ in range(200):
            d = np.where(draws.random((K, m)) < p, at_one, at_zero).ravel()
            found = joining(Differences(d, given), client, K, 10, 0.95)
            held[name] += all(j.difference.low <= t <= j.difference.high for j, t in zip(found, true, strict=True))
    assert held["plain"] < 170 and held["doubted"] >= 190


# ---------------------------------------------------------------- alone is alone


def hospitals(seed=0, n=30, others=None):
    """Three hospitals, a number and a category with gaps; ``others`` changes what b and c measured, and their gaps."""
    rng, rows = np.random.default_rng(seed), n * 3
    dose, gap = rng.normal(size=rows), rng.random((2, rows)) < 0.25
    smoking = rng.choice(["never", "former", "now"], rows).astype(object)
    where = np.repeat(["a", "b", "c"], n)
    y = dose + (smoking == "now") + 0.3 * rng.normal(size=rows)
    if others is not None:
        away = where != "a"
        dose = np.where(away, 50.0 + 7.0 * dose, dose)
        smoking[away] = others
    dose[gap[0]], smoking[gap[1]] = np.nan, None
    ill = np.where(y > np.median(y), "yes", "no")
    return {"dose": dose, "smoking": smoking, "hospital": where, "ill": ill}


def alone(table, impute):
    found = fedconvex.compare(
        table, "ill", "hospital", impute=impute, methods=["pooled"], folds=2, progress=False, splits=1
    )
    mine = np.flatnonzero(found.rows.client[found.held] == 0)
    return found, found["alone"].scores[mine], found["alone"].tuned.l2[0]


SLOW = pytest.mark.slow


@pytest.mark.parametrize("impute", ["median", pytest.param("mode", marks=SLOW), pytest.param("indicator", marks=SLOW)])
@pytest.mark.slow
def test_the_data_of_others_change_nothing_in_a_model_of_its_own(impute):
    """Fillings, categories and scales of the others are changed; before, medians of all clients filled the gaps."""
    first, second = (alone(hospitals(others=o), impute) for o in (None, "now"))
    assert first[2] == second[2]
    np.testing.assert_allclose(first[1], second[1], rtol=1e-8, atol=1e-9)
    assert np.abs(first[0]["pooled"].scores[:5] - second[0]["pooled"].scores[:5]).max() > 1e-3
    assert any(note.startswith("Alone, a client's missing cells are filled from its own") for note in first[0].notes)


@pytest.mark.slow
def test_a_model_of_its_own_is_that_of_its_own_table():
    """Filled by hand with the median of its own training rows, standardised, solved by scikit-learn."""
    from sklearn.linear_model import LogisticRegression

    table = hospitals()
    table.pop("smoking")
    found, scores, l2 = alone(table, "median")
    rows, held = found.rows, np.isin(np.arange(90), found.held)
    mine = rows.client == 0
    x, y = np.asarray(table["dose"])[mine], rows.y[mine]
    train = ~held[mine]
    x = np.where(np.isnan(x), np.nanmedian(x[train]), x)
    x = ((x - x[train].mean()) / x[train].std())[:, None]
    model = LogisticRegression(C=1.0 / (l2 * train.sum()), tol=1e-12, solver="newton-cholesky").fit(x[train], y[train])
    np.testing.assert_allclose(scores, model.decision_function(x[~train]), rtol=1e-5, atol=1e-6)
    pooled = rows.features(np.flatnonzero(~held))[mine][np.isnan(np.asarray(table["dose"])[mine])]
    assert (pooled[:, 0] != np.nanmedian(np.asarray(table["dose"])[mine][train])).all()


# ---------------------------------------------------------------- no features at all


def with_a_client_of_noise(classes):
    rng = np.random.default_rng(7)
    pairs = []
    for k in range(3):
        X = rng.normal(size=(240 if k < 2 else 60, 3))
        z = 3.0 * X[:, 0] if k < 2 else np.full(len(X), 1.5)
        y = z + rng.normal(size=len(X))
        pairs.append((X, np.where(y > 0.0, 1.0, -1.0) if classes == 2 else y))
    return Federation.from_clients(pairs, ["north", "south", "west"])


@pytest.mark.parametrize("classes", [1, pytest.param(2, marks=SLOW)])
@pytest.mark.slow
def test_where_no_model_beats_the_base_rate_is_said(classes, tmp_path):
    found = fedconvex.compare(with_a_client_of_noise(classes), methods=["pooled"], folds=2, progress=False, splits=1)
    base, errors = found["base rate"], [found[name] for name in ("pooled", "alone")]
    assert all(m.clients[2].error.value >= base.clients[2].error.value for m in errors)
    assert found.base_rates == {"north": "clearly beaten", "south": "clearly beaten", "west": "no model beats it"}
    said = next(s for s in found.sentences if s.startswith("The base rate"))
    assert "clearly beaten by pooled or alone at 2 of 3 clients" in said
    assert "at 1 no model has a lower error on the held-out rows (west)" in said
    assert said in found.report(tmp_path / "page").read_text()
    assert "no model beats it" in found.client_table()
    row = next(r for r in found.clients if (r["client"], r["method"]) == ("north", "pooled"))
    difference = errors[0].clients[0].error.value - base.clients[0].error.value
    assert row["over_base"] == pytest.approx(difference) and row["over_base_verdict"] == "gains"
    assert row["over_base_high"] < 0.0
    alike = base.over_base[0]
    assert (alike.difference.low, alike.difference.high, alike.outcome) == (0.0, 0.0, Outcome.OPEN)


def test_standings_of_a_base_rate():
    def join(value, outcome):
        return Joining(Estimate(value, value - 1.0, value + 1.0), outcome)

    gain, near, worse, few = (
        join(-2.0, Outcome.GAINS), join(-0.5, Outcome.OPEN), join(0.5, Outcome.OPEN), join(-1.0, Outcome.FEW)
    )  # fmt: skip
    asked = [[gain, near, worse, worse, few], [worse, worse, worse, worse, few]]
    every = [*asked, [worse, worse, worse, near, few]]
    words = [s.value for s in standings(asked, every)]
    assert words[:3] == ["clearly beaten", "not clearly beaten", "no model beats it"]
    assert words[3:] == ["not clearly beaten", "too few rows to say"]


def test_runs_between_two_that_are_alike_are_interpolated():
    """Of the smooth path w(l2) = w_0/(1 + 5 l2) no more than the share s^2/8, and only after equally many rounds."""
    l2s, w, asked = L2S, np.array([3.0, -1.0]), []

    def run(some, rounds=lambda l2: 7):
        asked.extend(some)
        return [({"a": 1.0, "b": 2.0}[name] * w / (1.0 + 5.0 * l2), rounds(l2)) for name, l2 in some]

    found = interpolated(("a", "b"), l2s, run)
    assert len(asked) == len(set(asked)) < 24 and {(name, l2s[k]) for name in "ab" for k in (0, 3, 12)} <= set(asked)
    for name, factor in (("a", 1.0), ("b", 2.0)):
        for l2, model in zip(l2s, found[name], strict=True):
            exact = factor * w / (1.0 + 5.0 * l2)
            most = 0.0 if (name, l2) in asked else ALIKE**2 / 8.0 * np.linalg.norm(factor * w)
            assert np.linalg.norm(model - exact) <= most
    asked.clear()
    interpolated(("a",), l2s, lambda some: run(some, lambda l2: l2s.index(l2)))
    assert sorted(asked) == sorted(("a", l2) for l2 in l2s)
    assert [v.tolist() for v in interpolated(("a",), l2s[:1], run)["a"]] == [(w / 6.0).tolist()]


@pytest.mark.parametrize("name", OWN_L2)
@pytest.mark.parametrize("loss", [Logistic(), Squared()])
@pytest.mark.slow_unless(loss=Squared())
def test_runs_side_by_side_are_those_of_the_methods(name, loss, monkeypatch):
    """Eleven runs of different lengths in eight places, in blocks of four rows."""
    monkeypatch.setattr(local_runs, "_NEAR", 12)
    made = logistic_federation(3, 2, 7, size_skew=1.0, feature_shift=0.5, model_shift=1.0, seed=3).federation
    fed = Federation(np.hstack([made.X, np.ones((made.n, 1))]), made.y, made.ptr)
    problems = [Problem(fed, loss, l2, intercept=True) for l2 in L2S[:11]]
    asked = [(name, problem, problem.solve().value) for problem in problems]
    one_by_one = shortened(asked, 0.01, 12, 3, 0)
    monkeypatch.setattr(local_runs, "fits", lambda problem: True)
    together = shortened(asked, 0.01, 12, 3, 0)
    assert [rounds for _, rounds in together] == [rounds for _, rounds in one_by_one]
    assert len({rounds for _, rounds in together}) > 2
    for (v, _), (w, _) in zip(together, one_by_one, strict=True):
        np.testing.assert_allclose(v, w, rtol=1e-11, atol=1e-13)
