"""Methods by name, with any of their settings: ``--method fedprox --set proximal_mu=0.1``."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fedconvex._check import bad, nearest
from fedconvex.cli.arguments import choice
from fedconvex.cli.parser import Refused
from fedconvex.registry import class_named, methods

if TYPE_CHECKING:
    from fedconvex.problems import Problem

_WORDS = {"true": True, "false": False, "none": None}
_OPTIONS = ("local_steps", "epochs", "batch_size", "participation", "step_size")  # settings with an option of their own


def method_name(text: str) -> str:
    """Read the name of a method."""
    return choice("--method", list(methods()))(text)


def setting(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE: a number, true, false, none, or a word."""
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not (equals and name.isidentifier() and value.strip()):
        raise Refused(str(bad("--set", "be NAME=VALUE, such as proximal_mu=0.1", repr(text))))
    if name in _OPTIONS:
        raise Refused(str(bad("--set", "name a setting without an option", name, f"use --{name.replace('_', '-')}")))
    return name, read_value(value.strip())


def read_value(text: str) -> Any:
    """Read a number, true, false, none, or a word."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def first_settings(args: argparse.Namespace, grid: dict[str, list[Any]]) -> None:
    """Let the first values of a grid stand for settings of the method that were not given.

    Raises
    ------
    ValueError
        If the method has no such setting.
    """
    cls = class_named(args.method)
    known, given = _fields(cls), {name for name, _ in args.set or ()}
    for name, values in grid.items():
        if name not in known:
            must = f"name l2 or a setting of {cls.__name__} ({', '.join(known)})"
            raise bad("--grid", must, name, nearest(name, [*known, "l2"]))
        if name in _OPTIONS and getattr(args, name) is None:
            setattr(args, name, values[0])
        elif name not in _OPTIONS and name not in given:
            args.set = [*(args.set or ()), (name, values[0])]


def _fields(cls: Any) -> dict[str, Any]:
    """Return the fields of a method by name; those of a field that says what nodes do stand in its place."""
    found = {f.name: f for f in dataclasses.fields(cls) if f.init}
    if found.pop("work", None):
        from fedconvex.methods import NodeWork

        found |= {f.name: f for f in dataclasses.fields(NodeWork)}
    return found


def _settings(args: argparse.Namespace, cls: Any) -> dict[str, Any]:
    """Return what --set gives, or raise where the method has no such setting, or it was given twice."""
    given: dict[str, Any] = {}
    known = _fields(cls)
    for name, value in args.set or ():
        if name in given:
            raise bad(f"--set {name}", "be given once", "it again", "keep one")
        if name not in known:
            rest = ", ".join(n for n in known if n not in _OPTIONS) or "none"
            raise bad(
                f"--set {name}", f"name a setting of {cls.__name__} ({rest})", "another name", _meant(name, known)
            )
        given[name] = value
    return given


def _meant(name: str, known: Iterable[str]) -> str:
    """Return which setting may have been meant, or which option."""
    found = nearest(name, known)
    options = {f"{option}?": f"--{option.replace('_', '-')}, an option?" for option in _OPTIONS}
    return next((found.replace(option, words) for option, words in options.items() if found.endswith(option)), found)


def named_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return all settings of the method that were given, by options or by --set."""
    cls = class_named(args.method)
    return _settings(args, cls) | {
        n: getattr(args, n) for n in _OPTIONS if n in _fields(cls) and getattr(args, n) is not None
    }


def worded(values: dict[str, Any]) -> list[str]:
    """Return settings in words."""
    return [f"{n.replace('_', ' ')} {_shown(v)}" for n, v in values.items()]


def with_settings(args: argparse.Namespace, method: Any, phrase: str) -> tuple[Any, str]:
    """Return the method with what --set gives, and the phrase with it."""
    given = _settings(args, type(method))
    words = "".join(f", {name} {value}" for name, value in given.items())
    return (dataclasses.replace(method, **given) if given else method), phrase + words


def check_named(args: argparse.Namespace) -> None:
    """Refuse options that the method does not have."""
    known = _fields(class_named(args.method))
    if "steps" in known:  # of SGD, which takes them all at the server
        known |= dict.fromkeys(("local_steps", "epochs"))
    for name in _OPTIONS:
        if getattr(args, name) is not None and name not in known:
            option = name.replace("_", "-")
            raise bad(f"--method {args.method}", f"come without --{option}", getattr(args, name), "leave it out")


def named_method(args: argparse.Namespace, problem: Problem) -> tuple[Any, str]:
    """Return the method, and a phrase with its settings.

    A step size that is not given is that of a theorem if there is one for the method with its settings, else 1/L of
    the roughest client, 1/(2 L) of mini-batches; for AFL, steps of both players from their smoothness.

    Raises
    ------
    ValueError
        If a setting that has no default is missing, or one is out of range.
    """
    from fedconvex.methods.parts.automatic_steps import saddle_steps, usual_step

    cls = class_named(args.method)
    fields, values = _fields(cls), named_settings(args)
    if "shrink" in fields:
        values.setdefault("shrink", True)
    open_ = {n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING} - values.keys()
    words = ""
    if {"step_size", "domain_step_size"} <= open_ and getattr(cls, "saddle", False):
        values["step_size"], values["domain_step_size"], words = saddle_steps(problem)
        open_ -= values.keys()
    missing = sorted(open_ - {"step_size"})
    if missing:
        needed = " ".join(f"--set {n}=..." for n in missing)
        raise bad(f"--method {args.method}", f"be given {', '.join(missing)}", "none", needed)
    needs_step = args.method == "fedprox" and "solver" not in values and "step_size" not in values
    if "step_size" in open_ or needs_step:
        values["step_size"], source = usual_step(cls, values, problem)
        words = f"step size {source}"
    method = cls(**values)
    hidden = ("shrink", "step_size", "domain_step_size") if words else ("shrink",)
    shown = worded({n: v for n, v in values.items() if n not in hidden})
    return method, ", ".join([cls.__name__, *shown, *([words] if words else [])])


def _shown(v: Any) -> str:
    return f"{v:g}" if isinstance(v, float) else f"{v}"
