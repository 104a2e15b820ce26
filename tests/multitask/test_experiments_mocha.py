"""The experiment mocha-har: certified models against cvxpy, early stops against published code, claims that fail."""

import math

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from fedconvex import Federation, Hinge, Problem, SmoothedHinge
from fedconvex.families.multitask.experiments import compared_models as mocha_models
from fedconvex.families.multitask.experiments import har as mocha_har
from fedconvex.families.multitask.experiments import stragglers as mocha_stragglers
from fedconvex.families.multitask.experiments.compared_models import (
    Fit,
    choose,
    errors,
    folds,
    joint_problem,
    path,
    reference,
    stopped,
)
from fedconvex.families.multitask.experiments.har import KINDS, TaskModels, digit_pairs, load_tasks, paired
from fedconvex.papers import EXPERIMENTS, summary, write
from fedconvex.problems import MeanRegularised, MultiTaskProblem


def people(rng, m=3, rows=12, d=4, noise=0.3):
    """Tasks of different sizes whose models lie in one direction, up to noise."""
    w, X, y, task = rng.standard_normal(d), [], [], []
    for t in range(m):
        n = rows + 3 * t
        A = rng.standard_normal((n, d))
        label = np.where(A @ (w + noise * rng.standard_normal(d)) + 0.3 * rng.standard_normal(n) >= 0, 1.0, -1.0)
        label[:2] = 1.0, -1.0
        X.append(A)
        y.append(label)
        task += [t] * n
    return Federation.from_arrays(np.vstack(X), np.concatenate(y), np.array(task))


# ---------------------------------------------------------------- certified models


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("d", [4, 20])  # more rows than features in every task, and fewer
@pytest.mark.slow_unless(d=4)
def test_paths_hold_the_optimum_of_cvxpy(kind, d, rng):
    """lower <= optimum <= value, and the value is the objective of the page, with sums and norms spelt out."""
    cp = pytest.importorskip("cvxpy")
    fed, lambdas = people(rng, d=d), (1.0, 0.1, 0.01)
    fits = list(path(kind, fed, lambdas, 0.01))
    assert [fit.lam for fit in fits] == list(lambdas)
    for fit in fits:
        W = cp.Variable((fed.K, d))
        loss = sum(
            cp.sum(cp.pos(1 - cp.multiply(fed.y[a:b], fed.X[a:b] @ W[t]))) / (b - a)
            for t, (a, b) in enumerate(zip(fed.ptr, fed.ptr[1:], strict=False))
        )
        norm = cp.square(cp.normNuc(W)) if kind == "multi-task" else cp.sum_squares(W)
        equal = [W[t] == W[0] for t in range(1, fed.K)] if kind == "global" else []
        best = cp.Problem(cp.Minimize(loss + 0.5 * fit.lam * norm), equal).solve(solver="CLARABEL")
        assert fit.lower <= best * (1 + 1e-6)
        assert best <= fit.value * (1 + 1e-6)
        assert fit.gap <= 0.01
        W.value = fit.W
        at = float((loss + 0.5 * fit.lam * norm).value)
        assert at == pytest.approx(fit.value, rel=1e-7)


@pytest.mark.slow
@pytest.mark.compiled(only="minutes of pure Python")
def test_a_start_elsewhere_leads_to_the_same_optimum(rng):
    """Warm starts save passes, never the certificate; solutions of other rows are refused."""
    fed = people(rng, m=4, rows=30, d=6)
    first = joint_problem(fed, 0.1).solve(1e-4)
    cold, warm = joint_problem(fed, 0.05).solve(1e-4), joint_problem(fed, 0.05).solve(1e-4, first)
    assert warm.iterations <= cold.iterations
    assert max(cold.lower, warm.lower) <= min(cold.value, warm.value)
    assert warm.value - warm.lower <= 1e-4 * (1 + warm.value)
    again = joint_problem(fed, 0.1).solve(1e-3, first)
    assert again.iterations == 0
    with pytest.raises(ValueError, match="the same rows"):
        joint_problem(people(rng, m=4, rows=31, d=6), 0.1).solve(1e-4, first)


def test_hessians_of_few_rows_in_the_band(rng):
    """The Hessian where most curvatures are zero, against the sum over rows."""
    fed = people(rng, rows=40, d=5)
    problem, w = Problem(fed, SmoothedHinge(0.01), l2=0.5), 3.0 * rng.standard_normal(5)
    h = np.repeat(problem.row_weights, fed.sizes) * (np.abs(1 - fed.y * (fed.X @ w) - 0.005) < 0.005) / 0.01
    w /= 30.0 if not h.any() else 1.0
    z = 1 - fed.y * (fed.X @ w)
    h = np.repeat(problem.row_weights, fed.sizes) * ((z > 0) & (z < 0.01)) / 0.01
    assert 2 * np.count_nonzero(h) < fed.n
    H = problem.value_gradient_hessian(w)[2]
    np.testing.assert_allclose(H, (fed.X.T * h) @ fed.X + 0.5 * np.eye(5), atol=1e-12)


def test_errors_by_hand():
    test = Federation.from_arrays([[1.0], [2.0], [-1.0], [1.0]], [1.0, -1.0, -1.0, 1.0], [0, 0, 0, 1])
    np.testing.assert_allclose(errors(np.array([[1.0], [-1.0]]), test), [1 / 3, 1.0])


# ---------------------------------------------------------------- cross-validation


def test_folds_divide_every_task(rng):
    fed = people(rng)
    held = [part for _, part in folds(fed, 4, 3)]
    for fit_on, part in folds(fed, 4, 3):
        assert fit_on.K == part.K == fed.K
        np.testing.assert_array_equal(fit_on.sizes + part.sizes, fed.sizes)
        assert (np.abs(part.sizes - fed.sizes / 4) < 1).all()
    seen = sorted(map(tuple, np.vstack([part.X for part in held]).tolist()))
    assert seen == sorted(map(tuple, fed.X.tolist()))  # every row once
    with pytest.raises(ValueError, match="at least 13 rows"):
        list(folds(fed, 13, 3))


def test_cross_validation_takes_the_largest_of_equals(monkeypatch, rng):
    """Planted models: lam 1 is wrong everywhere, 0.1 and 0.01 are right, 0.001 is wrong."""
    fed, signs = people(rng, d=1, noise=0.0), {1.0: -1.0, 0.1: 1.0, 0.01: 1.0, 1e-3: -1.0}
    fed = Federation.from_arrays(np.abs(fed.X), np.ones(fed.n), np.repeat(np.arange(fed.K), fed.sizes))

    def planted(kind, train, lambdas, share):
        assert kind == "local"
        for lam in lambdas:
            yield Fit(lam, np.full((train.K, 1), signs[lam]), 1.0, 1.0 - lam * share)

    monkeypatch.setattr(mocha_models, "path", planted)
    lam, error, gap = choose("local", fed, tuple(signs), 3, 0.05, 0)
    assert lam == 0.1
    assert gap == pytest.approx(0.05)
    np.testing.assert_allclose(error, [1, 0, 0, 1], atol=1e-15)


# ---------------------------------------------------------------- stopped early


def simple_svm(X, y, lam, passes, tol):
    """The reference implementation's baseline, line by line (gingsmith/fmtl, opt/simple_svm.m)."""
    n, w, alpha, old = len(y), np.zeros(X.shape[1]), np.zeros(len(y)), 0.0
    for done in range(1, passes + 1):  # noqa: B007
        for i in range(n):
            before = alpha[i]
            grad = lam * n * (1.0 - y[i] * (X[i] @ w)) / (X[i] @ X[i]) + before * y[i]
            alpha[i] = y[i] * max(0.0, min(1.0, grad))
            w = w + (alpha[i] - before) * X[i] / (lam * n)
        new = np.mean(np.maximum(0.0, 1.0 - y * (X @ w))) + lam * (w @ w)
        if abs(old - new) < tol:
            break
        old = new
    return w, done


@pytest.mark.parametrize("tol", [0.0, 1e-2])
def test_stopped_baselines_are_the_references(tol, rng):
    fed, lam = people(rng), 0.05
    for passes in (1, 7):
        mine = [
            simple_svm(fed.X[a:b], fed.y[a:b], lam, passes, tol) for a, b in zip(fed.ptr, fed.ptr[1:], strict=False)
        ]
        ((done, fit),) = stopped("local", fed, lam, (passes,), tol or None)
        np.testing.assert_allclose(fit.W, [w for w, _ in mine], atol=1e-12)
        assert done == max(n for _, n in mine)
        w, most = simple_svm(fed.X, fed.y, lam, passes, tol)
        ((done, fit),) = stopped("global", fed, lam, (passes,), tol or None)
        np.testing.assert_allclose(fit.W, np.tile(w, (fed.K, 1)), atol=1e-12)
        assert done == most
        value = np.mean(np.maximum(0.0, 1.0 - fed.y * (fed.X @ w))) + 0.5 * lam * w @ w
        assert fit.value == pytest.approx(value, rel=1e-12)
        assert fit.lower <= Problem(fed, Hinge(), l2=lam).solve().value + 1e-9


def test_the_references_protocol(rng):
    """lam by the error on every fifth row from the fifth on, the smallest of equals."""
    fed, grid = people(rng, rows=25), (10.0, 0.1, 0.01)
    score = []
    for lam in sorted(grid):
        wrong = []
        for a, b in zip(fed.ptr, fed.ptr[1:], strict=False):
            X, y, last = fed.X[a:b], fed.y[a:b], np.arange(b - a) % 5 == 4
            w, _ = simple_svm(X[~last], y[~last], lam, 20, 1e-5)
            wrong.append(np.mean(np.sign(X[last] @ w) != y[last]))
        score.append(np.mean(wrong))
    _, fit = reference("local", fed, grid, 20, 5)
    assert fit.lam == sorted(grid)[int(np.argmin(score))]


# ---------------------------------------------------------------- tasks


def test_digit_pairs_use_every_image_once():
    fed = digit_pairs()
    assert fed.K == 45
    assert sorted(set(fed.labels.tolist())) == sorted(f"{a}-{b}" for a in range(10) for b in range(a + 1, 10))
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    digit = {tuple((row / 16).tolist()): int(k) for row, k in zip(X, y, strict=True)}
    names = np.repeat(fed.labels, fed.sizes)
    for row, label, name in zip(fed.X, fed.y, names, strict=True):
        a, b = map(int, name.split("-"))
        assert digit[tuple(row.tolist())] == (a if label > 0 else b)
    assert sorted(map(tuple, fed.X.tolist())) == sorted(map(tuple, (X / 16).tolist()))
    assert digit_pairs(3).K == 3
    with pytest.raises(ValueError, match="digits"):
        digit_pairs(2)


def test_bad_files_are_refused(tmp_path, rng):
    good = {"X": rng.standard_normal((60, 3)), "y": np.tile([-1, 1], 30), "client": np.repeat([4, 9], 30)}

    def archive(**changes):
        np.savez(tmp_path / "a.npz", **{k: v for k, v in (good | changes).items() if v is not None})
        return tmp_path / "a.npz"

    fed = load_tasks(archive())
    assert (fed.K, fed.n, fed.labels.tolist()) == (2, 60, [4, 9])
    X = good["X"].copy()
    for changes, words in (
        ({"client": None}, "must hold X, y, client; got X, y"),
        ({"X": X[:59]}, "shapes"),
        ({"X": X[:, 0]}, "shapes"),
        ({"y": np.tile([0, 1], 30)}, "both -1 and"),
        ({"y": np.ones(60)}, "both -1 and"),
        ({"X": np.where(X > 2, np.nan, X) + np.where(np.arange(60)[:, None] == 3, np.nan, 0)}, "finite"),
        ({"client": np.zeros(60)}, "two tasks"),
        ({"client": np.repeat([1, 2], (41, 19))}, "at least 20 rows"),
        ({"X": X * (good["client"] == 4)[:, None]}, "a task of zeros"),
        ({"X": np.array([[{}]] * 60)}, "without pickle"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            load_tasks(archive(**changes))
    (tmp_path / "t.npz").write_text("no archive")
    np.save(tmp_path / "one.npy", X)
    for name in ("t.npz", "one.npy"):
        with pytest.raises(ValueError, match=r"complete \.npz.* archive"):
            load_tasks(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        EXPERIMENTS["mocha-har"].run(data=tmp_path / "none.npz")
    with pytest.raises(ValueError, match="seed"):
        EXPERIMENTS["mocha-har"].run(seed=-1)


# ---------------------------------------------------------------- claims


def test_paired_intervals_are_scipys(rng):
    d = rng.standard_normal(10) + 0.3
    found, truth = paired(d), stats.ttest_1samp(d, 0.0).confidence_interval(0.95)
    assert (found.plain.low, found.plain.high) == pytest.approx((truth.low, truth.high))
    assert found.above is None and truth.low < 0.0  # the corrected interval is wider still
    assert [paired(d + shift).above for shift in (9.0, -9.0)] == [True, False]
    assert found.corrected.half == pytest.approx(
        found.plain.half * math.sqrt(1 + 10 / 3)
    )  # 1/n + 0.25/0.75 in place of 1/n
    assert paired([1, 0, -1, 2]).signs == (2, 1, 1)


def outcomes(shape=(0.02, 0.01, 0.003), stopped_=(0.05, 0.04), gap=(1e-4, 1e-4, 0.009)):
    """Ten shuffles with small differences; `shape` holds errors of global, local and multi-task models."""
    out = []
    for i in range(10):
        error = [e + 1e-4 * ((3 * i + j) % 5) for j, e in enumerate(shape)]
        out.append(
            TaskModels(
                i, dict.fromkeys(KINDS, 0.1), dict(zip(KINDS, gap, strict=True)),
                {k: [e, e] for k, e in zip(KINDS, error, strict=True)}, dict(zip(KINDS, error, strict=True)), 100, 0.05,
                [(k, 1, 0.1, 1.0) for k in KINDS[:2]],
                {k: (0.1, 9, e + 1e-4 * (i % 3), 0.9) for k, e in zip(KINDS[:2], stopped_, strict=True)},
            )
        )  # fmt: skip
    return out


def test_claims_can_fail():
    def failing(har=True, **changes):
        return [c.text for c in mocha_har._claims(outcomes(**changes), har) if not c.holds]

    assert failing() == []
    assert len(list(mocha_har._claims(outcomes(), False))) == len(list(mocha_har._claims(outcomes(), True))) - 1
    for changes, words in (
        ({"gap": (1e-4, 2e-3, 0.009)}, "converged under its own certificate"),
        ({"gap": (1e-4, 1e-4, 0.011)}, "converged under its own certificate"),
        ({"shape": (0.02, 0.01, 0.00995)}, "Multi-task models err less"),
        ({"shape": (0.01, 0.01, 0.003)}, "Converged local models err less"),
        ({"stopped_": (0.05, 0.01)}, "local models err more"),
        ({"stopped_": (0.02, 0.04)}, "global models err more"),
    ):
        assert [words in text for text in failing(har=False, **changes)] == [True], changes
    assert "below the paper's 0.46 %" in failing(shape=(0.02, 0.01, 0.0055))[0]


# ---------------------------------------------------------------- stragglers


def test_simulated_time_by_hand():
    """Three rounds of two nodes: 5, 10, 4 steps at most, at shares that are drawn; 2 latencies and 7 floats a round."""
    steps = np.array([[5.0, 1.0], [2.0, 10.0], [4.0, 4.0]])
    curve = mocha_stragglers._timed(
        "A", "none", "b", np.array([0, 1, 3]), steps, np.array([1.0, 0.5, 0.001]), 7.0, 1.0, 0, 3
    )
    np.testing.assert_allclose(curve.work, np.array([0, 5, 19]) * 4 * 3 / 1e8)
    network = mocha_stragglers.Network("test", 0.5, 64.0)
    np.testing.assert_allclose(curve.time(network), curve.work + np.array([0, 1, 3]) * (1.0 + 7.0))
    assert curve.reached(network) == curve.time(network)[-1]
    assert math.isinf(curve._replace(suboptimality=np.ones(3)).reached(network))
    slow = mocha_stragglers._timed("A", "high", "b", np.array([0, 1, 3]), steps, np.ones(3), 7.0, 0.1, 0, 3)
    share = np.random.default_rng([0, 11]).uniform(0.1, 1.0, (3, 2))
    np.testing.assert_allclose(slow.work[1], max(5 / share[0, 0], 1 / share[0, 1]) * 12 / 1e8)


def test_skewed_tasks_keep_a_tenth_to_all(rng):
    fed = people(rng, m=6, rows=200)
    thin = mocha_stragglers.skewed(fed, 0)
    share = thin.sizes / fed.sizes
    assert (share >= 0.09).all()
    assert (share <= 1.0).all()
    assert share.max() > 3 * share.min()
    rows = set(map(tuple, fed.X.tolist()))
    assert all(tuple(x) in rows for x in thin.X.tolist())


def test_straggler_claims_can_fail():
    TimedRun, DroppedNodes = mocha_stragglers.TimedRun, mocha_stragglers.DroppedNodes

    def best(mocha=1.0, high=1.0):
        out = {}
        for setting, _ in mocha_stragglers.SETTINGS:
            for network in mocha_stragglers.NETWORKS:
                for name in mocha_stragglers.METHODS:
                    work = 10.0 if name != "MOCHA" else 5.0 * (high if setting == "high" else mocha)
                    curve = TimedRun(
                        name, setting, "x", np.array([0, 1]), np.array([0.0, work]), np.array([1, 1e-3]), 3.0
                    )
                    out[setting, network.name, name] = [curve]
        return out

    blocked = {"node": "3", "named": "3", "rounds": 9, "relative_gap": 0.3, "its_part": 0.3, "others_part": 1e-6}
    drops = [DroppedNodes(0.0, [5], True), DroppedNodes(0.9, [50], True)]

    def failing(best_=None, drops_=drops, **changes):
        claims = mocha_stragglers._claims(best_ or best(), drops_, blocked | changes)
        return [c.text for c in claims if not c.holds]

    assert failing() == []
    assert "unequal tasks alone" in failing(best(mocha=3.0))[0]
    assert "speeds that vary" in failing(best(high=3.0))[0]
    assert "converges with nodes dropped" in failing(drops_=[drops[0], DroppedNodes(0.9, [50], False)])[0]
    for change in ({"named": "2"}, {"relative_gap": 0.005}):
        assert failing(**change) == ["A node that is always dropped blocks the gap, and is named"]
    assert failing(others_part=0.1) == ["The part of all other nodes falls below 1 % of that node's"]
    sure = [c.everywhere for c in mocha_stragglers._claims(best(), drops, blocked)]
    assert sure == [False, False, False, True, False]  # how far the others come is a matter of rounds


@pytest.mark.slow
@pytest.mark.compiled(only="minutes of pure Python")
def test_a_silent_node_is_named_and_others_converge(rng):
    fed = people(rng, m=4, rows=20)
    problem = MultiTaskProblem(fed, Hinge(), MeanRegularised(0.1, 0.1), normalisation="mean")
    plan = mocha_har.QUICK.stragglers._replace(rounds=600)
    row = mocha_stragglers._blocked(problem, plan, 0)
    assert row["node"] == row["named"] == "2"
    assert row["relative_gap"] > 0.01
    assert row["others_part"] < 1e-3 * row["its_part"]
    optimum = problem.solve(1e-6).lower
    half, none = (mocha_stragglers._dropped(problem, optimum, p, plan, 0) for p in (0.5, 1.0))
    assert half.solved
    assert not none.solved  # planted: nobody ever answers


# ---------------------------------------------------------------- the whole


@pytest.fixture(scope="module")
def quick(compiled_kernels):
    said = []
    found = EXPERIMENTS["mocha-har"].run(quick=True, progress=lambda share, doing: said.append(share))
    return found, said


@pytest.mark.slow
def test_quick_version(quick, tmp_path):
    found, said = quick
    assert said == sorted(said)
    assert said[-1] == 1.0
    claim = {c.text: c for c in found.claims}
    certified = next(c for text, c in claim.items() if "own certificate" in text)
    assert certified.holds is None and certified.here, summary(found)  # a quick version only refutes it
    names = {p.name for p in write(found, tmp_path)}
    assert names >= {
        "errors.svg",
        "fair_and_unfair.png",
        "stragglers.svg",
        "prediction.csv",
        "shuffles.csv",
        "times.csv",
    }
    assert [r["models"] for r in found.tables["prediction"]] == list(KINDS)
    for row in found.tables["shuffles"]:
        assert row["multi-task gap"] <= 0.01
        assert row["gap in cross-validation"] <= 0.05
    assert len(found.tables["times"]) == 3 * 3 * 4


@pytest.mark.slow
@pytest.mark.compiled(only="minutes of pure Python")
def test_one_shuffle_of_har(shared_data):
    """Twenty-one people, lam as in the page: the joint gap is at most 1 %, and errors are those of the page."""
    tasks = load_tasks(shared_data("har21"))
    assert (tasks.K, tasks.d) == mocha_har.HAR_SHAPE
    train, test = tasks.split(0.25, seed=0)
    assert (train.sizes.min(), train.sizes.max()) == (211, 307)
    *_, near = path("multi-task", train, (10.0, 1.0, 0.1, 0.01, 1e-3), 0.05)
    fit, _ = mocha_har.federated(train, near)
    assert fit.gap <= 0.01
    *_, local = path("local", train, (10.0, 1.0, 0.1, 0.01), 0.01)
    assert 100 * errors(fit.W, test).mean() < 0.46 < 100 * errors(local.W, test).mean()
