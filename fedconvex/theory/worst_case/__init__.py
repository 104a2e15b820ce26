"""Exact worst case of deterministic FedAvg over classes of functions, by performance estimation.

Setting
-------
M clients with equal weights, F = (1/M) sum_i F_i, x* minimises F, ‖x^0 - x*‖ <= D. Every round t < T all clients start
at xbar^{t,0} and make tau steps x_i^{t,k+1} = x_i^{t,k} - eta grad F_i(x_i^{t,k}) with full gradients; the server
averages. Shadow iterates xbar^{t,k} = (1/M) sum_i x_i^{t,k}, xbar^{t+1,0} = xbar^{t,tau}.

Assumptions
-----------
Every F_i is L-smooth and mu-strongly convex on R^d, 0 <= mu < L, in any dimension d. The clients differ by

* `AtOptimum`: (1/M) sum_i ‖grad F_i(x*)‖^2 <= zeta^2;
* `UniformUpper`: ‖grad F_i(x) - grad F(x)‖ <= zeta for all i and x (relaxed, see below);
* `Shift`: F_i = f + <b_i, .> with sum_i b_i = 0 and ‖b_i‖ <= zeta: a subclass of the uniform class.

Statement
---------
The largest value of the mean over t < T, k = 1..tau of F(xbar^{t,k}) - F(x*), or of F(xbar^{T,0}) - F(x*), is the value
of a semidefinite programme over the Gram matrix G of {x^0, the gradients} (x* = 0) and the function values f:

    maximise c'f  subject to  <A_j, G> + a_j'f <= b_j,  G >= 0,

where the constraints are, for each function and each ordered pair of its points, the interpolation inequality

    f_p >= f_q + <g_q, x_p - x_q>
           + [‖g_p - g_q‖^2/L + mu ‖x_p - x_q‖^2 - 2 (mu/L) <g_q - g_p, x_q - x_p>] / (2 (1 - mu/L)),

then ‖x^0‖^2 <= D^2 and the heterogeneity of the class. It is exact for `AtOptimum` and `Shift`; for `UniformUpper` it
is an upper bound, because inequalities between pairs and the heterogeneity at the evaluated points are necessary but
not known to suffice. The uniform class lies between the two (`uniform_bracket`). Every value comes with certificates
that are re-checked here: ``upper`` from the multipliers, ``lower`` from a feasible point; the solver is not trusted
(docs/theory/worst_case.md).

Without heterogeneity the value is L D^2/(2 (1 + eta L (tau T + 1))) for eta L <= 1.5 (`closed_form_homogeneous`).

Source
------
Drori and Teboulle (2014), Mathematical Programming 145, for performance estimation; Taylor, Hendrickx and Glineur
(2017), Mathematical Programming 161, Theorem 4, for the interpolation inequality and the interpolating function. The
programmes for FedAvg, the certificates and the closed form are the project's own.

What differs from the printed form
----------------------------------
x* = 0 and f_i* = 0, L = D = 1 inside (eta L, mu/L, zeta/(L D) are what matters); sum_i grad F_i(x*) = 0 is eliminated,
not constrained. With M = 1, with tau = 1, or with zeta = 0 in the two uniform classes, FedAvg is gradient descent on F
and the programme of one client with tau T steps is solved instead. The upper half of the closed form is not proved; it
agrees with the programme to solver accuracy.
"""

from fedconvex.theory.worst_case.exact import (
    Bracket,
    Ratio,
    WorstCase,
    closed_form_homogeneous,
    ratio_table,
    uniform_bracket,
    worst_case,
)
from fedconvex.theory.worst_case.heterogeneity import AtOptimum, Heterogeneity, Shift, UniformUpper
from fedconvex.theory.worst_case.interpolation import Interpolant, WorstInstance
from fedconvex.theory.worst_case.programme import Size, programme_size

__all__ = [
    "AtOptimum",
    "Bracket",
    "Heterogeneity",
    "Interpolant",
    "Ratio",
    "Shift",
    "Size",
    "UniformUpper",
    "WorstCase",
    "WorstInstance",
    "closed_form_homogeneous",
    "programme_size",
    "ratio_table",
    "uniform_bracket",
    "worst_case",
]
