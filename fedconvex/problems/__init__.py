"""What is minimised: problems, with their values and gradients."""

from fedconvex.problems.empirical_risk import Problem
from fedconvex.problems.ensemble import BoostingProblem, Dictionary, EnsembleProblem, Logistic2, Pick, StumpProblem
from fedconvex.problems.moving import MovingTarget
from fedconvex.problems.multitask import MultiTaskProblem
from fedconvex.problems.protocol import FederatedProblem, Measure, ServerProblem
from fedconvex.problems.q import MaximumEntropyQ, QEnsemble, Scores, Tree, as_q, calibration_error, fit_q
from fedconvex.problems.relations import Clustered, Covariance, Independent, MeanRegularised, Pooled, Precision
from fedconvex.problems.stumps import Binned, Presorted, Stump

__all__ = [
    "Binned",
    "BoostingProblem",
    "Clustered",
    "Covariance",
    "Dictionary",
    "EnsembleProblem",
    "FederatedProblem",
    "Independent",
    "Logistic2",
    "MaximumEntropyQ",
    "MeanRegularised",
    "Measure",
    "MovingTarget",
    "MultiTaskProblem",
    "Pick",
    "Pooled",
    "Precision",
    "Presorted",
    "Problem",
    "QEnsemble",
    "Scores",
    "ServerProblem",
    "Stump",
    "StumpProblem",
    "Tree",
    "as_q",
    "calibration_error",
    "fit_q",
]
