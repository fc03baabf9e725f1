"""Tiles and their products, shared by the tests of this folder."""

from __future__ import annotations

from hypothesis import strategies as st

from warp_tiles.gemm.dispatch import Products, Target, Tile, products
from warp_tiles.gemm.problem import DTYPE_BYTES, Precision

SM90 = Target(90, 128)
dims = st.integers(1, 6)
dtypes = st.sampled_from(sorted(DTYPE_BYTES))
layouts = st.sampled_from(["row_major", "col_major"])


def tile(
    rows: int,
    cols: int,
    dtype: str = "float32",
    layout: str = "row_major",
    *,
    ld: int = 0,
    strides: tuple[int, int] | None = None,
    aligned: bool = True,
) -> Tile:
    """A tile, packed unless ``ld`` or ``strides`` is given."""
    if strides is None:
        strides = (ld or cols, 1) if layout == "row_major" else (1, ld or rows)
    return Tile(dtype, (rows, cols), strides, layout, aligned)  # type: ignore[arg-type]


def product(a: Tile, b: Tile, c: Tile, precision: Precision = "default", target: Target = SM90) -> Products:
    return products(a, b, c, precision=precision, target=target)


@st.composite
def operand_tiles(draw: st.DrawFn) -> tuple[Tile, Tile, Tile]:
    """Tiles of A, B and C with random sizes, dtypes, layouts, padding and alignment."""
    m, n, k = draw(dims), draw(dims), draw(dims)
    tiles = []
    for rows, cols in ((m, k), (k, n), (m, n)):
        layout = draw(layouts)
        packed = cols if layout == "row_major" else rows
        dtype = draw(dtypes if len(tiles) < 2 else dtypes.filter(lambda name: name != "bfloat16"))
        ld = packed + draw(st.integers(0, 3))
        tiles.append(tile(rows, cols, dtype, layout, ld=ld, aligned=draw(st.booleans())))
    return tiles[0], tiles[1], tiles[2]
