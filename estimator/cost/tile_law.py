"""What bounds an fp32 kernel before any network speaks: tiles, waves, lanes, memory and watts.

NeuSight (Lee et al., ASPLOS'25, section 4) cuts a kernel into tiles, runs ``waves`` of them over
the multiprocessors and learns the utilisation of the roofline within a wave. Here the bounds of a
wave also know two things that five GPUs cannot teach a network:

- *Lanes.* An SGEMM thread with 8 x 8 accumulators reads 16 floats from shared memory for its 64
  multiply-adds. A multiprocessor delivers 128 bytes a clock: half of that feeds 64 lanes, all of
  it 128 lanes (method: Lai and Seznec, CGO'13, upper bounds of SGEMM).
- *Watts.* A chip at its power limit lowers its clock until joules over seconds meet the limit
  (Choi et al., IPDPS'14, power-capped roofline). Joules of a FLOP fall with the process node.

Memory is DRAM for what does not fit into L2 and L2 for what does. Layer norm reads its rows twice;
where the rows at work fit into L2, the second reading is free of DRAM, and what binds is what a
multiprocessor passes through in a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Device
from estimator.lower.operators import element_bytes, flops, moved_bytes
from estimator.operators import FloatArray, Operators

TILES = np.array(
    [
        (128, 128),
        (128, 64),
        (64, 128),
        (64, 64),
        (128, 32),
        (32, 128),
        (64, 32),
        (32, 64),
        (32, 32),
    ],
    dtype=np.float64,
)
"""Rows and columns of a block's output, largest first: those of cuBLAS's SGEMM kernels."""
OPERAND_COST = 10.0
"""Multiply-adds that loading one operand element of a tile takes the place of, shape-wise."""
PROLOGUE = 8.0
"""Depth of the reduction whose time goes to filling and draining a block's pipeline."""
MOST_SPLITS = 8
LEAST_SPLIT_DEPTH = 256
"""A reduction is split over blocks only while each keeps this depth and SMs would idle."""
VECTOR_TILE = 512
"""Elements of a block of PyTorch's vectorised element-wise kernel: 128 threads x 4."""
WARP_COLUMNS = 1024
"""Columns up to which PyTorch's softmax keeps a row in registers and reads it once."""
RESIDENT = 16
"""Vector blocks that one multiprocessor holds at a time: 2048 threads of 128."""
SHARED_NORM = 3.0
"""Norm that joins arithmetic and shared memory. Half-loaded shared memory costs 4 % by it: V100's
best large products, with 64 lanes, reach 0.96 of the peak; a full one then costs 21 %."""
FEW_LANES: Mapping[str, int] = {"volta": 0, "turing": 0, "pascal": 56, "ampere": 98}
"""Architectures with 64 fp32 lanes a multiprocessor, from how many multiprocessors on: GP100 and
GA100 have them, the smaller chips of Pascal (P4) and Ampere (A10) have 128, as all later ones."""
USABLE_POWER = 0.85
"""Share of the board's power limit that is left to work, beside leakage, fans and regulators."""
ENERGY: Mapping[str, tuple[str, float]] = {
    "pascal": ("pascal", 1.0),
    "volta": ("volta", 1.0),
    "turing": ("volta", 1.0),
    "ampere": ("ampere", 1.0),
    "ada": ("volta", 0.36),
    "hopper": ("volta", 0.36),
    "blackwell": ("volta", 0.36),
}
"""Joules of a FLOP by architecture: those measured on one, scaled. TSMC's own figures at equal
speed: 12 nm takes 25 % less than 16 nm, 10 nm 35 % less than 16 nm, 7 nm 40 % less than 10 nm, 5 nm
(4N is of its family) 30 % less than 7 nm: 0.27 of 16 nm against 0.75. AMD's matrix cores have no
entry and no limit."""
L2_RATE = 32.0
"""Bytes a clock and multiprocessor from L2: 26 on V100 and 47 on A100 by NVIDIA's white papers."""
L2_FULL = 0.5
"""Share of L2 up to which all bytes are found there; at its whole size none are."""
AMD = ("cdna1", "cdna2", "cdna3", "cdna4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Fitted constants that all devices share."""

    sharpness: float
    """Norm that joins arithmetic and memory time: infinite is a perfect overlap."""
    norm_rate: float
    """Bytes a clock that layer norm passes through one multiprocessor."""
    joules: Mapping[str, float]
    """Least joules of an fp32 FLOP by measured architecture (see ``ENERGY``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of N kernels, shape (N,): logarithms of least seconds, what they draw, and shape features."""

    arithmetic: FloatArray
    """log seconds of all waves at the peak that shared memory allows; of layer norm, of its bytes
    at one byte a clock; -inf for softmax and element-wise kernels."""
    memory: FloatArray
    """log seconds of the bytes at the data sheet's bandwidth, or L2's."""
    power: FloatArray
    """log seconds of the power limit at one joule a FLOP; -inf where none is known."""
    waves: FloatArray
    features: FloatArray
    """(N, F). Of shape and multiprocessors alone, so that seconds fall with peak and bandwidth."""


def lanes(device: Device) -> int:
    """fp32 lanes of a multiprocessor (AMD: of a compute unit, matrix cores and all)."""
    return 64 if device.sms >= FEW_LANES.get(device.architecture, device.sms + 1) else 128


def shared_memory_share(device: Device) -> float:
    """Share of the peak that large products keep beside their shared-memory reads, in (0, 1]."""
    loaded = lanes(device) / 128
    return float((1 + loaded**SHARED_NORM) ** (-1 / SHARED_NORM))


def bounds(ops: Operators, device: Device, *, product: bool) -> Bounds:
    """Bounds of forward kernels (see ``lower.operators.as_run``) of one family on a device."""
    return _product_bounds(ops, device) if product else _vector_bounds(ops, device)


def tiles(ops: Operators, device: Device) -> tuple[NDArray[np.int64], FloatArray, FloatArray]:
    """Tile (index into ``TILES``), splits of the reduction and waves of each product.

    The tile with the least work over all waves: padded outputs times the depth, with what loading
    operands costs a small tile. It knows the number of multiprocessors, never peak or bandwidth.
    """
    best = np.full(len(ops), np.inf)
    chosen = np.zeros(len(ops), dtype=np.int64)
    blocks = np.ones(len(ops))
    for index, (rows, columns) in enumerate(TILES):
        count = ops.batch * np.ceil(ops.m / rows) * np.ceil(ops.n / columns)
        depth = ops.k * (1 + OPERAND_COST * (1 / rows + 1 / columns)) + PROLOGUE
        cost = np.ceil(count / device.sms) * rows * columns * depth
        better = cost < best
        best = np.where(better, cost, best)
        chosen = np.where(better, index, chosen)
        blocks = np.where(better, count, blocks)
    idle = np.floor(device.sms / blocks)
    splits = np.clip(np.minimum(idle, ops.k // LEAST_SPLIT_DEPTH), 1, MOST_SPLITS)
    splits = np.where(ops.kind == "linear", splits, 1.0)
    return chosen, splits, np.ceil(blocks * splits / device.sms)


def clock(device: Device) -> float:
    """Hz at which the data sheet's fp32 peak holds."""
    return device.peaks["fp32"] / (2 * lanes(device) * device.sms)


def memory_seconds(moved: FloatArray, device: Device) -> FloatArray:
    """Seconds of bytes: from L2 as far as the kernel's data stays in it, else from DRAM."""
    kept = np.clip((1 - moved / device.l2_bytes) / (1 - L2_FULL), 0.0, 1.0)
    l2 = max(L2_RATE * device.sms * clock(device), device.bandwidth)
    return np.asarray(moved * ((1 - kept) / device.bandwidth + kept / l2), dtype=np.float64)


def _product_bounds(ops: Operators, device: Device) -> Bounds:
    chosen, splits, waves = tiles(ops, device)
    rows, columns = TILES[chosen].T
    work, moved = flops(ops), moved_bytes(ops)
    blocks = ops.batch * np.ceil(ops.m / rows) * np.ceil(ops.n / columns)
    fill = ops.batch * ops.m * ops.n / (blocks * rows * columns)
    rounds = blocks * splits / device.sms
    # Padding of tiles and of the last wave is arithmetic that runs for nothing.
    padded = work / fill * (waves / rounds)
    aligned = [np.where(size % 4 == 0, 1.0, 0.0) for size in (ops.m, ops.n, ops.k)]
    features = [
        # Kernels that cuBLAS ships together: maxwell_, volta_, and those of Ampere for all later.
        *_among(ops, device, ("pascal",), ("volta", "turing")),
        np.log2(ops.k / splits),
        np.log2(splits),
        np.log2(rows * columns),
        np.log2(rows / columns),
        np.log2(1 + rounds),
        np.log2(rounds / waves),
        np.log2(fill),
        *aligned,
        np.log2(work / moved),
        np.log2(moved),
    ]
    watts = USABLE_POWER * device.tdp_watts
    _, scale = ENERGY.get(device.architecture, ("", 0.0))
    with np.errstate(divide="ignore"):
        power = np.log(work * scale / watts)
    return Bounds(
        arithmetic=np.log(padded / (device.peaks["fp32"] * shared_memory_share(device))),
        memory=np.log(memory_seconds(moved, device)),
        power=power,
        waves=waves,
        features=np.stack(features, axis=1),
    )


def _vector_bounds(ops: Operators, device: Device) -> Bounds:
    """Element-wise kernels know bytes alone; softmax and norms have a block for each row."""
    moved = moved_bytes(ops)
    flat, norm = ops.kind == "elementwise", ops.kind == "layer_norm"
    blocks = np.where(flat, ops.m * ops.n / VECTOR_TILE, ops.m)
    columns = np.where(flat, 1.0, ops.n)
    waves = np.ceil(np.maximum(blocks / (RESIDENT * device.sms), 1e-9))
    at_work = RESIDENT * device.sms * columns * element_bytes(ops) / device.l2_bytes
    again = np.where(norm, np.clip((at_work - L2_FULL) / (1 - L2_FULL), 0.0, 1.0), 0.0)
    reread = again * moved * ops.reads / (ops.reads + ops.writes)
    old, volta = _among(ops, device, ("pascal",), ("volta", "turing"))
    features = [
        *_among(ops, device, AMD),
        # One kernel serves all NVIDIA parts; layer norm's differences are those of the bounds.
        np.where(norm, 0.0, old),
        np.where(norm, 0.0, volta),
        np.where(norm, 0.0, np.log2(moved)),
        np.log2(waves),
        np.log2(columns),
        np.where(columns > WARP_COLUMNS, 1.0, 0.0),
    ]
    with np.errstate(divide="ignore"):
        through = np.log(np.where(norm, moved, 0.0) / (device.sms * clock(device)))
    return Bounds(
        arithmetic=through,
        memory=np.log(memory_seconds(moved, device) + reread / device.bandwidth),
        power=np.full(len(ops), -np.inf),
        waves=waves,
        features=np.stack(features, axis=1),
    )


def _among(ops: Operators, device: Device, *groups: tuple[str, ...]) -> list[FloatArray]:
    return [np.full(len(ops), float(device.architecture in group)) for group in groups]


def base_seconds(bound: Bounds, law: Law, device: Device, *, product: bool) -> FloatArray:
    """Seconds at full utilisation: arithmetic and memory overlapped, within the power limit."""
    sharp = law.sharpness
    arithmetic = bound.arithmetic if product else bound.arithmetic - np.log(law.norm_rate)
    most = np.maximum(arithmetic, bound.memory)
    joined = np.exp(sharp * (arithmetic - most)) + np.exp(sharp * (bound.memory - most))
    power = bound.power + log_joules(law, device)
    return np.asarray(np.exp(np.maximum(most + np.log(joined) / sharp, power)), dtype=np.float64)


def log_joules(law: Law, device: Device) -> float:
    """Of a FLOP, before ``ENERGY`` scales it; -inf (no limit) where none was measured."""
    source, _ = ENERGY.get(device.architecture, ("", 0.0))
    return float(np.log(law.joules[source])) if source in law.joules else -np.inf
