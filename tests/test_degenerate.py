"""Theorems on problems that are hardly there: refused by name, or judged."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from campaigns import attempt, degenerate

from fedconvex import (
    FedAvg,
    Federation,
    FedProx,
    Logistic,
    Problem,
    SmoothedHinge,
    Squared,
    VerticalFederation,
    losses,
)
from fedconvex.hybrid_federation import HybridFederation
from fedconvex.methods import (
    AFL,
    DANE,
    SVRG,
    AgnosticFedAvg,
    DynamicFedAvg,
    FedBCD,
    FLGame,
    HybridDualAscent,
    IRMGame,
    ProximalPoint,
    TrackedBlockDescent,
)
from fedconvex.problems import (
    GameProblem,
    GaussianPosteriorProblem,
    HybridProblem,
    InvariantProblem,
    VerticalProblem,
)
from fedconvex.simplex.ascent import EntropicStep
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.parts.rounding import rounds_added
from fedconvex.theorems.parts.theorem import Check, MethodRule
from fedconvex.verify import Outcome, Setting, own_instance, verify
from fedconvex.verify.checking import carried_out

ROWS = {
    "one row": [([[1.0, 2.0]], [1.0]), ([[0.5, -1.0]], [2.0])],
    "collinear": [([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]], [1.0, 0.0, 2.0])] * 2,
    "zero column": [([[1.0, 0.0], [2.0, 0.0]], [1.0, 3.0])] * 2,
}


def fixed(method):
    """Return a rule that always takes this method."""
    return MethodRule("fixed", lambda theorem, problem, start, rounds: method)


@pytest.mark.parametrize("rows", ROWS)
def test_games_need_independent_features(rows):
    """Coefficients that rows do not determine are named, not left to LAPACK; the certificate needs none."""
    problem = GameProblem(Federation.from_clients(ROWS[rows]), Squared(), 1.0)
    for name, method in (("game-buffer", FLGame(buffer=2)), ("game-rounds", IRMGame())):
        found = verify(name, problem, method, rounds=9)
        assert found.outcome is Outcome.NOT_APPLICABLE
        assert "linearly independent features at every player" in found.reason or "uncorrelated" in found.reason
    found = carried_out(THEOREMS["game-certificate"], Check(own_instance(problem, rows)))
    assert found.verdict.bound is not None
    assert [c.name for c in found.constants] == ["players", "B"]


def test_buffered_play_outside_of_the_boxes():
    """One row each, y = 0: from (0.26, 1.94) in boxes of 1 play is cut at first, though it ends inside."""
    problem = GameProblem(Federation.from_clients([([[1.0]], [0.0]), ([[2.0]], [0.0])]), Squared(), 1.0)
    method, start = FLGame(buffer=5), np.array([[0.26], [1.94]])
    assert verify("game-buffer", problem, method, rounds=9, start=0.1 * start).outcome is Outcome.HOLDS
    found = verify("game-buffer", problem, method, rounds=9, start=start)
    assert found.outcome is Outcome.NOT_APPLICABLE
    assert "boxes out of reach" in found.reason


def test_descent_that_left_double_precision_is_not_decided():
    """A start of 1e36 is cubed by every step: M(w) is no matrix, the theorem may hold there, and nobody knows."""
    problem = InvariantProblem(Federation.from_clients(ROWS["one row"]), Squared(), 1.0)
    rule = THEOREMS["irmv1-dual"].checks[0].method
    method = rule.make(THEOREMS["irmv1-dual"], problem, np.zeros(2), 3)
    for name in ("irmv1-certificate", "irmv1-dual"):
        found = verify(name, problem, method, rounds=5, start=np.full(2, 1e36))
        assert found.outcome is Outcome.INCONCLUSIVE
        assert "needs a model whose squares are numbers" in found.reason


def test_pooled_batches_beyond_a_client():
    """SVRG draws 3 of all 8 rows, one client has 2: the constants in reports are those of the pooled rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8, 2))
    problem = Problem(Federation.from_arrays(X, X[:, 0], [0, 0, 1, 1, 1, 1, 1, 1]), Squared(), 0.5)
    method = SVRG(step_size=0.01, inner_steps=400, batch_size=3)
    found = carried_out(THEOREMS["svrg"], Check(own_instance(problem, "two clients"), fixed(method), rounds=1))
    assert found.outcome is Outcome.HOLDS
    shown = {c.name: c.value for c in found.constants}
    expected = problem.pooled.constants(batch_size=3)
    assert shown["sigma2_star"] == expected.sigma2_star
    assert shown["zeta"] == 0.0
    assert shown["L"] == pytest.approx(np.linalg.eigvalsh(X.T @ X / 8.0 + 0.5 * np.eye(2))[-1])


def test_rules_ask_for_what_the_theorem_asks_for():
    """A share of the largest damping, of losses whose rounds are not linear."""
    fed = Federation.from_clients([([[1.0], [2.0]], [1.0, -1.0]), ([[1.0]], [1.0])])
    columns = VerticalFederation.from_blocks([[[1.0], [2.0]], [[1.0], [0.5]]], [1.0, -1.0])
    for name, problem, words in (
        ("virtual-growth", GaussianPosteriorProblem(fed, Logistic()), "normal noise"),
        ("vertical-growth", VerticalProblem(columns, Logistic(), 0.1), "squared loss"),
    ):
        theorem = THEOREMS[name]
        rules = [theorem.method, *(c.method for c in theorem.checks if isinstance(c, Check))]
        for rule in [rule for rule in rules if rule is not None]:
            found = carried_out(theorem, Check(own_instance(problem, "yours"), rule, rounds=3))
            assert found.outcome is Outcome.NOT_APPLICABLE
            assert f"needs {words}" in found.verdict.reason


def test_certificates_of_one_score_refuse_several_classes():
    X, y, loss = np.arange(8.0).reshape(4, 2), [0.0, 1.0, 2.0, 1.0], losses.Softmax(3)
    columns = VerticalProblem(VerticalFederation.from_blocks([X[:, :1], X[:, 1:]], y), loss, 0.1)
    blocks = HybridProblem(HybridFederation.from_grid(X, y, 2, 1), loss, 0.1)
    for name, problem, method in (
        ("vertical-certificate", columns, FedBCD()),
        ("hybrid-dual", blocks, HybridDualAscent()),
        ("hybrid-reduction", blocks, TrackedBlockDescent(step_size=0.01)),
    ):
        found = verify(name, problem, method, rounds=1)
        assert found.outcome is Outcome.NOT_APPLICABLE, name
        assert "of one score" in found.reason or "HybridDualAscent" in found.reason


@pytest.mark.parametrize("unit", [1e-100, 1.0, 1e100])
def test_bounds_do_not_vanish_in_products(unit):
    """Steps of 1/L = 1e-200 squared are zero, and a bound with them: it was violated from the minimiser on."""
    rng = np.random.default_rng(0)
    X, y = unit * rng.normal(size=(6, 2)), rng.normal(size=6)
    problem = Problem(Federation.from_arrays(X, y, [0, 0, 1, 1, 2, 2]), Squared(), 0.0, "uniform")
    method = FedAvg(step_size=0.1 / problem.constants().L, local_steps=3)
    found = verify("fedavg-at-optimum", problem, method, rounds=2, start=problem.solve().w)
    assert found.outcome is (Outcome.HOLDS if unit == 1.0 else Outcome.INCONCLUSIVE), found


@pytest.mark.parametrize("unit", [1e-150, 1.0, 1e150])
def test_bounds_of_dynamic_fedavg_do_not_vanish_in_products(unit):
    """delta = 1e-300 squared is zero, and beta_s^2 ‖e‖^2 with it, though ‖e‖^2 is 1e300: it was violated."""
    rows, y = unit * np.array([[4.0], [1.5], [-2.0]]), [-1.0, -1.0, -1.0]
    problem = Problem(Federation.from_arrays(rows, y, [0, 1, 2]), SmoothedHinge(0.5), 0.0, "uniform")
    method = DynamicFedAvg(step_size=0.1 / problem.constants().L_s, participation=1)
    for name in ("dynamic-gradient-noise", "dynamic-gradient-noise-sharp"):
        found = verify(name, problem, method, rounds=1, start=np.array([0.5]))
        assert found.outcome is (Outcome.HOLDS if unit == 1.0 else Outcome.INCONCLUSIVE), found


def test_the_campaign_sees_untrue_verdicts():
    """VACUOUS where something could have failed, HOLDS where nothing could, and what the run itself exceeds."""
    theorem, problem = (
        THEOREMS["fedavg-at-optimum-sharp"],
        Problem(Federation.from_clients(ROWS["one row"]), Squared(), 0.1),
    )
    s = Setting(problem, FedAvg(step_size=0.02, local_steps=2), 2, np.zeros(2))
    true = verify(theorem, problem, s.method, rounds=2)
    assert true.outcome is Outcome.HOLDS and not degenerate.untrue(theorem, true, s)
    bound = type(true.bound)({"all": 0.5 * true.low}, true.bound.quantity, "planted")
    wrong = {
        "something could have failed": replace(true, outcome=Outcome.VACUOUS),
        "nothing could have failed": replace(true, measured=0.0, low=0.0, high=0.0),
        "the run itself measures": replace(true, bound=bound),
        "no reason is given": replace(true, outcome=Outcome.INCONCLUSIVE, bound=None, reason=""),
    }
    for words, verdict in wrong.items():
        assert words in degenerate.untrue(theorem, verdict, s), words
    lowest = replace(true, outcome=Outcome.VACUOUS, measured=-np.inf, low=-np.inf, high=-np.inf)
    assert not degenerate.untrue(theorem, lowest, s)  # below any bound


def test_errors_that_a_contraction_adds_up():
    """As many as rounds where the factor is 1 in double precision: curvatures of 1e-17 beside 1."""
    assert (rounds_added(0.5, 100), rounds_added(0.5, 1), rounds_added(1.0, 7)) == (2.0, 1.0, 7.0)


def test_games_whose_squares_overflow_are_not_decided():
    """The least value over the ball comes from Newton's method, whose Hessians have squares of features."""
    fed = Federation.from_arrays([[1.7e150, 5e149], [-1.8e149, 4.9e149]], [1.0, 1.0], [0, 1])
    method = AFL(step_size=1e-151, domain_step_size=1e-151, radius=1.0, ascent=EntropicStep())
    verdict = verify("agnostic-rate-entropic", Problem(fed, SmoothedHinge(), 1e-12), method, rounds=3)
    assert verdict.outcome is Outcome.INCONCLUSIVE and "not decided: needs the largest entry" in verdict.reason


def test_excesses_that_drown_in_values_are_not_decided():
    """F* is 1e299 here, and known to 1e285: an excess of 0.4 can neither contradict nor violate a bound of -0.3."""
    X = np.array([[-8.5e-151, -1.7e-150], [8.5e-151, 1.7e-150], [4.6e-152, 9.2e-152]])
    y = np.array([-8.1e149, -1.03e150, -1.09e150])
    for size, outcome in ((1.0, Outcome.INCONCLUSIVE), (1e-150, Outcome.HOLDS)):  # large targets, or features
        fed = Federation.from_arrays(X / size, size * y, [0, 0, 1])
        method = FedProx(proximal_mu=10.0, solver=ProximalPoint())
        assert verify("fedprox-convex", Problem(fed, Squared(), 0.1), method, rounds=1).outcome is outcome


@pytest.mark.parametrize("size", [1e-20, 1e-8, 1.0, 1e8])
def test_hypotheses_of_games_know_no_unit(size):
    """Coefficients of 1e-45 that differ by as much were equal up to 1e-9, and small features uncorrelated."""
    rows, start = [[1.0], [0.5], [2.0], [1.5]], np.zeros((2, 1))
    for y, words in (
        (np.array([3.0, 1.5, 6.0, 4.5]), ""),
        (np.array([3.0, 1.0, 6.0, 3.0]), "needs equal coefficients"),
    ):
        problem = GameProblem(Federation.from_arrays(rows, size * y, [0, 0, 1, 1]), Squared(), 1e12)
        found = verify("game-buffer", problem, FLGame(buffer=3), rounds=3, start=start)
        assert (words in found.reason) if words else found.outcome is Outcome.HOLDS, found
    X = size * np.array([[1.0, 0.0], [0.5, 1.0], [0.0, 1.0], [1.0, 0.5]])
    problem = GameProblem(Federation.from_arrays(X, [1.0, 2.0, 1.0, 3.0], [0, 0, 1, 1]), Squared(), 1.0)
    assert "needs uncorrelated features" in verify("game-rounds", problem, IRMGame(), rounds=9).reason


@pytest.mark.parametrize(("label", "outcome"), [(1.0, Outcome.HOLDS), (1e-14, Outcome.INCONCLUSIVE)])
def test_solutions_of_clients_are_as_exact_as_their_tolerance(label, outcome):
    """Up to tol (1 + ‖v‖) = 1e-13: models of 1e-14 are not moved at all, and the gap was not below its start."""
    fed = Federation.from_arrays([[0.2, -0.7], [1.4, 1.1]], [-label, -label], [0, 1])
    method = DANE(step_size=0.2, eta=0.3, line_search=True)
    assert verify("newton-line-search", Problem(fed, Squared()), method, rounds=3).outcome is outcome


@pytest.mark.parametrize("sparse", [False, True])
def test_constants_of_features_whose_squares_overflow(sparse):
    """A column of 1e300 beside one of 1: LAPACK found no eigenvalues of a matrix with an infinite entry."""
    X = np.array([[1e300, 1.0], [-1e300, 2.0]])
    problem = Problem(Federation.from_arrays(sp.csr_matrix(X) if sparse else X, [1.0, -1.0], [0, 1]), Logistic(), 0.1)
    with pytest.raises(ValueError, match=r"squares whose sums are numbers; got 1e\+300: scale the features"):
        problem.constants()


@pytest.mark.parametrize("size", [1e150, 1.0])
def test_steps_among_features_of_1e150_are_not_decided(size):
    """Domains' gradients, and two runs that are the same, are compared by squares of features."""
    decided = Outcome.INCONCLUSIVE if size > 1.0 else Outcome.HOLDS
    X, y = size * np.array([[1.0, 2.0], [0.5, -1.0]]), np.array([1.0, -1.0])
    fed = Federation.from_arrays(X, y, clients=[0, 1], domains=[0, 1])
    method = AgnosticFedAvg(step_size=0.05 / size**2, domain_step_size=0.01, local_steps=2)
    assert verify("agnostic-step", Problem(fed, Squared(), 0.1), method, rounds=2).outcome is decided
    table = Federation(X, y, np.array([0, 2]))
    problem = HybridProblem(HybridFederation(table, np.array([0, 2]), np.array([[0]])), Logistic(), 1e-2)
    tracked = TrackedBlockDescent(step_size=0.05 / size**2)
    assert verify("hybrid-reduction", problem, tracked, rounds=2).outcome is decided


def test_dual_values_that_overflow_are_not_decided():
    """Models of dual ascent are length/l2 long, and D holds their squares: -inf beside a bound of 1e-29."""
    for size, outcome in ((1e150, Outcome.INCONCLUSIVE), (1.0, Outcome.HOLDS)):
        X = size * np.array([[1.0, 2.0], [0.5, -1.0]])
        table = Federation(X, np.array([1.0, -1.0]), np.array([0, 2]))
        problem = HybridProblem(HybridFederation(table, np.array([0, 2]), np.array([[0]])), Logistic(), 1e-2)
        assert verify("hybrid-dual", problem, HybridDualAscent(), rounds=2).outcome is outcome


@pytest.mark.slow
def test_the_campaign_sees_raw_errors(monkeypatch):
    """An error of NumPy planted in a reading, and a bound of nothing planted in the place of one."""
    right = THEOREMS["fedavg-convex"]

    def outside(s):
        return np.zeros(1)[2]

    for planted, words in (
        (right._replace(read=outside), "out of bounds"),
        (right._replace(bound=lambda **a: _nothing(right, a)), "VIOLATED"),
    ):
        monkeypatch.setattr(degenerate, "THEOREMS", {"planted": planted})
        monkeypatch.setattr(degenerate, "ASKED", 2)
        rows = [attempt("degenerate", 5, i) for i in range(8)]
        assert any(words in row.get("error", "") for row in rows)


def _nothing(theorem, arguments):
    bound = theorem.bound(**arguments)
    return type(bound)({"nothing": 0.0}, bound.quantity, "planted")


@pytest.mark.slow
def test_a_sample_of_degenerate_problems():
    """A sample of the campaign `degenerate`: every fourth theorem."""
    rows = [attempt("degenerate", 11, i) for i in range(0, len(THEOREMS), 4)]
    assert not [row for row in rows if not row["passed"]]
