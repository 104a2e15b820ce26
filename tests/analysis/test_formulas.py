"""Formulas, against statsmodels, whose formulas are patsy's: interactions, splines, levels that clients lack."""

from __future__ import annotations

import builtins
import json

import numpy as np
import pytest

from fedconvex.analysis import analyse
from fedconvex.cli import main

pd, smf = pytest.importorskip("pandas"), pytest.importorskip("statsmodels.formula.api")
sm = pytest.importorskip("statsmodels.api")
pytest.importorskip("formulaic")
FORMULA = "y ~ age * C(ward) + bs(bp, df=5) + I(age ** 2) + sex"


@pytest.fixture
def table(rng):
    """The first client has no row in ward 3, the last none in ward 1."""
    n = 400
    who, ward = rng.integers(0, 4, n), rng.integers(1, 4, n)
    ward = np.where((who == 0) & (ward == 3), 2, np.where((who == 3) & (ward == 1), 2, ward))
    t = {"age": rng.normal(5.0, 1.0, n), "ward": ward, "bp": rng.normal(13.0, 2.0, n), "sex": rng.choice(["f", "m"], n)}
    return t | {"y": rng.poisson(np.exp(0.3 * ward + 0.1 * t["age"] - 0.5)), "blood type": rng.normal(size=n), "k": who}


def test_statsmodels_finds_the_same(table):
    found = analyse(table, None, "k", formula=FORMULA, family="poisson", reference={"ward": 2}, guard=False)
    theirs = smf.glm(
        FORMULA.replace("C(ward)", "C(ward, Treatment(2))"), pd.DataFrame(table), family=sm.families.Poisson()
    ).fit(tol=1e-14)

    def mine(name):
        if "bs(" in name:
            return f"bs(bp, df=5)[{int(name[-2]) + 1}]"
        return name.replace("C(ward, Treatment(2))[T.", "ward=").replace("sex[T.", "sex=").replace("]", "")

    assert {mine(n) for n in theirs.params.index} == set(found.names)
    for name, value in theirs.params.items():
        j = found.names.index(mine(name))
        assert found.estimates[j] == pytest.approx(value, rel=2e-6, abs=1e-8), name
        assert found.standard_errors[j] == pytest.approx(theirs.bse[name], rel=1e-6)
    assert found.deviance == pytest.approx(theirs.deviance, rel=1e-10)
    assert found.rows.terms["age:ward"] == tuple(found.names.index(f"age:ward={k}") for k in (1, 3))
    assert found.test("age:ward").df == 2 and found.test("bs(bp, df=5)").df == 5
    text = found.summary()
    inner = np.quantile(table["bp"], [1 / 3, 2 / 3])
    ends = [table["bp"].min(), *inner, table["bp"].max()]
    assert f"bs(bp, df=5): knots at {', '.join(f'{v:.4g}' for v in ends)}, ends and quantiles of all rows" in text
    assert "ward: 1, 3 against 2" in text


def test_columns_alone_are_the_same_model(table):
    plain = analyse(table, "y", "k", family="poisson", features=["age", "sex"], guard=False)
    found = analyse(table, None, "k", formula="y ~ age + sex", family="poisson", guard=False)
    assert (found.names, found.estimates.tolist()) == (plain.names, plain.estimates.tolist())
    own = analyse(
        table, "y", "k", formula="y ~ age + `blood type`", family="poisson", site_intercepts=True, guard=False
    )
    assert own.names == ("age", "blood type")
    bare = analyse(table, None, "k", formula="y ~ 0 + age", family="poisson", guard=False)
    theirs = smf.glm("y ~ 0 + age", pd.DataFrame(table), family=sm.families.Poisson()).fit(tol=1e-14)
    assert bare.names == ("age",) and bare.estimates[0] == pytest.approx(theirs.params.iloc[0], rel=1e-9)


def test_rows_with_gaps_in_columns_that_are_used_are_left_out(table):
    table = {name: column.copy() for name, column in table.items()}
    table["age"][:3], table["bp"][:50] = np.nan, np.nan
    found = analyse(table, None, "k", formula="y ~ age", family="poisson", guard=False)
    assert found.rows.rows_read - found.rows.federation.n == 3


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("y ~ age | bp", "one response and one right side"),
        ("~ age", "one response and one right side"),
        ("log(y) ~ age", "a column on its left"),
        ("y ~ nowhere", "use columns of the table"),
        ("y ~ log(bp - 13)", "rows where log.bp - 13. is nan"),
        ("y ~ .", "that formulaic reads"),
        ("y ~ age +", "that formulaic reads"),
        ("y ~ age + C(k)", "none of them target, client"),
        ("sex ~ age + y", "be the left side of the formula; got 'y' and 'sex'"),
    ],
)
def test_what_is_refused(table, formula, words):
    with pytest.raises(ValueError, match=words):
        analyse(table, "y" if formula.startswith("sex") else None, "k", formula=formula, family="poisson", guard=False)
    with pytest.raises(ValueError, match="intercept, which those of clients replace"):
        analyse(table, None, "k", formula="y ~ 0 + age", family="poisson", guard=False, site_intercepts=True)


def test_without_formulaic_the_extra_is_named(table, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("formulaic"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"fedconvex\[formula\]"):
        analyse(table, None, "k", formula="y ~ age", family="poisson")


def test_the_command(table, tmp_path, capsys):
    path = tmp_path / "wards.csv"
    pd.DataFrame(table).to_csv(path, index=False)
    argv = ["analyse", str(path), "--client", "k", "--family", "poisson", "--json", "--formula"]
    assert main([*argv, "y ~ age + C(ward)", "--reference", "ward=2", "--test", "ward"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [c["name"] for c in told["coefficients"]] == ["Intercept", "age", "ward=1", "ward=3"]
    assert told["tests"]["ward"]["df"] == 2
    assert main(argv[:-2]) == 2
    assert "name the response, if no formula does" in capsys.readouterr().err
