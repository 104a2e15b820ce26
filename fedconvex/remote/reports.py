"""What a certificate over sites is made of: the part of one client, from its own rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedconvex.kernels.domains import domain_sums, domains_of
from fedconvex.kernels.row_losses import row_slopes, values_gradients_of
from fedconvex.loss_traits import traits
from fedconvex.problems import Independent, MultiTaskProblem, Problem
from fedconvex.problems.invariant import second_moments
from fedconvex.problems.protocol import ENSEMBLE, EQUILIBRIUM, INVARIANT_MODEL, MODEL_PER_TASK, ONE_MODEL, POSTERIOR
from fedconvex.remote.messages import Form, Refused
from fedconvex.solvers.certificates.row_rounding import EPS, allowances
from fedconvex.solvers.posteriors.free_energy import slope_and_curvature
from fedconvex.solvers.posteriors.free_energy_rounding import Block, block_bound, client_off, root_error
from fedconvex.solvers.posteriors.gaussians import divergence, natural, pack, packed_size, unpack

__all__ = ["expected", "report", "statistic_of", "weighted"]

_FLOATS = np.dtype(np.float64)


def report(problem: Any, number: int, asked: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a client's part: f_k and its gradient; sums by domain; or losses, image and conjugate of a task.

    With values and gradients come `allowances` for rounding.

    Parameters
    ----------
    problem : problem
        As a site has it, with its own rows only.
    number : int
        The client.
    asked : mapping
        ``w`` (R, *model), or (R, 1, d) for a task; with ``alpha`` (R, p) sums by domain are asked for.

    Raises
    ------
    Refused
        If the problem is of another kind, or the arrays have other shapes.
    """
    if problem.learns == INVARIANT_MODEL:
        return _environment(problem, number, asked)
    if problem.learns == POSTERIOR:
        return _posterior(problem, number, asked)
    w = asked.get("w", np.empty(0))
    if problem.learns == EQUILIBRIUM:
        return _player(problem, number, w, asked.get("own", np.empty(0)))
    if problem.learns == ENSEMBLE:
        return _ensemble(problem, number, w, asked.get("alpha", np.empty(0)))
    one = problem.learns == ONE_MODEL
    shape = problem.model_shape if one else (1, problem.federation.d)
    if problem.learns not in (ONE_MODEL, MODEL_PER_TASK) or w.dtype != _FLOATS or w.shape[1:] != shape:
        raise Refused(f"no models (R, {', '.join(map(str, shape))}) to be measured")
    if not one:
        return _task(problem, number, w)
    clients = np.full((len(w), 1), number, dtype=np.int64)
    if "alpha" in asked:
        _checked_weights(asked["alpha"], len(w), domains_of(problem.federation).held.shape[1])
        losses, g = domain_sums(problem, w, asked["alpha"], clients)
        found = allowances(problem, w, asked["alpha"])  # and, where the server learns sums only, those of gradients
        found["error"] += (problem.federation.K + 16) * EPS * np.linalg.norm(g[:, 0].reshape(len(w), -1), axis=1)
        return {"losses": losses[:, 0], "gradient": g[:, 0], **found}
    values, G = values_gradients_of(problem, w, clients)
    return {"value": values[:, 0], "gradient": G[:, 0], **allowances(problem, w)}


def weighted(found: dict[str, np.ndarray], share: float) -> dict[str, np.ndarray]:
    """Return a client's part of the pooled objective times its weight, for sums; other reports as they are."""
    if "value" not in found:
        return found
    out, few = {name: share * a for name, a in found.items()}, 4.0 * EPS
    out["off"] = np.abs(out["off"]) + few * np.abs(out["value"])
    out["error"] = np.abs(out["error"]) + few * np.linalg.norm(out["gradient"].reshape(len(out["error"]), -1), axis=1)
    return out


def _checked(wanted: tuple[int, ...], *models: np.ndarray) -> None:
    """Raise unless arrays are of R models of these shapes."""
    for a in models:
        if a.dtype != _FLOATS or a.shape[1:] != wanted or len(a) != len(models[0]):
            raise Refused(f"no models (R, {', '.join(map(str, wanted))}) to be measured")


def _checked_weights(alpha: np.ndarray, R: int, p: int) -> None:
    """Raise unless an array holds weights of p domains for each of R models: kernels do not look."""
    if alpha.dtype != _FLOATS or alpha.shape != (R, p):
        raise Refused(f"its weights of domains have shape {alpha.shape}, {alpha.dtype}, not {(R, p)}")


def _player(problem: Any, k: int, total: np.ndarray, own: np.ndarray) -> dict[str, np.ndarray]:
    """Return R^k and a bound of player k's regret, for R sums of strategies and its own ones."""
    _checked((problem.federation.d,), total, own[:, 0] if own.ndim == 3 else own)
    a, mine = problem.share, own[:, 0]
    s = np.ascontiguousarray(a * total)
    values, G = values_gradients_of(problem.risk, s, np.full((len(s), 1), k, dtype=np.int64))
    F, found, room = a * G[:, 0], allowances(problem.risk, s), problem.bound + np.abs(mine)
    N = (np.abs(F) * (problem.bound + np.sign(F) * mine)).sum(axis=1)
    off = a * found["error"] * np.linalg.norm(room, axis=1) + found["off"]
    few = (s.shape[1] + problem.federation.K + 8) * EPS * (room * np.abs(F)).sum(axis=1)
    return {"value": values[:, 0], "certificate": N + 2.0 * (off + few)}


def _environment(problem: Any, k: int, asked: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a client's second moments; or R_k and g_k at R models, with what rounding may do to its part of J."""
    fed = problem.federation
    if asked.keys() == {"moments"}:
        code = np.zeros(fed.n, dtype=np.int64)
        S, b, c = second_moments("InvariantProblem", fed, code, fed.masses[[k]])
        return {"S": S[0], "b": b[0], "c": np.asarray(c[0])}
    w = asked.get("w", np.empty(0))
    _checked(problem.model_shape, w)
    who = np.full((len(w), 1), k, dtype=np.int64)
    value, slope = (values_gradients_of(p, w, who)[0][:, 0] for p in (problem.risk, problem.scale))
    off = allowances(problem.risk, w)["off"]
    return {"value": value, "slope": slope, "off": off, "slope_off": _slope_off(problem.risk, w)}


def _slope_off(risk: Any, w: np.ndarray) -> np.ndarray:
    """Return what rounding may do to the mean of l'(z) z over a client's rows at models w (R, d): as in `rounding`."""
    fed, Z = risk.federation, np.ascontiguousarray(risk.federation.X @ w.T)
    row_slopes(risk.row_loss, Z, risk.row_labels)
    reach = np.sqrt(fed.row_norms2)[:, None] * np.linalg.norm(w, axis=1)
    share = 1.0 if risk.relative_weights is None else risk.relative_weights[:, None]
    terms = (np.abs(Z) + risk.traits.smoothness * share * reach) * reach
    return np.asarray(4.0 * (fed.n + fed.d + 16) * EPS * terms.mean(axis=0))


def _ensemble(problem: Any, k: int, w: np.ndarray, alpha: np.ndarray) -> dict[str, np.ndarray]:
    """Return sums of losses and of rows that are wrong by domain, and the gradient of the sum weighted by alpha."""
    _checked(problem.model_shape, w)
    _checked_weights(alpha, len(w), problem.p)
    fed = problem.federation
    losses, g = domain_sums(problem.linear, w, alpha, np.full((len(w), 1), k, dtype=np.int64))
    wrong, weight = fed.y * (fed.X @ w.T).T <= 0.0, 1.0 if fed.sample_weight is None else fed.sample_weight
    shares = np.stack([np.bincount(domains_of(fed).code, weight * row, problem.p) for row in wrong])
    return {"losses": losses[:, 0], "gradient": g[:, 0], "wrong": shares}


def _posterior(problem: Any, k: int, asked: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a client's part of the free energy of R posteriors, its c_k adapted, and what rounding may do to it.

    What does not exist, where a precision is not positive definite, is NaN.
    """
    precision, shift = asked.get("precision", np.empty(0)), asked.get("shift", np.empty(0))
    d, rows, full = problem.federation.d, problem.rows[k], not problem.diagonal
    _checked((packed_size(d, problem.diagonal),), precision)
    _checked((d,), shift)
    sizes = {name: form.shape for name, form in expected(problem, asked).items()}
    out = {name: np.full(size, np.nan) for name, size in sizes.items()}
    terms = problem.federation.K + int(problem.federation.sizes.sum())
    for r in range(len(shift)):
        try:
            q = natural(unpack(precision[r], d, problem.diagonal), shift[r])
            c = None if problem.private is None else problem.adapt(q, k)
            value, slope, H = slope_and_curvature(problem.expected, rows, q, c, full)
            blocks = [(p, root_error(p)) for p in (q, c) if p is not None]
            if not np.isfinite([root for _, root in blocks]).all():
                continue
            off = client_off(problem.expected, rows, blocks, full, terms)
            own = 0.0, 0.0
            if c is not None:
                value += divergence(c, problem.private)
                own = block_bound(Block(c, problem.private, slope, H, root_error(problem.private)), blocks[1][1], off)
        except (np.linalg.LinAlgError, ValueError):
            continue
        found = value, slope, pack(H), *off[:2], pack(off.curvature), own[0]
        for a, v in zip(out.values(), found, strict=True):
            a[r] = v
    return out


def _task(problem: Any, t: int, w: np.ndarray) -> dict[str, np.ndarray]:
    """Return losses, rounding, and image and conjugate of the dual variables -l' of a task, each for R models."""
    fed, R = problem.federation, len(w)
    out = {name: np.empty(R) for name in ("value", "conjugate", "reach")} | {"image": np.empty((R, fed.d))}
    weight = problem.c[t] * fed.masses[t]
    for r in range(R):
        W = np.zeros(problem.model_shape)
        W[t] = w[r, 0]
        alpha = -problem._slopes(problem.task_scores(W))
        loss = float(problem.c[t] * problem._losses(problem.task_scores(W)).sum())
        image, conjugate = problem.images(alpha), problem.conjugates(alpha)
        bound = traits(problem.loss).slope_bound(np.array([loss / weight]))
        reach = weight * float(np.broadcast_to(bound, 1)[0]) * float(np.abs(W[t]) @ fed.column_sizes)
        out["value"][r], out["conjugate"][r], out["reach"][r], out["image"][r] = loss, conjugate[t], reach, image[t]
    off = allowances(Problem(fed.subset([t]), problem.loss), np.ascontiguousarray(w[:, 0]))["off"]
    out["reach"] += weight * off / (2.0 * EPS)  # of scores and of the image; the certificate allows for 4 EPS of it
    return out


def statistic_of(problem: Any, number: int, name: str) -> np.ndarray:
    """Return what a client answers when asked for a statistic, from its own rows."""
    if problem.learns == MODEL_PER_TASK:  # of this task alone: no relationship matters
        own = problem.federation.subset([number])
        return np.asarray(
            MultiTaskProblem(own, problem.loss, Independent(1.0), problem.normalisation).statistic(name)[0]
        )
    if hasattr(problem, "client") and name != "domain_counts":
        return np.asarray(problem.client(number).statistic(name)[0])
    return np.asarray(problem.statistic(name)[number])


def expected(problem: Any, asked: Mapping[str, np.ndarray]) -> dict[str, Form]:
    """Return the forms of a `report`."""
    d = problem.federation.d
    if "moments" in asked:
        return {"S": Form((d, d), _FLOATS, True), "b": Form((d,), _FLOATS, True), "c": Form((), _FLOATS, True)}
    if problem.learns == POSTERIOR:
        R, P = asked["precision"].shape
        wide = {"slope": (R, d), "curvature": (R, P), "off": (R,), "slope_off": (R, d), "curvature_off": (R, P)}
        return {name: Form(size, _FLOATS, False) for name, size in ({"value": (R,)} | wide | {"own": (R,)}).items()}
    R, shape = len(asked["w"]), problem.model_shape
    if problem.learns == MODEL_PER_TASK:
        sizes: dict[str, tuple[int, ...]] = dict.fromkeys(("value", "conjugate", "reach"), (R,))
        sizes["image"] = (R, shape[-1])
    elif problem.learns == EQUILIBRIUM:
        sizes = {"value": (R,), "certificate": (R,)}
    elif problem.learns == INVARIANT_MODEL:
        sizes = dict.fromkeys(("value", "slope", "off", "slope_off"), (R,))
    elif problem.learns == ENSEMBLE:
        both = asked["alpha"].shape
        sizes = {"losses": both, "gradient": (R, *shape), "wrong": both}
    elif "alpha" in asked:
        both = asked["alpha"].shape
        sizes = {"losses": both, "gradient": (R, *shape), "error": (R,), "off": both}
    else:
        sizes = {"value": (R,), "gradient": (R, *shape), "error": (R,), "off": (R,)}
    return {name: Form(size, _FLOATS, False) for name, size in sizes.items()}
