"""What a statement says of problems that have more than plain rows, losses and l2 on all coordinates.

Three things change what bounds are made of. *Row weights*: f_k is a weighted mean, and a batch, drawn uniformly and
scaled, has another variance; or drawn by weight, yet another. *Free coordinates*, which l2 leaves out: l2 alone makes
nothing strongly convex. A *penalty*: F has kinks or a domain, and gradients are those of its smooth part. A theorem
answers for each; where nothing is said it does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedconvex.theory.bound import Hypothesis
from fedconvex.traits import problem_traits


class Answer(NamedTuple):
    """Whether a statement holds, and how or why not."""

    holds: bool
    why: str
    convexity: Callable[[Any], float] | None = (
        None  # problem -> the mu that must be positive where coordinates are free
    )

    def __str__(self) -> str:
        return f"{'holds' if self.holds else 'does not hold'}: {self.why}"


def holds(why: str) -> Answer:
    """Return the answer that it holds."""
    return Answer(True, why)


def not_for(why: str) -> Answer:
    """Return the answer that it does not."""
    return Answer(False, why)


def _of_clients(problem: Any) -> float:
    return float(np.min(problem.constants().mu_k))


def _of_the_whole(problem: Any) -> float:
    return float(problem.constants().mu)


_UNSAID = not_for("its statement does not say")
_ABSENT = not_for("such problems have none")
STRONGLY_CONVEX = Answer(
    True, "where the rows make every f_k strongly convex in them too: mu_k > 0, which l2 no longer gives", _of_clients
)
WHOLE_STRONGLY_CONVEX = Answer(
    True, "where the rows make F strongly convex in them too: mu > 0, which l2 no longer gives", _of_the_whole
)
SMOOTH_ONLY = not_for("F must be smooth, and a penalty has kinks or a domain")


class Scope(NamedTuple):
    """The three answers of a theorem.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theorems.parts.scope import Scope, SMOOTH_ONLY
    >>> fed = Federation.from_clients([([[1.0], [2.0]], [1.0, 0.0])], sample_weight=[[1.0, 3.0]])
    >>> [str(h) for h in Scope(penalty=SMOOTH_ONLY).hypotheses(Problem(fed, Squared()))]
    ['no row weights (its statement does not say) [1 to 3]: FAILS']
    """

    weights: Answer = _UNSAID
    free: Answer = _UNSAID
    penalty: Answer = _UNSAID

    def hypotheses(self, problem: Any) -> tuple[Hypothesis, ...]:
        """Return what the problem must be without, and what it must have instead, with its numbers."""
        has, out = problem_traits(problem), []
        names = {
            "weights": "no row weights",
            "free": "no free coordinates",
            "penalty": "an objective without a penalty",
        }
        for field, text in names.items():
            got, answer = getattr(has, field), getattr(self, field)
            if got and not answer.holds:
                out.append(Hypothesis(f"{text} ({answer.why})", got, False))
            elif got and answer.convexity is not None:
                mu = answer.convexity(problem)
                need = "strong convexity in the free coordinates too"
                out.append(Hypothesis(need, f"mu = {mu:g} where l2 leaves out {got}", mu > 0.0))
        return tuple(out)


EVERYWHERE = Scope(
    holds("constants are those of weighted means, sigma^2 that of the batches as they are drawn"),
    holds("f_k is asked to be convex and smooth, with the l2 that it has"),
    SMOOTH_ONLY,
)
OF_TASKS = Scope(holds("a row of weight s has the loss s l: mu, the width and N count it so"), _ABSENT, _ABSENT)
OF_ENVIRONMENTS = Scope(holds("moments of environments are weighted means"), _ABSENT, _ABSENT)
OF_ENSEMBLES = Scope(holds("F_k is the weighted mean over domain k"), _ABSENT, _ABSENT)
OF_POSTERIORS = Scope(holds("a row of weight s has s times the log-likelihood"), _ABSENT, _ABSENT)
OF_OWNERS = Scope(_ABSENT, _ABSENT, _ABSENT)
