"""Uses of the sums of a random kernel: operations after the loop, and the output arrays."""

from __future__ import annotations

from tests.random_kernels.pieces import Plan, Sum
from tests.random_kernels.writer import Writer


class OutputWriter:
    """Writes the operations on sums after their loop.

    Attributes:
        w: The lines of the kernel.
        plan: Its sizes and dtypes.
        grid: Blocks of the launch.
        returned: True if a function returns the sum.
    """

    w: Writer
    plan: Plan
    grid: tuple[int, int]
    returned: bool

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
