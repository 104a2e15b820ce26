"""Multi-task problems: a model for every client, tied by a task relationship; primal, dual, certificates, solutions.

P(W) = sum_t c_t sum_i l(x_i'w_t, y_i) + R(W), c_t = 1 or 1/n_t. With dual variables alpha, one per row (for `Softmax`
one per row and class), and v_t = c_t X_t'alpha_t, the dual in minimisation form is D(alpha) = sum_t c_t sum_i
l*(-alpha_i) + R*(V), and for every W and alpha

    P(W) - min P <= P(W) + D(alpha),     D(alpha) - min D <= P(W) + D(alpha).

At W = Mbar V (fixed relationships) the gap is a sum over tasks: c_t sum_i [l(z_i) + l*(-alpha_i) + alpha_i z_i]. Models
of C classes are (m, C, d), and R sees them as (m, C d): the tie is between tasks, the same for all classes.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from fedconvex._check import among, array, bad, numeric, real, whole, wrong_type
from fedconvex.constants import default_steps
from fedconvex.families.multitask.coupling import dense, mbar_of, mbar_times, pencil_sigma
from fedconvex.families.multitask.fixed_relation import fixed
from fedconvex.families.multitask.learned_relation import jointly
from fedconvex.families.multitask.relations import Relation
from fedconvex.families.multitask.task_predictions import TaskMetrics, TaskPredictions, row_values
from fedconvex.federation import Federation
from fedconvex.kernels import row_losses
from fedconvex.kernels.row_weights import labels_with_weights, weighted_loss
from fedconvex.loss_traits import traits
from fedconvex.problems.protocol import MODEL_PER_TASK, Measure, check_loss, client_weights
from fedconvex.solvers.certificates.gaps import duality_gap
from fedconvex.solvers.certificates.row_rounding import task_allowances
from fedconvex.solvers.kinked import dual
from fedconvex.solvers.solution import Solution

__all__ = ["MultiTaskProblem", "TaskMetrics"]

_EPS = float(np.finfo(float).eps)
_MAX_PASSES = 100_000


class MultiTaskProblem(TaskPredictions):
    """P(W) = sum_t c_t sum_i l(x_i'w_t, y_i) + R(W): clients are tasks, each with a model of its own.

    W is (m, d), or (m, C, d) for `Softmax`.

    Parameters
    ----------
    federation : Federation
        Clients are the tasks.
    loss : loss
        With a conjugate and dual steps: Hinge, SmoothedHinge, Squared, Logistic, Exponential, Softmax.
    relation : relationship
        R: `MeanRegularised`, `Clustered`, `Precision`, `Covariance`, `Independent` or `Pooled`.
    normalisation : {"sum", "mean"}
        c_t = 1, losses are summed (the paper); or c_t = 1/n_t, they are averaged per task (its reference code).

    Raises
    ------
    TypeError, ValueError
        If the loss has no dual step, or the relationship is for another number of tasks. Methods that train one model
        for all clients are refused.

    References
    ----------
    Smith, Chiang, Sanjabi, Talwalkar, "Federated multi-task learning", NIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Squared
    >>> from fedconvex.problems import Independent, MultiTaskProblem
    >>> fed = Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> problem = MultiTaskProblem(fed, Squared(), Independent(1.0))
    >>> problem.solve().w.round(9).tolist()
    [[0.5], [1.5]]
    """

    learns = MODEL_PER_TASK
    over_sites = "families.multitask.sites"  # what sites answer about it
    starts = ""
    shared = ("relation", "normalisation", "factored_mbar", "c")  # what a server knows beside `known_to_server`
    l2 = 0.0  # R is the only penalty

    def __init__(self, federation: Federation, loss: Any, relation: Relation, normalisation: str = "sum") -> None:
        among("MultiTaskProblem.normalisation", normalisation, ("sum", "mean"))
        if not isinstance(federation, Federation):
            raise wrong_type("MultiTaskProblem.federation", "be a Federation", type(federation).__name__)
        check_loss("MultiTaskProblem", loss, federation.y)
        step = "dual_steps" if hasattr(loss, "n_classes") else "dual_step"
        if not (hasattr(loss, "conjugate") and hasattr(loss, step)):
            cure = "use Hinge, SmoothedHinge, Squared, Logistic or Softmax"
            raise wrong_type("MultiTaskProblem.loss", f"have a conjugate and {step}", f"{loss!r}", cure)
        if not isinstance(relation, Relation):
            cure = "for example MeanRegularised(lam1, lam2)"
            raise wrong_type("MultiTaskProblem.relation", "be a task relationship", f"{relation!r}", cure)
        self.federation, self.loss = federation, loss
        self.weights = client_weights("MultiTaskProblem", None if normalisation == "sum" else "uniform", federation)
        self.relation, self.normalisation = relation, normalisation
        self.factored_mbar = mbar_of(relation, federation.K, self.width)
        self.factored_mbar.flags.writeable = False
        self.c = np.ones(federation.K) if normalisation == "sum" else 1.0 / federation.masses
        self.c.flags.writeable = False
        self._solution: Solution | None = None

    # ------------------------------------------------------------------ shapes
    @cached_property
    def model_shape(self) -> tuple[int, ...]:
        """(m, d), one row per task; (m, C, d) for C classes."""
        kind = traits(self.loss)
        return (self.federation.K, *((kind.outputs,) if kind.several else ()), self.federation.d)

    @cached_property
    def mbar(self) -> np.ndarray:
        """Mbar, (m, m); `factored_mbar` holds the same in fewer numbers where there are many tasks."""
        mbar = dense(self.factored_mbar)
        mbar.flags.writeable = False
        return mbar

    @cached_property
    def dual_shape(self) -> tuple[int, ...]:
        """(n,), one dual variable per row; (n, C) for C classes."""
        return (self.federation.n, *self.model_shape[1:-1])

    @cached_property
    def width(self) -> int:
        """Numbers in a task's model: d, or C d."""
        return int(np.prod(self.model_shape[1:]))

    def statistic(self, name: str) -> Sequence[np.ndarray]:
        """Return what the nodes answer when asked for a statistic before a run, each from its own rows.

        Parameters
        ----------
        name : {"conjugate", "squared_norm", "row_space"}
            c_t sum_i l*(0); c_t sum_i ‖x_i‖^2; or an orthonormal basis (rank, d) of the span of the rows.

        Raises
        ------
        ValueError
            For other names.
        """
        among("MultiTaskProblem.statistic: name", name, ("conjugate", "squared_norm", "row_space"))
        if name == "conjugate":
            return list(self.conjugates(np.zeros(self.dual_shape)))
        if name == "squared_norm":
            return list(self._sums(self.row_norms))
        return [self._row_space(a, b) for _, a, b in self._blocks()]

    @cached_property
    def row_labels(self) -> np.ndarray:
        """Labels as kernels take them: (n,), or records that carry the rows' weights."""
        y, weight = self.federation.y, self.federation.sample_weight
        return y if weight is None else labels_with_weights(y, weight)

    @cached_property
    def row_loss(self) -> Any:
        """The loss of the `row_labels`."""
        return self.loss if self.federation.sample_weight is None else weighted_loss(self.loss)

    def __getattr__(self, name: str) -> Any:
        cure = "use MOCHA, CoCoA, MiniBatchSDCA, MiniBatchSGD or GradientDescent; or a Problem"
        raise AttributeError(f"MultiTaskProblem holds a model per task and has no {name}: {cure}")

    def stack(self, W: Any) -> tuple[np.ndarray, bool]:
        """Return models as (R, *model_shape), and whether W was a single one."""
        a = numeric("MultiTaskProblem: models W", W, copy=False)
        if a.size == 0 or (a.shape != self.model_shape and a.shape[1:] != self.model_shape):
            one = ", ".join(map(str, self.model_shape))
            raise bad("MultiTaskProblem: models W", f"have shape ({one}), or (R, {one})", f"{a.shape}")
        a = np.require(a, requirements=["C", "W"])
        return a.reshape(-1, *self.model_shape), a.ndim == len(self.model_shape)

    def step_smoothness(self, exact: bool, refuse: Callable[..., ValueError]) -> default_steps.Smoothness:
        """Return the smoothness of P for steps: of the roughest task's loss, plus the top eigenvalue of Qbar.

        Parameters
        ----------
        exact : bool
            Whether eigenvalues of all tasks' X'X are affordable.
        refuse : callable
            From why there is none, and what to do, to the error that is raised.

        Raises
        ------
        ValueError
            The error of ``refuse``, if Omega is learned or the loss is not smooth.
        """
        fed, loss = self.federation, self.loss
        if self.relation.learned:
            raise refuse("a learned Omega, with which R has kinks")
        if math.isinf(traits(loss).smoothness):
            raise refuse(f"{loss!r}, which is not smooth", "take a smooth loss, or MOCHA")
        masses, one = self.c * fed.masses, np.ones(1)
        parts = [default_steps.smoothness_of(fed.subset([t]), one, loss, 0.0, exact) for t in range(fed.K)]
        ridge = float(np.linalg.eigvalsh(self.relation.qbar(fed.K))[-1])
        top = max(m * part.F for m, part in zip(masses, parts, strict=True)) + ridge
        return default_steps.Smoothness(top, top, top, exact)

    @property
    def words(self) -> str:
        """What it consists of, as reports say it."""
        fed, low, high = self.federation, int(self.federation.sizes.min()), int(self.federation.sizes.max())
        rows = f"{low} to {high} rows" if low < high else f"{low} row{'s' * (low != 1)}"
        features = f"{fed.n} rows, {fed.d} feature{'s' * (fed.d != 1)}"
        return f"{fed.K} tasks of {rows}, {features}, {self.relation!r}, {self.loss!r}"

    @property
    def row_norms(self) -> np.ndarray:
        """‖x_i‖^2 of every row, (n,)."""
        return self.federation.row_norms2

    @cached_property
    def gram_norms(self) -> np.ndarray:
        """Largest eigenvalue s_t of the Gram matrix of every task's rows scaled to norm one, (m,)."""
        fed, norms, out = self.federation, np.sqrt(self.row_norms), np.empty(self.federation.K)
        for t, a, b in self._blocks():
            X = fed.client_rows(t)[0] / np.where(norms[a:b] > 0.0, norms[a:b], 1.0)[:, None]
            out[t] = np.linalg.eigvalsh(X.T @ X if X.shape[1] < b - a else X @ X.T).max(initial=0.0)
        return out

    # ------------------------------------------------------------------ primal and dual
    @property
    def fingerprint(self) -> str:
        """Digest of what makes this problem beside its rows: the relationship and the normalisation."""
        h = hashlib.blake2b(repr(self.relation).encode(), digest_size=16)
        for a in (self.factored_mbar, self.c):
            h.update(np.ascontiguousarray(a).tobytes())
        return h.hexdigest()

    def value(self, W: Any) -> Any:
        """P(W): a float, or (R,). With a learned Omega R(W) is its minimum over Omega."""
        Ws, single = self.stack(W)
        out = self.client_values(Ws).sum(axis=1) + [self.relation.value(self._flat(w)) for w in Ws]
        return out[0] if single else out

    def client_values(self, W: Any) -> np.ndarray:
        """c_t sum_i l of every task, without R: (m,), or (R, m)."""
        Ws, single = self.stack(W)
        out = np.array([self._sums(self._losses(self.task_scores(w))) for w in Ws])
        return out[0] if single else out

    def gradient(self, W: Any) -> np.ndarray:
        """Gradient of P (a subgradient where it has kinks), in the shape of W."""
        Ws, single = self.stack(W)
        own = [self.relation.gradient(self._flat(w)).reshape(w.shape) for w in Ws]
        G = np.array([self.images(self._slopes(self.task_scores(w))) + g for w, g in zip(Ws, own, strict=True)])
        return G[0] if single else G

    def client_gradients(self, W: Any) -> np.ndarray:
        """Gradients of the tasks' losses c_t sum_i l by their own models, without R: like W."""
        Ws, single = self.stack(W)
        G = np.array([self.images(self._slopes(self.task_scores(w))) for w in Ws])
        return G[0] if single else G

    def images(self, alpha: np.ndarray) -> np.ndarray:
        """V: v_t = c_t X_t'alpha_t, like W, for alpha (n,) or (n, C)."""
        fed, V = self.federation, []
        for a in alpha.reshape(fed.n, -1).T:
            V.append(np.empty((fed.K, fed.d)))
            dual.task_sums(fed.rows, fed.ptr, self.c, np.require(a, requirements=["C", "W"]), V[-1])
        return np.stack(V, axis=1) if alpha.ndim == 2 else V[0]

    def models(self, alpha: np.ndarray) -> np.ndarray:
        """W(alpha) = Mbar V; for a learned Omega with that of the start."""
        return mbar_times(self.factored_mbar, self._flat(self.images(alpha))).reshape(self.model_shape)

    def dual_value(self, alpha: np.ndarray) -> float:
        """D(alpha) = sum c_t l*(-alpha_i) + R*(V), which is minimised; -D(alpha) <= P(W) for all W."""
        alpha = array("MultiTaskProblem.dual_value: alpha", alpha, self.dual_shape)
        return float(self.conjugates(alpha).sum()) + self.relation.conjugate(self._flat(self.images(alpha)))

    def conjugates(self, alpha: np.ndarray) -> np.ndarray:
        """c_t sum_i l*(-alpha_i) of every task, (m,)."""
        fed, y = self.federation, self.row_labels
        alpha = np.require(alpha, requirements=["C", "W"])
        pairs = zip(fed.ptr[:-1], fed.ptr[1:], strict=True)
        if alpha.ndim == 2:
            room = np.empty(alpha.shape[1])
            return self.c * [dual.class_conjugate_sum(self.row_loss, y, a, b, alpha, room) for a, b in pairs]
        return self.c * [dual.conjugate_sum(self.row_loss, y, a, b, alpha) for a, b in pairs]

    def certificate(
        self, W: np.ndarray, V: np.ndarray, conjugates: np.ndarray, penalty: float | None = None,
        off: float | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        """Return P(W), and a bound of P(W) - min P and of D - min D.

        Parameters
        ----------
        W : array (m, d), or (m, C, d)
            Any models.
        V : array like W
            `images` of dual variables.
        conjugates : array (m,)
            `conjugates` of the same.
        penalty : float, optional
            R(W) and R*(V), where they are equal and known: <V, W>/2 at W = Mbar V of a fixed relationship.
        off : float, optional
            `allowance` of W and V, where it is known.

        Raises
        ------
        ValueError, TypeError
            If an array is not of floats in its shape, or penalty no float.
        """
        full = self.model_shape
        for name, a, shape in (("W", W, full), ("V", V, full), ("conjugates", conjugates, full[:1])):
            if type(a) is not np.ndarray or a.shape != shape or a.dtype != np.float64:
                got = f"{a.dtype}, shape {a.shape}" if isinstance(a, np.ndarray) else f"{type(a).__name__}"
                raise bad(f"MultiTaskProblem.certificate: {name}", f"be floats of shape {shape}", got)
        if not isinstance(penalty, (float, type(None))):
            raise wrong_type("MultiTaskProblem.certificate: penalty", "be a float", f"{penalty!r}")
        losses = self.client_values(W)
        other = self.relation.conjugate(self._flat(V)) if penalty is None else penalty
        penalty = self.relation.value(self._flat(W)) if penalty is None else penalty
        terms = float(np.abs(losses).sum() + np.abs(conjugates).sum()) + abs(penalty) + abs(other)
        value, rounding = (
            float(losses.sum()) + penalty,
            4.0 * _EPS * terms + (self.allowance(W, V) if off is None else off),
        )
        return value, duality_gap("MultiTaskProblem", self, value, float(conjugates.sum()) + other, rounding)

    def measure(self, W: np.ndarray) -> Measure:
        """Values of R sets of models and certified gaps, from the dual variables alpha_i = -l'(x_i'w_t)."""
        Ws, _ = self.stack(W)
        pairs = []
        for w in Ws:
            alpha = -self._slopes(self.task_scores(w))
            pairs.append(self.certificate(w, self.images(alpha), self.conjugates(alpha)))
        value, gap = np.array(pairs).T
        return Measure(value, gap)

    def allowance(self, W: np.ndarray, V: np.ndarray) -> float:
        """Return what the rounding of scores, images, Mbar V and R may take from a gap at models W and images V."""
        tie = self.relation.gap_rounding(self.factored_mbar, self._flat(W), self._flat(V))
        return 2.0 * float(task_allowances(self, W).sum()) + tie

    def reached(
        self, goal: float, W: np.ndarray, V: np.ndarray, value: float, gap: float, off: float | None = None
    ) -> bool:
        """Whether a gap of models W and images V is goal (1 + |P|), but for what rounding adds to it."""
        return gap <= goal * (1.0 + abs(value)) + (self.allowance(W, V) if off is None else off)

    # ------------------------------------------------------------------ solutions
    def solve(self, tol: float | None = None, start: Solution | None = None, passes: int = _MAX_PASSES) -> Solution:
        """Minimise P and certify the result; with a learned Omega over W and Omega together.

        Fixed relationships: where it is small enough the problem is that of one model u on features C_t (x) x_i with
        Mbar = C C', W = C U, and is solved as such (Newton's method); else by exact dual coordinate ascent. A learned
        Omega: proximal Newton steps where losses have curvature everywhere and dense rows are many, else the
        alternating direction method with dual coordinate ascent; certified jointly.

        Parameters
        ----------
        tol : float, optional
            Stop once P(W) - min P <= tol (1 + |P|) is certified; default 1e-11, or 1e-9 for a learned Omega.
        start : Solution, optional
            Of the same rows with another relationship or weight, where a learned Omega or coordinate ascent begins:
            from its models, and its dual variables times the factor that is best here. Paths of weights lam are
            cheapest from large to small.
        passes : int
            Most passes over the rows by coordinate ascent; the gap says how far it came.

        Returns
        -------
        Solution
            With w = W (m, d).

        Raises
        ------
        ValueError, TypeError
            If passes is below 1, tol not positive, or start no solution for the same rows.
        """
        if tol is not None:
            real("MultiTaskProblem.solve: tol", tol, low=0.0, strict=True)
        most = whole("MultiTaskProblem.solve: passes", passes, low=1)
        if start is not None:
            if not isinstance(start, Solution):
                raise wrong_type("MultiTaskProblem.solve: start", "be a Solution", f"{start!r}")
            if start.w.shape != self.model_shape:
                raise bad("MultiTaskProblem.solve: start", "be a solution for the same rows", f"models {start.w.shape}")
        if self._solution is None:
            goal, clock = tol or (1e-9 if self.relation.learned else 1e-11), time.perf_counter()
            if self.relation.learned:
                found = jointly(self, goal, clock, start, most)
            else:
                found = fixed(self, goal, clock, start, most)
            found = replace(found, problem=self)
            if tol is not None or most < _MAX_PASSES:
                return found
            self._solution = found
        return self._solution

    def scaled(self, start: Solution | None) -> np.ndarray:
        """Return the dual variables of another solution times the factor in [0, 1] with the least D; zeros for none."""
        if start is None or start.alpha is None:
            return np.zeros(self.dual_shape)
        alpha = numeric("MultiTaskProblem.solve: start", start.alpha)
        if alpha.shape != self.dual_shape:
            raise bad("MultiTaskProblem.solve: start", "be a solution for the same rows", f"{alpha.shape} of them")
        from scipy.optimize import minimize_scalar

        penalty = self.relation.conjugate(self._flat(self.images(alpha)))  # R* is homogeneous of degree 2
        found = minimize_scalar(
            lambda s: float(self.conjugates(s * alpha).sum()) + s * s * penalty, bounds=(0.0, 1.0), method="bounded"
        )
        return np.asarray(found.x * alpha)

    @cached_property
    def weighted_norm(self) -> float:
        """Mean of c_t ‖x_i‖^2 over the rows."""
        return max(float(np.mean(np.repeat(self.c, self.federation.sizes) * self.row_norms)), 1e-300)

    def pencil_sigma(self) -> float:
        """Return the least safe sigma' for these rows: `fedconvex.families.multitask.relations.pencil_sigma`."""
        return pencil_sigma(self.factored_mbar, self.statistic("row_space"))

    def _row_space(self, a: int, b: int) -> np.ndarray:
        """Orthonormal basis (rank, d) of the span of the rows a, ..., b - 1."""
        X = self.federation.X[a:b]
        _, s, Vt = np.linalg.svd(X.toarray() if self.federation.is_sparse else X, full_matrices=False)
        return np.asarray(Vt[s > 1e-15 * s.max(initial=0.0)])

    def with_relation(self, relation: Relation) -> MultiTaskProblem:
        """Return the same tasks, loss and normalisation with another relationship."""
        return MultiTaskProblem(self.federation, self.loss, relation, self.normalisation)

    # ------------------------------------------------------------------ inner workings
    def buffers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return room for a flat model, twice for the row numbers of a task, and for a row's scores and step."""
        most, C = int(self.federation.sizes.max()), traits(self.loss).outputs
        return np.empty(self.width), np.empty(most, np.int64), np.empty(most, np.int64), np.empty(3 * C)

    def _flat(self, W: np.ndarray) -> np.ndarray:
        """Models or images as relationships see them, (m, d) or (m, C d)."""
        return W.reshape(len(W), -1)

    def task_scores(self, W: np.ndarray) -> np.ndarray:
        """x_i'w_t of every row, (n,), or (n, C)."""
        fed, several, z = self.federation, W.ndim == 3, []
        for w in W.transpose(1, 0, 2) if several else (W,):
            z.append(np.empty(fed.n))
            dual.task_scores(fed.rows, fed.ptr, np.require(w, requirements=["C", "W"]), z[-1])
        return np.stack(z, axis=1) if several else z[0]

    def _losses(self, z: np.ndarray) -> np.ndarray:
        """Losses of the rows, times their weights, (n,)."""
        return row_values(self.row_loss, z, self.row_labels)

    def _slopes(self, z: np.ndarray) -> np.ndarray:
        S = z.reshape(len(z), -1).copy()
        row_losses.row_slopes(self.row_loss, S, self.row_labels)
        return S.reshape(z.shape)

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """c_t times the sums over the rows of every task, (m,)."""
        return np.asarray(self.c * np.add.reduceat(values, self.federation.ptr[:-1]))

    def _blocks(self) -> Any:
        ptr = self.federation.ptr.tolist()
        return zip(range(len(ptr) - 1), ptr[:-1], ptr[1:], strict=True)

    def __repr__(self) -> str:
        how = f"{self.relation!r}, normalisation={self.normalisation!r}"
        return f"MultiTaskProblem({self.federation!r}, {self.loss!r}, {how})"
