"""What a method's parts must return: asked in the first round of a run, because wrong axes may give wrong numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex._check import bad, wrong_type

PARTS = ("init", "broadcast", "local", "aggregate")
OTHERS = ("participants", "send", "settle", "exchanges")  # that a round may have


def check_method(method: Any) -> None:
    """Raise unless the method is an instance, with the parts of a federated or of a centralised one."""
    name = type(method).__name__
    if isinstance(method, type):
        raise wrong_type("run: method", "be an instance", method.__name__, f"pass {method.__name__}(...)")
    lacks = [part for part in PARTS if not hasattr(method, part)]
    if "init" in lacks or (lacks and not hasattr(method, "round")):
        raise wrong_type("run: method", f"have {', '.join(PARTS)}; or init and round", f"{name} without {lacks[0]}")


def may_go_ahead(method: Any) -> bool:
    """Whether the method's own class defines `ahead`, and none of the parts that it computes has been replaced.

    They stand in ``ahead_of``. A class that inherits `ahead` may do something else in its rounds, and so may a method,
    or its class, that was given other parts.
    """
    own = vars(type(method))
    parts = {part.__name__: part for part in own.get("ahead_of", ())}
    same = all(getattr(getattr(method, name, None), "__func__", None) is part for name, part in parts.items())
    return "ahead" in own and same and not any(hasattr(method, name) for name in OTHERS if name not in parts)


def check_state(method: Any, part: str, state: Any, R: int) -> None:
    """Raise unless a part returned a state that can be kept and measured, of R trajectories."""
    who = f"{type(method).__name__}.{part}"
    if not hasattr(state, "_fields"):
        raise wrong_type(who, "return a state that is a named tuple of arrays", type(state).__name__)
    if not (hasattr(method, "measure") or hasattr(state, "w")):
        cure = "or define measure(problem, state)"
        raise wrong_type(who, "return a state with a field w, the models (R, *model)", type(state).__name__, cure)
    if np.shape(getattr(state, "w", ())) and len(state.w) != R:
        raise bad(who, f"return models w (R, *model) of R = {R} trajectories", f"shape {np.shape(state.w)}")


def check_message(method: Any, message: Any, R: int) -> None:
    """Raise unless the message is a tuple; arrays that have names begin with the axis of R trajectories."""
    _arrays(f"{type(method).__name__}.broadcast", "a message", message, R)


def check_answer(method: Any, answer: Any, R: int) -> None:
    """Raise unless an answer is memory and a reply, whose arrays begin with the axis of R trajectories."""
    who = f"{type(method).__name__}.local"
    if not isinstance(answer, (tuple, list)) or hasattr(answer, "_fields") or len(answer) != 2:
        got, cure = type(answer).__name__, "return reply, memory"
        raise wrong_type(who, "return two things, the reply and the memory", got, cure)
    _arrays(who, "a reply", answer[0], R)


def _arrays(who: str, what: str, x: Any, R: int) -> None:
    if not isinstance(x, tuple):
        raise wrong_type(who, f"return {what} that is a named tuple of arrays", type(x).__name__)
    for name in getattr(x, "_fields", ()):
        a = getattr(x, name)
        if isinstance(a, np.ndarray) and a.ndim and a.size and len(a) != R:
            must = f"return arrays that begin with the axis of R = {R} trajectories"
            raise bad(who, must, f"{type(x).__name__}.{name} of shape {a.shape}")
