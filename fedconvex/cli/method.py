"""The method of a run: step sizes from the exact smoothness constants, and what each method takes."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedconvex._check import bad
from fedconvex._files import check_file, check_folder
from fedconvex.cli.named import check_named, named_method, with_settings
from fedconvex.cli.penalty import proximal_method
from fedconvex.families import declared
from fedconvex.loss_traits import traits
from fedconvex.registry import class_named, command_of, method_names, methods
from fedconvex.words import counted, spanned

if TYPE_CHECKING:
    from fedconvex.constants.default_steps import Smoothness
    from fedconvex.federation import Federation
    from fedconvex.problems import Problem


def told(name: str) -> bool:
    """Whether a method is told in a sentence; of others the settings are listed."""
    return hasattr(class_named(name), "constant_step")


def default_step(method: Any, problem: Problem, smooth: Smoothness) -> tuple[Any, str]:
    """Return the default step size of a method, and the formula it comes from."""
    from fedconvex.constants.default_steps import kink_step
    from fedconvex.methods import Decay

    if math.isinf(traits(problem.loss).smoothness) and not smooth.where:
        step = kink_step(smooth, problem.l2)
        return Decay(step.value.scale, step.value.shift, by_round=True), step.formula
    step = method.constant_step(problem, smooth)
    return step.value, step.formula


def method_of(args: argparse.Namespace, problem: Problem, smooth: Smoothness) -> tuple[Any, str]:
    """Return the method and a phrase with its settings."""
    from fedconvex.methods.parts.participation import sampling_of

    if not told(args.method):
        return named_method(args, problem)
    method, work, more = _usual_method(args, problem, rows_of(args, problem.federation))
    asked = args.step_size, "what was asked"
    step, formula = default_step(method, problem, smooth) if args.step_size is None else asked
    if hasattr(method, "participation"):
        sampling, m = sampling_of(method.participation, problem)
        work += ", everybody takes part" if sampling == "everyone" else f", {m} client{'s' * (m > 1)} a round"
    phrase = f"{work}, step size {f'{step:.4g} = ' if isinstance(step, float) else ''}{formula}{more}"
    return with_settings(args, replace(method, step_size=step), phrase)


def _usual_method(args: argparse.Namespace, problem: Problem, rows: str) -> tuple[Any, str, str]:
    """Return one of the methods whose settings are options, its step size open; what it does, and last words."""
    from fedconvex import methods as known

    share = 1.0 if args.participation is None else args.participation
    work: dict[str, Any] = {"batch_size": args.batch_size, "participation": share, "shrink": True, "step_size": 1.0}
    if args.penalty is not None or methods()[args.method].penalised:
        return *proximal_method(args, share, rows), ""
    if args.method == "gd":
        return known.GradientDescent(step_size=1.0), "GradientDescent on the pooled rows", ""
    if args.method == "fedsgd":
        return known.FedSGD(**work), f"FedSGD, one gradient a round on {rows}", ""
    if args.method == "sgd":
        n = problem.federation.n
        batch = min(args.batch_size or 32, n)
        steps = args.local_steps or (args.epochs or 1) * -(-n // batch)
        method = known.SGD(step_size=1.0, batch_size=batch, steps=steps)
        return method, f"SGD on the pooled rows, {steps} step{'s' * (steps > 1)} a round on {batch} rows each", ""
    if args.epochs is not None:
        work["epochs"] = args.epochs
        local = f"{args.epochs} local epoch{'s' if args.epochs > 1 else ''} in batches of {rows}"
    else:
        work["local_steps"] = args.local_steps or 1
        local = f"{counted(spanned(work['local_steps']), 'local step')} on {rows}"
    if args.method == "scaffold":
        server, words = _server_step(problem, share)
        return known.SCAFFOLD(server_step=server, **work), f"SCAFFOLD, {local}", words
    assert args.method == "fedavg", f"{args.method} has a constant_step, but no sentence here"
    return known.FedAvg(**work), f"FedAvg, {local}", ""


def rows_of(args: argparse.Namespace, fed: Federation) -> str:
    """Return how many rows a step takes, in words; batches shrink to smaller clients."""
    if args.batch_size is None:
        return "all rows"
    small = int((fed.sizes < args.batch_size).sum())
    clients = f"{small:,} smaller client{'s' * (small > 1)}" if small < fed.K else "every client, as all are smaller"
    return f"{args.batch_size} rows" + (f" (all rows of {clients})" if small else "")


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
    check_named(args)
    for family, option in [(name, option) for name, found in declared().items() for option in found.options]:
        if getattr(args, option.name) is not None and methods()[args.method].family != family:
            known = " or ".join(method_names(family))
            raise bad(f"--{option.name}", f"come with --method {known}", f"--method {args.method}")
    if methods()[args.method].family:
        command_of(args.method).check(args)
    if args.test_size is not None and args.test_size >= 1.0:
        raise bad("--test-size", "lie strictly between 0 and 1", args.test_size)
    if args.loss == "hinge" and args.l2 == 0.0:
        raise bad("--loss hinge", "have --l2 above 0 (without it nothing certifies the optimum)", "--l2 0")
    if args.plot is not None:
        from fedconvex.report.plots import check_plot_path

        check_plot_path(args.plot, "--plot")
    if args.checkpoint is not None:
        check_file("--checkpoint", args.checkpoint)
    if args.save is not None:
        check_folder("--save", args.save)


def own_model(alone: Any) -> tuple[np.ndarray, bool]:
    """Return a client's own optimum; with the intercept penalised, and True, where it would grow without bound."""
    best = alone.solve()
    if best.attained or alone.free is None:
        return best.w, False
    return type(alone)(alone.federation, alone.loss, alone.l2, penalty=alone.penalty).solve().w, True
