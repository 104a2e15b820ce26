"""Stump search against every cut, one by one; scikit-learn's trees; ties, constants and bins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier

from fedconvex.families.boosting import stumps
from fedconvex.problems import Binned, Presorted, Stump


def all_stumps(X):
    """Every stump that differs on the rows: both signs at every midpoint, and the constants."""
    for s in (-1.0, 1.0):
        yield Stump(0, np.inf, s, s)
    for j in range(X.shape[1]):
        values = np.unique(X[:, j])
        for c in 0.5 * (values[:-1] + values[1:]):
            for s in (-1.0, 1.0):
                yield Stump(j, c, s, -s)


def best_edge(X, omega):
    return max(float(omega @ h.predict(X)) for h in all_stumps(X))


def data(seed, n, d, levels):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, levels, (n, d)).astype(float) if levels else rng.normal(size=(n, d))
    return X, rng.normal(size=n)


cases = given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 6), st.sampled_from([0, 1, 2, 4]))


@cases
def test_the_search_is_exact(seed, n, d, levels):
    X, omega = data(seed, n, d, levels)
    stump, edge = Presorted(X).search(omega)
    assert edge == pytest.approx(best_edge(X, omega), abs=1e-12)
    assert omega @ stump.predict(X) == pytest.approx(edge, abs=1e-12)


@cases
def test_binned_search_is_exact_up_to_255_values(seed, n, d, levels):
    X, omega = data(seed, n, d, levels)
    stump, edge = Binned(X).search(omega)
    assert edge == pytest.approx(best_edge(X, omega), abs=1e-12)
    assert omega @ stump.predict(X) == pytest.approx(edge, abs=1e-12)


def gini(X, omega, c, j):
    left = X[:, j] <= c
    parts = [(omega[m].sum(), np.abs(omega[m]).sum()) for m in (left, ~left)]
    return sum(s * s / w for s, w in parts)


@cases
def test_gini_chooses_the_best_impurity(seed, n, d, levels):
    X, omega = data(seed, n, d, levels)
    cuts = [h for h in all_stumps(X) if np.isfinite(h.threshold)]
    for table in (Presorted(X), Binned(X)):
        stump, edge = table.search(omega, "gini")
        assert omega @ stump.predict(X) == pytest.approx(edge, abs=1e-12)
        if cuts:
            best = max(gini(X, omega, h.threshold, h.feature) for h in cuts)
            found = omega.sum() ** 2 / np.abs(omega).sum()
            if np.isfinite(stump.threshold):
                found = gini(X, omega, stump.threshold, stump.feature)
            assert found == pytest.approx(best, rel=1e-9)


def test_gini_stumps_are_those_of_scikit_learn(rng):
    X = rng.normal(size=(300, 7)).astype(np.float32).astype(float)
    y = np.sign(X[:, 2] + X[:, 4] + rng.normal(size=300))
    for _ in range(20):
        w = rng.exponential(size=300)
        tree = DecisionTreeClassifier(max_depth=1).fit(X, y, sample_weight=w)
        stump, _ = Presorted(X).search(w * y, "gini")
        assert stump.feature == tree.tree_.feature[0]
        assert stump.threshold == pytest.approx(tree.tree_.threshold[0], rel=1e-12)
        np.testing.assert_array_equal(stump.predict(X), tree.predict(X))


def test_several_weights_in_one_pass(rng):
    for levels in (0, 5):
        X, _ = data(3, 200, 5, levels)
        omega = rng.normal(size=(5, 200))
        for table in (Presorted(X), Binned(X)):
            for p in (1, 2, 5):
                assert table.search_many(omega[:p]) == [table.search(w) for w in omega[:p]]


def weights(rng, p, n, alike=True):
    """Signed weights of p sources; those of boosting are alike in sign."""
    if not alike:
        return rng.normal(size=(p, n))
    return rng.choice([-1.0, 1.0], n) * rng.exponential(size=n) * rng.dirichlet(np.ones(p), n).T


@pytest.mark.parametrize("levels", [0, 3])
@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.slow_unless(p=[1, 2])
def test_bounds_spare_scans_and_change_no_bit(levels, p, rng, monkeypatch):
    """The same stumps and edges as from scanning every cut of every feature."""
    X, _ = data(6, 400, 7, levels)
    X[:, 4] = X[:, 1]  # ties between features
    for alike in (True, False):
        omega = weights(rng, p, 400, alike)
        omega[:, :20] = 0.0
        for table in (Presorted(X), Binned(X, 30)):
            for criterion in ("error", "gini"):
                answers = []
                for few in (10**9, 0):
                    monkeypatch.setattr(stumps, "_FEW", few)
                    answers.append((table.search_many(omega, criterion), table.search_best(omega, criterion)))
                assert answers[0] == answers[1]
                many, (e, *best) = answers[0]
                assert tuple(best) == many[e]
                assert best[1] == max(edge for _, edge in many)


def test_bounds_are_above_every_gain_and_below_where_wrong(rng, monkeypatch):
    """Bounds hold for all features and leave few to scan; bounds that are too low would be seen in the stump."""
    X, _ = data(8, 600, 12, 0)
    omega = weights(rng, 2, 600) * np.where(X[:, 5] > 0.3, 1.5, 0.5)
    omega = np.abs(omega) * np.sign(X[:, 5] - 0.3 + rng.normal(size=600))
    monkeypatch.setattr(stumps, "_FEW", 0)
    for table, criteria in ((Presorted(X), ("error", "gini")), (Binned(X), ("error",))):
        for criterion in criteria:
            tops = table._bounds(omega, criterion).tops
            for e, w in enumerate(omega):
                full = stumps._Scan(float(w.sum()), np.empty(12), np.empty(12, np.int64), np.empty(12))
                table._scan_features(w, np.arange(12), criterion, full)
                assert np.all(tops[e] >= full.gains)
                assert np.sum(tops[e] >= full.gains.max()) < 6
    table, right = Presorted(X), Presorted(X).search(omega[0])
    true = table._bounds
    table._bounds = lambda *args: (found := true(*args))._replace(tops=np.where(np.arange(12) == 5, 0.0, found.tops))
    assert right[0].feature == 5 != table.search(omega[0])[0].feature


def test_weights_that_are_not_finite_or_all_zero(monkeypatch):
    monkeypatch.setattr(stumps, "_FEW", 0)
    X, _ = data(1, 40, 3, 0)
    for table in (Presorted(X), Binned(X)):
        assert table.search(np.zeros(40)) == (Stump(0, np.inf, 1.0, 1.0), 0.0)
        assert table.search_best(np.zeros((2, 40)))[1:] == (Stump(0, np.inf, 1.0, 1.0), 0.0)
        table.search_best(np.full((2, 40), np.nan))  # a diverged run still ends


def test_a_part_of_the_rows(rng):
    for levels in (0, 5):
        X, omega = data(4, 90, 3, levels)
        for kind in (Presorted, Binned):
            stump, edge = kind(X).rows(20, 60).search(omega[20:60])
            other, same = kind(X[20:60]).search(omega[20:60])
            assert edge == pytest.approx(same, abs=1e-12)
            np.testing.assert_array_equal(stump.predict(X[20:60]), other.predict(X[20:60]))


def test_many_values_share_bins(rng):
    X = rng.normal(size=(5000, 3))
    y = np.sign(X[:, 1] - 0.3)
    for bins in (2, 16, 255):
        table = Binned(X, bins)
        assert max(e.size for e in table.edges) == bins - 1
        assert np.bincount(table.code[0]).max() <= 2 * 5000 / bins + 1
        stump, edge = table.search(y / 5000)
        assert (y / 5000) @ stump.predict(X) == pytest.approx(edge, abs=1e-12)
    assert edge > 0.99


def test_constant_features_give_the_constant_stump():
    X, omega = np.ones((4, 2)), np.array([0.5, -0.1, 0.2, 0.1])
    for table in (Presorted(X), Binned(X)):
        for criterion in ("error", "gini"):
            stump, edge = table.search(omega, criterion)
            assert stump == Stump(0, np.inf, 1.0, 1.0)
            assert edge == pytest.approx(0.7)


def test_neighbouring_floats_are_separated():
    a = 1.0
    b = np.nextafter(a, 2.0)
    X, omega = np.array([[a], [b]]), np.array([1.0, -1.0])
    for table in (Presorted(X), Binned(X)):
        assert table.search(omega)[0].predict(X).tolist() == [1.0, -1.0]


@pytest.mark.parametrize("kind", [Presorted, Binned])
def test_bad_input(kind):
    with pytest.raises(ValueError, match="finite"):
        kind([[np.nan], [1.0]])
    with pytest.raises(ValueError, match="two-dimensional"):
        kind([1.0, 2.0])
    with pytest.raises(ValueError, match="one signed weight per row"):
        kind([[0.0], [1.0]]).search(np.ones(3))
    with pytest.raises(ValueError, match="one of 'error', 'gini'"):
        kind([[0.0], [1.0]]).search(np.ones(2), "entropy")


@pytest.mark.parametrize("size", [1e-300, 1e-163, 1e-100, 1e100, 1e300])
@pytest.mark.parametrize("criterion", ["error", "gini"])
def test_tiny_and_huge_weights(size, criterion):
    """Scaling all weights changes no stump; before, squares and fourth powers vanished or overflowed."""
    X, w = [[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [3.0, 5.0]], np.array([-1.0, -1.0, 1.0, 1.0])
    for table in (Presorted(X), Binned(X)):
        stump, edge = table.search(w * size, criterion)
        assert (stump.feature, stump.threshold) == (0, 1.5)
        assert edge == pytest.approx(4.0 * size, rel=1e-12)
        (first, _), (second, _) = table.search_many(np.array([w, -w * size]), criterion)
        assert (first.left, second.left) == (-1.0, 1.0)
        assert first.threshold == second.threshold == 1.5


def test_weights_that_are_no_numbers():
    for table in (Presorted([[0.0], [1.0]]), Binned([[0.0], [1.0]])):
        for wrong in (np.nan, np.inf):
            with pytest.raises(ValueError, match="finite weights"):
                table.search([wrong, 1.0])


@pytest.mark.parametrize(
    "fields", [(-1, 0.0, 1.0, -1.0), (0.5, 0.0, 1.0, -1.0), (0, np.nan, 1.0, -1.0), (0, 0.0, 2.0, -1.0)]
)
def test_stumps_are_checked(fields):
    with pytest.raises((ValueError, TypeError), match="Stump"):
        Stump(*fields)
    assert Stump(0, np.inf, 1.0, 1.0)._replace(threshold=2.0) == Stump(0, 2.0, 1.0, 1.0)
