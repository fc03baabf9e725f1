"""Products by a kernel with tensor copies, which Warp does not generate: it is built and launched here."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import warp as wp

from warp_tiles._warp import installed, modules
from warp_tiles._warp.launch import Definition, NativeKernel, is_saving_capture
from warp_tiles.array_products.call import MatmulCall, View
from warp_tiles.array_products.kernels import function_kernel
from warp_tiles.array_products.lane_kernel import LaneKernel
from warp_tiles.array_products.matmul_problem import ALIGNED, Candidate, MatmulPlan
from warp_tiles.array_products.tensor_kernel import ARCH_SUFFIX, TARGET, TensorKernel
from warp_tiles.array_products.workspace import workspace
from warp_tiles.errors import LockedError
from warp_tiles.gemm.hardware import WGMMA_ARCH
from warp_tiles.gemm.problem import DTYPE_BYTES, accumulator_of
from warp_tiles.settings import current
from warp_tiles.util import driver
from warp_tiles.util.warn import warn_once

if TYPE_CHECKING:
    from warp_tiles.build.engine import Engine
    from warp_tiles.compile.module import ModuleSource
    from warp_tiles.compile.sources import DeviceSource
    from warp_tiles.gemm.problem import DType
    from warp_tiles.settings import Settings
    from warp_tiles.store.key import Entry

_FLAGS = (f"-arch={TARGET}", "--std=c++17", "--define-macro=NDEBUG")
_MOST_MAPS = 64  # of the arrays of one product
_MAP_ALIGNMENT = 64
_FUNCTION_THREADS = 256  # of the kernel for which a function is generated; it is not launched
# enumerators of the driver: CU_TENSOR_MAP_DATA_TYPE; swizzling, by the bytes of a row
_TYPES: dict[str, int] = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
_SWIZZLES = {0: 0, 64: 2, 128: 3}


@dataclass(frozen=True)
class FunctionSource:
    """A function of the user, by its name in C++: the code of a module with it, and what else Warp's compiler gets."""

    name: str
    code: str
    module: ModuleSource = field(hash=False)


class _Arguments(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int)
            for name in ("m", "n", "k", "batch", "a_step", "b_step", "group", "whole", "slices", "depth")
        ),
        *((name, ctypes.c_double) for name in ("alpha", "beta")),
        *((name, ctypes.c_void_p) for name in ("factor", "bias")),
        ("bias_step", ctypes.c_longlong),
        ("sums", ctypes.c_void_p),
        ("arrived", ctypes.c_void_p),
        ("c", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("c_row", "c_matrix")),
    )


class TensorMatmul:
    """A product on a device that is repeated with other memory. Thread-safe. It keeps no array alive.

    Arrays that the kernel reads or writes by tensor maps and that do not begin at multiples of 16 bytes, and captures
    that Warp saves, get the loop of a Warp kernel.

    Args:
        call: The canonical call.
        plan: Its plan, which has a kernel.
        is_swapped: True if A and B are exchanged, so that C is the transpose of the caller's.
        loop: Prepares the loop, a :class:`.prepared.PreparedMatmul`. It is called once, if it is needed.
        copies: Copies of operands, each with 0 for A or 1 for B; see :func:`.prepared.kernel_copies`.
    """

    def __init__(
        self,
        call: MatmulCall,
        plan: MatmulPlan,
        device: Any,
        is_swapped: bool,
        loop: Callable[[], Any],
        copies: Sequence[tuple[int, Any]] = (),
    ) -> None:
        kernel, slices = plan.chosen.kernel, plan.chosen.slices
        assert kernel is not None
        self.plan = plan
        self.device = device
        self.is_swapped = is_swapped
        function: FunctionSource | None = None
        self._definition: Definition | None = None
        if call.epilogue is not None:
            function, self._definition = _function_source(call.epilogue, call.a.dtype)
        self._kernel, self._native = kernel, native_kernel(kernel, device.alias, function)
        self._make_loop = loop
        self._loop: Any = None
        self._settings_generation = modules.settings_generation
        self._lock = threading.Lock()
        self._copies = list[tuple[int, int, Any]]()  # with their offsets in the workspace
        views = [call.a.stored, call.b.stored, call.out]
        size_bytes = kernel.workspace_bytes(slices)
        for number, copy in copies:
            self._copies.append((number, size_bytes, copy.launch))
            views[number], size_bytes = copy.view.stored, size_bytes + copy.size_bytes
        self._views = tuple(views if kernel.has_map else views[:2])
        self._mapped = {*range(len(self._views))} - {number for number, *_ in self._copies}  # by their own addresses
        self._maps: dict[tuple[int, ...], tuple[Any, ...]] = {}
        self._given = _arguments(call, plan.chosen)
        resident = self._native.clusters if kernel.is_persistent else slices.items
        self._blocks = min(slices.items, resident) * kernel.cluster
        self._counters, self._workspace_bytes = slices.split * kernel.cluster, size_bytes

    def is_current(self) -> bool:
        """True, unless settings that count have changed, or the module of its function or of a loop that was needed."""
        known = (self._loop, self._definition, *(launch for *_, launch in self._copies))
        is_kept = all(part is None or part.is_current() for part in known)
        return bool(is_kept and modules.settings_generation == self._settings_generation)

    def run(
        self, a: int, b: int, out: int, bias: int | None, alpha: float, beta: float, factor: int | None = None
    ) -> None:
        """Launches the product on the device's current stream. See :meth:`.prepared.PreparedMatmul.run`."""
        pointers: tuple[int, ...] = (b, a, out) if self.is_swapped else (a, b, out)
        if not (any(pointers[number] % ALIGNED for number in self._mapped) or is_saving_capture()):
            with self._lock:
                given = self._given
                given.alpha, given.beta, given.bias, given.factor, given.c = alpha, beta, bias, factor, out
                if not self._workspace_bytes:
                    is_launched = self._launch(pointers)
                else:
                    with workspace(self._workspace_bytes, self._counters, self.device) as memory:
                        given.sums, given.arrived = memory.start, memory.arrived
                        for number, offset, launch in self._copies:
                            launch.run_at((pointers[number], memory.start + offset))
                            pointers = (*pointers[:number], memory.start + offset, *pointers[number + 1 :])
                        is_launched = self._launch(pointers)
                if is_launched:
                    return
        self._by_loop().run(a, b, out, bias, alpha, beta, factor)

    def _launch(self, pointers: tuple[int, ...]) -> bool:
        """Launches the kernel; returns False if the driver refuses the maps."""
        maps = self._maps.get(pointers) or self._encoded(pointers)
        if maps is not None:
            self._native.launch(self._blocks, maps[0])
        return maps is not None

    def _by_loop(self) -> Any:
        with self._lock:
            if self._loop is None or not self._loop.is_current():
                self._loop = self._make_loop()
            return self._loop

    def _encoded(self, pointers: tuple[int, ...]) -> tuple[Any, ...] | None:
        """The addresses of the parameters and the maps of these arrays; None if the driver refuses a map."""
        with wp.ScopedDevice(self.device):  # a new thread has no context
            arguments = zip(self._views, pointers, self._kernel.boxes, self._kernel.swizzles)
            maps = [TensorMap.of(*of_array) for of_array in arguments]
        if any(tensor_map is None for tensor_map in maps):
            warn_of_loop(self.plan, f"the driver refuses a tensor map of its arrays on {self.device}")
            return None
        maps += [TensorMap()] * (3 - len(maps))  # C's is not read then
        addresses = [ctypes.addressof(parameter) for parameter in (*maps, self._given) if parameter is not None]
        if len(self._maps) >= _MOST_MAPS:
            self._maps.pop(next(iter(self._maps)))
        self._maps[pointers] = encoded = ((ctypes.c_void_p * 4)(*addresses), maps)
        return encoded


def warn_of_loop(plan: MatmulPlan, reason: object) -> None:
    """Warns once that a loop computes a product whose plan has a kernel."""
    warn_once(f"a loop computes {plan.problem.describe()}: {reason}")


def _function_source(function: Any, dtype: DType) -> tuple[FunctionSource, Definition]:
    """The generated code of a function of one sum, and the kernel that it was generated for."""
    from warp_tiles._warp.generation import module_source

    kernel, name = function_kernel(function, accumulator_of(dtype))
    module, code = module_source(kernel, WGMMA_ARCH, ARCH_SUFFIX, _FUNCTION_THREADS)
    return FunctionSource(name, code, module), Definition(kernel, _FUNCTION_THREADS, is_named=False)


def kernel_sources() -> dict[str, DeviceSource]:
    """The device sources of the kernels with tensor copies, by header."""
    from warp_tiles.compile.sources import DeviceSource, kernels_folder

    folder = kernels_folder()
    headers = TensorKernel.header, LaneKernel.header
    return {header: DeviceSource(folder / header, folder, (folder,)) for header in headers}


def planned_kernels(plans: Iterable[object]) -> list[TensorKernel]:
    """The kernels with tensor copies of these plans of calls on whole arrays, each once."""
    chosen = (plan.chosen.kernel for plan in plans if isinstance(plan, MatmulPlan))
    return list(dict.fromkeys(kernel for kernel in chosen if kernel is not None))


def built_kernel(
    engine: Engine, kernel: TensorKernel, resolved: Settings, function: FunctionSource | None = None
) -> tuple[Entry, bool]:
    """The cache's entry of a kernel, perhaps with a function, and whether it was built just now.

    Raises:
        BuildError, LinkError: The compiler or the linker refused it.
        LockedError: It is not in the cache, and the policy is ``locked``.
        ToolchainError: There is no toolchain, or a compiler process failed.
    """
    from warp_tiles.compile.compiler import CompileRequest, LinkRequest, linker_flags
    from warp_tiles.compile.module import module_flags
    from warp_tiles.compile.pool import result_of
    from warp_tiles.store import MODULE
    from warp_tiles.store.key import CacheKey

    context = engine.build_context(resolved)
    toolchain = context.toolchain()
    source = kernel_sources()[kernel.header]
    covered = {"headers": context.facts.source_digest(source)}
    compile_flags: tuple[str, ...] = _FLAGS
    folders: tuple[str, ...] = tuple(map(str, source.include_dirs))
    if function is None:
        text = kernel.source()
    else:
        module = function.module
        text = kernel.source(function.name, function.code)
        compile_flags, folders = module_flags(module, toolchain.nvrtc_version), (*module.include_dirs, *folders)
        covered["headers_of_warp"] = context.facts.digests.digest_folder(Path(module.native_dir), "*.h")
    link_flags = linker_flags(TARGET, "cubin", None)
    key = CacheKey.of({
        "compiler": context.facts.compiler_digest(),
        "flags": compile_flags,
        "kind": "kernel",
        "linker": context.facts.linker_digest(),
        "linker_flags": link_flags,
        "source": text,
        **covered,
    })  # fmt: skip
    with context.modules.lease(key, context.upstream(MODULE, key)) as lease:
        if lease.found is not None:
            return lease.found, False
        if not resolved.rules.builds:
            raise LockedError(f"{resolved.named('policy')} is 'locked', and kernel {kernel.name} is not in the cache")
        with engine.progress.counted(kernel.name, resolved.progress):
            request = CompileRequest(f"{kernel.name}.cu", text, compile_flags, folders, f"kernel {kernel.name}")
            compiled = result_of(context.submit(request))
            linked = result_of(context.submit(LinkRequest(kernel.name, (compiled.payload,), TARGET, "cubin")))
        seconds = round(compiled.seconds + linked.seconds, 3)
        return lease.keep(linked.payload, {"module": kernel.name, "build_seconds": seconds}), True


@lru_cache(maxsize=256)
def native_kernel(kernel: TensorKernel, alias: str, function: FunctionSource | None = None) -> NativeKernel:
    """The kernel on the device with an alias, built and loaded once. Raises the errors of ``built_kernel``."""
    hooks = installed()
    assert hooks is not None  # else the plan has no kernel
    entry, _ = built_kernel(hooks.engine, kernel, current(), function)
    return NativeKernel(
        wp.get_device(alias), entry.payload, kernel.name, kernel.threads, kernel.shared_bytes, kernel.cluster
    )


def _arguments(call: MatmulCall, launch: Candidate) -> _Arguments:
    (batch, m, n), k = call.out.shape, call.a.shape[2]
    steps = call.a.strides[0] != 0, call.b.strides[0] != 0
    slices = launch.slices
    depth = slices.stages * launch.config.tile_k
    given = _Arguments(m, n, k, batch, *steps, launch.config.group, slices.whole, slices.count, depth)
    given.c_matrix, given.c_row = (stride // DTYPE_BYTES[call.out.dtype] for stride in call.out.strides[:2])
    if call.bias is not None:
        given.bias_step = call.bias.stride // DTYPE_BYTES[call.bias.dtype]
    return given


class TensorMap(ctypes.Structure):
    """``CUtensorMap``, in memory that is aligned as the driver wants it."""

    _fields_ = (("words", ctypes.c_uint64 * 16),)

    @classmethod
    def of(cls, view: View, pointer: int, box: tuple[int, int], swizzle: int) -> TensorMap | None:
        """The driver's map of a view whose rows are contiguous; None if the driver refuses it.

        A copy has ``box`` elements: along a row, and rows. The vectors of rows of ``swizzle`` bytes are permuted.
        """
        batch, lines, length = view.shape
        far, between, size = *view.strides[:2], DTYPE_BYTES[view.dtype]
        if lines == 1:  # no two lines have this distance
            between = -(-length * size // ALIGNED) * ALIGNED
        matrices = batch if far else 1
        memory = ctypes.create_string_buffer(ctypes.sizeof(cls) + _MAP_ALIGNMENT)
        tensor_map = cls.from_buffer(memory, -ctypes.addressof(memory) % _MAP_ALIGNMENT)
        error = driver.call(
            "cuTensorMapEncodeTiled",
            ctypes.byref(tensor_map),
            _TYPES[view.dtype],
            3,
            ctypes.c_void_p(pointer),
            (ctypes.c_uint64 * 3)(length, lines, matrices),
            (ctypes.c_uint64 * 2)(between, far if matrices > 1 else lines * between),
            (ctypes.c_uint32 * 3)(*box, 1),
            (ctypes.c_uint32 * 3)(1, 1, 1),
            0,  # no interleaving
            _SWIZZLES[swizzle],
            2,  # fetches of 128 bytes into the L2 cache
            0,  # zeros outside of the tensor
        )
        return None if error else tensor_map
