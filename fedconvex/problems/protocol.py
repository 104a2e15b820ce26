"""What methods may ask of a problem, and the problem as a server knows it: without rows.

`Problem`, `MultiTaskProblem`, the boosting problems and `ServerProblem` implement `FederatedProblem`. A method's
``init`` and ``participants`` ask for nothing else, so that they run on a server; what they need beyond it, they name in
``statistics``, and the clients answer once, before the first round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedconvex import _html
from fedconvex._check import bad, raw, vector, wrong_type
from fedconvex.federation import Federation
from fedconvex.roster import Roster

# what is learned: a method says for which of them it is made, by ``learns``
ONE_MODEL, MODEL_PER_TASK, ENSEMBLE = "one model for all clients", "a model per task", "an ensemble"
INVARIANT_MODEL = "one model that serves all environments alike"
VERTICAL_MODEL = "one model in blocks, each at the owner of its columns"
HYBRID_MODEL = "one model in blocks, each at all owners of its columns"
EQUILIBRIUM = "a strategy per player, none of which pays to change alone"
POSTERIOR = "a Gaussian posterior"
COEFFICIENTS = "the coefficients of a likelihood"


class Measure(NamedTuple):
    """Objective of R models and certified upper bounds of their suboptimality (inf where none exists).

    Attributes
    ----------
    value : array (R,)
        Objectives.
    gap : array (R,)
        Certified upper bounds of value - F*; inf where none exists.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> problem = Problem(Federation.from_clients([([[1.0]], [2.0])]), Squared())
    >>> problem.measure(np.array([[0.0], [2.0]])).value
    array([2., 0.])
    """

    value: np.ndarray  # (R,)
    gap: np.ndarray  # (R,)


class Derivatives(NamedTuple):
    """Of functions f at R models, or at one model of each of m clients: (R,), or (R, m), and so on; models are flat."""

    values: np.ndarray  # (R, ...) f
    gradients: np.ndarray  # (R, ..., p) grad f
    hessians: np.ndarray  # (R, ..., p, p) grad^2 f


class FederatedProblem(Protocol):
    """What methods may ask of a problem on the server's side; clients' work and measuring need the rows too.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> problem = Problem(Federation.from_clients([([[1.0, 2.0]], [2.0])]), Squared())
    >>> problem.learns, problem.model_shape, problem.equal_weights
    ('one model for all clients', (2,), True)
    """

    learns: str  # ONE_MODEL, MODEL_PER_TASK, ENSEMBLE, ... as above
    loss: Any
    l2: float
    weights: np.ndarray  # (K,) p_k

    @property
    def equal_weights(self) -> bool:
        """Whether all clients weigh the same."""

    @property
    def cumulative_weights(self) -> np.ndarray:
        """Cumulative sums of the client weights, (K,)."""

    @property
    def federation(self) -> Any:
        """K, n, d, sizes, labels, ids, n_domains and domain_labels of the clients; of a `Federation` also the rows."""

    @property
    def model_shape(self) -> tuple[int, ...]:
        """Shape of what is learned, without the leading axis R."""

    def statistic(self, name: str) -> Sequence[np.ndarray]:
        """Return what the K clients answer when asked for a statistic, each from its own rows."""


def made_for(method: Any) -> tuple[str, ...]:
    """Return what a method is made to learn."""
    return tuple(getattr(method, "learns", (ONE_MODEL,)))


def is_for(method: Any, problem: Any) -> bool:
    """Whether a method is made for problems of this kind."""
    return getattr(problem, "learns", None) in made_for(method)


def has_one_model(problem: Any) -> bool:
    """Whether all clients share one model, of which every client has all entries."""
    return not isinstance(problem, type) and getattr(problem, "learns", None) == ONE_MODEL


def has_models(problem: Any) -> bool:
    """Whether models are learned, one or one a client: no ensembles, strategies, posteriors, blocks at owners."""
    return not isinstance(problem, type) and getattr(problem, "learns", None) in (ONE_MODEL, MODEL_PER_TASK)


def has_scores(problem: Any) -> bool:
    """Whether models multiply features; ensembles only compare them with cuts."""
    return getattr(problem, "learns", None) != ENSEMBLE


def drift_of(problem: Any) -> np.ndarray | None:
    """Return the covariance of the steps of a minimiser that moves, None for problems that stay."""
    return problem.covariance if hasattr(problem, "drift") else None


def drift_square(problem: Any) -> float:
    """Return E‖q‖^2 of the steps of a minimiser that moves, 0 for problems that stay."""
    moves = drift_of(problem)
    return 0.0 if moves is None else float(np.trace(moves))


class ClientWeights:
    """What follows from the client weights p_k; and what a problem consists of, in words."""

    weights: np.ndarray
    federation: Any
    members = "clients"  # who they are
    starts = "w"  # what a run may start at, in words; "" where it is zero always

    @property
    def words(self) -> str:
        """What it consists of, as reports say it."""
        fed, what = self.federation, f"{self.loss!r}"  # type: ignore[attr-defined]
        return f"{fed.K} {self.members}, {fed.n} rows, {fed.d} feature{'s' * (fed.d != 1)}, {what}"

    _repr_html_ = _html.of_problem

    @cached_property
    def equal_weights(self) -> bool:
        """Whether all clients weigh the same."""
        return bool(np.ptp(self.weights) == 0.0)

    @cached_property
    def cumulative_weights(self) -> np.ndarray:
        """Cumulative sums of the client weights in the order of the clients' keys, (K,)."""
        return np.cumsum(self.weights[self.federation.by_key])


class ServerProblem(ClientWeights):
    """A problem as a server knows it: sizes, weights and names of the clients, loss, l2 and model shape; no rows.

    Parameters
    ----------
    problem : FederatedProblem
    names : sequence of str
        Statistics that the clients are asked for; `floats` counts what each trajectory pays for the answers.

    Raises
    ------
    AttributeError
        Whenever anything else is asked for, saying that a server has no rows.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.problems import ServerProblem
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[2.0]], [3.0])]), Squared())
    >>> server = ServerProblem(problem, ["smoothness"])
    >>> server.federation.sizes.tolist(), [float(L) for L in server.statistic("smoothness")], server.floats
    ([1, 1], [1.0, 4.0], 2)
    >>> hasattr(server.federation, "X")
    False
    """

    def __init__(self, problem: Any, names: Sequence[str] = ()) -> None:
        self._of = type(problem).__name__
        self.federation: Roster = problem.federation.roster
        for name in known_to_server(problem):
            setattr(self, name, getattr(problem, name))
        self._answers: dict[str, Sequence[np.ndarray]] = {name: problem.statistic(name) for name in names}
        self.floats = sum(int(np.size(answer)) for answers in self._answers.values() for answer in answers)

    def statistic(self, name: str) -> Sequence[np.ndarray]:
        """Return what the clients have answered.

        Raises
        ------
        ValueError
            If they were not asked.
        """
        if name not in self._answers:
            asked = ", ".join(self._answers) or "nothing"
            raise bad(f"statistic {name!r}", "be asked for before round 1", asked, "name it in the method's statistics")
        return self._answers[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        cure = "a server has no rows; let `local` use them, or name a statistic for the clients to answer"
        raise AttributeError(f"{self._of} as a server knows it has no {name}: {cure}")


def known_to_server(problem: Any) -> Iterator[str]:
    """Yield the names of what a server knows of a problem: what all have, and what its class adds in ``shared``."""
    yield from ("learns", "weights", "loss", "l2", "model_shape")
    yield from getattr(problem, "shared", ())


# ---------------------------------------------------------------- checks that problems share


def check_loss(who: str, loss: Any, y: np.ndarray) -> None:
    """Raise unless loss is one, and accepts the labels."""
    if isinstance(loss, type) or not (isinstance(loss, tuple) and hasattr(loss, "value")):
        cure = f"pass {loss.__name__}()" if isinstance(loss, type) else "use one of fedconvex.losses"
        raise wrong_type(f"{who}.loss", "be a loss, a NamedTuple with value and slope", f"{loss!r}", cure)
    slope = "slopes" if hasattr(loss, "n_classes") else "slope"
    if not hasattr(loss, slope):
        raise wrong_type(f"{who}.loss", f"have a {slope}", f"{loss!r} without", f"define {slope}, its derivative")
    if hasattr(loss, "check_labels"):
        loss.check_labels(y)


def client_weights(who: str, weights: Any, fed: Federation, offsets: bool = False) -> np.ndarray:
    """Return p_k (K,), read-only: shares of the rows (of their weight) for None, 1/K for "uniform", or those given.

    Raises
    ------
    ValueError
        If weights do not fit, or rows have offsets that the problem does not know of.
    """
    if getattr(fed, "offset", None) is not None and not offsets:
        raise bad(f"{who}: federation", "have rows without offsets", "offsets", "fedconvex.analyse knows of them")
    who = f"{who}.weights"
    if weights is None:
        p = fed.masses / fed.masses.sum()
    elif isinstance(weights, str):
        if weights != "uniform":
            raise bad(who, "be None, 'uniform' or an array", weights)
        p = np.full(fed.K, 1.0 / fed.K)
    else:
        p = vector(who, weights, fed.K)
        if (p <= 0).any():
            k = int(np.argmin(p))
            cure = "leave that client out with subset"
            raise bad(who, "be positive", f"{p[k]:g} for client {fed.labels[k]}", cure)
        if abs(p.sum() - 1.0) > 1e-9:
            raise bad(who, "sum to one", f"{p.sum():.12g}", "divide them by their sum")
        p = p / p.sum()
    p.flags.writeable = False
    return p


def free_mask(intercept: Any, fed: Federation) -> np.ndarray | None:
    """Return which features are free of l2, (d,), read-only; None for none.

    Raises
    ------
    ValueError, TypeError
        If True does not meet a last column of ones, or a mask has another shape, other entries, or leaves nothing
        penalised.
    """
    who = "Problem.intercept"
    if isinstance(intercept, (bool, np.bool_)):
        if not intercept:
            return None
        last = fed.X[:, [-1]].toarray() if fed.is_sparse else fed.X[:, -1]
        if not (last == 1.0).all():
            cure = "append it with federation.with_intercept(), or pass a mask"
            raise bad(who, "find a last column of ones", f"{last.min():g} to {last.max():g}", cure)
        mask = np.arange(fed.d) == fed.d - 1
    else:
        mask = raw(who, intercept)
        if mask.dtype != bool or mask.shape != (fed.d,):
            raise wrong_type(who, f"be True, False or {fed.d} of them", f"{intercept!r}")
        mask = mask.copy()
    mask.flags.writeable = False
    return mask if mask.any() else None
