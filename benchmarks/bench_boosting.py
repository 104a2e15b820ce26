"""A boosting round with stumps, n = 10,000, d = 100: one source beside scikit-learn and others; four sources."""

from __future__ import annotations

import warnings

import numpy as np
from _timing import Report, compare
from sklearn.ensemble import AdaBoostClassifier
from sklearn.tree import DecisionTreeClassifier

from fedconvex import Federation, iterate, run
from fedconvex.draws import Draws, key_from_seed
from fedconvex.methods import MultiBoost
from fedconvex.problems import Logistic2, StumpProblem, fit_q

N, D, P = 10_000, 100, 4
MANY, AFTER = 20, 300  # rounds per timed call, and before those that are called later


def data():
    """Rows in single precision, which is what scikit-learn's trees compare."""
    rng = np.random.default_rng(0)
    X, domain = rng.standard_normal((N, D)), rng.integers(0, P, N)
    X[:, 0] += domain
    y = np.sign(X[:, 1] + X[:, 2] * (domain - 1.5) + rng.standard_normal(N))
    return X.astype(np.float32).astype(np.float64), y, domain


def rounds(method, problem):
    """Return a call of MANY rounds from the start; sorting is done once, before."""

    def call():
        for _, state in iterate(method, problem, rounds=MANY):
            last = state
        return last

    return call


def later(method, problem):
    """Return a call of MANY rounds after so many: edges are closer then, and more features are scanned."""
    for _, state in iterate(method, problem, rounds=AFTER):
        begin = state

    def call():
        state = begin
        for t in range(AFTER, AFTER + MANY):
            state = method.round(problem, state, Draws(key_from_seed(0), np.arange(1), t))
        return state

    return call


def adaboost(X, y):
    peer = AdaBoostClassifier(DecisionTreeClassifier(max_depth=1), n_estimators=MANY, random_state=0)
    return lambda: peer.fit(X, y)


def xgboost_rounds(X, y, how):
    """Boosting rounds on prepared data; XGBoost minimises the logistic loss with real-valued leaves."""
    import xgboost

    rows = xgboost.DMatrix(X, y > 0)
    if how == "hist":
        rows = xgboost.QuantileDMatrix(X, y > 0, max_bin=255)
    settings = {"max_depth": 1, "tree_method": how, "objective": "binary:logistic", "nthread": 1, "max_bin": 255}
    return lambda: xgboost.train(settings, rows, MANY)


def lightgbm_rounds(X, y):
    import lightgbm

    settings = {"num_leaves": 2, "objective": "binary", "num_threads": 1, "verbose": -1, "max_bin": 255}
    rows = lightgbm.Dataset(X, y > 0, params=settings).construct()
    return lambda: lightgbm.train(settings, rows, MANY)


def peers(report, case, X, y):
    """Programs that are installed, by name; a row says which are not."""
    found = {}
    for name, make in {
        "XGBoost exact": lambda: xgboost_rounds(X, y, "exact"),
        "XGBoost hist": lambda: xgboost_rounds(X, y, "hist"),
        "LightGBM": lambda: lightgbm_rounds(X, y),
    }.items():
        try:
            found[name] = make()
        except ImportError as error:
            report.row(case, name, None, note=f"missing: {error.name}")
    return found


def main():
    report = Report("boosting", "A boosting round with stumps, n = 10,000, d = 100, one thread", "ms", 1e3, "cpu")
    X, y, domain = data()
    one, four = np.zeros(N, dtype=int), domain
    alone = Federation.from_arrays(X, y, one)
    gini = StumpProblem(alone, criterion="gini")
    peer = adaboost(X, y)()
    mine = run(MultiBoost(), gini, rounds=MANY, tol=0).state.history[0]
    report.check("alpha = scikit-learn's", float(np.abs(2 * mine[:, 5] - peer.estimator_weights_).max()), 1e-10)
    features = sum(int(a) != t.tree_.feature[0] for a, t in zip(mine[:, 1], peer.estimators_, strict=True))
    report.check("stumps = scikit-learn's", float(features), 0.0)

    case = "one source"
    calls = {
        "package, gini (equal result)": rounds(MultiBoost(), gini),
        "package, error": rounds(MultiBoost(), StumpProblem(alone)),
        "package, 255 bins": rounds(MultiBoost(), StumpProblem(alone, bins=255)),
        "package, gini, after 300 rounds": later(MultiBoost(), gini),
        "package, error, after 300 rounds": later(MultiBoost(), StumpProblem(alone)),
        "scikit-learn AdaBoost": adaboost(X, y),
    } | peers(report, case, X, y)
    times = compare(calls, repeats=12)
    found = {name: report.row(case, name, t, per=MANY) for name, t in times.items()}
    report.bar("exact stumps, equal result (ms)", found["package, gini (equal result)"], 2.0)
    report.bar("histogram (ms)", found["package, 255 bins"], 0.5)
    ratio = found["scikit-learn AdaBoost"] / found["package, gini (equal result)"]
    report.bar("1 / speed-up over scikit-learn", 1.0 / ratio, 1.0 / 50.0)

    case = "four sources, smoothed"
    fed = Federation.from_arrays(X, y, four, four)
    q = fit_q(fed.X, fed.domain, l2=1e-3, calibrate=False)
    calls = {}
    for name, loss in (("exponential", None), ("logistic", Logistic2())):
        for how, bins in (("exact", None), ("255 bins", 255)):
            problem = StumpProblem(fed, q, loss, bins=bins)
            calls[f"{name}, {how}"] = rounds(MultiBoost(smoothing=50.0), problem)
            if how == "exact":
                calls[f"{name}, {how}, after 300 rounds"] = later(MultiBoost(smoothing=50.0), problem)
    found = {name: report.row(case, name, t, per=MANY) for name, t in compare(calls, repeats=40).items()}
    report.bar("four sources, exact stumps (ms)", found["exponential, exact"], 2.0)
    report.bar("four sources, exact stumps, after 300 rounds (ms)", found["exponential, exact, after 300 rounds"], 2.0)
    report.write()


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        main()
