"""The experiment hybrid-blocks: its data, the quick version, planted results for each claim."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex.papers import EXPERIMENTS
from fedconvex.papers.hybrid_blocks import Cell, _claims, load_rows


def cells(**planted):
    made = []
    for G in (1, 4):
        for B in (1, 3):
            for share, measured in ((0.1, 0.95), (1.0, 0.8)):
                made.append(Cell(G, B, int(100 * share), share, measured, 0.99, 50, 50))
    return [*made[:-1], made[-1]._replace(**planted)]


@pytest.mark.parametrize(
    ("planted", "fails"),
    [
        ({}, []),
        ({"measured": 0.991, "columns": 1, "groups": 2}, [0]),
        ({"measured": 0.8 + 1e-8}, [1]),
        ({"up": 51}, [2]),
        ({"measured": 0.96, "columns": 1, "groups": 1, "moves": 200, "share": 2.0}, [3]),
    ],
)
def test_every_claim_can_fail(planted, fails):
    assert [i for i, c in enumerate(_claims(cells(**planted))) if not c.holds] == fails


def test_rows_of_an_archive(tmp_path):
    X, path = sp.csr_array(np.array([[1.0, 0.0], [0.0, 2.0]])), tmp_path / "a9a.npz"
    arrays = {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": X.shape, "y": [1, -1]}
    np.savez(path, **arrays)
    name, read, y = load_rows(path, None)
    assert (name, read.toarray().tolist(), y.tolist()) == ("a9a", [[1.0, 0.0], [0.0, 2.0]], [1.0, -1.0])
    for wrong, message in (({"y": [1, 0]}, "labels, -1 and 1"), ({"indices": np.array([0, 5])}, "hold a CSR matrix")):
        np.savez(path, **(arrays | wrong))
        with pytest.raises(ValueError, match=message):
            load_rows(path, None)


@pytest.mark.slow
@pytest.mark.compiled
def test_quick_version():
    findings = EXPERIMENTS["hybrid-blocks"].run(quick=True)
    assert findings.holds
    assert set(findings.figures) == {"contraction"}
    assert len(findings.tables["table"]) == 8
