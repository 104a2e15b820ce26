"""Which estimator a function computes: those of the package, and planted ones."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex.conformance import conform_estimate
from fedconvex.conformance.inference import ERRORS, SAYS, candidates, rows


@pytest.mark.parametrize("model", ["linear", "logistic", pytest.param("cox", marks=pytest.mark.slow)])
def test_every_candidate_is_read_as_itself_and_none_as_another(model):
    known = candidates(model, rows(model))
    for name, (b, covariances) in known.items():
        for errors, V in covariances.items():
            found = conform_estimate(lambda clients, b=b, V=V: (b, np.sqrt(np.diag(V))), model)
            assert (found.point, found.errors) == (name, errors), str(found)
            assert found.distance == 0.0 and found.next_distance > 1e-4
            assert SAYS[name.partition(", ")[0]] in str(found) and ERRORS[errors] in str(found)


def test_the_estimates_are_those_of_their_equations_and_of_numpy():
    X, y = (np.concatenate(parts) for parts in zip(*rows("logistic"), strict=True))
    b = candidates("logistic", rows("logistic"))["pooled"][0]
    assert np.abs(X.T @ (y - 1 / (1 + np.exp(-X @ b)))).max() < 1e-12
    X, y = (np.concatenate(parts) for parts in zip(*rows("linear"), strict=True))
    b, rss = np.linalg.lstsq(X, y, rcond=None)[:2]
    se = np.sqrt(np.diag(np.linalg.inv(X.T @ X)) * rss / (len(y) - 3))
    found = conform_estimate(lambda clients: (b, se), "linear")
    assert (found.point, found.errors) == ("pooled", "model")


@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_partial_likelihoods_have_the_slopes_of_their_values(ties):
    """The value by its definition: the product over deaths, one after the other."""
    from fedconvex.conformance.inference import _partial

    X, time, event = rows("cox")[1]

    def value(b):
        total, risk = 0.0, np.exp(X @ b)
        for t in np.unique(time[event > 0]):
            dead = (time == t) & (event > 0)
            m = dead.sum()
            for j in range(m):
                total -= np.log(risk[time >= t].sum() - (j / m * risk[dead].sum() if ties == "efron" else 0))
            total += (X[dead] @ b).sum()
        return total

    b, h = np.array([0.3, -0.2]), 1e-5
    g, H = _partial((X, time, event), b, ties)
    by_hand = [(value(b + h * e) - value(b - h * e)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(g[0], by_hand, rtol=1e-7)
    slopes = [(_partial((X, time, event), b - h * e, ties)[0] - g)[0] / h for e in np.eye(2)]
    np.testing.assert_allclose(H, slopes, rtol=1e-3)


def by_analyse(family, **how):
    """The package's own analysis, which shares no code with the candidates, as a function of clients."""
    from fedconvex.analysis import analyse

    def estimate(clients):
        X, y, *event = (np.concatenate(parts) for parts in zip(*clients, strict=True))
        names = [f"x{j}" for j in range(X.shape[1]) if not np.all(X[:, j] == 1.0)]
        site = np.repeat(list("abc"), [len(part[0]) for part in clients])
        table = {name: X[:, int(name[1:])] for name in names} | {"y": y, "site": site}
        table |= {"event": event[0]} if event else {}
        found = analyse(table, target="y", client="site", family=family, features=names, **how)
        order = [j for j, name in enumerate(found.names) if name not in names]  # the intercept, if there is one
        order += [list(found.names).index(name) for name in names]
        return found.estimates[order], found.standard_errors[order]

    return estimate


@pytest.mark.parametrize(
    ("robust", "errors"),
    [(None, "model"), ("HC0", "sandwich"), ("HC1", "sandwich, n/(n - p)"), ("client", "clustered, CR1")],
)
@pytest.mark.parametrize(("family", "model"), [("gaussian", "linear"), ("logistic", "logistic")])
def test_analyses_of_the_package_are_read_as_what_they_say(family, model, robust, errors):
    found = conform_estimate(by_analyse(family, robust=robust), model)
    assert (found.point, found.errors) == ("pooled", errors), str(found)


@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_cox_analyses_of_the_package_are_read_as_what_they_say(ties):
    found = conform_estimate(by_analyse("cox", event="event", ties=ties), "cox")
    assert (found.point, found.errors) == (f"stratified, {ties}", "model"), str(found)


def test_what_is_none_of_them_is_said_to_be_none():
    b = candidates("logistic", rows("logistic"))["pooled"][0]
    found = conform_estimate(lambda clients: 1.01 * b, "logistic")
    assert found.point == "" and str(found).startswith("No estimator that is known here; the nearest, pooled")
    found = conform_estimate(lambda clients: (b, np.ones(3)), "logistic")
    assert found.point == "pooled" and found.errors == ""
    for given, says in (
        (lambda clients: b[:2], "be 3 finite numbers"),
        (lambda clients: (b, b, b), "pair with standard errors"),
        (lambda clients: "b", "be 3 finite numbers"),
        (3, "be a function of clients"),
    ):
        with pytest.raises((ValueError, TypeError), match=says):
            conform_estimate(given, "logistic")
    with pytest.raises(ValueError, match="model must be one of linear, logistic, cox"):
        conform_estimate(lambda clients: b, "probit")
    with pytest.raises(ValueError, match="model must be one of"):
        conform_estimate(lambda clients: b, np.array(["linear", "cox"]))
