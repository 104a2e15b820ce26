"""``fedconvex solve`` with a model for every client: MOCHA, CoCoA, joint MOCHA, mean-regularised models.

The objective is that of `fedconvex compare`: a mean over rows (or clients: ``--weights uniform``) plus l2 times a tie
between the models. `MultiTaskProblem` has the sum; values and gaps are divided by its number of rows (clients).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex._check import bad
from fedconvex.cli.input_data import Data, affordable, prepare
from fedconvex.cli.method import own_model
from fedconvex.cli.named import named_settings, worded
from fedconvex.cli.summary import About, Solved, formula_of, intercept_words, measured_clients
from fedconvex.families.multitask.family import RELATIONS
from fedconvex.registry import class_named

_LEARNED = {"mocha": True, "cocoa": False, "jointmocha": True, "mean-regularised": False}  # by default


def check(args: argparse.Namespace) -> None:
    """Refuse options that mean nothing for models per client."""
    for name in ("step_size", "batch_size", "penalty"):
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise bad(f"--method {args.method}", f"come without --{option}", getattr(args, name), "leave it out")
    if args.l2 == 0.0:
        raise bad(f"--method {args.method}", "have --l2 above 0, which ties the models", "--l2 0")
    kind = _relation_name(args)
    fixed = {"cocoa": ("mean", "none"), "mean-regularised": ("mean",), "jointmocha": ("learned",)}.get(args.method)
    if fixed and kind not in fixed:
        raise bad(f"--method {args.method}", f"have --relation {' or '.join(fixed)}", kind, "use --method mocha")


def _relation_name(args: argparse.Namespace) -> str:
    return args.relation or ("learned" if _LEARNED[args.method] else "mean")


def solved(args: argparse.Namespace) -> Solved:
    """Fit a model for every client."""
    from fedconvex import Problem, run
    from fedconvex.problems import MultiTaskProblem

    data = prepare(args)
    fed = data.train
    if not hasattr(data.loss, "dual_step"):
        cure = "--loss logistic, hinge, smoothed-hinge or squared"
        raise bad(f"--method {args.method}", "have a loss with a dual step (two classes, or a real target)",
                  f"{data.loss!r}", cure)  # fmt: skip
    total = float(fed.masses.sum()) if args.weights == "size" else float(fed.K)
    relation = _relation(_relation_name(args), total * args.l2, fed.K)
    problem = MultiTaskProblem(fed, data.loss, relation, "sum" if args.weights == "size" else "mean")
    method, phrase = _method(args)
    settings = {name: getattr(args, name) for name in ("rounds", "seed", "threads", "checkpoint")}
    result = run(method, problem, tol=args.tol * total, **settings)
    per_row = {name: v / total for name, v in result.trace.items() if name in ("value", "gap", "dual")}
    result = replace(result, gap=result.gap / total, trace=type(result.trace)({**result.trace, **per_row}))
    shared = Problem(fed, data.loss, args.l2, None if args.weights == "size" else args.weights, intercept=_free(args))
    clients, models, alone = _measured(args, shared, data, result.w)
    spread = _spread(fed, result.w, data)
    tie = RELATIONS[_relation_name(args)]
    about = About(
        f"{formula_of(Problem(fed, data.loss))}, a model for every client; {tie}, with weight l2 = {args.l2:g}",
        "the duality gap, over models and relations together" if relation.learned else "the duality gap",
        "models per client",
        ("P(W)", "P(W) - P*", "P*"),
        intercept_words(args, False),
        (("Models", _spread_words(spread)),),
        (("relation", _relation_name(args)), ("spread", spread), ("l2", args.l2)),
    )
    outlook = _outlook(args, result)
    outcome = Solved(data, problem, None, None, phrase, result, outlook, clients, models, alone, about)
    return replace(outcome, listed=_listed(outcome)) if args.coefficients else outcome


def _free(args: argparse.Namespace) -> bool:
    return not (args.no_intercept or args.penalise_intercept)


def _relation(name: str, lam: float, K: int) -> Any:
    """Return the relationship: as `compare` ties models, or (lam/2) ‖W‖^2."""
    from fedconvex.comparison.kinds import learned, near_mean
    from fedconvex.problems import Independent

    return {"learned": learned, "mean": near_mean, "none": lambda lam, K: Independent(lam)}[name](lam, K)


def _method(args: argparse.Namespace) -> tuple[Any, str]:
    """Return the method and a phrase with its settings; nodes make one pass over their rows a round by default."""
    from fedconvex import methods

    values = named_settings(args)
    if args.method == "jointmocha":
        eta = {"eta": values.pop("eta")} if "eta" in values else {}
        method: Any = methods.JointMOCHA(work=methods.NodeWork(**values), **eta)
        values |= eta
    else:
        method = class_named(args.method)(**values)
    local = "" if {"epochs", "local_steps", "theta"} & values.keys() or args.method == "cocoa" else "one pass a round"
    return method, ", ".join([type(method).__name__, *([local] if local else []), *worded(values)])


def _measured(args: argparse.Namespace, shared: Any, data: Data, W: np.ndarray) -> Any:
    """Measure every client's model on its own rows, beside the pooled optimum and what the client learns alone."""
    fed, unit = data.train if data.test is None else data.test, data.columns.target_scale
    place = {name: k for k, name in enumerate(data.train.labels.tolist())}
    owner = [place[name] for name in fed.labels.tolist()]  # a client may have no row that was held out

    def measured(models: np.ndarray) -> dict[str, np.ndarray]:
        pieces = zip(owner, fed.ptr[:-1], fed.ptr[1:], strict=True)
        scores = np.concatenate([fed.X[a:b] @ models[k] for k, a, b in pieces])
        return measured_clients(fed, data.loss, scores, unit)

    clients = measured(W)
    rows = [_row("a model per client", clients, fed.masses)]
    if shared.size <= 2000:
        best = shared.solve()
        name = "pooled optimum" if best.attained else "pooled, not attained"
        rows.append(_row(name, measured(np.broadcast_to(best.w, W.shape)), fed.masses))
    if not affordable(shared):
        return clients, rows, "the clients' own models were left out: too large a problem"
    own = [own_model(shared.client(k)) for k in range(data.train.K)]
    rows.append(_row("each client alone", measured(np.array([w for w, _ in own])), fed.masses))
    helped = any(pooled for _, pooled in own)
    return clients, rows, "alone, with labels of one kind: the intercept is penalised" if helped else ""


def _row(name: str, clients: dict[str, np.ndarray], masses: np.ndarray) -> dict[str, Any]:
    """Return a model, or a model per client, over all rows and at the client it serves worst."""
    score, share = "rmse" if "rmse" in clients else "accuracy", masses / masses.sum()
    value, worst = clients[score], int(np.argmax(clients["loss"]))
    whole = float(np.sqrt(share @ value**2)) if score == "rmse" else float(share @ value)
    found = {"model": name, "objective": None, "loss": float(share @ clients["loss"]), score: whole}
    found |= {"worst_client": str(clients["client"][worst]), "worst_loss": float(clients["loss"][worst])}
    return found | {f"worst_{score}": float(value.max() if score == "rmse" else value.min())}


def _spread(fed: Any, W: np.ndarray, data: Data) -> dict[str, Any]:
    """Return how far the models are from their mean, as shares of its norm, intercepts left out."""
    own = W[:, : len(data.names)]
    mean = own.mean(axis=0)
    size = float(np.linalg.norm(mean))
    away = np.linalg.norm(own - mean, axis=1) / size if size > 0.0 else np.zeros(len(own))
    near, far = int(np.argmin(away)), int(np.argmax(away))
    return {
        "models": len(own),
        "mean": float(away.mean()),
        "least": float(away[near]),
        "nearest": str(fed.labels[near]),
        "most": float(away[far]),
        "furthest": str(fed.labels[far]),
    }


def _spread_words(s: dict[str, Any]) -> str:
    return (
        f"{s['models']:,}, one for every client; they differ from their mean by {s['mean']:.3g} of its norm on average "
        f"({s['nearest']} by {s['least']:.3g}, {s['furthest']} by {s['most']:.3g}), features standardised"
    )


def _outlook(args: argparse.Namespace, result: Any) -> str:
    """Say why the run ended as it did."""
    if result.status.name == "CONVERGED":
        return "The certificate holds for these models, whatever work the clients did on the way."
    cure = " --method jointmocha learns models and relations together." if args.method == "mocha" else ""
    return f"All rounds were run before the certified gap fell to {args.tol:g}: give --rounds more.{cure}"


def _listed(outcome: Solved) -> Any:
    """Return title, table and facts of the coefficients: a column for every client."""
    model = outcome.result.model()
    table = np.column_stack([model.coef, model.intercept])
    names = [*model.feature_names, "intercept"]
    towards = "" if outcome.data.labels is None else f", towards {outcome.data.labels[-1]!r}"
    rows = [[name, *column] for name, column in zip(names, table.T.tolist(), strict=True)]
    facts = {
        str(client): {"intercept": b, "features": dict(zip(model.feature_names, w, strict=True))}
        for client, w, b in zip(model.clients, model.coef.tolist(), model.intercept.tolist(), strict=True)
    }
    heads = ["feature", *map(str, model.clients)]
    return f"Coefficients of every client, per unit of the data{towards}", (heads, rows), facts
