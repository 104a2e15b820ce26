"""The experiment on boosting from several sources: its rows, its divisions, its choices, and claims that can fail."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from fedconvex import Federation
from fedconvex.datasets import load_bundled
from fedconvex.families.boosting.experiments import claims as multiboost_claims
from fedconvex.families.boosting.experiments import data as multiboost_data
from fedconvex.families.boosting.experiments import runs as multiboost
from fedconvex.families.boosting.experiments.data import load_sources, shifted_digits
from fedconvex.papers import EXPERIMENTS, write
from fedconvex.problems import EnsembleProblem, QEnsemble, Stump, StumpProblem, fit_q

SMALL = multiboost.BoostScale(2, 12, (1e-1,), 2, 8, 40, (1.0,), (0.5,), (0.5,), (2,))


def sources(n=320, d=6, p=2, repeats=0, seed=0):
    """Rows of p domains whose classes are opposite; the first feature says the domain. `repeats` rows occur twice."""
    rng = np.random.default_rng(seed)
    domain, y = np.arange(n) % p, np.where(rng.random(n) < 0.5, 1.0, -1.0)
    X = np.round(rng.normal(size=(n, d)), 2)
    X[:, 0] = 2.0 * domain + 0.3 * rng.normal(size=n)
    X[:, 1] = np.where(domain == 0, y, -y) + 0.7 * rng.normal(size=n)
    X[n - repeats :], domain[n - repeats :] = X[:repeats], domain[:repeats]
    group = np.unique(X, axis=0, return_inverse=True)[1].ravel()
    return multiboost_data.Sources("made", X, y, domain, tuple("abcd"[:p]), group)


# ---------------------------------------------------------------- rows


def test_digits_are_shifted_as_documented():
    found, again, other = shifted_digits(3), shifted_digits(3), shifted_digits(4)
    np.testing.assert_array_equal(found.domain, again.domain)
    assert (found.domain != other.domain).any()
    digits = load_bundled("digits", standardised=False)
    levels = np.array([[[v // 2 / 8 for v in row] for row in image.reshape(8, 8)] for image in digits.X.astype(int)])
    for i in range(0, 1797, 7):
        by_hand = (levels[i], 1 - levels[i], np.array([levels[i][:, 7 - r] for r in range(8)]))[found.domain[i]]
        np.testing.assert_array_equal(found.X[i].reshape(8, 8), by_hand)
    np.testing.assert_array_equal(found.y > 0, digits.y % 2 == 1)
    for k, odd in enumerate((1 / 2, 3 / 8, 5 / 8)):  # of a third of 1,797 rows; 5 standard errors
        assert (found.y[found.domain == k] > 0).mean() == pytest.approx(odd, abs=5 * 0.5 / math.sqrt(550))
    assert len(np.unique(found.group)) == 1797


def archive(path, **changes):
    """CSR rows of two domains, 100 each, 50 of each class; the last two rows are equal."""
    rng = np.random.default_rng(0)
    dense = rng.integers(0, 3, (200, 7)) * (rng.random((200, 7)) < 0.5)
    dense[:, 0], dense[199] = 1, dense[198]
    rows = sp.csr_array(dense.astype(np.uint8))
    arrays = {"data": rows.data, "indices": rows.indices.astype(np.int16), "indptr": rows.indptr}
    arrays |= {"shape": np.array(rows.shape), "y": np.arange(200) // 50 % 2, "domain": np.arange(200) // 100}
    arrays |= {"domain_names": np.array(["a", "b"])} | changes
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path, dense


def test_files_are_read(tmp_path):
    path, dense = archive(tmp_path / "good.npz")
    found = load_sources(path)
    np.testing.assert_array_equal(found.X.toarray(), dense)
    assert found.names == ("a", "b")
    assert found.group[198] == found.group[199]
    same = (dense[:, None] == dense[None]).all(axis=2)
    np.testing.assert_array_equal(found.group[:, None] == found.group, same)
    X = np.random.default_rng(1).normal(size=(200, 3))
    plain = load_sources(archive(tmp_path / "dense.npz", X=X, data=None, domain_names=None)[0])
    np.testing.assert_array_equal(plain.X, X)
    assert plain.names == ("0", "1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": None}, "must hold data, indices, indptr, shape, y, domain"),
        ({"indptr": None}, "must hold"),
        ({"y": np.zeros(200)}, "two classes"),
        ({"y": np.arange(200)}, "two classes"),
        ({"y": np.arange(199) % 2}, "two classes for all 200 rows"),
        ({"domain": np.full(200, 0.5)}, "number the domains"),
        ({"domain": np.arange(199) % 2}, "number the domains"),
        ({"domain": np.zeros(200, int), "domain_names": np.array(["a"])}, "2 to 8 domains"),
        ({"domain_names": np.array(["a", "a"])}, "a name of its own"),
        ({"domain": np.arange(200) // 180}, "domain b must have at least 40 rows of either class; got 0"),
        ({"domain": 2 * (np.arange(200) // 100), "domain_names": np.array(list("abc"))}, "domain b must have at least"),
        ({"shape": np.array([200, 3])}, "below 3"),
        ({"shape": np.array([199, 7])}, "rise from 0"),
        ({"shape": np.array([200.0, 7.0])}, "CSR"),
        ({"indptr": np.zeros(201, int)}, "rise from 0"),
        ({"X": np.full((200, 2), np.nan)}, "finite"),
        ({"X": np.ones(200)}, "shape"),
        ({"X": np.array([{}] * 200)}, "without pickle"),
    ],
)
def test_bad_files_are_refused(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        load_sources(archive(tmp_path / "bad.npz", **changes)[0])


def test_files_that_are_none(tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    np.save(tmp_path / "one.npy", np.zeros(3))
    whole = archive(tmp_path / "good.npz")[0].read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("text.npz", "one.npy", "cut.npz"):
        with pytest.raises(ValueError, match=r"complete \.npz.* archive"):
            EXPERIMENTS["multiboost"].run(data=tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"none\.npz"):
        load_sources(tmp_path / "none.npz")
    with pytest.raises(ValueError, match="seed"):
        EXPERIMENTS["multiboost"].run(seed=-1)


def test_amazon_reviews(shared_data):
    found = load_sources(shared_data("amazon_reviews4"))
    assert found.names == ("books", "dvd", "electronics", "kitchen")
    assert np.bincount(found.domain).tolist() == [2000] * 4
    assert 8000 - len(np.unique(found.group)) == 146  # exact repeats of a text, as the data's page says
    parts = [np.flatnonzero(found.y > 0)[:600], np.array([5]), np.array([6])]
    X = multiboost._features(found.X, parts)
    raw = found.X.toarray() > 0
    often = raw[parts[0]].sum(axis=0)
    assert X[0].shape == (600, 1000)
    assert sorted(X[0].sum(axis=0)) == sorted(np.sort(often)[-1000:])  # the thousand most frequent
    assert set(np.unique(X[0])) == {0.0, 1.0}


# ---------------------------------------------------------------- divisions and choices


@pytest.mark.parametrize("seed", [0, 1])
def test_divisions(seed):
    rows = sources(repeats=40)
    parts = multiboost.divide(rows, SMALL, seed, 0)
    texts = [{tuple(x) for x in X} for X in parts.X]
    assert not (texts[0] & texts[1] or texts[0] & texts[2] or texts[1] & texts[2])  # equal rows on one side
    both = np.vstack(parts.X)
    assert sorted(map(tuple, both)) == sorted(map(tuple, rows.X))  # every row once
    for k in range(2):
        shares = [float((d == k).mean()) for d in parts.domain]
        assert shares == pytest.approx([0.5] * 3, abs=0.02)
    assert [len(X) / 320 for X in parts.X] == pytest.approx([0.5, 0.2, 0.3], abs=0.03)
    assert (np.diff(parts.client) >= 0).all()
    np.testing.assert_array_equal(parts.client // multiboost.CLIENTS, parts.domain[0])
    other = multiboost.divide(rows, SMALL, seed, 1)
    assert {tuple(x) for x in other.X[2]} != texts[2]
    for Q, d in zip((*parts.Q, parts.crossed), (*parts.domain, parts.domain[0]), strict=True):
        np.testing.assert_allclose(Q.sum(axis=1), 1.0)
        assert (Q.argmax(axis=1) == d).mean() > 0.9


@pytest.mark.slow
def test_cross_fitted_q_is_of_rows_left_out():
    """Rows of noise: Q of the training rows knows their domains better than chance, cross-fitted Q does not."""
    rng = np.random.default_rng(0)
    X, domain = rng.normal(size=(160, 60)), np.arange(160) % 2
    model, crossed = multiboost._source_model(X, domain, np.arange(160), SMALL._replace(penalties=(1e-3,)), rng)
    assert (model(X).argmax(axis=1) == domain).mean() > 0.75
    assert abs((crossed.argmax(axis=1) == domain).mean() - 0.5) < 4 * 0.5 / math.sqrt(160)


def test_stages_are_those_of_the_ensemble():
    rows = sources()
    parts = multiboost.divide(rows, SMALL, 0, 0)
    fed = Federation.from_arrays(parts.X[0], parts.y[0], parts.client, parts.domain[0])
    stages = multiboost._boost(StumpProblem(fed, parts.Q[0], bins=multiboost.BINS), 12, 50.0)
    margins = multiboost._staged(stages, parts.X[2], parts.y[2], parts.Q[2])
    members = [Stump(int(j), c, a, b) for _, j, c, a, b, _ in stages]
    f = QEnsemble(members, stages[:, 0].astype(int), stages[:, 5], False, 2)
    every = list(f.staged_decision_function(parts.X[2], parts.Q[2]))
    np.testing.assert_allclose(margins[1:], parts.y[2] * np.array(every), atol=1e-12)
    assert not margins[0].any()
    train = multiboost._staged(stages, parts.X[0], parts.y[0], parts.Q[0])[-1]
    worst = multiboost.of_domains(np.exp(-train), parts.domain[0], 2).max()
    assert worst == pytest.approx(worst_loss(fed, parts, stages), rel=1e-12)
    assert worst < 0.9


def worst_loss(fed, parts, stages):
    """The worst domain's loss, row by row."""
    total = {0: [], 1: []}
    for x, y, k, q in zip(fed.X, fed.y, parts.domain[0], parts.Q[0], strict=True):
        f = sum(s[5] * q[int(s[0])] * (s[3] if x[int(s[1])] <= s[2] else s[4]) for s in stages)
        total[int(k)].append(math.exp(-y * f))
    return max(np.mean(v) for v in total.values())


def test_choices_do_not_see_test_rows():
    rng = np.random.default_rng(0)
    rows = sources()
    parts = multiboost.divide(rows, SMALL, 0, 0)
    margins = [np.cumsum(rng.normal(0.02, 0.3, (30, len(y))), axis=0) for y in parts.y]
    one = multiboost._outcome("m", 0, parts, margins)
    two = multiboost._outcome("m", 0, parts, [margins[0], margins[1], -margins[2]])
    for a, b in zip(one.chosen, two.chosen, strict=True):
        assert (a.rounds, a.factor, a.held) == (b.rounds, b.factor, b.held)
        assert (a.test != b.test).any()
    d = parts.domain[1]
    losses = [max(np.exp(-m[d == k]).mean() for k in range(2)) for m in margins[1]]
    errors = [max((m[d == k] <= 0).mean() for k in range(2)) for m in margins[1]]
    assert (one.chosen[0].rounds, one.chosen[2].rounds) == (np.argmin(losses), np.argmin(errors))
    assert one.chosen[1].held <= one.chosen[0].held
    own = multiboost._outcome("m", 0, parts, margins, own=1).chosen[0]
    assert own.rounds == np.argmin([np.exp(-m[d == 1]).mean() for m in margins[1]])
    worse = one._replace(chosen=tuple(c._replace(held=c.held + 1) for c in two.chosen))
    mixed = (worse.chosen[0], one.chosen[1], worse.chosen[2])
    assert multiboost._best([worse, one], "best").chosen == one.chosen
    assert multiboost._best([worse, one._replace(chosen=mixed)], "best").chosen[1] == one.chosen[1]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.slow
def test_the_optimal_combination_is_optimal(weighted):
    cp = pytest.importorskip("cvxpy")
    parts = multiboost.divide(sources(), SMALL, 0, 0)
    rng = np.random.default_rng(1)
    scores = [np.clip(0.3 * y[:, None] + rng.normal(0, 0.4, (len(y), 2)), -1, 1) for y in parts.y]
    (train, *_), gap = multiboost._combined(scores, parts, parts.Q if weighted else None)
    found = multiboost.of_domains(np.exp(-train[0]), parts.domain[0], 2).max()
    a, Q = cp.Variable(2, nonneg=True), parts.Q[0] if weighted else 0.5
    f = cp.multiply(parts.y[0], (Q * scores[0]) @ a)
    losses = [cp.sum(cp.exp(-f[parts.domain[0] == k])) / (parts.domain[0] == k).sum() for k in range(2)]
    problem = cp.Problem(cp.Minimize(cp.maximum(*losses)), [cp.sum(a) <= 100])
    problem.solve(solver=cp.CLARABEL)
    assert found == pytest.approx(problem.value, rel=1e-6)
    assert gap < 1e-6
    even = multiboost._uniform(scores, parts)
    scan = [
        multiboost.of_domains(np.exp(-c * train_even), parts.domain[0], 2).max()
        for train_even in [parts.y[0] * scores[0].mean(axis=1)]
        for c in np.linspace(0, 20, 2001)
    ]
    assert multiboost.of_domains(np.exp(-even[0][0]), parts.domain[0], 2).max() == pytest.approx(min(scan), rel=1e-4)
    assert weighted or found <= min(scan) + 1e-9


def test_intervals():
    """0, ..., 9: s = sqrt(55/6), t_9 = 2.262157, and 1/10 + 0.3/0.5 for divisions that share rows."""
    found = multiboost_claims.estimate(np.arange(10.0))
    assert found.mean == 4.5
    assert found.half == pytest.approx(2.2621572 * math.sqrt(55 / 6) * math.sqrt(0.7), rel=1e-6)
    assert str(multiboost_claims.estimate(np.array([0.25, 0.25]))) == "0.250 ± 0.000"


def test_tempering():
    Q = np.array([[0.8, 0.2], [1.0, 0.0]])
    np.testing.assert_allclose(multiboost.tempered(Q, 1.0), Q, atol=1e-15)
    np.testing.assert_allclose(multiboost.tempered(Q, 0.5)[0], [2 / 3, 1 / 3])
    np.testing.assert_allclose(multiboost.tempered(Q, 0.0), 0.5)


@pytest.mark.slow
def test_forms_of_q():
    """Shrinkage by hand; few components by a singular value decomposition; what is the same Q is one object."""
    parts = multiboost.divide(sources(), SMALL, 0, 0)
    forms = multiboost.forms_of_q(parts, SMALL._replace(shrinkages=(0.25,), components=(1, 3)))
    Q = parts.Q
    np.testing.assert_allclose(forms[multiboost.SHRUNK][0.25][2], 0.75 * Q[2] + 0.25 / 2, atol=1e-15)
    assert forms[multiboost.MULTI][1.0] is forms[multiboost.SHRUNK][0.0] is forms[multiboost.FEW][math.inf] is Q
    assert forms[multiboost.PLAIN][0.0] is forms[multiboost.SHRUNK][1.0] is forms[multiboost.TEMPERED][0.0]
    np.testing.assert_array_equal(forms[multiboost.PLAIN][0.0][1], 0.5)
    center = parts.X[0].mean(axis=0)
    axes = np.linalg.svd(parts.X[0] - center, full_matrices=False)[2]
    for k in (1, 3):
        seen = [(A - center) @ axes[:k].T for A in parts.X]
        model = fit_q(seen[0], parts.domain[0], l2=parts.l2, calibrate=False)
        np.testing.assert_allclose(forms[multiboost.FEW][float(k)][2], model(seen[2]), atol=1e-7)


# ---------------------------------------------------------------- claims


def study(**changes):
    """Two domains, five divisions, and every claim true; changes by method: (training loss, test loss, test error)."""
    levels = {"AdaBoost-a": ((1.0, 3.0), (1.0, 3.0), (0.1, 0.5)), "AdaBoost-b": ((3.0, 1.0), (3.0, 1.0), (0.5, 0.1))}
    for name, v in ((multiboost.ALL, 0.7), (multiboost.UNIFORM, 0.8), (multiboost.OPTIMAL, 0.75)):
        levels[name] = ((v, v), (v, v), (v / 2, v / 2))
    for name, v in ((multiboost.LONG, 0.6), (multiboost.BY_Q, 0.58), (multiboost.TREES, 0.55)):
        levels[name] = ((v, v), (v + 0.1, v + 0.1), (v / 2, v / 2))
    several = ("MULTI", "PLAIN", "TEMPERED", "SHRUNK", "FEW", "CROSSED", "FED", "MULTI_TREES")
    for name in (getattr(multiboost, key) for key in several):
        levels[name] = ((0.5, 0.4), (0.6, 0.5), (0.2, 0.1))
    levels |= {getattr(multiboost, key): value for key, value in changes.items() if key.isupper()}
    outcomes = []
    for split, (name, (train, loss, error)) in itertools.product(range(5), levels.items()):
        shift = 0.01 * split
        chosen = tuple(
            multiboost.Choice(0.5, 3, 1.0, 1.0, np.array(v) + shift) for v in (loss, np.array(loss) - 0.05, error)
        )
        last = np.array([train, loss, error]) + shift
        outcomes.append(
            multiboost.BoostedSplit(name, split, chosen, last, np.repeat(last.max(axis=1)[:, None], 4, axis=1))
        )
    certificate = multiboost.DictionaryOptimum(9, 9, 0.3, 0.3 - 1e-9, 0.305, 10, 0.31, 10, 1e-9)
    certificate = certificate._replace(**changes.get("certificate", {}))
    return multiboost.BoostStudy(("a", "b"), tuple(outcomes), ((0.9, 0.8),) * 5, (0.1,) * 5, certificate)


def failing(**changes):
    return [c.text for c in multiboost_claims.judge(study(**changes)) if not c.holds]


def test_claims_can_fail():
    assert failing() == []

    def high(i):
        return tuple((0.72, 0.4) if i == j else v for j, v in enumerate(((0.5, 0.4), (0.6, 0.5), (0.2, 0.1))))

    assert failing(MULTI=high(0)) == [
        "MultiBoost: the worst domain's training loss is below that of each of the paper's baselines"
    ]
    assert failing(PLAIN=high(1)) == [
        "MultiBoost, Q = 1/p: the worst domain's test loss is below that of every baseline",
        "MultiBoost, Q = 1/p: the worst domain's test loss with a factor is below that of every baseline",
    ]
    assert failing(MULTI=high(2)) == ["MultiBoost: the worst domain's test error is below that of every baseline"]
    assert failing(OPTIMAL=((0.9, 0.9), (0.9, 0.9), (0.15, 0.05)))[0].endswith(
        "test error is below that of every baseline"
    )
    near = ((0.5, 0.4), (0.6, 0.5), (0.219, 0.1))
    assert failing(FED=near) == []
    assert failing(FED=((0.5, 0.4), (0.6, 0.5), (0.221, 0.1)))[0].startswith("FedMultiBoost is near MultiBoost")
    assert failing(certificate={"multi": 0.3 + math.log(2) / 50 + 1e-6})[0].startswith("On a fixed dictionary")
    assert failing(certificate={"own_gap": 2e-3})[0].startswith("The optimal combinations are optimal")


def test_trees_and_equal_budgets_are_compared():
    high = ((0.5, 0.4), (0.6, 0.5), (0.28, 0.1))
    assert failing(MULTI_TREES=high)[0].startswith("Trees of depth two")
    for baseline in ("LONG", "BY_Q"):  # AdaBoost-all with p T rounds, own boosts weighted by Q
        better = ((0.6, 0.6), (0.7, 0.7), (0.15, 0.15))
        assert failing(**{baseline: better}) == [
            f"{m}: the worst domain's test error is below that of every baseline"
            for m in ("MultiBoost", multiboost.PLAIN)
        ]


def test_gaps_are_compared_at_equal_training_loss():
    """Training loss .6 is what all reach: after 2 rounds and after 1; last rounds would say .15 and .8."""
    curves = dict.fromkeys(multiboost_claims.ALIKE, np.array([[1, 0.9, 0.7, 0.6], [1, 0.95, 0.8, 0.7], [1, 1, 1, 1]]))
    curves[multiboost.LONG] = np.array([[1, 0.8, 0.59, 0.4], [1, 0.85, 0.69, 0.55], [1, 1, 1, 1]])

    def with_test_loss(v):
        many = np.array([[1, 0.6, 0.3, 0.1], [1, v, 0.6, 0.9], [1, 1, 1, 1]])
        found = study()
        each = (o._replace(curves=(curves | {multiboost.MULTI: many}).get(o.method, o.curves)) for o in found.outcomes)
        return found._replace(outcomes=tuple(each))

    rows = [r for r in multiboost_claims.at_equal_loss(with_test_loss(0.7)) if r["division"] == 2]
    assert {r["method"]: r["rounds"] for r in rows} == dict(zip(multiboost_claims.ALIKE, (2, 3, 1, 3), strict=True))
    np.testing.assert_allclose([r["gap"] for r in rows], 0.1)
    assert {r["level"] for r in rows} == {0.6}
    assert multiboost_claims._alike(with_test_loss(0.719)).holds
    assert not multiboost_claims._alike(with_test_loss(0.721)).holds


def test_claims_fail_only_beyond_noise():
    """A mean difference of .01 with a standard error of .01 or more is left open, of .1 not."""
    noise = np.array([0.02, -0.02, 0.01, -0.01, 0.0])
    for mean, verdict in ((-0.1, True), (-0.01, None), (0.01, None), (0.1, False)):
        found = multiboost_claims.estimate(noise + mean)
        assert found.half > 0.02 and found.below() is verdict, found


def test_a_boost_that_is_good_elsewhere_is_noticed():
    outcomes = [
        o._replace(chosen=(*o.chosen[:2], o.chosen[2]._replace(test=np.array([0.45, 0.05]))))
        if o.method == "AdaBoost-a"
        else o
        for o in study().outcomes
    ]
    claims = list(multiboost_claims.judge(study()._replace(outcomes=tuple(outcomes))))
    assert [c.text for c in claims if not c.holds] == [claims[0].text]
    assert "b 0.120, of others 0.050" in claims[0].numbers


def test_paired_differences_are_paired():
    """All methods move together over the divisions: the difference is known exactly, the means are not."""
    found = multiboost_claims._below(study(), multiboost.MULTI, "test loss").numbers
    assert "AdaBoost-all 0.720, -0.100 ± 0.000" in found
    assert found.startswith("0.620 ± 0.039")  # 2.776 * 0.01 sqrt(2.5) * sqrt(1/5 + 0.6)
    assert "AdaBoost-a 3.020" in found


# ---------------------------------------------------------------- the whole


@pytest.fixture(scope="module")
def quick(compiled_kernels):
    said = []
    return EXPERIMENTS["multiboost"].run(quick=True, progress=lambda share, doing: said.append(share)), said


@pytest.mark.slow
def test_quick_version(quick, tmp_path):
    findings, said = quick
    assert said == sorted(said)
    assert said[-1] == 1.0
    assert {f.name for f in write(findings, tmp_path)} >= {
        "errors.svg",
        "domain_weights.png",
        "rounds.svg",
        "table.csv",
    }
    methods = [row["method"] for row in findings.tables["table"]]
    assert methods[:8] == [
        *(f"AdaBoost-{k}" for k in ("plain", "inverted", "turned")),
        "AdaBoost-all",
        "AdaBoost-all, p T rounds",
        "AdaBoost-all, trees",
        "uniform combination",
        "optimal combination",
    ]
    assert len(methods) == 18
    here = {c.text: c.here for c in findings.claims}
    assert len(here) == 14 and {c.holds for c in findings.claims} == {None}
    assert (
        here["MultiBoost: the worst domain's test loss is below that of every baseline"] is None
    )  # six wide intervals
    assert here["The optimal combinations are optimal: certified gaps of at most 1e-3"]
    assert "20 rounds, which say little about 200" in findings.notes[-1]


@pytest.mark.slow
def test_tables_agree(quick):
    tables = quick[0].tables
    means = {(r["method"], r["quantity"], r["domain"]): r["mean"] for r in tables["domains"]}
    for row in tables["domain_weights"]:
        ends = [means[row["method"], row["quantity"], row[k]] for k in ("first", "second")]
        assert row["mean"] == pytest.approx((1 - row["lambda"]) * ends[0] + row["lambda"] * ends[1])
    names = ("plain", "inverted", "turned")
    for method in {r["method"] for r in tables["splits"]}:
        mine = [r for r in tables["splits"] if r["method"] == method and r["quantity"] == "test error"]
        assert means[method, "test error", "worst"] == pytest.approx(np.mean([max(r[k] for k in names) for r in mine]))
        assert means[method, "test error", "turned"] == pytest.approx(np.mean([r["turned"] for r in mine]))
        assert {r["division"] for r in mine} == {0, 1, 2}
    for row in tables["differences"]:
        a, b = (means[row[k], row["quantity"], "worst"] for k in ("method", "minus"))
        assert row["mean"] == pytest.approx(a - b)
    first = [r for r in tables["rounds"] if r["round"] == 0]
    stepwise = [r for r in first if "combination" not in r["method"] and "by Q" not in r["method"]]
    assert len(stepwise) == 15
    for row in stepwise:  # f = 0
        assert (row["training loss"], row["test error"]) == pytest.approx((1.0, 1.0))


@pytest.mark.slow
def test_training_losses_are_those_of_the_problems(quick):
    """AdaBoost-all and MultiBoost of the first division again, by the library's own objective."""
    rows = shifted_digits(0)
    parts = multiboost.divide(rows, multiboost.QUICK, 0, 0)
    fed = Federation.from_arrays(parts.X[0], parts.y[0], parts.client, parts.domain[0])
    from fedconvex import run
    from fedconvex.methods import MultiBoost

    result = run(MultiBoost(smoothing=50.0), StumpProblem(fed, parts.Q[0], bins=16), rounds=20, tol=0.0)
    curve = [r for r in quick[0].tables["rounds"] if r["method"] == "MultiBoost"]
    again = multiboost.boost_study(rows, multiboost.QUICK._replace(splits=1), 0, lambda share, doing: None)
    mine = next(o for o in again.outcomes if o.method == "MultiBoost")
    np.testing.assert_allclose(mine.curves[0], result.trace.value, rtol=1e-10)
    assert curve[-1]["round"] == 20
    by_problem = EnsembleProblem(fed, fixed(parts, result), parts.Q[0])
    assert by_problem.value(stage_weights(result)) == pytest.approx(mine.curves[0, -1], rel=1e-10)


def fixed(parts, result):
    from fedconvex.problems import Dictionary

    stages = result.state.history[0]
    H = np.column_stack([Stump(int(j), c, a, b).predict(parts.X[0]) for _, j, c, a, b, _ in stages])
    return Dictionary(H, stages[:, 0].astype(int))


def stage_weights(result):
    return np.abs(result.state.history[0][:, 5])
