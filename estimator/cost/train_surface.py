"""Fitting surfaces of efficiency on tables of samples (torch, of the extra ``learn``).

A table is reduced to the median of its collections at each shape: several libraries measured the
same device, and differ by 1 to 8 %.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Device
from estimator.cost import rounding
from estimator.cost.kernels import product_seconds
from estimator.cost.network import Network
from estimator.cost.oblivious import fit_trees
from estimator.cost.parameters import load_torch
from estimator.cost.surface import ANY, SIZES, Surface, SurfaceModel
from estimator.cost.surface_features import features, floor_seconds, watts_per_flops
from estimator.lower.operators import flops
from estimator.operators import FloatArray
from estimator.sample_training import WEIGHT_GRADIENT
from estimator.samples import Samples, medians, pooled, provenance

LEAST_M = 32
"""Rows of a product below this are of decoding, whose kernels (GEMV) are others."""
LEAST_ROWS = 200
WIDTH = 96
BATCH = 1024
RATE = 1e-2
WEIGHT_DECAY = 1e-4
LARGE_FLOPS = 5e11
"""Products of a millisecond or so: long enough for a board to reach the power it may draw."""
ROWS_OF_ANY = 8000
"""Of each device in a surface for any: none outweighs another."""
GRAPHICS = ("l40s", "l4", "a10", "rtx-4090")
"""Boards whose clocks their power holds far lower than those of training parts: with L40S among
them, the surface of the others misses more when each family in turn is left out."""
ATTENTION_KERNELS = ("flash1", "flash2", "cudnn")
"""Those that stacks ask for; the rest of a table's attention is not fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long a surface is fitted: passes over the rows, and trees for what is left."""

    epochs: int
    trees: int


OWN = Effort(epochs=80, trees=400)
OF_ANY = Effort(epochs=0, trees=400)
"""Trees alone: a network carries the slopes of the fitted devices over to others, and misses more
when each family in turn is left out."""


def fit_surfaces(samples: Samples, *, hold_out: Sequence[str] = (), seed: int = 0) -> SurfaceModel:
    """A surface for each device, kind, dtype and attention kernel; of products, one for any device.

    Args:
        samples: Measured products and attention, forward; other kinds and phases are passed over.
        hold_out: Devices whose samples are left out.
        seed: Decides weights, order and trees: equal samples and seed give an equal model.

    Raises:
        ValueError: no rows of a kind and dtype are enough to fit on.
    """
    kept = trainable(samples, hold_out)
    surfaces: list[Surface] = []
    for key, tables in grouped(kept).items():
        for device, table in tables.items():
            surfaces.append(fit_surface(table, device, [device], key, OWN, seed=seed))
        if key[0] == "linear" and len(set(tables) - set(GRAPHICS)) > 1:
            surfaces.append(fit_shared(tables, key, seed=seed))
    if not surfaces:
        raise ValueError(f"no device has {LEAST_ROWS} forward rows of a product or attention")
    return SurfaceModel(surfaces=tuple(surfaces), provenance=provenance(samples, hold_out, seed))


Key = tuple[str, str, str]
"""kind, dtype, name."""


def trainable(samples: Samples, hold_out: Sequence[str]) -> Samples:
    """Forward products of ``LEAST_M`` rows or more, and attention of known kernels.

    Neither products of a group nor those that add to a sum: their times hold more than a product.
    """
    ops = samples.ops
    attention = (ops.kind == "attention") & np.isin(ops.name, ATTENTION_KERNELS)
    product = (ops.kind == "linear") & (ops.m >= LEAST_M) & (ops.batch == 1)
    product &= ~np.char.startswith(ops.name, WEIGHT_GRADIENT)
    keep = (product | attention) & (ops.phase == "forward")
    keep &= ~np.isin(samples.device, list(hold_out))
    named = replace(ops, name=np.where(attention, ops.name, ""))
    return replace(samples, ops=named).take(keep)


def grouped(samples: Samples) -> dict[Key, dict[str, Samples]]:
    """Tables of enough rows, by kind, dtype and name, then by device."""
    found: dict[Key, dict[str, Samples]] = {}
    ops = samples.ops
    labels = np.stack([ops.kind, ops.dtype, ops.name, samples.device], axis=1)
    for label in np.unique(labels, axis=0):
        rows = (labels == label).all(axis=1)
        table = medians(samples.take(rows))
        if len(table) >= LEAST_ROWS:
            kind, dtype, name, device = (str(part) for part in label)
            found.setdefault((kind, dtype, name), {})[device] = table
    return found


def fit_shared(tables: Mapping[str, Samples], key: Key, *, seed: int) -> Surface:
    """The surface for ``ANY`` device, of the tables of training parts."""
    from estimator.catalog import load_device

    shared = [device for device in tables if device not in GRAPHICS]
    draw = np.random.default_rng(seed)
    table = pooled([_some(tables[device], draw) for device in shared])
    devices = [load_device(device) for device in shared]
    shares = {device.name: sustained(tables[device.name], device) for device in devices}
    return fit_surface(table, ANY, shared, key, OF_ANY, seed=seed, shares=shares)


def sustained(table: Samples, device: Device) -> float:
    """Median share of the peak of products of ``LARGE_FLOPS`` or more; at most 1, and 1 of none."""
    share = product_seconds(table.ops, device) / table.seconds
    large = share[flops(table.ops) >= LARGE_FLOPS]
    return min(float(np.median(large)), 1.0) if len(large) else 1.0


def _power(devices: Sequence[Device], shares: Mapping[str, float], dtype: str) -> FloatArray:
    """One point an architecture, (K, 2): means of the logarithms of its devices' points."""
    points: dict[str, list[tuple[float, float]]] = {}
    for device in devices:
        point = np.log(watts_per_flops(device, dtype)), np.log(shares[device.name])
        points.setdefault(device.architecture, []).append(point)
    means = np.exp([np.mean(mine, axis=0) for mine in points.values()])
    return np.asarray(means[np.argsort(means[:, 0])])


def _some(table: Samples, draw: np.random.Generator) -> Samples:
    return table.take(np.sort(draw.permutation(len(table))[:ROWS_OF_ANY]))


def fit_surface(
    table: Samples,
    name: str,
    measured: Sequence[str],
    key: Key,
    effort: Effort,
    *,
    seed: int,
    shares: Mapping[str, float] | None = None,
) -> Surface:
    """One surface of the rows of one kind, for a device (or ``ANY``), measured on some.

    ``shares`` of the peak are what the floors are at, by device; of the whole peak without.
    """
    from estimator.catalog import load_device

    kind, dtype, kernel = key
    devices = [load_device(device) for device in measured]
    columns, excess = _design(table, devices, shares or {})
    network = fit_network(columns, excess, effort.epochs, seed=seed) if effort.epochs else None
    smooth = network.exact_outputs(columns)[:, 0] if network else 0.0
    sizes = np.stack([getattr(table.ops, size) for size in SIZES], axis=1)
    own = devices[0] if name != ANY else None
    return Surface(
        kind=kind,
        dtype=dtype,
        name=kernel,
        device=name,
        reference=_reference(own, dtype) if own else {},
        power=_power(devices, shares, dtype) if shares else np.zeros((0, 2)),
        network=network,
        trees=fit_trees(columns, rounding.targets(excess - smooth), trees=effort.trees, seed=seed),
        least=sizes.min(axis=0),
        most=sizes.max(axis=0),
        backward_over_forward=_backward_ratio(kernel, devices) if kind == "attention" else 1.0,
        rows=len(table),
    )


def _design(
    table: Samples, devices: Sequence[Device], shares: Mapping[str, float]
) -> tuple[FloatArray, FloatArray]:
    """Features (N, F) and log seconds over the floor (N,), device by device."""
    columns, excess = [], []
    for device in devices:
        rows = table.device == device.name
        ops = table.ops.take(rows)
        columns.append(features(ops, device))
        floor = floor_seconds(ops, device, shares.get(device.name, 1.0))
        excess.append(np.log(table.seconds[rows] / floor))
    return np.concatenate(columns), np.concatenate(excess)


def _reference(device: Device, dtype: str) -> dict[str, float]:
    return {
        "peak": device.peaks[dtype.removesuffix("_block")],
        "bandwidth": device.bandwidth,
        "l2_bytes": device.l2_bytes,
        "sms": float(device.sms),
    }


def _backward_ratio(kernel: str, devices: Sequence[Device]) -> float:
    """Backward over forward seconds: measured where ``roofline.yaml`` says so, by kernel."""
    from estimator.cost.roofline import roofline

    ratios = [roofline(device).attention[kernel].backward_over_forward for device in devices]
    return float(np.median(ratios))


def fit_network(columns: FloatArray, values: FloatArray, epochs: int, *, seed: int) -> Network:
    """Two hidden layers of ``WIDTH`` on absolute errors of ``values`` (N,), by AdamW.

    Raises:
        ValueError: torch is not installed.
    """
    torch = load_torch()
    torch.manual_seed(seed)
    scale = columns.std(axis=0)
    fresh = Network(
        weights=(),
        biases=(),
        centre=columns.mean(axis=0),
        scale=np.where(scale > 0, scale, 1.0),
        low=columns.min(axis=0),
        high=columns.max(axis=0),
    )
    inputs = torch.from_numpy(fresh.inputs(columns)).double()
    targets = torch.from_numpy(rounding.targets(values))
    layers = (columns.shape[1], WIDTH, WIDTH, 1)
    modules = []
    for fan_in, fan_out in itertools.pairwise(layers):
        modules += [torch.nn.Linear(fan_in, fan_out, dtype=torch.float64), torch.nn.ReLU()]
    network = torch.nn.Sequential(*modules[:-1])
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY)
    steps = epochs * len(range(0, len(inputs), BATCH))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, total_steps=steps, pct_start=0.1
    )
    for batch in _batches(len(inputs), epochs, seed):
        loss = (network(inputs[batch]).squeeze(1) - targets[batch]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        rounding.step(optimizer)
        schedule.step()
    linear = [module for module in network if isinstance(module, torch.nn.Linear)]
    return replace(
        fresh,
        weights=tuple(module.weight.detach().numpy().T.astype(np.float32) for module in linear),
        biases=tuple(module.bias.detach().numpy().astype(np.float32) for module in linear),
    )


def _batches(rows: int, epochs: int, seed: int) -> Iterator[NDArray[np.int64]]:
    draw = np.random.default_rng(seed)
    for _ in range(epochs):
        order = draw.permutation(rows)
        for start in range(0, rows, BATCH):
            yield order[start : start + BATCH]
