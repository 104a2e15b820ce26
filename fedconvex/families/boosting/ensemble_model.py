"""A boosted ensemble with what it takes to predict raw rows of a table, saved as linear models are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad, wrong_type
from fedconvex._files import check_folder
from fedconvex._model_files import feature_matrix, read_model, write_model
from fedconvex.families.boosting.predictors import QEnsemble, Tree, arrays_of, ensemble_of
from fedconvex.families.boosting.source_probabilities import MaximumEntropyQ
from fedconvex.tables.columns import Columns
from fedconvex.tables.spelling import all_differ


@dataclass(frozen=True, eq=False)
class EnsembleModel:
    """Scores f(x) = sum_t alpha_t Q(l_t|x) h_t(x) of raw rows: one model for all clients, which asks for no client.

    Rows are the raw rows of a table where the model has a record of columns, and features otherwise. What is made of a
    row does not depend on the rows beside it, bit for bit.

    Attributes
    ----------
    ensemble : QEnsemble
    classes : tuple of 2 labels
        A negative score means the first.
    feature_names : tuple of d strings
    about : mapping
        Everything else that JSON can hold; its "loss" says what scores are as log odds.
    columns : Columns, optional
        What the features are made of.
    clients : None
        Whose model it is: that of all clients.

    Raises
    ------
    ValueError, TypeError
        If labels are not two, or a member asks for a feature that has no name.

    Examples
    --------
    >>> from fedconvex.problems import EnsembleModel, QEnsemble, Stump
    >>> f = QEnsemble([Stump(0, 1.5, -1.0, 1.0)], [0], [0.5])
    >>> EnsembleModel(f, ("no", "yes"), ("dose",)).predict([[1.0], [2.0]]).tolist()
    ['no', 'yes']
    """

    ensemble: QEnsemble
    classes: tuple[Any, ...]
    feature_names: tuple[str, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    columns: Columns | None = None
    clients: None = None  # whose model it is: everybody's

    def __post_init__(self) -> None:
        if not isinstance(self.ensemble, QEnsemble):
            raise wrong_type("EnsembleModel.ensemble", "be a QEnsemble", type(self.ensemble).__name__)
        if not isinstance(self.classes, (tuple, list)) or len(self.classes) != 2:
            raise bad("EnsembleModel.classes", "be two labels", f"{self.classes!r}")
        if not all(_is_label(label) for label in self.classes) or not all_differ(self.classes):
            raise bad("EnsembleModel.classes", "be two different labels, texts or numbers", f"{self.classes!r}")
        listed = isinstance(self.feature_names, (tuple, list)) and len(self.feature_names) > 0
        if not listed or not all(isinstance(name, str) for name in self.feature_names):
            raise bad("EnsembleModel.feature_names", "be names, at least one", f"{self.feature_names!r}")
        if len(set(self.feature_names)) < len(self.feature_names):
            raise bad("EnsembleModel.feature_names", "be different names", f"{self.feature_names!r}")
        if not isinstance(self.about, Mapping):
            raise wrong_type("EnsembleModel.about", "be a mapping", f"{self.about!r}")
        if self.clients is not None:
            raise bad("EnsembleModel.clients", "be None", f"{self.clients!r}")
        last, d = _last_feature(self.ensemble), len(self.feature_names) + self._constant
        if last >= d:
            raise bad("EnsembleModel.feature_names", f"name at least {last + 1} features", f"{d}")
        q = self.ensemble.q
        if isinstance(q, MaximumEntropyQ) and not callable(q.features) and q.center.size != d:
            raise bad("EnsembleModel.feature_names", f"be {q.center.size}, as Q has features", f"{d}")
        if self.columns is not None and not isinstance(self.columns, Columns):
            raise wrong_type("EnsembleModel.columns", "be a record of columns", f"{self.columns!r}")
        if self.columns is not None and self.columns.feature_names != tuple(self.feature_names):
            raise bad("EnsembleModel.feature_names", "be those of the record of columns", "others")

    @property
    def _constant(self) -> bool:
        """Whether the rows that it was trained on had a last column of ones."""
        return bool(self.about.get("intercept", False))

    def decision_function(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return f(x) of every row, (n,), positive for the second class; ``clients`` are not read.

        Parameters
        ----------
        X : path, DataFrame, mapping or array
            As for `LinearModel.decision_function`.
        """
        rows, _ = feature_matrix("EnsembleModel: X", X, self.columns, self.feature_names)
        if self.columns is not None:
            rows = self.columns.standardised(rows)
        rows = rows.toarray() if sp.issparse(rows) else rows
        rows = np.hstack([rows, np.ones((len(rows), 1))]) if self._constant else rows
        q = self.ensemble.q
        return self.ensemble.decision_function(rows, q.by_row(rows) if isinstance(q, MaximumEntropyQ) else None)

    def predict(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return the class labels."""
        return np.asarray(self.classes)[(self.decision_function(X) >= 0.0).astype(int)]

    def predict_proba(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return 1/(1 + exp(-2 f)), or 1/(1 + exp(-f)) for the logistic loss, of both classes, (n, 2)."""
        factor = 0.5 if str(self.about.get("loss", "")).startswith("Logistic") else 1.0
        one = 0.5 * (1.0 + np.tanh(factor * self.decision_function(X)))
        return np.column_stack([1.0 - one, one])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write model.npz and model.json into a folder, which is made if need be.

        Raises
        ------
        TypeError
            If a member or Q is code of somebody else, which only pickle could store.
        """
        place = check_folder("EnsembleModel.save: folder", folder)
        arrays = arrays_of(self.ensemble, "EnsembleModel.save")
        names = {"classes": self.classes, "clients": None, "feature_names": self.feature_names}
        write_model("EnsembleModel.save", place, "ensemble", arrays, names, self.about, self.columns)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> EnsembleModel:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            If a file is damaged, of another kind, or holds pickles; if a field is missing or wrong, by name.
        FileNotFoundError
            If a file is missing.
        """
        found = read_model("EnsembleModel.load", folder, "ensemble", None)
        try:
            ensemble = ensemble_of(found.arrays)
        except Exception as error:  # whatever damaged arrays make their readers raise
            got = f"{type(error).__name__}: {error}"
            raise bad(f"EnsembleModel.load: {folder}", "hold an ensemble in model.npz", got) from None
        return cls(ensemble, found.classes or (), found.feature_names, found.about, found.columns)


def _last_feature(ensemble: QEnsemble) -> int:
    """Return the largest number of a feature that members ask for, -1 if they ask for none."""
    asked = [max(h.feature.tolist()) if isinstance(h, Tree) else getattr(h, "feature", -1) for h in ensemble.members]
    return max([-1, *asked])


def _is_label(label: Any) -> bool:
    """Whether a label is a text or a number that equals itself."""
    return isinstance(label, (str, bytes, bool, int, float, np.generic)) and bool(label == label)
