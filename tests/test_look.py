"""What a table has that a model would stumble over, by column and client; tables of other packages; near names."""

from __future__ import annotations

import datetime
import json

import numpy as np
import pytest
from hospital_tables import GONE, HOSPITALS, SIZES, hospitals, written

from fedconvex.cli import main
from fedconvex.tables import Frame, look


def test_every_fault_of_the_four_hospitals_is_named(tmp_path, capsys):
    file = str(written(tmp_path / "four.csv", hospitals()))
    found = {(f.column, f.client): f for f in look(file, "hospital")}
    for column, counts in GONE.items():
        for hospital, rows, gone in zip(HOSPITALS, SIZES, counts, strict=True):
            if gone:
                assert (found[column, hospital].rows, found[column, hospital].missing) == (rows, gone)
            else:
                assert (column, hospital) not in found or found[column, hospital].found
    assert found["chol", "switzerland"].found.startswith("0 in all rows")
    assert main(["look", file, "--client", "hospital", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [f._asdict() for f in found.values()]
    assert main(["look", file, "--client", "hospitl"]) == 2


def test_units_codes_and_words_of_one_client_are_named():
    rng = np.random.default_rng(0)
    mg, mmol = rng.normal(200.0, 10.0, 30).round(1), rng.normal(5.0, 0.3, 30).round(2)
    dose = rng.normal(50.0, 5.0, 60).round(1)
    dose[[3, 40]] = -9.0
    table = {
        "chol": [*mg, *mmol],
        "dose": dose,
        "sex": ["f", "m"] * 15 + ["female", "male"] * 15,
        "sound": rng.normal(size=60),
        "ward": ["a"] * 30 + ["b"] * 30,
    }
    found = {(f.column, f.client): f.found for f in look(table, "ward")}
    assert found["chol", "b"].endswith("another unit?") and found["sex", "b"].startswith(
        "written differently: 'female'"
    )
    assert found["dose", "a"] == "-9 in 1 cells, which may mean missing"
    assert not any(column == "sound" for column, _ in found)
    assert look({"x": [1.0, None]})[0].client == "all"


@pytest.mark.parametrize("kind", ["polars", "pyarrow"])
def test_tables_of_other_packages_are_as_good_as_frames(kind):
    package, pd = pytest.importorskip(kind), pytest.importorskip("pandas")
    days = [datetime.date(2020, 1, 1), None, datetime.date(2020, 1, 3)]
    data = {"age": [61, None, 3], "sex": ["f", None, "m"], "big": [2**60 + 1, 5, 6], "day": days, "x": [0.5, 1.5, None]}
    other = package.DataFrame(data) if kind == "polars" else package.table(data)
    frame = Frame.of(pd.DataFrame({**data, "day": pd.to_datetime(days)}))
    mine = Frame.of(other)
    for name in frame.names:
        np.testing.assert_array_equal(mine.missing(name), frame.missing(name))
        assert mine.text(name).tolist() == frame.text(name).tolist()
        assert mine.cells[name].dtype == frame.cells[name].dtype


def test_what_is_no_table_is_refused():
    class Odd:
        columns = ("a",)

    with pytest.raises(TypeError, match="be a DataFrame of pandas, polars or pyarrow; got Odd"):
        Frame.of(Odd())

    class Lazy(Odd):
        """As polars' LazyFrame: its columns are not at hand before it is collected."""

        def collect(self):
            return {"a": [1.0]}

    with pytest.raises(TypeError, match=r"got Lazy: pass data.collect\(\)"):
        Frame.of(Lazy())


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["compair"], "did you mean compare?"),
        (["solve", "x.csv", "--taget", "ill"], "did you mean --target?"),
        (["solve", "--method", "fedvg"], "did you mean fedavg?"),
        (["solve", "--set", "stepsize=0.1"], "did you mean --step-size, an option?"),
        (["compare", "--methods", "fedavgg"], "did you mean fedavg?"),
    ],
)
def test_names_that_are_nearly_right(argv, meant, capsys):
    assert main(argv) == 2
    assert meant in capsys.readouterr().err


@pytest.mark.slow
def test_l2_by_cross_validation_is_that_of_the_comparison(tmp_path, capsys):
    import fedconvex

    rng = np.random.default_rng(0)
    x, ward = rng.normal(size=(24, 2)).round(3), np.arange(24) % 2
    ill = np.where(x[:, 0] + rng.normal(size=24) > 0, "yes", "no")
    file = tmp_path / "wards.csv"
    rows = ["dose,age,ward,ill", *(f"{a},{b},{w},{i}" for (a, b), w, i in zip(x, ward, ill, strict=True))]
    file.write_text("\n".join(rows) + "\n")
    asked = ["solve", str(file), "--target", "ill", "--client", "ward", "--rounds", "2", "--l2"]
    assert main([*asked, "auto", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    other = fedconvex.compare(str(file), "ill", "ward", methods=["pooled"], splits=4, progress=False)
    assert found["l2"] == other["pooled"].l2 and found["l2_chosen"].startswith(f"{found['l2']:.4g}, of 13 values")
    for refused in (["--weights", "uniform"], ["--no-intercept"], ["--method", "cocoa"]):
        assert main([*asked, "auto", *refused]) == 2
        assert "--l2 auto" in capsys.readouterr().err
