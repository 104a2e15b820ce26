"""How the clients' work is divided among threads, and when it is."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import pytest

from fedconvex import FedAvg, Problem, Squared, iterate
from fedconvex.datasets import linear_federation
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import threads
from fedconvex.kernels import pieces


class Message(NamedTuple):
    w: np.ndarray


class Reply(NamedTuple):
    w: np.ndarray


class Recording:
    """A method that writes down which slice every thread gets."""

    def __init__(self, fails=None):
        self.slices, self.fails = [], fails

    def local(self, problem, message, clients, memory, draws):
        self.slices.append((len(message.w), clients.shape, draws.trajectory.tolist(), threading.get_ident()))
        if threading.current_thread() is not threading.main_thread() and self.fails is not None:
            raise self.fails
        while self.fails is not None:
            pieces.pause()
        return Reply(np.stack([clients, draws.trajectory[:, None] + 0 * clients], axis=2)), memory


def divided(shape, number, fails=None):
    method, clients = Recording(fails), np.arange(shape[0] * shape[1]).reshape(shape)
    draws = Draws(key_from_seed(0), 10 + np.arange(shape[0]), 0)
    reply, _ = threads.Threads(number).local(method, None, Message(np.zeros(shape[0])), clients, None, draws)
    np.testing.assert_array_equal(reply.w[..., 0], clients)
    np.testing.assert_array_equal(reply.w[..., 1], np.broadcast_to(draws.trajectory[:, None], shape))
    return method.slices


def test_trajectories_are_divided_first_and_clients_where_that_is_more_even():
    assert sorted(s[:2] for s in divided((4, 5), 2)) == [(2, (2, 5)), (2, (2, 5))]
    assert sorted(s[:2] for s in divided((3, 10), 2)) == [(3, (3, 5)), (3, (3, 5))]
    assert sorted(s[:2] for s in divided((1, 5), 3)) == [(1, (1, 1)), (1, (1, 2)), (1, (1, 2))]
    assert sorted(s[:2] for s in divided((2, 1), 8)) == [(1, (1, 1)), (1, (1, 1))]
    assert len({s[3] for s in divided((8, 1), 4)}) >= 2
    assert [s[:2] for s in divided((1, 1), 4)] == [(1, (1, 1))]


def test_the_cause_is_raised_and_the_others_stop():
    """The first slice would go on for ever; what is raised is what the other thread failed of."""
    with pytest.raises(ZeroDivisionError, match="as if"):
        divided((2, 1), 2, fails=ZeroDivisionError("as if"))


def test_threads_are_used_when_work_is_worth_it(monkeypatch):
    """By default: after three long rounds, three on trial, and more if that was faster; never by interpreted code."""
    problem = Problem(linear_federation(seed=0, n_clients=4).federation, Squared())
    method, calls, call = FedAvg(step_size=0.1, local_steps=2, batch_size=3), [], threads.Threads._divided
    monkeypatch.setattr(threads.Threads, "_divided", lambda *args: calls.append(0) or call(*args))

    def end(rounds, **settings):
        calls.clear()
        *_, last = iterate(method, problem, rounds=rounds, trajectories=4, **settings)
        return last[1].w, len(calls)

    alone, none = end(rounds=8, threads=1)
    assert none == 0
    monkeypatch.setattr(threads, "_processors", lambda: 2)
    for worth, gain, expected in ((1e9, 1e9, 0), (-1e9, 1e9, 5), (-1e9, 0.0, 3)):
        monkeypatch.setattr(threads, "_WORTH", worth)
        monkeypatch.setattr(threads, "_GAIN", gain)
        w, used = end(rounds=8)
        assert used == expected
        np.testing.assert_array_equal(w, alone)
    w, used = end(rounds=8, threads=3)
    assert used == 8
    np.testing.assert_array_equal(w, alone)
    monkeypatch.undo()
    assert threads._processors() == 1 or not threads.DISABLED


class Sums(NamedTuple):
    g: np.ndarray  # (R, *model): summed over the clients already


class Own:
    """A method by somebody who did not think of threads: one reply for all clients, or messages without names."""

    def __init__(self, message=Message, wide=False):
        self.message, self.wide = message, wide

    def init(self, problem, w):
        return Message(w)

    def broadcast(self, state):
        return self.message((state.w, np.ones(3))) if self.message is tuple else Message(state.w)

    def local(self, problem, message, clients, memory, draws):
        g = np.stack([problem.client_gradients(w)[k] for w, k in zip(message[0], clients, strict=True)])
        return (Reply(g) if self.wide else Sums(g.mean(axis=1))), memory

    def aggregate(self, state, clients, weights, reply):
        return Message(state.w - 0.1 * (reply.w.mean(axis=1) if self.wide else reply.g))


@pytest.mark.parametrize("method", [Own(), Own(tuple, wide=True)])
@pytest.mark.parametrize("trajectories", [1, 2])
def test_what_cannot_be_divided_is_done_in_one_thread(method, trajectories, monkeypatch):
    """Whether a round takes long must not decide whether such a method runs; threads that are asked for are refused."""
    problem = Problem(linear_federation(seed=0, n_clients=4).federation, Squared())
    monkeypatch.setattr(threads, "_processors", lambda: 2)
    monkeypatch.setattr(threads, "_WORTH", -1e9)
    ends = []
    for number in (1, None):
        *_, (_, last) = iterate(method, problem, rounds=8, trajectories=trajectories, threads=number)
        ends.append(last.w)
    np.testing.assert_array_equal(*ends)
    with pytest.raises(ValueError, match=r"Own in several threads must have .* pass threads=1"):
        list(iterate(method, problem, rounds=1, trajectories=trajectories, threads=2))
