"""Forty messages each way that nobody should send: refused by name, written down, and no cell of a table in the log."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fedconvex.remote import in_process, messages
from fedconvex.remote.masks import CIRCLE, KEYS
from fedconvex.remote.messages import ASK, JOIN, MEASURE, REFUSE, STATISTIC, Request, fingerprint
from fedconvex.remote.wire import packed
from fedconvex.study.audit_log import read_log
from fedconvex.study.coordination import Coordinator
from fedconvex.study.site_end import DIGEST, HELLO, RESULT, RUN, STEP
from tests.study.test_study import members, message, written
from tests.study.test_what_sites_keep import SOLVE

VA = 3
MARK = "173205"  # stands in the cells of va's table, and nowhere else
STUDY = SOLVE.replace("tol = 1e-9", "tol = 1e-4")


def marked(cells):
    """The same table, whose numbers of one column have digits that are recognised."""
    return cells | {"chol": [v and f"{v}.{MARK}" for v in cells["chol"]]}


def signed(asked, **changed):
    """A request with other arrays, None for none, and the header that belongs to them."""
    header = asked["header"]
    out = {name: a for name, a in {**asked, **changed}.items() if a is not None and name != "header"}
    own = {name: a for name, a in out.items() if not name.startswith("study/")}
    kind, number, k, session = changed["header"] if "header" in changed else header[1:5].tolist()
    return {**out, "header": Request(kind, number, k, session, fingerprint(own)).header()}


def headed(asked, place, value):
    """A request whose header has another number."""
    header = asked["header"].copy()
    header[place] = value
    return {**asked, "header": header}


def to_a_site(study, joins, measures, asks):
    """What a coordinator may try, by name; from its own honest requests."""
    digest = np.frombuffer(bytes.fromhex(study.digest), dtype=np.uint8)
    run, w = {RUN: np.full(16, 9, dtype=np.uint8)}, asks["message/w"]
    text, content = messages.text, np.zeros(9, np.uint8)
    _, _, k, session = asks["header"][1:5].tolist()
    sent = {"study/name": text("study.txt"), "study/content": content}
    others = np.random.default_rng(0).integers(0, 256, asks[KEYS].shape).astype(np.uint8)
    yield "nothing", {}
    yield "another study", {**asks, DIGEST: digest[::-1].copy()}
    yield "half a digest", {**asks, DIGEST: digest[:16].copy()}
    yield "a digest of floats", {**asks, DIGEST: digest.astype(float)}
    yield "a step that there is not", {**asks, STEP: np.array(7)}
    yield "a step below zero", {**asks, STEP: np.array(-9)}
    yield "a step of an l2 that nobody has chosen", {**asks, STEP: np.array(1_000_000)}
    yield "a step that is no whole number", {**asks, STEP: np.array(0.5)}
    yield "several steps", {**asks, STEP: np.zeros(3, dtype=np.int64)}
    yield "a run of no length", message(study, HELLO, **{RUN: np.zeros(0, np.uint8)})
    yield "a run that is text", message(study, HELLO, **{RUN: np.array("run")})
    yield "a run of another study", {**message(study, HELLO, **run), DIGEST: digest[::-1].copy()}
    yield "a result of another name", message(study, RESULT, **sent | {"study/name": text("site.toml")})
    yield "a result beside its folder", message(study, RESULT, **sent | {"study/name": text("../study.txt")})
    yield "a result of what was not asked", message(study, RESULT, **sent | {"study/name": text("analysis.txt")})
    yield "a result of numbers", message(study, RESULT, **sent | {"study/content": np.zeros(9)})
    yield "a result without end", message(study, RESULT, **sent | {"study/content": np.zeros(1 << 23, np.uint8)})
    yield "no header", {name: a for name, a in asks.items() if name != "header"}
    yield "another version", headed(asks, 0, 99)
    yield "an unknown kind", headed(asks, 1, 77)
    yield "another site's number", headed(asks, 3, 0)
    yield "another session", headed(asks, 4, session + 1)
    yield "another fingerprint", headed(asks, 5, 0)
    yield "a refusal", signed(asks, header=(REFUSE, 0, k, session))
    yield "no model", signed(asks, **{"message/w": None})
    yield "a model beside it", signed(asks, **{"message/v": w})
    yield "a model of other size", signed(asks, **{"message/w": w[:, :-1].copy()})
    yield "a model of halves", signed(asks, **{"message/w": w.astype(np.float32)})
    yield "many models", signed(asks, **{"message/w": np.repeat(w, 50, axis=0)})
    yield "a model of text", signed(asks, **{"message/w": np.array([["w"] * w.shape[1]])})
    yield "trajectories that are not run", signed(asks, trajectories=np.array([5]))
    yield "without masks", signed(asks, **{KEYS: None, CIRCLE: None})
    yield "masks of two", signed(asks, **{CIRCLE: np.array([[2, 3]])})
    yield "masks with itself", signed(asks, **{CIRCLE: np.array([[3, 3, 3, 3]])})
    yield "keys of nobody", signed(asks, **{KEYS: others})
    yield "weights of domains", signed(measures, alpha=np.ones((1, 4)))
    yield "many models to measure", signed(measures, w=np.repeat(measures["w"], 999, axis=0))
    yield (
        "a statistic of rows",
        signed(
            {name: asks[name] for name in ("header", STEP, DIGEST)},
            header=(STATISTIC, -1, k, session),
            name=text("rows"),
        ),
    )
    yield "other sites than the study's", signed(joins, header=(JOIN, -1, k, 5), ids=joins["ids"][::-1] + 1)
    yield "fewer sites than the study asks for", signed(joins, header=(JOIN, -1, k, 6), ids=joins["ids"][2:])
    yield "another size of this site", signed(joins, header=(JOIN, -1, k, 7), sizes=joins["sizes"] + 1)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A study that has ended, and the requests to its last site."""
    folder = tmp_path_factory.mktemp("messages")
    study = written(folder, study=STUDY, limits="parameters = 0.5\nshare = 20.0\nruns = 9\n", changed={"va": marked})
    sites, requests = members(folder, study), []

    def ask(t, asked):
        requests.append(asked[VA])
        return in_process(sites)(t, asked)

    Coordinator(study, folder / "out", ask, lambda line: None).conduct()
    return folder, study, sites, requests


def first(requests, kind):
    return next(a for a in requests if "header" in a and a["header"][1] == kind)


@pytest.mark.slow
def test_a_site_refuses_them_and_writes_down_each(seen):
    folder, study, sites, requests = seen
    site, log = sites[VA], folder / "state_va" / "audit.jsonl"
    assert MARK in (folder / "va.csv").read_text()
    joins, measures, asks = (first(requests, kind) for kind in (JOIN, MEASURE, ASK))
    tried = dict(to_a_site(study, joins, measures, asks))
    assert len(tried) >= 40
    for name, sent in tried.items():
        before, numbers = len(list(read_log(log))), site.numbers
        answer = site.answer(sent)
        assert messages.words(answer["why"]), name
        assert answer.keys() == {"header", "why"} and MARK.encode() not in packed(answer), name
        (line,) = list(read_log(log))[before:]
        assert line["what"] == ("asked to join" if name == "another session" else "refused"), name
        assert line["sent"] == len(packed(answer)), name
        assert site.numbers - numbers <= 1, name
    assert MARK not in log.read_text()
    assert not list(folder.rglob("site.toml")) and not (folder / "study.txt").exists()
    assert "why" not in site.answer(asks)  # the honest one is still answered


def to_the_coordinator(answer):
    """What a site may answer in a round, by name; from its own honest answer."""
    numbers, agreed, clients = (answer[f"reply/{name}"] for name in ("numbers", "agreed", "clients"))

    def but(**changed):
        return {n: a for n, a in {**answer, **{f"reply/{m}": a for m, a in changed.items()}}.items() if a is not None}

    yield "nothing", {}
    yield "no header", {name: a for name, a in answer.items() if name != "header"}
    for place, what in enumerate(("version", "kind", "round", "number", "session", "fingerprint")):
        for value in (-(1 << 63), 77):
            yield f"{what} {value}", headed(answer, place, value)
    yield "a header of floats", {**answer, "header": answer["header"].astype(float)}
    yield "half a header", {**answer, "header": answer["header"][:3].copy()}
    yield "a refusal without a reason", {"header": Request(REFUSE, -1, -1, -1).header()}
    yield "a refusal of numbers", {"header": Request(REFUSE, -1, -1, -1).header(), "why": np.zeros(9)}
    yield "a refusal with escapes", {"header": Request(REFUSE, -1, -1, -1).header(), "why": messages.text("\x1b[2J")}
    yield "an array too many", {**answer, "reply/rows": np.zeros(3)}
    yield "an array of a name that ends no line", {**answer, "\x1b[2J\n": np.zeros(3)}
    for name in ("numbers", "agreed", "clients", "keys"):
        yield f"{name} missing", but(**{name: None})
    yield "numbers of floats", but(numbers=numbers.astype(float))
    yield "numbers with signs", but(numbers=numbers.astype(np.int64))
    yield "numbers of text", but(numbers=np.array([[["n"]]]))
    yield "numbers of objects' size", but(numbers=numbers.astype(np.uint8))
    yield "fewer numbers", but(numbers=numbers[..., :-1].copy())
    yield "more numbers", but(numbers=np.repeat(numbers, 2, axis=-1))
    yield "no numbers", but(numbers=numbers[..., :0].copy())
    yield "numbers of two sites", but(numbers=np.repeat(numbers, 2, axis=1))
    yield "numbers of two models", but(numbers=np.repeat(numbers, 2, axis=0))
    yield "numbers without axes", but(numbers=np.uint64(7).reshape(()))
    yield "ten million numbers", but(numbers=np.zeros((1, 1, 10_000_000), dtype=np.uint64))
    yield "agreed of one", but(agreed=agreed[..., :1].copy())
    yield "agreed of floats", but(agreed=agreed.astype(float))
    yield "clients of floats", but(clients=clients.astype(float))
    yield "more clients", but(clients=np.repeat(clients, 9, axis=1))


@pytest.mark.slow
def test_a_coordinator_refuses_them_names_the_site_and_ends_with_the_same_bits(seen, tmp_path):
    folder = seen[0]
    study = written(tmp_path, study=STUDY, changed={"va": marked})
    sites, tried, said, left = members(tmp_path, study), [], [], None

    def ask(t, asked):
        nonlocal left
        found = in_process(sites)(t, asked)
        if VA in found and (left is not None or found[VA].get("header", np.zeros(2))[1] == ASK):
            left = to_the_coordinator(found[VA]) if left is None else left
            if (wrong := next(left, None)) is not None:
                tried.append(wrong[0])
                found[VA] = wrong[1]
        return found

    coordinator = Coordinator(study, tmp_path / "out", ask, said.append)
    coordinator.patience = 99
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = coordinator.conduct()
    assert len(tried) >= 40 and next(left, None) is None
    told = [line for line in said if line.startswith("refused: site va, round 0: answer refused: ")]
    assert len(told) == len(tried)
    assert not any(MARK in line or "\x1b" in line for line in said)
    assert results["model.npz"] == (folder / "out" / "model" / "model.npz").read_bytes()
