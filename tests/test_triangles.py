"""Triangles of Hessians of single clients, and values along lines, against the Hessians of problems and plain sums."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Federation, Logistic, Problem, Softmax, Squared
from fedconvex.kernels.triangles import gradient_and_triangle, means_along
from fedconvex.methods.parts import armijo


def problem_of(loss, sparse, rng):
    rows = []
    for n in (3, 9, 5):
        X = rng.normal(size=(n, 4)) * (rng.random((n, 4)) < 0.6)
        y = rng.integers(0, 3, n) if isinstance(loss, Softmax) else np.sign(rng.normal(size=n))
        rows.append((sp.csr_array(X) if sparse else X, y))
    return Problem(Federation.from_clients(rows), loss, 0.3)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("loss", [Squared(), Logistic(), Softmax(3)], ids=lambda loss: type(loss).__name__)
def test_gradients_and_triangles_are_those_of_the_problem(loss, sparse, rng):
    problem = problem_of(loss, sparse, rng)
    w = rng.normal(size=problem.size)
    there = problem.client_derivatives(w.reshape(1, *problem.model_shape), np.arange(3)[None])
    for k in range(3):
        g, T = gradient_and_triangle(problem, w, k)
        assert np.abs(g - there.gradients[0, k]).max() < 1e-14
        assert np.abs(T - there.hessians[0, k][np.triu_indices(problem.size)]).max() < 1e-14


@pytest.mark.parametrize("sparse", [True, False])
def test_values_along_a_line_are_means_of_the_loss(sparse, rng):
    problem = problem_of(Logistic(), sparse, rng)
    w, d, s = rng.normal(size=4), rng.normal(size=4), np.array([0.0, 0.5, 1.0])
    for k in range(3):
        X, y = problem.federation.client_rows(k)[:2]
        plain = [np.logaddexp(0.0, -y * (X @ (w + t * d))).mean() for t in s]
        assert np.abs(means_along(problem, w, d, k, s) - plain).max() < 1e-14
    clients = np.array([[2, 0]])
    each = armijo.values(problem, w[None], d[None], clients)
    for f, t in enumerate(armijo.FRACTIONS):
        derivatives = problem.client_derivatives((w + t * d)[None], clients)
        assert np.abs(each[0, :, f] - derivatives.values[0]).max() < 1e-14
