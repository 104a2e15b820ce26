"""Losses of linear prediction, with their slopes, curvatures, conjugates and exact dual coordinate steps.

A loss is a NamedTuple of its parameters, and its methods are the mathematics: the same source runs as plain Python and,
through ``kernels.dispatch``, inside compiled kernels. For one output a loss is a function l(z, y) of the
score z = x'w and the label y; for `Softmax` the score is a vector of length C.

Dual conventions
----------------
``conjugate(a, y)`` is l*(a) = sup_z a z - l(z, y), infinite outside its domain. Dual variables follow
alpha = -l'(z), so duals enter as l*(-alpha). ``dual_step(alpha, z, q, y)`` returns the exact minimiser delta of

    l*(-(alpha + delta)) + z delta + (q/2) delta^2,

one step of dual coordinate ascent with score z and curvature q >= 0 (Shalev-Shwartz and Zhang 2013, Section 6; Smith et
al. 2017 for the federated form).

A loss of your own
------------------
Any NamedTuple with a convex ``value`` and its ``slope``, written in the part of Python that Numba compiles, works
wherever these do. What else it declares says what can be done with it: ``curvature`` lets `Problem.solve` find the
exact minimum, ``task`` says what predictions are, and so on; `fedconvex.loss_traits` lists all with their defaults.
Functions that its methods call need ``numba.njit``. The command line takes it by import path, ``--loss module:Class``.

>>> from typing import NamedTuple
>>> from fedconvex.loss_traits import declares, traits
>>> @declares(task="regression", lower_bound=0.0, smoothness=1.0)
... class Huber(NamedTuple):
...     width: float = 1.0
...     def value(self, z, y):
...         r = abs(z - y)
...         return 0.5 * r * r if r <= self.width else self.width * (r - 0.5 * self.width)
...     def slope(self, z, y):
...         return min(max(z - y, -self.width), self.width)
...     def curvature(self, z, y):
...         return 1.0 if abs(z - y) <= self.width else 0.0
>>> traits(Huber()).curved, traits(Huber()).quadratic, traits(Huber()).lipschitz
(True, False, inf)
"""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.losses.exponential import Exponential
    from fedconvex.losses.gamma import Gamma
    from fedconvex.losses.hinge import Hinge, SmoothedHinge
    from fedconvex.losses.logistic import Logistic
    from fedconvex.losses.negativebinomial import NegativeBinomial
    from fedconvex.losses.poisson import Poisson
    from fedconvex.losses.softmax import Softmax
    from fedconvex.losses.squared import Squared

__all__ = [
    "Exponential",
    "Gamma",
    "Hinge",
    "Logistic",
    "NegativeBinomial",
    "Poisson",
    "SmoothedHinge",
    "Softmax",
    "Squared",
]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)
