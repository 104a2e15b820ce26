"""From a decision to a model: the command that fits what `fedconvex compare` chose."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

_ONE = ("target", "client", "domain", "clients", "loss", "impute", "sep", "decimal", "encoding")
_SEVERAL = ("features", "drop", "keep", "as_category", "missing")
_METHODS = {  # of every kind of models, what reaches its optimum
    "pooled": ("fedsgd",),
    "afl": ("optimistic-afl",),
    "mocha": ("jointmocha",),
    "mean-regularised": ("mean-regularised",),
}
_LOCAL = ("fedavg", "scaffold")  # whose l2 goes with their local steps


def next_command(args: argparse.Namespace, found: Any) -> str:
    """Return the ``fedconvex solve`` of what a comparison chose, empty where every client is better alone."""
    from fedconvex.comparison.decision import chosen, kind_of

    method = found[chosen(found)]
    kind = kind_of(method)
    if kind == "alone":
        return ""
    named = [method.name, "--local-steps", f"{args.local_steps}"] if method.name in _LOCAL else list(_METHODS[kind])
    words = ["fedconvex", "solve", *([args.data] if args.data is not None else [])]
    for name in _ONE:
        value = getattr(args, name)
        words += [] if value is None else [f"--{name}", f"{value}"]
    if args.partition is not None:
        name, parameter = args.partition
        words += ["--partition", name if parameter is None else f"{name}:{parameter:g}"]
    for name in _SEVERAL:
        for value in getattr(args, name) or ():
            words += [f"--{name.replace('_', '-')}", value]
    words += ["--seed", f"{args.seed}"] if args.seed and (args.clients is not None or args.data is None) else []
    return shlex.join([*words, "--method", *named, "--l2", f"{method.l2:.6g}", "--save", "model"])
