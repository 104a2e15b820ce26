"""
Blocks of a table
=================

Three hospitals have different patients. Two of them share a laboratory, which has other columns of the same patients.
Nobody sends rows: what goes back and forth are partial scores and moves of dual variables, and every round certifies
how far the model is from the best one over the whole table.
"""

# %%
# Owners name their rows and columns. What nobody has is named, too: the laboratory knows nobody of the third hospital.
import warnings

import matplotlib.pyplot as plt
import numpy as np

from fedconvex import DivergenceWarning, HybridFederation, Logistic, run
from fedconvex.datasets import load_bundled
from fedconvex.methods import HybridDualAscent, HyFDCA, TrackedBlockDescent
from fedconvex.problems import HybridProblem

X, y, names = load_bundled("breast_cancer")
ids, look, lab = np.arange(len(y)), list(names[:10]), list(names[10:])
parts = {"north": ids[:200], "south": ids[200:380], "east": ids[380:]}
blocks = {name: (X[rows, :10], rows, look, y[rows]) for name, rows in parts.items()}
blocks["laboratory"] = (X[:380, 10:], ids[:380], lab)
fed = HybridFederation.from_blocks(blocks)
print(fed)
for group, columns in fed.missing:
    print(f"nobody has {len(columns)} columns of the rows of {group}")

# %%
# From rows that all move at once to local steps. The last method goes without what makes local steps safe: the dual
# objective falls, and the certificate says that nothing was found.
problem = HybridProblem(fed, Logistic(), l2=0.1)
methods = {
    "dual ascent": HybridDualAscent(),
    "HyFDCA, 3 passes": HyFDCA(passes=3),
    "tracked steps, Q = 3": TrackedBlockDescent(step_size="auto", local_steps=3),
    "HyFDCA without its safeguard": HyFDCA(passes=3, safeguard=False),
}
figure, axis = plt.subplots(layout="constrained")
for name, method in methods.items():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)  # of the last one, as is meant
        result = run(method, problem, rounds=150, tol=1e-10, progress=False)
    print(f"{name}: gap {result.gap:.1e} after {result.rounds} rounds, {result.trace.floats_up[-1]:,} numbers sent")
    axis.semilogy(result.trace.round, np.maximum(result.trace.gap, 1e-12), label=name)
axis.set_xlabel("rounds")
axis.set_ylabel("certified gap")
axis.legend()
plt.show()

# %%
# Gaps are bounds that the run itself proves, whoever owns what: see docs/hybrid.md for what each round costs.
