"""What kernels choose by type: losses and client optimisers (by method), rows (dense or CSR), outputs (one or C)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedconvex import entropic
from fedconvex.kernels.cache import DISABLED, FASTMATH, overload, types
from fedconvex.losses import stable

if not DISABLED:  # they rely on the order of their operations
    overload(stable.exp, {"contract"})(lambda x: stable.exp)
    overload(stable.half_power, {"contract"})(lambda y: stable.half_power)
    overload(stable.softplus, {"contract"})(lambda x: stable.softplus)
    overload(stable.twice_atanh, {"contract"})(lambda s: stable.twice_atanh)
    overload(stable.log1p, {"contract"})(lambda q: stable.log1p)
    overload(stable.scaled_exp, False)(lambda c, x: stable.scaled_exp)
    overload(stable.excess, False)(lambda t: stable.excess)
    overload(stable.log_root_between, False)(lambda q, s: stable.log_root_between)
    overload(stable.logit_root, False)(lambda z, q, u: stable.logit_root)
    overload(entropic.log_root, False)(lambda *_: entropic.log_root)
    overload(entropic.entropic_step, False)(lambda *_: entropic.entropic_step)
    overload(entropic.near_step, False)(lambda *_: entropic.near_step)
    overload(entropic.softmax_step, False)(lambda *_: entropic.softmax_step)
    overload(entropic.negative_entropy, False)(lambda *_: entropic.negative_entropy)


def by_method(stub: Callable) -> Callable:
    """Make ``stub(obj, ...)`` call the method of its name of the NamedTuple obj, in Python and in kernels alike."""
    name = stub.__name__

    def in_python(obj: Any, *args: Any) -> Any:
        return getattr(obj, name)(*args)

    def in_kernel(obj: Any, *args: Any) -> Any:
        return getattr(getattr(obj, "instance_class", None), name, None)

    in_python.__name__, in_python.__doc__ = name, stub.__doc__
    if not DISABLED:
        overload(in_python, False)(in_kernel)  # losses are written with care
    return in_python


@by_method
def value(loss, z, y):
    """l(z, y)."""


@by_method
def softplus_factor(loss, y):
    """c with l(z, y) = log(1 + e^(c z)), of losses that are such functions."""


@by_method
def slope(loss, z, y):
    """l'(z, y)."""


@by_method
def curvature(loss, z, y):
    """l''(z, y)."""


@by_method
def slopes(loss, z, y, out):
    """grad l(z, y) into out, for scores z (C,)."""


@by_method
def dual_step(loss, alpha, z, q, y):
    """Exact minimiser delta of l*(-(alpha + delta)) + z delta + (q/2) delta^2."""


@by_method
def dual_steps(loss, alpha, z, room, q, y):
    """alpha += delta, z = delta: the exact minimiser of l*(-(alpha + delta)) + <z, delta> + (q/2) ‖delta‖^2.

    room: (2 C,), whatever is in it.
    """


@by_method
def conjugate(loss, a, y):
    """l*(a)."""


@by_method
def move(opt, w, g, a, m, v, t):
    """One step of a client optimiser."""


_FLAGS = {"_nrt": False}  # in loops that allocate nothing


def by_rule(name, otherwise=None):
    """Return a function of (rule, ...) that calls the rule's method of this name, or `otherwise` where it has none."""

    def in_python(rule, *args):
        return getattr(type(rule), name, otherwise)(rule, *args)

    def own(rule, *args):
        return getattr(rule.instance_class, name, None)

    def other(rule, *args):
        return None if hasattr(rule.instance_class, name) else otherwise

    if not DISABLED:
        overload(in_python, FASTMATH, through=otherwise is None, forceinline=True, **_FLAGS)(own)
        if otherwise is not None:
            overload(in_python, FASTMATH, through=True, forceinline=True, **_FLAGS)(other)
    return in_python


def by_rows(dense, sparse, inline="never"):
    """Return a function of (X, ...) that is `dense` for arrays and `sparse` for CSR."""

    def in_python(X, *args):
        return (dense if isinstance(X, np.ndarray) else sparse)(X, *args)

    def in_kernel(X, *args):
        return dense if isinstance(X, types.Array) else sparse

    if not DISABLED:
        overload(in_python, FASTMATH, inline=inline, **_FLAGS)(in_kernel)
    return in_python


def by_ridge(number, entries, inline="never"):
    """Return a function of (ridge, ...) that is `number` for a number and `entries` for an array (p,)."""

    def in_python(ridge, *args):
        return (entries if isinstance(ridge, np.ndarray) else number)(ridge, *args)

    def in_kernel(ridge, *args):
        return entries if isinstance(ridge, types.Array) else number

    if not DISABLED:
        overload(in_python, FASTMATH, inline=inline, **_FLAGS)(in_kernel)
    return in_python


def _is_softplus(kind):
    """Whether a loss, or the class of one, has a `softplus_factor`: not if it has other values than its base's."""
    made = (vars(c).keys() & {"value", "softplus_factor"} for c in getattr(kind, "__mro__", type(kind).__mro__))
    return "softplus_factor" in next(filter(None, made), ())


def by_output(one, many, weighted=None, sparse=None, softplus=None):
    """Return a function of (loss, X, ...): `one` for scalar losses, `many` for losses with n_classes.

    Where they are given, `weighted` is for scalar losses of rows whose labels carry weights, `sparse` instead of `one`
    for rows of a CSR, and `softplus` for losses log(1 + e^(c z)).
    """

    def choose(kind, dense):
        if hasattr(kind, "n_classes"):
            return many
        if softplus is not None and _is_softplus(kind):
            return softplus
        if weighted is not None and hasattr(kind, "weighs"):
            return weighted
        return one if dense or sparse is None else sparse

    def in_python(loss, X, *args):
        return choose(loss, isinstance(X, np.ndarray))(loss, X, *args)

    def in_kernel(loss, X, *args):
        return choose(loss.instance_class, isinstance(X, types.Array))

    if not DISABLED:
        overload(in_python, FASTMATH, **_FLAGS)(in_kernel)
    return in_python
