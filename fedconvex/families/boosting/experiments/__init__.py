"""Boosting with several sources: worst-domain losses and errors (Cortes, Mohri, Storcheus, Suresh, NeurIPS 2021).

1. Rows of p domains with two classes; 10 random divisions, half to train, a fifth to choose, the rest to test on. Equal
   rows stay on one side.
2. Q(l|x): conditional maximum entropy on the training rows without their labels, l2 by cross-validation.
3. Decision stumps, the same for all methods, and Phi = exp; at most 200 rounds each.
4. AdaBoost-k on source k alone, AdaBoost-all on all rows, also with p times the rounds; the uniform and the optimal
   convex combination of AdaBoost-k; the optimal combination weighted by Q.
5. MultiBoost on the smoothed maximum: with Q, with Q = 1/p, with Q to a power between, with (1 - tau) Q + tau/p, with a
   Q that sees few principal components of the features, with Q cross-fitted on the training rows; and as printed,
   without smoothing. AdaBoost-all and MultiBoost over trees of depth two, after as many rounds.
6. FedMultiBoost: 10 clients a domain, 5 a round, 200 stumps of each source a round, steps eta_0/sqrt(t).
7. Every method's number of rounds (with eta_0, the power of Q, tau, the components) has the least worst-domain loss on
   the rows to choose on, for losses, and the least worst-domain error, for errors; AdaBoost-k has rows of domain k
   only, and is chosen by these. Losses also with a factor of f, chosen with the rounds.
8. On test rows: loss and error of every domain, of the worst, and over the weights of two domains; over the divisions
   means with 95 % intervals, and paired differences.
9. Gaps between test and training loss at the lowest training loss that all methods reach.
10. On a fixed dictionary: the gaps of MultiBoost and FedMultiBoost to the certified optimum.
"""

from __future__ import annotations

from typing import Any

from fedconvex.families.boosting.experiments.claims import judge, notes, tables
from fedconvex.families.boosting.experiments.data import load_sources, shifted_digits
from fedconvex.families.boosting.experiments.figures import draw_errors, draw_rounds, draw_weights
from fedconvex.families.boosting.experiments.runs import FULL, LARGE, QUICK, boost_study
from fedconvex.papers.findings import Experiment, Findings, Progress

__all__ = ["EXPERIMENT"]


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Run every method on every division; data: a path as for `load_sources`, default `shifted_digits`."""
    rows = shifted_digits(seed) if data is None else load_sources(data)
    scale = QUICK if quick else FULL if data is None else LARGE
    found = boost_study(rows, scale, seed, tell)
    title = f"Boosting with several sources on {rows.name} (Cortes, Mohri, Storcheus, Suresh 2021)"
    figures = {"errors": draw_errors(found), "domain_weights": draw_weights(found), "rounds": draw_rounds(found)}
    return Findings(title, tuple(judge(found)), notes(rows, scale, found), figures, tables(found))


EXPERIMENT = Experiment(
    "multiboost",
    "boosting with several sources: losses and errors of domains for AdaBoost, combinations, MultiBoost, FedMultiBoost",
    study,
    "optional npz of rows in domains: CSR data, indices, indptr, shape (or X), y, domain; default shifted digits",
    f"{QUICK.splits} divisions and {QUICK.rounds} rounds, which say little about {FULL.rounds}",
)
