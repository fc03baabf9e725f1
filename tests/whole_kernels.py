"""Kernels that are a product of whole arrays, and kernels that are more or less than one."""

from dataclasses import dataclass
from typing import Any

KERNEL = """
@wp.kernel{options}
def multiply(
    A: wp.array2d(dtype=wp.{dtype}), B: wp.array2d(dtype=wp.{dtype}), n: int, C: wp.array2d(dtype=wp.{result})
):
    i, j = wp.tid()
{body}
"""
START = "c = wp.tile_zeros(shape=(32, 16), dtype=wp.float32)"
RANGE = "for k in range(0, A.shape[1], 8):"
LOAD_A = "a = wp.tile_load(A, shape=(32, 8), offset=(i * 32, k))"
LOAD_B = "b = wp.tile_load(B, shape=(8, 16), offset=(k, j * 16))"
PRODUCT = "wp.tile_matmul(a, b, c)"
STORE = "wp.tile_store(C, c, offset=(i * 32, j * 16))"


@dataclass(frozen=True)
class Whole:
    """A kernel that is a product of whole arrays. Its tiles of C have 32 x 16 elements.

    Attributes:
        text: Python source after ``import warp as wp``.
        a_transposed, b_transposed: True if the array holds the operand's transpose.
        swapped: True if the first launch dimension counts tiles across.
        dtype, result: Element types of A and B, and of C.
    """

    text: str
    a_transposed: bool = False
    b_transposed: bool = False
    swapped: bool = False
    dtype: str = "float32"
    result: str = "float32"


def kernel(
    *,
    start: str = START,
    head: str = RANGE,
    loads: tuple[str, ...] = (LOAD_A, LOAD_B),
    product: str = PRODUCT,
    store: str = STORE,
    dtype: str = "float32",
    result: str = "float32",
    options: str = "",
    above: str = "",
) -> str:
    """The source of a kernel with these statements."""
    lines = [*start.splitlines(), head, *(f"    {line}" for line in (*loads, *product.splitlines()))]
    lines += store.splitlines()
    body = "\n".join(f"    {line}" for line in lines)
    return above + KERNEL.format(options=options, dtype=dtype, result=result, body=body)


COUNTED = ("a = wp.tile_load(A, shape=(32, 8), offset=(i * 32, k * 8))", LOAD_B.replace("k,", "k * 8,"))
TRANSPOSED_A = "a = wp.tile_transpose(wp.tile_load(A, shape=(8, 32), offset=(k, i * 32)))"
TRANSPOSED_B = "b = wp.tile_transpose(wp.tile_load(B, shape=(16, 8), offset=(j * 16, k)))"
FUNCTION = """from typing import Any


@wp.func
def {head}:
    return {result}


"""
ROUNDED = "wp.tile_store(C, wp.tile_astype(c, dtype=wp.float16), offset=(i * 32, j * 16))"

WHOLE = {
    "bounds from a shape": Whole(kernel()),
    "Warp's example": Whole(
        kernel(
            start=f"{START}\nM = A.shape[0]\nN = B.shape[1]\nK = A.shape[1]\ncount = int(K / 8)",
            head="for k in range(0, count):", loads=COUNTED,
        )
    ),
    "a size as argument": Whole(kernel(head="for k in range((n + 7) // 8):", loads=COUNTED)),
    "a constant range": Whole(kernel(head="for k in range(0, 144, 8):")),
    "offset after the start": Whole(
        kernel(
            head="for k in range(8, n + 8, 8):", loads=(LOAD_A.replace("k)", "k - 8)"), LOAD_B.replace("(k", "(k - 8"))
        )
    ),
    "added to C": Whole(kernel(product="c += wp.tile_matmul(a, b)")),
    "A transposed": Whole(kernel(head="for k in range(0, A.shape[0], 8):", loads=(TRANSPOSED_A, LOAD_B)), True),
    "B transposed": Whole(kernel(loads=(LOAD_A, TRANSPOSED_B)), b_transposed=True),
    "both transposed": Whole(kernel(head="for k in range(0, n, 8):", loads=(TRANSPOSED_B, TRANSPOSED_A)), True, True),
    "tiles across first": Whole(
        kernel(
            loads=(LOAD_A.replace("i *", "j *"), LOAD_B.replace("j *", "i *")),
            store="wp.tile_store(C, c, offset=(j * 32, i * 16))",
        ),
        swapped=True,
    ),
    "half": Whole(kernel(dtype="float16"), dtype="float16"),
    "rounded to half": Whole(
        kernel(dtype="float16", result="float16", store=ROUNDED), dtype="float16", result="float16"
    ),
}  # fmt: skip


def other(code: str, **statements: Any) -> tuple[str, str]:
    """A kernel that is no such product, and the code of the reason in its plan."""
    return kernel(**statements), code


ADD = """
from typing import Any


@wp.func
def add(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), i: int, j: int, c: Any):
    for k in range(0, A.shape[1], 8):
        a = wp.tile_load(A, shape=(32, 8), offset=(i * 32, k))
        b = wp.tile_load(B, shape=(8, 16), offset=(k, j * 16))
        wp.tile_matmul(a, b, c)

"""
OTHERS = {
    "a start value": other("no_zeros_before", start=START.replace("zeros", "ones")),
    "an epilogue": other(
        "more_than_store", store="d = wp.tile_map(wp.tanh, c)\nwp.tile_store(C, d, offset=(i * 32, j * 16))"
    ),
    "two stores": other("more_than_store", store=f"{STORE}\n{STORE}"),
    "alpha": other("has_factors", product="wp.tile_matmul(a, b, c, alpha=2.0)"),
    "a branch": other("has_branches", store=f"if n > 3:\n    {STORE}"),
    "a jump": other("has_branches", product=f"{PRODUCT}\nif k > n:\n    break"),
    "a jump in each iteration": other("not_part_of_product", product=f"{PRODUCT}\nbreak"),
    "two loops": other("other_loops", store=f"for unused in range(n):\n    {STORE}"),
    "a while loop": other(
        "other_loops", start=f"{START}\nk = int(0)", head="while k < n:", product=f"{PRODUCT}\nk += 8"
    ),
    "added twice": other("not_part_of_product", product="t = wp.tile_matmul(a, b)\nc += t\nc += t"),
    "doubled": other("not_part_of_product", product=f"{PRODUCT}\nc += c"),
    "another tile added": other(
        "not_part_of_product",
        start=f"{START}\nd = wp.tile_ones(shape=(32, 16), dtype=wp.float32)", product=f"{PRODUCT}\nc += d",
    ),
    "a function with the name of tile_astype": other(
        "more_than_store", above=FUNCTION.format(head="tile_astype(t: Any)", result="wp.tile_map(wp.tanh, t)"),
        store="d = tile_astype(c)\nwp.tile_store(C, d, offset=(i * 32, j * 16))",
    ),
    "a function with the name of max": other(
        "unknown_bounds",
        above=FUNCTION.format(head="max(t: Any)", result="t + 8"), head="for k in range(0, max(n), 8):",
    ),
    "a bound that a query changes": other(
        "unknown_bounds",
        start=f"{START}\nend = int(64)\nquery = wp.hash_grid_query(wp.uint64(0), wp.vec3(0.0), 1.0)\n"
        "wp.hash_grid_query_next(query, end)",
        head="for k in range(0, end, 8):",
    ),
    "two products": other("loads_and_products", product=f"{PRODUCT}\n{PRODUCT}"),
    "A twice": other(
        "loads_and_products", product="wp.tile_matmul(a, wp.tile_transpose(a), c)",
        start="c = wp.tile_zeros(shape=(32, 32), dtype=wp.float32)",
        loads=(LOAD_A,), store="wp.tile_store(C, c, offset=(i * 32, j * 32))",
    ),
    "another order of K": other("several_offsets", loads=(LOAD_A, LOAD_B.replace("(k", "(n - k"))),
    "the same tiles in each iteration": other(
        "several_offsets", loads=(LOAD_A.replace(", k)", ", i)"), LOAD_B.replace("(k", "(i"))
    ),
    "other rows": other("other_rows_loaded", loads=(LOAD_A.replace("i *", "j *"), LOAD_B)),
    "reversed tiles": other(
        "tile_place", start=f"r = n - i\n{START}",
        loads=(LOAD_A.replace("i *", "r *"), LOAD_B), store=STORE.replace("i *", "r *"),
    ),
    "a view": other(
        "unknown_access", start=f"D = A\n{START}\nE = D[0:32]", loads=(LOAD_A.replace("A,", "E,"), LOAD_B)
    ),
    "the diagonal": other(
        "launch_dimensions", loads=(LOAD_A, LOAD_B.replace("j *", "i *")), store=STORE.replace("j *", "i *")
    ),
    "B transposed twice": other(
        "operand_not_loaded", product="wp.tile_matmul(a, wp.tile_transpose(wp.tile_transpose(b)), c)"
    ),
    "an unknown bound": other(
        "has_branches",
        start=f"{START}\nlast = n\nif n > 100:\n    last = 100", head="for k in range(0, last, 8):",
    ),
    "a side effect": other("not_part_of_product", product=f"{PRODUCT}\nwp.tile_atomic_add(C, a, offset=(0, 0))"),
    "in a function": other(
        "in_function", head="if n < 0:", loads=("return",), product="pass", store=f"add(A, B, i, j, c)\n{STORE}",
        above=ADD,
    ),
}  # fmt: skip
