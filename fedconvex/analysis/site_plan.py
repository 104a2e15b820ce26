"""What sites agree on before an analysis, and what a site makes of its own table: its rows, if its guards allow it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedconvex import losses
from fedconvex._check import bad, flag, instance, real, whole
from fedconvex.analysis.formulas import INTERCEPT
from fedconvex.analysis.model_rows import model_rows, response_unit
from fedconvex.analysis.response_families import GAUSSIAN, Family
from fedconvex.analysis.site_problems import LEAST, PROBLEMS, SiteRows, guarded
from fedconvex.analysis.table_coding import Coding, Survival
from fedconvex.families.survival.problem import PartialLikelihood
from fedconvex.families.survival.survival_rows import SurvivalFederation
from fedconvex.federation import Federation
from fedconvex.methods import FederatedNewton
from fedconvex.remote import Roster
from fedconvex.sums import PlainSums, as_sums
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
        Rows with an event at least (cox), of each class (logistic; multinomial: that the site has), or with a
        response above zero (counts).
    level : int
        Rows of each level of a category that has any, and of each value of a column of 0 and 1.
    parameters : float
        Coefficients at most, as a share of the rows.
    answer : float
        Rows that make up an answer at least, in effective number (sum h)^2/sum h^2 of the weights h that they have in
        it. Where scores are far out few rows make up a Hessian, also in honest searches; 0 allows it.

    Raises
    ------
    ValueError, TypeError
        If a limit is negative, or no number.

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
    answer: float = LEAST

    def __post_init__(self) -> None:
        for name in ("rows", "events", "level"):
            whole(f"Guards.{name}", getattr(self, name), low=0)
        for name in ("parameters", "answer"):
            real(f"Guards.{name}", getattr(self, name), low=0.0)

    def check(self, site: str, rows: Federation, names: tuple[str, ...], family: Family) -> None:
        """Raise ValueError where sums over these rows would say too much of single ones."""
        X, (n, p) = rows.X, rows.X.shape
        if n < self.rows:
            raise _guarded(site, "rows", f"be at least {self.rows}", n, "rows")
        if (events := _fewest_events(rows, family)) < self.events:
            raise _guarded(site, "events", f"be at least {self.events}", events, "events")
        if family.name == "cox" and not events:
            cure = "leave the site out of the roster: it says nothing of hazards"
            raise bad(f"site {site}: events", "be at least 1", events, cure)
        if len(names) > self.parameters * n:
            raise _guarded(
                site, f"{len(names)} coefficients", f"be at most {self.parameters:g} of the rows", n, "parameters"
            )
        for j, name in enumerate(names[:p]):
            name = name.rpartition(": ")[2] if len(names) > p else name  # of several classes
            if name == INTERCEPT or not np.isin(X[:, j], (0.0, 1.0)).all():
                continue
            few = min(int((X[:, j] == v).sum()) or n for v in (0.0, 1.0))
            if few < self.level:
                raise _guarded(site, f"rows of a level of {name!r}", f"be none or at least {self.level}", few, "level")


def _guarded(site: str, what: str, must: str, got: Any, option: str) -> ValueError:
    return bad(f"site {site}: {what}", must, got, f"the site may allow it: Guards({option}=...)")


def _fewest_events(rows: Federation, family: Family) -> int:
    """Return the rows with an event; of the rarer class of two, the rarest that a site has of several."""
    if isinstance(rows, SurvivalFederation):
        return int(rows.event.sum())
    counts = {v: int((rows.y == v).sum()) for v in np.unique(rows.y)}
    if family.name == "logistic":
        return min(counts.get(v, 0) for v in (0.0, 1.0))
    if family.name == "multinomial":
        return min(counts.values())
    return rows.n if family.name in ("gaussian", "gamma") else int((rows.y > 0.0).sum())


@dataclass(frozen=True, eq=False)
class AnalysisPlan:
    """What the sites of an analysis and its server agree on; made by `plan_analysis`, the same at all.

    Attributes
    ----------
    names : tuple of str
        The coefficients.
    family : Family
    site_intercepts : bool
    coding : Coding
        How a site makes columns and responses of its table.
    terms : dict from term to columns
        Which coefficients belong to a term of the formula.
    notes : tuple of pairs
        What was decided about columns, for the page.
    units : tuple of two arrays
        Centres and scales of the columns, the same at all sites.
    sums : PlainSums or SecureSums
        How the server learns the sums over sites.

    Examples
    --------
    >>> from fedconvex.analysis import plan_analysis
    >>> book = {"age": [40, 70], "ill": ["no", "yes"], "ward": ["a", "b"]}
    >>> plan = plan_analysis(book, target="ill", client="ward")
    >>> plan.names, plan.family.name, plan.roster({"a": 120, "b": 80}).federation.K
    (('Intercept', 'age'), 'logistic', 2)
    """

    coding: Coding
    names: tuple[str, ...]
    terms: dict[str, tuple[int, ...]]
    notes: tuple[tuple[str, str], ...]
    site_intercepts: bool
    units: tuple[np.ndarray, np.ndarray]
    sums: Any

    @property
    def family(self) -> Family:
        """Of the responses."""
        return self.coding.family

    @property
    def event(self) -> str:
        """What the response is, in words."""
        return self.coding.event

    @property
    def blocks(self) -> int:
        """Classes but for the reference; else 1."""
        return max(len(self.coding.classes) - 1, 1)

    def __repr__(self) -> str:
        return f"AnalysisPlan({self.event}, {self.family.name}, {len(self.names)} coefficients)"

    @property
    def fingerprint(self) -> str:
        """What must be the same at all: names, family and how the response is read."""
        code, family, theta = self.coding, self.family, ""
        if family.name not in PROBLEMS:
            theta = f"{float(family.value(np.array([0.3]), np.array([2.0]))[0]):.12g}"
        text = None if code.formula is None else code.formula.text
        agreed = self.event, self.names, code.order, code.columns.name_of("weight"), code.offset, code.exposure, theta
        return repr((family.name, *agreed, *code.survival, code.unit, text, self.notes))

    @property
    def loss(self) -> Any:
        """The loss of the family, which sites compare."""
        if self.family.name == "cox":
            return PartialLikelihood(self.coding.survival.ties)
        how: dict[str, Any] = {"NegativeBinomial": {"theta": 1.0}, "Softmax": {"n_classes": self.blocks + 1}}
        return getattr(losses, self.family.loss)(**how.get(self.family.loss, {}))

    @property
    def method(self) -> FederatedNewton:
        """What `Site` and Flower's apps are given as the method."""
        return FederatedNewton(sums=self.sums)

    def make(self, federation: Federation) -> Any:
        """Return the problem of a federation: what `Site`, `Roster` and Flower's apps are given."""
        return PROBLEMS.get(self.family.name, SiteRows)(federation, self)

    def roster(self, sizes: Mapping[str, int], **options: Any) -> Roster:
        """Return the roster of sites by name, with their numbers of complete rows; options of `Roster`."""
        instance("AnalysisPlan.roster: sizes", sizes, Mapping)
        return Roster(self.make, list(sizes), list(sizes.values()), len(self.units[0]), **options)

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
        code, used, guards = self.coding, self.coding.used, guards or Guards()
        wishes = Wishes.of(
            target=code.columns.name_of("target"), features=[c.name for c in code.columns.features],
            as_category=[c.name for c in code.columns.features if c.role == "category"],
        )  # fmt: skip
        frame = code.columns.cleared(read_frame(data, text=wishes.text, **how))
        if lacking := [c for c in used if c not in frame.cells]:
            raise bad(f"site {site}: table", f"have the columns {', '.join(used)}", lacking[0])
        gone = {c: frame.missing(c) for c in used}
        keep = ~np.any(list(gone.values()), axis=0)
        if left := {c: int(g.sum()) for c, g in gone.items() if g.any()}:
            said = ", ".join(f"{c} {m}" for c, m in left.items())
            logging.getLogger("fedconvex").warning(
                "site %s: %d of %d rows left out for missing cells: %s", site, int((~keep).sum()), frame.n, said
            )
        if not keep.any():
            raise bad(f"site {site}: table", "have a row without missing cells", "none")
        frame = frame.take(np.flatnonzero(keep))
        rows = code.federation(frame, code.design(frame).X, [site] * frame.n)
        self.family.check(rows.y, f"site {site}: {code.columns.name_of('target')}")
        guards.check(site, rows, self.names, self.family)
        return guarded(rows, guards.answer)


def plan_analysis(
    book: Any,
    target: str | None,
    client: str,
    *,
    formula: str | None = None,
    family: str | Family | None = None,
    site_intercepts: bool = False,
    offset: str | None = None,
    exposure: str | None = None,
    weight: str | None = None,
    reference: Mapping[str, Any] | None = None,
    event: str | None = None,
    entry: str | None = None,
    strata: str | None = None,
    ties: str = "efron",
    sums: Any = None,
    **reading: Any,
) -> AnalysisPlan:
    """Return what sites agree on, from a code book: a table of invented rows with the columns and levels of all.

    Parameters
    ----------
    book : path, DataFrame or mapping
        Invented rows: every column that is used, two numbers of each of the right size, and every category.
    target, client, formula, family, site_intercepts, offset, exposure, weight, reference, event, entry, strata, ties
        As for `analyse`. A formula takes levels, knots and means from the code book, so that splines need
        ``bs(bp, knots=(110, 130), lower_bound=60, upper_bound=260)``, or numbers in the book whose quantiles are meant.
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
        weight=weight, reference=reference, survival=Survival(event, entry, strata, ties), formula=formula,
        reading=reading,
    )  # fmt: skip
    X = rows.federation.X
    mean, scale = X.mean(axis=0), X.std(axis=0)
    units = np.where(scale > 0.0, mean, 0.0), np.where(scale > 0.0, scale, 1.0)
    unit = response_unit(GAUSSIAN if event is not None else rows.family, rows.federation.y)  # of times, too
    coding = rows.coding._replace(unit=unit)  # sums of squares stay small
    notes = tuple((name, said.replace("all rows together", "the code book")) for name, said in rows.notes)
    return AnalysisPlan(coding, rows.names, rows.terms, notes, site_intercepts, units, sums)
