"""The command ``fedconvex solve``."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedconvex.cli.arguments import (
    add_data,
    add_owners,
    add_problem,
    add_seed,
    check_owners,
    choice,
    count,
    counts,
    number,
    participation,
)
from fedconvex.cli.input_data import Data, affordable, prepare
from fedconvex.cli.method import check_settings, method_of, own_model
from fedconvex.cli.named import method_name, setting
from fedconvex.cli.output import say, writing
from fedconvex.cli.parser import DIVERGED, OK
from fedconvex.cli.penalty import penalty, with_penalties
from fedconvex.cli.summary import (
    About,
    Solved,
    aim_of,
    certificate,
    facts,
    formula_of,
    intercept_words,
    listed_coefficients,
    summary,
    value_words,
)
from fedconvex.families import declared
from fedconvex.registry import command_of, methods
from fedconvex.traits import traits_of

if TYPE_CHECKING:
    from fedconvex.constants.default_steps import Smoothness
    from fedconvex.driver import Result
    from fedconvex.problems import Problem

_MOST_ALONE = 100  # clients whose own models are compared


def add_parser(commands: Any) -> None:
    """Add the command."""
    solve = commands.add_parser(
        "solve",
        description=textwrap.dedent("""\
            Fit a convex model to data that belong to several clients, and certify how far it is from the optimum.

            DATA is a .csv, .parquet, .svm (svmlight) or .npz file, or the name of a data set that comes with
            scikit-learn. Without DATA: breast_cancer, divided unevenly among ten clients. Several files are tables of
            owners of different columns of the same rows, joined on the column --on names; an owner is called by its
            file, or OWNER=FILE."""),
        epilog=textwrap.dedent("""\
            examples:
              fedconvex solve
              fedconvex solve wards.csv --target ill --client ward --test-size 0.25 --save out --plot out.png
              fedconvex solve bank.csv shop.csv --on customer --target default --owner-of-target bank
              fedconvex solve digits --clients 20 --partition shards:2 --local-steps 5"""),
    )
    solve.add_argument("data", nargs="*", metavar="DATA", help="file or bundled data set; see above")
    group = add_data(solve)
    add_owners(group.add_argument)
    group.add_argument(
        "--test-size", metavar="S", type=number("--test-size", low=0.0, strict=True), help="share of rows held out"
    )
    add_problem(solve, auto=True).add_argument(
        "--penalty",
        type=penalty,
        metavar="P",
        help="l1:S, elastic-net:S[:RATIO], groups:S:COLUMNS, nonnegative[:S], box:LOW:HIGH, simplex[:TOTAL]; it is "
        "minimised by " + ", ".join(with_penalties()),
    )

    _add_run(add_method(solve, methods()))
    add = solve.add_argument_group("output").add_argument
    add("--checkpoint", metavar="FILE", help="save the run there from time to time, and resume it if it exists")
    add("--save", metavar="DIR", help="write model.npz, model.json and trace.csv into this folder")
    add("--plot", metavar="FILE", help="draw the convergence (.png, .pdf, .svg)")
    add("--coefficients", action="store_true", help="print the coefficients too")
    add("--json", action="store_true", help="print one JSON object instead of the summary")
    solve.set_defaults(command=_solve)


def add_method(parser: argparse.ArgumentParser, names: Iterable[str]) -> Any:
    """Add the options that say what a method is; return a function that adds more."""
    add = parser.add_argument_group("method").add_argument
    exact = "default fedavg with one full local step, which is exact"
    exact += " (vertical-accelerated with --on)" if "vertical-accelerated" in names else ""
    help_ = f"{', '.join(names)}; {exact}"
    add("--method", type=method_name, default="fedavg", metavar="M", help=help_)
    add(
        "--step-size",
        type=number("--step-size", low=0.0, strict=True),
        metavar="S",
        help="default from the exact smoothness constants: 1/L",
    )
    steps = "local steps per round, or one number per client: 5,5,10; default 1"
    add("--local-steps", type=counts("--local-steps", low=1), metavar="N", help=steps)
    add("--epochs", type=count("--epochs", low=1), metavar="N", help="local passes per round, instead of steps")
    add("--batch-size", type=count("--batch-size", low=1), metavar="B", help="rows per local step; default all")
    add("--participation", type=participation, metavar="P", help="clients per round: a number, or a share like 0.2")
    add(
        "--set",
        action="append",
        type=setting,
        metavar="NAME=VALUE",
        help="another setting of the method, as its class calls it; may be repeated",
    )
    return add


def _add_run(add: Any) -> None:
    """Add what models per client and ensembles take, and when a run ends."""
    for option in (option for family in declared().values() for option in family.options):
        name = f"--{option.name}"
        kind: Any = choice(name, option.words) if option.words else count(name, low=1)
        add(name, type=kind, metavar=option.name[0].upper() if option.words else "N", help=option.help)
    add(
        "--rounds",
        type=count("--rounds", low=1),
        default=2000,
        metavar="N",
        help="limit on the rounds; default %(default)s (100 stumps with multiboost)",
    )
    add(
        "--tol",
        type=number("--tol", low=0.0),
        default=1e-6,
        metavar="T",
        help="certified gap to reach; default %(default)g",
    )
    add_seed(add)
    add("--threads", type=count("--threads", low=1), metavar="N", help="threads; by default as many as pay")


def _solve(args: argparse.Namespace) -> int:
    check_owners(args)
    check_settings(args)
    if args.on is not None:
        from fedconvex.cli.vertical import solved
    else:
        family = command_of(args.method)
        solved = _one_model if family is None else family.solved
    args.data = args.data if args.on is not None else args.data[0] if args.data else None
    outcome = _with_l2(args, solved)
    args.status = DIVERGED if outcome.result.status.name == "DIVERGED" else OK
    with writing(_written(args, outcome)) as written:
        if args.json:
            from fedconvex.report.tables import plain

            print(json.dumps(plain(facts(args, outcome)), allow_nan=False))
        else:
            say(summary(args, outcome, written))
    return int(args.status)


def _with_l2(args: argparse.Namespace, solved: Callable[[argparse.Namespace], Solved]) -> Solved:
    """Return what is solved; where l2 is to be chosen it is said how."""
    if args.l2 != "auto":
        return solved(args)
    from fedconvex.cli.ridge import choose

    words = choose(args)
    outcome = solved(args)
    about = outcome.about
    told = about._replace(lines=(("l2", words), *about.lines), facts=(*about.facts, ("l2_chosen", words)))
    return replace(outcome, about=told)


def _one_model(args: argparse.Namespace) -> Solved:
    """Fit one linear model for all clients."""
    from fedconvex import DivergenceWarning, Problem, Status, run
    from fedconvex.constants.default_steps import smoothness_of

    data = prepare(args)
    fed, weights = data.train, None if args.weights == "size" else args.weights
    free = not (args.no_intercept or args.penalise_intercept)
    problem = Problem(fed, data.loss, args.l2, weights, args.penalty, free)
    constants = problem.constants() if affordable(problem) else None
    smooth = smoothness_of(fed, problem.weights, problem.loss, problem.l2, exact=constants is not None)
    smooth = smooth._replace(exact=smooth.exact and not free)  # L + l2 is no eigenvalue where the intercept is free
    method, phrase = method_of(args, problem, smooth)
    settings = {name: getattr(args, name) for name in ("rounds", "tol", "seed", "threads", "checkpoint")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)  # the summary says it
        result = run(method, problem, **settings)
    diverged = result.status is Status.DIVERGED
    measured = problem
    if data.test is not None:
        measured = Problem(data.test, data.loss, args.l2, penalty=args.penalty, intercept=free)
    clients, models, alone = (None, [], "") if diverged else _compare(problem, measured, result.w, method, data)
    sentence = _outlook(args, problem, smooth, method, result)
    aim = aim_of(method)
    intercept = intercept_words(args, problem.free is not None)
    about = About(formula_of(problem, aim), certificate(problem, aim), aim, value_words(aim), intercept)
    outcome = Solved(data, problem, constants, smooth, phrase, result, sentence, clients, models, alone, about)
    return replace(outcome, listed=listed_coefficients(outcome)) if args.coefficients else outcome


def _outlook(args: argparse.Namespace, problem: Problem, smooth: Smoothness, method: Any, result: Result) -> str:
    """Return why the run ended as it did, and what would help."""
    from fedconvex import Status
    from fedconvex.report import outlook

    status, t = result.status, traits_of(method, problem)
    corrected = t.controls is not None and status is not Status.CONVERGED
    noisy = "batches" in t.drawn or ("clients" in t.drawn and not corrected)
    several = t.local is not None and bool((t.local.steps > 1).any())
    drifting = several and (t.averages or t.controls is not None) and not corrected
    unfinished = status in (Status.ROUND_LIMIT, Status.CYCLE)
    robust = bool(getattr(getattr(method, "aggregation", None), "robust", False))
    sentence = outlook(result, args.tol, noisy=noisy, drifting=drifting, robust=robust)
    if "client drift" in sentence:
        sentence += " --method scaffold has no drift."
    if status is Status.DIVERGED:
        sentence += f" 1/L here is {1.0 / smooth.client:.4g}"
        sentence += "." if args.step_size is None else "; leave --step-size out to take what the constants allow."
    elif aim_of(method) != "mean":
        return sentence
    elif unfinished and problem.size <= 2000 and not _attained(problem):
        sentence = "No minimiser is known to exist without a ridge (separable data): give --l2 a positive value."
    elif unfinished and problem.traits.kinked:
        sentence = "The hinge has a kink, so the gap of subgradient steps shrinks like 1/t only: "
        sentence += "--loss smoothed-hinge converges faster."
    return sentence


def _attained(problem: Problem) -> bool:
    return problem.traits.quadratic or problem.solve().attained


def _written(args: argparse.Namespace, outcome: Solved) -> Iterator[str]:
    """Write what was asked for, and yield the names of the files."""
    data, result = outcome.data, outcome.result
    if args.save is not None:
        from fedconvex.report import write_trace

        folder = Path(args.save)
        if args.status == DIVERGED:  # there is no model to make the folder for
            folder.mkdir(parents=True, exist_ok=True)
        if args.status != DIVERGED:
            more = {"w": result.w} if outcome.about.minimised != "ensemble" else {}
            _model(args, outcome).save(folder, **more)
            yield from (str(folder / "model.npz"), str(folder / "model.json"))
        write_trace(result, folder / "trace.csv")
        yield str(folder / "trace.csv")
    if args.plot is not None:
        from fedconvex.report import convergence_plot

        name = (result.method or args.method).partition("(")[0]
        title = f"{name} on {data.title}: {outcome.about.formula}"
        pooled = outcome.problem if outcome.about.minimised == "mean" else None
        convergence_plot({name: result}, args.plot, problem=pooled, title=title)
        yield args.plot


def _compare(problem: Problem, measured: Problem, w: np.ndarray, method: Any, data: Data) -> Any:
    """Measure the model on every client, beside the pooled optimum and what clients learn alone."""
    from fedconvex.report import comparison, per_client_metrics

    unit, fed = data.columns.target_scale, problem.federation
    clients = per_client_metrics(measured, w, unit)
    models: dict[str, Any] = {type(method).__name__: w}
    if problem.size <= 2000 or problem.l2 > 0.0:
        best = problem.solve() if problem.size <= 2000 else problem.solve(1e-8)
        models["pooled optimum" if best.attained else "pooled, not attained"] = best.w
    if aim_of(method) == "worst" and problem.size <= 2000:
        models["minimax optimum"] = problem.solve_minimax(1e-8, method.uncertainty_set).w
    if not affordable(problem):
        return (
            clients,
            comparison(problem, models, unit, measured),
            "the clients' own models were left out: too large a problem",
        )
    chosen = np.unique(np.linspace(0, fed.K - 1, min(fed.K, _MOST_ALONE)).astype(int))
    own = [own_model(problem.client(int(k))) for k in chosen]
    models["each client alone"] = np.array([w for w, _ in own])
    some = [f"alone: {chosen.size} of {fed.K} clients, evenly spaced"] if chosen.size < fed.K else []
    if any(helped for _, helped in own):
        some.append("alone, with labels of one kind: the intercept is penalised")
    return clients, comparison(problem, models, unit, measured), "; ".join(some)


def _model(args: argparse.Namespace, outcome: Solved) -> Any:
    """Return the model with what the command knows of it."""
    made = outcome.result.model()
    about = {
        "weights": args.weights,
        "standardisation": outcome.data.scaling,
        "objective": float(outcome.result.trace.value[-1]),
        "certificate": outcome.about.certificate,
        "gap": float(outcome.result.gap) if math.isfinite(outcome.result.gap) else None,
        "settings": outcome.method,
        "data": outcome.data.title,
        "seed": args.seed,
        **dict(outcome.about.facts),
    }
    return replace(made, about={**made.about, **about})
