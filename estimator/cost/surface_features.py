"""What the efficiency of a product or of fused attention depends on, as columns.

Sizes, time at the device's peak and at its bandwidth, and how blocks of a kernel's output fill
whole waves of multiprocessors: the quantisation that a smooth curve cannot show (NeuSight,
ASPLOS'25, section 4). Nothing names the device, so that a surface of several can price another.
"""

from __future__ import annotations

import numpy as np

from estimator.cluster import Device
from estimator.cost.kernels import product_seconds
from estimator.lower.operators import moved_bytes
from estimator.operators import FloatArray, Operators

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Rows and columns of a block's output: what CUTLASS and cuBLAS ship for tensor cores."""
QUERY_BLOCK = 128
"""Queries of a block in FlashAttention 2 and 3."""
MICROSECOND = 1e-6


def floor_seconds(ops: Operators, device: Device, sustained: float = 1.0) -> FloatArray:
    """Roofline of one run, shape (N,): a share of the peak, or all bytes at the full bandwidth."""
    work = product_seconds(ops, device) / sustained
    return np.maximum(work, moved_bytes(ops) / device.bandwidth)


def watts_per_flops(device: Device, dtype: str) -> float:
    """Watts that a board may draw for each TFLOP/s of its peak."""
    return device.tdp_watts / (device.peaks[dtype.removesuffix("_block")] * 1e-12)


def features(ops: Operators, device: Device) -> FloatArray:
    """Columns of N rows of one kind, shape (N, F)."""
    peak, moved = product_seconds(ops, device), moved_bytes(ops)
    memory = moved / device.bandwidth
    columns = [
        np.log(ops.m),
        np.log(ops.n),
        np.log(ops.k),
        np.log(peak / MICROSECOND),
        np.log(memory / MICROSECOND),
        np.log(peak / memory),
        np.log(moved / device.l2_bytes),
    ]
    if ops.kind[0] == "attention":
        columns += _attention_columns(ops, device)
    else:
        columns += _tile_columns(ops, device, peak, np.maximum(peak, memory))
    return np.stack(columns, axis=1)


def _attention_columns(ops: Operators, device: Device) -> list[FloatArray]:
    heads = ops.batch * ops.heads
    blocks = heads * np.ceil(ops.m / QUERY_BLOCK) / device.sms
    return [
        np.log(heads),
        np.log(ops.heads / ops.kv_heads),
        ops.causal,
        np.log(blocks),
        blocks / np.ceil(blocks),
        (ops.m / QUERY_BLOCK) / np.ceil(ops.m / QUERY_BLOCK),
    ]


def _tile_columns(
    ops: Operators, device: Device, peak: FloatArray, floor: FloatArray
) -> list[FloatArray]:
    """For each tile: waves, how full the last wave and tiles are, padded time over the floor."""
    work = peak / (ops.batch * ops.m * ops.n)
    columns: list[FloatArray] = []
    padded: list[FloatArray] = []
    for rows, width in TILES:
        across, down = np.ceil(ops.m / rows), np.ceil(ops.n / width)
        waves = ops.batch * across * down / device.sms
        whole = np.ceil(waves)
        padded.append(np.log(whole * device.sms * rows * width * work / floor))
        columns += [
            np.log(waves),
            waves / whole,
            (ops.m / rows / across) * (ops.n / width / down),
            padded[-1],
        ]
    stacked = np.stack(padded)
    return [*columns, stacked.min(axis=0), stacked[:3].min(axis=0)]
