"""The plan of a product on a device: its GPU, the settings, and the tuning records that the package ships."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import warp

from warp_tiles._warp import is_enabled
from warp_tiles._warp.intercept import is_planning
from warp_tiles.gemm.matmul_problem import (
    CPU_TILE,
    Candidate,
    Gpu,
    MatmulConfig,
    MatmulPlan,
    MatmulProblem,
    MeasuredConfigs,
    ShapeBucket,
)
from warp_tiles.gemm.pipeline import PipelineOverrides
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.settings import DEFAULT, current

if TYPE_CHECKING:
    from warp_tiles.tuning.record import Record
    from warp_tiles.tuning.tuning_key import Environment, TuningKey

# of plans on a machine without a GPU, with another name if the setting target_gpu has one
PLANNED_GPU = Gpu(90, 132, "NVIDIA H200")
_REFERENCE = "NVIDIA H100 80GB HBM3"  # other GPUs with its architecture and multiprocessors use its records
BUCKET = ("a", "b", "out", "layout", "log2_m", "log2_n", "log2_k", "log2_batch")  # of a record's key


def plan_of(problem: MatmulProblem, device: Any, config: MatmulConfig | None = None) -> MatmulPlan:
    """How a product is computed on a device; ``config`` is one that a search forces."""
    if not device.is_cuda and not is_planning():
        found = config or CPU_TILE
        return MatmulPlan(problem, Candidate(found), found, "search" if config else "heuristic")
    from warp_tiles.gemm.matmul import choose_matmul

    if device.is_cuda:
        gpu = Gpu(device.arch, device.sm_count, str(device.name))
    else:
        gpu = replace(PLANNED_GPU, name=current().target_gpu or PLANNED_GPU.name)
    records = {} if config or is_deterministic() else records_for(gpu)
    return choose_matmul(problem, gpu, records, pipeline=_pipeline(), forced=config)


def is_deterministic() -> bool:
    """True if products have to add in the same order in each run: records do not count then."""
    return bool(getattr(warp.config, "deterministic", False))  # Warp 1.19 has it


def _pipeline() -> PipelineOverrides | Rejected | None:
    """What the settings fix of a loop's pipeline, or the reason why it has no stages; None if the launch may fix it."""
    if not (is_enabled() or is_planning()):
        return Rejected("not_enabled")
    now = current()
    for name in ("register_accumulators", "async_copies"):
        if not getattr(now, name):
            return now.against(name)
    return None if now.layer("main_loop") == DEFAULT else PipelineOverrides.parse(now.main_loop)


def key_of(problem: MatmulProblem, source: str, environment: Environment) -> TuningKey:
    """The key of the tuning record of a product's shape bucket."""
    from warp_tiles.tuning.tuning_key import TuningKey

    return TuningKey.of("matmul", dict(zip(BUCKET, problem.bucket)), source, environment)


@functools.cache
def records_for(gpu: Gpu) -> Mapping[ShapeBucket, MeasuredConfigs]:
    """The configurations that the package ships for a GPU, by its name."""
    from warp_tiles.tuning.shipped import shipped_records

    kind = gpu.arch, gpu.multiprocessors
    return winners(shipped_records("matmul", gpu.name, kind) or shipped_records("matmul", _REFERENCE, kind))


def winners(records: Iterable[Record]) -> dict[ShapeBucket, MeasuredConfigs]:
    """The measured configurations that are faster than the choice without them, by shape bucket.

    A record compares loops with the kernel with tensor copies if it has a timing of the kernel.
    """
    found: dict[ShapeBucket, MeasuredConfigs] = {}
    for record in records:
        winner, values = record.winner(), dict(record.key.values)
        if winner is not None and winner is not record.default:
            bucket: Any = tuple(values[name] for name in BUCKET)
            config = MatmulConfig(**winner.config)  # texts and numbers
            compared = any(timing.config.get("tensor_copies") for timing in record.timings)
            known = found.get(bucket, MeasuredConfigs())
            found[bucket] = replace(known, best=config) if compared else replace(known, loop=config)
    return found
