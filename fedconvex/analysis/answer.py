"""What an analysis finds: coefficients with their uncertainty, tests, and how clients differ."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fedconvex._check import among, bad, items
from fedconvex.analysis import hypothesis_tests, site_differences, summary_text
from fedconvex.analysis.firth import penalised_fall
from fedconvex.analysis.fitting import Fit, Rows, restricted, standardised
from fedconvex.analysis.formulas import INTERCEPT
from fedconvex.analysis.hypothesis_tests import Significance
from fedconvex.analysis.likelihood import LikelihoodProblem, certified_minimum
from fedconvex.analysis.over_sites import SitesLikelihood, SitesModel
from fedconvex.analysis.profile_intervals import ProfileIntervals
from fedconvex.analysis.summary_text import p_is, p_text

EXACT = "the response is an exact linear function of the columns: there are no standard errors"


class Coefficient(NamedTuple):
    """A row of the table."""

    name: str
    estimate: float
    standard_error: float
    statistic: float  # z, or t
    p: float
    low: float
    high: float


class Differences(NamedTuple):
    """How the coefficients of clients, each fitted alone with an intercept of its own, differ."""

    clients: tuple[str, ...]  # those with finite estimates
    left_out: tuple[str, ...]
    names: tuple[str, ...]  # of the slopes
    estimates: np.ndarray  # (K, q)
    standard_errors: np.ndarray  # (K, q)
    summaries: dict[str, site_differences.Summary]
    Q: Significance
    equal_slopes: Significance | None  # likelihood ratio; None where a client has no finite estimate
    within: np.ndarray  # (q, 2) estimates and standard errors with an intercept of every client


@dataclass(frozen=True, eq=False, repr=False)
class Analysis:
    """The answer of `analyse`.

    Attributes
    ----------
    rows : ModelRows
    fit : Fit
    covariance : array (p, p)
        Of the estimates, in the units of the columns.
    robust : str or None
    level : float
    site_intercepts : bool
    profile : ProfileIntervals or None
        Enclosures of the ends of profile-likelihood intervals, if they were asked for.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.analysis import analyse
    >>> dose, ward = np.tile(np.arange(6.0), 10), np.repeat(["a", "b"], 30)
    >>> pain = 2.0 + 0.5 * dose + np.sin(np.arange(60.0))
    >>> found = analyse({"dose": dose, "ward": ward, "pain": pain}, target="pain", client="ward")
    >>> found.names, np.round(found.estimates, 2).tolist(), found.residual_df
    (('Intercept', 'dose'), [1.81, 0.59], 58.0)
    """

    rows: Rows
    fit: Fit
    covariance: np.ndarray
    robust: str | None
    level: float
    site_intercepts: bool
    profile: ProfileIntervals | None = None

    # ------------------------------------------------------------------ estimates
    @property
    def names(self) -> tuple[str, ...]:
        """The p columns; those of categories are "column=level", against the level that is not there."""
        return self.rows.names

    @property
    def estimates(self) -> np.ndarray:
        """Coefficients (p,), in the units of the columns; where responses are separated their limits, inf or nan."""
        return self.fit.T @ self.fit.found.b[0] if self.fit.limit is None else self.fit.limit

    @property
    def standard_errors(self) -> np.ndarray:
        """Standard errors (p,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def residual_df(self) -> float | None:
        """Degrees of freedom of t: n - p where the dispersion is estimated, K - 1 clustered by client, else None."""
        if self.robust == "client":
            return float(self.rows.federation.K - 1)
        return self.fit.n - self.fit.parameters if self.rows.family.reference == "t" else None

    def table(self) -> list[Coefficient]:
        """Return a row for each coefficient: estimate, standard error, z or t, p, and interval."""
        df = self.residual_df
        law = stats.norm if df is None else stats.t(df)
        estimates, errors = self.estimates, self.standard_errors
        reach = float(law.isf(0.5 * (1.0 - self.level))) * errors
        low, high = (estimates - reach, estimates + reach) if self.profile is None else self.profile.center
        with np.errstate(invalid="ignore"):
            ratios = np.where(errors > 0.0, estimates / np.where(errors > 0.0, errors, 1.0), np.nan)
        columns = (estimates, errors, ratios, 2.0 * law.sf(np.abs(ratios)), low, high)
        return [Coefficient(n, *map(float, row)) for n, *row in zip(self.names, *columns, strict=True)]

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame, with exp(estimate) where it has a name."""
        import pandas as pd

        frame = pd.DataFrame(self.table()).set_index("name")
        if ratio := self.ratio:
            for column, new in (("estimate", ratio), ("low", f"{ratio}, low"), ("high", f"{ratio}, high")):
                with np.errstate(over="ignore"):
                    frame[new] = np.exp(frame[column])
        return frame

    @property
    def ratio(self) -> str:
        """What exp(coefficient) is called, or nothing: a risk ratio for counts of 0 and 1 with robust errors.

        Zou, American Journal of Epidemiology 159, 2004: a Poisson model of a response of 0 and 1 estimates log risk
        ratios, and only robust variances are valid.
        """
        problem, family = self.fit.problem, self.rows.family
        counted = isinstance(problem, (LikelihoodProblem, SitesLikelihood)) and family.name == "poisson"
        risks = counted and self.robust is not None and problem.is_binary  # type: ignore[union-attr]
        return "risk ratio" if risks else family.exponentiated

    # ------------------------------------------------------------------ the fit as a whole
    @property
    def deviance(self) -> float:
        """2 N at the estimate."""
        return 2.0 * float(self.fit.found.value[0]) * self.fit.square

    @property
    def null_deviance(self) -> float:
        """2 N of the intercept (the site intercepts) and offsets alone."""
        return 2.0 * self.fit.null * self.fit.square

    @property
    def log_likelihood(self) -> float | None:
        """As R's logLik; None for quasi-likelihoods, Firth's estimate, and where the fit is exact."""
        if self.exact or self.fit.firth:
            return None
        fit = self.fit
        found = self.rows.family.log_likelihood(float(fit.found.value[0]), fit.n, fit.constants)
        return found if found is None or fit.unit == 1.0 else found - fit.n * math.log(fit.unit)

    @property
    def dispersion(self) -> float:
        """The estimate of phi, 1 where it is known."""
        return self.fit.phi * self.fit.square

    @property
    def aic(self) -> float | None:
        """As R's AIC, which counts an estimated dispersion of gaussian and gamma."""
        return self.rows.family.aic(self.log_likelihood, self.fit.parameters)

    @property
    def bic(self) -> float | None:
        """As R's BIC: log n for each number that is estimated in the place of AIC's 2."""
        ll, count = self.log_likelihood, self.fit.parameters + self.rows.family.parameters
        return None if ll is None else -2.0 * ll + math.log(self.fit.n) * count

    @property
    def null_log_likelihood(self) -> float | None:
        """The log-likelihood of the intercept (the site intercepts) and offsets alone."""
        fit, family = self.fit, self.rows.family
        if self.log_likelihood is None:
            return None
        found = family.log_likelihood(fit.null, fit.n, fit.constants)
        return found if found is None or fit.unit == 1.0 else found - fit.n * math.log(fit.unit)

    @property
    def r_squared(self) -> float | None:
        """R^2 of gaussian responses; of others McFadden's pseudo R^2; None where the dispersion is estimated."""
        if self.rows.family.name == "gaussian":
            return None if self.exact or self.fit.null <= 0.0 else 1.0 - self.deviance / self.null_deviance
        ll, null = self.log_likelihood, self.null_log_likelihood
        known = self.rows.family.dispersion == "1" and self.rows.family.name != "cox" and ll is not None and null
        return 1.0 - ll / null if known else None  # type: ignore[operator]

    @property
    def overall(self) -> Significance | None:
        """Likelihood-ratio test of all coefficients but the intercept; None where none is meant, and of Firth's fit."""
        q, fit = len(self.names) - len(self.rows.intercepts), self.fit
        if q == 0 or self.robust is not None or self.exact or fit.firth:
            return None
        N, df = float(fit.found.value[0]), self.residual_df
        return hypothesis_tests.likelihood_ratio(fit.null, N, q, fit.phi, df, float(fit.found.gap[0]))

    @cached_property
    def exact(self) -> bool:
        """Whether the residuals of a gaussian response are rounding: then there are no standard errors."""
        if self.rows.family.name != "gaussian":
            return False
        problem = self.fit.problem
        size = problem.score_size(self.fit.found.b[0]) if hasattr(problem, "score_size") else 0.0
        return bool(2.0 * self.fit.found.value[0] <= self.fit.n * (64.0 * np.finfo(float).eps * size) ** 2)

    @property
    def certificate(self) -> float:
        """By how many standard errors an estimate may be off at most: (2 gap/phi)^(1/2), to first order."""
        gap = float(self.fit.found.gap[0])
        return math.sqrt(2.0 * gap / self.fit.phi) if self.fit.phi > 0.0 else math.inf

    # ------------------------------------------------------------------ tests
    def test(self, terms: Any = None, how: str = "likelihood ratio") -> Significance:
        """Test that the coefficients of some terms are zero.

        Parameters
        ----------
        terms : str or sequence of str, optional
            Columns of the table (all levels of a category together), or names of coefficients; default all but the
            intercept.
        how : {"likelihood ratio", "wald", "score"}
            Likelihood ratio and score fit the smaller model too. With a robust covariance only "wald" is meant, with
            Firth's estimate no score; the ratio is of penalised likelihoods then.

        Raises
        ------
        ValueError
            For unknown terms; for likelihood ratio or score with a robust covariance; for more restrictions than
            clients less one with ``robust="client"``.

        Examples
        --------
        >>> from fedconvex.analysis import analyse
        >>> table = {"x": [1.5, 2.0, 2.9, 4.1, 5.2, 6.0], "y": [1.1, 2.3, 2.8, 4.2, 5.1, 5.8], "site": list("aabbcc")}
        >>> found = analyse(table, target="y", client="site")
        >>> found.test("x", "wald").p < 1e-3
        True
        """
        among("Analysis.test: how", how, ("likelihood ratio", "wald", "score"))
        where = self._columns(terms)
        if self.exact:
            raise bad("Analysis.test: residuals", "be above zero", EXACT)
        fit, df = self.fit, self.residual_df
        if how == "wald":
            clients = self.rows.federation.K if self.robust == "client" else None
            R = hypothesis_tests.of_columns(where, len(self.names))
            return hypothesis_tests.wald(self.estimates, self.covariance, R, None, df, clients)
        if self.robust is not None:
            raise bad("Analysis.test: how", "be 'wald' with a robust covariance", repr(how))
        if fit.firth:
            if how == "score":
                raise bad("Analysis.test: how", "be 'wald' or 'likelihood ratio' with Firth's estimate", repr(how))
            assert isinstance(fit.problem, LikelihoodProblem)
            fall = penalised_fall(fit.problem, fit.T, fit.found.b[0], where)
            return hypothesis_tests.likelihood_ratio(fall, 0.0, len(where), 1.0, None, 0.0)
        kept = [j for j in range(len(self.names)) if j not in where]
        b, N, gap = restricted(self.rows, kept, self.site_intercepts, fit if fit.limit is None else None)
        if how == "likelihood ratio":
            largest, gaps = float(fit.found.value[0]), gap + float(fit.found.gap[0])
            return hypothesis_tests.likelihood_ratio(N, largest, len(where), fit.phi, df, gaps)
        problem, at = fit.problem, np.linalg.solve(fit.T, b)
        g, J = problem.sums(at[None]).gradients[0], problem.information(at)
        return hypothesis_tests.score(g, J, len(where), fit.phi, df)

    def _columns(self, terms: Any) -> list[int]:
        known: dict[str, tuple[int, ...]] = {name: (j,) for j, name in enumerate(self.names)} | self.rows.terms
        if terms is None:
            return [j for j in range(len(self.names)) if j not in self.rows.intercepts]
        listed = [terms] if isinstance(terms, str) else items("Analysis.test: terms", terms)
        for term in listed:
            if term not in known:
                raise bad("Analysis.test: terms", f"be among {', '.join(known)}", f"{term!r}")
        where = sorted({j for term in listed for j in known[term]})
        if not where:
            raise bad("Analysis.test: terms", "name at least one", "none")
        return where

    # ------------------------------------------------------------------ clients
    @cached_property
    def differences(self) -> Differences:
        """How clients differ: each fitted alone, with what is made of their estimates.

        Clients without a finite estimate (separated, or with no more rows than coefficients) are left out and named.
        """
        fed, family = self.rows.federation, self.rows.family
        if self.exact:
            raise bad("Analysis.differences: residuals", "be above zero", EXACT)
        if self.fit.firth:
            raise bad("Analysis.differences", "be asked for without firth", "estimates of clients are not Firth's")
        if self.rows.classes:
            raise bad("Analysis.differences", "be of a family with one score", "'multinomial'")
        slopes = [j for j in range(len(self.names)) if j not in self.rows.intercepts]
        own, T = standardised(self.rows, slopes, own=True)
        alone = [(k, one) for k, one in enumerate(own.alone()) if one is not None]
        good = [k for k, _ in alone]
        if len(good) < 2:
            raise bad("Analysis.differences", "have at least two clients with finite estimates", f"{len(good)}")
        b, inverse = np.array([T @ one.b for _, one in alone]), np.linalg.inv(T)
        J = np.array([inverse.T @ one.information @ inverse for _, one in alone])
        V = np.linalg.inv(J)
        summaries = {
            self.names[j]: site_differences.summarise(b[:, i], V[:, i, i], self.level) for i, j in enumerate(slopes)
        }
        ratio, q = None, len(slopes)
        common = certified_minimum(own, np.linalg.solve(T, self.estimates[slopes])[None])
        if not common.attained[0]:
            common = certified_minimum(own, np.zeros((1, q)))
        N_common, p_common = float(common.value[0]), self.fit.problem.size - (INTERCEPT in self.names) + fed.K
        scale = family.phi(N_common, own.pearson(common.b[0]), self.fit.n, p_common)
        within = np.array([T @ common.b[0], np.sqrt(scale * np.diagonal(T @ common.inverse[0] @ T.T))]).T
        if len(good) == fed.K:
            N, p = np.array([one.N for _, one in alone]), fed.K * (q + 1)
            df = None if family.dispersion == "1" else self.fit.n - p
            phi = family.phi(float(N.sum()), sum(one.pearson for _, one in alone), self.fit.n, p)
            ratio = site_differences.equal_slopes(N_common, N, q, phi, df)
        return Differences(
            tuple(str(fed.labels[k]) for k in good), tuple(str(fed.labels[k]) for k in range(fed.K) if k not in good),
            tuple(self.names[j] for j in slopes), b, np.sqrt(np.einsum("kii->ki", V)), summaries,
            site_differences.common_effect(b, J).Q, ratio, within,
        )  # fmt: skip

    # ------------------------------------------------------------------ text and page
    def report(self, folder: str | os.PathLike[str]) -> Path:
        """Write the analysis as a page, index.html, with forest plots, into a folder; return the file.

        Raises
        ------
        ImportError
            Without matplotlib or Jinja2: ``pip install "fedconvex[report]"``.
        ValueError
            If the folder cannot be made or written to.
        """
        from fedconvex.analysis.page import write_page

        return write_page(self, folder)

    def summary(self) -> str:
        """Return the analysis as text."""
        return summary_text.summary(self)

    def facts(self) -> list[tuple[str, str]]:
        """Return what is said of the fit as a whole."""
        fed, family, fit = self.rows.federation, self.rows.family, self.fit
        coding = getattr(self.rows, "coding", None)
        column = "" if coding is None else f" ({coding.columns.name_of('client')})"
        own = ", an intercept of each client" * self.site_intercepts
        head = [
            *(note for note in self.rows.notes if note[0] == "Left out"),
            ("Response", self.rows.event),
            ("Family", f"{family.name}, link {family.link}{own}"),
            ("Observations", f"{fed.n} of {self.rows.rows_read} rows" + self._left_out()),
            ("Clients", f"{fed.K}{column} with {int(fed.sizes.min())} to {int(fed.sizes.max())} rows"),
            *(note for note in self.rows.notes if note[0] != "Left out"),
            *self._likelihoods(),
        ]
        if fit.recession is None and not self.exact:
            kind = {None: "of the model (nonrobust)", "client": f"robust, clustered by client ({fed.K} clusters)"}
            said = kind.get(self.robust, f"robust ({self.robust})")
            t = "" if self.residual_df is None else f"; t with {self.residual_df:g} degrees of freedom"
            head.append(("Std. errors", said + t))
        head += [("Warning", words) for words in summary_text.warnings(self)]
        head.append(self._convergence())
        if isinstance(self.rows, SitesModel):
            head.append(("Sites", self.rows.told))
        if self.profile is not None:
            loose = self.profile.loose
            said = f"; {loose} of their ends may be farther out: not certified" if loose else ""
            how = "of the penalised profile likelihood, not certified"
            how = how if fit.firth else f"of the profile likelihood ({self.profile.rounds} rounds){said}"
            head.append(("Intervals", how))
        return head

    def _convergence(self) -> tuple[str, str]:
        """Return whether the search has found the estimate, and how near it is."""
        fit, p = self.fit, self.fit.problem.size
        sent = f"{fit.found.rounds} rounds, {(p + 1) * (p + 2) // 2} numbers of each client in a round"
        if self.exact:
            return "Exact", f"{EXACT} ({sent})"
        if fit.firth:
            steps = fit.found.rounds
            return "Firth", f"a stationary point of the penalised likelihood, not certified ({steps} steps)"
        if fit.recession is not None:
            return "Separated", summary_text.separation(self)
        off = f"at most {self.certificate:.1e} standard errors from the maximum-likelihood estimate ({sent})"
        return "Converged", f"yes, certified: {off}" if self.certificate < 1e-3 else f"not certified: {off}"

    def _likelihoods(self) -> list[tuple[str, str]]:
        fit, q = self.fit, len(self.names) - len(self.rows.intercepts)
        out = [("Df", f"residuals {fit.n - fit.parameters:g}, model {q}")]
        if self.log_likelihood is not None and self.null_log_likelihood is not None:
            null = f"log-likelihood {self.log_likelihood:.6g} (null {self.null_log_likelihood:.6g})"
            out.append(("Likelihood", f"{null}, AIC {self.aic:.6g}, BIC {self.bic:.6g}"))
        if self.r_squared is not None:
            within = ", within clients" * self.site_intercepts
            more = f", adjusted {1.0 - (1.0 - self.r_squared) * (1.0 + q / (fit.n - fit.parameters)):.4f}"
            said = f"{self.r_squared:.4f}" + (more if self.rows.family.name == "gaussian" else " (McFadden)")
            out.append(("R-squared" if self.rows.family.name == "gaussian" else "Pseudo R-sq.", said + within))
        if (one := self.overall) is not None:
            how = "LLR p-value" if one.residual_df is None else "F-statistic"
            law = f"{one.statistic:.5g} on {one.distribution}, all but the intercept"
            out.append((how, f"{p_text(one.p)}; {law}" if one.residual_df is None else f"{law}; {p_is(one.p)}"))
        known = self.rows.family.dispersion == "1"
        scale = "scale 1 (fixed)" if known else f"scale (dispersion) {self.dispersion:.6g}"
        pearson = (
            "" if fit.recession is not None or self.rows.classes else f", Pearson chi2 {fit.pearson * fit.square:.6g}"
        )
        out.append(("Deviance", f"{self.deviance:.6g} (null {self.null_deviance:.6g}){pearson}, {scale}"))
        return out

    def _left_out(self) -> str:
        gone = self.rows.rows_read - self.rows.federation.n
        if not gone:
            return ""
        by: dict[str, int] = {}
        for column, _, m in self.rows.left_out:
            by[column] = by.get(column, 0) + m
        return f"; {gone} left out for missing cells: " + ", ".join(f"{c} {m}" for c, m in by.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the analysis as numbers and text that JSON takes."""
        return {
            "response": self.rows.event,
            "family": self.rows.family.name,
            "site_intercepts": self.site_intercepts,
            "robust": self.robust,
            "level": self.level,
            "clients": [str(v) for v in self.rows.federation.labels],
            "rows": self.rows.federation.n,
            "rows_read": self.rows.rows_read,
            "notes": [list(note) for note in self.rows.notes],
            "left_out": [list(row) for row in self.rows.left_out],
            "coefficients": [{k: None if v != v else v for k, v in c._asdict().items()} for c in self.table()],
            "covariance": None if self.exact else self.covariance.tolist(),
            "deviance": self.deviance,
            "null_deviance": self.null_deviance,
            "dispersion": self.dispersion,
            "log_likelihood": self.log_likelihood,
            "aic": self.aic,
            "bic": self.bic,
            "null_log_likelihood": self.null_log_likelihood,
            "r_squared": self.r_squared,
            "residual_df": self.fit.n - self.fit.parameters,
            "intervals": "wald" if self.profile is None else "profile",
            "enclosures": None if self.profile is None else [self.profile.low.tolist(), self.profile.high.tolist()],
            "rounds": self.fit.found.rounds,
            "off_by_standard_errors": None if self.exact or self.fit.firth else self.certificate,
            "firth": self.fit.firth,
        }

    def __repr__(self) -> str:
        fed = self.rows.federation
        return f"Analysis({self.rows.event}, {self.rows.family.name}, {len(self.names)} coefficients, {fed.K} clients)"
