"""scikit-learn estimators: one model for all clients, for the worst domain, a model per client, boosted ensembles."""

from fedconvex.estimators.agnostic import AgnosticClassifier, AgnosticRegressor
from fedconvex.estimators.linear import FederatedLinearRegression, FederatedLogisticRegression, FederatedSVC
from fedconvex.estimators.scoring import client_scorer
from fedconvex.estimators.vertical import VerticalLogisticRegression
from fedconvex.families.boosting.estimator import MultiSourceBoostClassifier
from fedconvex.families.multitask.estimator import FederatedMultiTaskClassifier, FederatedMultiTaskRegressor

__all__ = [
    "AgnosticClassifier",
    "AgnosticRegressor",
    "FederatedLinearRegression",
    "FederatedLogisticRegression",
    "FederatedMultiTaskClassifier",
    "FederatedMultiTaskRegressor",
    "FederatedSVC",
    "MultiSourceBoostClassifier",
    "VerticalLogisticRegression",
    "client_scorer",
]
