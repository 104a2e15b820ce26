"""
What gradients and predictions reveal
=====================================

Rows stay where they are, but answers are made of them. The gradient of one row is the row, up to a factor; that of many
is a mean. And a model over columns of two owners predicts with the sum of both parts: who knows one part, and the
prediction, knows the other.
"""

# %%
# Clients of 1, 2, 10 and 100 images of sevens and ones, and what a server can make of their gradients.
import matplotlib.pyplot as plt
import numpy as np

from fedconvex import Federation, Logistic, Problem, VerticalFederation
from fedconvex.datasets import load_bundled
from fedconvex.problems import VerticalProblem

digits = load_bundled("digits", standardised=False)
some = np.flatnonzero(np.isin(digits.y, (1, 7)))[: 1 + 2 + 10 + 100]
X = np.hstack([digits.X[some] / 16.0, np.ones((some.size, 1))])  # with an intercept
owner = np.repeat(["1 row", "2 rows", "10 rows", "100 rows"], [1, 2, 10, 100])
problem = Problem(Federation.from_arrays(X, np.where(digits.y[some] == 7, 1.0, -1.0), owner), Logistic())
at = 0.1 * np.random.default_rng(0).normal(size=(10, 65))  # models that a server may send
each = np.array([problem.client_gradients(w) for w in at])  # (10, clients, 65)
names = problem.federation.labels.tolist()
for name in ("1 row", "2 rows", "10 rows"):
    k = names.index(name)
    rows, g = X[owner == name], each[:, k]
    span = np.linalg.svd(g[: len(rows)], full_matrices=False)[2]
    off = np.linalg.norm(rows - rows @ span.T @ span) / np.linalg.norm(rows)
    nearest = np.abs(rows - g[0] / g[0, -1]).max(axis=1).min()  # the intercept's feature is 1: its entry is the factor
    print(f"{name}: one gradient gives a row to {nearest:.1g}; {len(rows)} of them span all rows to {off:.1g}")

# %%
# Two owners of columns, a clinic of nine and a laboratory of one. The clinic knows its own columns, its own
# coefficients and the predictions: what is missing in the log odds is the laboratory's column, times a coefficient.
cancer, y, _ = load_bundled("breast_cancer")
fed = VerticalFederation.from_blocks({"clinic": cancer[:, :9], "laboratory": cancer[:, 20:21]}, y)
w = VerticalProblem(fed, Logistic(), l2=0.01).solve().w
p = 1.0 / (1.0 + np.exp(-(cancer[:, [*range(9), 20]] @ w)))
known = cancer[:, :9] @ w[:9]
for digits_kept in (16, 2, 1):
    q = np.clip(np.round(p, digits_kept), 10.0**-digits_kept / 2.0, 1.0 - 10.0**-digits_kept / 2.0)
    guess = np.log(q / (1.0 - q)) - known
    sure = (p > 0.05) & (p < 0.95)
    r = np.corrcoef(guess[sure], cancer[sure, 20])[0, 1]
    print(f"predictions with {digits_kept} digits: correlation {abs(r):.4f} with the laboratory's column")

# %%
figure, axes = plt.subplots(1, 5, figsize=(13, 3.0), layout="constrained")
for axis, name in zip(axes, ("1 row", "2 rows", "10 rows", "100 rows"), strict=False):
    g = each[0, names.index(name)]
    axis.imshow(np.sign(g[-1]) * g[:64].reshape(8, 8), cmap="gray_r")
    axis.set_title(f"gradient of {name}")
    axis.set_axis_off()
axes[4].plot(cancer[:, 20], np.log(p / (1.0 - p)) - known, ".", markersize=3)
axes[4].set_xlabel("the laboratory's column")
axes[4].set_ylabel("log odds less the clinic's part")
plt.show()

# %%
# One row is sent whole, with its label. More rows are not safe either: as many gradients as a client has rows span
# them. Sites count what they answer (docs/sites.md), secure sums add at least two clients, and rounded predictions help
# little where a part has one column. What is exchanged must be decided by those who answer for the rows.
