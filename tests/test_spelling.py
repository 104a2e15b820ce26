"""Numbers that are names: however they are spelt, they are one category, client, class and id."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from fedconvex import Federation, Logistic, Problem
from fedconvex.models import LinearModel
from fedconvex.preprocessing import fit_federated
from fedconvex.tables import ColumnProblems, Frame, UnknownCategory, read_frame, read_table
from fedconvex.tables.joining import joined
from fedconvex.tables.spelling import Names, all_differ, as_text, doubles, number_of, spelt
from tests.hospital_tables import CODES, GONE, HOSPITALS, hospitals, written

pytestmark = pytest.mark.anywhere
FULL = [name for name in ("age", *CODES) if name not in GONE]  # columns without missing cells


def test_a_plain_number_has_one_spelling_that_parses_to_the_same_number():
    rng = np.random.default_rng(0)
    for _ in range(300):
        number = Decimal(int(rng.integers(-(10**9), 10**9))) / Decimal(10) ** int(rng.integers(0, 12))
        exact = f"{number:f}"
        point = exact if "." in exact else exact + "."
        spellings = {exact, point, point + "0", point + "000"} | (set() if exact[0] == "-" else {"+" + exact})
        found = {spelt(s) for s in spellings}
        assert len(found) == 1 and found == {as_text(float(exact))}, (spellings, found)
        assert Decimal(found.pop()) == number


@pytest.mark.parametrize("cell", ["007", "2E1", "1_000", "1,5", "0x1", "", ".", "+", "-", "nan", "inf", "1 2", "١"])
def test_what_is_no_plain_number_stays_as_it_is(cell):
    assert spelt(cell) == cell


def test_whole_numbers_beyond_doubles_stay_apart():
    """2^53 and 2^53 + 1 are one double."""
    assert len({spelt(c) for c in ("9007199254740992", "9007199254740993", "9007199254740993.0")}) == 2
    assert doubles(["9007199254740992", "9007199254740993"]) is None
    long = "1" * 5000  # longer than Python turns into a number
    assert spelt(long) == long == spelt(long + ".00") and number_of(long) is not None
    assert len({spelt("0.12345678901234567891"), spelt("0.12345678901234567892")}) == 2


def test_names_are_found_by_spelling_then_by_number():
    known = Names([1, "2.0", "07", "f", 0.5])
    places = [known.place(c) for c in ("1.0", 1.0, "+1", "2", "7", "7.0", "07", "0.50", ".5", "0,5", "F", "1,000")]
    assert places == [0, 0, 0, 1, 2, 2, 2, 4, 4, 4, -1, -1]
    both = Names(["7", "07"])
    assert [both.place(c) for c in ("7.0", "07", "007")] == [0, 1, -1]  # which of the two is not guessed


def test_codes_of_four_hospitals_are_four_categories(tmp_path):
    path = written(tmp_path / "heart.csv", hospitals())
    frame, columns = read_table(path, "ill", "hospital", drop=[*GONE], as_category=["sex", "cp", "restecg"])
    fitted = columns.fit(frame)
    assert [f for f in fitted.feature_names if f.startswith("cp=")] == ["cp=1", "cp=2", "cp=3", "cp=4"]
    said = {name: note for name, _, note in fitted.listed()}
    assert "'1' and '1.0' are one name" in said["cp"] and said["age"] == ""
    # the same table of numbers, text or both is the same matrix
    cells = {name: read_frame(path).cells[name] for name in ("age", "sex", "cp", "restecg", "exang", "ill")}
    whole = {**cells, "hospital": frame.cells["hospital"]}
    for kind in (float, int, str, object):
        table = {**whole, "cp": whole["cp"].astype(int).astype(kind), "sex": whole["sex"].astype(kind)}
        other, its = read_table(table, "ill", "hospital", as_category=["sex", "cp", "restecg"])
        assert its.fit(other).matrix(other).tobytes() == fitted.matrix(frame).tobytes()


def test_a_saved_model_reads_every_spelling(tmp_path):
    path = written(tmp_path / "heart.csv", hospitals())
    fed = Federation.from_frame(
        path, target="ill", client="hospital", drop=[*GONE], as_category=["sex", "cp", "restecg"], intercept=True
    )
    best = Problem(fed, Logistic(), l2=0.1).solve()
    best.save(tmp_path / "model")
    model = LinearModel.load(tmp_path / "model")
    patient = {"age": "61", "sex": "1", "cp": "4", "restecg": "2", "exang": "1"}
    answers = set()
    for spell in ("{}", "{}.0", "{}.", "+{}", "0{}", "{}e0", "{}.000"):
        other = written(tmp_path / "one.csv", {k: [spell.format(v) if k != "age" else v] for k, v in patient.items()})
        answers.add(model.predict_proba(other)[0, 1])
    pd = pytest.importorskip("pandas")
    for kind in (int, float, str, "category"):
        answers.add(model.predict_proba(pd.DataFrame({k: [int(v)] for k, v in patient.items()}).astype(kind))[0, 1])
    assert len(answers) == 1
    with pytest.warns(UnknownCategory, match="'5'"):
        model.predict({**{k: [v] for k, v in patient.items()}, "cp": ["5.0"]})


@pytest.mark.parametrize("role", ["client", "domain"])
def test_clients_and_domains(role):
    table = {
        "x": np.arange(6.0) ** 2,
        "y": [0, 1] * 3,
        "who": ["1", "1.0", "2.0", "2", "+3", "3."],
        "ward": list("ab") * 3,
    }
    how = {"client": "ward", role: "who"}
    fed = Federation.from_frame(table, target="y", **how, guard=False)
    assert (fed.labels if role == "client" else fed.domain_labels).tolist() == [1, 2, 3]


def test_classes_of_a_target():
    table = {"x": np.arange(6.0) ** 2, "y": ["1", "1.0", "x", "x", "2", "2.00"], "ward": list("ab") * 3}
    frame, columns = read_table(table, "y", "ward", as_category=["y"], guard=False)
    assert columns.labels == ("1", "2", "x") and columns.target(frame).tolist() == [0, 0, 2, 2, 1, 1]
    assert columns.target(Frame.of({**table, "y": [1.0, 2.0, 1.0, 2.0, 2.0, 1.0]})).tolist() == [0, 1, 0, 1, 1, 0]


def test_ids_of_joined_tables(tmp_path):
    bank = written(tmp_path / "bank.csv", {"id": ["1.0", "2.0", "3.0", "x", "007"], "income": list("12345")})
    shop = {"id": [3, 2, 1], "visits": [9.0, 5.0, 1.0]}
    found = joined({"bank": bank, "shop": shop}, "id")
    assert found.ids.tolist() == ["1", "2", "3"] and found.frame.cells["visits"].tolist() == [1.0, 5.0, 9.0]
    found = joined({"bank": bank, "shop": {"id": ["7", "x"], "visits": [9.0, 5.0]}}, "id")
    assert found.ids.tolist() == ["x"] and "ids '007' and '7' are one number" in str(found)


def test_other_files(tmp_path):
    y, x = np.array([0, 1, 0, 1]), np.arange(4.0)[:, None] ** 2
    np.savez(tmp_path / "a.npz", X=x, y=y, clients=np.array(["1", "1.0", "2", "2.0"]))
    assert Federation.from_frame(tmp_path / "a.npz", guard=False).labels.tolist() == [1, 2]
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    codes = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 1]), pa.array(["1.0", "2"]))
    pq.write_table(pa.table({"cp": codes, "ward": ["1", "1.0", "b", "b"], "y": y}), tmp_path / "a.parquet")
    frame, columns = read_table(tmp_path / "a.parquet", "y", "ward", guard=False)
    assert columns.fit(frame).feature_names == ("cp=1", "cp=2") and columns.clients(frame).tolist() == [
        "1",
        "1",
        "b",
        "b",
    ]


def test_decimal_commas(tmp_path):
    columns = {
        "dose": ["0,5", "1,5", "2,5", "3,5"],
        "cp": ["1,0", "1", "2,0", "2"],
        "y": ["0", "1"] * 2,
        "w": list("aabb"),
    }
    path = tmp_path / "a.csv"
    path.write_text("\n".join(";".join(row) for row in (columns, *zip(*columns.values(), strict=True))))
    frame, record = read_table(path, "y", "w", as_category=["cp"])
    assert record.fit(frame).feature_names == ("dose", "cp=1", "cp=2")
    with pytest.raises(ColumnProblems, match="'1' and '1,0' are one number"):
        read_table(path, "y", "w", as_category=["cp"], decimal=".", drop=["dose"])


def test_blocks_of_numbers_and_text_spell_alike(tmp_path, monkeypatch):
    monkeypatch.setattr("fedconvex.tables.csv_files._BLOCK", 4)
    path = written(tmp_path / "a.csv", {"cp": ["1", "2.0", "1.0", "2", "x", "1.0"], "y": ["0", "1"] * 3})
    frame = read_frame(path)
    assert frame.cells["cp"].tolist() == ["1", "2", "1", "2", "x", "1"]


@pytest.mark.parametrize(("cells", "two"), [(["07", "7", "8"], "'07' and '7'"), (["20", "2E1", "x"], "'20' and '2E1'")])
@pytest.mark.parametrize("role", ["category", "client", "target"])
def test_identifiers_that_are_one_number_are_asked_about(cells, two, role):
    table = {"who": cells * 4, "x": np.arange(12.0) ** 2, "y": [0, 1] * 6, "ward": list("ab") * 6}
    how = {"category": {"as_category": ["who"]}, "client": {"client": "who"}, "target": {"target": "who"}}[role]
    if role == "target":
        how["as_category"] = ["who"]
    with pytest.raises(ColumnProblems, match=two) as caught:
        read_table(table, **{"target": "y", "client": "ward", **how})
    if role == "category":
        assert "keep=[...]" in str(caught.value) and "--keep" in caught.value.command_line
        frame, columns = read_table(table, "y", "ward", keep=["who"], **how)
        assert len(columns.fit(frame).feature_names) == 4


@pytest.mark.parametrize("role", ["category", "client", "target"])
def test_truth_values_are_one_name_however_written(tmp_path, role):
    """TRUE of one hospital and true of another were two categories, or four classes, that say which hospital it is."""
    truth = [("TRUE", "FALSE"), ("true", "false"), ("True", "False")]
    t = [truth[i % 3][i // 3 % 2] for i in range(36)]
    columns = {
        "t": t,
        "x": [f"{i**2}" for i in range(36)],
        "y": [str(i % 5 // 3) for i in range(36)],
        "w": ["a", "b"] * 18,
    }
    how = {"category": {}, "client": {"client": "t"}, "target": {"target": "t"}}[role]
    path = written(tmp_path / "t.csv", columns)
    frame, record = read_table(path, **{"target": "y", "client": "w", **how})
    assert set(frame.text("t")) == {"True", "False"}
    (c,) = (c for c in record.fit(frame).columns if c.name == "t")
    assert "are one name" in c.note and (role == "client" or c.levels == ("False", "True"))
    if role == "category":
        model = Problem(Federation.from_frame(path, "y", "w"), Logistic(), l2=0.1).solve()
        for yes, no in truth:
            again = {**columns, "t": [yes if v.lower() == "true" else no for v in t]}
            found = model.predict_proba(written(tmp_path / "n.csv", again))
            assert found.tobytes() == model.predict_proba(path).tobytes()


@pytest.mark.parametrize("role", ["category", "target"])
def test_words_that_differ_in_case_only_are_asked_about(role):
    cells = ["Yes", "no", "yes", "no "] * 6
    table = {"who": cells, "x": np.arange(24.0) ** 2, "y": [0, 1, 1] * 8, "ward": list("ab") * 12}
    how = {"category": {}, "target": {"target": "who"}}[role]
    with pytest.raises(ColumnProblems, match="'Yes' and 'yes' are one word"):
        read_table(table, **{"target": "y", "client": "ward", **how})
    how |= {"keep": ["who"]} if role == "category" else {"as_category": ["who"]}
    frame, columns = read_table(table, **{"target": "y", "client": "ward", **how})
    (c,) = (c for c in columns.fit(frame).columns if c.name == "who")
    assert c.levels == ("Yes", "no", "yes")
    if role == "category":
        with pytest.raises(ColumnProblems, match="are one word"):
            read_table(table, "y", "ward", as_category=["who"])


def test_federated_categories_are_those_of_pooled_rows(tmp_path):
    columns = hospitals()
    path = written(tmp_path / "heart.csv", {name: columns[name] for name in (*FULL, "ill", "hospital")})
    frame, record = read_table(path, "ill", "hospital", as_category=["sex", "cp", "restecg"])
    parts = [frame.take(np.asarray(columns["hospital"]) == name) for name in HOSPITALS]
    found = fit_federated(record, parts).columns
    assert found.feature_names == record.fit(frame).feature_names and "cp=4" in found.feature_names
    with pytest.raises(ValueError, match="spell a number in one way at all clients; got '07', '7'"):
        apart = [Frame.of({"c": ["07", "x"], "y": [0, 1]}), Frame.of({"c": ["7", "x"], "y": [0, 1]})]
        fit_federated(read_table(apart[0], "y", guard=False, as_category=["c"])[1], apart)


def test_clients_of_models():
    model = LinearModel(np.eye(2), np.zeros(2), None, ("a", "b"), clients=("1", 2))
    assert model.predict([[3.0, 4.0]] * 4, clients=["1.0", "2.0", "1", "02"]).tolist() == [3.0, 4.0, 3.0, 4.0]
    assert model.unknown_clients(["1.0", "3.0", "2"]) == ["3.0"]


@pytest.mark.slow
def test_clients_of_estimators():
    from fedconvex.estimators import FederatedMultiTaskClassifier

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 2)), np.tile([0, 1], 6)
    fitted = FederatedMultiTaskClassifier().fit(X, y, clients=["1", "1.0", "1", "1.0", "2", "2."] * 2)
    assert fitted.clients_.tolist() == ["1", "2"]


@pytest.mark.parametrize("classes", [(1, "1"), ("1", "1.0"), (1, 1.0), (True, 1), ("a", "a")])
def test_labels_of_models_differ_as_names(classes):
    assert not all_differ(classes)
    with pytest.raises(ValueError, match="classes must be different names"):
        LinearModel(np.ones(1), np.array(0.0), classes, ("a",))
    with pytest.raises(ValueError, match="clients must be 2 different names"):
        LinearModel(np.ones((2, 1)), np.zeros(2), None, ("a",), clients=classes)
    with pytest.raises(ValueError, match="feature_names must be different names; got 'a' twice"):
        LinearModel(np.ones(2), np.array(0.0), (0, 1), ("a", "a"))


def test_features_of_two_columns_have_different_names():
    table = {"sex": ["f", "m", "f"], "sex=f": [1.0, 2.0, 4.0], "y": [0, 1, 0]}
    frame, columns = read_table(table, "y", guard=False)
    with pytest.raises(ValueError, match="'sex=f' of two columns: rename one of them"):
        columns.fit(frame)
