"""`compare` in a study: what the pooled command finds, limits that are kept before an answer, and scores that stay."""

from __future__ import annotations

import html
import json
import re

import numpy as np
import pytest

from fedconvex import Federation, Problem
from fedconvex.comparison.compared_rows import rows_of
from fedconvex.comparison.comparing import checked_settings, compare_rows
from fedconvex.comparison.cross_validation import Folds, tune, tuned_by_sums
from fedconvex.comparison.kinds import KINDS, Training
from fedconvex.comparison.page import page
from fedconvex.comparison.skewed_intervals import Losses, Products, ProductSums, loss_interval
from fedconvex.comparison.splits import fold_of
from fedconvex.losses import Logistic, Softmax, Squared
from fedconvex.models import LinearModel
from fedconvex.remote import in_process
from fedconvex.remote.invitations import SiteWarning
from fedconvex.remote.messages import Refused
from fedconvex.study import comparing_answers, comparing_site, read_site, read_study
from fedconvex.study.agreement import USUAL
from fedconvex.study.audit_log import read_log
from fedconvex.study.comparing_fair import FairStep
from fedconvex.study.coordination import Coordinator
from fedconvex.study.runs_asked import questions
from fedconvex.study.site_check import check_site
from fedconvex.study.site_end import Participant
from tests.study_text import wards

VALUES = {True: ["no", "yes"], 3: ["no", "some", "yes"]}
SIZES = {"south": 60, "north": 44, "west": 90, "east": 40}


def tables(classes):
    """Four sites of different sizes, whose slopes differ a little."""
    for k, (name, n) in enumerate(SIZES.items()):
        rng = np.random.default_rng([3, k])
        age, dose, ward = rng.integers(30, 90, n), rng.normal(size=n).round(3), rng.integers(0, 3, n)
        score = (age - 60) / 15 + (0.5 + 0.3 * k) * dose + 0.4 * (ward == 2)
        y = score + rng.logistic(size=n)
        ill = np.where(y > 0, "yes", "no") if classes else np.round(50.0 + 20.0 * y, 3)
        if classes == 3:
            z = y - 2.0 * dose  # another order
            ill = np.array(["no", "some", "yes"])[(y > -0.7).astype(int) + ((y > -0.7) & (z > 0.3))]
        yield name, {"age": age, "dose": dose, "ward": np.array(list("abc"))[ward], "ill": ill}


def written(folder, ask, sums="true", classes=True, limits="parameters = 0.2\n", own=None):
    """A study and its sites' files; ``own``: further limits of single sites."""
    values = f"values = {json.dumps(VALUES[classes])}" if classes else ""
    dose = '[columns.dose]\nkind = "number"\n'
    text = wards(ask, ["south", "north", "west", "east"], f'column = "ill"\n{values}', sums, columns=dose, values="abc")
    (folder / "study.toml").write_text(text)
    for name, cells in tables(classes):
        lines = [",".join(cells), *(",".join(map(str, row)) for row in zip(*cells.values(), strict=True))]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
        mine = limits + (own or {}).get(name, "") + ("secure_sums = false\n" if sums == "false" else "")
        head = f'[site]\nname = "{name}"\ntable = "{name}.csv"\nstate = "s_{name}"\nresults = "r_{name}"\n'
        (folder / f"{name}.toml").write_text(f"{head}[limits]\n{mine}")
    return read_study(folder / "study.toml")


def conducted(folder, study, transport=in_process):
    sites = [Participant(study, read_site(folder / f"{name}.toml"), lambda line: None) for name in study.sites]
    coordinator = Coordinator(study, folder / "out", transport(sites), lambda line: None)
    coordinator.patience = 2
    return coordinator.conduct()


def pooled(classes, kinds=USUAL, **asked):
    """What the pooled command finds on the same features."""
    parts, names = [], []
    for name, cells in tables(classes):
        onehot = np.column_stack([cells["ward"] == v for v in "abc"]).astype(float)
        y = np.where(cells["ill"] == "yes", 1.0, -1.0) if classes else cells["ill"]
        y = np.searchsorted(VALUES[3], cells["ill"]).astype(float) if classes == 3 else y
        parts.append((np.column_stack([cells["age"], cells["dose"], onehot]), y))
        names.append(name)
    fed = Federation.from_clients(parts, labels=names)
    rows = rows_of(fed, {True: Logistic(), False: Squared(), 3: Softmax(3)}[classes])
    given = {"test_size": 0.25, "folds": 5, "local_steps": 5, "rounds": 1, "gap": 1e-3, "min_rows": 10, "level": 0.95,
             "seed": 0, "splits": 1, **asked}  # fmt: skip
    methods = [kind for kind in kinds if kind != "alone"]
    return compare_rows(rows, checked_settings(rows, methods, *given.values()), False)


def alike(found, wanted, within):
    """Whether a file holds the decision, tables and intervals of a comparison, but for costs of methods."""
    said = [s for s in wanted.sentences if " rounds " not in s and "rounds and" not in s]
    assert found["decision"] == said
    assert found["base_rates"] == wanted.base_rates
    for mine in found["methods"]:
        theirs = wanted[mine["method"]]
        assert mine["worst_client"] == (None if theirs.worst is None else wanted.rows.names[theirs.worst])
        if mine["method"] != "base rate":
            assert mine["l2"] == pytest.approx(theirs.l2, rel=1e-6)
        for name in ("error", "accuracy", "bias", "rmse"):
            close(list(mine[name].values()), getattr(theirs.whole, name), within)
    for mine, theirs in zip(found["clients"], wanted.clients, strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            if isinstance(value, str):
                assert mine[name] == value, (name, mine["client"], mine["method"])
            else:
                close([mine[name]], [value], within)


def close(mine, theirs, within):
    mine = [np.nan if v is None else v for v in mine]
    theirs = [v if np.isfinite(v) else np.nan for v in theirs]
    np.testing.assert_allclose(mine, theirs, rtol=within, atol=within)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize(
    ("sums", "classes", "splits"), [("true", True, 1), ("true", False, 4), ("false", True, 4), ("false", False, 1)]
)
def test_it_is_the_pooled_comparison(tmp_path, sums, classes, splits):
    """The same decision, words and l2; numbers to what secure sums and the pooled searches leave."""
    limits = "parameters = 0.2\nsummed = 1e4\n" + ("share = 1e4\n" if sums == "false" else "share = 2.0\n")
    study = written(tmp_path, f"compare = {{ splits = {splits}, folds = {5 - splits // 2} }}", sums, classes, limits)
    results = conducted(tmp_path, study)
    found = json.loads(results["compare.json"])
    alike(found, pooled(classes, splits=splits, folds=5 - splits // 2), 2e-6)
    assert results["compare.txt"].decode().startswith("the study: 234 rows of 4 clients")


@pytest.mark.slow
@pytest.mark.compiled
def test_a_restart_ends_with_the_same_bits(tmp_path):
    """The coordinator stops in the middle, and both ends begin anew from what they have on disk."""
    study = written(tmp_path, "compare = { folds = 2 }", limits="parameters = 0.2\nshare = 2.0\n")
    whole = conducted(tmp_path, study)

    def stopping(sites):
        ask, asked = in_process(sites), []

        def stopped(t, requests):
            asked.append(t)
            if len(asked) == 9:
                raise KeyboardInterrupt
            return ask(t, requests)

        return stopped

    again = tmp_path / "again"
    again.mkdir()
    study = written(again, "compare = { folds = 2 }", limits="parameters = 0.2\nshare = 2.0\n")
    with pytest.raises(KeyboardInterrupt):
        conducted(again, study, stopping)
    found = conducted(again, study)
    one, other = (json.loads(r["compare.json"]) for r in (whole, found))
    assert one | {"seconds": 0.0} == other | {"seconds": 0.0}


@pytest.mark.slow
@pytest.mark.compiled
def test_what_exceeds_the_rows_is_refused_before_it_is_answered(tmp_path):
    """In the open by the check already; under masks where the site limits sums, whatever the check has estimated."""
    study = written(tmp_path, "compare = { folds = 2 }", "false")
    with pytest.raises(ValueError, match=r"numbers are taken up to its end, and the rows' limit is 360"):
        conducted(tmp_path, study)
    study = written(tmp_path, "compare = { folds = 2 }", limits="parameters = 0.2\nshare = 2.0\n")
    sites = [Participant(study, read_site(tmp_path / f"{name}.toml"), lambda line: None) for name in study.sites]
    sites[1].settings.limits["summed"] = 3.0
    coordinator = Coordinator(study, tmp_path / "out", in_process(sites), lambda line: None)
    coordinator.patience = 1
    with pytest.warns(SiteWarning), pytest.raises(ConnectionError, match=r"allows no more \(\[limits\] summed = 3\)"):
        coordinator.conduct()
    assert sites[1].apart.sums <= 3 * 44 * 6


def test_a_hessian_of_few_rows_is_not_told():
    """Far out, where all scores but one are certain, it would be that row's: zeros and a mark are told."""
    rng = np.random.default_rng(1)
    X, y = np.column_stack([rng.normal(size=(40, 2)), np.ones(40)]), rng.choice([-1.0, 1.0], 40)
    part, one = Problem(Federation.from_clients([(X, y)]), Logistic()), np.ones(1)
    out = 1e3 * np.array([1.0, 0.3, 0.0])
    out[2] = -X[7] @ out  # between the score of one row and those of all others
    told = comparing_site._pooled(part, 1.0, one, np.array([out, np.zeros(3)]))
    assert told["lost"].tolist() == [1.0, 0.0]
    assert not told["bend"][0].any() and not told["slope"][0].any() and told["bend"][1].any()
    near = comparing_site._near_mean(part, 1.0, one * 1e3, np.array([out]))
    assert near["lost"][0] == 1.0 and not near["bend"].any() and not near["slope"].any()


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize(("sums", "classes", "splits"), [("true", True, 1), ("false", False, 4)])
def test_a_model_that_is_fair_to_sites_is_the_pooled_one(tmp_path, sums, classes, splits):
    """AFL: the same decision and l2, its estimates to 1e-8; the certified gap and numbers of single sites are told."""
    kinds = ["pooled", "afl"]
    ask = f"compare = {{ kinds = {json.dumps(kinds)}, splits = {splits}, folds = 2 }}"
    study = written(tmp_path, ask, sums, classes, "parameters = 0.2\nsummed = 1e4\nshare = 1e4\n")
    results = conducted(tmp_path, study)
    found = json.loads(results["compare.json"])
    wanted = pooled(classes, kinds, splits=splits, folds=2)
    alike(found, wanted, 1e-8)
    (mine,) = [m for m in found["methods"] if m["method"] == "afl"]
    for name in ("error", "bias"):  # in standard errors
        theirs = np.array(getattr(wanted["afl"].whole, name))
        assert np.abs(np.array(list(mine[name].values())) - theirs).max() <= 1e-10 * np.ptp(theirs) / (2.0 * 1.96)
    gap = float(found["notes"][0].removesuffix(".").rpartition(" ")[2])
    assert "has a largest objective of a site below that of afl" in found["notes"][0] and 0.0 < gap < 1e-9
    lines = [line for line in read_log(tmp_path / "s_north" / "audit.jsonl") if line.get("question") == "compare"]
    told = [line for line in lines if line["what"] == "answered" and line["kind"] == "measured"]
    fair = [line for line in told if "weights" in line["asked"]]
    assert 8 <= len(fair) <= 40
    for line in fair:  # value, gradient and Hessian of each model, hidden by no sum; in the open the mark too
        assert line["new"] == line["asked"]["weights"][0] * (1 + 6 + 21 + (sums == "false"))
    counted = f"{len(told)} exchanges, {sum(line['new'] for line in told):,} numbers of each site"
    summed = f"'s own, and {told[-1]['sums']:,} in sums under masks" * (sums == "true")
    assert found["notes"][-1] == f"{counted}{summed}."


def test_fair_steps_end_at_the_least_largest_objective():
    """Beside `Problem.solve_minimax`, and its certificate: of rows that a mean would serve badly."""
    rng = np.random.default_rng(2)
    parts = []
    for k, n in enumerate((30, 12, 20)):
        X = np.column_stack([rng.normal(size=(n, 2)), np.ones(n)])
        parts.append((X, np.where(X @ [1.0 - k, 0.5 * k, k - 1.0] + rng.logistic(size=n) > 0, 1.0, -1.0)))
    problem = Problem(Federation.from_clients(parts), Logistic(), l2=0.05, intercept=True)
    best, domains = problem.solve_minimax(1e-9), problem.by_domain

    def answer(w, weights):
        J = np.asarray(domains.client_gradients(w)).reshape(3, -1)
        return domains.client_values(w), J, domains.reweighted(weights).flat_hessian(w)

    search, asked = FairStep(3, 3, 0.0), 0
    while not search.settled:
        asked += 1
        search.absorb(*answer(search.trial, search.weights))
    assert asked <= 12 and best.domain_weights.max() < 0.99  # several sites are worst
    np.testing.assert_allclose(search.trial, best.w, atol=1e-7)
    np.testing.assert_allclose(search.weights, best.domain_weights, atol=1e-6)
    F = answer(search.trial, search.weights)[0]
    assert F.max() <= best.value + 1e-12


def test_what_a_fair_model_asks_is_each_sites_own():
    """The answer stands in the site's place; its Hessian is weighted; all of it but the mark is counted as its own."""
    rng = np.random.default_rng(3)
    X, y = np.column_stack([rng.normal(size=(40, 2)), np.ones(40)]), rng.choice([-1.0, 1.0], 40)
    part, W = Problem(Federation.from_clients([(X, y)]), Logistic()), rng.normal(size=(2, 3))
    weights = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    told = comparing_site._fair(part, W, weights, 1)
    f, g, H = part.value_gradient_hessian(W[0])
    np.testing.assert_allclose(told["site_loss"], [[0.0, f, 0.0], [0.0, part.value(W[1]), 0.0]], rtol=1e-12)
    np.testing.assert_allclose(told["site_slope"][0], [[0.0] * 3, g, [0.0] * 3], rtol=1e-12)
    np.testing.assert_allclose(told["bend"], [0.3 * H[np.triu_indices(3)], np.zeros(6)], rtol=1e-12)


@pytest.mark.parametrize(
    ("weights", "said"), [([0.5, 0.4], "its weights of sites are none"), ([1.5, -0.5], "its weights of sites are none"),
                          ([0.5, 0.5, 0.0], "no finite array")],
)  # fmt: skip
def test_weights_that_are_none_are_refused(tmp_path, weights, said):
    study = written(tmp_path, 'compare = { kinds = ["afl"], folds = 2 }')
    (question,) = questions(study)
    plan = question.plan
    asked = {
        "afl": np.zeros((1, plan.p)), "weights": np.array([weights]), "part": np.zeros(1), "l2": np.ones(1),
        "shift": np.zeros((plan.sets, plan.p - 1)), "scale": np.ones((plan.sets, plan.p - 1)),
        "target": np.tile([0.0, 1.0], (plan.sets, 1)),
    }  # fmt: skip
    fed = Federation.from_clients([(np.zeros((9, plan.p - 1)), np.ones(9))] * 2)
    with pytest.raises(Refused, match=said):
        comparing_answers.report(question.make(fed), 0, asked)
    assert comparing_answers.told_apart(plan, 2, asked) == (1 + plan.p + plan.t, 1)


def test_l2_is_chosen_from_sums_as_from_rows():
    """`tuned_by_sums` beside `tune`, for a mean and for the largest mean of a client."""
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 2)), rng.choice([-1.0, 1.0], n)) for n in (24, 9, 15)]
    rows = rows_of(Federation.from_clients(parts), Logistic())
    train = np.arange(rows.y.size)
    fold, l2s = fold_of(rows, train, 3, 0), (1.0, 0.01)
    folds = Folds.of(Training(rows, rows.features(train), train), fold)
    for kind, least in (("pooled", None), ("afl", 4)):
        seen = []
        data = Training(rows, rows.features(train), train)
        made = Watched(KINDS[kind], seen)
        wanted = tune(made, data, folds, 4, lambda share: None, l2s)
        losses = seen[0]
        each = np.array(
            [[[row[(rows.client == k) & (fold == f)].sum() for f in range(3)] for row in losses] for k in range(3)]
        )
        counts = np.array([[np.sum((rows.client == k) & (fold == f)) for f in range(3)] for k in range(3)])
        found = tuned_by_sums(each, counts, l2s, least)
        assert found.l2 == wanted.l2 and found.at_end == wanted.at_end
        np.testing.assert_allclose(found.losses, wanted.losses, rtol=1e-12)
        np.testing.assert_allclose(found.score, wanted.score, rtol=1e-12)
        assert found.loss == pytest.approx(wanted.loss, rel=1e-12)


class Watched:
    """A kind of models that keeps the losses by which its l2 is chosen."""

    def __init__(self, kind, seen):
        self.kind, self.seen = kind, seen

    def __getattr__(self, name):
        return getattr(self.kind, name)

    def preferred(self, rows, losses, held, least):
        if held.size == rows.y.size:
            self.seen.append(losses)
        return self.kind.preferred(rows, losses, held, least)


def test_intervals_from_sums_are_those_of_rows():
    rng = np.random.default_rng(1)
    v, doubt, at = rng.exponential(size=30), rng.random(30), np.arange(30)
    wanted = Losses(v, doubt).mean(at, 0.9)
    found = loss_interval(30, v.mean(), v.var(ddof=1), doubt.mean(), 0.9)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    a, b, group = rng.normal(size=30) ** 3, rng.normal(size=30), np.repeat([0, 1, 2], 10)
    for one, other, own, factor in ((a, b, False, 2.0), (a, a, True, 1.0)):
        errors = Products.of(one, other, group)
        wanted = errors.mean(at, 0.95) if own else errors.mean(at, 0.95, factor)
        p = one * other
        sums = ProductSums(30, p.sum(), p @ p, one @ one, other @ other)
        np.testing.assert_allclose(sums.mean(0.95, errors.spread, own, factor), wanted, rtol=1e-9)
    assert ProductSums(30, 0.0, 0.0, 0.0, 1.0).mean(0.95, 1.0, False) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ('compare = { kinds = ["poled"] }', "kinds must be one of"),
        ("compare = { splits = 3 }", r"splits must fit to test_size"),
        ('solve = { loss = "logistic", l2 = "compare" }', "no compare of pooled models chooses"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(tmp_path, ask, said):
    with pytest.raises(ValueError, match=said):
        written(tmp_path, ask)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A comparison with secure sums, and a model with the l2 that it chooses: its folder, study and results."""
    folder = tmp_path_factory.mktemp("compare")
    ask = 'compare = { folds = 3 }\nsolve = { loss = "logistic", l2 = "compare", tol = 1e-8, held_out = 0.25 }'
    study = written(folder, ask, limits="parameters = 0.2\nshare = 3.0\n", own={"west": "scores = false\n"})
    return folder, study, conducted(folder, study)


@pytest.mark.slow
@pytest.mark.compiled
def test_a_site_may_keep_its_scores(ended):
    """Its own row is unknown, whether it gains too, all others are those of the pooled command; it reads its own."""
    folder, _, results = ended
    found, wanted = json.loads(results["compare.json"]), pooled(True, folds=3)
    for mine, theirs in zip(found["clients"], wanted.clients, strict=True):
        if mine["client"] == "west":
            assert mine["log_loss"] is None and mine["difference"] is None and mine["verdict"] == "keeps its scores"
        else:
            close([mine["log_loss"], mine["difference_low"]], [theirs["log_loss"], theirs["difference_low"]], 1e-6)
    for mine in found["methods"]:
        close([mine["error"]["value"]], [wanted[mine["method"]].whole.error.value], 1e-6)
    assert "keeps its scores to itself (west)" in " ".join(found["decision"])
    kept = (folder / "r_west" / "compare_here.txt").read_text()
    theirs = next(c for c in wanted.clients if (c["client"], c["method"]) == ("west", "pooled"))
    assert kept.startswith("west, on ") and theirs["verdict"] in kept and f"{theirs['log_loss']:.4g}" in kept


@pytest.mark.slow
@pytest.mark.compiled
def test_the_page_is_that_of_the_pooled_command(ended):
    """Its decision and rows of the tables, but for what sites keep; it stays at the coordinator, and runs nothing."""
    folder, _, results = ended
    shown, wanted = (folder / "out" / "compare.html").read_text(), pooled(True, folds=3)
    theirs = page(wanted)
    for said in json.loads(results["compare.json"])["decision"]:
        assert html.escape(said) in shown
    rows = [row for row in re.findall(r"<tr>.*?</tr>", theirs) if ">north</th>" in row or ">east</th>" in row]
    assert len(rows) == 2 and all(row in shown for row in rows)
    assert (
        shown.count("<svg") == 3 and theirs.count("<svg") > 3
    )  # no costs, and no calibration without scores in one place
    assert "took part: south, north, west, east" in shown and "<script" not in shown and "local steps" not in shown
    assert "compare.html" not in results and not list(folder.glob("r_*/*.html"))


@pytest.mark.slow
@pytest.mark.compiled
def test_solve_takes_the_l2_that_was_chosen(ended):
    folder, _, results = ended
    found = json.loads(results["compare.json"])
    chosen = next(m["l2"] for m in found["methods"] if m["method"] == "pooled")
    assert LinearModel.load(folder / "out" / "model").about["l2"] == chosen == pooled(True, folds=3)["pooled"].l2
    assert "north: mean loss on" in (folder / "out" / "held_out.txt").read_text()
    assert (folder / "r_north" / "compare.txt").read_bytes() == results["compare.txt"]


@pytest.mark.slow
@pytest.mark.compiled
def test_the_log_accounts_for_sums_and_scores(ended):
    """Numbers in sums are counted apart; the site's own ones count as others do."""
    folder, study, _ = ended
    for name in ("north", "west"):
        lines = [line for line in read_log(folder / f"s_{name}" / "audit.jsonl") if line.get("question") == "compare"]
        told = [line for line in lines if line["what"] == "answered" and line["kind"] == "measured"]
        sums = np.diff([0, *(line["sums"] for line in told)])
        row = told[-1]
        assert len(told) <= 45  # exchanges: the models of all l2 and folds are asked about together
        assert row["left"]["masked"][0] == 4 * row["new"] and not sums[-1]  # in its place among four sites
        keys = 2  # beside the masked numbers: of how many keys they are, and a mark of these
        for line, more in zip(told[:-1], sums, strict=False):
            assert line["new"] == 0 and line["numbers"] == more + keys
    found = check_site(study, read_site(folder / "north.toml"))
    question = next(q for q in found.questions if q.name == "compare")
    assert question.summed >= sum(sums) and question.usual == row["new"]
