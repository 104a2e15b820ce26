"""Bayesian linear and logistic models over clients: a shared parameter, private ones, and Gaussian posteriors."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedconvex._check import among, array, bad, instance, numeric, real, wrong_type
from fedconvex.federation import Federation
from fedconvex.loss_traits import traits
from fedconvex.problems.gaussian_posterior import ExactPosterior, GaussianPosterior, exact_posterior
from fedconvex.problems.protocol import POSTERIOR, ClientWeights, Measure, check_loss, client_weights
from fedconvex.solvers import damping
from fedconvex.solvers.posteriors.expected_losses import ExpectedLoss, GaussHermite, JaakkolaJordan, NormalNoise
from fedconvex.solvers.posteriors.free_energy import Fit, Rows, minimise, slope_and_curvature
from fedconvex.solvers.posteriors.free_energy_rounding import (
    Block,
    all_parts,
    gradient_bound,
    least_eigenvalue,
    root_error,
)
from fedconvex.solvers.posteriors.gaussians import Gaussian, divergence, natural, pack, unpack
from fedconvex.solvers.posteriors.many_energies import minimise_each
from fedconvex.solvers.solution import DIRECT_SIZE, Solution

_LEAST, _MOST = 1e-30, 1e30  # of precisions, noise, features and labels: products of them stay in double precision


@dataclass(frozen=True)
class PosteriorSolution(Solution):
    """A minimiser of the free energy; ``posterior`` holds it whole, ``w`` its mean.

    Fields are those of `Solution`, w the mean of theta and value the free energy.

    Attributes
    ----------
    w, value, lower, certificate, attained, unique, iterations, seconds, alpha, lower_within, reach, rounding, problem
        As of `Solution`.
    posterior : GaussianPosterior or None
        The minimiser.

    Examples
    --------
    >>> from fedconvex import Logistic
    >>> from fedconvex.datasets import logistic_federation
    >>> from fedconvex.problems import GaussianPosteriorProblem
    >>> fed = logistic_federation(n_clients=2, n_features=2, seed=1).federation
    >>> best = GaussianPosteriorProblem(fed, Logistic()).solve()
    >>> best.w.shape, bool((best.w == best.posterior.mean).all())
    ((2,), True)
    """

    posterior: GaussianPosterior | None = None


class GaussianPosteriorProblem(ClientWeights):
    """The free energy of a Gaussian posterior q(theta) prod_k c_k(w_k), which is minimised.

    theta ~ N(prior_mean, P^{-1}); client k's rows have the likelihood p(y | x'(theta + w_k)), w_k ~ N(0, Q^{-1})
    private, or p(y | x'theta) without private parameters. The objective is

        KL(q || prior) + sum_k KL(c_k || N(0, Q^{-1})) - sum over all rows of E log p(y | a),

    a sum over rows, not a mean: minus it bounds the log evidence from below. It is convex in means and roots of the
    covariances with the modulus tau = min(lambda_min(P), lambda_min(Q)), so that ‖grad‖^2/(2 tau) certifies it, with
    what rounding may do to the gradient. A model w is the mean of theta, (d,), which a client not known yet gets.

    Parameters
    ----------
    federation : Federation
        A row of weight s has s times the log-likelihood.
    loss : Squared or Logistic
        Normal noise, or the logistic model for labels -1/+1.
    prior_precision : float, array (d,) or (d, d)
        P, positive definite; a matrix needs a full covariance.
    prior_mean : array (d,), optional
        Default zeros.
    private_precision : float, array (d,) or (d, d), optional
        Q; None for no private parameters.
    noise_variance : float
        Of the labels, for squared loss only.
    covariance : {"diagonal", "full"}
        Of q and of every c_k. q and the c_k are independent of each other in any case.
    expectation : GaussHermite or JaakkolaJordan, optional
        How the expected log-likelihood of logistic models is taken; default `GaussHermite(64)`.

    Raises
    ------
    ValueError, TypeError
        For another loss, precisions that are not positive definite, or more than 3000 features.

    References
    ----------
    Corinzia, Beuret, Buhmann, "Variational federated multi-task learning", arXiv:1906.06268 (the model); Jaakkola,
    Jordan 1997 (their bound). Convexity and certificate: `fedconvex.solvers.posteriors.free_energy`.

    Examples
    --------
    >>> from fedconvex import Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.problems import GaussianPosteriorProblem
    >>> fed = linear_federation(seed=0).federation
    >>> problem = GaussianPosteriorProblem(fed, Squared(), covariance="full")
    >>> best = problem.solve()
    >>> bool(abs(best.w - problem.exact().mean).max() < 1e-10), best.gap < 1e-8
    (True, True)
    """

    learns = POSTERIOR
    over_sites = "remote.kinds.posteriors"  # what sites answer about it
    l2 = 0.0
    shared = ("prior", "private", "diagonal", "tau", "linear")

    def __init__(
        self,
        federation: Federation,
        loss: Any,
        *,
        prior_precision: Any = 1.0,
        prior_mean: Any = None,
        private_precision: Any = None,
        noise_variance: float = 1.0,
        covariance: str = "diagonal",
        expectation: Any = None,
    ) -> None:
        who = "GaussianPosteriorProblem"
        instance(f"{who}.federation", federation, Federation)
        self.federation, self.loss, self.weights = federation, loss, client_weights(who, None, federation)
        check_loss(who, loss, federation.y)
        among(f"{who}.covariance", covariance, ("diagonal", "full"))
        self.covariance, self.diagonal = covariance, covariance == "diagonal"
        self.noise_variance = real(f"{who}.noise_variance", noise_variance, low=0.0, strict=True)
        if not _LEAST <= self.noise_variance <= _MOST:
            raise bad(f"{who}.noise_variance", f"lie in [{_LEAST:g}, {_MOST:g}]", noise_variance, "scale the labels")
        for name, values in (("features", federation.X), ("labels", federation.y)):
            most = float(
                np.abs(values.data if federation.is_sparse and name == "features" else values).max(initial=0.0)
            )
            if most > _MOST:
                raise bad(f"{who}: {name}", f"be at most {_MOST:g} in size", f"{most:g}", "scale them")
        self.linear = bool(traits(loss).quadratic)
        self.expected = self._likelihood(expectation)
        d = federation.d
        if d > DIRECT_SIZE:
            raise bad(who, f"have at most {DIRECT_SIZE} features, whose Hessians are factored", d)
        mean = np.zeros(d) if prior_mean is None else array(f"{who}.prior_mean", prior_mean, (d,))
        self.prior = Gaussian(mean, self._precision(f"{who}.prior_precision", prior_precision))
        self.private: Any = None
        if private_precision is not None:
            Q = self._precision(f"{who}.private_precision", private_precision)
            self.private = Gaussian(np.zeros(d), Q)
        priors = (self.prior, self.private) if self.private is not None else (self.prior,)
        self.tau = min(
            float(p.precision.min() if self.diagonal else np.linalg.eigvalsh(p.precision)[0]) for p in priors
        )
        self.certified_tau = min(least_eigenvalue(p.precision) for p in priors)
        self._root_errors = [float(root_error(p)) for p in priors]

    def _likelihood(self, expectation: Any) -> ExpectedLoss:
        who = "GaussianPosteriorProblem"
        if self.linear:
            if expectation is not None:
                must = "be left out for squared loss, whose expectation is exact"
                raise wrong_type(f"{who}.expectation", must, f"{expectation!r}")
            return NormalNoise(self.noise_variance)
        if not _logistic(self.loss):
            raise wrong_type(f"{who}.loss", "be Squared() or Logistic()", f"{self.loss!r}")
        if self.noise_variance != 1.0:
            must = "be left out for logistic loss, whose labels have no such noise"
            raise bad(f"{who}.noise_variance", must, self.noise_variance)
        expectation = GaussHermite() if expectation is None else expectation
        if not isinstance(expectation, (GaussHermite, JaakkolaJordan)):
            raise wrong_type(f"{who}.expectation", "be GaussHermite(...) or JaakkolaJordan()", f"{expectation!r}")
        expectation.moments(np.zeros(1), np.ones(1), np.ones(1))
        return expectation

    def _precision(self, who: str, given: Any) -> np.ndarray:
        """Return a precision (d,) or (d, d) as the covariance asks for."""
        d, P = self.federation.d, numeric(who, given)
        if P.ndim == 2 and self.diagonal:
            raise bad(who, "be a number or one for every feature", f"shape {P.shape}", 'pass covariance="full"')
        if P.shape not in ((), (d,), (d, d)):
            raise bad(who, f"have shape (), ({d},) or ({d}, {d})", f"{P.shape}")
        P = np.full(d, P) if P.ndim == 0 else P
        finite = bool(np.isfinite(P).all())
        values = P if P.ndim == 1 else np.linalg.eigvalsh(P) if finite else np.full(1, np.nan)
        if not (finite and values.min() > 0.0):
            raise bad(who, "be positive definite and finite", f"{values.min():g} as its least eigenvalue")
        if not _LEAST <= values.min() <= values.max() <= _MOST:
            raise bad(who, f"lie in [{_LEAST:g}, {_MOST:g}]", f"{values.min():g} to {values.max():g}", "scale the data")
        if P.ndim == 2 and not np.allclose(P, P.T, rtol=1e-12, atol=0.0):
            raise bad(who, "be symmetric", "another matrix")
        P = 0.5 * (P + P.T) if P.ndim == 2 else P
        return P if self.diagonal or P.ndim == 2 else np.diag(P)

    @property
    def model_shape(self) -> tuple[int, ...]:
        """(d,)."""
        return (self.federation.d,)

    @cached_property
    def fingerprint(self) -> str:
        """What checkpoints compare beside rows and loss."""
        h = hashlib.blake2b(self.prior.mean.tobytes() + self.prior.precision.tobytes(), digest_size=16)
        h.update(b"" if self.private is None else self.private.precision.tobytes())
        return f"posterior {self.covariance} {self.expected!r} {h.hexdigest()}"

    def __repr__(self) -> str:
        private = "" if self.private is None else ", private parameters"
        return f"GaussianPosteriorProblem({self.federation!r}, {self.loss!r}, {self.covariance}{private})"

    # ---------------------------------------------------------------- rows

    @cached_property
    def rows(self) -> tuple[Rows, ...]:
        """Rows of every client."""
        fed, out = self.federation, []
        for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True):
            X = fed.X[a:b].toarray() if fed.is_sparse else fed.X[a:b]
            weight = np.ones(b - a) if fed.sample_weight is None else fed.sample_weight[a:b]
            out.append(Rows(X, fed.y[a:b], weight))
        return tuple(out)

    def blocks(self, private: Any = ()) -> Iterator[tuple[Rows, Any]]:
        """Yield the rows of every client with its c_k, None without private parameters."""
        yield from zip(self.rows, private or [None] * self.federation.K, strict=True)

    def statistic(self, name: str) -> list[np.ndarray]:
        """Return what the clients answer before a run: "curvature", X_k'X_k/noise_variance, packed."""
        among("GaussianPosteriorProblem.statistic: name", name, ("curvature",))
        return [pack(H) for H in self._quadratics[0]]

    @cached_property
    def _quadratics(self) -> tuple[list[np.ndarray], list[np.ndarray], float]:
        """A_k, b_k of squared loss, and the negative log-likelihood at zero."""
        if not self.linear:
            raise wrong_type("GaussianPosteriorProblem: loss", "be quadratic to know exact answers", f"{self.loss!r}")
        zero = Gaussian(np.zeros(self.federation.d), np.full(self.federation.d, np.inf))
        parts = [slope_and_curvature(self.expected, r, zero, None, True) for r in self.rows]
        return [H for _, _, H in parts], [-g for _, g, _ in parts], sum(v for v, _, _ in parts)

    # ---------------------------------------------------------------- values and certificates

    def adapted(self, q: Gaussian) -> tuple[Gaussian, ...]:
        """Return the best c_k of every client for a given q; () without private parameters."""
        return self._adapt(q, self.rows) if self.private is not None else ()

    def adapt(self, q: Gaussian, k: int) -> Gaussian:
        """Return the best c_k of one client for a given q."""
        return self._adapt(q, self.rows[k : k + 1])[0]

    def _adapt(self, q: Gaussian, clients: Sequence[Rows]) -> tuple[Gaussian, ...]:
        root, K = q.root, len(clients)
        scores = [q.scores(rows.X, root) for rows in clients]
        held = [rows._replace(mean=mu, variance=v) for rows, (mu, v) in zip(clients, scores, strict=True)]
        found = minimise_each([self.private] * K, None, held, self.expected, [(self.private, ())] * K)
        for fit in found:
            if not isinstance(fit, Fit):
                raise fit
        return tuple(fit.q for fit in found if isinstance(fit, Fit))

    def gradient_parts(self, q: Gaussian, k: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return client k's X'l' (d,) and packed curvature at q, its c_k adapted: its part of the gradient.

        For an array of clients, those of each of them, with a first axis.
        """
        mine, full = [self.rows[j] for j in np.ravel(k)], not self.diagonal
        c = [None] * len(mine) if self.private is None else self._adapt(q, mine)
        found = [slope_and_curvature(self.expected, r, q, ck, full) for r, ck in zip(mine, c, strict=True)]
        slope, H = np.array([g for _, g, _ in found]), np.array([pack(H) for _, _, H in found])
        return (slope[0], H[0]) if np.ndim(k) == 0 else (slope, H)

    def posterior(self, state: Any) -> GaussianPosterior:
        """Return the posterior of a state of VIRTUAL (one trajectory) with the best c_k for it, certified.

        Parameters
        ----------
        state : NamedTuple or Gaussian
            With ``precision`` and ``shift``: `Result.state`, or a `Gaussian`.

        Raises
        ------
        ValueError
            If the precision is not positive definite, or there are several trajectories.
        """
        if not (hasattr(state, "precision") and hasattr(state, "shift")):
            who, cure = "GaussianPosteriorProblem.posterior: state", "pass result.state, or a Gaussian"
            raise wrong_type(who, "have a precision and a shift", f"{type(state).__name__}", cure)
        precision, shift = np.asarray(state.precision), np.asarray(state.shift)
        if not isinstance(state, Gaussian):
            if len(shift) != 1:
                raise bad("GaussianPosteriorProblem.posterior: state", "hold one trajectory", f"{len(shift)}")
            precision, shift = unpack(precision[0], self.federation.d, self.diagonal), shift[0]
        try:
            return self._certified(natural(precision, shift))
        except np.linalg.LinAlgError:
            who = "GaussianPosteriorProblem.posterior: precision"
            raise bad(who, "be positive definite", "another", "take a smaller rho") from None

    def _certified(self, q: Gaussian, private: tuple[Gaussian, ...] | None = None) -> GaussianPosterior:
        """Return q with its free energy and certificate, and with the best c_k unless some are given."""
        c = self.adapted(q) if private is None else private
        q1, each = (Gaussian(*(np.array(v) for v in zip(*some, strict=True))) if some else None for some in ((q,), c))
        stacks = [(g, root_error(g)) for g in (q1, each) if g is not None]
        parts, offs = all_parts(self.expected, self.rows, stacks, not self.diagonal)
        value = float(divergence(q, self.prior) + parts.value.sum())
        value += 0.0 if each is None else float(divergence(each, self.private).sum())
        if not (self.certified_tau > 0.0 and all(np.isfinite(error).all() for _, error in stacks)):
            return GaussianPosterior(self, q, c, value, math.inf, math.inf)
        slope, H, left = parts.slope.sum(axis=0), parts.curvature.sum(axis=0), self._root_errors
        blocks = [(Block(q, self.prior, slope, H, left[0]), stacks[0][1][0])]
        if each is not None:
            blocks.append((Block(each, self.private, *parts[1:], left[-1]), stacks[1][1]))
        size, off = gradient_bound(offs, blocks)
        return GaussianPosterior(self, q, c, value, size * size / (2.0 * self.certified_tau), off)

    def measure(self, precision: np.ndarray, shift: np.ndarray) -> Measure:
        """Free energies of R posteriors in packed natural parameters, with the best c_k, and certified gaps."""
        value, gap = np.full(len(shift), np.inf), np.full(len(shift), np.inf)
        for r in range(len(shift)):
            try:
                found = self._certified(natural(unpack(precision[r], self.federation.d, self.diagonal), shift[r]))
            except (np.linalg.LinAlgError, ValueError):  # not positive definite, or not finite
                continue
            value[r], gap[r] = found.value, found.gap
        return Measure(value, np.where(np.isnan(gap), np.inf, gap))

    # ---------------------------------------------------------------- exact answers

    def solve(self) -> PosteriorSolution:
        """Return the minimiser of the free energy with its certificate and, as ``posterior``, all that it says."""
        return self._solution

    @cached_property
    def _solution(self) -> PosteriorSolution:
        began = time.perf_counter()
        try:
            fit = minimise(self.prior, self.private, self.rows, self.expected)
        except np.linalg.LinAlgError as error:
            who, cure = "GaussianPosteriorProblem.solve", "scale the features, or raise the precisions"
            raise bad(who, "have systems that double precision can solve", f"{error}", cure) from None
        posterior = self._certified(fit.q, fit.c)
        value, lower, spent = posterior.value, posterior.lower_bound, time.perf_counter() - began
        source = "squared gradient over twice the modulus of convexity"
        mean = fit.q.mean.copy()
        return PosteriorSolution(mean, value, lower, source, True, True, 0, spent, problem=self, posterior=posterior)

    def exact(self) -> ExactPosterior:
        """Return the exact posterior of a linear model, with all correlations, and its log evidence.

        Raises
        ------
        TypeError
            For logistic models, whose posterior is not Gaussian.
        """
        return self._exact

    @cached_property
    def _exact(self) -> ExactPosterior:
        return exact_posterior(self.prior, self.private, *self._quadratics)

    def damping(self) -> np.ndarray:
        """Return the eigenvalues of I - T, (K d,): parallel rounds with everybody converge iff |1 - rho kappa| < 1.

        `fedconvex.solvers.damping` derives T, and tells the largest and the best rho from these numbers.

        Raises
        ------
        TypeError
            For logistic models, whose rounds are not linear.
        """
        T = damping.site_map(self._quadratics[0], self.prior.precision, self._private_precision, self.diagonal)
        return np.linalg.eigvals(np.eye(len(T)) - T)

    @property
    def _private_precision(self) -> np.ndarray | None:
        return None if self.private is None else self.private.precision


def _logistic(loss: Any) -> bool:
    """Whether a loss is log(1 + exp(-y z)), as far as some values tell."""
    if traits(loss).several or not traits(loss).probable:
        return False
    return all(
        abs(loss.value(z, y) - math.log1p(math.exp(-y * z))) < 1e-12 for z in (-3.0, 0.5, 2.0) for y in (-1.0, 1.0)
    )
