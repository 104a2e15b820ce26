"""
From a CSV to a forest plot
===========================

Seven hospitals ask whether a drug shortens the stay of the ill. One logistic model of all rows gives an odds ratio with
its standard error, from sums over each hospital's rows; beside it stand the hospitals alone, what is made of them
together, and where a further hospital's odds ratio is to be expected.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from fedconvex.analysis import analyse
from fedconvex.analysis.forest_plots import forest

rng = np.random.default_rng(7)
sizes = [60, 90, 120, 150, 220, 300, 400]
hospital = np.repeat([f"Hospital {k}" for k in range(1, 8)], sizes)
effect = np.repeat(rng.normal(0.7, 0.6, size=7), sizes)  # of the drug, different everywhere
age, sex = rng.normal(60, 10, hospital.size), rng.choice(["f", "m"], hospital.size)
drug = rng.choice(["new", "usual"], hospital.size)
score = 0.05 * (age - 60) + 0.3 * (sex == "m") - effect * (drug == "new") + 0.2
long_stay = np.where(score + rng.logistic(size=hospital.size) > 0, "yes", "no")
age = np.where(rng.random(hospital.size) < 0.02, np.nan, age)  # some ages are unknown

# %%
# Rows without an age are left out and counted; nothing is imputed.
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "stays.csv"
    table = {"age": age.round(1), "sex": sex, "drug": drug, "long_stay": long_stay, "hospital": hospital}
    pd.DataFrame(table).to_csv(file, index=False)
    found = analyse(file, "long_stay", "hospital", site_intercepts=True, reference={"drug": "usual"})
print(found.summary())  # found.report("page") writes the page with all forest plots
print(found.test("drug"))
print("equal slopes:", found.differences.equal_slopes)

# %%
lines = forest(found, "drug=new").lines
fig, ax = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
for y, line in enumerate(reversed(lines)):
    low, value, high = np.exp([line.low, line.value, line.high])
    alone = line.look == "client"
    ax.plot([low, high], [y, y], color="C0" if alone else "C1", linewidth=1.2 if alone else 3.0)
    ax.plot(
        value, y, "s" if alone else "D", color="C0" if alone else "C1", markersize=4 + 12 * line.share if alone else 8
    )
    ax.annotate(line.text, (1.02, y), xycoords=ax.get_yaxis_transform(), va="center", fontsize=8)
ax.axvline(1.0, color="0.3", linewidth=0.8)
ax.set_yticks(range(len(lines)), [line.name for line in reversed(lines)])
ax.set(xscale="log", xlabel="odds ratio of a long stay, new drug against usual [95 % interval]")
ax.set_xticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"], minor=False)
plt.show()

# %%
# The new drug makes long stays rarer; four of the seven cannot show that alone. The interval of the random effects is
# wider than that of the joint model, because the drug does not do the same everywhere; and the prediction interval,
# wider still, says what a hospital that is not among the seven may find.
