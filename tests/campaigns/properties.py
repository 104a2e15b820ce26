"""Hypothesis tests with many examples: every trial takes one of them and a seed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


def properties():
    """Names of all tests with examples of hypothesis."""
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and any("given(" in ast.unparse(d) for d in node.decorator_list):
                yield f"{path}::{node.name}"


def property_trial(rng):
    """Run a property in a process of its own, interpreted, with the examples of profile `campaign`."""
    names, seed = list(properties()), int(rng.integers(2**31))
    name = names[rng.integers(len(names))]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", f"--hypothesis-seed={seed}"]
    env = os.environ | {"NUMBA_DISABLE_JIT": "1", "HYPOTHESIS_PROFILE": "campaign", "OPENBLAS_NUM_THREADS": "1"}
    env.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run([*command, name], env=env, cwd=HERE.parent, capture_output=True, text=True)
    assert done.returncode == 0, f"{name}, --hypothesis-seed={seed}:\n{done.stdout[-1500:]}"
    return {"test": name.rpartition("/")[2], "hypothesis_seed": seed}
