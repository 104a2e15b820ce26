"""
Five methods on one problem
===========================

Logistic regression over twelve clients whose data disagree. The optimum is known exactly, so every method can be
judged by its certified distance to it, over rounds, over numbers sent and over seconds.
"""

import matplotlib.pyplot as plt

from fedconvex import SCAFFOLD, FedAvg, FedProx, FedSGD, Logistic, Problem, run
from fedconvex.datasets import logistic_federation
from fedconvex.methods import ProgressiveHedging
from fedconvex.report import convergence_plot

federation = logistic_federation(n_clients=12, rows_per_client=15, n_features=4, model_shift=1.5, seed=1).federation
problem = Problem(federation, Logistic(), l2=0.05)
print(problem.solve())

# %%
# ``step_size="auto"`` takes the step that the method's theorem gives; elsewhere 1/L is usual.
L = problem.constants().L
methods = {
    "FedSGD": FedSGD(step_size="auto"),
    "FedAvg, 5 local steps": FedAvg(step_size="auto", local_steps=5),
    "FedProx, μ = 0.1": FedProx(step_size=1 / (L + 0.1), local_steps=5, proximal_mu=0.1),
    "SCAFFOLD, 5 local steps": SCAFFOLD(step_size=1 / L, local_steps=5),
    "Progressive hedging": ProgressiveHedging(),
}
results = {name: run(method, problem, rounds=100, tol=1e-9) for name, method in methods.items()}

# %%
fig, axes = plt.subplots(1, 3, figsize=(13, 4.5), sharey=True, layout="constrained")
convergence_plot(results, axes=axes, problem=problem)
axes[0].legend(axes[0].lines[::2], methods, fontsize=8, frameon=False)
plt.show()

# %%
# FedAvg and FedProx stop at biased points: clients that take several steps drift towards their own optima. FedSGD,
# SCAFFOLD and progressive hedging reach the optimum. SCAFFOLD needs the fewest rounds, but sends twice as much in
# each.
