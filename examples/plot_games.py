"""
Players who overshoot
=====================

Four clients own environments and share one predictor, the sum of their strategies. Each answers the others with its
best response (Ahuja et al. 2020). If all answer at once they overshoot together, although they agree; against means of
the last strategies (Gupta et al. 2022) they settle once the buffer is as long as there are players.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedconvex import Squared, run
from fedconvex.datasets import federation_of_moments
from fedconvex.methods import FLGame, IRMGame
from fedconvex.problems import GameProblem

rng, v = np.random.default_rng(0), np.array([0.7, -0.2])  # what all environments have in common
A = rng.normal(size=(4, 2, 2))
S = A @ A.transpose(0, 2, 1) + 0.5 * np.eye(2)
rest = np.einsum("i,eij,j->e", v, S, v) + 1.0
problem = GameProblem(federation_of_moments(S, S @ v, rest), Squared(), bound=50.0)

# %%
methods = {"in turn": IRMGame(), "all at once": IRMGame(order="parallel")}
methods |= {f"means of the last {b}": FLGame(buffer=b) for b in (3, 5, 8)}
colours = ("#009E73", "#D55E00", "#CC79A7", "#0072B2", "#000000")

# %%
fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
for (name, method), colour in zip(methods.items(), colours, strict=True):
    result = run(method, problem, rounds=600, tol=1e-6)
    b = getattr(method, "buffer", 0)  # errors shrink, or grow, by the largest root of z^b + (3/b)(z^(b-1) + ... + 1)
    factor = f" (factor {abs(np.roots([1, *[3 / b] * b])).max():.3f} a round)" if b else ""
    end = {"CYCLE": "a cycle", "CONVERGED": "an equilibrium"}[result.status.name]
    moves = (result.trace.round / (4 if name == "in turn" else 1))[1:]  # a round in turn is the move of one player
    gap = np.maximum(result.trace.gap[1:], 1e-7)
    ax.loglog(moves, gap, color=colour, linewidth=1, label=f"{name}{factor}: {end}")
    ax.plot(moves[-1], gap[-1], "x" if end == "a cycle" else "o", color=colour)
ax.set(xlabel="moves of every player", ylabel="certificate N(w)", ylim=(5e-8, 1e7))
ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 0.1))
plt.show()

# %%
# N(w) is at least what all players could gain by moving alone. Exact responses in turn are done after one sweep; all at
# once they end in a cycle at their bounds. A buffer shorter than the number of players does not settle; those that are
# long enough do, at nearly the same rate.
