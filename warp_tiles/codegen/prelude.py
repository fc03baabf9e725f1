"""Inserts the prelude into a generated source.

This is the only module that handles generated C++ as text. Warp writes declarations of linked functions after its
headers and before all other code, inside ``extern "C" { }``. While Warp generates the source, :data:`PLACEHOLDER` is
one of them. The prelude replaces it: declarations, the device functions of ``kernels/module``, and the hooks' macros.
Those of loops are written by :mod:`.emit_loops`, those of stores and of reductions of rows here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from warp_tiles.codegen.emit_loops import (
    emit_loads,
    emit_loops,
    emit_reverse,
    reversed_types,
    staged_name,
    staged_types,
)
from warp_tiles.codegen.macros import STATEMENT, SYNC, Hook, Macros, local_function
from warp_tiles.codegen.module_code import (
    AccumulatorStore,
    ComputedStore,
    LoopAccumulators,
    ModuleCode,
    ReversedStore,
)
from warp_tiles.codegen.operations import Tile
from warp_tiles.compile import sources
from warp_tiles.compile.sources import flatten
from warp_tiles.gemm.problem import DTYPES, GemmProblem
from warp_tiles.solver.problem import SolverProblem

SCALAR_FUNCTION = "0"  # Warp's templates take the scalar path if they get an int in place of a function
PLACEHOLDER = "/* warp_tiles prelude */"
MODULE_HEADER = "module/module.cuh"  # below kernels/
STAGED_HEADER = "module/staged_module.cuh"  # which includes MODULE_HEADER
REVERSED_HEADER = "module/reversed_module.cuh"  # which includes STAGED_HEADER
SOLVER_HEADER = "module/solvers.cuh"
# Warp defines int(x) and float(x) as macros, which would replace the casts of translation units
_SAVE_MACROS = "".join(f'#pragma push_macro("{name}")\n#undef {name}\n' for name in ("int", "float"))
_RESTORE_MACROS = "".join(f'#pragma pop_macro("{name}")\n' for name in ("int", "float"))


def finished_source(source: str, code: ModuleCode) -> str:
    """Returns the source that is compiled, from the one that Warp generated with the placeholder of the prelude.

    Raises a ToolchainError if the device sources are missing.
    """
    declarations: dict[str, str] = {}
    wrappers: dict[str, str] = {}  # of functions that stand in the source
    solvers: dict[str, str] = {}
    names: dict[str, str] = {}
    for call in code.calls:
        name, problem = call.symbol or SCALAR_FUNCTION, call.problem
        if isinstance(problem, SolverProblem):
            declarations[name] = f"void {name}({', '.join('void*' for _ in problem.parameters)});"
            solvers[name] = solver_struct(problem, name)
            name = f"wt::Solver<{name}_call>{{}}"
        elif problem is not None:
            declarations[name] = declaration(problem, name)
            if call.waits:
                placed = wrappers if name in code.units else declarations
                placed[f"{name}_waiting"] = waiting_function(problem, name)
                name = f"{name}_waiting"
        names[call.placeholder] = name
    for product, accumulators in code.summed:
        declarations[f"{accumulators.symbol}_add"] = loop_declarations(product, accumulators)
    declared = [name for name in sorted(declarations) if name.removesuffix("_add") not in code.units]
    lines = [declarations[name] for name in declared] + ['}  // extern "C"']
    texts: list[str] = []
    types: list[str] = []
    if code.moves:  # adjoints of loads then add vectors
        staged = [text for loop in code.loops for text in staged_types(loop)]
        reversed_loops = [text for loop in code.loops for text in reversed_types(loop)]
        has_stages = staged or any(loop.chain for loop in code.loops)
        header = REVERSED_HEADER if reversed_loops else STAGED_HEADER if has_stages else MODULE_HEADER
        texts, types = [f'#include "{header}"\n'], [*staged, *reversed_loops]
    if code.units:
        units = [unit for _, unit in sorted(code.units.items())]
        texts += [_SAVE_MACROS, *units, _RESTORE_MACROS, *wrappers.values()]
    if texts:
        lines += [flatten("".join(texts), sources.kernels_folder()), *types]
    if solvers:
        lines.append((sources.kernels_folder() / SOLVER_HEADER).read_text("utf-8"))
        lines += [solvers[symbol] for symbol in sorted(solvers)]
    lines += [f"#define {name} {value}" for name, value in names.items()]
    lines += [*_macros(code).definitions(code.hooks), 'extern "C" {']
    return source.replace(PLACEHOLDER, "\n".join(lines), 1)


def _macros(code: ModuleCode) -> Macros:
    macros = Macros()
    emit_loops(macros, code.loops, code.loads.ends)
    for loop in code.loops:
        if isinstance(loop.accumulator_store, AccumulatorStore):
            emit_accumulator_store(macros, loop.accumulator_store)
    emit_loads(macros, code.loads, code.replayed)
    for computed in code.stores:
        counts = f"{len(computed.sources)}, {len(computed.loads)}"
        _emit(macros, computed, computed.sources, f"wt_module::store_computed<{counts}>(wt_compute, wt_store")
    for operation in code.reductions:
        tile, result = operation.tiles
        function = f"[](auto x, auto y) {{ return wp::{operation.reduction}(x, y); }}"
        macros.replace(Hook.AT, operation.own_hook, f"{result.name} = wt_module::reduce_rows({function}, {tile.name});")
    for store in code.reversed_stores:
        emit_store_adjoint(macros, store)
    for number in code.skipped:  # by a barrier, because the next statement may read their tiles
        macros.replace(Hook.REPLAY, number, SYNC)
    for hook, number in itertools.product((Hook.AT, Hook.REPLAY, Hook.ADJOINT), code.unread):
        macros.replace(hook, number, "")
    for loop in code.loops:
        emit_reverse(macros, loop)
    return macros


# ---- stores that compute their tile, their adjoints, and reductions of rows, as bodies of macros


def emit_accumulator_store(macros: Macros, accumulator_store: AccumulatorStore) -> None:
    """Writes a store that takes the accumulators of a loop from registers."""
    store, product = accumulator_store.computed, accumulator_store.product
    counts = f"{len(accumulator_store.others)}, {len(store.loads)}"
    arguments = f"wt_accumulators_{product.array}, wt_compute, wt_store"
    call = f"wt_module::store_accumulators<{counts}, {staged_name(product)}>({arguments}"
    _emit(macros, store, [product.c, *accumulator_store.others], call)


def _emit(macros: Macros, computed: ComputedStore, sources: Iterable[Tile], call: str) -> None:
    """Writes the statements as functions of their tiles, and the call that uses them.

    They have a block of their own, because a ``goto`` may not jump over a variable. ``call`` has no closing
    parenthesis: the tiles are appended to its arguments.
    """
    texts: dict[int, str] = {}
    for number, (load, tile) in enumerate(zip(computed.loads, computed.loaded)):
        name = tile.name
        statement = local_function(f"wt_load_{number}", [name], STATEMENT)
        texts[load.own_hook] = (
            f"{statement} const auto wt_tile_{number} = wt_module::loaded_tile(wt_load_{number}, {name});"
        )
    calls = []
    for number, operation in enumerate(computed.operations):
        tiles = [tile.name for tile in dict.fromkeys(operation.tiles)]
        texts[operation.own_hook] = local_function(f"wt_operation_{number}", tiles, STATEMENT)
        calls.append(f"wt_operation_{number}({', '.join(tiles)});")
    names = [tile.name for tile in (computed.result, *sources, *computed.loaded, *computed.intermediates)]
    held = {tile.name: f"wt_tile_{number}" for number, tile in enumerate(computed.loaded)}
    store = local_function("wt_store", names[:1], STATEMENT)
    if computed.operations:
        compute = local_function("wt_compute", names, " ".join(calls))
    else:
        compute = local_function("wt_compute", ("wt_result", "wt_accumulators"), "wt_result = wt_accumulators;")
    end = f"{store} {compute} {call}, {', '.join(held.get(name, name) for name in names)}); }}"
    texts[computed.store.own_hook] = end
    for position, (hook, text) in enumerate(sorted(texts.items())):
        macros.replace(Hook.AT, hook, text if position else "{ " + text)


# ---- adjoints


def emit_store_adjoint(macros: Macros, reversed_store: ReversedStore) -> None:
    """Writes the adjoint of a store that is computed in bands.

    The reverse pass reaches the adjoint of the store first. Each statement becomes a function of its tiles. The last
    adjoint calls them, and ends their block.
    """
    computed, result = reversed_store.computed, reversed_store.computed.result
    start = f"{{ {local_function('wt_store', [result.name, result.adjoint], STATEMENT)}"
    macros.replace(Hook.ADJOINT, computed.store.own_hook, start)
    forward: list[str] = []
    reverse: list[str] = []
    for number, operation in reversed(list(enumerate(computed.operations))):
        tiles = list(dict.fromkeys(operation.tiles))
        names, both = _names(tiles), [*_names(tiles), *_adjoints(tiles)]
        forward.insert(0, f"wt_operation_{number}({', '.join(names)});")
        reverse.append(f"wt_adjoint_{number}({', '.join(both)});")
        macros.replace(Hook.REPLAY, operation.own_hook, "")
        macros.replace(Hook.RECOMPUTE, operation.own_hook, local_function(f"wt_operation_{number}", names, STATEMENT))
        adjoint = local_function(f"wt_adjoint_{number}", both, STATEMENT)
        end = f" {_call(reversed_store, forward, reverse)} }}" if number == 0 else ""
        macros.replace(Hook.ADJOINT, operation.own_hook, adjoint + end)


def _call(reversed_store: ReversedStore, forward: Sequence[str], reverse: Sequence[str]) -> str:
    computed = reversed_store.computed
    tiles = [computed.result, *computed.sources, *computed.intermediates]
    names = _names(tiles)
    functions = [
        local_function("wt_forward", names, " ".join(forward)),
        local_function("wt_reverse", [*names, *_adjoints(tiles)], " ".join(reverse)),
    ]
    pairs = ", ".join(f"wt_module::pair({tile.name}, {tile.adjoint})" for tile in tiles)
    constants = f"{len(computed.sources)}, {str(reversed_store.overlap).lower()}"
    return f"{' '.join(functions)} wt_module::reverse_store<{constants}>(wt_forward, wt_store, wt_reverse, {pairs});"


def _names(tiles: Sequence[Tile]) -> list[str]:
    return [tile.name for tile in tiles]


def _adjoints(tiles: Sequence[Tile]) -> list[str]:
    return [tile.adjoint for tile in tiles]


# ---- declarations of device functions


def pointers(problem: GemmProblem) -> tuple[str, ...]:
    """Returns the C++ types of the parameters of a problem's device function: alpha, A, B, beta and C."""
    a, b, c = (f"{DTYPES[operand.dtype].warp_type}*" for operand in (problem.a, problem.b, problem.c))
    return c, a, b, c, c


def solver_struct(problem: SolverProblem, symbol: str) -> str:
    """C++ of a type that stands for a solver function, as ``kernels/module/solvers.cuh`` uses it."""
    parameters = ", ".join(f"void* {name}" for name in problem.parameters)
    return (
        f"struct {symbol}_call {{\n"
        f"    static constexpr int scratch = {problem.scratch_elements};\n"
        f"    static CUDA_CALLABLE void run({parameters}) {{ {symbol}({', '.join(problem.parameters)}); }}\n"
        "};"
    )


def declaration(problem: GemmProblem, symbol: str) -> str:
    return f"void {symbol}({', '.join(pointers(problem))});"


def loop_declarations(problem: GemmProblem, accumulators: LoopAccumulators) -> str:
    a, b, c = (DTYPES[operand.dtype].warp_type for operand in (problem.a, problem.b, problem.c))
    add = f"void {accumulators.symbol}_add({accumulators.ctype}*, {a}*, {b}*, bool);"
    return f"{add}\nvoid {accumulators.symbol}_finish({accumulators.ctype}*, {c}*, bool);"


def waiting_function(problem: GemmProblem, symbol: str) -> str:
    names = ("alpha", "a", "b", "beta", "c")
    parameters = ", ".join(f"{kind} {name}" for kind, name in zip(pointers(problem), names))
    return f"static void {symbol}_waiting({parameters}) {{ WP_TILE_SYNC(); {symbol}({', '.join(names)}); }}"
