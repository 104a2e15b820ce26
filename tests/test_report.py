"""Tables, metrics, comparisons, outlooks, plots and saved models."""

import inspect
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import fedconvex.report
from fedconvex import FedAvg, Federation, GradientDescent, Logistic, Problem, Softmax, Squared, Status, run
from fedconvex.datasets import linear_federation, logistic_federation
from fedconvex.driver import Result, Trace
from fedconvex.models import LinearModel
from fedconvex.report import (
    comparison,
    convergence_plot,
    format_table,
    outlook,
    per_client_metrics,
    write_trace,
)


@pytest.fixture(scope="module")
def problem():
    return Problem(linear_federation(model_shift=1.0, seed=3).federation, Squared(), l2=0.01)


@pytest.fixture(scope="module")
def result(problem):
    return run(FedAvg(step_size=0.05, local_steps=2), problem, rounds=30)


# ---------------------------------------------------------------- tables


def test_format_table_aligns_and_shows_missing_numbers():
    text = format_table(["name", "n"], [["a", 1], ["long name", 12345], ["c", None]], indent="> ")
    assert text.splitlines() == [
        "> name            n",
        "> a               1",
        "> long name  12,345",
        "> c               -",
    ]
    assert format_table(["x"], []) == "x"


def test_format_table_refuses_ragged_rows():
    with pytest.raises(ValueError, match=r"have 2 cells each; got 1 in \['a'\]"):
        format_table(["a", "b"], [["a"]])


def test_metrics_of_regression_by_hand():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(9, 2)), rng.normal(size=9)
    owner = np.repeat([2, 5], [4, 5])
    w = np.array([0.3, -0.7])
    found = per_client_metrics(Problem(Federation.from_arrays(X, y, owner), Squared(), l2=0.5), w, target_scale=3.0)
    assert found["client"].tolist() == [2, 5]
    assert found["rows"].tolist() == [4, 5]
    for k, label in enumerate((2, 5)):
        mine = owner == label
        e = y[mine] - X[mine] @ w
        assert found["loss"][k] == pytest.approx(0.5 * np.mean(e**2), rel=1e-12)
        assert found["rmse"][k] == pytest.approx(3.0 * np.sqrt(np.mean(e**2)), rel=1e-12)
        assert found["r2"][k] == pytest.approx(1 - np.sum(e**2) / np.sum((y[mine] - y[mine].mean()) ** 2), rel=1e-12)


def test_r2_of_a_client_with_equal_targets_is_nan():
    fed = Federation.from_clients([(np.ones((2, 1)), [1.0, 1.0]), (np.ones((2, 1)), [0.0, 1.0])])
    assert np.isnan(per_client_metrics(Problem(fed, Squared()), np.zeros(1))["r2"]).tolist() == [True, False]


def test_accuracy_of_classifications_by_hand():
    X = np.array([[1.0], [-1.0], [2.0], [-2.0]])
    fed = Federation.from_arrays(X, [1.0, 1.0, 1.0, -1.0], [0, 0, 1, 1])
    assert per_client_metrics(Problem(fed, Logistic()), np.array([1.0]))["accuracy"].tolist() == [0.5, 1.0]
    fed = Federation.from_arrays(X, [0.0, 1.0, 0.0, 2.0], [0, 0, 1, 1])
    w = np.array([[1.0], [-1.0], [0.0]])
    assert per_client_metrics(Problem(fed, Softmax(3)), w)["accuracy"].tolist() == [1.0, 0.5]


def test_metrics_take_one_model_only(problem):
    with pytest.raises(ValueError, match="be one model of shape"):
        per_client_metrics(problem, np.zeros((3, problem.size)))


def test_comparison_agrees_with_the_problem_and_ranks_the_pooled_optimum_first(problem):
    alone = np.array([problem.client(k).solve().w for k in range(problem.federation.K)])
    rows = comparison(problem, {"zero": np.zeros(problem.size), "pooled": problem.solve().w, "alone": alone})
    names = [row["model"] for row in rows]
    K = problem.federation.K
    assert names == ["zero", "pooled", f"alone, mean of {K}", f"alone, worst of {K}"]
    assert min(rows, key=lambda row: row["objective"])["model"] == "pooled"
    assert rows[1]["objective"] == pytest.approx(problem.solve().value, rel=1e-12)
    worst = max(alone, key=lambda w: problem.value(w) - 0.5 * problem.l2 * float(w @ w))
    assert rows[3]["objective"] == pytest.approx(float(problem.value(worst)), rel=1e-12)
    assert rows[0]["loss"] == pytest.approx(float(problem.value(np.zeros(problem.size))), rel=1e-12)
    assert rows[0]["rmse"] == pytest.approx(np.sqrt(np.mean(problem.federation.y**2)), rel=1e-12)


def test_comparison_measures_other_rows_if_asked():
    train, test = logistic_federation(seed=0).federation.split(0.3)
    problem, other = Problem(train, Logistic(), l2=0.1), Problem(test, Logistic(), l2=0.1)
    w = problem.solve().w
    row = comparison(problem, {"w": w}, measured=other)[0]
    assert row["objective"] == pytest.approx(problem.solve().value)
    assert row["loss"] == pytest.approx(float(other.value(w)) - 0.05 * float(w @ w))


def test_trace_file_holds_the_trace_to_the_last_bit(result, tmp_path):
    write_trace(result, tmp_path / "trace.csv")
    lines = (tmp_path / "trace.csv").read_text().splitlines()
    assert lines[0].split(",") == list(result.trace)
    cells = np.array([[float(c) for c in line.split(",")] for line in lines[1:]])
    for j, name in enumerate(result.trace):
        assert np.array_equal(cells[:, j], result.trace[name])
    assert [p.name for p in tmp_path.iterdir()] == ["trace.csv"]


def test_trace_file_of_several_trajectories(problem, tmp_path):
    several = run(FedAvg(step_size=0.05), problem, rounds=2, trajectories=2)
    write_trace(several, tmp_path / "t.csv")
    header = (tmp_path / "t.csv").read_text().splitlines()[0]
    assert header == "round,value_0,value_1,gap_0,gap_1,seconds,floats_down,floats_up"


# ---------------------------------------------------------------- outlook


def _ended(gaps, status=Status.ROUND_LIMIT):
    gaps = np.asarray(gaps, dtype=float)
    t = np.arange(gaps.size)
    trace = Trace(round=t, value=gaps, gap=gaps, seconds=t * 1.0, floats_down=t, floats_up=t)
    return Result(None, status, int(t[-1]), float(gaps[-1]), trace, np.array([-1]))


def test_outlook_extrapolates_a_linear_rate():
    # gap 10^(-t/100): 1e-2 after 200 rounds, so 1e-6 takes 400 more
    text = outlook(_ended(10.0 ** (-np.arange(201) / 100)), 1e-6)
    assert "about 400 more rounds" in text or "about 410 more rounds" in text  # rounded up


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"drifting": True}, "client drift"),
        ({"noisy": True}, "mini-batches or sampled clients"),
        ({"noisy": True, "drifting": True}, "client drift"),
        ({}, "hardly falls"),
    ],
)
def test_outlook_explains_a_plateau(settings, words):
    assert words in outlook(_ended(np.maximum(0.9 ** np.arange(200), 1e-3)), 1e-6, **settings)


def test_outlook_of_other_ends():
    assert "worse than the start" in outlook(_ended([1.0, 2.0, 3.0]), 1e-6)
    assert "Nothing certifies" in outlook(_ended([np.inf, np.inf]), 1e-6)
    assert "certificate holds" in outlook(_ended([1.0, 1e-7], Status.CONVERGED), 1e-6, noisy=True)
    assert "round was exact" in outlook(_ended([1.0, 1e-7], Status.CONVERGED), 1e-6)
    assert "smaller step size" in outlook(_ended([1.0, np.inf], Status.DIVERGED), 1e-6)
    assert "still falling" in outlook(_ended([1.0, 0.5]), 0.0)
    assert "still falling" in outlook(_ended([1.0, 0.5]), 1e-6)


# ---------------------------------------------------------------- plots


@pytest.mark.slow
def test_plot_has_units_log_scale_and_all_curves(problem, result, tmp_path):
    runs = {"FedAvg": result, "GD": run(GradientDescent(step_size=0.05), problem, rounds=30)}
    figure = convergence_plot(runs, tmp_path / "c.png", problem=problem, title="two")
    left, right, time = figure.axes
    assert left.get_yscale() == "log"
    assert left.get_ylabel() == "distance to the optimum (units of F)"
    assert "rounds" in left.get_xlabel()
    assert "8 bytes each" in right.get_xlabel()
    assert len(left.lines) == 4
    assert len(right.lines) == 2  # gradient descent sends nothing
    assert right.lines[0].get_xdata()[-1] == result.trace.floats_up[-1] + result.trace.floats_down[-1]
    assert time.get_xlabel() == "seconds"
    assert time.lines[0].get_xdata()[-1] == result.trace.seconds[-1]
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["c.png"]


def test_plot_of_several_trajectories_into_given_axes(problem):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    several = run(FedAvg(step_size=0.05, batch_size=2), problem, rounds=5, trajectories=9)
    figure = convergence_plot({"FedAvg": several}, problem=problem, axes=axes)
    assert figure is axes.figure
    middle = np.sort(several.trace.gap, axis=1)[:, 4]
    assert np.allclose(axes.lines[1].get_ydata(), middle)


def test_plot_leaves_out_what_has_no_logarithm(problem, result):
    best = problem.solve()
    done = run(GradientDescent(step_size=0.05), problem, rounds=1, start=best.w)
    figure = convergence_plot({"GD": done}, problem=problem)
    assert figure.axes[0].get_yscale() == "log"


@pytest.mark.parametrize("path", ["missing/c.png", "c.xyz", "."])
def test_plot_refuses_bad_paths(problem, result, tmp_path, path):
    with pytest.raises(ValueError, match="figure: path must"):
        convergence_plot({"a": result}, tmp_path / path, problem=problem)


def test_plot_refuses_other_things(problem, result):
    with pytest.raises(ValueError, match="nonempty mapping"):
        convergence_plot({})
    with pytest.raises(TypeError, match=r"results\['a'\] must be a Result"):
        convergence_plot({"a": 3})
    with pytest.raises(ValueError, match=r"got Result: pass \{'a name': result\}"):
        convergence_plot(result)
    with pytest.raises(TypeError, match="figure: path must be the name of a file; got Problem"):
        convergence_plot({"a": result}, problem)
    with pytest.raises(TypeError, match="problem must be a problem; got int"):
        convergence_plot({"a": result}, problem=3)
    blind = replace(result, trace=Trace(result.trace | {"gap": np.full_like(result.trace.gap, np.inf)}))
    with pytest.raises(ValueError, match="problem must be given where no run has a certified gap"):
        convergence_plot({"a": blind})


@pytest.mark.slow
def test_plot_without_the_problem_compares_with_the_best_lower_bound(problem, result, tmp_path):
    """A dict of results and a path are enough; the curve lies above the true distance, and below the gap."""
    short = run(GradientDescent(step_size=0.05), problem, rounds=3)
    figure = convergence_plot({"long": result, "short": short}, tmp_path / "c.png")
    lower = max((r.trace.value - r.trace.gap).max() for r in (result, short))
    line = figure.axes[0].lines[2]
    assert line.get_label() == "short: objective − certified lower bound"
    np.testing.assert_allclose(line.get_ydata(), short.trace.value - lower)
    assert (short.trace.value - lower >= short.trace.value - problem.solve().value).all()


def test_all_plots_take_what_is_drawn_then_a_path():
    """One order of arguments: what is drawn, the path, and the rest by name."""
    plots = [getattr(fedconvex.report, name) for name in fedconvex.report.__all__ if name.endswith("_plot")]
    assert len(plots) >= 4
    for plot in plots:
        first, second, *rest = inspect.signature(plot).parameters.values()
        assert second.name == "path", plot
        assert first.default is first.empty
        assert all(p.kind is p.KEYWORD_ONLY for p in rest), plot


def test_missing_matplotlib_is_explained(problem, result, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ImportError, match=r'pip install "fedconvex\[report\]"'):
        convergence_plot({"a": result}, problem=problem)


def test_report_does_not_import_matplotlib():
    code = "import sys, fedconvex.report; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---------------------------------------------------------------- saved models


@pytest.mark.parametrize("outputs", [None, 3])
@pytest.mark.parametrize("intercept", [True, False])
def test_standardised_weights_give_the_same_scores_in_raw_units(outputs, intercept):
    rng = np.random.default_rng(1)
    X, center, scale = rng.normal(5, 2, (20, 4)), rng.normal(size=4), rng.uniform(0.5, 2, 4)
    w = rng.normal(size=(4 + intercept,) if outputs is None else (outputs, 4 + intercept))
    classes = ("a", "b") if outputs is None else ("a", "b", "c")
    model = LinearModel.from_standardised(
        w, center, scale, intercept=intercept, classes=classes, feature_names=tuple("wxyz")
    )
    Z = (X - center) / scale
    expected = (np.hstack([Z, np.ones((20, 1))]) if intercept else Z) @ w.T
    assert np.allclose(model.decision_function(X), expected, rtol=1e-12, atol=1e-12)
    assert np.allclose(model.decision_function(sp.csr_array(X)), expected, rtol=1e-12, atol=1e-12)


def test_saved_model_returns_bit_for_bit(tmp_path):
    model = LinearModel(np.array([0.1, -1e-300]), np.array(1 / 3), ("no", "yes"), ("a b", "ü"), {"l2": 0.1})
    model.save(tmp_path, center=np.zeros(2))
    back = LinearModel.load(tmp_path)
    assert np.array_equal(back.coef, model.coef)
    assert back.intercept == model.intercept
    assert (back.classes, back.feature_names, back.about["l2"]) == (model.classes, model.feature_names, 0.1)
    X = np.random.default_rng(0).normal(size=(50, 2))
    assert np.array_equal(back.predict(X), model.predict(X))
    with np.load(tmp_path / "model.npz", allow_pickle=False) as stored:
        assert sorted(stored.files) == ["center", "coef", "intercept"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "model.npz").unlink(), "must hold model.npz"),
        (
            lambda f: (f / "model.npz").write_bytes((f / "model.npz").read_bytes()[:100]),
            "must hold the float64 arrays coef",
        ),
        (lambda f: np.savez(f / "model.npz", coef=np.array([{}], dtype=object), intercept=0.0), "without pickle"),
        (lambda f: np.savez(f / "model.npz", intercept=0.0), "must hold the float64 arrays coef"),
        (lambda f: np.savez(f / "model.npz", coef=np.array([np.nan, 1.0]), intercept=0.0), "be finite"),
        (lambda f: np.savez(f / "model.npz", coef=np.ones(3), intercept=0.0), "feature_names must be 3 names"),
        (lambda f: (f / "model.json").write_text("{"), "be complete JSON"),
        (lambda f: (f / "model.json").write_text(json.dumps({"format": "other"})), "have the format"),
        (lambda f: (f / "model.json").write_text("[]"), "have the format"),
    ],
)
def test_damaged_models_are_refused(tmp_path, change, message):
    LinearModel(np.ones(2), np.array(0.0), None, ("a", "b")).save(tmp_path)
    change(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        LinearModel.load(tmp_path)


def test_model_refuses_what_does_not_fit():
    names = ("a", "b")
    for coef, intercept, classes, message in [
        (np.ones(2), np.zeros(2), None, r"intercept must have shape \(\)"),
        (np.ones((3, 2)), np.zeros(3), None, "classes must be 3 labels"),
        (np.ones(2), np.array(0.0), ("a",), "classes must be 2 labels"),
        (np.ones((2, 2, 2)), np.array(0.0), None, "coef must have shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            LinearModel(coef, intercept, classes, names)
    with pytest.raises(ValueError, match="have 2 columns"):
        LinearModel(np.ones(2), np.array(0.0), None, names).predict(np.ones((3, 5)))


def test_the_median_of_an_even_number_is_between_the_middle_two():
    from matplotlib.figure import Figure

    from fedconvex.report.plots import _curve

    axis = Figure().subplots()
    _curve(axis, np.arange(2), np.array([[1.0, 2.0, 4.0, 8.0], [1.0, 2.0, np.inf, np.inf]]), {"color": "k"})
    assert axis.lines[0].get_ydata()[0] == 3.0
    assert np.isnan(axis.lines[0].get_ydata()[1])  # half of them diverged
