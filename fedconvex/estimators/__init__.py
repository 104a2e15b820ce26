"""scikit-learn estimators: one model for all clients, Cox's, for the worst domain, one per client, ensembles."""

from fedconvex.estimators.agnostic import AgnosticClassifier, AgnosticRegressor
from fedconvex.estimators.linear import FederatedLinearRegression, FederatedLogisticRegression, FederatedSVC
from fedconvex.estimators.scoring import client_scorer
from fedconvex.estimators.vertical import VerticalLogisticRegression
from fedconvex.families.boosting.estimator import MultiSourceBoostClassifier
from fedconvex.families.multitask.estimator import FederatedMultiTaskClassifier, FederatedMultiTaskRegressor
from fedconvex.families.survival.estimator import FederatedCox

__all__ = [
    "AgnosticClassifier",
    "AgnosticRegressor",
    "FederatedCox",
    "FederatedLinearRegression",
    "FederatedLogisticRegression",
    "FederatedMultiTaskClassifier",
    "FederatedMultiTaskRegressor",
    "FederatedSVC",
    "MultiSourceBoostClassifier",
    "VerticalLogisticRegression",
    "client_scorer",
]
