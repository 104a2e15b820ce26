"""The objective that solvers see: rows, loss, weights and l2, with values, gradients, Hessians and their rounding."""

from __future__ import annotations

import copy
import math
from functools import cached_property, partial
from typing import Any, Self

import numpy as np

from fedconvex._check import bad, flag, numeric, vector, wrong_type
from fedconvex._sparse import entries_of_columns
from fedconvex.federation import Federation
from fedconvex.kernels import row_losses
from fedconvex.kernels.domain_sums import domain_counts, domains_of
from fedconvex.kernels.penalised import penalty_values
from fedconvex.loss_traits import LossTraits, traits
from fedconvex.solvers.certificates.free_coordinates import bounding_slopes
from fedconvex.solvers.certificates.rank import rank_bound
from fedconvex.solvers.rows import hessians
from fedconvex.solvers.rows.client_means import CHUNK, client_means
from fedconvex.solvers.rows.weighted_rows import WeightedRows

_EPS = float(np.finfo(float).eps)
_WIDE = 1e9  # products up to which sums are taken in extended precision


class Objective(WeightedRows):
    """F(w) = sum_k p_k f_k(w), f_k(w) = mean of the loss over client k's rows + (l2/2)‖w‖^2; nothing is checked.

    Parameters
    ----------
    federation : Federation
    loss : loss
    l2 : float
    weights : array (K,), optional
        p_k, nonnegative and of sum one; default n_k/n.
    free : array (d,) of bool, optional
        Features whose coefficients l2 leaves out.

    Attributes
    ----------
    penalty : penalty or None
        P, which `value` adds to F; what else is evaluated is the smooth part of F.
    """

    penalty: Any = None
    bounding_slopes = cached_property(bounding_slopes)  # where several coordinates are free

    def __init__(
        self,
        federation: Federation,
        loss: Any,
        l2: float,
        weights: np.ndarray | None = None,
        free: np.ndarray | None = None,
    ) -> None:
        self.federation = federation
        self.loss: Any = loss
        self.l2 = l2
        self.free = free
        self.weights = federation.masses / federation.masses.sum() if weights is None else weights

    def _like(self, federation: Federation, weights: np.ndarray) -> Any:
        """Return the objective, or problem, of other rows with this loss and l2."""
        return Objective(federation, self.loss, self.l2, weights, self.free)

    @cached_property
    def traits(self) -> LossTraits:
        """What the loss declares about itself."""
        return traits(self.loss)

    @cached_property
    def n_outputs(self) -> int:
        """C for a loss with classes, else 1."""
        return self.traits.outputs

    @cached_property
    def model_shape(self) -> tuple[int, ...]:
        """Shape of one model: (d,) or (C, d)."""
        d = self.federation.d
        return (self.n_outputs, d) if self.traits.several else (d,)

    @cached_property
    def size(self) -> int:
        """Number of parameters of one model."""
        return self.n_outputs * self.federation.d

    @cached_property
    def ridge(self) -> Any:
        """l2, or where some coordinates are free the weight of every coordinate of a flat model, (size,)."""
        if self.free is None or self.l2 == 0.0:
            return self.l2
        return np.tile(np.where(self.free, 0.0, self.l2), self.n_outputs)

    @cached_property
    def model_ridge(self) -> Any:
        """`ridge` as a number, or in the shape of a model."""
        return self.ridge if np.ndim(self.ridge) == 0 else self.unflatten(self.ridge)

    @cached_property
    def penalised_entries(self) -> np.ndarray | None:
        """Places in a flat model of the entries that the penalty sees; None where it sees all."""
        return None if self.free is None else np.flatnonzero(~np.tile(self.free, self.n_outputs))

    @cached_property
    def free_columns(self) -> np.ndarray:
        """The features that are free, (n, q), dense."""
        X = self.federation.X[:, [] if self.free is None else np.flatnonzero(self.free)]
        return X.toarray() if self.federation.is_sparse else X

    @property
    def strong_convexity(self) -> float:
        """How strongly F is convex whatever its rows: l2, or 0 where some coordinates are free."""
        return self.l2 if np.ndim(self.ridge) == 0 else 0.0

    def ridge_terms(self, W: np.ndarray) -> np.ndarray:
        """Ridge terms of R flat models, (R,): 0 without l2, whatever overflows in the squares."""
        if np.ndim(self.ridge) == 0:
            return 0.5 * self.l2 * np.einsum("rj,rj->r", W, W) if self.l2 else np.zeros(len(W))
        return 0.5 * np.einsum("rj,j,rj->r", W, self.ridge, W)

    def ridge_term(self, w: np.ndarray) -> float:
        """Ridge term of a flat model."""
        one = not isinstance(self.ridge, np.ndarray)
        return 0.5 * self.l2 * float(w @ w) if one and self.l2 else 0.5 * float(w @ (self.ridge * w))

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
        a = w if type(w) is np.ndarray and w.dtype == np.float64 else numeric("Problem: model w", w)
        shape = self.model_shape
        if a.size == 0 or (a.shape != shape and a.shape[1:] != shape):
            raise bad("Problem: model w", f"have shape {shape}, or (R, {', '.join(map(str, shape))})", f"{a.shape}")
        a = a if a.flags.carray else np.require(a, requirements=["C", "W"])  # kernels see one array type
        return a.reshape(-1, self.size), a.shape == shape

    def unflatten(self, w: np.ndarray) -> np.ndarray:
        """Return flat models (..., size) in their own shape (..., *model_shape)."""
        return w if len(self.model_shape) == 1 else w.reshape(*w.shape[:-1], *self.model_shape)

    def value(self, w: Any) -> Any:
        """F(w): a float, or (R,) for R models."""
        W, single = self.flatten(w)
        out = (client_means(self, W) * self.weights).sum(axis=1) + self.ridge_terms(W)
        if self.penalty is not None:
            out = out + penalty_values(self, W)
        return out[0] if single else out

    def client_values(self, w: Any) -> np.ndarray:
        """f_k(w) for every client: (K,), or (R, K)."""
        W, single = self.flatten(w)
        out = client_means(self, W) + self.ridge_terms(W)[:, None]
        return out[0] if single else out

    def client_gradients(self, w: Any) -> np.ndarray:
        """Gradients of every f_k: (K, *model_shape), or (R, K, *model_shape)."""
        W, single = self.flatten(w)
        everyone = np.broadcast_to(np.arange(self.federation.K), (len(W), self.federation.K)).copy()
        G = row_losses.gradients_of(self, W, everyone)
        return G[0] if single else G

    def alone(self, k: int) -> Objective:
        """Return the objective of client k alone, without its label; dense rows are not copied."""
        fed = self.federation
        rows = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
        weight = None if fed.sample_weight is None else fed.sample_weight[rows]
        own = Federation(fed.X[rows], fed.y[rows], np.array([0, rows.stop - rows.start]), sample_weight=weight)
        return Objective(own, self.loss, self.l2, None, self.free)

    def with_loss(self, loss: Any) -> Objective:
        """Return the objective of the same rows, weights and l2 with another loss."""
        return Objective(self.federation, loss, self.l2, self.weights / self.weights.sum(), self.free)

    def thinned(self, stride: int) -> Objective:
        """Return the objective of every stride-th row, clients without such a row left out; no row may weigh zero."""
        fed = self.federation
        sizes = np.diff(-(-fed.ptr // stride))
        kept = sizes > 0
        ptr, weight = np.concatenate([[0], np.cumsum(sizes[kept])]), fed.sample_weight
        weight = None if weight is None else weight[::stride]
        part = Federation(fed.X[::stride], fed.y[::stride], ptr, sample_weight=weight)
        p = self.weights[kept] / self.weights[kept].sum()
        return Objective(part, self.loss, self.l2, p / p.sum(), self.free)

    @cached_property
    def by_domain(self) -> Self:
        """The same rows as the objective whose clients are the domains, of equal weight."""
        domain, _ = self._domain_counts()
        fed = self.federation
        if fed.domain is None:
            return self.reweighted(np.full(fed.K, 1.0 / fed.K))
        parts = Federation.from_arrays(fed.X, fed.y, domain, sample_weight=fed.sample_weight)
        return self._like(parts, np.full(parts.K, 1.0 / parts.K))

    def reweighted(self, domain_weights: np.ndarray) -> Self:
        """Return the same rows with other client weights (K,), nonnegative and of sum one; nothing is copied."""
        who, other = f"{type(self).__name__}.reweighted: domain_weights", copy.copy(self)
        p = vector(who, domain_weights, self.federation.K)
        if p.min() < 0.0 or abs(p.sum() - 1.0) > 1e-6:
            raise bad(who, "be nonnegative and sum to one", f"smallest {p.min():g}, sum {p.sum():g}")
        for name in (
            "row_weights",
            "per_row",
            "row_weight_range",
            "equal_weights",
            "cumulative_weights",
            "rank_bound",
            "column_norms",
            "bounding_slopes",
        ):
            other.__dict__.pop(name, None)
        other.weights = p
        return other

    def gradient_variance(self, w: Any, by_weight: bool = False) -> np.ndarray:
        """Mean of ‖grad f_n(w) - grad F_k(w)‖^2 over client k's rows, (K,): scaled, or drawn ``by_weight``."""
        W, single = self.flatten(w)
        if not single:
            raise bad("Problem.gradient_variance: w", "be one model", f"{len(W)} models")
        fed = self.federation
        S = self._scores(W, 0, fed.n)
        row_losses.row_slopes(self.row_loss, S, self.row_labels)
        out, s = np.empty(fed.K), self.relative_weights if flag("by_weight", by_weight) else None
        share = np.ones(fed.n) if s is None else s
        S = S / np.where(share > 0.0, share, 1.0)[:, None]
        for k in range(fed.K):  # mean of ‖s_i x_i' - mean‖^2, centred before it is squared
            rows = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
            X = fed.X[rows].toarray() if fed.is_sparse else fed.X[rows]
            centred = ((S[rows, c, None] * X) for c in range(self.n_outputs))
            p = share[rows]
            out[k] = sum(np.mean(p * np.sum((G - (p[:, None] * G).mean(axis=0)) ** 2, axis=1)) for G in centred)
        return out

    def _scores(self, W: np.ndarray, lo: int, hi: int) -> np.ndarray:
        """Scores of rows lo:hi at models W (R, size): (rows, R) or (rows, R C)."""
        fed = self.federation
        return np.ascontiguousarray(hessians.rows_between(fed.X, lo, hi) @ W.reshape(-1, fed.d).T)

    def _row_values(self, W: np.ndarray) -> Any:
        """Yield (lo, hi, losses (hi - lo, R)) over chunks of rows."""
        fed = self.federation
        step = max(1, CHUNK // (len(W) * self.n_outputs))
        for lo in range(0, fed.n, step):
            hi = min(fed.n, lo + step)
            out = np.empty((hi - lo, len(W)))
            row_losses.row_values(self.row_loss, self._scores(W, lo, hi), self.row_labels[lo:hi], out)
            yield lo, hi, out

    def value_gradient(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        """Return F and its gradient at one flat model."""
        fed = self.federation
        values, g = np.empty(fed.K), np.zeros(self.size)
        w = w if w.flags.carray else np.require(w, requirements=["C", "W"])  # kernels see one array type
        y = self.row_labels
        row_losses.pooled_gradient(self.row_loss, fed.rows, y, fed.ptr, self.row_weights, w, values, g)
        g += self.ridge * w
        return float((values * self.row_weights).sum()) + self.ridge_term(w), g

    def value_gradient_hessian(self, w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return F, its gradient and its Hessian at one flat model, in one pass where the rows are sparse."""
        fed = self.federation
        self.need_curvature("Problem")
        if self.traits.several or not fed.is_sparse:
            at_zero = self.traits.quadratic and not w.any()
            return hessians.least_squares_at_zero(self) if at_zero else (*self.value_gradient(w), self.flat_hessian(w))
        values, g, H = np.empty(fed.K), np.zeros(self.size), np.zeros((self.size, self.size))
        y = self.row_labels
        row_losses.newton_rows(self.row_loss, fed.rows, y, fed.ptr, self.row_weights, w, values, g, H)
        hessians.mirror(H)
        g += self.ridge * w
        H.flat[:: self.size + 1] += self.ridge
        return float((values * self.row_weights).sum()) + self.ridge_term(w), g, H

    def flat_hessian(self, w: np.ndarray) -> np.ndarray:
        """Return the Hessian of F at one flat model."""
        if self.traits.several:
            return hessians.softmax_hessian(self, w)
        if self.federation.is_sparse:
            return self.value_gradient_hessian(w)[2]
        H = hessians.weighted_gram(self.federation.X, self.per_row if self.traits.quadratic else self.curvatures(w))
        H.flat[:: self.size + 1] += self.ridge
        return H

    def steep_along_free(self, H: np.ndarray) -> np.ndarray:
        """Return H with the largest possible curvature in free coordinates that have none: steps there stay finite."""
        if self.free is None or self.traits.several or not math.isfinite(self.traits.smoothness):
            return H
        bare = self.free & (np.diagonal(H) == 0.0)
        if not bare.any():
            return H
        squares = self.per_row @ (self.federation.X**2)
        return H + np.diag(np.where(bare, self.traits.smoothness * squares, 0.0))

    def need_curvature(self, who: str) -> None:
        """Raise TypeError if the loss has no curvature."""
        if not self.traits.curved:
            cure = "declare multinomial" if self.traits.several else "define curvature(z, y), the loss's l''"
            cure = "use a smooth loss, for example SmoothedHinge(gamma)" if self.traits.kinked else cure
            raise wrong_type(f"{who}: {self.loss!r}", "have a curvature", "none", cure)

    @cached_property
    def rank_bound(self) -> int:
        """An upper bound of the exact rank of the rows of positive weight."""
        weighted = self.per_row > 0.0
        return rank_bound(self.federation.X if weighted.all() else self.federation.X[weighted])

    def largest_scores(self, V: np.ndarray) -> float:
        """Return a bound over the rows of the norm of their scores at directions V (k, size).

        Sums are taken in extended precision, where the machine has it and the work is affordable, because scores along
        nearly flat directions cancel. Where the loss is multinomial, only differences between classes count.
        """
        fed, C = self.federation, self.n_outputs
        wide = np.longdouble if fed.n * V.size <= _WIDE else np.float64
        classes: Any = V.reshape(-1, C, fed.d).astype(wide)
        if self.traits.multinomial:
            classes -= classes.mean(axis=1, keepdims=True)
        U = classes.reshape(-1, fed.d).T
        step, largest = max(1, CHUNK // max(U.size, fed.d)), 0.0
        for lo in range(0, fed.n, step):
            X = fed.X[lo : lo + step]
            X = X.toarray() if fed.is_sparse else X
            largest = max(largest, float(np.sqrt(((X.astype(wide) @ U) ** 2).sum(axis=1)).max()))
        off = float(np.linalg.norm(fed.column_sizes @ np.abs(U).astype(np.float64)))
        return largest + 4.0 * (fed.d + C) * float(np.finfo(wide).eps) * off

    @cached_property
    def column_norms(self) -> np.ndarray:
        """(sum_i c_i x_ij^2)^(1/2) of every feature, (d,), c_i what row i weighs."""
        fed, c = self.federation, self.per_row
        if fed.is_sparse:
            X = fed.by_column
            weighted = np.zeros(X.nnz + 1)
            np.multiply(c[X.indices], X.data**2, out=weighted[:-1])
            squares = np.add.reduceat(weighted, X.indptr[:-1]) * (np.diff(X.indptr) > 0)
        else:
            parts = ((c[lo : lo + 256], fed.X[lo : lo + 256]) for lo in range(0, fed.n, 256))
            squares = sum(np.einsum("i,ij,ij->j", h, X, X) for h, X in parts)
        return np.asarray(np.sqrt(squares))

    def row_values_and_slopes(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return l of every row at a flat model, (n,), and l', (n,) or (n, C); weights do not count."""
        y = self.federation.y
        values, Z = np.empty((y.size, 1)), self._scores(w[None, :], 0, y.size)
        row_losses.row_values(self.loss, Z, y, values)
        row_losses.row_slopes(self.loss, Z, y)
        return values[:, 0], Z if self.traits.several else Z[:, 0]

    def _mean_sizes(self, w: np.ndarray) -> tuple[float, float, float]:
        """Return means over the rows of |l|, |l'| and l'' at a flat model: for losses that declare no bounds."""
        values, slopes = self.row_values_and_slopes(w)
        known, slopes = self.traits.curved and not self.traits.several, slopes.reshape(len(values), -1)
        bend = float(self.curvatures(w).sum()) if known else math.inf
        return float(self.per_row @ np.abs(values)), float(self.per_row @ np.linalg.norm(slopes, axis=1)), bend

    def steepness(self, w: np.ndarray, F: float) -> float:
        """Return a bound of the mean |l'|: what the loss declares of it, or what it is."""
        steep = float(self.traits.slope_bound(F))
        return steep if math.isfinite(steep) or not math.isfinite(F) else self._mean_sizes(w)[1]

    def reach(self, w: np.ndarray) -> float:
        """sum_j |w_j| max_i |x_ij| of a flat model, over all classes: no score is larger."""
        return float(np.abs(w).reshape(self.n_outputs, -1).sum(axis=0) @ self.federation.column_sizes)

    def rounding(self, w: np.ndarray, F: float) -> float:
        """How far the computed F(w) may be from the true one: (8 + sqrt n) eps mean |l| + mean |l'| r + sup l'' r^2/2.

        r = s eps max_i sum_j |x_ij w_j| bounds what rounding does to a score, s being `in_scores`, and values are
        summed in sqrt n blocks.
        The last term is left out where |l'| has a bound that holds everywhere, or nothing is known of l''.
        """
        size = abs(F) if self.traits.lower_bound >= 0.0 else max(abs(F), self._mean_sizes(w)[0])
        reach, steep = self.reach(w), self.steepness(w, F)
        first = _EPS * (self._in_sums * size + self.in_scores * steep * reach)
        kind, off = self.traits, self.in_scores * _EPS * reach
        bare = not kind.curved and math.isinf(kind.curvature_below(abs(F)))
        if steep >= kind.lipschitz or bare or not math.isfinite(first):
            return first
        return first + 0.5 * self.bend(w, F) * self._growth(off) * off * off

    def roundings(self, W: np.ndarray, F: np.ndarray) -> np.ndarray:
        """Return `rounding` of R flat models with values F, (R,)."""
        kind = self.traits
        if kind.lower_bound < 0.0 or not (math.isfinite(kind.lipschitz) and kind.slope_bound(0.0) == kind.lipschitz):
            return np.array([self.rounding(w, float(f)) for w, f in zip(W, F, strict=True)])
        reach = np.abs(W).reshape(len(W), self.n_outputs, -1).sum(axis=1) @ self.federation.column_sizes
        return np.asarray(_EPS * (self._in_sums * np.abs(F) + self.in_scores * kind.lipschitz * reach))

    @cached_property
    def in_scores(self) -> float:
        """Roundings of a score, in units of eps: two to every term, in whatever order they are added."""
        fed = self.federation
        return 8.0 + 0.5 * (float(np.diff(fed.X.indptr).max(initial=0)) if fed.is_sparse else fed.d)

    @cached_property
    def _in_sums(self) -> float:
        """Roundings that a sum over rows takes part in, in units of eps."""
        return 8.0 + math.sqrt(self.federation.n)

    def bend(self, w: np.ndarray, F: float) -> float:
        """Return a bound of l'' over the rows: what the loss declares of it, or what it is."""
        bend = self.traits.curvature_below(abs(F))
        return bend if math.isfinite(bend) or not math.isfinite(F) else self._mean_sizes(w)[2]

    def _growth(self, off: float) -> float:
        """Return by which factor l'' may grow where a score moves by ``off``."""
        t = off * self.traits.self_concordance if math.isfinite(self.traits.self_concordance) else 0.0
        return 1.0 if t < 1e-3 else math.exp(t) if t < 700.0 else math.inf

    def gradient_rounding(self, w: np.ndarray, F: float) -> np.ndarray:
        """How far the entries of the computed gradient may be from the true ones, (size,): of sums and of scores."""
        off = self.in_scores * _EPS * self.reach(w)
        moved = off * self.bend(w, F) * self._growth(off)
        return self.sum_rounding(w, F) + moved * np.tile(self.federation.column_sizes, self.n_outputs)

    def sum_rounding(self, w: np.ndarray, F: float) -> np.ndarray:
        """How far the entries of a gradient may be from those made of the slopes at computed scores, (size,)."""
        rows = np.tile(self.federation.column_sizes * self._in_gradients, self.n_outputs)
        return np.asarray(_EPS * (rows * self.steepness(w, F) + 8.0 * self.ridge * np.abs(w)))

    @cached_property
    def _in_gradients(self) -> np.ndarray:
        """Roundings that the sums of a gradient take part in, in units of eps, two roundings each, (d,).

        Rows are added one by one where they are not zero; of dense rows and one output, four of a client at once.
        """
        fed = self.federation
        if fed.is_sparse:
            return 8.0 + 0.5 * entries_of_columns(fed.X)
        added = fed.n if self.n_outputs > 1 else int((fed.sizes // 4 + fed.sizes % 4).sum())
        return np.full(fed.d, 8.0 + 0.5 * added)

    def hessian_root(self, w: np.ndarray, h: np.ndarray | None = None) -> np.ndarray:
        """Return an upper triangular R (size, size), R'R the Hessian at w or with curvatures h, by QR of blocks."""
        fed, C, size = self.federation, self.n_outputs, self.size
        R = np.sqrt(self.ridge) * np.eye(size)
        step = max(1, (1 << 21) // (size * C))
        if C > 1:
            P, root = self.probabilities(w), np.sqrt(self.per_row)
        else:
            root = np.sqrt(np.maximum(self.curvatures(w) if h is None else h, 0.0))
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
        z = np.ascontiguousarray(fed.X @ w) if w.any() else np.zeros(fed.n)
        row_losses.row_curvatures(self.row_loss, z, self.row_labels, fed.ptr, self.row_weights, h)
        return h

    def probabilities(self, w: np.ndarray) -> np.ndarray:
        """Probabilities of the classes for every row at one flat model, (n, C)."""
        return np.asarray(self.loss.probabilities(self._scores(w[None, :], 0, self.federation.n)))

    def hessian_product(self, w: np.ndarray) -> Any:
        """Return the map v -> Hessian(w) v over flat vectors, with the curvatures computed once."""
        self.need_curvature("Problem")
        fed = self.federation
        if self.n_outputs > 1:
            P, per_row = self.probabilities(w), self.per_row[:, None]

            def product(v: np.ndarray) -> np.ndarray:
                Z = P * (fed.X @ v.reshape(self.n_outputs, -1).T)
                Z -= P * Z.sum(axis=1, keepdims=True)
                return (fed.X.T @ (per_row * Z)).T.ravel() + self.ridge * v

            return product
        if self.traits.quadratic and fed.is_sparse and fed.sample_weight is None:
            return partial(hessians.least_squares_product, self)
        h = self.per_row if self.traits.quadratic else self.curvatures(w)
        return lambda v: fed.X.T @ (h * (fed.X @ v)) + self.ridge * v

    def _domain_counts(self) -> tuple[np.ndarray, np.ndarray]:
        return domains_of(self.federation).code, domain_counts(self.federation)
