"""What the calls that a ``wp.Tape`` records have in common."""

from __future__ import annotations

from typing import Any

from warp_tiles.array_products.call import are_distinct
from warp_tiles.errors import MatmulError


class TapeCall:
    """A backward pass. A tape calls it. Its attributes with a gradient are the arrays of the call."""

    def check_gradients(self) -> None:
        """Checks that each element of a gradient has memory of its own, because nothing is added atomically.

        Raises:
            MatmulError: Elements of a gradient share memory.
        """
        for name, array in vars(self).items():
            gradient = getattr(array, "grad", None)
            if gradient is not None and not are_distinct(gradient):
                raise MatmulError(
                    f"the gradient of {name} has shape {tuple(gradient.shape)} and strides {tuple(gradient.strides)}: "
                    "elements share memory",
                    remedy=f"copy {name} into an array of its own before the call",
                )

    def record_on(self, tape: Any) -> None:
        """Lets a tape's backward pass add the gradients. The tape then zeroes them with its own."""
        for array in vars(self).values():
            if getattr(array, "grad", None) is not None:
                tape.gradients[array] = array.grad
        tape.record_func(self, [])
