"""The federated empirical risk F(w) = sum_k p_k f_k(w): the only place where normalisation is defined."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.linalg.blas import dsyrk

from fedconvex._check import bad, numeric, real, vector, wrong_type
from fedconvex.constants.computed import Constants, problem_constants
from fedconvex.federation import Federation
from fedconvex.kernels import row_losses
from fedconvex.kernels.domains import domain_counts, domains_of
from fedconvex.losses import Hinge, SmoothedHinge, Softmax, Squared
from fedconvex.solvers.minimax import Minimax, solve_minimax
from fedconvex.solvers.newton import Solution, solve

__all__ = ["Measure", "Problem"]

_EPS = float(np.finfo(float).eps)
_CHUNK = 1 << 21  # scores held at once when many models are evaluated


class Measure(NamedTuple):
    """Objective of R models and certified upper bounds of their suboptimality (inf where none exists)."""

    value: np.ndarray  # (R,)
    gap: np.ndarray  # (R,)


class Problem:
    """F(w) = sum_k p_k f_k(w), with f_k(w) = mean of the loss over client k's rows + (l2/2)‖w‖^2.

    A model w is (d,), or (C, d) for a loss with C classes. Every evaluation also takes R models at once, with a leading
    axis R, and then returns one result per model.

    Parameters
    ----------
    federation : Federation
        The rows.
    loss : loss
        One of `fedconvex.losses`, or a NamedTuple of the same shape.
    l2 : float
        Ridge weight, at least 0. All coordinates are penalised, a column of ones too.
    weights : None, "uniform" or array (K,)
        Client weights p_k: None for n_k/n (F is the mean over all rows), "uniform" for 1/K, or positive numbers that
        sum to one.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> problem = Problem(fed, Squared())
    >>> float(problem.value(np.array([2.0]))), problem.solve().w
    (0.5, array([2.]))
    """

    def __init__(self, federation: Federation, loss: Any, l2: float = 0.0, weights: Any = None) -> None:
        if not isinstance(federation, Federation):
            raise wrong_type("Problem.federation", "be a Federation", type(federation).__name__)
        if isinstance(loss, type) or not (isinstance(loss, tuple) and hasattr(loss, "value")):
            cure = f"pass {loss.__name__}()" if isinstance(loss, type) else "use one of fedconvex.losses"
            raise wrong_type("Problem.loss", "be a loss, a NamedTuple with value and slope", f"{loss!r}", cure)
        if hasattr(loss, "check_labels"):
            loss.check_labels(federation.y)
        self.federation = federation
        self.loss: Any = loss
        self.l2 = real("Problem.l2", l2, low=0.0)
        self.weights = _weights(weights, federation)
        self.weights.flags.writeable = False
        self._solution: Solution | None = None

    # ------------------------------------------------------------------ shapes
    @cached_property
    def n_outputs(self) -> int:
        """C for a loss with classes, else 1."""
        return int(getattr(self.loss, "n_classes", 1))

    @cached_property
    def model_shape(self) -> tuple[int, ...]:
        """Shape of one model: (d,) or (C, d)."""
        d = self.federation.d
        return (self.n_outputs, d) if hasattr(self.loss, "n_classes") else (d,)

    @cached_property
    def size(self) -> int:
        """Number of parameters of one model."""
        return self.n_outputs * self.federation.d

    @cached_property
    def row_weights(self) -> np.ndarray:
        """p_k / n_k, (K,): what one row of client k weighs in F."""
        return self.weights / self.federation.sizes

    @cached_property
    def equal_weights(self) -> bool:
        """Whether all clients weigh the same."""
        return bool(np.ptp(self.weights) == 0.0)

    @cached_property
    def cumulative_weights(self) -> np.ndarray:
        """Cumulative sums of the client weights, (K,)."""
        return np.cumsum(self.weights)

    def flatten(self, w: Any) -> tuple[np.ndarray, bool]:
        """Return models as (R, size), and whether w was a single model.

        Raises
        ------
        ValueError
            If the shape fits neither one model nor R models.
        """
        a = w if isinstance(w, np.ndarray) and w.dtype == np.float64 else numeric("Problem: model w", w)
        shape = self.model_shape
        if a.size == 0 or (a.shape != shape and a.shape[1:] != shape):
            raise bad("Problem: model w", f"have shape {shape}, or (R, {', '.join(map(str, shape))})", f"{a.shape}")
        a = np.require(a, requirements=["C", "W"])  # kernels see one array type
        return a.reshape(-1, self.size), a.shape == shape

    def unflatten(self, w: np.ndarray) -> np.ndarray:
        """Return flat models (..., size) in their own shape (..., *model_shape)."""
        return w if len(self.model_shape) == 1 else w.reshape(*w.shape[:-1], *self.model_shape)

    # ------------------------------------------------------------------ values
    def value(self, w: Any) -> Any:
        """F(w): a float, or (R,) for R models."""
        W, single = self.flatten(w)
        out = self._client_means(W) @ self.weights + 0.5 * self.l2 * np.einsum("rj,rj->r", W, W)
        return out[0] if single else out

    def client_values(self, w: Any) -> np.ndarray:
        """f_k(w) for every client: (K,), or (R, K)."""
        W, single = self.flatten(w)
        out = self._client_means(W) + 0.5 * self.l2 * np.einsum("rj,rj->r", W, W)[:, None]
        return out[0] if single else out

    def gradient(self, w: Any) -> np.ndarray:
        """Gradient of F (a subgradient for the hinge), in the shape of w."""
        W, single = self.flatten(w)
        G = np.stack([self.value_gradient(v)[1] for v in W])
        return self.unflatten(G[0] if single else G)

    def client_gradients(self, w: Any) -> np.ndarray:
        """Gradients of every f_k: (K, *model_shape), or (R, K, *model_shape)."""
        W, single = self.flatten(w)
        everyone = np.broadcast_to(np.arange(self.federation.K), (len(W), self.federation.K)).copy()
        G = row_losses.gradients_of(self, W, everyone)
        return G[0] if single else G

    def domain_values(self, w: Any) -> np.ndarray:
        """Mean loss + (l2/2)‖w‖^2 over the rows of every domain (client, without domains): (p,), or (R, p)."""
        W, single = self.flatten(w)
        code, counts = self._domain_counts()
        out = np.zeros((len(W), counts.size))
        for lo, hi, values in self._row_values(W):
            for r in range(len(W)):
                out[r] += np.bincount(code[lo:hi], weights=values[:, r], minlength=counts.size)
        out = out / counts + 0.5 * self.l2 * np.einsum("rj,rj->r", W, W)[:, None]
        return out[0] if single else out

    def domain_gradients(self, w: Any) -> np.ndarray:
        """Gradients of the domain objectives: (p, *model_shape), or (R, p, *model_shape)."""
        W, single = self.flatten(w)
        code, counts = self._domain_counts()
        fed, C = self.federation, self.n_outputs
        G = np.empty((len(W), counts.size, self.size))
        for r, v in enumerate(W):
            S = self._scores(v[None, :], 0, fed.n)
            row_losses.row_slopes(self.loss, S, fed.y)
            for q in range(counts.size):
                mine = code == q
                G[r, q] = (fed.X[mine].T @ S[mine]).T.reshape(C * fed.d) / counts[q]
        G += self.l2 * W[:, None, :]
        return self.unflatten(G[0] if single else G)

    def hessian(self, w: Any) -> np.ndarray:
        """Hessian of F at one model, (size, size), over the flattened model.

        Raises
        ------
        TypeError
            If the loss has no curvature.
        """
        W, single = self.flatten(w)
        if not single:
            raise bad("Problem.hessian: w", "be one model", f"{len(W)} models")
        return self.value_gradient_hessian(W[0])[2]

    def measure(self, w: np.ndarray) -> Measure:
        """Values of R models and certified gaps, F(w) - F* <= gap.

        The lower bound of F* comes from `solve`, where the problem is small enough for second-order solution (at most
        2,000 parameters) and the loss is one of this package; elsewhere the gap is ‖grad F(w)‖^2/(2 l2) for smooth
        losses (those with a curvature) and l2 > 0, or inf.
        """
        W, _ = self.flatten(w)
        lower = self.lower_bound
        if lower is not None:
            value = self.value(self.unflatten(W))
            return Measure(value, np.maximum(value - lower, 0.0))
        pairs = [self.value_gradient(v) for v in W]
        smooth = hasattr(self.loss, "curvature") or hasattr(self.loss, "n_classes")
        most = [f if self._nonnegative else np.inf for f, _ in pairs]
        gap = [float(g @ g) / (2.0 * self.l2) if smooth and self.l2 > 0.0 else np.inf for _, g in pairs]
        return Measure(np.array([f for f, _ in pairs]), np.minimum(gap, most))

    @property
    def _nonnegative(self) -> bool:
        """Whether the loss is known to be nonnegative: those of this package are."""
        return type(self.loss).__module__.partition(".")[0] == "fedconvex"

    @cached_property
    def lower_bound(self) -> float | None:
        """A certified lower bound of F*, or None where `measure` uses the gradient norm instead."""
        own = self._nonnegative
        if own and self.l2 == 0.0 and isinstance(self.loss, (Hinge, SmoothedHinge)):
            return 0.0  # the losses are nonnegative; nothing better is certified
        return float(self.solve().lower) if own and self.size <= 2000 else None

    # ------------------------------------------------------------------ exact solution and constants
    def solve(self, tol: float | None = None) -> Solution:
        """Minimise F over all rows and certify the result.

        Parameters
        ----------
        tol : float, optional
            Stop as soon as F(w) - F* <= tol (1 + |F*|) is certified. Default: go on until rounding stops the progress;
            that solution is kept and later calls return it.

        Returns
        -------
        Solution
            Minimiser, value, certified lower bound of F*, and where the certificate comes from.

        Raises
        ------
        ValueError
            For hinge losses with l2 = 0, where no certificate exists.
        """
        if tol is not None:
            tol = real("Problem.solve: tol", tol, low=0.0, strict=True)
        if self._solution is None and tol is None:
            self._solution = solve(self, None)
        return self._solution or solve(self, tol)

    def solve_minimax(self, tol: float = 1e-10, uncertainty_set: Any = None) -> Minimax:
        """Minimise max_k F_k(w) over the domains k, the agnostic objective, and certify the result.

        Parameters
        ----------
        tol : float
            The certified gap that is asked for, times 1 + |value|; a warning says where it is missed.
        uncertainty_set : uncertainty set, optional
            Of `fedconvex.simplex.uncertainty`; default the whole simplex, the worst domain. Without domains, clients
            are domains.

        Returns
        -------
        Minimax
            Model, least favourable mixture, value, and a certified lower bound of the minimax value.

        Raises
        ------
        ValueError
            For the hinge loss (not smooth), or beyond 3,000 parameters.

        References
        ----------
        Mohri, Sivek, Suresh, "Agnostic federated learning", ICML 2019 (the objective).

        Examples
        --------
        >>> from fedconvex import Federation, Problem, Squared
        >>> fed = Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], clients=[0, 1], domains=[0, 1])
        >>> best = Problem(fed, Squared()).solve_minimax()
        >>> best.w, best.domain_weights, best.value
        (array([1.]), array([0.5, 0.5]), 0.5)
        """
        return solve_minimax(self, tol, uncertainty_set)

    def constants(
        self,
        *,
        batch_size: int | None = None,
        replacement: bool = False,
        start: Any = None,
        center: Any = None,
        radius: float | None = None,
    ) -> Constants:
        """Compute the constants that convergence theory speaks of, each with how it was obtained.

        Parameters
        ----------
        batch_size, replacement : int, bool
            The mini-batches that sigma2 and G2 refer to; default full batches, whose variance is zero.
        start : model, optional
            w_0 of D = ‖w_0 - w*‖; default 0.
        center, radius : model, float, optional
            The ball over which suprema are taken; the centre defaults to w*. Without a radius suprema refer to all of
            R^d, except that sigma2 and G2 are taken at the centre if one is given. B is evaluated at the centre.
        """
        return problem_constants(
            self, batch_size=batch_size, replacement=replacement, start=start, center=center, radius=radius
        )

    def client(self, k: int) -> Problem:
        """Return the problem of client k alone."""
        return Problem(self.federation.subset([k]), self.loss, self.l2)

    def alone(self, k: int) -> Problem:
        """Return the problem of client k alone without its label; dense rows are not copied."""
        fed = self.federation
        rows = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
        own = Federation(fed.X[rows], fed.y[rows], np.array([0, rows.stop - rows.start]))
        return Problem(own, self.loss, self.l2)

    def with_loss(self, loss: Any) -> Problem:
        """Return the problem of the same rows, weights and l2 with another loss."""
        return Problem(self.federation, loss, self.l2, self.weights)

    def thinned(self, stride: int) -> Problem:
        """Return the problem of every stride-th row, clients without such a row left out."""
        fed = self.federation
        sizes = np.diff(-(-fed.ptr // stride))
        kept = sizes > 0
        part = Federation(fed.X[::stride], fed.y[::stride], np.concatenate([[0], np.cumsum(sizes[kept])]))
        return Problem(part, self.loss, self.l2, self.weights[kept] / self.weights[kept].sum())

    @cached_property
    def by_domain(self) -> Problem:
        """The same rows as the problem whose clients are the domains, of equal weight."""
        domain, _ = self._domain_counts()
        fed = self.federation
        if fed.domain is None:
            return self.reweighted(np.full(fed.K, 1.0 / fed.K))
        return Problem(Federation.from_arrays(fed.X, fed.y, domain), self.loss, self.l2, "uniform")

    def reweighted(self, domain_weights: np.ndarray) -> Problem:
        """Return the same rows with other client weights, nonnegative and of sum one; nothing is copied."""
        other = copy.copy(self)
        for name in ("row_weights", "equal_weights", "cumulative_weights", "lower_bound"):
            other.__dict__.pop(name, None)
        other.weights, other._solution = np.asarray(domain_weights, dtype=np.float64), None
        return other

    @cached_property
    def pooled(self) -> Problem:
        """The same rows as the problem of a single client."""
        fed = self.federation
        return Problem(Federation(fed.X, fed.y, np.array([0, fed.n])), self.loss, self.l2)

    def gradient_variance(self, w: Any) -> np.ndarray:
        """V_k(w) = mean over client k's rows of ‖grad f_n(w) - grad F_k(w)‖^2, (K,)."""
        W, single = self.flatten(w)
        if not single:
            raise bad("Problem.gradient_variance: w", "be one model", f"{len(W)} models")
        fed = self.federation
        S = self._scores(W, 0, fed.n)
        row_losses.row_slopes(self.loss, S, fed.y)
        out = np.empty(fed.K)
        for k in range(fed.K):  # mean of ‖s_i x_i' - mean‖^2, centred before it is squared
            rows = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
            X = fed.X[rows].toarray() if fed.is_sparse else fed.X[rows]
            centred = ((S[rows, c, None] * X) for c in range(self.n_outputs))
            out[k] = sum(np.mean(np.sum((G - G.mean(axis=0)) ** 2, axis=1)) for G in centred)
        return out

    def scores(self, w: Any, X: Any = None) -> np.ndarray:
        """Scores x'w of one model: (n,), or (n, C); of the federation's rows, or of X."""
        W, single = self.flatten(w)
        if not single:
            raise bad("Problem.scores: w", "be one model", f"{len(W)} models")
        rows = self.federation.X if X is None else X if sp.issparse(X) else numeric("Problem.scores: X", X, copy=False)
        if rows.ndim != 2 or rows.shape[1] != self.federation.d:
            raise bad("Problem.scores: X", f"have {self.federation.d} columns", f"shape {rows.shape}")
        Z = np.asarray(rows @ W[0].reshape(self.n_outputs, -1).T)
        return Z if len(self.model_shape) == 2 else Z[:, 0]

    def predict(self, w: Any, X: Any = None) -> np.ndarray:
        """Predictions of one model: real numbers, signs, or class numbers."""
        z = self.scores(w, X)
        if len(self.model_shape) == 2:
            return np.argmax(z, axis=1).astype(np.float64)
        return z if isinstance(self.loss, Squared) else np.where(z >= 0.0, 1.0, -1.0)

    # ------------------------------------------------------------------ inner workings
    def _scores(self, W: np.ndarray, lo: int, hi: int) -> np.ndarray:
        """Scores of rows lo:hi at models W (R, size): (rows, R) or (rows, R C)."""
        return np.ascontiguousarray(self.federation.X[lo:hi] @ W.reshape(-1, self.federation.d).T)

    def _row_values(self, W: np.ndarray) -> Any:
        """Yield (lo, hi, losses (hi - lo, R)) over chunks of rows."""
        fed = self.federation
        step = max(1, _CHUNK // (len(W) * self.n_outputs))
        for lo in range(0, fed.n, step):
            hi = min(fed.n, lo + step)
            out = np.empty((hi - lo, len(W)))
            row_losses.row_values(self.loss, self._scores(W, lo, hi), fed.y[lo:hi], out)
            yield lo, hi, out

    def _client_means(self, W: np.ndarray) -> np.ndarray:
        """Mean loss of every client at every model, (R, K)."""
        fed = self.federation
        out = np.zeros((len(W), fed.K))
        for lo, hi, values in self._row_values(W):
            first = int(np.searchsorted(fed.ptr, lo, side="right")) - 1
            last = int(np.searchsorted(fed.ptr, hi, side="left"))
            starts = np.maximum(fed.ptr[first:last], lo) - lo
            out[:, first:last] += np.add.reduceat(values, starts, axis=0).T
        return out / fed.sizes

    def value_gradient(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        """Return F and its gradient at one flat model."""
        fed = self.federation
        values, g = np.empty(fed.K), np.zeros(self.size)
        row_losses.pooled_gradient(self.loss, fed.rows, fed.y, fed.ptr, self.row_weights, w, values, g)
        g += self.l2 * w
        return float(values @ self.row_weights) + 0.5 * self.l2 * float(w @ w), g

    def value_gradient_hessian(self, w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return F, its gradient and its Hessian at one flat model, in one pass where the rows are sparse."""
        fed = self.federation
        if hasattr(self.loss, "n_classes"):
            if not isinstance(self.loss, Softmax):
                raise wrong_type(f"{type(self.loss).__name__}", "be Softmax to have a Hessian here", "another loss")
            value, g = self.value_gradient(w)
            return value, g, self._softmax_hessian(w)
        if not hasattr(self.loss, "curvature"):
            raise wrong_type(f"{type(self.loss).__name__}", "have a curvature", "none", "use SmoothedHinge(gamma)")
        if fed.is_sparse:
            values, g, H = np.empty(fed.K), np.zeros(self.size), np.zeros((self.size, self.size))
            row_losses.newton_rows(self.loss, fed.rows, fed.y, fed.ptr, self.row_weights, w, values, g, H)
            H += np.tril(H, -1).T
            g += self.l2 * w
            value = float(values @ self.row_weights) + 0.5 * self.l2 * float(w @ w)
        else:
            value, g = self.value_gradient(w)
            h = self.curvatures(w)
            H = _weighted_gram(fed.X, h)
        H.flat[:: self.size + 1] += self.l2
        return value, g, H

    @cached_property
    def column_sizes(self) -> np.ndarray:
        """Largest |x_j| of every feature, (d,)."""
        X = abs(self.federation.X).max(axis=0)
        return np.asarray(X.toarray() if sp.issparse(X) else X).ravel()

    def _slope_size(self, F: float) -> float:
        """Return a bound of the mean |l'|: the Lipschitz constant, or what the value allows."""
        if isinstance(self.loss, Squared):
            return float(np.sqrt(2.0 * max(F, 0.0)))
        steep = float(getattr(self.loss, "lipschitz", np.inf))
        return steep if np.isfinite(steep) else abs(F)

    def rounding(self, w: np.ndarray, F: float) -> float:
        """How far the computed F(w) may be from the true one: 8 eps (|F| + mean |l'| max_i sum_j |x_ij w_j|)."""
        reach = float(np.abs(w).reshape(self.n_outputs, -1).sum(axis=0) @ self.column_sizes)
        return 8.0 * _EPS * (abs(F) + self._slope_size(F) * reach)

    def gradient_rounding(self, w: np.ndarray, F: float) -> np.ndarray:
        """How far the entries of the computed gradient may be from the true ones, (size,)."""
        reach = float(np.abs(w).reshape(self.n_outputs, -1).sum(axis=0) @ self.column_sizes)
        bend = float(getattr(self.loss, "smoothness", np.inf))
        bend = bend if np.isfinite(bend) else abs(F)
        per_feature = np.tile(self.column_sizes, self.n_outputs) * (self._slope_size(F) + bend * reach)
        return 8.0 * _EPS * (per_feature + self.l2 * np.abs(w))

    def hessian_root(self, w: np.ndarray) -> np.ndarray:
        """Return an upper triangular R (size, size) with R'R the Hessian, by QR of blocks of rows."""
        fed, C, size = self.federation, self.n_outputs, self.size
        R = np.sqrt(self.l2) * np.eye(size)
        step = max(1, (1 << 21) // (size * C))
        if C > 1:
            P, root = self.probabilities(w), np.sqrt(np.repeat(self.row_weights, fed.sizes))
        else:
            root = np.sqrt(np.maximum(self.curvatures(w), 0.0))
        for lo in range(0, fed.n, step):
            X = fed.X[lo : lo + step]
            A = (X.toarray() if fed.is_sparse else X) * root[lo : lo + step, None]
            if C > 1:  # rows sqrt(p_c) (e_c - p) x', whose Gram matrix is (diag p - p p') x x'
                p = P[lo : lo + step]
                S = np.sqrt(p)[:, :, None] * (np.eye(C) - p[:, None, :])
                A = np.einsum("ice,ij->icej", S, A).reshape(-1, size)
            R = np.linalg.qr(np.vstack([R, A]), mode="r")
        return R

    def curvatures(self, w: np.ndarray) -> np.ndarray:
        """(p_k/n_k) l''(x'w, y) of every row, (n,)."""
        fed = self.federation
        h = np.empty(fed.n)
        z = np.ascontiguousarray(fed.X @ w)
        row_losses.row_curvatures(self.loss, z, fed.y, fed.ptr, self.row_weights, h)
        return h

    def probabilities(self, w: np.ndarray) -> np.ndarray:
        """Softmax probabilities of every row at one flat model, (n, C)."""
        Z = self._scores(w[None, :], 0, self.federation.n)
        Z -= Z.max(axis=1, keepdims=True)
        np.exp(Z, out=Z)
        Z /= Z.sum(axis=1, keepdims=True)
        return Z

    def _softmax_hessian(self, w: np.ndarray) -> np.ndarray:
        """Blocks sum_i (p_k/n_k) P_ic (1[c = e] - P_ie) x_i x_i', plus l2."""
        fed, C, d = self.federation, self.n_outputs, self.federation.d
        P = self.probabilities(w)
        per_row = np.repeat(self.row_weights, fed.sizes)
        H = np.empty((C, d, C, d))
        for c in range(C):
            for e in range(c + 1):
                h = per_row * P[:, c] * ((c == e) - P[:, e])
                X = fed.X.multiply(h[:, None]).tocsr() if fed.is_sparse else fed.X * h[:, None]
                block = X.T @ fed.X
                H[c, :, e, :] = block.toarray() if fed.is_sparse else block
                H[e, :, c, :] = H[c, :, e, :].T
        flat = H.reshape(self.size, self.size)
        flat.flat[:: self.size + 1] += self.l2
        return flat

    def hessian_product(self, w: np.ndarray) -> Any:
        """Return the map v -> Hessian(w) v over flat vectors, with the curvatures computed once."""
        fed = self.federation
        if self.n_outputs > 1:
            P, per_row = self.probabilities(w), np.repeat(self.row_weights, fed.sizes)[:, None]

            def product(v: np.ndarray) -> np.ndarray:
                Z = P * (fed.X @ v.reshape(self.n_outputs, -1).T)
                Z -= P * Z.sum(axis=1, keepdims=True)
                return (fed.X.T @ (per_row * Z)).T.ravel() + self.l2 * v

            return product
        h = self.curvatures(w)
        return lambda v: fed.X.T @ (h * (fed.X @ v)) + self.l2 * v

    def _domain_counts(self) -> tuple[np.ndarray, np.ndarray]:
        counts = domain_counts(self.federation)
        return domains_of(self.federation).code, counts

    def __repr__(self) -> str:
        return f"Problem({self.federation!r}, {self.loss!r}, l2={self.l2:g})"


def _weighted_gram(X: np.ndarray, h: np.ndarray) -> np.ndarray:
    """X' diag(h) X for h >= 0 and dense X, half of it computed (BLAS syrk) in blocks that stay in cache."""
    some = np.flatnonzero(h)
    if 2 * some.size < len(X):  # smoothed hinges have few rows in their band
        X, h = X[some], h[some]
    H = np.zeros((X.shape[1], X.shape[1]), order="F")
    root = np.sqrt(h)
    for lo in range(0, len(X), 2048):
        A = X[lo : lo + 2048] * root[lo : lo + 2048, None]
        H = dsyrk(1.0, A.T, beta=1.0, c=H, lower=1, overwrite_c=1)
    return np.ascontiguousarray(np.tril(H) + np.tril(H, -1).T)


def _weights(weights: Any, fed: Federation) -> np.ndarray:
    who = "Problem.weights"
    if weights is None:
        return fed.sizes / fed.n
    if isinstance(weights, str):
        if weights != "uniform":
            raise bad(who, "be None, 'uniform' or an array", weights)
        return np.full(fed.K, 1.0 / fed.K)
    p = vector(who, weights, fed.K)
    if (p <= 0).any():
        k = int(np.argmin(p))
        raise bad(who, "be positive", f"{p[k]:g} for client {fed.labels[k]}", "leave that client out with subset")
    if abs(p.sum() - 1.0) > 1e-9:
        raise bad(who, "sum to one", f"{p.sum():.12g}", "divide them by their sum")
    return p / p.sum()
