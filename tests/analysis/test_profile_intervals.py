"""Profile-likelihood intervals: published values, ends in 50 digits, searches that stop early, separated responses."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from fifty_digits import Exact
from inference_data import data, published
from scipy import stats
from test_likelihood import problem_of

from fedconvex.analysis import analyse, negative_binomial, profile_ends
from fedconvex.analysis.likelihood import certified_minimum
from fedconvex.analysis.profile_ends import Level, ends
from fedconvex.analysis.response_families import GAMMA, GAUSSIAN, LOGISTIC, POISSON, QUASIPOISSON

pytestmark = pytest.mark.anywhere
FAMILIES = (GAUSSIAN, LOGISTIC, POISSON, QUASIPOISSON, GAMMA, negative_binomial(2.0))


def table(d):
    """A data set as a table: columns x1, x2, ..., the response, the client and the weight."""
    columns = {f"x{j}": d.X[:, j] for j in range(1, d.X.shape[1])}
    return columns | {"y": d.y, "site": d.clients, "s": d.s, "o": d.o}


@pytest.mark.parametrize(
    ("name", "own", "column", "low", "high"),
    [
        ("spector", False, 2, 0.478466588376, 4.80987933795),
        ("fair", True, 4, -0.443013846834, -0.306468808125),
        ("diabetes", False, 3, 7.09843632253, 9.87024141317),
        ("cancer", True, 0, 0.231769785468, 0.350903551822),
        ("randhie", True, 0, -0.058223964118, -0.046918476591),
        ("cancer-separated", False, 1, 4.93837851865, np.inf),
    ],
)
def test_published_ends(name, own, column, low, high):
    """R 4.2's confint.glm solved to its last digits, and an independent NumPy code; of diabetes the t interval."""
    pytest.importorskip("statsmodels")
    d = published(name)
    columns = [f"x{j}" for j in range(1, d.X.shape[1])]
    found = analyse(
        table(d), "y", "site", family=d.family.name, site_intercepts=own, intervals="profile", features=columns,
        keep=columns,
    )  # fmt: skip
    row = found.table()[column + (name == "spector")]
    assert (row.low, row.high) == pytest.approx((low, high), rel=3e-11, abs=1e-11)


def drawn(seed, p=2):
    """Few rows with weights and offsets, of all families; small ones are far from normal."""
    rng = np.random.default_rng(seed)
    family = FAMILIES[seed % 6]
    n = int(rng.integers(12, 30))
    X, o, who = rng.normal(size=(n, p)) * [1.0, 100.0], 0.3 * rng.normal(size=n), rng.integers(0, 3, n)
    mean = family.mean(0.4 + X @ [0.5, -0.004] + o)
    y = {
        "gaussian": lambda: mean + rng.normal(size=n),
        "logistic": lambda: (rng.random(n) < mean).astype(float),
        "gamma": lambda: rng.gamma(2.0, mean / 2.0),
    }.get(family.name, lambda: rng.poisson(mean).astype(float))()
    return data(X, y, who, family, rng.integers(1, 3, n), o)


def analysed(d, **options):
    named = {"weight": "s", "offset": "o"} | options
    return analyse(table(d), "y", "site", family=d.family, intervals="profile", keep=["x1", "x2", "y"], **named)


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.slow if seed >= 6 else ()) for seed in range(24)],
)
def test_ends_in_fifty_digits_are_enclosed(seed):
    """Every end lies between its two numbers, which differ by less than 1e-9 of the interval."""
    d = drawn(seed)
    try:
        found = analysed(d)
    except ValueError as error:
        assert "response" in str(error)  # all classes alike
        return
    if found.fit.recession is not None:
        return
    profile, (low, high) = found.profile, found.profile.center
    df = d.n - d.X.shape[1]
    q = stats.chi2.isf(0.05, 1) if d.family.reference == "normal" else stats.t(df).isf(0.025) ** 2
    with mp.workdps(60):
        phi = mp.mpf(found.dispersion)  # the ends are those of the printed dispersion, which is right to rounding
        exact = Exact(d.family.name, d.X, d.y, d.s, d.o)
        assert abs(exact.dispersion(found.estimates) / phi - 1) < 1e-11
        for j in range(d.X.shape[1]):
            left, right = exact.ends(found.estimates, j, q, (low[j], high[j]), phi)
            assert profile.low[j, 0] <= left <= profile.low[j, 1], (seed, j)
            assert profile.high[j, 0] <= right <= profile.high[j, 1], (seed, j)
    width = max(np.ptp(profile.low, axis=1).max(), np.ptp(profile.high, axis=1).max())
    assert width <= 1e-9 * (high - low).max(), seed


def stopped(d, rounds, monkeypatch):
    """Enclosures of the upper ends where searches stop after a number of rounds."""
    problem = problem_of(d)
    found = certified_minimum(problem, np.zeros((1, problem.size)))
    N, off, drop = found.value[0], problem.value_rounding(found.b[0]), 0.5 * stats.chi2.isf(0.05, 1)
    monkeypatch.setattr(profile_ends, "ROUNDS", rounds)
    level = Level(N - found.gap[0] - off + drop, N + drop, N + off + drop, drop)
    return ends(problem, np.eye(problem.size), found.b[0], N + off, level)


def test_searches_that_stop_early_enclose_too(monkeypatch):
    """What an enclosure rests on is no convergence; without the gap of the tilted function it would be wrong."""
    d = drawn(1)
    whole = stopped(d, 100, monkeypatch)
    wrong = 0
    for rounds in (2, 3, 4):
        early = stopped(d, rounds, monkeypatch)
        assert (early.inner <= whole.outer).all()
        assert (early.outer >= whole.inner).all()
        with monkeypatch.context() as planted:
            planted.setattr(profile_ends, "certified_gap", lambda decrement, kappa: np.zeros_like(decrement))
            wrong += (stopped(d, rounds, planted).outer < whole.inner).any()
    assert wrong


def separable(seed):
    """A table with a level whose responses often agree, and the rows of the plain linear programme."""
    rng = np.random.default_rng(seed)
    name = ("logistic", "poisson")[seed % 2]
    n, own = int(rng.integers(10, 40)), seed % 3 == 0
    X = np.column_stack([rng.normal(size=n).round(1), rng.random(n) < 0.2]) * 1.0
    who = np.arange(n) % 2
    z = 0.5 * X[:, 0] + rng.choice([3.0, 20.0]) * (X[:, 1] - 0.5)
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-z))).astype(float) if name == "logistic" else rng.poisson(np.exp(-z / 8))
    A = np.column_stack([X, np.eye(2)[who]]) if own else np.column_stack([np.ones(n), X])
    return name, own, {"x": X[:, 0], "level": X[:, 1], "y": y, "site": who}, A, np.asarray(y, dtype=float)


def rises(name, A, y, a):
    """By a linear programme: whether a'v > 0 for a direction of recession v."""
    signed = A * (2.0 * y - 1.0)[:, None] if name == "logistic" else -A[y == 0.0]
    equal = A[:0] if name == "logistic" else A[y > 0.0]
    found = scipy.optimize.linprog(
        -a, -signed, np.zeros(len(signed)), equal if len(equal) else None, np.zeros(len(equal)) if len(equal) else None,
        (-1.0, 1.0), method="highs",
    )  # fmt: skip
    return -found.fun > 1e-6


def least(name, A, y, a, end):
    """inf N over b with a'b = end: far out it is as good as attained."""

    def N(c):
        b = a * end / (a @ a) + free @ c
        z = np.clip(A @ b, -700.0, 300.0)
        if name == "logistic":
            return float(np.logaddexp(0.0, np.where(y > 0.5, -z, z)).sum())
        return float((np.exp(z) - y * z - y + np.where(y > 0, y * np.log(np.maximum(y, 1.0)), 0.0)).sum())

    free = np.linalg.svd(a[None])[2][1:].T
    best = np.zeros(free.shape[1])
    for _ in range(4):
        best = scipy.optimize.minimize(N, best, method="BFGS", options={"gtol": 1e-9, "maxiter": 4000}).x
    return N(best)


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 100), marks=pytest.mark.slow)], ids=["few", "many"])
def test_infinite_ends_are_those_of_a_linear_programme(seeds):
    """None is missed, none invented; finite ends of separated responses are where N crosses its level."""
    separated = 0
    for seed in seeds:
        name, own, rows, A, y = separable(seed)
        try:
            found = analyse(
                rows, "y", "site", family=name, site_intercepts=own, intervals="profile", keep=["x", "level"]
            )
        except ValueError as error:
            assert any(word in str(error) for word in ("vary", "differ within", "classes", "combination")), error
            continue
        heard = ~found.fit.problem.silent[np.asarray(rows["site"])] if own else np.ones(len(y), dtype=bool)
        A, y = A[heard][:, (A[heard] != 0.0).any(axis=0)], y[heard]
        separated += found.fit.recession is not None
        for j, row in enumerate(found.table()):
            a = np.eye(A.shape[1])[j]
            assert (row.high == np.inf) == rises(name, A, y, a), (seed, row)
            assert (row.low == -np.inf) == rises(name, A, y, -a), (seed, row)
            level = 0.5 * found.deviance + 0.5 * stats.chi2.isf(0.05, 1)
            for end, way in ((row.low, -1.0), (row.high, 1.0)):
                if found.fit.recession is not None and np.isfinite(end) and seed < 60:
                    assert least(name, A, y, a, end - 0.02 * way) < level < least(name, A, y, a, end + 0.02 * way), (
                        seed,
                        row,
                    )
    assert separated >= len(seeds) // 6


def test_separated_responses_without_profiles_are_named():
    """The column and the clients whose rows are lost."""
    level = np.repeat([0, 1], [30, 6])
    rows = {"level": level, "y": np.where(level, 1, np.arange(36) % 2), "site": np.where(np.arange(36) > 33, "b", "a")}
    with pytest.raises(ValueError, match="for ever along level, in 6 rows of a, b"):
        analyse(rows, "y", "site")
    text = analyse(rows, "y", "site", intervals="profile").summary()
    assert "Separated" in text and "in 6 rows of a, b" in text


def test_profiles_with_robust_variances_are_refused():
    """They rest on the model."""
    rows = {"x": np.arange(12.0) % 5, "y": np.arange(12) % 2, "site": np.arange(12) % 3}
    with pytest.raises(ValueError, match="'wald' with a robust covariance"):
        analyse(rows, "y", "site", robust="HC0", intervals="profile", keep=["x"])


@pytest.mark.slow_unless(seed=0)
@pytest.mark.parametrize("seed", range(5))
def test_robust_covariances_in_fifty_digits(seed):
    """HC0, HC2 and HC3 by their definitions at the minimum in 50 digits, of every family: relative 1e-9."""
    d = drawn(seed)
    columns = [f"x{j}" for j in range(1, d.X.shape[1])]
    how = {"family": d.family, "weight": "s", "offset": "o", "features": columns, "guard": False}
    with mp.workdps(50):
        exact = Exact(d.family.name, d.X, d.y, d.s, d.o)
        best, _, _, J = exact._best(analyse(table(d), "y", "site", **how).estimates)
        inverse = np.array((mp.matrix(J.tolist()) ** -1).tolist(), dtype=object).reshape(J.shape)
        rows = [exact.loss(z, y) for z, y in zip(exact.X @ best + exact.o, exact.y, strict=True)]
        slopes, bends = (np.array([row[i] for row in rows], dtype=object) for i in (1, 2))
        leverages = bends * ((exact.X @ inverse) * exact.X).sum(axis=1)
        wanted = {}
        for kind, power in (("HC0", 0), ("HC2", 1), ("HC3", 2)):
            weights = exact.s * slopes**2 / (1 - leverages) ** power
            V = inverse @ ((exact.X.T * weights) @ exact.X) @ inverse
            wanted[kind] = [float(mp.sqrt(V[j, j])) for j in range(exact.p)]
    for kind, errors in wanted.items():
        found = analyse(table(d), "y", "site", robust=kind, **how)
        np.testing.assert_allclose(found.standard_errors, errors, rtol=1e-9, err_msg=f"{d.family.name} {kind}")


def test_firth_adds_a_half_to_every_cell_of_a_table():
    """Closed form for one column of 0 and 1 (Heinze and Schemper, 2002), where the likelihood rises for ever."""
    a, b, c, d = 20, 9, 0, 7  # y = 0 and 1 at level 0, and at level 1
    rows = {
        "level": np.repeat([0, 0, 1, 1], [a, b, c, d]), "y": np.repeat([0, 1, 0, 1], [a, b, c, d]),
        "site": np.arange(36) % 3,
    }  # fmt: skip
    found = analyse(rows, "y", "site", firth=True)
    low, high = np.log((b + 0.5) / (a + 0.5)), np.log((d + 0.5) / (c + 0.5))
    assert found.estimates == pytest.approx([low, high - low], rel=1e-10)
    assert found.standard_errors[1] > 1.0
    assert "not certified" in found.summary()
    assert found.test("level", "wald").p < 0.05
    for refused in (lambda: found.test("level", "score"), lambda: found.differences):
        with pytest.raises(ValueError, match=r"[Ff]irth"):
            refused()
    for options in ({"site_intercepts": True}, {"robust": "HC0"}, {"family": "poisson"}):
        with pytest.raises(ValueError, match="firth"):
            analyse(rows, "y", "site", **{"firth": True} | options)


@pytest.mark.slow
def test_penalised_tests_and_ends_of_a_table():
    """One column of 0 and 1: det J is the product of cells' variances, so that l* has a half more in every cell.

    Its maximum without the column is that of one cell of both levels; ends are roots in 30 digits.
    """
    mpmath = pytest.importorskip("mpmath")
    n, k = (29, 7), (9, 7)  # rows and events at both levels: the second one's are all events
    rows = {
        "level": np.repeat([0, 1], n), "y": np.concatenate([np.arange(m) < e for m, e in zip(n, k, strict=True)]) * 1,
        "site": np.arange(36) % 3,
    }  # fmt: skip
    found = analyse(rows, "y", "site", firth=True, intervals="profile", level=0.9)
    half = mpmath.mpf(1) / 2
    with mpmath.workdps(30):

        def penalised(low, high):
            cells = zip((low, high), n, k, strict=True)
            return sum((e + half) * mpmath.log(m) + (r - e + half) * mpmath.log(1 - m) for m, r, e in cells)

        def profile(d):
            def slope(a):  # of l* in the intercept: events and halves less what is expected
                return sum(e + half - (r + 1) / (1 + mpmath.exp(-z)) for z, r, e in zip((a, a + d), n, k, strict=True))

            a = mpmath.findroot(slope, (-30, 30), solver="anderson")
            return penalised(*(1 / (1 + mpmath.exp(-z)) for z in (a, a + d)))

        top = penalised(*((e + half) / (r + 1) for r, e in zip(n, k, strict=True)))
        both = (sum(k) + mpmath.mpf(1)) / (sum(n) + 2)
        statistic = 2 * (top - penalised(both, both))
        q = mpmath.mpf(scipy.stats.chi2.ppf(0.9, 1))
        middle = mpmath.mpf(float(found.estimates[1]))
        wanted = [
            mpmath.findroot(lambda d: 2 * (top - profile(d)) - q, ends, solver="anderson")
            for ends in ((middle - 6, middle - half), (middle + half, middle + 12))
        ]
    test = found.test("level")
    assert (test.df, test.statistic) == (1, pytest.approx(float(statistic), rel=1e-10))
    assert test.p == pytest.approx(scipy.stats.chi2.sf(float(statistic), 1), rel=1e-8)
    row = found.table()[1]
    assert (row.low, row.high) == pytest.approx([float(v) for v in wanted], rel=1e-9)
    assert found.test().statistic == test.statistic and "not certified" in found.summary()


def test_firth_of_published_rows():
    """R's logistf by an independent code: breast cancer, mean radius above 18."""
    d = published("cancer-separated")
    found = analyse(table(d), "y", "site", features=["x1"], keep=["x1"], firth=True)
    assert found.estimates == pytest.approx([-1.0874856092, 6.30784143428], rel=1e-9)
    limit = analyse(table(d), "y", "site", features=["x1"], keep=["x1"], intervals="profile")
    assert limit.deviance == pytest.approx(538.109365849, rel=1e-11)  # R's glm, of the rows at the level that varies


@pytest.mark.parametrize("seed", range(4))
def test_firth_maximises_the_penalised_likelihood(seed):
    """By a general minimiser on raw columns; weights count equal rows."""
    d = drawn(6 * seed + 1)
    found = analyse(table(d), "y", "site", features=["x1", "x2"], weight="s", keep=["x1", "x2"], firth=True)
    scale = np.array([1.0, 1.0, 100.0])

    def penalised(c):
        z = d.X @ (c / scale)
        w = d.s / (2.0 + 2.0 * np.cosh(z))
        J = ((d.X / scale).T * w) @ (d.X / scale)
        return float(d.s @ np.logaddexp(0.0, np.where(d.y > 0.5, -z, z))) - 0.5 * np.linalg.slogdet(J)[1]

    best = scipy.optimize.minimize(penalised, np.zeros(3), method="BFGS", options={"gtol": 1e-8}).x / scale
    assert found.estimates == pytest.approx(best, rel=1e-5, abs=1e-6), seed
    names = found.names
    least = scipy.optimize.minimize(lambda c: penalised(np.insert(c, 1, 0.0)), np.zeros(2), method="BFGS").fun
    assert found.test(names[1]).statistic == pytest.approx(2.0 * (least - penalised(best * scale)), rel=1e-4), seed


def test_an_end_that_is_not_enclosed_is_no_infinite_one():
    """A hair's breadth from separation rounding leaves no certificate: the inner number is told, and the doubt."""
    n = 40
    x = np.linspace(-2.0, 2.0, n)
    y = (x > 0.0).astype(int)
    x[19], x[20] = 1e-8, -1e-8
    found = analyse({"x": x, "y": y, "site": np.arange(n) % 2}, "y", "site", keep=["x"], intervals="profile")
    row = found.table()[0]
    assert (row.low, row.high) == pytest.approx((-3.22938663, 3.22938663), rel=1e-6)
    assert found.profile.loose == 0 or "not certified" in found.summary()


def test_names_and_units_that_mislead_are_refused_in_words():
    """A column that is called as the intercept is; responses at the end of doubles, which separate nothing."""
    rng = np.random.default_rng(3)
    x, site = rng.normal(size=60), np.arange(60) % 3
    y = (x + 2.0 * rng.normal(size=60) > 0.0).astype(int)
    with pytest.raises(ValueError, match="other names than 'Intercept'"):
        analyse({"Intercept": x, "z": x**2, "y": y, "site": site}, "y", "site", guard=False)
    with pytest.raises(ValueError, match=r"size between 1e-60 and 1e60.*units"), np.errstate(all="ignore"):
        analyse({"x": x, "y": 1e160 * rng.normal(size=60), "site": site}, "y", "site", family="gaussian", guard=False)
