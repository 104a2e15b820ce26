"""How much a client does in a round: local steps or epochs on mini-batches, shared by the methods with local SGD."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from fedconvex._check import bad
from fedconvex.draws import Draws
from fedconvex.fields import BatchDraw, CheckedFields, Count, CountPerClient, Flag
from fedconvex.kernels import descent, many_rounds
from fedconvex.methods.parts import step_sizes
from fedconvex.methods.parts.optimizers import Averaging, ClientSGD, ServerOptimizer
from fedconvex.methods.parts.participation import (
    Participation,
    participants_of_rounds,
    sampling_of,
    traits_of_sampling,
    who_takes_part,
)
from fedconvex.methods.parts.step_sizes import StepSize
from fedconvex.problems import FederatedProblem, Problem
from fedconvex.traits import RENORMALISE, LocalSteps, Traits
from fedconvex.words import Words, steps_in_words


@dataclass(frozen=True, kw_only=True)
class LocalWork(CheckedFields):
    """Fields of the methods whose clients take steps on mini-batches, as `fedconvex.FedAvg` documents them."""

    schedules = frozenset({"step_size"})  # fields whose `Decay` may count local steps

    step_size: StepSize
    local_steps: CountPerClient = 1
    epochs: Count | None = None
    batch_size: Count | None = None
    replacement: Flag = False
    shrink: Flag = False
    batch_draw: BatchDraw = "uniform"

    draws_by_weight = True  # whether rows may be drawn by weight

    def __post_init__(self) -> None:
        super().__post_init__()
        who = type(self).__name__
        if self.shrink and self.replacement:
            raise bad(f"{who}.shrink", "be False where batches are drawn with replacement", "True", "they always fit")
        if self.epochs is not None and self.local_steps != 1:
            raise bad(who, "be given local_steps or epochs", "both")
        if self.batch_size is None and self.replacement:
            raise bad(f"{who}.replacement", "come with a batch_size", "batch_size=None", "full batches are not drawn")
        if self.batch_draw == "weighted" and not self.draws_by_weight:
            raise bad(f"{who}.batch_draw", "be 'uniform': its rows are weighted by domain", "'weighted'")
        if self.batch_draw == "weighted" and not self.replacement:
            raise bad(f"{who}.batch_draw", "be 'uniform', or come with replacement=True", "'weighted'")

    def again(self, problem: Problem) -> Any:
        """Return whether rows are drawn with replacement, or by which cumulative weights of theirs."""
        weighted = self.batch_draw == "weighted" and problem.cumulative_row_weights is not None
        return problem.cumulative_row_weights if weighted else self.replacement

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem and its R trajectories.

        Schedules that count local steps, and ``shadow``, need equally many steps everywhere.
        """
        super().check_fit(problem, R)
        who, sizes = type(self).__name__, problem.federation.sizes
        if self.batch_size is not None and self.epochs is None and not (self.replacement or self.shrink):
            cure = "use shrink=True (smaller clients take all rows), epochs= or replacement=True"
            check_batches(who, np.broadcast_to(self.batch_size, sizes.shape), problem, cure)
        given = [getattr(self, name) for name in self.schedules]
        per_step = any(isinstance(x, step_sizes.Decay) and not x.by_round for x in given)
        counts = step_sizes.step_counts(self.plan(sizes, np.arange(sizes.size)))
        if (per_step or getattr(self, "shadow", False)) and counts.min() != counts.max():
            cure = "use one number of local_steps=" + (", or Decay(..., by_round=True)" if per_step else "")
            what = "a schedule that counts local steps" if per_step else "shadow"
            raise bad(f"{who}: {what}", "have equally many steps everywhere", f"{counts.min()} to {counts.max()}", cure)

    def plan(self, sizes: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """Return passes, rows per pass and rows per step of clients, which have so many rows: (*sizes.shape, 3)."""
        block = sizes if self.epochs is not None or self.batch_size is None else self.batch_size
        block = np.minimum(block, sizes) if self.shrink else block
        batch = block if self.batch_size is None else np.minimum(self.batch_size, block)
        return plan_of(sizes, self.steps_each(clients) if self.epochs is None else self.epochs, block, batch)

    def steps_each(self, clients: np.ndarray) -> Any:
        """Return the local steps of clients: one number for all, or an array of theirs."""
        return np.array(self.local_steps)[clients] if isinstance(self.local_steps, tuple) else self.local_steps

    def asked(self, problem: FederatedProblem, clients: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Return the plan (R, m, 3) of clients (R, m) in a round, and their step sizes, (R, 1, steps or 1).

        Plans may be those of earlier rounds: who changes one changes a copy.
        """
        if not self._even or clients.size > _KEPT:
            plan = self.plan(problem.federation.sizes[clients], clients)
        else:
            plan = _even_plan(clients.shape, self.local_steps, self.batch_size)
        return plan, step_sizes.step_sizes(self.step_size, draws.trajectory, draws.round, plan)

    @property
    def _even(self) -> bool:
        """Whether all clients have the same plan, whatever their size."""
        alike = self.batch_size is not None and self.epochs is None and not self.shrink
        return alike and not isinstance(self.local_steps, tuple)

    def local_models(
        self, problem: Problem, w: np.ndarray, clients: np.ndarray, draws: Draws, shadow: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take the steps on f_k from w (R, *model) or (R, m, *model): models (R, m, *model) and their paths."""
        plan, eta = self.asked(problem, clients, draws)
        client = getattr(self, "client", ClientSGD())
        return descent.local_updates(problem, client, w, clients, draws, eta, plan, self.again(problem), shadow)

    def words(self, problem: Any) -> Words:
        """Return how it works on a problem."""
        return self.steps_in_words(problem)

    def steps_in_words(self, problem: FederatedProblem, **more: Any) -> Words:
        """Return words for local steps or epochs, and who takes part; and what else `fedconvex.words` takes."""
        who = who_takes_part(getattr(self, "participation", None), problem.federation.K)
        if self.epochs is None:
            return steps_in_words(self, self.local_steps, self.batch_size, who, **more)
        return steps_in_words(self, self.epochs, self.batch_size, who, kind="local epoch", letter="E", **more)

    def steps_of(self, problem: FederatedProblem, plain: bool) -> LocalSteps:
        """Return the local steps of every client, as traits; plain: w <- w - eta grad f_k(w; b), and nothing else."""
        sizes = problem.federation.sizes
        plan = self.plan(sizes, np.arange(sizes.size))
        even = plan[:, 1] % plan[:, 2] == 0  # a pass ends with a whole batch
        one_batch = (plan[:, 1] == plan[:, 2]) & (self.epochs is None or plan[:, 2] == sizes)
        fresh = bool((one_batch | (even & self.replacement)).all())
        counts, ones = step_sizes.step_counts(plan), np.ones(sizes.size)
        mine = self.step_size, counts, plan[:, 2], sizes, self.replacement, plain, fresh, ones
        return LocalSteps(*mine, self.batch_draw == "weighted")


PARTS = LocalWork.asked, LocalWork.local_models  # of rounds that `models_ahead` computes


@dataclass(frozen=True, kw_only=True)
class AveragedWork(LocalWork):
    """The same, and who takes part, and SERVEROPT: a server averages the answers and moves along their difference."""

    participation: Participation = 1.0
    server: ServerOptimizer = Averaging()

    lost: ClassVar[Any] = RENORMALISE

    def models_ahead(
        self, problem: Problem, server: FederatedProblem, w: np.ndarray, draws: Draws, n: int, late: bool,
        mu: np.ndarray | None = None,
    ) -> Any:  # fmt: skip
        """Return the models (n, R, *model) after each of n rounds, or fewer, from w on; None for rounds one by one.

        The first is draws.round; clients descend f_k(w) + (mu/2) ‖w - w_t‖^2, mu (R,), or f_k(w). Early rounds are
        computed only by the kernel that single rounds have too.
        """
        if type(self.server) is not Averaging or isinstance(self.again(problem), np.ndarray):
            return None
        work, m, R, blocks = self._work(problem), sampling_of(self.participation, server)[1], len(w), []
        if work is None or not (late or work.lanes):
            return None
        small = R * work.cost(problem, m) <= many_rounds.MOST
        if not small and (R == 1 or not work.lanes):
            return None
        n, few = work.sizes(problem, n, R, m)
        for low, high in itertools.pairwise([*range(0, max(1, R - 7), few), R]):  # the last part is no very small one
            part = draws._replace(trajectory=draws.trajectory[low:high])
            its = None if mu is None else mu[low:high]
            blocks.append(self._some_ahead(problem, server, work, w[low:high], part, n, late and small, its))
            if blocks[-1] is None:
                return None
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)

    def _some_ahead(
        self, problem: Problem, server: FederatedProblem, work: Any, w: np.ndarray, draws: Draws, n: int, late: bool,
        mu: np.ndarray | None,
    ) -> Any:  # fmt: skip
        """Do so for so few trajectories that a block of their rounds stays in the caches."""
        drawn = participants_of_rounds(self.participation, server, draws, n)
        if drawn is None:
            return None
        clients, weights = drawn
        if self._even:
            plan = _even_plan((1, 1), self.local_steps, self.batch_size)[None]
        else:
            plan = self.plan(problem.federation.sizes[clients], clients)
        rounds = range(draws.round, draws.round + n)
        if not isinstance(self.step_size, step_sizes.Decay):
            rounds = rounds[:1]
        eta = np.stack([step_sizes.step_sizes(self.step_size, draws.trajectory, t, plan[0]) for t in rounds])
        drawn = clients, weights, draws, eta, plan, self.again(problem), late, mu
        return many_rounds.averaged(self._rules(problem), problem, work, w, n, *drawn)

    def _rules(self, problem: Problem) -> Any:
        even = not isinstance(problem.ridge, np.ndarray)
        return descent.rules(getattr(self, "client", ClientSGD()), problem.n_outputs, even)

    def _work(self, problem: Problem) -> Any:
        """Return what all clients do, found once for a problem; None where they do not do the same."""
        method, work = _WORK.get(problem, (None, None))
        if method is not self:
            sizes = problem.federation.sizes
            plan = self.plan(sizes, np.arange(sizes.size))
            work = many_rounds.work_of(self._rules(problem), problem, plan, self.again(problem))
            _WORK[problem] = self, work
        return work

    def averaging_traits(self, problem: FederatedProblem, *drawn: str, plain: bool, averaged: bool = True) -> Traits:
        """Return the traits, averaged: the server moves by a weighted average of the answers.

        drawn : what a round draws beside clients and batches.
        """
        step = getattr(self.server, "plain_step", None) if averaged else None
        local = self.steps_of(problem, plain)
        by_round = step_sizes.decays(self)
        return traits_of_sampling(self.participation, problem, *drawn, local=local, server_step=step, by_round=by_round)


@dataclass(frozen=True, kw_only=True)
class PooledWork(CheckedFields):
    """Fields of centralised methods that draw mini-batches of the pooled rows, as `fedconvex.SGD` documents them."""

    batch_size: Count = 1
    replacement: Flag = False

    def check_fit(self, problem: FederatedProblem, R: int) -> None:
        """Raise if a setting does not fit the problem, or pooled rows do not weigh 1/n each."""
        super().check_fit(problem, R)
        who, fed = type(self).__name__, problem.federation
        if np.abs(problem.weights - fed.masses / fed.masses.sum()).max() > 1e-9:
            raise bad(f"{who}: Problem.weights", "be n_k/n", "others", "pass weights=None, or use GradientDescent")
        if self.batch_size > fed.n and not self.replacement:
            raise bad(f"{who}.batch_size", f"be at most the number of rows {fed.n}", self.batch_size)

    def drawn(self, problem: FederatedProblem) -> tuple[str, ...]:
        """Return what is random about mini-batches, for the traits: nothing if they hold all rows."""
        return () if self.batch_size == problem.federation.n and not self.replacement else ("batches",)


def plan_of(sizes: np.ndarray, passes: Any, block: Any, batch: Any) -> np.ndarray:
    """Return passes, rows per pass and rows per step in one array: (*sizes.shape, 3)."""
    plan = np.empty((*sizes.shape, 3), dtype=np.int64)
    plan[..., 0], plan[..., 1], plan[..., 2] = passes, block, batch
    return plan


_WORK: WeakKeyDictionary = WeakKeyDictionary()  # of a problem's clients, for the method that asked last
_KEPT = 2**16  # jobs whose plan is kept from round to round, at most


@lru_cache(maxsize=4)
def _even_plan(shape: tuple[int, int], steps: int, batch: int) -> np.ndarray:
    """Return the plan of clients that all take so many steps on so many rows."""
    return plan_of(np.empty(shape), steps, batch, batch)


def check_batches(who: str, batch: np.ndarray, problem: FederatedProblem, cure: str = "") -> None:
    """Raise if a mini-batch, (K,), drawn without replacement exceeds its client."""
    fed = problem.federation
    if (batch > fed.sizes).any():
        k = int(np.argmin(fed.sizes - batch))
        raise bad(
            f"{who}.batch_size", f"be at most {fed.sizes[k]}, the rows of client {fed.labels[k]}", int(batch[k]), cure
        )
