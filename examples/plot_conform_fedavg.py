"""
Is your FedAvg the published one?
=================================

Six lines of NumPy that are called FedAvg, in two versions. The second forgets that clients have different numbers
of rows. conform asks both small questions and says which algorithm each computes, and how far it is from every
other reading.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedconvex.conformance import can, conform


def fedavg(by_size):
    @can(losses=("squared",), partial=False, batches=())
    def train(clients, hyper, rounds):
        w, out = np.array(hyper["start"], dtype=float), []
        sizes = np.array([len(y) for _, y in clients], dtype=float) if by_size else np.ones(len(clients))
        for _ in range(rounds):
            models = []
            for X, y in clients:
                v = w.copy()
                for _ in range(hyper.get("local_steps", 1)):
                    v -= hyper["step_size"] * (X.T @ (X @ v - y) / len(y) + hyper["l2"] * v)
                models.append(v)
            w = np.average(models, axis=0, weights=sizes)
            out.append(w.copy())
        return out

    return train


# %%
answers = {name: conform(fedavg(by_size), "fedavg") for name, by_size in (("by rows", True), ("plain mean", False))}
for name, answer in answers.items():
    print(f"{name}: {answer.verdict}, {answer.grade}; weights {answer.reading.get('weights')}")

# %%
# For each convention that was pinned down: how far the nearest reading with another value is.
fig, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharex=True, layout="constrained")
for ax, (name, answer) in zip(axes, answers.items(), strict=True):
    others = sorted(answer.excluded, key=lambda e: e.distance)
    ax.barh([f"{e.convention}: not {e.value}" for e in others], [max(e.distance, 1e-16) for e in others])
    ax.axvline(answer.tolerance, color="0.4", linestyle="--")
    ax.set(title=name, xscale="log", xlabel="relative distance of the models")
plt.show()

# %%
# Both match a reading to rounding; bars beyond the dashed line are conventions that are excluded. The plain mean is a
# variant that toolkits have, and not the published algorithm: conform names it.
