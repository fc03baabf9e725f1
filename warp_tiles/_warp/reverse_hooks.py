"""Puts hooks into the reverse pass of a loop, while Warp's code generator ends the loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from warp_tiles._warp.trace_builder import RecordedBlock, RecordedOperation
from warp_tiles._warp.values import is_tile
from warp_tiles.codegen.effects import LOAD
from warp_tiles.codegen.hooks import Hook


@contextmanager
def hooked_reverse_loop(adjoint: Any, block: RecordedBlock) -> Iterator[None]:
    """Puts hooks before and after the reversed loop that Warp generates in the block.

    Each iteration of a reversed loop sets the gradients of its tiles to zeros. There are hooks for those of loaded
    tiles, if the adjoints of the loads have hooks.

    Args:
        adjoint: Warp's Adjoint.
        block: The loop.
    """
    *_, outer, _, body = adjoint.blocks  # around the loop, of its condition, of its body
    makers = {
        id(tile): operation
        for operation in block.nodes
        if isinstance(operation, RecordedOperation) and operation.reverses and operation.name == LOAD
        for tile in operation.results
        if is_tile(tile) and tile.type.owner
    }
    hooked = [variable for variable in body.vars if id(variable) in makers]
    body.vars[:] = [variable for variable in body.vars if id(variable) not in makers]  # Warp sets these to zeros
    zeros = []
    for variable in hooked:
        maker = makers[id(variable)]
        assert maker.hook is not None
        maker.zeroes = True
        zeros.append(Hook.ZERO.around(maker.hook, f"{variable.emit_adj()}.grad_zero();"))
    body.body_replay[:0] = zeros
    block.reverses = True
    outer.body_reverse.append(Hook.REVERSE_END.name_of(block.hook))  # Warp writes the list backwards
    yield
    outer.body_reverse.append(Hook.REVERSE_BEGIN.name_of(block.hook))
    outer.vars.extend(hooked)
