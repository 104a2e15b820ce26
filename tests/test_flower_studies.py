"""A study on Flower: the results of sockets and of one process, bit for bit, from study.toml and site.toml alone."""

from __future__ import annotations

import json
from importlib.util import find_spec

import numpy as np
import pytest

from fedconvex.models import LinearModel
from fedconvex.remote import in_process
from fedconvex.study import read_site, read_study
from fedconvex.study.audit_log import read_log
from fedconvex.study.coordination import Coordinator
from fedconvex.study.site_end import Participant
from tests.study.test_network import certified
from tests.study_text import wards

needs_flower = pytest.mark.skipif(find_spec("flwr") is None, reason="the extra flower is not installed")
NAMES = ["north", "south", "east"]
ANALYSE = 'analyse = { family = "logistic" }'
ASK = ANALYSE + '\nsolve = { loss = "logistic", l2 = 0.1, method = "scaffold", step_size = 0.5, rounds = 2 }'


def written(folder, sums, ask=ASK):
    """A study of three sites, with their tables, files and certificates."""
    folder.mkdir()
    (folder / "study.toml").write_text(wards(ask, NAMES, 'column = "ill"\nvalues = ["no", "yes"]', sums))
    for k, name in enumerate(NAMES):
        rng = np.random.default_rng([5, k])
        age, ward = rng.integers(30, 90, 60), rng.integers(0, 2, 60)
        ill = np.where((age - 60) / 15 + 0.4 * ward + rng.logistic(size=60) > 0, "yes", "no")
        lines = [f"{a},{'ab'[w]},{y}" for a, w, y in zip(age, ward, ill, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["age,ward,ill", *lines]) + "\n")
        own = f'[site]\nname = "{name}"\ntable = "{name}.csv"\nstate = "s_{name}"\nresults = "r_{name}"\n'
        limits = f"[limits]\nshare = 9.0\nsecure_sums = {sums}\n"
        (folder / f"{name}.toml").write_text(own + limits)
    study = read_study(folder / "study.toml")
    certified(folder, study, *NAMES)
    return study


def on_flower(folder, **more):
    from flower_grid import LocalGrid
    from flwr.app import Context, RecordDict
    from flwr.app.user_config import UserConfig

    from fedconvex.engines.flower import study_client_app, study_server_app

    def files(context):
        return str(folder / "study.toml"), str(folder / f"{NAMES[context.node_config['partition-id']]}.toml")

    grid = LocalGrid(study_client_app(files), 3)
    config = UserConfig({"study": str(folder / "study.toml"), "out": str(folder / "out" / "deep")})
    study_server_app(deadline=20.0, **more)(grid, Context(1, 1, UserConfig(), RecordDict(), config))
    return grid


@needs_flower
@pytest.mark.slow
@pytest.mark.parametrize("sums", ["true", "false"])
def test_a_study_on_flower_has_the_bits_of_one_process(tmp_path, sums):
    """Each message is answered from files alone, as by a new process; folders are made, with the model in them."""
    study = written(tmp_path / "one", sums)
    members = [Participant(study, read_site(tmp_path / "one" / f"{n}.toml"), lambda line: None) for n in NAMES]
    wanted = Coordinator(study, tmp_path / "out", in_process(members), lambda line: None).conduct()
    written(tmp_path / "two", sums)
    on_flower(tmp_path / "two")
    place = tmp_path / "two" / "out" / "deep"
    for name in ("model.npz", "model.json"):
        assert (place / "model" / name).read_bytes() == wanted[name], name
    for name in ("analysis.txt", "study.txt"):
        assert (place / name).read_bytes().split(b"digest")[0] == wanted[name].split(b"digest")[0], name
    assert LinearModel.load(place / "model").classes == ("no", "yes")
    for name in NAMES:
        lines = list(read_log(tmp_path / "two" / f"s_{name}" / "audit.jsonl"))
        assert (tmp_path / "two" / f"r_{name}" / "model.npz").read_bytes() == wanted["model.npz"]
        assert any(line["what"] == "asked for proofs" for line in lines) == (sums == "true")
        assert not any(line["what"] == "refused" for line in lines)
    assert json.loads((place / "status.json").read_text())["now"] == "ended"


@needs_flower
@pytest.mark.slow
def test_a_node_without_its_files_or_certificate_answers_nothing(tmp_path):
    """With secure sums keys are signed on Flower too; the server is told that there is an error, and no cell."""
    study = written(tmp_path / "a", "true")
    (tmp_path / "a" / "south.key").unlink()
    with pytest.raises(Exception, match="south"):
        on_flower(tmp_path / "a", joining=1.0)
    assert not (tmp_path / "a" / "out" / "deep" / "model").exists() and study.secure_sums
    assert not (tmp_path / "a" / "s_south" / "audit.jsonl").exists()
