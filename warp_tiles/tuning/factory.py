"""The kernel factory of a tuned kernel: a function that turns configurations into kernels."""

from __future__ import annotations

import hashlib
import inspect
import sys
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import warp as wp

from warp_tiles._warp.launch import argument_names
from warp_tiles.errors import TuningError
from warp_tiles.settings import OPTION_PREFIX, from_options
from warp_tiles.tuning.record import Config, identity
from warp_tiles.tuning.space import CPU_LIMITS, Limits, Space, checked_configs, require
from warp_tiles.util.threads import unless_signalled


@dataclass(frozen=True, eq=False)
class TunedLaunch:
    """A configuration's kernel, and its threads per block; None for Warp's default."""

    config: Config
    kernel: Any
    block_dim: int | None


class KernelFactory:
    """A function that makes kernels, its configurations, and the kernels that it has made. Thread-safe.

    Args:
        default: A configuration, or the index of one; None for the first.
        block_dim: Threads per block for configurations without ``block_dim``.
        needs_block_dim: True if each configuration needs a number of threads per block.

    Raises TuningError if the function cannot be called with a configuration, or the default does not exist.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        configs: tuple[Config, ...] | Space,
        default: int | Config | None,
        block_dim: int | None,
        needs_block_dim: bool,
    ) -> None:
        is_function = isinstance(function, types.FunctionType)
        require(is_function, "the argument of autotune()", function, "give a function that makes a kernel")
        self.function = function
        self._configs = configs
        self.block_dim = block_dim
        self._needs_block_dim = needs_block_dim
        self._parameters = inspect.signature(function).parameters
        self._takes_any = any(item.kind is item.VAR_KEYWORD for item in self._parameters.values())
        self._names: tuple[str, ...] = ()  # of the kernels' arguments
        self._made: dict[str, TunedLaunch] = {}
        self._lock = threading.RLock()
        every = self.configs()
        is_index = type(default) is int and -len(every) <= default < len(every)
        holds = default is None or is_index or isinstance(default, Mapping)
        require(holds, "default", default, f"give a configuration, or the index of one of {len(every)}")
        self.default: Config = default if isinstance(default, Mapping) else every[default or 0]
        for config in (*(every[:1] if isinstance(configs, Space) else every), self.default):
            self.check(config)

    def configs(self, limits: Limits = CPU_LIMITS) -> tuple[Config, ...]:
        """The configurations; of a space, those that fulfil its constraints."""
        return self._configs.configs(limits) if isinstance(self._configs, Space) else self._configs

    def arguments(self) -> tuple[str, ...]:
        """Names of the kernels' arguments. Raises TuningError if the function accepts no configuration."""
        reasons = []
        for config in (self.default, *self.configs()):
            try:
                return argument_names(self.launch_of(config).kernel)
            except TuningError as error:
                reasons.append(error.message)
        raise TuningError(
            f"{self.function.__qualname__} accepts no configuration",
            remedy="correct it, or the configurations",
            log="\n".join(reasons[1:]),
        )

    def check(self, config: Config) -> None:
        """Raise TuningError or SettingError unless the function can be called with a configuration."""
        checked_configs([config])
        options = {} if self._takes_any else {name: config[name] for name in config if name not in self._parameters}
        unknown = [name for name in options if name != "block_dim" and not name.startswith(OPTION_PREFIX)]
        needed = [
            name
            for name, item in self._parameters.items()
            if item.default is item.empty and item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
        ]
        missing = [name for name in needed if name not in config]
        if unknown or missing:
            problems = [f"names {', '.join(unknown)}, which it does not take"] if unknown else []
            problems += [f"lacks {', '.join(missing)}"] if missing else []
            raise TuningError(
                f"the configuration {dict(config)} of {self.function.__qualname__} {' and '.join(problems)}",
                remedy=f"it takes {', '.join(self._parameters) or 'nothing'}, and block_dim goes to the launch",
            )
        from_options(options)
        if self._needs_block_dim and config.get("block_dim", self.block_dim) is None:
            raise TuningError(
                f"the configuration {dict(config)} has no block_dim", remedy="give it there, or autotune(block_dim=...)"
            )

    def launch_of(self, config: Config) -> TunedLaunch:
        """Returns the launch of a configuration. Its kernel is made once.

        Raises TuningError if the function refuses the configuration, or makes no kernel or one with other arguments.
        """
        with self._lock:
            name = identity(config)
            if name not in self._made:
                kernel = self._kernel_of(config)
                names = argument_names(kernel)
                if self._names and names != self._names:
                    raise TuningError(
                        f"the kernel of {dict(config)} takes {', '.join(names)}",
                        remedy=f"let every configuration's kernel take {', '.join(self._names)}",
                    )
                self._names = names
                self._made[name] = TunedLaunch(config, kernel, config.get("block_dim", self.block_dim))
            return self._made[name]

    def _kernel_of(self, config: Config) -> Any:
        called = self.function.__qualname__
        values = {name: value for name, value in config.items() if self._takes_any or name in self._parameters}
        try:
            kernel = self.function(**values)
        except unless_signalled(Exception) as error:
            raise TuningError(f"{called} refuses {dict(config)}: {type(error).__name__}: {error}") from error
        if not isinstance(kernel, wp.Kernel):
            raise TuningError(f"{called} gives {kernel!r} for {dict(config)}", remedy="return what @wp.kernel makes")
        options = {name: config[name] for name in config if name.startswith(OPTION_PREFIX) and name not in values}
        return _in_own_module(kernel, options)


def _in_own_module(kernel: Any, options: Mapping[str, Any]) -> Any:
    changed, original = dict(options), kernel
    if original.module.name in sys.modules:
        kernel = wp.kernel(original.func, module="unique", **original.options)
        own = kernel.module.options
        changed = {name: value for name, value in original.module.options.items() if own.get(name) != value} | changed
    if not changed:
        return kernel
    digest = hashlib.sha256(repr(sorted(changed.items())).encode()).hexdigest()[:8]
    kernel = wp.kernel(kernel.func, module=f"{kernel.module.name}_{digest}", **kernel.options)
    kernel.module.options.update(changed)
    kernel.module.mark_modified()
    return kernel
