"""Measured configurations in Calculon's words, where it has words for them.

How a layer computes may be approximated and is then said; how it is spread over devices may not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from beside_calculon import NODE, Calculon, Words, execution

from estimator.mapping import Mapped

SYSTEMS = {"a100-sxm-80gb": "a100_80g", "h100-sxm": "h100_80g_nvl8"}
"""Devices of the catalogue and the systems that Calculon ships for them."""
DATATYPES = {"fp16": "float16", "bf16": "float16", "fp8": "float8"}
"""Its systems list one half precision; both halves run at one rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What Calculon says of one configuration."""

    seconds: float
    seconds_own_network: float
    """The same with the network rate of the run's cluster in place of the shipped system's."""
    fits: bool
    """Whether it finds the memory enough; its refusal is lifted, since these runs ran."""
    approximated: tuple[str, ...]


def inexpressible(mapped: Mapped) -> Iterator[str]:
    """What of a configuration Calculon has no words for."""
    model, workload, cluster, plan = mapped.model, mapped.workload, mapped.cluster, mapped.plan
    if cluster.device.name not in SYSTEMS:
        yield f"it ships no system with {cluster.device.name}"
    elif cluster.nodes > 1 and cluster.gpus_per_node != NODE:
        yield f"its systems have nodes of {NODE} GPUs"
    if workload.precision not in DATATYPES:
        yield f"no {workload.precision}"
    if workload.lora_rank is not None:
        yield "no frozen weights (LoRA)"
    if plan.zero == 3:
        yield "no sharded weights (zero=3)"
    if plan.cp > 1:
        yield "no context parallelism"
    if plan.recompute_layers is not None:
        yield "no recompute of some layers"
    if model.experts is not None:
        yield "no experts"
    if model.latent is not None:
        yield "no latent attention"
    if model.parallel_residual:
        yield "no parallel residual"


def approximations(mapped: Mapped) -> Iterator[str]:
    """What of an expressible configuration Calculon only knows in another form."""
    model = mapped.model
    if model.gated:
        yield "gated MLP as a plain one"
    if model.kv_heads != model.heads:
        yield "grouped-query attention as multi-head"
    if mapped.workload.attention == "flash":
        yield "flash attention as unfused"
    if mapped.workload.precision == "fp8":
        yield "fp8 as one byte for every tensor"


def application(mapped: Mapped) -> dict[str, int]:
    """A model in Calculon's words.

    Its layer has four attention matrices of full width and two of the MLP; the MLP gets the width
    at which the layer has as many weights as the model's (its own, for multi-head attention and a
    plain MLP), rounded to a multiple of tp.
    """
    model, tp = mapped.model, mapped.plan.tp
    matrices = model.hidden * (
        model.qkv_width + model.attention_width + model.matrices_of_mlp * model.ffn
    )
    rest = matrices - 4 * model.hidden * model.attention_width
    return {
        "hidden": model.hidden,
        "feedforward": round(rest / (2 * model.hidden * tp)) * tp,
        "seq_size": mapped.workload.sequence,
        "attn_heads": model.heads,
        "attn_size": model.head_dim,
        "num_blocks": model.layers,
    }


def words(mapped: Mapped) -> Words:
    """The plan in Calculon's words, with the overlaps that the framework has."""
    plan, stack = mapped.plan, mapped.stack
    plan = replace(
        plan,
        # Its optimizer sharding scatters gradients too: the traffic of zero=1 and of zero=2.
        zero=min(plan.zero, 1),
        overlap_grad=stack.overlap_grad and plan.dp > 1,
        overlap_tp=stack.overlap_tp and plan.tp > 1 and plan.sequence_parallel,
    )
    return execution(plan, mapped.workload) | {"datatype": DATATYPES[mapped.workload.precision]}


class Peer:
    """A checkout of Calculon, asked one configuration at a time; nothing in it is changed."""

    def __init__(self, folder: Path) -> None:
        """Load Calculon and its systems from a checkout."""
        self.calculon = Calculon(folder, [])
        self.systems: dict[str, dict[str, Any]] = {
            device: json.loads((folder / "systems" / f"{name}.json").read_text())
            for device, name in SYSTEMS.items()
        }

    def ask(self, mapped: Mapped) -> Answer | tuple[str, ...]:
        """Its answer, or why it has none."""
        reasons = tuple(inexpressible(mapped))
        if reasons:
            return reasons
        system = self.systems[mapped.cluster.device.name]
        out = mapped.cluster.scale_out
        rate = out.bandwidth / 1e9 if out is not None else None
        try:
            seconds, needed = self._run(mapped, system, None)
            own, _ = self._run(mapped, system, rate)
        except (self.calculon.bare.Error, AssertionError) as error:
            return (f"its error: {error}",)
        return Answer(
            seconds=seconds,
            seconds_own_network=own,
            fits=needed <= system["mem1"]["GiB"] * 2**30,
            approximated=tuple(approximations(mapped)),
        )

    def _run(
        self, mapped: Mapped, system: dict[str, Any], gigabytes: float | None
    ) -> tuple[float, float]:
        """Seconds and bytes; ``gigabytes`` per second replace the rate of the second tier."""
        inside, outside = system["networks"]
        if gigabytes is not None:
            outside = outside | {"bandwidth": gigabytes}
        unlimited = system["mem1"] | {"GiB": 10**9}
        changed = system | {"networks": [inside, outside], "mem1": unlimited}
        self.calculon.system = self.calculon.module.System(changed)
        self.calculon.configs = [application(mapped)]
        stats = self.calculon.fastest()(0, words(mapped))
        return stats["total_time"], stats["proc_mem_tier1_cap_req"]
