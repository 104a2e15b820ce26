"""
Write your own loss
===================

A loss is a named tuple with ``value`` and ``slope``, and whatever else it declares of itself. Here: log-cosh,
squared near 0 and absolute far away, so that gross errors of a few clients do not move the model much.
"""

import math
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from fedconvex import FedAvg, Federation, Problem, Squared, run
from fedconvex.loss_traits import declares


@declares(task="regression", lower_bound=0.0, smoothness=1.0, lipschitz=1.0, self_concordance=2.0)
class LogCosh(NamedTuple):
    def value(self, z, y):
        r = abs(z - y)
        return r + math.log1p(math.exp(-2.0 * r)) - math.log(2.0)

    def slope(self, z, y):
        return math.tanh(z - y)

    def curvature(self, z, y):
        t = math.exp(-2.0 * abs(z - y))
        return 4.0 * t / ((1.0 + t) * (1.0 + t))


# %%
# Six clients measure the same line; the last one's instrument is broken.
rng = np.random.default_rng(0)
x, clients = rng.uniform(-2, 2, 120), np.arange(120) % 6
y = 1.0 + 0.8 * x + 0.3 * rng.normal(size=120)
y[clients == 5] += rng.uniform(4, 12, 20)
federation = Federation.from_arrays(x[:, None], y, clients).with_intercept()
robust = Problem(federation, LogCosh(), l2=1e-3)
result = run(FedAvg(step_size="auto"), robust, rounds=200, tol=1e-8)
print(result, result.step_size)

# %%
fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
for mine, colour, label in ((clients < 5, "0.6", "clients 0 to 4"), (clients == 5, "#E69F00", "client 5")):
    ax.plot(x[mine], y[mine], ".", color=colour, label=label)
for w, style, label in (
    (Problem(federation, Squared(), l2=1e-3).solve().w, "--", "squared loss, exact"),
    (robust.solve().w, "-", "log-cosh, exact"),
    (result.w, ":", "log-cosh, FedAvg"),
):
    ax.plot([-2, 2], np.array([-2, 2]) * w[0] + w[1], style, linewidth=2, label=label)
ax.set(xlabel="x", ylabel="y")
ax.legend(frameon=False, loc="center left")
plt.show()

# %%
# The broken client lifts the line of the squared loss by one and a half units, and that of log-cosh by a fifth of
# a unit. Nothing else had to be written: steps, exact solution and certificate follow from what the loss declares.
