"""Steps of eight short models at once: lane l of every vector of eight belongs to model l.

LLVM makes of vectors of eight what the processor has, one register or several, and bits are the same. Written as loops
over lanes, steps would be guarded against arrays that overlap. A score is the sum over even coordinates plus that over
odd ones, as in `rows.two_sums`.

What belongs to lane l of the block that begins with lane ``first`` stands at first + l of an array of numbers; of an
array of models with p entries, coordinate q of the block begins at first * p + 8 q.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex.kernels.cache import DISABLED, strict_part, types
from fedconvex.kernels.dispatch import slope

# mypy: disable-error-code="no-untyped-def"

LANES = 8


def gather(A, rows, first, p, V):
    """Lane l of the block of V = row rows[l] of A (n, p)."""
    V[first * p : (first + LANES) * p] = A.reshape(-1, p)[rows[first : first + LANES]].T.ravel()


def scatter(V, rows, first, p, A):
    """Row rows[l] of A = lane l of the block of V."""
    A.reshape(-1, p)[rows[first : first + LANES]] = V[first * p : (first + LANES) * p].reshape(p, LANES).T


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

    _FUSED = ("contract",)  # flags of its own keep an operation from those of the kernel around: sums in any order
    _WORD, _PLACE, _REALS = ir.IntType(64), ir.IntType(32), ir.VectorType(ir.DoubleType(), LANES)
    _ZEROS = ir.Constant(_REALS, [0.0] * LANES)

    class _Code:
        """What is written for one call: pointers to the data of its arrays, and code on them."""

        def __init__(self, context, builder, signature, args):
            self.b, self.values = builder, []
            for kind, value in zip(signature.args, args, strict=True):
                array = isinstance(kind, types.Array)
                self.values.append(context.make_array(kind)(context, builder, value).data if array else value)
            self.first, self.p = self.values[2], self.values[3]
            self.base = builder.mul(self.first, self.p)

        def at(self, pointer, place, size):
            """Address of a vector of so many numbers."""
            kind = ir.VectorType(ir.DoubleType(), size) if size > 1 else ir.DoubleType()
            return self.b.bitcast(self.b.gep(pointer, [place]), kind.as_pointer())

        def load(self, pointer, place, size=LANES):
            return self.b.load(self.at(pointer, place, size), align=8)

        def store(self, value, pointer, place, size=LANES):
            self.b.store(value, self.at(pointer, place, size), align=8)

        def coordinate(self, q):
            """Where the block's coordinate begins."""
            return self.b.add(self.base, self.b.shl(q, _WORD(3)))

        def numbers(self, rows):
            """Numbers of the rows of all lanes."""
            return [self.b.load(self.b.gep(rows, [self.b.add(self.first, _WORD(l))])) for l in range(LANES)]

        def rows(self, A, numbers):
            """Addresses of rows."""
            return [self.b.gep(A, [self.b.mul(row, self.p)]) for row in numbers]

        def by_pairs(self, each):
            """Call each(q, 2) for pairs of coordinates, then each(q, 1) for one that is left."""
            b = self.b
            with cgutils.for_range(b, b.lshr(self.p, _WORD(1))) as loop:
                each(b.shl(loop.index, _WORD(1)), 2)
            with b.if_then(b.trunc(self.p, ir.IntType(1))):
                each(b.sub(self.p, _WORD(1)), 1)

        def shuffled(self, x, y, places):
            return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(_PLACE, len(places)), list(places)))

        def packed(self, numbers):
            vector = ir.Constant(_REALS, ir.Undefined)
            for l, number in enumerate(numbers):
                vector = self.b.insert_element(vector, number, _PLACE(l))
            return vector

        def joined(self, parts):
            """One vector of several."""
            while len(parts) > 1:
                both = range(2 * parts[0].type.count)
                parts = [self.shuffled(x, y, both) for x, y in zip(parts[::2], parts[1::2], strict=True)]
            return parts[0]

        def product(self, x, y):
            return self.b.fmul(x, y, flags=_FUSED)

    # a vector of lanes 0, 2, 4, 6, each with two coordinates, and one of lanes 1, 3, 5, 7, make two of one coordinate
    _FIRST, _SECOND = [0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15]

    def _gather(code, lanes, V, seen=None):
        """Copy rows at addresses into the block of V; seen(parity, at, vector) is told of each coordinate."""
        b = code.b

        def coordinate(q, parity, vector):
            at = code.coordinate(b.add(q, _WORD(parity)))
            code.store(vector, V, at)
            if seen is not None:
                seen(parity, at, vector)

        def each(q, size):
            got = [code.load(lane, q, size) for lane in lanes]
            if size == 2:
                even, odd = code.joined(got[::2]), code.joined(got[1::2])
                coordinate(q, 0, code.shuffled(even, odd, _FIRST))
                coordinate(q, 1, code.shuffled(even, odd, _SECOND))
            else:
                coordinate(q, 0, code.packed(got))

        code.by_pairs(each)

    def _scatter(code):
        (V, rows, _, _, A), b = code.values, code.b
        lanes = code.rows(A, code.numbers(rows))

        def each(q, size):
            x = code.load(V, code.coordinate(q))
            y = code.load(V, code.coordinate(b.add(q, _WORD(1)))) if size == 2 else x
            for l, lane in enumerate(lanes):
                own = code.shuffled(x, y, [l, LANES + l]) if size == 2 else b.extract_element(x, _PLACE(l))
                code.store(own, lane, q, size)

        code.by_pairs(each)

    def _slopes(code, call, loss, z, t):
        """Slopes at scores z and labels t: a loop that LLVM makes vectors of, where the loss has no branches."""
        b = code.b
        places = [cgutils.alloca_once_value(b, _ZEROS) for _ in range(2)]
        for value, place in zip((z, t), places, strict=True):
            b.store(value, place)
        scores, labels = (b.bitcast(place, ir.DoubleType().as_pointer()) for place in places)
        before, each, after = b.block, b.append_basic_block("lane"), b.append_basic_block("lanes")
        b.branch(each)
        b.position_at_end(each)
        l = b.phi(_WORD)
        l.add_incoming(_WORD(0), before)
        score = b.gep(scores, [l])
        b.store(call(b, (loss, b.load(score), b.load(b.gep(labels, [l])))), score)
        following = b.add(l, _WORD(1))
        l.add_incoming(following, b.block)
        again = b.cbranch(b.icmp_unsigned("<", following, _WORD(LANES)), each, after)
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
        sums = [cgutils.alloca_once_value(b, _ZEROS) for _ in range(2)]
        for total in sums:
            b.store(_ZEROS, total)

        def add(parity, at, vector):
            product = code.product(vector, code.load(V, at))
            b.store(b.fadd(b.load(sums[parity]), product, flags=_FUSED), sums[parity])

        numbers = code.numbers(rows)
        _gather(code, code.rows(X, numbers), x, add)
        score = b.fadd(b.load(sums[0]), b.load(sums[1]), flags=_FUSED)
        labels = code.packed([code.load(y, number, 1) for number in numbers])
        step = code.load(a, first)
        c = b.fmul(b.fneg(step), _slopes(code, call, loss, score, labels))
        with b.if_then(b.icmp_signed("!=", shrunk, _WORD(0))):
            left = code.load(keep, first)
            with cgutils.for_range(b, p) as loop:
                at = code.coordinate(loop.index)
                kept, tilt = code.product(left, code.load(V, at)), code.product(step, code.load(T, at))
                code.store(b.fsub(kept, tilt, flags=_FUSED), V, at)
        with cgutils.for_range(b, p) as loop:
            at = code.coordinate(loop.index)
            code.store(b.fadd(code.load(V, at), code.product(c, code.load(x, at)), flags=_FUSED), V, at)

    def _gathered(_, A, rows, first, p, V):
        def generate(context, builder, signature, args):
            code = _Code(context, builder, signature, args)
            _gather(code, code.rows(code.values[0], code.numbers(code.values[1])), code.values[4])
            return context.get_dummy_value()

        return types.none(A, rows, first, p, V), generate

    def _scattered(_, V, rows, first, p, A):
        def generate(context, builder, signature, args):
            _scatter(_Code(context, builder, signature, args))
            return context.get_dummy_value()

        return types.none(V, rows, first, p, A), generate

    def _stepped(typing, loss, X, first, p, y, rows, a, keep, shrunk, V, x, T):
        function = typing.resolve_value_type(_slope)
        called = function.get_call_type(typing, (loss, types.float64, types.float64), {})

        def generate(context, builder, signature, args):
            _step(_Code(context, builder, signature, args), context.get_function(function, called))
            return context.get_dummy_value()

        return types.none(loss, X, first, p, y, rows, a, keep, shrunk, V, x, T), generate

    made: Any = intrinsic
    gather, scatter, step = made(_gathered), made(_scattered), made(_stepped)
