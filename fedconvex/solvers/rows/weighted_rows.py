"""What rows weigh: in their client's mean, in F, and in sums over domains."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedconvex._sparse import length
from fedconvex.federation import Federation
from fedconvex.kernels.row_weights import labels_with_weights, weighted_loss


class WeightedRows:
    """Rows of a federation with client weights p_k, and the labels and the loss by which kernels weigh them."""

    federation: Federation
    weights: np.ndarray  # (K,) p_k
    loss: Any

    @cached_property
    def row_weights(self) -> np.ndarray:
        """p_k / n_k, (K,): what one row of client k weighs in F, times its relative weight if rows have weights."""
        return self.weights / self.federation.sizes

    @cached_property
    def relative_weights(self) -> np.ndarray | None:
        """Weights of the rows, of mean one over each client, (n,); None where all rows of a client weigh the same."""
        fed = self.federation
        if fed.sample_weight is None:
            return None
        return fed.sample_weight * np.repeat(fed.sizes / fed.masses, np.diff(fed.ptr))

    @cached_property
    def cumulative_row_weights(self) -> np.ndarray | None:
        """Sums of the rows' relative weights from the first row of their client on, (n,); None without weights."""
        s, ptr = self.relative_weights, self.federation.ptr
        return None if s is None else np.concatenate([np.cumsum(part) for part in np.split(s, ptr[1:-1])])

    def weigh(self, k: int, rows: np.ndarray) -> np.ndarray:
        """Return numbers of client k's rows (n_k, ...) times their relative weights."""
        s, ptr = self.relative_weights, self.federation.ptr
        return rows if s is None else s[ptr[k] : ptr[k + 1]].reshape(-1, *[1] * (rows.ndim - 1)) * rows

    @cached_property
    def per_row(self) -> np.ndarray:
        """What every row weighs in F, (n,), of sum one."""
        out = np.repeat(self.row_weights, self.federation.sizes)
        return out if self.relative_weights is None else out * self.relative_weights

    @cached_property
    def row_weight_range(self) -> tuple[float, float]:
        """The least and the largest of `per_row`, which is not made for them where no row has a weight of its own."""
        each = self.row_weights if self.relative_weights is None else self.per_row
        return float(each.min()), float(each.max())

    @cached_property
    def length(self) -> float:
        """Root of the sum of the squares of all entries of X, where those below 1e-150 count as 1e-150."""
        return length(self.federation.X)

    @cached_property
    def row_labels(self) -> np.ndarray:
        """Labels as kernels take them: (n,), or records that carry the rows' weights."""
        y = self.federation.y
        return y if self.relative_weights is None else labels_with_weights(y, self.relative_weights)

    @cached_property
    def absolute_labels(self) -> np.ndarray:
        """Like `row_labels`, with the weights that rows were given: for sums over domains, which clients share."""
        fed = self.federation
        return fed.y if fed.sample_weight is None else labels_with_weights(fed.y, fed.sample_weight)

    def absolute(self, values: np.ndarray, lo: int, hi: int) -> np.ndarray:
        """Return what was computed from the `row_labels` of rows lo:hi, (hi - lo, ...), for `absolute_labels`."""
        fed = self.federation
        if fed.sample_weight is None:
            return values
        return values * np.repeat(fed.masses / fed.sizes, fed.sizes)[lo:hi, None]

    @cached_property
    def row_loss(self) -> Any:
        """The loss of the `row_labels`."""
        return self.loss if self.relative_weights is None else weighted_loss(self.loss)
