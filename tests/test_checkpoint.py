"""What a checkpoint is asked before it is resumed: crafted files, other runs, several processes, bad paths."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from typing import NamedTuple

import numpy as np
import pytest

from fedconvex import SCAFFOLD, FedAvg, FederatedNewton, Federation, FedSGD, Logistic, Problem, Squared, run
from fedconvex._files import npz
from fedconvex.driver import checkpoint
from fedconvex.driver.recording import Recorder
from fedconvex.methods import AFL, MOCHA, AdaptiveProximal, FedMultiBoost, FedProx, MultiBoost, ServerAdam
from fedconvex.problems import Dictionary, EnsembleProblem, MeanRegularised, MultiTaskProblem
from fedconvex.remote.messages import terms_of
from fedconvex.sweeps.combinations import Grid

METHODS = {
    "FedAvg": FedAvg(step_size=0.2, local_steps=2, server=ServerAdam(), participation=2),
    "SCAFFOLD": SCAFFOLD(step_size=0.2, local_steps=2, participation=2),
    "AFL": AFL(step_size=0.1, domain_step_size=0.1),
    "FedProx": FedProx(proximal_mu=AdaptiveProximal(0.2), step_size=0.1, epochs=2),
    "FedMultiBoost": FedMultiBoost(step_size=0.4),
    "MultiBoost": MultiBoost(),
}


def contents(path):
    with np.load(path, allow_pickle=False) as f:
        return dict(f)


def rewrite(path, change):
    """Apply a change to the arrays and the description, and make the digest right again: a crafted file."""
    arrays = contents(path)
    about = json.loads(arrays.pop("description").tobytes())
    change(arrays, about)
    about["digest"] = checkpoint._digest(arrays, about["round"], about["floats"])
    arrays["description"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    with open(path, "wb") as f:
        f.write(npz(arrays))


def boosting():
    """Two sources, two clients each, and eight classifiers."""
    rng = np.random.default_rng(3)
    X, domain = rng.normal(size=(24, 2)), np.arange(24) % 2
    y = np.where(X[:, 0] + X[:, 1] * (domain - 0.5) > 0, 1.0, -1.0)
    fed = Federation.from_arrays(X, y, np.arange(24) % 4, domain)
    return EnsembleProblem(fed, Dictionary.stumps(fed, cuts=2))


def problem_of(name, linear):
    """The problem that a method of the table is run on."""
    return boosting() if "Boost" in name else linear


def with_nan(a):
    """A copy whose last entry is not a number."""
    b = a.copy()
    b.reshape(-1)[-1] = np.nan
    return b


def put(name, make):
    """A change that replaces one array by what make(array) returns."""
    return lambda arrays, about: arrays.update({name: make(arrays[name])})


CRAFTED = {
    "float32 state": ("FedAvg", put("state/w", lambda a: a.astype(np.float32))),
    "longer state": ("FedAvg", put("state/w", lambda a: np.zeros((1, a.shape[1] + 1)))),
    "flat state": ("FedAvg", put("state/w", np.ravel)),
    "more trajectories": ("FedAvg", put("state/w", lambda a: np.zeros((2, a.shape[1])))),
    "NaN state": ("FedAvg", put("state/w", lambda a: np.full_like(a, np.nan))),
    "missing array": ("FedAvg", lambda arrays, about: arrays.pop("state/w")),
    "missing diverged": ("FedAvg", lambda arrays, about: arrays.pop("diverged")),
    "missing value": ("FedAvg", lambda arrays, about: arrays.pop("trace/value")),
    "missing what the method observes": ("MultiBoost", lambda arrays, about: arrays.pop("trace/active")),
    "observed by another method": ("FedAvg", lambda arrays, about: arrays.update({"trace/x": arrays["trace/round"]})),
    "shortened trace": (
        "FedAvg",
        lambda arrays, about: arrays.update({k: v[:-2] for k, v in arrays.items() if k.startswith("trace/")}),
    ),
    "ragged trace": ("FedAvg", put("trace/gap", lambda a: a[:-1])),
    "trace of words": ("FedAvg", put("trace/value", lambda a: a.astype(str))),
    "single precision in the trace": ("FedAvg", put("trace/floats_down", lambda a: a.astype(np.float32))),
    "single precision gaps": ("FedAvg", put("trace/gap", lambda a: a.astype(np.float32))),
    "infinite values": ("FedAvg", put("trace/value", lambda a: np.full_like(a, np.inf))),
    "NaN gaps": ("FedAvg", put("trace/gap", with_nan)),
    "gaps of others": ("FedAvg", put("trace/gap", lambda a: np.hstack([a, a]))),
    "negative counts": ("FedAvg", put("trace/floats_up", lambda a: a - 10**6)),
    "other rounds": ("FedAvg", put("trace/round", lambda a: a + 1)),
    "a round beyond all numbers": ("FedAvg", lambda arrays, about: about.update(round=10**30)),
    "a round that would fill the memory": ("FedAvg", lambda arrays, about: about.update(round=10**12)),
    "negative round": ("FedAvg", lambda arrays, about: about.update(round=-3)),
    "another round": ("FedAvg", lambda arrays, about: about.update(round=2)),
    "negative floats": ("FedAvg", lambda arrays, about: about.update(floats=[-1, 0])),
    "one count": ("FedAvg", lambda arrays, about: about.update(floats=[1])),
    "memory of another width": ("SCAFFOLD", put("memory/rows", lambda a: a[:, :1])),
    "memory without rows": ("SCAFFOLD", put("memory/rows", lambda a: a[:0])),
    "memory of single precision": ("SCAFFOLD", put("memory/rows", lambda a: a.astype(np.float32))),
    "memory of places outside": ("SCAFFOLD", put("memory/table", lambda a: np.where(a >= 0, a + 10**9, a))),
    "memory with a full table": ("SCAFFOLD", put("memory/table", lambda a: np.zeros_like(a))),
    "memory with an odd table": ("SCAFFOLD", put("memory/table", lambda a: a[:-1])),
    "memory of unknown clients": ("SCAFFOLD", put("memory/keys", lambda a: a + 10**6)),
    "memory that knows too much": ("SCAFFOLD", put("memory/known", lambda a: a + 100)),
    "memory of negative size": ("SCAFFOLD", put("memory/known", lambda a: a * 0 - 1)),
    "divergence before the start": ("FedAvg", put("diverged", lambda a: a * 0 - 5)),
    "divergence in the future": ("FedAvg", put("diverged", lambda a: a * 0 + 100)),
    "NaN control variate": ("SCAFFOLD", put("state/c", with_nan)),
    "NaN among what clients keep": ("SCAFFOLD", put("memory/rows", with_nan)),
    "infinity among what clients keep": ("SCAFFOLD", put("memory/rows", lambda a: np.where(a == a[0, 0], np.inf, a))),
    "other client weights": ("SCAFFOLD", put("state/p", lambda a: a[:, ::-1])),
    "NaN in the server's optimiser": ("FedAvg", put("state/server/1", with_nan)),
    "NaN domain weights": ("AFL", put("state/point_domain_weights", with_nan)),
    "other counts of rows": ("AFL", put("state/counts", lambda a: a * 0)),
    "another count of rounds": ("AFL", put("state/t", lambda a: a + 1)),
    "NaN proximal weight": ("FedProx", put("state/mu", with_nan)),
    "domains that are not": ("FedMultiBoost", put("state/domain", lambda a: a + 10**6)),
    "negative domains": ("FedMultiBoost", put("state/domain", lambda a: a - 5)),
    "other sizes": ("FedMultiBoost", put("state/sizes", lambda a: a * 0)),
    "a classifier that is not": ("FedMultiBoost", put("state/history", lambda a: a + 10.0**6)),
    "NaN margins": ("MultiBoost", put("state/margins", with_nan)),
    "a column that is not": ("MultiBoost", put("state/history", lambda a: a - 1.0)),
    "an event that is not": ("MultiBoost", put("state/event", lambda a: a + 7)),
    "memory without keys": ("SCAFFOLD", lambda arrays, about: arrays.pop("memory/keys")),
    "a round that is a word": ("AFL", lambda arrays, about: about.update(round="3", digest="")),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_crafted_checkpoint_is_refused(linear, tmp_path, kind):
    """The digest fits; what is inside could crash a kernel, or be another run."""
    name, change = CRAFTED[kind]
    path, problem = tmp_path / "c", problem_of(name, linear)
    run(METHODS[name], problem, rounds=3, tol=0, checkpoint=path)
    if kind == "a round that is a word":  # is read as a number, and the run goes on as it should
        untouched = run(METHODS[name], problem, rounds=5, tol=0)
        rewrite(path, lambda arrays, about: None)
        np.testing.assert_array_equal(run(METHODS[name], problem, rounds=5, tol=0, checkpoint=path).w, untouched.w)
        return
    rewrite(path, change)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"run: checkpoint .*must .*; got "):
        run(METHODS[name], problem, rounds=5, tol=0, checkpoint=path)
    assert path.read_bytes() == before


def test_nan_of_a_diverged_trajectory_is_no_damage(linear, tmp_path):
    method = FedSGD(step_size=[0.2, 1e200])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = run(method, linear, rounds=8, trajectories=2, tol=0)
        run(method, linear, rounds=4, trajectories=2, tol=0, checkpoint=tmp_path / "c")
        again = run(method, linear, rounds=8, trajectories=2, tol=0, checkpoint=tmp_path / "c")
    assert not np.isfinite(whole.w[1]).all()
    np.testing.assert_array_equal(whole.w, again.w)


def test_nan_is_refused_in_sound_trajectories_only(linear, tmp_path):
    """Of two trajectories one has diverged: its NaN may stay, that of the other is damage."""
    method, path = FedSGD(step_size=[0.2, 1e200]), tmp_path / "c"
    how = {"trajectories": 2, "tol": 0, "checkpoint": path}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(method, linear, rounds=4, **how)
        assert run(method, linear, rounds=6, **how).rounds == 6
        rewrite(path, put("state/w", lambda a: np.where([[True], [False]], np.nan, a)))
        with pytest.raises(ValueError, match="finite numbers in state/w"):
            run(method, linear, rounds=8, **how)


def test_a_run_that_is_interrupted_in_its_first_round_goes_on(tmp_path, rng, monkeypatch):
    """Newton's method knows no value before the first answers: infinite at the start, and in its checkpoint."""
    fed = Federation.from_clients([(rng.normal(size=(8, 2)), rng.choice([-1.0, 1.0], 8)) for _ in range(2)])
    problem, path = Problem(fed, Logistic(), 0.1), tmp_path / "newton.npz"
    wanted = run(FederatedNewton(), problem, rounds=2, tol=0.0)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as stop, pytest.raises(KeyboardInterrupt):
        stop.setattr(FederatedNewton, "local", interrupted)
        run(FederatedNewton(), problem, rounds=2, tol=0.0, checkpoint=path)
    assert path.exists()
    assert np.array_equal(run(FederatedNewton(), problem, rounds=2, tol=0.0, checkpoint=path).w, wanted.w)


def equal(a, b):
    """Check that two runs ended alike."""
    assert (a.status, a.rounds) == (b.status, b.rounds)
    assert np.array_equal(a.w, b.w) and np.array_equal(a.gap, b.gap) and np.array_equal(a.diverged, b.diverged)
    for name in ("round", "value", "gap", "floats_down", "floats_up"):
        assert np.array_equal(a.trace[name], b.trace[name]), name


def test_ctrl_c_while_a_checkpoint_is_made_is_ctrl_c(linear, tmp_path, monkeypatch):
    """Just after a file was opened in the archive, which then cannot be closed; the checkpoint before stays."""
    method, path, opened, held = FedSGD(step_size=0.2), tmp_path / "c", zipfile.ZipFile.open, []
    run(method, linear, rounds=3, tol=0.0, checkpoint=path)
    before = path.read_bytes()

    def interrupted(self, name, mode="r", *args, **more):
        held.append(opened(self, name, mode, *args, **more))
        if mode == "w":
            raise KeyboardInterrupt
        return held.pop()

    with monkeypatch.context() as stop, pytest.raises(KeyboardInterrupt):
        stop.setattr(zipfile.ZipFile, "open", interrupted)
        run(method, linear, rounds=6, tol=0.0, checkpoint=path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    equal(run(method, linear, rounds=6, tol=0.0, checkpoint=path), run(method, linear, rounds=6, tol=0.0))


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_run_that_is_done_at_its_start_stays_there(linear, tmp_path, monkeypatch, interrupted):
    """Asked for again, or stopped once the start was measured, it takes no round."""
    method, path = FedSGD(step_size=0.2), tmp_path / "c"
    wanted = run(method, linear, tol=1e9)
    assert wanted.rounds == 0

    record = Recorder.record

    def stopped(*args):
        record(*args)
        raise KeyboardInterrupt

    if interrupted:
        with monkeypatch.context() as stop, pytest.raises(KeyboardInterrupt):
            stop.setattr(Recorder, "record", stopped)
            run(method, linear, tol=1e9, checkpoint=path)
    else:
        run(method, linear, tol=1e9, checkpoint=path)
    equal(run(method, linear, tol=1e9, checkpoint=path), wanted)


@pytest.mark.parametrize("other", [0.2, 1e5])
@pytest.mark.parametrize("rounds", [5, 8, 12])
def test_a_divergence_seen_at_the_last_round_only_is_seen_again(linear, tmp_path, rounds, other):
    """Its row does not belong to a longer run; asked for again, a run has it, with the gap of its last model."""
    method, path = FedSGD(step_size=[1e5, other]), tmp_path / "c"
    how = {"trajectories": 2, "tol": 0, "record_every": 6}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = run(method, linear, rounds=5, checkpoint=path, **how)
        assert first.diverged.tolist() == [5, -1 if other < 1.0 else 5] and first.gap[0] > 1e10
        again = run(method, linear, rounds=rounds, checkpoint=path, **how)
        equal(again, run(method, linear, rounds=rounds, **how))
    assert again.diverged[0] == min(rounds, 6)


def test_any_changed_array_is_noticed(linear, tmp_path):
    """The digest covers all arrays: one unit in the last place of any of them is enough."""
    path = tmp_path / "c"
    run(METHODS["SCAFFOLD"], linear, rounds=3, tol=0, checkpoint=path)
    good, arrays = path.read_bytes(), contents(path)
    for name in set(arrays) - {"description"}:
        changed = {k: v.copy() for k, v in arrays.items()}
        if changed[name].size == 0:
            continue
        changed[name].reshape(-1).view(np.uint8)[0] ^= 1
        with open(path, "wb") as f:
            f.write(npz(changed))
        with pytest.raises(ValueError, match="digest"):
            run(METHODS["SCAFFOLD"], linear, rounds=5, tol=0, checkpoint=path)
    path.write_bytes(good)
    assert run(METHODS["SCAFFOLD"], linear, rounds=5, tol=0, checkpoint=path).rounds == 5


def test_another_division_into_domains_is_another_run(tmp_path, rng):
    X, y, who = rng.normal(size=(12, 2)), rng.normal(size=12), np.arange(12) % 3
    halves = [Problem(Federation.from_arrays(X, y, who, np.arange(12) // k % 2), Squared(), 0.1) for k in (1, 2)]
    run(METHODS["AFL"], halves[0], rounds=2, tol=0, checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match=r"checkpoint .*data must be"):
        run(METHODS["AFL"], halves[1], rounds=4, tol=0, checkpoint=tmp_path / "c")


def test_multi_task_memory_is_checked(tmp_path, rng):
    fed = Federation.from_clients([(rng.normal(size=(n, 2)), np.sign(rng.normal(size=n))) for n in (4, 5)])
    problem = MultiTaskProblem(fed, Logistic(), MeanRegularised(0.5, 0.5))
    run(MOCHA(), problem, rounds=2, tol=0, checkpoint=tmp_path / "c")
    rewrite(tmp_path / "c", put("memory/alpha", lambda a: a[:, :-1]))
    with pytest.raises(ValueError, match="memory/alpha"):
        run(MOCHA(), problem, rounds=3, tol=0, checkpoint=tmp_path / "c")


# ---------------------------------------------------------------- several processes


def test_the_further_of_two_equal_runs_is_kept(linear, tmp_path, monkeypatch):
    """The slower process saves round 2 after the faster one saved round 6: nothing is lost."""
    path, method = tmp_path / "c", METHODS["FedAvg"]
    run(method, linear, rounds=2, tol=0, checkpoint=path)
    early = path.read_bytes()
    run(method, linear, rounds=6, tol=0, checkpoint=path)
    late = path.read_bytes()
    path.write_bytes(early)
    save, calls = checkpoint.Checkpoint.save, []

    def overtaken(self, t, state, recorder):
        if not calls:
            path.write_bytes(late)
        calls.append(t)
        save(self, t, state, recorder)

    monkeypatch.setattr(checkpoint.Checkpoint, "save", overtaken)
    run(method, linear, rounds=4, tol=0, checkpoint=path)
    assert calls
    assert path.read_bytes() == late


def test_a_run_does_not_overwrite_another_one(linear, tmp_path, monkeypatch):
    path = tmp_path / "c"
    run(FedSGD(step_size=0.1), linear, rounds=2, tol=0, checkpoint=path)
    foreign = path.read_bytes()
    path.unlink()
    save = checkpoint.Checkpoint.save

    def appears(self, t, state, recorder):
        path.write_bytes(foreign)
        save(self, t, state, recorder)

    monkeypatch.setattr(checkpoint.Checkpoint, "save", appears)
    with pytest.raises(ValueError, match="two runs were given one path"):
        run(FedSGD(step_size=0.2), linear, rounds=2, tol=0, checkpoint=path)
    assert path.read_bytes() == foreign


def test_temporary_files_of_living_processes_stay(linear, tmp_path):
    host = checkpoint._host()
    living = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    try:
        stay = [f"c.{host}.{living.pid}.00000000.part", f"c.00000000.{dead.pid}.00000000.part", "c.d.1.part"]
        go = [f"c.{host}.{dead.pid}.00000000.part", "c.00000000.7.0badcafe.part"]
        for name in stay + go:
            (tmp_path / name).write_bytes(b"half")
        old = time.time() - 2 * checkpoint._ABANDONED
        os.utime(tmp_path / go[1], (old, old))  # of another machine, and old
        run(FedSGD(step_size=0.2), linear, rounds=2, tol=0, checkpoint=tmp_path / "c")
        assert sorted(os.listdir(tmp_path)) == sorted([*stay, "c"])
    finally:
        living.kill()
    assert host != "00000000" or socket.gethostname()


@pytest.mark.slow
def test_threads_and_runs_on_one_path(linear, tmp_path):
    """Three runs at once on one path: all end, none dies, and the file resumes to the same bits."""
    path, method, failed = tmp_path / "c", METHODS["SCAFFOLD"], []

    def go(rounds):
        try:
            run(method, linear, rounds=rounds, tol=0, checkpoint=path, checkpoint_every=1)
        except ValueError as error:  # a faster run has gone beyond the rounds of this one
            if "hold at most" not in str(error):
                failed.append(error)
        except Exception as error:
            failed.append(error)

    together = [threading.Thread(target=go, args=(rounds,)) for rounds in (30, 30, 20)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    assert not failed, failed
    assert os.listdir(tmp_path) == ["c"]
    again = run(method, linear, rounds=40, tol=0, checkpoint=path)
    np.testing.assert_array_equal(again.w, run(method, linear, rounds=40, tol=0).w)


# ---------------------------------------------------------------- paths


@pytest.mark.parametrize(
    "name", ["a\0b", "x" * 300, "no/such/folder/c", ".", ""], ids=["NUL", "long", "no", "dot", "empty"]
)
def test_paths_are_refused_before_the_work(linear, tmp_path, name, monkeypatch):
    method = FedSGD(step_size=0.2)
    monkeypatch.setattr(type(method), "local", lambda *a: pytest.fail("worked before the path was checked"))
    where = os.path.join(tmp_path, name) if name else str(tmp_path)
    with pytest.raises(ValueError, match="run: checkpoint must be"):
        run(method, linear, rounds=2, checkpoint=where)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written(linear, tmp_path, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checkpoint.Path, "touch", refuse)  # as root every folder can be written
    with pytest.raises(ValueError, match=r"file that can be written; got .*Permission denied"):
        run(FedSGD(step_size=0.2), linear, rounds=2, checkpoint=tmp_path / "c")


def test_a_full_disk_is_named_and_loses_nothing(linear, tmp_path, monkeypatch):
    path = tmp_path / "c"
    run(FedSGD(step_size=0.2), linear, rounds=2, tol=0, checkpoint=path)
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"could not be written after round .*No space left.*intact"):
        run(FedSGD(step_size=0.2), linear, rounds=4, tol=0, checkpoint=path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["c"]


class Preconditioned(NamedTuple):
    """A user's method with an array among its settings, whose repr rounds it."""

    plan: np.ndarray

    def init(self, problem, w):
        return FedSGD(step_size=0.1).init(problem, w)

    def round(self, problem, state, draws):
        return state._replace(w=state.w - self.plan * problem.gradient(state.w), t=state.t + 1)


def test_arrays_that_print_alike_make_different_runs(linear, tmp_path):
    """They differ in the ninth digit, or in the middle of a long array, whose repr leaves it out."""
    short, long = np.array([0.1, 0.2, 0.1]), np.full(2000, 0.1)
    for i, a in enumerate((short, long)):
        other = a.copy()
        other[a.size // 2] += 1e-10
        one, two = Preconditioned(a), Preconditioned(other)
        assert repr(one) == repr(two)
        assert terms_of(one, linear, "1")["method"] != terms_of(two, linear, "1")["method"]
        grids = [Grid.of(FedAvg(step_size=0.1), linear, {"step_size": [m.plan]}).about for m in (one, two)]
        assert grids[0] != grids[1]
        if i == 0:
            how = {"tol": 0, "checkpoint": tmp_path / "c"}
            run(one, linear, rounds=2, **how)
            assert run(one, linear, rounds=3, **how).rounds == 3
            with pytest.raises(ValueError, match=r"method must be .* to resume this run"):
                run(two, linear, rounds=4, **how)
