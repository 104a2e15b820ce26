"""Tables as they come: what spreadsheets, exports and frames write in several ways must be read in one, or refused."""

import numpy as np
import pytest

from fedconvex import Federation, Logistic, Problem
from fedconvex.cli import main
from fedconvex.preprocessing import fit_federated
from fedconvex.tables import ColumnProblems, Frame, read_frame, read_table

N = 40
X = np.random.default_rng(0).normal(size=N)
Y = np.array([0, 1] * (N // 2))


def csv(tmp_path, text):
    path = tmp_path / "odd.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("sep", [",", ";"])
def test_commas_before_three_digits_are_refused_not_guessed(tmp_path, sep):
    cells = ["54,053", "954", "1,200", "3,000", "2,500"] * 4
    lines = [sep.join((f'"{v}"', str(i % 7), str(i % 2))) for i, v in enumerate(cells)]
    path = csv(tmp_path, "\n".join([sep.join(("people", "age", "ill")), *lines]) + "\n")
    with pytest.raises(ColumnProblems, match=r"people.*another notation.*decimal=','"):
        read_table(path, "ill")  # 54.053 people beside 954 of them, it was
    assert read_frame(path, decimal=",").cells["people"][:2].tolist() == [54.053, 954.0]
    known = csv(tmp_path, f"people{sep}dose\n" + f'"54,053"{sep}"0,5"\n' * 2)  # 0,5 has no thousands
    assert read_frame(known).cells["people"].tolist() == [54.053] * 2


@pytest.mark.parametrize("cells", [["5%", "7%"], ["1 000", "2 500"], ["0,5", "1,5"], ["$3", "$4"]])
def test_few_numbers_in_another_notation_are_no_categories(tmp_path, cells):
    rows = "".join(f'"{v}",{j % 3}.5,{(i + j) % 2}\n' for j in range(10) for i, v in enumerate(cells))
    with pytest.raises(ColumnProblems, match="'a': numbers in another notation"):
        read_table(csv(tmp_path, "a,b,ill\n" + rows), "ill")
    assert read_table(csv(tmp_path, "a,b,ill\n" + rows), "ill", as_category=["a"])[1].columns[0].role == "category"


@pytest.mark.parametrize(
    ("header", "row", "how", "found", "cure"),
    [
        ("dose;note;ill", "{i},5;{i}.5 ml;{y}", {"drop": ["note"]}, None, None),  # detected: no number has a point
        ("dose;age;ill", "{i},5;{i}.5;{y}", {}, "decimal commas ('0,5', ...), while 'age' has decimal points", "drop"),
        ("dose;age;ill", "{i},5;{i}.5;{y}", {"drop": ["age"]}, "decimal commas ('0,5', ...)", "decimal"),
        ("dose;age;ill", "{i}{mark}5;{j};{y}", {}, "decimal points in one column ('0,5', '1.5'", "drop"),
    ],
)  # fmt: skip
def test_decimal_commas_beside_points_are_named_where_that_helps(tmp_path, header, row, how, found, cure):
    lines = [row.format(i=i, j=i % 3, y=i % 2, mark=",."[i % 2]) for i in range(24)]
    path = csv(tmp_path, "\n".join([header, *lines]) + "\n")
    if found is None:
        assert read_table(path, "ill", **how)[0].cells["dose"][0] == 0.5
        return
    with pytest.raises(ColumnProblems) as caught:
        read_table(path, "ill", **how)
    mine = next(t for t in caught.value.troubles if t.column == "dose")
    assert found in mine.what and mine.option == cure, mine
    if cure == "decimal":
        assert "--decimal ," in caught.value.command_line and "decimal=','" in str(caught.value)
        assert read_table(path, "ill", decimal=",", **how)[0].cells["dose"].tolist() == [i + 0.5 for i in range(24)]


def test_decimal_commas_of_a_frame_are_to_be_written_otherwise():
    with pytest.raises(ColumnProblems, match=r"decimal commas \('0,5', ...\), to be written as plain numbers"):
        read_table({"dose": [f"{i},5" for i in range(20)], "ill": [0, 1] * 10}, "ill")


def test_quotes_behind_blanks_and_empty_lines(tmp_path):
    text = '\n  \n"ward", "age"\n"Boston, MA", 61\n   \n"NY",  37\n\n'
    frame = read_frame(csv(tmp_path, text))
    assert frame.names == ("ward", "age")
    assert (frame.cells["ward"].tolist(), frame.cells["age"].tolist()) == (["Boston, MA", "NY"], [61.0, 37.0])


@pytest.mark.parametrize("kind", ["mapping", "pandas", "nullable", "parquet", "npz"])
@pytest.mark.parametrize("large", [10**15, 2**53, 10**17])
def test_whole_numbers_beyond_doubles_name_clients(tmp_path, kind, large):
    names = np.array([large + 1, large + 2] * (N // 2))  # 2^53 + 1 and 2^53 are one double
    table = {"x": X, "ward": names, "ill": np.repeat([0, 1], N // 2)}
    data, given = table, {"target": "ill", "client": "ward"}
    if kind in ("pandas", "nullable"):
        pd = pytest.importorskip("pandas")
        data = pd.DataFrame(table).astype({"ward": "Int64"} if kind == "nullable" else {})
    elif kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        data = tmp_path / "t.parquet"
        pq.write_table(pa.table(table), data)
    elif kind == "npz":
        data, given = tmp_path / "t.npz", {}
        np.savez(data, X=X[:, None], y=table["ill"], clients=names)
    frame, columns = read_table(data, **given)
    assert columns.clients(frame).tolist() == names.tolist()
    assert columns.clients(frame.take([1, 2])).tolist() == names[1:3].tolist()


def test_truth_values_are_the_same_in_text_and_in_frames(tmp_path):
    pd = pytest.importorskip("pandas")
    truth = np.array([True, False, True, True] * (N // 4))
    table = pd.DataFrame({"smoker": truth, "x": X, "ward": np.repeat([1, 2], N // 2), "ill": Y == 1})
    path = tmp_path / "t.csv"
    table.to_csv(path, index=False)
    for one, other in ((table, path), (path, table)):  # trained on one, asked about the other
        fed = Federation.from_frame(one, target="ill", client="ward", intercept=True)
        best = Problem(fed, Logistic(), l2=0.1, intercept=True).solve()
        assert best.decision_function(one).tolist() == best.decision_function(other).tolist()
        assert Federation.from_frame(other, columns=fed.columns, intercept=True).y.tolist() == fed.y.tolist()


@pytest.mark.parametrize("impute", ["median", "mode", "indicator"])
@pytest.mark.parametrize("real", [False, True])
def test_gaps_that_give_the_target_away(impute, real):
    days = np.where(Y == 1, X, np.nan)  # known of those who died
    target = Y * 3.5 + 0.1 if real else Y
    more = {"task": "numbers"} if real else {}
    with pytest.raises(ColumnProblems, match="'days': gives the target away by its gaps"):
        read_table({"days": days, "x": X, "died": target}, "died", impute=impute, **more)
    some = np.where((Y == 1) & (np.arange(N) > 10), np.nan, X)
    assert read_table({"days": some, "x": X, "died": target}, "died", impute=impute, **more)[1].columns


def test_targets_that_are_no_classes():
    incomes = [f"{v},{100 + v}" for v in range(10, 10 + N)]
    with pytest.raises(ColumnProblems, match="'income': numbers in another notation"):
        read_table({"x": X, "income": incomes}, "income")
    names = [f"patient {i}" for i in range(2 * N)]
    with pytest.raises(ColumnProblems, match=r"'who': text with 80 different values.*more than 50 classes"):
        read_table({"x": np.r_[X, X], "who": names}, "who")
    assert len(read_table({"x": np.r_[X, X], "who": names}, "who", as_category=["who"])[1].labels) == 80


def test_targets_of_one_value_and_columns_called_like_options(tmp_path, capsys):
    rows = "".join(f"{x},a,{i % 2},b\n" for i, x in enumerate(X))
    path = csv(tmp_path, "l2,--keep,ward,ill\n" + rows)
    for command in ("solve", "compare"):
        assert main([command, str(path), "--target", "ill", "--client", "ward", "--keep=--keep"]) == 2
        assert "target must take at least two values" in capsys.readouterr().err
    path = csv(tmp_path, "-x,--drop,ward,ill\n" + rows.replace(",b", ",1"))
    assert main(["solve", str(path), "--target=-x", "--client", "ward"]) == 2
    assert "settled by: --drop=--drop,ill" in capsys.readouterr().err
    cells = "".join(f'"{i},5",1.5,{i % 2},{i % 3}\n' for i in range(20))
    assert main(["solve", str(csv(tmp_path, "a,b,ward,ill\n" + cells)), "--target", "ill", "--client", "ward"]) == 2
    assert "settled by: --decimal , --drop b" in capsys.readouterr().err


@pytest.mark.parametrize("impute", ["median", "mode", "indicator"])
def test_columns_without_a_value_in_the_training_rows(impute):
    """All known cells may be among the rows that are held out, or in one fold."""
    rare, names = np.full(N, np.nan), np.array([None] * N, dtype=object)
    rare[3], names[5] = 1.5, "u"
    rare[4], names[6] = 2.5, "v"
    table = {"x": X, "rare": rare, "names": names, "ward": np.repeat(["a", "b"], N // 2), "ill": Y}
    frame, columns = read_table(table, "ill", "ward", impute=impute)
    train = frame.take(np.arange(10, N))
    fitted = columns.fit(train)
    assert fitted.matrix(train).shape[0] == N - 10 and np.isfinite(fitted.standardised(fitted.matrix(train))).all()
    parts = [train.take(np.arange(10)), train.take(np.arange(10, N - 10))]
    assert fit_federated(columns, parts).columns.columns == fitted.columns


def test_dates_and_numbers_are_not_mistaken_for_each_other():
    pd = pytest.importorskip("pandas")
    days = pd.date_range("2020-01-01", periods=N).to_numpy()
    table = pd.DataFrame({"dose": X, "day": days, "ward": np.repeat(["a", "b"], N // 2), "ill": Y})
    fed = Federation.from_frame(table, "ill", "ward", keep=["day"], intercept=True)
    model = Problem(fed, Logistic(), l2=0.1, intercept=True).solve()
    same = model.decision_function(table.assign(day=[str(day)[:10] for day in days]))
    assert same.tolist() == model.decision_function(table).tolist()
    with pytest.raises(ValueError, match="column 'dose' must hold numbers, as in training; got dates"):
        model.predict(table.assign(dose=days))
    with pytest.raises(ValueError, match="column 'day' must hold dates, as in training; got numbers"):
        model.predict(table.assign(day=43831.0))


def test_names_are_read_without_blanks_from_frames_as_from_files(tmp_path):
    rows = "".join(f"{x}, {s} ,a\n" for x, s in zip(X, ["f", "m", "", "m"] * (N // 4), strict=True))
    read = read_frame(csv(tmp_path, "x,sex,ward\n" + rows))
    cells = [line.split(",")[1] for line in rows.splitlines()]
    for given in (cells, np.array(cells)):
        assert Frame.of({"sex": given}).cells["sex"].tolist() == read.cells["sex"].tolist()
    assert read.missing("sex").sum() == N // 4


def test_digits_as_text_are_no_days():
    frame = Frame.of({"a": ["1", "2"] * 20, "b": ["2021-03-01", "2021-04-02"] * 20, "y": Y})
    columns = read_table(frame, "y", keep=["b"], guard=False)[1]
    assert [c.note for c in columns.columns][:2] == ["", "days since 1970-01-01"]


def test_missing_values_of_pandas_in_a_mapping():
    pd = pytest.importorskip("pandas")
    assert Frame.of({"a": [pd.NA, 1, 2]}).cells["a"].tolist()[1:] == [1.0, 2.0]
