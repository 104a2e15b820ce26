"""JSON lines: what is read, and what is refused with the line."""

import json

import numpy as np
import pytest

from fedconvex.datasets import load_json_lines


def test_rows_are_read_in_the_order_of_the_first_line(tmp_path):
    file = tmp_path / "a.jsonl"
    rows = [{"a": 1.5, "who": "x", "b": -2, "y": 0.5}, {"y": 1.0, "who": "y", "b": 4, "a": 0.0}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = load_json_lines(file, "y", "who")
    np.testing.assert_array_equal(table.X, [[1.5, -2.0], [0.0, 4.0]])
    assert (table.y.tolist(), table.clients.tolist(), table.feature_names) == ([0.5, 1.0], ["x", "y"], ("a", "b"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"y": 1, "a": 2}\nnothing\n', "line 2 must be a JSON object"),
        ('{"y": 1, "a": 2}\n{"y": 1}\n', "line 2 must be an object with the keys of line 1"),
        ("[1, 2]\n", "line 1 must be an object"),
        ('{"a": 2}\n', "have the key 'y'; got a"),
        ("", "have the key 'y'; got no lines"),
        ('{"y": 1, "a": NaN}\n', "be finite"),
        ('{"y": 1, "a": "high"}\n', "hold real numbers"),
    ],
)
def test_what_is_wrong_is_refused(text, words, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises((ValueError, TypeError), match=words):
        load_json_lines(file, "y")
    with pytest.raises(FileNotFoundError):
        load_json_lines(tmp_path / "none.jsonl", "y")
