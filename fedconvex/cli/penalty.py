"""Penalties of the command line: NAME or NAME:NUMBER[:NUMBER], and the methods that know them."""

from __future__ import annotations

import argparse
import math
from typing import Any

from fedconvex._check import bad
from fedconvex.cli.arguments import number
from fedconvex.cli.parser import Refused
from fedconvex.registry import methods as registered

FORMS = {
    "l1": "l1:STRENGTH",
    "elastic-net": "elastic-net:STRENGTH[:L1_RATIO]",
    "nonnegative": "nonnegative[:STRENGTH]",
    "box": "box:LOW:HIGH",
    "groups": "groups:STRENGTH:COLUMNS",
    "simplex": "simplex[:TOTAL]",
}


def penalty(text: str) -> Any:
    """Read a penalty, for example ``l1:0.01``."""
    from fedconvex import penalties

    name, *rest = text.split(":")
    makers = {
        "l1": (penalties.L1, 1, 1),
        "elastic-net": (penalties.ElasticNet, 1, 2),
        "nonnegative": (penalties.NonNegative, 0, 1),
        "box": (penalties.Box, 2, 2),
        "groups": (penalties.GroupLasso, 2, 2),
        "simplex": (penalties.Simplex, 0, 1),
    }
    if name not in makers or not makers[name][1] <= len(rest) <= makers[name][2]:
        forms = FORMS[name] if name in FORMS else "one of " + ", ".join(FORMS.values())
        raise Refused(str(bad("--penalty", f"be {forms}", repr(text))))
    values: list[Any] = [_end(part) if name == "box" else number(f"--penalty {name}")(part) for part in rest]
    if name == "groups":
        if values[1] != math.floor(values[1]):
            raise Refused(str(bad("--penalty groups", "have a whole number of columns in each group", rest[1])))
        values[1] = int(values[1])
    made = makers[name][0](*values)
    try:
        made.check(1, values[1] if name == "groups" else 1)
    except ValueError as error:
        raise Refused(f"--penalty: {error}") from None
    return made


def with_penalties() -> list[str]:
    """Return the names of the methods that minimise penalties."""
    return [name for name, method in registered().items() if method.penalised]


def _end(text: str) -> float:
    """Read an end of a box, which may be infinite."""
    return float(text) if text in ("inf", "-inf") else number("--penalty box")(text)


def proximal_method(args: argparse.Namespace, share: Any, rows: str) -> tuple[Any, str]:
    """Return the method for a problem with a penalty, its step size open, and what it does on so many rows.

    Raises
    ------
    ValueError
        If another method is asked for, or settings that it does not have.
    """
    from fedconvex import methods

    name = "proximal-fedsgd" if args.method == "fedavg" else args.method
    if not registered()[name].penalised:
        cure = "its steps follow gradients, and a penalty has none"
        raise bad("--method with --penalty", "be one of " + ", ".join(with_penalties()), args.method, cure)
    local = name in ("fedmid", "feddualavg")
    for setting, given in (("local_steps", local), ("epochs", False), ("batch_size", local)):
        if getattr(args, setting) is not None and not given:
            raise bad(f"--method {name}", f"come without --{setting.replace('_', '-')}", getattr(args, setting))
    if name == "fista":
        if args.participation is not None:
            raise bad("--method fista", "come without --participation", args.participation)
        return methods.FISTA(step_size=1.0), "FISTA on the pooled rows"
    if not local:
        return methods.ProximalFedSGD(step_size=1.0, participation=share), "ProximalFedSGD, one gradient a round"
    steps = args.local_steps or 1
    make = methods.FedMiD if name == "fedmid" else methods.FedDualAvg
    method = make(step_size=1.0, local_steps=steps, batch_size=args.batch_size, shrink=True, participation=share)
    return method, f"{make.__name__}, {steps} local step{'s' * (steps > 1)} on {rows}"
