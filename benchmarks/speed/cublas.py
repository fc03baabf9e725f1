"""The cuBLAS column: the product of a row, or its two gradients, by ``torch.matmul``, which calls cuBLAS.

Only products of whole arrays have it: tiles that stay in shared memory have no counterpart. A result has the dtype of
the operands. Of gradients, two products count, while those of the other sides also count the one that is replayed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import warp as wp

from benchmarks.runner import DEVICE
from benchmarks.speed.arrays import Matrix
from benchmarks.speed.sides import Side, sample


class Cublas:
    """The products of a row by cuBLAS.

    Args:
        torch: The module.
        ours: Our side of the row, whose arrays are multiplied. Its form is ``loop``.
    """

    rounds_to_half = False  # its sums are float32

    def __init__(self, torch: Any, ours: Side) -> None:
        cell, size = ours.cell, ours.part.size
        self.part = ours.part
        # one tile is the whole product, so each result is rounded once
        self.cell = replace(cell, c=cell.a, m=size, n=size, k=size)
        self._torch = torch
        self._stream = wp.stream_to_torch(DEVICE)
        a, b = (wp.to_torch(array, requires_grad=False) for array in (ours.a, ours.b))
        factors = {"c": (a, b)}
        if cell.backward:
            with torch.cuda.stream(self._stream):
                gradient = wp.to_torch(ours.gradient_of_c, requires_grad=False).to(a.dtype)
            factors = {"grad_a": (gradient, b.T), "grad_b": (a.T, gradient)}
        dtype = getattr(wp, cell.a)
        self._results = {name: wp.empty((size, size), dtype=dtype, device=DEVICE) for name in factors}
        self._products = [(*pair, wp.to_torch(self._results[name])) for name, pair in factors.items()]

    @property
    def flops(self) -> int:
        return int(len(self._products) * 2 * self.part.size**3)

    def run(self) -> None:
        self._torch.backends.cuda.matmul.allow_tf32 = self.cell.tf32
        with self._torch.cuda.stream(self._stream):
            for left, right, out in self._products:
                self._torch.matmul(left, right, out=out)

    def results(self, calls: int) -> dict[str, Matrix]:
        """Samples of the results. ``calls`` is 1, as in every loop."""
        self.run()
        return {name: sample(array) for name, array in self._results.items()}
