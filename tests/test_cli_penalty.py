"""`fedconvex solve --penalty`: what is read, what is refused, what the summary says."""

import json

import numpy as np
import pytest

from fedconvex.cli.method import told
from fedconvex.cli.parser import Refused
from fedconvex.cli.penalty import penalty
from fedconvex.penalties import L1, Box, ElasticNet, GroupLasso, NonNegative, Simplex
from fedconvex.registry import methods

PROXIMAL = [name for name, method in methods().items() if method.penalised and told(name)]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("l1:0.01", L1(0.01)),
        ("elastic-net:0.1", ElasticNet(0.1)),
        ("elastic-net:0.1:0.25", ElasticNet(0.1, 0.25)),
        ("nonnegative", NonNegative()),
        ("nonnegative:0.1", NonNegative(0.1)),
        ("box:0:inf", Box(0.0, float("inf"))),
        ("groups:0.1:3", GroupLasso(0.1, 3)),
        ("simplex", Simplex()),
        ("simplex:2", Simplex(2.0)),
    ],
)
def test_penalties_are_read(text, read):
    assert penalty(text) == read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lasso:1", "--penalty must be one of l1:STRENGTH, .*; got 'lasso:1'"),
        ("l1", "--penalty must be l1:STRENGTH; got 'l1'"),
        ("l1:x", "--penalty l1 must be a number; got 'x'"),
        ("l1:-1", "--penalty: L1.strength must be nonnegative"),
        ("box:1", "--penalty must be box:LOW:HIGH"),
        ("box:2:1", "--penalty: Box must have low <= high"),
        ("groups:0.1:1.5", "--penalty groups must have a whole number of columns"),
        ("groups:0.1:0", "--penalty: GroupLasso.groups must be at least 1"),
        ("elastic-net:1:2", "--penalty: ElasticNet.l1_ratio must"),
    ],
)
def test_bad_penalties_are_refused(text, message):
    with pytest.raises(Refused, match=message):
        penalty(text)


def solve(capsys, *options):
    from fedconvex.cli import main

    status = main(["solve", "diabetes", "--clients", "3", "--l2", "0", "--penalty", "l1:0.1", *options])
    return status, capsys.readouterr()


@pytest.mark.parametrize("method", ["", *PROXIMAL])
@pytest.mark.slow_unless(method=["", "proximal-fedsgd"])
def test_methods_with_proximal_steps_are_run(capsys, method):
    status, out = solve(capsys, "--json", "--rounds", "30", *(["--method", method] if method else []))
    assert status == 0
    found = json.loads(out.out)
    assert found["penalty"] == "L1(strength=0.1)"
    assert 0 < found["nonzero"] < 11
    assert found["gap"] < 0.1
    assert "Fenchel duality" in found["certificate"]


def test_the_summary_counts_coefficients(capsys):
    _, out = solve(capsys, "--rounds", "200")
    assert "squared loss + L1(strength=0.1)" in out.out
    assert "of 10 coefficients are not zero" in out.out


@pytest.mark.slow
def test_the_intercept_is_free_unless_it_is_asked_for(capsys):
    """Equal to scikit-learn's lasso on standardised columns; a penalised intercept costs more here."""
    from sklearn.datasets import load_diabetes
    from sklearn.linear_model import Lasso

    found = {}
    for flags in ((), ("--penalise-intercept",), ("--no-intercept",)):
        status, out = solve(capsys, "--json", "--rounds", "2000", "--method", "fista", "--tol", "1e-9", *flags)
        assert status == 0
        found[flags] = json.loads(out.out)
    X, y = load_diabetes(return_X_y=True)
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    peer = Lasso(alpha=0.1, tol=1e-12).fit(X, y)
    value = 0.5 * np.mean((y - peer.predict(X)) ** 2) + 0.1 * np.abs(peer.coef_).sum()
    assert found[()]["objective"] == pytest.approx(value, abs=2e-9)
    assert found[()]["intercept"] == "free"
    assert found[("--penalise-intercept",)]["intercept"] == "penalised"
    assert found[("--no-intercept",)]["intercept"] is None
    assert found[()]["nonzero"] == np.count_nonzero(peer.coef_)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "scaffold"), "--method with --penalty must be one of feddualavg, fedmid, fedprox, "),
        (("--method", "fista", "--local-steps", "2"), "--method fista must come without --local-steps"),
        (("--local-steps", "2"), "--method proximal-fedsgd must come without --local-steps"),
        (("--method", "fista", "--participation", "0.5"), "--method fista must come without --participation"),
    ],
)
def test_settings_that_a_method_does_not_have(capsys, options, message):
    status, out = solve(capsys, *options)
    assert status == 2
    assert message in out.err
