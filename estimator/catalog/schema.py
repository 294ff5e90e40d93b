"""What an entry may say: one pydantic model per kind, each turning into its noun."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from estimator.catalog.quantities import Dimension, parse
from estimator.cluster import Architecture, Device, Host, Link
from estimator.model import (
    Activation,
    Bias,
    Experts,
    LatentAttention,
    Norm,
    Positions,
    Transformer,
)
from estimator.plan import Order, Recompute
from estimator.stack import Calibration, FittedScalar, Fusion, RecomputeStyle, Stack
from estimator.workload import Precision


def _quantity(dimension: Dimension) -> BeforeValidator:
    return BeforeValidator(lambda text: parse(text, dimension))


Bytes = Annotated[float, _quantity("bytes")]
Rate = Annotated[float, _quantity("bytes/s"), Field(gt=0)]
Flops = Annotated[float, _quantity("FLOP/s"), Field(gt=0)]
Seconds = Annotated[float, _quantity("seconds")]
Watts = Annotated[float, _quantity("watts"), Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[\x21-\x7e]+$")]
Width = Annotated[int, Field(ge=1, le=10_000_000)]
"""Elements; the bound keeps products of three sizes inside int64."""
Extent = Annotated[int, Field(ge=0, le=10_000_000)]
"""Elements or layers that may be none."""
Layers = Annotated[int, Field(ge=1, le=10_000)]
Positive = Annotated[int, Field(ge=1, le=1_000_000_000)]
Parameters = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Source = Annotated[str, Field(min_length=1)]
UNSAID = "stated without a source"
Zero = Literal[0, 1, 2, 3]


def _written_as(value: object) -> str:
    return "<inline>" if isinstance(value, Mapping | BaseModel) else "<name>"


class Entry(BaseModel):
    """Strict types, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ExpertsEntry(Entry):
    """``experts`` of a model: the fields of :class:`Experts`."""

    count: Width
    top_k: Width
    ffn: Width
    shared_ffn: Extent = 0
    first_dense: Extent = 0
    every: Layers = 1

    def noun(self) -> Experts:
        """The experts; ``ValueError`` where their counts contradict each other."""
        return Experts(**self.model_dump())


class LatentEntry(Entry):
    """``latent`` of a model: the fields of :class:`LatentAttention`."""

    kv_rank: Width
    nope_dim: Width
    rope_dim: Width
    v_dim: Width
    q_rank: Extent = 0

    def noun(self) -> LatentAttention:
        """The latent attention."""
        return LatentAttention(**self.model_dump())


class TransformerEntry(Entry):
    """``models/*.yaml``: the fields of :class:`Transformer`, and what its publisher counts."""

    name: Name
    layers: Layers
    hidden: Width
    ffn: Width
    heads: Width
    kv_heads: Width
    head_dim: Width
    vocab: Width
    max_positions: Positive
    activation: Activation
    positions: Positions
    norm: Norm
    bias: Bias
    tied: bool
    parallel_residual: bool = False
    norms_per_layer: Literal[1, 2, 4] = 2
    qk_norm: bool = False
    causal: bool = True
    window: Positive | None = None
    windowed_layers: Extent = 0
    experts: ExpertsEntry | None = None
    latent: LatentEntry | None = None
    mtp_layers: Extent = 0
    published_parameters: Parameters | None = None
    """As printed: zeros at the end are digits that the publisher rounded away."""
    published_active_parameters: Parameters | None = None
    """Likewise of what one token visits; publishers differ on whether embeddings count."""
    source: Source = UNSAID

    def noun(self) -> Transformer:
        """The model; ``ValueError`` where its sizes contradict each other."""
        said = {"published_parameters", "published_active_parameters", "source"}
        plain = self.model_dump(exclude={*said, "experts", "latent"})
        experts = self.experts.noun() if self.experts is not None else None
        latent = self.latent.noun() if self.latent is not None else None
        return Transformer(**plain, experts=experts, latent=latent)


class LinkEntry(Entry):
    """``links/*.yaml``, or a link written out in a cluster file."""

    name: Name = "link"
    bandwidth: Rate | None = None
    """Per device and direction."""
    nics_per_node: Count | None = None
    nic_bandwidth: Rate | None = None
    """Of one NIC, per direction; the devices of a node share ``nics_per_node`` of them."""
    group_bandwidth: Rate | None = None
    """Bus bandwidth that one group reaches at most, as measured; blank where each rank adds."""
    efficiency: Annotated[float, Field(gt=0, le=1)]
    latency: Seconds
    hop_latency: Seconds
    source: Source = UNSAID

    @model_validator(mode="after")
    def _one_bandwidth(self) -> LinkEntry:
        nics = (self.nics_per_node is not None, self.nic_bandwidth is not None)
        if any(nics) != all(nics) or any(nics) == (self.bandwidth is not None):
            raise ValueError(
                "takes either bandwidth (per device) or nics_per_node with nic_bandwidth; "
                "give exactly one of the two"
            )
        return self

    def noun(self, gpus_per_node: int) -> Link:
        """The link as each of ``gpus_per_node`` devices sees it."""
        bandwidth = self.bandwidth
        if self.nics_per_node is not None and self.nic_bandwidth is not None:
            bandwidth = self.nics_per_node * self.nic_bandwidth / gpus_per_node
        assert bandwidth is not None
        return Link(
            name=self.name,
            bandwidth=bandwidth,
            efficiency=self.efficiency,
            latency=self.latency,
            hop_latency=self.hop_latency,
            nic_bandwidth=self.nic_bandwidth,
            group_bandwidth=self.group_bandwidth,
            source=self.source,
        )


AnyLink = Annotated[
    Annotated[Name, Tag("<name>")] | Annotated[LinkEntry, Tag("<inline>")],
    Discriminator(_written_as),
]
"""A link's name, the path of its file, or the link written out."""


def _listed(value: object) -> object:
    """One reference, or none, as a list of them."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


Fits = Annotated[list[Name], BeforeValidator(_listed), Field(max_length=100)]
"""Fitted collectives by name, or by the path of what ``trainplan fit collectives`` wrote."""


class Node(Entry):
    """How many devices of a kind sit together, and what joins them."""

    gpus_per_node: Count
    scale_up_domain: Count
    scale_up: AnyLink
    scale_out: AnyLink | None
    collectives: Fits = []
    """Fitted over ``scale_up``."""


class Price(Entry):
    """A rental price and where it was seen."""

    value: Number
    source: Source = UNSAID


class HostEntry(Entry):
    """A device's share of its node's host."""

    bandwidth: Rate
    memory_bandwidth: Rate


class DeviceEntry(Entry):
    """``devices/*.yaml``: a data sheet, the memory that is usable, and the usual node."""

    name: Name
    architecture: Architecture
    peaks: Annotated[dict[Precision, Flops], Field(min_length=1)]
    memory: Annotated[Bytes, Field(gt=0)]
    bandwidth: Rate
    sms: Count
    l2: Annotated[Bytes, Field(gt=0)]
    tdp: Watts
    host: HostEntry | None = None
    dollars_per_hour: Price | None = None
    node: Node | None = None
    source: Source = UNSAID

    def noun(self) -> Device:
        """The device."""
        price = self.dollars_per_hour
        return Device(
            name=self.name,
            architecture=self.architecture,
            peaks={str(dtype): peak for dtype, peak in self.peaks.items()},
            memory_bytes=self.memory,
            host=None if self.host is None else Host(**self.host.model_dump()),
            bandwidth=self.bandwidth,
            sms=self.sms,
            l2_bytes=self.l2,
            tdp_watts=self.tdp,
            dollars_per_hour=None if price is None else price.value,
            source=self.source if price is None else f"{self.source} Price: {price.source}.",
        )


class ClusterEntry(Entry):
    """``clusters/*.yaml``; what it leaves out comes from the device's usual node."""

    name: Name
    device: Annotated[
        Annotated[Name, Tag("<name>")] | Annotated[DeviceEntry, Tag("<inline>")],
        Discriminator(_written_as),
    ]
    nodes: Count = 1
    topology: Name | None = None
    """The path of what ``nvidia-smi topo -m`` printed on a node; it gives the fields below."""
    nic_bandwidth: Rate | None = None
    """Of each NIC in ``topology``, per direction."""
    gpus_per_node: Count | None = None
    scale_up: AnyLink | None = None
    scale_up_domain: Count | None = None
    scale_out: AnyLink | None = None
    leaf_nodes: Count | None = None
    oversubscription: Annotated[float, Field(ge=1, le=1000)] = 1.0
    noise: Annotated[float, Field(ge=0, lt=1)] = 0.0
    collectives: Fits = []
    """Fitted on it; of two of one collective and group the first counts."""
    source: Source = UNSAID


class FittedScalarEntry(Entry):
    """One scalar of a calibration: the fields of :class:`FittedScalar`."""

    value: Number
    prior: Number
    sd: Number
    identified: bool


Finite = Annotated[float, Field(allow_inf_nan=False)]
Words = Annotated[list[Source], Field(max_length=1000)]


class CalibrationEntry(Entry):
    """``calibration`` of a stack: the fields of :class:`Calibration`."""

    cost: Name
    collectives: Words
    devices: Words
    precisions: Words
    sources: Words
    rows: Count
    configurations: Count
    scalars: dict[Name, FittedScalarEntry]
    error_before: Number
    error_after: Number | None
    residuals: Annotated[list[Finite], Field(max_length=1000)]

    def noun(self) -> Calibration:
        """The calibration."""
        fields: dict[str, Any] = self.model_dump(exclude={"scalars"})
        for name, value in fields.items():
            fields[name] = tuple(value) if isinstance(value, list) else value
        scalars = {name: FittedScalar(**one.model_dump()) for name, one in self.scalars.items()}
        return Calibration(**fields, scalars=scalars)


class StackEntry(Entry):
    """``stacks/*.yaml`` once each ``{value, source}`` is taken apart; fields of :class:`Stack`."""

    name: Name
    weight_bytes: Bytes
    half_precision_shards: bool
    regathers_inputs: bool
    recompute_style: RecomputeStyle
    gradient_bytes: Bytes
    logit_bytes: Bytes
    weight_gradient_buffers: bool
    frozen_in_fp8: bool
    unsharded_layers: Number
    reserved_ratio: Annotated[float, Field(ge=1, le=10)]
    context_bytes: Bytes
    memory_uncertainty: Annotated[float, Field(ge=0, lt=1)]
    launch_forward: Seconds
    launch_backward: Seconds
    launch_experts: Seconds
    step_seconds: Seconds
    attention_kernel: Name
    fused: list[Fusion]
    gradient_accumulation_traffic: Share
    overlap_grad: bool
    overlap_param: bool
    overlap_tp: bool
    overlap_ep: bool
    overlap_p2p: bool
    async_tp_backward: bool
    casts_before_gather: bool
    scattered_boundaries: bool
    hidden_tp: Share
    cp_exchange: Literal["ring", "all_to_all"]
    deduplicated_dispatch: bool
    whole_tensor_owners: bool
    hiding_cp: Share
    exposed_cp: Share
    exposed_ep: Share
    hiding_dp: Share
    exposed_dp: Share
    interference_zero3: Share
    straggler_per_doubling: Share
    in_situ: Annotated[dict[Name, Annotated[float, Field(gt=0, le=100)]], Field(min_length=1)]
    uncertainty: Annotated[float, Field(ge=0, lt=1)]
    zero: Annotated[list[Zero], Field(min_length=1)]
    recompute: Annotated[list[Recompute], Field(min_length=1)]
    max_tp: Count
    max_cp: Count
    max_pp: Count
    interleaving: bool
    pipeline_zero: Annotated[list[Zero], Field(min_length=1)]
    uneven_stages: bool
    rank_orders: Annotated[list[Order], Field(min_length=1)]
    calibration: CalibrationEntry | None = None

    def noun(self, sources: Mapping[str, str]) -> Stack:
        """The stack, with the source of each field."""
        fields: dict[str, Any] = self.model_dump(exclude={"calibration"})
        for name, value in fields.items():
            if isinstance(value, list):
                fields[name] = frozenset(value) if name == "fused" else tuple(value)
        fitted = None if self.calibration is None else self.calibration.noun()
        return Stack(**fields, sources=dict(sources), calibration=fitted)
