"""Whether what a site answers can be: values against gradients between models, and known values.

A certificate over sites rests on values and gradients that no server can recompute. A lie is noticed where they are not
those of a convex function: f(b) >= f(a) + <grad f(a), b - a> for all pairs of the last models and, for a loss with the
same value at score 0 whatever the label, for b = 0, where f is known; f(b) - f(a) = <grad f(a) + grad f(b), b - a>/2
for a quadratic one. All within what rounding may have done. Before a run ends as converged it measures two more models,
w +- delta u for a direction u that nobody knew before: f(w +- delta u) >= f(w) +- delta <g, u> catches a gradient that
is made up at one model. Dual variables of a task, whatever they are, bound its f from below at every model:
f(w) >= -(sum of conjugates) - <image, w>.

What no check of this kind catches is a lie that is the truth of some rows: a site that answers from other rows than its
own, or from none; one that adds a linear function to its f from the start (for least squares: other labels).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.loss_traits import traits
from fedconvex.remote.kinds import Kind

_EPS = float(np.finfo(float).eps)
_MODELS = 16  # of each site that are remembered
_KEPT = 1e-10  # of their size: what rounding may have done to images and conjugates that many rounds have changed
_STEP = 1e-5  # of the two models beside the last one, relative to its size


class Point(NamedTuple):
    """What a site has said of its f, a weighted sum of parts, at one model; of several, with one more axis in front."""

    w: np.ndarray  # (size,)
    parts: np.ndarray  # (p,) losses by domain, or (1,)
    weights: np.ndarray  # (p,)
    g: np.ndarray  # (size,) of the weighted sum
    off: np.ndarray  # (p,) what rounding may have done to parts
    error: Any  # and to g, in norm
    sums: bool = False  # whether parts are sums over rows, not means

    def value(self, weights: np.ndarray) -> Any:
        """Return the sum of parts with other weights."""
        return (weights * self.parts).sum(axis=-1)


class Witness:
    """What sites have said, and what of it cannot be.

    Parameters
    ----------
    problem : problem
        Without rows, as a server has it.
    kind : Kind
    """

    def __init__(self, problem: Any, kind: Kind) -> None:
        self.kind = kind
        self.problem, self.points = problem, {}  # type: Any, dict[int, list[Point]]
        self.bounds: dict[int, tuple[np.ndarray, float]] = {}  # of tasks: dual images, and sums of conjugates
        self.zero, self.traits = _at_zero(problem), traits(problem.loss)
        self.checked = 0  # pairs of models
        self.caught: dict[int, str] = {}

    def hear(self, k: int, asked: Mapping[str, np.ndarray], report: Mapping[str, np.ndarray], mass: float) -> str:
        """Return how a report contradicts what the same site has said before, or itself; nothing if it does not.

        Parameters
        ----------
        k : int
        asked, report : mapping
            As in `fedconvex.remote.reports.report`.
        mass : float
            Weight of the site's rows.
        """
        with np.errstate(all="ignore"):
            if self.kind.rays and "value" in report:
                if said := self._along_rays(report):
                    self.caught[k] = said
                return said
            before = self.points.setdefault(k, [])
            for new in self._points(asked, report):
                if self.traits.lower_bound >= 0.0 and (new.parts < 0.0).any():
                    continue  # no loss has such values: that is refused by itself
                said = self._known(k, new, mass) or self._pairs(before, new)
                said = said or (self._bounded(*self.bounds[k], new) if k in self.bounds else "")
                if said:
                    self.caught[k] = said
                    return said
                before.append(new)
            del before[:-_MODELS]
        return ""

    def _points(self, asked: Mapping[str, np.ndarray], report: Mapping[str, np.ndarray]) -> list[Point]:
        """Return what a report says of f at each of R models; nothing where it says nothing of a convex one."""
        made = self.kind.points(self.problem, asked, report)
        points = [] if made is None else [Point(*one, "alpha" in asked) for one in made]  # type: ignore[call-arg]
        return [p for p in points if np.isfinite(p.parts).all() and np.isfinite(p.g).all() and np.isfinite(p.off).all()]

    def _pairs(self, before: Sequence[Point], b: Point) -> str:
        """Return what convexity says against a point and one of those before, or nothing."""
        if not before:
            return ""
        a = Point._make(map(np.array, zip(*before, strict=True)))
        elsewhere = (a.w != b.w).any(axis=1)
        self.checked += int(elsewhere.sum())
        if not elsewhere.any():
            return ""
        a = a if elsewhere.all() else Point._make(np.asarray(part)[elsewhere] for part in a)
        slacks = _slack(a, b), _slack(b, a)
        for one, other, slack in ((a, b, slacks[0]), (b, a, slacks[1])):
            below = one.value(one.weights) + (one.g * (other.w - one.w)).sum(axis=-1) - other.value(one.weights)
            if (below > slack).any():
                most = below[np.argmax(below > slack)]
                return f"convex functions with its gradients are at least {most:.3g} above its values"
        if self.traits.quadratic and self.kind.plain and not np.any(a.sums):
            rises, halves = b.parts[0] - a.parts[:, 0], 0.5 * ((a.g + b.g) * (b.w - a.w)).sum(axis=1)
            if (wrong := np.abs(rises - halves) > slacks[0] + slacks[1]).any():
                i = np.argmax(wrong)
                return f"its values rise by {rises[i]:.6g}, its gradients by {halves[i]:.6g}"
        return ""

    def hear_dual(self, k: int, v: np.ndarray, conjugate: float) -> str:
        """Return how what a task says of its dual variables contradicts its losses; nothing if it does not.

        Parameters
        ----------
        k : int
        v : array (size,)
            Their image.
        conjugate : float
            The sum of the conjugates: f(w) >= -conjugate - <v, w> at every model, whatever the dual variables are.
        """
        self.bounds[k] = v, conjugate
        with np.errstate(all="ignore"):
            said = next((s for a in self.points.get(k, ()) if (s := self._bounded(v, conjugate, a))), "")
        if said:
            self.caught[k] = said
        return said

    def _bounded(self, v: np.ndarray, conjugate: float, a: Point) -> str:
        """Return what a lower bound from dual variables says against a value, or nothing."""
        self.checked += 1
        inner, value = float(v @ a.w), float(a.parts.sum())
        size = abs(conjugate) + abs(inner) + abs(value)  # images are kept up to date by additions, which round
        below = -conjugate - inner - value
        if below > 4.0 * float(a.off.sum()) + _KEPT * size:
            return f"its dual variables say that its loss is at least {below:.3g} above its value"
        return ""

    def _known(self, k: int, a: Point, mass: float) -> str:
        """Return what the known value at w = 0 says against a point, or nothing."""
        if self.zero is None:
            return ""
        scale = mass if a.sums else 1.0  # of sums by domain, what is known is their sum
        if self.kind.scale is not None:
            scale = self.kind.scale(self.problem, k, mass)
        there = self.zero * scale
        off = 4.0 * float(a.off.sum()) + 1e-12 * (abs(there) + float(np.abs(a.parts).sum()))
        if not a.w.any() and abs(float(a.parts.sum()) - there) > off:
            return f"its value at w = 0 is {float(a.parts.sum()):.6g}, and that of all rows there is {there:.6g}"
        origin = Point(np.zeros_like(a.w), np.array([there]), np.ones(1), a.g, np.zeros(1), 0.0)
        below = a.value(a.weights) - float(a.g @ a.w) - there
        if not a.sums and below > _slack(a, origin):
            return f"convex functions with its gradient are {below:.3g} above the known value at w = 0"
        return ""

    def _along_rays(self, report: Mapping[str, np.ndarray]) -> str:
        """Return what the known value at w = 0 says against values and slopes along rays, or nothing."""
        if self.zero is None:
            return ""
        self.checked += len(report["value"])
        below = report["value"] - report["slope"] - self.zero
        slack = 4.0 * np.abs(report["off"]) + 4.0 * np.abs(report["slope_off"]) + 1e-12 * np.abs(report["value"])
        said = f"convex functions with its slope are {below.max():.3g} above the known value at w = 0"
        return said if (below > slack).any() else ""


def _slack(a: Point, b: Point) -> Any:
    """Return what rounding may do to f(a) + <g(a), b - a> - f(b); b says no more of itself than a hundred times a."""
    far, off = _length(b.w - a.w), (a.weights * a.off).sum(axis=-1)
    size = np.abs(a.value(a.weights)) + np.abs(b.value(a.weights))
    few = (a.w.shape[-1] + 64) * _EPS * (size + _length(a.g) * far)
    grown = np.maximum(1.0, _length(b.w) / np.maximum(_length(a.w), 1e-3)) ** 2
    others = np.minimum((a.weights * b.off).sum(axis=-1), 100.0 * grown * (off + few))
    return 4.0 * (off + others + a.error * far + few)


def _length(x: np.ndarray) -> Any:
    return np.sqrt((x * x).sum(axis=-1))


def _at_zero(problem: Any) -> float | None:
    """Return the loss at score 0, if it is the same for all labels."""
    found = traits(problem.loss)
    if found.task != "classification":
        return None
    if found.several:
        values = [float(problem.loss.value(np.zeros(found.outputs), float(c))) for c in range(found.outputs)]
    else:
        values = [float(problem.loss.value(0.0, y)) for y in (1.0, -1.0)]
    return values[0] if np.ptp(values) == 0.0 else None


def shifted(asked: Mapping[int, Mapping[str, np.ndarray]]) -> list[dict[int, dict[str, np.ndarray]]]:
    """Return the same questions at models a little beside, on both sides, in a direction that is drawn now."""
    rng, out = np.random.default_rng(), []  # of the system: a site must not know it before
    w = next(iter(asked.values()))["w"]
    u = rng.normal(size=w.shape[1:])
    size = np.linalg.norm(w.reshape(len(w), -1), axis=1).reshape(-1, *[1] * (w.ndim - 1))
    step = _STEP * (1.0 + size) * u / np.linalg.norm(u)
    for sign in (1.0, -1.0):
        out.append({k: {**own, "w": own["w"] + sign * step} for k, own in asked.items()})
    return out
