"""
A model per hospital
====================

Multi-task learning (MOCHA, Smith et al. 2017): every hospital has a model of its own, and a covariance of the
models, learned as well, says who can learn from whom.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedconvex.estimators import FederatedMultiTaskClassifier

rng = np.random.default_rng(0)
names = np.array(["A1", "A2", "A3", "B1", "B2", "B3"])
one, other = rng.normal(size=8), rng.normal(size=8)


def draw(rows):
    """Return rows of all hospitals; those of a group are alike."""
    X, hospital = rng.normal(size=(6 * rows, 8)), np.repeat(names, rows)
    W = {h: (one if h[0] == "A" else other) + 0.2 * rng.normal(size=8) for h in names}
    return X, np.array([x @ W[h] > 0 for x, h in zip(X, hospital, strict=True)]), hospital


(X, y, hospital), test = draw(15), draw(300)

# %%
scores = {}
for relation, label in (
    ("local", "every hospital alone"),
    ("global", "one model for all"),
    ("joint", "learned relation"),
):
    model = FederatedMultiTaskClassifier("logistic", relation=relation, lam=0.1).fit(X, y, clients=hospital)
    scores[label] = model.client_scores(*test)
print(model, model.gap_)

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
for number, (label, score) in enumerate(scores.items()):
    left.bar(np.arange(6) + 0.27 * (number - 1), list(score.values()), 0.25, label=label)
left.set(ylabel="accuracy on new rows", ylim=(0.5, 1.0))
left.set_xticks(range(6), names)
fig.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=3, frameon=False)
image = right.imshow(model.correlations_, vmin=-1, vmax=1, cmap="RdBu_r")
right.set_xticks(range(6), names)
right.set_yticks(range(6), names)
right.set_title("correlations of the models, learned", fontsize=10)
fig.colorbar(image, ax=right)
plt.show()

# %%
# One model for all fits neither group, and fifteen rows are few for a hospital alone. The learned covariance finds
# the two groups, and most hospitals gain by borrowing from their own.
