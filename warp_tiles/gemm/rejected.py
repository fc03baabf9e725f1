"""Why something is not done: a code, which programs and tests read, and a sentence, which people read.

A chooser returns a result or a :class:`Rejected`. Inside it, :func:`refuse` and :func:`given` end the function with a
rejection, and :func:`accepted` ends it with that of another one. Only functions with the decorator ``rejectable`` may
be ended so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SMALLER = "use a smaller K step or smaller tiles"

# a remedy follows the colon
REASONS = {
    # ---- settings and targets
    "setting": "{} is {}",
    "setting_to_change": "{} is {}: {}",
    "option_off": "the option {} is off: remove it, or set mathdx_opt_out to 'own'",
    "scalar_path_is_faster": "Warp's scalar path is faster for {}: set mathdx_opt_out to 'own' to build it anyway",
    "tf32_opted_out": "Warp's scalar path computes tf32 products in float32: set mathdx_opt_out to 'own' for tf32",
    "without_mathdx": "kernels of a Warp without MathDx cannot call {} functions: install a warp-lang with it",
    "cpu": "the target is the CPU",
    "no_leading_dimension": "{} with shape={} strides={} cannot be expressed as a leading dimension",
    "arch_without_wgmma": "sm_{} has no wgmma: set main_loop to 'auto'",
    "no_cubin_for_wgmma": (
        "wgmma needs a cubin for sm_90a that warp_tiles links: set linker to 'auto', and build no debug module"
    ),
    # ---- functions
    "not_built": "nothing was built",
    "foreign_function": "functions of {} keep no accumulators in registers: set the provider to 'auto'",
    "rounded_products": "each product is rounded to {}, the dtype of C: use a C of float32",
    "many_function_accumulators": (
        "registers do not hold the accumulators of its tile: use smaller tiles or more threads"
    ),
    "solver_arch": "arch={}: sm_{} is the oldest",
    "solver_threads": "threads={}: the block has to consist of whole warps: change block_dim",
    "solver_rows": "n={}: shared memory does not hold a triangle of so many rows: use a smaller matrix",
    "warp_has_no_gradient": "Warp has none: {}",
    "not_followed": "Warp's code generator cannot be followed",
    # ---- the instruction of a product in stages
    "no_async_copies": "sm_{} has no asynchronous copies, which fill stages",
    "two_dtypes": "stages hold tiles of one dtype: load A and B with the same one",
    "unsuitable_c": "stages need dense tiles and a row-major C of {}: use such tiles",
    "unsuitable_size": "{} is not a multiple of 16x16x{}: use tiles that are",
    "many_accumulators": (
        "{} needs {} accumulators of a thread, which has room for {}: use more threads or smaller tiles"
    ),
    "no_grid": "{} threads cannot share {}: use other tiles or threads",
    "no_tensor_core_grid": "{} threads cannot share {} among their tensor cores: use other tiles or threads",
    "warps_m": "warps_m={} does not divide {}: give one of {}",
    "several_instructions": "its products use different instructions: use equal tiles",
    "partly_wgmma": "wgmma can multiply only some of its products: use equal tiles for wgmma",
    # ---- the pipeline of a loop
    "double_buffers_asked": "double buffers are asked for",
    "family": "{} cannot be used here: change main_loop",
    "none_in_flight": "{} with {} stages has no products in flight: change main_loop",
    "stages_do_not_fit": ("{} stages of {} bytes need {} bytes of shared memory, and a block has {}: " + _SMALLER),
    "few_accumulators": (
        "with {} of a thread, stages are not known to be faster; stages gain from {} on: use larger tiles or fewer "
        "threads"
    ),
    "few_accumulators_beside_solver": (
        "with {} of a thread, a loop beside a solver is slower from stages; stages gain from {} on: use larger tiles "
        "or fewer threads"
    ),
    "few_warps": "stages would leave {} resident warps, and gain from {} on: " + _SMALLER,
    "few_blocks": "stages would leave {} of {} threads in place of {}: " + _SMALLER,
    "next_stage_leaves_fewer_blocks": "a {} stage would leave {} in place of {}",
    "next_stage_does_not_fit": "a {} stage does not fit: a smaller K step makes room",
    "measured": "{}, {}",
    "stages_forbidden": (
        "{}, so the loop has no stages, from which {} could multiply. Such loops reached {} of the speed of stages "
        "with cublasdx on an H100. Set provider and policy to 'auto' for stages"
    ),
    # ---- double buffers
    "buffers_beside_solver": "beside a solver, double buffers in extra memory are slower: no change is needed",
    "few_accumulators_for_buffers": (
        "with {} of a thread, double buffers in extra memory are slower; they gain from {} on: use larger tiles or "
        "fewer threads"
    ),
    "buffers_do_not_fit": ("tiles and double buffers need {} bytes of shared memory, and a block has {}: " + _SMALLER),
    "few_blocks_with_buffers": "double buffers would leave {} of {} threads in place of {}: " + _SMALLER,
    "call_beside_buffers": (
        "{} has shared tiles of its own, beside double buffers in extra memory: write its statements in the loop"
    ),
    # ---- the reverse pass of a loop
    "many_gradient_accumulators": (
        "the gradients need {} accumulators of a thread, which has room for {}: use more threads or smaller tiles"
    ),
    "gradients_do_not_fit": (
        "gradients and {} stages need {} bytes of shared memory, and a block has {}: use smaller tiles"
    ),
    # ---- accumulators in registers
    "no_function": "no function was planned for it",
    "unknown_alpha": (
        "alpha is not known before the loop: compute it there, in a variable that is assigned once, or scale C after "
        "the loop"
    ),
    "infinite_alpha": "alpha is {}, which changes zeros: use a finite number",
    "another_alpha": "it has another alpha, which needs accumulators of its own: use one alpha",
    "beta": "beta is not the constant 1: scale C before the loop",
    "c_overlaps": "C may share memory with A or B: use tiles of their own",
    "returns_within": "line {} returns from within the loop: let it return behind the loop",
    "new_c": "C is a new tile in each iteration",
    "new_tile": "the product is a new tile in each iteration, and is not added to a sum",
    "new_tile_in_sum": "the product is a new tile in each iteration: add to one tile with wp.tile_matmul(a, b, c)",
    "new_tile_used": "{} uses the new tile too: use wp.tile_matmul(a, b, c)",
    "unrolled_new_tile": "Warp unrolls the loop, and each iteration has a new tile: use wp.tile_matmul(a, b, c)",
    "others_keep_accumulators": "the other products keep their accumulators in registers",
    "used": "{} uses {} in each iteration",
    "stored": "{} uses {} in each iteration: store it behind the loop",
    "full_registers": (
        "accumulators take {} of a thread's {} registers, and a few others may spill: use more threads or smaller tiles"
    ),
    # ---- loads ahead
    "async_copies_off": "the setting async_copies is off: set it to 'on'",
    "products_in_branches": "its products lie in different branches: move them to one",
    "jump_between_products": "a jump lies between its products: move it before the first or behind the last one",
    "no_loaded_operand": "the loop loads no operand of its products: load one in the loop",
    "unrolled_tiles": (
        "Warp unrolls the loop, so that each iteration has tiles and code of its own, and no stages: give its range a "
        "variable bound"
    ),
    "unrolled_condition": "Warp unrolls the loop around a condition: give its range a variable bound",
    "unrolled_without_loads": "its iterations do not each load what they multiply: load A and B in each",
    "moving_view": "the view that {} makes moves with the loop",
    "moving_view_of_loaded_tile": "the view that {} makes moves with the loop: load a tile in its place",
    "replaced_tile": (
        "the loop replaces a tile that is read outside of it: give the tile a name of its own in the loop"
    ),
    "writes_array": "{} writes to an array while tiles are loaded",
    "unknown_effects": "{} has unknown effects",
    "constant_unknown_effects": (
        "{} has unknown effects: call it before the loop, if it does the same in each iteration"
    ),
    "works_on_tile": "{} works on a tile while others are loaded",
    "constant_works_on_tile": "{} works on a tile while others are loaded: compute it before the loop",
    "loaded_in_other_branch": "the tile is not loaded in the branch that multiplies it: load it there",
    "loaded_to_registers": "the tile lies in registers: load it with storage='shared'",
    "loaded_tile_used": "line {} uses the loaded tile too: load a second tile for that",
    "loaded_tile_not_multiplied": ("the loaded tile is not an operand of the product: load it outside of the loop"),
    "accumulators_over_outer_loop": "the accumulators stay in registers over an outer loop: merge the loops",
    "load_after_product": "it loads tiles after a product: load them before the first one",
    "jump_before_product": "a branch, loop or jump lies between its loads and its products: move it away",
    "operand_not_loaded_whole": "an operand of line {} is not a whole tile that the loop loads: load it as one",
    # ---- chains of products
    "chain_with_branches": "branches or loops lie in it: move them out of the loop",
    "not_in_chain": "{} is no operation of a chain: move it out of the loop",
    "chain_reduction": "{} of a tile of shape {} is no reduction of a chain: use 64 to 256 columns, in multiples of 32",
    "chain_tile": "a tile of shape {} and {} does not fit a chain: use one that docs/loops.md describes",
    "chain_rows": "{} rows are no multiple of {} warps with {} rows each: use fewer threads or more rows",
    "used_outside": "line {} uses a tile that the loop makes: copy it to another tile in the loop",
    "chain_registers": (
        "its tiles need {} registers of a thread, which has room for {}: use more threads or smaller tiles"
    ),
    "chain_memory": "its stages need {} bytes of the memory of its tiles, and neighbours have {}: use more rows",
    # ---- stores of accumulators
    "several_cs": "the loop has several Cs: give each a loop of its own",
    "several_factors": "its products have different factors or sizes: use one alpha and one size",
    "added_to_another_tile": "the accumulators are added to another tile: use wp.tile_matmul(a, b, c)",
    "added_to_start": "the accumulators are added to the start value of C: use an alpha of 1 or -1",
    "c_of_caller": "C is not a tile of the function: make it there",
    "c_used": "line {} uses C too: let only the store use it",
    "no_neighbours": "no thread has neighbouring accumulators of a row: use a wider tile of C",
    "few_neighbours": ("a thread has two neighbouring accumulators of a row, which are too few for {}: store float32"),
    "no_store": (
        "no store behind the loop takes C or a tile computed from it by elementwise operations: store it there"
    ),
    "loop_before_store": "another loop lies between the loop and the store: move the store before it",
    "stores_view": "the store reads a view of C: store C itself",
    "store_operand_not_shared": (
        "an operand of the store is not a shared tile of the function: load it there with storage='shared'"
    ),
    "elements_do_not_fit_vector": "{} elements of {} bytes do not fit a vector: store another dtype",
    # ---- adjoints
    "as_forward": "{}",
    "while_loop": "it is a while loop: use a range with a variable bound",
    "unrolled_loop": "it is a loop that Warp unrolls: use a range with a variable bound",
    "several_products": "the loop has {} products: give each a loop of its own",
    "other_loads": ("an operand is used twice, or the loop loads other tiles too: load one tile for A and one for B"),
    "arrays_change": "the loop changes the arrays that it loads from: choose them before the loop",
    "new_tile_added": "the product makes a new tile: use wp.tile_matmul(a, b, c)",
    "new_tile_subtracted": "the product makes a new tile: use wp.tile_matmul(a, b, c, alpha=-1.0)",
    "c_without_memory": "C has no memory of its own: use a tile and no view",
    "c_read_in_reverse": "the reverse pass reads C: let nothing else in the kernel use it before its store",
    "jump": "{} ends an iteration early: use a condition around the statements",
    "view": "{} makes a view of a tile: load a tile in its place",
    "conditional_loads": "its loads and its product lie in a branch: move the condition out of the loop",
    "other_adjoints": (
        "Warp wrote other adjoints, e.g. deterministic ones: leave the module option deterministic as it is"
    ),
    "solves_parameter": "it changes a parameter of the function: solve into a new tile",
    "solves_tile_from_outside": (
        "it changes a tile from outside its loop: load the tile inside, or solve into a new tile"
    ),
    "result_changed": "line {} changes the result: solve into a new tile",
    # ---- products of whole arrays
    "in_function": "the loop is in a function: move it to the kernel",
    "several_kernels": "several kernels of the module have its name: rename them",
    "launch_dimensions": "rows and columns of C are not the two launch dimensions: use one for each",
    "operand_not_loaded": "an operand is not a tile that the loop loads: load A and B in the loop",
    "other_rows_loaded": "line {} loads other rows or columns than those of C's tile: load the same ones",
    "several_offsets": "A and B are not loaded at the same multiple of the loop's variable: use one offset",
    "other_loops": "it has other loops than one over K: move them to another kernel",
    "has_branches": "it has branches: move them to another kernel",
    "not_part_of_product": "line {}: {} is not part of a product: move it to another kernel",
    "loads_and_products": "its loop has {} products and {} loads: use one and two",
    "has_factors": "alpha and beta are not both the constant 1: leave them out",
    "no_zeros_before": (
        "C does not start as zeros, or something else comes before the loop: begin with wp.tile_zeros() alone"
    ),
    "more_than_store": "after the loop it does more than store C: do that in another kernel",
    "unknown_access": (
        "line {} accesses no matrix that is an argument, or at an unknown place: pass the matrix, and compute the "
        "offset from wp.tid() and the loop's variable"
    ),
    "tile_place": "a tile of C does not lie at wp.tid() times its size: store it there",
    "unknown_bounds": (
        "the bounds of the loop do not follow from integer arguments: compute them from sizes of arrays and integers"
    ),
    "shapes": "A, B and C have shapes {}, {} and {}",
    "blocks_do_not_cover": "{} blocks do not cover C of shape {}",
    "unknown_range": "the loop's range is unknown: {}",
    "steps_do_not_cover": "{} steps of {} from {} do not cover K = {}",
    "little_work": "{} multiplications are fewer than {}",
    "unsuitable_arguments": "{}",
    "capturing": "its products are not built yet, and a graph is being captured",
    # ---- the kernel with tensor copies
    "loop_configured": "the configuration is that of a loop",
    "loop_faster": "its estimated time is more than {} times the loop's",
    "loop_asked": "the setting main_loop asks for a loop",
    "gpu_without_wgmma": "it is built for sm_90 alone, the architecture with wgmma",
    "kernel_dtypes": "it has no code for {} with the other types of this product",
    "no_products": "there is nothing to multiply",
    "kernel_sums": "it adds neither the products of a batch nor operands in two parts",
    "kernel_alignment": "the rows of C have gaps, or C is read and they do not begin at multiples of 16 bytes",
    "kernel_copies": "an operand has to be copied, and the copy of one matrix has 2 GiB or more",
    "kernel_side": "it has no tiles for fewer than {} rows or columns",
    "kernel_depth": "its code for {} needs k of at least {}, because shorter products were not measured",
    "function_in_bundle": "Warp generates the code of its epilogue at the call, so no bundle has it",
    "not_enabled": "warp_tiles is not enabled",
    # ---- start keys, which find a module before its code is generated
    "no_calls": "it has no products or solvers for a GPU",
    "left_to_warp": "{}",
    "kept_nowhere": "no cache, store or wheel may have it: set modules to 'all', or run warp-tiles warm",
    "kernels_not_cached": "wp.config.cache_kernels is False: set it to True",
    "tuned_first": "it may be tuned before its build: set the policy to 'auto'",
    "changed_since_hash": "the module, settings or tuning records have changed since it was hashed",
    "generation_has_effects": "its generation has other effects with the option {}: turn the option off",
    "without_functions": (
        "an earlier version kept it without the functions that a start list names: make the wheel again, or clear the "
        "cache"
    ),
    "unknown_value": "no key covers {} in {}: use numbers, texts, and types and functions of Warp",
    "unknown_kind": "no key covers a value or type in its code ({}): use numbers, texts, and types of Warp",
    "static_of_instances": (
        "each instance of {} evaluates a wp.static expression anew: let it use constants and operators alone"
    ),
    "late_static": (
        "a wp.static expression is evaluated only while the code is generated: let it use constants and operators alone"
    ),
    "toolchain_missing": "{}: {}",
    "unreadable_file": "a file that the key covers cannot be read ({}): install warp-lang and the compilers again",
}


@dataclass(frozen=True)
class Rejected:
    """The result of a decision against something. Its text is the sentence.

    Attributes:
        code: Its name in ``REASONS``, which has the sentence.
        values: What the sentence names, in its order.
        before: The place or part that the sentence is about, e.g. ``line 9: ``.
    """

    code: str
    values: tuple[object, ...] = ()
    before: str = ""

    def __str__(self) -> str:
        return self.before + REASONS[self.code].format(*self.values)

    def after(self, text: str) -> Rejected:
        """The same behind a text, such as the part that it is about."""
        return replace(self, before=text + self.before)

    def at(self, line: int) -> Rejected:
        """The same about a line of the user's source."""
        return self.after(f"line {line}: ")


class Refused(Exception):  # noqa: N818  it never leaves a function with the decorator
    """Ends a function with a rejection, which is its argument."""


def rejectable(function: Callable[P, T]) -> Callable[P, T | Rejected]:
    """Lets a function return the rejection that :func:`refuse` or :func:`accepted` ends it with."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | Rejected:
        try:
            return function(*args, **kwargs)
        except Refused as refused:
            (rejected,) = refused.args
            assert isinstance(rejected, Rejected)
            return rejected

    return call


def refuse(holds: bool, code: str, *values: object) -> None:
    """End the function with a rejection if something holds."""
    if holds:
        raise Refused(Rejected(code, values))


def given(value: T | None, code: str, *values: object) -> T:
    """A value. None ends the function with a rejection."""
    if value is None:
        raise Refused(Rejected(code, values))
    return value


def accepted(result: T | Rejected, at: int = 0) -> T:
    """The result of another function. A rejection ends this one, about a line of the user's source if one is given."""
    if isinstance(result, Rejected):
        raise Refused(result.at(at) if at else result)
    return result


def code_of(result: object) -> str:
    """The code if something is a rejection; else empty."""
    return result.code if isinstance(result, Rejected) else ""


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number > 1)}"
