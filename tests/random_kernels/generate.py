"""Draws random tile kernels around ``wp.tile_matmul``: valid Warp programs with exact results.

Some constructs have no defined gradient in Warp. Kernels with them are compared without gradients:

- ``while`` loops, because the reverse loop starts with a false condition;
- ``break``, because the reverse loop starts after it;
- operations that are not linear in a sum of a dynamic loop, because the backward pass does not repeat the loop;
- views, in a dynamic loop, of tiles from outside, because Warp doubles their gradients in each iteration;
- writes to an array that is loaded.

A tile operation has a block barrier where a tile in shared memory is complete: at the end of a load into it, and of a
product. Stores have none. So values that an iteration writes to a loaded array are read after a product, or not at all.
"""

import random
from dataclasses import replace
from functools import partial

from tests.random_kernels.kernel import ArrayArgument, RandomKernel
from tests.random_kernels.model import NotExactError
from tests.random_kernels.pieces import (
    Loop,
    Operand,
    Sum,
    conditional,
    k_offset,
    load,
    loop,
    make_operand,
    product,
    start_sum,
)
from tests.random_kernels.writer import Plan, TooLargeError, Writer

MAX_ATTEMPTS = 60
MAGNITUDES = (4, 3, 2, 1)


def draw(seed: int) -> RandomKernel:
    """Draw the kernel of a seed. Equal seeds give equal kernels.

    Raises:
        RuntimeError: No attempt gave a kernel with exact results. No such seed is known.
    """
    for attempt in range(MAX_ATTEMPTS):
        try:
            kernel = _Drawing(seed, random.Random(f"{seed} {attempt}"), small=attempt > MAX_ATTEMPTS // 3).kernel()
        except TooLargeError:
            continue
        for magnitude in MAGNITUDES:
            scaled = replace(kernel, magnitude=magnitude)
            try:
                scaled.expected(bounds=True)
            except NotExactError:
                continue
            return scaled
    raise RuntimeError(f"no kernel for seed {seed}")


class _Drawing:
    """One attempt at a kernel."""

    def __init__(self, seed: int, rng: random.Random, *, small: bool):
        self.seed, self.small = seed, small
        self.w = Writer(rng, backward=rng.random() < 0.75)
        self.grid = (rng.choice([1, 2, 2, 3]), rng.choice([1, 1, 2, 2]))
        self.plan = self.w.plan = self._plan()
        self.sums: list[Sum] = []
        self.returned = False

    def _plan(self) -> Plan:
        w = self.w
        inner = w.pick({"float16": 3.5, "float32": 4.5, "float64": 2})
        outer = "float32" if inner == "float16" and w.chance(0.6, "mixed dtypes") else inner
        w.feature(f"dtype {inner}")
        precision = "tf32" if inner == "float32" and w.chance(0.25, "tf32") else ""
        sizes = [4, 8, 12, 16, 16, 20, 24] if self.small else [4, 8, 16, 16, 16, 24, 32, 32, 48, 64]
        tm, tn, tk = (w.one(sizes) for _ in range(3))
        steps = w.one([1, 2, 3, 3, 4, 5, 6])
        if w.chance(0.12, "many iterations"):
            steps, tk = w.one([17, 19, 24]), w.one([4, 8, 16])
        m, n, k = tm * self.grid[0], tn * self.grid[1], tk * steps
        if w.chance(0.4, "edges"):
            m, n, k = (max(1, size - w.one([0, 1, 2, 3])) for size in (m, n, k))
        return Plan(m, n, k, tm, tn, tk, inner, outer, precision)

    def kernel(self) -> RandomKernel:
        w = self.w
        block_dim = w.one([32, 64, 64, 128, 128, 96, 256])
        w.feature(f"block {block_dim}")
        self.a, self.b = self._operand("A", "A"), self._operand("B", "B")
        self.shape = shape = w.pick({"loop": 7, "nested": 1.3, "two loops": 1, "no loop": 0.8, "function": 2})
        w.feature(f"shape {shape}")
        {
            "loop": self._loop, "nested": self._nested, "two loops": self._two_loops, "no loop": self._no_loop,
            "function": self._function,
        }[shape]()  # fmt: skip
        for c in self.sums:
            self.use(c)
        source = self._module()
        gradients = w.backward and not w.no_gradients
        w.feature("backward" if w.backward else "forward only")
        used = {a.name for a in w.arguments.values() if not isinstance(a, ArrayArgument) or a.read or a.written}
        arguments = tuple(argument for name, argument in w.arguments.items() if name in used)
        name = f"random_kernel_{self.seed}"
        return RandomKernel(self.seed, name, source, self.grid, block_dim, arguments, frozenset(w.features), gradients)

    def _module(self) -> str:
        w, plan = self.w, self.plan
        decorator = "@wp.kernel" if w.backward else "@wp.kernel(enable_backward=False)"
        lines = [decorator, f"def kernel({w.parameters()}):", "    i, j = wp.tid()", *w.lines]
        if plan.closure:
            parameters = ", ".join(f"{name}: int" for name in plan.closure)
            values = ", ".join(map(str, plan.closure.values()))
            lines = [f"def make({parameters}):", *("    " + line for line in lines), "    return kernel", "", ""]
            lines.append(f"kernel = make({values})")
        options = f'wp.set_module_options({{"enable_backward": {w.backward}}})\n'
        return "\n".join(["from typing import Any\n", "import warp as wp\n", options, *w.head, *lines, ""])

    def _start(self, *, shared: bool = False) -> Sum:
        plan, at = self.plan, (self.row, self.column)
        return start_sum(self.w, plan.tm, plan.tn, at, (plan.m, plan.n), shared=shared)

    def _operand(self, shape: str, name: str) -> Operand:
        """An operand with the shape of A or B."""
        plan = self.plan
        if shape == "A":
            return make_operand(self.w, name, (plan.m, plan.k), (plan.tm, plan.tk))
        return make_operand(self.w, name, (plan.k, plan.n), (plan.tk, plan.tn))

    # shapes of kernels

    def _loop(self) -> None:
        self.sums = [self._start()]
        if self.w.chance(0.2, "several sums"):
            self.sums.append(self._start())
        resident = None
        if self.w.chance(0.16, "resident operand"):
            resident = load(self.w, self.a, self.row, "0")
        with loop(self.w, self.a, self.plan.steps) as current:
            self._body(current, self.sums, resident)

    def _two_loops(self) -> None:
        for number in range(2):
            if number == 0 or self.w.chance(0.6, "several sums"):
                self.sums.append(self._start())
            with loop(self.w, self.a, self.plan.steps, stem="st" if number else "s") as current:
                self._body(current, self.sums[-1:])

    def _nested(self) -> None:
        w, plan = self.w, self.plan
        outside = w.chance(0.5, "sum outside both loops")
        if outside:
            self.sums = [self._start()]
        else:
            w.feature("sum in the outer loop")
        with loop(w, self.a, w.one([2, 3]), stem="outer", outer=True):
            sums = self.sums if outside else [self._start()]
            with loop(w, self.a, plan.steps, stem="inner") as current:
                self._body(current, sums)
            if not outside or w.chance(0.3, "sum read in the outer loop"):
                self.add_to(sums[0], self.output("D", (plan.m, plan.n)), (self.row, self.column))

    def _no_loop(self) -> None:
        w = self.w
        self.sums = [self._start()]
        a = load(w, self.a, self.row, "0")
        b = load(w, self.b, "0", self.column)
        if w.chance(0.25):
            conditional(w, None, lambda: product(w, a, b, self.sums[0]), lambda: w.put("pass"))
        else:
            product(w, a, b, self.sums[0])
        if w.chance(0.4, "two products"):
            product(w, a, b, self.sums[0])

    def _function(self) -> None:
        """Write the loop in a function, which returns its tile or changes a tile of the caller."""
        w, plan = self.w, self.plan
        returns = w.chance(0.5)
        w.feature("function returns the tile" if returns else "function takes the tile")
        name = w.name("products")
        plan.in_function = True
        generic = w.chance(0.4, "generic function")
        # a product puts its sum into shared memory; Warp does not always notice that for a function's parameter
        outside = None if returns else self._start(shared=True)
        self.returned = returns
        with w.separate_lines() as lines:
            c = self._start() if outside is None else replace(outside, name="total")
            with loop(w, self.a, plan.steps) as current:
                self._body(current, [c])
            if returns:
                w.put(f"return {c.name}")
        plan.in_function = False
        parameters = "".join(f"{n}: Any, " for n in w.arguments) if generic else w.parameters() + ", "
        arguments = "".join(f"{n}, " for n in w.arguments)
        kind = "" if returns else ", total: " + ("Any" if generic else f"wp.tile[wp.{c.dtype}, {c.rows}, {c.columns}]")
        w.head.append("\n".join([f"@wp.func\ndef {name}({parameters}i: int, j: int{kind}):", *lines, ""]))
        if outside is None:
            result = replace(c, name=w.name("c"))
            w.put(f"{result.name} = {name}({arguments}i, j)")
        else:
            result = outside
            w.put(f"{name}({arguments}i, j, {result.name})")
        self.sums = [result]

    # the body of a loop

    def _body(self, current: Loop, sums: list[Sum], resident: str | None = None) -> None:
        w = self.w
        if w.chance(0.06, "break"):
            w.no_gradients = True
            with w.indented(f"if {current.index} == {w.one([1, 2, 3])}:"):
                w.put("break")
        elif current.dynamic and w.chance(0.06, "continue"):  # after an unrolled one, Warp reserves too little memory
            with w.indented(f"if {current.index} % 3 == 1:"):
                w.put("continue")
        at = k_offset(w, current)
        form = w.pick({"plain": 7, "conditional": 1.2, "conditional loads": 1.2})
        if form == "conditional loads" and not current.dynamic and w.backward:
            form = "conditional"  # in an unrolled loop, Warp's gradients of views in if statements are wrong
        if form == "conditional loads":
            w.feature("conditional loads")
            iteration = partial(self._iteration, current, at, sums, resident)
            conditional(w, current, iteration, iteration)
        elif form == "conditional":
            w.feature("conditional product")
            a, b = self._loads(at, resident)
            conditional(w, current, partial(product, w, a, b, sums[0]), partial(product, w, a, b, sums[-1]))
        else:
            self._iteration(current, at, sums, resident)
        self._extras(current, sums)

    def _loads(self, at: str, resident: str | None) -> tuple[str, str]:
        w = self.w
        a = resident or load(w, self.a, self.row, at)
        b = load(w, self.b, at, self.column)
        return a, b

    def _iteration(self, current: Loop, at: str, sums: list[Sum], resident: str | None) -> None:
        w, plan = self.w, self.plan
        if plan.tm == plan.tn and w.chance(0.5, "product of a tile by itself"):
            a = resident or load(w, self.a, self.row, at)
            b = w.name("b")
            w.put(f"{b} = wp.tile_transpose({a})")
            if resident is not None:
                self._view_of_outer()
        else:
            a, b = self._loads(at, resident)
        if resident is None and not self.a.transposed and not self.a.view and w.chance(0.05, "operand changed"):
            ones = w.name("ones")
            w.tile((plan.tm, plan.tk), plan.inner)
            w.put(f"{ones} = wp.tile_ones(shape=({plan.tm}, {plan.tk}), dtype=wp.{plan.inner})")
            w.put(f"{a} += {ones}")
        may_store = not self.a.view  # a larger tile would overlap the writes of other blocks
        ahead = may_store and w.chance(0.05, "store to the loaded array ahead")
        if ahead:
            self._store_to_a(at, 1)
        product(w, a, b, sums[0])
        if len(sums) > 1 or w.chance(0.15, "two products"):
            if w.chance(0.6, "shared operand"):
                product(w, a, load(w, self._operand("B", w.name("B")), at, self.column), sums[-1])
            else:
                x = load(w, self._operand("A", w.name("A")), self.row, at)
                product(w, x, load(w, self._operand("B", w.name("B")), at, self.column), sums[-1])
        after = may_store and current.ascending and self.shape in ("loop", "function")
        if not ahead and after and w.chance(0.06, "store to the loaded array"):
            self._store_to_a(at, 0)

    def _store_to_a(self, at: str, iterations_ahead: int) -> None:
        """Write to the array of A where this iteration reads, or where a later one will."""
        w, plan = self.w, self.plan
        # with several blocks per row, a block would write to elements that others read
        self.grid, w.no_gradients = (self.grid[0], 1), True
        shape, offset = [plan.tm, plan.tk], [self.row, f"({at}) + {iterations_ahead * plan.tk}"]
        if self.a.transposed:
            shape.reverse(), offset.reverse()
        value = w.name("value")
        w.put(f"{value} = wp.tile_full(shape=({shape[0]}, {shape[1]}), value=wp.{plan.inner}({w.one([0, 1, 2])}.0), "
              f"dtype=wp.{plan.inner})")  # fmt: skip
        w.put(f"wp.tile_store(A, {value}, offset=({offset[0]}, {offset[1]}))")
        w.mark("A", written=True)

    def _extras(self, current: Loop, sums: list[Sum]) -> None:
        """Write further operations of an iteration: reads and changes of C, and writes to arrays."""
        w, plan = self.w, self.plan
        c = sums[0]
        if w.chance(0.05, "sum stored in the loop"):
            array = self.output("E", (plan.m, plan.n))
            w.put(f"wp.tile_store({array}, {c.name}, offset=({self.row}, {self.column}))")
        if w.chance(0.05, "sum added to in the loop"):
            ones = w.name("ones")
            w.tile((c.rows, c.columns), c.dtype)
            w.put(f"{ones} = wp.tile_ones(shape=({c.rows}, {c.columns}), dtype=wp.{c.dtype})")
            # assigning to a parameter creates a new tile in Python, but changes the caller's tile in Warp
            in_place = w.chance(1.0 if c.name == "total" else 0.5, "sum changed in place in the loop")
            w.put(f"{c.name} += {ones}" if in_place else f"{c.name} = {c.name} + {ones}")
        if w.chance(0.05, "sum of a tile in the loop"):
            array = w.array(w.name("T"), (1,), c.dtype, written=True, read=False)
            w.put(f"wp.tile_atomic_add({array}, wp.tile_sum({c.name}), offset=(0,))")
        if w.chance(0.06, "array written in the loop"):
            rows, name = plan.tm * self.grid[0] * self.grid[1], w.name("W")
            w.array(name, (rows, plan.tk * plan.steps), plan.inner, written=True, read=False)
            tile = w.name("w")
            w.put(f"{tile} = wp.tile_full(shape=({plan.tm}, {plan.tk}), value=wp.{plan.inner}({current.index}), "
                  f"dtype=wp.{plan.inner})")  # fmt: skip
            w.put(f"wp.tile_store({name}, {tile}, offset=((i * {self.grid[1]} + j) * {plan.tm}, "
                  f"{current.index} * {plan.tk}))")  # fmt: skip

    def _view_of_outer(self) -> None:
        """Note a view, in a dynamic loop, of a tile from outside. Each iteration doubles its gradient."""
        self.w.feature("view of an outer tile")
        if "loop dynamic" in self.w.features:
            self.w.no_gradients = True

    # uses of the sums, and the output arrays

    @property
    def row(self) -> str:
        return f"i * {self.plan.tm}"

    @property
    def column(self) -> str:
        return f"j * {self.plan.tn}"

    def output(self, stem: str, shape: tuple[int, ...], dtype: str = "") -> str:
        return self.w.array(self.w.name(stem), shape, dtype or self.plan.outer, written=True, read=False)

    def add_to(self, c: Sum, array: str, at: tuple[str, str]) -> None:
        self.w.put(f"wp.tile_atomic_add({array}, {c.name}, offset=({at[0]}, {at[1]}))")

    def use(self, c: Sum) -> None:
        """Write the use of a sum: an operation on it, and then its output."""
        w, plan = self.w, self.plan
        shape, name = f"shape=({c.rows}, {c.columns})", c.name
        # Warp reserves no shared memory for a returned tile that a view or a product moves there later
        product = 0.0 if self.returned else 0.7
        kind = w.pick(
            {"nothing": 4, "map": 1.5, "sum with a tile": 1, "in place": 1, "scaled": 0.7, "product": product}
        )
        w.feature(f"after {kind}")
        if kind == "map":
            function, body = w.name("mapped"), w.rng.choice(["x * two + one", "x + x - one", "two * x", "x * x"])
            body = body.replace("two", f"wp.{c.dtype}(2.0)").replace("one", f"wp.{c.dtype}(1.0)")
            if "x * x" in body:
                self._not_linear()
            w.head.append(f"@wp.func\ndef {function}(x: wp.{c.dtype}):\n    return {body}\n")
            name = w.name("m")
            w.put(f"{name} = wp.tile_map({function}, {c.name})")
        elif kind in ("sum with a tile", "in place"):
            extra, array = w.name("d"), w.array(w.name("S"), (plan.m, plan.n), c.dtype)
            w.tile((c.rows, c.columns), c.dtype)
            w.put(f"{extra} = wp.tile_load({array}, {shape}, offset=({self.row}, {self.column}))")
            if kind == "in place":
                w.put(f"{c.name} {w.rng.choice(['+=', '-='])} {extra}")
            else:
                name = w.name("m")
                w.put(f"{name} = {c.name} {w.rng.choice('+-')} {extra}")
        elif kind == "scaled":
            name = w.name("m")
            w.put(f"{name} = {c.name} * wp.{c.dtype}({w.one([-1, 2, 3])}.0)")
        elif kind == "product":
            self._not_linear()
            w.tile((c.rows, c.rows), c.dtype)
            other, name = w.name("t"), w.name("m")
            w.put(f"{other} = wp.tile_transpose({c.name})")
            w.put(f"{name} = wp.tile_matmul({c.name}, {other})")
            out = self.output("G", (c.rows, c.rows * self.grid[0] * self.grid[1]), c.dtype)
            w.put(f"wp.tile_store({out}, {name}, offset=(0, (i * {self.grid[1]} + j) * {c.rows}))")
            return
        self._write_output(c, name)

    def _not_linear(self) -> None:
        """Note that a gradient depends on a sum. Warp's backward pass does not repeat the dynamic loop before it."""
        self.w.feature("not linear")
        if "loop dynamic" in self.w.features:
            self.w.no_gradients = True

    def _write_output(self, c: Sum, name: str) -> None:
        w, plan = self.w, self.plan
        kind = w.pick({"store": 6, "atomic add": 1.5, "transposed": 0.0 if self.returned else 1.0, "sum": 0.6})
        w.feature(f"output {kind}")
        if kind == "sum":
            out = self.output("T", (2,), c.dtype)
            w.put(f"wp.tile_atomic_add({out}, wp.tile_sum({name}), offset=(1,))")
        elif kind == "transposed":
            w.tile((c.rows, c.columns), c.dtype)
            out, transposed = self.output("C", (plan.n, plan.m), c.dtype), w.name("t")
            w.put(f"{transposed} = wp.tile_transpose({name})")
            w.put(f"wp.tile_store({out}, {transposed}, offset=({self.column}, {self.row}))")
        else:
            out = self.output("C", (plan.m, plan.n), c.dtype)
            call = "tile_store" if kind == "store" else "tile_atomic_add"
            w.put(f"wp.{call}({out}, {name}, offset=({self.row}, {self.column}))")
