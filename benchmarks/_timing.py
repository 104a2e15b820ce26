"""What the benchmarks share: a clean environment, alternating timing, checks against bars, and JSON results.

Importing this module starts the script again, once, where the environment would distort BLAS: every ``OPENBLAS_*``
variable is removed (``OPENBLAS_CORETYPE`` slows matrix products) and BLAS and OpenMP are held to one thread.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_ONE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_wrong = [k for k in os.environ if k.startswith("OPENBLAS_") and k not in _ONE]
if _wrong or any(os.environ.get(k) != v for k, v in _ONE.items()):
    kept = {k: v for k, v in os.environ.items() if k not in _wrong}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], kept | _ONE)

RESULTS = Path(os.environ.get("FEDCONVEX_RESULTS", Path(__file__).resolve().parent / "results"))
PACKAGES = ["numpy", "scipy", "numba", "llvmlite", "scikit-learn", "jax", "jaxlib", "fedjax", "liblinear-official"]
PACKAGES += ["celer", "skglm", "xgboost", "lightgbm", "joblib", "lifelines", "scikit-survival", "statsmodels"]


def data_folder() -> Path:
    """Folder of the npz files: FEDCONVEX_DATA, or ../shared/data beside the repository."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("FEDCONVEX_DATA", default))


# ---------------------------------------------------------------- timing


def _sample(f: Callable[[], Any], calls: int) -> tuple[float, float, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        result = f()
    return (time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls, result


def compare(
    functions: dict[str, Callable[[], Any]],
    repeats: int = 30,
    least: float = 0.01,
    limit: float = 60.0,
    after: Callable[[str, Any], None] | None = None,
) -> dict[str, dict[str, float]]:
    """Time functions in turn, A B C A B C ..., in this process.

    Each is called twice to warm up, then timed `repeats` times over as many calls as fill `least` seconds; the loop
    ends early after `limit` seconds, but not before three repeats. Returned are, by name, seconds per call: minimum and
    median of wall time ("min", "median") and of the CPU time of the process ("cpu_min", "cpu_median"). After every
    timed sample, `after` is given the name and what the last call returned, outside the timing.
    """
    calls = {}
    for name, f in functions.items():
        f()
        calls[name] = max(1, round(least / max(_sample(f, 1)[0], 1e-7)))
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    end = time.perf_counter() + limit
    for i in range(repeats):
        if i >= 3 and time.perf_counter() > end:
            break
        for name, f in functions.items():
            wall, cpu, result = _sample(f, calls[name])
            samples[name].append((wall, cpu))
            if after is not None:
                after(name, result)
    return {name: summary(pairs) | {"calls": calls[name]} for name, pairs in samples.items()}


def one_by_one(method: Any, problem: Any, **options: Any) -> Iterator[tuple[int, Any]]:
    """Yield rounds without end, each computed when it is asked for.

    Small rounds are computed in blocks once a run is long: a sample would take rounds that another has paid for. A new
    run, from the start, begins before that. (Single rows of a few features are computed in blocks all the same.)
    """
    from fedconvex.driver import iterate
    from fedconvex.driver.rounds import ONE_BY_ONE

    while True:
        yield from iterate(method, problem, rounds=ONE_BY_ONE, **options)


def summary(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Minimum and median of (wall, CPU) seconds."""
    wall, cpu = zip(*pairs, strict=True)
    return {
        "min": min(wall),
        "median": statistics.median(wall),
        "cpu_min": min(cpu),
        "cpu_median": statistics.median(cpu),
        "repeats": len(pairs),
    }


# ---------------------------------------------------------------- results


class Report:
    """Rows, checks and bars of one benchmark, printed as they come and written to results/NAME.json."""

    def __init__(self, name: str, title: str, unit: str, scale: float, clock: str = "wall") -> None:
        self.name, self.unit, self.scale = name, unit, scale
        self.body: dict[str, Any] = {"name": name, "title": title, "unit": unit, "clock": clock}
        self.body |= {"rows": [], "bars": [], "checks": []}
        self.prefix = "cpu_" if clock == "cpu" else ""
        self.load = os.getloadavg()[0]

    def row(self, case: str, who: str, timing: dict[str, float] | None, per: float = 1.0, note: str = "") -> float:
        """Add one row, time divided by `per`; returns its minimum in the report's unit. No timing: a missing row."""
        entry: dict[str, Any] = {"case": case, "who": who, "note": note}
        if timing is not None:
            entry |= {k: v * self.scale / per for k, v in timing.items() if k not in ("repeats", "calls")}
            entry["repeats"] = timing["repeats"]
        self.body["rows"].append(entry)
        p = self.prefix
        shown = "not measured"
        if timing is not None:
            other = entry.get("min" if p else "cpu_min")  # none where other processes do the work
            shown = f"{entry[p + 'min']:10.4g} {entry[p + 'median']:10.4g}"
            shown += "" if other is None else f" ({'wall' if p else 'CPU'} {other:.4g})"
        print(f"{case:34} {who:42} {shown} {self.unit}  {note}", flush=True)
        return entry.get(self.prefix + "min", float("nan"))

    def bar(self, what: str, value: float, at_most: float | None = None) -> None:
        """Record whether a value (of minimum times) is within its bar; without a bar it is only recorded."""
        met = None if at_most is None else bool(value <= at_most)
        self.body["bars"].append({"what": what, "value": value, "bar": at_most, "met": met})
        verdict = "no bar" if at_most is None else f"at most {at_most:g}: {'met' if met else 'MISSED'}"
        print(f"  {what}: {value:.4g} ({verdict})", flush=True)

    def check(self, what: str, error: float, at_most: float) -> None:
        """Record an agreement, and stop the benchmark where there is none: wrong answers are not timed."""
        self.body["checks"].append({"what": what, "error": error, "at_most": at_most})
        if not error <= at_most:
            raise SystemExit(f"{self.name}: {what}: {error:.3g} exceeds {at_most:g}")
        print(f"  check: {what}: {error:.2g} (at most {at_most:g})", flush=True)

    def write(self) -> None:
        """Write results/NAME.json."""
        self.body["environment"] = environment() | {"load_at_start": round(self.load, 2)}
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self.name}.json").write_text(json.dumps(self.body, indent=1) + "\n")


def environment() -> dict[str, Any]:
    """CPU, cores, versions and BLAS; nothing that names the machine or its folders."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        names = {k.strip(): v.strip() for k, v in fields.items()}
        cpu = f"{names.get('model name', cpu)}, family {names.get('cpu family', '?')} model {names.get('model', '?')}"
    record: dict[str, Any] = {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version()}
    from fedconvex.kernels.cache import _digest

    record["fedconvex_sources"] = _digest()  # results of different sources must not be compared by accident
    for package in PACKAGES:
        try:
            record[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            record[package] = None
    try:
        from threadpoolctl import threadpool_info

        pools = threadpool_info()
    except ImportError:
        pools = []
    keys = ("internal_api", "version", "architecture", "num_threads")
    record["blas"] = [{k: p.get(k) for k in keys} for p in pools if p.get("user_api") == "blas"]
    record["OPENBLAS_CORETYPE"] = os.environ.get("OPENBLAS_CORETYPE")  # None: unset, as it must be
    record["date"] = time.strftime("%Y-%m-%d")
    return record
