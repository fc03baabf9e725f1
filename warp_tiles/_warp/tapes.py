"""Lets a ``wp.Tape`` compute the gradients of products of whole arrays without their adjoint kernels.

It also warns of solvers without a gradient, and of gradients in deterministic modules that are added in no fixed order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import warp

from warp_tiles._warp.internals import find, require
from warp_tiles._warp.launch import has_adjoint
from warp_tiles._warp.modules import hashed_names, name_of
from warp_tiles.codegen.operations import LOAD
from warp_tiles.codegen.whole import LEAST_WORK, Argument, WholeProduct
from warp_tiles.errors import RecordingError, UnsupportedWarpError, WarpTilesError
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.settings import current
from warp_tiles.solver.problem import SOLVERS
from warp_tiles.util.warn import log, warn

# required members of warp._src, each with its required parameters
REQUIRED = {"tape.Tape.record_launch": "kernel dim max_blocks inputs outputs device block_dim"}

Gradients = Callable[[WholeProduct, Sequence[Any], Sequence[Argument | None], Sequence[int], int], Any]
Key = tuple[int, int, bytes]  # compute capability, threads per block, and the module's hash
_Planned = tuple[ModulePlan | None, dict[bytes, str]]  # and the name of each kernel, by its hash


class Tapes:
    """Finds launches that multiply whole arrays, and replaces their records on tapes.

    Args:
        plan: Plans Warp's module of a kernel for a compute capability and a number of threads.
        mentions: True if a kernel, or a function that it calls, mentions one of some builtins.
        gradients: Returns the gradients of a launch, or the reason why its adjoint kernel computes them. Its arguments
            are the product; the launch's arguments; their shapes and integers; its blocks; and the least number of
            multiplications.
    """

    def __init__(
        self,
        plan: Callable[[Any, int, int], ModulePlan | None],
        mentions: Callable[[Any, set[str]], bool],
        gradients: Gradients,
    ) -> None:
        self._plan = plan
        self._mentions = mentions
        self._gradients = gradients
        self._seen: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()  # what a kernel was seen for
        self._plans: weakref.WeakKeyDictionary[Any, dict[Key, _Planned]] = weakref.WeakKeyDictionary()

    def install(self, wrap: Callable[[Any, str, Callable[..., Any]], None]) -> None:
        """Installs the hook by :meth:`Hooks._wrap`, unless this Warp lacks the part that it needs."""
        try:
            require(REQUIRED)
        except UnsupportedWarpError as error:
            log.warning("tapes launch the adjoint kernels of all products: %s", error.message)
            return
        wrap(find("tape.Tape"), "record_launch", self._record_launch)

    def _record_launch(self, original: Callable[..., None], tape: Any, *launch: Any, **named: Any) -> None:
        original(tape, *launch, **named)
        kernel, dim, _, inputs, outputs, device, block_dim, *_ = tape.launches[-1]  # as Warp resolved them
        self.warn_of_lost_gradients(kernel, [*inputs, *outputs], device, block_dim)
        backward = self.gradients(kernel, dim, [*inputs, *outputs], device, block_dim)
        if backward is not None:
            tape.launches[-1] = TapeProduct(tape.launches[-1], tape, backward)
        elif device.is_cuda and kernel.module.options.get("deterministic"):
            self.warn_of_order(kernel, inputs)

    def gradients(self, kernel: Any, dim: Any, values: Sequence[Any], device: Any, block_dim: int) -> Any:
        """The gradients of a launch as two products, or None if its adjoint kernel computes them.

        ``dim`` has the threads of a block last.
        """
        blocks = tuple(dim) if isinstance(dim, (tuple, list)) else ()
        if not device.is_cuda or len(blocks) != 3 or blocks[2] != block_dim or warp.config.verify_autograd_array_access:
            return None
        if not has_adjoint(kernel):  # the tape warns of it
            return None
        matrices = [value for value in values if isinstance(value, warp.array) and value.ndim == 2]
        if len(matrices) < 3 or not any(array.requires_grad for array in matrices):
            return None
        resolved = current(kernel.module.options, kernel.module.name)
        least = 0 if resolved.gemm_gradients == "always" or resolved.deterministic else LEAST_WORK
        most = max(array.size for array in matrices) * max(max(array.shape) for array in matrices)
        if resolved.gemm_gradients == "off" or most < least:
            return None
        plan, name = self._planned(kernel, device.arch, block_dim)
        whole = None if plan is None else plan.whole_products.get(name)
        if whole is None:
            return None
        arguments = [_argument(argument.type, value) for argument, value in zip(kernel.adj.args, values)]
        backward = self._gradients(whole, values, arguments, blocks[:2], least)
        if isinstance(backward, Rejected):
            if self._is_first(kernel, "a reason"):
                log.info("kernel %s: its adjoint kernel computes the gradients: %s", name, backward)
            return None
        return backward

    def warn_of_lost_gradients(self, kernel: Any, values: Sequence[Any], device: Any, block_dim: int) -> None:
        """Warns once of a kernel with arrays that require gradients and with solvers that have none."""
        if not (_has_gradients(kernel, values) and self._is_first(kernel, "solvers")):
            return
        builtins = find("context.builtin_functions")
        if not self._mentions(kernel, {name for name in SOLVERS if not builtins[name].is_differentiable}):
            return
        lost: dict[str, Rejected | str] = {"a solver": "Warp has none on the CPU"}
        if device.is_cuda:
            plan, name = self._planned(kernel, device.arch, block_dim)
            functions = () if plan is None else plan.functions
            lost = {v.call: v.no_gradient for v in functions if name in v.kernels and v.no_gradient}
        for call, reason in lost.items():
            warn(f"a tape records kernel {name_of(kernel)}, in which {call} has no gradient: {reason}")

    def warn_of_order(self, kernel: Any, inputs: Sequence[Any]) -> None:
        """Warns once of a deterministic kernel whose adjoint adds to gradients of input arrays atomically."""
        if not (_has_gradients(kernel, inputs) and self._is_first(kernel, "loads")):
            return
        if self._mentions(kernel, {LOAD, f"{LOAD}_indexed"}):
            warn(
                f"a tape records kernel {name_of(kernel)}, whose module is deterministic, but the adjoint of {LOAD} "
                "adds atomically: if several blocks load an element, the order of the additions to its gradient "
                "varies. Multiply whole arrays with warp_tiles.matmul, or load each element in one block only"
            )

    def _is_first(self, kernel: Any, what: str) -> bool:
        """True once for each kernel."""
        seen = self._seen.setdefault(kernel, set())
        is_first = what not in seen
        seen.add(what)
        return is_first

    def _planned(self, kernel: Any, arch: int, block_dim: int) -> tuple[ModulePlan | None, str]:
        """The plan of a kernel's module, which is made once, or None, and the kernel's name in it."""
        module = kernel.module
        key = arch, block_dim, module.get_module_hash(block_dim)
        known = self._plans.setdefault(module, {})
        if key not in known:
            try:
                plan = self._plan(module, arch, block_dim)
            except WarpTilesError as error:
                log.debug("module %s is not planned: %s", module.name, error)
                return None, name_of(kernel)
            known[key] = plan, hashed_names(module, block_dim)
        plan, named = known[key]
        return plan, named.get(kernel.hash, name_of(kernel))


def _has_gradients(kernel: Any, values: Sequence[Any]) -> bool:
    return has_adjoint(kernel) and any(isinstance(value, warp.array) and value.requires_grad for value in values)


def _argument(kind: Any, value: Any) -> Argument | None:
    """The shape of an array, the value of a 32-bit integer, or None for another argument."""
    if isinstance(value, warp.array):
        return tuple(value.shape)
    number = getattr(value, "value", value)  # of one of Warp's scalar types
    return int(number) if kind in (int, warp.int32) and isinstance(number, (int, np.integer)) else None


class TapeProduct(list):  # type: ignore[type-arg]
    """A launch as Warp records it. A tape calls it in its backward pass in place of the adjoint kernel.

    ``backward`` adds the gradients (:class:`warp_tiles.array_products.backward.Backward`).
    """

    def __init__(self, launch: list[Any], tape: Any, backward: Any) -> None:
        super().__init__(launch)
        self._tape = weakref.ref(tape)  # the tape owns this object
        self._backward = backward

    def __call__(self) -> None:
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
