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
from fedconvex.theory.worst_case.rates import Round


def _size(who: str, step: Any) -> float:
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

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, heavy_ball, worst_case
    >>> round(worst_case(heavy_ball(1.0, 0.2, 2), Problems(), "last").value, 4)  # without momentum 0.1
    0.0926
    """
    eta, beta = _size("heavy_ball: step_size", step_size), real("heavy_ball: momentum", momentum)
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

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, accelerated, worst_case
    >>> round(worst_case(accelerated(1.0, 2), Problems(), "last").value, 4)
    0.1
    """
    eta, mu = _size("accelerated: step_size", step_size), real("accelerated: mu", mu, low=0.0)
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

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Problems, fedavg, worst_case
    >>> found = worst_case(fedavg(0.25, 2, 1), Problems(2, heterogeneity=AtOptimum(0.5)), "shadow")
    >>> round(found.value, 6)
    0.286852
    """
    eta, tau = _size("fedavg: step_size", step_size), whole("fedavg: local_steps", local_steps, low=1)
    T = whole("fedavg: rounds", rounds, low=1)
    number = _sampled("fedavg", sampled)
    noisy = flag("fedavg: noisy", noisy)

    def method(problem: Oracle) -> Iterates:
        x, out = problem.start, Iterates([], [])
        for _ in range(T):
            if tau == 1 and number is None and not noisy:
                x = x - eta * problem.gradient(x)
                out.shadow.append(x)
            else:
                clients = _participants(problem, number)
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


def _sampled(who: str, sampled: int | None) -> int | None:
    """Return how many clients are sampled, or None for all."""
    return None if sampled is None else whole(f"{who}: sampled", sampled, low=1)


def _participants(problem: Oracle, sampled: int | None) -> Sequence[Client]:
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

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Problems, scaffold, worst_case
    >>> method = scaffold(0.5, 2, 1, first_controls="gradients")
    >>> [round(worst_case(method, Problems(2, heterogeneity=AtOptimum(z)), "last").value, 3) for z in (0, 5)]
    [0.167, 0.167]
    """
    eta, eta_g = _size("scaffold: step_size", step_size), _size("scaffold: server_step", server_step)
    K, T = whole("scaffold: local_steps", local_steps, low=1), whole("scaffold: rounds", rounds, low=1)
    option = whole("scaffold: option", option, low=1, high=2)
    number = _sampled("scaffold", sampled)
    among("scaffold: first_controls", first_controls, ("zero", "gradients"))

    def method(problem: Oracle) -> list[Any]:
        x, out = problem.start, []
        known = first_controls == "gradients"
        c_i = {c.index: c.gradient(x) if known else 0.0 * x for c in problem.clients}
        for _ in range(T):
            x, c_i = _scaffold_round(problem, _participants(problem, number), x, c_i, eta, K, option, eta_g)
            out.append(x)
        return out

    return method


def _scaffold_round(
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

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Problems, fedlin, worst_case
    >>> round(worst_case(fedlin(0.25, 2, 1), Problems(2, heterogeneity=AtOptimum(1.0)), "last").value, 4)
    0.25
    """
    eta, tau = _size("fedlin: step_size", step_size), whole("fedlin: local_steps", local_steps, low=1)
    T = whole("fedlin: rounds", rounds, low=1)

    def method(problem: Oracle) -> list[Any]:
        out = [problem.start]
        for _ in range(T):
            out.append(_fedlin_round(problem, out[-1], eta, tau))
        return out[1:]

    return method


def _fedlin_round(problem: Oracle, x: Any, eta: float, tau: int) -> Any:
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

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Problems, fedprox, worst_case
    >>> round(worst_case(fedprox(1.0, 1), Problems(2, heterogeneity=AtOptimum(0.0)), "last").value, 4)
    0.1667
    """
    step = 1.0 / _size("fedprox: proximal_mu", proximal_mu)
    T = whole("fedprox: rounds", rounds, low=1)
    number = _sampled("fedprox", sampled)

    def method(problem: Oracle) -> list[Any]:
        out = [problem.start]
        for _ in range(T):
            clients = _participants(problem, number)
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

    Examples
    --------
    >>> from fedconvex.theory.worst_case import AtOptimum, Problems, hedging, worst_case
    >>> round(worst_case(hedging(1.0, 2), Problems(2, heterogeneity=AtOptimum(0.5)), "last").value, 4)
    0.1205
    """
    rho = _size("hedging: rho", rho)
    T = whole("hedging: rounds", rounds, low=1)
    number = _sampled("hedging", sampled)

    def method(problem: Oracle) -> list[Any]:
        z = problem.start
        v = dict.fromkeys(range(len(problem.p)), z)  # v_k = x_k + y_k/rho, whose mean is z
        out = []
        for t in range(T):
            for client in problem.clients if t == 0 else _participants(problem, number):
                i = client.index
                v[i] = v[i] + client.prox(2.0 * z - v[i], 1.0 / rho) - z
            z = sum(float(p) * v[i] for i, p in enumerate(problem.p))
            out.append(z)
        return out

    return method


def gradient_descent_round(step_size: float, momentum: float = 0.0) -> Round:
    """Return a step of gradient descent; with momentum, of the heavy ball: states x^t, and x^{t-1}.

    Parameters
    ----------
    step_size : float
        Positive.
    momentum : float
        Of the heavy ball; 0 for gradient descent.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, contraction, gradient_descent_round
    >>> rate = contraction(gradient_descent_round(1.0), Problems(L=1.5, mu=0.5))
    >>> round(rate.upper, 3), round(rate.lower, 3)  # ((L - mu)/(L + mu))^2
    (0.25, 0.25)
    """
    eta = _size("gradient_descent_round: step_size", step_size)
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

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, contraction, fedavg_round
    >>> round(contraction(fedavg_round(0.5, 2), Problems(2, L=1.0, mu=0.5)).upper, 4)  # (1 - 0.25)^4
    0.3164
    """
    eta, tau = _size("fedavg_round: step_size", step_size), whole("fedavg_round: local_steps", local_steps, low=1)
    number = _sampled("fedavg_round", sampled)

    def update(problem: Oracle, s: tuple[Any, ...]) -> list[Any]:
        clients, y = _participants(problem, number), []
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

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, contraction, fedprox_round
    >>> round(contraction(fedprox_round(0.5), Problems(1, L=1.0, mu=0.5)).upper, 4)  # (1 + mu/proximal_mu)^-2
    0.25
    """
    step, number = 1.0 / _size("fedprox_round: proximal_mu", proximal_mu), _sampled("fedprox_round", sampled)

    def update(problem: Oracle, s: tuple[Any, ...]) -> list[Any]:
        clients = _participants(problem, number)
        return [problem.mean([c.prox(s[0], step) for c in clients], clients)]

    return Round(update, observed=0)


def hedging_round(rho: float, sampled: int | None = None) -> Round:
    """Return a round of progressive hedging: states v_k = x_k + y_k/rho, of which the server keeps the mean.

    Parameters
    ----------
    rho, sampled
        As for `hedging`.

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, contraction, hedging_round
    >>> round(contraction(hedging_round(0.5), Problems(1, L=1.0, mu=0.25)).upper, 4)
    0.4444
    """
    rho, number = _size("hedging_round: rho", rho), _sampled("hedging_round", sampled)

    def update(problem: Oracle, s: tuple[Any, ...]) -> list[Any]:
        z, new = problem.mean(s), list(s)
        for c in _participants(problem, number):
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

    Examples
    --------
    >>> from fedconvex.theory.worst_case import Problems, contraction, fedlin_round
    >>> round(contraction(fedlin_round(0.5, 1), Problems(2, L=1.0, mu=0.5)).upper, 4)  # (1 - 0.25)^2
    0.5625
    """
    eta, beta = _size("fedlin_round: step_size", step_size), real("fedlin_round: momentum", momentum)
    tau = whole("fedlin_round: local_steps", local_steps, low=1)

    def update(problem: Oracle, s: tuple[Any, ...]) -> list[Any]:
        x = _fedlin_round(problem, s[0], eta, tau)
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

    Examples
    --------
    >>> from fedconvex.theory.worst_case import scaffold_round
    >>> round = scaffold_round(0.25, local_steps=2)
    >>> round.shared, round.per_client  # x, and c_i of every client
    (1, 1)
    """
    eta, eta_g = _size("scaffold_round: step_size", step_size), _size("scaffold_round: server_step", server_step)
    K = whole("scaffold_round: local_steps", local_steps, low=1)
    option = whole("scaffold_round: option", option, low=1, high=2)
    number = _sampled("scaffold_round", sampled)

    def update(problem: Oracle, s: tuple[Any, ...]) -> list[Any]:
        controls = dict(enumerate(s[1:]))
        clients = _participants(problem, number)
        x, c_i = _scaffold_round(problem, clients, s[0], controls, eta, K, option, eta_g)
        return [x, *c_i.values()]

    return Round(update, per_client=1)
