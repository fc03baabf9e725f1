"""What a tuned kernel is made from: configurations, the function that makes kernels of them, and their arguments."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import math
import random
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import warp as wp

from warp_tiles._warp.launch import argument_names
from warp_tiles.errors import TuningError, shown, unless_signalled
from warp_tiles.gemm.hardware import BLOCK_THREADS, multiprocessor
from warp_tiles.settings import OPTION_PREFIX, from_options
from warp_tiles.tuning.record import Config, Scalar, identity

LARGEST_SPACE = 1_000_000


def require(holds: bool, name: str, value: Any, remedy: str) -> None:
    if not holds:
        raise TuningError(f"{name} is {shown(value, 300)}", remedy=remedy)


@dataclass(frozen=True)
class Limits:
    """Limits of one block on a device. ``registers`` are those of a multiprocessor, 32 bits each."""

    shared_bytes: int
    registers: int
    threads: int = BLOCK_THREADS

    @classmethod
    def of(cls, device: Any) -> Limits:
        """The limits on a Warp device, which may be given by name."""
        device = wp.get_device(device)
        if device.is_cpu:
            return CPU_LIMITS
        limits = multiprocessor(device.arch)
        return cls(device.max_shared_memory_per_block, limits.registers, limits.block_threads)


# the CPU device has no such limits; https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (compute capabilities)
CPU_LIMITS = Limits(shared_bytes=2**62, registers=2**62)


class Space:
    """Every combination of some values that fulfils the constraints.

        Space(tile_m=[32, 64], tile_n=[32, 64], block_dim=[64, 128],
              constraints=[lambda c: c["tile_m"] * c["tile_n"] <= 4096,
                           lambda c, limits: 2 * c["tile_m"] * 64 <= limits.shared_bytes])

    Args:
        constraints: Predicates of a configuration, or of a configuration and the device's :class:`Limits`. A
            configuration stays if all of them hold. They are checked before anything is built.
        values: The values of each name.

    Raises:
        TuningError: There is no name, a name has no value or one twice, or there are more than a million combinations.
    """

    def __init__(self, *, constraints: Sequence[Callable[..., bool]] = (), **values: Iterable[Any]) -> None:
        self.values: dict[str, tuple[Any, ...]] = {}
        for name, choices in values.items():
            is_list = isinstance(choices, Iterable) and not isinstance(choices, (str, bytes))
            require(is_list, f"{name} of the space", choices, "give a list of values")
            self.values[name] = tuple(choices)
            checked_configs([{name: value} for value in self.values[name]], f"the values of {name}")
        are_predicates = isinstance(constraints, Iterable) and all(map(callable, constraints))
        require(are_predicates, "constraints", constraints, "give a list of predicates")
        self.constraints = tuple(constraints)
        size = math.prod(len(choices) for choices in self.values.values())
        if not self.values or size > LARGEST_SPACE:
            raise TuningError(
                f"the space has {size if self.values else 0} combinations", remedy=f"give 1 to {LARGEST_SPACE}"
            )

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{name}={list(choices)!r}' for name, choices in self.values.items())})"

    def configs(self, limits: Limits = CPU_LIMITS) -> tuple[Config, ...]:
        """The configurations that fulfil every constraint; the last name varies fastest.

        Raises:
            TuningError: No configuration does, or a constraint raised an error.
        """
        every = (dict(zip(self.values, choices)) for choices in itertools.product(*self.values.values()))
        tests = [_test(constraint, limits) for constraint in self.constraints]
        kept = tuple(config for config in every if all(test(config) for test in tests))
        if not kept:
            raise TuningError(f"no configuration of {self!r} fulfils the constraints", remedy="loosen a constraint")
        return kept


def _test(constraint: Callable[..., bool], limits: Limits) -> Callable[[Config], bool]:
    takes_limits = len(inspect.signature(constraint).parameters) > 1

    def test(config: Config) -> bool:
        try:
            return bool(constraint(config, limits) if takes_limits else constraint(config))
        except unless_signalled(Exception) as error:
            raise TuningError(f"a constraint failed for {dict(config)}: {error!r}") from error

    return test


def checked_configs(configs: Iterable[Any], what: str = "the configurations") -> tuple[Config, ...]:
    """Returns configurations as a tuple.

    Raises TuningError if there are none, one occurs twice, or one is not a mapping of names to JSON values.
    """
    distinct: dict[str, Config] = {}
    for config in configs:
        if not isinstance(config, Mapping) or not all(isinstance(name, str) for name in config):
            raise TuningError(
                f"{what} hold {config!r}", remedy="give each configuration as a dictionary of names and values"
            )
        try:
            text = identity(config)
        except (TypeError, ValueError) as error:
            raise TuningError(
                f"{what} hold {config!r}, which has no JSON form: {error}",
                remedy="use numbers, strings, booleans, None, and lists of them; close over anything else",
            ) from error
        if text in distinct:
            raise TuningError(f"{what} hold {config!r} twice", remedy="give each once")
        distinct[text] = config
    if not distinct:
        raise TuningError(f"{what} are empty", remedy="give at least one")
    return tuple(distinct.values())


@dataclass(frozen=True)
class Random:
    """A random subset of the configurations.

    Attributes:
        n: Number of configurations; all if there are not more.
        seed: The same seed picks the same ones.

    Raises:
        TuningError: ``n`` is not positive.
    """

    n: int
    seed: int = 0

    def __post_init__(self) -> None:
        is_count = type(self.n) is int and self.n >= 1
        require(is_count, "n of the random subset", self.n, "give a whole number, at least 1")

    def candidates(self, configs: Sequence[Config]) -> tuple[Config, ...]:
        """Returns the configurations to measure. The same input gives the same result."""
        if self.n >= len(configs):
            return tuple(configs)
        return tuple(random.Random(self.seed).sample(list(configs), self.n))


# ---- kernels


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


# ---- the arguments of its kernels by name, and what of them is part of a key

Key = tuple[str, ...] | Callable[[SimpleNamespace], Mapping[str, Scalar]]


def checked_key(key: Any) -> Key:
    """The key as names of arguments, each once, or as a function of them. Raises TuningError for others."""
    if callable(key):
        function: Key = key
        return function
    names = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Iterable) else ()
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names) or not names:
        raise TuningError(f"key is {key!r}", remedy="name the kernel arguments that decide, each once")
    return names


def refuse_unknown(names: Iterable[str], arguments: Sequence[str], what: str) -> None:
    """Raise TuningError, with the valid names, if a name is not an argument."""
    if unknown := [name for name in names if name not in arguments]:
        message = f"{what} names {', '.join(unknown)}, which the kernel does not take"
        raise TuningError(message, remedy=f"its arguments are {', '.join(arguments)}")


def in_order(
    arguments: Sequence[str], inputs: Sequence[Any], outputs: Sequence[Any], named: Mapping[str, Any]
) -> list[Any]:
    """The values in the order of the arguments. Raises TuningError if one is missing, unknown or given twice."""
    positional = [*inputs, *outputs]
    refuse_unknown(named, arguments, "the launch")
    rest = arguments[len(positional) :]
    twice = [name for name in arguments[: len(positional)] if name in named]
    missing = [name for name in rest if name not in named]
    if twice or missing or len(positional) > len(arguments):
        problems = [f"{', '.join(twice)} twice"] if twice else []
        problems += [f"no {', '.join(missing)}"] if missing else []
        problems += [f"{len(positional)} values in lists"] if len(positional) > len(arguments) else []
        message = f"the launch gives {' and '.join(problems)}"
        raise TuningError(message, remedy=f"the kernel's arguments are {', '.join(arguments)}")
    return positional + [named[name] for name in rest]


def namespace(arguments: Sequence[str], values: Sequence[Any]) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip(arguments, values)))


def key_values(key: Key, arguments: Sequence[str], values: Sequence[Any]) -> dict[str, Scalar]:
    """The key entries of arguments: shape, dtype and layout of an array, the value of a scalar, vector or matrix.

    Raises TuningError for any other value.
    """
    if callable(key):
        given = key(namespace(arguments, values))
        valid = isinstance(given, Mapping) and all(isinstance(name, str) for name in given)
        if not valid or not all(isinstance(value, Scalar) for value in given.values()):
            raise TuningError(
                f"the key function gives {given!r}", remedy="return strings, numbers, booleans or None by name"
            )
        return {name: _finite(value) for name, value in given.items()}
    by_name = dict(zip(arguments, values))
    return {entry: value for name in key for entry, value in _described(name, by_name[name]).items()}


def hashable(value: Any) -> Any:
    """Returns a hashable form of a key value. Two forms are equal only if a key holds the same text for both."""
    kind = type(value)
    if kind is int or kind is bool or kind is str:
        return kind, value
    if kind is float:
        return kind, repr(value)
    if hasattr(value, "_length_"):  # a Warp vector, matrix or quaternion
        return kind, bytes(value)
    return kind, tuple(_described("", value).values())


def is_array(value: Any) -> bool:
    """True also for what looks like a Warp array."""
    return all(hasattr(value, name) for name in ("shape", "strides", "dtype")) and bool(value.shape)


def is_struct(value: Any) -> bool:
    return hasattr(value, "_cls") and hasattr(value._cls, "vars")


def _described(name: str, value: Any) -> dict[str, Scalar]:
    if value is None or isinstance(value, (bool, int, float, str)):
        return {name: _finite(value)}
    if is_array(value):
        return {
            f"{name}.shape": "x".join(map(str, value.shape)),
            f"{name}.dtype": getattr(value.dtype, "__name__", None) or str(value.dtype),
            f"{name}.layout": _layout(value),
        }
    if hasattr(value, "item"):  # a NumPy scalar
        return {name: _finite(value.item())}
    if hasattr(value, "value") and isinstance(value.value, (bool, int, float)):  # a Warp scalar
        return {name: _finite(value.value)}
    if hasattr(value, "__len__") and hasattr(value, "_length_"):  # a Warp vector, matrix or quaternion
        return {name: f"{type(value).__name__}{[float(item) for item in _flat(value)]}"}
    description = "a struct" if is_struct(value) else repr(value)
    remedy = "name scalars and arrays, or give key=lambda args: {...}"
    raise TuningError(f"the key names {name}, which is {description}", remedy=remedy)


def _finite(value: Scalar) -> Scalar:
    """Returns the value, or its text if JSON cannot represent the number."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _flat(value: Any) -> Iterable[Any]:
    for item in value:
        if hasattr(item, "__len__"):
            yield from _flat(item)
        else:
            yield item


def _layout(array: Any) -> str:
    """Returns ``contiguous``, or the strides in elements."""
    size = getattr(array, "itemsize", 0) or wp.types.type_size_in_bytes(array.dtype)
    expected, contiguous = 1, True
    for extent, stride in zip(reversed(array.shape), reversed(array.strides)):
        contiguous = contiguous and (extent == 1 or stride == expected * size)
        expected *= extent
    return "contiguous" if contiguous else "x".join(f"{stride / size:g}" for stride in array.strides)
