"""Keyed randomness: uniform, independent across coordinates, the same everywhere; against plain integers."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import fedconvex
from fedconvex import draws
from fedconvex.draws import BATCHES, PARTICIPATION, Draws, key_from_seed

MASK = 2**64 - 1
P = 1e-4  # fixed seeds: either side of this line is decided once and for all; about 40 tests, so 0.4 % to err


def reference_mix(z):
    """Stafford's variant 13 of the finaliser, on Python integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def reference_stream(key, *coordinates):
    z = key
    for c in coordinates:
        z = reference_mix((z + 0x9E3779B97F4A7C15 * (c + 1)) & MASK)
    return z


def reference_uniform(state, j):
    return (reference_mix((state + 0x9E3779B97F4A7C15 * (j + 1)) & MASK) >> 11) * 2.0**-53


def u64(v):
    return np.uint64(v)


# ---------------------------------------------------------------- the generator itself


def test_splitmix_published_sequence():
    """First outputs of SplitMix64 from state 1234567, as printed by the reference C code (prng.di.unimi.it)."""
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    got = [int(draws.mix(u64((1234567 + 0x9E3779B97F4A7C15 * (j + 1)) & MASK))) for j in range(5)]
    assert got == expected


@given(
    key=st.integers(0, MASK), r=st.integers(0, 10**6), t=st.integers(0, 10**9), k=st.integers(-1, 2**62),
    purpose=st.integers(0, 20), j=st.integers(0, 10**9),
)  # fmt: skip
def test_streams_equal_plain_integers(key, r, t, k, purpose, j):
    state = draws.stream(u64(key), r, t, k, purpose)
    assert int(state) == reference_stream(key, r, t, k, purpose)
    assert draws.uniform(u64(state), j) == reference_uniform(int(state), j)
    assert draws.below(u64(state), j, 7) == int(reference_uniform(int(state), j) * 7)


def test_draws_object_is_the_same_stream():
    key = key_from_seed(3)
    got = Draws(key, np.array([4, 0]), 11).uniform(5, client=2, purpose=9)
    for row, r in zip(got, (4, 0), strict=True):
        state = reference_stream(int(key), r, 11, 2, 9)
        assert row.tolist() == [reference_uniform(state, j) for j in range(5)]


# ---------------------------------------------------------------- seeds


def test_seeds():
    assert key_from_seed(5) == key_from_seed(np.int64(5))
    assert len({int(key_from_seed(s)) for s in range(1000)}) == 1000
    assert key_from_seed(np.random.default_rng(1)) == key_from_seed(np.random.default_rng(1))
    generator = np.random.default_rng(1)
    assert key_from_seed(generator) != key_from_seed(generator)  # drawn from it, one after the other


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1])
def test_every_seed_in_range_is_accepted_without_a_warning(seed):
    assert 0 <= int(key_from_seed(seed)) <= MASK


# ---------------------------------------------------------------- uniformity


def block(n=40000, seed=0):
    return Draws(key_from_seed(seed), np.arange(1), 0).uniform(n, client=0, purpose=0)[0]


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_uniform(seed):
    u = block(seed=seed)
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert stats.kstest(u, "uniform").pvalue > P
    assert stats.chisquare(np.histogram(u, 64, (0, 1))[0]).pvalue > P
    low = (u * 2**53).astype(np.uint64) & u64(255)  # the last bits too
    assert stats.chisquare(np.bincount(low.astype(int), minlength=256)).pvalue > P


@pytest.mark.parametrize("n", [2, 3, 7, 100])
def test_below(n):
    state = draws.stream(key_from_seed(0), 0, 0, 0, 0)
    got = [draws.below(u64(state), j, n) for j in range(20000)]
    assert min(got) == 0
    assert max(got) == n - 1
    assert stats.chisquare(np.bincount(got, minlength=n)).pvalue > P


@pytest.mark.slow
def test_normal():
    z = Draws(key_from_seed(0), np.arange(3), 0).normal(20000, client=0, purpose=0)
    assert z.shape == (3, 20000)
    for row in z:
        assert stats.kstest(row, "norm").pvalue > P


@pytest.mark.parametrize("axis", ["trajectory", "round", "client", "purpose", "seed"])
@pytest.mark.slow
def test_first_draws_of_neighbouring_streams_are_uniform_and_independent(axis):
    """Streams whose coordinates count up must not resemble one another: joint chi-square on a 12 x 12 grid."""
    N = 20000

    def first(i):
        at = {"trajectory": 0, "round": 0, "client": 0, "purpose": 0, "seed": 0} | {axis: i}
        state = draws.stream(key_from_seed(at["seed"]), at["trajectory"], at["round"], at["client"], at["purpose"])
        return draws.uniform(u64(state), 0)

    u = np.array([first(i) for i in range(N + 1)])
    assert stats.kstest(u, "uniform").pvalue > P
    for lag in (1, 2):
        grid = np.histogram2d(u[:-lag], u[lag:], bins=12, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(grid.ravel()).pvalue > P
    assert np.unique(u).size == N + 1


def test_coordinates_are_not_interchangeable():
    """No two of 4^4 small addresses share a stream (a sum of coordinates would)."""
    key = key_from_seed(0)
    seen = {int(draws.stream(key, *at)) for at in itertools.product(range(4), range(4), range(-1, 3), range(4))}
    assert len(seen) == 4**4


# ---------------------------------------------------------------- choosing clients


@pytest.mark.parametrize(("K", "m"), [(6, 2), (6, 3), (6, 5), (5, 5), (9, 6), (30, 2), (40, 12), (40, 13)])
@pytest.mark.slow_unless(K=[5, 6, 9, 30])
def test_choose_is_uniform_over_subsets(K, m):
    """Both branches (m^2 > 4 K shuffles): exact subset frequencies if they are few, else members and pairs."""
    N = 6000
    out = np.empty((N, m), np.int64)
    draws.choose_many(key_from_seed(1), np.arange(N), 0, -1, draws.PARTICIPATION, K, m, out)
    assert out.min() >= 0
    assert out.max() < K
    ordered = np.sort(out, axis=1)
    assert np.all(np.diff(ordered, axis=1) > 0)
    subsets = list(itertools.combinations(range(K), m)) if K <= 9 else None
    if subsets is not None:
        index = {s: i for i, s in enumerate(subsets)}
        counts = np.bincount([index[tuple(row)] for row in ordered.tolist()], minlength=len(subsets))
        assert len(subsets) == 1 or stats.chisquare(counts).pvalue > P
        return
    member = np.zeros((N, K))
    np.put_along_axis(member, out, 1.0, axis=1)
    q = m / K
    z = (member.sum(axis=0) - N * q) / np.sqrt(N * q * (1 - q))
    assert np.abs(z).max() < stats.norm.isf(P / (2 * K))
    pair = m * (m - 1) / (K * (K - 1))
    z = ((member.T @ member) - N * pair)[np.triu_indices(K, 1)] / np.sqrt(N * pair * (1 - pair))
    assert np.abs(z).max() < stats.norm.isf(P / z.size)


def test_choose_changes_with_the_round_and_trajectory():
    def sample(t, r):
        out = np.empty((1, 5), np.int64)
        draws.choose_many(key_from_seed(0), np.array([r]), t, -1, draws.PARTICIPATION, 1000, 5, out)
        return tuple(out[0])

    assert len({sample(t, r) for t in range(10) for r in range(10)}) == 100


def test_choose_weighted_has_the_given_probabilities():
    p = np.array([0.5, 0.05, 0.0, 0.25, 0.2])
    out = np.empty((8000, 3), np.int64)
    draws.choose_weighted(key_from_seed(2), np.arange(8000), 4, np.cumsum(p), out)
    assert stats.chisquare(np.bincount(out.ravel(), minlength=5)[p > 0], 24000 * p[p > 0]).pvalue > P
    assert not (out == 2).any()
    pairs = np.histogram2d(out[:, 0], out[:, 1], bins=5, range=[[-0.5, 4.5]] * 2)[0]  # draws are independent
    expected = 8000 * np.outer(p, p)
    assert stats.chisquare(pairs[expected > 0], expected[expected > 0]).pvalue > P


def test_choose_weighted_survives_sums_that_are_not_quite_one():
    out = np.empty((2000, 2), np.int64)
    draws.choose_weighted(key_from_seed(2), np.arange(2000), 0, np.array([1 / 3, 2 / 3, 1 - 1e-16]), out)
    assert set(np.unique(out)) == {0, 1, 2}


# ---------------------------------------------------------------- the same bits without a compiler

SCRIPT = """
import hashlib
import numpy as np
from fedconvex import draws
from fedconvex.draws import Draws, key_from_seed
h = hashlib.sha256()
for seed in (0, 2**40):
    key = key_from_seed(seed)
    d = Draws(key, np.array([0, 7]), 3)
    h.update(d.uniform(50, client=5, purpose=0).tobytes())
    for K, m in ((20, 3), (20, 15)):
        out = np.empty((2, m), np.int64)
        draws.choose_many(key, np.array([0, 7]), 3, -1, draws.PARTICIPATION, K, m, out)
        h.update(out.tobytes())
    out = np.empty((2, 4), np.int64)
    draws.choose_weighted(key, np.array([0, 7]), 3, np.cumsum([0.1, 0.2, 0.7]), out)
    h.update(out.tobytes())
print(h.hexdigest())
"""


@pytest.mark.slow
def test_same_bits_without_compiler():
    home = str(Path(fedconvex.__file__).parents[1])
    outputs = []
    for disabled in ("0", "1"):
        env = os.environ | {"NUMBA_DISABLE_JIT": disabled, "PYTHONPATH": home}
        done = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]


def test_purposes_differ():
    assert BATCHES != PARTICIPATION


def purposes_elsewhere(source):
    """Numbers that a file gives to streams itself, in the place of a name of `fedconvex.draws`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            fifth = node.args[4:5] if name in ("stream", "choose_many") else []
            given = [k.value for k in node.keywords if k.arg == "purpose"] + fifth
            found += [n.value for n in given if isinstance(n, ast.Constant)]
    return found


def used_in(name):
    """Files of the package that use a purpose."""
    imported = re.compile(rf"from fedconvex\.draws import [^\n]*\b{name}\b|\b_?draws\.{name}\b")
    return {f for f in Path(draws.__file__).parent.rglob("*.py") if imported.search(f.read_text())}


def test_no_purpose_of_a_stream_is_used_twice():
    """Every stream has a name in one file. Two names share a number only if different methods draw by them."""
    assert purposes_elsewhere("stream(k, 0, t, c, 3)\ndraws.uniform(1, client=-1, purpose=4)\nf(1)") == [3, 4]
    numbers = {name: n for name, n in vars(draws).items() if name.isupper() and type(n) is int}
    assert {"BATCHES", "STRAGGLING"} <= {*numbers}
    for a, b in itertools.combinations(numbers, 2):
        if numbers[a] == numbers[b]:
            assert numbers[a] >= 3, (a, b)  # below are those of every run
            assert not used_in(a) & used_in(b), (a, b)
    for file in Path(draws.__file__).parent.rglob("*.py"):
        text = file.read_text()
        if file.name != "draws.py" and ("draws" in text or "stream(" in text):
            assert not purposes_elsewhere(text), file
