"""Sites with a code book: how they spell values does not matter, and what the book lacks is an error, not a zero."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, run
from fedconvex.remote import Roster, Site, SiteWarning, in_process
from fedconvex.tables import UnknownCategory, read_frame, read_table
from tests.hospital_tables import HOSPITALS, hospitals, written

pytestmark = pytest.mark.anywhere
NAMES = ["cp", "sex", "restecg"]
ROWS = 30  # of each hospital
METHOD = FedAvg(step_size=0.05, local_steps=1)


def make(federation):
    return Problem(federation, Logistic(), l2=0.1)


def book(cp=("1.0", "2.0", "3.0", "4.0"), impute=None, age=(44, 64, 44, 64)):
    """A code book of four invented patients."""
    table = {"age": list(age), "cp": list(cp), "sex": [1, 2, 1, 2], "restecg": [1, 2, 3, 1], "ill": [0, 1, 0, 1]}
    frame, roles = read_table({**table, "hospital": list("abab")}, "ill", "hospital", as_category=NAMES, impute=impute)
    return roles.fit(frame)


def tables(folder, spell=lambda cell, k: cell, seed=0):
    """The table of each hospital, each with its own spelling of the codes."""
    cells = hospitals(seed)
    found = []
    for k, name in enumerate(HOSPITALS):
        mine = np.flatnonzero(np.asarray(cells["hospital"]) == name)[:ROWS]
        own = {c: [cells[c][i] for i in mine] for c in ("age", "cp", "sex", "restecg", "ill", "hospital")}
        own |= {c: [spell(cell, k) for cell in own[c]] for c in NAMES}
        found.append(written(folder / f"{name}.csv", own))
    return found


def of_sites(columns, files, **how):
    feds = [Federation.from_frame(file, columns=columns, intercept=True, **how) for file in files]
    sites = [Site(METHOD, make, fed) for fed in feds]
    roster = Roster(make, HOSPITALS, [ROWS] * 4, columns.center.size + 1)
    return run(METHOD, roster, transport=in_process(sites), rounds=2, tol=0.0, progress=False), roster, feds


@pytest.mark.parametrize(
    "cp", [(1, 2, 3, 4), ("1", "2", "3", "4"), ("1.0", "2.0", "3.0", "4.0"), ("01", "02", "03", "04")]
)
def test_spellings_of_sites_and_books_are_one(tmp_path, cp):
    spellings = (lambda c: c, lambda c: f"{float(c):.1f}", lambda c: f"{int(float(c))}.", lambda c: f"{float(c):03.0f}")
    same, _, _ = of_sites(book(), tables(tmp_path, lambda c, k: f"{float(c):.0f}"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed, roster, feds = of_sites(book(cp), tables(tmp_path, lambda c, k: spellings[k](c)))
    assert mixed.w.tobytes() == same.w.tobytes() and not roster.incidents
    assert all((fed.X[:, 1:5].reshape(-1, 4) / 1.0 != fed.X[0, 1:5]).any() for fed in feds)  # categories are there


def test_what_the_book_lacks_is_an_error_at_the_site(tmp_path):
    files = tables(tmp_path, lambda c, k: "typical" if k == 2 and float(c) == 1 else c)
    with pytest.raises(ValueError, match=r"switzerland.csv must hold only categories .*'typical' \(.*unknown='zero'"):
        of_sites(book(), files)


def test_the_study_may_count_unknown_categories_as_none_and_the_server_learns_how_many(tmp_path):
    files = tables(tmp_path, lambda c, k: "typical" if k == 2 and float(c) == 1 else c)
    gone = files[2].read_text().count("typical")
    assert gone > 0
    with pytest.warns(SiteWarning) as told:
        result, roster, feds = of_sites(book(), files, unknown="zero")
    said = [str(w.message) for w in told if issubclass(w.category, SiteWarning)]
    assert len(said) == 1 and said[0].startswith(f"site switzerland: {gone} cells hold categories"), said
    assert [(i.client, i.what.split()[0]) for i in roster.incidents] == [("switzerland", str(gone))]
    assert "typical" not in repr(roster.incidents) + said[0]
    assert sum(feds[2].columns.unseen.values()) == gone and result.trace.value[-1] < result.trace.value[0]
    with pytest.warns(UnknownCategory, match="typical"):
        Federation.from_frame(files[2], columns=book(), unknown="warn")


def test_a_missing_cell_needs_the_indicator_that_was_asked_for(tmp_path):
    files = tables(tmp_path)
    lines = files[1].read_text().splitlines()
    lines[3] = "?" + lines[3][lines[3].index(",") :]
    files[1].write_text("\n".join(lines) + "\n")
    without = book(impute="indicator")
    with pytest.raises(ValueError, match=r"'age', which has no indicator.*got 1 missing: leave a cell of it empty"):
        Federation.from_frame(files[1], columns=without)
    filled = Federation.from_frame(files[1], columns=without, unknown="zero")
    with_gap = book(impute="indicator", age=(44, None, 64, 54))
    marked = Federation.from_frame(files[1], columns=with_gap)
    at = with_gap.feature_names.index("age=(missing)")
    column = marked.X[:, at] * with_gap.scale[at] + with_gap.center[at]
    assert marked.X.shape[1] == filled.X.shape[1] + 1 and np.flatnonzero(column.round(9)).tolist() == [2]


def test_an_indicator_of_names_is_asked_for_too():
    table = {"age": [44, 64, 54], "cp": ["1", "2", "3"], "ill": [0, 1, 0], "hospital": list("aba")}
    frame, roles = read_table(table, "ill", "hospital", as_category=["cp"], impute="indicator")
    with pytest.raises(ValueError, match="'cp', which has no indicator"):
        Federation.from_frame({**table, "cp": ["1", None, "2"]}, columns=roles.fit(frame))
    frame, roles = read_table(
        {**table, "cp": ["1", "2", None]}, "ill", "hospital", as_category=["cp"], impute="indicator"
    )
    fed = Federation.from_frame({**table, "cp": ["1", None, "2"]}, columns=roles.fit(frame))
    assert fed.X.shape == (3, 4)


def test_a_rule_for_unknown_categories_needs_a_record():
    table = {"age": [44, 64, 54], "ill": [0, 1, 0], "hospital": list("aba")}
    with pytest.raises(ValueError, match="unknown must come with columns="):
        Federation.from_frame(table, target="ill", client="hospital", unknown="zero")


def test_a_gap_that_was_to_be_indicated_and_cannot_be_is_said():
    """Only b has gaps in training: a gap of a is filled, which no feature says, and a gap of b is as it was learned."""
    table = {"a": np.arange(8.0) ** 2, "b": [np.nan, *range(7)], "y": [0, 1] * 4, "who": list("uuuuvvvv")}
    frame, columns = read_table(table, "y", "who", impute="indicator", guard=False)
    fitted = columns.fit(frame)
    new = {"a": np.array([np.nan, 1.0]), "b": np.array([np.nan, 1.0])}
    with pytest.warns(UnknownCategory) as caught:
        X = fitted.matrix(read_frame(new))
    assert [str(w.message) for w in caught] == [
        "the frame: 1 missing in 'a', filled with 12.5 and not indicated: no training row had a gap"
    ]
    assert X[0].tolist() == [12.5, 3.0, 1.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.matrix(frame)
        assert fitted.matrix(read_frame(new), unknown="zero").tobytes() == X.tobytes()
