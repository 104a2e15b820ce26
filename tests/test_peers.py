"""Adapters of other toolkits: looked at where the toolkit is installed, which it need not be."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from fedconvex.conformance import FAMILIES, can
from fedconvex.conformance.exams import standard_exams
from fedconvex.conformance.implementation import abilities_of, ask, given_to
from fedconvex.conformance.readings_search import predict

PEERS = Path(__file__).parents[1] / "benchmarks" / "peers"
PACKAGES = {
    "fedjax_peer": "fedjax", "fedlab_peer": "fedlab", "flgo_peer": "flgo", "flower": "flwr", "pfl_peer": "pfl",
}  # fmt: skip


def test_every_adapter_names_its_environment():
    files = {path.stem for path in PEERS.glob("*.py")} - {"examine"}
    assert files == set(PACKAGES)
    for module, package in PACKAGES.items():
        name = f"requirements-{module.removesuffix('_peer')}.txt"
        lines = [line for line in (PEERS / name).read_text().splitlines() if not line.startswith("#")]
        assert lines and all("==" in line for line in lines), name
        assert any(line.startswith(f"{package}==") for line in lines), name
        assert name in (PEERS / f"{module}.py").read_text(), module


def test_answers_are_summed_up(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(PEERS))
    examine = importlib.import_module("examine")

    @can(losses=("squared",), partial=False, batches=())
    def train(clients, hyper, rounds):
        w, models = hyper["start"], []
        for _ in range(rounds):
            w = w - hyper["step_size"] * np.mean(
                [X.T @ (X @ w - y) / len(y) + hyper["l2"] * w for X, y in clients], axis=0
            )
            models.append(w)
        return models

    monkeypatch.setattr("sys.argv", ["examine", "mine", str(tmp_path / "out.json")])
    examine.examine("numpy", {"mine": ("fedsgd", train), "not asked for": ("fedavg", None)})
    assert "mine of numpy" in capsys.readouterr().out
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["numpy"] == np.__version__ and set(written["answers"]) == {"mine"}
    mine = written["answers"]["mine"]
    assert mine["verdict"] == "matches" and mine["conventions"] == {"weights": "1/K"} and mine["errors"] == []
    assert mine["checks that hold"] == "5 of 5"


@pytest.mark.slow
@pytest.mark.parametrize("module", PACKAGES)
def test_adapters_run(module, monkeypatch):
    """One step on full batches is that of some reading without choices but the weights."""
    pytest.importorskip(PACKAGES[module], exc_type=ImportError)
    monkeypatch.syspath_prepend(str(PEERS))
    for name, (family, train) in importlib.import_module(module).IMPLEMENTATIONS.items():
        f, a = FAMILIES[family], abilities_of(train)
        if family not in ("fedavg", "fedprox", "scaffold"):
            continue
        exam = standard_exams(a.losses[0], **given_to(a, f.hyper))[0]
        seen = ask(train, exam, a)[0]
        usual = {c.name: c.values[0].name for c in f.conventions if c.name != "weights"}
        off = [np.abs(predict(f, exam, usual | {"weights": w})[0] - seen).max() for w in ("n_k/n", "1/K")]
        assert min(off) < (3e-5 if a.float32 else 1e-12), (name, off)
