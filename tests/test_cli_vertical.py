"""``fedconvex solve bank.csv shop.csv --on customer``: tables of owners of columns, joined, solved, saved and read."""

import csv
import json

import numpy as np
import pytest

from fedconvex import Logistic, Squared, VerticalFederation
from fedconvex.cli import main
from fedconvex.problems import VerticalProblem


def write(path, rows):
    path.write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return str(path)


@pytest.fixture
def files(tmp_path):
    """A bank that knows who defaults, and a shop with the same customers in another order; both have some alone."""
    rng = np.random.default_rng(1)
    ids = [f"0{i:02d}" for i in range(40)]
    income, visits, town = rng.normal(40, 10, 40).round(3), rng.normal(size=40).round(3), rng.choice(["p", "q"], 40)
    default = np.where((income - 40) / 10 - visits + rng.normal(size=40) > 0, "yes", "no")
    bank = [("customer", "income", "default"), *zip(ids, income, default, strict=True)]
    order = rng.permutation(40)[2:]
    shop = [("customer", "visits", "town"), *((ids[i], visits[i], town[i]) for i in order), ("x9", 1.0, "p")]
    return write(tmp_path / "bank.csv", bank), write(tmp_path / "shop.csv", shop)


def fails(capsys, *argv):
    assert main(list(argv)) == 2
    return capsys.readouterr().err


JOINED = ("--on", "customer", "--target", "default")


def test_the_answer_is_that_of_the_library(capsys, files, tmp_path):
    """The intercept stands last, at the owner of the target; ids without a partner are counted and listed."""
    assert main(["solve", *files, *JOINED, "--owner-of-target", "bank", "--tol", "1e-9", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    fed = VerticalFederation.from_frames(
        dict(zip(("bank", "shop"), files, strict=True)), on="customer", target="default", intercept=True
    )
    assert fed.labels.tolist() == ["shop", "bank"]
    assert fed.ptr.tolist() == [0, 3, 5]
    assert (fed.block(1)[:, -1] == 1.0).all()
    best = VerticalProblem(fed, Logistic(), 0.01).solve()
    assert found["status"] == "CONVERGED"
    assert best.value - 1e-14 <= found["objective"] <= best.value + 1e-9
    assert found["floats_up"] == found["floats_down"] == found["rounds"] * 2 * 38
    shop, bank = found["owners"]
    assert (shop["owner"], shop["features"], shop["unmatched"], shop["knows_target"]) == ("shop", 3, ["x9"], False)
    assert (bank["features"], len(bank["unmatched"]), bank["knows_target"]) == (1, 2, True)


def test_a_saved_model_predicts_joined_and_separate_tables(capsys, files, tmp_path):
    options = [*JOINED, "--test-size", "0.25", "--save", str(tmp_path / "model"), "--coefficients"]
    assert main(["solve", *files, *options]) == 0
    said = capsys.readouterr().out
    assert "2, 38 common rows. shop: 3 features, 1 row left out without a partner (x9); bank: 1 feature" in " ".join(
        said.split()
    )
    assert "held-out rows" in said
    assert main(["predict", str(tmp_path / "model"), *files, "--on", "customer", "--proba"]) == 0
    out = capsys.readouterr()
    rows = list(csv.DictReader(out.out.splitlines()))
    assert [r["customer"] for r in rows][:2] != ["1", "2"]
    assert len(rows) == 38
    assert "shop: 1 left out (x9)" in out.err
    tables = [list(csv.DictReader(open(f))) for f in files]  # noqa: SIM115
    second = {r["customer"]: r for r in tables[1]}
    both = [r | second[r["customer"]] for r in tables[0] if r["customer"] in second]
    one = write(tmp_path / "both.csv", [list(both[0]), *(list(r.values()) for r in both)])
    assert main(["predict", str(tmp_path / "model"), one, "--proba"]) == 0
    again = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [r["P(yes)"] for r in again] == [r["P(yes)"] for r in rows]
    right = np.mean([r["prediction"] == s["default"] for r, s in zip(rows, both, strict=True)])
    assert right > 0.6


def test_columns_of_one_name_can_be_dropped_and_owners_named(capsys, files, tmp_path):
    """A column that two owners have is refused; --drop leaves it out at both; OWNER=FILE names an owner."""
    lines = open(files[1]).read().splitlines()  # noqa: SIM115
    other = write(tmp_path / "orders.csv", [[lines[0], "income"], *([line, 7] for line in lines[1:])])
    assert "column 'income' must be of one owner; got bank and orders" in fails(
        capsys, "solve", files[0], other, *JOINED
    )
    assert main(["solve", "b=" + files[0], "shop=" + files[1], *JOINED, "--drop", "town", "--json",
                 "--method", "fedbcd", "--set", "local_steps=3"]) == 2  # fmt: skip
    assert "--set must name a setting without an option; got local_steps" in capsys.readouterr().err
    argv = ["solve", "b=" + files[0], "shop=" + files[1], *JOINED, "--drop", "town", "--json", "--method", "fedbcd"]
    assert main([*argv, "--local-steps", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [o["owner"] for o in found["owners"]] == ["shop", "b"]
    assert found["features"] == 2
    assert found["gap"] <= 1e-6


def test_a_target_of_numbers(capsys, files):
    argv = ["solve", *files, "--on", "customer", "--target", "income", "--l2", "0.1", "--drop", "default", "--json"]
    assert main([*argv, "--method", "vertical-newton-cg", "--no-intercept"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = dict(zip(("bank", "shop"), files, strict=True))
    fed = VerticalFederation.from_frames(names, on="customer", target="income", drop=["default"])
    best = VerticalProblem(fed, Squared(), 0.1).solve()
    assert found["objective"] - found["gap"] <= best.value + 1e-14
    assert [o["owner"] for o in found["owners"]] == ["bank", "shop"]
    assert found["owners"][0]["features"] == 0  # who knows the target only


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "DATA must be one file; got"),
        (["--on", "customer"], "--on must come with the column to predict"),
        (["--on", "id", "--target", "default"], "table of bank must have the column 'id'; got customer, income"),
        (
            [*JOINED, "--owner-of-target", "shop"],
            "--owner-of-target shop must have the column 'default'; got that bank",
        ),
        (
            [*JOINED, "--method", "scaffold"],
            "--method scaffold must be one of fedbcd, vertical-accelerated, vertical-gd, vertical-newton-cg",
        ),
        ([*JOINED, "--l2", "0"], "--l2 must be positive"),
        ([*JOINED, "--client", "town"], "--client must be left out with --on"),
        ([*JOINED, "--loss", "hinge"], "--loss hinge must be smooth with --on"),
        ([*JOINED, "--loss", "softmax"], "must have a target of more than two classes"),
        (["--on", "customer", "--target", "customer"], "--target must be another column than the id"),
        (["--on", "customer", "--target", "nothing"], "--target must be a column of one of the owners"),
        ([*JOINED, "--features", "income"], "table of shop must have a column that makes a feature"),
        ([*JOINED, "--method", "fedbcd", "--step-size", "1"], "--method fedbcd must come without --step-size"),
    ],
)
def test_what_cannot_be_solved(capsys, files, argv, message):
    assert message in fails(capsys, "solve", *files, *argv)


def test_files_that_do_not_fit(capsys, files, tmp_path):
    assert "DATA must be the files of the owners" in fails(capsys, "solve", files[0], "none.csv", *JOINED)
    assert "bank twice: name one of them: OWNER=" in fails(capsys, "solve", files[0], files[0], *JOINED)
    twice = write(tmp_path / "twice.csv", [("customer", "age"), ("000", 3), ("000", 4)])
    assert "of twice must hold every id once; got '000' 2 times" in fails(capsys, "solve", files[0], twice, *JOINED)
    apart = write(tmp_path / "apart.csv", [("customer", "age"), ("0", 3), ("1", 4)])
    message = fails(capsys, "solve", files[0], apart, *JOINED)
    assert "find ids in column 'customer' that all owners have" in message
    assert "fedbcd must come with --on ID" in fails(capsys, "solve", files[0], "--method", "fedbcd")
    assert "--owner-of-target bank must come with --on ID" in fails(
        capsys, "solve", files[0], "--target", "default", "--owner-of-target", "bank"
    )
    assert "ROWS must be one file" in fails(capsys, "predict", str(tmp_path), *files)
