"""The text of a module while a random kernel is drawn."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tests.random_kernels.kernel import Argument, ArrayArgument

BYTES = {"float16": 2, "float32": 4, "float64": 8}
SHARED_LIMIT = 140_000  # bytes of tiles with their gradients; Warp needs further copies for branches


class TooLargeError(Exception):
    """The tiles of a kernel need too much shared memory."""


@dataclass
class Plan:
    """Sizes and dtypes of a kernel.

    Attributes:
        m, n, k: Sizes of the product.
        tm, tn, tk: Sizes of its tiles.
        inner: dtype of A and B.
        outer: dtype of C.
        precision: Argument of ``tile_matmul``, or empty.
        closure: Constants of the function around the kernel.
        in_function: True while the lines of a ``wp.func`` are written.
    """

    m: int
    n: int
    k: int
    tm: int
    tn: int
    tk: int
    inner: str
    outer: str
    precision: str
    closure: dict[str, int] = field(default_factory=dict)
    in_function: bool = False

    @property
    def steps(self) -> int:
        return -(-self.k // self.tk)


@dataclass
class Writer:
    """Collects the lines of a kernel or function, and the facts about the whole module.

    Attributes:
        rng: The only source of randomness.
        backward: True if the kernel has a backward pass.
        plan: Its sizes and dtypes.
        head: Lines of the module before the kernel.
        lines: Lines of the current body.
        copies: The number of copies of the current line after loops are unrolled.
    """

    rng: random.Random
    backward: bool
    plan: Plan = field(init=False)
    arguments: dict[str, Argument] = field(default_factory=dict)
    head: list[str] = field(default_factory=list)
    features: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    copies: int = 1
    shared: int = 0
    names: int = 0
    no_gradients: bool = False

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def indented(self, line: str, copies: int = 1) -> Iterator[None]:
        self.put(line)
        self.depth += 1
        self.copies *= copies
        yield
        self.copies //= copies
        self.depth -= 1

    @contextmanager
    def separate_lines(self) -> Iterator[list[str]]:
        """Collect the lines of a with-block in a separate list."""
        kept, depth, self.lines, self.depth = self.lines, self.depth, [], 1
        yield self.lines
        self.lines, self.depth = kept, depth

    def feature(self, *names: str) -> None:
        self.features.update(names)

    def chance(self, probability: float, feature: str = "") -> bool:
        """Return True with this probability, and then add the feature."""
        chosen = self.rng.random() < probability
        if chosen and feature:
            self.features.add(feature)
        return chosen

    def pick(self, weighted: dict[str, float]) -> str:
        return self.rng.choices(list(weighted), list(weighted.values()))[0]

    def one(self, options: Sequence[int]) -> int:
        return self.rng.choice(list(options))

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def tile(self, shape: tuple[int, ...], dtype: str) -> None:
        """Count a tile in shared memory.

        Raises:
            TooLargeError: The tiles do not fit.
        """
        size = BYTES[dtype]
        for count in shape:
            size *= count
        self.shared += size * (2 if self.backward else 1) * self.copies
        if self.shared > SHARED_LIMIT:
            raise TooLargeError

    def array(self, name: str, shape: tuple[int, ...], dtype: str, *, written: bool = False, read: bool = True) -> str:
        """Add an array to the arguments, sometimes as a view."""
        view = "whole"
        if len(shape) == 2:
            view = self.pick({"whole": 6, "inner": 2, "rows": 1, "columns": 0.5, "transposed": 0.7})
        self.feature(f"array {view}")
        self.arguments[name] = ArrayArgument(name, shape, dtype, view, read, written)
        return name

    def mark(self, name: str, *, read: bool = False, written: bool = False) -> None:
        """Note that the kernel also reads or writes an array."""
        old = self.arguments[name]
        assert isinstance(old, ArrayArgument)
        self.arguments[name] = replace(old, read=old.read or read, written=old.written or written)

    def parameters(self) -> str:
        """The parameters of a function with all current arguments of the kernel."""
        parts = []
        for name, argument in self.arguments.items():
            if isinstance(argument, ArrayArgument):
                kind = "array2d" if len(argument.shape) == 2 else "array"
                parts.append(f"{name}: wp.{kind}(dtype=wp.{argument.dtype})")
            else:
                parts.append(f"{name}: {getattr(argument, 'type_name', 'wp.int32')}")
        return ", ".join(parts)
