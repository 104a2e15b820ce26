"""What clients of FedMultiBoost answer: sums of losses, and edges of the classifiers that they are asked for."""

from __future__ import annotations

import math

from fedconvex.kernels.cache import part, reduction
from fedconvex.losses.stable import exp

# mypy: disable-error-code="no-untyped-def"

_LN2 = math.log(2.0)


@part
def rise_and_slope(base2, u):
    """Phi(-u) - 1 and Phi'(-u)."""
    if not base2:
        e = exp(-u)
        return e - 1.0, e
    e = exp(-abs(u))
    return (math.log1p(e) + max(-u, 0.0)) / _LN2 - 1.0, (e if u > 0.0 else 1.0) / ((1.0 + e) * _LN2)


@reduction
def add_edges(base2, X, y, weights, ptr, clients, w, domain, picks, loss, edge):
    """Sum m_c (Phi_c - 1) into loss (R, m), Z beta of the classifiers picks[k, r] (-1 for none) into edge (R, m, s).

    Rows are read once for all that is asked of them. A row that weighs nothing adds nothing, also where it is infinite;
    weights are empty where all are one.
    """
    for r in range(clients.shape[0]):
        for j in range(clients.shape[1]):
            c = clients[r, j]
            asked, total = picks[domain[c], r], 0.0
            for i in range(ptr[c], ptr[c + 1]):
                s = weights[i] if weights.size > 0 else 1.0
                if s == 0.0:
                    continue
                u = 0.0
                for q in range(w.shape[1]):
                    u += X[i, q] * w[r, q]
                rise, slope = rise_and_slope(base2, y[i] * u)
                total += s * rise
                for q in range(asked.size):
                    if asked[q] < 0:
                        break
                    edge[r, j, q] += s * slope * y[i] * X[i, asked[q]]
            loss[r, j] = total
