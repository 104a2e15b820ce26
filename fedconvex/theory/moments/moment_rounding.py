"""How far double precision moves exact moments: F - F* is no difference here, so that no cancellation is allowed for.

The moments of e = w - w* are moved, not those of w: a local step rounds E[ee'] by a few eps of its trace before the
server averages, which is at most tr S + (a ‖c_k‖)^2 + a^2 phi V_k, c_k and V_k the gradient and its variance at w*. The
gradients c_k themselves are off by eps mean ‖x‖(2 ‖x‖‖w*‖ + |residual|), and grad F(w*) by what the solver left: both
act as a constant push, as if labels were slightly others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from fedconvex.problems import Problem
    from fedconvex.theory.moments.engine import Moments
    from fedconvex.theory.moments.least_squares import LeastSquares
    from fedconvex.theory.moments.stacked import StackedMoments

UNIT = 8.0 * float(np.finfo(float).eps)


class Moved(NamedTuple):
    """Largest effects of rounding after each round.

    Attributes
    ----------
    value : array (T,)
        Largest effect of rounding on E F(w_t) - F*, after every round.
    deviation : array (T,)
        The same on E‖w_t - w*‖^2.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.theory.moments import Moved
    >>> rounding = Moved(np.array([1e-16, 2e-16]), np.array([1e-17, 2e-17]))
    >>> bool(rounding.value.max() < 1e-15)
    True
    """

    value: np.ndarray  # (T,) on E F - F*
    deviation: np.ndarray  # (T,) on E‖e‖^2


def moved(moments: Moments, deviation: np.ndarray) -> Moved:
    """Return how far rounding may move the moments at times 0, 1, ..., where E‖e‖^2 is ``deviation`` (T,).

    Parameters
    ----------
    moments : Moments
        Of a method on least squares.
    deviation : array (T,)
        E‖w_t - w*‖^2 at times 0, 1, ..., such as ``moments.run(rounds).deviation``.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.theory.moments import Moments, moved
    >>> problem = Problem(linear_federation(n_clients=3, n_features=2, seed=0).federation, Squared())
    >>> moments = Moments(problem, step_size=0.05, local_steps=2)
    >>> bool(moved(moments, moments.run(rounds=5).deviation).value.max() < 1e-12)
    True
    """
    data, d, T = moments.round.data, moments.d, len(deviation)
    noise2, off = at_optimum(data, moments.problem, moments.round.phi)
    constant = moments.round.steps(0).sum(axis=0)
    steps = np.array([constant if moments.round.constant else moments.round.steps(t).sum(axis=0) for t in range(T)])
    deviation = np.maximum(deviation, 0.0)  # negative through rounding
    beside = np.maximum(deviation, np.append(deviation[1:], 0.0)) + np.max(steps**2 * noise2, axis=1)
    wide = 1.0 + moments.round.mixing.left2  # E (sum of the weights)^2
    count = UNIT * (d + 1) * float(moments.local_steps.max() + 1) * wide
    second, push = count * np.cumsum(beside), np.cumsum(np.max(steps * off, axis=1)) * np.sqrt(wide)
    length, top = np.sqrt(deviation), float(np.linalg.norm(data.H, 2))
    value = 0.5 * top * (second + push**2) + (top * push + off.max()) * length
    return Moved(value, second + 2.0 * length * push + push**2)


def at_optimum(data: LeastSquares, problem: Problem, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return E‖g_k‖^2 at w* and how far the mean gradients there may be off, (K,) each."""
    d, noise2, off = data.d, np.empty(len(phi)), np.empty(len(phi))
    length = float(np.linalg.norm(data.w_star))
    for k, (X, U) in enumerate(data.rows):
        norms, r = np.sqrt(np.einsum("ij,ij->i", X, X)), np.abs(U[:, -1])
        noise2[k] = np.sum(data.A[k, :d, d] ** 2) + phi[k] * np.mean((norms * r) ** 2)
        off[k] = UNIT * float(np.mean(norms * (2.0 * norms * length + r)) + problem.l2 * length)
    return noise2, off + float(np.linalg.norm(data.slope))


def moved_stacked(moments: StackedMoments, deviation: np.ndarray, sizes: np.ndarray) -> Moved:
    """Return the same for control variates and proximal terms.

    ``sizes`` (T,) are E‖x - w*‖^2 + h^2 sum_k E‖c_k‖^2, h the length of a round. What rounding adds to one round is a
    few eps of this, and of the gradients' moments at w*; errors are taken to grow by no more than the number of clients
    per participant, the ratio of the weights in which SCAFFOLD's analysis measures controls and model.

    Parameters
    ----------
    moments : StackedMoments
        Of a method with control variates or a proximal term, on least squares.
    deviation : array (T,)
        E‖w_t - w*‖^2 at times 0, 1, ...
    sizes : array (T,)
        E‖x - w*‖^2 + h^2 sum_k E‖c_k‖^2 at the same times.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import SCAFFOLD, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.theory.moments import StackedMoments, moved_stacked
    >>> problem = Problem(linear_federation(n_clients=3, n_features=2, seed=0).federation, Squared())
    >>> moments = StackedMoments(SCAFFOLD(step_size=0.05, local_steps=2), problem)
    >>> bool(moved_stacked(moments, np.ones(4), np.ones(4)).value.max() < 1e-11)
    True
    """
    phi = np.array([job.phi for job in moments.jobs])
    noise2, off = at_optimum(moments.data, moments.problem, phi)
    spread, h = float(len(phi) / (len(phi) * moments.mixing.mean).sum()), moments.length
    count = UNIT * moments.D * float(max(len(job.maps) for job in moments.jobs)) * spread
    sizes = np.maximum(sizes, 0.0)
    beside = sizes + np.append(sizes[1:], 0.0) + h**2 * float(noise2.max())
    second, push = count * np.cumsum(beside), spread * h * off.max() * np.arange(1.0, len(sizes) + 1.0)
    length, top = np.sqrt(np.maximum(deviation, 0.0)), float(np.linalg.norm(moments.data.H, 2))
    value = 0.5 * top * (second + push**2) + (top * push + off.max()) * length
    return Moved(value, second + 2.0 * length * push + push**2)
