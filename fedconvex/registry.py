"""What there is, by its names on the command line: methods and losses as their files declare them.

Sources are read and nothing is imported, so that names are known before anything is used. A method says
``command = "fedsam"`` in the body of its class (several names in parentheses), beside ``learns`` and ``penalised``:
`solve`, `sweep`, `bench`, `list` and help texts know it then. A loss goes by the words of its class: "smoothed-hinge".
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from fedconvex import _lazy
from fedconvex._check import bad
from fedconvex.families import declared

_ROOT = Path(__file__).parent
_DECLARED = re.compile(r"^class (\w+)|^    (command|learns|penalised) = (.+)$", re.M)


class Method(NamedTuple):
    """A method as its file declares it.

    Attributes
    ----------
    cls, module : str
        The class, and where it stands.
    command : str or tuple of str
        Its names on the command line; none where it has none.
    learns : tuple of str
        Constants of `fedconvex.problems.protocol`: what problems it is made for.
    penalised : bool
        Whether it minimises penalties.
    """

    cls: str
    module: str
    command: str | tuple[str, ...] = ()
    learns: tuple[str, ...] = ("ONE_MODEL",)
    penalised: bool = False

    @property
    def family(self) -> str:
        """The family that it belongs to, "" for those of the core."""
        return self.module.split(".")[2] if self.module.startswith("fedconvex.families.") else ""


@cache
def methods() -> dict[str, Method]:
    """Return the methods by their names on the command line, those of the core first.

    Examples
    --------
    >>> from fedconvex.registry import methods
    >>> methods()["gd"].cls, methods()["fista"].penalised, methods()["mocha"].family
    ('GradientDescent', True, 'multitask')
    """
    homes = _lazy.homes(_ROOT / "methods" / "__init__.py")
    files = {module for module in homes.values() if ".methods." in module and ".parts." not in module}
    found = [m for module in files for m in _declared_in(module) if m.cls in homes]
    pairs = [(name, m) for m in found for name in ((m.command,) if isinstance(m.command, str) else m.command)]
    named = dict(pairs)
    if len(named) < len(pairs):
        twice = sorted({name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1})
        raise bad("methods", "have commands of their own", ", ".join(twice), "name one of them otherwise")
    return dict(sorted(named.items(), key=lambda item: (item[1].family, item[0])))


def _declared_in(module: str) -> list[Method]:
    """Return what the classes of a file declare."""
    text = _ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text(encoding="utf-8")
    found: list[Method] = []
    for cls, name, value in _DECLARED.findall(text):
        if cls:
            found.append(Method(cls, module))
        else:  # constants are not known here: their names are kept
            kept = tuple(re.findall(r"\w+", value)) if name == "learns" else ast.literal_eval(value)
            found[-1] = Method(**found[-1]._asdict() | {name: kept})
    return found


def method_names(family: str = "", learns: str = "") -> list[str]:
    """Return the names of the methods of a family, or of the core, that learn of some kind of problem."""
    return [name for name, m in methods().items() if m.family == family and (not learns or learns in m.learns)]


def class_named(name: str) -> Any:
    """Return the class of a method, which is loaded now."""
    return getattr(import_module(methods()[name].module), methods()[name].cls)


def command_of(name: str) -> Any:
    """Return the file `Family.command` of the family that has a method, or None if none has."""
    family = methods()[name].family
    return import_module(f"fedconvex.families.{family}.{declared()[family].command}") if family else None


@cache
def losses() -> dict[str, str]:
    """Return the classes of losses by their names on the command line.

    Examples
    --------
    >>> from fedconvex.registry import losses
    >>> losses()["smoothed-hinge"]
    'SmoothedHinge'
    """
    homes = _lazy.homes(_ROOT / "losses" / "__init__.py")
    return {re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower(): name for name, m in homes.items() if ".losses." in m}
