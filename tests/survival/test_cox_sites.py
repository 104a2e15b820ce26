"""Cox models over sites: the bits of one process, certified gaps, sums under masks, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex import FederatedNewton, run
from fedconvex.problems import SurvivalFederation, SurvivalProblem, outcomes
from fedconvex.remote import Roster, Site, in_process
from fedconvex.secure import SecureSums
from tests.survival.cox_oracle import drawn


def make(federation):
    return SurvivalProblem(federation)


def over_sites(method, fed, **options):
    sites = [Site(method, make, fed.subset([k])) for k in range(fed.K)]
    roster = Roster(make, labels=fed.labels.tolist(), sizes=fed.sizes.tolist(), features=fed.d)
    return run(method, roster, transport=in_process(sites), **options)


def rows(rng, n=90, **options):
    X, time, event, late, names, clients = drawn(rng, n, 2, entry=True, strata=2, **options)
    return SurvivalFederation.from_arrays(X, outcomes(time, event, late, names), clients)


def test_sites_have_the_bits_of_one_process_and_certify(rng):
    fed = rows(rng)
    problem = SurvivalProblem(fed)
    there, here = (f(FederatedNewton(), of, rounds=6, tol=1e-13) for f, of in ((over_sites, fed), (run, problem)))
    assert np.array_equal(there.w, here.w)
    above = float(problem.value(there.w)) - problem.solve().lower
    assert above - 1e-12 <= there.gap < 1e-11
    early = over_sites(FederatedNewton(), fed, rounds=3)
    assert early.gap >= float(problem.value(early.w)) - problem.solve().value


def test_a_site_that_says_nothing_of_the_model_leaves_no_certificate_but_zero(rng):
    """Client 2 has one row: its Hessian is zero. N >= 0 remains, and the model is the same."""
    fed = rows(rng)
    first = np.flatnonzero(np.repeat(np.arange(fed.K), fed.sizes) == 2)[0]
    kept = np.arange(fed.n) <= first
    who = np.repeat(np.arange(fed.K), fed.sizes)[kept]
    y = outcomes(fed.y[kept], fed.event[kept], fed.entry[kept], fed.strata[kept])
    small = SurvivalFederation.from_arrays(fed.X[kept], y, who)
    found = over_sites(FederatedNewton(), small, rounds=6, tol=1e-13)
    assert np.allclose(found.w, SurvivalProblem(small).solve().w, atol=1e-10)
    assert found.gap >= SurvivalProblem(small).value(found.w)


def test_sums_under_masks(rng):
    fed = rows(rng)
    best = SurvivalProblem(fed).solve()
    found = over_sites(FederatedNewton(sums=SecureSums()), fed, rounds=7, tol=1e-13)
    assert np.abs(found.w - best.w).max() < 1e-4
    above = float(SurvivalProblem(fed).value(found.w)) - best.lower
    assert above <= found.gap < 1e-6


def test_a_lie_is_seen(rng, monkeypatch):
    """Planted: a site reports a gradient turned around."""
    from fedconvex.families.survival import sites

    fed, honest = rows(rng), sites.report

    def lie(problem, k, asked):
        found = honest(problem, k, asked)
        return found | {"gradient": -found["gradient"]} if k == 1 else found

    monkeypatch.setattr(sites, "KIND", sites.KIND._replace(report=lie))
    with pytest.warns(UserWarning, match="site 1, round .*: answers contradict each other"):
        assert np.isinf(over_sites(FederatedNewton(), fed, rounds=5).gap)
