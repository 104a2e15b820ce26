"""The driver: same bits whatever the threads, the stops, the company; counts, statuses, checkpoints, kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

import fedconvex
from fedconvex import (
    DivergenceWarning,
    FedAvg,
    Federation,
    FedSGD,
    GradientDescent,
    Hinge,
    Logistic,
    Problem,
    Squared,
    Status,
    iterate,
    run,
)
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import participants
from fedconvex.kernels import cache
from fedconvex.loss_traits import declares
from fedconvex.methods import SCAFFOLD, Decay, FedProx, ProportionalSampling, ServerAdam

HOME = str(Path(fedconvex.__file__).parents[1])


def leaves(tree):
    """Arrays and numbers of nested tuples, in order."""
    if isinstance(tree, tuple):
        return [x for part in tree for x in leaves(part)]
    return [np.asarray(tree)]


def same_state(a, b):
    assert type(a) is type(b)
    for x, y in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def same_result(a, b):
    """Everything but the clock."""
    same_state(a.state, b.state)
    assert (a.status, a.rounds) == (b.status, b.rounds)
    np.testing.assert_array_equal(a.gap, b.gap)
    np.testing.assert_array_equal(a.diverged, b.diverged)
    assert list(a.trace) == list(b.trace)
    for name in a.trace:
        if name != "seconds":
            np.testing.assert_array_equal(a.trace[name], b.trace[name], err_msg=name)


def last_state(method, problem, rounds=4, **how):
    return [state for _, state in iterate(method, problem, rounds=rounds, **how)][-1]


PARTIAL = FedAvg(step_size=0.2, local_steps=3, batch_size=2, participation=3)
METHODS = [
    FedAvg(step_size=0.2, local_steps=3, batch_size=2),
    PARTIAL,
    FedAvg(step_size=0.2, epochs=2, batch_size=3, participation=0.5),
    FedAvg(step_size=0.2, local_steps=2, batch_size=9, replacement=True, participation=ProportionalSampling(7)),
    FedAvg(step_size=Decay(1.0, 5.0), local_steps=2, batch_size=2, shadow=True, server=ServerAdam()),
    FedSGD(step_size=0.2, participation=2),
]


# ---------------------------------------------------------------- threads


@pytest.mark.compiled
@pytest.mark.parametrize("R", [1, 5])
@pytest.mark.parametrize("method", METHODS, ids=range(len(METHODS)))
def test_threads_change_no_bit(problem, method, R):
    one = run(method, problem, rounds=3, trajectories=R, seed=4, threads=1, tol=0)
    for threads in (2, 8):
        same_result(one, run(method, problem, rounds=3, trajectories=R, seed=4, threads=threads, tol=0))


def test_seeds_matter_and_repeat(problem):
    a, b, c = (last_state(PARTIAL, problem, seed=s).w for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - c).max() > 1e-6


def test_generator_seeds(linear):
    a = last_state(PARTIAL, linear, seed=np.random.default_rng(5))
    same_state(a, last_state(PARTIAL, linear, seed=np.random.default_rng(5)))
    generator = np.random.default_rng(5)
    same_state(a, last_state(PARTIAL, linear, seed=generator))
    assert np.abs(a.w - last_state(PARTIAL, linear, seed=generator).w).max() > 1e-6  # it has moved on


# ---------------------------------------------------------------- company


def draws_of(seed=0, R=1, t=3):
    return Draws(key_from_seed(seed), np.arange(R), t)


LOCAL = [
    FedAvg(step_size=0.1, local_steps=3, batch_size=2),
    FedAvg(step_size=0.1, epochs=2, batch_size=3),
    FedAvg(step_size=0.1, local_steps=3, batch_size=4, replacement=True),
    FedAvg(step_size=0.1, local_steps=3),
    FedSGD(step_size=0.1),
]


@pytest.mark.parametrize("method", LOCAL, ids=range(len(LOCAL)))
def test_a_client_alone_answers_the_same(problem, method, rng):
    """In a federation of its own, as another process would hold it, and whoever else is asked."""
    fed, R = problem.federation, 2
    message = method.broadcast(method.init(problem, rng.normal(size=(R, *problem.model_shape))))
    everyone = np.broadcast_to(np.arange(fed.K), (R, fed.K)).copy()
    together, _ = method.local(problem, message, everyone, None, draws_of(R=R))
    for k in range(fed.K):
        alone = Problem(fed.subset([k]), problem.loss, problem.l2)
        reply, _ = method.local(alone, message, np.zeros((R, 1), np.int64), None, draws_of(R=R))
        for a, b in zip(reply, together, strict=True):
            np.testing.assert_array_equal(a[:, 0], b[:, k])
        twice, _ = method.local(problem, message, np.full((R, 2), k), None, draws_of(R=R))
        for a, b in zip(twice, together, strict=True):
            np.testing.assert_array_equal(a[:, 1], b[:, k])


@pytest.mark.parametrize("method", LOCAL, ids=range(len(LOCAL)))
def test_adding_a_client_changes_nobody_elses_answer(linear, method, rng):
    fed = linear.federation
    pairs = [(fed.X[a:b], fed.y[a:b]) for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]
    newcomer = (rng.normal(size=(6, 3)), rng.normal(size=6))
    larger = Problem(Federation.from_clients([newcomer, *pairs], labels=[99, *range(fed.K)]), Squared(), linear.l2)
    message = method.broadcast(method.init(linear, rng.normal(size=(1, 3))))
    before, _ = method.local(linear, message, np.arange(fed.K)[None, :], None, draws_of())
    after, _ = method.local(larger, message, np.arange(1, fed.K + 1)[None, :], None, draws_of())
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_rounds_clients_and_trajectories_draw_different_batches(linear):
    """With one row per step the replies of equal clients would be equal if their draws were."""
    X, y = linear.federation.X[:7], linear.federation.y[:7]
    twins = Problem(Federation.from_clients([(X, y), (X, y)]), Squared())
    method = FedAvg(step_size=0.1, local_steps=4, batch_size=1)
    message = method.broadcast(method.init(twins, np.zeros((2, 3))))
    both = np.broadcast_to(np.arange(2), (2, 2)).copy()
    replies = [method.local(twins, message, both, None, draws_of(R=2, t=t))[0].w for t in (0, 1)]
    flat = np.concatenate([r.reshape(4, 3) for r in replies])
    assert len({tuple(row) for row in flat.tolist()}) == 8


# ---------------------------------------------------------------- trajectories


@pytest.mark.parametrize("method", METHODS, ids=range(len(METHODS)))
def test_trajectory_zero_is_the_single_run(problem, method):
    many = run(method, problem, rounds=4, trajectories=5, seed=2, tol=0)
    one = run(method, problem, rounds=4, trajectories=1, seed=2, tol=0)
    np.testing.assert_array_equal(many.w[0], one.w)
    np.testing.assert_allclose(many.trace.value[:, 0], one.trace.value, rtol=1e-14)
    np.testing.assert_array_equal(many.trace.floats_up, one.trace.floats_up)  # counted per trajectory
    if method != METHODS[-1] and problem.model_shape != (3,):
        assert np.abs(many.w[1:] - many.w[0]).max() > 1e-9
    assert many.w.shape == (5, *problem.model_shape)
    assert many.trace.gap.shape == (5, 5)


@pytest.mark.parametrize("make", [
    lambda a: FedAvg(step_size=a, local_steps=3, batch_size=2),
    lambda a: FedAvg(step_size=a, epochs=2, batch_size=2),
    lambda a: FedSGD(step_size=a),
    lambda a: GradientDescent(step_size=a),
])  # fmt: skip
def test_a_step_size_per_trajectory_is_a_sweep(problem, make):
    """Step sizes of trajectory 0 can be compared with a run of their own, in any company."""
    for sizes in ([0.3, 0.1], [0.05, 0.3, 0.2]):
        sweep = run(make(sizes), problem, rounds=3, trajectories=len(sizes), tol=0, threads=2)
        alone = run(make(sizes[0]), problem, rounds=3, tol=0)
        np.testing.assert_array_equal(sweep.w[0], alone.w)
    same = run(make(0.2), problem, rounds=3, trajectories=3, tol=0)
    np.testing.assert_array_equal(sweep.w[2], same.w[2])  # the third of the last sweep had 0.2 too


def test_starts(linear, rng):
    starts = rng.normal(size=(2, 3))
    both = run(FedSGD(step_size=0.1), linear, rounds=2, trajectories=2, start=starts, tol=0)
    for r in range(2):
        one = run(FedSGD(step_size=0.1), linear, rounds=2, start=starts[r], tol=0)
        np.testing.assert_array_equal(both.w[r], one.w)
    shared = run(FedSGD(step_size=0.1), linear, rounds=2, trajectories=2, start=starts[1], tol=0)
    np.testing.assert_array_equal(shared.w[0], both.w[1])
    np.testing.assert_array_equal(shared.w[1], both.w[1])


# ---------------------------------------------------------------- what is recorded


def test_communication_by_hand(linear, softmax):
    """FedAvg: m d down and m d up per round; with C classes m C d; the shadow is a diagnostic, not a message."""
    d, C, K = 3, 3, 5
    for R in (1, 4):
        for method, problem, per_round in [
            (FedAvg(step_size=0.1), linear, K * d),
            (FedAvg(step_size=0.1, participation=2), linear, 2 * d),
            (FedAvg(step_size=0.1, participation=0.5), linear, round(0.5 * K) * d),
            (FedAvg(step_size=0.1, participation=ProportionalSampling(7)), linear, 7 * d),
            (FedAvg(step_size=0.1, local_steps=4, shadow=True), linear, K * d),
            (FedAvg(step_size=0.1, server=ServerAdam(), participation=2), softmax, 2 * C * d),
            (FedSGD(step_size=0.1, participation=3), linear, 3 * d),
            (FedSGD(step_size=0.1, participation=3), softmax, 3 * C * d),
        ]:
            trace = run(method, problem, rounds=3, tol=0, trajectories=R).trace
            assert trace.floats_down.tolist() == trace.floats_up.tolist() == [t * per_round for t in range(4)]
    trace = run(GradientDescent(step_size=0.1), linear, rounds=3, tol=0).trace
    assert trace.floats_down.tolist() == trace.floats_up.tolist() == [0] * 4


def test_trace(linear):
    result = run(FedSGD(step_size=0.1), linear, rounds=7, record_every=3, tol=0)
    assert result.trace.round.tolist() == [0, 3, 6, 7]
    assert len({len(v) for v in result.trace.values()}) == 1
    assert np.all(np.diff(result.trace.seconds) >= 0)
    assert result.trace.value[0] == pytest.approx(float(linear.value(np.zeros(3))), rel=1e-15)
    assert result.trace.value[-1] == pytest.approx(float(linear.value(result.w)), rel=1e-15)
    assert result.gap == result.trace.gap[-1]
    with pytest.raises(AttributeError, match="the trace holds round, value"):
        result.trace.nothing


def test_seconds_leave_out_what_the_compiler_takes(linear, monkeypatch):
    """The compiler's lock is held for 100 seconds, nested, in every round: the clock of the trace would be behind."""
    watch, now = cache._Stopwatch(), iter(np.arange(0.0, 1e6, 50.0))
    monkeypatch.setattr(cache, "_STOPWATCH", watch)
    monkeypatch.setattr(cache, "time", SimpleNamespace(perf_counter=lambda: next(now)))

    @dataclass(frozen=True, kw_only=True)
    class Compiling(FedAvg):
        def local(self, *args):
            watch.on_start(None)
            watch.on_start(None)  # a kernel that calls a kernel
            watch.on_end(None)
            watch.on_end(None)
            return FedAvg.local(self, *args)

    seconds = run(Compiling(step_size=0.1), linear, rounds=3, tol=0.0).trace.seconds
    assert cache.compile_seconds() == 150.0
    assert (-50.0 <= np.diff(seconds)).all() and (np.diff(seconds) < 0.0).all()  # a round's own time, less than it adds


@pytest.mark.slow
@pytest.mark.compiled(only="kernels are compiled")
def test_a_first_run_takes_as_long_as_the_next(linear):
    """A loss of its own is compiled in the first run, for seconds."""

    class Mine(NamedTuple):
        def value(self, z, y):
            return 0.5 * (z - y) ** 2

        def slope(self, z, y):
            return z - y

    problem, before = Problem(linear.federation, Mine()), cache.compile_seconds()
    first = run(FedAvg(step_size=0.1), problem, rounds=3, tol=0.0).trace.seconds[-1]
    took = cache.compile_seconds() - before
    assert 0.0 < first < took  # with what was compiled it would be longer


def test_iterate_is_the_bare_loop(linear):
    seen = list(iterate(PARTIAL, linear, rounds=3, seed=3))
    assert [t for t, _ in seen] == [0, 1, 2, 3]
    same_state(seen[-1][1], run(PARTIAL, linear, rounds=3, seed=3, tol=0).state)
    endless = iterate(PARTIAL, linear)
    assert [next(endless)[0] for _ in range(5)] == [0, 1, 2, 3, 4]


def test_observing_does_not_change_the_run(linear):
    often = run(PARTIAL, linear, rounds=6, tol=0)
    seldom = run(PARTIAL, linear, rounds=6, tol=0, record_every=6)
    same_state(often.state, seldom.state)


# ---------------------------------------------------------------- statuses


def test_statuses(linear):
    good = run(FedSGD(step_size=0.2), linear, rounds=5000, tol=1e-9)
    assert good.status is Status.CONVERGED
    assert good.gap <= 1e-9 < good.trace.gap[-2]
    assert good.rounds == good.trace.round[-1] < 5000
    limit = run(FedSGD(step_size=0.2), linear, rounds=3, tol=1e-9)
    assert limit.status is Status.ROUND_LIMIT
    assert limit.rounds == 3
    assert all(s.value.endswith(".") and " " in s.value for s in Status)
    assert "CONVERGED" in repr(good)


def test_start_at_the_optimum_takes_no_round(linear):
    result = run(FedSGD(step_size=0.2), linear, start=linear.solve().w, tol=1e-8)
    assert (result.status, result.rounds) == (Status.CONVERGED, 0)
    assert result.trace.round.tolist() == [0]


def test_tol_zero_runs_all_rounds(linear):
    assert run(FedSGD(step_size=0.01), linear, rounds=5, tol=0).rounds == 5


@pytest.mark.parametrize("method", [FedAvg(step_size=50.0, local_steps=3), FedSGD(step_size=50.0)])
def test_divergence_is_a_status_and_a_warning_that_names_the_round(linear, method):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run(method, linear, rounds=500)
    assert result.status is Status.DIVERGED
    assert result.gap > 0
    values = result.trace.value
    first = int(np.flatnonzero(~np.isfinite(values) | (values > 1e10 * (1 + values[0])))[0])
    assert result.rounds == result.diverged[0] == result.trace.round[first]
    assert [w.category for w in caught] == [DivergenceWarning]  # and no numpy warning about overflow
    assert f"round {first}" in str(caught[0].message)
    assert type(method).__name__ in str(caught[0].message)
    assert caught[0].filename == __file__  # points to the caller


def test_an_objective_that_ends_above_its_start_is_a_warning(linear):
    """Not divergence yet: F has risen, by far less than what counts as blown up."""
    L = float(linear.constants().L_F or 0.0) if hasattr(linear.constants(), "L_F") else 0.0
    size = 2.05 / max(L, float(np.linalg.eigvalsh(linear.hessian(np.zeros(3))).max()))  # beyond 2/L: F rises slowly
    with pytest.warns(
        DivergenceWarning, match=r"FedSGD ended above its start: .* after 60 rounds, .*smaller step size"
    ):
        result = run(FedSGD(step_size=size), linear, rounds=60, tol=0)
    assert result.status is Status.ROUND_LIMIT
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(FedSGD(step_size=0.9 * size), linear, rounds=60, tol=0)
        run(FedSGD(step_size=size), linear, rounds=60, tol=0, start=linear.solve().w)


def test_divergence_to_nan_is_found(linear):
    """One round may leap from finite to NaN."""
    with pytest.warns(DivergenceWarning, match="round 1"):
        result = run(FedAvg(step_size=1e150, local_steps=5), linear, rounds=9)
    assert result.status is Status.DIVERGED
    assert np.isinf(result.gap)


@declares(task="classification", lower_bound=0.0, lipschitz=1.0)
class Margin(NamedTuple):
    """A hinge whose value at NaN is 0, as max(0, NaN) is."""

    def value(self, z, y):
        return max(0.0, 1.0 - y * z)

    def slope(self, z, y):
        return -y if y * z < 1.0 else 0.0


@pytest.mark.parametrize("loss", [Margin(), Hinge()])
def test_divergence_to_nan_is_found_where_the_loss_hides_it(loss, tmp_path):
    """Rounds 1 and 2 end with finite and infinite models; round 3 is the first that is recorded, and resumed from."""
    fed = Federation.from_clients([([[1.0], [2.0], [-1.0]], [1.0, -1.0, 1.0]), ([[0.5], [1.5]], [-1.0, 1.0])])
    method = FedProx(step_size=1e100, local_steps=2, batch_size=1, proximal_mu=[0.5, 0.0])
    how = {"trajectories": 2, "record_every": 3, "tol": 0.0, "checkpoint": tmp_path / "c"}
    with pytest.warns(DivergenceWarning):
        runs = [run(method, Problem(fed, loss), rounds=rounds, **how) for rounds in (5, 9)]
    assert [r.status for r in runs] == [Status.DIVERGED] * 2 and runs[1].diverged[0] == 3
    assert np.isnan(runs[1].w[0]).all()


def test_some_trajectories_diverge(linear):
    with pytest.warns(DivergenceWarning, match=r"1 of 2 trajectories \(first: 1\)"):
        result = run(FedSGD(step_size=[0.2, 50.0]), linear, rounds=4000, trajectories=2, tol=1e-8)
    assert result.status is Status.DIVERGED
    assert result.diverged[0] == -1 < result.diverged[1]
    assert result.gap[0] <= 1e-8
    assert result.rounds < 4000  # the other one is not kept going for nothing


@pytest.mark.parametrize("loss", ["hinge", "smoothed"])
def test_a_problem_without_certificate_runs_all_the_same(linear, loss):
    """`Measure.gap` is "inf where none exists"; hinge losses with l2 = 0 have none."""
    from fedconvex import Hinge, SmoothedHinge

    fed = linear.federation
    signs = Federation(fed.X, np.where(fed.y > 0, 1.0, -1.0), fed.ptr)
    problem = Problem(signs, Hinge() if loss == "hinge" else SmoothedHinge(1.0))
    result = run(FedSGD(step_size=0.05), problem, rounds=3)
    assert result.status is Status.ROUND_LIMIT
    assert result.gap >= 0


# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("method", METHODS, ids=range(len(METHODS)))
def test_resuming_equals_never_having_stopped(problem, method, stop, tmp_path):
    how = {"seed": 9, "trajectories": 2, "tol": 0}
    whole = run(method, problem, rounds=6, **how)
    run(method, problem, rounds=stop, checkpoint=tmp_path / "c", **how)
    same_result(whole, run(method, problem, rounds=6, checkpoint=tmp_path / "c", threads=2, **how))
    assert os.listdir(tmp_path) == ["c"]


@pytest.mark.parametrize("stop", [4, 5, 6])
def test_resuming_off_the_recording_grid(linear, stop, tmp_path):
    """A run that ended between two recorded rounds measured its last state; a longer one would not have."""
    how = {"tol": 0, "record_every": 3}
    run(PARTIAL, linear, rounds=stop, checkpoint=tmp_path / "c", **how)
    same_result(
        run(PARTIAL, linear, rounds=10, **how), run(PARTIAL, linear, rounds=10, checkpoint=tmp_path / "c", **how)
    )


def test_a_finished_run_is_not_run_again(linear, tmp_path, monkeypatch):
    how = {"rounds": 5000, "tol": 1e-9, "checkpoint": tmp_path / "c"}
    first = run(FedSGD(step_size=0.2), linear, **how)
    with monkeypatch.context() as patched:
        patched.setattr(FedSGD, "local", lambda *args: pytest.fail("a round was computed"))
        same_result(first, run(FedSGD(step_size=0.2), linear, **how))
    tighter = run(FedSGD(step_size=0.2), linear, **(how | {"tol": 1e-12}))  # but it can go on
    assert tighter.rounds > first.rounds
    same_result(tighter, run(FedSGD(step_size=0.2), linear, rounds=5000, tol=1e-12))


def test_divergence_survives_a_checkpoint(linear, tmp_path):
    method = FedSGD(step_size=[0.2, 50.0])
    with pytest.warns(DivergenceWarning):
        whole = run(method, linear, rounds=40, trajectories=2, tol=0)
    with pytest.warns(DivergenceWarning):
        run(method, linear, rounds=20, trajectories=2, tol=0, checkpoint=tmp_path / "c")
    with pytest.warns(DivergenceWarning):
        same_result(whole, run(method, linear, rounds=40, trajectories=2, tol=0, checkpoint=tmp_path / "c"))


def test_a_checkpoint_of_another_run_is_refused(linear, logistic, tmp_path):
    fed = linear.federation
    base = {"method": FedSGD(step_size=0.2), "problem": linear, "rounds": 2, "seed": 0}
    base |= {"trajectories": 1, "record_every": 1, "start": None}
    path = tmp_path / "c"

    def go(**change):
        how = base | change
        return run(how.pop("method"), how.pop("problem"), checkpoint=path, tol=0, **how)

    go()
    before = path.read_bytes()
    uniform = Problem(fed, Squared(), linear.l2, weights="uniform")
    for name, change in [
        ("method", {"method": FedSGD(step_size=0.3)}),
        ("method", {"method": FedAvg(step_size=0.2)}),
        ("data", {"problem": Problem(fed.subset([0, 1]), Squared(), linear.l2)}),
        ("loss", {"problem": Problem(Federation(fed.X, fed.y, fed.ptr), LOUD, linear.l2)}),
        ("l2", {"problem": Problem(fed, Squared(), 0.2)}),
        ("weights", {"problem": uniform}),
        ("key", {"seed": 1}),
        ("trajectories", {"trajectories": 2}),
        ("record_every", {"record_every": 2}),
        ("start", {"start": np.ones(3)}),
    ]:
        with pytest.raises(ValueError, match=f"checkpoint .*{name}.* must be .*; got .*") as caught:
            go(**change)
        assert str(path) in str(caught.value)
        assert "another file" in str(caught.value)
        assert path.read_bytes() == before  # and left alone
    go(rounds=4)  # the right run still goes on


class _Loud(type(Squared())):
    """Squared loss under another name."""

    def __repr__(self):
        return "Loud()"


LOUD = _Loud()


def foreign(kind, path):
    """Things that are not checkpoints of a run."""
    if kind == "text":
        path.write_text("hello")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "npy":
        with open(path, "wb") as f:
            np.save(f, np.arange(3))
    elif kind == "pickle":
        with open(path, "wb") as f:
            np.save(f, np.array([{}], dtype=object), allow_pickle=True)
    else:
        about = {
            "npz": {"a": np.arange(3)},
            "not json": {"description": np.frombuffer(b"{", np.uint8)},
            "empty json": {"description": np.frombuffer(b"{}", np.uint8)},
            "json list": {"description": np.frombuffer(b"[1]", np.uint8)},
            "json number": {"description": np.frombuffer(b'{"about": 3}', np.uint8)},
        }[kind]
        with open(path, "wb") as f:
            np.savez(f, **about)


@pytest.mark.parametrize(
    "kind", ["text", "empty", "npy", "pickle", "npz", "not json", "empty json", "json list", "json number"]
)
def test_a_foreign_file_is_refused(linear, tmp_path, kind):
    path = tmp_path / "c"
    foreign(kind, path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"run: checkpoint .*must be .*; got .*"):
        run(FedSGD(step_size=0.2), linear, rounds=2, checkpoint=path)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused(linear, tmp_path, rng):
    """Cut short anywhere, or one byte changed anywhere: a ValueError that names the file, or the very same run."""
    path = tmp_path / "c"
    method = FedAvg(step_size=0.2, local_steps=2, server=ServerAdam())
    run(method, linear, rounds=3, tol=0, checkpoint=path)
    good = path.read_bytes()
    whole = run(method, linear, rounds=4, tol=0)
    cut = [good[:n] for n in rng.integers(0, len(good), 15)]
    flipped = []
    for at in [*rng.integers(0, len(good), 60), *rng.integers(len(good) - 1500, len(good), 60)]:
        b = bytearray(good)
        b[at] ^= int(rng.integers(1, 256))
        flipped.append(bytes(b))
    wrong = []
    for data in cut + flipped:
        path.write_bytes(data)
        try:
            same_result(whole, run(method, linear, rounds=4, tol=0, checkpoint=path))
        except ValueError as error:
            if "checkpoint" not in str(error):
                wrong.append(repr(error))
        except Exception as error:  # anything else is a leak
            wrong.append(repr(error)[:200])
    assert not wrong, wrong


def test_leftovers_of_killed_writes_are_cleared_and_only_those(linear, tmp_path):
    mine, other = tmp_path / "c.123.part", tmp_path / "c.more.123.part"
    mine.write_bytes(b"half")
    other.write_bytes(b"another run, whose checkpoint is called c.more, is writing this now")
    run(FedSGD(step_size=0.2), linear, rounds=2, checkpoint=tmp_path / "c")
    assert not mine.exists()
    assert other.exists()


def test_checkpoint_every_counts_rounds(linear, tmp_path, monkeypatch):
    stored = []
    real = os.replace

    def spy(a, b):
        real(a, b)
        with np.load(b) as f:
            stored.append(json.loads(f["description"].tobytes())["round"])

    monkeypatch.setattr(os, "replace", spy)
    run(FedSGD(step_size=0.2), linear, rounds=7, tol=0, checkpoint=tmp_path / "c", checkpoint_every=3)
    assert sorted(set(stored)) == [3, 6, 7]


# ---------------------------------------------------------------- kills

SCRIPT = """
import hashlib, os, sys
import numpy as np
from fedconvex import FedAvg, Federation, Problem, Squared, run

rng = np.random.default_rng(0)
fed = Federation.from_clients([(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in (5, 8, 6)])
problem = Problem(fed, Squared(), l2=0.1)
method = FedAvg(step_size=0.05, local_steps=3, batch_size=2, participation=2)
rounds, path, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]

def go(checkpoint, every):
    how = {'checkpoint': checkpoint, 'checkpoint_every': every, 'record_every': 40, 'tol': 0}
    r = run(method, problem, rounds=rounds, seed=5, **how)
    h = hashlib.sha256()
    for a in (r.w, r.gap, *(v for k, v in r.trace.items() if k != "seconds")):
        h.update(np.ascontiguousarray(a).tobytes())
    return h.hexdigest() + " " + r.status.name + " " + str(r.rounds)

run(method, problem, rounds=2)  # kernels are loaded
if mode == "whole":
    print(go(None, None), flush=True)
else:  # a child process for every line; the parent is told its number
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            print(os.getpid(), flush=True)
            answer = go(path, int(line))
            with open(path + ".answer", "w") as f:
                f.write(answer)
            os._exit(0)
        os.waitpid(child, 0)
        print("gone", flush=True)
"""


def start(folder, *args):
    script = folder / "script.py"
    script.write_text(SCRIPT)
    env = os.environ | {"PYTHONPATH": HOME}
    command = [sys.executable, str(script), *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def kill_trial(rng, rounds=20_000, kills=5):
    """Real processes, SIGKILL at random moments: the run ends with the bits of a run that was left alone.

    Children are forked from a process that has loaded its kernels, so that a kill costs milliseconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        path, answer = folder / "c", folder / "c.answer"
        nursery = start(folder, rounds, path, "fork")
        midway = half_written = 0
        for _ in range(kills):
            nursery.stdin.write(f"{rng.integers(1, 6)}\n")
            nursery.stdin.flush()
            child = int(nursery.stdout.readline())
            time.sleep(rng.uniform(0.0, 0.06))
            os.kill(child, signal.SIGKILL)
            assert nursery.stdout.readline() == "gone\n"
            half_written += len(list(folder.glob("*.part")))
            midway += not answer.exists()
        nursery.stdin.write("500\n")
        nursery.stdin.flush()
        nursery.stdout.readline()
        assert nursery.stdout.readline() == "gone\n"
        nursery.stdin.close()
        nursery.wait(timeout=60)
        whole = start(folder, rounds, "-", "whole").communicate(timeout=300)[0].strip()
        assert whole.endswith(f"ROUND_LIMIT {rounds}")
        assert answer.read_text() == whole
        assert sorted(os.listdir(folder)) == ["c", "c.answer", "script.py"]
        assert midway, "the run ended before the first kill: take more rounds"
    return {"midway": midway, "half_written": half_written}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked from a warm process")
@pytest.mark.slow
def test_killed_three_times(rng, monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # so that few rounds last longer than a kill is late
    kill_trial(rng, rounds=400, kills=3)


# ---------------------------------------------------------------- logistic and softmax share the driver


def test_float_share_rounds_to_a_count(linear):
    for share, m in ((0.01, 1), (0.5, 2), (0.7, 4), (1.0, 5)):
        method = FedAvg(step_size=0.1, participation=share)
        clients, weights = participants(method, linear, draws_of(R=3))
        assert clients.shape == (3, m)
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-15)
        for row, q in zip(clients, weights, strict=True):
            assert np.unique(row).size == m
            np.testing.assert_allclose(q, linear.weights[row] / linear.weights[row].sum(), rtol=1e-15)


def test_logistic_labels_of_the_fixture(logistic):
    assert isinstance(logistic.loss, Logistic)
    assert logistic.federation.is_sparse


@pytest.mark.filterwarnings("ignore:FedAvg ended above")
def test_a_chunk_of_trajectories_has_the_bits_of_its_place(linear):
    """Numbers per trajectory are those of the whole run, or the chunk's own; draws are those of its places."""
    eta = np.linspace(0.05, 0.3, 5)
    for method in (
        FedAvg(step_size=eta, local_steps=2, batch_size=2, participation=2),
        FedSGD(step_size=eta),
        FedProx(proximal_mu=eta, step_size=0.1, local_steps=2, batch_size=2),
        SCAFFOLD(step_size=eta, batch_size=2, participation=2),
    ):
        how = {"rounds": 3, "tol": 0, "seed": 6}
        whole = run(method, linear, trajectories=5, **how).w
        parts = [run(method, linear, trajectories=range(a, b), **how).w for a, b in ((0, 2), (2, 4), (4, 5))]
        np.testing.assert_array_equal(np.concatenate([*parts[:2], parts[2][None]]), whole)
    own = replace(method, step_size=eta[2:4])
    np.testing.assert_array_equal(run(own, linear, trajectories=range(2, 4), **how).w, parts[1])
    assert np.abs(parts[0] - parts[1]).max() > 1e-6
    for wrong in (range(2, 2), range(0, 4, 2), range(-1, 1)):
        with pytest.raises(ValueError, match=r"run: trajectories must be a number of them, or range\(a, b\)"):
            run(method, linear, trajectories=wrong)
    with pytest.raises(ValueError, match="one number per trajectory"):
        run(method, linear, trajectories=range(3, 7))
