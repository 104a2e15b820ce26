"""A round of vertical gradient descent on a9a with four owners beside a gradient of the joined rows, CPU time.

The round is the whole method: scores of every owner, their sum, slopes, every owner's gradient and step; nothing is
measured. The gradient is the fused kernel of `Problem.gradient`, one pass over the rows.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from _timing import Report, compare, data_folder

from fedconvex import Logistic, VerticalFederation
from fedconvex.draws import Draws
from fedconvex.methods import VerticalGradientDescent
from fedconvex.problems import VerticalProblem

OWNERS = 4


def rounds_of(problem):
    """Return a function that takes one round from where the last one ended."""
    method, everybody = VerticalGradientDescent(step_size=1.0), np.arange(OWNERS)[None]
    state = method.settle(problem, method.init(problem, np.zeros((1, problem.size))))
    kept = [state]

    def one():
        draws = Draws(np.uint64(0), np.zeros(1, np.int64), kept[0].t)
        reply, _ = method.local(problem, method.broadcast(kept[0]), everybody, None, draws)
        kept[0] = method.settle(problem, method.aggregate(kept[0], everybody, np.ones((1, OWNERS)), reply))
        return kept[0]

    return one


def main():
    report = Report("vertical", "A round on a9a with four owners beside a pooled gradient", "s", 1.0, clock="cpu")
    path = data_folder() / "a9a.npz"
    if not path.exists():
        report.row("a9a", "fedconvex", None, note="a9a.npz is absent")
        return
    with np.load(path, allow_pickle=False) as z:
        parts = (z["data"].astype(float), z["indices"].astype(np.int64), z["indptr"].astype(np.int64))
        X, y = sp.csr_array(parts, shape=tuple(z["shape"])), z["y"].astype(float)
    for kind in ("CSR", "dense"):
        table = X if kind == "CSR" else X.toarray()
        blocks = [table[:, a:b] for a, b in zip((0, 31, 62, 93), (31, 62, 93, 123), strict=True)]
        problem = VerticalProblem(VerticalFederation.from_blocks(blocks, y), Logistic(), 1e-2)
        w = np.full(problem.size, 0.01)
        step = rounds_of(problem)
        step()
        gap = np.abs(step().w[0] - step_twice(problem)).max()
        report.check(f"{kind}: two rounds against two pooled steps", float(gap), 1e-12)
        timing = compare({"round": step, "pooled gradient": lambda p=problem, w=w: p.gradient(w)}, limit=10.0)
        spent = {who: report.row(kind, who, t) for who, t in timing.items()}
        report.bar(f"{kind}: time / pooled gradient", spent["round"] / spent["pooled gradient"], 1.3)
    report.write()


def step_twice(problem):
    """Return two steps of 1 on the joined rows."""
    w = np.zeros(problem.size)
    for _ in range(2):
        w = w - problem.gradient(w)
    return w


if __name__ == "__main__":
    main()
