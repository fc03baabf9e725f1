"""Generates modules ahead of their launches: on a thread that waits for another module, or at those of a rehearsal.

Warp's generator lock is held from the hash of a module to its removal, so no other thread sees that the module was
hashed. The launch hashes and checks it as if nothing had happened.
"""

from __future__ import annotations

import logging
import math
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, ref

import warp

from warp_tiles._warp.internals import find
from warp_tiles._warp.modules import capturing, hash_again, users_own_modules
from warp_tiles._warp.reload import LoadAgain, reusable
from warp_tiles.build.records import now_s
from warp_tiles.util.threads import raise_if_signalled

if TYPE_CHECKING:
    from warp_tiles._warp.reload import Reloads
    from warp_tiles.build.engine import Engine
    from warp_tiles.build.idle import IdleModule
    from warp_tiles.compile.module import ModuleSource

log = logging.getLogger("warp_tiles")
_SECONDS_OF_A_KERNEL = 0.02  # its generation


class NotCompiled(BaseException):
    """Ends Warp's compilation of a module before the compiler runs.

    This derives from BaseException, so Warp keeps no failure.

    Args:
        found: The generated module; None if it is left to its launch.
    """

    def __init__(self, found: IdleModule | None = None) -> None:
        super().__init__("the module was only generated")
        self.found = found


class IdleModules:
    """Generates modules that no launch has asked for.

    They are those that a start record names. Without a record, they are those of the Python files on the call stack,
    the innermost first. Of the others that exist, most are never launched: 22 of the 29 of MuJoCo Warp at the first
    launch of n_humanoid, and 89 of the 93 of Newton at that of Featherstone.

    Args:
        recorded: The block size of each module of the record, by name, in order; None without a record.
    """

    def __init__(self, reloads: Reloads, recorded: Mapping[str, int] | None = None) -> None:
        self._reloads = reloads
        self._recorded = recorded
        self._tried: WeakSet[Any] = WeakSet()
        self._states: WeakKeyDictionary[Any, set[tuple[object, ...]]] = WeakKeyDictionary()  # that were generated
        self._launched: dict[str, Counter[int]] = {}  # block sizes of launches that loaded nothing, by package

    def generate(
        self,
        left_s: float,
        is_waiting: Callable[[], bool] = lambda: True,
        given: Mapping[str, Any] | None = None,
    ) -> IdleModule | None:
        """Generate the next module without products, solvers and deferred ``wp.static`` expressions.

        Returns:
            None if there is none, if the wait has ended, if a graph is captured, or if another thread generates.

        Args:
            left_s: The time that it may take.
            is_waiting: False once this thread need not wait any longer. It is asked between two modules.
            given: Device and architecture; None takes those of the module that this thread loads.
        """
        given, end = given or self._reloads.loaded_here(), now_s() + left_s
        lock = find("codegen._codegen_lock")
        if given is None or capturing() or not lock.acquire(blocking=False):
            return None
        try:
            for module in self._candidates(left_s):
                self._tried.add(module)
                threads = self._recorded[module.name] if self._recorded is not None else self._threads_of(module, given)
                found = _generated(self._reloads, module, threads, given)
                if found is not None and found.start is not None:
                    self._states.setdefault(module, set()).add(_state(module, threads, given))
                    return found
                if now_s() > end or not is_waiting():
                    return None
        except Exception as error:  # another thread defines kernels meanwhile
            raise_if_signalled(error)
            log.debug("no module was generated ahead: %r", error)
        finally:
            lock.release()
        return None

    def _candidates(self, left_s: float) -> list[Any]:
        modules = [m for m in users_own_modules() if m not in self._tried and not m.hashers and not m.execs]
        if self._recorded is not None:
            order = list(self._recorded)
            return sorted((m for m in modules if m.name in self._recorded), key=lambda m: order.index(m.name))
        modules = [m for m in modules if len(m.kernels) * _SECONDS_OF_A_KERNEL <= left_s]
        running = _running(sys._getframe())
        return sorted((m for m in modules if _home(m) in running), key=lambda m: running.index(_home(m)))

    def generate_launched(self, module: Any, device: Any, threads: int) -> Iterator[IdleModule]:
        """Yield the launched module, as its launch would generate it, and then others (:meth:`generate`).

        A module is left out if it is loaded, if the cache has it, if another thread is loading it, if its generation
        fails, or if only a launch may build it.
        """
        given = {"device": device, "output_arch": module._get_compile_arch(device)}
        self._tried.add(module)
        self._launched.setdefault(_package(module), Counter())[threads] += 1
        if _state(module, threads, given) not in self._states.get(module, ()):
            with find("codegen._codegen_lock"):
                is_free = not module.execs and (not module.hashers or hash_again(module))
                found = _generated(self._reloads, module, threads, given, is_launched=True) if is_free else None
            if found is not None:
                yield found
        while (found := self.generate(math.inf, given=given)) is not None:
            yield found

    def _threads_of(self, module: Any, given: Mapping[str, Any]) -> int:
        """The block size that launches of a package on GPUs have given most often, or else the module's option."""
        package, sizes = _package(module), Counter[int]()
        for other in users_own_modules():
            if other.execs and _package(other) == package:
                sizes.update(int(one.block_dim) for one in tuple(other.execs.values()) if not one.device.is_cpu)
        sizes += self._launched.get(package, Counter())
        loading, options = given.get("self"), given.get("options")  # of the module that this thread loads
        if loading is not None and options and _package(loading) == package:
            sizes[int(options["block_dim"])] += 1
        return sizes.most_common(1)[0][0] if sizes else int(module.options["block_dim"])


def kernels_of(module: Any) -> tuple[object, ...]:
    """The kernels of a module, with the number of instances of generic ones. It keeps no kernel alive."""
    return tuple((ref(kernel), len(kernel.overloads)) for kernel in module.kernels.values())


def _state(module: Any, threads: int, given: Mapping[str, Any]) -> tuple[object, ...]:
    return kernels_of(module), threads, given.get("output_arch")


def _generated(
    reloads: Reloads, module: Any, threads: int, given: Mapping[str, Any], *, is_launched: bool = False
) -> IdleModule | None:
    """Generate a module that has no hash, for the device, architecture and output of a compilation.

    The caller holds Warp's generator lock.

    Args:
        given: Arguments of Warp's compilation: device, architecture and, if it is known, name of the output.
        is_launched: True at a launch, where deferred ``wp.static`` expressions are evaluated. Otherwise a module with
            such expressions is not generated, nor one with products or solvers.
    """
    if not reusable(module, is_launched=is_launched):
        return None
    started, device, arch = now_s(), given.get("device"), given.get("output_arch")
    try:
        with reloads.generating_idle():
            module.get_module_hash(threads)
        hasher = module.hashers[threads]
        links, defers = hasher.warp_tiles_links, hasher.warp_tiles_defers
        only_ffts = links and not hasher.warp_tiles_has_calls  # whose LTO-IR Warp builds during the generation
        if (only_ffts if is_launched else links or defers) or not hasher.unique_kernels:
            return None
        is_ptx = given["output_name"].endswith(".ptx") if "output_name" in given else None  # as the device prefers
        name = module._get_compile_output_name(device, arch, use_ptx=is_ptx, block_dim=threads)
        folder = Path(warp.config.kernel_cache_dir, module.get_module_identifier(threads))
        with reloads.generating_idle():
            module._compile(device, folder, name, arch, options=module.resolved_options[threads])
    except NotCompiled as end:
        return end.found and replace(end.found, generation_s=now_s() - started)
    except LoadAgain:  # a setting has changed, or the launch tunes first
        return None
    except Exception as error:  # the launch meets the same error, and reports it
        raise_if_signalled(error)
        log.debug("module %s was not generated ahead: %r", module.name, error)
    finally:
        hash_again(module)
    return None


def end_of_generation(engine: Engine, build: object, source: Path, module: ModuleSource) -> NotCompiled:
    """Returns what ends Warp's compilation of a generated module. What Warp has written for its compiler is removed.

    Args:
        build: Its build. None if it is left to Warp, as its launch will decide again.
    """
    from warp_tiles.build.idle import generated
    from warp_tiles.build.module_build import ModuleBuild
    from warp_tiles.build.warp_module import WarpModuleBuild

    found = None
    if isinstance(build, WarpModuleBuild | ModuleBuild):
        found = generated(engine, build, source, module)
    shutil.rmtree(source.parent, ignore_errors=True)
    return NotCompiled(found)


def _home(module: Any) -> str:
    """The Python module that defines a module's kernels. A module of one kernel has a name of its own."""
    return next((str(kernel.func.__module__) for kernel in module.kernels.values()), str(module.name))


def _package(module: Any) -> str:
    return _home(module).partition(".")[0]


def _running(frame: FrameType | None) -> list[str]:
    """The Python modules whose functions are running, the innermost first."""
    found: dict[str, None] = {}
    while frame is not None:
        found.setdefault(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    return list(found)
