"""Cox's model fitted from rows to standard errors, beside lifelines and scikit-survival, wall time in one process.

100,000 rows of ten features, three in five with an event, and 50 rows of two; times without ties, and rounded so that
every event time has some 60 events (Efron's ties); all rows one stratum. The package sorts, minimises, certifies, and
inverts the Hessian. Peers run with their default tolerances; lifelines gives standard errors too, scikit-survival none.
A pass over the rows with delayed entry is timed beside one without.
"""

from __future__ import annotations

import warnings

import numpy as np
from _timing import Report, compare

from fedconvex.problems import SurvivalFederation, SurvivalProblem, outcomes

SIZES = {"100,000 x 10": (100_000, 10), "50 x 2": (50, 2)}
BAR = 0.2  # of each peer's time, on the large data


def rows(n, p, tied):
    """Return features, times and events of exponential hazards."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    time = rng.exponential(np.exp(-X @ np.linspace(-0.5, 0.5, p)))
    censored = np.quantile(time, 0.75) * rng.exponential(1.2, size=n)
    event, time = time <= censored, np.minimum(time, censored)
    if tied:
        time = np.ceil(1000.0 * np.argsort(np.argsort(time)) / n + 1e-9)
    return X, time, event


def fit(X, y):
    """Return coefficients and standard errors."""
    problem = SurvivalProblem(SurvivalFederation.from_arrays(X, y, np.zeros(len(X), dtype=int)))
    best = problem.solve()
    assert best.attained
    return best.w, np.sqrt(np.diag(np.linalg.inv(problem.totals(best.w)[2])))


def peers(X, time, event):
    """Return the fits of the packages that are installed: coefficients by name."""
    found = {}
    try:
        import pandas as pd
        from lifelines import CoxPHFitter

        table = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]).assign(time=time, event=event)
        found["lifelines"] = lambda: CoxPHFitter().fit(table, "time", "event").params_.to_numpy()
    except ImportError:
        pass
    try:
        from sksurv.linear_model import CoxPHSurvivalAnalysis
        from sksurv.util import Surv

        y = Surv.from_arrays(event, time)
        found["scikit-survival"] = lambda: CoxPHSurvivalAnalysis(ties="efron").fit(X, y).coef_
    except ImportError:
        pass
    return found


def main():
    warnings.simplefilter("ignore")
    report = Report("survival", "Cox's model from rows to standard errors", "s", 1.0)
    for case, (n, p) in SIZES.items():
        for tied in (False, True):
            name = f"{case}, {'tied' if tied else 'untied'}"
            X, time, event = rows(n, p, tied)
            y = outcomes(time, event)
            others = peers(X, time, event)
            for who, other in others.items():
                error = float((np.abs(other() - fit(X, y)[0]) / fit(X, y)[1]).max())
                report.check(f"{name}: {who}, in standard errors", error, 1e-3)
            timing = compare({"package": lambda X=X, y=y: fit(X, y), **others}, repeats=10, limit=90.0)
            spent = {who: report.row(name, who, timing.get(who)) for who in ("package", *others)}
            for who in others:
                report.bar(f"{name}: package / {who}", spent["package"] / spent[who], BAR if n > 1000 else None)
    passes(report, *rows(*SIZES["100,000 x 10"], False))
    report.write()


def passes(report, X, time, event):
    """Time one pass over the rows with and without delayed entry."""
    rng, who = np.random.default_rng(1), np.zeros(len(X), dtype=int)
    problems = {
        name: SurvivalProblem(SurvivalFederation.from_arrays(X, outcomes(time, event, entry), who))
        for name, entry in (("pass", None), ("pass, delayed entry", time * rng.random(len(X))))
    }
    w = np.full(X.shape[1], 0.1)
    timing = compare({name: lambda p=p: p.sweep(0, w, True) for name, p in problems.items()}, repeats=10, limit=20.0)
    spent = {name: report.row("100,000 x 10", name, t) for name, t in timing.items()}
    report.bar("delayed entry / none", spent["pass, delayed entry"] / spent["pass"])


if __name__ == "__main__":
    main()
