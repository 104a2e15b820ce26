"""Digits in different guises: rows, trees of depth two, budgets, and claims that can fail."""

import itertools

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from fedconvex import Federation, run
from fedconvex.families.boosting.experiments import inverted_digits as guises
from fedconvex.families.boosting.experiments.data import Sources
from fedconvex.families.boosting.experiments.runs import ALL, MULTI, PLAIN, QUICK, divide
from fedconvex.families.boosting.experiments.trees import TreeProblem, boosted, staged, tree_of
from fedconvex.methods import MultiBoost
from fedconvex.papers import EXPERIMENTS, write
from fedconvex.papers.repeated import Repeated
from fedconvex.problems import QEnsemble, Stump

OWN = guises.OWN

# ---------------------------------------------------------------- rows


def images(n=120, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 9, (n, 3, 3)) / 8.0, np.where(rng.random(n) < 0.5, 1.0, -1.0)


@pytest.mark.slow
def test_all_guises_of_an_image_stay_on_one_side():
    X, y = images()
    rows = guises.in_guises(X, y, np.random.default_rng(1))
    plain = X.reshape(-1, 9)
    np.testing.assert_array_equal(rows.X[:120], plain)
    np.testing.assert_array_equal(rows.X[120:240], 1.0 - plain)
    noisy = rows.X[240:]
    assert (noisy >= plain).all() and set((noisy[noisy > plain] * 8).tolist()) == {1.0, 2.0, 3.0, 4.0}
    assert (noisy[plain == 0.0] * 8).mean() == pytest.approx(2.0, abs=5 * np.sqrt(2.0 / (plain == 0.0).sum()))
    parts = divide(rows, QUICK, 0, 0)
    sides = [{tuple(r) for r in A[d == 0].tolist()} for A, d in zip(parts.X, parts.domain, strict=True)]
    mirrored = [{tuple(r) for r in (1.0 - A[d == 1]).tolist()} for A, d in zip(parts.X, parts.domain, strict=True)]
    assert sides == mirrored
    assert not any(a & b for a, b in itertools.combinations(sides, 2))
    assert [len(v) for v in parts.y] == [180, 72, 108]


def archive(path, shape=(28, 28), n=80, seed=0):
    rng = np.random.default_rng(seed)
    X, y = rng.integers(0, 256, (2 * n, *shape)).astype(np.uint8), np.arange(2 * n) % 10
    np.savez(path, x_train=X[:n], y_train=y[:n], x_test=X[n:], y_test=y[n:])
    return X, y


def test_archives_become_eight_by_eight(tmp_path):
    X, y = archive(tmp_path / "mnist.npz")
    archive(tmp_path / "fashion_mnist.npz", seed=1)
    small, label = guises.small_images(tmp_path / "mnist.npz")
    wide = np.zeros((32, 32))
    wide[2:30, 2:30] = X[5]
    by_hand = [
        [np.floor(8 * wide[4 * i : 4 * i + 4, 4 * j : 4 * j + 4].mean() / 255) / 8 for j in range(8)] for i in range(8)
    ]
    np.testing.assert_allclose(small[5], by_hand)
    np.testing.assert_array_equal(label, y)
    tasks = guises.read_tasks(tmp_path, guises.SMALL._replace(images=20), 0)
    assert list(tasks) == [*guises.TASKS, guises.CLOTHES]
    assert [rows.p for rows in tasks.values()] == [3, 3, 3, 2]
    assert [len(rows.y) for rows in tasks.values()] == [60, 60, 60, 40]
    assert list(guises.read_tasks(tmp_path / "mnist.npz", guises.SMALL, 0)) == list(guises.TASKS)
    only = {tuple(r) for r in small[np.isin(label, (1, 7))].reshape(-1, 64).tolist()}
    assert {tuple(r) for r in tasks["1 against 7"].X[:20].tolist()} <= only
    archive(tmp_path / "other.npz", (6, 6))
    with pytest.raises(ValueError, match=r"28 x 28 pixels; got \(6, 6\)"):
        guises.read_tasks(tmp_path / "other.npz", guises.SMALL, 0)
    (tmp_path / "fashion_mnist.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"fashion_mnist\.npz"):
        guises.read_tasks(tmp_path, guises.SMALL, 0)


# ---------------------------------------------------------------- trees of depth two


@pytest.mark.slow
def test_boosted_trees_are_those_of_scikit_learn():
    """Steps and predictions of AdaBoost over trees of depth two, round by round."""
    from sklearn.ensemble import AdaBoostClassifier
    from sklearn.tree import DecisionTreeClassifier

    rng = np.random.default_rng(3)
    X = rng.integers(0, 6, (150, 4)) / 8.0
    y = np.where((X[:, 0] > 0.3) ^ (X[:, 1] > 0.3) ^ (rng.random(150) < 0.2), 1.0, -1.0)
    problem = TreeProblem(Federation.from_arrays(X, y, np.zeros(150, int)), bins=16)
    result = run(MultiBoost(), problem, rounds=8, tol=0.0, progress=False)
    tree = DecisionTreeClassifier(max_depth=2, random_state=0)
    theirs = AdaBoostClassifier(tree, n_estimators=8, random_state=0).fit(X, y)
    np.testing.assert_allclose(2.0 * result.state.history[0, :, 5], theirs.estimator_weights_, rtol=1e-9)
    f = problem.ensemble(result.state)
    np.testing.assert_allclose(2.0 * f.decision_function(X) / f.alpha.sum(), theirs.decision_function(X), atol=1e-12)
    np.testing.assert_allclose(result.state.margins[0], y * f.decision_function(X), atol=1e-12)


def test_trees_know_their_sources(tmp_path):
    """Classes are opposite in two sources: the trees of Q find both, their margins are the state's, files keep them."""
    X, y = images(60)
    rows = np.vstack([X.reshape(60, 9)] * 2)
    labels, domain = np.concatenate([y, -y]), np.repeat([0, 1], 60)
    fed = Federation.from_arrays(rows, labels, domain, domain)
    problem = TreeProblem(fed, np.eye(2)[domain], bins=16)
    result = run(MultiBoost(smoothing=50.0), problem, rounds=6, tol=0.0, progress=False)
    assert set(result.state.history[0, :, 0]) == {0.0, 1.0}
    f = problem.ensemble(result.state)
    np.testing.assert_allclose(
        result.state.margins[0], labels * f.decision_function(rows, np.eye(2)[domain]), atol=1e-12
    )
    assert result.trace.value[-1] < 0.9
    assert result.trace.gap[-1] == pytest.approx(result.trace.value[-1], rel=1e-10)  # nothing is certified but F > 0
    f.save(tmp_path / "f.npz")
    again = QEnsemble.load(tmp_path / "f.npz")
    np.testing.assert_array_equal(
        again.decision_function(rows, np.eye(2)[domain]), f.decision_function(rows, np.eye(2)[domain])
    )
    with pytest.raises(ValueError, match="smoothing where there are several domains"):
        run(MultiBoost(), TreeProblem(fed, bins=16), rounds=1, progress=False)


def test_trees_of_constants():
    one, ask = Stump(0, np.inf, 1.0, 1.0), Stump(1, 0.5, -1.0, 1.0)
    X = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    assert tree_of(one, ask, one).predict(X).tolist() == [-1.0, 1.0, -1.0, 1.0]
    assert tree_of(one, one, ask).predict(X).tolist() == [1.0] * 4
    assert tree_of(Stump(0, 0.5, 1.0, 1.0), one, ask).predict(X).tolist() == [1.0, 1.0, -1.0, 1.0]


def test_stages_go_on_where_a_run_stalls():
    f = QEnsemble([Stump(0, np.inf, 1.0, 1.0)] * 2, [0, 0], [0.5, 0.25], None, 1)
    np.testing.assert_allclose(staged(f, 4, np.zeros((1, 1)), None)[:, 0], [0.0, 0.5, 0.75, 0.75, 0.75])
    fed = Federation.from_arrays([[0.0], [0.0]], [1.0, -1.0], [0, 0])
    assert not staged(boosted(TreeProblem(fed), 3, 50.0), 3, np.zeros((1, 1)), None).any()


# ---------------------------------------------------------------- budgets, choices, descent


@pytest.mark.slow
def test_budgets_count_base_classifiers(monkeypatch):
    """Three sources, T = 6: own boosts have 2 rounds of the short budget and 6 of the long one, others 6 and 18."""
    X, y = images()
    rows = guises.in_guises(X, y, np.random.default_rng(0))

    def planted(depth, parts, rounds):  # every round is better than the one before, on rows to choose on and to test on
        rng = np.random.default_rng(0)
        for name, a_round in ((ALL, 1), (OWN, 3)):
            each = [
                rng.permutation(np.linspace(-1.0, 1.0, len(v))) + 0.1 * np.arange(18 // a_round + 1)[:, None]
                for v in parts.y
            ]
            yield name, each, a_round

    monkeypatch.setattr(guises, "every_boost", planted)
    found = list(guises.trials(rows, guises.SMALL._replace(rounds=6), 0, 0))
    taken = {(r["method"], r["budget"]): r["rounds"] for r in found if r["depth"] == 1}
    most = {k: min(v, 10) for k, v in {(ALL, "T"): 6, (ALL, "p T"): 18, (OWN, "T"): 2, (OWN, "p T"): 6}.items()}
    assert {k: min(v, 10) for k, v in taken.items()} == most
    assert all(r["mean error"] <= r["worst error"] for r in found)


@pytest.mark.slow
def test_every_boost_has_its_rounds_and_margins():
    X, y = images(60)
    parts = divide(guises.in_guises(X, y, np.random.default_rng(0)), QUICK, 0, 0)
    for depth in (1, 2):
        found = {name: (m, a) for name, m, a in guises.every_boost(depth, parts, 2)}
        assert list(found) == list(guises.METHODS)
        assert [m[0].shape for m, _ in found.values()] == [(7, 90), (3, 90), (7, 90), (7, 90)]
        own = found[OWN][0][2]
        by_hand = np.zeros(own.shape[1])
        for k in range(3):
            mine = parts.domain[0] == k
            fed = Federation.from_arrays(parts.X[0][mine], parts.y[0][mine], parts.domain[0][mine])
            f = boosted(guises._problem(depth, fed), 2, 50.0)
            by_hand += parts.y[2] * parts.Q[2][:, k] * f.decision_function(parts.X[2])
        np.testing.assert_allclose(own[-1], by_hand, atol=1e-12)
        assert guises.rise(found[MULTI][0][0], parts.domain[0], 3) <= 1e-12
        assert not np.allclose(found[MULTI][0][1], found[PLAIN][0][1])


def test_a_round_that_raises_the_maximum_is_noticed():
    """Two domains of one row: losses (1, 1), (e^-1, 1), (e^-1, e^.001)."""
    margins = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, -0.001]])
    assert guises.rise(margins[:2], np.array([0, 1]), 2) < 0.0
    assert guises.rise(margins, np.array([0, 1]), 2) == pytest.approx(0.001, rel=1e-2)


# ---------------------------------------------------------------- claims


def study(rise=0.0, mean=None, **errors):
    """Rows of four divisions and two tasks; errors by method and depth, such as AL1, for the two budgets."""
    usual = {"AL1": (0.3, 0.25), "OW1": (0.2, 0.15), "PL1": (0.3, 0.25), "MU1": (0.2, 0.15)}
    usual |= {"AL2": (0.2, 0.1), "OW2": (0.1, 0.05), "PL2": (0.2, 0.1), "MU2": (0.1, 0.05)} | errors
    names = dict(zip(("AL", "OW", "PL", "MU"), guises.METHODS, strict=True))
    means, rows = dict.fromkeys(usual, 0.02) | {"OW1": 0.0, "OW2": 0.0} | (mean or {}), []
    for split, task, (key, values) in itertools.product(range(4), ("a", "b"), usual.items()):
        for budget, v in zip(("T", "p T"), values, strict=True):
            v = v + 0.001 * split + (0.1 if task == "b" else 0.0) + 1e-4 * (split == len(rows) % 3)
            row = {"task": task, "repetition": split, "depth": int(key[2]), "budget": budget, "method": names[key[:2]]}
            rows.append(
                row | {"worst error": v, "mean error": v / 2 + means[key], "rise": rise, "Q right": 1.0, "rounds": 3}
            )
    return Repeated(tuple(rows), guises.OVERLAP)


def verdicts(**changes):
    return [claim.holds for claim in guises.claims(study(**changes))]


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({"MU1": (0.33, 0.15)}, 0),
        ({"AL1": (0.3, 0.1)}, 1),
        ({"AL2": (0.05, 0.1)}, 2),
        ({"AL2": (0.2, 0.02)}, 3),
        ({"AL1": (0.3, 0.18)}, 4),
        ({"AL2": (0.2, 0.2), "MU2": (0.1, 0.08)}, 5),
        ({"OW1": (0.2, 0.18)}, 6),
        ({"OW2": (0.1, 0.02)}, 8),
        ({"mean": {"OW1": 0.08}}, 7),
        ({"mean": {"OW2": 0.08}}, 9),
        ({"rise": 1e-8}, 10),
    ],
)
def test_claims_can_fail(changes, claim):
    assert verdicts() == [True] * 11
    found = verdicts(**changes)
    assert found[claim] is not None and not found[claim]


def test_claims_within_noise_stay_open():
    found = study()
    rng = np.random.default_rng(0)
    noisy = Repeated(
        tuple(r | {"worst error": r["worst error"] + rng.normal(0, 0.3)} for r in found.rows), guises.OVERLAP
    )
    assert [c.holds for c in guises.claims(noisy)][2:4] == [None, None]
    low = verdicts(OW1=(0.2, 0.13001))  # at the margin
    assert low[6] is None


@pytest.mark.slow
def test_quick_version(compiled_kernels, tmp_path):
    said = []
    findings = EXPERIMENTS["boosting-guises"].run(quick=True, progress=lambda share, doing: said.append(share))
    assert said == sorted(said) and said[-1] == 1.0
    assert {f.name for f in write(findings, tmp_path)} >= {"guises.svg", "images.png", "table.csv", "divisions.csv"}
    here = {c.text: c.here or c.holds for c in findings.claims}
    assert len(here) == 11 and sum(c.holds is not None for c in findings.claims) == 1
    assert here["Stumps, p T of them: MultiBoost's worst-domain error is below AdaBoost-all's"]
    assert here["MultiBoost of T stumps errs less on the worst domain than AdaBoost-all of p T stumps"]
    assert here["No round of MultiBoost raises the smoothed maximum of the training losses"]
    assert len(findings.tables["table"]) == 4 * 2 * 2 * 4
    for row in findings.tables["divisions"]:
        p = 3
        most = {"T": 20, "p T": 20 * p}[row["budget"]] // (p if row["method"] == OWN else 1)
        assert 0 < row["rounds"] <= most
    assert isinstance(guises.read_tasks(None, guises.SMALL, 0)[guises.TURNED], Sources)
