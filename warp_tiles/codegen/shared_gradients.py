"""Adjoints of one product that may add to the same memory: the second one waits for the first.

Warp calls the function for the gradient of A and then the one for that of B, without a barrier. In
``wp.tile_matmul(a, wp.tile_transpose(a))`` both are parts of one gradient, and threads of the second function would
read what threads of the first are about to write. The generated source is edited where the tiles are not certain to
be apart.

All functions are pure, on the text that Warp generates.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from warp_tiles.codegen.loops import functions
from warp_tiles.codegen.tile_moves import SHARED, declared

_ADJOINT = re.compile(r"\badj_tile_matmul(?:_acc)?\b")
_OPERANDS = re.compile(r"\((?:wt_site\d+_\w+, ){3}(\w+), (\w+),")
_SECOND = re.compile(r"\bwt_site(\d+)_adjoint_b\b")
WAITING = "_waiting"  # behind the name of a function that waits before it does what the one without it does


def wait_between(source: str, sites: Collection[int]) -> str:
    """Edit the source so that the second adjoint of a product waits, unless both operands have memory of their own.

    Args:
        source: Generated source with placeholders for functions.
        sites: Those whose functions were built.
    """
    lines = source.splitlines()
    for function in functions(lines):
        own = declared(SHARED, lines, function)
        for index in function:
            second = _SECOND.search(lines[index]) if _ADJOINT.search(lines[index]) else None
            if second is None or int(second[1]) not in sites:
                continue
            operands = _OPERANDS.search(lines[index])
            if operands is None or operands[1] == operands[2] or not set(operands.groups()) <= own:
                lines[index] = _SECOND.sub(rf"\g<0>{WAITING}", lines[index])
    return "\n".join(lines) + ("\n" if source.endswith("\n") else "")


def waiting_function(symbol: str, types: Sequence[str]) -> str:
    """C++ of a function that waits for all threads of the block and then calls another one.

    Args:
        symbol: The other one's name.
        types: Those of its parameters alpha, A, B, beta and C.
    """
    names = ("alpha", "a", "b", "beta", "c")
    parameters = ", ".join(f"{kind} {name}" for kind, name in zip(types, names))
    return f"static void {symbol}{WAITING}({parameters}) {{ WP_TILE_SYNC(); {symbol}({', '.join(names)}); }}"
