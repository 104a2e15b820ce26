"""Whether few rows weigh more or less than before: what the audit of a site asks of each model it answers about."""

from __future__ import annotations

from math import inf

from fedconvex.kernels.cache import reduction

# mypy: disable-error-code="no-untyped-def"

SMALLER = 2.0**-600  # times it, squares of the largest numbers do not overflow


@reduction
def few_changed(then, now, rows, still):
    """Whether a row of then (m, n) differs from now (n,) in fewer than so many entries, by (sum |d|)^2 / sum d^2.

    Changes of at most ``still`` are none.
    """
    for i in range(then.shape[0]):
        for scale in (1.0, SMALLER):
            total = squares = 0.0
            for j in range(now.size):
                change = abs(scale * then[i, j] - scale * now[j])
                total += change
                squares += change * change
            if rows * squares < inf:
                break
        if total * total < rows * squares:
            for j in range(now.size):
                if abs(then[i, j] - now[j]) > still:
                    return True
    return False
