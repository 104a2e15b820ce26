"""Counterexamples that one can print: shrunk, and as NumPy that shows the same numbers without the package."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedconvex.cli import main
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.kit import LAST_SYNCHRONISED, SHADOW_AVERAGE, Bound, known_constants
from fedconvex.theorems.parts.theorem import Check
from fedconvex.theorems.parts.tiny import Tiny
from fedconvex.verify import Outcome, PrintedInstance, numpy_text, own_theorem, printed, shrunk
from fedconvex.verify.checking import carried_out
from fedconvex.verify.printed import UNCONFIRMED, counterexample, write_instances
from fedconvex.verify.search import share_of
from tests.campaigns.wrong_theorems import PLANTED

NAME = "too small"


def half(constants, *, step_size, local_steps, rounds):
    """L D^2/(16 T), where one step on a parabola from D = 1 with a small step leaves 1/2 nearly."""
    L, D = known_constants(NAME, constants, "L", "D")
    return Bound({"start": L * D**2 / (16.0 * rounds)}, LAST_SYNCHRONISED, NAME)


WRONG = own_theorem(NAME, half, steps=(0.01, 0.1), local_steps=(1, 4))
KNOBS = {"share": 0.0126, "local_steps": 3, "batch": 0}
LARGE = Tiny(((0.83, 0.2), (1.31, 0.1), (0.2, 0.3)), (0.4, -1.2, 0.7), (1, 2), (1.41, 0.3), 7, KNOBS, 0.02)


@pytest.fixture(scope="module")
def small():
    return shrunk(WRONG, LARGE)


def alone(text, tmp_path):
    """Run a text in a process that does not know the package, and return the three words that it prints."""
    (tmp_path / "alone.py").write_text("import sys\nsys.modules['fedconvex'] = None\n" + text)
    ran = subprocess.run([sys.executable, "-I", "alone.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    measured, sign, bound = ran.stdout.split()
    return float(measured), sign, float(bound)


def test_what_is_left_of_a_counterexample(small):
    """(1 - eta)^2/2 after a step from 1 on w^2/2, against 1/16: with the largest step, 0.1, it is 0.405."""
    assert small == Tiny(((1.0,),), (0.0,), (1,), (1.0,), 1, {"share": 0.1, "local_steps": 1, "batch": 0})
    found = printed(WRONG, small)
    assert isinstance(found, PrintedInstance)
    assert found.measured == pytest.approx(0.5 * 0.9**2)
    assert found.bound.value == pytest.approx(1.0 / 16.0)
    assert carried_out(WRONG, WRONG.space.check(small)).outcome is Outcome.VIOLATED


def test_the_numpy_text_needs_no_package(small, tmp_path):
    found = printed(WRONG, small)
    assert "fedconvex" not in found.numpy
    assert len(found.numpy.splitlines()) < 25
    measured, sign, bound = alone(found.numpy, tmp_path)
    assert (measured, bound, sign) == (pytest.approx(0.405), pytest.approx(0.0625), ">")
    assert r"f_{1}(w) = \frac{1}{2} w^2 \]" in found.latex


def test_what_does_not_violate_is_not_shrunk():
    with pytest.raises(ValueError, match="violate fedavg-convex by an exact value"):
        shrunk(
            "fedavg-convex",
            Tiny(((1.0,),), (0.0,), (1,), (1.0,), 1, {"share": 0.25, "local_steps": 1, "batch_size": 0}),
        )


@pytest.mark.slow
def test_instances_of_the_suite_are_shrunk_too():
    """A check on the suite's problem, which no search made, becomes a small problem."""
    check = next(c for c in WRONG.checks if c.instance.name == "two clients" and c.rounds == 1)
    assert carried_out(WRONG, check).verdict.outcome is Outcome.VIOLATED
    found = counterexample(WRONG, check)
    assert found.measured > found.bound.value
    assert len(found.tiny.rows) == 1
    large = check.instance._replace(make=lambda: THEOREMS["fedavg-convex"].checks[0].make())
    assert counterexample(WRONG, Check(large, rounds=1)) is None or large.make().federation.n <= 64


@pytest.mark.slow
def test_from_the_command_line(tmp_path, capsys):
    """The search violates the theorem; the table ends with the program, and JSON has it."""
    file = tmp_path / "wrong.py"
    file.write_text(
        "from fedconvex.theorems.kit import *\nfrom fedconvex.verify import own_theorem\n"
        "def bound(constants, *, step_size, local_steps, rounds):\n"
        "    L, D = known_constants('too small', constants, 'L', 'D')\n"
        "    return Bound({'start': L * D**2 / (1000 * rounds)}, LAST_SYNCHRONISED, 'too small')\n"
        "theorem = own_theorem('wrong', bound, steps=(0.01, 0.1))\n"
        "theorem = theorem._replace(checks=theorem.checks[9:10])\n"
    )
    code = main(["verify", "--theorem-file", str(file), "--search", "20", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 1
    (found,) = document["counterexamples"]
    measured, sign, bound = alone(found["numpy"], tmp_path)
    assert measured == pytest.approx(found["measured"], rel=1e-9)
    assert bound == pytest.approx(found["bound"], rel=1e-9)
    assert sign == ">"


# theorem, error, and an instance that shows it
SHOWN = {
    ("fedavg-bias", "E - 1 for E (E-1)/2"): Tiny(
        (
            *((0.64, 0.105), (-0.536, 0.362), (1.3, 0.947), (-0.704, -1.27)),
            *((-0.623, 0.0413), (-2.33, -0.219), (-1.25, -0.732), (-0.544, -0.316)),
        ),
        (-3.21, -0.209, -0.159, 0.541, 0.215, 0.355, -0.566, -0.13),
        (2, 2, 2, 2),
        (0.156, 0.139),
        1,
        {"share": 0.0969, "local_steps": 64},
        0.0692,
        (0.777, 0.169, 0.42, 0.121),
    ),
    ("scaffold-contraction", "the models' own curvature forgotten"): Tiny(
        ((-1.73, 0.873, -1.28), (-0.0713, 0.0621, -0.225), (0.386, -0.582, 0.109)),
        (0.0726, 0.0844, 0.116),
        (3,),
        (0.0036, -0.0679, -0.00643),
        2,
        {"share": 1.0, "local_steps": 32},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("planted", [p for p in PLANTED if (p.theorem, p.what) in SHOWN], ids=lambda p: p.theorem)
def test_planted_errors_are_printed(planted, tmp_path):
    wrong = planted.made()
    tiny = shrunk(wrong, SHOWN[planted.theorem, planted.what])
    found = printed(wrong, tiny)
    assert share_of(wrong, tiny) > 1.0
    measured, sign, bound = alone(found.numpy, tmp_path)
    assert measured == pytest.approx(found.measured, rel=1e-6)
    assert bound == pytest.approx(found.bound.value, rel=1e-12)
    assert measured > bound
    assert sign == ">"


def _sharp(name):
    theorem = THEOREMS[name]
    checks = [c for c in theorem.checks if isinstance(c, Check) and c.instance.tiny is not None]
    return theorem, [c.instance.tiny for c in checks]


def program(text):
    """Return what a text measures, and its bound."""
    names = {"print": lambda *_: None}
    exec(text, names)
    return float(names["measured"]), float(names["bound"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fedavg-convex", "fedavg-strongly-convex", "fedavg-bias", "fedprox", "dynamic-msd-refined"]
)
def test_sharp_instances_are_written_out(name):
    theorem, tinies = _sharp(name)
    every = [printed(theorem, tiny) for tiny in tinies[:4] if tiny.rounds <= 100]
    texts = [found for found in every if found.numpy is not None]
    assert texts, [found.words for found in every]
    for found in texts:
        measured, bound = program(found.numpy)
        assert measured == pytest.approx(found.measured, rel=1e-6)
        assert bound == pytest.approx(found.bound.value, rel=1e-12)
        assert math.isfinite(measured)


@pytest.mark.slow
def test_files_of_one_name_do_not_replace_each_other_and_infinite_bounds_are_written(tmp_path):
    """Names of theorems lose what is no letter; a bound that says nothing is printed all the same."""
    check = next(c for c in THEOREMS["fedavg-convex"].checks if isinstance(c, Check) and c.instance.tiny is not None)
    right = THEOREMS["fedavg-convex"]

    def nothing(**_):
        return Bound({"start": math.inf}, right.quantity, "says nothing")

    known = {name: right._replace(name=name, bound=nothing) for name in ("R1", "R1#", "R" * 300)}
    files = list(write_instances(tmp_path, [replace(check, theorem=name) for name in known], known))
    assert len({*files}) == 3 and all(file.exists() and len(file.name) < 120 for file in files)
    assert {file.suffix for file in files} == {".py"}
    assert all('bound = float("inf")' in file.read_text() for file in files)
    assert all(r"\infty" in file.with_suffix(".tex").read_text() for file in files)


def test_long_work_says_how_far_it_is(tmp_path):
    """Shrinking by what is used up of its tries and of its time; instances by their number."""
    seen = []
    shrunk(WRONG, LARGE, most=15, progress=lambda share, doing: seen.append((share, doing)))
    shares = [share for share, _ in seen]
    assert shares == sorted(shares) and shares[0] < 0.1 and 0.9 < shares[-1] <= 1.0
    assert {doing for _, doing in seen} == {f"a smaller counterexample to {NAME}"}
    seen.clear()
    checks = [c for c in THEOREMS["fedavg-convex"].checks if isinstance(c, Check) and c.instance.tiny is not None][:2]
    checks = [replace(c, theorem="fedavg-convex") for c in checks]
    files = list(write_instances(tmp_path, checks, THEOREMS, lambda *told: seen.append(told)))
    assert len(files) == 2
    assert seen == [(i / 2, f"fedavg-convex: {c.instance.name}") for i, c in enumerate(checks)] + [(1.0, "done")]


def test_what_is_shrunk_stays_in_the_space():
    """A step of 1/8 is simpler than one of 0.1363, and below the least that the theorem speaks of."""

    def bound(constants, *, step_size, local_steps, rounds):
        return Bound({"start": 0.2 * constants.L * constants.D**2 / rounds}, LAST_SYNCHRONISED, "too small")

    wrong = own_theorem("wrong", bound, steps=(0.13, 0.5), local_steps=(1, 1))
    knobs = {"share": 0.1363, "local_steps": 1, "batch": 0}
    found = shrunk(wrong, Tiny(((0.83, 0.2), (1.31, 0.1)), (0.4, -1.2), (1, 1), (1.41, 0.3), 1, knobs))
    assert found.knobs["share"] >= 0.13


def test_mini_batches_by_their_moments():
    """One client, rows 1 and 1 with labels 1 and -1, one step of size s from 0: E w^2/2 = s^2/2."""
    theorem = own_theorem("noise", _nothing, SHADOW_AVERAGE, steps=(0.5, 0.5), batches=1)
    tiny = Tiny(((1.0,), (1.0,)), (1.0, -1.0), (2,), (0.0,), 1, {"share": 0.5, "local_steps": 1, "batch": 1})
    found = printed(theorem, tiny)
    assert program(found.numpy) == pytest.approx((0.125, 0.0))


def _nothing(constants, **numbers):
    return Bound({"nothing": 0.0}, SHADOW_AVERAGE, "nothing")


def test_data_where_there_is_no_program():
    theorem, tinies = _sharp("hedging")
    found = printed(theorem, tinies[0])
    assert found.numpy is None
    assert "no NumPy text" in str(found)
    assert str(found.tiny) in str(found)
    assert np.isfinite(found.document()["measured"])


def test_programs_that_do_not_confirm_are_left_out_and_said_to_be():
    """Another number, one that does not exceed the bound it should, a crash: none is printed, and the reason is."""
    say = 'print({}, ">" if {} > {} else "<=", {})'.format
    assert numpy_text.gives(say(1.25, 1.25, 1.0, 1.0), 1.25, 1.0)
    assert not numpy_text.gives(say(1.26, 1.26, 1.0, 1.0), 1.25, 1.0)
    assert not numpy_text.gives(say(1.0, 1.0, 1.0, 1.0), 1.0 + 1e-9, 1.0)  # it rounds to the bound
    assert numpy_text.gives(say(1.0, 1.0, 1.0, 1.0), 1.0, 1.0) and not numpy_text.gives("raise ValueError", 1.0, 2.0)
    tiny = Tiny(((1.0,),), (0.0,), (1,), (1.0,), 1, {"share": 0.25, "local_steps": 1, "batch_size": 0})
    found = printed("fedavg-convex", tiny)
    assert found.without == "" and found.numpy
    near = replace(found, measured=0.36982, bound=replace(found.bound, terms={"all": 0.369819999}))
    assert near.heading == "fedavg-convex: 0.36982 > 0.369819999"
    left_out = replace(found, numpy=None, without=UNCONFIRMED)
    assert "did not give the same number" in str(left_out)


def test_a_program_that_gives_another_number_is_said_to(monkeypatch):
    monkeypatch.setattr(numpy_text, "gives", lambda *_: False)
    tiny = Tiny(((1.0,),), (0.0,), (1,), (1.0,), 1, {"share": 0.25, "local_steps": 1, "batch_size": 0})
    found = printed("fedavg-convex", tiny)
    assert found.numpy is None and UNCONFIRMED in str(found)
