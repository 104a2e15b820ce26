"""What a method declares about its rounds, as data: theorems and exact moments ask for these, never for a class.

And what a problem has beside plain rows and losses, which a statement must allow for. A method that wants to be
recognised defines ``traits(problem)``, which needs no rows: sizes and weights of the clients do. Subclasses inherit
what is declared, and must declare anew what they change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedconvex._check import wrong_type

__all__ = [
    "LEAVE_OUT",
    "REFUSE",
    "RENORMALISE",
    "Controls",
    "LocalSteps",
    "ProblemTraits",
    "Traits",
    "counted_by",
    "lost_reply",
    "not_sent",
    "problem_traits",
    "sent_apart",
    "sent_by_place",
    "stopping",
    "traits_of",
]

# what a round makes of a client that does not answer: its attribute ``lost``, or ``lost(t)``, says so
RENORMALISE = "renormalise"  # the weights of those that answer are divided by their sum
LEAVE_OUT = "leave out"  # as if it had not been sampled; weights stay
REFUSE = "refuse"  # the round needs everybody who was asked


class LocalSteps(NamedTuple):
    """Mini-batch steps of a client on its own rows, from the model that it was sent.

    Attributes
    ----------
    step_size : float, tuple (R,) or schedule
        As the method was given it.
    steps, batch_size, sizes : int array (K,)
        Steps in a round; rows per step, all rows for full batches; n_k.
    replacement : bool
        Whether rows are drawn with replacement.
    plain : bool
        Whether a step is w <- w - eta grad f_k(w; b), and nothing else.
    fresh : bool
        Whether batches are drawn independently of each other, and are of one size.
    factor : array (K,)
        By which clients multiply step_size.
    by_weight : bool
        Whether rows are drawn with probabilities of their weights.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.traits import traits_of
    >>> problem = Problem(linear_federation(n_clients=2, seed=0).federation, Squared())
    >>> local = traits_of(FedAvg(step_size=0.1, local_steps=3, batch_size=5), problem).local
    >>> local.steps.tolist(), local.batch_size.tolist(), local.full
    ([3, 3], [5, 5], False)
    """

    step_size: Any  # as the method was given it: a float, a tuple (R,) or a schedule
    steps: np.ndarray  # (K,) in a round
    batch_size: np.ndarray  # (K,) rows per step, all rows for full batches
    sizes: np.ndarray  # (K,) n_k
    replacement: bool
    plain: bool  # w <- w - eta grad f_k(w; b), and nothing else
    fresh: bool  # batches are drawn independently of each other and are of one size
    factor: np.ndarray  # (K,) by which clients multiply step_size
    by_weight: bool = False  # rows are drawn with probabilities of their weights, not uniformly and scaled

    @property
    def full(self) -> bool:
        """Whether every step takes all rows of its client, so that nothing is drawn."""
        return not self.replacement and bool((self.batch_size == self.sizes).all())

    @property
    def equal_steps(self) -> int | None:
        """Steps of every client in a round, or None where clients differ."""
        return int(self.steps[0]) if (self.steps == self.steps[0]).all() else None


class Controls(NamedTuple):
    """Control variates of clients, started at zero: steps along g - c_k + c, c = sum_k p_k c_k.

    Attributes
    ----------
    option : {1, 2}
        c_k^+ is 1: the full gradient at the server's model, 2: the mean of the gradients of the local steps.
    server_step : float
        beta of w <- w + beta (K/m) sum over the m participants of p_k (w_k - w).

    Examples
    --------
    >>> from fedconvex import SCAFFOLD, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.traits import traits_of
    >>> problem = Problem(linear_federation(n_clients=2, seed=0).federation, Squared())
    >>> traits_of(SCAFFOLD(step_size=0.1, option=1), problem).controls
    Controls(option=1, server_step=1.0)
    """

    option: int  # c_k^+ is 1: the full gradient at the server's model, 2: the mean of the gradients of the local steps
    server_step: float  # beta of w <- w + beta (K/m) sum over the m participants of p_k (w_k - w)


class Traits(NamedTuple):
    """What is known of a method's rounds on a problem; the defaults say that nothing is.

    Attributes
    ----------
    local : LocalSteps or None
        None where clients do something else.
    server_step : float or None
        beta of w <- w + beta (sum_k q_k w_k - w), q_k the weights of the participants.
    sampling : str
        "everyone", "uniform" (different clients), "proportional" (draws with probabilities p_k), "scaled" or "other".
    participants : int
        Clients, or draws, in a round.
    drawn : tuple of str
        What is random: clients, batches, stragglers, domains, rows, ...
    proximal : float, tuple or None
        mu: clients add (mu/2) ‖. - w‖^2, w the model they were sent; solved exactly if local is None.
    controls : Controls or None
        Control variates.
    by_round : bool
        Whether rounds may depend on their number too: decaying steps, turns that are not in the state.
    random_steps : LocalSteps or None
        In the place of `local` where their number is drawn: ``steps`` are means.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.traits import traits_of
    >>> problem = Problem(linear_federation(n_clients=4, seed=0).federation, Squared())
    >>> t = traits_of(FedAvg(step_size=0.1, local_steps=3, participation=0.5), problem)
    >>> t.sampling, t.participants, t.averages, t.local.equal_steps, t.drawn
    ('uniform', 2, True, 3, ('clients',))
    """

    local: LocalSteps | None = None  # None where clients do something else
    server_step: float | None = None  # beta of w <- w + beta (sum_k q_k w_k - w), q_k the weights of the participants
    sampling: str = (
        "other"  # everyone, uniform (different clients), proportional (draws with probabilities p_k), scaled, other
    )
    participants: int = 0  # clients, or draws, in a round
    drawn: tuple[str, ...] = ("something",)  # what is random: clients, batches, stragglers, domains, rows, ...
    proximal: Any = (
        None  # mu: clients add (mu/2) ‖. - w‖^2, w the model they were sent; solved exactly if local is None
    )
    controls: Controls | None = None
    by_round: bool = (
        True  # whether rounds may depend on their number too: decaying steps, turns that are not in the state
    )
    random_steps: LocalSteps | None = None  # in the place of `local` where their number is drawn: ``steps`` are means

    @property
    def averages(self) -> bool:
        """Whether the server takes the plain average of what the participants answer."""
        return self.server_step == 1.0

    @property
    def everyone(self) -> bool:
        """Whether there is full participation."""
        return self.sampling == "everyone"

    @property
    def deterministic(self) -> bool:
        """Whether a round draws nothing."""
        return not self.drawn


def traits_of(method: Any, problem: Any) -> Traits:
    """Return what a method declares about its rounds on a problem, or that nothing is known.

    Parameters
    ----------
    method : method
        With its settings.
    problem : problem
        That it runs on.

    Raises
    ------
    TypeError
        If the method's ``traits(problem)`` returns something else than `Traits`.

    Examples
    --------
    >>> from fedconvex import FedSGD, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.traits import traits_of
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> traits_of(FedSGD(step_size=0.1), problem).deterministic, traits_of("something else", problem).drawn
    (True, ('something',))
    """
    known = callable(getattr(method, "traits", None)) and not isinstance(method, type)
    declared = method.traits(problem) if known else Traits()
    if not isinstance(declared, Traits):
        who = f"{type(method).__name__}.traits(problem)"
        raise wrong_type(who, "return Traits", f"{declared!r}", "return Traits(), where nothing is known")
    return declared


def stopping(t: Traits, local: LocalSteps, chance: float) -> Traits:
    """Return the traits of clients that stop after each of their local steps with some chance.

    They take 1/chance steps on average. With chance 1 it is one step, and nothing is drawn for it.

    Parameters
    ----------
    t : Traits
        What else is known.
    local : LocalSteps
        What their steps are; how many is not asked.
    chance : float
        In (0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.traits import LocalSteps, Traits, stopping
    >>> n = np.array([4, 4])
    >>> step = LocalSteps(0.1, np.ones(2), n, n, False, True, True, np.ones(2))
    >>> some, one = (stopping(Traits(drawn=()), step, chance) for chance in (0.25, 1.0))
    >>> some.random_steps.steps.tolist(), some.local, some.drawn
    ([4.0, 4.0], None, ('steps',))
    >>> one.local.equal_steps, one.random_steps, one.deterministic
    (1, None, True)
    """
    if chance == 1.0:
        return t._replace(local=local._replace(steps=np.ones(local.steps.shape, dtype=np.int64)), random_steps=None)
    means = np.full(local.steps.shape, 1.0 / chance)
    return t._replace(local=None, random_steps=local._replace(steps=means), drawn=(*t.drawn, "steps"))


class ProblemTraits(NamedTuple):
    """What a problem has beside plain rows, losses and l2 on all coordinates: in words, empty where it has not.

    Attributes
    ----------
    weights, free, penalty : str
        Range of the rows' weights; coordinates that l2 leaves out; the penalty. Empty where there are none.

    Examples
    --------
    >>> from fedconvex.traits import ProblemTraits
    >>> ProblemTraits(penalty="L1(strength=0.1)").weights
    ''
    """

    weights: str = ""  # range of the rows' weights
    free: str = ""  # coordinates that l2 leaves out
    penalty: str = ""


def problem_traits(problem: Any) -> ProblemTraits:
    """Return what a problem has, of any kind.

    Parameters
    ----------
    problem : problem
        Of any kind.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.traits import problem_traits
    >>> fed = Federation.from_clients([([[1.0, 1.0], [2.0, 1.0]], [1.0, 0.0])])
    >>> problem_traits(Problem(fed, Squared(), 0.1, intercept=True))
    ProblemTraits(weights='', free='1 of 2 coordinates', penalty='')
    """
    rows = vars(problem).get("federation") or problem.data
    weight, free, penalty = rows.sample_weight, vars(problem).get("free"), vars(problem).get("penalty")
    return ProblemTraits(
        "" if weight is None else f"{weight.min():g} to {weight.max():g}",
        "" if free is None or not problem.l2 > 0.0 else f"{int(free.sum())} of {free.size} coordinates",
        "" if penalty is None else f"{penalty!r}",
    )


# ---------------------------------------------------------------- what messages declare

_T = TypeVar("_T", bound=type)


def not_sent(*fields: str) -> Callable[[_T], _T]:
    """Return a decorator: these fields of a Message or Reply are no communication, but diagnostics or known anyway.

    Examples
    --------
    >>> import numpy as np
    >>> from typing import NamedTuple
    >>> from fedconvex.traits import not_sent
    >>> @not_sent("seconds")
    ... class Reply(NamedTuple):
    ...     g: np.ndarray
    ...     seconds: np.ndarray
    >>> Reply(np.zeros((1, 3)), np.zeros(1)).not_sent
    ('seconds',)
    """
    return lambda cls: _declared(cls, "not_sent", fields)


def sent_apart(*fields: str) -> Callable[[_T], _T]:
    """Return a decorator: of these fields (R, K, ...) of a Message every client is sent its own part only.

    Examples
    --------
    >>> import numpy as np
    >>> from typing import NamedTuple
    >>> from fedconvex.traits import sent_apart
    >>> @sent_apart("c")
    ... class Message(NamedTuple):
    ...     w: np.ndarray
    ...     c: np.ndarray  # (R, K, d)
    >>> Message.per_client
    ('c',)
    """
    return lambda cls: _declared(cls, "per_client", fields)


def counted_by(field: str) -> Callable[[_T], _T]:
    """Return a decorator: a field of whole numbers, (R, K) of a Message, (R, m) of a Reply, says what each client pays.

    Nothing else in it is counted then: for clients that are sent, or answer, different numbers of entries.

    Parameters
    ----------
    field : str
        Its name.

    Examples
    --------
    >>> import numpy as np
    >>> from typing import NamedTuple
    >>> from fedconvex.traits import counted_by
    >>> @counted_by("entries")
    ... class Reply(NamedTuple):
    ...     g: np.ndarray
    ...     entries: np.ndarray  # (R, m)
    >>> Reply.counted
    ('entries',)
    """
    return lambda cls: _declared(cls, "counted", (field,))


def sent_by_place(*fields: str) -> Callable[[_T], _T]:
    """Return a decorator: of these fields (R, m, ...) of a Message the i-th client of the round is sent the i-th part.

    Examples
    --------
    >>> import numpy as np
    >>> from typing import NamedTuple
    >>> from fedconvex.traits import sent_by_place
    >>> @sent_by_place("models")
    ... class Message(NamedTuple):
    ...     models: np.ndarray  # (R, m, d)
    >>> Message.per_place
    ('models',)
    """
    return lambda cls: _declared(cls, "per_place", fields)


def lost_reply(method: Any, t: int) -> str:
    """Return what a method makes of a client that does not answer in round t: by default it refuses to go on.

    Parameters
    ----------
    method : method
        With its settings.
    t : int
        The round.

    Examples
    --------
    >>> from fedconvex import FedAvg
    >>> from fedconvex.methods import AFL
    >>> from fedconvex.traits import lost_reply
    >>> lost_reply(FedAvg(step_size=0.1), 0), lost_reply(AFL(step_size=0.1, domain_step_size=0.1), 0)
    ('renormalise', 'refuse')
    """
    lost = getattr(method, "lost", REFUSE)
    return lost(t) if callable(lost) else lost


def _declared(cls: _T, name: str, fields: tuple[str, ...]) -> _T:
    setattr(cls, name, fields)
    return cls
