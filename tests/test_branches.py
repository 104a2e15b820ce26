"""Branches of bounds: which there are, which a bound takes, and that what is said of checks is so."""

import json

import numpy as np
import pytest

from fedconvex.theorems import THEOREMS
from fedconvex.verify.checking import problem_of, setting_of
from tests.campaigns.branch_marks import marked, taken
from tests.campaigns.branches import KEPT, PAGE, cases, page


def helper(x):
    return 0.5 * x if x > 1.0 else x


def toy(x, y, z=None):
    """Of every kind of branch one; errors, texts and what keeps a divisor from zero are none."""
    if z is not None:
        raise ValueError("z must be None")
    word = "one" if x == 1 else "other"
    ratio = x / max(y, 1e-300)
    total = max(x, y) + min(x, y) + helper(x) + len(word) + ratio
    if np.any(np.asarray(x) > 5.0):
        total = total + np.where(np.array([x, y]) > 3.0, 1.0, 2.0).sum()
    return total + float(np.clip(y, 0.0, 1.0))


def taken_by(*numbers):
    own, _ = marked(THEOREMS["hedging"]._replace(bound=toy))
    with taken() as found:
        assert own.bound(*numbers) == toy(*numbers)
    return found


def test_branches_are_found_and_told():
    _, names = marked(THEOREMS["hedging"]._replace(bound=toy))
    sides = ["x in max(x, y)", "y in max(x, y)", "x in min(x, y)", "y in min(x, y)", "0.5 * x if x > 1.0"]
    assert len(names) == 4 + 2 + 2 + 2 + 3 and {f"toy: {s}" for s in sides[:4]} < set(names)
    large = taken_by(6.0, 2.0)
    assert {"toy: x in max(x, y)", "toy: y in min(x, y)", "helper: 0.5 * x if x > 1.0"} < large
    assert sum("where" in name for name in large) == 2 and "toy: above 1.0 in np.clip(y, 0.0, 1.0)" in large
    small = taken_by(0.5, 0.5)  # of equal entries a minimum takes both, a maximum none
    assert {"toy: x in min(x, y)", "toy: y in min(x, y)", "helper: x unless x > 1.0"} < small
    assert not any("max" in name or "where" in name for name in small)


def test_the_page_is_that_of_the_record():
    assert PAGE.read_text() == page(json.loads(KEPT.read_text())), "written by python docs/pages.py"


@pytest.mark.slow
def test_every_branch_of_the_bounds_judged_is_on_record():
    known = json.loads(KEPT.read_text())
    for name in list(known)[::4]:
        assert set(marked(THEOREMS[name])[1]) <= set(known[name]), name


def test_cases_of_a_setting():
    theorem = THEOREMS["fedavg-refined-sharp"]
    check = theorem.checks[-1]
    found = list(cases(setting_of(theorem, check, problem_of(theorem, check.instance))))
    assert sum(name.startswith("mu ") for name in found) == 1 and "all clients" in found
