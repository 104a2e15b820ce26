"""The page on deployment: its files and commands as printed, by processes of their own on this machine."""

from __future__ import annotations

import ast
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE, ANALYSIS = ROOT / "docs" / "deploy.md", ROOT / "docs" / "analyse_sites.md"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PAGE.exists(), reason="no docs beside the tests")]


def blocks(kind, page=PAGE):
    return re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def files(page=PAGE):
    """A page's files by name, as their first lines say."""
    named = {re.match(r"# (\w+\.py)", text): text for text in blocks("python", page)}
    return {match[1]: text for match, text in named.items() if match}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_the_pages_files_and_commands_do_what_it_says(tmp_path):
    port = free_port()
    assert set(files()) == {"agreed.py", "invent.py", "hospital.py", "server.py"}
    for name, text in files().items():
        (tmp_path / name).write_text(text.replace("5555", port))
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = os.environ | {"PYTHONPATH": str(ROOT), "PATH": here, "NUMBA_DISABLE_JIT": "1"}
    programs = f'python() {{ {sys.executable} "$@"; }}; fedconvex() {{ python -m fedconvex "$@"; }}; set -e\n'
    commands = [text for text in blocks("sh") if "python" in text or text.startswith("fedconvex")]
    assert len(commands) == 2
    certificates = next(text for text in blocks("sh") if "fedconvex:site:" in text)
    done = subprocess.run(
        ["bash", "-c", programs + certificates + commands[0] + "wait\n" + commands[1]],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = re.search(r"^```\n(CONVERGED.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)[1]
    number = re.compile(r"\d\.\d+e-\d+")  # of the gap: its digits may differ
    assert number.sub("", shown) in number.sub("", done.stdout)
    assert float(number.search(done.stdout)[0]) <= 1e-6
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 121


def test_the_pages_study_goes_from_tables_to_predictions(tmp_path):
    """Its commands as printed, at three hospitals of one machine, each with a file of its own settings."""
    exec(compile(files()["invent.py"].replace('open(f"', f'open(f"{tmp_path}/'), "invent.py", "exec"), {})
    lines = [line for text in blocks("sh") for line in text.splitlines() if line.startswith("fedconvex ")]
    draft, init, request, approve, check, serve, join, audit, predict = (re.sub(r"\s+#.*", "", v) for v in lines[:9])
    env = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_DISABLE_JIT": "1"}

    def started(line, name="north", *more):
        words = [w.replace("north", name).replace("site.toml", f"{name}.toml") for w in line.split()[1:]]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-m", "fedconvex", *words, *more], cwd=tmp_path, env=env, **pipes)

    def done(process):
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, out + err
        return out

    study, names = tmp_path / "study.toml", ("north", "east", "south")
    done(started(draft))
    text = study.read_text().replace('"..."', '"east", "south"').replace("5555", free_port())
    study.write_text(text)
    shown = re.search(r"SHA256:[0-9A-F:]+", done(started(init)))[0]
    study.write_text(text.replace('# authority = "SHA256:..."', f'authority = "{shown}"'))
    for name in names:
        done(started(request, name))
        done(started(approve, name))
        own = f'[site]\nname = "{name}"\ntable = "{name}.csv"\nstate = "s_{name}"\nresults = "r_{name}"\n'
        (tmp_path / f"{name}.toml").write_text(own + "[limits]\nshare = 1.1\n")
        assert "rows take part" in done(started(check, name))
    server, sites = started(serve), [started(join, name, "--yes") for name in names]
    assert "took part: north, east, south" in done(server)
    assert all("ended" in done(site) for site in sites)
    assert "numbers answered" in done(started(audit))
    assert "Wrote 120 predictions" in done(started(predict))


def test_the_certificate_holds_and_the_model_is_that_of_all_rows(tmp_path, monkeypatch):
    """The page's own problem, solved from all rows at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("agreed.py", "invent.py"):
        (tmp_path / name).write_text(files()[name])
    exec(compile(files()["invent.py"], "invent.py", "exec"), {})
    spare = {}
    exec(compile(files()["agreed.py"], "agreed.py", "exec"), spare)
    from fedconvex import Federation, run
    from fedconvex.remote import Site, in_process

    names = spare["roster"].federation.labels.tolist()
    parts = [spare["rows_of"](f"{name}.csv") for name in names]
    sites = [Site(spare["method"], spare["make"], part) for part in parts]
    result = run(spare["method"], spare["roster"], transport=in_process(sites), rounds=500, tol=1e-6)
    best = spare["make"](Federation.from_clients([(p.X, p.y) for p in parts], labels=names)).solve()
    off = result.trace.value[-1] - best.value
    assert 0.0 < off <= result.gap <= 1e-6
    assert np.linalg.norm(result.w - best.w) <= np.sqrt(2.0 * result.gap / 0.1)


def test_the_flower_app_agrees_with_the_page():
    """The file that all have is the same, but for its docstring."""
    app = ast.parse((ROOT / "examples" / "flower_app" / "hospitals" / "agreed.py").read_text())
    assert ast.dump(ast.Module(app.body[1:], [])) == ast.dump(ast.Module(ast.parse(files()["agreed.py"]).body, []))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_the_pages_analysis_is_that_of_all_rows(tmp_path):
    """Its three files, by processes of their own behind certificates, with secure sums and missing cells."""
    from fedconvex.analysis import analyse

    port, rng, table = free_port(), np.random.default_rng(7), {}
    for name, n in (("north", 120), ("east", 80), ("south", 200)):
        age, dose = rng.normal(60, 12, n).round(), rng.normal(5, 2, n).round(1)
        ward, gap = rng.choice(["medical", "other", "surgical"], n), 3
        ill = np.where(0.05 * (age - 60) + (ward == "other") + rng.logistic(size=n) > 0.0, "yes", "no")
        own = {"age": age, "dose": dose, "ward": ward, "ill": ill}
        rows = [*zip(*own.values(), strict=True), *[(50.0, "", "other", "no")] * gap]
        lines = [",".join(map(str, row)) for row in [tuple(own), *rows]]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
        for column, cells in (own | {"hospital": np.full(n, name)}).items():
            table[column] = np.concatenate([table.get(column, cells[:0]), cells])
    for name, text in files(ANALYSIS).items():
        (tmp_path / name).write_text(text.replace("5555", port))
    (tmp_path / "server.py").open("a").write("    print(repr(found.estimates.tolist()), found.certificate)\n")
    certificates = next(text for text in blocks("sh") if "fedconvex:site:" in text)
    run = "for name in north east south; do python hospital.py $name localhost & done; python server.py; wait"
    done = subprocess.run(
        ["bash", "-c", f'python() {{ {sys.executable} "$@"; }}; set -e\n{certificates}{run}'], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True,
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3 of 123 rows left out for missing cells: dose 3" in done.stderr
    *_, last = done.stdout.strip().splitlines()
    estimates, certificate = last.rsplit(" ", 1)
    here = analyse(table, "ill", "hospital", reference={"ward": "other"}, features=["age", "dose", "ward"])
    away = np.abs((np.array(ast.literal_eval(estimates)) - here.estimates) / here.standard_errors).max()
    assert away <= float(certificate) < 1e-8
    assert "chi2" in done.stdout or "df=2" in done.stdout
