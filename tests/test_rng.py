"""`rng` in the place of `seed`, as SPEC 7 of Scientific Python has it, at every public function that has a seed."""

import inspect

import numpy as np
import pytest

from fedconvex import DivergenceWarning, FedAvg, Federation, Problem, Squared, run, sweep
from fedconvex._check import seed_of, takes_rng
from fedconvex.datasets import partition_iid, partition_shards
from tests.docs_scripts import docs_script

pytestmark = pytest.mark.anywhere


@takes_rng
def drawn(x, seed=0, *, rng=None):
    """Return what was given.

    Parameters
    ----------
    x, seed

    Returns
    -------
    tuple
    """
    return x, seed, rng


def without_rng(functions):
    """Names of functions that take a seed and no rng; a key is made from a seed itself."""
    given = {name: inspect.signature(f).parameters for name, f in functions.items() if name != "key_from_seed"}
    return [name for name, parameters in given.items() if "seed" in parameters and "rng" not in parameters]


def test_every_public_function_with_a_seed_takes_rng():
    api = docs_script("api")
    found = {n: t for things in api.public_names().values() for n, t in things.items() if inspect.isfunction(t)}
    assert without_rng(found) == [] and sum("rng" in inspect.signature(f).parameters for f in found.values()) >= 25
    assert without_rng({"f": lambda seed: seed, "g": drawn}) == ["f"]


def test_a_whole_number_is_the_seed_itself_bit_for_bit():
    assert drawn(1, rng=7) == (1, 7, None) and drawn(1, seed=7) == drawn(1, 7) == (1, 7, None)
    assert np.array_equal(partition_iid(50, 4, rng=3), partition_iid(50, 4, seed=3))
    problem = Problem(Federation.from_clients([([[1.0], [2.0]], [1.0, 0.0])]), Squared())
    method = FedAvg(step_size=0.1, batch_size=1)
    assert np.array_equal(run(method, problem, rounds=3, rng=5).w, run(method, problem, rounds=3, seed=5).w)


def test_a_generator_advances_and_repeats_from_the_same_state():
    first, second = np.random.default_rng(1), np.random.default_rng(1)
    pairs = [(drawn(0, rng=first), drawn(0, rng=second)) for _ in range(2)]
    assert all(a == b for a, b in pairs) and pairs[0] != pairs[1]
    assert seed_of("f: rng", np.random.PCG64(1)) == seed_of("f: rng", np.random.Generator(np.random.PCG64(1)))


def test_a_seed_sequence_says_always_the_same():
    sequence = np.random.SeedSequence(9)
    assert drawn(0, rng=sequence) == drawn(0, rng=sequence) != drawn(0, rng=sequence.spawn(1)[0])
    assert 0 <= drawn(0, rng=sequence)[1] < 2**63


@pytest.mark.parametrize("given", [(1, 0), (1,)])
def test_both_are_refused(given):
    more = {} if len(given) == 2 else {"seed": 0}
    with pytest.raises(ValueError, match="drawn: rng must be given in the place of seed; got both"):
        drawn(*given, rng=1, **more)


@pytest.mark.parametrize(("rng", "error"), [(1.5, TypeError), (True, TypeError), (-1, ValueError), ("a", TypeError)])
def test_what_is_no_rng_is_refused(rng, error):
    with pytest.raises(error, match="partition_shards: rng must be"):
        partition_shards([0, 1, 0, 1], 2, rng=rng)
    with pytest.raises(TypeError, match="Generator"):
        drawn(0, rng=np.random.RandomState(0))


def test_rng_is_described_where_parameters_are():
    parameters = drawn.__doc__[drawn.__doc__.index("Parameters") : drawn.__doc__.index("Returns")]
    assert "rng : int, numpy.random.Generator" in parameters and "SPEC 7" in run.__doc__


def test_warnings_point_at_the_line_that_called():
    problem = Problem(Federation.from_clients([([[1.0], [2.0]], [1.0, 0.0])]), Squared())
    with pytest.warns(DivergenceWarning) as said:
        run(FedAvg(step_size=100.0), problem, rounds=50)
    with pytest.warns(RuntimeWarning, match="1 of 2 settings failed") as failed:
        sweep(FedAvg(step_size=0.1), problem, grid={"step_size": [0.1, -1.0]}, rounds=2)
    assert {said[0].filename, failed[0].filename} == {__file__}
