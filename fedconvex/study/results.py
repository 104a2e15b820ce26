"""What may come back to a site: five files of fixed names, whose content is looked at before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedconvex._archives import arrays_in, json_of
from fedconvex.remote.messages import Refused
from fedconvex.study.runs_asked import Question

RESULTS = {  # what may come back
    "analyse": ("analysis.txt", "analysis.json"),
    "compare": ("compare.txt", "compare.json"),
    "solve": ("model.npz", "model.json"),
}
_DEEPEST = 12  # lists within lists


def room(asked: list[Question]) -> int:
    """Return how many bytes a result has at most: a covariance as text is the longest part."""
    return (1 << 20) + 200 * max(q.parameters for q in asked) ** 2


def check_result(name: str, content: Any, asked: list[Question]) -> None:
    """Raise `Refused` unless a file is one of those that may come back, and holds what its name says.

    Text is one of lines that a terminal shows; JSON is an object of numbers, texts and lists of them, at most
    twelve deep; a model has the features and classes of the study, and finite numbers of the right shapes, without
    pickles. An end of an interval in an analysis may be infinite.

    Parameters
    ----------
    name : str
    content : array
    asked : list of Question
        Of the study.
    """
    known = ("study.txt", *(name for question in asked for name in RESULTS[question.name]))
    bytes_ = isinstance(content, np.ndarray) and content.dtype == np.uint8 and content.ndim == 1
    if name not in known or not bytes_ or content.size > room(asked):
        raise Refused("it is no result of a study")
    told = content.tobytes()
    try:
        if name.endswith(".txt"):
            _check_text(told.decode("utf-8"))
        elif name.endswith(".json"):
            found = json_of(told, room(asked))
            _check_values(found, 0, finite=name == "model.json")
            if name == "model.json":
                (question,) = [q for q in asked if q.name == "solve"]
                _check_description(found, question)
        else:
            (question,) = [q for q in asked if q.name == "solve"]
            _check_numbers(arrays_in(told), question)
    except Refused as error:
        raise Refused(f"{name} is no result: {error}") from None
    except Exception as error:  # whatever damaged or foreign content makes its readers raise
        raise Refused(f"{name} is no result: it cannot be read ({type(error).__name__})") from None


def _check_text(text: str) -> None:
    if strange := [c for c in text if not (c.isprintable() or c == "\n")]:
        raise Refused(f"it holds the character {ord(strange[0])}, which is none of a line of text")


def _check_values(x: Any, depth: int, finite: bool) -> None:
    """Raise unless JSON holds numbers, and texts that a terminal shows."""
    if depth == 0 and not isinstance(x, dict):
        raise Refused("it is no object")
    if depth > _DEEPEST:
        raise Refused("it has lists within lists without an end")
    if isinstance(x, dict):
        for key, value in x.items():
            _check_text(key)
            _check_values(value, depth + 1, finite)
    elif isinstance(x, list):
        for value in x:
            _check_values(value, depth + 1, finite)
    elif isinstance(x, str):
        _check_text(x)
    elif finite and isinstance(x, float) and not np.isfinite(x):
        raise Refused("it holds a number that is not finite")


def _check_description(found: dict[str, Any], question: Question) -> None:
    """Raise unless a description is that of a model of the study."""
    if found.get("kind") != "linear" or found.get("feature_names") != list(question.plan.feature_names):
        raise Refused("it has not the features of the study")
    classes = None if question.plan.labels is None else list(question.plan.labels)
    if found.get("classes") != classes or found.get("clients") is not None:
        raise Refused("it has not the classes of the study")


def _check_numbers(arrays: dict[str, Any], question: Question) -> None:
    """Raise unless arrays are those of a model of the study."""
    d = question.features - 1
    shapes: dict[str, tuple[int, ...]] = {"coef": (d,), "intercept": (), "center": (d,), "scale": (d,)}
    if not {"coef", "intercept"} <= arrays.keys() <= shapes.keys():
        raise Refused("it has other arrays than a model")
    for name, a in arrays.items():
        shape = shapes[name]
        if a.dtype != np.float64 or a.shape != shape or not np.isfinite(a).all():
            raise Refused(f"its {name} is no finite array {shape}")
