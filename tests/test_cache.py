"""The disk cache of compiled kernels: it sees edits anywhere in the package, is reused, and users cannot poison it."""

from __future__ import annotations

import gc
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Flags

import fedconvex
from fedconvex import FedAvg, Federation, Problem, Squared, iterate
from fedconvex.kernels import averages, cache, jobs
from fedconvex.methods import Decay

pytestmark = pytest.mark.compiled(only="where nothing is compiled, nothing is cached")

SOURCE = Path(fedconvex.__file__).parent


@pytest.fixture
def package(tmp_path):
    """A copy of the package with no cache."""
    shutil.copytree(SOURCE, tmp_path / "fedconvex", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def python(folder, code, *args):
    """Run code in a new process that imports the package from the folder; what it prints, as JSON."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA")}
    env |= {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, cwd=folder, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def cache_files(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in (".nbi", ".nbc"))


VALUES = """
import json, os
import numpy as np
import fedconvex
from fedconvex.kernels import row_losses
from fedconvex.losses import Squared
assert fedconvex.__file__.startswith(os.getcwd()), fedconvex.__file__
out = np.empty((1, 1))
row_losses.row_values(Squared(), np.full((1, 1), 3.0), np.ones(1), out)
stats = row_losses.row_values.stats
print(json.dumps([out[0, 0], sum(stats.cache_hits.values()), sum(stats.cache_misses.values())]))
"""


@pytest.mark.slow
def test_edits_of_inlined_sources_are_seen_and_the_cache_is_reused(package):
    assert python(package, VALUES) == [2.0, 0, 1]
    files = cache_files(package)
    assert files  # it was written,
    assert all(package / "fedconvex" in p.parents for p in files)  # inside the package's own folder
    assert python(package, VALUES) == [2.0, 1, 0]  # and read: nothing was compiled
    losses = package / "fedconvex" / "losses" / "squared.py"
    text = losses.read_text()
    assert text.count("return 0.5 * (z - y) * (z - y)") == 1
    losses.write_text(text.replace("return 0.5 * (z - y) * (z - y)", "return 7.0 * (z - y) * (z - y)"))
    assert python(package, VALUES)[0] == 28.0  # jobs.py is as it was, but inlines the loss
    losses.write_text(text)
    assert python(package, VALUES) == [2.0, 1, 0]  # the old sources find their old cache


@pytest.mark.slow
def test_a_cache_folder_that_cannot_be_written_is_no_obstacle(package):
    """As after installation by root: the cache goes to the user's own folder, and without one it works uncached."""
    cache = package / "fedconvex" / "__pycache__"
    cache.write_text("a file where the folder should be")
    assert python(package, VALUES) == [2.0, 0, 1]
    assert all(package / "home" in p.parents for p in cache_files(package))
    assert python(package, VALUES) == [2.0, 1, 0]


USER = '''
from typing import NamedTuple

class Quartic(NamedTuple):
    """(z - y)^4 / 4."""
    def value(self, z, y):
        return 0.25 * (z - y) ** 4
    def slope(self, z, y):
        return (z - y) ** 3
    def curvature(self, z, y):
        return 3.0 * (z - y) ** 2
'''

WITH_USER = """
import json, sys
import numpy as np
from fedconvex.kernels import row_losses
from my_private_losses import Quartic
out, Z = np.empty((1, 1)), np.full((1, 1), 3.0)
row_losses.row_values(Quartic(), Z, np.ones(1), out)
row_losses.row_slopes(Quartic(), Z, np.ones(1))
print(json.dumps([out[0, 0], Z[0, 0]]))
"""


@pytest.mark.slow
def test_a_users_loss_does_not_poison_the_cache(package):
    home = package / "my_private_losses.py"
    home.write_text(USER)
    assert python(package, VALUES) == [2.0, 0, 1]
    assert python(package, WITH_USER) == [4.0, 8.0]
    assert python(package, WITH_USER) == [4.0, 8.0]
    home.write_text(USER.replace("0.25", "0.5"))
    assert python(package, WITH_USER) == [8.0, 8.0]  # an edit of the user's is seen as well
    home.unlink()
    assert python(package, VALUES) == [2.0, 1, 0]  # the package's own entries are intact
    for path in cache_files(package):
        content = path.read_bytes()
        assert b"my_private_losses" not in content, path
        assert b"Quartic" not in content, path


@pytest.mark.slow
def test_old_caches_are_pruned(package):
    """Caches of earlier sources do not pile up: an edit has one of its own, and the oldest others go."""
    losses = package / "fedconvex" / "losses" / "squared.py"
    light = "import json; from fedconvex.kernels import cache; print(json.dumps(cache._FOLDER))"
    first, home = Path(python(package, light)), package / "fedconvex" / "__pycache__"
    for i in range(6):
        (home / f"kernels-{i}").mkdir()
        os.utime(home / f"kernels-{i}", (i, i))
    losses.write_text(losses.read_text() + "\n# an edit\n")
    current = Path(python(package, light))
    assert current != first
    assert {*home.glob("kernels-*")} == {current, first, *(home / f"kernels-{i}" for i in (3, 4, 5))}


AT_ONCE = """
import json, sys, time
import numpy as np
from numba.core.caching import IndexDataCacheFile
from fedconvex.kernels import row_losses
from fedconvex.losses import Exponential, Hinge, Logistic, Squared
loss = (Squared(), Logistic(), Hinge(), Exponential())[int(sys.argv[1])]
save, out = IndexDataCacheFile._save_index, np.empty((1, 1))
IndexDataCacheFile._save_index = lambda self, index: (time.sleep(0.1), save(self, index))  # the moment that matters
time.sleep(max(0.0, float(sys.argv[2]) - time.time()))
row_losses.row_values(loss, np.full((1, 1), 3.0), np.ones(1), out)
row_losses.row_slopes(loss, np.full((1, 1), 3.0), np.ones(1))
stats = [k.stats for k in (row_losses.row_values, row_losses.row_slopes)]
hits, misses = (sum(sum(getattr(s, c).values()) for s in stats) for c in ("cache_hits", "cache_misses"))
print(json.dumps([out[0, 0], hits, misses]))
"""


@pytest.mark.slow
def test_processes_that_compile_at_once_share_one_cache(package):
    """Each adds its signature to the same kernels' indices; afterwards every process finds its own code."""
    values = [2.0, math.log1p(math.exp(-3.0)), 0.0, math.exp(-3.0)]  # l(3, 1)
    numbers = [str(i) for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        start = str(time.time() + 4.0)
        found = list(pool.map(lambda i: python(package, AT_ONCE, i, start), numbers))
    assert found == [[pytest.approx(v, rel=1e-12), 0, 2] for v in values]
    assert [python(package, AT_ONCE, i, "0") for i in numbers] == [[pytest.approx(v, rel=1e-12), 2, 0] for v in values]


def test_saving_takes_turns(tmp_path, monkeypatch):
    """Of two that hold the lock for a while, the second waits for the first."""
    monkeypatch.setattr(cache, "_FOLDER", str(tmp_path))
    spans = []

    def save(_):
        with cache._turn():
            begin = time.perf_counter()
            time.sleep(0.05)
            spans.append((begin, time.perf_counter()))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(4)))
    spans.sort()
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


# ---------------------------------------------------------------- damaged files


def damages(content):
    """What disks and processes that die leave of a file."""
    yield b""
    yield content[: len(content) // 2]
    yield content[:-1]
    yield content + b"x"
    yield bytes(len(content))
    for at in (0, len(content) // 3, len(content) - 1):
        yield content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_damaged_file_counts_as_missing_and_is_written_anew(tmp_path, suffix):
    file = cache._CheckedFile(str(tmp_path), "kernel", "stamp")
    file.save("one", {"code": b"1" * 1000})
    file.save("two", {"code": b"2" * 1000})
    assert [file.load(key)["code"][:1] for key in ("one", "two")] == [b"1", b"2"]
    path = sorted(tmp_path.glob(f"*{suffix}"))[-1]
    whole, count = path.read_bytes(), 0
    for broken in damages(whole):
        path.write_bytes(broken)
        with pytest.warns(UserWarning, match=re.escape(f"compiled code in {tmp_path} is damaged")):
            assert file.load("two") is None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file.save("one", {"code": b"1" * 1000})
            file.save("two", {"code": b"2" * 1000})
        assert [file.load(key)["code"][:1] for key in ("one", "two")] == [b"1", b"2"]
        count += 1
    assert count == 8


@pytest.mark.slow
def test_a_process_survives_damaged_caches(package):
    assert python(package, VALUES) == [2.0, 0, 1]
    for path in cache_files(package):
        path.write_bytes(path.read_bytes()[:50])
    assert python(package, VALUES) == [2.0, 0, 1]
    assert python(package, VALUES) == [2.0, 1, 0]


# ---------------------------------------------------------------- one array type, one compilation


def shape_of(a):
    """What Numba distinguishes of an argument."""
    if isinstance(a, np.ndarray):
        return a.dtype.str, a.ndim, a.flags.c_contiguous, a.flags.writeable
    if isinstance(a, np.int64):
        return ("int",)
    return type(a).__name__, *map(shape_of, a if isinstance(a, tuple) else ())


@pytest.mark.parametrize("R", [1, 3])
@pytest.mark.parametrize("name", ["run_jobs", "average_rows"])
def test_settings_do_not_multiply_compilations(R, name, rng, monkeypatch):
    """A read-only or strided array is another type to Numba, and seconds of compilation: kernels see one type."""
    seen = {}
    for home, kernel in ((jobs, "run_jobs"), (averages, "average_rows")):  # not run, hence not compiled
        monkeypatch.setattr(home, kernel, lambda *args, k=kernel: seen.setdefault(k, []).append(args))
    fed = Federation.from_clients([(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in (3, 4, 5)])
    problem = Problem(fed, Squared())
    batches = {"local_steps": 2, "batch_size": 2}
    for method in (
        FedAvg(step_size=0.1, **batches),
        FedAvg(step_size=0.1, **batches, participation=2),
        FedAvg(step_size=Decay(1.0), **batches),
        FedAvg(step_size=Decay(1.0, by_round=True), **batches),
        FedAvg(step_size=[0.1] * R, epochs=2, batch_size=2, participation=0.5),
        FedAvg(step_size=0.1, local_steps=2, shadow=True),
    ):
        list(iterate(method, problem, rounds=2, trajectories=R))
    kinds = {tuple(map(shape_of, args)) for args in seen[name]}
    assert len(seen[name]) >= 12
    differing = {at: {k[at] for k in kinds} for at in range(len(next(iter(kinds)))) if len({k[at] for k in kinds}) > 1}
    if name == "run_jobs":  # full gradients and mini-batches have different rules: two compilations, and no more
        assert differing.pop(0) == {("FullSteps", ("ClientSGD",)), ("BatchSteps",)}
    assert not differing


@pytest.mark.slow
def test_strict_kernels_stay_strict_inside_reductions(tmp_path):
    """Compiled first from inside a reduction, a kernel would inherit its licence to reorder: 1e-310/1e-310 was inf."""
    script = tmp_path / "strict_probe.py"
    script.write_text(STRICT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1.0, 1.0, 1.0, 1.0]


STRICT = """
import gc
import json
from fedconvex.kernels.cache import kernel, part, reduction, strict_part

@kernel
def ratio(a, b):
    return a / b

@strict_part
def share(a, b):
    return a / b

@part
def shares(a, b):
    return share(a, b)

@reduction
def outer(a, b):
    return ratio(a, b), share(a, b), shares(a, b)

assert share(3, 2) == shares(3, 2) == 1.5  # parts run as Python where Python calls them
print(json.dumps([*outer(1e-310, 1e-310), ratio(1e-310, 1e-310)]))
"""


def test_garbage_is_not_collected_while_kernels_are_compiled():
    seen = []

    @cache.overload(watch := lambda x: x, False)
    def choose(x):
        seen.append(gc.isenabled())  # during the typing of the kernel that calls it
        return lambda x: x

    @cache.njit
    def calls(x):
        return watch(x)

    @cache.njit
    def fails(x):
        return watch(x).missing

    calls(1.0)
    assert seen and not any(seen) and gc.isenabled()
    with pytest.raises(cache.numba.TypingError):
        fails(1.0)
    assert gc.isenabled()
    gc.disable()
    try:
        calls(1)
        assert not gc.isenabled()  # as it was found
    finally:
        gc.enable()


def test_parts_are_compiled_once_for_all_callers_alike():
    """Kernels release the lock and have entries, their parts do neither: a part that both call is compiled once."""
    total = cache.part(lambda a, b: a + 2.0 * b)
    inner = cache.part(lambda a, b: total(a, b) + 1.0)
    outer = cache.reduction(lambda a, b: total(a, b) * inner(a, b))
    bare = cache.borrowing(lambda a, b: total(a, b) - 1.0)  # counts no references, and the part would not either
    with cache.compiling() as counter:
        assert (outer(1.0, 2.0), outer(1.0, 2.0)) == (30.0, 30.0)
        assert counter.functions == 3
        assert bare(1.0, 2.0) == 4.0
        assert counter.functions == 5


def test_flags_are_equal_as_numba_has_it():
    """By their values, those that are not set at their defaults; equal ones have the same hash."""
    plain, same, fast = Flags(), Flags(), Flags()
    same.nrt = plain.nrt  # set, to what it is anyway
    fast.fastmath = cache.FASTMATH
    assert plain == same and hash(plain) == hash(same) and len({plain, same}) == 1
    for name, value in (("nrt", True), ("error_model", "numpy"), ("forceinline", True), ("release_gil", True)):
        other = Flags()
        setattr(other, name, value)
        for one in (plain, fast):
            assert one != other and (one.values() == other.values()) is (one == other)
    assert plain != fast and plain != "flags"


def test_numba_without_builders_of_passes_optimises_by_itself(monkeypatch):
    """Numba 0.61 has LLVM's former managers of passes, whatever llvmlite offers."""
    library, asked = object.__new__(cache._Rolled), []
    library._codegen = object()
    monkeypatch.setattr(JITCodeLibrary, "_optimize_final_module", lambda self: asked.append(id(self)))
    library._optimize_final_module()
    assert asked == [id(library)]
