"""Write the table of docs/what_leaves.md from messages that ran: ``python docs/what_leaves.py``.

Studies of invented rows are carried out in one process, in the open and under masks, and their audit logs are read.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

from fedconvex.remote import in_process
from fedconvex.study import read_site, read_study
from fedconvex.study.audit_log import read_log
from fedconvex.study.coordination import Coordinator
from fedconvex.study.site_end import Participant
from fedconvex.study.trial import invented

PAGE = Path(__file__).resolve().parent / "what_leaves.md"
BEGIN, END = "<!-- from messages -->\n", "<!-- end of messages -->"
STUDY = """[study]
name = "example"
[coordinator]
address = "localhost:5555"
[sites]
require = ["north", "east", "south"]
[ask]
{asked}
secure_sums = {sums}
[target]
column = "ill"
{target}
[columns.age]
kind = "number"
center = 60
scale = 10
[columns.dose]
kind = "number"
[columns.ward]
kind = "category"
values = ["a", "b", "c"]
"""
METHODS = {
    "newton": 'method = "newton"',
    "fedavg": 'method = "fedavg", step_size = 0.1',
    "scaffold": 'method = "scaffold", step_size = 0.1',
    "fedsgd": 'method = "fedsgd", step_size = 0.1',
}
CLASSES, TIMES = 'values = ["no", "yes"]', 'event = "seen"'
ASKED = """analyse = {{ family = "logistic" }}
{}
solve = {{ loss = "logistic", l2 = 0.1, rounds = 3, {} }}"""
COMPARE = 'compare = { kinds = ["pooled", "afl", "mocha", "mean-regularised"], folds = 2 }'
MEANS = {
    "unseen": "how many cells hold unknown categories (0 in a study)",
    "public": "a public key, for masks",
    "sum square": "sums of columns, and of their squares",
    "facts": "sums of weights, responses and their squares; constants; whether all responses agree",
    "gram": "sums of products of columns",
    "N slope bend lost": "the likelihood, its gradient and Hessian; whether they overflow",
    "reach": "the largest x'J^-1 x, rounded up to a power of 2: of one row",
    "values slopes": "what rounding may have done",
    "pearson size information": "Pearson's sum, a bound of responses and scores, the expected information",
    "drift crossed squared": "of times: scores and Hessians, weighted by time",
    "pairs": "of times: pairs of rows that the model orders rightly, not at all, wrongly",
    "value gradient error off": "the loss at a model, its gradient, and their rounding",
    "value gradient hessian": "the loss at a model, its gradient and Hessian",
    "w": "its model after its own steps",
    "dy dc": "how its model and its control variate moved",
    "g": "the gradient at a model",
    "loss slope bend lost": "losses at 26 models (13 l2, 2 folds), gradients and Hessians; where few rows make them up",
    "loss bend lost": "of MOCHA at 26 models: least values, products of the entries of gradients; where of few rows",
    "losses": "losses of the rows of the folds, at these models",
    "site_loss site_slope bend lost": "of AFL at 26 models: the site's loss and gradient, and its part of the Hessian",
    "site_losses": "of AFL: losses of the rows of the folds, at these models",
    "nested losses": "losses of models of the site's own on the rows of the folds: of 13 l2, and of the chosen ones",
    "target each beside": "sums of errors on held-out rows, and of their squares, of all kinds of models",
    "row": "what these models are worth at this site, if it tells: errors, differences and their intervals",
}


def logged(folder: Path, method: str, sums: str) -> list[dict]:
    """Return the answers in the log of one site of a study that was carried out."""
    how = METHODS.get(method)
    asked = 'analyse = { family = "cox" }' if how is None else ASKED.format(COMPARE * (method == "newton"), how)
    text = STUDY.format(asked=asked, target=TIMES if how is None else CLASSES, sums=sums)
    (folder / "study.toml").write_text(text)
    study = read_study(folder / "study.toml")
    sites = []
    for name in study.sites:
        with open(folder / f"{name}.csv", "w", newline="") as file:
            cells = invented(study, name, 100, 1)
            csv.writer(file).writerows([cells, *zip(*cells.values(), strict=True)])
        own = f'[site]\nname = "{name}"\ntable = "{name}.csv"\nstate = "state_{name}"\nresults = "results_{name}"\n'
        limits = f"[limits]\nshare = 500.0\nsecure_sums = {sums}\n"
        (folder / f"{name}.toml").write_text(own + limits)
        sites.append(Participant(study, read_site(folder / f"{name}.toml"), lambda line: None))
    Coordinator(study, folder / "out", in_process(sites), lambda line: None).conduct()
    return [line for line in read_log(folder / "state_north" / "audit.jsonl") if line["what"] == "answered"]


def rows() -> list[list[str]]:
    """Return the rows of the table: question, when, what, how many numbers, and what the coordinator sees of them."""
    found: dict[tuple[str, str, str], list[int]] = {}
    with tempfile.TemporaryDirectory() as place:
        for method in (*METHODS, "cox"):
            for sums in ("false", "true"):
                folder = Path(place, f"{method}-{sums}")
                folder.mkdir()
                for line in logged(folder, method, sums):
                    arrays = {n.removeprefix("reply/"): s for n, s in line["left"].items() if n != "reply/path"}
                    question = "analyse" if line["question"] == "analyse" else f"solve, {method}"
                    question = "analyse, cox" if method == "cox" else question
                    question = "solve" if line["question"] == "solve" and line["kind"] != "a round" else question
                    question = "compare" if line["question"] == "compare" else question
                    if sums == "false":
                        key = (question, line["kind"], " ".join(arrays))
                        in_place = any(name == "row" or name.startswith("site_") for name in arrays)
                        own = line["kind"] == "joins" or in_place
                        count = line["new"] if in_place else line["numbers"]
                        found.setdefault(key, [count, int(not own)])
                    elif "public" in arrays:
                        found.setdefault((question, line["kind"], "public"), [32, 0])
                    else:
                        assert any(name in arrays for name in ("masked", "numbers")), (
                            f"in the open under masks: {arrays}"
                        )
    named = {"joins": "it joins", "measured": "a model is measured", "a round": "a round"}
    return [
        [question, named[kind], MEANS[what], str(numbers), "sums over all sites" if masked else "as it is"]
        for (question, kind, what), (numbers, masked) in found.items()
    ]


def table() -> str:
    """Return the table as Markdown."""
    head = "| question | when | what | numbers | with secure sums the coordinator sees |\n|---|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows())


def page() -> str:
    """Return the page with the table of today."""
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:start] + table() + text[end:]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
