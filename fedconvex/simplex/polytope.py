"""Euclidean projection onto a polytope in the simplex, {x >= 0, sum x = s, A x <= b}, by a dual active set method.

SciPy has no solver for quadratic programmes, and those that cvxpy calls stop at tolerances near 1e-8, take one point at
a time and milliseconds for each. This one ends at rounding error, starts from the simplex, where few rows are violated,
and gives a certificate if there is no feasible point; rounds of agnostic learning call it thousands of times.

References
----------
D. Goldfarb, A. Idnani, "A numerically stable dual method for solving strictly convex quadratic programs", Math.
Program. 27 (1983), 1-33.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.simplex import inputs
from fedconvex.simplex.euclidean import project_simplex
from fedconvex.simplex.inputs import EPS


class Infeasible(ValueError):
    """The polytope {x >= 0, sum x = s, A x <= b} is empty.

    Parameters
    ----------
    message : str
        What is empty, and why.

    Attributes
    ----------
    certificate : array (m,)
        y >= 0 with sum y = 1 and s min_i (A'y)_i > b'y: no point of the simplex satisfies y'A x <= y'b (Farkas).
    violation : float
        s min_i (A'y)_i - b'y > 0: every point of the simplex violates some row by at least this.

    Examples
    --------
    >>> from fedconvex.simplex import Infeasible
    >>> from fedconvex.simplex.uncertainty import Polytope
    >>> try:
    ...     Polytope([[1.0, 1.0]], [0.5]).project([0.5, 0.5])  # x + y = 1 is not at most 1/2
    ... except Infeasible as error:
    ...     print(error.certificate, error.violation)
    [1.] 0.5
    """

    def __init__(self, message: str, certificate: np.ndarray, violation: float) -> None:
        super().__init__(message)
        self.certificate, self.violation = certificate, violation


def project_polytope(v: Any, A: Any, b: Any, scale: float = 1.0) -> np.ndarray:
    """Project every row onto {x >= 0, sum x = scale, A x <= b}, by a dual active set method.

    Starts from the projection onto the simplex and adds violated rows and bounds one by one (Goldfarb and Idnani 1983,
    Section 3). A step costs O(p k^2) with k active rows of A.

    Parameters
    ----------
    v : array (..., p)
        At most 1e150 in absolute value.
    A : array (m, p)
    b : array (m,)
    scale : float
        0, or in [1e-150, 1e150].

    Returns
    -------
    array (..., p), float64

    Raises
    ------
    Infeasible
        If the polytope is empty; with a certificate and the least violation that it proves.
    ValueError, TypeError
        On input of wrong shape or range.

    Examples
    --------
    >>> project_polytope([1.0, 0.0, 0.0], [[1.0, 0.0, 0.0]], [0.5])
    array([0.5 , 0.25, 0.25])
    """
    who = "project_polytope"
    x, s = inputs.rows(f"{who}: v", v), inputs.scale(who, scale)
    inputs.moderate(f"{who}: v", x)
    A, b = inputs.constraints(who, A, b, x.shape[-1])
    return inputs.each(lambda row: active_set(row, A, b, s)[0], x)


def normalised(A: np.ndarray, b: np.ndarray, s: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return rows without their mean (constant on the simplex), of length 1; their b; the lengths and the rounding."""
    mean = A.mean(axis=1)
    rows = A - mean[:, None]
    size = np.abs(A).max(axis=1, initial=0.0)
    rows[np.abs(rows).max(axis=1, initial=0.0) <= 4 * EPS * size] = 0.0
    length = np.linalg.norm(rows, axis=1)
    length = np.where(length > 0.0, length, np.where(size > 0.0, size, 1.0))
    slack = b - mean * s
    return rows / length[:, None], slack / length, length, 8 * EPS * (size * s + np.abs(b)) / length


def _face(v: np.ndarray, N: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x = argmin |x - v| over N'x = c, refined once, and y with x = v - N y."""
    Q, R = np.linalg.qr(N)
    y = np.linalg.solve(R, Q.T @ v - np.linalg.solve(R.T, c))
    x = v - N @ y
    for _ in range(2):
        fix = np.linalg.solve(R.T, c - N.T @ x)
        x, y = x + Q @ fix, y - np.linalg.solve(R, fix)
    return x, y


def active_set(v: np.ndarray, A: np.ndarray, b: np.ndarray, s: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the projection of v, and the multipliers (m,) of the rows."""
    rows, level, length, noise = normalised(A, b, s)
    v = v - v.max()
    m, p = rows.shape
    x = project_simplex(v, s)
    if s == 0.0 or m == 0:
        if np.any(b < 0.0):
            raise _infeasible(A, b, s, (b == b.min()).astype(float))
        return x, np.zeros(m)
    free, given_up = x > 0.0, np.zeros(m + p, bool)
    active: list[int] = []
    y = np.array([np.dot(v[free] - x[free], np.ones(free.sum())) / free.sum()])
    normals = np.vstack([np.ones(p), rows]).T  # (p, 1 + m)
    tolerance = np.concatenate([noise, np.full(p, 4 * EPS * s)])
    for _ in range(50 * (m + p)):
        excess = np.concatenate([rows @ x - level, -x]) - tolerance
        excess[active] = -np.inf
        excess[given_up] = -np.inf
        worst = int(np.argmax(excess))
        if excess[worst] <= 0.0:
            return np.maximum(x, 0.0), np.bincount(active, y[1:], m) / length if active else np.zeros(m)
        free, active, given_up[worst] = _add(v, x, normals, level, s, free, active, y, worst, (A, b, length))
        N = normals[:, [0] + [j + 1 for j in active]]
        x = np.zeros(p)
        x[free], y = _face(v[free], N[free], np.append(s, level[active]))
        y[1:] = np.maximum(y[1:], 0.0)
    raise RuntimeError("project_polytope did not end: the rows of A are too close to dependent for double precision")


def _add(
    v: np.ndarray,
    x: np.ndarray,
    normals: np.ndarray,
    level: np.ndarray,
    s: float,
    free: np.ndarray,
    active: list[int],
    y: np.ndarray,
    worst: int,
    given: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[np.ndarray, list[int], bool]:
    """Add the violated constraint to the working set, dropping others on the way; True: it is met up to rounding."""
    m, p = level.size, v.size
    free, active, x, y = free.copy(), list(active), x.copy(), y.copy()
    bound = worst >= m
    n = -np.eye(1, p, worst - m)[0] if bound else normals[:, worst + 1]  # n'x <= c
    c = 0.0 if bound else level[worst]
    fixed_price = np.where(free, 0.0, normals[:, [0] + [j + 1 for j in active]] @ y - v)
    for _ in range(2 * (m + p)):
        N = normals[:, [0] + [j + 1 for j in active]]
        Q, R = np.linalg.qr(N[free])
        r = np.linalg.solve(R, Q.T @ n[free])
        z = n[free] - N[free] @ r
        z -= Q @ (Q.T @ z)
        price = np.where(free, 0.0, n - N @ r)  # n = N r + sum_fixed price_i e_i
        blocked = [y[k + 1] / r[k + 1] if r[k + 1] > 1e-14 else np.inf for k in range(len(active))]
        with np.errstate(divide="ignore", invalid="ignore"):
            released = np.where(~free & (price < -1e-14), fixed_price / -price, np.inf)
        t1 = min(min(blocked, default=np.inf), released.min())
        zz = float(z @ z)
        t2 = float(n @ x - c) / zz if zz > 1e-24 else np.inf
        t = min(t1, t2)
        if not np.isfinite(t):
            proof = np.zeros(m)
            proof[active] = np.maximum(-r[1:], 0.0)
            if not bound:
                proof[worst] = 1.0
            error = _infeasible(*given[:2], s, proof / given[2])
            if error.violation > 64 * EPS * (s * np.abs(given[0]).max() + np.abs(given[1]).max()):
                raise error
            return free, active, True
        y[1:] = np.maximum(y[1:] - t * r[1:], 0.0)
        y[0] -= t * r[0]
        fixed_price = np.where(free, 0.0, np.maximum(fixed_price + t * price, 0.0))
        if np.isfinite(t2):
            x[free] -= t * z
        if t == t2:
            if bound:
                free[worst - m] = False
            else:
                active.append(worst)
            return free, active, False
        if released.min() <= min(blocked, default=np.inf):
            free[int(np.argmin(released))] = True
        else:
            k = int(np.argmin(blocked))
            active.pop(k)
            y = np.delete(y, k + 1)
    return free, active, True


def _infeasible(A: np.ndarray, b: np.ndarray, s: float, proof: np.ndarray) -> Infeasible:
    """Return the error with the multipliers of an empty polytope, scaled to sum 1."""
    total = proof.sum()
    proof = proof / total if total > 0.0 else proof
    violation = float(s * (proof @ A).min() - proof @ b)
    shown = np.array2string(proof, precision=4, threshold=12)
    text = f"got no point: with y = {shown}, every x of the simplex has y'(A x - b) >= {violation:.3g}"
    return Infeasible(f"{{x >= 0, sum x = {s:g}, A x <= b}} must not be empty; {text}", proof, violation)
