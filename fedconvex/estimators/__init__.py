"""scikit-learn estimators: one model for all clients, with standard errors too, for the worst domain, ensembles."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.estimators.agnostic import AgnosticClassifier, AgnosticRegressor
    from fedconvex.estimators.glm import FederatedGLM
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
    "FederatedGLM",
    "FederatedLinearRegression",
    "FederatedLogisticRegression",
    "FederatedMultiTaskClassifier",
    "FederatedMultiTaskRegressor",
    "FederatedSVC",
    "MultiSourceBoostClassifier",
    "VerticalLogisticRegression",
    "client_scorer",
]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
