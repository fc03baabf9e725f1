"""Inserts the prelude into a generated source.

This is the only module that handles generated C++ as text. Warp writes declarations of linked functions after its
headers and before all other code, inside ``extern "C" { }``. While Warp generates the source, :data:`PLACEHOLDER` is
one of them. The prelude replaces it: declarations, the device functions of ``kernels/module``, and the hooks' macros.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from warp_tiles.toolchain import sources
from warp_tiles.toolchain.sources import flatten

PLACEHOLDER = "/* warp_tiles prelude */"
MODULE_HEADER = "module/module.cuh"  # below kernels/
STAGED_HEADER = "module/staged_module.cuh"  # which includes MODULE_HEADER
REVERSED_HEADER = "module/reversed_module.cuh"  # which includes STAGED_HEADER
SOLVER_HEADER = "module/solvers.cuh"


def with_prelude(
    source: str,
    declarations: Iterable[str],
    names: Mapping[str, str],
    macros: Iterable[str],
    *,
    header: bool,
    solvers: Sequence[str] = (),
    staged: Sequence[str] = (),
    reversed_loops: Sequence[str] = (),
) -> str:
    """Returns the source with its prelude.

    Args:
        source: The source that Warp generated, with the placeholder.
        declarations: C++ declarations of linked functions.
        names: The value of each placeholder of a site.
        macros: Definitions of the hooks.
        header: True to include the functions of ``kernels/module``. Adjoints of loads then add vectors.
        staged: C++ of the types of products in stages; the device functions of stages are included with them.
        reversed_loops: The same for reverse passes.
        solvers: C++ of the types that stand for solver functions; the overloads that take them are included with them.

    Raises:
        ToolchainError: The device sources are missing.
    """
    lines = [*declarations, '}  // extern "C"']
    if header:
        kernels = sources.kernels_folder()
        found = REVERSED_HEADER if reversed_loops else STAGED_HEADER if staged else MODULE_HEADER
        lines.append(flatten(kernels / found, kernels))
        lines += [*staged, *reversed_loops]
    if solvers:
        lines += [(sources.kernels_folder() / SOLVER_HEADER).read_text("utf-8"), *solvers]
    lines += [f"#define {name} {value}" for name, value in names.items()]
    lines += [*macros, 'extern "C" {']
    return source.replace(PLACEHOLDER, "\n".join(lines), 1)


def prefix_of(source: str) -> str:
    """Returns the part of a source before its prelude.

    Args:
        source: The source that Warp generated, with the placeholder.
    """
    return source.partition(PLACEHOLDER)[0]
