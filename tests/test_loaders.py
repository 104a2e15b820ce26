"""Loaders against files written by other libraries, and against files broken in many ways."""

from __future__ import annotations

import bz2
import gzip
import socket
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn import datasets as bundled
from sklearn.datasets import dump_svmlight_file

from fedconvex.datasets import (
    fetch_adult,
    fetch_mnist,
    load,
    load_bundled,
    load_npz,
    load_svmlight,
    load_table,
    partition_dirichlet,
)
from fedconvex.federation import Federation
from fedconvex.tables import csv_files

pytestmark = pytest.mark.anywhere

WARDS = """age,sex,ward,region,ill
61,f,7,north,yes
37,m,9,south,no
50,f,7,north,no
45.5,x,12,south,yes
"""


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a test reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def wards(tmp_path):
    path = tmp_path / "wards.csv"
    path.write_text(WARDS)
    return path


# ---------------------------------------------------------------------- bundled
@pytest.mark.parametrize("name", ["breast_cancer", "digits", "iris", "wine", "diabetes"])
def test_bundled(name):
    raw = getattr(bundled, f"load_{name}")()
    X, y, names = load_bundled(name, standardised=False)
    np.testing.assert_array_equal(X, raw.data)
    assert names == tuple(raw.feature_names) and X.dtype == y.dtype == np.float64
    np.testing.assert_array_equal(y, 2.0 * raw.target - 1.0 if name == "breast_cancer" else raw.target)
    Z = load_bundled(name).X
    np.testing.assert_allclose(Z.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(Z.std(axis=0), X.std(axis=0) > 0, atol=1e-12)
    assert np.array_equal(raw.data, getattr(bundled, f"load_{name}")().data)
    Federation.from_arrays(Z, y, partition_dirichlet(y, 5, 0.5) if name != "diabetes" else np.arange(len(y)) % 5)


# ---------------------------------------------------------------------- CSV
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.bz2", ".CSV"])
def test_csv(tmp_path, suffix):
    path = tmp_path / f"wards{suffix}"
    opener = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
    with opener(path, "wt", encoding="utf-8") as stream:
        stream.write(WARDS)
    table = load(path, target="ill", client="ward", domain="region")
    assert table.feature_names == ("age", "sex=f", "sex=m", "sex=x") and table.classes == ("no", "yes")
    assert table.X.tolist() == [[61, 1, 0, 0], [37, 0, 1, 0], [50, 1, 0, 0], [45.5, 0, 0, 1]]
    assert table.y.tolist() == [1, 0, 0, 1]
    assert table.clients.tolist() == [7, 9, 7, 12] and table.domains.tolist() == ["north", "south", "north", "south"]
    fed = Federation.from_arrays(table.X, table.y, table.clients, table.domains)
    assert fed.labels.tolist() == [7, 9, 12] and fed.n_domains == 2
    assert repr(table) == "Table(4 rows, 4 features, 3 clients, 2 domains, 2 classes, dense)"


def test_csv_choice_of_features_and_categories(wards):
    table = load_table(wards, "age", features=["ward", "sex"])
    assert table.feature_names == ("ward", "sex=f", "sex=m", "sex=x") and table.classes is None
    assert table.y.tolist() == [61, 37, 50, 45.5] and table.clients is None
    table = load_table(wards, "ill", features=["ward"], categorical=["ward"])
    assert table.feature_names == ("ward=12", "ward=7", "ward=9")
    table = load_table(wards, "ward", features=["age"], categorical=["ward"])
    assert table.classes == ("12", "7", "9") and table.y.tolist() == [1, 2, 1, 0]
    assert load_table(wards, "age", client="ill", domain="ill", features=["ward"]).clients.tolist()[0] == "yes"


def test_csv_dialect(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes('\ufeff"x, 1", y ,who\r\n" 1.5e3 ",-1,"O""Brien"\r\n\r\n+.5,1,Zoë\r\n'.encode())
    table = load_table(path, "y", client="who")
    assert table.feature_names == ("x, 1",) and table.X.tolist() == [[1500.0], [0.5]]
    assert table.clients.tolist() == ['O"Brien', "Zoë"]


def test_client_names_are_numbers_only_if_written_as_such(tmp_path):
    for cells, expected in ((["7", "-12"], [7, -12]), (["7", "07"], ["7", "07"]), (["7.0", "7"], [7, 7])):
        path = tmp_path / "a.csv"
        path.write_text("x,y,who\n" + "".join(f"1,1,{c}\n" for c in cells))
        assert load_table(path, "y", client="who").clients.tolist() == expected


def test_wide_one_hot_is_sparse(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.integers(0, 80, 500).astype(str), "b": rng.standard_normal(500), "y": 1.0})
    frame["a"] = "v" + frame["a"]
    frame.to_csv(tmp_path / "a.csv", index=False)
    table = load_table(tmp_path / "a.csv", "y")
    assert isinstance(table.X, sp.csr_array) and table.X.has_canonical_format
    expected = pd.get_dummies(frame[["b", "a"]], columns=["a"], prefix_sep="=", dtype=float)
    assert sorted(table.feature_names) == sorted(expected.columns)
    np.testing.assert_array_equal(table.X.toarray(), expected[list(table.feature_names)].to_numpy())


def test_csv_in_blocks(tmp_path, monkeypatch, wards):
    whole = load_table(wards, "ill", client="ward")
    monkeypatch.setattr(csv_files, "_BLOCK", 10)  # two rows of five cells
    blocks = load_table(wards, "ill", client="ward")
    np.testing.assert_array_equal(whole.X, blocks.X)
    assert whole.feature_names == blocks.feature_names and whole.clients.tolist() == blocks.clients.tolist()
    monkeypatch.setattr(csv_files, "_BLOCK", 6)  # two rows of three cells
    path = tmp_path / "late.csv"
    path.write_text("x,z,y\n1,0,1\n2,0,1\nthree,0,1\n")
    with pytest.raises(ValueError, match="'x': numbers and text: numbers in some rows"):
        load_table(path, "y")
    path.write_text("x,z,y\n1,0,1\n2,0,1\n,0,1\nNA,0,1\n")
    with pytest.raises(ValueError, match="'x': 2 missing of 4"):
        load_table(path, "y")
    path.write_text("x,z,y\n,0,1\n,0,1\na,0,1\nb,0,1\n")
    with pytest.raises(ValueError, match="'x': 2 missing of 4"):
        load_table(path, "y")


cells = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**60), 2**60))
words = st.text("abcdefgh ,\"'\n=ü", min_size=1, max_size=6).map(lambda s: "_" + s.strip())


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(*(st.lists(c, min_size=n, max_size=n) for c in (cells, words)))))
@pytest.mark.slow
def test_csv_and_parquet_agree_with_pandas(tmp_path_factory, columns):
    folder = tmp_path_factory.getbasetemp()
    frame = pd.DataFrame({"x": np.array(columns[0], dtype=float), "c": columns[1], "y": np.arange(len(columns[0])) / 7})
    frame.to_csv(folder / "a.csv", index=False)
    frame.to_parquet(folder / "a.parquet")
    expected = pd.get_dummies(frame[["x", "c"]], columns=["c"], prefix_sep="=", dtype=float)
    for name in ("a.csv", "a.parquet"):
        table = load_table(folder / name, "y")
        assert table.feature_names == tuple(expected.columns)
        np.testing.assert_array_equal(table.X, expected.to_numpy())
        np.testing.assert_array_equal(table.y, frame["y"])


# ---------------------------------------------------------------------- Parquet
def test_parquet_types(tmp_path):
    frame = pd.DataFrame(
        {
            "small": np.array([1, 2, 3], dtype=np.int8),
            "big": np.array([2**60 + 1, 0, -1]),
            "flag": [True, False, True],
            "kind": pd.Categorical(["b", "a", "b"]),
            "who": [30, 4, 30],
            "y": ["no", "yes", "no"],
        }
    )
    frame.to_parquet(tmp_path / "a.parquet")
    table = load(tmp_path / "a.parquet", target="y", client="who")
    assert table.feature_names == ("small", "big", "flag", "kind=a", "kind=b")
    assert table.X.tolist() == [[1, 2.0**60, 1, 0, 1], [2, 0, 0, 1, 0], [3, -1, 1, 0, 1]]
    assert table.clients.tolist() == [30, 4, 30] and table.classes == ("no", "yes")
    table = load_table(tmp_path / "a.parquet", "y", features=["small"], categorical=["small"])
    assert table.feature_names == ("small=1", "small=2", "small=3")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    pd.DataFrame({"x": [1.0], "y": [1.0]}).to_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r'pip install "fedconvex\[report\]"'):
        load_table(tmp_path / "a.parquet", "y")


# ---------------------------------------------------------------------- svmlight
@pytest.mark.parametrize("suffix", [".svm", ".svmlight", ".libsvm", ".txt", ".txt.gz", ".txt.bz2", ".svm.bz2"])
@pytest.mark.parametrize("zero_based", [True, False])
def test_svmlight(tmp_path, suffix, zero_based):
    X = sp.random_array((20, 7), density=0.4, random_state=np.random.default_rng(1)).toarray()
    X[0, [0, 6]] = 1.0, 2.0  # the first and the last column occur
    y = np.where(np.arange(20) % 3, 1.0, -1.0)
    path = tmp_path / f"a{suffix}"
    with {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)(path, "wb") as stream:
        dump_svmlight_file(X, y, stream, zero_based=zero_based)
    table = load(path)
    assert isinstance(table.X, sp.csr_array) and table.feature_names is None
    np.testing.assert_allclose(table.X.toarray(), X, rtol=1e-15)
    np.testing.assert_array_equal(table.y, y)
    assert load_svmlight(path, n_features=9).X.shape == (20, 9)


# ---------------------------------------------------------------------- npz
def test_npz_dense_aliases_and_extras(tmp_path):
    images, labels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.array([[7], [3]], dtype=np.uint8)
    path = tmp_path / "mnist.npz"
    np.savez_compressed(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    table = load(path)
    assert table.X.tolist() == images.reshape(2, 12).astype(float).tolist() and table.y.tolist() == [7.0, 3.0]
    for client, domain in (("client", "domain"), ("clients", "domains")):
        np.savez(
            path,
            X=np.eye(2),
            y=np.array(["b", "a"]),
            feature_names=np.array(["u", "v"]),
            **{client: np.array(["q", "p"]), domain: np.array([1, 0])},
        )
        table = load_npz(path)
        assert table.classes == ("a", "b") and table.y.tolist() == [1, 0] and table.feature_names == ("u", "v")
        assert table.clients.tolist() == ["q", "p"] and table.domains.tolist() == [1, 0]


def test_npz_sparse_as_scipy_writes_it(tmp_path):
    X = sp.random_array((6, 9), density=0.3, random_state=np.random.default_rng(2), format="csr")
    sp.save_npz(tmp_path / "x.npz", X)
    with np.load(tmp_path / "x.npz") as stored:
        np.savez(tmp_path / "xy.npz", y=np.arange(6), **stored)
    np.testing.assert_array_equal(load_npz(tmp_path / "xy.npz").X.toarray(), X.toarray())
    np.savez(tmp_path / "csr.npz", y=np.arange(6), data=X.data, indices=X.indices, indptr=X.indptr, shape=X.shape)
    np.testing.assert_array_equal(load_npz(tmp_path / "csr.npz").X.toarray(), X.toarray())


def test_npz_cut_or_altered_anywhere_is_an_error_or_the_same(tmp_path):
    path = tmp_path / "a.npz"
    X, y = np.random.default_rng(3).standard_normal((5, 2)), np.arange(5.0)
    np.savez_compressed(path, X=X, y=y)
    good = path.read_bytes()
    for end in range(0, len(good), 7):
        path.write_bytes(good[:end])
        with pytest.raises(ValueError, match=r"a\.npz must be a complete \.npz .*; got "):
            load_npz(path)
    for i in range(0, len(good), 3):  # the checksums notice every byte that matters
        path.write_bytes(good[:i] + bytes([good[i] ^ 0x55]) + good[i + 1 :])
        try:
            table = load_npz(path)
        except ValueError as error:
            assert "a.npz" in str(error) and " must " in str(error), f"byte {i}"
        else:
            assert np.array_equal(table.X, X) and np.array_equal(table.y, y), f"byte {i}"


def test_npz_runs_no_pickle(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    np.savez(tmp_path / "a.npz", X=np.eye(1), y=np.array([Trap()], dtype=object))
    with pytest.raises(ValueError, match="y must be readable without pickle; got an array of pickled objects"):
        load_npz(tmp_path / "a.npz")


# ---------------------------------------------------------------------- downloads
def test_fetch_mnist(monkeypatch):
    def fake(name, *, version, as_frame, parser):
        assert (name, version, as_frame) == ("mnist_784", 1, False)
        digits = np.array([str(k % 10) for k in range(20)], dtype=object)
        return SimpleNamespace(
            data=np.full((20, 784), 255), target=digits, feature_names=[f"pixel{j}" for j in range(784)]
        )

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fake)
    table = fetch_mnist()
    assert np.all(table.X == 1.0) and table.y.tolist() == [k % 10 for k in range(20)]
    assert table.classes == tuple("0123456789") and table.feature_names[783] == "pixel783"


def test_fetch_adult(monkeypatch):
    def fake(name, *, version, as_frame, parser):
        assert (name, version, as_frame) == ("adult", 2, False)
        return SimpleNamespace(
            data=np.array([[39.0, 0.0, 1.0], [50.0, 1.0, np.nan], [28.0, 0.0, 0.0]]),
            target=np.array(["<=50K", ">50K", "<=50K"], dtype=object),
            feature_names=["age", "education", "workclass"],
            categories={"education": ["Bachelors", "Doctorate"], "workclass": ["Private", "Never-worked"]},
        )

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fake)
    table = fetch_adult()
    assert table.feature_names == (
        "age",
        "education=Bachelors",
        "education=Doctorate",
        "workclass=?",
        "workclass=Never-worked",
        "workclass=Private",
    )
    assert table.X.tolist() == [[39, 1, 0, 0, 1, 0], [50, 0, 1, 1, 0, 0], [28, 1, 0, 0, 0, 1]]
    assert table.y.tolist() == [0, 1, 0] and table.classes == ("<=50K", ">50K")
    assert table.domains.tolist() == ["other", "doctorate", "other"]


def test_import_is_light():
    code = "import sys, fedconvex.datasets; print([m for m in ('sklearn', 'pyarrow', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---------------------------------------------------------------------- bad input
CSV = [
    ("", {}, "must start with a line that names the columns; got an empty line or file"),
    ("x,y\n", {}, "must have at least one row; got a header only"),
    ("x,z\n1,2\n", {}, "must have a column 'y'; got columns x, z"),
    ("x,y\n1,2\n", {"client": "site"}, "must have a column 'site'; got columns x, y"),
    ("x,y\n1,2\n", {"features": ["x", "u"]}, "must have a column 'u'; got columns x, y"),
    ("x,y\n1,2\n", {"categorical": ["u"]}, "must have a column 'u'; got columns x, y"),
    (
        "x,y\n1,2\n",
        {"features": ["y"]},
        "must be different columns, none of them target, client, domain or weight; got y",
    ),
    (
        "x,y\n1,2\n",
        {"features": ["x", "x"]},
        "must be different columns, none of them target, client, domain or weight; got x",
    ),
    ("x,y\n1,2\n", {"features": "x"}, "load_table: features must be a list; got str 'x'"),
    ("x,y\n1,2\n", {"client": "y"}, "target must be another column than client, domain and weight; got y"),
    ("y,k\n1,2\n", {"client": "k"}, "must have at least one feature column; got columns y, k"),
    ("x,x,y\n1,2,3\n", {}, "must name every column once; got 'x' twice in x, x, y"),
    ("x,y\n1,2\n1,2,3\n", {}, "must have 2 cells in every line; got 3 in line 3"),
    (
        "x,y\n1,\n2,1\nNA,?\n",
        {},
        "bad.csv: 2 columns need a decision (read with commas between cells, decimal points, UTF-8)\n"
        "  'y': 2 missing in the target column, the first in row 1\n"
        "  'x': 1 missing of 3\nsettled by: impute='median'\n"
        "to be corrected in the data, or rows to be removed: 'y'",
    ),
    ("x,y,k\n1,1,\n", {"client": "k"}, "'k': 1 missing in the client column, the first in row 1"),
    ("x,y\n1,1\nabc,1\n", {}, "'x': numbers and text: 1 in row 1 and 'abc' in row 2\nsettled by: as_category=['x']"),
    ("x,y\n1,1\n1_0,1\n", {}, "'x': numbers and text: 1 in row 1 and '1_0' in row 2"),
    ("x,y\n1,inf\n", {}, "column 'y' must be finite; got inf in row 1"),
    ('x,y\n"1,2\n', {}, "must be comma-separated UTF-8 text; got Error: unexpected end of data"),
    (b"x,y\n\xff,1\n", {}, "must be UTF-8 text; got UnicodeDecodeError"),
]


@pytest.mark.parametrize(("text", "options", "says"), CSV, ids=range(len(CSV)))
def test_bad_csv(tmp_path, text, options, says):
    path = tmp_path / "bad.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((ValueError, TypeError)) as caught:
        load_table(path, "y", **options)
    assert says in str(caught.value) and str(caught.value).startswith(("bad.csv", "load_table: features"))


def _npz(**arrays):
    return lambda path: np.savez(path, **arrays)


def _zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X", "hello")
        archive.writestr("y", "hello")


CSR = {"data": np.ones(2), "indices": np.array([0, 1]), "indptr": np.array([0, 1, 2]), "shape": np.array([2, 2])}
NPZ = [
    (_npz(a=np.eye(2)), "must hold X (or x_train, or data, indices, indptr and shape) and y (or y_train); got a"),
    (_npz(), "and y (or y_train); got nothing"),
    (_npz(X=np.eye(2), y_test=np.ones(2)), "and y (or y_train); got X, y_test"),
    (_npz(X=np.eye(2), y=np.ones(3)), "y must have one entry per row of X (2); got shape (3,)"),
    (
        _npz(X=np.eye(2), y=np.ones(2), clients=np.ones(1)),
        "clients must have one entry per row of X (2); got shape (1,)",
    ),
    (_npz(X=np.ones(2), y=np.ones(2)), "X must have at least one row and one feature; got shape (2,)"),
    (_npz(X=np.ones((0, 3, 3)), y=np.ones(0)), "X must have at least one row and one feature; got shape (0, 3, 3)"),
    (_npz(X=np.array([["a"]]), y=np.ones(1)), "X must hold real numbers; got dtype <U1"),
    (_npz(X=np.eye(1) * 1j, y=np.ones(1)), "X must hold real numbers; got dtype complex128"),
    (_npz(X=np.diag([1, np.nan]), y=np.ones(2)), "X must be finite; got nan at (1, 1)"),
    (_npz(X=np.array([[1, None]]), y=np.ones(1)), "X must be readable without pickle; got an array of pickled objects"),
    (_npz(X=np.eye(2), y=np.ones(2), feature_names=np.array(["a"])), "feature_names must name each of the 2 features"),
    (_npz(y=np.ones(2), **{**CSR, "indices": np.array([0, 5])}), "must have column indices in 0, ..., 1; got 5"),
    (_npz(y=np.ones(2), **{**CSR, "indptr": np.array([0, 2])}), "must hold data, indices, indptr and shape of a CSR"),
    (_npz(y=np.ones(2), **{**CSR, "shape": np.array(2)}), "must hold data, indices, indptr and shape of a CSR"),
    (_npz(y=np.ones(2), format=b"csc", **CSR), "must hold a sparse matrix in CSR format; got csc: save X.tocsr()"),
    (_zip, "X must be an array; got bytes that are no .npy file"),
    (lambda path: path.write_bytes(b""), "must be a complete .npz (zip) archive; got 0 bytes that are none"),
    (lambda path: path.write_text("x,y\n1,2\n"), "must be a complete .npz (zip) archive; got 8 bytes that are none"),
]


@pytest.mark.parametrize(("write", "says"), NPZ, ids=range(len(NPZ)))
def test_bad_npz(tmp_path, write, says):
    path = tmp_path / "bad.npz"
    write(path)
    with pytest.raises((ValueError, TypeError)) as caught:
        load_npz(path)
    assert says in str(caught.value) and str(caught.value).startswith("load_npz: bad.npz")


SVM = [
    ("", "must"),
    ("+1 1:a\n", "must hold lines 'label index:value ...' with rising indices; got "),
    ("x,y\n1,2\n", "must hold lines 'label index:value ...' with rising indices; got "),
    ("+1 3:1 2:1\n", "must hold lines 'label index:value ...' with rising indices; got "),
    ("+1 1:nan\n", "X must be finite; got nan at 0"),
    ("nan 1:1\n", "y must be finite; got nan at 0"),
]


@pytest.mark.parametrize(("text", "says"), SVM, ids=range(len(SVM)))
def test_bad_svmlight(tmp_path, text, says):
    path = tmp_path / "bad.svm"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        load_svmlight(path)
    assert says in str(caught.value) and str(caught.value).startswith("load_svmlight: bad.svm")


def test_svmlight_width_too_small(tmp_path):
    path = tmp_path / "a.svm"
    path.write_text("+1 1:1 5:1\n")
    with pytest.raises(ValueError, match=r"load_svmlight: a\.svm must .*; got n_features was set to 3"):
        load_svmlight(path, n_features=3)
    with pytest.raises(TypeError, match="load_svmlight: n_features must be a whole number; got str '3'"):
        load_svmlight(path, n_features="3")


def test_bad_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    frame = pd.DataFrame({"x": [1.0, None], "c": ["a", None], "when": pd.to_datetime(["2020", "2021"]), "y": [1, 2]})
    frame.to_parquet(path)
    with pytest.raises(ValueError, match=r"'when': dates \(2020-01-01, \.\.\.\)"):
        load_table(path, "y")
    with pytest.raises(ValueError, match=r"'x': 1 missing of 2\n  'c': 1 missing of 2\nsettled by: impute='median'"):
        load_table(path, "y", features=["x", "c"])
    with pytest.raises(ValueError, match="must have a column 'z'; got columns x, c, when, y"):
        load_table(path, "z")
    good = path.read_bytes()
    for bad in (b"", good[: len(good) // 2], good[:-1], b"x,y\n1,2\n"):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"a\.parquet must be a complete Parquet file; got "):
            load_table(path, "y")
    frame.iloc[:0].to_parquet(path)
    with pytest.raises(ValueError, match="must have at least one row; got none"):
        load_table(path, "y", features=["x"])


def test_truncated_compressed_csv(tmp_path):
    for suffix, packed in ((".gz", gzip.compress(WARDS.encode())), (".bz2", bz2.compress(WARDS.encode()))):
        path = tmp_path / f"a.csv{suffix}"
        for content in (packed[:-9], WARDS.encode()):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"a\.csv\.\w+ must be comma-separated UTF-8 text; got "):
                load_table(path, "ill")


def test_bad_paths_and_names(tmp_path, wards):
    with pytest.raises(FileNotFoundError, match=r"load: path must be an existing file; got .*nowhere\.csv"):
        load(tmp_path / "nowhere.csv", target="y")
    for reader in (load_npz, load_svmlight, lambda path: load_table(path, "y")):
        with pytest.raises(FileNotFoundError, match=r"load_\w+: path must be an existing file; got "):
            reader(tmp_path)
        with pytest.raises(TypeError, match=r"load_\w+: path must be a path; got int"):
            reader(3)
    with pytest.raises(ValueError, match="come with the name of its target column; got none: pass target="):
        load(wards)
    other = tmp_path / "a9a.xlsx"
    other.write_text("")
    with pytest.raises(ValueError, match=r"load: path must end in one of \.csv.*; got a9a\.xlsx: for svmlight"):
        load(other)
    with pytest.raises(ValueError, match=r"load_table: path must end in one of \.csv.*; got a9a\.xlsx"):
        load_table(other, "y")
    npz = tmp_path / "a.npz"
    np.savez(npz, X=np.eye(1), y=np.ones(1))
    with pytest.raises(ValueError, match=r"load: a\.npz must be given no column names .*; got target='y'"):
        load(npz, target="y")
    with pytest.raises(ValueError, match=r"load_table: path must end in \.csv, .*; got a\.npz: load reads others"):
        load_table(npz, "y")
    with pytest.raises(ValueError, match=r"load_bundled: name must be one of 'breast_cancer', .*; got mnist"):
        load_bundled("mnist")


# ---------------------------------------------------------------------- files that ask for too much, or say too little


def test_the_index_of_a_frame_is_no_feature(tmp_path):
    """Sorted rows would otherwise leak the label: the row number predicts it."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": [61.0, 37.0, 50.0], "ill": [1.0, 0.0, 0.0]}, index=[7, 9, 11])
    frame.to_parquet(tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet", target="ill").feature_names == ("age",)
    frame.rename_axis("ward").to_parquet(tmp_path / "b.parquet")
    assert load(tmp_path / "b.parquet", target="ill").feature_names == ("age",)
    named = load(tmp_path / "b.parquet", target="ill", client="ward")
    assert named.clients.tolist() == [7, 9, 11]
    asked = load_table(tmp_path / "b.parquet", target="ill", features=["ward", "age"])
    assert asked.feature_names == ("ward", "age")
    frame.to_csv(tmp_path / "c.csv")
    with pytest.raises(ValueError, match=r"'Unnamed: 0': a column without a name"):
        load(tmp_path / "c.csv", target="ill")
    assert load_table(tmp_path / "c.csv", target="ill", features=["age"]).feature_names == ("age",)


def test_parquet_of_others_has_no_index(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"a": [1.0, 2.0], "y": [0.0, 1.0]})
    for note in (None, b"no json", b'{"index_columns": 3}', b"[1]", b'{"index_columns": [{"kind": "range"}]}'):
        pq.write_table(
            table.replace_schema_metadata(None if note is None else {b"pandas": note}), tmp_path / "a.parquet"
        )
        assert load(tmp_path / "a.parquet", target="y").feature_names == ("a",)


def npy(header, body=b""):
    """The bytes of an .npy file whose header says what it likes."""
    text = repr(header).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


def test_an_archive_that_asks_for_terabytes(tmp_path):
    huge = npy({"descr": "<f8", "fortran_order": False, "shape": (10**11, 10)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as f:
        f.writestr("X.npy", huge)
        f.writestr("y.npy", npy({"descr": "<f8", "fortran_order": False, "shape": (1,)}, bytes(8)))
    with pytest.raises(ValueError, match=r"load_npz: a.npz must be a complete"):
        load_npz(tmp_path / "a.npz")


def test_an_archive_that_unpacks_to_too_much(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros((1000, 1000)), y=np.zeros(1000), more=np.zeros(10**6))
    assert (tmp_path / "a.npz").stat().st_size < 10**5
    with pytest.raises(ValueError, match=r"at most max_bytes = 1,000,000 bytes.*pass max_bytes=8,?008,?"):
        load_npz(tmp_path / "a.npz", max_bytes=10**6)
    assert load_npz(tmp_path / "a.npz", max_bytes=8_010_000).X.shape == (1000, 1000)  # what is not read does not count


def test_sparse_rows_with_too_many_columns(tmp_path):
    np.savez(tmp_path / "a.npz", data=[1.0], indices=[0], indptr=[0, 1], shape=[1, 2**62], y=[1.0])
    with pytest.raises(ValueError, match=r"columns: .* bytes: pass max_bytes|CSR"):
        load_npz(tmp_path / "a.npz")
    (tmp_path / "a.svm").write_text("1 2000000000:1\n")
    with pytest.raises(ValueError, match="a model of 2000000000 columns"):
        load_svmlight(tmp_path / "a.svm")
    (tmp_path / "b.svm").write_text("1 1000:1\n")
    with pytest.raises(ValueError, match="max_bytes=8000"):
        load_svmlight(tmp_path / "b.svm", max_bytes=7999)
    assert load_svmlight(tmp_path / "b.svm", max_bytes=8000).X.shape == (1, 1000)


def test_entries_twice_and_queries_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", data=[1.0, 2.0], indices=[0, 0], indptr=[0, 2], shape=[1, 1], y=[1.0])
    with pytest.raises(ValueError, match="every entry of the matrix once; got 1 entries twice"):
        load_npz(tmp_path / "a.npz")
    (tmp_path / "a.svm").write_text("1 qid:3 1:1\n0 qid:4 1:2\n")
    with pytest.raises(ValueError, match="have no qid"):
        load_svmlight(tmp_path / "a.svm")
    (tmp_path / "b.svm").write_text("1 1:1\n0 1:2\n")
    assert load_svmlight(tmp_path / "b.svm").y.tolist() == [1.0, 0.0]


def test_odd_names_and_formats(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,c\n1,2,--5\n2,3,3\n")
    assert load(tmp_path / "a.csv", target="y", client="c").clients.tolist() == ["--5", "3"]
    two = {"data": [1.0], "indices": [0], "indptr": [0, 1], "shape": [1, 1], "y": [1.0], "format": ["csr", "x"]}
    np.savez(tmp_path / "a.npz", **two)
    with pytest.raises(ValueError, match="name one sparse format; got 2"):
        load_npz(tmp_path / "a.npz")
