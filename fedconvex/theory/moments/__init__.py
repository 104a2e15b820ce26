"""Exact first and second moments of FedAvg-type methods on least squares: no bound, no sampling.

Setting. F = sum_k p_k F_k, F_k(w) = (1/2n_k)‖X_k w - y_k‖^2 + (r/2)‖w‖^2. In round t every client k starts at w_t and
does E_k local steps w <- w - a_k grad F_k(w; batch of B_k rows) with step a_k = factor_k eta; each step draws a fresh
batch, without or with replacement. The server averages with random weights W_k that sum to one (who takes part) and
moves by a share beta of the way, w_{t+1} = w_t + beta (sum_k W_k w_k - w_t). Optionally the objective is translated by
a random walk q_t with covariance Q after (or before) each round.

Assumptions. Squared loss. Batches of different steps, clients and rounds are independent; W is independent of them and
of the past; q_t has mean zero and is independent of everything else. No convexity beyond that of the squares, no bound
on step sizes: unstable runs are computed exactly too.

Statement. Let e = w - w*, z = (e, 1) and Z = E[z z']. The gradient of row n is A_n z, first d entries, with
A_n = [[x_n x_n' + rI, c_n], [0, 0]] and c_n the gradient at w*. With Abar the mean of A_n over the client's rows and
phi the batch factor, (n - B)/((n - 1)B) without and 1/B with replacement, one local step maps, exactly,

    E[z]  <- M E[z],   M = I - a Abar,
    Z     <- M Z M' + a^2 phi (mean_n A_n Z A_n' - Abar Z Abar').

Let M_k and S_k(Z) be these maps composed over the E_k steps. Given Z at the start of a round, clients are independent:

    E[sum_k W_k z_k (...)'] = sum_{k != j} E[W_k W_j] M_k Z M_j' + sum_k E[W_k^2] S_k(Z).

Everybody: E[W W'] = p p'. Uniformly L of K, plain average (Scheme II of Li et al.): 1/(LK) on the diagonal and
(L-1)/(LK(K-1)) off it. m draws with replacement with probabilities p (Scheme I; a client drawn twice counts its one
result twice): p_k/m + p_k^2 (m-1)/m and p_k p_j (m-1)/m. From Z follow E F(w_t) - F* = tr(H S)/2 and E‖w_t - w*‖^2 =
tr S, S the upper left block; the limit Z solves a linear equation, and the second moments converge from every start
if and only if the spectral radius of their linear map is below one.

Source. Derived in this project (moments of products of independent random affine maps). Sampling schemes: Li, Huang,
Yang, Wang, Zhang, "On the convergence of FedAvg on non-IID data", ICLR 2020; drifting minimiser: Rizk, Vlaski, Sayed,
"Dynamic federated learning", SPAWC 2020. Fixed point of the mean for full batches: Patel et al. 2024, Proposition 19.

L of K with weights p_k K/L (scaled): p_k^2 K/L and p_k p_j K (L-1)/(L (K-1)); they need not sum to one, and weigh moves
from the server's model, as if it took part with what is left.

What differs from the printed form. The papers bound these quantities; here they are computed. Uniform sampling with
unequal p_k averages with p_k/sum_{j in S} p_j by default; its E[W W'] is enumerated over all samples, and refused where
there are too many. Drift: with "drift after"
round t uses the losses around w*_t and the error is measured after w* has moved; with a ridge, the ridge's centre moves
along. The operator of the second moments (without the mean) is self-adjoint and a sum of positive maps, the first of
which, S -> F1 S F1', is inverted in closed form: preconditioned conjugate gradients find the limit in a few steps and
nothing larger than d x d is ever formed.
"""

from fedconvex.theory.moments.engine import Moments
from fedconvex.theory.moments.incremental import incremental_noise2
from fedconvex.theory.moments.moment_rounding import Moved, moved, moved_stacked
from fedconvex.theory.moments.stacked import StackedMoments
from fedconvex.theory.moments.stages import stage_suboptimality
from fedconvex.theory.moments.traces import GradientTrace, MomentTrace, ShadowTrace, SteadyState
from fedconvex.theory.moments.weights import Mixing, WeightMoments

__all__ = [
    "GradientTrace",
    "Mixing",
    "MomentTrace",
    "Moments",
    "Moved",
    "ShadowTrace",
    "StackedMoments",
    "SteadyState",
    "WeightMoments",
    "incremental_noise2",
    "moved",
    "moved_stacked",
    "stage_suboptimality",
]
