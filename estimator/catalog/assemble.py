"""Clusters from what people write: ``h100-sxm:64``, ``dgx-h100:128``, or a file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from estimator.catalog.loader import Kind, is_path, locate, names, unknown
from estimator.catalog.reading import fault, read_mapping, short
from estimator.catalog.wiring import link_entry, wired
from estimator.cluster import Cluster, Link

if TYPE_CHECKING:
    from estimator.catalog.schema import ClusterEntry, DeviceEntry, LinkEntry
    from estimator.cost.fitted import FittedCollective

MOST_GPUS = 1_000_000


def load_cluster(text: str) -> Cluster:
    """``device:gpus``, the name of a catalogue cluster or the path of a file, each with ``:gpus``.

    A device comes in its usual nodes; fewer GPUs than a node are one node of that many.

    Raises:
        ValueError: one line, where the name is unknown, the number does not fill nodes, or the
            file has a fault.
    """
    if not isinstance(text, str):
        raise ValueError(f"cluster must be text such as h100-sxm:64, not {short(text)}")
    head, gpus = _split(text)
    kind, path = _find(head)
    if kind == "devices" and gpus is None:
        raise ValueError(f"{head} is a device; say how many GPUs, for example {head}:8")
    cluster = _cluster(path) if kind == "clusters" else _usual_node(path)
    return cluster if gpus is None else resize(cluster, gpus)


def load_node(device: str) -> Cluster:
    """One usual node of a catalogue device; ``ValueError`` names the nearest where unknown."""
    return _usual_node(locate("devices", device))


def resize(cluster: Cluster, gpus: int) -> Cluster:
    """The same nodes, as many as hold ``gpus`` devices, or part of one node.

    Raises:
        ValueError: where they do not fill their nodes, with the nearest numbers that do.
    """
    name, size = cluster.name, cluster.gpus_per_node
    if not 1 <= gpus <= MOST_GPUS:
        raise ValueError(f"{name}:{gpus} must have from 1 to {MOST_GPUS:,} GPUs")
    whole = gpus // size * size
    if gpus < size:
        divisors = [n for n in range(1, size + 1) if size % n == 0]
        near = [max(n for n in divisors if n <= gpus), min(n for n in divisors if n >= gpus)]
    else:
        near = [whole, whole + size]
    if gpus not in near and gpus != whole:
        raise ValueError(
            f"{name}:{gpus} has {gpus} GPUs, but {name} comes in nodes of {size}; "
            f"try {near[0]} or {near[1]}, or write a cluster file"
        )
    return replace(
        cluster,
        name=f"{name}:{gpus}",
        nodes=max(1, gpus // size),
        gpus_per_node=min(gpus, size),
        scale_up_domain=min(gpus, cluster.scale_up_domain),
    )


def _split(text: str) -> tuple[str, int | None]:
    """The name or path, and the number of GPUs behind its colon."""
    head, colon, tail = text.rpartition(":")
    if not colon or is_path(tail):
        return text, None
    if not re.fullmatch(r"[0-9]{1,12}", tail):
        raise ValueError(
            f"cluster {short(text)}: the number of GPUs must be a whole number from 1, "
            f"not {short(tail)}; write for example h100-sxm:64"
        )
    return head, int(tail)


def _find(head: str) -> tuple[Kind, Path]:
    """Which kind of entry describes the nodes, and its file."""
    if head.lower().endswith(".txt"):
        raise ValueError(
            f"{short(head)} does not say which GPU it is; write a cluster file with name, device, "
            "topology and nic_bandwidth"
        )
    if is_path(head):
        path = Path(head)
        return ("clusters" if "device" in read_mapping(path) else "devices"), path
    kinds: tuple[Kind, ...] = ("clusters", "devices")
    for kind in kinds:
        if head in names(kind):
            return kind, locate(kind, head)
    raise ValueError(
        unknown("clusters", head, [*names("clusters"), *names("devices")])
        + " and trainplan catalog devices"
    )


def _cluster(path: Path) -> Cluster:
    from estimator.catalog.check import check
    from estimator.catalog.schema import ClusterEntry

    return _assemble(check(read_mapping(path), ClusterEntry, path), path)


def _usual_node(path: Path) -> Cluster:
    from estimator.catalog.check import check
    from estimator.catalog.schema import ClusterEntry, DeviceEntry

    device = check(read_mapping(path), DeviceEntry, path)
    return _assemble(ClusterEntry(name=device.name, device=device), path)


def _assemble(entry: ClusterEntry, path: Path) -> Cluster:
    """The cluster of an entry; what it leaves out is the device's usual node."""
    try:
        device, home = _device(entry, path)
        if entry.topology is not None:
            entry = wired(entry, device, path.parent, home)
        elif entry.nic_bandwidth is not None:
            raise ValueError(
                "nic_bandwidth is that of the NICs in a topology; add topology, or write "
                "scale_out with nics_per_node"
            )
        size, domain = _sizes(entry, device)
        usual = (device.node.scale_up, device.node.scale_out) if device.node else (None, None)
        up = _link(entry.scale_up, path.parent, size) or _link(usual[0], home, size)
        if "scale_out" in entry.model_fields_set:
            out = _link(entry.scale_out, path.parent, size)
        else:
            out = _link(usual[1], home, size)
        assert up is not None
        return Cluster(
            name=entry.name,
            device=device.noun(),
            nodes=entry.nodes,
            gpus_per_node=size,
            scale_up=up,
            scale_up_domain=domain,
            scale_out=out,
            leaf_nodes=entry.leaf_nodes,
            oversubscription=entry.oversubscription,
            noise=entry.noise,
            collectives=_collectives(entry, device, (path.parent, home), up),
        )
    except ValueError as error:
        raise fault(path, str(error)) from None


def _sizes(entry: ClusterEntry, device: DeviceEntry) -> tuple[int, int]:
    """Devices of a node and of a scale-up domain; ``ValueError`` where they do not fit."""
    node = device.node
    if node is None and (entry.gpus_per_node is None or entry.scale_up is None):
        raise ValueError(
            f"gpus_per_node and scale_up are needed, since {device.name} names no usual node; "
            "add them"
        )
    size = entry.gpus_per_node or (node.gpus_per_node if node else 1)
    usual = node.scale_up_domain if node and entry.gpus_per_node is None else size
    domain = entry.scale_up_domain or usual
    if entry.nodes * size > MOST_GPUS:
        raise ValueError(
            f"nodes x gpus_per_node = {entry.nodes * size} exceeds {MOST_GPUS:,}; take fewer nodes"
        )
    if domain % size and size % domain:
        raise ValueError(
            f"scale_up_domain={domain} must be whole nodes of {size} GPUs, or an equal part of one"
        )
    return size, domain


def _device(entry: ClusterEntry, path: Path) -> tuple[DeviceEntry, Path]:
    """The device's entry, and the folder in which its links' paths start."""
    from estimator.catalog.check import check
    from estimator.catalog.schema import DeviceEntry

    if isinstance(entry.device, DeviceEntry):
        return entry.device, path.parent
    found = locate("devices", entry.device, path.parent)
    return check(read_mapping(found), DeviceEntry, found), found.parent


def _collectives(
    entry: ClusterEntry, device: DeviceEntry, folders: tuple[Path, Path], up: Link
) -> tuple[FittedCollective, ...]:
    """Those of the file, by default the device's where the same link joins as many of a node.

    ``folders`` are where paths in the file and in the device's entry start.
    """
    from estimator.catalog.fitted import load_collectives

    given, folder = entry.collectives, folders[0]
    if "collectives" not in entry.model_fields_set and device.node is not None:
        size = device.node.gpus_per_node
        usual = _link(device.node.scale_up, folders[1], size)
        if up == usual and entry.gpus_per_node in (None, size):
            given, folder = device.node.collectives, folders[1]
    return tuple(
        fitted for one in given for fitted in load_collectives(locate("collectives", one, folder))
    )


def _link(given: str | LinkEntry | None, folder: Path, gpus_per_node: int) -> Link | None:
    found = link_entry(given, folder)
    return None if found is None else found.noun(gpus_per_node)
