"""Where it runs: one device type, the links between devices, and how many there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from estimator.cost.fitted import FittedCollective

Architecture = Literal[
    "cpu",
    "volta",
    "ampere",
    "ada",
    "hopper",
    "blackwell",
    "cdna3",
    "cdna4",
    "pascal",
    "turing",
    "cdna1",
    "cdna2",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a device's share of its node's host offers to offloaded optimizer states."""

    bandwidth: float
    """Bytes/s per direction between the device and host memory."""
    memory_bandwidth: float
    """Bytes/s of host memory per device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator. Peaks are dense FLOP/s per dtype, sizes bytes, bandwidth bytes/s."""

    name: str
    architecture: Architecture
    """Picks the kernel efficiencies of ``cost/data/roofline.yaml``."""
    peaks: Mapping[str, float]
    """Dense FLOP/s by dtype; a dtype that is absent is not supported."""
    memory_bytes: float
    """What a framework can use of the device's memory."""
    bandwidth: float
    """Bytes/s of device memory, by its data sheet."""
    sms: int
    l2_bytes: float
    tdp_watts: float
    host: Host | None = None
    """``None`` where no usual host is known: nothing can be offloaded."""
    dollars_per_hour: float | None = None
    """Rental price of one device; ``None`` when no price is known."""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One tier of interconnect, as a device sees it."""

    name: str
    bandwidth: float
    """Nominal bytes/s per direction per device."""
    efficiency: float
    """Bus bandwidth that large collectives reach, as a share of ``bandwidth``."""
    latency: float
    """Seconds to start a collective on this tier."""
    hop_latency: float
    """Seconds that each further rank (or node) of the group adds."""
    nic_bandwidth: float | None = None
    """Bytes/s of one NIC; ``None`` where every device has its own."""
    group_bandwidth: float | None = None
    """Bus bandwidth (bytes/s) that one group reaches at most, however many of its ranks share a
    node, as where NCCL finds it one NIC; ``None`` where each rank adds its own."""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal devices in equal nodes: a scale-up domain inside, a scale-out network between.

    Raises ``ValueError`` where the numbers contradict each other.
    """

    name: str
    device: Device
    nodes: int
    gpus_per_node: int
    scale_up: Link
    scale_up_domain: int
    """Devices that reach each other over ``scale_up`` (a node, or a rack for NVL72 parts)."""
    scale_out: Link | None
    """``None`` only where one scale-up domain holds all devices."""
    leaf_nodes: int | None = None
    """Nodes that reach each other below the spine; ``None`` where all do at full rate."""
    oversubscription: float = 1.0
    """Bandwidth of a leaf's NICs over that of its links to the spine."""
    collectives: tuple[FittedCollective, ...] = ()
    """Measured and fitted; any that these do not cover goes by the links' nominal numbers."""
    noise: float = 0.0
    """Relative spread of one step's time from run to run, as of a network shared with others."""
    memory_margin: float = 0.0
    """Share of each device's memory that plans must leave free."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise ValueError(
                f"cluster {self.name} has {self.nodes} nodes of {self.gpus_per_node} GPUs; "
                "it needs at least one GPU"
            )
        if self.scale_up_domain < 1:
            raise ValueError(
                f"scale_up_domain={self.scale_up_domain} of {self.name} must be at least 1"
            )
        if not 0 <= self.noise < 1:
            raise ValueError(f"noise={self.noise} must be a share from 0 to below 1")
        if not 1 <= self.oversubscription <= 1000:
            raise ValueError(f"oversubscription={self.oversubscription} must lie from 1 to 1000")
        if self.leaf_nodes is None:
            if self.oversubscription > 1:
                raise ValueError(
                    f"oversubscription={self.oversubscription} needs leaf_nodes: the nodes that "
                    "reach each other below it"
                )
        elif self.leaf_nodes < 1 or self.leaf_ranks % self.scale_up_domain:
            raise ValueError(
                f"leaf_nodes={self.leaf_nodes} must hold whole scale-up domains of "
                f"{self.scale_up_domain} GPUs"
            )
        if not 0 <= self.memory_margin < 1:
            raise ValueError(
                f"memory_margin={self.memory_margin} must be a share from 0 to below 1"
            )
        if self.scale_out is None and self.gpus > self.scale_up_domain:
            raise ValueError(
                f"cluster {self.name} has {self.gpus} GPUs in domains of {self.scale_up_domain} "
                "but no scale_out link between them; name one"
            )

    @property
    def gpus(self) -> int:
        """All devices: the world size."""
        return self.nodes * self.gpus_per_node

    @property
    def leaf_ranks(self) -> int:
        """Devices below one leaf switch, or all of them."""
        return self.gpus if self.leaf_nodes is None else self.leaf_nodes * self.gpus_per_node

    @property
    def capacity_bytes(self) -> float:
        """Bytes that a plan may use of one device."""
        return self.device.memory_bytes * (1 - self.memory_margin)

    @property
    def price_per_hour(self) -> float | None:
        """Dollars per hour for the whole cluster, where the device has a price."""
        price = self.device.dollars_per_hour
        return None if price is None else price * self.gpus

    def peak(self, precision: str) -> float:
        """Dense FLOP/s of one device in ``precision``; ``ValueError`` where it lacks it."""
        if precision not in self.device.peaks:
            known = ", ".join(self.device.peaks)
            raise ValueError(f"{self.device.name} has no {precision} peak; use one of {known}")
        return self.device.peaks[precision]
