"""Inserts the prelude into a generated source.

This is the only module that handles generated C++ as text. Warp writes declarations of linked functions after its
headers and before all other code, inside ``extern "C" { }``. While Warp generates the source, :data:`PLACEHOLDER` is
one of them. The prelude replaces it: declarations, the device functions of ``kernels/module``, and the hooks' macros.
"""

from __future__ import annotations

import itertools

from warp_tiles.codegen.emit_loops import SYNC, emit_loads, emit_loops, emit_reverse, reversed_types, staged_types
from warp_tiles.codegen.emit_stores import (
    emit_accumulator_store,
    emit_computed_stores,
    emit_reductions,
    emit_store_adjoint,
)
from warp_tiles.codegen.macros import Hook, Macros
from warp_tiles.codegen.module_code import AccumulatorStore, LoopAccumulators, ModuleCode
from warp_tiles.compile import sources
from warp_tiles.compile.sources import flatten
from warp_tiles.gemm.problem import DTYPES, GemmProblem
from warp_tiles.solver.variant import SolverVariant

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
        name, variant = call.symbol or SCALAR_FUNCTION, call.variant
        if isinstance(variant, SolverVariant):
            declarations[name] = f"void {name}({', '.join('void*' for _ in variant.parameters)});"
            solvers[name] = solver_struct(variant, name)
            name = f"wt::Solver<{name}_call>{{}}"
        elif variant is not None:
            declarations[name] = declaration(variant, name)
            if call.waits:
                placed = wrappers if name in code.units else declarations
                placed[f"{name}_waiting"] = waiting_function(variant, name)
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
    emit_computed_stores(macros, code.stores)
    emit_reductions(macros, code.reductions)
    for store in code.reversed_stores:
        emit_store_adjoint(macros, store)
    for number in code.skipped:  # by a barrier, because the next statement may read their tiles
        macros.replace(Hook.REPLAY, number, SYNC)
    for hook, number in itertools.product((Hook.AT, Hook.REPLAY, Hook.ADJOINT), code.unread):
        macros.replace(hook, number, "")
    for loop in code.loops:
        emit_reverse(macros, loop)
    return macros


# ---- declarations of device functions


def pointers(variant: GemmProblem) -> tuple[str, ...]:
    """Returns the C++ types of the parameters of a variant's device function: alpha, A, B, beta and C."""
    a, b, c = (f"{DTYPES[operand.dtype].warp_type}*" for operand in (variant.a, variant.b, variant.c))
    return c, a, b, c, c


def solver_struct(variant: SolverVariant, symbol: str) -> str:
    """C++ of a type that stands for a solver function, as ``kernels/module/solvers.cuh`` uses it."""
    parameters = ", ".join(f"void* {name}" for name in variant.parameters)
    return (
        f"struct {symbol}_call {{\n"
        f"    static constexpr int scratch = {variant.scratch_elements};\n"
        f"    static CUDA_CALLABLE void run({parameters}) {{ {symbol}({', '.join(variant.parameters)}); }}\n"
        "};"
    )


def declaration(variant: GemmProblem, symbol: str) -> str:
    return f"void {symbol}({', '.join(pointers(variant))});"


def loop_declarations(variant: GemmProblem, accumulators: LoopAccumulators) -> str:
    a, b, c = (DTYPES[operand.dtype].warp_type for operand in (variant.a, variant.b, variant.c))
    add = f"void {accumulators.symbol}_add({accumulators.ctype}*, {a}*, {b}*, bool);"
    return f"{add}\nvoid {accumulators.symbol}_finish({accumulators.ctype}*, {c}*, bool);"


def waiting_function(variant: GemmProblem, symbol: str) -> str:
    names = ("alpha", "a", "b", "beta", "c")
    parameters = ", ".join(f"{kind} {name}" for kind, name in zip(pointers(variant), names))
    return f"static void {symbol}_waiting({parameters}) {{ WP_TILE_SYNC(); {symbol}({', '.join(names)}); }}"
