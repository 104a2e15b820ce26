"""Experiments on averaging: what repeated rows say, what is measured, and that every claim can come out false."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage, optimize, stats

pytest.importorskip("matplotlib")

from fedconvex.families.multitask.experiments import har_people
from fedconvex.papers import (
    afl_curves,
    agnostic_text,
    communication,
    data_sharing,
    fedavg_central,
    fedprox_stragglers,
    flatness,
    radfed_rounds,
    writers,
)
from fedconvex.papers.agnostic_clients.data import load_splits
from fedconvex.papers.images import read_images
from fedconvex.papers.repeated import Repeated, draw_bars, draw_curves, higher
from fedconvex.papers.style import blank

JITTER = (0.0, 0.001, -0.001, 0.002)


def planted(value, **settings):
    """Rows of four repetitions whose numbers are ``value(**setting)`` and a little noise, the same for all settings."""
    rows = []
    for setting in itertools.product(*settings.values()):
        at = dict(zip(settings, setting, strict=True))
        for r, e in enumerate(JITTER):
            noise = e * (1.0 + 0.1 * len(rows))
            rows.append(at | {"repetition": r} | {k: v + noise for k, v in value(**at).items()})
    return Repeated(tuple(rows))


def verdicts(claims):
    return [claim.holds for claim in claims]


@pytest.mark.slow
def test_figures_show_the_tables_standard_deviation():
    """Of 1, 2, 6 it is the root of 7, not of 14/3: bars and bands as in the table."""
    found = Repeated(tuple({"m": "a", "x": 0, "repetition": r, "v": v} for r, v in enumerate((1.0, 2.0, 6.0))))
    assert found.table(("m",), ("v",))[0]["v, s.d."] == pytest.approx(7.0**0.5)
    _, axes = blank(2)
    draw_bars(axes[0], found, "v", "x", "m")
    ends = axes[0].containers[-1].errorbar.lines[2][0].get_segments()[0][:, 1]
    np.testing.assert_allclose(ends, 3.0 + 7.0**0.5 * np.array([-1.0, 1.0]))
    draw_curves(axes[1], found, "x", "v", "m")
    heights = axes[1].collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([heights.min(), heights.max()], ends)
    same = Repeated(tuple(dict(r, m=m, x=x) for r in found.rows for m in "abc" for x in range(9)))
    _, (axis,) = blank(1)
    draw_curves(axis, same, "x", "v", "m", marked=True)
    widths = [line.get_linewidth() for line in axis.lines]
    assert widths == sorted(set(widths), reverse=True)  # what is drawn later leaves the edges of the earlier
    marks = [set(range(*slice(line.get_markevery()[0], 9, line.get_markevery()[1]).indices(9))) for line in axis.lines]
    assert all(marks) and not set.intersection(*marks) and len({line.get_marker() for line in axis.lines}) == 3


def test_repeated_rows_by_hand():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(2, 6))
    rows = [{"method": m, "repetition": r, "x": table[i, r]} for i, m in enumerate("AB") for r in (3, 1, 0, 5, 2, 4)]
    found = Repeated(tuple(rows))
    np.testing.assert_array_equal(found.values("x", method="B"), table[1])
    by_scipy = stats.ttest_rel(table[0], table[1]).confidence_interval(0.95)
    d = found.minus("x", {"method": "A"}, {"method": "B"})
    np.testing.assert_allclose([d.low, d.high], by_scipy, rtol=1e-10)
    cells = found.table(("method",), ("x",))
    np.testing.assert_allclose([c["x"] for c in cells], table.mean(axis=1))
    np.testing.assert_allclose([c["x, s.d."] for c in cells], table.std(axis=1, ddof=1))
    with pytest.raises(ValueError, match="one number a repetition"):
        found.values("x")
    assert higher("", [("", d), ("", found.minus("x", {"method": "A"}, {"method": "A"}))]).holds is None


# ---------------------------------------------------------------- every claim, planted both ways


def curves(sign):
    def value(division, method, client, round):
        by_label = division == afl_curves.LABEL.name
        low = 0.5 if method == "FedAvg" or not by_label else 0.5 + 0.3 * sign
        accuracy = {"a": 0.9, "b": low if by_label else 0.9 + 0.2 * (sign < 0 and method != "FedAvg")}[client]
        return {"accuracy": accuracy, "loss": 1.0 - accuracy}

    divisions = (afl_curves.IID.name, afl_curves.LABEL.name)
    found = planted(value, division=divisions, method=afl_curves.METHODS, client=("a", "b"), round=(0, 10))
    if sign < 0:  # at random both clients move, so that the least does
        found = Repeated(
            tuple(
                r | {"accuracy": 0.7} if r["division"] == divisions[0] and r["method"] != "FedAvg" else r
                for r in found.rows
            )
        )
    return found


def test_claims_of_afl_curves_can_fail():
    assert verdicts(afl_curves.claims(curves(1.0))) == [True] * 4
    assert verdicts(afl_curves.claims(curves(-1.0))) == [False] * 4


def talked(good):
    def rounds(division, method, epochs, batch):
        if method == "FedSGD":
            return {"rounds": 100.0, "floats": 1.0}
        return {"rounds": (10.0 if division == communication.DIVISIONS[0] else 50.0) if good else 1000.0}

    cells = [
        planted(lambda division, method, c=c: rounds(division, *c), division=communication.DIVISIONS, method=c[:1])
        for c in communication.PAPER
    ]
    named = zip(communication.PAPER, cells, strict=True)
    rows = [r | {"epochs": E, "batch": B} for (_, E, B), found in named for r in found.rows]
    if not good:  # more gained by shards than at random
        rows = [
            r | {"rounds": 500.0 + r["repetition"]}
            if r["division"] == communication.DIVISIONS[1] and r["method"] == "FedAvg"
            else r
            for r in rows
        ]
    sign = 1.0 if good else -1.0
    start = {"common": 2.0 + sign, "separate": 2.0}
    return {
        "table": Repeated(tuple(rows)),
        "weights": planted(lambda weights: {"test loss": sign * (weights == "1/K")}, weights=("1/K", "n_k/n")),
        "starts": planted(
            lambda **at: {"average": start[at["start"]], "average less parents": -sign},
            **{"start": ("common", "separate"), "local steps": (1, 3)},
        ),
        "one_round": planted(
            lambda division: {"pooled": 0.9, "one round": 0.9 - 0.2 * sign}, division=communication.DIVISIONS
        ),
    }


def test_claims_of_communication_can_fail():
    assert verdicts(communication.claims(talked(True))) == [True] * 7
    assert verdicts(communication.claims(talked(False))) == [False] * 7


def late(sign):
    def value(setting, late, method):
        better = {fedprox_stragglers.DROP: 0.0, fedprox_stragglers.KEEP: 1.0}.get(method, 2.0)
        if setting == "iid" and method == fedprox_stragglers.TUNED:
            better = 0.5
        return {"training loss": -sign * better, "test accuracy": sign * better, "mu": 0.0}

    return planted(value, setting=("iid", "(1, 1)"), late=(0.0, 0.9), method=fedprox_stragglers.KINDS)


def test_claims_of_fedprox_stragglers_can_fail():
    assert verdicts(fedprox_stragglers.claims(late(1.0))) == [True] * 6
    assert verdicts(fedprox_stragglers.claims(late(-1.0))) == [False] * 6


def shared(sign):
    def value(labels, shared):
        gain = {0.0: 0.0, 0.05: 0.3, 0.25: 0.4 if sign > 0 else 0.9}[shared] * (labels == data_sharing.EVEN)
        off = 0.0 if sign > 0 else 0.1
        return {
            "accuracy": sign * gain,
            "divergence": 2.0 - sign * gain,
            "bound": 4.0 * sign,
            "EMD over own share": off,
        }

    found = planted(value, labels=(data_sharing.EVEN, data_sharing.SKEWED), shared=(0.0, 0.05, 0.25))
    exact = {"EMD over own share": 0.0 if sign > 0 else 0.1, "bound": 4.0 if sign > 0 else 1.0}
    return Repeated(tuple(r | exact for r in found.rows))


def test_claims_of_data_sharing_can_fail():
    assert verdicts(data_sharing.claims(shared(1.0))) == [True] * 6
    no = verdicts(data_sharing.claims(shared(-1.0)))
    assert no == [False, True, False, False, False, False]  # the first 5 % lose less than the others
    worse = [r | {"accuracy": 0.01 * r["shared"] + 5.0 * (r["shared"] > 0.1)} for r in shared(1.0).rows]
    assert verdicts(data_sharing.claims(Repeated(tuple(worse))))[1] is False


def moved(sign):
    def value(division, clients, S, round):
        if division == radfed_rounds.IID:
            return {"accuracy": 0.8 - 0.1 * (sign < 0 and S > 1), "DC": 0.1}
        accuracy = (0.8 if S == 1 else 0.8 - 0.1 * sign) if round == 20 else 0.7 - 0.2 * sign
        return {"accuracy": accuracy, "DC": 0.5 - 0.1 * sign * (S > 1)}

    divisions = (radfed_rounds.IID, radfed_rounds.LABEL)
    found = planted(value, division=divisions, clients=(20, 50), S=(1, 2), round=(10, 20))
    if sign < 0:  # RADFed behind at as many averages, ahead at as many rounds
        rows = [
            r | {"accuracy": 0.99 + 0.01 * r["repetition"] if r["round"] == 10 else 0.2}
            if r["division"] == radfed_rounds.LABEL and r["S"] == 1
            else r
            for r in found.rows
        ]
        found = Repeated(tuple(rows))
    return found, planted(lambda: {"difference": sign})


def test_claims_of_radfed_can_fail():
    assert verdicts(radfed_rounds.claims(*moved(1.0))) == [True] * 5
    assert verdicts(radfed_rounds.claims(*moved(-1.0))) == [False] * 5


def written(sign):
    """Accuracies on both populations: with few slanted clients their own model is much worse where sign > 0."""
    w = writers
    slanted = {w.POOLED: 0.6, w.AGNOSTIC: 0.6 + 0.2 * sign, w.EXACT: 0.7, w.MINIMAX: 0.7 + 0.1 * sign}
    upright = {w.POOLED: 0.9 if sign > 0 else 0.55, w.TARGET: 0.8 - 0.3 * sign}

    def value(**at):
        model = at["model"]
        own = 0.6 - 0.01 * sign - 0.3 * sign * (at[w.CLIENTS] < 1.0)  # alone
        a, b = upright.get(model, 0.85 - 0.1 * (sign < 0)), slanted.get(model, own)
        worst = 1.0 if model != w.MINIMAX else 1.0 - 0.5 * sign
        found = {w.UPRIGHT: a, w.SLANTED: b, "least": min(a, b), "difference": a - b}
        return found | {"worst objective": worst, "gap": 0.0}

    shares = {w.CLIENTS: (1.0, w.FEW)}
    averaged = planted(value, **shares, model=(w.POOLED, w.AGNOSTIC, w.TARGET), server=(w.AVERAGING,))
    exact = planted(value, **shares, model=(w.EXACT, w.OWN, w.MINIMAX), server=(w.NOTHING,))
    return Repeated(averaged.rows + exact.rows)


def test_claims_of_writers_can_fail():
    assert verdicts(writers.claims(written(1.0))) == [True] * 9
    assert verdicts(writers.claims(written(-1.0))) == [False] * 9


def spoken(sign):
    """Cross-entropies on the target and on the rest; the target-only model's depends on how much text it had."""
    t = agnostic_text
    target = {t.POOLED: 3.0, t.MINIMAX: 2.0, t.AVERAGED: 3.0, t.TARGET: 2.2, t.AGNOSTIC: 2.1}
    rest = {t.POOLED: 1.0, t.MINIMAX: 2.0, t.TARGET: 4.0, t.AGNOSTIC: 2.0}

    def value(model, kind, share, server):
        loss = (target if kind == "notes" else rest).get(model, 2.5)
        loss = loss if sign > 0 else 5.0 - loss
        return {"loss": loss, "perplexity": np.exp(loss)}

    exact = {"entropy": 2.0, "value": 2.1 if sign > 0 else 1.9, "most": 2.2, "gap": 0.0}
    exact["worst training loss"] = 2.0 if sign > 0 else 1.9
    settings = {"kind": ("notes", "talk"), "share": (0.1, 1.0)}
    runs = planted(value, model=(t.AVERAGED, t.TARGET, t.AGNOSTIC), server=("averaging",), **settings)
    closed = planted(value, model=t.EXACT, server=(t.NOTHING,), **settings)
    return Repeated(tuple(r | exact for r in closed.rows + runs.rows))


def test_claims_of_agnostic_text_can_fail():
    assert verdicts(agnostic_text.claims(spoken(1.0))) == [True] * 8
    assert verdicts(agnostic_text.claims(spoken(-1.0))) == [False] * 8
    ahead = [r | {"loss": 2.0} if (r["model"], r["kind"], r["share"]) == (agnostic_text.TARGET, "notes", 1.0) else r
             for r in spoken(1.0).rows]  # with all its text the target does better alone  # fmt: skip
    assert verdicts(agnostic_text.claims(Repeated(tuple(ahead)))) == [True] * 7 + [False]


def people(sign):
    h = har_people
    level = {h.SOFTMAX: 0.2, h.HINGE: 0.2 if sign > 0 else 0.1, h.LOCAL: 0.15, h.MOCHA_: 0.1 if sign > 0 else 0.2}

    def value(model, task):
        gap = 1e-3 if sign > 0 else 0.5
        return {"error": level[model] * (1.0 + 0.5 * (task == "a")), "gap": gap}

    return planted(value, model=h.KINDS, task=("a", "b"))


def test_claims_of_har_can_fail():
    assert verdicts(har_people.claims(people(1.0))) == [True] * 4
    assert verdicts(har_people.claims(people(-1.0))) == [False] * 4


def flat(sign):
    def value(rho):
        high = 1.0 + sign * rho
        numbers = {
            "sharpness": 3.0 - high,
            "largest eigenvalue": 3.0 - high,
            "test loss": 3.0 - high,
            "objective": high,
        }
        return numbers | {"sharpness at most": 0.0}

    found = planted(value, rho=(0.0, 0.2, 1.0))
    return Repeated(tuple(r | {"sharpness at most": r["sharpness"] + 0.1 * sign} for r in found.rows))


def test_claims_of_flatness_can_fail():
    assert verdicts(flatness.claims(flat(1.0))) == [True] * 5
    assert verdicts(flatness.claims(flat(-1.0))) == [False] * 5


def central(sign):
    f = fedavg_central
    level = {f.IID: 0.9 if sign > 0 else 0.8, f.SHARDS: 0.8 if sign > 0 else 0.9, f.SMALL: 0.9, f.LARGE_BATCH: 0.9}
    rows = [
        {"method": m, "repetition": r, "accuracy": a + 0.001 * ((r * (1 + i)) % 3)}
        for i, (m, a) in enumerate(level.items())
        for r in range(10)
    ]
    return Repeated(tuple(rows), 0.5)


def test_claims_of_fedavg_central_can_fail():
    assert verdicts(fedavg_central.claims(central(1.0))) == [True] * 4
    assert verdicts(fedavg_central.claims(central(-1.0))) == [False] * 4
    found = fedavg_central.posteriors(central(1.0))  # by hand: Student's t, correlation 1/3
    d = central(1.0).values("accuracy", method=fedavg_central.IID)
    d = d - central(1.0).values("accuracy", method=fedavg_central.SMALL)
    scale = np.sqrt(1 / 10 + (1 / 3) / (2 / 3)) * d.std(ddof=1)
    law = stats.t(9, d.mean(), scale)
    assert next(found)["equivalent"] == pytest.approx(law.cdf(0.01) - law.cdf(-0.01))


# ---------------------------------------------------------------- what is measured


def test_a_style_is_a_shear_and_a_maximum():
    """Against scipy's affine map inside of the image, and its maximum filter."""
    images = np.random.default_rng(0).random((3, 9, 9))
    found = writers.restyled(images, 0.35, 0.0)
    for image, mine in zip(images, found, strict=True):
        shear = np.array([[1.0, 0.0], [0.35, 1.0]])  # column = column of the source less 0.35 (4 - row)
        by_scipy = ndimage.affine_transform(image, shear, (0.0, -0.35 * 4), order=1, mode="constant")
        np.testing.assert_allclose(mine[:, 2:-2], by_scipy[:, 2:-2], atol=1e-12)
    thick = writers.restyled(images, 0.0, 1.0)
    np.testing.assert_allclose(thick, ndimage.maximum_filter(images, (1, 1, 3), mode="constant"))


@pytest.mark.slow
def test_one_small_population_of_writers():
    _, images, y = writers.labelled_images(None)
    problem, test = writers.populations(images, y, writers.QUICK, 0)
    fed = problem.federation
    small = np.array([(fed.domain[a:b] == 0).all() for a, b in itertools.pairwise(fed.ptr)])
    assert fed.domain_labels.tolist() == ["slanted", "upright"] and (fed.sizes == 8).all()
    assert small.sum() == round(fed.K * 500 / 3400)
    (X, labels), (slanted, again) = test["upright"], test["slanted"]
    assert np.array_equal(labels, again) and X.shape == slanted.shape and not np.allclose(X, slanted)


def test_cifar_is_read_from_its_binary_files(tmp_path):
    """Records of a label and 3,072 bytes; grey is the mean of the three colours; what is no such file is refused."""
    rng = np.random.default_rng(0)
    files = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    made = {}
    for name in files:
        made[name] = rng.integers(0, 256, (4, 3073), dtype=np.uint8)
        made[name][:, 0] = rng.integers(0, 10, 4)
        (tmp_path / name).write_bytes(made[name].tobytes())
    found = read_images(tmp_path)
    assert found["x_train"].shape == (20, 32, 32) and found["x_test"].shape == (4, 32, 32)
    np.testing.assert_array_equal(found["y_test"], made["test_batch.bin"][:, 0])
    colours = made["data_batch_2.bin"][1, 1:].reshape(3, 32, 32).astype(float)
    np.testing.assert_allclose(found["x_train"][5], colours.mean(axis=0))
    (tmp_path / files[0]).write_bytes(b"123")
    with pytest.raises(ValueError, match=r"data_batch_1.bin must hold records of 3073 bytes"):
        read_images(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"data_batch_1.bin"):
        read_images(Path(tmp_path) / "nowhere")


@pytest.mark.slow
def test_tiny_versions_measure_what_they_say(compiled_kernels):
    """One repetition of each: bounds hold, methods agree where they must, every claim can be judged."""
    loaded = load_splits(splits=1, block=2)
    rows = loaded.splits[0]
    shared_rows = list(data_sharing.runs(rows, 0, data_sharing.SharingScale(1, 2, (0.0, 0.05, 0.25), 2), 0))
    assert all(r["divergence"] <= r["bound"] for r in shared_rows)
    assert all(r["EMD over own share"] < 1e-9 for r in shared_rows)
    problem = communication.dealt(rows, np.arange(len(rows.y)) % 4)
    losses = communication.mean_losses(problem.solve().w[None], rows.X, rows.y)
    np.testing.assert_allclose(losses[0] + 0.5e-3 * np.sum(problem.solve().w ** 2), problem.value(problem.solve().w))
    scale = fedprox_stragglers.StragglersScale(1, 2, ("iid",), (0.0,), (0.1,))
    ends = [r for r in fedprox_stragglers.runs(0, scale, 0) if r["round"] == 2]
    loss = {r["method"]: r["training loss"] for r in ends}
    assert loss[fedprox_stragglers.DROP] == loss[fedprox_stragglers.KEEP]  # nobody is late
    moving = radfed_rounds.RadfedScale(1, (10,), (1, 2), 4, 2)
    limit = list(radfed_rounds.limits(rows, 0, moving, 0))
    assert limit[0]["from FedAvg's fixed point"] < 0.2 < limit[0]["from the minimiser"]
    shot = list(communication.starts(rows, 0, 0))
    assert {r["start"] for r in shot} == {"common", "separate"} and max(r["average less parents"] for r in shot) < 0.0


@pytest.mark.parametrize("kinds", [2, 4])
def test_the_largest_conditional_entropy_is_the_minimax_cross_entropy(kinds):
    """Against the minimum over models of the largest cross-entropy, by scipy, on pairs of three classes."""
    rng = np.random.default_rng(0)
    counts = np.zeros((kinds, 27, 27))
    counts[:, :3, :3] = rng.integers(1, 50, (kinds, 3, 3))
    value, weights = agnostic_text.largest_entropy(counts)
    P = counts[:, :3, :3] / counts.sum(axis=(1, 2))[:, None, None]

    def losses(v):
        z = v.reshape(3, 3)
        return [-np.sum(p * (z - np.logaddexp.reduce(z, axis=1, keepdims=True))) for p in P]

    level = {"type": "ineq", "fun": lambda v: v[-1] - np.array(losses(v[:-1]))}
    best = optimize.minimize(lambda v: v[-1], np.r_[np.zeros(9), 2.0], constraints=[level], method="SLSQP", tol=1e-12)
    assert value == pytest.approx(best.fun, abs=1e-6)
    own = agnostic_text.law_of(np.tensordot(weights, counts / counts.sum(axis=(1, 2), keepdims=True), 1))
    mine = np.array([agnostic_text.scores(own, c)["loss"] for c in counts])
    assert mine.max() == pytest.approx(value, abs=1e-4)  # up to unseen pairs
    np.testing.assert_allclose(mine[weights > 1e-3], value, atol=1e-4)  # equal where a kind weighs
    assert agnostic_text.scores(own, counts[0])["perplexity"] == pytest.approx(np.exp(mine[0]))


def test_text_is_dealt_out_to_clients_that_mix_kinds():
    kinds, train, _ = agnostic_text.texts(None, agnostic_text.QUICK, 3)
    rng = np.random.default_rng(3)
    parts = agnostic_text.dealt(train, rng)
    np.testing.assert_array_equal(parts.sum(axis=0), train)
    assert ((parts.sum(axis=(2, 3)) > 0.0).sum(axis=1) > 1).mean() > 0.8  # nearly every client has several kinds
    fed = agnostic_text.problem_of(kinds, parts).federation
    assert fed.K == len(parts) and fed.sample_weight.sum() == train.sum() and fed.domain_labels.tolist() == [*kinds]
    few = agnostic_text.thinned(train, 0.02, rng)
    assert few[0].sum() == round(0.02 * train[0].sum()) and (few[0] <= train[0]).all()
    np.testing.assert_array_equal(few[1:], train[1:])


def test_accuracies_of_characters_by_hand():
    counts = agnostic_text.pairs("abab ab")  # ab 3, ba 1, "b " 1, " a" 1
    model = np.full((27, 27), -9.0)
    model[1, 0], model[0, 1], model[0, 26] = 0.0, 0.0, 0.0  # b after a, a after b, a after a space
    found = agnostic_text.scores(model, counts)
    assert found["accuracy"] == pytest.approx(5 / 6) and found["letters"] == pytest.approx(1.0)


def test_texts_of_a_file(tmp_path):
    file = tmp_path / "talk.txt"
    file.write_text("much\taaaa bbbb\n" * 40 + "few\tcc\n" * 30 + "some\tdddd\n" * 40)
    kinds, train, test = agnostic_text.texts(file, agnostic_text.QUICK, 0)
    assert kinds == ("few", "some", "much") and train.sum() + test.sum() == 40 * 8 + 30 + 40 * 3
    file.write_text("one kind only\n")
    with pytest.raises(ValueError, match=r"talk.txt must hold lines 'kind<tab>text' of two kinds or more"):
        agnostic_text.texts(file, agnostic_text.QUICK, 0)
    with pytest.raises(FileNotFoundError, match="--data must be an existing file"):
        agnostic_text.texts(tmp_path / "none.txt", agnostic_text.QUICK, 0)


def test_errors_over_tasks_by_hand():
    rows = [{"model": "A", "task": t, "repetition": r, "error": e} for r in (0, 1) for t, e in (("a", 0.1), ("b", 0.3))]
    found = har_people.over_tasks(Repeated(tuple(rows)))
    np.testing.assert_allclose(found.values("error %"), 20.0)
    np.testing.assert_allclose(found.values("over tasks"), np.std([10, 30], ddof=1))
