"""Convex federated optimisation, solved exactly and certified.

Names are loaded when they are first used, so that ``import fedconvex`` stays fast.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex import datasets as datasets
    from fedconvex.comparison import Comparison as Comparison
    from fedconvex.comparison import compare as compare
    from fedconvex.constants import Constants as Constants
    from fedconvex.driver import DivergenceWarning as DivergenceWarning
    from fedconvex.driver import Result as Result
    from fedconvex.driver import Status as Status
    from fedconvex.driver import iterate as iterate
    from fedconvex.driver import run as run
    from fedconvex.federation import Federation as Federation
    from fedconvex.hybrid_federation import HybridFederation as HybridFederation
    from fedconvex.losses import Exponential as Exponential
    from fedconvex.losses import Gamma as Gamma
    from fedconvex.losses import Hinge as Hinge
    from fedconvex.losses import Logistic as Logistic
    from fedconvex.losses import NegativeBinomial as NegativeBinomial
    from fedconvex.losses import Poisson as Poisson
    from fedconvex.losses import SmoothedHinge as SmoothedHinge
    from fedconvex.losses import Softmax as Softmax
    from fedconvex.losses import Squared as Squared
    from fedconvex.methods import SCAFFOLD as SCAFFOLD
    from fedconvex.methods import SGD as SGD
    from fedconvex.methods import FedAvg as FedAvg
    from fedconvex.methods import FederatedNewton as FederatedNewton
    from fedconvex.methods import FedProx as FedProx
    from fedconvex.methods import FedSGD as FedSGD
    from fedconvex.methods import GradientDescent as GradientDescent
    from fedconvex.problems import Problem as Problem
    from fedconvex.solvers import Solution as Solution
    from fedconvex.sweeps import sweep as sweep
    from fedconvex.vertical_federation import VerticalFederation as VerticalFederation

__version__ = "1.0.0"

_HOME = {
    "fedconvex.comparison": ["Comparison", "compare"],
    "fedconvex.federation": ["Federation"],
    "fedconvex.hybrid_federation": ["HybridFederation"],
    "fedconvex.vertical_federation": ["VerticalFederation"],
    "fedconvex.losses": [
        *("Exponential", "Gamma", "Hinge", "Logistic", "NegativeBinomial", "Poisson", "SmoothedHinge", "Softmax"),
        "Squared",
    ],
    "fedconvex.constants": ["Constants"],
    "fedconvex.problems": ["Problem"],
    "fedconvex.solvers": ["Solution"],
    "fedconvex.sweeps": ["sweep"],
    "fedconvex.methods": ["SCAFFOLD", "SGD", "FedAvg", "FedProx", "FedSGD", "FederatedNewton", "GradientDescent"],
    "fedconvex.driver": ["DivergenceWarning", "Result", "Status", "iterate", "run"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["__version__", "datasets", *sorted(_MODULE_OF)]

sys.meta_path.append(_lazy.Moved(lambda: import_module("fedconvex._moved").moved()))


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value
    if not name.startswith("_"):
        if name in _lazy.modules_in(__path__):
            return import_module(f"fedconvex.{name}")
        where = _lazy.where(name, __path__[0])
        raise AttributeError(f"module 'fedconvex' has no attribute {name!r}{where}")
    raise AttributeError(f"module 'fedconvex' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_lazy.listed(__path__[0])} - {"cli", "families", "kernels"})
