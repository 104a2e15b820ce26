"""What the columns of each owner add: the loss with them and without, exactly, and on rows that were held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedconvex._check import Rng, bad, flag, instance, real, takes_rng, whole
from fedconvex.comparison.skewed_intervals import mean_of
from fedconvex.federation import Federation
from fedconvex.kernels import row_losses
from fedconvex.loss_traits import traits
from fedconvex.losses import Logistic, Softmax, Squared
from fedconvex.problems import Problem
from fedconvex.vertical_federation import VerticalFederation, owners_rows, owners_widths, planned_join


class Interval(NamedTuple):
    """A number that lies between two others."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


class WithoutOwner(NamedTuple):
    """A model that some owners' columns are left out of.

    Attributes
    ----------
    name : str
        "all owners", "without shop", "bank alone".
    owners : tuple of str
        Whose columns it has.
    features : int
        Encoded columns, the intercept among them.
    minimum : float
        The least objective with these columns, to `gap`.
    gap : float
        Certified.
    worth : Interval
        By how much the minimum exceeds that of all owners: certified bounds, the lower one at least 0.
    held_out : float
        Mean loss on rows that were held out, over all folds.
    score : float
        Accuracy, or R^2, on the same rows.
    change : Interval
        Of the held-out loss, from that of all owners: with 95 % limits, Student's, rows taken as independent.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Squared, VerticalFederation
    >>> from fedconvex.comparison import compare_owners
    >>> rng = np.random.default_rng(0)
    >>> A, B = rng.normal(size=(80, 2)), rng.normal(size=(80, 1))
    >>> fed = VerticalFederation.from_blocks({"bank": A, "shop": B}, A[:, 0] + B[:, 0])
    >>> alone = compare_owners(fed, loss=Squared(), l2=0.01).models[-1]
    >>> alone.name, alone.owners, alone.worth.low > 0.0
    ('bank alone', ('bank',), True)
    """

    name: str
    owners: tuple[str, ...]
    features: int
    minimum: float
    gap: float
    worth: Interval
    held_out: float
    score: float
    change: Interval


@dataclass(frozen=True)
class OwnersComparison:
    """What each owner's columns add.

    Attributes
    ----------
    knows : str
        Who knows the labels.
    models : tuple of WithoutOwner
        All owners; without each of those who do not know the labels; the owner of the labels alone.
    rows, folds : int
    l2 : float
    score_name : str
        "accuracy" or "R²".
    unmatched : dict from owner to tuple of str
        Ids without a partner.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Squared, VerticalFederation
    >>> from fedconvex.comparison import compare_owners
    >>> rng = np.random.default_rng(0)
    >>> A, B = rng.normal(size=(80, 2)), rng.normal(size=(80, 1))
    >>> fed = VerticalFederation.from_blocks({"bank": A, "shop": B}, A[:, 0] + B[:, 0])
    >>> found = compare_owners(fed, loss=Squared(), l2=0.01)
    >>> found.knows, found.rows, found.score_name, found.sentences[0][:21]
    ('bank', 80, 'R²', 'Without the columns o')
    """

    knows: str
    models: tuple[WithoutOwner, ...]
    rows: int
    folds: int
    l2: float
    score_name: str
    unmatched: dict[str, tuple[str, ...]]

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the columns of each partner add, one sentence each."""
        return tuple(self._said(m) for m in self.models[1:])

    def _said(self, m: WithoutOwner) -> str:
        whole_model = self.models[0]
        away = [owner for owner in whole_model.owners if owner not in m.owners]
        who = " and ".join([", ".join(away[:-1]), away[-1]] if len(away) > 1 else away)
        s, least = ("s" if len(away) == 1 else ""), m.worth
        told = f"Without the columns of {who} the least objective is {least.value:.4g} higher (certified to "
        told += f"{least.high - least.low:.1g}), and the loss of held-out rows {abs(m.change.value):.3g} "
        told += "higher" if m.change.value >= 0.0 else "lower"
        told += f" ({m.change.low:.3g} to {m.change.high:.3g}); {self.score_name} {m.score:.4g} in the place of "
        told += f"{whole_model.score:.4g}. "
        if m.change.low > 0.0:
            return told + f"{who} add{s} to what can be predicted."
        if m.change.high < 0.0:
            return told + f"{who} make{s} predictions worse at this l2."
        return told + f"These rows do not show that {who} add{s} anything."

    def table(self, width: int | None = None) -> str:
        """Return a table of the models, as text."""
        from fedconvex.report import format_table

        heads = ["model", "features", "least objective", "above all owners", "held-out loss"]
        heads += [self.score_name, "change of the loss"]
        rows = [[m.name, m.features, m.minimum, m.worth.value, m.held_out, m.score, str(m.change)] for m in self.models]
        return str(format_table(heads, rows, width=width))


class _Encoded(NamedTuple):
    """Rows to train on and others, and where the owners' columns begin."""

    train: Federation
    other: Federation
    ptr: np.ndarray


class _Blocks(NamedTuple):
    """Rows with columns of several owners."""

    owners: tuple[str, ...]
    encode: Callable[[np.ndarray, np.ndarray], _Encoded]  # from numbers of rows
    order: np.ndarray  # rows in an order that does not depend on that of tables
    knows: str
    loss: Any
    unmatched: dict[str, tuple[str, ...]]


@takes_rng
def compare_owners(
    data: Any, on: str | None = None, target: str | None = None, *, knows: str | None = None, loss: Any = None,
    l2: float = 0.01, folds: int = 5, seed: int = 0, intercept: bool = True, drop: Sequence[str] = (),
    rng: Rng = None, **choices: Any,
) -> OwnersComparison:  # fmt: skip
    """Return what the columns of each owner add to those of the owner of the labels.

    The objective, the mean loss plus (l2/2)‖w‖^2, is minimised exactly with the columns of all owners, without those of
    each partner, and with those of the owner of the labels alone. The differences are certified; further columns never
    raise the minimum. What they are worth on new rows is cross-validated: encoding and scales come from training rows.

    Parameters
    ----------
    data : mapping from owner to table, or VerticalFederation
        A federation's columns are taken as they are.
    on, target : str, optional
        Of tables: the column of ids, and the one to predict.
    knows : str, optional
        Who knows the labels. Of tables, who must have the target; of a federation, by default its first owner.
    loss : loss, optional
        Default by the target: Logistic, Softmax or Squared; of a federation it must be given.
    l2, folds, seed : float, int, int
        Positive; of the cross-validation, at least 2; of the folds, which do not depend on the order of rows.
    intercept : bool
        Of tables: a column of ones at whoever knows the labels, penalised like the rest.
    drop, **choices
        As for `VerticalFederation.from_frames`.

    Raises
    ------
    ValueError, TypeError
        If there is one owner only, or fewer rows than two a fold; as `VerticalFederation.from_frames`.

    Examples
    --------
    >>> import numpy as np
    >>> from fedconvex import Squared, VerticalFederation
    >>> from fedconvex.comparison import compare_owners
    >>> rng = np.random.default_rng(0)
    >>> A, B = rng.normal(size=(80, 2)), rng.normal(size=(80, 1))
    >>> fed = VerticalFederation.from_blocks({"bank": A, "shop": B}, A[:, 0] + B[:, 0] + 0.1 * rng.normal(size=80))
    >>> found = compare_owners(fed, loss=Squared(), l2=0.01)
    >>> [(m.name, m.worth.low > 0.4) for m in found.models]  # nearly half of B's mean square
    [('all owners', False), ('bank alone', True)]
    """
    who, l2 = "compare_owners", real("compare_owners: l2", l2, low=0.0, strict=True)
    folds, seed = whole(f"{who}: folds", folds, low=2), whole(f"{who}: seed", seed)
    flag(f"{who}: intercept", intercept)
    if isinstance(data, VerticalFederation):
        given = [name for name, v in {"on": on, "target": target, **choices}.items() if v is not None]
        if given or (len(drop) > 0 if isinstance(drop, Sequence) else drop is not None):
            raise bad(
                f"{who}: data", "be tables where columns are named", f"a VerticalFederation and {(*given, 'drop')[0]}"
            )
        blocks = _of_federation(data, knows, loss)
    else:
        blocks = _of_tables(data, on, target, knows, loss, intercept, drop, choices)
    return compare_blocks(blocks, l2, folds, seed)


def _of_federation(fed: VerticalFederation, knows: Any, loss: Any) -> _Blocks:
    if loss is None:
        raise bad("compare_owners: loss", "be given for a VerticalFederation", "None", "loss=Logistic()")
    names = [str(owner) for owner in fed.labels.tolist()]
    if knows is not None and str(knows) not in names:
        raise bad("compare_owners: knows", f"be one of {', '.join(names)}", f"{knows!r}")

    def encode(train: np.ndarray, other: np.ndarray) -> _Encoded:
        parts = [Federation(fed.rows.X[rows], fed.y[rows], np.array([0, rows.size])) for rows in (train, other)]
        return _Encoded(parts[0], parts[1], fed.ptr)

    ids = np.argsort(fed.join.ids) if fed.join is not None else np.arange(fed.n)
    left = fed.join.unmatched if fed.join is not None else {}
    return _Blocks(tuple(names), encode, ids, names[0] if knows is None else str(knows), loss, left)


def _of_tables(
    data: Any, on: Any, target: Any, knows: Any, loss: Any, intercept: bool, drop: Any, choices: dict[str, Any]
) -> _Blocks:
    for name, value in (("on", on), ("target", target)):
        instance(f"compare_owners: {name}", value, str)
    found, frame, planned = planned_join(data, on, target, knows, intercept, drop, choices)
    return blocks_of(found, frame, planned, target, intercept, _loss_of(planned) if loss is None else loss)


def blocks_of(found: Any, frame: Any, planned: Any, target: str, intercept: bool, loss: Any) -> _Blocks:
    """Return the rows of joined tables, whose columns training rows encode."""
    owners = tuple(owners_widths(planned.fit(frame), found, target, intercept))

    def encode(train: np.ndarray, other: np.ndarray) -> _Encoded:
        columns = planned.fit(frame.take(train), standardise_target=traits(loss).quadratic)
        parts = [owners_rows(columns, frame.take(rows), intercept, "zero") for rows in (train, other)]
        widths = owners_widths(columns, found, target, intercept)
        return _Encoded(parts[0], parts[1], np.cumsum([0, *widths.values()]))

    return _Blocks(owners, encode, np.argsort(found.ids), found.owner_of[target], loss, found.unmatched)


def _loss_of(planned: Any) -> Any:
    """Return the loss for a target."""
    if planned.labels is None:
        return Squared()
    return Logistic() if len(planned.labels) == 2 else Softmax(len(planned.labels))


def compare_blocks(blocks: _Blocks, l2: float, folds: int, seed: int) -> OwnersComparison:
    """Return the comparison: minima over all rows, and losses of rows that were held out, fold by fold."""
    if len(blocks.owners) < 2:
        raise bad("compare_owners: data", "have columns of at least two owners", f"those of {blocks.owners[0]}")
    if blocks.order.size < 2 * folds:
        raise bad("compare_owners: folds", f"leave two rows of {blocks.order.size} in each", f"{folds}", "take fewer")
    some = _coalitions(blocks)
    everything = blocks.encode(blocks.order, blocks.order[:1])
    optima = [_solved(everything, blocks, owners, l2) for owners in some.values()]
    fold = np.random.default_rng([seed, len(blocks.order)]).permutation(len(blocks.order)) % folds
    losses, right = np.empty((2, len(some), len(fold)))
    y = np.empty(len(fold))
    for f in range(folds):
        held = np.flatnonzero(fold == f)
        encoded = blocks.encode(blocks.order[fold != f], blocks.order[held])
        y[held] = encoded.other.y
        for i, owners in enumerate(some.values()):
            best, X = _solved(encoded, blocks, owners, l2), encoded.other.X[:, _columns(encoded, blocks, owners)]
            losses[i, held], right[i, held] = _judged(blocks.loss, np.asarray(X @ best.w.T), encoded.other.y)
    classifies = traits(blocks.loss).task == "classification"
    scores = right.mean(axis=1) if classifies else 1.0 - right.sum(axis=1) / np.sum((y - y.mean()) ** 2)
    models = []
    for i, (name, owners) in enumerate(some.items()):
        best, features = optima[i], _columns(everything, blocks, owners).size
        low = max(best.value - best.gap - optima[0].value, 0.0)
        high = max(best.value - optima[0].value + optima[0].gap, low)
        worth = Interval(max(best.value - optima[0].value, 0.0), low, high)
        change = _mean(losses[i] - losses[0])
        held_out, score = float(losses[i].mean()), float(scores[i])
        models.append(WithoutOwner(name, owners, features, best.value, best.gap, worth, held_out, score, change))
    name = "accuracy" if classifies else "R²"
    return OwnersComparison(blocks.knows, tuple(models), len(fold), folds, l2, name, blocks.unmatched)


def _coalitions(blocks: _Blocks) -> dict[str, tuple[str, ...]]:
    """Return whose columns are taken, by name: those of all, without each partner, of the owner of the labels alone."""
    every = blocks.owners
    partners = [owner for owner in every if owner != blocks.knows]
    found = {"all owners": every}
    if len(partners) > 1 or blocks.knows not in every:
        found |= {f"without {p}": tuple(o for o in every if o != p) for p in partners}
    if blocks.knows in every:
        found[f"{blocks.knows} alone"] = (blocks.knows,)
    return found


def _columns(encoded: _Encoded, blocks: _Blocks, owners: Sequence[str]) -> np.ndarray:
    parts = zip(blocks.owners, encoded.ptr[:-1], encoded.ptr[1:], strict=True)
    return np.concatenate([np.arange(a, b) for owner, a, b in parts if owner in owners])


def _solved(encoded: _Encoded, blocks: _Blocks, owners: Sequence[str], l2: float) -> Any:
    fed = encoded.train
    X = fed.X[:, _columns(encoded, blocks, owners)]
    return Problem(Federation(X, fed.y, fed.ptr), blocks.loss, l2).solve()


def _judged(loss: Any, Z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses of rows, and whether they are classified rightly, or squares of errors."""
    out, Z = np.empty((y.size, 1)), np.ascontiguousarray(Z.reshape(y.size, -1))
    row_losses.row_values(loss, Z, np.ascontiguousarray(y), out)
    guess = traits(loss).predict(Z if Z.shape[1] > 1 else Z[:, 0])
    classifies = traits(loss).task == "classification"
    return out[:, 0], (guess == y).astype(float) if classifies else (guess - y) ** 2


def _mean(x: np.ndarray) -> Interval:
    """Return the mean with 95 % limits, Student's, rows taken as independent."""
    return Interval(*mean_of(x, 0.95))
