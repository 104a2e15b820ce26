"""Fields and their rules: what is kept, what is refused and how that is said; and what a method need not define."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, FedSGD, Problem, Squared, iterate, run
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import first_state, measure, participants
from fedconvex.fields import (
    AtLeastZero,
    CheckedFields,
    Count,
    CountPerClient,
    Flag,
    Inside,
    OneOrMore,
    OneOrTwo,
    Positive,
    PositivePerTrajectory,
    Share,
    rules_of,
)
from fedconvex.kernels import averages, row_losses
from fedconvex.methods import Decay, DynamicFedAvg, FedProx, FedSAM, NodeWork, ProportionalSampling, UniformSampling
from fedconvex.methods.parts import step_sizes
from fedconvex.problems import ServerProblem
from fedconvex.traits import not_sent, sent_apart
from tests.test_contract import EVERY

pytestmark = pytest.mark.anywhere


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields(CheckedFields):
    """One field for every rule."""

    positive: Positive = 1.0
    least: AtLeastZero = 0.0
    share: Share = 0.5
    inside: Inside = 0.5
    count: Count = 1
    option: OneOrTwo = 2
    flag: Flag = False
    rho: PositivePerTrajectory = 1.0
    steps: CountPerClient | None = None
    free: Any = None
    perhaps: Annotated[float, Positive.__metadata__[0]] | None = None  # type: ignore[attr-defined]


class Other(Fields):
    """A subclass, which is called by its own name."""


KEPT = [
    ("positive", 2, 2.0),
    ("positive", np.float32(0.5), 0.5),
    ("least", 0, 0.0),
    ("share", 0, 0.0),
    ("count", np.int64(3), 3),
    ("flag", np.True_, True),
    ("rho", [1, 2.5], (1.0, 2.5)),
    ("rho", np.array(0.25), 0.25),
    ("rho", np.array([0.25]), (0.25,)),
    ("steps", np.array([1, 2]), (1, 2)),
    ("steps", None, None),
    ("perhaps", None, None),
    ("free", "anything", "anything"),
]

REFUSED = [
    ("positive", 0.0, "be positive and finite; got 0.0"),
    ("positive", -1, "be positive and finite; got -1"),
    ("positive", np.inf, "be positive and finite; got inf"),
    ("positive", None, "be a number; got NoneType None"),
    ("positive", True, "be a number; got bool True"),
    ("perhaps", 0.0, "be positive and finite; got 0.0"),
    ("least", -1e-300, "be nonnegative and finite; got -1e-300"),
    ("share", 1.0, "lie in [0, 1); got 1.0"),
    ("share", np.nan, "be finite; got nan"),
    ("inside", 0.0, "lie strictly between 0 and 1; got 0.0"),
    ("inside", 1, "lie strictly between 0 and 1; got 1"),
    ("count", 0, "be at least 1; got 0"),
    ("count", 2.0, "be a whole number; got float 2.0"),
    ("option", 3, "be at most 2; got 3"),
    ("flag", 1, "be True or False; got 1"),
    ("rho", (1.0, -1.0), "be positive numbers, one per trajectory; got (1.0, -1.0)"),
    ("rho", (), "be positive numbers, one per trajectory; got ()"),
    ("rho", [[1.0]], "be positive numbers, one per trajectory; got [[1.0]]"),
    ("rho", (1.0, np.nan), "be finite; got nan at 1: 1 such entries; drop or impute them"),
    ("rho", ["1"], "hold real numbers; got dtype <U1: encode categories as numbers first"),
    ("rho", "1", "be a number; got str '1'"),
    ("steps", (1, 0), "be whole numbers of at least 1, one per client; got (1, 0)"),
    ("steps", (1, 1.5), "be a whole number; got float 1.0"),
]


@pytest.mark.parametrize(("name", "x", "kept"), KEPT, ids=str)
def test_what_is_kept(name, x, kept):
    found = getattr(Fields(**{name: x}), name)
    assert found == kept
    assert type(found) is type(kept)


@pytest.mark.parametrize(("name", "x", "says"), REFUSED, ids=str)
def test_what_is_refused_and_how_it_is_said(name, x, says):
    with pytest.raises((ValueError, TypeError)) as caught:
        Fields(**{name: x})
    assert str(caught.value) == f"Fields.{name} must {says}"
    with pytest.raises((ValueError, TypeError), match=rf"^Other\.{name} must "):
        Other(**{name: x})


def test_kind_of_error():
    """Wrong types are TypeErrors, wrong numbers ValueErrors."""
    for name, x, says in REFUSED:
        wrong = "be a number" in says or "whole number;" in says or "True or" in says or "real numbers" in says
        with pytest.raises(TypeError if wrong else ValueError):
            Fields(**{name: x})


@pytest.mark.parametrize("name", EVERY)
def test_every_field_of_every_method_has_a_rule(name):
    """Nonsense is refused wherever it is given, with the method's and the field's names."""
    method = EVERY[name]
    assert {n for n, _, _ in rules_of(type(method))} == {field.name for field in dataclasses.fields(method)}
    for field in dataclasses.fields(method):
        with pytest.raises((ValueError, TypeError), match=rf"^{type(method).__name__}\.{field.name} must "):
            dataclasses.replace(method, **{field.name: object()})


@pytest.fixture
def problem():
    return Problem(
        Federation.from_clients([([[float(k + 1)]] * (k + 2), [1.0] * (k + 2)) for k in range(4)]), Squared()
    )


MISFITS = [
    (FedAvg(step_size=(0.1, 0.2)), "FedAvg.step_size must be one number per trajectory (1); got 2"),
    (
        FedProx(proximal_mu=(1.0, 1.0), step_size=0.1),
        "FedProx.proximal_mu must be one number per trajectory (1); got 2",
    ),
    (FedSAM(step_size=0.1, rho=(1.0, 1.0)), "FedSAM.rho must be one number per trajectory (1); got 2"),
    (
        DynamicFedAvg(step_size=0.1, local_steps=(1, 2)),
        "DynamicFedAvg.local_steps must be one number per client (4); got 2",
    ),
    (
        DynamicFedAvg(step_size=0.1, batch_size=(2, 9, 2, 2)),
        "DynamicFedAvg.batch_size must be at most 3, the rows of client 1; got 9",
    ),
    (FedSGD(step_size=0.1, participation=9), "FedSGD.participation must be at most the number of clients 4; got 9"),
]


@pytest.mark.parametrize(("method", "says"), MISFITS, ids=lambda v: v if isinstance(v, str) else "")
def test_what_does_not_fit_is_said_before_the_first_round(problem, method, says):
    for server in (problem, ServerProblem(problem)):
        with pytest.raises(ValueError) as caught:
            first_state(method, server, np.zeros((1, 1)))
        assert str(caught.value) == says
    with pytest.raises(ValueError) as caught:
        next(iterate(method, problem))
    assert str(caught.value) == says


def test_work_of_nodes_names_the_node():
    with pytest.raises(ValueError, match=r"^NodeWork\.drop must be probabilities, one per node; got \(0\.5, 1\.5\)$"):
        NodeWork(drop=(0.5, 1.5))


def test_a_schedule_is_named_by_its_field():
    """It said FedSAM.rho.step_size: scale, and a domain step size was renamed by replacing words."""
    with pytest.raises(ValueError, match=r"^FedSAM\.rho: scale must be positive and finite; got -1$"):
        FedSAM(step_size=0.1, rho=Decay(-1))
    with pytest.raises(TypeError, match=r"^FedSAM\.step_size: by_round must be True or False; got 1$"):
        FedSAM(step_size=Decay(1.0, by_round=1))
    with pytest.raises(ValueError, match=r"^DynamicFedAvg\.step_size must be constant in time; .*: use FedAvg$"):
        DynamicFedAvg(step_size=Decay(1.0))
    rule = step_sizes.StepRule(OneOrMore(float, "numbers"), decays=False)
    with pytest.raises(ValueError, match="a constant step converges"):
        rule("x", Decay(1.0))


# ---------------------------------------------------------------- what a method need not define


class State(NamedTuple):
    w: np.ndarray


@not_sent("extra")
class Reply(NamedTuple):
    g: np.ndarray
    extra: np.ndarray


@dataclasses.dataclass(frozen=True)
class Bare:
    """FedSGD in three functions, on the driver's defaults, without rules."""

    participation: Any = 1.0

    def init(self, problem, w):
        return State(w)

    def broadcast(self, state):
        return state

    def local(self, problem, message, clients, memory, draws):
        g = row_losses.gradients_of(problem, message.w, clients)
        return Reply(g, np.zeros((*clients.shape, 7))), memory

    def aggregate(self, state, clients, weights, reply):
        return State(state.w - 0.05 * averages.over_clients(weights, reply.g))


@pytest.mark.parametrize("scheme", [1.0, None, 2, 0.5, UniformSampling(3), ProportionalSampling(2)], ids=str)
def test_defaults_are_those_of_fedsgd(problem, scheme):
    """Who takes part, what is measured, what is counted: equal to a method that declares it all."""
    mine = run(Bare(scheme), problem, rounds=5, tol=0, seed=3, trajectories=2)
    theirs = run(FedSGD(step_size=0.05, participation=scheme), problem, rounds=5, tol=0, seed=3, trajectories=2)
    assert list(mine.trace) == list(theirs.trace)
    for column in set(mine.trace) - {"seconds"}:
        np.testing.assert_array_equal(mine.trace[column], theirs.trace[column])


def test_the_default_scheme_is_checked(problem):
    draws = Draws(key_from_seed(0), np.arange(1), 0)
    with pytest.raises(ValueError, match=r"^Bare\.participation must be at most the number of clients 4; got 5$"):
        participants(Bare(5), problem, draws)
    with pytest.raises(TypeError, match=r"^Bare\.participation must be a number of clients, a share or"):
        participants(Bare("half"), problem, draws)
    clients, weights = participants(Bare(), ServerProblem(problem), draws)
    assert sorted(clients[0].tolist()) == [0, 1, 2, 3]
    assert weights.sum() == pytest.approx(1.0, rel=1e-15)


def test_measured_is_the_problems_objective(problem):
    w = np.array([[0.3], [0.7]])
    found = measure(Bare(), problem, State(w))
    np.testing.assert_array_equal(found.value, problem.value(w))
    np.testing.assert_array_equal(found.gap, problem.measure(w).gap)


def test_what_messages_declare():
    @sent_apart("w")
    class Message(NamedTuple):
        w: np.ndarray

    assert Reply(np.zeros(1), np.zeros(1)).not_sent == ("extra",)
    assert Message(np.zeros(1)).per_client == ("w",)
    assert Reply.__name__ == "Reply"
