"""What a comparison found: figures by method and by client, as tables, a frame, and a page."""

from __future__ import annotations

import html
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedconvex._files import check_folder
from fedconvex.comparison.compared_rows import Rows
from fedconvex.comparison.decision import beside_base, decision
from fedconvex.comparison.outcomes import Joining, worst_of
from fedconvex.comparison.page import write_page
from fedconvex.comparison.scores import Measures
from fedconvex.comparison.summary_tables import cell_text, client_rows, column_rows, method_rows
from fedconvex.report.tables import format_table

if TYPE_CHECKING:
    from fedconvex.comparison.cross_validation import Tuned
    from fedconvex.comparison.kinds import Fit
    from fedconvex.comparison.method_costs import Cost
    from fedconvex.comparison.splits import Split
    from fedconvex.models import LinearModel


class Scored(NamedTuple):
    """A method, measured on held-out rows.

    Attributes
    ----------
    name, words : str
        In tables, and in full.
    tuned : Tuned or None
        How its l2 was chosen; None where there is none.
    fit : Fit or None
        Of the kind of model, which several methods may aim at; to all rows, where all are held out.
    whole : Measures
        On all held-out rows.
    paired : Joining
        Its errors less those of the clients alone, over all held-out rows.
    clients : tuple of Measures
        Client by client.
    joins : tuple of Joining
        The same differences, client by client: whether a client gains.
    worst : int or None
        The client of largest error among those with enough rows.
    cost : Cost or None
        Rounds and floats to the gap that was asked for.
    models : object
        With ``scores(X, client)`` of rows.
    scores : array
        Of the held-out rows, in the first repeat.
    domains : tuple of Measures
        Where rows have domains.
    over_base : tuple of Joining
        Its errors less those of the base rate, client by client.
    repeats : tuple of array
        Scores of the held-out rows, in every repeat.
    fitted : tuple of tuples
        Models of every split, repeat by repeat, which these scores come from.

    Examples
    --------
    >>> import fedconvex
    >>> from fedconvex.datasets import linear_federation
    >>> fed = linear_federation(3, seed=0).federation
    >>> found = fedconvex.compare(fed, methods=["pooled"], splits=1, progress=False)
    >>> pooled = found["pooled"]
    >>> pooled.name, len(pooled.clients), pooled.l2 > 0.0
    ('pooled', 3, True)
    """

    name: str
    words: str
    tuned: Tuned | None
    fit: Fit | None  # of the kind of model, which several methods may aim at; to all rows, where all are held out
    whole: Measures  # all held-out rows
    paired: Joining  # its errors less those of the clients alone, all held-out rows
    clients: tuple[Measures, ...]
    joins: tuple[Joining, ...]  # client by client
    worst: int | None  # the client of largest error among those with enough rows
    cost: Cost | None
    models: Any  # `scores(X, client)` of rows
    scores: np.ndarray  # of the held-out rows, in the first repeat
    domains: tuple[Measures, ...] = ()  # where rows have domains
    over_base: tuple[Joining, ...] = ()  # its errors less those of the base rate, client by client
    repeats: tuple[np.ndarray, ...] = ()  # scores of the held-out rows, in every repeat
    fitted: tuple[tuple[Any, ...], ...] = ()  # models of every split, repeat by repeat, which these scores come from

    def worst_domain(self, least: int) -> int | None:
        """Return the number of the domain of largest error among those with enough rows, None without such a one."""
        return worst_of([m.error for m in self.domains], [m.rows for m in self.domains], least)

    @property
    def l2(self) -> float:
        """The l2 of the method; the median where every client has its own; NaN where there is none."""
        return math.nan if self.tuned is None else float(np.median(self.tuned.l2))


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What `fedconvex.compare` found.

    Attributes
    ----------
    rows : Rows
        The rows that were compared on.
    settings : Settings
    methods : tuple of Scored
    train_rows, test_rows : array (K,)
        Rows in a split that were fitted to, about, and rows that were held out in some split.
    held : int array
        Numbers of the rows that were held out.
    notes : tuple of str
    seconds : float
    splits : tuple of tuples of (train, at)
        The splits of every repeat. With one alone, models were fitted to its training rows; else those that are
        reported to all rows, and errors are of the models of the splits.

    Examples
    --------
    >>> import fedconvex
    >>> from fedconvex.datasets import linear_federation
    >>> fed = linear_federation(3, seed=0).federation
    >>> found = fedconvex.compare(fed, methods=["pooled"], splits=1, progress=False)
    >>> found.error_name, found.train_rows.tolist(), found.test_rows.tolist()
    ('mean squared error', [38, 38, 38], [12, 12, 12])
    """

    rows: Rows
    settings: Any
    methods: tuple[Scored, ...]
    train_rows: np.ndarray
    test_rows: np.ndarray
    held: np.ndarray
    notes: tuple[str, ...]
    seconds: float
    splits: tuple[tuple[Split, ...], ...]

    def __getitem__(self, name: str) -> Scored:
        """Return a method by its name."""
        for method in self.methods:
            if method.name == name:
                return method
        raise KeyError(f"the comparison holds {', '.join(m.name for m in self.methods)}; not {name}")

    @property
    def error_name(self) -> str:
        """What is compared."""
        return "log loss" if self.rows.classifies else "mean squared error"

    @property
    def held_labels(self) -> np.ndarray:
        """Labels of the held-out rows."""
        return self.rows.y[self.held]

    @property
    def decision(self) -> str:
        """What to do, in a few sentences, with its uncertainty."""
        return " ".join(self.sentences)

    @property
    def sentences(self) -> list[str]:
        """The decision, sentence by sentence."""
        return decision(self)

    @property
    def base_rates(self) -> dict[Any, str]:
        """How the base rate stands, by client: clearly beaten, not clearly beaten, or beaten by no model."""
        return {name: s.value for name, s in zip(self.rows.names, beside_base(self), strict=True)}

    @property
    def clients(self) -> list[dict[str, Any]]:
        """One row per client and method: held-out rows, errors with intervals, and whether the client gains."""
        return [
            {"client": name, "method": m.name, **_client(self.rows, m, k, int(self.train_rows[k]))}
            for k, name in enumerate(self.rows.names)
            for m in self.methods
        ]

    def table(self, width: int | None = None) -> str:
        """Return the methods as text: overall errors, the worst client, who gains and loses, and what it costs."""
        heads, cells = method_rows(self)
        return format_table(heads, cells, width=width)

    def client_table(self, width: int | None = None) -> str:
        """Return the clients as text: alone, under the best method, and what joining does for them."""
        heads, cells = client_rows(self)
        return format_table(heads, cells, width=width)

    def column_table(self, width: int | None = None) -> str:
        """Return as text what is missing, constant or differently coded where in a table; "" where nothing is."""
        heads, cells = column_rows(self)
        return format_table(heads, cells, width=width) if cells else ""

    def to_frame(self) -> Any:
        """Return `clients` as a pandas DataFrame.

        Raises
        ------
        ImportError
            Without pandas.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("Comparison.to_frame must have pandas: pip install pandas") from error
        return pd.DataFrame(self.clients)

    def model(self) -> LinearModel:
        """Return the kind of models that the decision names, fitted to all rows with the chosen l2, for raw rows.

        Every client alone is a model per client; gaps of new rows are filled as in the record of all clients' rows.

        Examples
        --------
        >>> import fedconvex
        >>> table = {"dose": [0.0, 1.0, 2.0, 3.0] * 6, "ward": ["a"] * 12 + ["b"] * 12, "ill": [0, 1, 0, 1] * 6}
        >>> found = fedconvex.compare(table, "ill", "ward", methods=["pooled"], splits=1, folds=2, progress=False)
        >>> found.model().predict({"dose": [0.5, 2.5], "ward": ["a", "b"]}).tolist()
        [0, 1]
        """
        from fedconvex.comparison.final_model import final_model

        return final_model(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `model` into a folder (model.npz, model.json), which `fedconvex predict` reads."""
        self.model().save(check_folder("Comparison.save: path", path))

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the page as index.html into a folder, and return the file.

        Raises
        ------
        ImportError
            Without matplotlib or Jinja2: ``pip install "fedconvex[report]"``.
        ValueError
            If the folder cannot be made or written to.
        """
        return write_page(self, path)

    def __repr__(self) -> str:
        names = ", ".join(m.name for m in self.methods)
        return f"Comparison({self.rows.K} clients, {int(self.test_rows.sum())} held-out rows: {names})"

    def _repr_html_(self) -> str:
        heads, cells = method_rows(self)
        head = "".join(f"<th>{html.escape(h)}</th>" for h in heads)
        rows = ["".join(f"<td>{html.escape(cell_text(c))}</td>" for c in row) for row in cells]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<p>{html.escape(self.decision)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _client(rows: Rows, method: Scored, k: int, train: int) -> dict[str, Any]:
    """Return the figures of a client under a method."""
    m, join, over = method.clients[k], method.joins[k], method.over_base[k]
    out: dict[str, Any] = {"train_rows": train, "test_rows": m.rows, "base_rate": m.base}
    named = {"log_loss" if rows.classifies else "squared_error": m.error}
    named |= {"accuracy": m.accuracy, "auc": m.auc, "bias": m.bias} if rows.classifies else {"rmse": m.rmse}
    for name, e in {**named, "difference": join.difference, "over_base": over.difference}.items():
        out |= {name: e.value, f"{name}_low": e.low, f"{name}_high": e.high}
    out |= {"calibration_error": m.calibration} if rows.classifies else {"r2": m.r2}
    return out | {"verdict": join.outcome.value, "over_base_verdict": over.outcome.value}
