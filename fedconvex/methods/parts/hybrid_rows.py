"""What dual methods over blocks share: rows are drawn in every group, owners answer parts of scores and of the model.

The server is whoever knows the labels. It keeps the model w and the dual variables alpha, one a row. Rows of a group
stand in slots, min(H, n_g) of them; a slot whose group does not answer holds -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex import draws as _draws
from fedconvex._check import bad, wrong_type
from fedconvex.draws import GROUP_DROPS, Draws
from fedconvex.fields import CheckedFields, Count, Share
from fedconvex.loss_traits import traits
from fedconvex.methods.parts.participation import UniformSampling, as_participation, participants
from fedconvex.problems import Measure
from fedconvex.solvers.kinked.dual import drawn_scores, drawn_sums, steps_at_once
from fedconvex.traits import Traits, counted_by
from fedconvex.words import Words


class State(NamedTuple):
    """What the server keeps."""

    w: np.ndarray  # (R, d)
    alpha: np.ndarray  # (R, n)
    rows: np.ndarray  # (R, M) rows of the round, -1 where a group did not answer
    z: np.ndarray  # (R, M) their scores
    delta: np.ndarray  # (R, M) by which their dual variables move
    place: np.ndarray  # (K, 4) slots and columns of every block, from and to
    phase: int  # which exchange of the round comes next
    t: int  # rounds done


@counted_by("counts")
class Message(NamedTuple):
    """Server to owners."""

    w: np.ndarray  # (R, d) every owner is sent its columns, in the first exchange
    rows: np.ndarray  # (R, M) rows of the round: every owner draws them itself
    z: np.ndarray  # (R, M) scores of its rows, where it takes local steps
    alpha: np.ndarray  # (R, M) every owner keeps those of its rows
    delta: np.ndarray  # (R, M) moves of its rows, in the last exchange
    counts: np.ndarray  # (R, K) how many numbers every owner is sent
    phase: int


@counted_by("counts")
class Scores(NamedTuple):
    """Owners to server: x_ib'w_b, or moves, of the rows of the round."""

    z: np.ndarray  # (R, m, H)
    rows: np.ndarray  # (R, m, H) not sent: the server draws them too
    counts: np.ndarray  # (R, m) how many numbers an owner sends


@counted_by("counts")
class Parts(NamedTuple):
    """Owners to server: X_b'delta/(l2 n)."""

    step: np.ndarray  # (R, m, D), D the most columns of a block
    counts: np.ndarray  # (R, m)


class GroupSampling(NamedTuple):
    """The rule of how many groups of rows take part in a round."""

    def __call__(self, who: str, x: Any) -> Any:
        scheme = as_participation(who, x)
        if not isinstance(scheme, (UniformSampling, float, type(None))):
            raise wrong_type(who, "be a number of row groups, or a share of them", f"{x!r}")
        return scheme

    def fit(self, who: str, scheme: Any, problem: Any, R: int) -> None:
        """Raise if the scheme asks for more groups than there are."""
        G = len(problem.grid[0]) - 1
        if isinstance(scheme, UniformSampling) and scheme.clients > G:
            raise bad(who, f"be at most the number of row groups {G}", scheme.clients)


@dataclass(frozen=True, kw_only=True)
class RowWork(CheckedFields):
    """Which rows move in a round: fields of `HybridDualAscent` and `HyFDCA`.

    Parameters
    ----------
    batch_size, participation, drop
        As for `HybridDualAscent`.
    """

    batch_size: Count | None = None
    participation: Annotated[Any, GroupSampling()] = 1.0
    drop: Share = 0.0

    def check_fit(self, problem: Any, R: int) -> None:
        """Raise if a setting does not fit the problem, or its loss has no dual step."""
        super().check_fit(problem, R)
        loss = problem.loss
        if not (hasattr(loss, "conjugate") and hasattr(loss, "dual_step")) or traits(loss).several:
            cure = "use Logistic, Squared, Hinge or SmoothedHinge, or TrackedBlockDescent"
            raise wrong_type(f"{type(self).__name__}: problem", "have a loss with a dual step", f"{loss!r}", cure)

    def heights(self, problem: Any) -> np.ndarray:
        """Return how many rows of every group move in a round, (G,)."""
        sizes = np.diff(problem.grid[0])
        return sizes if self.batch_size is None else np.minimum(self.batch_size, sizes)

    def groups(self, problem: Any) -> int:
        """Return how many groups of rows are asked in a round."""
        G, scheme = len(problem.grid[0]) - 1, self.participation
        if isinstance(scheme, UniformSampling):
            return scheme.clients
        return G if scheme is None else max(1, round(scheme * G))

    def participants(self, problem: Any, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Return all blocks (R, K): those whose group is not asked, or does not answer, send nothing."""
        return participants(None, problem, draws)

    def drawn(self, problem: Any, draws: Draws, g: int) -> np.ndarray:
        """Return the rows of group g in a round, (R, h), -1 where the group does not answer."""
        fed, R, G = problem.federation.rows, draws.trajectory.size, problem.federation.G
        lo, n, h, m = int(fed.ptr[g]), int(fed.sizes[g]), int(self.heights(problem)[g]), self.groups(problem)
        rows = np.tile(np.arange(h), (R, 1))
        where = draws.key, draws.trajectory, draws.round
        if h < n:
            _draws.choose_many(*where, int(fed.ids[g]), _draws.BATCHES, n, h, rows)
        rows += lo
        if m < G:
            asked = np.empty((R, m), np.int64)
            _draws.choose_many(*where, -1, _draws.PARTICIPATION, G, m, asked)
            rows[~(fed.by_key[asked] == g).any(axis=1)] = -1
        if self.drop > 0.0:
            rows[draws.uniform(1, int(fed.ids[g]), GROUP_DROPS)[:, 0] < self.drop] = -1
        return rows

    def words(self, problem: Any) -> Words:
        """Return which rows move in a round."""
        rows = "all rows" if self.batch_size is None else f"{self.batch_size} rows of every group"
        late = f", {self.drop:g} of groups do not answer" if self.drop else ""
        short = [f"B {self.batch_size}"] * (self.batch_size is not None) + [f"drop {self.drop:g}"] * bool(self.drop)
        return Words(f"{type(self).__name__}, {rows}{late}", tuple(short))

    def traits(self, problem: Any) -> Traits:
        """Return what is drawn in a round."""
        some = bool((self.heights(problem) < np.diff(problem.grid[0])).any())
        asked = self.groups(problem) < len(problem.grid[0]) - 1
        kinds = (("rows", some), ("clients", asked), ("stragglers", self.drop > 0.0))
        return Traits(drawn=tuple(name for name, drawn in kinds if drawn))


def slots_of(work: RowWork, problem: Any) -> np.ndarray:
    """Return where the slots of every group begin and end, (G+1,)."""
    return np.concatenate([[0], np.cumsum(work.heights(problem))])


def start(work: RowWork, problem: Any, w: np.ndarray) -> State:
    """Return the state with alpha = 0."""
    if w.any():
        who = f"{type(work).__name__}: start"
        raise bad(who, "be zero, since the model follows from dual variables", "another")
    _, columns, cells = problem.grid
    slots = slots_of(work, problem)
    g, b = cells.T
    place = np.column_stack([slots[g], slots[g + 1], columns[b], columns[b + 1]])
    none = np.full((len(w), int(slots[-1])), -1)
    zeros = np.zeros(none.shape)
    return State(w, np.zeros((len(w), problem.y.size)), none, zeros, zeros, place, 0, 0)


def message_of(state: State, columns: int, numbers: int) -> Message:
    """Return a message that costs so many numbers for each column, and for each row that moves, of an owner."""
    lo, hi, first, last = state.place.T
    active = np.where(state.rows[:, lo] >= 0, hi - lo, 0)
    counts = columns * (last - first) + numbers * active
    alpha = np.take_along_axis(state.alpha, np.maximum(state.rows, 0), axis=1)
    return Message(state.w, state.rows, state.z, alpha, state.delta, counts, state.phase)


def score_parts(work: RowWork, problem: Any, message: Message, clients: np.ndarray, draws: Draws) -> Scores:
    """Return x_ib'w_b of the rows that every block draws."""
    fed, most = problem.federation, int(work.heights(problem).max())
    z, rows = np.zeros((*clients.shape, most)), np.full((*clients.shape, most), -1)
    drawn = {g: work.drawn(problem, draws, g) for g in {int(g) for g in fed.cells[clients, 0].flat}}
    for (r, j), k in np.ndenumerate(clients):
        (mine, columns), i = fed.place(k), drawn[int(fed.cells[k, 0])][r]
        if i[0] >= 0:
            rows[r, j, : i.size] = i
            z[r, j, : i.size] = _scores(fed, k, i - mine.start, message.w[r, columns])
    return Scores(z, rows, (rows >= 0).sum(axis=2))


def _scores(fed: Any, k: int, rows: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return x_ib'w_b of some rows of block k; SciPy copies CSR rows, which takes longer than their scores."""
    if not fed.is_sparse:
        return np.asarray(rows_of(fed.block(k), rows) @ w)
    z = np.empty(rows.size)
    drawn_scores(fed.sparse_rows[k], rows, np.ascontiguousarray(w), z)
    return z


def _sums(fed: Any, k: int, rows: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Return the sum of s_e x_ib over some rows of block k."""
    if not fed.is_sparse:
        return np.asarray(rows_of(fed.block(k), rows).T @ s)
    total = np.zeros(int(fed.widths[k]))
    drawn_sums(fed.sparse_rows[k], rows, np.ascontiguousarray(s), total)
    return total


def rows_of(X: Any, rows: np.ndarray) -> Any:
    """Return some rows, or X itself where they are all of them in order."""
    return X if rows.size == X.shape[0] and rows[0] == 0 and (np.diff(rows) == 1).all() else X[rows]


def entered(state: State, clients: np.ndarray, reply: Scores) -> State:
    """Return the state with the rows of the round and their scores, summed over owners."""
    z, rows = np.zeros_like(state.z), np.full_like(state.rows, -1)
    for r, j in np.ndindex(*clients.shape):
        lo, hi = state.place[clients[r, j], :2]
        z[r, lo:hi] += reply.z[r, j, : hi - lo]
        rows[r, lo:hi] = reply.rows[r, j, : hi - lo]
    return state._replace(rows=rows, z=z, phase=state.phase + 1)


def stepped(problem: Any, state: State) -> np.ndarray:
    """Return delta_i = argmin l*(-(alpha_i + delta)) + z_i delta + (N ‖x_i‖^2/(2 l2 n)) delta^2 of N rows, (R, M)."""
    delta, n = np.zeros_like(state.z), problem.y.size
    for r, rows in enumerate(state.rows):
        some = rows >= 0
        i, steps = rows[some], np.empty(int(some.sum()))
        q = steps.size / (problem.l2 * n) * problem.row_norms[i]
        steps_at_once(problem.loss, state.alpha[r, i], state.z[r, some], q, problem.y[i], steps)
        delta[r, some] = steps
    return delta


def moved(state: State, delta: np.ndarray) -> State:
    """Return the state whose dual variables have moved."""
    alpha = state.alpha.copy()
    for r, rows in enumerate(state.rows):
        alpha[r, rows[rows >= 0]] += delta[r, rows >= 0]
    return state._replace(alpha=alpha, delta=delta)


def sum_parts(work: RowWork, problem: Any, message: Message, clients: np.ndarray) -> Parts:
    """Return X_b'delta/(l2 n) of every block."""
    fed, slots = problem.federation, slots_of(work, problem)
    step, counts = np.zeros((*clients.shape, int(fed.widths.max()))), np.zeros(clients.shape, np.int64)
    for r, j in np.ndindex(*clients.shape):
        k = int(clients[r, j])
        lo, hi = slots[fed.cells[k, 0]], slots[fed.cells[k, 0] + 1]
        rows, d = message.rows[r, lo:hi], int(fed.widths[k])
        if rows[0] >= 0:
            total = _sums(fed, k, rows - fed.place(k)[0].start, message.delta[r, lo:hi])
            step[r, j, :d] = total / (problem.l2 * fed.n)
            counts[r, j] = d
    return Parts(step, counts)


def summed(state: State, clients: np.ndarray, reply: Parts) -> State:
    """Return the state whose model has moved; the next exchange is the first of a round."""
    w = state.w.copy()
    for r, j in np.ndindex(*clients.shape):
        first, last = state.place[clients[r, j], 2:]
        w[r, first:last] += reply.step[r, j, : last - first]
    return state._replace(w=w, phase=0, t=state.t + 1)


def measure(method: Any, problem: Any, state: State) -> Measure:
    """Return F(w), and the duality gap F(w) - D(alpha) or ‖grad F‖^2/(2 l2), whichever is less."""
    return problem.dual_measure(state.w, state.alpha)


def observe(method: Any, problem: Any, state: State) -> dict[str, np.ndarray]:
    """Return the dual value D(alpha)."""
    return {"dual": np.array([problem.dual_value(a) for a in state.alpha])}
