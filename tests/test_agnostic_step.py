"""A round of AgnosticFedAvg: what the counts and the local steps of a round cost, by hand and by enumeration."""

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared, run
from fedconvex.methods import AgnosticFedAvg
from fedconvex.theorems import THEOREMS
from fedconvex.theorems.agnostic_step import agnostic_step
from fedconvex.theorems.parts.domain_instances import three_domains, unequal_domains
from fedconvex.theory import AssumptionError
from fedconvex.verify import verify

THEOREM = THEOREMS["agnostic-step"]


def planted(term):
    """The theorem with one of its terms halved."""

    def bound(*args, **arguments):
        right = THEOREM.bound(*args, **arguments)
        terms = {k: v * (0.5 if k == term else 1.0) for k, v in right.terms.items()}
        return type(right)(terms, right.quantity, right.source, right.requires)

    return THEOREM._replace(bound=bound)


def mean_gradients(p, w):
    """Gradients of the domains' losses, row by row."""
    fed, out = p.federation, []
    for i in np.unique(fed.domain):
        X, y = fed.X[fed.domain == i], fed.y[fed.domain == i]
        out.append(-(X.T @ (y / (1.0 + np.exp(y * (X @ w))))) / len(y) + p.l2 * w)
    return np.array(out)


def test_one_local_step_does_not_drift_however_long():
    """eta L overflows, times E - 1 = 0."""
    huge = agnostic_step(1.0, 4.0, spread=3.0, L=1e300, step_size=1e300, local_steps=1, gradients=1.0)
    assert huge.terms == {"weights": 1.0, "drift": 0.0}


def test_total_variation_is_at_most_what_is_said(rng):
    """Weights times counts in [a, b], normalised: the share is never exceeded, and attained by two domains."""
    for _ in range(200):
        lam, r = rng.dirichlet(np.ones(4)), np.exp(rng.normal(size=4))
        mu = lam * r / (lam @ r)
        share = agnostic_step(r.min(), r.max(), spread=1.0, L=1.0, step_size=1.0, local_steps=1, gradients=0.0).value
        assert 0.5 * np.abs(mu - lam).sum() <= share + 1e-12
    lam, r = np.array([2.0, 1.0]) / 3.0, np.array([1.0, 4.0])
    assert 0.5 * np.abs(lam * r / (lam @ r) - lam).sum() == pytest.approx(1.0 / 3.0)
    assert agnostic_step(1.0, 4.0, spread=1.0, L=1.0, step_size=1.0, local_steps=1, gradients=0.0).value == 1.0 / 3.0
    assert agnostic_step(0.0, 3.0, spread=2.0, L=1.0, step_size=1.0, local_steps=1, gradients=0.0).value == 2.0
    with pytest.raises(AssumptionError, match="step_size <= 2/L"):
        agnostic_step(1.0, 1.0, spread=1.0, L=1.0, step_size=2.1, local_steps=2, gradients=1.0)


@pytest.mark.filterwarnings("ignore:AgnosticFedAvg ended above its start")
def test_clients_with_rows_of_several_domains():
    """What is measured is the run's own direction; with a full window one local step has no error at all."""
    p = three_domains.make()
    method = AgnosticFedAvg(step_size=0.5, domain_step_size=0.2, local_steps=3)
    one, two = (run(method, p, rounds=t, tol=0, progress=False) for t in (1, 2))
    lam = one.state.domain_weights[0]
    wanted = (one.w - two.w) / 1.5 - lam @ mean_gradients(p, one.w)
    found = verify(THEOREM, p, method, rounds=2)
    assert found.outcome.name == "HOLDS"
    assert found.measured == pytest.approx(float(np.linalg.norm(wanted)), rel=1e-9)
    assert found.bound.terms["weights"] == pytest.approx(0.0, abs=1e-12)
    first = verify(THEOREM, p, method, rounds=1).bound.terms["weights"]
    gradients = mean_gradients(p, np.zeros(3))
    spread = max(np.linalg.norm(g - h) for g in gradients for h in gradients)
    assert first == pytest.approx(spread * (3.0**0.5 - 1.0) / (3.0**0.5 + 1.0), rel=1e-9)  # 30 rows and 10
    single = AgnosticFedAvg(step_size=0.5, domain_step_size=0.2)
    assert verify(THEOREM, p, single, rounds=2).measured < 1e-12


def test_planted_errors_and_other_methods():
    p = unequal_domains[0].make()
    rule = {"domain_step_size": 0.1, "domain_weights": (2 / 3, 1 / 3)}
    method = AgnosticFedAvg(step_size=0.25, **rule)
    assert verify(THEOREM, p, method, rounds=1).outcome.name == "HOLDS"
    assert verify(planted("weights"), p, method, rounds=1).outcome.name == "VIOLATED"
    alone = Problem(Federation.from_arrays([[1.0]], [1.0], [0]), Squared())
    drifting = AgnosticFedAvg(step_size=0.5, domain_step_size=0.1, local_steps=2)
    assert verify(THEOREM, alone, drifting, rounds=1).measured == pytest.approx(0.25)
    assert verify(planted("drift"), alone, drifting, rounds=1).outcome.name == "VIOLATED"
    for wrong, words in (
        (AgnosticFedAvg(step_size=0.1, batch_size=1, **rule), "full local gradients"),
        (AgnosticFedAvg(step_size=0.1, participation=1, **rule), "full participation"),
        (FedAvg(step_size=0.1), "the method AgnosticFedAvg"),
    ):
        verdict = verify(THEOREM, p, wrong, rounds=1)
        assert verdict.outcome.name == "NOT_APPLICABLE" and words in verdict.reason
    weighted = Federation.from_arrays([[1.0], [2.0]], [1.0, -1.0], [0, 1], sample_weight=[1.0, 2.0])
    assert verify(THEOREM, Problem(weighted, Logistic(), 0.1), method, rounds=1).outcome.name == "NOT_APPLICABLE"


def test_arguments_are_refused_by_name():
    given = {"least": 1.0, "most": 4.0, "spread": 3.0, "L": 1.0, "step_size": 0.5, "local_steps": 3, "gradients": 2.0}
    for name in given:
        for odd in ([], np.empty(0), None, float("nan")):
            with pytest.raises((TypeError, ValueError), match=rf"\b{name} must be"):
                agnostic_step(**given | {name: odd})
