"""Free energies of many clients, each with its own cavity, minimised side by side: what one client needs is little.

Every client has a search of its own (`Energy.search`); the points that searches ask for are evaluated together. Only
products with a client's rows are taken one by one, and sums run within a client, so that no bit of an answer depends on
who else is there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from fedconvex.solvers.posteriors.expected_losses import ExpectedLoss
from fedconvex.solvers.posteriors.free_energy import Energy, Fit, Rows
from fedconvex.solvers.posteriors.gaussians import Gaussian
from fedconvex.solvers.posteriors.mean_steps import Columns

_ROWS = 1024  # at a time, of as many clients as have them
_FAILURES = (np.linalg.LinAlgError, ValueError)

Found = Fit | np.linalg.LinAlgError | ValueError


def minimise_each(
    cavities: Sequence[Gaussian], clients: Sequence[Rows], expected: ExpectedLoss, start: Gaussian
) -> list[Found]:
    """Minimise the free energies of clients without private parameters, as `minimise` does each, from one start.

    Returns
    -------
    list
        Their minimisers, or what went wrong.
    """
    out, first = list[Found](), 0
    while first < len(clients):
        last, rows = first + 1, len(clients[first].y)
        while last < len(clients) and (rows := rows + len(clients[last].y)) <= _ROWS:
            last += 1
        pairs = zip(cavities[first:last], clients[first:last], strict=True)
        out += _side_by_side([Energy.of(p, None, [rows], expected) for p, rows in pairs], start)
        first = last
    return out


def _side_by_side(energies: Sequence[Energy], start: Gaussian) -> list[Found]:
    searches, out = [energy.search(start, ()) for energy in energies], dict[int, Found]()
    asked = {k: next(search)[0] for k, search in enumerate(searches)}
    while asked:
        fits = at_once([energies[k] for k in asked], list(asked.values()))
        answers, asked = dict(zip(asked, fits, strict=True)), {}
        for k, fit in answers.items():
            try:
                asked[k] = (searches[k].send(fit) if isinstance(fit, Fit) else searches[k].throw(fit))[0]
            except StopIteration as end:
                out[k] = end.value
            except _FAILURES as error:
                out[k] = error
    return [out[k] for k in range(len(energies))]


def at_once(energies: Sequence[Energy], points: Sequence[Gaussian]) -> list[Found]:
    """Return what `Energy.at` returns, or raises, for every client at its own q."""
    few = [k for k, energy in enumerate(energies) if isinstance(energy.systems, Columns)]
    out: dict[int, Found] = {k: _alone(energies[k], q) for k, q in enumerate(points) if k not in few}
    if few:
        together = _all_or_each([energies[k] for k in few], [points[k] for k in few])
        out |= dict(zip(few, together, strict=True))
    return [out[k] for k in range(len(energies))]


def _alone(energy: Energy, q: Gaussian) -> Found:
    try:
        return energy.at(q, ())
    except _FAILURES as error:
        return error


def _all_or_each(energies: list[Energy], points: list[Gaussian]) -> list[Found]:
    """Return fits, or failures: where there is one, everybody's by itself."""
    try:
        return list(_fits(energies, points))
    except _FAILURES as error:
        if len(energies) == 1:
            return [error]
    return [_all_or_each([energy], [q])[0] for energy, q in zip(energies, points, strict=True)]


def _fits(energies: Sequence[Energy], points: Sequence[Gaussian]) -> list[Fit]:
    m, P = np.array([q.mean for q in points]), np.array([q.precision for q in points])
    m0, P0 = np.array([e.prior.mean for e in energies]), np.array([e.prior.precision for e in energies])
    C, log_det = _roots(P)
    value, slope, H = _losses(energies, points, C)
    d, diagonal, off = m.shape[1], P.ndim == 2, m - m0
    shape, pull = (np.diagonal(H, axis1=1, axis2=2) if diagonal else H), _times(P0, off)
    if diagonal:
        trace, up, down = (P0 * C) * C, (P0 + shape) * C, 1.0 / C
        by_root, free = (C * (up - down), C * up), C
    else:
        trace, up, down = C * (P0 @ C), np.triu((P0 + H) @ C), np.eye(d) / np.diagonal(C, axis1=1, axis2=2)[:, None]
        free = C.transpose(0, 2, 1)
        by_root = free @ (up - down), free @ up
    variances = C * C if diagonal else np.sum(C * C, axis=2)
    size = _squares(np.sqrt(variances) * _times(np.abs(H), np.abs(m)))
    value += 0.5 * (_sums(trace) + _sums(off * pull) - d + log_det - _roots(P0)[1])
    gradient = _squares(_times(free, pull + slope)) + _squares(by_root[0])
    terms = _squares(_times(free, np.abs(pull) + np.abs(slope))) + _squares(by_root[1]) + d + size
    whole = H + (np.eye(d) * P0[:, None] if diagonal else P0)
    steps = np.linalg.solve(whole, (pull + slope)[:, :, None])[:, :, 0]
    numbers = zip(value.tolist(), np.sqrt(gradient).tolist(), np.sqrt(terms).tolist(), strict=True)
    each = zip(points, numbers, steps, P0 + shape, strict=True)
    return [Fit(q, (), *found, ((step, towards),)) for q, found, step, towards in each]


def _losses(
    energies: Sequence[Energy], points: Sequence[Gaussian], C: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the expected losses (K,), X'l' (K, d), and X' diag(l'') X, (K, d, d)."""
    clients = [energy.clients[0] for energy in energies]
    scores = [q.scores(rows.X, root) for q, rows, root in zip(points, clients, C, strict=True)]
    mu = np.concatenate([mean + rows.mean for (mean, _), rows in zip(scores, clients, strict=True)])
    v = np.concatenate([own + rows.variance for (_, own), rows in zip(scores, clients, strict=True)])
    y, weight = np.concatenate([rows.y for rows in clients]), np.concatenate([rows.weight for rows in clients])
    value, slope, bent = (weight * one for one in energies[0].expected.moments(mu, v, y))
    ends = np.cumsum([0, *(len(rows.y) for rows in clients)]).tolist()
    own = [(rows.X, slice(a, b)) for rows, (a, b) in zip(clients, itertools.pairwise(ends), strict=True)]
    H = np.array([(X * bent[at, None]).T @ X for X, at in own])
    return np.array([value[at].sum() for _, at in own]), np.array([X.T @ slope[at] for X, at in own]), H


def _roots(P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `Gaussian.root` of precisions (K, d) or (K, d, d), and the logarithms of the determinants, (K,)."""
    if P.ndim == 2:
        if not (P > 0.0).all():
            raise np.linalg.LinAlgError("a precision is not positive")
        root = np.sqrt(P)
        return 1.0 / root, 2.0 * _sums(np.log(root))
    L = np.linalg.cholesky(P)
    return np.triu(np.linalg.inv(L).transpose(0, 2, 1)), 2.0 * _sums(np.log(np.diagonal(L, axis1=1, axis2=2)))


def _times(A: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the products of matrices, (K, d) diagonals or (K, d, d), and vectors (K, d)."""
    return A * v if A.ndim == 2 else (A @ v[:, :, None])[:, :, 0]


def _sums(each: np.ndarray) -> np.ndarray:
    """Return the sums of all but the first axis."""
    return np.asarray(np.ascontiguousarray(each).reshape(len(each), -1).sum(axis=1))


def _squares(each: np.ndarray) -> np.ndarray:
    return _sums(each * each)
