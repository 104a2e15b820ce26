"""Clients of VIRTUAL that are minimised together: no bit depends on who else is there."""

from concurrent.futures import ThreadPoolExecutor

import mpmath as mp
import numpy as np
import pytest

from fedconvex import Federation, Logistic
from fedconvex.datasets import logistic_federation
from fedconvex.draws import Draws
from fedconvex.methods import VIRTUAL
from fedconvex.problems import GaussHermite, GaussianPosteriorProblem, JaakkolaJordan
from fedconvex.solvers.posteriors import free_energy_rounding, many_energies
from fedconvex.solvers.posteriors.expected_losses import NormalNoise, gauss_hermite
from fedconvex.solvers.posteriors.free_energy import Energy, Fit, Rows, gradient, minimise, slope_and_curvature
from fedconvex.solvers.posteriors.free_energy_rounding import Block, Parts, gradient_bound
from fedconvex.solvers.posteriors.gaussians import Gaussian
from fedconvex.solvers.posteriors.many_energies import ManyEnergies, Points, minimise_each
from fedconvex.solvers.posteriors.mean_steps import RowSpace

D = 4
SIZES = (9, 2, 30, 5, 1, 12)  # with diagonal precisions, those of fewer than four rows have systems among rows


PRIVATE = [False, True]


def clients_of(full, private, seed=0):
    """Rows, cavities and starting points of some clients, and the prior of their private parameters."""
    rng = np.random.default_rng(seed)
    gaussian = lambda m, P: Gaussian(m, P * np.eye(D) if full else np.full(D, P))  # noqa: E731
    rows, cavities, starts = [], [], []
    for n in SIZES:
        y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
        held = rng.normal(size=n), rng.uniform(0.0, 1.0, n)  # of the scores
        rows.append(Rows(rng.normal(size=(n, D)), y, rng.uniform(0.5, 2.0, n), *held))
        A = rng.normal(size=(D, D))
        cavities.append(Gaussian(rng.normal(size=D), A @ A.T + np.eye(D) if full else rng.uniform(0.5, 3.0, D)))
        starts.append((gaussian(np.full(D, 0.3), 2.0), (gaussian(rng.normal(size=D), 3.0),) * private))
    return rows, cavities, starts, gaussian(np.zeros(D), 1.5) if private else None


def same(a, b):
    """Whether two fits have the same bits."""
    pairs = [(a[name], b[name]) for name in range(2, 5)]
    for one, other in ((a.q, b.q), *zip(a.c, b.c, strict=True), *zip(a.directions, b.directions, strict=True)):
        pairs += zip(one, other, strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("expected", [GaussHermite(20), JaakkolaJordan(), NormalNoise(0.7)])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("private", PRIVATE)
def test_minimisers_are_those_of_every_client_alone(full, private, expected, monkeypatch):
    rows, cavities, starts, own = clients_of(full, private)
    systems = [Energy.of(p, own, [mine], expected).systems for p, mine in zip(cavities, rows, strict=True)]
    assert [isinstance(s, RowSpace) for s in systems] == [not full and n < D for n in SIZES]
    together = minimise_each(cavities, own, rows, expected, starts)
    monkeypatch.setattr(many_energies, "_ROWS", 40)
    again = minimise_each(cavities, own, rows, expected, starts)
    assert all(same(a, b) for a, b in zip(again, together, strict=True))
    for p, mine, start, fit in zip(cavities, rows, starts, together, strict=True):
        assert same(minimise_each([p], own, [mine], expected, [start])[0], fit)
        one = minimise(p, own, [mine], expected, start)
        for a, b in zip((fit.q, *fit.c), (one.q, *one.c), strict=True):
            np.testing.assert_allclose(a.mean, b.mean, rtol=1e-10, atol=1e-11)
            np.testing.assert_allclose(a.precision, b.precision, rtol=1e-10, atol=1e-11)
        assert fit.value == pytest.approx(one.value, rel=1e-12, abs=1e-12) and fit.gradient <= 1e-10 * fit.size


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("private", PRIVATE)
def test_points_are_measured_as_one_by_one(full, private):
    rows, cavities, starts, own = clients_of(full, private, 1)
    several = [k for k, n in enumerate(SIZES) if n >= D]
    stack = lambda blocks: Points(*(np.array([[g[i] for g in each] for each in blocks]) for i in (0, 1)))  # noqa: E731
    prior = stack([(cavities[k], own) if private else (cavities[k],) for k in several])
    many = ManyEnergies(prior, [rows[k] for k in several], GaussHermite(20))
    found, failed = many.measured(np.arange(len(several)), stack([(starts[k][0], *starts[k][1]) for k in several]))
    assert not failed
    for i, k in enumerate(several):
        one = Energy.of(cavities[k], own, [rows[k]], GaussHermite(20)).at(*starts[k])
        for name in ("value", "gradient", "size"):
            assert getattr(found, name)[i] == pytest.approx(getattr(one, name), rel=1e-13)
        for a, b in zip(zip(found.step[i], found.towards[i], strict=True), one.directions, strict=True):
            np.testing.assert_allclose(a[0], b[0], rtol=1e-12, atol=1e-13)
            np.testing.assert_allclose(a[1], b[1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("private", PRIVATE)
def test_one_that_fails_changes_no_other(full, private):
    rows, cavities, starts, own = clients_of(full, private)
    before = minimise_each(cavities, own, rows, GaussHermite(20), starts)
    bad = [cavities[0]._replace(precision=-cavities[0].precision), *cavities[1:]]
    failed, *others = minimise_each(bad, own, rows, GaussHermite(20), starts)
    assert isinstance(failed, (np.linalg.LinAlgError, ValueError))
    assert all(isinstance(fit, Fit) and same(fit, old) for fit, old in zip(others, before[1:], strict=True))


@pytest.mark.parametrize("full", [False, True])
def test_extrapolation_by_triangles_is_least_squares(full):
    """With dependent steps too, and more steps than numbers."""
    rng = np.random.default_rng(3)
    for shape in ((3, 4, 12), (2, 7, 4)):
        rows = rng.normal(size=shape)
        rows[1, 2] = 2.0 * rows[1, 0] if full else rows[1, 2]
        for found, mine in zip(many_energies._least_squares(rows), rows, strict=True):
            exact = np.linalg.lstsq(mine[:-1].T, mine[-1], rcond=1e-10)[0]
            np.testing.assert_allclose(found, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("private", [None, 2.0])
def test_certificates_do_not_depend_on_who_is_looked_at_together(covariance, private, monkeypatch):
    """Clients of unequal sizes, all at once and one by one; and the norm is that of the gradient, but for rounding."""
    rng = np.random.default_rng(5)
    pairs = [(X, np.where(X[:, 0] > 0.0, 1.0, -1.0)) for X in (rng.normal(size=(n, D)) for n in (7, 4, 7, 9, 7))]
    fed = Federation.from_clients(pairs)
    problem = GaussianPosteriorProblem(fed, Logistic(), private_precision=private, covariance=covariance)
    full, P = covariance == "full", rng.uniform(1.0, 2.0, D)
    found = problem.posterior(Gaussian(rng.normal(size=D), np.diag(P) if full else P))
    square, slopes, curvatures = 0.0, np.zeros(D), 0.0
    for rows, c in problem.blocks(found.private):
        _, g, H = slope_and_curvature(problem.expected, rows, found.q, c, full)
        slopes, curvatures = slopes + g, curvatures + H
        square += 0.0 if c is None else gradient(c, problem.private, g, H).square
    square += gradient(found.q, problem.prior, slopes, curvatures).square
    assert square < 2.0 * problem.tau * found.gap < square * (1.0 + 1e-10)
    monkeypatch.setattr(free_energy_rounding, "_ROWS", 1)
    monkeypatch.setattr(many_energies, "_ROWS", 1)
    again = problem.posterior(found.q)
    assert (again.value, again.gap, again.rounding) == (found.value, found.gap, found.rounding)


def test_moments_of_a_row_do_not_depend_on_others():
    rng = np.random.default_rng(2)
    mu, v, y = 3.0 * rng.normal(size=900), rng.uniform(0.0, 4.0, 900), np.where(rng.random(900) < 0.5, 1.0, -1.0)
    every = GaussHermite().moments(mu, v, y)
    for n in (399, 401, 402, 801):
        assert all(
            np.array_equal(a, e[:n]) for a, e in zip(GaussHermite().moments(mu[:n], v[:n], y[:n]), every, strict=True)
        )
    for i in (0, 1, 63, 64, 399, 400, 402, 899):
        alone = GaussHermite().moments(mu[i : i + 1], v[i : i + 1], y[i : i + 1])
        assert [float(a[0]) for a in alone] == [float(e[i]) for e in every]


def test_a_posterior_that_has_diverged_gives_no_answers():
    made = logistic_federation(n_clients=3, n_features=2, rows_per_client=5, seed=0)
    problem, method = GaussianPosteriorProblem(made.federation, Logistic()), VIRTUAL(rho=0.5)
    state = method.init(problem, np.zeros((2, 2)))
    message = method.broadcast(state._replace(precision=state.precision * np.array([[1.0], [-1.0]])))
    clients = np.broadcast_to(np.arange(3), (2, 3))
    draws = Draws(np.uint64(1), np.arange(2), 0)
    reply, memory = method.local(problem, message, clients, method.memory(problem, 2), draws)
    assert np.isfinite(reply.shift[0]).all() and np.isnan(reply.shift[1]).all() and np.isnan(reply.precision[1]).all()
    assert memory.shift[0].any() and not memory.shift[1].any()


def test_threads_have_rooms_of_their_own():
    rng = np.random.default_rng(6)
    given = [(rng.normal(size=n), rng.uniform(0.1, 4.0, n), np.ones(n)) for n in rng.integers(1, 500, 40)]
    expected = [GaussHermite().moments(*one) for one in given]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: GaussHermite().moments(*one), given * 5))
    for one, other in zip(found, expected * 5, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_margins_far_from_zero():
    """Where e^-m leaves double precision, and where its differences vanish: against 400 digits."""
    mu, sd = np.array([-5e3, -705.0, 705.0, 500.0, -30.0, 2.0]), np.array([3.0, 2.0, 1e-160, 0.0, 1e-9, 4.0])
    found = GaussHermite(20).moments(mu, sd * sd, np.ones(6))
    z, weight = (list(map(mp.mpf, given.tolist())) for given in gauss_hermite(20))
    with mp.workdps(400):
        for i, (m, s) in enumerate(zip(mu.tolist(), np.maximum(sd, 1e-100).tolist(), strict=True)):
            e = [mp.exp(-(m + s * t)) for t in z]
            value = sum(w * mp.log1p(x) for w, x in zip(weight, e, strict=True))
            slope = -sum(w * x / (1 + x) for w, x in zip(weight, e, strict=True))
            bent = -sum(w * t * x / (1 + x) for w, t, x in zip(weight, z, e, strict=True)) / mp.mpf(s)
            if s == 1e-100:
                bent = mp.exp(-m) / (1 + mp.exp(-m)) ** 2
            for got, exact in zip((f[i] for f in found), (value, slope, bent), strict=True):
                assert abs(got - exact) <= 1e-12 * abs(exact) + 1e-300, (m, s, got, exact)


@pytest.mark.parametrize("private", [None, 2.0])
def test_parts_of_the_gradient_of_several_clients(private):
    made = logistic_federation(n_clients=3, n_features=2, rows_per_client=5, seed=0)
    problem = GaussianPosteriorProblem(made.federation, Logistic(), private_precision=private, covariance="full")
    q = Gaussian(np.array([0.3, -1.0]), np.array([[2.0, 0.5], [0.5, 1.0]]))
    together = problem.gradient_parts(q, np.array([2, 0]))
    for i, k in enumerate((2, 0)):
        for many, one in zip(together, problem.gradient_parts(q, k), strict=True):
            np.testing.assert_array_equal(many[i], one)


def test_allowances_of_all_clients_are_counted():
    """At a minimum whose gradient is zero: 3 and 4 of the slopes of two clients, 1 and 2 of their values."""
    two, none = np.full(2, 2.0), np.zeros(2)
    block = Block(Gaussian(none, two), Gaussian(none, np.ones(2)), none, np.ones(2), 0.0)
    offs = Parts(np.array([1.0, 2.0]), np.diag([3.0, 4.0]), np.zeros((2, 2)))
    assert gradient_bound(offs, [(block, 0.0)]) == (pytest.approx(5.0, rel=1e-12), pytest.approx(3.0, rel=1e-12))
    bent = offs._replace(slope=np.zeros((2, 2)), curvature=np.diag([5.0, 12.0]))  # times roots of 1/2
    assert gradient_bound(bent, [(block, 0.0)])[0] == pytest.approx(13.0 / np.sqrt(2.0), rel=1e-12)
    at, prior = (Gaussian(*(np.array([v, v]) for v in g)) for g in block[:2])
    both = Block(at, prior, np.zeros((2, 2)), np.ones((2, 2)), 0.0)
    norm, value = gradient_bound(offs, [(block, 0.0), (both, none)])  # those of the c_k have their own client's
    assert norm == pytest.approx(np.sqrt(50.0), rel=1e-12) and value == pytest.approx(3.0, rel=1e-12)


def test_a_part_of_the_gradient_that_fails_is_missing_alone(monkeypatch):
    """The others answer what they do where nothing fails."""
    fed = logistic_federation(n_clients=3, seed=2).federation
    problem, method, clients = GaussianPosteriorProblem(fed, Logistic()), VIRTUAL(), np.arange(3)[None]
    message = method.broadcast(method.init(problem, np.zeros((1, fed.d))))

    def answers():
        memory = method.memory(problem, 1)
        return method.local(problem, message, clients, memory, Draws(0, np.zeros(1, dtype=np.int64), 1))

    (whole, kept), parts = answers(), problem.gradient_parts

    def fails(q, k):
        if 1 in np.ravel(k):
            raise np.linalg.LinAlgError("of client 1")
        return parts(q, k)

    monkeypatch.setattr(problem, "gradient_parts", fails)
    reply, memory = answers()
    for a, b in (*zip(reply, whole, strict=True), (memory.precision, kept.precision), (memory.shift, kept.shift)):
        np.testing.assert_array_equal(a[0, [0, 2]], b[0, [0, 2]])
    assert all(np.isnan(v[0, 1]).all() for v in reply) and not memory.precision[0, 1].any()
