"""Games over environments: equilibria, certificates, dynamics; against enumeration, closed forms and other solvers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import lsq_linear, minimize

from fedconvex import Federation, Hinge, Logistic, Softmax, Squared, iterate, run
from fedconvex.datasets import chain_moments, coloured_federation, federation_of_moments
from fedconvex.methods import BestResponse, FLGame, GradientResponse, IRMGame
from fedconvex.problems import GameProblem
from fedconvex.solvers.environments.games import (
    Players,
    box_least_squares,
    buffer_errors,
    buffer_radius,
    equilibria,
    uncorrelated_predictor,
)


def scalar(v, bound=2.0, **how):
    """Players of one feature with E x^2 = 1 and coefficients v."""
    v = np.array(v)[:, None]
    return GameProblem(federation_of_moments(np.ones((len(v), 1, 1)), v, v[:, 0] ** 2 + 1.0), Squared(), bound, **how)


def moments(seed, players=2, d=2):
    """Second moments of random environments, those of the reference: all S_e first, then all b_e."""
    rng = np.random.default_rng(seed)
    A = [rng.normal(size=(d, d)) for _ in range(players)]
    S = np.array([a @ a.T + 0.05 * np.eye(d) for a in A])
    return S, rng.normal(size=(players, d))


def game(seed, players=2, d=2, bound=1.0):
    S, b = moments(seed, players, d)
    return Players(S, b, np.einsum("ei,eij,ej->e", b, np.linalg.inv(S), b) + 0.5, bound)


def problem_of(p):
    return GameProblem(federation_of_moments(p.S, p.b, p.c), Squared(), p.bound)


# ---------------------------------------------------------------- best responses, certificates


def test_box_least_squares_is_that_of_another_solver():
    """No higher than `lsq_linear` on rows of any rank and scale; warm or cold."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        d = int(rng.integers(1, 7))
        A = rng.normal(size=(int(rng.integers(1, 9)), d)) * 10.0 ** rng.uniform(-3.0, 3.0, d)
        y, B = rng.normal(size=len(A)), 10.0 ** rng.uniform(-2.0, 2.0)
        w = box_least_squares(A.T @ A, A.T @ y, B, rng.uniform(-B, B, d) * (rng.random(d) < 0.7))
        peer = lsq_linear(A, y, (-B, B), method="bvls", tol=1e-14).x
        assert np.abs(w).max() <= B
        assert 0.5 * np.sum((A @ w - y) ** 2) <= 0.5 * np.sum((A @ peer - y) ** 2) + 1e-13 * (y @ y)


@pytest.mark.slow
def test_certificate_is_at_least_the_regrets():
    """N >= sum of regrets >= 0 at random strategies; with the box left out, or halved, it would not be."""
    rng, halved, without = np.random.default_rng(1), 0, 0
    for seed in range(60):
        p = game(seed, players=int(rng.integers(2, 4)), d=3, bound=float(rng.uniform(0.2, 3.0)))
        w = rng.uniform(-p.bound, p.bound, p.b.shape) * (1.0 if seed % 2 else 0.05)
        regrets, N = p.regrets(w).sum(), p.certificate(w)
        assert 0.0 <= regrets <= N * (1.0 + 1e-12)
        halved += regrets > (N + (p.gradients(w) * w).sum()) / 2.0
        without += regrets > (p.gradients(w) * w).sum()
        for e in range(len(w)):  # against a solver of its own
            L = np.linalg.cholesky(p.S[e]).T
            others = w.sum(axis=0) - w[e]
            best = lsq_linear(L, np.linalg.solve(L.T, p.b[e]) - L @ others, (-p.bound, p.bound), tol=1e-14).x
            moved = w.copy()
            moved[e] = best
            assert p.risks(w)[e] - p.risks(moved)[e] == pytest.approx(p.regrets(w)[e], abs=1e-9)
    assert halved > 0 and without > 0


def test_measure_bounds_the_regrets_of_strategies_in_the_boxes_only():
    problem = problem_of(game(3))
    w = np.random.default_rng(0).uniform(-1.0, 1.0, (5, 2, 2))
    value, gap = problem.measure(w)
    np.testing.assert_allclose(value, problem.risks(w).sum(axis=1))
    np.testing.assert_allclose(gap, problem.certificate(w), rtol=1e-12)
    assert all(problem.regrets(v).sum() <= g for v, g in zip(w, gap, strict=True))
    assert problem.certificate(2.0 * np.ones((2, 2))) == np.inf


def test_gradients_are_those_of_the_risks():
    """In sums and averages, by differences, and of another loss."""
    rng, h = np.random.default_rng(2), 1e-6
    X, y, who = rng.normal(size=(30, 2)), np.sign(rng.normal(size=30)), np.arange(30) // 10
    for loss in (Squared(), Logistic()):
        for kind in ("sum", "average"):
            problem = GameProblem(Federation.from_arrays(X, y, who), loss, 2.0, kind)
            w, F = rng.uniform(-1.0, 1.0, (3, 2)), np.empty((3, 2))
            for k in range(3):
                for j in range(2):
                    e = np.zeros((3, 2))
                    e[k, j] = h
                    F[k, j] = (problem.risks(w + e)[k] - problem.risks(w - e)[k]) / (2.0 * h)
            np.testing.assert_allclose(problem.gradients(w), F, atol=1e-8)
            s = problem.predictor(w)
            one = problem.risk.federation.subset([1])
            from fedconvex import Problem

            assert problem.risks(w)[1] == pytest.approx(Problem(one, loss).value(s), rel=1e-12)


@pytest.mark.slow
def test_logistic_certificate_bounds_what_a_player_can_gain():
    rng = np.random.default_rng(4)
    X, who = rng.normal(size=(60, 2)), np.arange(60) // 20
    problem = GameProblem(
        Federation.from_arrays(X, np.sign(X[:, 0] + rng.normal(size=60)), who), Logistic(), 1.5, "average"
    )
    found = run(
        IRMGame(order="parallel", response=GradientResponse(2.0)), problem, tol=1e-5, rounds=5000, record_every=10
    )
    assert found.status.name == "CONVERGED"
    for k in range(3):
        w = np.repeat(found.w[None], 100, axis=0)
        w[:, k] = rng.uniform(-1.5, 1.5, (100, 2))
        assert problem.risks(w)[:, k].min() >= problem.risks(found.w)[k] - 1e-5


# ---------------------------------------------------------------- equilibria


@pytest.mark.parametrize(
    ("v", "bound", "s"),
    [
        ((0.5, -1.0, 2.0), 5.0, 0.5),
        ((0.1, 0.5, 0.9, 2.0), 5.0, 0.5),
        ((-0.3, -0.1, 0.4, 2.0), 5.0, 0.0),
        ((1.0, 3.0), 0.25, 0.5),
        ((3.0, 4.0), 1.0, 2.0),
    ],
)
def test_uncorrelated_features_give_a_shrunken_median(v, bound, s):
    """Closed form, enumeration, and the strategies at their bounds; the last: both coefficients out of reach."""
    assert uncorrelated_predictor(np.array(v)[:, None], bound).tolist() == [s]
    (found,) = scalar(v, bound).equilibria()
    assert found.predictor == pytest.approx(s, abs=1e-12)
    assert all(found.w[e, 0] == np.sign(x - s) * bound for e, x in enumerate(v) if x != s)


def test_closed_form_is_the_enumeration_and_the_least_of_its_objective():
    rng = np.random.default_rng(5)
    for _ in range(60):
        players, d = [(2, 2), (3, 1), (4, 1), (2, 1)][rng.integers(4)]
        D, v, B = rng.uniform(0.1, 3.0, (players, d)), rng.normal(size=(players, d)), 10.0 ** rng.uniform(-1, 1)
        p = Players(np.array([np.diag(x) for x in D]), D * v, np.ones(players), B)
        s = uncorrelated_predictor(v, B)
        (found,) = equilibria(p)
        np.testing.assert_allclose(found.predictor, s, atol=1e-12)
        value = lambda s: np.abs(s - v).sum(axis=0) + s**2 / (2.0 * B)  # noqa: E731, B023
        assert (value(s) <= value(s + 1e-6) + 1e-15).all() and (value(s) <= value(s - 1e-6) + 1e-15).all()


def test_small_games_may_have_three_equilibria():
    """Of 400 random games of two players two have three; the predictors of one are known."""
    known = [(0.166, 0.0), (0.278, -0.064), (0.445, -0.371)]
    found = equilibria(game(286))
    np.testing.assert_allclose([q.predictor for q in found], known, atol=5e-4)
    assert len(equilibria(game(372))) == 3 and len(equilibria(game(0))) == 1
    for q in found:
        assert q.certificate <= 1e-12 and q.isolated
        for d in np.random.default_rng(0).uniform(-1.0, 1.0, (200, 2)):  # nobody gains by moving alone
            for e in range(2):
                w = q.w.copy()
                w[e] = d
                assert game(286).risks(w)[e] >= game(286).risks(q.w)[e] - 1e-12


@pytest.mark.slow
def test_proportional_moments_have_one_equilibrium():
    """S_e = c_e S: minimisers of a convex potential, here by another solver."""
    rng, precise = np.random.default_rng(6), {"ftol": 1e-16, "gtol": 1e-11, "maxiter": 5000}
    for seed in range(20):
        S, b = moments(seed)
        c, B = rng.uniform(0.5, 2.0, 2), 0.7
        p = Players(c[:, None, None] * S[0], b, np.ones(2), B)
        (found,) = equilibria(p)
        w = minimize(_potential, np.zeros(4), (S[0], b / c[:, None]), jac=True, bounds=[(-B, B)] * 4, options=precise).x
        least, mine = (_potential(v.ravel(), S[0], b / c[:, None])[0] for v in (w, found.w))
        assert mine <= least + 1e-13
        np.testing.assert_allclose(w.reshape(2, 2).sum(axis=0), found.predictor, atol=2e-3)  # it stops early


def _potential(w, S, b):
    """s'Ss/2 - sum_e b_e'w^e and its gradient."""
    s = w.reshape(2, 2).sum(axis=0)
    return 0.5 * s @ S @ s - b.ravel() @ w, (S @ s - b).ravel()


def test_equal_coefficients_and_collinear_features():
    """Every split of v is an equilibrium, shown once; of a continuum of predictors points are shown, and say so."""
    v = np.array([0.3, -0.4])
    S, _ = moments(7)
    (found,) = equilibria(Players(S, S @ v, np.ones(2), 2.0))
    np.testing.assert_allclose(found.predictor, v, atol=1e-12)
    one = Players(np.ones((2, 2, 2)), np.array([[0.5, 0.5], [0.5, 0.5]]), np.ones(2), 1.0)
    found = equilibria(one)
    assert any(not q.isolated for q in found)
    assert all(q.predictor.sum() == pytest.approx(0.5) and q.certificate <= 1e-12 for q in found)


# ---------------------------------------------------------------- dynamics


@pytest.mark.parametrize(
    ("v", "sweeps", "rounds"), [((0.2, 0.9), 4, 6), ((-0.2, 0.9), 3, 4), ((0.5, 0.55), 41, 80)], ids=str
)
def test_rounds_until_a_bound_is_reached(v, sweeps, rounds):
    """In turn and in parallel, from zero; no more sweeps than B/|v_2 - v_1| + 2."""
    problem = scalar(v)
    turn = run(IRMGame(), problem, tol=1e-11)
    assert -(-turn.rounds // 2) == sweeps <= 2.0 / abs(v[1] - v[0]) + 2.0
    assert run(IRMGame(order="parallel"), problem, tol=1e-11).rounds == rounds
    s = 0.0 if v[0] < 0.0 else v[0]
    assert problem.predictor(turn.w) == pytest.approx(s, abs=1e-12) == problem.uncorrelated()


def test_without_a_box_in_reach_players_drift_apart():
    """w^1 = v_1 - (t - 1)(v_2 - v_1), w^2 = t (v_2 - v_1): no equilibrium where coefficients differ."""
    for t, state in iterate(IRMGame(), scalar((0.2, 0.9), 1e6), rounds=20):
        if t and t % 2 == 0:
            np.testing.assert_allclose(state.w[0, :, 0], [0.2 - (t / 2 - 1) * 0.7, t / 2 * 0.7], rtol=1e-12)


def test_chain_and_colour():
    """Nearly causal with two environments, the median of three; anti-causal colour is not given up."""
    chain = GameProblem(federation_of_moments(*chain_moments((0.2, 2.0))), Squared(), 2.0)
    found = run(IRMGame(), chain, tol=1e-10)
    assert found.rounds == 22
    np.testing.assert_allclose(chain.predictor(found.w), [1.0 / 1.04, 0.04 / 1.04], atol=1e-9)
    three = GameProblem(federation_of_moments(*chain_moments((0.2, 2.0, 5.0))), Squared(), 2.0)
    np.testing.assert_allclose(three.predictor(run(IRMGame(), three, tol=1e-10).w), [0.2, 0.8], atol=1e-9)
    colour = GameProblem(coloured_federation((0.2, 0.1)), Squared(), 2.0)
    np.testing.assert_allclose(colour.predictor(run(IRMGame(), colour, tol=1e-9).w), [0.295455, 0.511364], atol=1e-6)
    average = GameProblem(coloured_federation((0.2, 0.1)), Squared(), 4.0, "average")
    np.testing.assert_allclose(average.equilibria()[0].predictor, [0.295455, 0.511364], atol=1e-6)
    assert run(IRMGame(), average, tol=1e-9).rounds == run(IRMGame(), colour, tol=1e-9).rounds


@pytest.mark.slow
def test_sampled_chain_of_ten_features():
    """Squared errors of the equilibrium on the samples of the reference, and its sweeps."""
    for seed, error, sweeps in [(0, 0.0619, 61), (1, 0.0184, 14)]:
        r, clients = np.random.default_rng(seed), []
        for e in (0.2, 2.0):
            h = e * r.normal(size=(1000, 5))
            x = h + e * r.normal(size=(1000, 5))
            y = x + e * r.normal(size=(1000, 5))
            clients.append((np.hstack([x, y + r.normal(size=(1000, 5))]), y.sum(axis=1)))
        problem = GameProblem(Federation.from_clients(clients), Squared(), 2.0)
        causal = np.repeat([1.0, 0.0], 5)
        for t, state in iterate(IRMGame(), problem, rounds=2 * sweeps):
            assert t < 2 * sweeps - 2 or t == 2 * sweeps or problem.certificate(state.w[0]) > 1e-11
        assert problem.certificate(state.w[0]) <= 1e-11
        assert np.sum((problem.predictor(state.w[0]) - causal) ** 2) == pytest.approx(error, abs=6e-5)


@pytest.mark.slow
def test_best_responses_in_turn_may_cycle_and_damped_play_settles():
    """Seed 308: the sums alternate; the status says so whatever the seed, and buffers and gradient steps converge."""
    problem = problem_of(game(308))
    found = [run(IRMGame(), problem, rounds=200, tol=1e-9, seed=seed) for seed in (0, 1)]
    assert [(r.status.name, r.period) for r in found] == [("CYCLE", 4)] * 2 and found[0].rounds == found[1].rounds < 60
    sums = [problem.predictor(state.w[0]) for _, state in iterate(IRMGame(), problem, rounds=40)]
    ends = sorted(np.round(s, 4).tolist() for s in sums[38::2])  # of a sweep, and of the next
    np.testing.assert_allclose(ends, [[0.0, 0.27], [0.1122, 0.1537]], atol=5e-5)
    (only,) = problem.equilibria()
    for method in (IRMGame(order="parallel", response=GradientResponse(0.1)), FLGame(buffer=5)):
        settled = run(method, problem, rounds=3000, tol=1e-10)
        assert settled.status.name == "CONVERGED"
        np.testing.assert_allclose(problem.predictor(settled.w), only.predictor, atol=1e-7)


def test_parallel_play_with_equal_coefficients():
    """Two players overshoot for ever, three run to their bounds, and a buffer of K strategies settles."""
    two = run(IRMGame(order="parallel"), scalar((0.5, 0.5)), tol=1e-9)
    assert (two.status.name, two.period) == ("CYCLE", 2)
    three = run(IRMGame(order="parallel"), scalar((0.5, 0.5, 0.5)), tol=1e-9)
    assert three.status.name == "CYCLE" and (np.abs(three.w) == 2.0).all()
    for b in (1, 2):
        assert run(FLGame(buffer=b), scalar((0.5, 0.5, 0.5)), tol=1e-9, rounds=400).status.name == "CYCLE"
    assert run(FLGame(buffer=3), scalar((0.5, 0.5, 0.5)), tol=1e-9).status.name == "CONVERGED"


def test_buffers_err_as_predicted():
    """s_t - v = r_t (s_0 - v), far from the boxes; radii to the digits of the reference; stable from b = K on."""
    for players, b in [(2, 1), (2, 2), (3, 2), (3, 3), (4, 4), (5, 7)]:
        problem, r = scalar([0.5] * players, 1e9), buffer_errors(players, b, 25)
        for t, state in iterate(FLGame(buffer=b), problem, rounds=25):
            assert problem.predictor(state.w[0])[0] - 0.5 == pytest.approx(-0.5 * r[t], rel=1e-9, abs=1e-12)
    digits = {(2, 2): 0.7071, (3, 3): 0.8960, (3, 4): 0.8853, (4, 4): 0.9561}
    for (players, b), radius in digits.items():
        assert buffer_radius(players, b) == pytest.approx(radius, abs=5e-5)
    for players in range(2, 9):
        assert buffer_radius(players, players - 1) == pytest.approx(1.0)
        assert all((buffer_radius(players, b) < 1.0 - 1e-6) == (b >= players) for b in range(1, 12))
        slow = buffer_errors(players, players, 400)
        assert abs(slow[-1]) ** (1 / 400) == pytest.approx(buffer_radius(players, players), rel=0.03)


def test_messages_hold_sums_only():
    """d numbers down, d up for each player that moves; the predictor is a model that predicts."""
    problem = problem_of(game(1))
    turn, parallel = (run(IRMGame(order=order), problem, rounds=4, tol=0.0).trace for order in ("in turn", "parallel"))
    assert (turn.floats_down[-1], turn.floats_up[-1]) == (8, 8)
    assert (parallel.floats_down[-1], parallel.floats_up[-1]) == (16, 16)
    buffered = run(FLGame(buffer=2), problem, rounds=4, tol=0.0)
    assert (buffered.trace.floats_down[-1], buffered.trace.floats_up[-1]) == (16, 16)
    np.testing.assert_allclose(buffered.model().coef, problem.predictor(buffered.w))


def test_a_start_chooses_among_equilibria():
    problem = problem_of(game(286))
    for q in (problem.equilibria()[0], problem.equilibria()[2]):
        found = run(IRMGame(), problem, start=q.w, tol=1e-9)
        assert found.rounds == 0
        nudged = run(IRMGame(), problem, start=np.clip(q.w + 1e-4, -1.0, 1.0), tol=1e-9, rounds=3000)
        np.testing.assert_allclose(problem.predictor(nudged.w), q.predictor, atol=1e-6)


def game_trial(rng):
    """A random game: dynamics end at an equilibrium that the enumeration lists, or say that they repeat themselves."""
    players, d = [(2, 2), (2, 2), (2, 3), (3, 2)][rng.integers(4)]
    p = game(int(rng.integers(2**31)), players, d, float(rng.choice([0.5, 1.0, 2.0])))
    problem = problem_of(p)
    listed = np.array([q.predictor for q in problem.equilibria()])
    assert len(listed) >= 1, "no equilibrium"
    L = max(np.linalg.eigvalsh(S)[-1] for S in problem.players.S)
    play = GradientResponse(1.0 / (players * L))
    out = {"equilibria": len(listed)}
    for name, method in {
        "in turn": IRMGame(),
        "buffer": FLGame(buffer=2 * players),
        "gradient": IRMGame(order="parallel", response=play),
    }.items():
        found = [run(method, problem, tol=1e-9, rounds=2000, record_every=20, seed=s, progress=False) for s in (0, 1)]
        assert found[0].status is found[1].status and found[0].rounds == found[1].rounds
        assert found[0].status.name != "DIVERGED"
        if found[0].status.name == "CONVERGED":
            w = found[0].w
            assert problem.regrets(w).sum() <= 1e-9
            away = np.abs(listed - problem.predictor(w)).max(axis=1).min()
            out[f"{name}: distance"] = float(away)
            assert away <= 1e-3, (name, away)
        out[f"{name}: {found[0].status.name}"] = 1
    return out


# ---------------------------------------------------------------- what is refused


def test_refusals():
    rows = [([[1.0, 0.0], [0.5, 2.0]], [1.0, -1.0])] * 2
    fed = Federation.from_clients(rows)
    for args, error, words in [
        ((fed, Squared(), 0.0), ValueError, "GameProblem.bound must be"),
        ((fed, Squared(), np.inf), ValueError, "GameProblem.bound must be"),
        ((fed, Squared(), 1.0, "mean"), ValueError, "GameProblem.predictor must be"),
        ((fed, Softmax(2), 1.0), (TypeError, ValueError), "label|one output"),
        ((fed, Hinge(), 1.0), (TypeError, ValueError), "curvature|Hinge"),
        ((Federation.from_clients(rows, domains=["a", "a"]), Squared(), 1.0), ValueError, "one client per domain"),
    ]:
        with pytest.raises(error, match=words):
            GameProblem(*args)
    problem = GameProblem(fed, Logistic(), 1.0)
    with pytest.raises(TypeError, match=r"response must be exact.*take GradientResponse"):
        run(IRMGame(), problem)
    with pytest.raises(TypeError, match="quadratic"):
        problem.equilibria()
    with pytest.raises(TypeError, match="wrap it: GameProblem"):
        run(FLGame(buffer=2), problem.risk)
    with pytest.raises(ValueError, match="uncorrelated features"):
        GameProblem(fed, Squared(), 1.0).uncorrelated()
    with pytest.raises(ValueError, match=r"at most 100,000 patterns"):
        equilibria(Players(np.tile(np.eye(6), (3, 1, 1)), np.ones((3, 6)), np.ones(3), 1.0))
    for make, words in [
        (lambda: IRMGame(order="both"), "IRMGame.order"),
        (lambda: IRMGame(response=0.1), "be BestResponse"),
        (lambda: FLGame(buffer=0), "FLGame.buffer"),
        (lambda: IRMGame(response=GradientResponse(-1.0)), "response.step_size"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            make()
    assert IRMGame(response=BestResponse()) == IRMGame()


@pytest.mark.parametrize("bound", [1e8, 1e100])
def test_in_wide_boxes_strategies_are_bounded_and_come_back(bound):
    """Three answer at once, w^k <- c_k less the others' sum: their sum is multiplied by -2 until the box stops them."""
    fed = federation_of_moments(np.ones((3, 1, 1)), [[0.2], [0.9], [0.5]], [1.0] * 3)
    problem = GameProblem(fed, Squared(), bound)
    result = run(IRMGame(order="parallel"), problem, rounds=1000, tol=1e-9)
    assert (result.status.name, result.period) == ("CYCLE", 2)
    assert (np.abs(result.w) == bound).all() and result.trace.value[-1] > 1e10
