"""What `compare` says of its figures: cross-validation without optimism or leaks, calibration without artefacts."""

import numpy as np
import pytest

from fedconvex import Federation
from fedconvex.comparison.designs import Models
from fedconvex.comparison.intake import intake
from fedconvex.comparison.kinds import Alone, Shared, Training
from fedconvex.comparison.rows import rows_of
from fedconvex.comparison.scores import calibration_bins, label_variance, measures
from fedconvex.comparison.splits import fold_of
from fedconvex.comparison.tuning import Folds, tune
from fedconvex.comparison.verdicts import joining

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("base", [Alone, Shared])
def test_the_loss_of_a_kind_does_not_flatter_its_choices(base):
    """Thirteen models of noise: the least of their losses is too low, the expected loss of each is known."""
    K, n = 60, 10
    X, y = RNG.normal(size=(K * n, 2)), RNG.choice([-1.0, 1.0], K * n)
    rows = rows_of(Federation.from_arrays(X, y, np.repeat(np.arange(K), n)))
    data = Training(rows, X, np.arange(K * n))

    class Noise(base):
        def path(self, data, l2s):
            for _ in l2s:
                yield Models(RNG.normal(size=(K, 1, 2)), np.zeros((K, 1)))

    found = tune(Noise(), data, Folds.of(data, fold_of(rows, data.train, 5, 0)), 2, lambda share: None)
    spread = 4.0 * 0.9 / np.sqrt(K * n)  # the loss of a row has a deviation of about 0.9
    assert abs(found.loss - found.losses.mean()) < spread
    if base is Alone:
        assert found.l2.shape == (K,) and len(set(found.l2)) > 5


def test_what_fills_gaps_in_a_fold_comes_from_its_own_training_rows():
    n = 40
    x, ward = RNG.normal(size=n), np.repeat(["a", "b"], n // 2)
    x[::7] = np.nan
    sex = np.where(np.arange(n) == 3, "other", np.where(np.arange(n) % 2, "f", "m"))
    table = {"x": x, "sex": sex, "ward": ward, "ill": RNG.choice([0, 1], n)}
    rows = intake(table, "ill", "ward", None, None, impute="median")
    train = np.arange(n)
    data = Training(rows, rows.features(train), train)
    fold = fold_of(rows, train, 5, 0)
    folds = Folds.of(data, fold)
    assert data.X.shape == (n, 4)
    for part, X in ((part, inner.X) for part, inner in folds.inner.items()):
        own = np.nanmedian(x[fold != part])
        assert (X[np.isnan(x), 0] == own).all()
        assert X.shape[1] == (3 if fold[3] == part else 4)  # x, f, m, and "other" where the fold has seen it
    assert len({id(inner.X) for inner in folds.inner.values()}) > 1


def test_equal_probabilities_stay_in_one_bin():
    hit = np.repeat([0.0, 1.0], [300, 100])  # in the order of the target
    assert calibration_bins(np.full(400, 0.25), hit) == [(400, 0.25, 0.25)]
    two = calibration_bins(np.repeat([0.1, 0.9], [105, 95]), np.repeat([0.0, 1.0], [100, 100]))
    assert [n for n, _, _ in two] == [105, 95]
    many = calibration_bins(np.arange(25) / 25, np.zeros(25))
    assert [n for n, _, _ in many] == [3, 3, 3, 3, 3, 2, 2, 2, 2, 2]
    fed = Federation.from_arrays(np.zeros((400, 1)), 2.0 * hit - 1.0, np.arange(400) % 2)
    rows = rows_of(fed)
    scores = np.full(400, np.log(0.25 / 0.75))
    assert measures(rows, scores, np.arange(400), 0.95).calibration < 1e-12


@pytest.mark.parametrize("classes", [2, 3])
def test_the_variance_over_labels_is_that_of_drawn_labels(classes):
    n, C = 6, 1 if classes == 2 else classes
    fed = Federation.from_arrays(
        np.zeros((n, 1)), np.arange(n) % classes * (2.0 if C == 1 else 1.0) - (C == 1), [0, 1] * 3
    )
    rows = rows_of(fed)
    Z, own = (RNG.normal(size=(n, C)).squeeze(), 3.0 * RNG.normal(size=(n, C)).squeeze())

    def log_probabilities(scores):
        S = np.column_stack([np.zeros(n), scores]) if C == 1 else scores
        return S - np.logaddexp.reduce(S, axis=1, keepdims=True)

    a, b = log_probabilities(Z), log_probabilities(own)
    share = 0.5 * (np.exp(a) + np.exp(b))
    first, second = (share * (b - a)).sum(axis=1), (share * (b - a) ** 2).sum(axis=1)
    np.testing.assert_allclose(label_variance(rows, Z, own), second - first**2, rtol=1e-9)


def test_verdicts_of_few_rows_hold_together_as_often_as_they_say():
    """Twenty clients, two fixed models, the second too sure; the true differences are known, labels drawn 200 times."""
    rng, K, m = np.random.default_rng(0), 20, 20
    z = 1.5 * rng.normal(size=(K, m))
    joint, own = 0.8 * z, 2.5 * z + rng.normal(size=(K, m))
    p = 1.0 / (1.0 + np.exp(-z))
    client, labels = np.repeat(np.arange(K), m), np.resize([-1.0, 1.0], K * m)
    rows = rows_of(Federation.from_arrays(np.zeros((K * m, 1)), labels, client))
    at_one, at_zero = (np.logaddexp(0.0, -s * joint) - np.logaddexp(0.0, -s * own) for s in (1.0, -1.0))
    true = (p * at_one + (1.0 - p) * at_zero).mean(axis=1)
    doubt = label_variance(rows, joint.ravel(), own.ravel())
    held = {}
    for name, given in (("plain", None), ("doubted", doubt)):
        held[name] = 0
        draws = np.random.default_rng(1)
        for _ in range(200):
            d = np.where(draws.random((K, m)) < p, at_one, at_zero).ravel()
            found = joining(d, np.zeros(K * m), client, K, 10, 0.95, given)
            held[name] += all(j.difference.low <= t <= j.difference.high for j, t in zip(found, true, strict=True))
    assert held["plain"] < 170 and held["doubted"] >= 190
