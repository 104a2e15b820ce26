"""Theorems on columns of several owners: planted errors are violations; bounds and factors on random instances."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import fedconvex.theorems.vertical as vertical
from fedconvex import Logistic, Squared, VerticalFederation, iterate
from fedconvex.methods import FedBCD, VerticalGradientDescent
from fedconvex.problems import VerticalProblem
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.parts import column_owners
from fedconvex.verify import Outcome, verify
from tests.campaigns import attempt


def outcome(theorem, instance, method, rounds, start=None):
    problem = instance.make()
    start = None if start is None else start(problem)
    return verify(theorem, problem, method, rounds=rounds, start=start).outcome


def planted(name, **wrong):
    """Return the theorem with arguments of its bound changed."""
    theorem = THEOREMS[name]
    change = {k: (lambda given, f=f: f(given)) for k, f in wrong.items()}
    return theorem._replace(bound=lambda **a: theorem.bound(**{k: change.get(k, lambda x: x)(v) for k, v in a.items()}))


def test_a_ridge_one_percent_too_large_is_refuted():
    """Owners of the same column attain the rate; forgetting to damp, or an exponent too many, shows as well."""
    at = (column_owners.one_column_thrice, FedBCD(), 5, column_owners.between)
    assert outcome("vertical-rate", *at) is Outcome.HOLDS
    assert outcome(planted("vertical-rate", l2=lambda x: 1.01 * x), *at) is Outcome.VIOLATED
    assert outcome(planted("vertical-rate", smoothness=lambda L: L / 1.01), *at) is Outcome.VIOLATED
    assert outcome(planted("vertical-rate", rounds=lambda T: T + 1), *at) is Outcome.VIOLATED
    several = (column_owners.one_column_thrice, FedBCD(local_steps=4), 2, column_owners.between)
    assert outcome("vertical-rate", *several) is Outcome.HOLDS
    assert outcome(planted("vertical-rate", l2=lambda x: 2.2 * x), *several) is Outcome.VIOLATED


def test_on_least_squares_the_square_holds_for_every_number_of_local_steps():
    """The smallest kappa is at least l2/max L_b, whatever Q: attained where one step solves an owner's problem."""
    rng = np.random.default_rng(36)
    for Q in (1, 2, 7):
        blocks = [rng.normal(size=(5, 2)) * s for s in (1.0, 3.0, 0.2)]
        problem = VerticalProblem(VerticalFederation.from_blocks(blocks, rng.normal(size=5)), Squared(), 0.1)
        kappa = problem.damping(Q)
        assert kappa[0] >= 0.1 / problem.block_smoothness.max() * (1.0 - 1e-9) and kappa[-1] <= 3.0 * (1.0 + 1e-9)
    thrice = column_owners.one_column_thrice.make()
    least = thrice.l2 / thrice.block_smoothness.max()
    assert [thrice.damping(Q)[0] for Q in (1, 4)] == pytest.approx([least, least], rel=1e-9)


def test_a_damping_off_by_a_ten_thousandth_is_refuted():
    """On both sides of the limit 2/kappa_max = 4/5 for a column that three owners have; and local steps forgotten."""
    assert column_owners.one_column_thrice.make().damping(7)[-1] == pytest.approx(2.5, rel=1e-12)
    for theta in (0.808, 0.792):
        at = (column_owners.one_column_thrice, FedBCD(damping=theta), 120)
        assert outcome("vertical-growth", *at) is Outcome.HOLDS
        assert outcome(planted("vertical-growth", theta=lambda t: 1.0001 * t), *at) is Outcome.VIOLATED
    problem, at = (
        column_owners.shared_direction.make(),
        (column_owners.shared_direction, FedBCD(local_steps=5, damping=1.0), 60),
    )
    assert outcome("vertical-growth", *at) is Outcome.HOLDS
    assert outcome(planted("vertical-growth", kappa=lambda k: problem.damping(1)), *at) is Outcome.VIOLATED


def test_growth_asks_for_other_modes_to_be_gone_before_the_last_round():
    """Modes 0 and 0.988: the last move is divided by an error that has both, unless another move came before it.

    One owner, H = diag(0.501, 0.006), eta = 1/0.501: 1 - 0.006/0.501 = 0.98802. From (2, 2) the first round asks for
    scores, so that round 2 is the first move and grows by 0.9759; round 3 is the second.
    """
    X = np.array([[1.0, 0.0], [0.0, 0.1]])
    problem = VerticalProblem(VerticalFederation.from_blocks([X], [1.0, 1.0]), Squared(), 1e-3)
    for start, applies in (((2.0, 2.0), (3, 4)), ((0.0, 0.0), (2, 3, 4))):
        for rounds in (1, 2, 3, 4):
            found = verify("vertical-growth", problem, FedBCD(), rounds=rounds, start=start)
            assert found.outcome is (Outcome.HOLDS if rounds in applies else Outcome.NOT_APPLICABLE)
            if rounds in applies:
                assert found.measured == pytest.approx(1.0 - 0.006 / 0.501, rel=1e-12)
    assert "a round in which blocks move" in verify("vertical-growth", problem, FedBCD(), rounds=1, start=(2, 2)).reason


def test_growth_is_not_read_off_rounding():
    """A start 1e-12 from the minimiser of targets of 1e6: the errors are rounding, and no violation."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 4)) @ np.array([[1, 0.5, 0, 0], [0, 1, 0.5, 0.2], [0, 0, 1, 0.7], [0, 0, 0, 1]])
    fed = VerticalFederation.from_blocks([X[:, :2], X[:, 2:]], 1e6 * X.sum(axis=1))
    problem, method = VerticalProblem(fed, Squared(), 1e-3), FedBCD(damping=1.0)
    best = problem.solve().w
    for far, expected in ((1e-2, Outcome.HOLDS), (1e-9, Outcome.INCONCLUSIVE), (1e-12, Outcome.INCONCLUSIVE)):
        assert verify("vertical-growth", problem, method, rounds=100, start=best * (1.0 + far)).outcome is expected


def test_columns_of_other_units_bring_no_violation():
    """Modes are orthogonal in the norm of 1/Pi, which columns a million times smaller stretch: errors are lengths."""
    X = np.random.default_rng(0).normal(size=(30, 4)) @ (np.eye(4) + 0.5 * np.eye(4, k=1))
    for unit in (1.0, 1e-3, 1e-6):
        fed = VerticalFederation.from_blocks([unit * X[:, :2], X[:, 2:]], X.sum(axis=1))
        problem = VerticalProblem(fed, Squared(), 1e-3 * unit**2)
        found = [
            verify("vertical-growth", problem, FedBCD(damping=1.0, local_steps=3), rounds=T, start=start).outcome
            for T in (2, 10, 25, 30, 35, 40)
            for start in (None, [0.0, 0.0, 1.0, -1.0])
        ]
        assert Outcome.VIOLATED not in found


def test_a_certificate_off_by_a_billionth_is_refuted():
    at = (column_owners.three_owners, VerticalGradientDescent(step_size="auto"), 4)
    assert outcome("vertical-certificate", *at) is Outcome.HOLDS
    for wrong in (1.0 + 1e-9, 1.0 - 1e-9):
        theorem = planted("vertical-certificate", gradients=lambda g, c=wrong: c * g)
        assert outcome(theorem, *at) is Outcome.VIOLATED


@pytest.mark.parametrize("size", [1.0, 1e8])
def test_a_small_ridge_makes_much_of_the_rounding_of_a_sum(size):
    """Dual gradients that cancel are off by a share of their terms, which is divided by l2: .6 of the bound."""
    rng = np.random.default_rng(0)
    X, y = size * rng.normal(size=(7, 2)), rng.choice([-1.0, 1.0], 7)
    problem = VerticalProblem(VerticalFederation.from_blocks([X[:, :1], X[:, 1:]], y), Logistic(), 1e-12)
    start = problem.solve().w
    found = verify("vertical-certificate", problem, VerticalGradientDescent(step_size="auto"), rounds=1, start=start)
    assert found.outcome is not Outcome.VIOLATED, found
    assert abs(found.measured - found.bound.value) <= found.rounding


def test_losses_whose_sums_cancel_violate_nothing():
    """Two values of 1e16 and their conjugates leave a gap of 1.9, which is rounding: the certificate is 4e-25."""
    fed = VerticalFederation.from_blocks([np.full((2, 1), 0.0843)], [-2.6182347270659678e7, 1.3695003987749246e8])
    found = verify("vertical-certificate", VerticalProblem(fed, Squared(), 1e6), FedBCD(), rounds=4)
    assert found.outcome is not Outcome.VIOLATED
    assert abs(found.measured - found.bound.value) <= found.rounding


def test_hypotheses_that_fail_are_named():
    logistic, squares = column_owners.three_owners.make(), column_owners.one_column_thrice.make()
    for theorem, problem, method, words in [
        ("vertical-rate", logistic, FedBCD(damping=0.5), "theta <= 1/m"),
        ("vertical-rate", logistic, FedBCD(step_share=0.5), "eta_b = 1/L_b"),
        ("vertical-rate", logistic, FedBCD(order="in turn"), "all blocks at once"),
        ("vertical-rate", logistic, FedBCD(participation=2), "full participation"),
        ("vertical-rate", logistic, VerticalGradientDescent(step_size="auto"), "the method FedBCD"),
        ("vertical-growth", logistic, FedBCD(), "squared loss"),
        ("vertical-growth", squares, FedBCD(damping=0.808), "died out"),
    ]:
        found = verify(theorem, problem, method, rounds=9)
        assert found.outcome is Outcome.NOT_APPLICABLE
        assert words in found.reason
    with pytest.raises(ValueError, match="at least l2"):
        vertical.vertical_rate(2.0, [1.0], 1.0, 1, 1, 1.0)
    with pytest.raises(TypeError, match="quadratic loss"):
        logistic.damping()


# ---------------------------------------------------------------- campaign: random instances


def columns(rng, quadratic):
    """Columns that share directions, at 2 to 5 owners."""
    m, n = int(rng.integers(2, 6)), int(rng.integers(20, 60))
    widths = rng.integers(1, 4, m)
    d = int(widths.sum())
    X = rng.normal(size=(n, d)) + rng.uniform(0.0, 3.0) * rng.normal(size=(n, 1)) * rng.normal(size=d)
    X *= 10.0 ** rng.uniform(-1.0, 1.0, d)
    z = X @ (rng.normal(size=d) / np.linalg.norm(X, axis=0)) * np.sqrt(n) + rng.normal(size=n)
    ends = np.cumsum(widths)
    blocks = [X[:, b - a : b] for a, b in zip(widths, ends, strict=True)]
    y, loss = (z, Squared()) if quadratic else (np.where(z > 0.0, 1.0, -1.0), Logistic())
    return VerticalProblem(VerticalFederation.from_blocks(blocks, y), loss, float(10.0 ** rng.uniform(-3.0, 0.0)))


def owners_trial(rng):
    """The rate and the certificate on a random instance; on least squares the factor of growth, from its definition."""
    quadratic = bool(rng.random() < 0.6)
    problem = columns(rng, quadratic)
    fed, l2, best = problem.federation, problem.l2, problem.solve()
    Q, theta = int(rng.choice([1, 2, 5, 20])), float(rng.uniform(0.3, 1.0)) / fed.K
    shrink = (1.0 - theta * l2 / problem.block_smoothness.max()) ** (2 if Q == 1 else 1)
    states = [s.w[0] for _, s in iterate(FedBCD(local_steps=Q, damping=theta), problem, rounds=12)]
    gaps = np.array([problem.value(w) - best.value for w in states])
    off = 1e-13 * (1.0 + abs(problem.value(states[0])))
    assert (gaps[1:] <= shrink * gaps[:-1] + off).all(), (gaps[1:] / gaps[:-1]).max() - shrink
    w = states[3] + rng.normal(size=fed.d)
    found, size = column_owners.duality_gap(problem, w)
    certificate = float(np.sum(problem.gradient(w) ** 2)) / (2.0 * l2)
    assert abs(found - certificate) <= 1e-13 * size
    assert certificate >= problem.value(w) - best.value - off
    seen = {"quadratic": quadratic, "share": float(((gaps[1:] + off) / (shrink * gaps[:-1] + off)).max())}
    return seen | _growth(rng, problem, Q) if quadratic else seen


def _growth(rng, problem, Q):
    """Undamped, or just beyond the limit: errors grow by |theta lambda_max(Pi H) - 1| to 1e-6."""
    fed, X = problem.federation, problem.federation.rows.X
    H = X.T @ X / fed.n + problem.l2 * np.eye(fed.d)
    Pi, share = np.zeros_like(H), float(rng.uniform(0.5, 1.5))
    for a, b in pairwise(fed.ptr):
        own = H[a:b, a:b]
        step = np.eye(b - a) - share * own / np.linalg.eigvalsh(own)[-1]
        Pi[a:b, a:b] = np.linalg.solve(own, np.eye(b - a) - np.linalg.matrix_power(step, Q))
    kappa = np.sort(np.linalg.eigvals(Pi @ H).real)
    np.testing.assert_allclose(problem.damping(Q, share), kappa, rtol=1e-6, atol=1e-9)
    if kappa[-1] <= 2.1:
        return {"diverged": False}
    rest = np.abs(1.0 - kappa[:-1]).max()
    rounds = int(np.ceil(np.log(1e10) / np.log((kappa[-1] - 1.0) / rest))) + 5
    if rounds > 300:
        return {"diverged": False}
    best = problem.solve().w
    method = FedBCD(local_steps=Q, step_share=share, damping=1.0)
    errors = [np.linalg.norm(s.w[0] - best) for _, s in iterate(method, problem, rounds=rounds)]
    assert abs(errors[-1] / errors[-2] / (kappa[-1] - 1.0) - 1.0) <= 1e-6
    return {"diverged": True, "off": errors[-1] / errors[-2] / (kappa[-1] - 1.0) - 1.0}


@pytest.mark.slow
def test_random_owners():
    """A sample of the campaign `owners`."""
    rows = [attempt("owners", 1, i) for i in range(8)]
    assert not [row for row in rows if not row["passed"]]
    assert sum(row.get("diverged", False) for row in rows) >= 1
    assert max(row["share"] for row in rows) > 0.5


def test_growth_is_not_read_off_what_says_nothing_of_it():
    """Errors at rounding, starts without the leading mode, runs that overflow: no verdict, instead of a wrong one."""
    column = column_owners.one_column_thrice
    apart = {"start": lambda problem: problem.solve().w + np.array([1.0, -1.0, 0.0])}  # kappa = 1/4 alone
    for method, rounds, more in ((0.5, 60, {}), (0.9, 50, apart), (0.9, 50, {"start": lambda p: p.solve().w})):
        assert outcome("vertical-growth", column, FedBCD(damping=method), rounds, **more) is Outcome.NOT_APPLICABLE
    together = column.make().solve().w + 1.0
    assert outcome("vertical-growth", column, FedBCD(damping=0.9), 60, lambda p: together) is Outcome.HOLDS
    for name in ("vertical-growth", "vertical-certificate"):
        problem = column_owners._split(np.ones((4, 8)), np.ones(4), Squared(), 1e-3, 1, 2, 3, 4, 5, 6, 7)
        with np.errstate(over="ignore"):
            assert verify(name, problem, FedBCD(damping=1.0), rounds=250).outcome is Outcome.NOT_APPLICABLE
