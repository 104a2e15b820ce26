"""MOCHA: the parameter sigma' that makes local subproblems safe, by any of its four rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedconvex.families.multitask.separability import DualConstants, separability, worst_duals
from fedconvex.families.multitask.theorems.dual_methods import constants_of, constants_shown, dual_steps
from fedconvex.families.multitask.theorems.tasks import (
    as_tasks,
    breast_cancer_tasks,
    related_tasks,
    tasks_space,
    wide_tasks,
)
from fedconvex.methods import MOCHA, CoCoA
from fedconvex.problems import MultiTaskProblem
from fedconvex.theorems.kit import *

__all__ = ["STATEMENT", "THEOREMS", "safe_sigma_bound"]

SOURCE = "Smith, Chiang, Sanjabi, Talwalkar 2017, NIPS, Theorem 1, safe sigma (explicit form: docs/theory/mocha.md)"
_SEPARABILITY = Quantity(
    "largest sum_st Mbar_st <v_s, v_t> / sum_t Mbar_tt ‖v_t‖^2 of dual variables alpha that were found",
    by_rounds=False,
    least=0.0,
)

STATEMENT = Statement(
    page="mocha_sigma",
    title="MOCHA's safe sigma'",
    scope=OF_TASKS,
    setting="""
V = (v_1, ..., v_m), v_t = c_t X_t'alpha_t, are images of the tasks' dual variables, Mbar the inverse of the
relationship's regulariser; nodes minimise subproblems that replace (1/2) sum_st Mbar_st <dv_s, dv_t> by
(sigma'/2) sum_t Mbar_tt ‖dv_t‖^2.
""",
    assumptions="""
A fixed relationship.
""",
    statement="""
sum_st Mbar_st <v_s, v_t> <= sigma' sum_t Mbar_tt ‖v_t‖^2 for all alpha with sigma' the number of tasks,
max_t sum_s |Mbar_ts|/Mbar_tt, the largest eigenvalue of D^-1/2 Mbar D^-1/2 (D the diagonal of Mbar) or, the least,
that of its blocks on the tasks' row spaces (pencil).
""",
    source="""
Smith, Chiang, Sanjabi, Talwalkar, "Federated multi-task learning", NIPS 2017, whose sigma' is the rule by rows; the
eigenvalue and the pencil are this project's.
""",
    differs="""
Weights c_t.
""",
    meaning="""
A sigma' that is safe is what makes the sum of local decreases a decrease of the dual objective: Step 1 of the proof of
[MOCHA's rates](mocha.md). The smaller it is the longer are the steps.

The quantity is the ratio of dual variables that power iterations make as large as they can (`worst_duals`): a sigma'
below it is refuted by them.
""",
    proof="""
With u_t = Mbar_tt^(1/2) v_t the left side is u'(D^-1/2 Mbar D^-1/2 ⊗ I)u: at most its largest eigenvalue times ‖u‖^2,
and v_t moves in the row space of task t only, which leaves the blocks of the pencil. By Gershgorin the eigenvalue is at
most max_t sum_s |Mbar_ts|/Mbar_tt, Mbar being similar to its scaled form, and by the trace at most the number of tasks.
""",
    loose="""
Attained by the pencil; on five wide tasks on a path the eigenvalue is 1.10, the rows 1.27, the tasks 2.26 times as
large. A sigma' one percent below the pencil is found (`tests/multitask/test_verify_mocha.py`).
""",
)


def safe_sigma_bound(constants: DualConstants) -> Bound:
    """Return sigma' as the bound of `separability` that a rule for it promises.

    Parameters
    ----------
    constants : DualConstants
        With sigma'.

    Raises
    ------
    TypeError
        If constants are not `DualConstants`.

    Examples
    --------
    >>> from fedconvex.families.multitask.theorems.mocha_sigma import safe_sigma_bound
    >>> from fedconvex.families.multitask.separability import DualConstants
    >>> safe_sigma_bound(DualConstants(1.0, 1.0, 1.0, 2.0, 1.5, 3.0, 1.0)).value
    2.0
    """
    instance("safe_sigma_bound: constants", constants, DualConstants)
    return Bound({"sigma'": constants.sigma}, _SEPARABILITY, SOURCE)


def _read_sigma(s: Setting) -> Reading:
    is_method("safe sigma'", s.method, MOCHA, CoCoA)
    rule = s.method.sigma
    by_rule = Hypothesis("sigma' by a rule", f"sigma = {rule!r}", rule is None or isinstance(rule, str))
    return Reading({"constants": constants_of(s)}, require("safe sigma'", by_rule))


def _separability(s: Setting, rounds: Sequence[int]) -> np.ndarray | None:
    """Return the ratio of an alpha that power iterations make as bad as they can."""
    p = s.problem
    assert isinstance(p, MultiTaskProblem)
    return np.full(len(rounds), separability(p, worst_duals(p)))


THEOREMS = (
    Theorem(
        name="mocha-sigma",
        title="MOCHA, safe sigma'",
        quantity=_SEPARABILITY,
        bound=safe_sigma_bound,
        read=_read_sigma,
        exact=_separability,
        says="No move of the nodes makes their common term larger than sigma' times the sum of their own.",
        loose="The pencil's sigma' is the least; the eigenvalue's ignores which moves rows allow; others are cruder.",
        method=dual_steps(sigma="pencil"),
        checks=(
            related_tasks,
            wide_tasks,
            breast_cancer_tasks,
            *(Check(wide_tasks, dual_steps(sigma=rule)) for rule in ("eigenvalue", "rows", "tasks")),
            Check(wide_tasks, dual_steps(sigma=1.0)),  # not by a rule
        ),
        space=tasks_space("squared", "hinge", rules=("pencil", "eigenvalue", "rows", "tasks")),
        kind=MultiTaskProblem,
        tolerance=lambda s, value: 0.0,
        constants=constants_shown,
        statement=STATEMENT,
        adapt=as_tasks,
    ),
)
