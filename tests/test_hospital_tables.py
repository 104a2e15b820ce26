"""A table of four hospitals as they come: what is missing, constant or a code at one of them is named."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex import Federation
from fedconvex.cli import main
from fedconvex.preprocessing import fit_federated
from fedconvex.tables import ColumnProblems, Columns, read_table
from fedconvex.tables.records import described, restored
from tests.hospital_tables import CODES, GONE, HOSPITALS, SIZES, hospitals, written

pytestmark = pytest.mark.anywhere
NAMES = [*CODES]
SETTLED = {"as_category": NAMES, "impute": "indicator", "missing": ["chol=0"]}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return written(tmp_path_factory.mktemp("heart") / "heart.csv", hospitals())


def test_missing_cells_are_counted_by_column_and_client(path):
    with pytest.raises(ColumnProblems) as caught:
        read_table(path, "ill", "hospital", as_category=NAMES)
    said = {t.column: t.what for t in caught.value.troubles if t.option == "impute"}
    assert said.keys() == GONE.keys()
    for name, counts in GONE.items():
        assert said[name].startswith(f"{sum(counts)} missing of {sum(SIZES)}: ")
        places = [f"{m} of {n} at {who}" for m, n, who in zip(counts, SIZES, HOSPITALS, strict=True) if m]
        assert all(place in said[name] for place in places) and said[name].count(" at ") == len(places)
    assert said["ca"].endswith(
        "198 of 200 at longbeach, 291 of 294 at hungary, 118 of 123 at switzerland, 4 of 303 at cleveland"
    )
    for text in (str(caught.value), caught.value.command_line):  # drop, indicator, median, most frequent
        assert all(word in text.splitlines()[-1] for word in ("median", "mode", "indicator", "drop", "most frequent"))


def test_a_code_at_one_hospital_is_asked_about_and_what_it_says_settles_it(path):
    with pytest.raises(ColumnProblems) as caught:
        read_table(path, "ill", "hospital", as_category=NAMES)
    (code,) = (t for t in caught.value.troubles if t.option == "missing")
    what = "0 in 123 cells, and no other value near it (123 of 123 at switzerland): a code for missing cells?"
    assert (code.column, code.what) == ("chol", what)
    cures = caught.value.cures
    frame, columns = read_table(
        path, "ill", "hospital", as_category=NAMES, missing=cures["missing"], impute=cures["impute"][0]
    )
    fitted = columns.fit(frame)
    (chol,) = (c for c in fitted.columns if c.name == "chol")
    there = np.array([float(c) for c in hospitals()["chol"] if c not in ("?", "0")])
    assert chol.fill == np.median(there) and chol.codes == ("0",)
    assert "no value in any of 123 rows of switzerland" in chol.note


def test_columns_that_never_change_at_one_hospital_are_named(path):
    _, columns = read_table(path, "ill", "hospital", as_category=NAMES, impute="median", keep=["chol"])
    notes = {c.name: c.note for c in columns.columns}
    assert "0 in all 123 rows of switzerland, and not so elsewhere" in notes["chol"]
    assert not any("in all" in note for name, note in notes.items() if name != "chol")
    rare = {"x": np.r_[np.zeros(20), 1.0, np.zeros(19)], "z": np.r_[np.full(20, 7.0), np.arange(20.0) ** 2]}
    table = {**rare, "y": np.tile([0, 1], 20), "who": np.repeat(["a", "b"], 20)}
    notes = {c.name: c.note for c in read_table(table, "y", "who", guard=False)[1].columns}
    assert "in all" not in notes["x"]  # 20 zeros are no wonder where one of 20 is 1
    assert notes["z"] == "7 in all 20 rows of a, and not so elsewhere"
    names = {**table, "z": np.r_[np.full(20, "m"), np.resize(["f", "m", "d"], 20)]}
    notes = {c.name: c.note for c in read_table(names, "y", "who", guard=False)[1].columns}
    assert notes["z"] == "m in all 20 rows of a, and not so elsewhere"


def test_codes_travel_with_the_record_and_are_counted_federated(path):
    frame, columns = read_table(path, "ill", "hospital", **SETTLED)
    fitted = columns.fit(frame)
    again = restored("x", described(fitted), fitted.center, fitted.scale)
    assert isinstance(again, Columns) and again.matrix(frame).tobytes() == fitted.matrix(frame).tobytes()
    parts = [frame.take(np.asarray(hospitals()["hospital"]) == name) for name in HOSPITALS]
    found = fit_federated(columns, parts).columns
    assert found.columns == fitted.columns
    fed = Federation.from_frame(path, target="ill", client="hospital", **SETTLED)
    at = fed.columns.feature_names.index("chol=(missing)")
    marked = [np.unique(fed.X[fed.ptr[k] : fed.ptr[k + 1], at]).size for k in range(4)]
    assert dict(zip(fed.labels.tolist(), marked, strict=True)) == dict(zip(HOSPITALS, (1, 2, 1, 2), strict=True))


def test_the_rows_of_a_comparison_say_what_was_filled_where(path):
    from fedconvex.comparison.intake import intake

    gaps = intake(path, "ill", "hospital", None, None, **SETTLED).gaps
    found = {(column, client): (m, n) for column, client, m, n, _ in gaps}
    for name, counts in GONE.items():
        for client, m, n in zip(HOSPITALS, counts, SIZES, strict=True):
            m = 123 if (name, client) == ("chol", "switzerland") else m
            assert found.get((name, client)) == ((m, n) if m else None)
    assert {g[4] for g in gaps} == {"a category of its own", "the median, and marked"}


def test_the_command_line_takes_codes(path, capsys):
    options = ["--as-category", ",".join(NAMES), "--target", "ill", "--client", "hospital"]
    assert main(["solve", str(path), *options, "--loss", "squared", "--json"]) == 2
    assert "--missing chol=0" in capsys.readouterr().err
    assert main(["solve", str(path), *options, "--missing", "chol=0,nothing=1", "--impute", "median"]) == 2
    assert "have a column 'nothing'" in capsys.readouterr().err
    assert main(["solve", str(path), *options, "--missing", "chol=0,-9", "--impute", "median"]) == 2
    assert "got chol=0,-9: chol=0,chol=-9" in capsys.readouterr().err  # no code that stands in no cell, silently
    assert main(["solve", str(path), *options, "--missing", "chol"]) == 2
    assert "--missing must be a list of COLUMN=VALUE" in capsys.readouterr().err
