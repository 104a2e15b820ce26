"""The experiments afl-toy and afl-adult: values against independent solvers, certificates, claims that can fail."""

import json
import math

import cvxpy as cp
import numpy as np
import pytest
import scipy.stats

pytest.importorskip("matplotlib")

from fedconvex import Logistic, Problem, run
from fedconvex.cli import main
from fedconvex.datasets import Table
from fedconvex.papers import EXPERIMENTS, agnostic_adult, summary, write
from fedconvex.papers.agnostic_toy import runs as toy_runs
from fedconvex.papers.agnostic_toy.claims import judge as toy_claims
from fedconvex.papers.agnostic_toy.problem import CENTRES, VARIANCES, clouds, enclosing, location_problem
from fedconvex.report import domain_differences, domain_scores


def said():
    heard = []
    return heard, lambda share, doing: heard.append((share, doing))


# ---------------------------------------------------------------- afl-toy


@pytest.fixture(scope="module")
def toy(compiled_kernels):
    heard, tell = said()
    return EXPERIMENTS["afl-toy"].run(quick=True, progress=tell), heard


@pytest.mark.slow
def test_toy_holds(toy, tmp_path):
    findings, heard = toy
    assert findings.holds, summary(findings)
    assert np.diff([share for share, _ in heard]).min() >= -1e-12  # up to rounding
    assert heard[-1][0] == 1.0
    assert {f.name for f in write(findings, tmp_path)} >= {"plane.svg", "rounds.png", "domain_weights.svg", "table.csv"}
    assert len(findings.tables["table"]) == 2 * 5
    assert len(findings.claims) == 9


def smallest_circle(c, v):
    h, t = cp.Variable(2), cp.Variable()
    rows = [cp.sum_squares(h - c[i]) + v[i] <= t for i in range(len(c))]
    problem = cp.Problem(cp.Minimize(t), rows)
    problem.solve(solver=cp.CLARABEL)
    return h.value, t.value, np.array([r.dual_value for r in rows]).ravel()


@pytest.mark.parametrize("seed", range(6))
def test_by_hand_agrees_with_cvxpy(seed):
    rng = np.random.default_rng(seed)
    c = rng.normal(size=(3 + seed, 2))
    v = np.zeros(len(c)) if seed % 2 else rng.exponential(size=len(c))
    found = enclosing(c, v)
    h, value, mix = smallest_circle(c, v)
    assert found.value == pytest.approx(value, abs=1e-6)
    np.testing.assert_allclose(found.h, h, atol=1e-3)  # max F is 2-strongly convex: ‖h - h*‖^2 <= 1e-6
    np.testing.assert_allclose(found.domain_weights, mix, atol=1e-3)
    np.testing.assert_allclose(found.domain_weights @ c, found.h, atol=1e-12)
    assert found.domain_weights.sum() == pytest.approx(1.0)


def test_by_hand_wants_the_worst_domains():
    """Planted: the middle of two inner points is the centre of the circle too, but the two are not worst."""
    c = np.array([[0.0, 0.0], [3.0, 0.0], [1.0, 2.5], [1.0, 0.5], [2.0, 1.2]])
    found = enclosing(c)
    np.testing.assert_allclose(found.h, (c[3] + c[4]) / 2.0)
    assert found.domain_weights[3:].tolist() == [0.0, 0.0]
    assert found.domain_weights[:3].min() > 0.1
    assert enclosing(np.array([[1.0, 2.0], [1.0, 2.0]])).value == 0.0
    assert enclosing(np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])).h.tolist() == [1.0, 0.0]  # on a line


@pytest.mark.parametrize("variances", VARIANCES.values(), ids=list(VARIANCES))
def test_toy_problem_is_the_mean_squared_distance(variances):
    points = clouds(variances, seed=4)
    problem = location_problem(points)
    for h in np.random.default_rng(0).normal(size=(5, 2)):
        plain = [np.mean(np.sum((z - h) ** 2, axis=1)) for z in points]
        np.testing.assert_allclose(problem.domain_values(h), plain, rtol=1e-12)
        formula = np.sum((CENTRES - h) ** 2, axis=1) + np.array(variances)
        np.testing.assert_allclose(plain, formula, rtol=1e-12)
    h = cp.Variable(2)
    means = [
        cp.sum_squares(np.sqrt(1 / len(z)) * (z - np.ones((len(z), 1)) @ cp.reshape(h, (1, 2), "C"))) for z in points
    ]
    theirs = cp.Problem(cp.Minimize(cp.max(cp.hstack(means)))).solve(solver=cp.CLARABEL)
    best = problem.solve_minimax()
    assert best.value == pytest.approx(theirs, abs=1e-6)
    assert enclosing(CENTRES, np.array(variances)).value == pytest.approx(theirs, abs=1e-6)


def test_toy_equal_variances_decide():
    """Centre of the circle: exactly with equal variances, and off it by the numbers of the page else."""
    circle = enclosing(CENTRES)
    np.testing.assert_allclose(circle.h, [1.5, 0.85])  # equidistant from (0,0), (3,0), (1,2.5): 2.25 + 0.7225
    assert circle.value == pytest.approx(2.9725)
    noisy = enclosing(CENTRES, VARIANCES["one noisy domain"])
    assert noisy.value == pytest.approx(4.17295955882353, rel=1e-12)
    # by hand: D1 and D5 are worst, h = m c_5, |h|^2 + 1/2 = (1 - m)^2 |c_5|^2 + 4, |c_5|^2 = 5.44
    m = (5.44 + 3.5) / (2.0 * 5.44)
    assert noisy.value == pytest.approx(m**2 * 5.44 + 0.5, rel=1e-12)
    np.testing.assert_allclose(noisy.h, m * CENTRES[4])


@pytest.mark.parametrize("name", list(toy_runs.methods()))
@pytest.mark.parametrize("setting", list(VARIANCES))
def test_toy_certified_gap_bounds_the_true_one(name, setting):
    variances = VARIANCES[setting]
    truth = enclosing(CENTRES, variances).value
    problem = location_problem(clouds(variances, seed=1))
    trace = run(toy_runs.methods()[name], problem, rounds=40, tol=0.0, seed=1, progress=False).trace
    assert (trace.gap >= trace.value - truth - 1e-12).all()
    assert not (0.999 * trace.gap >= trace.value - truth - 1e-12).all()  # a bound smaller by a thousandth is caught


@pytest.mark.slow
def test_toy_claims_can_fail(toy):
    plan = toy_runs.QUICK._replace(rounds=40, runs=2, close=1.0)
    settings = [toy_runs.solve_setting(name, v, plan, 0, lambda share, doing: None) for name, v in VARIANCES.items()]
    rates = [toy_runs.check_rate(w, 40, 3, 0) for w in settings]
    line = toy_runs.on_the_line(0)

    def failing(settings=settings, rates=rates, plan=plan, line=line):
        return [c.text for c in toy_claims(settings, rates, plan, line) if not c.holds]

    assert failing() == []
    assert failing(plan=plan._replace(close=1e-9))[0].startswith("AFL, OptimisticAFL and AgnosticFedAvg reach")
    low = settings[0]._replace(exact=settings[0].exact._replace(value=settings[0].exact.value - 1e-6))
    found = failing([low, settings[1]])
    assert any("certified gap is an upper bound" in text for text in found)
    moved = settings[0]._replace(circle=settings[0].circle._replace(h=settings[0].circle.h + 1e-4))
    assert failing([moved, settings[1]])[0].startswith("With equal variances")
    assert failing([settings[0], settings[0]])[0].startswith("With unequal variances")
    wrong = settings[1]._replace(variances=settings[1].variances + 1e-6)
    assert failing([settings[0], wrong])[0].startswith("The mean loss of domain i")
    lame = settings[0]._replace(paths=settings[0].paths | {"FedAvg": np.tile(settings[0].exact.h, (3, 1))})
    assert failing([lame, settings[1]])[0].startswith("FedAvg goes")
    assert "bound" in failing(rates=[r._replace(mean=1e3) for r in rates])[0]
    assert failing(line=line._replace(h=line.middle))[0].startswith("In FedJAX's recipe")


def test_toy_on_the_line():
    line = toy_runs.on_the_line(3)
    worst = np.max((line.h - line.means) ** 2 + line.variances)
    for h in line.h + np.array([-1e-4, 1e-4]):
        assert np.max((h - line.means) ** 2 + line.variances) > worst


def test_toy_refuses():
    with pytest.raises(ValueError, match="data must be left out"):
        EXPERIMENTS["afl-toy"].run(data="x.npz")
    with pytest.raises(ValueError, match="seed"):
        EXPERIMENTS["afl-toy"].run(seed=-1)


# ---------------------------------------------------------------- afl-adult


def archive(path, n=300, m=120, **changes):
    """People with three categorical columns, of whom a fifth has a doctorate and other habits."""
    rng = np.random.default_rng(0)
    arrays = {"categories_0": np.array(["?", "a", "b"]), "categories_1": np.array(["c", "d"])}
    arrays["categories_2"] = np.array(["e", "f", "?", "g"])
    arrays["x_num_train"] = np.zeros((n, 2), np.int32)  # numbers are not read
    for part, size in (("train", n), ("test", m)):
        codes = np.column_stack([rng.integers(k, size=size) for k in (3, 2, 4)]).astype(np.int8)
        domain = (np.arange(size) % 5 == 0).astype(np.int8)
        z = np.where(domain == 1, 2.0, -2.0) * (codes[:, 1] - 0.5) + (codes[:, 2] == 3) + rng.logistic(size=size)
        arrays |= {f"x_cat_{part}": codes, f"y_{part}": (z > 0).astype(np.int8), f"domain_{part}": domain}
    arrays |= changes
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def test_adult_encodes_what_the_page_says(tmp_path):
    path = archive(tmp_path / "people.npz")
    people = agnostic_adult.load_people(path)
    raw = np.load(path)
    columns = [(0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (2, 3)]
    for part, fed in (("train", people.train), ("test", people.test)):
        doctorate = raw[f"domain_{part}"] == 1
        order = np.concatenate([np.flatnonzero(doctorate), np.flatnonzero(~doctorate)])
        codes = raw[f"x_cat_{part}"][order]
        X = np.column_stack([*(codes[:, j] == k for j, k in columns), np.ones(len(order))])
        np.testing.assert_array_equal(fed.X.toarray(), X)
        np.testing.assert_array_equal(fed.y, 2.0 * raw[f"y_{part}"][order] - 1.0)
        assert fed.labels.tolist() == ["doctorate", "other"]
        assert fed.sizes.tolist() == [doctorate.sum(), (~doctorate).sum()]
    assert not people.official


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return archive(tmp_path_factory.mktemp("adult") / "people.npz")


@pytest.fixture(scope="module")
def quick(compiled_kernels, small):
    heard, tell = said()
    return EXPERIMENTS["afl-adult"].run(quick=True, data=small, progress=tell), heard


@pytest.mark.slow
def test_adult_runs_quickly(quick, tmp_path):
    findings, heard = quick
    assert np.diff([share for share, _ in heard]).min() >= -1e-12  # up to rounding
    assert heard[-1][0] == 1.0
    assert {f.name for f in write(findings, tmp_path)} >= {"domains.svg", "rounds.png", "table.csv", "methods.csv"}
    texts = {claim.text: claim.holds or claim.here for claim in findings.claims}
    assert not any("0.907" in text for text in texts)  # said of the published rows only
    assert texts["The agnostic solution is certified"]
    assert texts["The certified gap is an upper bound of the true one along every run"]
    assert texts["Every run ends within its certificate of the exact value"]
    assert json.loads((tmp_path / "claims.json").read_text())["holds"] == findings.holds


def minimax_by_cvxpy(problem):
    fed = problem.federation
    X, w = fed.X.toarray(), cp.Variable(fed.d)
    parts = []
    for a, b in zip(fed.ptr, fed.ptr[1:], strict=False):
        parts.append(cp.sum(cp.logistic(cp.multiply(-fed.y[a:b], X[a:b] @ w))) / (b - a))
    value = cp.max(cp.hstack(parts)) + 0.5 * problem.l2 * cp.sum_squares(w)
    return cp.Problem(cp.Minimize(value)).solve(solver=cp.CLARABEL)


@pytest.fixture(scope="module")
def small_truth(small):
    problem = Problem(agnostic_adult.load_people(small).train, Logistic(), agnostic_adult.L2)
    return problem, minimax_by_cvxpy(problem)


@pytest.mark.parametrize("name", [name for name in agnostic_adult.methods() if name != "FedAvg"])
@pytest.mark.slow_unless(name=["AFL", "AFL, mini-batches"])
def test_adult_certified_gap_bounds_the_true_one(name, small_truth):
    problem, truth = small_truth
    trace = run(agnostic_adult.methods()[name], problem, rounds=30, tol=0.0, seed=2, progress=False).trace
    assert (trace.gap >= trace.value - truth - 1e-6).all()
    assert not (0.99 * trace.gap >= trace.value - truth + 1e-6).all()  # a bound smaller by a hundredth is caught
    assert problem.solve_minimax().value == pytest.approx(truth, abs=1e-6)


@pytest.mark.slow
def test_adult_claims_can_fail(small):
    people = agnostic_adult.load_people(small)._replace(official=True)
    problem = Problem(people.train, Logistic(), agnostic_adult.L2)
    plan = agnostic_adult.QUICK._replace(rounds=20, runs=2)
    models = agnostic_adult._models(problem, plan)
    train = {name: domain_scores(problem, model) for name, model in models.items()}
    test = {name: domain_scores(problem, model, people.test) for name, model in models.items()}
    change = domain_differences(problem, models["agnostic"], models["pooled"], people.test)
    follow = agnostic_adult._follow
    courses = {
        name: follow(method, problem, people.test, plan, 0, lambda share, doing: None)
        for name, method in agnostic_adult.methods().items()
    }

    def judged(change=change, courses=courses, train=train, plan=plan):
        claims = list(agnostic_adult._claims(people, plan, models, train, test, change, courses))
        return {claim.text.split(":")[0]: claim.holds for claim in claims}, [claim.text for claim in claims]

    holds, texts = judged()
    assert not holds[texts[0].split(":")[0]]  # these people are not those of Adult: lambda is not 0.907
    for sign in (1.0, -1.0):
        fell = change._replace(
            accuracy=-sign * np.abs(change.accuracy) - sign, p_value=np.full(2, 1e-3), loss=np.full(2, 9.0 * sign)
        )
        claims = agnostic_adult._claims(people, plan, models, train, test, fell, courses)
        for claim in claims:
            if claim.text.startswith(("Test accuracy falls", "The doctorates' test loss rises")):
                assert claim.holds == (sign > 0)
    weak = change._replace(accuracy=np.full(2, -0.1), p_value=np.full(2, 0.06))
    assert not judged(change=weak)[0]["Test accuracy falls against the pooled model"]
    swapped = {"pooled": train["agnostic"], "agnostic": train["pooled"]}
    assert not judged(train=swapped)[0]["It lowers the larger training loss, that of doctorates, and raises the other"]
    short = {name: c._replace(gap=0.9 * c.gap - 1e-9) for name, c in courses.items()}
    holds, _ = judged(courses=short)
    assert not holds["The certified gap is an upper bound of the true one along every run"]
    assert not holds["Every run ends within its certificate of the exact value"]
    far = {name: c._replace(value=c.value + 1.0) for name, c in courses.items()}
    approach = agnostic_adult._approach(models, train, far)
    assert not approach.holds


def test_adult_takes_the_table_of_fetch_adult():
    rng = np.random.default_rng(5)
    n = 90
    kind = rng.integers(3, size=n)
    X = np.column_stack([rng.normal(size=n), kind == 0, kind == 1, kind == 2])
    names = ("age", "work=?", "work=private", "work=state")
    domains = np.where(np.arange(n) % 3 == 0, "doctorate", "other")
    table = Table(X, (rng.random(n) < 0.5).astype(float), None, domains, names, ("<=50K", ">50K"))
    people = agnostic_adult.load_people(table, seed=1)
    assert (people.train.n, people.test.n, people.train.d) == (60, 30, 3)
    assert not people.official
    both = np.vstack([people.train.X.toarray(), people.test.X.toarray()])
    assert sorted(map(tuple, both)) == sorted(map(tuple, np.column_stack([X[:, 2:], np.ones(n)])))
    for wrong in (Table(X, table.y, None, None, names), Table(X, table.y, None, domains, None)):
        with pytest.raises(ValueError, match="table of fetch_adult"):
            agnostic_adult.load_people(wrong)


def test_adult_refuses_bad_files(tmp_path):
    load = agnostic_adult.load_people
    codes = np.load(archive(tmp_path / "good.npz"))["x_cat_train"]
    for changes, words in (
        ({"x_cat_train": None}, "must hold x_cat_train, y_train"),
        ({"domain_test": None}, "must hold x_cat_train, y_train"),
        ({"categories_2": None}, "categories_2 must name"),
        ({"categories_1": np.array(["c"])}, "positions in categories_1"),
        ({"categories_1": np.arange(2)}, "categories_1 must name"),
        ({"x_cat_train": codes - 1}, "positions in categories_0"),
        ({"x_cat_train": codes.astype(float)}, "hold whole numbers"),
        ({"x_cat_train": codes[:, 0]}, "hold whole numbers"),
        ({"x_cat_train": codes[:-1]}, "y_train must hold 299"),
        ({"y_train": np.ones(300)}, "both present"),
        ({"y_train": np.full(300, 2)}, "zeros and ones"),
        ({"y_train": np.full(300, np.nan)}, "zeros and ones"),
        ({"y_test": np.array(["a"] * 120)}, "zeros and ones"),
        ({"domain_train": np.zeros(300)}, "both present"),
        ({"y_train": (np.arange(300) % 5 == 0).astype(int)}, "both classes in the domain doctorate"),
        ({"y_train": np.array([{}] * 300)}, "without pickle"),
    ):
        with pytest.raises(ValueError, match=words):
            load(archive(tmp_path / "bad.npz", **changes))
    (tmp_path / "text.npz").write_text("no archive")
    np.save(tmp_path / "one.npy", codes)
    for name in ("text.npz", "one.npy"):
        with pytest.raises(ValueError, match=r"complete \.npz.* archive"):
            load(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="existing file"):
        load(tmp_path / "no.npz")


def test_adult_says_which_data_it_needs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "afl-adult"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for words in ("x_cat_train", "domain_test", "categories_0", "--data adult.npz", "fetch_adult"):
        assert words in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.compiled
def test_adult_exact_numbers_by_scikit_learn(shared_data):
    """With lambda* as weights, scikit-learn's minimiser has equal domain losses: a saddle point, proved elsewhere."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    people = agnostic_adult.load_people(shared_data("adult"))
    assert people.official
    fed, l2 = people.train, agnostic_adult.L2
    assert fed.sizes.tolist() == [413, 32148]
    assert people.test.sizes.tolist() == [181, 16100]
    problem = Problem(fed, Logistic(), l2)
    best = problem.solve_minimax()
    assert best.domain_weights[0] == pytest.approx(0.907, abs=5e-4)
    np.testing.assert_allclose(best.domain_values, 0.439, atol=5e-4)
    assert 0.0 <= best.gap <= 1e-9
    weights = np.repeat(best.domain_weights / fed.sizes, fed.sizes)
    theirs = linear_model.LogisticRegression(C=1.0 / l2, fit_intercept=False, solver="newton-cholesky", tol=1e-10)
    w = theirs.fit(fed.X.toarray(), fed.y, sample_weight=weights).coef_[0]
    z = fed.y * (fed.X @ w)
    losses = np.logaddexp(0.0, -z)
    means = [losses[a:b].mean() + 0.5 * l2 * w @ w for a, b in zip(fed.ptr, fed.ptr[1:], strict=False)]
    np.testing.assert_allclose(means, best.value, atol=1e-5)
    right = [people.test.y * (people.test.X @ v) >= 0 for v in (best.w, problem.solve().w)]
    only = [int((right[i][:181] & ~right[1 - i][:181]).sum()) for i in (0, 1)]
    assert only == [6, 23]
    change = domain_differences(problem, best, problem.solve(), people.test)
    assert (change.gained[0], change.lost[0]) == (6, 23)
    assert change.p_value[0] == pytest.approx(scipy.stats.binomtest(6, 29).pvalue, rel=1e-9)
    assert change.accuracy[0] == pytest.approx(-17 / 181)
    assert math.isclose(change.loss[0], 0.112, abs_tol=5e-4)
