"""Solvers of a benchmark: methods of the package, classes and functions of your own, and pooled solvers."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from fedconvex import methods
from fedconvex._check import bad, flag, text, unknown, wrong_type
from fedconvex.bench import pooled
from fedconvex.bench.cases import LEARNED, ONE_MODEL, PER_TASK, WORST_DOMAIN
from fedconvex.bench.channel import Channel
from fedconvex.bench.own_process import Failed, OwnProcess, answer, refusal
from fedconvex.bench.time_limit import OutOfTime
from fedconvex.loss_traits import traits
from fedconvex.methods.parts.automatic_steps import resolved, saddle_steps, usual_step
from fedconvex.methods.parts.step_sizes import Decay
from fedconvex.traits import traits_of

IMPORT_SECONDS = 300.0  # that importing somebody's module may take


class Arrays(NamedTuple):
    """A problem as a function is given it: F(w) = sum_k p_k (mean loss over client k's rows + (l2/2)‖w‖^2).

    Attributes
    ----------
    X : list of array (n_k, d)
        Rows of every client, dense or CSR.
    y : list of array (n_k,)
        Their targets.
    weights : array (K,)
        p_k.
    loss : str
        "squared", "logistic", ...
    l2 : float
        At least 0.
    start : array of the model's shape
        w_0.

    Examples
    --------
    A solver as a function: it returns the model after every round.

    >>> import numpy as np
    >>> from fedconvex.bench import Arrays
    >>> def descent(arrays, settings, rounds):
    ...     w, out = arrays.start.copy(), []
    ...     for _ in range(rounds):
    ...         each = [X.T @ (X @ w - y) / len(y) for X, y in zip(arrays.X, arrays.y)]
    ...         w = w - settings["step_size"] * (arrays.weights @ np.array(each) + arrays.l2 * w)
    ...         out.append(w)
    ...     return out
    >>> one = Arrays([np.ones((1, 1))], [np.array([2.0])], np.ones(1), "squared", 0.0, np.zeros(1))
    >>> descent(one, {"step_size": 0.5}, 2)
    [array([1.]), array([1.5])]
    """

    X: Sequence[Any]  # (n_k, d) of every client, dense or CSR
    y: Sequence[np.ndarray]  # (n_k,)
    weights: np.ndarray  # (K,) p_k
    loss: str  # "squared", "logistic", ...
    l2: float
    start: np.ndarray  # w_0


class Reference(NamedTuple):
    """A solver in somebody's module, which is imported in a process of its own alone."""

    name: str  # module:attribute
    tunable: bool
    source: str  # of what it is made
    takes: tuple[str, ...] = ()  # settings that may be given to it: none where it has them already


class Ready(NamedTuple):
    """A solver with its settings for one problem."""

    target: Any  # a method, a function, or a pooled solver
    settings: Mapping[str, Any]  # what a function is given
    words: str


@dataclass(frozen=True)
class Solver:
    """Something that is compared.

    Attributes
    ----------
    name : str
        In tables.
    target : class, method, function, pooled solver, or Reference
    kind : {"class", "function", "pooled"}
    settings : mapping
        Hyper-parameters that are given.
    aims : tuple of str
        What it minimises.
    own : bool
        Whether it comes from outside of the package: only then is it looked at in a process of its own.
    tuned : bool
        Whether its step size is searched for, at a cost that counts.
    channel : Channel
        That its messages pass through.
    participation : int or float, optional
        How many clients, or which share of them, may be asked in a round.

    Examples
    --------
    >>> from fedconvex.bench import named
    >>> solver = named("fedsgd")
    >>> solver.name, solver.kind, solver.own, solver.tunable()
    ('fedsgd', 'class', False, True)
    """

    name: str
    target: Any
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    aims: tuple[str, ...] = (ONE_MODEL,)
    own: bool = False
    tuned: bool = False
    channel: Channel = Channel()
    participation: Any = None

    def ready(self, problem: Any, loss: str, factor: float = 1.0, aim: str = ONE_MODEL) -> Ready:
        """Return the solver with settings for a problem; the step size of theory times a factor.

        What is minimised, the aim, decides which step a function is offered.

        Raises
        ------
        ValueError, TypeError
            If the solver is not made for such a problem, or wants a setting that nobody gives.
        """
        target, words = self.loaded(), "as given"
        if self.kind == "pooled":
            target.check(problem, loss)
            return Ready(target, {}, target.words)
        if self.kind == "function":
            offered, words = _function_steps(problem, aim, self.settings, factor)
            return Ready(target, offered, words)
        if isinstance(target, type):
            settings, words = _settled(target, dict(self.settings), problem, factor)
            target = target(**settings)
        method, theory = resolved(target, problem)
        return Ready(method, {}, words if theory is None else str(theory))

    def tunable(self) -> bool:
        """Whether there is a step size to search for: not where clients solve their problems exactly."""
        if isinstance(self.target, Reference):
            return self.target.tunable
        if self.kind == "function" or not (isinstance(self.target, type) and is_dataclass(self.target)):
            return self.kind == "function"
        field = next((f for f in fields(self.target) if f.name == "step_size"), None)
        return field is not None and (_required(field) or field.default is not None or _proximal_steps(self.settings))

    @property
    def takes(self) -> tuple[str, ...]:
        """Names of the settings of a class: none of a method, which has them already."""
        if isinstance(self.target, Reference):
            return self.target.takes
        known = isinstance(self.target, type) and is_dataclass(self.target)
        return tuple(f.name for f in fields(self.target)) if known else ()

    def loaded(self) -> Any:
        """Return what runs: of a reference, in the process of its own, what it names."""
        return _imported(self.target.name) if isinstance(self.target, Reference) else self.target


def _settled(cls: type, settings: dict[str, Any], problem: Any, factor: float) -> tuple[dict[str, Any], str]:
    """Return all settings of a class, step sizes among them, and where these come from.

    Those of theory are kept as long as the problem is there: its constants may take longer than a run.
    """
    key = cls, repr(sorted(settings.items()))
    known = _STEPS.setdefault(problem, {})
    if key not in known:
        known[key] = _of_theory(cls, settings, problem)
    settings, words = dict(known[key][0]), known[key][1]
    if factor != 1.0:
        default = {f.name: f for f in fields(cls)}["step_size"].default
        settings["step_size"] = _scaled(settings.get("step_size", default), factor)
    return settings, words


_STEPS = WeakKeyDictionary[Any, dict[Any, tuple[dict[str, Any], str]]]()  # problems do not change


def _of_theory(cls: type, settings: dict[str, Any], problem: Any) -> tuple[dict[str, Any], str]:
    """Return all settings of a class with the step size of theory, and where it comes from."""
    known = {f.name: f for f in fields(cls)} if is_dataclass(cls) else {}
    needed = {n for n, f in known.items() if _required(f)} - settings.keys()
    if {"step_size", "domain_step_size"} <= needed:
        settings["step_size"], settings["domain_step_size"], words = saddle_steps(problem)
    elif "step_size" in needed or ("step_size" in known and _proximal_steps(settings)):
        settings["step_size"], words = usual_step(cls, settings, problem)
    else:
        words = "no step size to choose" if "step_size" not in settings else "step size as given"
    needed -= settings.keys()
    if needed:
        cure, who = "give them defaults, or pass an instance", f"bench: {cls.__name__}"
        raise bad(who, "have defaults for all settings but step_size", ", ".join(sorted(needed)), cure)
    return settings, words


def _proximal_steps(settings: Mapping[str, Any]) -> bool:
    """Whether clients of a proximal method take steps of their own, in the place of an exact solution."""
    return "proximal_mu" in settings and "solver" not in settings


def _scaled(step: Any, factor: float) -> Any:
    return step._replace(scale=step.scale * factor) if isinstance(step, Decay) else float(step) * factor


def _function_steps(
    problem: Any, aim: str, given: Mapping[str, Any], factor: float = 1.0
) -> tuple[dict[str, Any], str]:
    """Return the settings of a function with the steps that it is offered, and where these come from.

    ``step_size_at(t)`` is the step of ``fedsgd`` in round t, ``local_step_size_at(t, i)`` that of ``fedavg`` in local
    step i; ``step_size`` and ``local_step_size`` are the first ones. On a kink these two are 1/L of the roughest client
    as if its curvature were 1, and for other aims all four are.
    """
    from fedconvex.constants.default_steps import smoothness_of

    fed = problem.federation
    exact = fed.K * fed.d**3 <= 1e10
    L = smoothness_of(fed, problem.weights, problem.loss, getattr(problem, "l2", 0.0), exact).client
    settings: dict[str, Any] = dict(given)
    words = []
    for name, method in {"step_size": "fedsgd", "local_step_size": "fedavg"}.items():
        cls, fixed, _ = built_in()[method]
        step: Any = 1.0 / L
        source = "1/L"
        if aim == ONE_MODEL and (smooth(problem) or getattr(problem, "l2", 0.0) > 0.0):
            taking = {n: given[n] for n in ("participation",) if n in given}
            step, source = usual_step(cls, {**fixed, **taking}, problem)
        step = _scaled(step, factor) if name not in given else given[name]
        at = _by_round(step, fixed.get("local_steps", 1))
        first = at(0) if smooth(problem) else factor / L
        offered: dict[str, Any] = {name: first, f"{name}_at": at}
        settings = offered | settings
        formula = source.partition(" = ")[2] or source
        if isinstance(step, Decay):
            formula = f"{'the first of' if smooth(problem) else '1/L; in round t'} {source}"
        words.append(f"{name} {float(settings[name]):.4g} offered, {formula}")
    return settings, "; ".join(words)


def _by_round(step: Any, local_steps: int) -> Callable[..., float]:
    """Return a step size as a function of rounds and local steps."""
    if not isinstance(step, Decay):
        return lambda t, i=0: float(step)
    return lambda t, i=0: float(step.at(t if step.by_round else t * local_steps + i))


# ---------------------------------------------------------------- by name


@cache
def built_in() -> dict[str, tuple[type, Mapping[str, Any], tuple[str, ...]]]:
    """Return class, settings and aims of the package's methods by name, as they declare them.

    ``benchmarks`` names settings; without it a method of one model goes by its name on the command line, unless it
    must be given more than steps. ``aims`` says what it minimises where ``learns`` does not.
    """
    found: dict[str, tuple[type, Mapping[str, Any], tuple[str, ...]]] = {}
    for name in methods.__all__:
        cls = getattr(methods, name)
        if isinstance(cls, type) and (hasattr(cls, "local") or hasattr(cls, "round")):
            for title, settings in _benchmarks(cls).items():
                found[title] = cls, settings, aims_of(cls)
    return found


def _benchmarks(cls: type) -> Mapping[str, Mapping[str, Any]]:
    """Return the settings that a method is compared with, by name."""
    if hasattr(cls, "benchmarks"):
        return dict(cls.benchmarks)
    name, needed = getattr(cls, "command", ""), {f.name for f in fields(cls) if _required(f)}
    fits = isinstance(name, str) and name and aims_of(cls) == (ONE_MODEL,)
    return {name: {}} if fits and needed <= {"step_size"} else {}


def _required(f: Any) -> bool:
    return f.init and f.default is f.default_factory is MISSING


def aims_of(cls: Any) -> tuple[str, ...]:
    """Return what a method minimises: what it declares, or all that ``learns`` allows."""
    learns = getattr(cls, "learns", (ONE_MODEL_LEARNT,))
    return tuple(getattr(cls, "aims", (a for a, kind in _LEARNT.items() if kind in learns and a != WORST_DOMAIN)))


def named(name: str, tuned: bool = False, settings: Mapping[str, Any] | None = None) -> Solver:
    """Return a solver by its name, or by module:attribute.

    Parameters
    ----------
    name : str
        One of `built_in`, a pooled one, or module:attribute of a class, a method with its settings, or a function.
    tuned : bool
        Search for its step size, at a cost that counts.
    settings : mapping, optional
        Hyper-parameters beside those of the name.

    Raises
    ------
    ValueError, TypeError, ImportError
        If there is no such solver, or it is none.

    Examples
    --------
    >>> from fedconvex.bench import named
    >>> named("scaffold").settings
    {'local_steps': 5}
    """
    text("bench: solver", name)
    if settings is not None and not isinstance(settings, Mapping):
        raise wrong_type("bench: settings", "be a mapping", f"{settings!r}")
    tuned, more = flag("bench: tuned", tuned), dict(settings or {})
    if name in pooled.FITS:
        return Solver(name, pooled.FITS[name], "pooled")
    if name in built_in():
        cls, given, aims = built_in()[name]
        title = name + (", tuned" if tuned else "")
        return Solver(title, cls, "class", {**given, **more}, aims, tuned=tuned)
    if ":" not in name:
        raise unknown("bench: solver", name, [*built_in(), *pooled.FITS], ", or module:attribute")
    with OwnProcess(_describe, name.encode(), IMPORT_SECONDS) as process:
        try:
            found = process.next()
        except (OutOfTime, Failed) as error:
            why = str(error) or f"no end of it after {IMPORT_SECONDS:g} s"
            raise ImportError(f"bench: solver {name!r} must name a module that can be imported; got {why}") from None
    target = Reference(name, bool(found["tunable"]), str(found["source"]), tuple(map(str, found["takes"])))
    title = name + (", tuned" if tuned else "")
    return Solver(title, target, str(found["kind"]), more, tuple(map(str, found["aims"])), True, tuned)


def _describe(pipe: Any, name: bytes) -> None:
    """Answer, in a process of its own, what a solver of somebody's module is."""
    try:
        target = _imported(name.decode())
        found = of_target(target, name.decode())
        source, takes = made_of(target), found.takes
        answer(pipe, kind=found.kind, aims=found.aims, tunable=found.tunable(), source=source, takes=takes)
    except (Exception, SystemExit) as error:
        answer(pipe, **refusal(error))


def made_of(target: Any) -> str:
    """Return what a solver from outside is made of; something new every time where no file says it."""
    if isinstance(target, Reference):
        return target.source
    home = inspect.getmodule(target) or inspect.getmodule(type(target))
    path = getattr(home, "__file__", None)
    if not path or not Path(path).is_file():
        return os.urandom(16).hex()  # defined in a notebook: it may be another one the next time
    words = repr(target)
    if inspect.isroutine(target):
        cells = [c.cell_contents for c in getattr(target, "__closure__", None) or ()]
        given = (getattr(target, "__defaults__", None), getattr(target, "__kwdefaults__", None))
        words = f"{target.__qualname__} {cells!r} {given!r}"
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() + words


def of_target(target: Any, name: str = "", tuned: bool = False, settings: Mapping[str, Any] | None = None) -> Solver:
    """Return a class, method or function as a solver."""
    title = name or getattr(target, "__name__", type(target).__name__)
    if hasattr(target, "init") and (hasattr(target, "local") or hasattr(target, "round")):
        learns = getattr(target, "learns", (ONE_MODEL_LEARNT,))
        aims = tuple(getattr(target, "aims", (a for a, kind in _LEARNT.items() if kind in learns)))
        return Solver(title, target, "class", dict(settings or {}), aims, True, tuned)
    if hasattr(target, "fit_to"):
        return Solver(title, target, "pooled", {}, own=True)
    if callable(target) and not isinstance(target, type):
        return Solver(title, target, "function", dict(settings or {}), tuple(_LEARNT), True, tuned)
    must = "be a class with init and local, a method, or a function (arrays, settings, rounds) -> models"
    raise wrong_type(f"bench: solver {title}", must, f"{target!r}")


ONE_MODEL_LEARNT = "one model for all clients"
_LEARNT = dict.fromkeys((ONE_MODEL, WORST_DOMAIN), ONE_MODEL_LEARNT)
_LEARNT |= dict.fromkeys((PER_TASK, LEARNED), "a model per task")


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise bad("bench: solver", "be module:attribute", repr(name))
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        home = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0] and error.name != module:
            raise
        raise ImportError(f"bench: solver {name!r} must name a module that can be imported; got none") from None
    if not hasattr(home, attribute):
        raise bad(f"bench: solver {name!r}", f"name something in {module}", "no such name")
    return getattr(home, attribute)


# ---------------------------------------------------------------- what rounds cost


def passes_per_round(method: Any, problem: Any) -> float:
    """Return the gradient passes over all rows that a round takes on average, NaN where the method does not say.

    A method may say so by ``gradient_passes(problem)``; else its traits do.

    Examples
    --------
    >>> from fedconvex import FedAvg, Problem, Squared
    >>> from fedconvex.bench.solvers import passes_per_round
    >>> from fedconvex.datasets import linear_federation
    >>> problem = Problem(linear_federation(seed=0).federation, Squared())
    >>> passes_per_round(FedAvg(step_size=0.1, local_steps=5, participation=0.5), problem)
    2.5
    """
    if hasattr(method, "gradient_passes"):
        return float(method.gradient_passes(problem))
    fed = problem.federation
    t = traits_of(method, problem)
    local = t.random_steps if t.local is None else t.local
    if local is None:
        return math.nan
    rows = np.asarray(local.steps * np.minimum(local.batch_size, local.sizes), dtype=float)
    if t.controls is not None and t.controls.option == 1:
        rows = rows + local.sizes
    shares = {"everyone": np.ones(fed.K), "uniform": np.full(fed.K, t.participants / fed.K)}
    shares["proportional"] = t.participants * problem.weights
    return float(shares[t.sampling] @ rows / fed.n) if t.sampling in shares else math.nan


def draws_nothing(solver: Solver, target: Any, problem: Any) -> bool:
    """Whether a solver says that its models are the same for every seed."""
    if not solver.channel.clear:
        return False
    if solver.kind == "pooled":
        return True
    said = getattr(target, "deterministic", None)
    if isinstance(said, bool):
        return said
    return solver.kind == "class" and traits_of(target, problem).deterministic


def taking_part(method: Any, problem: Any) -> float:
    """Return the clients that take part in a round of a method, NaN where it does not say."""
    t = traits_of(method, problem)
    if t.sampling == "everyone":
        return float(problem.federation.K)
    return math.nan if t.participants is None else float(t.participants)


def has_all_rows(solver: Solver, target: Any) -> bool:
    """Whether a solver has all rows in one place: a pooled or centralised one, or a function that says so."""
    return (
        solver.kind == "pooled"
        or (solver.kind == "class" and not hasattr(target, "local"))
        or (getattr(target, "pooled", False) is True)
    )


def arrays_of(problem: Any, loss: str) -> Arrays:
    """Return a problem as a function is given it: its own copies."""
    fed = problem.federation
    cuts = [slice(int(a), int(b)) for a, b in zip(fed.ptr[:-1], fed.ptr[1:], strict=True)]
    X, y = [fed.X[c].copy() for c in cuts], [fed.y[c].copy() for c in cuts]
    l2 = float(getattr(problem, "l2", 0.0))
    return Arrays(X, y, np.array(problem.weights), loss, l2, np.zeros(problem.model_shape))


def smooth(problem: Any) -> bool:
    """Whether the loss has a gradient everywhere, whose slope is bounded."""
    return math.isfinite(traits(problem.loss).smoothness)
