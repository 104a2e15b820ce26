"""Preprocessing by sums over clients: the record of all rows at once, exactly or up to rounding, and its price."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex import Federation
from fedconvex.preprocessing import _as_doubles, _as_keys, _order_statistics, _Sorted, _Totals, fit_federated
from fedconvex.secure import SecureSums
from fedconvex.tables import read_table

pytestmark = pytest.mark.anywhere


def table(n=60, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 90, n).astype(float)
    age[rng.random(n) < 0.2] = np.nan
    sex = np.where(rng.random(n) < 0.1, None, rng.choice(["f", "m", "x"], n))
    columns = {"age": age, "dose": 1e6 + rng.normal(size=n), "tiny": 1e-200 * rng.normal(size=n), "sex": sex}
    return {**columns, "ward": rng.choice(["a", "b", "c"], n), "y": rng.normal(size=n)}


def both(impute, secure, data=None, **how):
    frame, columns = read_table(data or table(), "y", "ward", impute=impute)
    owners = columns.clients(frame)
    frames = {name: frame.take(owners == name) for name in np.unique(owners).tolist()}
    return columns.fit(frame, **how), fit_federated(columns, frames, secure=secure, **how)


@pytest.mark.parametrize("impute", ["median", "mode", "indicator"])
@pytest.mark.parametrize("secure", [None, SecureSums(28)])
def test_equal_to_all_rows_at_once(impute, secure):
    central, found = both(impute, secure, standardise_target=True)
    assert [(c.name, c.levels, c.fill, c.indicator) for c in found.columns.columns] == [
        (c.name, c.levels, c.fill, c.indicator) for c in central.columns
    ]  # medians, modes and categories are exact
    np.testing.assert_allclose(found.columns.center, central.center, rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(found.columns.scale, central.scale, rtol=1e-11)
    one_hot = [j for j, name in enumerate(central.feature_names) if "=" in name]
    np.testing.assert_allclose(found.columns.scale[one_hot], central.scale[one_hot], rtol=1e-13)
    assert found.columns.target_center == pytest.approx(central.target_center, rel=1e-12, abs=1e-14)
    assert found.columns.target_scale == pytest.approx(central.target_scale, rel=1e-12)
    assert found.columns.rows == central.rows == 60 and found.columns.is_sparse == central.is_sparse


def test_a_wide_one_hot_table_is_sparse_in_both():
    rng = np.random.default_rng(0)
    data = {"kind": [f"k{i % 40}" for i in range(400)], "kind2": rng.choice([f"l{i}" for i in range(40)], 400)}
    data |= {"ward": rng.choice(["a", "b"], 400), "y": rng.normal(size=400)}
    central, found = both(None, None, data)
    assert central.is_sparse and found.columns.is_sparse and found.columns.feature_names == central.feature_names
    np.testing.assert_allclose(found.columns.scale, central.scale, rtol=1e-12)


@pytest.mark.parametrize("secure", [None, SecureSums()], ids=["open", "masked"])
def test_numbers_far_from_zero_are_centred_in_a_sparse_table_too(secure):
    """A year beside kinds: divided by its deviation only it is 600 everywhere, and gradient steps 1e5 times shorter."""
    rng = np.random.default_rng(0)
    data = {"kind": [f"k{i % 40}" for i in range(600)], "other": rng.choice([f"o{i}" for i in range(40)], 600)}
    data |= {"ward": rng.choice(["a", "b"], 600), "year": rng.integers(2012, 2024, 600) + 1e9}
    data |= {"visits": rng.poisson(0.2, 600).astype(float), "y": rng.normal(size=600)}
    central, found = both(None, secure, data)
    year, visits = central.feature_names.index("year"), central.feature_names.index("visits")
    assert central.is_sparse and np.flatnonzero(central.center).tolist() == [year]
    np.testing.assert_allclose(found.columns.center, central.center, rtol=1e-14)
    np.testing.assert_allclose(found.columns.scale, central.scale, rtol=1e-12)
    np.testing.assert_allclose(central.scale[year], np.std(data["year"] - 1e9), rtol=1e-12)
    frame, _ = read_table(data, "y", "ward")
    X, raw = central.standardised(central.matrix(frame)), central.matrix(frame)
    assert X.nnz <= raw.nnz and abs(X[:, [visits]].nnz - np.count_nonzero(data["visits"])) == 0
    np.testing.assert_allclose(X.toarray(), (raw.toarray() - central.center) / central.scale, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wide", [False, True])
def test_weights_count_rows(wide):
    """Means and deviations are those of repeated rows, and rows of weight 0 teach nothing, not even a category."""
    data, rng = table(400, seed=2), np.random.default_rng(3)
    data["age"] = np.where(np.isnan(data["age"]), 50.0, data["age"])
    data["sex"] = np.array([f"k{i}" for i in rng.integers(0, 60 if wide else 3, 400)])
    data["count"] = rng.integers(0, 4, 400).astype(float)
    data["sex"][data["count"] == 0.0] = "only here"
    again = np.repeat(np.arange(400), data["count"].astype(int))
    repeated = {name: np.asarray(x)[again] for name, x in data.items()}
    how = {"weight": "count", "keep": ["sex"]}
    frame, columns = read_table(data, "y", "ward", **how)
    owners = columns.clients(frame)
    found = fit_federated(columns, [frame.take(owners == k) for k in "abc"], standardise_target=True).columns
    mine = columns.fit(frame, standardise_target=True)
    more, plain = read_table({k: v for k, v in repeated.items() if k != "count"}, "y", "ward", keep=["sex"])
    theirs = plain.fit(more, standardise_target=True)
    assert mine.feature_names == theirs.feature_names == found.feature_names and mine.is_sparse == wide
    for one in (mine, found):
        np.testing.assert_allclose(one.center, theirs.center, rtol=1e-12)
        np.testing.assert_allclose(one.scale, theirs.scale, rtol=1e-10)
        assert one.target_center == pytest.approx(theirs.target_center, rel=1e-12)
        assert one.target_scale == pytest.approx(theirs.target_scale, rel=1e-12)


@pytest.mark.parametrize("secure", [None, SecureSums(28)], ids=["open", "masked"])
@pytest.mark.parametrize("impute", ["median", "mode", "indicator"])
@pytest.mark.parametrize("unit", [1.0, 0.1])
def test_what_fills_gaps_is_that_of_repeated_rows(impute, secure, unit):
    """Even counts put the median between two numbers, and in tenths their sums miss the half by rounding."""
    data, rng = table(seed=4), np.random.default_rng(5)
    data["age"] = np.round(data["age"], -1)  # numbers that repeat, for modes
    count = rng.integers(0, 4, 60)
    count[:3] += np.array([1, 0, 1]) * (count.sum() % 2)
    again = np.repeat(np.arange(60), count)
    more, plain = read_table({k: np.asarray(x)[again] for k, x in data.items()}, "y", "ward", impute=impute)
    frame, columns = read_table(data | {"w": unit * count}, "y", "ward", impute=impute, weight="w")
    owners = columns.clients(frame)
    found = fit_federated(columns, [frame.take(owners == k) for k in "abc"], secure=secure).columns
    fills = {c.name: (c.fill, c.indicator, c.levels) for c in plain.fit(more).columns}
    for one in (columns.fit(frame), found):
        assert {c.name: (c.fill, c.indicator, c.levels) for c in one.columns if c.name != "w"} == fills
    bare, alike = read_table(data, "y", "ward", impute=impute)
    assert {c.name: c.fill for c in alike.fit(bare).columns}["dose"] != fills["dose"][0]


@pytest.mark.parametrize("impute", ["median", "mode"])
def test_halves_of_weights_that_are_tied_by_rounding(impute):
    """Weights .1 + .2 against .3: the lower and the upper half meet, and both numbers are as frequent."""
    data = {"x": [1.0, 1.0, 5.0, np.nan], "w": [0.1, 0.2, 0.3, 1.0], "y": [0.0, 1.0, 2.0, 3.0], "ward": list("aabb")}
    frame, columns = read_table(data, "y", "ward", impute=impute, weight="w")
    owners = columns.clients(frame)
    found = fit_federated(columns, [frame.take(owners == k) for k in "ab"]).columns
    for one in (columns.fit(frame), found):
        assert {c.name: c.fill for c in one.columns}["x"] == (3.0 if impute == "median" else 1.0)


def test_fractional_weights_leave_nothing_of_zeros_that_are_not_there():
    """In sparse tables: a column without zeros at 1e9, and one that is 1 everywhere, whose deviation is 0."""
    rng = np.random.default_rng(0)
    for _ in range(4):
        data = {name: [f"{name}{i}" for i in rng.integers(0, 40, 400)] for name in ("cat", "other")}
        data |= {"year": 1e9 + 10.0 * rng.normal(size=400), "same": np.ones(400), "ward": rng.choice(["a", "b"], 400)}
        data |= {"y": rng.normal(size=400), "w": 5.0 * rng.random(400) + 0.1}
        frame, columns = read_table(data, "y", "ward", weight="w", keep=["same"])
        owners = columns.clients(frame)
        found = fit_federated(columns, [frame.take(owners == k) for k in "ab"]).columns
        off = data["year"] - np.average(data["year"], weights=data["w"])
        deviation = np.sqrt(np.average(off**2, weights=data["w"]))
        for one in (columns.fit(frame), found):
            scale = dict(zip(one.feature_names, one.scale.tolist(), strict=True))
            assert one.is_sparse and scale["same"] == 1.0 and scale["year"] == pytest.approx(deviation, rel=1e-6)


def test_weights_of_zero_only_are_told_by_the_federation():
    """As clients without weight are: what is fitted to them is not asked for."""
    data = {"x": [1.0, 4.0, 3.5], "y": [0.0, 1.0, 0.5], "w": [0.0, 0.0, 2.0], "ward": ["a", "b", "a"]}
    frame, columns = read_table(data, "y", "ward", weight="w")
    none = frame.take([0, 1])
    assert columns.fit(none).rows == 2
    fit_federated(columns, [none, frame.take([2])])
    with pytest.raises(ValueError, match="must leave every client a row of positive weight"):
        Federation.from_arrays([[1.0], [4.0]], [0.0, 1.0], clients=[0, 1], sample_weight=columns.weights(none))


def test_doubles_are_ordered_as_keys():
    x = np.array([-np.finfo(float).max, -1.0, -5e-324, 0.0, 5e-324, 1.0, np.finfo(float).max])
    assert (np.diff(_as_keys(x).astype(object)) > 0).all()
    np.testing.assert_array_equal(_as_doubles(_as_keys(x)), x)


def test_order_statistics_are_exact():
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(size=30) * 10.0 ** rng.integers(-300, 300, 30), [2.0, 2.0, 2.0]])
    held = [[_Sorted.of(x[:10])], [_Sorted.of(x[10:])]]
    totals = _Totals(None)
    ranks = np.arange(1, x.size + 1)
    found = _order_statistics(held, ranks[None, :] - 0.5, totals)[0]
    assert found.tolist() == np.sort(x).tolist() and totals.rounds <= 18


def test_floats_are_counted():
    """One count of rows, two searches for units in rounds of 16 counts, two sums; masked ones are of two parts."""
    frame, columns = read_table({"a": [1.0, 2.0, 4.0, 3.0], "y": [0.1, 0.2, 0.3, 0.4]}, "y")
    found = fit_federated(columns, [frame.take([0, 1]), frame.take([2, 3])])
    searches = (found.rounds - 3) * 16
    assert found.floats_up == 2 * (1 + searches + 1 + 1) and found.floats_down == 2 * (searches + 1 + 1)
    masked = fit_federated(columns, [frame.take([0, 1]), frame.take([2, 3])], secure=SecureSums(28))
    assert masked.rounds == found.rounds
    assert masked.floats_up == 2 * found.floats_up + 2 * (4 + 2 * found.rounds)  # keys once, an agreement every time
    assert masked.floats_down == found.floats_down + 2 * 2 * 4


def test_clients_agree_on_keys_once_and_never_mask_twice_alike(monkeypatch):
    """A party for every client of the fit; the same numbers look different in every sum, and no context comes twice."""
    from fedconvex import secure

    made, sent, mask = [], [], secure.Party.mask
    monkeypatch.setattr(
        secure.Party, "__init__", lambda self, k, plain=secure.Party.__init__: (made.append(k), plain(self, k))[1]
    )
    monkeypatch.setattr(
        secure.Party,
        "mask",
        lambda self, v, e, c: (sent.append((self.number, c, v, mask(self, v, e, c)))) or sent[-1][3],
    )
    frame, columns = read_table({"a": [1.0, 2.0, 4.0, 3.0, 5.0, 0.0], "y": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}, "y")
    found = fit_federated(columns, [frame.take([0, 1]), frame.take([2, 3]), frame.take([4, 5])], secure=SecureSums(28))
    assert sorted(made) == [0, 1, 2] and len(sent) == 3 * found.rounds
    assert len({(number, context) for number, context, *_ in sent}) == len(sent)
    masks = [(out - plain)[:2].tobytes() for _, _, plain, out in sent]
    assert len(set(masks)) == len(masks)


def test_without_cryptography_the_extra_is_named(monkeypatch):
    import sys

    from fedconvex.secure import Party

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.x25519", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "fedconvex\[secure\]"'):
        Party(1)


def test_a_sum_in_a_context_that_was_used_is_refused():
    from fedconvex.preprocessing import _Draws
    from fedconvex.secure import Circle

    ids, sums = np.arange(3), SecureSums(28)
    circle = [Circle.of(ids)]
    first = sums.mask(np.ones((1, 3, 2)), ids[None], _Draws((0,), 1), circle)
    assert sums.total(first).tolist() == [[3.0, 3.0]]
    with pytest.raises(ValueError, match=r"mask: context must be used once; got b'trajectory 0 round 1' again"):
        sums.mask(np.zeros((1, 3, 2)), ids[None], _Draws((0,), 1), circle)
    with pytest.raises(ValueError, match="SecureSums must mask every client once"):
        Circle.of(np.array([1, 1]))


def test_a_known_vocabulary_sends_no_names():
    from dataclasses import replace

    frame, columns = read_table({"s": ["f", "m", "f", "m"], "y": [0.1, 0.2, 0.3, 0.4]}, "y")
    known = replace(columns, columns=tuple(
        replace(c, levels=("f", "m", "x")) if c.name == "s" else c for c in columns.columns
    ))  # fmt: skip
    frames = [frame.take([0, 1]), frame.take([2, 3])]
    told, silent = fit_federated(columns, frames), fit_federated(known, frames)
    assert silent.columns.feature_names == told.columns.feature_names == ("s=f", "s=m")
    assert silent.floats_up == told.floats_up - 4 + 2  # two names of each client less, one count of each more


def test_bad_input():
    frame, columns = read_table({"a": [1.0, 2.0], "y": [0.1, 0.2]}, "y")
    for frames, secure, says in (
        ([], None, "be the frames of at least one client"),
        ([3], None, "be the frames of at least one client"),
        ([frame], SecureSums(28), "have at least two clients; got one"),
        ([frame], "yes", "secure must be a SecureSums"),
        ([read_table({"b": [1.0, 2.0], "y": [1, 0]}, "y")[0]], None, "have the columns a, in any order; got no 'a'"),
    ):
        with pytest.raises((ValueError, TypeError), match=says):
            fit_federated(columns, frames, secure=secure)
