"""How well a model predicts the next word or letter: perplexity, and in-vocabulary accuracy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, items, whole, wrong_type
from fedconvex.problems import Problem
from fedconvex.problems.protocol import has_one_model
from fedconvex.report.fairness import scored_rows


class TextScores(NamedTuple):
    """One model on the text of p domains.

    Attributes
    ----------
    domains : array (p,)
        Names of the domains; of the clients, where there are none.
    rows : array (p,)
        Symbols that were predicted.
    perplexity : array (p,)
        e to the mean cross-entropy in nats: as uncertain as a choice among so many symbols. NaN without rows.
    accuracy : array (p,)
        Share of symbols predicted right, those that stand for unknown words included.
    in_vocabulary : array (p,)
        Share of all symbols, unknown words included, that were words of the vocabulary and predicted right: an unknown
        word counts as an error, predicted or not. NaN without rows.
    total_perplexity, total_in_vocabulary : float
        Over the rows of all domains.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Softmax
    >>> from fedconvex.report import text_scores
    >>> fed = Federation.from_arrays(np.ones((4, 1)), [0.0, 1.0, 2.0, 3.0], [0, 0, 1, 1])
    >>> found = text_scores(Problem(fed, Softmax(4)), np.zeros((4, 1)))
    >>> found.rows.tolist(), round(found.total_perplexity, 9)
    ([2, 2], 4.0)
    """

    domains: np.ndarray
    rows: np.ndarray
    perplexity: np.ndarray
    accuracy: np.ndarray
    in_vocabulary: np.ndarray
    total_perplexity: float
    total_in_vocabulary: float


def text_scores(problem: Problem, model: Any, measured: Any = None, *, unknown: Any = ()) -> TextScores:
    """Return how a model of several classes fares on text: a row is a context, its class the symbol that came next.

    Parameters
    ----------
    problem, model, measured
        As for `fedconvex.report.domain_scores`; the loss has several classes, as `fedconvex.Softmax` has.
    unknown : sequence of int
        Classes that are no words: words outside the vocabulary, and ends of sentences where they are not to count.

    Raises
    ------
    TypeError, ValueError
        If the loss is not multinomial, a class does not exist, or all of them are unknown.

    References
    ----------
    In-vocabulary accuracy: Ro, Chen, Mathews, Mohri, Suresh, "Communication-efficient agnostic federated averaging",
    Interspeech 2021: words outside the vocabulary stay in the denominator, so that vocabularies of different sizes can
    be compared. Leaving their rows out instead divides by the share of known words.

    Examples
    --------
    Four letters, none of them known better than by chance: as uncertain as a choice among four.

    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Softmax
    >>> from fedconvex.report import text_scores
    >>> fed = Federation.from_arrays(np.ones((4, 1)), [0.0, 1.0, 2.0, 3.0], [0, 0, 1, 1])
    >>> found = text_scores(Problem(fed, Softmax(4)), np.zeros((4, 1)), unknown=[3])
    >>> found.perplexity.round(12), found.in_vocabulary
    (array([4., 4.]), array([0.5, 0. ]))
    """
    if not has_one_model(problem) or not problem.traits.multinomial:
        got = type(problem).__name__ if not has_one_model(problem) else f"{problem.loss!r}"
        raise wrong_type("text_scores: problem", "be a Problem with Softmax loss", got)
    C = problem.n_outputs
    out = {whole("text_scores: unknown", c, low=0, high=C - 1) for c in items("text_scores: unknown", unknown)}
    if len(out) == C:
        raise bad("text_scores: unknown", "leave a class to the vocabulary", f"all {C}")
    rows = scored_rows("text_scores", problem, model, measured)
    known = ~np.isin(rows.labels, sorted(out))
    s, p = rows.weights, rows.domains.size
    mass = np.bincount(rows.code, s, minlength=p)
    entropy, right, hits = (
        np.bincount(rows.code, s * v, minlength=p) for v in (rows.losses, rows.right, rows.right * known)
    )
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        perplexity, accuracy, inside = np.exp(entropy / mass), right / mass, hits / mass
        total = float(np.exp(entropy.sum() / mass.sum())), float(hits.sum() / mass.sum())
    return TextScores(rows.domains, np.bincount(rows.code, minlength=p), perplexity, accuracy, inside, *total)
