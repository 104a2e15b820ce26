"""The command ``fedconvex sweep``."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedconvex._check import bad
from fedconvex._files import check_file
from fedconvex.cli.arguments import add_data, add_problem, add_seed, count, number
from fedconvex.cli.input_data import affordable, prepare
from fedconvex.cli.method import check_settings, method_of
from fedconvex.cli.named import first_settings, read_value
from fedconvex.cli.output import fits, resumable, say, writing
from fedconvex.cli.parser import OK, Refused
from fedconvex.cli.solve import add_method
from fedconvex.registry import method_names

if TYPE_CHECKING:
    from fedconvex.sweeps import Sweep

SUFFIXES = (".parquet", ".npz", ".csv")
SHOWN = 40  # settings in the table


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "sweep",
        description=textwrap.dedent("""\
            Run a method with all combinations of settings, from many seeds each, and write all traces as one table.

            DATA is what `fedconvex solve` takes. FILE.parts holds what is finished; after an interruption the same
            command resumes from there."""),
        epilog=textwrap.dedent("""\
            examples:
              fedconvex sweep --grid step_size=0.1,0.3,1 --grid local_steps=1,5 --batch-size 10 --seeds 20 --rounds 50
              fedconvex sweep digits --grid l2=0.01,0.1 --jobs 2 --out digits.parquet --plot gaps.png"""),
    )
    parser.add_argument("data", nargs="?", metavar="DATA", help="file or bundled data set; see above")
    add_data(parser)
    add_problem(parser)
    add = add_method(parser, method_names(learns="ONE_MODEL"))
    add(
        "--grid",
        action="append",
        type=_values,
        metavar="NAME=V,V,...",
        help="values of a setting of the method, or of l2; may be repeated: all combinations are run",
    )
    add("--seeds", type=count("--seeds", low=1), default=1, metavar="N", help="runs of each; default %(default)s")
    add("--rounds", type=count("--rounds", low=1), default=100, metavar="N", help="rounds; default %(default)s")
    add("--tol", type=number("--tol", low=0.0), default=0.0, metavar="T", help="certified gap to stop at; default none")
    add(
        "--record-every",
        type=count("--record-every", low=1),
        default=1,
        metavar="N",
        help="rounds between two recorded ones; default %(default)s",
    )
    add_seed(add)
    add("--jobs", type=count("--jobs", low=1), metavar="N", help="processes; default 1")
    add = parser.add_argument_group("output").add_argument
    add("--out", metavar="FILE", help=f"write the table there ({', '.join(SUFFIXES)})")
    add("--over", metavar="NAME", help="name the best value of this setting; default step_size, or the first")
    add("--plot", metavar="FILE", help="draw the gaps over rounds (.png, .pdf, .svg)")
    add("--heat-map", metavar="FILE", help="draw where runs end over the first two settings of the grid")
    add("--best-plot", metavar="FILE", help="draw where runs end over one setting, for all others")
    add("--json", action="store_true", help="print one JSON object instead of the summary")
    unasked = dict.fromkeys(("penalty", "test_size", "save", "checkpoint", "relation", "q", "cuts", "threads"))
    parser.set_defaults(command=_sweep, **unasked)


def _values(text: str) -> tuple[str, list[Any]]:
    """Read NAME=VALUE,VALUE,..."""
    name, equals, values = text.partition("=")
    name, found = name.strip().replace("-", "_"), [v.strip() for v in values.split(",")]
    if not (equals and name.isidentifier() and all(found)):
        raise Refused(str(bad("--grid", "be NAME=VALUE,VALUE,..., such as step_size=0.1,0.3", repr(text))))
    return name, [read_value(v) for v in found]


def _grid(args: argparse.Namespace) -> dict[str, list[Any]]:
    """Return the values of every name."""
    grid: dict[str, list[Any]] = {}
    for name, values in args.grid or ():
        if name in grid:
            raise bad(f"--grid {name}", "be given once", "it again", "put all values into one")
        grid[name] = values
    return grid


def _sweep(args: argparse.Namespace) -> int:
    from fedconvex import Problem, sweep
    from fedconvex.constants.default_steps import smoothness_of
    from fedconvex.sweeps.answers_on_disk import any_finished

    grid = _grid(args)
    _check(args, grid)
    data = prepare(args)
    weights, free = None if args.weights == "size" else args.weights, not (args.no_intercept or args.penalise_intercept)

    def of(l2: float) -> Problem:
        return Problem(data.train, data.loss, l2, weights, None, free)

    known = [v for v in grid.get("l2", ()) if type(v) in (int, float) and 0.0 <= v <= 1e100]
    problem = of(max(known, default=args.l2))  # whose step size, where none is asked for, no setting diverges by
    exact = affordable(problem)
    smooth = smoothness_of(data.train, problem.weights, problem.loss, problem.l2, exact=exact)
    method, phrase = method_of(args, problem, smooth._replace(exact=smooth.exact and not free))
    settings = {name: getattr(args, name) for name in ("seeds", "rounds", "tol", "seed", "record_every")}
    folder = None if args.out is None else Path(f"{args.out}.parts")
    if folder is not None:
        args.checkpoint = folder
    with resumable(folder, lambda: any_finished(Path(f"{args.out}.parts"))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the summary says it
            made = of if "l2" in grid else problem
            found = sweep(method, made, grid=grid, n_jobs=args.jobs, folder=folder, **settings)
        with writing(_written(args, found, folder)) as written:
            if args.json:
                from fedconvex.report.tables import plain

                print(json.dumps(plain(_facts(found, _over(args, found.parameters), phrase)), allow_nan=False))
            else:
                say(_summary(args, found, f"{data.title}: {phrase}", written))
    return OK


def _check(args: argparse.Namespace, grid: dict[str, list[Any]]) -> None:
    """Refuse what does not go together, before any work is done."""
    from fedconvex.report.plots import check_plot_path
    from fedconvex.sweeps.figures import CURVES

    swept = method_names(learns="ONE_MODEL")
    if args.method not in swept:
        raise bad("--method", "be one of " + ", ".join(swept), args.method, "fedconvex solve runs the others")
    first_settings(args, {name: values for name, values in grid.items() if name != "l2"})
    check_settings(args)
    for name in ("heat_map", "best_plot"):
        check_plot_path(getattr(args, name), f"--{name.replace('_', '-')}")
    if args.heat_map is not None and len(grid) < 2:
        raise bad("--heat-map", "come with two settings in the grid", f"{len(grid)}")
    if args.over is not None and args.over not in grid:
        raise bad("--over", f"name a setting of the grid ({', '.join(grid) or 'none'})", args.over)
    if args.best_plot is not None and not grid:
        raise bad("--best-plot", "come with a setting in the grid", "none")
    settings = math.prod(map(len, grid.values()))
    along = _over(args, tuple(grid))
    for option, file, curves in (
        ("--plot", args.plot, settings),
        ("--best-plot", args.best_plot, settings // len(grid.get(along, "1"))),
    ):
        if file is not None and curves > CURVES:
            raise bad(option, f"draw at most {CURVES} curves", curves, "take fewer values, or --heat-map")
    texts = [v for v in grid.get(along, ()) if isinstance(v, bool) or not isinstance(v, (int, float))]
    if args.best_plot is not None and texts:
        raise bad("--best-plot", f"come with numbers for {along}", repr(texts[0]))
    if args.out is not None:
        if check_file("--out", args.out).suffix.lower() not in SUFFIXES:
            raise bad("--out", "end in " + ", ".join(SUFFIXES), args.out)
        if args.out.lower().endswith(".parquet"):
            from fedconvex.sweeps.sweep_frame import pyarrow

            pyarrow()
        parts = Path(f"{args.out}.parts")
        if parts.is_dir() and any(parts.iterdir()) and not (parts / "about.json").is_file():
            raise bad("--out", f"leave {parts} to the sweep, which removes it", "a folder of other files")


def _over(args: argparse.Namespace, names: tuple[str, ...]) -> str:
    """Return the setting whose best value is named; "" without settings."""
    return str(args.over or ("step_size" if "step_size" in names else (*names, "")[0]))


def _written(args: argparse.Namespace, found: Sweep, folder: Path | None) -> Any:
    """Write what was asked for, and yield the names of the files."""
    from fedconvex.sweeps import best_plot, gap_plot, heat_map

    if args.out is not None:
        found.save(args.out)
        yield args.out
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    if args.plot is not None:
        gap_plot(found, args.plot)
        yield args.plot
    if args.heat_map is not None:
        heat_map(found, found.parameters[0], found.parameters[1], args.heat_map)
        yield args.heat_map
    if args.best_plot is not None:
        best_plot(found, args.best_plot, over=_over(args, found.parameters))
        yield args.best_plot


def _facts(found: Sweep, over: str, phrase: str) -> dict[str, Any]:
    """Return what the summary says, for programs."""
    best = found.best(over) if over else []
    facts = {"rows": len(found), "runs": found.finished[1], "settings": found.parameters, "method": phrase}
    return facts | {"over": over or None, "best": best, "failures": found.failures}


def _summary(args: argparse.Namespace, found: Sweep, title: str, written: list[str]) -> str:
    """Return where settings ended, the best of each, and what failed."""
    from fedconvex.report import format_table
    from fedconvex.sweeps.sweep_frame import deciles

    over, lines = _over(args, found.parameters), [title, f"{found!r}, {args.rounds} rounds", ""]
    rows = []
    for values, part in found.final().groups("setting", *found.parameters):
        middle, low, high = deciles(part["gap"])
        ends = ", ".join(f"{n} {status.lower().replace('_', ' ')}" for status, n in _counts(part["status"]))
        rows.append([*list(values.values())[1:], middle, low, high, ends])
    headers = [*found.parameters, "gap, median", "1st decile", "9th decile", "seeds"]
    lines.append(format_table(headers, rows[:SHOWN], "  ", fits()))
    if len(rows) > SHOWN:
        lines.append(f"  and {len(rows) - SHOWN} more settings")
    for best in found.best(over) if over else ():
        others = ", ".join(f"{n} {_short(best[n])}" for n in found.parameters if n != over)
        edge = ", at the edge of the grid: a better one may lie beyond" if best["edge"] else ""
        lines.append(
            f"Best {over}{' at ' * bool(others)}{others}: {_short(best[over])}, median gap {best['median']:.3g}{edge}."
        )
    for failed in found.failures[:SHOWN]:
        named = ", ".join(f"{n} {v}" for n, v in failed["setting"].items())
        lines.append(f"Failed: {named}: {failed['error']}")
    return "\n".join([*lines, *(f"Wrote {file}." for file in written)])


def _counts(status: Any) -> list[tuple[str, int]]:
    """Return how often each status occurs."""
    return [(name, int((status == name).sum())) for name in dict.fromkeys(status.tolist())]


def _short(value: Any) -> str:
    """Return a value of a setting in words."""
    return f"{value:g}" if isinstance(value, float) else str(value)
