"""What files of theorems are written in: one line, ``from fedconvex.theorems.kit import *``, gives all of it.

* Bounds (`theory.bound`): `Bound`, `Quantity` and those that several theorems speak about, `Hypothesis`, `require`.
* Theorems (`parts.theorem`, `parts.scope`): `Theorem`, `Statement`, `Reading`, `Check`, and where a statement holds;
  their formulas (`parts.formulas`).
* Readings (`parts.setting`, `parts.assumptions`): `Setting`, and what is asked of methods and problems.
* Quantities off a run (`parts.quantities`), and what rounding does to them (`parts.rounding`).
* Instances (`parts.instances`), rules for the method on them (`parts.rules`), spaces for searches (`parts.tiny`).
* Checks of arguments (`_check`), problems and losses.

What only some theorems share stays in files of its own (`parts.domain_instances`, `parts.tracking`, ...).
"""

from fedconvex._check import array, bad, finite, flag, instance, matrix, numeric, raw, real, vector, whole, wrong_type
from fedconvex.constants import MEASURED, Constants, default_steps
from fedconvex.draws import Draws, key_from_seed
from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.loss_traits import traits
from fedconvex.losses import Exponential, Hinge, Logistic, SmoothedHinge, Squared
from fedconvex.problems import Problem
from fedconvex.theorems.parts.assumptions import (
    client_noise,
    client_weights,
    equal_weights,
    least_convexity,
    local_work,
    sampling_share,
    where_taken,
)
from fedconvex.theorems.parts.bound_formulas import Formula
from fedconvex.theorems.parts.instances import (
    alike_logistic,
    all_ones,
    at_minimiser,
    at_right_angles,
    breast_cancer,
    breast_cancer_by_size,
    breast_cancer_copied,
    breast_cancer_two,
    chain,
    copied_rows,
    curved_noisy_kinks,
    diabetes,
    diabetes_unequal,
    diabetes_whitened,
    equal_clients,
    equal_hessians,
    example,
    flat_and_steep,
    mean_estimation,
    noisy_kinks,
    one_noisy_client,
    one_parabola,
    one_that_counts,
    one_very_noisy_client,
    parabola_and_slope,
    rare_parabola,
    rare_parabola_in_thousands,
    rows_at_right_angles,
    shifted_logistic,
    steep_and_flat,
    three_clients,
    three_clients_in_tenths,
    two_clients,
    two_clients_in_millions,
    two_clients_in_tenths,
    two_logistic_clients,
    two_parabolas,
    unequal_hessians,
    uneven_logistic,
    uneven_squares,
)
from fedconvex.theorems.parts.quantities import deterministic, values_along
from fedconvex.theorems.parts.rounding import EPS, UNIT, Found, gradient_rounding, minimiser_rounding
from fedconvex.theorems.parts.rules import feasible_work, fixed_step, given, least_bound, least_bound_step, smoothness
from fedconvex.theorems.parts.scope import (
    EVERYWHERE,
    OF_ENSEMBLES,
    OF_ENVIRONMENTS,
    OF_OWNERS,
    OF_TASKS,
    SMOOTH_ONLY,
    STRONGLY_CONVEX,
    WHOLE_STRONGLY_CONVEX,
    Scope,
    holds,
    not_for,
)
from fedconvex.theorems.parts.setting import (
    Setting,
    equal_steps,
    full_participation,
    is_method,
    local_sgd,
    one_number,
    participants,
    plain_averaging,
    plain_local_sgd,
    stationary,
)
from fedconvex.theorems.parts.theorem import Check, Instance, MethodRule, Reading, Statement, Theorem, local_sgd_reading
from fedconvex.theorems.parts.tiny import LOSSES, Real, Space, Tiny, Whole, from_zero, local_sgd_space
from fedconvex.theory.bound import (
    FROM_MINIMUM,
    LAST_SYNCHRONISED,
    MEAN_SQUARE_DEVIATION,
    SHADOW_AVERAGE,
    STEADY_STATE_MSD,
    AssumptionError,
    Bound,
    Dimension,
    Hypothesis,
    Quantity,
    known_constants,
    least_choice,
    require,
)
from fedconvex.theory.worst_case import AtOptimum, UniformUpper
from fedconvex.traits import traits_of
