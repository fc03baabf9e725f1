"""Lets a ``wp.Tape`` compute the gradients of products of whole arrays without their adjoint kernels."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import warp

from warp_tiles._warp.internals import find, missing_part
from warp_tiles._warp.launch import has_adjoint
from warp_tiles._warp.modules import name_of
from warp_tiles.errors import RecordingError, WarpTilesError
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.plan.whole import LEAST_WORK, Argument, WholeProduct
from warp_tiles.settings import current

log = logging.getLogger("warp_tiles")

# required members of warp._src, each with its required parameters
REQUIRED = {"tape.Tape.record_launch": "kernel dim max_blocks inputs outputs device block_dim"}

Key = tuple[int, int, bytes]  # compute capability, threads per block, and the module's hash


class Tapes:
    """Finds launches that multiply whole arrays, and replaces their records on tapes.

    Args:
        plan: Plans Warp's module of a kernel for a compute capability and a number of threads.
        gradients: Returns the gradients of a launch, or the reason why its adjoint kernel computes them. Its arguments
            are the product; the launch's arguments; their shapes and integers; its blocks; and the least number of
            multiplications.
    """

    def __init__(
        self,
        plan: Callable[[Any, int, int], ModulePlan | None],
        gradients: Callable[[WholeProduct, Sequence[Any], Sequence[Argument | None], Sequence[int], int], Any],
    ) -> None:
        self._plan = plan
        self._gradients = gradients
        self._warned: weakref.WeakSet[Any] = weakref.WeakSet()  # kernels for which the log has a reason
        self._known: weakref.WeakKeyDictionary[Any, dict[Key, WholeProduct | None]] = weakref.WeakKeyDictionary()

    def install(self, wrap: Callable[[Any, str, Callable[..., Any]], None]) -> None:
        """Installs the hook, unless this Warp lacks the part that it needs.

        Args:
            wrap: Replaces a method of a class, given by name, by ``hook(original, *args, **kwargs)``.
        """
        if (missing := missing_part(REQUIRED)) is not None:
            log.warning("tapes launch the adjoint kernels of all products: %s", missing.message)
            return
        wrap(find("tape.Tape"), "record_launch", self._record_launch)

    def _record_launch(self, original: Callable[..., None], tape: Any, *launch: Any, **named: Any) -> None:
        original(tape, *launch, **named)
        kernel, dim, _, inputs, outputs, device, block_dim, *_ = tape.launches[-1]  # as Warp resolved them
        backward = self.gradients(kernel, dim, [*inputs, *outputs], device, block_dim)
        if backward is not None:
            tape.launches[-1] = RecordedProduct(tape.launches[-1], tape, backward)

    def gradients(self, kernel: Any, dim: Any, values: Sequence[Any], device: Any, block_dim: int) -> Any:
        """The gradients of a launch as two products, or None if its adjoint kernel computes them.

        Args:
            dim: The launch dimensions, with the threads of a block last.
        """
        blocks = tuple(dim) if isinstance(dim, (tuple, list)) else ()
        if not device.is_cuda or len(blocks) != 3 or blocks[2] != block_dim or warp.config.verify_autograd_array_access:
            return None
        if not has_adjoint(kernel):  # the tape warns of it
            return None
        matrices = [value for value in values if isinstance(value, warp.array) and value.ndim == 2]
        if len(matrices) < 3 or not any(array.requires_grad for array in matrices):
            return None
        mode = current(kernel.module.options, kernel.module.name).gemm_gradients
        least = 0 if mode == "always" else LEAST_WORK
        most = max(array.size for array in matrices) * max(max(array.shape) for array in matrices)
        if mode == "off" or most < least:
            return None
        whole = self._whole_product(kernel, device.arch, block_dim)
        if whole is None:
            return None
        arguments = [_argument(argument.type, value) for argument, value in zip(kernel.adj.args, values)]
        backward = self._gradients(whole, values, arguments, blocks[:2], least)
        if isinstance(backward, str):
            if kernel not in self._warned:
                self._warned.add(kernel)
                log.info("kernel %s: its adjoint kernel computes the gradients: %s", name_of(kernel), backward)
            return None
        return backward

    def _whole_product(self, kernel: Any, arch: int, block_dim: int) -> WholeProduct | None:
        """The product that a kernel is, or None. Its module is planned once for it."""
        key = arch, block_dim, kernel.module.get_module_hash(block_dim)
        known = self._known.setdefault(kernel, {})
        if key not in known:
            try:
                plan = self._plan(kernel.module, arch, block_dim)
            except WarpTilesError as error:
                log.debug("module %s is not planned: %s", kernel.module.name, error)
                return None
            known[key] = None if plan is None else plan.whole_products.get(name_of(kernel))
        return known[key]


def _argument(kind: Any, value: Any) -> Argument | None:
    """The shape of an array, the value of a 32-bit integer, or None for another argument."""
    if isinstance(value, warp.array):
        return tuple(value.shape)
    number = getattr(value, "value", value)  # of one of Warp's scalar types
    return int(number) if kind in (int, warp.int32) and isinstance(number, (int, np.integer)) else None


class RecordedProduct(list):  # type: ignore[type-arg]
    """A launch as Warp records it. A tape calls it in its backward pass in place of the adjoint kernel.

    Args:
        backward: Adds the gradients (:class:`warp_tiles.array_products.backward.Backward`).
    """

    def __init__(self, launch: list[Any], tape: Any, backward: Any) -> None:
        super().__init__(launch)
        self._tape = weakref.ref(tape)  # the tape owns this object
        self._backward = backward

    def __call__(self) -> None:
        """Adds the gradients."""
        tape = self._tape()
        if tape is None:
            raise RecordingError(
                "the tape of this launch does not exist any more", remedy="keep the tape until its backward pass"
            )
        for array in (self._backward.a, self._backward.b, self._backward.out):
            tape.get_adjoint(array)  # the tape zeroes them with its others
        if self._backward.is_prepared():
            self._backward()
            return
        replay = warp.Tape()  # an operand got a gradient after the launch: Warp launches the adjoint kernel
        replay.gradients, replay.launches = tape.gradients, [list(self)]
        replay.backward()
