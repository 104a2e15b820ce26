"""The method of a run: step sizes from the exact smoothness constants, and what each method takes."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedconvex._check import bad

if TYPE_CHECKING:
    from fedconvex.constants import Constants
    from fedconvex.federation import Federation
    from fedconvex.problems import Problem

__all__ = ["Smoothness", "check_settings", "in_batches", "method_of", "sampled", "several_steps", "step_size_of"]


@dataclass(frozen=True)
class Smoothness:
    """Smoothness of F, of the roughest client and of the roughest row; upper bounds where Hessians are too large."""

    F: float
    client: float
    row: float
    exact: bool
    where: str = ""

    @classmethod
    def of(cls, problem: Problem, constants: Constants | None) -> Smoothness:
        """Measure a problem."""
        from fedconvex.losses import Exponential

        fed, r = problem.federation, problem.l2
        squares = fed.X.multiply(fed.X).sum(axis=1) if fed.is_sparse else np.einsum("ij,ij->i", fed.X, fed.X)
        norms = np.asarray(squares).ravel()
        s = float(getattr(problem.loss, "smoothness", math.inf))
        if isinstance(problem.loss, Exponential):  # F <= F(0) = 1 bounds the curvature
            top = float(norms.max()) + r
            return cls(top, top, top, False, " where F <= F(0)")
        s = s if math.isfinite(s) else 1.0  # hinge: no smoothness, but a scale
        row = s * float(norms.max()) + r
        per_row = np.repeat(problem.row_weights, fed.sizes)
        if constants is None:
            tops = np.empty(fed.K)
            for k in range(fed.K):
                mine = slice(int(fed.ptr[k]), int(fed.ptr[k + 1]))
                tops[k] = _top_bound(fed.X[mine], norms[mine], np.full(fed.sizes[k], 1.0 / fed.sizes[k]))
            return cls(s * _top_bound(fed.X, norms, per_row) + r, s * float(tops.max()) + r, row, False)
        gram = fed.X.T @ (fed.X.multiply(per_row[:, None]) if fed.is_sparse else fed.X * per_row[:, None])
        dense = gram.toarray() if fed.is_sparse else gram
        assert constants.L is not None
        return cls(s * float(np.linalg.eigvalsh(dense)[-1]) + r, constants.L, row, True)


def _top_bound(X: Any, norms2: np.ndarray, weights: np.ndarray) -> float:
    """Upper bound of the largest eigenvalue of A = X'diag(weights)X, without forming it.

    The smaller of its trace and of max_j (Bv)_j / v_j with B = |X|'diag(weights)|X|, which bounds the Perron root of B,
    and so that of A, for every positive v (Collatz and Wielandt); power steps improve v.
    """
    best, size = float(weights @ norms2), abs(X)
    v = np.ones(X.shape[1])
    for _ in range(20):
        u = size.T @ (weights * (size @ v))
        best = min(best, float(np.max(u / v)))
        v = u / max(float(u.max()), 1e-300) + 1e-6
    return best * (1.0 + 1e-12)


def _expected_smoothness(n: np.ndarray, B: int, L: float, L_row: float) -> float:
    """Worst expected smoothness of mini-batches of B out of n rows (Gower et al., ICML 2019, Prop. 3.8)."""
    b = np.minimum(B, n).astype(float)
    m = np.maximum(n - 1.0, 1.0)
    return float(np.max(n * (b - 1.0) / (b * m) * L + (n - b) / (b * m) * L_row))


def step_size_of(args: argparse.Namespace, problem: Problem, smooth: Smoothness) -> tuple[Any, str]:
    """Return the default step size and the formula it comes from."""
    from fedconvex.losses import Hinge
    from fedconvex.methods import Decay

    fed = problem.federation
    if isinstance(problem.loss, Hinge):  # 2/(mu (t + t0)), t0 such that the first step is that of a curvature of 1
        shift = 2.0 * smooth.F / problem.l2
        return Decay(2.0 / problem.l2, shift, by_round=True), f"2/(l2 (t + {shift:.4g})), decaying: hinge has a kink"
    L = f"L{'' if smooth.exact else ' (bound)'}{smooth.where}"
    if args.method == "sgd":
        batch = min(args.batch_size or 32, fed.n)
        rough = _expected_smoothness(np.array([fed.n]), batch, smooth.F, smooth.row)
        return 1.0 / (2.0 * rough), f"1/(2 {L} of mini-batches)"
    if in_batches(args, fed):
        assert args.batch_size is not None
        rough = _expected_smoothness(fed.sizes, args.batch_size, smooth.client, smooth.row)
        return 1.0 / (2.0 * rough), f"1/(2 {L} of mini-batches)"
    if args.method == "gd" or not (several_steps(args, fed) or sampled(args, fed.K)):
        return 1.0 / smooth.F, f"1/({L} of F)"
    return 1.0 / smooth.client, f"1/{L}"


def in_batches(args: argparse.Namespace, fed: Federation) -> bool:
    """Whether steps use some rows only."""
    if args.method == "sgd":
        return bool((args.batch_size or 32) < fed.n)
    return args.batch_size is not None and bool(args.batch_size < fed.sizes.max())


def several_steps(args: argparse.Namespace, fed: Federation) -> bool:
    """Whether clients take more than one step a round."""
    if args.epochs is not None:
        return args.epochs > 1 or in_batches(args, fed)
    return (args.local_steps or 1) > 1


def sampled(args: argparse.Namespace, K: int) -> bool:
    """Whether only some clients take part in a round."""
    if args.participation is None:
        return False
    if isinstance(args.participation, int):
        return args.participation < K
    return round(args.participation * K) < K


def method_of(args: argparse.Namespace, problem: Problem, step: Any, formula: str) -> tuple[Any, str]:
    """Return the method and a phrase with its settings."""
    from fedconvex import methods

    shown = f"step size {f'{step:.4g} = ' if isinstance(step, float) else ''}{formula}"
    who = "everybody takes part"
    if sampled(args, problem.federation.K):
        m = args.participation
        who = f"{m if isinstance(m, int) else max(1, round(m * problem.federation.K))} clients a round"
    share = 1.0 if args.participation is None else args.participation
    n = problem.federation.n
    if args.method == "gd":
        return methods.GradientDescent(step_size=step), f"GradientDescent on the pooled rows, {shown}"
    if args.method == "fedsgd":
        return methods.FedSGD(step_size=step, participation=share), f"FedSGD, one gradient a round, {who}, {shown}"
    if args.method == "sgd":
        batch = min(args.batch_size or 32, n)
        steps = args.local_steps or (args.epochs or 1) * -(-n // batch)
        method = methods.SGD(step_size=step, batch_size=batch, steps=steps)
        return method, f"SGD on the pooled rows, {steps} steps a round on {batch} rows each, {shown}"
    rows = "all rows" if args.batch_size is None else f"{args.batch_size} rows"
    work: dict[str, Any] = {"batch_size": args.batch_size, "participation": share}
    if args.epochs is not None:
        work["epochs"] = args.epochs
        local = f"{args.epochs} local epoch{'s' if args.epochs > 1 else ''} in batches of {rows}"
    else:
        work["local_steps"] = args.local_steps or 1
        local = f"{work['local_steps']} local step{'s' if work['local_steps'] > 1 else ''} on {rows}"
    if args.method == "scaffold":
        server, words = _server_step(problem, share)
        scaffold = methods.SCAFFOLD(step_size=step, server_step=server, **work)
        return scaffold, f"SCAFFOLD, {local}, {who}, {shown}{words}"
    return methods.FedAvg(step_size=step, **work), f"FedAvg, {local}, {who}, {shown}"


def _server_step(problem: Problem, share: float | int) -> tuple[float, str]:
    """Return a server step of SCAFFOLD, and words for it: S sampled clients weigh K p_k/S each, in sum at most 1."""
    K = problem.federation.K
    S = share if isinstance(share, int) else max(1, round(share * K))
    step = min(1.0, S / (K * float(np.sort(problem.weights)[::-1][:S].sum())))
    return (1.0, "") if step > 1.0 - 1e-9 else (step, f", server step {step:.4g}, since sampled clients are unequal")


def check_settings(args: argparse.Namespace) -> None:
    """Refuse settings that the method does not have, and places that cannot be written to."""
    if args.local_steps is not None and args.epochs is not None:
        raise bad("solve", "be given --local-steps or --epochs", "both")
    refused = {
        "fedsgd": ("local_steps", "epochs", "batch_size"),
        "gd": ("local_steps", "epochs", "batch_size", "participation"),
        "sgd": ("participation",),
    }
    for name in refused.get(args.method, ()):
        if getattr(args, name) is not None:
            cure = "use --method fedavg"
            raise bad(f"--method {args.method}", f"come without --{name.replace('_', '-')}", getattr(args, name), cure)
    if args.test_size is not None and args.test_size >= 1.0:
        raise bad("--test-size", "lie strictly between 0 and 1", args.test_size)
    if args.loss == "hinge" and args.l2 == 0.0:
        raise bad("--loss hinge", "have --l2 above 0 (without it nothing certifies the optimum)", "--l2 0")
    if args.plot is not None:
        from fedconvex.report.plots import check_plot_path

        check_plot_path(args.plot)
    if args.checkpoint is not None:
        file = Path(args.checkpoint)
        if file.is_dir() or not file.parent.is_dir():
            raise bad("--checkpoint", "be a file in an existing folder", args.checkpoint)
    if args.save is not None:
        folder = Path(args.save)
        probe = folder / f".fedconvex.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise bad("--save", "be a folder that can be written to", f"{args.save} ({error.strerror})") from None
