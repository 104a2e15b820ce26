"""Runs with full local steps for several l2 side by side: their models are the columns of one product with the rows.

Everybody takes part and takes tau steps on all rows, so that nothing is drawn. A round of FedAvg, FedProx and SCAFFOLD:

    v_k <- x, tau times: v_k <- v_k - eta (grad f_k(v_k) + mu (v_k - x) + c - c_k);   x <- sum_k p_k v_k,

with mu = 0 but for FedProx, and c = c_k = 0 but for SCAFFOLD, whose clients renew c_k <- c_k - c + (x - v_k)/(tau eta),
and its server c <- sum_k p_k c_k. Products of eight models with rows take a third of what eight models take one by one;
where a run is done, the next takes its place. With few entries a client the methods themselves are as fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedconvex.kernels import row_losses
from fedconvex.problems import Problem

_WIDTH = 8  # models side by side
_NEAR = 1 << 16  # entries of rows at a time
_ENTRIES = 1 << 13  # of a client's rows, on average, from which it pays


def fits(problem: Problem) -> bool:
    """Whether runs on a problem may go side by side, and gain by it."""
    fed = problem.federation
    return problem.n_outputs == 1 and not fed.is_sparse and fed.X.size >= _ENTRIES * fed.K


@dataclass(eq=False)
class Run:
    """One run: its problem, its settings, and how far it has come.

    Attributes
    ----------
    problem : Problem
    step_size, mu : float
        eta, and the weight of FedProx's proximal term.
    corrects : bool
        Whether clients keep control variates.
    ended : function
        Called with x and F(x) at the start and after every round; whether the run is over.
    """

    problem: Problem
    step_size: float
    mu: float
    corrects: bool
    ended: Callable[[np.ndarray, float], bool]

    def __post_init__(self) -> None:
        self.x = np.zeros(self.problem.size)
        self.tilts = np.zeros((self.problem.federation.K, self.problem.size))  # c - c_k


def carry_out_together(runs: Sequence[Run], local_steps: int) -> None:
    """Carry out runs on the same rows, each until it has ended; they start at zero."""
    waiting, active = list(reversed(runs)), list[Run]()
    while waiting or active:
        while waiting and len(active) < _WIDTH:
            active.append(waiting.pop())
        values, answers = _round(active, local_steps)
        going = []
        for run, value, answer in zip(active, values, answers, strict=True):
            if not run.ended(run.x, value):
                _take(run, answer, local_steps)
                going.append(run)
        active = going


def _round(runs: list[Run], local_steps: int) -> tuple[list[float], list[np.ndarray]]:
    """Return F at the models of the runs, and what clients answer to them, (K, d) each."""
    x, tilts = _columns([run.x for run in runs]), _columns([run.tilts for run in runs])
    eta, mu = _columns([np.array(run.step_size) for run in runs]), _columns([np.array(run.mu) for run in runs])
    keep = 1.0 - eta * (_columns([np.broadcast_to(run.problem.ridge, run.x.shape) for run in runs]) + mu)
    answers, means, problem = np.empty((len(tilts), *x.shape)), np.zeros(_WIDTH), runs[0].problem
    for k, weight in enumerate(problem.row_weights.tolist()):
        v, fixed, share, blocks = x, eta * (tilts[k] - mu * x), eta / problem.federation.sizes[k], _blocks(problem, k)
        for s in range(local_steps):
            g: Any = 0.0
            for X, y in blocks:
                scores = X @ v
                if s == 0:
                    means += weight * _totals(problem.row_loss, scores, y)
                row_losses.row_slopes(problem.row_loss, scores, y)
                g = g + X.T @ scores
            v = keep * v - fixed - share * g
        answers[k] = v
    values = [float(mean) + run.problem.ridge_term(run.x) for run, mean in zip(runs, means, strict=False)]
    return values, [answers[:, :, i] for i in range(len(runs))]


def _columns(each: Sequence[np.ndarray]) -> np.ndarray:
    """Return arrays of the runs along a last axis, the last one repeated: slopes of eight models take one vector."""
    return np.stack([each[min(i, len(each) - 1)] for i in range(_WIDTH)], axis=-1)


def _blocks(problem: Problem, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the rows of a client and their labels, in blocks that stay in a cache next to the core."""
    fed, step = problem.federation, max(1, _NEAR // problem.size)
    ends = [*range(int(fed.ptr[k]), int(fed.ptr[k + 1]), step), int(fed.ptr[k + 1])]
    return [(fed.X[a:b], problem.row_labels[a:b]) for a, b in itertools.pairwise(ends)]


def _totals(loss: Any, scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the sums of the losses at the eight models."""
    losses = np.empty_like(scores)
    row_losses.row_values(loss, scores, y, losses)
    return np.asarray(np.ones(len(y)) @ losses)


def _take(run: Run, answers: np.ndarray, local_steps: int) -> None:
    """Average the answers (K, d), and renew control variates."""
    p = run.problem.weights
    if run.corrects:
        controls = (run.x - answers) / (local_steps * run.step_size) - run.tilts
        run.tilts = p @ controls - controls
    run.x = p @ answers
