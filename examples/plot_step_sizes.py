"""
A sweep of step sizes as one run
================================

A vector of step sizes gives every trajectory of a run its own: 84 runs, six of each step size, advance at once.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedconvex import FedAvg, Logistic, Problem, run
from fedconvex.datasets import logistic_federation

problem = Problem(
    logistic_federation(n_clients=5, rows_per_client=12, n_features=3, model_shift=1.0, seed=0).federation,
    Logistic(),
    l2=0.05,
)
best, L = problem.solve(), problem.constants().L
steps = np.geomspace(0.02, 8.0, 14) / L
checkpoints = (3, 10, 40)

# %%
method = FedAvg(step_size=np.repeat(steps, 6), local_steps=3, batch_size=4)
trace = run(method, problem, rounds=max(checkpoints), trajectories=84, tol=0.0).trace
distance = (trace.value - best.value).reshape(-1, 14, 6).mean(axis=2)

# %%
fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
for rounds in checkpoints:
    ax.plot(steps * L, distance[rounds], marker=".", label=f"after {rounds} rounds")
ax.axvline(1.0, color="0.5", linestyle=":", label="1/L of the roughest client")
ax.set(xlabel="step size × L", ylabel="F(w) − F*", xscale="log", yscale="log")
ax.legend(frameon=False)
plt.show()

# %%
# Early on the largest stable step is the best; later it stands on the noise of mini-batches and on drift, and a
# smaller step overtakes it. The best step size depends on how long one means to run.
