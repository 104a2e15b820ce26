"""What a result or a solution can do with its model: predict, be saved, be read as a table."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from fedconvex._check import bad, wrong_type
from fedconvex._files import check_folder
from fedconvex.loss_traits import traits

if TYPE_CHECKING:
    from fedconvex.models import LinearModel


class Fitted:
    """A model ``w`` of the problem ``problem``: mixed into `Result` and `Solution`.

    Pickling leaves the problem, and with it all rows, behind; what is unpickled predicts no more. `save` keeps models.
    """

    w: Any
    problem: Any

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "problem": None}

    def model(self, trajectory: int | None = None) -> Any:
        """Return the model in the units of the data, which takes raw rows if the federation came from a table.

        A `LinearModel`, one for all or one per client; of boosting an `EnsembleModel`.

        Parameters
        ----------
        trajectory : int, optional
            Which of R trajectories, where there are several.

        Raises
        ------
        ValueError, TypeError
            If there are several trajectories and none was named; if the problem learns no linear model of features.

        Examples
        --------
        >>> from fedconvex import Federation, Logistic, Problem
        >>> table = {"dose": [1.0, 2.0, 3.0, 4.0], "ward": ["a", "b", "a", "b"], "ill": ["no", "yes", "no", "yes"]}
        >>> fed = Federation.from_frame(table, target="ill", client="ward", intercept=True)
        >>> best = Problem(fed, Logistic(), l2=0.1, intercept=True).solve()
        >>> best.predict({"dose": [0.5, 9.0]}).tolist(), best.model().feature_names
        (['no', 'yes'], ('dose',))
        """
        who, problem, w = f"{type(self).__name__}.model", self.problem, np.asarray(self.w)
        if problem is None:
            raise bad(who, "know its problem", "one that was unpickled or made by hand", "save models with .save")
        if hasattr(type(problem), "_fitted_model"):  # an ensemble, which its problem knows to build
            return problem._fitted_model(getattr(self, "state", w), self._about(trajectory), trajectory or 0)
        shape = getattr(problem, "model_shape", w.shape)
        if w.ndim == len(shape) + 1:
            if trajectory is None or not 0 <= trajectory < len(w):
                raise bad(who, f"be told which of {len(w)} trajectories", f"{trajectory}", "pass trajectory=")
            w = w[trajectory]
        if hasattr(problem, "predictor"):  # made of strategies
            w = problem.predictor(w)
        return _model_of(who, problem, w, self._about(trajectory))

    def predict(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return predictions of raw rows, as `LinearModel.predict`."""
        return self.model().predict(X, clients)

    def predict_proba(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return probabilities of the classes, as `LinearModel.predict_proba`."""
        return self.model().predict_proba(X, clients)

    def decision_function(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return scores, as `LinearModel.decision_function`."""
        return self.model().decision_function(X, clients)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model into a folder (model.npz and model.json), which is made if need be; its class reads it."""
        self.model().save(check_folder(f"{type(self).__name__}.save: folder", folder))

    def to_frame(self) -> Any:
        """Return the coefficients as a pandas DataFrame: a row for every feature and the intercept.

        A column "coefficient", or one for every class; a model per client has one for every client (and class).
        """
        return self.model().to_frame()

    def _about(self, trajectory: int | None) -> dict[str, Any]:
        """Return what a saved model says of where it comes from."""
        gap = np.ravel(getattr(self, "gap", math.nan))
        bound = float(gap[trajectory or 0] if gap.size > 1 else gap[0])
        about = {"gap": bound if math.isfinite(bound) else None}
        for name in ("certificate", "method", "rounds"):
            if getattr(self, name, None) is not None:
                about[name] = getattr(self, name)
        status = getattr(self, "status", None)
        return about if status is None else {**about, "status": status.name}


def _model_of(who: str, problem: Any, w: np.ndarray, about: dict[str, Any]) -> LinearModel:
    """Return a model of features in the units of the data."""
    from fedconvex.models import LinearModel

    fed: Any = getattr(problem, "federation", None)
    loss, d = getattr(problem, "loss", None), getattr(fed, "d", None)
    if d is None or loss is None or w.ndim not in (1, 2, 3) or w.shape[-1] != d:
        raise wrong_type(who, "belong to a problem whose models weigh the features of a federation", f"{problem!r}")
    personal = w.ndim - bool(traits(loss).several) == 2
    columns = fed.columns
    free = getattr(problem, "free", None)
    if columns is not None:
        names: tuple[str, ...] = columns.feature_names
        center, scale, target = columns.center, columns.scale, (columns.target_center, columns.target_scale)
        intercept = d == len(names) + 1
        classes = columns.labels
    else:
        intercept = free is not None and d > 1 and bool(free[-1])
        names = tuple(f"x{j + 1}" for j in range(d - intercept))
        center, scale, target = np.zeros(len(names)), np.ones(len(names)), (0.0, 1.0)
        kind = traits(loss)
        classes = None if kind.task == "regression" else tuple(range(kind.outputs)) if kind.several else (-1, 1)
    penalty = getattr(problem, "penalty", None)
    about = {
        "loss": repr(loss),
        "l2": float(getattr(problem, "l2", 0.0)),
        "penalty": None if penalty is None else repr(penalty),
        "relation": repr(problem.relation) if hasattr(problem, "relation") else None,
        "intercept": intercept,
        "intercept_penalised": intercept and free is None,
        "data": "arrays" if columns is None else columns.origin,
        "digest": fed.digest,
        "clients_trained": fed.K,
        "rows": fed.n,
        **about,
    }
    return LinearModel.from_standardised(
        w,
        center,
        scale,
        intercept=intercept,
        target=target,
        classes=classes,
        feature_names=names,
        about={k: v for k, v in about.items() if v is not None},
        columns=columns,
        clients=tuple(fed.labels.tolist()) if personal else None,
    )
