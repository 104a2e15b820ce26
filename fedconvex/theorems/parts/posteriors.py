"""What theorems on VIRTUAL share: instances, and runs with what clients keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedconvex.driver.rounds import Engine
from fedconvex.problems import GaussianPosteriorProblem
from fedconvex.solvers.damping import site_map
from fedconvex.solvers.posteriors.free_energy import slope_and_curvature
from fedconvex.solvers.posteriors.gaussians import Gaussian, divergence, times, unpack
from fedconvex.theorems.kit import *


class Step(NamedTuple):
    """A state of a run, with what its clients keep."""

    state: Any
    shifts: np.ndarray  # (K, d) of the sites
    private: tuple[Gaussian, ...]  # c_k
    asked: frozenset[int]  # clients that were asked so far


def problem_of(s: Setting) -> GaussianPosteriorProblem:
    """Return the setting's problem."""
    return s.problem  # type: ignore[return-value]


def steps_of(s: Setting, rounds: int) -> list[Step]:
    """Run the method and return all its states."""
    problem, out = problem_of(s), []
    engine = Engine(s.method, problem, np.uint64(s.seed), 1, 1)
    d, seen = problem.federation.d, np.zeros(problem.federation.K, bool)
    for _, state in engine.loop(engine.start(s.start), 0, rounds):
        kept: Any = engine.memory
        seen |= np.abs(kept.shift[0]).sum(axis=1) > 0.0
        private = tuple(
            Gaussian(m.copy(), unpack(P.copy(), d, problem.diagonal))
            for m, P in zip(kept.c_mean[0], kept.c_precision[0], strict=True)
            if m.size
        )
        out.append(Step(state, kept.shift[0].copy(), private, frozenset(np.flatnonzero(seen).tolist())))
    return out


def free_energy(problem: GaussianPosteriorProblem, step: Step) -> float:
    """Return the free energy of s and of the c_k that the clients keep."""
    q = problem.posterior(step.state).q
    total = divergence(q, problem.prior) + sum(divergence(c, problem.private) for c in step.private)
    for rows, c in problem.blocks(step.private):
        total += slope_and_curvature(problem.expected, rows, q, c, False)[0]
    return total


def fixed_shifts(problem: GaussianPosteriorProblem) -> np.ndarray:
    """Return the shifts of the sites that stand still at the minimum, (K, d)."""
    best, out = problem.solve().posterior, []
    assert best is not None
    for rows, c in problem.blocks(best.private):
        _, g, B = slope_and_curvature(problem.expected, rows, best.q, c, not problem.diagonal)
        out.append(times(B, best.mean) - g)
    return np.array(out)


def shift_map(problem: GaussianPosteriorProblem, rho: float) -> np.ndarray:
    """Return I - rho (I - T), which a round of everybody does to the errors of all shifts, (K d, K d)."""
    fed, private = problem.federation, problem.private
    A = [unpack(packed, fed.d, False) for packed in problem.statistic("curvature")]
    T = site_map(A, problem.prior.precision, None if private is None else private.precision, problem.diagonal)
    return (1.0 - rho) * np.eye(len(T)) + rho * T


def posterior_space(method: Callable[..., MethodRule], rounds: tuple[int, int], **space: Any) -> Space:
    """Return where to look for sharp posteriors; numbers of the method are given as ``knobs``."""
    more: dict[str, Any] = {
        "tau": Real(0.1, 10.0),
        "private": Real(0.1, 10.0),
        "alone": Whole(0, 1),
        "full": Whole(0, 1),
    }
    knobs = space.pop("knobs", {})

    def make(tiny: Tiny) -> GaussianPosteriorProblem:
        k = tiny.knobs
        own = {} if k["alone"] else {"private_precision": k["private"]}
        shape = "full" if k["full"] else "diagonal"
        fed, loss = tiny.problem().federation, LOSSES[tiny.loss]()
        return GaussianPosteriorProblem(fed, loss, prior_precision=k["tau"], covariance=shape, **own)

    def of(k: Mapping[str, Any]) -> MethodRule:
        return method(**{name: value for name, value in k.items() if name in knobs})

    return Space(of, more | knobs, rounds=rounds, problem=make, start=from_zero, **space)


# ---------------------------------------------------------------- instances


def _models(K: int, d: int, n: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Clients with models around a common one, and real targets."""
    rng = np.random.default_rng(seed)
    common, pairs = rng.normal(size=d), []
    for _ in range(K):
        X = rng.normal(size=(n, d))
        pairs.append((X, X @ (common + 0.4 * rng.normal(size=d)) + 0.5 * rng.normal(size=n)))
    return pairs


@example("personal lines", "3 clients of 8 rows, Bayesian linear model with private parameters, full covariance")
def personal_lines() -> GaussianPosteriorProblem:
    """Private parameters explain much: Q = 2."""
    fed = Federation.from_clients(_models(3, 2, 8, 0))
    return GaussianPosteriorProblem(
        fed, Squared(), prior_precision=0.5, private_precision=2.0, noise_variance=0.25, covariance="full"
    )


@example("equal designs", "3 clients of 2 equal rows, Bayesian linear model with private parameters")
def equal_designs() -> GaussianPosteriorProblem:
    """Return one feature with A_k = 10, Q = 2, P = 1/2: kappa = 1/(1 - r) and (1 - 3 r)/(1 - r), r = (100/12)/30.5."""
    X = np.sqrt(5.0) * np.ones((2, 1))
    fed = Federation.from_clients([(X, [y, y + 1.0]) for y in (-1.0, 0.5, 2.0)])
    return GaussianPosteriorProblem(fed, Squared(), prior_precision=0.5, private_precision=2.0, covariance="full")


@example("correlated features", "5 equal designs with correlations of 0.95, Bayesian linear model, diagonal")
def correlated_features() -> GaussianPosteriorProblem:
    """Return clients whose rounds without damping diverge: errors grow by 4 l/(6 + l), l = 0.95 (d - 1)."""
    d, c, rng = 4, 0.95, np.random.default_rng(0)
    X = np.linalg.cholesky(c * np.ones((d, d)) + (1.0 - c) * np.eye(d)).T
    return GaussianPosteriorProblem(Federation.from_clients([(X, rng.normal(size=d)) for _ in range(5)]), Squared())


@example("faint rows", "2 clients with features of a hundredth, Bayesian logistic model")
def faint_rows() -> GaussianPosteriorProblem:
    """Return rows beside which the prior has nearly all curvature: the certificate is nearly attained."""
    pairs = [(0.01 * X, np.where(y > 0.0, 1.0, -1.0)) for X, y in _models(2, 2, 20, 1)]
    return GaussianPosteriorProblem(Federation.from_clients(pairs), Logistic())


@example("votes", "3 clients of 15 rows, Bayesian logistic model with private parameters, diagonal")
def votes() -> GaussianPosteriorProblem:
    """Return a posterior whose expectations are quadratures."""
    pairs = [(X, np.where(y > 0.0, 1.0, -1.0)) for X, y in _models(3, 2, 15, 2)]
    return GaussianPosteriorProblem(Federation.from_clients(pairs), Logistic(), private_precision=4.0)


@example("hospitals' posterior", "breast_cancer, 8 hospitals, Bayesian linear model, three features", "real")
def hospitals() -> GaussianPosteriorProblem:
    """Take the first three features; sizes differ much."""
    return GaussianPosteriorProblem(_three_features(), Squared(), prior_precision=5.0)


@example("hospitals' own lines", "breast_cancer, 8 hospitals, private parameters, full covariance", "real")
def personal_hospitals() -> GaussianPosteriorProblem:
    """Every hospital has private parameters; the first three features."""
    fed = _three_features()
    return GaussianPosteriorProblem(fed, Squared(), prior_precision=5.0, private_precision=20.0, covariance="full")


def _three_features() -> Federation:
    fed = breast_cancer.make().federation
    return Federation.from_clients([(fed.X[a:b, :3], fed.y[a:b]) for a, b in pairwise(fed.ptr)])
