"""Exact worst cases of federated methods over classes of problems, by performance estimation.

Setting
-------
M clients with weights p_i, F = sum_i p_i F_i, x* minimises F, ‖x^0 - x*‖ <= D. A method asks for gradients and exact
proximal points of the F_i, for samples of the clients, and combines points linearly. What it returned is measured: the
last, the best, the mean iterate, shadow iterates, distances, or a metric of one's own.

Assumptions
-----------
Every F_i is L-smooth and mu-strongly convex on R^d, 0 <= mu < L, in any dimension d. The clients differ by

* `AtOptimum`: sum_i p_i ‖grad F_i(x*)‖^2 <= zeta^2;
* `UniformUpper`: ‖grad F_i(x) - grad F(x)‖ <= zeta for all i and x (relaxed, see below);
* `Shift`: F_i = f + <b_i, .> with sum_i p_i b_i = 0 and ‖b_i‖ <= zeta: a subclass of the uniform class;
* `Arbitrary`: without limit.

Statement
---------
The largest value of the metric is the value of a semidefinite programme over the Gram matrix G of {x^0, the gradients}
(x* = 0) and the function values f:

    maximise <C, G> + c'f  subject to  <A_j, G> + a_j'f <= b_j,  G >= 0,

where the constraints are, for each function and each ordered pair of its points, the interpolation inequality

    f_p >= f_q + <g_q, x_p - x_q>
           + [‖g_p - g_q‖^2/L + mu ‖x_p - x_q‖^2 - 2 (mu/L) <g_q - g_p, x_q - x_p>] / (2 (1 - mu/L)),

then ‖x^0‖^2 <= D^2 and the heterogeneity of the class. It is exact but for `UniformUpper`, where it is an upper bound,
because inequalities between pairs and the heterogeneity at the evaluated points are necessary but not known to suffice.
The uniform class lies between `Shift` and it (`uniform_bracket`). Every value comes with certificates that are
re-checked here: ``upper`` from the multipliers, ``lower`` from a feasible point; the solver is not trusted
(docs/theory/worst_case.md).

Without heterogeneity the mean over the shadow iterates of FedAvg is L D^2/(2 (1 + eta L (tau T + 1))) for eta L <= 1.5
(`closed_form_homogeneous`).

Source
------
Drori and Teboulle (2014), Mathematical Programming 145, for performance estimation; Taylor, Hendrickx and Glineur
(2017), Mathematical Programming 161, Theorem 4, for the interpolation inequality and the interpolating function. The
programmes for federated methods, the certificates and the closed form are the project's own.

What differs from the printed form
----------------------------------
x* = 0, L = D = 1 inside (eta L, mu/L, zeta/(L D) are what matters); functions are centred at x*, and
sum_i p_i grad F_i(x*) = 0 is eliminated, not constrained. A method that asks for gradients of F alone is solved with
one function. The upper half of the closed form is not proved; it agrees with the programme to solver accuracy.
"""

from fedconvex.theory.worst_case.classes import Arbitrary, AtOptimum, Heterogeneity, Problems, Shift, UniformUpper
from fedconvex.theory.worst_case.exact import (
    Bracket,
    Ratio,
    WorstCase,
    WorstInstance,
    closed_form_homogeneous,
    ratio_table,
    terms,
    uniform_bracket,
    worst_case,
)
from fedconvex.theory.worst_case.hard_instances import (
    HardInstance,
    communication_bound,
    crossing,
    drift_bound,
    drifting,
    drifting_slowly,
    hard_instances,
    noise_bias,
)
from fedconvex.theory.worst_case.interpolation import Interpolant
from fedconvex.theory.worst_case.method_rounds import (
    fedavg_round,
    fedlin_round,
    fedprox_round,
    gradient_descent_round,
    hedging_round,
    scaffold_round,
)
from fedconvex.theory.worst_case.methods import (
    accelerated,
    fedavg,
    fedlin,
    fedprox,
    gradient_descent,
    heavy_ball,
    hedging,
    scaffold,
)
from fedconvex.theory.worst_case.oracles import Client, Iterates, Oracle
from fedconvex.theory.worst_case.programme import Size, programme_size
from fedconvex.theory.worst_case.rates import Rate, Round, contraction
from fedconvex.theory.worst_case.steps import BestStep, Exponent, best_step, fitted_exponent

__all__ = [
    "Arbitrary",
    "AtOptimum",
    "BestStep",
    "Bracket",
    "Client",
    "Exponent",
    "HardInstance",
    "Heterogeneity",
    "Interpolant",
    "Iterates",
    "Oracle",
    "Problems",
    "Rate",
    "Ratio",
    "Round",
    "Shift",
    "Size",
    "UniformUpper",
    "WorstCase",
    "WorstInstance",
    "accelerated",
    "best_step",
    "closed_form_homogeneous",
    "communication_bound",
    "contraction",
    "crossing",
    "drift_bound",
    "drifting",
    "drifting_slowly",
    "fedavg",
    "fedavg_round",
    "fedlin",
    "fedlin_round",
    "fedprox",
    "fedprox_round",
    "fitted_exponent",
    "gradient_descent",
    "gradient_descent_round",
    "hard_instances",
    "heavy_ball",
    "hedging",
    "hedging_round",
    "noise_bias",
    "programme_size",
    "ratio_table",
    "scaffold",
    "scaffold_round",
    "terms",
    "uniform_bracket",
    "worst_case",
]
