"""Certified gaps of federated solvers, judged from the model alone, as `fedconvex bench` judges them."""

import numpy as np
from benchopt import BaseObjective

from fedconvex.bench import Referee


class Objective(BaseObjective):
    """F(w) - F*, bounded by the referee; the objective, the worst client's loss and the floats sent stand beside it."""

    name = "Certified gap"
    min_benchopt_version = "1.10"
    requirements = ("pip::fedconvex",)
    sampling_strategy = "callback"
    test_config = {"dataset": {"problem": "linear-K3-d2-cond100-zeta1"}}  # noqa: RUF012  (benchopt reads a literal)

    def set_data(self, case):
        """Take a problem of a suite."""
        self.referee = Referee(case)
        self.case = case
        self.referee.gaps(
            np.zeros((1, *self.referee.problem.model_shape))
        )  # the exact solution, before anything is timed

    def get_objective(self):
        """Return what solvers are told: the problem as data, and its rows."""
        return {"case": self.case, "federation": self.referee.problem.federation}

    def evaluate_result(self, model, floats):
        """Return columns for a model: `value` is the certified gap."""
        value, gap = self.referee.gaps(np.asarray(model)[None])
        worst = self.referee.worst_client(np.asarray(model))
        return {"value": float(gap[0]), "objective": float(value[0]), "worst_client": worst, "floats": float(floats)}

    def get_one_result(self):
        """Return the model that everybody starts from."""
        return {"model": np.zeros(self.referee.problem.model_shape), "floats": 0.0}
