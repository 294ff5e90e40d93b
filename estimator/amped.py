"""AMPeD: a whole plan's step time as one sum of closed terms (Moolchandani et al., ISPASS 2023).

The paper's model from public descriptions of its released code. A step is the work of the whole
batch over all devices, plus communication, plus the pipeline's bubble; nothing overlaps but by two
factors, R for the bubble and r for the gradients:

    T = (U_f + U_b + U_w) / N + M_f + M_b + M_g + W

Every term here is per device and step, summed over its layers. Where the public description
contradicts itself or the machine, the term is corrected:

1. W divides the compute share by the number of layers although the sum runs over layers: the
   bubble is (p - 1) / m of all that a stage does, weight gradients included.
2. Non-linear operations of the MLP and the output projection lack the sequence length, the
   projection is repeated for every layer and missing from backward: once, in all passes.
3. Gating is counted for all MoE layers in each of them, half in U_f and U_b: once per MoE layer
   and pass.
4. Latency is paid once per layer and batch: here by each collective of each micro-batch.
5. Activations between nodes are not shared by replicas, gradients and boundaries not by stages,
   and each device's message has all NICs of its node: here a device has its share of both.
6. Memory of activations divides by N_DP twice, and weights are always fully sharded: memory comes
   from this project's own model instead, and AMPeD keeps to time.

Extensions, for what the paper leaves out: recompute (a forward again, with its communication),
grouped queries, gated MLPs, windows and top-k experts (by their own products), context parallelism
(keys and values gathered), interleaving (R / v) and adapters. Norms have no term. It has no
launch floor, no optimizer pass, and prices sharded weights by a share of other traffic only, so it
is too kind to ``zero=3``.

Suffix: arrays are (P,) over plans unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from estimator.cluster import Cluster
from estimator.estimate import HIDDEN_PARTS, TIME_PARTS, Estimates, FloatArray, StageCosts
from estimator.lower.slots import ranks_inside
from estimator.model import LayerKind, Transformer
from estimator.plan import CHOICES, UNSET, IntArray, Plans
from estimator.stack import Stack
from estimator.workload import Workload

SELECTIVE, MLP, FULL = (CHOICES["recompute"].index(w) for w in ("selective", "mlp", "full"))
DP_BEFORE_PP = CHOICES["order"].index("tp-cp-ep-dp-pp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amped:
    """What AMPeD leaves to be set. Raises ``ValueError`` outside the ranges given."""

    efficiency: float = 0.51
    """Share of the peak that multiply-accumulates reach, in (0, 1]: the released inputs' value."""
    half_micro_batch: float = 0.0
    """Micro-batch at which half of ``efficiency`` is reached: a ub / (b + ub); 0 is constant."""
    most: float = 0.91
    """Cap of the efficiency, in (0, 1]."""
    bubble: float = 1.0
    """R, the bubble that is not overlapped, from 0 to 1; interleaving divides it by its chunks."""
    gradients: float = 1.0
    """r, the gradient reduction that is not overlapped, from 0 to 1."""
    zero_overhead: float = 0.25
    """M_f_DP: communication that sharded weights add, as a share of the other forward and backward
    communication (the released inputs' value); for ``zero=3`` only."""
    micro_batches: int | None = None
    """N_ub; the plan's own number by default."""
    uncertainty: float = 0.3
    """Half width of the interval: just over the largest error, 29 %, on the ten rows of Narayanan
    et al. (arXiv 2104.04473, Table 1) with the efficiency of the four largest."""

    def __post_init__(self) -> None:
        for name in ("efficiency", "most"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie above 0, up to 1")
        for name in ("bubble", "gradients"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie from 0 to 1")
        for name in ("half_micro_batch", "zero_overhead"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if self.micro_batches is not None and self.micro_batches < 1:
            raise ValueError(f"micro_batches={self.micro_batches} must be at least 1")
        if not 0 <= self.uncertainty < 1:
            raise ValueError(f"uncertainty={self.uncertainty} must lie from 0 to below 1")


def estimate_amped(
    model: Transformer,
    workload: Workload,
    cluster: Cluster,
    plans: Plans,
    *,
    stack: Stack,
    memory: Mapping[str, FloatArray],
    stages: StageCosts,
    model_flops: float,
    parameters: Amped | None = None,
) -> Estimates:
    """Step time of P plans by AMPeD, beside memory that is given.

    Args:
        model: what is trained.
        workload: batch, sequence, precision.
        cluster: where.
        plans: P legal plans.
        stack: only its bytes per gradient are read; no factor of it is applied.
        memory: bytes by ``MEMORY_PARTS``, each of shape (P,).
        stages: stage classes and their bytes; seconds are AMPeD's, equal on all stages.
        model_flops: useful FLOPs of a step, for the utilisation.
        parameters: what AMPeD leaves to be set.

    Returns:
        The parts: ``compute`` = U / N, ``tp``, ``cp``, ``ep`` and ``pp`` of M_f + M_b, ``bubble`` =
        W, ``dp`` = M_g and what ZeRO adds; ``optimizer`` and ``host`` are zero.
    """
    amped = parameters or Amped()
    given = amped.micro_batches
    m = workload.global_batch / (plans.dp * plans.micro_batch)
    step = _Step(
        model=model,
        workload=workload,
        cluster=cluster,
        plans=plans,
        stack=stack,
        amped=amped,
        m=m if given is None else np.full(len(plans), float(given)),
    )
    phases = step.compute()
    traffic = step.traffic()
    compute = np.sum(list(phases.values()), axis=0)
    zero = np.where(plans.zero == 3, amped.zero_overhead, 0.0) * sum(traffic.values())
    busy = compute + zero + sum(traffic.values())
    gradients = step.gradients()
    nothing = np.zeros(len(plans))
    time = {
        "compute": compute,
        **traffic,
        "bubble": amped.bubble / plans.interleave * (plans.pp - 1) / step.m * busy,
        "dp": amped.gradients * gradients + zero,
        "optimizer": nothing,
        "host": nothing,
    }
    hidden = dict.fromkeys(HIDDEN_PARTS, nothing)
    hidden["dp"] = (1 - amped.gradients) * gradients
    return Estimates(
        plans=plans,
        time={part: time[part] for part in TIME_PARTS},
        hidden=hidden,
        compute_phases=phases,
        memory=memory,
        stages=replace(stages, seconds=np.where(stages.count > 0, (busy / step.m)[:, None], 0.0)),
        uncertainty=np.full(len(plans), amped.uncertainty),
        memory_uncertainty=stack.memory_uncertainty,
        origin=lambda _: dict.fromkeys(TIME_PARTS, "analytic"),
        capacity_bytes=cluster.capacity_bytes,
        tokens_per_step=workload.tokens,
        model_flops=model_flops,
        peak_flops=cluster.gpus * cluster.peak(workload.precision),
    )


def training_days(estimates: Estimates, tokens: float) -> FloatArray:
    """Days of a whole run: steps of ``tokens / (s B)``, times seconds per step; shape (P,)."""
    days: FloatArray = tokens / estimates.tokens_per_step * estimates.step_seconds / 86400
    return days


@dataclass(frozen=True, slots=True)
class _Work:
    """Forward work of one token, over all layers."""

    matrices: float
    """Multiply-accumulates with weights of the layers."""
    mlp: float
    """Of those, in MLPs and experts."""
    scores: float
    """Multiply-accumulates between activations: MAC_SA."""
    head: float
    """Multiply-accumulates of the output projection ("decoder")."""
    softmax: float
    nonlinear: float
    """Element-wise operations of attention, and of norms and the MLP."""

    @classmethod
    def of(cls, model: Transformer, workload: Workload) -> _Work:
        layers = model.layers + model.mtp_layers
        width, every = model.hidden, workload.sequence
        near = min(every, model.window or every)
        context = (layers - model.windowed_layers) * every + model.windowed_layers * near
        attention = sum(a * b for a, b, _ in model.attention_projections)
        matrices = layers * (attention + model.attention_width * width)
        mlp = nonlinear = 0.0
        for count, visited, gate in _mlp_kinds(model):
            mlp += count * (model.matrices_of_mlp * width * visited + gate)
            nonlinear += count * 2 * (width + visited)
        return cls(
            matrices=matrices + mlp + model.mtp_layers * 2 * width * width,
            mlp=mlp,
            scores=context * (model.query_width + model.attention_width),
            head=(1 + model.mtp_layers) * model.vocab * width,
            softmax=layers * model.attention_width,
            nonlinear=nonlinear,
        )


def _mlp_kinds(model: Transformer) -> list[tuple[int, int, int]]:
    """Layers with a kind of MLP, the width that a token visits there, and its gating."""
    experts, moe = model.experts, model.moe_layers
    if experts is None:
        return [(model.layers + model.mtp_layers, model.ffn, 0)]
    visited = experts.top_k * experts.ffn + experts.shared_ffn
    gate = model.hidden * experts.count
    return [(model.layers - moe, model.ffn, 0), (moe + model.mtp_layers, visited, gate)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The terms of P plans; seconds per device and step."""

    model: Transformer
    workload: Workload
    cluster: Cluster
    plans: Plans
    stack: Stack
    amped: Amped
    m: FloatArray
    """N_ub of each replica."""

    def compute(self) -> dict[str, FloatArray]:
        """U_f, U_b + U_w and the recomputed forward, each over N devices."""
        work, plans, amped = _Work.of(self.model, self.workload), self.plans, self.amped
        ub = self.workload.global_batch / (plans.dp * self.m)
        reached = np.minimum(amped.efficiency * ub / (amped.half_micro_batch + ub), amped.most)
        # The peak is in FLOP/s of the precision that runs: two per multiply-accumulate.
        mac = 2 / (self.cluster.peak(self.workload.precision) * reached)
        # Element-wise operations run on the vector units, whose peak is the slowest: one of an
        # operation for a fused multiply-add's two.
        element = 2 / min(self.cluster.device.peaks.values())
        share = self.workload.tokens / plans.world
        layer = mac * (work.matrices + work.scores) + element * (work.softmax + work.nonlinear)
        forward = share * (layer + mac * work.head)
        train = 1.0 if self.workload.mode == "train" else 0.0
        frozen = self.workload.lora_rank is not None
        weight = work.scores if frozen else work.matrices + work.scores + work.head
        core = mac * work.scores + element * work.softmax
        mlp = mac * work.mlp + element * work.nonlinear
        again = self._recomputed() * layer + np.where(plans.recompute == SELECTIVE, core, 0.0)
        again += np.where(plans.recompute == MLP, mlp, 0.0)
        return {
            "forward": forward,
            "backward": train * (forward + share * mac * weight),
            "recompute": train * share * again,
        }

    def traffic(self) -> dict[str, FloatArray]:
        """M_f + M_b by axis, without the overhead of ZeRO."""
        plans, train = self.plans, self.workload.mode == "train"
        again = self._recomputed() if train else np.zeros(len(plans))
        backward = 1.0 if train else 0.0
        tokens = self.workload.tokens / (plans.dp * plans.cp * self.m)
        activation = self.workload.activation_bytes * tokens * self.model.hidden
        layers = self.m * (self.model.layers + self.model.mtp_layers) / plans.pp
        # M_TP: two all-reduces per layer and pass.
        tp = 2 * layers * self._all_reduce(activation, plans.tp, self._inside(plans.tp, 1))
        # Of keys and values: gathered in every pass, their gradients scattered.
        keys = 2 * self.workload.activation_bytes * tokens * self.model.kv_width / plans.tp
        cp = layers * self._gather(keys, plans.cp, self._inside(plans.cp, plans.tp))
        mlp = np.where(plans.recompute == MLP, backward, 0.0)
        return {
            "tp": (1 + backward + again + mlp / 2) * tp,
            "cp": (1 + 2 * backward + again) * cp,
            "ep": (1 + backward + again + mlp) * self._experts(activation),
            "pp": (1 + backward) * self.m * plans.interleave * self._boundary(activation),
        }

    def gradients(self) -> FloatArray:
        """M_g without r: gradients of a stage's parameters, all-reduced by tier."""
        model, plans = self.model, self.plans
        if self.workload.mode != "train":
            return np.zeros(len(plans))
        half = self.workload.activation_bytes == 2
        element = self.stack.gradient_bytes if half else 4.0
        stride = plans.tp * plans.cp * np.where(plans.order == DP_BEFORE_PP, 1, plans.pp)
        inside = self._inside(plans.cp, plans.tp) * self._inside(plans.dp, stride)
        stage = element / plans.pp
        if self.workload.lora_rank is not None:
            adapters = model.layers * model.adapter_parameters(
                self.workload.lora_rank, self.workload.lora_targets
            )
            return self._all_reduce(stage * adapters / plans.tp, plans.dp * plans.cp, inside)
        count = model.experts.count if model.experts else 0
        routed = (model.moe_layers + model.mtp_layers) * count * model.expert_parameters
        kind: LayerKind = "moe" if model.experts else "dense"
        further = model.mtp_layers * model.layer_parameters(kind)
        dense = (model.parameters + further - routed) / plans.tp
        reduced = self._all_reduce(stage * dense, plans.dp * plans.cp, inside)
        if not routed:
            return reduced
        etp = self._expert_tp()
        replicas = plans.dp * plans.tp * plans.cp // (plans.ep * etp)
        beside = self._inside(replicas, plans.ep * etp)
        return reduced + self._all_reduce(stage * routed / (plans.ep * etp), replicas, beside)

    def _recomputed(self) -> FloatArray:
        """Share of the layers that run forward again."""
        plans, layers = self.plans, self.model.layers
        asked = np.where(plans.recompute_layers == UNSET, layers, plans.recompute_layers)
        share = np.minimum(asked * plans.pp, layers) / layers
        return np.where(plans.recompute == FULL, share, 0.0)

    def _expert_tp(self) -> IntArray:
        return np.where(self.plans.etp == UNSET, self.plans.tp, self.plans.etp)

    def _inside(self, size: IntArray, stride: IntArray | int) -> FloatArray:
        strides = np.broadcast_to(stride, size.shape)
        return ranks_inside(size, strides, self.cluster.scale_up_domain)

    def _experts(self, activation: FloatArray) -> FloatArray:
        """M_MoE of one pass: two all-to-alls per MoE layer; tensor-parallel ranks share tokens."""
        experts, plans = self.model.experts, self.plans
        if experts is None:
            return np.zeros(len(plans))
        sent = activation * experts.top_k / plans.tp
        inside = self._inside(plans.ep, self._expert_tp())
        up, out = self.cluster.scale_up, self.cluster.scale_out
        near = sent * (inside - 1) / plans.ep / (up.bandwidth * up.efficiency)
        seconds = np.where(plans.ep > 1, up.latency + near, 0.0)
        if out is not None:
            far = sent * (plans.ep - inside) / plans.ep / (out.bandwidth * out.efficiency)
            seconds = seconds + np.where(plans.ep > inside, out.latency + far, 0.0)
        moe = self.model.moe_layers + self.model.mtp_layers
        return 2 * self.m * moe / plans.pp * seconds

    def _boundary(self, activation: FloatArray) -> FloatArray:
        """M_PP of one message: its tensor-parallel ranks each send a part; the slower tier."""
        plans, up, out = self.plans, self.cluster.scale_up, self.cluster.scale_out
        stride = plans.tp * plans.cp * np.where(plans.order == DP_BEFORE_PP, plans.dp, 1)
        size = activation / plans.tp
        seconds = up.latency + size / (up.bandwidth * up.efficiency)
        if out is not None:
            between = out.latency + size / (out.bandwidth * out.efficiency)
            seconds = np.where(plans.pp > self._inside(plans.pp, stride), between, seconds)
        return np.where(plans.pp > 1, seconds, 0.0)

    def _all_reduce(self, size: FloatArray, group: IntArray, inside: FloatArray) -> FloatArray:
        """Hierarchical: inside the domains, then between; the topology factor is 2 (n - 1) / n."""
        return self._tiers(size, group, inside, 2)

    def _gather(self, size: FloatArray, group: IntArray, inside: FloatArray) -> FloatArray:
        """Half an all-reduce; ``size`` is of one rank's part."""
        return self._tiers(size * group, group, inside, 1)

    def _tiers(
        self, size: FloatArray, group: IntArray, inside: FloatArray, rounds: int
    ) -> FloatArray:
        """C T n + size T / BW per tier; ranks of a domain send their parts at once."""
        up, out = self.cluster.scale_up, self.cluster.scale_out
        steps = rounds * (inside - 1)
        seconds = up.latency + steps * up.hop_latency
        seconds = seconds + size * steps / inside / (up.bandwidth * up.efficiency)
        seconds = np.where(inside > 1, seconds, 0.0)
        if out is None:
            return seconds
        domains = np.ceil(group / inside)
        volume = size * rounds * (domains - 1) / domains / inside
        between = out.latency + volume / (out.bandwidth * out.efficiency)
        return seconds + np.where(domains > 1, between, 0.0)
