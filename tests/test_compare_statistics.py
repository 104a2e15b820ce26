"""What `compare` says of its figures: cross-validation without optimism or leaks, calibration without artefacts."""

import numpy as np
import pytest

from fedconvex import Federation
from fedconvex.comparison.designs import Models
from fedconvex.comparison.intake import intake
from fedconvex.comparison.kinds import Alone, Shared, Training
from fedconvex.comparison.rows import rows_of
from fedconvex.comparison.scores import calibration_bins, measures
from fedconvex.comparison.splits import fold_of
from fedconvex.comparison.tuning import Folds, tune

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
    for part, X in folds.X.items():
        own = np.nanmedian(x[fold != part])
        assert (X[np.isnan(x), 0] == own).all()
        assert X.shape[1] == (3 if fold[3] == part else 4)  # x, f, m, and "other" where the fold has seen it
    assert len({id(X) for X in folds.X.values()}) > 1


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
