"""Projection onto the simplex, float64, one thread: the package's kernel, Condat's algorithm in C, sorting in NumPy."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from _timing import Report, compare

from fedconvex.simplex import project_simplex, simplex_residual
from fedconvex.simplex.euclidean import project_rows
from fedconvex.simplex.short_rows import LONGEST, project_short_rows

SHAPES = [(1000, 10), (20, 1000), (1, 1_000_000)]
BAR, RATIO, SHORT = 2.1, 1.2, 1.1  # ns per element, or times C; times C for rows of ten

C_SOURCE = r"""
#include <stdint.h>
/* L. Condat, "Fast projection onto the simplex and the l1 ball", Math. Program. 158 (2016), Fig. 2: one pass that keeps
   candidates and a running threshold, the candidates given up on the way looked at again, then passes that drop. */
static void project(const double *restrict y, double *restrict x, int64_t n, double a, double *restrict keep,
                    double *restrict later) {
    int64_t m = 1, k = 0;
    double rho = y[0] - a;
    keep[0] = y[0];
    for (int64_t i = 1; i < n; i++) {
        if (y[i] > rho) {
            rho += (y[i] - rho) / (m + 1);
            if (rho > y[i] - a) keep[m++] = y[i];
            else {
                for (int64_t j = 0; j < m; j++) later[k++] = keep[j];
                keep[0] = y[i];
                m = 1;
                rho = y[i] - a;
            }
        }
    }
    for (int64_t j = 0; j < k; j++)
        if (later[j] > rho) {
            keep[m++] = later[j];
            rho += (later[j] - rho) / m;
        }
    for (int64_t before = -1; before != m;) {
        before = m;
        int64_t left = m;
        m = 0;
        for (int64_t j = 0; j < before; j++) {
            if (keep[j] > rho) keep[m++] = keep[j];
            else rho += (rho - keep[j]) / --left;
        }
    }
    for (int64_t i = 0; i < n; i++) x[i] = y[i] > rho ? y[i] - rho : 0.0;
}
void rows(const double *y, double *x, int64_t r, int64_t n, double a, double *keep, double *later) {
    for (int64_t i = 0; i < r; i++) project(y + i * n, x + i * n, n, a, keep, later);
}
"""


def inputs(shape, rng):
    """Yield (name, rows)."""
    p = shape[1]
    yield "uniform", rng.random(shape)
    yield "Gaussian", rng.normal(size=shape)
    sparse = rng.random(shape) * (rng.random(shape) < max(0.01, 2 / p))
    sparse[:, 0] += 0.01
    yield "sparse", sparse
    feasible = rng.exponential(size=shape)
    yield "feasible", feasible / feasible.sum(axis=1, keepdims=True)
    yield "tied", np.full(shape, 0.3)
    yield "heavy-tailed", rng.standard_cauchy(size=shape)
    yield "ascending", np.sort(rng.random(shape), axis=1)
    yield "descending", np.ascontiguousarray(np.sort(rng.random(shape), axis=1)[:, ::-1])
    yield "all active", rng.random(shape) / p
    yield "nine of ten active", rng.random(shape) * 2.5 / p
    yield "geometric gaps", -np.broadcast_to(np.geomspace(1e-12, 1.0, p), shape) * rng.uniform(0.5, 1, (shape[0], 1))


def by_sorting(v):
    """Held, Wolfe and Crowder (1974), all rows at once."""
    u = np.sort(v, axis=1)[:, ::-1]
    sums = np.cumsum(u, axis=1) - 1.0
    count = np.count_nonzero(u * np.arange(1, v.shape[1] + 1) > sums, axis=1)[:, None]
    return np.maximum(v - np.take_along_axis(sums, count - 1, axis=1) / count, 0.0)


def compiled(folder):
    source = folder / "condat.c"
    source.write_text(C_SOURCE)
    library = folder / "condat.so"
    subprocess.run(["gcc", "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def in_c(library, v):
    out, keep, later = np.empty_like(v), np.empty(v.shape[1] + 1), np.empty(v.shape[1] + 1)
    v_, out_, keep_, later_ = (a.ctypes.data_as(ctypes.c_void_p) for a in (v, out, keep, later))
    r, n, one = ctypes.c_int64(v.shape[0]), ctypes.c_int64(v.shape[1]), ctypes.c_double(1.0)

    def call():
        library.rows(v_, out_, r, n, one, keep_, later_)
        return out

    call.arrays = (keep, later)  # kept alive
    return call


def case(report, library, name, v):
    p = v.shape[1]
    out, project = np.empty_like(v), project_short_rows if p <= LONGEST else project_rows

    def kernel():
        project(v, 1.0, out)
        return out

    programs = {"compiled kernel": kernel} | ({} if library is None else {"C, Condat 2016": in_c(library, v)})
    others = {"project_simplex": lambda: project_simplex(v), "NumPy, sorting": lambda: by_sorting(v)}
    label = f"p = {p:,}, {name}"
    report.check(f"{label}: residual", float(simplex_residual(kernel(), v).max()), 1e-14)
    report.check(f"{label}: |sum - 1|", max(abs(math.fsum(row) - 1.0) for row in out), 4e-15)
    for who, program in (programs | others).items():
        report.check(f"{label}: {who} agrees", float(np.abs(program() - kernel()).max()), 1e-9)
    times = compare(programs, repeats=40, least=0.003, limit=8.0)
    times |= compare(others, repeats=10, least=0.003, limit=4.0)  # apart: these sweep the caches
    t = {who: report.row(label, who, timing, per=v.size) for who, timing in times.items()}
    if library is None:
        report.row(label, "C, Condat 2016", None, note="no gcc")
    c = t.get("C, Condat 2016", 0.0)
    if p == 10 and c:
        report.bar(f"{label}: compiled kernel / C, Condat 2016", t["compiled kernel"] / c, SHORT)
    elif p > 10:
        report.bar(f"{label}: ns per element (at most 2.1, or 1.2 times C)", t["compiled kernel"], max(BAR, RATIO * c))
    return t


def main():
    report = Report("simplex", "Projection onto the simplex", "ns per element", 1e9, clock="cpu")
    rng = np.random.default_rng(0)
    one = np.array([0.3, 0.2, 0.9, 0.1, 0.4, 0.8, -0.5, 0.0, 0.1, 0.2])
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder)) if shutil.which("gcc") else None
        for shape in SHAPES:
            for name, v in inputs(shape, rng):
                case(report, library, name, np.ascontiguousarray(v))
    row, out = one[None], np.empty((1, 10))
    timing = compare(
        {"project_simplex": lambda: project_simplex(one), "kernel": lambda: project_short_rows(row, 1.0, out)}
    )
    report.row("p = 10, one row", "project_simplex", timing["project_simplex"], per=10)
    report.row("p = 10, one row", "compiled kernel, called from Python", timing["kernel"], per=10)
    report.write()


if __name__ == "__main__":
    main()
