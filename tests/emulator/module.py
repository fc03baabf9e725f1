"""Whole modules on the emulator: the source that Warp generates under warp_tiles, compiled for the host and launched.

Warp's own headers are compiled as device code, see ``native.py``. The compiler's thread sanitizer adds a call before
each access to memory. ``grid/`` has the called functions: they check for races, bounds, alignment and unwritten memory.
The bytes of a ``cp.async`` arrive when its thread waits for them, and not before. The bytes of a tensor copy arrive
when a thread waits for its mbarrier.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import struct
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import warp as wp

from tests.emulator.memory import Memory, Values
from tests.emulator.native import FOLDER, cached_folder, copy_headers, errors_of, for_host, locked

KERNELS = FOLDER.parents[1] / "kernels"
SECONDS_PER_LAUNCH = 60.0
_KERNEL = re.compile(r'extern "C" __global__ void (?:__\w+__\([^()]*\)\s|WP_\w+\([^()]*\) )*(\w+)\(')
_HEADERS = re.compile(r"(?:#define WP_\w+(?: \w+)?\n|#include \"[\w.]+\"\n|\n)+")
_FLAGS = ["-std=c++17", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-w"]
_TRACED = ["-O1", "-fsanitize=thread", "-ftrivial-auto-var-init=pattern", "-x", "c++"]
_MAIN = """
namespace {{
template <class... Types, unsigned long... I>
void call(void (*kernel)(Types...), void** arguments, std::integer_sequence<unsigned long, I...>)
{{
    kernel(*static_cast<Types*>(arguments[I])...);
}}
template <class... Types> void call(void (*kernel)(Types...), void** arguments)
{{
    call(kernel, arguments, std::make_integer_sequence<unsigned long, sizeof...(Types)>());
}}
}}
namespace wt::emulator {{
const ModuleKernel module_kernels[] = {{ {table} }};
const int module_kernel_count = {count};
}}
"""
_SEQUENCE = """namespace std {
template <class T, T... I> struct integer_sequence { };
template <class T, T N> using make_integer_sequence = integer_sequence<T, __integer_pack(N)...>;
}
"""


@dataclass(frozen=True)
class Outcome:
    """The result of a launch.

    Attributes:
        error: The module's error, or "".
        arrays: All arrays afterwards, by name.
    """

    error: str
    arrays: dict[str, Values]


class Machine:
    """Compiles modules. The emulator itself is compiled once, or never if the folder EMULATOR_CACHE has it.

    Args:
        folder: Folder for build outputs. Each machine needs its own.
        compiler: Path of g++.
    """

    def __init__(self, folder: Path, compiler: str) -> None:
        self.folder = folder
        self._compiler = compiler
        self._numbers = itertools.count()
        self._modules: dict[tuple[str, tuple[str, ...], int], EmulatedModule] = {}  # equal ones are compiled once
        self._sources: dict[tuple[str, int], Path] = {}
        self._pool = ThreadPoolExecutor(min(2, os.cpu_count() or 1))
        self._compiled = cached_folder(folder, f"{wp.__version__} {compiler}")
        native = self._compiled / "native"
        sources = [
            path
            for path in sorted([*(FOLDER / "machine").glob("*.cpp"), *(FOLDER / "grid").glob("*.cpp")])
            if path.name not in ("batch.cpp", "block.cpp", "shared_memory.cpp")
        ]
        self._paths = [f"-I{FOLDER}", f"-I{native}"]
        self._objects = [self._compiled / f"{source.stem}.o" for source in sources]
        with locked(self._compiled):
            if not native.exists():
                commands = (["-O2", f"-I{FOLDER}", "-c", str(s), "-o", str(o)] for s, o in zip(sources, self._objects))
                list(self._pool.map(self._compile, commands))
                copy_headers(Path(wp.__file__).parent / "native", native)

    def close(self) -> None:
        """Wait for running compilations."""
        self._pool.shutdown()

    def module(self, source: str, functions: Sequence[str], arch: int) -> EmulatedModule:
        """Compile a module.

        Args:
            source: Generated CUDA source.
            functions: Translation units of the functions that it calls.
            arch: Compute capability, e.g. 90.

        Raises:
            RuntimeError: The module does not compile.
        """
        key = (source, tuple(functions), arch)
        if key not in self._modules:
            self._modules[key] = self._build(source, functions, arch)
        return self._modules[key]

    def _build(self, source: str, functions: Sequence[str], arch: int) -> EmulatedModule:
        folder = self.folder / f"module_{next(self._numbers)}"
        folder.mkdir()
        text, target = folder / "functions.cpp", folder / "functions.o"
        text.write_text("#define __device__\n#define __forceinline__\n" + "\n".join(functions))
        command = [*_TRACED, f"-I{FOLDER}", f"-I{KERNELS}", "-c", str(text), "-o", str(target)]
        compiled = self._pool.submit(self._compile, command)
        if (source, arch) not in self._sources:  # other functions may be linked with the same source
            self._sources[source, arch] = self._compile_source(source, arch, folder)
        compiled.result()
        program = folder / "module"
        self._compile([str(self._sources[source, arch]), str(target), *map(str, self._objects), "-o", str(program)])
        return EmulatedModule(program, tuple(_KERNEL.findall(source)), arch)

    def _compile_source(self, source: str, arch: int, folder: Path) -> Path:
        """The object file of a generated source."""
        names = _KERNEL.findall(source)
        table = ", ".join(f'{{"{name}", [](void** arguments) {{ call({name}, arguments); }}}}' for name in names)
        headers = _HEADERS.match(source)
        device = [*self._paths, f"-D__CUDA_ARCH__={arch}0", "-DWP_ENABLE_MATHDX=1"]
        first = self._headers(headers[0] if headers else "", device)
        text, target = folder / "module.cpp", folder / "module.o"
        text.write_text(for_host(source) + _SEQUENCE + _MAIN.format(table=table, count=len(names)))
        self._compile([*_TRACED, *device, "-include", str(first), "-c", str(text), "-o", str(target)])
        return target

    def _headers(self, text: str, device: Sequence[str]) -> Path:
        """The precompiled headers at the start of a module."""
        digest = hashlib.sha256("\n".join([text, *device]).encode()).hexdigest()
        header = self._compiled / f"headers_{digest[:8]}.h"
        with locked(self._compiled):
            if not header.exists():
                header.write_text(f'#include "cuda/device.h"\n{text}')
                self._compile([*_TRACED[:-1], "c++-header", *device, str(header), "-o", f"{header}.gch"])
        return header

    def _compile(self, arguments: Sequence[str]) -> None:
        if errors := errors_of(self._compiler, [*_FLAGS, *arguments]):
            raise RuntimeError(errors)


class EmulatedModule:
    """A module that is compiled for the host.

    Args:
        program: The program that runs a launch, see ``grid/main.cpp``.
        kernels: Names of the kernels.
        arch: Compute capability.
    """

    def __init__(self, program: Path, kernels: tuple[str, ...], arch: int) -> None:
        self.kernels = kernels
        self._program = program
        self._arch = arch
        self._numbers = itertools.count()

    def launch(
        self,
        kernel: str,
        blocks: int,
        threads: int,
        arguments: Sequence[bytes],
        memory: Memory,
        shared_bytes: int,
        cluster: int = 1,
    ) -> Outcome:
        """Run a kernel on all blocks or clusters, one after the other.

        Args:
            kernel: Name in the source.
            blocks: Blocks of the grid.
            threads: Threads per block.
            arguments: The bytes of each argument.
            memory: The arrays that arguments point to.
            shared_bytes: Dynamic shared memory per block.
            cluster: Blocks per cluster.
        """
        number = next(self._numbers)
        request, outcome = (self._program.with_name(f"{name}_{number}") for name in ("request", "outcome"))
        words = struct.Struct("<Q").pack
        parts = [_text(kernel), *map(words, (blocks, threads, cluster, self._arch, shared_bytes))]
        parts.append(words(len(memory.places)))
        for name, (offset, size) in memory.places.items():
            parts += [_text(name), words(offset), words(size)]
        parts.append(words(len(arguments)))
        for argument in arguments:
            parts += [words(len(argument)), argument]
        content = bytes(memory.content)
        request.write_bytes(b"".join([*parts, words(len(content)), content]))
        command = [str(self._program), str(request), str(outcome)]
        try:
            status = subprocess.run(command, check=False, timeout=SECONDS_PER_LAUNCH).returncode
            reason = f"the process exited with status {status}" if status else ""
        except subprocess.TimeoutExpired:
            reason = "the process exceeded its time limit"
        data = outcome.read_bytes() if not reason else b""
        request.unlink()
        outcome.unlink(missing_ok=True)
        if reason:
            return Outcome(f"{kernel}: {reason}", {})
        (length,) = struct.unpack_from("<Q", data)
        error = data[8 : 8 + length].decode()
        return Outcome(f"{kernel}: {error}" if error else "", memory.arrays(data[8 + length :]))


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()
