"""What a round of federated averaging and of its agnostic forms sends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedconvex.driver import run
from fedconvex.kernels.domain_sums import domain_counts
from fedconvex.methods import AFL, AgnosticFedAvg, ApproxFedAvg, FedAvg, OptimisticAFL, SoftmaxFedAvg, UniformSampling
from fedconvex.methods.afl import WeightedSampling
from fedconvex.secure import PlainSums
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.domain_instances import breast_cancer_domains, domains_of_slopes, three_domains

__all__ = ["COUNTS", "FLOATS", "STATEMENT", "THEOREMS", "floats_per_round"]

FLOATS = Quantity("numbers sent in a round, down and up, by all clients together", by_rounds=False, least=0.0)

COUNTS: dict[type, tuple[int, int]] = {  # numbers per client besides two models: (per domain, once)
    FedAvg: (0, 0),
    ApproxFedAvg: (0, 0),
    AFL: (2, 0),
    OptimisticAFL: (2, 0),
    AgnosticFedAvg: (3, 1),
    SoftmaxFedAvg: (3, 1),
}

STATEMENT = Statement(
    page="agnostic_floats",
    title="Agnostic learning: what rounds send",
    scope=Scope(holds("what is sent does not depend on them"), holds("the same"), not_for("its methods refuse one")),
    setting="c clients take part in a round, a model has |W| numbers, there are p domains.",
    assumptions="""
Nothing is compressed, and every number counts, integers too; single answers, not masked ones. AFL asks all domains.
""",
    statement="""
Numbers sent in a round, down and up, by all clients together:
FedAvg, ApproxFedAvg             2c|W|
AFL, OptimisticAFL               2c|W| + 2cp        (down: w, lambda; up: gradient, sums of losses)
AgnosticFedAvg, SoftmaxFedAvg    2c|W| + c(3p + 1)  (down: w, alpha; up: w, beta, sums of losses, counts)
""",
    source="""
Counted from the algorithms: McMahan et al. 2017, arXiv:1602.05629; Mohri, Sivek, Suresh 2019, arXiv:1902.00146,
Figure 2; Ro et al. 2021, arXiv:2104.02748, Algorithm 1.
""",
    differs="""
A table that circulates has 2c|W| + 4cp for AgnosticFedAvg. Costs are "quadratic in the number of domains" only
where clients are domains, c = p.
""",
    meaning="""
These are equations, measured in the messages: a count that is too small or too large is a violation.
""",
    proof="""
FedAvg and ApproxFedAvg send a model down and one up. AFL and OptimisticAFL send w and λ down, the gradient and p sums
of losses up. AgnosticFedAvg and SoftmaxFedAvg send w and α down, w, β, p sums of losses and p counts up.
""",
    loose="Nowhere.",
)


def floats_per_round(*, clients: int, size: int, domains: int, per_domain: int = 0, once: int = 0) -> Bound:
    """Return the numbers that a round sends; the statement is an equation.

    Parameters
    ----------
    clients, size, domains : int
        c, |W| and p.
    per_domain, once : int
        Numbers of a client besides two models, as `COUNTS` has them by method: for every domain, and once.

    Raises
    ------
    ValueError, TypeError
        If domains, clients or size is below 1, or another number negative.

    Examples
    --------
    >>> from fedconvex.methods import AgnosticFedAvg
    >>> from fedconvex.theorems.agnostic_floats import COUNTS, floats_per_round
    >>> each, once = COUNTS[AgnosticFedAvg]
    >>> floats_per_round(clients=10, size=100, domains=3, per_domain=each, once=once).value
    2100.0
    """
    c, d = whole("floats_per_round: clients", clients, low=1), whole("floats_per_round: size", size, low=1)
    p = whole("floats_per_round: domains", domains, low=1)
    each, one = whole("floats_per_round: per_domain", per_domain), whole("floats_per_round: once", once)
    terms = {"models": 2.0 * c * d, "domains": float(c * each * p), "sums": float(c * one)}
    numbers = f"c = {c}, |W| = {d}, p = {p}"
    source = "counted from Mohri, Sivek, Suresh 2019 and Ro et al. 2021 (docs/theory/agnostic_floats.md)"
    return Bound(terms, FLOATS, source, (Hypothesis("single answers, nothing compressed", numbers),))


# ---------------------------------------------------------------- read off a setting


def _read(s: Setting) -> Reading:
    name, m = "the count of what is sent", s.method
    is_method(name, m, *COUNTS)
    sums, sampling = getattr(m, "sums", None), getattr(m, "sampling", None)
    require(
        name,
        Hypothesis("single answers", f"{sums!r}", sums is None or isinstance(sums, PlainSums)),
        Hypothesis("all domains asked", f"{sampling!r}", not isinstance(sampling, WeightedSampling)),
    )
    each, once = next(COUNTS[kind] for kind in type(m).__mro__ if kind in COUNTS)
    p = domain_counts(s.problem.federation).size
    numbers = {"clients": participants(s), "size": s.problem.size, "domains": p}
    return Reading({**numbers, "per_domain": each, "once": once})


def _sent(s: Setting, rounds: Sequence[int], seed: int, trajectories: int) -> np.ndarray:
    """Numbers a round, as the driver counts them in the messages; what is asked before the first round is not in it."""
    out = []
    for T in rounds:
        for start in (s.start, s.start + 1.0):  # what is sent does not depend on it, and a run at the optimum is over
            result = run(s.method, s.problem, rounds=T, tol=0.0, seed=seed, start=start, record_every=T, progress=False)
            if result.rounds:
                break
        require("the count of what is sent", Hypothesis("a run of a round", "the optimum", result.rounds > 0))
        sent = result.trace.floats_down + result.trace.floats_up
        out.append((sent[-1] - sent[0]) / result.rounds)
    return np.tile(np.array(out, dtype=float)[:, None], (1, trajectories))


def _constants_of_counts(s: Setting) -> dict[str, tuple[float, str]]:
    p, K = domain_counts(s.problem.federation).size, s.problem.federation.K
    return {"|W|": (float(s.problem.size), "exact"), "p": (float(p), "exact"), "clients": (float(K), "exact")}


THEOREMS = (
    Theorem(
        name="agnostic-floats",
        title="Agnostic learning, numbers sent in a round",
        quantity=FLOATS,
        bound=floats_per_round,
        read=_read,
        sample=_sent,
        exact=lambda s, rounds: _sent(s, rounds, s.seed, 1)[:, 0],
        constants=_constants_of_counts,
        tolerance=lambda s, value: 1e-6,
        equation=True,
        statement=STATEMENT,
        says="Agnostic methods send 2c|W| numbers a round as FedAvg does, and a few for every domain.",
        loose="An equation.",
        method=fixed_step(0.25, AgnosticFedAvg, domain_step_size=0.1, local_steps=3),
        rounds=2,
        space=local_sgd_space(
            lambda **work: fixed_step(0.25, AgnosticFedAvg, domain_step_size=0.1, **work), most=3, rounds=(1, 3)
        ),
        checks=(
            three_domains,
            breast_cancer_domains,
            *(
                Check(instance, method)
                for instance in (three_domains, breast_cancer_domains)
                for method in (
                    fixed_step(0.25, local_steps=3, scheme=UniformSampling),
                    fixed_step(0.25, AFL, domain_step_size=0.1),
                    fixed_step(0.25, OptimisticAFL, domain_step_size=0.1),
                    fixed_step(0.25, SoftmaxFedAvg, mu=20.0, local_steps=3, scheme=UniformSampling),
                )
            ),
            *(  # of one domain each: clients step as FedAvg's do
                Check(domains_of_slopes(p), fixed_step(0.25, ApproxFedAvg, mu=20.0, local_steps=3, own_domains=True))
                for p in (2, 10)
            ),
            Check(three_domains, fixed_step(0.25, AFL, domain_step_size=0.1, sampling=WeightedSampling(1))),  # drawn
        ),
    ),
)
