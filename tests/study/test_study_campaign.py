"""The campaign of studies notices what it is there for: other bits, results that should not be, and words that lack."""

from __future__ import annotations

import math
import socket
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest
from campaigns import studies
from campaigns.links import Link


class Played:
    """A study whose processes are played: the server ends as it is told to."""

    def __init__(self, *_, results=None, status=0, said="", left=(), **__):
        self.link, self.folder = SimpleNamespace(passed=math.inf, hold=lambda most: None), None
        self.given, self.code, self.words, self.there = results or {"model.npz": b"1"}, status, said, list(left)
        self.turns = 0

    def start(self, name, **how):
        pass

    start_all = close = kill = signal = lambda self, *a, **k: None

    def status(self, name):
        self.turns += 1
        return self.code if self.turns > 2 else None

    def ended(self, name):
        return self.code

    def said(self, name):
        return self.words

    def results(self):
        return self.given

    def left(self):
        return self.there


def played(monkeypatch, **how):
    monkeypatch.setattr(studies, "calm", lambda ask, sums: SimpleNamespace(results={"model.npz": b"1"}, passed=10))
    monkeypatch.setattr(studies, "Study", lambda *a, **k: Played(**how))
    monkeypatch.setattr(studies, "schedule", lambda rng: [(0.5, "cut", "")])
    monkeypatch.setitem(studies.FAULTS, "cut", (lambda *a: None, ("",)))
    return np.random.default_rng(0)


def test_other_bits_and_a_study_that_does_not_end_are_noticed(monkeypatch):
    assert studies._passing(played(monkeypatch), None, "newton", "true")["faults"] == ["cut"]
    with pytest.raises(AssertionError, match="other bits"):
        studies._passing(played(monkeypatch, results={"model.npz": b"2"}), None, "newton", "true")
    with pytest.raises(AssertionError, match="other bits"):
        studies._passing(played(monkeypatch, results={"none": b""}), None, "newton", "true")
    with pytest.raises(AssertionError, match="must be mended"):
        studies._passing(played(monkeypatch, status=2, said="must be mended"), None, "newton", "true")


@pytest.mark.parametrize("kind", ["another table", "a changed study"])
def test_a_result_of_what_should_stop_and_another_reason_are_noticed(monkeypatch, kind):
    words = {"another table": "column ward", "a changed study": "must hold a run of the study"}[kind]
    monkeypatch.setitem(studies.STOPS, kind, studies.STOPS[kind]._replace(spoil=lambda study: None))
    sound = {"status": 2, "said": words}
    assert studies._stopping(played(monkeypatch, **sound), None, "newton", "true", kind)["hit"] == 1
    for wrong in ({"left": ["out/model.npz"]}, {"status": 0}, {"status": 70}, {"said": "of something else"}):
        with pytest.raises(AssertionError):
            studies._stopping(played(monkeypatch, **sound | wrong), None, "newton", "true", kind)


def test_a_link_holds_back_what_comes_too_soon_and_can_be_cut():
    server = socket.create_server(("127.0.0.1", 0))

    def echo():
        end, _ = server.accept()
        while piece := end.recv(100):
            end.sendall(piece)
        end.close()

    Thread(target=echo, daemon=True).start()
    link = Link(server.getsockname()[1])
    link.hold(8)
    with socket.create_connection(("127.0.0.1", link.port), 60.0) as end:
        end.sendall(b"abc")
        assert end.recv(9) == b"abc" and link.passed == 6
        end.settimeout(0.05)
        end.sendall(b"def")
        with pytest.raises(TimeoutError):
            end.recv(9)
        assert link.passed == 9
        end.settimeout(60.0)
        link.hold(math.inf)
        assert end.recv(9) == b"def"
        link.cut()
        assert end.recv(9) == b""
    link.refuses = True
    with socket.create_connection(("127.0.0.1", link.port), 60.0) as end:
        assert end.recv(9) == b""
    link.close()
    server.close()
