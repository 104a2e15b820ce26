"""Q by maximum entropy against scipy and closed forms; ensembles: predictions, stages, margins, files."""

import numpy as np
import pytest
import scipy.optimize
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from fedconvex import Federation, run
from fedconvex.methods import MultiBoost
from fedconvex.problems import (
    Dictionary,
    EnsembleProblem,
    MaximumEntropyQ,
    QEnsemble,
    Stump,
    StumpProblem,
    Tree,
    as_q,
    calibration_error,
    fit_q,
)


def points(rng, n=300, p=3, d=4):
    domain = np.arange(n) % p
    X = rng.normal(size=(n, d)) + np.eye(p, d)[domain] * 2.0
    return X, domain


# ---------------------------------------------------------------- Q


def test_q_minimises_the_paper_objective(rng):
    """-(1/m) sum log Q(k_i|x_i) + mu ‖v‖^2 with mu = l2/2, over standardised features and a one."""
    X, domain = points(rng, 60)
    q = fit_q(X, domain, l2=0.02, calibrate=False)
    psi = np.hstack([(X - X.mean(0)) / X.std(0), np.ones((60, 1))])

    def objective(v):
        Z = psi @ v.reshape(3, -1).T
        return np.mean(np.logaddexp.reduce(Z, axis=1) - Z[np.arange(60), domain]) + 0.01 * v @ v

    best = scipy.optimize.minimize(objective, np.zeros(q.v.size), method="BFGS", options={"gtol": 1e-9})
    assert objective(q.v.ravel()) <= best.fun + 1e-12
    np.testing.assert_allclose(q.v.ravel(), best.x, atol=1e-6)
    E = np.exp(psi @ q.v.T)
    np.testing.assert_allclose(q(X), E / E.sum(1, keepdims=True), rtol=1e-12)


def test_q_is_that_of_scikit_learn(rng):
    X, domain = points(rng, 200)
    Z = (X - X.mean(0)) / X.std(0)
    psi = np.hstack([Z, np.ones((200, 1))])
    peer = LogisticRegression(C=1.0 / (200 * 0.05), fit_intercept=False, tol=1e-12, max_iter=10_000).fit(psi, domain)
    np.testing.assert_allclose(fit_q(X, domain, l2=0.05, calibrate=False)(X), peer.predict_proba(psi), atol=1e-6)


@pytest.mark.slow
def test_cross_validation_chooses_the_least_held_out_loss(rng):
    X, domain = points(rng, 150)
    q = fit_q(X, domain, seed=1)
    assert q.l2 == min(q.scores, key=q.scores.get)
    assert len(q.scores) == 7
    again = fit_q(X, domain, seed=1)
    np.testing.assert_array_equal(q.v, again.v)
    noise = fit_q(rng.normal(size=(40, 20)), np.arange(40) % 2, seed=1)
    assert noise.l2 >= 0.1  # nothing to learn: the strongest penalties win


@pytest.mark.slow
def test_temperature_improves_held_out_probabilities(rng):
    """An overfitted Q is too sure of itself; one temperature repairs most of it."""
    X, domain = points(rng, 120, p=2, d=30)
    fresh, truth = points(rng, 3000, p=2, d=30)

    def loss(q):
        return -np.log(q(fresh)[np.arange(3000), truth]).mean()

    raw, warm = fit_q(X, domain, l2=1e-4, calibrate=False), fit_q(X, domain, l2=1e-4)
    assert warm.temperature > 1.5
    assert loss(warm) < loss(raw)
    assert calibration_error(warm(fresh), truth) < calibration_error(raw(fresh), truth)
    np.testing.assert_array_equal(warm.v, raw.v)


@pytest.mark.slow
def test_feature_maps(rng):
    """A ring around a disc needs squares."""
    r = np.repeat([0.5, 2.0], 200)
    angle = rng.uniform(0, 2 * np.pi, 400)
    X = np.column_stack([r * np.cos(angle), r * np.sin(angle)])
    domain = np.repeat([0, 1], 200)

    def hit(q):
        return q(X)[np.arange(400), domain].mean()

    assert hit(fit_q(X, domain, l2=1e-4, calibrate=False)) < 0.6
    assert hit(fit_q(X, domain, l2=1e-4, calibrate=False, features="squares")) > 0.95
    own = fit_q(X, domain, l2=1e-4, calibrate=False, features=lambda A: np.sum(A * A, axis=1, keepdims=True))
    assert hit(own) > 0.95
    np.testing.assert_allclose(own(X).sum(axis=1), 1.0, rtol=1e-14)


def test_calibration_error_by_hand():
    Q = np.array([[0.85, 0.15], [0.85, 0.15], [0.85, 0.15], [0.85, 0.15]])
    assert calibration_error(Q, [0, 0, 0, 1]) == pytest.approx(0.1)


def test_q_input_is_checked(rng):
    X, domain = points(rng, 30)
    with pytest.raises(ValueError, match="finite"):
        fit_q(np.where(X > 1, np.nan, X), domain)
    with pytest.raises(ValueError, match="none in domain 1"):
        fit_q(X, np.where(domain == 1, 0, domain))
    with pytest.raises(ValueError, match="features"):
        fit_q(X, domain, features="cubes")
    with pytest.raises(ValueError, match="columns"):
        fit_q(X, domain, l2=0.1)(X[:, :2])
    np.testing.assert_array_equal(fit_q(X, np.zeros(30, int))(X), 1.0)
    for wrong, text in [
        (np.full((30, 3), 0.3), "distributions"),
        (np.tile([1.5, -0.5, 0.0], (30, 1)), "distributions"),
        (np.full((30, 2), 0.5), "one column per source"),
        (np.full((30, 3), np.nan), "finite"),
        (lambda A: np.ones((len(A), 3)), "distributions"),
    ]:
        with pytest.raises(ValueError, match=text):
            as_q("Q", wrong, X, 3)
    np.testing.assert_array_equal(as_q("Q", None, X, 4), 0.25)


# ---------------------------------------------------------------- ensembles


def problem(rng, p=3, n=240):
    X, domain = points(rng, n, p)
    y = np.where(X[:, 1] * (domain - 1) + X[:, 0] + rng.normal(size=n) > 0, 1.0, -1.0)
    return Federation.from_arrays(X, y, domain, np.array(["a", "b", "c"])[domain])


@pytest.mark.slow
def test_predictions_are_the_definition(rng):
    fed = problem(rng)
    q = fit_q(fed.X, fed.domain, l2=0.01)
    task = StumpProblem(fed, q)
    state = run(MultiBoost(smoothing=50.0), task, rounds=15, tol=0).state
    f = task.ensemble(state)
    assert len(f) == 15
    X = rng.normal(size=(50, 4))
    expected = sum(a * q(X)[:, s] * h.predict(X) for a, s, h in zip(f.alpha, f.sources, f.members, strict=True))
    np.testing.assert_allclose(f.decision_function(X), expected, rtol=1e-12, atol=1e-14)
    stages = list(f.staged_decision_function(X))
    assert len(stages) == 15
    np.testing.assert_array_equal(stages[-1], f.decision_function(X))
    np.testing.assert_allclose(stages[0], f.alpha[0] * q(X)[:, f.sources[0]] * f.members[0].predict(X))
    order = task.by_row
    np.testing.assert_allclose(fed.y[order] * f.decision_function(fed.X)[order], state.margins[0], atol=1e-12)
    assert np.abs(f.margins(fed.X, fed.y)).max() <= 1.0
    names = fed.domain_labels[fed.domain]
    errors = f.errors(fed.X, fed.y, names)
    assert list(errors) == ["a", "b", "c"]
    np.testing.assert_allclose(list(errors.values()), task.errors_of(state.margins[0]), atol=1e-12)


def test_a_plain_ensemble_is_constant_q(rng):
    h = [Stump(0, 0.0, -1.0, 1.0), Stump(1, 0.5, 1.0, -1.0)]
    X = rng.normal(size=(20, 2))
    plain, q = QEnsemble(h, [0, 1], [1.0, 2.0], None, 2), QEnsemble(h, [0, 1], [1.0, 2.0], False, 2)
    expected = 0.5 * (h[0].predict(X) + 2.0 * h[1].predict(X))
    np.testing.assert_allclose(plain.decision_function(X), expected)
    np.testing.assert_allclose(q.decision_function(X, np.full((20, 2), 0.5)), expected)
    with pytest.raises(ValueError, match="pass q="):
        q.predict(X)
    assert plain.weight == 3.0
    assert QEnsemble([h[0], h[0]], [0, 0], [1.0, -0.5]).weight == 0.5


def test_trees_are_copied_exactly(rng):
    fed = problem(rng)
    h = Dictionary.trees(fed, depth=3, rounds=4)
    assert np.bincount(h.sources).tolist() == [4, 4, 4]
    peer = DecisionTreeClassifier(max_depth=3, random_state=0)
    for k in range(3):
        mine = fed.domain == k
        peer.fit(fed.X[mine], fed.y[mine])
        np.testing.assert_array_equal(h.members[4 * k].predict(fed.X), peer.predict(fed.X))
    perfect = Federation.from_arrays([[0.0], [1.0]], [-1.0, 1.0], [0, 0])
    assert len(Dictionary.trees(perfect).members) == 1  # no error: AdaBoost has nothing to reweight


@pytest.mark.slow
def test_any_fitted_classifier(rng):
    fed = problem(rng)
    fitted = [[LogisticRegression().fit(fed.X[fed.domain == k], fed.y[fed.domain == k])] for k in range(3)]
    task = EnsembleProblem(fed, Dictionary.from_classifiers(fed, fitted), fit_q(fed.X, fed.domain, l2=0.01))
    result = run(MultiBoost(smoothing=100.0), task, rounds=50, tol=0)
    f = task.ensemble(result.state)
    np.testing.assert_allclose(task.ensemble(result.w).decision_function(fed.X), f.decision_function(fed.X), atol=1e-10)
    with pytest.raises(TypeError, match="stumps or trees"):
        f.save("nowhere.npz")
    with pytest.raises(TypeError, match="predict"):
        Dictionary.from_classifiers(fed, [[object()]])
    with pytest.raises(ValueError, match="members"):
        EnsembleProblem(fed, Dictionary(np.ones((fed.n, 1)), [0])).ensemble(np.ones(1))


@pytest.mark.slow
def test_files(rng, tmp_path):
    fed = problem(rng)
    for q in (fit_q(fed.X, fed.domain, l2=0.01, features="squares"), None, rng.dirichlet(np.ones(3), fed.n)):
        for task in (StumpProblem(fed, q), EnsembleProblem(fed, Dictionary.trees(fed, rounds=3), q)):
            f = task.ensemble(run(MultiBoost(smoothing=20.0), task, rounds=8, tol=0).state)
            f.save(tmp_path / "f.npz")
            g = QEnsemble.load(tmp_path / "f.npz")
            given = q if isinstance(q, np.ndarray) else None
            np.testing.assert_array_equal(g.decision_function(fed.X, given), f.decision_function(fed.X, given))
            assert g.names.tolist() == ["a", "b", "c"]
    own = QEnsemble([Stump(0, 0.0, 1.0, -1.0)], [0], [1.0], lambda A: np.ones((len(A), 1)))
    with pytest.raises(TypeError, match="fit_q"):
        own.save(tmp_path / "g.npz")
    (tmp_path / "bad.npz").write_bytes(b"not a zip")
    for name in ("bad.npz", "other.npz"):
        if name == "other.npz":
            np.savez(tmp_path / name, X=np.ones(3))
        with pytest.raises(ValueError, match="be written by QEnsemble"):
            QEnsemble.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        QEnsemble.load(tmp_path / "missing.npz")


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("left", lambda a: np.where(a >= 0, 0, a)),  # a circle: prediction would never end
        ("right", lambda a: a + 10**9),
        ("feature", lambda a: np.minimum(a, -1)),
        ("feature", lambda a: a.astype(str)),
        ("value", lambda a: a.astype(complex)),
        ("value", lambda a: a * np.nan),
        ("threshold", lambda a: a[:0]),
    ],
)
def test_trees_of_crafted_files_are_refused(tmp_path, name, make):
    tree = Tree(*(np.array(v) for v in ([0, -2, -2], [0.1, 0.0, 0.0], [1, -1, -1], [2, -1, -1], [0.0, -1.0, 1.0])))
    QEnsemble([tree], [0], [1.0]).save(tmp_path / "f.npz")
    assert QEnsemble.load(tmp_path / "f.npz").predict([[0.0], [1.0]]).tolist() == [-1.0, 1.0]
    with np.load(tmp_path / "f.npz") as stored:
        arrays = dict(stored)
    np.savez(tmp_path / "f.npz", **(arrays | {f"tree0/{name}": make(arrays[f"tree0/{name}"])}))
    with pytest.raises(ValueError, match=r"be written by QEnsemble.save; got .*Tree must"):
        QEnsemble.load(tmp_path / "f.npz")


def test_bad_ensembles():
    h = [Stump(0, 0.0, 1.0, -1.0)]
    for args, text in [
        ((h, [0, 1], [1.0]), "one alpha and one source"),
        ((h, [1], [1.0]), "lie in 0"),
        ((h, [0.5], [1.0]), "whole numbers"),
        ((h, [0], [np.nan]), "finite"),
    ]:
        with pytest.raises(ValueError, match=text):
            QEnsemble(*args)
    with pytest.raises(TypeError, match="function of X"):
        QEnsemble(h, [0], [1.0], np.ones((2, 1)))
    with pytest.raises(ValueError, match="finite"):
        QEnsemble(h, [0], [1.0]).predict([[np.nan]])
    assert isinstance(fit_q(np.eye(2), [0, 1], l2=1.0, calibrate=False), MaximumEntropyQ)
    assert Tree._fields == ("feature", "threshold", "left", "right", "value")


@pytest.mark.slow
def test_baselines_of_convex_combinations(rng):
    """AdaBoost per source, combined uniformly, optimally and with Q: each objective at most the one before."""
    fed = problem(rng)
    each = []
    for k in range(3):
        mine = fed.domain == k
        alone = StumpProblem(Federation.from_arrays(fed.X[mine], fed.y[mine], np.zeros(mine.sum(), int)))
        each.append(alone.ensemble(run(MultiBoost(), alone, rounds=20, tol=0).state))
    h = Dictionary.from_classifiers(fed, [[f.scores] for f in each])
    np.testing.assert_allclose(h.predictions[:, 1], each[1].decision_function(fed.X) / each[1].weight)
    convex = EnsembleProblem(fed, h)
    best = convex.solve()
    uniform = min(convex.value(np.full(3, c)) for c in np.linspace(0.0, 10.0, 101))  # the best scale of equal weights
    assert best.value <= uniform + 1e-9
    assert best.gap <= 1e-9
    mixed = EnsembleProblem(fed, h, fit_q(fed.X, fed.domain, l2=0.01)).solve()
    assert mixed.value < best.value


def test_fingerprints_tell_problems_apart(rng):
    fed = problem(rng)
    h, q = Dictionary.stumps(fed, cuts=2), rng.dirichlet(np.ones(3), fed.n)
    problems = [
        StumpProblem(fed),
        StumpProblem(fed, q),
        StumpProblem(fed, uncertainty_set=np.ones(3) / 3),
        StumpProblem(fed, criterion="gini"),
        StumpProblem(fed, bins=16),
        StumpProblem(fed, bins=17),
        EnsembleProblem(fed, h),
        EnsembleProblem(fed, h, q),
    ]
    assert len({p.fingerprint for p in problems}) == len(problems)
    assert StumpProblem(fed, q).fingerprint == problems[1].fingerprint
