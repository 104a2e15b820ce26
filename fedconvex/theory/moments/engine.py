"""Moments: the engine's settings, runs and limits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from fedconvex._check import among, bad, finite, flag, instance, numeric, raw, real, vector, whole, wrong_type
from fedconvex.constants import noise_factor
from fedconvex.loss_traits import traits
from fedconvex.problems import Problem
from fedconvex.problems.protocol import drift_of, has_one_model
from fedconvex.theory.moments import weights
from fedconvex.theory.moments.least_squares import LeastSquares
from fedconvex.theory.moments.limit import limit, spectral_radius
from fedconvex.theory.moments.round import Round
from fedconvex.theory.moments.traces import GradientTrace, MomentTrace, ShadowTrace, SteadyState
from fedconvex.theory.moments.weights import average, mixing_of, per_client
from fedconvex.traits import traits_of

_KRON_LIMIT = 12  # dimension up to which the (d+1)^2 x (d+1)^2 matrix of a round is formed
_MARGIN = 1e-12  # spectral radii within this of one count as one


class Moments:
    """Exact expectation of FedAvg-type methods on a least-squares problem.

    Parameters
    ----------
    problem : Problem
        With squared loss. The drift of a `MovingTarget` is taken over.
    step_size : float or schedule
        eta; or an object whose ``at(t)`` is eta_t, like `Decay`: t counts local steps, or rounds if its ``by_round`` is
        true.
    local_steps : int or array (K,)
        E_k.
    batch_size : int or array (K,), optional
        B_k; default all rows.
    replacement : bool
        Draw the rows of a batch with replacement (then all n_k rows are a random batch, too).
    batch_draw : {"uniform", "weighted"}
        Rows are drawn uniformly and their gradients scaled, or by weight (with replacement only).
    participation : int, float, scheme, WeightMoments or Mixing
        Clients per round (a number or a share, uniform without replacement), a scheme with an attribute ``clients``
        (the same) or ``draws`` (so many draws with replacement with probabilities p_k), or moments of your own;
        default full participation.
    step_factor : array (K,), optional
        Client k takes steps factor_k eta; Dynamic FedAvg has 1/E_k. Default 1.
    server_step : float
        beta; 1 is plain averaging.
    kron : bool, optional
        Form the matrix of a round (True) or apply it as an operator (False). Default: form it up to d = 12 for constant
        steps.

    Raises
    ------
    TypeError, ValueError
        If the loss is not squared, on settings out of range, and for samples with unequal weights that are too many to
        enumerate.

    Examples
    --------
    Two clients with one row each, f_1 = (w - 1)^2/2 and f_2 = (w - 3)^2/2, one of which takes part in each round: w
    jumps half the way to 1 or 3, so that in the limit E w = 2, and the variance v satisfies v = v/4 + 1/4.

    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.theory.moments import Moments
    >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0]), ([[1.0]], [3.0])]), Squared())
    >>> moments = Moments(problem, step_size=0.5, participation=1)
    >>> moments.run(rounds=2).deviation
    array([4.    , 1.25  , 0.5625])
    >>> round(moments.steady_state().deviation, 12), round(moments.spectral_radius, 12)
    (0.333333333333, 0.5)
    """

    def __init__(
        self,
        problem: Problem,
        *,
        step_size: Any,
        local_steps: Any = 1,
        batch_size: Any = None,
        replacement: bool = False,
        batch_draw: str = "uniform",
        participation: Any = None,
        step_factor: Any = None,
        server_step: float = 1.0,
        kron: bool | None = None,
    ) -> None:
        if not has_one_model(problem):
            raise wrong_type("Moments.problem", "be a Problem", type(problem).__name__)
        if problem.penalty is not None:
            raise wrong_type(
                "Moments.problem", "have no penalty (proximal maps are not affine)", f"{problem.penalty!r}"
            )
        if not traits(problem.loss).quadratic:
            cure = "estimate other losses by Monte Carlo"
            raise wrong_type("Moments.problem", "have squared loss, whose moments close", f"{problem.loss!r}", cure)
        self.problem, self.d, self.K = problem, problem.federation.d, problem.federation.K
        self.local_steps = per_client("Moments.local_steps", local_steps, self.K)
        ones = np.ones(self.K)
        factor = ones if step_factor is None else vector("Moments.step_factor", step_factor, self.K)
        if (factor < 0.0).any():
            raise bad("Moments.step_factor", "be nonnegative", f"{factor.min():g}")
        self.batch_size = _batches(batch_size, replacement, problem)
        phi = np.broadcast_to(noise_factor(problem.federation.sizes, self.batch_size, replacement), (self.K,))
        step = _checked_step(step_size, self.local_steps)
        beta = real("Moments.server_step", server_step, low=0.0, strict=True)
        mixing = mixing_of(participation, problem)
        among("Moments.batch_draw", batch_draw, ("uniform", "weighted"))
        if batch_draw == "weighted" and not replacement:
            raise bad("Moments.batch_draw", "be 'uniform', or come with replacement=True", "'weighted'")
        data = LeastSquares.of(problem, batch_draw == "weighted")
        self.round = Round(data, mixing, phi, self.local_steps, step, factor, beta)
        self.w_star = self.round.data.w_star
        small = self.d <= _KRON_LIMIT and self.round.constant
        self.kron = small if kron is None else flag("Moments.kron", kron)

    @classmethod
    def of(cls, method: Any, problem: Problem, *, kron: bool | None = None) -> Moments:
        """Read the settings of a method off what it declares about its rounds (`fedconvex.traits.Traits`).

        `FedAvg`, `FedSGD` and `DynamicFedAvg` are read, and `FedProx` and `FedSAM` without their terms.

        Raises
        ------
        ValueError, TypeError
            If the method's round is not an average of independent plain local steps: other methods, momentum, adaptive
            optimisers, and batches from passes in random order.

        Examples
        --------
        >>> from fedconvex import FedAvg, Problem, Squared
        >>> from fedconvex.datasets import linear_federation
        >>> from fedconvex.theory.moments import Moments
        >>> problem = Problem(linear_federation(model_shift=1.0, seed=0).federation, Squared())
        >>> moments = Moments.of(FedAvg(step_size=0.1, local_steps=5, batch_size=1, participation=3), problem)
        >>> trace = moments.run(rounds=100)
        >>> bool(trace.suboptimality[-1] < trace.suboptimality[0]), moments.stable
        (True, True)
        """
        instance("Moments.of: problem", problem, Problem)
        t, name = traits_of(method, problem), type(method).__name__
        if t.local is None:
            cure = "pass its settings to Moments(...) if its round is an average of such steps"
            raise wrong_type("Moments.of: method", "declare local steps", name, cure)
        if not t.local.plain:
            raise bad(f"Moments.of: {name}", "take plain steps along gradients, and nothing else", f"{method!r}")
        if t.server_step is None:
            must = "average, or move part of the way to the average without momentum"
            raise bad(f"Moments.of: {name}", must, f"{method!r}")
        if not t.local.fresh:
            got = "batches that depend on each other or differ in size"
            raise bad(f"Moments.of: {name}", "draw every batch anew", got, "use local_steps= instead of epochs=")
        return cls(
            problem,
            step_size=t.local.step_size,
            local_steps=t.local.steps,
            batch_size=t.local.batch_size,
            replacement=t.local.replacement,
            batch_draw="weighted" if t.local.by_weight else "uniform",
            participation=weights.of_sampling(t.sampling, t.participants, problem),
            step_factor=t.local.factor,
            server_step=t.server_step,
            kron=kron,
        )

    # ------------------------------------------------------------------ along the run
    def run(self, rounds: int, *, start: Any = None, drift: Any = None, drift_before: bool = False) -> MomentTrace:
        """Return the exact moments of w_0, ..., w_T.

        Where the second moment overflows, it is infinite from there on.

        Parameters
        ----------
        rounds : int
            T.
        start : array (d,), optional
            w_0; default 0.
        drift : array (d, d), optional
            Covariance Q of the minimiser's random walk; default that of a `MovingTarget`, or none.
        drift_before : bool
            The minimiser moves before each round instead of after it.

        Raises
        ------
        ValueError, TypeError
            If rounds is negative.

        Examples
        --------
        >>> import numpy as np
        >>> from fedconvex import Federation, Problem, Squared
        >>> from fedconvex.theory.moments import Moments
        >>> problem = Problem(Federation.from_clients([([[1.0]], [1.0])]), Squared())
        >>> moments = Moments(problem, step_size=0.5)
        >>> moments.run(2, drift=np.eye(1)).deviation, moments.run(2, drift=np.eye(1), drift_before=True).deviation
        (array([1.    , 1.25  , 1.3125]), array([1.   , 0.5  , 0.375]))
        """
        T = whole("Moments.run: rounds", rounds, low=0)
        d, trace, Z = self.d, [], np.empty(0)
        for Z, _ in self._states(T, start, drift, drift_before):
            trace.append((*self.round.data.values(Z), Z[:d, d].copy()))
        sub, dev, mean = (np.array(column) for column in zip(*trace, strict=True))
        return MomentTrace(sub, dev, mean, Z[:d, :d])

    def shadow(
        self, rounds: int, *, start: Any = None, drift: Any = None, drift_before: bool = False, everyone: bool = False
    ) -> ShadowTrace:
        """Return the exact moments of the averaged local models inside the rounds.

        Parameters
        ----------
        rounds, start, drift, drift_before
            As for `run`.
        everyone : bool
            Average inside the rounds over all clients with weights p_k, sampled or not, as the analysis of Li et al.
            (2020) does; the run itself goes on with the sample. Default: the average over the sample.

        Raises
        ------
        ValueError
            If clients take different numbers of local steps.
        """
        T, d = whole("Moments.shadow: rounds", rounds, low=1), self.d
        if np.ptp(self.local_steps) > 0:
            got = f"{self.local_steps.min()} to {self.local_steps.max()}"
            raise bad("Moments.shadow", "have equally many local steps everywhere", got)
        mixing = (
            weights.everyone(self.problem.weights) if flag("Moments.shadow: everyone", everyone) else self.round.mixing
        )
        if mixing.left is not None:
            raise bad("Moments.shadow", "have weights that sum to one", "scaled weights", "pass everyone=True")
        Z = np.array([Z for _, Z in islice(self._states(T, start, drift, drift_before), T)])
        upper = np.triu_indices(d + 1)
        if self.round.constant and T > upper[0].size:  # moments inside a round are linear in those at its beginning
            inside = [self._inside(mixing, unit, 0) for unit in _symmetric_units(d + 1)]
            with np.errstate(over="ignore", invalid="ignore"):
                out = np.tensordot(Z[:, upper[0], upper[1]], inside, 1)
            out[~np.isfinite(Z).all(axis=(1, 2))] = np.inf
        else:
            out = np.array([self._inside(mixing, S, t) for t, S in enumerate(Z)])
        out = np.where(np.isfinite(out), out, np.inf).transpose(1, 0, 2)
        out[2, :, 0] = 0.0
        return ShadowTrace(out[0], out[1], np.maximum(out[2], 0.0))

    def _inside(self, mixing: weights.Mixing, Z: np.ndarray, t: int) -> np.ndarray:
        """Return E F - F*, E‖e‖^2 and the spread of the clients after 0, ..., tau steps of round t, (3, tau + 1)."""
        d, out = self.d, []
        with np.errstate(over="ignore", invalid="ignore"):
            for first, second in self.round.partial(Z, t):
                sub, dev = self.round.data.values(average(mixing, Z, first, second))
                out.append((sub, dev, mixing.mean @ np.trace(second[:, :d, :d], axis1=1, axis2=2) - dev))
        return np.array(out).T

    def gradients(
        self, rounds: int, *, start: Any = None, drift: Any = None, drift_before: bool = False
    ) -> GradientTrace:
        """Return the exact second moment and variance of every client's gradients along the run.

        Parameters
        ----------
        rounds, start, drift, drift_before
            As for `run`.

        Raises
        ------
        ValueError, TypeError
            If rounds is below 1.
        """
        T, tau = whole("Moments.gradients: rounds", rounds, low=1), int(self.local_steps.max())
        second, variance = np.full((2, T, tau, self.K), np.nan)
        for t, (_, Z) in enumerate(self._states(T, start, drift, drift_before)):
            if t == T:
                break
            with np.errstate(over="ignore", invalid="ignore"):
                for j, (_, S) in enumerate(self.round.partial(Z, t)):
                    for k in np.flatnonzero(self.local_steps > j).tolist():
                        values = self.round.gradient(k, S[k])
                        second[t, j, k], variance[t, j, k] = np.where(np.isnan(values), np.inf, values)
        return GradientTrace(second, variance)

    # ------------------------------------------------------------------ in the limit
    @cached_property
    def spectral_radius(self) -> float:
        """Spectral radius of the linear map of the first and second moments over one round (constant steps)."""
        self._need_constant("spectral_radius")
        return spectral_radius(self.round, self.kron)

    @property
    def stable(self) -> bool:
        """Whether the second moments converge, from every start."""
        return self.spectral_radius < 1.0 - _MARGIN

    def steady_state(self, *, drift: Any = None, drift_before: bool = False) -> SteadyState:
        """Return the limits of the moments.

        Parameters
        ----------
        drift, drift_before
            As for `run`.

        Raises
        ------
        ValueError
            If the steps decay, or the second moments do not converge.
        """
        self._need_constant("steady_state")
        Q, d = self._drift(drift), self.d
        if not self.stable:
            got = f"{self.spectral_radius:.12g}"
            cure = "take a smaller step size" if self.spectral_radius > 1.0 + _MARGIN else "add l2: F is flat somewhere"
            raise bad("Moments.steady_state", "be stable, with spectral radius below 1", got, cure)
        Z = limit(self.round, Q, flag("Moments: drift_before", drift_before), self.kron)
        sub, dev = self.round.data.values(Z)
        return SteadyState(dev, sub, Z[:d, d].copy(), Z[:d, :d], self.spectral_radius)

    def _states(self, T: int, start: Any, drift: Any, before: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield E[z z'] as measured, and as the next round finds it (after a drift before it), for t = 0, ..., T."""
        w0 = np.zeros(self.d) if start is None else vector("Moments: start", start, self.d)
        Q, before = self._drift(drift), flag("Moments: drift_before", before)
        z = np.append(w0 - self.w_star, 1.0)
        Z = np.outer(z, z)
        for t in range(T + 1):
            yield Z, Z + Q if before else Z
            if t == T:
                return
            with np.errstate(over="ignore", invalid="ignore"):
                Z = self._next(Z + Q, t) if before else self._next(Z, t) + Q
            if not np.isfinite(Z).all():
                Z = np.full_like(Z, np.inf)

    def _next(self, Z: np.ndarray, t: int) -> np.ndarray:
        Z = (self.round.matrix(t) @ Z.ravel()).reshape(Z.shape) if self.kron else self.round.apply(Z, t)
        Z = 0.5 * (Z + Z.T)
        Z[-1, -1] = 1.0
        return Z

    def _drift(self, drift: Any) -> np.ndarray:
        """Q padded with zeros, (D, D)."""
        d = self.d
        out = np.zeros((d + 1, d + 1))
        if drift is None:
            moves = drift_of(self.problem)
            if moves is not None:
                out[:d, :d] = moves
            return out
        Q = numeric("Moments: drift", drift)
        if Q.shape != (d, d):
            raise bad("Moments: drift", f"be a covariance of shape {(d, d)}", f"shape {Q.shape}")
        finite("Moments: drift", Q)
        scale = max(float(np.abs(Q).max()), 1e-300)
        low = float(np.linalg.eigvalsh(0.5 * (Q + Q.T))[0])
        if np.abs(Q - Q.T).max() > 1e-10 * scale or low < -1e-10 * scale:
            raise bad("Moments: drift", "be symmetric positive semidefinite", f"least eigenvalue {low:g}")
        out[:d, :d] = 0.5 * (Q + Q.T)
        return out

    def _need_constant(self, what: str) -> None:
        if not self.round.constant:
            raise bad(f"Moments.{what}", "have a constant step size", f"{self.round.step_size!r}")


def _checked_step(step_size: Any, local_steps: np.ndarray) -> Any:
    """Return one step size, or a schedule that fits the local steps."""
    if not hasattr(step_size, "at"):
        if raw("Moments.step_size", step_size).ndim > 0:
            raise bad("Moments.step_size", "be one number or a schedule", f"{step_size!r}", "one Moments for each")
        return real("Moments.step_size", step_size, low=0.0, strict=True)
    if not getattr(step_size, "by_round", False) and np.ptp(local_steps) > 0:
        got = f"{local_steps.min()} to {local_steps.max()}"
        cure = "use Decay(..., by_round=True)"
        raise bad("Moments.local_steps", "be equal for a step size that counts local steps", got, cure)
    return step_size


def _batches(batch_size: Any, replacement: bool, problem: Problem) -> np.ndarray:
    """Return B_k (K,), which fit unless rows are drawn with replacement."""
    fed = problem.federation
    sizes = np.asarray(fed.sizes)
    B = sizes if batch_size is None else per_client("Moments.batch_size", batch_size, fed.K)
    if not flag("Moments.replacement", replacement) and (B > sizes).any():
        k = int(np.argmax(B > sizes))
        must = f"be at most {sizes[k]}, the rows of client {fed.labels[k]}"
        raise bad("Moments.batch_size", must, int(B[k]), "or pass replacement=True")
    return B


def _symmetric_units(D: int) -> np.ndarray:
    """Return the symmetric matrices that have 1 at one place of the upper triangle, and below it, row by row."""
    at = np.stack(np.triu_indices(D), axis=1)
    out = np.zeros((len(at), D, D))
    for unit, (i, j) in zip(out, at, strict=True):
        unit[i, j] = unit[j, i] = 1.0
    return out
