"""Flower's own processes: a simulation on Ray, and a SuperLink with SuperNodes on loopback, over TLS.

Minutes, and only with the extra `flower`: `pytest -m slow -n0 tests/test_flower_nodes.py`.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fedconvex import Federation, run
from fedconvex.engines.flower import QUIET

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("flwr") is None, reason="the extra flower is not installed"),
]
APP = Path(__file__).resolve().parents[1] / "examples" / "flower_app"
SECONDS = 900  # that a run may take on a busy machine


def environment(folder, interpreted="1"):
    """Of Flower's processes: nothing is reported or fetched, and the code is that under test."""
    paths = [str(APP.parents[1]), str(APP.parents[1] / "tests"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    more = {
        "NUMBA_DISABLE_JIT": interpreted,
        "FLWR_HOME": str(folder / "home"),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    }
    return os.environ | QUIET | more | {"PYTHONPATH": os.pathsep.join(paths), "PATH": path}


def until(what, done, process=None):
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end, f"no {what}"
        assert process is None or process.poll() is None, f"the process ended without {what}"
        time.sleep(0.2)


# ---------------------------------------------------------------- Ray

SIMULATION = """
import sys, time
import numpy as np
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from fedconvex import run
from fedconvex.engines.flower import Nodes, client_app
from fedconvex.remote import Roster
from test_flower import HOW, METHODS, equal, load, rows

APPS = {name: client_app(method, make, load) for name, (method, make) in METHODS.items()}


class Naming:
    # a grid whose messages say which method they are for, so that one simulation serves all

    def __init__(self, grid, name):
        self.grid, self.name = grid, name
        self.get_node_ids, self.pull_messages = grid.get_node_ids, grid.pull_messages

    def push_messages(self, messages):
        for message in messages:
            message.content["which"] = ConfigRecord({"method": self.name})
        return self.grid.push_messages(messages)


def answered(message, context):
    name = message.content["which"]["method"]
    if context.state.get("which", {}).get("method") != name:
        context.state.clear()
        context.state["which"] = ConfigRecord({"method": name})
    return APPS[name](message, context)


client, server = ClientApp(), ServerApp()
for register in (client.train(), client.evaluate(), client.query(), client.query("key")):
    register(answered)


@server.main()
def main(grid, context):
    for name, (method, make) in METHODS.items():
        roster = Roster.of(make, rows())
        far = run(method, roster, transport=Nodes(Naming(grid, name), roster, 300.0), record_every=5, **HOW)
        equal(run(method, make(rows()), **HOW), far)
        assert roster.incidents == [], roster.incidents
        print(name, "equal,", far.trace.seconds[-1] / 5, "seconds a round", flush=True)


if __name__ == "__main__":
    resources = {"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=4, backend_config=resources)
"""


def test_five_methods_in_a_simulation_have_the_bits_of_one_process(tmp_path):
    script = tmp_path / "simulation.py"
    script.write_text(SIMULATION)
    done = subprocess.run(
        [sys.executable, script], env=environment(tmp_path), capture_output=True, text=True, timeout=SECONDS
    )
    print(done.stdout)
    assert done.stdout.count(" equal, ") == 5 and done.returncode == 0, done.stdout + done.stderr[-5000:]


# ---------------------------------------------------------------- SuperLink and SuperNodes


def certificates(folder):
    """Write an authority and a certificate for this machine; return the arguments of a server that has them."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)

    def signed(name, key, issuer, by, *extensions):
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        made = (
            x509.CertificateBuilder().subject_name(subject).issuer_name(issuer or subject).public_key(key.public_key())
        )
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
        made = made.not_valid_after(now + datetime.timedelta(days=1))
        for extension, critical in extensions:
            made = made.add_extension(extension, critical)
        return made.sign(by, hashes.SHA256())

    authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = signed("authority", authority, None, authority, (x509.BasicConstraints(True, None), True))
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = signed("localhost", own, root.subject, authority, (x509.SubjectAlternativeName(names), False))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "ca.pem").write_bytes(root.public_bytes(pem))
    (folder / "server.pem").write_bytes(leaf.public_bytes(pem))
    (folder / "server.key").write_bytes(own.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    files = {"ca-certfile": "ca.pem", "certfile": "server.pem", "keyfile": "server.key"}
    return [word for name, file in files.items() for word in (f"--ssl-{name}", str(folder / file))]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def processes(folder):
    """Start processes in sessions of their own, which are killed in the end, with all that they started.

    Their kernels are compiled if those of this process are: bits are compared.
    """
    started, env = [], environment(folder, os.environ.get("NUMBA_DISABLE_JIT", "0"))

    def start(name, *command):
        with open(folder / f"{name}.log", "ab") as log:
            started.append(
                subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log, start_new_session=True)
            )
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            kill(process)


def kill(process):
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def the_app(folder):
    """A copy of the app that runs five rounds and writes its model into the folder."""
    app = folder / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    server = app / "hospitals" / "server.py"
    text = server.read_text()
    for old, new in (
        ("rounds=100, tol=1e-6, record_every=3, deadline=120.0", "rounds=5, tol=0, record_every=5, deadline=600.0"),
        ('"model.npy"', repr(str(folder / "model.npy"))),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    server.write_text(text)
    return app


def three_hospitals(folder, monkeypatch):
    """Write a table for each, and return the model of five rounds in one process."""
    pd = pytest.importorskip("pandas")
    monkeypatch.syspath_prepend(str(APP))
    from hospitals import agreed, client

    names = agreed.roster.federation.labels.tolist()
    for k, name in enumerate(names):
        pd.DataFrame(client.invented(k)).to_csv(folder / f"{name}.csv", index=False)
    parts = [Federation.from_frame(folder / f"{n}.csv", columns=agreed.columns, intercept=True) for n in names]
    whole = Federation.from_clients([(p.X, p.y) for p in parts], labels=names)
    return names, run(agreed.method, agreed.make(whole), rounds=5, tol=0).w


def rounds_kept(path):
    """The rounds of which a hospital's file holds a memory."""
    try:
        with np.load(path) as stored:
            return {int(name.split("/")[1]) for name in stored if name.startswith("kept/")}
    except (OSError, ValueError):
        return set()


def test_a_killed_node_is_started_again_and_the_model_has_the_bits_of_one_process(tmp_path, monkeypatch):
    names, expected = three_hospitals(tmp_path, monkeypatch)
    port, tls = free_port(), certificates(tmp_path)
    (tmp_path / "home").mkdir()
    connection = f'[superlink.hospitals]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{tmp_path}/ca.pem"\n'
    (tmp_path / "home" / "config.toml").write_text(connection)
    app, model = the_app(tmp_path), tmp_path / "model.npy"
    with processes(tmp_path) as start:
        link = start("superlink", "flower-superlink", *tls, "--port", str(port))
        until("server", lambda: b"Uvicorn running" in (tmp_path / "superlink.log").read_bytes(), link)

        def node(name):
            own = f'data="{tmp_path}/{name}.csv" memory="{tmp_path}/{name}.npz"'
            link = ("--superlink", f"127.0.0.1:{port}", "--root-certificates", str(tmp_path / "ca.pem"))
            return start(name, "flower-supernode", *link, *tls, "--port", str(free_port()), "--node-config", own)

        nodes = {name: node(name) for name in names}
        start("run", "flwr", "run", str(app), "hospitals").wait()
        assert b"Successfully started run" in (tmp_path / "run.log").read_bytes()
        until("second round", lambda: 1 in rounds_kept(tmp_path / "east.npz"))
        kill(nodes["east"])
        assert not model.exists()
        node("east")
        until("model", model.exists)
        time.sleep(1.0)  # until it is written
        np.testing.assert_array_equal(np.load(model), expected)


def test_a_study_goes_from_its_files_to_a_model_in_folders_that_it_makes(tmp_path):
    """Behind TLS, with secure sums: the model of one process, bit for bit, at the server and at every site."""
    from fedconvex.remote import in_process
    from fedconvex.study import read_site
    from fedconvex.study.coordination import Coordinator
    from fedconvex.study.site_end import Participant
    from tests.test_flower_studies import NAMES, written

    ask = 'solve = { loss = "logistic", l2 = 0.1, method = "fedsgd", step_size = 0.5, rounds = 1 }'
    study = written(tmp_path / "one", "true", ask)
    members = [Participant(study, read_site(tmp_path / "one" / f"{n}.toml"), lambda line: None) for n in NAMES]
    wanted = Coordinator(study, tmp_path / "out", in_process(members), lambda line: None).conduct()
    folder, port, tls = tmp_path / "two", free_port(), certificates(tmp_path)
    written(folder, "true", ask)
    (tmp_path / "home").mkdir()
    connection = f'[superlink.hospitals]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{tmp_path}/ca.pem"\n'
    (tmp_path / "home" / "config.toml").write_text(connection)
    app, place = tmp_path / "app", tmp_path / "results" / "heart"
    shutil.copytree(APP.parent / "flower_study", app, ignore=shutil.ignore_patterns("__pycache__"))
    with processes(tmp_path) as start:
        link = start("superlink", "flower-superlink", *tls, "--port", str(port))
        until("server", lambda: b"Uvicorn running" in (tmp_path / "superlink.log").read_bytes(), link)
        for name in NAMES:
            own = f'study="{folder}/study.toml" site="{folder}/{name}.toml"'
            link = ("--superlink", f"127.0.0.1:{port}", "--root-certificates", str(tmp_path / "ca.pem"))
            start(name, "flower-supernode", *link, *tls, "--port", str(free_port()), "--node-config", own)
        given = f"study='{folder}/study.toml' out='{place}'"
        start("run", "flwr", "run", str(app), "hospitals", "--run-config", given).wait()
        assert b"Successfully started run" in (tmp_path / "run.log").read_bytes()
        until("end", lambda: (place / "study.txt").exists() and b'"ended"' in (place / "status.json").read_bytes())
    for name in ("model.npz", "model.json"):
        found = (place / "model" / name).read_bytes()
        assert name.endswith("json") or found == wanted[name]
        assert all((folder / f"r_{site}" / name).read_bytes() == found for site in NAMES)
