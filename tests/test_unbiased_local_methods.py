"""AcceleratedGradient, FedLin, Scaffnew, FedNova, FedDyn: against NumPy, their theorems, known numbers of rounds."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, GradientDescent, Logistic, Problem, Softmax, Squared, run
from fedconvex.constants.default_steps import Smoothness, even_step
from fedconvex.draws import Draws, key_from_seed
from fedconvex.methods import FISTA, AcceleratedGradient, FedDyn, FedLin, FedNova, Scaffnew, resolved
from fedconvex.problems import MovingTarget
from fedconvex.traits import lost_reply, traits_of

SIZES, ETA, L2 = (5, 8, 12), 0.4, 0.05


def clients(seed=3, d=4):
    """Three clients of unequal sizes, and the problem of theirs."""
    rng = np.random.default_rng(seed)
    rows = [(rng.standard_normal((n, d)), np.sign(rng.standard_normal(n))) for n in SIZES]
    return rows, Problem(Federation.from_clients(rows), Logistic(), L2)


def gradients(rows):
    """The gradients of the clients' objectives, by NumPy."""

    def of(k, w):
        X, y = rows[k]
        return X.T @ (-y / (1.0 + np.exp(y * (X @ w)))) / len(y) + L2 * w

    return of


def logistic_problem(seed=0, K=10, m=40, d=10, l2=1e-2, het=0.5, cond=10.0):
    """Ten clients that differ in features and in models; columns scaled by powers of ten."""
    rng = np.random.default_rng(seed)
    w0, scale, rows = rng.normal(size=d), cond ** (-np.arange(d) / (d - 1)), []
    for _ in range(K):
        shift = het * rng.normal(size=d)
        A = (rng.normal(size=(m, d)) + shift) * scale
        w = w0 + het * rng.normal(size=d)
        rows.append((A, np.sign(A @ (w / scale) / np.sqrt(d) + rng.logistic(size=m))))
    return Problem(Federation.from_clients(rows), Logistic(), l2)


# ---------------------------------------------------------------- line by line


def test_accelerated_gradient_is_nesterovs():
    rows, problem = clients()
    grad, q = gradients(rows), problem.weights
    for mu in (L2, 0.0):
        w, v, s = np.zeros(4), np.zeros(4), 1.0
        for _ in range(7):
            new = v - ETA * sum(q[k] * grad(k, v) for k in range(3))
            later = 0.5 + np.sqrt(0.25 + s * s)
            beta = (1 - np.sqrt(ETA * mu)) / (1 + np.sqrt(ETA * mu)) if mu else (s - 1) / later
            w, v, s = new, new + beta * (new - w), later
        method = AcceleratedGradient(step_size=ETA, mu=None if mu else 0.0)
        assert np.abs(run(method, problem, rounds=7).w - w).max() < 1e-15


@pytest.mark.parametrize("tau", [(1, 3, 5), (4, 4, 4), (1, 1, 1)])
def test_fedlin_equals_plain_numpy(tau):
    rows, problem = clients()
    grad, q, w = gradients(rows), problem.weights, np.zeros(4)
    for _ in range(7):
        g, new = sum(q[k] * grad(k, w) for k in range(3)), np.zeros(4)
        for k in range(3):
            x, mine = w.copy(), grad(k, w)
            for _ in range(tau[k]):
                x = x - ETA / tau[k] * (grad(k, x) - mine + g)
            new += q[k] * x
        w = new
    result = run(FedLin(step_size=ETA, local_steps=tau), problem, rounds=14)
    assert np.abs(result.w - w).max() < 1e-15
    assert result.trace.floats_up[-1] == result.trace.floats_down[-1] == 7 * 3 * 2 * 4
    if max(tau) == 1:
        descent = run(GradientDescent(step_size=ETA), problem, rounds=7)
        assert np.abs(result.w - descent.w).max() < 1e-15


@pytest.mark.parametrize("p", [0.3, 1.0])
def test_scaffnew_equals_plain_numpy(p):
    """Coins are the method's own; with p = 1 it is gradient descent, whatever the h_i."""
    rows, problem = clients()
    method, grad, q = Scaffnew(step_size=ETA, probability=p), gradients(rows), problem.weights
    w, h, hat = np.zeros(4), np.zeros((3, 4)), None
    for t in range(9):
        steps = int(method._steps(np.array([p]), Draws(key_from_seed(5), np.arange(1), t))[0])
        h = h if hat is None else h + p / ETA * (w - hat)
        assert np.abs(q @ h).max() < 1e-14
        hat = np.tile(w, (3, 1))
        for _ in range(steps):
            hat = np.array([hat[k] - ETA * (grad(k, hat[k]) - h[k]) for k in range(3)])
        w = q @ hat
    assert np.abs(run(method, problem, rounds=9, seed=5).w - w).max() < 1e-14
    if p == 1.0:
        assert np.abs(run(GradientDescent(step_size=ETA), problem, rounds=9).w - w).max() < 1e-14


def test_fednova_equals_plain_numpy():
    rows, problem = clients()
    grad, q, w, tau = gradients(rows), problem.weights, np.zeros(4), (1, 3, 5)
    for _ in range(7):
        d = np.zeros((3, 4))
        for k in range(3):
            x = w.copy()
            for _ in range(tau[k]):
                x = x - ETA * grad(k, x)
            d[k] = (x - w) / tau[k]
        w = w + 0.8 * (q @ np.array(tau)) * (q @ d)
    result = run(FedNova(step_size=ETA, local_steps=tau, server_step=0.8), problem, rounds=7)
    assert np.abs(result.w - w).max() < 1e-15
    assert result.trace.floats_up[-1] == 7 * 3 * 5  # a model and tau_k
    same = {"step_size": ETA, "local_steps": 3, "batch_size": 2, "participation": 2}
    drawn = [run(method(**same), problem, rounds=7, seed=3).w for method in (FedNova, FedAvg)]
    assert np.abs(drawn[0] - drawn[1]).max() < 1e-15


@pytest.mark.parametrize("steps", [None, 4])
def test_feddyn_equals_plain_numpy(steps):
    """Exact minimisers by Newton's method; h = sum_k p_k h_k stays."""
    rows, problem = clients()
    grad, q, alpha = gradients(rows), problem.weights, 0.2
    w, h, mine = np.zeros(4), np.zeros(4), np.zeros((3, 4))
    for _ in range(6):
        local = np.tile(w, (3, 1))
        for k, (X, y) in enumerate(rows):
            for _ in range(steps or 30):
                s = 1.0 / (1.0 + np.exp(y * (X @ local[k])))
                H = (X * (s * (1.0 - s) / len(y))[:, None]).T @ X + (L2 + alpha) * np.eye(4)
                slope = grad(k, local[k]) - mine[k] + alpha * (local[k] - w)
                local[k] = local[k] - (np.linalg.solve(H, slope) if steps is None else ETA * slope)
        mine, h = mine - alpha * (local - w), h - alpha * q @ (local - w)
        w = q @ local - h / alpha
        assert np.abs(h - q @ mine).max() < 1e-15
    settings = {} if steps is None else {"local_steps": steps, "step_size": ETA}
    assert np.abs(run(FedDyn(alpha=alpha, **settings), problem, rounds=6).w - w).max() < 1e-12


# ---------------------------------------------------------------- where they end, and how fast


@pytest.mark.slow
@pytest.mark.compiled
def test_rounds_to_a_gap_are_those_computed_elsewhere():
    """Rounds and numbers sent by a client until F - F* <= 1e-10, from a program that shares no line with this one."""
    problem = logistic_problem()
    best, L = problem.solve().value, float(problem.constants().L)
    assert abs(best - 0.6462450631794365) < 1e-14 and abs(L - 0.723885) < 1e-6

    def needed(method, seed=0):
        found = run(method, problem, rounds=3000, seed=seed, tol=1e-12).trace
        i = np.flatnonzero(found.value - best <= 1e-10)[0]
        return int(found.round[i]), int(found.floats_up[i]) // 10

    assert needed(GradientDescent(step_size="auto"))[0] == 208
    assert needed(AcceleratedGradient(step_size="auto")) == (49, 490)
    known = {(1, 1.0): 480, (5, 2.0): 241, (20, 10.0): 49, (5, 0.38): 1272}
    for (tau, a), rounds in known.items():
        assert needed(FedLin(step_size=a / L, local_steps=tau)) == (2 * rounds, 20 * rounds)  # of two each here
    drawn = [needed(Scaffnew(step_size="auto"), seed) for seed in range(6)]
    assert 45 <= np.mean([rounds for rounds, _ in drawn]) <= 63  # 54 with the seed of the other program
    assert all(floats == 10 * rounds for rounds, floats in drawn)


@pytest.mark.parametrize(
    "method",
    [
        AcceleratedGradient(step_size="auto"),
        FedLin(step_size="auto", local_steps=(1, 2, 3)),
        Scaffnew(step_size="auto"),
        FedDyn(alpha=0.3),
        FedDyn(alpha=0.3, participation=2),
    ],
    ids=lambda m: type(m).__name__,
)
@pytest.mark.slow_unless(loss=Logistic())
@pytest.mark.parametrize("loss", [Logistic(), Squared(), Softmax(3)], ids=lambda loss: type(loss).__name__)
def test_the_optimum_is_reached_whatever_the_heterogeneity(method, loss):
    rng = np.random.default_rng(11)
    labels = (lambda n: rng.integers(0, 3, n)) if isinstance(loss, Softmax) else (lambda n: np.sign(rng.normal(size=n)))
    fed = Federation.from_clients([(rng.normal(size=(n, 3)) + k, labels(n)) for k, n in enumerate(SIZES)])
    problem = Problem(fed, loss, 0.1)
    assert run(method, problem, rounds=3000, tol=1e-9).status.name == "CONVERGED"


@pytest.mark.slow
def test_fednova_has_the_minimiser_of_f_for_small_steps_and_fedavg_that_of_weighted_clients():
    """On least squares one round is affine: its fixed point, by linear algebra, is where runs end."""
    rng = np.random.default_rng(7)
    rows = [(rng.normal(size=(9, 2)), rng.normal(size=9) + k) for k in range(3)]
    problem, tau, q = Problem(Federation.from_clients(rows), Squared(), 0.1), (1, 4, 16), np.full(3, 1 / 3)
    H = [X.T @ X / 9 + 0.1 * np.eye(2) for X, _ in rows]
    b = [X.T @ y / 9 for X, y in rows]

    def fixed(eta, weigh):
        """sum_k q_k weigh_k (I - (I - eta H_k)^tau_k) (w_k* - w) = 0."""
        C = [q[k] * weigh[k] * (np.eye(2) - np.linalg.matrix_power(np.eye(2) - eta * H[k], tau[k])) for k in range(3)]
        return np.linalg.solve(sum(C), sum(C[k] @ np.linalg.solve(H[k], b[k]) for k in range(3)))

    for eta in (0.2, 0.02):
        for method, weigh in ((FedNova, 1.0 / np.array(tau)), (FedAvg, np.ones(3))):
            end = run(method(step_size=eta, local_steps=tau), problem, rounds=1500, tol=1e-15).w
            assert np.abs(end - fixed(eta, weigh)).max() < 1e-7
    best, pulled = problem.solve().w, np.linalg.solve(np.tensordot(tau, H, 1), np.tensordot(tau, b, 1))
    assert np.abs(fixed(1e-5, 1.0 / np.array(tau)) - best).max() < 1e-4
    assert np.abs(fixed(1e-5, np.ones(3)) - pulled).max() < 1e-4 and np.abs(pulled - best).max() > 0.3


@pytest.mark.slow
def test_the_theorem_of_fedlin_holds_and_a_smaller_factor_does_not():
    """Along runs at several a and tau; on a parabola the factor at tau = 1 is (1 - a)^2, and attained."""
    problem = logistic_problem(K=4, m=20, d=3, het=1.0)
    best, L, mu = problem.solve().value, float(problem.constants().L), 1e-2
    for tau in (1, 2, 8):
        for a in (0.1, 0.38, 0.6):
            delta = a * (tau - 1) / (2 * tau)
            c = 1 - delta - a / 2 * (1 + delta) ** 2
            excess = (
                run(FedLin(step_size=a / L, local_steps=tau), problem, rounds=30, tol=1e-14).trace.value[::2] - best
            )
            excess = excess[excess > 1e-11]
            assert np.all(excess[1:] <= (1 - 2 * a * c * mu / L) * excess[:-1])
    parabola = Problem(Federation.from_clients([(np.ones((1, 1)), [1.0])]), Squared())
    F = run(FedLin(step_size=0.2), parabola, rounds=18, tol=1e-14).trace.value[::2]
    assert np.allclose(F[1:], (1 - 2 * 0.2 * (1 - 0.1)) * F[:-1], rtol=1e-12)
    assert np.all(F[1:] > (1 - 2 * 0.2 * (1 - 0.09)) * F[:-1])


def test_the_potential_of_scaffnew_shrinks_as_its_identity_says():
    """E Psi+ over both faces of the coin = the two sums of the identity, to rounding; and the factor of the theorem."""
    rows, problem = clients()
    grad, q, rng = gradients(rows), problem.weights, np.random.default_rng(0)
    star = problem.solve().w
    at_star = np.array([grad(k, star) for k in range(3)])
    c = problem.constants()
    L, mu, norm = float(c.L), L2, lambda d: float(q @ np.sum(d * d, axis=1))
    for _ in range(30):
        gamma, p = rng.uniform(0.1, 1.9) / L, rng.uniform(0.1, 1.0)
        x, h = np.tile(rng.normal(size=4), (3, 1)), rng.normal(size=(3, 4))
        h -= q @ h
        psi = norm(x - star) + (gamma / p) ** 2 * norm(h - at_star)
        step = np.array([x[k] - gamma * grad(k, x[k]) for k in range(3)])
        hat = step + gamma * h
        mean = np.tile(q @ hat, (3, 1))
        heads = norm(mean - star) + (gamma / p) ** 2 * norm(h + p / gamma * (mean - hat) - at_star)
        tails = norm(hat - star) + (gamma / p) ** 2 * norm(h - at_star)
        expected = p * heads + (1 - p) * tails
        identity = norm(step - (star - gamma * at_star)) + (1 - p * p) * (gamma / p) ** 2 * norm(h - at_star)
        assert abs(expected - identity) < 1e-12 * psi
        wrong = norm(step - (star - gamma * at_star)) + (1 - p) * (gamma / p) ** 2 * norm(h - at_star)
        assert p > 0.99 or abs(expected - wrong) > 1e-6 * psi
        assert expected <= max((1 - gamma * mu) ** 2, (1 - gamma * L) ** 2, 1 - p * p) * psi * (1 + 1e-12)


def test_nesterovs_bounds_hold_along_runs():
    problem = logistic_problem(K=4, m=20, d=5)
    best, c = problem.solve(), problem.constants()
    L, D2, mu = 1.0 / resolved(AcceleratedGradient(step_size="auto"), problem)[0].step_size, float(c.D) ** 2, 1e-2
    strong = run(AcceleratedGradient(step_size="auto"), problem, rounds=60, tol=1e-14).trace
    start = strong.value[0] - best.value + mu / 2 * D2
    assert np.all(strong.value - best.value <= (1 - np.sqrt(mu / L)) ** strong.round * start + 1e-14)
    convex = run(AcceleratedGradient(step_size="auto", mu=0.0), problem, rounds=60, tol=1e-14).trace
    assert np.all(convex.value - best.value <= 2 * L * D2 / (convex.round + 1.0) ** 2 + 1e-14)


def test_points_of_momentum_move_with_a_moving_target():
    """With steps of zero a moving target stays: any that is not zero would part w from v."""
    _, problem = clients()
    w, shift = np.ones((1, 4)), np.arange(4.0)
    for method in (AcceleratedGradient(step_size=ETA), FISTA(step_size=ETA)):
        state = method.init(problem, w)
        moved = method.translate(state, shift)
        assert np.array_equal(moved.w, w + shift) and np.array_equal(moved.v, state.v + shift)


def test_a_fixed_point_of_feddyn_stays_one_whoever_is_lost():
    """Weights of those that answer sum to one: at the optimum, with their h_k, all models are the optimum."""
    _, problem = clients()
    best, method = problem.solve().w[None], FedDyn(alpha=0.3)
    state = method.init(problem, best)
    assert lost_reply(method, 0) == "renormalise"
    for there in ([0, 1, 2], [0, 2], [1]):
        p = problem.weights[there][None]
        reply = type("Reply", (), {"w": np.tile(best[:, None], (1, len(there), 1))})()
        after = method.aggregate(state, np.array([there]), p / p.sum(), reply)
        assert np.allclose(after.w, best, rtol=1e-15, atol=1e-15) and not after.h.any()


# ---------------------------------------------------------------- settings


def test_the_step_of_fedlin_is_the_best_of_its_theorem():
    for tau in (1, 2, 5, 1000):

        def gain(a, tau=tau):
            delta = a * (tau - 1) / (2 * tau)
            return a * (1 - delta - a / 2 * (1 + delta) ** 2)

        a = even_step(Smoothness(1.0, 1.0, 1.0), tau).value
        grid = np.linspace(0.01, 1.0, 2000)
        assert gain(a) >= gain(grid).max()


def test_the_number_of_local_steps_is_geometric_and_everybodys():
    _, problem = clients()
    method, p = Scaffnew(step_size=ETA, probability=0.25), np.full(20_000, 0.25)
    n = method._steps(p, Draws(key_from_seed(1), np.arange(20_000), 0))
    assert n.min() == 1 and abs(n.mean() - 4.0) < 5 * np.sqrt(12.0 / 20_000)
    assert abs(np.mean(n > 4) - 0.75**4) < 5 * np.sqrt(0.22 / 20_000)
    t = traits_of(method, problem)
    assert (t.local, t.drawn, t.random_steps.steps.tolist()) == (None, ("steps",), [4.0] * 3)
    assert traits_of(Scaffnew(step_size=ETA, probability=1.0), problem).deterministic


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p, flat: run(AcceleratedGradient(step_size=30.0), p, rounds=1), "step_size \\* mu <= 1.*got 1.5"),
        (lambda p, flat: run(Scaffnew(step_size=0.1), flat, rounds=1), "probability must be given.*make it 0"),
        (lambda p, flat: run(Scaffnew(step_size=0.1), MovingTarget(p, variance=0.1), rounds=1), "problem must stay"),
        (lambda p, flat: Scaffnew(step_size=0.1, probability=0.0), "probability must"),
        (lambda p, flat: Scaffnew(step_size=0.1, probability=1.5), "probability must"),
        (lambda p, flat: FedDyn(alpha=0.1, local_steps=3), "both local_steps and step_size"),
        (lambda p, flat: FedDyn(alpha=0.0), "alpha must"),
        (lambda p, flat: run(FedLin(step_size=0.1, local_steps=(1, 2)), p, rounds=1), "local_steps must.*3"),
        (lambda p, flat: FedNova(step_size=0.1, server_step=0.0), "server_step must"),
    ],
)
def test_settings_out_of_range_are_refused_in_words(make, words):
    rows, problem = clients()
    with pytest.raises((ValueError, TypeError), match=words):
        make(problem, Problem(Federation.from_clients(rows), Logistic()))
