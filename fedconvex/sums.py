"""How a server learns sums over clients: `PlainSums`, from their answers; `fedconvex.secure` has sums under masks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import equal_by_type, wrong_type
from fedconvex.kernels import averages

__all__ = ["PlainSums", "as_sums"]


@equal_by_type
class PlainSums(NamedTuple):
    """The clients' answers reach the server, which adds them.

    Examples
    --------
    >>> from fedconvex import SCAFFOLD
    >>> from fedconvex.methods import PlainSums
    >>> SCAFFOLD(step_size=0.1).sums == PlainSums()  # the default
    True
    """

    def send(self, reply: Any, ids: np.ndarray, draws: Any) -> Any:
        """Return the reply."""
        return reply

    def add(self, reply: Any, p: int, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Return sum beta w/sum beta (R, *model), sum beta (R,), and the sums of losses and counts (R, p)."""
        total, losses, counts = (np.add.reduce(x, axis=1) for x in (reply.beta, reply.losses, reply.counts))
        q = reply.beta / (total if (total > 0.0).all() else np.where(total > 0.0, total, 1.0))[:, None]
        return averages.over_clients(q, reply.w), total, losses, counts


def as_sums(who: str, x: Any) -> Any:
    """Return a way in which the server learns sums, or raise unless it is one.

    Parameters
    ----------
    who : str
        Whose setting it is, for messages.
    x : PlainSums or SecureSums
        Or an object of your own with ``send`` and ``add``.

    Raises
    ------
    TypeError
        If it has not both.

    Examples
    --------
    >>> from fedconvex.methods import PlainSums
    >>> from fedconvex.secure import as_sums
    >>> as_sums("Mine.sums", PlainSums())
    PlainSums()
    """
    if isinstance(x, type) or not (hasattr(x, "send") and hasattr(x, "add")):  # a generator has one of them
        raise wrong_type(who, "be PlainSums() or SecureSums()", f"{x!r}")
    return x
