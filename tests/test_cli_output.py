"""What the command line writes and prints: places are tried first, nothing is lost, names cannot command a terminal."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, Squared, _files, run
from fedconvex.cli import main, output
from fedconvex.report import convergence_plot, fairness_plot, format_table
from fedconvex.report.fairness import domain_scores
from fedconvex.verify import Outcome, VerificationReport

EVIL = "a\x1b[31m\x07\u202eb\u200f\r\nc\x9b"
SHOWN = r"a\x1b[31m\x07\u202eb\u200f\r\nc\x9b"


def fails(capsys, *argv):
    assert main(list(map(str, argv))) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fedconvex: error: ")
    assert captured.err.count("\n") == 1 or "a decision" in captured.err  # columns are listed
    assert "Traceback" not in captured.err
    return captured.err


# ---------------------------------------------------------------- places


OPTIONS = {
    "--plot": ("solve", "file"),
    "--checkpoint": ("solve", "file"),
    "--save": ("solve", "folder"),
    "--report": ("verify", "folder"),
    "--out": ("reproduce", "folder"),
}


@pytest.fixture
def idle(monkeypatch):
    """Fail if work begins before the places are tried."""
    for work in ("cli.solve.prepare", "verify.verify_suite", "papers.scaffold_quadratics.run"):
        monkeypatch.setattr(f"fedconvex.{work}", lambda *a, **k: pytest.fail("the work began"), raising=False)


def places(folder, kind):
    """Names at which nothing can be written."""
    (folder / "taken").write_text("")
    (folder / "full.png").mkdir()
    bad = ["", "\0.png", "a" * 300 + ".png", folder / "taken" / "x.png"]
    return bad + ([folder / "full.png", folder / "none" / "x.png"] if kind == "file" else [folder / "taken"])


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("which", range(6))
def test_places_are_tried_before_the_work(option, which, capsys, tmp_path, idle):
    command, kind = OPTIONS[option]
    bad = places(tmp_path, kind)
    if which >= len(bad):
        pytest.skip("folders are made where they are missing")
    argv = [command, *(["scaffold-quadratics"] if command == "reproduce" else []), option, bad[which]]
    assert option in fails(capsys, *argv)
    assert {p.name for p in tmp_path.iterdir()} == {"taken", "full.png"}


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser writes anywhere")
@pytest.mark.parametrize("option", OPTIONS)
def test_folders_that_are_read_only(option, capsys, tmp_path, idle):
    (tmp_path / "locked").mkdir(mode=0o500)
    command, kind = OPTIONS[option]
    name = tmp_path / "locked" / ("x.png" if kind == "file" else "x")
    argv = [command, *(["scaffold-quadratics"] if command == "reproduce" else []), option, name]
    assert "can be written to" in fails(capsys, *argv)


def test_a_disk_that_refuses(monkeypatch):
    """As above, for the superuser too: here writing itself fails."""

    def refuse(*args):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ValueError, match=r"--save must be a folder that can be .*Read-only file system"):
        _files.check_folder("--save", ".")


def test_an_experiment_keeps_its_default_folder_only_where_none_is_named(capsys, tmp_path, monkeypatch, idle):
    monkeypatch.chdir(tmp_path)
    fails(capsys, "reproduce", "scaffold-quadratics", "--out", "")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- what fails last loses nothing


def stub(monkeypatch, **found):
    """`fedconvex verify` finds what we like."""
    found = SimpleNamespace(violated=True, inconclusive=False, **found)
    monkeypatch.setattr("fedconvex.verify.verify_suite", lambda *a, **k: found)
    monkeypatch.setattr("fedconvex.cli.verify._with_counterexamples", lambda found, *a: found)
    monkeypatch.setattr("fedconvex.report.checks.as_table", lambda *a, **k: "a table")


def test_a_page_that_fails_does_not_lose_the_table(capsys, monkeypatch, tmp_path):
    stub(monkeypatch)

    def full(*args):
        raise OSError(28, "No space left on device", "index.html")

    monkeypatch.setattr("fedconvex.report.page.write_page", full)
    assert main(["verify", "--no-search", "--theorem", "svrg", "--report", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert "a table" in said.out
    assert "Wrote" not in said.out
    assert "No space left on device" in said.err


def test_writing_fails_after_what_is_printed():
    order = []

    def files():
        order.append("first")
        yield "first"
        raise OSError("full")

    def report():
        with output.writing(files()) as written:
            order.append(tuple(written))

    with pytest.raises(OSError, match="full"):
        report()
    assert order == ["first", ("first",)]


@pytest.mark.compiled(only="a whole command")
def test_a_plot_that_fails_does_not_lose_the_summary(capsys, monkeypatch, tmp_path):
    def fails_to_draw(*args, **kwargs):
        raise RuntimeError("no ink")

    monkeypatch.setattr("fedconvex.report.convergence_plot", fails_to_draw)
    argv = ["solve", "breast_cancer", "--clients", "3", "--rounds", "2", "--plot", str(tmp_path / "x.png")]
    assert main([*argv, "--save", str(tmp_path)]) == 70
    said = capsys.readouterr()
    assert "Objective" in said.out
    assert "trace.csv" in said.out
    assert "no ink" in said.err


def small(names=("a", "b")):
    return Problem(Federation.from_arrays(np.ones((4, 1)), [0.0, 1.0, 2.0, 5.0], np.repeat(names, 2)), Squared())


@pytest.mark.slow
def test_dollars_are_drawn_as_dollars(tmp_path):
    """Unbalanced mathematics stopped matplotlib: a file name or a client's name with a dollar lost the figure."""
    problem, odd = small(), r"$\frac{$"
    result = run(FedAvg(step_size=0.1), problem, rounds=3)
    convergence_plot({odd: result}, tmp_path / "a.png", problem=problem, title=f"{odd} {EVIL}")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_dollars_of_domains_are_drawn_as_dollars(tmp_path):
    odd = r"$\frac{$"
    fed = Federation.from_arrays(np.eye(4), np.array([1.0, -1.0, 1.0, -1.0]), list("aabb"), [odd, odd, "b", "b"])
    scores = domain_scores(Problem(fed, Logistic(), l2=0.1), np.zeros(4))
    fairness_plot({odd: scores}, tmp_path / "a.png", title=odd)
    assert (tmp_path / "a.png").stat().st_size > 1000


# ---------------------------------------------------------------- names


def test_messages_and_tables_escape_names(capsys):
    assert SHOWN in format_table(["client\x1b"], [[EVIL]])
    assert r"client\x1b" in format_table(["client\x1b"], [[EVIL]])
    output.say(f"one\ntwo {EVIL}".replace("\n", "|"))
    assert "\x1b" not in capsys.readouterr().out
    err = fails(capsys, "solve", f"no-such-{EVIL}.csv", "--target", "y")
    assert not any(c in err for c in "\x1b\x07\u202e\u200f\x9b\r")
    err = fails(capsys, f"sol{EVIL}ve")
    assert not any(c in err for c in "\x1b\x07\u202e\u200f\x9b\r")


@pytest.mark.compiled(only="a whole command")
@pytest.mark.slow
def test_a_summary_escapes_names_of_clients_columns_classes_and_files(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    rng = np.random.default_rng(0)
    evil = EVIL.replace("\r\n", "")
    lines = [f"x,{evil}y,{evil}c"]
    lines += [f"{rng.normal()},{evil}{'yes' if rng.random() < 0.5 else 'no'},{evil}{k % 3}" for k in range(40)]
    file = tmp_path / f"{evil} $x.csv"
    file.write_text("\n".join(lines) + "\n")
    argv = ["solve", str(file), "--target", f"{evil}y", "--client", f"{evil}c", "--plot", str(tmp_path / "a.png")]
    assert main([*argv, "--save", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    shown = SHOWN.replace(r"\r\n", "")
    assert said.out.count(shown) > 5
    assert all(c.isprintable() or c == "\n" for c in said.out + said.err)
    longest = max((line for line in said.out.splitlines() if "/" not in line), key=len)  # paths are not cut
    assert len(longest) <= 60, longest


# ---------------------------------------------------------------- width


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("columns", "expected"), [("60", 60), ("200", 140), ("10", 40), ("x", None), (None, None)])
def test_tables_keep_to_columns(monkeypatch, columns, expected):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert output.fits() == expected
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert output.fits() == (expected or output.width())


def test_wide_tables_are_folded_and_complete():
    headers = ["model", "objective F", "worst client's loss", "worst client's accuracy"]
    rows = [["each client alone, mean of 10", 0.123456, 1.5, 0.25], ["w" * 50, 1e-300, float("inf"), None]]
    whole = format_table(headers, rows)
    assert max(map(len, whole.splitlines())) > 100
    for room in (40, 50, 60, 80):
        text = format_table(headers, rows, width=room)
        assert max(map(len, text.splitlines())) <= room
        assert text.count("w") == whole.count("w")  # folded, not cut
        assert all(word in text for word in ("0.1235", "1e-300", "inf", "accuracy", "alone,"))
    assert format_table(headers, rows, width=300) == whole


def test_numbers_are_never_cut():
    rows = [[1234567890123456789, 1e-300]]
    assert format_table(["a", "b"], rows, width=5) == format_table(["a", "b"], rows)


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    "argv",
    [
        ["solve", "x.csv", "--target", "a", "--target", "b"],
        ["solve", "--l2", "1", "--l2", "2"],
        ["solve", "--seed", "1", "--seed", "1"],
        ["verify", "--report", "a", "--report", "b"],
        ["reproduce", "afl-toy", "--seed", "1", "--seed", "2"],
    ],
)
def test_options_that_take_one_value_are_given_once(argv, capsys):
    assert f"{argv[-2]} must be given once" in fails(capsys, *argv)


@pytest.mark.parametrize("option", [["--l2", "0.01"], ["--weights", "size"], ["--no-intercept"], ["--clients", "3"]])
def test_verify_refuses_options_of_data_that_are_not_there(option, capsys, idle):
    """Those equal to their default were ignored."""
    assert f"along with data options; got {option[0]}" in fails(capsys, "verify", *option)


@pytest.mark.parametrize("text", ["1\0", "\0", "0x10", "1_000", "１", "nan", "1e400", " "])
@pytest.mark.parametrize("option", ["--l2", "--rounds", "--tol"])
def test_odd_numbers(option, text, capsys):
    assert option in fails(capsys, "solve", option, text)


def test_warnings_are_one_line_without_source(capsys, monkeypatch):
    import warnings

    def warn(*args, **kwargs):
        warnings.warn("the rows\nare odd", UserWarning, stacklevel=1)
        return SimpleNamespace(violated=False, inconclusive=False)

    stub(monkeypatch)
    monkeypatch.setattr("fedconvex.verify.verify_suite", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["verify", "--no-search", "--theorem", "svrg"]) == 0
    assert capsys.readouterr().err == "fedconvex: warning: the rows are odd\n"


# ---------------------------------------------------------------- words


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "wards.csv"
    file.write_text("x,y,c\n1,0,a\n2,1,a\n3,0,b\n1,1,b\n")
    return file


OWNED = ("--target", "y", "--client", "c")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--target", "z", "--client", "c"], "error: wards.csv must have a column 'z'"),
        (["--target", "y", "--clients", 5], "error: --clients must be at most the number of rows 4; got 5"),
        (["--target", "y", "--clients", 5, "--partition", "iid"], "error: --clients must be at most"),
        (["--target", "y", "--clients", 2, "--partition", "shards:0"], "--partition shards:PER_CLIENT must be at"),
        (["--target", "y", "--clients", 2, "--partition", "shards:9"], "--clients times the shards of a client must"),
        (["--target", "y", "--clients", 2, "--partition", "dirichlet:0"], "--partition dirichlet:ALPHA must be a"),
        (["--target", "y", "--clients", 2, "--partition", "iid:"], "be followed by a colon and a number, or by none"),
        (["--target", "y", "--client", "y"], "target must be another column than client, domain and weight"),
    ],
)
def test_messages_speak_of_options_and_columns(argv, words, capsys, table):
    err = fails(capsys, "solve", table, *argv)
    assert words in err
    assert not re.search(r"load_table|partition_|=|Federation|Error|None", err)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--participation", 9], "--participation must be at most the number of clients 2; got 9"),
        (["--method", "sgd", "--batch-size", 0], "--batch-size must be at least 1"),
        (["--checkpoint", "{table}"], "wards.csv must be a checkpoint of a run; got a damaged or foreign file: delete"),
    ],
)
def test_messages_of_methods_speak_of_options(argv, words, capsys, table):
    err = fails(capsys, "solve", table, *OWNED, *(str(a).format(table=table) for a in argv))
    assert words in err
    assert not re.search(r"FedAvg|SCAFFOLD|=|run:|replacement|Error", err)


@pytest.mark.parametrize(
    ("name", "words"), [("", "got an empty name"), (os.devnull, "no regular file"), (".", "a folder"), ("\0", "exist")]
)
def test_data_that_are_no_file(name, words, capsys):
    assert words in fails(capsys, "solve", name, "--target", "y")


def test_a_number_with_nul_is_none(capsys, tmp_path):
    """NumPy drops NUL at the end of a text: the cell was read as 1."""
    file = tmp_path / "nul.csv"
    file.write_text("x,y,c\n1\0,0,a\n2,1,a\n3,0,b\n1,1,b\n")
    assert "no NUL characters; got one in line 2" in fails(capsys, "solve", file, *OWNED)


def test_mixed_cells(capsys, table):
    table.write_text(table.read_text().replace("3,0,b", "three,0,b"))
    said = fails(capsys, "solve", table, *OWNED)
    assert "\n  'x': numbers and text: 1 in row 1 and 'three' in row 3\nsettled by: --as-category x\n" in said


def test_a_file_of_another_encoding(capsys, tmp_path):
    file = tmp_path / "latin.csv"
    file.write_bytes("x,y,c\n1,0,\xe9\n".encode("latin1"))
    assert "UTF-8 text; got byte 0xe9: name another with --encoding, such as cp1252" in fails(
        capsys, "solve", file, *OWNED
    )


@pytest.mark.parametrize("body", ["def f(:", "1 / 0", "raise SystemExit(3)", "import nothing_at_all", "X = 3"])
def test_a_module_of_the_user_that_fails(body, capsys, table, monkeypatch):
    """Its errors were internal errors of the program, with its exit status."""
    (table.parent / "theirs.py").write_text(body)
    monkeypatch.chdir(table.parent)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    assert "--loss must name" in fails(capsys, "solve", table, *OWNED, "--loss", "theirs:X")
    sys.modules.pop("theirs", None)


# ---------------------------------------------------------------- Ctrl-C


def interrupt():
    signal.raise_signal(signal.SIGINT)


def swallow():
    """As a callback of the compiler does."""
    with contextlib.suppress(KeyboardInterrupt):
        interrupt()
    raise RuntimeError("no compiled object yet")


@pytest.mark.parametrize("way", [interrupt, swallow])
def test_ctrl_c_is_no_error(way, capsys, monkeypatch):
    """Raised in a callback of the compiler it is lost, and what fails then was reported as an internal error."""
    stub(monkeypatch)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr("fedconvex.verify.verify_suite", lambda *a, **k: way())
    try:
        assert main(["verify", "--no-search", "--theorem", "svrg"]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "fedconvex: interrupted: nothing was saved\n"


def test_the_search_for_counterexamples_has_a_progress_of_its_own(monkeypatch):
    """Two theorems are violated, one of them twice: the line only grows, and ends where there is nothing left to do."""
    from fedconvex.cli.verify import _with_counterexamples

    bad = SimpleNamespace(outcome=Outcome.VIOLATED)
    none = SimpleNamespace(has_interval=False)
    suite = [SimpleNamespace(instance=SimpleNamespace(tiny=None)) for _ in range(3)]
    findings = tuple(SimpleNamespace(theorem=n, verdict=bad, worst=none, outcome=bad.outcome) for n in "aab")
    seen = []
    monkeypatch.setattr("fedconvex.cli.verify.progress_line", lambda: lambda share, doing: seen.append((share, doing)))
    home = sys.modules["fedconvex.verify.printed"]  # the package exports a function of that name
    monkeypatch.setattr(home, "counterexample", lambda theorem, check, tell: tell(0.5, theorem))
    report = VerificationReport(findings, {}, (), None, (), {}, 0.0)
    _with_counterexamples(report, suite, {"a": "first", "b": "second"})
    assert seen == [(1 / 8, "first"), (3 / 8, "first"), (5 / 8, "second"), (1.0, "done")]


def test_verify_has_one_progress_that_only_grows(monkeypatch):
    """Over the search, the checks and the exponents, and it ends with the last of them."""
    seen = []

    def checked(suite, progress, **rest):
        for share in (0.0, 0.5, 1.0):
            progress(share, "checking")
        return VerificationReport((), {"svrg": None}, (), None, (), {}, 0.0)

    monkeypatch.setattr("fedconvex.cli.verify.progress_line", lambda: lambda share, doing: seen.append((share, doing)))
    monkeypatch.setattr("fedconvex.verify.own_theorems.searched", lambda *given: given[-1](0.5, "searching") or ())
    monkeypatch.setattr("fedconvex.verify.verify_suite", checked)
    monkeypatch.setattr("fedconvex.verify.exponents", lambda *given, seed: None)
    monkeypatch.setattr("fedconvex.cli.verify.say", lambda *given: None)
    monkeypatch.setattr("fedconvex.report.checks.as_table", lambda *given, details: "")
    for more, count in (([], 4), (["--power"], 6), (["--no-search"], 3)):
        seen.clear()
        assert main(["verify", "--theorem", "svrg", *more]) == 0
        shares = [share for share, _ in seen]
        assert shares == sorted(shares) and shares[-1] == 1.0 and shares.count(1.0) == 1
        assert len(seen) == count and any(doing == "searching" for _, doing in seen) == ("--no-search" not in more)
