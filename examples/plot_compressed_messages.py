"""
Fewer numbers a round, more rounds: who sends least?
====================================================

Compressed messages are short and lose something. Error feedback keeps what was lost for later, DIANA and EF21 compress
differences. Who sends least depends on how near to the optimum the model is to be.
"""

import matplotlib.pyplot as plt

from fedconvex import FedSGD, Problem, Squared, run
from fedconvex.datasets import linear_federation
from fedconvex.methods import DIANA, EF21, CompressedGradientDescent, ErrorFeedback, RandK, TopK

federation = linear_federation(n_clients=5, n_features=20, rows_per_client=30, model_shift=1.0, seed=1).federation
problem = Problem(federation, Squared(), l2=0.1)
print(problem.solve())

# %%
# Two of twenty entries are sent, by size or drawn; steps are those of each method's theorem where it has one.
L = problem.constants().L
methods = {
    "all entries (FedSGD)": FedSGD(step_size=1 / L),
    "largest 2, nothing kept": CompressedGradientDescent(step_size=0.2 / L, compressor=TopK(2)),
    "largest 2, error feedback": ErrorFeedback(step_size=0.2 / L, compressor=TopK(2)),
    "largest 2, EF21": EF21(step_size="auto", compressor=TopK(2)),
    "2 at random, DIANA": DIANA(step_size="auto", compressor=RandK(2)),
}
results = {name: run(method, problem, rounds=600, tol=1e-8) for name, method in methods.items()}

# %%
fig, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for name, result in results.items():
    axes[0].semilogy(result.trace.round, result.trace.gap, label=name)
    axes[1].semilogy(result.trace.floats_up / 5, result.trace.gap)
axes[0].set(xlabel="rounds", ylabel="certified gap", ylim=(1e-8, None))
axes[1].set(xlabel="numbers sent by a client", xscale="log")
axes[0].legend(frameon=False, fontsize=8)
plt.show()

# %%
# By rounds nothing beats whole gradients. By numbers sent, error feedback is first to a gap of 1e-2 and then stays
# near it; to 1e-8 whole gradients send least here, before DIANA and EF21 with the short steps of their theorems.
# Where nothing is kept, the largest entries of clients that differ lead to another point.
