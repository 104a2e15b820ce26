"""Models per client near their mean, by Newton's method for all clients at once.

P(W) = sum_k sum_i l(x_i'w_k, y_i) + (lam/2) min over w_0 of (‖w_0‖^2 + sum_k ‖w_k - w_0‖^2); the minimum is
‖W‖^2 - ‖sum_k w_k‖^2/(K + 1). With blocks D_k = H_k + lam I the Hessian is D - (lam/(K + 1)) E E', E a column of
identities, and a step costs what K separate ones cost and one more:

    H^-1 G = D^-1 G + D^-1 E ((K + 1)/lam I - sum_k D_k^-1)^-1 E'D^-1 G.

(`MultiTaskProblem.solve` knows every relationship, and forms Hessians of K d columns, or ascends in the dual.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedconvex.federation import Federation
from fedconvex.kernels import row_losses
from fedconvex.problems import Problem

_STEPS = 200


def near_mean_path(fed: Federation, loss: Any, lams: Sequence[float], accuracy: float) -> Iterator[np.ndarray]:
    """Yield W (K, d) for every lam, each from the one before it.

    Parameters
    ----------
    fed : Federation
    loss : loss
        With a curvature and one score.
    lams : sequence of float
        Positive; cheapest in decreasing order.
    accuracy : float
        Half the squared Newton decrement to stop at, relative to 1 + |P|.
    """
    clients = _Clients(fed, loss)
    W, H = np.zeros((fed.K, fed.d)), None
    for lam in lams:
        W, H = _newton(clients, lam, W, H, accuracy)
        yield W


class _Clients:
    """Sums of the losses of every client's rows, at a model each."""

    def __init__(self, fed: Federation, loss: Any) -> None:
        self.every, self.parts = Problem(fed, loss), [Problem(fed.subset([k]), loss) for k in range(fed.K)]
        self.rows = fed.masses

    def value_gradient(self, W: np.ndarray, lam: float) -> tuple[float, np.ndarray]:
        """Return P(W) and its gradient (K, d)."""
        values, gradients = row_losses.values_gradients_of(self.every, W, np.arange(len(W))[:, None])
        total, share = W.sum(axis=0), 1.0 / (len(W) + 1.0)
        value = float(self.rows @ values[:, 0]) + 0.5 * lam * float(np.sum(W * W) - share * (total @ total))
        return value, self.rows[:, None] * gradients[:, 0] + lam * (W - share * total)

    def hessians(self, W: np.ndarray) -> list[np.ndarray]:
        """Return the Hessians H_k (d, d), without lam."""
        return [n * p.flat_hessian(w) for p, w, n in zip(self.parts, W, self.rows.tolist(), strict=True)]


class _System:
    """The Hessian of P, inverted."""

    def __init__(self, H: list[np.ndarray], lam: float) -> None:
        one = np.eye(len(H[0]))
        self.blocks = np.linalg.inv(np.array(H) + lam * one)  # (K, d, d), small: calls would cost more than products
        self.between = np.linalg.inv((len(H) + 1.0) / lam * one - self.blocks.sum(axis=0))

    def solve(self, G: np.ndarray) -> np.ndarray:
        """Return H^-1 G, (K, d)."""
        A = (self.blocks @ G[:, :, None])[:, :, 0]
        return np.asarray(A + self.blocks @ (self.between @ A.sum(axis=0)))


def _newton(clients: _Clients, lam: float, W: np.ndarray, H: Any, accuracy: float) -> tuple[np.ndarray, Any]:
    """Return the minimiser and the Hessians that were used last; they are kept while steps contract."""
    F, G = clients.value_gradient(W, lam)
    H = clients.hessians(W) if H is None else H
    system = _System(H, lam)
    for _ in range(_STEPS):
        step = system.solve(G)
        slope, t = float(np.sum(G * step)), 1.0
        if not slope > 2.0 * accuracy * (1.0 + abs(F)):
            break
        while t > 1e-10:
            F_new, G_new = clients.value_gradient(W - t * step, lam)
            if F_new <= F - 1e-4 * t * slope:
                break
            t *= 0.5
        else:
            break
        W, F, G = W - t * step, F_new, G_new
        if t < 1.0 or float(np.sum(G * system.solve(G))) > 0.1 * slope:
            H = clients.hessians(W)
            system = _System(H, lam)
    return W, H
