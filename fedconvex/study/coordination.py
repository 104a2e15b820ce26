"""The coordinator's end of a study: it waits for all sites, asks what the study asks, and sends the results back."""

from __future__ import annotations

import json
import math
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedconvex._check import bad
from fedconvex._files import own_folder, write_together
from fedconvex.analysis import AnalysisPlan, analyse_sites
from fedconvex.comparison.comparison import Comparison
from fedconvex.comparison.documents import document, text
from fedconvex.comparison.page import page
from fedconvex.driver import run
from fedconvex.models import LinearModel
from fedconvex.remote import Exchange, Roster, messages
from fedconvex.remote.invitations import NO_ANSWER
from fedconvex.remote.masks import KEYS
from fedconvex.remote.messages import REFUSE
from fedconvex.report.drawings import needs_page
from fedconvex.study.agreement import INDICATOR, Study
from fedconvex.study.comparing_coordinator import compare_sites
from fedconvex.study.held_out import Scores, held_out_count
from fedconvex.study.runs_asked import (
    L2S,
    TUNED,
    Question,
    is_tuned,
    loss_of,
    of_raw_rows,
    questions,
    with_l2,
)
from fedconvex.study.sealed_keys import CERTIFICATE, LACKS, PROOFS, ROOM, SIGNATURE, proofs_of
from fedconvex.study.site_end import DIGEST, HELLO, RESULT, RUN, STEP
from fedconvex.sweeps.answers_on_disk import alone_in

_TURN = 10.0  # seconds of one exchange; a site that is lost is asked again until the study's deadline is over


_SHORT = 1 << 16  # bytes of an answer that is no more than a number of rows, or a refusal


class Stopped(Exception):
    """A study ended before its time: who is to blame, and why."""


class Coordinator:
    """What asks the sites of a study.

    Parameters
    ----------
    study : Study
    out : path
        Folder of the results, and of what a restart needs.
    transport : callable
        How sites are asked, as for `fedconvex.run`.
    say : callable
        Gets lines of text.
    """

    def __init__(self, study: Study, out: str | os.PathLike[str], transport: Any, say: Any = print) -> None:
        self.study, self.out, self.transport, self.say = study, Path(out), transport, say
        self.state = own_folder("serve: --out", self.out) / "state"
        own_folder("serve: --out", self.state, secret=True)
        self.digest = np.frombuffer(bytes.fromhex(study.digest), dtype=np.uint8)
        self.run, self.sizes = self._begun()
        self.l2 = math.nan  # that `compare` has chosen
        self.read: dict[str, int] = {}  # rows of the tables, some of which may be left out
        self.sealed: dict[int, dict[int, tuple[bytes, bytes]]] = {}  # certificates and signatures of keys, by step
        self.roster: Roster | None = None  # of the question that is asked
        self.heard = 0  # of its incidents
        self.places: list[int] = []  # of those that take part, among all sites of the study
        self.patience = max(math.ceil(study.deadline / _TURN), 1)
        self.facts: dict[str, Any] = {"study": study.name, "digest": study.digest, "run": self.run}

    def _begun(self) -> tuple[str, dict[str, int]]:
        """Return the number of the run, and the sites' rows: those of a run that is gone on with."""
        file = self.state / "run.json"
        if file.exists():
            kept = json.loads(file.read_text())
            if kept["digest"] != self.study.digest:
                cure = "take another folder for another study"
                raise bad(f"{self.out}", f"hold a run of the study {self.study.short}", "another study's", cure)
            return kept["run"], kept["sizes"]
        run = secrets.token_hex(16)
        write_together({file: json.dumps({"digest": self.study.digest, "run": run, "sizes": {}}).encode()})
        return run, {}

    def status(self, now: str, **facts: Any) -> None:
        """Write what is going on, for `fedconvex study status`."""
        self.facts |= {"now": now, "time": time.strftime("%Y-%m-%d %H:%M:%S"), **facts}
        write_together({self.out / "status.json": json.dumps(self.facts, indent=1).encode()}, durable=False)

    def asking(self, step: int) -> Any:
        """Return the transport of one step."""

        def ask(t: int, requests: Mapping[int, dict[str, np.ndarray]], most: Any = None) -> dict[int, Any]:
            self._tell_refused()
            self.status(f"{self._name(step)}, round {t}" if t >= 0 else f"{self._name(step)}, before the first round")
            places = self.places if step >= 0 else range(len(self.study.sites))
            marked = {k: {**m, STEP: np.array(step), DIGEST: self.digest} for k, m in requests.items()}
            rooms = {k: ROOM + n for k, n in (most or dict.fromkeys(requests, _SHORT)).items()}

            def exchange(some: dict[int, Any]) -> dict[int, Any]:
                sizes = [{places[k]: rooms[k] for k in some}] if bounded else []
                found = self.transport(t, {places[k]: m for k, m in some.items()}, *sizes)
                return {k: found[places[k]] for k in some if places[k] in found}

            found, sealed = exchange(marked), self.sealed.setdefault(step, {})
            if lacking := {k: m for k, m in marked.items() if LACKS in found.get(k, {}) and KEYS in m}:
                again = {k: {**m, PROOFS: proofs_of(sealed, m[KEYS])} for k, m in lacking.items()}
                found = {k: a for k, a in found.items() if k not in again} | exchange(again)
            for k, answer in found.items():
                if CERTIFICATE in answer and SIGNATURE in answer:
                    sealed[k] = answer[CERTIFICATE].tobytes(), answer[SIGNATURE].tobytes()
            return {k: {n: a for n, a in m.items() if n not in (CERTIFICATE, SIGNATURE)} for k, m in found.items()}

        bounded = getattr(self.transport, "bounded", False)
        ask.bounded = bounded  # type: ignore[attr-defined]
        return ask

    def _begun_with(self, roster: Roster) -> Roster:
        """Return the roster of a question, whose incidents are told from now on."""
        self.roster, self.heard = roster, 0
        return roster

    def _tell_refused(self) -> None:
        """Say which answers were refused since the last time, of whom, and why; never what was in them."""
        incidents = [] if self.roster is None else self.roster.incidents
        for one in incidents[self.heard :]:
            if one.what != NO_ANSWER:
                self.say(f"refused: site {one.client}, round {one.round}: {one.what}")
        self.heard = len(incidents)

    def _name(self, step: int) -> str:
        names = {HELLO: "waiting for sites", RESULT: "sending results"}
        return names.get(step) or list(self.study.ask)[step % TUNED]

    def gather(self, joining: float) -> None:
        """Wait so many seconds until all sites have joined, and keep their numbers of rows.

        Raises
        ------
        Stopped
            If a site refuses, has another number of rows than at the start of this run, or does not come.
        """
        every, run, there = self.study.sites, np.frombuffer(bytes.fromhex(self.run), dtype=np.uint8), {}  # type: ignore[var-annotated]
        names = [name for name in every if name in self.sizes] or [*every]  # a run that is gone on with has its own
        least = len(names) if self.sizes else self.study.at_least
        told, end, enough = None, time.monotonic() + joining, math.inf
        while len(there) < len(names):
            missing = [name for name in names if name not in there]
            if missing != told:
                self.say(f"waiting for {', '.join(missing)}")
                self.status("waiting for sites", missing=missing)
                told = missing
            found = self.asking(HELLO)(-1, {every.index(name): {RUN: run} for name in missing})
            for k, answer in found.items():
                there[every[k]] = self._rows(every[k], answer)
                self.read[every[k]] = self._rows(every[k], answer, "study/read")
                self.say(f"{every[k]} has joined with {there[every[k]]:,} rows")
            enough = min(enough, time.monotonic() if len(there) >= least else math.inf)
            if time.monotonic() > min(end, enough + self.study.deadline):
                break
            if not found:
                time.sleep(0.05)
        if len(there) < least:
            raise Stopped(f"{', '.join(n for n in names if n not in there)} did not join")
        self._begin({name: there[name] for name in names if name in there})

    def _begin(self, there: dict[str, int]) -> None:
        """Keep who takes part, with how many rows: for all of the run."""
        for name, rows in there.items():
            if self.sizes.get(name, rows) != rows:
                raise Stopped(f"{name} has {rows:,} rows, and had {self.sizes[name]:,} when this run began")
        self.sizes, self.places = there, [self.study.sites.index(name) for name in there]
        kept = {"digest": self.study.digest, "run": self.run, "sizes": self.sizes}
        write_together({self.state / "run.json": json.dumps(kept).encode()})
        self.say(self.head)
        self.status("all have joined who take part", rows=self.sizes, missing=[])

    @property
    def head(self) -> str:
        """Who took part, and who did not: the first line of every report."""
        gone = [name for name in self.study.sites if name not in self.sizes]
        return f"took part: {', '.join(self.sizes)}" + (
            f"; without {', '.join(gone)}, not there in time" if gone else ""
        )

    def _rows(self, name: str, answer: Mapping[str, np.ndarray], what: str = "study/rows") -> int:
        """Return how many rows a site has told."""
        rows = answer.get(what, np.empty(0))
        if rows.shape != () or rows.dtype != np.int64 or not 0 < int(rows) < 1 << 40:
            header = answer.get("header", np.empty(0))
            refusal = header.shape == (6,) and int(header[1]) == REFUSE and "why" in answer
            said = messages.words(answer["why"]) if refusal else "it did not say how many rows it has"
            raise Stopped(said if name in said else f"site {name}: {said}")
        return int(rows)

    def answer(self) -> dict[str, bytes]:
        """Ask everything, and return the results by file name."""
        results: dict[str, bytes] = {}
        for step, question in enumerate(questions(self.study)):
            self.say(f"{question.name} begins")
            ask = {"analyse": self._analyse, "compare": self._compare, "solve": self._solve}[question.name]
            try:
                results |= ask(step, question)
            finally:
                self._tell_refused()
        head = [self.head, f"study {self.study.name}, digest {self.study.digest}"]
        results["study.txt"] = "\n".join(
            [*head, *(f"  {name}: {n:,} of {self.read[name]:,} rows" for name, n in self.sizes.items()), ""]
        ).encode()
        return results

    def _analyse(self, step: int, question: Question) -> dict[str, bytes]:
        plan, settings = question.plan, self.study.ask["analyse"]
        assert isinstance(plan, AnalysisPlan)
        roster = self._begun_with(plan.roster(self.sizes, patience=self.patience))
        how = {name: settings[name] for name in ("robust", "level", "intervals")}
        found = analyse_sites(plan, roster, self.asking(step), **how)
        text = f"{self.head}\n{found.summary()}"
        if marked := [c.name for c in self.study.columns if c.missing == INDICATOR]:
            text += (
                f"\nBeware: missing cells of {', '.join(marked)} were marked and set to one value, as the study asks:\n"
            )
            text += (
                "estimates and standard errors are not those of complete rows, and may be biased by what is missing."
            )
        self.say(text)
        return {
            "analysis.txt": (text + "\n").encode(),
            "analysis.json": json.dumps({"took_part": [*self.sizes]} | found.to_dict(), indent=1).encode(),
        }

    def _compare(self, step: int, question: Question) -> dict[str, bytes]:
        names, sizes = list(self.sizes), list(self.sizes.values())
        roster = self._begun_with(Roster(question.make, names, sizes, question.features, patience=self.patience))
        found = compare_sites(question.plan, question.method, roster, self.asking(step))
        if "pooled" in question.plan.kinds:
            self.l2 = found["pooled"].l2
        said = text(found)
        self.say(said)
        self._draw(found)
        return {"compare.txt": said.encode(), "compare.json": json.dumps(document(found), indent=1).encode()}

    def _draw(self, found: Comparison) -> None:
        """Write the page of a comparison; it stays here: sites take text and numbers, which nothing executes."""
        try:
            needs_page()
        except ImportError as error:
            self.say(f"compare.html is not written: {error}")
            return
        content = page(replace(found, notes=(self.head, *found.notes)))
        write_together({self.out / "compare.html": content.encode()})

    def _solve(self, step: int, question: Question) -> dict[str, bytes]:
        settings, columns, l2 = self.study.ask["solve"], question.plan, self.study.ask["solve"]["l2"]
        if is_tuned(self.study, question):
            l2, step = self.l2, step + TUNED * (1 + L2S.index(self.l2))
            question = with_l2(question, l2)
            self.say(f"solve: l2 = {l2:g}, which compare chose for pooled models")
        names, share = list(self.sizes), settings["held_out"]
        sizes = [n - held_out_count(n, share) for n in self.sizes.values()]
        roster = self._begun_with(Roster(question.make, names, sizes, question.features, patience=self.patience))
        wishes = {"rounds": settings["rounds"], "tol": settings["tol"], "checkpoint": self.state / "solve.npz"}
        found = run(question.method, roster, transport=self.asking(step), progress=False, **wishes)
        self.say(f"solve: {found.status.name}, F(w) - F* <= {found.gap:.1e} after {found.rounds} rounds")
        if not math.isfinite(found.gap) or found.status.name == "DIVERGED":
            raise Stopped(f"solve ended {found.status.name} without a finite gap: {found.status.value}")
        about = {
            "study": self.study.name, "digest": self.study.digest, "loss": repr(loss_of(settings)),
            "l2": l2,
            "method": repr(question.method), "gap": found.gap, "status": found.status.name, "sites": names,
        }  # fmt: skip
        model = LinearModel.from_standardised(
            found.w, columns.center, columns.scale, classes=columns.labels, feature_names=columns.feature_names,
            columns=of_raw_rows(columns, self.study), about=about,
        )  # fmt: skip
        place = self.out / "model"
        model.save(place)
        return {name: (place / name).read_bytes() for name in ("model.npz", "model.json")}

    def send(self, results: Mapping[str, bytes]) -> None:
        """Write the results, and send them to all sites."""
        write_together({self.out / name: content for name, content in results.items() if not name.startswith("model.")})
        sent = {
            name: {"study/name": messages.text(name), "study/content": np.frombuffer(content, dtype=np.uint8)}
            for name, content in results.items()
        }
        scored: dict[str, Scores] = {}
        for name, message in sent.items():
            left = set(self.places)
            for _ in range(self.patience):
                found = self.asking(RESULT)(-1, {k: dict(message) for k in left})
                left -= {k for k, answer in found.items() if "study/rows" in answer}
                scored |= {self.study.sites[k]: s for k, a in found.items() if (s := _scores_in(a)) is not None}
                if not left:
                    break
            if left:
                self.say(f"{', '.join(self.study.sites[k] for k in sorted(left))} did not take {name}")
        if scored:
            lines = [self.head] + [scored[name].words(name) for name in self.study.sites if name in scored]
            write_together({self.out / "held_out.txt": ("\n".join(lines) + "\n").encode()})
            for line in lines:
                self.say(line)

    def conduct(self, joining: float = 60.0) -> dict[str, bytes]:
        """Carry the study out from its beginning, or from where it was stopped, to its end."""
        self.gather(joining)
        results = self.answer()
        self.send(results)
        self.status("ended", results=sorted(results))
        return results


def _scores_in(answer: Mapping[str, np.ndarray]) -> Scores | None:
    """Return a site's scores, if it has told any that may be some."""
    told = answer.get("study/scores", np.empty(0))
    if told.shape != (len(Scores._fields),) or told.dtype != np.float64 or not np.isfinite(told).all():
        return None
    return Scores(int(told[0]), *told[1:].tolist())


def coordinate(
    study: Study,
    credentials: Any,
    out: str | os.PathLike[str],
    say: Any = print,
    listen: Any = None,
    joining: float = 86_400.0,
) -> dict[str, bytes]:
    """Carry out a study over the network, and return the results by file name.

    Parameters
    ----------
    study : Study
    credentials : `fedconvex.remote.TLS`
        Of the coordinator.
    out : path
        Folder of the results; a run that was stopped there is gone on with, with the same bits.
    say : callable
        Gets lines of text.
    listen : (str, int), optional
        Where to listen; default the port of the study at all of this machine's addresses.
    joining : float
        Seconds in which all sites must have joined; default a day.

    Raises
    ------
    Stopped, ConnectionError
        If a site refuses, or is lost for longer than the study's deadline.
    ValueError, OSError
        If the folder holds another study's run, another process works in it, or the address is taken.
    """
    everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # by IPv4 too
    where = (everywhere, study.address[1]) if listen is None else listen
    with (
        alone_in("serve", own_folder("serve: --out", out)),
        Exchange(
            where, credentials, sites=len(study.sites), deadline=min(_TURN, study.deadline), exclusive=True
        ) as exchange,
    ):
        coordinator = Coordinator(study, out, exchange, say)
        try:
            return coordinator.conduct(joining)
        except BaseException as error:
            coordinator.status(f"stopped: {f'{error}' or type(error).__name__}")
            raise
