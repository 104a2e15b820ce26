"""Dynamic FedAvg with the logistic loss: curvature on balls, the ball that runs stay in, and the deviation there."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize
from scipy.special import expit

from fedconvex import Federation, Logistic, Problem, SmoothedHinge, Squared, iterate, run
from fedconvex.draws import Draws, key_from_seed
from fedconvex.methods import DynamicFedAvg
from fedconvex.problems import MovingTarget
from fedconvex.theorems.dynamic_ball import reach
from fedconvex.theorems.dynamic_msd import msd_refined, small_step
from fedconvex.theorems.parts.curvatures import bends, hessians
from fedconvex.theorems.parts.setting import Setting
from fedconvex.theorems.parts.tracking import tracking_constants
from fedconvex.theory.bound import AssumptionError, Bound
from fedconvex.verify import THEOREMS, Outcome, power, verify


def make(seed=0, K=3, n=6, d=2, l2=0.1, scale=1.0, shift=0.0):
    rng = np.random.default_rng(seed)
    w, clients = scale * rng.normal(size=d), []
    for _ in range(K):
        X = rng.normal(size=(n, d))
        chance = expit(X @ (w + shift * rng.normal(size=d)))
        clients.append((X, np.where(rng.random(n) < chance, 1.0, -1.0)))
    return Problem(Federation.from_clients(clients), Logistic(), l2, "uniform")


def gradient(problem, rows, w):
    """Mean gradient of some rows, from the definition."""
    X, y = problem.federation.X[rows], problem.federation.y[rows]
    return -X.T @ (y * expit(-y * (X @ w))) / len(y) + problem.l2 * w


def rows_of(problem, k):
    return np.arange(problem.federation.ptr[k], problem.federation.ptr[k + 1])


# ---------------------------------------------------------------- curvature


@pytest.mark.parametrize("radius", [0.0, 0.3, 2.0, 40.0])
def test_bends_against_slopes(radius, rng):
    """Means of l'' along rays are quotients of slopes: the least over the ball is found at most 1/256 above."""
    problem = make(1, scale=2.0)
    w, X = problem.solve().w, problem.federation.X
    found, z, norm = bends(problem, w, radius), X @ w, np.linalg.norm(X, axis=1)
    np.testing.assert_allclose(found.at, expit(z) * expit(-z), rtol=1e-12)
    u = np.linspace(-1.0, 1.0, 2001)[:, None] * norm * radius
    with np.errstate(invalid="ignore"):
        secants = np.where(u == 0.0, found.at, (expit(z + u) - expit(z)) / np.where(u == 0.0, 1.0, u))
    assert (found.mean <= secants.min(axis=0) * (1 + 1e-9)).all()
    assert (found.mean >= secants.min(axis=0) - found.at / 256).all()
    assert (found.most >= (expit(z + u) * expit(-z - u)).max(axis=0) * (1 - 1e-12)).all()
    assert (found.most <= 0.25).all()


def test_bends_of_other_losses():
    problem = make(2)
    squares = Problem(problem.federation, Squared(), 0.1)
    assert all((part == 1.0).all() for part in bends(squares, np.zeros(2), 3.0))
    kinks = Problem(problem.federation, SmoothedHinge(0.5), 0.1)  # its curvature jumps between 0 and 2
    found = bends(kinks, np.zeros(2), 3.0)
    assert (found.mean == 0.0).all() and (found.most == 2.0).all()


def test_constants_on_a_ball_by_sampling(rng):
    """Monotonicity and smoothness, measured at random pairs of models; nu everywhere is l2, at radius 0 the Hessian."""
    problem = make(3, l2=0.05)
    w, fed = problem.solve().w, problem.federation
    everywhere, point = tracking_constants(problem), tracking_constants(problem, 0.0)
    assert everywhere.nu == pytest.approx(0.05, rel=1e-12)
    assert everywhere.delta == pytest.approx((fed.X**2).sum(axis=1).max() / 4 + 0.05)
    assert point.nu == pytest.approx(np.linalg.eigvalsh(problem.hessian(w))[0])
    assert point.delta_P == pytest.approx(np.linalg.eigvalsh(problem.hessian(w))[-1])
    for k in range(3):
        G = np.array([gradient(problem, [n], w) for n in rows_of(problem, k)])
        assert point.gradient2_k[k] == pytest.approx(np.sum(G.mean(axis=0) ** 2))
        assert point.variance_k[k] == pytest.approx(np.mean(np.sum((G - G.mean(axis=0)) ** 2, axis=1)))
    least = []
    for radius in (0.5, 3.0):
        c = tracking_constants(problem, radius)
        assert everywhere.nu < c.nu < point.nu and point.delta_P <= c.delta_P <= everywhere.delta_P
        turn = rng.normal(size=(300, 2))
        turn *= radius / np.linalg.norm(turn, axis=1, keepdims=True)
        for h in turn:
            gap = gradient(problem, slice(None), w + h) - gradient(problem, slice(None), w)
            least.append(gap @ h / (h @ h) / c.nu)
            half = gradient(problem, slice(None), w + h / 2)
            assert np.linalg.norm(gradient(problem, slice(None), w + h) - half) <= c.delta_P * radius / 2
    assert 1.0 <= min(least) < 1.4  # the bound is for the worst direction of every row


# ---------------------------------------------------------------- the ball


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_ball_is_attained_in_one_dimension(sign):
    """Two agents, one of them always, drift always the same way: the distance r with mu (P_k)'(w^o + r) = Q."""
    fed = Federation.from_clients([([[2.0], [1.0]], [sign, sign]), ([[1.5], [1.0]], [sign, -sign])])
    problem, mu, Q = Problem(fed, Logistic(), 0.2, "uniform"), 0.3, 0.02
    w = problem.solve().w
    ends = []
    for k, way in itertools.product((0, 1), (-1.0, 1.0)):
        rows = rows_of(problem, k)
        pull = lambda r, rows=rows, way=way: way * gradient(problem, rows, w + way * r)[0] - Q / mu  # noqa: E731
        ends.append(optimize.brentq(pull, 0.0, 100.0) if pull(0.0) < 0.0 else 0.0)
    radius = reach(problem, step_size=mu, longest=Q, participation=1)
    assert max(ends) <= radius <= 1.35 * max(ends)
    e, k, way = 0.0, int(np.argmax(ends)) // 2, (-1.0, 1.0)[int(np.argmax(ends)) % 2]
    for i in range(1, 400):
        e = e - mu * gradient(problem, rows_of(problem, k), w + e)[0] + way * Q
        if i in (1, 5, 50):
            assert abs(e) <= reach(problem, step_size=mu, longest=Q, participation=1, rounds=i)
    assert abs(e) == pytest.approx(max(ends), rel=1e-3)


def test_the_ball_of_one_agent_is_exact():
    """One agent, G = 0: r with mu (P'(w^o + r) - P'(w^o)) = Q; all scores grow that way, and nu(r) is attained."""
    problem = Problem(Federation.from_clients([([[2.0]], [1.0])]), Logistic(), 0.05)
    w, mu, Q = problem.solve().w, 0.5, 0.05
    end = optimize.brentq(lambda r: mu * gradient(problem, [0], w + r)[0] - Q, 0.0, 100.0)
    assert end < 0.9 * Q / (mu * 0.05)  # by l2 alone it would be the latter
    assert reach(problem, step_size=mu, longest=Q) == pytest.approx(end, rel=0.01)
    assert reach(problem, step_size=mu, longest=Q, start=3.0) == pytest.approx(3.0)


@pytest.mark.parametrize("seed", range(4))
def test_runs_stay_in_the_ball(seed, rng):
    """Greedy adversaries choose agents, batches and drift: no model, local ones included, leaves the ball."""
    problem = make(seed, shift=0.5, l2=0.2)
    w, steps, L = problem.solve().w, (1, 2, 3), 1 + seed % 3
    B = (6, 6, 6) if seed < 2 else (6, 2, 1)
    mu = 0.9 / tracking_constants(problem).delta
    for rounds in (3, 40):
        e, Q, farthest = np.zeros(2), 0.03, 0.0
        for _ in range(rounds):
            answers = []
            for k, E in enumerate(steps):
                v = e.copy()
                for _ in range(E):
                    batches = [rows_of(problem, k)[list(b)] for b in itertools.combinations(range(6), B[k])]
                    moved = [v - mu / E * gradient(problem, b, w + v) for b in batches]
                    v = max(moved, key=np.linalg.norm)
                    farthest = max(farthest, float(np.linalg.norm(v)))
                answers.append(v)
            means = [np.mean(some, axis=0) for some in itertools.combinations(answers, L)]
            e = max(means, key=np.linalg.norm)
            e = e + Q * e / max(np.linalg.norm(e), 1e-12)
            farthest = max(farthest, float(np.linalg.norm(e)))
        at = {"step_size": mu, "longest": Q, "participation": L, "batch_size": B, "local_steps": steps}
        radius = reach(problem, rounds=rounds, **at)
        assert farthest <= radius <= 4.0 * farthest
        assert radius <= reach(problem, **at) * (1 + 1e-9)


def test_reach_refuses():
    problem = make(0)
    for settings, why in (
        ({"step_size": 100.0, "longest": 0.1}, r"step_size/E_k <= 1/delta_k, got step_size/E_k = 100"),
        ({"step_size": 0.1, "longest": math.inf}, "drift of bounded steps"),
    ):
        with pytest.raises(AssumptionError, match=why):
            reach(problem, **settings)
    with pytest.raises(AssumptionError, match="l2 > 0"):
        reach(Problem(problem.federation, Logistic(), 0.0), step_size=0.1, longest=0.1)
    with pytest.raises(ValueError, match="longest must be nonnegative"):
        reach(problem, step_size=0.1, longest=-1.0)


# ---------------------------------------------------------------- bounded walks


def test_bounded_walks_have_the_covariance_and_a_longest_step():
    problem = make(0)
    C = np.array([[2.0, 0.5], [0.5, 1.0]])
    for moving, longest in (
        (MovingTarget(problem, covariance=C, bounded=True), math.sqrt(2 * np.linalg.eigvalsh(C)[-1])),
        (MovingTarget(problem, 0.04, bounded=True), 0.2),
    ):
        q = np.concatenate([moving.drift(Draws(key_from_seed(1), np.arange(300), t)) for t in range(10)])
        size = np.linalg.norm(q, axis=1)
        assert moving.longest == pytest.approx(longest)
        assert 0.999 * longest < size.max() <= longest * (1 + 1e-12)
        np.testing.assert_allclose(q.T @ q / len(q), moving.covariance, atol=5 * 2 / math.sqrt(len(q)))
        assert np.abs(q.mean(axis=0)).max() < 5 * longest / math.sqrt(len(q))
    assert MovingTarget(problem, 0.04).longest == math.inf and MovingTarget(problem).longest == 0.0


def test_a_checkpoint_tells_bounded_walks_from_others(tmp_path):
    problem, method = make(0), DynamicFedAvg(step_size=0.1)
    run(method, MovingTarget(problem, 0.1, bounded=True), rounds=3, checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match="drift must be"):
        run(method, MovingTarget(problem, 0.1), rounds=4, checkpoint=tmp_path / "c")


# ---------------------------------------------------------------- the deviation


def deviation(problem, mu, B, E, L, Q):
    """E‖e_1‖^2 from e_0 = 0 and drift ±Q along each axis, over all agents and sequences of batches, plain NumPy."""
    w, per_agent = problem.solve().w, []
    for k in range(problem.federation.K):
        ends, batches = [], list(itertools.combinations(rows_of(problem, k), B))
        for sequence in itertools.product(batches, repeat=E):
            v = w.copy()
            for b in sequence:
                v = v - mu / E * gradient(problem, list(b), v)
            ends.append(v - w)
        per_agent.append(np.array(ends))
    total, sets = 0.0, list(itertools.combinations(range(problem.federation.K), L))
    for chosen in sets:
        means, seconds = ([f(per_agent[k]) for k in chosen] for f in (lambda a: a.mean(0), lambda a: np.mean(a**2) * 2))
        cross = np.sum(np.sum(means, axis=0) ** 2) - np.sum(np.square(means))
        total += (sum(seconds) + cross) / L**2
    return total / len(sets) + Q**2


@pytest.mark.parametrize(("B", "E", "L"), [(1, 1, 3), (3, 1, 1), (1, 2, 2), (2, 1, 2)])
def test_the_deviation_of_one_iteration_by_enumeration(B, E, L):
    problem, Q = make(4, n=3, shift=0.5), 0.01
    mu = 0.3 * E / tracking_constants(problem).delta
    exact = deviation(problem, mu, B, E, L, Q)
    at = {"step_size": mu, "batch_size": B, "local_steps": E, "participation": L}
    radius = reach(problem, longest=Q, rounds=1, **at)
    values = [
        msd_refined(tracking_constants(problem, r), drift2=Q**2, rounds=1, start2=0.0, **at).value
        for r in (radius, None)
    ]
    assert exact <= values[0] * (1 + 1e-12) and values[0] <= values[1] * (1 + 1e-12)
    assert values[0] <= (1.3 if E == 1 else 3.0) * exact
    moving = MovingTarget(problem, Q**2, bounded=True)
    method = DynamicFedAvg(**at)
    *_, (_, state) = iterate(method, moving, rounds=1, trajectories=400, start=problem.solve().w, seed=5)
    e2 = np.sum((state.w - problem.solve().w) ** 2, axis=1)
    assert abs(e2.mean() - exact) <= 4.5 * e2.std() / math.sqrt(400)


@pytest.mark.compiled
@pytest.mark.slow
def test_the_theorem_holds_and_has_power():
    name = "dynamic-msd-ball"
    found = power(name)
    assert found.whole.factor < 1.4
    assert {k: v and v.factor < 4.5 for k, v in found.terms.items()} == {
        "start": True, "data variability": True, "model variability": True, "tracking": True, "incremental": None,
    }  # fmt: skip


@pytest.mark.compiled
@pytest.mark.slow
def test_planted_errors_of_the_constants_are_caught():
    """Each by the check that it matters most in."""
    theorem = THEOREMS["dynamic-msd-ball"]
    for place, what, factor in (
        (1, "variance_k", 0.75),
        (2, "gradient2_k", 0.6),
        (3, "nu", 1.6),
        (3, "drift2", 0.8),
    ):

        def planted(s: Setting, what=what, factor=factor) -> Bound:
            given = dict(theorem.read(s).arguments)
            if what in given:
                return msd_refined(**given | {what: factor * given[what]})
            constants = given["constants"]
            return msd_refined(**given | {"constants": replace(constants, **{what: factor * getattr(constants, what)})})

        wrong, check = theorem._replace(name="planted", bound=planted, read=None), theorem.checks[place]
        problem = check.instance.make()
        start = check.start(problem)
        method = check.method.make(theorem, problem, start, check.rounds)
        verdict = verify(wrong, problem, method, rounds=check.rounds, start=start)
        assert verdict.outcome is Outcome.VIOLATED, (what, verdict)


def test_hessians_and_the_small_step_formula():
    """H, R_s from rows; the formula (mu/2) tr(H^-1 R_s) + tr(H^-1 R_q)/(2 mu), by hand in NumPy."""
    problem = make(5, shift=0.5)
    w, c, mu, L, B = problem.solve().w, tracking_constants(problem), 0.02, 2, 3
    s = expit(problem.federation.X @ w)
    H = (problem.federation.X.T * (s * (1 - s))) @ problem.federation.X / 18 + 0.1 * np.eye(2)
    np.testing.assert_allclose(hessians(problem, s * (1 - s)).mean(axis=0), H)
    G = [np.array([gradient(problem, [n], w) for n in rows_of(problem, k)]) for k in range(3)]
    C = sum(np.cov(g.T, bias=True) for g in G) / 3
    means = np.array([g.mean(axis=0) for g in G])
    R_s = ((6 - B) / (5 * B) * C + (3 - L) / 2 * means.T @ means / 3) / L
    R_q = np.diag([1e-4, 3e-4])
    expected = 0.5 * mu * np.trace(np.linalg.solve(H, R_s)) + 0.5 / mu * np.trace(np.linalg.solve(H, R_q))
    found = small_step(c, step_size=mu, drift_covariance=R_q, participation=L, batch_size=B)
    assert found.value == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@pytest.mark.compiled
def test_descriptions_tell_how_fast_the_target_moves():
    """An instance may move by itself; the theorem's own drift is then 0."""
    from fedconvex.verify import checks, verify_suite

    (finding,) = verify_suite(checks(["dynamic-msd-ball"])[-1:], tightness=False).findings
    assert finding.outcome is Outcome.NOT_APPLICABLE  # normal steps
    (finding,) = verify_suite(checks(["dynamic-msd-ball"])[1:2], most=32, tightness=False).findings
    assert finding.words.endswith("a minimiser that moves, E‖q‖² = 1e-06")
