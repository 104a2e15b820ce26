"""One epoch of local SGD, logistic loss, float64, one thread: the package's kernels against the plain loop in C."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path

import numba
import numpy as np
import scipy.sparse as sp
from _timing import Report, compare

from fedconvex import Federation, Logistic, Problem
from fedconvex.draws import BATCHES, Draws, stream
from fedconvex.federation import CSR
from fedconvex.kernels import descent, jobs
from fedconvex.kernels.batches import draw_rows
from fedconvex.kernels.cache import FASTMATH
from fedconvex.methods.parts.optimizers import ClientSGD

PASSES = 5  # epochs per call, so that calling costs nothing
ROWS, STEP = 4000, 0.05

C_SOURCE = r"""
#include <math.h>
#include <stdint.h>
static double slope(double z, double y) {
    double m = y * z, t = exp(-fabs(m));
    return -y * (m > 0 ? t : 1.0) / (1.0 + t);
}
void dense(const double *restrict X, const double *restrict y, const int64_t *restrict rows, int64_t n, int64_t d,
           int64_t batch, double a, double l2, double *restrict w, double *restrict g) {
    for (int64_t s = 0; s < n; s += batch) {
        if (batch == 1) {
            const double *x = X + rows[s] * d;
            double z = 0;
            for (int64_t j = 0; j < d; j++) z += x[j] * w[j];
            double c = a * slope(z, y[rows[s]]), keep = 1 - a * l2;
            if (l2 > 0) for (int64_t j = 0; j < d; j++) w[j] = keep * w[j] - c * x[j];
            else for (int64_t j = 0; j < d; j++) w[j] -= c * x[j];
            continue;
        }
        int64_t m = n - s < batch ? n - s : batch;
        for (int64_t j = 0; j < d; j++) g[j] = 0;
        for (int64_t b = 0; b < m; b++) {
            const double *x = X + rows[s + b] * d;
            double z = 0;
            for (int64_t j = 0; j < d; j++) z += x[j] * w[j];
            double c = slope(z, y[rows[s + b]]);
            for (int64_t j = 0; j < d; j++) g[j] += c * x[j];
        }
        for (int64_t j = 0; j < d; j++) w[j] -= a * (g[j] / m + l2 * w[j]);
    }
}
void sparse(const double *restrict v, const int32_t *restrict col, const int64_t *restrict ptr,
            const double *restrict y, const int64_t *restrict rows, int64_t n, int64_t d, int64_t batch,
            double a, double l2, double *restrict w, double *restrict c) {
    for (int64_t s = 0; s < n; s += batch) {
        int64_t m = n - s < batch ? n - s : batch;
        for (int64_t b = 0; b < m; b++) {
            int64_t i = rows[s + b];
            double z = 0;
            for (int64_t e = ptr[i]; e < ptr[i + 1]; e++) z += v[e] * w[col[e]];
            c[b] = a / m * slope(z, y[i]);
        }
        if (l2 > 0) for (int64_t j = 0; j < d; j++) w[j] *= 1 - a * l2;
        for (int64_t b = 0; b < m; b++)
            for (int64_t e = ptr[rows[s + b]]; e < ptr[rows[s + b] + 1]; e++) w[col[e]] -= c[b] * v[e];
    }
}
"""


def compiled(folder: Path, *flags: str):
    """Build the C source; -ffast-math only where compiling, so that loading does not change the rounding mode."""
    source, stem = folder / "sgd.c", "sgd" + "".join(flags)
    source.write_text(C_SOURCE)
    cc = ["gcc", "-O3", "-march=native", "-fPIC", *flags, "-c", str(source), "-o", str(folder / f"{stem}.o")]
    subprocess.run(cc, check=True)
    subprocess.run(["gcc", "-shared", str(folder / f"{stem}.o"), "-o", str(folder / f"{stem}.so"), "-lm"], check=True)
    return ctypes.CDLL(str(folder / f"{stem}.so"))


# a thin shell with the options of the package's own loop over jobs
@numba.njit(error_model="numpy", nogil=True, fastmath=FASTMATH, _nrt=False)
def given_rows(rule, loss, X, y, rows, block, batch, l2, eta, w, path, g, m, v, c, t):
    room = jobs.Scratch(rows, rows, g, m, v, c, c, t)
    job = jobs.Job(0, 0, 0, 0, block, 0, rows.size // block, block, batch, False, np.uint64(0), 1, l2, w[:0])
    jobs.steps(rule, loss, jobs.Data(X, y), job, eta, w, path, room)


def case(report, libraries, label, X, y, batch, l2, bar):
    n, d = X.shape
    sparse = sp.issparse(X)
    rows_of = CSR(X.data, X.indices.astype(np.int32), X.indptr.astype(np.int64)) if sparse else X
    key = np.uint64(7)
    state = np.uint64(stream(key, 0, 0, 0, BATCHES))
    rows = np.empty(PASSES * n, np.int64)
    draw_rows(state, 0, n, PASSES, n, False, np.empty(n, np.int64), rows)
    steps, path = np.full((1, 1, 1), STEP), np.empty((1, 1, 0, d))
    loss, opt, w0 = Logistic(), ClientSGD(), np.zeros(d)
    w, scratch = np.empty(d), [np.empty(d) for _ in range(3)]
    buffers = [np.empty(-(-batch // 8) * 8) for _ in range(2)]  # kernels fill them by eights

    rule = descent.rules(opt, 1)[jobs.SINGLE if batch == 1 else jobs.BATCH]

    def package():
        w[:] = w0
        given_rows(rule, loss, rows_of, y, rows, n, batch, l2, steps, w, path, *scratch, *buffers)
        return w

    problem = Problem(Federation(X, y, [0, n]), loss, l2=l2)
    clients, plan = np.zeros((1, 1), np.int64), np.array([[[PASSES, n, batch]]])
    draws = Draws(key, np.zeros(1, np.int64), 0)

    def with_draws():
        return descent.local_updates(problem, opt, w0[None], clients, draws, steps, plan, False, False)[0][0, 0]

    u = np.empty(d)
    pointer = [a.ctypes.data_as(ctypes.c_void_p) for a in (rows_of if sparse else (X,))]
    kept = np.empty(max(d, batch))
    yp, rp, up, gp = (a.ctypes.data_as(ctypes.c_void_p) for a in (y, rows, u, kept))
    tail = [ctypes.c_int64(rows.size), ctypes.c_int64(d), ctypes.c_int64(batch)]

    def in_c(library):
        f = library.sparse if sparse else library.dense
        f.restype, f.argtypes = None, None

        def call():
            u[:] = 0.0
            f(*pointer, yp, rp, *tail, ctypes.c_double(STEP), ctypes.c_double(l2), up, gp)
            return u

        return call

    functions = {"package": package, "package with its draws": with_draws}
    functions |= {name: in_c(library) for name, library in libraries.items()}
    reference = in_c(libraries["C -O3"])().copy()
    for name, f in functions.items():
        if name != "C -O3":
            report.check(f"{label}: {name} = C", float(np.abs(f() - reference).max() / np.abs(reference).max()), 1e-12)
    timing = compare(functions)
    ns = {name: report.row(label, name, t, rows.size) for name, t in timing.items()}
    report.bar(f"{label}: package / C -O3", ns["package"] / ns["C -O3"], bar)
    report.bar(f"{label}: package / C -O3 -ffast-math", ns["package"] / ns["C -O3 -ffast-math"])


def main():
    report = Report("local_sgd", "One epoch of local SGD, logistic, one thread", "ns per sample", 1e9)
    if shutil.which("gcc") is None:
        report.row("all", "C", None, note="gcc is not installed: nothing to compare with")
        return report.write()
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, 100))
    y = np.sign(X @ rng.standard_normal(100) + rng.standard_normal(ROWS))
    columns = np.sort(np.argsort(rng.random((ROWS, 123)), axis=1)[:, :14], axis=1)
    S = sp.csr_array((np.ones(14 * ROWS), columns.ravel(), np.arange(0, 14 * ROWS + 1, 14)), shape=(ROWS, 123))
    with tempfile.TemporaryDirectory() as folder:
        fast = compiled(Path(folder), "-ffast-math")
        libraries = {"C -O3": compiled(Path(folder)), "C -O3 -ffast-math": fast}
        case(report, libraries, "dense d=100, batch 1", X, y, 1, 0.0, 1.0)
        case(report, libraries, "dense d=100, batch 20", X, y, 20, 0.0, 0.65)
        case(report, libraries, "dense d=100, batch 1, l2", X, y, 1, 1e-3, None)
        case(report, libraries, "dense d=100, batch 20, l2", X, y, 20, 1e-3, None)
        case(report, libraries, "CSR d=123 nnz 14, batch 1", S, y, 1, 0.0, 1.0)
        case(report, libraries, "CSR d=123 nnz 14, batch 20", S, y, 20, 0.0, None)
    return report.write()


if __name__ == "__main__":
    main()
