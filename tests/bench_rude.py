"""A module that changes the process that imports it, and holds an honest solver."""

import os

import numpy as np

from fedconvex.bench.referee import Referee
from tests.bench_solvers import descent  # noqa: F401

np.seterr(all="raise")
os.chdir("/")
Referee.gaps = lambda self, W: (np.zeros(len(W)), np.zeros(len(W)))
