"""Loads modules again: after tuning, or when a background build is ready.

A module that waits for a background build is in its early stage. Its plan, hash and build then use the settings of the
fast path. The stage ends at the start of a launch, when no other thread is loading the module and no graph is being
captured.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import warp

from warp_tiles import settings
from warp_tiles._warp import hashes
from warp_tiles._warp.modules import compile_into_cache
from warp_tiles._warp.prefetch import Prefetches, reusable
from warp_tiles._warp.seams import MATHDX_OPTIONS, find
from warp_tiles.build.background import BackgroundBuild
from warp_tiles.errors import PlanError, WarpTilesError
from warp_tiles.gemm.variant import GemmVariant
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.settings import Settings
from warp_tiles.solver.variant import Variant

if TYPE_CHECKING:
    from warp_tiles.build.engine import Engine
    from warp_tiles.build.module_build import ModuleBuild

_ATTEMPTS = 4  # per load: tuning, the fast path and changed settings each take one


class LoadAgain(BaseException):
    """Asks for a module to be hashed and loaded again.

    This derives from BaseException, so Warp neither caches it nor reports a failed load.

    Args:
        first: Called outside Warp's lock before the module is loaded again.
    """

    def __init__(self, first: Callable[[], None] = lambda: None) -> None:
        super().__init__("the module has to be loaded again")
        self.first = first


class Reloads:
    """Decides which modules are loaded again, and when.

    Args:
        engine: Plans, tunes and builds.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._early: weakref.WeakKeyDictionary[Any, dict[int, BackgroundBuild]] = weakref.WeakKeyDictionary()
        self._ready: dict[tuple[int, int], Any] = {}  # modules by identity and block size
        self._attempted: set[tuple[Variant, Settings]] = set()
        self._this_thread = threading.local()
        self.prefetches = Prefetches(self._compile_ahead)

    # ---- settings

    def settings_of(self, options: Mapping[str, Any], module: Any) -> Settings:
        """The settings of a module at its current stage. Without a module its options alone decide."""
        resolved = settings.current(options, getattr(module, "name", ""))
        if resolved.mathdx_opt_out == "own" and any(options.get(name) is False for name in MATHDX_OPTIONS):
            resolved = resolved.own_templates_only()
        early = resolved.background and module is not None and options["block_dim"] in self._early.get(module, ())
        return resolved.fast_path() if early else resolved

    # ---- hooks of Warp's loading

    def wrapped_load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the replacement of ``Module.load``, which every launch calls."""
        ready, outdated, pending = self._ready, hashes.outdated, self.prefetches.pending

        @functools.wraps(original)
        def load(module: Any, device: Any, block_dim: int | None = None, **named: Any) -> Any:
            if ready:
                self._end_early_stage(module)
            if outdated:
                hashes.hash_outdated(module)
            if pending:
                self.prefetches.join(module)
            try:
                if named:
                    return original(module, device, block_dim, **named)
                return original(module, device, block_dim)  # launches call it so; this wrapper adds 0.05 µs
            except LoadAgain as again:
                return self._load_again(again, module, functools.partial(original, module, device, block_dim, **named))

        return load

    def compile(self, original: Callable[..., bool], module: Any, *args: Any, **kwargs: Any) -> bool:
        """Hook of ``Module._compile``. A call without ``output_name`` compiles ahead of time and never builds later."""
        arguments = inspect.signature(original).bind(module, *args, **kwargs).arguments
        if arguments.get("output_name") is not None:
            options, device = arguments.get("options"), arguments.get("device")
            if options is not None and device is not None and not self._marked("prefetching"):
                self.prefetches.note_load(module, device, int(options["block_dim"]))
            with self._mark("loading"):
                return original(module, *args, **kwargs)
        self.prefetches.join(module)
        with self._mark("ahead_of_time"):
            try:
                return original(module, *args, **kwargs)
            except LoadAgain as again:
                return bool(self._load_again(again, module, functools.partial(original, module, *args, **kwargs)))

    def planning(self) -> Any:
        """Returns a with-block in which this thread generates code only to plan it."""
        return self._mark("planning")

    @contextmanager
    def _mark(self, name: str) -> Iterator[None]:
        before = getattr(self._this_thread, name, False)
        setattr(self._this_thread, name, True)
        try:
            yield
        finally:
            setattr(self._this_thread, name, before)

    def _marked(self, name: str) -> bool:
        return bool(getattr(self._this_thread, name, False))

    def _compile_ahead(self, module: Any, device: Any, block_dim: int) -> None:
        """Compiles a module into Warp's kernel cache, and leaves it without a hash, as it was."""
        with find("codegen._codegen_lock"):
            if module.hashers or not reusable(module):  # it was loaded, or another thread loads it
                return
            module.get_module_hash(block_dim)
            self._this_thread.hasher = module.hashers[block_dim]
        try:
            with self._mark("prefetching"):
                compile_into_cache(module, device, block_dim)
        finally:
            self._this_thread.hasher = None
            hashes.hash_again(module)

    def check_prefetch(self, builder: Any) -> None:
        """Refuses the code that a prefetch has generated if the module changed since it was hashed.

        Warp's lock is held, and nothing is written yet. Otherwise Warp's cache would have the code under another hash.

        Raises:
            LoadAgain: A constant, an option or a setting has changed. It ends the prefetch.
        """
        hashed = getattr(self._this_thread, "hasher", None)
        if hashed is None:
            return
        module, block_dim = builder.module, int(builder.options["block_dim"])
        if module.hashers.get(block_dim) is not hashed or not reusable(module):
            raise LoadAgain
        options = module.resolve_options(warp.config, block_dim=block_dim)
        if find("context.ModuleHasher")(module._get_live_kernels(), options).get_hash() != hashed.get_hash():
            raise LoadAgain

    def _load_again(self, again: LoadAgain, module: Any, load: Callable[[], Any]) -> Any:
        for _ in range(_ATTEMPTS):
            again.first()
            while not hashes.hash_again(module):
                time.sleep(0.005)  # another thread is loading it
            try:
                return load()
            except LoadAgain as another:
                again = another
            finally:
                for build in self._early.get(module, {}).values():
                    build.fast_path_loaded(None)
        raise PlanError(
            f"the settings kept changing while module {module.name} was being loaded",
            "change them between launches; then launch again",
        )

    # ---- before a build

    @property
    def is_loading(self) -> bool:
        """True while this thread compiles a module for a load or a prefetch, under the name of its hash."""
        return self._marked("loading")

    @property
    def is_planning(self) -> bool:
        """True while this thread generates code only to plan it."""
        return self._marked("planning")

    def before_build(self, module: Any, options: Mapping[str, Any], bare: ModulePlan, plan: ModulePlan,
                     prepare: Callable[[ModulePlan], ModuleBuild]) -> None:  # fmt: skip
        """Decides whether a planned module is built now, or after tuning, or on the fast path first.

        Args:
            module: Warp's module.
            options: Its resolved options.
            bare: The plan without providers.
            plan: The plan with providers.
            prepare: Creates the build of a plan.

        Raises:
            LoadAgain: Variants are tuned first, or the fast path is built first.
        """
        if self.is_planning:
            return
        resolved = plan.settings
        new = [v for v in plan.needed if v.variant is not None and (v.variant, resolved) not in self._attempted]
        tuned = [v.variant for v in new if isinstance(v.variant, GemmVariant) and v.provider != "scalar"]
        if not resolved.rules.tunes or hashes.capturing():  # nothing can be measured while a graph is captured
            tuned = []
        slow = [v for v in new if v.provider in ("cublasdx", "libmathdx") and not v.cached]
        if not slow and not tuned:
            return

        def tune() -> None:
            if tuned:
                self._engine.tune_missing(tuned, resolved)

        if self._marked("prefetching") and (tuned or resolved.background):
            raise LoadAgain  # ends the prefetch; the launch tunes, or begins with the fast path
        self._attempted.update((v.variant, resolved) for v in new if v.variant is not None)
        waits = not self._marked("ahead_of_time") and not options.get("strip_hash")
        if resolved.background and waits and self._has_fast_path(bare):

            def tune_and_prepare() -> ModuleBuild:
                tune()
                return prepare(self._engine.annotate(bare))

            self._begin_early_stage(module, int(options["block_dim"]), tune_and_prepare)
            raise LoadAgain
        if tuned:
            raise LoadAgain(tune)

    def _has_fast_path(self, bare: ModulePlan) -> bool:
        try:
            self._engine.annotate(replace(bare, settings=bare.settings.fast_path()))
        except (TypeError, WarpTilesError):
            return False
        return True

    # ---- the early stage

    def _begin_early_stage(self, module: Any, block_dim: int, prepare: Callable[[], ModuleBuild]) -> None:
        key = (id(module), block_dim)
        owner = weakref.ref(module)

        def on_end(ready: bool) -> None:
            held = owner()
            if ready and held is not None and self._early.get(held, {}).get(block_dim) is build:
                self._ready[key] = held

        stages = self._early.setdefault(module, {})
        build = BackgroundBuild(module.name, prepare, on_end)
        if stages.setdefault(block_dim, build) is build:
            build.start()

    def fast_path_built(self, module: Any, build: ModuleBuild) -> None:
        """Passes the source of a module's fast path to its background build."""
        background = self._early.get(module, {}).get(build.plan.block_dim)
        if background is not None:
            background.fast_path_loaded(build.module_source)

    def _end_early_stage(self, module: Any) -> None:
        block_dims = [block_dim for identity, block_dim in tuple(self._ready) if identity == id(module)]
        if not block_dims or hashes.capturing():
            return

        def leave() -> None:
            for block_dim in block_dims:
                self._ready.pop((id(module), block_dim), None)
                self._early.get(module, {}).pop(block_dim, None)

        hashes.hash_again(module, leave)

    def after_fork(self) -> None:
        """Resets a forked child, which has no threads of its parent. Its modules wait for their builds."""
        self._this_thread = threading.local()
        self.prefetches.after_fork()
        modules = list(self._early)
        self.reset()
        for module in modules:
            module.mark_modified()

    def reset(self) -> None:
        """Cancels all background builds and prefetches, and ends all early stages."""
        self.prefetches.stop()
        for stages in tuple(self._early.values()):
            for build in stages.values():
                build.cancel()
        self._early.clear()
        self._ready.clear()
        hashes.outdated.clear()
        self._attempted.clear()
