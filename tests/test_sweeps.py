"""Sweeps: every row is that of a run by itself, the frame does not depend on who works on it, nothing is lost."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import FedAvg, Federation, FedSGD, Problem, Squared, run, sweep
from fedconvex.methods import Decay, FedProx
from fedconvex.sweeps import answers_on_disk as parts
from fedconvex.sweeps import best_plot, gap_plot, heat_map, read_sweep, shared_rows, sweeping
from fedconvex.sweeps.shared_rows import SharedFederation, shared

BATCHES = FedAvg(step_size=0.1, batch_size=2, participation=2)


def same(a, b):
    """Equal bit for bit, metadata and failures included."""
    assert list(a.columns) == list(b.columns)
    assert a.about == b.about and a.failures == b.failures and a.parameters == b.parameters
    for name in a.columns:
        assert a[name].dtype == b[name].dtype
        assert a[name].tobytes() == b[name].tobytes(), name


# ---------------------------------------------------------------- rows


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*ended above")
def test_rows_are_those_of_runs(problem):
    """States are those of runs alone, bit for bit; measured together, values differ by rounding."""
    grid = {"step_size": [0.05, 0.2], "local_steps": [1, 3]}
    found = sweep(BATCHES, problem, grid=grid, seeds=range(2, 5), rounds=4, record_every=2, seed=9)
    assert len(found) == 4 * 3 * 3
    assert found["step_size"].tolist() == np.repeat([0.05, 0.05, 0.2, 0.2], 9).tolist()
    for (values, rows), number in zip(found.groups("step_size", "local_steps", "seed"), range(12), strict=True):
        method = replace(BATCHES, step_size=values["step_size"], local_steps=values["local_steps"])
        chunk = range(values["seed"], values["seed"] + 1)
        alone = run(method, problem, trajectories=chunk, rounds=4, record_every=2, tol=0.0, seed=9).trace
        assert rows["setting"].tolist() == [number // 3] * 3
        assert rows["round"].tolist() == [0, 2, 4]
        np.testing.assert_allclose(rows["value"], alone.value, rtol=1e-13)
        np.testing.assert_allclose(rows["gap"], alone.gap, rtol=1e-9, atol=1e-14)
        assert rows["floats_up"].tolist() == alone.floats_up.tolist()


def test_settings_share_their_draws(linear):
    found = sweep(BATCHES, linear, grid={"shrink": [False, True]}, seeds=3, rounds=3)
    first, second = (rows["value"] for _, rows in found.groups("shrink"))
    assert first.tobytes() == second.tobytes()
    assert np.unique(found.final()["value"]).size == 3


@pytest.mark.filterwarnings("ignore:.*ended above")
def test_a_seed_ends_where_it_converged_or_diverged(linear):
    found = sweep(FedSGD(step_size=0.3), linear, grid={"step_size": [0.3, 50.0]}, rounds=400, tol=1e-3, seeds=2)
    good, bad = (rows for _, rows in found.groups("step_size"))
    assert set(good["status"]) == {"CONVERGED"} and set(bad["status"]) == {"DIVERGED"}
    assert (good.final()["gap"] <= 1e-3).all() and (good["gap"] <= 1e-3).sum() == 2
    assert (
        np.isinf(bad.final()["gap"]).all() and np.isinf(bad.final()["value"]).all() and np.isinf(bad["gap"]).sum() == 2
    )
    alone = run(FedSGD(step_size=0.3), linear, rounds=400, tol=1e-3)
    assert good.final()["round"].tolist() == [alone.rounds] * 2
    assert found.best()[0]["step_size"] == 0.3 and found.best()[0]["edge"]


@pytest.mark.slow
def test_methods_problems_and_what_only_some_have(linear):
    def of(l2):
        return Problem(linear.federation, Squared(), l2)

    methods = {"FedAvg": FedAvg(step_size=0.1), "FedProx": FedProx(step_size=0.1, proximal_mu=0.1)}
    found = sweep(methods, of, grid={"l2": [0.1, 1.0], "proximal_mu": [0.0, 2.0]}, rounds=2)
    assert found.parameters == ("method", "l2", "proximal_mu")
    seen = [(v["method"], v["l2"], v["proximal_mu"]) for v, _ in found.groups(*found.parameters)]
    assert len(seen) == 6 and np.isnan(seen[0][2])
    assert [s[:2] for s in seen[::3]] == [("FedAvg", 0.1), ("FedAvg", 1.0)]
    assert seen[1:3] == [("FedProx", 0.1, 0.0), ("FedProx", 0.1, 2.0)]
    named = sweep(methods, {"a": linear, "b": of(1.0)}, rounds=2)
    assert named.parameters == ("problem", "method") and set(named["problem"]) == {"a", "b"}
    other = found.select(method="FedAvg", l2=1.0)["value"], named.select(method="FedAvg", problem="b")["value"]
    assert other[0].tobytes() == other[1].tobytes()


@pytest.mark.slow
def test_settings_that_are_no_numbers(linear):
    steps = [0.1, Decay(0.2, 2.0, by_round=True)]
    found = sweep(FedAvg(step_size=0.1), linear, grid={"step_size": steps, "epochs": [None, 2]}, rounds=1)
    assert set(found["step_size"]) == {"0.1", repr(steps[1])} and set(found["epochs"]) == {"None", "2"}
    auto = sweep(FedAvg(step_size="auto"), linear, rounds=1)
    assert len(auto) == 2


# ---------------------------------------------------------------- bits


@pytest.mark.slow
def test_the_frame_does_not_depend_on_who_works(logistic, tmp_path, monkeypatch):
    """Chunks, processes and an interrupted start: the same frame and the same files, byte for byte."""
    call = {"grid": {"step_size": [0.1, 0.5]}, "seeds": 70, "rounds": 2}
    once = sweep(BATCHES, logistic, **call)
    monkeypatch.setattr(parts, "_TASKS", 2)
    monkeypatch.setattr(parts, "_SECONDS", np.inf)
    few = sweep(BATCHES, logistic, **call, folder=tmp_path / "few")
    assert len(list((tmp_path / "few").glob("part-*"))) == 2
    same(once, few)
    monkeypatch.setattr(parts, "_SECONDS", -1.0)
    many = sweep(BATCHES, logistic, **call, folder=tmp_path / "many")
    assert len(list((tmp_path / "many").glob("part-*"))) == 4
    same(once, many)
    from joblib import parallel_config

    with parallel_config("threading", n_jobs=2):
        same(once, sweep(BATCHES, logistic, **call))
    next((tmp_path / "few").glob("part-*")).unlink()
    same(once, sweep(BATCHES, logistic, **call, folder=tmp_path / "few"))
    for kind in ("npz", "parquet"):
        once.save(tmp_path / f"a.{kind}")
        few.save(tmp_path / f"b.{kind}")
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
        same(once, read_sweep(tmp_path / f"a.{kind}"))
    once.save(tmp_path / "a.csv")
    head, *lines = (tmp_path / "a.csv").read_text().splitlines()
    assert head.split(",") == list(once.columns) and len(lines) == len(once)
    assert float(lines[5].split(",")[head.split(",").index("gap")]) == once["gap"][5]


CLUSTERS = """
import sys
import numpy as np
from joblib import parallel_config
from fedconvex import FedAvg, Federation, Problem, Squared, sweep
rng = np.random.default_rng(0)
fed = Federation.from_arrays(rng.normal(size=(20, 2)), rng.normal(size=20), np.arange(20) % 4)
call = {"grid": {"step_size": [0.1, 0.2]}, "seeds": 70, "rounds": 3}
def found():
    return sweep(FedAvg(step_size=0.1, batch_size=2), Problem(fed, Squared(), 0.1), **call)
def equal(other):
    assert not other.failures and all(other[n].tobytes() == here[n].tobytes() for n in here.columns)
if __name__ == "__main__":
    here = found()
    if sys.argv[1] == "dask":
        from dask.distributed import Client, LocalCluster
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
        with cluster, Client(cluster), parallel_config("dask"):
            equal(found())
    elif sys.argv[1] == "ray":
        import ray
        from ray.util.joblib import register_ray
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 2**20)
        register_ray()
        with parallel_config("ray", n_jobs=2):
            equal(found())
        ray.shutdown()
    else:
        with parallel_config(sys.argv[1], n_jobs=2):
            equal(found())
    print("equal")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loky", "dask", "ray"])
def test_engines_give_the_same_frame(kind, tmp_path):
    """Bit for bit; Dask and Ray where they are installed."""
    if kind in ("dask", "ray"):
        pytest.importorskip({"dask": "distributed"}.get(kind, kind))
    (tmp_path / "main.py").write_text(CLUSTERS)
    env = os.environ | {"NUMBA_DISABLE_JIT": "1", "RAY_USAGE_STATS_ENABLED": "0", "HOME": str(tmp_path)}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(sweeping.__file__).parents[2]), env.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, str(tmp_path / "main.py"), kind], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "equal" in done.stdout, done.stderr[-2000:]


def test_what_a_problem_has_computed_changes_no_bit(linear):
    """A solution of low accuracy, asked for earlier, would change every gap."""
    fresh = Problem(linear.federation, Squared(), 0.1)
    rough = Problem(linear.federation, Squared(), 0.1)
    rough._solution = replace(fresh.solve(), w=fresh.solve().w + 1.0)
    same(sweep(BATCHES, rough, seeds=9, rounds=1), sweep(BATCHES, fresh, seeds=9, rounds=1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse, weighted"])
def test_rows_are_mapped_not_pickled(kind, tmp_path, rng):
    X, y, sparse = rng.normal(size=(1000, 20)), np.sign(rng.normal(size=1000)), kind != "dense"
    weight = rng.uniform(size=1000) if sparse else None
    fed = Federation.from_arrays(sp.csr_array(X) if sparse else X, y, np.arange(1000) % 5, None, weight)
    problem = Problem(fed, Squared(), 0.1)
    other = sweeping._prepared(problem, tmp_path)
    sent = pickle.dumps(other)
    assert len(sent) < 10_000 < 160_000 < len(pickle.dumps(problem))
    back = pickle.loads(sent)
    assert type(back.federation) is SharedFederation and back.federation.digest == fed.digest
    w = rng.normal(size=(3, 20))
    np.testing.assert_array_equal(back.measure(w).gap, other.measure(w).gap)
    np.testing.assert_allclose(back.measure(w).value, problem.measure(w).value, rtol=1e-14)
    assert not (back.federation.X.data if sparse else back.federation.X).flags.writeable
    (tmp_path / "elsewhere").mkdir()
    gone = shared(problem, tmp_path / "elsewhere").federation
    place = Path(gone.__dict__["place"])
    for file in place.iterdir():
        file.unlink()
    shared_rows._mapped.cache_clear()
    with pytest.raises(FileNotFoundError, match="folder must be seen by all processes"):
        pickle.loads(pickle.dumps(gone))


# ---------------------------------------------------------------- failures and bad input


@dataclass(frozen=True, kw_only=True)
class Moody:
    """A method that fails for some settings, once its rounds have begun."""

    mood: float = 0.0

    def init(self, problem, w):
        return FedSGD(step_size=0.1).init(problem, w)

    def broadcast(self, state):
        return FedSGD(step_size=0.1).broadcast(state)

    def local(self, problem, message, clients, memory, draws):
        if draws.round == 1 and self.mood < 0:
            raise ArithmeticError(f"mood {self.mood}\nsecond line")
        return FedSGD(step_size=0.1).local(problem, message, clients, memory, draws)

    def aggregate(self, state, clients, weights, reply):
        return FedSGD(step_size=0.1).aggregate(state, clients, weights, reply)


def test_a_failure_is_recorded_and_the_rest_goes_on(linear, tmp_path):
    with pytest.warns(
        RuntimeWarning, match=r"sweep: 1 of 3 settings failed.*mood': -1.0.*ArithmeticError: mood -1.0 sec"
    ):
        found = sweep(Moody(), linear, grid={"mood": [0.0, -1.0, 1.0]}, rounds=2, seeds=2, folder=tmp_path / "f")
    (failed,) = found.failures
    assert failed == {"setting": {"mood": -1.0}, "seeds": [0, 2], "error": "ArithmeticError: mood -1.0 second line"}
    assert set(found["mood"]) == {0.0, 1.0} and "1 failed" in repr(found)
    found.save(tmp_path / "f.npz")
    assert read_sweep(tmp_path / "f.npz").failures == found.failures == read_sweep(tmp_path / "f").failures
    for grid, words in (
        ({"step_size": [0.1, -1.0]}, "positive"),
        ({"batch_size": [1, 99]}, "batch_size must be at most"),
    ):
        with pytest.warns(RuntimeWarning, match=words):
            found = sweep(FedAvg(step_size=0.1), linear, grid=grid, rounds=1)
        assert len(found) == 2 and len(found.failures) == 1
    with pytest.raises(ValueError, match=r"FedAvg.batch_size must be at most"):
        sweep(FedAvg(step_size=0.1, batch_size=99), linear, rounds=1)

    def of(l2):
        return Problem(linear.federation, Squared(), l2)

    with pytest.warns(RuntimeWarning, match=r"problem could not be made: .*l2 must be"):
        assert len(sweep(FedSGD(step_size=0.1), of, grid={"l2": [-1.0, 0.1]}, rounds=1)) == 2


def test_bad_input_is_named(linear, tmp_path):
    fedavg = FedAvg(step_size=0.1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "part-00000000-00000001.npz").write_bytes(b"")
    (tmp_path / "a file").write_text("x")
    for arguments, words in (
        ({"grid": {"stepsize": [1]}}, r"grid must name settings of the methods .*step_size.*; got stepsize"),
        ({"grid": {"step_size": []}}, r"grid\['step_size'\] must have 1 to"),
        ({"grid": {"step_size": 0.1}}, r"grid\['step_size'\] must be a list"),
        ({"grid": {"step_size": "abc"}}, "must be a list; got str"),
        ({"grid": {"local_steps": [1, 2, 1]}}, "must hold values that differ; got 1 twice"),
        ({"grid": {"local_steps": [1, 1.0]}}, "must hold values that differ"),
        ({"grid": {"local_steps": range(10**12)}}, "at most 100,000 values; got 1,000,000,000,000"),
        ({"grid": {"step_size": (0.1 * i for i in iter(int, 1))}}, "have 1 to 100,000 values"),
        ({"grid": {"step_size": range(1, 1001), "local_steps": range(1, 1001)}}, "combinations; got 1,000,000"),
        ({"grid": [1]}, "grid must be a mapping"),
        ({"grid": {1: [1]}}, "a name must be a string"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"seeds": 10**9}, "at most 20,000,000 rows; got .* 1,000,000,000 seeds"),
        ({"seeds": range(5, 2)}, "seeds must be a number of them"),
        ({"seeds": [1, 2]}, "seeds must be a whole number"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"tol": -1.0}, "tol must be nonnegative"),
        ({"seed": -1}, "seed must be"),
        ({"record_every": 0}, "record_every must be"),
        ({"n_jobs": 0}, "n_jobs must be None, a positive number"),
        ({"n_jobs": 1.5}, "n_jobs must be a whole number"),
        ({"folder": tmp_path / "other"}, "folder must be new, or of this work"),
        ({"folder": tmp_path / "a file"}, "folder that can be written to"),
        ({"folder": 3}, "name of a folder"),
        ({"progress": 1}, "progress must be True or False"),
        ({"start": [1.0]}, "start must have shape"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            sweep(fedavg, linear, **({"rounds": 1} | arguments))
    for method, problem, words in (
        (FedAvg, linear, r"method must be a method.*pass FedAvg\(...\)"),
        ([fedavg], linear, "method must be a method"),
        ({}, linear, "method must be a method"),
        ({"a": 3}, linear, r"method\['a'\] must be a method"),
        (fedavg, {}, "problem must be a problem"),
        (fedavg, Problem, "problem must be a problem.*the class Problem"),
        (fedavg, linear.federation, "problem must be a problem"),
        (fedavg, {"a": linear, "b": lambda l2: linear}, "take the parameters .* like the first"),
        (fedavg, lambda l2: linear, "parameters of the problem without a default; got none for l2"),
        (fedavg, lambda: 3, "problem must return a problem; got int"),
        (fedavg, max, "problem must be a function whose parameters are known.*wrap it"),
        ({0: fedavg}, linear, "method: a name must be a string"),
        (fedavg, {None: linear}, "problem: a name must be a string"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            sweep(method, problem, rounds=1)
    with pytest.raises(ValueError, match="grid must name no column of the frame; got seed"):
        sweep(fedavg, lambda seed: linear, grid={"seed": [1]}, rounds=1)
    with pytest.raises(ValueError, match="local_steps, which both have"):
        sweep(fedavg, lambda local_steps: linear, grid={"local_steps": [1]}, rounds=1)


@pytest.mark.slow
def test_frames_name_what_is_wrong(linear, tmp_path):
    found = sweep(FedAvg(step_size=0.1), linear, grid={"step_size": [0.1, 0.2]}, rounds=1)
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    (tmp_path / "f.csv").write_text("a\n1\n")
    (tmp_path / "empty").mkdir()
    for call, words in (
        (lambda: found.select(step=1), "a column must be one of"),
        (lambda: list(found.groups("step")), "a column must be one of"),
        (lambda: found.best("local_steps"), "over must be one of 'step_size'"),
        (lambda: found.best(score="status"), "score must be one of"),
        (lambda: found.save(tmp_path / "x.json"), "must end in .parquet, .npz or .csv"),
        (lambda: found.save(tmp_path / "none" / "x.npz"), "existing folder"),
        (lambda: read_sweep(tmp_path / "bad.npz"), "file that Sweep.save wrote; got a damaged"),
        (lambda: read_sweep(tmp_path / "f.csv"), "csv has no metadata"),
        (lambda: read_sweep(tmp_path / "none"), "does not exist"),
        (lambda: read_sweep(tmp_path / "empty"), "folder of a sweep"),
        (lambda: read_sweep(3), "be a path"),
        (lambda: heat_map(found, "step_size", "step_size"), "another parameter than x"),
        (lambda: heat_map(found, "step_size", "seed"), "y must be one of 'step_size'"),
        (lambda: gap_plot(found, by="seed"), "by must be one of"),
        (lambda: gap_plot(found, by=3), "by must be a list; got int"),
        (lambda: gap_plot(found, score="status"), "score must be one of"),
        (lambda: best_plot(found, over="seed"), "over must be one of"),
        (lambda: gap_plot(found.select(step_size=7.0)), "have rows; got none"),
        (lambda: gap_plot({}), "be a Sweep"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            call()
    with pytest.raises(KeyError, match="has the columns setting, step_size"):
        found["step"]
    few = sweep(FedAvg(step_size=0.1), linear, grid={"step_size": np.linspace(0.1, 0.2, 13)}, rounds=1)
    with pytest.raises(ValueError, match="at most 12 curves; got 13"):
        gap_plot(few)


@pytest.mark.slow
def test_without_pyarrow_there_is_a_cure(linear, tmp_path, monkeypatch):
    found = sweep(FedSGD(step_size=0.1), linear, rounds=1)
    found.save(tmp_path / "there.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    for call in (lambda: found.save(tmp_path / "x.parquet"), lambda: read_sweep(tmp_path / "there.parquet")):
        with pytest.raises(ImportError, match=r'pip install "fedconvex\[report\]", or take .npz'):
            call()
    with pytest.raises(ImportError, match=r"fedconvex\[frames\]"):
        found.to_pandas()
    assert not (tmp_path / "x.parquet").exists()
    found.save(tmp_path / "x.npz")
    same(found, read_sweep(tmp_path / "x.npz"))


# ---------------------------------------------------------------- folders


@pytest.mark.slow
def test_a_folder_belongs_to_one_sweep(linear, tmp_path):
    call = {"rounds": 2, "seeds": 2, "folder": tmp_path / "mine"}
    first = sweep(FedSGD(step_size=0.1), linear, **call)
    for method, problem, more, what in (
        (FedSGD(step_size=0.2), linear, {}, "methods"),
        (FedSGD(step_size=0.1), Problem(linear.federation, Squared(), 0.2), {}, "problems"),
        (FedSGD(step_size=0.1), linear, {"rounds": 3}, "rounds"),
        (FedSGD(step_size=0.1), linear, {"seeds": 3}, "seeds"),
        (FedSGD(step_size=0.1), linear, {"seed": 1}, "seed"),
        (FedSGD(step_size=0.1), linear, {"tol": 0.1}, "tol"),
        (FedSGD(step_size=0.1), linear, {"start": np.ones(3)}, "start"),
        (FedSGD(step_size=0.1), linear, {"grid": {"step_size": [0.1]}}, "columns"),
    ):
        with pytest.raises(ValueError, match=f"be of this work to resume it: {what} "):
            sweep(method, problem, **(call | more))
    began = {f.name: f.stat().st_mtime_ns for f in call["folder"].iterdir()}
    same(first, sweep(FedSGD(step_size=0.1), linear, **call))
    assert began == {f.name: f.stat().st_mtime_ns for f in call["folder"].iterdir()}, "nothing is done twice"
    part = next(call["folder"].glob("part-*"))
    content = part.read_bytes()
    part.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"damaged or foreign.*delete it and sweep again"):
        read_sweep(call["folder"])
    part.unlink()
    same(first, sweep(FedSGD(step_size=0.1), linear, **call))


def test_missing_jobs_are_found():
    class Folder:
        def __init__(self, *names):
            self.names = names

        def iterdir(self):
            return map(Path, self.names)

    name = "part-{:08d}-{:08d}.npz".format
    assert parts._missing(Folder(), 3) == [range(3)]
    assert parts._missing(Folder(name(0, 3)), 3) == []
    assert parts._missing(Folder(name(1, 2), name(4, 6), "part-x.npz", name(0, 2) + ".12.part"), 7) == [
        range(1),
        range(2, 4),
        range(6, 7),
    ]


def test_carried_out_knows_nothing_of_sweeps(tmp_path):
    """Any work in jobs: what `bench` builds upon."""

    def work(job):
        if job == 5:
            raise RuntimeError("five")
        return {"square": np.array([job**2])}

    told = []
    home = parts.opened("bench", tmp_path / "jobs", {"what": "squares"})
    parts.carried_out(work, range(7), home, tell=lambda share, words: told.append((share, words)))
    answers = dict(parts.read_answers(home))
    assert answers[5] == "RuntimeError: five" and answers.pop(5)
    assert {i: a["square"].item() for i, a in answers.items()} == {i: i**2 for i in (0, 1, 2, 3, 4, 6)}
    assert told[0] == (1 / 7, "1 of 7 runs") and told[-1][0] == 1.0


INTERRUPTED = """
import sys, time
import numpy as np
from fedconvex import FedAvg, Federation, Problem, Squared, sweep
from fedconvex.sweeps import answers_on_disk as parts
rng = np.random.default_rng(0)
fed = Federation.from_arrays(rng.normal(size=(20, 2)), rng.normal(size=20), np.arange(20) % 4)
most, before, done = int(sys.argv[2]), parts._part, []
def part(*arguments):
    while len(done) == most:
        time.sleep(1.0)  # until it is killed
    done.append(1)
    return before(*arguments)
parts._part = part
found = sweep(FedAvg(step_size=0.1, batch_size=2), Problem(fed, Squared(), 0.1), seeds=2, rounds=3,
              grid={"step_size": [0.01 * i for i in range(1, 25)]}, folder=sys.argv[1] + "/parts")
found.save(sys.argv[1] + "/found.npz")
"""


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_file(tmp_path):
    def start(folder, most=-1):
        command = [sys.executable, "-c", INTERRUPTED, str(folder), str(most)]
        return subprocess.Popen(command, env=os.environ | {"NUMBA_DISABLE_JIT": "1"}, stderr=subprocess.PIPE)

    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole, stopped = start(tmp_path / "whole"), start(tmp_path / "stopped", 3)
    parts_ = tmp_path / "stopped" / "parts"
    while len(list(parts_.glob("part-*.npz"))) < 3 and stopped.poll() is None:
        time.sleep(0.02)
    stopped.send_signal(signal.SIGKILL)
    _, words = stopped.communicate()
    assert stopped.returncode != 0 and not (tmp_path / "stopped" / "found.npz").exists()
    some = read_sweep(parts_)
    assert 3 <= some.finished[0] < some.finished[1] == 24 and len(some) == some.finished[0] * 8, words
    assert f"{some.finished[0]} of 24 runs so far" in repr(some)
    again = start(tmp_path / "stopped")
    assert again.wait() == 0 and whole.wait() == 0
    assert (tmp_path / "stopped" / "found.npz").read_bytes() == (tmp_path / "whole" / "found.npz").read_bytes()


def test_ctrl_c_leaves_what_is_finished(linear, tmp_path, monkeypatch):
    """In this process; what is left is resumed."""
    calls, traced = [], sweeping._traced

    def stopping(job):
        calls.append(job)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return traced(job)

    call = {"grid": {"step_size": [0.1, 0.2, 0.3, 0.4]}, "rounds": 1, "folder": tmp_path / "f"}
    monkeypatch.setattr(sweeping, "_traced", stopping)
    with pytest.raises(KeyboardInterrupt):
        sweep(FedSGD(step_size=0.1), linear, **call)
    assert read_sweep(tmp_path / "f").finished == (2, 4)
    done = sweep(FedSGD(step_size=0.1), linear, **call)
    assert len(calls) == 5
    same(done, sweep(FedSGD(step_size=0.1), linear, **(call | {"folder": None})))


def test_parameters_with_a_default_need_no_values(linear):
    """As in a closure's `l2, of=...`; whole numbers that no column of numbers can hold are texts."""

    def of(large, l2=0.2, *more, shift=0.0, **others):
        return Problem(linear.federation, Squared(), l2)

    found = sweep(FedSGD(step_size=0.1), of, grid={"large": [10**400, 1], "l2": [0.1, 0.3]}, rounds=1)
    assert found["large"].tolist() == [str(10**400)] * 4 + ["1"] * 4 and found["l2"][::2].tolist() == [0.1, 0.3] * 2
    default = sweep(FedSGD(step_size=0.1), of, grid={"large": [1]}, rounds=1)
    same_l2 = sweep(FedSGD(step_size=0.1), of(1), rounds=1)
    assert default["value"].tobytes() == same_l2["value"].tobytes()


# ---------------------------------------------------------------- figures


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two(linear):
    """It was one of them: sometimes the lower one, sometimes the upper one."""
    for seeds in (2, 4):
        found = sweep(BATCHES, linear, grid={"step_size": [0.05]}, seeds=seeds, rounds=3)
        ends = np.sort(found.final()["gap"])
        row = found.best()[0]
        assert row["median"] == (ends[seeds // 2 - 1] + ends[seeds // 2]) / 2 == np.median(ends)
        assert (row["low"], row["high"]) == (ends[0], ends[-1]) and ends[0] < ends[-1]
        drawn = gap_plot(found).axes[0].lines[0].get_ydata()
        assert drawn.tolist() == np.median(found["gap"].reshape(seeds, -1), axis=0).tolist()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*ended above")
def test_figures_draw_what_the_frame_says(linear, tmp_path):
    grid = {"step_size": [0.02, 0.1, 50.0], "local_steps": [1, 3]}
    found = sweep(FedAvg(step_size=0.1, batch_size=2), linear, grid=grid, seeds=5, rounds=12)
    axis = gap_plot(found.select(local_steps=3), tmp_path / "gap.png").axes[0]
    first = found.select(step_size=0.02, local_steps=3)
    middle = np.quantile(first["gap"].reshape(5, -1), 0.5, axis=0)
    np.testing.assert_array_equal(axis.lines[0].get_ydata(), middle)
    assert axis.get_yscale() == "log" and np.isnan(axis.lines[2].get_ydata()[-1])
    image = heat_map(found, "step_size", "local_steps", tmp_path / "heat.svg").axes[0].images[0].get_array()
    assert image.shape == (2, 3) and np.isnan(np.asarray(image.filled(np.nan))[:, 2]).all()
    np.testing.assert_allclose(image[1, 0], np.log10(middle[-1]))
    three = sweep({"a": FedSGD(step_size=0.1), "b": FedSGD(step_size=0.2)}, linear, grid={"step_size": [0.1, 0.3],
                  "participation": [2, 5]}, rounds=5, seeds=3)  # fmt: skip
    best = heat_map(three, "method", "step_size").axes[0].images[0].get_array()
    ends = [np.sort(rows["gap"])[1] for _, rows in three.final().select(method="a", step_size=0.3).groups("setting")]
    np.testing.assert_allclose(best[1, 0], np.log10(min(ends)))
    lines = best_plot(found, tmp_path / "best.png").axes[0].lines
    marked = [line for line in lines if len(line.get_xdata()) == 1]
    assert [line.get_xdata()[0] for line in marked] == [row["step_size"] for row in found.best()]
    assert {f.name for f in tmp_path.iterdir()} == {"gap.png", "heat.svg", "best.png"}


@pytest.mark.slow
def test_curves_go_on_from_where_seeds_converged(linear):
    found = sweep(FedSGD(step_size=0.3), linear, grid={"step_size": [0.1, 0.3]}, rounds=60, tol=1e-3)
    line = gap_plot(found, by=()).axes[0].lines[0]
    assert line.get_xdata()[-1] == found["round"].max() and np.isfinite(line.get_ydata()).all()


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:.*ended above")
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    """Every block of docs/sweeps.md, one after the other."""
    page = Path(__file__).resolve().parents[1] / "docs" / "sweeps.md"
    if not page.is_file():
        pytest.skip("no docs beside the tests")
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.M | re.S)
    exec(compile("\n".join(code), str(page), "exec"), {"__name__": "page"})
    said = capsys.readouterr().out
    assert said.startswith("Sweep(1680 rows: 12 settings, 20 seeds)\n") and said.endswith("True\n")
    assert {"gaps.png", "where.png", "best.png", "found.npz", "steps"} == {f.name for f in tmp_path.iterdir()}


@pytest.mark.slow
def test_columns_of_owners_have_the_same_bits_elsewhere(tmp_path):
    """Their blocks are views of one table; pickled they are arrays of their own, whose sums rounded otherwise."""
    from tests.test_contract import EVERY, made

    method, problem = EVERY["FedBCD in turn"], made("columns")
    here = sweep(method, problem, rounds=3, seed=5)
    there = pickle.loads(pickle.dumps(sweeping._prepared(problem, tmp_path)))
    elsewhere = run(method, there, rounds=3, seed=5, tol=0.0, threads=1).trace
    assert here["value"].tobytes() == elsewhere.value.tobytes()
