"""What a server makes of its clients' answers: the weighted mean, or one of three that a few wrong answers cannot move.

Answers x_1, ..., x_m of a round have weights q_k >= 0 with sum 1. An aggregate maps arrays (R, m, *model) and weights
(R, m) to (R, *model). Where a share alpha of the weight lies, the mean goes wherever the liars want; the median and the
trimmed mean stay between the smallest and the largest honest value of every coordinate, while alpha is below 1/2 or
``share``. Where honest answers are within r of z, the geometric median is within 2 (1 - alpha)/(1 - 2 alpha) r of z: it
has (1 - alpha)(D - r) - alpha D <= (1 - alpha) r for its distance D, as its sum of distances is at most that of z.
None but the mean keeps the minimiser of F as fixed point where honest clients differ: the experiment ``aggregation``
shows how much that is.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from fedconvex._check import bad, equal_by_type, real, wrong_type
from fedconvex.fields import positive, read_kind
from fedconvex.kernels import averages
from fedconvex.methods.parts import participation, pooled_sums

_ROUNDING = 1e-12  # of a sum of weights: shares that are equal but for it are equal


@equal_by_type
class WeightedMean(NamedTuple):
    """sum_k q_k x_k, what federated averaging does.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.methods import WeightedMean
    >>> WeightedMean().of(np.full((1, 4), 0.25), np.array([[[0.0], [1.0], [2.0], [97.0]]])).tolist()
    [[25.0]]
    """

    def of(self, weights: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Return the aggregate (R, *model) of answers (R, m, *model)."""
        return averages.over_clients(weights, answers)


@equal_by_type
class CoordinateMedian(NamedTuple):
    """The weighted median of every coordinate; where half of the weight lies below a gap, its middle.

    References
    ----------
    Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates",
    ICML 2018, Definition 1 and Algorithm 1 (equal weights; these weigh as the mean does).

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.methods import CoordinateMedian
    >>> CoordinateMedian().of(np.full((1, 4), 0.25), np.array([[[0.0], [1.0], [2.0], [97.0]]])).tolist()
    [[1.5]]
    """

    @property
    def robust(self) -> bool:
        """Whether a few wrong answers cannot move it: yes."""
        return True

    def of(self, weights: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Return the aggregate (R, *model) of answers (R, m, *model)."""
        values, below, upto = _sorted(weights, answers)
        first = np.argmax(upto >= 0.5 - _ROUNDING, axis=1)[:, None]
        last = values.shape[1] - 1 - np.argmax((below <= 0.5 + _ROUNDING)[:, ::-1], axis=1)[:, None]
        low, high = (np.take_along_axis(values, at, axis=1)[:, 0] for at in (first, last))
        with np.errstate(invalid="ignore"):  # half of the answers are -inf, half inf
            return np.asarray(np.where(low == high, low, 0.5 * low + 0.5 * high))


@equal_by_type
class TrimmedMean(NamedTuple):
    """The mean of every coordinate without its smallest and its largest values, ``share`` of the weight on each side.

    Of a value that lies across the border the part inside counts. With equal weights and a whole number ``share`` m
    these are the values that remain of m sorted ones.

    Parameters
    ----------
    share : float
        beta in [0, 1/2): 0 is the mean, and towards 1/2 it becomes the median.

    References
    ----------
    Yin, Chen, Ramchandran, Bartlett (ICML 2018), Definition 2 and Algorithm 1, Option II.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.methods import TrimmedMean
    >>> TrimmedMean(0.25).of(np.full((1, 4), 0.25), np.array([[[0.0], [1.0], [2.0], [97.0]]])).tolist()
    [[1.5]]
    """

    share: float

    @property
    def robust(self) -> bool:
        """Whether a few wrong answers cannot move it: yes."""
        return True

    def of(self, weights: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Return the aggregate (R, *model) of answers (R, m, *model)."""
        values, below, upto = _sorted(weights, answers)
        kept = np.minimum(upto, 1.0 - self.share) - np.maximum(below, self.share)
        kept[kept <= _ROUNDING] = 0.0
        values = np.where(kept > 0.0, values, 0.0)  # what is cut away may be infinite
        return np.asarray(np.sum(kept * values, axis=1) / np.sum(kept, axis=1))


@equal_by_type
class GeometricMedian(NamedTuple):
    """argmin_w sum_k q_k ‖w - x_k‖, certified by duality.

    Parameters
    ----------
    tol : float
        The sum of distances is at most (1 + tol) times its minimum.

    References
    ----------
    Pillutla, Kakade, Harchaoui, "Robust aggregation for federated learning", IEEE Transactions on Signal Processing
    70 (2022): RFA, which smooths the distances; here they are as they are.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.methods import GeometricMedian
    >>> corners = np.array([[[0.0, 0.0], [0.0, 2.0], [2.0, 0.0], [90.0, 90.0]]])
    >>> GeometricMedian().of(np.full((1, 4), 0.25), corners).round(6).tolist()  # where the diagonals cross
    [[1.0, 1.0]]
    """

    tol: float = 1e-12

    @property
    def robust(self) -> bool:
        """Whether a few wrong answers cannot move it: yes."""
        return True

    def of(self, weights: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Return the aggregate (R, *model) of answers (R, m, *model); NaN where an answer is not finite.

        Raises
        ------
        RuntimeError
            If rounding stops the progress before the certificate is as good as ``tol``.
        """
        from fedconvex.methods.parts.geometric_median import geometric_median

        R, m, *model = answers.shape
        out = np.full((R, int(np.prod(model))), np.nan)
        for w, q, x in zip(out, weights, answers.reshape(R, m, -1), strict=True):
            if np.isfinite(x).all():
                found = geometric_median(x, q, self.tol)
                if not found.gap <= self.tol * found.value:
                    raise RuntimeError(
                        f"GeometricMedian: the gap must fall to tol = {self.tol:g} of the value, got "
                        f"{found.gap / found.value:.1e}: take a larger tol"
                    )
                w[:] = found.w
        return out.reshape(R, *model)


def valid(who: str, x: Any) -> Any:
    """Return a valid aggregate, one of those here by its name too ("TrimmedMean(0.1)")."""
    x = read_kind(x, WeightedMean, CoordinateMedian, TrimmedMean, GeometricMedian)
    if isinstance(x, type) or not (isinstance(x, tuple) and hasattr(x, "of")):
        raise wrong_type(who, "be an aggregate such as CoordinateMedian() or TrimmedMean(0.1)", f"{x!r}")
    if isinstance(x, TrimmedMean):
        real(f"{who}: TrimmedMean.share", x.share, low=0.0)
        if not x.share < 0.5:
            raise bad(f"{who}: TrimmedMean.share", "be below 0.5, cut away on each side", x.share)
    if isinstance(x, GeometricMedian):
        positive(f"{who}: GeometricMedian.tol", x.tol)
    return x


Aggregate = Annotated[Any, valid]


def is_mean(method: Any) -> bool:
    """Whether a method's server averages: a class that inherits this from `WeightedMean` may do something else."""
    return type(method.aggregation) is WeightedMean


def check_fit(method: Any) -> None:
    """Raise unless the server sees single answers whose weights sum to one, where it does more than average.

    Raises
    ------
    ValueError
    """
    if is_mean(method):
        return
    who, got = f"{type(method).__name__}.aggregation", f"{method.aggregation!r}"
    if pooled_sums.hides(method):
        raise bad(who, "be WeightedMean() with SecureSums", got, "of sums over clients there is no other aggregate")
    if isinstance(method.participation, participation.ScaledSampling):
        raise bad(who, "be WeightedMean() with ScaledSampling", got, "its weights do not sum to one")
    if getattr(method, "shadow", False):
        raise bad(who, "be WeightedMean() with shadow=True", got, "shadow iterates are averages")


def combined(method: Any, weights: np.ndarray, w: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Return what a server at w (R, *model) makes of answers (R, m, *model)."""
    if is_mean(method):
        return participation.average(method.participation, weights, w, answers)
    return np.asarray(method.aggregation.of(weights, answers))


def _sorted(weights: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return every coordinate's values in order (NaN is last), and the shares of the weight before and up to each."""
    order = np.argsort(answers, axis=1, kind="stable")
    q = np.broadcast_to(weights.reshape(*weights.shape, *[1] * (answers.ndim - 2)), answers.shape)
    q = np.take_along_axis(q / q.sum(axis=1, keepdims=True), order, axis=1)
    upto = np.cumsum(q, axis=1)
    return np.take_along_axis(answers, order, axis=1), upto - q, upto
