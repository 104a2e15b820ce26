"""Cox's partial likelihood as a federated problem: every client is a stratum, and no event time leaves it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import among, bad, numeric, real, wrong_type
from fedconvex.constants.default_steps import Smoothness
from fedconvex.families.survival.certified_fit import Certified, certified, farthest, fitted, value_rounding
from fedconvex.families.survival.risk_sets import Pass, RiskSets
from fedconvex.families.survival.survival_rows import SurvivalFederation
from fedconvex.federation import Federation
from fedconvex.problems.protocol import COEFFICIENTS, ClientWeights, Derivatives, Measure, client_weights
from fedconvex.solvers.certificates.gaps import gaps_above
from fedconvex.solvers.solution import Solution


class PartialLikelihood(NamedTuple):
    """The negative logarithm of Cox's partial likelihood, with Efron's or Breslow's ties: no loss of single rows."""

    ties: str = "efron"

    @property
    def lower_bound(self) -> float:
        """A number that no value is below."""
        return 0.0

    def value(self, z: Any, y: Any) -> float:
        """Refuse: what a row contributes depends on the rows at risk with it."""
        raise wrong_type("PartialLikelihood", "be minimised as a SurvivalProblem", "single rows")

    def check_labels(self, y: Any) -> None:
        """Refuse to be the loss of another problem."""
        self.value(None, y)


class SurvivalProblem(ClientWeights):
    """F(w) = sum_k p_k f_k(w), f_k = N_k/n_k, N_k the negative log partial likelihood of client k; n F is that of all.

    Risk sets lie within a client, and within a stratum if rows have one: the baseline hazards of all strata are free.
    Sums over clients suffice, so that no event time leaves a client.

    Parameters
    ----------
    federation : SurvivalFederation
        Rows with times, events, and if need be entry times and strata.
    ties : {"efron", "breslow"}

    Raises
    ------
    ValueError, TypeError
        If the federation is no SurvivalFederation, or no client has an event.

    Notes
    -----
    With theta_r = sum_{R(t)} e^z_j - (r/d) sum_{D(t)} e^z_j for d tied events D(t) in the risk set R(t),
    N_k = sum_t (sum_{r < d} log theta_r - sum_{D(t)} z_i) after Efron (1977); Breslow (1974) has theta_0 for all r.
    A row is at risk at t if entry < t <= time. Event times are tied if they are equal as numbers.

    References
    ----------
    Cox, "Regression models and life-tables", JRSS B 34 (1972); "Partial likelihood", Biometrika 62 (1975). Efron, "The
    efficiency of Cox's likelihood function for censored data", JASA 72 (1977).

    Examples
    --------
    Two strata of two rows, one event each: N = 2 log(1 + e^-w) + ... has its minimum where both events are balanced.

    >>> import numpy as np
    >>> from fedconvex.problems import SurvivalFederation, SurvivalProblem, outcomes
    >>> y = outcomes([1.0, 2.0, 1.0, 2.0], [1, 0, 1, 0])
    >>> fed = SurvivalFederation.from_arrays([[1.0], [0.0], [0.0], [1.0]], y, clients=["a", "a", "b", "b"])
    >>> problem = SurvivalProblem(fed)
    >>> best = problem.solve()
    >>> abs(float(best.w[0])) < 1e-12, round(float(best.value * fed.n), 6), best.attained
    (True, 1.386294, True)
    """

    learns = COEFFICIENTS
    over_sites = "families.survival.sites"  # what sites answer about it
    l2 = 0.0
    penalty = None
    starts = "the model"
    shared = ("penalty", "size")

    def __init__(self, federation: Federation, ties: str = "efron") -> None:
        among("SurvivalProblem.ties", ties, ("efron", "breslow"))
        who = "SurvivalProblem.federation"
        if not isinstance(federation, Federation) or not (
            isinstance(federation, SurvivalFederation) or not federation.complete
        ):
            cure = "SurvivalFederation.around(federation, event) takes targets as times"
            raise wrong_type(who, "be a SurvivalFederation", type(federation).__name__, cure)
        self.federation: Any = federation
        self.loss, self.efron = PartialLikelihood(ties), ties == "efron"
        if federation.complete and not self.event.any():
            raise bad(who, "have an event", f"{federation.n} censored rows")
        self.weights = client_weights("SurvivalProblem", None, federation)
        self._solution: Solution | None = None
        self._passed: tuple[bytes, list[Pass]] = (b"", [])

    # ------------------------------------------------------------------ shapes and words

    @property
    def size(self) -> int:
        """Number of coefficients."""
        return int(self.federation.d)

    @property
    def model_shape(self) -> tuple[int, ...]:
        """(p,)."""
        return (self.size,)

    @property
    def fingerprint(self) -> str:
        """What checkpoints compare beside rows: how ties are treated."""
        return f"partial likelihood, {self.loss.ties}"

    @property
    def words(self) -> str:
        """What it consists of, as reports say it."""
        fed, events = self.federation, int(self.event.sum())
        return (
            f"{fed.K} clients, {fed.n} rows, {events} event{'s' * (events != 1)}, {fed.d} feature{'s' * (fed.d != 1)}, "
            f"Cox's partial likelihood ({self.loss.ties.capitalize()})"
        )

    def __repr__(self) -> str:
        return f"SurvivalProblem({self.federation!r}, ties={self.loss.ties!r})"

    @property
    def event(self) -> np.ndarray:
        """Whether each row's event was seen, (n,); a server knows of none, and has rows of zeros at most."""
        return np.asarray(getattr(self.federation, "event", np.zeros(self.federation.y.size, dtype=bool)))

    @cached_property
    def risk(self) -> RiskSets:
        """The rows sorted by client, stratum and time."""
        fed = self.federation
        return RiskSets(fed, self.event, getattr(fed, "entry", None), getattr(fed, "strata", None))

    @cached_property
    def client_events(self) -> np.ndarray:
        """Events of every client, (K,)."""
        seen = np.concatenate([[0], np.cumsum(self.event)])
        return np.diff(seen[self.federation.ptr])

    @cached_property
    def least(self) -> float:
        """A lower bound of N: sum of log d! over the event times (Efron), or of d log d (Breslow)."""
        from scipy.special import gammaln

        d = self.risk.deaths.astype(np.float64)
        return float((gammaln(d + 1.0) if self.efron else d * np.log(d)).sum()) * (1.0 - 1e-13)

    def statistic(self, name: str) -> Sequence[np.ndarray]:
        """Refuse: clients are asked for nothing before the first round."""
        raise bad("SurvivalProblem.statistic", "be asked for nothing", repr(name))

    def flatten(self, w: Any) -> tuple[np.ndarray, bool]:
        """Return models as (R, p), and whether w was a single one."""
        a = numeric("SurvivalProblem: model w", w, copy=False)
        if a.size == 0 or (a.shape != self.model_shape and a.shape[1:] != self.model_shape):
            raise bad("SurvivalProblem: model w", f"have shape ({self.size},), or (R, {self.size})", f"{a.shape}")
        return np.ascontiguousarray(a).reshape(-1, self.size), a.ndim == 1

    # ------------------------------------------------------------------ values

    def sweep(self, k: int, w: np.ndarray, second: bool = True, omega: Any = None) -> Pass:
        """Return what one pass over client k's rows finds at a model (p,): N_k, its derivatives, and of each row."""
        return self.risk.sweep(k, w, self.efron, omega, second)

    def passes(self, w: np.ndarray) -> list[Pass]:
        """Return a pass of every client at a model (p,); those of the last model are kept."""
        key, (last, parts) = np.asarray(w).tobytes(), self._passed
        if key != last:
            parts = [self.sweep(k, w) for k in range(self.federation.K)]
            self._passed = (key, parts)
        return parts

    def client_derivatives(self, W: np.ndarray, clients: np.ndarray) -> Derivatives:
        """Return f_k with gradients and Hessians of R models (R, p) at clients (R, m), from these clients' rows."""
        R, m = clients.shape
        out = Derivatives(np.empty((R, m)), np.empty((R, m, self.size)), np.empty((R, m, self.size, self.size)))
        for r in range(R):
            for i, k in enumerate(clients[r].tolist()):
                found, n = self.sweep(k, W[r]), float(self.federation.masses[k])
                out.values[r, i], out.gradients[r, i], out.hessians[r, i] = (part / n for part in found[:3])
        return out

    def _first(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return N_k (R, K) and gradients (R, K, p) of R models."""
        K = self.federation.K
        values, G = np.empty((len(W), K)), np.empty((len(W), K, self.size))
        for r, w in enumerate(W):
            for k in range(K):
                values[r, k], G[r, k] = self.sweep(k, w, second=False)[:2]
        return values, G

    def value(self, w: Any) -> Any:
        """F(w): a float, or (R,) for R models."""
        W, single = self.flatten(w)
        out = self._first(W)[0].sum(axis=1) / self.federation.masses.sum()
        return float(out[0]) if single else out

    def gradient(self, w: Any) -> np.ndarray:
        """Gradient of F, in the shape of w."""
        W, single = self.flatten(w)
        G = self._first(W)[1].sum(axis=1) / self.federation.masses.sum()
        return G[0] if single else G

    def hessian(self, w: Any) -> np.ndarray:
        """Hessian of F at one model, (p, p)."""
        W, single = self.flatten(w)
        if not single:
            raise bad("SurvivalProblem.hessian: w", "be one model", f"{len(W)} models")
        return np.asarray(self.totals(W[0])[2] / self.federation.masses.sum())

    def client_values(self, w: Any) -> np.ndarray:
        """f_k(w) of every client: (K,), or (R, K)."""
        W, single = self.flatten(w)
        out = self._first(W)[0] / self.federation.masses
        return out[0] if single else out

    def client_gradients(self, w: Any) -> np.ndarray:
        """Gradients of every f_k: (K, p), or (R, K, p)."""
        W, single = self.flatten(w)
        G = self._first(W)[1] / self.federation.masses[:, None]
        return G[0] if single else G

    def totals(self, w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return N, its gradient (p,) and its Hessian (p, p): sums over all clients at a model (p,)."""
        parts = self.passes(w)
        N, g, H = (sum(part[i] for part in parts) for i in range(3))  # type: ignore[misc]
        return float(N), np.asarray(g), np.asarray(H)

    def client_spreads(self, inverses: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """Return bounds of (d'A d)^(1/2) over differences d within risk sets, (R, m), for A (R, p, p).

        With A the inverse of the summed Hessian, their maximum is the kappa of certificates, with self-concordance 1.
        """
        out = np.empty(clients.shape)
        for r, A in enumerate(inverses):
            lam, V = np.linalg.eigh(0.5 * (A + A.T))
            root = V * np.sqrt(np.maximum(lam, 0.0))
            out[r] = [2.0 * farthest(self.risk.X[slice(*self.risk.part(k)[:2])], root) for k in clients[r].tolist()]
        return out

    # ------------------------------------------------------------------ certificates and solutions

    def certificate(self, w: Any) -> Certified:
        """Return what self-concordance certifies of N(w) - min N, rounding included, at one model (p,)."""
        return certified(self, self.flatten(w)[0][0])

    @cached_property
    def lower_bound(self) -> float:
        """A certified lower bound of min F."""
        return float(self.solve().lower)

    def measure(self, w: np.ndarray) -> Measure:
        """Values of R models and certified gaps, F(w) - min F <= gap."""
        W, _ = self.flatten(w)
        with np.errstate(all="ignore"):  # of runs that diverge
            value = np.asarray(self.value(W))
            off = np.array([self.rounding(v) for v in W]) / self.federation.masses.sum()
        lower = np.full(len(W), self.lower_bound)
        return Measure(value, gaps_above("SurvivalProblem.measure", self, value, lower, off))

    def rounding(self, w: np.ndarray) -> float:
        """Return how far the computed N(w) may be from the true one, at a model (p,)."""
        return value_rounding(self, w)

    def solve(self, tol: float | None = None, start: Any = None) -> Solution:
        """Minimise F by damped Newton steps, and certify the result.

        Parameters
        ----------
        tol : float, optional
            Stop once N(w) - min N <= tol, estimated by half the squared Newton decrement. Default: as far as rounding
            allows; that solution is kept.
        start : array (p,), optional
            Default zero.

        Returns
        -------
        Solution
            Of F, with ``attained`` False where no minimiser is known to exist: the likelihood is monotone, which
            `monotone_direction` shows, or columns are collinear within all risk sets.

        Raises
        ------
        ValueError, TypeError
            If tol is not positive.
        """
        goal = None if tol is None else real("SurvivalProblem.solve: tol", tol, low=0.0, strict=True)
        w = np.zeros(self.size) if start is None else self.flatten(start)[0][0].copy()
        if self._solution is None:
            found = fitted(self, w, goal, time.perf_counter())
            if tol is not None or start is not None:
                return found
            self._solution = found
        return self._solution

    def step_smoothness(self, exact: bool, refuse: Callable[..., ValueError]) -> Smoothness:
        """Return bounds of the smoothness of F and of the roughest client: variances within risk sets are M^2/4."""
        bounds = self.client_events * (0.25 * self.risk.client_diameters**2)
        top = float(bounds.sum() / self.federation.masses.sum())
        rough = float((bounds / self.federation.masses).max())
        return Smoothness(top, rough, rough, False)
