"""Two kinds of text of unequal size, next characters by softmax bigrams: Ro et al. (Interspeech 2021), made convex.

1. Two kinds of text, notes (little) and talk (much), drawn from word lists of their own; or a file of both. 27 classes:
   the letters, and whatever else, as out of vocabulary.
2. Softmax of the next character given the last, 27 x 27 parameters; a row is a pair of characters, weighted by its
   count. Each kind is a domain, and a client.
3. For a fixed mixture sum_i lambda_i P_i of the kinds' distributions of pairs the best model is its conditional law,
   and minimum and maximum change places: the minimax cross-entropy is the largest conditional entropy H(next | last) of
   a mixture. So pooled, uniform and minimax models are known in closed form; each mixture's entropy is a lower bound.
4. AFL and AgnosticFedAvg run from 0; and, with l2, a certified minimax solution beside the closed form.
5. On other text: perplexity, accuracy, and accuracy where the next character is a letter, of either kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from fedconvex._check import bad
from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.methods import AFL, AgnosticFedAvg
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.repeated import Repeated, draw_bars, higher, repeat
from fedconvex.papers.style import blank, legend, panel
from fedconvex.problems import Problem

C, OTHER, L2 = 27, 26, 1e-4  # l2 of the certified solution only
UNSEEN = 1e-6  # probability added to pairs that a mixture lacks
NOTES, TALK = "notes", "talk"
WORDS = {
    NOTES: "patient admitted afebrile stable dyspnoea chest xray normal bilateral oedema discharge follow review "
    "dosage mg daily oral tablet hypertension diabetes type mellitus renal function creatinine elevated sodium "
    "potassium haemoglobin platelet count ward transferred surgery laparoscopic cholecystectomy uneventful analgesia",
    TALK: "yeah so i was like you know what we should just go there after work and get some food maybe later if that "
    "is okay with you because i have to call my mom first and then walk the dog she said hi by the way how are things "
    "over at your place did they fix it yet oh no really that is so funny see you soon bye",
}
MODELS = ("pooled", "uniform", "minimax", "AFL", "AgnosticFedAvg")


class TextScale(NamedTuple):
    """How large the experiment is."""

    repetitions: int
    words: tuple[int, int]  # of notes and talk, to train on; as many again to test on
    rounds: int


FULL, QUICK = TextScale(10, (1_000, 20_000), 1000), TextScale(3, (1_000, 20_000), 100)


def pairs(text: str) -> np.ndarray:
    """Return how often class b follows class a, (27, 27): letters a to z of either case, and all else as one class.

    Examples
    --------
    >>> from fedconvex.papers.agnostic_text import pairs
    >>> counts = pairs("Aba, b")
    >>> int(counts[0, 1]), int(counts[1, 0]), int(counts[0, 26]), int(counts[26, 26]), int(counts[26, 1])
    (1, 1, 1, 1, 1)
    """
    codes = np.array([ord(c) - 97 if "a" <= c <= "z" else OTHER for c in text.lower()], dtype=np.int64)
    counts = np.zeros((C, C))
    np.add.at(counts, (codes[:-1], codes[1:]), 1.0)
    return counts


def conditional_entropy(P: np.ndarray) -> float:
    """Return H(next | last) in nats of a distribution of pairs (27, 27), or of its multiple.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.agnostic_text import conditional_entropy
    >>> round(conditional_entropy(np.ones((27, 27))), 4) == round(float(np.log(27)), 4)
    True
    """
    P = P / P.sum()
    last = np.broadcast_to(P.sum(axis=1, keepdims=True), P.shape)
    seen = P > 0.0
    return float(-np.sum(P[seen] * np.log(P[seen] / last[seen])))


def largest_entropy(counts: np.ndarray) -> tuple[float, float]:
    """Return the largest conditional entropy of a mixture of two kinds (2, 27, 27), and the weight of the first."""
    P = counts / counts.sum(axis=(1, 2), keepdims=True)
    best = minimize_scalar(
        lambda a: -conditional_entropy(a * P[0] + (1.0 - a) * P[1]), bounds=(0.0, 1.0), method="bounded",
        options={"xatol": 1e-10},
    )  # fmt: skip
    return -float(best.fun), float(best.x)


def texts(data: Any, scale: TextScale, seed: int) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Return the kinds, smaller first, and counts of pairs to train and to test on, (2, 27, 27) each."""
    rng = np.random.default_rng(seed)
    if data is not None:
        return _read(Path(data), rng)
    made = []
    for n, words in zip(scale.words, WORDS.values(), strict=True):
        listed = words.split()
        chance = 1.0 / np.arange(1.0, len(listed) + 1.0)  # Zipf's law, in the order of the list
        marks = np.array([" ", " ", " ", ", ", ". ", " 2 "])
        for _ in range(2):
            drawn = rng.choice(listed, n, p=chance / chance.sum())
            made.append(pairs("".join(w + m for w, m in zip(drawn, rng.choice(marks, n), strict=True))))
    return tuple(WORDS), np.array(made[::2]), np.array(made[1::2])


def _read(file: Path, rng: np.random.Generator) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Read lines "kind<tab>text" and deal them at random, half to train and half to test on."""
    who = f"--data {file.name}"
    if not file.is_file():
        raise FileNotFoundError(f"--data must be an existing file; got {file}")
    lines = [line.split("\t", 1) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    kinds = sorted({line[0] for line in lines if len(line) == 2})
    if any(len(line) != 2 for line in lines) or len(kinds) != 2:
        raise bad(who, "hold lines 'kind<tab>text' of two kinds", f"{len(lines)} lines of {len(kinds)} kinds")
    counts = np.zeros((2, 2, C, C))  # part, kind
    for kind, text in lines:
        counts[rng.integers(2), kinds.index(kind)] += pairs(text)
    if not counts.sum(axis=(2, 3)).all():
        raise bad(who, "hold several lines of each kind", f"{len(lines)} lines")
    order = np.argsort(counts[0].sum(axis=(1, 2)))
    return tuple(kinds[k] for k in order), counts[0, order], counts[1, order]


def law_of(mixture: np.ndarray) -> np.ndarray:
    """Return the softmax model (next, last) of the conditional law of a distribution of pairs (last, next)."""
    P = mixture / mixture.sum() + UNSEEN
    W = np.log(P / P.sum(axis=1, keepdims=True)).T
    return np.asarray(W - W.mean(axis=0))


def problem_of(kinds: tuple[str, ...], counts: np.ndarray, l2: float = 0.0) -> Problem:
    """Return the problem whose clients are the kinds, a row for every pair that occurs, weighted by its count."""
    kind, last, following = np.nonzero(counts)
    X = np.eye(C)[last]
    weight = counts[kind, last, following]
    federation = Federation.from_arrays(X, following.astype(float), np.array(kinds)[kind], sample_weight=weight)
    return Problem(federation, Softmax(C), l2)


def scores(w: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Return cross-entropy, perplexity, accuracy, and that of next letters, of a model (27, 27) on pairs (27, 27)."""
    z = w.T  # (last, next)
    log_p = z - np.logaddexp.reduce(z, axis=1, keepdims=True)
    P, right = counts / counts.sum(), np.eye(C)[z.argmax(axis=1)]
    letters = P[:, :OTHER]
    loss = -float(np.sum(P * log_p))
    inside = float(np.sum(letters * right[:, :OTHER]) / letters.sum())
    return {"loss": loss, "perplexity": float(np.exp(loss)), "accuracy": float(np.sum(P * right)), "letters": inside}


def trials(number: int, data: Any, scale: TextScale, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the scores of every model on either kind, with the closed form beside the minimax value."""
    kinds, train, test = texts(data, scale, 1000 * seed + number)
    problem, P = problem_of(kinds, train), train / train.sum(axis=(1, 2), keepdims=True)
    entropy, weight = largest_entropy(train)
    minimax, closed = problem_of(kinds, train, L2).solve_minimax(), law_of(weight * P[0] + (1.0 - weight) * P[1])
    agnostic = AgnosticFedAvg(step_size=4.0, domain_step_size=0.3, local_steps=5)
    models = (
        law_of(train.sum(axis=0)),
        law_of(P.sum(axis=0)),
        closed,
        _last(AFL(step_size=10.0, domain_step_size=0.3), problem, scale.rounds),
        _last(agnostic, problem, scale.rounds),
    )
    most = max(scores(closed, counts)["loss"] for counts in train) + 0.5 * L2 * float(np.sum(closed**2))
    ends = {"entropy": entropy, "weight": weight, "value": minimax.value, "gap": minimax.gap, "most": most}
    for name, w in zip(MODELS, models, strict=True):
        worst = max(scores(w, counts)["loss"] for counts in train)
        for kind, counts in zip(kinds, test, strict=True):
            row = {"model": name, "kind": kind, "repetition": number} | scores(w, counts)
            yield row | {"worst training loss": worst} | ends


def _last(method: Any, problem: Problem, rounds: int) -> np.ndarray:
    w = np.zeros((1, *problem.model_shape))
    for _, state in iterate(method, problem, rounds=rounds):
        w = state.w
    return np.asarray(w[0])


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Train every model on every draw; data: a text file with lines "kind<tab>text"."""
    scale = QUICK if quick else FULL
    rows = repeat(scale.repetitions, lambda r: trials(r, data, scale, seed), tell)
    found = Repeated(tuple(rows), 0.0 if data is None else 1.0)
    name = "generated text" if data is None else Path(data).stem
    return Findings(
        f"Two kinds of text, softmax bigrams (after Ro et al. 2021): {name}",
        tuple(claims(found)),
        _notes(scale, found, data is None),
        {"text": _draw(found)},
        {"table": found.table(("model", "kind"), ("loss", "perplexity", "accuracy", "letters")), "trials": rows},
    )


EXPERIMENT = Experiment(
    "agnostic-text",
    "perplexity and accuracy on two kinds of text: pooled, uniform, minimax, AFL, AgnosticFedAvg; the minimax value "
    "in closed form",
    study,
    "optional text file with lines 'kind<tab>text' of two kinds; default generated notes and talk",
    "three draws, 100 rounds",
)


# ---------------------------------------------------------------- what came out


def claims(found: Repeated) -> Iterator[Claim]:
    """Judge by intervals over the draws; the closed form by every draw."""
    small, large = found.kinds("kind")[:2]
    within = [r["entropy"] - r["gap"] <= r["value"] <= r["most"] + r["gap"] for r in found.rows]
    over = [r["value"] - r["entropy"] for r in found.rows]
    yield Claim(
        f"The certified minimax value with l2 = {L2:g} lies between the closed form and that of its model with l2",
        all(within),
        f"above the largest conditional entropy of a mixture by {min(over):.3g} to {max(over):.3g} nats, at most "
        f"{max(r['most'] - r['entropy'] for r in found.rows):.3g}; gap at most {max(r['gap'] for r in found.rows):.1g}",
        everywhere=True,
    )
    under = min(r["worst training loss"] - r["entropy"] for r in found.rows)
    text = "No model's worst training cross-entropy is below the largest conditional entropy"
    yield Claim(text, under >= -1e-9, f"least difference {under:.2g}", everywhere=True)

    def pair(what: str, kind: str, one: str, other: str) -> list[Any]:
        return [(kind, found.minus(what, {"model": one, "kind": kind}, {"model": other, "kind": kind}))]

    text = f"The pooled model has the higher perplexity on {small}: above the minimax model's"
    yield higher(text, pair("perplexity", small, "pooled", "minimax"))
    text = f"The minimax model pays on {large}: its perplexity is above the pooled model's"
    yield higher(text, pair("perplexity", large, "minimax", "pooled"))
    near = [
        (m, found.minus("loss", {"model": "pooled", "kind": small}, {"model": m, "kind": small})) for m in MODELS[3:]
    ]
    yield higher(f"AFL and AgnosticFedAvg have a lower cross-entropy on {small} than the pooled model", near)


def _at(model: str, kind: str) -> dict[str, Any]:
    return {"model": model, "kind": kind}


def _notes(scale: TextScale, found: Repeated, generated: bool) -> tuple[str, ...]:
    weights = [r["weight"] for r in found.rows]
    drawn = (
        f"generated: {scale.words[0]:,} words of notes and {scale.words[1]:,} of talk by Zipf's law from word lists of "
        "their own, one mark in six with a number; as many again to test on"
        if generated
        else "lines of the file, half to train and half to test on"
    )
    return (
        f"Data: {drawn}; {scale.repetitions} draws. Perplexity is exp(cross-entropy in nats) of a character; letters: "
        "accuracy where the next character is one of a to z.",
        f"In closed form the smaller kind weighs {min(weights):.3f} to {max(weights):.3f}.",
        f"Chosen here: step sizes, {scale.rounds} rounds. The source: an LSTM of words on Stack Overflow, 342 thousand "
        "clients, questions and answers as domains; context, not compared.",
    )


def _draw(found: Repeated) -> Any:
    """Draw perplexity and accuracy of every model on either kind."""
    figure, axes = blank(3, width=3.7, height=3.3)
    for axis, what, words in zip(
        axes, ("perplexity", "accuracy", "letters"), ("perplexity", "accuracy", "accuracy, next a letter"), strict=True
    ):
        draw_bars(axis, found, what, "model", "kind")
        panel(axis, y=f"{words}, other text")
        axis.tick_params(axis="x", labelsize=7, rotation=20)
    legend(figure, axes[0], columns=2)
    return figure
