"""Where each part of a plan's time is from, for those who read the few best plans."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from estimator.estimate import TIME_PARTS
from estimator.lower.slots import COLUMNS, Columns, FloatArray, IntArray, Slot
from estimator.operators import NameArray

if TYPE_CHECKING:
    from estimator.compose import Composition

NOTHING = "none"
"""Origin of a part that takes no time in a plan."""


def part_origins(composed: Composition, index: int) -> dict[str, str]:
    """Origin of each time part of one plan: that of most of its seconds, hidden ones included.

    Every slot counts once a micro-batch for each layer of its kind. The bubble waits for compute;
    the host's time is the stack's constants, which no kernel model touches.
    """
    key, step = composed.key_P[[index]], composed.step_P[index]
    classes = step + len(composed.shards.plans) * np.arange(4)
    layers = (composed.shards.layers_NCU * composed.shards.classes.count)[:, :, step].sum(axis=1)
    seconds: dict[tuple[str, str], float] = {}
    for ops, priced in (
        (_of_keys(composed.ops, key), composed.ops_seconds[:, key]),
        (
            _of_keys(composed.step_ops, classes),
            np.array([composed.step[slot.name][:, step] for slot in composed.step_ops.slots]),
        ),
    ):
        names = composed.pricer.origins(ops, composed.workload, composed.cluster, composed.stack)
        for slot, row, origins in zip(ops.slots, priced, names, strict=True):
            weight = float(layers[slot.layer]) if slot.place == "layer" else 1.0
            _add(seconds, _part(slot), weight * row, origins)
    found = dict.fromkeys(TIME_PARTS, NOTHING) | {"host": "analytic"}
    for part in TIME_PARTS:
        shares = {name: value for (of, name), value in seconds.items() if of == part}
        if any(shares.values()):
            found[part] = max(shares, key=lambda name: shares[name])
    if composed.plans.pp[index] > 1:
        found["bubble"] = found["compute"]
    return found


def _of_keys(ops: Columns, keys: IntArray) -> Columns:
    return replace(ops, **{name: getattr(ops, name)[:, keys] for name in COLUMNS})


def _part(slot: Slot) -> str:
    """The time part that a slot belongs to."""
    if slot.place == "stage" and slot.kind != "collective":
        return "optimizer"
    return slot.stream


def _add(
    seconds: dict[tuple[str, str], float], part: str, row: FloatArray, origins: NameArray
) -> None:
    for name in np.unique(origins).tolist():
        key = part, name
        seconds[key] = seconds.get(key, 0.0) + float(row[origins == name].sum())
