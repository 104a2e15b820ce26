"""Agnostic learning on clients and on classes as domains: what is solved, what is claimed, and that claims can fail."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("matplotlib")
from sklearn.linear_model import LogisticRegression

from fedconvex.papers import EXPERIMENTS, summary, write
from fedconvex.papers.agnostic_clients import claims as clients_claims
from fedconvex.papers.agnostic_clients import data as clients_data
from fedconvex.papers.agnostic_clients import runs as clients_runs
from fedconvex.papers.agnostic_fashion import claims as fashion_claims
from fedconvex.papers.agnostic_fashion import data as fashion_data
from fedconvex.papers.agnostic_fashion import runs as fashion_runs
from fedconvex.papers.images import coarser
from fedconvex.papers.intervals import mean_interval
from fedconvex.papers.step_grids import TunedRun
from fedconvex.report import DomainScores, wilson_interval


def archive(path, classes=9, n=540, side=4, **changes):
    """An archive of noisy images: class c lights up pixel c."""
    rng = np.random.default_rng(0)
    y = np.arange(n + n // 2) % classes
    X = rng.integers(0, 120, (len(y), side * side))
    X[np.arange(len(y)), y] += 100
    X = X.reshape(-1, side, side).astype(np.uint8)
    arrays = {"x_train": X[:n], "y_train": y[:n], "x_test": X[n:], "y_test": y[n:]} | changes
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


def by_sklearn(X, y, weights, l2):
    """Minimise sum_i weights_i l_i + (l2/2)‖W‖^2 with scikit-learn, and return its value and W."""
    model = LogisticRegression(C=1.0 / l2, fit_intercept=False, tol=1e-10, max_iter=5000)
    W = model.fit(X, y, sample_weight=weights).coef_
    scores = X @ W.T
    losses = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(len(y)), y.astype(int)]
    return float(weights @ losses + 0.5 * l2 * np.sum(W**2)), W


# ---------------------------------------------------------------- images


def test_coarser_images_are_means_of_blocks():
    images = np.random.default_rng(0).integers(0, 256, (5, 6, 4)).astype(np.uint8)
    found = coarser(images, 2)
    for k in range(5):
        by_hand = [images[k, i : i + 2, j : j + 2].astype(float).mean() for i in (0, 2, 4) for j in (0, 2)]
        np.testing.assert_allclose(found[k], by_hand, rtol=1e-15)
    np.testing.assert_array_equal(coarser(images, 1), images.reshape(5, -1))
    for block, words in ((4, "multiples of 4"), (0, "at least 1")):
        with pytest.raises(ValueError, match=words):
            coarser(images, block)


# ---------------------------------------------------------------- afl-clients: the setting


@pytest.mark.parametrize("division", clients_data.DIVISIONS, ids=lambda d: d.name)
def test_clients_hold_what_the_division_says(division):
    data = clients_data.load_splits(splits=2, seed=3)
    for s, split in enumerate(data.splits):
        problem, test = clients_data.problems_of(data, division, s, 3)
        fed, n = problem.federation, len(split.y)
        assert fed.K == test.K == 3
        assert fed.labels.tolist() == test.labels.tolist()
        both = np.vstack([split.X, split.X_test])
        assert len(np.unique(both, axis=0)) == 1797  # nobody is tested on what somebody trained on
        for a in (fed, test):
            known = {tuple(row) for row in (split.X if a is fed else split.X_test)}
            assert all(tuple(row) in known for row in a.X)
        classes = [sorted(set(fed.y[a:b].astype(int))) for a, b in pairwise(fed.ptr)]
        tested = [sorted(set(test.y[a:b].astype(int))) for a, b in pairwise(test.ptr)]
        if division.by_label:
            assert classes == tested == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
            own = np.array([np.isin(split.y, c).sum() for c in classes])
            np.testing.assert_allclose(fed.sizes, own * division.shares, atol=0.5)
            assert test.sizes.tolist() == [np.isin(split.y_test, c).sum() for c in tested]  # all of them
        else:
            assert fed.n == n
            np.testing.assert_allclose(fed.sizes, n * np.array(division.shares), atol=1.0)
            assert classes == [list(range(10))] * 3


def test_divisions_of_an_archive_share_no_rows(tmp_path):
    data = clients_data.load_splits(archive(tmp_path / "a.npz"), splits=3, seed=1)
    assert data.overlap == 0.0
    rows = [tuple(r) for s in data.splits for r in np.vstack([s.X, s.X_test])]
    assert len(set(rows)) == len(rows) == 3 * (180 + 90)
    assert clients_data.load_splits(splits=2).overlap == pytest.approx(599 / 1198)


def test_large_images_are_averaged_to_a_thousand_parameters(tmp_path):
    data = clients_data.load_splits(archive(tmp_path / "a.npz", classes=10, side=28), splits=2)
    assert data.splits[0].X.shape[1] == 7 * 7 + 1
    assert "4 x 4" in data.about
    assert clients_data._block("--data x", (28, 28), 5) == 2
    assert clients_data._block("--data x", (8, 8), 10) == 1


def test_intervals_are_students_and_wider_where_rows_are_shared():
    d = np.random.default_rng(0).normal(0.1, 1.0, 9)
    found = mean_interval(d)
    by_scipy = stats.ttest_1samp(d, 0.0).confidence_interval(0.95)
    np.testing.assert_allclose([found.mean, found.low, found.high], [d.mean(), *by_scipy], rtol=1e-10)
    wide = mean_interval(d, 0.5)  # sqrt((1/9 + 1/2)/(1/9)), Nadeau and Bengio
    assert wide.half / found.half == pytest.approx(math.sqrt(5.5))


# ---------------------------------------------------------------- afl-clients: results


@pytest.fixture(scope="module")
def clients(compiled_kernels):
    said = []
    findings = EXPERIMENTS["afl-clients"].run(quick=True, progress=lambda share, doing: said.append(share))
    return findings, said


@pytest.mark.slow
def test_clients_quick_holds(clients, tmp_path):
    findings, said = clients
    assert findings.holds, summary(findings)
    assert said == sorted(said)
    assert said[-1] == 1.0
    assert {f.name for f in write(findings, tmp_path)} >= {"clients.svg", "runs.png", "differences.csv", "curves.csv"}
    assert len(findings.tables["outcomes"]) == 2 * 3 * 2 * 3  # divisions, seeds, models, clients


@pytest.mark.slow
def test_exact_models_against_scikit_learn():
    """Pooled: the same minimum. AFL: at its domain weights the worst client's objective, a saddle point."""
    data = clients_data.load_splits(splits=1, block=2)
    division = clients_data.DIVISIONS[3]
    problem, test = clients_data.problems_of(data, division, 0, 0)
    fed = problem.federation
    pooled, agnostic = clients_runs.solved(data, division, 0, 0)
    for outcome, goal in (
        (pooled, float(pooled.objective @ pooled.shares)),
        (agnostic, float(agnostic.objective.max())),
    ):
        per_row = np.repeat(outcome.domain_weights / fed.sizes, fed.sizes)
        value, W = by_sklearn(fed.X, fed.y, per_row, clients_data.L2)
        assert goal == pytest.approx(value, abs=1e-6)
        right = np.argmax(test.X @ W.T, axis=1) == test.y
        mine = [right[a:b].mean() for a, b in pairwise(test.ptr)]
        np.testing.assert_allclose(outcome.test.accuracy, mine, atol=0.006)  # a row at the edge of two classes may flip
    assert agnostic.gap <= 1e-9
    assert agnostic.objective.max() < pooled.objective.max()
    assert agnostic.domain_weights.sum() == pytest.approx(1.0)


@pytest.mark.slow
def test_floats_are_those_of_the_messages(clients):
    """|W| = 170, three clients: FedSGD 2|W| each, AFL 2(|W| + 3), AgnosticFedAvg 2|W| + 3 p + 1 (docs/agnostic.md)."""
    floats = {r["method"]: r["floats a round"] for r in clients[0].tables["runs"]}
    assert floats["FedSGD"] == floats["FedAvg, 5 steps"] == 3 * 340
    assert floats["AFL"] == floats["OptimisticAFL"] == 3 * 346
    assert floats["AgnosticFedAvg, 5 steps"] == 3 * 350


@pytest.mark.slow
def test_descent_curve_by_hand(clients):
    data = clients_data.load_splits(splits=3, block=2)
    division = clients_data.DIVISIONS[3]
    problem, _ = clients_data.problems_of(data, division, 0, 0)
    fed = problem.federation
    row = next(r for r in clients[0].tables["runs"] if r["method"] == "FedSGD")
    W, Y = np.zeros((10, 17)), np.eye(10)[fed.y.astype(int)]

    def losses(W):
        Z = fed.X @ W.T
        return np.logaddexp.reduce(Z, axis=1) - Z[np.arange(fed.n), fed.y.astype(int)]

    for _ in range(100):
        Z = fed.X @ W.T
        P = np.exp(Z - np.logaddexp.reduce(Z, axis=1)[:, None])
        W = W - row["step"] * ((P - Y).T @ fed.X / fed.n + clients_data.L2 * W)
    F = [losses(W)[a:b].mean() + 0.5 * clients_data.L2 * np.sum(W**2) for a, b in pairwise(fed.ptr)]
    assert row["above the least"] == pytest.approx(max(F) - problem.solve_minimax().value, rel=1e-6)


def planted(accuracy, loss, domain_weights, objective=None, division="by label, unequal"):
    """Outcomes of three seeds with given test accuracies and losses of (FedAvg, AFL), (2, 3) each."""
    rows = np.array([600, 300, 100])
    made = []
    for s in range(3):
        for m, model in enumerate(clients_claims.MODELS):
            a, v = np.array(accuracy[m]) + 0.001 * s, np.array(loss[m]) + 0.001 * s
            none = np.full(3, math.nan)
            scores = DomainScores(np.array(["A", "B", "C"]), rows, v, none, none, none, a, none, none, none, none, 0.95)
            lam = rows / 1000 if m == 0 else np.array(domain_weights)
            F = np.array([0.1, 0.2, 0.4]) if m == 0 else np.full(3, 0.3)
            made.append(clients_runs.ExactModel(division, s, model, rows, F, 0.0, lam, scores))
    return made


def test_clients_claims_can_fail():
    def failing(outcomes, above=0.01):
        rows = list(clients_claims.difference_rows(outcomes, 0.0))
        division = outcomes[0].division
        curves = [
            clients_runs.DivisionRun(
                division,
                10,
                TunedRun(m, 1.0, 1.0, False, np.array([10]), np.array([above]), np.zeros((1, 2)), np.ones(3) / 3),
                outcomes[0].test,
            )
            for m in ("FedSGD", "AFL")
        ]
        return [c.text for c in clients_claims.judge(outcomes, curves, rows) if not c.holds]

    good = ([[0.95, 0.9, 0.6], [0.94, 0.9, 0.8]], [[0.1, 0.2, 0.9], [0.15, 0.2, 0.5]], [0.3, 0.3, 0.4])
    assert failing(planted(*good)) == []
    assert len(failing(planted(*good), above=0.2)) == 1  # 0.4 - 0.3 is what FedAvg leaves
    assert (
        "lowers the worst client's test loss" in failing(planted(good[0], [good[1][0], [0.1, 0.2, 0.95]], good[2]))[0]
    )
    worse = failing(planted([[0.95, 0.9, 0.6], [0.94, 0.55, 0.8]], good[1], good[2]))
    assert "raises the worst client's test accuracy" in worse[0]
    dear = failing(planted([[0.95, 0.9, 0.6], [0.7, 0.9, 0.7]], good[1], good[2]))
    assert [t for t in dear if "weighed by rows" in t]

    same = ([[0.95, 0.95, 0.95], [0.951, 0.95, 0.949]], [[0.1, 0.1, 0.1], [0.1, 0.1, 0.1]], [0.61, 0.29, 0.1])
    assert failing(planted(*same, division="iid, equal")) == []
    apart = failing(planted([same[0][0], [0.9, 0.95, 0.95]], *same[1:], division="iid, equal"))
    assert apart[0].startswith("iid, equal: FedAvg and AFL agree")
    lam = failing(planted(*same[:2], [0.4, 0.4, 0.2], division="iid, equal"))
    assert lam[0].startswith("iid, equal: AFL weighs")


@pytest.mark.slow
def test_clients_refuse(tmp_path):
    load = clients_data.load_splits
    for changes, words in (
        ({"classes": 2}, "at least 3 classes"),
        ({"n": 100}, "at least 90"),
        ({"classes": 4, "x_train": np.zeros((540, 400)), "x_test": np.zeros((270, 400))}, "at most 1000 parameters"),
    ):
        with pytest.raises(ValueError, match=words):
            load(archive(tmp_path / "bad.npz", **changes), 3)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.npz")
    gone = archive(tmp_path / "gone.npz", y_test=np.zeros(270, int))
    with pytest.raises(ValueError, match="rows for each of"):
        EXPERIMENTS["afl-clients"].run(quick=True, data=gone)
    for seed in (-1, 0.5):
        with pytest.raises((ValueError, TypeError), match="seed"):
            EXPERIMENTS["afl-clients"].run(quick=True, seed=seed)


# ---------------------------------------------------------------- afl-fashion: the setting


def test_fashion_takes_three_classes_and_standardises_by_training_rows(tmp_path):
    file = archive(tmp_path / "f.npz", n=540)
    stored = np.load(file)
    data = fashion_data.load_domains(file)
    assert data.labels == ("shirt", "pullover", "t-shirt/top")
    assert np.bincount(data.y).tolist() == [90, 90, 90]
    problem, X_test, y_test = fashion_data.problem_of(data, 0, 1, 0.1)
    fed = problem.federation
    assert fed.sizes.tolist() == [60, 60, 60]
    assert len(y_test) == 90
    raw = np.concatenate([stored["x_train"][stored["y_train"] == c].reshape(-1, 16) for c in (6, 2, 0)]).astype(float)
    np.testing.assert_allclose(fed.X[:, :-1], (raw - raw.mean(axis=0)) / raw.std(axis=0), atol=1e-12)
    assert (fed.X[:, -1] == 1.0).all()
    shirts = stored["x_test"][stored["y_test"] == 6].reshape(-1, 16)
    np.testing.assert_allclose(X_test[y_test == 0][:, :-1], (shirts - raw.mean(axis=0)) / raw.std(axis=0), atol=1e-12)


def test_a_constant_pixel_becomes_zero():
    train, test = fashion_data.standardised(np.array([[0.3, 1.0], [0.3, 3.0], [0.3, 5.0]]), np.array([[9.0, 3.0]]))
    assert np.isfinite(train).all()
    assert (train[:, 0] == 0.0).all()
    assert test.tolist() == [[0.0, 0.0, 1.0]]


def test_digits_are_tested_once_each():
    data = fashion_data.load_domains(seed=4)
    tested = np.concatenate([test for _, test in data.folds])
    assert np.sort(tested).tolist() == list(range(536))
    for train, test in data.folds:  # all but the fold, of the eights a third
        left = np.setdiff1d(np.arange(536), test)
        assert set(train) <= set(left)
        want = np.bincount(data.y[left])
        assert np.bincount(data.y[train]).tolist() == [round(want[0] / 3), want[1], want[2]]


def test_fashion_differences_by_hand():
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1, 2], [30, 40, 50])
    right, losses = rng.random((2, 120)) < 0.7, rng.random((2, 120))
    c = fashion_runs.Comparison(1, 0.1, 6, np.ones((2, 3)), 0.0, np.ones((2, 3)), y, losses, right, np.ones((2, 3)))
    for k, n in enumerate((30, 40, 50)):
        a, b = (right[m, y == k].astype(float) for m in (0, 1))
        found = fashion_claims.of_class(c, k)
        by_scipy = stats.ttest_rel(b, a)
        assert found.mean == pytest.approx(b.mean() - a.mean())
        assert fashion_claims.Z * found.mean / found.half == pytest.approx(by_scipy.statistic)
        assert found.high - found.mean == pytest.approx(1.959964 * np.std(b - a, ddof=1) / math.sqrt(n), rel=1e-6)
    worst = [int(np.argmax([losses[m, y == k].mean() for k in range(3)])) for m in (0, 1)]
    largest = fashion_claims.of_largest(c)
    assert largest.mean == pytest.approx(losses[1, y == worst[1]].mean() - losses[0, y == worst[0]].mean())
    assert fashion_claims.of_mean(c).mean == pytest.approx(np.mean(c.accuracy[1] - c.accuracy[0]))


# ---------------------------------------------------------------- afl-fashion: results


@pytest.fixture(scope="module")
def fashion(compiled_kernels, tmp_path_factory):
    said = []
    file = archive(tmp_path_factory.mktemp("fashion") / "f.npz", n=1800)
    findings = EXPERIMENTS["afl-fashion"].run(quick=True, data=file, progress=lambda share, doing: said.append(share))
    return findings, said, file


@pytest.mark.slow
def test_fashion_runs_quickly(fashion, tmp_path):
    findings, said, file = fashion
    assert said == sorted(said)
    assert said[-1] == 1.0
    assert {f.name for f in write(findings, tmp_path)} >= {"classes.svg", "runs.png", "classes.csv", "differences.csv"}
    rows = findings.tables["classes"]
    assert len(rows) == 2 * 2 * 3  # l2, models, classes
    data = fashion_data.load_domains(file)
    problem, X_test, y_test = fashion_data.problem_of(data, 0, 2, 0.1)
    fed = problem.federation
    _, W = by_sklearn(fed.X, fed.y, np.full(fed.n, 1.0 / fed.n), 0.1)
    right = np.argmax(X_test @ W.T, axis=1) == y_test
    for k, row in enumerate(r for r in rows if (r["l2"], r["model"]) == (0.1, "pooled")):
        mine = right[y_test == k]
        assert row["test accuracy"] == pytest.approx(mine.mean(), abs=0.011)
        low, high = wilson_interval(round(row["test accuracy"] * mine.size), mine.size)
        assert (row["low"], row["high"]) == (pytest.approx(float(low)), pytest.approx(float(high)))


def compared(pooled, agnostic, losses=((0.9, 0.4, 0.3), (0.5, 0.5, 0.5)), n=1000):
    """Comparison of planted accuracies and losses, n rows a class; the rows that are right are nested."""
    y = np.repeat([0, 1, 2], n)
    right = np.concatenate(
        [np.arange(n) < np.array([[p], [a]]) * n for p, a in zip(pooled, agnostic, strict=True)], axis=1
    )
    noise = 0.1 * np.random.default_rng(0).standard_normal((2, 3 * n))
    rows = np.repeat(np.array(losses), n, axis=1) + noise
    ones = np.ones((2, 3))
    return fashion_runs.Comparison(1, 0.1, 6, ones, 0.0, ones / 3, y, rows, right, ones)


def test_fashion_claims_can_fail():
    data = fashion_data.load_domains()._replace(y=np.repeat([0, 1, 2], 1000), folds=((np.arange(0), np.arange(3000)),))
    plan = fashion_runs.QUICK._replace(judged=(1,))

    def failing(c, last=((0.67, 0.84, 0.87), (0.76, 0.78, 0.79))):
        curves = [
            fashion_runs.ClassesRun(
                TunedRun(name, 0.1, 0.1, False, np.array([9]), np.array([0.1]), np.zeros((1, 3, 2)), np.ones(3) / 3),
                np.array([a]),
            )
            for name, a in zip(("pooled SGD", "AFL"), last, strict=True)
        ]
        return [t.text for t in fashion_claims.judge(data, plan, [c], curves) if not t.holds]

    good = ((0.67, 0.84, 0.87), (0.76, 0.78, 0.79))
    assert failing(compared(*good)) == []
    assert failing(compared(*good), last=good[::-1]) == [
        "The methods too: after their rounds AFL's least accuracy is above that of SGD on the pooled loss"
    ]
    for pair, words in (
        (((0.83, 0.84, 0.87), (0.86, 0.865, 0.86)), "is predicted worst"),
        (((0.67, 0.84, 0.87), (0.67, 0.84, 0.87)), "AFL raises the accuracy"),
        (((0.67, 0.84, 0.87), (0.76, 0.64, 0.79)), "the least of the three"),
        (((0.67, 0.84, 0.87), (0.74, 0.74, 0.70)), "falls by less"),
    ):
        found = failing(compared(*pair))
        assert any(words in text for text in found), (pair, found)
    loss = failing(compared(*good, losses=((0.9, 0.4, 0.3), (0.5, 0.95, 0.5))))
    assert [t for t in loss if "largest of the three test losses" in t]


def test_fashion_refuses(tmp_path):
    load = fashion_data.load_domains
    for changes, words in (
        ({"classes": 6}, "classes 6, 2 and 0"),
        ({"side": 40}, "at most 999 pixels"),
        ({"x_test": None}, "must hold x_train"),
    ):
        with pytest.raises(ValueError, match=words):
            load(archive(tmp_path / "bad.npz", **changes))
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.npz")
    with pytest.raises(ValueError, match="seed"):
        EXPERIMENTS["afl-fashion"].run(quick=True, seed=-1)


def test_odd_images_are_taken_as_they_are(tmp_path):
    data = fashion_data.load_domains(archive(tmp_path / "odd.npz", side=5))
    plan = fashion_runs.possible(fashion_runs.QUICK, data)
    assert plan.solved == ((1, (0.1, 0.01)),)
    assert plan.judged == (1,)
    assert fashion_runs.possible(fashion_runs.LARGE, data).solved == ((1, (0.01,)),)


@pytest.mark.slow
@pytest.mark.compiled(only="minutes of pure Python")
def test_fashion_mnist_itself(shared_data):
    """Averaged over 4 x 4 pixels, l2 = 0.01: both models against scikit-learn, and the paper's conclusion."""
    data = fashion_data.load_domains(shared_data("fashion_mnist.npz"))
    c = fashion_runs.compared(data, 4, 1e-2, lambda share, doing: None)
    problem, X_test, y_test = fashion_data.problem_of(data, 0, 4, 1e-2)
    fed = problem.federation
    for m, goal in ((0, float(c.objective[0].mean())), (1, float(c.objective[1].max()))):
        weights = np.repeat(c.domain_weights[m] / fed.sizes, fed.sizes)
        value, W = by_sklearn(fed.X, fed.y, weights, 1e-2)
        assert goal == pytest.approx(value, abs=1e-5)
        accuracy = [(np.argmax(X_test[y_test == k] @ W.T, axis=1) == k).mean() for k in range(3)]
        np.testing.assert_allclose(c.accuracy[m], accuracy, atol=0.003)
    assert c.accuracy[0].argmin() == 0
    assert fashion_claims.of_class(c, 0).low > 0.05
    assert fashion_claims.of_least(c).low > 0.05
