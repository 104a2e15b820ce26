"""What a quick version may refute, and how a run that was killed goes on."""

import json
import sys
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from fedconvex.cli import main
from fedconvex.driver.result import Trace
from fedconvex.families.boosting.experiments.runs import Choice
from fedconvex.papers import Claim, Experiment, Findings, summary
from fedconvex.papers.agnostic_clients import claims as clients_claims
from fedconvex.papers.agnostic_fashion import claims as fashion_claims
from fedconvex.papers.finished_parts import finished_part, keeping, number_kept
from fedconvex.papers.intervals import Interval, every


def test_a_quick_version_decides_only_what_every_version_decides():
    """A planted failure of either kind: the small one is left open, the certificate still fails; so with what holds."""

    def study(*, quick, seed, data, tell):
        small, gap = Claim("A errs less than B", np.bool_(False), "3, 2"), Claim("gap", False, "1", everywhere=True)
        return Findings("Sums", (small, gap, Claim("1 + 1 = 2", True, "2"))[: 2 - seed], ())

    experiment = Experiment("sums", "adds", study, smaller="fewer")
    quick, full = experiment.run(quick=True, seed=1), experiment.run(seed=1)
    assert quick.holds and not full.holds
    assert "not decided here (false in this version; needs the full version)   A errs less than B" in summary(quick)
    assert "FAILS" not in summary(quick) and "FAILS   A errs" in summary(full)
    assert not experiment.run(quick=True).holds
    assert "Needs the full version: a smaller one decides only" in summary(quick)
    assert "Needs the full version" not in summary(full) and "Not decided here:" not in summary(full)


def test_a_quick_version_confirms_nothing_that_the_full_one_may_refute():
    """True in a small version: open unless size does not matter. What all models must meet can be refuted by few."""
    for everywhere, refutable, holds, verdict in (
        (False, False, True, None),
        (False, False, False, None),
        (True, False, True, True),
        (True, False, False, False),
        (False, True, True, None),
        (False, True, False, False),
    ):
        claim = Claim("x", holds, "1", everywhere, refutable=refutable).if_quick()
        assert claim.holds is verdict and claim.here is (holds if verdict is None else None)
    assert Claim("x", True, "1").if_quick().said == "not decided here (true in this version; needs the full version)"
    left = Claim("x", None, "1", needs="three runs").if_quick()
    assert left.said == "not decided here (needs three runs)" and left.here is None
    text = summary(Findings("Sums", (left,), ()))
    assert "Not decided here: the numbers allow either" in text and "Needs the full version" not in text


def test_verdicts_of_intervals_have_three_values():
    high, unsure, low = Interval(1.0, 0.5), Interval(0.1, 0.5), Interval(-1.0, 0.5)
    assert [v.above() for v in (high, unsure, low)] == [True, None, False]
    assert [v.below() for v in (high, unsure, low)] == [False, None, True]
    assert [Interval(1.0, np.nan).above(), every([]), every([True, None])] == [None, True, None]
    assert every([None, False, True]) is False
    narrow, wide, beyond, across = Interval(0.1, 0.05), Interval(0.0, 0.5), Interval(-1.0, 0.5), Interval(0.2, 0.05)
    assert [v.within(0.2) for v in (narrow, wide, beyond, across)] == [True, None, False, None]
    assert Interval(0.0, np.nan).within(0.2) is None and Interval(0.0, 0.0).within(0.2) is True


def test_claims_of_agnostic_experiments_are_refuted_only_beyond_noise():
    """Planted differences on the wrong side, and within noise."""
    for mean, verdict in ((-0.05, False), (0.001, None), (0.05, True)):
        row = {"AFL minus FedAvg": "x", "mean": mean, "low": mean - 0.01, "high": mean + 0.01}
        names = ("worst loss", "worst accuracy", "worst gains minus mean loses, accuracy", "mean accuracy")
        loss, accuracy, both = clients_claims._claims_by_label("d", dict.fromkeys(names, row))
        assert accuracy.holds is both.holds is verdict
        assert loss.holds is (None if verdict is None else not verdict)

    class Told(NamedTuple):
        accuracy: np.ndarray
        y: np.ndarray = np.repeat([0, 1, 2], 100)

    for first, verdict in ((0.5, True), (0.8, None), (0.99, False)):
        assert fashion_claims._lowest(Told(np.array([[first, 0.85, 0.85]]))) is verdict


def test_a_folder_of_somebody_else_is_not_deleted(tmp_path):
    """DIR/parts was removed before the run, and after it, whatever it held."""
    mine = tmp_path / "parts" / "thesis.tex"
    mine.parent.mkdir()
    mine.write_text("years of work")
    experiment = Experiment("sums", "adds", lambda **given: Findings("Sums", (), ()))
    with pytest.raises(ValueError, match=r"parts must be new, or hold finished parts .*; got other files"):
        experiment.run(parts=mine.parent)
    (mine.parent / "run.json").write_text('{"mine": 1}')  # a file of that name is no mark,
    with pytest.raises(ValueError, match="got other files"):
        experiment.run(parts=mine.parent)
    with keeping(tmp_path / "other", "e", True, 0, None):
        finished_part("part", lambda: 1)
    (tmp_path / "other" / "notes.txt").write_text("mine too")  # and beside a mark there may be others' files
    with pytest.raises(ValueError, match="got other files"), keeping(tmp_path / "other", "e", True, 1, None):
        pass
    assert mine.read_text() == "years of work" and (tmp_path / "other" / "notes.txt").is_file()


VALUE = [
    {("a", 1): np.arange(3.0), "b": (1, 2.5, None, True, "x")},
    Choice(0.5, 3, float("inf"), 1.0, np.array([0.1, 0.2])),
    Interval(1.0, 2.0),
    np.float64(0.1),
]


RECORDS = (Choice, Interval)


def test_parts_come_back_as_they_were(tmp_path):
    made = []

    def make():
        made.append(1)
        return VALUE

    for _ in range(2):
        with keeping(tmp_path / "p", "e", True, 0, None):
            found = finished_part("part one", make, RECORDS)
        assert repr(found) == repr(VALUE) and [type(v) for v in found] == [type(v) for v in VALUE]
    assert len(made) == 1 and number_kept(tmp_path / "p") == 1
    with keeping(tmp_path / "p", "e", True, 1, None):  # another seed: nothing of it is used
        finished_part("part one", make, RECORDS)
    assert len(made) == 2
    next((tmp_path / "p").glob("part*")).write_bytes(b"damaged")
    with keeping(tmp_path / "p", "e", True, 1, None):
        finished_part("part one", make, RECORDS)
    assert len(made) == 3
    for name in ("a", "b", "b"):  # the data of another folder
        (tmp_path / name).mkdir(exist_ok=True)
        with keeping(tmp_path / "p", "e", True, 1, tmp_path / name):
            finished_part("part one", make, RECORDS)
    assert len(made) == 5
    with keeping(tmp_path / "p", "e", True, 1, None), pytest.raises(TypeError, match="kept: values must be"):
        finished_part("another", lambda: {1, 2})
    finished_part("part one", make, RECORDS)  # outside nothing is kept
    assert len(made) == 6


CRAFTED = [
    {"class": ["fedconvex._files", "write_file"], "fields": ["PATH", {"array": 0, "number": False}]},
    {"class": ["fedconvex.papers.finished_parts", "shutil.rmtree"], "fields": ["PATH"]},
    {"record": "write_file", "fields": ["PATH", {"array": 0, "number": False}]},
    {"record": ["Choice"], "fields": []},
    {"record": "Choice", "fields": [0.5]},  # of the list, with too few fields
    {"record": "Choice", "class": ["builtins", "eval"], "fields": ["1"]},
    {"map": [[{"list": [], "tuple": False}, 1]]},  # no key of a dictionary
    {"array": 7, "number": False},
    {"array": "../../tree", "number": True},
    {},
]


@pytest.mark.parametrize("tree", CRAFTED, ids=range(len(CRAFTED)))
def test_a_crafted_part_is_data_and_is_made_again(tmp_path, tree):
    """A part named a module and an attribute of it, which were called with its arguments: it could write files."""
    target = tmp_path / "written"
    with keeping(tmp_path / "p", "e", True, 0, None):
        finished_part("part", lambda: 1)
        (file,) = (tmp_path / "p").glob("part*")
        body = json.dumps(tree).replace("PATH", str(target))
        np.savez(file, tree=np.array(body), a0=np.frombuffer(b"code", dtype=np.uint8))
        before = sorted(sys.modules)
        assert finished_part("part", lambda: 2, RECORDS) == 2
        assert not target.exists() and sorted(sys.modules) == before
        assert finished_part("part", lambda: 3, RECORDS) == 2


def test_nested_without_end(tmp_path):
    with keeping(tmp_path / "p", "e", True, 0, None):
        finished_part("part", lambda: 1)
        (file,) = (tmp_path / "p").glob("part*")
        np.savez(file, tree=np.array("[" * 100_000))
        assert finished_part("part", lambda: 2) == 2


def test_only_experiments_name_the_kinds_of_records(tmp_path):
    with pytest.raises(TypeError, match="got Interval"):
        finished_part("part", lambda: [Interval(1.0, 2.0)])  # where nothing is kept, too
    with keeping(tmp_path / "p", "e", True, 0, None):
        with pytest.raises(TypeError, match=r"kept: values must be .* records \(none named\); got Interval"):
            finished_part("part", lambda: [Interval(1.0, 2.0)])
        with pytest.raises(TypeError, match="got Trace"):  # it came back as another kind of dictionary
            finished_part("part", lambda: Trace(gap=np.zeros(2)), RECORDS)


def test_a_killed_run_goes_on(monkeypatch, tmp_path, capsys):
    """Killed in its second part, the command starts there when it is given again; then the parts are gone."""
    made = []

    def part(i):
        if i == 1 and len(made) == 1:
            made.append("killed")
            raise KeyboardInterrupt
        made.append(i)
        return i

    def study(*, quick, seed, data, tell):
        total = sum(finished_part(f"part {i}", lambda i=i: part(i)) for i in range(3))
        return Findings("Sums", (Claim("0 + 1 + 2 = 3", total == 3, f"{total}"),), ())

    monkeypatch.setattr("fedconvex.papers.EXPERIMENTS", {"sums": Experiment("sums", "adds", study)})
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "sums"]) == 130
    assert "goes on from its 1 finished parts" in capsys.readouterr().err
    assert main(["reproduce", "sums"]) == 0
    assert made == [0, "killed", 1, 2]
    assert "finished parts of an earlier run" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "reproduce-sums").iterdir()] == ["claims.json"]
