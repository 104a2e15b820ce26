"""What theorems say of row weights, free coordinates and penalties: all of them do, and a bound that ignores is caught.

A planted theorem reads its constants off the problem without weights, or with every coordinate penalised, and is asked
about a run on the problem as it is: it must be VIOLATED where the theorem itself HOLDS.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared
from fedconvex.methods import AFL, MOCHA, SCAFFOLD, SVRG, DynamicFedAvg, FedProx, FedSAM
from fedconvex.methods.fedprox import ProximalPoint
from fedconvex.penalties import L1
from fedconvex.problems import MovingTarget, MultiTaskProblem, Pooled
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.agnostic_rate import saddle_steps
from fedconvex.theorems.fedavg_strongly_convex import decaying_step
from fedconvex.theorems.hedging import best_penalty
from fedconvex.theorems.parts.domain_instances import one_row
from fedconvex.theorems.parts.rounding import excess
from fedconvex.theorems.parts.scope import Scope, holds
from fedconvex.theorems.parts.setting import Setting
from fedconvex.theorems.scaffold import scaffold_best_step
from fedconvex.theory.bound import AssumptionError
from fedconvex.theory.moments import incremental_noise2
from fedconvex.verify import verify

SAYS_YES = Scope(holds("planted"), holds("planted"), holds("planted"))


def opposite():
    """Labels +1 and -1 at x = 1, the first nine times as heavy: w* = 0.73, and 0 without weights."""
    rows = Federation.from_arrays(np.ones((4, 1)), [1.0, -1.0, 1.0, -1.0], [0, 0, 1, 1], sample_weight=[9, 1, 9, 1])
    return Problem(rows, Squared(), 0.1)


def constant():
    """Label 1 and an intercept, which l2 = 100 would hold near 0."""
    rows = Federation.from_arrays(np.ones((4, 1)), np.ones(4), [0, 0, 1, 1])
    return Problem(rows, Squared(), 100.0, intercept=np.array([True]))


def mirrored():
    """Clients with equal rows and opposite weights: without weights they do not differ."""
    X, y, s = np.tile([[1.0], [2.0]], (2, 1)), [1.0, -1.0, 1.0, -1.0], [9.0, 1.0, 1.0, 9.0]
    return Problem(Federation.from_arrays(X, y, [0, 0, 1, 1], sample_weight=s), Squared())


def curved():
    """Two clients of curvatures 1 and 4, to which l2 = 100 would add."""
    rows = Federation.from_arrays([[1.0], [2.0]], [1.0, -1.0], [0, 1])
    return Problem(rows, Squared(), 100.0, intercept=np.array([True]))


def noisy():
    """Two of twenty rows, which disagree, weigh all: ten times the variance of batches."""
    s = np.tile([10.0, 10.0] + [1e-3] * 18, 2)
    rows = Federation.from_arrays(np.ones((40, 1)), np.tile([1.0, -1.0], 20), np.repeat([0, 1], 20), sample_weight=s)
    return Problem(rows, Squared(), 0.01)


def plain(problem):
    """Return the problem without weights and with all coordinates penalised."""
    fed = problem.federation
    rows = Federation(fed.X, fed.y, fed.ptr, fed.labels, fed.domain, fed.domain_labels)
    if isinstance(problem, MultiTaskProblem):
        return MultiTaskProblem(rows, problem.loss, problem.relation, problem.normalisation)
    bare = Problem(rows, problem.loss, problem.l2, problem.weights)
    return MovingTarget(bare, covariance=problem.covariance) if isinstance(problem, MovingTarget) else bare


def planted(theorem):
    """Return the theorem that ignores weights and free coordinates, and says that it holds with them."""
    return theorem._replace(
        read=lambda s: theorem.read(s._replace(problem=plain(s.problem))),
        statement=theorem.statement._replace(scope=SAYS_YES),
    )


def tenth(kind=FedAvg, **settings):
    return lambda p: kind(step_size=0.1 / p.constants().L, local_steps=2, **settings)


def by_rule(rule):
    return lambda p: rule.make(None, p, np.zeros(p.model_shape), 5)


def controlled(p):
    return SCAFFOLD(step_size=scaffold_best_step(p.constants(), local_steps=2), local_steps=2)


def proximal(p):
    return FedProx(proximal_mu=2.0 * p.constants().L, solver=ProximalPoint())


BOTH = (opposite, constant)
PLANTED = [  # theorem, problems, method as a function of the problem that is read, rounds, start
    *((name, BOTH, tenth(), 5, 0.0) for name in ("fedavg-convex", "fedavg-refined", "fedavg-refined-sharp")),
    *((name, BOTH, tenth(), 5, 0.0) for name in ("fedavg-at-optimum", "fedavg-at-optimum-sharp")),
    ("fedavg-strongly-convex", BOTH, by_rule(decaying_step(local_steps=1)), 5, 0.0),
    *((name, (mirrored, curved), tenth(), 1, 0.0) for name in ("fedavg-bias", "fedavg-limit")),
    ("scaffold", BOTH, controlled, 5, 0.0),
    *((name, BOTH, tenth(FedSAM, rho=1e-3), 5, 0.0) for name in ("fedsam", "fedsam-at-optimum")),
    ("hedging", BOTH, by_rule(best_penalty()), 5, 0.0),
    *((name, (opposite,), proximal, 1, -0.5) for name in ("fedprox-sharp", "fedprox-convex")),
    *((name, (constant,), proximal, 1, 0.0) for name in ("fedprox-sharp", "fedprox-convex")),
    ("dynamic-msd-refined", BOTH, lambda p: DynamicFedAvg(step_size=0.1 / p.constants().L), 5, 0.0),
    ("dynamic-incremental-noise-at", (opposite,), tenth(DynamicFedAvg), 1, 0.0),
    ("dynamic-gradient-noise-sharp", (noisy,), tenth(DynamicFedAvg, batch_size=1), 1, 0.0),
    ("weight-divergence-convex", (mirrored,), tenth(), 5, 0.0),
    ("fedavg-convex", (noisy,), lambda p: FedAvg(step_size=0.01, local_steps=3, batch_size=1), 60, 0.0),
]


@pytest.mark.parametrize(
    "name, problem, method, rounds, start",
    [(n, p, m, T, w) for n, problems, m, T, w in PLANTED for p in problems],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_a_bound_that_ignores_them_is_caught(name, problem, method, rounds, start):
    theorem, p = THEOREMS[name], problem()
    p = MovingTarget(p, 1e-6) if theorem.drift else p
    start = np.full(p.model_shape, start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        honest = verify(theorem, p, method(p), rounds=rounds, start=start)
        caught = verify(planted(theorem), p, method(plain(p)), rounds=rounds, start=start)
    assert honest.outcome.name == "HOLDS", honest
    assert caught.outcome.name == "VIOLATED", caught


@pytest.mark.slow
@pytest.mark.parametrize("problem, eta", [(opposite, 0.05), (constant, 0.1 / 101.0)])
def test_svrg_that_ignores_them_is_caught(problem, eta):
    """Without weights the start would be the minimiser; an epoch of 60 steps is short for mu = 1, not for mu = 101."""
    p, method = problem(), SVRG(step_size=eta, inner_steps=60, batch_size=4)
    caught = verify(planted(THEOREMS["svrg"]), p, method, rounds=1, most=128)
    assert caught.outcome.name == "VIOLATED", caught
    honest = verify("svrg", p, method, rounds=1, most=128)
    assert honest.outcome.name == ("HOLDS" if problem is opposite else "NOT_APPLICABLE"), honest


def test_the_rate_of_afl_counts_rows_by_weight():
    """One step on a line: half of the rows have no slope, and weigh next to nothing."""
    X, s = [[0.01], [0.0]], [1.0, 1e-6]
    p = Problem(Federation.from_arrays(X, [1.0, 1.0], [0, 0], sample_weight=s), Logistic())
    theorem = THEOREMS["agnostic-rate-any-steps"]
    method = lambda q: saddle_steps().make(theorem, q, -np.ones(1), 1)  # noqa: E731
    assert isinstance(method(p), AFL)
    there = verify(theorem, p, method(p), rounds=1, start=[-1.0])
    assert there.outcome.name == "HOLDS" and there.ratio < 1.01
    assert verify(planted(theorem), p, method(plain(p)), rounds=1, start=[-1.0]).outcome.name == "VIOLATED"
    alone = one_row.make()  # the same without the other row
    same = verify(theorem, alone, method(alone), rounds=1, start=[-1.0])
    assert same.measured == pytest.approx(there.measured, rel=1e-5) and same.ratio == pytest.approx(there.ratio, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mocha-smooth", "mocha-gap"])
def test_mocha_counts_rows_by_weight(name):
    """Twins of weight four: l* is a quarter as convex, and the rate slower."""
    rows = Federation.from_arrays(np.ones((4, 1)), [1.0, -1.0, 2.0, 0.0], np.arange(4), sample_weight=np.full(4, 4.0))
    p, method = MultiTaskProblem(rows, Squared(), Pooled(1.0)), MOCHA(epochs=2.0, sigma="pencil")
    rounds = 1 if name == "mocha-smooth" else 4
    assert verify(name, p, method, rounds=rounds).outcome.name == "HOLDS"
    caught = verify(planted(THEOREMS[name]), p, method, rounds=12)
    assert caught.outcome.name == "VIOLATED", caught


def test_every_statement_answers():
    unsaid = Scope()
    for theorem in THEOREMS.values():
        for mine, none in zip(theorem.statement.scope, unsaid, strict=True):
            assert mine != none, theorem.name
            assert mine.why and not mine.why.endswith(".")


def test_reasons_are_in_words():
    free = Problem(constant().federation, Logistic(), 0.1, intercept=np.array([True]))
    weighted, composite = opposite(), Problem(opposite().federation, Squared(), 0.1, penalty=L1(0.1))

    def why(name, p, method):
        verdict = verify(name, p, method, rounds=2)
        assert verdict.outcome.name == "NOT_APPLICABLE"
        return verdict.reason

    plain_steps = FedAvg(step_size=0.1)
    got = why("fedavg-strongly-convex", free, plain_steps)
    assert "strong convexity in the free coordinates too, got mu = 0 where l2 leaves out 1 of 1" in got
    got = why("fedavg-convex", composite, plain_steps)
    assert "an objective without a penalty (F must be smooth, and a penalty has kinks or a domain), got L1" in got
    got = why("agnostic-vertices", weighted, plain_steps)
    assert "no row weights (rows are independent draws from D_k, each counted once), got 1 to 9" in got
    with pytest.raises(AssumptionError, match="no free coordinates"):
        THEOREMS["fedsam"]._replace(statement=THEOREMS["fedsam"].statement._replace(scope=unsaid())).at(
            Setting(free, plain_steps, 2, np.zeros(1))
        )


def unsaid():
    return Scope()


# ---------------------------------------------------------------- what theorems read off weighted rows


def shuffled(weights=True, free=True, seed=3):
    """Least squares with three features, weights from 0 to 3 and a free intercept."""
    rng = np.random.default_rng(seed)
    X, s = rng.normal(size=(9, 3)), rng.integers(1, 4, 9) * 1.0
    X[:, 2], s[4] = 1.0, 0.0
    fed = Federation.from_arrays(
        X, rng.normal(size=9), [0, 0, 0, 0, 1, 1, 1, 2, 2], sample_weight=s if weights else None
    )
    return Problem(fed, Squared(), 0.4, "uniform", intercept=free)


def test_the_start_of_a_descent_is_that_of_the_objective():
    """F(w) - F* of weighted least squares with a free intercept, computed without a difference."""
    p, w = shuffled(), np.array([0.3, -1.0, 2.0])
    assert excess(p, w) == pytest.approx(float(p.value(w)) - p.solve().value, rel=1e-12)


@pytest.mark.parametrize("weights, free", [(True, False), (False, True), (True, True)])
def test_incremental_noise_by_enumeration(weights, free):
    """Two steps on single rows, both clients: every pair of rows is followed by hand."""
    p, w, mu = shuffled(weights, free), np.array([0.3, -1.0, 2.0]), 0.2
    first, second = [], []
    for k in range(3):
        X, y = p.federation.client_rows(k)
        s, ridge = p.weigh(k, np.ones(y.size)), 0.4 * np.array([1.0, 1.0, 0.0 if free else 1.0])
        g = lambda v, i: s[i] * (X[i] @ v - y[i]) * X[i] + ridge * v  # noqa: B023, E731
        moved = [g(w - 0.5 * mu * g(w, i), j) - g(w, j) for i in range(y.size) for j in range(y.size)]
        d = 0.5 * np.array(moved)
        first.append(d.mean(axis=0))
        second.append(float(np.mean(np.sum(d**2, axis=1))))
    m = np.mean(first, axis=0)
    expected = float(m @ m) + sum(b - a @ a for a, b in zip(first, second, strict=True)) / 9.0
    found, _ = incremental_noise2(p, w, step_size=mu, batch_size=1, local_steps=2)
    assert found == pytest.approx(expected, rel=1e-11)
