"""Steps of eight short models at once: lane l of every vector of eight belongs to model l.

LLVM makes of vectors of eight what the processor has, one register or several, and bits are the same. Written as loops
over lanes, steps would be guarded against arrays that overlap. A score is the sum over even coordinates plus that over
odd ones, as in `rows.two_sums`.

What belongs to lane l of the block that begins with lane ``first`` stands at first + l of an array of numbers; blocks
of models are those of `vectors.gather`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.kernels.cache import DISABLED, strict_part, types
from fedconvex.kernels.dispatch import slope
from fedconvex.kernels.vectors import HALF as LANES
from fedconvex.kernels.vectors import gather

# mypy: disable-error-code="no-untyped-def"


def step(loss, X, first, p, y, rows, a, keep, shrunk, V, x, T):
    """v_l <- keep[l] v_l - a[l] t_l - a[l] l'(x_l' v_l, y) x_l, x_l = row rows[l] of X and y its label; x is room.

    Without ``shrunk`` keep is one and t is zero.
    """
    gather(X, rows, first, p, x)
    lanes, coordinates = slice(first, first + LANES), range(first * p, (first + LANES) * p, LANES)
    sums = np.zeros((2, LANES))
    for q, at in enumerate(coordinates):
        sums[q % 2] += x[at : at + LANES] * V[at : at + LANES]
    scores = sums[0] + sums[1]
    c = np.array([-a[l] * slope(loss, scores[l - first], y[rows[l]]) for l in range(first, first + LANES)])
    for at in coordinates:
        v = V[at : at + LANES]
        kept = keep[lanes] * v - a[lanes] * T[at : at + LANES] if shrunk else v
        V[at : at + LANES] = kept + c * x[at : at + LANES]


@strict_part
def _slope(loss, z, y):
    return slope(loss, z, y)


if not DISABLED:
    from llvmlite import ir
    from numba.core import cgutils
    from numba.extending import intrinsic

    from fedconvex.kernels.vectors import FUSED, WORD, ZEROS, Code, copy_rows

    def _slopes(code, call, loss, z, t):
        """Slopes at scores z and labels t: a loop that LLVM makes vectors of, where the loss has no branches."""
        b = code.b
        places = [cgutils.alloca_once_value(b, ZEROS) for _ in range(2)]
        for value, place in zip((z, t), places, strict=True):
            b.store(value, place)
        scores, labels = (b.bitcast(place, ir.DoubleType().as_pointer()) for place in places)
        before, each, after = b.block, b.append_basic_block("lane"), b.append_basic_block("lanes")
        b.branch(each)
        b.position_at_end(each)
        l = b.phi(WORD)
        l.add_incoming(WORD(0), before)
        score = b.gep(scores, [l])
        b.store(call(b, (loss, b.load(score), b.load(b.gep(labels, [l])))), score)
        following = b.add(l, WORD(1))
        l.add_incoming(following, b.block)
        again = b.cbranch(b.icmp_unsigned("<", following, WORD(LANES)), each, after)
        option = b.module.add_metadata([ir.MetaDataString(b.module, "llvm.loop.unroll.disable")])  # before vectors
        again.set_metadata("llvm.loop", _itself(b.module, option))
        b.position_at_end(after)
        return b.load(places[0])

    def _itself(module, option):
        """Return a node of metadata that refers to itself, as those of loops do."""
        node = ir.MDValue(module, [option], name=str(len(module.metadata)))
        node.operands = (node, option)
        return node

    def _step(code, call):
        (loss, X, first, p, y, rows, a, keep, shrunk, V, x, T), b = code.values, code.b
        sums = [cgutils.alloca_once_value(b, ZEROS) for _ in range(2)]
        for total in sums:
            b.store(ZEROS, total)

        def add(parity, at, vector):
            product = code.product(vector, code.load(V, at))
            b.store(b.fadd(b.load(sums[parity]), product, flags=FUSED), sums[parity])

        numbers = code.numbers(rows)
        copy_rows(code, code.rows(X, numbers), x, add)
        score = b.fadd(b.load(sums[0]), b.load(sums[1]), flags=FUSED)
        labels = code.packed([code.load(y, number, 1) for number in numbers])
        step = code.load(a, first)
        c = b.fmul(b.fneg(step), _slopes(code, call, loss, score, labels))
        with b.if_then(b.icmp_signed("!=", shrunk, WORD(0))):
            left = code.load(keep, first)
            with cgutils.for_range(b, p) as loop:
                at = code.coordinate(loop.index)
                kept, tilt = code.product(left, code.load(V, at)), code.product(step, code.load(T, at))
                code.store(b.fsub(kept, tilt, flags=FUSED), V, at)
        with cgutils.for_range(b, p) as loop:
            at = code.coordinate(loop.index)
            code.store(b.fadd(code.load(V, at), code.product(c, code.load(x, at)), flags=FUSED), V, at)

    def _stepped(typing, loss, X, first, p, y, rows, a, keep, shrunk, V, x, T):
        function = typing.resolve_value_type(_slope)
        called = function.get_call_type(typing, (loss, types.float64, types.float64), {})

        def generate(context, builder, signature, args):
            _step(Code(context, builder, signature, args), context.get_function(function, called))
            return context.get_dummy_value()

        return types.none(loss, X, first, p, y, rows, a, keep, shrunk, V, x, T), generate

    made: Any = intrinsic
    step = made(_stepped)
