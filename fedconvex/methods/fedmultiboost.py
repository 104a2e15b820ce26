"""FedMultiBoost (Cortes, Mohri, Storcheus, Suresh, NeurIPS 2021): MultiBoost with sampled clients and classifiers.

Every client c belongs to one domain k and has m_c rows; base classifiers are known to all.

1. server: alpha_0 = 0
2. each round t: server samples r clients C_{t,k} and s base classifiers H_{t,k} of every domain k, sends alpha_{t-1}
3.   client c in C_{t,k}: Phi_c = mean of Phi(-y f_{t-1}(x)), Z_{t,c} = sum of Phi'(-y f_{t-1}(x)) over its rows
4.   client c: Z_{t,c} beta_{t,c,j} = sum of Phi'(-y f_{t-1}(x)) y Q(k|x) h_{k,j}(x) for j in H_{t,k}; answers all three
5. server: K_t = argmax_k of (sum_c m_c Phi_c) / (sum_c m_c) over c in C_{t,k}
6. server: (k, j) = argmax over k in K_t, j in H_{t,k} of (sum_c Z_{t,c} beta_{t,c,j}) / (sum_c m_c)
7. server: alpha_{k,j} += eta_0 / sqrt(t)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex._check import bad, wrong_type
from fedconvex.draws import Draws
from fedconvex.fields import CheckedFields, Count
from fedconvex.methods.parts import averaging, step_sizes
from fedconvex.methods.parts.averaging import Message
from fedconvex.problems import EnsembleProblem
from fedconvex.problems.protocol import ENSEMBLE
from fedconvex.traits import Traits, not_sent

__all__ = ["FedMultiBoost"]

CLIENTS, CLASSIFIERS = 11, 12  # purposes of draws
_LN2 = 0.6931471805599453


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, N) alpha
    t: int  # rounds done
    history: np.ndarray  # (R, t, 6) per round: source, column, 0, 0, 0, step
    sizes: np.ndarray  # (K,) m_c, told to the server once
    domain: np.ndarray  # (K,) domain of every client
    estimate: np.ndarray  # (R, p) last estimates of the domains' losses, NaN before the first round


@not_sent("classifiers")
class Reply(NamedTuple):
    """Clients to server."""

    loss: np.ndarray  # (R, m) Phi_c
    mass: np.ndarray  # (R, m) Z_{t,c}
    edge: np.ndarray  # (R, m, s) Z_{t,c} beta_{t,c,j}
    classifiers: np.ndarray  # (R, m, s) which j; the server has drawn them itself


@dataclass(frozen=True, kw_only=True)
class FedMultiBoost(CheckedFields):
    """Federated boosting with multiple sources: sampled clients of every domain, steps eta_0/sqrt(t).

    Parameters
    ----------
    step_size : float or array (R,)
        eta_0; an array gives every trajectory its own.
    clients_per_domain : int, optional
        r; default all. Domains with fewer clients send all of theirs.
    classifiers : int, optional
        s, base classifiers of each source per round; default all.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the problem is no `EnsembleProblem` over the whole simplex, a
        client holds rows of several domains, or a source has fewer than s classifiers.

    Notes
    -----
    The paper has two exchanges per round: the losses first, and beta only from clients of the worst domains, with
    Z_{t,k} sent down in between. Here there is one: every sampled client adds Z beta, which the server divides by Z, so
    that the decision is the same. The trace has ``floats_published``, what the two exchanges would have sent up.
    Only classifiers that lower the worst domain's loss are chosen: alpha stays nonnegative without a sign of the step.
    One client per domain and all classifiers without sampling is deterministic.
    Where clients of a domain differ in size and not all are sampled, the losses of step 5 and the edges of step 6 are
    ratio estimates: both sums are random, and the quotients are biased. Clients of equal size make them unbiased.
    Where sources have unequal numbers of classifiers and all are asked for, replies are as long as the longest list:
    shorter ones are filled with repetitions, which are sent and counted; ``floats_published`` counts none of them.

    References
    ----------
    Cortes, Mohri, Storcheus, Suresh, "Boosting with multiple sources", NeurIPS 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, run
    >>> from fedconvex.methods import FedMultiBoost
    >>> from fedconvex.problems import Dictionary, EnsembleProblem
    >>> fed = Federation.from_arrays([[0.0], [1.0]], [1.0, 1.0], clients=[0, 1], domains=[0, 1])
    >>> problem = EnsembleProblem(fed, Dictionary([[1.0, -1.0], [-1.0, 1.0]], [0, 1]), np.eye(2))
    >>> result = run(FedMultiBoost(step_size=0.5), problem, rounds=50)
    >>> problem.domain_errors(result.w).tolist()
    [0.0, 0.0]
    """

    learns = (ENSEMBLE,)
    statistics = staticmethod(lambda problem: ("client_domain",))  # what clients are asked for before round 1
    constant = ("sizes", "domain")  # of the state: no round changes them

    step_size: Annotated[Any, step_sizes.Schedule(decays=False, instead="it is eta_0 of the steps eta_0/sqrt(t)")]
    clients_per_domain: Count | None = None
    classifiers: Count | None = None

    def init(self, problem: EnsembleProblem, w: np.ndarray) -> State:
        if not hasattr(problem, "sources"):
            cure = "list the classifiers, for example with Dictionary.stumps(federation, cuts=...)"
            raise wrong_type("FedMultiBoost: problem", "be an EnsembleProblem", "one that searches for stumps", cure)
        if not np.array_equal(problem.vertices, np.eye(problem.p)):
            raise bad(
                "FedMultiBoost: problem",
                "have the whole simplex of domain weights",
                f"{len(problem.vertices)} vertices",
            )
        if (w < 0.0).any():
            raise bad("FedMultiBoost: start", "be nonnegative", f"{w.min():g}")
        fed, columns = problem.federation, np.bincount(problem.sources, minlength=problem.p)
        if columns.min() < (self.classifiers or 1):
            k = int(np.argmin(columns))
            must = f"be at most the {columns[k]} classifiers of source {k}"
            raise bad("FedMultiBoost.classifiers", must, self.classifiers or "all")
        domain = _domain_of_clients(problem)
        used = np.flatnonzero((w != 0.0).any(axis=0))
        history = np.zeros((len(w), used.size, 6))
        history[:, :, 0], history[:, :, 1], history[:, :, 5] = problem.sources[used], used, w[:, used]
        return State(w, 0, history, fed.sizes, domain, np.full((len(w), problem.p), np.nan))  # 1

    def participants(self, problem: EnsembleProblem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        domain = _domain_of_clients(problem)
        parts = []
        for k in range(problem.p):
            mine = np.flatnonzero(domain == k)
            r = mine.size if self.clients_per_domain is None else min(self.clients_per_domain, mine.size)
            parts.append(mine[_sample(draws, mine.size, r, k, CLIENTS)])  # 2
        clients = np.concatenate(parts, axis=1)
        weights = problem.federation.sizes[clients].astype(float)
        return clients, weights / weights.sum(axis=1, keepdims=True)

    broadcast = averaging.broadcast  # 2

    def local(self, problem: EnsembleProblem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        fed, sources = problem.federation, problem.sources
        columns = [np.flatnonzero(sources == k) for k in range(problem.p)]
        s = self.classifiers or max(c.size for c in columns)
        R, m = clients.shape
        loss, mass = np.empty((R, m)), np.empty((R, m))
        edge, chosen = np.empty((R, m, s)), np.empty((R, m, s), dtype=np.int64)
        picks = [c[_sample(draws, c.size, s, k, CLASSIFIERS)] for k, c in enumerate(columns)]  # 2
        domain = _domain_of_clients(problem)
        for r in range(R):
            for j, c in enumerate(clients[r]):
                X, y = fed.X[fed.ptr[c] : fed.ptr[c + 1]], fed.y[fed.ptr[c] : fed.ptr[c + 1]]
                Phi, slope = _phi(problem.base2, y * (X @ message.w[r]))
                loss[r, j], mass[r, j] = Phi.mean(), slope.sum()  # 3
                chosen[r, j] = picks[domain[c]][r]
                edge[r, j] = (slope * y) @ X[:, chosen[r, j]]  # 4
        return Reply(loss, mass, edge, chosen), memory

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Reply) -> State:
        w, p, t = state.w.copy(), int(state.domain.max()) + 1, state.t + 1
        history = np.zeros((len(w), state.history.shape[1] + 1, 6))
        history[:, :-1] = state.history
        estimate = np.empty((len(w), p))
        eta = step_sizes.round_step_sizes(self.step_size, np.arange(len(w)), 0)
        for r in range(len(w)):
            m_c, of = state.sizes[clients[r]].astype(float), state.domain[clients[r]]
            rows = np.bincount(of, m_c, minlength=p)
            estimate[r] = np.bincount(of, m_c * reply.loss[r], minlength=p) / rows
            best = 0.0
            for k in np.flatnonzero(estimate[r] == estimate[r].max()):  # 5
                edges = reply.edge[r, of == k].sum(axis=0) / rows[k]
                j = int(np.argmax(edges))
                if edges[j] > best:  # 6
                    best = float(edges[j])
                    column = int(reply.classifiers[r, np.argmax(of == k), j])
                    history[r, -1] = (k, column, 0.0, 0.0, 0.0, eta[r] / np.sqrt(t))
            if best > 0.0:
                w[r, int(history[r, -1, 1])] += history[r, -1, 5]  # 7
        return State(w, t, history, state.sizes, state.domain, estimate)

    def check_state(self, problem: EnsembleProblem, state: State) -> None:
        """Raise unless the history of a state names classifiers of the problem."""
        problem.check_stages(state.history)

    def traits(self, problem: EnsembleProblem) -> Traits:
        held, r = np.bincount(_domain_of_clients(problem), minlength=problem.p), self.clients_per_domain
        columns = np.bincount(problem.sources, minlength=problem.p)
        asked = held if r is None else np.minimum(held, r)
        some = () if asked.sum() == held.sum() else ("clients",)
        few = self.classifiers is not None and bool((columns > self.classifiers).any())
        sampling = "other" if some else "everyone"
        return Traits(None, None, sampling, int(asked.sum()), some + (("classifiers",) if few else ()))

    def observe(self, problem: EnsembleProblem, state: State) -> dict[str, np.ndarray]:
        """Return worst_error, stepped (whether a classifier was found), and floats_published of the round: (R,)."""
        counts = np.bincount(state.domain, minlength=problem.p)
        sent = counts if self.clients_per_domain is None else np.minimum(counts, self.clients_per_domain)
        columns = np.bincount(problem.sources, minlength=problem.p)
        s = np.full(problem.p, self.classifiers) if self.classifiers else columns
        with np.errstate(invalid="ignore"):
            worst = state.estimate == state.estimate.max(axis=1, keepdims=True)
        published = 2.0 * sent.sum() + (worst * (sent * s)).sum(axis=1)
        out = {"floats_published": np.where(np.isnan(state.estimate[:, 0]), 0.0, published)}
        out["stepped"] = np.zeros(len(state.w)) if state.t == 0 else (state.history[:, -1, 5] != 0.0).astype(float)
        out["worst_error"] = np.array([problem.domain_errors(a).max() for a in state.w])
        return out


def _domain_of_clients(problem: EnsembleProblem) -> np.ndarray:
    domain = np.array(problem.statistic("client_domain"))
    if (domain < 0).any():
        fed = problem.federation
        who = fed.labels[int(np.argmin(domain))]
        cure = "make one client per (client, domain) pair"
        raise bad(f"FedMultiBoost: client {who}", "hold rows of one domain", "several domains", cure)
    return domain


def _sample(draws: Draws, n: int, m: int, k: int, purpose: int) -> np.ndarray:
    """Return m different numbers below n for every trajectory, (R, m); m >= n gives all of them, over and over."""
    if m >= n:
        return np.tile(np.arange(m) % n, (draws.trajectory.size, 1))
    return np.argsort(draws.uniform(n, k, purpose), axis=1)[:, :m]


def _phi(base2: bool, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Phi(-m) and Phi'(-m)."""
    if not base2:
        e = np.exp(-m)
        return e, e
    e = np.exp(-np.abs(m))
    return (np.log1p(e) + np.maximum(-m, 0.0)) / _LN2, np.where(m > 0.0, e, 1.0) / ((1.0 + e) * _LN2)
