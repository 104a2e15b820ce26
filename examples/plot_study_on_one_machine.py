"""
A whole study on one machine
============================

Three hospitals, a coordinator, certificates and a network, with invented rows: a study as it would run in earnest. What
comes back are coefficients, and a count of the numbers that each site gave for them.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

AGREED = """
[study]
name = "falls"
[coordinator]
address = "localhost:5555"
[sites]
require = ["Aarhus", "Bergen", "Lund"]
[ask]
analyse = { family = "logistic", strata = "site" }
[target]
column = "fell"
values = ["no", "yes"]
[columns.age]
kind = "number"
center = 75
scale = 8
[columns.walks]
kind = "category"
values = ["alone", "with a stick", "with help"]
"""

# %%
# ``fedconvex study try`` plays all roles: it makes certificates, checks every site, and runs them over TLS on this
# machine.
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "study.toml")
    file.write_text(AGREED)
    command = [sys.executable, "-m", "fedconvex", "study", "try", file, "--rows", "200", "--folder", f"{folder}/here"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    answer = json.loads(Path(folder, "here", "results", "analysis.json").read_text())
print(*[line for line in said.splitlines() if line.startswith(("Sites", "Converged"))], sep="\n")

# %%
rows = answer["coefficients"]
fig, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
for place, row in enumerate(rows):
    ax.plot(np.exp([row["low"], row["high"]]), [-place, -place], "-|", color="#0072B2")
    ax.plot(np.exp(row["estimate"]), -place, "o", color="#0072B2")
ax.axvline(1.0, color="0.7")
ax.set(xscale="log", xlabel="odds ratio (95 % interval)", yticks=[-i for i in range(len(rows))])
ax.set(yticklabels=[row["name"] for row in rows], ylim=(0.5 - len(rows), 0.5), xticks=[1, 2], xticklabels=["1", "2"])
ax.set_title(f"{answer['rows']} rows at {len(answer['clients'])} sites that sent sums only", fontsize=10)
plt.show()

# %%
# No row has left its site: the coordinator has these numbers from sums under masks, and the certificate says how near
# they are to the fit of the pooled table.
