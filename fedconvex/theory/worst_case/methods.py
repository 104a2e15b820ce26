"""Methods as pseudo-code over the points of a problem that is not known yet.

Each function returns a method: a function of an `Oracle` that returns the models after each round. A method of one's
own is written in the same way.

Source
------
McMahan et al. (2017) for FedAvg; Karimireddy et al. (2020), Algorithm 1, for SCAFFOLD; Li et al. (2020), Algorithm 2,
for FedProx; Mitra et al. (2021), Algorithm 1, for FedLin; Rockafellar and Wets (1991) for progressive hedging; Polyak
(1964) for the heavy ball; Nesterov (2018), Section 2.2.1, and Beck and Teboulle (2009) for accelerated gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedconvex._check import among, flag, real, whole
from fedconvex.theory.worst_case.oracles import Client, Iterates, Method, Oracle


def checked_step(who: str, step: Any) -> float:
    """Return a positive number."""
    return real(who, step, low=0.0, strict=True)


def gradient_descent(step_size: float, rounds: int) -> Method:
    """Return gradient descent x <- x - step_size grad F(x) as a method of the programme: FedSGD with full gradients.

    Parameters
    ----------
    step_size : float
        Positive; of the order of 1/L.
    rounds : int
        Steps, at least 1.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, gradient_descent, worst_case
    >>> round(worst_case(gradient_descent(1.0, 1), Problems(L=1.0, D=1.0), "last").value, 4)  # L D^2/(4 rounds + 2)
    0.1667
    """
    return fedavg(step_size, 1, rounds)


def heavy_ball(step_size: float, momentum: float, rounds: int) -> Method:
    """Return Polyak's heavy ball: x^{t+1} = x^t - step_size grad F(x^t) + momentum (x^t - x^{t-1}), x^{-1} = x^0.

    Parameters
    ----------
    step_size, momentum : float
        The step, positive, and the factor of the last move.
    rounds : int
        Steps, at least 1.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive, momentum not finite, or rounds below 1.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, heavy_ball, worst_case
    >>> round(worst_case(heavy_ball(1.0, 0.2, 2), Problems(), "last").value, 4)  # without momentum 0.1
    0.0926
    """
    eta, beta = checked_step("heavy_ball: step_size", step_size), real("heavy_ball: momentum", momentum)
    T = whole("heavy_ball: rounds", rounds, low=1)

    def method(problem: Oracle) -> list[Any]:
        x = [problem.start, problem.start]
        for _ in range(T):
            x.append(x[-1] - eta * problem.gradient(x[-1]) + beta * (x[-1] - x[-2]))
        return x[2:]

    return method


def accelerated(step_size: float, rounds: int, mu: float = 0.0) -> Method:
    """Return Nesterov's method: w <- v - step_size grad F(v), v <- w + beta (w - its last value).

    Parameters
    ----------
    step_size, rounds
        As for `gradient_descent`.
    mu : float
        Convexity that beta goes by: (1 - (step_size mu)^(1/2))/(1 + (step_size mu)^(1/2)); where it is 0 beta grows.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive, mu negative, or rounds below 1.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, accelerated, worst_case
    >>> round(worst_case(accelerated(1.0, 2), Problems(), "last").value, 4)
    0.1
    """
    eta, mu = checked_step("accelerated: step_size", step_size), real("accelerated: mu", mu, low=0.0)
    T, root = whole("accelerated: rounds", rounds, low=1), math.sqrt(eta * mu)

    def method(problem: Oracle) -> list[Any]:
        w = v = problem.start
        s, out = 1.0, []
        for _ in range(T):
            new = v - eta * problem.gradient(v)
            later = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * s * s))
            beta = (1.0 - root) / (1.0 + root) if mu > 0.0 else (s - 1.0) / later
            w, v, s = new, new + beta * (new - w), later
            out.append(w)
        return out

    return method


def fedavg(step_size: float, local_steps: int, rounds: int, sampled: int | None = None, noisy: bool = False) -> Method:
    """Return FedAvg, local gradient steps and then the mean; with ``sampled`` clients a round, or with noisy gradients.

    Parameters
    ----------
    step_size : float
    local_steps, rounds : int
    sampled : int, optional
        Clients per round, drawn uniformly; everybody if not given.
    noisy : bool
        Whether gradients carry the noise of the class.

    Raises
    ------
    ValueError, TypeError
        If a step is not positive, or local_steps, rounds or sampled is below 1.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Problems, fedavg, worst_case
    >>> found = worst_case(fedavg(0.25, 2, 1), Problems(2, heterogeneity=AtOptimum(0.5)), "shadow")
    >>> round(found.value, 6)
    0.286852
    """
    eta, tau = checked_step("fedavg: step_size", step_size), whole("fedavg: local_steps", local_steps, low=1)
    T = whole("fedavg: rounds", rounds, low=1)
    number = checked_sampled("fedavg", sampled)
    noisy = flag("fedavg: noisy", noisy)

    def method(problem: Oracle) -> Iterates:
        x, out = problem.start, Iterates([], [])
        for _ in range(T):
            if tau == 1 and number is None and not noisy:
                x = x - eta * problem.gradient(x)
                out.shadow.append(x)
            else:
                clients = participants(problem, number)
                y = [x] * len(clients)
                for _ in range(tau):
                    y = [
                        z - eta * (c.noisy_gradient(z) if noisy else c.gradient(z))
                        for c, z in zip(clients, y, strict=True)
                    ]
                    x = problem.mean(y, clients)
                    out.shadow.append(x)
            out.rounds.append(x)
        return out

    return method


def checked_sampled(who: str, sampled: int | None) -> int | None:
    """Return how many clients are sampled, or None for all."""
    return None if sampled is None else whole(f"{who}: sampled", sampled, low=1)


def participants(problem: Oracle, sampled: int | None) -> Sequence[Client]:
    """Return all clients, or a sample."""
    return problem.clients if sampled is None else problem.sample(sampled)


def scaffold(
    step_size: float,
    local_steps: int,
    rounds: int,
    *,
    option: int = 2,
    server_step: float = 1.0,
    sampled: int | None = None,
    first_controls: str = "zero",
) -> Method:
    """Return SCAFFOLD (Karimireddy et al. 2020), option I or II, with c_i = 0 at first or c_i = grad F_i(x^0).

    Parameters
    ----------
    step_size : float
    local_steps, rounds : int
    option : int
        1 or 2: c_i <- grad F_i(x), or c_i - c + (x - y_i)/(local_steps step_size).
    server_step : float
    sampled : int, optional
        Clients per round, drawn uniformly; everybody if not given.
    first_controls : str
        "zero" or "gradients".

    Raises
    ------
    ValueError, TypeError
        If a step is not positive, local_steps, rounds or sampled below 1, option neither 1 nor 2, or first_controls
        unknown.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Problems, scaffold, worst_case
    >>> method = scaffold(0.5, 2, 1, first_controls="gradients")
    >>> [round(worst_case(method, Problems(2, heterogeneity=AtOptimum(z)), "last").value, 3) for z in (0, 5)]
    [0.167, 0.167]
    """
    eta, eta_g = checked_step("scaffold: step_size", step_size), checked_step("scaffold: server_step", server_step)
    K, T = whole("scaffold: local_steps", local_steps, low=1), whole("scaffold: rounds", rounds, low=1)
    option = whole("scaffold: option", option, low=1, high=2)
    number = checked_sampled("scaffold", sampled)
    among("scaffold: first_controls", first_controls, ("zero", "gradients"))

    def method(problem: Oracle) -> list[Any]:
        x, out = problem.start, []
        known = first_controls == "gradients"
        c_i = {c.index: c.gradient(x) if known else 0.0 * x for c in problem.clients}
        for _ in range(T):
            x, c_i = scaffold_step(problem, participants(problem, number), x, c_i, eta, K, option, eta_g)
            out.append(x)
        return out

    return method


def scaffold_step(
    problem: Oracle,
    clients: Sequence[Client],
    x: Any,
    c_i: dict[int, Any],
    eta: float,
    K: int,
    option: int,
    eta_g: float,
) -> tuple[Any, dict[int, Any]]:
    """Return the server's model and all control variates after a round."""
    c = sum(float(p) * c_i[i] for i, p in enumerate(problem.p))
    share, moved, new = len(problem.p) / len(clients), 0.0 * x, dict(c_i)
    for client in clients:
        y, i = x, client.index
        for _ in range(K):
            y = y - eta * (client.gradient(y) - c_i[i] + c)
        new[i] = client.gradient(x) if option == 1 else c_i[i] - c + (x - y) / (K * eta)
        moved = moved + share * client.weight * (y - x)
    return x + eta_g * moved, new


def fedlin(step_size: float, local_steps: int, rounds: int) -> Method:
    """Return FedLin: local steps y_i <- y_i - step_size (grad F_i(y_i) - grad F_i(x) + grad F(x)), then the mean.

    Parameters
    ----------
    step_size, local_steps, rounds
        As for `fedavg`.

    Raises
    ------
    ValueError, TypeError
        If step_size is not positive, or local_steps or rounds is below 1.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Problems, fedlin, worst_case
    >>> round(worst_case(fedlin(0.25, 2, 1), Problems(2, heterogeneity=AtOptimum(1.0)), "last").value, 4)
    0.25
    """
    eta, tau = checked_step("fedlin: step_size", step_size), whole("fedlin: local_steps", local_steps, low=1)
    T = whole("fedlin: rounds", rounds, low=1)

    def method(problem: Oracle) -> list[Any]:
        out = [problem.start]
        for _ in range(T):
            out.append(fedlin_step(problem, out[-1], eta, tau))
        return out[1:]

    return method


def fedlin_step(problem: Oracle, x: Any, eta: float, tau: int) -> Any:
    """Return what a round of FedLin makes of x."""
    full, y = problem.gradient(x), []
    for client in problem.clients:
        z = x
        for _ in range(tau):
            z = z - eta * (client.gradient(z) - client.gradient(x) + full)
        y.append(z)
    return problem.mean(y)


def fedprox(proximal_mu: float, rounds: int, sampled: int | None = None) -> Method:
    """Return FedProx with exact local minimisers: x <- mean over clients of argmin F_i + (proximal_mu/2)‖. - x‖^2.

    Parameters
    ----------
    proximal_mu : float
        Weight of the proximal term, positive, in the units of L.
    rounds, sampled
        As for `fedavg`.

    Raises
    ------
    ValueError, TypeError
        If proximal_mu is not positive, or rounds or sampled is below 1.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Problems, fedprox, worst_case
    >>> round(worst_case(fedprox(1.0, 1), Problems(2, heterogeneity=AtOptimum(0.0)), "last").value, 4)
    0.1667
    """
    step = 1.0 / checked_step("fedprox: proximal_mu", proximal_mu)
    T = whole("fedprox: rounds", rounds, low=1)
    number = checked_sampled("fedprox", sampled)

    def method(problem: Oracle) -> list[Any]:
        out = [problem.start]
        for _ in range(T):
            clients = participants(problem, number)
            out.append(problem.mean([c.prox(out[-1], step) for c in clients], clients))
        return out[1:]

    return method


def hedging(rho: float, rounds: int, sampled: int | None = None) -> Method:
    """Return progressive hedging from x^0 with y_k = 0, exact; with ``sampled`` clients from the second round on.

    The iterates are z, the server's model after each round.

    Parameters
    ----------
    rho : float
        Penalty, positive, in the units of L.
    rounds, sampled
        As for `fedavg`.

    Raises
    ------
    ValueError, TypeError
        If rho is not positive, or rounds or sampled is below 1.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Problems, hedging, worst_case
    >>> round(worst_case(hedging(1.0, 2), Problems(2, heterogeneity=AtOptimum(0.5)), "last").value, 4)
    0.1205
    """
    rho = checked_step("hedging: rho", rho)
    T = whole("hedging: rounds", rounds, low=1)
    number = checked_sampled("hedging", sampled)

    def method(problem: Oracle) -> list[Any]:
        z = problem.start
        v = dict.fromkeys(range(len(problem.p)), z)  # v_k = x_k + y_k/rho, whose mean is z
        out = []
        for t in range(T):
            for client in problem.clients if t == 0 else participants(problem, number):
                i = client.index
                v[i] = v[i] + client.prox(2.0 * z - v[i], 1.0 / rho) - z
            z = sum(float(p) * v[i] for i, p in enumerate(problem.p))
            out.append(z)
        return out

    return method
