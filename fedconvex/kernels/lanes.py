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

from fedconvex.draws import _GOLDEN, _M1, _M2, below, mix
from fedconvex.kernels.cache import DISABLED, strict_part, types
from fedconvex.kernels.dispatch import slope
from fedconvex.kernels.vectors import HALF as LANES
from fedconvex.kernels.vectors import gather

# mypy: disable-error-code="no-untyped-def"


def mix_in(state, numbers, first, out):
    """out[l] = the key of a stream, as far as it is mixed, after its next coordinate numbers[l]."""
    for l in range(first, first + LANES):
        out[l] = mix(np.uint64(state[l]) + _GOLDEN * np.uint64(numbers[l] + 1)).astype(np.int64)


def draw(state, lo, first, s, n, rows):
    """rows[l] = draw number s of the stream state[l], one of n[l] rows from lo[l] on."""
    for l in range(first, first + LANES):
        rows[l] = lo[l] + below(np.uint64(state[l]), s, n[l])


def part(picks, i, top):
    """picks[i, l] = top where an earlier picks[j, l] is the same: samples without replacement, by Floyd's method."""
    picks[i] = np.where((picks[:i] == picks[i]).any(axis=0), top, picks[i])


def average(V, weights, lanes, p, out):
    """Add the blocks of so many lanes up with their weights: out is one block, of averages over every eighth lane."""
    total = 0.0
    for first in range(0, lanes, LANES):
        total = total + (weights[first : first + LANES] * V[first * p : (first + LANES) * p].reshape(p, LANES))
    out[: LANES * p] = total.ravel()


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

    from fedconvex.kernels.vectors import FUSED, REALS, WORD, ZEROS, Code, copy_rows

    WORDS, _FLAGS = ir.VectorType(WORD, LANES), ir.VectorType(ir.IntType(1), LANES)

    _STRICT = ("arcp",)  # says nothing of products and sums, and keeps them from the flags of the kernel around

    def _all(b, word):
        """Return a vector of one word."""
        if isinstance(word, int):
            return ir.Constant(WORDS, [word] * LANES)
        one = b.insert_element(ir.Constant(WORDS, ir.Undefined), word, ir.IntType(32)(0))
        return b.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))

    def _mixed(b, z):
        """Return `draws.mix` of a vector of words."""
        for shift, factor in ((30, _M1), (27, _M2)):
            z = b.mul(b.xor(z, b.lshr(z, _all(b, shift))), _all(b, int(factor)))
        return b.xor(z, b.lshr(z, _all(b, 31)))

    def _words(code, array):
        return code.b.bitcast(code.b.gep(array, [code.first]), WORDS.as_pointer())

    def _mix_in(code):
        (state, numbers, _, out), b = code.values, code.b
        state, numbers = (b.load(_words(code, array), align=8) for array in (state, numbers))
        z = b.add(state, b.mul(_all(b, int(_GOLDEN)), b.add(numbers, _all(b, 1))))
        b.store(_mixed(b, z), _words(code, out), align=8)

    def _row(b, picks, i):
        return b.bitcast(b.gep(picks, [b.shl(i, WORD(3))]), WORDS.as_pointer())

    def _part(context, b, signature, args):
        picks = context.make_array(signature.args[0])(context, b, args[0]).data
        place = _row(b, picks, args[1])
        pick, same = b.load(place, align=8), cgutils.alloca_once_value(b, ir.Constant(_FLAGS, [0] * LANES))
        with cgutils.for_range(b, args[1]) as loop:
            other = b.load(_row(b, picks, loop.index), align=8)
            b.store(b.or_(b.load(same), b.icmp_signed("==", other, pick)), same)
        b.store(b.select(b.load(same), _all(b, args[2]), pick), place, align=8)
        return context.get_dummy_value()

    def _average(code):
        (V, weights, lanes, p, out), b = code.values, code.b
        total = cgutils.alloca_once_value(b, ZEROS)
        with cgutils.for_range(b, p) as entry:
            own = b.shl(entry.index, WORD(3))

            def product(first, own=own):
                place = b.add(b.mul(first, p), own)
                return b.fmul(code.load(weights, first), code.load(V, place), flags=_STRICT)

            b.store(product(WORD(0)), total)
            with cgutils.for_range_slice(b, WORD(LANES), lanes, WORD(LANES), inc=True) as (first, _):
                b.store(b.fadd(b.load(total), product(first), flags=_STRICT), total)
            code.store(b.load(total), out, own)

    def _draw(code):
        (state, lo, _, s, n, rows), b = code.values, code.b
        state, lo, n = (b.load(_words(code, array), align=8) for array in (state, lo, n))
        z = _mixed(b, b.add(state, _all(b, b.mul(b.add(s, WORD(1)), WORD(int(_GOLDEN))))))
        u = b.fmul(b.sitofp(b.lshr(z, _all(b, 11)), REALS), ir.Constant(REALS, [2.0**-53] * LANES), flags=FUSED)
        row = b.fptosi(b.fmul(u, b.sitofp(n, REALS), flags=FUSED), WORDS)
        b.store(b.add(lo, row), _words(code, rows), align=8)

    def _of_words(write):
        """Return how the code of a call on arrays of words is generated."""

        def generate(context, builder, signature, args):
            write(Code(context, builder, signature, args))
            return context.get_dummy_value()

        return generate

    def _mixed_in(_, state, numbers, first, out):
        return types.none(state, numbers, types.int64, out), _of_words(_mix_in)

    def _parted(_, picks, i, top):
        return types.none(picks, types.int64, types.int64), _part

    def _averaged(_, V, weights, lanes, p, out):
        return types.none(V, weights, types.int64, types.int64, out), _of_words(_average)

    def _drawn(_, state, lo, first, s, n, rows):
        return types.none(state, lo, types.int64, types.int64, n, rows), _of_words(_draw)

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
    mix_in, draw, part = made(_mixed_in), made(_drawn), made(_parted)
    average, step = made(_averaged), made(_stepped)
