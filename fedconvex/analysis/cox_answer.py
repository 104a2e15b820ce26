"""What an analysis of times and events finds beside coefficients: concordance, and whether hazards are proportional."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from fedconvex.analysis.answer import Analysis
from fedconvex.analysis.cox import CoxFamily, CoxLikelihood
from fedconvex.analysis.over_sites import SitesTimes
from fedconvex.analysis.summary_text import p_is
from fedconvex.families.survival import hazard_checks
from fedconvex.families.survival.hazard_checks import ProportionalityTest


class CoxAnalysis(Analysis):
    """The answer of `analyse` for family "cox"; deviances are -2 log partial likelihoods."""

    @property
    def _likelihood(self) -> CoxLikelihood | SitesTimes:
        problem = self.fit.problem
        assert isinstance(problem, (CoxLikelihood, SitesTimes))
        return problem

    @property
    def events(self) -> int:
        """Number of events."""
        return self._likelihood.events

    @property
    def bic(self) -> float | None:
        """As R's BIC, whose n is the number of events."""
        ll = self.log_likelihood
        return None if ll is None else -2.0 * ll + math.log(self.events) * len(self.names)

    @cached_property
    def concordance(self) -> float:
        """Harrell's C, ties one half, of pairs within a client and a stratum."""
        return self._likelihood.concordance(self.fit.found.b[0])

    @cached_property
    def proportional_hazards(self) -> ProportionalityTest | None:
        """Score tests that coefficients drift with time, ``cox.zph(transform = "identity")`` of R's survival.

        None where there are fewer event times than coefficients.
        """
        sums = self._likelihood.drift(self.fit.found.b[0])
        try:
            return hazard_checks.proportional_hazards_test(sums)
        except ValueError:
            return None

    def _likelihoods(self) -> list[tuple[str, str]]:
        family = self.rows.family
        assert isinstance(family, CoxFamily)
        strata = ", and of each stratum" * self.rows.has_strata
        out = [
            ("Hazards", f"a baseline of each client{strata}; {family.ties} ties"),
            ("Events", f"{self.events}; concordance {self.concordance:.4f}"),
            ("Likelihood", f"log-likelihood {self.log_likelihood:.6g} (null {-0.5 * self.null_deviance:.6g}), "
             f"AIC {self.aic:.6g}, BIC {self.bic:.6g}"),
        ]  # fmt: skip
        if self.robust is None:
            tests = {how: self.test(how=how) for how in ("likelihood ratio", "wald", "score")}
            said = {how: f"{one.statistic:.5g} ({p_is(one.p)})" for how, one in tests.items()}
            each = ", ".join(f"{how.replace('wald', 'Wald')} {text}" for how, text in said.items())
            out.append(("Tests", f"{each}, {len(self.names)} df"))
        if (zph := self.proportional_hazards) is not None:
            worst = int(np.argmin(zph.p_values))
            least = f"smallest p of a coefficient: {self.names[worst]} ({p_is(float(zph.p_values[worst]))})"
            whole = f"chi2({zph.df}) = {zph.overall:.5g}, {p_is(zph.p_value)}"
            out.append(("Prop. hazards", f"test that coefficients do not change with time: {whole}; {least}"))
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the analysis as numbers and text that JSON takes."""
        zph, whole = self.proportional_hazards, super().to_dict()
        hows = () if self.robust is not None else ("likelihood ratio", "wald", "score")
        more = {
            "events": self.events,
            "concordance": self.concordance,
            "overall_tests": {how: self.test(how=how)._asdict() for how in hows},
            "proportional_hazards": None if zph is None else {
                "statistics": zph.statistics.tolist(), "p_values": zph.p_values.tolist(), "overall": zph.overall,
                "df": zph.df, "p": zph.p_value,
            },
        }  # fmt: skip
        return {k: v for k, v in whole.items() if k not in ("dispersion", "r_squared", "residual_df")} | more
