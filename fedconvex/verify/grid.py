"""Verdicts over a grid of settings, with the tightest and the loosest of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from itertools import product
from typing import Any, NamedTuple

from fedconvex._check import function, items, text, wrong_type
from fedconvex.problems import Problem
from fedconvex.theorems import Theorem
from fedconvex.verify.verdicts import Outcome, Verdict, verify


class GridVerdicts(NamedTuple):
    """What a sweep found.

    Attributes
    ----------
    verdicts : dict from tuple to Verdict
        By the values of the grid, in its order.
    tightest, loosest : tuple or None
        Where bound over measured value is least, and largest, among those that apply.

    Examples
    --------
    >>> from fedconvex import FedSGD, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.verify import verify_grid
    >>> problem = Problem(linear_federation(n_clients=3, n_features=2, seed=0).federation, Squared())
    >>> found = verify_grid("fedavg-at-optimum", lambda eta: (problem, FedSGD(step_size=eta), 5), {"eta": [0.01, 0.1]})
    >>> list(found.verdicts), found.tightest
    ([(0.01,), (0.1,)], (0.1,))
    """

    verdicts: dict[tuple, Verdict]  # by the values of the grid, in its order
    tightest: tuple | None  # where the ratio is least, among those that apply
    loosest: tuple | None

    @property
    def violated(self) -> list[tuple]:
        """Settings where the bound fails."""
        return [k for k, v in self.verdicts.items() if v.outcome is Outcome.VIOLATED]

    @property
    def undecided(self) -> list[tuple]:
        """Settings where an interval, or a number that is none, leaves it open whether the bound holds."""
        return [k for k, v in self.verdicts.items() if v.outcome is Outcome.INCONCLUSIVE]


def verify_grid(
    theorem: Theorem | str,
    setting: Callable[..., tuple[Problem, Any, int]],
    grid: Mapping[str, Iterable[Any]],
    **options: Any,
) -> GridVerdicts:
    """Return a theorem's verdicts over a grid, with its tightest and loosest corner.

    Parameters
    ----------
    theorem : Theorem or str
    setting : callable
        Takes one value per key of the grid and returns (problem, method, rounds).
    grid : mapping from str to values
        For example step sizes, local steps, numbers of clients, heterogeneities, batch sizes.
    **options
        For `verify`.

    Raises
    ------
    TypeError
        If grid is no mapping of names to lists of values, or setting does not take these names.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.verify import verify_grid
    >>> problem = Problem(linear_federation(n_clients=3, model_shift=1.0, seed=0).federation, Squared())
    >>> def setting(eta, tau):
    ...     return problem, FedAvg(step_size=eta, local_steps=tau), 10
    >>> found = verify_grid("fedavg-at-optimum", setting, {"eta": [0.01, 0.1], "tau": [1, 2]})
    >>> found.violated, len(found.verdicts)
    ([], 4)
    """
    if not isinstance(grid, Mapping) or not grid:
        raise wrong_type("verify_grid: grid", "be a nonempty mapping of names to values", f"{grid!r}")
    function("verify_grid: setting", setting)
    verdicts = {}
    for name, several in grid.items():
        items(f"verify_grid: grid[{text('verify_grid: grid: a name', name)!r}]", several)
    try:
        signature(setting).bind(**dict.fromkeys(grid))
    except TypeError as error:
        raise wrong_type("verify_grid: setting", f"take {', '.join(grid)}", f"{setting!r} ({error})") from None
    for values in product(*grid.values()):
        problem, method, rounds = setting(**dict(zip(grid, values, strict=True)))
        verdicts[values] = verify(theorem, problem, method, rounds=rounds, **options)
    ratios = {k: v.ratio for k, v in verdicts.items() if math.isfinite(v.ratio)}
    tightest = min(ratios, key=ratios.__getitem__) if ratios else None
    loosest = max(ratios, key=ratios.__getitem__) if ratios else None
    return GridVerdicts(verdicts, tightest, loosest)
