"""Clients of VIRTUAL that are minimised together: no bit depends on who else is there."""

import mpmath as mp
import numpy as np
import pytest

from fedconvex import Logistic
from fedconvex.datasets import logistic_federation
from fedconvex.draws import Draws
from fedconvex.methods import VIRTUAL
from fedconvex.problems import GaussHermite, GaussianPosteriorProblem, JaakkolaJordan
from fedconvex.solvers.posteriors import many_energies
from fedconvex.solvers.posteriors.expected_losses import NormalNoise, gauss_hermite
from fedconvex.solvers.posteriors.free_energy import Energy, Fit, Rows, minimise
from fedconvex.solvers.posteriors.gaussians import Gaussian
from fedconvex.solvers.posteriors.many_energies import at_once, minimise_each
from fedconvex.solvers.posteriors.mean_steps import RowSpace

D = 4
SIZES = (9, 2, 30, 5, 1, 12)  # with diagonal precisions, those of fewer than four rows have systems among rows


def clients_of(full, seed=0):
    """Rows and cavities of some clients, and where they start."""
    rng = np.random.default_rng(seed)
    rows, cavities = [], []
    for n in SIZES:
        y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
        held = rng.normal(size=n), rng.uniform(0.0, 1.0, n)  # of the scores
        rows.append(Rows(rng.normal(size=(n, D)), y, rng.uniform(0.5, 2.0, n), *held))
        A = rng.normal(size=(D, D))
        cavities.append(Gaussian(rng.normal(size=D), A @ A.T + np.eye(D) if full else rng.uniform(0.5, 3.0, D)))
    return rows, cavities, Gaussian(np.full(D, 0.3), 2.0 * np.eye(D) if full else np.full(D, 2.0))


def same(a, b):
    """Whether two fits have the same bits."""
    (da, Pa), (db, Pb) = a.directions[0], b.directions[0]
    pairs = zip((*a.q, a.value, a.gradient, a.size, da, Pa), (*b.q, b.value, b.gradient, b.size, db, Pb), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("expected", [GaussHermite(20), JaakkolaJordan(), NormalNoise(0.7)])
@pytest.mark.parametrize("full", [False, True])
def test_minimisers_are_those_of_every_client_alone(full, expected, monkeypatch):
    rows, cavities, start = clients_of(full)
    systems = [Energy.of(p, None, [mine], expected).systems for p, mine in zip(cavities, rows, strict=True)]
    assert [isinstance(s, RowSpace) for s in systems] == [not full and n < D for n in SIZES]
    together = minimise_each(cavities, rows, expected, start)
    monkeypatch.setattr(many_energies, "_ROWS", 40)
    assert all(same(a, b) for a, b in zip(minimise_each(cavities, rows, expected, start), together, strict=True))
    for p, mine, fit in zip(cavities, rows, together, strict=True):
        assert same(minimise_each([p], [mine], expected, start)[0], fit)
        one = minimise(p, None, [mine], expected, (start, ()))
        np.testing.assert_allclose(fit.q.mean, one.q.mean, rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose(fit.q.precision, one.q.precision, rtol=1e-10, atol=1e-11)
        assert fit.value == pytest.approx(one.value, rel=1e-12, abs=1e-12) and fit.gradient <= 1e-10 * fit.size


@pytest.mark.parametrize("full", [False, True])
def test_points_are_measured_as_one_by_one(full):
    rows, cavities, start = clients_of(full, 1)
    energies = [Energy.of(p, None, [mine], GaussHermite(20)) for p, mine in zip(cavities, rows, strict=True)]
    for energy, fit in zip(energies, at_once(energies, [start] * len(energies)), strict=True):
        one = energy.at(start, ())
        for name in ("value", "gradient", "size"):
            assert getattr(fit, name) == pytest.approx(getattr(one, name), rel=1e-13)
        for a, b in zip(fit.directions[0], one.directions[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("full", [False, True])
def test_one_that_fails_changes_no_other(full):
    rows, cavities, start = clients_of(full)
    before = minimise_each(cavities, rows, GaussHermite(20), start)
    bad = [cavities[0]._replace(precision=-cavities[0].precision), *cavities[1:]]
    failed, *others = minimise_each(bad, rows, GaussHermite(20), start)
    assert isinstance(failed, (np.linalg.LinAlgError, ValueError))
    assert all(isinstance(fit, Fit) and same(fit, old) for fit, old in zip(others, before[1:], strict=True))


def test_moments_of_a_row_do_not_depend_on_others():
    rng = np.random.default_rng(2)
    mu, v, y = 3.0 * rng.normal(size=200), rng.uniform(0.0, 4.0, 200), np.where(rng.random(200) < 0.5, 1.0, -1.0)
    every = GaussHermite().moments(mu, v, y)
    for n in (127, 129, 130):
        assert all(np.array_equal(a, e[:n]) for a, e in zip(GaussHermite().moments(mu[:n], v[:n], y[:n]), every, strict=True))
    for i in (0, 1, 63, 64, 127, 128, 130, 199):
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
