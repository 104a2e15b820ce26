"""``--l2 auto``: the ridge that cross-validation chooses, in folds of every client's own training rows."""

from __future__ import annotations

import argparse

import numpy as np

from fedconvex._check import bad
from fedconvex.cli.input_data import raw
from fedconvex.loss_traits import traits
from fedconvex.registry import methods

FOLDS = 5
_KINDS = {"afl": "afl", "optimistic-afl": "afl", "mocha": "mocha", "jointmocha": "mocha",
          "mean-regularised": "mean-regularised"}  # fmt: skip


def choose(args: argparse.Namespace) -> str:
    """Put the chosen l2 in the place of "auto", and return how it was chosen, in words.

    Every client deals its training rows out to five folds; what is compared over 13 values are sums of losses, so that
    it is what `fedconvex compare` chooses for the same rows.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    from fedconvex import Federation
    from fedconvex.comparison.cross_validation import Folds, tune
    from fedconvex.comparison.intake import rows_of_table
    from fedconvex.comparison.kinds import KINDS, Training
    from fedconvex.comparison.splits import fold_of

    kind = _kind(args)
    data = raw(args)
    frame, clients = data.frame, data.clients
    known = traits(data.loss)
    if not known.curved or (known.task != "regression" and not known.probable):
        raise bad("--l2 auto", "come with --loss squared, logistic or softmax", f"{data.loss!r}", "give --l2 a number")
    if args.test_size is not None:  # held-out rows play no part
        every = Federation.from_arrays(np.arange(frame.n, dtype=np.float64)[:, None], np.zeros(frame.n), clients)
        kept = every.split(args.test_size, args.seed)[0].X[:, 0].astype(np.int64)
        frame, clients = frame.take(kept), clients[kept]
    rows = rows_of_table(frame, data.columns, data.loss, data.title, clients)
    train = np.arange(rows.y.size)
    with threadpool_limits(1, "blas"):
        training = Training(rows, rows.features(train), train)
        folds = Folds.of(training, fold_of(rows, train, FOLDS, args.seed))
        found = tune(KINDS[kind], training, folds, 10, lambda share: None)
    args.l2 = float(found.l2)
    what = "log loss" if rows.classifies else "half squared error, in variances of the target,"
    least = float(found.score[found.l2s.index(args.l2)])
    whose = " of the worst domain" if kind == "afl" else ""
    least = least if rows.classifies else least / float(np.var(rows.y))
    return (
        f"{args.l2:.4g}, of {len(found.l2s)} values from {found.l2s[-1]:g} to {found.l2s[0]:g}, by cross-validation in "
        f"{FOLDS} folds of every client's training rows: {what}{whose} {least:.4g} on left-out rows"
    )


def _kind(args: argparse.Namespace) -> str:
    """Return the kind of models whose l2 is chosen; refuse what it is not chosen for."""
    for name in ("penalty", "weight", "on"):
        if getattr(args, name) is not None:
            raise bad("--l2 auto", f"come without --{name}", getattr(args, name), "give --l2 a number")
    for name in ("no_intercept", "penalise_intercept", "no_standardize"):
        if getattr(args, name):
            raise bad("--l2 auto", f"come without --{name.replace('_', '-')}", "it", "give --l2 a number")
    if args.weights != "size":
        raise bad("--l2 auto", "come with --weights size", args.weights, "give --l2 a number")
    kind = _KINDS.get(args.method, "" if methods()[args.method].family else "pooled")
    if args.method == "mocha" and args.relation not in (None, "learned"):
        kind = {"mean": "mean-regularised"}.get(args.relation, "")
    if not kind:
        raise bad(
            "--l2 auto", "come with one model, or with models per client that are tied", f"--method {args.method}"
        )
    return kind
