"""The one place where Numba is set up: kernel decorators and the disk cache.

Five traps are closed here.

* Numba's cache does not see edits in *other* files that a kernel inlines: the cache folder carries a digest of all
  sources that kernels are made of: this folder, the files that import this one or define a rule of `kernels.jobs`, and
  those named in `INLINED`.
* An entry that names a class from a user's own module cannot be read back where that module is missing, and takes the
  whole index of the kernel with it: signatures with foreign classes are compiled in memory only.
* The cache ignores jit options: every function is decorated once.
* A damaged file (a full disk, a power failure) would end in a crash, or in wrong code: files carry a digest.
* Numba numbers the files of a kernel's entries by what its index holds: two processes that add to it at once use one
  number twice, and a later one loads the wrong code. Saving takes turns here.
"""

from __future__ import annotations

import gc
import hashlib
import io
import os
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import binding as llvm
from numba import njit, types
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.core.targetconfig import ConfigStack
from numba.core.typing.templates import infer, infer_global, make_overload_template

from fedconvex._progress import compiling_line

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

FASTMATH = {"reassoc", "contract", "nsz", "arcp"}  # NaN and infinity keep their meaning
config: Any = numba.config  # its settings are made at import and unknown to type checkers
DISABLED = bool(config.DISABLE_JIT)
_PACKAGE = Path(__file__).resolve().parents[1]
INLINED = ("entropic.py", "penalties.py", "draws.py", "federation.py", "methods/parts/optimizers.py")  # by `overload`
_KEPT = 4  # caches of earlier versions of the sources that are kept


def in_digest(name: str, source: bytes) -> bool:
    """Whether kernels may be made of a file of the package, given by its path in it and its content."""
    rule = b"def step(self, loss, data," in source or b"def steps(self, loss, data," in source
    return name in INLINED or name.startswith(("kernels/", "losses/")) or b"kernels.cache" in source or rule


def _digest() -> str:
    h = hashlib.blake2b(digest_size=8)
    for path in sorted(_PACKAGE.rglob("*.py")):
        name, source = path.relative_to(_PACKAGE).as_posix(), path.read_bytes()
        if in_digest(name, source):
            h.update(name.encode() + b"\0" + source + b"\0")
    return h.hexdigest()


def _cache_folder() -> str:
    """Return (and make) the folder of compiled kernels for exactly these sources."""
    if config.CACHE_DIR:
        roots = [Path(config.CACHE_DIR)]
    else:
        roots = [_PACKAGE / "__pycache__"]
        with suppress(RuntimeError):  # a user without a home: HOME is not set, and the system does not know the number
            roots.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedconvex")
    for root in roots:
        folder = root / f"kernels-{_digest()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                _prune(root, folder)
                return str(folder)
        except OSError:
            continue
    return ""


def _prune(root: Path, current: Path) -> None:
    """Remove all but the newest few caches of other versions of the sources."""
    others = [p for p in root.glob("kernels-*") if p != current]
    for old in sorted(others, key=lambda p: p.stat().st_mtime, reverse=True)[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


_FOLDER = "" if DISABLED else _cache_folder()


def _foreign(t: Any) -> bool:
    """Whether a Numba type names a class defined outside this package."""
    parts = list(getattr(t, "types", ()) or ())
    home = getattr(getattr(t, "instance_class", None), "__module__", "fedconvex")
    return home.partition(".")[0] != "fedconvex" or any(_foreign(p) for p in parts)


class _CheckedFile(IndexDataCacheFile):
    """Index and code of a kernel, each file with a digest at its end: one that is damaged counts as missing."""

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[Any]:
        with super()._open_for_write(filepath) as file:
            content = io.BytesIO()
            yield content
            file.write(content.getvalue() + _seal(content.getvalue()))

    def _load_index(self) -> dict:
        return super()._load_index() if self._sound(self._index_path) else {}

    def _load_data(self, name: str) -> Any:
        if not self._sound(self._data_path(name)):
            raise OSError  # `load` then finds nothing
        return super()._load_data(name)

    def _sound(self, path: str) -> bool:
        """Whether a file is missing or whole."""
        try:
            content = Path(path).read_bytes()
        except FileNotFoundError:
            return True
        if content[-_SEAL:] == _seal(content[:-_SEAL]):
            return True
        folder = os.path.dirname(path)
        warnings.warn(
            f"compiled code in {folder} is damaged and compiled anew; the folder may be removed", stacklevel=2
        )
        return False


_SEAL = 16  # bytes of a digest


def _seal(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SEAL).digest()


class _KernelCache(FunctionCache):
    """Numba's disk cache of checked files, except that signatures with classes of other modules stay in memory."""

    def __init__(self, function: Callable) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _CheckedFile(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        return None if any(map(_foreign, sig)) else super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        if any(map(_foreign, data.signature.args)):
            return
        with suppress(OSError), _turn():  # what cannot be saved stays in memory
            super().save_overload(sig, data)


@contextmanager
def _turn() -> Iterator[None]:
    """Wait until no other process saves to the cache, where the system has locks that end with their process."""
    if fcntl is None:
        yield
        return
    with open(Path(_FOLDER) / "lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Stopwatch(event.Listener):
    """Adds up how long Numba's compiler lock is held: one thread compiles, or reads the cache, at a time."""

    depth, since, total = 0, 0.0, 0.0

    def on_start(self, event: Any) -> None:
        self.since = self.since if self.depth else time.perf_counter()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        self.total += 0.0 if self.depth else time.perf_counter() - self.since


_STOPWATCH = _Stopwatch()
if not DISABLED:
    event.register("numba:compiler_lock", _STOPWATCH)


class _Hearing(event.Listener):
    """Ctrl-C, SIGTERM while kernels are compiled or read: what is raised in a callback of LLVM is lost; we raise it."""

    depth = 0
    heard: BaseException | None = None

    def __init__(self) -> None:
        self.before: dict[Any, Any] = {}

    def on_start(self, _: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self.depth += 1
            if self.depth == 1:
                self.heard = None
                both = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
                self.before = {s: handler for s, handler in both.items() if callable(handler)}
                for s in self.before:
                    signal.signal(s, self._hear)

    def on_end(self, _: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self.depth -= 1
            if self.depth == 0:
                for s, handler in self.before.items():
                    signal.signal(s, handler)
                if self.heard is not None:
                    raise self.heard

    def _hear(self, number: int, frame: Any) -> None:
        try:
            self.before[number](number, frame)
        except KeyboardInterrupt as stop:
            self.heard = stop
            raise


event.register("numba:compiler_lock", _Hearing())


class _Telling(event.Listener):
    """Says once on a command's terminal why nothing seems to happen: kernels are compiled, not read."""

    said = False

    def on_start(self, _: Any) -> None:
        self.said = self.said or compiling_line()

    def on_end(self, _: Any) -> None:
        """Nothing is said at the end."""


event.register("numba:compile", _Telling())


def compile_seconds() -> float:
    """Return the seconds that this process has spent so far on compiling kernels and on reading them from the cache."""
    return _STOPWATCH.total


def _compile(function: Callable, **options: Any) -> Any:
    if DISABLED:  # counters wrap around by design, and NumPy would warn of it
        return np.errstate(over="ignore", divide="ignore", invalid="ignore", under="ignore")(function)
    options |= {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}  # nobody calls kernels from C
    dispatcher: Any = njit(pipeline_class=_Entry, **options)(function)
    if _FOLDER:
        before, config.CACHE_DIR = config.CACHE_DIR, _FOLDER
        try:
            dispatcher._cache = _KernelCache(function)
        finally:
            config.CACHE_DIR = before
    return dispatcher


def kernel(function: Callable) -> Any:
    """Compile with strict floating point, also where a `reduction` is the first to call it."""
    return _compile(function, fastmath=False)


def reduction(function: Callable) -> Any:
    """Compile with sums reordered and fused; NaN and infinity keep their meaning."""
    return _compile(function, fastmath=FASTMATH)


def borrowing(function: Callable) -> Any:
    """Compile like `reduction`, without reference counts: for loops over jobs that borrow arrays and allocate nothing.

    Counts are atomic, and a job of five steps in two dimensions costs less than ten of them.
    """
    return _compile(function, fastmath=FASTMATH, _nrt=False)


class _Undisturbed(event.Listener):
    """No garbage collection while kernels are compiled: it takes a tenth of the time, and most objects live on."""

    depth, before = 0, True

    def on_start(self, _: Any) -> None:
        if self.depth == 0:
            self.before = gc.isenabled()
            gc.disable()
        self.depth += 1

    def on_end(self, _: Any) -> None:
        self.depth -= 1
        if self.depth == 0 and self.before:
            gc.enable()


event.register("numba:compile", _Undisturbed())


_OPTIONS = tuple((name, option.default) for name, option in Flags.options.items())


def _equal(self: Any, other: Any) -> Any:
    """Whether two sets of compiler flags have the same values, as Numba asks, without a property for each of them."""
    if not isinstance(other, Flags):
        return NotImplemented
    mine, yours = self._values, other._values
    return mine == yours or all(mine.get(name, start) == yours.get(name, start) for name, start in _OPTIONS)


def _hash(self: Any) -> int:
    """Of some values: Numba takes the names alone, which all sets of flags have in common."""
    return hash((self.nrt, self.error_model, self.forceinline, self.no_cpython_wrapper, self.release_gil))


Flags.__eq__, Flags.__hash__ = _equal, _hash  # type: ignore[method-assign, assignment]


class _Rolled(JITCodeLibrary):
    """A library whose loops LLVM vectorises, but does not unroll, which took a tenth of the time."""

    vectorised = True

    def _optimize_final_module(self) -> None:
        codegen = self._codegen
        if not hasattr(codegen, "_pass_builder"):  # Numba 0.61: LLVM's former managers of passes
            super()._optimize_final_module()
            return
        passes, cheap = codegen._module_pass_manager(loop_vectorize=False, slp_vectorize=False, opt=0, cost="cheap")
        passes.run(self._final_module, cheap)
        options = llvm.create_pipeline_tuning_options(speed_level=int(config.OPT))
        options.loop_vectorization = self.vectorised and bool(config.LOOP_VECTORIZE)
        options.slp_vectorization, options.loop_unrolling = bool(config.SLP_VECTORIZE), False
        full = llvm.create_pass_builder(codegen._tm, options)
        passes = full.getModulePassManager()
        if config.LLVM_REFPRUNE_PASS:
            passes.add_refprune_pass()
        passes.run(self._final_module, full)


class _NoMachineCode(_Rolled):
    """A library that is linked into those of its callers, and is never run itself: they vectorise its loops."""

    vectorised = False

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    @property
    def codegen(self) -> Any:
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: what is never run has no environment."""


class _AsWritten(_NoMachineCode):
    """A library that is left to its callers to optimise."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """Do nothing: callers do."""


class _Entry(Compiler):
    """The compiler of what Python calls."""

    library: type[JITCodeLibrary] = _Rolled

    def define_pipelines(self) -> Any:
        self.state.library = self.library(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        return super().define_pipelines()


class _Inside(_Entry):
    """The compiler up to LLVM's optimised form: machine code of what only kernels call took an eighth of the time."""

    library = _NoMachineCode


class _Through(_Inside):
    """The compiler up to LLVM's form as written, for what mostly calls others: LLVM would optimise those twice."""

    library = _AsWritten


def overload(stub: Callable, fastmath: Any, through: bool = False, **options: Any) -> Callable:
    """Return a decorator of functions that choose by types what calls of the stub mean in kernels.

    With ``through``, LLVM optimises them as pieces of their callers only.
    """
    compiler = _Through if through else _Inside
    jit_options: Any = {"nopython": True, "fastmath": fastmath, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    jit_options |= {"error_model": "numpy", "pipeline_class": compiler}
    jit_options |= {name: options.pop(name) for name in ("_nrt", "forceinline") if name in options}
    inline = options.pop("inline", "never")

    def decorate(choose: Callable) -> Callable:
        template: Any = make_overload_template(stub, choose, jit_options, False, inline)
        template._get_impl = _implementation
        template.inherited = tuple(flag for flag, name in _INHERITED.items() if name not in jit_options)
        infer(template)
        infer_global(stub, types.Function(template))
        return choose

    return decorate


_INHERITED = {"nrt": "_nrt", "forceinline": "forceinline"}  # what a part has of its caller, unless its options say


def _implementation(self: Any, args: Any, kws: Any) -> Any:
    """Return the dispatcher of a part for these types: one for all callers of whom it inherits the same."""
    caller = ConfigStack.top_or_none()
    flags = tuple(getattr(caller, flag) for flag in self.inherited if caller is not None)
    key = self.context, tuple(args), tuple(kws.items()), flags
    return self._impl_cache[key] if key in self._impl_cache else self._build_impl(key, args, kws)


def _compile_inside(function: Callable, fastmath: Any, **options: Any) -> Any:
    """Compile into the kernels that call it, without an entry of its own from Python, which costs as much again."""
    if DISABLED:
        return function

    @wraps(function)
    def in_python(*args: Any) -> Any:
        return function(*args)

    overload(in_python, fastmath, **options)(lambda *_: function)
    return in_python


def part(function: Callable) -> Any:
    """Compile a part of kernels like a `reduction`; called from Python, it runs as Python."""
    return _compile_inside(function, FASTMATH)


def strict_part(function: Callable) -> Any:
    """Compile a part of kernels with strict floating point; called from Python, it runs as Python."""
    return _compile_inside(function, False)


def inner_part(function: Callable) -> Any:
    """Compile a part of `borrowing` loops, inlined into them: it counts no references, and may return what it was lent.

    What does not depend on a loop's rule and loss is typed once for all of them this way.
    """
    return _compile_inside(function, FASTMATH, through=True, forceinline=True, _nrt=False)


class Compiled(event.Listener):
    """Counts compilations, and the wall time that they take."""

    def __init__(self) -> None:
        self.functions, self.seconds = 0, 0.0
        self._depth, self._begin = 0, 0.0

    def on_start(self, _: event.Event) -> None:
        """Note one function; those that it calls are compiled within its time."""
        self._begin = self._begin if self._depth else time.perf_counter()
        self._depth += 1
        self.functions += 1

    def on_end(self, _: event.Event) -> None:
        """Add the time of a function that no other waits for."""
        self._depth -= 1
        self.seconds += 0.0 if self._depth else time.perf_counter() - self._begin


@contextmanager
def compiling() -> Iterator[Compiled]:
    """Count what is compiled within the block."""
    counter = Compiled()
    event.register("numba:compile", counter)
    try:
        yield counter
    finally:
        event.unregister("numba:compile", counter)


def folder() -> str:
    """Return the folder of compiled kernels; nothing where they are not kept, or not compiled."""
    return _FOLDER
