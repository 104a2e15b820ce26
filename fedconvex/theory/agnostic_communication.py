"""What a round of federated averaging and of its agnostic forms sends.

Setting
    c clients take part in a round, a model has |W| numbers, there are p domains.
Assumptions
    Nothing is compressed, and every number counts, integers too; single answers, not masked ones. AFL asks all domains.
Statement
    Numbers sent in a round, down and up, by all clients together:
    FedAvg, ApproxFedAvg             2c|W|
    AFL, OptimisticAFL               2c|W| + 2cp        (down: w, lambda; up: gradient, sums of losses)
    AgnosticFedAvg, SoftmaxFedAvg    2c|W| + c(3p + 1)  (down: w, alpha; up: w, beta, sums of losses, counts)
Source
    Counted from the algorithms: McMahan et al. 2017, arXiv:1602.05629; Mohri, Sivek, Suresh 2019, arXiv:1902.00146,
    Figure 2; Ro et al. 2021, arXiv:2104.02748, Algorithm 1.
What differs
    A table that circulates has 2c|W| + 4cp for AgnosticFedAvg. Costs are "quadratic in the number of domains" only
    where clients are domains, c = p.
"""

from __future__ import annotations

from fedconvex._check import bad, whole
from fedconvex.theory.bound import FLOATS, Bound, Hypothesis

__all__ = ["COUNTS", "floats_per_round"]

# numbers per client besides two models: (per domain, once)
COUNTS = {
    "FedAvg": (0, 0),
    "ApproxFedAvg": (0, 0),
    "AFL": (2, 0),
    "OptimisticAFL": (2, 0),
    "AgnosticFedAvg": (3, 1),
    "SoftmaxFedAvg": (3, 1),
}


def floats_per_round(method: str, *, clients: int, size: int, domains: int) -> Bound:
    """Return the numbers that a round sends; the statement is an equation.

    Parameters
    ----------
    method : str
        One of `COUNTS`.
    clients, size, domains : int
        c, |W| and p.

    Examples
    --------
    >>> from fedconvex.theory.agnostic_communication import floats_per_round
    >>> floats_per_round("AgnosticFedAvg", clients=10, size=100, domains=3).value
    2100.0
    """
    if method not in COUNTS:
        raise bad("floats_per_round: method", "be one of " + ", ".join(COUNTS), repr(method))
    c, d = whole("floats_per_round: clients", clients, low=1), whole("floats_per_round: size", size, low=1)
    p, (each, once) = whole("floats_per_round: domains", domains, low=1), COUNTS[method]
    terms = {"models": 2.0 * c * d, "domains": float(c * each * p), "sums": float(c * once)}
    numbers = f"c = {c}, |W| = {d}, p = {p}"
    source = "counted from Mohri, Sivek, Suresh 2019 and Ro et al. 2021 (docs/theory/agnostic.md)"
    return Bound(terms, FLOATS, source, (Hypothesis(f"single answers of {method}", numbers),))
