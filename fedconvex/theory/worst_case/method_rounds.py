"""Rounds of methods as maps of a state, for `contraction`: what one round makes of the distance of two runs.

The methods and their sources are those of `methods`.
"""

from __future__ import annotations

from typing import Any

from fedconvex._check import real, whole
from fedconvex.theory.worst_case.methods import checked_sampled, checked_step, fedlin_step, participants, scaffold_step
from fedconvex.theory.worst_case.oracles import Oracle
from fedconvex.theory.worst_case.rates import Round


def gradient_descent_round(step_size: float, momentum: float = 0.0) -> Round:
    """Return a step of gradient descent; with momentum, of the heavy ball: states x^t, and x^{t-1}.

    Parameters
    ----------
    step_size : float
        Positive.
    momentum : float
        Of the heavy ball; 0 for gradient descent.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive, or momentum not finite.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, contraction, gradient_descent_round
    >>> rate = contraction(gradient_descent_round(1.0), Problems(L=1.5, mu=0.5))
    >>> round(rate.upper, 3), round(rate.lower, 3)  # ((L - mu)/(L + mu))^2
    (0.25, 0.25)
    """
    eta = checked_step("gradient_descent_round: step_size", step_size)
    beta = real("gradient_descent_round: momentum", momentum)

    def plain(problem: Oracle, s: tuple[Any, ...]) -> list[Any]:
        return [s[0] - eta * problem.gradient(s[0])]

    def heavy(problem: Oracle, s: tuple[Any, ...]) -> list[Any]:
        return [s[0] - eta * problem.gradient(s[0]) + beta * (s[0] - s[1]), s[0]]

    return Round(heavy, shared=2) if beta else Round(plain)


def fedavg_round(step_size: float, local_steps: int, sampled: int | None = None) -> Round:
    """Return a round of FedAvg, local steps, then the mean: state x; the rate is that where clients share a minimiser.

    Without sampling it is max(|1 - step_size L|, |1 - step_size mu|)^(2 local_steps), and that of two runs of the same
    clients, wherever their minimisers lie: every local step brings them closer by that factor, and quadratics no more.

    Parameters
    ----------
    step_size, local_steps, sampled
        As for `fedavg`.

    Raises
    ------
    ValueError, TypeError
        If a step is not positive, or local_steps or sampled is below 1.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, contraction, fedavg_round
    >>> round(contraction(fedavg_round(0.5, 2), Problems(2, L=1.0, mu=0.5)).upper, 4)  # (1 - 0.25)^4
    0.3164
    """
    eta, tau = (
        checked_step("fedavg_round: step_size", step_size),
        whole("fedavg_round: local_steps", local_steps, low=1),
    )
    number = checked_sampled("fedavg_round", sampled)

    def update(problem: Oracle, s: tuple[Any, ...]) -> list[Any]:
        clients, y = participants(problem, number), []
        for client in clients:
            z = s[0]
            for _ in range(tau):
                z = z - eta * client.gradient(z)
            y.append(z)
        return [problem.mean(y, clients)]

    return Round(update)


def fedprox_round(proximal_mu: float, sampled: int | None = None) -> Round:
    """Return a round of FedProx with exact local minimisers: state x; the rate is that to its own fixed point.

    Parameters
    ----------
    proximal_mu, sampled
        As for `fedprox`.

    Raises
    ------
    ValueError, TypeError
        If proximal_mu is not positive, or sampled below 1.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, contraction, fedprox_round
    >>> round(contraction(fedprox_round(0.5), Problems(1, L=1.0, mu=0.5)).upper, 4)  # (1 + mu/proximal_mu)^-2
    0.25
    """
    step, number = (
        1.0 / checked_step("fedprox_round: proximal_mu", proximal_mu),
        checked_sampled("fedprox_round", sampled),
    )

    def update(problem: Oracle, s: tuple[Any, ...]) -> list[Any]:
        clients = participants(problem, number)
        return [problem.mean([c.prox(s[0], step) for c in clients], clients)]

    return Round(update, observed=0)


def hedging_round(rho: float, sampled: int | None = None) -> Round:
    """Return a round of progressive hedging: states v_k = x_k + y_k/rho, of which the server keeps the mean.

    Parameters
    ----------
    rho, sampled
        As for `hedging`.

    Raises
    ------
    ValueError, TypeError
        If rho is not positive, or sampled below 1.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, contraction, hedging_round
    >>> round(contraction(hedging_round(0.5), Problems(1, L=1.0, mu=0.25)).upper, 4)
    0.4444
    """
    rho, number = checked_step("hedging_round: rho", rho), checked_sampled("hedging_round", sampled)

    def update(problem: Oracle, s: tuple[Any, ...]) -> list[Any]:
        z, new = problem.mean(s), list(s)
        for c in participants(problem, number):
            new[c.index] = s[c.index] + c.prox(2.0 * z - s[c.index], 1.0 / rho) - z
        return new

    return Round(update, shared=0, per_client=1, observed=0)


def fedlin_round(step_size: float, local_steps: int, momentum: float = 0.0) -> Round:
    """Return a round of FedLin, corrected local steps from x and then the mean; with momentum: states x^t, and x^{t-1}.

    Parameters
    ----------
    step_size, local_steps
        As for `fedlin`.
    momentum : float
        At the server: the factor of its last move.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive, local_steps below 1, or momentum not finite.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, contraction, fedlin_round
    >>> round(contraction(fedlin_round(0.5, 1), Problems(2, L=1.0, mu=0.5)).upper, 4)  # (1 - 0.25)^2
    0.5625
    """
    eta, beta = checked_step("fedlin_round: step_size", step_size), real("fedlin_round: momentum", momentum)
    tau = whole("fedlin_round: local_steps", local_steps, low=1)

    def update(problem: Oracle, s: tuple[Any, ...]) -> list[Any]:
        x = fedlin_step(problem, s[0], eta, tau)
        return [x + beta * (s[0] - s[1]), s[0]] if beta else [x]

    return Round(update, shared=2 if beta else 1)


def scaffold_round(
    step_size: float, local_steps: int, option: int = 2, server_step: float = 1.0, sampled: int | None = None
) -> Round:
    """Return a round of SCAFFOLD: states x, then c_i of every client.

    Parameters
    ----------
    step_size, local_steps, option, server_step, sampled
        As for `scaffold`.

    Raises
    ------
    ValueError, TypeError
        If a step is not positive, local_steps or sampled below 1, or option neither 1 nor 2.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import scaffold_round
    >>> round = scaffold_round(0.25, local_steps=2)
    >>> round.shared, round.per_client  # x, and c_i of every client
    (1, 1)
    """
    eta, eta_g = (
        checked_step("scaffold_round: step_size", step_size),
        checked_step("scaffold_round: server_step", server_step),
    )
    K = whole("scaffold_round: local_steps", local_steps, low=1)
    option = whole("scaffold_round: option", option, low=1, high=2)
    number = checked_sampled("scaffold_round", sampled)

    def update(problem: Oracle, s: tuple[Any, ...]) -> list[Any]:
        controls = dict(enumerate(s[1:]))
        clients = participants(problem, number)
        x, c_i = scaffold_step(problem, clients, s[0], controls, eta, K, option, eta_g)
        return [x, *c_i.values()]

    return Round(update, per_client=1)
