"""What the projections and residuals are given, checked once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedconvex._check import bad, finite, numeric, real

EPS = 2.0**-52
HUGE, TINY = 1e150, 1e-150


def rows(who: str, v: Any) -> np.ndarray:
    """Return v as finite float64 (..., p), p >= 1, or (0, ..., p)."""
    a = numeric(who, v, copy=False)
    if a.ndim == 0:
        raise bad(who, "have at least one axis", "a number", "pass an array (..., p)")
    if a.shape[-1] == 0:
        raise bad(who, "have at least one entry along the last axis", f"shape {a.shape}")
    finite(who, a)
    return a


def moderate(who: str, a: np.ndarray) -> None:
    """Raise where products could overflow."""
    if a.size and max(a.max(), -a.min()) > HUGE:
        raise bad(who, f"be at most {HUGE:g} in absolute value", f"{np.abs(a).max():g}", "rescale the problem")


def scale(who: str, scale: Any) -> float:
    """Return s >= 0, neither so large nor so small that products overflow or vanish."""
    s = real(f"{who}: scale", scale, low=0.0, high=HUGE)
    if 0.0 < s < TINY:
        raise bad(f"{who}: scale", f"be 0 or at least {TINY:g}", s, "rescale the problem")
    return s


def companion(who: str, a: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return a as (1, p) where all rows of a batch share it, as (rows, p) otherwise."""
    b = numeric(who, a, copy=False)
    try:
        full = np.broadcast_to(b, shape)
    except ValueError:
        raise bad(who, f"broadcast to shape {shape}", f"shape {b.shape}") from None
    if b.ndim <= 1 or b.size == b.shape[-1]:
        full = np.broadcast_to(b.reshape(-1) if b.ndim else b, shape[-1:])
    return np.ascontiguousarray(full.reshape(-1, shape[-1]))


def number(who: str, x: Any) -> bool:
    """Whether x, a cap or a weight, is one number for all entries."""
    return type(x) is float or numeric(who, x, copy=False).ndim == 0


def caps(who: str, cap: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return nonnegative caps as `companion` does."""
    u = companion(f"{who}: cap", cap, shape)
    if u.size and not u.min() >= 0.0:  # NaN too
        raise bad(f"{who}: cap", "be nonnegative (inf for none)", f"{u[~(u >= 0.0)][0]}")
    return u


def weights(who: str, weights: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return weights in [1e-50, 1e50] as `companion` does."""
    a = companion(f"{who}: weights", weights, shape)
    wrong = ~((a >= 1e-50) & (a <= 1e50))
    if wrong.any():
        raise bad(f"{who}: weights", "be positive, in [1e-50, 1e50]", f"{a[wrong][0]}")
    return a


def room(who: str, u: np.ndarray, s: float) -> None:
    """Raise unless every row of caps leaves room for the scale."""
    if u.size and u.sum(axis=1).min() < (1.0 - 4 * EPS * np.sqrt(u.shape[1])) * s:
        raise bad(f"{who}: cap", f"leave room for the scale {s:g}", f"caps of sum {u.sum(axis=1).min():g}")


def same_shape(who: str, x: Any, v: np.ndarray) -> np.ndarray:
    """Return x as `rows` does, of the shape of v."""
    a = rows(f"{who}: x", x)
    if a.shape != v.shape:
        raise bad(f"{who}: x", f"have shape {v.shape}, as v has", f"{a.shape}")
    return a


def constraints(who: str, A: Any, b: Any, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A (m, p) and b (m,), finite and moderate."""
    A, b = numeric(f"{who}: A", A, copy=False), numeric(f"{who}: b", b, copy=False)
    if A.ndim != 2 or A.shape[1] != p:
        raise bad(f"{who}: A", f"have shape (m, {p})", f"{A.shape}")
    if b.shape != A.shape[:1]:
        raise bad(f"{who}: b", f"have shape ({A.shape[0]},)", f"{b.shape}")
    for name, array in (("A", A), ("b", b)):
        finite(f"{who}: {name}", array)
        moderate(f"{who}: {name}", array)
    return A, b


def each(function: Callable[..., np.ndarray], *arrays: np.ndarray) -> np.ndarray:
    """Apply a function of vectors to the rows of arrays (..., p) of one shape."""
    shape = arrays[0].shape
    flat = [a.reshape(-1, shape[-1]) for a in arrays]
    out = [function(*rows) for rows in zip(*flat, strict=True)]
    inner = np.shape(out[0]) if out else shape[-1:]
    return np.array(out).reshape(shape[:-1] + inner)
