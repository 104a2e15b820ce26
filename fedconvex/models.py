"""A fitted linear model in the units of the data, saved as numbers (npz) and a description (JSON), without pickle."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from numbers import Number
from types import NoneType
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedconvex import losses
from fedconvex._check import bad, finite, flag, numeric, raw, vector, wrong_type
from fedconvex._files import check_folder
from fedconvex._model_files import feature_matrix, read_model, write_model
from fedconvex.loss_traits import traits
from fedconvex.tables.columns import Columns
from fedconvex.tables.frame import is_gap
from fedconvex.tables.spelling import Names, all_differ

__all__ = ["LinearModel"]

_BLOCK = 4_000_000  # products of rows and weights that are held at a time


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Scores ``X @ coef + intercept``, one column of them per class for a multinomial model; or a model per client.

    Rows are the raw rows of a table (a path, DataFrame, mapping or array of its columns) where the model has a record
    of columns, and features otherwise. What is made of a row does not depend on the rows beside it, bit for bit.

    Attributes
    ----------
    coef : array (d,) or (C, d); with clients (m, d) or (m, C, d)
        Weights in the units of the raw features.
    intercept : array () or (C,); with clients (m,) or (m, C)
        Intercept, 0 for a model without one.
    classes : tuple or None
        Two labels (a negative score means the first), C labels (the largest score wins), or None: the score is the
        prediction.
    feature_names : tuple of d strings
    about : mapping
        Everything else that JSON can hold: loss, l2, penalty, method, certified gap, certificate, data and its digest.
    columns : Columns, optional
        What the features are made of.
    clients : tuple of m names, optional
        Whose model it is. A client that is not among them gets the mean of all models, each counting once.

    Raises
    ------
    ValueError, TypeError
        If shapes of coef and intercept, or numbers of classes, feature_names and clients, do not fit each other; if
        names are not different, or numbers not finite.

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
    columns: Columns | None = None
    clients: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        coef, intercept = numeric("LinearModel.coef", self.coef), numeric("LinearModel.intercept", self.intercept)
        own, word = (0, "") if self.clients is None else (1, "m, ")
        if coef.ndim - own not in (1, 2) or 0 in coef.shape:
            raise bad("LinearModel.coef", f"have shape ({word}d{'' if own else ','}) or ({word}C, d)", f"{coef.shape}")
        if intercept.shape != coef.shape[:-1]:
            raise bad("LinearModel.intercept", f"have shape {coef.shape[:-1]}", f"{intercept.shape}")
        finite("LinearModel.coef", coef)
        finite("LinearModel.intercept", intercept)
        several = coef.ndim - own == 2
        outputs = coef.shape[-2] if several else 2
        for name in ("classes", "feature_names", "clients"):
            given = getattr(self, name)
            if not (isinstance(given, (tuple, list)) or (given is None and name != "feature_names")):
                raise wrong_type(f"LinearModel.{name}", "be a tuple", f"{type(given).__name__} {given!r}")
        if self.classes is not None and len(self.classes) != outputs:
            raise bad("LinearModel.classes", f"be {outputs} labels", f"{len(self.classes)}")
        if self.classes is None and several:
            raise bad("LinearModel.classes", f"be {outputs} labels", "None")
        if self.classes is not None and not all_differ(self.classes):
            raise bad("LinearModel.classes", "be different names (1, '1' and '1.0' are one)", f"{self.classes!r}")
        if len(self.feature_names) != coef.shape[-1] or not _texts(list(self.feature_names)):
            raise bad("LinearModel.feature_names", f"be {coef.shape[-1]} names", f"{len(self.feature_names)}")
        if len(set(self.feature_names)) < len(self.feature_names):
            twice = next(name for name, m in Counter(self.feature_names).items() if m > 1)
            raise bad("LinearModel.feature_names", "be different names", f"{twice!r} twice")
        if self.clients is not None and not (all_differ(self.clients) and len(self.clients) == len(coef)):
            raise bad("LinearModel.clients", f"be {len(coef)} different names", f"{len(self.clients)}: {self.clients}")
        if self.columns is not None and not isinstance(self.columns, Columns):
            raise wrong_type("LinearModel.columns", "be a record of columns", f"{self.columns!r}")
        if self.columns is not None and self.columns.feature_names != tuple(self.feature_names):
            raise bad("LinearModel.feature_names", "be those of the record of columns", "others")
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
        w : array (d,) or (C, d), of one model or of each of m clients; with intercept (..., d+1)
            The model as it was optimised; its last column is the intercept.
        center, scale : array (d,)
            What was subtracted, then divided by.
        intercept : bool
            Whether w ends with an intercept.
        target : pair of floats
            Centre and scale of the target.
        **rest
            classes, feature_names, about, columns, clients.

        Raises
        ------
        ValueError, TypeError
            If w, center, scale and target do not fit each other.

        Examples
        --------
        >>> import numpy as np
        >>> from fedconvex.models import LinearModel
        >>> names = {"classes": None, "feature_names": ("x",)}
        >>> model = LinearModel.from_standardised(np.array([3.0, 1.0]), np.array([4.0]), np.array([2.0]), **names)
        >>> float(model.decision_function([[6.0]])[0])  # 3 (6 - 4)/2 + 1
        4.0
        """
        w, intercept = numeric("LinearModel.from_standardised: w", w), flag("LinearModel: intercept", intercept)
        d = w.shape[-1] - intercept if w.ndim in (1, 2, 3) else 0
        if d < 1:
            raise bad("LinearModel.from_standardised: w", "hold a weight of every feature", f"shape {w.shape}")
        center, scale = (
            vector(f"LinearModel.from_standardised: {n}", v, d) for n, v in (("center", center), ("scale", scale))
        )
        shift, factor = vector("LinearModel.from_standardised: target", target, 2).tolist()
        coef = (w[..., :-1] if intercept else w) / scale
        offset = (w[..., -1] if intercept else np.zeros(w.shape[:-1])) - coef @ center
        return cls(factor * coef, np.asarray(shift + factor * offset), **rest)

    # ------------------------------------------------------------------ rows
    def decision_function(self, X: Any, clients: Any = None) -> np.ndarray:
        """Return the scores ``X @ coef.T + intercept``: (n,), or (n, C).

        Parameters
        ----------
        X : path, DataFrame, mapping or array
            Raw rows where the model has a record of columns: columns are found by name, in any order, and an array has
            the raw columns of the features, or all d features. Features (n, d) otherwise, dense or CSR.
        clients : array (n,), optional
            Whose row it is, for a model per client; default the client column of the rows.

        Raises
        ------
        ValueError, TypeError
            If columns are missing or others, or a number is missing or infinite.

        Warns
        -----
        UnknownCategory
            If a category occurs that no training row had; its one-hot columns are zero. If a missing cell was to be
            indicated, and no training row had one; it is filled like others.
        """
        who = "LinearModel.decision_function: X"
        rows, frame = feature_matrix(who, X, self.columns, self.feature_names)
        if self.clients is None:
            return _scores(rows, self.coef, self.intercept)
        owners = None
        if frame is not None and self.columns is not None and self.columns.name_of("client") in frame.names:
            owners = self.columns.clients(frame)
        owners = owners if clients is None else raw("LinearModel.decision_function: clients", clients)
        if owners is None:
            cure = "pass clients=, one name a row; a name that the model does not know gets the mean of all models"
            raise bad("LinearModel.decision_function: clients", "say whose rows they are", "nothing", cure)
        if owners.shape != (rows.shape[0],):
            raise bad("LinearModel.decision_function: clients", f"be {rows.shape[0]} names", f"shape {owners.shape}")
        gaps = [i for i, name in enumerate(owners.tolist()) if is_gap(name)]
        if gaps:
            got = f"{len(gaps)} missing, the first in row {gaps[0] + 1}"
            raise bad("LinearModel.decision_function: clients", "name the client of every row", got)
        who_is = Names(self.clients).places(owners.tolist())
        out = np.empty((rows.shape[0], *self.coef.shape[1:-1]))
        for k in np.unique(who_is).tolist():
            mine = who_is == k
            w, b = (self.coef.mean(axis=0), self.intercept.mean(axis=0)) if k < 0 else (self.coef[k], self.intercept[k])
            out[mine] = _scores(rows[mine], w, b)
        return out

    def unknown_clients(self, clients: Any) -> list[Any]:
        """Return the names that have no model of their own, each once."""
        known, who = Names(self.clients or ()), "LinearModel.unknown_clients: clients"
        names = raw(who, clients).ravel().tolist()
        if not all(isinstance(name, (str, bytes, Number, date, NoneType)) for name in names):
            raise wrong_type(who, "be names", f"{clients!r}"[:80])
        return [name for name in dict.fromkeys(names) if known.place(name) < 0]

    def predict(self, X: Any, clients: Any = None, *, loss: Any = None) -> np.ndarray:
        """Return the class labels; for a regression the scores, or what a given loss predicts from them."""
        z = self.decision_function(X, clients)
        if self.classes is None:
            return z if loss is None else traits(loss).predict(z)
        return np.asarray(self.classes)[np.argmax(z, axis=1) if z.ndim == 2 else (z >= 0.0).astype(int)]

    def predict_proba(self, X: Any, clients: Any = None, *, loss: Any = None) -> np.ndarray:
        """Return the probability of every class, (n, C) in the order of ``classes``, as the loss declares it.

        Raises
        ------
        TypeError
            If the model has no classes, or its loss declares no probabilities (a hinge's scores are no log odds).
        """
        who, loss = "LinearModel.predict_proba", self.loss if loss is None else loss
        if self.classes is None or loss is None or not traits(loss).probable:
            got = "no classes" if self.classes is None else f"{self.about.get('loss') if loss is None else loss!r}"
            raise wrong_type(who, "be asked of a classifier whose loss declares probabilities", got)
        p = np.asarray(loss.probabilities(self.decision_function(X, clients)))
        return p if p.ndim == 2 else np.column_stack([1.0 - p, p])

    @property
    def loss(self) -> Any:
        """The loss that the model was trained with, if it is one of `fedconvex.losses`; else None."""
        return _loss_of(self.about.get("loss"))

    def to_frame(self) -> Any:
        """Return the coefficients as a pandas DataFrame, indexed by feature, with a last row "(intercept)".

        Raises
        ------
        ImportError
            Without pandas.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError('to_frame must have pandas: pip install "fedconvex[frames]"') from error
        table = np.concatenate([self.coef, self.intercept[..., None]], axis=-1)
        several = table.ndim - (self.clients is not None) == 2
        axes = [
            list(map(str, names)) for names, used in ((self.clients, True), (self.classes, several)) if names and used
        ]
        rows = [*self.feature_names, "(intercept)"]
        if not axes:
            return pd.DataFrame({"coefficient": table}, index=pd.Index(rows, name="feature"))
        heads = pd.MultiIndex.from_product(axes) if len(axes) == 2 else axes[0]
        flat = table.reshape(-1, table.shape[-1]).T
        return pd.DataFrame(flat, index=pd.Index(rows, name="feature"), columns=heads)

    # ------------------------------------------------------------------ files
    def save(self, folder: str | os.PathLike[str], **arrays: np.ndarray) -> None:
        """Write model.npz (coef, intercept, further arrays) and model.json into a folder, which is made if need be."""
        place = check_folder("LinearModel.save: folder", folder)
        own = {"coef": self.coef, "intercept": self.intercept, **arrays}
        names = {"classes": self.classes, "clients": self.clients, "feature_names": self.feature_names}
        write_model("LinearModel.save", place, "linear", own, names, self.about, self.columns)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> LinearModel:
        """Read what `save` wrote.

        Raises
        ------
        ValueError
            If a file is damaged, of another kind, or holds pickles; if a field is missing or wrong, by name.
        FileNotFoundError
            If a file is missing.
        """
        found = read_model("LinearModel.load", folder, "linear", ("coef", "intercept"))
        arrays, labels, clients = found.arrays, found.classes, found.clients
        return cls(
            arrays["coef"], arrays["intercept"], labels, found.feature_names, found.about, found.columns, clients
        )


def _scores(rows: Any, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
    """Return scores (n,) or (n, C), each row by itself: a BLAS product depends on how many rows there are."""
    if sp.issparse(rows):
        return np.asarray(rows @ coef.T) + intercept
    W = np.atleast_2d(coef)
    out = np.empty((rows.shape[0], len(W)))
    step = max(1, _BLOCK // max(1, rows.shape[1]))
    for lo in range(0, rows.shape[0], step):
        block = np.ascontiguousarray(rows[lo : lo + step])
        for c, w in enumerate(W):
            out[lo : lo + step, c] = (block * w).sum(axis=1)
    return (out[:, 0] if coef.ndim == 1 else out) + intercept


def _loss_of(text: Any) -> Any:
    """Return the loss of `fedconvex.losses` that a repr names, or None: a name, and numbers by name."""
    name, _, rest = str(text)[:200].partition("(")
    if name not in losses.__all__ or rest[-1:] != ")":
        return None
    parts = [part.partition("=") for part in rest[:-1].split(",") if part]
    try:
        given = {k.strip(): int(v) if v.isdecimal() else float(v) for k, _, v in parts}
        return getattr(losses, name)(**given)
    except (ValueError, TypeError):
        return None


def _texts(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)
