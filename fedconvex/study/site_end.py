"""A site's end of a study: it answers what the study asks, writes down what left, and keeps what comes back.

A request names the step of the study that it is about, and the study's digest; everything else is the affair of the
`Site` that the site itself has made for this step, from its own copy of the study. No code, and no setting, comes from
the coordinator.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedconvex._check import bad
from fedconvex._files import own_folder, write_private, write_together
from fedconvex.federation_input import draw_keys
from fedconvex.models import LinearModel
from fedconvex.remote import Limits, Site, messages, serve
from fedconvex.remote.masks import CIRCLE, KEYS
from fedconvex.remote.messages import REFUSE, UNKNOWN, Refused, unsaid
from fedconvex.remote.wire import packed
from fedconvex.study.agreement import Study
from fedconvex.study.audit_log import AuditLog
from fedconvex.study.certificates import SITE, credentials
from fedconvex.study.counted_apart import Apart
from fedconvex.study.held_out import Scores, losses_at, parted
from fedconvex.study.results import check_result, room
from fedconvex.study.runs_asked import L2S, TUNED, Question, is_tuned, l2_of, with_l2
from fedconvex.study.sealed_keys import LACKS, PROOFS, ROOM, Seals
from fedconvex.study.site_check import check_site
from fedconvex.study.site_settings import SiteSettings
from fedconvex.sweeps.answers_on_disk import alone_in

STEP, DIGEST, RUN = "study/step", "study/digest", "study/run"
HELLO, RESULT = -1, -2
_KINDS = {
    messages.JOIN: "joins",
    messages.ASK: "a round",
    messages.MEASURE: "measured",
    messages.STATISTIC: "before the first round",
}
Arrays = Mapping[str, np.ndarray]


class Participant:
    """What answers for a site of a study; `fedconvex.remote.serve` takes it as a site.

    Parameters
    ----------
    study : Study
    settings : SiteSettings
    say : callable
        Gets a line of text where something happens that people want to know.

    Raises
    ------
    ValueError
        If `check_site` finds what must be mended first.
    """

    def __init__(self, study: Study, settings: SiteSettings, say: Any = print) -> None:
        found = check_site(study, settings)
        if not found.is_sound:
            wrong = next(f for f in found.findings if f.stops)
            raise bad(f"site {settings.name}: {wrong.check}", "be sound before it takes part", wrong.found, wrong.cure)
        self.study, self.settings, self.say, self.label = study, settings, say, settings.name
        own_folder(f"site {settings.name}: state", settings.state, secret=True)
        own_folder(f"site {settings.name}: results", settings.results)
        self.log = AuditLog(settings.state / "audit.jsonl", 1e6 * settings.limits["log"])
        self.rows, self.questions = found.rows.n, found.questions
        self.read = found.rows.rows  # of the table
        self.credentials: Any = None  # whose `peer` is the coordinator's certificate
        self.seals: Seals | None = None  # without certificates, in one process, keys are not signed
        self.proven: dict[int, bytes] = {}  # keys of secure sums, by step
        self.columns = found.rows.columns
        self.sites = {i: self._site(q) for i, q in enumerate(self.questions)}  # by step
        if not any(is_tuned(study, q) or study.ask[q.name].get("held_out") for q in self.questions):
            self.columns = {}  # what questions are about is in their own rows
        counted = [
            site.ledger.numbers for q, site in zip(self.questions, self.sites.values(), strict=True) if not q.apart
        ]
        self.numbers = max(self.log.ledger, *counted, 0)  # of all that was asked
        self.apart = Apart(self.log.sums)  # and what is counted apart
        self.begun_file = settings.state / "runs.json"
        begun = json.loads(self.begun_file.read_text()) if self.begun_file.exists() else {}
        begun = {"runs": begun} if isinstance(begun, list) else begun  # as versions before sessions wrote it
        self.runs: list[str] = begun.get("runs", [])
        self.unasked = bool(begun.get("unasked", False))  # whether the last run has asked nothing yet
        self.sessions: list[str] = begun.get("sessions", [])  # of steps: a run has one in each
        self.others: dict[str, Any] = begun.get("sets", {})  # who took part, of other studies
        self.sets: list[list[str]] = self.others.pop(study.digest, [])
        self.is_greeted = False

    def _site(self, question: Question, mark: str = "") -> Site:
        """Return what answers one question."""
        settings = self.settings
        rows = question.rows(self._trained(question, self.columns)[0], settings.name, settings.guards)
        limits = settings.told
        if question.apart is not None:  # numbers are counted before they are answered
            rows = replace(rows, tells=settings.limits["scores"])  # type: ignore[call-arg]
            limits = Limits(share=math.inf, trajectories=question.models)
        file = settings.state / f"{question.name}-{_mark(self.study, question, self.rows)}{mark}.npz"
        return Site(question.method, question.make, rows, checkpoint=file, limits=limits)

    def _of_step(self, step: int | None) -> tuple[Site, Question]:
        """Return who answers a step; that of an l2 which `compare` has chosen is made when it is asked."""
        if step is None:
            raise Refused("there is no such step")
        place = step % TUNED
        if step < 0 or place >= len(self.questions):
            raise Refused("there is no such step")
        question, l2 = self.questions[place], l2_of(step)
        if (l2 is not None) is not is_tuned(self.study, question):
            raise Refused("there is no such step")
        if l2 is not None and step not in self.sites:
            self.sites[step] = self._site(with_l2(question, l2), f"-{step // TUNED}")
        return self.sites[step], question

    def _trained(self, question: Question, columns: Any) -> tuple[Any, Any]:
        """Return the columns of the rows that a question is about, and of those that are held out, None without any."""
        share = self.study.ask[question.name].get("held_out", 0.0)
        return parted(self.study, self.settings.name, columns, share) if share else (columns, None)

    def longest(self) -> int:
        """Return how many bytes a request has at most: one of a step, or a result."""
        return max(room(self.questions), *(site.longest() + 4096 + self._proofs() for site in self.sites.values()))

    def _proofs(self) -> int:
        """Return how many bytes the proofs of all keys take at most."""
        return ROOM * (len(self.study.sites) + 1)

    def answer(self, message: Arrays) -> dict[str, np.ndarray]:
        """Return the answer to a request, or a refusal; both are in the audit log before it leaves.

        Raises
        ------
        ValueError
            If the site's files cannot be written: nothing leaves then.
        """
        try:
            return self._answered(message)
        except OSError as error:
            cure = "make room, or allow it after reading `study audit`, and join again: the run goes on"
            raise bad(f"site {self.label}: {self.settings.state}", "be written to", str(error), cure) from None

    def _answered(self, message: Arrays) -> dict[str, np.ndarray]:
        asked = message.get(STEP, np.empty(0))
        step = int(asked) if asked.shape == () and asked.dtype == np.int64 else None
        try:
            given = message.get(DIGEST, np.empty(0, np.uint8))
            if given.dtype != np.uint8 or given.tobytes() != bytes.fromhex(self.study.digest):
                other = given.tobytes().hex()[:16] if given.dtype == np.uint8 else ""
                said = f", which is {'-'.join(other[i : i + 4] for i in range(0, 16, 4))}" if len(other) == 16 else ""
                raise Refused(f"it is about another study than {self.study.short}{said}: compare the files")
            if step == HELLO:
                return self._greeted(message)
            if step == RESULT:
                return self._kept(message)
            site, question = self._of_step(step)
            if self._lacks_proofs(step, question.name, message):
                found = {LACKS: np.array(1)}
                self._write("asked for proofs", found, question=question.name)
                return found
        except Refused as error:
            return self._refused("study", "unknown", str(error))
        return self._asked(site, question, {name: a for name, a in message.items() if not name.startswith("study/")})

    def refuse(self, why: str) -> dict[str, np.ndarray]:
        """Return the refusal of a message that was not read, such as one that is too long."""
        return self._refused("study", "unknown", why)

    def _refused(self, question: str, kind: str, why: str) -> dict[str, np.ndarray]:
        found = messages.refusal(f"site {self.label}: {why}")
        self._write("refused", found, question=question, kind=kind, why=why)
        self.say(f"refused: {why}")
        return found

    def _write(self, what: str, message: Arrays | None, **facts: Any) -> None:
        """Write a line, with the bytes of the message that is to leave."""
        sent = {} if message is None else {"sent": len(packed(message))}
        peer = {"peer": getattr(self.credentials, "peer", ""), "study": self.study.digest}
        self.log.write(what, **facts, **sent, **peer)

    def _greeted(self, message: Arrays) -> dict[str, np.ndarray]:
        """Tell the number of rows; a run that the site does not know yet is counted."""
        given = message.get(RUN, np.empty(0, np.uint8))
        if given.dtype != np.uint8 or given.shape != (16,):
            raise Refused("it names no run")
        run, found = given.tobytes().hex(), {"study/rows": np.array(self.rows), "study/read": np.array(self.read)}
        self.is_greeted = True
        if new := run not in self.runs:
            self._may_begin(len(self.runs) - self.unasked)
        self._write("joined" if new else "joined again", found, run=run, rows=self.rows)
        if new:  # counted when it is written down: a full log uses up no run, nor does one that asked nothing
            self.runs = self.runs[: len(self.runs) - self.unasked]
            self.unasked = True
            self._begin(self.runs, run)
            self.say(f"joined with {self.rows:,} rows")
        return found

    def _may_begin(self, before: int) -> None:
        """Raise `Refused` unless the site allows one more run, or session of a step."""
        if before >= self.settings.limits["runs"]:
            raise Refused(f"{before} runs were answered on these rows, as many as the site allows ([limits] runs)")

    def _begin(self, begun: list[str], name: str) -> None:
        """Count a run, or a session of a step."""
        begun.append(name)
        self._keep_begun()

    def _may_ask(self, site: Site, name: str, message: Arrays) -> None:
        """Raise `Refused` unless a run was named before, this is a session of one, and all who take part are summed."""
        if not self.runs:
            raise Refused("it names no run before it asks")
        if KEYS in message or CIRCLE in message:
            circle, K = message.get(CIRCLE, np.empty(0)), len(message.get(KEYS, ()))
            joined = K > 0 and K == np.size(getattr(site, "joined", {}).get("ids", ()))
            if not joined or circle.ndim != 2 or any(sorted(row) != list(range(K)) for row in circle.tolist()):
                raise Refused("its sums are not over all sites that take part")
        if _read(message)[0] == _KINDS[messages.JOIN]:
            session = f"{name}:{messages.opened(message)[0].session}"
            if session not in self.sessions:
                self._may_begin(sum(one.startswith(f"{name}:") for one in self.sessions))
                self.unasked = False
                self._begin(self.sessions, session)
            self._together(message.get("ids", np.empty(0, np.int64)))

    def _lacks_proofs(self, step: Any, name: str, message: Arrays) -> bool:
        """Whether keys of secure sums came that are not proven yet to be those of the study's sites."""
        keys = message.get(KEYS)
        if keys is None or self.seals is None or self.proven.get(step) == keys.tobytes():
            return False
        if PROOFS not in message:
            return True
        self.seals.check(name, keys, message[PROOFS])
        self.proven[step] = keys.tobytes()
        return False

    def _together(self, ids: np.ndarray) -> None:
        """Keep who takes part; of sums over other sites than before the difference would be a site's own."""
        known = dict(zip(draw_keys(np.array(self.study.sites)).tolist(), self.study.sites, strict=True))
        names = sorted(known.get(i, "") for i in np.atleast_1d(ids).tolist())
        if "" in names or len(set(names)) < len(names):
            raise Refused("it lists others than the sites of the study")
        if len(names) < self.study.at_least:
            raise Refused(f"it sums over {len(names)} sites, and the study asks for {self.study.at_least}")
        if names not in self.sets and self.study.secure_sums:
            if len(self.sets) >= (most := self.settings.limits["sets"]):
                why = "the difference of both sums would be a site's own"
                raise Refused(
                    f"other sites took part before, {', '.join(self.sets[-1])}: {why} ([limits] sets = {most})"
                )
            self.sets.append(names)
            self._keep_begun()

    def _keep_begun(self) -> None:
        asked = {"runs": self.runs, "unasked": self.unasked, "sessions": self.sessions}
        kept = {**asked, "sets": {self.study.digest: self.sets, **self.others}}
        write_private(self.begun_file, json.dumps(kept).encode())

    def _asked(self, site: Site, question: Question, message: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        name, (kind, number) = question.name, _read(message)
        try:
            self._may_ask(site, name, message)
            counted = self._room_for(site, question, message, kind)
        except Refused as error:
            return self._refused(name, kind, str(error))
        self.is_greeted = True  # by another process of this site, before it was started again
        before = site.ledger.numbers = self.numbers  # one count for all questions of all studies on these rows
        found = site.answer(message)
        if int(found["header"][1]) == REFUSE:
            self.numbers, why = site.ledger.numbers, messages.words(found["why"])
            self._write("refused", found, question=name, kind=kind, round=number, why=why, ledger=self.numbers)
            self.say(f"{name}, {kind}: refused: {why}")
            return found
        if int(found["header"][1]) == UNKNOWN:  # a session that the site does not know, as after a restart
            self._write("asked to join", found, question=name, kind=kind, round=number)
            return found
        if "public" in found and self.seals is not None:
            found = found | self.seals.seal(name, found["public"].tobytes())
        if counted is None:
            self.numbers = site.ledger.numbers
        else:
            self.numbers += self.apart.entered(counted, message, found)
        left = {key: list(a.shape) for key, a in found.items() if key != "header"}
        self._write(
            "answered", found, question=name, kind=kind, round=number,
            asked={key: list(a.shape) for key, a in message.items()}, left=left,
            numbers=sum(int(np.prod(shape)) for key, shape in left.items() if not key.startswith("study/")),
            new=self.numbers - before, ledger=self.numbers, held=site.ledger.unknown,
            **({} if counted is None else {"sums": self.apart.sums}),
        )  # fmt: skip
        if kind == "a round":
            self.say(f"{name}: round {number} answered")
        if own := getattr(site.problem, "told", None):
            file = self.settings.results / "compare_here.txt"
            write_together({file: f"{self.settings.name}, {own}".encode()})
        return found

    def _room_for(self, site: Site, question: Question, message: Arrays, kind: str) -> Any:
        """Return what an answer counts, if that is counted here; raise `Refused` where the limits leave no room."""
        if question.apart is None or kind != _KINDS[messages.MEASURE]:
            return None
        K = len(self.study.sites) if site.problem is None else site.problem.federation.K
        count, limits = partial(question.apart, K), self.settings.limits
        return self.apart.admitted(count, message, self.numbers, site.ledger.unknown, limits)

    def _kept(self, message: Arrays) -> dict[str, np.ndarray]:
        """Write a result, text or numbers, whose name is one of few, of a run that has asked."""
        try:
            name = messages.words(message["study/name"])
            content = message["study/content"]
        except KeyError:
            raise Refused("it is no result") from None
        check_result(name, content, self.questions)
        if not self.runs or self.unasked:
            raise Refused("it is a result of a run that has asked nothing")
        try:
            own_folder("results", self.settings.results)  # no link may have come there
            write_together({self.settings.results / name: content.tobytes()})
        except (OSError, ValueError) as error:
            why = unsaid(f"site {self.label}: {name} cannot be written", error)
            raise Refused(f"{name} cannot be written: {why}") from None
        told = self._scored() if name == "model.json" else None
        found = {"study/rows": np.array(self.rows)} | ({} if told is None else {"study/scores": np.array(told)})
        self._write("received", found, file=name, bytes=int(content.size))
        self.say(f"received {Path(self.settings.results.name) / name}")
        return found

    def _scored(self) -> Scores | None:
        """Return what the model is worth on the rows that were held out; it is told once a run, if at all."""
        question = next(q for q in self.questions if q.name == "solve")
        asked = question
        train, test = self._trained(question, self.columns)
        if test is None or not (self.settings.results / "model.npz").exists():
            return None
        file, mark, own = self.settings.state / "scores.json", _mark(self.study, question, self.rows), self.settings
        told = json.loads(file.read_text()) if file.exists() else []
        before = [one for one in told if one["question"] == mark]
        try:
            model = LinearModel.load(own.results)
            models = [
                replace(model, coef=np.array(one["coef"]), intercept=np.array(one["intercept"])) for one in before
            ]
            if is_tuned(self.study, question):
                asked = with_l2(question, L2S[L2S.index(model.about["l2"])])
            found, *earlier = (losses_at(asked, m, own.name, own.guards, train, test) for m in (model, *models))
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise Refused(f"it is no model of this study ({type(error).__name__})") from None
        if found is None:
            return None
        said = found.scores().words(own.name)
        self.say(said)
        write_together({own.results / "held_out.txt": (said + "\n").encode()})
        if not own.limits["scores"] or not self.runs or self.runs[-1] in [one["run"] for one in told]:
            return None
        ledger = self.sites[self.questions.index(question)].ledger
        full = self.numbers + len(Scores._fields) > ledger.limits.allowed(ledger.unknown)
        if full or found.singles_out([one for one in earlier if one is not None]):
            why = "as many numbers were answered as the site allows" if full else "made of fewer than five rows"
            self._write("refused", None, question="solve", kind="scores", why=why)
            self.say(f"scores are not told: {why}")
            return None
        kept = {"coef": model.coef.tolist(), "intercept": model.intercept.tolist()}
        write_private(file, json.dumps([*told, {"run": self.runs[-1], "question": mark, **kept}]).encode())
        return self._counted(found.scores())

    def _counted(self, found: Scores) -> Scores:
        """Return scores that are in the ledger and in the log."""
        self.numbers += len(found)
        counted = {"numbers": len(found), "new": len(found), "ledger": self.numbers}
        self._write("answered", None, question="solve", kind="scores", left={"study/scores": [len(found)]}, **counted)
        return found


def _mark(study: Study, question: Question, rows: int) -> str:
    """Return what tells the memory of a question from that of others: all of the study that it depends on."""
    asked = question.name, study.ask[question.name], study.secure_sums, study.bits, study.target
    return hashlib.sha256(repr((*asked, study.columns, study.sites, rows)).encode()).hexdigest()[:12]


def _read(message: Arrays) -> tuple[str, int]:
    """Return kind and round of a request, as far as its header can be read."""
    try:
        request, _ = messages.opened(message)
    except Refused:
        return "unknown", -1
    return _KINDS.get(request.kind, "unknown"), request.round


def take_part(study: Study, settings: SiteSettings, say: Any = print, wait: float = 3600.0) -> None:
    """Answer for a site until its study has ended.

    Parameters
    ----------
    study : Study
    settings : SiteSettings
    say : callable
        Gets lines of text: what is answered, refused, and received.
    wait : float
        Seconds in which a coordinator must be reached: at first, and again when the connection broke.

    Raises
    ------
    ValueError
        If `check_site` finds what must be mended first, certificates are not accepted, another process works in the
        site's state folder, or the disk is full.
    ConnectionError
        If the coordinator is not reached for so long, or its run has ended with an error.
    """
    own_folder(f"site {settings.name}: state", settings.state, secret=True)
    with alone_in("join", settings.state):
        member = Participant(study, settings, say)
        files = (settings.certificate, settings.key, settings.authority)
        member.credentials = credentials(study, *files, SITE + settings.name)
        if study.secure_sums:
            member.seals = Seals(study, settings.name, *files)
        serve(member, study.address, member.credentials, study.sites.index(settings.name), wait)
        member._write("ended", None)
        say("ended" if member.is_greeted else "ended without this site, which came too late")
