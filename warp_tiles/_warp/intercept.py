"""Lets a script run without its launches: notes them, and neither launches nor builds anything.

In a block of :func:`intercepted` these functions of Warp have stand-ins:

    launch, launch_tiled            note the launch
    empty, empty_like               make zeros: nothing writes the array, and a search may launch with it
    capture_while, capture_if       run the body once; run both branches
    capture_begin, capture_end      capture nothing, but the device reports a capture
    capture_launch, capture_save    do nothing
    load_module, force_load         do nothing, like compile_aot_module and load_aot_module
    get_suggested_block_size        report the module; return its block size and the device's multiprocessors
    get_device, get_cuda_device     return another device in place of a GPU that this machine lacks
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from warp_tiles.errors import unless_signalled

_ABSENT = object()


class ArrayPlan(Protocol):
    """How a call on whole arrays is computed: a row of ``table`` in ``warp-tiles plan``. Equal ones are one row."""

    @property
    def table(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


# global, because every thread of a script must see them
_open_blocks = 0
_collections: list[dict[ArrayPlan, None]] = []


@dataclass(frozen=True, eq=False)
class NotedLaunch:
    """A launch of a kernel, as ``wp.launch`` gets it.

    Attributes:
        dim: All dimensions, those of the threads of ``wp.launch_tiled`` included.
        outputs: How many of the last arguments were given as outputs.
        taped: True if a tape would have recorded it, so that its adjoint may run.
    """

    kernel: Any
    dim: tuple[int, ...]
    values: tuple[Any, ...]
    outputs: int
    device: Any
    block_dim: int
    taped: bool = False

    @classmethod
    def of(
        cls, call: Mapping[str, Any], device: Any, threads: int, *, tiled: bool = False, taped: bool = False
    ) -> NotedLaunch:
        """The launch of a call, by the arguments of ``wp.launch`` or ``wp.launch_tiled``."""
        dim = (call["dim"],) if isinstance(call["dim"], int) else tuple(call["dim"])
        values, outputs = (*call["inputs"], *call["outputs"]), len(call["outputs"])
        return cls(call["kernel"], (*dim, threads) if tiled else dim, values, outputs, device, threads, taped)

    @property
    def signature(self) -> Hashable:
        """Equal for launches that do the same work: kernel, sizes and layouts."""
        arrays = tuple((value.shape, value.strides) for value in self.values if hasattr(value, "strides"))
        return id(self.kernel), self.dim, self.block_dim, arrays, self.taped


def launching() -> NotedLaunch | None:
    """Returns the call of ``wp.launch`` that this thread is in the middle of; None if it is in none.

    Warp loads a module in the middle of a launch, and gives the arguments to nobody. So they are read from its frame.
    """
    from warp_tiles._warp.internals import find

    frame, code = sys._getframe(1), inspect.unwrap(find("context.launch")).__code__
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return None
    call = frame.f_locals
    if call["adjoint"] or call["stream"] is not None:
        return None
    return NotedLaunch.of(call, call["device"], int(call["block_dim"]))


def is_planning() -> bool:
    """True while a command runs a script, notes its launches and computes nothing: plan, compile, warm, bundle, tune.

    A script asks this where it needs results, e.g. before it checks them, or in a loop that ends when they converge.
    """
    return _open_blocks > 0


@contextmanager
def collected_products() -> Iterator[list[ArrayPlan]]:
    """Collect the products and solves that are noted in the block. They are complete after it, each once."""
    noted: dict[ArrayPlan, None] = {}
    products: list[ArrayPlan] = []
    _collections.append(noted)
    try:
        yield products
    finally:
        _collections[:] = [open_one for open_one in _collections if open_one is not noted]  # an equal one may be open
        products.extend(noted)


def note_product(product: ArrayPlan) -> None:
    for noted in _collections:
        noted.setdefault(product)


@contextmanager
def intercepted(
    launched: Callable[[NotedLaunch], None], loaded: Callable[[Any, Any, int], None] | None = None
) -> Iterator[dict[str, str]]:
    """Intercept launches, graph captures, builds and references to missing GPUs in the block.

    Args:
        launched: Called for each launch.
        loaded: Called with the kernel, device and block size when ``get_suggested_block_size`` would load the kernel's
            module on a GPU.

    Yields:
        The missing GPUs that were referred to so far, each with the device in its place.
    """
    global _open_blocks
    import warp

    from warp_tiles._warp.internals import find

    context = find("context")
    context.init()
    devices = _Devices(context.runtime)
    captured: list[Any] = []
    stand_ins = (
        _launches(launched, context)
        | _captures(captured)
        | dict.fromkeys(("force_load", "load_module", "load_aot_module"), _nothing)
        | {"compile_aot_module": lambda *args, **kwargs: [], "get_suggested_block_size": _suggestions(loaded)}
        | {"get_cuda_device": devices.get_cuda_device}
    )
    with ExitStack() as stack:
        for name, stand_in in stand_ins.items():
            for owner in (warp, context):  # the second is where Warp's own calls look
                if name in vars(owner):
                    _replace(stack, owner, name, _disguised(stand_in, getattr(owner, name)))
        for name, zeros in (("empty", warp.zeros), ("empty_like", warp.zeros_like)):
            _replace(stack, warp, name, _disguised(zeros, getattr(warp, name)))
        _replace(stack, warp.Device, "is_capturing", property(lambda device: device in captured))
        for name in ("get_device", "get_current_cuda_device"):
            _replace(stack, context.runtime, name, getattr(devices, name))
        _open_blocks += 1
        try:
            yield devices.substituted
        finally:
            _open_blocks -= 1


def _replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    original = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    if original is _ABSENT:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, original)


def _disguised(stand_in: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return stand_in(*args, **kwargs)

    return call


# ---- launches


def _launches(launched: Callable[[NotedLaunch], None], context: Any) -> dict[str, Callable[..., Any]]:
    import warp

    signature = inspect.signature(context.launch)

    def note(tiled: bool, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        call = given.arguments
        kernel, stream = call["kernel"], call["stream"]
        threads = int(call["block_dim"] or kernel.module.options["block_dim"])
        device = stream.device if stream is not None else warp.get_device(call["device"])
        taped = call["record_tape"] and context.runtime.tape is not None
        launch = NotedLaunch.of(call, device, threads, tiled=tiled, taped=taped)
        if kernel.is_generic:
            kernel.add_overload(kernel.infer_argument_types(list(launch.values)))
        launched(launch)
        return _NotLaunched() if call["record_cmd"] else None

    return {"launch": functools.partial(note, False), "launch_tiled": functools.partial(note, True)}


def _suggestions(loaded: Callable[[Any, Any, int], None] | None) -> Callable[..., tuple[int, int]]:
    import warp

    def suggest(kernel: Any, device: Any = None) -> tuple[int, int]:
        target, threads = warp.get_device(device), int(kernel.module.options["block_dim"])
        if target.is_cpu:
            return 1, 1
        if loaded is not None:
            loaded(kernel, target, threads)
        return threads, int(getattr(target, "sm_count", 1))

    return suggest


class _NotLaunched:
    """Replaces Warp's Launch object."""

    block_dim = None  # recorded.py: no module was loaded, so the recording stays current

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


# ---- graph captures


def _captures(captured: list[Any]) -> dict[str, Callable[..., Any]]:
    """Stand-ins of Warp's graph captures. A real one would hold no launches, and fails at what it cannot record.

    ``captured`` receives the devices with an open capture.
    """
    import warp

    def device_of(device: Any, stream: Any) -> Any:
        return warp.get_device(device) if stream is None else stream.device

    def begin(device: Any = None, stream: Any = None, *args: Any, **kwargs: Any) -> None:
        captured.append(device_of(device, stream))

    def end(device: Any = None, stream: Any = None) -> Any:
        capturing = device_of(device, stream)
        if capturing in captured:
            captured.remove(capturing)
        return warp.Graph(capturing)

    def run(condition: Any, *bodies: Any, stream: Any = None, **kwargs: Any) -> None:
        named = ("while_body", "on_true", "on_false")
        for body in (*bodies, *(kwargs.pop(name, None) for name in named)):
            if callable(body):  # not a Graph, whose launches were noted when it was captured
                body(**kwargs)

    return {
        "capture_begin": begin,
        "capture_end": end,
        **dict.fromkeys(("capture_while", "capture_if"), run),
        **dict.fromkeys(("capture_launch", "capture_save", "capture_debug_dot_print"), _nothing),
    }


# ---- devices


class _Devices:
    """Looks devices up, and another one for a GPU that this machine lacks: its first GPU, or else the CPU.

    ``substituted`` has the missing GPUs that were looked up, each with the device in its place.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._get_device = runtime.get_device
        self._get_current_cuda_device = runtime.get_current_cuda_device
        self.substituted: dict[str, str] = {}

    def get_device(self, ident: Any = None) -> Any:
        try:
            return self._get_device(ident)
        except ValueError:
            if isinstance(ident, str) and ident.startswith("cuda:") and ident[5:].isdecimal():
                return self._substitute(ident)
            raise

    def get_current_cuda_device(self) -> Any:
        try:
            return self._get_current_cuda_device()
        except unless_signalled(RuntimeError):
            return self._substitute("cuda")

    def get_cuda_device(self, ordinal: int | None = None) -> Any:
        if ordinal is None:
            return self.get_current_cuda_device()
        try:
            return self._runtime.cuda_devices[ordinal]
        except IndexError:
            return self._substitute(f"cuda:{ordinal}")

    def _substitute(self, alias: str) -> Any:
        gpus = self._runtime.cuda_devices
        device = gpus[0] if gpus else self._runtime.cpu_device
        self.substituted[alias] = str(device)
        return device
