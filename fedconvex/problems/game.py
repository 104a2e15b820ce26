"""Invariant risk minimisation games: every client is a player, and none should gain by moving alone."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from fedconvex._check import among, bad, real, wrong_type
from fedconvex.federation import Federation
from fedconvex.kernels import row_losses
from fedconvex.kernels.domain_sums import domains_of
from fedconvex.problems.empirical_risk import Problem
from fedconvex.problems.invariant import second_moments
from fedconvex.problems.protocol import EQUILIBRIUM, ClientWeights, Measure
from fedconvex.solvers.certificates.row_rounding import allowances
from fedconvex.solvers.environments import games
from fedconvex.solvers.environments.games import Equilibrium, Players

_EPS = float(np.finfo(np.float64).eps)


class GameProblem(ClientWeights):
    """Player k chooses w^k, ‖w^k‖_inf <= B, to minimise R^k(s) of the common predictor s = sum_k w^k, or their average.

    R^k is the mean loss over client k's rows. What is sought are strategies w (K, d) that are in equilibrium: nobody
    gains by changing alone. No sum of the risks is minimised.

    Parameters
    ----------
    federation : Federation
        Every client is a player, and its rows an environment.
    loss : loss
        Smooth, for one output. Best responses, `equilibria` and `uncorrelated` are for quadratic ones.
    bound : float
        B. Without a box, players whose least-squares coefficients differ have no equilibrium.
    predictor : str
        "sum" or "average". The average of strategies in boxes of B is the sum of strategies in boxes of B/K.

    Raises
    ------
    ValueError, TypeError
        If several clients share a domain, the loss has several outputs or no curvature, or the bound is not positive.

    References
    ----------
    Ahuja, Shanmugam, Varshney, Dhurandhar, "Invariant risk minimization games", ICML 2020 (F-IRM, averages); Ahuja,
    Shanmugam, Dhurandhar, arXiv:2010.15234 (linear regression games, sums and boxes). Certificates:
    `fedconvex.solvers.environments.games`.

    Examples
    --------
    The chain x -> y -> z of two environments: nearly the causal coefficients (1, 0).

    >>> from fedconvex import Squared
    >>> from fedconvex.datasets import chain_moments, federation_of_moments
    >>> from fedconvex.problems import GameProblem
    >>> problem = GameProblem(federation_of_moments(*chain_moments((0.2, 2.0))), Squared(), bound=2.0)
    >>> [found.predictor.round(6).tolist() for found in problem.equilibria()]
    [[0.961538, 0.038462]]
    """

    learns = EQUILIBRIUM
    minimised = False  # strategies stay in their boxes, and nobody minimises the value
    over_sites = "remote.kinds.games"  # what sites answer about it
    l2 = 0.0
    shared = ("bound", "share", "minimised")

    def __init__(self, federation: Federation, loss: Any, bound: float, predictor: str = "sum") -> None:
        self.bound = real("GameProblem.bound", bound, low=0.0, strict=True)
        among("GameProblem.predictor", predictor, ("sum", "average"))
        self.kind = predictor
        self.risk = Problem(federation, loss)
        if self.risk.traits.several:
            raise wrong_type("GameProblem.loss", "have one output", f"{loss!r}", "use Logistic or Squared")
        self.risk.need_curvature("GameProblem")
        self.federation, self.loss, self.weights = federation, loss, self.risk.weights
        self.share = 1.0 if predictor == "sum" else 1.0 / federation.K
        held = domains_of(federation).held
        if ((held > 0).sum(axis=0) > 1).any():
            got, cure = f"{federation.K} clients of {held.shape[1]}", "name clients by their domain"
            raise bad("GameProblem.federation", "have one client per domain: a player each", got, cure)

    @property
    def model_shape(self) -> tuple[int, ...]:
        """(K, d)."""
        return (self.federation.K, self.federation.d)

    @property
    def traits(self) -> Any:
        """What the loss declares."""
        return self.risk.traits

    @property
    def fingerprint(self) -> str:
        """What checkpoints compare beside rows and loss."""
        return f"game {self.bound!r} {self.kind}"

    def __repr__(self) -> str:
        return f"GameProblem({self.federation!r}, {self.loss!r}, bound={self.bound:g}, predictor={self.kind!r})"

    def statistic(self, name: str) -> list[np.ndarray]:
        """Return what the clients answer before a run: "smoothness", L_k of the mean loss."""
        among("GameProblem.statistic: name", name, ("smoothness",))
        return list(np.asarray(self.risk.statistic("smoothness")))

    # ---------------------------------------------------------------- players

    @cached_property
    def players(self) -> Players:
        """Second moments of the environments in units of strategies, for quadratic loss.

        Raises
        ------
        TypeError
            For another loss.
        ValueError
            If features or targets are so large or small that products leave double precision.
        """
        if not self.traits.quadratic:
            cure = "take gradient steps, and the certificate"
            raise wrong_type("GameProblem.players: loss", "be quadratic", f"{self.loss!r}", cure)
        fed, a = self.federation, self.share
        code = np.repeat(np.arange(fed.K), np.diff(fed.ptr))
        S, b, c = second_moments("GameProblem", fed, code, fed.masses)
        return Players(a * a * S, a * b, c, self.bound, float(fed.n))

    def best_response(self, k: int, own: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return player k's best response (d,) to a sum of the others' strategies, from its own strategy."""
        S, b = self.players.S[k], self.players.b[k]
        return games.box_least_squares(S, b - S @ others, self.bound, own)

    def player_gradient(self, k: int, total: np.ndarray) -> np.ndarray:
        """Return F_k, the gradient of player k's risk in its own strategy, (R, d), for sums of strategies (R, d)."""
        if self.traits.quadratic:
            S, b = self.players.S[k], self.players.b[k]
            return np.stack([S @ v - b for v in total])  # one by one: the same bits whatever R
        a, who = self.share, np.full((len(total), 1), k)
        return a * row_losses.gradients_of(self.risk, a * total, who)[:, 0]

    # ---------------------------------------------------------------- values and certificates

    def predictor(self, w: Any) -> np.ndarray:
        """s of strategies (K, d), or (R, K, d): their sum or average, (d,) or (R, d)."""
        return self.share * self._strategies(w).sum(axis=-2)

    def risks(self, w: Any) -> np.ndarray:
        """R^k(s), (K,) or (R, K)."""
        w = self._strategies(w)
        W = w.reshape(-1, *self.model_shape)
        if self.traits.quadratic:
            out = np.stack([self.players.risks(v) for v in W])
        else:
            every = np.tile(np.arange(self.federation.K), (len(W), 1))
            out = row_losses.values_gradients_of(self.risk, self.predictor(W), every)[0]
        return out.reshape(w.shape[:-1])

    def gradients(self, w: Any) -> np.ndarray:
        """F_k, the gradient of each player's risk in its own strategy, in the shape of w."""
        w = self._strategies(w)
        W = w.reshape(-1, *self.model_shape)
        total = W.sum(axis=1)
        F = np.stack([self.player_gradient(k, total) for k in range(self.federation.K)], axis=1)
        return F.reshape(w.shape)

    def certificate(self, w: Any) -> Any:
        """N(w) = sum_k (<F_k, w^k> + B ‖F_k‖_1): at least the sum of the regrets, and zero at equilibria only.

        A float, or (R,); infinite for strategies outside of the boxes. One number per client.
        """
        w = self._strategies(w)
        F = self.gradients(w)
        N = (np.abs(F) * (self.bound + np.sign(F) * w)).sum(axis=(-2, -1))
        N = np.where((np.abs(w) <= self.bound).all(axis=(-2, -1)), N, np.inf)
        return float(N) if N.ndim == 0 else N

    def regrets(self, w: Any) -> np.ndarray:
        """R^k(s) less what player k could reach alone, (K,) of strategies (K, d), for quadratic loss."""
        w = self._strategies(w)
        if w.ndim != 2:
            raise bad("GameProblem.regrets: w", f"have shape {self.model_shape}", f"{w.shape}")
        return self.players.regrets(w)

    def measure(self, w: np.ndarray) -> Measure:
        """Return sums of the risks, which nobody minimises, and N(w) with its rounding, of R strategies."""
        W = self._strategies(w).reshape(-1, *self.model_shape)
        gap = self.certificate(W) + self.certificate_rounding(W)
        return Measure(self.risks(W).sum(axis=1), np.where(np.isnan(gap), np.inf, gap))

    def certificate_rounding(self, W: np.ndarray) -> np.ndarray:
        """Return what rounding may take from N, (R,): eps times summands times magnitudes."""
        room, K, d = self.bound + np.abs(W), *self.model_shape
        if self.traits.quadratic:
            p, reach = self.players, np.abs(W).sum(axis=1)
            size = np.einsum("kij,rj->rki", np.abs(p.S), reach) + np.abs(p.b)
            unit = _EPS * (8.0 + d + K + np.sqrt(p.terms))
            return unit * (room * size).sum(axis=(1, 2))
        s, a = self.predictor(W), self.share
        size = a * np.linalg.norm(W, axis=2).sum(axis=1) * (1.0 + K / 16.0)  # s is a rounded sum of K
        with np.errstate(all="ignore"):  # of a run that diverges
            off = (d + K + 8) * _EPS * (room * np.abs(self.gradients(W))).sum(axis=(1, 2))
            for k in range(K):
                found = allowances(self.risk.alone(k), s, size=size)
                off += a * found["error"] * np.linalg.norm(room[:, k], axis=1) + found["off"]
        return 2.0 * off

    def _strategies(self, w: Any) -> np.ndarray:
        w = np.asarray(w, dtype=float)
        if w.shape[-2:] != self.model_shape:
            raise bad("GameProblem: strategies", f"have shape {self.model_shape}, or (R, ...)", f"{w.shape}")
        return w

    # ---------------------------------------------------------------- equilibria

    def equilibria(self) -> list[Equilibrium]:
        """Return all equilibrium predictors with strategies that have them, by enumeration, for quadratic loss.

        Raises
        ------
        ValueError
            If there are more than 100,000 patterns of bounds, ((K + 2) 2^(K-1))^d: beyond 5 features of 2 players, or
            3 features of 3.
        """
        return [found._replace(predictor=self.predictor(found.w)) for found in games.equilibria(self.players)]

    def uncorrelated(self) -> np.ndarray:
        """Return the predictor of every equilibrium, (d,), where no client's features are correlated.

        A median of the clients' least-squares coefficients, drawn to zero, for quadratic loss
        (`fedconvex.solvers.environments.games.uncorrelated_predictor`).

        Raises
        ------
        ValueError
            If features are correlated in some client (beyond 1e-12), or never differ from zero there.
        """
        p = self.players
        squares = np.einsum("eii->ei", p.S)
        if (squares <= 0.0).any():
            raise bad("GameProblem.uncorrelated", "have every feature in every client", "a column of zeros")
        off = np.abs(p.S) / np.sqrt(squares[:, :, None] * squares[:, None, :])
        most = float((off - np.eye(self.federation.d)).max())
        if most > 1e-12:
            cure = "equilibria() enumerates small games"
            raise bad("GameProblem.uncorrelated", "have uncorrelated features", f"{most:g}", cure)
        return self.share * games.uncorrelated_predictor(p.b / squares, self.bound)
