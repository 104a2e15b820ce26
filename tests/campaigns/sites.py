"""Federations of sites: every method of the contract against a run in one process, and random schedules of faults."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from test_contract import CONFIGURATIONS, FEDERATED, kinds, made

from fedconvex import Federation, Logistic, Problem, Softmax, Squared, run
from fedconvex.driver.returns import leaves
from fedconvex.problems import GaussHermite, GaussianPosteriorProblem, MultiTaskProblem
from fedconvex.remote import Roster, Site, in_process

LOSSES = {"linear": Squared(), "logistic": Logistic(), "softmax": Softmax(3)}
SHARED = [n for n in FEDERATED if kinds(n)[0].split()[-1] in {*LOSSES, "tasks", "posterior"}]  # what sites can share


def rows(kind: str, sparse: bool) -> Federation:
    """Four clients of unequal sizes."""
    rng, pairs = np.random.default_rng(7), []
    for n in (5, 8, 4, 7):
        X, z = rng.normal(size=(n, 3)), rng.normal(size=n)
        z = z + X @ np.array([1.0, -1.0, 0.5])
        y = {"linear": z, "logistic": np.where(z > 0.0, 1.0, -1.0), "softmax": rng.integers(0, 3, n).astype(float)}
        pairs.append((sp.csr_array(X * (rng.random(X.shape) < 0.7)) if sparse else X, y[kind]))
    return Federation.from_clients(pairs, labels=["north", "east", "south", "west"])


def shared(name: str, kind: str, sparse: bool) -> tuple[Federation, Any]:
    """Rows for a configuration, and the line that makes its problem of them."""
    if name in CONFIGURATIONS:
        return rows(kind, sparse), lambda fed: Problem(fed, LOSSES[kind], 0.1)
    whole = made(kind)
    if isinstance(whole, MultiTaskProblem):
        return whole.federation, lambda fed: MultiTaskProblem(fed, whole.loss, whole.relation, whole.normalisation)
    how: dict[str, Any] = {"covariance": whole.covariance} | ({} if whole.linear else {"expectation": GaussHermite(20)})
    how |= {} if whole.private is None else {"private_precision": 2.0}
    return whole.federation, lambda fed: GaussianPosteriorProblem(fed, whole.loss, **how)


def compare(method: Any, fed: Federation, make: Any, R: int) -> None:
    """Assert that sites end with the bits of one process, the same numbers sent, and a valid gap."""
    how: dict[str, Any] = {"rounds": 4, "tol": 0, "seed": 3, "trajectories": R}
    sites, roster = [Site(method, make, fed.subset([k])) for k in range(fed.K)], Roster.of(make, fed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, far = run(method, make(fed), **how), run(method, roster, transport=in_process(sites), **how)
    for (name, a), (_, b) in zip(leaves(one.state), leaves(far.state), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=name)
    assert roster.incidents == []
    assert far.trace.floats_down.tolist() == one.trace.floats_down.tolist()
    assert far.trace.floats_up.tolist() == one.trace.floats_up.tolist()
    assert (far.trace.gap >= one.trace.gap - 1e-12 * (1.0 + np.abs(one.trace.value))).all()
    if not isinstance(make(fed), GaussianPosteriorProblem):  # no certificate over sites
        np.testing.assert_allclose(far.trace.value, one.trace.value, rtol=1e-12)


def contract_trial(rng: np.random.Generator) -> dict[str, Any]:
    """A method of the contract on sites, and in one process."""
    name = str(rng.choice(SHARED))
    kind, sparse, R = str(rng.choice(kinds(name))), bool(rng.random() < 0.5), int(rng.integers(1, 4))
    from test_contract import EVERY

    compare(EVERY[name], *shared(name, kind, sparse), R)
    return {"method": name, "kind": kind, "sparse": sparse, "trajectories": R}
