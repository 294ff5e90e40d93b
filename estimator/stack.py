"""A training framework's habits as data: what it stores, fuses, overlaps and allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Fusion = Literal[
    "norm",
    "norm_residual",
    "bias_activation",
    "rope",
    "softmax",
    "cross_entropy",
    "expert_mlp",
    "cast",
]
"""Groups of element-wise kernels that a framework may run as one."""
RecomputeStyle = Literal["modules", "needed", "unsaved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedScalar:
    """One number of a stack after a calibration, in SI units."""

    value: float
    prior: float
    """The centre of its prior."""
    sd: float
    """Posterior standard deviation of its natural logarithm."""
    identified: bool
    """Whether the runs moved it; if not, the stack kept what it had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a stack was fitted to, and how well it then did on runs that it was not fitted to."""

    cost: str
    """The cost model under which it was fitted."""
    collectives: tuple[str, ...]
    """What priced the collectives: sources of fitted ones, ``links`` for the links' numbers."""
    devices: tuple[str, ...]
    precisions: tuple[str, ...]
    sources: tuple[str, ...]
    rows: int
    configurations: int
    """Distinct ones among the rows."""
    scalars: Mapping[str, FittedScalar]
    error_before: float
    """Median relative error of the step time before, averaged over sources."""
    error_after: float | None
    """The same after, cross-validated; ``None`` where one configuration is all there is."""
    residuals: tuple[float, ...]
    """Logarithms of predicted over measured time, cross-validated and sorted; quantiles of them
    where there are many."""

    @property
    def helps(self) -> bool:
        """Whether the error fell where it was not fitted."""
        return self.error_after is not None and self.error_after < self.error_before


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """How one framework runs a plan. No kernel efficiency; every number has an entry in sources.

    Seconds and bytes throughout; shares lie in [0, 1].
    """

    name: str

    # What it keeps in memory.
    weight_bytes: float
    """Bytes per weight it keeps in half-precision training; 4 makes weights their own master."""
    half_precision_shards: bool
    """With zero=3, keeps a half-precision shard of the weights beside the fp32 one."""
    regathers_inputs: bool
    """With sequence parallelism, gathers what a column-parallel GEMM reads again for its weight
    gradient, instead of keeping it whole."""
    recompute_style: RecomputeStyle
    """What recompute runs again: whole ``modules`` (Megatron-LM); what is ``needed`` (PyTorch stops
    before the last GEMM of a layer, whose output only the next reads); or what was ``unsaved`` (XLA
    keeps outputs of GEMMs alone, and runs no more than is needed either)."""
    gradient_bytes: float
    """Bytes per gradient element held for the step (half-precision training)."""
    logit_bytes: float
    """Bytes per logit element alive at the loss (half-precision training)."""
    weight_gradient_buffers: bool
    """Keeps one half-precision buffer per distinct weight shape (Transformer Engine's fused
    accumulation)."""
    frozen_in_fp8: bool
    """Adapters trained in fp8 leave frozen weights, and the inputs of activations, in fp8 only."""
    unsharded_layers: float
    """Layers gathered at a time under zero=3 (the running one and the prefetched)."""
    reserved_ratio: float
    """Bytes that the caching allocator reserves over those allocated, at least 1."""
    context_bytes: float
    """Driver context and communicator buffers outside the allocator."""
    memory_uncertainty: float
    """Half width of the interval around the peak of memory, relative."""

    # What it launches and fuses.
    launch_forward: float
    """Host seconds to launch one layer's forward: a floor under the layer's time."""
    launch_backward: float
    launch_experts: float
    """Further host seconds of a layer with experts, in each direction: kernels per expert, and
    waits for the numbers of tokens that each gets."""
    step_seconds: float
    """Fixed host seconds per step."""
    attention_kernel: str
    """Fused attention kernel, by its name in the cost model's data."""
    fused: frozenset[str]
    """Which it runs as one kernel."""
    gradient_accumulation_traffic: float
    """Share of the read and write of fp32 main gradients, per micro-batch, that is not hidden."""

    # What it overlaps, and how well that hides.
    overlap_grad: bool
    overlap_param: bool
    overlap_tp: bool
    overlap_ep: bool
    overlap_p2p: bool
    async_tp_backward: bool
    """Input gradients of a column-parallel GEMM are reduced beside its weight gradient."""
    casts_before_gather: bool
    """fp8 and fp4 runs cast what a GEMM reads before they gather it over tensor-parallel ranks."""
    scattered_boundaries: bool
    """Tensor-parallel ranks each send a part of equal activations to the next stage."""
    hidden_tp: float
    """Share of tensor-parallel communication hidden by GEMM overlap."""
    cp_exchange: str
    """``ring`` passes keys and values on, ``all_to_all`` swaps sequence for heads."""
    deduplicated_dispatch: bool
    """A token goes once to each scale-up domain that holds some of its experts (DeepEP)."""
    whole_tensor_owners: bool
    """With zero=1 and 2 a rank owns whole tensors: gradients are reduced on every rank, and each
    owner broadcasts its weights after the update, one broadcast after another."""
    hiding_cp: float
    """Share of the attention time that context-parallel exchange can hide behind."""
    exposed_cp: float
    """Share of context-parallel exchange that stays exposed however long attention is."""
    exposed_ep: float
    """Share of an exchange of experts beside compute that it costs all the same: its kernels' share
    of the multiprocessors."""
    hiding_dp: float
    """Share of the last backward that gradient reduction can hide behind."""
    exposed_dp: float
    """Share of gradient and parameter traffic that stays exposed: the last bucket."""
    interference_zero3: float
    """Slowdown under zero=3, as a share of the shorter of compute and gathering."""

    # What remains.
    straggler_per_doubling: float
    """Relative slowdown for each doubling of the number of nodes."""
    in_situ: Mapping[str, float]
    """Measured over predicted step time, per cost model: kernels in a run against alone."""
    uncertainty: float
    """Half width of the interval around a step time, relative."""

    # What it allows.
    zero: tuple[int, ...]
    recompute: tuple[str, ...]
    max_tp: int
    max_cp: int
    max_pp: int
    interleaving: bool
    pipeline_zero: tuple[int, ...]
    """Values of ``zero`` that work together with pp > 1."""
    uneven_stages: bool
    """Whether end stages may hold fewer layers than the others."""
    rank_orders: tuple[str, ...]
    sources: Mapping[str, str]
    """Where each number comes from, by field."""
    calibration: Calibration | None = None
    """What ``trainplan calibrate`` fitted it to, where it did."""
