"""Compares flash attention forward as a user of Warp writes it, by warp_tiles and Warp, and torch's SDPA, in one run.

    python benchmarks/attention.py --json benchmarks/results/attention.json

A block has some rows of one head's queries, and loops over its keys with an online softmax. Operands are fp16 and sums
are fp32. The form "reductions" has only the maxima and sums of rows in its loop. Sides are built ahead of time in
separate processes (`--build-only` needs no GPU), and their launches alternate. Results are compared with NumPy's in
float64, relative to the largest element.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import warp as wp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import runner
from benchmarks.machine import gpu_record, torch_record, torch_with_warp
from benchmarks.runner import DEVICE, Row
from benchmarks.speed import timing
from benchmarks.speed.builds import Build, load_module
from benchmarks.speed.timing import Launch

SIDES = ("tiles", "warp")
HEADS, SEQUENCE = 32, 2048
CHECKED = slice(0, HEADS, HEADS - 1)  # heads that are compared with NumPy's
LARGEST_DIFFERENCE = 2e-3  # fp16 results, and probabilities that are rounded to fp16

_TEXT = """import warp as wp

wp.set_module_options({options})


@wp.func
def weight(score: float, highest: float, scale: float):
    return wp.exp((score - highest) * scale)


@wp.kernel
def attention(
    Q: wp.array3d(dtype=wp.float16), K: wp.array3d(dtype=wp.float16), V: wp.array3d(dtype=wp.float16),
    scale: float, O: wp.array3d(dtype=wp.float16),
):
    h, i = wp.tid()
    q = wp.tile_load(Q[h], shape=({m}, {d}), offset=(i * {m}, 0), storage="shared")
    o = wp.tile_zeros(shape=({m}, {d}), dtype=float, storage="shared")
    highest = wp.tile_full(shape={m}, value=-1.0e30, dtype=float)
    total = wp.tile_zeros(shape={m}, dtype=float)
{before}    for step in range(0, K.shape[1], {n}):
{body}{after}    wp.tile_store(O[h], wp.tile_astype(o, dtype=wp.float16), offset=(i * {m}, 0))
"""
_LOADS = """        k = wp.tile_load(K[h], shape=({n}, {d}), offset=(step, 0), storage="shared")
        v = wp.tile_load(V[h], shape=({n}, {d}), offset=(step, 0), storage="shared")
"""
_SCORES = """        s = wp.tile_zeros(shape=({m}, {n}), dtype=float, storage="shared")
        wp.tile_matmul(q, wp.tile_transpose(k), s)
"""
_SOFTMAX = """        raised = wp.tile_map(wp.max, highest, wp.tile_reduce(wp.max, s, axis=1))
        factor = wp.tile_map(weight, highest, raised, scale)
        column = wp.tile_broadcast(wp.tile_reshape(raised, shape=({m}, 1)), shape=({m}, {n}))
        wp.tile_assign(s, wp.tile_map(weight, s, column, scale))
        wp.tile_assign(total, total * factor + wp.tile_sum(s, axis=1))
        wp.tile_assign(o, o * wp.tile_broadcast(wp.tile_reshape(factor, shape=({m}, 1)), shape=({m}, {d})))
        wp.tile_assign(highest, raised)
"""
_VALUES = "        wp.tile_matmul(wp.tile_astype(s, dtype=wp.float16), v, o)\n"
_DIVISION = "    wp.tile_assign(o, o / wp.tile_broadcast(wp.tile_reshape(total, shape=({m}, 1)), shape=({m}, {d})))\n"
_SUM = "    wp.tile_assign(o, wp.tile_broadcast(wp.tile_reshape(total, shape=({m}, 1)), shape=({m}, {d})))\n"
_REDUCTIONS = """        raised = wp.tile_map(wp.max, highest, wp.tile_reduce(wp.max, s, axis=1))
        wp.tile_assign(total, total + wp.tile_sum(s, axis=1))
        wp.tile_assign(highest, raised)
"""
_FIRST = (_LOADS + _SCORES).replace("        ", "    ").replace("step", "0")
FORMS = {  # before the loop, in it, and after it
    "attention": ("", _LOADS + _SCORES + _SOFTMAX + _VALUES, _DIVISION),
    "reductions": (_FIRST, _REDUCTIONS, _SUM),
}


@dataclass(frozen=True)
class Cell:
    """A kernel whose blocks of threads have m rows of queries, and load n keys of d elements in each iteration."""

    form: str
    d: int
    m: int
    n: int
    threads: int

    @property
    def name(self) -> str:
        return f"{self.form} head{self.d} {self.m}x{self.n} t{self.threads}"

    def text(self, side: str) -> str:
        """The Python module with the kernel ``attention``, which is the same for each side."""
        before, body, after = FORMS[self.form]
        text = _TEXT.replace("{before}", before).replace("{body}", body).replace("{after}", after)
        options = {"block_dim": self.threads, "enable_backward": False}
        return text.format(options=options, d=self.d, m=self.m, n=self.n)

    @property
    def flops(self) -> int:
        """Floating-point operations of the products of all iterations."""
        return 0 if self.form == "reductions" else 4 * HEADS * SEQUENCE**2 * self.d


CELLS = (
    *(Cell("attention", d, m, 64, threads) for d in (64, 128) for m, threads in ((64, 128), (128, 128), (128, 256))),
    *(Cell("attention", *sizes) for sizes in ((64, 64, 128, 128), (64, 128, 128, 256), (128, 64, 128, 128))),
    *(Cell("reductions", d, m, 64, threads) for d, m, threads in ((64, 64, 128), (128, 128, 256))),
)


def _drawn(d: int) -> list[npt.NDArray[np.float16]]:
    random = np.random.default_rng(d)
    return [random.standard_normal((HEADS, SEQUENCE, d)).astype(np.float16) for _ in range(3)]


def expected(cell: Cell, operands: Sequence[Any], scale: float) -> Any:
    """The result for some heads, in float64."""
    q, k, v = operands
    if cell.form == "reductions":
        sums = (q @ k[:, : cell.n].transpose(0, 2, 1)).sum(-1, keepdims=True)
        return np.broadcast_to(sums * (k.shape[1] // cell.n), q.shape)
    scores = q @ k.transpose(0, 2, 1) * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights @ v / weights.sum(-1, keepdims=True)


def measure(cell: Cell, options: Any) -> Row:
    """The times of the sides, after their results were compared with NumPy's."""
    row: Row = asdict(cell)
    drawn, scale = _drawn(cell.d), cell.d**-0.5
    reference = expected(cell, [values[CHECKED].astype(np.float64) for values in drawn], scale)
    inputs = [wp.array(values, device=DEVICE) for values in drawn]
    launches = {}

    def add(side: str, run: Any, result: Any) -> None:
        run()
        difference = runner.difference(result()[CHECKED].astype(np.float64), reference)
        launches[side] = Launch(run)
        row[side] = row.get(side, {}) | {"difference": runner.require_close(difference, LARGEST_DIFFERENCE, "NumPy")}

    for side in SIDES:
        build: Build[Cell] = Build(cell, side)
        record = options.store.record(build) or {"error": "not built"}
        row[side] = {key: record[key] for key in ("seconds", "cublasdx_functions", "error") if key in record}
        if "error" in record:
            continue
        if side == "tiles":
            row["treatment"] = [{key: loop[key] for key in ("state", "reason")} for loop in record["loops"]]
        row[side]["kernels"] = list(record["kernels"].values())
        out = wp.zeros(inputs[0].shape, dtype=wp.float16, device=DEVICE)
        command: Any = wp.launch_tiled(
            load_module(options.store, build).attention, dim=[HEADS, SEQUENCE // cell.m], inputs=[*inputs, scale, out],
            block_dim=cell.threads, device=DEVICE, record_cmd=True,
        )  # fmt: skip
        add(side, command.launch, out.numpy)
    if options.torch and cell.form == "attention":
        attend = options.torch.nn.functional.scaled_dot_product_attention
        tensors = [wp.to_torch(array)[None] for array in inputs]
        found: list[Any] = []

        def torch_side() -> None:
            found[:] = [attend(*tensors)]

        add("torch", torch_side, lambda: found[0][0].cpu().numpy())
    for side, times in timing.time_alternately(launches, options.repeats).items():
        row[side] |= asdict(times) | {"tflops": round(cell.flops / times.median_us / 1e6, 1)}
    for peer in {"warp", "torch"} & launches.keys() if "tiles" in launches else ():
        row[f"to_{peer}"] = round(row[peer]["median_us"] / row["tiles"]["median_us"], 3)
    return row


def line_of(row: Row) -> str:
    sides = [side for side in (*SIDES, "torch") if side in row]
    times = ", ".join(f"{side} {row[side].get('median_us') or row[side].get('error', '')[:70]}" for side in sides)
    return f"{times} us, speed to Warp {row.get('to_warp')}, to torch {row.get('to_torch')}"


def conditions(options: Any) -> Row:
    options.torch = torch_with_warp() if importlib.util.find_spec("torch") else None
    return torch_record() if options.torch else gpu_record()


main = runner.command(
    __doc__,
    CELLS,
    measure,
    conditions,
    repeats=timing.REPEATS,
    builds=lambda cell, options: [Build(cell, side) for side in SIDES],
    gpu=True,
    described=line_of,
)


if __name__ == "__main__":
    sys.exit(main())
