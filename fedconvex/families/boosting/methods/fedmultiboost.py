"""FedMultiBoost (Cortes, Mohri, Storcheus, Suresh, NeurIPS 2021): MultiBoost with sampled clients and classifiers.

Every client c belongs to one domain k and has m_c rows; base classifiers are known to all.

1. server: alpha_0 = 0
2. each round t: server samples r clients C_{t,k} and s base classifiers H_{t,k} of every domain k, sends alpha_{t-1}
3.   client c in C_{t,k}: m_c Phi_c = sum of Phi(-y f_{t-1}(x)) over its rows
4.   client c: Z_{t,c} beta_{t,c,j} = sum of Phi'(-y f_{t-1}(x)) y Q(k|x) h_{k,j}(x) for j in H_{t,k}; answers both
5. server: K_t = argmax_k of 1 + a_k sum_c m_c (Phi_c - 1) over c in C_{t,k}, a_k = (clients of k/r) / (rows of k)
6. server: (k, j) = argmax over k in K_t, j in H_{t,k} of a_k sum_c Z_{t,c} beta_{t,c,j}
7. server: alpha_{k,j} += eta_0 / sqrt(t)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex import secure
from fedconvex._check import bad, wrong_type
from fedconvex.draws import ENSEMBLE_CLASSIFIERS, ENSEMBLE_CLIENTS, Draws
from fedconvex.families.boosting.client_edges import add_edges
from fedconvex.fields import CheckedFields, Count
from fedconvex.methods.parts import averaging, step_sizes
from fedconvex.methods.parts.averaging import Message
from fedconvex.problems import EnsembleProblem
from fedconvex.problems.protocol import ENSEMBLE
from fedconvex.traits import Traits, not_sent
from fedconvex.words import Words


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, N) alpha
    t: int  # rounds done
    history: np.ndarray  # (R, t, 6) per round: source, column, 0, 0, 0, step
    sizes: np.ndarray  # (K,) m_c, the sums of the rows' weights, told to the server once
    domain: np.ndarray  # (K,) domain of every client
    sources: np.ndarray  # (N,) source of every classifier
    estimate: np.ndarray  # (R, p) last estimates of the domains' losses, NaN before the first round


@not_sent("column")
class Reply(NamedTuple):
    """Clients to server."""

    loss: np.ndarray  # (R, m) m_c Phi_c
    edge: np.ndarray  # (R, m, s) Z_{t,c} beta_{t,c,j}; what is sent of it is (R, S), without what no j stands for
    column: np.ndarray  # the same, which j, or -1; the server has drawn them itself


@not_sent("clients", "agreed", "column")
class MaskedReply(NamedTuple):
    """Clients to server: losses by domain and edges by classifier, 0 for those of other domains, in masked vectors."""

    numbers: np.ndarray  # (R, m, p + L) uint64, L classifiers in the round
    keys: np.ndarray  # (R, m, 4) public keys
    clients: np.ndarray  # (R, m)
    agreed: np.ndarray  # (R, m, 2)
    column: np.ndarray  # (R, L) which j

    @property
    def relayed(self) -> int:
        """Public keys that the server passes on."""
        return secure.Masked(self.numbers, self.keys, self.clients, self.agreed).relayed


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
    sums : `fedconvex.secure.PlainSums` or `fedconvex.secure.SecureSums`
        How the server learns the sums of steps 5 and 6: from the answers, or from masked vectors that reveal nothing
        else. Then every domain needs at least two clients in a round.

    Raises
    ------
    ValueError, TypeError
        On settings out of range; when a run starts, if the problem is no `EnsembleProblem` over the whole simplex, a
        client holds rows of several domains, or a source has fewer than s classifiers.

    Notes
    -----
    The paper has two exchanges per round: the losses first, and beta only from clients of the worst domains, with
    Z_{t,k} sent down in between. Here there is one: every sampled client answers Z beta. The trace has
    ``floats_published``, what the two exchanges would have sent up.
    Only classifiers that lower the worst domain's loss are chosen: alpha stays nonnegative without a sign of the step.
    One client per domain and all classifiers without sampling is deterministic.
    Losses and edges are unbiased whatever the sizes of clients: sums over r sampled clients of a domain, times its
    clients over r, divided by its rows. Of losses Phi(0) = 1 is taken off first and added again (a difference
    estimate), so that they do not vary with the number of rows sampled where alpha = 0. The paper divides by the rows
    of the sampled clients, a biased quotient of two random sums where clients differ in size.

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

    command = "fedmultiboost"
    learns = (ENSEMBLE,)
    statistics = staticmethod(lambda problem: ("client_domain",))  # what clients are asked for before round 1
    constant = ("sizes", "domain", "sources")  # of the state: no round changes them

    step_size: Annotated[Any, step_sizes.StepRule(decays=False, instead="it is eta_0 of the steps eta_0/sqrt(t)")]
    clients_per_domain: Count | None = None
    classifiers: Count | None = None
    sums: Annotated[Any, secure.as_sums] = secure.PlainSums()

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
            if not columns[k]:
                raise bad("FedMultiBoost: problem", "have a classifier of every source", f"none of source {k}")
            must = f"be at most the {columns[k]} classifiers of source {k}"
            raise bad("FedMultiBoost.classifiers", must, self.classifiers or "all")
        domain = _domain_of_clients(problem)
        fewest = min(np.bincount(domain, minlength=problem.p).min(), self.clients_per_domain or domain.size)
        if self._masked and fewest < 2:
            cure = "raise clients_per_domain, or pass sums=PlainSums()"
            raise bad("FedMultiBoost.sums", "add at least two clients of every domain", f"{fewest} in a round", cure)
        used = np.flatnonzero((w != 0.0).any(axis=0))
        history = np.zeros((len(w), used.size, 6))
        history[:, :, 0], history[:, :, 1], history[:, :, 5] = problem.sources[used], used, w[:, used]
        estimate = np.full((len(w), problem.p), np.nan)
        return State(w, 0, history, fed.masses, domain, np.asarray(problem.sources), estimate)  # 1

    def participants(self, problem: EnsembleProblem, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        domain, ordered = _domain_of_clients(problem), problem.federation.by_key
        parts = []
        for k in range(problem.p):
            mine = ordered[domain[ordered] == k]
            r = mine.size if self.clients_per_domain is None else min(self.clients_per_domain, mine.size)
            parts.append(mine[_sample(draws, mine.size, r, k, ENSEMBLE_CLIENTS)])  # 2
        clients = np.concatenate(parts, axis=1)
        weights = problem.federation.masses[clients]
        return clients, weights / weights.sum(axis=1, keepdims=True)

    broadcast = averaging.broadcast  # 2

    def local(self, problem: EnsembleProblem, message: Message, clients: np.ndarray, memory: Any, draws: Draws) -> Any:
        fed, domain = problem.federation, _domain_of_clients(problem, np.unique(clients))
        picks = self._classifiers(problem.sources, problem.p, draws)  # 2
        loss, edge = np.empty(clients.shape), np.zeros((*clients.shape, picks.shape[2]))
        s = np.empty(0) if fed.sample_weight is None else fed.sample_weight
        add_edges(
            problem.base2, fed.X, fed.y, s, fed.ptr, clients, np.ascontiguousarray(message.w), domain, picks, loss, edge
        )  # 3, 4
        loss += fed.masses[clients]  # which is to the bit what the server takes off where alpha = 0
        return Reply(loss, edge, picks[domain[clients], np.arange(len(clients))[:, None]]), memory

    def _classifiers(self, sources: np.ndarray, p: int, draws: Draws) -> np.ndarray:
        """Return H_{t,k} of every domain k, (p, R, s), -1 behind the last one of domains that have fewer."""
        lists = [np.flatnonzero(sources == k) for k in range(p)]
        some = [min(self.classifiers or c.size, c.size) for c in lists]
        picks = np.full((p, draws.trajectory.size, max(some)), -1)
        for k, (c, n) in enumerate(zip(lists, some, strict=True)):
            picks[k, :, :n] = c[_sample(draws, c.size, n, k, ENSEMBLE_CLASSIFIERS)]
        return picks

    @property
    def _masked(self) -> bool:
        return hasattr(self.sums, "mask")

    def send(self, problem: EnsembleProblem, reply: Reply, clients: np.ndarray, draws: Draws) -> Any:
        """Return what all clients of the round send, once they have agreed on masks: `SecureSums`."""
        (R, m), p, there = clients.shape, problem.p, reply.column >= 0
        for label, column in zip(
            problem.federation.labels[clients].ravel(), reply.column.reshape(R * m, -1), strict=True
        ):
            _check_columns(f"FedMultiBoost: client {label}", column, problem.sources.size)
        if not self._masked:
            return Reply(reply.loss, reply.edge[there].reshape(R, -1), reply.column[there].reshape(R, -1))
        column = np.array([np.unique(row[row >= 0]) for row in reply.column])
        flat, of = np.zeros((R, m, p + column.shape[1])), _domain_of_clients(problem)[clients]
        for r, j in np.ndindex(R, m):
            flat[r, j, of[r, j]] = reply.loss[r, j]
            flat[r, j, p + np.searchsorted(column[r], reply.column[r, j, there[r, j]])] = reply.edge[r, j, there[r, j]]
        masked = self.sums.mask(flat, problem.federation.ids[clients], draws)
        return MaskedReply(masked.numbers, masked.keys, masked.clients, masked.agreed, column)

    def _added(self, state: State, clients: np.ndarray, reply: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums over clients of losses by domain (R, p) and of edges by classifier (R, N), 0 if not asked."""
        R, p, N = len(clients), state.estimate.shape[1], state.sources.size
        if self._masked:
            _check_columns("FedMultiBoost: the clients of a round", reply.column, N)
            total = self.sums.total(reply)
            losses, edges = total[:, :p], np.zeros((R, N))
            np.put_along_axis(edges, reply.column, total[:, p:], axis=1)
            return losses, edges
        losses = np.array([np.bincount(state.domain[c], v, p) for c, v in zip(clients, reply.loss, strict=True)])
        return losses, np.array([np.bincount(c, v, N) for c, v in zip(reply.column, reply.edge, strict=True)])

    def aggregate(self, state: State, clients: np.ndarray, weights: np.ndarray, reply: Any) -> State:
        w, t, p = state.w.copy(), state.t + 1, state.estimate.shape[1]
        history = np.zeros((len(w), state.history.shape[1] + 1, 6))
        history[:, :-1] = state.history
        held, rows = np.bincount(state.domain, minlength=p), np.bincount(state.domain, state.sizes, p)
        scale = held / np.bincount(state.domain[clients[0]], minlength=p) / rows  # a_k
        losses, edges = self._added(state, clients, reply)
        seen = np.array([np.bincount(state.domain[c], state.sizes[c], p) for c in clients])
        estimate, edges = 1.0 + scale * (losses - seen), edges * scale[state.sources]
        eta = step_sizes.round_step_sizes(self.step_size, np.arange(len(w)), 0)
        for r in range(len(w)):
            worst = estimate[r] == estimate[r].max()  # 5
            gains = np.where(worst[state.sources], edges[r], 0.0)
            j = int(np.argmax(gains))  # 6
            if gains[j] > 0.0:
                history[r, -1] = (state.sources[j], j, 0.0, 0.0, 0.0, eta[r] / np.sqrt(t))
                w[r, j] += history[r, -1, 5]  # 7
        return State(w, t, history, state.sizes, state.domain, state.sources, estimate)

    def check_state(self, problem: EnsembleProblem, state: State) -> None:
        """Raise unless the history of a state names classifiers of the problem."""
        problem.check_stages(state.history)

    def words(self, problem: EnsembleProblem) -> Words:
        return Words("FedMultiBoost, the maximum itself")

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


def _check_columns(who: str, column: np.ndarray, most: int) -> None:
    """Raise unless classifiers that a client answers for are numbers of the dictionary, -1 for none."""
    wrong = column[(column < -1) | (column >= most)]
    if wrong.size:
        raise bad(who, f"answer for classifiers 0, ..., {most - 1}", int(wrong[0]))


def _domain_of_clients(problem: EnsembleProblem, asked: Any = slice(None)) -> np.ndarray:
    """Return the domain of every client, known of those that are asked."""
    domain = np.array(problem.statistic("client_domain")).ravel()
    wrong = (domain[asked] < 0) | (domain[asked] >= problem.p)
    if wrong.any():
        who = problem.federation.labels[asked][int(np.argmax(wrong))]
        cure = "make one client per (client, domain) pair"
        raise bad(f"FedMultiBoost: client {who}", "hold rows of one domain", "several domains", cure)
    return domain


def _sample(draws: Draws, n: int, m: int, k: int, purpose: int) -> np.ndarray:
    """Return m <= n different numbers below n for every trajectory, (R, m)."""
    if m == n:
        return np.tile(np.arange(n), (draws.trajectory.size, 1))
    return np.argsort(draws.uniform(n, k, purpose), axis=1)[:, :m]
