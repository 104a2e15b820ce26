"""What a site keeps, and what keeps it: one count for all studies on its rows, limits, its log, and one process."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest
from scipy.optimize import minimize

from fedconvex.cli import main
from fedconvex.models import LinearModel
from fedconvex.remote import Limits, messages
from fedconvex.remote.messages import JOIN, Request
from fedconvex.study import audit_log, check_site, read_site
from fedconvex.study.audit_log import AuditLog, read_log
from fedconvex.study.runs_asked import questions
from fedconvex.study.site_end import HELLO, RESULT, RUN, Participant, take_part
from fedconvex.sweeps.answers_on_disk import alone_in
from tests.study.test_study import SITES, STUDY, conducted, message, pooled, written

ANALYSE = STUDY.replace("solve = { loss", "# solve = { loss")
SOLVE = STUDY.replace("analyse = {", "# analyse = {")


def said(site, asked):
    answer = site.answer(asked)
    return messages.words(answer["why"]) if "why" in answer else ""


def one(folder, study, name="va"):
    return Participant(study, read_site(folder / f"{name}.toml"), lambda line: None)


@pytest.mark.slow
def test_numbers_are_counted_over_all_studies_on_a_table(tmp_path):
    """Neither a comment nor another penalty or family begins at zero, and none asks to delete the count."""
    first = written(tmp_path, study=ANALYSE)
    conducted(tmp_path, first)
    counted = one(tmp_path, first).numbers
    kept = sorted(path.name for path in (tmp_path / "state_va").glob("*.npz"))
    assert counted > 100
    assert one(tmp_path, written(tmp_path, study=ANALYSE + "\n# a comment\n")).sites[0].audit.models
    assert sorted(path.name for path in (tmp_path / "state_va").glob("*.npz")) == kept
    other = written(tmp_path, study=SOLVE.replace("l2 = 0.01", "l2 = 0.02"))
    assert one(tmp_path, other).numbers == counted
    (tmp_path / "out").rename(tmp_path / "first")
    conducted(tmp_path, other)
    second = one(tmp_path, other)
    lines = list(read_log(second.log.path))
    assert second.numbers == second.log.ledger > counted
    assert second.numbers >= sum(line.get("new", 0) for line in lines) > counted
    usual, held = second.questions[0].usual, second.sites[0].ledger.unknown
    third = written(tmp_path, study=SOLVE, limits=f"parameters = 0.5\nshare = {usual / held + 1e-9}\n")
    found = check_site(third, read_site(tmp_path / "va.toml")).findings
    assert any(f"{second.numbers:,} numbers were answered" in f.found and not f.stops for f in found)
    (tmp_path / "out").rename(tmp_path / "second")
    loose = written(tmp_path, study=SOLVE)
    sites = [one(tmp_path, loose, name) for name in SITES]
    sites[3].sites[0].ledger.limits = Limits(share=usual / held)
    sites[3].numbers = usual  # other studies have taken all of it
    with pytest.raises(ConnectionError, match="va"):
        conducted(tmp_path, loose, sites)
    assert any("numbers are answered about rows" in line.get("why", "") for line in read_log(sites[3].log.path))


def test_limits_hold_for_a_model_too(tmp_path):
    """Few events, a rare category, and many coefficients are refused by the question that sums gradients over them."""
    rare = {"va": lambda c: {**c, "cp": ["2", *["4" if v == "2" else v for v in c["cp"][1:]]]}}
    study = written(tmp_path, study=SOLVE, changed=rare)
    wrong = [f for f in check_site(study, read_site(tmp_path / "va.toml")).findings if f.stops]
    assert [f.check for f in wrong] == ["solve"] and "rows of a level of 'cp=2' must be none or at least 3" in wrong[
        0
    ].found
    few = {"va": lambda c: {**c, "disease": ["yes", "yes", *["no"] * 108]}}
    study = written(tmp_path, study=SOLVE, changed=few)
    wrong = [f for f in check_site(study, read_site(tmp_path / "va.toml")).findings if f.stops]
    assert "events must be at least 5; got 2" in wrong[0].found
    study = written(tmp_path, study=SOLVE, limits="parameters = 0.01\nshare = 20.0\n")
    wrong = [f for f in check_site(study, read_site(tmp_path / "va.toml")).findings if f.stops]
    assert "coefficients must be at most 0.01 of the rows" in wrong[0].found


def test_runs_cannot_be_gone_around(tmp_path):
    """No step without a run, and no more sessions than runs, whatever a coordinator calls them."""
    study = written(tmp_path, study=ANALYSE, limits="parameters = 0.5\nshare = 20.0\nruns = 2\n")
    site, given = one(tmp_path, study), np.full(16, 1, dtype=np.uint8)

    def joining(session):
        return message(study, 0, header=Request(JOIN, -1, 0, session).header())

    assert "it names no run" in said(site, joining(1))
    assert said(site, message(study, HELLO, **{RUN: given})) == ""
    for session in (1, 2, 1, 2):
        assert "runs were answered" not in said(site, joining(session))
    for session in (3, 4):
        assert "2 runs were answered" in said(one(tmp_path, study), joining(session))


def test_who_does_not_stop_asking_stops_the_site_and_does_not_fill_its_disk(tmp_path):
    """Refusals, greetings and keys without proofs add lines alike; the last of them stay whole."""
    study = written(tmp_path, study=ANALYSE, limits="log = 0.01\n")
    site, given = one(tmp_path, study), np.full(16, 1, dtype=np.uint8)
    asked = [message(study, HELLO, **{RUN: given}), message(study, -3)]
    with pytest.raises(ValueError, match=r"the audit log has 0\.0\d+ MB, .* log allows 0\.01: .*study audit"):
        for i in range(1000):
            site.answer(asked[i % 2])
    lines = list(read_log(site.log.path))
    assert 10 < len(lines) < 50 and site.log.path.stat().st_size <= 10_000
    with pytest.raises(ValueError, match="the audit log has"):  # nor is anything answered after a restart
        one(tmp_path, study).answer(asked[0])
    assert [line["hash"] for line in read_log(site.log.path)] == [line["hash"] for line in lines]


@pytest.mark.slow
def test_odd_requests_are_refused_and_the_site_stays(tmp_path):
    study = written(tmp_path, study=ANALYSE)
    site, rng = one(tmp_path, study), np.random.default_rng(11)
    assert said(site, message(study, HELLO, **{RUN: np.full(16, 1, dtype=np.uint8)})) == ""
    odd = [
        np.zeros(()), np.zeros(0), np.zeros((3, 0)), np.array("text"), np.array(["a", "b"]), np.array(1 + 2j),
        np.array(True), np.full(4, np.nan), np.array([np.datetime64("NaT")]),
        rng.integers(0, 256, 300).astype(np.uint8), np.zeros(2, dtype=[("a", "f8"), ("b", "i4")]),
        np.array(-(1 << 62)), np.frombuffer(b"\x1b[2J\n", np.uint8),
    ]  # fmt: skip
    for step in (HELLO, 0, RESULT, -3):
        for a in odd:
            for name in ("study/name", "study/content", RUN, "header", "ids", "study/step"):
                asked = message(study, step, **{"study/name": messages.text("study.txt"), name: a})
                answer = site.answer(asked)
                assert messages.words(answer["why"]) if step != RESULT else answer, (step, name, a)
    assert {path.name for path in (tmp_path / "results_va").iterdir()} <= {"study.txt"}
    assert all(line["what"] in ("joined", "refused", "received") for line in read_log(site.log.path))


def test_a_line_that_was_not_finished_does_not_break_the_log(tmp_path, monkeypatch):
    log = AuditLog(tmp_path / "audit.jsonl")
    log.write("answered", ledger=7)
    log.write("answered", ledger=9)
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + whole.splitlines()[1][:40])  # the machine stopped here
    assert [line["ledger"] for line in read_log(log.path)] == [7, 9]
    again = AuditLog(log.path)
    assert again.ledger == 9 and [line["what"] for line in read_log(log.path)][2] == "an unfinished line was taken away"

    def full(file, content, wrote=os.write):
        return wrote(file, content[:20])

    before = log.path.read_bytes()
    with monkeypatch.context() as disk, pytest.raises(OSError, match="No space left"):
        disk.setattr(audit_log.os, "write", full)
        again.write("answered", ledger=11)
    assert log.path.read_bytes() == before
    again.write("answered", ledger=12)
    assert AuditLog(log.path).ledger == 12


def test_nothing_leaves_without_its_line(tmp_path, monkeypatch):
    study = written(tmp_path, study=ANALYSE)
    site = one(tmp_path, study)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(audit_log.os, "write", full)
    with pytest.raises(ValueError, match=r"site va: .*state_va must be written to; got .*No space left.*join again"):
        site.answer(message(study, HELLO, **{RUN: np.full(16, 1, dtype=np.uint8)}))
    assert site.runs == []  # nor does a greeting that could not be written down use one up


def test_a_state_folder_is_of_one_process(tmp_path):
    study, settings = written(tmp_path, study=ANALYSE), read_site(tmp_path / "va.toml")
    settings.state.mkdir(mode=0o700)
    with alone_in("join", settings.state), pytest.raises(ValueError, match="be worked on by one process"):
        take_part(study, settings, lambda line: None, wait=0.0)


@pytest.mark.slow
def test_a_model_takes_the_tables_of_the_sites(tmp_path):
    """Codes, missing cells and a column that is empty become what they were in training."""
    text = SOLVE.replace('missing = "indicator"', 'missing = "indicator"\ncenter = 2\ncodes = ["-9"]')
    study = written(tmp_path, study=text.replace("tol = 1e-9", "tol = 1e-4"))
    conducted(tmp_path, study)
    model, (question,) = LinearModel.load(tmp_path / "out" / "model"), questions(study)
    rows = check_site(study, read_site(tmp_path / "hungarian.toml")).rows
    federation = question.rows(rows.columns, "hungarian", read_site(tmp_path / "hungarian.toml").guards)
    raw = federation.X.copy()
    raw[:, :-1] = raw[:, :-1] * question.plan.scale + question.plan.center
    wanted = raw[:, :-1] @ model.coef + model.intercept
    lines = (tmp_path / "hungarian.csv").read_text().splitlines()
    complete = [lines[0], *(line for line in lines[1:] if line.split(",")[1])]
    coded = [re.sub(",$", ",-9", line) for line in complete]
    assert coded != complete and model.feature_names[-1] == "ca=(missing)"
    for name, content in (("raw", complete), ("coded", coded)):
        (tmp_path / f"{name}.csv").write_text("\n".join(content) + "\n")
        np.testing.assert_allclose(model.decision_function(tmp_path / f"{name}.csv"), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_a_model_takes_tables_with_unknown_names_and_without_columns(tmp_path, capsys):
    """As at the sites: a name that the study does not have is "other", and va's table lacks ca. In a terminal too."""
    text = SOLVE.replace('"3", "4"]', '"3"]\nunknown = "other"').replace('reference = "4"\n', "")
    study = written(tmp_path, study=text.replace("tol = 1e-9", "tol = 1e-4"))
    conducted(tmp_path, study)
    model, (question,) = LinearModel.load(tmp_path / "out" / "model"), questions(study)
    assert "cp=(other)" in model.feature_names
    for name in ("va", "hungarian"):
        settings = read_site(tmp_path / f"{name}.toml")
        X = question.rows(check_site(study, settings).rows.columns, name, settings.guards).X[:, :-1]
        wanted = (X * question.plan.scale + question.plan.center) @ model.coef + model.intercept
        lines = (tmp_path / f"{name}.csv").read_text().splitlines()
        place = lines[0].split(",").index("chol")
        complete = [line for line in lines if line.split(",")[place]]
        assert ("ca" in lines[0]) == (name != "va")
        (tmp_path / "raw.csv").write_text("\n".join(complete) + "\n")
        np.testing.assert_allclose(model.decision_function(tmp_path / "raw.csv"), wanted, rtol=1e-10, atol=1e-12)
        out = tmp_path / "predictions.csv"
        assert main(["predict", str(tmp_path / "out" / "model"), str(tmp_path / "raw.csv"), "--out", str(out)]) == 0
        shown = [line.split(",")[1] for line in out.read_text().splitlines()[1:]]
        assert shown == ["yes" if z >= 0.0 else "no" for z in wanted]
    assert "warning" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("values", [("yes", "no"), ("2", "1"), ("ümlaut", "ému"), ("1.5", "-3")])
def test_the_second_class_is_the_event_of_a_model_whatever_the_alphabet_says(tmp_path, values):
    named = dict(zip(("no", "yes"), values, strict=True))
    text = SOLVE.replace('["no", "yes"]', json.dumps(list(values), ensure_ascii=False))
    renamed = dict.fromkeys(SITES, lambda c: {**c, "disease": [named[v] for v in c["disease"]]})
    study = written(tmp_path, study=text, changed=renamed)
    conducted(tmp_path, study)
    model, rows = LinearModel.load(tmp_path / "out" / "model"), pooled(tmp_path)
    names = ["age", "chol", "cp=1", "cp=2", "cp=3", "cp=4", "ca", "ca=(missing)"]
    assert list(model.feature_names) == names and model.classes == values
    center, scale = np.array([60.0, 240, 0, 0, 0, 0, 0, 0]), np.array([10.0, 50, 1, 1, 1, 1, 1, 1])
    cp = [[float(v == c) for v in rows["cp"]] for c in "1234"]
    raw = np.column_stack([rows["age"], rows["chol"], *cp, rows["ca"], rows["ca=(missing)"]]).astype(float)
    X = np.column_stack([(raw - center) / scale, np.ones(len(raw))])
    y = np.where(np.array(rows["disease"]) == "yes", 1.0, -1.0)  # the event, which is the second value
    w = minimize(
        lambda w: np.logaddexp(0.0, -y * (X @ w)).mean() + 0.005 * w @ w,
        np.zeros(9),
        jac=lambda w: -(X.T @ (y / (1.0 + np.exp(y * (X @ w))))) / len(y) + 0.01 * w,
        options={"gtol": 1e-9},
    ).x
    np.testing.assert_allclose(model.decision_function(raw), X @ w, atol=1e-3)  # (2 tol/l2)^(1/2) in w
    assert model.predict(raw).tolist() == [values[int(z >= 0.0)] for z in model.decision_function(raw)]
