"""Records all functions of a module while Warp generates it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from warp_tiles._warp.recorder import Recorder
from warp_tiles.codegen.trace import Effect, FunctionTrace, ModuleTrace


class ModuleRecorder:
    """Records one module.

    Attributes:
        recorders: The recorder of each function, by identity of its Adjoint.
        reversed: Identities of the Adjoints whose reverse pass was generated.
    """

    def __init__(self) -> None:
        self.recorders: dict[int, Recorder] = {}
        self.reversed: set[int] = set()
        self._numbers: Iterator[int] = itertools.count()
        self._effects: dict[int, Effect] = {}

    def begin(self, adjoint: Any) -> Recorder:
        """Returns a new recorder of a function. It replaces an earlier one."""
        recorder = self.recorders[id(adjoint)] = Recorder(adjoint, self._numbers)
        return recorder

    def trace(
        self,
        label_of: Callable[[Any], str],
        kernels_of: Callable[[Any], tuple[str, ...]],
        kernel_keys: Mapping[int, str],
    ) -> ModuleTrace:
        """Returns the trace of the module.

        Args:
            label_of: Returns the label of a function, by its Adjoint.
            kernels_of: Returns the keys of the kernels that reach a function, by its Adjoint.
            kernel_keys: Keys of the module's kernels, by identity of their Adjoints.
        """
        functions: dict[str, FunctionTrace] = {}
        kernels: dict[str, tuple[str, ...]] = {}
        for recorder in self.recorders.values():
            found = recorder.trace(label_of, self._effect_of)
            functions[found.label] = found
            kernels[found.label] = kernels_of(recorder.adjoint)
        reverse = frozenset(label_of(r.adjoint) for i, r in self.recorders.items() if i in self.reversed)
        own = {label_of(r.adjoint): kernel_keys[i] for i, r in self.recorders.items() if i in kernel_keys}
        return ModuleTrace(functions, reverse, kernels, own)

    def _effect_of(self, function: Any) -> Effect:
        identity = id(function.adj)
        recorder = self.recorders.get(identity)
        if recorder is None or function.native_snippet is not None:
            return Effect.UNKNOWN
        if identity not in self._effects:
            self._effects[identity] = recorder.effect(self._effect_of)
        return self._effects[identity]
