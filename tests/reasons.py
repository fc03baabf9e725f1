"""The corpus of reasons: a kernel for each code of ``warp_tiles/gemm/rejected.py`` that its plan shows.

Most are forms of loops, stores and chains, which the emulator and a GPU launch too. Their codes stand beside them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from textwrap import indent
from typing import Any

import warp as wp

from benchmarks.attention import Cell
from tests import chain_forms, loop_forms, staged_cases, whole_kernels
from tests.integration.helpers import gemm, gemm_loop
from tests.integration.solvers import solver
from tests.integration.test_solver_gradients import LOST, in_kernel
from tests.loop_texts import ONES, OTHER, START, STORE, Form, form, product, ranged, with_transposed_b
from warp_tiles.gemm.rejected import code_of
from warp_tiles.plan.planning import ModulePlan


@dataclass(frozen=True)
class Kernel:
    """A module of kernels, and what it is planned for.

    Attributes:
        text: Its source after ``import warp as wp``.
        settings: Settings other than the defaults; options: module options.
        since: The oldest Warp that has what it uses.
    """

    text: str
    threads: int = 64
    arch: int | None = 90
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    since: tuple[int, int] = (1, 17)


def codes_of(plan: ModulePlan) -> set[str]:
    """All codes of a plan, also of what a setting costs a loop."""
    found = {code_of(loop.forbidden) for loop in plan.code.loops}
    for loop in plan.loops:
        found |= {*loop.codes, loop.gradients_code, loop.reverse_code, loop.store_code}
    for function in plan.functions:
        found |= {function.code, code_of(function.no_gradient)}
    return found - {""}


# ---- kernels


def of_form(form: str | Form = "bounds from a shape", **fields: Any) -> Kernel:
    return Kernel((loop_forms.FORMS[form] if isinstance(form, str) else form).text, **fields)


def half(form: str | Form = "bounds from a shape", **fields: Any) -> Kernel:
    """A form whose A and B are float16, so that its loop may have stages."""
    kernel = of_form(form, **fields)
    return replace(kernel, text=loop_forms.in_half(kernel.text))


def of_case(case: staged_cases.Case, threads: int = 128, arch: int = 90, **fields: Any) -> Kernel:
    return Kernel(staged_cases.HEADER + case.text("staged", **fields), threads, arch)


def staged(*sizes: int, threads: int = 128, arch: int = 90, **fields: Any) -> Kernel:
    """A loop with stages over arrays of two tiles."""
    m, n, k = sizes
    return of_case(staged_cases.Case(m, n, k, 2 * m, 2 * n, 4 * k, **fields), threads, arch)


def cell(*sizes: int) -> Kernel:
    attention = Cell("attention", *sizes)
    return Kernel(attention.text("tiles").removeprefix("import warp as wp\n"), attention.threads)


FACTOR = 'f = wp.tile_ones(shape=(16, 16), dtype=wp.float32, storage="shared")\nwp.tile_cholesky_inplace(f)'
LARGE_FACTOR = """
@wp.kernel
def factor(A: wp.array2d(dtype=wp.float32)):
    wp.tile_store(A, wp.tile_cholesky(wp.tile_load(A, shape=(300, 300), storage="shared")))
"""
ROUNDED = {
    "C: wp.array2d(dtype=wp.float32)": "C: wp.array2d(dtype=wp.float16)",
    "C, c,": "C, wp.tile_astype(c, dtype=wp.float16),",
}
VECTORS = """
@wp.func
def three(x: wp.float32):
    return wp.vec3(x, x, x)


"""
STORE_VECTORS = (
    "e = wp.tile_map(three, c)",
    "wp.tile_store(wp.array(ptr=C.ptr, shape=(64, 64), dtype=wp.vec3), e, offset=(i * 32, j * 32))",
)
TWO_TYPES = """
@wp.kernel(enable_backward=False)
def multiply(
    A: wp.array2d(dtype=wp.float16), B: wp.array2d(dtype=wp.{b}), D: wp.array2d(dtype=wp.{d}),
    C: wp.array2d(dtype=wp.float32),
):
    i, j = wp.tid()
    c = wp.tile_zeros(shape=(64, {n}), dtype=wp.float32, storage="shared")
    e = wp.tile_zeros(shape=({m}, {n}), dtype=wp.float32, storage="shared")
    for k in range(0, A.shape[1], 16):
        a = wp.tile_load(A, shape=(64, 16), offset=(i * 64, k), storage="shared")
        b = wp.tile_load(B, shape=(16, {n}), offset=(k, j * {n}), storage="shared")
        d = wp.tile_load(D, shape=({m}, 16), offset=(i * {m}, k), storage="shared")
        f = wp.tile_load(D, shape=(16, {n}), offset=(k, j * {n}), storage="shared")
        wp.tile_matmul(a, b, c)
        wp.tile_matmul(d, f, e)
    wp.tile_store(C, c, offset=(i * 64, j * {n}))
    wp.tile_store(C, e, offset=(i * {m}, j * {n}))
"""
FACTORY = whole_kernels.kernel(
    head="for k in range(0, A.shape[1], wp.static(sizes[0])):",
    loads=tuple(load.replace("8", "wp.static(sizes[0])") for load in (whole_kernels.LOAD_A, whole_kernels.LOAD_B)),
)
FACTORY = f"""
def factory(sizes):
{indent(FACTORY, "    ")}
    return multiply

kernels = factory([8]), factory([16])
"""
BROADCAST = "wp.tile_broadcast(wp.tile_load(A, shape=({}, 1), offset=(0, {}), storage='shared'), shape=({}, {}))"
CHAIN_OF_A_BROADCAST = f"""z = {BROADCAST.format(16, "k", 16, 32)}
r = wp.tile_map(plus_one, a)
wp.tile_matmul(a, b, c)
wp.tile_matmul(r, z, c)"""
OPTED_OUT = {"enable_mathdx_gemm": False}


def of_forms() -> Iterator[tuple[str, Kernel]]:
    """The codes that stand beside forms."""
    for loop in loop_forms.FORMS.values():
        yield loop.code, Kernel(loop.text)
    for attention in chain_forms.FORMS.values():
        yield attention.code, Kernel(attention.text, attention.threads)
    for text, code in whole_kernels.OTHERS.values():
        yield code, Kernel(text)
    for body, code in LOST.values():
        yield code, Kernel(in_kernel(body), settings={"solver_gradients": "own"})


def chain(body: str = chain_forms.BODY, **fields: Any) -> Kernel:
    return Kernel(chain_forms.kernel(body, **fields))


CHAIN = Kernel(chain_forms.FORMS["attention"].text)
KERNELS: dict[str, Kernel] = {code: kernel for code, kernel in reversed([*of_forms()]) if code} | {
    # ---- settings and targets
    "setting": half(settings={"main_loop": "mma"}),
    "setting_to_change": of_form(settings={"register_accumulators": False}),
    "option_off": Kernel(gemm(), options=OPTED_OUT, settings={"mathdx_opt_out": "warp"}),
    "scalar_path_is_faster": Kernel(gemm("odd", 12, 12, 12), options=OPTED_OUT),
    "tf32_opted_out": Kernel(gemm(call='wp.tile_matmul(a, b, precision="tf32")'), options=OPTED_OUT, since=(1, 19)),
    "cpu": Kernel(gemm(), arch=None),
    "no_leading_dimension": Kernel(gemm(call=f"wp.tile_matmul({BROADCAST.format(16, 0, 16, 16)}, b)")),
    "arch_without_wgmma": half(arch=80, settings={"main_loop": "wgmma"}),
    "no_cubin_for_wgmma": half(settings={"main_loop": "wgmma", "linker": "warp"}),
    # ---- functions
    "foreign_function": of_form(settings={"provider": "cublasdx"}),
    "rounded_products": Kernel(gemm_loop(dtype="float16", total="float16")),
    "many_function_accumulators": Kernel(
        gemm_loop("gemm", 128, 128, 16, dtype="float64", total="float64"), 256,
        settings={"main_loop": "double_buffered"},
    ),
    "solver_threads": Kernel(solver("tile_cholesky"), 48),
    "solver_rows": Kernel(LARGE_FACTOR, options={"enable_mathdx_solver": False}),
    "warp_has_no_gradient": Kernel(solver("tile_upper_solve")),
    # ---- the instruction of a product in stages
    "no_async_copies": of_form(arch=75),
    "two_dtypes": Kernel(TWO_TYPES.format(m=32, n=32, b="float32", d="float16"), 128),
    "unsuitable_c": half(form(START, "d = wp.tile_transpose(c)", ranged(product="wp.tile_matmul(a, b, d)"), STORE)),
    "unsuitable_size": Kernel(gemm_loop("gemm", 24, 24, 16, dtype="float16")),
    "many_accumulators": Kernel(gemm_loop("gemm", 256, 256, 16, dtype="float16"), 128),
    "no_grid": Kernel(gemm_loop("gemm", 48, 48, 16)),
    "no_tensor_core_grid": half(threads=96),
    "warps_m": half(settings={"main_loop": "warps_m=5"}),
    "several_instructions": Kernel(TWO_TYPES.format(m=64, n=64, b="float16", d="float32"), 128),
    "partly_wgmma": Kernel(TWO_TYPES.format(m=32, n=32, b="float16", d="float16"), 128),
    # ---- the pipeline of a loop
    "none_in_flight": half(settings={"main_loop": "stages=2,in_flight=1"}),
    "stages_do_not_fit": staged(128, 256, 64, threads=256, arch=80),
    "few_accumulators": of_form(),
    "few_accumulators_beside_solver": of_form(
        form(START, FACTOR, with_transposed_b(ranged(product=loop_forms.TRANSPOSED)), STORE), threads=512
    ),
    "few_warps": Kernel(gemm_loop("gemm", 64, 64, 64)),
    "few_blocks": Kernel(gemm_loop("gemm", 64, 64, 64, dtype="float64", total="float64"), 128),
    "next_stage_leaves_fewer_blocks": staged(128, 128, 64),
    "next_stage_does_not_fit": staged(128, 256, 64, threads=256),
    "stages_forbidden": half(settings={"provider": "cublasdx"}),
    "buffers_beside_solver": of_form(form(ONES, FACTOR, ranged(), STORE)),
    "few_accumulators_for_buffers": of_form("a start value", threads=256),
    "buffers_do_not_fit": Kernel(gemm_loop("gemm", 128, 128, 96).replace("zeros", "ones"), 128),
    "few_blocks_with_buffers": Kernel(gemm_loop("gemm", 64, 64, 64).replace("zeros", "ones")),
    "many_gradient_accumulators": Kernel(gemm_loop("gemm", 64, 64, 256, dtype="float16"), 128),
    "gradients_do_not_fit": of_case(staged_cases.WIDE["128x256, "], 256, backward=True),
    # ---- accumulators in registers
    "no_function": of_form(product(CHAIN_OF_A_BROADCAST)),
    "infinite_alpha": of_form(product("wp.tile_matmul(a, b, c, alpha=wp.inf)")),
    "c_overlaps": Kernel(loop_forms.substitution("range(0, A.shape[0], 16)", "range(0, p + 16, 16)")),
    "new_c": chain(chain_forms.BODY.replace("matmul(q,", "matmul(wp.tile_astype(o, dtype=wp.float16),")),
    "new_tile_used": Kernel(whole_kernels.OTHERS["added twice"][0]),
    "others_keep_accumulators": of_form(
        form(START, OTHER, ranged(product="wp.tile_matmul(a, b, c)\n    wp.tile_matmul(a, b, d, beta=2.0)"), STORE)
    ),
    "used": of_form(product("wp.tile_matmul(a, b, c)\ns = wp.tile_sum(c)")),
    "full_registers": replace(staged(128, 256, 64, threads=256), settings={"main_loop": "mma"}),
    # ---- loads ahead
    "async_copies_off": of_form(settings={"async_copies": False}),
    "accumulators_over_outer_loop": of_form("nested"),
    "jump_before_product": of_form("break before the product"),
    "operand_not_loaded_whole": of_form("a tile of A that stays"),
    # ---- chains of products
    "chain_reduction": cell(64, 64, 32, 128),
    "chain_tile": chain(
        chain_forms.LOADS + "e = wp.tile_load(O, shape=(32, 32), storage='shared')\n"
        + chain_forms.SCORES + chain_forms.SOFTMAX + chain_forms.VALUES
    ),
    "chain_rows": replace(CHAIN, threads=128),
    "used_outside": chain(store=chain_forms.STORE + "wp.tile_store(O, wp.tile_astype(k, dtype=float))\n"),
    "chain_registers": cell(128, 128, 128, 128),
    "chain_memory": cell(128, 32, 64, 64),
    "unknown_range": chain(chain_forms.BODY.replace("(step, 0)", "(step * step, 0)")),
    # ---- stores of accumulators
    "several_cs": half("two sums"),
    "several_factors": of_case(staged_cases.FORMS["two products, alpha of 1 and of -2"]),
    "added_to_another_tile": staged(64, 64, 16, threads=64, dtype="float32", product="c += wp.tile_matmul({a}, {b})"),
    "added_to_start": of_case(staged_cases.FORMS["start value, alpha of 2"]),
    "c_of_caller": half("into a parameter"),
    "c_used": half(form(START, ranged(), STORE, STORE)),
    "no_neighbours": of_form("B transposed"),
    "few_neighbours": Kernel(chain_forms.replaced(gemm_loop("gemm", 32, 64, 32, dtype="float16"), ROUNDED), 128),
    "no_store": half("in a generic function"),
    "loop_before_store": half("another loop before the store"),
    "stores_view": half("a store that reads a view"),
    "store_operand_not_shared": half("a store that reads a tile of the caller"),
    "elements_do_not_fit_vector": half(form(START, ranged(), *STORE_VECTORS, above=VECTORS)),
    # ---- adjoints
    "as_forward": of_form("C is stored in the loop"),
    "while_loop": of_form("while"),
    "several_products": of_form("two sums"),
    "other_loads": Kernel(whole_kernels.OTHERS["A twice"][0]),
    "arrays_change": of_form("a native function of an array"),
    "new_tile_added": of_form("the return form"),
    "new_tile_subtracted": of_form("a difference"),
    "c_without_memory": of_form("into a parameter"),
    "c_read_in_reverse": of_form("a start value"),
    "jump": of_form("break before the product"),
    "view": of_form("a flat load"),
    "conditional_loads": of_form("loads and product under a condition"),
    "other_adjoints": half(
        options={"deterministic": getattr(getattr(wp, "DeterministicMode", None), "RUN_TO_RUN", False)}, since=(1, 19)
    ),
    # ---- products of whole arrays
    "several_kernels": Kernel(FACTORY),
}  # fmt: skip

# ---- codes that no kernel alone shows, with the tests that do


LAUNCH = "the arguments of a launch decide", "tests/integration/test_whole_products.py"
CALL = "the arguments of warp_tiles.matmul decide, without a kernel", "tests/array_products/test_tensor_kernel.py"
OTHERS = {
    **dict.fromkeys(
        ("shapes", "blocks_do_not_cover", "steps_do_not_cover", "little_work", "unsuitable_arguments", "capturing"),
        LAUNCH,
    ),
    **dict.fromkeys(
        ("loop_configured", "loop_faster", "loop_asked", "gpu_without_wgmma", "kernel_dtypes", "no_products",
         "kernel_sums", "kernel_alignment", "kernel_copies", "kernel_side", "kernel_depth"),
        CALL,
    ),
    **dict.fromkeys(
        ("changed_since_hash", "generation_has_effects", "kept_nowhere", "kernels_not_cached", "left_to_warp",
         "no_calls", "tuned_first"),
        ("it is asked before the generation", "tests/store/test_start_keys.py"),
    ),
    **dict.fromkeys(
        ("late_static", "static_of_instances", "toolchain_missing", "unknown_kind", "unknown_value", "unreadable_file"),
        ("it is about a key, not a plan", "tests/store/test_start_keys.py"),
    ),
    "without_functions": ("an entry of an earlier version", "tests/integration/test_wheel.py"),
    "function_in_bundle": ("a call of warp_tiles.matmul with a bundle", "tests/array_products/test_choice.py"),
    "not_enabled": ("a call of warp_tiles.matmul without enable()", "tests/array_products/test_choice.py"),
    "family": ("only the tuner asks for one that is left out", "tests/tuning/test_tasks.py"),
    "double_buffers_asked": ("only the tuner compares them with stages", "tests/gemm/test_main_loop.py"),
    "measured": ("a tuning record decides", "tests/integration/test_tuned_loops.py"),
    "not_built": ("a build fails", "tests/plan/test_planner.py"),
    "without_mathdx": ("Warp was built without MathDx", "tests/integration/test_plan_solvers.py"),
    "not_followed": ("Warp's code generator has changed", "tests/integration/test_solver_gradients.py"),
    "solver_arch": ("Warp's compiler knows no GPU that is older", "tests/solver/test_problem.py"),
}  # fmt: skip
