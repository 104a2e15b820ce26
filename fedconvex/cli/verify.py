"""The command ``fedconvex verify``."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fedconvex._check import bad
from fedconvex._progress import in_parts, progress_line
from fedconvex.cli.arguments import add_data, add_problem, add_seed, count, number
from fedconvex.cli.input_data import affordable, prepare
from fedconvex.cli.output import say, width, writing
from fedconvex.cli.parser import FAILED, INCONCLUSIVE, OK
from fedconvex.cli.summary import formula_of

if TYPE_CHECKING:
    from fedconvex.theorems import Theorem
    from fedconvex.theorems.parts.theorem import Check
    from fedconvex.verify import Instance, VerificationReport
    from fedconvex.verify.suite import Progress


class _Effort(NamedTuple):
    """What is done unless the user says otherwise."""

    search: int | None  # None: as many tiny problems as every theorem's space says
    trajectories: int
    precision: float


_SOME, _A_CHECK = 24, 60  # candidates of a search that no number is given for, and those that take as long as a check
EXPONENTS = 1.0  # as long as the checks
_QUICK, _OWN, _THOROUGH = _Effort(None, 4096, 0.02), _Effort(400, 4096, 0.02), _Effort(600, 16384, 0.01)


def add_parser(commands: Any) -> None:
    """Add the command."""
    verify = commands.add_parser(
        "verify",
        description=textwrap.dedent("""\
            Check the hypotheses of convergence theorems, obtain exactly or by Monte Carlo what they bound, and compare:
            with the bound, and with the exact worst case over all problems with the same constants.

            Without arguments: every theorem on the embedded suite of synthetic and real problems. Exit status 1 if a
            theorem is violated, 4 if none is but some could not be decided, a bound that is not a number among them.
            "vacuous" is what holds because the quantity is zero up to rounding, or the bound infinite: it would hold
            whatever the bound."""),
        epilog=textwrap.dedent("""\
            examples:
              fedconvex verify
              fedconvex verify --no-search
              fedconvex verify --power --theorem fedavg-refined-sharp
              fedconvex verify --theorem fedavg-refined fedavg-convex
              fedconvex verify --problem wards.csv --target ill --client ward --report out
              fedconvex verify --json > findings.json
              fedconvex verify --thorough --report out
              fedconvex verify --theorem-file mine.py --search 2000 --report out --latex mine.tex

            names of theorems: fedconvex list"""),
    )
    _add_theorems(verify)
    verify.add_argument(
        "--problem",
        dest="data",
        metavar="DATA",
        help="your own data in place of the suite: a file or bundled data set, as for fedconvex solve; step sizes are "
        "chosen from its constants",
    )
    add_data(verify, "data (with --problem)")
    add_problem(verify)
    add = verify.add_argument_group("statistics").add_argument
    add_seed(add)
    add(
        "--trajectories",
        type=count("--trajectories", low=2),
        metavar="N",
        help="largest number of independent runs of a check; "
        f"default {_QUICK.trajectories}, with --thorough {_THOROUGH.trajectories}",
    )
    add(
        "--precision",
        type=number("--precision", low=0.0, strict=True),
        metavar="P",
        help="half width of the confidence interval, as a share of the mean, at which runs stop being added; "
        "default 0.02, with --thorough 0.01",
    )
    add = verify.add_argument_group("output").add_argument
    add("--report", metavar="DIR", help="write a page with all figures to DIR/index.html")
    add("--instances", metavar="DIR", help="write what searches found to DIR: programs of NumPy, LaTeX, JSON")
    add("--json", action="store_true", help="print one JSON object instead of the table")
    add("--csv", metavar="FILE", help="write all findings as a table for programs")
    add("--latex", metavar="FILE", help="write a table for papers, and the bounds as formulas")
    verify.set_defaults(command=_verify, test_size=None)


def _add_theorems(verify: Any) -> None:
    """Add what says which theorems are checked."""
    verify.add_argument(
        "--theorem", nargs="+", action="extend", metavar="NAME", help="check these theorems only; default all"
    )
    verify.add_argument(
        "--theorem-file",
        metavar="FILE",
        help="a file of Python that defines theorems of your own (docs/own_theorem.md) instead of the suite's",
    )
    verify.add_argument(
        "--search",
        type=count("--search", low=0),
        metavar="N",
        help=f"tiny problems tried against the bound and each of its terms; default {_OWN.search} with --theorem-file, "
        f"{_THOROUGH.search} with --thorough, else some dozen against the bound alone",
    )
    verify.add_argument("--no-search", action="store_true", help="carry out the suite's checks only")
    verify.add_argument(
        "--power",
        action="store_true",
        help="find for every exponent of every bound the smallest error that would be noticed: seconds a theorem",
    )
    verify.add_argument(
        "--maps",
        action="store_true",
        help="find the bound over the exact worst case for some step sizes and numbers of local steps, where there is "
        "one: half a minute a theorem",
    )
    verify.add_argument(
        "--thorough",
        action="store_true",
        help="search against every theorem, and narrower intervals: some eight minutes for the whole suite",
    )


def _effort(args: argparse.Namespace) -> _Effort:
    """Return what is done: what was asked for, and defaults."""
    usual = _THOROUGH if args.thorough else _QUICK if args.theorem_file is None else _OWN
    given = {name: getattr(args, name) for name in _Effort._fields if getattr(args, name) is not None}
    if args.no_search and given.get("search"):
        raise bad("--no-search", "be given without --search", given["search"], "leave one out")
    if args.data is not None and given.get("search"):
        raise bad("--search", "be without --problem: a search makes its own problems", given["search"], "leave one out")
    return usual._replace(**given | ({"search": 0} if args.no_search or args.data is not None else {}))


def _verify(args: argparse.Namespace) -> int:
    effort = _effort(args)
    if args.data is None:
        _alone(args)
    if args.report is not None:
        from fedconvex.report.drawings import check_folder

        check_folder(args.report)
    from fedconvex import _files

    if args.instances is not None:
        _files.check_folder("--instances", args.instances)
    from fedconvex.report.checks import as_document, as_table
    from fedconvex.verify import THEOREMS, checks, verify_suite
    from fedconvex.verify.own_theorems import theorems_of

    for option in ("csv", "latex"):
        if getattr(args, option) is not None:
            _files.check_file(f"--{option}", getattr(args, option))
    mine = args.theorem_file is not None
    known = theorems_of(args.theorem_file) if mine else THEOREMS
    checks(args.theorem, None, known)  # refuses unknown names before data are read
    suite = checks(args.theorem, None if args.data is None else _own(args), known)
    those = dict.fromkeys(check.theorem for check in suite if effort.search != 0)
    names = [name for name in those if known[name].space]
    spent = [len(names) * (effort.search or _SOME) / _A_CHECK, len(suite) or 1, args.power * EXPONENTS * len(suite)]
    searching, checking, changing = in_parts(progress_line(), spent)
    suite += _searched(names, known, effort.search, args.seed, searching)
    found = verify_suite(
        suite,
        seed=args.seed,
        precision=effort.precision,
        most=effort.trajectories,
        curves=args.report is not None,
        tightness=args.data is None and args.theorem is None and not mine,
        theorems=known,
        progress=checking,
    )
    found = _with_maps(found, known) if args.maps else found
    if args.power:
        found = _with_exponents(found, known, args.seed, changing)
    found = _with_counterexamples(found, suite, known) if found.violated else found
    args.status = FAILED if found.violated else INCONCLUSIVE if found.inconclusive else OK
    with writing(_written(args, found, suite, known)) as files:
        if args.json:
            print(json.dumps(as_document(found), allow_nan=False))
        else:
            say(as_table(found, width(), details=args.data is not None or args.theorem is not None))
        for file in files:
            say(f"Wrote {file}.", sys.stderr if args.json else sys.stdout)
    return int(args.status)


def _searched(
    names: Sequence[str], known: Mapping[str, Theorem], budget: int | None, seed: int, tell: Progress
) -> list[Check]:
    """Return checks on what searches against theorems find."""
    from fedconvex.verify.own_theorems import searched

    out: list[Check] = []
    for i, name in enumerate(names):
        inner = lambda share, doing, i=i: tell((i + share) / len(names), doing)  # noqa: E731
        out += [replace(c, theorem=name) for c in searched(known[name], budget, seed, inner)]
    return out


def _with_exponents(
    found: VerificationReport, known: Mapping[str, Theorem], seed: int, tell: Progress
) -> VerificationReport:
    """Return the report with what is known of the exponents of its theorems."""
    from fedconvex.verify import exponents

    out = {}
    for i, name in enumerate(found.notes):
        tell(i / len(found.notes), f"exponents of {name}")
        out[name] = exponents(known[name], seed=seed)
    tell(1.0, "done")
    return replace(found, exponents=out)


def _with_maps(found: VerificationReport, known: Mapping[str, Theorem]) -> VerificationReport:
    """Return the report with how tight its theorems are over steps, of those that have exact worst cases."""
    from fedconvex.verify import tightness_map

    out, parts = [], in_parts(progress_line(), [1.0] * max(len(found.notes), 1))
    for name, tell in zip(found.notes, parts, strict=False):
        if known[name].worst_case or known[name].worst or known[name].programme:
            try:
                out.append(tightness_map(known[name], progress=tell))
            except ValueError as error:  # no instance within reach
                say(f"no map of {name}: {error}", sys.stderr)
        tell(1.0, name)
    return replace(found, maps=tuple(out))


def _with_counterexamples(
    found: VerificationReport, suite: Sequence[Check], known: Mapping[str, Theorem]
) -> VerificationReport:
    """Return the report with a small counterexample to every theorem that is violated, where there is one."""
    from fedconvex.verify import Outcome
    from fedconvex.verify.printed import counterexample

    pairs = [(c, f) for c, f in zip(suite, found.findings, strict=True) if f.verdict.outcome is Outcome.VIOLATED]
    pairs.sort(key=lambda pair: pair[0].instance.tiny is None)  # what a search found is small already
    out, (tell,) = dict[str, Any](), in_parts(progress_line(), [1.0])
    for i, (check, f) in enumerate(pairs):
        if f.theorem not in out:
            inner = lambda share, doing, i=i: tell((i + share) / (len(pairs) + 1), doing)  # noqa: E731
            try:
                example = counterexample(known[f.theorem], check, inner)
            except KeyboardInterrupt:
                say("no further counterexamples: interrupted", sys.stderr)
                return replace(found, counterexamples=tuple(out.values()))
            out |= {} if example is None else {f.theorem: example}
    tell(1.0, "done")
    return replace(found, counterexamples=(*out.values(), *_of_worst_cases(found, suite, known, set(out))))


def _of_worst_cases(
    found: VerificationReport, suite: Sequence[Check], known: Mapping[str, Theorem], printed: set[str]
) -> Iterator[Any]:
    """Yield functions that exceed the bounds which the exact worst case alone violates; say where there are none."""
    from fedconvex.verify import Outcome
    from fedconvex.verify.worst_text import worst_counterexample

    pairs = [(c, f) for c, f in zip(suite, found.findings, strict=True) if f.outcome is Outcome.VIOLATED]
    for name in dict.fromkeys(f.theorem for _, f in pairs if f.theorem not in printed):
        mine = [(c, f.verdict.bound) for c, f in pairs if f.theorem == name and f.worst.has_interval]
        first = min(mine, key=lambda pair: pair[0].rounds or 0, default=None)  # the programme grows with the rounds
        example = None if first is None else worst_counterexample(known[name], first[0])
        if example is not None:
            yield example
        else:
            cure = "--search 4000 or another --seed may find a small one"
            say(f"no counterexample to {name} can be printed: {cure}", sys.stderr)


def _written(
    args: argparse.Namespace, found: Any, suite: Sequence[Check], known: Mapping[str, Theorem]
) -> Iterator[Any]:
    """Write the files that were asked for, and yield their names."""
    if args.instances is not None:
        from fedconvex.verify.printed import write_instances

        yield from write_instances(args.instances, suite, known, *in_parts(progress_line(), [1.0]))
    from fedconvex.report.exports import write_findings_csv, write_findings_latex

    if args.report is not None:
        from fedconvex.report.page import write_page

        yield write_page(found, args.report)
    if args.csv is not None:
        write_findings_csv(found, args.csv)
        yield args.csv
    if args.latex is not None:
        write_findings_latex(found, args.latex)
        yield args.latex


def _alone(args: argparse.Namespace) -> None:
    """Refuse data options that have no data."""
    names = [
        "target",
        "client",
        "domain",
        "weight",
        "clients",
        "partition",
        "loss",
        "l2",
        "weights",
        "impute",
        "preprocessing",
    ]
    names += ["sep", "decimal", "encoding"]
    given = [name for name in names if name in vars(args).get("given", ())]
    flags = (
        "no_intercept",
        "penalise_intercept",
        "no_standardize",
        "features",
        "drop",
        "keep",
        "as_category",
        "missing",
    )
    given += [name for name in flags if getattr(args, name)]
    if given:
        extra = " ".join("--" + name.replace("_", "-") for name in given)
        raise bad("verify", "be given --problem DATA along with data options", extra)


def _own(args: argparse.Namespace) -> Instance:
    from fedconvex import Problem
    from fedconvex.verify import own_instance

    data = prepare(args)
    fed = data.train
    problem = Problem(fed, data.loss, args.l2, None if args.weights == "size" else args.weights)
    if not affordable(problem):
        got = f"{fed.n:,} rows of {fed.K:,} clients with {problem.size:,} parameters"
        raise bad("--problem", "be small enough for exact constants", got, "take fewer rows or features")
    words = f"{data.title}, clients {data.origin}, {formula_of(problem)}, {data.scaling}"
    return own_instance(
        problem, data.title.partition(" (")[0], f"{words}, weights {'n_k/n' if args.weights == 'size' else '1/K'}"
    )
