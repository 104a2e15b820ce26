"""
Write your own theorem
======================

The exact rate of gradient descent (Drori and Teboulle 2014, Theorem 3.1) as a theorem of this package: a bound as
a function of constants, and how its arguments are read off a run. ``verify`` and ``curve`` take it like their own.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedconvex import FedAvg, FedSGD, Problem, Squared
from fedconvex.datasets import linear_federation
from fedconvex.theory import LAST_SYNCHRONISED, Bound, Hypothesis, known_constants, require
from fedconvex.verify import curve, own_theorem, verify

SOURCE = "Drori and Teboulle 2014"


def rate(constants, *, step_size, local_steps, rounds):
    """Return L D^2/(4 T eta L + 2), for one full step of everybody a round."""
    L, D = known_constants(SOURCE, constants, "L", "D")
    requires = require(
        SOURCE,
        Hypothesis("eta <= 1/L", f"eta L = {step_size * L:.3g}", step_size * L <= 1.0),
        Hypothesis("one local step", f"{local_steps} steps", local_steps == 1),
    )
    return Bound({"start": L * D**2 / (4 * rounds * step_size * L + 2)}, LAST_SYNCHRONISED, SOURCE, requires)


theorem = own_theorem("rate", rate, local_steps=(1, 1), batches=0)

# %%
problem = Problem(
    linear_federation(n_clients=5, rows_per_client=10, n_features=4, condition=1000.0, seed=0).federation, Squared()
)
eta = 1 / problem.constants().L
print(verify(theorem, problem, FedSGD(step_size=eta), rounds=30))
print(verify(theorem, problem, FedSGD(step_size=3 * eta), rounds=30))
print(verify(theorem, problem, FedAvg(step_size=eta, local_steps=4), rounds=30))

# %%
line = curve(theorem, problem, FedSGD(step_size=eta), rounds=np.unique(np.geomspace(1, 1000, 15).astype(int)))
fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
ax.plot(line.rounds, line.bound, "s--", color="#D55E00", label="L D²/(4T + 2)")
ax.plot(line.rounds, line.measured, "o-", color="#0072B2", label="measured")
ax.set(xlabel="rounds T", ylabel="F(w) − F*", xscale="log", yscale="log")
ax.legend(frameon=False)
plt.show()

# %%
# The bound holds everywhere. It is the worst case over all smooth convex functions, and falls like 1/T; this
# problem is strongly convex, and the run faster. Too large a step and several local steps are refused by the
# hypotheses, each by name.
