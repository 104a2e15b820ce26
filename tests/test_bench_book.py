"""Books of problems: written and read, by this package and without it; what is damaged or crafted is refused."""

import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from campaigns import book_optima

from fedconvex._files import npz
from fedconvex.bench import SUITES, Case, Referee, book_cases, read_book, suite, write_book
from fedconvex.bench.book import gap_by_gradient, on_kinks
from fedconvex.bench.cases import digest
from fedconvex.cli import main

CASES = [
    Case("drawn", "linear", {"n_clients": 3, "n_features": 2, "zeta_star": 1.0}, "squared"),
    Case("texts", "sparse", {"n_clients": 3, "n_features": 9, "rows_per_client": 8}, "logistic", 0.1),
]
MORE = [
    Case("iris", "iris", {"clients": 3, "partition": "iid"}, "softmax", 0.1),
    Case("kinks", "logistic", {"n_clients": 2, "n_features": 2, "rows_per_client": 9}, "hinge", 0.5),
]


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    return write_book(CASES, tmp_path_factory.mktemp("book") / "two.npz")


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    return write_book(CASES + MORE, tmp_path_factory.mktemp("book") / "four.npz")


@pytest.mark.slow
def test_a_book_holds_rows_optima_and_constants(more):
    book = more
    entries = read_book(book)
    for entry, case, again in zip(entries, CASES + MORE, book_cases(book), strict=True):
        problem = case.problem()
        assert entry.sha256 == digest(problem.federation) == again.sha256
        value = float(problem.value(entry.optimum))
        assert entry.value == pytest.approx(value, abs=1e-14) and entry.gap <= 1e-9
        assert float(problem.value(0.9 * entry.optimum)) > value
        assert digest(again.problem().federation) == entry.sha256
        if entry.loss != "hinge":
            assert entry.constants["kappa"] == pytest.approx(problem.constants().kappa)
            assert entry.constants["L"] == pytest.approx(problem.constants().L)
    assert entries[3].constants["kappa"] is None
    first = Referee(book_cases(book)[0])
    assert float(first.gaps(entries[0].optimum[None])[1][0]) < 1e-12
    assert suite(book) == book_cases(book)


@pytest.mark.parametrize("case", [*CASES, pytest.param(MORE[0], marks=pytest.mark.slow)], ids=lambda c: c.name)
def test_the_gap_by_gradients_bounds_what_is_lost_and_is_tiny_at_the_optimum(case):
    """Near w*, seed 0: at least F(w) - F*, and at most some kappa times that; at w* rounding is all there is."""
    problem, rng = case.problem(), np.random.default_rng(0)
    best = problem.solve().w
    assert gap_by_gradient(problem, case.loss, best) < 1e-20
    for far in (1e-1, 1e-3):
        w = best + far * rng.standard_normal(best.shape)
        lost, bound = float(problem.value(w)) - float(problem.value(best)), gap_by_gradient(problem, case.loss, w)
        assert lost <= bound <= 1.1 * 2.0 * problem.constants().kappa * lost, (far, lost, bound)
    assert gap_by_gradient(problem, "hinge", best) == np.inf


def test_rows_on_their_kinks_are_put_there_exactly():
    """Around the optimum of a hinge, moved by 1e-7: the margins of 1 are 1 again, and the value is no larger."""
    problem = replace(MORE[1], l2=0.02).problem()
    best, fed = problem.solve().w, problem.federation
    moved = on_kinks(problem, best + 1e-7)
    near = np.abs(fed.y * (fed.X @ best) - 1.0) < 1e-5
    assert near.any() and np.abs(fed.y * (fed.X @ moved) - 1.0)[near].max() < 1e-14
    assert float(problem.value(moved)) <= float(problem.value(best)) + 1e-15 < float(problem.value(best + 1e-7))


@pytest.mark.slow
def test_optima_are_found_again_from_the_arrays_alone(more):
    for said, arrays in book_optima.problems(more):
        assert book_optima.examine(said, arrays)["above the bound"] <= 1e-9
        worse = arrays | {"optimum": arrays["optimum"] + 1e-3}
        with pytest.raises(AssertionError):
            book_optima.examine(said, worse)


def test_importers_of_the_page_read_it_without_the_package(book):
    page = Path(__file__).resolve().parents[1] / "docs" / "book.md"
    if not page.exists():
        pytest.skip("no pages beside the tests")
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert "fedconvex" not in code
    exec(code, names := {})
    for p, case in zip(names["problems"](book), CASES, strict=True):
        problem = case.problem()
        rows = problem.federation.X
        np.testing.assert_array_equal(p["X"], rows.toarray() if p["sparse"] else rows)
        given = names["for_benchopt"](book, p["name"])
        assert given["value"] == pytest.approx(float(problem.value(given["optimum"])), abs=1e-14)
    agents = names["for_decent_bench"](book, "drawn")
    w = next(names["problems"](book))["optimum"]
    g = sum(a["A"].T @ (a["A"] @ w - a["b"]) for a in agents)
    assert len(agents) == 3 and np.abs(g).max() < 1e-8
    agents, w = names["for_decent_bench"](book, "texts"), names["for_benchopt"](book, "texts")["optimum"]
    slopes = [-a["A"].T @ (a["b"] / (1.0 + np.exp(a["b"] * (a["A"] @ w)))) + a["l2"] * w for a in agents]
    assert len(agents) == 3 and np.abs(sum(slopes)).max() < 1e-8 < np.abs(slopes[0]).max()


def changed(book, change):
    """The content of a book after a change of its arrays and its index."""
    with np.load(book) as found:
        arrays = {name: found[name] for name in found}
    index = json.loads(arrays["index"].tobytes())
    change(arrays, index)
    arrays["index"] = np.frombuffer(json.dumps(index).encode(), dtype=np.uint8)
    return npz(arrays)


def _set(name, at, value):
    def change(arrays, index):
        arrays[name] = arrays[name].copy()
        arrays[name][at] = value

    return change


def _replace(name, value):
    return lambda arrays, index: arrays.update({name: value(arrays[name]) if callable(value) else value})


def _say(field, value, number=0):
    return lambda arrays, index: index["problems"][number].update({field: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set("p0_X", (0, 0), 9.0), r"drawn: rows must have the SHA-256 .* they were changed"),
        (_set("p0_y", 0, np.nan), "drawn|nan"),
        (_set("p0_optimum", 0, 9.0), "drawn: optimum must have the value"),
        (_set("p0_optimum", 0, np.inf), "drawn: optimum must be a finite model"),
        (_replace("p0_optimum", np.zeros(3)), r"optimum must be a finite model of shape \(2,\)"),
        (_set("p0_weights", 0, 0.9), "drawn: weights must be the shares of rows"),
        (_replace("p0_weights", np.ones(2)), "drawn: weights must be the shares of rows"),
        (_set("p0_ptr", 1, 1 << 60), "drawn: ptr must rise from 0 to 150"),
        (_set("p0_ptr", 1, -5), "drawn: ptr must rise from 0 to 150"),
        (_replace("p0_ptr", lambda a: a.astype(float)), "drawn: ptr must hold whole numbers"),
        (_replace("p0_X", lambda a: a.astype("S9")), "drawn: X must hold floats"),
        (_set("p1_indices", 0, 1 << 30), "texts: indices must be columns, 0 to 8"),
        (_set("p1_indices", 0, -1), "texts: indices must be columns, 0 to 8"),
        (_set("p1_indptr", 1, 1 << 30), "texts: indptr must rise"),
        (_say("columns", 1 << 40, 1), "texts: columns must be a whole number"),
        (_say("columns", True, 1), "texts: columns must be a whole number"),
        (_say("gap", 1.0), "gaps up to 1e-09"),
        (_say("gap", float("nan")), "say name, loss"),
        (_say("value", -1.0), "drawn: optimum must have the value"),
        (_say("loss", "__import__"), "loss must be one of"),
        (_say("name", "texts"), "names of their own"),
        (_say("name", 7), "say name, loss"),
        (_say("l2", "0"), "say name, loss"),
        (_say("l2", 0.5), "drawn: optimum must have the value"),
        (lambda a, index: index.update(format="fedconvex book 9"), "its format is 'fedconvex book 1'"),
        (lambda a, index: index.update(problems=3), "list problems"),
        (lambda a, index: a.pop("p0_y"), "have the arrays X, y, ptr, weights, optimum; got no y"),
    ],
)
def test_what_was_changed_is_refused(book, tmp_path, change, words):
    file = tmp_path / "bad.npz"
    file.write_bytes(changed(book, change))
    with pytest.raises((ValueError, TypeError), match=words):
        read_book(file)


def test_files_that_are_no_books_are_refused(book, tmp_path):
    file = tmp_path / "bad.npz"
    for content in (b"", b"PK", book.read_bytes()[:-40], npz({"X": np.ones(2)}), npz({"index": np.ones(2)})):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"book bad\.npz"):
            read_book(file)
    file.write_bytes(npz({"index": np.frombuffer(b"[" * 100_000, dtype=np.uint8)}))
    with pytest.raises(ValueError, match="nested too deeply"):
        book_cases(file)
    np.savez(file, index=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        book_cases(file)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:  # 4 KB that claim to be 4 TB
        head = b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (4398046511104,), }"
        archive.writestr("index.npy", head.ljust(127) + b"\n" + b"0" * 4_000_000)
    with pytest.raises(ValueError, match=r"book bad\.npz"):
        book_cases(file)
    with pytest.raises(ValueError, match=r"problem must be one of the book; got 'none'"):
        Case("none", str(book), {"problem": "none"}, "squared").problem()


def test_cases_that_cannot_be_certified_are_not_written(tmp_path):
    with pytest.raises(ValueError, match=r"end in \.npz"):
        write_book(CASES[:1], tmp_path / "book.json")
    with pytest.raises(ValueError, match="named differently"):
        write_book(CASES[:1] * 2, tmp_path / "book.npz")
    with pytest.raises(ValueError, match="one model for all clients"):
        write_book(SUITES["agnostic"][:1], tmp_path / "book.npz")
    for cases, file in ((3, "book.npz"), (["drawn"], "book.npz"), (CASES[:1], 7)):
        with pytest.raises(TypeError, match="write_book"):
            write_book(cases, file if file == 7 else tmp_path / file)
    assert not list(tmp_path.iterdir()) and len(SUITES["book"]) == 61


@pytest.mark.slow
def test_the_command_writes_checks_and_compares(book, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["book", str(book)]) == 0
    assert "2 problems agree with their digests and optima" in capsys.readouterr().out
    settings = 'data = "linear"\nloss = "squared"\nsettings = {n_clients = 3, n_features = 2}\n'
    Path("one.toml").write_text(f'[[problem]]\nname = "p"\n{settings}')
    assert main(["book", "--suite", "one.toml", "--out", "one.npz"]) == 0
    assert main(["bench", "--book", "one.npz", "--solvers", "fedsgd", "--target", "1e-2", "--repeats", "1"]) == 0
    assert "1 of 1" in capsys.readouterr().out
    assert main(["book"]) == 2 and main(["book", "one.npz", "--suite", "first"]) == 2
    Path("one.npz").write_bytes(changed("one.npz", _set("p0_X", (0, 0), 9.0)))
    assert main(["book", "one.npz"]) == 2 and main(["bench", "--book", "one.npz", "--solvers", "fedsgd"]) == 2
