"""From an awkward table to predictions on new raw rows with two commands, equal to Python's bit for bit."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from fedconvex.cli import main
from fedconvex.models import LinearModel

SIZES = np.geomspace(1, 60, 20).astype(int).tolist()
DROPPED = "Unnamed: 0,patient_id,admitted,notes,vendor,outcome"


def table(path, sizes, seed=0, extra=()):
    """Twelve awkward columns: an index, an identifier, dates, decimal commas, gaps, text, a leak, ..."""
    rng = np.random.default_rng(seed)
    wards = [f"ward {k:02d}" for k, n in enumerate(sizes) for _ in range(n)]
    header = [
        "",
        "patient_id",
        "admitted",
        "age",
        "dose, mg",
        "sex",
        "zip",
        "notes",
        "vendor",
        "ward",
        "outcome",
        "ill",
    ]
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter=";")
        writer.writerow([*header, *extra])
        for i, ward in enumerate(wards):
            dose = rng.normal()
            ill = dose + rng.normal() > 0
            row = [
                i,
                5000 + 3 * i,
                f"{1 + i % 28:02d}.02.2021",
                rng.choice(["", str(rng.integers(20, 90))], p=[0.1, 0.9]),
            ]
            row += [
                f"{dose:.4f}".replace(".", ","),
                rng.choice(["f", "m"]),
                f"0{rng.integers(1, 5)}",
                f"note {i}",
                "acme",
            ]
            writer.writerow([*row, ward, "dead" if ill else "well", "yes" if ill else "no", *extra])
    return path


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("solved")
    data = table(folder / "wards.csv", SIZES)
    options = ["--drop", DROPPED, "--impute", "indicator", "--as-category", "zip", "--rounds", "3"]
    assert main(["solve", str(data), "--target", "ill", "--client", "ward", "--save", str(folder / "m"), *options]) == 0
    return folder


def test_the_first_try_names_every_column_at_once(tmp_path, capsys):
    data = table(tmp_path / "wards.csv", SIZES)
    assert main(["solve", str(data), "--target", "ill", "--client", "ward"]) == 2
    said = capsys.readouterr().err
    assert "7 columns need a decision (read with semicolons between cells, decimal commas, UTF-8)" in said
    for name in (*DROPPED.split(","), "age"):
        assert f"\n  {name!r}: " in said
    assert f"settled by: --drop '{DROPPED}' --impute median; --keep COL takes" in said


@pytest.mark.slow
def test_predictions_are_those_of_python_bit_for_bit(solved, capsys):
    new = table(solved / "new.csv", [4, 3, 2], seed=1, extra=["more"])
    assert main(["predict", str(solved / "m"), str(new), "--proba", "--out", str(solved / "p.csv")]) == 0
    said = capsys.readouterr()
    notes = said.err.splitlines()
    assert notes.pop(0).startswith("fedconvex: note: the run that made this model ended with ROUND_LIMIT, F within ")
    assert "Wrote 9 predictions" in said.out and notes[:2] == [
        "fedconvex: note: ignored what the model does not know: more",
        "fedconvex: note: missing cells, filled as in training:",
    ]
    assert [line.split() for line in notes[3:]] == [["age", "ward", "02", "2", "1"]]
    with open(solved / "p.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    model = LinearModel.load(solved / "m")
    assert [r["prediction"] for r in rows] == model.predict(new).tolist()
    assert [[float(r["P(no)"]), float(r["P(yes)"])] for r in rows] == model.predict_proba(new).tolist()
    assert model.feature_names[:3] == ("age", "age=(missing)", "dose, mg") and "zip=01" in model.feature_names
    about = json.loads((solved / "m" / "model.json").read_text())
    assert about["format"] == "fedconvex model 3" and about["gap"] is not None and len(about["digest"]) == 32
    assert {c["name"]: c["role"] for c in about["table"]["columns"]}["patient_id"] == "dropped"


def test_unknown_categories_are_said(solved, tmp_path, capsys):
    text = table(tmp_path / "new.csv", [4, 3, 2]).read_text()
    (tmp_path / "odd.csv").write_text(text.replace(";f;", ";x;"))
    assert main(["predict", str(solved / "m"), str(tmp_path / "odd.csv")]) == 0
    assert "no training row had 'x'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.replace("age;", "Age;", 1), "got no 'age', but 'Age'"),
        (lambda s: s.replace("sex;", "", 1).replace(";m;", ";").replace(";f;", ";"), "got no 'sex'"),
        (lambda s: s.splitlines()[0] + "\n", "at least one row; got a header only"),
        (lambda s: s.replace("02.2021;", "02.2021;old", 1), "column 'age' must hold numbers; got 'old"),
    ],
)
def test_wrong_rows_are_refused_by_name(solved, tmp_path, capsys, change, says):
    good = table(tmp_path / "new.csv", [4, 3, 2], seed=1).read_text()
    (tmp_path / "new.csv").write_text(change(good))
    assert main(["predict", str(solved / "m"), str(tmp_path / "new.csv")]) == 2
    said = capsys.readouterr()
    assert says in said.err and said.out == ""


def test_bad_models_and_options(solved, tmp_path, capsys):
    new = table(tmp_path / "new.csv", [4, 3, 2], seed=1)
    for argv, says in (
        ([str(tmp_path), str(new)], "MODEL: folder must hold model.json"),
        ([str(solved / "m"), str(tmp_path / "none.csv")], "must be an existing file"),
        ([str(solved / "m"), str(new), "--client", "ward"], "--client must be given for a model per client"),
        ([str(solved / "m"), str(new), "--out", str(tmp_path / "no" / "p.csv")], "--out must be a file in an existing"),
        ([str(solved / "m"), str(new), "--sep", "::"], "--sep must be one character"),
    ):
        assert main(["predict", *argv]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.parametrize("how", ["federated", pytest.param("secure", marks=pytest.mark.slow)])
def test_preprocessing_by_sums_gives_the_same_model(solved, tmp_path, capsys, how):
    data = table(tmp_path / "wards.csv", SIZES)
    options = ["--drop", DROPPED, "--impute", "indicator", "--as-category", "zip", "--rounds", "3", "--json"]
    argv = ["solve", str(data), "--target", "ill", "--client", "ward", "--save", str(tmp_path / "m"), *options]
    assert main([*argv, "--preprocessing", how]) == 0
    sent = json.loads(capsys.readouterr().out)["preprocessing"]
    assert sent["floats_up"] > 0
    one, other = LinearModel.load(solved / "m"), LinearModel.load(tmp_path / "m")
    np.testing.assert_allclose(other.coef, one.coef, rtol=1e-9, atol=1e-12)
    assert other.feature_names == one.feature_names
