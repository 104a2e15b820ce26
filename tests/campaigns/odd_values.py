"""Odd values for a parameter, by the value it has in a call that works: each with a label that says what it is."""

from __future__ import annotations

import datetime
import decimal
import fractions
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from tests.campaigns.entries import world

__all__ = ["odd"]

nan, inf = float("nan"), float("inf")
HUGE = 10**30


def odd(good: Any) -> dict[str, Any]:
    """Every odd value that may stand where a good one stood, by its label."""
    found = dict(_anywhere())
    if isinstance(good, bool):
        found |= {"the other": not good, "one": 1, "yes": "yes"}
    elif isinstance(good, (int, float, np.number)):
        found |= dict(_numbers(good))
    elif isinstance(good, str):
        found |= {
            "unknown": "unknown",
            "upper case": good.upper(),
            "null": good + "\0",
            "long": good * 300,
            "blank": " ",
        }
    elif isinstance(good, np.ndarray):
        found |= dict(_arrays(good))
    elif isinstance(good, (list, tuple)):
        found |= {
            "doubled": list(good) * 2,
            "shorter": list(good)[:-1],
            "reversed": list(good)[::-1],
            "text": str(good),
        }
        found |= {"with None": [*good[:-1], None], "with NaN": [*good[:-1], nan], "nested": [list(good)]}
    elif isinstance(good, dict) and good:
        found |= {"other keys": {("x", k): v for k, v in good.items()}, "None within": dict.fromkeys(good)}
        found |= {"text within": dict.fromkeys(good, "x"), "pairs": list(good.items())}
    elif good is not None:
        found |= {"its class": type(good), "a list of it": [good]}
    return found


def _anywhere() -> Iterator[tuple[str, Any]]:
    """Values that are of another kind than most parameters want."""
    w = world()
    yield from (
        ("None", None),
        ("True", True),
        ("word", "word"),
        ("empty text", ""),
        ("bytes", b"word"),
        ("complex", 1j),
    )
    yield from (("NaN", nan), ("inf", inf), ("-inf", -inf), ("-1", -1), ("0", 0), ("1.5", 1.5), ("10^30", HUGE))
    yield from (("2^63", 2**63), ("-2^63", -(2**63)), ("1e308", 1e308), ("5e-324", 5e-324), ("10^400", 10**400))
    yield from (("[]", []), ("{}", {}), ("()", ()), ("set", {1}), ("object", object()), ("function", lambda *a: 0.0))
    yield from (("type", int), ("[NaN]", [nan]), ("ragged", [[1.0], [1.0, 2.0]]), ("[None]", [None]), ("['a']", ["a"]))
    yield from (("decimal", decimal.Decimal(1)), ("fraction", fractions.Fraction(1, 2)), ("range", range(3)))
    yield from (
        ("NaT", np.datetime64("NaT")),
        ("date", datetime.date(2020, 1, 1)),
        ("generator", (i for i in range(3))),
    )
    yield from (
        ("0-d array", np.array(1.0)),
        ("empty array", np.empty(0)),
        ("matrix", np.ones((2, 2))),
        ("nested", [[[1.0]]]),
    )
    yield from (("objects", np.array([None, 1], object)), ("masked", np.ma.masked_array([1.0, 2.0], [True, False])))
    yield from (("federation", w["real"]), ("problem", w["problem"]), ("logistic problem", w["logistic"]))
    yield from (
        ("softmax problem", w["softmax"]),
        ("tasks", w["tasks"]),
        ("ensemble", w["ensemble"]),
        ("stumps", w["stumps"]),
    )
    yield from (
        ("moving problem", w["moving"]),
        ("method", w["fedsgd"]),
        ("result", w["result"]),
        ("loss", w["squared"]),
    )
    yield from (("simplex", w["simplex"]), ("constants", w["constants"]))


def _numbers(good: Any) -> Iterator[tuple[str, Any]]:
    yield from (("negated", -good), ("its text", str(good)), ("NumPy bool", np.True_), ("float32", np.float32(good)))
    yield from (("0-d", np.array(good)), ("one in a list", [good]), ("1", 1), ("2", 2), ("10^9", 1e9), ("1e-9", 1e-9))
    if isinstance(good, int):
        yield from (
            ("as a float", float(good)),
            ("next", good + 1),
            ("int16", np.array(good).astype(np.int16)[()]),
            ("text", f"{good}"),
        )


def _arrays(good: np.ndarray) -> Iterator[tuple[str, Any]]:
    """Arrays of another type, shape or content; those that are as good are marked "welcome"."""
    yield "welcome list", good.tolist()
    yield "welcome Fortran order", np.asfortranarray(good)
    yield "welcome stride", np.repeat(good, 2, axis=0)[::2]
    frozen = good.copy()
    frozen.flags.writeable = False
    yield "welcome read-only", frozen
    yield from (("complex values", good.astype(complex)), ("objects within", good.astype(object)))
    yield from (("strings within", good.astype(str)), ("booleans", good.astype(bool)), ("dates", good.astype("M8[s]")))
    if good.ndim == 0:
        return
    yield from (
        ("doubled", np.concatenate([good, good])),
        ("shorter", good[:-1]),
        ("none", good[:0]),
        ("deeper", good[None]),
    )
    if good.ndim > 1:
        yield from (("flat", good.ravel()), ("transposed", good.T))
    yield from (("column", good.reshape(-1, 1)), ("sparse", _sparse(good)))
    yield from (("masked within", np.ma.masked_array(good, np.arange(good.size).reshape(good.shape) == 0)),)
    yield from (("all zero", good * 0), ("negative", -1.0 - abs(good)), ("constant", np.ones_like(good)))
    if good.dtype.kind == "f":
        for label, v in (("NaN within", nan), ("inf within", inf), ("-inf within", -inf), ("1e308 within", 1e308)):
            bent = good.copy()
            bent.reshape(-1)[-1] = v
            yield label, bent
        yield from (("tiny", good * 1e-300), ("huge", good * 1e300), ("float32 values", good.astype(np.float32)))
        yield from (("integers", good.astype(np.int64)), ("half", good.astype(np.float16)))
    else:
        yield from (("as floats", good + 0.5), ("too large", good + 10**9), ("unsigned", good.astype(np.uint64)))


def _sparse(a: np.ndarray) -> Any:
    return sp.csr_array(np.atleast_2d(a) if a.ndim <= 2 else a.reshape(len(a), -1))
