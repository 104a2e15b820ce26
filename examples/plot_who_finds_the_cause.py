"""
Who finds the cause
===================

A chain x -> y -> z in two environments with different noise. Least squares on both leans on z, the effect; IRMv1
(Arjovsky, Bottou, Gulrajani, Lopez-Paz 2019) asks for a model that no environment would scale. Its objective is not
convex; where a certificate holds, the model is a global minimum.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedconvex import Squared, run
from fedconvex.datasets import chain_moments, federation_of_moments
from fedconvex.methods import IRMv1
from fedconvex.problems import InvariantProblem

population = federation_of_moments(*chain_moments((0.2, 2.0)))  # second moments: no sampling
weights = np.array([0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4])
problems = [InvariantProblem(population, Squared(), lam) for lam in weights]
best = [problem.solve() for problem in problems]
print([f"{b.gap:.0e}" for b in best], best[-1].certificate)

# %%
# The invariant subset of features, by enumeration: x alone. And the second local minimum at lam = 10, which a descent
# may well end in; its certificate is infinite.
print(problems[0].subsets(tol=1e-9)[0].features, [w.round(3).tolist() for w in problems[3].minima()])
result = run(IRMv1(step_size=0.004), problems[2], rounds=1500, tol=1e-6)
print(result)

# %%
fig, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
models = np.array([b.w for b in best])
for j, name in enumerate(("x, the cause", "z, the effect")):
    axes[0].semilogx(weights, models[:, j], "o-", label=f"coefficient of {name}")
axes[0].axhline(1.0, color="0.6", linewidth=1.0)
axes[0].axhline(0.0, color="0.6", linewidth=1.0)
axes[0].set_xlabel("weight of the penalty")
axes[0].legend(frameon=False)
rounds = result.trace.round
axes[1].semilogy(rounds, result.trace.value - best[2].value + 1e-12, label="J(w) - min J")
axes[1].semilogy(rounds, result.trace.gap, "--", label="certified")
axes[1].set_xlabel("rounds, weight 1")
axes[1].legend(frameon=False)
plt.show()

# %%
# The coefficients near (1, 0) slowly as the penalty grows. The descent stands for long near 0, next to a saddle; what
# is certified is never below the true distance from the global minimum.
