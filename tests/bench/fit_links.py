"""Fit the links of the catalogue to measured collectives, and print the errors.

Run as ``python tests/bench/fit_links.py TABLES`` (pandas with pyarrow). ``TABLES`` holds
``collectives/nccl.csv``, one row a size of published nccl-tests tables and of the collectives in
NVIDIA aiconfigurator's systems data (Apache-2.0), and ``collectives/vtrain_allreduce.parquet``,
vTrain's all-reduce tables (MIT). Nothing is fitted on a training run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from fit_roofline import Column, column, report

# Bytes/s per direction per device.
NVLINK = {"NVLink2": 150e9, "NVLink3": 300e9, "NVLink4": 450e9, "NVLink5": 900e9}
# Two-node tables whose network is known: its bytes/s per device, and the smallest size to fit.
NETWORKS = {
    "hdr": ("T0302", 25e9, 2**20),
    "ndr": ("T0301", 50e9, 2**20),
    "efa-p4d": ("T0305", 6.25e9, 2**24),
    "tcpx-a3-high": ("T0299", 12.5e9, 2**26),
    "tcpxo-a3-mega": ("T0300", 25e9, 2**20),
}


def linked(x: Column, rows: pd.DataFrame) -> Column:
    """Seconds of a ring collective; ``x`` is efficiency, latency and hop latency."""
    moved = column(rows, "volume") / (x[0] * column(rows, "nominal"))
    return np.asarray(x[1] + x[2] * (column(rows, "ranks") - 1) + moved, np.float64)


def fit_links(tables: Path) -> None:
    """NVLink generations inside a node, then networks between two nodes of eight devices."""
    rows = pd.read_csv(tables / "collectives/nccl.csv")
    rows = rows[rows["collective"].isin(["all_reduce", "all_gather", "reduce_scatter"])]
    rows = rows[(rows["size_bytes"] >= 2**20) & ~rows["notes"].fillna("").str.startswith("[")]
    vtrain = pd.read_parquet(tables / "collectives/vtrain_allreduce.parquet")
    # Only every 16th size of vTrain's thousand, or it would outvote every other table.
    vtrain = vtrain[vtrain["bytes"] % 2**24 == 2**20].assign(
        link_intra=lambda t: t["gpu"].map({"A100": "NVLink3", "V100": "NVLink2"}),
        collective="all_reduce",
        size_bytes=lambda t: t["bytes"],
        n_gpus=lambda t: t["n"],
        n_nodes=1,
    )
    rows = pd.concat([rows, vtrain], ignore_index=True)
    # Perlmutter's A100s are wired in pairs, without a switch.
    rows = rows[~rows["gpu"].str.contains("Perlmutter")]
    ring = (rows["n_gpus"] - 1) / rows["n_gpus"] * rows["size_bytes"]
    rows = rows.assign(
        volume=ring * np.where(rows["collective"] == "all_reduce", 2, 1),
        seconds=rows["time_us"] * 1e-6,
    )
    generation = rows["link_intra"].fillna("").str.extract(r"^(NVLink\d)")[0]
    # GB200 is a rack of nodes of four; its tables repeat B200's at 2 and 4 ranks.
    inside = rows[(rows["n_nodes"] == 1) & generation.notna() & (rows["gpu"] != "NVIDIA GB200")]
    inside = inside.assign(ranks=inside["n_gpus"], nominal=generation.map(NVLINK))
    for name, group in inside.groupby(generation):
        # Without a switch the rate of part of a V100 node depends on which GPUs it is.
        group = group[group["n_gpus"] == 8] if name == "NVLink2" else group
        for floor in (2**20, 2**24):
            large = group[group["size_bytes"] >= floor]
            label = f"{name} from {floor >> 20} MiB: efficiency, latency, hop"
            constants = report(label, linked, large, [0.8, 2e-5, 3e-6], ["size_bytes"])
            for key, part in large.groupby(["collective", "n_gpus"]):
                bias = np.median(linked(constants, part) / column(part, "seconds")) - 1
                print(f"  {key} {len(part)} rows, bias {bias:+.3f}")
    for name, (table, nominal, floor) in NETWORKS.items():
        group = rows[(rows["table_id"] == table) & (rows["size_bytes"] >= floor)]
        group = group.assign(ranks=2, nominal=8 * nominal)
        if name == "efa-p4d":  # faster than a ring could be: a tree, which sends the buffer once
            group = group.assign(volume=group["size_bytes"])
        # One node count cannot tell the hop from the start: the hop stays at zero here.
        report(
            f"{name}: efficiency, latency of two nodes",
            lambda x, q: linked(np.array([x[0], x[1], 0.0]), q),
            group,
            [0.8, 1e-4],
            ["size_bytes"],
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("fit_links.py needs one argument, the folder with the tables")
    fit_links(Path(sys.argv[1]))
