"""Sums for the pooled objective: what `FedAvg`, `FedSGD` and `SCAFFOLD` send so that the server learns totals only.

Client k sends p_k times its arrays, and p_k, in fixed point under masks that cancel in the sum over a round's clients.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from fedconvex._check import bad
from fedconvex.draws import Draws
from fedconvex.methods.parts.participation import UniformSampling
from fedconvex.problems import FederatedProblem
from fedconvex.sums import as_sums

Sums = Annotated[Any, as_sums]


def hides(method: Any) -> bool:
    """Whether the server of a method learns sums only."""
    return hasattr(getattr(method, "sums", None), "mask")


def check_fit(method: Any) -> None:
    """Raise unless clients are drawn uniformly, or all: the sums are those of plain weighted averages.

    Raises
    ------
    ValueError
    """
    if hides(method) and not isinstance(method.participation, (UniformSampling, type(None))):
        who, cure = f"{type(method).__name__}.sums", "take a number or a share of clients"
        raise bad(who, "be PlainSums() with a scheme of participation", f"{method.sums!r}", cure)


def send(method: Any, problem: FederatedProblem, reply: Any, clients: np.ndarray, draws: Draws) -> Any:
    """Return what clients (R, m) send: their reply, or with `SecureSums` p_k times its arrays and p_k, masked.

    Raises
    ------
    ValueError
        If a number is too large for the sum, or a round has one client only.
    """
    if not hides(method):
        return reply
    p = problem.weights[clients][:, :, None]
    fields = [getattr(reply, name) for name in reply._fields if name not in getattr(reply, "not_sent", ())]
    flat = np.concatenate([p * a.reshape(*clients.shape, -1) for a in fields] + [p], axis=2)
    return method.sums.mask(flat, problem.federation.ids[clients], draws)


def mean(method: Any, reply: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return the average of the only array of a reply with weights p_k/sum p_k, (R, *shape)."""
    total, (found,) = totals(method, reply, shape)
    return found / total.reshape(-1, *[1] * len(shape))


def totals(method: Any, reply: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the sum of p_k over the round's clients (R,), and those of p_k times each array, (R, *shape)."""
    total, size = method.sums.total(reply), int(np.prod(shape))
    return total[:, -1], [total[:, at : at + size].reshape(-1, *shape) for at in range(0, total.shape[1] - 1, size)]
