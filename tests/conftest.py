"""What tests share: seeds that are printed on failure, the shared data folder, and one small problem of each kind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

from tests import workers

WORKER = os.environ.get("PYTEST_XDIST_WORKER")
UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "") not in ("", "0")  # in all processes
if WORKER:  # before NumPy and Numba are imported
    os.environ["NUMBA_DISABLE_JIT"] = str(int(workers.kind_of_worker(WORKER) == workers.INTERPRETED))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as many processes as cores: threads would wait for each other
    sys.dont_write_bytecode = False  # workers share what one of them has compiled: see `workers.prepare`

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, settings

from fedconvex import Federation, Logistic, Problem, Softmax, Squared

ROOT = Path(__file__).resolve().parents[1]
collect_ignore = [] if importlib.util.find_spec("flwr") else ["flower_grid.py"]  # looked through for doctests
KINDS = pytest.StashKey[str]()

settings.register_profile(
    "fedconvex", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], max_examples=30
)
settings.register_profile("campaign", settings.get_profile("fedconvex"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fedconvex"))


# ---------------------------------------------------------------- worker processes: see workers.py


def pytest_xdist_auto_num_workers(config):
    """One file in one kind of process needs no workers; nor does a list of tests."""
    one_file = len(config.option.file_or_dir) == 1 and not os.path.isdir(config.option.file_or_dir[0])
    if config.option.collectonly or (one_file and os.environ.get("NUMBA_DISABLE_JIT")):
        return 0
    return workers.count()


def pytest_xdist_make_scheduler(config, log):
    return workers.ByKind(config, log, kinds=config.stash[KINDS]) if config.getoption("dist") == "load" else None


class SlowExamples:
    """Examples that are whole runs are slow: the default tier tests the same methods, plots and estimators."""

    rooms = ("methods", "sweeps", "driver", "report", "remote", "families/*/methods", "families/*/estimator*")
    parts = tuple(path for room in rooms for path in (ROOT / "fedconvex").glob(room))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):  # of all folders, before marks decide
        for item in items:
            if isinstance(item, pytest.DoctestItem) and any(item.path.is_relative_to(part) for part in self.parts):
                item.add_marker(pytest.mark.slow)


def pytest_configure(config):
    config.pluginmanager.register(SlowExamples())
    if not WORKER:
        config.stash[KINDS] = os.path.join(tempfile.mkdtemp(prefix="fedconvex-tests-"), "kinds.json")


def pytest_unconfigure(config):
    if not WORKER:
        shutil.rmtree(os.path.dirname(config.stash[KINDS]), ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["kinds"] = node.config.stash[KINDS]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    if WORKER and session.config.args_source is session.config.ArgsSource.TESTPATHS:  # all files are collected
        workers.prepare(WORKER, int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))


def pytest_itemcollected(item):
    """What `slow_unless` does not name is slow: of a cross-product, the default tier keeps a few."""
    marks = [mark.kwargs for mark in item.iter_markers("slow_unless")]
    if marks and not any(all(_named(item.callspec.params[k], v) for k, v in kept.items()) for kept in marks):
        item.add_marker(pytest.mark.slow)


def _named(value, kept):
    return value in kept if isinstance(kept, list) else value == kept


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if WORKER:
        workers.write_kinds(config.workerinput["kinds"], items)
    for item in items if UNCOMPILED else ():
        mark = item.get_closest_marker("compiled")
        if mark and mark.kwargs.get("only"):
            item.add_marker(pytest.mark.skip(reason=f"only compiled: {mark.kwargs['only']}"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    seed = getattr(item, "seed_used", None)
    if seed is not None and outcome.get_result().failed:
        text = f"rng fixture used seed {seed}; repeat with FEDCONVEX_SEED={seed}"
        outcome.get_result().sections.append(("seed", text))


# ---------------------------------------------------------------- what tests ask for


@pytest.fixture
def rng(request):
    """A generator whose seed depends on the test's name only, or is FEDCONVEX_SEED; shown if the test fails."""
    seed = int(os.environ.get("FEDCONVEX_SEED", zlib.crc32(request.node.name.encode())))
    request.node.seed_used = seed
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def compiled_kernels():
    """For fixtures that are too long for pure Python: their tests run in compiled workers."""
    if UNCOMPILED:
        pytest.skip("only compiled: minutes of pure Python")


@pytest.fixture(scope="session")
def shared_data():
    """Return the path of a shared data file by its name; skip where the shared folder is absent."""

    def find(name):
        folder = Path(os.environ.get("FEDCONVEX_DATA", ROOT.parent / "shared" / "data"))
        path = folder / (name if name.endswith(".npz") else f"{name}.npz")
        if not path.is_file():
            pytest.skip(f"{path} is absent; name the folder in FEDCONVEX_DATA")
        return path

    return find


# ---------------------------------------------------------------- one small problem of each kind


def _linear(l2=0.1):
    rng = np.random.default_rng(7)
    clients = []
    for n in (7, 4, 9, 6, 5):
        X = rng.normal(size=(n, 3))
        clients.append((X, X @ rng.normal(size=3) + 0.3 * rng.normal(size=n)))
    return Problem(Federation.from_clients(clients), Squared(), l2=l2)


def _logistic():
    rng = np.random.default_rng(8)
    clients = []
    for n in (8, 5, 6, 9):
        X = rng.normal(size=(n, 6)) * (rng.random((n, 6)) < 0.5)
        y = np.where(X @ rng.normal(size=6) + rng.normal(size=n) > 0, 1.0, -1.0)
        clients.append((sp.csr_array(X), y))
    return Problem(Federation.from_clients(clients), Logistic(), l2=0.1)


def _softmax():
    rng = np.random.default_rng(9)
    clients = []
    for n in (6, 9, 5, 7):
        X = rng.normal(size=(n, 3))
        clients.append((X, np.argmax(X @ rng.normal(size=(3, 3)) + rng.normal(size=(n, 3)), axis=1)))
    return Problem(Federation.from_clients(clients), Softmax(3), l2=0.1)


@pytest.fixture(scope="session")
def linear():
    """Squared loss, dense rows."""
    return _linear()


@pytest.fixture(scope="session")
def logistic():
    """Logistic loss, CSR rows."""
    return _logistic()


@pytest.fixture(scope="session")
def softmax():
    """Softmax of three classes, dense rows."""
    return _softmax()


@pytest.fixture(scope="session", params=["linear", "logistic", "softmax"])
def problem(request):
    """Each of the three in turn."""
    return {"linear": _linear, "logistic": _logistic, "softmax": _softmax}[request.param]()
