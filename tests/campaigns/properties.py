"""Hypothesis tests with many examples: every trial takes one file and a seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
FILES = [path for path in sorted(HERE.glob("test_*.py")) if "@given" in path.read_text()]


def property_trial(rng, files=FILES):
    """Run the properties of a file in a process of its own, interpreted, with the examples of profile `campaign`."""
    file, seed = files[rng.integers(len(files))], int(rng.integers(2**31))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "hypothesis", "-p", "no:cacheprovider"]
    env = os.environ | {"NUMBA_DISABLE_JIT": "1", "HYPOTHESIS_PROFILE": "campaign", "OPENBLAS_NUM_THREADS": "1"}
    env.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        [*command, f"--hypothesis-seed={seed}", str(file)], env=env, cwd=HERE.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{file.name}, --hypothesis-seed={seed}:\n{done.stdout[-1500:]}"
    return {"file": file.name, "hypothesis_seed": seed}
