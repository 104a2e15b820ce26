"""``fedconvex solve bank.csv shop.csv --on ID``: columns at different owners, over the same rows."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.cli.arguments import by_owners
from fedconvex.cli.input_data import Data, entries, listed, loss_of, reading_options, target_loss
from fedconvex.cli.named import check_named, named_settings, worded
from fedconvex.cli.output import fill, fits, say
from fedconvex.cli.parser import OK
from fedconvex.cli.summary import About, Solved, formula_of, listed_coefficients
from fedconvex.loss_traits import traits
from fedconvex.registry import class_named


class Owners(NamedTuple):
    """Joined tables whose columns have roles, nothing fitted yet."""

    title: str
    join: Any
    frame: Any
    planned: Any  # what becomes of the columns
    loss: Any
    reason: str
    target: str
    intercept: bool

    @property
    def knows(self) -> str:
        """Who knows the target."""
        return str(self.join.owner_of[self.target])

    def federation(self, rows: np.ndarray, standardise: bool = True, fitted: Any = None) -> Any:
        """Return some rows, encoded as these rows ask for, or as other rows did."""
        from fedconvex.vertical_federation import VerticalFederation, owners_rows, owners_widths

        some = self.frame.take(rows)
        scaled = {"standardise": standardise, "standardise_target": standardise and traits(self.loss).quadratic}
        columns = self.planned.fit(some, **scaled) if fitted is None else fitted
        width = owners_widths(columns, self.join, self.target, self.intercept)
        ptr = np.cumsum([0, *width.values()])
        return VerticalFederation(owners_rows(columns, some, self.intercept), ptr, np.array([*width]), self.join)


def owners_of(given: Sequence[str]) -> dict[str, Path]:
    """Return files by owner: NAME=FILE, or the file's name without its ending.

    >>> {owner: str(file) for owner, file in owners_of(["data/bank.csv", "shop=orders.csv.gz"]).items()}
    {'bank': 'data/bank.csv', 'shop': 'orders.csv.gz'}
    """
    found: dict[str, Path] = {}
    for text in given:
        name, equals, rest = text.partition("=")
        named = bool(equals and name) and not Path(text).exists()
        file = Path(rest if named else text)
        owner = name if named else file.name.partition(".")[0]
        if owner in found:
            cure = f"name one of them: OWNER={file}"
            raise bad("DATA", "be of different owners", f"{owner} twice", cure)
        found[owner] = file
    return found


def _read_owners(args: argparse.Namespace) -> Owners:
    """Read the tables, join them on the id, and decide about columns."""
    from fedconvex.tables import read_frame
    from fedconvex.vertical_federation import planned_join

    files = owners_of(args.data)
    for file in files.values():
        if not file.is_file():
            raise bad("DATA", "be the files of the owners, with --on", f"{str(file)!r}, which is none")
    text = {args.on, *listed(args.as_category, ())}
    tables = {owner: read_frame(file, text=text, **reading_options(args)) for owner, file in files.items()}
    names = [name for table in tables.values() for name in table.names]
    if args.target == args.on:
        raise bad("--target", f"be another column than the id {args.on!r}", args.target)
    choices: dict[str, Any] = {k: listed(getattr(args, k), names) for k in ("keep", "as_category")}
    choices |= {"features": None if args.features is None else listed(args.features, names), "impute": args.impute}
    choices |= {"task": _task(args, tables), "missing": entries(args.missing, names)}
    intercept = not getattr(args, "no_intercept", False)
    found, frame, planned = planned_join(
        tables, args.on, args.target, args.owner_of_target, intercept, listed(args.drop, names), choices
    )
    loss, reason = target_loss(args.loss, planned, frame)
    if traits(loss).several and len(planned.labels) == 2:
        raise bad(f"--loss {args.loss}", "have a target of more than two classes", "2 classes", "use --loss logistic")
    title = " and ".join(file.name for file in files.values()) if len(files) < 4 else f"{len(files)} tables"
    return Owners(title, found, frame, planned, loss, reason, args.target, intercept)


def _task(args: argparse.Namespace, tables: dict[str, Any]) -> str | None:
    """Return what the target is where a loss says so."""
    cells = [table.cells[args.target] for table in tables.values() if args.target in table.cells]
    if args.loss is None or not cells or cells[0].dtype.kind != "f":
        return None
    kind = traits(loss_of(args.loss, 2))
    if kind.task == "regression":
        return "numbers"
    return "classes" if kind.several and bool(np.all(cells[0] == np.floor(cells[0]))) else None


# ---------------------------------------------------------------- fedconvex solve


def solved(args: argparse.Namespace) -> Solved:
    """Fit one model whose blocks lie with the owners of the columns."""
    from fedconvex import DivergenceWarning, run
    from fedconvex.problems import VerticalProblem

    owners = _read_owners(args)
    parts = _split(args, owners.frame.n)
    fed = owners.federation(parts[0], not args.no_standardize)
    test = owners.federation(parts[1], fitted=fed.columns).rows if len(parts) > 1 else None
    if traits(owners.loss).kinked:
        raise bad(f"--loss {args.loss}", "be smooth with --on", "one with a kink", "use --loss smoothed-hinge")
    problem: Any = VerticalProblem(fed, owners.loss, args.l2)
    method, phrase = _method(args)
    settings = {name: getattr(args, name) for name in ("rounds", "tol", "seed", "threads", "checkpoint")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)  # the summary says it
        result = run(method, problem, **settings)
    scaled = "as they are" if args.no_standardize else "standardised, each by its owner"
    data = Data(owners.title, f"joined on {args.on!r}", fed, test, owners.loss, owners.reason, fed.columns,
                f"features {scaled}", False, None)  # fmt: skip
    scores = _scores(problem, result.w, {"training": fed.rows} | ({} if test is None else {"held-out": test}), data)
    about = About(
        formula_of(problem.pooled),
        "strong convexity: ‖grad F‖²/(2 l2), one number an owner",
        "blocks",
        ("F(w)", "F(w) - F*", "F*"),
        "penalised" if owners.intercept else None,
        tuple((("Scores", "")[i > 0], words) for i, words in enumerate(_score_words(scores))),
        (("owners", _owner_facts(problem, owners)), ("scores", scores), ("joined_on", args.on)),
        _owner_words(problem, owners),
    )
    outcome = Solved(data, problem, None, None, phrase, result, _outlook(args, result), None, [], "", about)
    return replace(outcome, listed=listed_coefficients(outcome)) if args.coefficients else outcome


def _split(args: argparse.Namespace, n: int) -> list[np.ndarray]:
    """Return the rows to train on and those held out."""
    from fedconvex import Federation

    numbers = Federation(np.arange(n, dtype=np.float64)[:, None], np.zeros(n), np.array([0, n]))
    parts = [numbers] if args.test_size is None else numbers.split(args.test_size, args.seed)
    return [part.X[:, 0].astype(np.int64) for part in parts]


def _method(args: argparse.Namespace) -> tuple[Any, str]:
    """Return the method and a phrase with its settings; steps are those of a theorem unless one is given."""
    if "method" not in vars(args).get("given", ()):
        args.method = "vertical-accelerated"
    if args.method not in by_owners():
        raise bad(f"--method {args.method}", f"be one of {', '.join(by_owners())} with --on", "another")
    check_named(args)
    cls = class_named(args.method)
    values = named_settings(args)
    if "step_size" in getattr(cls, "__dataclass_fields__", {}):
        values.setdefault("step_size", "auto")
    method = cls(**values)
    shown = worded({name: v for name, v in values.items() if v != "auto"})
    return method, ", ".join([cls.__name__, *shown, *(["step size 1/L of F"] if "auto" in values.values() else [])])


def _scores(problem: Any, w: np.ndarray, parts: dict[str, Any], data: Data) -> dict[str, dict[str, float]]:
    """Return loss and accuracy, or root mean square error in units of the target, of training and held-out rows."""
    from fedconvex import Problem
    from fedconvex.report import per_client_metrics

    found = {}
    for name, rows in parts.items():
        if not np.isfinite(w).all():
            continue
        each = per_client_metrics(Problem(rows, problem.loss, problem.l2), w, data.columns.target_scale)
        found[name] = {k: float(v[0]) for k, v in each.items() if k not in ("client", "rows")}
    return found


def _score_words(scores: dict[str, dict[str, float]]) -> list[str]:
    return [", ".join(f"{k} {v:.4g}" for k, v in each.items()) + f" on {name} rows" for name, each in scores.items()]


def _owner_facts(problem: Any, owners: Owners) -> list[dict[str, Any]]:
    fed, left = problem.federation, owners.join.unmatched
    known = dict(zip(fed.labels.tolist(), fed.widths.tolist(), strict=True))
    known[owners.knows] = known.get(owners.knows, 0) - owners.intercept
    return [
        {"owner": name, "features": known.get(name, 0), "knows_target": name == owners.knows,
         "unmatched": list(left[name])}
        for name in left
    ]  # fmt: skip


def _owner_words(problem: Any, owners: Owners) -> str:
    """Say who owns how many features, who knows the target, and which ids have no partner."""
    words = []
    for owner in _owner_facts(problem, owners):
        left, knows = owner["unmatched"], f", knows {owners.target!r}" if owner["knows_target"] else ""
        some = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
        gone = f", {len(left):,} row{'s' * (len(left) != 1)} left out without a partner ({some})" if left else ""
        features = owner["features"]
        words.append(f"{owner['owner']}: {features:,} feature{'s' * (features != 1)}{knows}{gone}")
    return f"{len(words)}, {len(owners.join.ids):,} common rows. " + "; ".join(words)


def _outlook(args: argparse.Namespace, result: Any) -> str:
    """Say why the run ended as it did."""
    from fedconvex.report import outlook

    if result.status.name == "DIVERGED" and args.method == "fedbcd":
        return "Blocks that move at once overshot: leave --set damping=... out, or take --set order='in turn'."
    if result.status.name == "CONVERGED":
        return "The certificate holds for this model, however it was found."
    return outlook(result, args.tol)


# ---------------------------------------------------------------- fedconvex compare


def compared(args: argparse.Namespace) -> int:
    """Say what the columns of each owner add."""
    import json

    from fedconvex.comparison.owners import blocks_of, compare_blocks
    from fedconvex.report.tables import plain

    owners = _read_owners(args)
    blocks = blocks_of(owners.join, owners.frame, owners.planned, owners.target, owners.intercept, owners.loss)
    found = compare_blocks(blocks, args.l2, args.folds, args.seed)
    if args.json:
        models = [
            {**m._asdict(), "worth": m.worth._asdict(), "change": m.change._asdict(), "features": m.features}
            for m in found.models
        ]
        about = {"rows": found.rows, "folds": found.folds, "l2": found.l2, "knows_target": found.knows}
        say(json.dumps(plain({**about, "models": models, "unmatched": found.unmatched,
                              "decision": list(found.sentences)}), allow_nan=False))  # fmt: skip
        return OK
    left = "; ".join(f"{o}: {len(ids):,} rows without a partner" for o, ids in found.unmatched.items() if ids)
    lines = [
        fill(f"{owners.title}: {found.rows:,} common rows of {len(found.models[0].owners)} owners; {found.knows} knows "
             f"{owners.target!r}" + (f"; {left}" if left else "")),
        "", *(fill(sentence) for sentence in found.sentences), "", found.table(fits()), "",
        fill(f"Least objectives over all rows, l2 = {found.l2:g}; losses of held-out rows in {found.folds} folds, with "
             "95 % limits that take rows as independent."),
    ]  # fmt: skip
    say("\n".join(lines))
    return OK
