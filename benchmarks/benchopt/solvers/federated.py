"""Federated methods of the package, round by round, with the step sizes of theory."""

from benchopt import BaseSolver

from fedconvex.bench.running import Play, play
from fedconvex.bench.solvers import named

MOST = 1_000_000  # rounds: benchopt stops earlier


class Solver(BaseSolver):
    """One method; ``-s "federated[solver=NAME]"`` names another of ``fedconvex bench``."""

    name = "federated"
    requirements = ("pip::fedconvex",)
    sampling_strategy = "callback"
    parameters = {"solver": ["fedsgd", "fedavg", "fedavg-batch", "scaffold", "gd"]}  # noqa: RUF012
    test_config = {"solver": "fedsgd"}  # noqa: RUF012

    def skip(self, case, federation):
        """Skip problems that the method is not made for."""
        try:
            aims = named(self.solver).aims
            if case.aim not in aims:
                raise ValueError(f"{self.solver} minimises {' or '.join(aims)}")
            named(self.solver).ready(case.over(federation), case.loss)
        except (ValueError, TypeError) as error:
            return True, str(error)
        return False, None

    def set_objective(self, case, federation):
        """Choose the step size."""
        solver, problem = named(self.solver), case.over(federation)
        seed = self.get_seed(use_repetition=True) % 2**31
        self.it = Play(case, federation, solver, solver.ready(problem, case.loss), seed, problem.model_shape)

    def warm_up(self):
        """Compile kernels."""
        for step in play(self.it, 2):
            self.step = step

    def run(self, callback):
        """Run rounds for as long as benchopt wants them."""
        steps = play(self.it, MOST)
        self.step = next(steps)
        while callback():
            self.step = next(steps)

    def get_result(self):
        """Return the model and all floats sent so far."""
        return {"model": self.step.w, "floats": self.step.floats}
