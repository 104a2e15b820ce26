"""Numbers whose products leave double precision: not decided beyond the limits, decided just within."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from campaigns.degenerate import BUILDERS, as_list

from fedconvex import FedAvg, Federation, FedProx, Problem, Squared
from fedconvex.methods import DANE, ProximalPoint, ServerSGD
from fedconvex.problems import GaussianPosteriorProblem, MovingTarget
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.parts import theorem as parts_theorem
from fedconvex.theorems.parts.ranges import MOST, need_products
from fedconvex.theorems.parts.samples import Models, Sample
from fedconvex.theorems.parts.theorem import Check
from fedconvex.theory import PrecisionError
from fedconvex.verify import Outcome, own_instance, verify
from fedconvex.verify.checking import carried_out

X, Y = np.array([[1.0, 0.5], [-0.25, 1.0], [0.5, 0.25]]), np.array([1.0, -1.0, 0.5])


def problem(x=1.0, y=1.0, l2=0.1):
    """Two clients whose largest features and label are as given."""
    return Problem(Federation.from_arrays(X * x, Y * y, [0, 0, 1]), Squared(), l2)


def refusal(*args):
    """Return what is not decided, or nothing."""
    try:
        need_products("here", *args)
    except PrecisionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("size", [1e-37, 1e37])
@pytest.mark.parametrize("what", ["x", "y", "column", "start"])
def test_both_sides_of_the_limits(what, size):
    """The largest entry of a feature, of one beside others, the largest label, the largest entry of the start."""
    inside, outside = (1.01, 0.99) if size < 1.0 else (0.99, 1.01)
    names = {"x": "largest entry of every feature", "y": "largest label", "start": "start"}

    def at(factor):
        if what == "start":
            return refusal(problem(), np.array([0.5, factor * size]))
        if what == "column":
            return refusal(problem(np.array([1.0, factor * size])))
        return refusal(problem(**{what: factor * size}))

    assert at(inside) == ""
    if what == "start" and size < 1.0:
        assert at(outside) == ""  # near zero is as good as zero
        return
    assert f"here is not decided: needs the {names.get(what, names['x'])} within" in at(outside)
    assert f"got {outside * size:.3g}: scale the features" in at(outside)


def test_zeros_are_numbers_and_rows_beside_others_may_be_short():
    short = Problem(Federation.from_arrays(X * [[1.0], [1e-150], [0.0]], 0.0 * Y, [0, 0, 1]), Squared())
    assert refusal(problem(0.0, 0.0, 0.0), np.zeros(2)) == refusal(short, np.zeros(2)) == ""


@pytest.mark.parametrize(("inside", "outside"), [(1.01e-75, 0.99e-75), (0.99e75, 1.01e75)])
def test_both_sides_of_the_limits_of_settings(inside, outside):
    """l2, step sizes, those of the server, the coupling of a proximal method."""
    for name, ask in (
        ("l2", lambda v: refusal(problem(l2=v))),
        ("FedAvg.step_size", lambda v: refusal(problem(), None, FedAvg(step_size=v))),
        ("ServerSGD.step_size", lambda v: refusal(problem(), None, FedAvg(step_size=1.0, server=ServerSGD(v)))),
        ("FedProx.proximal_mu", lambda v: refusal(problem(), None, FedProx(proximal_mu=v, solver=ProximalPoint()))),
    ):
        assert ask(inside) == ""
        assert f"needs {name} within 1e-75 and 1e75" in ask(outside), name


def test_chances_and_tolerances_are_no_sizes():
    """A probability of 1e-200 is not multiplied: Massart's bound on many rows is wrong as rarely as that."""
    for method in (Sample(sizes=20, models=Models([[1.0]]), delta=1e-200), DANE(step_size=1.0, tol=1e-100)):
        assert refusal(problem(), None, method) == ""


def test_the_limits_are_those_of_products_of_eight():
    """As wide as they can be: the eighth power, times rows and columns, is a normal number; ten times more is none."""
    least = sys.float_info.min
    assert MOST**8 * 1e12 < math.inf and MOST**-8 > least
    assert (10.0 * MOST) ** 8 * 1e12 == math.inf and (100.0 * MOST) ** -8 < least


def of_kind(kind, size):
    plain = Problem(Federation.from_arrays(X * size, np.sign(Y), [0, 1, 1], [0, 1, 1]), Squared(), 0.1)
    return BUILDERS[kind](np.random.default_rng(0), plain)


OTHERS = {"an ensemble", GaussianPosteriorProblem.learns}  # the latter refuses features of 1e30 itself


@pytest.mark.parametrize("kind", [kind for kind in BUILDERS if kind.learns not in OTHERS])
def test_problems_of_every_kind(kind):
    """Each by its own theorems: beyond the limit none is decided, and the reason is a sentence."""
    mine = [theorem for theorem in THEOREMS.values() if theorem.kind is kind]
    far, near = of_kind(kind, 1.01e37), of_kind(kind, 0.99e37)
    assert mine and refusal(near) == ""
    for theorem in mine:
        with pytest.raises(PrecisionError, match=f"{theorem.name} is not decided: needs the largest entry of every"):
            need_products(theorem.name, far)


def test_ensembles_only_compare_features():
    far = as_list(Problem(Federation.from_arrays(X * 1e150, np.sign(Y), [0, 1, 1], [0, 1, 1]), Squared()))
    theorem = THEOREMS["boosting-gradient"]
    method = theorem.method.make(theorem, far, np.zeros(0), 2)
    assert verify(theorem, far, method, rounds=2, start=np.zeros(far.model_shape)).outcome is Outcome.HOLDS


@pytest.mark.parametrize("size", [1e-38, 1e-8, 1.0, 1e8, 1e38])
def test_both_doors_ask_first(size):
    """`verify`, and a check of your own rows, whose method is set by a rule: 1e8 and 1e-8 are decided."""
    mine, decided = problem(size, 1.0, 0.1 * size**2), Outcome.HOLDS if 1e-9 < size < 1e9 else Outcome.INCONCLUSIVE
    found = verify("fedavg-at-optimum", mine, FedAvg(step_size=0.05 / size**2, local_steps=2), rounds=3)
    assert found.outcome is decided
    other = carried_out(THEOREMS["fedavg-at-optimum"], Check(own_instance(mine, "yours")))
    assert other.outcome is decided
    for reason in (found.reason, other.verdict.reason) if decided is Outcome.INCONCLUSIVE else ():
        assert reason.startswith("fedavg-at-optimum is not decided: needs the largest entry of every feature within")


def test_moving_targets_and_wrong_kinds():
    """Of a moving minimiser the rows are looked at as well; a problem of another kind is refused for that."""
    assert "not decided" in refusal(MovingTarget(problem(1e38), 0.1))
    found = verify("game-rounds", problem(1e38), FedAvg(step_size=0.1), rounds=1)
    assert found.outcome is Outcome.NOT_APPLICABLE and "a GameProblem" in found.reason


def test_without_the_question_steps_of_1e160_are_violated(monkeypatch):
    """Proximal steps that overflow among equal rows: S-DANE's bound is 0 there, and what is measured is infinite."""
    theorem = THEOREMS["sdane"]
    mine = Problem(Federation.from_arrays([[1.0, 2.0], [1.0, 2.0]], [1.0, -1.0], [0, 1]), Squared(), 0.0)
    method = theorem.method.make(theorem, mine, np.zeros(2), 4)
    assert verify(theorem, mine, method, rounds=4).outcome is Outcome.VACUOUS  # equal clients: it ends at once
    found = verify(theorem, mine, replace(method, step_size=1e160), rounds=4)
    assert found.outcome is Outcome.INCONCLUSIVE and "needs SDANE.step_size within" in found.reason
    monkeypatch.setattr(parts_theorem, "need_products", lambda *_: None)
    assert verify(theorem, mine, replace(method, step_size=1e160), rounds=4).outcome is Outcome.VIOLATED
