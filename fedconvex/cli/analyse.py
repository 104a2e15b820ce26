"""The command ``fedconvex analyse``."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

from fedconvex._check import bad
from fedconvex.cli.arguments import add_reading
from fedconvex.cli.output import say
from fedconvex.cli.parser import OK

FAMILIES = ("gaussian", "logistic", "poisson", "quasipoisson", "gamma", "multinomial", "cox")
INTERVALS = ("wald", "profile")
ROBUST = ("HC0", "HC1", "HC2", "HC3", "client")


def add_parser(commands: Any) -> None:
    """Add the command."""
    analyse = commands.add_parser(
        "analyse",
        description=textwrap.dedent("""\
            Fit a generalised linear model, or Cox's, by maximum likelihood and print its coefficients with standard
            errors, tests and intervals. Of each client only sums over its rows are used; the table is read in one place
            here. Rows with missing cells are left out and counted."""),
        epilog=textwrap.dedent("""\
            examples:
              fedconvex analyse wards.csv --target ill --client ward
              fedconvex analyse wards.csv --target falls --client ward --family poisson --exposure days
              fedconvex analyse wards.csv --target ill --client ward --site-intercepts --differences --test drug
              fedconvex analyse wards.csv --time days --event died --client ward"""),
    )
    analyse.elsewhere["--impute"] = "rows with missing cells are left out, and counted"
    analyse.add_argument("table", metavar="TABLE", help=".csv, .tsv or .parquet file")
    add = analyse.add_argument_group("columns").add_argument
    add("--target", "--time", metavar="COL", help="the response; of events, their times")
    add(
        "--formula", metavar="TEXT", help="model formula in the place of --target and --features: 'ill ~ age + C(ward)'"
    )
    add("--event", metavar="COL", help="whether an event was seen at the time: a column of 0 and 1, or COL=LEVEL")
    add("--entry", metavar="COL", help="times from which rows are observed, if not from 0")
    add("--strata", metavar="COL", help="strata with baseline hazards of their own, beside those of clients")
    add("--ties", choices=("efron", "breslow"), default="efron", help="of event times (default %(default)s)")
    add("--client", metavar="COL", required=True, help="column that says whose row it is")
    add("--weight", metavar="COL", help="column that counts equal rows")
    add("--offset", metavar="COL", help="column that is added to the score as it is")
    add("--exposure", metavar="COL", help="column whose logarithm is added to the score")
    several = {"metavar": "COL", "nargs": "+", "action": "extend"}
    add("--features", **several, default=None, help="columns to explain it by; default all others")
    add("--drop", **several, default=[], help="columns to leave out")
    add("--keep", **several, default=[], help="columns to use although they look like dates or identifiers")
    add("--as-category", **several, default=[], help="columns to take as categories, even if they look like numbers")
    add("--missing", metavar="COL=VALUE", nargs="+", action="extend", default=[],
        help="what stands for missing cells of a column beside empty ones, such as chol=0")  # fmt: skip
    add("--reference", metavar="COL=LEVEL", nargs="+", action="extend", default=[],
        help="levels that the others of a category are held against; default the first")  # fmt: skip
    add_reading(add)
    add = analyse.add_argument_group("model").add_argument
    add("--family", choices=FAMILIES,
        help="whole numbers need it; default: logistic (two classes), multinomial (more), gaussian, cox")  # fmt: skip
    add("--site-intercepts", action="store_true", help="an intercept of its own for every client, which stays there")
    add("--robust", choices=ROBUST, help="robust standard errors (cov_type); client: clustered by client")
    add("--firth", action="store_true", help="Firth's estimate of a logistic model: finite for separated responses")
    add("--intervals", choices=INTERVALS, default="wald",
        help="Wald's (default), or of the profile likelihood: one finite end if responses are separated")  # fmt: skip
    add("--level", type=float, default=0.95, metavar="L", help="of intervals (default %(default)s)")
    add = analyse.add_argument_group("output").add_argument
    add("--test", metavar="TERM", nargs="+", action="extend", default=[],
        help="likelihood-ratio tests (with --robust, Wald tests), one for each term")  # fmt: skip
    add("--differences", action="store_true", help="how the coefficients of clients differ, each fitted alone")
    add("--report", metavar="DIR", help="write a page with forest plots, index.html, into this folder")
    add("--json", action="store_true", help="print one JSON object instead of the text")
    analyse.set_defaults(command=_analyse)


def _columns(args: argparse.Namespace) -> dict[str, Any]:
    """Return how the table is read and what was asked of its columns; an option may hold several, with commas."""
    from fedconvex.cli.input_data import entries, listed, reading_options

    reading = reading_options(args)
    given = {k: getattr(args, k) for k in ("features", "drop", "keep", "as_category", "missing")}
    if any("," in value for values in given.values() for value in values or ()):
        from fedconvex.tables import read_frame

        names = read_frame(args.table, **reading).names
        given = {k: v and list((entries if k == "missing" else listed)(v, names)) for k, v in given.items()}
    return {**given, **reading}


def _analyse(args: argparse.Namespace) -> int:
    from fedconvex.analysis import analyse
    from fedconvex.analysis.summary_text import p_is, p_text
    from fedconvex.report.tables import format_table, plain

    if args.report is not None:
        from fedconvex.report.drawings import check_folder

        check_folder(args.report)
    pairs = [entry.rpartition("=") for entry in args.reference]
    if wrong := [entry for entry, pair in zip(args.reference, pairs, strict=True) if not (pair[0] and pair[2])]:
        raise bad("--reference", "be a list of COLUMN=LEVEL", repr(wrong[0]), "ward=a")
    found = analyse(
        args.table, args.target, args.client, formula=args.formula, family=args.family, robust=args.robust,
        site_intercepts=args.site_intercepts, level=args.level, intervals=args.intervals, firth=args.firth,
        offset=args.offset, exposure=args.exposure, weight=args.weight, event=args.event, entry=args.entry,
        reference={name: level for name, _, level in pairs}, strata=args.strata, ties=args.ties,
        **_columns(args),
    )  # fmt: skip
    how = "likelihood ratio" if args.robust is None else "wald"
    tests = {term: found.test(term, how) for term in args.test}
    apart = found.differences if args.differences else None
    page = None if args.report is None else found.report(args.report)
    if args.json:
        more: dict[str, Any] = {"tests": {term: one._asdict() for term, one in tests.items()}}
        if apart is not None:
            more["differences"] = {
                "clients": list(apart.clients), "left_out": list(apart.left_out), "names": list(apart.names),
                "estimates": apart.estimates.tolist(), "standard_errors": apart.standard_errors.tolist(),
                "Q": apart.Q._asdict(),
                "equal_slopes": None if apart.equal_slopes is None else apart.equal_slopes._asdict(),
            }  # fmt: skip
        more |= {} if page is None else {"page": str(page)}
        print(json.dumps(plain(found.to_dict() | more), allow_nan=False))
        return OK
    say(found.summary())
    for term, one in tests.items():
        say(f"\n{how.capitalize()} test of {term}: {one.statistic:.5g}, {one.distribution}, {p_is(one.p)}")
    if apart is not None:
        heads = ["coefficient", "common", "Q", "p", "I^2 %", "tau^2 (REML)", "random effects", "low", "high"]
        rows = [
            [name, f"{s.common:.4g}", f"{s.Q.statistic:.2f}", p_text(s.Q.p), f"{s.I2:.1f}", f"{s.reml.tau2:.3g}",
             *(f"{v:.4g}" for v in (s.hartung_knapp.estimate, s.hartung_knapp.low, s.hartung_knapp.high))]
            for name, s in apart.summaries.items()
        ]  # fmt: skip
        own = "a baseline hazard" if found.rows.family.name == "cox" else "an intercept"
        say(f"\nEach of {len(apart.clients)} clients alone, with {own} of its own (Hartung and Knapp):")
        say(format_table(heads, rows))
        if apart.left_out:
            say(f"Without a finite estimate, and left out: {', '.join(apart.left_out)}.")
        if apart.equal_slopes is not None:
            one = apart.equal_slopes
            say(f"Likelihood-ratio test of equal slopes: {one.statistic:.5g}, {one.distribution}, {p_is(one.p)}.")
    if page is not None:
        say(f"\nPage: {page}")
    return OK
