"""Changes of a reading, each a slip of one line: what `diagnosis` tries where no reading matches.

Some are fitted, up to a number c: the server's update, a hyper-parameter or a weight is c times what it should be, or
grows with the round, the step or a client's rows by some power. Others are tried as they are: a term is missing in one
local step, gradients lose their length, an answer counts twice, numbers are rounded, rows lose their labels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedconvex.conformance import averaging
from fedconvex.conformance.conventions import Reading
from fedconvex.conformance.exams import Exam
from fedconvex.conformance.families import Family

FACTORS = {  # hyper-parameters, and how a factor of theirs is told
    "step_size": "the local step size",
    "l2": "the weight of the ridge",
    "proximal_mu": "mu of the proximal term",
    "alpha": "alpha of FedDyn's terms",
    "server_step_size": "the server's step size",
    "momentum": "the server's momentum",
    "client_momentum": "the clients' momentum",
    "beta1": "beta_1",
    "beta2": "beta_2",
    "epsilon": "epsilon",
    "rho": "rho",
    "domain_step_size": "the step size of the domain weights",
    "softmax_mu": "mu of the softmax",
}
TERMS = {  # what may be missing in one step: the convention, its value without the term, and the term's name
    "prox": ("absent", "the proximal term"),
    "control": ("absent", "the control variates"),
    "ridge": ("absent", "the ridge"),
    "perturbation": ("absent", "the perturbation"),
}


class Change(NamedTuple):
    """One change of a reading.

    Parameters
    ----------
    says : str
        In words; {c} stands for the factor, if there is one.
    family : callable
        Of a family, a reading and c: the family with the change.
    exam : callable
        Of an exam and c: the exam as the reading must see it.
    fitted : bool
        Whether there is a factor.
    neutral : float
        The factor that changes nothing.
    """

    says: str
    family: Callable[[Family, float], Family] = lambda family, c: family
    exam: Callable[[Exam, float], Exam] = lambda exam, c: exam
    fitted: bool = False
    neutral: float = 1.0

    def told(self, c: float) -> str:
        """Return it in words."""
        return self.says.format(c=f"{c:.6g}")


def changes(family: Family, r: Reading) -> Iterator[Change]:
    """Yield what may be changed about a reading of a family: factors, and terms of a single step."""
    yield Change("the server moves by {c} times the average difference", _scaled_moves, fitted=True)
    for name, words in FACTORS.items():
        if name in ("step_size", "l2") or name in family.knows:
            yield Change(f"{words} is {{c}} times what is asked", exam=_with_factor(name), fitted=True)
    if _has_steps(family, r):
        for (convention, (without, term)), first in itertools.product(TERMS.items(), (True, False)):
            if r.get(convention, without) != without and not (convention == "prox" and first):  # which is 0 there
                where = "first" if first else "last"
                yield Change(f"{term} is missing in the {where} local step", _one_step(convention, without, first))
        yield Change("clients start from the server's model of one round earlier", _stale)


def slips(family: Family, r: Reading) -> Iterator[Change]:
    """Yield what else may be changed: gradients, lengths of steps, answers, weights, rows."""
    if _has_steps(family, r):
        yield from _of_gradients()
        yield from _of_steps(r)
    yield from _of_answers()
    yield from _of_server(family, r)
    yield from _of_rows()


def _has_steps(family: Family, r: Reading) -> bool:
    return family.reply is averaging.reply and r.get("solver") != "exact"


def _scaled_moves(family: Family, c: float) -> Family:
    def move(exam: Exam, r: Reading, state: Any, *answers: Any) -> Any:
        new = family.move(exam, r, state, *answers)
        w = state["w"] + c * (new["w"] - state["w"])
        return new | {"w": w, "sent": w if new["sent"] is new["w"] else new["sent"]}

    return family._replace(move=move)


def _with_factor(name: str) -> Callable[[Exam, float], Exam]:
    return lambda exam, c: exam._replace(hyper=exam.hyper | {name: c * exam.hyper[name]})


def _one_step(convention: str, without: str, first: bool) -> Callable[[Family, float], Family]:
    """Return the family whose clients take the first or the last of their steps without a term."""

    def changed(family: Family, c: float) -> Family:
        def reply(exam: Exam, r: Reading, state: Any, k: int, batches: Sequence[Any], before: Any) -> Any:
            cut = 1 if first else len(batches) - 1
            other = r | {convention: without}
            if len(batches) == 1:
                return family.reply(exam, other, state, k, batches, before)
            one, two = (other, r) if first else (r, other)
            answer = family.reply(exam, one, state, k, batches[:cut], before)
            later = family.reply(exam, two, state | {"sent": answer["w"]}, k, batches[cut:], None)
            both = later | {name: answer[name] + later[name] for name in ("steps", "total")}
            return both | ({"c_i": averaging.renewed(exam, r, state, k, both["w"], both)} if "control" in r else {})

        return family._replace(reply=reply)

    return changed


def _stale(family: Family, c: float) -> Family:
    def reply(exam: Exam, r: Reading, state: Any, *rest: Any) -> Any:
        return family.reply(exam, r, state | {"sent": state["before"]}, *rest)

    return family._replace(reply=reply)


# ---------------------------------------------------------------- gradients and local steps

Bend = Callable[[np.ndarray, np.ndarray, int, Any, Exam, float], np.ndarray]  # of g, w, step, state, exam and c


def _of_gradients() -> Iterator[Change]:
    """Yield what may happen to a gradient before a local step goes along it."""

    def bent(says: str, bend: Bend, neutral: float | None = None) -> Change:
        def changed(family: Family, c: float) -> Family:
            def reply(exam: Exam, r: Reading, state: Any, *rest: Any) -> Any:
                mine = lambda g, w, i: bend(g, w, i, state, exam, c)  # noqa: E731
                return family.reply(exam, r, state | {"bend": mine}, *rest)

            return family._replace(reply=reply)

        return Change(says, changed, fitted=neutral is not None, neutral=0.0 if neutral is None else neutral)

    yield bent("gradients are scaled to length one", lambda g, w, i, *_: g / max(_length(g, g.ndim), 1e-300))
    yield bent("only the signs of gradients are used", lambda g, w, i, *_: np.sign(g))
    for place, at in (("first", 0), ("last", -1)):
        yield bent(f"the {place} entry of the model is not trained", _untrained(at))
        yield bent(f"the {place} entry of the model has no ridge", _without_ridge(at))
    yield bent("gradients are clipped at length {c}", _clipped, np.inf)
    yield bent("entries of gradients are clipped at {c}", lambda g, w, i, s, e, c: np.clip(g, -abs(c), abs(c)), np.inf)
    yield bent("local steps after the first are {c} times as long", lambda g, w, i, s, e, c: g * (c if i else 1.0), 1.0)
    yield bent("every local step is {c} times as long as the one before", lambda g, w, i, s, e, c: g * c**i, 1.0)
    yield bent("local steps of every round are {c} times as long as the round before", _by_round, 1.0)
    yield bent("local steps of round t are divided by t to the power {c}", _by_power, 0.0)


def _untrained(at: int) -> Bend:
    return lambda g, w, i, state, exam, c: g * _but(g, at)


def _without_ridge(at: int) -> Bend:
    return lambda g, w, i, state, exam, c: g - exam.hyper["l2"] * w * (1.0 - _but(g, at))


def _clipped(g: np.ndarray, w: np.ndarray, i: int, state: Any, exam: Exam, c: float) -> np.ndarray:
    return g * min(1.0, abs(c) / max(float(_length(g, g.ndim)), 1e-300))


def _by_round(g: np.ndarray, w: np.ndarray, i: int, state: Any, exam: Exam, c: float) -> np.ndarray:
    return np.asarray(g * c ** state["t"])


def _by_power(g: np.ndarray, w: np.ndarray, i: int, state: Any, exam: Exam, c: float) -> np.ndarray:
    return np.asarray(g / (1.0 + state["t"]) ** c)


def _of_steps(r: Reading) -> Iterator[Change]:
    """Yield what clients of a family with local steps may take for something else."""
    yield Change("clients send the mean of the models after their local steps", _mean_of_steps)
    yield Change("all local steps go along the gradient at the start of the round", _first_gradient)
    if r.get("prox", "absent") != "absent":
        yield Change("the proximal term pulls to {c} times the server's model", _on_state(_anchor), fitted=True)
        words = "the proximal term's pull is multiplied by its distance to the power {c}"
        yield Change(words, _curved_pull, fitted=True, neutral=0.0)
        words = "mu of round t is divided by t to the power {c}"
        yield Change(words, _on_state(_fading_mu), fitted=True, neutral=0.0)
    if "control" in r:
        yield Change("clients correct their steps with the control variate of the client before", _neighbour)
        words = "clients divide by {c} more than their local steps where they renew control variates"
        yield Change(words, _more_steps, fitted=True, neutral=0.0)


def _on_state(change: Callable[[Any, float], Any]) -> Callable[[Family, float], Family]:
    """Return the family whose clients see another state."""

    def changed(family: Family, c: float) -> Family:
        def reply(exam: Exam, r: Reading, state: Any, *rest: Any) -> Any:
            return family.reply(exam, r, state | change(state, c), *rest)

        return family._replace(reply=reply)

    return changed


def _anchor(state: Any, c: float) -> Any:
    return {"w": c * state["w"]}


def _fading_mu(state: Any, c: float) -> Any:
    return {"mu": state["mu"] / (1.0 + state["t"]) ** c}


def _curved_pull(family: Family, c: float) -> Family:
    def reply(exam: Exam, r: Reading, state: Any, *rest: Any) -> Any:
        def bend(g: np.ndarray, w: np.ndarray, i: int) -> np.ndarray:
            d = w - state["w"]
            far = float(_length(d, d.ndim))
            return g + state["mu"] * d * (far**c - 1.0) if far > 0.0 else g

        return family.reply(exam, r, state | {"bend": bend}, *rest)

    return family._replace(reply=reply)


def _mean_of_steps(family: Family, c: float) -> Family:
    def reply(exam: Exam, r: Reading, state: Any, k: int, batches: Sequence[Any], before: Any) -> Any:
        answers = [family.reply(exam, r, state, k, batches[: i + 1], before) for i in range(len(batches))]
        return answers[-1] | {"w": np.mean([a["w"] for a in answers], axis=0)} if answers else {}

    return family._replace(reply=reply)


def _first_gradient(family: Family, c: float) -> Family:
    def reply(exam: Exam, r: Reading, state: Any, k: int, batches: Sequence[Any], before: Any) -> Any:
        one = family.reply(exam, r, state, k, batches[:1], before)
        E, start = len(batches), state["sent"]
        return one | {"w": start + E * (one["w"] - start), "steps": E, "total": E * one.get("total", 0.0)}

    return family._replace(reply=reply)


def _more_steps(family: Family, c: float) -> Family:
    def reply(exam: Exam, r: Reading, state: Any, k: int, *rest: Any) -> Any:
        answer = family.reply(exam, r, state, k, *rest)
        longer = answer | {"total": answer["total"] * (1.0 + c / answer["steps"])}
        return answer | {"c_i": averaging.renewed(exam, r, state, k, answer["w"], longer)}

    return family._replace(reply=reply)


def _neighbour(family: Family, c: float) -> Family:
    def reply(exam: Exam, r: Reading, state: Any, k: int, *rest: Any) -> Any:
        turned = (*state["c_i"][-1:], *state["c_i"][:-1])
        answer = family.reply(exam, r, state | {"c_i": turned}, k, *rest)
        return answer | {"c_i": averaging.renewed(exam, r, state, k, answer["w"], answer)}

    return family._replace(reply=reply)


# ---------------------------------------------------------------- answers, server, rows


def _of_answers() -> Iterator[Change]:
    """Yield what may happen to what clients send."""

    def each(says: str, change: Callable[[Any, Any, float], Any], fitted: bool = False) -> Change:
        def changed(family: Family, c: float) -> Family:
            def move(exam: Exam, r: Reading, state: Any, who: Sequence[int], replies: Any) -> Any:
                new = [a | {"w": change(a["w"], state["sent"], c)} if "w" in a else a for a in replies]
                return family.move(exam, r, state, who, new)

            return family._replace(move=move)

        return Change(says, changed, fitted=fitted, neutral=np.inf)

    for digits in range(2, 8):
        yield each(f"clients' models are rounded to {digits} decimals", _rounded(digits))
    for kind, name in ((np.float16, "half"), (np.float32, "single")):
        yield each(f"clients' models are sent in {name} precision", _cast(kind))
    yield each("clients' updates are clipped at length {c}", _clipped_update, fitted=True)


def _rounded(digits: int) -> Callable[[Any, Any, float], Any]:
    return lambda w, x, c: np.round(w, digits)


def _cast(kind: Any) -> Callable[[Any, Any, float], Any]:
    return lambda w, x, c: w.astype(kind).astype(float)


def _clipped_update(w: np.ndarray, x: np.ndarray, c: float) -> np.ndarray:
    d = w - x
    return np.asarray(x + d * np.minimum(1.0, abs(c) / np.maximum(_length(d, x.ndim), 1e-300)))


def _of_server(family: Family, r: Reading) -> Iterator[Change]:
    """Yield what the server may take for something else."""
    plain = family.move is averaging.move
    if plain:
        yield Change("clients weigh n_k to the power {c}", exam=_powers, fitted=True)
    yield Change("the answer of the first client counts twice", _heard(lambda a: [*a, a[0]]))
    yield Change("the answer of the last client counts twice", _heard(lambda a: [*a, a[-1]]))
    yield Change("the answer of the first client does not count", _heard(lambda a: a[1:]))
    yield Change("the answer of the last client does not count", _heard(lambda a: a[:-1]))
    if plain:
        yield Change("the server takes the median of every entry of clients' models", _median)
    yield Change("the server takes the step size times l2 times its old model away", _decayed)
    yield Change("the server takes {c} times its old model away", _shrunk, fitted=True, neutral=0.0)
    yield Change("the server adds {c} times its last move", _last_move, fitted=True, neutral=0.0)
    yield Change(
        "the server adds {c} times the average difference of the last round", _last_mean, fitted=True, neutral=0.0
    )
    if "control" in r:
        yield Change("the server's control variate moves by {c} times what it should", _slow_control, fitted=True)
    if r.get("server") in ("adam", "yogi", "adagrad"):
        yield Change("v is of the absolute values of updates", _second(lambda d: np.abs(d), largest=False))
        yield Change("v is the largest so far, as in AMSGrad", _second(lambda d: d * d, largest=True))
        yield Change("m looks one update ahead, as in NAdam", _looking_ahead)


def _powers(exam: Exam, c: float) -> Exam:
    return exam._replace(hyper=exam.hyper | {"sizes": np.array(exam.sizes, dtype=float) ** c})


def _heard(who_of: Callable[[list[Any]], list[Any]]) -> Callable[[Family, float], Family]:
    """Return the family whose server hears other answers in the place of all."""

    def changed(family: Family, c: float) -> Family:
        def move(exam: Exam, r: Reading, state: Any, who: Sequence[int], replies: Any) -> Any:
            return family.move(exam, r, state, tuple(who_of(list(who))), who_of(list(replies)))

        return family._replace(move=move)

    return changed


def _median(family: Family, c: float) -> Family:
    def move(exam: Exam, r: Reading, state: Any, who: Sequence[int], replies: Any) -> Any:
        w = np.median(np.stack(np.broadcast_arrays(*(a["w"] for a in replies))), axis=0)
        return family.move(exam, r, state, who, [a | {"w": w} for a in replies])

    return family._replace(move=move)


def _moved(family: Family, change: Callable[[Exam, Any, Any], np.ndarray]) -> Family:
    """Return the family whose server makes something else of its new model."""

    def move(exam: Exam, r: Reading, state: Any, *answers: Any) -> Any:
        new = family.move(exam, r, state, *answers)
        w = change(exam, state, new)
        return new | {"w": w, "sent": w if new["sent"] is new["w"] else new["sent"]}

    return family._replace(move=move)


def _shrunk(family: Family, c: float) -> Family:
    return _moved(family, lambda exam, state, new: new["w"] - c * state["w"])


def _decayed(family: Family, c: float) -> Family:
    return _moved(family, lambda exam, old, new: new["w"] - exam.hyper["step_size"] * exam.hyper["l2"] * old["w"])


def _last_move(family: Family, c: float) -> Family:
    return _moved(family, lambda exam, old, new: new["w"] + c * (old["w"] - old.get("before", old["w"])))


def _last_mean(family: Family, c: float) -> Family:
    def move(exam: Exam, r: Reading, state: Any, *answers: Any) -> Any:
        new, last = family.move(exam, r, state, *answers), state.get("last", 0.0)
        w = new["w"] + c * last
        return new | {"w": w, "sent": w if new["sent"] is new["w"] else new["sent"], "last": new["w"] - state["w"]}

    return family._replace(move=move)


def _looking_ahead(family: Family, c: float) -> Family:
    def move(exam: Exam, r: Reading, state: Any, *answers: Any) -> Any:
        return family.move(exam, r, state | {"ahead": True}, *answers)

    return family._replace(move=move)


def _slow_control(family: Family, c: float) -> Family:
    def move(exam: Exam, r: Reading, state: Any, *answers: Any) -> Any:
        new = family.move(exam, r, state, *answers)
        return new | {"c": state["c"] + c * (new["c"] - state["c"])}

    return family._replace(move=move)


def _second(of: Callable[[np.ndarray], np.ndarray], largest: bool) -> Callable[[Family, float], Family]:
    """Return the family whose adaptive server has another second moment."""

    def changed(family: Family, c: float) -> Family:
        def move(exam: Exam, r: Reading, state: Any, *answers: Any) -> Any:
            return family.move(exam, r, state | {"square": of, "largest": state.get("largest", 0.0)}, *answers)

        plain = lambda exam, r, state, *answers: family.move(exam, r, state | {"square": of}, *answers)  # noqa: E731
        return family._replace(move=move if largest else plain)

    return changed


def _of_rows() -> Iterator[Change]:
    """Yield what clients may do to their rows."""

    def rows(says: str, change: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> Change:
        return Change(says, exam=lambda exam, c: exam._replace(clients=tuple(change(X, y) for X, y in exam.clients)))

    yield rows("rows have the labels of the rows before them", lambda X, y: (X, np.roll(y, 1)))
    yield rows("rows have the labels of the rows after them", lambda X, y: (X, np.roll(y, -1)))
    yield rows("clients' features are centred", lambda X, y: (X - X.mean(axis=0), y))
    yield rows("clients' labels are centred", lambda X, y: (X, y - y.mean()))
    yield rows("clients leave their last row out", lambda X, y: (X[:-1], y[:-1]) if len(y) > 1 else (X, y))
    yield rows("clients leave their first row out", lambda X, y: (X[1:], y[1:]) if len(y) > 1 else (X, y))


def _but(g: np.ndarray, at: int) -> np.ndarray:
    """Return ones, and a zero at one entry, or row of entries."""
    keep = np.ones_like(g)
    keep[..., at] = 0.0
    return keep


def _length(v: np.ndarray, ndim: int) -> Any:
    """Return the length of a model's update, or of each of a stack, in a shape that divides them."""
    return np.sqrt(np.sum(v * v, axis=tuple(range(-ndim, 0)), keepdims=v.ndim > ndim))
