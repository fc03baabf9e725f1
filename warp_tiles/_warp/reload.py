"""Loads modules again, after tuning or after a change of settings. Compiles or generates modules ahead of launches.

A thread generates and compiles a module into Warp's kernel cache, before its first launch. It loads nothing on a
device, so it disturbs no capture of a graph. Afterwards it discards the module's hash, because the program may still
change what the module depends on. The launch hashes the module as usual, and finds the compiled file if nothing
changed. A launch waits for the thread that compiles its module.

A module that is only generated ahead, while a launch waits for another module or by ``warp-tiles warm``, has its hash
under Warp's generator lock alone. So no other thread sees that it was hashed.

:data:`this_thread` says what a thread does for Warp meanwhile.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import warp

from warp_tiles._warp.internals import GEMM_OPTION, MATHDX_OPTIONS, find
from warp_tiles._warp.modules import (
    capturing,
    compile_into_cache,
    hash_again,
    hash_outdated,
    loading,
    loads,
    outdated,
    user_modules,
    users_own_modules,
    withdrawn,
)
from warp_tiles.build.context import ahead_of_launches
from warp_tiles.errors import PlanError, unless_signalled
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.settings import Settings, current
from warp_tiles.util.threads import PREFETCH, wait_all
from warp_tiles.util.warn import log

if TYPE_CHECKING:
    from warp_tiles._warp.generation import BuilderState
    from warp_tiles._warp.tracer import Tracer
    from warp_tiles.build.ahead import AheadModule
    from warp_tiles.build.engine import Engine
    from warp_tiles.build.warp_module import Start

_ATTEMPTS = 4  # per load: tuning and changed settings each take one
_LONG_SOURCE = 20_000  # characters of a module's kernels, whose compilation takes several seconds


class LoadAgain(BaseException):
    """Asks for a module to be hashed and loaded again, after a call of ``first`` outside Warp's lock.

    This derives from BaseException, so Warp neither caches it nor reports a failed load.
    """

    def __init__(self, first: Callable[[], None] = lambda: None) -> None:
        super().__init__("the module has to be loaded again")
        self.first = first


class _ThisThread(threading.local):
    """What this thread does for Warp now. ``with this_thread(ahead=True):`` sets values for a block.

    Attributes:
        loading: True while it compiles a module for a load or a prefetch, under the name of its hash.
        planning: True while it generates code only to plan it.
        prefetching: True while it compiles a module whose hash is that of ``hasher``.
        hasher: Warp's hasher of that module.
        on_cpu: While it loads or prefetches a module, True for a CPU and False for a GPU; None otherwise.
        ahead: True while it generates a module ahead of its launch.
        compiling: The arguments of Warp's compilation, or None.
        start: The lookup of the module that Warp generates, or why there was none.
        state: The module whose source Warp generates, if it has products or solvers.
    """

    loading = planning = prefetching = ahead = False
    hasher: Any = None
    on_cpu: bool | None = None
    compiling: Mapping[str, Any] | None = None
    start: Start | Rejected | None = None
    state: BuilderState | None = None
    adjoint: Any = None
    tracer: Tracer | None = None

    @contextmanager
    def __call__(self, **values: Any) -> Iterator[None]:
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)


this_thread = _ThisThread()


def loaded_here() -> Mapping[str, Any] | None:
    """The arguments of Warp's compilation if this thread compiles for a load; None in other compilations."""
    here = this_thread
    return None if not here.loading or here.planning or here.prefetching or here.ahead else here.compiling


def target_of(module: Any, options: Mapping[str, Any]) -> str:
    """What this thread compiles a module to: architecture, suffix, cubin or PTX; empty if it compiles none."""
    if not (given := this_thread.compiling):
        return ""
    arch, threads = options["output_arch"], options["block_dim"]
    named = given.get("output_name") or module._get_compile_output_name(
        given.get("device"), arch, use_ptx=given.get("use_ptx"), block_dim=threads
    )
    suffix = getattr(warp.config, "cuda_arch_suffix", None)  # an output without a name has it too
    return f"{arch} {named.removeprefix(module.get_module_identifier(threads))} {suffix}"


def is_cpu(device: Any) -> bool:
    known = getattr(device, "is_cpu", None)  # None for the name of a device
    return bool(warp.get_device(device).is_cpu if known is None else known)


class ModuleHash:
    """The hash of a module with products or solvers, in place of ``ModuleHasher.get_hash``.

    On a CPU, where its source is Warp's, it is Warp's hash. On a GPU it covers all that affects its code here.

    Attributes:
        choices: The settings, providers and records in the hash for a GPU; None before anything has asked for it.
    """

    def __init__(self, engine: Engine, module: Any, digest: bytes, settings: Settings) -> None:
        self.choices: str | None = None
        self._engine, self._module, self._settings = engine, weakref.ref(module), settings
        self._of_warp = self._of_gpu = digest

    def __call__(self) -> bytes:
        module = self._module()
        # Warp 1.19 names a unique module by this hash
        if this_thread.on_cpu or getattr(module, "defer_reference_scan", False):
            return self._of_warp
        if self.choices is None:
            if this_thread.on_cpu is False and self._engine.build_context(self._settings).facts.digests.is_empty:
                # the first use on a machine, so no cache has the module
                self._engine.start_compilers(self._settings, getattr(module, "name", ""))
            fingerprint = self._engine.fingerprint(self._settings).encode("utf-8")
            self._of_gpu = hashlib.sha256(self._of_warp + fingerprint).digest()
            self.choices = self._engine.choices(self._settings)
        return self._of_gpu


class Reloads:
    """Decides which modules are loaded again, and when."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._attempted: set[tuple[str, int, Settings]] = set()  # modules by name and threads per block
        self.prefetches = Prefetches(engine)
        self.is_left_to_warp = False  # because this Warp generates code in an unknown way

    # ---- settings

    def settings_of(self, options: Mapping[str, Any], module: Any) -> Settings:
        """The settings of a module. Without a module its options alone decide."""
        resolved = current(options, getattr(module, "name", ""))
        if self.is_left_to_warp:
            return resolved.left_to_warp()
        if any(options.get(name) is False for name in MATHDX_OPTIONS):
            return resolved.opted_out(products=options.get(GEMM_OPTION) is False)
        return resolved

    # ---- hooks of Warp's loading

    def wrapped_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the replacement of ``Module.load``, which every launch calls."""
        pending = self.prefetches.pending

        @functools.wraps(original)
        def load(module: Any, device: Any, block_dim: int | None = None, **named: Any) -> Any:
            if outdated:
                hash_outdated(module)
            if pending:
                self.prefetches.join(module)
            call = object()  # as loading() does, without another call in each launch
            loads[call] = get_ident(), module
            before, this_thread.on_cpu = this_thread.on_cpu, is_cpu(device)
            try:
                if named:
                    return original(module, device, block_dim, **named)
                return original(module, device, block_dim)
            except LoadAgain as caught:
                again = caught
            finally:
                this_thread.on_cpu = before
                del loads[call]
            with this_thread(on_cpu=is_cpu(device)):
                return self._load_again(again, original, module, device, block_dim, **named)

        return load

    def compile(self, original: Callable[..., bool], module: Any, *args: Any, **kwargs: Any) -> bool:
        """Hook of ``Module._compile``. A call without ``output_name`` compiles ahead of time and never builds later."""
        arguments = inspect.signature(original).bind(module, *args, **kwargs).arguments
        if arguments.get("output_name") is not None:
            with this_thread(loading=True, compiling=arguments):
                return original(module, *args, **kwargs)
        self.prefetches.join(module)
        try:
            with loading(module), this_thread(compiling=arguments):
                return bool(original(module, *args, **kwargs))
        except LoadAgain as caught:
            again = caught
        return bool(self._load_again(again, original, module, *args, **kwargs))

    def _load_again(self, again: LoadAgain, load: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        for _ in range(_ATTEMPTS):
            again.first()
            with withdrawn(module):  # two threads that load it would wait for each other
                while not hash_again(module):
                    time.sleep(0.005)  # another thread is loading it
            try:
                with loading(module):
                    return load(module, *args, **kwargs)
            except LoadAgain as another:
                again = another
        raise PlanError(
            f"the settings kept changing while module {module.name} was being loaded",
            "change them between launches; then launch again",
        )

    # ---- before a build

    def before_build(self, plan: ModulePlan) -> None:
        """Raises LoadAgain to tune the launch that loads a module before its build, if the policy asks for that."""
        resolved = plan.settings
        if not resolved.rules.tunes or resolved.forced or not (plan.needed or plan.loops):
            return
        # without a launch there is nothing to measure in place, and a graph capture allows no measurement
        if this_thread.planning or not this_thread.loading or capturing():
            return
        asked = plan.name, plan.block_dim, resolved
        if asked in self._attempted:
            return
        if this_thread.prefetching or this_thread.ahead:
            raise LoadAgain  # ends the work ahead; the launch tunes
        self._attempted.add(asked)
        raise LoadAgain(lambda: self._engine.tune_launch(resolved))

    def after_fork(self) -> None:
        """Resets a forked child, which has no threads of its parent."""
        vars(this_thread).clear()
        self.prefetches.after_fork()
        self.reset()

    def reset(self) -> None:
        """Cancels all prefetches, and forgets which hashes are outdated and what was tuned."""
        self.prefetches.stop()
        outdated.clear()
        self._attempted.clear()


# ---- compiled ahead


class Prefetches:
    """The modules that are compiled ahead of their launches; launches look into ``pending``, which is by identity."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self.pending: dict[int, tuple[Any, Future[None]]] = {}

    def start(self, modules: Iterable[tuple[Any, Any, int]]) -> int:
        """Queues modules, each with a device and a block size, before those of a start list. Returns how many, at once.

        Modules that cannot be compiled ahead are left out: the cache of kernels is off, or their names or hashes do not
        identify their content.
        """
        targets = {id(target[0]): target for target in modules if reusable(target[0])}
        with self._lock:
            fresh = {key: target for key, target in targets.items() if key not in self.pending}
            for key, target in fresh.items():
                future = self._engine.build_context(current()).queue.submit(_prefetch, *target, order=PREFETCH)
                self.pending[key] = (target[0], future)
                future.add_done_callback(lambda _, key=key: self.pending.pop(key, None))  # type: ignore[misc]
        return len(fresh)

    def join(self, module: Any) -> None:
        """Waits for the running compilation of a module. The caller compiles what has not begun.

        A caller that holds the lock of Warp's code generator does not wait, because the thread may need that lock.
        """
        _, future = self.pending.get(id(module), (None, None))
        if future is not None and not future.cancel() and not find("codegen._codegen_lock")._is_owned():
            wait_all([future])

    def stop(self) -> None:
        """Cancels what has not begun, and waits for the rest, because a compiler must not run while a process ends."""
        with self._lock:
            running = [future for _, future in tuple(self.pending.values()) if not future.cancel()]
        wait_all(running)
        self.pending.clear()

    def after_fork(self) -> None:
        """Resets a forked child, which has no threads of its parent."""
        self._lock = threading.Lock()
        self.pending.clear()


def _prefetch(module: Any, device: Any, block_dim: int) -> None:
    try:
        with ahead_of_launches(PREFETCH):
            _compile_ahead(module, device, block_dim)
    except unless_signalled(Exception) as error:  # the launch meets the same error, and reports it
        log.debug("module %s was not compiled ahead: %r", module.name, error)


def _compile_ahead(module: Any, device: Any, block_dim: int) -> None:
    """Compiles a module into Warp's kernel cache, and leaves it without a hash, as it was."""
    with find("codegen._codegen_lock"):
        # Warp hashes a module of one kernel when the kernel is defined, so a hash does not mean that it was loaded
        if module.execs or not reusable(module) or (module.hashers and not hash_again(module)):
            return
        with this_thread(on_cpu=is_cpu(device)):
            module.get_module_hash(block_dim)
        hasher = module.hashers[block_dim]
    try:
        with this_thread(prefetching=True, hasher=hasher, on_cpu=is_cpu(device)):
            compile_into_cache(module, device, block_dim)
    finally:
        hash_again(module)


def check_prefetch(module: Any, block_dim: int) -> None:
    """Ends a prefetch by LoadAgain if the module or a setting changed since the module was hashed.

    Nothing is written yet. Otherwise Warp's cache would have the code under another hash.
    """
    if (hashed := this_thread.hasher) is None:
        return
    with find("codegen._codegen_lock"):
        if module.hashers.get(block_dim) is not hashed or not reusable(module):
            raise LoadAgain
        options = module.resolve_options(warp.config, block_dim=block_dim)
        if find("context.ModuleHasher")(module._get_live_kernels(), options).get_hash() != hashed.get_hash():
            raise LoadAgain


def reusable(module: Any, *, is_launched: bool = False) -> bool:
    """True if a launch finds the file of an earlier compilation exactly if nothing changed in between.

    Warp evaluates deferred ``wp.static`` expressions when it first hashes a module, so it must not be hashed before its
    launch.
    """
    return bool(
        warp.config.cache_kernels
        and not module.options.get("strip_hash")
        and not module.options.get("verify_autograd_array_access")
        and not warp.config.verify_autograd_array_access
        and (is_launched or not module.has_unresolved_static_expressions)
    )


# ---- generated ahead


class NotCompiled(BaseException):
    """Ends Warp's compilation of a module before the compiler runs.

    This derives from BaseException, so Warp keeps no failure. ``generated`` is None for what is left to its launch.
    """

    def __init__(self, generated: AheadModule | None = None) -> None:
        super().__init__("the module was only generated")
        self.generated = generated


class ListedModules:
    """Generates the modules of a start list, each once."""

    def __init__(self) -> None:
        self._tried: WeakSet[Any] = WeakSet()

    def generate(self, listed: Mapping[str, int], is_waiting: Callable[[], bool]) -> AheadModule | None:
        """Generate the next module without products, solvers and deferred ``wp.static`` expressions.

        ``listed`` has the block size of each module, by name, in their order. ``is_waiting`` is asked between two
        modules. None if there is none, if it says no, if a graph is captured, or if another thread generates.
        """
        given, lock = loaded_here(), find("codegen._codegen_lock")
        if given is None or capturing() or not lock.acquire(blocking=False):
            return None
        try:
            for module in self._candidates(listed):
                self._tried.add(module)
                try:
                    generated = _generated(module, listed[module.name], given)
                except unless_signalled(Exception) as error:  # the launch meets the same error, and reports it
                    log.debug("module %s was not generated ahead: %r", module.name, error)
                    generated = None
                start = None if generated is None else generated.start
                if start is not None and start.found is None:  # the cache does not have it
                    return generated
                if not is_waiting():
                    return None
        except unless_signalled(Exception) as error:  # another thread defines kernels meanwhile
            log.debug("no module was generated ahead: %r", error)
        finally:
            lock.release()
        return None

    def _candidates(self, listed: Mapping[str, int]) -> list[Any]:
        order = {name: position for position, name in enumerate(listed)}
        modules = (m for m in users_own_modules() if m.name in order)
        fresh = (m for m in modules if m not in self._tried and not m.hashers and not m.execs)
        return sorted(fresh, key=lambda m: order[m.name])


def kernels_of(module: Any) -> tuple[object, ...]:
    """The kernels of a module, with the number of instances of generic ones. It keeps no kernel alive."""
    return tuple((weakref.ref(kernel), len(kernel.overloads)) for kernel in module.kernels.values())


def long_callers(module: Any) -> list[Any]:
    """The modules of the Python files with a running function, other than this one, whose kernels are long."""
    frame, modules, names = sys._getframe(1), user_modules(), dict[str, None]()
    while frame is not None:
        names[str(frame.f_globals.get("__name__"))] = None
        frame = frame.f_back  # type: ignore[assignment]
    callers = (modules[name] for name in names if name in modules and modules[name] is not module)
    return [caller for caller in callers if sum(len(k.adj.source) for k in caller.kernels.values()) > _LONG_SOURCE]


def generate_launched(
    module: Any, threads: int, given: Mapping[str, Any], *, is_launched: bool = True
) -> AheadModule | None:
    """Generate a module as its launch would, for a device or None, and an architecture.

    None if only the launch may build it. An error of its generation is the one that the launch meets.
    """
    with find("codegen._codegen_lock"):
        hash_again(module)  # Warp hashes a module of one kernel to name it
        return _generated(module, threads, given, is_launched=is_launched)


def _generated(module: Any, threads: int, given: Mapping[str, Any], *, is_launched: bool = False) -> AheadModule | None:
    """Generate a module that has no hash, for the device, architecture and output of a compilation.

    The caller holds Warp's generator lock.

    Args:
        given: Arguments of Warp's compilation: device, architecture and, if it is known, name of the output.
        is_launched: True at a launch, where deferred ``wp.static`` expressions are evaluated. Otherwise a module with
            such expressions is not generated, nor one with products or solvers.
    """
    if not reusable(module, is_launched=is_launched):
        return None
    device, arch = given.get("device"), given.get("output_arch")
    evaluated: list[tuple[Any, Any]] = []
    try:
        with this_thread(ahead=True):
            module.get_module_hash(threads)
        hasher = module.hashers[threads]
        links, defers = hasher.warp_tiles_links, hasher.warp_tiles_deferring
        evaluated += ((adjoint, adjoint.deferred_static_expressions) for adjoint in defers)
        has_calls = hasher.warp_tiles_has_calls
        only_ffts = links and not has_calls  # whose LTO-IR Warp builds during the generation
        if (only_ffts if is_launched else links or has_calls or defers) or not hasher.unique_kernels:
            return None
        is_ptx = given["output_name"].endswith(".ptx") if "output_name" in given else None  # as the device prefers
        name = module._get_compile_output_name(device, arch, use_ptx=is_ptx, block_dim=threads)
        folder = Path(warp.config.kernel_cache_dir, module.get_module_identifier(threads))
        with this_thread(ahead=True):
            module._compile(device, folder, name, arch, options=module.resolved_options[threads])
    except NotCompiled as end:
        return end.generated
    except LoadAgain:  # a setting has changed, or the launch tunes first
        return None
    finally:
        for adjoint, expressions in evaluated:  # Warp's next hash covers those that a generation has evaluated
            adjoint.deferred_static_expressions = expressions
        hash_again(module)
    return None
