"""Collectives: as fitted where a cluster carries that, else linear, flat or hierarchical."""

from __future__ import annotations

import numpy as np

from estimator.cluster import Cluster, Link
from estimator.cost.fitted import fitted_seconds
from estimator.lower.slots import Collective, FloatArray

ROUNDS: dict[Collective, int] = {
    "all_reduce": 2,
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
    "send_recv": 1,
    "broadcast": 1,
}
"""Trips of the buffer around the ring (nccl-tests, PERFORMANCE.md: bus bandwidth)."""
NETWORK_STEP = 2 * 2.0**19
"""Bytes of a broadcast that a NIC takes in before the next sends them on: a step of NCCL's buffers
(an eighth of NCCL_BUFFSIZE, 4 MiB) for each of the two channels that it gives a NIC."""


def collective_seconds(
    kind: Collective,
    size: FloatArray,
    group: FloatArray,
    inside: FloatArray,
    cluster: Cluster,
    *,
    between: FloatArray | float = 0.0,
    above_leaf: FloatArray | float = 0.0,
) -> FloatArray:
    """Seconds by the cluster's fitted collectives, by :func:`linear_seconds` where they end.

    Takes the arguments of :func:`linear_seconds`.
    """
    linear = linear_seconds(
        kind, size, group, inside, cluster, between=between, above_leaf=above_leaf
    )
    measured = measured_seconds(kind, size, group, inside, cluster, between=between)
    return np.where(np.isnan(measured), linear, measured)


def measured_seconds(
    kind: Collective,
    size: FloatArray,
    group: FloatArray,
    inside: FloatArray,
    cluster: Cluster,
    *,
    between: FloatArray | float = 0.0,
) -> FloatArray:
    """Seconds by the cluster's fitted collectives; nan where they end.

    Gathers and reduce-scatters that were not measured are half of an all-reduce that was: the two
    halves of a ring.
    """
    measured = {fitted.kind for fitted in cluster.collectives}
    buffer = size
    if kind == "all_to_all":
        # Measured buffers hold a rank's own share too, which does not leave it.
        buffer = (size + between) * group / np.maximum(group - 1, 1)
    if kind in measured:
        return fitted_seconds(kind, buffer, group, inside, cluster.collectives)
    if kind in ("all_gather", "reduce_scatter") and "all_reduce" in measured:
        return 0.5 * fitted_seconds("all_reduce", size, group, inside, cluster.collectives)
    return np.full(np.broadcast_shapes(np.shape(size), np.shape(group)), np.nan)


def linear_seconds(
    kind: Collective,
    size: FloatArray,
    group: FloatArray,
    inside: FloatArray,
    cluster: Cluster,
    *,
    between: FloatArray | float = 0.0,
    above_leaf: FloatArray | float = 0.0,
) -> FloatArray:
    """Seconds of a collective on ``size`` bytes over ``group`` ranks; zero for a group of one.

    ``inside`` of the ranks share a scale-up domain. All groups of a node run at once, so each
    rank has its own share of the node's NICs and a ring through ``inside`` ranks has that many
    shares. The faster of a flat ring and (for reductions and gathers) a hierarchy of rings
    inside and a tree between is taken. A broadcast passes along one chain of all ranks, as in NCCL.
    An all-to-all sends ``size`` bytes inside the domain and ``between`` out of it, both at once. Of
    all that leaves a domain, ``above_leaf`` passes an oversubscribed spine.
    """
    up, out = cluster.scale_up, cluster.scale_out
    domains = np.ceil(group / inside)
    spans = domains > 1
    slower = np.maximum(cluster.oversubscription * above_leaf, 1.0)
    if kind == "all_to_all":
        seconds = _tier(up, inside, size)
        if out is not None:
            leaving = _tier(out, domains, slower * between + np.zeros_like(size))
            seconds = np.maximum(seconds, np.where(spans, leaving, 0.0))
        return np.where(group > 1, seconds, 0.0)
    if kind == "send_recv":
        seconds = _tier(up, inside, size)
        if out is not None:
            seconds = np.where(spans, _tier(out, domains, slower * size), seconds)
        return np.where(group > 1, seconds, 0.0)
    bandwidth = up.bandwidth * up.efficiency
    if kind == "broadcast":
        hops = up.hop_latency * (group - domains)
        seconds = up.latency + hops + size / bandwidth
        if out is not None:
            port = out.nic_bandwidth if out.nic_bandwidth is not None else out.bandwidth
            step = slower * np.minimum(NETWORK_STEP, size) / (port * out.efficiency)
            rate = np.minimum(_between(out, inside) / slower, bandwidth)
            across = out.latency + hops + (domains - 1) * (out.hop_latency + step) + size / rate
            seconds = np.where(spans, across, seconds)
        return np.where(group > 1, seconds, 0.0)
    rounds = ROUNDS[kind]
    volume = rounds * size * (group - 1) / np.maximum(group, 1)
    flat = up.latency + rounds * up.hop_latency * (inside - 1) + volume / bandwidth
    if out is None:
        return np.where(group > 1, flat, 0.0)
    between = _between(out, inside) / slower
    flat_latency = (
        out.latency
        + rounds * out.hop_latency * (domains - 1)
        + rounds * up.hop_latency * (inside - 1)
    )
    flat_between = flat_latency + volume / np.minimum(
        between, np.where(inside > 1, bandwidth, between)
    )
    within = up.latency + rounds * (
        up.hop_latency * (inside - 1) + size * (inside - 1) / inside / bandwidth
    )
    tree = out.latency + rounds * (
        out.hop_latency * np.log2(np.maximum(domains, 1)) + size * (domains - 1) / domains / between
    )
    hierarchy = np.where(inside > 1, within, 0.0) + tree
    seconds = np.where(spans, np.minimum(flat_between, hierarchy), flat)
    return np.where(group > 1, seconds, 0.0)


def _between(link: Link, ranks: FloatArray) -> FloatArray:
    """Bus bandwidth of a group with so many ranks in each domain."""
    bandwidth: FloatArray = link.bandwidth * link.efficiency * ranks
    return (
        bandwidth if link.group_bandwidth is None else np.minimum(bandwidth, link.group_bandwidth)
    )


def _tier(link: Link, ranks: FloatArray, size: FloatArray) -> FloatArray:
    """A point-to-point transfer, or a chain of ``ranks - 1`` of them with ``size`` in all."""
    hops = np.maximum(ranks - 1, 0)
    return link.latency + link.hop_latency * hops + size / (link.bandwidth * link.efficiency)
