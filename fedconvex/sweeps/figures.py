"""Figures of sweeps: gaps over rounds with bands, two parameters against each other, the best of one for all others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedconvex._check import among, bad, instance, items
from fedconvex.report.plots import COLOURS, check_plot_path, finished, light_grid, look_of, panels
from fedconvex.sweeps.sweep_frame import Sweep, deciles

CURVES = 12  # that can be told apart
_CELLS = 60  # along a side of a heat map
_WORDS = {"gap": "certified gap", "value": "objective", "round": "rounds", "step_size": "step size"}


def gap_plot(
    found: Sweep,
    path: str | os.PathLike[str] | None = None,
    *,
    by: str | Sequence[str] | None = None,
    score: str = "gap",
    axes: Any = None,
    title: str = "",
) -> Any:
    """Draw the median of a column over rounds, with a band from the first to the ninth decile.

    A seed that converged keeps its last value; one that diverged counts as infinite from then on.

    Parameters
    ----------
    found : Sweep
    path : path, optional
        Save the figure there.
    by : str or list of str, optional
        Parameters that make a curve each; default all of them. Over the others, as over the seeds, the median is taken.
    score : str
        Column that is drawn.
    axes, title : matplotlib axes, str, optional
        Draw into these; above the figure.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError, ValueError, TypeError
        Without matplotlib; if there are no such columns, more than 12 curves, or no figure can be saved there.

    Examples
    --------
    >>> from fedconvex import FedSGD, Problem, Squared, sweep
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.sweeps import gap_plot
    >>> problem = Problem(linear_federation(seed=0).federation, Squared(), l2=0.1)
    >>> found = sweep(FedSGD(step_size=0.1), problem, grid={"step_size": [0.1, 0.2]}, rounds=5)
    >>> [line.get_label() for line in gap_plot(found).axes[0].lines]
    ['0.1', '0.2']
    """
    _check(found, "gap_plot", score)
    file = check_plot_path(path)
    names = found.parameters if by is None else (by,) if isinstance(by, str) else items("gap_plot: by", by)
    for name in names:
        among("gap_plot: by", name, found.parameters)
    groups = _few(found, names, "gap_plot")
    figure, (axis, *_) = panels((1, 1), (6.4, 4.2), axes)
    for number, (values, rows) in enumerate(groups):
        rounds, *curve = _over_rounds(rows, score)
        _curve(axis, number, rounds, curve, look_of(number, rounds.size) | {"label": _named(values, names)})
    _log(axis, "y", found[score])
    axis.set(xlabel="communication rounds", ylabel=_worded(score))
    axis.set_xlim(left=0)
    _framed(axis, names)
    return finished(figure, file, title)


def heat_map(
    found: Sweep,
    x: str,
    y: str,
    path: str | os.PathLike[str] | None = None,
    *,
    score: str = "gap",
    axes: Any = None,
    title: str = "",
) -> Any:
    """Draw where runs end over two parameters: the median over seeds at the best of all others, the lowest framed.

    Parameters
    ----------
    found : Sweep
    x, y : str
        Parameters along the sides.
    path, score, axes, title
        As for `gap_plot`.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError, ValueError, TypeError
        Without matplotlib; if there are no such columns, or too many values, or no figure can be saved there.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared, sweep
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.sweeps import heat_map
    >>> problem = Problem(linear_federation(seed=0).federation, Squared(), l2=0.1)
    >>> grid = {"step_size": [0.1, 0.2], "local_steps": [1, 5]}
    >>> found = sweep(FedAvg(step_size=0.1), problem, grid=grid, rounds=5)
    >>> heat_map(found, "step_size", "local_steps").axes[0].get_xlabel()
    'step size'
    """
    _check(found, "heat_map", score)
    file = check_plot_path(path)
    xs, ys = _side(found, "x", x), _side(found, "y", y)
    if x == y:
        raise bad("heat_map: y", "be another parameter than x", y)
    Z = np.full((ys.size, xs.size), np.nan)
    for values, rows in found.final().groups(y, x):
        ends = [deciles(some[score])[0] for _, some in rows.groups("setting")]
        Z[np.searchsorted(ys, values[y]), np.searchsorted(xs, values[x])] = min(ends)
    size = max(4.0, min(12.0, 2.2 + 0.75 * xs.size)), max(2.8, min(9.0, 1.6 + 0.5 * ys.size))
    figure, (axis, *_) = panels((1, 1), size, axes)
    _cells(figure, axis, Z, _worded(score))
    axis.set_xticks(range(xs.size), [_short(v) for v in xs.tolist()], fontsize=8)
    axis.set_yticks(range(ys.size), [_short(v) for v in ys.tolist()], fontsize=8)
    axis.set(xlabel=_worded(x), ylabel=_worded(y))
    return finished(figure, file, title)


def best_plot(
    found: Sweep,
    path: str | os.PathLike[str] | None = None,
    *,
    over: str = "step_size",
    score: str = "gap",
    axes: Any = None,
    title: str = "",
) -> Any:
    """Draw where seeds end over one parameter, a curve for every combination of the others, the best marked.

    Parameters
    ----------
    found : Sweep
    path, score, axes, title
        As for `gap_plot`.
    over : str
        The parameter along the horizontal axis, of numbers.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ImportError, ValueError, TypeError
        Without matplotlib; if there are no such columns, more than 12 curves, or no figure can be saved there.

    Examples
    --------
    >>> from fedconvex import FedSGD, Problem, Squared, sweep
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.sweeps import best_plot
    >>> problem = Problem(linear_federation(seed=0).federation, Squared(), l2=0.1)
    >>> found = sweep(FedSGD(step_size=0.1), problem, grid={"step_size": [0.1, 0.2]}, rounds=5)
    >>> best_plot(found).axes[0].get_xlabel()
    'step size'
    """
    _check(found, "best_plot", score)
    file = check_plot_path(path)
    among("best_plot: over", over, found.parameters)
    if found[over].dtype.kind not in "if":
        raise bad("best_plot: over", "name a parameter of numbers", f"{over}, of texts")
    others = tuple(p for p in found.parameters if p != over)
    groups = _few(found.final(), others, "best_plot")
    figure, (axis, *_) = panels((1, 1), (6.4, 4.2), axes)
    for number, (values, rows) in enumerate(groups):
        ends = sorted((v[over], *deciles(part[score])) for v, part in rows.groups(over))
        steps, middle, low, high = (np.array(c) for c in zip(*ends, strict=True))
        look = look_of(number, 1) | {"label": _named(values, others) or "median"}
        _curve(axis, number, steps, (low, middle, high), look)
        if np.isfinite(middle).any():
            i = int(np.argmin(middle))
            best = {"marker": look["marker"], "color": look["color"], "markersize": 10, "fillstyle": "none"}
            axis.plot(steps[i], middle[i], markeredgewidth=1.6, **best)
    _log(axis, "y", found.final()[score])
    _log(axis, "x", found[over])
    axis.set(xlabel=_worded(over), ylabel=f"{_worded(score)} at the end")
    _framed(axis, others)
    return finished(figure, file, title)


# ---------------------------------------------------------------- parts


def _check(found: Any, who: str, score: str) -> None:
    """Raise unless found is a sweep with rows and such a column of numbers."""
    instance(f"{who}: found", found, Sweep)
    if not len(found):
        raise bad(f"{who}: found", "have rows", "none")
    among(f"{who}: score", score, [n for n, c in found.columns.items() if c.dtype.kind in "if"])


def _few(found: Sweep, names: Sequence[str], who: str) -> list[tuple[dict[str, Any], Sweep]]:
    """Return the groups that are curves, or raise if they are too many to tell them apart."""
    groups = list(found.groups(*names))
    if len(groups) > CURVES:
        raise bad(who, f"draw at most {CURVES} curves", len(groups), "select some settings, or name fewer parameters")
    return groups


def _side(found: Sweep, who: str, name: str) -> np.ndarray:
    """Return the values of a parameter along a side of a heat map."""
    among(f"heat_map: {who}", name, found.parameters)
    values = np.unique(found[name], equal_nan=True)
    if values.size > _CELLS:
        raise bad(f"heat_map: {who}", f"have at most {_CELLS} values", values.size, "select some")
    return values


def _curve(axis: Any, number: int, x: np.ndarray, deciles_: Sequence[np.ndarray], look: dict[str, Any]) -> None:
    """Draw a median with the band between two deciles, where these differ and are finite."""
    low, middle, high = deciles_
    line = {"linestyle": "-" if number < len(COLOURS) else "--", "linewidth": 1.3}
    axis.plot(x, np.where(np.isfinite(middle), middle, np.nan), **look, **line)
    both = np.isfinite(low) & np.isfinite(high)
    if (low[both] < high[both]).any():
        axis.fill_between(x, low, high, where=both, color=look["color"], alpha=0.15, linewidth=0)


def _framed(axis: Any, names: Sequence[str]) -> None:
    """Add a grid, and a legend under the names of the parameters; outside where it is long."""
    light_grid(axis)
    if names:
        outside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if len(axis.lines) > 4 else {}
        heading = ", ".join(map(_worded, names))
        axis.legend(frameon=False, fontsize=8, title=heading, title_fontsize=8, **outside)


def _over_rounds(rows: Sweep, score: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return rounds, first decile, median and ninth decile of a column; what has ended keeps its last value."""
    rounds, at = np.unique(rows["round"], return_inverse=True)
    _, which = np.unique(np.stack([rows["setting"], rows["seed"]]), axis=1, return_inverse=True)
    which = which.reshape(-1)
    M = np.full((which.max() + 1, rounds.size), np.nan)
    M[which, at] = np.where(np.isnan(rows[score]), np.inf, rows[score])
    known = np.where(np.isnan(M), 0, np.arange(rounds.size))
    M = np.take_along_axis(M, np.maximum.accumulate(known, axis=1), axis=1)
    middle, low, high = map(np.asarray, deciles(M))
    return rounds, low, middle, high


def _cells(figure: Any, axis: Any, Z: np.ndarray, name: str) -> None:
    """Colour cells by the logarithm where all are positive, write numbers into them, and frame the lowest."""
    finite = np.isfinite(Z)
    log = bool(finite.any() and (Z[finite] > 0.0).all())
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = np.where(finite, np.log10(Z) if log else Z, np.nan)
    axis.set_facecolor("0.85")
    image = axis.imshow(shown, cmap="viridis_r", aspect="auto", origin="lower")
    bar = figure.colorbar(image, ax=axis)
    bar.set_label(f"log10 of the {name} at the end" if log else f"{name} at the end", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    if Z.size <= 200:
        middle = np.nanmean([np.nanmin(shown), np.nanmax(shown)]) if finite.any() else 0.0
        for (i, j), z in np.ndenumerate(Z):
            words = f"{z:.2g}" if np.isfinite(z) else "" if np.isnan(z) else "∞"
            colour = "white" if np.isfinite(z) and shown[i, j] > middle else "black"
            axis.text(j, i, words, ha="center", va="center", fontsize=7, color=colour)
    if finite.any():
        from matplotlib.patches import Rectangle

        i, j = np.unravel_index(np.nanargmin(shown), Z.shape)
        axis.add_patch(
            Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=COLOURS[1], linewidth=2.0, clip_on=False)
        )


def _log(axis: Any, which: str, x: np.ndarray) -> None:
    """Make an axis logarithmic where what is finite is not negative, and its positive part spans a factor of three."""
    x = x[np.isfinite(x)]
    positive = x[x > 0.0]
    if positive.size and (x >= 0.0).all() and positive.max() >= 3.0 * positive.min():
        axis.set(**{f"{which}scale": "log"})


def _worded(name: str) -> str:
    """Return what a column is called in a figure."""
    return _WORDS.get(name, name.replace("_", " "))


def _named(values: dict[str, Any], names: Sequence[str]) -> str:
    """Return the label of a curve."""
    return ", ".join(_short(values[n]) for n in names)


def _short(value: Any) -> str:
    """Return a value as a label: numbers with four digits, long texts cut."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return "-" if text in ("nan", "") else text if len(text) <= 28 else text[:25] + "..."
