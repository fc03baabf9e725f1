"""Generated modules on the emulator, with NumPy arrays in place of Warp's arrays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np
import warp as wp

import warp_tiles
from tests.emulator.memory import Memory, Values, array_argument, bounds_argument, null_array
from tests.emulator.module import KERNELS, EmulatedModule, Machine, Outcome
from tests.emulator.native import FOLDER
from tests.integration.helpers import load, without_compilation
from warp_tiles.compile import sources
from warp_tiles.providers.own import unit_of

Argument = Values | int | float | bytes  # bytes for a struct


@dataclass(frozen=True)
class Generated:
    """The code that Warp generates for a Python module under warp_tiles.

    Attributes:
        source: CUDA source.
        functions: Translation units of the functions that it is linked with.
        shared_bytes: Bytes of dynamic shared memory by kernel name.
        arch: Compute capability.
        threads: Threads per block.
    """

    source: str
    functions: tuple[str, ...]
    shared_bytes: dict[str, int]
    arch: int
    threads: int


def generate(module: ModuleType, folder: Path, arch: int, threads: int) -> Generated:
    """Generate a module's source without compiling it. The provider ``own`` serves its products.

    Args:
        module: Python module of kernels, see :func:`tests.integration.helpers.load`.
        folder: Empty folder for Warp's output.
        arch: Compute capability.
        threads: Threads per block, the module's ``block_dim``.
    """
    kernels = folder.parent / f"{folder.name}_kernels"
    emulated_kernels(kernels)
    with (
        without_compilation() as plans,
        patch.object(sources, "kernels_folder", lambda: kernels),
        warp_tiles.enabled(),
        warp_tiles.override(provider="own"),
    ):
        wp.compile_aot_module(module, arch=arch, module_dir=folder)
    ((source,), (meta,), (plan,)) = folder.glob("*.cu"), folder.glob("*.meta"), plans
    linked = [planned for planned in plan.needed if planned.provider == "own" and not planned.in_source]
    functions = {planned.symbol: unit_of(planned.problem, planned.tile_config) for planned in linked if planned.problem}
    sizes = {name.removesuffix("_smem_bytes"): int(size) for name, size in json.loads(meta.read_text()).items()}
    return Generated(source.read_text(), tuple(functions.values()), sizes, arch, threads)


def emulated_kernels(folder: Path) -> None:
    """Copy the device code to a new folder, with the collective instructions of modules in the emulator's form."""
    shutil.copytree(KERNELS, folder)
    for name in ("convert", "lane", "ldmatrix", "math", "memory", "mma", "wgmma"):
        shutil.copy(FOLDER / "arch" / f"{name}.cuh", folder / "arch")


class Runs(Protocol):
    """Kernels by name, on the emulator or on a device; see ``tests/gpu/device.py``."""

    def run(
        self, name: str, dim: Sequence[int], arguments: Sequence[Argument],
        gradients: Sequence[Values | None] | None = None,
    ) -> dict[str, Values]:  # fmt: skip
        """The arrays after a launch of a kernel, or of its adjoint if there are gradients."""


@dataclass(frozen=True)
class Kernels:
    """A Python module of kernels, its code, and its kernels on the emulator.

    Attributes:
        names: Names of kernels in the module by other names.
    """

    module: ModuleType
    source: str
    emulated: EmulatedKernels
    names: Mapping[str, str]

    def kernel(self, name: str) -> Any:
        return getattr(self.module, self.names.get(name, name))

    def run(self, name: str, *args: Any, **options: Any) -> dict[str, Values]:
        """See :meth:`EmulatedKernels.run`."""
        return self.emulated.run(self.kernel(name), *args, **options)


def build(
    machine: Machine, folder: Path, text: str, threads: int = 64, arch: int = 90,
    names: Mapping[str, str] | None = None, edit: Callable[[str], str] | None = None, **overrides: Any,
) -> Kernels:  # fmt: skip
    """Generates the code of a text under some settings, and compiles it for the host.

    Args:
        machine, edit: See :class:`EmulatedKernels`.
        folder, threads, arch: See :func:`generate`.
        text: The text of a Python module, see :func:`tests.integration.helpers.load`.
        names: See :class:`Kernels`.
        overrides: Settings other than the defaults.
    """
    with warp_tiles.override(**overrides):
        module = load(text, block_dim=threads)
        generated = generate(module, folder, arch, threads)
    return Kernels(module, generated.source, EmulatedKernels(machine, generated, edit), names or {})


class EmulatedKernels:
    """Kernels of a generated module, compiled for the host.

    Args:
        machine: The emulator that compiles them.
        generated: The module.
        edit: Changes the source before compilation.
    """

    def __init__(self, machine: Machine, generated: Generated, edit: Callable[[str], str] | None = None) -> None:
        source = edit(generated.source) if edit else generated.source
        self._generated = generated
        self._module: EmulatedModule = machine.module(source, generated.functions, generated.arch)

    def forward(self, kernel: Any, dim: Sequence[int], arguments: Sequence[Argument], *, tiled: bool = True) -> Outcome:
        """Launch a kernel.

        Args:
            kernel: A ``wp.Kernel``.
            dim: The grid of blocks, as in ``wp.launch_tiled``, or that of threads.
            arguments: Inputs and outputs. bfloat16 arrays hold the bits.
            tiled: False for a launch as by ``wp.launch``.
        """
        memory = Memory()
        packed = [self._argument(memory, arg, value) for arg, value in zip(kernel.adj.args, arguments)]
        return self._launch(f"{kernel.key}_", "forward", dim, packed, memory, tiled)

    def backward(
        self, kernel: Any, dim: Sequence[int], arguments: Sequence[Argument], gradients: Sequence[Values | None],
        passed_by: tuple[str, ...] = ("array", "launch"),
    ) -> Outcome:  # fmt: skip
        """Launch a kernel's adjoint.

        Args:
            kernel, dim, arguments: See :meth:`forward`.
            gradients: Gradients in the order of the arguments. The kernel reads those of outputs and adds to those of
                inputs. In the outcome the gradient of ``A`` is called ``adj_A``.
            passed_by: Where an array's gradient is passed: in the ``array``, as an argument of the ``launch``, or both.
        """
        memory = Memory()
        primal, adjoint = [], []
        for arg, value, gradient in zip(kernel.adj.args, arguments, gradients):
            grad = 0 if gradient is None else memory.add(f"adj_{arg.label}", gradient)
            primal.append(self._argument(memory, arg, value, grad if "array" in passed_by else 0))
            if gradient is not None and "launch" in passed_by:
                adjoint.append(array_argument(gradient, grad))
            else:
                adjoint.append(null_array() if isinstance(value, np.ndarray) else bytes(len(primal[-1])))
        return self._launch(f"{kernel.key}_", "backward", dim, [*primal, *adjoint], memory)

    def run(
        self, kernel: Any, dim: Sequence[int], arguments: Sequence[Argument],
        gradients: Sequence[Values | None] | None = None, *options: Any, **named: Any,
    ) -> dict[str, Values]:  # fmt: skip
        """The arrays after a sound launch of a kernel, or of its adjoint if there are gradients."""
        if gradients is None:
            outcome = self.forward(kernel, dim, arguments, **named)
        else:
            outcome = self.backward(kernel, dim, arguments, gradients, *options, **named)
        assert outcome.error == ""
        return outcome.arrays

    def _argument(self, memory: Memory, arg: Any, value: Argument, grad: int = 0) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, np.ndarray):
            return array_argument(value, memory.add(arg.label, value), grad)
        return bytes(arg.type._type_(value))

    def _launch(
        self, prefix: str, direction: str, dim: Sequence[int], arguments: Sequence[bytes], memory: Memory,
        tiled: bool = True,
    ) -> Outcome:  # fmt: skip
        suffix = f"_cuda_kernel_{direction}"
        (name,) = (name for name in self._module.kernels if name.startswith(prefix) and name.endswith(suffix))
        threads = self._generated.threads
        bounds, blocks = bounds_argument(dim, threads, tiled)
        shared = self._generated.shared_bytes.get(name, 0)
        return self._module.launch(name, blocks, threads, [bounds, *arguments], memory, shared)
