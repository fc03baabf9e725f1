"""Operations on Warp's modules: list them, copy their kernels, compile them, discard their hashes.

A discarded hash is computed again at the module's next use. It never goes while another thread loads the module.
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import warp

from warp_tiles._warp.internals import find
from warp_tiles.errors import PlanError
from warp_tiles.gemm.hardware import BLOCK_THREADS, MIN_ARCH
from warp_tiles.plan.planning import KernelMemory
from warp_tiles.util.files import digests_of, is_kept, require_replaceable, staging, write_digests

_LIMITS = ("_tid_extent_limits", "_scalar_tid_extent_limits")  # Warp 1.18 and newer; Warp 1.17
_FORWARD_BYTES = "_cuda_kernel_forward_smem_bytes"  # the end of a name in Warp's metadata
#: Blocks that read a module's hashes more than once: the thread and the module of each.
loads: dict[object, tuple[int, Any]] = {}
#: Modules whose settings changed while another thread loaded them, by identity.
outdated: dict[int, Any] = {}
#: Changes when settings change that affect code, or when warp_tiles is disabled.
settings_generation = 0
_unseen = False  # a load may go on that began before enable(), so that it is not among the loads


@contextmanager
def loading(module: Any) -> Iterator[None]:
    """Enters a block in which no other thread may discard a module's hash, because this thread loads the module."""
    call = object()
    loads[call] = threading.get_ident(), module
    try:
        yield
    finally:
        del loads[call]


def hash_again(module: Any) -> bool:
    """Discards a module's hash, whose next use computes it again. Returns False if another thread loads the module.

    A thread that begins to load the module needs the lock that this function holds. One that has begun is registered.
    """
    with find("codegen._codegen_lock"):
        if _loaded_elsewhere(module):
            return False
        # what Warp knows of each kernel by its own hash is kept
        limits = {name: dict(getattr(module, name)) for name in _LIMITS if hasattr(module, name)}
        module.mark_modified()
        for name, known in limits.items():
            setattr(module, name, known)
        return True


@contextmanager
def withdrawn(module: Any) -> Iterator[None]:
    """Enters a block in which this thread does not count as one that loads the module; it reads no hash there."""
    this = threading.get_ident()
    own = {call: load for call, load in tuple(loads.items()) if load[0] == this and load[1] is module}
    for call in own:
        del loads[call]
    try:
        yield
    finally:
        loads.update(own)


def hash_all_again() -> None:
    """Discards the hash of every module. A module that another thread is loading keeps it until its next use."""
    global settings_generation
    settings_generation += 1
    for module in list(find("context.user_modules").values()):
        if not hash_again(module):
            outdated[id(module)] = module


def hash_outdated(module: Any) -> None:
    """Discards the hash of a module whose settings changed while it was loaded, unless a graph is captured."""
    if id(module) in outdated and not capturing() and hash_again(module):
        outdated.pop(id(module), None)


def capturing() -> bool:
    return any(device.is_capturing for device in warp.get_devices())


def _loaded_elsewhere(module: Any) -> bool:
    """True if another thread is inside a function that reads the module's hashes more than once."""
    global _unseen
    _unseen = _unseen and _is_any_loading()
    this = threading.get_ident()
    return _unseen or any(loaded is module and thread != this for thread, loaded in tuple(loads.values()))


def _is_any_loading() -> bool:
    """True if another thread is inside Warp's code that loads modules."""
    codes = {inspect.unwrap(find(f"context.Module.{name}")).__code__ for name in ("load", "_compile")}
    for thread, frame in sys._current_frames().items():
        here: FrameType | None = frame if thread != threading.get_ident() else None
        while here is not None:
            if here.f_code in codes:
                return True
            here = here.f_back
    return False


def hash_all_after_enable() -> None:
    """Discards the hash of every module. While a load goes on that began before, hashes wait for their next use."""
    global _unseen
    _unseen = True
    hash_all_again()


def user_modules() -> dict[str, Any]:
    return dict(find("context.user_modules"))


def forget_modules(names: Iterable[str]) -> None:
    """Removes modules of copied kernels, so that reports and later loads do not see them."""
    for name in names:
        put_module(name, None)


def put_module(name: str, module: Any) -> None:
    """Makes a module the one that Warp knows by a name; None makes Warp forget it."""
    modules = find("context.user_modules")
    modules.pop(name, None)
    if module is not None:
        modules[name] = module


def copied_kernel(kernel: Any, name: str, options: Mapping[str, Any]) -> Any:
    """Returns the same kernel in a module of its own, which has these options besides those of the kernel's module."""
    module = warp.get_module(name)
    module.options.update({**kernel.module.options, **options})
    module.mark_modified()
    return warp.Kernel(
        kernel.func,
        key=kernel.key,
        module=module,
        options=dict(kernel.options),
        code_transformers=kernel.adj.transformers,
    )


def module_builder(module: Any, options: Any, hasher: Any, target: str = "cuda") -> Any:
    builder = find("context.ModuleBuilder")
    extra = {"target": target} if "target" in inspect.signature(builder).parameters else {}
    return builder(module, options, hasher=hasher, **extra)


def name_of(kernel: Any, differing: Iterable[str] = ()) -> str:
    """The kernel's key, and in brackets what stands for ``Any`` in an instance of a generic kernel.

    Constants in which the kernels of its factory differ follow in the brackets.
    """
    names: list[str] = []
    if (generic := getattr(kernel, "generic_parent", None)) is not None:
        is_generic = find("types.type_is_generic")
        types = [kernel.adj.arg_types[name] for name, kind in generic.adj.arg_types.items() if is_generic(kind)]
        names = [getattr(dtype := getattr(kind, "dtype", kind), "__name__", str(dtype)) for kind in types]
        names = names if len(set(names)) > 1 else names[:1]
    names += differing
    return f"{kernel.key}[{', '.join(names)}]" if names else str(kernel.key)


def names_of(kernels: Iterable[Any]) -> dict[Any, str]:
    """The name of each kernel of a module, with the constants that distinguish it from others of its factory."""
    families: dict[str, list[Any]] = {}
    for kernel in kernels:
        families.setdefault(str(kernel.key), []).append(kernel)
    names = {}
    for family in families.values():
        constants = {kernel: _factory_constants(kernel) if len(family) > 1 else set() for kernel in family}
        shared = set.intersection(*constants.values())
        names.update({kernel: name_of(kernel, sorted(constants[kernel] - shared)) for kernel in family})
    return names


def hashed_names(module: Any, block_dim: int) -> dict[bytes, str]:
    """The names of a module's kernels by their hashes; empty if Warp keeps none, as with the option strip_hash."""
    module.get_module_hash(block_dim)
    hasher = module.hashers.get(block_dim)
    names = {} if hasher is None else names_of(hasher.get_unique_kernels())
    return {kernel.hash: name for kernel, name in names.items()}


def _factory_constants(kernel: Any) -> set[str]:
    """The constants that a kernel has from the function that defines it, such as ``n=32`` and ``dtype=float16``."""
    function = kernel.func
    constants = set()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with suppress(ValueError):  # the variable has no value any more
            value = cell.cell_contents
            text = str(value) if isinstance(value, (int, float, str)) else getattr(value, "__name__", None)
            if text := text or getattr(value, "key", ""):
                constants.add(f"{name}={text}")
    return constants


def users_own_modules() -> list[Any]:
    """Warp's modules that have kernels, without those of Warp itself."""
    return [m for name, m in user_modules().items() if m.kernels and not name.startswith("warp.")]


def require_target(arch: int | None, block_dim: Any) -> None:
    """Raises a PlanError if Warp's compiler does not know the architecture, or a block cannot have so many threads."""
    known = warp.get_cuda_supported_archs()
    if arch is not None and known and arch not in known:
        raise PlanError(
            f"arch is {arch!r}, which Warp's compiler does not know",
            remedy=f"give one of these: {', '.join(map(str, known))}",
        )
    whole = isinstance(block_dim, int) and not isinstance(block_dim, bool)
    if block_dim is not None and not (whole and 1 <= block_dim <= BLOCK_THREADS):
        raise PlanError(
            f"block_dim is {block_dim!r}, and a block has 1 to {BLOCK_THREADS} threads",
            remedy="give such a number; a launch in the script may name another",
        )


def compile_module(module: Any, arch: int, block_dim: int, folder: Path) -> Path:
    """Compiles a module ahead of time. Returns the path of the cubin.

    An output of an earlier call is kept if its name has the module's hash and it matches the digest beside it.
    Otherwise it is built again, with a warning if it has changed since it was written. The folder also receives the
    metadata and the source. Raises a PlanError if there is no such target, and an OSError if the folder cannot be
    written, or a FIFO, a device or a folder is in the place of an output.
    """
    require_target(arch, block_dim)
    with loading(module):
        hash_outdated(module)
        module.get_module_hash(block_dim)
        options = module.resolve_options(warp.config, block_dim=block_dim)
        name = str(module._get_compile_output_name(None, output_arch=arch, use_ptx=False, block_dim=block_dim))
        cubin, meta = folder / name, folder / str(module._get_meta_name(block_dim=block_dim))
        outputs = (digests_of(cubin), meta, meta.with_suffix(".cu"), cubin)  # never a cubin without its digest
        for path in outputs:
            require_replaceable(path)
        # names without a hash say nothing about the code
        if options["strip_hash"] or not is_kept(cubin, [meta]):
            with staging(folder) as staged:
                module._compile(None, staged / "out", output_arch=arch, use_ptx=False, options=options)
                write_digests(staged / "out" / cubin.name, [staged / "out" / meta.name])
                for path in outputs:
                    (staged / "out" / path.name).replace(path)
    return cubin


def launch_failures(cubin: Path, arch: int, threads: int) -> list[str]:
    """Why forward passes cannot be launched on an architecture, from the sizes that Warp stores beside a cubin."""
    if arch < MIN_ARCH:
        return []  # no limit is known
    sizes = json.loads(cubin.with_name(f"{cubin.name.partition('.sm')[0]}.meta").read_text("utf-8"))
    forward: dict[str, int] = {}  # the largest of the instances of a kernel
    for name, size in sizes.items():
        if name.endswith(_FORWARD_BYTES):
            kernel = name.removesuffix(_FORWARD_BYTES).rpartition("_")[0]
            forward[kernel] = max(size, forward.get(kernel, 0))
    needed = (KernelMemory.of(kernel, "forward", size, arch, threads) for kernel, size in forward.items())
    return [memory.failure for memory in needed if memory.failure]


def compile_into_cache(module: Any, device: Any, block_dim: int) -> None:
    """Compiles a module into Warp's kernel cache, as ``Module.load`` does, and loads nothing on the device."""
    with loading(module):
        folder = Path(warp.config.kernel_cache_dir) / module.get_module_identifier(block_dim)
        name = module._get_compile_output_name(device, block_dim=block_dim)
        arch = module._get_compile_arch(device)
        module._compile(device, folder, name, arch, options=module.resolved_options[block_dim])
