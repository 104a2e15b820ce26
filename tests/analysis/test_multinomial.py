"""Several classes against a reference: statsmodels' MNLogit, enclosed profile ends, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

from fedconvex.analysis import analyse
from fedconvex.analysis.multinomial import MultinomialLikelihood
from fedconvex.cli import main

pytestmark = pytest.mark.anywhere


def drawn(seed, n=300, C=3):
    rng = np.random.default_rng(seed)
    X, ward = rng.normal(size=(n, 2)) * [1.0, 10.0 ** rng.uniform(-3, 3)], rng.choice(["a", "b"], n)
    z = np.column_stack([np.zeros(n), 0.5 + X[:, 0], -0.5 * X[:, 0] + (ward == "b")][:C])
    y = np.array(["green", "red", "blue"])[(z + rng.gumbel(size=z.shape)).argmax(axis=1)]
    return {
        "x1": X[:, 0],
        "x2": X[:, 1],
        "ward": ward,
        "party": y,
        "site": rng.integers(0, 4, n),
        "s": rng.integers(1, 4, n),
    }


def found_of(table, **options):
    return analyse(table, "party", "site", keep=["x1"], **options)


@pytest.mark.parametrize("seed", range(4))
def test_statsmodels_agrees(seed):
    """Estimates, errors, deviance and the likelihood-ratio test, against standardised columns transformed back."""
    api = pytest.importorskip("statsmodels.api")
    t = drawn(seed)
    found = found_of(t, reference={"party": "green", "ward": "a"}, drop=["s"])
    assert found.names[:2] == ("blue: Intercept", "blue: x1")
    scale = t["x2"].std()
    X = np.column_stack([np.ones(300), t["x1"], t["x2"] / scale, t["ward"] == "b"])
    code = np.select([t["party"] == "green", t["party"] == "blue"], [0, 1], 2)
    model = api.MNLogit(code, X)
    other = model.fit(method="newton", tol=1e-14, maxiter=100, disp=0)
    unit = np.tile([1.0, 1.0, scale, 1.0], 2)
    order = [0, 1, 2, 3] * 2
    assert [name.split(": ")[1] for name in found.names] == [["Intercept", "x1", "x2", "ward=b"][j] for j in order]
    np.testing.assert_allclose(found.estimates * unit, other.params.T.ravel(), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.standard_errors * unit, other.bse.T.ravel(), rtol=1e-8)
    assert found.log_likelihood == pytest.approx(other.llf, rel=1e-10)
    assert -0.5 * found.null_deviance == pytest.approx(other.llnull, rel=1e-8)
    assert found.aic == pytest.approx(other.aic, rel=1e-10)
    without = api.MNLogit(code, X[:, [0, 2, 3]]).fit(method="newton", tol=1e-14, disp=0)
    test = found.test("x1")
    assert (test.df, test.statistic) == (2, pytest.approx(2.0 * (other.llf - without.llf), rel=1e-7))
    assert found.test("x1", "score").statistic == pytest.approx(test.statistic, rel=0.3)
    robust = found_of(t, reference={"party": "green"}, drop=["s"], robust="HC0")
    wanted = model.fit(method="newton", tol=1e-14, disp=0, cov_type="HC0").bse.T.ravel()
    np.testing.assert_allclose(robust.standard_errors * unit, wanted, rtol=1e-7)


def test_published_rows():
    """Of statsmodels.datasets.anes96 by an independent code: party against 0, class 1, of self-placement."""
    sets = pytest.importorskip("statsmodels.datasets")
    f = sets.anes96.load_pandas().data
    table = {c: f[c].to_numpy() for c in ("selfLR", "age", "educ")} | {
        "PID": f["PID"].to_numpy(int),
        "site": np.arange(944) % 3,
    }
    found = analyse(table, "PID", "site", family="multinomial", keep=["selfLR", "age", "educ"])
    assert found.log_likelihood == pytest.approx(-1485.46195225, rel=1e-11)
    row = next(c for c in found.table() if c.name == "1: selfLR")
    assert row[1:3] == (pytest.approx(0.295111549423, rel=1e-10), pytest.approx(0.093503331340, rel=1e-10))


def test_weights_count_equal_rows():
    """A row of weight three is three rows."""
    t = drawn(5)
    many = {c: np.repeat(v, t["s"]) for c, v in t.items()}
    one, other = found_of(t, weight="s"), found_of(many, drop=["s"])
    np.testing.assert_allclose(one.estimates, other.estimates, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(one.standard_errors, other.standard_errors, rtol=1e-10)
    for robust in ("HC1", "client"):
        pair = [
            f.standard_errors
            for f in (found_of(t, weight="s", robust=robust), found_of(many, drop=["s"], robust=robust))
        ]
        np.testing.assert_allclose(*pair, rtol=1e-9)


def test_profile_ends_lie_where_the_likelihood_crosses_its_level():
    """By a general minimiser over the other coefficients, a little inside and a little outside."""
    t = drawn(2, n=60)
    found = found_of(t, intervals="profile", features=["x1", "ward"])
    problem, T = found.fit.problem, found.fit.T
    level = 0.5 * found.deviance + 0.5 * 3.841458820694124
    assert np.ptp(found.profile.low, axis=1).max() < 1e-8

    def least(j, end):
        """min N with b_j = end."""
        a = T[j]
        free = np.linalg.svd(a[None])[2][1:].T

        def N(c):
            at = problem.sums((a * end / (a @ a) + free @ c)[None])
            return at.values[0], free.T @ at.gradients[0]

        return scipy.optimize.minimize(
            N, np.zeros(problem.size - 1), jac=True, method="BFGS", options={"gtol": 1e-7}
        ).fun

    for j, row in enumerate(found.table()):
        for end, way in ((row.low, -1.0), (row.high, 1.0)):
            step = 1e-4 * way * row.standard_error
            assert least(j, end - step) < level < least(j, end + step), row


def test_derivatives_and_self_concordance(rng):
    """Differences of N, and |third derivative| <= spread times the second, along random lines."""
    found = found_of(drawn(3), drop=["s"])
    problem: MultinomialLikelihood = found.fit.problem
    b, v = rng.normal(size=(2, problem.size))

    def along(t):
        at = problem.sums((b + t * v)[None])
        return at.values[0], at.gradients[0] @ v, v @ at.hessians[0] @ v

    h = 1e-5
    (N0, g0, H0), (_, _, H1), (N2, g2, H2) = along(-h), along(0.0), along(h)
    assert (N2 - N0) / (2 * h) == pytest.approx(along(0.0)[1], rel=1e-6)
    assert (g2 - g0) / (2 * h) == pytest.approx(H1, rel=1e-6)
    A = np.outer(v, v)
    reach = problem.spread(A[None])[0]
    assert abs(H2 - H0) / (2 * h) <= 1.001 * reach * H1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"site_intercepts": True}, "not be given for family 'multinomial'"),
        ({"robust": "HC3"}, "HC0, HC1 or client"),
        ({"reference": {"party": "grey"}}, "reference of 'party'.*green"),
        ({"family": "logistic"}, "two classes"),
        ({"firth": True}, "firth"),
    ],
)
def test_what_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        found_of(drawn(1), **options)


def test_separated_classes_and_tests_of_one_class_are_named():
    """A level that only one class has; a likelihood-ratio test needs a column of all classes."""
    t = drawn(4)
    t["ward"] = np.where(t["party"] == "blue", "z", "y")
    with pytest.raises(ValueError, match=r"separated.*ward=z"):
        found_of(t)
    found = found_of(drawn(4), reference={"party": "green"}, drop=["s"])
    assert found.test("red: x1", "wald").df == 1
    with pytest.raises(ValueError, match="some classes only"):
        found.test("red: x1")
    with pytest.raises(ValueError, match="one score"):
        _ = found.differences


def test_the_other_class_of_two_may_be_the_reference():
    """Log odds change their sign."""
    t = drawn(6, C=2)
    one, other = (found_of(t, reference={"party": base}) for base in ("green", "red"))
    np.testing.assert_allclose(one.estimates, -other.estimates, rtol=1e-9)
    assert "against red" in other.summary()


def test_command(tmp_path, capsys):
    """The command prints it, and a page of it is written."""
    t = drawn(1)
    lines = [",".join(map(str, row)) for row in [tuple(t), *zip(*t.values(), strict=True)]]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    command = ["analyse", f"{tmp_path}/t.csv", "--target", "party", "--client", "site", "--drop", "s", "--test", "x1"]
    assert main([*command, "--reference", "party=green", "--report", f"{tmp_path}/page"]) == 0
    text = capsys.readouterr().out
    assert "multinomial" in text and "red: x1" in text and "chi2(2)" in text
    assert "red: x1" in (tmp_path / "page" / "index.html").read_text()
