"""Studies: what the files may say, what a check finds, and results equal to those of pooled rows."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedconvex import Federation, Problem, run
from fedconvex.analysis import Guards, analyse
from fedconvex.losses import Logistic
from fedconvex.models import LinearModel
from fedconvex.remote import in_process
from fedconvex.remote.masks import CIRCLE
from fedconvex.remote.wire import packed
from fedconvex.study import agreement, check_site, held_out, read_site, read_study, site_settings
from fedconvex.study.audit_log import AuditLog, read_log
from fedconvex.study.coordination import Coordinator, Stopped
from fedconvex.study.drafting import draft
from fedconvex.study.runs_asked import questions
from fedconvex.study.site_end import DIGEST, HELLO, RESULT, RUN, STEP, Participant

SITES = ("cleveland", "hungarian", "switzerland", "va")
STUDY = """\
[study]
name = "heart"
[coordinator]
address = "localhost:5555"
[sites]
require = ["cleveland", "hungarian", "switzerland", "va"]
[ask]
analyse = { family = "logistic", strata = "site" }
solve = { loss = "logistic", l2 = 0.01, tol = 1e-9 }
secure_sums = SUMS
[target]
column = "disease"
values = ["no", "yes"]
[columns.age]
kind = "number"
center = 60
scale = 10
range = [0, 120]
[columns.chol]
kind = "number"
center = 240
scale = 50
range = [80, 700]
missing = "leave out"
[columns.cp]
kind = "category"
values = ["1", "2", "3", "4"]
reference = "4"
[columns.ca]
kind = "number"
missing = "indicator"
absent_at = ["va"]
"""


def tables(seed, rows=(90, 120, 100, 110)):
    """Four hospitals: one writes codes as 1.0, one has no column ca, some cells of ca and chol are missing."""
    rng = np.random.default_rng(seed)
    for site, n in zip(SITES, rows, strict=True):
        age, cp = rng.integers(30, 85, n), rng.integers(1, 5, n)
        chol, ca = rng.integers(150, 400, n), rng.integers(0, 4, n)
        ill = rng.random(n) < 1 / (1 + np.exp(-(age - 58) / 20 - 0.5 * (cp - 2.5) - 0.3 * (ca - 1)))
        gone, lost = rng.random(n) < 0.05, rng.random(n) < 0.1
        cells = {
            "age": list(map(str, age)),
            "chol": ["" if g else str(v) for g, v in zip(gone, chol, strict=True)],
            "cp": [f"{v}.0" if site == "hungarian" else str(v) for v in cp],
            "disease": ["yes" if v else "no" for v in ill],
        }
        if site != "va":
            cells["ca"] = ["" if g else str(v) for g, v in zip(lost, ca, strict=True)]
        yield site, cells


def written(folder, study=STUDY, seed=0, sums="true", limits="parameters = 0.5\nshare = 20.0\n", changed=None):
    (folder / "study.toml").write_text(study.replace("SUMS", sums))
    limits += "secure_sums = false\n" if sums == "false" and "ask" not in limits else ""
    for site, cells in tables(seed):
        cells = (changed or {}).get(site, lambda c: c)(cells)
        with open(folder / f"{site}.csv", "w", newline="") as file:
            csv.writer(file).writerows([cells, *zip(*cells.values(), strict=True)])
        own = f'[site]\nname = "{site}"\ntable = "{site}.csv"\nstate = "state_{site}"\nresults = "results_{site}"\n'
        (folder / f"{site}.toml").write_text(f"{own}[limits]\n{limits}")
    return read_study(folder / "study.toml")


def members(folder, study):
    return [Participant(study, read_site(folder / f"{site}.toml"), lambda line: None) for site in study.sites]


def conducted(folder, study, sites=None, transport=None):
    asked = transport or in_process(sites or members(folder, study))
    coordinator = Coordinator(study, folder / "out", asked, lambda line: None)
    coordinator.patience = 2
    return coordinator.conduct()


def pooled(folder):
    """The columns of the study, by hand: complete in chol, ca set to 0 and marked."""
    rows: dict[str, list] = {name: [] for name in ("age", "chol", "cp", "ca", "ca=(missing)", "disease", "site")}
    for site, cells in tables(0):
        for i, chol in enumerate(cells["chol"]):
            if chol == "":
                continue
            ca = cells["ca"][i] if "ca" in cells else ""
            row = (cells["age"][i], chol, cells["cp"][i][0], ca or "0", float(ca == ""), cells["disease"][i], site)
            for name, value in zip(rows, row, strict=True):
                rows[name].append(float(value) if name in ("age", "chol", "ca") else value)
    return rows


class Counting:
    """A site, and how many numbers and bytes left it."""

    def __init__(self, site):
        self.site, self.left, self.bytes = site, 0, 0

    def answer(self, asked):
        found = self.site.answer(asked)
        self.bytes += len(packed(found))
        self.left += sum(a.size for name, a in found.items() if name not in ("header", "study/rows", "study/read"))
        return found


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A study with secure sums that has ended: its folder, sites, and results."""
    folder = tmp_path_factory.mktemp("study")
    study = written(folder)
    sites = [Counting(site) for site in members(folder, study)]
    return folder, sites, conducted(folder, study, sites)


@pytest.mark.slow
def test_an_analysis_is_that_of_pooled_rows(ended):
    compared(ended[0], ended[2], within=1e-8)


@pytest.mark.slow
def test_in_the_open_too(tmp_path):
    compared(tmp_path, conducted(tmp_path, written(tmp_path, sums="false")), within=1e-10)


def compared(tmp_path, results, within):
    found = json.loads(results["analysis.json"])
    asked = {"site_intercepts": True, "as_category": ["cp"], "reference": {"cp": "4"}, "guard": False}
    wanted = analyse(pooled(tmp_path), "disease", "site", family="logistic", **asked)
    assert found["response"] == "disease = yes (against no)" and found["rows"] == wanted.rows.federation.n
    for mine, theirs in zip(found["coefficients"], wanted.table(), strict=True):
        assert mine["name"] == theirs.name
        assert abs(mine["estimate"] - theirs.estimate) <= within * theirs.standard_error
        assert mine["standard_error"] == pytest.approx(theirs.standard_error, rel=1e-8)
    assert b"may be biased" in results["analysis.txt"]
    for site in SITES:
        assert (tmp_path / f"results_{site}" / "analysis.txt").read_bytes() == results["analysis.txt"]


@pytest.mark.slow
@pytest.mark.parametrize("values", [("mild", "bad", "awful"), ("awful", "mild", "bad")])
def test_several_classes_are_against_the_first(tmp_path, values):
    """Whatever the order of the alphabet: names of coefficients, and what they say."""
    text = STUDY.replace('"logistic", strata = "site"', '"multinomial"').replace(
        '["no", "yes"]', json.dumps(list(values))
    )
    text = re.sub("solve = .*\n", "", text)

    def graded(cells):
        rng = np.random.default_rng(len(cells["age"]))
        score = (np.array(cells["age"], float) - 55.0) / 10.0 + rng.normal(size=len(cells["age"]))
        return {**cells, "disease": [("mild", "bad", "awful")[int(v > -0.5) + int(v > 0.8)] for v in score]}

    study = written(tmp_path, study=text, changed=dict.fromkeys(SITES, graded))
    found = json.loads(conducted(tmp_path, study)["analysis.json"])
    rows = pooled(tmp_path)
    grades = [g for site, cells in tables(0) for g, c in zip(graded(cells)["disease"], cells["chol"], strict=True) if c]
    asked = {"as_category": ["cp"], "reference": {"cp": "4", "disease": values[0]}, "guard": False}
    wanted = analyse({**rows, "disease": grades}, "disease", "site", family="multinomial", **asked).table()
    mine = {c["name"]: c["estimate"] for c in found["coefficients"]}
    assert {name.split(":")[0] for name in mine} == set(values[1:])
    assert mine == pytest.approx({c.name: c.estimate for c in wanted}, rel=1e-6)
    assert (mine[f"{'awful' if values[0] == 'mild' else 'mild'}: age"] > 0.0) == (values[0] == "mild")


@pytest.mark.slow
def test_a_model_has_the_bits_of_one_process_and_takes_raw_rows(tmp_path):
    study = written(tmp_path, sums="false")
    results = conducted(tmp_path, study)
    question = questions(study)[1]
    parts = []
    for site in SITES:
        settings = read_site(tmp_path / f"{site}.toml")
        parts.append(question.rows(check_site(study, settings).rows.columns, site, settings.guards))
    fed = Federation.from_clients([(p.X, p.y) for p in parts], labels=list(SITES))
    alone = run(question.method, Problem(fed, Logistic(), l2=0.01), tol=1e-9)
    model = LinearModel.load(tmp_path / "out" / "model")
    center, scale = np.append(question.plan.center, 0.0), np.append(question.plan.scale, 1.0)
    np.testing.assert_array_equal(model.coef, (alone.w / scale)[:-1])
    assert float(model.intercept) == pytest.approx(
        float(alone.w[-1] - (alone.w * center / scale)[:-1].sum()), rel=1e-12
    )
    assert model.classes == ("no", "yes") and model.about["digest"] == study.digest
    assert results["model.npz"] == (tmp_path / "results_va" / "model.npz").read_bytes()


@pytest.mark.slow
def test_a_site_reads_whether_it_gains_from_rows_that_it_held_out(tmp_path):
    text = STUDY.replace("tol = 1e-9", "tol = 1e-9, held_out = 0.25")
    study = written(tmp_path, study=text)
    path = tmp_path / "va.toml"
    path.write_text(path.read_text() + "scores = false\n")
    results = conducted(tmp_path, study)
    assert "solve" in study.ask and "analysis.txt" in results
    _, *said = (tmp_path / "out" / "held_out.txt").read_text().splitlines()
    assert [line.split(":")[0] for line in said] == list(SITES[:3])  # va keeps its own
    model, question = LinearModel.load(tmp_path / "out" / "model"), questions(study)[1]
    for site in SITES:
        settings = read_site(tmp_path / f"{site}.toml")
        columns = check_site(study, settings).rows.columns
        train, test = held_out.parted(study, site, columns, 0.25)
        (m,) = {len(a) for a in test.values()}
        assert m == int(0.25 * len(columns["age"])) and len(train["age"]) + m == len(columns["age"])
        signs = np.where(test["disease"] == "yes", 1.0, -1.0)
        as_read = {**test, "ca": np.where(test["ca=(missing)"] > 0.0, np.nan, test["ca"])}
        losses = np.log1p(np.exp(-signs * model.decision_function(as_read)))
        rows = question.rows(train, site, settings.guards)
        w = Problem(rows, Logistic(), l2=0.01).solve().w
        own = np.log1p(
            np.exp(-signs * (question.rows(test, site, Guards(rows=0, events=0, level=0, parameters=9.0)).X @ w))
        )
        share = (train["disease"] == "yes").mean()
        line = (tmp_path / f"results_{site}" / "held_out.txt").read_text()
        numbers = [float(v) for v in re.findall(r"\d+\.\d+", line.split("rows")[1])]
        gain, error = (own - losses).mean(), (own - losses).std(ddof=1) / m**0.5
        base = -np.where(signs > 0.0, np.log(share), np.log1p(-share)).mean()
        wanted = [losses.mean(), own.mean(), base, *np.abs([gain, gain - 1.96 * error, gain + 1.96 * error])]
        np.testing.assert_allclose(numbers, wanted, atol=6e-4)
    assert (tmp_path / "state_va" / "scores.json").exists() is False


@pytest.mark.slow
def test_a_coordinator_that_is_killed_goes_on_with_the_same_bits(tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for folder in (whole, halves):
        folder.mkdir()
    wanted = conducted(whole, written(whole))
    study = written(halves)
    sites, asked = members(halves, study), [0]

    def dying(t, requests):
        asked[0] += any(int(m[STEP]) == 1 for m in requests.values())
        if asked[0] == 4:
            raise KeyboardInterrupt
        return in_process(sites)(t, requests)

    with pytest.raises(KeyboardInterrupt):
        conducted(halves, study, transport=dying)
    assert asked[0] == 4
    found = conducted(halves, study, members(halves, study))  # the sites are started anew too
    assert found["model.npz"] == wanted["model.npz"] and found["analysis.txt"] == wanted["analysis.txt"]
    assert "ended" in json.loads((halves / "out" / "status.json").read_text())["now"]


# ---------------------------------------------------------------- what is refused before it begins

FAULTS = [
    ("cleveland", lambda c: {**c, "chol": ["0"] * len(c["chol"])}, "column 'chol'", "outside of 80 to 700"),
    (
        "cleveland",
        lambda c: {**c, "age": ["-9", *c["age"][1:]]},
        "column 'age'",
        "1 cells are outside of 0 to 120 \\(-9\\)",
    ),
    ("hungarian", lambda c: {**c, "cp": ["9", "9", *c["cp"][2:]]}, "column 'cp'", "2 cells hold 1 names"),
    ("hungarian", lambda c: {**c, "age": ["old", *c["age"][1:]]}, "column 'age'", "hold numbers; got 'old' in row 1"),
    ("hungarian", lambda c: {k: v for k, v in c.items() if k != "cp"}, "column 'cp'", "is not in the table"),
    ("hungarian", lambda c: {**c, "age": ["", *c["age"][1:]]}, "column 'age'", "1 of 120 cells are missing"),
    ("switzerland", lambda c: {**c, "disease": ["yes"] * 100}, "target 'disease'", "every row is 'yes'"),
    ("switzerland", lambda c: {**c, "disease": ["maybe", *c["disease"][1:]]}, "target 'disease'", "none of its values"),
    (
        "switzerland",
        lambda c: {**c, "disease": ["", *c["disease"][1:]]},
        "target 'disease'",
        "1 of 100 cells are missing",
    ),
    ("va", lambda c: {**c, "age": ["60"] * 110}, "column 'age'", "every cell is 60"),
    (
        "va",
        lambda c: {**c, "age": [str(40 + 30 * (y == "yes")) for y in c["disease"]]},
        "column 'age'",
        "gives the target away",
    ),
    ("va", lambda c: {k: v[:9] for k, v in c.items()}, "analyse", "rows must be at least 10"),
    ("va", lambda c: {**c, "cp": ["2", *["4"] * 109]}, "analyse", "level"),
]


@pytest.mark.parametrize(("site", "change", "check", "found"), FAULTS)
def test_a_check_finds_what_is_wrong(tmp_path, site, change, check, found):
    study = written(tmp_path, changed={site: change})
    for name in SITES:
        seen = check_site(study, read_site(tmp_path / f"{name}.toml"))
        assert seen.is_sound == (name != site), seen.findings
    wrong = [f for f in check_site(study, read_site(tmp_path / f"{site}.toml")).findings if f.stops]
    assert any(f.check == check and re.search(found, f.found) and f.cure for f in wrong), wrong
    with pytest.raises(ValueError, match="sound before it takes part"):
        Participant(study, read_site(tmp_path / f"{site}.toml"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("center = 60", "centre = 60", r"study.toml, line 16: columns.age.centre must be one of .*did you mean center"),
        ("scale = 10", "scale = 0", r"line 17: columns.age.scale must be positive and finite; got 0"),
        ("range = [0, 120]", "range = [120, 0]", r"line 18: columns.age.range must begin below its end"),
        ('kind = "number"\ncenter = 60', "center = 60", r"columns.age must have the key 'kind'"),
        ('reference = "4"', 'reference = "5"', r"columns.cp.reference must be one of 1, 2, 3, 4; got '5'"),
        ('absent_at = ["va"]', 'absent_at = ["vx"]', r"columns.ca.absent_at must be among .*; got 'vx'"),
        ('missing = "indicator"', 'missing = "leave out"', r'must be "indicator" where a site lacks the column'),
        ("l2 = 0.01", "l2 = 0", r"line 9: ask.solve.l2 must be positive and finite; got 0"),
        ('family = "logistic"', 'family = "poisson"', r"values must not be given for analyse's poisson"),
        ('"localhost:5555"', '"localhost"', r"line 4: coordinator.address must be a host and a port"),
        ('["no", "yes"]', '["no", "yes", "x"]', r"target must have two values for analyse's logistic; got 3"),
        ("require =", "names =", r"line 5: sites.at_least must go with names"),
        ("require =", "at_least = 5\nnames =", r"sites.at_least must be at most the 4 sites; got 5"),
        ("require =", "# require =", r"sites must have the key require, or names; got none"),
        ('"localhost:5555"', '"::1:5555"', r'coordinator.address must be a host and a port.*or "\[2001:db8::1\]:5555"'),
        ("[target]", "[targets]", r"line 11: targets must be one of .*did you mean target"),
        ('name = "heart"', "name = heart", r"study.toml must be TOML; got Invalid value \(at line 2"),
        ('"hungarian", ', '"a b", ', r"line 6: sites.require must be a letter, then letters"),
        ("[columns.cp]", '[columns."ca=(missing)"]', r"must have another name.*got 'ca=\(missing\)'"),
        ('name = "heart"', f"name = {'[' * 5000}{']' * 5000}", "must be TOML; got lists within lists"),
        ('column = "disease"', 'column = "age"', r"target.column must be no feature"),
        ('"3", "4"]', '"3", "3.0", "4"]', r"columns.cp.values must hold different names: 1 and 1.0 are one"),
        ('"3", "4"]', '"(missing)", "4"]', r"values must not hold a name that the study makes itself"),
        ('strata = "site"', "level = 1.5", r"ask.analyse.level must be a number in \[0.5, 1\]; got 1.5"),
        ('["no", "yes"]', f"[{', '.join(map(repr, map(str, range(1001))))}]", r"hold at most 1,000 texts; got 1,001"),
    ],
)
def test_a_file_that_is_wrong_names_line_key_and_cure(tmp_path, old, new, said):
    assert old in STUDY
    (tmp_path / "study.toml").write_text(STUDY.replace("SUMS", "true").replace(old, new, 1))
    with pytest.raises((ValueError, TypeError), match=said):
        read_study(tmp_path / "study.toml")


def test_a_file_may_begin_with_a_mark_and_a_table_have_tabs(tmp_path):
    study = written(tmp_path)
    path = tmp_path / "study.toml"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_study(path).columns == study.columns
    table, site = tmp_path / "va.csv", tmp_path / "va.toml"
    table.write_text(table.read_text().replace(",", "\t"))
    site.write_text(site.read_text() + '[reading]\nsep = "\\t"\n')
    assert check_site(read_study(path), read_site(site)).is_sound


def test_a_check_counts_what_robust_errors_and_profiles_ask(tmp_path):
    asked = 'strata = "site", robust = "HC0", intervals = "profile"'
    plain, more = written(tmp_path), STUDY.replace('strata = "site"', asked)
    before, after = questions(plain)[0], questions(written(tmp_path, study=more))[0]
    added = after.leaving[len(before.leaving) :]
    assert [one.numbers for one in added] == [4 * 28 + 3, 2 * 7 * 37] and after.usual > before.usual  # p = 7


def test_limits_of_a_site_are_its_own(tmp_path):
    study = written(tmp_path, sums="false", limits='ask = ["solve"]\nshare = 0.1\nparameters = 0.5\n')
    wrong = [f for f in check_site(study, read_site(tmp_path / "va.toml")).findings if f.stops]
    assert [f.check for f in wrong] == ["limits", "limits", "analyse", "solve"]
    assert "asks to analyse" in wrong[0].found and "own sums" in wrong[1].found and "share" in wrong[2].cure


def test_the_page_lists_every_key_and_its_study_can_be_tried(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text()
    sections = [agreement.STUDY, agreement.COORDINATOR, agreement.SITES, agreement.ASK, agreement.TARGET]
    sections += [*agreement.QUESTIONS.values(), *agreement.OF_KIND.values()]
    sections += [site_settings.SITE, site_settings.READING, site_settings.LIMITS, site_settings.ACCEPT]
    assert [name for keys in sections for name in keys if f"`{name}" not in page] == []
    shared, own = re.findall(r"```toml\n(.*?)```", page, flags=re.S)
    (tmp_path / "study.toml").write_text(shared)
    (tmp_path / "site.toml").write_text(own)
    assert read_study(tmp_path / "study.toml").sites == ("cleveland", "hungarian", "va")
    assert read_site(tmp_path / "site.toml").limits["rows"] == 50


# ---------------------------------------------------------------- what is asked of a site


def message(study, step, **more):
    return {STEP: np.array(step), DIGEST: np.frombuffer(bytes.fromhex(study.digest), dtype=np.uint8), **more}


def test_check_tells_of_marks_that_no_row_of_the_site_separates_from_its_intercept(tmp_path):
    for asked, known in (("", True), (', formula = "disease ~ age"', False)):
        study = written(tmp_path, study=STUDY.replace('strata = "site"', 'strata = "site"' + asked))
        for name, varies in (("va", False), ("cleveland", True)):  # without the column, and with some cells missing
            found = check_site(study, read_site(tmp_path / f"{name}.toml"))
            said = [f for f in found.findings if "does not vary here" in f.found]
            assert found.is_sound and len(said) == (known and not varies), (asked, name, said)


def test_nothing_but_the_study_is_answered(tmp_path):
    study = written(tmp_path, limits="parameters = 0.5\nshare = 20.0\nruns = 1\n")
    (site, *_) = members(tmp_path, study)
    run_a, run_b = (np.full(16, v, dtype=np.uint8) for v in (1, 2))
    content, evil = np.zeros(3, np.uint8), np.frombuffer(b"../evil.sh", dtype=np.uint8)
    assert int(site.answer(message(study, HELLO, **{RUN: run_a}))["study/rows"]) == site.rows
    assert int(site.answer(message(study, HELLO, **{RUN: run_a}))["study/rows"]) == site.rows  # a restart is no new run
    for v in (*range(3, 23), 1):  # runs that ask nothing use up none
        assert "study/rows" in site.answer(message(study, HELLO, **{RUN: np.full(16, v, dtype=np.uint8)}))
    site.unasked = False
    bad = [
        (message(study, HELLO, **{RUN: run_b}), "1 runs were answered"),
        (message(study, HELLO), "it names no run"),
        ({**message(study, HELLO, **{RUN: run_a}), DIGEST: np.zeros(32, np.uint8)}, "about another study"),
        ({}, "about another study"),
        (message(study, 7), "there is no such step"),
        (message(study, 0.5), "there is no such step"),
        (message(study, RESULT, **{"study/name": evil, "study/content": content}), "it is no result"),
        (message(study, RESULT), "it is no result"),
        (message(study, 0), "it has no header"),
    ]
    for asked, said in bad:
        answer = site.answer(asked)
        assert "study/rows" not in answer and said in answer["why"].tobytes().decode(), said
    lines = list(read_log(tmp_path / "state_cleveland" / "audit.jsonl"))
    assert [line["what"] for line in lines] == ["joined", "joined again", *["joined"] * 21, *["refused"] * len(bad)]
    assert not list(tmp_path.rglob("evil*"))


AT_LEAST = STUDY.replace("require =", "at_least = 3\ndeadline = 1\nnames =")


@pytest.mark.slow
def test_a_study_may_begin_without_some_and_says_so(tmp_path):
    """The estimates are those of the rows of the three; and nobody tells a sum over other sites, nor over fewer."""
    study = written(tmp_path, study=AT_LEAST.replace("tol = 1e-9", "tol = 1e-9, held_out = 0.25"))
    sites = members(tmp_path, study)
    there = [0, 2, 3]

    def ask(t, requests):
        return in_process(sites)(t, {k: m for k, m in requests.items() if k in there})

    results = conducted(tmp_path, study, transport=ask)
    first = "took part: cleveland, switzerland, va; without hungarian, not there in time"
    for name in ("analysis.txt", "study.txt"):
        assert results[name].decode().splitlines()[0] == first
        assert (tmp_path / "results_va" / name).read_bytes() == results[name]
    assert (tmp_path / "out" / "held_out.txt").read_text().splitlines()[0] == first
    assert LinearModel.load(tmp_path / "out" / "model").about["sites"] == [SITES[k] for k in there]
    rows, found = pooled(tmp_path), json.loads(results["analysis.json"])
    assert found["took_part"] == [SITES[k] for k in there]
    kept = [i for i, site in enumerate(rows["site"]) if site != "hungarian"]
    rows = {name: [a[i] for i in kept] for name, a in rows.items()}
    asked = {"site_intercepts": True, "as_category": ["cp"], "reference": {"cp": "4"}, "guard": False}
    wanted = analyse(rows, "disease", "site", family="logistic", **asked)
    for mine, theirs in zip(found["coefficients"], wanted.table(), strict=True):
        assert abs(mine["estimate"] - theirs.estimate) <= 1e-8 * theirs.standard_error
    assert conducted(tmp_path, study, sites)["analysis.txt"] == results["analysis.txt"]  # a restart keeps to the three
    (tmp_path / "out").rename(tmp_path / "before")
    with pytest.raises((ConnectionError, ValueError), match=r"other sites took part before.*\[limits\] sets = 1"):
        conducted(tmp_path, study, sites)
    (tmp_path / "out").rename(tmp_path / "second")
    there[:] = [0, 2]
    with pytest.raises(Stopped, match="hungarian, va did not join"):
        conducted(tmp_path, study, transport=ask)


@pytest.mark.slow
def test_sums_over_some_of_those_that_take_part_are_refused(tmp_path):
    """Of two models that are nearly the same, sums over all and over all but one would differ by that one's own."""
    study = written(tmp_path)
    sites = members(tmp_path, study)

    def fewer(t, requests):
        return in_process(sites)(
            t, {k: {**m, CIRCLE: m[CIRCLE][:, 1:]} if CIRCLE in m else m for k, m in requests.items()}
        )

    with pytest.raises(ConnectionError, match="its sums are not over all sites that take part"):
        conducted(tmp_path, study, transport=fewer)
    some = written(tmp_path, study=STUDY + "# another\n")
    coordinator = Coordinator(some, tmp_path / "other", in_process(members(tmp_path, some)), lambda line: None)
    coordinator.patience = 2
    coordinator.gather(1.0)
    coordinator._begin({name: coordinator.sizes[name] for name in SITES[1:]})
    with pytest.raises((ConnectionError, ValueError), match="it sums over 3 sites, and the study asks for 4"):
        coordinator.answer()


@pytest.mark.slow
def test_a_log_accounts_for_every_number_that_left(ended):
    for one in ended[1]:
        lines = list(read_log(one.site.log.path))
        assert sum(line.get("numbers", 0) for line in lines) == one.left > 100
        assert sum(line.get("sent", 0) for line in lines) == one.bytes > 10_000
        assert [line["ledger"] for line in lines if "ledger" in line][-1] == one.site.sites[1].ledger.numbers > 0
        assert "0." not in one.site.log.path.read_text()  # names and counts, no value
    path = ended[1][0].site.log.path
    text = path.read_text().splitlines(keepends=True)
    for broken in (
        text[:3] + text[4:],
        [text[0].replace('"rows": ', '"rows": 1'), *text[1:]],
        text[1:],
        text[:2][::-1],
    ):
        path.write_text("".join(broken))
        with pytest.raises(ValueError, match=r"line [124] must follow from the line before"):
            AuditLog(path)


@pytest.mark.slow
def test_a_site_that_refuses_or_changes_stops_the_study_by_name(tmp_path):
    study = written(tmp_path)
    sites = members(tmp_path, study)
    sites[2].settings.limits["runs"] = 0
    with pytest.raises(Stopped, match="site switzerland: 0 runs were answered"):
        conducted(tmp_path, study, sites)
    sites[2].settings.limits["runs"] = 9
    conducted(tmp_path, study, sites)
    sites[1].rows += 1
    with pytest.raises(Stopped, match=r"hungarian has 1.. rows, and had 1.. when this run began"):
        conducted(tmp_path, study, sites)
    other = written(tmp_path, study=STUDY + "\n# another\n")
    with pytest.raises(ValueError, match="hold a run of the study"):
        Coordinator(other, tmp_path / "out", None)


@pytest.mark.slow
def test_a_site_that_is_lost_stops_the_study_by_name(tmp_path):
    study = written(tmp_path)
    sites = members(tmp_path, study)

    def losing(t, requests):
        answers = in_process(sites)(t, requests)
        return {k: a for k, a in answers.items() if k != 3 or int(requests[k][STEP]) != 1}

    with pytest.raises(ConnectionError, match="va"):
        conducted(tmp_path, study, transport=losing)
    assert not (tmp_path / "out" / "model").exists()


def test_a_draft_is_a_study_once_it_is_filled_in(tmp_path):
    written(tmp_path)
    text = draft(tmp_path / "cleveland.csv", "disease", "cleveland")
    (tmp_path / "draft.toml").write_text(text)
    with pytest.raises(ValueError, match=r"sites.require must be a letter"):
        read_study(tmp_path / "draft.toml")
    (tmp_path / "draft.toml").write_text(text.replace('"..."', '"va"'))
    study = read_study(tmp_path / "draft.toml")
    assert [c.name for c in study.columns] == ["age", "chol", "cp", "ca"] and study.target["values"] == ("no", "yes")
    assert study.ask["analyse"]["family"] == "logistic" and study.columns[1].missing == "indicator"
