"""Draw the figures of docs/theory into docs/figures: ``python docs/figures.py [NAME ...]``.

Every figure is drawn from the library's own bounds, exact moments, exact worst cases and runs; the same sources give
the same bytes. All of them take about a minute on one core.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared, iterate
from fedconvex.constants import Constants
from fedconvex.datasets import linear_federation, logistic_federation
from fedconvex.methods import DynamicFedAvg
from fedconvex.methods.parts.participation import ProportionalSampling
from fedconvex.methods.parts.step_sizes import Decay
from fedconvex.papers.dynamic_msd import L as PARTICIPANTS
from fedconvex.papers.dynamic_msd import agents
from fedconvex.papers.style import COLOURS, blank
from fedconvex.report.plots import save_figure
from fedconvex.theorems.dynamic_msd import msd_paper, msd_refined, optimal_step, small_step
from fedconvex.theorems.fedavg_convex import fedavg_convex, fedavg_convex_step, fedavg_convex_tuned
from fedconvex.theorems.fedavg_refined import (
    fedavg_at_optimum,
    fedavg_at_optimum_sharp,
    fedavg_refined,
    fedavg_refined_sharp,
)
from fedconvex.theorems.fedavg_strongly_convex import (
    fedavg_schedule,
    fedavg_scheme_one,
    fedavg_scheme_two,
    fedavg_strongly_convex,
)
from fedconvex.theorems.parts.tracking import tracking_constants
from fedconvex.theorems.weight_divergence import class_shares, divergence_convex, divergence_zhao, gradient_gaps
from fedconvex.theory.agnostic_example import domain_losses, uniform_excess
from fedconvex.theory.bound import AssumptionError
from fedconvex.theory.moments import Moments
from fedconvex.theory.worst_case import (
    AtOptimum,
    Problems,
    UniformUpper,
    closed_form_homogeneous,
    contraction,
    fedavg,
    fedlin,
    fedlin_round,
    fedprox_round,
    hard_instances,
    hedging_round,
    scaffold,
    scaffold_round,
    uniform_bracket,
    worst_case,
)

FOLDER = Path(__file__).resolve().parent / "figures"
TRUE = {"color": "black", "linewidth": 1.8}  # what really happens
DASHED, DOTTED = (0, (5, 3)), (0, (1, 1.5))


def where(bound, *args, **settings):
    """Return a bound's value, NaN where the theorem does not apply."""
    try:
        return bound(*args, **settings).value
    except AssumptionError:
        return np.nan


def shadow_gaps(method, problem, rounds, trajectories):
    """Return the running average over rounds of F(wbar^{t,k}) - F*, (rounds, trajectories)."""
    best, seen = problem.solve().value, []
    follow = replace(method, shadow=True)
    for t, state in iterate(follow, problem, rounds=rounds, trajectories=trajectories):
        if t:
            seen.append(follow.observe(problem, state)["shadow_value"] - best)
    return np.cumsum(seen, axis=0) / np.arange(1, rounds + 1)[:, None]


def measured(axis, x, values, label, color="black"):
    """Draw means with bars of four standard errors, values (len(x), trajectories)."""
    mean, error = values.mean(axis=1), values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
    axis.errorbar(x, mean, 4 * error, color=color, linewidth=1.5, marker="o", markersize=3, capsize=2, label=label)


def finish(axes, xlabels, ylabels, titles=(), places=("best", "best")):
    """Log axes, labels, and a legend in each panel."""
    for i, axis in enumerate(axes):
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(xlabels[i])
        axis.set_ylabel(ylabels[i])
        if titles:
            axis.set_title(titles[i], fontsize=9, loc="left")
        axis.legend(frameon=False, fontsize=7.5, loc=places[i])


# ---------------------------------------------------------------- one function a page


def fedavg_convex_figure():
    """Logistic regression with mini-batches: (15) and its terms over rounds; tuned steps over local steps."""
    problem = Problem(
        logistic_federation(n_clients=10, n_features=5, model_shift=1.0, seed=0).federation, Logistic(), 0.1
    )
    B, tau, rounds = 10, 5, 100
    c = problem.constants(batch_size=B)
    figure, (left, right) = blank(2)
    T = np.unique(np.geomspace(1, 1000, 40).astype(int))
    eta = fedavg_convex_step(c, local_steps=tau, rounds=rounds)
    runs = shadow_gaps(FedAvg(step_size=eta, local_steps=tau, batch_size=B), problem, int(T[-1]), 64)
    some = T[::3]
    measured(left, some, runs[some - 1], "measured")
    bounds = [fedavg_convex(c, step_size=eta, local_steps=tau, rounds=int(t)) for t in T]
    left.plot(T, [b.value for b in bounds], color=COLOURS[1], linewidth=1.8, label="bound (15)")
    for colour, (name, first) in zip(COLOURS[2:], bounds[0].terms.items(), strict=False):
        left.plot(T, [b.terms[name] for b in bounds], color=colour, linestyle=DOTTED)
        x, y = {"start": (45, 1.1 * first / 45), "heterogeneity drift": (12, 0.63 * first)}.get(name, (1, 1.12 * first))
        left.annotate(name, (x, y), fontsize=7.5, color=colour)
    taus, values = (1, 2, 4, 8, 16, 32), {"(15)": [], "(17)": [], "(16)": [], "1/4L": []}
    for t in taus:
        step = fedavg_convex_step(c, local_steps=t, rounds=rounds)
        for name, size in (("(16)", step), ("1/4L", 0.25 / c.L)):
            method = FedAvg(step_size=size, local_steps=t, batch_size=B)
            values[name].append(shadow_gaps(method, problem, rounds, 64)[-1])
        values["(15)"].append(fedavg_convex(c, step_size=step, local_steps=t, rounds=rounds).value)
        values["(17)"].append(fedavg_convex_tuned(c, local_steps=t, rounds=rounds).value)
    right.plot(taus, values["(17)"], color=COLOURS[0], linestyle=DASHED, label="tuned bound (17)")
    right.plot(taus, values["(15)"], color=COLOURS[1], linewidth=1.8, label="bound (15) at the step (16)")
    measured(right, taus, np.array(values["(16)"]), "measured at the step (16)")
    measured(right, taus, np.array(values["1/4L"]), "measured at η = 1/(4L)", color=COLOURS[2])
    gap = "mean suboptimality of the shadow models"
    finish(
        (left, right),
        ("rounds $T$", "local steps $\\tau$"),
        (gap, gap),
        (f"τ = {tau}, η of (16) for T = {rounds} (dotted: terms of the bound)", f"T = {rounds}"),
        places=("upper right", (0.42, 0.56)),
    )
    right.set_ylim(2e-4, 4)
    return figure


def fedavg_refined_figure():
    """Least squares: R1, R1# with equal Hessians, R2, R2# with unequal ones and mini-batches, beside exact values."""
    figure, (left, right) = blank(2)
    tau, T = 5, 20
    data = {"n_clients": 10, "n_features": 5, "model_shift": 1.0, "seed": 0}
    equal = Problem(linear_federation(**data).federation, Squared(), weights="uniform")
    c = equal.constants()
    steps = np.append(np.geomspace(0.003, 0.7, 36), np.linspace(0.72, 1.0, 15) * (1 - 1e-9))

    def exact(problem, eta, B):
        moments = Moments(problem, step_size=eta, local_steps=tau, batch_size=B)
        return moments.shadow(T).average

    left.plot(steps, [exact(equal, s / c.L, None) for s in steps], **TRUE, label="exact")
    for bound, name, colour, style in (
        (fedavg_convex, "(15)", COLOURS[1], DOTTED),
        (fedavg_refined, "R1", COLOURS[0], DASHED),
        (fedavg_refined_sharp, "R1#", COLOURS[2], "-"),
    ):
        values = [where(bound, c, step_size=s / c.L, local_steps=tau, rounds=T) for s in steps]
        left.plot(steps, values, color=colour, linestyle=style, label=name)
    unequal = Problem(linear_federation(**data, feature_shift=0.5).federation, Squared(), weights="uniform")
    B = 10
    c = unequal.constants(batch_size=B)
    n = int(unequal.federation.sizes[0])
    phi = (n - B) / ((n - 1) * B)
    right.plot(steps, [exact(unequal, s / c.L, B) for s in steps], **TRUE, label="exact expectation")
    for bound, name, colour, style in (
        (fedavg_at_optimum, "R2", COLOURS[0], DASHED),
        (fedavg_at_optimum_sharp, "R2#", COLOURS[2], "-"),
    ):
        values = [where(bound, c, step_size=s / c.L, local_steps=tau, rounds=T, noise_factor=phi) for s in steps]
        right.plot(steps, values, color=colour, linestyle=style, label=name)
    left.set_ylim(5e-4, 2e2)
    gap = "mean suboptimality of the shadow models"
    finish(
        (left, right),
        ("step size $\\eta L$",) * 2,
        (gap, gap),
        ("equal Hessians, full gradients", f"unequal Hessians, batches of {B}"),
    )
    return figure


def fedavg_strongly_convex_figure():
    """Least squares with decaying steps: exact expected gaps and bounds, over local steps and over sampling."""
    figure, (left, right) = blank(2, sharey=True)
    data = linear_federation(n_clients=10, n_features=5, model_shift=1.0, feature_shift=0.3, condition=3.0, seed=0)
    problem, B = Problem(data.federation, Squared(), weights="uniform"), 5

    def curves(E, steps, participation, bound):
        c = problem.constants(batch_size=B)
        method = FedAvg(
            step_size=Decay(*fedavg_schedule(c, local_steps=E)),
            local_steps=E,
            batch_size=B,
            participation=participation,
        )
        moments, rounds = Moments.of(method, problem), steps // E
        along = moments.gradients(rounds)
        c = replace(c, G2=along.G2, sigma2_k=along.sigma2_k, sigma2=float(along.sigma2_k.max()))
        r = np.unique(np.geomspace(1, rounds, 40).astype(int))
        return r * E, moments.run(rounds).suboptimality[r], [bound(c, E, int(i)).value for i in r]

    def everybody(c, E, r):
        return fedavg_strongly_convex(c, local_steps=E, rounds=r)

    some = 3
    for axis, cases in (
        (left, [(f"E = {E}", E, None, everybody) for E in (1, 5, 20)]),
        (
            right,
            [
                ("everybody", 5, None, everybody),
                (
                    "scheme I: 3 of 10, with replacement",
                    5,
                    ProportionalSampling(some),
                    lambda c, E, r: fedavg_scheme_one(c, local_steps=E, rounds=r, participants=some),
                ),
                (
                    "scheme II: 3 of 10, without",
                    5,
                    some,
                    lambda c, E, r: fedavg_scheme_two(c, local_steps=E, rounds=r, participants=some),
                ),
            ],
        ),
    ):
        for colour, (name, E, who, bound) in zip(COLOURS, cases, strict=False):
            t, gap, limit = curves(E, 4000, who, bound)
            axis.plot(t, gap, color=colour, linewidth=1.8, label=name)
            axis.plot(t, limit, color=colour, linewidth=1.2, linestyle=DOTTED)
    finish(
        (left, right),
        ("local steps $t$",) * 2,
        ("expected suboptimality $\\mathrm{E}\\,F(w_t) - F^*$", ""),
        ("everybody takes part (dotted: bounds)", "E = 5 (dotted: bounds)"),
    )
    return figure


def dynamic_msd_figure():
    """Steady-state deviations over the step size, exact, to first order, and bounded, for one and several epochs."""
    figure, axes = blank(2, sharey=True)
    crowd, drift2 = agents(0), 1e-4
    problem = crowd.problem
    c, Q = tracking_constants(problem), drift2 / problem.federation.d * np.eye(problem.federation.d)
    for axis, steps, title in (
        (axes[0], np.ones_like(crowd.local_steps), "one local step, $E_k = 1$"),
        (axes[1], crowd.local_steps, "$E_k$ between 1 and 5"),
    ):
        settings = {"participation": PARTICIPANTS, "batch_size": crowd.batch_size, "local_steps": steps}
        mu = np.geomspace(3e-4, 0.3, 46)
        exact = []
        for step in mu:
            method = DynamicFedAvg(step_size=float(step), **settings)
            exact.append(Moments.of(method, problem).steady_state(drift=Q).deviation)
        first = [small_step(c, step_size=float(s), drift_covariance=Q, **settings).value for s in mu]
        axis.plot(mu, exact, **TRUE, label="exact")
        axis.plot(mu, first, color=COLOURS[0], linestyle=DASHED, label="first order in μ (not a bound)")
        for bound, name, colour, style in (
            (msd_refined, "bound, version R", COLOURS[2], "-"),
            (msd_paper, "bound, version P", COLOURS[1], DOTTED),
        ):
            values = [where(bound, c, step_size=float(s), drift2=drift2, **settings) for s in mu]
            axis.plot(mu, values, color=colour, linestyle=style, label=name)
        best = optimal_step(c, drift_covariance=Q, **settings)
        axis.axvline(best, color=COLOURS[0], linewidth=0.8, alpha=0.6)
        axis.set_title(title, fontsize=9, loc="left")
    finish(axes, ("step size μ",) * 2, ("steady-state MSD", ""))
    axes[0].set_ylim(5e-3, 20)
    return figure


def weight_divergence_figure():
    """Logistic regression, clients that mix the same two classes: relative divergence over rounds and local steps."""
    rng = np.random.default_rng(0)
    pools = [rng.standard_normal((30, 5)) + s * np.array([1.0, 0.5, 0.0, 0.0, 0.0]) for s in (-1, 1)]
    mixes, parts = [(4, 0), (3, 1), (1, 3), (0, 4)], []
    for copies in mixes:
        X = np.vstack([pools[y] for y in (0, 1) for _ in range(copies[y])])
        parts.append((X, np.repeat([-1.0, 1.0], [30 * copies[0], 30 * copies[1]])))
    problem = Problem(Federation.from_clients(parts), Logistic(), 0.1)
    alone = [Federation.from_clients([(X, np.full(30, s))]) for X, s in zip(pools, (-1.0, 1.0), strict=True)]
    each = [Problem(federation, Logistic(), 0.1) for federation in alone]
    c, shares = problem.constants(), class_shares(problem)
    lipschitz = np.array([p.constants().L for p in each])
    eta = 1.0 / c.L

    def rounds(T, number):
        """Yield (‖w_f - w_c‖, convex bound, Zhao's bound)/‖w_c‖ after each round."""
        method, w_c = FedAvg(step_size=eta, local_steps=T), np.zeros(5)
        convex = zhao = 0.0
        runs = iterate(method, problem, rounds=number)
        next(runs)
        for _, state in runs:
            gaps, norms = gradient_gaps(problem, w_c, step_size=eta, local_steps=T), []
            for _ in range(T):
                norms.append(max(np.linalg.norm(p.gradient(w_c)) for p in each))
                w_c = w_c - eta * problem.gradient(w_c)
            at = {"step_size": eta, "local_steps": T}
            convex = divergence_convex(c, gaps, **at, previous=convex).value
            zhao = divergence_zhao(c, shares, lipschitz, norms[:-1], **at, previous=zhao).value
            yield np.array([np.linalg.norm(state.w[0] - w_c), convex, zhao]) / np.linalg.norm(w_c)

    figure, (left, right) = blank(2)
    over_rounds = np.array(list(rounds(5, 30)))
    steps = np.arange(2, 31)
    over_steps = np.array([next(rounds(int(T), 1)) for T in steps])
    for axis, x, values in ((left, np.arange(1, 31), over_rounds), (right, steps, over_steps)):
        axis.plot(x, values[:, 0], **TRUE, label="divergence DC, exact")
        axis.plot(x, values[:, 1], color=COLOURS[2], label="convex bound")
        axis.plot(x, values[:, 2], color=COLOURS[1], linestyle=DOTTED, label="Zhao et al.")
    left.set_ylim(5e-4, 1e4)
    right.set_ylim(5e-3, 1e4)
    divergence = "$\\|w_f - w_c\\|\\,/\\,\\|w_c\\|$"
    finish(
        (left, right),
        ("rounds", "local steps $T$"),
        (divergence, divergence),
        ("five local steps a round", "after one round"),
        places=("center right", "center right"),
    )
    for axis in (left, right):
        axis.set_xscale("linear")
    return figure


def worst_case_figure():
    """Exact worst cases beside the bounds, over the step size and over the heterogeneity."""
    figure, (left, right) = blank(2)
    M, tau, T = 2, 2, 2

    def bracket(eta, zeta):
        return uniform_bracket(fedavg(eta, tau, T), Problems(M, heterogeneity=UniformUpper(zeta)), "shadow")

    def bounds(axis, x, settings):
        for bound, name, colour, style in (
            (fedavg_convex, "(15)", COLOURS[1], DOTTED),
            (fedavg_refined, "R1", COLOURS[0], DASHED),
            (fedavg_refined_sharp, "R1#", COLOURS[2], "-"),
        ):
            values = []
            for eta, zeta in settings:
                c = Constants(L=1.0, D=1.0, sigma2=0.0, zeta=float(zeta), K=M)
                values.append(where(bound, c, step_size=float(eta), local_steps=tau, rounds=T))
            axis.plot(x, values, color=colour, linestyle=style, label=name)

    zeta = 0.5
    eta = np.unique(
        np.concatenate([np.geomspace(0.02, 0.25, 12), np.geomspace(0.25, 1.6, 30), [0.97, 0.99, 1.0 - 1e-9]])
    )
    found = [bracket(float(e), zeta) for e in eta]
    left.fill_between(eta, [b.lower for b in found], [b.upper for b in found], color="0.6", linewidth=0)
    left.plot(eta, [b.upper for b in found], **TRUE, label="exact worst case")
    mild = eta[eta <= 1.5]
    closed = [closed_form_homogeneous(1.0, 1.0, float(e), tau, T).value for e in mild]
    left.plot(mild, closed, color="0.45", linewidth=1.0, linestyle=DASHED, label="exact, equal clients (ζ = 0)")
    bounds(left, eta, [(e, zeta) for e in eta])
    zetas = np.geomspace(0.03, 10, 24)
    found = [bracket(0.25, float(z)) for z in zetas]
    right.plot(zetas, [b.upper for b in found], **TRUE, label="exact worst case")
    bounds(right, zetas, [(0.25, z) for z in zetas])
    tuned = []
    for z in zetas:
        c = Constants(L=1.0, D=1.0, sigma2=0.0, zeta=float(z), K=M)
        tuned.append(fedavg_convex_tuned(c, local_steps=tau, rounds=T).value)
    right.plot(zetas, tuned, color=COLOURS[3], linestyle=(0, (6, 2, 1, 2)), label="(17), its own step")
    left.set_ylim(0.05, 20)
    worst = "mean suboptimality / ($L D^2$)"
    finish(
        (left, right),
        ("step size $\\eta L$", "heterogeneity $\\zeta/(LD)$"),
        (worst, worst),
        (f"M = τ = T = 2, ζ = {zeta} LD", "M = τ = T = 2, η = 1/(4L)"),
    )
    return figure


def agnostic_generalisation_figure():
    """Draw the log(2/sqrt 3) instance: both losses over q; agnostic loss of the minimiser of every mixture."""
    figure, (left, right) = blank(2)
    q = np.linspace(0.04, 0.8, 500)
    L = domain_losses(q)
    left.plot(q, L[:, 0], color=COLOURS[0], linestyle=DASHED)
    left.plot(q, L[:, 1], color=COLOURS[1], linestyle=DOTTED)
    left.plot(q, L.mean(axis=1), color=COLOURS[2], linewidth=1.2)
    left.plot(q, L.max(axis=1), **TRUE, zorder=1, alpha=0.35)
    names = (("$L_1$", 0.66, 1.02, 0), ("$L_2$", 0.075, 1.42, 1), ("uniform mixture", 0.13, 0.50, 2))
    for text, x, y, j in names:
        left.text(x, y, text, color=COLOURS[j], fontsize=8)
    left.text(0.135, 1.13, "max", fontsize=8, color="0.35")
    for x, marker, text, place in (
        (0.5, "o", "agnostic optimum\nlog 2", (0.45, 0.27)),
        (0.25, "s", "optimum of the\nuniform mixture", (0.25, 1.12)),
    ):
        y = float(domain_losses(x).max())
        left.plot([x], [y], marker, color="black", markersize=5)
        left.annotate(text, (x, y), place, fontsize=8, arrowprops={"arrowstyle": "-", "color": "0.5", "linewidth": 0.7})
    left.set_ylim(0.0, 1.6)
    left.set_xlabel("q, the probability of class 0")
    left.set_ylabel("cross-entropy (nats)")
    mix = np.linspace(0.08, 1.0, 400)  # of the second domain: the mixture has class 0 with probability mix/2
    right.plot(mix, domain_losses(mix / 2.0).max(axis=1) - np.log(2.0), **TRUE)
    right.plot([0.5], [uniform_excess()], "s", color="black", markersize=5)
    right.annotate("uniform: log(2/√3) = 0.144", (0.5, uniform_excess()), (0.51, 0.19), fontsize=8)
    right.plot([1.0], [0.0], "o", color="black", markersize=5, clip_on=False)
    right.annotate("agnostic", (1.0, 0.0), (0.97, 0.05), fontsize=8, ha="right")
    right.set_xlim(0.0, 1.0)
    right.set_ylim(0.0, 1.0)
    right.set_xlabel("λ₂, the weight of the second domain in training")
    right.set_ylabel("worst domain's loss above log 2 (nats)")
    return figure


def worst_case_methods_figure():
    """Exact worst cases of three methods over the step, with hard instances; least factors per round."""
    figure, (left, right) = blank(2)
    problems, eta = Problems(2, heterogeneity=AtOptimum(1.0)), np.geomspace(0.1, 1.5, 16)
    for make, name, colour, style in (
        (fedavg, "FedAvg", COLOURS[1], "-"),
        (scaffold, "SCAFFOLD, first c = 0", COLOURS[0], DASHED),
        (fedlin, "FedLin", COLOURS[2], (0, (6, 2, 1, 2))),
    ):
        worst = [worst_case(make(float(e), 2, 2), problems, "last").upper for e in eta]
        left.plot(eta, worst, color=colour, linestyle=style, linewidth=1.6, label=name)
    run = {"local_steps": 2, "rounds": 2}
    hard = [hard_instances(1.0, 1.0, 1.0, step_size=float(e), **run)[0].value for e in eta]
    left.plot(eta, hard, color=COLOURS[1], linestyle=DOTTED, label="FedAvg on its hardest instance")
    two = Problems(2, mu=0.1)
    for make, name, colour, top in (
        (lambda e: scaffold_round(e, 2), "SCAFFOLD, step η", COLOURS[0], 1.9),
        (lambda e: fedlin_round(e, 2), "FedLin, step η", COLOURS[2], 1.9),
        (lambda e: hedging_round(1 / e), "hedging, ρ = 1/η", COLOURS[3], 20.0),
        (lambda e: fedprox_round(1 / e), "FedProx, proximal μ = 1/η", COLOURS[4], 20.0),
    ):
        steps = np.geomspace(0.05, top, 24)
        found = [contraction(make(float(e)), two, tolerance=1e-3) for e in steps]
        right.plot(steps, [r.upper if r.upper < 1 else np.nan for r in found], color=colour, label=name)
        right.plot(steps, [r.lower for r in found], color="black", linestyle=DOTTED, linewidth=1)
    words = "worst $F(x^T) - F(x^*)$ / ($L D^2$)", "factor of squared distances per round"
    finish((left, right), ("step size $\\eta L$", "$\\eta L$"), words)
    left.set_title("M = τ = T = 2, ζ* = LD", fontsize=9, loc="left")
    right.set_title("M = τ = 2, μ = L/10; dotted: quadratics", fontsize=9, loc="left")
    right.set_yscale("linear")
    right.set_ylim(0.0, 1.05)
    return figure


FIGURES = {
    f.__name__.removesuffix("_figure"): f
    for f in (
        fedavg_convex_figure,
        fedavg_refined_figure,
        fedavg_strongly_convex_figure,
        dynamic_msd_figure,
        weight_divergence_figure,
        worst_case_figure,
        worst_case_methods_figure,
        agnostic_generalisation_figure,
    )
}


def main():
    """Draw the figures named on the command line, or all."""
    names = sys.argv[1:] or list(FIGURES)
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        sys.exit(f"no such figure: {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        begin = time.perf_counter()
        file = save_figure(FIGURES[name](), FOLDER / f"{name}.svg", outlines=False)
        print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB, {time.perf_counter() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
