"""`fedconvex.compare`: nothing leaks, little is said of few rows, and figures are those of independent computations."""

from __future__ import annotations

import itertools
import math
import shlex
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize

import fedconvex
from fedconvex import Federation, Logistic, Softmax
from fedconvex.comparison import comparing, decision, kinds
from fedconvex.comparison.compared_rows import rows_of
from fedconvex.comparison.cross_validation import L2S
from fedconvex.comparison.designs import design
from fedconvex.comparison.outcomes import Outcome
from fedconvex.comparison.scores import auc_of, measures
from fedconvex.comparison.skewed_intervals import mean_of
from fedconvex.comparison.splits import fold_of, held_out
from fedconvex.constants import default_steps

QUICK = {"methods": ["pooled"], "progress": False, "splits": 1}  # and the clients alone


def clients(sizes=(24, 16, 12), d=2, seed=0, classes=2, spread=0.0, labels=None):
    """A federation of linear models with some noise; clients' models differ by ``spread``."""
    rng, pairs = np.random.default_rng(seed), []
    w = rng.normal(size=(max(classes, 1), d))
    for n in sizes:
        X = rng.normal(size=(n, d)) * np.arange(1, d + 1) + 5.0
        Z = (X - 5.0) @ (w + spread * rng.normal(size=w.shape)).T + 0.7 * rng.gumbel(size=(n, len(w)))
        y = Z[:, 0] if classes == 1 else np.argmax(Z, axis=1).astype(float)
        y = y if classes != 2 else 2.0 * y - 1.0
        y[: min(classes, n)] = np.unique(y)[0] if n == 1 else y[: min(classes, n)]
        pairs.append((X, y))
    return Federation.from_clients(pairs, labels)


def figures(found):
    """All numbers of a comparison, client by client, without what is timed."""
    return [tuple(v for v in row.values() if not isinstance(v, str)) for row in found.clients]


def same(a, b):
    np.testing.assert_array_equal(np.array(a, dtype=float), np.array(b, dtype=float))


# ---------------------------------------------------------------- nothing is computed twice


@pytest.mark.slow
def test_smoothness_is_computed_once_for_the_same_rows(monkeypatch):
    """Of the rows outside each fold, all training rows, and those by domain; not for every ridge and method."""
    made, seen = default_steps._tops, []
    keep = lambda fed, weights, exact: seen.append((fed.digest, weights.tobytes(), exact))  # noqa: E731
    monkeypatch.setattr(default_steps, "_tops", lambda *args: keep(*args) or made(*args))
    fedconvex.compare(clients((12, 10)), methods=["fedavg", "scaffold"], folds=2, progress=False, splits=1, rounds=5)
    assert len(seen) == len(set(seen)) == 3  # two folds, and all


# ---------------------------------------------------------------- nothing leaks


def changed(fed, seed=0):
    """The same federation with other values, and other labels, in the rows that are held out."""
    held = held_out(rows_of(fed), 0.25, seed)
    X, y = np.array(fed.X), np.array(fed.y)
    X[held] = 1e3 * np.random.default_rng(1).normal(size=X[held].shape)
    y[held] = -y[held]
    return Federation(X, y, fed.ptr, fed.labels)


def models(found):
    """Everything that was fitted or chosen."""
    out = []
    for m in found.methods:
        linear = hasattr(m.models, "coef")
        out += [*m.models, np.atleast_1d(m.l2)] if linear else [m.models.ensemble.decision_function(np.eye(2))]
    return out


def leaks(**settings):
    """Whether something that is fitted depends on held-out rows."""
    fed = clients((14, 10))
    found = [fedconvex.compare(f, progress=False, splits=1, rounds=4, **settings) for f in (fed, changed(fed))]
    return any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(*map(models, found), strict=True))


@pytest.mark.slow
def test_held_out_rows_change_nothing_that_is_fitted():
    assert not leaks(methods=["pooled", "fedavg"], folds=2)


@pytest.mark.slow
def test_held_out_rows_change_no_tied_nor_fair_models():
    assert not leaks(methods=["afl", "mean-regularised", "mocha", "boosting", "scaffold"], folds=2)


@pytest.mark.slow
def test_a_scaling_that_sees_all_rows_is_noticed(monkeypatch):
    def planted(rows, X, train):
        seen = np.flatnonzero(np.isin(rows.client, np.unique(rows.client[train])))
        return design(rows, X, train)._replace(scaling=design(rows, X, seen).scaling)

    monkeypatch.setattr(kinds, "design", planted)
    assert leaks(methods=["pooled"], folds=2)


@pytest.mark.slow
def test_features_are_encoded_from_training_rows_only():
    fed, seen = clients((12, 12)), []
    rows = rows_of(fed)
    at = np.flatnonzero(~held_out(rows, 0.25, 0))
    given = rows.__class__(**{**vars(rows), "features": lambda train: seen.append(train) or fed.X})
    comparing.compare_rows(given, fedconvex.compare(fed, **QUICK).settings, progress=False)
    assert len(seen) == 1 + 5  # by all training rows, and by those outside each fold
    same(seen[0], at)
    assert all(set(part) < set(at) for part in seen[1:])


# ---------------------------------------------------------------- splits


@pytest.mark.parametrize(("n", "held"), [(1, 0), (2, 0), (3, 0), (4, 2), (5, 2), (8, 2), (12, 3), (40, 10)])
def test_a_quarter_is_held_out_and_never_fewer_than_two(n, held):
    fed = Federation.from_arrays(np.zeros((n + 8, 1)), np.arange(n + 8.0), [0] * n + [1] * 8)
    assert held_out(rows_of(fed), 0.25, 3)[:n].sum() == held


def test_draws_of_a_client_do_not_depend_on_others():
    few, more = (rows_of(clients((9, 13, 8)[:m], labels=["b", "c", "a"][:m])) for m in (2, 3))
    same(held_out(few, 0.25, 5), held_out(more, 0.25, 5)[more.client > 0])
    assert not np.array_equal(held_out(few, 0.25, 5), held_out(few, 0.25, 6))


def test_folds_are_even_within_clients_and_classes():
    rows = rows_of(clients((23, 11, 1)))
    train = np.flatnonzero(~held_out(rows, 0.25, 0))
    fold = fold_of(rows, train, 5, 0)
    for k in range(2):
        mine = rows.client[train] == k
        assert np.ptp(np.bincount(fold[mine], minlength=5)) <= 1
        for label in (-1.0, 1.0):
            assert np.ptp(np.bincount(fold[mine & (rows.y[train] == label)], minlength=5)) <= 1
    assert (fold[rows.client[train] == 2] == -1).all()


@pytest.mark.slow
def test_all_rows_are_held_out_in_turn():
    """Each row equally often, and scored by models that neither it nor its part of the rows changes."""
    fed = clients((13, 9, 3))
    found = fedconvex.compare(fed, methods=["pooled"], folds=2, splits=8, progress=False)
    rows, pooled = found.rows, found["pooled"]
    assert [len(repeat) for repeat in found.splits] == [4, 4] and found.test_rows.tolist() == [13, 9, 0]
    assert found.train_rows.tolist() == [10, 7, 3]
    for r, repeat in enumerate(found.splits):
        same(np.sort(np.concatenate([split.at for split in repeat])), np.arange(22))
        for split, model in zip(repeat, pooled.fitted[r], strict=True):
            assert np.isin(np.arange(25), [*split.train, *split.at]).all() and not np.isin(split.at, split.train).any()
            same(pooled.repeats[r][split.at], model.scores(fed.X[split.at], rows.client[split.at]))
    assert found.splits[0][0].at.tolist() != found.splits[1][0].at.tolist()
    first = found.splits[0][0]
    X, y = np.array(fed.X), np.array(fed.y)
    X[first.at], y[first.at] = 1e3, -y[first.at]
    other = fedconvex.compare(Federation(X, y, fed.ptr), methods=["pooled"], folds=2, splits=4, progress=False)
    for name in ("pooled", "alone"):
        for a, b in zip(found[name].fitted[0][0], other[name].fitted[0][0], strict=True):
            same(a, b)
    assert not np.array_equal(found["pooled"].models.coef, other["pooled"].models.coef)  # those are fitted to all rows
    assert found.decision.count("each held out twice") == 1


def test_how_often_rows_are_held_out_goes_by_a_count_of_work():
    from fedconvex.comparison.splits import affordable, checked_splits

    small, middle, large = (rows_of(clients((n, n), d=1)) for n in (50, 5000, 50_000))
    assert [affordable(rows, 50, 0.25) for rows in (small, middle, large)] == [8, 4, 1]
    assert affordable(small, 50, 0.1) == 20 and affordable(middle, 50, 0.1) == 1  # more parts are more work
    assert checked_splits("auto", 0.25) is None
    assert [checked_splits(None, share) for share in (0.9, 0.3, 0.01)] == [1, 1, 1]  # no such parts, or too many
    with pytest.raises(ValueError, match="compare: splits must be 1 or a multiple of 4; got 6"):
        checked_splits(6, 0.25)
    with pytest.raises(TypeError, match="compare: splits must be a whole number"):
        checked_splits(np.array([1, 2]), 0.25)
    assert checked_splits(None, 5e-324) == 1  # as many parts as there are numbers


@pytest.mark.slow
@pytest.mark.compiled(only="a run of solve")
def test_the_next_command_fits_the_saved_model(tmp_path, capsys):
    """Saved is the optimum that the printed command comes near, at the l2 that all rows choose."""
    from fedconvex.cli import main
    from fedconvex.models import LinearModel

    file = csv_of(table(), tmp_path / "wards.csv")
    asked = ["--target", "ill", "--client", "ward", "--impute", "median", "--methods", "pooled", "--splits", "1"]
    assert main(["compare", file, *asked, "--folds", "2", "--save", str(tmp_path / "chosen")]) == 0
    printed = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("next: "))
    words = shlex.split(printed.removeprefix("next: fedconvex "))
    assert words[:2] == ["solve", file] and "--l2" in words
    words[-1] = str(tmp_path / "solved")
    assert main([*words, "--tol", "1e-10", "--rounds", "20000"]) == 0
    chosen, solved = (LinearModel.load(tmp_path / name) for name in ("chosen", "solved"))
    assert chosen.about["models"] == "pooled" and chosen.feature_names == solved.feature_names
    rows = {name: column for name, column in table().items() if name != "ill"}
    np.testing.assert_allclose(chosen.decision_function(rows), solved.decision_function(rows), atol=1e-3)


def test_every_client_alone_is_saved_as_models_per_client(tmp_path):
    from fedconvex.cli.next_command import next_command
    from fedconvex.models import LinearModel

    rng = np.random.default_rng(0)
    X, sign = rng.normal(size=(160, 2)), np.repeat([1.0, -1.0], 80)
    y = sign * X[:, 0] + 0.1 * rng.normal(size=160)
    found = fedconvex.compare(Federation.from_arrays(X, y, sign), **QUICK)
    assert next_command(None, found) == ""  # no one command: every client fits its own rows
    found.save(tmp_path / "own")
    model = LinearModel.load(tmp_path / "own")
    assert model.clients == (-1.0, 1.0) and np.abs(model.coef[:, 0] - [-1.0, 1.0]).max() < 0.1


@pytest.mark.slow
def test_the_order_of_clients_changes_no_figure():
    fed = clients((14, 10, 9), labels=["north", "east", "west"])
    other = fed.subset([2, 0, 1])
    first, second = (
        fedconvex.compare(f, methods=["pooled", "afl"], rounds=5, folds=2, progress=False, splits=1)
        for f in (fed, other)
    )
    assert first.rows.names == second.rows.names == ("east", "north", "west")
    same(figures(first), figures(second))


# ---------------------------------------------------------------- little is said of few rows


def test_a_client_of_three_rows_is_never_worst():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(83, 1)), np.r_[np.zeros(80), [100.0, -100.0, 100.0]]
    y[:80] = X[:80, 0] + 0.1 * rng.normal(size=80)
    found = fedconvex.compare(Federation.from_arrays(X, y, [0] * 40 + [1] * 40 + [2] * 3), **QUICK)
    assert found.test_rows.tolist() == [10, 10, 0]
    assert all(m.worst in (0, 1) and m.joins[2].outcome is Outcome.FEW for m in found.methods)
    assert "too few to say (2)" in found.decision
    assert {row["verdict"] for row in found.clients if row["client"] == 2} == {"too few rows to say"}


@pytest.mark.slow
def test_below_the_least_rows_nobody_is_worst():
    found = fedconvex.compare(clients((8, 8)), **QUICK)
    assert all(m.worst is None for m in found.methods)
    assert "too few rows" in found.table()


@pytest.mark.slow
def test_a_client_of_one_class_has_no_auc_and_a_model_of_its_own():
    fed = clients((40, 12))
    y = np.array(fed.y)
    y[40:] = 1.0
    found = fedconvex.compare(Federation(fed.X, y, fed.ptr), **QUICK)
    assert math.isnan(found["alone"].clients[1].auc.value)
    assert np.isfinite(found["alone"].models.intercept).all()
    assert any("Alone, 1 has no training rows of some class" in note for note in found.notes)
    assert found["pooled"].clients[0].auc.is_number


@pytest.mark.slow
def test_a_client_of_one_row_takes_part_in_training():
    found = fedconvex.compare(clients((20, 1)), **QUICK)
    assert found.train_rows[1] == 1
    assert found.test_rows[1] == 0
    assert found["alone"].tuned.l2[1] == L2S[0]  # nothing to choose by
    assert found["alone"].joins[1].outcome is Outcome.FEW


@pytest.mark.slow
def test_a_feature_that_is_constant_in_training_rows_gets_no_weight():
    fed = clients((20, 12))
    held = held_out(rows_of(fed), 0.25, 0)
    X = np.hstack([fed.X, np.where(held, 7.0, 3.0)[:, None]])
    found = fedconvex.compare(Federation(X, fed.y, fed.ptr), **QUICK)
    for m in found.methods:
        assert not m.models.coef[..., 2].any()


# ---------------------------------------------------------------- figures


@cache
def breast_cancer():
    from fedconvex.datasets import load_bundled, partition_dirichlet

    X, y, _ = load_bundled("breast_cancer", standardised=False)
    return Federation.from_arrays(X, y, partition_dirichlet(y, 6, 1.0, seed=0))


def agrees_with_sklearn(found, places):
    """Compare pooled and local models with scikit-learn's on the same rows: scores to so many digits."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows, held = found.rows, held_out(found.rows, found.settings.test_size, found.settings.seed)
    X, train = rows.features(np.flatnonzero(~held)), ~held
    local = np.broadcast_to(found["alone"].tuned.l2, rows.K)
    for name, pick, l2 in [("pooled", train, found["pooled"].tuned.l2)] + [
        ("alone", train & (rows.client == k), local[k]) for k in range(rows.K)
    ]:
        if np.unique(rows.y[pick]).size < 2:
            continue
        logistic = LogisticRegression(C=1.0 / (l2 * pick.sum()), tol=1e-12, max_iter=2000, solver="newton-cholesky")
        model = make_pipeline(StandardScaler(), logistic).fit(X[pick], rows.y[pick])
        k = None if name == "pooled" else int(rows.client[pick][0])
        test = held if k is None else held & (rows.client == k)
        if not test.any():
            continue
        mine = found[name].models.scores(X[test], rows.client[test])
        theirs = model.decision_function(X[test])
        np.testing.assert_allclose(mine, theirs, rtol=places, atol=places * (1.0 + np.abs(theirs).max()))
        measured = found[name].whole if k is None else found[name].clients[k]
        p = model.predict_proba(X[test])[:, 1]
        assert measured.accuracy.value == accuracy_score(rows.y[test], model.predict(X[test]))
        assert measured.error.value == pytest.approx(
            log_loss(rows.y[test], p, labels=[-1.0, 1.0]), rel=places, abs=places
        )
        if np.unique(rows.y[test]).size == 2:
            assert measured.auc.value == pytest.approx(roc_auc_score(rows.y[test], p), abs=1e-12)


@pytest.mark.slow
@pytest.mark.compiled(only="half a minute of pure Python")
def test_breast_cancer_agrees_with_sklearn():
    agrees_with_sklearn(fedconvex.compare(breast_cancer(), **QUICK), 1e-6)


def test_small_models_agree_with_sklearn():
    agrees_with_sklearn(fedconvex.compare(clients((18, 14)), folds=2, **QUICK), 1e-6)


def test_ridge_agrees_with_sklearn():
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    fed = clients((30, 20), classes=1)
    found = fedconvex.compare(fed, **QUICK)
    held = held_out(found.rows, 0.25, 0)
    scaler = StandardScaler().fit(fed.X[~held])
    model = Ridge(alpha=found["pooled"].tuned.l2 * (~held).sum()).fit(scaler.transform(fed.X[~held]), fed.y[~held])
    guess = model.predict(scaler.transform(fed.X[held]))
    pooled = found["pooled"]
    np.testing.assert_allclose(pooled.models.scores(fed.X[held], found.rows.client[held]), guess, rtol=1e-9)
    assert pooled.whole.rmse.value == pytest.approx(math.sqrt(np.mean((guess - fed.y[held]) ** 2)), rel=1e-9)
    assert pooled.whole.r2 == pytest.approx(model.score(scaler.transform(fed.X[held]), fed.y[held]), rel=1e-9)


@pytest.mark.slow
def test_afl_is_the_minimax_model():
    """Against the epigraph form, minimised by SLSQP; and the run's worst domain is within its gap of it."""
    fed = clients((20, 12), classes=1, spread=1.0)
    found = fedconvex.compare(fed, methods=["afl"], rounds=400, gap=1e-4, folds=2, progress=False, splits=1)
    afl = found["afl"]
    problem = afl.fit.problem

    def worst(v):
        return v[-1]

    limits = {"type": "ineq", "fun": lambda v: v[-1] - problem.domain_values(v[:-1])}
    best = minimize(worst, np.r_[np.zeros(problem.size), 10.0], constraints=[limits], tol=1e-12)
    assert afl.fit.value == pytest.approx(best.fun, rel=1e-6)
    assert afl.cost.reached
    assert afl.cost.gap <= 1e-4


@pytest.mark.slow
def test_multinomial_targets_have_no_tied_models_and_no_auc():
    found = fedconvex.compare(clients((24, 16), classes=3), methods=None, rounds=3, folds=2, progress=False, splits=1)
    names = [m.name for m in found.methods]
    assert "mocha" not in names
    assert "mean-regularised" not in names
    assert {"pooled", "afl", "alone"} <= set(names)
    assert any(note.startswith("mocha is left out") for note in found.notes)
    assert math.isnan(found["pooled"].whole.auc.value)
    assert 0.0 <= found["pooled"].whole.calibration <= 1.0


def test_the_auc_and_its_interval():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    y, z = np.where(rng.random(60) < 0.4, 1.0, -1.0), rng.normal(size=60).round(1)
    found = auc_of(y, z, 0.95)
    assert found.value == pytest.approx(roc_auc_score(y, z), abs=1e-14)
    assert 0.0 < found.low < found.value < found.high < 1.0
    perfect = auc_of(y, y, 0.95)
    assert (perfect.value, perfect.high) == (1.0, 1.0)
    assert perfect.low < 0.97  # no certainty from 60 rows
    assert not auc_of(np.ones(5), z[:5], 0.95).is_number


@pytest.mark.slow
def test_the_interval_of_the_auc_covers():
    """1,000 samples of 12 and 20 scores whose AUC is Phi(1/sqrt 2): the interval of 95 % misses it 3 to 7 % of them."""
    from scipy.stats import norm

    rng, truth = np.random.default_rng(1), norm.cdf(1.0 / math.sqrt(2.0))
    y = np.r_[np.ones(12), -np.ones(20)]
    found = [auc_of(y, rng.normal(size=32) + (y > 0), 0.95) for _ in range(1000)]
    assert 0.03 <= np.mean([not f.low <= truth <= f.high for f in found]) <= 0.07


def test_calibration_of_probabilities_that_are_right_and_that_are_not():
    fed = clients((40, 40))
    rows, at = rows_of(fed), np.arange(80)
    share = math.log((fed.y > 0).mean() / (fed.y < 0).mean())
    right, off = (measures(rows, np.full(80, z), at, 0.95) for z in (share, share + 2.0))
    assert right.bias.value == pytest.approx(0.0, abs=1e-12)
    assert right.bias.low < 0.0 < right.bias.high
    assert off.bias.low > 0.0
    assert off.calibration > right.calibration


def test_means_have_students_interval():
    found = mean_of(np.array([1.0, 2.0, 3.0]), 0.95)  # 2 -+ 4.303/sqrt(3)
    assert (round(found.low, 4), round(found.high, 4)) == (-0.4841, 4.4841)
    assert math.isnan(mean_of(np.array([1.0]), 0.95).low)


@pytest.mark.slow
def test_base_rates_are_those_of_training_rows():
    found = fedconvex.compare(clients((24, 16)), **QUICK)
    base = found["base rate"]
    held = held_out(found.rows, 0.25, 0)
    for k in range(2):
        y = found.rows.y[(found.rows.client == k) & ~held]
        share = ((y > 0).sum() + 1.0) / (y.size + 2.0)
        assert 1.0 / (1.0 + math.exp(-base.models.intercept[k, 0])) == pytest.approx(share)


@pytest.mark.parametrize("classes", [1, 2])
def test_models_near_their_mean_minimise_the_multi_task_objective(classes):
    """Newton's method against `MultiTaskProblem.solve`, which stacks features or ascends in the dual."""
    from fedconvex.comparison.near_mean import near_mean_path
    from fedconvex.problems import MultiTaskProblem

    fed = clients((12, 9, 1), classes=classes, spread=0.5)
    loss, lams = Logistic() if classes == 2 else fedconvex.Squared(), [10.0, 0.3]
    for lam, W in zip(lams, near_mean_path(fed, loss, lams, 1e-14), strict=True):
        best = MultiTaskProblem(fed, loss, kinds.near_mean(lam, 3)).solve()
        np.testing.assert_allclose(W, best.w, rtol=1e-6, atol=1e-7)


# ---------------------------------------------------------------- verdicts and costs


def test_clients_with_opposite_models_lose_by_one_model():
    rng = np.random.default_rng(0)
    X, sign = rng.normal(size=(160, 2)), np.repeat([1.0, -1.0], 80)
    y = sign * X[:, 0] + 0.1 * rng.normal(size=160)
    found = fedconvex.compare(Federation.from_arrays(X, y, sign), **QUICK)
    assert [j.outcome for j in found["pooled"].joins] == [Outcome.LOSES] * 2
    assert decision.chosen(found) == "alone"
    assert found.decision.startswith("Stay alone")
    assert found["pooled"].paired.difference.low > 0.0


@pytest.mark.slow
def test_small_clients_of_one_model_gain_by_joining():
    rng = np.random.default_rng(3)
    X, client = rng.normal(size=(240, 12)), np.repeat(np.arange(6), 40)
    y = X.sum(axis=1) + 2.0 * rng.normal(size=240)
    found = fedconvex.compare(Federation.from_arrays(X, y, client), **QUICK)
    assert decision.chosen(found) == "pooled"
    assert found.decision.startswith("Join")
    assert not any(j.outcome is Outcome.LOSES for j in found["pooled"].joins)


@pytest.mark.slow
def test_costs_are_counted():
    fed = clients((20, 12))
    found = fedconvex.compare(fed, methods=["fedsgd", "fedavg"], rounds=7, gap=1e-9, folds=2, progress=False, splits=1)
    cost = found["fedsgd"].cost
    assert cost.rounds == 7
    assert not cost.reached
    assert cost.megabytes == pytest.approx(7 * 2 * 2 * 3 * 8 / 1e6)  # rounds, both ways, clients, parameters, bytes
    assert cost.trace[0].tolist() == list(range(8))
    assert ">7" in found.table()


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.slow
def test_newton_reaches_the_pooled_optimum_in_a_few_rounds(classes):
    rng = np.random.default_rng(4)
    X, who = rng.normal(size=(120, 3)), np.repeat(np.arange(3), 40)
    y = (X @ rng.normal(size=(3, classes)) + rng.gumbel(size=(120, classes))).argmax(axis=1)
    fed = Federation.from_arrays(X, y if classes > 2 else 2.0 * y - 1.0, who)
    how = {"loss": Softmax(3) if classes > 2 else None, "gap": 1e-10, "folds": 2, "progress": False, "splits": 1}
    found = fedconvex.compare(fed, methods=["pooled", "newton"], **how)
    cost, parameters = found["newton"].cost, 4 * (classes if classes > 2 else 1)
    assert cost.reached and cost.rounds <= 8
    sent = parameters + (parameters + 1) * (parameters + 2) / 2  # down and up, of each client
    assert cost.megabytes == pytest.approx(cost.rounds * sent * 3 * 8 / 1e6)
    scores = [
        found[name].scores - (found[name].scores.mean(axis=-1, keepdims=True) if classes > 2 else 0.0)
        for name in ("newton", "pooled")
    ]  # of several classes up to what all of them share
    np.testing.assert_allclose(*scores, atol=1e-3)


@pytest.mark.slow
def test_methods_whose_local_steps_drift_choose_their_own_l2():
    """Their losses in cross-validation are those of models run to their fixed points, fold by fold, by hand."""
    from fedconvex import FedAvg, Problem, Squared, iterate
    from fedconvex.comparison.scores import row_losses_of

    fed, how = clients((16, 8, 12), classes=1, spread=1.5), {"local_steps": 10, "gap": 1e-9, "folds": 2}
    found = fedconvex.compare(fed, methods=["pooled", "fedavg", "fedsgd"], **how, progress=False, splits=1)
    own, pooled = found["fedavg"].tuned, found["pooled"].tuned
    assert found["fedsgd"].tuned is pooled and own.l2 == own.l2s[int(np.argmin(own.losses))]
    rows = rows_of(fed)
    train = np.flatnonzero(~held_out(rows, 0.25, 0))
    fold = fold_of(rows, train, 2, 0)
    for j in (0, 12):
        total = 0.0
        for part in range(2):
            inner, out = train[fold != part], train[fold == part]
            made = design(rows, fed.X, inner)
            problem = Problem(made.federation, Squared(), L2S[j], intercept=True)
            *_, (_, state) = iterate(FedAvg(step_size="auto", local_steps=10), problem, rounds=60)
            total += row_losses_of(rows, made.scaling.models(state.w[0], 1).scores(fed.X[out]
                                   , rows.client[out]), out).sum()  # fmt: skip
        assert own.losses[j] == pytest.approx(total / train.size, rel=2e-3)
    assert np.abs(own.losses - pooled.losses).max() > 0.02 * own.losses.min()  # the drift that another l2 may make good


@pytest.mark.slow
def test_kinds_are_compared_by_one_method_of_each():
    found = fedconvex.compare(
        clients((20, 12), d=1), methods=["pooled", "scaffold"], rounds=2, folds=2, progress=False, splits=1
    )
    assert decision.chosen(found) in ("pooled", "alone")
    short = fedconvex.compare(clients((20, 12), d=1), methods=["scaffold"], rounds=2, folds=2, progress=False, splits=1)
    same(short["scaffold"].tuned.losses, found["scaffold"].tuned.losses)  # runs of two rounds, whatever stands beside


def test_l2_is_the_minimiser_of_cross_validation():
    found = fedconvex.compare(clients((24, 16)), folds=3, **QUICK)
    tuned = found["pooled"].tuned
    assert tuned.l2 == tuned.l2s[int(np.argmin(tuned.losses))]
    assert tuned.l2s == tuple(sorted(tuned.l2s, reverse=True))
    assert len(tuned.l2s) == 13
    np.testing.assert_allclose([tuned.l2s[0], tuned.l2s[-1]], [1.0, 1e-6])


def test_cross_validation_is_that_of_separate_fits():
    """The path stops early; its mean loss in every fold is that of exact solutions to 1e-4."""
    from fedconvex import Problem
    from fedconvex.comparison.scores import row_losses_of

    fed = clients((20, 16))
    rows = rows_of(fed)
    train = np.flatnonzero(~held_out(rows, 0.25, 0))
    fold = fold_of(rows, train, 2, 0)
    found = fedconvex.compare(fed, folds=2, **QUICK)["pooled"].tuned
    for j in (0, 6, 12):
        total = 0.0
        for part in range(2):
            inner, out = train[fold != part], train[fold == part]
            made = design(rows, fed.X, inner)
            w = Problem(made.federation, Logistic(), L2S[j], intercept=True).solve().w
            total += row_losses_of(rows, made.scaling.models(w, 1).scores(fed.X[out], rows.client[out]), out).sum()
        assert found.losses[j] == pytest.approx(total / train.size, abs=1e-4)


# ---------------------------------------------------------------- what it returns, and what it refuses


@pytest.mark.slow
def test_what_a_comparison_shows():
    found = fedconvex.compare(clients((24, 16), labels=["<b>", "north"]), methods=["pooled"], progress=False, splits=1)
    assert found.table().splitlines()[0].startswith("method")
    assert "<b>" in found.client_table()
    html = found._repr_html_()
    assert "<table>" in html
    assert "<b>" not in html
    frame = found.to_frame()
    assert set(frame["method"]) == {"base rate", "pooled", "alone"}
    assert len(frame) == 6
    assert repr(found) == "Comparison(2 clients, 10 held-out rows: base rate, pooled, alone)"
    with pytest.raises(KeyError, match="the comparison holds base rate, pooled, alone; not fedavg"):
        found["fedavg"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": ["fedavgg"]}, "compare: methods must be some of pooled, "),
        ({"test_size": 1.0}, "compare: test_size must lie strictly between 0 and 1; got 1.0"),
        ({"folds": 1}, "compare: folds must be at least 2; got 1"),
        ({"gap": 0.0}, "compare: gap must be positive and finite; got 0.0"),
        ({"min_rows": 1}, "compare: min_rows must be at least 2; got 1"),
        ({"target": "ill"}, "compare: data must be a frame or a file where columns are named; got a Federation"),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        fedconvex.compare(clients((8, 8)), progress=False, splits=1, **settings)


def test_data_that_cannot_be_compared_on():
    one = Federation.from_arrays(np.zeros((8, 1)), [0.0, 1.0] * 4, [0] * 8)
    with pytest.raises(ValueError, match="at least two clients"):
        fedconvex.compare(one)
    small = Federation.from_arrays(np.zeros((4, 1)), [0.0, 1.0] * 2, [0, 0, 1, 1])
    with pytest.raises(ValueError, match="a client with at least 4 rows"):
        fedconvex.compare(small)
    with pytest.raises(ValueError, match="take at least two values"):
        fedconvex.compare(Federation.from_arrays(np.zeros((8, 1)), np.ones(8), [0, 1] * 4))
    with pytest.raises(ValueError, match=r"compare: method mean-regularised must have a loss with a dual step"):
        fedconvex.compare(clients((8, 8), classes=3), methods=["mean-regularised"])
    with pytest.raises(TypeError, match="curvature"):
        fedconvex.compare(clients((8, 8)), loss=fedconvex.Hinge())
    with pytest.raises(TypeError, match="compare: data must be"):
        fedconvex.compare(3)


@pytest.mark.slow
def test_pairs_of_figures_come_from_the_same_rows():
    found = fedconvex.compare(clients((24, 16)), **QUICK)
    per_client = [m.error.value * n for m, n in zip(found["pooled"].clients, found.test_rows, strict=True)]
    assert sum(per_client) / found.test_rows.sum() == pytest.approx(found["pooled"].whole.error.value)
    for a, b in itertools.pairwise(found["pooled"].tuned.l2s):
        assert a > b


@pytest.mark.slow
def test_the_page_is_whole_by_itself_and_escapes_names(tmp_path):
    found = fedconvex.compare(
        clients((44, 40, 6), labels=["<b>", "north", "$x$"]), methods=["fedsgd"], progress=False, splits=1
    )
    text = found.report(tmp_path / "page").read_text()
    assert text.startswith("<!DOCTYPE html>")
    for outside in ("src=", "http:", "<script", "<b>north", "url(http", "@import"):
        assert outside not in text.replace("http://www.w3.org", "")
    assert "&lt;b&gt;" in text
    assert text.count("<svg") == 5
    for sentence in decision.decision(found):
        assert sentence.split(" (")[0].replace("<", "&lt;").replace(">", "&gt;") in text
    assert "too few rows to say" in text


def test_names_in_figures_keep_what_tells_them_apart():
    from fedconvex.comparison.figures import _short

    names = [f"Hospital of Saint Anna No. {k}" for k in range(30)]
    assert len({_short(name) for name in names}) == 30 and all(len(_short(name)) <= 16 for name in names)
    assert _short("north") == "north" and _short("a$b") == r"a\$b"


@pytest.mark.slow
def test_a_page_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="--report"):
        fedconvex.compare(clients((12, 9)), **QUICK).report(tmp_path / "file")


# ---------------------------------------------------------------- tables


def table(n=60, seed=0):
    """Three wards, a number with gaps, a category, and one value of it that only one row has."""
    rng = np.random.default_rng(seed)
    dose = rng.normal(size=n).round(2)
    smoking = rng.choice(["never", "former", "now"], n)
    ill = np.where(dose + (smoking == "now") + 0.8 * rng.normal(size=n) > 0.3, "yes", "no")
    gaps = [None if i % 9 == 4 else float(v) for i, v in enumerate(dose)]
    ward = rng.choice(["a", "b", "c"], n)
    return {"dose": gaps, "smoking": smoking.tolist(), "ward": ward.tolist(), "ill": ill.tolist()}


@pytest.mark.slow
def test_a_table_is_encoded_by_its_training_rows():
    data = table()
    found = fedconvex.compare(data, "ill", "ward", impute="median", **QUICK)
    rows = found.rows
    order = np.argsort(data["ward"], kind="stable")
    train = np.setdiff1d(np.arange(60), found.held)
    dose = np.array([np.nan if v is None else v for v in data["dose"]])[order]
    X = rows.features(train)
    gaps = np.isnan(dose)
    same(X[gaps, 0], np.full(gaps.sum(), np.nanmedian(dose[train])))
    assert X.shape == (60, 4)
    assert rows.classes == ("no", "yes")
    assert rows.names == ("a", "b", "c")
    assert [c[0] for c in rows.columns] == ["dose", "smoking", "ward", "ill"]


@pytest.mark.slow
def test_a_category_of_held_out_rows_only_counts_as_none():
    data = table()
    first = fedconvex.compare(data, "ill", "ward", impute="median", **QUICK)
    order = np.argsort(data["ward"], kind="stable")
    data["smoking"][order[first.held[0]]] = "pipe"
    found = fedconvex.compare(data, "ill", "ward", impute="median", **QUICK)
    for m in first.methods:
        same(m.models.coef, found[m.name].models.coef)
    X = found.rows.features(np.setdiff1d(np.arange(60), found.held))
    assert not X[found.held[0], 1:].any()


def test_columns_that_need_a_decision_are_refused():
    with pytest.raises(ValueError, match="missing"):
        fedconvex.compare(table(), "ill", "ward", **QUICK)
    with pytest.raises(ValueError, match="say whose row it is"):
        fedconvex.compare(table(), "ill", impute="median", **QUICK)


def csv_of(data, path):
    cells = [["" if v is None else str(v) for v in column] for column in data.values()]
    lines = [",".join(row) for row in [list(data), *map(list, zip(*cells, strict=True))]]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.slow
def test_the_command_writes_what_the_function_finds(tmp_path, capsys):
    import json

    from fedconvex.cli import main

    file = csv_of(table(), tmp_path / "wards.csv")
    asked = ["--target", "ill", "--client", "ward", "--impute", "median", "--methods", "pooled", "--splits", "1"]
    assert main(["compare", file, *asked, "--json", "--report", str(tmp_path / "page")]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = fedconvex.compare(file, "ill", "ward", impute="median", **QUICK)
    assert printed["decision"] == found.sentences
    assert printed["base_rates"] == found.base_rates and set(found.base_rates) == {"a", "b", "c"}
    for row, expected in zip(printed["clients"], found.clients, strict=True):
        assert {k: v for k, v in row.items() if v is not None} == {k: v for k, v in expected.items() if v == v}
    assert (tmp_path / "page" / "index.html").exists()
    assert main(["compare", file, *asked]) == 0
    assert "method" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--methods", "pooled,fedavgg"], "--methods must be some of pooled, "),
        (["--test-size", "1"], "--test-size must lie strictly between 0 and 1"),
        (["--loss", "hinge"], "--loss must be one of squared, logistic, softmax; got 'hinge'"),
        (["--methods", "pooled", "--clients", "3"], "--clients and --partition must divide data without clients"),
    ],
)
def test_what_the_command_refuses(tmp_path, capsys, extra, message):
    from fedconvex.cli import main

    file = csv_of(table(), tmp_path / "wards.csv")
    assert main(["compare", file, "--target", "ill", "--client", "ward", "--impute", "median", *extra]) == 2
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------- real data, where they are at hand


def adult(shared_data, column, n):
    """Rows of Adult, clients the values of a column: numbers, and the other categories one-hot."""
    with np.load(shared_data("adult")) as z:
        names, cats, rows = z["cat_names"].tolist(), z["x_cat_train"], np.arange(0, 32561, 32561 // n)
        other = [cats[:, j : j + 1] == np.arange(cats[:, j].max() + 1) for j, c in enumerate(names) if c != column]
        X = np.hstack([z["x_num_train"], *other]).astype(float)[rows]
        owner = z[f"categories_{names.index(column)}"][cats[rows, names.index(column)]]
        y = 2.0 * z["y_train"][rows] - 1.0
    return Federation.from_arrays(X[:, X.std(axis=0) > 0.0], y, owner)


@pytest.mark.slow
@pytest.mark.compiled(only="thousands of rows")
@pytest.mark.parametrize("column", ["education", "native-country"])
def test_adult_agrees_with_sklearn_and_with_the_minimax_value(shared_data, column):
    found = fedconvex.compare(
        adult(shared_data, column, 2000), methods=["pooled", "afl"], rounds=20, progress=False, splits=1
    )
    agrees_with_sklearn(found, 1e-6)
    afl = found["afl"]
    worst = float(afl.fit.problem.domain_values(afl.fit.w).max())
    exact = afl.fit.problem.solve_minimax()
    assert exact.lower - 1e-12 <= worst <= exact.lower + max(afl.fit.gap, 1e-9)
    assert afl.cost.trace[1].min() >= 0.0


@pytest.mark.slow
@pytest.mark.compiled(only="a thousand rows")
def test_activities_by_person_agree_with_sklearn(shared_data):
    with np.load(shared_data("har21")) as z:
        some = z["client"] < 5
        X, y, person = z["X"][some][:, ::12].astype(float), z["y"][some].astype(float), z["client"][some]
    agrees_with_sklearn(fedconvex.compare(Federation.from_arrays(X, y, person), **QUICK), 1e-6)


def test_domains_have_a_worst_of_their_own():
    rng = np.random.default_rng(0)
    X, rare = rng.normal(size=(160, 2)), np.arange(160) % 4 == 0
    y = X[:, 0] * np.where(rare, -1.0, 1.0) + 0.1 * rng.normal(size=160)
    fed = Federation.from_arrays(X, y, np.arange(160) % 2, domains=np.where(rare, "rare", "common"))
    found = fedconvex.compare(fed, methods=["pooled"], min_rows=5, progress=False, splits=1)
    pooled = found["pooled"]
    at = found.held[found.rows.domain[found.held] == 1]
    scores = pooled.models.scores(found.rows.features(at)[at], found.rows.client[at])
    error = np.mean((scores - found.rows.y[at]) ** 2)
    assert pooled.domains[1].error.value == pytest.approx(error)
    assert found.rows.domains[pooled.worst_domain(5)] == "rare"
    assert "worst domain" in found.table()
    assert decision._worst(found, pooled)[0].startswith("The worst-off domain is rare: mean squared error ")


def test_a_year_beside_many_names_is_centred():
    """Of sparse rows too: divided by its deviation only it is 500 everywhere, and no method came near its optimum."""
    rng = np.random.default_rng(0)
    names = sp.csr_array((np.ones(300), rng.integers(0, 80, 300), np.arange(301)), shape=(300, 80))
    X = sp.hstack([names, rng.integers(2012, 2024, (300, 1)).astype(float), rng.poisson(0.3, (300, 1))], format="csr")
    fed = Federation.from_arrays(X, np.sign(rng.normal(size=300)), clients=np.arange(300) % 3)
    rows = rows_of(fed, Logistic())
    train = np.arange(0, 300, 2)
    made = design(rows, fed.X, train)
    assert np.flatnonzero(made.scaling.center).tolist() == [80]
    dense = fed.X.toarray()[train]
    np.testing.assert_allclose(made.scaling.scale, np.where(dense.std(axis=0) > 0, dense.std(axis=0), 1.0), rtol=1e-12)
    scaled = (dense - made.scaling.center) / made.scaling.scale
    np.testing.assert_allclose(made.scaling.of_rows(fed.X[train]).toarray()[:, :-1], scaled, rtol=1e-12, atol=1e-12)
    w = rng.normal(size=83)
    scores = made.scaling.models(w, 1).scores(fed.X[train], rows.client[train])
    np.testing.assert_allclose(scores, scaled @ w[:-1] + w[-1], rtol=1e-9, atol=1e-9)
