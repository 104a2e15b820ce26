"""Where averaging methods end on least squares: closed forms against the real driver and against plain simulations.

Round maps are checked as linear maps: a round is applied to zero and to every unit vector, and the columns compared.
"""

import math

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, FedSGD, Logistic, Problem, Squared, run
from fedconvex.methods import SCAFFOLD, FedProx, ProgressiveHedging, ProximalPoint, RADFed, ServerSGD
from fedconvex.theorems.fedavg_limit import fedavg_bias, fedavg_limit_patel, fedprox_bias
from fedconvex.theory import AssumptionError
from fedconvex.theory.fixed_points import (
    Affine,
    average_minimisers_round,
    fedavg_round,
    fedprox_inexact_round,
    fedprox_round,
    filtered_round,
    first_order_bias,
    quadratic,
    spread,
)
from fedconvex.theory.moments import Moments
from fedconvex.theory.radfed import RADFedMoments
from fedconvex.theory.round_maps import hedging_optimum, hedging_round, sam_cycle, scaffold_round, scaffold_split


def federation(rng, K=None, d=None, rows=None, spread_of_scales=1.0):
    """Random rows; fewer rows than coordinates make singular Hessians."""
    K, d = K or int(rng.integers(2, 5)), d or int(rng.integers(1, 5))
    clients = []
    for _ in range(K):
        n = rows or int(rng.integers(1, 2 * d + 2))
        X = rng.normal(size=(n, d)) * np.exp(spread_of_scales * rng.normal(size=d) * 0.3)
        clients.append((X, X @ rng.normal(size=d) + rng.normal(size=n)))
    return Federation.from_clients(clients)


def weights(rng, K):
    p = rng.random(K) + 0.2
    return p / p.sum()


def random_problem(rng, l2=0.0, **settings):
    fed = federation(rng, **settings)
    return Problem(fed, Squared(), l2=l2, weights=weights(rng, fed.K))


def top(problem):
    return max(float(np.linalg.eigvalsh(H)[-1]) for H in quadratic(problem).H)


def columns(step, n):
    """The affine map of a function, from zero and the unit vectors: (matrix, offset)."""
    zero = step(np.zeros(n))
    return np.array([step(unit) - zero for unit in np.eye(n)]).T, zero


def driver_columns(method, problem):
    """The same for one round of a method in the real driver: R = d + 1 trajectories."""
    d = problem.federation.d
    ends = run(method, problem, rounds=1, tol=0.0, trajectories=d + 1, start=np.vstack([np.zeros(d), np.eye(d)])).w
    return (ends[1:] - ends[0]).T, ends[0]


def assert_map(found, expected, atol=1e-12):
    np.testing.assert_allclose(found.matrix, expected[0], atol=atol, rtol=0)
    np.testing.assert_allclose(found.offset, expected[1], atol=atol * (1 + np.abs(expected[1]).max()), rtol=0)


# ---------------------------------------------------------------- FedAvg through the real driver


def fedavg_limit_trial(rng):
    """A random federation, often with singular Hessians, from a random start: the limits agree to 1e-10."""
    while True:
        problem = random_problem(rng)
        E, beta = int(rng.integers(1, 9)), float(rng.uniform(0.5, 1.5))
        eta = float(rng.uniform(0.3, 1.2)) / top(problem)
        round_ = fedavg_round(problem, step_size=eta, local_steps=E, server_step=beta)
        if round_.rate <= 0.9:  # else it is too slow to follow to the end
            break
    start = rng.normal(size=problem.federation.d)
    rounds = int(math.log(1e-14) / math.log(max(round_.rate, 1e-3))) + 5
    method = FedAvg(step_size=eta, local_steps=E, server=ServerSGD(beta))
    found = run(method, problem, rounds=rounds, tol=0.0, start=start, record_every=rounds).w
    error = np.abs(found - round_.limit(start)).max() / (1 + np.abs(found).max())
    assert error <= 1e-10
    return {"error": error, "singular": any(np.linalg.matrix_rank(H) < len(H) for H in quadratic(problem).H)}


@pytest.mark.slow
def test_fedavg_ends_where_the_formula_says(rng):
    assert sum(fedavg_limit_trial(rng)["singular"] for _ in range(20)) > 2


def test_fedavg_round_is_the_drivers_round(rng):
    for _ in range(10):
        problem = random_problem(rng, l2=float(rng.choice([0.0, 0.3])))
        eta, E = float(rng.uniform(0.1, 1.9)) / top(problem), int(rng.integers(1, 6))
        method = FedAvg(step_size=eta, local_steps=E)
        assert_map(fedavg_round(problem, step_size=eta, local_steps=E), driver_columns(method, problem), 1e-11)


def test_kernel_of_a_singular_problem_is_kept():
    """One row, two coordinates: the component that no client sees stays as it was."""
    problem = Problem(Federation.from_clients([([[1.0, 1.0]], [2.0]), ([[2.0, 2.0]], [8.0])]), Squared())
    round_ = fedavg_round(problem, step_size=0.1, local_steps=3)
    start = np.array([5.0, -1.0])
    end = round_.limit(start)
    assert end[0] - end[1] == pytest.approx(6.0, abs=1e-12)
    assert round_.spectral_radius == pytest.approx(1.0, abs=1e-12)
    assert round_.rate < 0.7
    followed = run(FedAvg(step_size=0.1, local_steps=3), problem, rounds=200, tol=0.0, start=start).w
    np.testing.assert_allclose(followed, end, atol=1e-12)


def test_affine_limit_refuses_what_does_not_converge():
    with pytest.raises(AssumptionError, match=r"rate 1\.5"):
        Affine(np.array([[1.5]]), np.zeros(1)).limit()
    with pytest.raises(AssumptionError, match="drift"):
        Affine(np.eye(2), np.array([1.0, 0.0])).limit()
    with pytest.raises(AssumptionError, match="Squared"):
        quadratic(Problem(Federation.from_clients([([[1.0]], [1.0])]), Logistic()))
    assert Affine(np.eye(2), np.zeros(2)).rate == 0.0


# ---------------------------------------------------------------- limits and expansions of the fixed point


def test_special_fixed_points(rng):
    for _ in range(20):
        problem = random_problem(rng, rows=6, d=3, l2=0.1)
        q, eta = quadratic(problem), 0.9 / top(problem)
        w = q.minimiser
        np.testing.assert_allclose(fedavg_round(problem, step_size=eta, local_steps=1).limit(), w, atol=1e-10)
        for beta in (0.5, 1.0):  # the server step moves the rate, not the limit
            end = fedavg_round(problem, step_size=eta, local_steps=4, server_step=beta).limit()
            np.testing.assert_allclose(end, fedavg_round(problem, step_size=eta, local_steps=4).limit(), atol=1e-10)
        many = fedavg_round(problem, step_size=eta, local_steps=10**7).limit()
        mean = q.p @ q.minimisers
        np.testing.assert_allclose(many, mean, atol=1e-9)
        np.testing.assert_allclose(average_minimisers_round(problem).limit(), mean, atol=1e-9)
        np.testing.assert_allclose(fedprox_round(problem, proximal_mu=1e9).limit(), w, atol=1e-5)
        np.testing.assert_allclose(fedprox_round(problem, proximal_mu=1e-12).limit(), mean, atol=1e-5)


def test_average_not_sum_of_minimisers():
    """The limit E -> infinity is the average of the minimisers, not their sum, and need not be w*."""
    problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [6.0])]), Squared())
    end = fedavg_round(problem, step_size=0.2, local_steps=1000).limit()
    assert end == pytest.approx([2.0], abs=1e-12)  # minimisers 1 and 3
    assert quadratic(problem).minimiser == pytest.approx([2.6], abs=1e-12)


def test_the_sum_of_gradients_is_a_step_as_many_times_as_long():
    """Four clients (w - 1)^2/2 and the step 1/L = 1: the mean ends in one round, the sum goes from w to 4 - 3w.

    With the sum the step has to be below 2/(4 L).
    """
    problem = Problem(Federation.from_clients([([[1.0]], [1.0])] * 4), Squared())
    w = np.array([0.0])
    for expected in (4.0, -8.0, 28.0):
        w = w - problem.client_gradients(w).sum(axis=0)
        assert w == pytest.approx([expected])
    assert run(FedSGD(step_size=1.0), problem, rounds=1).w == pytest.approx([1.0])


def test_equal_hessians_have_no_bias(rng):
    X = rng.normal(size=(5, 3))
    problem = Problem(Federation.from_clients([(X, rng.normal(size=5)) for _ in range(4)]), Squared())
    for E in (2, 50):
        end = fedavg_round(problem, step_size=0.5 / top(problem), local_steps=E).limit()
        np.testing.assert_allclose(end, quadratic(problem).minimiser, atol=1e-11)


def test_first_order_bias_is_first_order(rng):
    """The remainder falls four times when the lag is halved, for FedAvg and for FedProx."""
    for _ in range(10):
        problem = random_problem(rng, rows=6, d=3, l2=0.2)
        w, E = quadratic(problem).minimiser, 4

        def fedavg(lag, problem=problem, E=E):
            return fedavg_round(problem, step_size=2.0 * lag / (E - 1), local_steps=E).limit()

        def fedprox(lag, problem=problem):
            return fedprox_round(problem, proximal_mu=1.0 / lag).limit()

        for limit in (fedavg, fedprox):
            lag = 2e-3 / top(problem)
            rest = [np.linalg.norm(limit(x) - w - first_order_bias(problem, x)) for x in (lag, lag / 2)]
            assert 3.5 < rest[0] / rest[1] < 4.5
            assert rest[0] < 0.2 * np.linalg.norm(limit(lag) - w)


def test_fedprox_rounds(rng):
    """Exact prox by solving, inexact by stepping; both as linear maps. Proximal 0 is FedAvg."""
    for _ in range(10):
        problem = random_problem(rng)
        q, mu = quadratic(problem), float(rng.uniform(0.1, 3.0))
        d, eta, E = q.b.shape[1], 0.8 / (top(problem) + mu), 5

        def exact(w, q=q, mu=mu, d=d):
            return q.p @ np.array(
                [np.linalg.solve(H + mu * np.eye(d), b + mu * w) for H, b in zip(q.H, q.b, strict=True)]
            )

        def steps(w, q=q, mu=mu, eta=eta, E=E):
            x = np.tile(w, (len(q.p), 1))
            for _ in range(E):
                x = x - eta * (np.einsum("kij,kj->ki", q.H, x) - q.b + mu * (x - w))
            return q.p @ x

        assert_map(fedprox_round(problem, proximal_mu=mu), columns(exact, d))
        inexact = fedprox_inexact_round(problem, proximal_mu=mu, step_size=eta, local_steps=E)
        assert_map(inexact, columns(steps, d))
        plain = fedprox_inexact_round(problem, proximal_mu=0.0, step_size=eta, local_steps=E)
        assert_map(plain, fedavg_round(problem, step_size=eta, local_steps=E))
        flow = filtered_round(problem, lambda h: np.where(h > 0, -np.expm1(-h) / np.where(h > 0, h, 1.0), 1.0))
        tiny = fedavg_round(problem, step_size=1e-6, local_steps=10**6)
        assert_map(tiny, flow, 1e-4)


def test_fedprox_rounds_are_the_drivers_rounds(rng):
    for _ in range(3):
        problem, mu = random_problem(rng, l2=0.1), float(rng.uniform(0.1, 3.0))
        exact = driver_columns(FedProx(proximal_mu=mu, solver=ProximalPoint()), problem)
        assert_map(fedprox_round(problem, proximal_mu=mu), exact, 1e-9)
        settings = {"proximal_mu": mu, "step_size": 0.8 / (top(problem) + mu), "local_steps": 4}
        assert_map(fedprox_inexact_round(problem, **settings), driver_columns(FedProx(**settings), problem), 1e-11)


# ---------------------------------------------------------------- bounds of the bias


def bias_cases(rng, count):
    """(problem, eta, E) with every client strongly convex, steps up to 2/L."""
    for _ in range(count):
        d = int(rng.integers(1, 4))
        problem = random_problem(rng, d=d, rows=d + int(rng.integers(1, 4)), l2=float(10.0 ** rng.uniform(-3, 0)))
        yield problem, float(rng.choice([0.1, 0.5, 1.0, 1.5, 1.9])) / top(problem), int(rng.integers(1, 30))


def bias_trial(rng):
    """Shares of the three bounds that a random federation attains."""
    [(problem, eta, E)] = bias_cases(rng, 1)
    q, clients, constants = quadratic(problem), spread(problem), problem.constants()
    end = fedavg_round(problem, step_size=eta, local_steps=E).limit()
    found = {"B1": 0.0, "P": 0.0}
    bound = fedavg_bias(constants, clients, step_size=eta, local_steps=E).value
    distance = float(np.linalg.norm(end - q.minimiser))
    assert distance <= bound * (1 + 1e-8) + 1e-9
    if bound > 0 and E > 1:
        found["B1"] = distance / bound
    bound = fedavg_limit_patel(constants, clients, step_size=eta, local_steps=E).value
    distance = float(np.linalg.norm(end - q.p @ q.minimisers))
    assert distance <= bound * (1 + 1e-8) + 1e-9
    if bound > 1e-6:
        found["P"] = distance / bound
    assert fedavg_bias(constants, clients, step_size=eta, local_steps=1).value == 0.0
    mu = float(10.0 ** rng.uniform(-2, 2))
    bound = fedprox_bias(constants, clients, proximal_mu=mu).value
    distance = float(np.linalg.norm(fedprox_round(problem, proximal_mu=mu).limit() - q.minimiser))
    assert distance <= bound * (1 + 1e-8) + 1e-9
    return found | {"B2": distance / bound}


@pytest.mark.slow
def test_bias_bounds_hold(rng):
    found = [bias_trial(rng) for _ in range(300)]
    assert max(f["B1"] for f in found) > 0.5 < max(f["B2"] for f in found)  # and not idle
    assert max(f["P"] for f in found) > 0.25


def two_parabolas(a, b):
    """F_1 = a (w - 1)^2/2, F_2 = b (w + 1)^2/2."""
    A, B = math.sqrt(a), math.sqrt(b)
    return Problem(Federation.from_clients([([[A]], [A]), ([[B]], [-B])]), Squared())


def test_bias_bounds_are_nearly_attained():
    """Two nearly equal parabolas: B1, B2 and P become equalities (P: tau, not half of it, compares two clients)."""
    problem = two_parabolas(1.0, 1.001)
    q, clients, constants = quadratic(problem), spread(problem), problem.constants()
    for E in (2, 5):
        end = fedavg_round(problem, step_size=0.3, local_steps=E).limit()
        bound = fedavg_bias(constants, clients, step_size=0.3, local_steps=E).value
        assert abs(end - q.minimiser).item() == pytest.approx(bound, rel=0.01)
        patel = fedavg_limit_patel(constants, clients, step_size=0.3, local_steps=E).value
        assert abs(end - q.p @ q.minimisers).item() == pytest.approx(patel / 2, rel=0.01)
    end = fedprox_round(problem, proximal_mu=2.0).limit()
    assert abs(end - q.minimiser).item() == pytest.approx(
        fedprox_bias(constants, clients, proximal_mu=2.0).value, rel=0.01
    )


def test_planted_bias_constants():
    """E - 1 for the sum of j, half of B1's drift, or E - 1 for E in P: caught by two nearly equal parabolas."""
    problem = two_parabolas(1.0, 1.001)
    q, clients, constants = quadratic(problem), spread(problem), problem.constants()
    end = fedavg_round(problem, step_size=0.3, local_steps=5).limit()
    bound = fedavg_bias(constants, clients, step_size=0.3, local_steps=5).value
    assert abs(end - q.minimiser).item() > bound / 2
    with pytest.raises(AssumptionError, match="2/L"):
        fedavg_bias(constants, clients, step_size=2.1, local_steps=5)
    with pytest.raises(AssumptionError, match="strongly convex"):
        flat = Problem(Federation.from_clients([([[1.0, 0.0]], [1.0]), ([[0.0, 1.0]], [1.0])]), Squared())
        fedavg_limit_patel(flat.constants(), spread(flat), step_size=0.1, local_steps=2)


def test_patel_with_the_gradient_spread_would_be_false():
    """zeta_*/L with zeta_* the root mean square of ‖grad F_k(w*)‖ is not an upper bound of the minimisers' spread."""
    # a second coordinate of curvature 10 on which all agree raises L and nothing else
    clients = []
    for h, target in ((1.0, 1.0), (1.001, -1.0)):
        X = np.diag(np.sqrt([2.0 * h, 20.0]))
        clients.append((X, X @ np.array([target, 0.0])))
    problem = Problem(Federation.from_clients(clients), Squared())
    q, clients, constants = quadratic(problem), spread(problem), problem.constants()
    end = fedavg_round(problem, step_size=0.1, local_steps=3).limit()
    bound = fedavg_limit_patel(constants, clients, step_size=0.1, local_steps=3).value
    distance = np.linalg.norm(end - q.p @ q.minimisers)
    assert distance <= bound
    assert distance > bound * clients.zeta_star / constants.L / clients.xi


# ---------------------------------------------------------------- SCAFFOLD and progressive hedging


def scaffold_by_hand(q, eta, K, eta_g, option):
    """One round written from the paper, as a function of the flat state."""
    N, d = q.b.shape

    def step(z):
        x, c_k = z[:d], z[d:].reshape(N, d)
        c = sum(p * ck for p, ck in zip(q.p, c_k, strict=True))
        new, change = [], np.zeros(d)
        for i in range(N):
            y = x.copy()
            for _ in range(K):
                y = y - eta * (q.H[i] @ y - q.b[i] - c_k[i] + c)
            new.append(q.H[i] @ x - q.b[i] if option == 1 else c_k[i] - c + (x - y) / (K * eta))
            change += q.p[i] * (y - x)
        return np.concatenate([x + eta_g * change, np.ravel(new)])

    return step


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_round(rng, option):
    for _ in range(8):
        problem = random_problem(rng, l2=0.3)
        q, K, eta_g = quadratic(problem), int(rng.integers(1, 5)), float(rng.uniform(0.5, 1.2))
        eta = 0.2 / (K * top(problem))
        round_ = scaffold_round(problem, step_size=eta, local_steps=K, server_step=eta_g, option=option)
        step = scaffold_by_hand(q, eta, K, eta_g, option)
        assert_map(round_, columns(step, len(round_.offset)))
        end = scaffold_split(problem, round_.limit())
        np.testing.assert_allclose(end.x, q.minimiser, atol=1e-9)
        np.testing.assert_allclose(end.c, q.gradients(q.minimiser), atol=1e-9)
        z, errors = rng.normal(size=len(round_.offset)), []
        for _ in range(60):
            z = step(z)
            errors.append(np.linalg.norm(z - round_.limit()))
        if errors[-1] > 1e-9:  # the measured rate is the spectral radius
            assert (errors[-1] / errors[19]) ** (1 / 40) == pytest.approx(round_.rate, rel=0.1)


@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_round_is_the_drivers_round(rng, option):
    """Five rounds of the real method, unequal weights, from c_i = 0."""
    problem = random_problem(rng, K=3, d=2, l2=0.3)
    settings = {"step_size": 0.2 / top(problem), "local_steps": 3, "server_step": 0.9, "option": option}
    start, round_ = rng.normal(size=2), scaffold_round(problem, **settings)
    z = np.concatenate([start, np.zeros(6)])
    for _ in range(5):
        z = round_(z)
    found = run(SCAFFOLD(**settings), problem, rounds=5, tol=0.0, start=start).w
    np.testing.assert_allclose(found, scaffold_split(problem, z).x, atol=1e-11)


def test_scaffold_with_equal_clients(rng):
    """The model moves as FedAvg's; wrong controls are forgotten at 1 - (1 - (1 - eta h)^K)/(K eta h), or at once."""
    X, y = rng.normal(size=(5, 2)), rng.normal(size=5)
    problem = Problem(Federation.from_clients([(X, y)] * 3), Squared())
    eta, K = 0.5 / top(problem), 4
    fedavg, h = fedavg_round(problem, step_size=eta, local_steps=K), np.linalg.eigvalsh(quadratic(problem).H[0])
    forget = 1 - (1 - (1 - eta * h) ** K) / (K * eta * h)
    rate = max(fedavg.rate, forget.max())
    assert scaffold_round(problem, step_size=eta, local_steps=K).rate == pytest.approx(rate, rel=1e-6)
    assert scaffold_round(problem, step_size=eta, local_steps=K, option=1).rate == pytest.approx(fedavg.rate, rel=1e-6)
    many = scaffold_round(problem, step_size=eta, local_steps=1000).rate
    assert 0.99 < many < 1.0  # FedAvg with so many steps is done in one round
    with pytest.raises(ValueError, match="option"):
        scaffold_round(problem, step_size=eta, local_steps=4, option=3)


def test_scaffold_rates_of_the_page():
    """x^2/2 and x^2/20, step 1/2: more local steps help, then hurt; option I diverges; FedAvg is fast and biased."""
    problem = two_parabolas(1.0, 0.1)
    table = {1: (0.725, 0.725, 0.725, 0.0), 5: (0.488, 0.539, 0.403, 0.197), 20: (0.450, 1.104, 0.179, 0.600)}
    table[100] = (0.890, 1.418, 0.003, 0.815)
    for K, row in table.items():
        settings = {"step_size": 0.5, "local_steps": K}
        fedavg = fedavg_round(problem, **settings)
        bias = abs(fedavg.limit() - quadratic(problem).minimiser).item()
        rates = [scaffold_round(problem, option=option, **settings).rate for option in (2, 1)]
        np.testing.assert_allclose([*rates, fedavg.rate, bias], row, atol=6e-4)


def test_hedging_round_is_the_drivers_round(rng):
    """z after T rounds of the real method is the weighted mean of s after T applications of the map."""
    problem = random_problem(rng, K=3, d=2, l2=0.3)
    q, rho, start, T = quadratic(problem), 0.7, rng.normal(size=2), 5
    s, round_ = np.tile(start, 3), hedging_round(problem, rho=rho)
    for _ in range(T):
        s = round_(s)
    found = run(ProgressiveHedging(rho=rho), problem, rounds=T, tol=0.0, start=start).w
    np.testing.assert_allclose(found, q.p @ s.reshape(3, 2), atol=1e-9)


def test_hedging_round(rng):
    for _ in range(8):
        problem = random_problem(rng, l2=0.2)
        q, rho = quadratic(problem), float(rng.uniform(0.2, 3.0))
        K, d = q.b.shape

        def step(s, q=q, rho=rho, K=K, d=d):
            """z and y from s, one round as in the method's own words, s again."""
            z = q.p @ s.reshape(K, d)
            y = rho * (z - s.reshape(K, d))
            x = np.array(
                [np.linalg.solve(H + rho * np.eye(d), b - yk + rho * z) for H, b, yk in zip(q.H, q.b, y, strict=True)]
            )
            z = q.p @ x
            return (z - (y + rho * (x - z)) / rho).ravel()

        round_ = hedging_round(problem, rho=rho)
        assert_map(round_, columns(step, K * d))
        end = round_.limit().reshape(K, d)
        np.testing.assert_allclose(end, hedging_optimum(problem, rho=rho), atol=1e-8)
        np.testing.assert_allclose(q.p @ end, q.minimiser, atol=1e-8)


# ---------------------------------------------------------------- RADFed


def radfed_runs(rng, problem, eta, E, B, m, S, T, runs):
    """RADFed written out, many runs at once: (runs, d) after T rounds."""
    fed, d = problem.federation, problem.federation.d
    X = [fed.X[fed.ptr[k] : fed.ptr[k + 1]] for k in range(fed.K)]
    y = [fed.y[fed.ptr[k] : fed.ptr[k + 1]] for k in range(fed.K)]
    w = np.zeros((runs, d))
    for _ in range(T):
        models = np.repeat(w[:, None], m, 1)
        for _ in range(S):
            who = np.argsort(rng.random((runs, fed.K)), axis=1)[:, :m]
            for k in range(fed.K):
                at = np.nonzero(who == k)
                for _ in range(E):
                    rows = np.argsort(rng.random((len(at[0]), len(y[k]))), axis=1)[:, :B]
                    v = models[at]
                    e = np.einsum("rbd,rd->rb", X[k][rows], v) - y[k][rows]
                    models[at] = v - eta * (np.einsum("rbd,rb->rd", X[k][rows], e) / B + problem.l2 * v)
        w = models.mean(1)
    return w


@pytest.mark.parametrize(("m", "S", "B"), [(1, 2, 4), (2, 3, 4), (4, 2, 4), (3, 2, 1)])
@pytest.mark.slow_unless(m=3)
def test_radfed_moments_by_simulation(rng, m, S, B):
    problem = random_problem(rng, K=4, d=2, rows=4, l2=0.1)
    eta, E, T, runs = 0.3 / top(problem), 2, 3, 20_000
    exact = RADFedMoments(problem, step_size=eta, local_steps=E, batch_size=B, models=m, redistributions=S).run(T)
    w = radfed_runs(rng, problem, eta, E, B, m, S, T, runs)
    best = problem.solve().w
    values = problem.value(w) - problem.value(best)
    z = (values.mean() - exact.suboptimality[-1]) / (values.std() / math.sqrt(runs))
    assert abs(z) < 4.5
    z = (w.mean(0) - best - exact.mean_error[-1]) / (w.std(0) / math.sqrt(runs) + 1e-15)
    assert np.abs(z).max() < 4.5


@pytest.mark.slow
def test_radfed_moments_by_the_driver(rng):
    """2,000 trajectories of the real method; one round here is S of its rounds."""
    problem = Problem(federation(rng, K=4, d=2, rows=4), Squared(), l2=0.1, weights="uniform")
    settings = {"step_size": 0.4 / top(problem), "local_steps": 2, "batch_size": 2, "models": 2, "redistributions": 3}
    exact = RADFedMoments(problem, **settings).run(2)
    w = run(RADFed(**settings), problem, rounds=6, tol=0.0, trajectories=2000).w
    values = problem.value(w) - problem.solve().value
    assert abs(values.mean() - exact.suboptimality[-1]) < 4.5 * values.std() / math.sqrt(2000)


@pytest.mark.slow
def test_radfed_mean_is_fedavg_with_equal_weights(rng):
    """S redistributions do what S rounds of uniform FedAvg do to the mean, whatever the problem's weights."""
    problem = random_problem(rng, K=4, d=3, l2=0.2)
    uniform = Problem(problem.federation, Squared(), l2=0.2, weights="uniform")
    eta, S = 0.5 / top(problem), 3
    radfed = RADFedMoments(problem, step_size=eta, local_steps=4, models=2, redistributions=S)
    fedavg = fedavg_round(uniform, step_size=eta, local_steps=4)
    best, w = problem.solve().w, np.zeros(3)
    for t, error in enumerate(radfed.run(4).mean_error):
        np.testing.assert_allclose(w if t else np.zeros(3), best + error, atol=1e-12)
        for _ in range(S):
            w = fedavg(w)
    limit = radfed.limit()
    np.testing.assert_allclose(best + limit.mean_error, fedavg.limit(), atol=1e-9)
    far = radfed.run(400)
    assert far.deviation[-1] == pytest.approx(limit.deviation, rel=1e-9)


def test_radfed_reduces_to_fedavg(rng):
    """One redistribution: m of K clients, uniformly, averaged. More models: less variance; delay: more."""
    problem = Problem(federation(rng, K=5, d=2, rows=4), Squared(), l2=0.1, weights="uniform")
    eta = 0.5 / top(problem)
    for m in (1, 3, 5):
        radfed = RADFedMoments(problem, step_size=eta, local_steps=3, models=m, redistributions=1)
        fedavg = Moments(problem, step_size=eta, local_steps=3, participation=m)
        np.testing.assert_allclose(radfed.run(5).deviation, fedavg.run(5).deviation, rtol=1e-10)

    def variance(m, S):
        limit = RADFedMoments(problem, step_size=eta, local_steps=3, models=m, redistributions=S).limit()
        return limit.deviation - limit.mean_error @ limit.mean_error

    assert variance(1, 4) > variance(2, 4) > variance(5, 4) > variance(5, 1)
    assert variance(5, 1) == pytest.approx(0.0, abs=1e-12)
    assert variance(1, 1) == pytest.approx(variance(1, 4), rel=1e-9)  # one model: no aggregation to delay
    with pytest.raises(AssumptionError, match="spectral radius"):
        RADFedMoments(problem, step_size=6 * eta, local_steps=3, models=2, redistributions=2).limit()


# ---------------------------------------------------------------- SAM


@pytest.mark.slow
def test_sam_ends_in_the_cycle(rng):
    """From random starts SAM on quadratics ends bouncing along the top eigenvector; along the others it is unstable."""
    for _ in range(10):
        Q = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        X = np.sqrt(3.0 * np.array([0.2, 0.5, 1.0]) * rng.uniform(0.5, 2.0))[:, None] * Q
        problem = Problem(Federation.from_clients([(X, rng.normal(size=3))]), Squared())
        q, w_star = quadratic(problem), quadratic(problem).minimiser
        h, V = np.linalg.eigh(q.H[0])
        eta, r = float(rng.uniform(0.2, 1.5)) / h[-1], float(rng.uniform(0.01, 1.0))
        cycle = sam_cycle(problem, step_size=eta, rho=r)

        def step(w, q=q, eta=eta, r=r):
            g = q.H[0] @ w - q.b[0]
            return w - eta * (q.H[0] @ (w + r * g / np.linalg.norm(g)) - q.b[0])

        on = w_star + cycle.direction  # the cycle is a cycle
        np.testing.assert_allclose(step(on), w_star - cycle.direction, atol=1e-12)
        w = w_star + rng.normal(size=3)
        for _ in range(4000):
            w = step(w)
        assert abs((w - w_star) @ V[:, -1]) == pytest.approx(cycle.radius, rel=1e-6)
        assert problem.value(w) - problem.solve().value == pytest.approx(cycle.excess, rel=1e-5)
        length = eta * h[0] * r / (2 - eta * h[0])  # a cycle along the least eigenvector, slightly off it
        w = w_star + length * V[:, 0] + 1e-6 * V[:, -1]
        for _ in range(4000):
            w = step(w)
        assert abs((w - w_star) @ V[:, 0]) < 0.01 * length


def test_sam_cycle_refuses():
    one = Problem(Federation.from_clients([([[1.0]], [3.0])]), Squared())
    with pytest.raises(AssumptionError, match="2/l"):
        sam_cycle(one, step_size=2.0, rho=0.1)
    two = Problem(Federation.from_clients([([[1.0]], [3.0]), ([[1.0]], [2.0])]), Squared())
    with pytest.raises(AssumptionError, match="one client"):
        sam_cycle(two, step_size=0.1, rho=0.1)


def test_fedprox_bias_is_a_theorem_on_real_limits(rng):
    """What is measured is where rounds end; 0.97 of B2 is violated by parabolas of nearly equal curvature."""
    from fedconvex.theorems import THEOREMS
    from fedconvex.theorems.parts.instances import two_parabolas
    from fedconvex.verify import verify

    theorem, p = THEOREMS["fedprox-bias"], two_parabolas[0].make()
    method = FedProx(proximal_mu=1.0, solver=ProximalPoint())
    found = verify(theorem, p, method, rounds=1)
    end = run(method, p, rounds=200, tol=0).w - p.solve().w
    assert found.outcome.name == "HOLDS" and found.measured == pytest.approx(float(np.linalg.norm(end)), rel=1e-9)

    def bound(**arguments):
        right = theorem.bound(**arguments)
        return type(right)({"drift": 0.97 * right.value}, right.quantity, right.source, right.requires)

    assert verify(theorem._replace(bound=bound), p, method, rounds=1).outcome.name == "VIOLATED"
    inexact = FedProx(proximal_mu=1.0, step_size=0.1, local_steps=3)
    assert verify(theorem, p, inexact, rounds=1).outcome.name == "NOT_APPLICABLE"
