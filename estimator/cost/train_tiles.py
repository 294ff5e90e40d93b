"""Train the tile model (``tiles.py``) on measured kernels; needs torch.

As NeuSight (ASPLOS'25, section 5): one network per family, SMAPE loss, AdamW. Unlike it, whole GPUs
are held out to choose between models (:func:`left_out`), the law's constants are shared by all
devices, and a measured device may differ from its generation by one penalised number only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator.catalog import load_device
from estimator.cost.tile_law import Bounds, Law, bounds
from estimator.cost.tiles import FAMILIES, PRODUCTS, SIZES, Launch, Network, TileModel
from estimator.lower.operators import moved_bytes
from estimator.operators import FloatArray
from estimator.samples import Samples

if TYPE_CHECKING:
    import torch

REFERENCE = (512,) * 8
"""Hidden layers of the paper; ``HIDDEN`` are those shipped."""
HIDDEN = (32, 32)
ROWS = 3000
"""Samples of a family and device that training draws, at random by the seed."""
ABOVE_FLOOR = 1.5
"""Samples below this multiple of the launch floor say nothing of the kernel."""
LARGE = 3e7
"""Bytes from which element-wise samples show the overhead as the intercept of a line."""
SHIFT_PENALTY = 0.05
START = Law(sharpness=3.0, flop_joules=17e-12, pascal_joules=15e-12, operand_joules=30e-12)
STEPS = 600
RATE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Training rows of one family on one device."""

    family: str
    device: str
    bound: Bounds
    log_seconds: FloatArray
    sizes: FloatArray


def fit_tiles(
    samples: Samples,
    *,
    hold_out: Sequence[str] = (),
    seed: int = 0,
    hidden: Sequence[int] = HIDDEN,
    steps: int = STEPS,
    rows: int = ROWS,
    provenance: Mapping[str, Any] | None = None,
) -> TileModel:
    """Fit all families that fp32 samples have; devices in ``hold_out`` are not looked at.

    Raises:
        ValueError: no fp32 forward sample of a known family is left.
    """
    kept = samples.take(
        np.isin(samples.ops.kind, FAMILIES)
        & (samples.ops.dtype == "fp32")
        & (samples.ops.phase == "forward")
        & ~np.isin(samples.device, list(hold_out))
    )
    if len(kept) == 0:
        raise ValueError(f"no fp32 forward sample of {', '.join(FAMILIES)} is left to fit")
    devices = np.unique(kept.device).tolist()
    launches = {name: _launch(kept.take(kept.device == name)) for name in devices}
    groups = _groups(kept, launches, seed, rows)
    law, networks = _train(groups, seed, tuple(hidden), steps)
    return TileModel(
        law=law,
        networks=networks,
        launches=launches,
        provenance={
            **(provenance or {}),
            "seed": seed,
            "hidden": list(hidden),
            "steps": steps,
            "devices": devices,
            "rows": {f"{g.family}/{g.device}": len(g.log_seconds) for g in groups},
        },
    )


def left_out(
    samples: Samples, devices: Sequence[str], *, seed: int = 0, **options: Any
) -> dict[tuple[str, str], tuple[float, float]]:
    """(mean APE, median signed error) by (device, family), each device predicted without its rows.

    Errors are of the samples' seconds, launch and all, above twice the floor.
    """
    scores = {}
    for name in devices:
        model = fit_tiles(samples, hold_out=[name], seed=seed, **options)
        device = load_device(name)
        mine = samples.take(samples.device == name)
        floor = _launch(mine).floor
        mine = mine.take((mine.seconds > 2 * floor) & np.isin(mine.ops.kind, FAMILIES))
        errors = model.isolated_seconds(mine.ops, device) / mine.seconds - 1
        for family in FAMILIES:
            chosen = errors[mine.ops.kind == family]
            if len(chosen):
                scores[name, family] = (float(np.abs(chosen).mean()), float(np.median(chosen)))
    return scores


def _launch(mine: Samples) -> Launch:
    """Floor: what the quickest samples read. Overhead: intercept of time over large arrays."""
    vector = mine.take(mine.ops.kind == "elementwise")
    if len(vector) < 50:
        floor = float(np.quantile(mine.seconds, 0.005))
        return Launch(overhead=min(10e-6, 0.5 * floor), floor=floor)
    floor = float(np.quantile(vector.seconds, 0.005))
    moved = moved_bytes(vector.ops)
    large = moved > LARGE
    if large.sum() < 10:
        return Launch(overhead=min(10e-6, 0.5 * floor), floor=floor)
    # Least squares of relative errors, so that the longest samples do not decide alone.
    seconds, size = vector.seconds[large], moved[large]
    columns = np.stack([1 / seconds, size / seconds], axis=1)
    intercept = float(np.linalg.lstsq(columns, np.ones(len(seconds)), rcond=None)[0][0])
    return Launch(overhead=float(np.clip(intercept, 0.0, floor)), floor=floor)


def _groups(samples: Samples, launches: Mapping[str, Launch], seed: int, most: int) -> list[Group]:
    chance = np.random.default_rng(seed)
    groups = []
    for family in FAMILIES:
        for device in np.unique(samples.device[samples.ops.kind == family]).tolist():
            mine = np.flatnonzero((samples.ops.kind == family) & (samples.device == device))
            floor = float(np.quantile(samples.seconds[mine], 0.005))
            above = mine[samples.seconds[mine] > ABOVE_FLOOR * floor]
            mine = above if len(above) else mine
            mine = np.sort(chance.permutation(mine)[:most])
            ops = samples.ops.take(mine)
            work = samples.seconds[mine] - launches[device].overhead
            groups.append(
                Group(
                    family=family,
                    device=device,
                    bound=bounds(ops, load_device(device), product=family in PRODUCTS),
                    log_seconds=np.log(np.maximum(work, 0.1 * samples.seconds[mine])),
                    sizes=np.stack([getattr(ops, size) for size in SIZES], axis=1),
                )
            )
    return groups


def _train(
    groups: Sequence[Group], seed: int, hidden: tuple[int, ...], steps: int
) -> tuple[Law, dict[str, Network]]:
    """The products first, with the law's constants; then each vector family by itself."""
    networks: dict[str, Network] = {}
    law = START
    products = [group for group in groups if group.family in PRODUCTS]
    if products:
        law, networks = _fit(products, seed, hidden, steps, START, free=True)
    for family in FAMILIES:
        mine = [group for group in groups if group.family == family]
        if mine and family not in PRODUCTS:
            networks |= _fit(mine, seed, hidden, steps, law, free=False)[1]
    return law, networks


def _fit(
    groups: Sequence[Group],
    seed: int,
    hidden: tuple[int, ...],
    steps: int,
    start: Law,
    *,
    free: bool,
) -> tuple[Law, dict[str, Network]]:
    import torch

    torch.manual_seed(seed)
    families = [family for family in FAMILIES if any(g.family == family for g in groups)]
    scaling = {family: _scaling([g for g in groups if g.family == family]) for family in families}
    layers = {family: _layers(len(scaling[family][0]), hidden) for family in families}
    constants = torch.tensor(
        [
            start.sharpness,
            1e12 * start.flop_joules,
            1e12 * start.pascal_joules,
            1e12 * start.operand_joules,
        ],
        dtype=torch.float32,
    ).log()
    constants.requires_grad_(free)
    shifts = torch.zeros(len(groups), requires_grad=True)
    rows = [_tensors(group, scaling[group.family]) for group in groups]
    weights = [p for family in families for p in layers[family].parameters()]
    optimiser = torch.optim.AdamW(
        [{"params": weights, "weight_decay": 1e-3}, {"params": [shifts], "weight_decay": 0.0}]
        + ([{"params": [constants], "weight_decay": 0.0}] if free else []),
        lr=RATE,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = SHIFT_PENALTY * (shifts**2).sum() / len(groups)
        for group, row, shift in zip(groups, rows, shifts, strict=True):
            outputs = layers[group.family](row["features"])
            error = _log_seconds(row, outputs, shift, constants, group) - row["log_seconds"]
            # SMAPE of p and y is twice tanh(|log p/y| / 2).
            loss = loss + 2 * torch.tanh(error.abs() / 2).mean() / len(groups)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    sharpness, flop, pascal, operand = constants.detach().exp().tolist()
    law = Law(
        sharpness=sharpness,
        flop_joules=1e-12 * flop,
        pascal_joules=1e-12 * pascal,
        operand_joules=1e-12 * operand,
    )
    return (law if free else start), {
        family: _network(family, layers[family], scaling[family], groups, shifts.tolist())
        for family in families
    }


def _log_seconds(
    row: Mapping[str, torch.Tensor],
    outputs: torch.Tensor,
    shift: torch.Tensor,
    constants: torch.Tensor,
    group: Group,
) -> torch.Tensor:
    """The law of ``tiles.py`` in logarithms; the power limit is a maximum."""
    import torch

    sharpness, flop, pascal, operand = constants.exp()
    log_share = torch.nn.functional.logsigmoid(outputs[:, 0] + shift)
    log_share = log_share + torch.log1p(-torch.sigmoid(outputs[:, 1]) / row["waves"])
    if group.family not in PRODUCTS:
        return row["memory"] - log_share
    base = torch.logaddexp(sharpness * row["arithmetic"], sharpness * row["memory"]) / sharpness
    joules = pascal if load_device(group.device).architecture == "pascal" else flop
    power = 1e-12 * (joules * row["flop_energy"] + operand * row["operand_energy"])
    return torch.maximum(base - log_share, torch.log(power + 1e-12))


def _tensors(
    group: Group, scaling: tuple[FloatArray, FloatArray, FloatArray, FloatArray]
) -> dict[str, torch.Tensor]:
    import torch

    centre, scale, low, high = scaling
    features = (np.clip(group.bound.features, low, high) - centre) / scale
    columns = {
        name: getattr(group.bound, name)
        for name in ("arithmetic", "memory", "flop_energy", "operand_energy", "waves")
    }
    columns |= {"features": features, "log_seconds": group.log_seconds}
    return {name: torch.tensor(values, dtype=torch.float32) for name, values in columns.items()}


def _scaling(groups: Sequence[Group]) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    features = np.concatenate([group.bound.features for group in groups])
    low, high = features.min(axis=0), features.max(axis=0)
    return features.mean(axis=0), features.std(axis=0) + 1e-3, low, high


def _layers(features: int, hidden: tuple[int, ...]) -> torch.nn.Sequential:
    import torch

    parts: list[torch.nn.Module] = []
    for width in hidden:
        parts += [torch.nn.Linear(features, width), torch.nn.ReLU()]
        features = width
    last = torch.nn.Linear(features, 2)
    with torch.no_grad():
        # Half the speed of the bounds, and a last wave that costs little: where learning starts.
        last.bias.copy_(torch.tensor([1.0, -2.0]))
    return torch.nn.Sequential(*parts, last)


def _network(
    family: str,
    layers: torch.nn.Sequential,
    scaling: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    groups: Sequence[Group],
    shifts: Sequence[float],
) -> Network:
    state = [p.detach().numpy().copy() for p in layers.parameters()]
    mine = [(group, shift) for group, shift in zip(groups, shifts, strict=True)]
    sizes = np.concatenate([group.sizes for group, _ in mine if group.family == family])
    if family == "elementwise":
        sizes = np.prod(sizes, axis=1, keepdims=True)
    return Network(
        weights=tuple(np.ascontiguousarray(weight.T) for weight in state[::2]),
        biases=tuple(state[1::2]),
        centre=scaling[0],
        scale=scaling[1],
        low=scaling[2],
        high=scaling[3],
        least=sizes.min(axis=0),
        most=sizes.max(axis=0),
        shifts={group.device: shift for group, shift in mine if group.family == family},
    )
