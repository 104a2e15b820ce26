"""People with a doctorate and all others: agnostic learning on Adult (Mohri, Sivek, Suresh, ICML 2019, Section 5).

1. Adult (UCI): is the income above 50,000 dollars? Two domains, which are the clients: doctorate or not.
2. The eight categorical columns one-hot, unknown entries all zero (99 columns), no numeric columns, an intercept;
   logistic loss, l2 = 1e-6 on all coordinates.
3. Exact models: pooled (weights n_k/n), uniform (1/2, 1/2), agnostic (min max, with its lambda), each domain alone.
4. Losses and accuracies by domain on training and test rows, with standard errors; agnostic minus pooled on the same
   test rows, with McNemar's exact test.
5. AFL (all rows; mini-batches), OptimisticAFL, AgnosticFedAvg, FedAvg: certified gaps, lambda, and the doctorates' test
   accuracy over the rounds.
6. Pooled and agnostic models again with larger l2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from fedconvex._check import bad
from fedconvex.datasets import Table
from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Logistic
from fedconvex.methods import AFL, AgnosticFedAvg, FedAvg, OptimisticAFL
from fedconvex.papers.agnostic_clients.data import UNIFORM
from fedconvex.papers.archive import read_archive
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress, progress_part
from fedconvex.papers.intervals import Interval, every
from fedconvex.papers.style import DOTTED, METHOD_LOOKS, band, blank, legend, panel
from fedconvex.problems import Problem
from fedconvex.report import DomainDifferences, DomainScores, domain_differences, domain_scores, fairness_plot
from fedconvex.simplex.uncertainty import Simplex
from fedconvex.solvers.minimax.agnostic import measure_minimax

L2 = 1e-6  # of the published setting's certified solution
_RIDGES = (1e-6, 1e-4, 1e-3, 1e-2, 3e-2)  # chosen here
LAMBDA, LEVEL = 0.907, 0.439  # known of the 32,561 training rows: weight of doctorates, both training losses
BATCH, STEPS = 50, 5  # chosen here: rows of a mini-batch, local steps
ROUNDING = 1e-12
SHARE = 0.2  # chosen here: of the pooled model's excess, what a method may be left with
KEYS = ("x_cat_train", "y_train", "domain_train", "x_cat_test", "y_test", "domain_test", "categories_0")
DOMAINS = ("doctorate", "other")


class People(NamedTuple):
    """Training and test rows; the last column of X is one."""

    name: str
    train: Federation  # clients "doctorate" and "other", labels -1 and 1
    test: Federation
    official: bool  # whether these are the published 32,561 and 16,281 rows


class AdultScale(NamedTuple):
    """How large the experiment is."""

    rounds: int
    runs: int  # trajectories with mini-batches
    everything: bool  # also the uniform and the single-domain models, and larger l2


FULL, QUICK = AdultScale(3000, 10, True), AdultScale(60, 3, False)


class Course(NamedTuple):
    """One method over some of its rounds, R trajectories."""

    rounds: np.ndarray  # (T,)
    value: np.ndarray  # (T, R) worst domain's objective
    gap: np.ndarray  # (T, R) certified gap of it
    domain_weights: np.ndarray  # (T, R) lambda of the doctorates, NaN where there is none
    accuracy: np.ndarray  # (T, R) test accuracy of the doctorates


# ---------------------------------------------------------------- data


def load_people(data: Any, seed: int = 0) -> People:
    """Read Adult.

    Parameters
    ----------
    data : path or `fedconvex.datasets.Table`
        An npz archive, or what `fedconvex.datasets.fetch_adult` returns. The archive holds, for part = train and test,
        x_cat_part (n, m) positions of the categories, y_part (n,) 0 or 1, domain_part (n,) 1 for a doctorate, else 0;
        and categories_0, ..., categories_(m-1), the names of the categories, "?" for unknown. A table has no test rows:
        a third of its rows is drawn.
    seed : int
        Of that choice.

    Raises
    ------
    ValueError
        If there is no data, the file is no such archive, its arrays do not fit, or a domain or class is missing.
    FileNotFoundError
        If there is no such file.
    """
    if data is None:
        must = f"be an npz archive with {', '.join(KEYS)}, ..."
        cure = "pass --data adult.npz; in Python also data=fedconvex.datasets.fetch_adult()"
        raise bad("afl-adult: data", must, "nothing", cure)
    if isinstance(data, Table):
        return _from_table(data, seed)
    who = f"--data {Path(data).name}"
    arrays = read_archive(data, KEYS, lambda key: key.startswith("categories_"), f"{', '.join(KEYS)}, ...")
    parts = []
    for part in ("train", "test"):
        X = _one_hot(who, part, arrays)  # 2
        y, domain = (_zero_or_one(f"{who}: {name}_{part}", arrays[f"{name}_{part}"], len(arrays[f"x_cat_{part}"]))
                     for name in ("y", "domain"))  # fmt: skip
        parts.append(_federation(who, X, y, domain == 1))
    official = (parts[0].n, parts[1].n, parts[0].d) == (32561, 16281, 100)
    return People(Path(data).stem, parts[0], parts[1], official)


def _one_hot(who: str, part: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return the categories (n, d) as CSR with a last column of ones; "?" has no column."""
    codes = arrays[f"x_cat_{part}"]
    if codes.ndim != 2 or not codes.size or codes.dtype.kind not in "iu":
        raise bad(f"{who}: x_cat_{part}", "hold whole numbers (n, m), n > 0", f"{codes.dtype} of shape {codes.shape}")
    blocks = []
    for j in range(codes.shape[1]):
        names = arrays.get(f"categories_{j}")
        if names is None or names.ndim != 1 or names.dtype.kind != "U":
            got = "nothing" if names is None else f"{names.dtype} of shape {names.shape}"
            raise bad(f"{who}: categories_{j}", f"name the categories of column {j} of x_cat_{part}", got)
        low, high = int(codes[:, j].min()), int(codes[:, j].max())
        if low < 0 or high >= names.size:
            must = f"lie in 0, ..., {names.size - 1}, the positions in categories_{j}"
            raise bad(f"{who}: x_cat_{part}[:, {j}]", must, f"{low} to {high}")
        blocks.append((codes[:, j, None] == np.flatnonzero(names != "?")).astype(float))
    return sp.csr_array(np.hstack([*blocks, np.ones((len(codes), 1))]))


def _zero_or_one(who: str, v: np.ndarray, n: int) -> np.ndarray:
    if v.shape != (n,) or v.dtype.kind not in "biuf" or not np.isin(v, (0, 1)).all() or np.unique(v).size != 2:
        shown = np.unique(v)[:5].tolist() if v.dtype.kind in "biuf" else f"{v.dtype}"
        raise bad(who, f"hold {n} numbers, zeros and ones, both present", f"shape {v.shape}, values {shown}")
    return np.asarray(v, dtype=float)


def _federation(who: str, X: Any, y: np.ndarray, doctorate: np.ndarray) -> Federation:
    fed = Federation.from_arrays(X, 2.0 * y - 1.0, np.where(doctorate, *DOMAINS))  # 1
    for k, name in enumerate(DOMAINS):
        if np.unique(fed.y[fed.ptr[k] : fed.ptr[k + 1]]).size != 2:
            raise bad(f"{who}: y", f"have both classes in the domain {name}", "one")
    return fed


def _from_table(table: Table, seed: int) -> People:
    who, names = "afl-adult: data", table.feature_names or ()
    keep = [j for j, name in enumerate(names) if "=" in name and not name.endswith("=?")]
    if not keep or table.domains is None or set(np.unique(table.domains)) != set(DOMAINS):
        must = "be the table of fetch_adult: columns such as education=Doctorate, domains doctorate and other"
        raise bad(who, must, f"{table!r}")
    y = _zero_or_one(f"{who}: y", np.asarray(table.y), len(table.y))
    X = sp.csr_array(sp.hstack([sp.csr_array(table.X)[:, keep], sp.csr_array(np.ones((len(y), 1)))], format="csr"))
    order = np.random.default_rng(seed).permutation(len(y))
    held = len(y) // 3
    parts = [
        _federation(who, X[rows], y[rows], table.domains[rows] == DOMAINS[0])
        for rows in (np.sort(order[held:]), np.sort(order[:held]))
    ]
    return People("fetch_adult(), a third held out", parts[0], parts[1], False)


# ---------------------------------------------------------------- running


def methods() -> dict[str, Any]:
    """Return the methods by name; the step sizes were not tuned."""
    return {
        "AFL": AFL(step_size=1.0, domain_step_size=0.1),
        "AFL, mini-batches": AFL(step_size=0.5, domain_step_size=0.1, batch_size=BATCH, replacement=True),
        "OptimisticAFL": OptimisticAFL(step_size=0.5, domain_step_size=0.5),
        "AgnosticFedAvg": AgnosticFedAvg(step_size=1.0, domain_step_size=0.3, local_steps=STEPS),
        "FedAvg": FedAvg(step_size=1.0, local_steps=STEPS),
    }  # 5


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Solve exactly, run the methods, and measure on test rows; data: as for `load_people`."""
    people, scale = load_people(data, seed), QUICK if quick else FULL
    tell(0.0, "exact models")
    problem = Problem(people.train, Logistic(), L2)
    models = _models(problem, scale)
    train = {name: domain_scores(problem, model) for name, model in models.items()}
    test = {name: domain_scores(problem, model, people.test) for name, model in models.items()}
    change = domain_differences(problem, models["agnostic"], models["pooled"], people.test)  # 4
    courses = {}
    for number, (name, method) in enumerate(methods().items()):
        at = progress_part(tell, 0.1 + 0.16 * number, 0.26 + 0.16 * number, name)
        courses[name] = _follow(method, problem, people.test, scale, seed, at)
    ridges = []
    for number, l2 in enumerate(_RIDGES if scale.everything else ()):
        tell(0.9 + 0.02 * number, f"l2 = {l2:g}")
        ridges.append(_ridge(people, l2))
    tables = {
        "table": _table(train, test),
        "differences": _difference_rows(change),
        "methods": _method_rows(courses, models["agnostic"].value),
        "curves": _curve_rows(courses),
    }
    if ridges:
        tables["ridge"] = ridges
    figures = {"domains": _draw_domains(train, test), "rounds": _draw_rounds(courses, models, test)}
    title = "Adult, doctorates and others: agnostic learning (Mohri, Sivek, Suresh 2019, Section 5)"
    claims = tuple(_claims(people, scale, models, train, test, change, courses))
    return Findings(title, claims, _notes(people, scale), figures, tables)


EXPERIMENT = Experiment(
    "afl-adult",
    "agnostic learning on Adult, doctorates and others: exact minimax solution, and what it does to test accuracies",
    study,
    "npz with x_cat_train, y_train, domain_train, x_cat_test, y_test, domain_test, categories_0, ... (needed)",
    "two exact models and few rounds, too few for the methods to arrive",
)


def _models(problem: Problem, scale: AdultScale) -> dict[str, Any]:
    models: dict[str, Any] = {"pooled": problem.solve(), "agnostic": problem.solve_minimax()}  # 3
    if scale.everything:
        uniform = Problem(problem.federation, problem.loss, problem.l2, "uniform").solve()
        alone = {f"{name} alone": problem.client(k).solve() for k, name in enumerate(DOMAINS)}
        models = {"pooled": models["pooled"], "uniform": uniform, "agnostic": models["agnostic"], **alone}  # 3
    return models


def _follow(method: Any, problem: Problem, test: Federation, scale: AdultScale, seed: int, tell: Progress) -> Course:
    """Run a method and measure it at rounds that grow by tenths."""
    at = {0, scale.rounds, *np.unique(np.geomspace(1, scale.rounds, 45).round().astype(int)).tolist()}
    runs = scale.runs if getattr(method, "batch_size", None) else 1
    rows: list[tuple[Any, ...]] = []
    a, b = test.ptr[:2]
    X, y = test.X[a:b], test.y[a:b]
    for t, state in iterate(method, problem, rounds=scale.rounds, seed=seed, trajectories=runs):
        if t in at:
            value, gap = measure_minimax(problem, Simplex(), state.w)
            lam = state.domain_weights[:, 0] if hasattr(state, "domain_weights") else np.full(runs, np.nan)
            right = np.where(X @ state.w.T >= 0.0, 1.0, -1.0) == y[:, None]
            rows.append((t, value, gap, lam, right.mean(axis=0)))
            tell(t / scale.rounds, f", round {t}")
    times, values, gaps, lambdas, rights = (np.array(column) for column in zip(*rows, strict=True))
    return Course(times, values, gaps, lambdas, rights)


def _ridge(people: People, l2: float) -> dict[str, Any]:
    """Return pooled and agnostic models with another l2, measured on test rows."""  # 6
    problem = Problem(people.train, Logistic(), l2)
    pooled, agnostic = problem.solve(), problem.solve_minimax()
    change = domain_differences(problem, agnostic, pooled, people.test)
    row: dict[str, Any] = {"l2": f"{l2:g}", "lambda_doctorate": float(agnostic.domain_weights[0])}
    row["minimax"] = agnostic.value
    for name, model in (("pooled", pooled), ("agnostic", agnostic)):
        s = domain_scores(problem, model, people.test)
        for k, domain in enumerate(DOMAINS):
            row |= {f"{name} {domain} loss": float(s.loss[k]), f"{name} {domain} accuracy": float(s.accuracy[k])}
    for k, domain in enumerate(DOMAINS):
        row |= {f"{domain} loss change": float(change.loss[k]), f"{domain} loss s.e.": float(change.loss_error[k])}
        row |= {f"{domain} accuracy change": float(change.accuracy[k])}
        row |= {f"{domain} accuracy s.e.": float(change.accuracy_error[k])}
        row |= {f"{domain} McNemar p": float(change.p_value[k])}
    return row


# ---------------------------------------------------------------- tables and claims


def _table(train: Mapping[str, DomainScores], test: Mapping[str, DomainScores]) -> list[dict[str, Any]]:
    rows = []
    for name, s in test.items():
        for k, domain in enumerate(DOMAINS):
            lam = f"{s.domain_weights[k]:.4f}" if np.isfinite(s.domain_weights[k]) else ""
            row = {"model": name, "domain": domain, "lambda": lam}
            row |= {"training loss": f"{train[name].loss[k]:.4f}", "test loss": f"{s.loss[k]:.4f}"}
            row |= {"s.e.": f"{s.loss_error[k]:.4f}", "test accuracy": f"{s.accuracy[k]:.4f}"}
            rows.append(row | {"95 % interval": f"{s.accuracy_low[k]:.4f} to {s.accuracy_high[k]:.4f}"})
    return rows


def _difference_rows(change: DomainDifferences) -> list[dict[str, Any]]:
    rows = []
    for k, domain in enumerate(DOMAINS):
        row: dict[str, Any] = {"domain": domain, "test rows": int(change.rows[k])}
        row |= {"agnostic minus pooled, loss": float(change.loss[k]), "loss s.e.": float(change.loss_error[k])}
        row |= {"accuracy": float(change.accuracy[k]), "accuracy s.e.": float(change.accuracy_error[k])}
        row |= {"only agnostic right": int(change.gained[k]), "only pooled right": int(change.lost[k])}
        rows.append(row | {"McNemar p": float(change.p_value[k])})
    return rows


def _method_rows(courses: Mapping[str, Course], best: float) -> list[dict[str, Any]]:
    rows = []
    for name, c in courses.items():
        middle = {key: float(np.median(getattr(c, key)[-1])) for key in ("value", "gap", "domain_weights", "accuracy")}
        row: dict[str, Any] = {"method": name, "rounds": int(c.rounds[-1]), "runs": c.value.shape[1]}
        row |= {"worst training domain": middle["value"], "minus the exact": middle["value"] - best}
        row |= {"certified gap": middle["gap"], "lambda_doctorate": middle["domain_weights"]}
        rows.append(row | {"doctorate test accuracy": middle["accuracy"]})
    return rows


def _curve_rows(courses: Mapping[str, Course]) -> list[dict[str, Any]]:
    rows = []
    for name, c in courses.items():
        for i, t in enumerate(c.rounds.tolist()):
            row: dict[str, Any] = {"method": name, "round": t}
            for key in ("value", "gap", "domain_weights", "accuracy"):
                row[key] = float(np.median(getattr(c, key)[i]))
            rows.append(row)
    return rows


def _signed(value: float, error: float) -> str:
    return f"{value:+.4f} (s.e. {error:.4f})"


def _claims(
    people: People, scale: AdultScale, models: Mapping[str, Any], train: Mapping[str, DomainScores],
    test: Mapping[str, DomainScores], change: DomainDifferences, courses: Mapping[str, Course],
) -> Iterator[Claim]:  # fmt: skip
    agnostic, p, a = models["agnostic"], test["pooled"], test["agnostic"]
    F, lam = agnostic.domain_values, agnostic.domain_weights[0]
    if people.official:
        yield Claim(
            f"At the agnostic solution doctorates weigh λ = {LAMBDA}, and both training losses are {LEVEL}",
            abs(lam - LAMBDA) <= 5e-4 and float(np.abs(F - LEVEL).max()) <= 5e-4,
            f"λ = {lam:.6f}, losses {F[0]:.6f} and {F[1]:.6f}",
            everywhere=True,
        )
    yield Claim(
        "The agnostic solution is certified",
        0.0 <= agnostic.gap <= 1e-9,
        f"h = {agnostic.value:.12f}, certified gap {agnostic.gap:.1e}: {agnostic.certificate}",
        refutable=True,
    )
    before, after = train["pooled"].loss, train["agnostic"].loss
    yield Claim(
        "It lowers the larger training loss, that of doctorates, and raises the other",
        bool(after[0] < before[0]) and bool(after[1] > before[1]),
        "; ".join(f"{name}: pooled {before[k]:.4f}, agnostic {after[k]:.4f}" for k, name in enumerate(DOMAINS)),
    )
    for k, name in enumerate(DOMAINS):
        yield Claim(
            f"Test accuracy falls against the pooled model: {name} (McNemar, p below 0.05)",
            bool(change.accuracy[k] < 0.0) if change.p_value[k] < 0.05 else None,
            f"pooled {p.accuracy[k]:.4f} ({p.accuracy_low[k]:.3f} to {p.accuracy_high[k]:.3f}), agnostic "
            f"{a.accuracy[k]:.4f} ({a.accuracy_low[k]:.3f} to {a.accuracy_high[k]:.3f}); paired "
            f"{_signed(change.accuracy[k], change.accuracy_error[k])}; {change.gained[k]} rows gained, "
            f"{change.lost[k]} lost, p = {change.p_value[k]:.2g}",
        )
    yield Claim(
        "The doctorates' test loss rises too, by more than two standard errors: what was gained was their training "
        "rows",
        Interval(float(change.loss[0]), 2.0 * float(change.loss_error[0])).above(),
        f"pooled {p.loss[0]:.4f}, agnostic {a.loss[0]:.4f}, paired {_signed(change.loss[0], change.loss_error[0])}",
    )
    if scale.everything:
        yield _approach(models, train, courses)
    yield _within(agnostic, courses)
    yield _certified(agnostic, courses)


def _approach(models: Mapping[str, Any], train: Mapping[str, DomainScores], courses: Mapping[str, Course]) -> Claim:
    """Whether the agnostic methods approach the exact solution, and FedAvg does not."""
    best, pooled = models["agnostic"].value, models["pooled"].w
    start = float(train["pooled"].loss.max() + 0.5 * L2 * (pooled @ pooled)) - best
    left = {name: float(np.median(c.value[-1])) - best for name, c in courses.items()}
    near = {name: np.ravel(c.value[-1]) - best <= SHARE * start for name, c in courses.items()}  # every run
    right = {name: ~v if name == "FedAvg" else v for name, v in near.items()}
    holds = every(True if v.all() else None if v.any() else False for v in right.values())
    return Claim(
        f"AFL, OptimisticAFL and AgnosticFedAvg approach the exact solution: at most {SHARE:.0%} of the pooled model's "
        "excess is left in every run; FedAvg does not",
        holds,
        f"excess of the worst training domain: pooled {start:.4f}; "
        + ", ".join(f"{name} {v:.4f}" for name, v in left.items()),
    )


def _within(agnostic: Any, courses: Mapping[str, Course]) -> Claim:
    """Whether the exact value lies between value - certified gap and value, at the end of every run."""
    left = {name: c.value[-1] - agnostic.value for name, c in courses.items()}
    return Claim(
        "Every run ends within its certificate of the exact value",
        all(
            bool((v <= courses[name].gap[-1] + ROUNDING).all() and (v >= -agnostic.gap).all())
            for name, v in left.items()
        ),
        ", ".join(f"{name}: {np.median(v):.4f} of {np.median(courses[name].gap[-1]):.4f}" for name, v in left.items()),
        everywhere=True,
    )


def _certified(agnostic: Any, courses: Mapping[str, Course]) -> Claim:
    short = np.concatenate([(c.value - agnostic.value - c.gap).ravel() for c in courses.values()])
    return Claim(
        "The certified gap is an upper bound of the true one along every run",
        bool((short <= ROUNDING).all()),
        f"largest true gap minus certified gap {float(short.max()):.1e} in {short.size} records",
        everywhere=True,
    )


def _notes(people: People, scale: AdultScale) -> tuple[str, ...]:
    n, m = people.train.sizes.tolist(), people.test.sizes.tolist()
    return (
        f"Data: {people.name}; {n[0]:,} doctorates and {n[1]:,} others to train on, {m[0]:,} and {m[1]:,} to test on; "
        f"{people.train.d - 1} columns and an intercept, l2 = {L2:g}.",
        "Taken from the paper: data, domains, logistic regression on the categorical columns. Chosen here: step sizes "
        f"(not tuned), mini-batches of {BATCH} rows a domain, {STEPS} local steps, {scale.rounds} rounds.",
        "The paper's table of accuracies is not at hand, so none is printed beside these. Pooled has weights n_k/n. "
        f"{UNIFORM} Uniform here is 1/2 for each domain, which the paper does not have.",
        "Intervals are Wilson's, each domain on its own; differences are of the same rows, with McNemar's exact test. "
        "The training losses leave the ridge term out, h has it.",
        "Exact models are minimisers with certificates. A run that stops early is another model: its accuracy is in "
        "the figure and in `curves`.",
    )


# ---------------------------------------------------------------- figures


def _draw_domains(train: Mapping[str, DomainScores], test: Mapping[str, DomainScores]) -> Any:
    """Draw losses on training and test rows and test accuracies, with intervals."""
    figure, axes = blank(3, width=3.7, height=3.9)
    fairness_plot(train, axes=axes[:1])
    fairness_plot(test, axes=axes[1:])
    for axis, text in zip(axes, ("training rows", "test rows", "test rows"), strict=True):
        axis.set_title(text, fontsize=9, loc="left")
        axis.set_title("", loc="right")
    top = max(axis.get_ylim()[1] for axis in axes[:2])
    for axis in axes[:2]:
        axis.set_ylim(0.0, top)
    axes[1].set_title("95 % intervals", fontsize=8, loc="right", color="0.35")
    axes[2].set_title("95 % intervals", fontsize=8, loc="right", color="0.35")
    bars = [b for b in axes[0].containers if type(b).__name__ == "BarContainer"]
    figure.legend(bars, list(train), loc="outside upper center", ncols=len(train), frameon=False, fontsize=8)
    return figure


def _draw_rounds(courses: Mapping[str, Course], models: Mapping[str, Any], test: Mapping[str, DomainScores]) -> Any:
    """Draw certified gap, lambda of the doctorates, and their test accuracy over rounds; dotted: exact."""
    figure, axes = blank(3, width=3.9, height=3.9)
    for axis, key in zip(axes, ("gap", "domain_weights", "accuracy"), strict=True):
        for name, c in courses.items():
            colour, dash = METHOD_LOOKS[name]
            low, middle, high = np.quantile(getattr(c, key)[1:], [0.1, 0.5, 0.9], axis=1)
            if np.isfinite(middle).all():
                axis.plot(c.rounds[1:], middle, color=colour, linestyle=dash, linewidth=1.5, label=name)
            if c.value.shape[1] > 1:
                band(axis, c.rounds[1:], low, high, colour)
        panel(axis, x="communication rounds", log="x")
    dotted, exact = {"color": "black", "linewidth": 1.0, "linestyle": DOTTED}, models["agnostic"].domain_weights[0]
    panel(axes[0], y="worst training domain: certified gap", log="y")
    axes[1].axhline(exact, **dotted)
    axes[0].tick_params(which="both", labelsize=8)
    axes[1].set_ylim(0.0, 1.03)
    axes[1].set_ylabel("weight λ of the doctorates")
    axes[2].set_ylabel("doctorates' test accuracy")
    look, right = {"textcoords": "offset points", "fontsize": 8}, axes[2].get_xlim()[1]
    for name, up in (("pooled", 3), ("agnostic", -10)):
        value = float(test[name].accuracy[0])
        axes[2].axhline(value, **dotted)
        axes[2].annotate(f"{name}, exact", (right, value), (-3, up), ha="right", **look)
    axes[1].annotate("exact", (axes[1].get_xlim()[0], float(exact)), (3, 2), **look)
    legend(figure, axes[0], columns=5)
    return figure
