"""Ends of profile-likelihood intervals in 50 digits: roots in one coefficient, the others minimised."""

from __future__ import annotations

import mpmath as mp
import numpy as np


def losses(name, theta=2):
    """Half unit deviances l(z, y), with first and second derivatives in z, as in the definitions."""
    xlogx = lambda y: y * mp.log(y) if y > 0 else mp.mpf(0)  # noqa: E731
    if name == "gaussian":
        return lambda z, y: ((z - y) ** 2 / 2, z - y, mp.mpf(1))
    if name == "logistic":
        return lambda z, y: (
            mp.log(1 + mp.exp(z)) - y * z,
            1 / (1 + mp.exp(-z)) - y,
            mp.exp(z) / (1 + mp.exp(z)) ** 2,
        )
    if name in ("poisson", "quasipoisson"):
        return lambda z, y: (mp.exp(z) - y * z - y + xlogx(y), mp.exp(z) - y, mp.exp(z))
    if name == "gamma":
        return lambda z, y: (y * mp.exp(-z) + z - mp.log(y) - 1, 1 - y * mp.exp(-z), y * mp.exp(-z))
    return lambda z, y: (
        (y + theta) * mp.log((theta + mp.exp(z)) / (theta + y)) - y * z + xlogx(y),
        theta * (mp.exp(z) - y) / (theta + mp.exp(z)),
        theta * mp.exp(z) * (y + theta) / (theta + mp.exp(z)) ** 2,
    )


class Exact:
    """N of rows X (n, p), responses, weights and offsets, which are taken as the exact doubles that they are."""

    def __init__(self, name, X, y, s, o):
        self.loss, self.name, self.p = losses(name), name, X.shape[1]
        exact = np.vectorize(mp.mpf, otypes=[object])
        self.X, self.y, self.s, self.o = (exact(np.asarray(a, dtype=float)) for a in (X, y, s, o))
        self.n = self.s.sum()

    def at(self, b):
        z = self.X @ b + self.o
        rows = [self.loss(zi, yi) for zi, yi in zip(z, self.y, strict=True)]
        l, d, c = (np.array([row[i] for row in rows], dtype=object) for i in range(3))
        return self.s @ l, self.X.T @ (self.s * d), (self.X.T * (self.s * c)) @ self.X

    def minimise(self, b, free):
        """Newton's method in the free coefficients, halved until N falls."""
        N, g, J = self.at(b)
        for _ in range(200):
            step = -np.array(list(mp.lu_solve(mp.matrix(J[np.ix_(free, free)].tolist()), mp.matrix(g[free].tolist()))))
            t, small = mp.mpf(1), max(map(abs, step)) < mp.mpf(10) ** -25
            while True:
                trial = b.copy()
                trial[free] = b[free] + t * step
                new = self.at(trial)
                if small or new[0] <= N:
                    break
                t /= 2
            b, (N, g, J) = trial, new
            if small:  # the step squares the distance
                return b, N, g, J
        raise AssertionError("no minimum in 200 steps")

    def dispersion(self, estimate):
        """phi at the estimate."""
        b, N, _, _ = self._best(estimate)
        parameters = self.p
        if self.name == "gaussian":
            return 2 * N / (self.n - parameters)
        if self.name not in ("gamma", "quasipoisson"):
            return mp.mpf(1)
        mu = [mp.exp(z) for z in self.X @ b + self.o]
        V = mu if self.name == "quasipoisson" else [m**2 for m in mu]
        return sum(s * (y - m) ** 2 / v for s, y, m, v in zip(self.s, self.y, mu, V, strict=True)) / (
            self.n - parameters
        )

    def _best(self, estimate):
        return self.minimise(np.array([mp.mpf(v) for v in estimate], dtype=object), list(range(self.p)))

    def ends(self, estimate, j, q, guesses, phi):
        """Both ends of coefficient j, by Newton's method on N_profile(e) = N* + phi q/2 from guesses."""
        best, least, _, J = self._best(estimate)
        level, rest = least + phi * mp.mpf(q) / 2, [i for i in range(self.p) if i != j]
        along = np.array(list(mp.lu_solve(mp.matrix(J.tolist()), mp.matrix(np.eye(self.p)[j].tolist()))))
        found = []
        for e in map(mp.mpf, guesses):
            b = best + along / along[j] * (e - best[j])
            for _ in range(40):
                b[j] = e
                b, N, g, _ = self.minimise(b, rest) if rest else (b, *self.at(b))
                move = (level - N) / g[j]
                e = e + move
                if abs(move) < mp.mpf(10) ** -40 * (1 + abs(e)):
                    break
            else:
                raise AssertionError("no root in 40 steps")
            found.append(e)
        return found
