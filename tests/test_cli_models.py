"""`fedconvex solve` with a model per client and with ensembles, and what `predict` makes of them."""

import csv
import json

import numpy as np
import pytest

from fedconvex import Federation, Logistic, run
from fedconvex.cli import main
from fedconvex.comparison.kinds import learned, near_mean
from fedconvex.losses import Exponential
from fedconvex.methods import JointMOCHA, MultiBoost
from fedconvex.models import LinearModel
from fedconvex.problems import EnsembleModel, Independent, MultiTaskProblem, StumpProblem, fit_q

pytest.importorskip("pandas")

NAMES = ("age", "dose", "ward", "ill")


def write(path, sizes=(30, 12, 5), seed=0, wards="abc"):
    rng = np.random.default_rng(seed)
    with open(path, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(NAMES)
        for ward, n in zip(wards, sizes, strict=True):
            for x in rng.normal(size=(n, 2)):
                ill = x[0] + (0.5 - (ward == "b")) * x[1] + 0.5 * rng.normal() > 0
                writer.writerow([f"{x[0]:.4f}", f"{x[1]:.4f}", ward, "yes" if ill else "no"])
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("wards") / "wards.csv")


def solve(capsys, data, *options):
    status = main(["solve", str(data), "--target", "ill", "--client", "ward", "--json", *options])
    out = capsys.readouterr()
    assert status == 0, out.err
    return json.loads(out.out)


def predicted(capsys, folder, rows, *options):
    status = main(["predict", str(folder), str(rows), "--proba", *options])
    out = capsys.readouterr()
    assert status == 0, out.err
    return [[float(r["P(no)"]), float(r["P(yes)"])] for r in csv.DictReader(out.out.splitlines())], out.err


def test_models_per_client_are_those_of_python_bit_for_bit(data, tmp_path, capsys):
    found = solve(capsys, data, "--method", "jointmocha", "--save", str(tmp_path / "m"), "--coefficients")
    fed = Federation.from_frame(data, "ill", "ward", intercept=True)
    problem = MultiTaskProblem(fed, Logistic(), learned(0.01 * fed.n, fed.K))
    mine = run(JointMOCHA(), problem, rounds=2000, tol=1e-6 * fed.n)
    model = LinearModel.load(tmp_path / "m")
    assert model.coef.tolist() == mine.model().coef.tolist() and model.clients == ("a", "b", "c")
    assert predicted(capsys, tmp_path / "m", data)[0] == mine.predict_proba(data).tolist()
    assert found["coefficients"]["b"]["features"]["dose"] == model.coef[1, 1]
    assert found["objective"] == mine.trace.value[-1] / fed.n and found["gap"] <= 1e-6
    own = model.coef * fed.columns.scale  # standardised
    away = np.linalg.norm(own - own.mean(axis=0), axis=1) / np.linalg.norm(own.mean(axis=0))
    np.testing.assert_allclose(found["spread"]["mean"], away.mean(), rtol=1e-12)
    assert found["spread"]["furthest"] == "abc"[int(away.argmax())] and found["minimised"] == "models per client"
    assert model.about["l2"] == 0.01 and model.about["relation"] == "learned" and model.about["gap"] == found["gap"]


@pytest.mark.parametrize(
    ("options", "relation"),
    [
        (["--method", "mean-regularised"], near_mean),
        (["--method", "cocoa", "--relation", "none"], lambda lam, K: Independent(lam)),
        pytest.param(["--method", "mocha", "--relation", "mean", "--epochs", "2"], near_mean, marks=pytest.mark.slow),
        pytest.param(["--method", "mocha", "--set", "drop=0.3"], learned, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("weights", ["size", pytest.param("uniform", marks=pytest.mark.slow)])
def test_the_gap_of_models_per_client_covers_the_exact_minimum(data, capsys, options, relation, weights):
    found = solve(capsys, data, *options, "--weights", weights, "--rounds", "60", "--tol", "1e-5")
    fed = Federation.from_frame(data, "ill", "ward", intercept=True)
    total = fed.n if weights == "size" else fed.K
    how = "sum" if weights == "size" else "mean"
    best = MultiTaskProblem(fed, Logistic(), relation(0.01 * total, fed.K), how).solve(1e-9)
    assert 0.0 <= found["objective"] - best.value / total + 1e-9
    assert found["objective"] - found["gap"] <= best.value / total + 1e-9
    assert found["gap"] < 0.02 and [row["model"] for row in found["models"]][-1] == "each client alone"


@pytest.mark.slow
def test_an_ensemble_is_that_of_python_bit_for_bit(data, tmp_path, capsys):
    options = ["--method", "multiboost", "--rounds", "7", "--save", str(tmp_path / "m"), "--coefficients"]
    found = solve(capsys, data, *options)
    fed = Federation.from_frame(data, "ill", "ward", domain="ward", standardise=False)
    problem = StumpProblem(fed, fit_q(fed.X, fed.domain), Exponential())
    mine = run(MultiBoost(smoothing=50.0), problem, rounds=7)
    f = mine.model().ensemble
    assert found["stages"] == len(f) == len(found["coefficients"]) == 7 and found["q"] == "maxent"
    assert [row["weight"] for row in found["coefficients"]] == f.alpha.tolist()
    assert found["objective"] == mine.trace.value[-1] and found["gap"] == mine.gap
    assert predicted(capsys, tmp_path / "m", data)[0] == mine.predict_proba(data).tolist()
    model = EnsembleModel.load(tmp_path / "m")
    z = model.decision_function(data)
    one = [model.decision_function({"age": [a], "dose": [b]})[0] for a, b in fed.X[:9].tolist()]
    assert one == z[:9].tolist()  # whatever stands beside a row
    np.testing.assert_allclose(z, f.decision_function(fed.X), rtol=1e-12)
    np.testing.assert_allclose(model.predict_proba(data)[:, 1], 1.0 / (1.0 + np.exp(-2.0 * z)), rtol=1e-12)
    errors = problem.errors_of(mine.state.margins[0])
    assert found["source_errors"] == dict(zip("abc", errors.tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["exponential", "logistic"])
def test_a_federated_ensemble(data, tmp_path, capsys, loss):
    options = ["--method", "fedmultiboost", "--rounds", "30", "--loss", loss, "--q", "uniform", "--cuts", "4"]
    found = solve(capsys, data, *options, "--save", str(tmp_path / "m"))
    assert found["objective"] < 1.0 and 0.0 <= found["gap"] and found["stages"] == 30 and found["q"] == "uniform"
    model = EnsembleModel.load(tmp_path / "m")
    p, z = predicted(capsys, tmp_path / "m", data)[0], model.decision_function(data)
    np.testing.assert_allclose(np.array(p)[:, 1], 1.0 / (1.0 + np.exp(-(2.0 if loss == "exponential" else 1.0) * z)))


@pytest.fixture(scope="module")
def personal(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("personal")
    argv = ["solve", str(data), "--target", "ill", "--client", "ward", "--method", "mean-regularised", "--rounds", "3"]
    assert main([*argv, "--save", str(folder)]) == 0
    return folder


def test_unknown_clients_by_the_rule_that_was_asked_for(personal, tmp_path, capsys):
    new = write(tmp_path / "new.csv", (2, 2), wards="az")
    model = LinearModel.load(personal)
    mean = LinearModel(
        model.coef.mean(axis=0), model.intercept.mean(), model.classes, model.feature_names, model.about, model.columns
    )
    p, said = predicted(capsys, personal, new)
    assert p[2:] == mean.predict_proba(new).tolist()[2:] and "stands for unknown clients: z" in said
    assert p[:2] == model.predict_proba(new, ["a"] * 4).tolist()[:2]
    assert main(["predict", str(personal), str(new), "--unknown", "refuse"]) == 2
    assert "must have rows of clients with a model only (--unknown refuse); got z: leave" in capsys.readouterr().err
    (tmp_path / "bare.csv").write_text("age,dose\n1.0,2.0\n")
    assert main(["predict", str(personal), str(tmp_path / "bare.csv")]) == 2
    assert "must have the client column 'ward'; got columns age, dose" in capsys.readouterr().err
    p, said = predicted(capsys, personal, tmp_path / "bare.csv", "--unknown", "mean")
    assert p == mean.predict_proba([[1.0, 2.0]]).tolist() and "the mean of all models stands for every row" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "mocha", "--step-size", "1"], "--method mocha must come without --step-size; got 1"),
        (["--method", "mocha", "--l2", "0"], "--method mocha must have --l2 above 0"),
        (
            ["--method", "jointmocha", "--relation", "mean"],
            "must have --relation learned; got mean: use --method mocha",
        ),
        (["--method", "fedavg", "--relation", "mean"], "--relation must come with --method cocoa or"),
        (["--method", "mocha", "--q", "uniform"], "--q must come with --method fedmultiboost or multiboost"),
        (["--method", "jointmocha", "--set", "sigma=1"], "must name a setting of JointMOCHA (eta, theta"),
        (["--method", "mocha", "--loss", "softmax"], "must have a loss with a dual step"),
        (["--method", "multiboost", "--l2", "1"], "--method multiboost must come without --l2"),
        (["--method", "multiboost", "--loss", "hinge"], "must have --loss exponential or logistic; got --loss hinge"),
        (["--method", "fedmultiboost", "--local-steps", "2"], "must come without --local-steps; got 2"),
    ],
)
def test_what_these_models_do_not_have_is_refused(data, capsys, options, message):
    assert main(["solve", str(data), "--target", "ill", "--client", "ward", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_damaged_ensemble_is_refused_by_name(data, tmp_path, capsys):
    solve(capsys, data, "--method", "multiboost", "--rounds", "2", "--q", "uniform", "--save", str(tmp_path))
    with pytest.raises(ValueError, match=r"kind must be 'linear'; got 'ensemble': use EnsembleModel.load"):
        LinearModel.load(tmp_path)
    with np.load(tmp_path / "model.npz") as stored:
        arrays = dict(stored)
    np.savez(tmp_path / "model.npz", **{**arrays, "stumps": arrays["stumps"] + [7, 0, 0, 0]})
    with pytest.raises(ValueError, match=r"EnsembleModel.feature_names must name at least \d features"):
        EnsembleModel.load(tmp_path)
    np.savez(tmp_path / "model.npz", **{k: v for k, v in arrays.items() if k != "alpha"})
    with pytest.raises(ValueError, match=r"EnsembleModel.load: .* must hold an ensemble in model.npz"):
        EnsembleModel.load(tmp_path)


def test_predictions_of_a_model_that_is_not_finished_say_so(tmp_path, capsys):
    table, model = tmp_path / "rows.csv", str(tmp_path / "model")
    table.write_text(
        "x,z,y,h\n" + "".join(f"{i % 7},{i % 5}.5,{int(i % 7 + i % 3 > 3)},{'ab'[i % 2]}\n" for i in range(40))
    )
    for rounds, note in (("2", "ended with ROUND_LIMIT, F within "), ("4000", "")):
        command = ["solve", str(table), "--target", "y", "--client", "h", "--rounds", rounds, "--save", model]
        assert main(command) == 0
        capsys.readouterr()
        assert main(["predict", model, str(table)]) == 0
        said = capsys.readouterr().err
        assert note in said and ("ended with" in said) == bool(note)
