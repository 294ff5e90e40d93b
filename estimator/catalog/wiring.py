"""Cluster files that name a topology: its islands and NICs in place of the device's usual node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from estimator.catalog.loader import locate
from estimator.catalog.reading import read_mapping, read_text
from estimator.topology import NVLINK, Topology, parse_topology

if TYPE_CHECKING:
    from estimator.catalog.schema import ClusterEntry, DeviceEntry, LinkEntry


def wired(entry: ClusterEntry, device: DeviceEntry, folder: Path, home: Path) -> ClusterEntry:
    """The entry of a file in ``folder``, with all that its topology says of a node.

    ``home`` is where paths in the device's entry start.

    Raises:
        ValueError: where the topology contradicts the entry or its device, or what it leaves
            open (the generation of PCIe, the speed of NICs) is not stated.
    """
    assert entry.topology is not None
    topology = _read(entry.topology, folder)
    gpus = topology.gpus
    if entry.gpus_per_node not in (None, gpus):
        raise ValueError(
            f"gpus_per_node={entry.gpus_per_node}, but its topology has {gpus} GPUs; leave it out"
        )
    fields: dict[str, object] = {"gpus_per_node": gpus}
    if entry.scale_up_domain is None:
        fields["scale_up_domain"] = _domain(device, topology)
    if entry.scale_up is None:
        fields["scale_up"] = _wires(device, topology, home)
    if entry.nic_bandwidth is not None or "scale_out" not in entry.model_fields_set:
        fields["scale_out"] = _network(entry, device, topology, home)
    return entry.model_copy(update=fields)


def link_entry(given: str | LinkEntry | None, folder: Path) -> LinkEntry | None:
    """A link's entry by name, by path inside ``folder``, or as it is written out."""
    from estimator.catalog.check import check
    from estimator.catalog.schema import LinkEntry

    if given is None or isinstance(given, LinkEntry):
        return given
    path = locate("links", given, folder)
    return check(read_mapping(path), LinkEntry, path)


def _read(given: str, folder: Path) -> Topology:
    path = locate("clusters", f"./{given}", folder)  # a path, though it does not end in .yaml
    text = read_text(path, "what nvidia-smi topo -m printed")
    try:
        return parse_topology(text)
    except ValueError as error:
        raise ValueError(f"topology {given}: {error}") from None


def _domain(device: DeviceEntry, topology: Topology) -> int:
    """GPUs of an island; all of a node without NVLink; a rack, where its switches join nodes."""
    island, gpus, usual = len(topology.islands()[0]), topology.gpus, device.node
    if island == 1:
        return gpus
    in_racks = usual is not None and usual.scale_up_domain > usual.gpus_per_node
    if usual is not None and in_racks and island == gpus and usual.scale_up_domain % gpus == 0:
        return usual.scale_up_domain
    return island


def _wires(device: DeviceEntry, topology: Topology, home: Path) -> LinkEntry | None:
    """The link inside an island: as many NVLinks as are shown, or the device's usual PCIe."""
    if len(topology.islands()[0]) == 1:
        usual = link_entry(device.node.scale_up, home) if device.node else None
        if topology.gpus > 1 and (usual is None or not usual.name.startswith("pcie")):
            raise ValueError(
                f"topology shows no NVLink, and the usual node of {device.name} has no PCIe link; "
                "write for example scale_up: pcie-gen4"
            )
        return usual
    links = topology.links(device.architecture)
    generation = NVLINK[device.architecture]
    found = link_entry(generation.name, home)
    assert found is not None
    source = f"{found.source} Here: {links} links in the topology of a node."
    return found.model_copy(update={"bandwidth": links * generation.bandwidth, "source": source})


def _network(
    entry: ClusterEntry, device: DeviceEntry, topology: Topology, home: Path
) -> LinkEntry | None:
    """The device's usual network over the NICs of the topology; ``None`` where it has none."""
    nics = len(topology.network)
    if nics == 0 and entry.nic_bandwidth is None:
        return None
    if entry.nic_bandwidth is None:
        raise ValueError(
            f"topology shows {nics} NICs near GPUs, but not how fast they are; add for example "
            "nic_bandwidth: 200 Gb/s, or scale_out"
        )
    if nics == 0 or entry.scale_out is not None:
        found = "topology shows no NIC" if nics == 0 else "scale_out is given too"
        raise ValueError(f"nic_bandwidth is stated, but {found}; keep one of the two")
    usual = link_entry(device.node.scale_out, home) if device.node else None
    if usual is None:
        raise ValueError(
            f"{device.name} names no usual network; write scale_out with nics_per_node"
        )
    source = f"{usual.source} Here: {nics} NICs in the topology of a node."
    return usual.model_copy(
        update={
            "bandwidth": None,
            "nics_per_node": nics,
            "nic_bandwidth": entry.nic_bandwidth,
            "source": source,
        }
    )
