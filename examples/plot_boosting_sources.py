"""
Boosting from several sources
=============================

Two sources label the same feature in opposite ways, and lie in different places. One ensemble for both is
helpless; the Q-ensemble of Cortes et al. (2021) lets each stump count where a row looks like its source.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedconvex.estimators import MultiSourceBoostClassifier

rng = np.random.default_rng(0)
source = np.repeat(["left", "right"], [120, 60])
X = rng.normal(size=(180, 2))
X[source == "right", 0] += 4.0
y = np.where((X[:, 1] > 0) == (source == "left"), "yes", "no")

# %%
models = {
    "one ensemble for all": MultiSourceBoostClassifier(n_estimators=15, source_model="uniform").fit(
        X, y, domains=source
    ),
    "Q-ensemble": MultiSourceBoostClassifier(n_estimators=15, source_l2=0.01).fit(X, y, domains=source),
}
for name, model in models.items():
    print(name, model.domain_errors(X, y, source), f"largest loss {model.worst_loss_:.3f}")

# %%
a, b = np.meshgrid(np.linspace(-3.5, 7.5, 60), np.linspace(-4, 3.5, 40))
fig, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    shade = model.predict_proba(np.c_[a.ravel(), b.ravel()])[:, 1].reshape(a.shape)
    ax.contourf(a, b, shade, levels=np.linspace(0, 1, 11), cmap="RdBu_r", alpha=0.6)
    for label, colour in (("yes", "#8B0000"), ("no", "#00008B")):
        ax.plot(*X[y == label].T, ".", color=colour, markersize=4, label=label)
    ax.set(title=name, xlabel="feature 1")
axes[0].set(ylabel="feature 2")
axes[1].legend(loc="upper right")
plt.show()

# %%
# The plain ensemble can only compromise between the two sources. Weighed by Q, the probability that a row comes
# from a source, the same stumps get both right.
