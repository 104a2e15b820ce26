"""What every method must keep to, and what FedAvg must reduce to; references are plain NumPy, free of kernels."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import re
import types
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp

import fedconvex.methods
from fedconvex import (
    FedAvg,
    Federation,
    FedSGD,
    GradientDescent,
    HybridFederation,
    Logistic,
    Problem,
    Softmax,
    Squared,
    VerticalFederation,
    run,
)
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import participants
from fedconvex.methods import (
    AFL,
    DANE,
    DIANA,
    EF21,
    FISTA,
    FSVRG,
    GIANT,
    MOCHA,
    SCAFFOLD,
    SDANE,
    SGD,
    SVRG,
    VIRTUAL,
    AcceleratedGradient,
    AcceleratedSDANE,
    AdaptiveProximal,
    AgnosticFedAvg,
    ApproxFedAvg,
    Averaging,
    ClientAdam,
    ClientMomentum,
    ClientSGD,
    Clock,
    CoCoA,
    CompressedGradientDescent,
    CoordinateMedian,
    Decay,
    Dithering,
    DynamicFedAvg,
    EntropicStep,
    ErrorFeedback,
    FedBCD,
    FedDualAvg,
    FedDyn,
    FederatedNewton,
    FedLin,
    FedMiD,
    FedMultiBoost,
    FedNL,
    FedNova,
    FedProx,
    FedSAM,
    FLGame,
    GeometricMedian,
    GradientResponse,
    HybridDualAscent,
    HyFDCA,
    IRMGame,
    IRMv1,
    JointMOCHA,
    MiniBatchSDCA,
    MiniBatchSGD,
    MultiBoost,
    OptimisticAFL,
    ProgressiveHedging,
    ProportionalSampling,
    ProximalFedSGD,
    ProximalGradient,
    ProximalPoint,
    RADFed,
    RandK,
    RankR,
    Scaffnew,
    ServerAdagrad,
    ServerAdam,
    ServerSGD,
    ServerYogi,
    SoftmaxFedAvg,
    Stragglers,
    SymmetricTopK,
    TopK,
    TrackedBlockDescent,
    TrimmedMean,
    UniformSampling,
    VerticalAcceleratedGradient,
    VerticalGradientDescent,
    VerticalNewtonCG,
    WeightedMean,
)
from fedconvex.problems import (
    Covariance,
    Dictionary,
    EnsembleProblem,
    GameProblem,
    GaussHermite,
    GaussianPosteriorProblem,
    HybridProblem,
    InvariantProblem,
    MeanRegularised,
    MultiTaskProblem,
    StumpProblem,
    VerticalProblem,
)
from fedconvex.solvers.certificates.gaps import bounded_gap
from tests import own_configurations

CONFIGURATIONS = {
    "FedAvg": FedAvg(step_size=0.2, local_steps=3),
    "FedAvg batches": FedAvg(step_size=0.2, local_steps=3, batch_size=2, participation=2),
    "FedAvg replacement": FedAvg(step_size=0.2, local_steps=3, batch_size=2, replacement=True),
    "FedAvg epochs": FedAvg(step_size=0.2, epochs=2, batch_size=3, participation=0.5),
    "FedAvg momentum": FedAvg(step_size=0.05, local_steps=2, batch_size=2, client=ClientMomentum(0.5)),
    "FedAvg Adam": FedAvg(step_size=0.05, local_steps=2, batch_size=2, client=ClientAdam()),
    "FedAvg server SGD": FedAvg(step_size=0.2, local_steps=2, server=ServerSGD(0.7, momentum=0.5)),
    "FedAvg server Nesterov": FedAvg(step_size=0.2, server=ServerSGD(0.7, momentum=0.5, nesterov=True)),
    "FedAvg server Adagrad": FedAvg(step_size=0.2, local_steps=2, server=ServerAdagrad()),
    "FedAvg server Adam": FedAvg(step_size=0.2, local_steps=2, server=ServerAdam()),
    "FedAvg server Yogi": FedAvg(step_size=0.2, local_steps=2, server=ServerYogi()),
    "FedAvg median": FedAvg(step_size=0.2, local_steps=2, participation=3, aggregation=CoordinateMedian()),
    "FedAvg trimmed": FedAvg(step_size=0.2, batch_size=2, aggregation=TrimmedMean(0.2), server=ServerSGD(0.7)),
    "FedAvg geometric": FedAvg(step_size=0.2, local_steps=2, aggregation=GeometricMedian(1e-10)),
    "FedAvg proportional": FedAvg(step_size=0.2, local_steps=2, batch_size=2, participation=ProportionalSampling(3)),
    "FedAvg decay": FedAvg(step_size=Decay(1.0, 4.0), local_steps=2, batch_size=2),
    "FedAvg decay by round": FedAvg(step_size=Decay(0.5, 1.0, 0.5, by_round=True), epochs=1, batch_size=2),
    "FedAvg shadow": FedAvg(step_size=0.2, local_steps=2, batch_size=2, shadow=True),
    "DynamicFedAvg": DynamicFedAvg(step_size=0.2, local_steps=3, batch_size=2, participation=2),
    "ProgressiveHedging": ProgressiveHedging(rho=0.5),
    "ProgressiveHedging partial": ProgressiveHedging(rho=0.5, participation=2),
    "ProgressiveHedging steps": ProgressiveHedging(rho=0.5, local_steps=3, step_size=0.2, batch_size=2),
    "FedProx": FedProx(proximal_mu=0.5, step_size=0.2, local_steps=3),
    "FedProx batches": FedProx(
        proximal_mu=0.5, step_size=0.2, epochs=2, batch_size=3, participation=2, inexactness=True
    ),
    "FedProx Adam": FedProx(proximal_mu=0.5, step_size=0.05, local_steps=2, batch_size=2, client=ClientAdam()),
    "FedProx exact": FedProx(proximal_mu=0.5, solver=ProximalPoint(), server=ServerSGD(0.7)),
    "FedProx late": FedProx(proximal_mu=AdaptiveProximal(0.2), step_size=0.2, epochs=3, stragglers=Stragglers(0.5)),
    "FedProx dropped": FedProx(proximal_mu=0.5, step_size=0.2, local_steps=3, stragglers=Stragglers(0.5, drop=True)),
    "SCAFFOLD": SCAFFOLD(step_size=0.2, local_steps=3),
    "SCAFFOLD batches": SCAFFOLD(step_size=0.2, local_steps=3, batch_size=1, participation=2),
    "SCAFFOLD option I": SCAFFOLD(step_size=0.2, epochs=2, batch_size=3, participation=2, server_step=0.5, option=1),
    "AcceleratedGradient": AcceleratedGradient(step_size=0.3, mu=0.1),
    "AcceleratedGradient convex": AcceleratedGradient(step_size=0.3, mu=0.0),
    "GIANT": GIANT(),
    "GIANT whole steps": GIANT(line_search=False, damping=0.3),
    "DANE": DANE(step_size=1.5),
    "DANE leader": DANE(step_size=0.5, leader=1),
    "DANE line search": DANE(step_size=3.0, line_search=True),
    "SDANE": SDANE(step_size=1.5),
    "SDANE nearly": SDANE(step_size=1.5, accuracy=0.5, line_search=True),
    "AcceleratedSDANE": AcceleratedSDANE(step_size=1.5),
    "AcceleratedSDANE line search": AcceleratedSDANE(step_size=3.0, line_search=True),
    "FedNL": FedNL(compressor=RankR(1)),
    "FedNL option 2": FedNL(compressor=SymmetricTopK(3), option=2, line_search=False, alpha=0.5),
    "FedNL exact start": FedNL(compressor=SymmetricTopK(2), exact_start=True, line_search=False),
    "FedLin": FedLin(step_size=0.3, local_steps=3),
    "Scaffnew": Scaffnew(step_size=0.3, probability=0.4),
    "FedNova": FedNova(step_size=0.2, epochs=2, batch_size=3),
    "FedNova batches": FedNova(step_size=0.2, local_steps=3, batch_size=2, participation=2, server_step=0.5),
    "DIANA": DIANA(step_size=0.1, compressor=RandK(1)),
    "DIANA dithering": DIANA(step_size=0.1, compressor=Dithering(2), alpha=0.3),
    "EF21": EF21(step_size=0.1, compressor=TopK(2)),
    "EF21 at random": EF21(step_size=0.1, compressor=RandK(2)),
    "CompressedGradientDescent": CompressedGradientDescent(step_size=0.1, compressor=RandK(2)),
    "ErrorFeedback": ErrorFeedback(step_size=0.1, compressor=TopK(1)),
    "FedDyn": FedDyn(alpha=0.5),
    "FedDyn steps": FedDyn(alpha=0.5, local_steps=3, step_size=0.2, participation=2),
    "FedSGD": FedSGD(step_size=0.3),
    "FederatedNewton": FederatedNewton(),
    "FedSGD partial": FedSGD(step_size=Decay(1.0, 3.0), participation=2, batch_size=2),
    "FedSAM": FedSAM(step_size=0.2, rho=0.1, local_steps=3),
    "FedSAM batches": FedSAM(step_size=Decay(1.0, 4.0), rho=Decay(0.1), local_steps=3, batch_size=2, participation=2),
    "FedSAM epochs": FedSAM(step_size=0.2, rho=0.1, epochs=2, batch_size=3, server=ServerSGD(0.7, momentum=0.5)),
    "FedSAM shadow": FedSAM(step_size=0.2, local_steps=2, batch_size=2, replacement=True, shadow=True),
    "RADFed": RADFed(step_size=0.2, redistributions=2, local_steps=3),
    "RADFed batches": RADFed(step_size=0.2, models=2, redistributions=3, local_steps=3, batch_size=2),
    "SVRG": SVRG(step_size=0.1, inner_steps=20),
    "SVRG option I": SVRG(step_size=0.1, inner_steps=20, batch_size=3, option=1),
    "FSVRG": FSVRG(step_size=0.5),
    "FSVRG unscaled": FSVRG(step_size=0.5, scaling=False),
    "FSVRG naive": FSVRG(step_size=0.1, scaling=False, local_steps=4),
    "AFL": AFL(step_size=0.1, domain_step_size=0.1),
    "AFL batches": AFL(step_size=0.1, domain_step_size=0.1, ascent=EntropicStep(), batch_size=2, radius=1.0),
    "OptimisticAFL": OptimisticAFL(step_size=0.1, domain_step_size=0.1),
    "AgnosticFedAvg": AgnosticFedAvg(step_size=0.1, domain_step_size=0.1, local_steps=2),
    "AgnosticFedAvg batches": AgnosticFedAvg(
        step_size=0.1, domain_step_size=0.1, epochs=2, batch_size=2, participation=2
    ),
    "ApproxFedAvg": ApproxFedAvg(mu=2.0, step_size=0.1, local_steps=2, batch_size=2, participation=2),
    "ApproxFedAvg frozen": ApproxFedAvg(mu=2.0, step_size=0.1, local_steps=2, frozen=True, own_domains=True),
    "SoftmaxFedAvg": SoftmaxFedAvg(mu=2.0, step_size=0.1, local_steps=2, batch_size=2, participation=2),
    "GradientDescent": GradientDescent(step_size=0.3),
    "ProximalGradient": ProximalGradient(step_size=0.3),
    "FISTA": FISTA(step_size=0.3),
    "ProximalFedSGD": ProximalFedSGD(step_size=0.3, participation=2),
    "FedMiD": FedMiD(step_size=0.2, local_steps=3),
    "FedMiD batches": FedMiD(step_size=0.2, server_step=0.5, local_steps=3, batch_size=2, participation=2),
    "FedDualAvg": FedDualAvg(step_size=0.2, local_steps=3),
    "FedDualAvg batches": FedDualAvg(step_size=0.2, server_step=0.5, local_steps=3, batch_size=2, participation=2),
    "SGD": SGD(step_size=0.1, batch_size=2, steps=3),
    "SGD replacement": SGD(step_size=Decay(1.0, 9.0), batch_size=2, steps=3, replacement=True),
    **own_configurations.declared(),
}
NODES = {  # a model per client: problems with tasks
    "MOCHA": MOCHA(),
    "MOCHA clock": MOCHA(epochs=0.7, clock=Clock(0.1, 0.9), drop=0.3),
    "MOCHA steps": MOCHA(local_steps=3, replacement=True, participation=2, sigma="rows"),
    "MOCHA theta": MOCHA(theta=0.3, drop=(0.0, 0.5, 0.0, 0.1)),
    "JointMOCHA": JointMOCHA(),
    "JointMOCHA clock": JointMOCHA(work=MOCHA(clock=Clock(0.5), drop=0.2, participation=3), eta=2.0),
    "CoCoA": CoCoA(theta=0.3),
    "MiniBatchSDCA": MiniBatchSDCA(batch_size=3),
    "MiniBatchSGD": MiniBatchSGD(step_size=0.05, batch_size=3),
}
BOOSTING = {  # ensembles: problems with sources
    "MultiBoost": MultiBoost(),
    "MultiBoost smoothed": MultiBoost(smoothing=20.0),
    "MultiBoost corrective": MultiBoost(smoothing=20.0, corrective=3),
    "FedMultiBoost": FedMultiBoost(step_size=0.4),
    "FedMultiBoost sampled": FedMultiBoost(step_size=0.4, clients_per_domain=1, classifiers=3),
}
INVARIANT = {"IRMv1": IRMv1(step_size=0.01)}  # environments
GAMES = {  # players
    "IRMGame": IRMGame(),
    "IRMGame parallel": IRMGame(order="parallel", response=GradientResponse(0.05, 2)),
    "FLGame": FLGame(buffer=3),
}
POSTERIORS = {  # Gaussian posteriors
    "VIRTUAL": VIRTUAL(),
    "VIRTUAL steps": VIRTUAL(rho=0.5, local_steps=3, step_size=0.5, participation=2),
    "VIRTUAL epochs": VIRTUAL(rho=0.5, epochs=2, batch_size=2, step_size=0.5, participation=2),
}
VERTICAL = {  # blocks of columns at their owners
    "VerticalGradientDescent": VerticalGradientDescent(step_size=0.3),
    "VerticalAcceleratedGradient": VerticalAcceleratedGradient(step_size=0.3),
    "VerticalNewtonCG": VerticalNewtonCG(),
    "FedBCD": FedBCD(local_steps=3),
    "FedBCD in turn": FedBCD(local_steps=2, order="in turn"),
    "FedBCD sampled": FedBCD(participation=2),
}
HYBRID = {  # blocks of rows and columns at their owners
    "HybridDualAscent": HybridDualAscent(batch_size=2, drop=0.2),
    "HybridDualAscent sampled": HybridDualAscent(batch_size=2, participation=2),
    "HyFDCA": HyFDCA(batch_size=3, passes=2),
    "TrackedBlockDescent": TrackedBlockDescent(step_size=0.3, local_steps=3),
}
EVERY = CONFIGURATIONS | NODES | BOOSTING | INVARIANT | GAMES | POSTERIORS | VERTICAL | HYBRID
ONE_MODEL, TASKS = ("linear", "logistic", "softmax"), ("tasks", "sparse tasks", "learned tasks")
AT_RANDOM = (SGD, SVRG, RADFed)  # random even if everybody takes part
SAMPLED = [
    n for n, m in CONFIGURATIONS.items() if getattr(m, "participation", None) is not None or isinstance(m, AT_RANDOM)
]
SAMPLED += [
    *NODES,
    "FedMultiBoost sampled",
    "VIRTUAL steps",
    *[n for n in HYBRID if n[:2] == "Hy"],
]  # nodes draw their coordinates
FEDERATED = [n for n, m in EVERY.items() if hasattr(m, "local")]


def kinds(name):
    """The kinds of problems that a configuration is for."""
    if name in CONFIGURATIONS:
        return ONE_MODEL
    if name in NODES:  # only MOCHA takes relationships that are given and those that are learned
        return {"MOCHA": TASKS, "JointMOCHA": TASKS[2:]}.get(name.split()[0], TASKS[:2])
    if name in VERTICAL:
        return ("columns", "sparse columns")
    if name in HYBRID:
        return ("blocks", "sparse blocks")
    if name in INVARIANT or name in GAMES:
        return ("environments",) if name in INVARIANT else ("players",)
    if name in POSTERIORS:
        return ("linear posterior", "logistic posterior")
    return ("classifiers",) if name.startswith("Fed") else ("classifiers", "stumps")


@functools.cache
def made(kind):
    """A small problem of a kind."""
    rng = np.random.default_rng(10)
    if kind in TASKS:
        pairs, common = [], rng.normal(size=3)
        for n in (5, 8, 4, 7):
            X = rng.normal(size=(n, 3)) * (rng.random((1, 3)) < 0.8 if kind == "sparse tasks" else 1.0)
            y = np.where(X @ (common + 0.7 * rng.normal(size=3)) + 0.4 * rng.normal(size=n) > 0, 1.0, -1.0)
            pairs.append((sp.csr_array(X) if kind == "sparse tasks" else X, y))
        relation = Covariance(0.3, 2.0) if kind == "learned tasks" else MeanRegularised(1.0, 0.4)
        return MultiTaskProblem(Federation.from_clients(pairs), Logistic(), relation, "mean")
    if kind.endswith("columns"):
        each = [rng.normal(size=(20, d)) for d in (2, 1, 3, 2)]
        each = [sp.csr_array(X * (X > 0.0)) for X in each] if kind == "sparse columns" else each
        return VerticalProblem(VerticalFederation.from_blocks(each, rng.choice([-1.0, 1.0], 20)), Logistic(), 0.1)
    if kind.endswith("blocks"):
        X, y = rng.normal(size=(20, 5)), rng.choice([-1.0, 1.0], 20)
        table = Federation(sp.csr_array(X * (X > 0.0)) if kind == "sparse blocks" else X, y, [0, 6, 13, 20])
        return HybridProblem(HybridFederation(table, [0, 2, 5], [[0, 1], [2, 0], [3, 4]]), Logistic(), 0.1)
    if kind == "environments":
        X, y, who = rng.normal(size=(60, 3)), rng.normal(size=60), np.arange(60) // 10
        return InvariantProblem(Federation.from_arrays(X, y, who, domains=who // 2), Squared(), 0.5)
    if kind == "players":
        X, y, who = rng.normal(size=(40, 3)), rng.normal(size=40), np.arange(40) // 10
        return GameProblem(Federation.from_arrays(X, y, who), Squared(), 2.0)
    if kind.endswith("posterior"):
        X, y, who = rng.normal(size=(40, 3)), rng.normal(size=40), np.arange(40) // 10
        fed = Federation.from_arrays(X, np.sign(y), who)
        if kind == "linear posterior":
            return GaussianPosteriorProblem(fed, Squared(), private_precision=2.0, covariance="full")
        return GaussianPosteriorProblem(fed, Logistic(), expectation=GaussHermite(20))
    X, domain = rng.normal(size=(90, 3)).round(1), np.arange(90) % 3
    y = np.where(X[:, 1] + X[:, 2] * (domain - 0.5) + 0.5 * rng.normal(size=90) > 0, 1.0, -1.0)
    fed = Federation.from_arrays(X, y, 100 * domain + rng.integers(0, 3, 90), domain)
    return StumpProblem(fed) if kind == "stumps" else EnsembleProblem(fed, Dictionary.stumps(fed, cuts=2))


@pytest.fixture
def case(request):
    """A configuration and a problem that it is for."""
    kind, name = request.param
    return EVERY[name], (request.getfixturevalue(kind) if kind in ONE_MODEL else made(kind)), name


def cases(names):
    """Parametrise by configuration and kind of problem; the default tier takes one kind each, in turn."""
    params = []
    for i, name in enumerate(names):
        usual = [kind for kind in kinds(name) if kind not in ("softmax", "sparse columns", "sparse blocks")]
        for kind in kinds(name):
            marks = () if kind == usual[i % len(usual)] else pytest.mark.slow
            params.append(pytest.param((kind, name), marks=marks, id=f"{kind}-{name}"))
    return pytest.mark.parametrize("case", params, indirect=True)


def test_every_exported_method_is_in_the_table():
    public = [getattr(fedconvex.methods, name) for name in fedconvex.methods.__all__]
    classes = [v for v in public if inspect.isclass(v)]
    exported = {v for v in classes if hasattr(v, "local") or hasattr(v, "round")}
    assert exported == {type(m) for m in EVERY.values()}, "add CONTRACT to the method's own tests"
    optimisers = {type(getattr(m, r)) for m in CONFIGURATIONS.values() for r in ("client", "server") if hasattr(m, r)}
    assert optimisers == {v for v in classes if hasattr(v, "move")}


def quiet(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(*args, **kwargs)


# ---------------------------------------------------------------- independent values and optima


def plain_value(problem, w):
    """F(w) from the raw rows, client by client."""
    fed, total = problem.federation, 0.0
    X = fed.X.toarray() if fed.is_sparse else fed.X
    for k in range(fed.K):
        rows = slice(fed.ptr[k], fed.ptr[k + 1])
        Z, y = X[rows] @ w.reshape(-1, fed.d).T, fed.y[rows]
        if isinstance(problem.loss, Squared):
            losses = 0.5 * (Z[:, 0] - y) ** 2
        elif isinstance(problem.loss, Logistic):
            losses = np.logaddexp(0.0, -y * Z[:, 0])
        else:
            losses = np.logaddexp.reduce(Z, axis=1) - Z[np.arange(len(y)), y.astype(int)]
        total += problem.weights[k] * losses.mean()
    return total + 0.5 * problem.l2 * float(np.sum(w * w))


def plain_optimum(problem):
    """min F by scipy (value at a point, hence never below the minimum), or in closed form for squares."""
    if isinstance(problem.loss, Squared):
        fed, H, b = problem.federation, problem.l2 * np.eye(problem.federation.d), 0.0
        for k in range(fed.K):
            X, y = fed.X[fed.ptr[k] : fed.ptr[k + 1]], fed.y[fed.ptr[k] : fed.ptr[k + 1]]
            H, b = H + problem.weights[k] * X.T @ X / len(y), b + problem.weights[k] * X.T @ y / len(y)
        return plain_value(problem, np.linalg.solve(H, b))
    w = np.zeros(problem.size)
    for _ in range(3):
        found = scipy.optimize.minimize(lambda v: plain_value(problem, v), w, method="BFGS", options={"gtol": 1e-9})
        w = found.x
    return min(found.fun, plain_value(problem, w))


@pytest.fixture(scope="module")
def optimum(problem):
    return plain_optimum(problem)


# ---------------------------------------------------------------- the contract


@cases(EVERY)
def test_same_seed_same_bits(case):
    """Also in threads, over clients and over trajectories; a trajectory alone is what it is among others."""
    method, problem, name = case
    how = {"rounds": 3, "trajectories": 2, "tol": 0}
    a, b = (quiet(method, problem, seed=6, **how) for _ in range(2))
    np.testing.assert_array_equal(a.w, b.w)
    np.testing.assert_array_equal(a.trace.value, b.trace.value)
    np.testing.assert_array_equal(a.trace.gap, b.trace.gap)
    alone = quiet(method, problem, seed=6, **(how | {"trajectories": 1}))
    np.testing.assert_allclose(alone.w, a.w[0], rtol=1e-12, atol=1e-14)
    if name in SAMPLED:
        assert np.abs(quiet(method, problem, seed=7, **how).w - a.w).max() > 1e-12
        assert np.abs(a.w[0] - a.w[1]).max() > 1e-12


@cases([*CONFIGURATIONS, *INVARIANT, *GAMES])  # the others start at zero
def test_a_trajectory_alone_is_what_it_is_among_others(case, rng):
    """From starts of their own, so that one that sees another's model differs."""
    method, problem, _ = case
    start = 0.1 * rng.normal(size=(2, *problem.model_shape))
    both = quiet(method, problem, rounds=2, tol=0, seed=6, trajectories=2, start=start)
    alone = quiet(method, problem, rounds=2, tol=0, seed=6, trajectories=range(1, 2), start=start[1])
    np.testing.assert_allclose(alone.w, both.w[1], rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.compiled
@cases(EVERY)
def test_threads_change_no_bit(case):
    method, problem, _ = case
    how = {"rounds": 3, "trajectories": 2, "tol": 0, "seed": 6}
    one = quiet(method, problem, **how)
    for threads in (2, 5):  # over clients, and over trajectories where there are fewer clients than threads
        more = quiet(method, problem, threads=threads, **how)
        np.testing.assert_array_equal(more.w, one.w)
        np.testing.assert_array_equal(more.trace.gap, one.trace.gap)


@cases(EVERY)
def test_resume(case, tmp_path):
    method, problem, _ = case
    how = {"seed": 3, "tol": 0}
    whole = quiet(method, problem, rounds=5, **how)
    quiet(method, problem, rounds=2, checkpoint=tmp_path / "c", **how)
    again = quiet(method, problem, rounds=5, checkpoint=tmp_path / "c", **how)
    np.testing.assert_array_equal(whole.w, again.w)
    for column in whole.trace:
        if column != "seconds":
            np.testing.assert_array_equal(whole.trace[column], again.trace[column])


@cases(EVERY)
def test_input_untouched(case):
    method, problem, name = case
    fed = problem.data if name in BOOSTING else problem.federation
    data = fed.digest, repr(method), dict(vars(method))
    start = {"start": np.full((2, *problem.model_shape), 0.5)} if name in CONFIGURATIONS else {}
    weights = np.array(getattr(problem, "weights", 0.0))
    quiet(method, problem, rounds=3, trajectories=2, **start)
    assert all(np.all(w == 0.5) for w in start.values())
    assert dataclasses.replace(fed).digest == data[0]
    np.testing.assert_array_equal(getattr(problem, "weights", 0.0), weights)
    assert (repr(method), dict(vars(method))) == data[1:]


AGNOSTIC = ("AFL", "Optimistic", "Agnostic", "Approx", "Softmax")  # other objectives: test_afl.py and its neighbours


@pytest.mark.parametrize("name", [n for n in CONFIGURATIONS if not n.startswith(AGNOSTIC)])
@pytest.mark.slow_unless(problem="logistic")
def test_gap_is_never_below_the_truth(problem, optimum, name):
    """Along the whole trace, for states whose objective is computed here."""
    from fedconvex import iterate

    method = CONFIGURATIONS[name]
    result = quiet(method, problem, rounds=12, tol=0, seed=1)
    for (_, state), value, gap in zip(
        iterate(method, problem, rounds=12, seed=1), result.trace.value, result.trace.gap, strict=True
    ):
        true = plain_value(problem, state.w[0])
        assert value == pytest.approx(true, rel=1e-13)
        assert gap >= true - optimum - 1e-13 * (1.0 + abs(true))
        assert gap <= true - optimum + 1e-7  # and it is of use


def test_the_gap_at_the_optimum_is_small_and_certified(problem, optimum):
    best = problem.solve()
    assert best.lower <= optimum + 1e-14
    assert best.gap <= 1e-12
    assert plain_value(problem, best.w) == pytest.approx(best.value, rel=1e-14)


class Poisson(NamedTuple):
    """A loss of a user, whose values may be negative: exp(z) - y z, the Poisson likelihood for counts y."""

    def value(self, z, y):
        return math.exp(z) - y * z

    def slope(self, z, y):
        return math.exp(z) - y

    def curvature(self, z, y):
        return math.exp(z)


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_certificates_hold_for_a_users_loss(l2):
    """With X = 1 and l2 = 0 the minimum is at w = log(mean y), F* = ybar - ybar log ybar < 0 for ybar > e."""
    y = np.array([8.0, 12.0, 10.0])
    mine = Problem(Federation(np.ones((3, 1)), y, [0, 1, 3]), Poisson(), l2)
    found = scipy.optimize.minimize_scalar(lambda w: math.exp(w) - 10.0 * w + 0.5 * l2 * w * w, bracket=(0.0, 3.0))
    assert l2 > 0 or found.fun == pytest.approx(10.0 - 10.0 * math.log(10.0))
    best = mine.solve()
    assert best.value == pytest.approx(found.fun, abs=1e-9)
    assert best.lower <= found.fun + 1e-12
    assert best.gap >= 0.0
    measured = mine.measure(np.zeros((1, 1)))
    assert measured.gap[0] >= measured.value[0] - found.fun - 1e-12
    assert run(FedSGD(step_size=0.01), mine, rounds=2, tol=1e-6).status.name == "ROUND_LIMIT"


class Bare(NamedTuple):
    """A loss of a user with nothing but value and slope, as the documentation of losses allows."""

    def value(self, z, y):
        return 0.5 * (z - y) ** 2

    def slope(self, z, y):
        return z - y


def test_a_users_loss_without_curvature_can_be_run(linear):
    """`Measure.gap`: "inf where none exists". Running must not need what only the exact solver needs."""
    mine = Problem(linear.federation, Bare(), 0.1)
    result = run(FedSGD(step_size=0.2), mine, rounds=5, tol=0)
    np.testing.assert_allclose(result.w, run(FedSGD(step_size=0.2), linear, rounds=5, tol=0).w, rtol=1e-14)


def test_the_gap_by_strong_convexity_is_attained():
    """Rows of zeros: F = 1/2 + l2 w^2/2, so that at w the gap is l2 w^2/2 = F'(w)^2/(2 l2), and no less will do."""
    flat = Problem(Federation(np.zeros((2, 1)), np.ones(2), [0, 1, 2]), Bare(), 0.1)  # no curvature: nothing is solved
    assert flat.measure(np.array([[0.3]])).gap[0] == pytest.approx(0.05 * 0.3**2, rel=1e-12)
    facts = types.SimpleNamespace(l2=0.1, strong_convexity=0.1, traits=types.SimpleNamespace(lower_bound=-math.inf))
    known = bounded_gap(facts, np.array([0.3]), 0.5, np.array([0.03]), np.zeros(1))
    assert known.gap == pytest.approx(0.05 * 0.3**2, rel=1e-12)


@pytest.mark.parametrize("name", [n for n in CONFIGURATIONS if n not in SAMPLED])
@pytest.mark.slow_unless(problem="linear")
def test_client_order_is_irrelevant(problem, name, rng):
    fed = problem.federation
    pairs = [(fed.X[a:b], fed.y[a:b]) for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]
    order = rng.permutation(fed.K)
    other = Federation.from_clients([pairs[k] for k in order], labels=fed.labels[order])
    a = quiet(CONFIGURATIONS[name], problem, rounds=4, tol=0, seed=2)
    b = quiet(CONFIGURATIONS[name], Problem(other, problem.loss, problem.l2), rounds=4, tol=0, seed=2)
    np.testing.assert_allclose(a.w, b.w, rtol=1e-9, atol=1e-11)  # Adam divides rounding by small numbers
    np.testing.assert_allclose(a.trace.value, b.trace.value, rtol=1e-10)


@pytest.mark.parametrize("name", [n for n in FEDERATED if n in CONFIGURATIONS])
@pytest.mark.slow_unless(problem="logistic")
def test_client_order_changes_no_bit(problem, name, rng):
    """Clients are listed and drawn by key: whoever is sampled, and in whatever order they were given.

    Where clients are domains, sums over domains follow their order: equal up to rounding.
    """
    fed = problem.federation
    pairs = [(fed.X[a:b], fed.y[a:b]) for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]
    order = rng.permutation(fed.K)
    other = Federation.from_clients([pairs[k] for k in order], labels=fed.labels[order])
    theirs = Problem(other, problem.loss, problem.l2)
    a, b = (quiet(CONFIGURATIONS[name], p, rounds=4, tol=0, seed=2, trajectories=2) for p in (problem, theirs))
    if name.startswith(AGNOSTIC):
        np.testing.assert_allclose(a.w, b.w, rtol=1e-11)
    else:
        np.testing.assert_array_equal(a.w, b.w)


def fresh(method, problem, R):
    """Return the first memory of the clients, None where the method keeps none."""
    return method.memory(problem, R) if hasattr(method, "memory") else None


@pytest.mark.parametrize("name", FEDERATED)
def test_server_gets_no_problem(name):
    for call in (EVERY[name].broadcast, EVERY[name].aggregate):
        assert not {"problem", "federation"} & set(inspect.signature(call).parameters)


@pytest.mark.parametrize("name", [n for n in FEDERATED if n in CONFIGURATIONS])
def test_server_never_touches_rows(problem, name, rng):
    """It answers the same after every row was overwritten."""
    method = CONFIGURATIONS[name]
    fed = problem.federation
    X, y = fed.X.copy(), fed.y.copy()
    mine = Problem(Federation(X, y, fed.ptr), problem.loss, problem.l2)
    rows = [mine.federation.X.data if sp.issparse(X) else mine.federation.X, mine.federation.y]
    draws = Draws(key_from_seed(0), np.arange(2), 1)
    state = method.init(mine, rng.normal(size=(2, *mine.model_shape)))
    clients, weights = participants(method, mine, draws)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-14)
    message = method.broadcast(state)
    reply, _ = method.local(mine, message, clients, fresh(method, mine, 2), draws)
    before = method.aggregate(state, clients, weights, reply)
    for a in rows:  # the federation's own, and whatever they are views of
        base = a
        while isinstance(base.base, np.ndarray):
            base = base.base
        base.flags.writeable = True
        base[...] = np.nan
    assert np.isnan(mine.federation.y).all()
    assert np.isnan(mine.federation.X.data if sp.issparse(X) else mine.federation.X).all()
    after = method.aggregate(state, clients, weights, reply)
    np.testing.assert_array_equal(before.w, after.w)
    assert np.isfinite(after.w).all()
    for again, sent in zip(method.broadcast(state), message, strict=True):
        np.testing.assert_array_equal(again, sent)


@cases([n for n in FEDERATED if n not in {*BOOSTING, *VERTICAL, *HYBRID}])
def test_clients_touch_only_their_own_rows(case, rng):
    """Answers of clients 0 and 1 are the same when everybody else's rows are others (for one model: NaN)."""
    method, problem, name = case
    fed, one_model = problem.federation, name in CONFIGURATIONS
    X, y = fed.X.copy(), fed.y.copy()

    def built():
        data = Federation(X, y, fed.ptr)
        if one_model:
            return Problem(data, problem.loss, problem.l2)
        if name in INVARIANT:
            parts = Federation(X, y, fed.ptr, fed.labels, fed.domain, fed.domain_labels, fed.ids)
            return InvariantProblem(parts, problem.loss, problem.penalty_weight)
        if name in GAMES:
            return GameProblem(data, problem.loss, problem.bound)
        if name in POSTERIORS:
            private = None if problem.private is None else 2.0
            how = {"private_precision": private, "covariance": problem.covariance}
            return GaussianPosteriorProblem(data, problem.loss, **how)
        return MultiTaskProblem(data, problem.loss, problem.relation, problem.normalisation)

    draws, mine = Draws(key_from_seed(0), np.arange(1), 1), built()
    start = rng.normal(size=(1, *mine.model_shape)) if one_model else np.zeros((1, *mine.model_shape))
    message = method.broadcast(method.init(mine, start))
    two = np.array([[0, 1]])
    before, _ = method.local(mine, message, two, fresh(method, mine, 1), draws)
    border = fed.ptr[2]
    if not one_model:  # problems with tasks look at all rows when they are made
        X, y = X.copy(), y.copy()
    (X.data[X.indptr[border] :] if sp.issparse(X) else X[border:])[...] = np.nan if one_model else 1e6
    y[border:] = np.nan if one_model else -y[border:]
    other = mine if one_model else built()
    after, _ = method.local(other, message, two, fresh(method, other, 1), draws)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.filterwarnings("ignore:RADFed")
@cases([n for n in FEDERATED if not n.endswith("in turn")])
def test_a_client_alone_answers_as_among_others(case):
    method, problem, name = case
    draws = Draws(key_from_seed(0), np.arange(1), 0)
    state = method.init(problem, np.zeros((1, *problem.model_shape)))
    clients, weights = participants(method, problem, draws)
    assert name in NODES or weights.sum() == pytest.approx(1.0, rel=1e-14)
    message = method.broadcast(state)
    every, _ = method.local(problem, message, clients, fresh(method, problem, 1), draws)
    alone, _ = method.local(problem, message, clients[:, 1:2], fresh(method, problem, 1), draws)
    for a, b in zip(every, alone, strict=True):
        np.testing.assert_array_equal(a[:, 1:2], b)


@pytest.mark.parametrize("name", EVERY)
def test_methods_are_frozen_values(name):
    method = EVERY[name]
    names = {n: getattr(fedconvex.methods, n) for n in fedconvex.methods.__all__}
    again = eval(repr(method), names)
    assert again == method
    assert repr(again) == repr(method)
    assert hash(again) == hash(method)
    for field in dataclasses.fields(method):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, None)
    with pytest.raises(TypeError):
        type(method)(0.1)  # keyword-only


# ---------------------------------------------------------------- pseudo-code

SHARED = {"__init__", "nodes", "optimizers", "participation", "steps", "weighting", "work"}
METHOD_FILES = [
    path
    for path in sorted(Path(fedconvex.__file__).parent.rglob("*.py"))
    if (path.parent.name == "methods" and path.stem not in SHARED)
    or ("families" in path.parts and "\n    def aggregate(" in path.read_text(encoding="utf-8"))
]


def numbers_of(source):
    """Numbers of the docstring's lines, and those that code comments refer to."""
    docstring = ast.get_docstring(ast.parse(source), clean=True)
    written = [int(n) for n in re.findall(r"^\s*(\d+)\. ", docstring, re.MULTILINE)]
    used = {int(n) for group in re.findall(r"#\s+(\d+(?:, \d+)*)$", source, re.MULTILINE) for n in group.split(", ")}
    return written, used


@pytest.mark.parametrize("path", METHOD_FILES, ids=lambda p: p.stem)
def test_code_follows_the_numbered_pseudocode(path):
    written, used = numbers_of(path.read_text())
    assert written == list(range(1, len(written) + 1))
    assert len(written) >= 2
    assert used == set(written)


def test_the_pseudocode_test_can_fail():
    assert numbers_of('"""T.\n\n1. a\n2. b\n"""\nx = 1  # 1\ny = 2  # 1, 3\n') == ([1, 2], {1, 3})


# ---------------------------------------------------------------- reductions


@pytest.mark.parametrize("weights", [None, "uniform"])
def test_one_full_step_is_gradient_descent(problem, weights):
    mine = Problem(problem.federation, problem.loss, problem.l2, weights)
    runs = [
        run(m, mine, rounds=20, tol=0)
        for m in (
            GradientDescent(step_size=0.3),
            FedSGD(step_size=0.3),
            FedAvg(step_size=0.3),
            FedAvg(step_size=0.3, epochs=1),
            FedAvg(step_size=0.3, server=ServerSGD(1.0)),
        )
    ]
    w = np.zeros(mine.model_shape)
    for _ in range(20):
        w = w - 0.3 * plain_gradient(mine, w, mine.weights)
    for r in runs:
        np.testing.assert_allclose(r.w, w, rtol=0, atol=1e-14 * (1 + np.abs(w).max()))


def test_sgd_with_all_rows_is_gradient_descent(problem):
    a = run(SGD(step_size=0.3, batch_size=problem.federation.n, steps=4), problem, rounds=5, tol=0)
    b = run(GradientDescent(step_size=0.3), problem, rounds=20, tol=0)
    np.testing.assert_allclose(a.w, b.w, rtol=0, atol=1e-14)


@pytest.mark.parametrize("E", [1, 2, 5, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("weights", [None, "uniform"])
def test_fedavg_on_quadratics_has_its_biased_fixed_point(linear, E, weights):
    """w_inf = (sum p_k C_k)^-1 sum p_k C_k w_k*, C_k = I - (I - eta H_k)^E: a client's E steps from w end at
    w_k* + (I - eta H_k)^E (w - w_k*), and the average of that is w at the fixed point.
    """
    mine, eta, d = Problem(linear.federation, Squared(), 0.1, weights), 0.2, 3
    fed, A, b = mine.federation, np.zeros((3, 3)), np.zeros(3)
    for k in range(fed.K):
        X, y = fed.X[fed.ptr[k] : fed.ptr[k + 1]], fed.y[fed.ptr[k] : fed.ptr[k + 1]]
        H = X.T @ X / len(y) + 0.1 * np.eye(d)
        C = np.eye(d) - np.linalg.matrix_power(np.eye(d) - eta * H, E)
        A += mine.weights[k] * C
        b += mine.weights[k] * C @ np.linalg.solve(H, X.T @ y / len(y))
    expected = np.linalg.solve(A, b)
    found = run(FedAvg(step_size=eta, local_steps=E), mine, rounds=600, tol=0, record_every=600).w
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert E == 1 or np.linalg.norm(expected - mine.solve().w) > 1e-4  # biased indeed


def test_equal_clients_make_fedavg_local_descent():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(6, 3)), rng.normal(size=6)
    twins = Problem(Federation.from_clients([(X, y)] * 3), Squared(), 0.1)
    a = run(FedAvg(step_size=0.2, local_steps=4), twins, rounds=5, tol=0).w
    b = run(GradientDescent(step_size=0.2), twins, rounds=20, tol=0).w
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-14)


# ---------------------------------------------------------------- FedAvg in plain NumPy


def recorded(method, n, label, seed, t):
    """What every row of a client weighs in each of its batches, (steps, n), seen through a twin of the client.

    The twin has the same number of rows and the same name, hence the same draws; but its rows are unit vectors and its
    labels one, so that a step moves coordinate i by eta (1 - w_i) times the share of row i in the batch.
    """
    twin = Problem(Federation(np.eye(n), np.ones(n), [0, n], labels=[label]), Squared())
    eta = 0.5
    how = {"step_size": eta, "client": ClientSGD(), "server": Averaging(), "participation": None, "shadow": True}
    seen = dataclasses.replace(method, **how)
    message = seen.broadcast(seen.init(twin, np.zeros((1, n))))
    one = np.zeros((1, 1), np.int64)
    path = seen.local(twin, message, one, None, Draws(key_from_seed(seed), np.arange(1), t))[0].path[0, 0]
    before = np.concatenate([np.zeros((1, n)), path[:-1]])
    shares = (path - before) / (eta * (1.0 - before))
    B = n if method.batch_size is None else method.batch_size
    B = B if method.epochs is None else min(B, n)
    sizes = np.full(len(path), B)
    if method.epochs is not None and n % B:
        sizes[-(-n // B) - 1 :: -(-n // B)] = n % B  # the last batch of a pass
    counts = np.round(shares * sizes[:, None])
    np.testing.assert_allclose(shares * sizes[:, None], counts, rtol=0, atol=1e-6)
    assert np.all(counts.sum(axis=1) == sizes)
    return counts / sizes[:, None], counts.astype(int)


@pytest.mark.parametrize("B", [1, 2, 3, 5])
def test_batches_are_what_the_docstring_says(B):
    """local_steps: fresh distinct rows; epochs: every row once a pass; replacement: independent rows, as many steps."""
    n = 5
    for seed in range(20):
        counts = recorded(FedAvg(step_size=0.1, local_steps=6, batch_size=B), n, 3, seed, 2)[1]
        assert counts.shape == (6, n)
        assert counts.max() == 1
        assert np.all(counts.sum(axis=1) == B)
        passes = recorded(FedAvg(step_size=0.1, epochs=3, batch_size=B), n, 3, seed, 2)[1]
        steps = -(-n // B)
        assert passes.shape == (3 * steps, n)
        assert np.all(passes.reshape(3, steps, n).sum(axis=1) == 1)
        drawn = recorded(FedAvg(step_size=0.1, epochs=3, batch_size=B, replacement=True), n, 3, seed, 2)[1]
        assert drawn.shape == (3 * steps, n)


@pytest.mark.parametrize("how", [{"local_steps": 3}, {"epochs": 2}, {"local_steps": 3, "replacement": True}], ids=str)
@pytest.mark.slow
def test_batches_are_uniform(how):
    """Rows, pairs of rows of one batch, and pairs of rows of the first two batches have their frequencies."""
    n, B, N = 5, 2, 600
    method = FedAvg(step_size=0.1, batch_size=B, **how)
    counts = np.array([recorded(method, n, 3, seed, 0)[1][:3] for seed in range(N)], dtype=float)
    q = B / n
    spread = 4.5  # standard errors; some 60 comparisons at a fixed set of seeds
    rows = counts[:, :2].mean(axis=0)
    assert np.abs(rows - q).max() < spread * np.sqrt(q / N)
    within = np.einsum("si,sj->ij", counts[:, 0], counts[:, 0])[np.triu_indices(n, 1)] / N
    expected = B * (B - 1) / (n * n if "replacement" in how else n * (n - 1))
    assert np.abs(within - expected).max() < spread * np.sqrt(2 * expected / N)
    across = np.einsum("si,sj->ij", counts[:, 0], counts[:, 1]) / N
    if "epochs" in how:
        assert np.all(np.diag(across) == 0)
        across, q2 = across[np.triu_indices(n, 1)], B * B / (n * (n - 1))
    else:
        q2 = q * q
    assert np.abs(across - q2).max() < spread * np.sqrt(2 * q2 / N)


def plain_gradient(problem, w, weights=None, k=None, shares=None):
    """Gradient of F, or of client k with its rows weighed by shares."""
    fed = problem.federation
    if k is None:
        return sum(p * plain_gradient(problem, w, k=j) for j, p in enumerate(weights))
    X = fed.X[fed.ptr[k] : fed.ptr[k + 1]]
    X, y = (X.toarray() if fed.is_sparse else X), fed.y[fed.ptr[k] : fed.ptr[k + 1]]
    q = np.full(len(y), 1.0 / len(y)) if shares is None else shares
    if isinstance(problem.loss, Softmax):
        Z = X @ w.T
        S = np.exp(Z - Z.max(axis=1, keepdims=True))
        S = S / S.sum(axis=1, keepdims=True) - np.eye(w.shape[0])[y.astype(int)]
        return (q[:, None] * S).T @ X + problem.l2 * w
    z = X @ w
    s = z - y if isinstance(problem.loss, Squared) else -y / (1.0 + np.exp(y * z))
    return X.T @ (q * s) + problem.l2 * w


def plain_client(opt, w, gradients, eta):
    """Local steps with the given gradient functions; every iterate."""
    m, v, path = np.zeros_like(w), np.zeros_like(w), []
    for t, gradient in enumerate(gradients, 1):
        g = gradient(w)
        if isinstance(opt, ClientSGD):
            w = w - eta(t - 1) * g
        elif isinstance(opt, ClientMomentum):
            m = opt.beta * m + g
            w = w - eta(t - 1) * m
        else:
            m = opt.beta1 * m + (1 - opt.beta1) * g
            v = opt.beta2 * v + (1 - opt.beta2) * g**2
            w = w - eta(t - 1) * (m / (1 - opt.beta1**t)) / (np.sqrt(v / (1 - opt.beta2**t)) + opt.epsilon)
        path.append(w)
    return path


def plain_server(opt, memory, w, delta):
    """Reddi et al. (2021), Algorithm 2, and momentum."""
    m, v = memory
    if isinstance(opt, Averaging):
        return memory, w + delta
    if isinstance(opt, ServerSGD):
        m = opt.momentum * m + delta
        return (m, v), w + opt.step_size * (opt.momentum * m + delta if opt.nesterov else m)
    m = opt.beta1 * m + (1 - opt.beta1) * delta
    if isinstance(opt, ServerAdagrad):
        v = v + delta**2
    elif isinstance(opt, ServerAdam):
        v = opt.beta2 * v + (1 - opt.beta2) * delta**2
    else:
        v = v - (1 - opt.beta2) * delta**2 * np.sign(v - delta**2)
    return (m, v), w + opt.step_size * m / (np.sqrt(v) + opt.tau)


def plain_fedavg(method, problem, rounds, seed):
    """FedAvg with everybody taking part; models after every round, and the shadow of the last."""
    fed, w = problem.federation, np.zeros(problem.model_shape)
    memory = np.zeros_like(w), np.full_like(w, getattr(method.server, "tau", 0.0) ** 2)
    models, shadow = [w], None
    for t in range(rounds):
        paths = []
        for k, n in enumerate(fed.sizes.tolist()):
            drawn = recorded(method, n, k, seed, t)[0]
            steps = len(drawn)

            def eta(s, t=t, steps=steps):
                e = method.step_size
                if isinstance(e, Decay):
                    return e.scale / (e.shift + (t if e.by_round else t * steps + s)) ** e.power
                return e

            gradients = [lambda v, k=k, q=q: plain_gradient(problem, v, k=k, shares=q) for q in drawn]
            paths.append(plain_client(method.client, w, gradients, eta))
        if method.shadow:
            shadow = np.array([sum(p * path[s] for p, path in zip(problem.weights, paths, strict=True))
                               for s in range(method.local_steps)])  # fmt: skip
        average = sum(p * path[-1] for p, path in zip(problem.weights, paths, strict=True))
        memory, w = plain_server(method.server, memory, w, average - w)
        models.append(w)
    return models, shadow


REFERENCED = {  # other aggregates than the mean: test_aggregation.py
    n: m
    for n, m in CONFIGURATIONS.items()
    if isinstance(m, FedAvg) and m.participation is None and m.aggregation == WeightedMean()
}
REFERENCED |= {
    "epochs": FedAvg(step_size=0.2, epochs=2, batch_size=3),
    "epochs replacement": FedAvg(step_size=0.2, epochs=2, batch_size=3, replacement=True),
    "epochs Adam": FedAvg(step_size=0.1, epochs=1, batch_size=4, client=ClientAdam(0.5, 0.9, 1e-3)),
    "full Adam": FedAvg(step_size=0.1, local_steps=3, client=ClientAdam(0.5, 0.9, 1e-3)),
    "full momentum": FedAvg(step_size=0.1, local_steps=3, client=ClientMomentum(0.5)),
    "momentum and Adam": FedAvg(
        step_size=0.1, local_steps=3, batch_size=2, client=ClientMomentum(0.5), server=ServerAdam(0.1, 0.8, 0.9, 0.1)
    ),
    "batch of all rows": FedAvg(step_size=0.2, local_steps=2, batch_size=4),
}


@pytest.mark.parametrize("name", REFERENCED)
def test_fedavg_equals_plain_numpy(problem, name):
    from fedconvex import iterate

    method, rounds = REFERENCED[name], 4
    models, shadow = plain_fedavg(method, problem, rounds, seed=11)
    states = [state for _, state in iterate(method, problem, rounds=rounds, seed=11)]
    for state, expected in zip(states, models, strict=True):
        np.testing.assert_allclose(state.w[0], expected, rtol=1e-9, atol=1e-12)
    if method.shadow:
        np.testing.assert_allclose(states[-1].shadow[0], shadow, rtol=0, atol=1e-13)
        np.testing.assert_allclose(states[-1].shadow[0, -1], states[-1].w[0], rtol=0, atol=1e-14)
        trace = run(method, problem, rounds=rounds, seed=11, tol=0).trace
        expected = np.mean([plain_value(problem, v) for v in shadow])
        assert np.isnan(trace.shadow_value[0])
        assert trace.shadow_value[-1] == pytest.approx(expected, rel=1e-13)


def test_partial_participation_equals_plain_numpy(linear):
    """The sampled clients' own steps, averaged with p_k over the sum of the sample's p, by hand."""
    method, w = FedAvg(step_size=0.2, local_steps=2, participation=UniformSampling(3)), np.zeros(3)
    from fedconvex import iterate

    for t, state in iterate(method, linear, rounds=5, seed=2):
        np.testing.assert_allclose(state.w[0], w, rtol=0, atol=1e-13)
        clients, _ = participants(method, linear, Draws(key_from_seed(2), np.arange(1), t))
        p = linear.weights[clients[0]]
        ends = []
        for k in clients[0]:
            v = w
            for _ in range(2):
                v = v - 0.2 * plain_gradient(linear, v, k=k)
            ends.append(v)
        w = (p / p.sum()) @ np.array(ends)


def test_proportional_sampling_averages_plainly(linear):
    method = FedSGD(step_size=0.2, participation=ProportionalSampling(6))
    draws = Draws(key_from_seed(2), np.arange(1), 0)
    clients, weights = participants(method, linear, draws)
    assert np.unique(clients).size < 6  # six draws of five clients
    np.testing.assert_array_equal(weights, 1 / 6)
    g = np.mean([plain_gradient(linear, np.zeros(3), k=k) for k in clients[0]], axis=0)
    np.testing.assert_allclose(run(method, linear, rounds=1, seed=2, tol=0).w, -0.2 * g, rtol=1e-13)


def test_sgd_equals_plain_numpy(linear):
    """SGD draws like the single client 0 of the pooled rows."""
    fed = linear.federation
    pooled = Problem(Federation(fed.X, fed.y, [0, fed.n]), Squared(), 0.1)
    for replacement in (False, True):
        method = SGD(step_size=Decay(1.0, 9.0), batch_size=3, steps=4, replacement=replacement)
        twin = FedAvg(step_size=1.0, local_steps=4, batch_size=3, replacement=replacement)
        w = np.zeros(3)
        for t in range(3):
            for s, q in enumerate(recorded(twin, fed.n, 0, 1, t)[0]):
                w = w - 1.0 / (9.0 + 4 * t + s) * plain_gradient(pooled, w, k=0, shares=q)
        np.testing.assert_allclose(run(method, linear, rounds=3, seed=1, tol=0).w, w, rtol=0, atol=1e-13)


def test_first_adam_step_by_hand(linear):
    """With zero memory a bias-corrected Adam step is eta g/(|g| + epsilon)."""
    g = plain_gradient(linear, np.zeros(3), k=0)
    alone = Problem(linear.federation.subset([0]), Squared(), linear.l2)
    found = run(FedAvg(step_size=0.1, client=ClientAdam()), alone, rounds=1, tol=0).w
    np.testing.assert_allclose(found, -0.1 * g / (np.abs(g) + 1e-8), rtol=1e-13)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (ServerSGD(2.0, momentum=0.5), lambda D: 2.0 * D),
        (ServerSGD(2.0, momentum=0.5, nesterov=True), lambda D: 3.0 * D),  # 0.5 m + D with m = D
        (ServerAdagrad(0.1, 0.25, 0.01), lambda D: 0.1 * 0.75 * D / (np.sqrt(0.01**2 + D**2) + 0.01)),
        (ServerAdam(0.1, 0.9, 0.99, 0.01), lambda D: 0.1 * 0.1 * D / (np.sqrt(0.99e-4 + 0.01 * D**2) + 0.01)),
        (ServerYogi(0.1, 0.9, 0.99, 0.01), lambda D: 0.01 * D / (np.sqrt(1e-4 + 0.01 * D**2) + 0.01)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_first_server_step_by_hand(linear, server, expected):
    """From v = tau^2 = 1e-4 and Delta^2 > v, so that Yogi's sign is -1."""
    delta = run(FedAvg(step_size=0.2), linear, rounds=1, tol=0).w
    assert np.all(delta**2 > 1e-4)
    found = run(FedAvg(step_size=0.2, server=server), linear, rounds=1, tol=0).w
    np.testing.assert_allclose(found, expected(delta), rtol=1e-12)
