"""Lets a ``wp.Tape`` compute the gradients of products of whole arrays without their adjoint kernels."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import warp

from warp_tiles import settings
from warp_tiles._warp.launch import has_adjoint
from warp_tiles._warp.seams import find, missing_part
from warp_tiles.errors import WarpTilesError
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.plan.whole import LEAST_WORK, WholeProduct

log = logging.getLogger("warp_tiles")

# required members of warp._src, each with its required parameters
SEAMS = {"tape.Tape.record_launch": "kernel dim max_blocks inputs outputs device block_dim"}

Key = tuple[int, int]  # compute capability, and threads per block


class Tapes:
    """Replaces the launches of such kernels on a tape.

    Args:
        plan: Plans Warp's module of a kernel for a compute capability and a number of threads.
        gradients: Returns the gradients of a launch, or the reason why its adjoint kernel computes them. Its arguments
            are the product, the arguments of the launch, its blocks, and the least number of multiplications.
    """

    def __init__(
        self,
        plan: Callable[[Any, int, int], ModulePlan | None],
        gradients: Callable[[WholeProduct, Sequence[Any], Sequence[int], int], Any],
    ) -> None:
        self._plan = plan
        self._gradients = gradients
        self._known: weakref.WeakKeyDictionary[Any, dict[Key, WholeProduct | None]] = weakref.WeakKeyDictionary()

    def install(self, wrap: Callable[[Any, str, Callable[..., Any]], None]) -> None:
        """Installs the hook, unless this Warp lacks the part that it needs.

        Args:
            wrap: Replaces a method of a class, given by name, by ``hook(original, *args, **kwargs)``.
        """
        if (missing := missing_part(SEAMS)) is not None:
            log.warning("tapes launch the adjoint kernels of all products: %s", missing.message)
            return
        wrap(find("tape.Tape"), "record_launch", self._record_launch)

    def _record_launch(
        self,
        original: Callable[..., None],
        tape: Any,
        kernel: Any,
        dim: Any,
        max_blocks: int,
        inputs: Any,
        outputs: Any,
        device: Any,
        block_dim: int = 0,
        **named: Any,
    ) -> None:
        original(tape, kernel, dim, max_blocks, inputs, outputs, device, block_dim, **named)
        backward = self.gradients(kernel, dim, [*inputs, *outputs], device, block_dim)
        if backward is not None:
            tape.launches[-1] = RecordedProduct(tape.launches[-1], tape, backward)

    def gradients(self, kernel: Any, dim: Any, values: list[Any], device: Any, block_dim: int) -> Any:
        """The gradients of a launch as two products, or None if its adjoint kernel computes them.

        Args:
            kernel: The kernel.
            dim: The launch dimensions, with the threads of a block last.
            values: The arguments.
            device: Warp's device.
            block_dim: Threads per block.
        """
        blocks = tuple(dim) if isinstance(dim, (tuple, list)) else ()
        if not device.is_cuda or len(blocks) != 3 or blocks[2] != block_dim or warp.config.verify_autograd_array_access:
            return None
        if not has_adjoint(kernel):  # the tape warns of it
            return None
        matrices = [value for value in values if isinstance(value, warp.array) and value.ndim == 2]
        if len(matrices) != 3 or not any(array.requires_grad for array in matrices):
            return None
        mode = settings.current(kernel.module.options, kernel.module.name).whole_gradients
        least = 0 if mode == "always" else LEAST_WORK
        if mode == "off" or matrices[0].size * max(matrices[1].shape) < least:
            return None
        whole = self._whole_product(kernel, device.arch, block_dim)
        if whole is None:
            return None
        backward = self._gradients(whole, values, blocks[:2], least)
        if isinstance(backward, str):
            log.debug("kernel %s: its adjoint kernel computes the gradients: %s", kernel.key, backward)
            return None
        return backward

    def _whole_product(self, kernel: Any, arch: int, block_dim: int) -> WholeProduct | None:
        """The product that a kernel is, or None. Its module is planned once for it."""
        known = self._known.setdefault(kernel, {})
        if (arch, block_dim) not in known:
            try:
                plan = self._plan(kernel.module, arch, block_dim)
            except WarpTilesError as error:
                log.debug("module %s is not planned: %s", kernel.module.name, error)
                return None
            known[arch, block_dim] = None if plan is None else plan.whole_products.get(kernel.key)
        return known[arch, block_dim]


class RecordedProduct(list):  # type: ignore[type-arg]
    """A launch as Warp records it, which a tape calls in its backward pass in place of the adjoint kernel."""

    def __init__(self, launch: list[Any], tape: Any, backward: Any) -> None:
        super().__init__(launch)
        self._tape = tape
        self._backward = backward

    def __call__(self) -> None:
        """Adds the gradients."""
        for array in (self._backward.a, self._backward.b, self._backward.out):
            self._tape.get_adjoint(array)  # the tape zeroes them with its others
        self._backward()
