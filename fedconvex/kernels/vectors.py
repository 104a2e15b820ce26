"""Rows side by side: blocks of eight in memory, and vectors of sixteen numbers as values.

A block is eight rows of p entries, entry q of all of them from first * p + 8 q on, if the block begins with lane
``first``. What is done with vectors is written once, for arrays of sixteen in Python; in kernels the same lines work on
LLVM's vectors, which stay in registers. They are twice as long as the widest registers: one half works while the other
waits. Sums are not reordered.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from fedconvex.kernels.cache import DISABLED, types

# mypy: disable-error-code="no-untyped-def"

WIDTH, HALF = 16, 8


def gather(A, rows, first, p, V):
    """Lane l of the block of V = row rows[l] of A (n, p)."""
    V[first * p : (first + HALF) * p] = A.reshape(-1, p)[rows[first : first + HALF]].T.ravel()


def scatter(V, rows, first, p, A):
    """Row rows[l] of A = lane l of the block of V."""
    A.reshape(-1, p)[rows[first : first + HALF]] = V[first * p : (first + HALF) * p].reshape(p, HALF).T


def load(a, at, beside):
    """Eight numbers of an array from `at` on, and eight from at + beside on."""
    return np.concatenate([a[at : at + HALF], a[at + beside : at + beside + HALF]])


def store(v, a, at, beside):
    """Write them."""
    a[at : at + HALF], a[at + beside : at + beside + HALF] = v[:HALF], v[HALF:]


def splat(x):
    """Sixteen times x."""
    return np.full(WIDTH, x)


def less(a, b, x, y):
    """x where a < b, y elsewhere."""
    return np.where(a < b, x, y)


def differ(a, b):
    """Whether a and b differ anywhere."""
    return bool((a != b).any())


if not DISABLED:
    from llvmlite import ir
    from numba.core import cgutils
    from numba.extending import intrinsic, models, overload, register_model

    FUSED = ("contract",)  # flags of its own keep an operation from those of the kernel around: sums in any order
    WORD, _PLACE, _BITS = ir.IntType(64), ir.IntType(32), ir.IntType(WIDTH)
    REALS, _LONG = (ir.VectorType(ir.DoubleType(), size) for size in (HALF, WIDTH))
    ZEROS = ir.Constant(REALS, [0.0] * HALF)

    class Code:
        """What is written for one call on blocks: pointers to the data of its arrays, and code on them."""

        def __init__(self, context, builder, signature, args):
            self.b, self.values = builder, []
            for kind, value in zip(signature.args, args, strict=True):
                array = isinstance(kind, types.Array)
                self.values.append(context.make_array(kind)(context, builder, value).data if array else value)
            self.first, self.p = self.values[2], self.values[3]

        def at(self, pointer, place, size):
            """Address of a vector of so many numbers."""
            kind = ir.VectorType(ir.DoubleType(), size) if size > 1 else ir.DoubleType()
            return self.b.bitcast(self.b.gep(pointer, [place]), kind.as_pointer())

        def load(self, pointer, place, size=HALF):
            """Numbers of an array, as a vector or one."""
            return self.b.load(self.at(pointer, place, size), align=8)

        def store(self, value, pointer, place, size=HALF):
            """Write them."""
            self.b.store(value, self.at(pointer, place, size), align=8)

        def coordinate(self, q):
            """Where the block's coordinate begins."""
            return self.b.add(self.b.mul(self.first, self.p), self.b.shl(q, WORD(3)))

        def numbers(self, rows):
            """Numbers of the rows of all lanes."""
            return [self.b.load(self.b.gep(rows, [self.b.add(self.first, WORD(l))])) for l in range(HALF)]

        def rows(self, A, numbers):
            """Addresses of rows."""
            return [self.b.gep(A, [self.b.mul(row, self.p)]) for row in numbers]

        def by_pairs(self, each):
            """Call each(q, 2) for pairs of coordinates, then each(q, 1) for one that is left."""
            b = self.b
            with cgutils.for_range(b, b.lshr(self.p, WORD(1))) as loop:
                each(b.shl(loop.index, WORD(1)), 2)
            with b.if_then(b.trunc(self.p, ir.IntType(1))):
                each(b.sub(self.p, WORD(1)), 1)

        def shuffled(self, x, y, places):
            """Return a vector of entries of x and y, which are counted through both."""
            return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(_PLACE, len(places)), list(places)))

        def packed(self, numbers):
            """Return a vector of eight numbers."""
            vector = ir.Constant(REALS, ir.Undefined)
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
            """Return x y, which may be fused with a sum."""
            return self.b.fmul(x, y, flags=FUSED)

    # a vector of lanes 0, 2, 4, 6, each with two coordinates, and one of lanes 1, 3, 5, 7, make two of one coordinate
    _FIRST, _SECOND = [0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15]

    def copy_rows(code, lanes, V, seen=None):
        """Copy rows at addresses into the block of V; seen(parity, at, vector) is told of each coordinate."""
        b = code.b

        def coordinate(q, parity, vector):
            at = code.coordinate(b.add(q, WORD(parity)))
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
            y = code.load(V, code.coordinate(b.add(q, WORD(1)))) if size == 2 else x
            for l, lane in enumerate(lanes):
                own = code.shuffled(x, y, [l, HALF + l]) if size == 2 else b.extract_element(x, _PLACE(l))
                code.store(own, lane, q, size)

        code.by_pairs(each)

    def _gathered(_, A, rows, first, p, V):
        def generate(context, builder, signature, args):
            code = Code(context, builder, signature, args)
            copy_rows(code, code.rows(code.values[0], code.numbers(code.values[1])), code.values[4])
            return context.get_dummy_value()

        return types.none(A, rows, first, p, V), generate

    def _scattered(_, V, rows, first, p, A):
        def generate(context, builder, signature, args):
            _scatter(Code(context, builder, signature, args))
            return context.get_dummy_value()

        return types.none(V, rows, first, p, A), generate

    class _Sixteen(types.Type):
        """Sixteen numbers."""

    _SIXTEEN = _Sixteen("sixteen")

    @register_model(_Sixteen)
    class _Model(models.PrimitiveModel):
        def __init__(self, manager, kind):
            super().__init__(manager, kind, _LONG)

    def _made(write, result, number):
        """Return the function of so many arguments that calls mean whose code is written here."""

        def typed(*args):
            return result(*args), write

        by_number: Any = {
            1: lambda _, a: typed(a),
            2: lambda _, a, b: typed(a, b),
            3: lambda _, a, b, c: typed(a, b, c),
            4: lambda _, a, b, c, d: typed(a, b, c, d),
        }
        made: Any = intrinsic
        return made(by_number[number])

    def _place(builder, data, at):
        return builder.bitcast(builder.gep(data, [at]), REALS.as_pointer())

    def _part(b, x, y, places):
        return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(_PLACE, len(places)), list(places)))

    def _load(context, b, signature, values):
        data = context.make_array(signature.args[0])(context, b, values[0]).data
        halves = [b.load(_place(b, data, at), align=8) for at in (values[1], b.add(values[1], values[2]))]
        return _part(b, *halves, range(WIDTH))

    def _store(context, b, signature, values):
        data = context.make_array(signature.args[1])(context, b, values[1]).data
        for at, first in ((values[2], 0), (b.add(values[2], values[3]), HALF)):
            b.store(_part(b, values[0], values[0], range(first, first + HALF)), _place(b, data, at), align=8)
        return context.get_dummy_value()

    def _splat(context, b, signature, values):
        v = b.insert_element(ir.Constant(_LONG, ir.Undefined), values[0], _PLACE(0))
        return _part(b, v, v, [0] * WIDTH)

    def _less(context, b, signature, values):
        return b.select(b.fcmp_ordered("<", *values[:2]), *values[2:])

    def _differ(context, b, signature, values):
        return b.icmp_unsigned("!=", b.bitcast(b.fcmp_unordered("!=", *values), _BITS), _BITS(0))

    _made_of: Any = intrinsic
    gather, scatter = _made_of(_gathered), _made_of(_scattered)
    load, store, splat = _made(_load, _SIXTEEN, 3), _made(_store, types.none, 4), _made(_splat, _SIXTEEN, 1)
    less, differ = _made(_less, _SIXTEEN, 4), _made(_differ, types.boolean, 2)

    def _operation(symbol, name):
        made = _made(lambda context, b, signature, values: getattr(b, name)(*values), _SIXTEEN, 2)

        @overload(symbol)
        def of_both(a, b):
            return (lambda a, b: made(a, b)) if a is _SIXTEEN and b is _SIXTEEN else None

    for _symbol, _name in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
        _operation(_symbol, _name)
    _operation(operator.truediv, "fdiv")
