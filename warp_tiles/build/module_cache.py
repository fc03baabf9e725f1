"""Linked modules in a cache: a module whose inputs are known needs neither its functions nor a compiler.

The key covers everything that decides about the cubin: the generated source, the options, Warp's headers, the compiler,
the linker, and the keys of the functions. It is the same on every machine with the same packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.build.phases import FETCH, LOOK_UP, Phases, now_s
from warp_tiles.compile.compiler import linker_flags
from warp_tiles.compile.module import ModuleSource, module_flags
from warp_tiles.errors import ToolchainError
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.store import MODULE
from warp_tiles.store.key import CacheKey
from warp_tiles.util.signals import raise_if_signalled

if TYPE_CHECKING:
    from warp_tiles.build.context import BuildContext
    from warp_tiles.store.cache import BuildLease, Upstream


def module_key(context: BuildContext, plan: ModulePlan, module: ModuleSource, text: str) -> CacheKey | None:
    """The key of a linked module; None if it cannot be known before it is built.

    Args:
        plan: The plan, with the keys of its functions.
        module: The module as Warp passes it to its compiler.
        text: The source, with calls of the planned functions.
    """
    keywords = module.keywords
    if module.output != "cubin" or keywords.get("lineinfo") or keywords.get("extra_include_dirs"):
        return None  # line information names files of this machine, and other headers may be anything
    functions = {v.symbol: v.key for v in plan.needed if v.provider != "scalar"}
    if not plan.has_own_code or not all(functions.values()):
        return None
    try:
        toolchain, store = context.toolchain(), context.store
        if toolchain.nvjitlink is None:
            return None
        return CacheKey.of({
            "compiler": store.compiler_digest(),
            "functions": [f"{symbol} {key}" for symbol, key in sorted(functions.items())],
            "headers": store.digests.digest_folder(Path(module.native_dir), "*.h"),
            "kind": "linked module",
            "link_options": linker_flags(module.target, module.output, plan.register_limit),
            "linker": store.linker_digest(),
            "options": module_flags(module, toolchain.nvrtc_version),  # of the folders, the content counts
            "source": text,
            "target": module.target,
        })  # fmt: skip
    except (OSError, ToolchainError) as error:
        raise_if_signalled(error)
        return None


@contextmanager
def module_flight(
    context: BuildContext, plan: ModulePlan, module: ModuleSource, text: str, phases: Phases
) -> Iterator[BuildLease | None]:
    """Look a module up, and keep other processes from linking it while the caller does.

    Args:
        plan: See :func:`module_key`.
        module: See :func:`module_key`.
        text: See :func:`module_key`.
        phases: Gets the lookup, and the time in which another place was asked.

    Yields:
        The lookup; None without a key.
    """
    started = now_s()
    key = module_key(context, plan, module, text)
    if key is None:
        yield None
        return
    upstream = context.upstream(MODULE, key)

    def asked() -> Upstream:
        assert upstream is not None
        phases.add(LOOK_UP, started)
        with phases.measured(FETCH):
            return upstream()

    with context.modules.lease(key, asked if upstream is not None else None) as lease:
        if FETCH not in {phase.name for phase in phases.found}:
            phases.add(LOOK_UP, started)
        yield lease
