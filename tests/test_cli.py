"""The command line, in process and as a process."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.sparse as sp

import fedconvex
from fedconvex import FedAvg, Federation, Logistic, Problem, Squared, run
from fedconvex._progress import progress_line
from fedconvex.cli import main
from fedconvex.cli.arguments import PARTITIONS
from fedconvex.constants.default_steps import top_eigenvalue_bound
from fedconvex.datasets import load_bundled, partition_dirichlet
from fedconvex.datasets.bundled import BUNDLED
from fedconvex.models import LinearModel
from fedconvex.registry import losses
from fedconvex.registry import methods as registered
from fedconvex.verify import checks

FAST = ["--rounds", "30"]

pytestmark = pytest.mark.compiled(only="whole commands take minutes of pure Python")


@pytest.fixture(scope="module")
def rows():
    """Two informative features, a text column, an owner, a region and three kinds of target."""
    rng = np.random.default_rng(7)
    n = 90
    X = rng.normal(size=(n, 2)) * [1.0, 20.0] + [0.0, 100.0]
    z = X[:, 0] - (X[:, 1] - 100) / 20 + rng.normal(size=n)
    return {
        "dose": X[:, 0],
        "age": X[:, 1],
        "sex": rng.choice(["f", "m"], n),
        "ward": rng.choice(["north", "south", "west"], n),
        "region": rng.choice([1, 2], n),
        "ill": np.where(z > 0, "yes", "no"),
        "grade": np.digitize(z, [-1, 1]),
        "stay": 10 + 3 * z,
    }


def _csv(path, rows, names):
    lines = [",".join(names), *(",".join(str(rows[c][i]) for c in names) for i in range(len(rows["dose"])))]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def table(tmp_path, rows):
    return _csv(tmp_path / "wards.csv", rows, ["dose", "age", "sex", "ward", "ill"])


def _json(capsys, *argv, status=0):
    assert main([*map(str, argv), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def _fails(capsys, *argv):
    assert main(list(map(str, argv))) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fedconvex: error: ")
    assert captured.err.count("\n") == 1 or "a decision" in captured.err  # columns are listed
    assert "Traceback" not in captured.err
    return captured.err


# ---------------------------------------------------------------- solve


@pytest.mark.slow
def test_default_run_converges_and_says_so(capsys):
    assert main(["solve"]) == 0
    out = capsys.readouterr().out
    assert "CONVERGED after" in out
    for word in ("10 with", "zeta_star", "Gamma", "kappa", "certified", "floats up", "Worst client:", "pooled optimum"):
        assert word in out
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.slow
def test_default_run_is_what_the_library_computes(capsys):
    facts = _json(capsys, "solve")
    X, y, _ = load_bundled("breast_cancer")
    fed = Federation.from_arrays(X, y, partition_dirichlet(y, 10, 0.5, seed=0)).with_intercept()
    problem = Problem(fed, Logistic(), l2=0.01, intercept=True)
    L = 0.25 * np.linalg.eigvalsh(fed.X.T @ fed.X / fed.n)[-1] + 0.01
    result = run(FedAvg(step_size=1 / L), problem, rounds=2000, tol=1e-6)
    assert facts["status"] == "CONVERGED"
    assert facts["rounds"] == result.rounds
    assert facts["objective"] == pytest.approx(float(result.trace.value[-1]), rel=1e-9)
    assert 0.0 < facts["gap"] <= 1e-6
    assert facts["constants"]["L"]["value"] == pytest.approx(problem.constants().L)
    assert facts["constants"]["Gamma"]["how"] == problem.constants().how["Gamma"]
    assert facts["floats_up"] == result.rounds * 10 * 31
    federated, pooled, mean, worst = facts["models"]
    assert pooled["objective"] <= federated["objective"] <= pooled["objective"] + 1e-6
    assert worst["loss"] >= mean["loss"] >= pooled["loss"]


@pytest.mark.parametrize(
    ("target", "loss", "score"),
    [("ill", "Logistic()", "accuracy"), ("grade", "Softmax(n_classes=3)", "accuracy"), ("stay", "Squared()", "r2")],
)
@pytest.mark.slow
def test_loss_follows_the_target(capsys, tmp_path, rows, target, loss, score):
    file = _csv(tmp_path / "a.csv", rows, ["dose", "age", "sex", "ward", target])
    facts = _json(capsys, "solve", file, "--target", target, "--client", "ward", "--method", "gd")
    assert facts["loss"] == loss
    assert facts["features"] == 4  # dose, age, sex=f, sex=m
    assert facts["per_client"]["client"] == ["north", "south", "west"]
    assert score in facts["per_client"]
    assert facts["status"] == "CONVERGED"


@pytest.mark.slow
def test_all_formats_give_the_same_answer(capsys, tmp_path, rows):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    names = ["dose", "age", "ward", "stay"]
    csv = _csv(tmp_path / "a.csv", rows, names)
    pq.write_table(pa.table({c: rows[c] for c in names}), tmp_path / "a.parquet")
    X = np.column_stack([rows["dose"], rows["age"]])
    np.savez(tmp_path / "a.npz", X=X, y=rows["stay"], clients=rows["ward"])
    columns = ["--target", "stay", "--client", "ward"]
    found = [
        _json(capsys, "solve", csv, *columns, *FAST),
        _json(capsys, "solve", tmp_path / "a.parquet", *columns, *FAST),
        _json(capsys, "solve", tmp_path / "a.npz", *FAST),
    ]
    assert len({f["objective"] for f in found}) == 1
    assert found[0]["per_client"] == found[1]["per_client"] == found[2]["per_client"]


@pytest.mark.slow
def test_svmlight_stays_sparse(capsys, tmp_path):
    from sklearn.datasets import dump_svmlight_file

    rng = np.random.default_rng(0)
    X = sp.random_array((80, 30), density=0.1, random_state=rng, format="csr")
    dump_svmlight_file(X, np.where(np.arange(80) % 2, 1, -1), str(tmp_path / "a.svm"), zero_based=False)
    facts = _json(capsys, "solve", tmp_path / "a.svm", "--clients", 4, "--partition", "iid", *FAST)
    assert (facts["clients"], facts["rows"], facts["features"]) == (4, 80, 30)
    assert np.isfinite(facts["gap"])


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "dirichlet:0.1", "shards:3", "similarity:50"])
def test_partitions(capsys, partition):
    facts = _json(capsys, "solve", "iris", "--clients", 5, "--partition", partition, "--method", "gd", *FAST)
    assert facts["clients"] == 5
    assert sum(facts["per_client"]["rows"]) == 150


@pytest.mark.parametrize(
    ("loss", "method"),
    [
        ("softmax", "fedavg"),
        ("hinge", "fedsgd"),
        *(
            pytest.param(loss, method, marks=pytest.mark.slow)
            for loss in ("hinge", "smoothed-hinge", "exponential", "squared", "softmax")
            for method in ("fedavg", "fedsgd")
            if (loss, method) not in (("softmax", "fedavg"), ("hinge", "fedsgd"))
        ),
    ],
)
@pytest.mark.slow
def test_other_losses_make_progress_with_default_steps(capsys, loss, method):
    facts = _json(capsys, "solve", "--loss", loss, "--method", method, "--rounds", 200)
    start = {"softmax": np.log(2), "squared": 0.5}.get(loss, 1.0)
    assert facts["objective"] < 0.6 * start
    assert facts["status"] in ("CONVERGED", "ROUND_LIMIT")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["--local-steps", "10", "--rounds", "2000"], "client drift"),
        (["--epochs", "1", "--batch-size", "8", "--participation", "0.5", "--rounds", "800"], "noise"),
        (["--method", "sgd"], "mini-batches"),
        (["--l2", "0.001", "--rounds", "200"], "more rounds"),
        (["--l2", "0", "--rounds", "50"], "separable"),
        (["--loss", "hinge", "--rounds", "50"], "kink"),
    ],
)
@pytest.mark.slow
def test_round_limit_is_explained(capsys, settings, words):
    facts = _json(capsys, "solve", *settings)
    assert facts["status"] == "ROUND_LIMIT"
    assert words in facts["why"]


@pytest.mark.slow
def test_scaffold_has_no_drift_and_fedavg_says_so(capsys):
    settings = ["--local-steps", "10", "--participation", "0.5", "--rounds", "1000"]
    drift = _json(capsys, "solve", *settings)
    assert drift["status"] == "ROUND_LIMIT"
    assert drift["why"].endswith("--method scaffold has no drift.")
    exact = _json(capsys, "solve", "--method", "scaffold", *settings)
    assert exact["method"].startswith("SCAFFOLD, 10 local steps on all rows, 5 clients a round")
    assert exact["status"] == "CONVERGED"
    assert exact["gap"] <= 1e-6
    slow = _json(capsys, "solve", "--method", "scaffold", *settings[:-1], "100", "--l2", "1e-4")
    assert slow["status"] == "ROUND_LIMIT"
    assert "drift" not in slow["why"]
    assert "sampled" not in slow["why"]


@pytest.mark.parametrize("participation", [1, 2])
@pytest.mark.slow
def test_scaffold_with_one_large_client_and_few_sampled_ones(capsys, tmp_path, participation):
    """A sampled client weighs N p_k/S, which would be 8.9 here: the server's step makes up for it."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(10), [355, *[5] * 9])
    X = rng.normal(size=(400, 3))
    rows = np.column_stack([X, X @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=400), owner])
    np.savetxt(tmp_path / "v.csv", rows, delimiter=",", header="a,b,c,y,client", comments="")
    argv = ["solve", tmp_path / "v.csv", "--target", "y", "--client", "client", "--method", "scaffold"]
    facts = _json(capsys, *argv, "--local-steps", 10, "--participation", participation, "--rounds", 2000)
    assert facts["status"] == "CONVERGED"
    assert "server step" in facts["method"]


@pytest.mark.slow
def test_divergence_is_exit_status_3_with_advice(capsys, tmp_path):
    argv = ["solve", "diabetes", "--step-size", "5", "--save", str(tmp_path / "out")]
    assert main(argv) == 3
    captured = capsys.readouterr()
    assert "DIVERGED" in captured.out
    assert "smaller step size" in " ".join(captured.out.split())
    assert captured.err == ""
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["trace.csv"]
    assert _json(capsys, *argv, status=3)["per_client"] is None


@pytest.mark.slow
def test_settings_reach_the_method(capsys, table):
    argv = ["solve", table, "--target", "ill", "--client", "ward", "--epochs", "2", "--batch-size", "4"]
    facts = _json(capsys, *argv, "--participation", 2, "--step-size", 0.1, "--weights", "uniform", *FAST)
    assert facts["method"].startswith("FedAvg, 2 local epochs in batches of 4 rows, 2 clients a round, step size 0.1")
    assert facts["weights"] == "uniform"
    assert facts["floats_up"] == 30 * 2 * 5
    again = _json(
        capsys, *argv, "--participation", 2, "--step-size", 0.1, "--weights", "uniform", *FAST, "--threads", 2
    )
    assert again["objective"] == facts["objective"]
    other = _json(capsys, *argv, "--participation", 2, "--step-size", 0.1, "--weights", "uniform", *FAST, "--seed", 1)
    assert other["objective"] != facts["objective"]


@pytest.mark.slow
def test_held_out_rows_are_measured(capsys, table):
    facts = _json(capsys, "solve", table, "--target", "ill", "--client", "ward", "--test-size", 0.3, *FAST)
    assert facts["rows"] + facts["test_rows"] == 90
    assert sum(facts["per_client"]["rows"]) == facts["test_rows"]
    assert facts["measured_on"] == "held-out rows"


def test_domains_are_counted(capsys, tmp_path, rows):
    file = _csv(tmp_path / "a.csv", rows, ["dose", "age", "ward", "region", "ill"])
    facts = _json(capsys, "solve", file, "--target", "ill", "--client", "ward", "--domain", "region", *FAST)
    assert (facts["domains"], facts["features"]) == (2, 2)


def test_many_features_fall_back_to_bounds(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("fedconvex.cli.input_data.AFFORDABLE", 0.0)
    facts = _json(capsys, "solve", *FAST)
    assert set(facts["constants"]) == {"L", "L of F", "mu"}
    assert len(facts["models"]) == 2
    monkeypatch.undo()
    exact = _json(capsys, "solve", *FAST)
    for name in ("L", "L of F"):
        assert facts["constants"][name]["value"] >= exact["constants"][name]["value"]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_bound_of_the_largest_eigenvalue(sparse, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(30, 12)) * (rng.uniform(size=(30, 12)) < 0.3)
    X[:, 3] = 0.0
    p = rng.dirichlet(np.ones(30))
    bound = top_eigenvalue_bound(sp.csr_array(X) if sparse else X, np.sum(X**2, axis=1), p)
    exact = np.linalg.eigvalsh(X.T @ (p[:, None] * X))[-1]
    assert exact <= bound <= np.sum(p[:, None] * X**2) * (1 + 1e-9)
    X = np.abs(X)  # nonnegative data: the bound is nearly attained
    assert top_eigenvalue_bound(X, np.sum(X**2, axis=1), p) <= 1.01 * np.linalg.eigvalsh(X.T @ (p[:, None] * X))[-1]


# ---------------------------------------------------------------- saved models, plots, checkpoints


@pytest.mark.parametrize("flags", [[], ["--no-intercept"], ["--no-standardize", "--l2", "0.1"]])
@pytest.mark.parametrize("target", ["ill", "grade", "stay"])
def test_saved_model_predicts_in_the_units_of_the_file(capsys, tmp_path, rows, target, flags):
    file = _csv(tmp_path / "a.csv", rows, ["dose", "age", "sex", "ward", target])
    out = tmp_path / "out"
    argv = ["solve", file, "--target", target, "--client", "ward", "--method", "gd", "--save", out, *flags, *FAST]
    facts = _json(capsys, *argv)
    model = LinearModel.load(out)
    assert model.feature_names == ("dose", "age", "sex=f", "sex=m")
    X = np.column_stack([rows["dose"], rows["age"], rows["sex"] == "f", rows["sex"] == "m"]).astype(float)
    right = model.predict(X) == rows[target]
    sizes = np.array(facts["per_client"]["rows"])
    if target == "stay":
        rmse = np.sqrt(np.mean((model.predict(X) - rows["stay"]) ** 2))
        assert rmse == pytest.approx(np.sqrt(sizes @ np.square(facts["per_client"]["rmse"]) / 90), rel=1e-9)
    else:
        assert right.mean() == pytest.approx(sizes @ np.array(facts["per_client"]["accuracy"]) / 90, rel=1e-12)
    about = json.loads((out / "model.json").read_text())
    assert about["version"] == fedconvex.__version__
    assert about["gap"] == facts["gap"]
    assert about["certificate"]
    assert about["intercept"] == ("--no-intercept" not in flags)
    if flags == ["--no-intercept"]:
        assert not np.any(model.intercept)
    assert len((out / "trace.csv").read_text().splitlines()) == facts["rounds"] + 2


def test_saved_regression_matches_ridge_of_scikit_learn(capsys, tmp_path, rows):
    from sklearn.linear_model import Ridge

    file = _csv(tmp_path / "a.csv", rows, ["dose", "age", "ward", "stay"])
    argv = ["--l2", 0.1, "--tol", 1e-13, "--rounds", 5000, "--save", tmp_path]
    _json(capsys, "solve", file, "--target", "stay", "--client", "ward", *argv)
    model = LinearModel.load(tmp_path)
    X = np.column_stack([rows["dose"], rows["age"]])
    y, sd = rows["stay"], X.std(axis=0)
    # mean of (z - y)^2/2 + 0.05 ‖w‖² in standardised units is Ridge(alpha = 90 * 0.1); both centre, so no intercept
    ridge = Ridge(alpha=9.0).fit((X - X.mean(axis=0)) / sd, y)
    assert np.allclose(model.coef * sd, ridge.coef_, atol=1e-5)
    assert np.allclose(model.predict(X), ridge.predict((X - X.mean(axis=0)) / sd), atol=1e-5)


@pytest.mark.slow
def test_plot_is_drawn(capsys, tmp_path):
    assert main(["solve", "--plot", str(tmp_path / "c.png"), *FAST]) == 0
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert f"Wrote {tmp_path / 'c.png'}" in capsys.readouterr().out


@pytest.mark.slow
def test_checkpoint_resumes_to_the_same_bits(capsys, tmp_path):
    argv = ["solve", "--epochs", "1", "--batch-size", "8"]
    whole = _json(capsys, *argv, "--rounds", 40)
    checkpoint = ["--checkpoint", tmp_path / "run.npz"]
    _json(capsys, *argv, "--rounds", 15, *checkpoint)
    resumed = _json(capsys, *argv, "--rounds", 40, *checkpoint)
    assert resumed["objective"] == whole["objective"]
    assert "to resume this run" in _fails(capsys, *argv, "--seed", 4, *checkpoint)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["solve", "nowhere.csv"], "DATA must be a file, or one of breast_cancer"),
        (["solve", "."], "a folder"),
        (["solve", "--loss", "huber"], "--loss must be one of exponential, gamma, hinge"),
        (["solve", "--method", "magic"], f"--method must be one of {', '.join(registered())}"),
        (["solve", "--step-size", "-1"], "--step-size must be positive and finite; got -1.0"),
        (["solve", "--step-size", "nan"], "--step-size must be positive and finite; got nan"),
        (["solve", "--step-size", "big"], "--step-size must be a number; got 'big'"),
        (["solve", "--l2", "-0.1"], "--l2 must be nonnegative"),
        (["solve", "--rounds", "1.5"], "--rounds must be a whole number; got '1.5'"),
        (["solve", "--rounds", "0"], "--rounds must be at least 1"),
        (["solve", "--participation", "0"], "--participation must be at least 1"),
        (["solve", "--participation", "1.5"], "--participation must be a number in (0, 1]"),
        (["solve", "--participation", "11"], "at most the number of clients 10"),
        (["solve", "--local-steps", "2", "--epochs", "2"], "--local-steps or --epochs; got both"),
        (["solve", "--method", "gd", "--participation", "3"], "come without --participation"),
        (["solve", "--method", "fedsgd", "--epochs", "3"], "come without --epochs"),
        (["solve", "--method", "sgd", "--weights", "uniform"], "Problem.weights must be n_k/n"),
        (["solve", "--loss", "hinge", "--l2", "0"], "have --l2 above 0"),
        (["solve", "--clients", "1"], "at least two clients"),
        (["solve", "--clients", "1000"], "--clients must be at most"),
        (["solve", "--partition", "vertical"], "--partition must be one of iid"),
        (["solve", "--partition", "iid:3"], "come without a parameter"),
        (["solve", "--partition", "dirichlet:x"], "--partition dirichlet must be a number"),
        (["solve", "diabetes", "--partition", "dirichlet"], "have a target with classes"),
        (["solve", "diabetes", "--loss", "logistic"], "have a target with two classes"),
        (["solve", "digits", "--loss", "hinge"], "use --loss softmax"),
        (["solve", "--target", "x"], "come without column names"),
        (["solve", "--test-size", "1.0"], "--test-size must lie strictly between 0 and 1"),
        (["solve", "--plot", "missing/c.png"], "be a file in an existing folder"),
        (["solve", "--plot", "c.xyz"], "end in "),
        (["solve", "--checkpoint", "missing/run.npz"], "--checkpoint must be a file in an existing folder"),
        (["solve", "--colour"], "unrecognized arguments: --colour (see fedconvex solve --help)"),
        (["compare", "x.csv", "--target", "age", "at"], "unrecognized arguments: at: quote a name with spaces"),
        (
            ["analyse", "x.csv", "--client", "c", "--impute", "mode"],
            "--impute mode: rows with missing cells are left out",
        ),
        (["solve", "--rounds"], "expected one argument"),
        (["paint"], "invalid choice: 'paint'"),
        ([], "required: COMMAND"),
    ],
)
def test_bad_arguments(capsys, argv, message):
    assert message in _fails(capsys, *argv)


def test_batches_shrink_to_small_clients(capsys):
    """A tiny client stops nobody, and it is said."""
    facts = _json(capsys, "solve", "--batch-size", "20", "--local-steps", "2", *FAST)
    assert facts["method"].startswith("FedAvg, 2 local steps on 20 rows (all rows of ")
    facts = _json(capsys, "solve", "--batch-size", "2000", "--local-steps", "2", *FAST)
    assert "on 2000 rows (all rows of every client, as all are smaller)" in facts["method"]


def test_bad_tables(capsys, tmp_path, rows, table):
    def refuse(text, *argv, message):
        file = tmp_path / "bad.csv"
        file.write_text(text)
        assert message in _fails(capsys, "solve", file, *argv)

    both = ["--target", "y", "--client", "c"]
    assert "have a column 'nope'" in _fails(capsys, "solve", table, "--target", "nope", "--client", "ward")
    assert "have a column 'nope'" in _fails(capsys, "solve", table, "--target", "ill", "--client", "nope")
    assert "pass --target COL" in _fails(capsys, "solve", table)
    assert "pass --client COL, or --clients K" in _fails(capsys, "solve", table, "--target", "ill")
    owned = ["--target", "ill", "--client", "ward"]
    assert "data that name their clients" in _fails(capsys, "solve", table, *owned, "--clients", 3)
    assert "text with 2 classes" in _fails(capsys, "solve", table, *owned, "--loss", "squared")
    refuse("x,y,c\n1,0,a\n2,1,a\n", *both, message="at least two clients; got one, a")
    refuse("x,y,c\n1,0,a\n2,0,b\n", *both, message="take at least two values; got 0 in every row")
    refuse("x,y,c\n1,no,a\n2,no,b\n", *both, message="take at least two values; got no in every row")
    refuse("x,y,c\n1,0,a\n2,0,a\nnan,1,b\n", *both, message="'x': 1 missing of 3: 1 of 1 at b\nsettled by: --impute")
    refuse("x,y,c\n1,0,a\ninf,1,b\n", *both, message="'x': inf in row 2: numbers must be finite")
    refuse("x,y,c\n1,0,a\nzwei,1,b\n", *both, message="'x': numbers and text: 1 in row 1 and 'zwei' in row 2")
    refuse("x,y,c\n1,0,a\n2,1\n", *both, message="have 3 cells in every line")
    refuse("", *both, message="name")
    refuse("x,y,c\n", *both, message="at least one row")


def test_bad_archives(capsys, tmp_path):
    np.savez(tmp_path / "ok.npz", X=np.eye(4), y=np.array([0, 1, 0, 1]), clients=np.array([0, 0, 1, 1]))
    (tmp_path / "short.npz").write_bytes((tmp_path / "ok.npz").read_bytes()[:200])
    np.savez(tmp_path / "pickled.npz", X=np.array([[{}]], dtype=object), y=np.zeros(1))
    np.savez(tmp_path / "nan.npz", X=np.full((4, 1), np.nan), y=np.array([0, 1, 0, 1]), clients=np.arange(4))
    assert "archive" in _fails(capsys, "solve", tmp_path / "short.npz")
    assert "without pickle" in _fails(capsys, "solve", tmp_path / "pickled.npz")
    assert "be finite" in _fails(capsys, "solve", tmp_path / "nan.npz")
    (tmp_path / "notes.docx").write_text("x")
    assert "end in one of" in _fails(capsys, "solve", tmp_path / "notes.docx")
    (tmp_path / "odd.svm").write_text("1 1:x\n")
    assert "label index:value" in _fails(capsys, "solve", tmp_path / "odd.svm", "--clients", 2)


def test_output_folder_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        assert "--save must be a folder that can be written to" in _fails(capsys, "solve", "--save", folder)


def test_missing_matplotlib_is_found_before_the_run(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    monkeypatch.setattr("fedconvex.cli.solve.prepare", lambda args: pytest.fail("the run began"))
    assert 'pip install "fedconvex[report]"' in _fails(capsys, "solve", "--plot", tmp_path / "c.png")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_interrupt_says_what_was_saved(capsys, monkeypatch, tmp_path, checkpoint):
    file = tmp_path / "run.npz"

    def stop(*args, **kwargs):
        file.write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.setattr("fedconvex.run", stop)
    assert main(["solve", *(["--checkpoint", str(file)] if checkpoint else [])]) == 130
    err = capsys.readouterr().err
    assert (f"{file} holds the run" if checkpoint else "nothing was saved") in err
    assert err.count("\n") == 1


# ---------------------------------------------------------------- verify


@pytest.mark.slow
def test_verify_prints_a_table_and_details(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("fedconvex._progress.MINUTE", math.inf)  # a busy machine tells how far it is
    assert (
        main(["verify", "--no-search", "--theorem", "weight-divergence-zhao", "--theorem", "weight-divergence-convex"])
        == 0
    )
    captured = capsys.readouterr()
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= 120
    assert "weight-divergence-zhao: Weight divergence (Zhao et al.)" in captured.out
    assert "weight-divergence-convex: " in captured.out
    assert "fedavg-convex" not in captured.out
    assert "given: finite lambda_y >= 0 [largest" in captured.out
    assert "needs labels that are classes, got Squared()" in " ".join(captured.out.split())
    n = len(checks(["weight-divergence-zhao", "weight-divergence-convex"]))
    told = re.match(
        rf"{n} checks: (\d+) holds, (\d+) vacuous, 0 VIOLATED, 0 inconclusive, 3 not", captured.out.splitlines()[-1]
    )
    assert told is not None
    assert sum(map(int, told.groups())) == n - 3


@pytest.mark.slow
def test_verify_prints_json(capsys):
    facts = _json(capsys, "verify", "--no-search", "--theorem", "weight-divergence-zhao", "--seed", 3)
    assert facts["violated"] is False
    assert facts["about"]["seed"] == "3"
    sharp = len(checks(["weight-divergence-zhao"])) - 4
    assert [f["outcome"] for f in facts["findings"]] == ["HOLDS"] * 2 + ["NOT_APPLICABLE"] * 2 + ["HOLDS"] * sharp
    assert facts["findings"][0]["bound"]["terms"]["drift"] > 0
    assert facts["findings"][2]["bound"] is None
    assert facts["tightness"] == []


@pytest.mark.slow
def test_verify_a_violated_theorem_is_exit_status_1(capsys, monkeypatch, tmp_path):
    from fedconvex.theory import Bound
    from fedconvex.verify import THEOREMS

    right = THEOREMS["weight-divergence-zhao"]

    def planted(s):
        return Bound({"all": 1e-9}, right.quantity, "planted", right.at(s).requires)

    monkeypatch.setitem(THEOREMS, "weight-divergence-zhao", right._replace(bound=planted, read=None))
    argv = ["verify", "--no-search", "--theorem", "weight-divergence-zhao", "--report", str(tmp_path / "out")]
    assert main(argv) == 1
    out = capsys.readouterr().out
    decided = len(checks(["weight-divergence-zhao"])) - 2
    assert f"{decided} VIOLATED" in out
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("✗ VIOLATED") > decided
    assert "Something is violated" in page
    assert _json(capsys, *argv[:4], status=1)["counts"]["VIOLATED"] == decided


@pytest.mark.slow
def test_verify_your_own_data(capsys, table, tmp_path):
    argv = ["verify", "--problem", table, "--target", "ill", "--client", "ward", "--trajectories", 256]
    facts = _json(capsys, *argv, "--theorem", "fedavg-refined", "fedavg-convex", "weight-divergence-convex")
    convex, refined, divergence = facts["findings"]
    assert convex["outcome"] == "NOT_APPLICABLE"
    assert "needs equal client weights" in convex["reason"]
    assert refined["outcome"] == divergence["outcome"] == "HOLDS"
    assert refined["data"] == "yours"
    assert refined["setting"].startswith("wards.csv, tau 3, T 20, B 4")
    assert "column 'ward'" in refined["words"]
    assert "step size" in refined["words"]
    assert refined["low"] <= refined["measured"] <= refined["high"] <= refined["bound"]["value"]
    even = _json(capsys, *argv, "--theorem", "fedavg-convex", "--weights", "uniform")
    assert even["findings"][0]["outcome"] == "HOLDS"


def test_verify_escapes_names_of_files(capsys, tmp_path, rows):
    file = _csv(tmp_path / "<script>alert(1)<.csv", rows, ["dose", "age", "ward", "ill"])
    argv = ["verify", "--problem", file, "--target", "ill", "--client", "ward", "--theorem", "weight-divergence-convex"]
    assert main([*argv, "--report", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;.csv" in page
    assert f"Wrote {tmp_path / 'index.html'}." in capsys.readouterr().out


def test_names_that_are_nearly_right_are_guessed(capsys):
    for argv, meant in (
        ("compair x.csv", "compare"),
        ("compare x.csv --taget ill", "--target"),
        ("solve x.csv --target y --client c --loss logstic", "logistic"),
        ("solve x.csv --target y --client c --method fedvg", "fedavg"),
        ("verify --theorem scafold", "scaffold"),
        ("reproduce scaffold-quadratic", "scaffold-quadratics"),
        ("conform m:f --family fedvg", "fedavg"),
        ("bench --suite smal", "small"),
    ):
        assert main(argv.split()) == 2
        assert f"did you mean {meant}?" in capsys.readouterr().err, argv
    assert main(["--", "list"]) == 0 and "Theorems" in capsys.readouterr().out


def test_progress_says_what_is_done_and_how_long_it_will_take(capsys, monkeypatch):
    assert progress_line() is None  # no terminal, no command
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    show = progress_line()
    show(0.1, "first")
    time.sleep(0.2)
    show(0.5, "second")
    assert re.search(r"50%, about [\d:]+ left  second", capsys.readouterr().err)
    show(1.0, "done")
    assert not capsys.readouterr().err.split("\r")[-2].strip()


def test_long_commands_say_a_line_a_minute_without_a_terminal(capsys, monkeypatch, rows, tmp_path):
    clock = iter(range(0, 10**6, 7))  # seven seconds a look
    monkeypatch.setattr("fedconvex._progress.time.monotonic", lambda: next(clock))
    file = _csv(tmp_path / "d.csv", rows, ["dose", "age", "ward", "ill"])
    argv = ["solve", file, "--target", "ill", "--client", "ward", "--method", "fedsgd", "--step-size", "1e-9"]
    assert main([*argv, "--rounds", "20"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "left" in line]
    assert lines[0].startswith("fedconvex: 40% after 1 min, about 2 min left: round 8, gap ") and len(lines) == 2


@pytest.mark.slow
def test_verify_shows_progress_on_terminals_only(capsys, monkeypatch):
    argv = ["verify", "--no-search", "--theorem", "weight-divergence-zhao", "--json"]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert re.search(r"\d+%, about ", captured.err)
    assert captured.err.endswith("\r")
    assert not captured.err.split("\r")[-2].strip()  # the line is removed at the end
    json.loads(captured.out)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--theorem", "fedavg"], "--theorem must be one of "),
        (["--target", "ill"], "be given --problem DATA along with data options; got --target"),
        (["--l2", "1"], "got --l2"),
        (["--problem", "nowhere.csv"], "DATA must be a file, or one of breast_cancer"),
        (["--problem", "breast_cancer", "--clients", "1"], "at least two clients"),
        (["--trajectories", "1"], "--trajectories must be at least 2"),
        (["--precision", "0"], "--precision must be positive"),
        (["breast_cancer"], "unrecognized arguments: breast_cancer"),
    ],
)
def test_verify_bad_arguments(capsys, argv, message):
    assert message in _fails(capsys, "verify", *argv)


def test_verify_bad_folders_are_found_before_the_work(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("fedconvex.verify.verify_suite", lambda *a, **k: pytest.fail("the work began"))
    (tmp_path / "file").write_text("")
    assert "--report must be a folder" in _fails(capsys, "verify", "--report", tmp_path / "file")
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_svg", None)
    assert 'pip install "fedconvex[report]"' in _fails(capsys, "verify", "--report", tmp_path / "out")


def test_verify_refuses_what_is_too_large(capsys, monkeypatch):
    monkeypatch.setattr("fedconvex.cli.input_data.AFFORDABLE", 0.0)
    assert "small enough for exact constants" in _fails(capsys, "verify", "--problem", "breast_cancer")


@pytest.mark.slow
def test_verify_makes_a_page_of_what_it_checked(capsys, monkeypatch, tmp_path):
    """Every fourth in one instance, with its curves and the table on tightness; .ci/run verifies all instances."""
    monkeypatch.setenv("COLUMNS", "100")
    first = list({check.theorem: check for check in reversed(checks())}.values())[::4]
    monkeypatch.setattr("fedconvex.verify.checks", lambda *args: first)
    assert main(["verify", "--no-search", "--report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100 + len(str(tmp_path))
    assert "0 VIOLATED" in out
    assert "6 of 6 claims on tightness hold" in " ".join(out.split())
    page = (tmp_path / "index.html").read_bytes()
    assert len(page) < 70_000 * len(first)
    for check in first:
        assert f'id="theorem-{check.theorem}"'.encode() in page


# ---------------------------------------------------------------- list, names, help


def test_list_names_everything(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    from fedconvex import losses, methods

    for name in [*losses.__all__, *methods.__all__, "partition_dirichlet", "linear_federation", "breast_cancer"]:
        assert name in out
    assert "McMahan et al., AISTATS 2017" in out
    from fedconvex.verify import THEOREMS

    for name, theorem in THEOREMS.items():
        assert re.search(rf"^    {name} +{re.escape(theorem.title[:20])}", out, re.MULTILINE), name
    assert max(map(len, out.splitlines())) <= 120
    assert re.search(r"^    VerticalAcceleratedGradient +Nesterov's", out, re.MULTILINE)  # longer than its column
    assert all(f"--method {name}" in re.sub(r"\s+", " ", out) for name in registered())  # two names of MOCHA among them


def test_names_of_options_exist_in_the_library():
    for name in [*losses().values(), *(m.cls for m in registered().values())]:
        assert hasattr(fedconvex, name) or hasattr(fedconvex.methods, name)
    for name in PARTITIONS:
        assert hasattr(fedconvex.datasets, f"partition_{name}")
    names = BUNDLED
    assert "breast_cancer" in names
    for name in names:
        load_bundled(name)


@pytest.mark.parametrize("argv", [["--help"], ["solve", "--help"], ["verify", "--help"], ["--version"]])
def test_help_and_version(capsys, argv):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert out.strip() == f"fedconvex {fedconvex.__version__}" if argv == ["--version"] else "usage: fedconvex" in out


@pytest.mark.parametrize("command", ["solve", "verify"])
def test_help_imports_nothing_slow(command):
    code = (
        "import sys\nfrom fedconvex.cli import main\n"
        f"try: main(['{command}', '--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('numba', 'cvxpy', 'matplotlib', 'sklearn', 'scipy', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# ---------------------------------------------------------------- as a process


def _process(*argv, **options):
    return subprocess.run(
        [sys.executable, "-m", "fedconvex", *map(str, argv)], capture_output=True, text=True, timeout=120, **options
    )


@pytest.mark.slow
def test_process_solves_a_file_and_is_quiet_on_stderr(table, tmp_path):
    done = _process("solve", table, "--target", "ill", "--client", "ward", "--save", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "CONVERGED" in done.stdout
    assert (tmp_path / "out" / "model.npz").exists()


@pytest.mark.slow
def test_process_refuses_in_one_line(tmp_path):
    done = _process("solve", tmp_path / "none.csv", "--target", "y", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"fedconvex: error: DATA must be a file.*\n", done.stderr)


@pytest.mark.slow
def test_process_survives_a_plain_terminal():
    done = _process("solve", *FAST, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "Objective" in done.stdout


BEGUN = """
from itertools import count
from fedconvex.cli import main
from fedconvex.methods import FedAvg
before, number = FedAvg.aggregate, count(1)
def aggregate(*args):
    if next(number) == 20:
        print("begun", flush=True)
    return before(*args)
FedAvg.aggregate = aggregate
raise SystemExit(main({argv}))
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.slow
def test_process_interrupted_by_ctrl_c(tmp_path):
    argv = ["solve", "--tol", "0", "--local-steps", "3", "--checkpoint", str(tmp_path / "run.npz"), "--rounds"]
    assert main([*argv, "5"]) == 0
    code = BEGUN.format(argv=[*argv, "100000000"])
    process = subprocess.Popen(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{code}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )  # background jobs of a shell inherit that SIGINT is ignored
    try:
        assert process.stdout is not None
        assert "begun\n" in iter(process.stdout.readline, "")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130
    assert "holds the run" in err
    assert err.strip().count("\n") == 0


def test_a_reader_that_leaves_is_no_error():
    listing = subprocess.Popen(
        [sys.executable, "-m", "fedconvex", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert listing.stdout is not None
    listing.stdout.close()
    _, err = listing.communicate()
    assert err == b""


def test_squared_loss_on_two_numbers(capsys, tmp_path, rows):
    file = _csv(tmp_path / "a.csv", rows, ["dose", "age", "ward", "region"])
    facts = _json(capsys, "solve", file, "--target", "region", "--client", "ward", "--loss", "squared")
    assert facts["loss"] == repr(Squared())
    assert facts["classes"] is None
