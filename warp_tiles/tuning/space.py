"""The configurations of a search, as a list or as a space. Pure functions."""

from __future__ import annotations

import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warp_tiles.errors import TuningError
from warp_tiles.gemm.hardware import BLOCK_THREADS, multiprocessor
from warp_tiles.tuning.record import Config, identity
from warp_tiles.util.threads import unless_signalled
from warp_tiles.util.warn import shown

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
        import warp as wp

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
