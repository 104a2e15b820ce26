"""Who may import whom, where heavy packages may be imported, and what every file must and must not say."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest

import fedconvex
from fedconvex.families import FAMILIES
from fedconvex.kernels import cache

PACKAGE = Path(fedconvex.__file__).parent
FILES = sorted(p for p in PACKAGE.rglob("*.py") if "__pycache__" not in p.parts)

# Every room imports from lower floors and from itself only.
FLOORS = [
    {"_check", "_progress"},
    {"kernels.cache", "_deprecation", "_lazy", "_moved"},
    {
        "registry",
        "words",
        "loss_traits",
        "entropic",
        "_archives",
        "_files",
        "_html",
        "_latex",
        "_processes",
        "_sparse",
    },
    {"federation_input", "roster", "tables"},
    {"losses", "simplex", "federation", "draws", "traits", "fields", "_model_files"},
    {"penalties", "models", "vertical_federation", "hybrid_federation"},
    {"fitted"},
    {"kernels"},
    {"solvers"},
    {"constants", "sums"},
    {"problems", "secure"},
    {"preprocessing"},
    {"methods", "theory"},
    {"driver"},
    {"datasets"},
    {"theorems"},
    {"verify"},
    {"families"},
    {"report"},
    {"sweeps"},
    {"remote"},
    {"analysis"},
    {"papers", "estimators", "comparison", "bench", "conformance"},
    {"study"},
    {"engines"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
FLOOR["families/declared"] = FLOOR["_check"]  # what families are: names, read by everybody
# What of a family stands as high as the room whose part it is.
PARTS = {"estimator": "estimators", "experiments": "papers", "command": "cli", "sites": "remote"}
DATASETS_MAY_IMPORT = {"_check", "_lazy", "federation", "tables", "datasets"}
NUMBA = {"kernels/cache.py", "kernels/lanes.py", "kernels/vectors.py", "kernels/views.py"}
HEAVY = {"cvxpy", "sklearn", "matplotlib", "pyarrow", "pandas", "joblib"}
HEAVY_AT_TOP = ("estimators/", "report/", "engines/")
# the five calls of a method, described once in docs/architecture.md
PROTOCOL = {
    "init",
    "participants",
    "broadcast",
    "local",
    "aggregate",
    "measure",
    "round",
    "memory",
    "default_step",
    "traits",
    "words",
    "gradient_passes",
}


pytestmark = pytest.mark.anywhere


@functools.cache
def parsed_text(source):
    return ast.parse(source)


@functools.cache
def parsed(path):
    return parsed_text(path.read_text())


@functools.cache
def nodes(tree):
    """What ast.walk yields, in a third of its time."""
    found = [tree]
    for node in found:
        for inner in vars(node).values():
            if isinstance(inner, list):
                found.extend(part for part in inner if isinstance(part, ast.AST))
            elif isinstance(inner, ast.AST):
                found.append(inner)
    return tuple(found)


def test_nodes_are_those_of_the_standard_library():
    tree = parsed(Path(__file__))
    assert nodes(tree) == tuple(ast.walk(tree))


def name(path):
    return path.relative_to(PACKAGE).as_posix()


def room_of(*parts):
    """The room of a module, by the parts of its name below the package's.

    It is the top-level module or folder, with three exceptions: the cache of compiled kernels and vectors stand below
    their folder, what families declare below everybody, and parts of families beside the rooms whose parts they are.
    """
    if parts[:2] in (("kernels", "cache"), ("kernels", "vectors")):
        return "kernels.cache"
    if parts[0] != "families":
        return parts[0]
    if parts[1:] == ("all_theorems",):
        return "theorems"
    if len(parts) == 1 or parts[1] not in FAMILIES or parts[2:3] == ("family",):
        return "families/declared"
    return PARTS.get("".join(parts[2:3]), "families")


def room(path):
    return room_of(*path.relative_to(PACKAGE).with_suffix("").parts)


def everywhere(check, files=FILES):
    """What a check finds amiss, by file. A test of each file would take ten times as long as one of all."""
    return {name(path): found for path in files if (found := check(path))}


def in_room(*rooms):
    return [p for p in FILES if room(p) in rooms and p.stem != "__init__"]


@functools.cache
def file_of(module):
    """The file of the package that a module is, or None; a folder is its __init__."""
    inner = PACKAGE.joinpath(*module.split(".")[1:])
    files = [f for f in (inner.with_suffix(".py"), inner / "__init__.py") if f.exists()]
    return files[0] if files and module.split(".")[0] == "fedconvex" else None


HOLDS_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


@functools.cache
def imports(tree, package="fedconvex"):
    """(module, inside a function, only for type checkers) of every import; `from a import b` gives a.b, and a if b is
    no file of a. What a lazy package imports for type checkers it imports for all."""
    found = []
    calls = [n.value.func for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)]
    lazy = "_lazy.attach" in map(ast.unparse, calls)

    def visit(node, inside, typing):
        if isinstance(node, ast.Import):
            found.extend((alias.name, inside, typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(filter(None, [package, base]))
            if any(not file_of(f"{base}.{alias.name}") for alias in node.names):  # else only files
                found.append((base, inside, typing))
            found.extend((f"{base}.{alias.name}", inside, typing) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.body:
                visit(child, inside, not lazy)
            for child in node.orelse:
                visit(child, inside, typing)
            return
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, HOLDS_STATEMENTS):  # expressions import nothing, and are nine nodes of ten
                visit(child, inside, typing)

    visit(tree, False, False)
    return tuple(found)


LAZY = [p for p in FILES if "_lazy.attach(" in p.read_text() and p.stem == "__init__"]


@functools.cache
def from_families():
    """Where names stand that lazy packages list and families have: fedconvex.methods.MultiBoost in ...multiboost."""
    lists = [(p, n) for p in LAZY for n in nodes(parsed(p)) if isinstance(n, ast.ImportFrom)]
    return {
        f"fedconvex.{p.parent.name}.{alias.name}": n.module
        for p, n in lists
        if (n.module or "").startswith("fedconvex.families.")
        for alias in n.names
    }


def modules_used(path, tree=None):
    """Modules of the package that a file imports at run time, wherever in the file: of names in lazy packages those
    where families have them. What a lazy package lists of families it does not import."""
    listed = path in LAZY
    found = [from_families().get(m, m) for m, _, typing in imports(tree or parsed(path)) if not typing]
    return [m for m in found if m.split(".")[0] == "fedconvex" and not (listed and m.startswith("fedconvex.families."))]


def rooms_imported(path, tree=None):
    """Rooms of the package that a file imports at run time, wherever in the file."""
    rooms = {room_of(*m.split(".")[1:]) for m in modules_used(path, tree) if "." in m}
    return {home for home in rooms if home in FLOOR}


def wrong_floors(home, used):
    same = {m for m in used if m != home and FLOOR[m] == FLOOR[home]} - (
        {"_check"} if home == "kernels.cache" else set()
    )
    above = {m for m in used if FLOOR[m] > FLOOR[home]}
    return same | above


def test_every_file_has_a_floor():
    homeless = {room(p) for p in FILES} - {"__init__"} - set(FLOOR)
    assert not homeless, "put the file into a room of docs/architecture.md, or give a new room its floor above"


def test_imports_go_downstairs():
    files = [p for p in FILES if name(p) != "__init__.py"]
    assert not everywhere(lambda path: wrong_floors(room(path), rooms_imported(path)), files)


def test_the_floor_test_can_fail():
    source = (
        "def f():\n    from fedconvex import methods\nfrom fedconvex.driver import run\nimport fedconvex.theory.bound\n"
    )
    used = rooms_imported(None, ast.parse(source))
    assert used == {"methods", "driver", "theory"}
    assert wrong_floors("problems", used) == {"methods", "driver", "theory"}
    assert wrong_floors("methods", used) == {"theory", "driver"}  # theory and methods never meet
    assert wrong_floors("verify", used) == set()


def other_families(path, tree=None, mine=None):
    """Modules of families other than the file's own that it imports."""
    mine = mine or path.relative_to(PACKAGE).parts[1]
    used = [m.split(".") for m in modules_used(path, tree)]
    return {".".join(m) for m in used if m[1:2] == ["families"] and {*m[2:3]} & {*FAMILIES} - {mine}}


def test_families_do_not_import_each_other():
    assert not everywhere(
        other_families, [p for p in FILES if len(p.parts) > len(PACKAGE.parts) + 2 and "families" in p.parts]
    )


def test_the_tests_of_families_can_fail():
    """By name, and by way of a lazy package that lists it."""
    for source in ("import fedconvex.families.boosting.stumps\n", "from fedconvex.methods import FedAvg, MultiBoost\n"):
        tree = ast.parse(source)
        assert wrong_floors("verify", rooms_imported(None, tree)) == {"families"}
        assert wrong_floors("report", rooms_imported(None, tree)) == set()
        assert other_families(None, tree, "multitask")
        assert not other_families(None, tree, "boosting")


def files_imported(path, tree=None):
    """Files of the package that a file imports at run time, wherever in the file."""
    found = imports(tree or parsed(path))
    return {file_of(module) for module, _, typing in found if not typing} - {path, None}


def circles(graph):
    """Groups of files that import each other, directly or by way of others."""

    def reach(start):
        seen, todo = set(), [start]
        while todo:
            new = graph.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        return seen

    reached = {f: reach(f) for f in graph}
    return {frozenset(g for g in reached[f] if f in reached.get(g, ())) for f in graph if f in reached[f]}


# Names that several files have: of one part of families, experiments or rooms, or of a subject that rooms share.
ROLES = {"__init__", "claims", "command", "data", "estimator", "family", "figures", "page", "problem", "runs", "sites"}
SUBJECTS = {
    *("accelerated", "agnostic", "averaging", "book", "diana", "dynamic_msd", "ef21", "environments", "feddyn"),
    *("fedlin", "fedmultiboost", "fednl", "fedprox", "fedsam", "flatness", "games", "hybrid", "invariant", "irmv1"),
    *("mocha", "posteriors", "radfed", "scaffnew", "scaffold", "svrg", "vertical", "virtual"),
}


def basenames(files):
    """How often each occurs, of those that occur twice or more and name neither a role nor a subject."""
    counts = Counter(p.stem for p in files)
    return {stem: n for stem, n in counts.items() if n > 1 and stem not in ROLES | SUBJECTS}


def test_no_basename_has_two_meanings():
    assert not basenames(FILES)
    assert basenames([Path("a/result.py"), Path("b/result.py"), Path("a/page.py"), Path("b/page.py")]) == {"result": 2}
    counts = Counter(p.stem for p in FILES)
    assert {name for name in ROLES | SUBJECTS if counts[name] < 2} == set()


def test_no_file_imports_itself_by_way_of_others():
    graph = {p: files_imported(p) for p in FILES}
    assert not {tuple(sorted(map(name, c))) for c in circles(graph)}


def test_the_test_of_circles_can_fail():
    inner = ast.parse("def f():\n    from fedconvex.driver import run\n")
    assert files_imported(None, inner) >= {PACKAGE / "driver" / "__init__.py"}
    assert circles({1: {2}, 2: {3}, 3: {2}, 4: {1}}) == {frozenset({2, 3})}


def test_methods_do_not_import_each_other():
    files = [p for p in FILES if p.parent.name == "methods" and p.stem != "__init__"]
    siblings = {".".join(["fedconvex", *p.relative_to(PACKAGE).with_suffix("").parts]) for p in files}

    def check(path):
        mine = ".".join(["fedconvex", *path.relative_to(PACKAGE).with_suffix("").parts])
        return {m for m, _, _ in imports(parsed(path)) if any(f"{m}.".startswith(f"{s}.") for s in siblings - {mine})}

    assert not everywhere(check, [*files, *in_room("methods")])
    assert len(files) > 30


def test_datasets_know_only_federations():
    files = [p for p in FILES if room(p) == "datasets"]
    assert not everywhere(lambda path: rooms_imported(path) - DATASETS_MAY_IMPORT, files)


def test_numba_is_imported_in_one_place():
    def check(path):
        return {m.split(".")[0] for m, _, _ in imports(parsed(path))} & {"numba", "llvmlite"}

    assert set(everywhere(check)) == NUMBA


def compiled_from(path):
    """Modules of the package that the kernels of a file, and what they call, take names from."""
    tree, home = parsed(path), {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fedconvex":
            for alias in node.names:
                inner = PACKAGE.joinpath(*node.module.split(".")[1:], f"{alias.name}.py")
                home[alias.asname or alias.name] = (
                    inner if inner.exists() else PACKAGE.joinpath(*node.module.split(".")[1:]).with_suffix(".py")
                )
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    compiled = {"kernel", "reduction", "borrowing"}
    todo, used = [f for f in functions.values() if compiled & {ast.unparse(d) for d in f.decorator_list}], set()
    dispatched = [n for n in nodes(tree) if isinstance(n, ast.Call) and ast.unparse(n.func).startswith("by_")]
    while todo + dispatched:
        names = {n.id for n in ast.walk((todo + dispatched)[0]) if isinstance(n, ast.Name)} - used
        (todo or dispatched).pop(0)
        used |= names
        todo += [functions[n] for n in names & set(functions)]
    return {name(home[u]) for u in used & set(home)}


def in_digest(path):
    return cache.in_digest(name(path), path.read_bytes())


def test_the_cache_sees_all_that_kernels_are_made_of():
    files = [p for p in FILES if room(p) == "kernels" or "fedconvex.kernels.cache import" in p.read_text()]
    files = [p for p in files if in_digest(p)]
    assert not everywhere(lambda path: {m for m in compiled_from(path) if not in_digest(PACKAGE / m)}, files)


def is_rule(node):
    """Whether a class is a rule of `kernels.jobs`: what its step is given says so."""
    functions = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name in ("step", "steps")]
    return any([a.arg for a in n.args.args][:3] == ["self", "loss", "data"] for n in functions)


def is_dispatched(node):
    methods = {n.name for n in getattr(node, "body", []) if isinstance(n, ast.FunctionDef)}
    return isinstance(node, ast.ClassDef) and (methods & {"slope", "slopes", "plain"} or is_rule(node))


def test_dispatched_types_are_seen_by_the_cache():
    """Losses, client optimisers and rules of jobs, whose methods are compiled into kernels."""
    unseen = [p for p in FILES if not in_digest(p)]
    assert not everywhere(lambda path: [n.name for n in parsed(path).body if is_dispatched(n)], unseen)


def test_the_digest_test_can_fail():
    assert compiled_from(PACKAGE / "kernels" / "batches.py") >= {"draws.py", "kernels/rows.py"}
    assert not in_digest(PACKAGE / "methods" / "parts" / "step_sizes.py")


def classes_asked_for(tree, losses):
    """Calls that ask for a loss's class, module or name: isinstance with one of the classes, type(... loss)."""
    asked = []
    for node in nodes(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "type"):
            words = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            kinds = words & losses if node.func.id == "isinstance" else ast.unparse(node).endswith("loss)")
            asked += [ast.unparse(node)] if kinds else []
    return asked


def test_nobody_asks_which_class_a_loss_is():
    """Losses declare what they are (loss_traits): those of users are treated like those of the package."""
    from fedconvex import losses

    assert not everywhere(lambda path: classes_asked_for(parsed(path), {*losses.__all__, "Logistic2"}))


def test_the_test_of_classes_can_fail():
    source = "isinstance(p.loss, (Hinge, int))\ntype(problem.loss).__name__\nisinstance(loss, type)\ntype(x)"
    assert classes_asked_for(ast.parse(source), {"Hinge"}) == ["isinstance(p.loss, (Hinge, int))", "type(problem.loss)"]


def problems_asked_for(tree, kinds):
    """Calls that ask which class a problem is, and comparisons that ask what kind: `isinstance`, `.learns == ...`."""
    asked = []
    for node in nodes(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            asked += [ast.unparse(node)] if {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & kinds else []
        if isinstance(node, ast.Compare):
            sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
            said = [s for s in sides if s.endswith(".learns") or s.startswith("getattr(problem, 'learns'")]
            asked += [ast.unparse(node)] if said else []
    return asked


def test_nobody_asks_which_kind_a_problem_is():
    """Outside of their own rooms: problems declare what they are (`problems.protocol`, `over_sites`), families too."""
    from fedconvex import problems

    kinds = {name for name in problems.__all__ if isinstance(getattr(problems, name), type)} - {"Measure"}
    kinds = {name for name in kinds if name.endswith("Problem") or name == "MovingTarget"}
    outside = [p for p in FILES if name(p).split("/")[0] not in ("problems", "families", "registry.py")]
    assert not everywhere(lambda path: problems_asked_for(parsed(path), kinds), outside)


def methods_listed(tree, classes):
    """Literals that name three classes of methods or more: lists, tuples, sets, dictionaries, regular expressions."""
    found = []
    for node in nodes(tree):
        if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict)):
            inner = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "|" in node.value:
            inner = node.value.replace("(", "|").split("|")
        else:
            continue
        found += [node.lineno] if len({*inner} & classes) >= 3 else []
    return found


def test_nobody_keeps_a_list_of_methods():
    """But the exports, and experiments of what a paper compares: `registry` reads what classes declare."""
    from fedconvex.registry import methods

    classes = {method.cls for method in methods().values()}
    others = [p for p in FILES if room(p) not in ("methods", "papers") and name(p) != "__init__.py"]
    assert not everywhere(lambda path: methods_listed(parsed(path), classes), others)


def test_the_tests_of_problems_and_methods_can_fail():
    source = "isinstance(p, (Problem, int))\nif problem.learns in (A, B): pass\nisinstance(loss, type)\n"
    assert len(problems_asked_for(ast.parse(source), {"Problem"})) == 2
    source = "A = ('FedAvg', 'SGD', 'AFL')\nB = 'FedAvg|SGD|AFL'\nC = {'a': 'SGD', 'b': 'AFL'}\n"
    assert methods_listed(ast.parse(source), {"FedAvg", "SGD", "AFL"}) == [1, 2]


def test_heavy_packages_are_imported_where_they_are_used():
    def check(path):
        at_top = [m for m, inside, typing in imports(parsed(path)) if not (inside or typing)]
        return {m for m in at_top if m.split(".")[0] in HEAVY}

    light = [p for p in FILES if not (name(p).startswith(HEAVY_AT_TOP) or room(p) == "estimators")]
    assert not everywhere(check, light)


ENGINES = {"flwr", "ray", "dask", "distributed"}  # extras of `engines/`


def engines_imported(path, tree=None):
    """Engines of others that a file imports, in `engines/` at its top only; and the room of engines, elsewhere."""
    inside = path is not None and room(path) == "engines"
    found = imports(tree or parsed(path))
    others = {m.split(".")[0] for m, within, typing in found if not (inside and within) and not typing} & ENGINES
    return others | (set() if inside else {m for m, _, _ in found if m.startswith("fedconvex.engines")})


def test_engines_of_others_are_optional():
    """Nothing imports the room of engines; its functions load the extras, so that it can be imported without them."""
    assert not everywhere(engines_imported)


def test_the_test_of_engines_can_fail():
    source = "import flwr.app\ndef f():\n    from ray import init\n    from fedconvex.engines import flower\n"
    found = engines_imported(None, ast.parse(source))
    assert {"flwr", "ray"} < found and "fedconvex.engines.flower" in found
    inside = PACKAGE / "engines" / "flower" / "apps.py"
    assert engines_imported(inside, ast.parse(source)) == {"flwr"}


def test_import_is_light():
    code = "import sys, json, fedconvex; fedconvex.__all__; dir(fedconvex); print(json.dumps(sorted(sys.modules)))"
    env = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    unwanted = {"numba", "scipy.optimize", "cvxpy", "sklearn", "matplotlib", "pandas", "pyarrow", "numpy", "joblib"}
    assert not loaded & unwanted
    assert "fedconvex" in loaded


def test_every_public_name_loads():
    for public in fedconvex.__all__:
        assert getattr(fedconvex, public) is not None
    assert set(fedconvex.__all__) <= set(dir(fedconvex))
    with pytest.raises(AttributeError, match=r"'nothing'$"):
        fedconvex.nothing


def test_a_name_of_a_module_says_where_it_lives():
    """Public modules need no import of their own, and nothing private is shown."""
    for other, said in (("MOCHA", "it is fedconvex.methods.MOCHA"), ("fedavg", r"mean fedconvex\.methods\.FedAvg\?")):
        with pytest.raises(AttributeError, match=said):
            getattr(fedconvex, other)
    assert fedconvex.verify is import_module("fedconvex.verify")
    assert not {"sys", "annotations", "import_module", "Any", "cli", "kernels"} & set(dir(fedconvex))
    assert not [one for one in dir(fedconvex) if one.startswith("_") and one != "__version__"]


@pytest.mark.parametrize("path", LAZY, ids=name)
def test_lazy_packages_load_all_their_names_and_no_others(path):
    package = import_module(".".join(["fedconvex", *path.relative_to(PACKAGE).parts[:-1]]))
    for public in package.__all__:
        value = getattr(package, public)
        assert not isinstance(value, (type, FunctionType)) or value.__name__ == public
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match=r"module 'fedconvex\..*' has no attribute 'nothing'"):
        package.nothing


def test_packages_are_lazy():
    lazy = {
        "analysis",
        "bench",
        "comparison",
        "datasets",
        "estimators",
        "losses",
        "methods",
        "papers",
        "problems",
        "report",
        "simplex",
        "study",
    }
    lazy |= {"solvers", "tables", "theorems", "certificates", "minimax", "penalised", "proximal"}
    assert {p.parent.name for p in LAZY} == lazy


def test_lists_of_names_do_not_load_families():
    """Else a family's own file, imported first, finds the list that asks for it half made."""
    eager = [
        p
        for p in FILES
        if p.name == "__init__.py" and "families" not in p.parts and p not in LAZY
        if any(
            m.startswith("fedconvex.families.") for m, inside, typing in imports(parsed(p)) if not (inside or typing)
        )
    ]
    assert not eager, list(map(name, eager))


def test_a_first_round_loads_no_other_method(tmp_path):
    """Nor boosting, multi-task problems and projections: start-up is for what is asked for."""
    code = "import json, sys; from fedconvex import FedAvg, Problem, Squared, run; from fedconvex.datasets import "
    code += "linear_federation; run(FedAvg(step_size=0.1), Problem(linear_federation(seed=0).federation, Squared()), "
    code += "rounds=1); print(json.dumps([m for m in sys.modules if m.startswith('fedconvex.')]))"
    env = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    loaded = set(json.loads(done.stdout))
    methods = {m for m in loaded if m.startswith("fedconvex.methods.") and ".parts" not in m}
    assert methods == {"fedconvex.methods.fedavg"}
    unused = (
        "families",
        "families.boosting.problem",
        "families.multitask.problem",
        "simplex.euclidean",
        "tables.csv_files",
        "secure",
        "remote",
        "sweeps",
    )
    assert not {f"fedconvex.{m}" for m in unused} & loaded


def test_names_for_type_checkers_are_the_public_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    typed = {m.rsplit(".", 1)[1] for m, _, typing in imports(tree) if typing and m.count(".") >= 1}
    assert set(fedconvex.__all__) - {"__version__"} <= typed


def unpickles(node):
    if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
        return not (isinstance(node.value, ast.Constant) and node.value.value is False)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec")


def test_nothing_is_unpickled():
    def check(path):
        tree = parsed(path)
        modules = {m.split(".")[0] for m, _, _ in imports(tree)} & {"pickle", "cPickle", "dill", "shelve"}
        return [*modules, *(ast.unparse(n) for n in nodes(tree) if unpickles(n) or loads_by_joblib(n))]

    assert not everywhere(check)


def loads_by_joblib(node):
    """Whether a statement imports more of joblib than what calls functions in other processes."""
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == "joblib" for alias in node.names)
    from_joblib = isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "joblib"
    return from_joblib and (node.module != "joblib" or not {a.name for a in node.names} <= {"Parallel", "delayed"})


def test_the_test_of_pickles_can_fail():
    calls = "np.load(f, allow_pickle=True)\nnp.load(f, allow_pickle=False)\nnp.load(f, allow_pickle=a)\neval('1')"
    assert [unpickles(n) for n in ast.walk(ast.parse(calls))].count(True) == 3
    lines = "from joblib import Parallel, delayed\nimport joblib\nfrom joblib import load\nfrom joblib.pool import f"
    assert [loads_by_joblib(n) for n in ast.parse(lines).body] == [False, True, True, True]


def draws_globally(node):
    generator = isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random")
    return generator and node.attr not in ("default_rng", "Generator", "BitGenerator", "SeedSequence")


def test_the_global_generator_is_never_used():
    assert not everywhere(lambda path: [ast.unparse(n) for n in nodes(parsed(path)) if draws_globally(n)])
    assert draws_globally(ast.parse("np.random.rand", mode="eval").body)


def public_without_docstring(tree, prefix=""):
    missing = []
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            overload = any("overload" in ast.unparse(d) or ".setter" in ast.unparse(d) for d in node.decorator_list)
            in_class = isinstance(tree, ast.ClassDef)
            if not ast.get_docstring(node) and not overload and not (in_class and node.name in PROTOCOL):
                missing.append(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                missing += public_without_docstring(node, node.name + ".")
    return missing


def test_public_names_have_docstrings():
    assert all(ast.get_docstring(parsed(path)) for path in FILES)
    assert not everywhere(lambda path: public_without_docstring(parsed(path)))


def test_the_docstring_test_can_fail():
    source = (
        "def f(): pass\nclass A:\n    'A.'\n    def g(self): pass\n    def init(self): pass\n    def _h(self): pass\n"
    )
    assert public_without_docstring(ast.parse(source)) == ["f", "A.g"]


def listed_without_definition(tree):
    """Names in __all__ that a file does not define."""
    lists = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    if not lists:
        return set()
    defined = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    defined |= {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        defined |= {x.id for t in targets if t is not None for x in ast.walk(t) if isinstance(x, ast.Name)}
    return set(ast.literal_eval(lists[0])) - defined


def test_all_names_what_exists():
    files = [p for p in FILES if name(p) != "__init__.py" and p not in LAZY]
    assert not everywhere(lambda path: listed_without_definition(parsed(path)), files)
    assert listed_without_definition(ast.parse("__all__ = ['f', 'g']\ndef f(): pass")) == {"g"}


def long_kernel(node):
    decorators = {ast.unparse(d) for d in getattr(node, "decorator_list", [])}
    return decorators & {"kernel", "reduction"} and node.end_lineno - node.lineno + 1 > 30


def test_kernels_are_short():
    """A kernel fits on a screen: at most 30 lines."""
    files = [p for p in FILES if "kernel" in p.read_text()]
    assert not everywhere(lambda path: [n.name for n in nodes(parsed(path)) if long_kernel(n)], files)
    assert long_kernel(ast.parse("@kernel\ndef f():\n" + "    x = 1\n" * 30).body[0])


# ---------------------------------------------------------------- sizes

LONGEST_FILE, LONGEST_FUNCTION = 500, 60
EXCEPTIONS = json.loads((Path(__file__).parent / "exceptions.json").read_text())  # may only shrink


def too_long(sources):
    """Lines of the files and functions (decorators and docstring included) that are longer than they may be."""
    files, functions = {}, {}
    for path, source in sources.items():
        lines = source.count("\n")
        if lines > LONGEST_FILE:
            files[path] = lines
        for node in nodes(parsed_text(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                if node.end_lineno - first + 1 > LONGEST_FUNCTION:
                    functions[f"{path}::{node.name}"] = node.end_lineno - first + 1
    return {"files": files, "functions": functions}


def against(found, exceptions):
    """What is longer than it may be or was, and exceptions that are no longer needed."""
    kinds = ("files", "functions")
    grown = [f"{k}: {n} lines" for kind in kinds for k, n in found[kind].items() if n > exceptions[kind].get(k, 0)]
    return grown, [k for kind in kinds for k in exceptions[kind] if k not in found[kind]]


def test_nothing_is_longer_than_it_may_be():
    if not EXCEPTIONS["enforced"]:
        pytest.skip("files are being moved")
    grown, needless = against(too_long({name(p): p.read_text() for p in FILES}), EXCEPTIONS)
    assert not grown, f"at most {LONGEST_FILE} lines a file, {LONGEST_FUNCTION} a function"
    assert not needless, "take these out of tests/exceptions.json"


def test_the_test_of_sizes_can_fail():
    body = "".join(f"    x = {i}\n" for i in range(LONGEST_FUNCTION - 2))
    short = {"a.py": f"@f\ndef g():\n{body}", "b.py": "x = 1\n" * LONGEST_FILE}
    assert too_long(short) == {"files": {}, "functions": {}}
    long = {"a.py": f"@f\ndef g():\n{body}    y = 1\n", "b.py": "x = 1\n" * (LONGEST_FILE + 1)}
    found = too_long(long)
    assert found == {"files": {"b.py": LONGEST_FILE + 1}, "functions": {"a.py::g": LONGEST_FUNCTION + 1}}
    assert against(found, {"files": {"b.py": 501}, "functions": {}}) == (["a.py::g: 61 lines"], [])
    assert against(found, {"files": {"b.py": 500}, "functions": {"a.py::g": 70, "c.py::h": 99}}) == (
        ["b.py: 501 lines"],
        ["c.py::h"],
    )
