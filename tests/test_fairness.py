"""Fairness by domain: scores against plain NumPy and SciPy, pairing, held-out federations, tables and pictures."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.stats

from fedconvex import Federation, Logistic, Problem, SmoothedHinge, Softmax, Squared, run
from fedconvex.methods import AFL, OptimisticAFL
from fedconvex.problems import Independent, MultiTaskProblem
from fedconvex.report import (
    DomainScores,
    domain_differences,
    domain_scores,
    domain_weights_plot,
    fairness_plot,
    fairness_table,
    per_client_metrics,
    wilson_interval,
)


def people(rng, n=60, loss=None, sparse=False, names=("north", "south", "west")):
    """Rows of three domains mixed over four clients."""
    X = rng.normal(size=(n, 3)) * (rng.random((n, 3)) < 0.7)
    domain = np.array(names)[rng.permutation(n) % len(names)]
    z = X @ rng.normal(size=3) + rng.normal(size=n)
    loss = Logistic() if loss is None else loss  # losses without parameters are empty tuples
    if isinstance(loss, Squared):
        y = z
    elif isinstance(loss, Softmax):
        y = rng.integers(3, size=n).astype(float)
    else:
        y = np.where(z > 0, 1.0, -1.0)
    X = sp.csr_array(X) if sparse else X
    return Problem(Federation.from_arrays(X, y, rng.integers(4, size=n), domains=domain), loss, 0.05)


def by_hand(problem, w):
    """Loss of every row, whether it is right, and its domain's name, from the raw rows."""
    fed = problem.federation
    X = fed.X.toarray() if fed.is_sparse else fed.X
    if isinstance(problem.loss, Softmax):
        Z = X @ w.T
        loss = np.log(np.exp(Z).sum(axis=1)) - Z[np.arange(fed.n), fed.y.astype(int)]
        right = Z.argmax(axis=1) == fed.y
    elif isinstance(problem.loss, Squared):
        loss, right = 0.5 * (X @ w - fed.y) ** 2, None
    else:
        z = X @ w
        loss, right = np.log1p(np.exp(-fed.y * z)), np.where(z >= 0, 1, -1) == fed.y
    return loss, right, np.asarray(fed.domain_labels)[fed.domain]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", [Logistic(), Squared(), Softmax(3)], ids=lambda x: type(x).__name__)
def test_scores_are_means_over_rows(loss, sparse, rng):
    problem = people(rng, loss=loss, sparse=sparse)
    w = rng.normal(size=problem.model_shape)
    found = domain_scores(problem, w, level=0.9)
    losses, right, names = by_hand(problem, w)
    assert found.domains.tolist() == ["north", "south", "west"]
    for i, name in enumerate(found.domains):
        mine = losses[names == name]
        assert found.rows[i] == len(mine)
        assert found.loss[i] == pytest.approx(mine.mean(), rel=1e-12)
        assert found.loss_error[i] == pytest.approx(scipy.stats.sem(mine), rel=1e-10)
        low, high = scipy.stats.t.interval(0.9, len(mine) - 1, mine.mean(), scipy.stats.sem(mine))
        assert (found.loss_low[i], found.loss_high[i]) == pytest.approx((low, high), rel=1e-9)
        if right is not None:
            k, n = int(right[names == name].sum()), len(mine)
            assert found.accuracy[i] == k / n
            assert found.accuracy_error[i] == pytest.approx(math.sqrt(k / n * (1 - k / n) / n))
            interval = scipy.stats.binomtest(k, n).proportion_ci(0.9, method="wilson")
            assert (found.accuracy_low[i], found.accuracy_high[i]) == pytest.approx((interval.low, interval.high))
    assert found.classifies == (right is not None)
    np.testing.assert_allclose(found.loss, problem.domain_values(w) - 0.025 * np.sum(w**2), rtol=1e-12)
    assert found.worst == found.domains[np.argmax(found.loss)]
    assert found.worst_loss == found.loss.max()
    assert found.loss_spread == pytest.approx(found.loss.max() - found.loss.min())
    assert found.loss_deviation == pytest.approx(math.sqrt(np.mean((found.loss - found.loss.mean()) ** 2)))
    if right is None:
        assert found.least_accurate is None
        assert np.isnan([found.worst_accuracy, found.accuracy_spread, found.accuracy_deviation]).all()
    else:
        assert found.worst_accuracy == found.accuracy.min()
        assert found.least_accurate == found.domains[np.argmin(found.accuracy)]


def test_clients_are_domains_where_there_are_none(rng):
    fed = people(rng).federation
    problem = Problem(Federation(fed.X, fed.y, fed.ptr, fed.labels), Logistic(), 0.05)
    w, metrics = rng.normal(size=3), None
    metrics, found = per_client_metrics(problem, w), domain_scores(problem, w)
    np.testing.assert_allclose(found.loss, metrics["loss"], rtol=1e-12)
    np.testing.assert_array_equal(found.accuracy, metrics["accuracy"])
    assert found.domains.tolist() == metrics["client"].tolist()


def test_held_out_rows_are_matched_by_name(rng):
    """Domains in another order, one that is missing, one that is new, one with a single row."""
    problem = people(rng)
    best = problem.solve_minimax()
    X, y = rng.normal(size=(6, 3)), np.array([1.0, -1, 1, -1, 1, 1])
    names = ["west", "north", "west", "east", "north", "east"]
    held = Federation.from_arrays(X, y, [0] * 6, domains=names)
    found = domain_scores(problem, best, held)
    weights = dict(zip(["north", "south", "west"], best.domain_weights, strict=True))
    assert found.domains.tolist() == ["east", "north", "west"]
    np.testing.assert_array_equal(found.domain_weights, [np.nan, weights["north"], weights["west"]])
    losses = np.log1p(np.exp(-y * (X @ best.w)))
    np.testing.assert_allclose(found.loss, [losses[[3, 5]].mean(), losses[[1, 4]].mean(), losses[[0, 2]].mean()])
    same = domain_scores(problem, best, Problem(held, Logistic(), 7.0))
    np.testing.assert_array_equal(same.loss, found.loss)
    single = domain_scores(problem, best.w, Federation.from_arrays(X[:1], y[:1], [0], domains=["west"]))
    assert math.isfinite(single.loss[0])
    assert np.isnan([single.loss_error[0], single.loss_low[0]]).all()
    with pytest.raises(ValueError, match="have domains of the problem"):
        domain_scores(problem, best, Federation.from_arrays(X, y, [0] * 6, domains=["mars"] * 6))


def test_a_domain_without_held_out_rows(rng):
    problem = people(rng, n=9)
    train, test = problem.federation.split(0.4, seed=3)
    kept = test.domain != 0  # no test rows of the first domain
    part = Federation(
        test.X[kept], test.y[kept], np.array([0, kept.sum()]), None, test.domain[kept], test.domain_labels
    )
    found = domain_scores(Problem(train, Logistic(), 0.1), np.ones(3), part)
    assert found.rows[0] == 0
    assert np.isnan([found.loss[0], found.accuracy[0], found.accuracy_low[0], found.accuracy_high[0]]).all()
    assert math.isfinite(found.loss_spread)
    assert "-" in fairness_table({"a": found})
    assert found.worst in ("south", "west")


def test_lambda_of_solutions_and_runs(rng):
    problem = people(rng)
    best = problem.solve_minimax()
    np.testing.assert_array_equal(domain_scores(problem, best).domain_weights, best.domain_weights)
    assert np.isnan(domain_scores(problem, problem.solve()).domain_weights).all()
    result = run(OptimisticAFL(step_size=0.3, domain_step_size=0.3), problem, rounds=30, progress=False)
    np.testing.assert_array_equal(domain_scores(problem, result).domain_weights, result.trace.domain_weights[-1, 0])
    np.testing.assert_array_equal(
        domain_scores(problem, best.w, domain_weights=[0.2, 0.3, 0.5]).domain_weights, [0.2, 0.3, 0.5]
    )


def test_wilson_against_scipy():
    k, n = np.array([0, 3, 10, 17]), np.array([10, 10, 10, 23])
    for level in (0.8, 0.95):
        low, high = wilson_interval(k, n, level)
        for i in range(4):
            theirs = scipy.stats.binomtest(int(k[i]), int(n[i])).proportion_ci(level, method="wilson")
            assert (low[i], high[i]) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert np.isnan(wilson_interval([0, np.nan], 0)).all()


def test_differences_are_paired(rng):
    problem = people(rng, n=200)
    a, b = rng.normal(size=(2, 3))
    found = domain_differences(problem, a, b)
    (la, ra, names), (lb, rb, _) = by_hand(problem, a), by_hand(problem, b)
    for i, name in enumerate(found.domains):
        mine = names == name
        theirs = scipy.stats.ttest_rel(la[mine], lb[mine])
        assert found.loss[i] / found.loss_error[i] == pytest.approx(theirs.statistic, rel=1e-9)
        gained, lost = int((ra & ~rb)[mine].sum()), int((rb & ~ra)[mine].sum())
        assert (found.gained[i], found.lost[i]) == (gained, lost)
        assert found.accuracy[i] == pytest.approx((gained - lost) / mine.sum())
        change = ra[mine].astype(float) - rb[mine]
        assert found.accuracy_error[i] == pytest.approx(scipy.stats.sem(change))
        assert found.p_value[i] == pytest.approx(scipy.stats.binomtest(gained, gained + lost).pvalue)
    back = domain_differences(problem, b, a)
    np.testing.assert_allclose(back.loss, -found.loss)
    np.testing.assert_array_equal(back.gained, found.lost)


def test_equal_models_do_not_differ(rng):
    problem = people(rng)
    found = domain_differences(problem, np.ones(3), np.ones(3))
    assert not found.loss.any()
    assert not found.loss_error.any()
    assert (found.p_value == 1.0).all()
    flat = domain_differences(people(rng, loss=Squared()), np.ones(3), np.zeros(3))
    assert np.isnan(flat.p_value).all()
    assert np.isnan(flat.accuracy).all()


def test_tasks_keep_their_names():
    """Models of tasks belong to clients by position: other orders are refused, not mixed up."""
    X = np.array([[1.0], [-1.0], [2.0], [-2.0]])
    a = Federation.from_clients([(X[:2], [1.0, -1.0]), (X[2:], [-1.0, 1.0])], labels=["b", "a"])
    b = Federation.from_clients([(X[2:], [-1.0, 1.0]), (X[:2], [1.0, -1.0])], labels=["a", "b"])
    mine, theirs = (MultiTaskProblem(fed, Logistic(), Independent(0.1)) for fed in (a, b))
    np.testing.assert_array_equal(domain_scores(mine, mine.solve()).accuracy, [1.0, 1.0])
    with pytest.raises(ValueError, match="in this order"):
        domain_scores(mine, mine.solve(), theirs)


def test_noise_is_not_known_of_single_rows():
    fed = Federation.from_arrays(np.ones((4, 1)), [1.0, 1.0, 1.0, -1.0], [0, 0, 0, 1])
    assert np.isnan(domain_scores(Problem(fed, Squared()), np.zeros(1)).loss_noise)


def test_other_losses_and_levels_are_refused(rng):
    problem = people(rng)
    with pytest.raises(ValueError, match="have the loss"):
        domain_scores(problem, np.zeros(problem.model_shape), Problem(problem.federation, SmoothedHinge(0.5)))
    one, other = (domain_scores(problem, np.zeros(problem.model_shape), level=level) for level in (0.5, 0.99))
    with pytest.raises(ValueError, match=r"intervals of level 0\.5"):
        fairness_table({"a": one, "b": other})


def test_noise_is_the_spread_of_equal_domains(rng):
    """Equal domains: the variance over domains has the mean of noise^2, over 300 drawings within 5 standard errors."""
    seen = []
    for _ in range(300):
        y = rng.normal(size=60)
        fed = Federation.from_arrays(np.ones((60, 1)), y, np.arange(60) % 4)
        s = domain_scores(Problem(fed, Squared()), np.zeros(1))
        seen.append(s.loss_deviation**2 - s.loss_noise**2)
    assert abs(np.mean(seen)) <= 5.0 * scipy.stats.sem(seen)
    assert np.std(seen) > 0.0


def test_bad_input(rng):
    problem = people(rng)
    other = Federation.from_arrays(np.ones((2, 2)), [1.0, -1.0], [0, 1])
    for call, words in (
        (lambda: domain_scores(problem, np.ones((2, 3))), "be one model of shape"),
        (lambda: domain_scores(problem, np.ones(2)), "be one model of shape"),
        (lambda: domain_scores(problem, np.ones(3), domain_weights=[0.5, 0.5]), "3 entries"),
        (lambda: domain_scores(problem, np.ones(3), other), "have models of shape"),
        (lambda: domain_scores(problem, np.ones(3), level=1.0), "strictly between"),
        (lambda: domain_scores(problem, np.ones(3), np.ones(3)), "Problem or a Federation"),
        (lambda: domain_scores(problem.federation, np.ones(3)), "be a Problem"),
        (lambda: fairness_table({}), "nonempty mapping"),
        (lambda: fairness_table({"a": 1}), "come from domain_scores"),
        (lambda: fairness_plot({}), "nonempty mapping"),
        (lambda: domain_weights_plot({}, problem=problem), "nonempty mapping"),
        (lambda: domain_weights_plot({"a": 1}, problem=problem), "be a Result"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            call()


def test_table_shows_every_number(rng):
    problem = people(rng)
    scores = {
        "pooled": domain_scores(problem, problem.solve()),
        "agnostic": domain_scores(problem, problem.solve_minimax()),
    }
    first, second = fairness_table(scores).split("\n\n")
    lines = first.splitlines()
    assert lines[0].split()[:6] == ["model", "domain", "rows", "lambda", "loss", "s.e."]
    assert len(lines) == 1 + 2 * 3
    s = scores["agnostic"]
    cells = lines[4].split()
    assert cells[:2] == ["agnostic", "north"]
    assert [float(c) for c in cells[3:7]] == pytest.approx(
        [s.domain_weights[0], s.loss[0], s.loss_error[0], s.accuracy[0]], rel=1e-3
    )
    assert second.splitlines()[2].split()[:2] == ["agnostic", s.worst]
    flat = people(rng, loss=Squared())
    assert "accuracy" not in fairness_table({"pooled": domain_scores(flat, flat.solve())})


@pytest.mark.slow
def test_bars_and_intervals(rng, tmp_path):
    pytest.importorskip("matplotlib")
    problem = people(rng)
    scores = {name: domain_scores(problem, w) for name, w in (("one", np.ones(3)), ("two", -np.ones(3)))}
    figure = fairness_plot(scores, tmp_path / "f.png", title="both")
    assert (tmp_path / "f.png").stat().st_size > 1000
    for axis, part in zip(figure.axes, ("loss", "accuracy"), strict=True):
        bars = [c for c in axis.containers if type(c).__name__ == "BarContainer"]
        lines = [c for c in axis.containers if type(c).__name__ == "ErrorbarContainer"]
        for bar, line, s in zip(bars, lines, scores.values(), strict=True):
            np.testing.assert_allclose([p.get_height() for p in bar], getattr(s, part))
            ends = np.array([seg[:, 1] for seg in line[2][0].get_segments()])
            np.testing.assert_allclose(ends[:, 0], np.maximum(getattr(s, f"{part}_low"), 0.0))
            np.testing.assert_allclose(ends[:, 1], getattr(s, f"{part}_high"))
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == [
        f"{d}\n{n} rows" for d, n in zip(scores["one"].domains, scores["one"].rows, strict=True)
    ]
    same = fairness_plot(
        {"one": np.ones(3), "two": scores["two"]}, problem=problem
    )  # models, and where to measure them
    assert [b.get_height() for b in same.axes[0].patches] == [b.get_height() for b in figure.axes[0].patches]
    with pytest.raises(TypeError, match=r"must come from domain_scores; got ndarray: or pass problem="):
        fairness_plot({"one": np.ones(3)})
    third = domain_scores(problem, np.ones(3), people(rng, names=("x", "north")).federation)
    with pytest.raises(ValueError, match="have the domains"):
        fairness_plot({**scores, "three": third})


@pytest.mark.slow
def test_lambda_over_rounds(rng, tmp_path):
    pytest.importorskip("matplotlib")
    problem = people(rng)
    method = AFL(step_size=0.1, domain_step_size=0.1, batch_size=3, replacement=True)
    results = {
        "one": run(method, problem, rounds=12, progress=False),
        "five": run(method, problem, rounds=12, trajectories=5, record_every=3, progress=False),
    }
    best = problem.solve_minimax()
    figure = domain_weights_plot(results, tmp_path / "m.svg", problem=problem, exact=best, log=True)
    assert (tmp_path / "m.svg").read_text().startswith("<?xml")
    left, right = figure.axes
    for i in range(3):
        np.testing.assert_array_equal(left.lines[i].get_ydata(), results["one"].trace.domain_weights[1:, 0, i])
        np.testing.assert_allclose(
            right.lines[i].get_ydata(), np.median(results["five"].trace.domain_weights[1:, :, i], axis=1)
        )
    levels = [line.get_ydata()[0] for line in left.lines[3:]]
    np.testing.assert_array_equal(levels, best.domain_weights)
    with pytest.raises(ValueError, match="weights, domain_weights"):
        domain_weights_plot(
            {"sgd": run(method, people(rng, names=("a", "b")), rounds=2, progress=False)}, problem=problem
        )
    with pytest.raises(ValueError, match="3 entries"):
        domain_weights_plot(results, problem=problem, exact=[0.5, 0.5])


def test_scores_are_read_only(rng):
    found = domain_scores(people(rng, loss=SmoothedHinge(0.5)), np.ones(3))
    assert isinstance(found, DomainScores)
    with pytest.raises(ValueError, match="read-only"):
        found.loss[0] = 0.0
