"""Posteriors of people's models: VIRTUAL (Corinzia, Beuret, Buhmann, arXiv:1906.06268) beside pooled, local and MOCHA.

1. Shuffles: three quarters of every task's rows to train on, a quarter to test on.
2. Precisions P = p I of the shared parameters and Q = q I of the private ones from a grid by the evidence: the least
   free energy, exactly minimised, on the training rows alone; no cross-validation.
3. Four models of every task: pooled (theta alone), local (a posterior of its own, with the prior of theta + w_k),
   VIRTUAL (theta + w_k, run from the prior until its certificate is small) and multi-task (what MOCHA solves: the
   mean-regularised point estimate with the same p and q, certified by its duality gap).
4. On test rows: error, log loss and calibration error of probabilities, averaged over the posterior where there is one.

Models are linear, logistic and diagonal. The published runs are networks of two layers of 100 units without private
parameters, with a tempered likelihood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex.driver import run as run_method
from fedconvex.families.multitask.experiments.har import digit_pairs, load_tasks, paired
from fedconvex.federation import Federation
from fedconvex.losses import Logistic
from fedconvex.methods import VIRTUAL
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.finished_parts import finished_part
from fedconvex.papers.style import COLOURS, blank
from fedconvex.problems import GaussianPosterior, GaussianPosteriorProblem, MultiTaskProblem, Precision

POOLED, LOCAL, MULTI, VIRT = "pooled", "local", "multi-task", "VIRTUAL"
KINDS = (POOLED, LOCAL, MULTI, VIRT)
TEST, BINS, GAP, ROUNDS, MODEL_GAP = 0.25, 10, 0.01, 300, 1e-6


class Scale(NamedTuple):
    """How large the experiment is."""

    shuffles: int
    shared: tuple[float, ...]  # p
    private: tuple[float, ...]  # q
    digits: int  # of the bundled tasks


FULL = Scale(3, (1.0,), (0.1, 0.3, 1.0, 3.0), 10)
QUICK = Scale(2, (1.0,), (0.1, 1.0), 4)


class Scores(NamedTuple):
    """What probabilities of +1 are worth on test rows."""

    error: float
    log_loss: float  # nats a row
    calibration: float


class Outcome(NamedTuple):
    """One shuffle."""

    precisions: tuple[float, float]  # p, q
    scores: dict[str, Scores]
    gap: dict[str, float]  # certified, relative to the objective
    rounds: int
    damping: float
    plugged: float  # log loss of VIRTUAL's means in the place of its posterior
    deficit: float  # median variance deficit of theta


def calibration_error(probability: np.ndarray, y: np.ndarray) -> float:
    """Return the mean over rows of |share of +1 - mean probability| in ten bins of equal width.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.virtual_har import calibration_error
    >>> calibration_error(np.array([0.75, 0.75, 0.75, 0.75]), np.array([1.0, 1.0, 1.0, -1.0]))
    0.0
    """
    place = np.minimum((probability * BINS).astype(int), BINS - 1)
    off = np.bincount(place, (y > 0.0) - probability, minlength=BINS)
    return float(np.abs(off).sum() / y.size)


def scores_of(probability: np.ndarray, y: np.ndarray) -> Scores:
    """Return error, log loss and calibration error of probabilities of +1.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.virtual_har import scores_of
    >>> found = scores_of(np.array([0.5, 0.9]), np.array([1.0, -1.0]))
    >>> found.error, round(found.log_loss, 4)
    (0.5, 1.4979)
    """
    right = np.clip(np.where(y > 0.0, probability, 1.0 - probability), 1e-300, 1.0)
    wrong = np.where(probability >= 0.5, 1.0, -1.0) != y
    return Scores(float(wrong.mean()), float(-np.log(right).mean()), calibration_error(probability, y))


# ---------------------------------------------------------------- measuring


def _rows(fed: Federation) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield label and rows of every task."""
    for label, a, b in zip(fed.labels.tolist(), fed.ptr[:-1], fed.ptr[1:], strict=True):
        yield label, fed.X[a:b].toarray() if fed.is_sparse else fed.X[a:b]


def _averaged(posterior: GaussianPosterior, test: Federation, known: bool) -> np.ndarray:
    return np.concatenate([posterior.predict(X, label if known else None).mean for label, X in _rows(test)])


def _plugged(models: np.ndarray, test: Federation) -> np.ndarray:
    a = np.concatenate([X @ w for (_, X), w in zip(_rows(test), models, strict=True)])
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * a)))


def _problem(train: Federation, p: float, q: float | None) -> GaussianPosteriorProblem:
    return GaussianPosteriorProblem(train, Logistic(), prior_precision=p, private_precision=q)


def _local(train: Federation, test: Federation, precision: float) -> tuple[np.ndarray, float]:
    """Return probabilities of every task's own posterior, and the largest relative gap."""
    probability, gaps = [], []
    for k, (_, X) in enumerate(_rows(test)):
        best = _problem(train.subset([k]), precision, None).solve()
        assert best.posterior is not None
        probability.append(best.posterior.predict(X).mean)
        gaps.append(best.posterior.gap / abs(best.value))
    return np.concatenate(probability), max(gaps)


def _multi_task(train: Federation, p: float, q: float) -> tuple[np.ndarray, float]:
    """Return the mean-regularised models that VIRTUAL's means are for linear models, and their relative gap."""
    K = train.K
    level = q * p / (p + K * q)
    relation = Precision(np.eye(K) - 1.0 / K, 0.5 * (q - level), 0.5 * level)
    best = MultiTaskProblem(train, Logistic(), relation).solve()
    return best.w, best.gap / abs(best.value)


def shuffle(tasks: Federation, number: int, scale: Scale, seed: int) -> Outcome:
    """Divide the rows, choose p and q by the evidence, fit and test all models."""
    train, test = tasks.split(TEST, seed=1000 * seed + number)  # 1
    grid = [(p, q) for p in scale.shared for q in scale.private]
    p, q = min(grid, key=lambda pq: _problem(train, *pq).solve().value)  # 2
    pooled = _problem(train, p, None).solve()
    problem = _problem(train, p, q)
    goal = GAP * problem.solve().value
    result = run_method(VIRTUAL(), problem, rounds=ROUNDS, tol=goal, record_every=5, progress=False)  # 3
    posterior = problem.posterior(result.state)
    own, own_gap = _local(train, test, p * q / (p + q))
    models, models_gap = _multi_task(train, p, q)
    assert pooled.posterior is not None
    probability = {
        POOLED: _averaged(pooled.posterior, test, False),
        LOCAL: own,
        MULTI: _plugged(models, test),
        VIRT: _averaged(posterior, test, True),
    }
    gap = {
        POOLED: pooled.posterior.gap / abs(pooled.value),
        LOCAL: own_gap,
        MULTI: models_gap,
        VIRT: posterior.gap / abs(posterior.value),
    }
    return Outcome(
        (p, q),
        {kind: scores_of(probability[kind], test.y) for kind in KINDS},  # 4
        gap,
        result.rounds,
        float(result.trace.damping[-1]),
        scores_of(_plugged(posterior.models, test), test.y).log_loss,
        float(np.median(posterior.variance_deficit)),
    )


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Fit all kinds of models on every shuffle; data: a path as for `load_tasks`."""
    scale, name = QUICK if quick else FULL, "pairs of digits" if data is None else Path(data).stem
    tasks = digit_pairs(scale.digits, seed) if data is None else load_tasks(data)
    outcomes = []
    for number in range(scale.shuffles):
        tell(number / scale.shuffles, f"shuffle {number + 1} of {scale.shuffles}")
        outcomes.append(
            finished_part(f"shuffle {number}", partial(shuffle, tasks, number, scale, seed), (Outcome, Scores))
        )
    return Findings(
        f"Posteriors on {name}: VIRTUAL beside pooled, local and multi-task models (Corinzia et al. 2019)",
        tuple(_claims(outcomes, data is not None)),
        _notes(tasks, outcomes, scale),
        {"scores": _draw(outcomes)},
        {"prediction": _table(outcomes), "shuffles": [_row(i, o) for i, o in enumerate(outcomes)]},
    )


EXPERIMENT = Experiment(
    "virtual-har",
    "VIRTUAL's posteriors beside pooled, local and multi-task models: error, log loss, calibration, certificates",
    study,
    "optional npz with X, y (-1, +1), client (HAR: sitting or not, 21 people); default pairs of bundled digits",
    "fewer shuffles, digits, precisions",
)


# ---------------------------------------------------------------- what came out


def _of(outcomes: Sequence[Outcome], kind: str, what: str) -> np.ndarray:
    return np.array([getattr(o.scores[kind], what) for o in outcomes])


def _claims(outcomes: Sequence[Outcome], har: bool) -> Iterator[Claim]:
    gap = {kind: max(o.gap[kind] for o in outcomes) for kind in KINDS}
    yield Claim(
        f"Every model is certified: VIRTUAL's free energy to {GAP:.0%} of its minimum, all others to {MODEL_GAP:g}",
        gap[VIRT] <= GAP and max(gap[kind] for kind in KINDS[:3]) <= MODEL_GAP,
        ", ".join(f"{kind} {gap[kind]:.2g}" for kind in KINDS),
        refutable=True,
    )
    yield _less(outcomes, POOLED, "log_loss", "VIRTUAL's log loss is below that of the pooled model")
    yield _less(outcomes, POOLED, "error", "VIRTUAL errs less than the pooled model")
    local = _less(outcomes, LOCAL, "log_loss", "VIRTUAL's log loss is below that of local models")
    yield local if har else local._replace(holds=None, needs="tasks that share more than pairs of digits do")
    loss, plugged = _of(outcomes, VIRT, "log_loss"), np.array([o.plugged for o in outcomes])
    text = "Means in the place of VIRTUAL's posterior change its log loss by less than the private parameters do"
    gain = _of(outcomes, POOLED, "log_loss") - loss
    less = paired(gain - np.abs(loss - plugged)).corrected
    words = f"posterior {loss.mean():.4f}, means {plugged.mean():.4f}; private gain {gain.mean():.4f}, more by {less}"
    yield Claim(text, less.above(), words)


def _less(outcomes: Sequence[Outcome], other: str, what: str, text: str) -> Claim:
    mine, theirs = _of(outcomes, VIRT, what), _of(outcomes, other, what)
    found = paired(theirs - mine)
    more, equal, less = found.signs
    words = f"{VIRT} {mine.mean():.4f}, {other} {theirs.mean():.4f}, less by {found.corrected}"
    return Claim(text, found.above, f"{words}; less in {more}, equal in {equal}, more in {less} shuffles")


def _table(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    out = []
    for kind in KINDS:
        row: dict[str, Any] = {"models": kind}
        for what, words in (("error", "error"), ("log_loss", "log loss"), ("calibration", "calibration error")):
            row[words] = f"{_of(outcomes, kind, what).mean():.4f}"
        out.append(row | {"largest relative gap": f"{max(o.gap[kind] for o in outcomes):.2g}"})
    return out


def _row(number: int, o: Outcome) -> dict[str, Any]:
    row: dict[str, Any] = {"shuffle": number, "p": o.precisions[0], "q": o.precisions[1]}
    for kind in KINDS:
        row |= {f"{kind} {what}": getattr(o.scores[kind], what) for what in Scores._fields}
        row[f"{kind} gap"] = o.gap[kind]
    return row | {
        "rounds": o.rounds, "damping": o.damping, "log loss of means": o.plugged, "variance deficit": o.deficit
    }  # fmt: skip


def _notes(tasks: Federation, outcomes: Sequence[Outcome], scale: Scale) -> tuple[str, ...]:
    chosen = ", ".join(sorted({f"p = {o.precisions[0]:g}, q = {o.precisions[1]:g}" for o in outcomes}))
    rounds = [o.rounds for o in outcomes]
    return (
        f"Data: {tasks.K} tasks of {tasks.sizes.min()} to {tasks.sizes.max()} rows, {tasks.d} features as they are; "
        f"{scale.shuffles} shuffles. By the evidence: {chosen}.",
        "Published settings (released configurations): HAR with 561 features and 12 classes, networks 100-100, batches "
        "of 20, 20 epochs a round, 200 epochs a client, 10 clients a round, SGD 1e-3, server learning rate 0.2 to 1, "
        "weights of the KL terms 0 to 1e-2, no private parameters. Here: linear models, two classes, everybody in "
        "every round, exact local solutions, private parameters, nothing tempered. Errors are not comparable.",
        f"VIRTUAL took {min(rounds)} to {max(rounds)} rounds; damping ended at "
        f"{', '.join(f'{o.damping:g}' for o in outcomes)}.",
        "The multi-task models are point estimates with VIRTUAL's p and q; of them probabilities are plugged in. "
        f"Variances of theta are too small by {100 * np.median([o.deficit for o in outcomes]):.0f} % (median): q "
        "leaves out correlations.",
    )


def _draw(outcomes: Sequence[Outcome]) -> Any:
    """Draw error, log loss and calibration error of all kinds of models, every shuffle and the mean."""
    figure, axes = blank(3, width=3.2, height=3.2)
    for axis, what in zip(axes, Scores._fields, strict=True):
        for j, kind in enumerate(KINDS):
            values = _of(outcomes, kind, what)
            axis.plot(np.full(values.size, j), values, ".", color="0.7", markersize=5)
            axis.plot(j, values.mean(), "o", color=COLOURS[j], markersize=6)
        axis.set_xticks(range(len(KINDS)), KINDS, rotation=20)
        axis.set_ylim(bottom=0.0)
        axis.set_ylabel(what.replace("_", " ") + (" error" if what == "calibration" else "") + ", test rows")
    return figure
