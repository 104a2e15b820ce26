"""What a method need not define: who takes part, what is measured, what else is observed, and when settings fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.draws import Draws
from fedconvex.methods.parts import participation
from fedconvex.problems import FederatedProblem, Measure


def first_state(method: Any, problem: FederatedProblem, w: np.ndarray) -> Any:
    """Return the method's first state from models (R, *model), after asking whether its settings fit the problem.

    Parameters
    ----------
    method : method
        With its settings.
    problem : problem
        Of a kind that the method is made for.
    w : array (R, *model)
        The models that trajectories start from.

    Raises
    ------
    ValueError, TypeError
        If they do not: ``check_fit(problem, R)`` of the method, where it has one.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import FedAvg, Federation, Problem, Squared
    >>> from fedconvex.driver import first_state
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0])]), Squared())
    >>> first_state(FedAvg(step_size=0.1), problem, np.zeros((2, 1))).w.shape  # two trajectories
    (2, 1)
    """
    if hasattr(method, "check_fit"):
        method.check_fit(problem, len(w))
    return method.init(problem, w)


def participants(method: Any, problem: FederatedProblem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
    """Return the clients (R, m) of a round and the weights (R, m) of their answers, as the server knows them.

    By default those of the method's scheme ``participation``, and everybody where it has none.

    Parameters
    ----------
    method : method
        With its settings.
    problem : problem
        Whose clients take part.
    draws : Draws
        Of the round.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import FedAvg, Federation, Problem, Squared
    >>> from fedconvex.draws import Draws, key_from_seed
    >>> from fedconvex.driver import participants
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0])] * 4), Squared())
    >>> clients, weights = participants(FedAvg(step_size=0.1), problem, Draws(key_from_seed(0), np.arange(1), 0))
    >>> sorted(clients[0].tolist()), weights.tolist()
    ([0, 1, 2, 3], [[0.25, 0.25, 0.25, 0.25]])
    """
    if hasattr(method, "participants"):
        return method.participants(problem, draws)
    scheme = getattr(method, "participation", None)
    if not hasattr(method, "check_fit"):  # who declares no rules is checked here
        who, rule = f"{type(method).__name__}.participation", participation.Sampling()
        scheme = rule(who, scheme)
        rule.fit(who, scheme, problem, draws.trajectory.size)
    return participation.participants(scheme, problem, draws)


def measure(method: Any, problem: Any, state: Any) -> Measure:
    """Return the objective of the state and its certified gap: by default those of the problem at ``state.w``.

    Parameters
    ----------
    method, problem
        As for `first_state`.
    state : NamedTuple
        Of R trajectories.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import FedAvg, Federation, Problem, Squared
    >>> from fedconvex.driver import first_state, measure
    >>> problem = Problem(Federation.from_clients([([[1.0]], [2.0])]), Squared())
    >>> method = FedAvg(step_size=0.1)
    >>> measure(method, problem, first_state(method, problem, np.zeros((1, 1)))).value  # (0 - 2)^2/2
    array([2.])
    """
    return method.measure(problem, state) if hasattr(method, "measure") else problem.measure(state.w)


def observe(method: Any, problem: Any, state: Any) -> dict[str, np.ndarray]:
    """Return further columns of the trace, by default none."""
    return method.observe(problem, state) if hasattr(method, "observe") else {}
