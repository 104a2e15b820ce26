"""Kills at random moments and corrupted files: a run ends with its own bits or is refused by name, and nothing else."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import conftest
import numpy as np
from test_contract import EVERY, kinds, made

from fedconvex import run
from fedconvex.driver import checkpoint
from fedconvex.driver.cycles import leaves
from fedconvex.models import LinearModel
from fedconvex.problems import QEnsemble, Stump, Tree
from tests.campaigns.children import Child, in_a_child

FIXTURES = {"linear": conftest._linear, "logistic": conftest._logistic, "softmax": conftest._softmax}


def random_case(rng: np.random.Generator) -> tuple[str, str, Any, Any]:
    """A method with settings and a problem that it is for: names and both."""
    name = list(EVERY)[rng.integers(len(EVERY))]
    kind = kinds(name)[rng.integers(len(kinds(name)))]
    return name, kind, EVERY[name], FIXTURES[kind]() if kind in FIXTURES else made(kind)


def fingerprint(method: Any, problem: Any, rounds: int, **how: Any) -> str:
    """Digest of everything that a run returns, its seconds excepted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run(method, problem, rounds=rounds, seed=5, tol=0.0, progress=False, **how)
    h = hashlib.sha256(f"{found.status} {found.rounds}".encode())
    state = [v for _, v in leaves(found.state)]
    for a in (*state, np.asarray(found.gap), *(v for k, v in found.trace.items() if k != "seconds")):
        h.update(np.ascontiguousarray(a).tobytes())
    return h.hexdigest()


# ---------------------------------------------------------------- kills


def kill_trial(rng: np.random.Generator, kills: int = 5) -> dict[str, Any]:
    """A run killed at random moments, in half of the trials two on one path, ends with the bits of one left alone."""
    name, kind, method, problem = random_case(rng)
    together, rounds, begin = int(rng.integers(1, 3)), 40, time.perf_counter()
    whole = in_a_child(lambda: fingerprint(method, problem, rounds), 300.0)
    took = max(time.perf_counter() - begin, 0.02)
    assert "returned" in whole, whole
    folder = tempfile.mkdtemp(prefix="fedconvex-kills-")
    path, left = os.path.join(folder, "c"), 0
    try:
        for _ in range(kills):
            how = {"checkpoint": path, "checkpoint_every": int(rng.integers(1, 4))}
            children = [Child(lambda how=how: fingerprint(method, problem, rounds, **how)) for _ in range(together)]
            time.sleep(rng.uniform(0.0, 1.2 * took))
            for child in children:
                child.kill()
            left += len([f for f in os.listdir(folder) if f.endswith(".part")])
        last = [Child(lambda: fingerprint(method, problem, rounds, checkpoint=path)) for _ in range(together)]
        found = [child.result(300.0) for child in last]
        assert all(one == whole for one in found), (name, kind, together, whole, found)
        assert os.listdir(folder) == ["c"], os.listdir(folder)
    finally:
        shutil.rmtree(folder)
    return {"name": name, "kind": kind, "together": together, "kills": kills * together, "half_written": left}


# ---------------------------------------------------------------- corruptions


def corruption_trial(rng: np.random.Generator) -> dict[str, Any]:
    """A checkpoint or a saved model is damaged: what reads it refuses it by name, or gets what was written."""
    with tempfile.TemporaryDirectory(prefix="fedconvex-corruptions-") as folder:
        path, read, about = SUBJECTS[rng.integers(len(SUBJECTS))](rng, Path(folder))
        whole = in_a_child(read, 300.0)
        assert "returned" in whole, (about, whole)
        damage = bend_bytes(rng, path) if rng.random() < 0.4 else craft(rng, path, signed="checkpoint" in about)
        found = in_a_child(read, 300.0, memory=4 << 30)
    assert "hung" not in found, (about, damage)
    assert "crashed" not in found, (about, damage, found)
    if "raised" in found:
        text = found["message"]
        ours = found["raised"] in ("ValueError", "TypeError") and " must " in text and "; got " in text
        assert ours, (about, damage, found)
    else:
        assert found == whole, (about, damage)
    return {"about": about, "damage": damage, "refused": "raised" in found}


def _checkpoint(rng: np.random.Generator, folder: Path) -> tuple[Path, Any, str]:
    name, kind, method, problem = random_case(rng)
    path, how = folder / "c", {"trajectories": int(rng.integers(1, 3))}
    made_file = in_a_child(lambda: fingerprint(method, problem, 3, checkpoint=path, **how), 300.0)
    assert "returned" in made_file, made_file

    def read() -> str:
        before = path.read_bytes()
        try:
            return fingerprint(method, problem, 6, checkpoint=path, **how)
        finally:  # reading went on with the run
            path.write_bytes(before)

    return path, read, f"checkpoint of {name}, {kind}"


def _linear_model(rng: np.random.Generator, folder: Path) -> tuple[Path, Any, str]:
    C, X = int(rng.integers(1, 4)), rng.normal(size=(5, 3))
    coef = rng.normal(size=3) if C == 1 else rng.normal(size=(C, 3))
    classes = (None, ("no", "yes"))[rng.integers(2)] if C == 1 else tuple("abc"[:C])
    LinearModel(coef, np.zeros(coef.shape[:-1]), classes, ("u", "v", "w"), {"loss": "x"}).save(folder)
    return folder / "model.npz", lambda: _listed(LinearModel.load(folder).predict(X)), "linear model"


def _ensemble(rng: np.random.Generator, folder: Path) -> tuple[Path, Any, str]:
    trees, X = bool(rng.integers(2)), rng.normal(size=(5, 3))
    tree = Tree(*(np.array(v) for v in ([0, -2, -2], [0.1, 0.0, 0.0], [1, -1, -1], [2, -1, -1], [0.0, -1.0, 1.0])))
    members = [tree, tree] if trees else [Stump(0, 0.1, -1.0, 1.0), Stump(2, -0.2, 1.0, -0.5)]
    QEnsemble(members, [0, 1], [0.5, 1.5], n_sources=2).save(folder / "q.npz")
    return folder / "q.npz", lambda: _listed(QEnsemble.load(folder / "q.npz").decision_function(X)), "ensemble"


def _listed(a: np.ndarray) -> list:
    return np.asarray(a).tolist()


SUBJECTS = (_checkpoint, _checkpoint, _linear_model, _ensemble)


def bend_bytes(rng: np.random.Generator, path: Path) -> str:
    """Flip, cut, blank or insert bytes."""
    data, kind = bytearray(path.read_bytes()), ("flip", "cut", "blank", "insert", "swap")[rng.integers(5)]
    at, n = int(rng.integers(len(data))), int(rng.integers(1, 65))
    if kind == "flip":
        for i in rng.integers(len(data), size=n):
            data[i] ^= 1 << int(rng.integers(8))
    elif kind == "cut":
        del data[at:]
    elif kind == "blank":
        data[at : at + 8 * n] = bytes(len(data[at : at + 8 * n]))
    elif kind == "insert":
        data[at:at] = rng.bytes(n)
    else:
        data[at : at + n], data[:n] = data[:n], data[at : at + n]
    path.write_bytes(data)
    return f"{kind} at {at}, {n}"


def craft(rng: np.random.Generator, path: Path, signed: bool) -> str:
    """Change one array to what no run could have written, and make the digest right again."""
    with np.load(path, allow_pickle=False) as f:
        arrays = dict(f)
    about = json.loads(arrays.pop("description").tobytes()) if signed else {}
    if signed and rng.random() < 0.2:
        told = bend_description(rng, about)
    else:
        name = sorted(arrays)[rng.integers(len(arrays))]
        told = f"{name}: {bend_array(rng, arrays, name)}"
    if signed:
        t, floats = about.get("round", 0), about.get("floats", [])
        about["digest"] = checkpoint._digest({k: v for k, v in arrays.items() if v.dtype != object}, t, floats)
        arrays["description"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, **arrays)
    path.write_bytes(buffer.getvalue())
    return told


def bend_array(rng: np.random.Generator, arrays: dict[str, np.ndarray], name: str) -> str:
    """Give an array another type, shape, or entries that it cannot have."""
    a = arrays[name]
    ways = {
        "dropped": None, "float32": a.astype(np.float32) if a.dtype.kind in "fiu" else a.astype(object),
        "objects": a.astype(object), "text": a.astype(str) if a.dtype.kind in "fiu" else np.ones(3),
        "deeper": a[None], "flat": np.concatenate([a.ravel(), a.ravel(), np.zeros(1, a.dtype)]),
        "complex": a.astype(complex) if a.dtype.kind in "fiu" else np.ones(2, complex),
        "no rows": a[:0] if a.ndim else a[None], "two axes more": a[None, None],
    }  # fmt: skip
    own_column = name.startswith("trace/") and name not in ("trace/value", "trace/round")  # may hold what it likes
    if a.size and a.dtype.kind == "f" and not own_column:
        ways |= {"NaN": _with(rng, a, np.nan), "infinity": _with(rng, a, np.inf)}
    if a.size and a.dtype.kind == "i" and not own_column:
        ways |= {"far": a + 10**9, "negative": -5 - np.abs(a)}
    way = sorted(ways)[rng.integers(len(ways))]
    arrays.pop(name)
    if way != "dropped":
        arrays[name] = ways[way]
    return way


def _with(rng: np.random.Generator, a: np.ndarray, v: float) -> np.ndarray:
    b = a.copy()
    b.reshape(-1)[rng.integers(b.size)] = v
    return b


def bend_description(rng: np.random.Generator, about: dict[str, Any]) -> str:
    """Say something else about the run."""
    ways = {
        "round": [about["round"] + 1, about["round"] - 1, -1, 10**30, 1.5, None, "x"],
        "floats": [[-1, 0], [1], None, "x", 5],
        "about": [{}, None, [], about["about"] | {"method": "another"}, about["about"] | {"l2": float("nan")}],
    }  # fmt: skip
    key = sorted(ways)[rng.integers(len(ways))]
    about[key] = ways[key][rng.integers(len(ways[key]))]
    return f"description: {key} = {about[key]!r}"[:200]
