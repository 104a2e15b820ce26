"""Coordinates that are not penalised: values, methods, exact solutions, and what certifies them."""

from __future__ import annotations

import math

import cvxpy as cp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import SVC

from fedconvex import (
    Exponential,
    FedAvg,
    Federation,
    Hinge,
    Logistic,
    Problem,
    SmoothedHinge,
    Softmax,
    Squared,
    run,
)
from fedconvex.solvers.certificates.free_coordinates import reach_along_free
from tests.test_contract import CONFIGURATIONS, quiet

LOSSES = (Logistic(), Squared(), Softmax(3), Hinge(), SmoothedHinge(0.5), Exponential())


def made(loss, sparse=False, l2=0.1, n=40, seed=0, intercept=True, weights=None):
    """Three clients; the labels lean to one side, so that the intercept matters."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * (rng.random((n, 3)) < 0.7 if sparse else 1.0)
    y = X @ [1.0, -1.0, 0.5] + 1.5 + rng.normal(size=n)
    if isinstance(loss, Softmax):
        y = np.digitize(y, [0.5, 1.0]).astype(float)
    elif not isinstance(loss, Squared):
        y = np.sign(y)
    who = np.sort(rng.integers(0, 3, n))
    fed = Federation.from_arrays(sp.csr_array(X) if sparse else X, y, who, sample_weight=weights).with_intercept()
    return Problem(fed, loss, l2, intercept=intercept)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_only_the_rest_is_penalised(loss, sparse):
    free, full = made(loss, sparse), made(loss, sparse, intercept=False)
    w = np.random.default_rng(1).normal(size=(2, *free.model_shape))
    b = np.zeros_like(w)
    b[..., -1] = w[..., -1]
    less = 0.05 * np.sum(b.reshape(2, -1) ** 2, axis=1)
    np.testing.assert_allclose(free.value(w), full.value(w) - less, rtol=1e-13)
    np.testing.assert_allclose(free.gradient(w), full.gradient(w) - 0.1 * b, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(free.client_values(w), full.client_values(w) - less[:, None], rtol=1e-13)
    np.testing.assert_allclose(free.client_gradients(w), full.client_gradients(w) - 0.1 * b[:, None], atol=1e-13)
    np.testing.assert_allclose(free.domain_values(w), full.domain_values(w) - less[:, None], rtol=1e-13)
    np.testing.assert_allclose(free.domain_gradients(w), full.domain_gradients(w) - 0.1 * b[:, None], atol=1e-13)
    if free.traits.curved:
        minus = 0.1 * np.diag((b[0] != 0).ravel().astype(float))
        np.testing.assert_allclose(free.hessian(w[0]), full.hessian(w[0]) - minus, atol=1e-13)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_solutions_are_certified(loss, sparse):
    problem = made(loss, sparse)
    best = problem.solve()
    assert best.attained and 0.0 <= best.value - best.lower <= 1e-10 * (1.0 + best.value)
    rng = np.random.default_rng(2)
    W = best.w + rng.normal(size=(20, *problem.model_shape)) * 10.0 ** rng.uniform(-8, 1, (20, *[1] * best.w.ndim))
    measured = problem.measure(W)
    assert np.all(measured.value >= best.value - 1e-12) and np.all(measured.gap >= measured.value - best.value - 1e-14)
    if problem.traits.curved:  # another solver does not find a lower value
        found = scipy.optimize.minimize(
            lambda v: problem.value(v.reshape(problem.model_shape)), np.zeros(problem.size), method="BFGS"
        )
        assert found.fun >= best.lower - 1e-13


def test_the_gradient_alone_certifies_nothing_along_a_free_coordinate():
    """At the best v for a wrong b, ‖grad_v F‖^2/(2 l2) is zero and F - F* is not: the reach along b is needed."""
    problem = made(Logistic())
    b = float(problem.solve().w[-1]) + 1.0
    rest = scipy.optimize.minimize(
        lambda v: problem.value(np.append(v, b)), np.zeros(3), jac=lambda v: problem.gradient(np.append(v, b))[:3],
        method="BFGS", options={"gtol": 1e-12},
    ).x  # fmt: skip
    w = np.append(rest, b)
    g, above = problem.gradient(w), problem.value(w) - problem.solve().value
    assert float(g[:3] @ g[:3]) / 0.2 < 1e-3 * above
    from fedconvex.solvers.certificates.gaps import bounded_gap

    assert above <= bounded_gap(problem, w, problem.value(w), g, np.zeros(4)).gap < 20.0 * above


@pytest.mark.parametrize("loss", [Logistic(), Squared(), SmoothedHinge(0.5), Softmax(3)], ids=repr)
def test_models_below_a_level_are_within_reach(loss):
    """Random models, moved along the free coordinates until F is at the level; for classes after a shift."""
    rng, ratio = np.random.default_rng(5), 0.0
    for seed in range(3):
        problem = made(loss, seed=seed, l2=float(rng.choice([1.0, 0.01])))
        best = problem.solve().w
        w = best + 0.3 * rng.normal(size=best.shape)
        F = float(problem.value(w))
        reach = reach_along_free(problem, w.ravel(), F)
        for _ in range(5):
            v, t = rng.normal(size=best.shape) * [0.1, 0.1, 0.1, 1.0], 1.0
            while problem.value(best + t * v) > F:
                t *= 0.7
            while problem.value(best + 1.3 * t * v) <= F:
                t *= 1.3
            b, at = np.atleast_2d(best + t * v)[:, -1], np.atleast_2d(w)[:, -1]
            if problem.traits.several:
                b = b - b.mean() + at.mean()
            ratio = max(ratio, float(np.abs(b - at).max()) / reach)
    assert 0.02 < ratio <= 1.0


def test_labels_of_one_kind_have_no_minimiser():
    X = np.random.default_rng(0).normal(size=(10, 2))
    fed = Federation.from_arrays(X, np.ones(10), [0] * 10).with_intercept()
    for loss in (Logistic(), SmoothedHinge(0.5), Hinge()):
        best = Problem(fed, loss, 0.1, intercept=True).solve()
        assert best.lower <= 1e-12 and best.value >= 0.0  # the infimum is 0: b grows without bound
        assert isinstance(loss, Hinge) or math.isinf(
            reach_along_free(Problem(fed, loss, 0.1, intercept=True), best.w.ravel() * 0, 0.7)
        )


def test_several_free_coordinates():
    """Quadratic and self-concordant losses keep their certificates, others bound the coordinates by slopes."""
    mask = np.array([True, False, False, True])
    for loss in (Squared(), Logistic(), SmoothedHinge(0.5), Hinge()):
        best = made(loss, intercept=mask).solve()
        assert best.attained and best.value - best.lower <= 1e-9, loss
    everything = made(Logistic(), intercept=np.ones(4, bool)).solve()
    np.testing.assert_allclose(everything.w, made(Logistic(), l2=0.0, intercept=False).solve().w, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [Hinge(), SmoothedHinge(0.5)], ids=repr)
def test_several_free_coordinates_of_a_hinge(loss):
    """The minimum of cvxpy; models below a level are within reach; labels that separate along them have no bound."""
    mask = np.array([True, True, False, True])
    p = made(loss, intercept=mask)
    w, fed = cp.Variable(4), p.federation
    m = 1.0 - cp.multiply(fed.y, np.asarray(fed.X) @ w)
    each = cp.pos(m) if isinstance(loss, Hinge) else cp.huber(cp.pos(m), 0.5) / (2.0 * 0.5)
    F = cp.sum(cp.multiply(p.per_row, each)) + 0.05 * cp.square(w[2])
    cp.Problem(cp.Minimize(F)).solve("CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    best = p.solve()
    assert best.value == pytest.approx(float(F.value), rel=1e-8) and best.value - best.lower <= 1e-9
    rng, reach = np.random.default_rng(0), reach_along_free(p, best.w, float(p.value(np.zeros(4))))
    for _ in range(300):
        v = best.w + rng.normal(size=4) * 10.0 ** rng.uniform(-1, 2)
        if p.value(v) <= p.value(np.zeros(4)):
            assert np.abs(v - best.w)[mask].max() <= reach < 1e4
    X = np.column_stack([fed.y * (1.0 + rng.random(fed.n)), rng.normal(size=(fed.n, 2))])
    apart = Problem(Federation.from_arrays(X, fed.y, [0] * fed.n), loss, 0.1, intercept=np.array([True, True, False]))
    assert math.isinf(reach_along_free(apart, np.zeros(3), 1.0)) and apart.solve().lower <= 1e-12


def test_equal_to_scikit_learn():
    l2, n = 0.05, 40
    for loss in (Logistic(), Softmax(3)):
        problem = made(loss, l2=l2)
        X, y = problem.federation.X[:, :3], problem.federation.y
        peer = LogisticRegression(C=1.0 / (l2 * n), tol=1e-12, max_iter=100_000).fit(X, y)
        ours = np.atleast_2d(problem.solve().w)
        ours = ours - (ours.mean(axis=0) * [0, 0, 0, 1] if loss == Softmax(3) else 0.0)
        theirs = np.column_stack([peer.coef_, peer.intercept_ - (peer.intercept_.mean() if loss == Softmax(3) else 0)])
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        assert problem.value(theirs.reshape(problem.model_shape)) >= problem.solve().lower
    s = np.random.default_rng(0).integers(1, 4, n).astype(float)
    problem = made(Squared(), l2=l2, weights=s)
    fed = problem.federation
    peer = Ridge(alpha=l2 * s.sum(), solver="cholesky").fit(fed.X[:, :3], fed.y, fed.sample_weight)
    np.testing.assert_allclose(problem.solve().w, np.append(peer.coef_, peer.intercept_), rtol=1e-9)
    problem = made(Hinge(), l2=l2)
    peer = SVC(C=1.0 / (l2 * n), kernel="linear", tol=1e-10).fit(problem.federation.X[:, :3], problem.federation.y)
    theirs = np.append(peer.coef_[0], peer.intercept_)
    best = problem.solve().value  # the peer's intercept is the mean over support vectors, good to 1e-8
    assert best <= problem.value(theirs) and best == pytest.approx(problem.value(theirs), rel=1e-7)


SHIFTS = {n: m for n, m in CONFIGURATIONS.items() if getattr(m, "radius", None) is None}


@pytest.mark.parametrize("name", SHIFTS)
def test_methods_commute_with_a_shift_of_targets(name):
    """Least squares with a free intercept: targets and start 2 higher give the path 2 higher; a ridge does not."""
    problem = made(Squared())
    fed, up = problem.federation, np.array([0.0, 0.0, 0.0, 2.0])
    other = Problem(Federation(fed.X, fed.y + 2.0, fed.ptr), Squared(), 0.1, intercept=True)
    a = quiet(SHIFTS[name], problem, rounds=4, seed=3, start=np.zeros(4))
    b = quiet(SHIFTS[name], other, rounds=4, seed=3, start=up)
    np.testing.assert_allclose(b.w, a.w + up, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(b.trace.value, a.trace.value, rtol=1e-7)
    assert np.all(np.isfinite(a.trace.gap))
    ridge = [Problem(p.federation, Squared(), 0.1) for p in (problem, other)]
    c, d = (quiet(SHIFTS[name], p, rounds=4, seed=3, start=s).w for p, s in zip(ridge, (0 * up, up), strict=True))
    assert np.abs(d - c - up).max() > 1e-4


def test_a_round_of_fedavg_by_hand():
    for sparse in (False, True):
        problem = made(Logistic(), sparse)
        fed, w = problem.federation, np.array([0.3, -0.2, 0.1, 1.0])
        X, new = fed.X.toarray() if sparse else fed.X, np.zeros(4)
        for k in range(fed.K):
            rows, v = slice(fed.ptr[k], fed.ptr[k + 1]), w
            for _ in range(3):
                slopes = -fed.y[rows] / (1.0 + np.exp(fed.y[rows] * (X[rows] @ v)))
                v = v - 0.2 * (X[rows].T @ slopes / len(slopes) + 0.1 * v * [1.0, 1.0, 1.0, 0.0])
            new += problem.weights[k] * v
        found = run(FedAvg(step_size=0.2, local_steps=3), problem, rounds=1, start=w)
        np.testing.assert_allclose(found.w, new, rtol=1e-13)


def test_constants_and_minimax():
    for loss in (Squared(), Logistic()):
        problem = made(loss)
        c = problem.constants(radius=1.0)
        H = problem.hessian(problem.solve().w)
        assert c.mu <= np.linalg.eigvalsh(H)[0] * (1 + 1e-12) and c.L >= np.linalg.eigvalsh(H)[-1] * (1 - 1e-12)
        best = problem.solve_minimax()
        assert 0.0 <= best.value - best.lower <= 1e-9
    assert made(Logistic()).constants().mu == 0.0  # on all of R^d nothing bends along b
    assert made(Logistic(), intercept=False).constants().mu == 0.1


def test_bad_masks_are_refused(tmp_path):
    fed = Federation.from_arrays(np.eye(3), np.ones(3), [0, 1, 2])
    with pytest.raises(ValueError, match="a last column of ones; got 0 to 1: append it with"):
        Problem(fed, Squared(), 0.1, intercept=True)
    for mask in ([True], [1, 0, 0], "yes", None):
        with pytest.raises(TypeError, match="be True, False or 3 of them"):
            Problem(fed, Squared(), 0.1, intercept=mask)
    assert Problem(fed, Squared(), 0.1, intercept=[False] * 3).free is None
    assert "1 free" in repr(Problem(fed.with_intercept(), Squared(), 0.1, intercept=True))
    path = tmp_path / "run.npz"
    method, fed = FedAvg(step_size=0.1), fed.with_intercept()
    run(method, Problem(fed, Squared(), 0.1, intercept=True), rounds=2, checkpoint=path)
    with pytest.raises(ValueError, match="checkpoint"):
        run(method, Problem(fed, Squared(), 0.1), rounds=3, checkpoint=path)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("loss, sparse", [(Logistic(), True), (Softmax(3), False)], ids=["csr", "classes"])
def test_compiled(loss, sparse):
    """Kernels compile for a ridge per coordinate; without free coordinates that of a number has the same result."""
    problem, some = made(loss, sparse), made(loss, sparse, intercept=np.array([False, True, False, False]))
    some.free = np.zeros(4, dtype=bool)
    for method in (FedAvg(step_size=0.2, local_steps=3), FedAvg(step_size=0.2, local_steps=3, batch_size=2)):
        assert run(method, problem, rounds=3, start=np.ones(problem.model_shape)).gap < math.inf
        plain = run(method, made(loss, sparse, intercept=False), rounds=3).w
        np.testing.assert_allclose(run(method, some, rounds=3).w, plain, rtol=1e-12, atol=1e-14)


CSV = "age,income,ward,ill,w\n" + "".join(
    f"{30 + 7 * i % 41},{(i * i) % 17},{'abc'[i % 3]},{'yes' if (i * 5) % 7 < 3 else 'no'},{1 + i % 4}\n"
    for i in range(60)
)


@pytest.mark.slow
def test_command_line(tmp_path, capsys):
    """The intercept is free by default, and rows weigh what a column says: equal to scikit-learn's pooled solution."""
    import json

    from fedconvex.cli import main

    (tmp_path / "wards.csv").write_text(CSV)
    base = ["solve", str(tmp_path / "wards.csv"), "--target", "ill", "--client", "ward", "--method", "gd"]
    base += ["--rounds", "3000", "--tol", "1e-10", "--l2", "0.1", "--json"]
    table = np.array([line.split(",")[:2] for line in CSV.splitlines()[1:]], dtype=float)
    y = np.array([line.split(",")[3] == "yes" for line in CSV.splitlines()[1:]])
    s = np.array([line.split(",")[4] for line in CSV.splitlines()[1:]], dtype=float)
    found = {}
    for flags in ([], ["--penalise-intercept"], ["--weight", "w"]):
        weight = s if "--weight" in flags else np.ones(60)
        rows = table if "--weight" in flags else np.column_stack([table, s])
        middle = np.average(rows, axis=0, weights=weight)
        rows = (rows - middle) / np.sqrt(np.average((rows - middle) ** 2, axis=0, weights=weight))
        main([*base, *flags])
        facts = json.loads(capsys.readouterr().out)
        found[" ".join(flags)] = facts
        if "--penalise-intercept" in flags:
            continue
        peer = LogisticRegression(C=1.0 / (0.1 * weight.sum()), tol=1e-12, max_iter=10_000).fit(rows, y, weight)
        z = (2.0 * y - 1.0) * (rows @ peer.coef_[0] + peer.intercept_[0])
        best = float(weight @ np.logaddexp(0.0, -z) / weight.sum() + 0.05 * np.sum(peer.coef_**2))
        assert facts["objective"] == pytest.approx(best, abs=2e-9)
        assert facts["sample_weight"] is bool(flags)
    assert found[""]["objective"] < found["--penalise-intercept"]["objective"]
    assert main([*base, "--no-intercept", "--penalise-intercept"]) == 2


def test_columns_of_weights(tmp_path):
    from fedconvex.datasets import load

    path = tmp_path / "wards.csv"
    path.write_text(CSV)
    table = load(path, target="ill", client="ward", weight="w")
    assert table.weights.tolist()[:4] == [1.0, 2.0, 3.0, 4.0] and table.feature_names == ("age", "income")
    for wrong, message in (
        ("ward", "be another column than client"),
        ("ill", "another column than client, domain and w"),
    ):
        with pytest.raises(ValueError, match=message):
            load(path, target="ill", client="ward", weight=wrong)
    path.write_text(CSV.replace(",4\n", ",much\n"))
    with pytest.raises(ValueError):
        load(path, target="ill", client="ward", weight="w")
    np.savez(tmp_path / "a.npz", X=np.eye(2), y=np.ones(2), sample_weight=np.array([1, 2]))
    assert load(tmp_path / "a.npz").weights.tolist() == [1.0, 2.0]


# ---------------------------------------------------------------- campaign: certificates against 50 digits


def exact_minimum(problem, w):
    """F at w, and the least F that Newton's method finds from there, by 50 digits and from the raw rows."""
    import mpmath as mp

    with mp.workdps(50):
        fed, d = problem.federation, problem.federation.d
        free = np.zeros(d, bool) if problem.free is None else problem.free
        ridge = [mp.mpf(0) if f else mp.mpf(problem.l2) for f in free]
        raw = [mp.mpf(1)] * fed.n if fed.sample_weight is None else [mp.mpf(v) for v in fed.sample_weight]
        X, y, c = [[mp.mpf(v) for v in row] for row in fed.X], [mp.mpf(v) for v in fed.y], []
        for k in range(fed.K):
            mine = range(int(fed.ptr[k]), int(fed.ptr[k + 1]))
            total = mp.fsum(raw[i] for i in mine)
            c += [mp.mpf(problem.weights[k]) * raw[i] / total for i in mine]

        def parts(v, derivatives):
            F, g, H = mp.fsum(r * t * t for r, t in zip(ridge, v, strict=True)) / 2, mp.matrix(d, 1), mp.zeros(d)
            for j in range(d):
                g[j], H[j, j] = ridge[j] * v[j], ridge[j]
            for x, t, weight in zip(X, y, c, strict=True):
                z = mp.fsum(a * b for a, b in zip(x, v, strict=True))
                if isinstance(problem.loss, Squared):
                    value, first, second = (z - t) ** 2 / 2, z - t, mp.mpf(1)
                elif isinstance(problem.loss, Logistic):
                    s = 1 / (1 + mp.exp(t * z))
                    value, first, second = mp.log(1 + mp.exp(-t * z)), -t * s, s * (1 - s)
                else:
                    e = mp.exp(-t * z)
                    value, first, second = e, -t * e, e
                F += weight * value
                for j in range(d if derivatives else 0):
                    g[j] += weight * first * x[j]
                    for i in range(d):
                        H[i, j] += weight * second * x[i] * x[j]
            return F, g, H

        v = [mp.mpf(t) for t in w]
        here = best = parts(v, False)[0]
        for _ in range(60):
            F, g, H = parts(v, True)
            try:
                step, t = mp.lu_solve(H, g), mp.mpf(1)
            except ZeroDivisionError:  # rows far on the right side bend by less than 50 digits: keep the best point
                break
            slope = mp.fsum(a * b for a, b in zip(g, step, strict=True))
            if slope <= mp.mpf(10) ** -80:
                break
            while parts([a - t * b for a, b in zip(v, step, strict=True)], False)[0] > F and t > mp.mpf(10) ** -30:
                t /= 2
            v = [a - t * b for a, b in zip(v, step, strict=True)]
            best = min(best, parts(v, False)[0])
        return here, best


def certificate_trial(rng):
    """A random problem with a free intercept, weighted rows or both: no lower bound lies above the minimum."""
    n, d = int(rng.integers(4, 30)), int(rng.integers(1, 4))
    X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-3, 3, d) + rng.integers(0, 2) * rng.normal(size=d) * 10.0
    loss = (Squared(), Logistic(), Exponential())[rng.integers(3)]
    score = X @ rng.normal(size=d) / max(np.abs(X).max(), 1e-300) + rng.normal(size=n) + rng.normal()
    y = score if isinstance(loss, Squared) else np.where(score > 0.0, 1.0, -1.0)
    if not isinstance(loss, Squared) and abs(y.sum()) == n:
        y[0] = -y[0]
    who = np.sort(np.concatenate([np.arange(2), rng.integers(0, 2, n - 2)]))
    weight = 10.0 ** rng.uniform(-6, 0, n) if rng.random() < 0.6 else None
    fed = Federation.from_arrays(X, y, who, sample_weight=weight).with_intercept()
    weights = "uniform" if rng.random() < 0.5 else None
    problem = Problem(fed, loss, 10.0 ** rng.uniform(-6, 0), weights, intercept=bool(rng.random() < 0.8))
    best = problem.solve()
    here, least = exact_minimum(problem, best.w)
    assert best.lower <= float(least) * (1 + 1e-15) + 1e-300, (problem, best.lower - float(least))
    assert abs(float(here) - best.value) <= problem.rounding(best.w, best.value) + 1e-300
    assert best.value - best.lower >= float(here - least)
    other = best.w + rng.normal(size=d + 1) * 10.0 ** rng.uniform(-6, 0)
    found = problem.measure(other[None])
    off = problem.rounding(other, float(found.value[0]))  # of the value there, which may be large
    assert math.isinf(off) or float(found.gap[0]) >= float(exact_minimum(problem, other)[0] - least) - 2.0 * off
    relative = (best.value - best.lower) / (1.0 + abs(best.value))
    return {"relative_gap": relative, "certified": relative <= 1e-9, "loss": repr(loss)}


def test_the_reference_is_right_and_the_trial_can_fail(monkeypatch):
    problem = made(Squared(), n=12)
    here, least = exact_minimum(problem, np.zeros(4))
    assert float(least) == pytest.approx(problem.solve().value, rel=1e-12)
    assert float(here) == pytest.approx(problem.value(np.zeros(4)), rel=1e-14)
    certificate_trial(np.random.default_rng(3))
    from fedconvex.solvers.smooth import newton

    monkeypatch.setattr(newton, "least_value", lambda problem, bound, off: bound + 1.0)
    with pytest.raises(AssertionError):
        certificate_trial(np.random.default_rng(3))
