"""Theorems on VIRTUAL: planted errors are violations, hypotheses that fail are named."""

from __future__ import annotations

import numpy as np
import pytest

import fedconvex.theorems.virtual as virtual
from fedconvex import Federation, Squared
from fedconvex.methods import VIRTUAL
from fedconvex.problems import GaussianPosteriorProblem
from fedconvex.solvers.damping import largest_damping
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.parts import posteriors as p
from fedconvex.theory.bound import AssumptionError
from fedconvex.verify import Outcome, verify
from fedconvex.verify.descriptions import described


def outcome(theorem, problem, method, rounds):
    return verify(theorem, problem, method, rounds=rounds).outcome


def test_settings_that_differ_are_described_differently():
    """Natural gradient steps in the place of exact solutions, and one client in the place of all."""
    problem, theorem = p.votes.make(), THEOREMS["virtual-certificate"]
    methods = VIRTUAL(rho=0.5), VIRTUAL(rho=0.5, local_steps=1, step_size=0.5), VIRTUAL(rho=0.5, participation=1)
    settings = [virtual.Setting(problem, m, 5, np.zeros(2)) for m in methods]
    short, full = zip(*(described(p.votes, s, theorem, theorem.method) for s in settings), strict=True)
    assert short == ("votes, rho 0.5, T 5", "votes, rho 0.5, tau 1, T 5", "votes, rho 0.5, 1 of 3, T 5")
    assert "1 natural gradient step of 0.5" in full[1] and "1 of 3 take part" in full[2]


def test_one_percent_of_the_certificate_is_refuted():
    right, problem, method = virtual.virtual_certificate, p.faint_rows.make(), VIRTUAL(rho=0.1)
    assert outcome("virtual-certificate", problem, method, 1) is Outcome.HOLDS
    planted = THEOREMS["virtual-certificate"]._replace(bound=lambda gradient, tau: right(gradient, 1.01 * tau))
    assert outcome(planted, problem, method, 1) is Outcome.VIOLATED


@pytest.mark.parametrize("share", [pytest.param(0.99, marks=pytest.mark.slow), 1.01])
def test_a_damping_off_by_a_ten_thousandth_is_refuted(share):
    """On both sides of the limit 2/kappa_max, which is 2 (1 - r) with r = (100/12)/30.5 for equal designs."""
    problem = p.equal_designs.make()
    limit = largest_damping(problem.damping())
    assert limit == pytest.approx(2.0 * (1.0 - (100.0 / 12.0) / 30.5), rel=1e-12)
    right, method = virtual.virtual_growth, VIRTUAL(rho=share * limit)
    assert outcome("virtual-growth", problem, method, 60) is Outcome.HOLDS
    off = lambda kappa, rho, rounds, others: right(kappa, 1.0001 * rho, rounds, others)  # noqa: E731
    planted = THEOREMS["virtual-growth"]._replace(bound=off)
    assert outcome(planted, problem, method, 60) is Outcome.VIOLATED


@pytest.mark.slow
def test_growth_is_not_read_off_rounding():
    """0.312^200 = 10^-101 of an error is not what a run shows: no verdict, instead of a violation."""
    assert outcome("virtual-growth", p.equal_designs.make(), VIRTUAL(rho=0.5), 200) is Outcome.NOT_APPLICABLE


def test_growth_asks_for_other_modes_to_be_gone_before_the_last_round():
    """M = diag(-0.5, 0) from (1, 1): e_1 = (-0.5, 0), so that growth is 1/2 from round 2 on, 1/sqrt 8 in round 1."""
    assert virtual.virtual_growth([1.5, 1.0], 1.0, 2).value == 0.5
    with pytest.raises(AssumptionError, match="died out"):
        virtual.virtual_growth([1.5, 1.0], 1.0, 1)
    with pytest.raises(AssumptionError, match="the leading mode in the errors"):
        virtual.virtual_growth([1.5, 1.0], 1.0, 2, others=2e-7)


@pytest.mark.parametrize("K", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_equal_clients_never_disagree(K):
    """kappa_max belongs to clients that disagree; equal ones start as they stay, and grow by the mode of their sum."""
    X = np.sqrt(5.0) * np.ones((2, 1))
    fed = Federation.from_clients([(X, [1.0, 2.0])] * K)
    problem = GaussianPosteriorProblem(fed, Squared(), prior_precision=0.5, private_precision=2.0, covariance="full")
    for share in (0.99, 1.01):
        method = VIRTUAL(rho=share * largest_damping(problem.damping()))
        found = verify("virtual-growth", problem, method, rounds=20)
        assert found.outcome is Outcome.NOT_APPLICABLE
        assert "the leading mode in the errors" in found.reason


def test_nothing_grows_from_nothing():
    """One client: nobody disturbs it, and with rho = 1 its errors are zero from round 2 on, which divides."""
    fed = Federation.from_clients([(np.ones((2, 1)), [1.0, 2.0])])
    problem = GaussianPosteriorProblem(fed, Squared())
    for rounds in (1, 2, 3):
        assert outcome("virtual-growth", problem, VIRTUAL(rho=1.0), rounds) is Outcome.NOT_APPLICABLE


@pytest.mark.slow
def test_a_descent_that_is_not_there_is_refuted():
    """A tenth of F - min F is not left after a round; that F does not rise is seen once everybody was asked."""
    problem, method, right = p.personal_lines.make(), VIRTUAL(rho=1.0, participation=1), virtual.virtual_descent
    rounds = [T for T in range(8, 16) if outcome("virtual-descent", problem, method, T) is Outcome.HOLDS]
    assert len(rounds) >= 6
    planted = THEOREMS["virtual-descent"]._replace(bound=lambda before, unasked: right(0.1 * before, unasked))
    assert Outcome.VIOLATED in {outcome(planted, problem, method, T) for T in rounds}


def test_parallel_rounds_without_damping_break_descent():
    """What the hypothesis of one client a round is for: everybody at once with rho = 1 raises F."""
    problem = p.correlated_features.make()
    s = virtual.Setting(problem, VIRTUAL(rho=1.0), 6, np.zeros(4))
    values = [p.free_energy(problem, step) for step in p.steps_of(s, 6)]
    assert values[6] > values[3] > values[2]


@pytest.mark.slow
def test_hypotheses_that_fail_are_named():
    lines, votes, equal = p.personal_lines.make(), p.votes.make(), p.equal_designs.make()
    for theorem, problem, method, words in [
        ("virtual-growth", votes, VIRTUAL(rho=0.5), "normal noise"),
        ("virtual-growth", equal, VIRTUAL(rho=0.5, participation=1), "full participation"),
        ("virtual-growth", equal, VIRTUAL(rho=0.5, local_steps=1), "exact local solutions"),
        ("virtual-growth", equal, VIRTUAL(rho=1.6), "died out"),
        ("virtual-growth", equal, VIRTUAL(), "one damping"),
        ("virtual-descent", lines, VIRTUAL(rho=1.0), "one client a round"),
        ("virtual-descent", lines, VIRTUAL(rho=0.5, participation=1), "rho = 1"),
        ("virtual-descent", p.hospitals.make(), VIRTUAL(rho=1.0, participation=1), "full covariances"),
    ]:
        found = verify(theorem, problem, method, rounds=9)
        assert found.outcome is Outcome.NOT_APPLICABLE and words in found.reason


def test_shifts_far_below_the_prior_are_not_decided():
    """Shifts of 1e-16 beside a prior of precision 1/2: local solutions have no digits there, and the model stands."""
    rng = np.random.default_rng(233)
    y = 1e-8 * rng.normal(size=8)
    fed = Federation.from_arrays(np.full((8, 1), 1.3e-8), y, np.repeat([0, 1, 2], [4, 3, 1]))
    problem = GaussianPosteriorProblem(
        fed, Squared(), prior_precision=0.5, covariance="diagonal", private_precision=2.0
    )
    found = verify("virtual-growth", problem, VIRTUAL(rho=0.5), rounds=2)
    assert found.outcome is Outcome.INCONCLUSIVE and "rounding" in found.reason, found
