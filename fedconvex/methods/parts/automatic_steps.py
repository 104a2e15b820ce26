"""``step_size="auto"``: the step that a named theorem gives, where there is one.

A method that has such a step defines ``default_step(problem)``; formulas: `fedconvex.constants.default_steps`. Where
``constant_step(problem, smooth)`` is defined, the command line takes that step instead, from the smoothness alone.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedconvex._check import bad, wrong_type
from fedconvex.constants import default_steps
from fedconvex.constants.default_steps import DefaultStep, Schedule, Smoothness
from fedconvex.loss_traits import traits
from fedconvex.methods.parts.step_sizes import Decay
from fedconvex.problems import Problem
from fedconvex.problems.protocol import has_one_model, is_for, made_for
from fedconvex.traits import traits_of

_EIGENVALUES = 1e11  # operations spent on eigenvalues of X'X, over all clients; beyond, upper bounds do without them


def resolved(method: Any, problem: Problem) -> tuple[Any, DefaultStep | None]:
    """Return the method with a step size in place of "auto", and where it comes from (None if it was given).

    `run` and `iterate` do this by themselves.

    Parameters
    ----------
    method : method
        Whose step_size may be "auto".
    problem : problem
        Of a kind that the method is made for.

    Raises
    ------
    TypeError, ValueError
        If the problem is not of a kind the method is made for, or no theorem gives a step size for its settings.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.datasets import linear_federation
    >>> from fedconvex.methods import resolved
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> method, step = resolved(FedAvg(step_size="auto", local_steps=5), problem)
    >>> round(method.step_size, 6), str(step)
    (1.0, '1 = 1/L (fedconvex, R1#)')
    """
    if isinstance(method, type) or not (hasattr(method, "init") or is_dataclass(method)):  # or a sample of rows
        raise wrong_type("method", "be an instance of a method", f"{method!r}")
    if not isinstance(getattr(method, "step_size", None), str):
        return method, None
    if not is_for(method, problem):
        who = f'{type(method).__name__}.step_size "auto": problem'
        raise wrong_type(who, f"learn {' or '.join(made_for(method))}", type(problem).__name__)
    step = method.default_step(problem)
    value = Decay(*step.value) if isinstance(step.value, Schedule) else step.value
    return replace(method, step_size=value), step


def usual_step(cls: type, settings: dict[str, Any], problem: Problem) -> tuple[Any, str]:
    """Return a step size for a method with these settings, and where it comes from.

    That of a theorem if there is one; else decaying steps for a kink, 1/(2 L) of mini-batches, 1/(L + mu) with a
    proximal term of weight mu, or 1/L of the roughest client, which are usual but backed by no theorem here.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """
    fed, known = problem.federation, {f.name: f for f in fields(cls)}
    if math.isinf(traits(problem.loss).smoothness):
        rough = default_steps.smoothness_of(fed, problem.weights, problem.loss, problem.l2, exact=False)
        kink = default_steps.kink_step(rough, problem.l2)
        return Decay(kink.value.scale, kink.value.shift, by_round=True), str(kink)
    if hasattr(cls, "default_step"):
        try:
            method, step = resolved(cls(**settings, step_size="auto"), problem)
        except ValueError:  # no theorem speaks about these settings
            pass
        else:
            return method.step_size, str(step)
    smooth = smoothness(cls(**settings, step_size=1.0), problem)
    batch = settings.get("batch_size", known["batch_size"].default if "batch_size" in known else None)
    mu = settings.get("proximal_mu", 0.0)
    if batch is not None:
        pooled = "inner_steps" in known  # rows are drawn from everybody's
        of = smooth._replace(client=smooth.F) if pooled else smooth
        found = default_steps.batch_step(of, fed.n if pooled else fed.sizes, min(batch, fed.n))
        value, formula = found.value, found.formula
    elif isinstance(mu, (int, float)) and mu > 0.0:
        value, formula = 1.0 / (smooth.client + mu), f"1/({smooth.name} + mu)"
    else:
        found = default_steps.local_step(smooth)
        value, formula = found.value, found.formula
    return value, f"{value:.4g} = {formula}, usual but backed by no theorem here"


def of_descent(method: Any, problem: Problem, smooth: Smoothness) -> DefaultStep:
    """Return 1/L of F: the `constant_step` of methods that take one step a round along the gradient of F."""
    return default_steps.descent_step(smooth)


def of_clients(method: Any, problem: Problem, smooth: Smoothness) -> DefaultStep:
    """Return the `constant_step` of methods with steps of clients.

    1/(2 L) of mini-batches, 1/L of F for one full step of everybody, else 1/L of the roughest client.
    """
    sizes, batch = problem.federation.sizes, getattr(method, "batch_size", None)
    if batch is not None and batch < sizes.max():
        return default_steps.batch_step(smooth, sizes, batch)
    steps = getattr(method, "epochs", None) or getattr(method, "local_steps", 1)
    if steps == 1 and traits_of(method, problem).everyone:
        return default_steps.descent_step(smooth)
    return default_steps.local_step(smooth)


def of_one_client(method: Any, problem: Problem) -> tuple[Smoothness, float, float]:
    """Return L, mu and delta for theorems on one client with a contractive compressor.

    Raises
    ------
    ValueError
        If there are several clients, l2 makes F not strongly convex, or the compressor is unbiased.
    """
    if problem.federation.K > 1:
        cure = "EF21 has a theorem for several; or give a step size"
        raise no_theorem(method, f"{problem.federation.K} clients, whose gradients at the optimum differ", cure)
    if method.compressor.unbiased:
        raise no_theorem(method, f"{method.compressor!r}, which is not contractive", "take TopK, or give a step size")
    mu = float(getattr(problem, "strong_convexity", 0.0))
    if not mu > 0.0:
        raise no_theorem(method, "no strong convexity by l2", "take l2 > 0, or give a step size")
    return smoothness(method, problem), mu, float(method.compressor.delta(problem.size))


def no_theorem(method: Any, why: str, cure: str = "give a step size") -> ValueError:
    """Return the error of a method whose settings no theorem speaks about."""
    return bad(f'{type(method).__name__}: step_size="auto"', "be backed by a theorem", why, cure)


def smoothness(method: Any, problem: Problem, falling: bool = False) -> Smoothness:
    """Return the smoothness of a problem, exact where that is affordable; if F falls, that where F <= F(0) will do.

    Raises
    ------
    ValueError
        If the loss or the task relationship has none, or it is not known for this kind of problem.
    """
    if hasattr(problem, "step_smoothness"):
        return problem.step_smoothness(_affordable(problem.federation), partial(no_theorem, method))
    if not has_one_model(problem):
        raise no_theorem(method, f"{type(problem).__name__}")
    fed, loss = problem.federation, problem.loss
    smooth = default_steps.smoothness_of(fed, problem.weights, loss, problem.l2, _affordable(fed))
    if problem.free is not None:  # L + l2 is no eigenvalue then
        smooth = smooth._replace(exact=False)
    if math.isinf(traits(loss).smoothness) and not (falling and traits(loss).self_bounded):
        cure = "take a smooth loss, or a decaying step such as Decay(2/l2, by_round=True)"
        raise no_theorem(method, f"{loss!r}, which is not smooth", cure)
    return smooth


def _affordable(fed: Any) -> bool:
    """Whether eigenvalues of all clients' X'X are."""
    return (fed.K + 1.0) * fed.d**3 + fed.n * float(fed.d) ** 2 <= _EIGENVALUES


def saddle_steps(problem: Problem) -> tuple[float, float, str]:
    """Return step sizes of AFL for the model and the domain weights, and words for them.

    Below half the inverse of the operator's Lipschitz constant in a metric that balances players: for
    [[tau L, c], [c, 0]] with c = sqrt(tau sigma) b, tau = 1/(4 L) and c = 1/3 give 0.482 < 1/2.
    """
    domains = problem.by_domain
    fed = domains.federation
    L = default_steps.smoothness_of(fed, domains.weights, domains.loss, domains.l2, _affordable(fed)).client
    G = domains.client_gradients(np.zeros(problem.model_shape)).reshape(fed.K, -1)
    b = float(np.linalg.norm(G, 2))
    words = "1/(4 L) for the model; L of the roughest domain, its gradients' norm at zero"
    return 0.25 / L, 4.0 * L / (9.0 * max(b, 1e-12) ** 2), words


def of_averaging(method: Any, problem: Problem) -> DefaultStep:
    """Return the step of a method that averages plain local steps, or raise ValueError.

    Everybody takes part: 1/L of F for one full step, 1/L of the roughest client for several, 1/(2 L) of mini-batches.
    Sampled clients: the decaying steps of Li et al. (2020), which need strong convexity.
    """
    t, smooth = traits_of(method, problem), smoothness(method, problem)
    mine = t.local
    if mine is None or not (mine.plain and t.averages) or (mine.factor != 1.0).any():
        raise no_theorem(method, "more than plain steps and a weighted mean")
    tau = mine.equal_steps
    if not mine.fresh:
        raise no_theorem(method, "epochs, whose batches depend on each other", "give local_steps, or a step size")
    if tau is None:
        got = f"{mine.steps.min()} to {mine.steps.max()} local steps at different clients"
        raise no_theorem(method, got, "give one number for all, or a step size")
    if t.everyone and not mine.full:
        return default_steps.batch_step(smooth, mine.sizes, mine.batch_size, mine.replacement)
    if t.everyone:
        return default_steps.local_step(smooth) if tau > 1 else default_steps.descent_step(smooth)
    equal = np.ptp(problem.weights) <= 1e-12
    if t.sampling not in ("proportional", "scaled") and not (t.sampling == "uniform" and equal):
        raise no_theorem(method, "sampled clients of unequal weights", "take ScaledSampling, or give a step size")
    constants = problem.constants()
    mu = float(np.min(constants.mu_k)) if constants.mu_k is not None else 0.0
    if not mu > 0.0 or constants.L is None:
        raise no_theorem(method, "sampled clients without strong convexity", "take l2 > 0, or give a step size")
    return default_steps.decaying_step(constants.L, mu, tau)
