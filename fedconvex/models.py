"""A fitted linear model in the units of the data, saved as numbers (npz) and a description (JSON), without pickle."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex import __version__
from fedconvex._check import bad, finite, flag, numeric, vector, wrong_type
from fedconvex._files import write_file
from fedconvex.loss_traits import traits

__all__ = ["LinearModel"]

_FORMAT = "fedconvex linear model 1"


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Scores ``X @ coef + intercept``, one column of them per class for a multinomial model.

    Attributes
    ----------
    coef : array (d,) or (C, d)
        Weights in the units of the raw features.
    intercept : array () or (C,)
        Intercept, 0 for a model without one.
    classes : tuple or None
        Two labels (a negative score means the first), C labels (the largest score wins), or None: the score is the
        prediction.
    feature_names : tuple of d strings
    about : mapping
        Everything else that JSON can hold: loss, l2, certified gap, certificate, standardisation.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.models import LinearModel
    >>> model = LinearModel(np.array([2.0, -1.0]), np.array(0.5), ("no", "yes"), ("age", "dose"))
    >>> model.predict([[1.0, 0.0], [0.0, 9.0]]).tolist()
    ['yes', 'no']
    """

    coef: np.ndarray
    intercept: np.ndarray
    classes: tuple[Any, ...] | None
    feature_names: tuple[str, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        coef, intercept = numeric("LinearModel.coef", self.coef), numeric("LinearModel.intercept", self.intercept)
        if coef.ndim not in (1, 2) or 0 in coef.shape:
            raise bad("LinearModel.coef", "have shape (d,) or (C, d)", f"{coef.shape}")
        if intercept.shape != coef.shape[:-1]:
            raise bad("LinearModel.intercept", f"have shape {coef.shape[:-1]}", f"{intercept.shape}")
        finite("LinearModel.coef", coef)
        finite("LinearModel.intercept", intercept)
        outputs = 2 if coef.ndim == 1 else len(coef)
        for name, given in (("classes", self.classes), ("feature_names", self.feature_names)):
            if not (isinstance(given, (tuple, list)) or (given is None and name == "classes")):
                raise wrong_type(f"LinearModel.{name}", "be a tuple", f"{type(given).__name__} {given!r}")
        if self.classes is not None and len(self.classes) != outputs:
            raise bad("LinearModel.classes", f"be {outputs} labels", f"{len(self.classes)}")
        if self.classes is None and coef.ndim == 2:
            raise bad("LinearModel.classes", f"be {outputs} labels", "None")
        if self.classes is not None and len(set(self.classes)) != outputs:
            raise bad("LinearModel.classes", "differ", f"{self.classes!r}")
        if len(self.feature_names) != coef.shape[-1]:
            raise bad("LinearModel.feature_names", f"be {coef.shape[-1]} names", f"{len(self.feature_names)}")
        object.__setattr__(self, "coef", coef)
        object.__setattr__(self, "intercept", intercept)

    @classmethod
    def from_standardised(
        cls,
        w: np.ndarray,
        center: np.ndarray,
        scale: np.ndarray,
        *,
        intercept: bool = True,
        target: tuple[float, float] = (0.0, 1.0),
        **rest: Any,
    ) -> LinearModel:
        """Translate weights of standardised features (x - center)/scale into the units of the data.

        Parameters
        ----------
        w : array (d,) or (C, d); with intercept (d+1,) or (C, d+1)
            The model as it was optimised; its last column is the intercept.
        center, scale : array (d,)
            What was subtracted, then divided by.
        intercept : bool
            Whether w ends with an intercept.
        target : pair of floats
            Centre and scale of the target.
        **rest
            classes, feature_names, about.

        Examples
        --------
        >>> import numpy as np
        >>> from fedconvex.models import LinearModel
        >>> names = {"classes": None, "feature_names": ("x",)}
        >>> model = LinearModel.from_standardised(np.array([3.0, 1.0]), np.array([4.0]), np.array([2.0]), **names)
        >>> float(model.scores([[6.0]])[0])  # 3 (6 - 4)/2 + 1
        4.0
        """
        w, intercept = numeric("LinearModel.from_standardised: w", w), flag("LinearModel: intercept", intercept)
        d = w.shape[-1] - intercept if w.ndim in (1, 2) else 0
        if d < 1:
            raise bad("LinearModel.from_standardised: w", "hold a weight of every feature", f"shape {w.shape}")
        center, scale = (
            vector(f"LinearModel.from_standardised: {n}", v, d) for n, v in (("center", center), ("scale", scale))
        )
        shift, factor = vector("LinearModel.from_standardised: target", target, 2).tolist()
        coef = (w[..., :-1] if intercept else w) / scale
        offset = (w[..., -1] if intercept else np.zeros(w.shape[:-1])) - coef @ center
        return cls(factor * coef, np.asarray(shift + factor * offset), **rest)

    def scores(self, X: Any) -> np.ndarray:
        """Return ``X @ coef.T + intercept``: (n,), or (n, C).

        Parameters
        ----------
        X : array, CSR matrix or frame (n, d)
            Rows in the units of the data. The columns of a frame must be the features, in their order.

        Raises
        ------
        ValueError, TypeError
            If the columns are others, or a number is missing or infinite.
        """
        who, given = "LinearModel.scores: X", getattr(X, "columns", None)
        if given is not None and [str(c) for c in given] != list(self.feature_names):
            names = [str(c) for c in given]
            cure = f"pass X[{list(self.feature_names)!r}]" if set(self.feature_names) <= set(names) else ""
            raise bad(who, f"have the columns {', '.join(self.feature_names)}, in this order", ", ".join(names), cure)
        rows = X if sp.issparse(X) else numeric(who, X, copy=False)
        if rows.ndim != 2 or rows.shape[1] != self.coef.shape[-1]:
            raise bad(who, f"have {self.coef.shape[-1]} columns", f"shape {rows.shape}")
        finite(who, np.asarray(rows.data) if sp.issparse(rows) else rows)  # type: ignore[union-attr]
        return np.asarray(rows @ self.coef.T) + self.intercept

    def predict(self, X: Any, loss: Any = None) -> np.ndarray:
        """Return the class labels; for a regression the scores, or what a given loss predicts from them."""
        z = self.scores(X)
        if self.classes is None:
            return z if loss is None else traits(loss).predict(z)
        return np.asarray(self.classes)[np.argmax(z, axis=1) if z.ndim == 2 else (z >= 0.0).astype(int)]

    def save(self, folder: str | os.PathLike[str], **arrays: np.ndarray) -> None:
        """Write model.npz (coef, intercept and the given further arrays) and model.json into an existing folder."""
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, coef=self.coef, intercept=self.intercept, **arrays)
        labels = None if self.classes is None else list(self.classes)
        description = {"format": _FORMAT, "version": __version__, **self.about}
        description |= {"classes": labels, "feature_names": list(self.feature_names)}
        write_file(Path(folder) / "model.npz", buffer.getvalue())
        write_file(Path(folder) / "model.json", json.dumps(description, indent=2, allow_nan=False).encode() + b"\n")

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> LinearModel:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            If a file is damaged, of another kind, or holds pickles.
        FileNotFoundError
            If a file is missing.
        """
        numbers, description = Path(folder) / "model.npz", Path(folder) / "model.json"
        for file in (numbers, description):
            if not file.is_file():
                raise FileNotFoundError(f"LinearModel.load: folder must hold {file.name}; got {folder}")
        try:
            about = json.loads(description.read_text(encoding="utf-8"))
        except ValueError as error:
            raise bad(f"LinearModel.load: {description}", "be complete JSON", f"{error}") from None
        if not isinstance(about, dict) or about.get("format") != _FORMAT:
            got = about.get("format", "no format") if isinstance(about, dict) else type(about).__name__
            raise bad(f"LinearModel.load: {description}", f"have the format {_FORMAT!r}", got)
        try:
            with np.load(numbers, allow_pickle=False) as stored:
                coef, intercept = stored["coef"], stored["intercept"]
            if (coef.dtype, intercept.dtype) != (np.float64, np.float64):
                raise ValueError(f"dtypes {coef.dtype} and {intercept.dtype}")
        except Exception as error:  # whatever a damaged or foreign file makes its readers raise
            must = "hold the float64 arrays coef and intercept, without pickle"
            raise bad(f"LinearModel.load: {numbers}", must, f"{type(error).__name__}: {error}") from None
        labels, names = about.pop("classes", False), about.pop("feature_names", None)
        if not (labels is None or isinstance(labels, list)) or not _texts(names):
            raise bad(f"LinearModel.load: {description}", "hold classes (a list or null) and feature_names", "others")
        return cls(coef, intercept, None if labels is None else tuple(labels), tuple(names), about)


def _texts(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)
