"""Data sets of published analyses, with the clients that tests divide them into, and a plain oracle for their sums."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from fedconvex.analysis import response_families
from fedconvex.analysis.newton_search import Derivatives


class Data(NamedTuple):
    X: np.ndarray  # (n, p), the intercept first, or site intercepts last
    y: np.ndarray
    s: np.ndarray
    o: np.ndarray
    clients: np.ndarray  # (n,) 0..K-1
    family: response_families.Family

    @property
    def K(self):
        return int(self.clients.max()) + 1

    @property
    def n(self):
        return float(self.s.sum())

    def own(self):
        """The model with site intercepts in the place of the intercept: K columns at the end."""
        return self._replace(X=np.column_stack([self.X[:, 1:], np.eye(self.K)[self.clients]]))

    def of(self, k):
        return self._replace(**{f: getattr(self, f)[self.clients == k] for f in ("X", "y", "s", "o")})


def data(X, y, clients, family, s=None, o=None):
    y = np.asarray(y, dtype=float)
    X = np.column_stack([np.ones(y.size), np.asarray(X, dtype=float)])
    s = np.ones(y.size) if s is None else np.asarray(s, dtype=float)
    o = np.zeros(y.size) if o is None else np.asarray(o, dtype=float)
    codes = np.unique(np.asarray(clients), return_inverse=True)[1]
    return Data(X, y, s, o, codes, family)


def oracle(d):
    """N, its gradients and Hessians at models B (R, p), as sums over all rows."""

    def at(B):
        Z = B @ d.X.T + d.o
        with np.errstate(all="ignore"):
            values = np.array([d.s @ d.family.value(z, d.y) for z in Z])
            gradients = np.stack([(d.s * d.family.slope(z, d.y)) @ d.X for z in Z])
            hessians = np.stack([(d.X.T * (d.s * d.family.curvature(z, d.y))) @ d.X for z in Z])
        return Derivatives(values, gradients, hessians)

    return at


def spread(d):
    """max_i (x_i'A x_i)^(1/2) for inverses A (R, p, p)."""
    return lambda inverses: np.array([np.sqrt(max(np.einsum("ni,ij,nj->n", d.X, A, d.X).max(), 0.0)) for A in inverses])


def start(d):
    """Zero, but for the intercepts of log links: the log of the mean."""
    b = np.zeros(d.X.shape[1])
    if d.family.link == "log":
        level = np.log((d.s @ d.y) / (d.s @ np.exp(d.o)))
        ones = [j for j in range(b.size) if np.isin(d.X[:, j], (0.0, 1.0)).all()]
        if (d.X[:, 0] == 1.0).all():
            b[0] = level
        elif len(ones) >= d.K:
            b[-d.K :] = level
    return b


@functools.cache
def published(name):
    """One data set by name."""
    import statsmodels.datasets as sets
    from sklearn.datasets import load_breast_cancer, load_diabetes

    logistic = response_families.LOGISTIC
    if name == "spector":
        f = sets.spector.load_pandas().data
        return data(f[["GPA", "TUCE", "PSI"]], f["GRADE"], np.arange(len(f)) % 3, logistic)
    if name == "fair":
        f = sets.fair.load_pandas().data
        columns = ["rate_marriage", "age", "yrs_married", "children", "religious"]
        return data(f[columns], f["affairs"] > 0, f["occupation"], logistic)
    if name == "diabetes":
        f = load_diabetes(scaled=False)
        return data(f.data[:, :4], f.target, np.arange(442) % 5, response_families.GAUSSIAN)
    if name in ("cancer", "cancer-separated"):
        f = load_breast_cancer()
        names = list(f.feature_names)
        columns = [names.index(c) for c in ("mean texture", "mean smoothness", "mean symmetry")]
        X = f.data[:, columns] if name == "cancer" else f.data[:, [names.index("mean radius")]] > 18.0
        return data(X, 1 - f.target, np.arange(569) % 4, logistic)
    if name in ("randhie", "randhie-nb", "randhie-quasi"):
        f = sets.randhie.load_pandas().data
        kind = {
            "randhie": response_families.POISSON,
            "randhie-nb": response_families.negative_binomial(1.0),
            "randhie-quasi": response_families.QUASIPOISSON,
        }[name]
        return data(f[[c for c in f.columns if c != "mdvis"]], f["mdvis"], np.arange(len(f)) % 10, kind)
    if name == "scotland":
        f = sets.scotland.load_pandas().data
        return data(f[[c for c in f.columns if c != "YES"]], f["YES"], np.arange(len(f)) % 2, response_families.GAMMA)
    if name == "star98":
        f = sets.star98.load_pandas().data
        X = f[["LOWINC", "PERASIAN", "PERBLACK", "PERHISP"]].to_numpy()
        clients = np.arange(len(f)) % 5
        s = np.concatenate([f["NABOVE"], f["NBELOW"]])
        y = np.repeat([1.0, 0.0], len(f))
        return data(np.concatenate([X, X]), y, np.concatenate([clients, clients]), logistic, s)
    raise KeyError(name)
