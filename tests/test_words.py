"""Methods say what they do; one that says nothing is described by its settings, never by a guess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fedconvex import FedAvg, Problem, Squared
from fedconvex.bench.solvers import passes_per_round
from fedconvex.datasets import linear_federation
from fedconvex.fields import CheckedFields, Count, Positive
from fedconvex.methods import FedProx, JointMOCHA, NodeWork, ProximalPoint, ScaledSampling
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.parts.theorem import Check
from fedconvex.traits import LocalSteps, Traits, stopping
from fedconvex.verify.checking import problem_of, setting_of
from fedconvex.verify.descriptions import described
from fedconvex.words import words_of

pytestmark = pytest.mark.anywhere
PROBLEM = Problem(linear_federation(n_clients=4, n_features=2, seed=0).federation, Squared())


def test_a_setting_that_a_method_lacks_is_answered_with_one_that_it_has():
    for wrong in ("stepsize", "step_sise"):
        with pytest.raises(TypeError, match=f"its own settings .*; got {wrong}: did you mean step_size"):
            FedAvg(**{wrong: 0.1})


@dataclass(frozen=True, kw_only=True)
class Skipping(CheckedFields):
    """A method whose clients stop at random, and which says nothing else."""

    step_size: Positive
    chance: float = 0.25
    models: Count | None = None

    def traits(self, problem: Any) -> Traits:
        sizes = problem.federation.sizes
        local = LocalSteps(self.step_size, np.ones(sizes.size), sizes, sizes, False, False, True, np.ones(sizes.size))
        return stopping(Traits(sampling="everyone", participants=sizes.size, drawn=()), local, self.chance)


def test_a_method_that_says_nothing_is_described_by_its_settings():
    said = words_of(Skipping(step_size=0.1), PROBLEM)
    assert said.work == "Skipping with step size 0.1, chance 0.25, models None"
    assert said.short == ("step size 0.1", "chance 0.25", "models None")
    assert "local step" not in " ".join([said.work, *said.short])


def test_random_numbers_of_steps_are_counted_on_average():
    assert passes_per_round(Skipping(step_size=0.1), PROBLEM) == 4.0
    t = Skipping(step_size=0.1).traits(PROBLEM)
    assert t.local is None and t.drawn == ("steps",) and not t.deterministic
    one = Skipping(step_size=0.1, chance=1.0).traits(PROBLEM)
    assert one.deterministic and one.local.equal_steps == 1
    assert passes_per_round(Skipping(step_size=1, chance=1.0), PROBLEM) == 1.0


@pytest.mark.parametrize(
    ("method", "work", "tables", "who"),
    [
        (FedAvg(step_size=0.1), "FedAvg with 1 local step on all rows", ("tau 1",), "full participation"),
        (
            FedAvg(step_size=0.1, epochs=2, batch_size=5, participation=0.5),
            "FedAvg with 2 local epochs on 5 rows",
            ("E 2", "B 5", "2 of 4"),
            "2 of 4 take part",
        ),
        (
            FedAvg(step_size=0.1, participation=ScaledSampling(3)),
            "FedAvg with 1 local step on all rows",
            ("tau 1", "3 of 4 with weights p_k K/m"),
            "3 of 4 with weights p_k K/m take part",
        ),
        (
            FedProx(proximal_mu=1.0, solver=ProximalPoint()),
            "FedProx with exact solutions on all rows",
            ("exact",),
            "full participation",
        ),
        (
            JointMOCHA(work=NodeWork(epochs=2.0, drop=0.1)),
            "JointMOCHA, every node: 2 passes over its rows, dropped with probability 0.1",
            ("2 passes", "drops 0.1"),
            "",
        ),
    ],
)
def test_methods_say_what_they_do(method, work, tables, who):
    said = words_of(method, PROBLEM)
    assert (said.work, said.short + said.more, said.who) == (work, tables, who)


@pytest.mark.parametrize(
    ("name", "short", "full"),
    [
        ("mocha-smooth", "twin tasks, 2 passes, T 4", "MOCHA, every node: 2 passes over its rows; sigma' of the rule"),
        ("vertical-rate", "one column thrice, tau 1, theta safe, T 5", "damping safe, every entry of w starts at 1.2"),
    ],
)
def test_reports_join_what_instances_problems_and_methods_say(name, short, full):
    theorem = THEOREMS[name]
    check = theorem.checks[0] if isinstance(theorem.checks[0], Check) else Check(theorem.checks[0])
    setting = setting_of(theorem, check, problem_of(theorem, check.instance))
    found = described(check.instance, setting, theorem, check.method or theorem.method)
    assert found[0] == short and full in found[1]
