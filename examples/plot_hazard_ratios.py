"""
Hazard ratios over hospitals
============================

Four hospitals follow patients until relapse. In Cox's model each keeps a baseline hazard of its own, so that a time is
compared with times of its hospital only, and no time leaves it. Profile-likelihood intervals stand beside Wald's, and a
score test asks whether the hazards are proportional.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedconvex.analysis import analyse

rng = np.random.default_rng(3)
n = 260
hospital = rng.choice(["East", "North", "South", "West"], n, p=[0.4, 0.3, 0.2, 0.1])
stage, age = rng.choice(["I", "II", "III"], n, p=[0.5, 0.4, 0.1]), rng.normal(60, 10, n)
marker = rng.gamma(2.0, 1.0, n)
speed = 0.02 * (age - 60) + 0.5 * (stage == "II") + 1.1 * (stage == "III") - 0.25 * marker
baseline = np.select([hospital == "East", hospital == "North"], [0.5, 1.0], 2.0)  # months; not the same everywhere
relapse = rng.exponential(12.0 * baseline * np.exp(-speed))
followed = rng.uniform(6.0, 36.0, n)
table = {
    "age": age.round(),
    "stage": stage,
    "marker": marker.round(2),
    "months": np.minimum(relapse, followed).round(1) + 0.1,
    "relapsed": (relapse <= followed).astype(int),
    "hospital": hospital,
}

# %%
found = analyse(table, "months", "hospital", event="relapsed")
profile = analyse(table, "months", "hospital", event="relapsed", intervals="profile")
print(found.summary())
print(found.proportional_hazards)
print("the same everywhere?", found.differences.equal_slopes if found.differences.equal_slopes else "not to be told")

# %%
fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for shift, answer, name, marker in ((0.12, found, "Wald", "o"), (-0.12, profile, "profile likelihood", "s")):
    rows = answer.table()[::-1]
    at = np.arange(len(rows)) + shift
    ratio, low, high = (np.exp([getattr(c, what) for c in rows]) for what in ("estimate", "low", "high"))
    ax.errorbar(ratio, at, xerr=[ratio - low, high - ratio], fmt=marker, capsize=3, label=name)
ax.axvline(1.0, color="0.3", linewidth=0.8)
ax.set_yticks(range(len(rows)), [c.name for c in rows])
ax.set(xscale="log", xlabel="hazard ratio [95 % interval]")
ax.set_xticks([0.7, 1, 1.5, 2, 3], ["0.7", "1", "1.5", "2", "3"])
ax.xaxis.set_minor_locator(plt.NullLocator())
ax.legend(frameon=False)
plt.show()

# %%
# Stage III relapses soonest, and the marker protects. Few patients are in stage III: there the interval of the profile
# likelihood is not symmetric about the estimate, as Wald's is on this scale.
