"""The products that a planned script would compute, each with its configuration and where that comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from warp_tiles.heuristics.matmul import MatmulChoice, MatmulProblem

_collections: list[dict[PlannedProduct, None]] = []  # global, because every thread of a script must see it


@dataclass(frozen=True)
class PlannedProduct:
    """A product of :func:`warp_tiles.matmul` in a plan.

    Attributes:
        problem: The product, as the device computes it.
        choice: How it is computed, and whether that was measured.
        gpu: Name of the GPU for which it was chosen; empty for the CPU.
    """

    problem: MatmulProblem
    choice: MatmulChoice
    gpu: str

    @property
    def text(self) -> str:
        """The product in words, e.g. ``float16 nn 64x64x64, C of float32``."""
        problem = self.problem
        parts = [problem.text]
        if problem.out != problem.a:
            parts.append(f"C of {problem.out}")
        if problem.summed:
            parts.append("summed over the batch")
        if problem.split_operand:
            parts.append(f"{problem.split_operand.upper()} in two parts")
        return ", ".join(parts)

    @property
    def reason(self) -> str:
        """Why it has this configuration."""
        if not self.gpu:
            return "the CPU has one tile"
        if self.choice.is_recorded:
            return f"the records that {self.gpu} uses have a measured configuration for about this size"
        return f"it has the least estimated time; the records that {self.gpu} uses have none for about this size"

    def to_json(self) -> dict[str, Any]:
        """The product as JSON values."""
        return {
            "product": self.text,
            "config": self.choice.config.to_json(),
            "is_recorded": self.choice.is_recorded,
            "gpu": self.gpu,
            "reason": self.reason,
        }


TABLE_HEADINGS = ("product", "tile", "threads", "slices of K", "reason")


def table_rows(products: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The cells below :data:`TABLE_HEADINGS` of products in the form of :meth:`PlannedProduct.to_json`."""
    rows = []
    for product in products:
        config = product.get("config") or {}
        tile = "x".join(str(config.get(name)) for name in ("tile_m", "tile_n", "tile_k"))
        numbers = (str(config.get(name)) for name in ("threads", "split_k"))
        rows.append((str(product.get("product")), tile, *numbers, str(product.get("reason") or "")))
    return rows


@contextmanager
def collected_products() -> Iterator[Sequence[PlannedProduct]]:
    """Collect the products that are noted in the block. They are complete after it, each once."""
    noted: dict[PlannedProduct, None] = {}
    found: list[PlannedProduct] = []
    _collections.append(noted)
    try:
        yield found
    finally:
        _collections[:] = [one for one in _collections if one is not noted]  # an equal one may be open
        found.extend(noted)


def note(product: PlannedProduct) -> None:
    """Add a product to the collections that are open."""
    for noted in _collections:
        noted.setdefault(product)
