"""What sites agree on before an analysis, and what a site makes of its own table: its rows, if its guards allow it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedconvex import losses
from fedconvex._check import bad, flag, instance, real, whole
from fedconvex.analysis.likelihood import LikelihoodProblem
from fedconvex.analysis.model_rows import INTERCEPT, Survival, against_reference, log_offset, model_rows
from fedconvex.analysis.response_families import Family
from fedconvex.federation import Federation
from fedconvex.methods import FederatedNewton
from fedconvex.remote import Roster
from fedconvex.sums import PlainSums, as_sums
from fedconvex.tables.columns import Columns
from fedconvex.tables.planning import Wishes
from fedconvex.tables.reading import read_frame


@dataclass(frozen=True, kw_only=True)
class Guards:
    """What a site's table must be before sums over it are told: an option of the site, which no server can change.

    Parameters
    ----------
    rows : int
        Complete rows at least.
    events : int
        Rows of each class at least (logistic), or with a response above zero (counts).
    level : int
        Rows of each level of a category that has any, and of each value of a column of 0 and 1.
    parameters : float
        Coefficients at most, as a share of the rows.

    Examples
    --------
    >>> from fedconvex.analysis import Guards
    >>> Guards(rows=20).events
    5
    """

    rows: int = 10
    events: int = 5
    level: int = 3
    parameters: float = 0.1

    def __post_init__(self) -> None:
        for name in ("rows", "events", "level"):
            whole(f"Guards.{name}", getattr(self, name), low=0)
        real("Guards.parameters", self.parameters, low=0.0)

    def check(self, site: str, X: np.ndarray, names: tuple[str, ...], y: np.ndarray, family: Family) -> None:
        """Raise ValueError where sums over these rows would say too much of single ones."""
        n, p = X.shape
        if n < self.rows:
            raise _guarded(site, "rows", f"be at least {self.rows}", n, "rows")
        if family.name not in ("gaussian", "gamma"):
            counts = [int((y > 0.0).sum())] + ([int((y == 0.0).sum())] if family.name == "logistic" else [])
            if min(counts) < self.events:
                raise _guarded(site, "events", f"be at least {self.events}", min(counts), "events")
        if p > self.parameters * n:
            raise _guarded(site, f"{p} coefficients", f"be at most {self.parameters:g} of the rows", n, "parameters")
        for j, name in enumerate(names):
            if name == INTERCEPT or not np.isin(X[:, j], (0.0, 1.0)).all():
                continue
            few = min(int((X[:, j] == v).sum()) or n for v in (0.0, 1.0))
            if few < self.level:
                raise _guarded(site, f"rows of a level of {name!r}", f"be none or at least {self.level}", few, "level")


def _guarded(site: str, what: str, must: str, got: Any, option: str) -> ValueError:
    return bad(f"site {site}: {what}", must, got, f"the site may allow it: Guards({option}=...)")


class SiteRows(LikelihoodProblem):
    """A site's rows, as the plan of an analysis has them."""

    over_sites = "analysis.site_answers"
    shared = ("family",)

    def __init__(self, federation: Federation, plan: AnalysisPlan) -> None:
        super().__init__(federation, plan.family)
        self.fingerprint, self.loss = plan.fingerprint, plan.loss


@dataclass(frozen=True, eq=False)
class AnalysisPlan:
    """What the sites of an analysis and its server agree on; made by `plan_analysis`, the same at all.

    Attributes
    ----------
    names : tuple of str
        The coefficients.
    family : Family
    site_intercepts : bool
    """

    family: Family
    names: tuple[str, ...]
    terms: dict[str, tuple[int, ...]]
    event: str
    site_intercepts: bool
    columns: Columns
    units: tuple[np.ndarray, np.ndarray]
    reference: Mapping[str, Any]
    weight: str | None
    offset: str | None
    exposure: str | None
    sums: Any

    def __repr__(self) -> str:
        return f"AnalysisPlan({self.event}, {self.family.name}, {len(self.names)} coefficients)"

    @property
    def fingerprint(self) -> str:
        """What must be the same at all: names, family and how the response is read."""
        probe = float(self.family.value(np.array([0.3]), np.array([2.0]))[0])  # tells theta, too
        agreed = self.event, self.names, self.weight, self.offset, self.exposure, f"{probe:.12g}"
        return repr((self.family.name, *agreed))

    @property
    def loss(self) -> Any:
        """The loss of the family, which sites compare."""
        kind = getattr(losses, self.family.loss)
        return kind(theta=1.0) if self.family.loss == "NegativeBinomial" else kind()

    @property
    def method(self) -> FederatedNewton:
        """What `Site` and Flower's apps are given as the method."""
        return FederatedNewton(sums=self.sums)

    def make(self, federation: Federation) -> SiteRows:
        """Return the problem of a federation: what `Site`, `Roster` and Flower's apps are given."""
        return SiteRows(federation, self)

    def roster(self, sizes: Mapping[str, int], **options: Any) -> Roster:
        """Return the roster of sites by name, with their numbers of complete rows; options of `Roster`."""
        instance("AnalysisPlan.roster: sizes", sizes, Mapping)
        return Roster(self.make, list(sizes), list(sizes.values()), len(self.names), **options)

    def rows(self, data: Any, site: str, guards: Guards | None = None, **how: Any) -> Federation:
        """Return a site's complete rows: columns as agreed, in the units of the data.

        Parameters
        ----------
        data : path, DataFrame or mapping
            The site's table, as for `fedconvex.tables.read_table`.
        site : str
            Its name in the roster.
        guards : Guards, optional
        **how
            ``sep``, ``decimal``, ``encoding`` of the file.

        Raises
        ------
        ValueError
            If columns are missing, cells are not what was agreed, or a guard refuses the table.
        """
        instance("AnalysisPlan.rows: site", site, str)
        target = str(self.columns.name_of("target"))
        used = [c.name for c in self.columns.features]
        extra = [c for c in (self.weight, self.offset, self.exposure) if c is not None]
        wishes = Wishes.of(target=target, weight=self.weight, features=used)
        frame = self.columns.cleared(read_frame(data, text=wishes.text, **how))
        if lacking := [c for c in (target, *used, *extra) if c not in frame.cells]:
            raise bad(f"site {site}: table", f"have the columns {', '.join((target, *used, *extra))}", lacking[0])
        gone = {c: frame.missing(c) for c in (target, *used, *extra)}
        keep = ~np.any(list(gone.values()), axis=0)
        if left := {c: int(g.sum()) for c, g in gone.items() if g.any()}:
            said = ", ".join(f"{c} {m}" for c, m in left.items())
            logging.getLogger("fedconvex").warning(
                "site %s: %d of %d rows left out for missing cells: %s", site, int((~keep).sum()), frame.n, said
            )
        if not keep.any():
            raise bad(f"site {site}: table", "have a row without missing cells", "none")
        frame = frame.take(np.flatnonzero(keep))
        y = self.columns.target(frame)
        self.family.check(y, f"site {site}: {target}")
        X = self.columns.matrix(frame, unknown="refuse")
        X = against_reference(self.columns, X, self.reference)[0]
        X = X if self.site_intercepts else np.column_stack([np.ones(frame.n), X])
        (guards or Guards()).check(site, X, self.names, y, self.family)
        weights = None if self.weight is None else frame.numbers(self.weight)
        offset = log_offset(frame, self.offset, self.exposure)
        return Federation.from_arrays(X, y, [site] * frame.n, None, weights, offset)


def plan_analysis(
    book: Any,
    target: str,
    client: str,
    *,
    family: str | Family | None = None,
    site_intercepts: bool = False,
    offset: str | None = None,
    exposure: str | None = None,
    weight: str | None = None,
    reference: Mapping[str, Any] | None = None,
    sums: Any = None,
    **reading: Any,
) -> AnalysisPlan:
    """Return what sites agree on, from a code book: a table of invented rows with the columns and levels of all.

    Parameters
    ----------
    book : path, DataFrame or mapping
        Invented rows: every column that is used, two numbers of each of the right size, and every category.
    target, client, family, site_intercepts, offset, exposure, weight, reference
        As for `analyse`.
    sums : `fedconvex.secure.PlainSums` or `fedconvex.secure.SecureSums`
        Whether the server learns every site's sums, or only those over all sites. With fixed point of 40 bits
        estimates are off by some 1e-9 standard errors; what they are is printed.

    Raises
    ------
    ColumnProblems, ValueError, TypeError
        As `analyse`.

    Examples
    --------
    >>> from fedconvex.analysis import plan_analysis
    >>> book = {"age": [40, 70, 55], "ward": ["a", "b", "c"], "ill": ["no", "yes", "no"], "site": ["x", "y", "x"]}
    >>> plan_analysis(book, target="ill", client="site").names
    ('Intercept', 'age', 'ward=b', 'ward=c')
    """
    flag("plan_analysis: site_intercepts", site_intercepts)
    sums = PlainSums() if sums is None else as_sums("plan_analysis: sums", sums)
    rows = model_rows(
        book, target, client, family, site_intercepts=site_intercepts, offset=offset, exposure=exposure,
        weight=weight, reference=reference, survival=Survival(None, None, None, "efron"), formula=None,
        reading=reading,
    )  # fmt: skip
    X, columns = rows.federation.X, rows.federation.columns
    mean, scale = X.mean(axis=0), X.std(axis=0)
    units = np.where(scale > 0.0, mean, 0.0), np.where(scale > 0.0, scale, 1.0)
    return AnalysisPlan(
        rows.family, rows.names, rows.terms, rows.event, site_intercepts, replace(columns), units,
        dict(reference or {}), weight, offset, exposure, sums,
    )  # fmt: skip
