"""The experiment on the number of domains: its draws, its bound by hand, and that every claim can come out false."""

import math

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from fedconvex.papers import domain_counts as d
from fedconvex.papers import large_client as big
from fedconvex.papers.agnostic_clients.data import load_splits
from fedconvex.papers.images import accuracies
from fedconvex.papers.repeated import Repeated

SMALL = d.DomainsScale(2, (90, 60, 30), 4)


def planted(sign):
    """Rows of four draws for which every claim holds, or none does (sign -1)."""
    bound, scored = [], []
    for r, e in enumerate((0.0, 0.001, -0.001, 0.002)):
        for share in (d.FEW, 1.0):
            for p in (1, 2, 3, 4, 12):
                value = (1.0 if p != 3 else 1.0 - 0.2 * sign * share) + e * (1.0 + 0.1 * p)
                terms = {"complexity": sign * p, "deviation": sign * p, "discrepancy": -sign * p, "bound": value}
                row = {"share": share, "p": p, "repetition": r, "smallest": 9, "empirical": 0.1, "spare": sign}
                bound.append(row | {k: v + e if k != "bound" else v for k, v in terms.items()})
        for by, p, worst, gap in (
            ("features", 1, 1.0 + 0.5 * sign, 0.0), ("features", 3, 1.0, sign),
            ("features", 12, 1.0 + 0.1 * sign, sign), ("given", 3, 1.0 - 0.5 * (sign < 0), sign),
            ("labels", 3, 1.0 + 0.5 * sign, 0.0), (d.RANDOM, 3, 1.0, 0.0 if sign > 0 else 0.5),
        ):  # fmt: skip
            row = {"grouped by": by, "p": p, "repetition": r, "worst loss": worst + e * p, d.GAP: gap + e * p}
            scored.append(row | {"mean loss": sign * p + e})
    return Repeated(tuple(bound)), Repeated(tuple(scored))


def test_claims_of_domains_can_fail():
    assert [c.holds for c in d.claims(*planted(1.0))] == [True] * 12
    found = list(d.claims(*planted(-1.0)))
    assert [c.holds for c in found] == [False] * 12 and [c.everywhere for c in found] == [False] * 11 + [True]
    assert d.turns(planted(1.0)[0], 1.0) == [3] * 4


def test_shares_of_pairs_by_hand():
    """Four clients: pairs (0,1), (2,3) are joined by both, (0,2), ... parted by both; one is joined by one only."""
    assert d.pairs_alike(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0])) == 1.0
    assert d.pairs_alike(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 2])) == pytest.approx(5 / 6)


def test_draws_hold_what_they_say():
    """Sizes of clients; nobody is tested on what somebody trained on; a turned image is the upright one, turned."""
    rng = np.random.default_rng(0)
    images, y = rng.random((400, 4, 4)), np.arange(400.0) % 3
    draws = [d.drawn(images, y, number, SMALL, 0) for number in range(2)]
    assert draws[0].train.sizes.tolist() == [18, 9, 4, 4, 15, 7, 3, 3, 12, 6, 3, 3]
    plain = images.reshape(400, -1) / images.max()
    where = []
    for made in draws:
        for clients in (made.train, made.earlier):
            upright = clients.X[: clients.ptr[4], :-1]  # the first four clients' kind
            where += [int(np.abs(plain - row).sum(axis=1).argmin()) for row in upright]
        X, labels = made.test[0]
        tested = [int(np.abs(plain - row).sum(axis=1).argmin()) for row in X[:, :-1]]
        np.testing.assert_array_equal(labels, y[tested])
        where += tested
        turned = np.array([np.rot90(images[i]).ravel() for i in tested]) / images.max()
        np.testing.assert_allclose(made.test[2][0][:, :-1], turned)
    assert len(set(where)) == len(where)  # the two draws share no rows either: there are enough
    again = [d.drawn(images[:200], y[:200], number, SMALL, 0) for number in range(2)]
    assert not np.array_equal(again[0].train.X, again[1].train.X)


@pytest.mark.parametrize("shape", [(5000, 4, 6), (5000, 16), (90, 4, 4)])
def test_what_are_not_enough_square_images_is_refused(tmp_path, shape):
    """By name, for a wrong shape and for too few."""
    X, y = np.ones(shape), np.arange(shape[0]) % 3
    np.savez(tmp_path / "few.npz", x_train=X, y_train=y, x_test=X[:9], y_test=y[:9])
    words = r"must (be at least 1,797 square images|hold images \(n, h, w\))"
    with pytest.raises(ValueError, match=words):
        d.EXPERIMENT.run(quick=True, data=tmp_path / "few.npz")


@pytest.mark.slow
def test_the_bound_by_hand(compiled_kernels):
    """One draw of the digits: the terms for one domain and for twelve, from errors that are counted here."""
    _, images, y = d.labelled_images(None)
    made = d.drawn(images, y, 0, d.DomainsScale(1, (300, 150, 100), 4), 0)
    rows = {(r["share"], r["p"]): r for r in d.bounds(made, 0)}
    before = d.problem_of(made.earlier, d.KIND, 10)
    parts = [before.federation.subset([k for k in range(12) if d.KIND[k] == j]) for j in range(3)]
    own = [d.Problem(part, before.loss, d.L2).solve().w for part in parts]
    models = np.array([before.solve().w, before.solve_minimax().w, *own])
    fed = made.train
    errors = np.array([1.0 - accuracies(models, *fed.client_rows(k)) for k in range(12)])  # (K, H)
    all_ = (errors * fed.sizes[:, None]).sum(axis=0) / fed.n
    one, twelve = rows[1.0, 1], rows[1.0, 12]
    n, m = fed.n, fed.sizes
    by_hand = all_.min() + 2 * math.sqrt(2 * math.log(5) / n) + math.sqrt(math.log(1 / 0.05) / (2 * n))
    assert one["bound"] == pytest.approx(by_hand + (errors - all_).max(), rel=1e-9)
    best = errors[:, errors.max(axis=0).argmin()]
    sums = best + 2 * np.sqrt(2 * math.log(5) / m) + np.sqrt(math.log(12 / 0.05) / (2 * m))
    assert twelve["bound"] == pytest.approx(sums.max(), rel=1e-9) and twelve["discrepancy"] == 0.0
    assert all(r["spare"] > 0.0 for r in rows.values())
    assert rows[d.FEW, 1]["smallest"] == sum(max(1, n // 4) for n in fed.sizes.tolist())


# ---------------------------------------------------------------- large-client


def test_claims_of_the_large_client_can_fail():
    def planted(sign):
        others = {big.BY_ROWS: 0.5, big.WITHOUT: 0.4}
        rows = []
        for r, e in enumerate((0.0, 0.001, -0.001, 0.002)):
            for j, (share, model, client) in enumerate(
                (s, m, c) for s in big.SHARES for m in big.MODELS for c in (big.OTHERS, big.LARGE)
            ):
                loss = others.get(model, 0.3) if client == big.OTHERS else {big.BY_ROWS: 0.1}.get(model, 0.2)
                loss -= 0.3 * (model == big.BY_ROWS and client == big.OTHERS and share < 0.5)
                row = {"share": share, "model": model, "client": client, "repetition": r, "weight": 0.5}
                rows.append(row | {"loss": sign * loss + e * (1 + 0.1 * j), "gap": 1e-9 if sign > 0 else 1e-3})
        return Repeated(tuple(rows))

    assert [c.holds for c in big.claims(planted(1.0))] == [True] * 6
    assert [c.holds for c in big.claims(planted(-1.0))] == [False] * 6


@pytest.mark.slow
def test_the_large_client_has_the_share_and_the_classes_that_it_should():
    rows, seen = load_splits(splits=2, seed=1).splits[0], []
    for share in big.SHARES:
        fed = big.federation_of(rows, 10, share, np.random.default_rng(2))
        assert fed.sizes[-1] / fed.n == pytest.approx(share, abs=0.005) and fed.sizes[:-1].tolist() == [20] * 5
        assert set(fed.client_rows(5)[1].tolist()) == {0.0, 1.0, 2.0, 3.0}
        assert np.unique(fed.y[:100]).size == 10
        seen.append(fed.X[:100])
    assert np.array_equal(seen[0], seen[1]) and np.array_equal(seen[0], seen[2])  # the same small clients


@pytest.mark.slow
def test_weights_of_the_large_client_by_hand():
    """Each model is a minimum of the losses under its weights: gradients by NumPy, weighed, are zero."""
    rows = load_splits(splits=1, seed=3, block=4).splits[0]
    for share in big.SHARES[1:]:
        fed = big.federation_of(rows, 10, share, np.random.default_rng(0))
        found = big.solved(fed, 10)
        weights = {
            big.BY_ROWS: fed.sizes / fed.n,
            big.ALIKE: np.full(6, 1 / 6),
            big.WITHOUT: np.r_[np.full(5, 0.2), 0.0],
        }
        weights[big.FAIR] = found[big.FAIR].domain_weights
        for name, p in weights.items():
            w = found[name].w
            grad = big.L2 * w
            for k in range(6):
                X, y = fed.client_rows(k)
                P = np.exp(X @ w.T)
                P = P / P.sum(axis=1, keepdims=True) - np.eye(10)[y.astype(int)]
                grad = grad + p[k] * P.T @ X / len(y)
            assert np.abs(grad).max() < 1e-5, (share, name)
