"""`fedconvex solve --method NAME --set ...`: all methods of one linear model, and what their summaries claim."""

import json
import re

import numpy as np
import pytest

from fedconvex.cli import main
from fedconvex.cli.method import told
from fedconvex.cli.named import setting
from fedconvex.cli.parser import Refused
from fedconvex.registry import class_named, method_names
from tests.own_configurations import fields_of

NAMED = [name for name in method_names(learns="ONE_MODEL") if not told(name)]

NEEDED = {  # other settings than those of the contract: what is minimised depends on them, or a free intercept asks
    "progressive-hedging": ["--set", "rho=1"],
    "scaffnew": ["--set", "probability=0.3"],
    "agnosticfedavg": ["--step-size", "0.1", "--set", "domain_step_size=0.1"],
    "approxfedavg": ["--set", "mu=5"],
    "softmaxfedavg": ["--set", "mu=5"],
}
DATA = ["solve", "breast_cancer", "--clients", "4", "--partition", "iid"]


def solve(capsys, *options):
    status = main([*DATA, *options])
    out = capsys.readouterr()
    return status, out


def needed(method):
    """Options without which a method has no default, as in its first configuration of the contract."""
    from test_contract import EVERY

    given = {} if method in NEEDED else fields_of(EVERY, class_named(method))
    words = [f"{name}={re.sub(r'[a-z]+=', '', repr(value))}" for name, value in given.items() if name != "step_size"]
    return NEEDED.get(method, [word for pair in words for word in ("--set", pair)])


QUICK = ("gd",)


@pytest.mark.parametrize(
    "method", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMED]
)
@pytest.mark.compiled_if_slow
def test_every_method_runs_and_its_gap_covers_what_it_claims_to_minimise(capsys, method):
    status, out = solve(capsys, "--method", method, *needed(method), "--rounds", "8", "--json", "--coefficients")
    assert status == 0, out.err
    found = json.loads(out.out)
    assert found["minimised"] == {"afl": "worst", "optimistic-afl": "worst", "agnosticfedavg": "worst"}.get(
        method, "softmax" if "mu=5" in NEEDED.get(method, []) else "mean"
    )
    assert class_named(method).__name__ in found["method"]  # and no other under its name
    least = least_values(found["minimised"])
    assert found["objective"] >= least - 1e-9
    assert found["objective"] - found["gap"] <= least + 1e-9
    assert found["objective"] < 0.6931  # better than the model zero, whose loss is log 2 for every domain
    assert len(found["coefficients"]["features"]) == 30


def least_values(what, kept={}):  # noqa: B006  # one solution for all methods
    """Minimum of each objective, by the library's exact solvers on the same standardised rows."""
    if not kept:
        from fedconvex import Logistic, Problem
        from fedconvex.cli import _parser
        from fedconvex.cli.input_data import prepare
        from fedconvex.solvers.minimax.agnostic import solve_softmax

        args = _parser().parse_args([*DATA])
        args.data = DATA[1]
        data = prepare(args)
        problem = Problem(data.train, Logistic(), 0.01, None, None, True)
        kept |= {"mean": problem.solve().value, "worst": problem.solve_minimax(1e-9).value}
        kept["softmax"] = solve_softmax(problem, 5.0).value
    return kept[what]


@pytest.mark.slow
def test_coefficients_are_those_of_the_saved_model(capsys, tmp_path):
    from fedconvex.models import LinearModel

    status, out = solve(capsys, "--rounds", "5", "--json", "--coefficients", "--save", str(tmp_path / "m"))
    found, model = json.loads(out.out)["coefficients"], LinearModel.load(tmp_path / "m")
    assert status == 0
    np.testing.assert_array_equal(list(found["features"].values()), model.coef)
    assert list(found["features"]) == list(model.feature_names) and found["intercept"] == float(model.intercept)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "fedprox"], "--method fedprox must be given proximal_mu; got none: --set proximal_mu=..."),
        (["--method", "svrg", "--participation", "3"], "--method svrg must come without --participation; got 3"),
        (["--method", "fedavg", "--set", "shado=true"], "--set shado must name a setting of FedAvg"),
        (["--method", "fedsam", "--set", "rho=-1"], "--set rho must be nonnegative and finite; got -1"),
        (["--method", "fedsam", "--set", "rho=1", "--set", "rho=2"], "--set rho must be given once"),
        (["--method", "fedprox", "--set", "proximal_mu=x"], "--set proximal_mu must be"),
    ],
)
@pytest.mark.slow
def test_what_a_method_does_not_have_is_refused_in_the_words_of_the_command_line(capsys, options, message):
    status, out = solve(capsys, *options)
    assert status == 2 and message in out.err, out.err


@pytest.mark.parametrize("text", ["x", "=1", "x=", "local_steps=2", "2x=1"])
def test_settings_that_are_none(text):
    with pytest.raises(Refused, match="--set must"):
        setting(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=1", 1), ("a-b=0.5", 0.5), ("a=true", True), ("a=none", None), ("a=1e-3", 1e-3), ("a=w", "w")],
)
def test_settings_are_read(text, value):
    read = setting(text)[1]
    assert read == value and type(read) is type(value)
