"""Messages that nobody should send, both ways, with limited memory: refused by name, and nothing else."""

from __future__ import annotations

import logging
import math
import warnings
from typing import Any

import numpy as np
from test_contract import EVERY, kinds

from fedconvex import run
from fedconvex.remote import Limits, Roster, Site, in_process
from fedconvex.remote.messages import REFUSE, UNKNOWN, Request, fingerprint
from fedconvex.remote.sockets import unpacked
from fedconvex.remote.wire import packed
from tests.campaigns.children import in_a_child
from tests.campaigns.sites import SHARED, shared

MEMORY = 500_000_000  # bytes beyond what the process has
EACH, RUNS = 40, 20  # messages of a trial to a site, and runs of one with a server


def spoiled(rng: np.random.Generator, arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], str]:
    """Change one array to what it cannot be, and sign the message anew; or damage its bytes."""
    way = rng.integers(4)
    if way == 0:
        content = bytearray(packed(arrays))
        for at in rng.integers(len(content), size=int(rng.integers(1, 6))):
            content[at] = rng.integers(256)
        return unpacked(bytes(content)), "bytes"
    out = {name: a for name, a in arrays.items() if name != "header"}
    header = arrays["header"].copy()
    if way == 1 or not out:
        header[rng.integers(6)] = rng.choice([-(2**63), -1, 0, 1, 5, 2**40, 2**63 - 1])
        return {"header": header, **out}, f"header {header.tolist()}"
    name = sorted(out)[rng.integers(len(out))]
    a = out.pop(name)
    ways: dict[str, Any] = {
        "dropped": None, "no axis": np.zeros((), a.dtype), "empty": np.zeros(0, a.dtype), "deeper": a[None],
        "long": np.zeros((100_000, *a.shape[1:]), a.dtype), "wide": np.zeros((*a.shape, 50), a.dtype),
        "short": a[..., :-1] if a.ndim else a, "other": a.astype(np.float32), "text": np.zeros(3, "<U5"),
        "NaN": np.full(a.shape, np.nan), "infinite": np.full(a.shape, -np.inf), "huge": np.full(a.shape, 1e300),
        "negative": -1 - np.abs(a.astype(np.float64)), "whole": np.full(a.shape, 2**62), "far": np.full(a.shape, 10**6),
        "below": np.full(a.shape, -(2**62)), "noise": rng.normal(size=a.shape),
    }  # fmt: skip
    how = sorted(ways)[rng.integers(len(ways))]
    if ways[how] is not None:
        b = np.asarray(ways[how])
        keeps = b.dtype.kind in "iuf" and a.dtype.kind in "iufb" and rng.random() < 0.7
        with np.errstate(all="ignore"):
            out[name] = np.ascontiguousarray(b.astype(a.dtype) if keeps else b).reshape(b.shape)
    return {"header": header, **out}, f"{name}: {how}"


def _case(rng: np.random.Generator) -> tuple[str, Any, Any, Any]:
    name = str(rng.choice(SHARED))
    return name, EVERY[name], *shared(name, str(rng.choice(kinds(name))), bool(rng.random() < 0.3))


def site_trial(rng: np.random.Generator) -> dict[str, Any]:
    """A server that sends what it likes: each message is refused, or answered as the method has it; the site stays."""
    name, method, fed, make = _case(rng)

    def work() -> list[str]:
        logging.disable(logging.CRITICAL)
        sites = [Site(method, make, fed.subset([k]), limits=Limits(share=math.inf, rows=0.0)) for k in range(fed.K)]
        seen, plain = [], in_process(sites)
        watched = lambda t, requests: seen.extend(requests.values()) or plain(t, requests)  # noqa: E731
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(method, Roster.of(make, fed), transport=watched, rounds=2, tol=0.0)
            told = []
            for _ in range(EACH):
                request = seen[rng.integers(len(seen))]
                site = sites[int(request["header"][3]) % fed.K]
                message, how = spoiled(rng, request)
                if "header" in message and not how.startswith(("bytes", "header")):
                    own = {k: a for k, a in message.items() if k != "header"}
                    message["header"] = Request(*request["header"][1:5].tolist(), fingerprint(own)).header()
                answer = site.answer(message)
                kind = int(answer["header"][1])
                why = answer["why"].tobytes().decode() if kind in (REFUSE, UNKNOWN) else ""
                assert "MemoryError" not in why, (how, why)
                packed(answer)
                told.append("refused" if why else "answered")
            again = sites[0].answer(next(a for a in seen if a["header"][3] == 0))
        assert int(again["header"][1]) not in (REFUSE,), again.get("why")
        return told

    found = in_a_child(work, 300.0, MEMORY)
    assert "returned" in found, (name, found)
    return {"method": name, "refused": found["returned"].count("refused"), "messages": EACH}


def server_trial(rng: np.random.Generator) -> dict[str, Any]:
    """A site that answers what it likes: the run ends by itself, or with an error of its own that names the site."""
    name, method, fed, make = _case(rng)

    def work() -> list[str]:
        logging.disable(logging.CRITICAL)
        ends = []
        for _ in range(RUNS):
            sites = [Site(method, make, fed.subset([k]), limits=Limits(share=math.inf, rows=0.0)) for k in range(fed.K)]
            plain, at = in_process(sites), int(rng.integers(12))
            left, told = [at], []

            def ask(t: int, requests: Any, plain: Any = plain, left: Any = left, told: Any = told) -> Any:
                answers = plain(t, requests)
                left[0] -= 1
                if left[0] < 0 and 1 in answers and rng.random() < 0.5:
                    answers[1], how = spoiled(rng, answers[1])
                    told.append(how)
                return answers

            needed = None if rng.random() < 0.5 else []
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    result = run(
                        method, Roster.of(make, fed, patience=2, required=needed), transport=ask, rounds=3, tol=1e-9
                    )
                    ends.append(result.status.name)
                    assert result.status.name != "CONVERGED" or result.gap <= 1e-9
                except (ConnectionError, ValueError) as error:
                    assert " must " in str(error), (told, repr(error))
                    ends.append(type(error).__name__)
                except Exception as error:
                    raise AssertionError(f"{told}: {error!r}") from error
        return ends

    found = in_a_child(work, 600.0, MEMORY)
    assert "returned" in found, (name, found)
    return {"method": name, "ends": {end: found["returned"].count(end) for end in set(found["returned"])}}
