"""Kernels with one solver builtin of Warp, for the tests of plans and builds."""

# each builtin: its arguments, and whether they are a matrix and a right-hand side
CALLS = {
    "tile_cholesky": "a",
    "tile_cholesky_solve": "a, y",
    "tile_lower_solve": "a, y",
    "tile_upper_solve": "a, y",
    "tile_cholesky_inplace": "a",
    "tile_cholesky_solve_inplace": "a, y",
    "tile_lower_solve_inplace": "a, y",
    "tile_upper_solve_inplace": "a, y",
}
IN_PLACE = {call for call in CALLS if call.endswith("_inplace")}
# the functions that a call needs, by role; Warp differentiates two of the builtins
DIFFERENTIATED = ("tile_cholesky", "tile_lower_solve")
OWN_FUNCTIONS = {
    call: {"forward": function, "adjoint": f"{function}_adjoint"}
    for call, function in ((call, call.removeprefix("tile_").removesuffix("_inplace")) for call in CALLS)
}
FUNCTIONS = {
    call: functions if call in DIFFERENTIATED else {"forward": functions["forward"]}
    for call, functions in OWN_FUNCTIONS.items()
}


def solver(
    call: str, arguments: str = "", *, name: str = "solver", decorator: str = "@wp.kernel", dtype: str = "float32",
    shape: str = "(16, 4)",
) -> str:  # fmt: skip
    """Text of a kernel that loads a 16 x 16 matrix and a right-hand side, calls a builtin, and stores the result.

    The call may be one of a ``@wp.func`` that takes the matrix. Without arguments, it has the tiles ``a`` and ``y``.
    """
    rank = shape.count(",") + 1
    called = f"{f'wp.{call}' if call in CALLS else call}({arguments or CALLS.get(call, 'a')})"
    result = "y" if "solve" in call else "a"
    return f"""
{decorator}
def {name}(A: wp.array2d(dtype=wp.{dtype}), Y: wp.array(dtype=wp.{dtype}, ndim={rank})):
    a = wp.tile_load(A, shape=(16, 16), storage="shared")
    y = wp.tile_load(Y, shape={shape}, storage="shared")
    {called if call in IN_PLACE else f"x = {called}"}
    wp.tile_store({"Y" if result == "y" else "A"}, {result if call in IN_PLACE else "x"})
"""
