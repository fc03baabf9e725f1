"""Modules that are generated ahead of their launches, and the builds of their sources."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.build.context import BuildContext
from warp_tiles.build.module_build import ModuleBuild
from warp_tiles.build.start_record import StartModule, build_ahead, keys_of
from warp_tiles.build.warp_module import Start, WarpModuleBuild, WarpOutput, content_key
from warp_tiles.errors import WarpTilesError
from warp_tiles.store.key import CacheKey
from warp_tiles.util.threads import raise_if_signalled

if TYPE_CHECKING:
    from warp_tiles.build.engine import Engine
    from warp_tiles.build.start_record import ProgramStart
    from warp_tiles.compile.module import ModuleSource

log = logging.getLogger("warp_tiles")

Generate = Callable[[Callable[[], bool]], "IdleModule | None"]
"""``generate(is_waiting)`` generates a module on this thread; None if ``is_waiting()`` is false, or if none can be."""


@dataclass(frozen=True)
class IdleModule:
    """A module that was generated ahead of its launch.

    Attributes:
        key: Its content key.
        start: The lookup of its start key; None if the module has no start key.
    """

    module: StartModule
    key: CacheKey
    start: Start | None
    context: BuildContext


def generated(
    engine: Engine, build: WarpModuleBuild | ModuleBuild, source: Path, module: ModuleSource
) -> IdleModule | None:
    """A module that Warp has generated ahead. None if only its launch may build it."""
    if isinstance(build, ModuleBuild):
        parts = build.ahead(source, module)
        if parts is None:
            return None
        context = engine.build_context(build.plan.settings)
        one = StartModule.of(build.plan.name, build.plan.block_dim, parts[0], {}, parts[1])
        key, _ = keys_of(engine, context, one)
        return None if key is None else IdleModule(one, key, None, context)
    if module.keywords.get("ltoirs") or module.keywords.get("fatbins"):
        return None
    if build.context.bundle is not None or not build.plan.settings.rules.builds:
        return None
    request, wanted, reason = build.request(source.read_bytes(), module, ())
    if reason:
        return None
    one = StartModule.of(build.plan.name, build.plan.block_dim, request, build.meta, None)
    return IdleModule(one, content_key(build.context, request, wanted.target), build.start, build.context)


def compiled(engine: Engine, one: IdleModule, *, waits: bool = False) -> tuple[CacheKey, bool] | None:
    """Compile or link a generated module into the cache, and bind its start key. See :func:`build_ahead`."""
    done, start = build_ahead(engine, one.context, one.module, waits=waits), one.start
    # with a remote store, only a launch binds the start key, so that only launched modules are pushed
    binds = done is not None and start is not None and start.found is None and one.context.remote is None
    if done is not None and start is not None and binds and (entry := one.context.modules.get(done[0])):
        found = WarpOutput.of(entry)
        if found is not None and found.meta == one.module.meta:  # no key covers it, and others replace entries
            start.keep(entry.payload, {"module": one.module.name, "content_key": one.key.digest})
    return done


class RecordedModules:
    """Generates the modules of a start record while a launch waits for another one.

    :class:`.start_record.ProgramStart` compiles the recorded sources. This class generates the modules and binds their
    start keys, so that their launches generate nothing. A module whose source has changed is compiled, too.

    Args:
        generate: Generates a module on this thread, see :data:`Generate`.
    """

    def __init__(self, engine: Engine, start: ProgramStart, generate: Generate) -> None:
        self._engine = engine
        self._start = start
        self._generate = generate

    def while_waiting(self, is_waiting: Callable[[], bool]) -> None:
        """Generate modules until a launch need not wait any longer, or no module can be generated."""

        def goes_on() -> bool:
            return not self._start.is_stopped and is_waiting()

        # the time of a generation is saved at the module's launch
        while goes_on() and (one := self._generate(goes_on)) is not None:
            self._start.after_build(one.module, functools.partial(self._bind, one))

    def _bind(self, one: IdleModule) -> None:
        try:
            compiled(self._engine, one)
        except (WarpTilesError, TypeError, OSError) as error:  # its launch meets the same error, and reports it
            raise_if_signalled(error)
            log.debug("module %s was not compiled ahead: %s", one.module.name, error)
