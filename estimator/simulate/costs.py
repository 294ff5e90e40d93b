"""What the stages of one plan do and for how long: the closed form's own numbers, stage by stage.

Suffixes: S stages, V model chunks of a stage, K pass parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from estimator.compose import FULL, Composition
from estimator.layer import COMPUTE, PARTS, PP, Pass
from estimator.lower.keys import overlaps
from estimator.lower.memory import recomputed_layers
from estimator.lower.slots import FloatArray, IntArray
from estimator.plan import Plan
from estimator.simulate.orders import LAGS

MOST_BUCKETS = 64
"""Buckets of gradients where the stack says that none of their traffic must stay exposed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageWork:
    """One plan's seconds and bytes; a micro-batch's are split over the chunks of a stage."""

    forward: FloatArray
    """One micro-batch through one chunk, (S, V, 2 K): exposed, then hidden seconds by part."""
    backward: FloatArray
    weight: FloatArray
    """Of that, what a zero-bubble schedule puts off (zero under others)."""
    gradients: FloatArray
    """Reduced at the end of a step, (S,)."""
    every_gradients: FloatArray
    """Scattered after each other micro-batch, (S,)."""
    weights: FloatArray
    """Gathered once per step, (S,)."""
    tied: float
    """Gradients of a tied embedding, between the first and the last stage."""
    optimizer: FloatArray
    """(S,)."""
    host: float
    """Once per step."""
    crossing: float
    """A transfer between stages that compute does not wait for on its own stream."""
    micro_batches: int
    overlap_grad: bool
    overlap_param: bool
    buckets: int
    hiding: float
    """Share of its bandwidth that data-parallel traffic keeps while compute runs."""
    shares: FloatArray
    """Of a stage's layers in each of its chunks, (S, V)."""
    states: FloatArray
    """Bytes allocated throughout, (S,)."""
    kept: FloatArray
    """Bytes of one micro-batch between its forward and its backward, (S,)."""
    passing: FloatArray
    """Bytes more during a backward (or the loss), (S,)."""
    allocated: FloatArray
    """Bytes at the peak by the closed form, (S,)."""

    @property
    def stages(self) -> int:
        """How many there are."""
        return len(self.forward)

    @property
    def passes(self) -> FloatArray:
        """Forward, backward and what is put off of it, (3, S, V, 2 K)."""
        return np.stack([self.forward, self.backward - self.weight, self.weight])

    @property
    def chunks(self) -> int:
        """Model chunks of each."""
        return int(self.forward.shape[1])


def stage_work(composed: Composition, held: FloatArray) -> StageWork:
    """The work of the first plan; ``held`` is how many micro-batches its classes keep, (4, 1)."""
    plan: Plan = composed.plans[0]
    stack, scale = composed.stack, composed.scale()
    count = composed.shards.classes.count[:, composed.step_P[0]]
    stage: IntArray = np.repeat(np.arange(len(count), dtype=np.int64), count)
    shares = chunk_shares(
        composed.shards.classes.layers[stage, composed.step_P[0]], plan.interleave
    )
    forward, backward = _passes(composed, shares, stage)
    traffic = {name: value[stage, 0] * scale for name, value in composed.step_traffic().items()}
    train = float(composed.workload.mode == "train")
    exposed = stack.exposed_dp
    memory = composed.memory
    kept, states = memory.kept_CP[stage, 0], memory.states_CP[stage, 0]
    passing = memory.allocated_CP[stage, 0] - states - held[stage, 0] * kept
    crossing = composed.layers.boundary.hidden[composed.key_P[0], PP] * scale
    return StageWork(
        forward=forward * scale,
        backward=backward * scale * train,
        weight=_put_off(composed, plan, stage) * scale,
        gradients=traffic["gradients"] * train,
        every_gradients=traffic["every gradients"] * train,
        weights=traffic["weights"] * train,
        tied=float(traffic["tied"][0]) * train,
        optimizer=composed.update()[stage, 0] * scale * train,
        host=stack.step_seconds * scale,
        crossing=float(crossing) if plan.pp > 1 else 0.0,
        micro_batches=composed.workload.global_batch // (plan.dp * plan.micro_batch),
        overlap_grad=bool(overlaps(composed.plans.overlap_grad, stack.overlap_grad)[0]),
        overlap_param=bool(overlaps(composed.plans.overlap_param, stack.overlap_param)[0]),
        buckets=min(round(1 / exposed), MOST_BUCKETS) if exposed else MOST_BUCKETS,
        hiding=stack.hiding_dp,
        shares=shares,
        states=states,
        kept=kept,
        passing=np.maximum(passing, 0.0),
        allocated=memory.allocated_CP[stage, 0],
    )


def chunk_shares(layers_S: IntArray, chunks: int) -> FloatArray:
    """Share of each stage's layers that every one of its chunks holds, (S, V).

    Equal ones, but that an end stage's missing layers are missing in the first chunk of the model
    or in its last, where the embedding or the head takes their place (Megatron-Core,
    ``--account-for-embedding-in-pipeline-split`` and ``-loss-``).
    """
    shares = np.full((len(layers_S), chunks), 1.0 / chunks)
    for stage, chunk in {(0, 0), (len(layers_S) - 1, chunks - 1)}:
        layers = int(layers_S[stage])
        full = -(-layers // chunks)
        missing = full * chunks - layers
        if 0 < missing <= full and len(layers_S) > 1:
            shares[stage] = full / layers
            shares[stage, chunk] = (full - missing) / layers
    return shares


def _passes(
    composed: Composition, shares: FloatArray, stage: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds of a micro-batch through each chunk by part, both (S, V, 2 K), not scaled.

    The embedding is in the first chunk of the first stage and the head in the last of the last.
    """
    plan = composed.plans[0]
    costs, key = composed.layers, int(composed.key_P[0])
    layers = composed.shards.classes.layers[:, composed.step_P[:1]]
    again = recomputed_layers(composed.plans, layers)[stage, 0]
    share = (again / np.maximum(layers[stage, 0], 1))[:, None]
    base = int(composed.base_kind()[0])
    shape = (len(stage), plan.interleave, 2 * PARTS)
    forward, backward = np.zeros(shape), np.zeros(shape)
    for n, layer in enumerate(costs.layers):
        each = (composed.of_kind(n)[stage, 0][:, None] * shares)[..., None]
        forward += each * _row(layer.forward, key)
        plain, full, zero = (_row(layer.backward, (r, key)) for r in (base, FULL, 0))
        backward += each * (plain + share * (full - zero))[:, None]
    if plan.pp > 1:
        crossing = _row(costs.boundary, key)
        forward += crossing
        backward += crossing
    heads = 1 + composed.model.mtp_layers
    forward[0, 0] += _row(costs.embedding_forward, key)
    backward[0, 0] += _row(costs.embedding_backward, key)
    forward[-1, -1] += heads * _row(costs.head_forward, key)
    backward[-1, -1] += heads * _row(costs.head_backward, key)
    return forward, backward


def _put_off(composed: Composition, plan: Plan, stage: IntArray) -> FloatArray:
    """Seconds of a micro-batch's weight gradients under a zero-bubble schedule, (S, 1, 2 K)."""
    weight = np.zeros((len(stage), plan.interleave, 2 * PARTS))
    if plan.schedule in LAGS and plan.pp > 1:
        weight[:, 0, COMPUTE] = composed.weight_seconds()[stage, 0]
    return weight


def _row(one: Pass, key: int | tuple[int, int]) -> FloatArray:
    """Exposed and hidden seconds of one key, (2 K,)."""
    row: FloatArray = np.concatenate([one.exposed[key], one.hidden[key]])
    return row
