"""Builds candidates of a GEMM variant as cubins, in parallel: through the cache, and linked like modules."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from warp_tiles.compile.pool import Compilers, result_of
from warp_tiles.errors import BuildError, RefusedWorkerError, WarpTilesError, WorkerError
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.providers.base import Built, ProviderContext
from warp_tiles.providers.cublasdx import CublasdxProvider
from warp_tiles.providers.mma import MmaProvider, register_accumulators
from warp_tiles.toolchain.store import ToolchainStore
from warp_tiles.tuning.gemm_bench import compile_request, link_request
from warp_tiles.tuning.gemm_space import tile_config_of
from warp_tiles.tuning.record import Config
from warp_tiles.util.threads import DaemonThreads, wait_all

_WAITING_THREADS = 64


class TuningContext(ProviderContext, Protocol):
    """The build context, and the compiler processes."""

    @property
    def store(self) -> ToolchainStore:
        """The toolchain and its digests."""

    @property
    def pool(self) -> Compilers:
        """The compiler processes."""


@dataclass(frozen=True)
class Benchmark:
    """A candidate that can be launched.

    Attributes:
        config: The candidate.
        cubin: Its kernels, see :mod:`warp_tiles.tuning.gemm_bench`.
        has_loop: True if it can keep the sums of a loop in registers.
    """

    config: Config
    cubin: bytes
    has_loop: bool


@dataclass(frozen=True)
class FailedBuild:
    """A candidate that could not be built, and the reason."""

    config: Config
    reason: str


def build(context: TuningContext, variant: GemmProblem, config: Config) -> Benchmark:
    """Build and link one candidate.

    Raises:
        BuildError, LinkError: The candidate cannot be built.
        ToolchainError: The machine lacks a tool.
        ValueError: The configuration is not valid.
    """
    tile_config = tile_config_of(config)
    built = _built(context, variant, config)
    sums = register_accumulators(variant, built.symbol, tile_config) if tile_config else None
    own_templates = tile_config is not None
    main = result_of(context.pool.submit(compile_request(variant, built.symbol, sums)))
    linked = context.pool.submit(link_request(variant, (main.payload, built.payload), own_templates))
    return Benchmark(config, result_of(linked).payload, sums is not None)


def _built(context: TuningContext, variant: GemmProblem, config: Config) -> Built:
    tile_config = tile_config_of(config)
    if tile_config is not None:
        own = MmaProvider(context.store)
        return own.build(own.recipe(variant, tile_config), context)
    provider = CublasdxProvider(context.store)
    recipes = provider.recipes(variant)
    for recipe in recipes[:-1]:
        try:
            return provider.build(recipe, context)
        except BuildError:
            continue
    return provider.build(recipes[-1], context)


def build_in_parallel(
    context: TuningContext, variant: GemmProblem, configs: Sequence[Config], deadline: float = math.inf
) -> Iterator[Benchmark | FailedBuild]:
    """Build candidates in parallel, and yield them in the order of ``configs``. Those not ready in time are left out.

    Args:
        context: The build context.
        variant: The GEMM variant.
        configs: The candidates.
        deadline: When to stop waiting, by ``time.monotonic()``.

    Raises:
        WorkerError: A compiler process died twice. This says nothing about the candidate.
    """
    threads = DaemonThreads(_WAITING_THREADS, "warp_tiles_tune")
    try:
        futures = [threads.submit(_attempt, context, variant, config) for config in configs]
        limit = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        done = wait_all(futures, limit)
        for future in futures:
            if future in done:
                yield future.result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _attempt(context: TuningContext, variant: GemmProblem, config: Config) -> Benchmark | FailedBuild:
    try:
        try:
            return build(context, variant, config)
        except RefusedWorkerError:
            raise
        except WorkerError:
            return build(context, variant, config)
    except WorkerError:
        raise
    except (WarpTilesError, ValueError) as error:
        log = getattr(error, "log", "")
        cause = next((line.strip() for line in log.splitlines() if "error" in line), "")
        return FailedBuild(config, f"{getattr(error, 'message', error)}{f': {cause}' if cause else ''}")
