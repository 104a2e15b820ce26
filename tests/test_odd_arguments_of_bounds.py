"""Odd arguments of bounds, owners, seeds and secrets, as the campaign `fuzz-api` found them: refused by name."""

import numpy as np
import pytest

from fedconvex import Squared, VerticalFederation
from fedconvex.comparison import compare_owners
from fedconvex.constants import Constants
from fedconvex.datasets import chain_federation
from fedconvex.secure import Party
from fedconvex.theorems.agnostic_clients import client_agnostic
from fedconvex.theorems.agnostic_generalisation import vertex_bound
from fedconvex.theorems.local_lemmas import drift_lemma, drift_lemma_sharp, progress_lemma
from fedconvex.theorems.virtual import virtual_growth
from fedconvex.theory.bound import AssumptionError
from fedconvex.theory.worst_case import noise_bias

CONSTANTS = Constants(L=1.0, zeta=1.0, sigma2=0.0, K=2)
OWNERS = VerticalFederation.from_blocks({"a": np.eye(3), "b": [[1.0], [2.0], [3.0]]}, [1.0, -1.0, 1.0])
PROGRESS = {"L": 1.0, "step_size": 0.25, "distances": [1.0, 0.5], "drift": [0.0, 0.1], "noise2": 0.0}
CALLS = {
    "drift_lemma": (lambda: drift_lemma(CONSTANTS, step_size=1e308, local_steps=2), AssumptionError, "step_size"),
    "drift_lemma_sharp": (
        lambda: drift_lemma_sharp(CONSTANTS, step_size=1e308, local_steps=2), AssumptionError, "step_size",
    ),
    "no drift": (lambda: progress_lemma(**PROGRESS | {"drift": []}), ValueError, "must be given two"),
    "no distances": (lambda: progress_lemma(**PROGRESS | {"distances": ()}), ValueError, "must be given two"),
    "a set": (lambda: progress_lemma(**PROGRESS | {"L": {1}}), TypeError, "L must be a number"),
    "no domains": (lambda: vertex_bound([], [], [], delta=0.1), ValueError, "one number per domain"),
    "no shares": (lambda: client_agnostic(np.zeros((0, 2)), value=1.0), ValueError, "must be a matrix"),
    "a ragged value": (lambda: client_agnostic([[1.0]], value=[[1.0], [1.0, 2.0]]), ValueError, "value must be"),
    "ragged eigenvalues": (lambda: virtual_growth([[1.0], [1.0, 2.0]], 1.0, 3), ValueError, "kappa must be"),
    "a secret that is none": (lambda: Party(0, secret=-1), TypeError, "Party.secret must be a bytes"),
    "a short secret": (lambda: Party(0, secret=b"abc"), ValueError, "Party.secret must be 32 bytes"),
    "a seed below 0": (lambda: chain_federation(rows=2, seed=-1), ValueError, "chain_federation: seed must be"),
    "noise without a square": (
        lambda: noise_bias(1.0, 1e308, step_size=0.5, local_steps=2), ValueError, "noise_bias: sigma must be",
    ),
    "an array to drop": (
        lambda: compare_owners(OWNERS, loss=Squared(), drop=np.empty(0)), ValueError, "compare_owners: data must be",
    ),
    "no intercept": (
        lambda: compare_owners(OWNERS, loss=Squared(), intercept=np.nan), TypeError, "intercept must be True or False",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_are_refused_by_name(name):
    if "secret" in name:
        pytest.importorskip("cryptography")
    call, error, words = CALLS[name]
    with pytest.raises(error, match=words):
        call()
