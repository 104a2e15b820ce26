"""Plain-text tables, metrics per client, comparisons of models, and a sentence on where a run stands."""

from __future__ import annotations

import io
import itertools
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedconvex._check import bad, finite, flag, instance, items, numeric, printable, real, text, whole, wrong_type
from fedconvex._files import check_file, write_file
from fedconvex.driver import Result, Status
from fedconvex.loss_traits import traits
from fedconvex.problems import Problem


def format_table(
    headers: Sequence[str], rows: Sequence[Sequence[Any]], indent: str = "", width: int | None = None
) -> str:
    """Return aligned plain text: numbers to the right, text to the left, missing numbers as "-".

    Parameters
    ----------
    headers : sequence of str
        One per column.
    rows : sequence of sequences
        Cells: text, with what cannot be printed escaped, whole numbers, or floats (shown with four significant digits;
        infinity as "inf", NaN as "-").
    indent : str
        Put before every line.
    width : int, optional
        Columns to keep to, by folding headers and text; numbers are never cut.

    Raises
    ------
    ValueError, TypeError
        If a row has not one cell per header, a cell is neither text nor number, or width is below 1.

    Examples
    --------
    >>> from fedconvex.report import format_table
    >>> print(format_table(["client", "rows", "loss"], [["north", 12, 0.51234], ["south", 7, float("nan")]]))
    client  rows    loss
    north     12  0.5123
    south      7       -
    """
    headers = items("format_table: headers", headers)
    rows = [list(items("format_table: rows", row)) for row in items("format_table: rows", rows)]
    text("format_table: indent", indent)
    width = None if width is None else whole("format_table: width", width, low=1)
    for row in rows:
        if len(row) != len(headers):
            raise bad("format_table: rows", f"have {len(headers)} cells each", f"{len(row)} in {row!r}")
    words = [any(isinstance(row[j], str) for row in rows) for j in range(len(headers))]
    names = [printable(text("format_table: headers", h)) for h in headers]
    return aligned(names, [[_cell(v) for v in row] for row in rows], words, indent, width)


def aligned(
    headers: Sequence[str], cells: Sequence[Sequence[str]], text: Sequence[bool], indent: str, width: int | None
) -> str:
    """Return a table of cells, those of text to the left; headers and text are folded where it would be too wide."""
    widths = [max([len(h), *(len(row[j]) for row in cells)]) for j, h in enumerate(headers)]
    if width is not None:
        widths = _folded(headers, cells, text, widths, width - len(indent) - 2 * (len(headers) - 1))
    lines = []
    for row in [headers, *cells]:
        parts = [textwrap.wrap(v, max(m, 1)) or [""] for v, m in zip(row, widths, strict=True)]
        for line in itertools.zip_longest(*parts, fillvalue=""):
            shown = [v.ljust(m) if left else v.rjust(m) for v, m, left in zip(line, widths, text, strict=True)]
            lines.append((indent + "  ".join(shown)).rstrip())
    return "\n".join(lines)


def _folded(
    headers: Sequence[str], cells: Sequence[Sequence[str]], text: Sequence[bool], widths: Sequence[int], room: int
) -> list[int]:
    """Return widths of columns that leave room: the widest give way, to words of headers, numbers, and 8 of text."""
    least = []
    for j, head in enumerate(headers):
        longest = max([len(word) for word in head.split()], default=0)
        least.append(max([longest, *(min(len(row[j]), 8 if text[j] else len(row[j])) for row in cells)]))
    found = [min(w, max(room, m)) for w, m in zip(widths, least, strict=True)]
    while sum(found) > room and found != least:
        j = max(range(len(found)), key=lambda j: (found[j] > least[j]) * found[j])
        found[j] -= 1
    return found


def _cell(v: Any) -> str:
    if isinstance(v, (str, bool, np.bool_)):
        return printable(str(v))
    if isinstance(v, (int, np.integer)):
        return f"{v:,}"
    if not isinstance(v, (int, float, np.number, type(None))):
        raise wrong_type("cells of a table", "be text, numbers or None", f"{v!r}")
    return "-" if v is None or math.isnan(v) else f"{v:.4g}"


def per_client_metrics(problem: Problem, w: Any, target_scale: float = 1.0) -> dict[str, np.ndarray]:
    """Measure one model on every client's rows.

    Parameters
    ----------
    problem : Problem
        Its federation's rows are measured: the training rows, or others under the same loss.
    w : model
        One model, in the problem's model shape.
    target_scale : float
        Unit of the target (for squared loss): multiplies the RMSE.

    Returns
    -------
    dict of arrays (K,)
        client, rows, loss (mean, without the ridge term), and accuracy; or rmse and r2 for squared loss. r2 is NaN for
        a client whose targets are all equal.

    Raises
    ------
    ValueError, TypeError
        If w is not one finite model of the problem, or target_scale not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import per_client_metrics
    >>> fed = Federation.from_arrays(np.ones((4, 1)), [1.0, 3.0, 2.0, 4.0], ["a", "a", "b", "b"])
    >>> found = per_client_metrics(Problem(fed, Squared()), np.array([2.0]))
    >>> {name: column.tolist() for name, column in found.items()}
    {'client': ['a', 'b'], 'rows': [2, 2], 'loss': [0.5, 1.0], 'rmse': [1.0, 1.4142135623730951], 'r2': [0.0, -1.0]}
    """
    instance("per_client_metrics: problem", problem, Problem)
    fed, w = problem.federation, numeric("per_client_metrics: w", w)
    finite("per_client_metrics: w", w)
    target_scale = real("per_client_metrics: target_scale", target_scale, low=0.0, strict=True)
    loss = problem.client_values(w)
    if loss.ndim != 1:
        raise bad("per_client_metrics: w", f"be one model of shape {problem.model_shape}", f"shape {w.shape}")
    out = {"client": fed.labels, "rows": fed.sizes, "loss": loss - problem.ridge_term(w.ravel())}
    guess = problem.predict(w)
    if traits(problem.loss).task == "classification":
        return out | {"accuracy": _means(fed, (guess == fed.y).astype(float))}
    error = _means(fed, (guess - fed.y) ** 2)
    spread = _means(fed, (fed.y - np.repeat(_means(fed, fed.y), fed.sizes)) ** 2)
    r2 = 1.0 - np.divide(error, spread, out=np.full(fed.K, np.nan), where=spread > 0.0)
    return out | {"rmse": target_scale * np.sqrt(error), "r2": r2}


def _means(fed: Any, v: np.ndarray) -> np.ndarray:
    """Mean over every client's rows, weighted as they are, (K,)."""
    s = 1.0 if fed.sample_weight is None else fed.sample_weight
    return np.add.reduceat(s * v, fed.ptr[:-1]) / fed.masses


def comparison(
    problem: Problem, models: Mapping[str, Any], target_scale: float = 1.0, measured: Problem | None = None
) -> list[dict[str, Any]]:
    """Measure models on all clients' rows: mean over all rows, and the client each serves worst.

    Parameters
    ----------
    problem : Problem
        Its value is the objective.
    models : mapping of name to model, or to models with a leading axis
        Several models under one name (what every client learns alone) give two entries: their mean, "NAME, mean of m",
        and the one with the largest loss, "NAME, worst of m".
    target_scale : float
        As for `per_client_metrics`.
    measured : Problem, optional
        Its federation's rows are measured, for example held-out ones; default the problem itself.

    Returns
    -------
    list of dict
        model, objective, loss and accuracy (or rmse) over all rows, worst_client (by loss; of a mean: the one named
        most often), worst_loss, worst_accuracy (or worst_rmse), the extremes over clients.

    Raises
    ------
    ValueError, TypeError
        If measured has another loss than problem, or models is no mapping of names to models of its shape.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import comparison
    >>> fed = Federation.from_arrays(np.ones((4, 1)), [1.0, 3.0, 2.0, 4.0], ["a", "a", "b", "b"])
    >>> problem = Problem(fed, Squared())
    >>> rows = comparison(problem, {"pooled": problem.solve().w, "alone": np.array([[2.0], [4.0]])})
    >>> [(row["model"], row["loss"], row["worst_client"]) for row in rows]
    [('pooled', 0.625, 'a'), ('alone, mean of 2', 1.25, 'b'), ('alone, worst of 2', 1.75, 'a')]
    """
    target = _measured(problem, measured, models)
    score = "rmse" if traits(problem.loss).task == "regression" else "accuracy"
    out: list[dict[str, Any]] = []
    for name, given in models.items():
        w = numeric(f"comparison: models[{text('comparison: models: a name', name)!r}]", given)
        several = w.ndim == len(problem.model_shape) + 1
        found = [
            {"objective": float(problem.value(v)), **_overall(target, v, score, target_scale)}
            for v in (w if several else [w])
        ]
        if not several:
            out.append({"model": name, **found[0]})
            continue
        worst = max(found, key=lambda row: row["loss"])
        numbers = ("objective", "loss", score, "worst_loss", f"worst_{score}")
        mean = {key: float(np.mean([row[key] for row in found])) for key in numbers}
        often = [row["worst_client"] for row in found]
        common = max(dict.fromkeys(often), key=often.count)
        out.append({"model": f"{name}, mean of {len(found)}", "worst_client": common, **mean})
        out.append({"model": f"{name}, worst of {len(found)}", **worst})
    return out


def _measured(problem: Problem, measured: Problem | None, models: Any) -> Problem:
    """Return the problem whose rows are measured."""
    instance("comparison: problem", problem, Problem)
    target = problem if measured is None else measured
    instance("comparison: measured", target, Problem)
    if traits(target.loss).task != traits(problem.loss).task:
        raise bad("comparison: measured", f"have {problem.loss!r} as the problem", f"{target.loss!r}")
    instance("comparison: models", models, Mapping)
    return target


def _overall(problem: Problem, w: np.ndarray, score: str, target_scale: float) -> dict[str, Any]:
    """One entry of `comparison`."""
    found = per_client_metrics(problem, w, target_scale)
    share = found["rows"] / found["rows"].sum()
    k = int(np.argmax(found["loss"]))
    if score == "rmse":
        extreme = float(found[score].max())
        unit = extreme or 1.0  # squares of large errors are no doubles
        overall = unit * math.sqrt(float(share @ (found[score] / unit) ** 2))
    else:
        overall, extreme = float(share @ found[score]), float(found[score].min())
    return {
        "loss": float(share @ found["loss"]),
        score: overall,
        "worst_client": found["client"][k].item(),
        "worst_loss": float(found["loss"][k]),
        f"worst_{score}": extreme,
    }


_NEARER = "a smaller step size ends nearer, one full local step with full participation ends at it"
_BESIDE = (
    "A robust aggregate ends beside the minimiser of F where clients differ, and farther off where some lie; "
    "the weighted mean of honest clients does not."
)
_STALLED = {  # by (noisy, drifting)
    (False, False): "hardly falls any more; exact gradient steps of this size are slow here: allow more rounds or a "
    "larger l2",
    (False, True): "has stopped falling; several local steps pull every client towards its own optimum (client drift), "
    f"so a constant step size ends beside the optimum of all: {_NEARER}",
    (True, False): "has stopped falling; random mini-batches or sampled clients keep a constant step size from "
    f"settling: {_NEARER}",
    (True, True): "has stopped falling; client drift (several local steps) and the noise of mini-batches or sampled "
    f"clients keep a constant step size from settling: {_NEARER}",
}


def outlook(result: Result, tol: float, *, noisy: bool = False, drifting: bool = False, robust: bool = False) -> str:
    """Return in one sentence why a run ended where it did, and what would help.

    Parameters
    ----------
    result : Result
        Of one trajectory.
    tol : float
        The gap it was to reach.
    noisy : bool
        Whether mini-batches or sampled clients make its steps random.
    drifting : bool
        Whether clients take several steps between two averages.
    robust : bool
        Whether the server takes medians or trimmed means, which end beside the minimiser of F.

    Raises
    ------
    ValueError, TypeError
        If result is not of one trajectory, or tol is negative.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.report import outlook
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> result = run(FedAvg(step_size=0.1), problem, rounds=2000, tol=1e-6)
    >>> outlook(result, 1e-6)
    'Every round was exact, which leads to the optimum itself.'
    """
    tol = real("outlook: tol", tol, low=0.0)
    noisy, drifting = flag("outlook: noisy", noisy), flag("outlook: drifting", drifting)
    robust = flag("outlook: robust", robust)
    instance("outlook: result", result, Result)
    if np.ndim(result.gap):
        raise bad("outlook: result", "be of one trajectory", f"{np.size(result.gap)}")
    if result.status is Status.DIVERGED:
        return f"The objective blew up by round {int(result.diverged.max())}: take a smaller step size."
    if result.status is Status.CONVERGED:
        if result.rounds == 0:
            return "The start is already as near to the optimum as was asked: nothing was done."
        if noisy or drifting:
            return "The certificate holds for this model, whatever drift or noise there was on the way."
        return "Every round was exact, which leads to the optimum itself."
    if result.status is Status.CYCLE:
        return _repeated(result, drifting) if not robust else f"{_standing(result)}. {_BESIDE}"
    return _unfinished(np.asarray(result.trace.round), np.asarray(result.trace.gap), tol, noisy, drifting, robust)


def _unfinished(rounds: np.ndarray, gap: np.ndarray, tol: float, noisy: bool, drifting: bool, robust: bool) -> str:
    """Return what a run whose rounds are used up would have needed, from the gaps it went through."""
    if not math.isfinite(gap[-1]):
        return "Nothing certifies a gap here: add a ridge term (l2 > 0)."
    if gap[-1] > gap[0]:
        return "The model is worse than the start" + (f". {_BESIDE}" if robust else ": the step size is too large.")
    half = int(np.searchsorted(rounds, rounds[-1] / 2))
    late, early = gap[(half + len(gap)) // 2 :], gap[half : (half + len(gap)) // 2]
    least = 0.7 if noisy else 0.9  # noise hides a slow decrease
    if early.size and float(np.median(late)) > least * float(np.median(early)):
        return f"The gap has stopped falling. {_BESIDE}" if robust else f"The gap {_STALLED[noisy, drifting]}."
    if tol <= 0.0:
        return "The gap was still falling."
    rate = math.log(gap[half] / gap[-1]) / max(int(rounds[-1] - rounds[half]), 1) if gap[half] > gap[-1] > 0.0 else 0.0
    if rate <= 0.0:
        return "The gap was still falling."
    more = _round_up((math.log(gap[-1]) - math.log(tol)) / rate)
    caution = " if neither drift nor noise stops it" if noisy or drifting else ""
    return f"The gap was still falling: about {more:,} more rounds would reach tol at the present rate{caution}."


def _standing(result: Result) -> str:
    p = result.period
    return "The model stands still" if p == 1 else f"The same {p} models come back for ever"


def _repeated(result: Result, drifting: bool) -> str:
    """Say what a run does that repeats itself, and what would help."""
    what = _standing(result)
    if drifting:
        return f"{what}, and the gap with it: it {_STALLED[False, True]}."
    if not math.isfinite(float(result.gap)):
        return f"{what}. Nothing certifies a gap here: add a ridge term (l2 > 0)."
    return f"{what}: more rounds change nothing. Take another step size, or a larger tol if the gap is at rounding."


def _round_up(x: float) -> int:
    """Two significant digits, upwards."""
    x = min(x, 1e18)
    unit = 10 ** max(int(math.log10(max(x, 1.0))) - 1, 0)
    return unit * math.ceil(x / unit)


def write_trace(result: Result, path: str | os.PathLike[str]) -> None:
    """Write the trace of a run as CSV: one line per record, one column per name; trajectories as name_0, name_1, ...

    Parameters
    ----------
    result : Result
        Of a run.
    path : path
        The file, which is replaced.

    Returns
    -------
    None

    Raises
    ------
    TypeError
        If result is no `Result`.
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from fedconvex import FedAvg, Problem, Squared, run
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.report import write_trace
    >>> result = run(FedAvg(step_size=0.1), Problem(linear_federation(seed=0).federation, Squared()), rounds=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_trace(result, pathlib.Path(folder) / "trace.csv")
    ...     pathlib.Path(folder, "trace.csv").read_text().splitlines()[0]
    'round,value,gap,seconds,floats_down,floats_up'
    """
    instance("write_trace: result", result, Result)
    file = check_file("write_trace: path", path)
    columns: dict[str, np.ndarray] = {}
    for name, v in result.trace.items():
        if v.ndim == 1:
            columns[name] = v
        else:
            columns |= {f"{name}_{r}": column for r, column in enumerate(v.reshape(len(v), -1).T)}
    lines = io.StringIO()
    lines.write(",".join(columns) + "\n")
    for row in zip(*(v.tolist() for v in columns.values()), strict=True):
        lines.write(",".join(map(repr, row)) + "\n")
    write_file(file, lines.getvalue().encode())


def plain(v: Any) -> Any:
    """Replace what JSON cannot hold: numbers that are not finite become null, NumPy scalars plain ones."""
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    v = v.item() if isinstance(v, np.generic) else v
    return None if isinstance(v, float) and not math.isfinite(v) else v
