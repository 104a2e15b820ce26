"""Free energies of many clients, each with its own cavity, minimised side by side: what one client needs is little.

Every client takes the steps of `minimise`, in its own time; the points at which clients are to be measured are measured
together. A point has a block of q and, with private parameters, one of c. Products with rows are taken together for
clients with equally many of them, and sums run within a client, so that no bit of an answer depends on who else is
there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedconvex.kernels.pieces import pause
from fedconvex.solvers.posteriors.expected_losses import ExpectedLoss
from fedconvex.solvers.posteriors.free_energy import EXACT, MEMORY, ROUGH, STEPS, Energy, Fit, Rows, minimise
from fedconvex.solvers.posteriors.gaussians import Gaussian, pack_each, roots, unpack
from fedconvex.solvers.posteriors.mean_steps import Columns

_ROWS = 1024  # at a time, of as many clients as have them
_FAILURES = (np.linalg.LinAlgError, ValueError)
_START, _JUMP = np.inf, 0.0  # what a client asks for, if it is not a share of the full step
_INDEPENDENT = 1e-10  # share of the largest entry below which a triangular factor counts as singular

Start = tuple[Gaussian, tuple[Gaussian, ...]]
Found = Fit | np.linalg.LinAlgError | ValueError
T = TypeVar("T", bound=tuple)


class Points(NamedTuple):
    """Means (K, B, d), and precisions (K, B, d) or (K, B, d, d), of q and of c."""

    mean: np.ndarray
    precision: np.ndarray


class Measured(NamedTuple):
    """What `Fit` says of a point, for K clients."""

    value: np.ndarray  # (K,)
    gradient: np.ndarray  # (K,)
    size: np.ndarray  # (K,)
    step: np.ndarray  # (K, B, d)
    towards: np.ndarray  # in the shape of the precisions


def minimise_each(
    priors: Sequence[Gaussian],
    private: Gaussian | None,
    clients: Sequence[Rows],
    expected: ExpectedLoss,
    starts: Sequence[Start],
) -> list[Found]:
    """Minimise the free energies of clients as `minimise` does each.

    Parameters
    ----------
    priors : sequence of Gaussian
        What takes the place of theta's prior for each client: its cavity.
    private : Gaussian or None
        Prior of every w_k.
    clients : sequence of Rows
    expected : ExpectedLoss
    starts : sequence of (Gaussian, Gaussians)
        q and, with private parameters, c_k of each client.

    Returns
    -------
    list
        Their minimisers, or what went wrong.
    """
    out: dict[int, Found] = {}
    energies = [Energy.of(p, private, [rows], expected) for p, rows in zip(priors, clients, strict=True)]
    few = [k for k, energy in enumerate(energies) if isinstance(energy.systems, Columns)]
    for k in set(range(len(clients))).difference(few):
        try:
            out[k] = minimise(priors[k], private, [clients[k]], expected, starts[k])
        except _FAILURES as error:
            out[k] = error
    first = 0
    while first < len(few):
        last, rows = first + 1, len(clients[few[first]].y)
        while last < len(few) and (rows := rows + len(clients[few[last]].y)) <= _ROWS:
            last += 1
        mine = few[first:last]
        given = [[priors[k]] if private is None else [priors[k], private] for k in mine]
        many = ManyEnergies(_points(given), [clients[k] for k in mine], expected)
        out |= zip(mine, _side_by_side(many, _points([[starts[k][0], *starts[k][1]] for k in mine])), strict=True)
        first = last
    return [out[k] for k in range(len(clients))]


def _points(blocks: Sequence[Sequence[Gaussian]]) -> Points:
    each = [[[g.mean for g in row] for row in blocks], [[g.precision for g in row] for row in blocks]]
    return Points(*(np.array(values, dtype=float) for values in each))


class ManyEnergies:
    """The free energies of clients as functions of their q and c."""

    def __init__(self, prior: Points, clients: Sequence[Rows], expected: ExpectedLoss) -> None:
        self.prior, self.expected, self.full = prior, expected, prior.precision.ndim == 4
        self.log_det = _log_dets(prior.precision, self.full)
        self.counts = np.array([len(rows.y) for rows in clients])
        alike = {n: np.flatnonzero(self.counts == n) for n in dict.fromkeys(self.counts.tolist())}
        self.place = np.empty(len(clients), dtype=int)  # of a client among those with as many rows
        self.alike = {}
        for n, who in alike.items():
            self.place[who] = np.arange(len(who))
            mine = [clients[k] for k in who.tolist()]
            X = np.array([rows.X for rows in mine])
            fields = (np.array([np.broadcast_to(rows[i], n) for rows in mine]) for i in range(1, 5))
            self.alike[n] = (X, X if self.full else X * X, *fields)

    def measured(self, who: np.ndarray, at: Points) -> tuple[Measured, dict[int, Any]]:
        """Return the free energies of some clients at their points, NaN where they fail, and how these failed."""
        try:
            return self._at(who, at), {}
        except _FAILURES as error:
            if len(who) == 1:
                nan = np.full(1, np.nan)
                return Measured(nan, nan, nan, np.full(at.mean.shape, np.nan), at.precision), {int(who[0]): error}
        each = [self.measured(who[i : i + 1], _take(at, slice(i, i + 1))) for i in range(len(who))]
        errors = {k: error for _, failed in each for k, error in failed.items()}
        return Measured(*(np.concatenate(parts) for parts in zip(*(found for found, _ in each), strict=True))), errors

    def _at(self, who: np.ndarray, at: Points) -> Measured:
        prior, full, (m, P) = _take(self.prior, who), self.full, at
        if np.isnan(self.log_det[who]).any():
            raise np.linalg.LinAlgError("the precision of a prior is not positive")
        (C, log_det), d, off = roots(P, full), m.shape[2], m - prior.mean
        value, g, H = self._losses(who, m, C)
        P0, shape = prior.precision, (H if full else np.diagonal(H, axis1=1, axis2=2))[:, None]
        pull = _scaled(P0, off)
        free = np.swapaxes(C, 2, 3) if full else C
        if full:
            turned, ends = P0 @ C, np.diagonal(C, axis1=2, axis2=3)[:, :, None]
            trace, up = C * turned, np.triu(turned + shape @ C)
            by_root = free @ (up - np.eye(d) / ends), free @ up
        else:
            trace, up, down = (P0 * C) * C, (P0 + shape) * C, 1.0 / C
            by_root = C * (up - down), C * up
        sd = np.sqrt(np.sum(C * C, axis=3)) if full else C
        size = _squares(sd * (np.abs(m) @ np.abs(H)))
        value = value + 0.5 * (_sums(trace) + _sums(off * pull) - m[0].size + _sums(log_det - self.log_det[who]))
        whole, terms = pull + g[:, None], np.abs(pull) + np.abs(g)[:, None]
        gradient = _squares(_scaled(free, whole)) + _squares(by_root[0])
        terms = _squares(_scaled(free, terms)) + _squares(by_root[1]) + m[0].size + size
        return Measured(value, np.sqrt(gradient), np.sqrt(terms), self._steps(P0, H, whole), P0 + shape)

    def _losses(self, who: np.ndarray, m: np.ndarray, C: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the expected losses (K,), X'l' (K, d), and X' diag(l'') X, (K, d, d)."""
        groups, K, d = [], len(who), m.shape[2]
        for n, (X, *fields) in self.alike.items():
            mine = np.flatnonzero(self.counts[who] == n)
            at = self.place[who[mine]]
            X, S, y, weight, mean, variance = (v if len(at) == len(v) else v[at] for v in (X, *fields))
            mu = (X @ m[mine].sum(axis=1)[:, :, None])[:, :, 0] + mean
            if self.full:
                own = sum(np.sum((X @ C[mine, b]) ** 2, axis=2) for b in range(m.shape[1]))
            else:
                own = (S @ np.sum(C[mine] ** 2, axis=1)[:, :, None])[:, :, 0]
            groups.append((mine, X, weight, y, mu, own + variance))
        mu, v, y = (np.concatenate([group[i].ravel() for group in groups]) for i in (4, 5, 3))
        found, first = self.expected.moments(mu, v, y), 0
        value, g, H = np.empty(K), np.empty((K, d)), np.empty((K, d, d))
        for mine, X, weight, *_ in groups:
            last = first + weight.size
            one, slope, bent = (weight * f[first:last].reshape(weight.shape) for f in found)
            value[mine], g[mine] = one.sum(axis=1), (slope[:, None] @ X)[:, 0]
            H[mine] = np.swapaxes(X * bent[:, :, None], 1, 2) @ X
            first = last
        return value, g, H

    def _steps(self, P0: np.ndarray, H: np.ndarray, pull: np.ndarray) -> np.ndarray:
        """Return Newton's steps in the means, as `mean_steps` has them."""
        dense = P0 if self.full else np.eye(P0.shape[2]) * P0[:, :, None]
        if pull.shape[1] == 1:
            return np.asarray(np.linalg.solve(dense[:, 0] + H, pull[:, 0, :, None]))[:, None, :, 0]
        Q, columns = dense[0, 1], pull[:, :, :, None]
        left = _inverses(Q + H)
        kept = H @ left @ Q  # H - H (Q + H)^-1 H
        schur = dense[:, 0] + 0.5 * (kept + np.swapaxes(kept, 1, 2))
        dm = np.linalg.solve(schur, columns[:, 0] - H @ (left @ columns[:, 1]))
        return np.stack([dm, left @ (columns[:, 1] - H @ dm)], axis=1)[:, :, :, 0]


def _side_by_side(energies: ManyEnergies, start: Points) -> list[Found]:
    """Return the minimisers of all, or what went wrong."""
    K, full = len(start.mean), energies.full
    out, past = dict[int, Found](), _Past(K)
    how, moves, asked = np.full(K, _START), np.zeros(K, dtype=int), np.arange(K)
    now, points = Points(*(v.copy() for v in start)), start
    here: Measured | None = None
    while asked.size:
        pause()
        there, errors = energies.measured(asked, points)
        here = here or there
        (value, gradient, size), h = (v[asked] for v in here[:3]), how[asked]
        noise = EXACT * (1.0 + np.abs(value))
        better = (there.gradient < 0.999 * gradient) | (there.value < value - noise)
        took = np.where(h == _JUMP, there.gradient < 0.9 * gradient, (h == _START) | better)
        rough = gradient > ROUGH * size  # where values that are equal up to rounding say nothing yet
        shorter = ~took & (h > 1e-6) & (rough | (there.value > value + noise))
        for k, error in errors.items():
            if how[k] != _JUMP:
                out[k] = error
        if took.sum() == K:  # nothing is copied
            here, now = there, points
        else:
            _put(here, asked[took], _take(there, took))
            _put(now, asked[took], _take(points, took))
        moves[asked[took]] += h[took] != _START
        rest = np.array([k not in out for k in asked.tolist()])
        onwards = took & (here.gradient[asked] > EXACT * here.size[asked]) & (moves[asked] < STEPS)
        past.add(asked[onwards & rest], now, here, full)
        how[asked] = np.where(h == _JUMP, 1.0, 0.5 * h)
        how[asked[took]] = np.where(past.count[asked[took]] > 2, _JUMP, 1.0)
        goes_on = rest & (onwards | shorter | (~took & (h == _JUMP)))
        for k in asked[rest & ~goes_on].tolist():
            out[k] = _fit(now, here, k)
        asked = asked[goes_on]
        points = _next(past, asked, how, now, here, full)
    return [out[k] for k in range(K)]


def _next(past: _Past, asked: np.ndarray, how: np.ndarray, now: Points, here: Measured, full: bool) -> Points:
    """Return the points that are asked about: shares of full steps, and extrapolations."""
    jumps = how[asked] == _JUMP
    out, steps = Points(*(np.empty((len(asked), *v.shape[1:])) for v in now)), np.flatnonzero(~jumps)
    if steps.size:
        who = asked[steps]
        wide = how[who][:, None, None]
        wider = wide.reshape(-1, *[1] * (now.precision.ndim - 1))
        out.mean[steps] = now.mean[who] - wide * here.step[who]
        out.precision[steps] = (1.0 - wider) * now.precision[who] + wider * here.towards[who]
    for i, jumped in past.extrapolated(asked, jumps, now, full):
        if len(i) == len(asked):
            return jumped
        _put(out, i, jumped)
    return out


def _log_dets(P: np.ndarray, full: bool) -> np.ndarray:
    """Return the logarithms of the determinants of precisions (K, B, ...), NaN where one is not positive."""
    try:
        return roots(P, full)[1]
    except _FAILURES:
        nan = np.full((1, P.shape[1]), np.nan)
        return nan if len(P) == 1 else np.concatenate([_log_dets(one[None], full) for one in P])


def _inverses(A: np.ndarray) -> np.ndarray:
    """Return the inverses of positive definite matrices (K, d, d)."""
    try:
        C = roots(A, True)[0]
        return np.asarray(C @ np.swapaxes(C, 1, 2))
    except np.linalg.LinAlgError:  # where rounding leaves a matrix that is not
        if len(A) > 1:
            raise
        return np.linalg.inv(A)


class _Past:
    """The last points of clients as vectors of means and packed precisions, and where their full steps lead."""

    def __init__(self, K: int) -> None:
        self.count = np.zeros(K, dtype=int)
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []  # the oldest first; points and ways, (K, L) each

    def add(self, who: np.ndarray, now: Points, here: Measured, full: bool) -> None:
        """Append the present points of some clients, and forget their oldest one where there are too many."""
        if not who.size:
            return
        full_house = who[self.count[who] > MEMORY]
        for older, newer in zip(self.kept, self.kept[1:], strict=False):
            for a, b in zip(older, newer, strict=True):
                a[full_house] = b[full_house]
        self.count[full_house] -= 1
        at = Points(now.mean[who], now.precision[who])
        point = _vectors(at, full)
        way = _vectors(Points(-here.step[who], here.towards[who] - at.precision), full)
        while len(self.kept) <= self.count[who].max():
            self.kept.append((np.empty((len(self.count), point.shape[1])), np.empty((len(self.count), point.shape[1]))))
        for c in set(self.count[who].tolist()):
            mine = self.count[who] == c
            self.kept[c][0][who[mine]], self.kept[c][1][who[mine]] = point[mine], way[mine]
        self.count[who] += 1

    def extrapolated(self, asked: np.ndarray, jumps: np.ndarray, now: Points, full: bool) -> Any:
        """Yield where among those asked clients stand, and the points where their full steps would be least."""
        for c in set(self.count[asked[jumps]].tolist()):
            i = np.flatnonzero(jumps & (self.count[asked] == c))
            who = asked[i]
            points, ways = (
                [kept[j] if len(i) == len(kept[j]) else kept[j][who] for kept in self.kept[:c]] for j in (0, 1)
            )
            scale, fall = _units(now.precision[who], full), np.empty((len(i), c, points[0].shape[1]))
            for j in range(c - 1):
                np.subtract(ways[j + 1], ways[j], out=fall[:, j])
            fall[:, c - 1] = ways[c - 1]
            shares = _least_squares(fall * scale[:, None])
            v = points[c - 1] + ways[c - 1] - (shares[:, None] @ fall[:, : c - 1])[:, 0]
            for j in range(c - 1):
                v -= shares[:, j, None] * (points[j + 1] - points[j])
            d = now.mean.shape[2]
            blocks = v.reshape(len(i), now.mean.shape[1], -1)
            yield i, Points(blocks[:, :, :d], unpack(blocks[:, :, d:], d, not full))


def _least_squares(rows: np.ndarray) -> np.ndarray:
    """Return the shares (K, c) of the first c of c + 1 rows (K, c + 1, L) whose sum is nearest to the last."""
    c = rows.shape[1] - 1
    R: Any = np.linalg.qr(np.swapaxes(rows, 1, 2), mode="r")
    R = R[:, :c]
    sizes = np.abs(np.diagonal(R, axis1=1, axis2=2))
    good = (sizes.min(axis=1) > _INDEPENDENT * sizes.max(axis=1)) & (R.shape[1] == c)
    out = np.empty((len(rows), c))
    if good.any():
        out[good] = np.linalg.solve(R[good][:, :, :c], R[good][:, :, c:])[:, :, 0]
    for k in np.flatnonzero(~good):
        try:
            out[k] = np.linalg.lstsq(rows[k, :c].T, rows[k, c], rcond=_INDEPENDENT)[0]
        except np.linalg.LinAlgError:
            out[k] = np.nan  # a point that cannot be measured: the full step is next
    return out


def _vectors(at: Points, full: bool) -> np.ndarray:
    return np.concatenate([at.mean, pack_each(at.precision, full)], axis=2).reshape(len(at.mean), -1)


def _units(precision: np.ndarray, full: bool) -> np.ndarray:
    """Return by what vectors are multiplied to be free of units."""
    sd = np.sqrt(np.diagonal(precision, axis1=2, axis2=3) if full else precision)
    squares = sd[:, :, :, None] * sd[:, :, None] if full else sd * sd
    return np.concatenate([sd, 1.0 / pack_each(squares, full)], axis=2).reshape(len(sd), -1)


def _fit(now: Points, here: Measured, k: int) -> Fit:
    """Return client k's present point with what is known of it."""
    q, *c = (Gaussian(m, P) for m, P in zip(now.mean[k], now.precision[k], strict=True))
    numbers = float(here.value[k]), float(here.gradient[k]), float(here.size[k])
    return Fit(q, tuple(c), *numbers, tuple(zip(here.step[k], here.towards[k], strict=True)))


def _take(given: T, at: Any) -> T:
    return type(given)(*(v[at] for v in given))


def _put(into: T, at: Any, values: T) -> None:
    for a, b in zip(into, values, strict=True):
        a[at] = b


def _scaled(A: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the products of matrices, (K, B, d) diagonals or (K, B, d, d), and vectors (K, B, d)."""
    return A * v if A.ndim == 3 else (A @ v[:, :, :, None])[:, :, :, 0]


def _sums(each: np.ndarray) -> np.ndarray:
    """Return the sums of all but the first axis."""
    return np.asarray(np.ascontiguousarray(each).reshape(len(each), -1).sum(axis=1))


def _squares(each: np.ndarray) -> np.ndarray:
    return _sums(each * each)
