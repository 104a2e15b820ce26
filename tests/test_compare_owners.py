"""What the columns of each owner add: exact minima, certified differences, held-out losses."""

import json

import numpy as np
import pytest

from fedconvex import Federation, Logistic, Problem, Squared, VerticalFederation
from fedconvex.cli import main
from fedconvex.comparison import compare_owners


def tables(n=90, seed=3):
    """A bank, a shop whose visits matter, and a club of pure noise."""
    rng = np.random.default_rng(seed)
    ids = [f"c{i}" for i in range(n)]
    income, visits, age = rng.normal(size=(3, n)).round(4)
    default = np.where(income - 1.5 * visits + 0.5 * rng.logistic(size=n) > 0, "yes", "no")
    return {
        "bank": {"id": ids, "income": income, "default": default},
        "shop": {"id": ids[::-1], "visits": visits[::-1], "town": [str(t) for t in rng.choice(list("pq"), n)]},
        "club": {"id": [*ids, "z"], "age": [*age, 0.25]},
    }


@pytest.mark.compiled
def test_minima_are_those_of_the_pooled_problems_and_partners_are_told_apart():
    found = compare_owners(tables(), "id", "default", knows="bank", l2=0.02)
    assert [m.name for m in found.models] == ["all owners", "without shop", "without club", "bank alone"]
    assert found.unmatched["club"] == ("z",)
    fed = VerticalFederation.from_frames(tables(), on="id", target="default", intercept=True)
    assert fed.labels.tolist() == ["shop", "club", "bank"]
    for model, columns in zip(found.models, (range(6), (3, 4, 5), (0, 1, 2, 4, 5), (4, 5)), strict=True):
        rows = Federation(fed.rows.X[:, list(columns)], fed.y, np.array([0, fed.n]))
        best = Problem(rows, Logistic(), 0.02).solve()
        assert model.minimum == pytest.approx(best.value, abs=1e-12)
        assert model.worth.low <= best.value - Problem(fed.rows, Logistic(), 0.02).solve().value + 1e-12
        assert 0.0 <= model.worth.low <= model.worth.value <= model.worth.high < model.worth.low + 1e-9
    shop, club = found.models[1:3]
    assert shop.change.low > 0.1 and shop.worth.low > 0.1 and shop.score < found.models[0].score
    assert club.change.low < 0.0 < club.worth.low < 0.01  # noise: less on the training rows, nothing on others
    assert "shop adds to what can be predicted" in found.sentences[0]
    assert "do not show that club adds anything" in found.sentences[1]


def test_held_out_losses_by_hand():
    """Folds, refits and losses once more, on columns that are taken as they are."""
    rng = np.random.default_rng(5)
    A, B = rng.normal(size=(40, 2)), rng.normal(size=(40, 1))
    y = A[:, 0] + B[:, 0] + 0.3 * rng.normal(size=40)
    fed = VerticalFederation.from_blocks({"bank": A, "shop": B}, y)
    found = compare_owners(fed, loss=Squared(), l2=0.05, folds=4, seed=2)
    fold = np.random.default_rng([2, 40]).permutation(40) % 4
    for model, X in zip(found.models, (np.hstack([A, B]), A), strict=True):
        loss = np.empty(40)
        for f in range(4):
            T, H = fold != f, fold == f
            w = np.linalg.solve(X[T].T @ X[T] / T.sum() + 0.05 * np.eye(X.shape[1]), X[T].T @ y[T] / T.sum())
            loss[H] = 0.5 * (X[H] @ w - y[H]) ** 2
        assert model.held_out == pytest.approx(loss.mean(), rel=1e-9)
        assert model.score == pytest.approx(1.0 - 2.0 * loss.sum() / np.sum((y - y.mean()) ** 2), rel=1e-9)


@pytest.mark.slow
@pytest.mark.compiled
def test_the_order_of_tables_and_rows_changes_nothing():
    one = compare_owners(tables(), "id", "default", knows="bank", folds=3)
    other = {name: tables()[name] for name in ("club", "bank", "shop")}
    other["bank"] = {name: list(np.asarray(cells)[::-1]) for name, cells in other["bank"].items()}
    again = {m.name: m for m in compare_owners(other, "id", "default", folds=3).models}
    for m in one.models:
        assert again[m.name].held_out == pytest.approx(m.held_out, rel=1e-7)
        assert again[m.name].score == m.score


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: compare_owners({"bank": t["bank"]}, "id", "default"), "columns of at least two owners"),
        (lambda t: compare_owners(t, "id", "default", folds=50), "folds must leave two rows of 90 in each"),
        (lambda t: compare_owners(t, "id", "default", l2=0.0), "l2 must be positive"),
        (lambda t: compare_owners(t, "id", "default", knows="shop"), "have the column 'default'"),
        (lambda t: compare_owners(VerticalFederation.from_blocks([np.eye(3)] * 2, [1, 2, 3])), "loss must be given"),
        (
            lambda t: compare_owners(VerticalFederation.from_blocks([np.eye(3)] * 2, [1, 2, 3]), on="id"),
            "be tables where columns are named",
        ),
        (lambda t: compare_owners(t, None, "default"), "on must be"),
    ],
)
def test_what_cannot_be_compared(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(tables())


@pytest.mark.slow
@pytest.mark.compiled
def test_the_command(capsys, tmp_path):
    files = []
    for name, columns in tables(40).items():
        path = tmp_path / f"{name}.csv"
        rows = [list(columns), *map(list, zip(*columns.values(), strict=True))]
        path.write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
        files.append(str(path))
    argv = ["compare", *files, "--on", "id", "--target", "default", "--folds", "2", "--owner-of-target", "bank"]
    assert main(argv) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "40 common rows of 3 owners; bank knows 'default'; club: 1 rows without a partner" in out
    assert main([*argv, "--json", "--l2", "0.1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [m["name"] for m in found["models"]] == ["all owners", "without shop", "without club", "bank alone"]
    assert main([*argv, "--methods", "afl"]) == 2
    assert "--methods must be left out with --on" in capsys.readouterr().err
    argv[argv.index("--folds") + 1] = "30"
    assert main(argv) == 2
    assert "--folds must leave two rows of 40" in capsys.readouterr().err
    assert main(["compare", "--l2", "0.1"]) == 2
    assert "--l2 must be left out without --on" in capsys.readouterr().err
