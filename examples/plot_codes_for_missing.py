"""
A zero that means missing
=========================

Four hospitals send tables of one study. Two of them wrote 0 where cholesterol was not measured. Taken as numbers, these
zeros hide most of an effect; found and declared, they cost rows only.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from fedconvex.analysis import analyse
from fedconvex.tables import look

rng = np.random.default_rng(7)
hospital = np.repeat(["Basel", "Budapest", "Cleveland", "Long Beach"], [120, 290, 300, 200])
n = len(hospital)
age, chol = rng.normal(55, 9, n).round(), rng.normal(240, 45, n).round()
score = -0.2 + 0.05 * (age - 55) + 0.012 * (chol - 240) + 1.2 * (hospital == "Basel")
ill = np.where(score + rng.logistic(size=n) > 0, "yes", "no")
lost = ((hospital == "Basel") & (rng.random(n) < 0.9)) | ((hospital == "Long Beach") & (rng.random(n) < 0.25))
table = pd.DataFrame({"age": age, "chol": np.where(lost, 0.0, chol), "hospital": hospital, "ill": ill})
complete = table.assign(chol=chol)  # what nobody has

# %%
# What does a table look like before anything is fitted?
for finding in look(table, "hospital"):
    print(f"{finding.client:11}{finding.column:6}{finding.found}")

# %%
# A code is not guessed: analyse stops and asks. Kept as they are, zeros are numbers; declared, they are missing cells,
# whose rows are left out and counted.
try:
    analyse(table, "ill", "hospital")
except ValueError as refusal:
    print(refusal)
found = {
    "zeros as numbers": analyse(table, "ill", "hospital", site_intercepts=True, keep=["chol"]),
    "zeros as missing": analyse(table, "ill", "hospital", site_intercepts=True, missing=["chol=0"]),
    "nothing missing": analyse(complete, "ill", "hospital", site_intercepts=True),
}

# %%
fig, ax = plt.subplots(figsize=(8, 3.2), layout="constrained")
for place, answer in enumerate(found.values()):
    at = answer.names.index("chol")
    ratio, error = 50 * answer.estimates[at], 50 * answer.standard_errors[at]
    ends = np.exp(np.array([ratio - 1.96 * error, ratio + 1.96 * error]))
    ax.plot(ends, [-place, -place], "-|", color="#0072B2")
    ax.plot(np.exp(ratio), -place, "o", color="#0072B2")
ax.axvline(np.exp(50 * 0.012), color="0.6", linestyle="--", label="the truth")
ax.axvline(1.0, color="0.8")
ax.set(xlabel="odds ratio of 50 mg/dl more cholesterol", yticks=[0, -1, -2], yticklabels=list(found), ylim=(-2.6, 0.6))
ax.legend(frameon=False, loc="lower right")
plt.show()

# %%
# With zeros as numbers the odds ratio shrinks from 1.8 to 1.3, in an interval that looks precise and misses the
# truth. As missing, the rows that are left give nearly what a table without gaps would give, a little less precisely.
