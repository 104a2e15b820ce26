"""Federations of sites: the bits of one process, certificates, faults, and messages that nobody should send."""

from __future__ import annotations

import numpy as np
import pytest
from campaigns.sites import SHARED, compare, shared
from test_contract import CONFIGURATIONS, EVERY, kinds

from fedconvex import FedAvg, Federation, FedSGD, GradientDescent, Logistic, Problem, Squared, run
from fedconvex.methods import AFL, MOCHA, SCAFFOLD, AgnosticFedAvg, OptimisticAFL, SecureSums
from fedconvex.problems import MeanRegularised, MultiTaskProblem, StumpProblem
from fedconvex.remote import Roster, Site, in_process

QUICK = ["FedAvg proportional", "FedProx late", "SCAFFOLD batches", "RADFed batches", "FSVRG", "AFL", "MOCHA clock"]


def rotated(names):
    """Every configuration once, kinds of problems, dense and sparse rows and trajectories in turn."""
    for i, name in enumerate(names):
        kind = kinds(name)[i % len(kinds(name))]
        yield name, kind, name in CONFIGURATIONS and i % 2 == 0, 1 + (i // 2) % 2


def test_sites_have_the_bits_of_one_process():
    for name, kind, sparse, R in rotated(QUICK):
        compare(EVERY[name], *shared(name, kind, sparse), R)


@pytest.mark.slow
def test_every_method_of_the_contract_has_the_bits_of_one_process():
    for name, kind, sparse, R in rotated([n for n in SHARED if n not in QUICK]):
        compare(EVERY[name], *shared(name, kind, sparse), R)


def pair(l2=0.1, loss=None, domains=None):
    rng = np.random.default_rng(3)
    clients = [(rng.normal(size=(n, 2)), rng.choice([-1.0, 1.0], n)) for n in (3, 6, 4)]
    fed = Federation.from_clients(clients, labels=["north", "east", "south"], domains=domains)
    return fed, lambda f: Problem(f, loss or Logistic(), l2)


def far(method, fed, make, patience=5, **how):
    """A run over sites of this process, and its roster."""
    roster, sites = Roster.of(make, fed, patience), [Site(method, make, fed.subset([k])) for k in range(fed.K)]
    return run(method, roster, transport=in_process(sites), **how), roster


def test_weights_and_domains_travel():
    """Rows with weights, drawn by weight; domains that not every client has."""
    rng = np.random.default_rng(5)
    X, y, who = rng.normal(size=(20, 2)), rng.normal(size=20), np.repeat([0, 1, 2], [6, 8, 6])
    fed = Federation.from_arrays(X, y, who, np.where(who == 1, "b", "a"), rng.uniform(0.5, 2.0, 20))
    make = lambda f: Problem(f, Squared(), 0.1)  # noqa: E731
    drawn = FedAvg(step_size=0.2, local_steps=3, batch_size=2, replacement=True, batch_draw="weighted")
    for method in (drawn, AFL(step_size=0.1, domain_step_size=0.1)):
        compare(method, fed, make, 2)


def test_a_server_has_no_rows():
    fed, make = pair()
    roster = Roster.of(make, fed)
    for name in ("X", "y", "rows", "domain"):
        with pytest.raises(AttributeError, match="no rows"):
            getattr(roster.federation, name)
    with pytest.raises(AttributeError, match="no rows"):
        roster.gradient(np.zeros(2))


def test_the_gap_is_that_of_strong_convexity():
    """‖grad F‖^2/(2 l2), above the truth, and inf or F itself without l2."""
    fed, make = pair()
    result, _ = far(FedSGD(step_size=0.5), fed, make, rounds=3, tol=0)
    problem = make(fed)
    g = problem.gradient(result.w)
    assert result.gap == pytest.approx(float(g @ g) / 0.2, rel=1e-12)
    assert result.gap >= problem.value(result.w) - problem.solve().value > 0.0
    assert far(FedSGD(step_size=1.5), fed, make, rounds=60, tol=1e-6)[0].status.name == "CONVERGED"
    fed, make = pair(l2=0.0)
    result, _ = far(FedSGD(step_size=0.5), fed, make, rounds=3, tol=0)
    assert result.gap == result.trace.value[-1]  # a loss is at least 0


def test_agnostic_and_dual_gaps_converge():
    fed, make = pair(l2=0.5)
    result, _ = far(OptimisticAFL(step_size=0.6, domain_step_size=0.6), fed, make, rounds=200, tol=1e-3)
    assert result.status.name == "CONVERGED"
    assert result.trace.value[-1] - make(fed).solve_minimax().value <= result.gap
    tasks = lambda f: MultiTaskProblem(f, Logistic(), MeanRegularised(1.0, 0.5))  # noqa: E731
    result, _ = far(MOCHA(), fed, tasks, rounds=60, tol=1e-6)
    assert result.status.name == "CONVERGED"
    assert result.trace.value[-1] - tasks(fed).solve().value <= result.gap


def test_what_sites_cannot_share_is_refused():
    fed, make = pair()
    roster, sites = Roster.of(make, fed), [Site(FedSGD(step_size=0.1), make, fed.subset([k])) for k in range(3)]
    ask = in_process(sites)
    for method, problem, said in (
        (GradientDescent(step_size=0.1), roster, "a client's part"),
        (AgnosticFedAvg(step_size=0.1, domain_step_size=0.1, sums=SecureSums(24)), roster, r"PlainSums\(\)"),
        (FedSGD(step_size=0.1), make(fed), "Roster"),
    ):
        with pytest.raises((TypeError, ValueError), match=said):
            run(method, problem, transport=ask)
    with pytest.raises(TypeError, match="Roster"):
        run(FedSGD(step_size=0.1), roster)
    with pytest.raises(ValueError, match="hold one client"):
        Site(FedSGD(step_size=0.1), make, fed)
    assert not hasattr(StumpProblem, "engine")
    with pytest.raises(TypeError, match=r"ask\(t, \{client: arrays\}\)"):
        run(FedSGD(step_size=0.1), roster, transport=3)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (lambda fed, make: (FedSGD(step_size=0.2), make, fed), "method is FedSGD"),
        (lambda fed, make: (FedSGD(step_size=0.1), lambda f: Problem(f, Logistic(), 0.2), fed), "l2 is 0.2 here"),
        (lambda fed, make: (FedSGD(step_size=0.1), lambda f: Problem(f, Squared(), 0.1), fed), "loss is"),
        (lambda fed, make: (FedSGD(step_size=0.1), make, fed.split(0.5)[0]), "rows must be 6"),
    ],
)
def test_a_site_that_takes_part_in_something_else_says_so(there, said):
    fed, make = pair()
    method, other, rows = there(fed, make)
    sites = [Site(FedSGD(step_size=0.1), make, fed.subset([k])) for k in range(3)]
    sites[1] = Site(method, other, rows.subset([1]))
    roster = Roster.of(make, fed)
    with pytest.warns(UserWarning, match="site east") as told:
        run(FedSGD(step_size=0.1), roster, transport=in_process(sites), rounds=2)
    assert said in str(told[0].message)
    assert {i.client for i in roster.incidents} == {"east"}


def test_another_version_is_refused(monkeypatch):
    fed, make = pair()
    method = SCAFFOLD(step_size=0.1)
    roster, sites = Roster.of(make, fed), [Site(method, make, fed.subset([k])) for k in range(3)]
    ask, mine = in_process(sites), "0.0.1"

    def older(t, requests):
        monkeypatch.setattr("fedconvex.__version__", mine)
        answers = ask(t, requests)
        monkeypatch.undo()
        return answers

    with pytest.warns(UserWarning, match=r"version is 0\.0\.1 here"), pytest.raises(ConnectionError, match="an answer"):
        run(method, roster, transport=older, rounds=2)
