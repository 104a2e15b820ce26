"""The ridge of a job: a number, or one per coordinate where some are not penalised (a free intercept)."""

from __future__ import annotations

from fedconvex.kernels.cache import part
from fedconvex.kernels.dispatch import by_ridge

# mypy: disable-error-code="no-untyped-def"


def _number(ridge, q):
    return ridge


def _entry(ridge, q):
    return ridge[q]


at = by_ridge(_number, _entry, "always")  # the ridge of coordinate q


def _number_more(ridge, more, out):
    return ridge + more


def _entries_more(ridge, more, out):
    for q in range(ridge.size):
        out[q] = ridge[q] + more
    return out


increased = by_ridge(_number_more, _entries_more)  # ridge + more; out (p,) is room for it


@part
def _shrink_all(keep, w, a, tilt):
    if tilt.size > 0:
        for q in range(w.size):
            w[q] = keep * w[q] - a * tilt[q]
    elif keep != 1.0:
        for q in range(w.size):
            w[q] *= keep


def _shrink_by_number(ridge, a, w, tilt):
    _shrink_all(1.0 - a * ridge, w, a, tilt)


def _shrink_by_entries(ridge, a, w, tilt):
    for q in range(w.size):
        w[q] *= 1.0 - a * ridge[q]
    for q in range(tilt.size):
        w[q] -= a * tilt[q]


shrink = by_ridge(_shrink_by_number, _shrink_by_entries)  # w <- w - a (ridge w + tilt)


@part
def penalty(ridge, w, tilt, g):
    """g = ridge w + tilt."""
    for q in range(w.size):
        g[q] = at(ridge, q) * w[q]
    for q in range(tilt.size):
        g[q] += tilt[q]
