"""Train the tile model (``tiles.py``) on measured kernels; needs torch.

As NeuSight (ASPLOS'25, section 5): one network per family, SMAPE loss, AdamW. Unlike it, whole GPUs
are held out to choose between models (:func:`left_out`), the law's constants are shared by all
devices, and a measured device may differ from its generation by one penalised number only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from estimator.catalog import load_device
from estimator.cost import rounding
from estimator.cost.network import Matrix, Network
from estimator.cost.parameters import load_torch
from estimator.cost.tile_law import ENERGY, USABLE_POWER, Bounds, Law, bounds, log_joules
from estimator.cost.tiles import FAMILIES, PRODUCTS, SIZES, Family, Launch, TileModel
from estimator.lower.operators import flops, moved_bytes
from estimator.operators import FloatArray
from estimator.samples import Samples, provenance

if TYPE_CHECKING:
    import torch

REFERENCE = (512,) * 8
"""Hidden layers of the paper, which need a tenth of ``RATE``; ``HIDDEN`` are those shipped."""
HIDDEN = (32, 32)
MEMBERS = 3
"""Networks of a family, whose outputs are averaged: training from one start is a draw of many."""
ROWS = 2000
"""Samples of a family and device that training draws, at random by the seed."""
ABOVE_FLOOR = 2.5
"""Samples below this multiple of the launch floor say too little of the kernel."""
OVERHEAD = 0.7
"""Of the launch floor, what a long kernel's time holds beside its work where no line shows it: the
median of element-wise intercepts over floors. ``HIGHEST`` is the most that a line may claim."""
HIGHEST = 1.5
LONG = 3e7
"""Bytes from which a vector kernel's time over bytes is a line."""
LONGEST_LAUNCH = 1e-4
"""Seconds: quickest samples that take longer are long kernels, not launches (P100: 93 us)."""
FLOOR = 0.005
"""Quantile of a family's times on a device that is its launch floor."""
LARGE = 0.8
"""Quantile of FLOPs above which products can reach the power limit; the best ``FRONTIER`` of their
rates define the joules of a FLOP."""
FRONTIER = 0.99
SHIFT_PENALTY = 0.05
SHARPNESS = 3.0
NORM_RATE = 10.0
"""Where the search for the law's two constants starts."""
ABSENT = -100.0
"""log seconds of a bound that is absent: -inf has no gradient."""
STEPS = 500
RATE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Training rows of one family on one device."""

    family: str
    device: str
    bound: Bounds
    launch: Launch
    log_seconds: FloatArray
    """Of the work: the samples' seconds without the launch overhead."""
    sizes: FloatArray


def fit_tiles(
    samples: Samples,
    *,
    hold_out: Sequence[str] = (),
    seed: int = 0,
    hidden: Sequence[int] = HIDDEN,
    members: int = MEMBERS,
    steps: int = STEPS,
    rate: float = RATE,
    rows: int = ROWS,
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
    load_torch()
    devices = np.unique(kept.device).tolist()
    groups = _groups(kept, seed, rows)
    law, networks = _train(groups, _joules(kept), seed, tuple(hidden), members, steps, rate)
    launches: dict[str, dict[str, Launch]] = {name: {} for name in devices}
    for group in groups:
        launches[group.device][group.family] = group.launch
    return TileModel(
        law=law,
        families=networks,
        launches=launches,
        provenance={
            **provenance(samples, hold_out, seed),
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
        mine = samples.take((samples.device == name) & np.isin(samples.ops.kind, FAMILIES))
        floors = [model.launch(str(family), device).floor for family in mine.ops.kind]
        mine = mine.take(mine.seconds > 2 * np.array(floors))
        errors = model.isolated_seconds(mine.ops, device) / mine.seconds - 1
        for family in FAMILIES:
            chosen = errors[mine.ops.kind == family]
            if len(chosen):
                scores[name, family] = (float(np.abs(chosen).mean()), float(np.median(chosen)))
    return scores


def _joules(samples: Samples) -> dict[str, float]:
    """Least joules of a FLOP by architecture: usable watts over the best large products' rate.

    A bound only: a board that never meets its limit does not lower it.
    """
    least: dict[str, float] = {}
    for name in np.unique(samples.device).tolist():
        device = load_device(name)
        source, scale = ENERGY.get(device.architecture, ("", 0.0))
        for family in PRODUCTS:
            mine = samples.take((samples.device == name) & (samples.ops.kind == family))
            if len(mine) == 0 or scale != 1.0:
                continue
            work = flops(mine.ops)
            large = work >= np.quantile(work, LARGE)
            rate = float(np.quantile(work[large] / mine.seconds[large], FRONTIER))
            joules = USABLE_POWER * device.tdp_watts / rate
            least[source] = min(joules, least.get(source, np.inf))
    return least


def _groups(samples: Samples, seed: int, most: int) -> list[Group]:
    chance = np.random.default_rng(seed)
    groups = []
    for family in FAMILIES:
        for device in np.unique(samples.device[samples.ops.kind == family]).tolist():
            mine = np.flatnonzero((samples.ops.kind == family) & (samples.device == device))
            launch = _launch(samples.take(mine), product=family in PRODUCTS)
            above = mine[samples.seconds[mine] > ABOVE_FLOOR * launch.floor]
            mine = above if len(above) else mine
            mine = np.sort(chance.permutation(mine)[:most])
            ops, seconds = samples.ops.take(mine), samples.seconds[mine]
            groups.append(
                Group(
                    family=family,
                    device=device,
                    launch=launch,
                    bound=bounds(ops, load_device(device), product=family in PRODUCTS),
                    log_seconds=np.log(np.maximum(seconds - launch.overhead, 0.1 * seconds)),
                    sizes=np.stack([getattr(ops, size) for size in SIZES], axis=1),
                )
            )
    return groups


def _launch(samples: Samples, *, product: bool) -> Launch:
    """Floor: the quickest samples. Overhead of vector kernels: intercept of time over bytes."""
    seconds, moved = samples.seconds, moved_bytes(samples.ops)
    floor = min(float(np.quantile(seconds, FLOOR)), LONGEST_LAUNCH)
    long = (moved > LONG) & (seconds > 2 * floor)
    if product or long.sum() < 20:
        return Launch(overhead=OVERHEAD * floor, floor=floor)
    # Least squares of relative errors, so that the longest samples do not decide alone.
    columns = np.stack([1 / seconds[long], moved[long] / seconds[long]], axis=1)
    line = np.linalg.lstsq(columns, np.ones(int(long.sum())), rcond=None)[0]
    intercept = float(rounding.significant(np.asarray(line, dtype=np.float64))[0])
    return Launch(overhead=float(np.clip(intercept, 0.5 * floor, HIGHEST * floor)), floor=floor)


def _train(
    groups: Sequence[Group],
    joules: Mapping[str, float],
    seed: int,
    hidden: tuple[int, ...],
    members: int,
    steps: int,
    rate: float,
) -> tuple[Law, dict[str, Family]]:
    """Families that share a constant are trained together, the others by themselves."""
    networks: dict[str, Family] = {}
    law = Law(sharpness=SHARPNESS, norm_rate=NORM_RATE, joules=joules)
    for families, free in (
        (PRODUCTS, "sharpness"),
        (("layer_norm",), "norm_rate"),
        (("softmax",), ""),
        (("elementwise",), ""),
    ):
        mine = [group for group in groups if group.family in families]
        if mine:
            law, fitted = _fit(mine, seed, hidden, members, steps, rate, law, free)
            networks |= fitted
    return law, networks


def _fit(
    groups: Sequence[Group],
    seed: int,
    hidden: tuple[int, ...],
    members: int,
    steps: int,
    rate: float,
    law: Law,
    free: str,
) -> tuple[Law, dict[str, Family]]:
    import torch

    torch.manual_seed(seed)
    families = [family for family in FAMILIES if any(g.family == family for g in groups)]
    scaling = {family: _scaling([g for g in groups if g.family == family]) for family in families}
    layers = {
        family: [_layers(len(scaling[family][0]), hidden) for _ in range(members)]
        for family in families
    }
    start = np.log(getattr(law, free)) if free else 0.0
    constant = torch.tensor(start, dtype=torch.float64, requires_grad=bool(free))
    shifts = torch.zeros(len(groups), dtype=torch.float64, requires_grad=True)
    rows = [_tensors(group, scaling[group.family]) for group in groups]
    weights = [p for family in families for one in layers[family] for p in one.parameters()]
    optimiser = torch.optim.AdamW(
        [{"params": weights, "weight_decay": 1e-3}, {"params": [shifts], "weight_decay": 0.0}]
        + ([{"params": [constant], "weight_decay": 0.0}] if free else []),
        lr=rate,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = SHIFT_PENALTY * (shifts**2).sum() / len(groups)
        for group, row, shift in zip(groups, rows, shifts, strict=True):
            values = {
                "sharpness": torch.tensor(law.sharpness, dtype=torch.float64),
                "rate": torch.tensor(law.norm_rate, dtype=torch.float64),
            }
            values |= {free.removeprefix("norm_"): constant.exp()} if free else {}
            for member in layers[group.family]:
                outputs = member(row["features"])
                error = _log_seconds(row, outputs, shift, values, law, group) - row["log_seconds"]
                # SMAPE of p and y is twice tanh(|log p/y| / 2).
                loss = loss + 2 * torch.tanh(error.abs() / 2).mean() / len(groups) / members
        loss.backward()  # type: ignore[no-untyped-call]
        rounding.step(optimiser)
        schedule.step()
    if free:
        found = round(float(constant.detach().exp()), rounding.WEIGHT_DECIMALS)
        law = (
            replace(law, sharpness=found) if free == "sharpness" else replace(law, norm_rate=found)
        )
    return law, {
        family: _network(family, layers[family], scaling[family], groups, shifts.tolist())
        for family in families
    }


def _log_seconds(
    row: Mapping[str, torch.Tensor],
    outputs: torch.Tensor,
    shift: torch.Tensor,
    values: Mapping[str, torch.Tensor],
    law: Law,
    group: Group,
) -> torch.Tensor:
    """The law of ``tiles.py`` and ``base_seconds``, in logarithms."""
    import torch

    log_share = torch.nn.functional.logsigmoid(outputs[:, 0] + shift)
    log_share = log_share + torch.log1p(-torch.sigmoid(outputs[:, 1]) / (1 + row["waves"]))
    product = group.family in PRODUCTS
    arithmetic = row["arithmetic"] if product else row["arithmetic"] - values["rate"].log()
    sharpness = values["sharpness"]
    base = torch.logaddexp(sharpness * arithmetic, sharpness * row["memory"]) / sharpness
    power = row["power"] + max(log_joules(law, load_device(group.device)), ABSENT)
    return torch.maximum(base, power) - log_share


def _tensors(
    group: Group, scaling: tuple[FloatArray, FloatArray, FloatArray, FloatArray]
) -> dict[str, torch.Tensor]:
    import torch

    centre, scale, low, high = scaling
    features = (np.clip(group.bound.features, low, high) - centre) / scale
    columns = {
        name: getattr(group.bound, name) for name in ("arithmetic", "memory", "power", "waves")
    }
    columns |= {"features": features, "log_seconds": group.log_seconds}
    # Single precision is the same on every CPU, double precision trains.
    return {
        name: torch.tensor(np.maximum(values, ABSENT), dtype=torch.float32).double()
        for name, values in columns.items()
    }


def _scaling(groups: Sequence[Group]) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    features = np.concatenate([group.bound.features for group in groups])
    low, high = features.min(axis=0), features.max(axis=0)
    return features.mean(axis=0), features.std(axis=0) + 1e-3, low, high


def _layers(features: int, hidden: tuple[int, ...]) -> torch.nn.Sequential:
    import torch

    parts: list[torch.nn.Module] = []
    for width in hidden:
        parts += [torch.nn.Linear(features, width, dtype=torch.float64), torch.nn.ReLU()]
        features = width
    last = torch.nn.Linear(features, 2, dtype=torch.float64)
    with torch.no_grad():
        # Half the speed of the bounds, and a last wave that costs little: where learning starts.
        last.bias.copy_(torch.tensor([1.0, -2.0], dtype=torch.float64))
    return torch.nn.Sequential(*parts, last)


def _averaged(members: Sequence[torch.nn.Sequential]) -> tuple[list[Matrix], list[Matrix]]:
    """Weights and biases of one network whose outputs are the mean of all, side by side."""
    import torch

    linear = [[part for part in one if isinstance(part, torch.nn.Linear)] for one in members]
    weights, biases = [], []
    for depth, same in enumerate(zip(*linear, strict=True)):
        blocks, offsets = [one.weight.T for one in same], [one.bias for one in same]
        if depth == len(linear[0]) - 1:
            weight, bias = torch.cat(blocks) / len(members), torch.stack(offsets).mean(dim=0)
        else:
            apart: torch.Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
            weight = torch.cat(blocks, dim=1) if depth == 0 else apart
            bias = torch.cat(offsets)
        weights.append(weight.detach().numpy().astype(np.float32))
        biases.append(bias.detach().numpy().astype(np.float32))
    return weights, biases


def _network(
    family: str,
    members: Sequence[torch.nn.Sequential],
    scaling: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    groups: Sequence[Group],
    shifts: Sequence[float],
) -> Family:
    weights, biases = _averaged(members)
    mine = [(group, shift) for group, shift in zip(groups, shifts, strict=True)]
    sizes = np.concatenate([group.sizes for group, _ in mine if group.family == family])
    if family == "elementwise":
        sizes = np.prod(sizes, axis=1, keepdims=True)
    centre, scale, low, high = scaling
    return Family(
        network=Network(
            weights=tuple(weights),
            biases=tuple(biases),
            centre=centre,
            scale=scale,
            low=low,
            high=high,
        ),
        least=sizes.min(axis=0),
        most=sizes.max(axis=0),
        shifts={group.device: shift for group, shift in mine if group.family == family},
    )
