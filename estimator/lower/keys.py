"""Which plans share a lowered layer, and where their groups lie on the cluster.

Suffixes: U unique keys, P plans.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from estimator.lower.slots import FloatArray, IntArray, ranks_inside, unique_rows
from estimator.plan import CHOICES, HOST_CHECKPOINTS, UNSET, Plans
from estimator.schedule import ONE_F_ONE_B, ZB_H1
from estimator.stack import Stack

DP_BEFORE_PP = CHOICES["order"].index("tp-cp-ep-dp-pp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What tells the layers of two plans apart; int64 arrays of shape (U,)."""

    dp: IntArray
    tp: IntArray
    cp: IntArray
    pp: IntArray
    ep: IntArray
    etp: IntArray
    """Tensor parallel degree of experts."""
    micro_batch: IntArray
    sequence_parallel: IntArray
    shard: IntArray
    """Ranks that a layer's weights are gathered from (1 unless zero=3)."""
    order: IntArray
    overlap_tp: IntArray
    overlap_ep: IntArray
    overlap_p2p: IntArray
    """Whether that communication runs beside compute; the stack's habit where a plan is silent."""
    host_checkpoints: IntArray
    """Whether layers leave their inputs in host memory until they run again."""
    puts_off: IntArray
    """Whether a zero-bubble schedule takes weights' gradients from beside their reductions."""


def overlaps(column: IntArray, habit: bool) -> IntArray:
    """A plan's overlap flag, or the stack's habit where it is unset; shape (P,)."""
    flags: IntArray = np.where(column == UNSET, int(habit), column)
    return flags


def expert_tp(plans: Plans) -> IntArray:
    """Tensor parallel degree of experts: as stated, else that of the other layers; (P,)."""
    degree: IntArray = np.where(plans.etp == UNSET, plans.tp, plans.etp)
    return degree


def layer_keys(plans: Plans, stack: Stack) -> tuple[Keys, IntArray]:
    """Unique layer keys of the plans, and each plan's key index of shape (P,)."""
    full = plans.dp * plans.cp
    shard = np.where(
        plans.zero == 3, np.where(plans.shard_size == UNSET, full, plans.shard_size), 1
    )
    columns = {
        "dp": plans.dp,
        "tp": plans.tp,
        "cp": plans.cp,
        "pp": plans.pp,
        "ep": plans.ep,
        "etp": expert_tp(plans),
        "micro_batch": plans.micro_batch,
        "sequence_parallel": plans.sequence_parallel,
        "shard": shard,
        "order": plans.order,
        "overlap_tp": overlaps(plans.overlap_tp, stack.overlap_tp),
        # Experts of a forward are exchanged beside the backward of another micro-batch: without a
        # pipeline, or from chunk to chunk of an interleaved one.
        "overlap_ep": overlaps(plans.overlap_ep, stack.overlap_ep)
        * (plans.ep > 1)
        * (plans.schedule == ONE_F_ONE_B)
        * ((plans.pp == 1) | (plans.interleave > 1)),
        # One chunk's activations travel while another chunk runs; 1F1B has no other chunk.
        "overlap_p2p": overlaps(plans.overlap_p2p, stack.overlap_p2p) * (plans.interleave > 1),
        "host_checkpoints": np.isin(plans.offload, HOST_CHECKPOINTS).astype(np.int64),
        "puts_off": ((plans.schedule >= ZB_H1) & (plans.pp > 1) & (plans.tp > 1)).astype(np.int64),
    }
    first, index = unique_rows(list(columns.values()))
    return Keys(**{name: column[first] for name, column in columns.items()}), index


def dp_ranks_inside(mesh: Keys | Plans, domain: int) -> FloatArray:
    """Ranks of the data-parallel group (dp x cp) among ``domain`` consecutive ones."""
    cp_inside = ranks_inside(mesh.cp, mesh.tp, domain)
    stride = mesh.tp * mesh.cp * np.where(mesh.order == DP_BEFORE_PP, 1, mesh.pp)
    return cp_inside * ranks_inside(mesh.dp, stride, domain)


def tp_ranks_inside(keys: Keys, domain: int) -> FloatArray:
    """Ranks of a tensor-parallel group, the innermost axis, among ``domain`` consecutive ones."""
    return ranks_inside(keys.tp, np.ones_like(keys.tp), domain)


def expert_dp(mesh: Keys) -> IntArray:
    """Ranks that hold the same experts: the world over ep, etp and pp."""
    return mesh.dp * mesh.tp * mesh.cp // (mesh.ep * mesh.etp)


def ep_ranks_inside(keys: Keys, domain: int) -> FloatArray:
    """Ranks of an expert-parallel group, next to its tp, among ``domain`` consecutive ones."""
    return ranks_inside(keys.ep, keys.etp, domain)
