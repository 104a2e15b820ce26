"""
Your own solver beside known ones
=================================

A solver is a function that yields its model after every round. The referee runs it beside methods of the package
from the same start, certifies the gap of every model, and counts: who is ahead depends on what is counted.
"""

import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from fedconvex.bench import Case, bench, performance_profile

MOMENTUM = """
import numpy as np

def solve(arrays, settings, rounds):  # gradient descent with the momentum of Polyak (1964)
    w = before = arrays.start.copy()
    for _ in range(rounds):
        clients = zip(arrays.X, arrays.y, arrays.weights, strict=True)
        parts = [p * X.T @ (X @ w - y) / len(y) for X, y, p in clients]
        gradient = np.sum(parts, axis=0) + arrays.l2 * w
        w, before = w - settings["step_size"] * gradient + 0.6 * (w - before), w
        yield w

solve.deterministic, solve.passes_per_round = True, 1.0
"""

# %%
shape = {"n_clients": 3, "n_features": 4, "rows_per_client": 20, "model_shift": 0.5}
suite = [Case(f"condition {c}", "linear", {**shape, "condition": float(c)}, "squared") for c in (5, 30)]
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "momentum.py").write_text(MOMENTUM)
    sys.path.insert(0, folder)  # a solver runs in a process of its own, which imports it by its name
    known = ["fedsgd", "fedavg", "accelerated-gradient"]
    board = bench(["momentum:solve"], suite=suite, against=known, targets=[1e-2, 1e-4, 1e-6], rounds=300, seeds=1)
    sys.path.remove(folder)

# %%
ratios = np.geomspace(1, 10, 200)
fig, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for ax, axis in zip(axes, ("rounds", "passes"), strict=True):
    pairs, solvers, costs = board.medians(axis)
    for name, share in zip(solvers, performance_profile(costs, ratios), strict=True):
        ax.step(ratios, share, where="post", label=name)
    ax.set(xscale="log", xlabel=f"{axis}, as a multiple of the fewest")
axes[0].set(ylabel="share of problems and targets", ylim=(-0.02, 1.02))
axes[1].legend(frameon=False)
plt.show()

# %%
# By rounds FedAvg is ahead: each of its rounds has five local steps, and these clients' curvatures agree, so that it
# does not drift. By passes over the rows it is where gradient descent is, and momentum and acceleration are ahead.
