"""Bounds beside the exact worst case: of a setting, and in the tightness table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fedconvex.constants import Constants
from fedconvex.theorems import Setting, Theorem
from fedconvex.theorems.fedavg_convex import (
    fedavg_convex,
    fedavg_convex_best_step,
    fedavg_convex_step,
    fedavg_convex_tuned,
)
from fedconvex.theorems.fedavg_refined import fedavg_refined, fedavg_refined_sharp
from fedconvex.theorems.parts.setting import one_size
from fedconvex.theorems.parts.theorem import Programme
from fedconvex.theory.bound import SHADOW_AVERAGE, Quantity
from fedconvex.theory.worst_case import (
    AtOptimum,
    Iterates,
    Problems,
    Shift,
    UniformUpper,
    WorstCase,
    best_step,
    fedavg,
    programme_size,
    scaffold,
    worst_case,
)
from fedconvex.traits import Traits, traits_of
from fedconvex.verify.check_records import Claim, StepChoice, Tightness, WorstCaseInterval

FLAT = 1e-4  # relative: directions in which functions and run do not move
LARGEST = 40  # order of the Gram matrix up to which a worst case is computed unasked: about a second


def no_worst(why: str) -> WorstCaseInterval:
    """Return that there is none, and why."""
    return WorstCaseInterval(math.nan, math.nan, why)


def exact_worst(theorem: Theorem, s: Setting) -> WorstCaseInterval:
    """Return the exact worst case over all problems with the setting's L, D and heterogeneity, or why there is none.

    Parameters
    ----------
    theorem : Theorem
        One of `THEOREMS`, or of your own.
    s : Setting
        The run.

    Examples
    --------
    >>> from fedconvex import FedAvg
    >>> from fedconvex.verify import exact_worst
    >>> from fedconvex.theorems.parts.instances import two_clients
    >>> from fedconvex.verify import THEOREMS, Setting
    >>> setting = Setting(two_clients.make(), FedAvg(step_size=0.25, local_steps=2), 1, [0.0])
    >>> worst = exact_worst(THEOREMS["fedavg-convex"], setting)
    >>> round(worst.lower, 3), round(worst.upper, 3)
    (0.287, 0.287)
    """
    if theorem.programme is not None:
        return _worst_of_F(theorem, s, theorem.programme(s))
    if theorem.worst is not None:
        return WorstCaseInterval(*theorem.worst(s))
    posed = _posed(theorem, s)
    if isinstance(posed, WorstCaseInterval):
        return posed
    lower, upper = _scaled(posed.local, posed.case, posed.zeta)
    unit = posed.L * posed.unit**2
    return WorstCaseInterval(lower * unit, upper * unit, posed.words)


def worst_functions(theorem: Theorem, s: Setting) -> WorstData | None:
    """Return functions that attain the exact worst case, and the run on them; None where they are not known.

    They are known where clients are bound together at x* only and do plain local steps of one size.
    """
    posed = None if theorem.programme or theorem.worst else _posed(theorem, s)
    if not isinstance(posed, _Posed) or not posed.local or posed.case.kind is not _fedavg:
        return None
    eta, tau, T = posed.case.arguments
    if not isinstance(eta, float):
        return None
    found = posed.case.solved(AtOptimum(posed.zeta)).instance
    steep, unit = posed.L * posed.unit, posed.unit
    x, g = (np.array([getattr(F, name) for F in found.clients]) for name in "xg")
    every = np.concatenate([x.reshape(-1, x.shape[-1]), g.reshape(-1, x.shape[-1]), found.start[None]])
    _, sizes, axes = np.linalg.svd(every, full_matrices=False)
    axes = axes[: max(1, int(np.sum(sizes > FLAT * sizes[0])))].T  # the solver leaves 1e-6 in others
    axes = axes * np.where(found.start @ axes < 0.0, -1.0, 1.0)
    f = np.array([F.f for F in found.clients])
    return WorstData(
        found.weights, unit * (x @ axes), steep * (g @ axes), posed.L * unit**2 * f, unit * (found.start @ axes),
        posed.L, posed.L * posed.case.mu, eta / posed.L, tau, T,
    )  # fmt: skip


def _posed(theorem: Theorem, s: Setting) -> _Posed | WorstCaseInterval:
    """Return the programme of a setting, or why there is none."""
    p, t = s.problem, traits_of(s.method, s.problem)
    run = None if theorem.worst_case is None else _run_of(t, s.rounds)
    if run is None or theorem.worst_case is None:
        return no_worst("no programme for this quantity")
    if not t.deterministic or t.local is None or t.local.equal_steps is None:
        return no_worst("the programme is for runs without randomness")
    local = theorem.worst_case is AtOptimum
    if not (p.equal_weights or local):
        return no_worst("the programme is for equal weights")
    c = s.constants()
    L, D = float(c.L or 0.0), float(c.D or 0.0)
    zeta = float((c.zeta_star if local else c.zeta) or 0.0)
    D = 0.0 if local and D * L < 1e-9 * zeta else D  # a start at the optimum, but for rounding
    if not (0.0 < L < math.inf and (D > 0.0 or (local and zeta > 0.0)) and (D == 0.0 or zeta < 1e6 * L * D)):
        return no_worst("the programme is for 0 < L, 0 < D and moderate zeta")
    steps = _steps_of(t.local, s.rounds, run[0])
    if steps is None:
        return no_worst("the programme is for one step size, or a schedule of FedAvg's")
    if max(abs(1.0 - eta * L) for eta in steps) > 2.0:
        return no_worst("the programme is for step_size <= 3/L")
    mu = float(np.min(c.mu_k)) if theorem.strongly_convex and c.mu_k is not None else 0.0
    if not mu < (1.0 - 1e-9) * L:
        return no_worst("the programme is for mu < L")
    unit = D if D > 0.0 else zeta / L  # of length
    scaled = zeta / (L * unit)
    scaled = 0.0 if scaled < 1e-9 and not local else scaled  # rounding
    first = steps[0] * L if len(steps) == 1 else tuple(eta * L for eta in steps)
    weights = None if p.equal_weights else tuple(p.weights.tolist())
    case = _Case(run[0], (first, *run[1:]), p.federation.K, mu / L, theorem.quantity, D / unit, weights)
    if large := _too_large(case, theorem.worst_case(scaled), s.rounds * max(1, t.local.equal_steps - 1)):
        return no_worst(f"the programme is too large: Gram matrix of order {large}")
    return _Posed(case, local, scaled, L, unit, _words(case.clients, local, D, L, mu, zeta))


def _words(clients: int, local: bool, D: float, L: float, mu: float, zeta: float) -> str:
    convex = f"{mu:.4g}-strongly convex" if mu > 0.0 else "convex"
    text = "‖grad F_i(x*)‖ <= zeta_* in quadratic mean" if local else "‖grad F_i - grad F‖ <= zeta everywhere"
    words = f"all {clients} {convex} L-smooth clients with D = {D:.4g}, L = {L:.4g}, {text}, "
    return f"{words}{'zeta_*' if local else 'zeta'} = {zeta:.4g}, in any dimension"


def _worst_of_F(theorem: Theorem, s: Setting, run: Programme) -> WorstCaseInterval:
    """Return the exact worst case over all convex L-smooth F with the setting's L and D."""
    L, D = float(run.constants.L or 0.0), float(run.constants.D or 0.0)
    if not (0.0 < L < math.inf and D > 0.0):
        return no_worst("the programme is for 0 < L and 0 < D")
    step = float(f"{run.step_size * L:.9g}")  # so that equal programmes are solved once
    case = _Case(run.method, (step, s.rounds), 1, 0.0, theorem.quantity)
    if large := _too_large(case, AtOptimum(0.0), s.rounds):
        return no_worst(f"the programme is too large: Gram matrix of order {large}")
    lower, upper = (L * D**2 * value for value in _scaled(True, case, 0.0))
    return WorstCaseInterval(lower, upper, f"all convex L-smooth F with D = {D:.4g}, L = {L:.4g}, in any dimension")


def _too_large(case: _Case, h: Any, fewest: int) -> str:
    """Return the size of a programme that is too large, or nothing.

    Every method asks for at least ``fewest`` gradients, of F once a round, or of a client at its later steps. Where
    these are too many they are not counted: that takes as long as a run.
    """
    if fewest > LARGEST:
        return f"above {LARGEST}"
    try:
        size = programme_size(case.method, case.problems(h), case.quantity)
    except ValueError:
        return "above 300"
    return f"{size.gram}, {size.constraints} constraints" if size.gram > LARGEST else ""


def _run_of(t: Traits, rounds: int) -> tuple[Any, ...] | None:
    """Return the programme's method and its arguments behind the step size, or None where there is none."""
    local = t.local
    if local is None or not one_size(local):
        return None
    if local.plain and t.averages:
        return _fedavg, local.equal_steps, rounds
    if t.controls is not None and t.everyone:
        return _scaffold, local.equal_steps, rounds, t.controls.option, t.controls.server_step
    return None


def _steps_of(local: Any, rounds: int, kind: Any) -> tuple[float, ...] | None:
    """Return the one step size, or those of all local steps of a schedule; None where there is no programme."""
    eta = local.step_size
    if isinstance(eta, float):
        return (eta,)
    if kind is not _fedavg or not hasattr(eta, "at"):
        return None
    tau = int(local.equal_steps)
    steps = np.repeat(eta.at(np.arange(rounds)), tau) if eta.by_round else eta.at(np.arange(rounds * tau))
    return tuple(np.asarray(steps, dtype=float).tolist())


def _fedavg(eta: Any, tau: int, T: int) -> Any:
    return fedavg(eta, tau, T) if isinstance(eta, float) else _scheduled(eta, tau)


def _scheduled(steps: Sequence[float], tau: int) -> Any:
    """FedAvg with a step size for every local step."""

    def method(problem: Any) -> Iterates:
        x, out = problem.start, Iterates([], [])
        y: list[Any] = []
        for i, eta in enumerate(steps):
            y = [x] * len(problem.clients) if i % tau == 0 else y
            y = [z - eta * client.gradient(z) for client, z in zip(problem.clients, y, strict=True)]
            x = problem.mean(y)
            out.shadow.append(x)
            if i % tau == tau - 1:
                out.rounds.append(x)
        return out

    return method


def _scaffold(eta: float, tau: int, T: int, option: int, eta_g: float) -> Any:
    return scaffold(step_size=eta, local_steps=tau, rounds=T, option=option, server_step=eta_g)


class _Case(NamedTuple):
    """A programme for L = 1, and D = 1 or a start at the optimum."""

    kind: Callable[..., Any]
    arguments: tuple[Any, ...]  # of the method
    clients: int
    mu: float
    quantity: Quantity
    D: float = 1.0
    weights: tuple[float, ...] | None = None

    @property
    def method(self) -> Any:
        return self.kind(*self.arguments)

    def problems(self, h: Any) -> Problems:
        return Problems(self.clients, mu=self.mu, D=self.D, heterogeneity=h, weights=self.weights)

    def solved(self, h: Any) -> WorstCase:
        return worst_case(self.method, self.problems(h), self.quantity)


class _Posed(NamedTuple):
    """The programme of a setting."""

    case: _Case
    local: bool  # heterogeneity is bounded at the optimum only
    zeta: float  # for L = 1 and the unit of length of the case
    L: float
    unit: float  # of length
    words: str


class WorstData(NamedTuple):
    """Functions of K clients at m points each, the first of them x* = 0, and a run on them."""

    weights: np.ndarray  # (K,)
    points: np.ndarray  # (K, m, d)
    gradients: np.ndarray  # (K, m, d)
    values: np.ndarray  # (K, m)
    start: np.ndarray  # (d,)
    L: float
    mu: float
    step_size: float
    local_steps: int
    rounds: int

    def as_lists(self) -> WorstData:
        """Return the same with lists in the place of arrays, as JSON holds them."""
        return self._replace(**{n: v.tolist() for n, v in self._asdict().items() if isinstance(v, np.ndarray)})


@cache
def _scaled(local: bool, case: _Case, zeta: float) -> tuple[float, float]:
    """Return the interval for L = 1 and the unit of length of the case."""
    if local:
        found = case.solved(AtOptimum(zeta))
        return found.lower, found.upper
    low = case.solved(Shift(zeta))
    high = low if zeta == 0.0 else case.solved(UniformUpper(zeta))
    return low.lower, high.upper


def _programme(M: int, tau: int, T: int, eta: float, h: Any, q: Quantity) -> WorstCase:
    return _Case(_fedavg, (eta, tau, T), M, 0.0, q).solved(h)


def tightness_row(T: int, zeta: float) -> Tightness:
    """Bounds beside the exact worst case of M = 2, tau = 2, L = D = 1, step 1/4."""
    c = Constants(L=1.0, D=1.0, sigma2=0.0, zeta=zeta, K=2)
    at: dict[str, Any] = {"local_steps": 2, "rounds": T}
    bounds = {
        "R1#": fedavg_refined_sharp(c, step_size=0.25, **at).value,
        "R1": fedavg_refined(c, step_size=0.25, **at).value,
        "(15)": fedavg_convex(c, step_size=0.25, **at).value,
        "(17)": fedavg_convex_tuned(c, **at).value,
    }
    assert fedavg_convex_step(c, **at) == 0.25  # (17) is about this step
    low = _programme(2, 2, T, 0.25, Shift(zeta), SHADOW_AVERAGE)
    upper = _programme(2, 2, T, 0.25, UniformUpper(zeta), SHADOW_AVERAGE).upper
    return Tightness(T, zeta, low.lower, upper, bounds, low.instance.simulate())


ROWS = tuple((T, zeta) for T in (1, 2, 3) for zeta in (0.0, 0.1, 0.5, 1.0))
_CASE = (2, 2, 2, 0.5)  # M, tau, T, zeta of the step search


def step_choice() -> StepChoice:
    """Minimise the exact worst case over the step, by a scan and a golden section, beside (15)."""
    M, tau, T, zeta = _CASE
    c = Constants(L=1.0, D=1.0, sigma2=0.0, zeta=zeta, K=M)
    at = {"local_steps": tau, "rounds": T}
    best_15 = fedavg_convex_best_step(c, **at)
    found = best_step(
        lambda eta: fedavg(eta, tau, T),
        Problems(M, heterogeneity=UniformUpper(zeta)),
        SHADOW_AVERAGE,
        steps=[0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.1, 1.2, 1.3, 1.5],
        recommended=best_15,
    )
    assert found.worst_there is not None

    def bounded(bound: Callable[..., Any], top: float) -> np.ndarray:
        values = [bound(c, step_size=e, **at).value if e <= top else math.nan for e in found.steps.tolist()]
        return np.array(values)

    return StepChoice(
        f"M = {M}, tau = {tau}, T = {T}, zeta = {zeta:g}",
        found.steps,
        found.upper,
        bounded(fedavg_convex, 0.25),
        bounded(fedavg_refined_sharp, 1.0),
        (found.step, found.worst.upper),
        (best_15, fedavg_convex(c, step_size=best_15, **at).value),
        found.worst_there.upper,
    )


def tightness_claims(rows: Sequence[Tightness], steps: StepChoice | None) -> tuple[Claim, ...]:
    """Return what the table must show."""
    later = [t for t in rows if t.rounds >= 2]
    off = max(abs(t.attained - t.lower) / t.lower for t in rows)
    wide = max((t.upper - t.lower) / t.upper for t in rows)
    r1, field = max(t.ratio("R1") for t in later), max(t.ratio("(15)") for t in rows)
    least = min(bound / t.lower for t in rows for bound in t.bounds.values())
    out = [
        Claim("no bound lies below the exact worst case", least >= 1.0, f"least ratio {least:.4g}"),
        Claim("R1 is within 2.5 times the exact worst case for T >= 2, zeta <= 1", r1 <= 2.5, f"{r1:.4g} at most"),
        Claim("(15) is more than 20 times above it in some row", field > 20.0, f"{field:.4g} at most"),
        Claim("FedAvg on the functions found attains the lower end", off <= 1e-6, f"relative difference {off:.1g}"),
        Claim("the interval of the worst case is narrow", wide <= 0.05, f"{wide:.2%} at most"),
    ]
    if steps is not None:
        gain = steps.worst_there / steps.best[1]
        numbers = f"{steps.best[0]:.3g}/L and {steps.best_bound[0]:.3g}/L; worst cases {steps.best[1]:.4g} and "
        numbers += f"{steps.worst_there:.4g}"
        out.append(
            Claim("the step that is best in the worst case exceeds the one that (15) asks for", gain > 1, numbers)
        )
    return tuple(out)
