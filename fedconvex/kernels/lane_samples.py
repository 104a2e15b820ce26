"""Samples of few clients without replacement for many rounds, eight of them at a time: those of `draws.choose`."""

from __future__ import annotations

import numpy as np

from fedconvex import draws
from fedconvex.draws import PARTICIPATION
from fedconvex.kernels.cache import borrowing
from fedconvex.kernels.lanes import LANES, draw, mix_in, part

# mypy: disable-error-code="no-untyped-def"


@borrowing
def _choose(key, trajectories, first, K, ordered, room, out):
    """out[t, r] = a sample of round first + t, by Floyd's method, and then ordered[...] of it."""
    n, R, m = out.shape
    state, number, none, bound, picks = room[0], room[1], room[2], room[3], room[4:]
    for l in range(LANES):
        none[l] = 0
    for at in range(0, n * R, LANES):
        for i in range(4):  # the coordinates of a key, as in `draws.stream`
            for l in range(LANES):
                now = min(at + l, n * R - 1)
                state[l] = np.int64(key) if i == 0 else state[l]
                number[l] = trajectories[now % R] if i == 0 else first + now // R if i == 1 else PARTICIPATION
                number[l] = -1 if i == 2 else number[l]
            mix_in(state, number, 0, state)
        for i in range(m):
            for l in range(LANES):
                bound[l] = K - m + i + 1
            draw(state, none, 0, i, bound, picks[i])
            part(picks, i, K - m + i)
        for l in range(min(LANES, n * R - at)):
            for i in range(m):
                out[(at + l) // R, (at + l) % R, i] = ordered[picks[i, l]]


def choose_in_rounds(key, trajectories, first, K, ordered, out):
    """out[t, r] = what `draws.choose_many` draws in round first + t, and then ordered[...] of it."""
    m = out.shape[2]
    if m * m > 4 * K:  # by partial shuffles
        draws.choose_in_rounds(key, trajectories, first, K, out)
        ordered.take(out, out=out)
    else:
        _choose(key, trajectories, first, K, ordered, np.empty((m + 4, LANES), np.int64), out)
