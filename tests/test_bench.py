"""`fedconvex bench`: costs by an independent computation, rules that are enforced, cells that are taken up again."""

import hashlib
import json
import math
import os
import re
import signal
import textwrap
from dataclasses import field, make_dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fedconvex._latex import escaped
from fedconvex.bench import SUITES, Case, Referee, bench, campaign, data_profile, performance_profile, suite
from fedconvex.bench.board import Spread
from fedconvex.bench.campaign import chosen
from fedconvex.bench.cases import ONE_MODEL, digest, sparse_federation
from fedconvex.bench.cells import Rules, _ended, _Judged, _least, _notes, run_cell
from fedconvex.bench.offences import LIES, NOT_ZERO, READS_OTHERS, READS_ROWS, TOO_FEW, UNCOUNTED, UNSTEADY
from fedconvex.bench.running import Step
from fedconvex.bench.solvers import _function_steps, arrays_of, made_of, named, of_target
from fedconvex.bench.suites import data_cases
from fedconvex.bench.time_limit import OutOfTime, at_most
from fedconvex.bench.written_tables import latex, notes_table
from fedconvex.cli import main
from fedconvex.federation import Federation
from tests import bench_solvers
from tests.bench_agreement import agreement

TINY = Case("tiny", "linear", {"n_clients": 3, "n_features": 2, "zeta_star": 1.0, "feature_shift": 0.5}, "squared")
DIGESTS = {c.name for cases in SUITES.values() for c in cases if c.sha256 is None}


@pytest.mark.slow
def test_costs_are_those_of_gradient_descent_by_hand():
    """Rounds of FedSGD to each target: the same steps in NumPy, gaps from the normal equations."""
    board = bench([bench_solvers.descent], suite=[TINY], against=["fedsgd"], targets=[1e-2, 1e-5], rounds=400)
    fed = TINY.problem().federation
    X, y = fed.X, fed.y
    H, b = X.T @ X / len(y), X.T @ y / len(y)
    value = lambda w: 0.5 * np.mean((X @ w - y) ** 2)  # noqa: E731
    best, w, step = value(np.linalg.solve(H, b)), np.zeros(2), 1.0 / np.linalg.eigvalsh(H)[-1]
    gaps = [value(w) - best]
    for _ in range(400):
        w = w - step * (H @ w - b)
        gaps.append(value(w) - best)
    expected = [next(t for t, g in enumerate(gaps) if g <= target) for target in (1e-2, 1e-5)]
    cell = next(c for c in board.cells if c.solver == "fedsgd")
    assert [row["rounds"] for row in cell.found["costs"]] == expected
    assert [row["floats"] for row in cell.found["costs"]] == [t * 2 * 3 * 2 for t in expected]  # w down, g up
    assert [row["passes"] for row in cell.found["costs"]] == expected
    other = next(c for c in board.cells if c.solver == "descent")
    assert other.found["status"] == "reached" and other.found["costs"][1]["passes"] == other.found["costs"][1]["rounds"]
    assert np.isnan(board.cost("tiny", "descent", 1e-2, "floats").median)  # nobody counts them,
    short = bench([bench_solvers.descent], suite=[TINY], against=["fedsgd"], targets=[1e-5], rounds=1)
    assert np.isnan(short.cost("tiny", "descent", 1e-5, "floats").median)  # where a target is not met either
    assert short.cost("tiny", "fedsgd", 1e-5, "floats").median == np.inf
    assert not board.offences


def test_the_referee_knows_lies_from_slack():
    referee = Referee(TINY)
    w = referee.optimum + 0.1
    value, gap = (float(a[0]) for a in referee.gaps(w[None]))
    assert referee.understated(value, gap) == 0.0
    assert referee.understated(value, 0.5 * gap) == pytest.approx(0.5 * gap)
    assert np.isnan(referee.understated(value, np.nan))
    assert referee.understated(1e12, 1e12 - 1.0) == 0.0  # rounding of another sum
    assert referee.gaps(np.array([[np.nan, 0.0]]))[1][0] == np.inf
    assert referee.dials.zeta_star == pytest.approx(1.0, rel=1e-6)  # the dial, but for the grid


def test_profiles_by_hand():
    costs = np.array([[1.0, 3.0, np.nan], [2.0, 2.0, 8.0], [np.inf, 5.0, 5.0], [np.inf, np.inf, np.inf]])
    found = performance_profile(costs, np.array([1.0, 3.0, 4.0]))
    np.testing.assert_allclose(found, [[2 / 3, 2 / 3, 2 / 3], [2 / 3, 1.0, 1.0], [0.5, 0.5, 1.0]])
    found = data_profile(costs, np.array([2.0, 5.0]))
    np.testing.assert_allclose(found, [[0.5, 0.5], [0.25, 0.75], [0.0, 1 / 3]])
    assert Spread.of([1.0, np.inf, 3.0]) == (1.0, 3.0, np.inf)


def test_digests_are_of_the_arrays_and_all_are_fixed():
    assert not DIGESTS
    fed = Federation.from_clients([([[1.0]], [1.0])])
    parts = [("<f8(1, 1)", np.ones(1)), ("<f8(1,)", np.ones(1)), ("<i8(2,)", np.array([0, 1]))]
    by_hand = hashlib.sha256(b"".join(head.encode() + a.tobytes() for head, a in parts)).hexdigest()
    assert digest(fed) == by_hand
    case = next(c for c in SUITES["small"] if c.data == "sparse")
    assert digest(sparse_federation(**case.settings)) == case.sha256
    wrong = Case("tiny", "linear", {"n_clients": 3, "n_features": 2}, "squared", sha256="0" * 64)
    with pytest.raises(ValueError, match=r"problem tiny: data must have the SHA-256 0000.*got"):
        wrong.problem()


def test_categories_of_adult_become_columns(tmp_path):
    y, codes = np.array([0, 1] * 6), np.array([[0, 1], [1, 0], [2, 1]] * 4)
    names = {"categories_0": np.array(["?", "a", "b"]), "categories_1": np.array(["c", "d"])}
    np.savez(tmp_path / "adult.npz", x_cat_train=codes, y_train=y, **names)
    (case,) = data_cases(tmp_path)
    federation = replace(case, settings={"clients": 2, "partition": "iid"}).problem().federation
    assert (federation.n, federation.d) == (12, 5)
    assert sorted(federation.y) == [-1.0] * 6 + [1.0] * 6


def test_categories_that_do_not_fit_are_refused(tmp_path):
    """They ended in NumPy's own errors, and a position of -1 was taken for the last category."""
    good = {"x_cat_train": np.array([[0], [1]]), "y_train": np.array([0, 1]), "categories_0": np.array(["a", "b"])}
    for name, value, words in (
        ("x_cat_train", np.array([[0], [2]]), "categories_0 must name the categories of column 0 .* for 0 to 2"),
        ("x_cat_train", np.array([[0], [-1]]), "categories_0 must name the categories of column 0 .* for -1 to 0"),
        ("x_cat_train", np.array([[0, 0], [1, 0]]), "categories_1 must name .*; got nothing"),
        ("x_cat_train", np.array([0.5, 1.0]), "x_cat_train must hold whole numbers"),
        ("y_train", np.array([0]), "y_train must be"),
        ("categories_0", np.array([None, "b"]), "categories_0 must be readable without pickle"),
    ):
        np.savez(tmp_path / "adult.npz", **{**good, name: value})
        with pytest.raises(ValueError, match=words):
            data_cases(tmp_path)[0].problem()


def test_suites_of_a_file(tmp_path):
    np.savez(tmp_path / "rows.npz", X=np.eye(8), y=np.array([0.0, 1.0] * 4), clients=np.arange(8) % 2)
    file = tmp_path / "mine.toml"
    file.write_text('[[problem]]\nname = "mine"\ndata = "rows.npz"\nl2 = 0.1\n')
    (case,) = suite(file)
    assert case.problem().federation.K == 2
    for text, message in [
        ("a = 1", r"mine.toml must hold tables \[\[problem\]\], and nothing else; got a"),
        ("[[problem]]\nname = 'x'", "must have name and data"),
        ("[[problem]]\nname = 'x'\ndata = 'linear'\n" * 2, "must name every problem differently; got 'x' twice"),
        ("[[problem", "must be TOML"),
    ]:
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            suite(file)
    with pytest.raises(ValueError, match=r"bench: suite must be one of first, small, standard.*got 'large'"):
        suite("large")
    with pytest.raises(ValueError, match="setting must be one of 'n_clients'"):
        Case("x", "linear", {"clients": 3}, "squared").problem()


@pytest.mark.slow
def test_solvers_that_are_none_are_refused():
    with pytest.raises(
        ValueError, match=r"bench: solver must be one of .*fedsgd, .*, or module:attribute; got 'fedsdg'"
    ):
        named("fedsdg")
    with pytest.raises(ImportError, match="must name a module that can be imported"):
        named("nowhere_at_all:Solver")
    with pytest.raises(ValueError, match=r"must name something in tests\.bench_solvers"):
        named("tests.bench_solvers:Absent")
    with pytest.raises(TypeError, match="be a class with init and local"):
        named("tests.bench_solvers:STASH")
    with pytest.raises(ValueError, match="must be at least one"):
        chosen([], [], "theory")
    board = bench([bench_solvers.Unset, bench_solvers.crooked], suite=[TINY], against=[], rounds=3)
    words = {c.solver: c.found["words"] for c in board.cells}
    assert "must have defaults for all settings but step_size; got depth" in words["Unset"]
    assert "crooked: model must have shape (2,); got (3,)" in words["crooked"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "offence"),
    [
        ("Liar", LIES),
        ("Dice", UNSTEADY),
        ("Peek", READS_ROWS),
        ("Stash", READS_ROWS),
        ("Nosy", READS_OTHERS),
        ("Smuggler", UNCOUNTED),
        ("boastful", LIES),
        ("closed", TOO_FEW),
        ("descent", None),
    ],
)
def test_cheats_are_named(name, offence):
    board = bench([f"tests.bench_solvers:{name}"], suite=[TINY], against=["fedsgd"], rounds=20, seeds=1)
    found = board.offences.get(f"tests.bench_solvers:{name}", {})
    assert list(found) == ([] if offence is None else [offence])
    assert "fedsgd" in board.ranked and (f"tests.bench_solvers:{name}" in board.ranked) is (offence is None)


@pytest.mark.slow
def test_honest_gradient_descent_by_a_function_takes_the_rounds_of_fedsgd():
    """Its step was 1/L of the roughest client: 0.56 where fedsgd's is 0.90."""
    board = bench(["tests.bench_solvers:descent"], suite=[TINY], against=["fedsgd"], targets=[1e-2, 1e-5], seeds=1)
    mine, ours = (board.of("tiny", name)[0] for name in ("tests.bench_solvers:descent", "fedsgd"))
    assert [mine.cost(t, "rounds") for t in (1e-2, 1e-5)] == [ours.cost(t, "rounds") for t in (1e-2, 1e-5)]
    steps = _function_steps(TINY.problem(), ONE_MODEL, {})[0]
    assert steps["step_size"] > 1.5 * steps["local_step_size"]


@pytest.mark.slow
def test_methods_of_the_package_break_no_rule():
    """No false accusation, of methods of every family, and of LIBLINEAR on sparse rows."""
    one = ("fedavg", "fedavg-batch", "fedavg-sampled", "scaffold", "fedprox", "fsvrg", "fedmid", "feddualavg", "radfed")
    sparse = Case("sparse", "sparse", {"n_clients": 3, "n_features": 9, "rows_per_client": 8}, "logistic", 0.1)
    for case, against in [
        (TINY, one),
        (sparse, ("fedsgd", "liblinear", "sklearn-lbfgs", "gd")),
        (replace(TINY, aim="worst domain"), ("afl", "optimistic-afl", "agnosticfedavg", "fedavg")),
        (replace(TINY, aim="model per task"), ("mocha", "mocha-dropped", "minibatch-sdca", "gd")),
    ]:
        board = bench(suite=[case], against=against, rounds=3, seeds=1, repeats=1)
        assert not board.offences
        assert {c.found["status"] for c in board.cells} <= {"reached", "round limit"}
        assert len(board.cells) >= 3


@pytest.mark.slow
def test_a_slowed_copy_ranks_below_by_seconds_and_equal_by_rounds():
    slow = bench_solvers.Slow(step_size="auto", local_steps=5)
    from fedconvex import FedAvg

    board = bench([slow, FedAvg(step_size="auto", local_steps=5)], suite=[TINY], against=[], targets=[0.2, 0.1])
    rounds, seconds = board.mean_ranks("rounds"), board.mean_ranks("seconds")
    assert all(row["rounds"] > 0 for cell in board.cells for row in cell.found["costs"])  # or waiting costs nothing
    assert rounds["Slow"] == rounds["FedAvg"] == 1.5
    assert seconds == {"Slow": 2.0, "FedAvg": 1.0}


@pytest.mark.slow
def test_what_is_interrupted_gives_the_same_file(tmp_path, capsys):
    how = ["bench", "--suite", str(tmp_path / "two.toml"), "--solvers", "fedsgd,fedavg-batch", "--target", "1e-2,1e-4"]
    settings = 'data = "linear"\nloss = "squared"\n[problem.settings]\nn_clients = 3\nn_features = 2\nzeta_star = '
    tables = [f'[[problem]]\nname = "p{z}"\n{settings}{z}.0\n' for z in (0, 1)]
    (tmp_path / "two.toml").write_text("\n".join(tables))
    assert main([*how, "--out", str(tmp_path / "whole"), "--report"]) == 0
    assert main([*how, "--out", str(tmp_path / "again")]) == 0
    cells = sorted((tmp_path / "again" / "cells").iterdir())
    assert len(cells) == 2 * (1 + 3)
    kept = cells[0].read_bytes()
    cells[1].unlink()  # a run that stopped before this one,
    cells[2].write_bytes(b"{")  # and was killed while it wrote that one
    assert main([*how, "--out", str(tmp_path / "again")]) == 0
    assert cells[0].read_bytes() == kept
    assert json.loads(cells[2].read_text())["found"]["status"]
    files = [(tmp_path / run / "results.csv").read_bytes() for run in ("whole", "again")]
    assert files[0] == files[1]
    page = (tmp_path / "whole" / "index.html").read_text()
    assert "No solver was found to break a rule" in page and "src=" not in page
    assert "\\hline" in (tmp_path / "whole" / "tables.tex").read_text()
    assert "Mean ranks" in capsys.readouterr().out
    assert main([*how, "--out", str(tmp_path / "two"), "--jobs", "2"]) == 0
    assert (tmp_path / "two" / "results.csv").read_bytes() == files[0]


def codes_of_the_page():
    """The solvers that the page shows: a function and a class."""
    page = Path(__file__).resolve().parents[1] / "docs" / "benchmark.md"
    if not page.exists():
        pytest.skip("no pages beside the tests")
    codes = re.findall(r"```python\n(  # mymod.py.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [textwrap.dedent(code) for code in codes]


def test_the_function_of_the_page_is_gradient_descent():
    exec(codes_of_the_page()[0], names := {})
    for data, loss in (("linear", "squared"), ("logistic", "logistic")):
        problem = Case(loss, data, {"n_clients": 3, "n_features": 2}, loss, 0.1).problem()
        w, arrays = np.zeros(2), arrays_of(problem, loss)
        for found in names["solve"](arrays, {"step_size": 0.3}, 3):
            w = w - 0.3 * problem.gradient(w)
            np.testing.assert_allclose(found, w, rtol=1e-12)


@pytest.mark.slow
def test_the_class_of_the_page_takes_the_rounds_of_fedsgd_and_breaks_no_rule():
    exec(codes_of_the_page()[1], names := {"__name__": "mymod"})
    descent = replace(of_target(names["Descent"]), own=False, settings={"step_size": 0.9})
    fedsgd = replace(named("fedsgd"), settings={"step_size": 0.9})
    mine, ours = (run_cell(Referee(TINY), s, 0, Rules((1e-2, 1e-5), 40, 1))["found"] for s in (descent, fedsgd))
    assert mine["offences"] == [] and mine["status"] == "reached", mine["words"]
    assert [c["rounds"] for c in mine["costs"]] == [c["rounds"] for c in ours["costs"]]
    assert [c["floats"] for c in mine["costs"]] == [c["floats"] for c in ours["costs"]]


@pytest.mark.parametrize("where", ["fedconvex.bench.bench", "fedconvex.bench.written_tables.write_files"])
def test_who_stops_it_is_told_what_there_is(where, tmp_path, capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedconvex.bench.bench", lambda *_, **__: None)
    monkeypatch.setattr("fedconvex.bench.written_tables.offence_table", lambda board: [])
    monkeypatch.setattr(where, stop)
    how = ["bench", "fedsgd", "--out", str(tmp_path)]
    assert main(how) == 130
    assert capsys.readouterr().err == "fedconvex: interrupted: no cell was finished, nothing was saved\n"
    (tmp_path / "cells").mkdir()
    for name in ("a.json", "b.json", "c.running"):
        (tmp_path / "cells" / name).touch()
    assert main(how) == 130
    said = f"finished cells stand in {tmp_path}, 2 with those of other suites; repeat the command to go on"
    assert capsys.readouterr().err == f"fedconvex: interrupted: {said}\n"


def test_progress_counts_cells(monkeypatch):
    """Within a problem too, and never backward."""
    shares = []
    monkeypatch.setattr(campaign, "run_cell", lambda *_: {"found": {"settled": False}, "timed": {}})
    nothing = make_dataclass("Nothing", [("conditions", object, None), ("apart", dict, field(default_factory=dict))])
    monkeypatch.setattr(campaign, "Board", lambda *_: nothing())
    pair = [replace(TINY, name=name) for name in "ab"]
    bench(suite=pair, against=["fedsgd", "fedavg"], seeds=2, progress=lambda share, doing: shares.append(share))
    assert shares == pytest.approx([0.0, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1.0])


@pytest.mark.slow
def test_a_solver_of_ones_own_that_takes_no_problem_is_named(tmp_path, capsys):
    (tmp_path / "one.toml").write_text(
        '[[problem]]\nname = "p"\ndata = "linear"\nloss = "squared"\nsettings = {n_clients = 3, n_features = 2}\n'
    )
    how = ["bench", "tests.bench_solvers:Unset", "--suite", str(tmp_path / "one.toml"), "--solvers", "fedsgd"]
    assert main([*how, "--target", "1", "--out", str(tmp_path / "out")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "tests.bench_solvers:Unset is not for p: bench: Unset must have defaults for all settings" in out


def test_profiles_and_cases_refuse_what_they_cannot_use():
    for profile in (performance_profile, data_profile):
        with pytest.raises(ValueError, match="must be finite"):
            profile(np.ones((1, 1)), [np.nan])
    with pytest.raises(ValueError, match="sha256 must be 64 hexadecimal digits"):
        Case("tiny", "linear", {}, "squared", sha256="abc")


def test_cells_of_another_state_of_the_package_are_other_cells(monkeypatch):
    solver, rules = named("fedavg"), Rules((1e-3,), 10)
    now = campaign._key(TINY, solver, "", 0, rules, "")
    assert campaign._key(TINY, solver, "", 0, rules, "other rows") != now
    assert campaign._key(TINY, solver, "edited", 0, rules, "") != now
    assert (
        campaign._key(TINY, solver, "", 0, rules._replace(limit=1.0), "") == now
    )  # a limit that was kept changes nothing
    monkeypatch.setattr(campaign, "package_digest", lambda: "edited")
    assert campaign._key(TINY, solver, "", 0, rules, "") != now


def test_what_failed_is_run_again_and_what_is_stored_says_so(tmp_path):
    """A file that was missing once kept a solver last for good."""
    rules, file = Rules((1e-3,), 10), tmp_path / "cell.json"
    made = [{"found": {"status": s}, "timed": {}} for s in ("failed", "not for this problem", "reached")]
    for answer, own in zip(made, (False, True, True), strict=True):
        assert campaign._kept(file, lambda answer=answer: answer, rules, "it", own) == (answer, False)
    assert campaign._kept(file, lambda: made[0], rules, "it", True) == (made[2], True)
    task = campaign._Task(TINY, (named("sklearn-cholesky"),), ("",), 1, rules, tmp_path, 0.0)
    (tmp_path / "cells").mkdir()
    stored = [campaign._of_case(task._replace(since=t))[0].stored for t in (0.0, 0.0, math.inf)]
    assert stored == [False, False, True]  # what this run has made is none of an earlier one


def test_how_runs_end_in_words():
    steps = [Step(t, np.zeros(1), 0.0, 0.0, 0.0, None) for t in range(4)]
    run = _Judged(steps, np.ones(4), np.array([1.0, 0.9, 0.8, 0.7]), [], np.zeros(1), np.zeros(1))
    rules, lost = Rules((1e-3,), 200), np.array([1.0, np.inf])
    assert _ended(run, rules, True) == ("ended early", "it ended after 3 of 200 rounds")
    assert _ended(run, rules, False) == _ended(run, rules._replace(rounds=3), True) == ("round limit", "")
    end = _ended(run._replace(gaps=lost, last=np.array([np.nan])), rules, True)
    assert end == ("diverged", "its model of round 3 is not finite")
    assert "the gap of round 3" in _ended(run._replace(gaps=lost), rules, True)[1]


def test_cells_of_solvers_that_no_file_holds_are_not_taken_up_again():
    made = [made_of(lambda arrays, settings, rounds, a=a: a) for a in (1, 1, 2)]
    assert made[0] == made[1] != made[2]  # of one file and place, told apart by what they hold
    exec("def notebook(arrays, settings, rounds): ...", space := {"__name__": "notebook"})
    assert made_of(space["notebook"]) != made_of(space["notebook"])


@pytest.mark.slow
def test_a_step_that_goes_by_the_horizon_is_no_chance_and_the_worst_client_is_that_of_the_last_round():
    referee, rules = Referee(TINY), Rules((1e-1, 1e-2), 40)
    found = run_cell(referee, of_target(bench_solvers.horizon), 0, rules)["found"]
    assert found["status"] == "reached" and found["offences"] == []
    arrays, step = arrays_of(referee.problem, "squared"), of_target(bench_solvers.horizon).ready(referee.problem, "")
    models = [arrays.start, *bench_solvers.horizon(arrays, step.settings, 40)]
    assert 4 < found["rounds"] not in (6, 14, 30)  # not the last of those that are judged together
    assert found["worst"] == referee.worst_client(models[found["rounds"]])


def test_a_solver_changes_no_rows_but_its_own():
    referee = Referee(TINY)
    for name, offences in (("Vandal", []), ("Elsewhere", [NOT_ZERO])):
        solver = replace(of_target(getattr(bench_solvers, name)), own=False)  # no other process: that is another test
        found = run_cell(referee, solver, 0, Rules((1e-9,), 5, 1))["found"]
        assert [what for what, _ in found["offences"]] == offences
        assert digest(referee.problem.federation) == digest(TINY.problem().federation)


@pytest.mark.slow
def test_trials_that_fail_are_no_failure_and_leaving_is_one():
    rules, solver = Rules((1e-1,), 40, 1), replace(of_target(bench_solvers.steep), tuned=True)
    found = run_cell(Referee(TINY), solver, 0, rules)["found"]
    assert found["status"] == "reached" and found["words"].startswith("1 times step_size 0.9029 offered, 1/(L of F)")
    assert run_cell(Referee(TINY), of_target(bench_solvers.steep), 0, Rules((1e-99,), 5, 1))["found"]["words"] == (
        "SystemExit:"
    )


def test_a_solver_that_hangs_is_stopped_and_named(tmp_path):
    """Where it loops in Python, even if it catches what it can; more time is another attempt."""
    board = bench([bench_solvers.stubborn], suite=[TINY], against=[], limit=0.1, folder=tmp_path)
    assert [c.found["status"] for c in board.cells] == ["time limit"]
    assert board.cost("tiny", "stubborn", 1e-3, "rounds").median == np.inf
    assert board.notes == {"stubborn": {"tiny": "stopped after 0.1 s"}}
    assert not board.offences
    file = next(f for f in (tmp_path / "cells").iterdir() if '"limit"' in f.read_text())
    assert campaign._read(file, Rules((1e-3,), 10, limit=0.05)) is not None
    assert campaign._read(file, Rules((1e-3,), 10, limit=0.3)) is None


@pytest.mark.slow
def test_models_that_are_no_record_of_the_rounds_are_refused():
    """One array that was changed in place met every target in round 1; of complex models the real part was judged."""
    board = bench([bench_solvers.in_place, bench_solvers.imaginary], suite=[TINY], against=[], seeds=1)
    assert [(c.found["status"], c.found["words"]) for c in board.cells] == [
        (
            "failed",
            "ValueError: bench: in_place must return a model of its own for every round; got the same array every "
            "time: append copies",
        ),
        ("failed", "TypeError: bench: imaginary: model must have real numbers; got complex ones"),
    ]


def test_a_limit_beyond_all_clocks_is_none():
    with at_most(1e300, alone=True):
        pass


def test_an_alarm_is_over_when_the_work_is():
    with at_most(600.0, alone=False):
        assert 0.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 600.0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with pytest.raises(OutOfTime), at_most(600.0, alone=False), at_most(300.0, alone=False):  # the first one holds
        os.kill(os.getpid(), signal.SIGALRM)


@pytest.mark.slow
def test_processes_take_what_a_script_defines_and_are_ended_where_nothing_else_helps(tmp_path):
    """A lambda, and a solver that never comes back to Python: its process is ended, and the others are not lost."""
    hung = bench_solvers.Hung(step_size="auto")
    given = [lambda arrays, settings, rounds: bench_solvers.descent(arrays, settings, rounds), hung]
    board = bench(given, suite=[TINY], against=["fedsgd"], limit=30.0, jobs=2, folder=tmp_path, rounds=50)
    found = {c.solver: c.found["status"] for c in board.cells}
    assert found == {"<lambda>": "reached", "Hung": "time limit", "fedsgd": "reached"}  # both have the same step
    assert not list((tmp_path / "cells").glob("*.running"))
    board = bench([bench_solvers.Leaving(step_size="auto")], suite=[TINY], against=["fedsgd"], jobs=2, rounds=50)
    found = {c.solver: c.found["words"] for c in board.cells}
    assert found["Leaving"] == "its process has ended (exit code 3)" and "1/(L of F)" in found["fedsgd"]


def test_a_method_of_the_package_that_ends_its_process_is_named(tmp_path):
    """It runs in the process of the referee: the marks of running cells say which."""
    task = campaign._Task(TINY, (named("fedsgd"),), ("",), 1, Rules((1e-3,), 10), tmp_path)
    (tmp_path / "cells").mkdir()
    for _ in range(2):
        (tmp_path / "cells" / "a.running").write_text("tiny, fedsgd")
        with pytest.raises(RuntimeError, match=r"bench: gone; what was running: tiny, fedsgd"):
            campaign._end(task, RuntimeError("gone"))
    (tmp_path / "cells" / "a.running").write_text("tiny, fedsgd")
    os.utime(tmp_path / "cells" / "a.running", (0, 0))
    campaign._end(task, RuntimeError("gone"))  # its time was over: that is kept
    assert json.loads((tmp_path / "cells" / "a.json").read_text())["found"]["status"] == "time limit"


@pytest.mark.slow
def test_threads_of_a_solver_are_noted():
    assert _notes(0.0, 0.04) == _notes(1.0, 0.1) == []
    board = bench([bench_solvers.threaded], suite=[TINY], against=[], rounds=3, repeats=1)
    ((who, where, how),) = notes_table(board)
    assert (who, where) == ("threaded", "on 1 problem") and "threads of its own worked for" in how


def test_seconds_are_the_least_of_every_round():
    rows = [[0.0, 1.0, 3.0, 4.0], [0.0, 2.0, 3.0, 9.0], [0.0, 0.1]]
    assert _least(rows, 4, pooled=False).tolist() == [0.0, 1.0, 2.0, 3.0]
    assert _least(rows, 4, pooled=True).tolist() == [0.0, 1.0, 3.0, 4.0]


@pytest.mark.slow
def test_rows_of_latex_do_not_begin_with_what_it_takes_for_an_argument():
    text = latex(bench([bench_solvers.descent], suite=[replace(TINY, name="[a]*")], against=["fedsgd"], rounds=3))
    assert r"\caption{{[}a]{*}}" in text
    assert not re.search(r"\\\\\s*[\[*]", text)
    assert escaped("[x*") == "{[}x{*}"


def test_a_method_that_refuses_a_loss_is_not_for_it():
    hinge = Case("hinge", "logistic", {"n_clients": 3, "n_features": 2}, "hinge", 0.1)
    found = run_cell(Referee(hinge), named("progressive-hedging"), 0, Rules((1e-1,), 3))["found"]
    assert found["status"] == "not for this problem" and "loss with curvature" in found["words"]


def test_solvers_of_another_aim_are_refused():
    with pytest.raises(ValueError, match="afl must minimise what the suite asks for, one model; got worst domain"):
        bench(suite=[TINY], against=["afl"])


@pytest.mark.slow
def test_solvers_for_no_problem_of_the_suite_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.toml").write_text('[[problem]]\nname = "p"\ndata = "linear"\nloss = "squared"\nl2 = 0.1\n')
    assert main(["bench", "--suite", "one.toml", "--solvers", "fedsgd,mocha,afl", "--rounds", "5"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "not applicable to this suite: mocha, made for model per task or learned relationship" in said, said
    assert "not applicable to this suite: afl, made for worst domain" in said


def test_agreement_of_two_runs_notices_what_turns(tmp_path):
    def write(name, text, seconds):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.csv").write_text(text)
        rows = [f"p,{s},{seed},0.1,{t}" for s, times in seconds.items() for seed, t in enumerate(times)]
        (tmp_path / name / "seconds.csv").write_text("\n".join(["problem,solver,seed,target,seconds", *rows]))
        return tmp_path / name

    first = write("first", "a", {"x": (1.0, 9.0, 2.0), "y": (2.6,), "z": (2.7,), "lost": ("",)})
    second = write("second", "a", {"x": (2.0,), "y": (2.7,), "z": (2.6,), "lost": (1.0,)})  # y and z are too close
    third = write("third", "b", {"x": (2.0,), "y": (1.5,), "z": (9.0,), "lost": ("",)})
    assert agreement(first, second)[:3] == (True, 2, [])
    found = agreement(first, third)
    assert not found.same and found.turned == ["p 0.1: x over y 0.77, then 1.33"]
    assert found.ranks[0] == {"x": 1.0, "y": 2.0, "z": 3.0} and found.ranks[1]["y"] == 1.0
