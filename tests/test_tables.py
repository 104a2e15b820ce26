"""The guard over columns and the record of what became of each: all that is wrong is said at once, with its cure."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Federation
from fedconvex.tables import ColumnProblems, Frame, read_frame, read_table

pytestmark = pytest.mark.anywhere
RNG = np.random.default_rng(0)
N = 60
ILL = np.tile([0, 1, 1], N // 3)
PLAIN = {"dose": RNG.normal(size=N), "sex": RNG.choice(["f", "m"], N), "ill": ILL, "ward": np.arange(N) % 4}


def troubles(columns, **how):
    """What is said of each column."""
    with pytest.raises(ColumnProblems) as caught:
        read_table({**PLAIN, **columns}, "ill", "ward", **how)
    return {t.column: t for t in caught.value.troubles}


SUSPICIOUS = {
    "day": ([f"2021-03-{1 + i % 28:02d}" for i in range(N)], "dates"),
    "german": ([f"{1 + i % 28}.3.2021" for i in range(N)], "dates, as text"),
    "american": ([f"3/{1 + i % 28}/2021 8:15 PM" for i in range(N)], "dates, as text"),
    "stamp": (np.datetime64("2021-01-01") + np.arange(N), "dates"),
    "yyyymmdd": ([20210101 + i % 28 for i in range(N)], "dates written as numbers"),
    "patientId": (1000 + 7 * np.arange(N)[::-1], "an identifier by its name"),
    "record_no": (np.arange(N) // 2 * 5, None),  # half of the numbers are new: not more than half
    "code": ([f"p{i}" for i in range(N)], "an identifier: another text"),
    "city": ([f"c{i % 55}" for i in range(N)], "text with 55 different values"),
    "Unnamed: 0": (np.arange(N), "numbers the rows"),
    "one_based": (np.arange(1, N + 1), "numbers the rows"),
    "falling": (np.arange(N)[::-1], "numbers the rows"),
    "same": (np.ones(N), "constant: 1"),
    "maker": (["acme"] * N, "constant: 'acme'"),
    "percent": ([f"{i}%" for i in range(N)], "numbers in another notation ('0%', ...)"),
    "cost": ([f"{i % 20 + 1},500" for i in range(N)], "numbers in another notation ('1,500', ...)"),
    "weight": ([f"{i % 40} kg" for i in range(N)], "numbers in another notation"),
    "timestamp": (1_600_000_000 + RNG.integers(0, 10**6, N), "time stamps (16"),
    "size": (RNG.choice(["XL", "L", "10-12", "36"], N), "numbers and text"),
    "ranges": ([f"{10 * (i % 15)}-{10 * (i % 15) + 9}" for i in range(N)], None),
    "gone": ([None] * N, "no value in any row"),
    "huge": ([np.inf] + [1.0] * (N - 1), "inf in row 1"),
    "mixed": (["1", "2"] * (N // 2 - 1) + ["x", "y"], "numbers and text: 1 in row 1 and 'x' in row 59"),
    "gaps": ([None, 1.5, *RNG.normal(size=N - 2)], "1 missing of 60"),
    "outcome": (np.where(ILL, "died", "left"), "gives the target away: alone it has an AUC of 1.0000"),
    "risk": (ILL + 0.3 * RNG.uniform(size=N), "gives the target away"),
    "safety": (-ILL * 1e-200, "gives the target away"),
    "age": (RNG.integers(20, 90, N), None),
    "visit": (RNG.permutation(N), None),  # unique whole numbers, but no name of an identifier
    "city50": ([f"c{i % 50}" for i in range(N)], None),
    "weak": (ILL + 1.0 * RNG.normal(size=N), None),
}


@pytest.mark.parametrize("name", SUSPICIOUS)
def test_one_column_at_a_time(name):
    cells, says = SUSPICIOUS[name]
    if says is None:
        read_table({**PLAIN, name: cells}, "ill", "ward")
        return
    found = troubles({name: cells})
    assert list(found) == [name] and found[name].what.startswith(says), found
    _, columns = read_table({**PLAIN, name: cells}, "ill", "ward", drop=[name])
    assert (name, "dropped", "as asked") in columns.listed()


def test_all_in_one_message_and_what_it_says_settles_it():
    bad = {name: cells for name, (cells, says) in SUSPICIOUS.items() if says is not None}
    with pytest.raises(ColumnProblems) as caught:
        read_table({**PLAIN, **bad}, "ill", "ward")
    error = caught.value
    assert {t.column for t in error.troubles} == set(bad)
    assert str(error).count("\n") == len(bad) + 2 and str(error).startswith(f"the frame: {len(bad)} columns need")
    cures = {**error.cures, "impute": error.cures["impute"][0]}
    frame, columns = read_table({**PLAIN, **bad}, "ill", "ward", **cures)
    assert np.isfinite(columns.fit(frame).matrix(frame)).all()
    assert "--drop 'day,german,american" in error.command_line and "--impute median" in error.command_line


@pytest.mark.parametrize(("name", "role"), [("day", "number"), ("german", "category"), ("stamp", "number")])
def test_dates_are_kept_as_days_where_they_can_be_read(name, role):
    frame, columns = read_table({**PLAIN, name: SUSPICIOUS[name][0]}, "ill", "ward", keep=[name])
    kept = {c.name: c for c in columns.columns}[name]
    assert kept.role == role
    if name == "day":
        X = columns.fit(frame).matrix(frame)
        assert X[0, -1] == (np.datetime64("2021-03-01") - np.datetime64("1970-01-01")).astype(int)


def test_few_rows_prove_nothing():
    """Three rows that agree with the target are chance."""
    columns = read_table({"x": [1, 2, 3, 1], "ill": [0, 1, 1, 0], "ward": [1, 1, 2, 2]}, "ill", "ward")[1]
    assert [name for name, *_ in columns.listed()] == ["x", "ill", "ward"]


def test_real_targets_and_several_classes():
    y = RNG.normal(size=N)
    with pytest.raises(ColumnProblems, match=r"\|r\| = 1.000000"):
        read_table({"x": 2.0 - 1e150 * y, "y": y}, "y")
    read_table({"x": y + 0.05 * RNG.normal(size=N), "y": y}, "y")
    grade = RNG.permutation(np.repeat(["a", "b", "c"], N // 3))
    order = np.select([grade == "b", grade == "c"], [0.0, 1.0], 2.0) + 0.1 * RNG.uniform(size=N)
    with pytest.raises(ColumnProblems, match="'order': gives the target away"):
        read_table({"order": order, "grade": grade}, "grade")
    read_table({"order": np.where(grade == "a", order, 0.0) + RNG.normal(size=N), "grade": grade}, "grade")


FORMS = {
    "semicolons": ("dose;sex;ill\n0,5;f;1\n1,25;m;0\n", "semicolons between cells, decimal commas, UTF-8", [0.5, 1.25]),
    "tabs": ("dose\tsex\till\n0.5\tf\t1\n1.25\tm\t0\n", "tabs between cells, decimal points, UTF-8", [0.5, 1.25]),
    "bars": ("dose|sex|ill\n0.5|f|1\n1.25|m|0\n", "bars between cells, decimal points, UTF-8", [0.5, 1.25]),
    "quoted": ('dose,sex,ill\n"0,5",f,1\n"1,25",m,0\n', "commas between cells, decimal commas, UTF-8", [0.5, 1.25]),
    "excel": (
        "sep=;\ndose;sex;ill\n0,5;f;1\n1,25;m;0\n",
        "semicolons between cells, decimal commas, UTF-8",
        [0.5, 1.25],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_csv_forms_are_detected(tmp_path, form):
    text, says, dose = FORMS[form]
    (tmp_path / "a.csv").write_text(text)
    frame = read_frame(tmp_path / "a.csv")
    assert frame.read_as == says and frame.cells["dose"].tolist() == dose and frame.cells["ill"].tolist() == [1.0, 0.0]


def test_encodings(tmp_path):
    file = tmp_path / "a.csv"
    file.write_bytes("Größe,y\n1,2\n".encode("cp1252"))
    with pytest.raises(ValueError, match=r"a.csv must be UTF-8 text; .*name another with encoding=, such as cp1252"):
        read_frame(file)
    assert read_frame(file, encoding="cp1252").names == ("Größe", "y")
    with pytest.raises(ValueError, match="encoding must be one that Python knows"):
        read_frame(file, encoding="nonsense")
    file.write_bytes("Größe,y\n1,2\n".encode("utf-16"))
    assert read_frame(file).names == ("Größe", "y") and "utf-16" in read_frame(file).read_as


def test_the_same_of_every_format(tmp_path):
    """CSV, Parquet, a frame: one refusal, one record, one matrix."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({**PLAIN, "patient_id": SUSPICIOUS["patientId"][0], "dose2": [None, *RNG.normal(size=N - 1)]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    said, made = [], []
    for data in (tmp_path / "a.csv", tmp_path / "a.parquet", frame, dict(frame)):
        with pytest.raises(ColumnProblems) as caught:
            read_table(data, "ill", "ward")
        said.append(caught.value.troubles)
        rows, columns = read_table(data, "ill", "ward", drop=["patient_id"], impute="indicator")
        made.append(
            (columns.fit(rows).listed(), columns.fit(rows).matrix(rows).tolist(), columns.clients(rows).tolist())
        )
    assert said[1:] == said[:-1] and made[1:] == made[:-1] and {t.column for t in said[0]} == {"patient_id", "dose2"}
    X = np.column_stack([PLAIN["dose"], ILL])
    np.savez(tmp_path / "a.npz", X=X, y=ILL, clients=PLAIN["ward"], feature_names=np.array(["dose", "leak"]))
    with pytest.raises(ColumnProblems, match="'leak': gives the target away"):
        read_table(tmp_path / "a.npz")
    rows, columns = read_table(tmp_path / "a.npz", drop=["leak"])
    assert columns.fit(rows).feature_names == ("dose",) and columns.clients(rows).tolist() == PLAIN["ward"].tolist()


def test_frames_of_pandas():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({
        "count": pd.array([1, 2, None, 4], dtype="Int64"),
        "flag": pd.array([True, None, False, True], dtype="boolean"),
        "kind": pd.Categorical([3, 1, 3, None]),
        "name": pd.array(["a", "b", None, "a"], dtype="string"),
        "ward": ["u", "v", "u", "v"],
        "y": [0.1, 0.2, 0.3, 0.4],
    })  # fmt: skip
    fed = Federation.from_frame(frame, "y", "ward", impute="indicator", standardise=False)
    assert fed.columns.feature_names == (
        "count", "count=(missing)", "flag", "flag=(missing)", "kind=1", "kind=3", "kind=(missing)", "name=a", "name=b",
        "name=(missing)",
    )  # fmt: skip
    assert fed.X.tolist()[1] == [2.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]  # the third row: first by client
    assert fed.y.tolist() == [0.1, 0.3, 0.2, 0.4] and fed.labels.tolist() == ["u", "v"]


# ---------------------------------------------------------------------- training rows and others
def test_nothing_of_held_out_rows_leaks():
    """Other held-out rows, the same record."""
    x = np.array([1.0, 2.0, np.nan, 3.0, 100.0, 7.0])
    sexes = np.array(["f", "m", "f", "f", "x", "y"])
    frame, columns = read_table({"x": x, "sex": sexes, "y": np.arange(6) / 7}, "y", impute="median")
    fitted = columns.fit(frame.take(np.arange(4)))
    assert fitted.center.tolist()[0] == 2.0 and [c.fill for c in fitted.features] == [2.0, "f"]
    assert fitted.feature_names == ("x", "sex=f", "sex=m") and fitted.rows == 4
    held = fitted.matrix(frame.take([4, 5, 2]), unknown="zero")
    assert held.tolist() == [[100.0, 0.0, 0.0], [7.0, 0.0, 0.0], [2.0, 1.0, 0.0]]
    with pytest.raises(
        ValueError, match=r"hold only categories that the record of columns has; got 'x', 'y' in column 'sex'"
    ):
        fitted.matrix(frame.take([4, 5]), unknown="refuse")


def test_federations_of_training_and_held_out_rows():
    table = {**PLAIN}
    frame, columns = read_table(table, "ill", "ward")
    half = np.arange(N) < N // 2
    train = Federation.from_frame(frame.take(half), columns=columns, intercept=True)
    test = Federation.from_frame(frame.take(~half), columns=train.columns, intercept=True)
    np.testing.assert_allclose(train.X[:, :-1].mean(axis=0), 0.0, atol=1e-12)
    assert abs(test.X[:, 0].mean()) > 1e-3 and test.d == train.d == 4
    again = test.columns.center + test.columns.scale * test.X[:, :-1]
    np.testing.assert_allclose(np.sort(again[:, 0]), np.sort(PLAIN["dose"][N // 2 :]), rtol=1e-12)
    with pytest.raises(ValueError, match="columns=, or what to make of the table; got columns and target"):
        Federation.from_frame(frame, "ill", columns=train.columns)


# ---------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"target": "il"}, "must have a column 'il'; got columns dose, sex, ill, ward: 'ill' is near"),
        ({"target": "ill", "drop": ["doze"]}, "must have a column 'doze'"),
        ({"target": "ill", "client": "W"}, "'ward' is near"),
        ({"target": "ill", "drop": "dose"}, "read_table: drop must be a list of column names; got 'dose'"),
        ({"target": "ill", "drop": ["dose"], "keep": ["dose"]}, "drop must name other columns than keep; got 'dose'"),
        ({"target": "ill", "client": "ill"}, "target must be another column than client"),
        ({"target": "ill", "impute": "mean"}, "impute must be one of 'median', 'mode', 'indicator'; got mean"),
        ({"target": "ill", "task": "rank"}, "task must be one of"),
        ({"target": "sex", "task": "numbers"}, "target must be a column of numbers; got text in column 'sex'"),
        ({"target": "ill", "colour": 3}, "read_table must be given target, .* got colour"),
        ({"target": 3}, "read_table: target must be the name of a column"),
        ({"target": "ill", "weight": "sex"}, "weight must be a column of numbers; got text in column 'sex'"),
        ({"target": "ill", "drop": ["dose", "sex", "ward"]}, "must have at least one feature column"),
        ({"target": "ill", "guard": 1}, "guard must be True or False"),
    ],
)
def test_bad_wishes(how, says):
    with pytest.raises((ValueError, TypeError), match=says):
        read_table(PLAIN, **how)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "columns of one length, and at least one row"),
        ({"a": [1], "b": [1, 2]}, "columns of one length"),
        ({"a": [[1, 2]]}, "column 'a' must be one-dimensional|hold numbers, text or dates"),
        ({"a": [object()]}, "column 'a' must hold numbers, text or dates; got object"),
        ([1.0, 2.0], "must be a table"),
        (np.zeros((0, 2)), "must be a table"),
        ({"a": [1], 1: [2], "1": [3]}, "must name every column once"),
    ],
)
def test_what_is_no_table(data, says):
    with pytest.raises((ValueError, TypeError), match=says):
        Frame.of(data)


def test_targets_with_gaps_and_new_classes():
    with pytest.raises(ColumnProblems, match=r"'ill': 1 missing in the target column, the first in row 2\nto be corr"):
        read_table({"x": [1.0, 2.5, 3.0], "ill": ["a", None, "b"]}, "ill")
    _, columns = read_table({"x": [1.0, 2.5, 3.0], "ill": ["a", "c", "c"]}, "ill")
    with pytest.raises(ValueError, match="must have the classes a, c in the column 'ill'; got b in row 1"):
        columns.target(Frame.of({"x": [1.0], "ill": ["b"]}))


CODES_OF_GAPS = {
    -999: PLAIN["dose"].round(1),
    -9: np.arange(N) % 2,
    -1: 40.0 + np.arange(N) % 17,
    0: 180.0 + 7.0 * (np.arange(N) % 23),
    999: PLAIN["dose"].round(1),
}


@pytest.mark.parametrize("code", CODES_OF_GAPS)
@pytest.mark.parametrize("kind", ["number", "category", "text"])
def test_codes_for_missing_cells_are_asked_about(code, kind):
    x = np.where(np.arange(N) % 9 == 0, code, CODES_OF_GAPS[code])
    cells = x if kind != "text" else [f"{v:.3f}" for v in x]
    how = {} if kind == "number" else {"as_category": ["lab"]}
    found = troubles({"lab": cells}, **how)["lab"]
    assert found.what.startswith(f"{code} in 7 cells, and no other value near it (2 of 15 at 0, ")
    assert found[2:4] == ("missing", f"lab={code}") and found.also == ("impute", "median")
    frame, columns = read_table({**PLAIN, "lab": cells}, "ill", "ward", impute="median", missing=[f"lab={code}"], **how)
    empty, its = read_table({**PLAIN, "lab": [None if v == code else c for v, c in zip(x, cells, strict=True)]},
                            "ill", "ward", impute="median", **how)  # fmt: skip
    fitted = columns.fit(frame)
    both = [sp.csr_array(X).toarray() for X in (fitted.matrix(frame), its.fit(empty).matrix(empty))]
    assert both[0].tobytes() == both[1].tobytes()
    assert any(name == "lab" and f"{code} stands for missing cells" in note for name, _, note in fitted.listed())
    kept = read_table({**PLAIN, "lab": cells}, "ill", "ward", keep=["lab"], **how)[1]
    assert kept.features[-1].codes == ()


@pytest.mark.parametrize("codes", [(-9, 0), (-9, -1), (-9, -1, 0), (999, -9), (-999, -99, 0), (999, -9, 0)])
def test_several_codes_do_not_hide_each_other(codes):
    """-9 and 0 among cholesterols of 180 to 334: neither lies near them, though each lies near the other."""
    x = 180.0 + 7.0 * (np.arange(N) % 23)
    for i, code in enumerate(codes):
        x[i::9] = code
    with pytest.raises(ColumnProblems) as caught:
        read_table({**PLAIN, "lab": x}, "ill", "ward")
    assert caught.value.cures["missing"] == [f"lab={code}" for code in codes]
    how = {"missing": caught.value.cures["missing"], "impute": "median"}
    frame, columns = read_table({**PLAIN, "lab": x}, "ill", "ward", **how)
    (lab,) = (c for c in columns.fit(frame).columns if c.name == "lab")
    assert lab.fill == np.median(x[~np.isin(x, codes)])


@pytest.mark.parametrize(
    "x",
    [
        np.arange(N) % 2,  # 0 and 1
        2 * (np.arange(N) % 2) - 1,  # -1 and 1
        np.arange(N) % 7 - 1.0,  # -1, 0, 1, ..., 5
        np.where(np.arange(N) % 9 == 0, 0.0, np.exp(np.linspace(-3, 3, N))),  # doses
        50.0 * (np.arange(N) % 5),  # 0, 50, 100, 150, 200
        RNG.integers(-99, 100, N),
        np.where(np.arange(N) % 9 == 0, 0.0, RNG.normal(size=N)),
    ],
)
def test_zeros_and_negative_numbers_among_others_are_none(x):
    read_table({**PLAIN, "lab": x}, "ill", "ward")


def test_codes_that_no_cell_holds_are_named():
    lab = np.array([88.0, 1.5, 2.5, 3.5] * (len(PLAIN["ill"]) // 4 + 1))[: len(PLAIN["ill"])]
    cells = {**PLAIN, "lab": lab}
    how = {"impute": "median", "keep": ["lab"]}
    columns = read_table(cells, "ill", "ward", missing=["lab=88.0", "lab=99"], **how)[1]
    assert "no cell is 99;" in {n: note for n, _, note in columns.listed()}["lab"]
    columns = read_table(cells, "ill", "ward", missing=["lab=88.0"], **how)[1]
    assert "no cell" not in {n: note for n, _, note in columns.listed()}["lab"]
    with pytest.raises(ValueError, match="name one value each time; got lab=88,99: lab=88,lab=99"):
        read_table(cells, "ill", "ward", missing=["lab=88,99"], **how)
    names = np.where(lab == 88.0, "0,5", "x")  # a comma within a code
    columns = read_table({**PLAIN, "lab": names}, "ill", "ward", missing=["lab=0,5"], **how)[1]
    assert columns.features[-1].codes == ("0,5",)


def test_codes_name_columns_that_are_there():
    for missing, says in (
        (["lab"], "missing must be a list of COLUMN=VALUE"),
        (["lab=0"], "have a column 'lab'"),
        (["ward=0"], "missing must name columns that are features"),
        (["dose=0"], None),
    ):
        if says is None:
            read_table(PLAIN, "ill", "ward", missing=missing)
            continue
        with pytest.raises(ValueError, match=says):
            read_table(PLAIN, "ill", "ward", missing=missing)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x/site/y\n1/2/3\n", "got columns x/site/y: it was read with commas .*; another separator is named by sep="),
        ("1.5,a,0\n2.5,b,1\n", "have a column 'y'; got columns 1.5, a, 0: the first line must name the columns"),
        ("Report\n\nx,site,y\n1,2,3\n", "1 cells in every line; got 3 in line 3: the first line must name the columns"),
    ],
)
def test_files_without_a_header(tmp_path, text, says):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=says):
        read_table(tmp_path / "a.csv", "y")


def test_dates_that_are_no_days_cannot_be_kept_as_days():
    """84 features, where days were meant; as names they may be asked for."""
    days = [f"{1 + i % 28:02d}.{1 + i % 12:02d}.2020" for i in range(200)]
    data = {"day": days, "y": [0.0, 1.0] * 100}
    for keep in ((), ("day",)):
        with pytest.raises(ColumnProblems, match=r"as text \(01.01.2020, ...\): only 2020-01-31 can be kept"):
            read_table(data, "y", keep=keep)
    read_table(data, "y", as_category=["day"])
    iso = {**data, "day": [f"2020-{d[3:5]}-{d[:2]}" for d in days]}
    assert read_table(iso, "y", keep=["day"])[1].columns[0].dates


@pytest.mark.parametrize("real", [False, True])
def test_sparse_columns_that_give_the_target_away(tmp_path, real):
    """The same of svmlight: one column is the label in disguise, the others are words."""
    from sklearn.datasets import dump_svmlight_file

    words = (RNG.random((N, 30)) < 0.1) * RNG.normal(size=(N, 30))
    y = RNG.normal(size=N) if real else 2.0 * ILL - 1.0
    words[:, 7] = 3.0 * y if real else 5.0 * ILL
    words[:, 9] = y + RNG.normal(size=N)
    dump_svmlight_file(words, y, str(tmp_path / "a.svm"), zero_based=False)
    with pytest.raises(ColumnProblems) as caught:
        read_table(tmp_path / "a.svm")
    assert [t.column for t in caught.value.troubles] == ["x8"]
    frame, columns = read_table(tmp_path / "a.svm", drop=["x8"])
    fitted = columns.fit(frame)
    assert "x8" not in fitted.feature_names and fitted.matrix(frame).shape == (N, 29)
    np.testing.assert_allclose(fitted.matrix(frame).toarray(), np.delete(words, 7, axis=1), rtol=1e-14)
    read_table(tmp_path / "a.svm", keep=["x8"])
    (tmp_path / "b.svm").write_text("1 2:5 8:1\n")  # the last columns are 0 in all of its rows
    assert fitted.matrix(read_frame(tmp_path / "b.svm")).toarray().tolist() == [[0.0, 5.0, *[0.0] * 27]]


def test_clients_that_dates_name_are_called_by_dates():
    """Not by nanoseconds since 1970: the same names as in a file of text, so that saved models know them again."""
    days = np.array(["2024-01-02", "2024-03-04T05:06", "NaT"], dtype="datetime64[ns]")
    assert Frame.of({"day": days}).text("day").tolist() == ["2024-01-02", "2024-03-04T05:06", None]
