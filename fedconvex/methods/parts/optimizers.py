"""Client and server optimisers of FedOpt: CLIENTOPT and SERVEROPT in Algorithm 1 of Reddi et al. (ICLR 2021).

A client optimiser is a NamedTuple whose `move` is compiled into the local-update kernel; its memory starts at zero in
every round. A server optimiser treats the negative average model difference as a gradient and keeps its memory in the
method's state.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np

from fedconvex._check import equal_by_type, flag, wrong_type
from fedconvex.fields import positive, share

# ---------------------------------------------------------------- clients


@equal_by_type
class ClientSGD(NamedTuple):
    """Plain steps w <- w - a g.

    Examples
    --------
    >>> from fedconvex import FedAvg
    >>> from fedconvex.methods import ClientSGD
    >>> FedAvg(step_size=0.1).client == ClientSGD()  # the default
    True
    """

    def plain(self):
        """Whether steps may be added to the model row by row: not those of a class that moves otherwise."""
        return type(self).move is ClientSGD.move

    def move(self, w, g, a, m, v, t):
        """w <- w - a g."""
        for j in range(w.size):
            w[j] -= a * g[j]


@equal_by_type
class ClientMomentum(NamedTuple):
    """Heavy-ball steps m <- beta m + g, w <- w - a m, from m = 0 in every round.

    Parameters
    ----------
    beta : float
        In [0, 1).

    Examples
    --------
    >>> from fedconvex import FedAvg, Federation, Problem, Squared, run
    >>> from fedconvex.methods import ClientMomentum
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0])]), Squared())
    >>> run(FedAvg(step_size=0.1, local_steps=2, client=ClientMomentum(0.5)), problem, rounds=1).w.round(3)
    array([0.24])
    """

    beta: float = 0.9

    def plain(self):
        """Whether steps may be added row by row: no, they need the whole gradient."""
        return False

    def move(self, w, g, a, m, v, t):
        """m <- beta m + g; w <- w - a m."""
        for j in range(w.size):
            m[j] = self.beta * m[j] + g[j]
            w[j] -= a * m[j]


@equal_by_type
class ClientAdam(NamedTuple):
    """Adam with bias correction (Kingma and Ba 2015, Algorithm 1), from zero memory in every round.

    Parameters
    ----------
    beta1, beta2 : float
        In [0, 1).
    epsilon : float
        Positive.

    Examples
    --------
    >>> from fedconvex import FedAvg, Federation, Problem, Squared, run
    >>> from fedconvex.methods import ClientAdam
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0])]), Squared())
    >>> run(FedAvg(step_size=0.1, client=ClientAdam()), problem, rounds=1).w.round(3)  # Adam's first step
    array([0.1])
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def plain(self):
        """Whether steps may be added row by row: no, they need the whole gradient."""
        return False

    def move(self, w, g, a, m, v, t):
        """Step number t = 1, 2, ... of Adam."""
        fix1, fix2 = 1.0 - self.beta1**t, 1.0 - self.beta2**t
        for j in range(w.size):
            m[j] = self.beta1 * m[j] + (1.0 - self.beta1) * g[j]
            v[j] = self.beta2 * v[j] + (1.0 - self.beta2) * g[j] * g[j]
            w[j] -= a * (m[j] / fix1) / (math.sqrt(v[j] / fix2) + self.epsilon)


# ---------------------------------------------------------------- servers


@equal_by_type
class Averaging(NamedTuple):
    """w <- the weighted average of the clients' models.

    Examples
    --------
    >>> from fedconvex import FedAvg
    >>> from fedconvex.methods import Averaging
    >>> FedAvg(step_size=0.1).server == Averaging()  # the default
    True
    """

    @property
    def plain_step(self) -> float | None:
        """beta of w + beta Delta, None of a class that moves otherwise."""
        return 1.0 if type(self).move is Averaging.move else None

    def init(self, w: np.ndarray) -> tuple:
        """No memory."""
        return ()

    def move(self, memory: tuple, w: np.ndarray, average: np.ndarray) -> tuple[tuple, np.ndarray]:
        """Return (memory, average)."""
        return memory, average


@equal_by_type
class ServerSGD(NamedTuple):
    """Step along the average difference Delta: m <- momentum m + Delta, w <- w + step_size m.

    Parameters
    ----------
    step_size : float
        Positive.
    momentum : float
        In [0, 1).
    nesterov : bool
        Step along momentum m + Delta instead (FedAvgM with Nesterov's look-ahead: Hsu et al. 2019).

    Examples
    --------
    >>> from fedconvex import FedAvg, Federation, Problem, Squared, run
    >>> from fedconvex.methods import ServerSGD
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0])]), Squared())
    >>> run(FedAvg(step_size=0.1, server=ServerSGD(1.0, momentum=0.5)), problem, rounds=2).w.round(3)
    array([0.24])
    """

    step_size: float = 1.0
    momentum: float = 0.0
    nesterov: bool = False

    @property
    def plain_step(self) -> float | None:
        """beta of w + beta Delta, None with momentum, or of a class that moves otherwise."""
        return self.step_size if self.momentum == 0.0 and type(self).move is ServerSGD.move else None

    def init(self, w: np.ndarray) -> tuple:
        """m = 0."""
        return (np.zeros_like(w),)

    def move(self, memory: tuple, w: np.ndarray, average: np.ndarray) -> tuple[tuple, np.ndarray]:
        """Return the new (memory, model)."""
        delta = average - w
        m = self.momentum * memory[0] + delta
        return (m,), w + self.step_size * (self.momentum * m + delta if self.nesterov else m)


_T = TypeVar("_T", bound=type)


def adaptive(cls: _T) -> _T:
    """Give a server optimiser that says how v follows Delta^2 its memory (m, v) and its step (Reddi et al. 2021).

    m <- beta1 m + (1 - beta1) Delta, w <- w + step_size m/(sqrt v + tau), from m = 0 and v = tau^2.
    """

    def init(self: Any, w: np.ndarray) -> tuple:
        return (np.zeros_like(w), np.full_like(w, self.tau**2))

    def move(self: Any, memory: tuple, w: np.ndarray, average: np.ndarray) -> tuple[tuple, np.ndarray]:
        delta = average - w
        m, v = self.beta1 * memory[0] + (1.0 - self.beta1) * delta, self.follow(memory[1], delta**2)
        return (m, v), w + self.step_size * m / (np.sqrt(v) + self.tau)

    for name, part in (("init", init), ("move", move)):
        setattr(cls, name, part)
    return cls


@equal_by_type
@adaptive
class ServerAdagrad(NamedTuple):
    """FedAdagrad: v <- v + Delta^2, w <- w + step_size m/(sqrt v + tau) (Reddi et al. 2021, Algorithm 2).

    Parameters
    ----------
    step_size, tau : float
        Positive; v starts at tau^2.
    beta1 : float
        Momentum m <- beta1 m + (1 - beta1) Delta, in [0, 1).

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import ServerAdagrad
    >>> problem = Problem(linear_federation(2, 2, 5, seed=0).federation, Squared())
    >>> result = run(FedAvg(step_size=0.1, server=ServerAdagrad(0.3)), problem, rounds=30)
    >>> bool(result.gap < 0.1 * result.trace.gap[0])
    True
    """

    step_size: float = 0.1
    beta1: float = 0.0
    tau: float = 1e-3

    def follow(self, v: np.ndarray, square: np.ndarray) -> np.ndarray:
        """Return v + Delta^2."""
        return v + square


@equal_by_type
@adaptive
class ServerAdam(NamedTuple):
    """FedAdam: v <- beta2 v + (1 - beta2) Delta^2, without bias correction (Reddi et al. 2021, Algorithm 2).

    Parameters
    ----------
    step_size, tau : float
        Positive; v starts at tau^2.
    beta1, beta2 : float
        In [0, 1).

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import ServerAdam
    >>> problem = Problem(linear_federation(2, 2, 5, seed=0).federation, Squared())
    >>> result = run(FedAvg(step_size=0.1, server=ServerAdam(0.1)), problem, rounds=30)
    >>> bool(result.gap < 0.1 * result.trace.gap[0])
    True
    """

    step_size: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def follow(self, v: np.ndarray, square: np.ndarray) -> np.ndarray:
        """Return beta2 v + (1 - beta2) Delta^2."""
        return self.beta2 * v + (1.0 - self.beta2) * square


@equal_by_type
@adaptive
class ServerYogi(NamedTuple):
    """FedYogi: v <- v - (1 - beta2) Delta^2 sign(v - Delta^2) (Reddi et al. 2021, Algorithm 2).

    Parameters
    ----------
    step_size, tau : float
        Positive; v starts at tau^2.
    beta1, beta2 : float
        In [0, 1).

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import ServerYogi
    >>> problem = Problem(linear_federation(2, 2, 5, seed=0).federation, Squared())
    >>> result = run(FedAvg(step_size=0.1, server=ServerYogi(0.1)), problem, rounds=30)
    >>> bool(result.gap < 0.1 * result.trace.gap[0])
    True
    """

    step_size: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def follow(self, v: np.ndarray, square: np.ndarray) -> np.ndarray:
        """Return v - (1 - beta2) Delta^2 sign(v - Delta^2)."""
        return v - (1.0 - self.beta2) * square * np.sign(v - square)


# ---------------------------------------------------------------- rules


class Optimizer(NamedTuple):
    """The rule of an optimiser: one of its role, with valid parameters."""

    role: str
    attribute: str  # that every optimiser of this role has
    example: str

    def __call__(self, who: str, x: Any) -> Any:
        if isinstance(x, type) or not (isinstance(x, tuple) and hasattr(x, self.attribute)):
            raise wrong_type(who, f"be a {self.role} optimiser such as {self.example}", f"{x!r}")
        for name, v in zip(x._fields, x, strict=True):  # type: ignore[attr-defined]
            label = f"{who}: {type(x).__name__}.{name}"
            if name.startswith("beta") or name == "momentum":
                share(label, v)
            elif name == "nesterov":
                flag(label, v)
            else:
                positive(label, v)
        return x


ClientOptimizer = Annotated[Any, Optimizer("client", "plain", "ClientAdam()")]
ServerOptimizer = Annotated[Any, Optimizer("server", "init", "ServerAdam()")]
