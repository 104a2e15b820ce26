"""How many domains: the generalisation bound and test losses over p = 1, ..., K (Mohri, Sivek, Suresh, ICML 2019).

1. Twelve clients of unequal sizes with images of three kinds: upright, slanted with thick strokes, turned by a quarter.
   The kinds are the given domains. Ten classes, multinomial logistic regression, l2 = 0.001.
2. For p = 1, ..., 12: clients grouped into p domains by k-means on the mean features of their earlier rows. For p = 3
   also the given domains, and groups by gradients at the pooled minimiser and by shares of labels, of the same rows.
3. The bound, for shares of errors and five hypotheses of the earlier rows (the pooled model, the minimax model, and
   one of each kind): training error, complexity and deviation of the domain where their sum is largest, and the
   discrepancy of clients from their domains. With a quarter of the rows, and with all.
4. For each grouping the exact minimax model of its domains: test loss and error on rows of every kind, the worst kind
   and the mean over the training rows' kinds. p = 1 is the pooled model, p = 12 every client for itself.
5. The gap between FedAvg and AFL for each choice of domains: the largest test loss of these domains under the pooled
   model, less that under their own minimax model. Beside the groupings of 2, clients in three domains at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import bad
from fedconvex.federation import Federation
from fedconvex.losses import Softmax
from fedconvex.papers.agnostic_clients.data import L2
from fedconvex.papers.communication import mean_losses
from fedconvex.papers.findings import Claim, Experiment, Findings, Progress
from fedconvex.papers.images import accuracies, coarser
from fedconvex.papers.intervals import Interval, mean_interval
from fedconvex.papers.repeated import Repeated, draw_bars, draw_curves, higher, repeat
from fedconvex.papers.style import COLOURS, blank, panel
from fedconvex.papers.writers import labelled_images, restyled
from fedconvex.problems import Problem
from fedconvex.report import cluster, domain_terms

KINDS = ("upright", "slanted", "turned")
_OF_KINDS, _OF_CLIENTS = (6 / 15, 5 / 15, 4 / 15), (1 / 2, 1 / 4, 1 / 8, 1 / 8)  # shares of the rows
KIND = np.repeat(np.arange(len(KINDS)), len(_OF_CLIENTS))  # of every client
K, GIVEN = len(KIND), len(KINDS)
FEATURES, BY_KIND = "features", "given"
RANDOM, ALONE = "random", "clients"
_GROUPINGS = (BY_KIND, FEATURES, "gradients", "labels", RANDOM)  # with as many domains as kinds
FEW, DELTA, SAME = 0.25, 0.05, 0.02  # share of the rows; of failure; a difference in loss that counts as none
TERMS = ("empirical", "complexity", "deviation", "discrepancy", "bound")
SCORES = ("worst loss", "mean loss", "worst error", "mean error", "gap of FedAvg to AFL")
GAP = SCORES[-1]
Row = dict[str, Any]


class DomainsScale(NamedTuple):
    """How large the experiment is."""

    repetitions: int
    rows: tuple[int, int, int]  # training, earlier and test images
    side: int  # pixels of an image's side after averaging, at most


FULL = DomainsScale(10, (900, 300, 597), 8)
LARGE = DomainsScale(5, (2400, 800, 2000), 10)
QUICK = DomainsScale(3, (900, 300, 597), 4)


class Drawn(NamedTuple):
    """One draw: clients with training rows, clients with earlier rows, and test rows (X, y) of every kind."""

    classes: int
    train: Federation
    earlier: Federation
    test: tuple[tuple[np.ndarray, np.ndarray], ...]


def drawn(images: np.ndarray, y: np.ndarray, number: int, scale: DomainsScale, seed: int) -> Drawn:  # 1
    """Return a draw; draws share no rows where there are enough."""
    each = sum(scale.rows)
    apart = each * scale.repetitions <= len(y)
    order = np.random.default_rng([seed, 0 if apart else number]).permutation(len(y))
    train, earlier, test = np.split(order[each * number if apart else 0 :][:each], np.cumsum(scale.rows)[:-1])

    def rows(kind: int, which: np.ndarray) -> np.ndarray:
        return np.hstack([_styled(images[which], kind, scale.side) / float(images.max()), np.ones((len(which), 1))])

    def clients(which: np.ndarray) -> Federation:
        sizes = np.floor(len(which) * np.outer(_OF_KINDS, _OF_CLIENTS).ravel() + 1e-9).astype(int)
        parts = np.split(which[: sizes.sum()], np.cumsum(sizes)[:-1])
        return Federation.from_clients([(rows(k, p), y[p]) for k, p in zip(KIND.tolist(), parts, strict=True)])

    return Drawn(
        int(y.max()) + 1, clients(train), clients(earlier), tuple((rows(k, test), y[test]) for k in range(GIVEN))
    )


def _styled(images: np.ndarray, kind: int, side: int) -> np.ndarray:
    """Return images of a kind as rows (n, d), of at most so many pixels a side."""
    made = (lambda: images, lambda: restyled(images, 0.35, 0.7), lambda: np.rot90(images, axes=(1, 2)))[kind]()
    size = images.shape[1]
    return coarser(made, next(b for b in range(1, size + 1) if size % b == 0 and size // b <= side))


def groupings(problem: Problem, seed: int) -> Iterator[tuple[str, np.ndarray]]:  # 2
    """Yield every grouping: what clients are grouped by, and the domain of each."""
    for p in range(1, K + 1):
        yield FEATURES, cluster(problem, p).domain
    yield BY_KIND, KIND
    for by in _GROUPINGS[2:-1]:
        yield by, cluster(problem, GIVEN, by).domain
    yield RANDOM, np.random.default_rng([seed, 5]).permutation(np.arange(K) % GIVEN)


def problem_of(clients: Federation, domain: np.ndarray, classes: int) -> Problem:
    """Return the problem of clients in domains."""
    owner = np.repeat(np.arange(clients.K), clients.sizes)
    federation = Federation.from_arrays(clients.X, clients.y, owner, domains=domain[owner])
    return Problem(federation, Softmax(classes), L2)


def bounds(data: Drawn, number: int) -> Iterator[Row]:  # 3
    """Yield the terms of the bound for every grouping by features, with few rows and with all."""
    before = problem_of(data.earlier, KIND, data.classes)
    groups = [cluster(data.earlier, p).domain for p in range(1, K + 1)]
    own = [Problem(before.federation.subset(np.flatnonzero(KIND == j).tolist()), before.loss, L2) for j in range(GIVEN)]
    models = np.array([before.solve().w, before.solve_minimax().w, *(p.solve().w for p in own)])
    tested = np.array([1.0 - accuracies(models, *rows) for rows in data.test])  # (kinds, H)
    for share in (FEW, 1.0):
        clients = _part(data.train, share)
        spans = zip(clients.ptr[:-1], clients.ptr[1:], strict=True)
        errors = np.array([1.0 - accuracies(models, clients.X[a:b], clients.y[a:b]) for a, b in spans]).T  # (H, K)
        for p, domain in enumerate(groups, 1):
            found = domain_terms(errors, clients.sizes, domain, delta=DELTA)
            each = (domain_terms(errors, clients.sizes, domain, mine, delta=DELTA).bound for mine in errors)
            spare = min(float(b - error) for b, column in zip(each, tested.T, strict=True) for error in column)
            row = {"share": share, "p": p, "repetition": number, "smallest": found.smallest, "spare": spare}
            yield row | {term: getattr(found, term) for term in TERMS}


def _part(clients: Federation, share: float) -> Federation:
    """Return the first rows of every client."""
    spans = zip(clients.ptr[:-1], clients.sizes, strict=True)
    ends = [(a, a + max(1, int(share * n))) for a, n in spans]
    return Federation.from_clients([(clients.X[a:b], clients.y[a:b]) for a, b in ends])


def scores(data: Drawn, number: int, seed: int) -> Iterator[Row]:  # 4, 5
    """Yield test losses and errors of the minimax model of every grouping, and the gap of FedAvg to it."""
    share = np.bincount(KIND, data.train.sizes) / data.train.n
    pooled = np.zeros(GIVEN)
    for by, domain in groupings(problem_of(data.earlier, KIND, data.classes), seed):
        found = problem_of(data.train, domain, data.classes).solve_minimax()
        losses = np.array([mean_losses(found.w[None], *rows)[0] for rows in data.test])
        pooled = losses if domain.max() == 0 else pooled  # of one domain, which comes first
        kinds = np.zeros((int(domain.max()) + 1, GIVEN))
        np.add.at(kinds, (domain, KIND), data.train.sizes)  # rows of every kind in every domain
        kinds /= kinds.sum(axis=1, keepdims=True)
        errors = np.array([1.0 - accuracies(found.w[None], *rows)[0] for rows in data.test])
        row = {"grouped by": by, "p": int(domain.max()) + 1, "repetition": number, "gap": found.gap}
        row |= {"worst loss": float(losses.max()), "mean loss": float(share @ losses)}
        row |= {"worst error": float(errors.max()), "mean error": float(share @ errors)}
        row |= {GAP: float((kinds @ pooled).max() - (kinds @ losses).max())}
        yield row | {"pairs": pairs_alike(domain, KIND)}


def pairs_alike(one: np.ndarray, other: np.ndarray) -> float:
    """Return the share of pairs of clients that two groupings (K,) both join or both part: the Rand index.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex.papers.domain_counts import pairs_alike
    >>> pairs_alike(np.array([0, 0, 1]), np.array([1, 1, 0])), round(pairs_alike(np.zeros(3), np.array([0, 0, 1])), 3)
    (1.0, 0.333)
    """
    upper = np.triu_indices(len(one), 1)
    return float(np.mean((one[:, None] == one)[upper] == (other[:, None] == other)[upper]))


def study(*, quick: bool, seed: int, data: Any, tell: Progress) -> Findings:
    """Group, bound and solve on every draw; data: a path as for `fedconvex.papers.images.read_images`."""
    scale = QUICK if quick else FULL if data is None else LARGE
    name, images, y = labelled_images(data)
    if len(y) < sum(scale.rows) or images.shape[1] != images.shape[2]:
        must = f"be at least {sum(scale.rows):,} square images (n, h, h), training and test part together"
        raise bad(f"--data {name}", must, f"shape {images.shape}")

    def draw(number: int) -> Iterator[Row]:
        made = drawn(images, y, number, scale, seed)
        yield from (r | {"what": "bound"} for r in bounds(made, number))
        yield from (r | {"what": "scores"} for r in scores(made, number, 1000 * seed + number))

    rows = repeat(scale.repetitions, draw, tell)
    train, earlier, test = scale.rows
    overlap = 0.0 if sum(scale.rows) * scale.repetitions <= len(y) else test / (train + earlier)
    bound, scored = (Repeated(tuple(r for r in rows if r["what"] == w), overlap) for w in ("bound", "scores"))
    return Findings(
        f"How many domains: bound and test losses over p: {name}",
        tuple(claims(bound, scored)),
        _notes(name, scale, bound),
        {"domains": _draw(bound, scored)},
        {
            "bound": bound.table(("share", "p"), ("smallest", *TERMS)),
            "scores": scored.table(("grouped by", "p"), (*SCORES, "pairs")),
            "draws": [{k: v for k, v in r.items() if k != "what"} for r in scored.rows],
        },
    )


EXPERIMENT = Experiment(
    "domains",
    "choice of domains, from 1 to K: generalisation bound, worst and mean test loss, gap of FedAvg to AFL",
    study,
    "optional npz with images x_train, y_train, x_test, y_test (MNIST); default the bundled digits",
    "three draws, coarser images",
)


# ---------------------------------------------------------------- what came out


def claims(bound: Repeated, scored: Repeated) -> Iterator[Claim]:
    """Judge by intervals over the draws; the bound itself by every draw."""
    most = max(bound.kinds("p"))

    def terms(what: str, one: int, other: int, share: float = 1.0) -> Interval:
        return bound.minus(what, {"share": share, "p": one}, {"share": share, "p": other})

    rises = [(w, terms(w, most, 1)) for w in ("complexity", "deviation")]
    text = f"From 1 to {most} domains complexity and deviation rise, and the discrepancy falls"
    yield higher(text, [*rises, ("discrepancy", terms("discrepancy", 1, most))])
    turn = [("least of the others less it", ahead(bound, GIVEN))]
    yield higher(f"All rows: the bound is least at {GIVEN} domains, as many as there are kinds", turn)
    gains = [bound.values("bound", share=s, p=1) - bound.values("bound", share=s, p=GIVEN) for s in (FEW, 1.0)]
    words = (
        f"a quarter {mean_interval(gains[0], bound.overlap)}, all {mean_interval(gains[1], bound.overlap)}; difference"
    )
    text = f"The more rows, the more domains pay: the bound gains more by {GIVEN} domains on all rows than on a quarter"
    yield higher(text, [(words, mean_interval(gains[1] - gains[0], bound.overlap))])

    def scores(what: str, one: Row, other: Row) -> Interval:
        return scored.minus(what, one, other)

    one, three, all_ = ({"grouped by": FEATURES, "p": p} for p in (1, GIVEN, most))
    lower = [("one domain", scores("worst loss", one, three))]
    yield higher(f"The worst kind's test loss: {GIVEN} domains are ahead of one, the pooled model", lower)
    yield higher("They pay in the mean test loss", [("difference", scores("mean loss", three, one))])
    beyond = scores("worst loss", all_, three)
    text = f"A domain for every client serves the worst kind no better than {GIVEN} domains, by more than {SAME:g}"
    yield higher(text, [("difference", beyond)], -SAME)
    given = {"grouped by": BY_KIND, "p": GIVEN}
    near = scores("worst loss", three, given)
    text = f"Grouped by features, the worst kind's test loss is that of the given domains, within {SAME:g}"
    yield Claim(text, near.within(SAME), f"difference {near}")
    blind = scores("worst loss", {"grouped by": "labels", "p": GIVEN}, three)
    yield higher("Shares of labels, which are the same for all kinds, are no substitute", [("difference", blind)])
    chosen = [(by, scored.interval(GAP, **{"grouped by": by, "p": GIVEN})) for by in (BY_KIND, FEATURES)]
    chosen.append((ALONE, scored.interval(GAP, **all_)))
    text = (
        "The largest test loss of a domain: AFL is ahead of FedAvg where domains are the kinds, groups by features, or"
    )
    yield higher(f"{text} the clients", chosen)
    at_random = {"grouped by": RANDOM, "p": GIVEN}
    mixed = scored.interval(GAP, **at_random)
    text = f"Where clients are in {GIVEN} domains at random, they differ by less than {SAME:g}"
    yield Claim(text, mixed.within(SAME), f"FedAvg less AFL {mixed}")
    text = f"The gap depends on the choice: it is larger for the kinds than for {GIVEN} domains at random"
    yield higher(text, [("difference", scores(GAP, given, at_random))])
    spare = min(r["spare"] for r in bound.rows)
    text = "No hypothesis errs more on test rows of a kind than its bound says, for any number of domains"
    yield Claim(text, spare >= 0.0, f"least difference {spare:.3f}", everywhere=True)


def ahead(bound: Repeated, p: int) -> Interval:
    """Return the least bound of all other numbers of domains less that of p, with all rows."""
    others = [bound.values("bound", share=1.0, p=q) for q in bound.kinds("p") if q != p]
    return mean_interval(np.min(others, axis=0) - bound.values("bound", share=1.0, p=p), bound.overlap)


def turns(bound: Repeated, share: float) -> list[int]:
    """Return the number of domains where the bound is least, for every draw."""
    at = np.array([bound.values("bound", share=share, p=p) for p in bound.kinds("p")])
    return [int(bound.kinds("p")[i]) for i in at.argmin(axis=0)]


def _notes(name: str, scale: DomainsScale, bound: Repeated) -> tuple[str, ...]:
    train, earlier, test = scale.rows
    least = {share: ", ".join(map(str, turns(bound, share))) for share in (FEW, 1.0)}
    return (
        f"Data: {name}; {train:,} images to train on, {earlier:,} earlier ones for hypotheses and groups, both of "
        f"which are then fixed before the training rows, {test:,} to test on in all three kinds; {scale.repetitions} "
        "draws. Kinds have 6, 5 and 4 fifteenths of the rows, and four clients each with a half, a quarter and two "
        "eighths of these.",
        f"The bound is least at {least[1.0]} domains (all rows, draw by draw) and {least[FEW]} (a quarter of them). It "
        f"holds with probability {1.0 - DELTA:g} up to the noise of the discrepancy, which is measured on the rows.",
        "From the literature: that complexity and discrepancy trade against each other. The paper prints no experiment "
        "over p; kinds, sizes and hypotheses are chosen here. A survey asks how the gap of FedAvg to AFL "
        "depends on the choice of domains.",
    )


def _draw(bound: Repeated, scored: Repeated) -> Any:
    """Draw the bound's terms over p, test losses over p, and by what clients are grouped by the loss and the gap."""
    figure, axes = blank(4, width=3.9, height=3.4)
    axis, full, counts = axes[0], bound.where(share=1.0), bound.kinds("p")
    low = np.zeros(len(counts))
    for j, term in enumerate(TERMS[:-1]):
        height = np.array([full.values(term, p=p).mean() for p in counts])
        axis.bar(counts, height, 0.7, bottom=low, color=COLOURS[j % len(COLOURS)], alpha=0.75, label=term)
        low = low + height
    few = [bound.values("bound", share=FEW, p=p).mean() for p in counts]
    axis.plot(counts, few, color="black", linestyle="--", marker=".", label="sum, a quarter of the rows")
    axis.set_ylim(0.0, 1.45 * max(few))
    panel(axis, "bound of the error", "domains p", "mean of the draws")
    axis.legend(frameon=False, fontsize=7, loc="upper left", ncols=2)
    named = {"worst loss": "worst kind", "mean loss": "mean"}
    long = [
        {"p": r["p"], "repetition": r["repetition"], "loss": r[key], "of": words}
        for r in scored.where(**{"grouped by": FEATURES}).rows
        for key, words in named.items()
    ]
    draw_curves(axes[1], Repeated(tuple(long)), "p", "loss", "of")
    panel(axes[1], "minimax model of p domains", "domains p, grouped by features", "test loss, mean and s.d.")
    axes[1].legend(frameon=False, fontsize=7.5)
    bars = [{"by": by, "": "", **r} for by in _GROUPINGS for r in scored.where(**{"grouped by": by, "p": GIVEN}).rows]
    draw_bars(axes[2], Repeated(tuple(bars)), "worst loss", "by", "")
    panel(axes[2], f"{GIVEN} domains, grouped by", y="worst kind's test loss, mean and s.d.")
    bars += [r | {"by": ALONE, "": ""} for r in scored.where(**{"grouped by": FEATURES, "p": K}).rows]
    draw_bars(axes[3], Repeated(tuple(bars)), GAP, "by", "")
    axes[3].axhline(0.0, color="0.3", linewidth=0.8)
    panel(axes[3], "FedAvg less AFL, worst of the domains", y="test loss, mean and s.d.")
    for axis in axes[2:]:
        axis.tick_params(axis="x", labelsize=7.5)
    return figure
