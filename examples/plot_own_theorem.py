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
from fedconvex.theorems.kit import (
    EVERYWHERE,
    LAST_SYNCHRONISED,
    Bound,
    Hypothesis,
    Reading,
    Statement,
    Theorem,
    fixed_step,
    require,
)
from fedconvex.traits import traits_of
from fedconvex.verify import curve, verify


def rate(constants, *, step_size, rounds):
    """Return L D^2/(4 T eta L + 2)."""
    holds = require(
        "rate", Hypothesis("eta <= 1/L", f"eta L = {step_size * constants.L:.3g}", step_size * constants.L <= 1.0)
    )
    value = constants.L * constants.D**2 / (4 * rounds * step_size * constants.L + 2)
    return Bound({"start": value}, LAST_SYNCHRONISED, "Drori and Teboulle 2014", holds)


def read(s):
    """Read the bound's arguments off a setting: one plain full step of everybody a round."""
    local = traits_of(s.method, s.problem).local
    checked = require(
        "rate", Hypothesis("one full step", repr(s.method), local.plain and local.full and local.equal_steps == 1)
    )
    return Reading({"constants": s.constants(), "step_size": s.method.step_size, "rounds": s.rounds}, checked)


statement = Statement(
    page="rate", title="Gradient descent", scope=EVERYWHERE, setting="w_{t+1} = w_t - eta grad F(w_t).",
    assumptions="F convex and L-smooth.", statement="F(w_T) - F* <= L D^2/(4 T eta L + 2).",
    source="Drori and Teboulle 2014.", differs="Nothing.", meaning="One over T.", proof="There.",
    loose="Sharp for one function.",
)  # fmt: skip
theorem = Theorem(
    name="rate", title="Gradient descent", quantity=LAST_SYNCHRONISED, bound=rate, read=read, statement=statement,
    says="1/T.", loose="Linear if strongly convex.", method=fixed_step(1.0), rounds=20, checks=(),
)  # fmt: skip

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
