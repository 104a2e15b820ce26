"""Every public entry point of the package with a call that works: what the fuzzer bends.

An entry point is a public name (`docs/api.py`), or a public method of one of the objects in `world`. Parameters are
read off signatures; `values` has a good value for every name of a parameter, `OWN` what one entry needs otherwise. A
test makes all these calls and says which public names are missing.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedconvex.conformance import can
from tests.docs_scripts import docs_script
from tests.own_configurations import declared, fields_of

INTERNAL = {
    "losses": "mathematics of rows in compiled code; what losses are made of is checked by Problem",
    "loss_traits": "what losses declare; asked by the package",
    "traits": "what methods declare; asked by the package",
    "fields": "how methods declare their fields",
    "words": "how methods say what they do",
    "engines.flower": "needs the package flwr; arguments are checked in test_flower.py",
    "papers": "experiments of the literature: minutes each (test_experiments*.py)",
}
CALLED_BY_THE_DRIVER = {
    *("largest_scores", "row_values_and_slopes", "steep_along_free", "ridge_term", "ridge_terms", "moved"),
    *("init", "participants", "broadcast", "local", "send", "aggregate", "measure", "observe", "memory", "round"),
    *("traits", "statistics", "default_step", "translate", "check_state", "statistic", "asked", "check_fit"),
    *("move", "plain", "next", "ascend", "shares", "add", "drift", "buffers", "tilt", "traits_of_work", "check"),
    *("stack", "scaled", "task_scores", "images", "conjugates", "models", "thinned", "alone", "flatten", "unflatten"),
    *("with_loss", "curvatures", "hessian_product", "hessian_root", "probabilities", "rounding", "gradient_rounding"),
    *("roundings", "sum_rounding", "step_smoothness"),
    *("value_gradient", "value_gradient_hessian", "flat_hessian", "losses_of", "errors_of", "row_weights_of"),
    *("worst", "objective"),
    *("corrected", "steepest", "check_stages", "directions", "certified", "lower", "direction", "smoothed"),
    *("reach", "bend", "steepness", "gaps", "absolute", "weigh", "need_curvature", "need_equal_rows", "valid"),
    *("adapt", "adapted", "blocks", "gradient_parts"),
    *("normal", "uniform", "check_labels", "at", "conjugate", "projection", "mbar", "qbar", "of_theorem"),
    *("factored", "factored_of", "groups", "apart", "allowance", "reached"),
}
COMPRESSED = ("DIANA", "EF21", "ErrorFeedback", "CompressedGradientDescent")
RECORDS = {
    *("Abilities", "Conformance"),
    *("BestStep", "OwnersComparison", "WithoutOwner"),
    "Client",
    "Exponent",
    "HardInstance",
    "InvariantSubset",
    *("ExactPosterior", "GaussHermite", "JaakkolaJordan", "GaussianPosterior", "PosteriorSolution", "Predictive"),
    "Iterates",
    "Oracle",
    "Rate",
    *("Analysis", "Family", "Finding"),
    *("Arrays", "Board", "Solver"),
    *(
        "AnalysisPlan",
        "Columns",
        "Column",
        "Frame",
        "Wishes",
        "Comparison",
        "Scored",
        "Preprocessing",
        "Trouble",
        "Tightest",
        "Power",
        "Noticed",
        "Exponent",
    ),
    "Bundled",
    "Sharing",
    "FedProxSynthetic",
    "LinearFederation",
    "LogisticFederation",
    "Result",
    "Status",
    "Trace",
    "DivergenceWarning",
    "Solution",
    "Minimax",
    "CSR",
    "Roster",
    "Draws",
    "Pick",
    "Measure",
    "Scores",
    "Infeasible",
    "AssumptionError",
    "Hypothesis",
    "Quantity",
    "WeightMoments",
    "HullDistance",
    "Edges",
    "TwoPoints",
    "Complexity",
    "Affine",
    "Quadratic",
    "Spread",
    "GradientTrace",
    "Mixing",
    "MomentTrace",
    "ShadowTrace",
    "SteadyState",
    "RADFedLimit",
    "RADFedTrace",
    "Cycle",
    "Scaffold",
    "AgnosticConstants",
    "AgnosticSteps",
    "DualConstants",
    "Bracket",
    "Ratio",
    "Size",
    "WorstCase",
    "WorstInstance",
    "Interpolant",
    "SmallStep",
    "Schedule",
    "Dissimilarity",
    "DomainDifferences",
    "DomainScores",
    "Drift",
    "LossSpread",
    "Clustering",
    "DomainTerms",
    "PracticalDifference",
    "Sharpness",
    "TextScores",
    "BoundCurve",
    "GridVerdicts",
    "Instance",
    "MethodRule",
    "Outcome",
    "PrintedInstance",
    "Reading",
    "Verdict",
    "VerificationReport",
    "Check",
    "Theorem",
    "Setting",
    "Tree",
    "MaximumEntropyQ",
    "BoostingProblem",
    "FederatedProblem",
    "ServerProblem",
    "Averaging",
    *("WeightedMean", "CoordinateMedian", "TrimmedMean", "GeometricMedian"),
    "EntropicStep",
    "ProjectedStep",
    "DomainSampling",
    "PlainSums",
    "ClientSGD",
    "ClientMomentum",
    "ClientAdam",
    "ServerSGD",
    "ServerAdam",
    "ServerAdagrad",
    "ServerYogi",
    "Decay",
    "ProportionalSampling",
    "ScaledSampling",
    "UniformSampling",
    "GradientResponse",
    "first_state",
    "moved",
    "moved_stacked",
    "measure",
    "observe",
    "participants",
    "as_sums",
    "WeightedSampling",
    "Constants",
    "Softmax",
    "fetch_adult",
    "fetch_mnist",
    "exact_worst",
    "verify_suite",
    "AdaptiveProximal",
    "ProximalPoint",
    "Stragglers",
    "Clock",
    "Round",
    "Circle",
    "Bound",
    "Incident",
    "SiteWarning",
    "Sweep",
    "TightnessMap",
}
"""Classes without a check of their own: records that functions return, protocols, and settings that a method checks."""


class Entry(NamedTuple):
    """A callable, and the arguments of a call that works; those with a default may be left out."""

    call: Callable[..., Any]
    arguments: dict[str, Any]
    parameters: dict[str, Any]  # all, with the values they have in that call


@functools.cache
def world() -> dict[str, Any]:
    """Small problems of each kind, and what is made from them."""
    from fedconvex import (
        FedAvg,
        Federation,
        FedSGD,
        HybridFederation,
        Logistic,
        Problem,
        Softmax,
        Squared,
        VerticalFederation,
        run,
        sweep,
    )
    from fedconvex.families.multitask import separability
    from fedconvex.methods import AFL, SCAFFOLD, KLBall, MultiBoost, Point, Polytope, Simplex
    from fedconvex.models import LinearModel
    from fedconvex.penalties import L1
    from fedconvex.problems import (
        Binned,
        Covariance,
        Dictionary,
        EnsembleModel,
        EnsembleProblem,
        GaussianPosteriorProblem,
        MeanRegularised,
        MovingTarget,
        MultiTaskProblem,
        OneVsRest,
        Presorted,
        QEnsemble,
        Stump,
        StumpProblem,
    )
    from fedconvex.report import heterogeneity_trace
    from fedconvex.secure import Party
    from fedconvex.theorems.parts.tracking import tracking_constants
    from fedconvex.theory import Moments, StackedMoments, saddle_constants
    from fedconvex.theory.fixed_points import spread
    from fedconvex.theory.worst_case import closed_form_homogeneous

    rng = np.random.default_rng(5)
    X, who, domain = rng.normal(size=(18, 2)).round(2), np.repeat([0, 1, 2], 6), np.tile([0, 1], 9)
    y, signs = X @ [1.0, -0.5] + 0.1 * rng.normal(size=18).round(2), np.where(X[:, 0] + X[:, 1] > 0, 1.0, -1.0)
    real, labelled = (Federation.from_arrays(X, v, who, domain) for v in (y, signs))
    problem, logistic = Problem(real, Squared(), 0.1), Problem(labelled, Logistic(), 0.1)
    softmax = Problem(Federation.from_arrays(X, (signs > 0).astype(float), who, domain), Softmax(2), 0.1)
    sources = Federation.from_arrays(X, signs, 10 * domain + who, domain)
    dictionary = Dictionary.stumps(sources, cuts=2)
    ensemble = EnsembleProblem(sources, dictionary)
    tasks = MultiTaskProblem(labelled, Logistic(), MeanRegularised(1.0, 0.5))
    result = run(FedAvg(step_size=0.1), problem, rounds=5, tol=0.0)
    boosted = run(MultiBoost(), ensemble, rounds=3, tol=0.0)
    return {
        "X": X,
        "y": y,
        "signs": signs,
        "who": who,
        "domain": domain,
        "real": real,
        "labelled": labelled,
        "sources": sources,
        "problem": problem,
        "logistic": logistic,
        "softmax": softmax,
        "dictionary": dictionary,
        "ensemble": ensemble,
        "stumps": StumpProblem(sources),
        "tasks": tasks,
        "one_vs_rest": OneVsRest(softmax.federation, Logistic(), MeanRegularised(1.0, 0.5)),
        "result": result,
        "boosted": boosted,
        "joint": MultiTaskProblem(labelled, Logistic(), Covariance(0.3, 2.0)),
        "moving": MovingTarget(problem, 0.1),
        "linear_model": LinearModel(np.ones(2), np.array(0.0), None, ("a", "b")),
        "q_ensemble": QEnsemble([Stump(0, 0.0, -1.0, 1.0)], [0], [1.0]),
        "ensemble_model": EnsembleModel(QEnsemble([Stump(0, 0.0, -1.0, 1.0)], [0], [1.0]), (0, 1), ("a", "b")),
        "stump": Stump(0, 0.0, -1.0, 1.0),
        "simplex": Simplex(),
        "point": Point([0.5, 0.5]),
        "kl": KLBall([0.5, 0.5], 0.1),
        "polytope": Polytope([[1.0, 0.0]], [0.7]),
        "covariance": Covariance(0.3, 2.0),
        "moments": Moments.of(FedAvg(step_size=0.1), problem),
        "scaffold": (scaffold := SCAFFOLD(step_size=0.1)),
        "stacked": StackedMoments(scaffold, problem),
        "saddle": saddle_constants.agnostic_constants(problem, radius=1.0),
        "dual": separability.dual_constants(tasks),
        "spread": spread(problem),
        "constants": logistic.constants(center=np.zeros(2), radius=1.0, batch_size=1),
        "tracking": tracking_constants(problem),
        "party": Party(0),
        "fedavg": FedAvg(step_size=0.1),
        "fedsgd": FedSGD(step_size=0.1),
        "relation": MeanRegularised(1.0, 0.5),
        "binned": Binned(X),
        "afl": AFL(step_size=0.1, domain_step_size=0.1, radius=1.0),
        "alone": problem.client(0),
        "alone_clients": Federation.from_arrays(X, y, who),
        "columns_of_owners": VerticalFederation.from_blocks([X[:, :1], X[:, 1:]], y),
        "blocks_of_owners": HybridFederation.from_grid(X, y, 3, 2),
        "bayes": (bayes := GaussianPosteriorProblem(Federation.from_arrays(X, y, who), Squared())),
        "bayes_posterior": bayes.solve().posterior,
        "bound": closed_form_homogeneous(1.0, 1.0, 0.1, 1, 1),
        "equal": Problem(real, Squared(), 0.1, weights=np.full(3, 1 / 3)).constants(radius=1.0),
        "presorted": Presorted(X),
        "l1": L1(0.1),
        "squared": Squared(),
        "logistic_loss": Logistic(),
        "agnostic": run(AFL(step_size=0.1, domain_step_size=0.1), problem, rounds=3, tol=0.0),
        "searched": run(MultiBoost(), StumpProblem(sources), rounds=3, tol=0.0).state,
        "swept": sweep(FedAvg(step_size=0.1), problem, grid={"step_size": [0.1, 0.2], "local_steps": [1, 2]}, rounds=2),
        "drifting": heterogeneity_trace(FedAvg(step_size=0.1, local_steps=2), problem, rounds=3),
    }


@functools.cache
def values() -> dict[str, Any]:
    """A good value for every name of a parameter that has no default, or whose default is None."""
    w, zeros = world(), np.zeros(2)
    return {
        "X": w["X"],
        "y": w["y"],
        "ptr": np.array([0, 6, 12, 18]),
        "clients": w["who"],
        "domains": w["domain"],
        "domain": w["domain"],
        "labels": ["a", "b", "c"],
        "ids": np.array([4, 5, 6]),
        "w": zeros,
        "W": np.zeros((3, 2)),
        "federation": w["real"],
        "loss": w["squared"],
        "weights": np.full(3, 1 / 3),
        "problem": w["problem"],
        "method": w["fedavg"],
        "domain_weights": np.array([0.5, 0.5]),
        "domain_labels": ["u", "v"],
        "uncertainty_set": w["simplex"],
        "penalty": w["l1"],
        "H": np.eye(2),
        "who": "fuzz",
        "center": zeros,
        "start": zeros,
        "radius": 1.0,
        "batch_size": 2,
        "k": 1,
        "step_size": 0.1,
        "domain_step_size": 0.1,
        "mu": 0.5,
        "proximal_mu": 0.5,
        "inner_steps": 4,
        "bits": 20,
        "rounds": 3,
        "local_steps": 2,
        "epochs": 1,
        "L": 2.0,
        "D": 1.0,
        "rho": 0.5,
        "inexactness": 0.1,
        "theta": 0.5,
        "alpha": 0.5,
        "beta": 0.5,
        "n_clients": 3,
        "n_rows": 18,
        "sigma": 1.0,
        "s": 0.5,
        "fraction": 0.5,
        "seed": 0,
        "relation": w["relation"],
        "lam": 0.1,
        "lam1": 1.0,
        "lam2": 0.5,
        "l2": 0.1,
        "sigma2": 2.0,
        "bins": 4,
        "clusters": [0, 0, 1],
        "omega": np.eye(3) / 3,
        "adjacency": np.ones((3, 3)) - np.eye(3),
        "q": np.full((18, 2), 0.5),
        "dictionary": w["dictionary"],
        "sources": np.zeros(4, dtype=int),
        "members": None,
        "predictions": np.ones((18, 4)),
        "v": np.array([0.2, 0.9, -0.1]),
        "x": np.array([0.2, 0.7, 0.1]),
        "cap": 0.6,
        "A": np.array([[1.0, 0.0, 0.0]]),
        "b": np.array([0.7]),
        "scale": 1.0,
        "successes": 3,
        "trials": 10,
        "level": 0.9,
        "models": {"mine": zeros},
        "model": zeros,
        "other": np.ones(2),
        "measured": None,
        "results": {"mine": w["result"]},
        "found": w["swept"],
        "result": w["result"],
        "trace": w["result"].trace,
        "tol": 1e-3,
        "theorem": "fedavg-convex",
        "clients_per_domain": 1,
        "path": "file",
        "constants": w["constants"],
        "domains_": 2,
        "covariance": np.eye(2),
        "variance": 0.1,
        "zeta": 0.5,
        "heterogeneity": None,
        "participation": 2,
        "server_step": 1.0,
        "noise_factor": 0.5,
        "hypotheses": 4,
        "sizes": np.array([4, 5]),
        "delta": 0.1,
        "eps": 0.2,
        "complexity": 0.3,
        "skew": 1.0,
        "empirical": 0.4,
        "rows": 50,
        "cover": 10,
        "largest": 1.0,
        "distance": 0.5,
        "row_norms": np.ones(18),
        "values": np.ones((4, 18)),
        "p": 2,
        "total": 4,
        "parts": 2,
        "dimension": 3,
        "lipschitz": 1.0,
        "controls": np.zeros((3, 2)),
        "z": np.zeros(8),
        "lag": 0.1,
        "redistributions": 2,
        "vector": np.ones(3),
        "context": b"round 1",
        "number": 0,
        "drift": np.eye(2),
        "drift_covariance": np.eye(2),
        "drift2": 0.1,
        "gamma": 0.1,
        "edge": np.array([0.1, 0.2]),
        "value": 1.0,
        "gradient_norm": 1.0,
        "participants": 2,
        "accuracy": 0.1,
        "condition": 50.0,
        "w_federated": np.ones(2),
        "w_centralised": np.zeros(2),
        "gaps": np.ones((3, 2)),
        "shares": np.full((3, 2), 0.5),
        "folds": 3,
        "gradient_norms": np.ones((2, 4)),
        "previous": 0.0,
        "p_max": 0.5,
        "theta_max": 0.5,
        "test_size": 0.25,
        "condition_": 1.0,
        "max_bytes": 2**20,
        "n_features": 2,
        "suboptimality": 0.5,
        "features": "linear",
        "baseline": None,
        "trajectory": 0,
        "feature": 0,
        "threshold": 0.0,
        "left": -1.0,
        "right": 1.0,
        "draws": 2,
        "margins": np.linspace(-1, 1, 18),
        "bounds": np.array([0, 9, 18]),
        "promised": np.array([0.1, 0.2]),
        "slope": 0.5,
        "smoothing": 5.0,
        "vertices": 2,
        "step": 0.1,
        "curvature": 1.0,
        "kappa": 2.0,
        "domains__": 2,
        "R_W": 1.0,
        "R_lambda": 1.0,
        "G_w": 1.0,
        "G_lambda": 1.0,
        "response": lambda h: 1.0 / (1.0 + h),
        "exact": None,
        "rows_per_client": 5,
        "name": "diabetes",
        "tau": 2,
        "most": 64,
        "size": 4,
        "per_domain": 1,
        "step_factor": None,
        "cuts": 2,
        "depth": 1,
        "state": w["boosted"].w[0] if w["boosted"].w.ndim == 2 else w["boosted"].w,
        "target": 0,
        "clocks": None,
        "work": None,
        "total_": 1.0,
        "covering": 0.1,
        "T": 2,
        "t": 3,
        "passes": 50,
    }


REFUSED = {
    "remote.serve": "where no server listens",
    "remote.TLS": "without files of certificates",
    "remote.Plain": "without a secret",
    "problems.Covariance.gap_rounding": "for matrices of tasks",
    "models.LinearModel.predict_proba": "for a classifier",
    "Problem.path": "for a problem with a penalty",
    "Problem.probabilities_of": "for a loss with probabilities",
    "problems.MovingTarget.path": "for a problem with a penalty",
    "problems.MovingTarget.probabilities_of": "for a loss with probabilities",
    "theorems.dynamic_msd.optimal_step": "for sampled agents",
}
"""Entries whose call is refused whatever the arguments, for the objects in `world`."""
OBJECTS = {
    "Federation": "real",
    "HybridFederation": "blocks_of_owners",
    "Problem": "problem",
    "problems.EnsembleProblem": "ensemble",
    "problems.StumpProblem": "stumps",
    "problems.GaussianPosteriorProblem": "bayes",
    "problems.GaussianPosterior": "bayes_posterior",
    "problems.MultiTaskProblem": "tasks",
    "problems.OneVsRest": "one_vs_rest",
    "problems.MovingTarget": "moving",
    "problems.QEnsemble": "q_ensemble",
    "problems.Stump": "stump",
    "problems.Covariance": "covariance",
    "methods.Simplex": "simplex",
    "secure.Party": "party",
    "methods.Point": "point",
    "methods.KLBall": "kl",
    "methods.Polytope": "polytope",
    "models.LinearModel": "linear_model",
    "problems.EnsembleModel": "ensemble_model",
    "theory.Moments": "moments",
    "theory.StackedMoments": "stacked",
}
REST = {
    "models.LinearModel.from_standardised": ("classes", "feature_names"),
    "theorems.agnostic_generalisation.excess_by_cover": ("rows", "cover", "eps", "delta"),
    "theorems.agnostic_generalisation.excess_by_vertices": ("delta",),
    "theorems.agnostic_generalisation.excess_direct": ("delta",),
    "theorems.boosting_margins.margin_bound": ("rows", "cover", "eps", "delta"),
    "theorems.fedavg_refined.fedavg_at_optimum_sharp": ("step_size", "local_steps", "rounds", "noise_factor"),
    "theorems.fedprox.fedprox": ("proximal_mu", "participants"),
    "theorems.fedprox.fedprox_convex": ("proximal_mu",),
    "theorems.fedprox.fedprox_sharp": ("proximal_mu",),
    "theorems.mocha.mocha_gap_rate": ("rounds", "start"),
}  # keywords that are passed on by **  # keywords of ** that it cannot do without


@can(losses=("squared",), partial=False, batches=())
def descent(clients: Any, hyper: Any, rounds: int) -> list[np.ndarray]:
    """FedSGD, as an implementation to examine."""
    w, n, models = hyper["start"], sum(len(y) for _, y in clients), []
    for _ in range(rounds):
        g = sum(X.T @ (X @ w - y) for X, y in clients) / n + hyper["l2"] * w
        models.append(w := w - hyper["step_size"] * g)
    return models


def analysis_over_sites() -> tuple[Any, Any]:
    """The plan of an analysis, and a transport to three sites of 40 rows."""
    from fedconvex.analysis import plan_analysis
    from fedconvex.remote import Site, in_process

    plan = plan_analysis({"x": [1.0, 2.0], "y": [0, 1], "who": ["a", "b"]}, "y", "who")
    x = np.linspace(0.0, 3.0, 40)
    tables = {
        name: {"x": x, "y": (np.arange(40) * k % 7 < 3).astype(int)} for k, name in ((2, "a"), (3, "b"), (5, "c"))
    }
    rows = [plan.rows(table, name) for name, table in tables.items()]
    return plan, in_process([Site(plan.method, plan.make, one) for one in rows])


def study_files() -> tuple[Any, Any, dict[str, str]]:
    """A study, the settings of one of its sites, and where their files are."""
    from fedconvex.study import read_site, read_study

    columns = '[target]\ncolumn = "y"\n[columns.x]\nkind = "number"\n'
    asked = '[ask]\nanalyse = { family = "gaussian" }\n' + columns
    where = '[coordinator]\naddress = "localhost:1"\n[sites]\nrequire = ["a", "b"]\n'
    place = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place, True)
    (place / "study.toml").write_text(f'[study]\nname = "s"\n{where}{asked}')
    (place / "site.toml").write_text('[site]\nname = "a"\ntable = "a.csv"\n')
    (place / "a.csv").write_text("x,y\n" + "\n".join(f"{i},{i * 7 % 11}.5" for i in range(40)) + "\n")
    files = {"study": str(place / "study.toml"), "site": str(place / "site.toml")}
    return read_study(files["study"]), read_site(files["site"]), files


@functools.cache
def own() -> dict[str, dict[str, Any]]:
    """Arguments of single entries, where the value that goes with the parameter's name does not fit."""
    from fedconvex import Federation, Problem, Squared
    from fedconvex.bench import Case
    from fedconvex.problems import SurvivalFederation
    from fedconvex.remote import Plain, Site
    from fedconvex.report import domain_scores
    from fedconvex.secure import Party, encode
    from fedconvex.tables import read_table
    from fedconvex.theorems.fedavg_convex import fedavg_convex
    from fedconvex.theorems.kit import SHADOW_AVERAGE, Bound, Tiny
    from fedconvex.verify import THEOREMS, checks

    w, keys = world(), {number: Party(number).public for number in (0, 1, 2)}
    signs, alpha = w["signs"], np.full(20, 0.1)
    two, three = np.array([0.2, 0.9]), {"v": np.array([0.2, 0.9, 0.1]), "q": np.array([0.3, 0.3, 0.4])}
    sets = {"domain_weights": two, "g": two, "v": two, "values": two, "Z": np.eye(2), "c": two}
    boosting = {"federation": w["sources"], "q": None, "loss": None}
    scores, files = {"mine": domain_scores(w["problem"], np.zeros(2))}, world_files()
    afl_run = w["agnostic"]
    table = {"a": w["X"][:, 0], "b": w["X"][:, 1], "y": w["y"], "who": w["who"]}
    frame, columns = read_table(table, "y", "who")
    make = functools.partial(Problem, loss=Squared(), l2=0.1)
    tiny = Case("tiny", "linear", {"n_clients": 3, "n_features": 2}, "squared")
    plan, hospitals = analysis_over_sites()
    study, site, study_paths = study_files()
    knobs = {"share": 0.25, "local_steps": 1, "batch_size": 0}
    parabola = Tiny(((1.0,),), (0.0,), (1,), (1.0,), 1, knobs)
    nothing = THEOREMS["fedavg-convex"]._replace(bound=lambda **_: Bound({"none": 0.0}, SHADOW_AVERAGE, "wrong"))
    return {
        "study.check_site": {"study": study, "site": site},
        "study.read_study": {"path": study_paths["study"]},
        "study.read_site": {"path": study_paths["site"]},
        "FedProx": {"step_size": 0.1},
        "Federation.from_clients": {"clients": [(w["X"][:9], w["y"][:9]), (w["X"][9:], w["y"][9:])]},
        "Federation.subset": {"clients": [0, 2]},
        "Problem.reweighted": {"domain_weights": np.full(3, 1 / 3)},
        "Problem.client_derivatives": {"clients": np.array([[0, 2]])},
        "problems.MovingTarget.client_derivatives": {"clients": np.array([[0, 2]])},
        "problems.SurvivalProblem": {
            "federation": SurvivalFederation.around(
                Federation.from_arrays(w["X"], 1.0 + np.arange(18.0), w["who"]), np.arange(18) % 2 == 0
            )
        },
        "problems.outcomes": {"time": 1.0 + np.arange(18.0), "event": np.arange(18) % 2 == 0},
        "analysis.analyse": {
            "data": {**table, "y": np.where(np.arange(18) % 3 > 0, "yes", "no")},
            "target": "y",
            "client": "who",
            "family": "logistic",
            "robust": "HC0",
            "offset": "b",
            "exposure": None,
            "weight": None,
            "reference": {},
        },
        "analysis.plan_analysis": {
            "book": {"x": [1.0, 2.0], "y": [0, 1], "who": ["a", "b"]},
            "target": "y",
            "client": "who",
            **dict.fromkeys(("family", "offset", "exposure", "weight", "sums")),
            "reference": {},
        },
        "analysis.analyse_sites": {
            "plan": plan,
            "roster": plan.roster(dict.fromkeys("abc", 40)),
            "transport": hospitals,
            "robust": "HC0",
            "require": 2,
        },
        "problems.SurvivalFederation": {
            "event": np.arange(18) % 2 == 0,
            "y": 1.0 + np.arange(18.0),
            "sample_weight": None,
        },
        "problems.MovingTarget.reweighted": {"domain_weights": np.full(3, 1 / 3)},
        "constants.ball_maximum": {"A": np.eye(2), "beta": two, "c": 0.5},
        "constants.noise_factor": {"n": 6, "replacement": False},
        "theory.moments.stage_suboptimality": {"stages": 2},
        "datasets.load": {"path": files["csv"], "target": "y"},
        **{name: {"data": files["csv"], "target": "y"} for name in ("tables.read_frame", "tables.read_table")},
        "tables.look": {"data": files["csv"], "client": None},
        "Federation.from_frame": {"data": table, "target": "y", "client": "who"},
        "compare": {
            "data": w["labelled"],
            "target": None,
            "client": None,
            "methods": ["pooled"],
            "folds": 2,
            "splits": 1,
        },
        "comparison.compare_owners": {"data": w["columns_of_owners"], "loss": w["squared"], "folds": 2},
        "preprocessing.fit_federated": {"columns": columns, "frames": [frame.take(range(9)), frame.take(range(9, 18))]},
        "datasets.federation_of_moments": {"S": np.eye(2)[None], "b": two[None], "c": np.ones(1)},
        "problems.InvariantProblem": {"federation": w["alone_clients"]},
        "VerticalFederation": {"rows": w["columns_of_owners"].rows, "ptr": np.array([0, 1, 2])},
        "VerticalFederation.from_blocks": {"blocks": [w["X"][:, :1], w["X"][:, 1:]], "owners": ["a", "b"]},
        "VerticalFederation.from_frames": {
            "tables": {"a": {"id": list("123"), "u": [1.5, 2.0, 4.5]}, "b": {"id": list("312"), "v": [0.5, 1.0, 2.5]}},
            "on": "id",
            "target": "v",
        },
        "theorems.hybrid.hybrid_dual_rate": {
            "moves": 2,
            "rows": 20,
            "share": 0.5,
            "length": 1.0,
            "l2": 0.1,
            "mu": 1.0,
            "start_gap": 1.0,
        },
        "theorems.hybrid.hybrid_tracked_rate": {
            "l2": 0.1,
            "smoothness": 1.0,
            "step_size": 0.2,
            "local_steps": 2,
            "start_gap": 1.0,
        },
        "HybridFederation": {"rows": w["labelled"], "ptr": np.array([0, 1, 2]), "holder": np.arange(6).reshape(3, 2)},
        "HybridFederation.from_blocks": {"blocks": {"a": (w["X"], list(range(18)), ["u", "v"], w["y"])}},
        "HybridFederation.from_frames": {
            "tables": {"a": {"id": list("123"), "u": [1.5, 2.0, 4.5], "v": [0.5, 1.0, 2.5]}},
            "on": "id",
            "target": "v",
        },
        "HybridFederation.from_grid": {"row_groups": 3, "column_groups": 2},
        "problems.HybridProblem": {"federation": w["blocks_of_owners"], "l2": 0.1},
        "problems.VerticalProblem": {"federation": w["columns_of_owners"], "l2": 0.1},
        "problems.GameProblem": {"federation": w["alone_clients"], "bound": 2.0, "predictor": "sum"},
        "methods.FLGame": {"buffer": 2},
        "problems.GaussianPosteriorProblem.posterior": {"state": w["bayes_posterior"].q},
        "problems.GaussianPosterior.predict": {"X": np.eye(2), "client": None},
        "theorems.vertical.vertical_certificate": {"gradients": np.array([1.0, 3.0]), "l2": 0.5},
        "theorems.vertical.vertical_growth": {"kappa": np.array([0.1, 2.5]), "theta": 1.0, "rounds": 300},
        "theorems.vertical.vertical_rate": {
            "l2": 0.25,
            "smoothness": np.ones(2),
            "theta": 0.5,
            "local_steps": 1,
            "rounds": 5,
            "start_gap": 1.0,
        },
        "theorems.virtual.virtual_certificate": {"gradient": 2.0, "tau": 0.5},
        "theorems.virtual.virtual_descent": {"before": 1.0, "unasked": 0},
        "theorems.virtual.virtual_growth": {"kappa": np.array([0.1, 2.5]), "rho": 1.0, "rounds": 300},
        "datasets.load_npz": {"path": files["npz"]},
        "bench.bench": {"solvers": [], "suite": [tiny], "against": ["fedsgd"], "targets": [0.1], "rounds": 3},
        "bench.Case": {"name": "tiny", "data": "linear"},
        "bench.Conditions": {"participation": 0.5},
        "bench.Network": {"latency": 0.1},
        "bench.Referee": {"case": tiny},
        "bench.named": {"name": "fedavg"},
        "bench.suite": {"name": "small"},
        "bench.book_cases": {"file": files["book"]},
        "bench.read_book": {"file": files["book"]},
        "bench.write_book": {"cases": [tiny], "file": files["new book"]},
        "bench.data_profile": {"costs": [[1.0, 2.0]], "budgets": [1.0]},
        "bench.performance_profile": {"costs": [[1.0, 2.0]], "ratios": [1.0, 2.0]},
        "sweeps.heat_map": {"x": "step_size", "y": "local_steps"},
        "sweeps.read_sweep": {"path": files["sweep"]},
        "datasets.load_svmlight": {"path": files["svm"]},
        "datasets.load_table": {"path": files["csv"], "target": "y"},
        "datasets.partition_dirichlet": {"y": signs},
        "datasets.share": {"federation": w["labelled"]},
        "methods.KLBall": {"center": np.array([0.5, 0.5])},
        **{f"methods.{name}": {"compressor": "RandK(1)"} for name in COMPRESSED},
        "methods.FedNL": {"compressor": "RankR(1)"},
        **{
            f"methods.{name}.{method}": sets
            for name in ("KLBall", "Point", "Polytope", "Simplex")
            for method in ("project", "entropic", "support", "minimise", "contains")
        },
        "models.LinearModel": {
            "coef": np.ones(2),
            "intercept": np.array(0.0),
            "classes": None,
            "feature_names": ("a", "b"),
        },
        "models.LinearModel.from_standardised": {
            "w": np.ones(3),
            "center": np.zeros(2),
            "scale": np.ones(2),
            "classes": None,
            "feature_names": ("a", "b"),
        },
        "models.LinearModel.load": {"folder": files["model"]},
        "models.LinearModel.save": {"folder": files["folder"]},
        **{
            f"problems.Covariance.{name}": {"epsilon": 0.1, "Z": np.ones((3, 2)), "V": np.ones((3, 2))}
            for name in ("mbar_of", "omega_of", "proximal", "conjugate")
        },
        "problems.Dictionary.from_classifiers": {
            "federation": w["sources"],
            "classifiers": [[w["stump"]], [w["stump"]]],
        },
        "problems.Dictionary.stumps": {"federation": w["sources"]},
        "problems.Dictionary.trees": {"federation": w["sources"]},
        "problems.EnsembleProblem": boosting,
        **{
            f"problems.EnsembleProblem.{name}": {"w": alpha, "alpha": alpha, "state": alpha}
            for name in (
                "value",
                "gradient",
                "domain_values",
                "domain_gradients",
                "domain_errors",
                "margins",
                "certificate",
                "ensemble",
            )
        },
        "problems.StumpProblem": boosting,
        "problems.StumpProblem.certificate": {"state": w["searched"]},
        "problems.StumpProblem.ensemble": {"state": w["searched"]},
        "problems.MultiTaskProblem.certificate": {"V": np.zeros((3, 2)), "conjugates": np.zeros(3)},
        "problems.MultiTaskProblem.dual_value": {"alpha": np.zeros(18)},
        "problems.MultiTaskProblem": {"federation": w["labelled"], "loss": w["logistic_loss"]},
        **{f"problems.MultiTaskProblem.{name}": {"X": w["X"], "tasks": w["who"]} for name in ("scores", "predict")},
        "problems.OneVsRest": {"federation": w["softmax"].federation, "loss": w["logistic_loss"]},
        "problems.OneVsRest.together": {"fits": [p.solve() for p in w["one_vs_rest"].problems]},
        **{
            f"problems.OneVsRest.{name}": {"W": np.zeros((3, 2, 2)), "X": w["X"], "tasks": w["who"]}
            for name in ("scores", "predict")
        },
        "problems.QEnsemble": {"members": [w["stump"]], "sources": [0], "alpha": [1.0], "q": None},
        "problems.EnsembleModel": {"ensemble": w["q_ensemble"], "classes": (0, 1), "feature_names": ("a", "b")},
        "problems.EnsembleModel.load": {"folder": files["boosted"]},
        "problems.EnsembleModel.save": {"folder": files["folder"]},
        "problems.QEnsemble.load": {"path": files["ensemble"]},
        "problems.QEnsemble.save": {"path": files["new"]},
        **{
            f"problems.QEnsemble.{name}": {"y": signs, "q": None}
            for name in ("predict", "decision_function", "staged_decision_function", "margins", "errors")
        },
        "conformance.conform": {"train": descent, "family": "fedsgd"},
        "conformance.assert_conforms": {"train": descent, "family": "fedsgd"},
        "conformance.conform_estimate": {"estimate": lambda clients: np.zeros(clients[0][0].shape[1])},
        "problems.as_q": {"who": "fuzz"},
        "problems.calibration_error": {"Q": np.full((18, 2), 0.5)},
        "remote.Site": {"method": w["fedsgd"], "make": make, "federation": w["real"].subset([0])},
        "remote.Exchange": {"address": ("127.0.0.1", 0), "credentials": Plain(bytes(32)), "sites": 1, "deadline": 0.1},
        "remote.serve": {
            "site": Site(w["fedsgd"], make, w["real"].subset([0])),
            "address": ("127.0.0.1", 1),
            "credentials": Plain(bytes(32)).site(0),
            "number": 0,
            "wait": 0.0,
        },
        "remote.in_process": {"sites": [Site(w["fedsgd"], make, w["real"].subset([k])) for k in range(3)]},
        "report.bayesian_t_test": {"differences": [0.1, 0.2, 0.4], "correlation": 0.1, "rope": 0.01},
        "report.cluster": {"data": w["real"], "p": 2},
        "report.domain_terms": {"losses": [[0.1, 0.2], [0.3, 0.1]], "sizes": [5, 6], "domain": [0, 1]},
        "report.domain_trade_off": {"models": np.zeros((2, 2)), "w": None, "largest": 10.0},
        "report.sharpness": {"radius": 0.5},
        "report.text_scores": {"problem": w["softmax"], "model": np.zeros((2, 2))},
        "report.domain_weights_plot": {"results": {"mine": afl_run}},
        "report.fairness_plot": {"scores": scores},
        "report.fairness_table": {"scores": scores},
        "report.format_table": {"headers": ["a", "b"], "rows": [[1, "x"]]},
        "report.heterogeneity_plot": {"traces": {"mine": w["drifting"]}},
        "report.heterogeneity_table": {"trace": w["drifting"]},
        **{f"report.{name}": {"path": files["new"]} for name in ("write_trace",)},
        "secure.Party.mask": {"everybody": keys, "vector": np.ones(3, dtype=np.uint64)},
        "secure.agreement": {"everybody": keys},
        "secure.decode": {"total": encode(np.ones(3), 20, 3)},
        "secure.encode": {"x": np.ones(3), "parties": 3},
        "secure.sum_of": {
            "masked": {
                0: Party(0).mask(np.ones(3, np.uint64), keys, b"r"),
                1: np.ones(3, np.uint64),
                2: np.ones(3, np.uint64),
            },
            "everybody": keys,
        },
        **{
            f"simplex.{name}": three
            for name in (
                "divergence_ball_residual",
                "kl_divergence_ball_residual",
                "kl_polytope_residual",
                "kl_simplex_residual",
                "project_divergence_ball",
                "project_kl_capped_simplex",
                "project_kl_divergence_ball",
                "project_kl_polytope",
                "project_kl_simplex",
            )
        },
        "verify.tightest": {"budget": 2, "theorem": "fedavg-convex"},
        "verify.exponents": {"theorem": "fedprox-bias"},
        "verify.tightness_map": {"theorem": "fedavg-refined", "shares": [1.0], "counts": [1]},
        "verify.power": {"theorem": "fedprox-bias"},
        "verify.own_theorem": {"bound": fedavg_convex},
        "verify.shrunk": {"tiny": parabola, "theorem": nothing, "most": 2},
        "verify.printed": {"tiny": parabola, "theorem": "fedavg-convex"},
        "verify.verify": {"theorem": "fedavg-refined"},
        "verify.curve": {"theorem": "fedavg-at-optimum", "rounds": [1, 2]},
        "verify.verify_grid": {
            "theorem": "fedavg-refined",
            "grid": {"rounds": [2, 3]},
            "setting": lambda rounds: (w["problem"], w["fedavg"], rounds),
        },
        "verify.verify_suite": {"suite": checks(["fedavg-refined"])[:1]},
        "verify.own_instance": {"name": "mine"},
        "models.write_file": {"path": Path(files["new"]), "content": b"text"},
        "report.convergence_plot": {"path": None},
        **of_theory(),
    }


def of_theory() -> dict[str, dict[str, Any]]:
    """The same of the files of `theory` and `theorems`."""
    from fedconvex.theory.worst_case import Problems, best_step, fedavg, gradient_descent_round, worst_case

    w, K, two = world(), 3, np.array([0.2, 0.3])
    work, alone = {"step_size": 0.001, "local_steps": 2}, w["alone"]
    small = {"method": fedavg(0.1, 1, 1), "problems": Problems()}
    scaffold = {"step_size": 1e-4, "local_steps": 2}
    families = {
        "agnostic_rate": {"constants": w["saddle"], "method": w["afl"]},
        "dynamic_msd": {"constants": w["tracking"]},
        "dynamic_noise": {"constants": w["tracking"]},
        "dynamic_ball": {"problem": w["problem"], "longest": 0.1},
        "dynamic_small_step": {"constants": w["tracking"], "problem": w["problem"], "square": np.eye(2)},
        "mocha": {"constants": w["dual"], "start": 1.0},
        "mocha_sigma": {"constants": w["dual"]},
        "fedavg_limit": {"clients": w["spread"], **work},
        "fedavg_refined": work,
        "scaffold": {"constants": w["equal"], **scaffold},
        "agnostic_floats": {"clients": 3, "domains": 2},
        "agnostic_softmax": {"domains": 2},
        "agnostic_generalisation": {"sizes": two * 100, "empirical": two},
        "boosting_margins": {"sizes": two * 100, "empirical": two},
    }
    found = {f"theorems.{file}": mine for file, mine in families.items()}
    return found | {
        "theorems.agnostic_generalisation.vertex_bound": {"empirical": two, "complexity": two, "sizes": [40, 50]},
        "theorems.agnostic_generalisation.excess_by_vertices": {"complexity": two, "sizes": [40, 50]},
        "theorems.agnostic_generalisation.excess_direct": {"mean": two, "spread": [0.02, 0.03]},
        "theorems.boosting_margins.margin_vertex_bound": {"empirical": two, "complexity": two, "sizes": [40, 50]},
        "theorems.agnostic_generalisation.cover_bound": {},
        "theorems.boosting_margins.margin_bound": {},
        "theorems.dynamic_msd.optimal_step": {"constants": w["tracking"], "batch_size": 2, "participation": 2},
        **{
            f"theorems.fedprox.{name}": {"proximal_mu": 100.0, "participants": 3}
            for name in ("fedprox", "fedprox_sharp")
        },
        "theorems.boosting.boosting_progress": {"start": 1.0},
        "theorems.dynamic_ball.followed": {"constants": w["tracking"], "moves": two, "noise": 0.1, "labels": two},
        "theorems.dynamic_noise.incremental_noise_at": {
            "constants": w["tracking"],
            "moments": (np.ones(K), np.ones(K)),
        },
        "theorems.games.game_buffer": {"players": 2, "buffer": 3, "rounds": 4, "start": 1.0},
        "theorems.games.game_certificate": {"gradients": np.eye(2), "strategies": np.eye(2), "bound": 2.0},
        "theorems.games.game_rounds": {"coefficients": np.eye(2), "bound": 2.0},
        "theorems.irmv1.irmv1_certificate": {"gradient": two, "multiplier": np.eye(2)},
        "theorems.irmv1.irmv1_dual": {"value": 1.0, "least": 0.5},
        "theorems.fedprox.few_draws": {"clients": 3},
        "theorems.svrg.svrg": {"step_size": 0.01, "inner_steps": 4000},
        "theorems.svrg.svrg_factor": {"inner_steps": 400},
        "theorems.agnostic_clients.client_agnostic": {"shares": np.full((2, 2), 0.5), "value": 1.0},
        "theorems.fedavg_limit.fedavg_constant_steps": {"pull": 1.0, "remainder": 0.1, "step_size": 0.001},
        "theorems.boosting_margins.empirical_margin_loss": {"loss": 0.1, "total": 4.0},
        "theorems.fedmultiboost.fedmultiboost": {"edges": np.full((3, 2), 0.2), "steps": np.full(3, 0.1)},
        "theorems.fedmultiboost.fedmultiboost_weak": {"gamma": 0.1},
        "theorems.clustered_rank.clustered_rank": {"slope": 1.0, "clients": 3, "size": 5},
        "theorems.profile_enclosure.profile_enclosure": {
            "point": 1.0,
            "over": 0.0,
            "theta": 1.0,
            "decrement": 0.1,
            "kappa": 1.0,
        },
        "theorems.weighted_estimates.weighted_estimates": {"moves": [0.1, 0.2], "lengths": [1.0, 2.0], "slope": 0.0},
        "theorems.agnostic_step.agnostic_step": {"least": 1.0, "most": 4.0, "spread": 1.0, "gradients": 1.0},
        "theorems.joint_mocha.joint_mocha": {"primal": 1.0, "dual": 2.0, "eta": 0.5},
        "theorems.radfed_limit.radfed_limit": {"bias": 0.1},
        "theorems.accelerated.accelerated_strongly_convex": {"mu": 0.1, "step_size": 0.01},
        "theorems.diana.diana": {"omega": 1.0, "step_size": 0.01},
        "theorems.ef21.ef21": {"step_size": 0.01},
        "theorems.error_feedback.ef21_convex": {"step_size": 0.01, "start_gradient": 1.0},
        "theorems.error_feedback.error_feedback": {"step_size": 0.01, "shared": 1.0},
        "theorems.fedlin.fedlin": {"stages": 3},
        "theorems.approximate_newton.approximate_newton": {"radius": 0.5, "stages": 3},
        "theorems.approximate_newton.stage_radius": {"H": np.stack([np.eye(2), 2.0 * np.eye(2)]), "p": np.full(2, 0.5)},
        "theorems.newton_line_search.newton_line_search": {"low": 1.0, "high": 2.0, "stages": 3},
        "theorems.fednl.fednl_local": {"mu": 1e-3, "delta": 0.5, "lipschitz": 0.1, "start_error": 0.1, "rounds": 3},
        "theorems.fednl_squares.fednl_squares": {"mu": 1e-3, "delta": 0.5, "start_error": 0.1, "rounds": 3},
        "theorems.sdane.sdane": {"proximal": 1.0, "mu": 0.0, "dissimilarity": 1.0, "stages": 3},
        "theorems.sdane.accelerated_sdane": {"proximal": 1.0, "mu": 0.0, "dissimilarity": 1.0, "stages": 3},
        "theorems.sdane.accelerated_sdane_growth": {"proximal": 1.0, "mu": 0.0, "stages": 3},
        "theorems.dane_leader.dane_leader": {"proximal": 1.0, "dissimilarity": 1.0, "stages": 3},
        "theorems.fednova_limit.fednova_limit": {"bias": 0.1, "rate": 1e-9},
        "theorems.scaffnew.scaffnew": {"probability": 0.5},
        "theorems.scaffnew.scaffnew_factor": {"probability": 0.5},
        "theorems.scaffnew.scaffnew_identity": {"models": 1.0, "controls": 1.0, "probability": 0.5},
        **{
            f"theorems.li_lemmas.{name}": {"scheme": "proportional", "participants": 2}
            for name in ("li_sampling", "li_sampling_sharp")
        },
        "theorems.local_lemmas.progress_lemma": {"distances": [1.0, 0.5], "drift": [0.0, 0.1], "noise2": 0.1},
        "theorems.weight_divergence.divergence": {"w_federated": np.zeros(2), "w_centralised": np.ones(2)},
        "theorems.weight_divergence.divergence_convex": {"gaps": np.ones((1, K)), "local_steps": 2},
        "theorems.weight_divergence.divergence_zhao": {
            "shares": np.full((K, 2), 0.5),
            "lipschitz": np.ones(2),
            "gradient_norms": np.ones(1),
            "local_steps": 2,
        },
        "theory.agnostic_example.hull_distance": {"target": np.array([0.4, 0.6]), "domains": np.eye(2)},
        "theory.StackedMoments": {"method": w["scaffold"]},
        "theory.boosting.edges": {"problem": w["ensemble"], "alpha": np.full(20, 0.1)},
        "theory.boosting.margin_losses": {"margins": np.linspace(-1, 1, 18)},
        "theory.complexity.rademacher": {"signs": 16},
        "theory.radfed.RADFedMoments": {"models": 2},
        "theory.round_maps.sam_cycle": {"problem": alone, "rho": 0.1},
        "theory.round_maps.scaffold_split": {"z": np.zeros(8)},
        "theory.saddle_constants.agnostic_best_steps": {"c": w["saddle"]},
        "theory.separability.dual_constants": {"problem": w["tasks"], "sigma": 2.0},
        "theory.separability.separability": {"problem": w["tasks"], "alpha": np.ones(18)},
        "theory.separability.worst_duals": {"problem": w["tasks"], "steps": 3},
        "theory.worst_case.programme_size": small,
        "report.best_step_plot": {"best": best_step(lambda eta: fedavg(eta, 1, 1), Problems(), steps=[0.5, 1.0])},
        "theory.worst_case.best_step": small | {"method": lambda eta: fedavg(eta, 1, 1), "steps": [0.5, 1.0]},
        "theory.worst_case.contraction": {"round": gradient_descent_round(0.5), "problems": Problems(mu=0.5)},
        "theory.worst_case.accelerated": {"mu": 0.1},
        "theory.worst_case.heavy_ball": {"momentum": 0.5},
        "theory.worst_case.fitted_exponent": {"worst": {1: 2.0, 2: 1.0}},
        "theory.worst_case.terms": small,
        "theory.worst_case.uniform_bracket": small,
        "theory.worst_case.ratio_table": {"bounds": {"mine": w["bound"]}, "worst": worst_case(**small)},
        "theory.worst_case.worst_case": small,
    }


@functools.cache
def world_files() -> dict[str, str]:
    """Small files of every format in a folder that ends with the process."""
    folder = tempfile.mkdtemp(prefix="fedconvex-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    w, at = world(), {name: os.path.join(folder, file) for name, file in FILES.items()}
    np.savetxt(at["csv"], np.column_stack([w["X"], w["y"]]), delimiter=",", header="a,b,y", comments="")
    np.savez(at["npz"], X=w["X"], y=w["y"], clients=w["who"])
    Path(at["svm"]).write_text("1 1:0.5 2:1\n-1 2:0.25\n")
    os.mkdir(at["model"])
    os.mkdir(at["folder"])
    w["linear_model"].save(at["model"])
    w["ensemble_model"].save(at["boosted"])
    w["q_ensemble"].save(at["ensemble"])
    w["swept"].save(at["sweep"])
    from fedconvex.bench import Case, write_book

    write_book([Case("tiny", "linear", {"n_clients": 2, "n_features": 2}, "squared")], at["book"])
    return at


FILES = {
    "csv": "a.csv",
    "npz": "a.npz",
    "svm": "a.svm",
    "boosted": "boosted",
    "model": "model",
    "ensemble": "q.npz",
    "new": "new",
    "folder": "folder",
    "sweep": "sweep.npz",
    "book": "book.npz",
    "new book": "new-book.npz",
}


def public_names() -> dict[str, Any]:
    """Callables of the public modules under the name that is nearest to the top."""
    found: dict[int, tuple[str, Any]] = {}
    modules = docs_script("api").public_modules()
    for inner, module in modules.items():
        for name in module.__all__ if not inner.startswith(tuple(INTERNAL)) else ():
            thing = getattr(module, name)
            error = isinstance(thing, type) and issubclass(thing, Exception)
            if callable(thing) and not error and getattr(thing, "__module__", "").startswith("fedconvex"):
                found.setdefault(id(thing), (f"{inner}.{name}".removeprefix("."), thing))
    return {name: thing for name, thing in found.values() if name.rpartition(".")[2] not in RECORDS}


def calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, classes and the methods of objects, by name."""
    for name, thing in public_names().items():
        yield name, thing
        if name in OBJECTS:
            instance = world()[OBJECTS[name]]
            for method, f in inspect.getmembers(type(instance), callable):
                own_method = getattr(f, "__module__", "") or ""
                if own_method.startswith("fedconvex") and method not in CALLED_BY_THE_DRIVER and method[0] != "_":
                    yield f"{name}.{method}", getattr(instance, method)


@functools.cache
def entries() -> dict[str, Entry]:
    """Every entry point with a call that works."""
    found, own_values, methods = {}, own(), declared()
    for name, call in calls():
        mine = own_values.get(name, own_values.get(name.rpartition(".")[0], {}) if name.startswith("theorems.") else {})
        mine = mine or (fields_of(methods, call) if call in {type(method) for method in methods.values()} else {})
        arguments, parameters = {}, {}
        given = inspect.signature(call).parameters
        arguments |= {key: mine.get(key, values().get(key)) for key in REST.get(name, ())}
        parameters |= arguments
        for p in given.values():
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                continue
            good = mine.get(p.name, values().get(p.name, p.default))
            parameters[p.name] = good if p.default in (p.empty, None) or p.name in mine else p.default
            if p.default is p.empty or p.name in mine:
                arguments[p.name] = good
        found[name] = Entry(call, arguments, parameters)
    return found
