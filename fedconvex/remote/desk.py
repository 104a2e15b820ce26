"""The server's desk: requests go out, answers come in, and what cannot be used is refused, named and left out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import wrong_type
from fedconvex.remote import messages
from fedconvex.remote.messages import JOIN, REFUSE, UNKNOWN, Form, Refused, Request

__all__ = ["Desk", "Incident", "SiteWarning"]

_MOST = 10_000  # incidents that are kept


class SiteWarning(UserWarning):
    """An answer of a site was refused, or it refuses to take part."""


class Incident(NamedTuple):
    """An answer that could not be used.

    Examples
    --------
    >>> from fedconvex.remote import Incident
    >>> Incident(3, "north", "no answer").client
    'north'
    """

    round: int  # -1 before the first one
    client: Any
    what: str


class Unjoined(Refused):
    """The site has not joined this session."""


class Desk:
    """Asks sites, and checks what they answer.

    Parameters
    ----------
    ask : callable
        From (round, {client: arrays}) to {client: arrays}; who is missing did not answer.
    labels : array (K,)
    session : int
    invitation : dict of arrays
        What sites are told before they are asked for anything, beside their numbers.
    patience : int
        How often who does not answer is asked where an answer cannot be done without.
    incidents : list
        Grows.
    """

    def __init__(
        self,
        ask: Callable[[int, dict[int, dict[str, np.ndarray]]], Mapping[int, Mapping[str, np.ndarray]]],
        labels: np.ndarray,
        session: int,
        invitation: Mapping[str, np.ndarray],
        patience: int,
        incidents: list[Incident],
    ) -> None:
        if not callable(ask):
            must = "be callable: ask(t, {client: arrays}) -> {client: arrays}"
            raise wrong_type("run: transport", must, type(ask).__name__, "such as fedconvex.remote.in_process(sites)")
        self.ask, self.labels, self.session, self.patience = ask, labels.tolist(), session, patience
        self.invitation, self.incidents = invitation, incidents
        self.warned: set[int] = set()
        self.joining: Mapping[str, Form] = {}  # what sites answer when they join
        self.keys: dict[int, np.ndarray] = {}  # public keys, where sums are secure

    def note(self, t: int, k: int, what: str, loud: bool = True) -> None:
        """Keep an incident; warn of the first one of a client that is more than silence."""
        label = self.labels[k]
        if len(self.incidents) < _MOST:
            self.incidents.append(Incident(t, label, what))
        if loud and k not in self.warned:
            self.warned.add(k)
            warnings.warn(f"site {label}, round {t}: {what}; the run goes on without it", SiteWarning, stacklevel=2)

    def join(self, clients: Any, t: int) -> set[int]:
        """Invite clients; return those that have joined."""
        asked: dict[int, dict[str, np.ndarray]] = {
            k: {**self.invitation, "number": np.array(k, dtype=np.int64)} for k in clients
        }
        found = self._exchange(JOIN, t, asked, dict.fromkeys(asked, self.joining))[0]
        for k, a in found.items():
            if "public" in a and self.keys.setdefault(k, a["public"].copy()).tobytes() != a["public"].tobytes():
                what = "its key is another one than was agreed upon; start the run anew, or give sites a checkpoint"
                self.note(t, k, what)
        return {k for k, a in found.items() if "public" not in a or self.keys[k].tobytes() == a["public"].tobytes()}

    def collect(
        self,
        kind: int,
        t: int,
        requests: Mapping[int, dict[str, np.ndarray]],
        forms: Mapping[int, Mapping[str, Form]],
        times: int,
    ) -> dict[int, dict[str, np.ndarray]]:
        """Return the answers of as many clients as gave one, asking those that did not so many times.

        Parameters
        ----------
        kind, t : int
        requests : mapping from client to arrays
        forms : mapping from client to the forms of its answer
            An array that must be finite and is not refuses the answer, unless nobody's of several is finite: then the
            method diverges, which is no fault of a client.
        times : int
        """
        found: dict[int, dict[str, np.ndarray]] = {}
        for _ in range(times):
            left = {k: a for k, a in requests.items() if k not in found}
            answers, strangers = self._exchange(kind, t, left, forms)
            if strangers:
                again = {k: left[k] for k in self.join(strangers, t)}
                answers |= self._exchange(kind, t, again, forms)[0] if again else {}
            found |= answers
            if len(found) == len(requests):
                break
        wild = {k: name for k, a in found.items() if (name := messages.not_finite(a, forms[k]))}
        if len(wild) < len(found) or (len(found) == 1 < len(self.labels)):
            for k, name in wild.items():
                self.note(t, k, f"{name} is not finite: refused")
                del found[k]
        return found

    def _exchange(
        self,
        kind: int,
        t: int,
        requests: Mapping[int, dict[str, np.ndarray]],
        forms: Mapping[int, Mapping[str, Form]],
    ) -> tuple[dict[int, dict[str, np.ndarray]], set[int]]:
        """Ask once: return usable answers, and who has to join first."""
        asked = {k: Request(kind, t, k, self.session, messages.fingerprint(a)) for k, a in requests.items()}
        answers = self.ask(t, {k: {"header": asked[k].header(), **a} for k, a in requests.items()})
        if not isinstance(answers, Mapping):
            must = "return {client: arrays}"
            raise wrong_type("run: transport", must, type(answers).__name__)
        found, strangers = {}, set()
        for k in requests:
            if k not in answers:
                self.note(t, k, "no answer", loud=False)
                continue
            try:
                found[k] = self._checked(answers[k], asked[k], forms[k])
            except Unjoined:
                strangers.add(k)
            except Refused as error:
                self.note(t, k, f"answer refused: {error}")
        return found, strangers

    def _checked(self, answer: Any, request: Request, forms: Mapping[str, Form]) -> dict[str, np.ndarray]:
        header, arrays = messages.opened(answer)
        if header.kind in (REFUSE, UNKNOWN):
            why = arrays.get("why", np.empty(0, dtype=np.uint8))
            error = Unjoined if header.kind == UNKNOWN else Refused
            raise error(messages.words(why) if why.dtype == np.uint8 else "it does not say why")
        if header.round != request.round and header.kind == request.kind:
            raise Refused(f"it is of round {header.round}: too late")
        if header != request:
            raise Refused("it answers another request")
        messages.check_forms(arrays, forms)
        return arrays


def invitation(
    terms: dict[str, str], clients: Any, key: np.uint64, first: int, trajectories: int
) -> dict[str, np.ndarray]:
    """Return what sites are told before they are asked for anything, beside their numbers."""
    return {
        "terms": messages.text(json.dumps(terms)),
        "ids": clients.ids,
        "sizes": clients.sizes,
        "masses": clients.masses,
        "domains": messages.named(clients.domain_labels),
        "key": np.array(key, dtype=np.uint64),
        "first": np.array(first, dtype=np.int64),
        "trajectories": np.array(trajectories, dtype=np.int64),
    }
