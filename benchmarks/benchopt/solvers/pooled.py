"""Solvers of scikit-learn, LIBLINEAR among them, on all rows in one place."""

import numpy as np
from benchopt import BaseSolver

from fedconvex.bench.pooled import FITS, rows_of


class Solver(BaseSolver):
    """One solver, run from the start for every number of iterations."""

    name = "pooled"
    requirements = ("pip::fedconvex", "pip::scikit-learn")
    sampling_strategy = "iteration"
    parameters = {"solver": ["sklearn-lbfgs", "sklearn-newton-cg", "sklearn-cholesky", "liblinear", "liblinear-dual"]}  # noqa: RUF012
    test_config = {"solver": "sklearn-cholesky"}  # noqa: RUF012

    def skip(self, case, federation):
        """Skip losses that the solver does not know."""
        try:
            FITS[self.solver].check(case.over(federation), case.loss)
        except ValueError as error:
            return True, str(error)
        return False, None

    def set_objective(self, case, federation):
        """Take all rows."""
        (self.X, self.y), self.l2 = rows_of(federation), case.l2
        self.w = np.zeros(case.over(federation).model_shape)

    def warm_up(self):
        """Import scikit-learn."""
        self.run(1)

    def run(self, n_iter):
        """Fit from the start."""
        if n_iter > 0:
            self.w = FITS[self.solver].fit_to(self.X, self.y, self.l2, n_iter)

    def get_result(self):
        """Return the model; nothing is sent."""
        return {"model": self.w, "floats": float("nan")}
