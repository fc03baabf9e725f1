"""Rows of kernels.py: the DVI solver of Newton's SolverKamino.

The lanes of a warp share the filling of tiles in `response`, `joint_blocks(..., "response")` and `effort_limits`. A
block of the CPU device has one thread, so that their results there are not the solver's.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import warp as wp

from benchmarks.client_scripts.kernel_rows import (
    KAMINO,
    Row,
    array,
    banded,
    blocked,
    factored,
    filled,
    normal,
    offsets,
    positive_definite,
    reordered,
)

DVI = f"{KAMINO}.solvers.dvi"


def inverse(worlds: int) -> Row:
    """The inverse of each matrix from its factor."""
    kernel = import_module(f"{DVI}.sparse_kernels")._invert_small_bilateral_block
    made, _ = factored(blocked(), positive_definite(worlds, 96))
    info, lower, result = made._operator.info, wp.zeros_like(made.L), wp.zeros_like(made.L)
    inputs = [info.dim, info.mio, made.L, lower, result]
    return Row((kernel,), lambda: wp.launch_tiled(kernel, dim=worlds, inputs=inputs, block_dim=128),
               {"lower_inverse": lower, "inverse": result})  # fmt: skip


def response(worlds: int) -> Row:
    """``L^-1 P D C`` for 96 joint rows and 64 columns."""
    kernel = import_module(f"{DVI}.response").make_response_kernel()
    rows, columns = 96, 64
    made, _ = factored(reordered(), banded(worlds, rows))
    info, coupling = made._operator.info, array(normal(worlds * rows * columns))
    scale, result = array(1.0 + 0.1 * normal(worlds * rows)), wp.zeros_like(coupling)
    inputs = [filled(worlds, rows + columns), filled(worlds, rows), info.mio, info.maxdim, info.vio, scale, made.L,
              made.P, offsets(worlds, rows * columns), filled(worlds, rows), coupling, result,
              made.tile_pattern_offsets, made.tile_pattern, columns]  # fmt: skip
    dim = worlds * ((columns + 15) // 16)
    return Row((kernel,), lambda: wp.launch_tiled(kernel, dim=dim, inputs=inputs, block_dim=128), {"response": result})


def gram(worlds: int) -> Row:
    """The Gram matrix of 96 columns of 96 responses, as for at most 16 worlds."""
    kernel = import_module(f"{DVI}.sparse_kernels")._assemble_compact_unilateral_schur_tiled
    worlds, size = min(worlds, 16), 96
    responses, schur = array(normal(worlds * size * size)), wp.zeros(worlds * size * size, dtype=wp.float32)
    inputs = [filled(worlds, 2 * size), filled(worlds, size), offsets(worlds, 2 * size), offsets(worlds, size * size),
              filled(worlds, size), responses, schur, wp.zeros(worlds * 2 * size, dtype=wp.float32), 16, 1]  # fmt: skip
    return Row((kernel,), lambda: wp.launch_tiled(kernel, dim=(worlds, 16), inputs=inputs, block_dim=128),
               {"schur": schur})  # fmt: skip


LEGS, JOINTS_OF_LEG, ROWS_OF_JOINT = 4, 3, 5  # of a walking robot with revolute joints
JOINTS = LEGS * JOINTS_OF_LEG
BODIES = np.array([(0 if joint % JOINTS_OF_LEG == 0 else joint, joint + 1) for joint in range(JOINTS)])


def elimination_order(worlds: int) -> dict[str, Any]:
    """The package's own elimination order of the robot's joints."""
    count = ROWS_OF_JOINT * JOINTS
    joint_of = np.arange(count) // ROWS_OF_JOINT
    touching = (BODIES[joint_of][:, None, :, None] == BODIES[joint_of][None, :, None, :]).any(axis=(2, 3))
    row, column = np.nonzero(np.tril(touching, -1))
    joints = {
        "wid": np.repeat(np.arange(worlds), JOINTS),
        "num_dynamic_cts": np.zeros(worlds * JOINTS),
        "num_kinematic_cts": np.full(worlds * JOINTS, ROWS_OF_JOINT),
        "dynamic_cts_offset_total_cts": np.zeros(worlds * JOINTS),
        "kinematic_cts_offset_total_cts": np.arange(worlds * JOINTS) * ROWS_OF_JOINT,
    }
    path = SimpleNamespace(
        model=SimpleNamespace(
            joints=SimpleNamespace(**{name: array(values, wp.int32) for name, values in joints.items()}),
            info=SimpleNamespace(total_cts_offset=offsets(worlds, count)),
        ),
        data=SimpleNamespace(bilateral_dim=filled(worlds, count)),
        size=SimpleNamespace(num_worlds=worlds),
    )
    pairs = (np.repeat(np.arange(worlds), len(row)), np.tile(row, worlds), np.tile(column, worlds))
    found, reason = import_module(f"{DVI}.joint_blocks")._build_topology(path, *(array(p, wp.int32) for p in pairs))
    if found is None:
        raise RuntimeError(f"no elimination order: {reason}")
    return dict(found)


def joint_matrices(worlds: int, order: dict[str, Any]) -> np.ndarray:
    """Blocks of ``J J^T + I``, where each row of J has six elements for each body of its joint."""
    rows = np.array(order["order"])
    jacobian = np.zeros((worlds, len(rows), 6 * (JOINTS + 1)), np.float32)
    elements = normal(worlds, len(rows), 2, 6) / np.sqrt(np.float32(12))
    for position in np.flatnonzero(rows >= 0):
        for side, body in enumerate(BODIES[rows[position] // ROWS_OF_JOINT]):
            jacobian[:, position, 6 * body : 6 * body + 6] = elements[:, position, side]
    matrix = jacobian @ jacobian.transpose(0, 2, 1) + np.eye(len(rows), dtype=np.float32)
    blocks = matrix.reshape(worlds, order["ng"], 6, order["ng"], 6)
    return np.stack([blocks[:, i, :, j, :] for i, j in zip(order["rows"], order["cols"])], axis=1)


def joint_blocks(worlds: int, part: str) -> Row:
    """The factorization of 6x6 blocks of joints, a solve with it, or the response of 48 columns of contacts."""
    module = import_module(f"{DVI}.joint_blocks")
    order = elimination_order(worlds)
    n, blocks, groups, padded = order["n"], order["nb"], order["ng"], order["padded_n"]
    on = {name: array(values, wp.int32) for name, values in order.items() if not isinstance(values, int)}
    matrix = array(joint_matrices(worlds, order).ravel())
    factors = wp.zeros_like(matrix)
    inputs = [matrix, factors, *(on[name] for name in ("rows", "cols", "diagonal", "starts", "left", "right")), blocks]

    def factor() -> None:
        wp.launch_tiled(module._factor, dim=worlds, inputs=inputs, block_dim=32)

    if part == "factor":
        return Row((module._factor,), factor, {"factors": factors})
    factor()
    if part == "solve":
        b = array(normal(worlds * padded))
        x = wp.zeros_like(b)
        schedule = [on[name] for name in ("diagonal", "pstart", "previous", "fstart", "following", "rows", "cols")]
        arguments = [factors, x, filled(worlds, n), *schedule, blocks, groups, padded]

        def call() -> None:
            wp.copy(x, b)
            wp.launch_tiled(module._solve, dim=worlds, inputs=arguments, block_dim=32)

        return Row((module._solve,), call, {"x": x})
    columns, slots = 48, 2
    joints = np.array(order["order"]).reshape(groups, 6).max(axis=1) // ROWS_OF_JOINT
    touched = BODIES[joints][:, :, None] == 1 + np.arange(columns) % JOINTS  # the body of each contact's column
    masks = (touched.any(axis=1) << np.arange(groups)[:, None]).sum(axis=0).astype(np.uint64)
    kernel = module.make_response_kernel(True)
    result = wp.zeros(worlds * n * columns, dtype=wp.float32)
    arguments = [array(np.tile(masks, worlds), wp.uint64), array(normal(worlds * slots * 6 * columns)), columns, slots,
                 factors, on["diagonal"], on["pstart"], on["previous"], on["cols"], blocks, groups,
                 filled(worlds, n + columns), filled(worlds, n), offsets(worlds, n), offsets(worlds, n * columns),
                 on["order"], array(1.0 + 0.1 * normal(worlds * n)), None, result, on["lengths"], on["row_offsets"],
                 *[None] * 14]  # fmt: skip
    dim = (worlds, (n + 15) // 16)
    return Row(
        (kernel,), lambda: wp.launch_tiled(kernel, dim=dim, inputs=arguments, block_dim=32), {"response": result}
    )


def effort_limits(worlds: int, part: str) -> Row:
    """``EffortLimitCondensation`` with 12 limited efforts and 8 contacts: the Schur complement, or its recovery."""
    module, types = import_module(f"{DVI}.effort_limit_condensation"), import_module(f"{DVI}.types")
    efforts, contacts, joint_rows = 12, 8, 48
    units, rows = efforts + contacts, efforts + 3 * contacts
    stride, schur = joint_rows + rows, positive_definite(worlds, rows)
    config = types.DVIConfigStruct()
    config.tolerance, config.regularization, config.omega = 1e-4, 1e-6, 1.0
    config.max_alternating_iterations = config.inequality_sweeps_per_iteration = 8
    padding = np.zeros((worlds, joint_rows), np.float32)
    steps = np.tile(np.arange(units + 1), worlds)
    fields = {
        "contact_indices": array(np.arange(worlds * contacts), wp.int32),
        "nbc": filled(worlds, efforts), "nl": filled(worlds, 0), "nc": filled(worlds, contacts),
        "bcio": offsets(worlds, efforts), "cio": offsets(worlds, contacts), "uio": offsets(worlds, units),
        "bcgo": filled(worlds, joint_rows), "lcgo": filled(worlds, joint_rows + efforts),
        "ccgo": filled(worlds, joint_rows + efforts), "vio": offsets(worlds, stride),
        "mu": array(np.full(worlds * contacts, 0.5)),
        "lower": array(np.full(worlds * efforts, -100.0)), "upper": array(np.full(worlds * efforts, 100.0)),
        "P": array(np.ones(worlds * stride)), "vb": array(np.zeros(worlds * stride)),
        "raw_diag": array(np.ones(worlds * stride)),
        "diag": array(np.hstack([padding, schur.diagonal(axis1=1, axis2=2)]).ravel()),
        "njc": filled(worlds, joint_rows), "mio": offsets(worlds, rows * rows), "stride": filled(worlds, joint_rows),
        "schur": array(-schur.ravel()), "q": array(normal(worlds * stride)), "colors": filled(worlds, units),
        "ids": array(np.tile(np.arange(units), worlds), wp.int32),
        "color_starts": array(steps, wp.int32), "group_starts": array(steps, wp.int32),
        "config": array([config] * worlds, types.DVIConfigStruct), "status": wp.zeros(worlds, dtype=types.DVIStatus),
        "impulses": wp.zeros(worlds * stride, dtype=wp.float32),
    }  # fmt: skip
    empty = wp.zeros(1, dtype=wp.int32)
    inputs = [fields[module._INPUT_FIELDS[index]] if index in module._INPUT_FIELDS else empty for index in range(32)]
    made = module.EffortLimitCondensation(
        [list(range(efforts))] * worlds, device=wp.get_device(), schedule_capacity=units
    )
    work, target = made._work, made._overrides
    outputs = {"factor": work.factor, "response": work.response, "gradient": work.gradient, "schur": target[23],
               "diagonal": target[19]}  # fmt: skip
    if part == "recover":
        outputs = {"impulses": work.candidate, "q": work.candidate_q}
    kernel = module._condense if part == "condense" else module._recover_and_certify
    return Row((kernel,), lambda: made.prepare_candidates(inputs), outputs)
