"""Kernels of the search for stumps: sums over bins, bounds of gains, and passes over sorted rows."""

from __future__ import annotations

import numpy as np

from fedconvex.kernels.cache import kernel, reduction, strict_part

# mypy: disable-error-code="no-untyped-def"

ROW = np.uint32(0x7FFFFFFF)  # a sorted position holds its row, and in the highest bit that no cut follows
HALF = 128  # bins of the bounds; sums of positive weights stand behind those of negative ones
LARGEST = 2.0**30  # sum of the weights of a source in whole numbers: half a word, with a sign
_SIGN, _LOW = np.int64(0x80000000), np.int64(0xFFFFFFFF)  # of the second half of a word
TINY = 1e-290  # least sum of weights that is divided by


@reduction
def pack(omega, mass, words, side):
    """Two rows of round(omega 2^30 / mass) to a word, (first << 32) + second: sums of words are words of sums.

    Returns whether all rows of omega (p, n) have the same signs, by which side leads to one of two tables.
    """
    p, n = omega.shape
    for e in range(p):
        mass[e] = 0.0
        for i in range(n):
            mass[e] += abs(omega[e, i])
    for h in range(words.shape[0]):
        first, second = omega[2 * h], omega[min(2 * h + 1, p - 1)]
        a = LARGEST / max(mass[2 * h], TINY)
        b = LARGEST / max(mass[min(2 * h + 1, p - 1)], TINY)
        for i in range(n):
            words[h, i] = (np.int64(np.rint(a * first[i])) << 32) + np.int64(np.rint(b * second[i]))
    signs = 0
    for i in range(n):
        seen = 0
        for e in range(p):
            seen |= (1 if omega[e, i] > 0.0 else 0) + (2 if omega[e, i] < 0.0 else 0)
        side[i] = HALF if seen == 1 else 0
        signs |= 1 if seen == 3 else 0
    return signs == 0


@strict_part
def half(word, which):
    """Return the first (0) or second (1) number of a word."""
    second = ((word + _SIGN) & _LOW) - _SIGN
    return second if which == 1 else (word - second) >> 32


@strict_part
def tally(code, features, start, offset, w, table):
    """table[f, offset_i + bin of row i] = sum of w_i for four features, the last one again where there are fewer."""
    most = features.size - 1
    table[:] = 0
    j0, j1 = features[start], features[min(start + 1, most)]
    j2, j3 = features[min(start + 2, most)], features[min(start + 3, most)]
    c0, c1, c2, c3 = code[j0], code[j1], code[j2], code[j3]
    t0, t1, t2, t3 = table[0], table[1], table[2], table[3]
    for i in range(w.size):
        x, o = w[i], np.uint32(0)
        if offset is not None:
            o = np.uint32(offset[i])
        t0[o + c0[i]] += x
        t1[o + c1[i]] += x
        t2[o + c2[i]] += x
        t3[o + c3[i]] += x


@kernel
def corners(code, side, words, gini, sums, tops):
    """tops[e, j] = largest gain at a corner of the bins' rectangles, in whole numbers; sums are kept."""
    p, d = tops.shape
    features = np.arange(d)
    for h in range(words.shape[0]):
        for j in range(0, d, 4):
            tally(code, features, j, side, words[h], sums[h, j : j + 4])
            for f in range(j, min(j + 4, d)):
                for which in range(min(2, p - 2 * h)):
                    total, mass = totals(sums[h, f], which)
                    best = 0.0 if gini else abs(total)
                    a = c = 0.0  # sums of positive and of negative weights so far
                    for b in range(HALF):
                        up, down = half(sums[h, f, HALF + b], which), half(sums[h, f, b], which)
                        best = max(best, corner(a, c, up, down, total, mass, gini))
                        a, c = a + up, c + down
                    tops[2 * h + which, f] = best


@strict_part
def totals(sums, which):
    """Return the sum of the weights and that of their sizes."""
    plus = minus = 0.0
    for b in range(HALF):
        plus += half(sums[HALF + b], which)
        minus += half(sums[b], which)
    return plus + minus, plus - minus


@strict_part
def corner(a, c, up, down, total, mass, gini):
    """Return the largest gain while the positive sum goes from a to a + up and the negative one from c to c + down."""
    if not gini:
        return max(2.0 * (a + c + up) - total, total - 2.0 * (a + c + down))
    end = gini_gain(a + up, c + down, total, mass)
    return max(end, gini_gain(a + up, c, total, mass), gini_gain(a, c + down, total, mass))


@kernel
def inside_bins(order, starts, words, sums, which, gini, features, alive, tops):
    """tops[j] = largest gain of a cut inside bins whose corners reach the number alive, for the given features."""
    for j in features:
        total, mass = totals(sums[j], which)
        best = -np.inf if gini else abs(total)
        a = c = 0.0
        for b in range(HALF):
            up, down = half(sums[j, HALF + b], which), half(sums[j, b], which)
            if corner(a, c, up, down, total, mass, gini) >= alive:
                s, t = a, c
                for i in range(starts[b], starts[b + 1]):
                    x = half(words[order[j, i] & ROW], which)
                    s, t = s + max(x, 0), t + min(x, 0)
                    if order[j, i] <= ROW:
                        gain = (
                            gini_gain(s, t, total, mass) if gini else max(2.0 * (s + t) - total, total - 2.0 * (s + t))
                        )
                        best = max(best, gain)
            a, c = a + up, c + down
        tops[j] = best


@strict_part
def gini_gain(a, c, total, mass):
    """L^2/W_L + R^2/W_R - S^2/W for positive weights a and negative ones c on the left; it bends most at the ends."""
    u = a - c
    t, low = mass * (a + c) - total * u, u * (mass - u)
    return t * t / (mass * low) if low > 1e-15 * mass * mass else 0.0


@kernel
def extremes(order, features, w, total, gains, spots):
    """For every given feature the largest gain of a cut, and whether its left sum is the largest or the least."""
    m, n = features.size, order.shape[1]
    for j in range(0, m, 4):
        j0, j1 = features[j], features[min(j + 1, m - 1)]
        j2, j3 = features[min(j + 2, m - 1)], features[min(j + 3, m - 1)]
        a, b, c, e = order[j0], order[j1], order[j2], order[j3]
        s0 = s1 = s2 = s3 = 0.0
        h0 = h1 = h2 = h3 = -np.inf
        l0 = l1 = l2 = l3 = np.inf
        for i in range(n):
            p, q, r, t = a[i], b[i], c[i], e[i]
            s0, s1, s2, s3 = s0 + w[p & ROW], s1 + w[q & ROW], s2 + w[r & ROW], s3 + w[t & ROW]
            if p <= ROW:
                h0, l0 = max(h0, s0), min(l0, s0)
            if q <= ROW:
                h1, l1 = max(h1, s1), min(l1, s1)
            if r <= ROW:
                h2, l2 = max(h2, s2), min(l2, s2)
            if t <= ROW:
                h3, l3 = max(h3, s3), min(l3, s3)
        for k, h, l in ((j0, h0, l0), (j1, h1, l1), (j2, h2, l2), (j3, h3, l3)):
            gains[k] = max(2.0 * h - total, total - 2.0 * l)
            spots[k] = 1 if 2.0 * h - total >= total - 2.0 * l else 0


@kernel
def locate(order, w, largest):
    """Return the first allowed cut of one feature whose left sum is largest (or least)."""
    s, best, where = 0.0, -np.inf, -1
    for i in range(order.size):
        s += w[order[i] & ROW]
        v = s if largest else -s
        if order[i] <= ROW and v > best:
            best, where = v, i
    return where


@kernel
def gini_cuts(order, features, parts, mass, gains, spots):
    """For every given feature the largest t^2/(W u (W - u)), and its first sorted position; two features at a time.

    t and u are prefix sums of z = W w - S |w| and of |w|, parts (n, 2); L^2/u + R^2/(W-u) - S^2/W = t^2/(W u (W-u)).
    """
    least, m, n = 1e-15 * mass * mass, features.size, order.shape[1]
    for f in range(0, m, 2):
        j, k = features[f], features[min(f + 1, m - 1)]
        a, b = order[j], order[k]
        s = t = u = v = 0.0
        first = second = -1.0
        spots[j] = spots[k] = -1
        for i in range(n):
            p, q = a[i] & ROW, b[i] & ROW
            s, u, t, v = s + parts[p, 0], u + parts[p, 1], t + parts[q, 0], v + parts[q, 1]
            low = u * (mass - u)
            if s * s > first * low and low > least and a[i] <= ROW:
                first, spots[j] = s * s / low, i
            low = v * (mass - v)
            if t * t > second * low and low > least and b[i] <= ROW:
                second, spots[k] = t * t / low, i
        gains[k], gains[j] = second / mass, first / mass


@kernel
def bin_tops(code, words, counts, table, tops):
    """tops[e, j] = the largest gain |L| + |S - L| of a cut, in whole numbers."""
    p, d = tops.shape
    features = np.arange(d)
    for h in range(words.shape[0]):
        for j in range(0, d, 4):
            tally(code, features, j, None, words[h], table)
            for f in range(min(4, d - j)):
                for which in range(min(2, p - 2 * h)):
                    total = s = high = low = 0.0
                    for b in range(counts[j + f] + 1):
                        total += half(table[f, b], which)
                    for b in range(counts[j + f]):
                        s += half(table[f, b], which)
                        high, low = max(high, s), min(low, s)
                    tops[2 * h + which, j + f] = max(2.0 * high - total, total - 2.0 * low, abs(total))


@kernel
def bin_cuts(code, features, w, heavy, gini, counts, mass, sums, masses, total, gains, spots, lefts):
    """For every given feature the largest gain, its first bin and the left sum; cuts follow bins 0, ..., counts - 1."""
    for f in range(features.size):
        if f % 4 == 0:
            tally(code, features, f, None, w, sums)
            if gini:
                tally(code, features, f, None, heavy, masses)
        j, s, u, best, row = features[f], 0.0, 0.0, -1.0, sums[f % 4]
        spot, left = spots[j], lefts[j]
        for b in range(counts[j]):
            s += row[b]
            if not gini:
                gain = abs(s) + abs(total - s)
            else:
                u += masses[f % 4, b]
                if not u * (mass - u) > 1e-15 * mass * mass:
                    continue
                gain = s * s / u + (total - s) * (total - s) / (mass - u)
            if gain > best:
                best, spot, left = gain, b, s
        gains[j], spots[j], lefts[j] = best, spot, left
