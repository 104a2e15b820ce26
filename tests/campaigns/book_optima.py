"""Optima of a book found again from its arrays alone: ``python -m tests.campaigns.book_optima FILE.npz``.

No code of the package computes anything here. A smooth F is minimised by damped Newton steps in NumPy, and its least
value bounded from below by F(w) - ‖F'(w)‖^2/(2 mu), mu = l2, or for least squares the least eigenvalue of the Hessian.
The hinge is solved by cvxpy, and bounded by the dual objective at its multipliers.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

TOLERANCE = 1e-9


def problems(path: Any) -> Any:
    """Yield what the index says of every problem, and its arrays."""
    with np.load(path, allow_pickle=False) as book:
        names = list(book)
        for i, said in enumerate(json.loads(book["index"].tobytes())["problems"]):
            yield said, {n.partition("_")[2]: book[n] for n in names if n.startswith(f"p{i}_")}


def dense(said: Any, a: Any) -> np.ndarray:
    """Return the rows."""
    if not said["sparse"]:
        return a["X"]
    X = np.zeros((said["rows"], said["columns"]))
    X[np.repeat(np.arange(len(a["y"])), np.diff(a["indptr"])), a["indices"]] = a["data"]
    return X


def row_weights(a: Any) -> np.ndarray:
    """Return the weight of every row in F: p_k/n_k."""
    sizes = np.diff(a["ptr"])
    return np.repeat(a["weights"] / sizes, sizes)


def pieces(said: Any, X: np.ndarray, y: np.ndarray, c: np.ndarray, w: np.ndarray) -> Any:
    """Return value, gradient and Hessian of F at w, flattened."""
    l2, size = said["l2"], w.size
    if said["loss"] == "softmax":
        C = said["classes"]
        Z = X @ w.reshape(C, -1).T
        top = Z.max(axis=1, keepdims=True)
        P = np.exp(Z - top)
        total = P.sum(axis=1, keepdims=True)
        P, Y = P / total, np.eye(C)[y.astype(int)]
        value = c @ (np.log(total)[:, 0] + top[:, 0] - (Z * Y).sum(axis=1))
        g = ((P - Y) * c[:, None]).T @ X
        H = np.zeros((C, X.shape[1], C, X.shape[1]))
        for i in range(C):
            for j in range(C):
                H[i, :, j] = (X.T * (c * P[:, i] * ((i == j) - P[:, j]))) @ X
        return value + 0.5 * l2 * w @ w, g.ravel() + l2 * w, H.reshape(size, size) + l2 * np.eye(size)
    z = X @ w
    if said["loss"] == "squared":
        loss, slope, curve = 0.5 * (z - y) ** 2, z - y, np.ones_like(z)
    elif said["loss"] == "logistic":
        m = y * z
        s = 0.5 * (1.0 - np.tanh(0.5 * m))
        loss, slope, curve = np.logaddexp(0.0, -m), -y * s, s * (1.0 - s)
    else:  # smoothed hinge: quadratic on 0 <= y z <= 1
        m = 1.0 - y * z
        loss = np.where(m <= 0.0, 0.0, np.where(m >= 1.0, m - 0.5, 0.5 * m**2))
        slope, curve = -y * np.clip(m, 0.0, 1.0), ((m > 0.0) & (m < 1.0)).astype(float)
    value = c @ loss + 0.5 * l2 * w @ w
    return value, X.T @ (c * slope) + l2 * w, (X.T * (c * curve)) @ X + l2 * np.eye(size)


def smooth_optimum(said: Any, X: np.ndarray, y: np.ndarray, c: np.ndarray, shape: Any) -> tuple[float, float]:
    """Return the least value found and a lower bound."""
    w = np.zeros(int(np.prod(shape)))
    value, g, H = pieces(said, X, y, c, w)
    lower = -np.inf
    for _ in range(200):
        mu = float(np.linalg.eigvalsh(H)[0]) if said["loss"] == "squared" else said["l2"]
        if mu > 0.0:
            lower = max(lower, value - g @ g / (2.0 * mu))
        if value - lower < 1e-13:
            break
        step, t = np.linalg.lstsq(H, -g, rcond=None)[0], 1.0
        for _ in range(60):
            found = pieces(said, X, y, c, w + t * step)
            if found[0] <= value + 1e-4 * t * (g @ step) + 1e-15 * abs(value):
                break
            t *= 0.5
        w = w + t * step
        value, g, H = found
    return value, lower


def hinge_optimum(said: Any, X: np.ndarray, y: np.ndarray, c: np.ndarray) -> tuple[float, float]:
    """Return the value of cvxpy's model, and the dual objective at its multipliers, clipped to be feasible.

    The dual of sum_i c_i max(0, 1 - y_i x_i w) + (l2/2) ‖w‖^2 is sum_i a_i - ‖sum_i a_i y_i x_i‖^2/(2 l2), 0 <= a <= c.
    """
    import cvxpy

    w, s = cvxpy.Variable(X.shape[1]), cvxpy.Variable(len(y))
    margin = s >= 1.0 - cvxpy.multiply(y, X @ w)
    aim = cvxpy.Minimize(c @ s + 0.5 * said["l2"] * cvxpy.sum_squares(w))
    tight = {f"tol_{name}": 1e-13 for name in ("gap_abs", "gap_rel", "feas")}
    cvxpy.Problem(aim, [s >= 0.0, margin]).solve(solver="CLARABEL", **tight)
    a = np.clip(margin.dual_value, 0.0, c)
    v = X.T @ (a * y)
    value = c @ np.maximum(0.0, 1.0 - y * (X @ w.value)) + 0.5 * said["l2"] * w.value @ w.value
    return float(value), float(a.sum() - v @ v / (2.0 * said["l2"]))


def examine(said: Any, a: Any) -> dict[str, Any]:
    """Hold a problem of a book against an independent solution."""
    begun, X, y, c = time.process_time(), dense(said, a), a["y"], row_weights(a)
    if said["loss"] == "hinge":
        w = a["optimum"]
        book = c @ np.maximum(0.0, 1.0 - y * (X @ w)) + 0.5 * said["l2"] * w @ w
        value, lower = hinge_optimum(said, X, y, c)
    else:
        book = pieces(said, X, y, c, a["optimum"].ravel())[0]
        value, lower = smooth_optimum(said, X, y, c, a["optimum"].shape)
    assert abs(book - said["value"]) <= TOLERANCE, (said["name"], book, said["value"])
    assert book - lower <= TOLERANCE, (said["name"], "above an independent lower bound", book - lower)
    assert book <= value + TOLERANCE, (said["name"], "above an independent solution", book - value)
    return {"name": said["name"], "above the bound": float(book - lower), "seconds": time.process_time() - begun}


if __name__ == "__main__":
    worst, failed, number = 0.0, 0, 0
    for told, arrays in problems(sys.argv[1]):
        number += 1
        try:
            row = examine(told, arrays)
            worst = max(worst, row["above the bound"])
            print(json.dumps(row), flush=True)
        except AssertionError as error:
            failed += 1
            print(f"FAILED {error}", flush=True)
    print(f"{number} problems, {failed} failed; at most {worst:.1e} above an independent lower bound")
    sys.exit(bool(failed))
