"""The suite: carry out checks, follow them over the rounds, and put everything on record."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from inspect import cleandoc

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedconvex._check import Rng, items, takes_rng, text, unknown
from fedconvex._check import instance as kind
from fedconvex.theorems import THEOREMS, Theorem
from fedconvex.theorems.parts.theorem import Check, Instance
from fedconvex.verify.check_records import Finding, Note, Tightness, VerificationReport
from fedconvex.verify.checking import carried_out
from fedconvex.verify.power import power_of
from fedconvex.verify.tightness import ROWS, step_choice, tightness_claims, tightness_row

Progress = Callable[[float, str], None]  # share done in [0, 1], what is being done


def checks(
    theorems: Sequence[str] | None = None, instance: Instance | None = None, known: Mapping[str, Theorem] = THEOREMS
) -> list[Check]:
    """Return the suite in the order of `THEOREMS`, or every theorem on an instance of your own.

    Parameters
    ----------
    theorems : sequence of str, optional
        Default all.
    instance : Instance, optional
        `own` makes it from a problem.
    known : mapping from str to Theorem
        What there is; default those of this package.

    Raises
    ------
    ValueError
        If a name is unknown.

    Examples
    --------
    >>> from fedconvex.verify import checks
    >>> [check.instance.data for check in checks(["weight-divergence-zhao"])][:5]
    ['synthetic', 'real', 'real', 'real', 'searched']
    """
    theorems = () if theorems is None else items("checks: theorems", theorems)
    if instance is not None:
        kind("checks: instance", instance, Instance)
    kind("checks: known", known, Mapping)
    for name, theorem in known.items():
        text("checks: name of a theorem", name)
        kind(f"checks: known[{name!r}]", theorem, Theorem)
    for name in theorems:
        if not isinstance(name, str) or name not in known:
            raise unknown("theorem", name, known)
    out = []
    for name in (name for name in known if not theorems or name in theorems):
        every = known[name].checks if instance is None else (instance,)
        out += [replace(c if isinstance(c, Check) else Check(c), theorem=name) for c in every]
    return out


@takes_rng
@threadpool_limits.wrap(limits=1, user_api="blas")  # problems are small: on a busy machine threads doubled the work
def verify_suite(
    suite: Sequence[Check] | None = None, *, seed: int = 0, precision: float = 0.05, most: int = 2048,
    curves: bool = False, tightness: bool = True, theorems: Mapping[str, Theorem] = THEOREMS,
    progress: Progress | None = None, rng: Rng = None,
) -> VerificationReport:  # fmt: skip
    """Return what checks find, and the tightness table.

    Parameters
    ----------
    suite : sequence of Check, optional
        Default all `checks`.
    seed, precision, most : int, float, int
        Of the trajectories; half width of an interval, as a share of the mean, that is enough; most trajectories.
    curves, tightness : bool
        Follow every theorem over the rounds, for the page; compare bounds with exact worst cases.
    theorems : mapping from str to Theorem
        What the names in the suite mean.
    progress : callable, optional
        Takes the share done and what is being done.

    Examples
    --------
    >>> from fedconvex.verify import checks, verify_suite
    >>> found = verify_suite(checks(["weight-divergence-zhao"])[:1], tightness=False)
    >>> found.findings[0].outcome.name, found.violated
    ('HOLDS', False)
    """
    began = time.perf_counter()
    suite, tell = list(checks() if suite is None else suite), progress or (lambda share, doing: None)
    total = len(suite) + (len(ROWS) + 3 if tightness else 0)
    findings: list[Finding] = []
    for check in suite:
        tell(len(findings) / total, f"{check.theorem}: {check.instance.name}")
        findings.append(carried_out(theorems[check.theorem], check, seed, precision, most, curves))
    rows: list[Tightness] = []
    for T, zeta in ROWS if tightness else ():
        tell((len(suite) + len(rows)) / total, f"exact worst case, T = {T}, zeta = {zeta:g}")
        rows.append(tightness_row(T, zeta))
    if tightness:
        tell((total - 3) / total, "the best step in the worst case")
    steps = step_choice() if tightness else None
    tell(1.0, "done")
    mine = {name: [f for f in findings if f.theorem == name] for name in dict.fromkeys(f.theorem for f in findings)}
    return VerificationReport(
        tuple(findings),
        {name: _note(theorems[name], found) for name, found in mine.items()},
        tuple(rows),
        steps,
        tightness_claims(rows, steps) if rows else (),
        _about(seed, precision, most),
        time.perf_counter() - began,
        {name: power_of(found) for name, found in mine.items()},
    )


def _note(theorem: Theorem, findings: Sequence[Finding]) -> Note:
    text = theorem.statement
    bounds = [f.verdict.bound for f in findings if f.verdict.bound is not None]
    return Note(
        theorem.title,
        theorem.says,
        theorem.loose,
        cleandoc(text.statement),
        bounds[0].source if bounds else cleandoc(text.source),
        text.page,
        theorem.quantity.words,
        theorem.printed(bounds),
    )


def _about(seed: int, precision: float, most: int) -> dict[str, str]:
    packages = ("fedconvex", "numpy", "scipy", "numba", "cvxpy", "scikit-learn")
    return {
        "seed": str(seed),
        "confidence": "99.9 % for verdicts (Student's t, Bonferroni over looks, wider where few runs make the "
        "variance), 95 % at every point of a curve",
        "precision": f"half width of {precision:g} of the mean, or of a fifth of the bound, or {most:,} trajectories",
        "Python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
    } | {name: version(name) for name in packages}
