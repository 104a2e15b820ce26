"""
New patients, with gaps and an unknown ward
===========================================

A saved model carries its columns: it finds them by name, fills gaps as in training, and says what it has never seen.
"""

import tempfile
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from fedconvex import Federation, Logistic, Problem
from fedconvex.models import LinearModel

rng = np.random.default_rng(2)
n = 400
age, sex, hospital = rng.normal(60, 12, n), rng.choice(["f", "m"], n), rng.choice(["a", "b", "c"], n)
age[rng.random(n) < 0.05] = np.nan
risk = 0.07 * (np.nan_to_num(age, nan=60) - 60) + 0.8 * (sex == "m") - 0.4
ill = np.where(risk + rng.logistic(size=n) > 0, "yes", "no")
table = pd.DataFrame({"age": age, "sex": sex, "hospital": hospital, "ill": ill})

# %%
federation = Federation.from_frame(table, target="ill", client="hospital", impute="median", intercept=True)
best = Problem(federation, Logistic(), l2=0.01, intercept=True).solve()
print(best)
with tempfile.TemporaryDirectory() as folder:
    best.save(folder)
    model = LinearModel.load(folder)  # elsewhere, later: without the rows

# %%
# Columns may come in any order, with others between them; a gap is filled with the median of the training rows.
new = pd.DataFrame({"note": "-", "sex": ["f", "m", "x"] * 40, "age": np.repeat(np.linspace(30, 90, 40), 3)})
new.loc[5, "age"] = np.nan
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    chance = model.predict_proba(new)[:, 1]
print(*{str(w.message) for w in said}, sep="\n")

# %%
fig, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
for name, style in (("f", "o"), ("m", "s"), ("x", "^")):
    mine = (new["sex"] == name) & new["age"].notna()
    ax.plot(new["age"][mine], chance[mine], style, markersize=4, label={"x": "x, never seen"}.get(name, name))
ax.axhline(chance[5], color="0.6", linestyle="--", label="x without an age")
ax.set(xlabel="age", ylabel="probability of being ill", ylim=(0, 1))
ax.legend(frameon=False, title="sex")
plt.show()

# %%
# A value that no training row had counts as none of those known, and a warning names it: its curve says what the age
# alone says.
