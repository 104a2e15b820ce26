"""How a model serves every domain, on paper: tables, bars with intervals, domain weights over the rounds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedconvex._check import bad, flag, instance, numeric, text, wrong_type
from fedconvex.driver import Result
from fedconvex.problems import Problem
from fedconvex.report.fairness import DomainScores, domain_names, domain_scores
from fedconvex.report.plots import COLOURS, check_plot_path, check_results, finished, light_grid, panels
from fedconvex.report.tables import format_table

_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "+++")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))


def fairness_table(scores: Mapping[str, DomainScores]) -> str:
    """Return two plain-text tables: models by domains, then the worst domain and the spread of every model.

    Parameters
    ----------
    scores : mapping of name to DomainScores

    Raises
    ------
    ValueError, TypeError
        If scores is no mapping of names to `DomainScores` of the same domains and level.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared
    >>> from fedconvex.report import domain_scores, fairness_table
    >>> fed = Federation.from_arrays([[1.0]] * 5, [0.0, 2.0, 1.0, 3.0, 5.0], clients=[0] * 5, domains=list("aaabb"))
    >>> problem = Problem(fed, Squared())
    >>> models = {"pooled": problem.solve(), "agnostic": problem.solve_minimax()}
    >>> print(fairness_table({name: domain_scores(problem, m) for name, m in models.items()}).split(chr(10) * 2)[0])
    model     domain  rows  lambda   loss    s.e.
    pooled    a          3       -  1.053  0.7126
    pooled    b          2       -   2.12     1.8
    agnostic  a          3  0.4815  1.543  0.9134
    agnostic  b          2  0.5185  1.543   1.444
    """
    _check_scores("fairness_table", scores)
    accuracies = any(s.classifies for s in scores.values())
    first = next(iter(scores.values()))
    lines: list[list[Any]] = []
    for name, s in scores.items():
        for i, domain in enumerate(s.domains.tolist()):
            line = [
                name,
                str(domain),
                int(s.rows[i]),
                float(s.domain_weights[i]),
                float(s.loss[i]),
                float(s.loss_error[i]),
            ]
            if accuracies:
                line += [float(s.accuracy[i]), f"{s.accuracy_low[i]:.4f}-{s.accuracy_high[i]:.4f}"]
            lines.append(line)
    headers = ["model", "domain", "rows", "lambda", "loss", "s.e."]
    whole: list[list[Any]] = []
    for name, s in scores.items():
        line = [name, str(s.worst), s.worst_loss, s.loss_spread, s.loss_deviation]
        if accuracies:
            line += [str(s.least_accurate), s.worst_accuracy, s.accuracy_spread, s.accuracy_deviation]
        whole.append(line)
    summary = ["model", "worst domain", "its loss", "max - min", "std"]
    if accuracies:
        headers += ["accuracy", f"{100 * first.level:g} % interval"]
        summary += ["least accurate", "its accuracy", "max - min", "std"]
    return format_table(headers, lines) + "\n\n" + format_table(summary, whole)


def _check_scores(who: str, scores: Any) -> None:
    if not isinstance(scores, Mapping) or not scores:
        raise bad(f"{who}: scores", "be a nonempty mapping of names to DomainScores", type(scores).__name__)
    for name, s in scores.items():
        text(f"{who}: scores: a name", name)
        if not isinstance(s, DomainScores):
            raise wrong_type(
                f"{who}: scores[{name!r}]", "come from domain_scores", type(s).__name__, "or pass problem="
            )
    first = next(iter(scores.values()))
    for name, s in scores.items():
        if s.level != first.level:
            raise bad(f"{who}: scores[{name!r}]", f"have intervals of level {first.level:g}", f"{s.level:g}")
        if s.domains.tolist() != first.domains.tolist():
            raise bad(f"{who}: scores[{name!r}]", f"have the domains {first.domains.tolist()}", f"{s.domains.tolist()}")


def fairness_plot(
    scores: Mapping[str, Any],
    path: str | os.PathLike[str] | None = None,
    *,
    problem: Any = None,
    axes: Any = None,
    title: str = "",
) -> Any:
    """Draw loss and accuracy of several models, domain by domain, as bars with their intervals.

    Parameters
    ----------
    scores : mapping of name to DomainScores
        One colour each; all on the same domains. With a problem also Results, Solutions and models.
    path : path, optional
        Save the figure there; the suffix says in which format.
    problem : Problem, optional
        The rows on which models that are no DomainScores are measured.
    axes : matplotlib axes, or a pair of them, optional
        Draw into these: losses, and accuracies if there is a second one. No legend is drawn then.
    title : str
        Above the figure.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError
        If matplotlib is not installed: ``pip install "fedconvex[report]"``.

    Examples
    --------
    >>> from fedconvex import Federation, Logistic, Problem
    >>> from fedconvex.report import domain_scores, fairness_plot
    >>> fed = Federation.from_arrays([[1.0]] * 5, [1.0, 1.0, -1.0, -1.0, -1.0], clients=[0] * 5, domains=list("aaabb"))
    >>> problem = Problem(fed, Logistic(), l2=0.1)
    >>> models = {"pooled": problem.solve(), "agnostic": problem.solve_minimax()}
    >>> figure = fairness_plot({name: domain_scores(problem, m) for name, m in models.items()})
    >>> [axis.get_ylabel() for axis in figure.axes]
    ['mean loss', 'accuracy']
    """
    if problem is not None:
        instance("fairness_plot: problem", problem, Problem)
    if problem is not None and isinstance(scores, Mapping):
        measured = lambda m: m if isinstance(m, DomainScores) else domain_scores(problem, m)  # noqa: E731
        scores = {name: measured(model) for name, model in scores.items()}
    _check_scores("fairness_plot", scores)
    file = check_plot_path(path)
    first = next(iter(scores.values()))
    parts = ["loss", "accuracy"] if any(s.classifies for s in scores.values()) else ["loss"]
    width = max(4.6, 1.2 + 0.22 * len(scores) * first.domains.size)
    figure, drawn = panels((1, len(parts)), (min(width, 9.0) * len(parts), 3.9), axes)
    for axis, part in zip(drawn, parts, strict=False):
        _bars(axis, scores, part)
    if axes is None:
        handles = [b for b in drawn[0].containers if type(b).__name__ == "BarContainer"]
        figure.legend(handles, list(scores), loc="outside upper center", ncols=min(4, len(scores)), frameon=False)
    return finished(figure, file, title)


def _bars(axis: Any, scores: Mapping[str, DomainScores], part: str) -> None:
    first = next(iter(scores.values()))
    at, width = np.arange(first.domains.size), 0.8 / len(scores)
    tops = []
    for number, (name, s) in enumerate(scores.items()):
        value, low, high = (getattr(s, part + end) for end in ("", "_low", "_high"))
        x = at + (number - 0.5 * (len(scores) - 1)) * width
        look = {"color": COLOURS[number % len(COLOURS)], "edgecolor": "white", "linewidth": 0.5}
        axis.bar(x, value, 0.92 * width, label=name, hatch=_HATCHES[number % len(_HATCHES)], **look)
        known = np.isfinite(value) & np.isfinite(low) & np.isfinite(high)
        low = np.maximum(low, 0.0)
        gaps = np.maximum([value[known] - low[known], high[known] - value[known]], 0.0)
        axis.errorbar(x[known], value[known], gaps, fmt="none", ecolor="black", elinewidth=1.0, capsize=2.5)
        tops.append(np.where(np.isfinite(high), high, value))
    names = [f"{d}\n{n:,} rows" for d, n in zip(first.domains.tolist(), first.rows.tolist(), strict=True)]
    crowded = max(len(line) for name in names for line in name.split("\n")) * at.size > 60
    axis.set_xticks(at, names, rotation=90 if crowded else 0, fontsize=8, parse_math=False)
    axis.set_ylabel("mean loss" if part == "loss" else "accuracy")
    top = float(np.nanmax(tops))
    axis.set_ylim(0.0, 1.0 if part == "accuracy" else (1.06 * top if top > 0.0 else 1.0))
    light_grid(axis, "y")
    axis.tick_params(axis="x", length=0)
    axis.set_title(f"{100 * first.level:g} % intervals, each domain on its own", fontsize=8, loc="right", color="0.35")


def domain_weights_plot(
    results: Mapping[str, Result],
    path: str | os.PathLike[str] | None = None,
    *,
    problem: Problem,
    exact: Any = None,
    axes: Sequence[Any] | None = None,
    log: bool = False,
    title: str = "",
) -> Any:
    """Draw lambda over the rounds, a panel for every run; dotted: the exact weights.

    Of several trajectories the median is drawn, with a band from the first to the ninth decile.

    Parameters
    ----------
    results : mapping of name to Result
        Runs whose trace has ``domain_weights``.
    path : path, optional
        Save the figure there; the suffix says in which format.
    problem : Problem
        Names its domains.
    exact : array (p,) or `fedconvex.solvers.Minimax`, optional
        lambda*.
    axes : sequence of matplotlib axes, optional
        Draw into these, one for every run. No legend is drawn then.
    log : bool
        Logarithmic rounds; round 0 is left out.
    title : str
        Above the figure.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError, ValueError, TypeError
        If matplotlib is not installed, a run has no lambda, or one of another length.

    Examples
    --------
    >>> from fedconvex import Federation, Problem, Squared, run
    >>> from fedconvex.methods import AFL
    >>> from fedconvex.report import domain_weights_plot
    >>> problem = Problem(Federation.from_arrays([[1.0], [1.0]], [0.0, 2.0], clients=["a", "b"]), Squared())
    >>> result = run(AFL(step_size=0.1, domain_step_size=0.1), problem, rounds=20)
    >>> figure = domain_weights_plot({"AFL": result}, problem=problem, exact=problem.solve_minimax())
    >>> [axis.get_title(loc="left") for axis in figure.axes]
    ['AFL']
    """
    names, star = _checked_weights(results, problem, exact)
    file = check_plot_path(path)
    figure, drawn = panels((1, len(results)), (3.5 * len(results) + 0.6, 3.4), axes, sharey=True)
    for axis, (name, result) in zip(drawn, results.items(), strict=True):
        _weights(axis, name, result, names, star, log)
    drawn[0].set_ylabel("weight λ of a domain")
    if axes is None:
        _weights_legend(figure, drawn[0].get_lines()[: names.size], star is not None)
    return finished(figure, file, title)


def _weights_legend(figure: Any, lines: Sequence[Any], exact: bool) -> None:
    from matplotlib.lines import Line2D

    handles = list(lines)
    if exact:
        handles.append(Line2D([], [], color="0.3", linestyle=(0, (1, 2)), linewidth=1.2, label="exact λ*"))
    figure.legend(handles=handles, loc="outside upper center", ncols=min(6, len(handles)), frameon=False)


def _checked_weights(results: Any, problem: Problem, exact: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the domains, and the exact weights (p,) or None; raise unless they and the runs have a weight for each."""
    check_results("domain_weights_plot", results)
    instance("domain_weights_plot: problem", problem, Problem)
    names = domain_names(problem)
    for name, result in results.items():
        who = f"domain_weights_plot: results[{name!r}]"
        if "domain_weights" not in result.trace or result.trace["domain_weights"].shape[-1] != names.size:
            raise bad(who, f"have a trace of {names.size} weights, domain_weights", ", ".join(result.trace))
    star = getattr(exact, "domain_weights", exact)
    star = None if star is None else numeric("domain_weights_plot: exact", star)
    if star is not None and star.shape != (names.size,):
        raise bad("domain_weights_plot: exact", f"have {names.size} entries", f"shape {star.shape}")
    return names, star


def _weights(axis: Any, name: str, result: Result, names: np.ndarray, star: np.ndarray | None, log: bool) -> None:
    rounds = np.asarray(result.trace["round"])
    keep = slice(int(flag("domain_weights_plot: log", log) and rounds[0] == 0), None)
    lam, rounds = result.trace["domain_weights"].reshape(len(rounds), -1, names.size)[keep], rounds[keep]
    low, middle, high = np.quantile(lam, [0.1, 0.5, 0.9], axis=1)
    looks = [
        {"color": COLOURS[i % len(COLOURS)], "linestyle": _DASHES[i // len(COLOURS) % len(_DASHES)]}
        for i in range(names.size)
    ]
    for i, look in enumerate(looks):
        axis.plot(rounds, middle[:, i], label=str(names[i]), linewidth=1.5, **look)
    for i, look in enumerate(looks):
        if lam.shape[1] > 1:
            axis.fill_between(rounds, low[:, i], high[:, i], color=look["color"], alpha=0.15, linewidth=0)
        if star is not None:
            axis.axhline(star[i], color=look["color"], linewidth=1.2, linestyle=(0, (1, 2)))
    if log:
        axis.set_xscale("log")
    axis.set_ylim(-0.02, 1.02)
    axis.set_xlabel("communication rounds")
    axis.set_title(name, fontsize=9, loc="left", parse_math=False)
    light_grid(axis)
    axis.tick_params(labelsize=8)
