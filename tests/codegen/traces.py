"""Hand-written traces, for the tests of decisions."""

import itertools
from collections.abc import Mapping
from typing import Any, Literal

from warp_tiles.codegen.loops import AccumulatorsOf
from warp_tiles.codegen.module_code import LoopAccumulators
from warp_tiles.codegen.operations import Effect, Operation, Product, Scalar, Tile, Value
from warp_tiles.codegen.trace import Branch, Context, FunctionTrace, Loop, ModuleTrace, Node
from warp_tiles.gemm.rejected import Rejected

_numbers = itertools.count(1)
SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def number() -> int:
    """A new hook number."""
    return next(_numbers)


def tile(name: str, rows: int = 16, cols: int = 16, dtype: str = "float32", **fields: Any) -> Tile:
    """A shared tile that owns its memory."""
    values: dict[str, Any] = {
        "storage": "shared",
        "memory": frozenset({name}),
        "size_bytes": rows * cols * SIZES[dtype],
        "adjoint": f"adj_{name}",
    }
    return Tile(name, dtype, **{"shape": (rows, cols), **values, **fields})


def parameter(name: str, rows: int = 16, cols: int = 16, **fields: Any) -> Tile:
    """A tile parameter of a function."""
    return tile(name, rows, cols, parameter=True, **fields)


def view(name: str, *of: Tile, **fields: Any) -> Tile:
    """A view of some tiles."""
    return tile(name, memory=frozenset().union(*(one.memory for one in of)), **fields)


def register(name: str, **fields: Any) -> Tile:
    """A tile in registers."""
    return tile(name, storage="register", **fields)


def operation(name: str, *operands: Value, effect: Effect = Effect.TILES, **fields: Any) -> Operation:
    """An operation with a hook before it."""
    return Operation(name, **{"line": 1, "effect": effect, "operands": operands, "wait": number(), **fields})


def zeros(result: Tile, **fields: Any) -> Operation:
    """``c = wp.tile_zeros()``."""
    return operation("tile_zeros", results=(result,), **fields)


def load(result: Tile, *operands: Value, **fields: Any) -> Operation:
    """``a = wp.tile_load()``."""
    return operation("tile_load", *operands, **{"results": (result,), "hook": number(), **fields})


def compute(name: str, *operands: Value, result: Tile, **fields: Any) -> Operation:
    """An elementwise operation."""
    return operation(name, *operands, results=(result,), hook=number(), **fields)


def store(stored: Tile, *place: Value, **fields: Any) -> Operation:
    """``wp.tile_store(array, stored)``, with the array and the offsets in ``place``."""
    return operation("tile_store", *place, stored, effect=Effect.WRITES, hook=number(), **fields)


def addition(target: Tile, added: Tile, **fields: Any) -> Operation:
    """``s += c``."""
    return operation("add_inplace", target, added, **{"hook": number(), **fields})


def alias(result: Tile, operand: Tile, name: str = "tile_transpose", **fields: Any) -> Operation:
    """``b = wp.tile_transpose(a)``."""
    return operation(name, operand, effect=Effect.ALIAS, results=(result,), **fields)


def product(
    a: Tile,
    b: Tile,
    c: Tile,
    site: int = 0,
    *,
    alpha: float | str | None = 1.0,
    beta: float | None = 1.0,
    **fields: Any,
) -> Operation:
    """``wp.tile_matmul(a, b, c)``."""
    return operation("tile_matmul", a, b, c, **{"hook": number(), "product": Product(site, alpha, beta), **fields})


def fresh_product(a: Tile, b: Tile, c: Tile, site: int = 0, *, alpha: float | str = 1.0) -> Operation:
    """``c = wp.tile_matmul(a, b)``."""
    return operation("tile_matmul", a, b, results=(c,), hook=number(), product=Product(site, alpha, 0.0))


def call(callee: str, *operands: Value, effect: Effect = Effect.TILES, **fields: Any) -> Operation:
    """A call of the user's function with this label."""
    return operation(callee, *operands, effect=effect, callee=callee, **fields)


def arithmetic(line: int = 1) -> Operation:
    """An operation on numbers."""
    return operation("add", effect=Effect.NONE, line=line, wait=None, results=(Scalar("n"),))


def jump(kind: Literal["break", "continue"]) -> Operation:
    """``break`` or ``continue``."""
    return operation(kind, effect=Effect.NONE)


def loop(*nodes: Node, kind: Literal["range", "while", "unrolled"] = "range", **fields: Any) -> Loop:
    """A loop. An unrolled loop has no waiting hooks, because its body is written out."""
    waits: dict[str, Any] = {} if kind == "unrolled" else {"wait": number(), "end_wait": number()}
    return Loop(kind, **{"line": 1, "hook": number(), "nodes": nodes, **waits, **fields})


def branch(*nodes: Node, **fields: Any) -> Branch:
    """The body of an ``if``."""
    return Branch(nodes, **{"wait": number(), "end_wait": number(), **fields})


def function(*nodes: Node, label: str = "k", tiles: tuple[Tile, ...] = (), **fields: Any) -> FunctionTrace:
    """The trace of a kernel or function, with its tiles in the order of their memory."""
    frame = tuple((one.name, one.size_bytes) for one in tiles)
    return FunctionTrace(label, **{"file": "file.py", "nodes": nodes, "frame": frame, "end_wait": number(), **fields})


def module(*functions: FunctionTrace, **fields: Any) -> ModuleTrace:
    """The trace of a module."""
    return ModuleTrace({one.label: one for one in functions}, **fields)


def context(function: FunctionTrace, *others: FunctionTrace, **fields: Any) -> Context:
    """A function in a module with some others."""
    return Context(module(function, *others, **fields), function)


def accumulators_of(*sites: int) -> AccumulatorsOf:
    """The functions that keep accumulators in registers, for these sites."""
    return of_sites({site: LoopAccumulators(f"f{site}", "wp::float32", 8) for site in sites})


def of_sites(found: Mapping[int, LoopAccumulators | Rejected]) -> AccumulatorsOf:
    """The functions of these sites, and none for others."""
    return lambda site: found.get(site, Rejected("no_function"))
