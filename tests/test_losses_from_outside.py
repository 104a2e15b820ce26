"""Losses that users write: certified solutions against mpmath, true reasons, predictions, metrics, the command line."""

from __future__ import annotations

import inspect
import json
import math
from typing import NamedTuple

import losses_from_outside as outside
import mpmath as mp
import numpy as np
import pytest
from losses_from_outside import Huber, Poisson, Probit, Quantile
from scipy.stats import norm

from fedconvex import FedAvg, Federation, Logistic, Problem, Softmax, run
from fedconvex.cli import main
from fedconvex.loss_traits import declares, traits
from fedconvex.models import LinearModel
from fedconvex.report import comparison, per_client_metrics

LOSSES = [Poisson(), Huber(), Quantile(), Probit()]


def name(loss):
    return type(loss).__name__


def problem_of(loss, l2, n=24, d=3, seed=0):
    """Rows with a column of ones, and labels as the loss wants them, with outliers for Huber."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(n, d - 1)), np.ones(n)])
    z = X @ rng.normal(size=d) * 0.7
    y = {
        "Poisson": lambda: rng.poisson(np.exp(z)).astype(float),
        "Huber": lambda: z + rng.standard_t(1.5, n),
        "Quantile": lambda: z + rng.normal(size=n),
        "Probit": lambda: np.where(z + rng.normal(size=n) > 0.0, 1.0, -1.0),
    }[name(loss)]()
    return Problem(Federation.from_arrays(X, y, np.arange(n) % 3), loss, l2, "uniform")


def value_in_mpmath(loss, z, y):
    """The losses by their definitions, written apart from the ones under test."""
    if isinstance(loss, Poisson):
        return mp.e**z - y * z
    if isinstance(loss, Huber):
        r = abs(y - z)
        return r**2 / 2 if r < 1 else r - mp.mpf(1) / 2
    if isinstance(loss, Quantile):
        r, t, h = y - z, mp.mpf(loss.t), mp.mpf(loss.h)
        return h * mp.log(mp.e ** (t * r / h) + mp.e ** ((t - 1) * r / h))
    return -mp.log(mp.ncdf(y * z))


def minimum_in_mpmath(problem, start):
    """The least value in 40 digits: Newton's method on numerical derivatives of the definition."""
    fed, weights = problem.federation, np.repeat(problem.row_weights, problem.federation.sizes)
    rows = [[mp.mpf(v) for v in x] for x in fed.X.tolist()]

    def F(*w):
        loss = mp.fsum(
            mp.mpf(p) * value_in_mpmath(problem.loss, mp.fdot(x, w), mp.mpf(y))
            for p, x, y in zip(weights.tolist(), rows, fed.y.tolist(), strict=True)
        )
        return loss + mp.mpf(problem.l2) / 2 * mp.fdot(w, w)

    def slopes(*w):
        return [mp.diff(F, w, tuple(int(i == j) for i in range(fed.d))) for j in range(fed.d)]

    with mp.workdps(40):
        w = mp.findroot(slopes, tuple(mp.mpf(v) for v in start.tolist()), tol=1e-25)
        return float(F(*w)), np.array([float(v) for v in w])


@pytest.mark.parametrize("loss", LOSSES, ids=name)
@pytest.mark.parametrize("l2", [1e-3, 0.0])
def test_solutions_are_those_of_mpmath(loss, l2):
    """The certificate holds the true minimum between its bounds; with l2 = 1e-3 they are 1e-9 apart at most."""
    problem = problem_of(loss, l2)
    found = problem.solve()
    least, w = minimum_in_mpmath(problem, found.w)
    assert found.value == pytest.approx(least, rel=1e-13, abs=1e-13)
    np.testing.assert_allclose(found.w, w, rtol=1e-7, atol=1e-8)
    assert found.lower <= least + 1e-15 * abs(least)
    assert least <= found.value + 1e-15 * abs(found.value)
    if l2 > 0.0:
        assert found.gap <= 1e-9
        assert "strong convexity" in found.certificate
    elif math.isfinite(traits(loss).self_concordance):
        assert found.gap <= 1e-9
        assert "self-concordance" in found.certificate
    else:
        assert found.certificate == "F >= 0 (no minimiser is known to exist)"
        assert found.lower == 0.0


@pytest.mark.parametrize("loss", LOSSES, ids=name)
def test_gaps_along_a_run_are_certified(loss):
    problem = problem_of(loss, 1e-3)
    result = run(FedAvg(step_size=0.02, local_steps=5), problem, rounds=10, seed=0)
    suboptimal = result.trace.value - problem.solve().value
    assert (result.trace.gap >= suboptimal - 1e-14).all()
    assert result.trace.gap == pytest.approx(suboptimal, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss", LOSSES, ids=name)
def test_larger_problems_are_certified(loss, seed):
    assert problem_of(loss, 1e-3, n=500, d=12, seed=seed).solve().gap <= 1e-9


@pytest.mark.parametrize("loss", LOSSES, ids=name)
def test_minimax_solutions_are_certified(loss):
    problem = problem_of(loss, 1e-3, n=60)
    best = problem.solve_minimax()
    assert best.gap <= 1e-9
    assert best.value == pytest.approx(problem.client_values(best.w).max(), rel=1e-12)


def test_each_is_defined_in_forty_lines():
    helpers = sum(
        len(inspect.getsource(getattr(f, "py_func", f)).splitlines()) for f in (outside._tail, outside._hazard)
    )
    for loss in LOSSES:
        lines = len(inspect.getsource(type(loss)).splitlines())
        assert lines + (helpers if isinstance(loss, Probit) else 0) <= 40


# ---------------------------------------------------------------- what is not declared is not claimed


class Quartic(NamedTuple):
    """(z - y)^4/4 less 100: below zero, and nothing is declared."""

    def value(self, z, y):
        return 0.25 * (z - y) ** 4 - 100.0

    def slope(self, z, y):
        return (z - y) ** 3

    def curvature(self, z, y):
        return 3.0 * (z - y) ** 2


def rows(y, l2=0.0, loss=None):
    X = np.array([[1.0, 0.5], [0.5, -1.0], [1.0, 2.0], [-1.0, 0.3]])
    return Problem(Federation.from_arrays(X, np.array(y), [0, 0, 1, 1]), Quartic() if loss is None else loss, l2)


def test_without_a_lower_bound_nothing_is_at_least_zero():
    problem = rows([0.0, 1.0, 2.0, -1.0])
    found = problem.solve()
    assert found.value < -99.0
    assert found.gap == math.inf
    assert found.certificate == "none: l2 = 0, the loss declares neither self_concordance nor a lower bound"
    assert problem.measure(found.w).gap == math.inf
    found = rows([0.0, 1.0, 2.0, -1.0], l2=1e-3).solve()
    assert found.gap <= 1e-9
    assert found.lower < -99.0


def test_poisson_without_a_minimum_says_so():
    """All counts zero: F -> 0 as scores -> -inf, and no lower bound is declared."""
    X = np.array([[1.0], [2.0], [1.5]])
    found = Problem(Federation.from_arrays(X, np.zeros(3), [0, 0, 1]), Poisson()).solve()
    assert found.gap == math.inf
    assert found.certificate == "none: l2 = 0, no minimiser is known to exist, and the loss declares no lower bound"
    assert not found.attained


def test_a_declared_lower_bound_is_used():
    class Bounded(Quartic):
        lower_bound = -100.0

    problem = rows([0.0, 1.0, 2.0, -1.0], loss=Bounded())
    found = problem.solve()
    assert found.lower == -100.0
    assert found.certificate == "F >= -100 (no minimiser is known to exist)"
    assert problem.measure(np.zeros(2)).gap == pytest.approx(problem.value(np.zeros(2)) + 100.0)


def test_value_and_slope_are_enough_for_a_gap_with_l2():
    class Bare(NamedTuple):
        def value(self, z, y):
            return abs(z - y)

        def slope(self, z, y):
            return 1.0 if z > y else -1.0

    problem = rows([0.0, 1.0, 2.0, -1.0], l2=0.5, loss=Bare())
    with pytest.raises(TypeError, match="curvature"):
        problem.solve()
    W = np.random.default_rng(0).normal(size=(200, 2))
    values, gaps = problem.measure(W)
    assert (values - gaps <= values.min()).all()  # subgradients bound strongly convex functions
    assert np.isfinite(gaps).all()
    assert problem.predict(W[0]).tolist() == problem.scores(W[0]).tolist()


def test_defaults_and_wrong_declarations():
    kind = traits(Quartic())
    assert (kind.task, kind.outputs, kind.several, kind.curved, kind.kinked) == ("regression", 1, False, True, False)
    assert (kind.lower_bound, kind.smoothness, kind.lipschitz) == (-math.inf, math.inf, math.inf)
    assert kind.slope_range(np.zeros(2))[0].tolist() == [-math.inf, -math.inf]
    with pytest.raises(ValueError, match=r"trait of a loss must be one of 'task', .*; got smooth"):
        declares(smooth=True)
    with pytest.raises(ValueError, match=r"task must be one of 'regression', 'classification'"):
        declares(task="ranking")


# ---------------------------------------------------------------- predictions and metrics


def test_predictions_are_those_of_the_loss():
    for loss in LOSSES:
        problem = problem_of(loss, 1e-3)
        w = problem.solve().w
        z = problem.federation.X @ w
        want = {"Poisson": np.exp(z), "Probit": np.where(z >= 0.0, 1.0, -1.0)}.get(name(loss), z)
        np.testing.assert_allclose(problem.predict(w), want, rtol=1e-14)


def test_regressions_are_measured_by_rmse_and_r2():
    for loss in (Poisson(), Huber(), Quantile()):
        problem = problem_of(loss, 1e-3)
        w, y = problem.solve().w, problem.federation.y
        found = per_client_metrics(problem, w)
        assert "accuracy" not in found
        mine = slice(*problem.federation.ptr[:2])
        error = np.mean((problem.predict(w)[mine] - y[mine]) ** 2)
        assert found["rmse"][0] == pytest.approx(math.sqrt(error))
        assert found["r2"][0] == pytest.approx(1.0 - error / y[mine].var())
        assert "rmse" in comparison(problem, {"w": w})[0]


def test_probit_is_measured_by_accuracy_and_has_probabilities():
    problem = problem_of(Probit(), 1e-3)
    w = problem.solve().w
    found = per_client_metrics(problem, w)
    assert "rmse" not in found
    mine = slice(*problem.federation.ptr[:2])
    assert found["accuracy"][0] == np.mean((problem.federation.X[mine] @ w >= 0) == (problem.federation.y[mine] > 0))
    np.testing.assert_allclose(problem.probabilities_of(w), norm.cdf(problem.federation.X @ w), rtol=1e-14)
    with pytest.raises(TypeError, match="declare probabilities"):
        problem_of(Huber(), 1e-3).probabilities_of(w)


def test_probabilities_of_the_losses_of_the_package():
    rng = np.random.default_rng(1)
    z, Z = rng.normal(size=50) * 5, rng.normal(size=(50, 3)) * 5
    np.testing.assert_allclose(Logistic().probabilities(z), [1 / (1 + math.exp(-v)) for v in z], rtol=1e-13)
    p = Softmax(3).probabilities(Z)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-15)
    np.testing.assert_allclose(p, [np.exp(r) / np.exp(r).sum() for r in Z], rtol=1e-13)


# ---------------------------------------------------------------- the command line


@pytest.mark.parametrize("loss", LOSSES, ids=name)
def test_the_command_line_takes_an_import_path(loss, tmp_path, capsys):
    problem = problem_of(loss, 0.0, n=60, d=3)
    fed, file = problem.federation, tmp_path / "data.csv"
    who = np.repeat(fed.labels, fed.sizes)
    table = ["a,b,y,who"] + [
        f"{x[0]!r},{x[1]!r},{y!r},{k}" for x, y, k in zip(fed.X.tolist(), fed.y.tolist(), who, strict=True)
    ]
    file.write_text("\n".join(table) + "\n")
    path = f"losses_from_outside:{name(loss)}"
    options = ["--loss", path, "--l2", "0.01", "--step-size", "0.1", "--no-standardize", "--weights", "uniform"]
    given = ["solve", str(file), "--target", "y", "--client", "who", *options, "--rounds", "500", "--tol", "1e-6"]
    assert main([*given, "--json", "--save", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    best = Problem(fed, loss, 0.01, "uniform", intercept=True).solve()
    assert found["loss"] == repr(loss)
    assert found["objective"] - best.value == pytest.approx(found["gap"], abs=1e-9)
    model = LinearModel.load(tmp_path)
    X = fed.X[:, :2]
    if isinstance(loss, Probit):
        assert set(model.predict(X).tolist()) == {-1, 1}
    else:
        np.testing.assert_allclose(
            model.predict(X, loss=loss), traits(loss).predict(model.decision_function(X)), rtol=1e-14
        )


@pytest.mark.parametrize(
    "wrong", ["nowhere:Loss", "losses_from_outside:Loss", "losses_from_outside:declares", "loss", "a:b:c"]
)
def test_wrong_import_paths_are_refused(wrong, capsys):
    assert main(["solve", "--loss", wrong]) == 2
    assert "--loss" in capsys.readouterr().err
