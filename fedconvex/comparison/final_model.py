"""The model of a decision, fitted to all rows: what is saved, and predicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedconvex.comparison.decision import chosen, kind_of
from fedconvex.comparison.kinds import KINDS, Training
from fedconvex.loss_traits import traits
from fedconvex.models import LinearModel

if TYPE_CHECKING:
    from fedconvex.comparison.comparison import Comparison


def final_model(found: Comparison) -> LinearModel:
    """Return the kind of models that a comparison chose, solved for and certified on all rows."""
    rows, every = found.rows, np.arange(found.rows.y.size)
    method = found[chosen(found)]
    kind = kind_of(method)
    l2: Any = method.tuned.l2 if method.tuned is not None else 1.0
    fit = KINDS[kind].fit(Training(rows, rows.features(every), every), l2)
    coef, intercept = fit.models.coef, fit.models.intercept
    if not traits(rows.loss).several:
        coef, intercept = coef[:, 0], intercept[:, 0]
    own = len(coef) > 1
    coef, intercept = (coef, intercept) if own else (coef[0], intercept[0])
    record = None if rows.record is None else rows.record(every)
    names = record.feature_names if record is not None else tuple(f"x{j + 1}" for j in range(coef.shape[-1]))
    about = {
        "loss": repr(rows.loss),
        "l2": None if np.ndim(l2) else float(l2),
        "l2_by_client": [float(v) for v in l2] if np.ndim(l2) else None,
        "models": kind,
        "gap": fit.gap if np.isfinite(fit.gap) else None,
        "objective": fit.value,
        "intercept": True,
        "data": rows.title,
        "clients_trained": rows.K,
        "rows": int(rows.y.size),
    }
    about = {k: v for k, v in about.items() if v is not None}
    return LinearModel(coef, intercept, rows.classes, names, about, record, rows.names if own else None)
