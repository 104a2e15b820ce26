"""Sums over risk sets, and what they make of rows: kernels. Nothing overflows, and no sum is made by subtraction.

A sum of e^z is kept as e^c s with c the largest exponent in it. Each row's e^z is e^zeta E: where the scores of a
segment differ by less than 300, zeta is the largest of them for all rows, and no power has to be computed anew. Rows
of a segment (a stratum of a client) are at risk at event times first <= u < stop, numbered within the segment. A row
whose own event stands at u = own enters there beside, with the tied events, because Efron's method weighs these apart.

Without delayed entry, first = 0, the sums are cumulative from the last event time to the first. Otherwise rows are
sorted into levels (the disjoint sparse table). At level l >= 1 event times stand in halves of 2^(l-1); a row crosses
one border between a left and a right half of a block, at its level only. Sums cumulate within halves, forward in left
ones and backward in right ones, so that each row is added at two places, and the sum at u collects one place a level.
Sums over the event times of a row run the other way.
"""

from __future__ import annotations

import math

import numpy as np

from fedconvex.kernels.cache import kernel, strict_part


@strict_part
def power(t: float) -> float:
    """e^t, at once where t = 0."""
    return 1.0 if t == 0.0 else math.exp(t)


@strict_part
def add(
    c: np.ndarray, s: np.ndarray, v: np.ndarray, u: int, z: float, a: float, b: float, V: np.ndarray, i: int
) -> None:
    """e^c[u] (s[u], v[u]) += e^z (a, b V[i])."""
    if z == -np.inf:
        return
    if z > c[u]:
        f = math.exp(c[u] - z)
        c[u] = z
        s[u] *= f
        for k in range(v.shape[1]):
            v[u, k] *= f
    f = power(z - c[u])
    s[u] += f * a
    for k in range(v.shape[1]):
        v[u, k] += f * b * V[i, k]


@strict_part
def cumulate(c: np.ndarray, s: np.ndarray, v: np.ndarray, D: int, level: int, over_rows: bool) -> None:
    """Cumulate within the halves of a level: of sums over rows at event times, or over event times of rows."""
    half = D if level == 0 else 1 << (level - 1)
    for lo in range(0, D, half):
        hi = min(lo + half, D)
        right = level == 0 or (lo // half) % 2 == 1
        if right == over_rows:
            for u in range(hi - 2, lo - 1, -1):
                add(c, s, v, u, c[u + 1], s[u + 1], 1.0, v, u + 1)
        else:
            for u in range(lo + 1, hi):
                add(c, s, v, u, c[u - 1], s[u - 1], 1.0, v, u - 1)


@strict_part
def clear(c: np.ndarray, s: np.ndarray, v: np.ndarray, D: int) -> None:
    """Set e^c (s, v) = 0 at the first D places."""
    for u in range(D):
        c[u] = -np.inf
        s[u] = 0.0
        for k in range(v.shape[1]):
            v[u, k] = 0.0


@strict_part
def risk_sums(
    X: np.ndarray, z: np.ndarray, E: np.ndarray, at: np.ndarray, lo: int, hi: int, D: int, levels: int,
    C: np.ndarray, S: np.ndarray, V: np.ndarray, c: np.ndarray, s: np.ndarray, v: np.ndarray,
) -> None:  # fmt: skip
    """e^C[u] (S[u], V[u]) = sum of e^z_j E_j (1, x_j) over the rows at risk at u, without the events there."""
    clear(C, S, V, D)
    for j in range(lo, hi):
        if at[j, 2] == 0:
            u = at[j, 1] - 1
            if z[j] == C[u]:  # as nearly always: `add` itself would be a call
                S[u] += E[j]
                for k in range(V.shape[1]):
                    V[u, k] += E[j] * X[j, k]
            else:
                add(C, S, V, u, z[j], E[j], E[j], X, j)
    cumulate(C, S, V, D, 0, True)
    for level in range(1, levels + 1):
        clear(c, s, v, D)
        for j in range(lo, hi):
            if at[j, 2] == level:
                add(c, s, v, at[j, 0], z[j], E[j], E[j], X, j)
                if at[j, 1] - 1 > at[j, 0]:
                    add(c, s, v, at[j, 1] - 1, z[j], E[j], E[j], X, j)
        cumulate(c, s, v, D, level, True)
        for u in range(D):
            add(C, S, V, u, c[u], s[u], 1.0, v, u)


@strict_part
def less_gram(H: np.ndarray, B: np.ndarray, b: np.ndarray, filled: int) -> None:
    """H -= sum of b_i B_i B_i' over the rows of a block, the lower triangle; rows beyond those filled are zeroed."""
    for i in range(filled, filled + (-filled) % 4):
        b[i] = 0.0
        for k in range(B.shape[1]):
            B[i, k] = 0.0
    for i in range(0, filled, 4):
        for k in range(B.shape[1]):
            p, q, r, t = b[i] * B[i, k], b[i + 1] * B[i + 1, k], b[i + 2] * B[i + 2, k], b[i + 3] * B[i + 3, k]
            for m in range(k + 1):
                H[k, m] -= p * B[i, m] + q * B[i + 1, m] + (r * B[i + 2, m] + t * B[i + 3, m])


@strict_part
def join_events(
    X: np.ndarray, z: np.ndarray, E: np.ndarray, start: int, d: int, u: int, C: np.ndarray, S: np.ndarray,
    V: np.ndarray, T: np.ndarray, at: int,
) -> float:  # fmt: skip
    """Return the sum of e^(z - m) E over the events at u, T[at] that of x e^(z - m) E; C[u] becomes m."""
    m, tied = C[u], 0.0
    for j in range(start, start + d):
        m = max(m, z[j])
    f = power(C[u] - m)
    C[u] = m
    S[u] *= f
    for k in range(V.shape[1]):
        V[u, k] *= f
        T[at, k] = 0.0
    for j in range(start, start + d):
        f = power(z[j] - m) * E[j]
        tied += f
        for k in range(V.shape[1]):
            T[at, k] += f * X[j, k]
    return tied


@strict_part
def store_squares(
    omega: float, h: np.ndarray, V: np.ndarray, u: int, T: np.ndarray, at: int, B: np.ndarray, b: np.ndarray, i: int
) -> int:
    """Put rows r into the block so that sum b r r' = omega sum_r m_r m_r', m_r = (V + share_r T)/theta_r.

    With (alpha, beta, gamma) = h[u, 2:5], sums of (1, share, share^2)/theta^2: factored; returned is their number.
    """
    root = math.sqrt(h[u, 2])
    rest = h[u, 4] - h[u, 3] * h[u, 3] / h[u, 2]
    b[i] = omega
    for k in range(V.shape[1]):
        B[i, k] = root * V[u, k] + h[u, 3] / root * T[at, k]
    if not rest > 1e-15 * h[u, 4]:
        return 1
    b[i + 1] = omega * rest
    for k in range(V.shape[1]):
        B[i + 1, k] = T[at, k]
    return 2


@strict_part
def event_terms(
    X: np.ndarray, z: np.ndarray, E: np.ndarray, start: np.ndarray, deaths: np.ndarray, omega: np.ndarray, D: int,
    efron: bool, C: np.ndarray, S: np.ndarray, V: np.ndarray, h: np.ndarray, block: tuple, H: np.ndarray,
) -> float:  # fmt: skip
    """Return sum_u omega_u sum_r log theta_ur; h as in `client_sums`; H -= squares of the means of risk sets."""
    B, b, T = block
    N, some, filled = 0.0, 0.0, 0
    for u in range(D):
        at = u if len(T) > 1 else 0
        tied = join_events(X, z, E, start[u], deaths[u], u, C, S, V, T, at)
        for k in range(5):
            h[u, k] = 0.0
        for r in range(deaths[u]):
            share = 1.0 - r / deaths[u] if efron else 1.0
            q = 1.0 / (S[u] + share * tied)
            some -= omega[u] * (math.log(q) - C[u])
            h[u, 0] += q
            h[u, 1] += share * q
            h[u, 2] += q * q
            h[u, 3] += share * q * q
            h[u, 4] += share * share * q * q
        if V.shape[1] > 0:
            if filled > len(B) - 6:
                less_gram(H, B, b, filled)
                filled = 0
            filled += store_squares(omega[u], h, V, u, T, at, B, b, filled)
        if u % 256 == 255:  # in blocks, which keeps the rounding of long sums small
            N, some = N + some, 0.0
    less_gram(H, B, b, filled)
    return N + some


@strict_part
def expected_events(
    z: np.ndarray, E: np.ndarray, at: np.ndarray, lo: int, hi: int, omega: np.ndarray, D: int, levels: int,
    C: np.ndarray, h: np.ndarray, c: np.ndarray, s: np.ndarray, v: np.ndarray, e: np.ndarray,
) -> None:  # fmt: skip
    """e_j = sum of omega_u e^z_j/theta_ur over the event times of row j, at its own with the shares of tied events."""
    for level in range(levels + 1):
        for u in range(D):
            c[u] = -C[u]
            s[u] = omega[u] * h[u, 0]
        cumulate(c, s, v, D, level, False)
        for j in range(lo, hi):
            if at[j, 2] == level:
                a, b = at[j, 0], at[j, 1] - 1
                e[j] += power(z[j] + c[b]) * E[j] * s[b]
                if level > 0 and a < b:
                    e[j] += power(z[j] + c[a]) * E[j] * s[a]
    for j in range(lo, hi):
        if at[j, 3] >= 0:
            u = at[j, 3]
            e[j] += power(z[j] - C[u]) * E[j] * (omega[u] * h[u, 1])


@strict_part
def split(z: np.ndarray, lo: int, hi: int, zeta: np.ndarray, E: np.ndarray) -> None:
    """e^z = e^zeta E: one zeta for all rows where scores differ by less than 300."""
    low, high = z[lo], z[lo]
    numbers = True
    for j in range(lo, hi):
        low, high, numbers = min(low, z[j]), max(high, z[j]), numbers and z[j] == z[j]
    near = numbers and high - low < 300.0
    for j in range(lo, hi):
        zeta[j] = high if near else z[j]
        E[j] = math.exp(z[j] - high) if near else 1.0


@kernel
def client_sums(
    X: np.ndarray, z: np.ndarray, at: np.ndarray, rows: np.ndarray, times: np.ndarray, levels: np.ndarray,
    start: np.ndarray, deaths: np.ndarray, omega: np.ndarray, efron: bool, segments: tuple[int, int],
    sums: tuple, V: np.ndarray, room: tuple, v: np.ndarray, none: np.ndarray, block: tuple,
    H: np.ndarray, e: np.ndarray,
) -> float:  # fmt: skip
    """Return sum_u omega_u sum_r log theta_ur over a client's segments; e as `expected_events`, H -= means' squares.

    Segment g has rows rows[g]:rows[g+1] and event times times[g]:times[g+1]. ``V`` and ``v`` have p columns, or none,
    and then there is no H. In sums = (C, S, h), h[u] = sum_r (q, share q, q^2, share q^2, share^2 q^2), q = e^C/theta.
    """
    N = 0.0
    c, s, zeta, E = room
    for g in range(segments[0], segments[1]):
        lo, hi, first, last = rows[g], rows[g + 1], times[g], times[g + 1]
        if first == last:
            continue
        split(z, lo, hi, zeta, E)
        C, S, h, mine = sums[0][first:last], sums[1][first:last], sums[2][first:last], omega[first:last]
        risk_sums(X, zeta, E, at, lo, hi, last - first, levels[g], C, S, V, c, s, v)
        when, d = start[first:last], deaths[first:last]
        N += event_terms(X, zeta, E, when, d, mine, last - first, efron, C, S, V, h, block, H)
        expected_events(zeta, E, at, lo, hi, mine, last - first, levels[g], C, h, c, s, none, e)
    return N


@kernel
def scores_of(X: np.ndarray, lo: int, hi: int, w: np.ndarray, z: np.ndarray) -> None:
    """z_j = x_j'w: equal rows have equal scores, whatever their neighbours."""
    for j in range(lo, hi):
        total = 0.0
        for k in range(w.size):
            total += X[j, k] * w[k]
        z[j] = total


@kernel
def add_rows(X: np.ndarray, lo: int, hi: int, e: np.ndarray, g: np.ndarray) -> None:
    """g += sum of e_j x_j."""
    for j in range(lo, hi):
        for k in range(g.size):
            g[k] += e[j] * X[j, k]


@kernel
def add_gram(X: np.ndarray, lo: int, hi: int, e: np.ndarray, H: np.ndarray) -> None:
    """H += sum of e_j x_j x_j', the lower triangle, four rows at a time."""
    for j in range(lo, hi - 3, 4):
        for k in range(X.shape[1]):
            p, q, r, t = e[j] * X[j, k], e[j + 1] * X[j + 1, k], e[j + 2] * X[j + 2, k], e[j + 3] * X[j + 3, k]
            for m in range(k + 1):
                H[k, m] += p * X[j, m] + q * X[j + 1, m] + (r * X[j + 2, m] + t * X[j + 3, m])
    for j in range(hi - (hi - lo) % 4, hi):
        for k in range(X.shape[1]):
            for m in range(k + 1):
                H[k, m] += e[j] * X[j, k] * X[j, m]


@kernel
def sum_over_events(
    z: np.ndarray, at: np.ndarray, rows: np.ndarray, times: np.ndarray, levels: np.ndarray, segments: tuple[int, int],
    C: np.ndarray, values: np.ndarray, own: np.ndarray, c: np.ndarray, s: np.ndarray, v: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """out_j += e^z_j (sum of e^-C[u] values[u] over its event times, and e^-C[u] own[u] at its own event's)."""
    for g in range(segments[0], segments[1]):
        lo, hi, D, first = rows[g], rows[g + 1], times[g + 1] - times[g], times[g]
        for level in range(levels[g] + 1 if D > 0 else 0):
            for u in range(D):
                c[u], s[u] = -C[first + u], 0.0
                for k in range(v.shape[1]):
                    v[u, k] = values[first + u, k]
            cumulate(c, s, v, D, level, False)
            for j in range(lo, hi):
                if at[j, 2] == level:
                    a, b = at[j, 0], at[j, 1] - 1
                    for k in range(v.shape[1]):
                        out[j, k] += power(z[j] + c[b]) * v[b, k]
                        if level > 0 and a < b:
                            out[j, k] += power(z[j] + c[a]) * v[a, k]
        for j in range(lo, hi):
            if at[j, 3] >= 0:
                for k in range(v.shape[1]):
                    out[j, k] += power(z[j] - C[first + at[j, 3]]) * own[first + at[j, 3], k]


@kernel
def count_pairs(
    rank: np.ndarray, at: np.ndarray, by_first: np.ndarray, lo: int, hi: int, D: int, start: np.ndarray,
    deaths: np.ndarray, tree: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """out += pairs of an event and a row at risk beyond it whose rank is lower, equal, higher; ranks are 1, 2, ...

    ``tree`` (zeros, longer than any rank) counts rows by ranks, added when they come to be at risk, last time first.
    """
    j, m, inside = hi - 1, lo, 0
    for u in range(D - 1, -1, -1):
        while j >= lo and at[j, 1] > u:
            if at[j, 2] >= 0:
                inside += move(tree, rank[j], 1)
            j -= 1
        while m < hi and at[by_first[m], 0] > u:
            if at[by_first[m], 2] >= 0:
                inside += move(tree, rank[by_first[m]], -1)
            m += 1
        for i in range(start[u], start[u] + deaths[u]):
            below = up_to(tree, rank[i] - 1)
            equal = up_to(tree, rank[i]) - below
            out[0] += below
            out[1] += equal
            out[2] += inside - below - equal
    for k in range(tree.size):
        tree[k] = 0


@strict_part
def move(tree: np.ndarray, rank: int, step: int) -> int:
    """Add a step to the count of a rank (Fenwick tree), and return it."""
    while rank < tree.size:
        tree[rank] += step
        rank += rank & -rank
    return step


@strict_part
def up_to(tree: np.ndarray, rank: int) -> int:
    """Return the counts of the ranks 1, ..., rank together."""
    total = 0
    while rank > 0:
        total += tree[rank]
        rank -= rank & -rank
    return total
