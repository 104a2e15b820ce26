"""A trial at eight centres, from its printed table: Beitler and Landis, Biometrics 41, 1985.

Two cream preparations, an active drug and a control, for curing an infection; 273 patients, cured or not. The table of
counts gives every row: centre, treatment, response (Agresti, "Categorical data analysis", prints it as well).

1. Each centre's patients stay there: logistic regression on treatment with an intercept of each centre, from sums.
2. Cochran's test and Mantel and Haenszel's, from the score and the information that centres send at slope 0: with
   U_k and J_k at equal chances, U_k = a_k - E a_k and J_k n_k/(n_k - 1) is the hypergeometric variance.
3. The common odds ratio of Mantel and Haenszel, from the counts.
4. Centres alone: two have no cure under control, and no finite estimate; random effects of the six others.
5. One common intercept, which the randomisation within centres makes less wrong than in observed data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedconvex.analysis import analyse
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.style import COLOURS, blank, panel

# centre by centre: cured and patients, drug; cured and patients, control
COUNTS = np.array(
    [(11, 36, 10, 37), (16, 20, 22, 32), (14, 19, 7, 19), (2, 16, 1, 17), (6, 17, 0, 12), (1, 11, 0, 10), (1, 5, 1, 9),
     (4, 6, 6, 7)]
)  # fmt: skip


def rows(counts: np.ndarray = COUNTS) -> dict[str, np.ndarray]:
    """Return the patients: columns centre, drug, cured.

    Examples
    --------
    >>> from fedconvex.papers.inference.two_creams import rows
    >>> patients = rows()
    >>> len(patients["cured"]), int(patients["drug"].sum()), int(patients["cured"].sum())
    (273, 130, 102)
    """
    centre, drug, cured = [], [], []
    for k, (a, m, c, n) in enumerate(counts.tolist()):
        centre += [f"centre {k + 1}"] * (m + n)
        drug += [1] * m + [0] * n
        cured += [1] * a + [0] * (m - a) + [1] * c + [0] * (n - c)
    return {"centre": np.array(centre), "drug": np.array(drug), "cured": np.array(cured)}


def mantel_haenszel(counts: np.ndarray = COUNTS) -> tuple[float, float]:
    """Return the common odds ratio, and the statistic without correction of continuity."""
    a, m, c, n = counts.T.astype(float)
    total, cured = m + n, a + c
    ratio = float((a * (n - c) / total).sum() / (c * (m - a) / total).sum())
    variance = m * n * cured * (total - cured) / (total**2 * (total - 1.0))
    return ratio, float((a - m * cured / total).sum() ** 2 / variance.sum())


def _from_sums(found: Any) -> float:
    """Return Mantel and Haenszel's statistic from what centres send at slope 0."""
    problem, zero = found.fit.problem, np.zeros(1)
    U = J = 0.0
    for k in range(problem.federation.K):
        _, g, H = problem.client_sums(k, zero)
        n = float(problem.federation.sizes[k])
        U, J = U + float(g[0]), J + float(H[0, 0]) * n / (n - 1.0)
    return U**2 / J


def study(*, quick: bool, seed: int, data: None, tell: Progress) -> Findings:
    """Analyse the rows; nothing is random, and there is no smaller version."""
    tell(0.0, "centres")
    answers: dict[str, Any] = {
        "centre intercepts": analysed(site_intercepts=True),
        "centre intercepts, likelihood": analysed(site_intercepts=True, intervals="profile"),
        "one intercept": analysed(),
        "centre intercepts, clustered": analysed(site_intercepts=True, robust="client"),
    }
    table = []
    for name, found in answers.items():
        row = next(c for c in found.table() if c.name == "drug")
        table.append({"model": name, "log odds ratio": row.estimate, "s.e.": row.standard_error, "low": row.low,
                      "high": row.high, "odds ratio": math.exp(row.estimate), "p": row.p})  # fmt: skip
    own = answers["centre intercepts"]
    apart = own.differences
    random = apart.summaries["drug"].hartung_knapp
    table.append({"model": "random effects, Hartung-Knapp", "log odds ratio": random.estimate, "s.e.": random.se,
                  "low": random.low, "high": random.high, "odds ratio": math.exp(random.estimate),
                  "p": math.nan})  # fmt: skip
    numbers = {
        "estimate": table[0]["log odds ratio"], "error": table[0]["s.e."], "certificate": own.certificate,
        "from sums": _from_sums(own), "score": own.test("drug", "score").statistic,
        "ratio": own.test("drug").statistic, "left out": ", ".join(apart.left_out),
        "pooled": table[2]["log odds ratio"],
    }  # fmt: skip
    return Findings(
        "Two creams at eight centres", tuple(claims(numbers)), _notes(), {"centres": draw(apart, table)},
        {"models": table},
    )  # fmt: skip


def analysed(**options: Any) -> Any:
    """Return the answer of `analyse` on the effect of the drug."""
    return analyse(rows(), "cured", "centre", keep=["drug", "cured"], family="logistic", **options)


EXPERIMENT = Experiment(
    "two-creams", "a trial at eight centres, rebuilt from its printed table", study, smaller="the same: seconds"
)


def claims(found: dict[str, Any]) -> Iterator[Claim]:
    """Compare with what is printed, and with closed forms of the counts."""
    near = abs(found["estimate"] - 0.777) <= 5e-4 and abs(found["error"] - 0.307) <= 5e-4
    said = f"{found['estimate']:.4f} ({found['error']:.4f}), certified to {found['certificate']:.0e} standard errors"
    text = "With an intercept of each centre the log odds ratio is .777, standard error .307 (Agresti)"
    yield Claim(text, near, said, everywhere=True)
    ratio, statistic = mantel_haenszel()
    yield Claim("Mantel and Haenszel's odds ratio is 2.13, their statistic 6.38 (Agresti)",
                abs(ratio - 2.13) <= 5e-3 and abs(statistic - 6.38) <= 5e-3, f"{ratio:.4f}, {statistic:.4f}",
                everywhere=True)  # fmt: skip
    off = abs(found["from sums"] / statistic - 1.0)
    text = "That statistic follows from the sums that centres send at slope 0"
    yield Claim(text, off <= 1e-10, f"relative difference {off:.1e}", everywhere=True)
    text = "The score test, with the binomial variance, is the larger; the likelihood ratio is within 5 % of it"
    fine = found["score"] > statistic and abs(found["ratio"] / found["score"] - 1.0) <= 0.05
    yield Claim(text, fine, f"score {found['score']:.4f}, likelihood ratio {found['ratio']:.4f}", everywhere=True)
    text = "Centres 5 and 6, without a cure under control, have no estimate of their own, but count in the joint one"
    yield Claim(text, found["left out"] == "centre 5, centre 6", found["left out"], everywhere=True)
    text = "One common intercept makes the effect smaller by more than half a standard error"
    gone = (found["estimate"] - found["pooled"]) / found["error"]
    yield Claim(text, gone > 0.5, f"{found['pooled']:.4f}: {gone:.2f} standard errors", everywhere=True)


def _notes() -> tuple[str, ...]:
    return (
        "The counts are printed; rows are exchangeable within centre and treatment, so that nothing is generated.",
        ".777 (.307), 2.13 and 6.38 are given from memory of Agresti's book; R's glm and mantelhaen.test agree.",
        "Agresti's mixed models (a normal intercept of each centre) are not fitted here.",
        "Random effects are of the six centres with finite estimates, which leaves out what speaks most for the drug.",
    )


def draw(apart: Any, table: list[dict[str, Any]]) -> Any:
    """Draw the centres, and below them the models."""
    figure, (axis,) = blank(1, width=6.0, height=4.0)
    lines = [(name, float(b[0]), float(b[0] - 1.959964 * se[0]), float(b[0] + 1.959964 * se[0]), "0.35", "s")
             for name, b, se in zip(apart.clients, apart.estimates, apart.standard_errors, strict=True)]  # fmt: skip
    lines += [(name, math.nan, math.nan, math.nan, "0.35", "s") for name in apart.left_out]
    lines.sort()
    lines += [(r["model"], r["log odds ratio"], r["low"], r["high"], COLOURS[0], "D") for r in table]
    for i, (_, b, low, high, colour, marker) in enumerate(lines):
        if math.isnan(b):
            axis.text(0.05, i, "no finite estimate", va="center", fontsize=7.5, color="0.35")
            continue
        axis.errorbar([b], [i], xerr=[[b - low], [high - b]], color=colour, marker=marker, markersize=4.5, capsize=2)
    axis.axvline(0.0, color="black", linewidth=0.7)
    axis.set_yticks(range(len(lines)), [line[0] for line in lines])
    axis.invert_yaxis()
    panel(axis, "two creams at eight centres: 95 % intervals", "log odds ratio of a cure, drug against control")
    return figure
