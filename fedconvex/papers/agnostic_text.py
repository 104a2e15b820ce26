"""Kinds of text of unequal size, next characters by softmax bigrams: Ro et al. (Interspeech 2021), made convex.

1. Kinds of text drawn from word lists of their own: notes (little, the target), recipes, talk (much); or a file of two
   kinds or more. 27 classes: the letters, and whatever else, as out of vocabulary.
2. Softmax of the next character given the last, 27 x 27 parameters; a row is a pair of characters, weighted by its
   count. Each kind is a domain. With a part of the target's text, and with all of it.
3. For a fixed mixture sum_i lambda_i P_i of the kinds' distributions of pairs the best model is its conditional law,
   and minimum and maximum change places: the minimax cross-entropy is the largest conditional entropy H(next | last) of
   a mixture. So pooled, uniform, minimax and target-only models are known in closed form; each mixture's entropy is a
   lower bound.
4. Clients that mix kinds: the pairs of a kind are dealt out to 20 clients in shares drawn from Dirichlet(1/2, ...). A
   quarter of the clients a round: FedAvg on all text, FedAvg on the target's text only, AgnosticFedAvg; plain
   averaging, Nesterov momentum and Adam at the server. AFL with a client for each kind; and, with l2, a certified
   minimax solution beside the closed form.
5. On other text: perplexity, accuracy, and accuracy where the next character is a letter, of every kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import minimize

from fedconvex._check import bad
from fedconvex.driver import iterate
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.methods import AFL, AgnosticFedAvg, FedAvg, ServerAdam, ServerSGD
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.repeated import Repeated, draw_bars, draw_curves, higher, repeat
from fedconvex.papers.style import blank, legend, panel
from fedconvex.problems import Problem

C, OTHER, L2 = 27, 26, 1e-4  # l2 of the certified solution only
UNSEEN = 1e-6  # probability added to pairs that a mixture lacks
CLIENTS, MIXING, PARTICIPATION, LOCAL = 20, 0.5, 0.25, 5
_NOTES, _RECIPES, _TALK = "notes", "recipes", "talk"
WORDS = {
    _NOTES: "patient admitted afebrile stable dyspnoea chest xray normal bilateral oedema discharge follow review "
    "dosage mg daily oral tablet hypertension diabetes type mellitus renal function creatinine elevated sodium "
    "potassium haemoglobin platelet count ward transferred surgery laparoscopic cholecystectomy uneventful analgesia",
    _RECIPES: "stir butter flour onion garlic simmer until golden add pinch salt pepper whisk cream fold dough bake "
    "oven minutes chop parsley drain boil pasta sauce tomato slice lemon juice grate cheese sprinkle sugar cool rack",
    _TALK: "yeah so i was like you know what we should just go there after work and get some food maybe later if that "
    "is okay with you because i have to call my mom first and then walk the dog she said hi by the way how are things "
    "over at your place did they fix it yet oh no really that is so funny see you soon bye",
}
POOLED, MINIMAX, OWN = "pooled", "minimax", "target only"
EXACT = (POOLED, "uniform", MINIMAX, OWN)  # in closed form
AVERAGED, TARGET, AGNOSTIC = "FedAvg", "FedAvg, target only", "AgnosticFedAvg"
SERVERS: dict[str, Any] = {
    "averaging": ServerSGD(),
    "Nesterov": ServerSGD(momentum=0.9, nesterov=True, step_size=0.3),
    "Adam": ServerAdam(step_size=0.1),
}
NOTHING = "exact"  # in the place of a server


class TextScale(NamedTuple):
    """How large the experiment is."""

    repetitions: int
    words: tuple[int, ...]  # of notes, recipes and talk, to train on; as many again to test on
    rounds: int
    shares: tuple[float, ...]  # of the target's text that is trained on, increasing, the last is 1
    servers: tuple[str, ...]


FULL = TextScale(10, (1_000, 5_000, 20_000), 300, (0.02, 0.1, 1.0), tuple(SERVERS))
QUICK = TextScale(2, (1_000, 5_000, 20_000), 50, (0.02, 1.0), ("averaging",))


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


def largest_entropy(counts: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the largest conditional entropy of a mixture of p kinds (p, 27, 27), and the weights of the kinds (p,).

    The derivative by a weight is the cross-entropy of its kind under the mixture's law: no kind's is above the entropy
    where this is largest.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.agnostic_text import largest_entropy, pairs
    >>> value, weights = largest_entropy(np.array([pairs("abab"), pairs("acac"), pairs("adad")]))  # b, c or d follow a
    >>> weights.round(3).tolist()
    [0.333, 0.333, 0.333]
    """
    P = counts / counts.sum(axis=(1, 2), keepdims=True)

    def minus(a: np.ndarray) -> tuple[float, np.ndarray]:
        mixture = np.tensordot(a, P, 1)
        last = np.broadcast_to(mixture.sum(axis=1, keepdims=True), mixture.shape)
        log = np.log(np.divide(mixture, last, out=np.ones_like(mixture), where=mixture > 0.0))
        return float(np.sum(mixture * log)), np.einsum("kij,ij->k", P, log)

    p = len(P)
    one = {"type": "eq", "fun": lambda a: a.sum() - 1.0, "jac": np.ones_like}
    best = minimize(
        minus, np.full(p, 1.0 / p), jac=True, method="SLSQP", bounds=[(1e-12, 1.0)] * p, constraints=[one],
        options={"ftol": 1e-14, "maxiter": 1000},
    )  # fmt: skip
    weights = np.maximum(best.x, 0.0) / np.maximum(best.x, 0.0).sum()
    return conditional_entropy(np.tensordot(weights, P, 1)), weights


def texts(data: Any, scale: TextScale, seed: int) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Return the kinds, smallest first, and counts of pairs to train and to test on, (p, 27, 27) each."""
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
    if any(len(line) != 2 for line in lines) or len(kinds) < 2:
        raise bad(who, "hold lines 'kind<tab>text' of two kinds or more", f"{len(lines)} lines of {len(kinds)} kinds")
    counts = np.zeros((2, len(kinds), C, C))  # part, kind
    for kind, text in lines:
        counts[rng.integers(2), kinds.index(kind)] += pairs(text)
    if not counts.sum(axis=(2, 3)).all():
        raise bad(who, "hold several lines of each kind", f"{len(lines)} lines")
    order = np.argsort(counts[0].sum(axis=(1, 2)))
    return tuple(kinds[k] for k in order), counts[0, order], counts[1, order]


def thinned(counts: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return the counts (p, 27, 27) with a share of the first kind's pairs, drawn at random; one pair at least."""
    out = counts.copy()
    pool = counts[0].ravel().astype(np.int64)
    out[0] = rng.multivariate_hypergeometric(pool, max(1, round(share * pool.sum()))).reshape(C, C)
    return out


def dealt(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # 4
    """Return the counts of clients that mix kinds, (clients, p, 27, 27); clients without any pair are left out."""
    parts = np.zeros((CLIENTS, *counts.shape))
    for i, kind in enumerate(counts):
        share = rng.dirichlet(np.full(CLIENTS, MIXING))
        parts[:, i] = rng.multinomial(kind.ravel().astype(np.int64), share).T.reshape(CLIENTS, C, C)
    return parts[parts.sum(axis=(1, 2, 3)) > 0.0]


def law_of(mixture: np.ndarray) -> np.ndarray:
    """Return the softmax model (next, last) of the conditional law of a distribution of pairs (last, next)."""
    P = mixture / mixture.sum() + UNSEEN
    W = np.log(P / P.sum(axis=1, keepdims=True)).T
    return np.asarray(W - W.mean(axis=0))


def problem_of(kinds: tuple[str, ...], counts: np.ndarray, l2: float = 0.0) -> Problem:
    """Return the problem with kinds as domains, a row for every pair that occurs, weighted by its count.

    Counts are (clients, p, 27, 27), or (p, 27, 27) where each kind is a client.
    """
    each = counts if counts.ndim == 4 else np.eye(len(counts))[:, :, None, None] * counts
    client, kind, last, following = np.nonzero(each)
    X = sparse.csr_matrix((np.ones(last.size), (np.arange(last.size), last)), (last.size, C))
    weight = each[client, kind, last, following]
    names = np.array(kinds)[kind]
    federation = Federation.from_arrays(X, following.astype(float), client, domains=names, sample_weight=weight)
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
    """Yield the scores of every model on every kind, with the closed form beside the minimax value."""
    key = 1000 * seed + number
    kinds, text, test = texts(data, scale, key)
    for share in scale.shares:
        rng = np.random.default_rng([key, round(1e6 * share)])
        train = text if share == 1.0 else thinned(text, share, rng)
        P = train / train.sum(axis=(1, 2), keepdims=True)
        entropy, weights = largest_entropy(train)
        closed = law_of(np.tensordot(weights, P, 1))
        minimax = problem_of(kinds, train, L2).solve_minimax()
        most = max(scores(closed, counts)["loss"] for counts in train) + 0.5 * L2 * float(np.sum(closed**2))
        ends = {"entropy": entropy, "value": minimax.value, "gap": minimax.gap, "most": most, "weight": weights[0]}
        exact = (law_of(train.sum(axis=0)), law_of(P.sum(axis=0)), closed, law_of(train[0]))
        models = [(name, NOTHING, w) for name, w in zip(EXACT, exact, strict=True)]
        for name, server, w in [*models, *_runs(kinds, train, rng, scale, key)]:
            worst = max(scores(w, counts)["loss"] for counts in train)
            for kind, counts in zip(kinds, test, strict=True):
                row = {"share": share, "model": name, "server": server, "kind": kind, "repetition": number}
                yield row | scores(w, counts) | {"worst training loss": worst} | ends


def _runs(
    kinds: tuple[str, ...], train: np.ndarray, rng: np.random.Generator, scale: TextScale, seed: int
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield name, server and model of every run."""
    apart = problem_of(kinds, train)
    yield "AFL", "averaging", _last(AFL(step_size=10.0, domain_step_size=0.3), apart, 3 * scale.rounds, seed)
    parts = dealt(train, rng)
    mixed = problem_of(kinds, parts)
    own = parts[parts[:, 0].sum(axis=(1, 2)) > 0.0, :1]
    alone = problem_of(kinds[:1], own)
    for server in scale.servers:
        work = {"step_size": 4.0, "local_steps": LOCAL, "participation": PARTICIPATION, "server": SERVERS[server]}
        agnostic = AgnosticFedAvg(domain_step_size=0.1, window=10, **work)
        for name, method, on in (
            (AVERAGED, FedAvg(**work), mixed),
            (TARGET, FedAvg(**work), alone),
            (AGNOSTIC, agnostic, mixed),
        ):
            yield name, server, _last(method, on, scale.rounds, seed)


def _last(method: Any, problem: Problem, rounds: int, seed: int) -> np.ndarray:
    """Return the mean of the models of the last tenth of the rounds."""
    late = [s.w[0] for t, s in iterate(method, problem, rounds=rounds, seed=seed) if t > 0.9 * rounds]
    return np.asarray(np.mean(late, axis=0))


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Train every model on every draw; data: a text file with lines "kind<tab>text"."""
    scale = QUICK if quick else FULL
    rows = repeat(scale.repetitions, lambda r: trials(r, data, scale, seed), tell)
    found = Repeated(tuple(rows), 0.0 if data is None else 1.0)
    name = "generated text" if data is None else Path(data).stem
    return Findings(
        f"Kinds of text, softmax bigrams (after Ro et al. 2021): {name}",
        tuple(claims(found)),
        _notes(scale, found, data is None),
        {"text": _draw(found)},
        {
            "table": found.table(("share", "model", "server", "kind"), ("loss", "perplexity", "accuracy", "letters")),
            "trials": rows,
        },
    )


EXPERIMENT = Experiment(
    "agnostic-text",
    "perplexity on kinds of text: pooled, minimax and target-only models in closed form, AFL, FedAvg, AgnosticFedAvg",
    study,
    "optional text file with lines 'kind<tab>text' of two kinds or more; default generated notes, recipes and talk",
    "two draws, 50 rounds, plain averaging",
)


# ---------------------------------------------------------------- what came out


def claims(found: Repeated) -> Iterator[Claim]:
    """Judge by intervals over the draws; the closed form by every draw."""
    target, large = found.kinds("kind")[0], found.kinds("kind")[-1]
    servers = found.where(model=AGNOSTIC).kinds("server")
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
    whole = found.where(share=1.0)

    def exact(what: str, kind: str, one: str, other: str) -> list[Any]:
        at = {"server": NOTHING, "kind": kind}
        return [(kind, whole.minus(what, at | {"model": one}, at | {"model": other}))]

    def runs(rows: Repeated, kind: str, one: str, other: str) -> list[Any]:
        each = ({"server": s, "kind": kind} for s in servers)
        return [(at["server"], rows.minus("loss", at | {"model": one}, at | {"model": other})) for at in each]

    text = f"The pooled model has the higher perplexity on {target}: above the minimax model's"
    yield higher(text, exact("perplexity", target, POOLED, MINIMAX))
    text = f"The minimax model pays on {large}: its perplexity is above the pooled model's"
    yield higher(text, exact("perplexity", large, MINIMAX, POOLED))
    text = f"AgnosticFedAvg has a lower cross-entropy on {target} than FedAvg, with every server"
    yield higher(text, runs(whole, target, AVERAGED, AGNOSTIC))
    text = (
        f"Trained on {target} only, FedAvg has a higher cross-entropy on {large} than AgnosticFedAvg, with every server"
    )
    yield higher(text, runs(whole, large, TARGET, AGNOSTIC))
    for share in found.kinds("share"):
        text = (
            f"Ro et al., Table 1: on the target's own text, {target}, AgnosticFedAvg has a lower cross-entropy than "
            f"FedAvg trained on that text only, with every server ({share:.0%} of the text is trained on)"
        )
        yield higher(text, runs(found.where(share=share), target, TARGET, AGNOSTIC))


def _notes(scale: TextScale, found: Repeated, generated: bool) -> tuple[str, ...]:
    whole, kinds = found.where(share=1.0), found.kinds("kind")
    weights = [r["weight"] for r in whole.rows]
    drawn = (
        ", ".join(f"{n:,} words of {kind}" for n, kind in zip(scale.words, kinds, strict=True))
        + " by Zipf's law from word lists of their own, one mark in six with a number; as many again to test on"
        if generated
        else "lines of the file, half to train and half to test on"
    )
    return (
        f"Data: {drawn}; {scale.repetitions} draws; the target, {kinds[0]}, also with "
        f"{', '.join(f'{s:.0%}' for s in scale.shares[:-1])} of its pairs. Perplexity is exp(cross-entropy in nats) of "
        "a character; letters: accuracy where the next character is one of a to z.",
        f"In closed form the target weighs {min(weights):.3f} to {max(weights):.3f} at the minimax, with all its text.",
        f"Chosen here: {CLIENTS} clients, {PARTICIPATION:.0%} of them a round, {scale.rounds} rounds (AFL three times "
        "as many), step sizes, a window of 10 rounds; models are means over the last tenth of the rounds.",
        "The source: an LSTM of words on Stack Overflow, 342 thousand clients, questions and answers as domains. Its "
        "kinds share a language; these share the alphabet and spaces, so that other text helps the target less.",
    )


def _draw(found: Repeated) -> Any:
    """Draw perplexity and accuracy of every model, and the target's cross-entropy over the amount of its text."""
    figure, axes = blank(3, width=4.4, height=3.6)
    whole = [r for r in found.where(share=1.0).rows if r["server"] in (NOTHING, "averaging")]
    short = Repeated(tuple(r | {"model": r["model"].replace(", ", ",\n")} for r in whole))
    for axis, what, words in zip(
        axes, ("perplexity", "letters"), ("perplexity", "accuracy, next a letter"), strict=False
    ):
        draw_bars(axis, short, what, "model", "kind")
        panel(axis, "server: averaging", y=f"{words}, other text")
        axis.tick_params(axis="x", labelsize=6.5, rotation=40)
    axes[0].set_yscale("log")
    legend(figure, axes[0], columns=3)
    target = found.kinds("kind")[0]
    long = [
        r | {"curve": f"{r['model']}, {r['server']}" if r["model"] == AGNOSTIC else f"target only, {r['server']}"}
        for name in (TARGET, AGNOSTIC)
        for r in found.where(kind=target, model=name).rows
    ]
    draw_curves(axes[2], Repeated(tuple(long)), "share", "loss", "curve")
    panel(
        axes[2], f"the target, {target}", "share of its text that is trained on", "cross-entropy, other text", log="x"
    )
    shares = found.kinds("share")
    axes[2].set_xticks(shares, [f"{s:.0%}" for s in shares])
    axes[2].minorticks_off()
    axes[2].legend(frameon=False, fontsize=7)
    return figure
