"""
A posterior over clients, and why its rounds are damped
=======================================================

VIRTUAL (Corinzia, Beuret, Buhmann 2019): every client refines a Gaussian factor of the posterior, the server multiplies
the factors. Five clients with correlated features: without damping the rounds diverge.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from fedconvex import DivergenceWarning, Federation, Logistic, run
from fedconvex.methods import VIRTUAL
from fedconvex.problems import GaussianPosteriorProblem

rng = np.random.default_rng(0)
theta, pairs = np.array([1.0, -0.5, 0.0, 0.0]), []
for _ in range(5):
    X = rng.normal(size=(30, 1)) + 0.5 * rng.normal(size=(30, 4))
    pairs.append((X, np.where(rng.random(30) < 1 / (1 + np.exp(-X @ theta)), 1.0, -1.0)))
problem = GaussianPosteriorProblem(Federation.from_clients(pairs), Logistic())

# %%
# With a number for rho the damping is fixed; ``"auto"`` halves it where the certificate grows.
warnings.simplefilter("ignore", DivergenceWarning)
runs = {rho: run(VIRTUAL(rho=rho), problem, rounds=60, tol=1e-8) for rho in (1.0, 0.5, "auto")}
result = runs["auto"]
print(result, "rho ended at", result.trace.damping[-1])

print("variance deficit:", problem.posterior(result.state).variance_deficit.round(2))

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
for rho, r in runs.items():
    left.semilogy(r.trace.round, r.trace.gap, label=f"rho = {rho}")
left.set(xlabel="round", ylabel="certified gap of the free energy")
left.legend(frameon=False)
posterior = problem.posterior(result.state)
x = np.linspace(-4, 4, 101)
for direction, colour in ((np.ones(4) / 2, "C0"), (np.array([1.0, -1.0, 0.0, 0.0]), "C1")):
    found = posterior.predict(x[:, None] * direction)
    right.plot(x, found.mean, colour, label=f"along {direction.tolist()}")
    right.fill_between(x, found.low, found.high, color=colour, alpha=0.2)
right.set(xlabel="distance from the origin", ylabel="P(y = 1), and 95 % of the posterior")
right.legend(frameon=False)
plt.show()

# %%
# The band is wide where there are no rows. Yet the diagonal posterior leaves out correlations, and its variances are
# too small: ``posterior.variance_deficit`` says by how much, here by more than a half.
