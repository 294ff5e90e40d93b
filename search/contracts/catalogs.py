"""What the catalogue knows by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from estimator.cluster import Cluster, Device
from estimator.model import Transformer
from estimator.stack import Stack
from search.contracts.files import plain
from search.contracts.shapes import NUMBER, Shape

CATALOG = "trainplan.catalog.v1"
SCHEMAS: dict[str, Shape] = {
    CATALOG: {
        "schema": str,
        "models": [{"name": str, "parameters": int, "active_parameters": int}],
        "devices": [{"name": str, "memory_bytes": NUMBER, "peaks": dict}],
        "clusters": [{"name": str, "device": str, "gpus": int}],
        "stacks": [{"name": str}],
    },
}


def catalog(
    models: Iterable[Transformer] = (),
    devices: Iterable[Device] = (),
    clusters: Iterable[Cluster] = (),
    stacks: Iterable[Stack] = (),
) -> dict[str, Any]:
    """The document ``trainplan.catalog.v1``."""
    return {
        "schema": CATALOG,
        "models": [
            plain(m) | {"parameters": m.parameters, "active_parameters": m.active_parameters}
            for m in models
        ],
        "devices": [plain(device) for device in devices],
        "clusters": [
            {
                "name": c.name,
                "device": c.device.name,
                "gpus": c.gpus,
                "nodes": c.nodes,
                "gpus_per_node": c.gpus_per_node,
                "collectives": [
                    {"kind": f.kind, "group": f.group, "inside": f.inside, "source": f.source}
                    for f in c.collectives
                ],
            }
            for c in clusters
        ],
        "stacks": [plain(stack) for stack in stacks],
    }
