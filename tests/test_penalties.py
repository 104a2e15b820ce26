"""Penalties: their mathematics, what problems make of them, and who refuses them."""

import math
from typing import NamedTuple

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, Softmax, Squared, run
from fedconvex.kernels.penalised import penalty_values, proximal_point
from fedconvex.penalties import L1, Box, ElasticNet, GroupLasso, NonNegative, Simplex, is_entrywise
from fedconvex.problems import MovingTarget
from fedconvex.theory.bound import AssumptionError
from fedconvex.theory.fixed_points import quadratic


class Quantile(NamedTuple):
    """A user's own: positive entries cost q, negative ones 1 - q."""

    strength: float
    q: float = 0.8

    def value(self, w):
        return self.strength * max(self.q * w, (self.q - 1.0) * w)

    def prox(self, v, a):
        low, high = a * self.strength * (self.q - 1.0), a * self.strength * self.q
        return v - high if v > high else (v - low if v < low else 0.0)

    def conjugate(self, u):
        return 0.0 if self.strength * (self.q - 1.0) <= u <= self.strength * self.q else math.inf


ENTRIES = [L1(0.7), L1(0.0), ElasticNet(0.8, 0.3), ElasticNet(0.8, 1.0), ElasticNet(0.8, 0.0), NonNegative()]
ENTRIES += [NonNegative(0.4), Box(-0.5, 1.5), Box(0.25, math.inf), Box(1.0, 1.0), Quantile(0.6)]
BLOCKS = [
    GroupLasso(0.5, 2),
    GroupLasso(0.5, (1, 0, 1, 2, 0)),
    GroupLasso(0.5, 2, (1.0, 2.0, 3.0)),
    Simplex(),
    Simplex(2.5),
]
every_entry = pytest.mark.parametrize("penalty", ENTRIES, ids=repr)
every = pytest.mark.parametrize("penalty", ENTRIES + BLOCKS, ids=repr)
NUMBERS = np.concatenate([np.linspace(-3.0, 3.0, 25), [0.7, -0.7, 0.35, 1e-9, -1e-9, 40.0]])


class Whole:
    """P of one model (2, 5) through its vector methods, whatever kind of penalty it is."""

    def __init__(self, penalty):
        fed = Federation.from_clients([(np.eye(5), np.zeros(5))])
        self.problem = Problem(fed, Softmax(2), penalty=penalty)
        self.penalty = penalty

    def value(self, w):
        return float(penalty_values(self.problem, w.reshape(1, -1))[0])

    def prox(self, v, a):
        return proximal_point(self.problem, v[None], a)[0]

    def conjugate(self, u):
        if is_entrywise(self.penalty):
            return sum(self.penalty.conjugate(float(t)) for t in u.ravel())
        return float(self.penalty.conjugate(u[None])[0])


def models(count=12):
    rng = np.random.default_rng(5)
    return rng.normal(size=(count, 2, 5)) * 10.0 ** rng.integers(-2, 2, size=(count, 1, 1))


# ---------------------------------------------------------------- the mathematics


@every
def test_the_prox_minimises(penalty):
    """No random point nearby, feasible or made so, is better than the proximal point: P is convex."""
    whole, rng = Whole(penalty), np.random.default_rng(0)
    for v in models(6):
        for a in (0.1, 1.0, 3.0):
            w = whole.prox(v, a)
            best = a * whole.value(w) + 0.5 * np.sum((w - v) ** 2)
            assert math.isfinite(best)
            for size in (1e-4, 1e-2, 1.0):
                other = whole.prox(w + size * rng.normal(size=w.shape), 0.0)
                assert a * whole.value(other) + 0.5 * np.sum((other - v) ** 2) >= best - 1e-12 * (1.0 + abs(best))


@every_entry
def test_the_prox_of_an_entry_against_a_grid(penalty):
    """Brute force: a grid of 20,001 points of width 1e-3 holds none that is better by more than its spacing allows."""
    grid = np.linspace(-10.0, 10.0, 20_001)
    values = np.array([penalty.value(float(t)) for t in grid])
    for v in (-2.0, -0.3, 0.0, 0.2, 1.1, 4.0):
        for a in (0.5, 2.0):
            w = penalty.prox(v, a)
            least = (a * values + 0.5 * (grid - v) ** 2).min()
            assert a * penalty.value(w) + 0.5 * (w - v) ** 2 <= least + 1e-12


@every
def test_moreau_and_fenchel_young(penalty):
    """u = (v - prox(v, a))/a is a subgradient at w = prox(v, a): P(w) + P*(u) = u'w (Moreau 1965)."""
    whole = Whole(penalty)
    for v in models():
        for a in (0.2, 1.0, 5.0):
            w = whole.prox(v, a)
            u = (v - w) / a
            shrunk = u * (1.0 - 1e-12) if not isinstance(penalty, (Box, Simplex)) else u  # on the edge of the domain
            if isinstance(penalty, NonNegative):
                shrunk = u - 1e-12 * np.abs(u).max()
            product = float(np.sum(u * w))
            scale = 1.0 + np.abs(u * w).sum()
            assert whole.value(w) + whole.conjugate(shrunk) == pytest.approx(product, abs=2e-11 * scale)


@every
def test_fenchel_young_is_an_inequality_elsewhere(penalty):
    whole = Whole(penalty)
    points = models()
    for w, u in zip(points, points[::-1], strict=True):
        feasible = whole.prox(w, 0.0)
        assert whole.value(feasible) + whole.conjugate(u) >= float(np.sum(feasible * u)) - 1e-11


@every
def test_the_conjugate_is_the_supremum(penalty):
    """At u inside the domain, the supremum is approached by proximal points: P*(u) = lim max over w of u'w - P(w)."""
    whole = Whole(penalty)
    for u in models(4):
        conjugate = whole.conjugate(u)
        found = max(float(np.sum(u * w)) - whole.value(w) for w in (whole.prox(t * u, t) for t in (1.0, 1e3, 1e6)))
        if math.isfinite(conjugate):
            assert found <= conjugate + 1e-9 * (1.0 + abs(conjugate))
            assert found == pytest.approx(conjugate, rel=1e-6, abs=1e-9)
        else:
            assert found > 0.0


@every
def test_the_prox_is_firmly_nonexpansive(penalty):
    """‖p - q‖^2 <= <p - q, v - u> (Bauschke and Combettes, Proposition 12.28)."""
    whole, points = Whole(penalty), models()
    for v, u in zip(points, np.roll(points, 1, axis=0), strict=True):
        p, q = whole.prox(v, 1.3), whole.prox(u, 1.3)
        assert np.sum((p - q) ** 2) <= np.sum((p - q) * (v - u)) + 1e-12 * (1.0 + np.sum((v - u) ** 2))


@every
def test_the_planted_prox_is_caught(penalty):
    """The test of minimality notices a proximal point that is off by 1e-4: its objective exceeds the least one."""
    whole, rng = Whole(penalty), np.random.default_rng(1)
    v = models(1)[0]
    w = whole.prox(v, 1.0)
    best = whole.value(w) + 0.5 * np.sum((w - v) ** 2)
    off = whole.prox(w + 1e-4 * rng.normal(size=w.shape), 0.0)
    if np.any(off != w):
        assert whole.value(off) + 0.5 * np.sum((off - v) ** 2) > best


def test_what_penalties_mean_for_classes():
    """Entries count alone; a group of columns is one norm over all classes; every class has a simplex of its own."""
    w = np.array([[3.0, 0.0, 0.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0, -1.0]])
    assert Whole(L1(1.0)).value(w) == 8.0
    assert Whole(GroupLasso(1.0, 1)).value(w) == 6.0  # ‖(3, 4)‖ + ‖(0, -1)‖
    assert Whole(GroupLasso(1.0, 5)).value(w) == pytest.approx(math.sqrt(5.0 * 26.0))
    p = Whole(Simplex()).prox(w, 1.0)
    assert p.tolist() == [[1.0, 0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]]


def test_penalties_are_equal_by_type():
    assert L1(1.0) == L1(1.0) != NonNegative(1.0)
    assert ElasticNet(0.5) == ElasticNet(0.5, 0.5)
    assert len({L1(1.0), NonNegative(1.0), L1(1.0)}) == 2


# ---------------------------------------------------------------- bad input

FED = Federation.from_clients([(np.eye(3), [1.0, 2.0, 3.0]), (np.ones((1, 3)), [1.0])])


@pytest.mark.parametrize(
    ("penalty", "message"),
    [
        (L1, r"Problem.penalty must be a NamedTuple with value, prox and conjugate; .*: pass L1\(...\)"),
        (0.5, "Problem.penalty must be a NamedTuple"),
        (L1(-1.0), "L1.strength must be nonnegative and finite; got -1"),
        (L1(math.nan), "L1.strength must be nonnegative and finite"),
        (L1("a"), "L1.strength must be a number"),
        (ElasticNet(1.0, 1.5), r"ElasticNet.l1_ratio must be a number in \[0, 1\]"),
        (Box(1.0, 0.0), "Box must have low <= high"),
        (Box(math.nan, 0.0), "Box must have low <= high"),
        (Box("a", 0.0), "Box.low must be a number"),
        (Simplex(0.0), "Simplex.total must be positive"),
        (GroupLasso(1.0, 0), "GroupLasso.groups must be at least 1"),
        (GroupLasso(1.0, (0, 1)), "GroupLasso.groups must name the group of each of the 3 columns; got 2 entries"),
        (GroupLasso(1.0, [0, 1, 1]), "GroupLasso.groups must be a whole number or a tuple"),
        (GroupLasso(1.0, (0, 1, 1), (1.0,)), r"GroupLasso.weights must have one entry per group \(2\); got 1"),
        (GroupLasso(1.0, (0, 1, 1), (1.0, 0.0)), "GroupLasso.weights must be positive"),
    ],
)
def test_bad_penalties_are_refused(penalty, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Problem(FED, Squared(), penalty=penalty)


# ---------------------------------------------------------------- who knows penalties, and who refuses them


def test_values_know_the_penalty_and_gradients_are_those_of_the_smooth_part():
    plain, problem = Problem(FED, Squared(), 0.1), Problem(FED, Squared(), 0.1, penalty=L1(0.5))
    w = np.array([1.0, -2.0, 0.0])
    assert problem.value(w) == pytest.approx(plain.value(w) + 1.5, rel=1e-15)
    assert problem.value(np.stack([w, 2.0 * w])) == pytest.approx(
        plain.value(np.stack([w, 2.0 * w])) + np.array([1.5, 3.0])
    )
    assert np.array_equal(problem.gradient(w), plain.gradient(w))
    assert problem.constants().L == plain.constants().L
    assert np.array_equal(problem.constants().w_star, problem.solve().w)
    assert "penalty=L1(strength=0.5)" in repr(problem)
    assert "penalty" not in repr(plain)


def test_parts_of_a_problem_keep_the_penalty():
    problem = Problem(FED, Squared(), 0.1, penalty=L1(0.5))
    assert problem.client(0).penalty == problem.pooled.penalty == problem.by_domain.penalty == L1(0.5)
    other = problem.with_penalty(L1(0.25))
    assert (other.penalty, problem.penalty) == (L1(0.25), L1(0.5))
    assert other.solve().value < problem.solve().value
    assert problem.with_penalty(None).solve().value < other.solve().value


def test_measured_gaps_are_those_of_the_whole_objective():
    problem = Problem(FED, Squared(), penalty=L1(0.1))
    best = problem.solve()
    measure = problem.measure(np.stack([best.w, best.w + 0.1]))
    assert measure.gap[0] <= 1e-12
    assert measure.gap[1] == pytest.approx(problem.value(best.w + 0.1) - best.value, abs=1e-12)
    outside = Problem(FED, Squared(), penalty=NonNegative()).measure(np.array([[-1.0, 0.0, 0.0]]))
    assert math.isinf(outside.value[0])
    assert math.isinf(outside.gap[0])


def test_what_does_not_know_penalties_refuses_them():
    problem = Problem(FED, Squared(), 0.1, penalty=L1(0.5))
    with pytest.raises(TypeError, match=r"FedAvg: problem must have no penalty; got L1\(strength=0.5\)"):
        run(FedAvg(step_size=0.1), problem, rounds=2)
    with pytest.raises(TypeError, match=r"Problem.solve_minimax must be asked without a penalty"):
        problem.solve_minimax()
    with pytest.raises(TypeError, match=r"MovingTarget.problem must have no penalty"):
        MovingTarget(problem, 0.1)
    with pytest.raises(AssumptionError, match="needs an objective without a penalty"):
        quadratic(problem)


def test_theorems_that_ignore_the_penalty_do_not_apply():
    """The planted bound, F(w_T) <= F(w_0), holds without a penalty; with one it says nothing, and says why."""
    from fedconvex.methods import FedSGD
    from fedconvex.theorems.parts.scope import Scope, holds
    from fedconvex.theorems.parts.setting import Setting
    from fedconvex.theorems.parts.theorem import Statement, Theorem
    from fedconvex.theory.bound import LAST_SYNCHRONISED, Bound

    def planted(s):
        return Bound({"all": 1.0}, LAST_SYNCHRONISED, "planted", ())

    theorem = Theorem(name="planted", quantity=LAST_SYNCHRONISED, bound=planted)
    plain = Problem(FED, Squared(), 0.1)
    here = Setting(plain, FedSGD(step_size=0.1), 3, np.zeros(3))
    assert theorem.at(here).value == 1.0
    there = here._replace(problem=plain.with_penalty(L1(0.5)))
    with pytest.raises(
        AssumptionError, match=r"an objective without a penalty \(its statement does not say\), got L1\(strength=0.5\)"
    ):
        theorem.at(there)
    said = Statement(scope=Scope(penalty=holds("it says so")))
    assert theorem._replace(statement=said).at(there).value == 1.0


def test_checkpoints_tell_penalties_apart():
    assert Problem(FED, Squared()).fingerprint == ""
    assert Problem(FED, Squared(), penalty=L1(0.5)).fingerprint == "L1(strength=0.5)"


def test_paths_are_asked_for_with_a_strength():
    with pytest.raises(TypeError, match=r"Problem.path: the penalty must have a field strength; got Box"):
        Problem(FED, Squared(), penalty=Box(0.0, 1.0)).path()
    with pytest.raises(ValueError, match=r"Problem.path: strengths must be nonnegative and decrease"):
        Problem(FED, Squared(), penalty=L1(1.0)).path([1.0, 2.0])


def test_a_path_begins_where_the_zero_model_ends():
    """The largest strength is max |X'y|/n for the lasso, and max |X'y|/(2n) for logistic regression (w = 0)."""
    X, y = np.asarray(FED.X), np.asarray(FED.y)
    problem = Problem(FED, Squared(), penalty=L1(1.0))
    path = problem.path(count=5, tol=None)
    assert path.strengths[0] == pytest.approx(np.abs(X.T @ y).max() / len(y), rel=1e-14)
    assert path.nonzero[0] == 0 < path.nonzero[-1]
    signs = Federation(X, np.array([1.0, -1.0, 1.0, -1.0]), FED.ptr)
    first = Problem(signs, Logistic(), penalty=ElasticNet(1.0, 0.5)).path(count=1)
    assert first.strengths[0] == pytest.approx(np.abs(X.T @ signs.y).max() / (2 * 4) / 0.5, rel=1e-14)
    for strength, solution in zip(path.strengths, path.solutions, strict=True):
        alone = problem.with_penalty(L1(float(strength))).solve()
        assert solution.value == pytest.approx(alone.value, rel=1e-12)
