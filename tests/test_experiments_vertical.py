"""The experiment vertical-adult: the split of Adult by hand, the quick version, planted results for each claim."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedconvex.papers import EXPERIMENTS
from fedconvex.papers.vertical_adult import Course, _claims, methods, owners_of, split


def archive(path, **changes):
    arrays = {
        "num_names": np.array(["age", "fnlwgt", "hours-per-week"]),
        "cat_names": np.array(["sex", "workclass"]),
        "x_num_train": np.array([[30, 7, 40], [50, 8, 20], [40, 9, 60]]),
        "x_cat_train": np.array([[0, 1], [1, 0], [1, 2]]),
        "y_train": np.array([0, 1, 1]),
        "categories_0": np.array(["Female", "Male"]),
        "categories_1": np.array(["?", "Private", "State-gov"]),
    }
    np.savez(path, **{name: array for name, array in (arrays | changes).items() if array is not None})
    return path


def test_columns_of_adult_go_to_their_owners(tmp_path):
    """The weight of a record is left out, unknown entries are all zero, the owner of the label has the intercept."""
    name, blocks, y = split(archive(tmp_path / "adult.npz"), None)
    assert (name, list(blocks), y.tolist()) == ("adult", ["demographic", "financial"], [-1.0, 1.0, 1.0])
    unit = np.sqrt(1.5)
    np.testing.assert_allclose(blocks["demographic"], [[-unit, 1, 0], [unit, 0, 1], [0, 0, 1]])
    np.testing.assert_allclose(blocks["financial"], [[0, 1, 0, 1], [-unit, 0, 0, 1], [unit, 0, 1, 1]])
    assert [X.shape[1] for X in owners_of(blocks, 3)] == [3, 2, 2]
    np.testing.assert_array_equal(np.hstack(owners_of(blocks, 3)), np.hstack(list(blocks.values())))
    assert owners_of(blocks, 2)[0] is blocks["demographic"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.array([0, 2, 1])}, "labels 0 and 1"),
        ({"x_num_train": np.ones((2, 3), int)}, "hold numbers"),
        ({"categories_1": None}, "categories_1 must name the categories"),
        ({"num_names": np.array(["a", "fnlwgt", "b"]), "cat_names": np.array(["c", "d"])}, "of one kind only"),
    ],
)
def test_archives_that_do_not_fit(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        split(archive(tmp_path / "adult.npz", **changes), None)


def courses(**planted):
    rounds = {"gradient descent": 900, "accelerated": 90, "Newton-CG": 20} | planted.get("rounds", {})
    made = []
    for name in methods():
        t, m = rounds.get(name, 300), 1 if "turn" in name else 2
        up = t * m * (50 + 4 * (name == "Newton-CG")) + planted.get("more", {}).get(name, 0)
        gap = planted.get("gap", {}).get(name, 9e-9)
        made.append(Course(name, 2, 50, t, up, up, 0.1, gap, planted.get("excess", 8e-9), None))
    return made


def grown(accelerated=(90, 90), damped=(300, 600)):
    return [
        Course(name, m, 50, t, 50 * m * t, 50 * m * t, 0.1, 9e-9, 8e-9, None)
        for name, some in (("accelerated", accelerated), ("FedBCD, Q = 10", damped))
        for m, t in zip((2, 4), some, strict=True)
    ]


def optimum(value, gap=1e-12):
    return SimpleNamespace(value=value, gap=gap)


@pytest.mark.parametrize(
    ("planted", "fails"),
    [
        ({}, None),
        ({"gap": {"FedBCD, Q = 1": 2e-8}}, 0),
        ({"excess": 1e-8}, 1),
        ({"more": {"gradient descent": 1}}, 2),
        ({"more": {"FedBCD in turn, Q = 10": -1}}, 2),
        ({"rounds": {"accelerated": 901}}, 3),
        ({"rounds": {"Newton-CG": 400}}, 4),
        ({"grown": {"accelerated": (90, 95)}}, 5),
        ({"grown": {"damped": (300, 300)}}, 6),
        ({"alone": optimum(0.5, 1e-3)}, 7),
    ],
)
def test_every_claim_can_fail(planted, fails):
    optima = optimum(0.5), planted.get("alone", optimum(0.6))
    claims = list(_claims(courses(**planted), grown(**planted.get("grown", {})), *optima))
    assert [i for i, c in enumerate(claims) if not c.holds] == ([] if fails is None else [fails])


@pytest.mark.slow
@pytest.mark.compiled
def test_quick_version():
    findings = EXPERIMENTS["vertical-adult"].run(quick=True)
    assert findings.holds
    assert set(findings.figures) == {"courses"}
    assert [row["method"] for row in findings.tables["table"]] == list(methods())
    assert [row["owners"] for row in findings.tables["owners"]] == [2, 2, 4, 4]
