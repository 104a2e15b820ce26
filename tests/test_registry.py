"""One registry: what files declare, read without importing them, is what their classes have; commands load little."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fedconvex import methods
from fedconvex.problems import protocol
from fedconvex.registry import class_named, losses, method_names
from fedconvex.registry import methods as registered


def test_what_is_read_is_what_classes_have():
    for name, method in registered().items():
        cls = class_named(name)
        assert cls is getattr(methods, method.cls) and cls.__module__ == method.module
        assert tuple(getattr(protocol, kind) for kind in method.learns) == getattr(cls, "learns", (protocol.ONE_MODEL,))
        assert method.command == cls.command and method.penalised == getattr(cls, "penalised", False)


def test_every_method_with_a_name_is_found_and_names_differ():
    commands = [getattr(getattr(methods, name), "command", ()) for name in methods.__all__]
    names = [name for found in commands for name in ([found] if isinstance(found, str) else found)]
    assert sorted(names) == sorted(registered())
    assert method_names("multitask") == ["cocoa", "jointmocha", "mean-regularised", "mocha"]
    assert "fedbcd" not in method_names(learns="ONE_MODEL") and "mocha" not in method_names()


def test_losses_are_those_of_the_package():
    from fedconvex import losses as package

    assert sorted(losses().values()) == sorted(package.__all__)


def loaded(*argv):
    """Modules of the package, and others, that a command has loaded when it ends."""
    code = "import sys, json\nfrom fedconvex.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "print(json.dumps([*sys.modules]))"
    plain = os.environ | {"NUMBA_DISABLE_JIT": "1"}  # the index of compiled kernels names losses, and imports them
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True, env=plain)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_small_table_is_solved_with_few_files(tmp_path):
    rng, file = np.random.default_rng(0), tmp_path / "wards.csv"
    x, noise = rng.normal(size=(60, 2)), rng.normal(size=60)
    rows = [
        f"{'abc'[i % 3]},{a:.3f},{b:.3f},{int(a + e > 0)}" for i, ((a, b), e) in enumerate(zip(x, noise, strict=True))
    ]
    file.write_text("\n".join(["ward,age,bp,ill", *rows]))
    found = loaded("solve", str(file), "--target", "ill", "--client", "ward")
    mine = [name for name in found if name.split(".")[0] == "fedconvex"]
    assert "fedconvex.methods.fedavg" in mine and len(mine) <= 124, len(mine)


def test_help_loads_no_command_and_no_numpy():
    found = loaded("--help")
    commands = {f"fedconvex.cli.{name}" for name in ("solve", "verify", "bench", "arguments")}
    assert "fedconvex.cli" in found and not {"numpy", *commands} & {*found}
