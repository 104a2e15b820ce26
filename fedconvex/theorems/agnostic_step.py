"""A round of AgnosticFedAvg: how far its direction is from the gradient of the agnostic objective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants.default_steps import smoothness_of
from fedconvex.methods import AgnosticFedAvg
from fedconvex.methods.parts.optimizers import ClientSGD
from fedconvex.theorems.kit import *
from fedconvex.theorems.parts.domain_instances import one_row, row_and_thousandth, unequal_domains

__all__ = ["DIRECTION_ERROR", "STATEMENT", "THEOREMS", "agnostic_step"]

NAME = "AgnosticFedAvg's step"
SOURCE = "fedconvex, a round of AgnosticFedAvg (docs/theory/agnostic_step.md)"
DIRECTION_ERROR = Quantity(
    "‖(w_{T-1} - w_T)/(eta E) - sum lambda_i grad L_i(w_{T-1})‖ of the last round", "error", least=0.0
)

STATEMENT = Statement(
    page="agnostic_step",
    title="A round of AgnosticFedAvg",
    scope=Scope(
        not_for("rows of domains are counted"),
        holds("all losses have the same ridge"),
        SMOOTH_ONLY,
    ),
    setting="""
Domains i with N_i rows in all and losses L_i; N_i^k of them at client k, with losses L_i^k; all losses with the same
ridge. The server knows lambda and M_i, the mean of N_i over the last rounds, and sends alpha_i = lambda_i/M_i; client k
makes E gradient steps eta on f_k = sum_i alpha_i N_i^k L_i^k/beta^k, beta^k = sum_i alpha_i N_i^k; w^+ is the average
of the answers by beta^k. All clients take part, full gradients.
""",
    assumptions="""
Losses of a client's rows of one domain convex and L-smooth; eta L <= 2 where E > 1. r_i = N_i/M_i > 0, any; a window
that has not seen all clients, or starts with ones, as the method's does, has r_i that differ.
""",
    statement="""
With b and a the largest and smallest r_i of domains with lambda_i > 0, S = max ‖grad L_i(w) - grad L_j(w)‖ over them,

‖(w - w^+)/(eta E) - sum_i lambda_i grad L_i(w)‖
    <= [(sqrt(b) - sqrt(a))/(sqrt(b) + sqrt(a))] S + (eta L (E - 1)/2) sum_k (beta^k/sum beta) ‖grad f_k(w)‖.

The first is what replacing N_i by M_i costs: the round descends for weights proportional to lambda_i r_i, whatever
clients hold. It vanishes once the window is full. The second is the drift of local steps, and does not.
""",
    source="""
The method and its window: Ro, Chen, Mathews, Mohri, Suresh, "Communication-efficient agnostic federated averaging",
Interspeech 2021, arXiv:2104.02748, who approximate N_i so without a bound. Both terms: this project.
""",
    differs="Nothing is published to differ from. With sampled clients the same holds for N_i, L_i over the sample.",
    meaning="""
For one local step the method is gradient descent on a mixture of the domains, at weights that are off by at most
(sqrt(b) - sqrt(a))/(sqrt(b) + sqrt(a)) in total variation: 1/3 where the counts of one domain are four times too large.
In the first round, whose window holds ones, r_i = N_i: a large domain counts too much. `verify` checks single rounds.
""",
    proof="""
**Weights.** Σ_k β^k ∇f_k = Σ_i α_i N_i ∇L_i: for E = 1 the round's direction is Σ μ_i ∇L_i, μ_i = λ_i r_i/Σ λ_j r_j.
Two mixtures of vectors with total variation t differ by at most t S. With r̄ = Σ λ_j r_j, t = Σ (λ_i/r̄)(r_i - r̄)₊,
which is largest, for r in [a, b], where λ sits at the ends (the sum is convex in r at given r̄): with q at b, t =
q(1-q)(b-a)/(qb + (1-q)a), largest at q = √a/(√a + √b), where it is (√b - √a)/(√b + √a).

**Drift.** Gradient steps on a convex L-smooth f_k with ηL ≤ 2 do not lengthen its gradient, so that the j-th local
model is within jη‖∇f_k(w)‖ of w and its gradient within jηL‖∇f_k(w)‖ of ∇f_k(w); the mean of j over j < E is (E-1)/2.
f_k is a mixture of slices, each L-smooth. Average with β^k. ∎
""",
    loose="""
The first term is attained by two domains with λ as in the proof, the second by one parabola and two steps. Together,
and over several domains that mostly agree, 3 to 20 times the truth.
""",
)


def agnostic_step(
    least: float, most: float, *, spread: float, L: float, step_size: float, local_steps: int, gradients: float
) -> Bound:
    """Return the bound of a round's error.

    Parameters
    ----------
    least, most : float
        a and b, the smallest r_i, which may be 0, and the largest.
    spread : float
        S, the largest distance of two domains' gradients.
    L, step_size, local_steps : float, float, int
        Smoothness of the slices, eta and E.
    gradients : float
        sum_k (beta^k/sum beta) ‖grad f_k(w)‖.

    Raises
    ------
    AssumptionError
        If E > 1 and eta L > 2.

    Examples
    --------
    >>> from fedconvex.theorems.agnostic_step import agnostic_step
    >>> agnostic_step(1.0, 4.0, spread=3.0, L=1.0, step_size=0.5, local_steps=3, gradients=2.0).terms
    {'weights': 1.0, 'drift': 1.0}
    """
    a = real("agnostic_step: least", least, low=0.0)
    b = real("agnostic_step: most", most, low=a, strict=a == 0.0)
    S, g = (real(f"agnostic_step: {n}", v, low=0.0) for n, v in (("spread", spread), ("gradients", gradients)))
    eta, E = real("step_size", step_size, low=0.0, strict=True), whole("local_steps", local_steps, low=1)
    L = real("L", L, low=0.0)
    short = Hypothesis("step_size <= 2/L, or one local step", f"step_size L = {eta * L:g}", E == 1 or eta * L <= 2.0)
    requires = require(SOURCE, short)
    share = (math.sqrt(b) - math.sqrt(a)) / (math.sqrt(b) + math.sqrt(a))
    terms = {"weights": share * S, "drift": 0.5 * eta * L * (E - 1) * g if E > 1 else 0.0}
    return Bound(terms, DIRECTION_ERROR, SOURCE, requires)


# ---------------------------------------------------------------- read off a setting


class _Slices(NamedTuple):
    """Rows of one domain at one client, each such slice a client of a problem."""

    problem: Problem
    client: np.ndarray  # (S,)
    domain: np.ndarray  # (S,)


def _slices(p: Problem) -> _Slices:
    fed, n = p.federation, p.federation.n_domains
    client = np.repeat(np.arange(fed.K), fed.sizes)
    domain = np.asarray(fed.domain) if n else client
    code, which = np.unique(client * max(n, fed.K) + domain, return_inverse=True)
    parts = Federation.from_arrays(fed.X, fed.y, which.ravel())
    client, domain = np.divmod(code, max(n, fed.K))
    return _Slices(Problem(parts, p.loss, p.l2, "uniform", intercept=p.intercept), client, domain)


class _Round(NamedTuple):
    """The last round of a run."""

    before: np.ndarray  # (model) w_{T-1}
    after: np.ndarray
    lam: np.ndarray  # (p,) lambda_{T-1}
    alpha: np.ndarray  # (p,) up to a factor


def _last(s: Setting, rounds: Sequence[int]) -> dict[int, _Round]:
    """Return these rounds of the run."""
    found: dict[int, _Round] = {}
    before: Any = None
    for t, state in iterate(s.method, s.problem, rounds=max(rounds), start=s.start):
        if t in set(rounds):
            lam = before.domain_weights[0]
            found[t] = _Round(before.w[0], state.w[0], lam, lam / before.expected[0])
        before = state
    return found


def _checked(s: Setting) -> tuple[float, int, tuple[Hypothesis, ...]]:
    """Return eta, E and what was checked."""
    is_method(NAME, s.method, AgnosticFedAvg)
    m, local = s.method, traits_of(s.method, s.problem).local
    assert local is not None
    checked = require(
        NAME,
        full_participation(s),
        Hypothesis("full local gradients", f"batches from {local.batch_size.min()} rows", local.full),
        equal_steps(local),
        Hypothesis("a smooth loss", f"{s.problem.loss!r}", math.isfinite(traits(s.problem.loss).smoothness)),
        Hypothesis("plain steps", f"{m.client!r}", m.client == ClientSGD()),
        Hypothesis("plain averaging", f"{m.server!r}", getattr(m.server, "plain_step", None) == 1.0),
    )
    return one_number(NAME, "step size", local.step_size), int(local.steps[0]), checked


def _read(s: Setting) -> Reading:
    eta, E, checked = _checked(s)
    parts, last = _slices(s.problem), _last(s, [s.rounds])[s.rounds]
    sizes, G = parts.problem.federation.sizes, _flat(parts.problem.client_gradients(last.before))
    N = np.bincount(parts.domain, sizes, last.lam.size)
    some = last.lam > 0.0
    r = N[some] * last.alpha[some] / last.lam[some]
    domains = _gradients(parts, G, N)[some]
    spread = max(float(np.linalg.norm(g - h)) for g in domains for h in domains)
    shares = last.alpha[parts.domain] * sizes
    beta = np.bincount(parts.client, shares)
    own = np.zeros((beta.size, G.shape[1]))
    np.add.at(own, parts.client, (shares / shares.sum())[:, None] * G)
    numbers = {"step_size": eta, "local_steps": E, "gradients": float(np.linalg.norm(own, axis=1).sum())}
    q = parts.problem
    numbers |= {"L": smoothness_of(q.federation, q.weights, q.loss, q.l2).client, "spread": spread}
    return Reading({"least": float(r.min()), "most": float(r.max()), **numbers}, checked)


def _flat(G: np.ndarray) -> np.ndarray:
    return np.asarray(G.reshape(len(G), -1))


def _gradients(parts: _Slices, G: np.ndarray, N: np.ndarray) -> np.ndarray:
    """Return the gradients of the domains, (p, entries)."""
    total = np.zeros((N.size, G.shape[1]))
    np.add.at(total, parts.domain, parts.problem.federation.sizes[:, None] * G)
    return total / N[:, None]


def _error(s: Setting, rounds: Sequence[int]) -> Found:
    """Length of a difference of directions; the last bits of models count 1/(eta E) times."""
    eta, E, _ = _checked(s)
    parts, runs = _slices(s.problem), _last(s, rounds)
    N = np.bincount(parts.domain, parts.problem.federation.sizes)
    values, off = [], []
    for t in rounds:
        last = runs[t]
        wanted = last.lam @ _gradients(parts, _flat(parts.problem.client_gradients(last.before)), N)
        values.append(float(np.linalg.norm((last.before - last.after).ravel() / (eta * E) - wanted)))
        length = float(np.linalg.norm(last.before) + np.linalg.norm(last.after))
        push = float(gradient_rounding(parts.problem, np.full(1, length)).max())
        off.append(16.0 * EPS * length / eta + 4.0 * push)
    return Found(np.array(values), np.array(off))


def _steps(share: float, local_steps: int = 1, **settings: Any) -> Any:
    return fixed_step(share, AgnosticFedAvg, domain_step_size=0.1, local_steps=local_steps, **settings)


THEOREMS = (
    Theorem(
        name="agnostic-step",
        title="AgnosticFedAvg, error of a round",
        quantity=DIRECTION_ERROR,
        bound=agnostic_step,
        read=_read,
        exact=_error,
        statement=STATEMENT,
        says="A round descends the agnostic objective, up to counts not known yet and the drift of local steps.",
        loose="Each term is attained; together, and where domains mostly agree, 3 to 20 times the truth.",
        method=_steps(0.25),
        rounds=1,
        checks=(
            *(Check(i, _steps(0.25, domain_weights=(2 / 3, 1 / 3)), 1) for i in unequal_domains),
            Check(row_and_thousandth, _steps(0.02, 3, domain_weights=(0.999, 0.001)), 1),
            Check(one_row, _steps(0.02, 2), 1),
            Check(one_row, _steps(0.02, 3), 1),
            breast_cancer_by_size,
            Check(breast_cancer_by_size, _steps(0.25, 3, window=3), 2),
            Check(shifted_logistic, _steps(0.25, 3), 5),
            Check(breast_cancer_by_size, _steps(0.25, batch_size=4)),  # mini-batches
            Check(breast_cancer_by_size, fixed_step(0.25)),  # FedAvg
        ),
        space=local_sgd_space(_steps, 1.9, batches=0, most=6, losses=("logistic",), rounds=(1, 3)),
    ),
)
