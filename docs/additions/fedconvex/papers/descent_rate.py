"""How fast gradient descent is: the measured rate of FedSGD beside (1 - mu/L)^T (Nesterov 2004, Section 2.1.5).

1. A federation of linear models; least squares with l2 = 0.1, F is mu-strongly convex and L-smooth.
2. FedSGD, full participation, step 1/L, from 0.
3. F(w_T) - F* over T, beside (1 - mu/L)^T (F(w_0) - F*).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedconvex.datasets import linear_federation
from fedconvex.driver import run
from fedconvex.losses import Squared
from fedconvex.methods import FedSGD
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.style import COLOURS, blank, legend, panel
from fedconvex.problems import Problem


def study(*, quick: bool, seed: int, data: None, tell: Progress) -> Findings:
    """Run FedSGD once, and put the rate beside it."""
    tell(0.0, "gradient descent")
    problem = Problem(linear_federation(seed=seed).federation, Squared(), 0.1)  # 1
    constants, best = problem.constants(), problem.solve()
    method, rounds = FedSGD(step_size=1.0 / constants.L), 20 if quick else 200
    trace = run(method, problem, rounds=rounds, tol=0.0, progress=False).trace  # 2
    measured = trace.value - best.value
    bound = measured[0] * (1.0 - constants.mu / constants.L) ** trace.round  # 3
    columns = zip(trace.round.tolist(), measured.tolist(), bound.tolist(), strict=True)
    rows = [{"round": t, "measured": m, "bound": b} for t, m, b in columns]
    notes = ("Taken from the literature: the rate. Chosen here: the data, l2 = 0.1, the start.",)
    return Findings("The rate of gradient descent", tuple(_claims(rows)), notes, {"rate": _draw(rows)}, {"rate": rows})


EXPERIMENT = Experiment("descent-rate", "gradient descent beside its linear rate", study, smaller="20 rounds")


def _claims(rows: Sequence[dict[str, Any]]) -> Iterator[Claim]:
    over = max(row["measured"] / row["bound"] for row in rows)
    yield Claim("The suboptimality stays below the linear rate", over <= 1.0 + 1e-9, f"largest ratio {over:.3g}", True)


def _draw(rows: Sequence[dict[str, Any]]) -> Any:
    """Draw both over the rounds."""
    figure, (axis,) = blank()
    for name, colour in (("measured", COLOURS[0]), ("bound", "black")):
        y = np.array([row[name] for row in rows])
        axis.plot([row["round"] for row in rows], np.where(y > 0.0, y, np.nan), color=colour, label=name)
    panel(axis, x="rounds", y="F(w) - F*", log="y")
    legend(figure, axis, columns=2)
    return figure
