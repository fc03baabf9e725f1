"""The maker of a tuned kernel: a function that turns configurations into kernels."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from warp_tiles.errors import TuningError
from warp_tiles.settings import OPTION_PREFIX, from_options
from warp_tiles.tuning.measure import Effort
from warp_tiles.tuning.record import Config, identity
from warp_tiles.tuning.source import function_text
from warp_tiles.tuning.space import CPU_LIMITS, Limits, Space, checked_configs

_KERNEL = re.compile(r"^\s+@[\w.]*kernel\b.*(?:\n\s*@.*)*\n\s*def\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Measurement:
    """Options for launching and measuring candidates; see :func:`warp_tiles.autotune`.

    Attributes:
        tiled: Launch as ``wp.launch_tiled`` does.
        reference: ``first``, a function of the arguments, or None.
        rtol, atol: Tolerances of results.
        is_scaled: True if ``atol`` is a share of the largest element of an array.
        flush_l2: Measure with inputs that are not in the L2 cache.
        jobs: Number of parallel builds; 0 for one per core.
        effort: Amount of measurement; None for the default.
        devices: Further GPUs that share the work; GPUs unlike the launch's own are left out.
    """

    tiled: bool = False
    reference: Any = None
    rtol: float = 1e-2
    atol: float = 1e-3
    flush_l2: bool = False
    jobs: int = 0
    effort: Effort | None = None
    devices: tuple[Any, ...] = ()
    is_scaled: bool = False

    def key_values(self) -> dict[str, Any]:
        """Options that differ from the defaults and affect timings or failures."""
        found: dict[str, Any] = {"measure.tiled": True} if self.tiled else {}
        if self.flush_l2:
            found["measure.flush_l2"] = True
        if self.reference is not None:
            kind = "first" if self.reference == "first" else "function"
            found["measure.reference"] = f"{kind}, rtol {self.rtol:g}, atol {self.atol:g}"
        return found


@dataclass(frozen=True, eq=False)
class TunedLaunch:
    """A configuration's kernel, ready to be launched.

    Attributes:
        config: The configuration.
        kernel: Warp's kernel.
        block_dim: Threads per block; None for Warp's default.
    """

    config: Config
    kernel: Any
    block_dim: int | None


def argument_names(kernel: Any) -> tuple[str, ...]:
    """Names of a kernel's arguments, in order."""
    return tuple(inspect.signature(kernel.func).parameters)


def _kernel_arguments(function: types.FunctionType) -> tuple[str, ...]:
    """Returns the arguments of the kernels that a function defines if all have the same; else an empty tuple."""
    text = function_text(function, decorators=False) or ""
    kernels = _KERNEL.findall(text)
    inner = [item for item in function.__code__.co_consts if isinstance(item, types.CodeType)]
    found = {code.co_varnames[: code.co_argcount] for code in inner if code.co_name in kernels}
    return found.pop() if len(found) == 1 else ()


def make_kernel(maker: Callable[..., Any], config: Config) -> Any:
    """Make the kernel of a configuration, in its own Warp module.

    A kernel of a shared module is made again, because each candidate would also build the other kernels of the module.

    Raises:
        TuningError: The maker refused the configuration, or did not return a kernel.
    """
    import warp as wp

    taken = inspect.signature(maker).parameters.values()
    every = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken)
    names = {parameter.name for parameter in taken}
    try:
        kernel = maker(**{name: value for name, value in config.items() if every or name in names})
    except Exception as error:
        raise TuningError(f"{maker.__qualname__} refuses {dict(config)}: {type(error).__name__}: {error}") from error
    if not isinstance(kernel, wp.Kernel):
        raise TuningError(
            f"{maker.__qualname__} gives {kernel!r} for {dict(config)}", remedy="return what @wp.kernel makes"
        )
    options = {
        name: value
        for name, value in config.items()
        if name.startswith(OPTION_PREFIX) and not every and name not in names
    }
    return _in_own_module(kernel, options)


def _in_own_module(kernel: Any, options: Mapping[str, Any]) -> Any:
    import warp as wp

    changed = dict(options)
    original = kernel
    if original.module.name in sys.modules:
        kernel = wp.kernel(original.func, module="unique", **original.options)
        own = kernel.module.options
        changed = {name: value for name, value in original.module.options.items() if own.get(name) != value} | changed
    if not changed:
        return kernel
    digest = hashlib.sha256(repr(sorted(changed.items())).encode()).hexdigest()[:8]
    name = f"{kernel.module.name}_{digest}"
    kernel = wp.kernel(kernel.func, module=name, **kernel.options)
    kernel.module.options.update(changed)
    kernel.module.mark_modified()
    return kernel


class Maker:
    """A function that makes kernels, its configurations, and the kernels that it has made. Thread-safe.

    Args:
        function: Makes a kernel from the values of a configuration.
        configs: A list or a space.
        default: A configuration, or the index of one; None for the first.
        block_dim: Threads per block for configurations without ``block_dim``.
        needs_block_dim: True if each configuration needs a number of threads per block.

    Raises:
        TuningError: The function cannot be called with a configuration, or the default does not exist.
    """

    def __init__(
        self,
        function: types.FunctionType,
        configs: tuple[Config, ...] | Space,
        default: int | Config | None,
        block_dim: int | None,
        needs_block_dim: bool,
    ) -> None:
        self.function = function
        self._configs = configs
        self._block_dim = block_dim
        self._needs_block_dim = needs_block_dim
        self._names = _kernel_arguments(function)  # often known without making a kernel, which takes 0.5 ms
        self._built: dict[str, TunedLaunch] = {}
        self._lock = threading.RLock()
        every = self.configs()
        for config in every[:1] if isinstance(configs, Space) else every:
            self.check(config)
        if isinstance(default, Mapping):
            self.check(default)
            self.default: Config = default
        elif default is None or (type(default) is int and -len(every) <= default < len(every)):
            self.default = every[default or 0]
        else:
            raise TuningError(
                f"default is {default!r}", remedy=f"give a configuration, or the index of one of {len(every)}"
            )

    def key_values(self) -> dict[str, Any]:
        """The options that all configurations share."""
        return {} if self._block_dim is None else {"launch.block_dim": self._block_dim}

    def configs(self, limits: Limits = CPU_LIMITS) -> tuple[Config, ...]:
        """The configurations; of a space, those that fulfil its constraints."""
        return self._configs.configs(limits) if isinstance(self._configs, Space) else self._configs

    def arguments(self) -> tuple[str, ...]:
        """Names of the kernels' arguments.

        Raises:
            TuningError: The function accepts no configuration.
        """
        reasons = []
        for config in () if self._names else (self.default, *self.configs()):
            try:
                self.launch_of(config)
                break
            except TuningError as error:
                reasons.append(error.message)
        if not self._names:
            raise TuningError(
                f"{self.function.__qualname__} accepts no configuration",
                remedy="correct it, or the configurations",
                log="\n".join(reasons[1:]),
            )
        return self._names

    def check(self, config: Config) -> None:
        """Check that the function can be called with a configuration.

        Raises:
            TuningError: A name is missing or unknown.
            SettingError: An option of the module is unknown or has an unknown value.
        """
        checked_configs([config])
        parameters = inspect.signature(self.function).parameters
        every = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        known = {"block_dim", *parameters}
        unknown = [name for name in config if name not in known and not name.startswith(OPTION_PREFIX) and not every]
        missing = [
            name
            for name, parameter in parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            and name not in config
        ]
        if unknown or missing:
            problems = [f"names {', '.join(unknown)}, which it does not take"] if unknown else []
            problems += [f"lacks {', '.join(missing)}"] if missing else []
            raise TuningError(
                f"the configuration {dict(config)} of {self.function.__qualname__} {' and '.join(problems)}",
                remedy=f"it takes {', '.join(parameters) or 'nothing'}, and block_dim goes to the launch",
            )
        if not every:
            from_options({name: value for name, value in config.items() if name not in parameters})
        block_dim = config.get("block_dim", self._block_dim)
        if self._needs_block_dim and block_dim is None:
            raise TuningError(
                f"the configuration {dict(config)} has no block_dim", remedy="give it there, or autotune(block_dim=...)"
            )

    def launch_of(self, config: Config) -> TunedLaunch:
        """Returns the launch of a configuration. Its kernel is made once.

        Raises:
            TuningError: The maker refuses the configuration, or makes a kernel with other arguments.
        """
        with self._lock:
            name = identity(config)
            if name not in self._built:
                kernel = make_kernel(self.function, config)
                names = argument_names(kernel)
                if self._names and names != self._names:
                    raise TuningError(
                        f"the kernel of {dict(config)} takes {', '.join(names)}",
                        remedy=f"let every configuration's kernel take {', '.join(self._names)}",
                    )
                self._names = names
                self._built[name] = TunedLaunch(config, kernel, config.get("block_dim", self._block_dim))
            return self._built[name]
