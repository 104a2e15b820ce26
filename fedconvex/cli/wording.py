"""Messages of the library in the words of the command line: options in place of arguments and functions."""

from __future__ import annotations

import re
from typing import Any

from fedconvex.registry import methods

_OPTIONS = ("step_size", "local_steps", "epochs", "batch_size", "participation")
_RUN = ("rounds", "tol", "checkpoint", "threads", "seed")
_ROLES = {"sample_weight": "--weight", "domain": "--domain", "domain_labels": "--domain", "labels": "--client"}
_WORDS: list[tuple[str, Any]] = [
    (r"^(?:read_frame|read_table|load|load_table|load_npz|load_svmlight|load_bundled): ", ""),
    (r"^path must be an existing file", "the table must be an existing file"),
    (r"pass Problem\(\.\.\., weights='uniform'\)", "take --weights uniform"),
    (r"give rho a number, or the problem l2 > 0", "give --set rho=..., or --penalise-intercept with --l2 above 0"),
    (r"^partition_\w+: n_clients \* shards_per_client", "--clients times the shards of a client"),
    (r"^partition_\w+: n_clients", "--clients"),
    (r"^partition_shards: shards_per_client", "--partition shards:PER_CLIENT"),
    (r"^partition_dirichlet: alpha", "--partition dirichlet:ALPHA"),
    (r"^partition_similarity: s \(percent\)", "--partition similarity:PERCENT"),
    (r"^partition_(\w+): ", r"--partition \1: "),
    (r"^joined: ", ""),
    (r"^compare_owners: data", "DATA"),
    (r"^compare_owners: (\w+)", r"--\1"),
    (r"^VerticalProblem\.l2", "--l2"),
    (
        r"^VerticalFederation\.from_frames: (?:owner_of_target must (.*); got (\S+);)",
        r"--owner-of-target \2 must \1; got that",
    ),
    (r"^VerticalFederation\.from_frames: (target|table)", lambda m: {"target": "--target", "table": "table"}[m[1]]),
    (r"^run: (\w+)", lambda m: "--" + m[1].replace("_", "-") if m[1] in _RUN else m[0]),
    (r"^compare: data must", "DATA must"),
    (r"^Federation\.(sample_weight|domain|domain_labels|labels)\b", lambda m: _ROLES[m[1]]),
    (r"^theorem must", "--theorem must"),
    (r"^missing must", "--missing must"),
    (r"^reproduce: NAME", "NAME"),
    (r"^[\w-]+: data must", "--data must"),
    (r"\bby sep=", "by --sep"),
    (r"\bby decimal=','", "by --decimal ,"),
    (r"\b(target|client|domain|weight)=", r"--\1 "),
    (r"\bfeatures=\[\.\.\.\] or drop=\[\.\.\.\]", "--features or --drop"),
    (r"\b(drop|keep|missing|factor)=\['([^']*)'\]", r"--\1 \2"),
    (r"\bintervals='(\w+)', firth=True", r"--intervals \1 --firth"),
    (r"(damaged or foreign file) \(.*\)(?=: delete)", r"\1"),
    (
        r"(text; got )Unicode\w*Error: '.*?' codec can't decode (bytes? [\w-]+) .*?(: name another with )encoding=",
        r"\1\2\3--encoding",
    ),
    (r"\b\w+(?:Error|Invalid): (?=\S)", ""),
]


def _option(setting: re.Match[str]) -> str:
    """Return a setting of a method as an option."""
    name = setting[1]
    return f"--{name.replace('_', '-')}" if name in _OPTIONS else f"--set {name}"


def spoken(text: str) -> str:
    """Return a message in which no name is Python's.

    >>> spoken("SCAFFOLD.step_size must be positive and finite; got -1")
    '--step-size must be positive and finite; got -1'
    """
    classes = "|".join({method.cls for method in methods().values()})
    text = re.sub(rf"\b(?:{classes})\.(\w+)", _option, text)
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text
