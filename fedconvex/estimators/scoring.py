"""Scorers that hand the client of every row on to `predict`, for models of a client's own."""

from __future__ import annotations

import inspect
from functools import partial, update_wrapper
from typing import Any, ClassVar

from sklearn.metrics import get_scorer
from sklearn.utils.metadata_routing import MetadataRequest


def client_scorer(scoring: Any) -> ClientScorer:
    """Return scikit-learn's scorer of that name, asking every client's own model.

    Parameters
    ----------
    scoring : str or scorer
        "roc_auc", "neg_log_loss", ..., or what `sklearn.metrics.make_scorer` makes.

    Raises
    ------
    ValueError
        If scikit-learn knows no such scorer.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.estimators import FederatedMultiTaskClassifier, client_scorer
    >>> X, clients = np.array([[1.0], [-1.0], [1.0], [-1.0]]), ["a", "a", "b", "b"]
    >>> model = FederatedMultiTaskClassifier().fit(X, [1, 0, 0, 1], clients=clients)
    >>> client_scorer("roc_auc")(model, X, [1, 0, 0, 1], clients=clients)
    1.0
    """
    return ClientScorer(scoring)


class ClientScorer:
    """A scorer with the metadata ``clients``: see `client_scorer`."""

    def __init__(self, scoring: Any) -> None:
        self.scoring = scoring
        self.scorer = get_scorer(scoring)

    def __call__(self, estimator: Any, X: Any, y: Any, clients: Any = None, **metadata: Any) -> float:
        """Return the score of the rows, each predicted by its client's model."""
        return float(self.scorer(_Bound(estimator, clients), X, y, **metadata))

    def get_metadata_routing(self) -> Any:
        """Return that clients are asked for, as scikit-learn's routing wants to know."""
        request = MetadataRequest(owner=self)
        request.score.add_request(param="clients", alias=True)
        return request

    def __repr__(self) -> str:
        return f"client_scorer({self.scoring!r})"


class _Bound:
    """An estimator whose predictions are of given clients."""

    names: ClassVar = ("predict", "predict_proba", "predict_log_proba", "decision_function")

    def __init__(self, estimator: Any, clients: Any) -> None:
        self._estimator, self._clients = estimator, clients

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._estimator, name)
        if name not in self.names or not _takes_clients(found):
            return found
        asked = partial(found, clients=self._clients)
        return update_wrapper(asked, found)  # scorers read its name

    def __sklearn_tags__(self) -> Any:
        return self._estimator.__sklearn_tags__()


def _takes_clients(method: Any) -> bool:
    kinds = inspect.signature(method).parameters.values()
    return any(p.name == "clients" or p.kind is p.VAR_KEYWORD for p in kinds)
