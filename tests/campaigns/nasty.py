"""Certificates on problems that are hard on double precision, against minimisers in 60 digits.

Rows: scales from 1e-150 to 1e150, subnormal numbers, columns collinear up to one unit in the last place, separable
labels, fewer rows than columns, repeated rows and columns, weight ratios of 1e12, empty columns, bad conditioning.

A reference is a point: whatever the reference method does, no certificate may contradict what F is there. Columns are
scaled by powers of two first, which rounds nothing.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np

from fedconvex import Exponential, Federation, Logistic, Problem, Squared
from fedconvex.problems import Dictionary, EnsembleProblem, Logistic2, MeanRegularised, MultiTaskProblem
from fedconvex.solvers.certificates.gaps import ContradictedCertificate
from fedconvex.solvers.certificates.rank import rank_bound

DIGITS, ULP, EPS = 60, 2.0**-52, 2.0**-52
RIDGE = mp.mpf(10) ** -48  # of the scaled Hessian, so that its systems can be solved
KINDS = (
    "plain", "column scales", "one scale", "subnormal", "ulps", "separable", "wide", "repeated", "empty", "mixed",
    "label scale",
)  # fmt: skip


def nasty_rows(rng: np.random.Generator, real: bool, n: int, d: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Return rows (n, d), labels (real, or -1 and 1) and what is nasty about them; two kinds may meet."""
    X, y, kinds = rng.normal(size=(n, d)), rng.choice([-1.0, 1.0], n), []
    y = y + (0.3 * rng.normal(size=n) if real and rng.random() < 0.7 else 0.0)
    for kind in rng.choice(KINDS, size=1 + int(rng.random() < 0.3), replace=False).tolist():
        kinds.append(kind)
        j, k = (int(v) for v in rng.integers(0, d, 2))
        if kind == "column scales":
            X = X * 10.0 ** rng.uniform(-150.0, 150.0, d)
        elif kind == "one scale":
            X = X * 10.0 ** rng.uniform(-150.0, 150.0)
        elif kind == "subnormal":
            X = X * np.where(rng.random(d) < 0.5, 1e-310, 1.0)
        elif kind == "ulps":
            X[:, j] = X[:, k] * (1.0 + ULP * rng.integers(0, 2 ** int(rng.integers(1, 40)), n))
        elif kind == "separable":
            y = np.where(X[:, j] > 0.0, 1.0, -1.0)
        elif kind == "wide":
            X = np.hstack([X] + [rng.normal(size=(n, d)) for _ in range(n // d + 1)])[:, : n + 2]
            d = X.shape[1]
        elif kind == "repeated":
            rows = rng.integers(0, n, n)
            X, y = X[rows][:, rng.integers(0, d, d)], y[rows] if rng.random() < 0.5 else y
        elif kind == "empty":
            X[:, j] = 0.0
        elif kind == "mixed":
            X = X * 10.0 ** rng.uniform(-6.0, 6.0, d) @ rng.normal(size=(d, d))
        elif kind == "label scale" and real:
            y = y * 10.0 ** rng.uniform(-100.0, 100.0)
    size = np.abs(X).max()
    return (X if size < 1e152 else X * (1e150 / size)), y, "+".join(kinds)


class Reference(NamedTuple):
    """F(u) = sum_i c_i l(a_i'u, y_i) + u'Qu/2 in 60 digits, u = w / 2^exponents."""

    A: list  # rows of mpf, scaled
    y: list
    c: list
    Q: list | None
    loss: Any
    exponents: np.ndarray

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray, c: np.ndarray, loss: Any, Q: np.ndarray | None = None) -> Reference:
        """Scale columns (n, d) by powers of two; Q (d, d) in the coordinates of w."""
        exponents = -np.frexp(np.abs(X).max(axis=0))[1]
        two = [mp.mpf(2) ** int(e) for e in exponents]
        A = [[mp.mpf(v) * s for v, s in zip(row, two, strict=True)] for row in X.tolist()]
        scaled = None
        if Q is not None:
            scaled = [
                [mp.mpf(v) * a * b for v, b in zip(row, two, strict=True)]
                for row, a in zip(Q.tolist(), two, strict=True)
            ]
        return cls(A, [mp.mpf(v) for v in y.tolist()], [mp.mpf(v) for v in c.tolist()], scaled, loss, exponents)

    def scaled(self, w: np.ndarray) -> list:
        """Return u of a model of doubles, exactly."""
        return [mp.mpf(v) * mp.mpf(2) ** -int(e) for v, e in zip(w.ravel().tolist(), self.exponents, strict=True)]

    def reach(self, u: list, sizes: np.ndarray) -> Any:
        """sum_j |w_j| sizes_j."""
        two = [mp.mpf(2) ** int(e) for e in self.exponents]
        return sum(abs(v) * s * mp.mpf(b) for v, s, b in zip(u, two, sizes.tolist(), strict=True))

    def value(self, u: list) -> Any:
        """F(u)."""
        total = sum(c * self.row(z, y)[0] for c, y, z in zip(self.c, self.y, self.scores(u), strict=True))
        return total + (sum(a * b for a, b in zip(u, self.along(u), strict=True)) / 2 if self.Q else 0)

    def scores(self, u: list) -> list:
        """a_i'u of every row."""
        return [mp.fdot(row, u) for row in self.A]

    def along(self, u: list) -> list:
        """Q u."""
        return [mp.fdot(row, u) for row in self.Q or []]

    def row(self, z: Any, y: Any) -> tuple[Any, Any, Any]:
        """l and its two derivatives in z."""
        if self.loss == Squared():
            return (z - y) ** 2 / 2, z - y, mp.mpf(1)
        e = mp.exp(-y * z)
        if self.loss == Exponential():
            return e, -y * e, e
        return mp.log1p(e), -y * e / (1 + e), e / (1 + e) ** 2

    def minimiser(self, ridge: Any = RIDGE, start: list | None = None, steps: int = 60) -> tuple[list, bool]:
        """Return u of least F by damped Newton steps, and whether they ended at a point."""
        D = range(len(self.exponents))
        u, columns = start or [mp.mpf(0) for _ in D], list(zip(*self.A, strict=True))
        F = self.value(u)
        for _ in range(steps):
            rows = [self.row(z, y) for z, y in zip(self.scores(u), self.y, strict=True)]
            g = [mp.fdot(col, [c * r[1] for c, r in zip(self.c, rows, strict=True)]) for col in columns]
            bent = [[c * r[2] * x for c, r, x in zip(self.c, rows, col, strict=True)] for col in columns]
            H = [[mp.fdot(bent[max(j, k)], columns[min(j, k)]) for k in D] for j in D]
            if self.Q:
                g = [a + b for a, b in zip(g, self.along(u), strict=True)]
                H = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(H, self.Q, strict=True)]
            least = max(H[j][j] for j in D)
            M = mp.matrix([[H[j][k] + (ridge * (H[j][j] or least or 1) if j == k else 0) for k in D] for j in D])
            try:
                step, t = list(mp.lu_solve(M, mp.matrix(g))), mp.mpf(1)
            except ZeroDivisionError:  # of no use as a reference: any point is one
                return u, False
            slope = mp.fdot(step, g)
            while True:
                new = [a - t * b for a, b in zip(u, step, strict=True)]
                after = self.value(new)
                if after <= F - t * slope / 10**4 or t < mp.mpf(10) ** -12:
                    break
                t /= 2
            if not after < F:
                return u, True
            fallen, u, F = F - after, new, after
            if fallen <= abs(F) * mp.mpf(10) ** -45 or slope <= abs(F) * mp.mpf(10) ** -40:
                return u, True
        return u, False


def conditioning(X: np.ndarray, c: np.ndarray) -> float:
    """Condition number of the weighted rows with columns of equal size, on as many singular values as their rank."""
    sizes = np.abs(X).max(axis=0)
    A = np.sqrt(c)[:, None] * (X[:, sizes > 0.0] / sizes[sizes > 0.0])
    if A.size == 0:
        return 1.0
    A = A / np.maximum(np.linalg.norm(A, axis=0), 1e-300)
    s = np.linalg.svd(A, compute_uv=False)
    kept = s[: rank_bound(X[c > 0.0])] if s[0] > 0.0 else s[:0]
    return float(s[0] / max(kept.min(initial=s[0]), 1e-300)) if s[0] > 0.0 else 1.0


def fits(reference: Reference, u: list) -> bool:
    """Whether a model is within the range of doubles."""
    return all(mp.frexp(v)[1] + int(e) < 1000 for v, e in zip(u, reference.exponents, strict=True))


def below(lower: float, value: Any, off: float, what: str) -> None:
    """A certified lower bound must not exceed a value of F by more than ``off``."""
    assert not math.isnan(lower), what
    assert mp.mpf(lower) <= value + mp.mpf(off), f"{what}: lower bound {lower!r} above F = {mp.nstr(value, 20)}"


def tight(gap: float, least: Any, start: Any) -> int:
    """Whether a gap is at most 1e-9 of the least value, or 1e-12 of F(0) where that is more."""
    return int(gap <= 1e-9 * max(float(least), 1e-3 * float(start)))


def weights_of(rng: np.random.Generator, K: int) -> np.ndarray | None:
    """Weights of clients, in a fifth of the cases with ratios of up to 1e12."""
    if rng.random() < 0.8:
        return None
    weights = 10.0 ** -rng.uniform(0.0, 12.0, K)
    return weights / weights.sum()


def solve_trial(rng: np.random.Generator) -> dict:
    """`Problem.solve` without l2 on nasty rows: no point lies below a bound, gaps bound the suboptimality."""
    loss = [Squared(), Squared(), Logistic(), Exponential()][int(rng.integers(4))]
    n, d = int(rng.integers(3, 15)), int(rng.integers(1, 6))
    X, y, kind = nasty_rows(rng, loss == Squared(), n, d)
    fed = Federation.from_arrays(X, y, np.arange(n) % 3)
    problem = Problem(fed, loss, 0.0, weights_of(rng, fed.K))
    best = problem.solve()
    assert np.isfinite(best.w).all(), kind
    assert math.isfinite(best.value), kind
    assert best.certificate, kind
    c = np.repeat(problem.row_weights, fed.sizes)
    reference = Reference.of(fed.X, fed.y, c, loss)
    here, sizes = reference.value(reference.scaled(best.w)), np.abs(fed.X).max(axis=0)
    off = problem.rounding(best.w, best.value)
    assert abs(here - mp.mpf(best.value)) <= off, kind
    u, ended = reference.minimiser()
    least, found = reference.value(u), 0
    for ridge in (None, -6, -12, -20, -30):
        point = u if ridge is None else reference.minimiser(mp.mpf(10) ** ridge)[0] if loss == Squared() else u
        F = reference.value(point)
        below(best.lower, F, 0.0, kind)
        assert here - F <= mp.mpf(best.gap), f"{kind}: gap {best.gap}, suboptimality {mp.nstr(here - F, 10)}"
        if reference.reach(point, sizes) <= best.reach:
            found += 1
            below(best.lower_within, F, 0.0, f"{kind} within reach")
            assert here - F <= mp.mpf(best.gap_within), f"{kind}: gap within {best.gap_within}"
        if loss != Squared():
            break
    measured = problem.measure(best.w[None])
    assert measured.gap[0] >= 0.0, kind
    away = 0.0  # `measure` speaks of models within reach, where columns are collinear up to rounding only
    if reference.reach(u, sizes) <= best.reach:
        away = gap_away_from_the_optimum(problem, reference, least, kind)
    good = ended and fits(reference, u) and conditioning(fed.X, c) <= 1e8
    out = {
        "target": "solve",
        "noticed": away,
        "kind": kind,
        "loss": repr(loss),
        "certificate": best.certificate,
        "gap": best.gap,
    }
    return out | ({"certified": tight(best.gap, least, reference.value([mp.mpf(0)] * len(u)))} if good else {})


def gap_away_from_the_optimum(problem: Problem, reference: Reference, least: Any, kind: str) -> float:
    """Ask for the gap of the model 0, which rounding does not limit; return whether half of it would be noticed."""
    start = np.zeros(problem.model_shape)
    value, gap = (float(x[0]) for x in problem.measure(start[None]))
    here, off = reference.value(reference.scaled(start)), problem.rounding(start, value)
    assert not here - least > mp.mpf(gap) + off, f"{kind}: gap {gap} of the model 0, {mp.nstr(here - least, 10)}"
    return float(math.isfinite(gap) and here - least > 0.5 * mp.mpf(gap) + off)


def minimax_trial(rng: np.random.Generator) -> dict:
    """`solve_minimax` of two domains: against the models that minimise weighted sums, weights by bisection."""
    loss, n, d = [Squared(), Logistic()][int(rng.integers(2))], int(rng.integers(4, 13)), int(rng.integers(1, 5))
    X, y, kind = nasty_rows(rng, loss == Squared(), n, d)
    domain = np.arange(n) % 2
    problem = Problem(Federation.from_arrays(X, y, domain), loss)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        best = problem.solve_minimax()
    assert not [w for w in told if w.category is ContradictedCertificate], kind
    assert np.isfinite(best.w).all(), kind
    assert math.isfinite(best.value), kind
    if best.gap_within > 1e-10 * (1.0 + abs(best.value)):
        assert any("certified gap" in str(w.message) for w in told), kind
    fed, sizes = problem.federation, np.abs(X).max(axis=0)
    parts = [Reference.of(X, y, (domain == k) / np.sum(domain == k), loss) for k in range(2)]
    here = max(part.value(part.scaled(best.w)) for part in parts)
    off = 2.0 * problem.rounding(best.w, float(np.abs(best.domain_values).max()))
    assert abs(here - mp.mpf(best.value)) <= off, kind
    low, high, points, u = 0.0, 1.0, [], None
    for _ in range(14):
        mix = 0.5 * (low + high)
        c = np.where(domain == 0, mix / np.sum(domain == 0), (1.0 - mix) / np.sum(domain == 1))
        u, _ = Reference.of(X, y, c, loss).minimiser(start=u, steps=25)
        values = [part.value(u) for part in parts]
        points.append((max(values), u))
        low, high = (mix, high) if values[0] > values[1] else (low, mix)
    for F, u in points:
        below(best.lower, F, 0.0, kind)
        assert here - F <= mp.mpf(best.gap), f"{kind}: gap {best.gap}, suboptimality {mp.nstr(here - F, 10)}"
        if parts[0].reach(u, sizes) <= best.reach:
            below(best.lower_within, F, 0.0, f"{kind} within reach")
    good = min(conditioning(fed.X[a:b], np.ones(b - a)) for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)) <= 1e8
    good = good and conditioning(fed.X, np.ones(n)) <= 1e8 and loss == Squared() and fits(parts[0], points[-1][1])
    out = {"target": "minimax", "kind": kind, "loss": repr(loss), "gap": best.gap}
    least, start = min(F for F, _ in points), max(part.value([mp.mpf(0)] * X.shape[1]) for part in parts)
    return out | ({"certified_minimax": tight(best.gap, least, start)} if good else {})


def multitask_trial(rng: np.random.Generator) -> dict:
    """`MultiTaskProblem.solve` with mean regularisation: against the minimiser in 60 digits."""
    loss, m = [Squared(), Logistic()][int(rng.integers(2))], int(rng.integers(2, 4))
    n, d = int(rng.integers(m, 11)), int(rng.integers(1, 4))
    X, y, kind = nasty_rows(rng, loss == Squared(), n, d)
    d, task, lam = X.shape[1], np.arange(n) % m, 10.0 ** rng.uniform(-6.0, 3.0, 2)
    if n * d > 60:
        X, d = X[:, :4], min(d, 4)
    fed = Federation.from_arrays(X, y, task)
    problem = MultiTaskProblem(fed, loss, MeanRegularised(float(lam[0]), float(lam[1])))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ContradictedCertificate)
        best = problem.solve()
    assert np.isfinite(best.w).all(), kind
    assert math.isfinite(best.value), kind
    tasks = np.repeat(np.arange(m), fed.sizes)
    stacked = (np.eye(m)[tasks][:, :, None] * fed.X[:, None, :]).reshape(n, -1)
    Q = np.kron(2.0 * (float(lam[0]) * (np.eye(m) - 1.0 / m) + float(lam[1]) * np.eye(m)), np.eye(d))
    reference = Reference.of(stacked, fed.y, problem.c[tasks], loss, Q)
    u, ended = reference.minimiser(mp.mpf(0) if (np.abs(stacked).max(axis=0) > 0.0).all() else RIDGE)
    least, here = reference.value(u), reference.value(reference.scaled(best.w))
    off = 1e3 * EPS * float(magnitude(reference, best.w, Q))
    below(best.lower, least, off, kind)
    assert here - least <= mp.mpf(best.gap), f"{kind}: gap {best.gap}, suboptimality {mp.nstr(here - least, 10)}"
    gap = problem.measure(best.w[None]).gap[0]
    assert not here - least > mp.mpf(gap) + off, f"{kind}: measured gap {gap}"
    out = {"target": "multi-task", "kind": kind, "loss": repr(loss), "gap": best.gap}
    H = np.vstack([np.sqrt(problem.c[tasks])[:, None] * stacked, np.linalg.cholesky(Q).T])
    good = ended and conditioning(H, np.ones(len(H))) <= 1e8
    return out | ({"certified_tasks": tight(best.gap, least, reference.value([mp.mpf(0)] * (m * d)))} if good else {})


def magnitude(reference: Reference, w: np.ndarray, Q: np.ndarray) -> Any:
    """What is summed in a value, in absolute terms: losses, slopes times sums of products, their squares, penalty."""
    u, total = [abs(v) for v in reference.scaled(w)], mp.mpf(0)
    for row, y, c, z in zip(reference.A, reference.y, reference.c, reference.scores(reference.scaled(w)), strict=True):
        reach = sum(abs(a) * b for a, b in zip(row, u, strict=True))
        value, slope, bend = reference.row(z, y)
        total += c * (value + abs(slope) * reach + bend * mp.mpf(EPS) * reach**2)
    return total + sum(
        abs(mp.mpf(q)) * mp.mpf(abs(a)) * mp.mpf(abs(b))
        for row, a in zip(Q.tolist(), w.ravel().tolist(), strict=True)
        for q, b in zip(row, w.ravel().tolist(), strict=True)
    )


def boosting_trial(rng: np.random.Generator) -> dict:
    """`EnsembleProblem`: no ensemble lies below a certificate; gaps bound what the best ensembles known gain."""
    n, N, p = int(rng.integers(3, 15)), int(rng.integers(1, 7)), int(rng.integers(1, 4))
    loss = [Exponential(), Logistic2()][int(rng.integers(2))]
    H, y, kind = nasty_rows(rng, False, max(n, p), N)
    H = H / max(1.0, float(np.abs(H).max()))
    n, N = H.shape
    domain = np.concatenate([np.arange(p), np.sort(rng.integers(0, p, n - p) * int(rng.random() < 0.7))])
    fed = Federation.from_arrays(np.zeros((n, 1)), y, domain, domain)
    q = None if rng.random() < 0.5 else rng.dirichlet(np.full(p, 0.3), size=n)
    sources = np.arange(N) % p
    problem = EnsembleProblem(fed, Dictionary(H, sources), q, loss)
    best = problem.solve()
    U = problem.signed
    assert np.isfinite(best.w).all(), kind
    assert math.isfinite(best.value), kind
    assert (best.w >= 0.0).all(), kind
    assert best.w.sum() <= 100.0 * (1.0 + 1e-12), kind
    points = [
        best.w,
        np.zeros(N),
        *(100.0 * np.eye(N)),
        *(rng.dirichlet(np.full(N, 0.3), 6) * rng.uniform(0, 100, (6, 1))),
    ]
    for _ in range(4):
        near = np.maximum(best.w * (1.0 + 10.0 ** -rng.uniform(1, 8) * rng.normal(size=N)), 0.0)
        points.append(near * min(1.0, 100.0 / max(near.sum(), 1e-300)))
    values = [worst(problem, U, a) for a in points]
    for F in values:
        below(best.lower, F, 1e3 * EPS * float(F) * 101.0, kind)
        assert values[0] - F <= mp.mpf(best.gap), f"{kind}: gap {best.gap}"
    for alpha in points[:4] + points[-2:]:
        value, lower = problem.certificate(alpha)
        for F in values:
            below(lower, F, 1e3 * EPS * float(F) * 101.0, f"{kind}: certificate")
        assert not math.isnan(value), kind
    assert (problem.measure(np.array(points)).gap >= 0.0).all(), kind
    out = {"target": "boosting", "kind": kind, "loss": repr(loss), "gap": best.gap}
    return out | {"certified_boosting": tight(best.gap, values[0], values[1])}


def worst(problem: EnsembleProblem, U: np.ndarray, alpha: np.ndarray) -> Any:
    """max_k F_k(alpha), from the doubles in U (n, N)."""
    a, F = [mp.mpf(v) for v in alpha.tolist()], []
    for lo, hi in zip(problem.bounds[:-1], problem.bounds[1:], strict=True):
        margins = [sum(mp.mpf(u) * v for u, v in zip(row, a, strict=True)) for row in U[lo:hi].tolist()]
        rows = [mp.log1p(mp.exp(-m)) / mp.log(2) if problem.base2 else mp.exp(-m) for m in margins]
        F.append(sum(rows) / len(rows))
    return max(F)


def nasty_trial(rng: np.random.Generator) -> dict:
    """One of `solve`, `solve_minimax`, multi-task and boosting certificates on nasty rows, in 60 digits."""
    trial = [solve_trial, solve_trial, solve_trial, minimax_trial, multitask_trial, boosting_trial][
        int(rng.integers(6))
    ]
    with mp.workdps(DIGITS):
        return trial(rng)
