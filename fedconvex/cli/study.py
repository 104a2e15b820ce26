"""The command ``fedconvex study``: sites that keep their rows agree on a file, and analyse and solve together."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from fedconvex.cli.output import fits, say
from fedconvex.cli.parser import OK, USER

STOPPED, AGAIN = 3, 75
_LATER = ("must listen", "'KeyboardInterrupt'", "'Terminated'", "'OSError'", "must be the only one")  # what passes
_RESUMED = "the same command goes on where it was"
_STEPS = {
    "draft": "a study's file from one site's table, to be shortened and agreed upon",
    "check": "what is wrong with this site's table and settings, and what would leave; sends nothing",
    "cert": "certificates: init (the authority), request (a site's key), approve, show",
    "try": "play all roles on this machine with invented rows",
    "join": "take part, at a site",
    "serve": "wait for all sites, ask what the study asks, and send results back, at the coordinator",
    "status": "what the coordinator is doing",
    "audit": "what has left this site, from its log",
    "forget": "delete what this site remembers of the study",
}


def add_parser(commands: Any) -> None:
    """Add the command."""
    study = commands.add_parser(
        "study",
        description=textwrap.dedent("""\
            Sites that keep their rows agree on a file, study.toml, the same at all of them, and analyse and solve
            together. What a site allows stands in its own site.toml. Exit status: 0 for a study that ended, 2 for what
            must be mended first, 3 for one that was stopped, 75 where a later try may do,
            130 and 143 after Ctrl-C and SIGTERM: the same command goes on."""),
        epilog=textwrap.dedent("""\
            examples:
              fedconvex study draft patients.csv --target ill --site north
              fedconvex study check study.toml site.toml
              fedconvex study join study.toml site.toml"""),
    )
    steps = study.add_subparsers(title="steps", metavar="STEP", required=True, parser_class=type(study))
    for name, words in _STEPS.items():
        step = steps.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
        _ARGUMENTS[name](step)
        step.set_defaults(command=globals()[f"_{name}"], resumed=_RESUMED if name in ("join", "serve") else None)


def _of_site(step: Any) -> None:
    step.add_argument("study", metavar="STUDY", help="study.toml, the same at all")
    step.add_argument("site", metavar="SITE", help="site.toml, of this site")


def _draft_arguments(step: Any) -> None:
    step.add_argument("table", metavar="TABLE", help=".csv, .tsv or .parquet file of one site")
    step.add_argument("--target", required=True, metavar="COL", help="column to be explained, or predicted")
    step.add_argument("--site", required=True, metavar="NAME", help="whose table it is")
    step.add_argument("--drop", action="append", default=[], metavar="COL", help="column that is not used")
    step.add_argument(
        "--address", default="localhost:5555", metavar="HOST:PORT", help="where sites reach the coordinator"
    )
    step.add_argument("--out", metavar="FILE", help="write it there; default print it")


def _check_arguments(step: Any) -> None:
    _of_site(step)
    step.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def _cert_arguments(step: Any) -> None:
    parts = step.add_subparsers(title="what", metavar="WHAT", required=True, parser_class=type(step))
    init = parts.add_parser("init", help="the study's authority, and the coordinator's certificate")
    init.add_argument("study", metavar="STUDY", help="study.toml: its address stands in the certificate")
    request = parts.add_parser("request", help="this site's key, which stays here, and a request for the authority")
    request.add_argument("--site", required=True, metavar="NAME")
    approved = parts.add_parser("approve", help="the certificate that a request asks for")
    approved.add_argument("request", metavar="REQUEST", help="NAME.csr, from the site")
    approved.add_argument("--site", required=True, metavar="NAME", help="whose it is: ask there by telephone")
    shown = parts.add_parser("show", help="the fingerprint of a certificate")
    shown.add_argument("certificate", metavar="FILE")
    for part in (init, request, approved):
        part.add_argument("--folder", default=".", metavar="DIR", help="where the files are; default here")
    for part in (init, approved):
        part.add_argument(
            "--days", type=int, default=365, metavar="N", help="for which it is good; default %(default)s"
        )


def _try_arguments(step: Any) -> None:
    step.add_argument("study", metavar="STUDY")
    step.add_argument(
        "--rows", type=int, default=300, metavar="N", help="invented rows of each site; default %(default)s"
    )
    step.add_argument("--seed", type=int, default=0, metavar="S")
    step.add_argument("--folder", metavar="DIR", help="keep all files there; default none is kept")


def _join_arguments(step: Any) -> None:
    _of_site(step)
    step.add_argument("--yes", action="store_true", help="do not ask before the first answer")
    step.add_argument(
        "--wait", type=float, default=3600.0, metavar="S", help="seconds to try to reach it; default %(default)g"
    )


def _serve_arguments(step: Any) -> None:
    step.add_argument("study", metavar="STUDY")
    step.add_argument("--out", required=True, metavar="DIR", help="results, and what a restart needs")
    step.add_argument("--folder", default=".", metavar="DIR", help="with server.pem, server.key and authority.pem")
    step.add_argument("--listen", metavar="HOST:PORT", help="default the study's port at all addresses")


def _status_arguments(step: Any) -> None:
    step.add_argument("out", metavar="DIR", help="what `serve --out` was given")


def _audit_arguments(step: Any) -> None:
    step.add_argument("site", metavar="SITE", help="site.toml, or an audit.jsonl")
    step.add_argument("--lines", action="store_true", help="print every line of the log instead")


def _forget_arguments(step: Any) -> None:
    step.add_argument("site", metavar="SITE", help="site.toml")
    step.add_argument("--yes", action="store_true", help="do not ask")


_ARGUMENTS = {name: globals()[f"_{name}_arguments"] for name in _STEPS}


def _draft(args: argparse.Namespace) -> int:
    from fedconvex._files import write_together
    from fedconvex.study.drafting import draft

    text = draft(args.table, args.target, args.site, args.drop, args.address)
    if args.out is None:
        say(text.rstrip())
        return OK
    if Path(args.out).exists():
        from fedconvex._check import bad

        raise bad("--out", "be a new file", f"{args.out!r}, which is there")
    write_together({args.out: text.encode()})
    say(f"{args.out} was written: shorten its lists, fill in sites and ranges, and let all sites read it")
    return OK


def _check(args: argparse.Namespace) -> int:
    from fedconvex.report.tables import format_table
    from fedconvex.study import check_site, read_site, read_study

    study, site = read_study(args.study), read_site(args.site)
    found = check_site(study, site)
    wrong = [f for f in found.findings if f.stops]
    if args.json:
        leaving = {q.name: [one._asdict() for one in q.leaving] for q in found.questions}
        facts = {"study": study.name, "digest": study.digest, "site": site.name, "sound": found.is_sound}
        say(json.dumps({**facts, "findings": [f._asdict() for f in found.findings], "leaves": leaving}))
        return OK if found.is_sound else USER
    say(f"study {study.name}, digest {study.short}; site {site.name}")
    known = [["–" if not f.stops else "mend", f.check, f.found, f.cure] for f in found.findings]
    if known:
        say(format_table(["", "check", "found", "how to fix"], known, width=fits()))
    if wrong:
        say(f"{len(wrong)} to be mended before this site can take part")
        return USER
    say(f"{found.rows.n:,} of {found.rows.rows:,} rows take part")
    lines = [[q.name, one.when, one.what, f"{one.numbers:,}", one.times] for q in found.questions for one in q.leaving]
    for q in found.questions:
        held = found.rows.n * (q.features + 1)
        allowed = site.told.allowed(held)
        say(f"{q.name} takes about {q.usual:,} numbers; the rows hold {held:,}, and {allowed:,.0f} may be answered")
        if q.summed:
            most = site.limits["summed"] * held
            say(
                f"{q.name} takes about {q.summed:,} more for sums over all sites; {most:,.0f} may be answered for these"
            )
    say("What leaves this site" + (", as sums over all sites only:" if study.secure_sums else ":"))
    say(format_table(["question", "when", "what", "numbers", ""], lines, width=fits()))
    return OK


def _cert(args: argparse.Namespace) -> int:
    from fedconvex.study import certificates, read_study

    if hasattr(args, "certificate"):
        say(certificates.fingerprint_of(args.certificate))
    elif hasattr(args, "study"):
        printed = certificates.make_authority(read_study(args.study), args.folder, args.days)
        say(f'The authority is there. In study.toml, [coordinator]: authority = "{printed}"')
        say("authority.pem goes to all sites; authority.key and server.key stay here.")
    elif hasattr(args, "request"):
        made = certificates.approve(args.request, args.site, args.folder, args.days)
        say(f"{made} was written: send it back to {args.site}; its fingerprint is {certificates.fingerprint_of(made)}")
    else:
        made = certificates.make_request(args.site, args.folder)
        say(f"{made} was written: send it to the authority. {args.site}.key stays here.")
    return OK


def _try(args: argparse.Namespace) -> int:
    import tempfile

    from fedconvex.study import read_study
    from fedconvex.study.trial import try_study

    study = read_study(args.study)
    with tempfile.TemporaryDirectory() as folder:
        try_study(study, args.folder or folder, args.rows, args.seed, say)
    return OK


def _join(args: argparse.Namespace) -> int:
    from fedconvex.study import check_site, read_site, read_study
    from fedconvex.study.site_end import take_part

    study, site = read_study(args.study), read_site(args.site)
    found = check_site(study, site)
    if not found.is_sound:
        for f in found.findings:
            if f.stops:
                say(f"{f.check}: {f.found}; {f.cure}")
        return USER
    asked = ", ".join(
        f"{q.name} (about {q.usual:,} numbers" + (f", and {q.summed:,} in sums over all sites)" if q.summed else ")")
        for q in found.questions
    )
    say(f"study {study.name}, digest {study.short}: {asked}, about {found.rows.n:,} rows of {site.name}")
    if not args.yes and not _answers("Take part?"):
        say("nothing was sent")
        return STOPPED
    try:
        take_part(study, site, _tell, args.wait)
    except ConnectionError as error:
        say(str(error))
        return AGAIN if any(said in str(error) for said in _LATER) else STOPPED
    return OK


def _answers(question: str) -> bool:
    """Whether yes is answered; no where there is nobody to answer."""
    try:
        return input(f"{question} Answer yes: ").strip() == "yes"
    except EOFError:
        say("nobody is there to answer: --yes answers")
        return False


def _tell(line: str) -> None:
    """Print a line at once: it may be read by a supervisor, or from a file."""
    say(line)
    sys.stdout.flush()


def _serve(args: argparse.Namespace) -> int:
    from fedconvex.study import read_study
    from fedconvex.study.agreement import listening
    from fedconvex.study.certificates import SERVER, credentials
    from fedconvex.study.coordination import Stopped, coordinate

    study, folder = read_study(args.study), Path(args.folder)
    own = credentials(study, folder / "server.pem", folder / "server.key", folder / "authority.pem", SERVER)
    try:
        results = coordinate(study, own, args.out, _tell, None if args.listen is None else listening(args.listen))
    except (Stopped, ConnectionError) as error:
        say(f"stopped: {error}")
        return STOPPED
    say(f"{', '.join(sorted(results))} are in {args.out}, and at all sites")
    return OK


def _status(args: argparse.Namespace) -> int:
    from fedconvex._files import existing

    facts = json.loads(existing("fedconvex study status", Path(args.out) / "status.json").read_text(encoding="utf-8"))
    for name, value in facts.items():
        shown = ", ".join(f"{k} {v:,}" for k, v in value.items()) if isinstance(value, dict) else value
        say(f"{name}: {', '.join(map(str, shown)) if isinstance(shown, list) else shown}")
    return OK


def _log_of(name: str) -> Path:
    from fedconvex.study import read_site

    return read_site(name).state / "audit.jsonl" if name.endswith(".toml") else Path(name)


def _audit(args: argparse.Namespace) -> int:
    from fedconvex.report.tables import format_table
    from fedconvex.study.audit_log import read_log, table

    if args.lines:
        for line in read_log(_log_of(args.site)):
            say(json.dumps(line))
        return OK
    rows = table(_log_of(args.site))
    say(format_table(["question", "kind", "answers", "numbers", "refused", "first", "last"], rows, width=fits()))
    last, end, sent, sums = None, None, 0, 0
    for end in read_log(_log_of(args.site)):
        last, sent = end if "held" in end else last, sent + end.get("sent", 0)
        sums = end.get("sums", sums)
    if last is not None:
        say(f"{last['ledger']:,} numbers answered, about rows that hold {last['held']:,}; {sent:,} bytes of messages")
        if sums:
            say(f"{sums:,} more for sums over all sites, of compare")
    if end is not None:
        say(f"the last line is number {end['n']}, its hash {end['hash'][:16]}: noted elsewhere, they show a later cut")
    return OK


def _forget(args: argparse.Namespace) -> int:
    import shutil

    from fedconvex.study import read_site
    from fedconvex.sweeps.answers_on_disk import alone_in

    state = read_site(args.site).state
    if not state.is_dir():
        say(f"{state} is not there: nothing is remembered")
        return OK
    with alone_in("forget", state):
        if not args.yes and not _answers(f"Delete {state}, with its ledger and audit log?"):
            say("nothing was deleted")
            return STOPPED
        shutil.rmtree(state)
    say(f"{state} was deleted")
    return OK
