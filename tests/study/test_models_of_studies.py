"""Times and events, and formulas, in a study: equal to the pooled analysis, and a formula is nothing else."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedconvex.analysis import analyse
from fedconvex.study import check_site, read_site, read_study
from fedconvex.study.model_formula import formula
from fedconvex.study.runs_asked import questions
from fedconvex.study.trial import try_study
from tests.study.test_study import SITES, STUDY, conducted, pooled, tables, written

COX = STUDY.replace(
    'analyse = { family = "logistic", strata = "site" }', 'analyse = { family = "cox", ties = "breslow" }'
).replace(
    'column = "disease"\nvalues = ["no", "yes"]',
    'column = "days"\nevent = "died"\nevents = ["no", "yes"]\nentry = "from"',
)
COX = "\n".join(line for line in COX.splitlines() if not line.startswith("solve")) + "\n"
BENT = "disease ~ age * C(cp) + bs(chol, knots=(200, 300), lower_bound=80, upper_bound=700) + ca + `ca=(missing)`"
FORMULA = STUDY.replace('strata = "site"', f'strata = "site", formula = "{BENT}"').replace("solve = ", "# solve = ")


def timed(site, cells):
    """Times in whole days, so that some are tied, entries before them, and who died."""
    rng, n = np.random.default_rng(len(site)), len(cells["age"])
    days = 5 + np.floor(40 * rng.exponential(size=n) * np.exp(-(np.array(cells["age"], float) - 58) / 20))
    more = {"days": days, "from": np.floor(days * rng.random(n) * 0.5)}
    rest = {name: a for name, a in cells.items() if name != "disease"}
    died = ["yes" if v else "no" for v in rng.random(n) < 0.7]
    return {**rest, **{name: [f"{v:g}" for v in a] for name, a in more.items()}, "died": died}


def same(found, wanted, within):
    table = wanted.table()
    assert [c["name"] for c in found["coefficients"]] == [c.name for c in table]
    for mine, theirs in zip(found["coefficients"], table, strict=True):
        assert abs(mine["estimate"] - theirs.estimate) <= within * theirs.standard_error
        assert mine["standard_error"] == pytest.approx(theirs.standard_error, rel=max(within, 1e-9))


@pytest.mark.slow
@pytest.mark.parametrize(("sums", "within"), [("false", 1e-10), ("true", 1e-6)])
def test_hazards_are_those_of_pooled_rows(tmp_path, sums, within):
    study = written(tmp_path, study=COX, sums=sums, changed={s: lambda c, s=s: timed(s, c) for s in SITES})
    results = conducted(tmp_path, study)
    found, rows = json.loads(results["analysis.json"]), pooled(tmp_path)
    more: dict[str, list] = {"days": [], "from": [], "died": []}
    for site, cells in tables(0):
        made = timed(site, cells)
        for name, a in more.items():
            a += [v if name == "died" else float(v) for v, c in zip(made[name], cells["chol"], strict=True) if c]
    del rows["disease"]
    asked = {"event": "died=yes", "entry": "from", "ties": "breslow", "as_category": ["cp"], "reference": {"cp": "4"}}
    same(found, analyse({**rows, **more}, "days", "site", family="cox", guard=False, **asked), within)
    assert b"concordance" in results["analysis.txt"].lower()


@pytest.mark.slow
@pytest.mark.parametrize(("sums", "within"), [("false", 1e-10), ("true", 1e-6)])
def test_a_formula_gives_what_it_gives_of_pooled_rows(tmp_path, sums, within):
    study = written(tmp_path, study=FORMULA, sums=sums)
    found = json.loads(conducted(tmp_path, study)["analysis.json"])
    asked = {"site_intercepts": True, "as_category": ["cp"], "reference": {"cp": "4"}, "guard": False}
    same(found, analyse(pooled(tmp_path), None, "site", formula=BENT, family="logistic", **asked), within)


@pytest.mark.parametrize("number", range(5))
def test_a_check_finds_what_is_wrong_with_times(tmp_path, number):
    changes = [
        (lambda c: {**c, "died": ["perhaps", *c["died"][1:]]}, "event 'died'", "1 cells are neither 'no' nor 'yes'"),
        (lambda c: {**c, "from": [c["days"][0], *c["from"][1:]]}, "entry 'from'", "1 rows enter at their time"),
        (lambda c: {**c, "days": ["-3", *c["days"][1:]]}, "event 'died'", "1 times are below zero"),
        (lambda c: {k: v for k, v in c.items() if k != "died"}, "event 'died'", "is not in the table"),
        (
            lambda c: {**c, "age": ["80" if v == "yes" else "40" for v in c["died"]]},
            "column 'age'",
            "gives the target away",
        ),
    ]
    change, check, said = changes[number]
    study = written(
        tmp_path,
        study=COX,
        changed={s: lambda c, s=s: timed(s, c) for s in SITES} | {"va": lambda c: change(timed("va", c))},
    )
    assert check_site(study, read_site(tmp_path / "hungarian.toml")).is_sound
    wrong = [f for f in check_site(study, read_site(tmp_path / "va.toml")).findings if f.stops]
    assert any(f.check == check and said in f.found for f in wrong), wrong


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('event = "died"', "", "must name the events of cox, and of nothing else: analyse"),
        ('event = "died"', 'event = "age"', r"target.event must be no feature; got 'age'"),
        ('["no", "yes"]', '["no", "yes", "x"]', "events must be two values"),
        ('family = "cox", ties = "breslow"', 'family = "gaussian"', "must name the events of cox"),
        ("secure_sums", 'solve = { loss = "squared", l2 = 1 }\nsecure_sums', "of nothing else: solve; got squared"),
    ],
)
def test_times_and_events_go_with_cox_only(tmp_path, old, new, said):
    assert old in COX
    (tmp_path / "study.toml").write_text(COX.replace("SUMS", "true").replace(old, new, 1))
    with pytest.raises((ValueError, TypeError), match=said):
        read_study(tmp_path / "study.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("disease ~ age + {__import__('os').system('true')}", r"must hold names .*got \"\{__import"),
        ("disease ~ age + __import__(age)", "call C, I, bs, .* only; got '__import__'"),
        ("disease ~ age + eval(age)", "call C, I, bs"),
        ("disease ~ age.real", "must hold names .*got '.real'"),
        ("disease ~ I(9**9**9**9)", "have powers 2, 3 and 4 only"),
        ("disease ~ I(age^99)", "have powers 2, 3 and 4 only"),
        ("disease ~ " + "(" * 50 + "age" + ")" * 50, "at most twenty deep"),
        ("disease ~ bs(age, df=4)", "say knots of a spline"),
        ("disease ~ age | site", r"must hold names .*got '\| site'"),
        ("age ~ chol", "have the target 'disease' on its left; got 'age'"),
        ("disease ~ age + weight", "use columns of the study .*got 'weight'"),
        ("disease ~ age + ca", r"mark where ca is missing.*add \+ `ca=\(missing\)`"),
        ("age", "be one formula"),
    ],
)
def test_a_formula_is_a_formula(tmp_path, text, said):
    """What the library would compute as Python, or for hours, is refused while the file is read."""
    (tmp_path / "study.toml").write_text(FORMULA.replace("SUMS", "true").replace(BENT, text))
    with pytest.raises(ValueError, match=said):
        read_study(tmp_path / "study.toml")
    assert formula("x", "y ~ log(age) + C(cp):age + I(chol**2)")


@pytest.mark.slow
def test_hazards_can_be_tried(tmp_path):
    study = written(tmp_path, study=COX, sums="true")
    assert "analysis.txt" in try_study(study, tmp_path / "trial", rows=200, say=lambda line: None)


def test_a_check_counts_what_times_ask(tmp_path):
    (question,) = questions(written(tmp_path, study=COX))
    p = len(question.plan.names)
    assert question.plan.family.name == "cox" and p == 7
    assert [one.numbers for one in question.leaving] == [4 * p + 6, 28, 28 + p + 2, p + 2, p + 2 * 28 + 3]
