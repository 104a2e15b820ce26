"""
Local steps and drift
=====================

More local steps save rounds at first, and cost accuracy in the end: each client walks towards its own optimum. For
least squares the point where FedAvg ends is known in closed form.
"""

import matplotlib.pyplot as plt

from fedconvex import FedAvg, Problem, Squared, run
from fedconvex.datasets import linear_federation
from fedconvex.theory import Moments

federation = linear_federation(
    n_clients=6, rows_per_client=12, n_features=3, feature_shift=0.5, model_shift=1.0, seed=2
).federation
problem = Problem(federation, Squared())
best, step, rounds = problem.solve(), 0.5 / problem.constants().L, 150

# %%
fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
for local_steps in (1, 2, 5, 20):
    method = FedAvg(step_size=step, local_steps=local_steps)
    trace = run(method, problem, rounds=rounds, tol=0.0).trace
    (line,) = ax.plot(
        trace.round, trace.value - best.value, label=f"{local_steps} local step" + "s" * (local_steps > 1)
    )
    if local_steps > 1:  # where it ends, without running it
        limit = Moments.of(method, problem).steady_state().suboptimality
        ax.axhline(limit, color=line.get_color(), linestyle=":", linewidth=1)
ax.set(xlabel="communication rounds", ylabel="F(w) − F*", yscale="log", ylim=(1e-8, None))
ax.legend(frameon=False)
plt.show()

# %%
# Twenty local steps are the fastest for a few rounds and end the furthest from the optimum; the dotted lines are
# the exact limits. Only one local step ends at the optimum itself.
