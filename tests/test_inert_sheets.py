"""What users call things is no command to a spreadsheet, and masked entries are not unmasked in silence."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from fedconvex import Federation
from fedconvex._files import csv_text
from fedconvex.cli import main
from fedconvex.models import LinearModel
from fedconvex.tables import read_table

pytestmark = pytest.mark.anywhere
EVIL = ["=HYPERLINK(1)", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1"]


@pytest.mark.parametrize("cell", EVIL)
def test_formulas_become_text(cell):
    ((found,),) = csv.reader(io.StringIO(csv_text([[cell]]), newline=""))
    assert found == "'" + cell.replace("\r", " ")


@pytest.mark.parametrize("cell", ["-5", "+1.5e-7", "-.5", -1, 2.5, "a=b", "7-8", "", None, "-inf"])
def test_numbers_and_other_names_stay(cell):
    assert csv_text([[cell, "x"]]) == f"{'' if cell is None else cell},x\n"


def test_predictions_ids_and_headers_of_predict_are_inert(tmp_path, capsys):
    table = {"=id": ["=1", "b", "c", "-7"], "x": [1.0, 2.0, -1.0, 3.0], "y": ["=a", "@b", "=a", "@b"]}
    frame, columns = read_table(table, "y", drop=["=id"], guard=False)
    fitted = columns.fit(frame, standardise=False, centre=False)
    LinearModel(np.ones(1), np.array(0.0), fitted.labels, ("x",), columns=fitted).save(tmp_path / "m")
    for name, cells in (("one", ["=id", "x"]), ("two", ["=id", "y"])):
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([cells, *zip(*(table[c] for c in cells), strict=True)])
    out = tmp_path / "out.csv"
    files = [str(tmp_path / "one.csv"), str(tmp_path / "two.csv")]
    assert main(["predict", str(tmp_path / "m"), *files, "--on", "=id", "--out", str(out)]) == 0
    rows = list(csv.reader(io.StringIO(out.read_text(), newline="")))
    assert rows[0] == ["'=id", "prediction"]
    assert rows[1:] == [["'=1", "'@b"], ["b", "'@b"], ["c", "'=a"], ["-7", "'@b"]]


MASKED = np.ma.masked_array([0, 1, 0, 1], [False, True, False, False])
X, Y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])


def test_masked_names_of_clients_are_refused():
    from fedconvex.estimators.clients import client_names

    with pytest.raises(ValueError, match="c must have no masked entries"):
        client_names("c", MASKED, 4)
    fed = Federation.from_arrays(X, Y, Y)
    with pytest.raises(ValueError, match=r"Federation\.subset: clients"):
        fed.subset(MASKED[:2])


@pytest.mark.slow
@pytest.mark.parametrize("given", ["X", "y", "clients"])
def test_estimators_refuse_masked_entries_and_name_themselves(given):
    from fedconvex.estimators import FederatedLogisticRegression

    args = {"X": X, "y": Y, "clients": Y}
    args[given] = MASKED if given != "X" else np.ma.masked_array(X, X == 3.0)
    with pytest.raises(ValueError, match=f"FederatedLogisticRegression: {given} must have no masked entries"):
        FederatedLogisticRegression().fit(**args)
    for bad in (np.full((4, 2), np.nan), np.ones(4), [["a", "b"]] * 4, np.ones((3, 2)), np.ones((4, 2)) * 1j):
        with pytest.raises((ValueError, TypeError)) as caught:
            FederatedLogisticRegression().fit(bad, Y, clients=Y)
        assert str(caught.value).startswith("FederatedLogisticRegression"), caught.value


def test_masked_cells_of_a_table_are_missing():
    frame, _ = read_table({"x": np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]), "y": [0, 1, 0]}, "y", impute="median")
    assert np.isnan(frame.cells["x"]).tolist() == [False, True, False]


@pytest.mark.slow
def test_thousands_of_columns_take_time_in_proportion(monkeypatch):
    """No column looks at the list of all others: with 20,000 columns that took minutes."""
    from fedconvex.tables import planning

    seen = []
    real = planning.suspicions
    monkeypatch.setattr(planning, "suspicions", lambda *args: seen.append(args[3:]) or real(*args))
    rng = np.random.default_rng(0)
    table = {f"g{j}": rng.normal(size=6) for j in range(2000)} | {"y": [0, 1] * 3}
    frame, columns = read_table(table, "y", drop=["g0"], as_category=[])
    assert len(columns.features) == 1999 and all(used is None and dropped == {"g0"} for used, dropped in seen)
    assert frame.names is frame.names  # not made anew for every column
