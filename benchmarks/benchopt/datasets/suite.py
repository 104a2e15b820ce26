"""The problems of `fedconvex bench`, by name; digests of their arrays are checked."""

from benchopt import BaseDataset

from fedconvex.bench import SUITES

CASES = {case.name: case for cases in SUITES.values() for case in cases}


class Dataset(BaseDataset):
    """A problem of a suite; all others are there by ``-d "suite[problem=NAME]"``."""

    name = "suite"
    requirements = ("pip::fedconvex",)
    parameters = {"problem": [case.name for case in SUITES["small"]]}  # noqa: RUF012
    test_config = {"problem": "linear-K3-d2-cond100-zeta1"}  # noqa: RUF012

    def get_data(self):
        """Return the problem as data."""
        if self.problem not in CASES:
            raise ValueError(f"suite: problem must be one of {', '.join(CASES)}; got {self.problem!r}")
        return {"case": CASES[self.problem]}
