"""The referee of implementations: the package's methods, implementations of one's own, and planted errors."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import conformance_random
import numpy as np
import pytest
from conformance_methods import METHODS, implementation, problem_of

from fedconvex import FedAvg, Problem, iterate
from fedconvex.cli import main
from fedconvex.conformance import FAMILIES, can, conform
from fedconvex.conformance.conventions import expand
from fedconvex.conformance.exams import ORDERS, batch_draws, participants, standard_exams
from fedconvex.conformance.floats import VECTORS, sent
from fedconvex.conformance.implementation import Abilities, asked_of
from fedconvex.conformance.objectives import LOSSES, gradient, minimiser, values_gradients
from fedconvex.conformance.readings_search import count_outcomes, predict

# ---------------------------------------------------------------- objectives and exams


def test_gradients_are_those_of_the_values():
    rng = np.random.default_rng(0)
    for exam in (standard_exams(loss)[0] for loss in LOSSES):
        X, y = exam.clients[2]
        w = rng.normal(size=exam.hyper["start"].shape)
        for r in ({}, {"loss": "sum", "squared": "whole", "ridge": "l2"}):
            g, e = gradient(exam.hyper, r, X, y, w), rng.normal(size=w.shape)
            ahead, behind = (values_gradients(exam.hyper, r, X, y, w + h * e)[0] for h in (1e-5, -1e-5))
            assert abs((ahead - behind) / 2e-5 - np.sum(g * e)) < 1e-8
        near = minimiser(exam.hyper, {}, X, y, w, 0.5)
        assert np.abs(gradient(exam.hyper, {}, X, y, near) + 0.5 * (near - w)).max() < 1e-12


def test_draws_are_enumerated_whole():
    exams = {e.name.split(",")[0]: e for e in standard_exams("squared")}
    single, two, fresh = exams["single rows"], exams["batches of two"], exams["fresh batches"]
    assert [len(batch_draws(single, n, {})) for n in (2, 3, 4)] == [2, 6, 24]  # n! orders
    assert [len(batch_draws(two, n, {})) for n in (2, 3, 4)] == [1, 3, 6]  # n!/(2! 2!) or n!/2!
    assert [len(batch_draws(fresh, n, {"draw": "replacement"})) for n in (2, 3)] == [9, 36]  # (n (n + 1)/2)^2
    assert [len(batch_draws(two, n, {"last batch": "filled"})) for n in (2, 3, 4)] == [1, 9, 6]  # 3 may fill up
    assert [len(batch_draws(fresh, n, {"draw": "stream"})) for n in (2, 3)] == [1, 9]  # one is left, and any joins it
    assert count_outcomes(single, {}) == 288 <= ORDERS
    assert all(
        abs(sum(p for _, p in batch_draws(fresh, 3, {"draw": d})) - 1) < 1e-12 for d in ("distinct", "replacement")
    )
    assert [len(list(participants(exams["partial participation"], s))) for s in ("distinct", "replacement")] == [6, 10]


@pytest.mark.slow
def test_a_convention_that_an_exam_does_not_show_changes_nothing_in_it():
    """Else a reading would be left behind in an exam that was never asked about it."""
    rng = np.random.default_rng(3)
    for family in FAMILIES.values():
        for exam in standard_exams("squared", **family.hyper)[:3]:
            if asked_of(family, exam, Abilities()):
                continue
            readings = [r for r, _ in zip(expand(family.conventions, exam, {}, 1), range(1500), strict=False)]
            for i in rng.integers(0, len(readings), 5):
                r, w = readings[i], predict(family, exam, readings[i])[-1]
                for c in family.conventions:
                    if c.name in r or c.shown(exam, r):
                        continue
                    for v in c.values:
                        other = predict(family, exam, r | {c.name: v.name})[-1]
                        assert np.allclose(w, other, 1e-12, 1e-12, True), (family.name, exam.name, r, c.name, v.name)


# ---------------------------------------------------------------- the package's own methods


def test_plain_averages_are_as_published_where_the_paper_has_them():
    """Called conventions there, they set toolkits apart that compute the paper's line."""
    plain = {
        name
        for name, family in FAMILIES.items()
        for c in family.conventions
        if c.name == "weights" and c.value("1/K").kind == "published"
    }
    local = {"fedprox", "scaffold", "fedopt", "feddyn", "fedsam", "dynamicfedavg", "robust"}
    assert plain == local | {"fedlin", "mime", "scaffnew", "dane", "ef21", "diana"}


@pytest.mark.slow
def test_the_table_has_the_averaging_and_agnostic_family():
    from test_contract import CONFIGURATIONS

    named = {name.split()[0] for name in METHODS}  # pooled rows, stages and compressed answers have no reading
    aggregates = ("FedAvg median", "FedAvg trimmed", "FedAvg geometric")  # no averages either
    family = [name for name in CONFIGURATIONS if name.split()[0] in named and name not in aggregates]
    assert set(family) - {"ApproxFedAvg frozen"} == set(METHODS)  # softmax weights of the round's start have no reading
    assert len(METHODS) >= 50


QUICK = {"FedSGD", "SCAFFOLD"}
LONG = {  # a second or more each: `python -m tests.campaigns conform-methods` has them
    *("FedAvg Adam", "FedAvg momentum", "FedAvg epochs", "FedAvg decay by round", "FedAvg server Nesterov"),
    *("FedAvg server Yogi", "FedProx batches", "FedProx Adam", "FedSAM epochs", "AgnosticFedAvg batches"),
    *("FedAvg server SGD", "FedAvg server Adagrad", "FedProx late", "FedProx dropped", "AFL", "AFL batches"),
    *("FedMiD", "FedMiD batches", "FedDualAvg", "FedDualAvg batches", "SCAFFOLD batches"),
}


UNTOLD = {  # N and S are one where all take part, and any mean of equal numbers of steps is that number
    "SCAFFOLD": {"server c"},
    "FedDyn": {"server state"},
    "FedNova batches": {"normalisation"},
}


def check_method(name):
    family, build, abilities, expected = METHODS[name]
    found = conform(implementation(build, **abilities), family)
    assert found.verdict == "matches" and found.conforms, (name, str(found))
    assert {k: found.reading.get(k) for k in expected} == expected, name
    assert set(found.untold) == UNTOLD.get(name, set()), (name, found.untold)
    assert found.distance < 1e-12 and min(e.distance for e in found.excluded) > 1e-4, name


def test_methods_are_recognised():
    for name in sorted(QUICK):
        check_method(name)


@pytest.mark.slow
def test_most_methods_are_recognised():
    """Every other one; any of them in the campaign."""
    for name in [name for name in METHODS if name not in QUICK | LONG][::2]:
        check_method(name)


def method_trial(rng):
    """Any of the package's methods."""
    name = str(rng.choice(list(METHODS)))
    check_method(name)
    return {"method": name}


# ---------------------------------------------------------------- errors


SOURCES = {}
SOURCES["fedavg"] = """
def train(clients, hyper, rounds):
    x, eta, l2, models = hyper["start"], hyper["step_size"], hyper["l2"], []
    n = sum(len(y) for X, y in clients)
    own = [x for _ in clients]
    for t in range(rounds):
        total = np.zeros_like(x)
        for k, (X, y) in enumerate(clients):
            v = x.copy()
            for i in range(hyper["local_steps"]):
                residual = X @ v - y
                v = v - eta * (X.T @ residual / len(y) + l2 * v)
            own[k] = v
            total = total + len(y) * v
        x = total / n
        models.append(x)
    return models
"""
SOURCES["fedprox"] = (
    SOURCES["fedavg"]
    .replace("+ l2 * v)", '+ l2 * v + hyper["proximal_mu"] * (v - x))')
    .replace("    own = [", "    before = first = x\n    own = [")
    .replace("        x = total / n", "        before, x = x, total / n")
)
SOURCES["scaffold"] = """
def train(clients, hyper, rounds):
    x, eta, l2, models, rng = hyper["start"], hyper["step_size"], hyper["l2"], [], np.random.default_rng(hyper["seed"])
    K, S, lr, steps = len(clients), hyper["participants"], hyper["server_step_size"], hyper["local_steps"]
    c, kept = 0 * x, [0 * x for _ in clients]
    for t in range(rounds):
        dx, dc = 0 * x, 0 * x
        who = range(K) if S is None else rng.choice(K, S, replace=False)
        for k in who:
            X, y = clients[k]
            v = x.copy()
            for i in range(steps):
                v = v - eta * (X.T @ (X @ v - y) / len(y) + l2 * v - kept[k] + c)
            new = kept[k] - c + (x - v) / (steps * eta)
            dx, dc = dx + (v - x), dc + (new - kept[k])
            kept[k] = new
        x, c = x + lr * dx / len(who), c + dc / K
        models.append(x)
    return models
"""
SOURCES["feddyn"] = """
def train(clients, hyper, rounds):
    x, eta, l2, models, rng = hyper["start"], hyper["step_size"], hyper["l2"], [], np.random.default_rng(hyper["seed"])
    K, S, alpha, h = len(clients), hyper["participants"], hyper["alpha"], 0 * hyper["start"]
    kept = [0 * x for _ in clients]
    for t in range(rounds):
        who = range(K) if S is None else rng.choice(K, S, replace=False)
        found = []
        for k in who:
            X, y = clients[k]
            v = x.copy()
            for i in range(hyper["local_steps"]):
                v = v - eta * (X.T @ (X @ v - y) / len(y) + l2 * v - kept[k] + alpha * (v - x))
            kept[k] = kept[k] - alpha * (v - x)
            found.append(v)
        h = h - alpha / K * sum(v - x for v in found)
        x = sum(found) / len(who) - h / alpha
        models.append(x)
    return models
"""
SOURCES["fedopt"] = """
def train(clients, hyper, rounds):
    x, eta, l2, models = hyper["start"], hyper["step_size"], hyper["l2"], []
    n, lr, b1, b2, tau = (sum(len(y) for X, y in clients), hyper["server_step_size"], hyper["beta1"], hyper["beta2"],
                          hyper["epsilon"])
    m, v = 0 * x, tau ** 2 + 0 * x
    for t in range(rounds):
        delta = 0 * x
        for X, y in clients:
            u = x.copy()
            for i in range(hyper["local_steps"]):
                u = u - eta * (X.T @ (X @ u - y) / len(y) + l2 * u)
            delta = delta + len(y) / n * (u - x)
        old = v
        m = b1 * m + (1 - b1) * delta
        v = b2 * v + (1 - b2) * delta ** 2
        x = x + lr * m / (np.sqrt(v) + tau)
        models.append(x)
    return models
"""
SOURCES["afl"] = """
def train(clients, hyper, rounds):
    x, eta, l2, gamma = hyper["start"], hyper["step_size"], hyper["l2"], hyper["domain_step_size"]
    p, K, mean, models = np.ones(len(clients)) / len(clients), len(clients), 0 * hyper["start"], []
    for t in range(rounds):
        losses = np.array([np.mean((X @ x - y) ** 2) / 2 for X, y in clients])
        grads = [X.T @ (X @ x - y) / len(y) + l2 * x for X, y in clients]
        step = sum(w * g for w, g in zip(p, grads))
        mean = mean + (x - mean) / (t + 1)
        x = x - eta * step
        p = p * np.exp(gamma * losses)
        p = p / p.sum()
        models.append(mean)
    return models
"""
SOURCES["fedsam"] = (
    SOURCES["fedavg"]
    .replace(
        "                residual = X @ v - y\n",
        "                g = X.T @ (X @ v - y) / len(y) + l2 * v\n"
        '                u = v + hyper["rho"] * g / np.linalg.norm(g)\n                residual = X @ u - y\n',
    )
    .replace("+ l2 * v)", "+ l2 * u)")
)
STEP = "v = v - eta * (X.T @ residual / len(y) + l2 * v)"
YOGI = "v = np.maximum(v + (1 - b2) * delta ** 2 * np.sign(v - delta ** 2), 0)"
PLANTED = [  # family, what is replaced by what, the convention and the value that must be named
    ("fedavg", [("x = total / n", "x = total")], "weights", "n_k, models"),
    ("fedavg", [("len(y) * v", "v"), ("total / n", "total")], "weights", "1, models"),
    ("fedavg", [("len(y) * v", "len(y) * (v - x)"), ("total / n", "x + total")], "weights", "n_k"),
    ("fedavg", [("len(y) * v", "(v - x)"), ("total / n", "x + total")], "weights", "1"),
    ("fedavg", [("len(y) * v", "v / len(y)"), ("total / n", "total / sum(1 / len(y) for X, y in clients)")],
     "weights", "1/n_k"),
    ("fedavg", [("v - eta *", "v + eta *")], "direction", "ascent"),
    ("fedavg", [(" + l2 * v", "")], "ridge", "absent"),
    ("fedavg", [('range(hyper["local_steps"])', 'range(hyper["local_steps"] - 1)')], "steps", "fewer"),
    ("fedavg", [('range(hyper["local_steps"])', 'range(hyper["local_steps"] + 1)')], "steps", "more"),
    ("fedavg", [('range(hyper["local_steps"])', "range(1)")], "steps", "one"),
    ("fedavg", [("v = x.copy()", "v = own[k]")], "start", "own"),
    ("fedavg", [("v = x.copy()", "v = x.copy() if k == 0 else own[k - 1]")], "start", "previous"),
    ("fedprox", [(' + hyper["proximal_mu"] * (v - x)', "")], "prox", "absent"),
    ("fedprox", [('+ hyper["proximal_mu"]', '- hyper["proximal_mu"]')], "prox", "-(mu/2) d^2"),
    ("fedprox", [('hyper["proximal_mu"] * (v - x)', "(v - x)")], "prox", "d^2/2"),
    ("fedprox", [("(v - x)", "(v - before)")], "anchor", "stale"),
    ("fedprox", [("(v - x)", "(v - first)")], "anchor", "first"),
    ("fedprox", [("(v - x)", "v")], "anchor", "zero"),
    ("fedprox", [("(v - x)", "(v - own[k])")], "anchor", "own"),
    ("scaffold", [("- kept[k] + c)", "+ kept[k] - c)")], "control", "+c_i - c"),
    ("scaffold", [("- kept[k] + c)", "- kept[k])")], "control", "-c_i"),
    ("scaffold", [("- kept[k] + c)", "+ c)")], "control", "+c"),
    ("scaffold", [("- kept[k] + c)", "- kept[k] - c)")], "control", "-c_i - c"),
    ("scaffold", [("- kept[k] + c)", ")")], "control", "absent"),
    ("scaffold", [("(steps * eta)", "steps")], "divisor", "K"),
    ("scaffold", [("(steps * eta)", "eta")], "divisor", "eta"),
    ("scaffold", [(" / (steps * eta)", "")], "divisor", "1"),
    ("scaffold", [("kept[k] - c + (x", "kept[k] + c + (x")], "renewal", "c_i + c"),
    ("scaffold", [("kept[k] - c + (x", "kept[k] + (x")], "renewal", "c_i"),
    ("scaffold", [("kept[k] - c + (x", "(x")], "renewal", "without"),
    ("scaffold", [("(x - v) /", "(v - x) /")], "control", "+c_i - c"),
    ("scaffold", [("kept[k] = new", "pass")], "client memory", "lost"),
    ("scaffold", [("c + dc / K", "c + dc")], "server c", "sum"),
    ("scaffold", [("c + dc / K", "c - dc / K")], "server c", "-"),
    ("scaffold", [("c + dc / K", "dc / K")], "server c", "replaced"),
    ("scaffold", [("c + dc / K", "c")], "server c", "never"),
    ("scaffold", [("c, kept = 0 * x,", "stale = c = 0 * x; kept ="), ("- kept[k] + c)", "- kept[k] + stale)"),
                  ("kept[k] - c + (x", "kept[k] - stale + (x"), ("x, c = x +", "stale, x, c = c, x +")],
     "c read", "stale"),
    ("scaffold", [("lr * dx", "dx")], "server step", "ignored"),
    ("scaffold", [("lr * dx / len(who)", "lr * dx / len(who) * (K / len(who))")], "share", "twice"),
    ("feddyn", [("- kept[k] + alpha * (v - x)", "+ alpha * (v - x)")], "local terms", "no linear term"),
    ("feddyn", [("- kept[k] + alpha * (v - x)", "")], "local terms", "neither"),
    ("feddyn", [("- kept[k] + alpha", "+ kept[k] + alpha")], "local terms", "reversed"),
    ("feddyn", [("kept[k] = kept[k] - alpha", "kept[k] = kept[k] + alpha")], "local terms", "reversed"),
    ("feddyn", [("kept[k] = kept[k] - alpha", "kept[k] = -alpha")], "renewal", "replaced"),
    ("feddyn", [("sum(v - x for v in found)", "(sum(found) - x)")], "server state", "once"),
    ("feddyn", [(" - h / alpha", "")], "server state", "never"),
    ("feddyn", [("h = h - alpha", "h = h + alpha")], "server state", "+alpha"),
    ("fedopt", [("np.sqrt(v) + tau", "v + tau")], "epsilon", "no root"),
    ("fedopt", [("(1 - b2) * delta ** 2", "(1 - b2) * m ** 2")], "square", "of m"),
    ("fedopt", [("(1 - b2) * delta ** 2", "(1 - b2) * delta @ delta")], "square", "norm"),
    ("fedopt", [("np.sqrt(v)", "np.sqrt(old)")], "v read", "stale"),
    ("fedopt", [("b1, b2, tau =", "b2, b1, tau =")], "betas", "swapped"),
    ("fedopt", [("(u - x)", "(x - u)")], "delta", "reversed"),
    ("fedopt", [("lr * m", "m")], "server step", "ignored"),
    ("fedopt", [("lr * m / (np", "lr * m / (1 - b1 ** (t + 1)) / (np")], "bias correction", "m only"),
    ("fedopt", [("v = b2 * v + (1 - b2) * delta ** 2", YOGI)], "yogi sign", "reversed"),
    ("fedopt", [("m = b1 * m + (1 - b1) * delta", 'm = delta - hyper["momentum"] * m'),
                ("m / (np.sqrt(v) + tau)", "m")], "server", "negative momentum"),
    ("afl", [("gamma * losses", "-gamma * losses")], "domain direction", "descent"),
    ("afl", [("np.mean((X", "np.sum((X")], "domain loss", "sum"),
    ("afl", [("p = p * np.exp(gamma * losses)", "p = np.exp(gamma * losses)")], "ascent", "softmax"),
    ("afl", [("        p = p / p.sum()\n", "")], "ascent", "exponentiated, not normalised"),
    ("fedsam", [('v + hyper["rho"]', 'v - hyper["rho"]')], "perturbation", "downhill"),
    ("fedsam", [("/ np.linalg.norm(g)", "/ (g @ g)")], "perturbation", "squared norm"),
    ("fedsam", [('u = v + hyper["rho"] * g / np.linalg.norm(g)', "u = v")], "perturbation", "absent"),
]  # fmt: skip


def made(family, replaced=(), losses=("squared",), **abilities):
    """An implementation of one's own, with lines of its source replaced."""
    source = SOURCES[family]
    for old, new in replaced:
        assert old in source, (family, old)
        source = source.replace(old, new)
    names = {"np": np}
    exec(source, names)
    partial = "participants" in source
    return can(losses=losses, partial=partial, batches=(), **abilities)(names["train"])


@pytest.mark.slow
def test_own_implementations_match():
    assert set(SOURCES) <= set(FAMILIES)
    for family in SOURCES:
        found = conform(made(family), family)
        assert found.conforms and found.errors == (), (family, str(found))


SAME = [  # errors that have the same effect on every model, and are named together
    {"the client's control variate is missing", "clients forget c_i"},
    {"the control variates are not used", "clients never renew c_i"},
    {"the linear term has the wrong sign", "l_k + alpha (w_k - w_t)"},
]


def check_planted(family, replaced, convention, value):
    found = conform(made(family, replaced), family)
    says = next(c for c in FAMILIES[family].conventions if c.name == convention).value(value).says
    assert found.verdict == "deviates" and len(found.errors) == 1, (family, convention, value, str(found))
    named = found.errors[0].split("; or ")
    assert says in named and says in str(found), (family, convention, value, str(found))
    others = [other for other in named if other != says]
    same = [group for group in SAME if any(part in says for part in group)]
    assert all(any(part in other for group in same for part in group) for other in others), (says, others)


@pytest.mark.slow
def test_a_planted_error_is_named():
    check_planted(*PLANTED[0])


@pytest.mark.slow
def test_planted_errors_are_named():
    """Every third; the others, which take seconds each, are left to the campaign."""
    assert len(PLANTED) >= 40
    quick = [p for p in PLANTED if p[0] in ("scaffold", "fedsam") or p[3] == "once"] + PLANTED[1:3]
    for planted in quick[::3]:
        check_planted(*planted)


def planted_trial(rng):
    """Any of the planted errors."""
    planted = PLANTED[rng.integers(len(PLANTED))]
    check_planted(*planted)
    return {"family": planted[0], "convention": planted[2], "value": planted[3]}


def test_a_sum_over_rows_is_a_convention():
    found = conform(made("fedavg", [(" / len(y) + l2", " + l2")]), "fedavg")
    assert found.verdict == "matches" and found.reading["loss"] == "sum" and found.errors == ()


@pytest.mark.slow
def test_a_convention_that_is_not_the_papers_stands_in_the_first_line():
    @can(losses=("squared",), partial=False, batches=())
    def uniform(clients, hyper, rounds):
        problem = problem_of(clients, hyper)
        plain = Problem(problem.federation, problem.loss, l2=problem.l2, weights="uniform")
        method = FedAvg(step_size=hyper["step_size"], local_steps=hyper["local_steps"])
        return [s.w[0].copy() for t, s in iterate(method, plain, rounds=rounds, start=hyper["start"]) if t]

    found = conform(uniform, "fedavg")
    assert found.conforms and [line.value for line in found.found if line.departs] == ["1/K"]
    assert str(found).startswith("Not the published algorithm: clients weigh 1/K, all the same, instead of: clients")


@pytest.mark.slow
def test_what_no_reading_is_like_is_said():
    found = conform(made("fedavg", [("l2 * v)", "l2 * np.abs(v))")]), "fedavg")
    assert found.verdict == "no reading" and found.differs and not found.conforms
    found = conform(made("fedavg", [("v - eta *", "v - 1.01 * eta *")]), "fedavg")
    assert found.verdict == "deviates" and found.errors == ("the local step size is 1.01 times what is asked",)


def test_checks_hold_an_implementation_against_closed_forms():
    """An error that shows in long runs only: after round 20 the step is halved."""
    found = conform(made("fedavg", [("v - eta *", "v - (eta if t < 20 else eta / 2) *")]), "fedavg")
    assert found.verdict == "matches" and not found.conforms
    assert [c.holds for c in found.checks] == [True, True, True, False, True]
    assert "FAILS: long runs end" in str(found)


# ---------------------------------------------------------------- no false accusations


def correct_trial(rng):
    """A correct implementation of random conventions is read as what it is, and accused of nothing."""
    family, choices = conformance_random.draw(rng)
    found = conform(conformance_random.implementation(family, choices, rng), family)
    assert found.verdict == "matches" and found.errors == () and found.conforms, (family, choices, str(found))
    for name, chosen in choices.items():
        if name in found.reading:
            plain = {"renormalised", "plain", "Scheme II"}  # the same, where all weigh the same
            equal = {found.reading[name], chosen} <= plain and choices["weights"] == "1/K"
            assert found.reading[name] == chosen or equal, (family, choices, name, found.reading[name])
        else:
            seen = [v.value for v in found.untold.get(name, ())]
            assert not seen or chosen in seen, (family, choices, name, seen)
    return {"family": family, "untold": sorted(found.untold), "tried": found.tried}


@pytest.mark.slow
def test_conventions_of_toolkits_are_read():
    """Rows in order draw nothing, and are no coincidence of shuffled ones."""
    for family, given in (
        ("fedavg", {"work": "in order"}),
        ("fedavg", {"last batch": "filled", "draw": "stream", "share": "Scheme II"}),
        ("fedopt", {"server": "yogi", "v_0": "1e-6, m too"}),
        ("afl", {"output": "average of all"}),
    ):
        own = conformance_random.COMMON | conformance_random.OWN[family]
        choices = {name: values[0] for name, values in own.items()} | given
        if family == "afl":
            train = can(losses=("squared",), partial=False, batches=())(conformance_random.agnostic(choices))
        else:
            ways = ("epochs", "steps") if family == "fedavg" else ()
            train = can(losses=("squared",), batches=ways)(conformance_random.averaging(family, choices))
        found = conform(train, family)
        assert found.conforms and not found.untold, (family, given, str(found))
        assert {name: found.reading[name] for name in given} == given


# ---------------------------------------------------------------- floats


def counting(vectors, others=1.0, **abilities):
    """SCAFFOLD that says that it sends so many vectors and other numbers a client and round."""
    exact = made("scaffold")

    def train(clients, hyper, rounds):
        each = vectors * hyper["start"].size + others
        return [(w, each * (hyper["participants"] or len(clients))) for w in exact(clients, hyper, rounds)]

    return can(losses=("squared",), batches=(), floats=True, **abilities)(train)


def test_floats_are_counted_in_vectors():
    for vectors, others, holds in ((4, 0, True), (4, 4, True), (4, 5, False), (2, 1, False), (4.01, 0, False)):
        train = counting(vectors, others)
        (check,) = sent("scaffold", train, train.can, {})
        assert check.holds == holds and abs(check.distance - abs(vectors - 4)) < 1e-12
        assert f"{vectors} vectors and {others} other numbers are sent a client and round" in check.says
    assert set(FAMILIES) - set(VECTORS) == {"dane", "diana", "ef21", "fedlin", "mime", "qfedavg", "scaffnew"}
    assert set(VECTORS) < set(FAMILIES) and sent("fedlin", counting(4), counting(4).can, {}) == []
    train = counting(4, hyper={"l2": 1.0})
    assert sent("scaffold", train, train.can, {})[0].holds
    assert sent("scaffold", made("scaffold"), Abilities(), {}) == []
    alone = can(losses=("squared",), floats=True)(made("scaffold"))
    with pytest.raises(
        TypeError, match=r"must return pairs \(model, numbers sent\), as it declares floats; got ndarray"
    ):
        sent("scaffold", alone, alone.can, {})
    train = counting(4, -100)
    with pytest.raises(ValueError, match="one step, squared', floats must be"):
        sent("scaffold", train, train.can, {})


@pytest.mark.slow
def test_too_few_floats_do_not_conform():
    found = conform(counting(2), "scaffold")
    assert found.verdict == "matches" and not found.conforms and found.errors == ()
    assert "FAILS: 2 vectors and 1 other numbers are sent a client and round; published: 4 vectors" in str(found)
    assert conform(counting(4), "scaffold").conforms


# ---------------------------------------------------------------- what is declared


def test_single_precision():
    def train(clients, hyper, rounds):
        return exact(
            clients, {**hyper, "l2": np.float32(hyper["l2"]), "step_size": np.float32(hyper["step_size"])}, rounds
        )

    exact = made("fedavg")
    found = conform(can(losses=("squared",), partial=False, batches=(), float32=True)(train), "fedavg")
    assert found.conforms and found.tolerance == 3e-5 and 1e-9 < found.distance < 3e-6


def test_a_start_that_cannot_be_chosen_and_no_ridge():
    def train(clients, hyper, rounds):
        assert not hyper["start"].any() and hyper["l2"] == 0.0
        return exact(clients, hyper, rounds)

    exact = made("fedavg")
    found = conform(can(losses=("squared",), partial=False, batches=(), start=False, ridge=False)(train), "fedavg")
    assert found.conforms and "ridge" not in found.reading


def test_what_cannot_be_done_is_left_out():
    def train(clients, hyper, rounds):
        if hyper["participants"] or hyper["batch_size"] or hyper["loss"] != "squared":
            raise NotImplementedError("full batches of squared losses only")
        return exact(clients, hyper, rounds)

    exact = made("fedavg")
    found = conform(train, "fedavg")
    assert found.conforms and found.left_out["one step, logistic"] == "full batches of squared losses only"
    assert "sampling" not in found.reading


@pytest.mark.slow
def test_steps_by_passes_are_no_draws_with_replacement():
    """Batches of a data loader: the last row of three, alone, is also a batch of one row drawn twice."""

    @can(losses=("squared",), partial=False, batches=("steps",))
    def train(clients, hyper, rounds):
        rng, w, models = np.random.default_rng(hyper["seed"]), hyper["start"], []
        for _ in range(rounds):
            answers = []
            for X, y in clients:
                v, b, waiting = w, hyper["batch_size"] or len(y), []
                for _ in range(hyper["local_steps"]):
                    waiting = waiting or list(rng.permutation(len(y)))
                    at, waiting = waiting[:b], waiting[b:]
                    v = v - hyper["step_size"] * (X[at].T @ (X[at] @ v - y[at]) / len(at) + hyper["l2"] * v)
                answers.append(v)
            w = np.average(answers, axis=0, weights=[len(y) for _, y in clients])
            models.append(w)
        return models

    found = conform(train, "fedavg")
    assert found.conforms and found.reading["draw"] == "passes"


@pytest.mark.slow
def test_what_is_fixed_is_no_deviation():
    def train(clients, hyper, rounds, steps=None, l2=None, size=None):
        rng, w, models = np.random.default_rng(hyper["seed"]), hyper["start"], []
        if rounds > 100:
            raise NotImplementedError("at most 100 rounds")
        for _ in range(rounds):
            answers = []
            for X, y in clients:
                v = w
                for _ in range(steps or hyper["epochs"]):
                    order = rng.permutation(len(y))
                    b = size or hyper["batch_size"] or len(y)
                    for at in (order[i : i + b] for i in range(0, len(y), b)):
                        ridge = (hyper["l2"] if l2 is None else l2) * v
                        v = v - hyper["step_size"] * (X[at].T @ (X[at] @ v - y[at]) / len(at) + ridge)
                answers.append(v)
            w = np.mean(answers, axis=0)
            models.append(w)
        return models

    for given, batches in (({"steps": 2}, ()), ({"l2": 0.1}, ()), ({"size": 2}, ("epochs",))):
        names = {"steps": "epochs", "size": "batch_size", "l2": "l2"}
        fixed = {names[n]: v for n, v in given.items()}
        declared = can(losses=("squared",), partial=False, batches=batches, hyper=fixed)
        found = conform(declared(functools.partial(train, **given)), "fedavg")
        assert found.conforms, found
        assert ("one step, squared" in found.left_out) == (fixed == {"batch_size": 2})


def test_bad_implementations_are_refused_by_name():
    def answering(answer):
        return can(losses=("squared",), partial=False, batches=())(lambda clients, hyper, rounds: answer(hyper, rounds))

    with pytest.raises(TypeError, match="conform: train must be a function"):
        conform(3, "fedavg")
    with pytest.raises(ValueError, match="conform: family must be one of fedavg, "):
        conform(made("fedavg"), "fedfoo")
    with pytest.raises(ValueError, match=r"'one step, squared', must return a list of 1 models.*got 0"):
        conform(answering(lambda h, rounds: []), "fedavg")
    with pytest.raises(ValueError, match=r"must return models of shape \(3,\); got \(2,\)"):
        conform(answering(lambda h, rounds: [np.zeros(2)] * rounds), "fedavg")
    with pytest.raises(ValueError, match=r"must return; got ZeroDivisionError"):
        conform(answering(lambda h, rounds: 1 / 0), "fedavg")
    with pytest.raises(ValueError, match="can must be given fields of Abilities"):
        can(lasses=())
    with pytest.raises(ValueError, match="can: losses must be a tuple out of"):
        can(losses=("hinge",))
    with pytest.raises(TypeError, match="return arrays of real numbers"):
        conform(answering(lambda h, rounds: [np.zeros(3) + 1j] * rounds), "fedavg")
    with pytest.raises(ValueError, match="got the same array every time: append copies"):
        conform(answering(lambda h, rounds: [np.ones(3)] * rounds), "fedavg")
    with pytest.raises(ValueError, match=r"here hyper\['local_steps'\] is None, and work is counted in epochs"):
        train = lambda clients, h, rounds: [h["start"] * 0 + t + range(h["local_steps"])[0] for t in range(rounds)]  # noqa: E731
        conform(can(losses=("squared",), partial=False)(train), "fedavg")
    for given, message in (
        ({"batches": False}, "can: batches must be a tuple out of epochs, steps; got False"),
        ({"hyper": {"loss": "squared"}}, "can: hyper must name hyper-parameters of exams, .*; got 'loss'"),
        ({"hyper": {"stepsize": 1.0}}, "got 'stepsize'"),
        ({"hyper": {"epochs": 0}}, "can: hyper: epochs must be at least 1"),
        ({"hyper": {"step_size": "0.1"}}, "can: hyper: step_size must be a number"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            can(**given)
    models = lambda h, rounds: [(-1.0) ** t * h["start"] ** 3 for t in range(rounds)]  # noqa: E731
    found = conform(answering(models), "fedsgd")
    assert found.verdict == "no reading" and "(of the nearest reading)" in str(found) and not found.errors
    found = conform(answering(lambda h, rounds: [np.full(3, np.nan) for _ in range(rounds)]), "fedavg")
    assert found.verdict == "no reading" and json.loads(found.to_json())["distance"] is None


@pytest.mark.slow
def test_the_example_of_the_page_says_what_it_prints(capsys):
    page = (Path(__file__).parents[1] / "docs" / "conformance.md").read_text(encoding="utf-8")
    source = next(b for b in re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S) if "meant: w.copy()" in b)
    printed = re.search(r"^```text\n(.*?)^```", page, flags=re.M | re.S).group(1)

    def said(text):
        return [re.sub(r"[\d.]+e[-+]\d+", "#", line) for line in text.strip().splitlines()]

    exec(source, {})
    assert said(capsys.readouterr().out) == said(printed)
    exec(source.replace("v = w  # meant: w.copy()", "v = w.copy()"), {})
    mended = capsys.readouterr().out
    assert "As published: fedavg" in mended and mended.count("holds: ") == 5 and "Conventions" not in mended


@pytest.mark.slow
def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    head = "import numpy as np\nfrom fedconvex.conformance import can\n"
    decorator = "@can(losses=('squared',), partial=False, batches=())"
    (tmp_path / "mine_for_conform.py").write_text(head + decorator + SOURCES["fedavg"])
    wrong = SOURCES["fedavg"].replace("x = total / n", "x = total")
    (tmp_path / "wrong_for_conform.py").write_text(head + decorator + wrong)
    assert main(["conform", "mine_for_conform:train", "--family", "fedavg", "--json", "out.json"]) == 0
    assert "As published: fedavg" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["conforms"] is True
    assert main(["conform", "wrong_for_conform:train", "--family", "fedavg"]) == 1
    assert "the division by n is missing" in capsys.readouterr().out
    assert main(["conform", "mine_for_conform:nothing", "--family", "fedavg"]) == 2
    assert main(["conform", "mine_for_conform:train"]) == 2
    assert main(["conform"]) == 0
    assert "scaffold" in capsys.readouterr().out


@pytest.mark.parametrize("family", ["gossip", ["fedavg"], np.array("fedavg"), None])
def test_families_that_are_none_are_refused(family):
    with pytest.raises(ValueError, match="conform: family must be one of"):
        conform(lambda clients, hyper, rounds: [], family)
