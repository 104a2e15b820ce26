"""
Resume after a kill
===================

A run saves itself now and then. Killed at any moment and started again, it ends with the same bits as one that was
never stopped, because random draws are functions of seed, round and client and nothing else.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

SOURCE = """
from fedconvex import FedAvg, Problem, Squared, run
from fedconvex.datasets import linear_federation

federation = linear_federation(n_clients=6, rows_per_client=10, n_features=3, model_shift=1.0, seed=0).federation
problem = Problem(federation, Squared())
method = FedAvg(step_size=0.1, local_steps=3, batch_size=2, participation=0.5)
"""
exec(SOURCE)
how = {"tol": 0.0, "seed": 1}

# %%
# A child process is killed in the middle of its work, as soon as it has saved something.
folder = tempfile.TemporaryDirectory()
file = Path(folder.name) / "run.npz"
endless = f"run(method, problem, rounds=10**7, tol=0.0, seed=1, checkpoint={str(file)!r}, checkpoint_every=7)"
child = subprocess.Popen([sys.executable, "-c", SOURCE + endless])
while not file.exists():
    time.sleep(0.01)
child.kill()
child.wait()
with np.load(file) as saved:
    done = json.loads(saved["description"].tobytes())["round"]
print(f"killed; {done} rounds were saved")

# %%
# Started again, the run goes on where the checkpoint stands. Another one is never stopped.
rounds = done + 60
resumed = run(method, problem, rounds=rounds, checkpoint=file, **how)  # noqa: F821
whole = run(method, problem, rounds=rounds, **how)  # noqa: F821
folder.cleanup()
print("equal bit for bit:", np.array_equal(resumed.w, whole.w), np.array_equal(resumed.trace.value, whole.trace.value))

# %%
best, shown = problem.solve(), slice(max(0, done - 60), None)  # noqa: F821
fig, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
ax.plot(
    whole.trace.round[shown], whole.trace.value[shown] - best.value, color="0.75", linewidth=6, label="never stopped"
)
ax.plot(
    resumed.trace.round[shown], resumed.trace.value[shown] - best.value, color="#D55E00", label="killed and resumed"
)
ax.axvline(done, color="black", linestyle=":", label="last checkpoint before the kill")
ax.set(xlabel="communication rounds", ylabel="F(w) − F*", yscale="log")
ax.legend(frameon=False)
plt.show()

# %%
# The resumed run lies exactly on the one that was never stopped, noise and all.
