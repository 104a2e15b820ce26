"""How a model serves every domain: losses and accuracies with standard errors, the worst domain, and how they spread.

Rows are taken as independent draws from their domain, and the model as given. On training rows the model has seen the
very rows it is measured on: losses there are too small, and their standard errors do not know it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from scipy.special import bdtr, stdtrit

from fedconvex._check import bad, finite, numeric, wrong_type
from fedconvex.driver import Result
from fedconvex.federation import Federation
from fedconvex.fields import inside
from fedconvex.kernels import row_losses
from fedconvex.kernels.domain_sums import domains_of
from fedconvex.loss_traits import traits
from fedconvex.problems import Problem
from fedconvex.problems.protocol import has_models, has_one_model

# ---------------------------------------------------------------- what is measured


@dataclass(frozen=True, eq=False)
class DomainScores:
    """One model on the rows of p domains.

    Attributes
    ----------
    domains : array (p,)
        Names of the domains; of the clients, where the federation has no domains.
    rows : array (p,)
    loss, loss_error : array (p,)
        Mean loss without the ridge term, and its standard error; NaN without rows, the error with a single one too.
        Where rows carry weights means are weighted, and errors and intervals are those of so many equal rows as Kish's
        effective size says, (sum s)^2/sum s^2: weights say how much rows count, not how often they were seen.
    loss_low, loss_high : array (p,)
        Interval of the mean loss, by Student's t.
    accuracy, accuracy_error : array (p,)
        Share of correct predictions and its standard error sqrt(a (1 - a)/n); NaN for regressions.
    accuracy_low, accuracy_high : array (p,)
        Wilson's interval of the accuracy.
    domain_weights : array (p,)
        lambda, the weight of every domain in the objective that the model is for; NaN where it has none.
    level : float
        Of the intervals, each domain on its own.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import domain_scores
    >>> fed = Federation.from_clients([([[1.0], [1.0]], [0.0, 0.2]), ([[1.0], [1.0]], [2.0, 2.2])], labels=["a", "b"])
    >>> found = domain_scores(Problem(fed, Squared()), np.array([1.1]))
    >>> found.domains.tolist(), found.loss.round(3).tolist(), round(found.loss_spread, 9)
    (['a', 'b'], [0.505, 0.505], 0.0)
    """

    domains: np.ndarray
    rows: np.ndarray
    loss: np.ndarray
    loss_error: np.ndarray
    loss_low: np.ndarray
    loss_high: np.ndarray
    accuracy: np.ndarray
    accuracy_error: np.ndarray
    accuracy_low: np.ndarray
    accuracy_high: np.ndarray
    domain_weights: np.ndarray
    level: float

    @property
    def classifies(self) -> bool:
        """Whether there are accuracies."""
        return bool(np.isfinite(self.accuracy).any())

    @property
    def worst(self) -> Any:
        """The domain of largest loss."""
        return self.domains[int(np.nanargmax(self.loss))].item()

    @property
    def worst_loss(self) -> float:
        """The largest loss."""
        return float(np.nanmax(self.loss))

    @property
    def least_accurate(self) -> Any:
        """The domain of smallest accuracy, which need not be the one of largest loss; None for squared loss."""
        return self.domains[int(np.nanargmin(self.accuracy))].item() if self.classifies else None

    @property
    def worst_accuracy(self) -> float:
        """The smallest accuracy, NaN for regressions."""
        return float(np.nanmin(self.accuracy)) if self.classifies else math.nan

    @property
    def loss_spread(self) -> float:
        """Largest minus smallest loss."""
        return _spread(self.loss)

    @property
    def loss_deviation(self) -> float:
        """Standard deviation of the losses over the domains, every domain counted once (divided by p)."""
        return _deviation(self.loss)

    @property
    def accuracy_spread(self) -> float:
        """Largest minus smallest accuracy."""
        return _spread(self.accuracy)

    @property
    def accuracy_deviation(self) -> float:
        """Standard deviation of the accuracies over the domains (divided by p)."""
        return _deviation(self.accuracy)

    @property
    def loss_noise(self) -> float:
        """The deviation of losses that finite rows alone give to equal domains: sqrt((1 - 1/p) mean s.e.^2).

        NaN where a domain has a single row, whose standard error is not known.
        """
        return _noise(self.loss_error, self.rows)


class DomainDifferences(NamedTuple):
    """Two models on the same rows, domain by domain: the first minus the second.

    Attributes
    ----------
    domains, rows : array (p,)
        Names, and numbers of rows.
    loss, loss_error : array (p,)
        Mean difference of the losses, and its standard error from the differences of the rows.
    accuracy, accuracy_error : array (p,)
        The same of the accuracies, NaN for regressions.
    gained, lost : array (p,)
        Rows that only the first model, or only the second, predicts correctly.
    p_value : array (p,)
        McNemar's exact test that gains and losses are equally likely, two-sided.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import domain_differences
    >>> fed = Federation.from_clients([([[1.0], [1.0]], [0.0, 0.2]), ([[1.0], [1.0]], [2.0, 2.2])], labels=["a", "b"])
    >>> domain_differences(Problem(fed, Squared()), np.array([1.1]), np.array([0.1])).loss.round(3)
    array([ 0.5, -1.5])
    """

    domains: np.ndarray  # (p,)
    rows: np.ndarray  # (p,)
    loss: np.ndarray  # (p,) mean difference of the losses
    loss_error: np.ndarray  # (p,) its standard error, from the differences of the rows
    accuracy: np.ndarray  # (p,) difference of the accuracies, NaN for regressions
    accuracy_error: np.ndarray  # (p,) its standard error, from the differences of the rows
    gained: np.ndarray  # (p,) rows that only the first predicts correctly
    lost: np.ndarray  # (p,) rows that only the second predicts correctly
    p_value: np.ndarray  # (p,) McNemar's exact test that gains and losses are equally likely, two-sided


def _spread(v: np.ndarray) -> float:
    v = v[np.isfinite(v)]
    return float(np.ptp(v)) if v.size else math.nan


def _deviation(v: np.ndarray) -> float:
    v = v[np.isfinite(v)]
    return float(np.std(v)) if v.size else math.nan


def _noise(errors: np.ndarray, rows: np.ndarray) -> float:
    e = errors[rows > 0]
    return math.sqrt((1.0 - 1.0 / e.size) * float(np.mean(e**2))) if e.size else math.nan


# ---------------------------------------------------------------- measuring


def domain_scores(
    problem: Problem,
    model: Any,
    measured: Problem | Federation | None = None,
    *,
    domain_weights: Any = None,
    level: float = 0.95,
) -> DomainScores:
    """Measure one model on every domain's rows.

    Parameters
    ----------
    problem : Problem
        Its loss is measured; lambda refers to its domains, or to its clients where it has none.
    model : model, or anything with a model as ``w``
        A single model, `fedconvex.solvers.Solution`, `fedconvex.solvers.Minimax` (with its lambda) or
        `fedconvex.Result` of one trajectory (lambda is the last of its trace, if it has any).
    measured : Problem or Federation, optional
        Whose rows are measured, for example held-out ones; default the problem's own. Domains are matched by name, and
        need not be the same: one that is new has no lambda.
    domain_weights : array (p,), optional
        lambda, in the place of the model's own.
    level : float
        Of the intervals, in (0, 1).

    Returns
    -------
    DomainScores

    Raises
    ------
    ValueError
        If the model has another shape, lambda another length, or no domain that is measured has the name of one of the
        problem's.

    References
    ----------
    Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927), 209-212. Brown, Cai,
    DasGupta, "Interval estimation for a binomial proportion", Statist. Sci. 16 (2001), 101-133.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import domain_scores
    >>> fed = Federation.from_arrays([[1.0]] * 4, [0.0, 2.0, 3.0, 5.0], clients=[0] * 4, domains=["a", "a", "b", "b"])
    >>> problem = Problem(fed, Squared())
    >>> found = domain_scores(problem, problem.solve_minimax())
    >>> found.domains.tolist(), found.loss.round(6).tolist(), found.domain_weights.round(6).tolist()
    (['a', 'b'], [1.625, 1.625], [0.5, 0.5])
    """
    level = inside("domain_scores: level", level)
    who, target = "domain_scores", _measured("domain_scores", problem, measured)
    w, own = _model(who, problem, model)
    lam = _matched_weights(who, problem, target, own if domain_weights is None else domain_weights)
    arrays: Any = (*_scores(target, w, level), lam)
    for a in arrays:
        a.flags.writeable = False
    return DomainScores(*(domain_names(target), _domains(target).rows, *arrays, level))


def _scores(target: Problem, w: np.ndarray, level: float) -> Any:
    """Return mean losses and accuracies of the domains, each with its error and the ends of its interval."""
    losses, right = _row_scores(target, w)
    by = _domains(target)
    loss, loss_error = _means(losses, by)
    accuracy, _ = _means(right, by)
    accuracy = np.clip(accuracy, 0.0, 1.0)  # sums of weights round
    error = np.sqrt(accuracy * (1.0 - accuracy) / np.maximum(by.effective, 1))
    half = stdtrit(np.maximum(by.effective - 1, 1), 0.5 + 0.5 * level) * loss_error
    low, high = wilson_interval(accuracy * by.effective, by.effective, level)
    return loss, loss_error, loss - half, loss + half, accuracy, error, low, high


def domain_differences(
    problem: Problem, model: Any, other: Any, measured: Problem | Federation | None = None
) -> DomainDifferences:
    """Compare two models on the same rows of every domain, row by row.

    Both models see the same rows, so that the standard error of a difference is usually much smaller than those of the
    two numbers suggest.

    Parameters
    ----------
    problem, measured
        As for `domain_scores`.
    model, other : model, or anything with a model as ``w``
        The first minus the second is reported.

    Returns
    -------
    DomainDifferences

    Raises
    ------
    ValueError, TypeError
        If measured has other tasks, another loss or shape than problem, or model is not one of its models.

    References
    ----------
    McNemar, "Note on the sampling error of the difference between correlated proportions or percentages", Psychometrika
    12 (1947), 153-157 (here with the exact binomial distribution).

    Examples
    --------
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.report import domain_differences
    >>> fed = Federation.from_arrays([[1.0]] * 6, [1.0, 1.0, 1.0, 1.0, 1.0, -1.0], clients=[0] * 6)
    >>> found = domain_differences(Problem(fed, Logistic()), [1.0], [-1.0])
    >>> found.gained, found.lost, found.p_value  # 2 (1 + 6)/2^6
    (array([5]), array([1]), array([0.21875]))
    """
    target = _measured("domain_differences", problem, measured)
    pair = [_row_scores(target, _model("domain_differences", problem, m)[0]) for m in (model, other)]
    (losses, right), (losses_other, right_other) = pair
    target.federation.need_equal_rows("domain_differences, whose exact test counts rows,")
    by = _domains(target)
    code, rows = by.code, by.rows
    loss, loss_error = _means(losses - losses_other, by)
    accuracy, error = _means(right - right_other, by)
    change = np.nan_to_num(right - right_other)
    gained, lost = (np.bincount(code[change == s], minlength=rows.size) for s in (1.0, -1.0))
    p = np.minimum(1.0, 2.0 * bdtr(np.minimum(gained, lost).astype(float), gained + lost, 0.5))
    p = np.where(np.isnan(accuracy), np.nan, p)
    return DomainDifferences(domain_names(target), rows, loss, loss_error, accuracy, error, gained, lost, p)


def wilson_interval(successes: Any, trials: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Return Wilson's interval of a probability, lower and upper ends.

    Its ends are the p with |p^ - p| = z sqrt(p (1 - p)/n), so that it keeps a width where p^ = 0 or 1.

    Parameters
    ----------
    successes, trials : numbers or arrays
        NaN, NaN without trials, and where successes are NaN: not known.
    level : float
        In (0, 1).

    Raises
    ------
    ValueError, TypeError
        Unless 0 <= successes <= trials.

    Examples
    --------
    >>> from fedconvex.report import wilson_interval
    >>> low, high = wilson_interval(10, 10)
    >>> round(float(low), 4), round(float(high), 4)
    (0.7225, 1.0)
    """
    k, n = numeric("wilson_interval: successes", successes), numeric("wilson_interval: trials", trials)
    if not (np.isfinite(n).all() and (((k >= 0.0) & (k <= n)) | np.isnan(k)).all() and (n >= 0.0).all()):
        raise bad("wilson_interval", "be given 0 <= successes <= trials", f"{successes} of {trials}")
    level = inside("wilson_interval: level", level)
    z2 = NormalDist().inv_cdf(0.5 + 0.5 * level) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        share = k / n
        middle = (share + z2 / (2.0 * n)) / (1.0 + z2 / n)
        half = np.sqrt(z2 * (share * (1.0 - share) / n + z2 / (4.0 * n * n))) / (1.0 + z2 / n)
    known = np.where(n > 0, 1.0, np.nan)
    return known * np.where(k == 0, 0.0, middle - half), known * np.where(k == n, 1.0, middle + half)


def _measured(who: str, problem: Any, measured: Any) -> Any:
    if not has_models(problem):
        raise wrong_type(f"{who}: problem", "be a Problem", type(problem).__name__)
    if measured is None:
        return problem
    target = measured
    if isinstance(measured, Federation):
        target = Problem(measured, problem.loss, problem.l2, intercept=getattr(problem, "intercept", False))
    if not has_models(target):
        raise wrong_type(f"{who}: measured", "be a Problem or a Federation", type(measured).__name__)
    if target.model_shape != problem.model_shape:
        raise bad(f"{who}: measured", f"have models of shape {problem.model_shape}", f"{target.model_shape}")
    if target.loss != problem.loss:
        raise bad(f"{who}: measured", f"have the loss {problem.loss!r}", f"{target.loss!r}", "pass its federation")
    if not (has_one_model(problem) and has_one_model(target)):
        mine, theirs = problem.federation.labels.tolist(), target.federation.labels.tolist()
        if has_one_model(problem) or has_one_model(target) or mine != theirs:  # models belong to clients by position
            raise bad(f"{who}: measured", f"have the tasks {mine}, in this order", f"{theirs}")
    return target


def _model(who: str, problem: Problem, model: Any) -> tuple[np.ndarray, Any]:
    """Return one model and its domain weights, None if it has none."""
    lam = model.trace.get("domain_weights") if isinstance(model, Result) else getattr(model, "domain_weights", None)
    w = numeric(f"{who}: model", getattr(model, "w", model))
    if w.shape != problem.model_shape:
        raise bad(f"{who}: model", f"be one model of shape {problem.model_shape}", f"shape {w.shape}")
    if isinstance(model, Result) and lam is not None:
        lam = lam[-1].reshape(-1)
    return w, lam


def _row_scores(problem: Problem, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of every row (n,), and whether it is predicted correctly (n,), NaN for regressions."""
    fed = problem.federation
    Z = np.ascontiguousarray(problem.scores(w).reshape(fed.n, -1))
    out = np.empty((fed.n, 1))
    row_losses.row_values(problem.loss, Z, fed.y, out)
    if traits(problem.loss).task == "regression":
        return out[:, 0], np.full(fed.n, np.nan)
    return out[:, 0], (problem.predict(w) == fed.y).astype(float)


class ScoredRows(NamedTuple):
    """What a model makes of every row that is measured."""

    domains: np.ndarray  # (p,) names
    code: np.ndarray  # (n,) domains of the rows
    weights: np.ndarray  # (n,)
    labels: np.ndarray  # (n,)
    losses: np.ndarray  # (n,)
    right: np.ndarray  # (n,) 0 or 1, NaN for regressions


def scored_rows(who: str, problem: Any, model: Any, measured: Any) -> ScoredRows:
    """Return the loss of every row, and whether it is predicted correctly, as `domain_scores` sums them up."""
    target = _measured(who, problem, measured)
    losses, right = _row_scores(target, _model(who, problem, model)[0])
    by = _domains(target)
    weights = np.broadcast_to(np.asarray(by.weight, dtype=float), losses.shape)
    return ScoredRows(domain_names(target), by.code, weights, target.federation.y, losses, right)


class _Rows(NamedTuple):
    """Which domain every row belongs to, and what it weighs."""

    code: np.ndarray  # (n,)
    weight: Any  # (n,), or 1
    rows: np.ndarray  # (p,)
    mass: np.ndarray  # (p,) sums of the weights
    effective: np.ndarray  # (p,) their squares over the sums of squared weights (Kish 1965): rows, where all weigh 1


def _domains(problem: Problem) -> _Rows:
    """Return the rows by domain."""
    known, s = domains_of(problem.federation), problem.federation.sample_weight
    if s is None:
        return _Rows(known.code, 1.0, known.counts, known.counts, known.counts)
    p = known.counts.size
    squares = np.bincount(known.code, s**2, p)
    effective = known.counts**2 / np.where(squares > 0.0, squares, 1.0)
    return _Rows(known.code, s, np.bincount(known.code, minlength=p), known.counts, effective)


def domain_names(problem: Problem) -> np.ndarray:
    """Return the names of the domains, or of the clients where there are none."""
    fed = problem.federation
    return fed.labels if fed.domain is None else np.asarray(fed.domain_labels)


def _means(v: np.ndarray, by: _Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return weighted means over domains and their standard errors, (p,) each."""
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(by.code, by.weight * v, by.rows.size) / by.mass
        squares = np.bincount(by.code, by.weight * (v - mean[by.code]) ** 2, by.rows.size)
        return mean, np.sqrt(squares / np.maximum(by.effective - 1.0, 0.0) / by.mass)


def _matched_weights(who: str, problem: Problem, target: Problem, domain_weights: Any) -> np.ndarray:
    """Return lambda in the order of the measured domains, NaN where there is none."""
    names, order = domain_names(target), domain_names(problem)
    if domain_weights is None:
        return np.full(names.size, np.nan)
    lam = numeric(f"{who}: domain_weights", domain_weights)
    finite(f"{who}: domain_weights", lam)
    if lam.shape != (order.size,):
        raise bad(f"{who}: domain_weights", f"have {order.size} entries, one per domain", f"shape {lam.shape}")
    known = dict(zip(order.tolist(), lam.tolist(), strict=True))
    if not set(known) & set(names.tolist()):
        raise bad(f"{who}: measured", f"have domains of the problem ({order[0]}, ...)", f"{names[0]}, ...")
    return np.array([known.get(name, math.nan) for name in names.tolist()])
