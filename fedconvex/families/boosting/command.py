"""``fedconvex solve`` with a boosted ensemble: stumps that are good on the worst of several sources.

Sources are the domains, or the clients where there are none. Rows stay in the units of the data: stumps need no scale.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from fedconvex._check import bad
from fedconvex.cli.input_data import prepare
from fedconvex.cli.named import named_settings, worded
from fedconvex.cli.summary import About, Solved, measured_clients
from fedconvex.registry import class_named

STUMPS, SMOOTHING, CUTS, STEP = 100, 50.0, 16, 0.2
_PHI = ("exponential", "logistic")


def check(args: argparse.Namespace) -> None:
    """Refuse options that mean nothing for ensembles."""
    given = vars(args).get("given", ())
    refused = [n for n in ("weights", "penalty", "l2") if n in given]
    refused += [n for n in ("no_standardize", "no_intercept", "penalise_intercept") if getattr(args, n)]
    if refused:
        option = refused[0].replace("_", "-")
        cure = "leave it out: stumps have no scale, no intercept and no ridge"
        raise bad(f"--method {args.method}", f"come without --{option}", f"--{option}", cure)
    if args.loss not in (None, *_PHI):
        raise bad(f"--method {args.method}", f"have --loss {' or '.join(_PHI)}", f"--loss {args.loss}")


def solved(args: argparse.Namespace) -> Solved:
    """Boost an ensemble."""
    from fedconvex import run
    from fedconvex.problems import Dictionary, EnsembleProblem, Logistic2, StumpProblem, fit_q

    asked = argparse.Namespace(**{**vars(args), "no_standardize": True, "no_intercept": True})
    asked.loss = args.loss or "exponential"
    data = prepare(asked)
    data = data if args.loss else replace(data, reason="the target has 2 classes")
    fed, phi = _by_source(data.train), Logistic2() if asked.loss == "logistic" else data.loss
    uniform = args.q == "uniform" or fed.n_domains == 1
    q = None if uniform else fit_q(fed.X, fed.domain, seed=args.seed)
    if args.method == "multiboost":
        problem: Any = StumpProblem(fed, q, phi, bins=args.cuts)
    else:
        problem = EnsembleProblem(fed, Dictionary.stumps(fed, args.cuts or CUTS), q, phi)
    method, phrase = _method(args, problem.p)
    rounds = STUMPS if args.method == "multiboost" and "rounds" not in vars(args).get("given", ()) else args.rounds
    settings = {name: getattr(args, name) for name in ("tol", "seed", "threads", "checkpoint")}
    result = run(method, problem, rounds=rounds, **settings)
    made = problem.ensemble(result.state)
    held = fed if data.test is None else _dense(data.test)
    scores = made.decision_function(held.X)
    clients = measured_clients(held, phi, scores, 1.0)
    about = _about(problem, made, q, asked.loss, "domains" if data.train.n_domains else "clients")
    sentence = (
        "The certificate holds for this ensemble." if result.status.name == "CONVERGED" else _why(result, args.method)
    )
    outcome = Solved(data, problem, None, None, phrase, result, sentence, clients, [], "", about)
    return replace(outcome, listed=_listed(outcome, made)) if args.coefficients else outcome


def _dense(fed: Any) -> Any:
    return replace(fed, X=fed.X.toarray()) if fed.is_sparse else fed


def _by_source(fed: Any) -> Any:
    """Return dense rows with domains: the clients where there are none."""
    fed = _dense(fed)
    if fed.n_domains:
        return fed
    return replace(fed, domain=np.repeat(np.arange(fed.K), fed.sizes), domain_labels=fed.labels)


def _method(args: argparse.Namespace, p: int) -> tuple[Any, str]:
    """Return the method and a phrase with its settings; a stump counts as much as Q gives its source, 1/p or so."""
    values = named_settings(args)
    if args.method == "multiboost":
        values = {"smoothing": SMOOTHING, **values}
        words = "one stump a round by exact line search"
    else:
        values = {"step_size": STEP * p, **values}
        words = "sampled clients, steps step size/sqrt(t)"
    method = class_named(args.method)(**values)
    return method, ", ".join([type(method).__name__, words, *worded(values)])


def _about(problem: Any, made: Any, q: Any, loss: str, source: str) -> About:
    """Return what was minimised, the ensemble, and how it does on its sources' training rows."""
    errors = problem.errors_of(_margins(problem, made))
    worst = int(np.argmax(errors))
    name = str(problem.domain_names[worst])
    chosen = len({(s, h) for s, h in zip(made.sources.tolist(), map(tuple, made.members), strict=True)})
    kind = "one and the same" if q is None else f"maximum entropy, l2 {q.l2:g}, temperature {q.temperature:.3g}"
    lines = (
        ("Ensemble", f"{len(made):,} stages of {chosen:,} different stumps, sum of weights {made.weight:.4g}"),
        (
            "Sources",
            f"{problem.p:,} {source}; of the worst, {name}, {errors[worst]:.4g} of the training rows are wrong",
        ),
        ("Q", f"the probability that a row is of a source: {kind}"),
    )
    facts = (
        ("stages", len(made)),
        ("stumps", chosen),
        ("sum_of_weights", made.weight),
        ("q", "uniform" if q is None else "maxent"),
        ("q_l2", None if q is None else q.l2),
        ("source_errors", dict(zip(map(str, problem.domain_names.tolist()), errors.tolist(), strict=True))),
    )
    return About(
        f"largest {loss} loss of a source, over Q-ensembles of stumps with weights of sum at most 100",
        "convexity and the best stump's edge",
        "ensemble",
        ("F", "F - F*", "F*"),
        None,
        lines,
        facts,
    )


def _margins(problem: Any, made: Any) -> np.ndarray:
    """y f(x) of the training rows, sorted by source."""
    rows = problem.data.X[problem.by_row]
    return np.asarray(problem.y_sorted * made.decision_function(rows))


def _why(result: Any, method: str) -> str:
    text = f"All rounds were run; the gap, {float(result.gap):.3g}, is to the best ensemble of any number of stumps"
    slowly = " slowly" if method == "fedmultiboost" else ""
    return f"{text}: more --rounds lower it{slowly}, and may overfit."


def _listed(outcome: Solved, made: Any) -> Any:
    """Return title, table and facts of the stages."""
    names, sources = outcome.data.names, [str(made.names[s]) for s in made.sources.tolist()]
    rows = [
        [source, names[h.feature], float(h.threshold), float(h.left), float(h.right), float(a)]
        for source, h, a in zip(sources, made.members, made.alpha.tolist(), strict=True)
    ]
    heads = ["source", "feature", "threshold", "at most", "above", "weight"]
    title = f"Stages, in order; positive is towards {outcome.data.labels[-1]!r}"  # type: ignore[index]
    return title, (heads, rows), [dict(zip(heads, row, strict=True)) for row in rows]
