"""
Check a theorem
===============

A theorem is checked on what a run really does: its hypotheses on the problem's constants, its quantity exactly
where that is possible, and its bound.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedconvex import FedAvg, Problem, Squared
from fedconvex.datasets import linear_federation
from fedconvex.verify import curve, verify

problem = Problem(
    linear_federation(n_clients=5, rows_per_client=10, n_features=3, model_shift=1.0, seed=0).federation, Squared()
)
method = FedAvg(step_size=0.05, local_steps=3, batch_size=5)
print(verify("fedavg-at-optimum", problem, method, rounds=50))
print(
    verify("fedavg-at-optimum", problem, FedAvg(step_size=5.0, local_steps=3), rounds=50)
)  # says which hypothesis fails

# %%
rounds = np.unique(np.geomspace(1, 300, 12).astype(int))
line = curve("fedavg-at-optimum", problem, method, rounds=rounds)

# %%
fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
ax.plot(line.rounds, line.bound, "s--", color="#D55E00", label="bound")
ax.plot(
    line.rounds, line.measured, "o-", color="#0072B2", label="measured, " + ("exact" if line.exact else "Monte Carlo")
)
ax.set(xlabel="rounds T", ylabel="mean suboptimality of the average iterate", xscale="log", yscale="log")
ax.legend(frameon=False)
plt.show()

# %%
# The bound holds at every number of rounds. It lies above the exact expectation by a factor of twenty at first and
# of four at the end: the theorem allows for the worst problem with these constants.
