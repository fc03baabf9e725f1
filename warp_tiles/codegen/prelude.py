"""The text of a generated source, and what is put into it: one prelude, at one place.

This is the only module that handles generated C++ as text. Warp writes declarations of linked functions behind its
headers and before all other code, inside ``extern "C" { }``; there stands :data:`PLACEHOLDER` while the source is
generated. It is replaced by the declarations, the device functions of ``kernels/module``, and the macros that name what
stands at each hook.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from warp_tiles.toolchain import sources
from warp_tiles.toolchain.flatten import flattened

PLACEHOLDER = "/* warp_tiles prelude */"
MODULE_HEADER = "module/module.cuh"  # below kernels/


def with_prelude(
    source: str, declarations: Iterable[str], names: Mapping[str, str], macros: Iterable[str], *, header: bool
) -> str:
    """The source with its prelude.

    Args:
        source: As Warp generated it, with the placeholder.
        declarations: C++ declarations of linked functions.
        names: What stands for each function name of a site.
        macros: Definitions of hooks.
        header: Whether the functions of ``kernels/module`` come first; adjoints of loads then add vectors.

    Raises:
        ToolchainError: The device sources are missing.
    """
    lines = [*declarations, '}  // extern "C"']
    if header:
        kernels = sources.kernels_folder()
        lines.append(flattened(kernels / MODULE_HEADER, kernels))
    lines += [f"#define {name} {value}" for name, value in names.items()]
    lines += [*macros, 'extern "C" {']
    return source.replace(PLACEHOLDER, "\n".join(lines), 1)


def waiting_function(symbol: str, types: Iterable[str]) -> str:
    """C++ of a function that waits for all threads of the block and then calls another one.

    Args:
        symbol: The other one's name.
        types: Those of its parameters alpha, A, B, beta and C.
    """
    names = ("alpha", "a", "b", "beta", "c")
    parameters = ", ".join(f"{kind} {name}" for kind, name in zip(types, names))
    return f"static void {symbol}_waiting({parameters}) {{ WP_TILE_SYNC(); {symbol}({', '.join(names)}); }}"
