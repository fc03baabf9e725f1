"""Packed launches, and the internals of Warp that they use: arguments, gradients and Warp's own recordings."""

from __future__ import annotations

import copy
import ctypes
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard

import warp

from warp_tiles._warp.internals import find, missing, require
from warp_tiles._warp.internals import runtime as runtime_with
from warp_tiles.errors import LinkError, MatmulError, RecordingError, unless_signalled
from warp_tiles.util import driver

# required members of warp._src, each with its required parameters
_REQUIRED = {
    "codegen.Struct": "",
    "codegen.StructInstance.assign": "value",
    "context.Kernel.add_overload": "arg_types",
    "context.Kernel.infer_argument_types": "args",
    "context.Launch": "kernel hooks params params_addr bounds block_dim adjoint",
    "context.Launch.launch": "stream",
    "context.Launch.set_param_at_index": "index value adjoint",
    "context.Module.mark_modified": "",
    "context.init": "",
    "context.launch": "record_cmd record_tape adj_inputs max_blocks block_dim",
    "context.pack_arg": "kernel arg_type arg_name value device adjoint",
    "tape.Tape.record_launch": "kernel dim max_blocks inputs outputs device block_dim",
}
_NATIVE_PARAMETERS = 11  # parameters of wp_cuda_launch_kernel


@functools.cache
def runtime() -> Any:
    """Returns Warp's runtime. Raises an UnsupportedWarpError if it lacks what recorded launches need."""
    require(_REQUIRED)
    runtime = runtime_with("_apic_capture", "captures", "tape")
    if len(runtime.core.wp_cuda_launch_kernel.argtypes or ()) != _NATIVE_PARAMETERS:
        raise missing(f"wp_cuda_launch_kernel with {_NATIVE_PARAMETERS} parameters")
    return runtime


# ---- kernels and their arguments


def is_kernel(value: Any) -> TypeGuard[warp.Kernel]:
    return isinstance(value, warp.Kernel)


def argument_names(kernel: Any) -> tuple[str, ...]:
    return tuple(argument.label for argument in kernel.adj.args)


def overload_for(kernel: Any, values: Sequence[Any]) -> Any:
    """The kernel itself, or the instance of a generic one for these arguments. A RecordingError refuses others."""
    if not kernel.is_generic:
        return kernel
    try:
        return kernel.add_overload(kernel.infer_argument_types(list(values)))
    except unless_signalled(TypeError, RuntimeError, ValueError) as error:
        raise RecordingError(str(error)) from error


def has_adjoint(kernel: Any) -> bool:
    """True if Warp generates an adjoint. The kernel's own option overrides that of its module."""
    option = kernel.options.get("enable_backward")
    return bool(kernel.module.options["enable_backward"] if option is None else option)


def snapshot(value: Any) -> Any:
    """Returns a private copy of a struct, vector or list, and any other value itself."""
    if warp.types.is_struct(value):
        instance = value._cls()
        instance.assign(value)
        return instance
    return copy.deepcopy(value) if isinstance(value, (ctypes.Array, list)) else value


def arrays_in(variable: Any, value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each array of an argument with its name, e.g. ``weights.inner.values``; None for one that is not set."""
    name = prefix + variable.label
    if warp.types.is_array(variable.type):
        yield name, value
    elif warp.types.is_struct(value):
        for member in value._cls.vars.values():
            yield from arrays_in(member, getattr(value, member.label), f"{name}.")


def pack(kernel: Any, index: int, value: Any, device: Any) -> Any:
    """Converts an argument to the C structure or number that the kernel takes. A RecordingError refuses another one."""
    argument = kernel.adj.args[index]
    what = f"argument '{argument.label}' of kernel {kernel.key}"
    expected = argument.type
    if isinstance(expected, find("codegen.Struct")):
        given = getattr(value, "_cls", None)
        if given is None or given.hash != expected.hash:
            raise RecordingError(f"{what} is {value!r}", remedy=f"pass an instance of {expected.key}")
    try:
        return find("context.pack_arg")(kernel, expected, argument.label, value, device, False)
    except unless_signalled(TypeError, RuntimeError, ValueError) as error:
        raise RecordingError(f"{what} does not fit: {error}") from error


def check_arguments(kernel: Any, values: Sequence[Any], device: Any) -> None:
    """Checks that the kernel takes these arguments, see :func:`pack`. Arrays may be on any device."""
    concrete = overload_for(kernel, values)
    for index, value in enumerate(values):
        pack(concrete, index, value, value.device if isinstance(value, warp.array) else device)


def own_gradient(value: Any, of: Callable[[Any], Any] = lambda array: array.grad) -> Any:
    """Returns the gradient that ``wp.Tape`` would use for an argument.

    It is an array's own gradient by ``of``, a struct of the gradients of its arrays, or None.
    """
    if warp.types.is_struct(value):
        mirror = value._cls()
        for name in value._cls.vars:
            gradient = own_gradient(getattr(value, name), of)
            if gradient is not None:
                setattr(mirror, name, gradient)
        return mirror
    return of(value) if isinstance(value, warp.array) else None


# ---- launches


@functools.lru_cache(maxsize=1024)
def _structure(fields: tuple[tuple[str, type], ...]) -> type[ctypes.Structure]:
    return type("Arguments", (ctypes.Structure,), {"_fields_": list(fields)})


def _filled(names: Sequence[str], values: Sequence[Any]) -> ctypes.Structure:
    return _structure(tuple((name, type(value)) for name, value in zip(names, values)))(*values)


class PackedLaunch:
    """A launch whose arguments Warp packed once. It runs with them, or with other memory in place of its arrays.

    This class launches through Warp. :func:`pack_launch` returns the fastest class that suits the launch.

    Args:
        stream: The stream of every run; None uses the device's current stream at each run.
        definition: The definition of its kernel; None if nobody asks whether it is current.
    """

    def __init__(self, launch: Any, stream: Any, definition: Definition | None = None) -> None:
        self.launch = launch
        self.stream = stream
        self._definition = definition
        self._runtime = runtime()
        self._lock = threading.Lock()
        self._memory: tuple[Sequence[int | None], tuple[float, ...]] | None = None  # that is packed
        self._pack()

    def _pack(self) -> None:
        """Prepares the values that :meth:`run` passes."""

    def run(self) -> None:
        self.launch.launch(self.stream)

    def set(self, index: int, value: Any) -> None:
        """Changes an argument, and in a launch of the adjoint its gradient to its own."""
        self.launch.set_param_at_index(index, value)
        if self.launch.adjoint:
            self.launch.set_param_at_index(index, own_gradient(value), True)
        self._pack()

    def is_current(self) -> bool:
        """True if the kernel's module is unmodified since it was packed."""
        return self._definition is None or self._definition.is_current()

    def run_at(self, pointers: tuple[int | None, ...], *scalars: float) -> None:
        """Launches the kernel, whose scalars come before its arrays, with other memory. Thread-safe.

        Trailing arrays without memory may be left out. ``scalars`` are new values of the last scalars.
        """
        memory = (pointers, scalars)
        with self._lock:
            if memory != self._memory:
                self._point(pointers, scalars)
                self._memory = memory
            if self._runtime._apic_capture is not None:  # such a capture looks the arrays up by their objects
                self._replace_arrays(pointers)
            self.run()

    @functools.cached_property
    def _first_array(self) -> int:
        kinds = [argument.type for argument in self.launch.kernel.adj.args]
        return next((at for at, kind in enumerate(kinds) if warp.types.is_array(kind)), len(kinds))

    def _point(self, pointers: Sequence[int | None], scalars: Sequence[float]) -> None:
        params = self.launch.params
        if not isinstance(params, list):  # while a script is planned, nothing is packed
            return
        first = 1 + self._first_array  # behind the launch's bounds
        for at, pointer in enumerate(pointers, first):
            params[at].data = pointer or 0
        for at, value in enumerate(scalars, first - len(scalars)):
            params[at].value = value

    def _replace_arrays(self, pointers: Sequence[int | None]) -> None:
        arguments, first = self.launch.fwd_args, self._first_array
        for at, (old, pointer) in enumerate(itertools.zip_longest(arguments[first:], pointers), first):
            if old is not None:
                layout = {"dtype": old.dtype, "shape": old.shape, "strides": old.strides, "device": old.device}
                arguments[at] = warp.array(ptr=pointer or None, **layout)


class _CpuLaunch(PackedLaunch):
    """Calls the compiled function with structures that are filled once. Warp fills them at every launch."""

    def _pack(self) -> None:
        launch = self.launch
        self._names = argument_names(launch.kernel)
        count = len(self._names)
        self._structures = [
            _filled(self._names, launch.params[1 + start : 1 + start + count])
            for start in ((0, count) if launch.adjoint else (0,))
        ]
        self._function = launch.hooks.backward if launch.adjoint else launch.hooks.forward
        self._arguments = tuple(ctypes.byref(structure) for structure in (launch.bounds, *self._structures))

    def _point(self, pointers: Sequence[int | None], scalars: Sequence[float]) -> None:
        super()._point(pointers, scalars)
        for name, packed in zip(self._names, self.launch.params[1:]):
            setattr(self._structures[0], name, packed)

    def run(self) -> None:
        if self._runtime._apic_capture is None:
            self._function(*self._arguments)
        else:
            self.launch.launch()


class _CudaLaunch(PackedLaunch):
    """Calls Warp's native launch with values that are looked up once."""

    def _pack(self) -> None:
        launch, hooks = self.launch, self.launch.hooks
        entry, shared_bytes = (
            (hooks.backward, hooks.backward_smem_bytes) if launch.adjoint else (hooks.forward, hooks.forward_smem_bytes)
        )
        self._native = self._runtime.core.wp_cuda_launch_kernel
        self._device = launch.device
        self._numbers = (
            launch.device.context,
            entry,
            launch.bounds.size,
            launch.max_blocks,
            launch.block_dim,
            int(launch.grid_stride),
            launch.cluster_dim,
            shared_bytes,
            launch.params_addr,
        )

    def run(self) -> None:
        runtime = self._runtime
        stream = self._device.stream if self.stream is None else self.stream
        # during a graph capture Warp records which module it must keep alive; after a failed launch it raises the error
        if (
            runtime.captures
            or runtime._apic_capture is not None
            or self._native(*self._numbers, stream.cuda_stream, None)
        ):
            self.launch.launch(stream)


def pack_launch(
    kernel: Any,
    values: Sequence[Any],
    gradients: Sequence[Any] | None = None,
    *,
    dim: Sequence[int],
    block_dim: int | None = None,
    tiled: bool = False,
    max_blocks: int = 0,
    device: Any,
    stream: Any = None,
) -> PackedLaunch:
    """Packs a launch: of the adjoint if gradients are given. Builds and loads the kernel's module. No tape records it.

    The arguments are those of ``wp.launch``, or of ``wp.launch_tiled`` if ``tiled``, and so are the errors. A generic
    kernel is given as its overload. With no stream, each run uses the device's current one.
    """
    options: dict[str, Any] = {} if block_dim is None else {"block_dim": block_dim}
    runtime()
    launch = (warp.launch_tiled if tiled else warp.launch)(
        kernel,
        dim=list(dim),
        inputs=list(values),
        adj_inputs=list(gradients or ()),
        adjoint=gradients is not None,
        device=device,
        stream=stream,
        max_blocks=max_blocks,
        record_cmd=True,
        record_tape=False,
        **options,
    )
    return _class_of(launch)(launch, stream, Definition(kernel, launch.block_dim))


def _class_of(launch: Any) -> type[PackedLaunch]:
    """The fastest class for a launch that Warp recorded."""
    if type(launch) is not warp.Launch:  # a subclass does more at each launch
        return PackedLaunch
    if not launch.device.is_cpu:
        return _CudaLaunch
    return _CpuLaunch if launch.block_dim == 1 else PackedLaunch


# ---- edited kernels


class Definition:
    """A recorded kernel and the build of its module.

    Args:
        block_dim: Threads per block of the loaded module; None if the module was not loaded.
        is_named: True if the name of the kernel's function refers to the kernel; None looks the name up.
    """

    def __init__(self, kernel: Any, block_dim: int | None, is_named: bool | None = None) -> None:
        self._kernel = kernel
        self._globals: dict[str, Any] = kernel.func.__globals__
        self._name = str(kernel.func.__name__)
        self._bound = self._globals.get(self._name)
        named = is_kernel(self._bound) and self._bound in (kernel, kernel.generic_parent)
        self.is_named = named if is_named is None else is_named
        self._module = kernel.module
        self._block_dim = block_dim
        # a modified module drops its hashers, and gets new ones at its next load
        self._hasher = kernel.module.hashers.get(block_dim, None if block_dim is None else self)

    def is_current(self) -> bool:
        """True if the module is unmodified and the kernel's name refers to the same object."""
        return (
            self._module.hashers.get(self._block_dim) is self._hasher and self._globals.get(self._name) is self._bound
        )

    def newest(self) -> Any:
        """Returns the edited kernel if the name now refers to one, else the recorded kernel."""
        bound: Any = self._globals.get(self._name)
        is_edit = self.is_named and is_kernel(bound) and bound.adj.source != self._kernel.adj.source
        return bound if is_edit else self._kernel


# ---- kernels that Warp did not generate


def is_saving_capture() -> bool:
    """True while Warp records a capture that it can save, which holds only launches of Warp's kernels."""
    return runtime()._apic_capture is not None


_RELAXED_CAPTURE = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class _LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig`` without attributes."""

    _fields_ = (
        *(
            (name, ctypes.c_uint)
            for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_bytes")
        ),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class NativeKernel:
    """A kernel from a cubin, which is loaded into a device's context and stays there. Thread-safe.

    The kernel's function has C linkage.

    Args:
        shared_bytes: The dynamic shared memory of a block.
        cluster: The blocks of a cluster, which are constants of the code.

    Attributes:
        clusters: How many of them the device runs at a time; for blocks without a cluster, its multiprocessors.

    Raises:
        LinkError: The driver refuses the cubin or the shared memory.
    """

    def __init__(self, device: Any, code: bytes, name: str, threads: int, shared_bytes: int, cluster: int = 1) -> None:
        def checked(driver_function: str, *arguments: Any) -> None:
            if error := driver.call(driver_function, *arguments):
                raise LinkError(f"the driver refuses kernel {name} on {device}: {error}")

        module, function, clusters = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(device.sm_count)
        mode = ctypes.c_int(_RELAXED_CAPTURE)
        checked("cuCtxPushCurrent_v2", ctypes.c_void_p(device.context))
        try:
            checked("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))  # a capture may be open
            try:
                checked("cuModuleLoadData", ctypes.byref(module), code)
                checked("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
                checked("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
                if cluster > 1:
                    config = _LaunchConfig(cluster, 1, 1, threads, 1, 1, shared_bytes)
                    checked("cuOccupancyMaxActiveClusters", ctypes.byref(clusters), function, ctypes.byref(config))
            finally:
                driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        finally:
            driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        if not clusters.value:
            raise LinkError(f"{device} cannot run clusters of {cluster} blocks of kernel {name}")
        self.clusters = clusters.value
        self._what = f"kernel {name} on {device}"
        self._runtime = runtime()
        self._native = self._runtime.core.wp_cuda_launch_kernel
        self._device = device
        self._function = function.value
        self._threads, self._shared_bytes = threads, shared_bytes

    def launch(self, blocks: int, parameters: ctypes.Array[ctypes.c_void_p]) -> None:
        """Launch blocks on the device's current stream, with the parameters' addresses. Raises a MatmulError."""
        threads, stream = self._threads, self._device.stream.cuda_stream
        if self._native(
            self._device.context, self._function, blocks * threads, 0, threads, 1, 1, self._shared_bytes, parameters,
            stream, None,
        ):  # fmt: skip
            raise MatmulError(f"{self._what} could not be launched: {self._runtime.get_error_string()}")
