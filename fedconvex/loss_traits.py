"""What a loss declares about itself, with a default for all that it leaves out.

A loss is a NamedTuple with ``value`` and ``slope`` (``slopes`` for several scores). Attributes and methods of the names
below say what else is known of it; `declares` sets them. Whoever needs to know asks `traits`, and nobody asks which
class a loss is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedconvex._check import among, equal_by_type, wrong_type

__all__ = ["LossTraits", "declares", "traits"]


@dataclass(frozen=True)
class LossTraits:
    """What a loss declares; see `traits`.

    Attributes
    ----------
    loss : loss
    outputs : int
        Scores per row: C for a loss with the field ``n_classes``, whose models are (C, d), else 1.
    several : bool
        Whether models are (C, d).
    task : {"regression", "classification"}
        Default regression for one output. The predictions of a regression are its scores, measured by rmse and R^2;
        those of a classification are signs, or the class of the largest score, measured by accuracy.
    smoothness, lipschitz : float
        sup l'' and sup |l'|; default inf.
    lower_bound : float
        A number that no value of the loss is below; default -inf.
    quadratic : bool
        Whether the slope is z - y: then all is exact here that is exact for least squares. Default False.
    self_concordance : float
        M with |l'''| <= M l'' (Bach 2010, Prop. 1); default inf, 0 for a quadratic loss.
    third_derivative : float
        sup |l'''|; default self_concordance times smoothness.
    banded : bool
        Whether l'' is ``smoothness`` where l' lies strictly inside its ``slope_range`` and 0 elsewhere: F then has a
        minimiser, if the loss has a lower bound. Default False; losses of one output only.
    multinomial : bool
        Whether the Hessian in the scores is diag(p) - p p' with p = ``probabilities``; default False.
    boosting : {"", "exp", "log2"}
        Which loss of boosting it is: Phi(u) = e^u or log2(1 + e^u) with l(z, y) = Phi(-y z); default neither.
    curved : bool
        Whether second derivatives are known: the loss has a ``curvature``, or is multinomial.
    kinked : bool
        Whether the loss has kinks and declares ``smoothed(width)``: smooth losses that approach it as the width
        shrinks, whose slopes lie in the domain of its ``conjugate``.
    probable : bool
        Whether the loss has ``probabilities`` of scores: (n,) of the label +1, or (n, C).

    Examples
    --------
    >>> from fedconvex import Hinge, Logistic
    >>> from fedconvex.loss_traits import traits
    >>> traits(Logistic()).curved, traits(Hinge()).curved, traits(Hinge()).lower_bound
    (True, False, 0.0)
    """

    loss: Any
    outputs: int
    several: bool
    task: str
    smoothness: float
    lipschitz: float
    lower_bound: float
    quadratic: bool
    self_concordance: float
    third_derivative: float
    banded: bool
    multinomial: bool
    boosting: str
    curved: bool
    kinked: bool
    probable: bool

    @property
    def self_bounded(self) -> bool:
        """Whether values bound a curvature that has no other bound: F <= F(0) then does where F falls."""
        return math.isinf(self.smoothness) and math.isfinite(self.curvature_below(1.0))

    def predict(self, z: np.ndarray) -> np.ndarray:
        """Return the predictions for scores (n,) or (n, C): by the loss's ``predict``, or as its task says."""
        if hasattr(self.loss, "predict"):
            return np.asarray(self.loss.predict(z))
        if self.task == "regression":
            return z
        return np.argmax(z, axis=1).astype(np.float64) if self.several else np.where(z >= 0.0, 1.0, -1.0)

    def slope_range(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return inf and sup over z of l'(z, y) for labels (n,); default -lipschitz and lipschitz."""
        if hasattr(self.loss, "slope_range"):
            low, high = self.loss.slope_range(y)
            return np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
        return np.full(len(y), -self.lipschitz), np.full(len(y), self.lipschitz)

    def slope_bound(self, value: Any) -> Any:
        """Return a bound of the mean |l'| where the mean loss is ``value``; default lipschitz."""
        own = getattr(self.loss, "slope_bound", None)
        return own(value) if own else self.lipschitz

    def least_curvature(self, reach: np.ndarray) -> np.ndarray:
        """Return a lower bound of l'' over |z| <= reach; default 0."""
        own = getattr(self.loss, "least_curvature", None)
        return np.asarray(own(reach)) if own else np.zeros_like(reach)

    def curvature_below(self, value: float) -> float:
        """Return the supremum of l'' where the loss is at most ``value``; default smoothness."""
        own = getattr(self.loss, "curvature_below", None)
        return float(own(value)) if own else self.smoothness


TASKS = ("regression", "classification")
DECLARED = (
    "task",
    "smoothness",
    "lipschitz",
    "lower_bound",
    "quadratic",
    "self_concordance",
    "third_derivative",
    "banded",
    "multinomial",
    "boosting",
)


def declares(**known: Any) -> Any:
    """Return a decorator: a NamedTuple gets what `LossTraits` reads, and is equal to losses of its own class only.

    Raises
    ------
    ValueError
        If a name is none of task, smoothness, lipschitz, lower_bound, quadratic, self_concordance,
        third_derivative, banded, multinomial, boosting; or if task or boosting is none of its choices.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> from fedconvex.loss_traits import declares, traits
    >>> @declares(lower_bound=0.0)
    ... class Quartic(NamedTuple):
    ...     def value(self, z, y):
    ...         return 0.25 * (z - y) ** 4
    ...     def slope(self, z, y):
    ...         return (z - y) ** 3
    >>> traits(Quartic()).lower_bound, traits(Quartic()).task
    (0.0, 'regression')
    """
    for name in known:
        among("declares: a trait of a loss", name, DECLARED)
    among("declares: task", known.get("task", TASKS[0]), TASKS)
    among("declares: boosting", known.get("boosting", ""), ("", "exp", "log2"))

    def declare(cls: Any) -> Any:
        for name, value in known.items():
            setattr(cls, name, value)
        return equal_by_type(cls)

    return declare


def traits(loss: Any) -> LossTraits:
    """Return what a loss declares about itself, with defaults for all that it leaves out.

    Parameters
    ----------
    loss : loss
        One of fedconvex.losses, or a NamedTuple with value and slope.

    Raises
    ------
    TypeError
        If the loss is no NamedTuple with value and slope.

    Examples
    --------
    >>> from fedconvex import Softmax, Squared
    >>> from fedconvex.loss_traits import traits
    >>> traits(Softmax(3)).outputs, traits(Softmax(3)).task, traits(Squared()).task
    (3, 'classification', 'regression')
    """
    if isinstance(loss, type) or not (isinstance(loss, tuple) and hasattr(loss, "value")):
        raise wrong_type("loss", "be one of fedconvex.losses, or a NamedTuple with value and slope", f"{loss!r}")
    several, n_classes = hasattr(loss, "n_classes"), getattr(loss, "n_classes", 1)
    quadratic, multinomial = bool(getattr(loss, "quadratic", False)), bool(getattr(loss, "multinomial", False))
    smoothness = float(getattr(loss, "smoothness", math.inf))
    concordance = 0.0 if quadratic else float(getattr(loss, "self_concordance", math.inf))
    third = concordance * smoothness if concordance else 0.0
    return LossTraits(
        loss=loss,
        outputs=int(n_classes),
        several=several,
        task=getattr(loss, "task", "classification" if several else "regression"),
        smoothness=smoothness,
        lipschitz=float(getattr(loss, "lipschitz", math.inf)),
        lower_bound=float(getattr(loss, "lower_bound", -math.inf)),
        quadratic=quadratic,
        self_concordance=concordance,
        third_derivative=float(getattr(loss, "third_derivative", third)),
        banded=bool(getattr(loss, "banded", False)) and not several,
        multinomial=multinomial,
        boosting=str(getattr(loss, "boosting", "")),
        curved=multinomial or (hasattr(loss, "curvature") and not several),
        kinked=hasattr(loss, "smoothed"),
        probable=hasattr(loss, "probabilities"),
    )
