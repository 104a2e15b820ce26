"""Clients grouped into domains: planted groups, the best grouping by enumeration, and the bound's terms by hand."""

import itertools
import math

import numpy as np
import pytest

from fedconvex import Federation, Logistic, Problem, Squared
from fedconvex.report import client_grouping as domains
from fedconvex.report import cluster, domain_terms, domain_trade_off


def planted(by, K=12, seed=0):
    """Clients of three kinds, which differ in features, in shares of labels, or in their models."""
    rng, kind = np.random.default_rng(seed), np.arange(K) % 3
    X = rng.normal(size=(K, 20, 2)) + (4.0 * np.eye(3, 2)[kind][:, None] if by == "features" else 0.0)
    y = np.where(rng.random((K, 20)) < np.array([0.1, 0.5, 0.9])[kind][:, None], 1.0, -1.0)
    if by == "gradients":
        y = np.einsum("kij,kj->ki", X, 3.0 * np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])[kind])
    return kind, Problem(Federation.from_clients(list(zip(X, y, strict=True))), Squared(), 0.1)


@pytest.mark.parametrize("by", ["features", "labels", "gradients"])
def test_planted_groups_are_found(by):
    """Each kind by what it differs in; the federation has the groups as domains, in the order of first clients."""
    kind, p = planted(by)
    found = cluster(p, 3, by)
    np.testing.assert_array_equal(found.domain, kind)
    np.testing.assert_array_equal(found.federation.domain, np.repeat(kind, 20))
    assert found.federation.domain_labels.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(found.federation.X, p.federation.X)
    np.testing.assert_array_equal(cluster(p, 3, by).domain, found.domain)


def test_the_best_of_all_groupings():
    """Seven clients of unequal sizes on the line, two and three groups: all groupings by enumeration."""
    rng = np.random.default_rng(4)
    sizes, at = rng.integers(1, 9, 7), rng.normal(size=7)
    fed = Federation.from_clients([([[x]] * n, [0.0] * n) for x, n in zip(at, sizes, strict=True)])
    mass, v = sizes / sizes.sum(), at / fed.X.std()
    for p in (1, 2, 3, 7):
        best = math.inf
        for groups in itertools.product(range(p), repeat=7):
            g = np.array(groups)
            if len(set(groups)) == p:
                centres = np.bincount(g, mass * v) / np.bincount(g, mass)
                best = min(best, float(mass @ (v - centres[g]) ** 2)) if p < 7 else 0.0
                if p == 7:
                    break
        assert cluster(fed, p).within == pytest.approx(best, rel=1e-9, abs=1e-15)


def test_terms_by_hand():
    """Two domains of unequal sizes, three models: every term from its formula; as p grows complexity rises, discrepancy
    falls to 0."""
    _, p = planted("labels", K=6)
    models = np.random.default_rng(1).normal(size=(3, 2)) * 0.3
    found = domain_trade_off(p, models, by="labels", delta=0.1, largest=20.0)
    assert [t.p for t in found] == [1, 2, 3, 4, 5, 6] and found[0].smallest == 120 and found[-1].smallest == 20
    loss = np.array([[np.mean((X @ w - y) ** 2) / 2 for X, y in (p.federation.client_rows(k) for k in range(6))]
                     for w in models])  # fmt: skip
    for t in found:
        means = np.array([loss[:, t.domain == c].mean(axis=1) for c in range(t.p)]).T  # clients have equal sizes
        rows = 20 * np.bincount(t.domain)
        best = means[means.max(axis=1).argmin()]
        sums = best + 40.0 * np.sqrt(2 * np.log(3) / rows) + 20.0 * np.sqrt(np.log(t.p / 0.1) / (2 * rows))
        assert t.bound == pytest.approx(sums.max() + t.discrepancy, rel=1e-12)
        assert t.discrepancy == pytest.approx((loss - means[:, t.domain]).max(), abs=1e-12)
    assert found[-1].discrepancy == 0.0 < found[0].discrepancy
    assert np.all(np.diff([t.complexity + t.deviation for t in found[::5]]) > 0)
    one = domain_trade_off(p, models, models[1], counts=[1], by="labels", largest=20.0)[0]
    assert one.empirical == pytest.approx(loss[1].mean(), rel=1e-12)


def test_clients_that_are_alike_count_once():
    """Four clients of two kinds: by default one and two domains, each as if it had been asked for."""
    fed = Federation.from_clients([([[1.0]] * 5, [y] * 5) for y in (0.0, 1.0, 0.0, 1.0)])
    p, models = Problem(fed, Squared(), 0.1), np.array([[0.0], [1.0]])
    for by in ("labels", "gradients"):
        found, asked = (domain_trade_off(p, models, by=by, counts=c) for c in (None, [1, 2]))
        assert [repr(t) for t in found] == [repr(t) for t in asked]
        assert [t.discrepancy for t in found] == [0.25, 0.0]


def test_terms_from_losses_that_are_known():
    """As from the problem itself; the model that is asked for instead of the best."""
    _, p = planted("labels", K=6)
    models = np.random.default_rng(1).normal(size=(3, 2)) * 0.3
    loss = p.client_values(models) - p.ridge_terms(models)[:, None]
    for t in domain_trade_off(p, models, by="labels", largest=20.0):
        assert repr(domain_terms(loss, [20] * 6, t.domain, largest=20.0)) == repr(t)
    own = domain_terms(loss, [20] * 6, [0] * 6, loss[2], largest=20.0)
    assert own.empirical == pytest.approx(loss[2].mean())


def test_the_loss_of_every_row_is_bounded():
    """Losses 0 and 1.125, whose mean is below the bound of 1 that the second exceeds."""
    p = Problem(Federation.from_clients([([[1.0]] * 2, [0.0, 1.5])]), Squared())
    with pytest.raises(ValueError, match=r"losses of rows reach 1\.125"):
        domain_trade_off(p, np.zeros((1, 1)))


def test_a_lost_centre_is_caught(monkeypatch):
    """Centres that do not count clients by their rows give a larger sum of squares."""
    fed = Federation.from_clients([([[x]] * n, [0.0] * n) for x, n in ((0.0, 1), (1.0, 9), (5.0, 5))])
    right, mean = cluster(fed, 2).within, domains._lloyd
    monkeypatch.setattr(domains, "_lloyd", lambda points, mass, c: mean(points, np.full(3, 1 / 3), c))
    assert cluster(fed, 2).within != pytest.approx(right, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f, p: cluster(f, 5), "cluster: p must be at most 4"),
        (lambda f, p: cluster(f, 3), "be at most 2, the clients that differ; got 3"),
        (lambda f, p: cluster(f, 2, "gradients"), "be a Problem to group by gradients"),
        (lambda f, p: cluster(f, 2, "size"), "cluster: by must be"),
        (lambda f, p: domain_trade_off(p, np.ones((2, 1)), largest=0.1), "largest must bound the losses"),
        (lambda f, p: domain_trade_off(p, np.ones((2, 1)), [0.5]), "w must be one of the models"),
        (lambda f, p: domain_terms([[0.1, 1.2]], [1, 1], [0, 0]), "losses must lie in"),
        (lambda f, p: domain_terms([[0.1, 0.2]], [1, 1], [0, 0], [0.5, -0.1]), "mine must lie in"),
        (lambda f, p: domain_terms([[0.1, 0.2]], [1, 0], [0, 0]), "sizes must be at least 1"),
        (lambda f, p: domain_terms([[0.1, 0.2]], [1, 1], [1, 1]), "domain must have clients in each"),
    ],
)
def test_what_is_refused(call, words):
    """By name."""
    fed = Federation.from_clients([([[x]], [1.0]) for x in (0.0, 1.0, 0.0, 1.0)])
    with pytest.raises((TypeError, ValueError), match=words):
        call(fed, Problem(fed, Logistic(), 0.1))
