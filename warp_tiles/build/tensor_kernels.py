"""The build of kernels that no Warp module contains: :class:`warp_tiles.gemm.tensor_kernel.TensorKernel`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from warp_tiles.compile.compiler import CompileRequest, LinkRequest, linker_flags
from warp_tiles.compile.module import ModuleSource, module_flags
from warp_tiles.compile.pool import result_of
from warp_tiles.compile.sources import DeviceSource, kernels_folder
from warp_tiles.errors import LockedError
from warp_tiles.gemm.tensor_kernel import HEADER, TARGET, TensorKernel
from warp_tiles.store import MODULE
from warp_tiles.store.key import CacheKey

if TYPE_CHECKING:
    from warp_tiles.build.engine import Engine
    from warp_tiles.settings import Settings

_FLAGS = (f"-arch={TARGET}", "--std=c++17", "--define-macro=NDEBUG")


@dataclass(frozen=True)
class FunctionSource:
    """A function of the user, by its name in C++: the code of a module with it, and what else Warp's compiler gets."""

    name: str
    code: str
    module: ModuleSource = field(hash=False)


def cubin_of(engine: Engine, kernel: TensorKernel, resolved: Settings, function: FunctionSource | None = None) -> bytes:
    """The machine code of a kernel, perhaps with a function, from the cache or from the compiler and the linker.

    Raises:
        BuildError, LinkError: The compiler or the linker refused it.
        LockedError: It is not in the cache, and the policy is ``locked``.
        ToolchainError: There is no toolchain, or a compiler process failed.
    """
    context = engine.build_context(resolved)
    folder = kernels_folder()
    toolchain = context.toolchain()
    covered = {"headers": context.store.source_digest(DeviceSource(folder / HEADER, folder, (folder,)))}
    compile_flags: tuple[str, ...] = _FLAGS
    folders: tuple[str, ...] = (str(folder),)
    if function is None:
        text = kernel.source()
    else:
        module = function.module
        text = kernel.source(function.name, function.code)
        compile_flags, folders = module_flags(module, toolchain.nvrtc_version), (*module.include_dirs, *folders)
        covered["headers_of_warp"] = context.store.digests.digest_folder(Path(module.native_dir), "*.h")
    link_flags = linker_flags(TARGET, "cubin", None)
    key = CacheKey.of({
        "compiler": context.store.compiler_digest(),
        "flags": compile_flags,
        "kind": "kernel",
        "linker": context.store.linker_digest(),
        "linker_flags": link_flags,
        "source": text,
        **covered,
    })  # fmt: skip
    with context.modules.lease(key, context.upstream(MODULE, key)) as lease:
        if lease.found is not None:
            return lease.found.payload
        if not resolved.rules.builds:
            raise LockedError(f"{resolved.named('policy')} is 'locked', and kernel {kernel.name} is not in the cache")
        with engine.progress.counted(kernel.name, resolved.progress):
            request = CompileRequest(f"{kernel.name}.cu", text, compile_flags, folders, f"kernel {kernel.name}")
            compiled = result_of(context.submit(request))
            linked = result_of(context.submit(LinkRequest(kernel.name, (compiled.payload,), TARGET, "cubin")))
        seconds = round(compiled.seconds + linked.seconds, 3)
        return lease.keep(linked.payload, {"module": kernel.name, "build_seconds": seconds}).payload
