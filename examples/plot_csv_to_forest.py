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
apart, joint = found.differences, next(c for c in found.table() if c.name == "drug=new")
i, over = apart.names.index("drug=new"), apart.summaries["drug=new"]
alone = zip(apart.clients, apart.estimates[:, i], apart.standard_errors[:, i], strict=True)
lines = [(name, b - 1.96 * se, b, b + 1.96 * se, "C0s") for name, b, se in alone]
lines.append(("Joint model", joint.low, joint.estimate, joint.high, "C1D"))
lines.append(("Random effects", over.hartung_knapp.low, over.hartung_knapp.estimate, over.hartung_knapp.high, "C1D"))
lines.append(("Prediction interval", over.prediction[0], np.nan, over.prediction[1], "C1D"))
fig, ax = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
for y, (_, *ends, look) in enumerate(reversed(lines)):
    low, value, high = np.exp(ends)
    ax.plot([low, high], [y, y], look[:2], linewidth=1.2 if look == "C0s" else 3.0)
    ax.plot(value, y, look)
    text = f"[{low:.2f}, {high:.2f}]" if np.isnan(value) else f"{value:.2f} [{low:.2f}, {high:.2f}]"
    ax.annotate(text, (1.02, y), xycoords=ax.get_yaxis_transform(), va="center", fontsize=8)
ax.axvline(1.0, color="0.3", linewidth=0.8)
ax.set_yticks(range(len(lines)), [name for name, *_ in reversed(lines)])
ax.set(xscale="log", xlabel="odds ratio of a long stay, new drug against usual [95 % interval]")
ax.set_xticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"], minor=False)
plt.show()

# %%
# The new drug makes long stays rarer; four of the seven cannot show that alone. The interval of the random effects is
# wider than that of the joint model, because the drug does not do the same everywhere; and the prediction interval,
# wider still, says what a hospital that is not among the seven may find.
