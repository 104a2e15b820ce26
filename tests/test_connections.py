"""Connections between a server and its sites: who may take which place, what breaks, and what strangers may cost."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

import numpy as np
import pytest
from campaigns.sites import Site, replayed

from fedconvex import FedAvg, Federation, FedSGD, Logistic, Problem, run
from fedconvex.methods import SCAFFOLD
from fedconvex.remote import TLS, Exchange, Plain, Roster, SiteWarning, authenticated_lines, in_process, serve, wire
from fedconvex.remote import Site as LimitedSite
from fedconvex.remote.authenticated_lines import ENDED, FAILED, HELLO, MESSAGE, REPLACED, Keys, Line, Oversized
from fedconvex.remote.listener import Door
from fedconvex.remote.messages import ASK
from fedconvex.remote.sockets import _entered, unpacked

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "sites.md"
KNOWN = Plain(bytes(range(32)))
HERE = ("127.0.0.1", 0)
LONG = 300.0  # seconds that nothing here takes, on the busiest machine


def pair(l2=0.1):
    rng = np.random.default_rng(3)
    clients = [(rng.normal(size=(n, 2)), rng.choice([-1.0, 1.0], n)) for n in (3, 6, 4)]
    fed = Federation.from_clients(clients, labels=["north", "east", "south"])
    return fed, lambda f: Problem(f, Logistic(), l2)


class At(NamedTuple):
    """Where a server is reached."""

    address: tuple[str, int]


class Serving:
    """A site that is served in a thread: what came of it is its error."""

    def __init__(self, site, exchange, number, credentials=None, wait=0.0):
        self.error = None
        how = site, exchange.address, credentials or KNOWN.site(number), number, wait
        self.thread = Thread(target=self._serve, args=how, daemon=True)
        self.thread.start()

    def _serve(self, *how):
        try:
            serve(*how)
        except Exception as error:
            self.error = error

    def end(self):
        self.thread.join(LONG)
        assert not self.thread.is_alive()
        return self.error


def until(done):
    while not done():
        Event().wait(0.005)


def joined(exchange, *numbers):
    """Wait until sites have their places."""
    until(lambda: all(k in exchange._members for k in numbers))


def same(result, method, fed, make, rounds):
    np.testing.assert_array_equal(result.state.w, run(method, make(fed), rounds=rounds, tol=0, seed=3).state.w)


# ---------------------------------------------------------------- lines that break


def test_a_site_whose_line_breaks_and_that_comes_back_costs_no_bit():
    """Before it is asked, while it works, and after it was started again from its file: it is asked again."""
    fed, make = pair()
    method = SCAFFOLD(step_size=0.3, local_steps=2)
    sites = [Site(method, make, fed.subset([k])) for k in range(3)]
    with Exchange(HERE, KNOWN, sites=3, deadline=LONG) as exchange:
        served, broken = [Serving(sites[k], exchange, k) for k in (0, 2)], [0]

        class Breaking:
            def answer(self, message):
                answer = sites[1].answer(message)
                if message["header"][1] == ASK and message["header"][2] in (1, 3) and broken[0] < 4:
                    broken[0] += 1  # as a process that is killed after it has worked
                    raise ConnectionResetError("killed")
                return answer

        def coming_back():
            while True:
                one = Serving(Breaking(), exchange, 1)
                if not isinstance(one.end(), ConnectionError):
                    return

        back = Thread(target=coming_back, daemon=True)
        back.start()
        roster = Roster.of(make, fed)
        same(run(method, roster, transport=exchange, rounds=5, tol=0, seed=3), method, fed, make, 5)
        assert roster.incidents == []
        assert broken == [4]
    back.join(LONG)
    assert [one.end() for one in served] == [None, None]


def test_a_line_that_is_dead_unnoticed_is_replaced():
    """A later connection has the place, and what was asked over the earlier one is asked again."""
    fed, make = pair()
    method = FedSGD(step_size=0.3)
    asked, silent = Event(), Event()

    class Silent:
        def answer(self, message):
            asked.set()
            silent.wait(LONG)
            return {}

    sites = [Site(method, make, fed.subset([k])) for k in range(3)]
    with Exchange(HERE, KNOWN, sites=3, deadline=LONG) as exchange:
        first = Serving(Silent(), exchange, 1)
        for k in (0, 2):
            Serving(sites[k], exchange, k)

        def come():
            asked.wait(LONG)
            Serving(sites[1], exchange, 1)

        Thread(target=come, daemon=True).start()
        same(run(method, Roster.of(make, fed), transport=exchange, rounds=3, tol=0, seed=3), method, fed, make, 3)
        silent.set()
        assert "another one took its place" in str(first.end())


def test_a_site_knows_how_the_run_has_ended(caplog):
    """No error where the server said so; one, and a line in its log, where it was killed or has failed."""
    fed, make = pair()
    site = Site(FedSGD(step_size=0.1), make, fed.subset([0]))
    with Exchange(HERE, KNOWN, sites=1) as exchange:
        well = Serving(site, exchange, 0, wait=LONG)
        joined(exchange, 0)
    assert well.end() is None
    assert "the line" not in caplog.text
    with pytest.raises(ZeroDivisionError), Exchange(HERE, KNOWN, sites=1) as exchange:
        badly = Serving(site, exchange, 0, wait=LONG)
        joined(exchange, 0)
        raise ZeroDivisionError
    assert "the server's run must end well; got 'ZeroDivisionError'" in str(badly.end())
    exchange = Exchange(HERE, KNOWN, sites=1)
    lost = Serving(site, exchange, 0)
    joined(exchange, 0)
    exchange._door.close()  # as the system does it where a process is killed
    exchange._members[0].line.cut()
    assert isinstance(lost.end(), ConnectionError)
    assert "site north: the connection to the server broke before the run was over" in caplog.text
    assert "must listen" in caplog.text


SERVER = """
import sys, time
from fedconvex.remote import Exchange, Plain
exchange = Exchange(("127.0.0.1", int(sys.argv[1])), Plain(bytes(range(32))), sites=1)
print(exchange.address[1], flush=True)
time.sleep(300)
"""
HOSPITAL = """
import sys
from fedconvex import FedSGD, Federation, Problem, Squared
from fedconvex.remote import Plain, Site, serve
site = Site(FedSGD(step_size=0.1), lambda fed: Problem(fed, Squared()), Federation.from_clients([([[1.0]], [1.0])]))
print("there", flush=True)
serve(site, ("127.0.0.1", int(sys.argv[1])), Plain(bytes(range(32))).site(0), 0, wait=float(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="processes are killed")
def test_a_server_that_is_killed_leaves_hospitals_with_an_exit_status():
    env = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_DISABLE_JIT": "1"}
    how = {"env": env, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    server = subprocess.Popen([sys.executable, "-c", SERVER, "0"], **how)
    port = server.stdout.readline().strip()
    hospital = subprocess.Popen([sys.executable, "-c", HOSPITAL, port, "1.0"], **how)
    hospital.stdout.readline()
    with socket.create_connection(("127.0.0.1", int(port))):  # once it has accepted this one it has the other
        Event().wait(0.5)
    server.kill()
    server.wait()
    said = hospital.communicate()[1]
    assert hospital.returncode == 1, said
    assert re.search(r"site 0: .*(broke before the run was over|must listen)", said)


KILLED = """
import sys
from test_connections import KNOWN, pair
from fedconvex.methods import SCAFFOLD
from campaigns.sites import Site
from fedconvex.remote import serve
fed, make = pair()
site = Site(SCAFFOLD(step_size=0.3, local_steps=2), make, fed.subset([1]), checkpoint=sys.argv[2])
serve(site, ("127.0.0.1", int(sys.argv[1])), KNOWN.site(1), 1)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="processes are killed")
def test_hospitals_that_are_killed_and_started_again_keep_the_bits(tmp_path):
    """Killed just before it is asked for work, and just after; a process each time."""
    fed, make = pair()
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    env = os.environ | {"PYTHONPATH": paths}  # compiled if this process is: bits are compared
    method = SCAFFOLD(step_size=0.3, local_steps=2)
    with Exchange(HERE, KNOWN, sites=3, deadline=LONG) as exchange:
        command = [sys.executable, "-c", KILLED, str(exchange.address[1]), str(tmp_path / "site")]
        process, killed = [subprocess.Popen(command, env=env)], []

        def kill(t):
            process[0].kill()
            process[0].wait()
            process[0] = subprocess.Popen(command, env=env)
            killed.append(t)

        def ask(t, requests):
            work = next(iter(requests.values()))["header"][1] == ASK
            if work and t == 2:
                kill(t)
            if work and t == 4:  # once it is sent its request, and may be at work
                member = exchange._members[1]
                sent = member.ask
                member.ask = lambda *how: (sent(*how), kill(t))
            return exchange(t, requests)

        for k in (0, 2):
            Serving(Site(method, make, fed.subset([k])), exchange, k)
        roster = Roster.of(make, fed)
        far = run(method, roster, transport=ask, rounds=7, tol=0, seed=3)
        same(far, method, fed, make, 7)
        assert roster.incidents == []
        assert killed == [2, 4]
    sites = in_process([Site(method, make, fed.subset([k])) for k in range(3)])
    near = run(method, Roster.of(make, fed), transport=sites, rounds=7, tol=0, seed=3)
    for name in near.trace.keys() - {"seconds"}:
        np.testing.assert_array_equal(far.trace[name], near.trace[name], err_msg=name)
    assert process[0].wait(LONG) == 0


# ---------------------------------------------------------------- who is waited for


def deadlines(exchange, seen):
    """Count how often an exchange waited in vain until its deadline."""
    plain = exchange._next

    def counted(*how):
        more = plain(*how)
        seen[0] += not more
        return more

    exchange._next = counted


def test_an_absent_site_costs_its_deadline_once():
    """Who is not required: neither rounds nor measuring wait for it again, until it is there; then it is asked."""
    fed, make = pair()
    method, seen = FedSGD(step_size=0.5), [0]
    sites = [Site(method, make, fed.subset([k])) for k in range(3)]
    with Exchange(HERE, KNOWN, sites=3, deadline=0.25) as exchange:
        for k in (0, 1):
            Serving(sites[k], exchange, k)
        joined(exchange, 0, 1)
        exchange.deadline = 1.0
        deadlines(exchange, seen)
        roster = Roster.of(make, fed, required=["north", "east"])
        result = run(method, roster, transport=exchange, rounds=10, tol=0, seed=3)
        if {(i.round, i.client) for i in roster.incidents if i.client != "south"} == set():
            assert seen == [1]  # else this machine has stood still for a second
            counted = {t: np.array([0, 1]) for t in range(10)}
            np.testing.assert_array_equal(result.state.w, replayed(method, make(fed), 10, counted)[0].w)
        Serving(sites[2], exchange, 2)
        joined(exchange, 2)
        exchange.deadline = LONG
        roster = Roster.of(make, fed)
        assert np.isfinite(run(method, roster, transport=exchange, rounds=2, tol=0).trace.gap).all()
        assert roster.incidents == []


def test_a_late_site_is_asked_again_once_it_has_answered():
    """Its late answer to another question is none, one to the same is taken; no request waits behind another."""
    fed, make = pair()
    method, slow = FedAvg(step_size=0.3, local_steps=2), Event()
    sites, seen = [Site(method, make, fed.subset([k])) for k in range(3)], []

    class Slow:
        def answer(self, message):
            seen.append(int(message["header"][2]))
            if seen.count(1) == 1 and message["header"][2] == 1 and message["header"][1] == ASK:
                slow.wait(LONG)
            return sites[2].answer(message)

    with Exchange(HERE, KNOWN, sites=3, deadline=LONG) as exchange:
        for k, site in enumerate((*sites[:2], Slow())):
            Serving(site, exchange, k)
        joined(exchange, 0, 1, 2)

        def ask(t, requests):
            work = next(iter(requests.values()))["header"][1] == ASK
            exchange.deadline = 0.3 if work and t == 1 else LONG
            if t == 3:
                slow.set()
                while exchange._members[2].asked is not None:
                    exchange._drain()
                    Event().wait(0.005)
            return exchange(t, requests)

        roster = Roster.of(make, fed, required=())
        run(method, roster, transport=ask, rounds=6, tol=0, seed=3, record_every=6)
        gone = {(i.round, i.client) for i in roster.incidents}
        assert (1, "south") in gone
        assert not {(t, "south") for t in (0, 3, 4, 5)} & gone
        assert 2 not in seen  # it was busy with round 1
        slow.clear()
        seen.clear()
        roster = Roster.of(make, fed, patience=1000)

        def same_again(t, requests):
            if t == 1 and list(requests) == [2]:
                slow.set()  # it was asked alone: in the meantime it has finished
            exchange.deadline = 0.3 if t == 1 else LONG
            return exchange(t, requests)

        same(run(method, roster, transport=same_again, rounds=3, tol=0, seed=3), method, fed, make, 3)
        assert seen.count(1) <= 2  # the work of round 1 once, and its measuring


# ---------------------------------------------------------------- places


def test_a_site_has_its_own_place_only():
    """The secret of one site opens no other one's place; what the server derives it from is not given away."""
    fed, make = pair()
    site = Site(FedSGD(step_size=0.1), make, fed.subset([0]))
    with Exchange(HERE, KNOWN, sites=3) as exchange:
        stolen = Plain(KNOWN.site(1).secret, 0)  # site 1 says that it is site 0
        for credentials, number, said in (
            (stolen, 0, "must be those that the server knows"),
            (Plain(bytes(32)).site(0), 0, "must be those that the server knows"),
            (KNOWN, 0, r"must be those of site 0; got the server's: Plain\(secret\).site\(0\)"),
            (KNOWN.site(1), 0, "must be those of site 0; got that of site 1"),
            (KNOWN.site(3), 3, "serve: number must be below 3, the number of sites; got 3"),
        ):
            with pytest.raises(ValueError, match=said):
                serve(site, exchange.address, credentials, number, wait=0.0)
        assert exchange._members == {}
        until(lambda: len(exchange.strangers) == 3)
    with pytest.raises(ValueError, match="asked of the server's secret"):
        KNOWN.site(0).site(1)
    for wrong in (b"short", b""):
        with pytest.raises(ValueError, match="at least 16 bytes"):
            Plain(wrong)


def test_plain_connections_stay_on_this_machine():
    for host in ("0.0.0.0", ""):
        with pytest.raises(ValueError, match="must be on this machine without TLS"):
            Exchange((host, 0), KNOWN, sites=1)
    Exchange(("0.0.0.0", 0), Plain(bytes(32), beyond_loopback=True), sites=1).close()
    for wrong in (b"secret" * 4, None, Plain):
        with pytest.raises(TypeError, match=r"must be TLS\(certificate, key, authority\) or Plain"):
            Exchange(HERE, wrong, sites=1)
    for wrong in (3, ("127.0.0.1", -1), ("127.0.0.1",), ""):
        with pytest.raises(TypeError, match=r"be \(host, port\) or a path"):
            Exchange(wrong, KNOWN, sites=1)
    with pytest.raises(ValueError, match=r"Exchange\.deadline must"):
        Exchange(HERE, KNOWN, sites=1, deadline=1e300)
    site = Site(FedSGD(step_size=0.1), pair()[1], pair()[0].subset([0]))
    with pytest.raises(ConnectionError, match="must listen"):
        serve(site, ("127.0.0.1", 1), KNOWN.site(0), 0, wait=0.0)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no paths of sockets")
def test_a_path_may_be_listened_at(tmp_path):
    fed, make = pair()
    method = FedSGD(step_size=0.3)
    with Exchange(tmp_path / "door", KNOWN, sites=3) as exchange:
        for k in range(3):
            Serving(Site(method, make, fed.subset([k])), exchange, k)
        same(run(method, Roster.of(make, fed), transport=exchange, rounds=2, tol=0, seed=3), method, fed, make, 2)


class Between:
    """A machine in the middle: it passes bytes on, and remembers them; it may change or repeat what a server sends."""

    def __init__(self, address):
        self.address, self.door = address, socket.create_server(("127.0.0.1", 0))
        self.at, self.up, self.meddle = self.door.getsockname(), bytearray(), None
        Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        site, server = self.door.accept()[0], socket.create_connection(self.address)
        self.door.close()
        Thread(target=self._pass, args=(site, server, self.up), daemon=True).start()
        self._pass(server, site, None)

    def _pass(self, source, target, kept):
        while part := self._read(source):
            if kept is not None:
                kept += part
            elif self.meddle is not None:
                part = self.meddle(part)
            target.sendall(part)
        target.close()

    @staticmethod
    def _read(source):
        try:
            return source.recv(1 << 16)
        except OSError:
            return b""


def test_what_is_repeated_or_changed_on_the_way_ends_the_connection():
    answered = []

    class Watched:
        def answer(self, message):
            answered.append(message)
            return {"header": np.zeros(1)}

    changes = (lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b[:9] + b"x" + b[10:])
    for meddle in (repeat := lambda b: b + b, *changes):
        with Exchange(HERE, KNOWN, sites=1, deadline=LONG) as exchange:
            between = Between(exchange.address)
            served = Serving(Watched(), At(between.at), 0)
            joined(exchange, 0)
            first_line = exchange._members[0]
            assert exchange(0, {0: {"a": np.ones(1)}}).keys() == {0}
            answered.clear()
            between.meddle = meddle
            exchange.deadline = LONG if meddle is repeat else 0.2
            first = exchange(0, {0: {"a": np.ones(2)}})
            exchange.deadline = 0.2
            exchange(0, {0: {"a": np.ones(3)}})  # what was repeated comes before it
            assert isinstance(served.end(), ConnectionError)
            assert len(answered) == len(first) == (meddle is repeat)
            with socket.create_connection(exchange.address) as again:  # what the site said, once more
                again.sendall(bytes(between.up))
                until(lambda: exchange.strangers)
            assert exchange._members.get(0) in (None, first_line)  # nobody else has the place
            assert "not the secret of site 0" in exchange.strangers[-1][1]


@pytest.mark.skipif(os.name != "posix", reason="limits of open files")
def test_a_line_lives_whatever_the_number_of_its_file():
    """From 1024 on not every call of the system knows it; a dead line would lose its place to another process."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != limits[1] < 1200:
        pytest.skip("too few files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 1200), limits[1]))
    held = []
    try:
        while not held or held[-1] < 1024:
            held.append(os.open(os.devnull, os.O_RDONLY))
        ends = socket.socketpair()
        with Line(ends[0]) as line, ends[1]:
            assert line.end.fileno() >= 1024
            assert not line.is_dead()
            ends[1].shutdown(socket.SHUT_WR)
            assert line.is_dead()
        assert line.is_dead()
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


# ---------------------------------------------------------------- certificates


def shell(text, folder):
    done = subprocess.run(["sh", "-ec", text], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def commands():
    """The page's commands with openssl."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [text for text in blocks if "openssl" in text]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """What the page prints, as printed, and certificates that should open nothing."""
    if shutil.which("openssl") is None or not PAGE.exists():
        pytest.skip("openssl or the page is missing")
    folder, other = tmp_path_factory.mktemp("study"), tmp_path_factory.mktemp("another")
    for where in (folder, other):
        assert len(commands()) == 3
        shell("\n".join(commands()), where)
    more = "signed() { openssl x509 -req -in $1.csr -CA $2.pem -CAkey $2.key -CAcreateserial $3 "
    more += "-extfile $1.ext -out $1.pem; }\n"
    made = {
        "twice": ("authority", "-days 9", "subjectAltName=URI:fedconvex:site:0,URI:fedconvex:site:1"),
        "nowhere": ("authority", "-days 9", "subjectAltName=URI:https://fedconvex:site:0"),
        "odd": ("authority", "-days 9", "subjectAltName=URI:fedconvex:site:-1"),
        "far": ("authority", "-days 9", "subjectAltName=URI:fedconvex:site:7"),
        "late": ("authority", "-days -1", "subjectAltName=URI:fedconvex:site:0"),
        "chained": ("site1", "-days 9", "subjectAltName=URI:fedconvex:site:0"),
        "posing": ("authority", "-days 9", "subjectAltName=DNS:localhost,IP:127.0.0.1,URI:fedconvex:site:1"),
        "elsewhere": ("authority", "-days 9", "subjectAltName=DNS:other.example.org,URI:fedconvex:server"),
    }
    for name, (by, how, names) in made.items():
        request = commands()[1].replace("server site0 site1 site2", name)
        late = f' || signed {name} {by} "-not_before 200101000000Z -not_after 200102000000Z"' * (name == "late")
        shell(f'{request}{more}printf "{names}" > {name}.ext\nsigned {name} {by} "{how}"{late}', folder)  # OpenSSL 3.4
    return folder, other


def shown(folder, name, authority=None):
    return TLS(folder / f"{name}.pem", folder / f"{name}.key", (authority or folder) / "authority.pem")


@pytest.mark.slow
def test_certificates_of_the_page_give_every_site_its_place(certificates):
    """Its commands as printed: bits of one process; then everything that must not open a place."""
    folder, other = certificates
    fed, make = pair()
    method = SCAFFOLD(step_size=0.3, local_steps=2)
    sites = [Site(method, make, fed.subset([k])) for k in range(3)]
    with Exchange(("localhost", 0), shown(folder, "server"), sites=3, deadline=LONG) as exchange:
        server = At(("localhost", exchange.address[1]))
        served = [Serving(sites[k], server, k, shown(folder, f"site{k}")) for k in range(3)]
        result = run(method, Roster.of(make, fed), transport=exchange, rounds=4, tol=0, seed=3)
        assert exchange._members[0].line.end.version() == "TLSv1.3"
        places = dict(exchange._members)
        refused = (
            ("site1", 0, "number must be 1, as the certificate says; got 0"),
            ("far", 7, "number must be below 3"),
            ("twice", 0, "must name one site's place"),
            ("nowhere", 0, "must name one site's place"),
            ("odd", 0, "must name one site's place"),
            ("late", 0, "be accepted by the server; got .*expired"),
            ("chained", 0, "be accepted by the server; got .*ca"),
            ("server", 0, "be accepted by the server; got .*certificate"),
        )
        for name, number, said in refused:
            with pytest.raises(ValueError, match=said):
                serve(sites[0], server.address, shown(folder, name), number, wait=0.0)
        with pytest.raises(ValueError, match=r"unknown_ca|unknown ca"):
            serve(sites[0], server.address, shown(other, "site0", folder), 0, wait=0.0)
        with pytest.raises(ValueError, match="the server must show a certificate of this authority"):
            serve(sites[0], server.address, shown(folder, "site0", other), 0, wait=0.0)
        assert exchange._members == places  # nobody's place was taken, in mid-run
    assert [one.end() for one in served] == [None] * 3
    same(result, method, fed, make, 4)


def test_nobody_else_is_the_server(certificates):
    folder, _ = certificates
    fed, make = pair()
    site = Site(FedSGD(step_size=0.1), make, fed.subset([0]))
    for name, said in (("posing", "be fedconvex:server; got fedconvex:site:1"), ("elsewhere", "localhost")):
        with Exchange(("localhost", 0), shown(folder, name), sites=3) as exchange:
            with pytest.raises(ValueError, match=said):
                serve(site, ("localhost", exchange.address[1]), shown(folder, "site0"), 0, wait=0.0)
            assert exchange._members == {}
    with Exchange(("127.0.0.1", 0), KNOWN, sites=1) as exchange, pytest.raises((ConnectionError, ValueError)):
        serve(site, exchange.address, shown(folder, "site0"), 0, wait=0.0)


def test_files_of_credentials_are_checked(certificates, tmp_path):
    folder, _ = certificates
    with pytest.raises(FileNotFoundError, match=r"TLS.key: path must be an existing file"):
        TLS(folder / "site0.pem", tmp_path / "none", folder / "authority.pem")
    with pytest.raises(ValueError, match=r"TLS\.certificate must be a PEM file that belongs to the key"):
        TLS(folder / "site0.pem", folder / "site1.key", folder / "authority.pem")
    with pytest.raises(ValueError, match=r"TLS\.authority must be a PEM file"):
        TLS(folder / "site0.pem", folder / "site0.key", folder / "site0.csr")
    locked, open_to_all = tmp_path / "locked.key", tmp_path / "open.key"
    shell(f"umask 077; openssl ec -in {folder}/site0.key -aes128 -passout pass:words -out {locked}", tmp_path)
    with pytest.raises(ValueError, match="encrypted"):
        TLS(folder / "site0.pem", locked, folder / "authority.pem")
    open_to_all.write_bytes((folder / "site0.key").read_bytes())
    if os.name == "posix":
        open_to_all.chmod(0o640)
        with pytest.raises(ValueError, match=r"TLS.key must be readable by its owner only; got mode 640: chmod 600"):
            TLS(folder / "site0.pem", open_to_all, folder / "authority.pem")
    with pytest.raises(ValueError, match=r"be \(host, port\) with TLS"):
        Exchange(tmp_path / "door", shown(folder, "server"), sites=1)


# ---------------------------------------------------------------- one thread for all lines


class Echo:
    """A site that answers what it is asked."""

    def answer(self, message):
        return dict(message)


@pytest.mark.parametrize("secured", [False, True])
def test_long_messages_travel_both_ways(secured, request):
    """Longer than what sockets hold, and than a record of TLS."""
    server, own = KNOWN, [KNOWN.site(k) for k in range(2)]
    if secured:
        folder = request.getfixturevalue("certificates")[0]
        server, own = shown(folder, "server"), [shown(folder, f"site{k}") for k in range(2)]
    rng = np.random.default_rng(0)
    asked = {k: {"a": rng.normal(size=n)} for k, n in enumerate((700_001, 3))}
    with Exchange(("localhost", 0), server, sites=2, deadline=LONG) as exchange:
        served = [Serving(Echo(), At(("localhost", exchange.address[1])), k, own[k]) for k in range(2)]
        joined(exchange, 0, 1)
        for _ in range(2):
            found = exchange(0, asked)
            for k in range(2):
                np.testing.assert_array_equal(found[k]["a"], asked[k]["a"])
    assert [one.end() for one in served] == [None, None]


def test_a_site_that_does_not_read_holds_up_nobody():
    """Others are asked, and answer; its own line is ended at the deadline."""
    with Exchange(HERE, KNOWN, sites=2, deadline=1.0) as exchange:
        line, _ = _entered(exchange.address, KNOWN.site(0), 0)
        Serving(Echo(), exchange, 1)
        joined(exchange, 0, 1)
        deaf = exchange._members[0]
        asked = {0: {"a": np.zeros(4_000_000)}, 1: {"a": np.ones(1)}}
        assert exchange(0, asked).keys() == {1}
        assert deaf.ended.wait(LONG)
        assert exchange(1, asked).keys() == {1}
        assert exchange._members.keys() == {1}
        line.close()


def test_a_site_that_sends_byte_by_byte_holds_up_nobody():
    with Exchange(HERE, KNOWN, sites=2, deadline=LONG) as exchange:
        line, _ = _entered(exchange.address, KNOWN.site(0), 0)
        Serving(Echo(), exchange, 1)
        joined(exchange, 0, 1)
        others = Event()

        def drip():
            _, content = line.receive(1 << 20)
            (frame,) = line.frame(MESSAGE, content)
            for i in range(len(frame)):
                if i == len(frame) // 2:
                    others.wait(LONG)  # the other site has answered in the meantime
                line.end.sendall(frame[i : i + 1])

        Thread(target=drip, daemon=True).start()
        answered, plain = [], exchange._note

        def noted(member, content):
            answered.append(member.number)
            others.set()
            plain(member, content)

        exchange._note = noted
        found = exchange(0, {k: {"a": np.full(3, float(k))} for k in range(2)})
        assert answered == [1, 0]
        assert [found[k]["a"][0] for k in range(2)] == [0.0, 1.0]
        line.close()


def test_a_fault_at_one_line_ends_that_line_only(caplog):
    with Exchange(HERE, KNOWN, sites=2, deadline=LONG) as exchange:
        served = [Serving(Echo(), exchange, k) for k in range(2)]
        joined(exchange, 0, 1)
        broken = exchange._members[0]
        broken.line.frame = lambda kind, content: 1 / 0
        broken.ask(b"", 10)
        assert broken.ended.wait(LONG)
        assert exchange(0, {1: {"a": np.ones(1)}}).keys() == {1}
        assert "the line to site 0 is ended" in caplog.text
    assert served[1].end() is None


def lines(exchange, K):
    """Return connections of K sites that do nothing by themselves, and the server's ends of them."""
    own = [_entered(exchange.address, KNOWN.site(k), k)[0] for k in range(K)]
    joined(exchange, *range(K))
    return own, [exchange._members[k] for k in range(K)]


def answer(line):
    """Answer a request with what it holds."""
    line.send(MESSAGE, line.receive(1 << 20, LONG)[1])


def test_a_site_that_closes_as_it_is_told_to_leave_ends_alone(caplog):
    """Both in one batch of events: the line has ended before its own event is looked at."""
    with Exchange(HERE, KNOWN, sites=2, deadline=LONG) as exchange:
        Serving(Echo(), exchange, 1)
        leaving = _entered(exchange.address, KNOWN.site(0), 0)[0]
        joined(exchange, 0, 1)
        member, board = exchange._members[0], exchange._board
        member.ask(b"", 10)  # from now on its line is watched
        answer(leaving)
        assert exchange(0, {1: {"a": np.ones(1)}}).keys() == {1}
        until(lambda: member.asked is None or exchange._drain())
        select, left = board._selector.select, []

        def batch(seconds):
            ready = select(seconds)
            if not left and any(key.data is member for key, _ in ready):
                member.leave(ENDED)
                left.append(member.line.end.fileno())  # not closed while somebody selects among lines
            return ready

        board._selector.select = batch
        leaving.close()
        assert member.ended.wait(LONG)
        for t in range(3):
            assert exchange(t, {1: {"a": np.ones(1)}}).keys() == {1}
        assert left[0] >= 0
        assert member.line.end.fileno() == -1
        assert board.fault is None
    assert "the line" not in caplog.text


@pytest.mark.parametrize("waiting", [False, True])
def test_who_waits_for_lines_that_are_no_longer_carried_is_told(waiting, caplog):
    """Nobody hangs: neither who waits already, nor who comes later, nor a site that connects."""
    with Exchange(HERE, KNOWN, sites=2, deadline=LONG) as exchange:
        (first,), members = lines(exchange, 1)

        def broken(seconds):
            raise RuntimeError("planted")

        if waiting:  # it is the caller that carries lines
            exchange._board.carry(0.0, lambda: False)
        exchange._board._selector.select = broken
        if not waiting:
            exchange._board.wake()
            assert members[0].ended.wait(LONG)
        for _ in range(2):
            with pytest.raises(ConnectionError, match="they were ended: planted"):
                exchange(0, {0: {"a": np.ones(1)}})
        assert members[0].ended.is_set()
        with pytest.raises((EOFError, OSError)):  # after what it was asked
            while True:
                first.receive(1 << 20, LONG)
        late = _entered(exchange.address, KNOWN.site(1), 1)[0]
        with pytest.raises((EOFError, OSError)):
            late.receive(10, LONG)
        members[0].leave(ENDED)
    exchange._board._thread.join(LONG)
    assert not exchange._board._thread.is_alive()
    assert "the lines to all sites are ended" in caplog.text
    with pytest.raises(ConnectionError, match="planted"):
        exchange(0, {0: {"a": np.ones(1)}})


def test_an_exchange_that_was_closed_says_so():
    exchange = Exchange(HERE, KNOWN, sites=1, deadline=LONG)
    exchange.close()
    with pytest.raises(ConnectionError, match="it was closed"):
        exchange(0, {0: {"a": np.ones(1)}})


def test_what_tls_wanted_to_write_first_is_followed_by_what_was_to_be_read():
    """The bytes may be with TLS already: no further event tells of them."""
    with Exchange(HERE, KNOWN, sites=1, deadline=LONG) as exchange:
        (own,), (member,) = lines(exchange, 1)
        fill, held = member.line.fill, []

        def through_tls():
            if not held:
                fill()
                held.append(bytes(member.line.came))
                member.line.came.clear()
                raise ssl.SSLWantWriteError
            member.line.came += held[0]
            member.line.fill = fill

        member.line.fill = through_tls
        Thread(target=answer, args=(own,), daemon=True).start()
        assert exchange(0, {0: {"a": np.ones(1)}}).keys() == {0}
        assert held


def test_an_answer_that_came_after_the_deadline_counts_at_the_next_request():
    """Its site is waited for again, though nobody has looked at its line in between."""
    with Exchange(HERE, KNOWN, sites=1, deadline=0.1) as exchange:
        (late,), _ = lines(exchange, 1)
        assert exchange(0, {0: {"a": np.ones(1)}}) == {}
        exchange._board._carried = float("inf")  # its own thread does not look
        exchange._drain()
        assert exchange._missed(0)
        answer(late)
        exchange._drain()
        assert not exchange._missed(0)


def test_a_late_answer_to_the_same_question_is_taken_once_it_is_there():
    """Its site is not asked to do its work again, though the answer came between two requests."""
    with Exchange(HERE, KNOWN, sites=1, deadline=0.2) as exchange:
        (late,), (member,) = lines(exchange, 1)
        assert exchange(0, {0: {"a": np.ones(1)}}) == {}
        answer(late)
        until(lambda: not exchange._events.empty() or exchange._board.carry(0.0, lambda: False))
        assert exchange(0, {0: {"a": np.ones(1)}}).keys() == {0}
        assert member.asked is None
        assert exchange(0, {0: {"a": np.ones(1)}}) == {}  # asked anew: one answer is none to a second request
        answer(late)
        until(lambda: not exchange._events.empty() or exchange._board.carry(0.0, lambda: False))
        assert exchange(0, {0: {"a": np.zeros(1)}}) == {}


def test_hundreds_of_lines_that_close_in_every_way_cost_nobody_else_anything(caplog):
    """Closed before, while and after they are asked, told to leave, cut, replaced, with half a frame or a wrong one."""
    rng = np.random.default_rng(0)
    with Exchange(HERE, KNOWN, sites=5, deadline=LONG) as exchange:
        steady = Serving(Echo(), exchange, 0)
        joined(exchange, 0)
        for t in range(60):
            own = {k: _entered(exchange.address, KNOWN.site(k), k)[0] for k in range(1, 5)}
            joined(exchange, *own)
            members = [exchange._members[k] for k in own]
            for line, member, ask in zip(own.values(), members, rng.random(4) < 0.6, strict=True):
                if ask:
                    member.ask(b"question", 100)
                way, end = rng.integers(7), line.end
                if way == 0:
                    member.leave(ENDED)
                elif way == 1:
                    member.line.cut()
                elif way == 2:
                    end.send(b"\1\0\0")  # half a head
                elif way == 3:
                    end.send(bytes(range(60)))  # a frame of no key
                elif way == 4:
                    member.leave(REPLACED)
                    line.send(MESSAGE, b"an answer")
                elif way == 5:
                    continue  # another connection takes its place
                line.close()
            found = exchange(t, {0: {"a": np.full(2, float(t))}})
            assert found[0]["a"][0] == t
            for line, stays in zip(own.values(), rng.random(4) < 0.5, strict=True):
                if not stays or t == 59:  # who owes an answer at the end is waited for
                    line.close()
        assert exchange._board.fault is None
        assert exchange(60, {0: {"a": np.ones(1)}}).keys() == {0}
    assert steady.end() is None
    assert exchange._board._members == set()
    assert "the line" not in caplog.text


REMOTE = os.path.join("fedconvex", "remote")


def interrupted(place, call):
    """Call a function, with Ctrl-C at one of the places where Python hears it in our code; whether it came so far."""
    left = [place]

    def profile(frame, event, arg):
        if event in ("call", "c_return") and REMOTE in frame.f_code.co_filename:
            left[0] -= 1
            if left[0] == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def in_time(call):
    """Return what a function returns, called in another thread: it must not hang."""
    found = []
    thread = Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive()
    return found[0] if found else None


def test_ctrl_c_anywhere_in_a_round_costs_no_site_its_place():
    """Whatever was half done: later rounds have the answers of all sites, and the end is told to them."""
    exchange = Exchange(HERE, KNOWN, sites=2, deadline=20.0)
    served = [Serving(Echo(), exchange, k, wait=LONG) for k in range(2)]
    joined(exchange, 0, 1)
    t = place = 0

    def round_():
        return exchange(t, {k: {"a": np.full(3, float(t))} for k in range(2)})

    while interrupted(place := place + 1, round_):
        for _ in range(200):  # an answer to what was asked before may have to come first
            t += 1
            if (found := in_time(round_)).keys() == {0, 1}:
                break
            Event().wait(0.005)
        assert [found[k]["a"][0] for k in range(2)] == [t, t], place
    assert place > 100
    in_time(exchange.close)
    assert [one.end() for one in served] == [None, None]


def test_ctrl_c_while_sites_are_told_the_end_ends_their_lines():
    exchange = Exchange(HERE, KNOWN, sites=1, deadline=LONG)
    lines(exchange, 1)
    exchange._members[0].ask(b"", 10)  # it owes an answer

    def stopped(end, done):
        raise KeyboardInterrupt

    exchange._board.carry = stopped
    with pytest.raises(KeyboardInterrupt):
        exchange.close()
    assert not exchange._board._thread.is_alive()


def test_requests_of_several_threads_are_answered_one_after_the_other():
    with Exchange(HERE, KNOWN, sites=2, deadline=20.0) as exchange:
        served = [Serving(Echo(), exchange, k) for k in range(2)]
        joined(exchange, 0, 1)
        found = []

        def asking(number):
            for t in range(20):
                answers = exchange(t, {k: {"a": np.full(2, number)} for k in range(2)})
                found.append([answers[k]["a"][0] == number for k in range(2)])

        threads = [Thread(target=asking, args=(number,), daemon=True) for number in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60.0)
            assert not one.is_alive()
        assert found == [[True, True]] * 80
    assert [one.end() for one in served] == [None, None]


def test_closing_in_another_thread_ends_a_round():
    """It does not wait until the deadline of a site that owes an answer has passed."""
    exchange, told = Exchange(HERE, KNOWN, sites=1, deadline=LONG), []
    (silent,), (member,) = lines(exchange, 1)

    def waiting():
        try:
            exchange(0, {0: {"a": np.ones(1)}})
        except ConnectionError as error:
            told.append(str(error))

    thread = Thread(target=waiting, daemon=True)
    thread.start()
    silent.receive(1 << 20, LONG)
    closing = Thread(target=exchange.close, daemon=True)
    closing.start()
    thread.join(60.0)
    assert "it was closed" in told[0]
    answer_late = Thread(target=silent.send, args=(MESSAGE, b""), daemon=True)
    answer_late.start()
    closing.join(60.0)
    assert not closing.is_alive()
    assert member.ended.is_set()


@pytest.mark.parametrize("place", ["select", "note"])
def test_a_handler_of_signals_may_close_an_exchange(place):
    """In the midst of a round, in the same thread: nothing waits for what it itself holds up."""
    with Exchange(HERE, KNOWN, sites=2, deadline=1.0) as exchange:
        (first, second), members = lines(exchange, 2)
        if place == "note":
            Thread(target=answer, args=(first,), daemon=True).start()
        inner, name = (exchange._board._selector, "select") if place == "select" else (exchange, "_note")
        plain, closed = getattr(inner, name), []

        def handled(*how):
            if threading.current_thread() is thread and not closed:
                closed.append(time.monotonic())
                with exchange._lock:  # as `_note` does
                    exchange.close()
                closed.append(time.monotonic())
            return plain(*how)

        def asking():
            with pytest.raises(ConnectionError, match="it was closed"):
                exchange(0, {k: {"a": np.ones(1)} for k in range(2)})
            closed.append("said")

        thread = Thread(target=asking, daemon=True)
        setattr(inner, name, handled)
        thread.start()
        thread.join(20.0)
        assert closed[2:] == ["said"]
        assert closed[1] - closed[0] < 5.0
        assert all(member.ended.is_set() for member in members)
        exchange._board._thread.join(LONG)
        assert not exchange._board._thread.is_alive()
        first.close()
        second.close()


def test_answers_that_are_there_at_the_deadline_count():
    """However long it takes to read them one after the other."""
    with Exchange(HERE, KNOWN, sites=3, deadline=0.5) as exchange:
        served = [Serving(Echo(), exchange, k) for k in range(3)]
        joined(exchange, 0, 1, 2)
        note = exchange._note

        def slow(member, content):
            until(lambda: exchange._events.qsize() == 2 or exchange._board.carry(0.0, lambda: False))
            note(member, content)
            exchange._note = note
            Event().wait(0.6)

        exchange._note = slow
        assert exchange(0, {k: {"a": np.ones(1)} for k in range(3)}).keys() == {0, 1, 2}
    assert [one.end() for one in served] == [None] * 3


# ---------------------------------------------------------------- strangers


@pytest.mark.parametrize("secured", [False, True])
def test_strangers_cost_a_bounded_number_of_connections(secured, request, caplog):
    """Many silent ones, and some that say nonsense: few are open at once, and a site gets in all the same."""
    credentials = KNOWN
    if secured:
        credentials = shown(request.getfixturevalue("certificates")[0], "server")
    caplog.set_level(logging.WARNING)
    fed, make = pair()
    method, own = FedSGD(step_size=0.5), fed.subset([0])
    site, strangers = Site(method, make, own), []
    with Exchange(("localhost", 0), credentials, sites=1, deadline=LONG) as exchange:
        address = ("localhost", exchange.address[1])
        for i in range(120):
            strangers.append(socket.create_connection(address))
            if i % 3 == 0:
                strangers[-1].sendall(b"GET / HTTP/1.1\r\n\r\n" * 8)
        known = KNOWN.site(0) if not secured else shown(request.getfixturevalue("certificates")[0], "site0")
        served = Serving(site, At(address), 0, known, wait=LONG)
        roster = Roster(make, ["north"], [own.n], 2)
        assert run(method, roster, transport=exchange, rounds=3, tol=0).rounds == 3
        assert len(exchange._door.waiting) <= exchange._door.room <= 17
        assert exchange._door.working <= exchange._door.room + 1
        assert len(exchange.strangers) >= 120 - 2 * exchange._door.room
        assert len([r for r in caplog.records if "was refused" in r.message]) <= 10
    assert served.end() is None
    for one in strangers:
        one.close()


def test_strangers_that_come_at_once_are_all_counted():
    class Slow(Door):
        """Another thread comes between reading the count and setting it, unless they take turns."""

        count = 0

        @property
        def seen(self):
            found = self.count
            time.sleep(0.01)
            return found

        @seen.setter
        def seen(self, count):
            self.count = count

    door = Slow("Door", HERE, KNOWN, 1, lambda number, line: None)
    threads = [Thread(target=door._refuse, args=("somewhere", "no place")) for _ in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(LONG)
    door.close()
    assert door.count == len(door.strangers) == 20


def test_the_address_with_most_connections_loses_its_own():
    with Exchange(HERE, KNOWN, sites=1) as exchange:
        door, ends = exchange._door, [socket.socketpair() for _ in range(4)]
        for (end, _), address in zip(ends, ("quiet", "loud", "loud", "loud"), strict=True):
            door.waiting[end] = address
        door._make_room(2)
        assert list(door.waiting.values()) == ["quiet", "loud"]
        assert ends[3][0] in door.waiting
        assert ends[1][1].recv(1) == b""
        for pair_of_ends in ends:
            for end in pair_of_ends:
                end.close()
        door.waiting.clear()


FEW = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
from threading import Thread
from fedconvex import FedSGD, Federation, Problem, Squared, run
from fedconvex.remote import Exchange, Limits, Plain, Roster, Site, serve
make, method, known = (lambda fed: Problem(fed, Squared(), l2=0.1)), FedSGD(step_size=0.5), Plain(bytes(range(32)))
with Exchange(("127.0.0.1", 0), known, sites=1, deadline=300) as exchange:
    print(exchange.address[1], flush=True)
    sys.stdin.readline()
    own = Federation.from_clients([([[1.0]], [1.0])], labels=["north"])
    site = Site(method, make, own, limits=Limits(share=1000.0))
    Thread(target=serve, args=(site, exchange.address, known.site(0), 0, 300), daemon=True).start()
    roster = Roster(make, ["north"], [1], 1)
    print(run(method, roster, transport=exchange, tol=1e-9, checkpoint=sys.argv[1]).status.name)
try:
    Exchange(("127.0.0.1", 0), known, sites=140)
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="limits of open files")
def test_the_limit_of_open_files_is_kept(tmp_path):
    """400 silent connections where 150 files may be open: the run goes on, and writes its files."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_DISABLE_JIT": "1"}
    how = {"env": env, "text": True, "stdout": subprocess.PIPE, "stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    server = subprocess.Popen([sys.executable, "-c", FEW, str(tmp_path / "server.npz")], **how)
    port = int(server.stdout.readline())
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
    out, said = server.communicate("go\n")
    for one in strangers:
        one.close()
    assert server.returncode == 0, said
    assert out.startswith("CONVERGED\n")
    assert re.search(r"Exchange\.sites must be at most \d+ where 150 files may be open; got 140: raise it", out)


def test_lines_read_what_they_should():
    left, right = (Line(end) for end in socket.socketpair())
    left.send(MESSAGE, b"x" * 100)
    assert right.receive(100) == (MESSAGE, b"x" * 100)
    left.send(HELLO, b"x" * 101)
    with pytest.raises(ConnectionError, match="101 bytes, at most 100"):
        right.receive(100)
    left, right = (Line(end) for end in socket.socketpair())
    left.end.sendall(bytes([FAILED]))
    with pytest.raises(TimeoutError):
        right.receive(100, 0.01)
    left.close()
    with pytest.raises((EOFError, OSError)):
        right.receive(100)
    right.close()


def described(*arrays, more=b"", mark=b"arrays 1", length=None):
    """A message that says anything of its arrays."""
    told = json.dumps(arrays).encode()
    return struct.pack("<8sI", mark, len(told) if length is None else length) + told + more


FOREIGN = {
    "empty": b"",
    "junk": b"junk",
    "another mark": described(["a", "<f8", [1]], more=bytes(8), mark=b"arrays 2"),
    "a description longer than all": described(["a", "<f8", [1]], more=bytes(8), length=2**32 - 1),
    "a description cut short": described(["a", "<f8", [1]], more=bytes(8), length=7),
    "no list": struct.pack("<8sI", b"arrays 1", 1) + b"7",
    "nested lists": struct.pack("<8sI", b"arrays 1", 10**5) + b"[" * 10**5,
    "a billion rows": described(["a", "<f8", [10**9]], more=bytes(8)),
    "rows beyond 64 bits": described(["a", "<f8", [2**70]], more=bytes(8)),
    "none of many rows": described(["a", "<f8", [0, 2**70]]),
    "too many axes": described(["a", "<f8", [1] * 100], more=bytes(8)),
    "more axes than can be multiplied": described(["a", "<f8", [2] * 10**6], more=bytes(8)),
    "no shape": described(["a", "<f8", ""], more=bytes(8)),
    "fewer than no rows": described(["a", "<f8", [-1, -1]], more=bytes(8)),
    "half a row": described(["a", "<f8", [1.0]], more=bytes(8)),
    "a flag of rows": described(["a", "<f8", [True]], more=bytes(8)),
    "objects": described(["a", "|O", [1]], more=bytes(8)),
    "records": described(["a", [["x", "<f8"]], [1]], more=bytes(8)),
    "text": described(["a", "<U2", [1]], more=bytes(8)),
    "no name": described([1, "<f8", [1]], more=bytes(8)),
    "a name twice": described(["a", "<f8", [1]], ["a", "<f8", [1]], more=bytes(16)),
    "bytes left over": described(["a", "<f8", [1]], more=bytes(9)),
    "bytes missing": described(["a", "<f8", [2]], more=bytes(9)),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_what_comes_through_a_connection_is_not_trusted(content):
    assert unpacked(content) == {}
    with pytest.raises((ValueError, TypeError)):
        wire.unpacked(content)


def test_messages_keep_their_bits_and_belong_to_who_reads_them():
    rng = np.random.default_rng(0)
    given = {
        "header": np.arange(6), "w": rng.normal(size=(2, 1, 3)), "turned": rng.normal(size=(3, 4)).T, "": np.array(2.5),
        "Umlaut ä": np.array([np.nan, -0.0]), "on": np.array([True, False]), "bytes": np.zeros((0, 4), np.uint8),
        "one flag": np.array(True),
    }  # fmt: skip
    found = unpacked(wire.packed(given))
    assert list(found) == list(given)
    for name, a in found.items():
        assert type(a) is np.ndarray and a.dtype == given[name].dtype and a.shape == given[name].shape
        assert a.tobytes() == given[name].tobytes() and a.flags.writeable and a.flags.c_contiguous
    odd = unpacked(described(["on", "|b1", [3]], more=bytes([0, 1, 255])))["on"]
    assert odd.tolist() == [False, True, True] and odd.view(np.uint8).tolist() == [0, 1, 1]


def test_messages_that_are_described_alike_are_checked_each():
    """What is remembered of a description says nothing of the numbers that come with another one."""
    first, second = wire.packed({"w": np.zeros(3)}), wire.packed({"w": np.arange(3.0)})
    one, other = wire.unpacked(first)["w"], wire.unpacked(second)["w"]
    one += 5.0
    np.testing.assert_array_equal(other, np.arange(3.0))
    np.testing.assert_array_equal(wire.unpacked(first)["w"], np.zeros(3))
    for content in (first[:-1], first + b"x", first[:-8]):
        for _ in range(2):
            with pytest.raises(ValueError, match="bytes"):
                wire.unpacked(content)
    long = wire.packed({"a" * n: np.full(1, n) for n in range(1, 200)})
    assert [int(a[0]) for a in wire.unpacked(long).values()] == list(range(1, 200))


def test_a_site_that_answers_nonsense_is_refused_and_named():
    """Over a connection as elsewhere."""
    fed, make = pair()
    method = FedSGD(step_size=0.1)

    class Odd:
        def answer(self, message):
            return {"header": np.zeros(3)}

    with Exchange(HERE, KNOWN, sites=3, deadline=LONG) as exchange:
        for k in range(3):
            Serving(Odd() if k == 1 else Site(method, make, fed.subset([k])), exchange, k)
        with (
            pytest.warns(SiteWarning, match="site east"),
            pytest.raises(ConnectionError, match=r"of east, asked 2 times"),
        ):
            run(method, Roster.of(make, fed, patience=2), transport=exchange, rounds=2)


def test_an_answer_of_more_bytes_than_the_method_sends_is_refused_in_words():
    """And a request: neither is kept, and the connection serves on."""
    fed, make = pair()
    method = FedSGD(step_size=0.1)

    class Long(LimitedSite):
        def answer(self, message):
            found = super().answer(message)
            return found if found["header"][1] != ASK else found | {"more": np.zeros(10**6)}

    with Exchange(HERE, KNOWN, sites=3, deadline=LONG) as exchange:
        sites = [(Long if k == 1 else Site)(method, make, fed.subset([k])) for k in range(3)]
        served = [Serving(site, exchange, k) for k, site in enumerate(sites)]
        with (
            pytest.warns(SiteWarning, match="site east"),
            pytest.raises(
                ConnectionError, match=r"east: answer refused: it has 8,00\d,\d{3} bytes, at most 1\d,\d{3} are"
            ),
        ):
            run(method, Roster.of(make, fed, patience=2), transport=exchange, rounds=2)
        answer = exchange(0, {0: {"w": np.zeros(10**6)}})[0]
        assert "site north: it has 8,000," in answer["why"].tobytes().decode()
        assert b"no header" in exchange(0, {0: {"w": np.zeros(10)}})[0]["why"].tobytes()
    assert [one.end() for one in served] == [None] * 3


def test_a_frame_that_is_dropped_is_authenticated():
    ends = socket.socketpair()
    keys = b"a" * 32, b"b" * 32
    left, right = Line(ends[0], Keys(*keys)), Line(ends[1], Keys(*keys[::-1]))
    for size in (100, 0, 3 << 20):
        writer = Thread(target=left.send, args=(MESSAGE, b"x" * size))
        writer.start()
        if size == 0:
            assert right.receive(0) == (MESSAGE, b"")
        else:
            with pytest.raises(Oversized, match=f"it has {size:,} bytes, at most 99 are kept"):
                right.receive(4 << 20, kept=99)
        writer.join()
    left.keys = Keys(b"c" * 32, b"b" * 32)
    left.send(MESSAGE, b"x" * 100)
    with pytest.raises(ConnectionError, match="authentication"):
        right.receive(4 << 20, kept=99)
    left.close()
    right.close()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals to threads of POSIX systems")
def test_a_signal_that_does_not_wake_who_waits_is_seen(monkeypatch):
    """It came just before the system was asked to wait, or to another thread: a site went on waiting for its server."""

    class Heard(Exception):
        """Raised by the handler."""

    def hear(number, frame):
        raise Heard

    monkeypatch.setattr(authenticated_lines, "_AWAKE", 0.05)
    here, there = socket.socketpair()
    before = signal.signal(signal.SIGUSR1, hear)
    waker = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
    rescue = threading.Timer(5.0, there.close)  # would end the wait
    begin = time.monotonic()
    try:
        with Line(here) as line:
            waker.start(), rescue.start()
            with pytest.raises(Heard):
                line.receive(100)
            assert time.monotonic() - begin < 4.0
            threading.Timer(0.2, Line(there).send, (MESSAGE, b"late")).start()
            assert line.receive(100) == (MESSAGE, b"late")
    finally:
        rescue.cancel()
        signal.signal(signal.SIGUSR1, before)
        there.close()
