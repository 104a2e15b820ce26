"""What is minimised: problems, with their values and gradients."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.families.boosting.dictionaries import Dictionary
    from fedconvex.families.boosting.ensemble import EnsembleProblem
    from fedconvex.families.boosting.ensemble_model import EnsembleModel
    from fedconvex.families.boosting.predictors import QEnsemble, Scores, Tree
    from fedconvex.families.boosting.problem import BoostingProblem, Logistic2, Pick
    from fedconvex.families.boosting.source_probabilities import MaximumEntropyQ, as_q, calibration_error, fit_q
    from fedconvex.families.boosting.stump_problem import StumpProblem
    from fedconvex.families.boosting.stumps import Binned, Presorted, Stump
    from fedconvex.families.multitask.covariance import Covariance
    from fedconvex.families.multitask.one_vs_rest import OneVsRest
    from fedconvex.families.multitask.problem import MultiTaskProblem
    from fedconvex.families.multitask.relations import Clustered, Independent, MeanRegularised, Pooled, Precision
    from fedconvex.families.survival.problem import SurvivalProblem
    from fedconvex.families.survival.survival_rows import SurvivalFederation, outcomes
    from fedconvex.problems.empirical_risk import Problem
    from fedconvex.problems.game import GameProblem
    from fedconvex.problems.gaussian_posterior import ExactPosterior, GaussianPosterior, Predictive
    from fedconvex.problems.hybrid import HybridProblem
    from fedconvex.problems.invariant import InvariantProblem, InvariantSubset
    from fedconvex.problems.moving import MovingTarget
    from fedconvex.problems.posterior import GaussianPosteriorProblem, PosteriorSolution
    from fedconvex.problems.protocol import FederatedProblem, Measure, ServerProblem
    from fedconvex.problems.vertical import VerticalProblem
    from fedconvex.solvers.posteriors.expected_losses import GaussHermite, JaakkolaJordan

__all__ = [
    "Binned",
    "BoostingProblem",
    "Clustered",
    "Covariance",
    "Dictionary",
    "EnsembleModel",
    "EnsembleProblem",
    "ExactPosterior",
    "FederatedProblem",
    "GameProblem",
    "GaussHermite",
    "GaussianPosterior",
    "GaussianPosteriorProblem",
    "HybridProblem",
    "Independent",
    "InvariantProblem",
    "InvariantSubset",
    "JaakkolaJordan",
    "Logistic2",
    "MaximumEntropyQ",
    "MeanRegularised",
    "Measure",
    "MovingTarget",
    "MultiTaskProblem",
    "OneVsRest",
    "Pick",
    "Pooled",
    "PosteriorSolution",
    "Precision",
    "Predictive",
    "Presorted",
    "Problem",
    "QEnsemble",
    "Scores",
    "ServerProblem",
    "Stump",
    "StumpProblem",
    "SurvivalFederation",
    "SurvivalProblem",
    "Tree",
    "VerticalProblem",
    "as_q",
    "calibration_error",
    "fit_q",
    "outcomes",
]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
