"""The server's desk: requests go out, answers come in, and what cannot be used is refused, named and left out."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad, wrong_type
from fedconvex.remote import messages
from fedconvex.remote.messages import JOIN, REFUSE, UNKNOWN, Form, Refused, Request

NO_ANSWER = "no answer"
_MOST = 10_000  # incidents that are kept
_AGAIN = "start the run again from its checkpoint"


class SiteWarning(UserWarning):
    """An answer of a site was refused, or it refuses to take part.

    Examples
    --------
    >>> import warnings
    >>> from fedconvex.remote import SiteWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", SiteWarning)  # a run ends where an answer is refused
    """


class Incident(NamedTuple):
    """An answer that could not be used.

    Attributes
    ----------
    round : int
        -1 before the first one.
    client : label
        Whose answer it was.
    what : str
        Why it could not be used.

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


class Unwilling(Refused):
    """The site has refused what it was asked."""


class Once:
    """Computes something of mappings once for all that hold the same objects, while these live.

    Parameters
    ----------
    function : callable
    """

    def __init__(self, function: Callable[[Any], int]) -> None:
        self.function = function
        self.known: dict[tuple[Any, ...], int] = {}

    def of(self, mapping: Mapping[str, Any]) -> int:
        """Return the function of a mapping."""
        key = (*mapping, *map(id, mapping.values()))
        if key not in self.known:
            self.known[key] = self.function(mapping)
        return self.known[key]


class Desk:
    """Asks sites, and checks what they answer.

    Parameters
    ----------
    ask : callable
        From (round, {client: arrays}) to {client: arrays}; who is missing did not answer. One that is ``bounded`` is
        told, third, how many bytes the answer of each client has at most.
    labels : array (K,)
    session : int
    invitation : dict of arrays
        What sites are told before they are asked for anything, beside their numbers.
    patience : int
        How often who does not answer is asked where an answer cannot be done without.
    incidents : list
        Grows.
    required : collection of int
        Clients whose answers can never be done without.
    """

    def __init__(
        self,
        ask: Callable[..., Mapping[int, Mapping[str, np.ndarray]]],
        labels: np.ndarray,
        session: int,
        invitation: Mapping[str, np.ndarray],
        patience: int,
        incidents: list[Incident],
        required: Collection[int] = (),
    ) -> None:
        if not callable(ask):
            must = "be callable: ask(t, {client: arrays}) -> {client: arrays}"
            raise wrong_type("run: transport", must, type(ask).__name__, "such as fedconvex.remote.in_process(sites)")
        self.ask, self.labels, self.session, self.patience = ask, labels.tolist(), session, patience
        self.invitation, self.incidents, self.required = invitation, incidents, frozenset(required)
        self.refused: dict[int, str] = {}  # why a client's last answer was not used
        self.unwilling: set[int] = set()  # clients that have refused the last thing they were asked
        self.warned: set[int] = set()
        self.joining: Mapping[str, Form] = {"unseen": Form((), np.dtype(np.int64), False)}  # what they answer then
        self.unseen: dict[int, int] = {}  # cells of a site whose category the code book does not have
        self.keys: dict[int, np.ndarray] = {}  # public keys, where sums are secure

    def note(self, t: int, k: int, what: str, loud: bool = True) -> None:
        """Keep an incident; warn of the first one of a client that is more than silence."""
        label = self.labels[k]
        if len(self.incidents) < _MOST:
            self.incidents.append(Incident(t, label, what))
        if loud:
            self.refused[k] = what
        if loud and k not in self.warned:
            self.warned.add(k)
            then = "the run cannot go on without it" if k in self.required else "the run goes on without it"
            warnings.warn(f"site {label}, round {t}: {what}; {then}", SiteWarning, stacklevel=2)

    def gather(self, clients: Iterable[int]) -> None:
        """Invite clients before the first round, until those that are required have joined, and no other is missing.

        Raises
        ------
        ValueError
            If one of those that are required refuses to take part, or cannot.
        ConnectionError
            If one of them does not answer.
        """
        here, needed, left = set(), set(self.required), sorted(clients)  # type: set[int], set[int], list[int]
        for _ in range(self.patience):
            here |= self.join(left, -1)
            if unwilling := [k for k in sorted(needed - here) if k in self.unwilling]:
                said = "; ".join(f"{self.labels[k]}: {self.refused[k]}" for k in unwilling[:5])
                cure = "mend it there; nothing was started (Roster.required says who must take part)"
                raise bad("run: every required site", "join before the first round", said, cure)
            if not (left := sorted(needed - here)):
                return
        self.need(here, sorted(needed), -1, "an answer to the invitation")

    def need(self, found: Collection[int], clients: Iterable[int], t: int, what: str, cure: str = _AGAIN) -> None:
        """Raise unless all of the clients have answered; who has not is named, and why, where that is known.

        Raises
        ------
        ConnectionError
        """
        if missing := [k for k in clients if k not in found]:
            names = ", ".join(str(self.labels[k]) for k in missing[:5])
            more = "" if len(missing) < 6 else f" and {len(missing) - 5} more"
            why = "".join(f"; {self.labels[k]}: {self.refused[k]}" for k in missing[:5] if k in self.refused)
            text = f"run over sites, round {t}: must have {what} of {names}{more}, asked {self.patience} times{why}"
            raise ConnectionError(f"{text}; see Roster.incidents, and {cure}")

    def join(self, clients: Any, t: int) -> set[int]:
        """Invite clients; return those that have joined."""
        asked: dict[int, dict[str, np.ndarray]] = {
            k: {**self.invitation, "number": np.array(k, dtype=np.int64)} for k in clients
        }
        found = self._exchange(JOIN, t, asked, dict.fromkeys(asked, self.joining))[0]
        for k, a in found.items():
            if self.unseen.setdefault(k, int(a["unseen"])):
                self._tell_unseen(k)
            if "public" in a and self.keys.setdefault(k, a["public"].copy()).tobytes() != a["public"].tobytes():
                what = "its key is another one than was agreed upon; start the run anew, or give sites a checkpoint"
                self.note(t, k, what)
        return {k for k, a in found.items() if "public" not in a or self.keys[k].tobytes() == a["public"].tobytes()}

    def _tell_unseen(self, k: int) -> None:
        """Keep as an incident, and say once, how many cells count as none at a site, whatever they hold."""
        what = f"{self.unseen[k]:,} cells hold categories that the code book does not have, and count as none"
        if (found := Incident(-1, self.labels[k], what)) not in self.incidents:
            self.incidents.append(found)
            warnings.warn(f"site {self.labels[k]}: {what}", SiteWarning, stacklevel=2)

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
            Clients that are required are asked as often as the desk's patience says.

        Raises
        ------
        ConnectionError
            If one of those that are required does not answer.
        """
        found: dict[int, dict[str, np.ndarray]] = {}
        for turn in range(max(times, self.patience)):
            left = {k: a for k, a in requests.items() if k not in found and (turn < times or k in self.required)}
            if not left:
                break
            answers, strangers = self._exchange(kind, t, left, forms)
            if strangers:
                again = {k: left[k] for k in self.join(strangers, t)}
                answers |= self._exchange(kind, t, again, forms)[0] if again else {}
            found |= answers
        wild = {k: name for k, a in found.items() if (name := messages.not_finite(a, forms[k]))}
        if len(wild) < len(found) or (len(found) == 1 < len(self.labels)):
            for k, name in wild.items():
                self.note(t, k, f"{name} is not finite: refused")
                del found[k]
        self.need(found, sorted(requests.keys() & self.required), t, "an answer")
        return found

    def _exchange(
        self,
        kind: int,
        t: int,
        requests: Mapping[int, dict[str, np.ndarray]],
        forms: Mapping[int, Mapping[str, Form]],
    ) -> tuple[dict[int, dict[str, np.ndarray]], set[int]]:
        """Ask once: return usable answers, and who has to join first."""
        prints, most = Once(messages.fingerprint), Once(messages.largest_size)
        asked = {k: Request(kind, t, k, self.session, prints.of(a)) for k, a in requests.items()}
        sent: Any = {k: {"header": asked[k].header(), **a} for k, a in requests.items()}
        sizes = [{k: most.of(forms[k]) for k in requests}] if getattr(self.ask, "bounded", False) else []
        answers = self.ask(t, sent, *sizes)
        if not isinstance(answers, Mapping):
            must = "return {client: arrays}"
            raise wrong_type("run: transport", must, type(answers).__name__)
        found, strangers = {}, set()
        for k in requests:
            if k not in answers:
                self.note(t, k, NO_ANSWER, loud=False)
                continue
            try:
                found[k] = self._checked(answers[k], asked[k], forms[k])
                self.refused.pop(k, None)
                self.unwilling.discard(k)
            except Unjoined:
                strangers.add(k)
            except Refused as error:
                (self.unwilling.add if isinstance(error, Unwilling) else self.unwilling.discard)(k)
                self.note(t, k, f"answer refused: {error}")
        return found, strangers

    def _checked(self, answer: Any, request: Request, forms: Mapping[str, Form]) -> dict[str, np.ndarray]:
        header, arrays = messages.opened(answer)
        if header.kind in (REFUSE, UNKNOWN):
            why = arrays.get("why", np.empty(0, dtype=np.uint8))
            own = Unwilling if header._replace(kind=request.kind) == request else Refused
            error = Unjoined if header.kind == UNKNOWN else own
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
