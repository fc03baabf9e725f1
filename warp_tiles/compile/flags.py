"""Compiler and linker options as command-line flags of NVRTC and nvJitLink.

The keywords are those of ``cuda.core.ProgramOptions``. Importing cuda-core takes 0.2 s in each compiler process, so the
processes call the bindings below it; a test compares the flags with those of cuda-core.
https://docs.nvidia.com/cuda/nvrtc/#supported-compile-options
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_VALUES = {  # keywords with a value, or several
    "arch": "-arch",
    "std": "--std",
    "include_path": "--include-path",
    "define_macro": "--define-macro",
    "undefine_macro": "--undefine-macro",
    "ofast_compile": "--Ofast-compile",
    "diag_suppress": "--diag-suppress",
}
_SWITCHES = {  # keywords that are on or off
    "debug": "--device-debug",
    "lineinfo": "--generate-line-info",
    "use_fast_math": "--use_fast_math",
    "gen_opt_lto": "--gen-opt-lto",
    "restrict": "--restrict",
    "extra_device_vectorization": "--extra-device-vectorization",
    "device_as_default_execution_space": "--device-as-default-execution-space",
}
_BOOLEANS = {"fma": "--fmad"}  # keywords whose flag has the value true or false


def compiler_flags(options: Iterable[tuple[str, Any]]) -> list[str]:
    """The flags of NVRTC for relocatable LTO-IR.

    Raises:
        ValueError: A keyword has no flag here.
    """
    flags = ["--relocatable-device-code=true", "--dlink-time-opt"]
    for name, value in options:
        if name in _VALUES:
            values = value if isinstance(value, list) else [value]
            flags += [f"{_VALUES[name]}={_text(one)}" for one in values]
        elif name in _BOOLEANS:
            flags.append(f"{_BOOLEANS[name]}={str(bool(value)).lower()}")
        elif name in _SWITCHES:
            flags += [_SWITCHES[name]] if value else []
        else:
            raise ValueError(f"the compiler option {name!r} has no flag")
    return flags


def _text(value: object) -> str:
    """A value, or a macro's name and value as a pair."""
    return "=".join(map(str, value)) if isinstance(value, tuple) else str(value)


def linker_flags(arch: str, output: str, max_registers: int | None) -> list[str]:
    """The flags of nvJitLink for a link that drops unused variables; see :class:`warp_tiles.compile.LinkRequest`.

    The linker uses one thread per core. Any number of threads but one gives the same bytes; one alone gives code that
    uses more stack.
    """
    flags = [f"-arch={arch}", "-lto", "-optimize-unused-variables", "-split-compile=0"]
    if max_registers is not None:
        flags.append(f"-maxrregcount={max_registers}")
    return [*flags, "-ptx"] if output == "ptx" else flags
