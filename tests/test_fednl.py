"""Compressors of matrices and what they declare; FedNL against NumPy, its theorems, and known numbers of rounds."""

from __future__ import annotations

import numpy as np
import pytest

from fedconvex import Federation, Hinge, Logistic, Problem, Softmax, Squared, iterate, run
from fedconvex.methods import EF21, FedNL, RankR, SymmetricTopK
from fedconvex.methods.parts.hessian_compressors import full, upper
from tests.test_approximatenewton import armijo, hessian, quadratics
from tests.test_unbiased_local_methods import L2, clients, gradients, logistic_problem


def packed(C, D):
    return C.compress(D[upper(len(D))], len(D))


def compressed(C, D):
    return full(C.expand(*packed(C, D), len(D)), len(D))


def plainly(C, D):
    """C(D) written out: by singular vectors, or by sorting all entries of the triangle."""
    if isinstance(C, RankR):
        U, s, Vt = np.linalg.svd(D)
        return (U[:, : C.r] * s[: C.r]) @ Vt[: C.r]
    entries = sorted(((2 - (i == j)) * D[i, j] ** 2, i, j) for i in range(len(D)) for j in range(i, len(D)))
    out = np.zeros_like(D)
    for _, i, j in entries[-C.k :]:
        out[i, j] = out[j, i] = D[i, j]
    return out


# ---------------------------------------------------------------- compressors


@pytest.mark.parametrize("C", [RankR(1), RankR(3), SymmetricTopK(1), SymmetricTopK(7), SymmetricTopK(15)], ids=repr)
def test_compressors_keep_their_bound_and_are_what_they_are_called(C, rng):
    for kind in range(6):
        D = rng.normal(size=(5, 5)) if kind < 4 else np.full((5, 5), float(kind == 4))
        D = (D + D.T) * 10.0 ** rng.integers(-3, 4)
        found = compressed(C, D)
        assert np.array_equal(found, found.T)
        assert np.sum((found - D) ** 2) <= (1 - C.delta(5)) * np.sum(D * D) * (1 + 1e-12) + 1e-28
        if kind < 4:  # no ties
            assert np.abs(found - plainly(C, D)).max() <= 1e-12 * np.abs(D).max()
    assert 0 < C.delta(5) <= 1 and (C.delta(5) == 1) == (C in (SymmetricTopK(15),))


def test_bounds_are_attained():
    """Eigenvalues, or terms of the norm, that are all equal."""
    D = np.eye(4)
    assert np.sum((compressed(RankR(1), D) - D) ** 2) == pytest.approx(3.0)
    D = np.sqrt(0.5) * np.ones((4, 4)) + (1 - np.sqrt(0.5)) * np.eye(4)  # ten terms of 1
    assert np.sum((compressed(SymmetricTopK(1), D) - D) ** 2) == pytest.approx(9.0)


def test_ranking_by_modulus_alone_does_not_have_what_is_declared():
    """Ones with a slightly larger diagonal, d = 7, k = 1: 1/49 of the norm instead of at least 1/28."""
    D = np.ones((7, 7)) + 1e-9 * np.eye(7)
    plain = np.zeros((7, 7))
    plain[0, 0] = D[0, 0]  # the entry of largest modulus
    kept = lambda C: 1 - np.sum((C - D) ** 2) / np.sum(D * D)  # noqa: E731
    assert kept(plain) == pytest.approx(1 / 49, rel=1e-6) and kept(plain) < SymmetricTopK(1).delta(7) == 1 / 28
    assert kept(compressed(SymmetricTopK(1), D)) == pytest.approx(2 / 49, rel=1e-6)


def test_averages_need_no_matrix_of_a_client(rng):
    D, q = rng.normal(size=(3, 6, 6)), np.array([0.2, 0.3, 0.5])
    D = D + D.transpose(0, 2, 1)
    for C in (RankR(2), SymmetricTopK(4)):
        values, codes = (np.array(a) for a in zip(*(packed(C, A) for A in D), strict=True))
        each = sum(p * compressed(C, A) for p, A in zip(q, D, strict=True))
        assert np.abs(full(C.average(q, values, codes, 6), 6) - each).max() < 1e-13


def test_bits_are_what_places_need_and_odd_matrices_are_right():
    assert [SymmetricTopK(3).bits(d) for d in (1, 2, 4, 16)] == [0, 6, 12, 24] and RankR(2).bits(9) == 0
    for C in (RankR(2), SymmetricTopK(3)):
        assert not compressed(C, np.zeros((3, 3))).any()
        values, codes = packed(C, np.full((3, 3), np.nan))
        assert np.isnan(values).all() and ((codes >= 0) & (codes < 6)).all()
        values, codes = packed(C, np.eye(3))
        for wrong in (values[:-1], np.concatenate([values, values])):
            with pytest.raises(ValueError, match="compressed reply must have"):
                C.expand(wrong, codes, 3)
    values, codes = packed(SymmetricTopK(2), np.eye(3))
    for wrong in (codes - 9, codes + 6):
        with pytest.raises(ValueError, match=r"places in 0, \.\.\., 5"):
            SymmetricTopK(2).expand(values, wrong, 3)


# ---------------------------------------------------------------- line by line


@pytest.mark.parametrize("C", [RankR(1), RankR(2), SymmetricTopK(3)], ids=repr)
@pytest.mark.parametrize(
    ("option", "search", "exact", "alpha"), [(1, True, False, 1.0), (2, False, False, 0.7), (1, False, True, 1.0)]
)
def test_fednl_equals_plain_numpy(C, option, search, exact, alpha):
    rows, problem = clients()
    grad, q, w = gradients(rows), problem.weights, np.zeros(4)
    H = np.array([hessian(rows, k, w) if exact else np.zeros((4, 4)) for k in range(3)])
    stages = 4
    for _ in range(stages):
        g, D = sum(q[k] * grad(k, w) for k in range(3)), np.array([hessian(rows, k, w) for k in range(3)]) - H
        mean = np.tensordot(q, H, 1)
        if option == 1:
            lam, V = np.linalg.eigh(mean)
            d = -V @ ((V.T @ g) / np.maximum(lam, L2))
        else:
            d = -np.linalg.solve(mean + sum(q[k] * np.linalg.norm(D[k]) for k in range(3)) * np.eye(4), g)
        H = H + alpha * np.array([plainly(C, D[k]) if D[k].any() else D[k] for k in range(3)])
        w = w + (armijo(rows, q, w, g, d) if search else 1.0) * d
    method = FedNL(compressor=C, option=option, line_search=search, exact_start=exact, alpha=alpha)
    found = run(method, problem, rounds=stages * (1 + search), tol=0.0)
    assert np.abs(found.w - w).max() < 1e-12
    sent = C.r * 5 if isinstance(C, RankR) else C.k
    each = stages * (4 + sent + (option == 2) + 12 * search) + exact * (10 - sent)
    assert found.trace.floats_up[-1] == 3 * each
    assert found.trace.bits_up[-1] == 3 * (64 * each + (stages - exact) * C.bits(4))


@pytest.mark.slow
def test_several_classes_have_one_hessian(rng):
    fed = Federation.from_clients([(rng.normal(size=(n, 2)), rng.integers(0, 3, n)) for n in (6, 9)])
    problem = Problem(fed, Softmax(3), 0.1)
    for C in (RankR(2), SymmetricTopK(8)):
        assert run(FedNL(compressor=C), problem, rounds=60, tol=1e-11).status.name == "CONVERGED"


# ---------------------------------------------------------------- theorems


@pytest.mark.parametrize(
    ("C", "rounds"),
    [
        *((RankR(1), 9), (RankR(2), 5), (RankR(3), 4), (RankR(8), 2)),
        *((SymmetricTopK(4), 10), (SymmetricTopK(9), 5), (SymmetricTopK(36), 2)),
    ],
    ids=repr,
)
def test_least_squares_end_after_finitely_many_rounds(C, rounds):
    """ceil(8/r) + 1 and ceil(36/k) + 1, and not a round earlier."""
    problem, _ = quadratics()
    gap = run(FedNL(compressor=C, line_search=False), problem, rounds=rounds, tol=0.0).trace.gap
    assert gap[-1] < 1e-12 < 1e-6 < gap[-2]


@pytest.mark.parametrize("C", [RankR(1), SymmetricTopK(2)], ids=repr)
@pytest.mark.parametrize("exact", [True, False])
def test_the_local_recursion_holds_and_is_superlinear(C, exact):
    """From the theorem's neighbourhood; a bound of r+ a quarter as large is violated from an exact start."""
    rng = np.random.default_rng(2)
    rows = [(rng.standard_normal((n, 4)), np.sign(rng.standard_normal(n))) for n in (15, 20, 30)]
    problem = Problem(Federation.from_clients(rows), Logistic(), mu := 0.3)
    q, best = problem.weights, problem.solve().w
    LH = sum(q[k] * np.mean(np.linalg.norm(X, axis=1) ** 3) for k, (X, _) in enumerate(rows)) / (6 * np.sqrt(3))
    there = problem.client_derivatives(best[None], np.arange(3)[None]).hessians[0]
    root = np.sqrt(1 - C.delta(4))
    near = min(mu / (2 * LH), (1 - root) * mu / (4 * (1 + root) * LH))
    off = rng.normal(size=4)
    start = best + near * off / np.linalg.norm(off)
    H = problem.client_derivatives(start[None], np.arange(3)[None]).hessians[0] if exact else there.copy()
    if not exact:  # E = mu/4, by symmetric errors
        for k in range(3):
            A = rng.normal(size=(4, 4))
            H[k] += mu / 4 * (A + A.T) / np.linalg.norm(A + A.T)
    away = lambda H: sum(q[k] * np.linalg.norm(H[k] - there[k]) for k in range(3))  # noqa: E731
    w, r, E, tight, factors = start, near, away(H), 0.0, []
    for _ in range(7):
        each = problem.client_derivatives(w[None], np.arange(3)[None])
        lam, V = np.linalg.eigh(np.tensordot(q, H, 1))
        w = w - V @ ((V.T @ (q @ each.gradients[0])) / np.maximum(lam, mu))
        H = H + np.array([compressed(C, each.hessians[0, k] - H[k]) for k in range(3)])
        new, bound = np.linalg.norm(w - best), r / mu * (E + LH * r / 2)
        assert new <= bound * (1 + 1e-9) + 1e-14 and away(H) <= (root * E + (1 + root) * LH * r) * (1 + 1e-9)
        assert new <= r / 2 + 1e-14
        if new > 1e-12:
            factors.append(new / r)
            tight = max(tight, new / bound)
        r, E = new, away(H)
    assert tight > (0.25 if exact else 0.01)
    if not exact:
        assert factors[-1] < 0.5 * factors[0]
    else:  # and these are the method's rounds
        found = run(FedNL(compressor=C, line_search=False, exact_start=True), problem, rounds=7, start=start, tol=0.0)
        assert np.abs(found.w - w).max() < 1e-12


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FedNL ended above")
def test_without_line_search_it_may_leave_for_good_and_with_it_every_stage_falls():
    problem = logistic_problem(K=4, m=15, d=5)
    best, how = problem.solve().value, {"rounds": 30, "tol": 0.0}
    left = run(FedNL(compressor=RankR(1), line_search=False), problem, **how).trace.value - best
    assert left[-1] > 1.0 > left[0]
    mu, L = 0.01, max(np.linalg.eigvalsh(A)[-1] for A in np.asarray(_bounds(problem)))
    before = None
    for t, s in iterate(FedNL(compressor=RankR(1)), problem, rounds=24):
        if t % 2 == 0:
            gap = problem.value(s.w[0]) - best
            assert before is None or gap <= before * (1 - 2e-4 * mu / L * min(1.0, mu / L)) + 1e-13
            before = gap
    assert before < 1e-9


def _bounds(problem):
    fed = problem.federation
    each = [fed.client_rows(k)[0] for k in range(fed.K)]
    return [X.T @ X / (4 * len(X)) + problem.l2 * np.eye(fed.d) for X in each]


@pytest.mark.slow
def test_rounds_to_a_gap_are_those_computed_elsewhere():
    """Ten unequal clients, F - F* <= 1e-10: stages and floats without those of the line search, twelve a stage."""
    problem = logistic_problem()
    best = problem.solve().value

    def needed(method):
        found = run(method, problem, rounds=60, tol=1e-12).trace
        i = np.flatnonzero(found.value - best <= 1e-10)[0]
        stages = int(found.round[i]) // (1 + method.line_search)
        return stages, int(found.floats_up[i]) // 10 - 12 * stages * method.line_search

    assert needed(FedNL(compressor=RankR(1), exact_start=True, line_search=False)) == (4, 55 + 10 + 3 * 21)
    assert needed(FedNL(compressor=RankR(1))) == (13, 273)
    assert needed(FedNL(compressor=SymmetricTopK(10))) == (6, 120)
    assert needed(FedNL(compressor=RankR(1), option=2, line_search=False))[0] == 15


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: FedNL(compressor=RankR(0)), "r must be at least 1"),
        (lambda p: FedNL(compressor="SymmetricTopK(0)"), "k must be at least 1"),
        (lambda p: FedNL(compressor=RankR(1.5)), "r must be"),
        (lambda p: FedNL(compressor=RankR), "be a compressor of matrices such as"),
        (lambda p: FedNL(compressor="TopK(3)"), "be a compressor of matrices such as"),
        (lambda p: EF21(step_size=0.1, compressor=RankR(1)), "be a compressor such as"),
        (lambda p: run(FedNL(compressor=RankR(5)), p, rounds=1), "r must be at most 4, for 4 parameters"),
        (lambda p: run(FedNL(compressor=SymmetricTopK(11)), p, rounds=1), "k must be at most 10"),
        (lambda p: FedNL(compressor=RankR(1), alpha=1.5), "alpha must"),
        (lambda p: FedNL(compressor=RankR(1), option=3), "option must"),
        (lambda p: run(FedNL(compressor=RankR(1)), Problem(p.federation, Hinge(), 0.1), rounds=1), "a curvature"),
        (lambda p: run(FedNL(compressor=RankR(1)), Problem(p.federation, Squared()), rounds=1), "be positive for opt"),
    ],
)
def test_settings_out_of_range_are_refused_in_words(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make(clients()[1])


def test_triangles_are_row_after_row():
    assert full(np.arange(6.0), 3).tolist() == [[0.0, 1.0, 2.0], [1.0, 3.0, 4.0], [2.0, 4.0, 5.0]]
    assert [a.tolist() for a in upper(2)] == [[0, 0, 1], [0, 1, 1]]
