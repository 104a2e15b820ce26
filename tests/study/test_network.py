"""Studies over connections with certificates, and from the command line."""

from __future__ import annotations

import io
import json
import socket
from contextlib import redirect_stdout
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from fedconvex.cli import main
from fedconvex.remote import Exchange, Plain, serve
from fedconvex.remote.sockets import _entered
from fedconvex.study import read_site, read_study
from fedconvex.study.agreement import listening
from fedconvex.study.certificates import approve, credentials, fingerprint_of, make_authority, make_request
from fedconvex.study.trial import try_study
from tests.study_text import wards

pytest.importorskip("cryptography")
ANALYSE = 'analyse = { family = "gaussian" }'
STUDY = wards(ANALYSE, ["north", "south"], 'column = "days"')


def study_in(folder, text=STUDY):
    (folder / "study.toml").write_text(text)
    return read_study(folder / "study.toml")


def certified(folder, study, *sites):
    """An authority, and certificates of sites that are approved."""
    made = make_authority(study, folder)
    for site in sites:
        approve(make_request(site, folder), site, folder)
    return made


@pytest.fixture
def certificates(tmp_path):
    study = study_in(tmp_path)
    certified(tmp_path, study, "north", "south")
    return tmp_path, study


def known(folder, study, name, authority="authority.pem"):
    return credentials(study, folder / f"{name}.pem", folder / f"{name}.key", folder / authority)


@pytest.mark.slow
@pytest.mark.compiled
def test_a_comparison_of_classes_and_a_fair_model_over_connections(tmp_path):
    """Answers in the places of sites, and of several classes, are as long as connections let them be."""
    ask = 'compare = { kinds = ["pooled", "afl"], folds = 2 }'
    target = 'column = "ill"\nvalues = ["no", "some", "yes"]'
    study = study_in(tmp_path, STUDY.replace(ANALYSE, ask).replace('column = "days"', target))
    results = try_study(study, tmp_path / "try", rows=120, say=lambda line: None)
    found = json.loads(results["compare.json"])
    assert [m["method"] for m in found["methods"]] == ["base rate", "pooled", "afl", "alone"]
    assert (tmp_path / "try" / "results" / "compare.html").exists()


def met(server, site, number, study=None):
    """What an exchange with a site comes to: the place it got, or why it got none."""
    with Exchange(("localhost", 0), server, sites=2, deadline=60.0) as exchange:
        found: list = []

        def enter():
            try:
                found.append(_entered(("localhost", exchange.address[1]), site, number)[1])
            except Exception as error:
                found.append(str(error))

        thread = Thread(target=enter)
        thread.start()
        thread.join(300.0)
        for _ in range(20_000 if isinstance(found[0], str) else 0):  # the other end may hear of it first
            if exchange.strangers:
                break
            Event().wait(0.005)
        return found[0], [why for _, why in exchange.strangers]


def test_the_name_in_a_certificate_is_the_place(certificates):
    folder, study = certificates
    server = known(folder, study, "server")
    for number, name in enumerate(study.sites):
        assert met(server, known(folder, study, name), number)[0] == 2
    told, _ = met(server, known(folder, study, "north"), 1)
    assert "number must be 0, as the certificate says" in told
    approve(make_request("west", folder), "west", folder)
    told, strangers = met(server, known(folder, study, "west"), 0)
    assert "one site's place" in told and "fedconvex:site:west" in strangers[0]


def test_a_revoked_certificate_and_another_authority_open_nothing(certificates, tmp_path_factory):
    folder, study = certificates
    revoked = STUDY.replace('5555"', f'5555"\nrevoked = ["{fingerprint_of(folder / "south.pem")}"]')
    later = study_in(folder, revoked)
    told, strangers = met(known(folder, later, "server"), known(folder, study, "south"), 1)
    assert "one site's place" in told and "revoked" in strangers[0]
    assert met(known(folder, later, "server"), known(folder, study, "north"), 0)[0] == 2
    other = tmp_path_factory.mktemp("other")
    certified(other, study, "north")
    told, _ = met(known(folder, study, "server"), known(other, study, "north"), 0)
    assert "must show a certificate of this authority" in told
    pinned = study_in(folder, STUDY.replace('5555"', f'5555"\nauthority = "{fingerprint_of(other / "authority.pem")}"'))
    with pytest.raises(ValueError, match="be the study's authority"):
        known(folder, pinned, "north")


def test_requests_are_approved_for_one_site_only_and_keys_are_private(certificates):
    folder, _ = certificates
    request = make_request("east", folder)
    assert (folder / "east.key").stat().st_mode & 0o077 == 0
    with pytest.raises(ValueError, match="be a request of west that its own key has signed"):
        approve(request, "west", folder)
    content = request.read_text().splitlines()
    line = content[3]
    content[3] = line[:10] + ("A" if line[10] != "A" else "B") + line[11:]
    request.write_text("\n".join(content))
    with pytest.raises(ValueError, match="be a request"):
        approve(request, "east", folder)
    for again in (
        lambda: make_request("east", folder),
        lambda: make_authority(read_study(folder / "study.toml"), folder),
    ):
        with pytest.raises(ValueError, match="write new files"):
            again()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="a machine without IPv6")
def test_a_site_comes_by_either_version_of_the_protocol(tmp_path):
    study = study_in(tmp_path, STUDY.replace("localhost:5555", "[::1]:5555"))
    assert study.address == ("::1", 5555) and listening("[::]:7") == ("::", 7)
    certified(tmp_path, study, "north", "south")
    with Exchange(("::", 0), known(tmp_path, study, "server"), sites=2, deadline=5.0) as exchange:
        try:
            lines = [
                _entered((host, exchange.address[1]), known(tmp_path, study, name), number)[0]
                for number, (name, host) in enumerate((("north", "::1"), ("south", "127.0.0.1")))
            ]
        except OSError as error:
            pytest.skip(f"no such address here: {error}")
        for line in lines:
            line.close()
    assert not exchange.strangers


def test_a_second_process_of_a_site_waits_until_the_first_is_gone():
    """The first keeps its place, whatever the second does; once it is killed the other one has it."""

    class Silent:
        def __init__(self):
            self.asked = Event()

        def answer(self, message):
            self.asked.set()
            return dict(message)

    secret, said = Plain(bytes(range(32))), []
    with Exchange(("127.0.0.1", 0), secret, sites=1, deadline=20.0, exclusive=True) as exchange:
        first, second, numbers = Silent(), Silent(), {0: {"a": np.zeros(1)}}
        line, _ = _entered(exchange.address, secret.site(0), 0)
        while 0 not in exchange._members:
            Event().wait(0.005)

        def late():
            try:
                serve(second, exchange.address, secret.site(0), 0, wait=0.0)
            except ConnectionError as error:
                said.append(str(error))

        thread = Thread(target=late)
        thread.start()
        thread.join(300.0)
        assert "another process of it is connected" in said[0] and "second connection" in exchange.strangers[0][1]
        line.close()
        Thread(target=serve, args=(first, exchange.address, secret.site(0), 0, 20.0), daemon=True).start()
        assert exchange(0, numbers)[0]["a"] == 0.0 and first.asked.is_set() and not second.asked.is_set()


# ---------------------------------------------------------------- all of it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "files"),
    [
        ({}, 3),
        ({"gaussian": "poisson", "secure_sums = true": "secure_sums = false"}, 3),
        ({"gaussian": "gamma"}, 3),
        ({ANALYSE: 'solve = { loss = "squared", l2 = 0.1 }'}, 3),
        ({ANALYSE: 'solve = { loss = "squared", l2 = 1, method = "scaffold", step_size = 0.1 }'}, 3),
    ],
)
def test_a_trial_plays_all_roles(tmp_path, changed, files):
    text = STUDY
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    study, said = study_in(tmp_path, text), []
    results = try_study(study, tmp_path / "trial", rows=80, say=said.append)
    assert len(results) == files and "study.txt" in results
    for name in study.sites:
        own = tmp_path / "trial" / name / "results"
        assert {file.name: file.read_bytes() for file in own.iterdir()} == results
        assert f"  {name}: ended" in said
    with pytest.raises(ValueError, match="be empty"):
        try_study(study, tmp_path / "trial")


@pytest.mark.slow
def test_the_example_can_be_tried(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "study" / "study.toml"
    said = []
    results = try_study(read_study(example), tmp_path / "trial", say=said.append)
    assert {"analysis.txt", "model.json"} <= results.keys() and any("held-out rows" in line for line in said)


def printed(*argv):
    with redirect_stdout(io.StringIO()) as out:
        status = main(["study", *map(str, argv)])
    return status, out.getvalue()


@pytest.mark.slow
def test_the_command_line_goes_from_a_table_to_a_result(tmp_path, capsys):
    """What a site and its coordinator type, one after the other; the network is that of a trial."""
    table = tmp_path / "north.csv"
    rows = [f"{40 + 7 * i % 50},{'ab'[i % 3 % 2]},{i % 9 + 0.5}" for i in range(60)]
    table.write_text("\n".join(["age,ward,days", *rows]) + "\n")
    file, site = tmp_path / "study.toml", tmp_path / "site.toml"
    assert printed("draft", table, "--target", "days", "--site", "north", "--out", file)[0] == 0
    assert printed("draft", table, "--target", "days", "--site", "north", "--out", file)[0] == 2
    file.write_text(file.read_text().replace('"..."', '"south"'))
    site.write_text('[site]\nname = "north"\ntable = "north.csv"\n[limits]\nshare = 3.0\n')
    status, out = printed("check", file, site)
    assert status == 0 and "60 of 60 rows take part" in out and "as sums over all sites only" in out
    site.write_text('[site]\nname = "north"\ntable = "north.csv"\n[limits]\nrows = 100\n')
    status, out = printed("check", file, site)
    assert status == 2 and "to be mended" in out
    status, out = printed("check", file, site, "--json")
    assert status == 2 and json.loads(out)["sound"] is False and "rows must be at least 100" in out
    assert printed("join", file, site, "--yes")[0] == 2
    site.write_text('[site]\nname = "north"\ntable = "north.csv"\n[limits]\nshare = 3.0\n')
    status, out = printed("cert", "init", file, "--folder", tmp_path)
    assert status == 0 and fingerprint_of(tmp_path / "authority.pem") in out
    assert printed("cert", "request", "--site", "north", "--folder", tmp_path)[0] == 0
    status, out = printed("cert", "approve", tmp_path / "north.csr", "--site", "north", "--folder", tmp_path)
    assert status == 0 and fingerprint_of(tmp_path / "north.pem") in out
    assert printed("cert", "show", tmp_path / "north.pem")[1].strip() in out
    assert printed("join", file, site, "--yes", "--wait", "0.2")[0] == 75  # nobody listens
    status, out = printed("try", file, "--rows", 60, "--folder", tmp_path / "trial")
    assert status == 0 and "certified" in out and "solve: CONVERGED" in out
    assert "ended" in printed("status", tmp_path / "trial" / "results")[1]
    status, out = printed("audit", tmp_path / "trial" / "south" / "site.toml")
    assert status == 0 and "numbers answered, about rows that hold" in out
    status, out = printed("audit", tmp_path / "trial" / "south" / "state" / "audit.jsonl", "--lines")
    assert status == 0 and json.loads(out.splitlines()[-1])["what"] == "ended"
    assert printed("forget", tmp_path / "trial" / "south" / "site.toml", "--yes")[0] == 0
    assert not read_site(tmp_path / "trial" / "south" / "site.toml").state.exists()
    capsys.readouterr()
