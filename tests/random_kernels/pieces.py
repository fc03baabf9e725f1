"""Pieces of random kernels: loops, loads of operands and products."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.random_kernels.kernel import ScalarArgument, StructArgument
from tests.random_kernels.writer import Writer

MAX_UNROLLED = 16  # iterations of the longest constant range that Warp unrolls


@dataclass
class Operand:
    """One operand of products: its array and the form of its tiles.

    Attributes:
        rows, columns: Size of its tiles.
        transposed: True if the array holds the transposed matrix.
        storage: Argument of ``tile_load``, or empty.
        view: True if its tiles are views of larger tiles.
        copied: True if the product reads the tile under a second name.
    """

    array: str
    rows: int
    columns: int
    transposed: bool
    storage: str
    view: bool
    copied: bool

    def extent(self, axis: int) -> str:
        return f"{self.array}.shape[{1 - axis if self.transposed else axis}]"


def make_operand(w: Writer, array: str, size: tuple[int, int], tile: tuple[int, int]) -> Operand:
    transposed = w.chance(0.25, "transposed operand")
    storage = w.pick({"": 1, "shared": 1.5, "register": 0.2})
    w.feature(f"storage {storage or 'default'}")
    w.array(array, size[::-1] if transposed else size, w.plan.inner)
    view, copied = w.chance(0.12, "operand view"), w.chance(0.1, "operand copied")
    return Operand(array, *tile, transposed, storage, view, copied)


def load(w: Writer, operand: Operand, row: str, column: str) -> str:
    """Write the load of a tile that starts at the given row and column of the matrix. Returns its name."""
    stem = operand.array.lower()
    shape, offset = [operand.rows, operand.columns], [row, column]
    if operand.transposed:
        shape.reverse(), offset.reverse()
    name = w.name(stem)
    storage = f', storage="{operand.storage}"' if operand.storage else ""
    wide = [count + 4 for count in shape] if operand.view else shape
    w.tile(tuple(wide), w.plan.inner)
    w.put(f"{name} = wp.tile_load({operand.array}, shape=({wide[0]}, {wide[1]}), "
          f"offset=({offset[0]}, {offset[1]}){storage})")  # fmt: skip
    if operand.view:
        inner, name = name, w.name(stem)
        start = w.one([0, 4]), w.one([0, 2])
        w.put(f"{name} = wp.tile_view({inner}, offset=({start[0]}, {start[1]}), shape=({shape[0]}, {shape[1]}))")
    if operand.transposed:
        inner, name = name, w.name(stem)
        w.put(f"{name} = wp.tile_transpose({inner})")
    if operand.copied and not operand.transposed and not operand.view:
        inner, name = name, w.name(stem)
        w.tile(tuple(shape), w.plan.inner)
        w.put(f"{name} = {inner}")
    return name


@dataclass
class Loop:
    """A loop that is being written.

    Attributes:
        index: Expression of the iteration number.
        at: Expression of its first element of K.
        dynamic: True if Warp does not unroll the loop.
        kind: The form of its bound.
        ascending: True if each iteration loads elements after those of the iteration before.
    """

    index: str
    at: str
    dynamic: bool
    kind: str
    ascending: bool = False


def _bound(w: Writer, value: int, kind: str, scale: int = 1) -> str:
    """An expression of the value. A member of a struct holds ``scale`` times the value."""
    if kind == "scalar":
        name = w.name("count")
        w.arguments[name] = ScalarArgument(name, value)
        return name
    if kind == "struct":
        name = w.name("sizes")
        w.head.append("@wp.struct\nclass Sizes" + name + ":\n    first: wp.int32\n    k: wp.int32\n")
        w.arguments[name] = StructArgument(name, "Sizes" + name, (("first", 0), ("k", value * scale)))
        return f"{name}.k // {scale}" if scale > 1 else f"{name}.k"
    if kind == "closure":
        name = w.name("closed")
        w.plan.closure[name] = value
        return name
    if kind == "constant":
        name = w.name("STEPS")
        w.head.append(f"{name} = wp.constant({value})\n")
        return name
    return str(value)


@contextmanager
def loop(w: Writer, a: Operand, steps: int, *, stem: str = "s", outer: bool = False) -> Iterator[Loop]:
    """Write a loop over K, or an outer loop, whose bound does not come from an array."""
    weights = {"elements": 3.0, "ceil": 2.0, "scalar": 2.0, "struct": 1.0, "closure": 1.0, "constant": 1.0,
               "literal": 2.0, "while": 0.8, "backwards": 0.5}  # fmt: skip
    if w.plan.in_function:
        weights.pop("closure")
    if outer:
        weights = {"scalar": 2.0, "struct": 1.0}
        if not w.backward:  # with a backward pass, Warp crashes on a dynamic loop in an unrolled one
            weights |= {"constant": 1.0, "literal": 1.0}
    kind = w.pick(weights)
    w.feature("loop", f"loop {kind}")
    index, tk, copies = w.name(stem), w.plan.tk, 1
    at, dynamic = f"{index} * {tk}", True
    if kind in ("scalar", "struct") and not outer and w.chance(0.15, "other number of iterations"):
        steps = w.one([0, 1, steps + 1])  # none, one, and one more, whose tiles lie outside the arrays
    if kind == "elements":
        line, at = f"for {index} in range(0, {a.extent(1)}, {tk}):", index
    elif kind == "ceil":
        line = f"for {index} in range(({a.extent(1)} + {tk - 1}) // {tk}):"
    elif kind == "while":
        w.no_gradients = True  # the condition of the reverse loop is false from the start
        w.put(f"{index} = int(0)")
        line, at = f"while {index} < {a.extent(1)}:", index
    elif kind == "backwards":
        bound = _bound(w, steps * tk - tk, "scalar")
        line, at = f"for {index} in range({bound}, -1, -{tk}):", index
    else:
        if kind in ("closure", "constant", "literal"):
            dynamic = steps > MAX_UNROLLED
            w.feature("loop unrolled" if not dynamic else "loop long constant")
            copies = steps if not dynamic else 1
        bound = _bound(w, steps, kind, tk)
        line = f"for {index} in range({'0, ' if w.chance(0.3) else ''}{bound}):"
    if dynamic:
        w.feature("loop dynamic")
    with w.indented(line, copies):
        iteration = f"{index} // {tk}" if at == index else index
        current = Loop(f"({iteration})" if at == index else iteration, at, dynamic, kind)
        if kind == "while":  # increments first, because continue would skip the increment
            w.put(f"{index} += {tk}")
            current = Loop(f"(({index} - {tk}) // {tk})", f"{index} - {tk}", True, kind)
        yield current


def k_offset(w: Writer, current: Loop) -> str:
    """Write the computation of the iteration's offset along K, in one of many forms. Returns the expression."""
    kind = w.pick({"plain": 6, "//": 1, "%": 1, "^": 1, "helper": 1.2, "split": 0.8, "variable": 1})
    tk, iteration = w.plan.tk, current.index
    w.feature(f"offset {kind}")
    current.ascending = kind not in ("//", "%", "^") and current.kind != "backwards"
    if kind == "//":
        return f"({iteration} // 2) * {tk}"
    if kind == "%":
        return f"({iteration} % {w.one([2, 3])}) * {tk}"
    if kind == "^":
        return f"({iteration} ^ 1) * {tk}"
    if kind == "helper":
        name = w.name("place")
        if w.chance(0.4, "generic helper"):
            w.head.append(f"@wp.func\ndef {name}(step: Any, size: Any):\n    return step * size\n")
            return f"{name}({iteration}, {tk})"
        w.head.append(f"@wp.func\ndef {name}(step: int):\n    return step * {tk}\n")
        return f"{name}({iteration})"
    if kind == "split":
        name = w.name("half")
        w.put(f"{name} = {iteration} // 2")
        return f"{name} * {2 * tk} + ({iteration} - {name} * 2) * {tk}"
    if kind == "variable":
        name = w.name("at")
        w.put(f"{name} = {current.at}")
        return name
    return current.at


def condition(w: Writer, current: Loop | None) -> str:
    """A condition that is the same for all threads of a block."""
    w.feature("condition")
    iteration = current.index if current is not None else "j"
    if w.chance(0.25, "condition of an argument"):
        name = w.name("flag")
        w.arguments[name] = ScalarArgument(name, w.one([0, 1, 2]))
        return w.rng.choice([f"{name} != 0", f"{iteration} < {name}", f"{iteration} >= {name}"])
    return w.rng.choice(
        [f"{iteration} % 2 == 0", f"{iteration} > 0", f"{iteration} % 3 != 1", f"({iteration} + i) % 2 == 0", "i == 0"]
    )


@dataclass
class Sum:
    """A tile that products are added to."""

    name: str
    rows: int
    columns: int
    dtype: str


def start_sum(
    w: Writer, rows: int, columns: int, at: tuple[str, str], size: tuple[int, int], *, shared: bool = False
) -> Sum:
    """Write a tile with its start value. If ``shared`` is set, it must be in shared memory."""
    name, dtype = w.name("c"), w.plan.outer
    kind = w.pick({"zeros": 6, "ones": 1, "full": 1, "load": 2})
    storage = w.pick({"": 0 if shared else 1, ', storage="shared"': 1.5})
    w.feature(f"start {kind}")
    w.tile((rows, columns), dtype)
    if kind == "load":
        array = w.array(w.name("S"), size, dtype)
        w.put(f"{name} = wp.tile_load({array}, shape=({rows}, {columns}), offset=({at[0]}, {at[1]}){storage})")
    elif kind == "full":
        value = w.one([-2, -1, 2, 3])
        w.put(f"{name} = wp.tile_full(shape=({rows}, {columns}), value=wp.{dtype}({value}.0), "
              f"dtype=wp.{dtype}{storage})")  # fmt: skip
    else:
        w.put(f"{name} = wp.tile_{kind}(shape=({rows}, {columns}), dtype=wp.{dtype}{storage})")
    return Sum(name, rows, columns, dtype)


def product(w: Writer, a: str, b: str, c: Sum) -> None:
    """Write one product in one of its three forms."""
    options = f', precision="{w.plan.precision}"' if w.plan.precision else ""
    kind = w.pick({"accumulate": 6, "in place": 2, "assigned": 2})
    w.feature(f"product {kind}")
    if w.chance(0.12, "alpha"):
        options += f", alpha={w.one([-1, 2, 3])}.0"
    if kind == "accumulate":
        if w.chance(0.06, "beta"):
            options += f", beta={w.one([0, -1, 2])}.0"
        w.put(f"wp.tile_matmul({a}, {b}, {c.name}{options})")
        return
    w.tile((c.rows, c.columns), w.plan.inner)
    call = f"wp.tile_matmul({a}, {b}{options})"
    if kind == "assigned":
        name = w.name("p")
        w.put(f"{name} = {call}")
        call = name
    if w.plan.inner != c.dtype:
        w.tile((c.rows, c.columns), c.dtype)
        call = f"wp.tile_astype({call}, dtype=wp.{c.dtype})"
    w.put(f"{c.name} += {call}")


def conditional(w: Writer, current: Loop | None, write: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """Write statements under a condition, sometimes with an else branch."""
    with w.indented(f"if {condition(w, current)}:"):
        write()
    if w.chance(0.3, "else"):
        with w.indented("else:"):
            otherwise()
