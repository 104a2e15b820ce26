"""
From a CSV to a decision
========================

Four hospitals wonder whether to train a model together. A table of patients goes in; out come a sentence to decide
by, and a figure of what joining does for each of them, on rows of their own that were held out before anything was
fitted.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import fedconvex

rng = np.random.default_rng(0)
hospital = np.repeat(["East", "North", "South", "West"], [320, 120, 120, 320])
age, dose, smoker = rng.normal(60, 10, 880), rng.normal(5, 2, 880), rng.choice(["yes", "no"], 880)
risk = 0.08 * (age - 60) + (smoker == "yes") - 0.5 + 0.8 * (dose - 5) * np.where(hospital == "West", -1, 1)
ill = np.where(risk + rng.logistic(size=880) > 0, "ill", "well")

# %%
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "patients.csv"
    pd.DataFrame({"age": age, "dose": dose, "smoker": smoker, "hospital": hospital, "state": ill}).to_csv(
        file, index=False
    )
    methods = ["pooled", "mean-regularised", "alone"]
    found = fedconvex.compare(file, "state", "hospital", methods=methods, folds=2, progress=False)
print(found.table())
print(found.decision)  # found.report("page") writes the whole page

# %%
frame = found.to_frame()
frame = frame[frame.method != "base rate"]
fig, ax = plt.subplots(figsize=(8, 4.5), layout="constrained")
for number, (method, rows) in enumerate(frame.groupby("method", sort=False)):
    at = np.arange(len(rows)) + 0.2 * (number - 1)
    gaps = [rows.log_loss - rows.log_loss_low, rows.log_loss_high - rows.log_loss]
    ax.errorbar(at, rows.log_loss, gaps, fmt="os^"[number], capsize=3, label=method)
ax.set_xticks(range(4), [f"{r.client}\n{r.test_rows} rows held out" for r in rows.itertuples()])
ax.set(ylabel="log loss on its own held-out rows", ylim=(0, None))
ax.legend(frameon=False, title="model")
plt.show()

# %%
# In West the dose acts the other way round, which spoils one model for all: every hospital clearly loses by it. A
# model for each hospital, drawn towards their mean, is as good as staying alone or better.
