"""What a data manager meets first: a draft that goes to others, and rows that were entered twice."""

from __future__ import annotations

from fedconvex.study import check_site, read_site, read_study
from fedconvex.study.drafting import draft
from tests.study.test_study import written


def test_a_draft_lists_no_value_of_few_patients(tmp_path):
    """Numbers of patients, names and rare wards stay at the site: a draft goes to all others."""
    rows = [f"P{i:03},{i},{'ab'[i % 2] if i else 'rare'},{40 + i % 9},{'yes' if i % 3 else 'no'}" for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["patient,number,ward,age,ill", *rows]) + "\n")
    text = draft(tmp_path / "a.csv", "ill", "va")
    assert "P0" not in text and "rare" not in text
    assert '"patient" is left out' in text and "[columns.patient]" not in text
    assert 'values = ["a", "b"]' in text and 'unknown = "other"    # 1 more values' in text
    assert "each row has a value of its own" in text.split("[columns.number]")[1].split("[columns.ward]")[0]
    (tmp_path / "draft.toml").write_text(text.replace('"..."', '"east"'))
    assert [c.name for c in read_study(tmp_path / "draft.toml").columns] == ["number", "ward", "age"]


def test_a_row_that_was_entered_twice_is_shown(tmp_path):
    """In every column, missing cells included; it takes part, since two patients may be alike."""

    def twice(cells):
        return {name: [*values, values[4], values[4], values[2]] for name, values in cells.items()}

    study = written(tmp_path, changed={"va": twice})
    (found,) = [f for f in check_site(study, read_site(tmp_path / "va.toml")).findings if f.check == "table"]
    assert not found.stops and found.found.endswith("and so are 2 more: entered twice?")
    assert "row 111 is the same as row 5 in every column" in found.found
    assert not [f for f in check_site(study, read_site(tmp_path / "cleveland.toml")).findings if f.check == "table"]


def test_a_check_finds_all_limits_at_once(tmp_path):
    """What the first guard stops does not hide the next one, and each cure is a line of site.toml that allows it."""
    study = written(tmp_path, limits="rows = 999\nevents = 99\nlevel = 77\nparameters = 0.01\n")

    def wrong():
        return [f for f in check_site(study, read_site(tmp_path / "va.toml")).findings if f.stops]

    first = {line.split(",")[0] for line in (f.cure for f in wrong())}
    assert {line.split(" = ")[0] for line in first} == {
        f"[limits] {n}" for n in ("rows", "events", "level", "parameters", "share")
    }
    of = {}  # the values of each limit; the widest one allows all
    for line in first:
        name, _, value = line.removeprefix("[limits] ").partition(" = ")
        of.setdefault(name, []).append(float(value))
    widest = {name: max(v) if name in ("share", "parameters") else int(min(v)) for name, v in of.items()}
    kept = (tmp_path / "va.toml").read_text().partition("[limits]")[0] + "[limits]\n"
    (tmp_path / "va.toml").write_text(kept + "".join(f"{n} = {v}\n" for n, v in widest.items()))
    assert not wrong()
