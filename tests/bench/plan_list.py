"""Plans that this project and Calculon can both express, for comparing the two."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from beside_calculon import RECOMPUTE, Words, execution

from estimator import Cluster, Plan, Transformer, Workload
from estimator.catalog import load_cluster, load_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One model on one cluster."""

    model: Transformer
    cluster: Cluster
    workload: Workload
    calculon_model: str
    """File of the same shapes among Calculon's models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan of one problem, for both sides."""

    problem: int
    plan: Plan
    words: Words


def problem(name: str, gpus: int, global_batch: int, calculon_model: str) -> Problem:
    """A job like those of Korthikanti et al. (arXiv 2205.05198): fp16 and unfused attention.

    Calculon knows no fused attention; its step has no logits, ours has.
    """
    return Problem(
        model=replace(load_model(name), vocab=51200),
        cluster=load_cluster(f"a100-sxm-80gb:{gpus}"),
        workload=Workload(
            global_batch=global_batch,
            sequence=2048,
            precision="fp16",
            attention="eager",
            dropout=True,
        ),
        calculon_model=calculon_model,
    )


def divisors(number: int) -> list[int]:
    """All divisors, from one up."""
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def meshes(one: Problem) -> Iterator[tuple[int, int, int]]:
    """Degrees (dp, tp, pp) that divide the model, the batch and the devices."""
    model, gpus = one.model, one.cluster.gpus
    for tp in divisors(gpus):
        for pp in divisors(gpus // tp):
            dp = gpus // (tp * pp)
            whole = model.heads % tp == model.hidden % tp == model.layers % pp == 0
            if whole and one.workload.global_batch % dp == 0:
                yield dp, tp, pp


def candidates(one: Problem) -> Iterator[tuple[Plan, Words]]:
    """Legal plans in both tools' words; of plans that Calculon cannot tell apart, the first."""
    batch, layers = one.workload.global_batch, one.model.layers
    seen = set()
    for dp, tp, pp in meshes(one):
        for interleave, micro_batch, recompute, zero, overlap, tensor, order in itertools.product(
            divisors(layers // pp) if pp > 1 else [1],
            divisors(batch // dp),
            RECOMPUTE,
            (0, 1) if dp > 1 else (0,),
            (False, True) if dp > 1 else (False,),
            # Sequence parallelism, and its overlap with GEMMs.
            ((False, False), (True, False), (True, True)) if tp > 1 else ((False, False),),
            ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
        ):
            # Megatron-LM's rule for interleaved schedules.
            if interleave > 1 and batch // (dp * micro_batch) % pp:
                continue
            plan = Plan(
                dp=dp,
                tp=tp,
                pp=pp,
                micro_batch=micro_batch,
                interleave=interleave,
                recompute=recompute,  # type: ignore[arg-type]
                sequence_parallel=tensor[0],
                zero=zero,
                overlap_grad=overlap,
                overlap_param=overlap,
                overlap_tp=tensor[1],
                order=order,  # type: ignore[arg-type]
            )
            words = execution(plan, one.workload)
            key = tuple(words.values())
            if key not in seen:
                seen.add(key)
                yield plan, words


def problems() -> list[Problem]:
    """What is planned: two of Calculon's models whose shapes the catalogue has too."""
    return [
        problem("megatron-22b", 64, 512, "models/megatron-22B.json"),
        problem("gpt3-175b", 512, 1536, "models/gpt3-175B.json"),
    ]
