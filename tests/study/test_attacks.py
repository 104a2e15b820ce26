"""What somebody with ill will may try at a study's ends: certificates, files of a machine, and requests."""

from __future__ import annotations

import datetime
import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from fedconvex._files import npz, own_folder
from fedconvex.analysis.site_answers import report
from fedconvex.cli import main
from fedconvex.models import LinearModel
from fedconvex.remote import TLS, in_process, messages
from fedconvex.remote.masks import KEYS
from fedconvex.remote.messages import Refused
from fedconvex.secure import Party
from fedconvex.study import certificates, check_site, read_site
from fedconvex.study.audit_log import read_log
from fedconvex.study.certificates import SERVER, SITE, approve, credentials, make_request
from fedconvex.study.held_out import Losses
from fedconvex.study.runs_asked import questions
from fedconvex.study.sealed_keys import CERTIFICATE, PROOFS, SIGNATURE, Seals, proofs_of
from fedconvex.study.site_end import HELLO, RESULT, RUN
from fedconvex.study.trial import _free_port as free_port
from tests.study.test_network import STUDY as WARDS
from tests.study.test_network import certified, met, study_in
from tests.study.test_study import SITES, STUDY, conducted, message, written
from tests.study.test_what_sites_keep import ANALYSE, SOLVE, one, said

pytest.importorskip("cryptography")
RUN_A = {RUN: np.full(16, 1, dtype=np.uint8)}


def at(monkeypatch, days):
    """Make the clock of certificates that many days wrong."""
    real = datetime.datetime.now(datetime.UTC)
    monkeypatch.setattr(certificates, "_now", lambda: real + datetime.timedelta(days=days))


# ---------------------------------------------------------------- certificates


@pytest.mark.slow_unless(days=-400)
@pytest.mark.parametrize(("days", "word"), [(-400, "expired"), (3, "not yet valid")])
def test_a_certificate_of_another_time_opens_nothing(tmp_path, monkeypatch, days, word):
    """At the site before anything is sent, at the server whatever the site's own clock says, and at the site of it."""
    study = study_in(tmp_path)
    certified(tmp_path, study, "north")
    good = TLS(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "authority.pem", study.sites)
    with monkeypatch.context() as wrong:
        at(wrong, days)
        wrong.setattr(certificates, "check_period", lambda *a: None)
        approve(make_request("south", tmp_path), "south", tmp_path)
    files = [tmp_path / name for name in ("south.pem", "south.key", "authority.pem")]
    with pytest.raises(ValueError, match=r"be good now, from .* by this machine's clock"):
        credentials(study, *files, SITE + "south")
    told, strangers = met(good, TLS(*files, study.sites), 1)
    assert "be accepted by the server" in told and word in strangers[0].lower().replace("_", " ")


def test_a_server_of_another_time_is_told_nothing(tmp_path, monkeypatch):
    study = study_in(tmp_path)
    with monkeypatch.context() as wrong:
        at(wrong, -400)
        certificates.make_authority(study, tmp_path)
        approve(make_request("north", tmp_path), "north", tmp_path)
    server, site = (
        TLS(tmp_path / f"{n}.pem", tmp_path / f"{n}.key", tmp_path / "authority.pem", study.sites)
        for n in ("server", "north")
    )
    assert "certificate has expired" in met(server, site, 0)[0]
    with pytest.raises(ValueError, match=r"authority.pem must be good now.*make a new one"):
        approve(make_request("south", tmp_path), "south", tmp_path)


def test_a_certificate_is_of_its_place_and_not_longer_than_its_authority(tmp_path):
    study = study_in(tmp_path)
    certificates.make_authority(study, tmp_path, days=10)
    pem = approve(make_request("north", tmp_path), "north", tmp_path, days=300)
    x509 = certificates.library()[0]
    ends = [
        x509.load_pem_x509_certificate(p.read_bytes()).not_valid_after_utc for p in (pem, tmp_path / "authority.pem")
    ]
    assert ends[0] == ends[1]
    own = [tmp_path / "north.key", tmp_path / "authority.pem"]
    for place in (SERVER, SITE + "south"):
        with pytest.raises(ValueError, match=f"north.pem must be that of {place}; got fedconvex:site:north"):
            credentials(study, pem, *own, place)
    shown = certificates.fingerprint_of(pem)
    with pytest.raises(ValueError, match="not be revoked in the study"):
        credentials(replace(study, revoked=(shown,)), pem, *own, SITE + "north")
    server = TLS(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "authority.pem", study.sites)
    told, _ = met(TLS(pem, *own, study.sites), server, 0)  # a site that plays the server, to whoever connects
    assert "must show a certificate of this authority for localhost" in told


@pytest.mark.slow
def test_check_says_what_is_wrong_with_a_certificate(tmp_path, monkeypatch):
    study = written(tmp_path)
    site = read_site(tmp_path / "va.toml")
    assert any(f.check == "certificate" and not f.stops for f in check_site(study, site).findings)
    with monkeypatch.context() as wrong:
        at(wrong, -400)
        certificates.make_authority(study, tmp_path)
        approve(make_request("va", tmp_path), "va", tmp_path)
    (wrong_one,) = [f for f in check_site(study, site).findings if f.stops]
    assert wrong_one.check == "certificate" and "be good now" in wrong_one.found and "make a new one" in wrong_one.cure


# ---------------------------------------------------------------- others on the same machine

POSIX = pytest.mark.skipif(os.name != "posix", reason="rights of POSIX systems")


@POSIX
@pytest.mark.slow
def test_keys_and_states_that_others_may_read_are_refused(tmp_path):
    study = written(tmp_path)
    certified(tmp_path, study, "va")
    for name in ("va.key", "authority.key", "server.key"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    (tmp_path / "authority.key").chmod(0o640)
    with pytest.raises(ValueError, match=r"be readable by its owner only; got mode 640: chmod 600"):
        approve(make_request("east", tmp_path), "east", tmp_path)
    (tmp_path / "va.key").chmod(0o604)
    assert any("mode 604" in f.found + f.cure for f in check_site(study, read_site(tmp_path / "va.toml")).findings)
    (tmp_path / "va.key").chmod(0o600)
    (tmp_path / "state_va").mkdir(mode=0o755)
    with pytest.raises(ValueError, match=r"site va: state must be readable by its owner only; got mode 755: chmod 700"):
        one(tmp_path, study)
    (tmp_path / "state_va").chmod(0o700)
    site = one(tmp_path, study)
    assert said(site, message(study, HELLO, **RUN_A)) == ""
    for file in (tmp_path / "state_va").iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    (tmp_path / "results_va").chmod(0o777)
    with pytest.raises(ValueError, match="results must be a folder that others cannot write to; got mode 777"):
        one(tmp_path, study)


@POSIX
def test_links_lead_nothing_out_of_the_folders_of_a_study(tmp_path):
    """What a coordinator sends must not end in a file of the site's own, nor a key where somebody else can take it."""
    study = written(tmp_path)
    site, own = one(tmp_path, study), tmp_path / "of_mine.txt"
    own.write_text("mine")
    (tmp_path / "results_va" / "study.txt").symlink_to(own)
    sent = {"study/name": messages.text("study.txt"), "study/content": np.frombuffer(b"took part", np.uint8)}
    site.runs = ["one that has asked"]
    assert "cannot be written" in said(site, message(study, RESULT, **sent)) and own.read_text() == "mine"
    with pytest.raises(ValueError, match=r"results must hold files and no links; got 'study.txt'"):
        one(tmp_path, study)
    (tmp_path / "results_va" / "study.txt").unlink()
    (tmp_path / "state_va" / "runs.json").symlink_to(own)
    with pytest.raises(ValueError, match=r"state must hold files and no links; got 'runs.json'"):
        one(tmp_path, study)
    (tmp_path / "north.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="write new files"):
        make_request("north", tmp_path)
    with pytest.raises(ValueError, match="that can be written to"):
        own_folder("a", own)


# ---------------------------------------------------------------- requests


def test_results_of_what_was_not_asked_are_refused(tmp_path):
    study = written(tmp_path, study=re.sub("solve = .*\n", "", STUDY))
    site = one(tmp_path, study)
    for name in ("model.json", "model.npz"):
        sent = {"study/name": messages.text(name), "study/content": np.zeros(9, np.uint8)}
        assert "no result of a study" in said(site, message(study, RESULT, **sent))


def results_that_are_none(numbers, description):
    """What may be sent in the place of a result, by file; from honest ones."""
    about = json.loads(description)

    def but(**changed):
        return json.dumps({**about, **changed}).encode()

    def arrays(**changed):
        return npz({name: a for name, a in {**numbers, **changed}.items() if a is not None})

    yield "study.txt", b"took part: \x1b]52;c;cm0gLXJm\x07", "it holds the character 27"
    yield "study.txt", b"\xff\xfe", "it cannot be read"
    yield "model.json", b"", "it cannot be read"
    yield "model.json", b"[" * 10**5, "it cannot be read"
    yield "model.json", b"[1, 2]", "it is no object"
    yield "model.json", description[:-9], "it cannot be read"
    yield "model.json", but(gap=float("nan")), "not finite"
    yield "model.json", but(method="\x1b[2J"), "it holds the character 27"
    yield "model.json", but(x=functools.reduce(lambda x, _: [x], range(40), 0)), "lists within lists"
    yield "model.json", but(kind="ensemble"), "it has not the features of the study"
    yield "model.json", but(feature_names=about["feature_names"][::-1]), "it has not the features of the study"
    yield "model.json", but(classes=["yes", "no"]), "it has not the classes of the study"
    yield "model.json", but(clients=["va"]), "it has not the classes of the study"
    yield "model.json", b" " * (1 << 23), "it is no result of a study"
    yield "model.npz", b"PK\x03\x04", "it cannot be read"
    pickled = io.BytesIO()
    np.savez(pickled, coef=np.array([{}], dtype=object), intercept=np.zeros(()))
    yield "model.npz", pickled.getvalue(), "it cannot be read"
    yield "model.npz", arrays(coef=numbers["coef"] * np.inf), "its coef is no finite array"
    yield "model.npz", arrays(coef=numbers["coef"][:-1]), "its coef is no finite array"
    yield "model.npz", arrays(intercept=np.float32(0.0)), "its intercept is no finite array"
    yield "model.npz", arrays(intercept=None), "it has other arrays than a model"
    yield "model.npz", arrays(more=np.zeros(3)), "it has other arrays than a model"


def test_what_comes_back_is_looked_at_before_it_is_written(tmp_path):
    """Whatever is sent under the name of a result: what it is not is refused and logged, and nothing kept."""
    study = written(tmp_path, study=SOLVE)
    site, (question,) = one(tmp_path, study), questions(study)
    about = {"classes": ("no", "yes"), "feature_names": question.plan.feature_names}
    model = LinearModel.from_standardised(
        np.ones(question.features), question.plan.center, question.plan.scale, **about
    )
    model.save(tmp_path / "sent")
    honest = {name: (tmp_path / "sent" / name).read_bytes() for name in ("model.npz", "model.json")}
    wrong = list(results_that_are_none({"coef": model.coef, "intercept": model.intercept}, honest["model.json"]))

    def sent(name, content):
        given = {"study/name": messages.text(name), "study/content": np.frombuffer(content, np.uint8)}
        return said(site, message(study, RESULT, **given))

    for name, content, why in wrong:
        assert why in sent(name, content), (name, why)
    assert not list((tmp_path / "results_va").iterdir())
    lines = list(read_log(site.log.path))
    assert [line["what"] for line in lines] == ["refused"] * len(wrong) and all("\x1b" not in str(x) for x in lines)
    for run in ({}, RUN_A):  # none was named, and one that has asked nothing
        assert not run or said(site, message(study, HELLO, **run)) == ""
        assert "of a run that has asked nothing" in sent("model.npz", honest["model.npz"])
    assert not list((tmp_path / "results_va").iterdir())
    site.unasked = False
    for name, content in honest.items():
        assert sent(name, content) == ""
    assert LinearModel.load(tmp_path / "results_va").feature_names == question.plan.feature_names


def test_a_message_that_is_too_long_is_in_the_log(tmp_path):
    study = written(tmp_path)
    site = one(tmp_path, study)
    found = site.refuse("it has 1,000,000 bytes, at most 4,096 are kept")
    (line,) = read_log(site.log.path)
    assert line["what"] == "refused" and "1,000,000 bytes" in line["why"] and b"at most" in found["why"].tobytes()


def lone_loss(rows):
    """A model at which one row alone has a loss, far from zero: it is on the wrong side, and all others on theirs."""
    A = rows.y[:, None] * rows.X
    for j in range(len(A)):
        side = np.where(np.arange(len(A)) == j, -1.0, 1.0)
        found = linprog(np.zeros(A.shape[1]), A_ub=-side[:, None] * A, b_ub=-np.ones(len(A)), bounds=(None, None))
        if found.success:
            return 1e3 * found.x
    raise AssertionError("no row can be told from the others")


@pytest.mark.slow
def test_a_model_that_singles_out_a_patient_has_no_scores(tmp_path):
    study = written(tmp_path, study=SOLVE.replace("tol = 1e-9", "tol = 1e-9, held_out = 0.13"), sums="false")
    site, (question,) = one(tmp_path, study, "cleveland"), questions(study)
    test = site._trained(question, site.columns)[1]
    rows = question.rows(test, "cleveland", replace(site.settings.guards, rows=0, events=0, level=0, parameters=9.0))

    def sent(run, w):
        about = {"classes": ("no", "yes"), "feature_names": question.plan.feature_names}
        LinearModel.from_standardised(w, question.plan.center, question.plan.scale, **about).save(tmp_path / "sent")
        assert said(site, message(study, HELLO, **{RUN: np.full(16, run, dtype=np.uint8)})) == ""
        site.unasked = False
        for name in ("model.npz", "model.json"):
            content = np.frombuffer((tmp_path / "sent" / name).read_bytes(), dtype=np.uint8)
            found = site.answer(message(study, RESULT, **{"study/name": messages.text(name), "study/content": content}))
        return "study/scores" in found

    flat, before, far = np.zeros(question.features), site.numbers, lone_loss(rows)
    losses = np.log1p(np.exp(np.minimum(-rows.y * (rows.X @ far), 700.0)))
    assert losses.max() > 500.0 and np.sort(losses)[-2] < 1e-9  # what would be told is that patient's score
    assert sent(1, flat) and not sent(1, flat) and site.numbers == before + 6  # once a run
    assert not sent(2, far) and site.numbers == before + 6
    assert sent(2, flat)  # the same model once more says nothing new
    (line,) = [line for line in read_log(site.log.path) if line["what"] == "refused"]
    assert line["kind"] == "scores" and line["why"] == "made of fewer than five rows"
    assert [one["run"][:2] for one in json.loads((tmp_path / "state_cleveland" / "scores.json").read_text())] == [
        "01",
        "02",
    ]


def test_scores_that_differ_by_one_row_are_those_of_it():
    many, other = np.full(30, 0.7), np.where(np.arange(30) == 4, 0.9, 0.7)
    before = Losses(many, many, many)
    assert not before.singles_out([]) and not before.singles_out([before])
    assert Losses(other, many, many).singles_out([before]) and not Losses(many + 0.1, many, many).singles_out([before])


def test_the_farthest_row_is_told_in_few_metrics_only(tmp_path):
    """Each answer is a bit of one row: by bisection of a scale the farthest patient would be measured out."""
    site = one(tmp_path, written(tmp_path, study=re.sub("solve = .*\n", "", STUDY), sums="false"))
    question = site.questions[0]
    problem = question.make(site.sites[0].own)
    p = question.features
    frame = {"shift": np.zeros((1, p)), "map": np.eye(p)[None], "own": np.zeros(1)}
    for i in range(16 + 4 * p):
        asked = {**frame, "inverse": (1.0 + i) * np.eye(p)[None]}
        assert "reach" in report(problem, 0, asked) and "reach" in report(problem, 0, asked)
    with pytest.raises(Refused, match="farthest row in more than"):
        report(problem, 0, {**frame, "inverse": 0.5 * np.eye(p)[None]})


# ---------------------------------------------------------------- keys of secure sums


def sealed(folder, study, name="va", place=None):
    """A site with certificates, as `join` makes it."""
    site, place = one(folder, study, name), place or folder
    site.seals = Seals(study, name, place / f"{name}.pem", place / f"{name}.key", place / "authority.pem")
    return site


def conducted_sealed(folder, study, between=lambda sites, requests: None, changed=lambda k, message: message):
    sites = [sealed(folder, study, name) for name in study.sites]

    def ask(t, requests):
        between(sites, requests)
        return in_process(sites)(t, {k: changed(k, m) for k, m in requests.items()})

    return conducted(folder, study, transport=ask)


@pytest.mark.slow
def test_keys_are_proven_once_and_again_after_a_restart(tmp_path):
    study, asked = written(tmp_path, study=SOLVE.replace("tol = 1e-9", "tol = 1e-4")), []
    certified(tmp_path, study, *study.sites)

    def restarting(sites, requests):
        asked.append(1)
        if len(asked) == 5:
            sites[3] = sealed(tmp_path, study)

    found = conducted_sealed(tmp_path, study, restarting)
    whole = tmp_path / "whole"
    whole.mkdir()
    assert (
        found["model.npz"]
        == conducted(whole, written(whole, study=SOLVE.replace("tol = 1e-9", "tol = 1e-4")))["model.npz"]
    )
    for name, times in (("cleveland", 1), ("va", 2)):
        lines = list(read_log(tmp_path / f"state_{name}" / "audit.jsonl"))
        assert sum(line["what"] == "asked for proofs" for line in lines) == times


@pytest.mark.slow
@pytest.mark.parametrize("pinned", [False, True])
def test_a_coordinator_that_lies_about_keys_is_found_out(tmp_path, pinned):
    """With keys of its own in the place of all others' it takes the masks of a site off; that is refused."""
    study = written(tmp_path, study=ANALYSE)
    certified(tmp_path, study, *study.sites)
    if pinned:  # then not even the authority can make another certificate of a site
        pins = ", ".join(f'{n} = "{certificates.fingerprint_of(tmp_path / f"{n}.pem")}"' for n in study.sites)
        study = written(tmp_path, study=ANALYSE.replace("[ask]", f"certificates = {{ {pins} }}\n[ask]"))
    with pytest.raises(ValueError, match=r"sites.certificates must be of"):
        written(tmp_path, study=ANALYSE.replace("[ask]", f'certificates = {{ x = "SHA256:{"AA:" * 31}AA" }}\n[ask]'))
    fake = {k: Party(k) for k in range(3)}
    other = tmp_path / "other"  # certificates of the same authority, for keys that the coordinator holds
    other.mkdir()
    for name in ("authority.key", "authority.pem"):
        (other / name).write_bytes((tmp_path / name).read_bytes())
    (other / "authority.key").chmod(0o600)
    for name in study.sites[:3]:
        approve(make_request(name, other), name, other)

    def lying(k, message, proven=True):
        if k != 3 or KEYS not in message:
            return message
        keys = message[KEYS].copy()
        for j, party in fake.items():
            keys[j] = np.frombuffer(party.public, dtype=np.uint8)
        changed = {**message, KEYS: keys}
        if PROOFS in message and proven:
            told = json.loads(message[PROOFS].tobytes())
            for j, name in enumerate(study.sites[:3]):
                files = (other / f"{name}.pem", other / f"{name}.key", other / "authority.pem")
                made = Seals(study, name, *files).seal("analyse", fake[j].public)
                told[j] = [made[part].tobytes().hex() for part in (CERTIFICATE, SIGNATURE)]
            changed[PROOFS] = messages.text(json.dumps(told))
        return changed

    with pytest.raises(ConnectionError, match="a key of secure sums is not proven to be a site's"):
        conducted_sealed(tmp_path, study, changed=lambda k, m: lying(k, m, proven=False))
    (tmp_path / "out").rename(tmp_path / "before")
    why = "is not proven to be" if pinned else "it is not what was sent"  # which is this test's own fault, and later
    with pytest.raises((ConnectionError, ValueError), match=why):
        conducted_sealed(tmp_path, study, changed=lying)


def test_proofs_are_of_a_question_and_of_different_sites(tmp_path):
    study = written(tmp_path)
    certified(tmp_path, study, *study.sites)
    keys = np.arange(128, dtype=np.uint8).reshape(4, 32)
    made = [
        sealed(tmp_path, study, name).seals.seal("analyse", k.tobytes()) for name, k in zip(SITES, keys, strict=True)
    ]
    told = {k: (m[CERTIFICATE].tobytes(), m[SIGNATURE].tobytes()) for k, m in enumerate(made)}
    seals = sealed(tmp_path, study).seals
    seals.check("analyse", keys, proofs_of(told, keys))
    wrong = [
        ("solve", keys, told, "InvalidSignature"),
        ("analyse", keys[::-1], told, "InvalidSignature"),
        ("analyse", keys[[0, 1, 2, 2]], {**told, 3: told[2]}, "not of different sites"),
        ("analyse", keys[:3], told, "not of different sites with this one"),
        ("analyse", keys, {k: told[k] for k in range(3)}, "is not proven"),
    ]
    for question, several, proofs, why in wrong:
        with pytest.raises(Refused, match=why):
            seals.check(question, several, proofs_of(proofs, several))
    with pytest.raises(Refused, match="is not proven"):
        seals.check("analyse", keys, np.frombuffer(b"[" * 999, dtype=np.uint8))
    revoked = replace(study, revoked=(certificates.fingerprint_of(tmp_path / "va.pem"),))
    files = [tmp_path / name for name in ("cleveland.pem", "cleveland.key", "authority.pem")]
    with pytest.raises(Refused, match="is not proven"):
        Seals(revoked, "cleveland", *files).check("analyse", keys, proofs_of(told, keys))


# ---------------------------------------------------------------- Ctrl-C, SIGTERM, and nobody at the keyboard


def test_join_without_anybody_to_answer_sends_nothing(tmp_path, monkeypatch, capsys):
    written(tmp_path)
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    assert main(["study", "join", str(tmp_path / "study.toml"), str(tmp_path / "va.toml")]) == 3
    assert "--yes answers\nnothing was sent" in capsys.readouterr().out
    assert not (tmp_path / "state_va").exists()


@pytest.mark.parametrize(
    ("said", "status"),
    [("('x', 1) must listen; got no answer", 75), ("got 'KeyboardInterrupt' there", 75), ("got 'Terminated' there", 75),
     ("got 'OSError' there", 75), ("got 'Stopped' there", 3), ("got 'ConnectionError' there", 3)],
)  # fmt: skip
def test_join_says_whether_to_try_again(tmp_path, monkeypatch, capsys, said, status):
    def lost(*_):
        raise ConnectionError(said)

    written(tmp_path)
    monkeypatch.setattr("fedconvex.study.site_end.take_part", lost)
    assert main(["study", "join", str(tmp_path / "study.toml"), str(tmp_path / "va.toml"), "--yes"]) == status
    assert said in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_serve_and_join_end_by_signals_without_a_traceback(tmp_path, number, status):
    """A coordinator that is stopped so tells its sites to try again: 75 for whoever supervises them."""
    study = study_in(tmp_path, WARDS.replace("5555", str(free_port())))
    certified(tmp_path, study, "north", "south")
    rows = "\n".join(f"{40 + 7 * i % 50},{'ab'[i % 3 % 2]},{i % 9 + 0.5}" for i in range(60))
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").write_text(f"age,ward,days\n{rows}\n")
        own = f'[site]\nname = "{name}"\ntable = "{name}.csv"\nstate = "s_{name}"\nresults = "r_{name}"\n'
        (tmp_path / f"{name}.toml").write_text(own + "[limits]\nshare = 9.0\n")

    def started(*argv, until):
        command = [sys.executable, "-m", "fedconvex", "study", *argv]
        environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
        heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # background jobs ignore it
        process = subprocess.Popen(command, env=environment, preexec_fn=heard, **pipes)
        assert until in (line := process.stdout.readline()) or until in (line := process.stdout.readline()), line
        return process

    def ended(process):
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in err, err
        return process.returncode, out + err

    serve, join = ("serve", "study.toml", "--out", "out"), ("join", "study.toml", "north.toml", "--yes")
    server = started(*serve, until="waiting for north, south")
    site = started(*join, until="joined with 60 rows")
    site.send_signal(number)
    code, text = ended(site)
    assert code == status and "the same command goes on where it was" in text
    site = started(*join, "--wait", "20", until="study wards")
    server.send_signal(number)
    code, text = ended(server)
    assert code == status and "the same command goes on where it was" in text
    assert ended(site)[0] == 75
    assert "stopped: " in (tmp_path / "out" / "status.json").read_text()
