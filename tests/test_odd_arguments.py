"""Objects of a wrong class, ragged lists, numbers whose squares overflow: refused by name where they come in.

What the fuzzer (`python -m tests.campaigns fuzz-api`) found in public entry points, one case for each family.
"""

import datetime

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Problem, Squared, compare, run
from fedconvex.analysis import analyse, plan_analysis
from fedconvex.comparison.scores import auc_of
from fedconvex.constants import Constants
from fedconvex.datasets import fedprox_synthetic, load, load_bundled, load_table
from fedconvex.families.boosting.edges import edges, margin_losses
from fedconvex.families.boosting.theorems.boosting import gradient_remainder
from fedconvex.families.multitask.relations import MeanRegularised
from fedconvex.families.multitask.separability import separability
from fedconvex.models import LinearModel
from fedconvex.penalties import GroupLasso
from fedconvex.preprocessing import fit_federated
from fedconvex.problems import Clustered, Covariance, MultiTaskProblem, QEnsemble, Stump, as_q, calibration_error, fit_q
from fedconvex.report import (
    client_drift,
    comparison,
    fairness_plot,
    format_table,
    heterogeneity_table,
    outlook,
    write_trace,
)
from fedconvex.simplex import project_simplex
from fedconvex.simplex.uncertainty import KLBall, Polytope, Simplex
from fedconvex.solvers.minimax.agnostic import solve_minimax
from fedconvex.tables import read_table
from fedconvex.theorems import agnostic_rate, dynamic_msd, dynamic_noise, fedavg_limit, fedprox, scaffold, svrg
from fedconvex.theorems.agnostic_generalisation import vertex_bound
from fedconvex.theorems.parts.assumptions import client_weights
from fedconvex.theorems.weight_divergence import class_shares, divergence
from fedconvex.theory import Moments
from fedconvex.theory.complexity import compositions, rademacher, skewness
from fedconvex.theory.fixed_points import fedavg_filter, filtered_round
from fedconvex.theory.round_maps import control_error
from fedconvex.theory.saddle_constants import agnostic_constants, agnostic_steps
from fedconvex.theory.worst_case import (
    Bracket,
    Problems,
    drifting,
    fedavg,
    fedprox_round,
    programme_size,
    ratio_table,
)
from fedconvex.verify import checks, own_instance, own_theorem, power, tightest, verify_grid

X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -1.0]])
FED = Federation.from_arrays(X, [1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1])
PROBLEM = Problem(FED, Squared(), 0.1)
TASKS = MultiTaskProblem(FED, Squared(), MeanRegularised(1.0, 0.5))
BIG = Federation.from_arrays(np.ones((8, 1)), np.arange(8.0), [0] * 4 + [1] * 4)
DOMAINS = Problem(Federation.from_arrays(X, [1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1], [0, 1, 0, 1]), Squared(), 0.1)
METHOD, RAGGED = FedAvg(step_size=0.1), [[1.0], [1.0, 2.0]]
MODEL = LinearModel(np.ones(2), np.array(0.0), None, ("a", "b"))
ENSEMBLE = QEnsemble([Stump(0, 0.0, -1.0, 1.0)], [0], [1.0])
KNOWN = Constants(L=1.0, mu=0.1, K=2)
MOMENTS = Moments.of(METHOD, PROBLEM)
DAY = datetime.date(2020, 1, 1)
TWO = np.array([0.5, 0.5])
CASES = {
    "a problem": (lambda: client_drift(METHOD, 3, X[0]), "client_drift: problem must be a Problem; got int 3"),
    "another problem": (lambda: class_shares(TASKS), "class_shares: problem must be a Problem; got MultiTaskProblem"),
    "an ensemble": (lambda: edges(PROBLEM, X[0]), "edges: problem must be a EnsembleProblem; got Problem"),
    "tasks": (lambda: separability(PROBLEM, X[0]), "separability: problem must be a MultiTaskProblem; got Problem"),
    "a problem of controls": (lambda: control_error(None, X), "control_error: problem must be a Problem"),
    "a problem of moments": (lambda: Moments.of(METHOD, "x"), "Moments.of: problem must be a Problem"),
    "a problem to measure": (
        lambda: comparison(PROBLEM, {"w": X[0]}, measured=TASKS),
        "comparison: measured must be a Problem",
    ),
    "models": (lambda: comparison(PROBLEM, [X[0]]), "comparison: models must be a Mapping; got list"),
    "a problem of minimax": (lambda: solve_minimax(3), "solve_minimax: problem must be a Objective"),
    "a set": (lambda: PROBLEM.solve_minimax(uncertainty_set=3), "must be one of fedconvex.simplex.uncertainty"),
    "a set of constants": (
        lambda: agnostic_constants(PROBLEM, radius=1.0, uncertainty_set=Simplex),
        "must be one of fedconvex.simplex.uncertainty",
    ),
    "constants": (lambda: dynamic_msd.msd_paper(KNOWN, step_size=0.1, drift2=0.1), "constants must be a Tracking"),
    "constants of noise": (lambda: dynamic_noise.gradient_noise_paper(3, 0.1), "constants must be a TrackingC"),
    "constants of steps": (
        lambda: scaffold.scaffold_weights({}, step_size=0.1, local_steps=1, rounds=1),
        "constants must be a Constants; got dict",
    ),
    "constants of a saddle": (
        lambda: agnostic_rate.agnostic_rate_any_steps(KNOWN, rounds=1, step_size=0.1, domain_step_size=0.1),
        "constants must be a AgnosticConstants",
    ),
    "clients": (
        lambda: fedavg_limit.fedprox_bias(KNOWN, "x", proximal_mu=1.0),
        "fedprox_bias: clients must be a Spread",
    ),
    "a method": (lambda: agnostic_rate.afl_constants(PROBLEM, METHOD), "afl_constants: method must be a AFL"),
    "a class for a method": (lambda: Moments.of(FedAvg, PROBLEM), "Moments.of: method must declare local steps"),
    "a trace": (lambda: heterogeneity_table({}), "heterogeneity_table: trace must come from heterogeneity_trace"),
    "a result": (lambda: outlook(METHOD, 0.1), "outlook: result must be a Result; got FedAvg"),
    "a path": (lambda: write_trace(run(METHOD, PROBLEM, rounds=1), 3), "path must be the name of a file; got int 3"),
    "NUL in a path": (lambda: MODEL.save("a\0b"), "LinearModel.save: folder must be the name of a folder"),
    "no folder": (lambda: ENSEMBLE.save("nowhere/at/all.npz"), "QEnsemble.save: path must be a file in an existing"),
    "no path": (lambda: ENSEMBLE.load(3), "QEnsemble.load: path must be a path; got int"),
    "a long path": (lambda: load("x" * 5000), "path must be a place that can be read"),
    "an instance": (lambda: own_instance(3, "mine"), "own_instance: problem must be a Problem; got 3"),
    "theorems": (lambda: checks(3), "checks: theorems must be a list; got int 3"),
    "a setting": (lambda: verify_grid("fedavg-refined", 3, {"a": [1]}), "setting must be a function; got int 3"),
    "names of a grid": (lambda: verify_grid("fedavg-refined", checks, {1: [1]}), "a name must be a string; got int 1"),
    "a response": (lambda: filtered_round(PROBLEM, 3), "filtered_round: response must be a function; got int 3"),
    "a response of another shape": (
        lambda: filtered_round(PROBLEM, lambda h: 1.0),
        r"filtered_round: response\(h\) must have shape \(2,\)",
    ),
    "members": (lambda: QEnsemble([3], [0], [1.0]), "QEnsemble.members must be classifiers with predict"),
    "a cell": (lambda: format_table(["a"], [[DAY]]), "cells of a table must be text, numbers or None"),
    "headers": (lambda: format_table(3, [[1]]), "format_table: headers must be a list; got int 3"),
    "an indent": (lambda: format_table(["a"], [[1]], 3), "format_table: indent must be a string; got int 3"),
    "a list of clients": (lambda: Federation.from_clients(3), "clients must be a list; got int 3"),
    "a column": (lambda: load_table(__file__[:-2] + "csv", {}), "load_table: path must be an existing file"),
    "ragged pointers": (lambda: Federation(X, FED.y, RAGGED), "Federation.ptr must be a rectangular array"),
    "ragged clusters": (lambda: Clustered(RAGGED, 1.0, 1.0), "Clustered.clusters must be a rectangular array"),
    "ragged domains": (lambda: calibration_error([TWO], RAGGED), "calibration_error: domain must be a rectangular"),
    "a ragged cap": (lambda: project_simplex(TWO, cap=RAGGED), "project_simplex must be a rectangular array"),
    "ragged sizes": (lambda: vertex_bound([0.1], [0.1], RAGGED, delta=0.1), "sizes must be a rectangular array"),
    "masked domains": (
        lambda: rademacher(np.ones((2, 2)), np.ma.masked_array([0, 1], [True, False]), TWO),
        "rademacher: domain must have no masked entries",
    ),
    "a domain of 10^9": (lambda: fit_q(X, [0, 1, 0, 10**9]), r"fit_q.domain must lie in 0, \.\.\., 3"),
    "a flag": (lambda: load_bundled("diabetes", standardised="yes"), "standardised must be True or False"),
    "a flag of laws": (lambda: fedprox_synthetic(0.0, 0.0, iid=np.ones(2)), "iid must be True or False"),
    "a flag of drifts": (lambda: MOMENTS.run(1, drift_before=np.ones(2)), "drift_before must be True or False"),
    "a step": (lambda: fedavg_filter(np.eye(2), step_size=DAY, local_steps=2), "step_size must be a number"),
    "steps": (lambda: fedavg_filter(np.eye(2), step_size=0.1, local_steps=1.5), "local_steps must be a whole number"),
    "draws": (lambda: fedprox.few_draws(DAY), "few_draws: clients must be a whole number"),
    "parts": (lambda: compositions(3, 0), "compositions: parts must be at least 1; got 0"),
    "sigma2": (lambda: Covariance(0.1, np.ones(2)), "Covariance.sigma2 must be a number"),
    "tasks of rows": (lambda: TASKS.predict(np.zeros((2, 2)), X, ()), "MultiTaskProblem: tasks must be a label, or"),
    "rows of an ensemble": (lambda: ENSEMBLE.predict(3.0), r"QEnsemble: X must have shape \(any, any\); got \(\)"),
    "rows of q": (lambda: as_q("q", None, 3.0, 1), r"q: X must have shape \(any, any\)"),
    "NaN weights": (lambda: skewness([np.nan, 1.0], [2, 2]), "domain_weights must be nonnegative and sum to one"),
    "NaN models": (lambda: divergence([np.nan], [1.0]), "w_federated must be finite"),
    "directions": (lambda: Simplex().entropic(TWO, [1.0]), r"entropic: g must have the shape \(2,\) of the weights"),
    "infinite values": (lambda: KLBall(TWO, 0.1).support([1.0, np.inf]), "KLBall.support: values must be finite"),
    "huge values": (lambda: Polytope([[1.0, 0.0]], [0.7]).support([1.0, 1e308]), "must be at most 1e.150"),
    "a huge radius": (lambda: PROBLEM.constants(radius=1e308), r"radius must be a number in \[0, 1e.150\]"),
    "a huge step": (lambda: gradient_remainder([1.0], 1e30), r"step must be a number in \(0, 700\]"),
    "ends of domains": (lambda: margin_losses([1.0, 1.0], [0, 0, 2], 1.0), "bounds must rise from 0 to 2"),
    "search progress": (lambda: tightest("fedavg-convex", 1, progress=3), "tightest: progress must be a function"),
    "search file": (lambda: tightest("fedavg-convex", 1, path=__file__), "tightest: path must hold a search"),
    "power seed": (lambda: power("fedavg-convex", [], seed="x"), "power: seed must be a whole number"),
    "a theorem that is none": (lambda: checks(known={"x": None}), r"checks: known\['x'\] must be a Theorem; got None"),
    "a bound that is none": (lambda: own_theorem("x", 3), "own_theorem: bound must be a function"),
    "a quantity that is none": (lambda: own_theorem("x", len, 3), "own_theorem: quantity must be a Quantity"),
    "batches": (lambda: own_theorem("x", len, batches=1.5), "own_theorem: batches must be a whole number"),
    "losses": (lambda: own_theorem("x", len, losses=("ramp",)), "own_theorem: losses must be one of 'squared'"),
    "falsy progress": (lambda: tightest("fedavg-convex", 1, progress=()), "tightest: progress must be a function"),
    "an intercept": (
        lambda: Federation.from_frame({"a": [1, 2], "y": [1, 2], "k": [0, 1]}, "y", "k", intercept=np.empty(0)),
        "intercept must be True or False",
    ),
    "methods": (lambda: compare(FED, methods=-1), "compare: methods must be a list; got int -1"),
    "progress of a comparison": (lambda: compare(BIG, methods=[], progress=TWO), "progress must be True or False"),
    "unhashable clients": (lambda: MODEL.unknown_clients({1}), "unknown_clients: clients must be names; got {1}"),
    "a metric that is a class": (
        lambda: programme_size(fedavg(0.1, 1, 1), Problems(2), int),
        "worst_case: metric must be a name, a Quantity or a function",
    ),
    "a method that is none": (lambda: programme_size((), Problems(2)), "a method of the worst case must be a function"),
    "sampled clients": (lambda: fedprox_round(1.0, sampled=1.5), "fedprox_round: sampled must be a whole number"),
    "steps without digits": (
        lambda: drifting(5e-324, 1.0, 1.0, step_size=0.1, local_steps=2, rounds=1),
        "drifting: step_size must be at least",
    ),
    "a start of several models": (
        lambda: solve_minimax(DOMAINS, start=np.zeros((1, 2))),
        r"Problem.solve_minimax: start must have shape \(2,\)",
    ),
    "constants that are none": (lambda: client_weights("a theorem", 3), "a theorem: constants must be a Constants"),
    "names of bounds": (lambda: ratio_table({("x",): KNOWN}, Bracket(1.0, 1.0)), "name of a bound must be a string"),
    "groups wider than a model": (
        lambda: Problem(FED, Squared(), penalty=GroupLasso(1.0, groups=3)),
        "GroupLasso.groups must be at most 2; got 3",
    ),
    "ties without times": (
        lambda: analyse({"x": [1, 2, 4], "y": [0, 1, 1], "k": [0, 0, 1]}, "y", "k", ties="exact"),
        "analyse: ties must be one of",
    ),
    "sums of a plan": (
        lambda: plan_analysis({"x": [1, 2], "y": [0, 1], "k": [0, 1]}, target="y", client="k", sums=len),
        "plan_analysis: sums must be PlainSums",
    ),
    "a flag of a plan": (
        lambda: plan_analysis({"x": [1, 2], "y": [0, 1], "k": [0, 1]}, target="y", client="k", site_intercepts=TWO),
        "plan_analysis: site_intercepts must be True or False",
    ),
    "a class for a problem": (lambda: Moments(Problem, step_size=0.1), r"Moments\.problem must be a Problem; got type"),
    "fairness problem": (lambda: fairness_plot({}, problem=3), "fairness_plot: problem must be a Problem"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_refused_by_name(name):
    call, shown = CASES[name]
    with pytest.raises((TypeError, ValueError, FileNotFoundError), match=shown):
        call()


@pytest.mark.parametrize("name", ["standardise", "centre", "standardise_target"])
def test_flags_of_a_federated_fit(name):
    frame, columns = read_table({"a": [1, 2, 3], "y": [1.0, 0.5, 2.0]}, "y")
    with pytest.raises(TypeError, match=f"fit_federated: {name} must be True or False"):
        fit_federated(columns, [frame], **{name: np.empty(0)})


def test_intervals_of_a_level_next_to_zero():
    """The root lies nearer than double precision tells from the estimate: brentq had no change of sign."""
    y = np.array([-1.0, -1.0, 1.0, 1.0])
    for level in (1e-9, 5e-324):
        for z in ([0.1, 0.4, 0.35, 0.8], [0.1, 0.2, 0.3, 0.4]):
            found = auc_of(y, np.array(z), level)
            assert found.low == pytest.approx(found.value, abs=1e-7) == pytest.approx(found.high, abs=1e-7)


def test_squares_that_overflow_are_infinite_not_errors():
    """sqrt(sigma^2 + G^2) is finite although G^2 is not; a bound that overflows is infinite."""
    steps = agnostic_steps(rounds=4, R_W=1.0, R_lambda=1.0, G_w=1e300, G_lambda=1e300)
    assert steps.step_size == pytest.approx(1e-300, rel=1e-12)  # 2 R/(sqrt(T) G)
    known = Constants(L=1.0, L_s=1.0, mu=0.1, K=1)
    assert svrg.svrg_factor(known, step_size=5e-324, inner_steps=1) == np.inf
    steep = Problem(Federation.from_arrays([[1e90], [1.0]], [1e90, 0.0], [0, 1]), Squared())
    assert agnostic_constants(steep, radius=1.0, draws=1).sigma2_w == np.inf


def test_ensembles_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "q.npz"
    ENSEMBLE.save(path)
    before = path.read_bytes()
    broken = QEnsemble([Stump(0, 0.0, -1.0, 1.0), MODEL], [0, 0], [1.0, 1.0])
    with pytest.raises(TypeError, match="be stumps or trees"):
        broken.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["q.npz"]
    assert QEnsemble.load(path).alpha.tolist() == [1.0]


def test_ensemble_models_have_two_labels_and_different_names():
    from fedconvex.problems import EnsembleModel, QEnsemble, Stump

    f = QEnsemble([Stump(0, 1.5, -1.0, 1.0)], [0], [0.5])
    for classes in (([1], [2, 3]), (None, "a"), (float("nan"), 1.0), ("a", "a")):
        with pytest.raises(ValueError, match=r"EnsembleModel\.classes must be two different labels"):
            EnsembleModel(f, classes, ("x",))
    with pytest.raises(ValueError, match=r"EnsembleModel\.feature_names must be different names"):
        EnsembleModel(f, (0, 1), ("x", "x"))


def test_compare_says_why_rows_may_not_weigh_differently():
    rng = np.random.default_rng(0)
    X, y, who = rng.normal(size=(40, 2)), np.tile([-1.0, 1.0], 20), np.repeat([0, 1], 20)
    fed = Federation.from_arrays(X, y, who, sample_weight=rng.uniform(0.5, 2.0, 40))
    with pytest.raises(ValueError, match="intervals count rows, and weights do not say how many rows one stands for"):
        compare(fed)
