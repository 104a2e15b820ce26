"""What ``fedconvex solve`` prints."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedconvex import __version__
from fedconvex.cli.input_data import Data
from fedconvex.cli.output import fill, fits
from fedconvex.loss_traits import traits

if TYPE_CHECKING:
    from fedconvex.constants import Constants
    from fedconvex.constants.default_steps import Smoothness
    from fedconvex.driver import Result
    from fedconvex.problems import Problem

SHOWN_CLIENTS, SHOWN_COLUMNS = 20, 40


class About(NamedTuple):
    """What was minimised, in words."""

    formula: str  # the objective
    certificate: str  # where the lower bound of the minimum comes from
    minimised: str  # "mean", "worst", "softmax", "models per client", "ensemble" or "blocks" at owners of columns
    names: tuple[str, str, str]  # of the objective, of the gap, of the minimum
    intercept: str | None  # in words; None without one
    lines: tuple[tuple[str, str], ...] = ()  # further lines of the summary
    facts: tuple[tuple[str, Any], ...] = ()  # further facts
    owners: str = ""  # of columns, in words; stands for the line on clients


@dataclass(frozen=True)
class Solved:
    """All that a summary says."""

    data: Data
    problem: Any
    constants: Constants | None
    smooth: Smoothness | None  # None where nothing is said of constants
    method: str
    result: Result
    sentence: str
    clients: dict[str, np.ndarray] | None
    models: list[dict[str, Any]]
    alone: str  # why clients' own models are missing, if they are
    about: About
    listed: Any = field(default=None)  # heads, rows and facts that --coefficients prints


def aim_of(method: Any) -> str:
    """Return what the method minimises: the mean loss, that of the worst domain, or a softmax of the domains'."""
    return {"worst domain": "worst", "softmax of domains": "softmax"}.get(getattr(method, "aims", ("",))[0], "mean")


def value_words(aim: str) -> tuple[str, str, str]:
    """Return what the objective, the gap and the minimum are called."""
    return ("F(w)", "F(w) - F*", "F*") if aim == "mean" else ("value", "value - minimum", "the minimum")


def intercept_words(args: argparse.Namespace, free: bool) -> str | None:
    """Return how the intercept is penalised, in words; None without one."""
    return None if args.no_intercept else "free" if free else "penalised"


def certificate(problem: Problem, aim: str = "mean") -> str:
    """Where the lower bound of the minimum comes from."""
    if aim != "mean":
        kind = "minimax" if aim == "worst" else "softmax"
        exact = problem.size <= 2000 and problem.traits.curved
        return f"the exact {kind} solution's certificate" if exact else "a bound of the loss itself"
    if problem.size <= 2000 or problem.penalty is not None:
        return problem.solve().certificate
    more = "" if problem.strong_convexity > 0.0 else ", and a bound of the intercept"
    return f"strong convexity: ‖grad F‖²/(2 l2){more}"


def formula_of(problem: Problem, aim: str = "mean") -> str:
    """Return the objective in words."""
    if aim != "mean":
        return {"worst": "largest over domains", "softmax": "softmax over domains"}[aim] + f" of {formula_of(problem)}"
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", f"{problem.loss!r}".partition("(")[0]).lower()
    penalty = "" if problem.penalty is None else f" + {problem.penalty!r}"
    return f"{name} loss" + (f" + ({problem.l2:g}/2) ‖w‖²" if problem.l2 > 0.0 else "") + penalty


def _constant_rows(outcome: Solved) -> list[tuple[str, Any, str, str]]:
    """Name, value, how it was obtained, meaning."""
    smooth, c = outcome.smooth, outcome.constants
    if smooth is None:
        return []
    if c is None:
        how = "rigorous bound"
        return [
            ("L", smooth.client, how + smooth.where, "smoothness of the roughest client"),
            ("L of F", smooth.F, how + smooth.where, "smoothness of the objective"),
            ("mu", outcome.problem.strong_convexity, how, "strong convexity"),
        ]
    meanings = {
        "L": "smoothness of the roughest client",
        "mu": "strong convexity of the objective F",
        "kappa": "condition number L/mu",
        "zeta_star": "how much client gradients disagree at the optimum",
        "zeta": "the same, largest over all models",
        "Gamma": "F* less the mean of the clients' own minima",
    }
    rows = [(n, getattr(c, n), c.how.get(n, "from L and mu"), text) for n, text in meanings.items()]
    how = c.how.get("L", "") if smooth.exact else "rigorous bound" + smooth.where
    rows.insert(1, ("L of F", smooth.F, how, "smoothness of the objective F"))
    if traits(outcome.problem.loss).kinked:
        rows = [row for row in rows if row[0] not in ("L", "L of F", "kappa")]
    return [(n, v, "unbounded" if v == math.inf else h, text) for n, v, h, text in rows if v is not None]


def facts(args: argparse.Namespace, outcome: Solved) -> dict[str, Any]:
    """Return the summary as data."""
    data, result, fed, trace = outcome.data, outcome.result, outcome.data.train, outcome.result.trace
    clients, about = outcome.clients, outcome.about
    return {
        "version": __version__,
        "data": data.title,
        "clients": fed.K,
        "rows": fed.n,
        "test_rows": None if data.test is None else data.test.n,
        "features": len(data.names),
        "columns": [dict(zip(("column", "became", "note"), row, strict=True)) for row in data.columns.listed()],
        "by_client": [one._asdict() for one in data.by_client],
        "read": data.columns.read_as,
        "domains": fed.n_domains,
        "loss": repr(data.loss),
        "classes": data.labels,
        "l2": args.l2,
        "penalty": None if args.penalty is None else repr(args.penalty),
        "nonzero": _nonzero(outcome)[0] if about.minimised in ("mean", "worst", "softmax") else None,
        "intercept": about.intercept,
        "weights": args.weights,
        "sample_weight": fed.sample_weight is not None,
        "constants": {n: {"value": v, "how": how} for n, v, how, _ in _constant_rows(outcome)},
        "method": outcome.method,
        "status": result.status.name,
        "why": outcome.sentence,
        "rounds": result.rounds,
        "objective": trace.value[-1],
        "gap": result.gap,
        "tol": args.tol,
        "certificate": about.certificate,
        "minimised": about.minimised,
        "coefficients": outcome.listed[2] if args.coefficients else None,
        "preprocessing": None if data.sent is None else {"floats_up": data.sent[0], "floats_down": data.sent[1]},
        "floats_up": trace.floats_up[-1],
        "floats_down": trace.floats_down[-1],
        "seconds": trace.seconds[-1],
        "measured_on": "training rows" if data.test is None else "held-out rows",
        "per_client": None if clients is None else {name: column.tolist() for name, column in clients.items()},
        "models": outcome.models,
        **dict(about.facts),
    }


def summary(args: argparse.Namespace, outcome: Solved, written: Sequence[str]) -> str:
    """Return the summary as text."""
    from fedconvex.report import format_table

    data, result, about = outcome.data, outcome.result, outcome.about
    trace, gap, (name, less, least) = result.trace, float(result.gap), about.names
    lines = [
        *_data_lines(args, outcome),
        ("Method", outcome.method),
        (
            "Status",
            f"{result.status.name} after {result.rounds:,} round{'s' * (result.rounds != 1)}, {_clock(trace.seconds)}",
        ),
        ("", outcome.sentence),
        ("Objective", f"{name} = {trace.value[-1]:.8g}"),
        *about.lines,
        (
            "Gap",
            f"{less} <= {gap:.3g} is certified (asked: {args.tol:g}); lower bound of {least} by {about.certificate}",
        ),
        ("Sent", _sent(outcome)),
    ]
    if args.penalty is not None:
        lines.insert(-2, ("Model", "{:,} of {:,} coefficients are not zero".format(*_nonzero(outcome))))
    if not math.isfinite(gap) or result.status.name == "DIVERGED":
        lines[-2] = ("Gap", "nothing is certified")
    text = ["\n".join(_paragraph(name, body) for name, body in lines)]
    if not data.bundled:
        text.append(_column_text(data))
    constants = _constant_rows(outcome)
    if constants:
        text.append(format_table(["constant", "value", "obtained", "meaning"], constants, width=fits()))
    where = "training rows" if data.test is None else "held-out rows"
    if outcome.clients is not None:
        text.append(_client_text(outcome.clients, where))
    if outcome.models:
        text.append(_model_text(outcome, where))
    if args.coefficients:
        title, (heads, rows), _ = outcome.listed
        text.append(f"{title}:\n{format_table(heads, rows, width=fits())}")
    if written:
        text.append(fill(f"Wrote {', '.join(written)}."))
    return "\n\n".join(text)


def _data_lines(args: argparse.Namespace, outcome: Solved) -> list[tuple[str, str]]:
    """Return the lines on rows, clients and the problem."""
    data, fed, about = outcome.data, outcome.data.train, outcome.about
    how = {"free": " (free)", "penalised": " (penalised like the rest)"}
    constant = "no intercept" if about.intercept is None else f"an intercept{how[about.intercept]}"
    rows = f"{fed.n:,} rows" if data.test is None else f"{fed.n:,} training and {data.test.n:,} held-out rows"
    labels = ""
    if data.labels is not None:
        shown = [*map(str, data.labels[:6]), *(["..."] if len(data.labels) > 6 else [])]
        labels = f"{'; classes' if args.loss else ':'} {', '.join(shown)}"
    domains = f", {fed.n_domains} domains" if fed.n_domains else ""
    scaled = data.scaling if about.minimised == "ensemble" else f"{data.scaling}, {constant}"
    return [
        ("Data", f"{data.title}: {rows}, {len(data.names):,} feature{'s' * (len(data.names) > 1)}{domains}"),
        *([("Read", data.columns.read_as)] if data.columns.read_as else []),
        ("Owners", about.owners) if about.owners else ("Clients", _client_words(args, outcome)),
        ("Problem", f"{about.formula} ({data.reason}{labels}); {scaled}"),
    ]


def _client_words(args: argparse.Namespace, outcome: Solved) -> str:
    """Say how many clients there are, where they come from, and how they and their rows are weighted."""
    data, fed = outcome.data, outcome.data.train
    sizes = f"{fed.sizes.min()}" if fed.sizes.min() == fed.sizes.max() else f"{fed.sizes.min()} to {fed.sizes.max()}"
    rowwise = "" if fed.sample_weight is None else f", rows weighted by {args.weight or 'sample_weight'}"
    weights = "" if outcome.about.minimised == "ensemble" else f", weights {_weights(args.weights)}"
    return f"{fed.K:,} with {sizes} row{'s' * (sizes != '1')} each ({data.origin}){weights}{rowwise}"


def _sent(outcome: Solved) -> str:
    """How many floats were sent, before the rounds and in them."""
    trace, data = outcome.result.trace, outcome.data
    up, down = int(trace.floats_up[-1]), int(trace.floats_down[-1])
    sent = f"{up:,} floats up, {down:,} down ({_bytes(8 * (up + down))})" if up + down else "nothing (centralised)"
    if data.sent is not None:
        sent += f"; before that, for categories, means and scales: {data.sent[0]:,} up, {data.sent[1]:,} down"
    return sent


def _nonzero(outcome: Solved) -> tuple[int, int]:
    """How many coefficients are not zero, and how many there are, a free intercept apart."""
    w, seen = outcome.result.w.ravel(), outcome.problem.penalised_entries
    w = w if seen is None else w[seen]
    return int(np.count_nonzero(w)), w.size


def listed_coefficients(outcome: Solved) -> tuple[str, tuple[list[str], list[list[Any]]], dict[str, Any]]:
    """Return title, table and facts of the coefficients in the units of the data; lists have one entry a class."""
    model, labels = outcome.result.model(), outcome.data.labels
    values = dict(zip(model.feature_names, model.coef.T.tolist(), strict=True))
    found = {"intercept": model.intercept.tolist(), "features": values}
    several = isinstance(found["intercept"], list)
    heads = ["feature", *(map(str, labels or ()) if several else ["coefficient"])]
    rows = [[name, *(v if several else [v])] for name, v in [("intercept", found["intercept"]), *values.items()]]
    towards = "" if labels is None or several else f", towards {labels[-1]!r}"
    return f"Coefficients, per unit of the data{towards}", (heads, rows), found


def measured_clients(fed: Any, loss: Any, scores: np.ndarray, unit: float) -> dict[str, np.ndarray]:
    """Return what `fedconvex.report.per_client_metrics` does, from the scores of all rows, (n,).

    Parameters
    ----------
    fed : Federation
    loss : loss of one score
    scores : array (n,)
    unit : float
        Of the target.
    """
    from fedconvex.kernels import row_losses

    errors = np.empty((fed.n, 1))
    row_losses.row_values(loss, np.ascontiguousarray(scores[:, None]), fed.y, errors)
    weight = np.ones(fed.n) if fed.sample_weight is None else fed.sample_weight

    def means(v: np.ndarray) -> np.ndarray:
        return np.asarray(np.add.reduceat(weight * v, fed.ptr[:-1]) / fed.masses)

    out = {"client": fed.labels, "rows": fed.sizes, "loss": means(errors[:, 0])}
    guess = traits(loss).predict(scores)
    if traits(loss).task == "classification":
        return out | {"accuracy": means((guess == fed.y).astype(float))}
    error, spread = means((guess - fed.y) ** 2), means((fed.y - np.repeat(means(fed.y), fed.sizes)) ** 2)
    r2 = 1.0 - np.divide(error, spread, out=np.full(fed.K, np.nan), where=spread > 0.0)
    return out | {"rmse": unit * np.sqrt(error), "r2": r2}


def _column_text(data: Data) -> str:
    """Return what became of every column; of wide tables, of those that are not plain numbers."""
    from fedconvex.report import format_table
    from fedconvex.tables.looking import HEADS

    rows = data.columns.listed()
    shown = rows if len(rows) <= SHOWN_COLUMNS else [r for r in rows if r[1] != "number" or r[2]][:SHOWN_COLUMNS]
    title = "Columns:" if len(shown) == len(rows) else f"Columns ({len(rows) - len(shown):,} more, mostly numbers):"
    text = f"{title}\n{format_table(['column', 'became', 'note'], shown, width=fits())}"
    if not data.by_client:
        return text
    odd = [list(one) for one in data.by_client[:SHOWN_COLUMNS]]
    more = len(data.by_client) - len(odd)
    head = "Columns by client" + (f" ({more:,} more: fedconvex look)" if more else "")
    return f"{text}\n\n{head}:\n{format_table(HEADS, odd, width=fits())}"


def _client_text(found: dict[str, np.ndarray], where: str) -> str:
    from fedconvex.report import format_table

    worst = int(np.argmax(found["loss"]))
    order = np.argsort(-found["loss"], kind="stable")[:SHOWN_CLIENTS]
    K = len(found["loss"])
    table = format_table(
        ["client", *list(found)[1:]],
        [[str(found["client"][k]), *(found[name][k] for name in list(found)[1:])] for k in order],
        width=fits(),
    )
    some = "" if K <= SHOWN_CLIENTS else f", the {SHOWN_CLIENTS} of {K:,} with the largest loss"
    name = "accuracy" if "accuracy" in found else "rmse"
    last = f"Worst client: {found['client'][worst]}, loss {found['loss'][worst]:.4g}, {name} {found[name][worst]:.4g}."
    return f"{fill(f'Per client, on {where}{some}:')}\n{table}\n{fill(last)}"


def _model_text(outcome: Solved, where: str) -> str:
    from fedconvex.report import format_table

    rows = outcome.models
    score = "accuracy" if "accuracy" in rows[0] else "rmse"
    keys = ["model", "objective", "loss", score, "worst_loss", f"worst_{score}"]
    headers = ["model", "objective F", "loss", score, "worst client's loss", f"worst client's {score}"]
    if all(row["objective"] is None for row in rows):  # they minimise different objectives
        del keys[1], headers[1]
    table = format_table(headers, [[row[key] for key in keys] for row in rows], width=fits())
    note = "\n" + fill(f"({outcome.alone})") if outcome.alone else ""
    return f"Compared, on everybody's {where}:\n{table}{note}"


def _paragraph(name: str, body: str) -> str:
    return fill(body, f"{name:<11}", 11)


def _weights(name: str) -> str:
    return "n_k/n" if name == "size" else "1/K"


def _clock(seconds: np.ndarray) -> str:
    total = float(seconds[-1])
    text = f"{total:.2f} s" if total < 100 else f"{total / 60:.1f} min"
    compiled = len(seconds) > 2 and seconds[1] > max(0.5, 20.0 * (total - seconds[1]) / (len(seconds) - 2))
    return text + (f" (the first round took {seconds[1]:.1f} s: kernels are compiled once)" if compiled else "")


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"
