"""
A target that walks
===================

The true model takes a random step each round (Rizk, Vlaski, Sayed 2020). A large step size follows quickly and is
noisy, a small one is calm and lags behind; in between there is a best one.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedconvex import Problem, Squared, run
from fedconvex.datasets import linear_federation
from fedconvex.methods import DynamicFedAvg
from fedconvex.problems import MovingTarget
from fedconvex.theory import Moments

still = Problem(
    linear_federation(n_clients=6, rows_per_client=12, n_features=3, noise=0.5, seed=0).federation,
    Squared(),
    weights="uniform",
)
problem = MovingTarget(still, variance=1e-3)
steps = np.geomspace(0.06, 0.6, 8)

# %%
exact = [
    Moments.of(DynamicFedAvg(step_size=float(s), batch_size=2, participation=3), problem).steady_state().deviation
    for s in steps
]
method = DynamicFedAvg(step_size=np.repeat(steps, 12), batch_size=2, participation=3)
deviation = run(method, problem, rounds=200, trajectories=96, tol=0.0).trace.deviation
measured = deviation[100:].mean(axis=0).reshape(8, 12).mean(axis=1)  # after the start, over twelve trajectories

# %%
fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
ax.plot(steps, exact, color="#0072B2", label="exact mean-square deviation in the limit")
ax.plot(steps, measured, "o", color="#D55E00", label="measured, mean over rounds 100 to 200")
ax.set(xlabel="step size", ylabel="E‖w − w*‖²", xscale="log", yscale="log")
ax.set_xticks(steps, [f"{s:.2f}" for s in steps], minor=False)
ax.set_xticks([], minor=True)
ax.legend(frameon=False)
plt.show()

# %%
# Left of the minimum the lag behind the walk dominates, right of it the noise of mini-batches and sampled clients;
# the exact second moments give the curve without a run, and the runs scatter about it.
