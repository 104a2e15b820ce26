"""Bad input: one table. Every case raises the given error, and its message says who, must and got."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import (
    SGD,
    Exponential,
    FedAvg,
    Federation,
    FedSGD,
    GradientDescent,
    Hinge,
    Logistic,
    Problem,
    SmoothedHinge,
    Softmax,
    Squared,
    iterate,
    run,
)
from fedconvex.constants import noise_factor
from fedconvex.datasets import load_npz
from fedconvex.draws import key_from_seed
from fedconvex.families.multitask.theorems import mocha
from fedconvex.methods import (
    MOCHA,
    ClientAdam,
    ClientMomentum,
    ClientSGD,
    Decay,
    ProportionalSampling,
    ServerAdagrad,
    ServerAdam,
    ServerSGD,
    ServerYogi,
    UniformSampling,
)
from fedconvex.models import LinearModel
from fedconvex.problems import (
    Covariance,
    Dictionary,
    EnsembleProblem,
    Independent,
    MeanRegularised,
    MultiTaskProblem,
    Pooled,
    Precision,
    QEnsemble,
    Stump,
    StumpProblem,
    calibration_error,
)
from fedconvex.report import domain_scores, per_client_metrics, wilson_interval
from fedconvex.secure import Party, agreement, decode, encode
from fedconvex.simplex.uncertainty import KLBall, Point, Simplex
from fedconvex.theorems import fedavg_convex as wang
from fedconvex.theory.fixed_points import fedavg_round

nan, inf, I = math.nan, math.inf, np.eye(2)
DAYS = np.array(["2020-01-01", "2020-01-02"], dtype="M8[ns]")
X = np.arange(12.0).reshape(6, 2) / 10
y = np.array([1.0, -1.0, 1.0, 1.0, -1.0, -1.0])
who = np.array([0, 0, 0, 1, 1, 1])
ptr = np.array([0, 3, 6])
fed = Federation(X, y, ptr)
lin = Problem(fed, Squared(), l2=0.1)
sgn = Problem(fed, Logistic(), l2=0.1)
soft = Problem(Federation(X, (y > 0).astype(float), ptr), Softmax(2), l2=0.1)
tasks = MultiTaskProblem(fed, Logistic(), MeanRegularised(1.0, 0.5))
tasks_zero = np.zeros((2, 2))
sources = Federation.from_arrays(X, y, who, who)
boost = EnsembleProblem(sources, Dictionary.stumps(sources, cuts=1))
plain = QEnsemble([Stump(0, 0.0, -1.0, 1.0)], [0], [1.0])
good = FedSGD(step_size=0.1)


def with_(a, at, v):
    b = np.array(a, dtype=float)
    b[at] = v
    return b


def ragged():
    return [[1.0], [1.0, 2.0]]


def fedavg(**how):
    return FedAvg(**({"step_size": 0.1} | how))


def start_of(method, problem=lin, **how):
    return run(method, problem, rounds=2, **how)


V, T = ValueError, TypeError
CASES = {
    # ------------------------------------------------------------ Federation(...)
    "X with NaN": (V, "Federation.X", lambda: Federation(with_(X, (2, 1), nan), y, ptr), "(2, 1)"),
    "X with inf": (V, "Federation.X", lambda: Federation(with_(X, (0, 0), -inf), y, ptr), "-inf"),
    "X with both infinities": (V, "Federation.X", lambda: Federation([[inf, -inf]], [1.0], [0, 1]), "inf"),
    "X sparse with NaN": (V, "Federation.X", lambda: Federation(sp.csr_array(with_(X, (2, 1), nan)), y, ptr), "nan"),
    "X ragged": (V, "Federation.X", lambda: Federation(ragged(), [1, 2], [0, 2]), "ragged"),
    "X object": (T, "Federation.X", lambda: Federation(X.astype(object), y, ptr), "object"),
    "X strings": (T, "Federation.X", lambda: Federation(X.astype(str), y, ptr), "dtype"),
    "X complex": (T, "Federation.X", lambda: Federation(X + 0j, y, ptr), "complex"),
    "X sparse complex": (T, "Federation.X", lambda: Federation(sp.csr_array(X + 0j), y, ptr), "complex"),
    "X flat": (V, "Federation.X", lambda: Federation(X[:, 0], y, ptr), "(6,)"),
    "X deep": (V, "Federation.X", lambda: Federation(X[None], y, ptr), "(1, 6, 2)"),
    "X without columns": (V, "Federation.X", lambda: Federation(X[:, :0], y, ptr), "(6, 0)"),
    "X without rows": (V, "Federation.X", lambda: Federation(X[:0], y[:0], [0, 0]), "(0, 2)"),
    "X None": (T, "Federation.X", lambda: Federation(None, y, ptr), "object"),
    "y NaN": (V, "Federation.y", lambda: Federation(X, with_(y, 4, nan), ptr), "at 4"),
    "y short": (V, "Federation.y", lambda: Federation(X, y[:5], ptr), "5"),
    "y column": (V, "Federation.y", lambda: Federation(X, y[:, None], ptr), "(6, 1)"),
    "y strings": (T, "Federation.y", lambda: Federation(X, ["a"] * 6, ptr), "encode"),
    "y complex": (T, "Federation.y", lambda: Federation(X, y + 1j, ptr), "complex"),
    "y object": (T, "Federation.y", lambda: Federation(X, y.astype(object), ptr), "object"),
    "ptr decreasing": (V, "Federation.ptr", lambda: Federation(X, y, [0, 4, 3, 6]), "4 then 3"),
    "ptr short of n": (V, "Federation.ptr", lambda: Federation(X, y, [0, 3, 5]), "5"),
    "ptr beyond n": (V, "Federation.ptr", lambda: Federation(X, y, [0, 3, 7]), "7"),
    "ptr not from 0": (V, "Federation.ptr", lambda: Federation(X, y, [1, 3, 6]), "1"),
    "ptr floats": (V, "Federation.ptr", lambda: Federation(X, y, [0.0, 3.0, 6.0]), "3."),
    "ptr single": (V, "Federation.ptr", lambda: Federation(X, y, [0]), "[0]"),
    "client without rows": (V, "client b", lambda: Federation(X, y, [0, 3, 3, 6], labels=["a", "b", "c"]), "0 rows"),
    "labels too few": (V, "Federation.labels", lambda: Federation(X, y, ptr, labels=["a"]), "(1,)"),
    "labels twice": (V, "Federation.labels", lambda: Federation(X, y, ptr, labels=["a", "a"]), "a"),
    "ids twice": (V, "Federation.ids", lambda: Federation(X, y, ptr, ids=[4, 4]), "4"),
    "ids negative": (V, "Federation.ids", lambda: Federation(X, y, ptr, ids=[4, -1]), "-1"),
    "ids fractions": ((V, T), "Federation.ids", lambda: Federation(X, y, ptr, ids=[0.5, 1.5]), "0.5"),
    "ids strings": ((V, T), "Federation.ids", lambda: Federation(X, y, ptr, ids=["a", "b"]), "a"),
    "domain out of range": (
        V, "Federation.domain", lambda: Federation(X, y, ptr, domain=[0, 1, 2, 0, 0, 0], domain_labels=["u", "v"]), "2",
    ),
    "domain negative": (V, "Federation.domain", lambda: Federation(X, y, ptr, domain=[0, 0, -1, 0, 0, 0]), "-1"),
    "domain short": (V, "Federation.domain", lambda: Federation(X, y, ptr, domain=[0]), "(1,)"),
    "domain floats": (V, "Federation.domain", lambda: Federation(X, y, ptr, domain=y), "float"),
    # ------------------------------------------------------------ from_arrays
    "clients short": (V, "clients", lambda: Federation.from_arrays(X, y, who[:5]), "(5,)"),
    "clients None": (V, "clients", lambda: Federation.from_arrays(X, y, None), "()"),
    "clients NaN": (V, "clients", lambda: Federation.from_arrays(X, y, with_(who, 2, nan)), "nan"),
    "clients NaN among objects": (
        (V, T), "clients", lambda: Federation.from_arrays(X, y, with_(who, 2, nan).astype(object)), "nan",
    ),
    "clients None among them": (T, "clients", lambda: Federation.from_arrays(X, y, [0, 0, None, 1, 1, 1]), "NoneType"),
    "clients mixed": (
        T, "clients", lambda: Federation.from_arrays(X, y, np.array([0, 0, "a", 1, 1, 1], dtype=object)), "str",
    ),
    "no rows": (V, "X", lambda: Federation.from_arrays(X[:0], y[:0], who[:0]), "0 rows"),
    "arrays y short": (V, "Federation.y", lambda: Federation.from_arrays(X, y[:5], who), "(5,)"),
    "arrays X object": (T, "Federation.X", lambda: Federation.from_arrays(X.astype(object), y, who), "object"),
    "arrays X ragged": (V, "Federation.X", lambda: Federation.from_arrays(ragged(), [1, 2], [0, 1]), "ragged"),
    "arrays X NaN": (V, "Federation.X", lambda: Federation.from_arrays(with_(X, (1, 1), nan), y, who), "nan"),
    "domain of a client missing": (V, "domains", lambda: Federation.from_arrays(X, y, who, domains={0: "u"}), "1"),
    "domains short": (V, "domains", lambda: Federation.from_arrays(X, y, who, domains=["u"]), "(1,)"),
    "domains mixed": (
        T, "domains", lambda: Federation.from_arrays(X, y, who, domains=np.array([0, "a", 0, 0, 0, 0], object)), "str",
    ),
    # ------------------------------------------------------------ from_clients
    "no clients": (V, "from_clients", lambda: Federation.from_clients([]), "none"),
    "not a pair": (T, "client 0", lambda: Federation.from_clients([X]), "ndarray"),
    "empty client": (V, "client 1", lambda: Federation.from_clients([(X, y), (X[:0], y[:0])]), "0 rows"),
    "other width": (V, "client 1", lambda: Federation.from_clients([(X, y), (X[:, :1], y)]), "1"),
    "dense and sparse": (T, "from_clients", lambda: Federation.from_clients([(X, y), (sp.csr_array(X), y)]), "mixture"),
    "client y short": (V, "client 0", lambda: Federation.from_clients([(X, y[:2])]), "(2,)"),
    "client X flat": (V, "client 0", lambda: Federation.from_clients([(X[:, 0], y)]), "(6,)"),
    "client X object": (T, "client 0", lambda: Federation.from_clients([(X.astype(object), y)]), "object"),
    "client X NaN": (V, "X", lambda: Federation.from_clients([(with_(X, (0, 0), nan), y)]), "nan"),
    "client names twice": (V, "labels", lambda: Federation.from_clients([(X, y)] * 2, labels=[1, 1]), "[1, 1]"),
    "client names short": (V, "labels", lambda: Federation.from_clients([(X, y)] * 2, labels=[1]), "[1]"),
    "client domains short": (V, "domains", lambda: Federation.from_clients([(X, y)] * 2, domains=["u"]), "1"),
    "client domain of wrong length": (
        V, "domains", lambda: Federation.from_clients([(X, y)] * 2, domains=["u", ["v", "w"]]), "2",
    ),
    # ------------------------------------------------------------ subset, split
    "subset nobody": (V, "subset", lambda: fed.subset([]), "[]"),
    "subset unknown": (V, "subset", lambda: fed.subset([2]), "2"),
    "subset negative": (V, "subset", lambda: fed.subset([-1]), "-1"),
    "subset twice": (V, "subset", lambda: fed.subset([0, 0]), "[0, 0]"),
    "subset number": (V, "subset", lambda: fed.subset(0), "0"),
    "subset mask": (V, "subset", lambda: fed.subset([True, False]), "True"),
    "subset floats": (V, "subset", lambda: fed.subset([0.0]), "0.0"),
    "subset ragged": ((V, T), "subset", lambda: fed.subset([[0], [0, 1]]), "[0, 1]"),
    "split nothing": (V, "test_size", lambda: fed.split(0.0), "0"),
    "split all": (V, "test_size", lambda: fed.split(1.0), "1"),
    "split NaN": (V, "test_size", lambda: fed.split(nan), "nan"),
    "split string": (T, "test_size", lambda: fed.split("half"), "half"),
    "split seed": ((V, T), "seed", lambda: fed.split(0.5, seed=-1), "-1"),
    "split seed string": ((V, T), "seed", lambda: fed.split(0.5, seed="a"), "a"),
    "split single rows": (V, "split", lambda: Federation(X, y, np.arange(7)).split(), "one row"),
    # ------------------------------------------------------------ losses and Problem
    "logistic 0/1": (V, "Logistic", lambda: Problem(soft.federation, Logistic()), "2*y - 1"),
    "hinge real": (V, "Hinge", lambda: Problem(Federation(X, X[:, 0], ptr), Hinge()), "0.2"),
    "exponential 0/1": (V, "Exponential", lambda: Problem(soft.federation, Exponential()), "{0, 1}"),
    "smoothed hinge classes": (
        V, "SmoothedHinge", lambda: Problem(Federation(X, np.arange(6) % 3, ptr), SmoothedHinge()), "Softmax",
    ),
    "softmax -1": (V, "Softmax", lambda: Problem(fed, Softmax(2)), "-1"),
    "softmax one class": (V, "Softmax.n_classes", lambda: Problem(soft.federation, Softmax(1)), "1"),
    "softmax 2.5 classes": (T, "Softmax.n_classes", lambda: Problem(soft.federation, Softmax(2.5)), "2.5"),
    "softmax True classes": (T, "Softmax.n_classes", lambda: Problem(soft.federation, Softmax(True)), "True"),
    "gamma 0": (V, "SmoothedHinge.gamma", lambda: Problem(fed, SmoothedHinge(0.0)), "0"),
    "gamma NaN": (V, "SmoothedHinge.gamma", lambda: Problem(fed, SmoothedHinge(nan)), "nan"),
    "gamma string": ((V, T), "SmoothedHinge.gamma", lambda: Problem(fed, SmoothedHinge("a")), "a"),
    "loss class": (T, "Problem.loss", lambda: Problem(fed, Squared), "Squared()"),
    "loss string": (T, "Problem.loss", lambda: Problem(fed, "squared"), "squared"),
    "not a federation": (T, "Problem.federation", lambda: Problem((X, y), Squared()), "tuple"),
    "l2 negative": (V, "Problem.l2", lambda: Problem(fed, Squared(), l2=-1.0), "-1"),
    "l2 NaN": (V, "Problem.l2", lambda: Problem(fed, Squared(), l2=nan), "nan"),
    "l2 string": (T, "Problem.l2", lambda: Problem(fed, Squared(), l2="1"), "str"),
    "l2 True": (T, "Problem.l2", lambda: Problem(fed, Squared(), l2=True), "bool"),
    "weights negative": (V, "Problem.weights", lambda: Problem(fed, Squared(), weights=[1.5, -0.5]), "client 1"),
    "weights zero": (V, "Problem.weights", lambda: Problem(fed, Squared(), weights=[1.0, 0.0]), "client 1"),
    "weights sum": (V, "Problem.weights", lambda: Problem(fed, Squared(), weights=[0.5, 0.6]), "1.1"),
    "weights short": (V, "Problem.weights", lambda: Problem(fed, Squared(), weights=[1.0]), "1"),
    "weights NaN": (V, "Problem.weights", lambda: Problem(fed, Squared(), weights=[nan, 1.0]), "nan"),
    "weights word": (V, "Problem.weights", lambda: Problem(fed, Squared(), weights="equal"), "equal"),
    "weights strings": (T, "Problem.weights", lambda: Problem(fed, Squared(), weights=["a", "b"]), "dtype"),
    "weights ragged": (V, "Problem.weights", lambda: Problem(fed, Squared(), weights=ragged()), "ragged"),
    # ------------------------------------------------------------ models
    "value of a wrong shape": (V, "model w", lambda: lin.value(np.zeros(3)), "(3,)"),
    "value of a number": (V, "model w", lambda: lin.value(0.0), "()"),
    "value of a string": ((V, T), "model w", lambda: lin.value("a"), "a"),
    "value of complex": ((V, T), "model w", lambda: lin.value(np.zeros(2) + 1j), "complex"),
    "value of a ragged list": ((V, T), "model w", lambda: lin.value(ragged()), "ragged"),
    "value of no models": (V, "model w", lambda: lin.value(np.zeros((0, 2))), "(0, 2)"),
    "gradient of a wrong shape": (V, "model w", lambda: lin.gradient(np.zeros((2, 3))), "(2, 3)"),
    "softmax model flat": (V, "model w", lambda: soft.value(np.zeros(4)), "(4,)"),
    "client_values of a wrong shape": (V, "model w", lambda: lin.client_values(np.zeros(1)), "(1,)"),
    "hessian of many": (V, "hessian", lambda: lin.hessian(np.zeros((2, 2))), "2 models"),
    "variance of many": (V, "gradient_variance", lambda: lin.gradient_variance(np.zeros((2, 2))), "2 models"),
    "scores of many": (V, "scores", lambda: lin.scores(np.zeros((2, 2))), "2 models"),
    "predict wrong width": (V, "X", lambda: lin.predict(np.zeros(2), np.zeros((4, 3))), "3"),
    "client unknown": (V, "clients", lambda: lin.client(5), "5"),
    # ------------------------------------------------------------ solve, constants
    "hinge without l2": (V, "Problem.solve", lambda: Problem(fed, Hinge()).solve(), "l2 = 0"),
    "solve tol 0": (V, "tol", lambda: Problem(fed, Squared()).solve(tol=0.0), "0"),
    "solve tol string": (T, "tol", lambda: Problem(fed, Squared()).solve(tol="a"), "str"),
    "solve tol after a solution": (V, "tol", lambda: (lin.solve(), lin.solve(tol=-1.0)), "-1"),
    "constants batch 0": (V, "batch_size", lambda: lin.constants(batch_size=0), "0"),
    "constants batch 4": (V, "batch_size", lambda: lin.constants(batch_size=4), "3 rows"),
    "constants batch 1.5": ((V, T), "batch_size", lambda: lin.constants(batch_size=1.5), "1.5"),
    "constants batch string": ((V, T), "batch_size", lambda: lin.constants(batch_size="a"), "a"),
    "constants replacement": (T, "replacement", lambda: lin.constants(batch_size=1, replacement="no"), "no"),
    "constants radius": (V, "radius", lambda: lin.constants(radius=-1.0), "-1"),
    "constants radius inf": (V, "radius", lambda: lin.constants(radius=inf), "inf"),
    "constants start": (V, "start", lambda: lin.constants(start=np.zeros(3)), "3"),
    "constants center NaN": (V, "center", lambda: lin.constants(center=[nan, 0.0]), "nan"),
    "ball radius": (V, "radius", lambda: lin.constants(radius=-1.0), "-1"),
    "noise batch 0": (V, "batch_size", lambda: noise_factor(5, 0, False), "0"),
    "noise batch beyond n": (V, "batch_size", lambda: noise_factor(5, 6, False), "6"),
    # ------------------------------------------------------------ step sizes and schedules
    "step 0": (V, "FedAvg.step_size", lambda: fedavg(step_size=0.0), "0"),
    "step negative": (V, "FedAvg.step_size", lambda: fedavg(step_size=-1), "-1"),
    "step inf": (V, "FedSGD.step_size", lambda: FedSGD(step_size=inf), "inf"),
    "step NaN": (V, "GradientDescent.step_size", lambda: GradientDescent(step_size=nan), "nan"),
    "step string": (T, "SGD.step_size", lambda: SGD(step_size="0.1"), "str"),
    "step bool": (T, "FedAvg.step_size", lambda: fedavg(step_size=True), "bool"),
    "step None": (T, "FedAvg.step_size", lambda: fedavg(step_size=None), "None"),
    "step complex": (T, "FedAvg.step_size", lambda: fedavg(step_size=1j), "complex"),
    "step beyond floats": ((V, T), "FedAvg.step_size", lambda: fedavg(step_size=10**400), "1000"),
    "steps with 0": (V, "FedAvg.step_size", lambda: fedavg(step_size=[0.1, 0.0]), "0.0"),
    "steps NaN": (V, "FedAvg.step_size", lambda: fedavg(step_size=[0.1, nan]), "nan"),
    "steps none": (V, "FedAvg.step_size", lambda: fedavg(step_size=[]), "[]"),
    "steps square": (V, "FedAvg.step_size", lambda: fedavg(step_size=[[0.1]]), "0.1"),
    "steps ragged": (V, "FedAvg.step_size", lambda: fedavg(step_size=ragged()), "ragged"),
    "steps for another R": (V, "FedAvg.step_size", lambda: start_of(fedavg(step_size=[0.1, 0.2])), "2"),
    "steps for another R, FedSGD": (V, "FedSGD.step_size", lambda: start_of(FedSGD(step_size=[0.1, 0.2])), "2"),
    "decay scale": (V, "step_size: scale", lambda: fedavg(step_size=Decay(0.0)), "0"),
    "decay shift": (V, "step_size: shift", lambda: fedavg(step_size=Decay(1.0, -1.0)), "-1"),
    "decay power": (V, "step_size: power", lambda: fedavg(step_size=Decay(1.0, 1.0, 2.0)), "2"),
    "decay power string": (T, "step_size: power", lambda: fedavg(step_size=Decay(1.0, 1.0, "a")), "str"),
    "decay by_round": (T, "by_round", lambda: fedavg(step_size=Decay(1.0, 1.0, 1.0, "no")), "no"),
    "decay class": (T, "FedAvg.step_size", lambda: fedavg(step_size=Decay), "Decay"),
    "decay per step, uneven": (
        V, "FedAvg", lambda: start_of(
            fedavg(step_size=Decay(1.0), epochs=1, batch_size=2), Problem(Federation(X, y, [0, 1, 6]), Squared())
        ), "by_round",
    ),
    # ------------------------------------------------------------ FedAvg, SGD
    "local_steps 0": (V, "FedAvg.local_steps", lambda: fedavg(local_steps=0), "0"),
    "local_steps 1.5": (T, "FedAvg.local_steps", lambda: fedavg(local_steps=1.5), "1.5"),
    "local_steps True": (T, "FedAvg.local_steps", lambda: fedavg(local_steps=True), "bool"),
    "epochs 0": (V, "FedAvg.epochs", lambda: fedavg(epochs=0), "0"),
    "epochs and steps": (V, "FedAvg", lambda: fedavg(epochs=2, local_steps=3), "both"),
    "batch 0": (V, "FedAvg.batch_size", lambda: fedavg(batch_size=0), "0"),
    "batch string": (T, "FedAvg.batch_size", lambda: fedavg(batch_size="all"), "all"),
    "batch beyond a client": (V, "FedAvg.batch_size", lambda: start_of(fedavg(batch_size=4)), "client 0"),
    "replacement word": (T, "FedAvg.replacement", lambda: fedavg(replacement="yes"), "yes"),
    "shadow number": (T, "FedAvg.shadow", lambda: fedavg(shadow=1), "1"),
    "shadow, uneven": (
        V, "FedAvg", lambda: start_of(
            fedavg(shadow=True, epochs=1, batch_size=2), Problem(Federation(X, y, [0, 1, 6]), Squared())
        ), "local_steps",
    ),
    "participation 0": (V, "FedAvg.participation", lambda: fedavg(participation=0), "0"),
    "participation 0.0": (V, "FedAvg.participation", lambda: fedavg(participation=0.0), "0.0"),
    "participation 1.5": (V, "FedAvg.participation", lambda: fedavg(participation=1.5), "1.5"),
    "participation -1": (V, "FedAvg.participation", lambda: fedavg(participation=-1), "-1"),
    "participation NaN": (V, "FedAvg.participation", lambda: fedavg(participation=nan), "nan"),
    "participation word": (T, "FedAvg.participation", lambda: fedavg(participation="all"), "all"),
    "participation True": (T, "FedAvg.participation", lambda: fedavg(participation=True), "True"),
    "participation beyond K": (V, "FedAvg.participation", lambda: start_of(fedavg(participation=3)), "3"),
    "participation beyond K, FedSGD": (
        V, "FedSGD.participation", lambda: start_of(FedSGD(step_size=0.1, participation=UniformSampling(3))), "3",
    ),
    "sampling 2.5": (T, "FedAvg.participation", lambda: fedavg(participation=UniformSampling(2.5)), "2.5"),
    "sampling 0 draws": (V, "FedAvg.participation", lambda: fedavg(participation=ProportionalSampling(0)), "0"),
    "sampling class": (T, "FedAvg.participation", lambda: fedavg(participation=ProportionalSampling), "Proportional"),
    "client optimiser class": (T, "FedAvg.client", lambda: fedavg(client=ClientSGD), "ClientSGD"),
    "client optimiser of the server": (T, "FedAvg.client", lambda: fedavg(client=ServerAdam()), "ServerAdam"),
    "client optimiser word": (T, "FedAvg.client", lambda: fedavg(client="adam"), "adam"),
    "server optimiser of the client": (T, "FedAvg.server", lambda: fedavg(server=ClientAdam()), "ClientAdam"),
    "server optimiser None": (T, "FedAvg.server", lambda: fedavg(server=None), "None"),
    "client beta 1": (V, "ClientMomentum.beta", lambda: fedavg(client=ClientMomentum(1.0)), "1"),
    "client beta2 negative": (V, "ClientAdam.beta2", lambda: fedavg(client=ClientAdam(0.9, -0.1)), "-0.1"),
    "client epsilon 0": (V, "ClientAdam.epsilon", lambda: fedavg(client=ClientAdam(epsilon=0.0)), "0"),
    "server momentum 1": (V, "ServerSGD.momentum", lambda: fedavg(server=ServerSGD(1.0, 1.0)), "1"),
    "server step 0": (V, "ServerYogi.step_size", lambda: fedavg(server=ServerYogi(0.0)), "0"),
    "server step string": (T, "ServerAdam.step_size", lambda: fedavg(server=ServerAdam("a")), "str"),
    "server tau NaN": (V, "ServerAdagrad.tau", lambda: fedavg(server=ServerAdagrad(tau=nan)), "nan"),
    "server nesterov word": (T, "ServerSGD.nesterov", lambda: fedavg(server=ServerSGD(nesterov="no")), "no"),
    "SGD batch beyond n": (V, "SGD.batch_size", lambda: start_of(SGD(step_size=0.1, batch_size=7)), "7"),
    "SGD batch 0": (V, "SGD.batch_size", lambda: SGD(step_size=0.1, batch_size=0), "0"),
    "SGD steps 0": (V, "SGD.steps", lambda: SGD(step_size=0.1, steps=0), "0"),
    "SGD replacement": (T, "SGD.replacement", lambda: SGD(step_size=0.1, replacement=None), "None"),
    "SGD weights": (
        V, "SGD: Problem.weights", lambda: start_of(SGD(step_size=0.1), Problem(fed, Squared(), weights=[0.3, 0.7])),
        "others",
    ),
    # ------------------------------------------------------------ run, iterate
    "method class": (T, "run: method", lambda: run(FedAvg, lin), "FedAvg(...)"),
    "method word": (T, "run: method", lambda: run("FedAvg", lin), "str"),
    "problem federation": (T, "run: problem", lambda: run(good, fed), "Federation"),
    "rounds 0": (V, "run: rounds", lambda: run(good, lin, rounds=0), "0"),
    "rounds 1.5": (T, "run: rounds", lambda: run(good, lin, rounds=1.5), "1.5"),
    "rounds None": (T, "run: rounds", lambda: run(good, lin, rounds=None), "None"),
    "iterate rounds 0": (V, "iterate: rounds", lambda: iterate(good, lin, rounds=0), "0"),
    "iterate method class": (T, "method", lambda: iterate(FedSGD, lin), "FedSGD"),
    "tol negative": (V, "run: tol", lambda: run(good, lin, tol=-1.0), "-1"),
    "tol NaN": (V, "run: tol", lambda: run(good, lin, tol=nan), "nan"),
    "tol None": (T, "run: tol", lambda: run(good, lin, tol=None), "None"),
    "seed negative": (V, "seed", lambda: run(good, lin, seed=-1), "-1"),
    "seed huge": (V, "seed", lambda: run(good, lin, seed=2**64), "18446744073709551616"),
    "seed float": (T, "seed", lambda: run(good, lin, seed=1.0), "1.0"),
    "seed None": (T, "seed", lambda: run(good, lin, seed=None), "None"),
    "seed True": (T, "seed", lambda: key_from_seed(True), "bool"),
    "seed legacy generator": (T, "seed", lambda: key_from_seed(np.random.RandomState(0)), "RandomState"),
    "trajectories 0": (V, "run: trajectories", lambda: run(good, lin, trajectories=0), "0"),
    "trajectories 2.0": (T, "run: trajectories", lambda: run(good, lin, trajectories=2.0), "2.0"),
    "threads 0": (V, "run: threads", lambda: run(good, lin, threads=0), "0"),
    "threads string": (T, "run: threads", lambda: run(good, lin, threads="all"), "all"),
    "record_every 0": (V, "run: record_every", lambda: run(good, lin, record_every=0), "0"),
    "checkpoint_every 0": (V, "run: checkpoint_every", lambda: run(good, lin, checkpoint_every=0), "0"),
    "start shape": (V, "run: start", lambda: run(good, lin, start=np.zeros(3)), "(3,)"),
    "start for another R": (V, "run: start", lambda: run(good, lin, start=np.zeros((3, 2)), trajectories=2), "(3, 2)"),
    "start NaN": (V, "run: start", lambda: run(good, lin, start=[nan, 0.0]), "nan"),
    "start strings": ((V, T), "run: start", lambda: run(good, lin, start=["a", "b"]), "dtype"),
    "start complex": ((V, T), "run: start", lambda: run(good, lin, start=np.zeros(2) + 1j), "complex"),
    "start ragged": ((V, T), "run: start", lambda: run(good, lin, start=ragged()), "ragged"),
    "checkpoint folder missing": (V, "run: checkpoint", lambda: run(good, lin, checkpoint="/no/such/one"), "/no/such"),
    "checkpoint is a folder": (V, "run: checkpoint", lambda: run(good, lin, checkpoint="/tmp"), "/tmp"),
    "theta and local_steps": (V, "MOCHA", lambda: MOCHA(theta=0.3, local_steps=5), "both"),
    "epochs beyond all numbers": (V, "FedAvg.epochs", lambda: fedavg(epochs=10**30), "1000000"),
    "rounds beyond all numbers": (V, "run: rounds", lambda: run(good, lin, rounds=10**30), "1000000"),
    # ------------------------------------------------------------ reports, predictions, certificates
    "more successes than trials": (V, "wilson_interval", lambda: wilson_interval(5, 3), "5 of 3"),
    "trials negative": (V, "wilson_interval", lambda: wilson_interval([0, -1], [3, -1]), "-1"),
    "interval of level 2": (V, "level", lambda: wilson_interval(1, 3, 2.0), "2"),
    "interval of level 1": (V, "level", lambda: wilson_interval(1, 3, 1.0), "1"),
    "successes are words": (T, "successes", lambda: wilson_interval("a", 3), "dtype"),
    "predict with NaN": (V, "Problem.scores: w", lambda: lin.predict([nan, 0.0]), "nan"),
    "client metrics of NaN": (V, "per_client_metrics: w", lambda: per_client_metrics(lin, [0.0, inf]), "inf"),
    "domain scores of NaN": (V, "Problem.scores: w", lambda: domain_scores(lin, [nan, 0.0]), "nan"),
    "task models NaN": (V, "MultiTaskProblem.scores: W", lambda: tasks.predict(np.full((2, 2), nan)), "nan"),
    "task metrics of NaN": (V, "MultiTaskProblem.scores: W", lambda: tasks.metrics(np.full((2, 2), nan)), "nan"),
    "task metrics on rows": (T, "metrics: federation", lambda: tasks.metrics(np.zeros((2, 2)), X), "ndarray"),
    "reweighted short": (V, "reweighted: domain_weights", lambda: lin.reweighted([1.0]), "1"),
    "reweighted beyond one": (V, "reweighted: domain_weights", lambda: lin.reweighted([1.0, 1.0]), "sum 2"),
    "reweighted negative": (V, "reweighted: domain_weights", lambda: lin.reweighted([2.0, -1.0]), "-1"),
    "reweighted NaN": (V, "reweighted: domain_weights", lambda: lin.reweighted([nan, 1.0]), "nan"),
    "reweighted words": (T, "reweighted: domain_weights", lambda: lin.reweighted(["a", "b"]), "dtype"),
    "duals of another length": (
        V, "certificate: conjugates", lambda: tasks.certificate(tasks_zero, tasks_zero, np.zeros(5)), "(5,)",
    ),
    "images of another shape": (
        V, "certificate: V", lambda: tasks.certificate(tasks_zero, np.zeros(2), np.zeros(2)), "(2,)",
    ),
    "alpha of another length": (V, "EnsembleProblem: alpha", lambda: boost.margins(np.zeros(3)), "(3,)"),
    "no bins": (V, "calibration_error: bins", lambda: calibration_error([[0.5, 0.5]], [0], 0), "0"),
    "half a bin": (T, "calibration_error: bins", lambda: calibration_error([[0.5, 0.5]], [0], 0.5), "0.5"),
    "calibration NaN": (V, "calibration_error: Q", lambda: calibration_error([[nan, 0.5]], [0]), "nan"),
    "calibration beyond one": (V, "calibration_error: Q", lambda: calibration_error([[1.5, -0.5]], [0]), "others"),
    "calibration of other sources": (V, "calibration_error: domain", lambda: calibration_error([[0.5, 0.5]], [2]), "2"),
    # ------------------------------------------------------------ found by the campaign fuzz-api
    "constants of none": (T, "constants", lambda: wang.fedavg_convex_step(fed, local_steps=1, rounds=1), "Federation"),
    "duals' constants of another kind": (T, "constants", lambda: mocha.mocha_rate(fed), "Federation"),
    "fixed point of rows": (T, "problem", lambda: fedavg_round(fed, step_size=0.1, local_steps=1), "Federation"),
    "noise factor of words": (T, "noise_factor: n", lambda: noise_factor("a", 1, False), "dtype"),
    "noise factor of two lengths": (V, "noise_factor", lambda: noise_factor([5, 6], [1, 2, 3], False), "[1, 2, 3]"),
    "models of a relation, flat": (V, "Covariance.value: W", lambda: Covariance(0.3).value(np.zeros(2)), "(2,)"),
    "rounding of a relation": (V, "gap_rounding: V", lambda: Covariance(0.3).gap_rounding(I, I, [1.0]), "(1,)"),
    "models of any relation": (V, "Independent.value: W", lambda: Independent(0.3).value(np.zeros(2)), "(2,)"),
    "models of means": (V, "Pooled.gradient: W", lambda: Pooled(0.3).gradient(np.zeros(2)), "(2,)"),
    "images of a relation": (V, "Precision.conjugate: V", lambda: Precision(I, 1.0, 1.0).conjugate(I[0]), "(2,)"),
    "models of a relation, NaN": (V, "Covariance.gradient: W", lambda: Covariance(0.3).gradient([[nan]]), "nan"),
    "a step of a relation": (V, "proximal: step", lambda: Covariance(0.3).proximal(np.ones((2, 2)), -1.0), "-1"),
    "encoded words": (T, "secure.encode: x", lambda: encode("a", 20, 2), "dtype"),
    "bits beyond doubles": (V, "secure.encode: bits", lambda: encode(np.ones(1), 60, 2), "60"),
    "decoded floats": (T, "secure.decode: total", lambda: decode(np.ones(2), 20), "float64"),
    "masked floats": (T, "Party.mask: vector", lambda: Party(0).mask(np.ones(2), {0: b"", 1: b""}, b"x"), "float64"),
    "keys that are none": (T, "everybody", lambda: agreement([b"a"]), "[b'a']"),
    "no domains": (V, "Simplex.start: p", lambda: Simplex().start(0), "0"),
    "losses of other domains": (V, "KLBall.support: values", lambda: KLBall([0.5, 0.5], 0.1).support([1.0]), "(1,)"),
    "weights of other domains": (V, "Point.project: v", lambda: Point([0.5, 0.5]).project(np.zeros(3)), "(3,)"),
    "rows too narrow for a stump": (V, "Stump.predict: X", lambda: Stump(2, 0.0, -1.0, 1.0).predict(X), "(6, 2)"),
    "a stump at a word": (T, "Stump.threshold", lambda: Stump(0, "a", -1.0, 1.0), "str"),
    "a trajectory that is not": (V, "trajectory", lambda: boost.ensemble(np.zeros(boost.model_shape), 3), "3"),
    "state of none": (T, "StumpProblem: state", lambda: StumpProblem(sources).certificate(np.zeros(2)), "ndarray"),
    "labels too few for errors": (V, "errors: y", lambda: plain.errors(X, y[:2], who), "2"),
    "domains too few for errors": (V, "errors: domain", lambda: plain.errors(X, y, who[:2]), "(2,)"),
    "a model of none": (V, "from_standardised: w", lambda: LinearModel.from_standardised([1.0], [], []), "(1,)"),
    "a client that is not": (V, "client_rows: k", lambda: fed.client_rows(5), "5"),
    "masked model": (V, "model w", lambda: lin.value(np.ma.masked_array([1.0, 2.0], [True, False])), "1 masked"),
    # ------------------------------------------------------------ names
    "names that end in a null": (V, "names", lambda: Federation.from_arrays(X[:2], y[:2], ["a", "a\0"]), "a"),
    "no domain of a date": (
        V, "domains", lambda: Federation.from_arrays(X[:2], y[:2], DAYS, domains={DAYS[0]: "u"}), "2020",
    ),
    "checkpoint number": ((V, T), "run: checkpoint", lambda: run(good, lin, checkpoint=5), "5"),
}  # fmt: skip


def test_there_are_many_cases():
    assert len(CASES) >= 70


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name):
    kinds, subject, call, shown = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy's own complaints would come before ours
        with pytest.raises(kinds) as caught:
            call()
    message = str(caught.value)
    assert subject in message
    assert " must " in message
    assert "; got " in message
    assert shown in message
    assert len(message) < 700


def test_large_finite_numbers_are_welcome():
    """A sum that overflows is no reason to complain."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Federation(np.full((2, 2), 1e308), [1e308, 1e308], [0, 2]).n == 2


def test_names_of_clients_that_are_no_int64():
    """Large unsigned names have keys of their own; a date is looked up as it was given."""
    large = Federation.from_arrays(X[:3], y[:3], np.array([1, 2**63, 2**64 - 1], dtype=np.uint64))
    assert large.ids.min() >= 0
    assert len(set(large.ids.tolist())) == 3
    dated = Federation.from_arrays(X[:2], y[:2], DAYS, domains={DAYS[0]: "u", DAYS[1]: "v"})
    assert dated.domain_labels.tolist() == ["u", "v"]
    assert dated.domain.tolist() == [0, 1]


def test_float_indices_of_a_stored_matrix_are_refused(tmp_path):
    """They would be cut to whole numbers."""
    path, a = tmp_path / "a.npz", sp.csr_array(X)
    good = {"data": a.data, "indices": a.indices, "indptr": a.indptr, "shape": np.array(a.shape), "y": y}
    for name in ("indices", "indptr", "shape"):
        np.savez(path, **(good | {name: good[name] + 0.25}))
        with pytest.raises(TypeError, match=rf"load_npz: a.npz: {name} must hold whole numbers; got dtype float64"):
            load_npz(path)


def test_a_check_can_fail():
    """The table's own test notices silence, another type, and a message without its parts."""
    for call in (lambda: None, lambda: [][1], lambda: Federation.from_clients(3)):
        CASES["planted"] = (ValueError, "Federation", call, "")
        try:
            with pytest.raises((AssertionError, IndexError, TypeError, pytest.fail.Exception)):
                test_bad_input("planted")
        finally:
            del CASES["planted"]
