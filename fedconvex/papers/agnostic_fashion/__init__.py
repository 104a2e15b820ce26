"""Three classes as three domains, AFL beside training on all rows alike: Mohri, Sivek, Suresh (ICML 2019), Section 5.

1. Fashion-MNIST's shirts, pullovers and t-shirts/tops: three classes, each a domain of 6,000 training and 1,000 test
   rows. Without a file: digits 8, 1 and 9 of scikit-learn, cross-validated, because there are only 180 of each; a
   third of the eights to train on, because with all of them differences drown in noise.
2. Every pixel standardised by the training rows; images as they are, and averaged over blocks of 2 x 2 pixels.
3. Multinomial logistic regression, for several l2, exactly: the minimiser of the pooled loss, and the minimax solution.
4. Test accuracy of every class, with Wilson's interval; differences of the two models on the same rows.
5. Stochastic AFL, stochastic gradients on the pooled loss and OptimisticAFL on the averaged images, over their rounds.

A model trained on a single domain would have seen one class only, and would answer it always.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np

from fedconvex.papers.agnostic_fashion.claims import judge, notes, tables
from fedconvex.papers.agnostic_fashion.data import load_domains
from fedconvex.papers.agnostic_fashion.figures import draw_classes, draw_runs
from fedconvex.papers.agnostic_fashion.runs import FULL, LARGE, QUICK, Comparison, class_runs, compared, possible
from fedconvex.papers.findings import Experiment, Findings, Progress, progress_part
from fedconvex.papers.finished_parts import finished_part

__all__ = ["EXPERIMENT"]


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Compare the exact solutions for every l2, then run the methods; data: a path as for `load_domains`."""
    tell(0.0, "reading")
    domains = load_domains(data, seed)
    scale = possible(QUICK if quick else FULL if data is None else LARGE, domains)
    todo = [(block, l2) for block, path in scale.solved for l2 in path]
    cost = np.array([1.0 if block > 1 else 8.0 for block, _ in todo] + [4.0])
    ends = np.concatenate([[0.0], np.cumsum(cost)]).tolist()
    parts = [progress_part(tell, a / ends[-1], b / ends[-1]) for a, b in itertools.pairwise(ends)]
    found = [
        finished_part(f"{block} {l2:g}", partial(compared, domains, block, l2, at), (Comparison,))
        for (block, l2), at in zip(todo, parts, strict=False)
    ]
    runs = list(class_runs(domains, scale, seed, parts[-1]))
    title = f"AFL beside training on all rows alike, three classes as domains (Mohri et al. 2019): {domains.name}"
    figures = {"classes": draw_classes(domains, found), "runs": draw_runs(domains, runs)}
    judged = tuple(judge(domains, scale, found, runs))
    return Findings(title, judged, notes(domains, scale, found, runs), figures, tables(domains, found, runs))


EXPERIMENT = Experiment(
    "afl-fashion",
    "three confusable classes as domains: what AFL does for the worst of them, and what it costs the others",
    study,
    "optional npz with x_train, y_train, x_test, y_test (Fashion-MNIST); default digits 8, 1, 9",
    "averaged images, two l2, few rounds",
)
