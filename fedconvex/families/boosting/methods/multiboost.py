"""MultiBoost (Cortes, Mohri, Storcheus, Suresh, NeurIPS 2021): coordinate descent on the worst domain's loss.

f = sum alpha_{l,j} Q(l|.) h_{l,j}, F_k(alpha) = mean over domain k of Phi(-y f(x)), F = max_k F_k.

1. f_0 = 0
2. each round t: for all domains k, F_k and Z_{t,k} = sum_i Phi'(-y_{k,i} f_{t-1}(x_{k,i}))
3.   K_t = domains k of largest F_k; D_t(k, i) = Phi'(-y_{k,i} f_{t-1}(x_{k,i})) / Z_{t,k}
4.   eps_{t,k,(l,j)} = (1/2) (1 - sum_i D_t(k, i) y_{k,i} Q(l|x_{k,i}) h_{l,j}(x_{k,i})), and
     (l, j) = coordinate along which max over K_t of dF_k/dalpha_{l,j} = -(Z_{t,k}/m_k) (1 - 2 eps) is least
5.   eta_t = argmin over eta of F(alpha + eta e_{l,j})
6.   alpha_{l,j} += eta_t, f_t = f_{t-1} + eta_t Q(l|.) h_{l,j}
7.   if asked for, every so many rounds: alpha = argmin of F over the coordinates chosen so far
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.draws import Draws
from fedconvex.families.boosting.problem import RADIUS
from fedconvex.fields import CheckedFields, Count, Flag, Positive
from fedconvex.kernels.cache import kernel, part, reduction, strict_part
from fedconvex.losses.stable import exp
from fedconvex.problems import BoostingProblem, Measure, Pick
from fedconvex.problems.protocol import ENSEMBLE
from fedconvex.traits import Traits
from fedconvex.words import Words

# mypy: disable-error-code="no-untyped-def"

PROGRESS, CAPPED, KINK, STATIONARY = range(4)  # what a round ended with


class State(NamedTuple):
    """The ensemble so far."""

    w: np.ndarray  # (R, N) alpha; (R, 0) where base classifiers are searched for
    margins: np.ndarray  # (R, n) y_i f_t(x_i), rows sorted by domain
    history: np.ndarray  # (R, t, 6) per round: source l, column or feature j, threshold, left, right, eta_t
    event: np.ndarray  # (R,) 0 progress, 1 step capped, 2 stalled at a kink, 3 no coordinate descends


@dataclass(frozen=True, kw_only=True)
class MultiBoost(CheckedFields):
    """Boosting with multiple sources: one coordinate of the Q-ensemble per round, with exact line search.

    With one source this is AdaBoost (Exponential) or its logistic twin.

    Parameters
    ----------
    smoothing : float, optional
        mu: descend on F_mu = (1/mu) log sum_v exp(mu F_v) instead of F = max F_v; F <= F_mu <= F + log(V)/mu. Without
        it coordinate descent can stall where several F_v are equal (a kink); the trace then says so.
    own_classifiers : bool
        Choose among the classifiers of the worst domains only, as printed in the paper; False: of all sources. Smoothed
        objectives involve every domain, and hence every source.
    corrective : int, optional
        Every so many rounds all coordinates chosen so far are optimised together by Newton's method (totally corrective
        boosting) over sum alpha <= 100, which steps in between do not leave; for smoothed objectives or one vertex.
        Coordinate descent alone is slow where minima lie far out.
    max_step : float
        Largest step. A base classifier without error on the worst domain asks for an infinite one.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the problem is not an `EnsembleProblem` or `StumpProblem`.

    Warns
    -----
    RuntimeWarning
        When a step is capped for the first time.

    Notes
    -----
    What differs from the printed algorithm: where several domains are worst, the derivative of the maximum is the
    largest of theirs, and the coordinate is chosen by it; if it is nowhere negative, a coordinate is taken that lowers
    some of the worst domains and raises none, by line search on their mean. A coordinate with alpha > 0 may also step
    back (down to 0). A correction adds its changes to the history as further stages.
    The trace has ``event`` (0 progress, 1 step capped, 2 stalled at a kink, 3 no coordinate descends), ``active``
    (domains, or vertices, that attain the maximum), ``worst_error``, and with smoothing ``smoothed`` = F_mu.

    References
    ----------
    Cortes, Mohri, Storcheus, Suresh, "Boosting with multiple sources", NeurIPS 2021. Freund, Schapire, "A
    decision-theoretic generalization of on-line learning and an application to boosting", JCSS 1997 (one source).
    Warmuth, Liao, Rätsch, "Totally corrective boosting algorithms that maximize the margin", ICML 2006, and
    Shalev-Shwartz, Srebro, Zhang, "Trading accuracy for sparsity in optimization problems with sparsity constraints",
    SIAM J. Optim. 2010 (corrections).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, run
    >>> from fedconvex.methods import MultiBoost
    >>> from fedconvex.problems import Dictionary, EnsembleProblem
    >>> fed = Federation.from_arrays([[0.0], [1.0]], [1.0, 1.0], clients=[0, 1], domains=[0, 1])
    >>> kink = EnsembleProblem(fed, Dictionary([[1.0, -0.9], [-0.9, 1.0]], [0, 1]), uncertainty_set=np.eye(2))
    >>> run(MultiBoost(own_classifiers=False), kink, rounds=3).trace.event.tolist()
    [0, 2, 2, 2]
    >>> bool(run(MultiBoost(smoothing=10.0), kink, rounds=300).trace.value[-1] < 0.9)
    True
    """

    command = "multiboost"
    learns = (ENSEMBLE,)

    smoothing: Positive | None = None
    own_classifiers: Flag = True
    corrective: Count | None = None
    max_step: Positive = 20.0

    def init(self, problem: BoostingProblem, w: np.ndarray) -> State:
        if self.corrective is not None and self.smoothing is None and len(problem.vertices) > 1:
            cure = "pass smoothing=, for example 50"
            raise bad("MultiBoost.corrective", "come with smoothing where several domains count", "none", cure)
        if (w < 0.0).any():
            raise bad("MultiBoost: start", "be nonnegative", f"{w.min():g}")
        margins = np.array([problem.margins(a) if a.size else np.zeros(problem.data.n) for a in w])  # 1
        return State(w, margins, _first_stages(problem, w), np.zeros(len(w), dtype=np.int64))

    def round(self, problem: BoostingProblem, state: State, draws: Draws) -> State:
        w, margins, event = state.w.copy(), state.margins.copy(), state.event.copy()
        history = np.zeros((len(w), state.history.shape[1] + 1, 6))
        history[:, :-1] = state.history
        for r in np.flatnonzero(event < KINK):  # what has stalled stays so
            F, slopes = problem.losses_of(margins[r])  # 2
            mixes = problem.worst(F, self.smoothing)  # 3
            own = self.own_classifiers and self.smoothing is None
            pick = problem.steepest(mixes, slopes, w[r], own)  # 4
            most = self._longest(float((w[r] if w.shape[1] else history[r, :, 5]).sum()))
            eta, capped = self._step(problem, margins[r], slopes, w[r], pick, mixes, most)  # 5
            if pick is not None and pick.slope == 0.0:
                after = problem.losses_of(margins[r] + eta * pick.direction)[0]
                eta = eta if problem.objective(after) <= problem.objective(F) * (1.0 + 1e-15) else 0.0
            if pick is None or eta == 0.0:
                event[r] = KINK if len(mixes) > 1 else STATIONARY
                continue
            event[r] = CAPPED if capped else PROGRESS
            if capped and not (state.event == CAPPED).any():
                text = f"MultiBoost: a base classifier asks for a step of more than {self.max_step:g}; capped there"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            margins[r] += eta * pick.direction  # 6
            if w.shape[1]:
                w[r, pick.column] = max(w[r, pick.column] + eta, 0.0)
            stump = pick.stump or (pick.column, 0.0, 0.0, 0.0)
            history[r, -1] = (pick.source, pick.column, *stump[1:], eta)
        if self.corrective is not None and (draws.round + 1) % self.corrective == 0:
            history = self._correct(problem, w, margins, event, history)  # 7
        return State(w, margins, history, event)

    def _correct(
        self, problem: BoostingProblem, w: np.ndarray, margins: np.ndarray, event: np.ndarray, history: np.ndarray
    ) -> np.ndarray:
        """Optimise the coordinates of every trajectory together, in place; return the history with the changes."""
        mu = None if len(problem.vertices) == 1 else self.smoothing
        changes = []
        for r in range(len(w)):
            stages, U, alpha = problem.directions(history[r])
            better = problem.corrected(U, np.maximum(alpha, 0.0), mu) if alpha.size else alpha
            margins[r] = U @ better if alpha.size else margins[r]
            if w.shape[1]:
                w[r] = 0.0
                w[r, stages[:, 1].astype(int)] = better
            changes.append(np.column_stack([stages, better - alpha])[better != alpha])
            if event[r] >= KINK and np.abs(better - alpha).max(initial=0.0) > 1e-12:
                event[r] = PROGRESS
        out = np.zeros((len(w), history.shape[1] + max(map(len, changes)), 6))
        out[:, : history.shape[1]] = history
        for r, rows in enumerate(changes):
            out[r, history.shape[1] : history.shape[1] + len(rows)] = rows
        return out

    def check_state(self, problem: BoostingProblem, state: State) -> None:
        """Raise unless the history of a state names classifiers of the problem, and its events are known."""
        problem.check_stages(state.history)
        if not np.isin(state.event, (PROGRESS, CAPPED, KINK, STATIONARY)).all():
            raise bad("MultiBoost: event", f"lie in 0, ..., {STATIONARY}", state.event.tolist())

    def words(self, problem: BoostingProblem) -> Words:
        mu = self.smoothing
        if mu is None:
            return Words("MultiBoost, the maximum itself")
        return Words(f"MultiBoost, smoothed by mu = {mu:g}", (f"mu {mu:g}",))

    def traits(self, problem: BoostingProblem) -> Traits:
        return Traits(drawn=())

    def measure(self, problem: BoostingProblem, state: State) -> Measure:
        totals = (state.w if state.w.shape[1] else state.history[:, :, 5]).sum(axis=1)
        value, lower = np.empty(len(totals)), np.empty(len(totals))
        for r, m in enumerate(state.margins):
            F = problem.losses_of(m)[0]
            value[r] = problem.objective(F)
            lower[r] = problem.lower(m, problem.worst(F, self.smoothing).mean(axis=0), float(totals[r]))
        return Measure(value, problem.gaps("MultiBoost.measure", value, lower, totals))

    def observe(self, problem: BoostingProblem, state: State) -> dict[str, np.ndarray]:
        """Return event, active, worst_error and, with smoothing, smoothed: (R,) each."""
        F = np.array([problem.losses_of(m)[0] for m in state.margins])
        out = {"event": state.event, "active": np.array([len(problem.worst(f, None)) for f in F])}
        out["worst_error"] = np.array([problem.errors_of(m).max() for m in state.margins])
        if self.smoothing is not None:
            out["smoothed"] = problem.smoothed(F, self.smoothing)
        return out

    def _longest(self, total: float) -> float:
        """Return the longest step from sum alpha = total; with corrections half of the way to 100, at most.

        From a start beyond 100 it is free, until the first correction.
        """
        if self.corrective is None or total > RADIUS + 1e-7:
            return self.max_step
        return min(self.max_step, max(0.5 * (RADIUS - total), 0.0))

    def _step(
        self,
        problem: BoostingProblem,
        m: np.ndarray,
        slopes: np.ndarray,
        w: np.ndarray,
        pick: Pick | None,
        mixes: np.ndarray,
        most: float,
    ) -> tuple[float, bool]:
        """Return the exact step along a coordinate, at most ``most``, and whether it was cut off at max_step."""
        if pick is None:
            return 0.0, False
        V, u = problem.vertices, pick.direction
        if pick.slope == 0.0:  # the maximum stays: lower the mean of those that attain it
            V = mixes.mean(axis=0)[None]
        low, high = (0.0, most) if pick.forward else (-w[pick.column], 0.0)
        if len(V) == 1 and not problem.base2:
            size, right, wrong = two_valued(u, slopes, problem.bounds, V[0] / problem.counts)
            if size > 0.0:  # F = right e^(-size eta) + wrong e^(size eta) + constant
                best = 0.5 * math.log(right / wrong) / size if wrong > 0.0 and right > 0.0 else math.inf
                best = best if wrong > 0.0 or right > 0.0 else 0.0
                return min(max(best, low), high), bool(best > high == self.max_step)
        jets, models = np.empty((problem.p, 3)), np.empty((len(V), 3))
        mu = -1.0 if self.smoothing is None or len(V) == 1 else self.smoothing
        s = NO_WEIGHTS if problem.relative_weights is None else problem.relative_weights
        eta = float(line_search(problem.base2, m, u, problem.bounds, s, V, mu, low, high, jets, models))
        return eta, bool(eta == self.max_step)


def _first_stages(problem: BoostingProblem, w: np.ndarray) -> np.ndarray:
    """Return a starting alpha as stages of the history, (R, t, 6); t = 0 for alpha = 0."""
    used = np.flatnonzero((w != 0.0).any(axis=0))
    out = np.zeros((len(w), used.size, 6))
    if used.size:
        out[:, :, 0], out[:, :, 1], out[:, :, 5] = problem.dictionary.sources[used], used, w[:, used]
    return out


# ---------------------------------------------------------------- line search

NO_WEIGHTS = np.zeros(0)


@reduction
def two_valued(u, slopes, bounds, weights):
    """If every u_i is -c, 0 or c: c, and the sums of weights_k slopes_i over u_i > 0 and over u_i < 0; else c = 0."""
    size = right = wrong = 0.0
    for i in range(u.size):
        if u[i] != 0.0:
            size = abs(u[i])
            break
    others = 0
    for k in range(weights.size):
        for i in range(bounds[k], bounds[k + 1]):
            others += 1 if u[i] != 0.0 and abs(u[i]) != size else 0
            right += weights[k] * slopes[i] if u[i] > 0.0 else 0.0
            wrong += weights[k] * slopes[i] if u[i] < 0.0 else 0.0
    return size if others == 0 else 0.0, right, wrong


@part
def exponential_jets(m, u, eta, bounds, out):
    """out[k] = value and two derivatives at eta of the mean over domain k of exp(-(m_i + eta u_i))."""
    for k in range(bounds.size - 1):
        f = g = h = 0.0
        for i in range(bounds[k], bounds[k + 1]):
            e = exp(-(m[i] + eta * u[i]))
            f += e
            g -= e * u[i]
            h += e * u[i] * u[i]
        n = bounds[k + 1] - bounds[k]
        out[k, 0], out[k, 1], out[k, 2] = f / n, g / n, h / n


@part
def logistic_jets(m, u, eta, bounds, out):
    """out[k] = the same for log2(1 + exp(-(m_i + eta u_i))); one logarithm of a product per 512 rows."""
    for k in range(bounds.size - 1):
        f = g = h = 0.0
        for first in range(bounds[k], bounds[k + 1], 512):
            product = 1.0  # of factors in [1, 2]
            for i in range(first, min(first + 512, bounds[k + 1])):
                v = m[i] + eta * u[i]
                e = exp(-abs(v))
                s = (e if v > 0.0 else 1.0) / (1.0 + e)
                product *= 1.0 + e
                f += max(-v, 0.0)
                g -= s * u[i]
                h += s * (1.0 - s) * u[i] * u[i]
            f += math.log(product)
        n = (bounds[k + 1] - bounds[k]) * 0.6931471805599453
        out[k, 0], out[k, 1], out[k, 2] = f / n, g / n, h / n


@part
def weighted_jets(base2, m, u, eta, bounds, s, out):
    """out[k] = the same for either loss, with rows of weights s_i."""
    for k in range(bounds.size - 1):
        f = g = h = 0.0
        for i in range(bounds[k], bounds[k + 1]):
            v = m[i] + eta * u[i]
            if s[i] > 0.0 and base2:
                e = exp(-abs(v))
                q = (e if v > 0.0 else 1.0) / (1.0 + e)
                f += s[i] * (math.log1p(e) + max(-v, 0.0))
                g -= s[i] * q * u[i]
                h += s[i] * q * (1.0 - q) * u[i] * u[i]
            elif s[i] > 0.0:
                e = s[i] * exp(-v)
                f += e
                g -= e * u[i]
                h += e * u[i] * u[i]
        n = (bounds[k + 1] - bounds[k]) * (0.6931471805599453 if base2 else 1.0)
        out[k, 0], out[k, 1], out[k, 2] = f / n, g / n, h / n


@part
def vertex_models(base2, m, u, eta, bounds, s, vertices, mu, jets, models):
    """Jets of sum_k v_k F_k for every vertex v; for mu > 0 that of their smoothed maximum alone. Returns how many."""
    if s.size > 0:
        weighted_jets(base2, m, u, eta, bounds, s, jets)
    elif base2:
        logistic_jets(m, u, eta, bounds, jets)
    else:
        exponential_jets(m, u, eta, bounds, jets)
    for v in range(vertices.shape[0]):
        for c in range(3):
            models[v, c] = 0.0
            for k in range(vertices.shape[1]):
                models[v, c] += vertices[v, k] * jets[k, c]
    if mu <= 0.0:
        return vertices.shape[0]
    top = models[0, 0]
    for v in range(vertices.shape[0]):
        top = max(top, models[v, 0])
    total = first = square = second = 0.0
    for v in range(vertices.shape[0]):
        q, g = exp(mu * (models[v, 0] - top)), models[v, 1]
        total += q
        first += q * g
        square += q * g * g
        second += q * models[v, 2]
    first, square, second = first / total, square / total, second / total
    models[0, 0], models[0, 1], models[0, 2] = top + math.log(total) / mu, first, second + mu * (square - first * first)
    return 1


@strict_part
def highest(models, count, s):
    """Value and slope at s of the highest parabola a + b s + c s^2/2 (the steepest of equals)."""
    best, slope = -np.inf, 0.0
    for v in range(count):
        a = models[v, 0] + s * (models[v, 1] + 0.5 * s * models[v, 2])
        b = models[v, 1] + s * models[v, 2]
        if a > best or (a == best and abs(b) > abs(slope)):
            best, slope = a, b
    return best, slope


@strict_part
def model_step(models, count, low, high):
    """Minimise the highest of the parabolas over [low, high] by bisection of its slope."""
    for _ in range(70):
        s = 0.5 * (low + high)
        if highest(models, count, s)[1] > 0.0:
            high = s
        else:
            low = s
    return 0.5 * (low + high)


@kernel
def line_search(base2, m, u, bounds, weights, vertices, mu, low, high, jets, models):
    """Minimise the (smoothed) maximum over [low, high]: Newton's method on the maximum of parabolas, in a bracket.

    Returns the end itself where the maximum still falls there, and 0 where nothing is below its value at 0.
    """
    end = high if high > 0.0 else low
    count = vertex_models(base2, m, u, 0.0, bounds, weights, vertices, mu, jets, models)
    first, slope = highest(models, count, 0.0)
    eta, value, before, far = 0.0, first, np.inf, 0.25 * end
    for _ in range(200):
        s = model_step(models, count, low - eta, high - eta)
        if abs(s) > 0.5 * before:
            s = 0.5 * (low + high) - eta
        eta += s
        if far != 0.0 and abs(eta) >= abs(far):  # steps that shrink by half end before
            far = 0.0
            count = vertex_models(base2, m, u, end, bounds, weights, vertices, mu, jets, models)
            if highest(models, count, 0.0)[1] * end < 0.0:
                return end
        if count == 1 and before < np.inf and abs(s) <= 1e-8 * (1.0 + abs(eta)):
            break  # the next step would be its square
        before = abs(s)
        count = vertex_models(base2, m, u, eta, bounds, weights, vertices, mu, jets, models)
        value, slope = highest(models, count, 0.0)
        if abs(s) <= 1e-14 * (1.0 + abs(eta)):
            break
        low, high = (low, eta) if slope > 0.0 else (eta, high)
    return eta if value <= first else 0.0
