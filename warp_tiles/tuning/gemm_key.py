"""The keys of the records of GEMM variants, and the machines for which the records hold."""

from __future__ import annotations

import hashlib

from warp_tiles.errors import ToolchainError
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.providers.cublasdx import CublasdxProvider
from warp_tiles.providers.mma import MmaProvider
from warp_tiles.toolchain.store import ToolchainStore
from warp_tiles.tuning.key import Environment, Scalar, TuningKey
from warp_tiles.version import __version__

SUBJECT = "gemm"


def values_of(variant: GemmProblem) -> dict[str, Scalar]:
    """The fields of a variant by name; A, B and C have separate fields."""
    found: dict[str, Scalar] = {}
    for name, value in variant.to_json().items():
        if isinstance(value, list):
            found |= {f"{name}_{operand}": item for operand, item in zip("abc", value)}
        else:
            found[name] = value
    return found


def source_of(store: ToolchainStore) -> str:
    """SHA-256 of the inputs of candidates: device sources with their headers, and the compiler, but not the chooser.

    Raises:
        ToolchainError: There is no compiler.
    """
    parts = [f"{name}={value}" for name, value in MmaProvider(store).identity().items()]
    try:
        parts += [f"{name}={value}" for name, value in CublasdxProvider(store).identity().items()]
    except ToolchainError:
        parts.append("no cublasdx")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def key_of(variant: GemmProblem, source: str, environment: Environment) -> TuningKey:
    """The key of a variant's record.

    Args:
        variant: The variant.
        source: See :func:`source_of`.
        environment: The machine of the measurement.
    """
    return TuningKey.of(SUBJECT, values_of(variant), source, environment)


def present_environments() -> tuple[Environment, ...]:
    """The environments of this machine's GPUs, each once."""
    import warp as wp

    wp.init()
    devices = wp.get_cuda_devices()
    if not devices:
        return ()
    from warp_tiles.tuning.environment import environment_of

    return tuple(dict.fromkeys(environment_of(device) for device in devices))


def named_environment(gpu: str) -> Environment:
    """Returns the pattern that the environment of an absent GPU must match. Its architecture and size are open."""
    import warp as wp

    return Environment(gpu, None, 0, wp.__version__, "", __version__)
