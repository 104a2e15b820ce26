"""What `conform` says first, what it expects, what is nearly there, and the smallest exam that shows a departure."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from fedconvex.cli import main
from fedconvex.conformance import assert_conforms, can, conform
from fedconvex.conformance.changes import changes, slips
from fedconvex.conformance.conventions import expand
from fedconvex.conformance.counterexample import as_published, departs_in
from fedconvex.conformance.diagnosis import diagnose
from fedconvex.conformance.expectations import expected, unmet
from fedconvex.conformance.families import FAMILIES
from fedconvex.conformance.implementation import abilities_of, answers
from fedconvex.conformance.readings_search import predict
from tests.campaigns import implementations

SOURCE = """
import numpy as np


def gradient(hyper, X, y, w):
    return X.T @ (X @ w - y) / len(y) + L2 * hyper["l2"] * w


def train(clients, hyper, rounds):
    w, before, models = hyper["start"], hyper["start"], []
    p = np.array([float(WEIGHT) for X, y in clients])
    p = p / p.sum()
    for t in range(rounds):
        new = np.zeros_like(w)
        for share, (X, y) in zip(p, clients):
            v, T = FIRST, hyper["local_steps"] + EXTRA
            for i in range(T):
                mu = MU * (hyper["proximal_mu"] if PROX and not (i == T - 1 and LAST) else 0.0)
                v = v - ETA * hyper["step_size"] * (gradient(hyper, X, y, v) + mu * (v - w))
            new += share * v
        w, before = w + SERVER * (new - w), w
        models.append(w)
    return models
"""
RIGHT = {"L2": 1.0, "WEIGHT": "len(y)", "FIRST": "w", "EXTRA": 0, "PROX": False, "MU": 1.0, "LAST": False, "ETA": 1.0,
         "SERVER": 1.0}  # fmt: skip


def source(**planted):
    text = SOURCE
    for name, value in (RIGHT | planted).items():
        text = text.replace(name, str(value))
    return text


def made(**planted):
    space: dict = {}
    exec(source(**planted), space)
    return can(losses=("squared",), partial=False, batches=())(space["train"])


# ---------------------------------------------------------------- the answer first


def test_the_first_line_is_the_answer():
    for planted, family, first, grade in (
        ({}, "fedavg", "As published: fedavg, McMahan et al., AISTATS 2017, Algorithm 1.", "published"),
        ({"WEIGHT": 1}, "fedavg", "Not the published algorithm: clients weigh 1/K, all the same, instead of: clients "
         "weigh n_k/n, their shares of all rows.", "variant"),
        ({"EXTRA": 1}, "fedavg", "Not the published algorithm: clients take one local step too many.", "deviation"),
    ):  # fmt: skip
        found = conform(made(**planted), family)
        assert str(found).splitlines()[0] == first == found.to_dict()["first line"]
        assert found.grade == grade == json.loads(found.to_json())["grade"]
        assert (found.counterexample is None) == (grade == "published")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "family", "says"),
    [
        ({"SERVER": 0.9}, "fedavg", "the server moves by 0.9 times the average difference"),
        ({"ETA": 0.9}, "fedavg", "the local step size is 0.9 times what is asked"),
        ({"L2": 0.3}, "fedavg", "the weight of the ridge is 0.3 times what is asked"),
        ({"SERVER": 0.9, "WEIGHT": 1}, "fedavg", "the server moves by 0.9 times the average difference"),
        ({"PROX": True, "MU": 1.5}, "fedprox", "mu of the proximal term is 1.5 times what is asked"),
        ({"PROX": True, "LAST": True}, "fedprox", "the proximal term is missing in the last local step"),
        ({"FIRST": "before"}, "fedavg", "clients start from the server's model of one round earlier"),
    ],
)
def test_what_is_nearly_there_is_named(planted, family, says):
    found = conform(made(**planted), family)
    assert found.verdict == "deviates" and found.change == says and found.errors == (says,)
    assert str(found).startswith(f"Not the published algorithm: {says}.") and found.distance < 1e-12
    assert found.reading["weights"] == ("1/K" if "WEIGHT" in planted else "n_k/n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("avg: updates clipped", "clients' updates are clipped at length 0.1"),
        ("avg: squares of sizes", "clients weigh n_k to the power 2"),
        ("avg: ridge again", "the server takes the step size times l2 times its old model away"),
        ("avg: features centred", "clients' features are centred"),
        ("scaffold: one step more", "clients divide by 1 more than their local steps"),
        ("adam: largest v", "v is the largest so far"),
    ],
)
def test_slips_are_named(name, says):
    family, train = implementations.made(name)
    assert conform(train, family).change.startswith(says)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "fedopt", "fednova", "feddyn", "fedlin"])
def test_changes_change_something_and_neutral_ones_do_not(name):
    """A fitted change with its neutral number leaves the models of a reading as they are; no other one does for all."""
    family, tried = FAMILIES[name]._replace(kept=False), set()
    asked = [a for a in answers(family, made(), abilities_of(made()))[0] if not a.exam.events]
    reading = {}
    for a in asked:
        reading = next(expand(family.conventions, a.exam, reading, 0))
    plain = [np.stack(predict(family, a.exam, reading)) for a in asked]
    for change in [*changes(family, reading), *slips(family, reading)]:
        c = change.neutral
        c = 1e9 if c == np.inf else c
        models = [np.stack(predict(change.family(family, c), change.exam(a.exam, c), reading)) for a in asked]
        same = all(np.allclose(u, v, rtol=0, atol=1e-12) for u, v in zip(models, plain, strict=True))
        assert same if change.fitted else not same, change.says
        tried.add(change.says)
    assert len(tried) > 15


@pytest.mark.slow
def test_no_change_is_named_where_none_explains_it():
    @can(losses=("squared",), partial=False, batches=())
    def odd(clients, hyper, rounds):
        return [0.9**t * hyper["start"] ** 3 for t in range(1, rounds + 1)]

    f, a = FAMILIES["fedavg"], abilities_of(odd)
    asked, _ = answers(f, odd, a)
    assert diagnose(f, asked, 1e-9) is None
    right = answers(f, made(), a)[0]
    assert departs_in(as_published(f), right, 1e-9) is None  # and nothing departs where all is right
    assert departs_in(as_published(f), asked, 1e-9)[0].exam.name.startswith("one step")


# ---------------------------------------------------------------- counterexamples


@pytest.mark.parametrize(
    ("planted", "family", "rows"),
    [
        ({"WEIGHT": 1}, "fedavg", [1, 2]),  # equal clients would not tell
        ({"SERVER": 0.9}, "fedavg", [1]),
        ({"EXTRA": 1}, "fedavg", [1]),
        ({"PROX": True, "LAST": True}, "fedprox", [1]),
    ],
)
@pytest.mark.slow
def test_the_script_shows_the_departure_without_the_package(planted, family, rows, tmp_path):
    found = conform(made(**planted), family)
    smallest = found.counterexample
    assert sorted(smallest.exam.sizes) == rows and smallest.exam.rounds == 1
    assert smallest.exam.clients[0][0].shape[1] == 1
    for name, text, status in (("wrong", source(**planted), 1), ("right", source(PROX=family == "fedprox"), 0)):
        (tmp_path / f"{name}_here.py").write_text(text)
        script = smallest.script(f"{name}_here:train")
        assert script.count("\n") <= 10 and "fedconvex" not in script
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
    kept = json.loads(found.to_json())["counterexample"]
    np.testing.assert_allclose(kept["expected"], smallest.expected)
    assert kept["script"] == smallest.script("mymodule:train")


@pytest.mark.slow
def test_departures_of_rounds_that_draw_something_have_an_example_too():
    @can(losses=("squared",), batches=())
    def everybody(clients, hyper, rounds):
        return made()(clients, hyper, rounds)

    found = conform(everybody, "fedavg")
    assert found.errors == ("all clients take part, whatever is asked",)
    assert found.counterexample.exam.name == "partial participation, squared"
    assert "the nearest that may be drawn" in str(found)


# ---------------------------------------------------------------- expectations


def test_expectations_are_met_or_not():
    found = conform(made(WEIGHT=1), "fedavg")
    assert unmet(found, "weights=1/K") == unmet(found, {"weights": "1/K"}) == ()
    assert "weights must be as published" in unmet(found, "published")[0]
    assert "ridge must be 'l2'" in unmet(found, "weights=1/K,ridge=l2")[0]
    assert "got no exam that shows it" in unmet(found, "weights=1/K,sampling=distinct")[0]
    assert unmet(conform(made(), "fedavg"), "published") == ()
    assert "an error" in unmet(conform(made(EXTRA=1), "fedavg"), "published")[0]
    assert assert_conforms(made(WEIGHT=1), expect="weights=1/K").grade == "variant"
    with pytest.raises(AssertionError, match="one local step too many"):
        assert_conforms(made(EXTRA=1))


@pytest.mark.parametrize(
    ("expect", "says"),
    [
        ("wheights=1/K", "did you mean weights"),
        ({"wheights": "1/K"}, "a convention of fedavg must be one of"),
        ("weights=2/K", "weights of fedavg must be one of"),
        ("weights=1/K,weights=1/K", "each name once"),
        ("weights", "name=value"),
        (3, 'be "published", or conventions'),
    ],
)
def test_bad_expectations_are_refused(expect, says):
    with pytest.raises((ValueError, TypeError), match=says.replace("(", "\\(")):
        expected("fedavg", expect)


def test_what_an_implementation_lacks_is_said_by_name(capsys):
    with pytest.raises(ValueError, match=r"got the key 'lr': hyper has loss, l2, step_size"):
        conform(lambda clients, hyper, rounds: hyper["lr"], "fedavg")
    with pytest.raises(ValueError, match=r"shape \(3, 3\); got \(3,\): or declare the losses"):
        conform(lambda clients, hyper, rounds: [np.zeros(3) for _ in range(rounds)], "fedavg")
    assert main(["conform", "json:loads"]) == 2 and "--family must be given" in capsys.readouterr().err


def test_values_may_hold_commas():
    assert expected("fedavg", "weights=n_k, models, last batch=kept") == {
        "weights": "n_k, models",
        "last batch": "kept",
    }


def test_calls_that_take_too_long_end():
    def slow(clients, hyper, rounds):
        time.sleep(30.0)

    begun = time.monotonic()
    with pytest.raises(ValueError, match=r"a call took longer than the limit of 0\.2 s"):
        conform(slow, "fedavg", limit=0.2)
    assert time.monotonic() - begun < 10.0
    with pytest.raises(ValueError, match="limit must be positive"):
        conform(slow, "fedavg", limit=0.0)


@pytest.mark.slow
def test_the_command_and_what_it_expects(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    head = "from fedconvex.conformance import can\n"
    text = head + source(WEIGHT=1).replace(
        "def train", "@can(losses=('squared',), partial=False, batches=())\ndef train"
    )
    (tmp_path / "uniform_for_conform.py").write_text(text)
    command = ["conform", "uniform_for_conform:train", "--family", "fedavg"]
    assert main(command) == 0  # a documented variant, and nothing was expected
    out = capsys.readouterr().out
    assert out.startswith("Not the published algorithm: clients weigh 1/K") and "from uniform_for_conform import" in out
    assert main([*command, "--expect", "weights=1/K", "--json", "out.json"]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["counterexample"]["script"].count("uniform_for_conform") == 1
    capsys.readouterr()
    assert main([*command, "--expect", "published"]) == 1
    assert "Not as expected: weights must be as published" in capsys.readouterr().out
    assert main([*command, "--expect", "weights=1/L"]) == 2
    assert main(["conform", "--expect", "published"]) == 2
