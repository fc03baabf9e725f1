"""The definition of a kernel that a recording was made from, and its newest edited version."""

from __future__ import annotations

from typing import Any

from warp_tiles._warp.launch import argument_names, is_kernel
from warp_tiles.errors import RecordingError


class Definition:
    """A recorded kernel and the build of its module.

    Args:
        kernel: The user's kernel.
        module: Its Warp module.
        block_dim: Threads per block of the loaded module; None if the module was not loaded.
        is_named: True if the name of the kernel's function refers to the kernel; None looks the name up.
    """

    def __init__(self, kernel: Any, module: Any, block_dim: int | None, is_named: bool | None = None) -> None:
        self._kernel = kernel
        self._globals: dict[str, Any] = kernel.func.__globals__
        self._name = str(kernel.func.__name__)
        self._bound = self._globals.get(self._name)
        named = is_kernel(self._bound) and self._bound in (kernel, kernel.generic_parent)
        self.is_named = named if is_named is None else is_named
        self._module = module
        self._block_dim = block_dim
        # a modified module drops its hashers, and gets new ones at its next load
        self._hasher = module.hashers.get(block_dim, None if block_dim is None else self)

    def is_current(self) -> bool:
        """True if the module is unmodified and the kernel's name refers to the same object."""
        return (
            self._module.hashers.get(self._block_dim) is self._hasher and self._globals.get(self._name) is self._bound
        )

    def newest(self) -> Any:
        """Returns the edited kernel if the name now refers to one, else the recorded kernel.

        Raises:
            RecordingError: The edited kernel has other arguments.
        """
        candidate: Any = self._globals.get(self._name)
        if not (self.is_named and is_kernel(candidate)) or candidate.adj.source == self._kernel.adj.source:
            return self._kernel
        old, new = argument_names(self._kernel), argument_names(candidate)
        if old != new:
            raise RecordingError(
                f"kernel {self._kernel.key} was redefined with the arguments {', '.join(new)} "
                f"in place of {', '.join(old)}",
                remedy="record it again",
            )
        return candidate
