"""The package's averaging and agnostic methods as implementations that the referee is to recognise."""

from __future__ import annotations

import numpy as np

from fedconvex import FedAvg, Federation, FedSGD, GradientDescent, Logistic, Problem, Softmax, Squared, iterate
from fedconvex.conformance import can
from fedconvex.methods import (
    AFL,
    FISTA,
    SCAFFOLD,
    AdaptiveProximal,
    AgnosticFedAvg,
    ApproxFedAvg,
    ClientAdam,
    ClientMomentum,
    Decay,
    DynamicFedAvg,
    EntropicStep,
    FedDualAvg,
    FedDyn,
    FedMiD,
    FedNova,
    FedProx,
    FedSAM,
    OptimisticAFL,
    ProportionalSampling,
    ProximalFedSGD,
    ProximalGradient,
    ProximalPoint,
    ServerAdagrad,
    ServerAdam,
    ServerSGD,
    ServerYogi,
    SoftmaxFedAvg,
    Stragglers,
)

LOSSES = {"squared": Squared(), "logistic": Logistic(), "multinomial": Softmax(3)}
FULL = {"partial": False, "batches": ()}
ADAPTIVE = {"v_0": "tau^2", "epsilon": "outside", "bias correction": "none", "first moment": "damped"}


def problem_of(clients, hyper, weights=None):
    signs = hyper["loss"] == "logistic"
    rows = [(np.array(X, dtype=float), 2.0 * y - 1.0 if signs else y) for X, y in clients]
    return Problem(Federation.from_clients(rows), LOSSES[hyper["loss"]], hyper["l2"], weights)


def implementation(build, losses=("squared",), weights=None, **abilities):
    """The method that build(hyper) returns, as train(clients, hyper, rounds)."""

    @can(losses=losses, **abilities)
    def train(clients, hyper, rounds):
        problem = problem_of(clients, hyper, weights)
        states = iterate(build(hyper), problem, rounds=rounds, seed=hyper["seed"], start=hyper["start"], threads=1)
        return [state.w[0].copy() for t, state in states if t > 0]

    return train


def work(h, decay=None, **more):
    """Fields of local work."""
    eta = h["step_size"] if decay is None else decay(h["step_size"])
    how = {"epochs": h["epochs"]} if h["epochs"] and h["batch_size"] else {"local_steps": h["local_steps"]}
    return {"step_size": eta, "batch_size": h["batch_size"]} | how | more


def some(h):
    return {"participation": 1.0 if h["participants"] is None else h["participants"]}


def steps(h):
    """Fields of methods that count steps only."""
    return {"step_size": h["step_size"], "local_steps": h["local_steps"], "batch_size": h["batch_size"]}


def sgd(h, momentum=False, **more):
    return ServerSGD(h["server_step_size"], h["momentum"] if momentum else 0.0, **more)


def adaptive(cls, h, *names):
    return cls(step_size=h["server_step_size"], beta1=h["beta1"], tau=h["epsilon"], **{n: h[n] for n in names})


def client_adam(h):
    return ClientAdam(h["beta1"], h["beta2"], h["epsilon"])


def proportional(h):
    return 1.0 if h["participants"] is None else ProportionalSampling(h["participants"])


def late(h, drop=False):
    return None if h["stragglers"] is None else Stragglers(h["stragglers"], drop=drop)


def by_round(eta):
    return Decay(eta, 1.0, 0.5, by_round=True)


def by_step(eta):
    return Decay(eta, 1.0)


def players(h):
    return {"step_size": h["step_size"], "domain_step_size": h["domain_step_size"]}


def proximal(h):
    return {"proximal_mu": h["proximal_mu"]}


def controls(h, **more):
    return SCAFFOLD(server_step=h["server_step_size"], **some(h), **work(h), **more)


ALL_LOSSES = ("squared", "logistic", "multinomial")
STEPS_ONLY, EPOCHS_ONLY = {"batches": ("steps",)}, {"batches": ("epochs",)}
SIZES, EQUAL_DRAWS = {"weights": "n_k/n"}, {"draw": "distinct"}
UNBIASED = {"weights": "n_k/n", "share": "unbiased", "c weights": "as models", "server c": "N"}
METHODS = {  # name in tests/test_contract.py: family, method, abilities, what must be found
    "FedAvg": ("fedavg", lambda h: FedAvg(**work(h)), FULL | {"losses": ALL_LOSSES}, SIZES | {"client": "sgd"}),
    "FedAvg batches": ("fedavg", lambda h: FedAvg(**work(h), **some(h)), STEPS_ONLY,
                       SIZES | EQUAL_DRAWS | {"share": "renormalised", "sampling": "distinct"}),
    "FedAvg replacement": ("fedavg", lambda h: FedAvg(**steps(h), replacement=h["batch_size"] is not None),
                           STEPS_ONLY | {"partial": False}, {"draw": "replacement"}),
    "FedAvg epochs": ("fedavg", lambda h: FedAvg(**work(h), **some(h)), {}, {"work": "shuffled", "last batch": "kept"}),
    "FedAvg momentum": ("fedavg", lambda h: FedAvg(**work(h), client=ClientMomentum(h["client_momentum"])),
                        {"partial": False}, {"client": "momentum", "velocity": "reset"}),
    "FedAvg Adam": ("fedavg", lambda h: FedAvg(**work(h), client=client_adam(h)), {"partial": False},
                    {"client": "adam"}),
    "FedAvg server SGD": ("fedopt", lambda h: FedAvg(**work(h), server=sgd(h, True)), FULL, {"server": "heavy-ball"}),
    "FedAvg server Nesterov": ("fedopt", lambda h: FedAvg(**work(h), server=sgd(h, True, nesterov=True)), FULL,
                               {"server": "nesterov"}),
    "FedAvg server Adagrad": ("fedopt", lambda h: FedAvg(**work(h), server=adaptive(ServerAdagrad, h)), FULL,
                              {"server": "adagrad", "v_0": "tau^2", "epsilon": "outside", "first moment": "damped"}),
    "FedAvg server Adam": ("fedopt", lambda h: FedAvg(**work(h), server=adaptive(ServerAdam, h, "beta2")), FULL,
                           {"server": "adam"} | ADAPTIVE),
    "FedAvg server Yogi": ("fedopt", lambda h: FedAvg(**work(h), server=adaptive(ServerYogi, h, "beta2")), FULL,
                           {"server": "yogi"} | ADAPTIVE),
    "FedAvg proportional": ("fedavg", lambda h: FedAvg(**work(h), participation=proportional(h)), STEPS_ONLY,
                            {"sampling": "replacement", "share": "plain"}),
    "FedAvg decay": ("fedavg", lambda h: FedAvg(**work(h, by_step)), STEPS_ONLY | {"partial": False},
                     {"schedule": "1/(1+i)"}),
    "FedAvg decay by round": ("fedavg", lambda h: FedAvg(**work(h, by_round)), {"partial": False},
                              {"schedule": "1/sqrt(1+t)", "work": "shuffled"}),
    "FedAvg shadow": ("fedavg", lambda h: FedAvg(**work(h), shadow=True), STEPS_ONLY | {"partial": False}, EQUAL_DRAWS),
    "DynamicFedAvg": ("dynamicfedavg", lambda h: DynamicFedAvg(**steps(h), **some(h)), STEPS_ONLY,
                      {"local step": "eta/E", "draw": "distinct", "share": "renormalised"}),
    "FedProx": ("fedprox", lambda h: FedProx(**proximal(h), **work(h)), FULL | {"losses": ALL_LOSSES},
                {"prox": "(mu/2) d^2", "anchor": "server", "solver": "steps", "mu rule": "constant"}),
    "FedProx batches": ("fedprox", lambda h: FedProx(**proximal(h), **work(h), **some(h), inexactness=True), {},
                        {"prox": "(mu/2) d^2", "work": "shuffled", "share": "renormalised"}),
    "FedProx Adam": ("fedprox", lambda h: FedProx(**proximal(h), **work(h), client=client_adam(h)), {"partial": False},
                     {"prox": "(mu/2) d^2", "client": "adam"}),
    "FedProx exact": ("fedprox", lambda h: FedProx(**proximal(h), solver=ProximalPoint(), server=sgd(h)),
                      FULL | {"losses": ALL_LOSSES}, {"solver": "exact", "server": "plain", "prox": "(mu/2) d^2"}),
    "FedProx late": ("fedprox", lambda h: FedProx(
        proximal_mu=AdaptiveProximal(h["proximal_mu"]), stragglers=late(h), **work(h)), FULL | {"stragglers": True},
        {"late": "averaged", "mu rule": "adaptive"}),
    "FedProx dropped": ("fedprox", lambda h: FedProx(**proximal(h), stragglers=late(h, drop=True), **work(h)),
                        FULL | {"stragglers": True}, {"late": "dropped", "mu rule": "constant"}),
    "SCAFFOLD": ("scaffold", controls, FULL | {"losses": ALL_LOSSES}, {"option": "II", "c weights": "as models"}),
    "SCAFFOLD batches": ("scaffold", controls, STEPS_ONLY, UNBIASED | {"option": "II"}),
    "SCAFFOLD option I": ("scaffold", lambda h: controls(h, option=1), EPOCHS_ONLY, UNBIASED | {"option": "I"}),
    "FedSGD": ("fedsgd", lambda h: FedSGD(step_size=h["step_size"]), FULL | {"losses": ALL_LOSSES}, SIZES),
    "FedSGD partial": ("fedsgd", lambda h: FedSGD(step_size=Decay(h["step_size"], 1.0), **some(h)), {},
                       SIZES | {"schedule": "1/(1+t)", "share": "renormalised"}),
    "FedSAM": ("fedsam", lambda h: FedSAM(rho=h["rho"], **work(h)), FULL, {"perturbation": "normalised"}),
    "FedSAM batches": ("fedsam", lambda h: FedSAM(
        rho=Decay(h["rho"]), **work(h, by_step), **some(h)), STEPS_ONLY,
        {"perturbation": "normalised", "rho rule": "1/(1+i)", "schedule": "1/(1+i)", "draw": "distinct"}),
    "FedSAM epochs": ("fedsam", lambda h: FedSAM(rho=h["rho"], **work(h), server=sgd(h, True)), {"partial": False},
                      {"perturbation": "normalised", "server": "heavy-ball", "work": "shuffled"}),
    "FedSAM shadow": ("fedsam", lambda h: FedSAM(
        rho=h["rho"], **steps(h), replacement=h["batch_size"] is not None, shadow=True),
        STEPS_ONLY | {"partial": False}, {"perturbation": "normalised", "draw": "replacement"}),
    "FedNova": ("fednova", lambda h: FedNova(**work(h), **some(h)), {}, SIZES | {"normalisation": "paper"}),
    "FedNova batches": ("fednova", lambda h: FedNova(**steps(h), **some(h)), STEPS_ONLY,
                        {"draw": "distinct", "share": "renormalised"}),
    "FedDyn": ("feddyn", lambda h: FedDyn(alpha=h["alpha"]), FULL | {"losses": ALL_LOSSES, "weights": "uniform"},
               {"solver": "exact", "weights": "1/K"}),
    "FedDyn steps": ("feddyn", lambda h: FedDyn(
        alpha=h["alpha"], local_steps=h["local_steps"], step_size=h["step_size"], **some(h)),
        {"batches": (), "weights": "uniform"}, {"solver": "steps", "local terms": "both", "renewal": "-alpha"}),
    "AFL": ("afl", lambda h: AFL(**players(h)), FULL, {"ascent": "projected", "output": "average before"}),
    "AFL batches": ("afl", lambda h: AFL(
        **players(h), ascent=EntropicStep(), batch_size=h["batch_size"], radius=h["radius"]),
        STEPS_ONLY | {"partial": False, "hyper": {"radius": 1.0}}, {"ascent": "exponentiated", "order": "at once"}),
    "OptimisticAFL": ("afl", lambda h: OptimisticAFL(**players(h)), FULL, {"optimism": "optimistic", "output": "last"}),
    "AgnosticFedAvg": ("agnosticfedavg", lambda h: AgnosticFedAvg(**players(h) | work(h)),
                       FULL | {"losses": ALL_LOSSES},
                       {"ascent": "exponentiated", "model weights": "beta", "first window": "ones"}),
    "AgnosticFedAvg batches": ("agnosticfedavg", lambda h: AgnosticFedAvg(**players(h) | work(h) | some(h)), {},
                               {"ascent": "exponentiated", "losses at": "sent model", "work": "shuffled"}),
    "ApproxFedAvg": ("fedavg", lambda h: ApproxFedAvg(mu=h["softmax_mu"], own_domains=True, **work(h), **some(h)),
                     STEPS_ONLY, SIZES),
    "SoftmaxFedAvg": ("agnosticfedavg", lambda h: SoftmaxFedAvg(mu=h["softmax_mu"], **work(h), **some(h)), STEPS_ONLY,
                      {"domain rule": "softmax"}),
    "GradientDescent": ("fedsgd", lambda h: GradientDescent(step_size=h["step_size"]), FULL, SIZES),
    "ProximalGradient": ("fedsgd", lambda h: ProximalGradient(step_size=h["step_size"]), FULL, SIZES),
    "FISTA": ("fedsgd", lambda h: FISTA(step_size=h["step_size"]), FULL, {"acceleration": "fista"}),
    "ProximalFedSGD": ("fedsgd", lambda h: ProximalFedSGD(step_size=h["step_size"], **some(h)), {},
                       {"share": "renormalised", "schedule": "constant"}),
    "FedMiD": ("fedopt", lambda h: FedMiD(server_step=h["server_step_size"], **steps(h)), FULL, {"server": "plain"}),
    "FedMiD batches": ("fedopt", lambda h: FedMiD(server_step=h["server_step_size"], **steps(h), **some(h)), STEPS_ONLY,
                       {"server": "plain", "share": "renormalised"}),
    "FedDualAvg": ("fedopt", lambda h: FedDualAvg(server_step=h["server_step_size"], **steps(h)), FULL,
                   {"server": "plain"}),
    "FedDualAvg batches": ("fedopt", lambda h: FedDualAvg(
        server_step=h["server_step_size"], **steps(h), **some(h)), STEPS_ONLY, {"server": "plain", "draw": "distinct"}),
}  # fmt: skip
