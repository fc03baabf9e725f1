"""Generates modules ahead of their launches: while a launch waits for another module, or by ``warp-tiles warm``.

Warp's generator lock is held from the hash of a module to its removal, so no other thread sees that the module was
hashed. The launch hashes and checks it as if nothing had happened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

import warp

from warp_tiles._warp.internals import find
from warp_tiles._warp.modules import capturing, hash_again, users_own_modules
from warp_tiles._warp.reload import LoadAgain, loaded_here, reusable, this_thread
from warp_tiles.util.threads import unless_signalled

if TYPE_CHECKING:
    from warp_tiles.build.ahead import AheadModule

log = logging.getLogger("warp_tiles")


class NotCompiled(BaseException):
    """Ends Warp's compilation of a module before the compiler runs.

    This derives from BaseException, so Warp keeps no failure. ``generated`` is None for what is left to its launch.
    """

    def __init__(self, generated: AheadModule | None = None) -> None:
        super().__init__("the module was only generated")
        self.generated = generated


class RecordedModules:
    """Generates the modules of a start record, each once."""

    def __init__(self) -> None:
        self._tried: WeakSet[Any] = WeakSet()

    def generate(self, recorded: Mapping[str, int], is_waiting: Callable[[], bool]) -> AheadModule | None:
        """Generate the next module without products, solvers and deferred ``wp.static`` expressions.

        Args:
            recorded: The block size of each module, by name, in their order.
            is_waiting: False once this thread need not wait any longer. It is asked between two modules.

        Returns:
            None if there is none, if the wait has ended, if a graph is captured, or if another thread generates.
        """
        given, lock = loaded_here(), find("codegen._codegen_lock")
        if given is None or capturing() or not lock.acquire(blocking=False):
            return None
        try:
            for module in self._candidates(recorded):
                self._tried.add(module)
                try:
                    generated = _generated(module, recorded[module.name], given)
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

    def _candidates(self, recorded: Mapping[str, int]) -> list[Any]:
        order = {name: place for place, name in enumerate(recorded)}
        modules = (m for m in users_own_modules() if m.name in order)
        fresh = (m for m in modules if m not in self._tried and not m.hashers and not m.execs)
        return sorted(fresh, key=lambda m: order[m.name])


def kernels_of(module: Any) -> tuple[object, ...]:
    """The kernels of a module, with the number of instances of generic ones. It keeps no kernel alive."""
    return tuple((ref(kernel), len(kernel.overloads)) for kernel in module.kernels.values())


def packages_of(module: Any) -> list[str]:
    """The Python packages that define the kernels of a module, by the first part of their names."""
    return sorted({str(kernel.func.__module__).partition(".")[0] for kernel in module.kernels.values()})


def generate_launched(module: Any, threads: int, given: Mapping[str, Any]) -> AheadModule | None:
    """Generate a module as its launch would, for a device or None, and an architecture.

    None if only the launch may build it. An error of its generation is the one that the launch meets.
    """
    with find("codegen._codegen_lock"):
        hash_again(module)  # Warp hashes a module of one kernel to name it
        return _generated(module, threads, given, is_launched=True)


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
    try:
        with this_thread(ahead=True):
            module.get_module_hash(threads)
        hasher = module.hashers[threads]
        links, defers = hasher.warp_tiles_links, hasher.warp_tiles_defers
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
        hash_again(module)
    return None
