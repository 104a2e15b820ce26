"""Samples of clients without replacement for many rounds, eight of them at a time: those of `draws.choose`."""

from __future__ import annotations

import numpy as np

from fedconvex.draws import PARTICIPATION, choose_many
from fedconvex.kernels.cache import kernel
from fedconvex.kernels.lanes import LANES, draw, mix_in, part

# mypy: disable-error-code="no-untyped-def"


@kernel
def choose_in_rounds(key, trajectories, first, K, ordered, out):
    """out[t, r] = what `draws.choose_many` draws in round first + t, and then ordered[...] of it."""
    n, R, m = out.shape
    flat = out.reshape(n * R, m)
    if m * m > 4 * K:
        for t in range(n):
            choose_many(key, trajectories, first + t, -1, PARTICIPATION, K, m, out[t])
            for r in range(R):
                for i in range(m):
                    out[t, r, i] = ordered[out[t, r, i]]
        return
    picks, numbers, state = np.empty((m, LANES), np.int64), np.empty((6, LANES), np.int64), np.empty(LANES, np.int64)
    numbers[2:4], numbers[4] = np.array([[-1], [PARTICIPATION]]), 0
    for at in range(0, n * R, LANES):
        for l in range(LANES):
            now = min(at + l, n * R - 1)
            state[l], numbers[0, l], numbers[1, l] = np.int64(key), trajectories[now % R], first + now // R
        for i in range(4):
            mix_in(state, numbers[i], 0, state)
        for i in range(m):
            top = K - m + i
            for l in range(LANES):
                numbers[5, l] = top + 1
            draw(state, numbers[4], 0, i, numbers[5], picks[i])
            part(picks, i, top)
        for l in range(min(LANES, n * R - at)):
            for i in range(m):
                flat[at + l, i] = ordered[picks[i, l]]
