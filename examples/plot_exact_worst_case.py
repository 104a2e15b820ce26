"""
Exact worst cases
=================

How bad can FedAvg be on any convex, smooth problem? A semidefinite program knows, with certificates on both sides
(Drori and Teboulle 2014; Taylor, Hendrickx, Glineur 2017), and shows what a bound leaves on the table.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedconvex.theory.worst_case import AtOptimum, Problems, fedavg, worst_case

steps = np.array([0.1, 0.2, 0.35, 0.5, 0.7, 0.9])

# %%
fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
for zeta, colour in ((0.0, "#0072B2"), (1.0, "#009E73"), (3.0, "#D55E00")):
    problems = Problems(clients=2, L=1.0, D=1.0, heterogeneity=AtOptimum(zeta))
    found = [worst_case(fedavg(float(s), local_steps=2, rounds=1), problems, "shadow") for s in steps]
    ax.plot(steps, [w.upper for w in found], "o-", color=colour, label=f"ζ* = {zeta:g}")
    ax.vlines(steps, [w.lower for w in found], [w.upper for w in found], color=colour)
    print(zeta, max(w.upper - w.lower for w in found))  # both sides are certified
ax.set(xlabel="step size, units of 1/L", ylabel="worst mean suboptimality, units of L D²", ylim=(0, None))
ax.legend(frameon=False, title="heterogeneity at the optimum")
plt.show()

# %%
# No function of the class is worse than these points, and one attains each of them. Where clients agree (ζ* = 0)
# large steps pay; the more they disagree, the smaller the step that is safest.
