"""Kernels that tests tune on Warp's CPU device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import warp as wp

import warp_tiles
from tests.tuning.fake_stores import MemoryStore
from warp_tiles.tuning.measure import Effort
from warp_tiles.tuning.record import Config
from warp_tiles.tuning.store import RecordStore

QUICK = Effort(warmup=1, runs=2, iterations=3)
SIZE = 64
CONFIGS = [{"tile": tile, "block_dim": 32} for tile in (8, 16, 32)]
FACTOR = 1.0


def scaled_add(tile: int, factor: float = 1.0) -> Any:
    """c += factor (a + b). It accumulates, so a missing restore changes the result."""

    @wp.kernel(module="unique", enable_backward=False)
    def kernel(a: wp.array(dtype=float), b: wp.array(dtype=float), n: int, c: wp.array(dtype=float)):
        i = wp.tid()
        x = wp.tile_load(a, shape=tile, offset=i * tile)
        y = wp.tile_load(b, shape=tile, offset=i * tile)
        z = wp.tile_load(c, shape=tile, offset=i * tile)
        wp.tile_store(c, z + (x + y) * float(factor), offset=i * tile)

    return kernel


def dim(config: Config, args: Any) -> tuple[int, ...]:
    return (args.n // config["tile"],)


def tuned(
    store: MemoryStore | RecordStore, configs: Any = None, factory: Callable[..., Any] = scaled_add, **options: Any
) -> Any:
    given = {"key": ("a", "n"), "dim": dim, "tiled": True, "effort": QUICK, "store": lambda now: store, **options}
    if "space" not in given:
        given["configs"] = CONFIGS if configs is None else configs
    return warp_tiles.autotune(**given)(factory)


def arguments(size: int = SIZE) -> dict[str, Any]:
    random = np.random.default_rng(1)
    a, b, c = (random.uniform(1, 2, size).astype(np.float32) for _ in range(3))
    arrays = (wp.array(values, dtype=float, device="cpu") for values in (a, b, c))
    return dict(zip(("a", "b", "c"), arrays), n=size)


def lists(args: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": [args["a"], args["b"], args["n"]], "outputs": [args["c"]], "device": "cpu"}
