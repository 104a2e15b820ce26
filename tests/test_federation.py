"""Federation: order, equality of its constructors, independence of the caller's arrays, domains, parts, digest."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from fedconvex import Federation

KINDS = [np.asarray, sp.csr_matrix, sp.csr_array, sp.csc_array, sp.coo_array]


def example(rng, n=12, d=3):
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.7)
    return X, rng.normal(size=n), rng.choice([5, 2, 9], n)


def dense(fed):
    return fed.X.toarray() if fed.is_sparse else fed.X


def same(a, b):
    """Same rows, owners, names, domains."""
    np.testing.assert_array_equal(dense(a), dense(b))
    for field in ("y", "ptr", "labels", "ids"):
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    assert (a.domain is None) == (b.domain is None)
    if a.domain is not None:
        np.testing.assert_array_equal(a.domain_labels[a.domain], b.domain_labels[b.domain])


# ---------------------------------------------------------------- construction


@pytest.mark.parametrize("kind", KINDS)
def test_from_arrays_groups_rows_by_sorted_label_and_keeps_their_order(kind, rng):
    X, y, who = example(rng)
    fed = Federation.from_arrays(kind(X), y, who)
    assert fed.labels.tolist() == [2, 5, 9]
    for k, label in enumerate(fed.labels):
        rows = slice(fed.ptr[k], fed.ptr[k + 1])
        np.testing.assert_array_equal(dense(fed)[rows], X[who == label])
        np.testing.assert_array_equal(fed.y[rows], y[who == label])
    assert (fed.K, fed.n, fed.d) == (3, 12, 3)
    assert fed.sizes.tolist() == [int((who == label).sum()) for label in (2, 5, 9)]
    assert fed.is_sparse == sp.issparse(kind(X))


@given(st.data())
def test_from_arrays_equals_from_clients_in_label_order(data):
    n = data.draw(st.integers(1, 15))
    names = data.draw(st.sampled_from([[3, 1, 2], ["b", "a", "cc"], [1.5, -2.0, 0.0], [-1, 7, 0]]))
    who = np.array(data.draw(st.lists(st.sampled_from(names), min_size=n, max_size=n)))
    X, y = np.arange(2.0 * n).reshape(n, 2), -np.arange(float(n))
    fed = Federation.from_arrays(X, y, who)
    present = sorted(set(who.tolist()))
    same(fed, Federation.from_clients([(X[who == v], y[who == v]) for v in present], labels=present))


def test_from_clients_keeps_the_given_order(rng):
    parts = [(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in (3, 1, 2)]
    fed = Federation.from_clients(parts, labels=["z", "a", "m"])
    assert fed.labels.tolist() == ["z", "a", "m"]
    assert fed.ptr.tolist() == [0, 3, 4, 6]
    np.testing.assert_array_equal(fed.X, np.concatenate([X for X, _ in parts]))
    np.testing.assert_array_equal(fed.y, np.concatenate([y for _, y in parts]))
    assert Federation.from_clients(parts).labels.tolist() == [0, 1, 2]
    assert Federation.from_clients(iter(parts)).K == 3  # any iterable


def test_object_and_boolean_labels(rng):
    X, y = rng.normal(size=(3, 2)), np.ones(3)
    same(
        Federation.from_arrays(X, y, np.array(["b", "a", "b"], dtype=object)),
        Federation.from_arrays(X, y, ["b", "a", "b"]),
    )
    assert Federation.from_arrays(X, y, [True, False, True]).labels.tolist() == [False, True]


def test_dense_and_sparse_agree_everywhere(rng):
    X, y, who = example(rng)
    a = Federation.from_arrays(X, y, who, domains=who % 2)
    for kind in KINDS[1:]:
        b = Federation.from_arrays(kind(X), y, who, domains=who % 2)
        same(a, b)
        same(a.subset([2, 0]), b.subset([2, 0]))
        same(a.with_intercept(), b.with_intercept())
        for p, q in zip(a.split(0.4, seed=3), b.split(0.4, seed=3), strict=True):
            same(p, q)
    c = Federation.from_clients([(X[:5], y[:5]), (X[5:], y[5:])])
    same(c, Federation.from_clients([(sp.csr_array(X[:5]), y[:5]), (sp.csc_array(X[5:]), y[5:])]))


def test_integers_booleans_fortran_order_and_float32_are_converted():
    X = np.array([[1, 0], [2, 3]])
    expected = Federation(X.astype(float), [1.0, 0.0], [0, 1, 2])
    for other in (X, np.asfortranarray(X), X.astype(np.float32), X.tolist(), sp.csr_array(X)):
        fed = Federation(other, np.array([True, False]), np.array([0, 1, 2], dtype=np.uint32))
        same(fed, expected)
        assert fed.X.dtype == fed.y.dtype == np.float64
        assert fed.is_sparse or fed.X.flags.c_contiguous


def test_duplicate_entries_are_summed():
    X = sp.coo_array(([1.0, 2.0, 5.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    np.testing.assert_array_equal(dense(Federation(X, [0.0, 0.0], [0, 2])), [[0.0, 3.0], [5.0, 0.0]])
    csr = sp.csr_array((np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 2))
    fed = Federation(csr, [0.0], [0, 1])
    np.testing.assert_array_equal(dense(fed), [[0.0, 3.0]])
    assert csr.data.tolist() == [1.0, 2.0]  # the caller's matrix is as it was
    assert csr.nnz == 2


# ---------------------------------------------------------------- isolation


def parts_of(fed):
    arrays = [fed.X.data, fed.X.indices, fed.X.indptr] if fed.is_sparse else [fed.X]
    return [*arrays, fed.y, fed.ptr, fed.labels, fed.ids, fed.sizes, fed.domain, fed.domain_labels]


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_read_only(kind, rng):
    X, y, who = example(rng)
    whole = Federation.from_arrays(kind(X), y, who, domains=who)
    for fed in (whole, whole.subset([0]), whole.with_intercept(), *whole.split()):
        for a in parts_of(fed):
            with pytest.raises(ValueError, match="read-only"):
                a[...] = a[0]
        for a in fed.rows if fed.is_sparse else [fed.rows]:
            assert not a.flags.writeable
        for field in dataclasses.fields(fed):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(fed, field.name, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grouped", [False, True])  # rows in client order already could be taken over without a copy
def test_from_arrays_neither_changes_nor_keeps_the_callers_arrays(kind, grouped, rng):
    X, y, who = example(rng)
    who = np.sort(who) if grouped else who
    given_X, given_y, given_who, given_domains = kind(X).copy(), y.copy(), who.copy(), who.copy()
    fed = Federation.from_arrays(given_X, given_y, given_who, given_domains)
    np.testing.assert_array_equal(given_X.toarray() if sp.issparse(given_X) else given_X, X)
    np.testing.assert_array_equal(given_y, y)
    before = [a.copy() for a in parts_of(fed)]
    (given_X.data if sp.issparse(given_X) else given_X)[:] = 77.0
    given_y[:] = given_who[:] = given_domains[:] = 77
    for a, b in zip(parts_of(fed), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("K", [1, 2])
def test_from_clients_neither_changes_nor_keeps_the_callers_arrays(kind, K, rng):
    parts = [(kind(rng.normal(size=(3, 2))).copy(), rng.normal(size=3)) for _ in range(K)]
    names = np.array([f"c{k}" for k in range(K)])
    fed = Federation.from_clients(parts, labels=names, domains=[np.arange(3)] * K)
    before = [a.copy() for a in parts_of(fed)]
    for X, y in parts:
        assert y.flags.writeable
        (X.data if sp.issparse(X) else X)[:] = 77.0
        y[:] = 77.0
    names[:] = "x"
    for a, b in zip(parts_of(fed), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_constructor_leaves_the_callers_arrays_writeable_and_unchanged(rng):
    X, y, ptr = rng.normal(size=(4, 2)), rng.normal(size=4), np.array([0, 1, 4])
    kept = X.copy(), y.copy(), ptr.copy()
    Federation(X, y, ptr)
    sparse = sp.csr_array(X)
    Federation(sparse, y, ptr)
    for a, b in zip((X, y, ptr), kept, strict=True):
        assert a.flags.writeable
        np.testing.assert_array_equal(a, b)
    assert sparse.data.flags.writeable
    assert sparse.indices.flags.writeable


def test_constructor_copies_the_row_pointers(rng):
    """X and y are documented not to be copied; but a later change of ptr must not move a client's border."""
    ptr = np.array([0, 1, 4])
    fed = Federation(rng.normal(size=(4, 2)), np.ones(4), ptr)
    ptr[1] = 3
    assert fed.ptr.tolist() == [0, 1, 4]


# ---------------------------------------------------------------- keys


def test_keys_follow_the_label_not_the_position():
    X, y = np.eye(3), np.ones(3)
    for names in ([3, 1, 2], ["b", "a", "c"], [1.5, -2.0, 0.0], [-1, 7, 0]):
        whole = Federation.from_arrays(X, y, names)
        assert np.unique(whole.ids).size == 3
        assert whole.ids.min() >= 0
        one = Federation.from_clients([(X[:1], y[:1])], labels=[names[0]])
        assert one.ids[0] == whole.ids[whole.labels == names[0]][0], names
        np.testing.assert_array_equal(whole.subset([2, 0]).ids, whole.ids[[2, 0]])


@pytest.mark.parametrize("newcomer", [4, -1, 10**6])
def test_adding_a_client_changes_nobodys_key(newcomer):
    X, y = np.eye(4), np.ones(4)
    before = Federation.from_arrays(X[:3], y[:3], [0, 1, 2])
    after = Federation.from_arrays(X, y, [0, 1, 2, newcomer])
    keys = dict(zip(after.labels.tolist(), after.ids.tolist(), strict=True))
    assert [keys[k] for k in before.labels.tolist()] == before.ids.tolist()


# ---------------------------------------------------------------- domains


def test_data_partition(rng):
    X, y, who = example(rng)
    what = np.array(["day", "night", "dusk"])[rng.integers(0, 3, 12)]
    fed = Federation.from_arrays(X, y, who, domains=what)
    order = np.argsort(who, kind="stable")
    assert fed.domain_labels[fed.domain].tolist() == what[order].tolist()
    assert fed.n_domains == np.unique(what).size
    assert Federation.from_arrays(X, y, who).n_domains == 0
    sub = fed.subset([1])
    assert sub.domain_labels[sub.domain].tolist() == what[who == 5].tolist()
    assert "domains" in repr(fed)


def test_client_partition(rng):
    X, y, who = example(rng)
    home = {2: "east", 5: "west", 9: "east"}
    fed = Federation.from_arrays(X, y, who, domains=home)
    expected = [home[v] for v in np.sort(who).tolist()]
    assert fed.domain_labels[fed.domain].tolist() == expected
    pairs = [(X[who == v], y[who == v]) for v in (2, 5, 9)]
    again = Federation.from_clients(pairs, labels=[2, 5, 9], domains=["east", "west", "east"])
    same(fed, again)


def test_domains_of_rows_per_client():
    pairs = [(np.eye(2), [1.0, 2.0]), (np.eye(2)[:1], [3.0])]
    fed = Federation.from_clients(pairs, domains=[["a", "b"], "b"])
    assert fed.domain_labels[fed.domain].tolist() == ["a", "b", "b"]


# ---------------------------------------------------------------- parts


def test_subset_is_what_it_says(rng):
    X, y, who = example(rng)
    fed = Federation.from_arrays(X, y, who)
    sub = fed.subset([2, 0])
    assert sub.labels.tolist() == [9, 2]
    np.testing.assert_array_equal(sub.X, np.concatenate([X[who == 9], X[who == 2]]))
    np.testing.assert_array_equal(sub.y, np.concatenate([y[who == 9], y[who == 2]]))
    same(fed.subset(np.arange(3)), fed)
    same(fed.subset([2, 0, 1]).subset([1, 2, 0]), fed)


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6), share=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_split_shares_every_row_out_once(sizes, share, seed):
    n = sum(sizes)
    X = np.arange(float(n))[:, None]
    fed = Federation(X, X[:, 0], np.concatenate([[0], np.cumsum(sizes)]))
    if max(sizes) == 1:
        with pytest.raises(ValueError, match="at least two rows"):
            fed.split(share, seed)
        return
    train, test = fed.split(share, seed)
    assert sorted([*train.y, *test.y]) == list(range(n))
    assert train.labels.tolist() == fed.labels.tolist()
    for part in (train, test):
        np.testing.assert_array_equal(part.X[:, 0], part.y)
        for k, label in enumerate(part.labels):
            mine = part.y[part.ptr[k] : part.ptr[k + 1]]
            assert np.all((fed.ptr[label] <= mine) & (mine < fed.ptr[label + 1]))
            assert np.all(np.diff(mine) > 0)  # rows keep their order
    held = dict(zip(test.labels.tolist(), test.sizes.tolist(), strict=True))
    for k, size in enumerate(sizes):
        assert held.get(k, 0) == min(size - 1, max(1, round(share * size)))
    again = fed.split(share, seed)
    same(again[0], train)
    same(again[1], test)


def test_split_is_random(rng):
    fed = Federation(np.arange(40.0)[:, None], np.arange(40.0), [0, 40])
    held = [tuple(fed.split(0.5, seed=s)[1].y) for s in range(5)]
    assert len(set(held)) == 5
    counts = np.sum([np.isin(np.arange(40), fed.split(0.5, seed=s)[1].y) for s in range(200)], axis=0)
    assert np.abs(counts - 100).max() < 5 * np.sqrt(50)  # each row held out with probability 1/2


def test_intercept(rng):
    X, y, who = example(rng)
    fed = Federation.from_arrays(X, y, who)
    more = fed.with_intercept()
    np.testing.assert_array_equal(more.X, np.hstack([fed.X, np.ones((12, 1))]))
    assert more.labels.tolist() == fed.labels.tolist()
    assert fed.d == 3
    assert more.digest != fed.digest


# ---------------------------------------------------------------- digest


def test_digest_knows_every_row_and_owner(rng):
    X, y, who = example(rng)
    who = np.sort(who)
    fed = Federation.from_arrays(X, y, who)
    assert Federation.from_arrays(X.copy(), y.copy(), who).digest == fed.digest
    X2, y2, who2 = X.copy(), y.copy(), who.copy()
    X2[-1, -1] += 1e-12
    y2[0] += 1e-12
    who2[np.flatnonzero(np.diff(who))[0]] = who[np.flatnonzero(np.diff(who))[0] + 1]
    others = [
        Federation.from_arrays(X2, y, who), Federation.from_arrays(X, y2, who), Federation.from_arrays(X, y, who2),
        Federation.from_arrays(X, y, who + 1), fed.subset([1, 0, 2]), fed.subset([0, 1]),
    ]  # fmt: skip
    assert len({fed.digest, *(f.digest for f in others)}) == 7


def test_digest_of_sparse_rows(rng):
    X, y, who = example(rng)
    a = Federation.from_arrays(sp.csr_array(X), y, who)
    assert a.digest == Federation.from_arrays(sp.csc_array(X), y, who).digest
    swapped = X.copy()
    swapped[:, [0, 1]] = swapped[:, [1, 0]]
    assert a.digest != Federation.from_arrays(sp.csr_array(swapped), y, who).digest


def test_sparse_rows_without_any_entry():
    """Rows of zeros are rows: everything works, the digest too."""
    fed = Federation(sp.csr_array((3, 2)), np.ones(3), [0, 1, 3])
    assert fed.n == 3
    assert fed.with_intercept().X.toarray().tolist() == [[0.0, 0.0, 1.0]] * 3
    assert len(fed.digest) == 32


def test_repr_says_what_is_in_it(rng):
    X, y, who = example(rng)
    assert repr(Federation.from_arrays(X, y, who)) == "Federation(3 clients, 12 rows, 3 features, dense)"
    assert "sparse" in repr(Federation.from_arrays(sp.csr_array(X), y, who))


# ---------------------------------------------------------------- names, masks, pickles


@pytest.mark.parametrize("place", ["clients", "domains", "labels", "domain_labels", "mapping", "from_clients"])
@pytest.mark.parametrize(
    ("names", "match"),
    [
        ([1, "a", 2], "all numbers or all strings"),
        ([True, 2, 3], "all numbers or all strings"),
        ([1.0, np.nan, 2.0], "finite"),
        (np.array([1.0, 2.0, np.nan]), "finite"),
        (np.array([1j, 2, 3]), "numbers, strings or dates"),
        (np.array(["2020-01-01", "NaT", "2021-01-01"], dtype="datetime64[D]"), "finite"),
        ([None, "a", "b"], "all numbers or all strings"),
        (np.ma.array([1, 2, 3], mask=[False, True, False]), "have no mask"),
        ([[1], [2, 3], [4]], "flat list|one per row"),
    ],
)
def test_names_that_are_no_names_are_refused(place, names, match):
    X, y = np.eye(3), np.ones(3)
    make = {
        "clients": lambda: Federation.from_arrays(X, y, names),
        "domains": lambda: Federation.from_arrays(X, y, [0, 1, 2], names),
        "labels": lambda: Federation(X, y, [0, 1, 2, 3], labels=names),
        "domain_labels": lambda: Federation(X, y, [0, 3], domain=[0, 1, 2], domain_labels=names),
        "mapping": lambda: Federation.from_arrays(X, y, [0, 1, 2], dict(zip(range(3), list(names), strict=True))),
        "from_clients": lambda: Federation.from_clients([(X[:1], y[:1])] * 3, domains=names),
    }[place]
    if place in ("mapping", "from_clients") and np.ma.is_masked(names):
        pytest.skip("entries that are masked: the next test")
    with pytest.raises((TypeError, ValueError), match=match):
        make()


def test_a_masked_constant_is_no_name():
    with pytest.raises(ValueError, match="have no mask"):
        Federation.from_clients([(np.eye(1), [1.0])] * 2, domains=[0, np.ma.masked])


def test_dates_and_strings_are_names():
    days = np.array(["2020-01-02", "2020-01-01"], dtype="datetime64[D]")
    assert Federation.from_arrays(np.eye(2), np.ones(2), days).labels.tolist() == sorted(days.tolist())
    assert Federation.from_arrays(np.eye(2), np.ones(2), ("b", "a")).labels.tolist() == ["a", "b"]


def test_masked_features_and_labels_are_refused():
    hidden = np.ma.array([1.0, 2.0], mask=[False, True])
    with pytest.raises(ValueError, match=r"Federation.y.*masked"):
        Federation(np.eye(2), hidden, [0, 2])
    with pytest.raises(ValueError, match=r"Federation.X.*masked"):
        Federation(np.ma.array(np.eye(2), mask=np.eye(2)), np.ones(2), [0, 2])
    open_ = np.ma.array([1.0, 2.0], mask=[False, False])  # nothing is hidden
    assert Federation(np.eye(2), open_, [0, 2]).y.tolist() == [1.0, 2.0]


def test_domains_are_named_once_and_numbered_from_zero():
    X, y = np.eye(2), np.ones(2)
    with pytest.raises(ValueError, match="name each of the 2 domains once"):
        Federation(X, y, [0, 2], domain=[0, 1], domain_labels=["a", "a"])
    with pytest.raises(ValueError, match=r"lie in 0, \.\.\., 1"):
        Federation(X, y, [0, 2], domain=[0, 10**9])


def test_digest_knows_the_domains(rng):
    X, y, who = example(rng)
    one = Federation.from_arrays(X, y, who, np.arange(12) % 2)
    others = [
        Federation.from_arrays(X, y, who),
        Federation.from_arrays(X, y, who, np.arange(12) % 3),
        Federation.from_arrays(X, y, who, np.array(["a", "b"])[np.arange(12) % 2]),
    ]
    assert len({f.digest for f in [one, *others]}) == 4
    assert one.digest == Federation.from_arrays(X, y, who, np.arange(12) % 2).digest


@pytest.mark.parametrize("kind", KINDS)
def test_pickled_arrays_are_read_only(kind, rng):
    import copy
    import pickle

    X, y, who = example(rng)
    fed = Federation.from_arrays(kind(X), y, who, np.arange(12) % 2)
    for again in (pickle.loads(pickle.dumps(fed)), copy.deepcopy(fed)):
        same(fed, again)
        assert again.digest == fed.digest
        arrays = [again.y, again.ptr, again.labels, again.ids, again.domain, again.domain_labels]
        arrays += [again.X.data, again.X.indices, again.X.indptr] if again.is_sparse else [again.X]
        assert not any(a.flags.writeable for a in arrays)
        with pytest.raises(ValueError, match="read-only"):
            again.y[0] = 1.0


def test_a_federation_made_from_a_table_can_be_pickled():
    """Its record of columns is no array; other processes could not read it."""
    import pickle

    table = {"age": [60, 40, 50], "ward": ["a", "b", "a"], "ill": ["yes", "no", "yes"]}
    fed = Federation.from_frame(table, target="ill", client="ward")
    again = pickle.loads(pickle.dumps(fed))
    same(fed, again)
    assert again.columns.feature_names == fed.columns.feature_names and not again.X.flags.writeable


def test_digest_tells_whose_domain_a_row_is():
    """Same rows, same names of domains: only the rows' domains differ."""
    X, y = np.arange(4.0)[:, None], np.ones(4)
    a, b = (Federation.from_arrays(X, y, np.zeros(4, int), domains=domains) for domains in (list("abab"), list("abba")))
    assert a.digest != b.digest


def test_buffers_are_not_shared():
    X, y = np.eye(2), np.ones(2)
    fed = Federation(memoryview(X), y, [0, 2])
    X[0, 0] = -5.0
    assert fed.X[0, 0] == 1.0


def test_digest_knows_the_number_of_features():
    rows = sp.csr_array(np.eye(3))
    wide = sp.csr_array((rows.data, rows.indices, rows.indptr), shape=(3, 4))
    assert Federation(rows, np.ones(3), [0, 3]).digest != Federation(wide, np.ones(3), [0, 3]).digest


def test_lists_are_no_labels():
    with pytest.raises(ValueError, match=r"labels must name each of the 1 clients once; got \[\[1\]\]"):
        Federation.from_clients([(np.eye(1), [1.0])], labels=[[1]])
