"""scikit-learn faces."""

from fedconvex.estimators.boosting import MultiSourceBoostClassifier
from fedconvex.estimators.multitask import FederatedMultiTaskClassifier, FederatedMultiTaskRegressor

__all__ = ["FederatedMultiTaskClassifier", "FederatedMultiTaskRegressor", "MultiSourceBoostClassifier"]
