"""Methods whose parts return something else are refused in the first round, by a sentence with the cure."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from fedconvex import Problem, Squared, run
from fedconvex.datasets import linear_federation
from fedconvex.fields import CheckedFields, Positive
from fedconvex.kernels import averages, row_losses

PROBLEM = Problem(linear_federation(n_clients=5, n_features=3, seed=0).federation, Squared(), 0.1)


class State(NamedTuple):
    w: Any


class Other(NamedTuple):
    v: Any


class Message(NamedTuple):
    w: Any


class Reply(NamedTuple):
    g: Any


class Parts(CheckedFields):
    def init(self, problem, w):
        return State(w)

    def broadcast(self, state):
        return Message(state.w)

    def local(self, problem, message, clients, memory, draws):
        return Reply(row_losses.gradients_of(problem, message.w, clients)), memory

    def aggregate(self, state, clients, weights, reply):
        return State(state.w - self.step_size * averages.over_clients(weights, reply.g))


def changed(without="", **parts):
    """Gradient descent with some of its parts written otherwise, or left out."""
    found = {name: part for name, part in {**vars(Parts), **parts}.items() if name[:2] != "__" and name != without}
    fields = {"__annotations__": {"step_size": Positive}, "step_size": 0.1}
    return dataclass(frozen=True, kw_only=True)(type("Mine", (CheckedFields,), found | fields))()


def test_what_fits_runs():
    assert run(changed(), PROBLEM, rounds=2, tol=0).rounds == 2


@pytest.mark.parametrize("part", ["init", "broadcast", "local", "aggregate"])
def test_a_part_that_is_missing_is_named(part):
    with pytest.raises(TypeError, match=rf"run: method must have init, broadcast, .*; got Mine without {part}$"):
        run(changed(without=part), PROBLEM, rounds=1)


def alone(self, problem, message, clients, memory, draws):
    return Reply(row_losses.gradients_of(problem, message.w, clients))


def summed(self, problem, message, clients, memory, draws):
    return Reply(row_losses.gradients_of(problem, message.w, clients).sum(axis=1)), memory


@pytest.mark.parametrize(
    ("part", "returns", "message"),
    [
        ("init", lambda self, problem, w: w, r"a state that is a named tuple of arrays; got ndarray"),
        ("init", lambda self, problem, w: Other(w), r"a state with a field w.*; got Other: or define measure"),
        ("init", lambda self, problem, w: State(w[0]), r"models w .* of R = 2 trajectories; got shape \(3,\)"),
        ("broadcast", lambda self, state: state.w, r"a message that is a named tuple of arrays; got ndarray"),
        ("broadcast", lambda self, state: Message(state.w[0]), r"arrays .* R = 2 .*; got Message.w of shape \(3,\)"),
        ("local", alone, r"two things, the reply and the memory; got Reply: return reply, memory"),
        ("local", lambda self, p, m, c, memory, d: (m.w, memory), r"a reply that is a named tuple.*; got ndarray"),
        ("local", lambda self, p, m, c, memory, d: (Reply(m.w[0]), memory), r"arrays .* R = 2 .*; got Reply.g of"),
        ("aggregate", lambda self, *given: None, r"a state that is a named tuple of arrays; got NoneType"),
        ("aggregate", lambda self, state, *given: State(state.w[:1]), r"models w .*; got shape \(1, 3\)"),
    ],
)
def test_what_a_part_returns_is_refused(part, returns, message):
    with pytest.raises((TypeError, ValueError), match=f"Mine.{part} must return {message}"):
        run(changed(**{part: returns}), PROBLEM, rounds=1, trajectories=2)


def test_a_reply_without_the_axis_of_clients_is_not_averaged():
    with pytest.raises(ValueError, match=r"arrays of a reply must begin with .* m = \(2, 5\) .*; got shape \(2, 3\)"):
        run(changed(local=summed), PROBLEM, rounds=1, trajectories=2)


def test_empty_fields_and_flags_have_no_axes():
    class Told(NamedTuple):
        w: Any
        first: bool
        none: Any

    method = changed(broadcast=lambda self, state: Told(state.w, True, state.w[:0]))
    assert run(method, PROBLEM, rounds=2, tol=0).rounds == 2


def test_a_loss_without_a_slope_is_refused():
    class Half(NamedTuple):
        def value(self, z, y):
            return 0.5 * (z - y) ** 2

    with pytest.raises(TypeError, match=r"Problem.loss must have a slope; got Half\(\) without: define slope"):
        Problem(PROBLEM.federation, Half())
