"""Score the shipped tile model on NeuSight's labels (ASPLOS'25), beside the authors' own results.

Run as ``python -m tests.bench.score_neusight DATA``. ``DATA`` holds NeuSight's tables (github
sitar-lab/NeuSight, MIT) as Parquet and CSV: ``e2e/{labels,stored_predictions,
label_quality_sum_of_measured_ops}.csv``, ``e2e/{op_labels,opgraph}.parquet``,
``distributed/{labels.csv,opgraph.parquet}``, ``neusight_summary/summary.csv`` and
``amd/test_kernels/``.

Errors are absolute percentages of the measured value, means over runs. The devices H100, A100-80
and L4 are in no training row. Kernel times of a label set are summed without launch overheads,
except in the operator table, whose labels time each node by itself.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from estimator.catalog import load_cluster, load_device
from estimator.cost.collectives import collective_seconds
from estimator.cost.tiles import TileModel, shipped_tiles
from estimator.operators import concatenate
from estimator.samples import load_samples
from tests.bench.neusight_graphs import Graph, layer_counts, lower

DEVICES: Mapping[str, str] = {
    "NVIDIA_A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA_A100_80GB_PCIe": "a100-pcie-80gb",
    "NVIDIA_A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA_H100_80GB_HBM3": "h100-sxm",
    "NVIDIA_L4": "l4",
    "Tesla_P100-PCIE-16GB": "p100-pcie",
    "Tesla_P4": "p4",
    "Tesla_T4": "t4",
    "Tesla_V100-PCIE-32GB": "v100-pcie-32gb",
}
UNSEEN = ("h100-sxm", "a100-pcie-80gb", "l4")
FAMILIES: Mapping[str, str] = {
    "bmm": "BMM",
    "linear": "Linear",
    "elementwise": "VEC",
    "softmax": "VECsoftmax",
    "layer_norm": "VECln",
}
"""This project's families, and the columns of the authors' summary."""
KEY = ["device", "model", "mode", "seqlen", "batch", "option"]
GRAPH = ["model", "mode", "seqlen", "batch", "option"]
SPARSE = "switch"
"""Models with experts; their graphs hold all layers."""
NOISE = 0.1
"""Runs whose measured operators sum to the measured end-to-end within this share are good."""

Graphs = dict[tuple[object, ...], Graph]


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    for column in frame.columns:
        if isinstance(frame[column].dtype, pd.CategoricalDtype) or frame[column].dtype == object:
            frame[column] = frame[column].astype(object).fillna("").astype(str)
    if "device" in frame:
        frame["device"] = frame["device"].map(lambda name: DEVICES.get(name, name))
    return frame.fillna({"option": ""}) if "option" in frame else frame


def load_graphs(path: Path) -> Graphs:
    """Graphs by model, mode, sequence, batch and option."""
    nodes = _plain(pd.read_parquet(path))
    return {
        key: lower(rows.sort_values("idx"), str(key[0]), str(key[1]), str(key[-1]))
        for key, rows in nodes.groupby(GRAPH, sort=False)
    }


def family_scores(data: Path, graphs: Graphs, model: TileModel) -> pd.DataFrame:
    """One row a run and family on the unseen GPUs: measured, ours, NeuSight's error."""
    labels = _plain(pd.read_parquet(data / "e2e/op_labels.parquet"))
    labels = labels[labels["device"].isin(UNSEEN) & ~labels["model"].str.startswith(SPARSE)]
    summary = pd.read_csv(data / "neusight_summary/summary.csv").rename(
        columns={"model_name": "model"}
    )
    summary = _plain(summary).set_index(KEY)
    nodes = _plain(pd.read_parquet(data / "e2e/opgraph.parquet"))
    kinds = nodes[nodes["option"] == ""].set_index([*GRAPH, "Name"])["OpName"]
    rows = []
    for key, run in labels.groupby(KEY, sort=False):
        run = run.sort_values("idx")
        counts = layer_counts(run["Name"].tolist(), key[1])
        names = [kinds.get((*key[1:], name), "") for name in run["Name"]]
        graph, device = graphs[key[1:]], load_device(key[0])
        # Each node is timed by itself: what the events around the lightest kernels read.
        overhead = model.launch("elementwise", device).overhead
        priced = model.seconds(graph.ops, device) + graph.ops.count * overhead
        for family, column in FAMILIES.items():
            wanted = [_family(name) == family for name in names]
            measured = 1e-3 * float((run["latency"] * counts)[wanted].sum())
            ours = float(priced[(graph.family == family) & ~graph.between].sum())
            theirs = summary.loc[key]
            rows.append(
                {
                    **dict(zip(KEY, key, strict=True)),
                    "family": family,
                    "measured": measured,
                    "ours": 100 * (ours / measured - 1),
                    "label_check": 1e-3 * float(theirs[f"label_{column}_e2e_latency"]) / measured,
                    "neusight": float(theirs[f"neusight_{column}_e2e_err"]),
                }
            )
    return pd.DataFrame(rows)


def _family(op: str) -> str:
    own = {"Linear": "linear", "BMM": "bmm", "VECsoftmax": "softmax", "VECln": "layer_norm"}
    return own.get(op, "elementwise" if op.startswith("VEC") else "other")


def end_to_end(data: Path, graphs: Graphs, model: TileModel) -> pd.DataFrame:
    """One row a labelled run: measured, ours and NeuSight's seconds, and the label's quality."""
    labels = _plain(pd.read_csv(data / "e2e/labels.csv"))
    # Of the sparse models, those that the authors priced and gave the graph of.
    key = [tuple(run) for run in labels[GRAPH].itertuples(index=False)]
    labels = labels[[one in graphs for one in key]]
    stored = _plain(pd.read_csv(data / "e2e/stored_predictions.csv"))
    stored = stored[stored["predictor"] == "neusight"].set_index(KEY)["e2e_ms"]
    quality = _plain(pd.read_csv(data / "e2e/label_quality_sum_of_measured_ops.csv"))
    quality = quality.set_index(["device", "model", "mode", "seq", "batch"])["rel"]
    rows = []
    for run in labels.itertuples():
        key = (run.device, run.model, run.mode, run.seqlen, run.batch, run.option)
        graph, device = graphs[key[1:]], load_device(run.device)
        seconds = model.seconds(graph.ops, device)
        forward = float(seconds[graph.part == "forward"].sum())
        rows.append(
            {
                **dict(zip(KEY, key, strict=True)),
                "measured": run.e2e_ms * 1e-3,
                "ours": float(seconds.sum()),
                "forward": forward,
                "measured_forward": run.fw_ms * 1e-3,
                "neusight": float(stored.get(key, np.nan)) * 1e-3,
                "quality": float(quality.get(key[:5], np.nan)),
            }
        )
    frame = pd.DataFrame(rows)
    frame["error"] = 100 * (frame["ours"] / frame["measured"] - 1)
    frame["neusight_error"] = 100 * (frame["neusight"] / frame["measured"] - 1)
    return frame


def with_one_run(runs: pd.DataFrame) -> pd.Series:
    """Mean APE by device with one measured run as a scalar, mean over which run that is."""
    scores = {}
    for device, mine in runs.groupby("device"):
        ratio = (mine["measured"] / mine["ours"]).to_numpy()
        scaled = [np.abs(ratio[i] / np.delete(ratio, i) - 1).mean() for i in range(len(ratio))]
        scores[device] = 100 * float(np.mean(scaled))
    return pd.Series(scores)


def distributed(data: Path, model: TileModel) -> pd.DataFrame:
    """The four-GPU labels: data, tensor and pipeline parallel, one micro-batch."""
    graphs = load_graphs(data / "distributed/opgraph.parquet")
    labels = _plain(pd.read_csv(data / "distributed/labels.csv"))
    summary = pd.read_csv(data / "neusight_summary/summary.csv")
    theirs = _plain(summary.rename(columns={"model_name": "model"}))
    stored = theirs.set_index(KEY)["neusight_all_e2e_latency"]
    rows = []
    for run in labels.itertuples():
        key = (run.device, run.model, run.mode, run.seqlen, run.batch, run.option)
        graph, cluster = graphs[key[1:]], load_cluster(f"{run.device}:4")
        seconds = model.seconds(graph.ops, cluster.device)
        sent = 0.0
        # A pipeline of four stages has three borders; each is crossed forward and backward.
        group, times = (2.0, 3.0) if run.option.startswith("pp") else (4.0, 1.0)
        for kind, _, size, count in graph.traffic:
            one = collective_seconds(
                kind, np.array([size]), np.array([group]), np.array([group]), cluster
            )
            sent += float(one[0]) * count * times
        backward = float(seconds[graph.part != "forward"].sum())
        total = float(seconds.sum()) + sent
        if run.option == "dp4":
            first = float(seconds[graph.last_backward].sum())
            total = float(seconds.sum()) - backward + max(backward, first + sent)
        rows.append(
            {
                **dict(zip(KEY, key, strict=True)),
                "measured": run.e2e_ms * 1e-3,
                "sent": sent,
                "error": 100 * (total / (run.e2e_ms * 1e-3) - 1),
                "neusight_error": 100 * (float(stored[key]) / run.e2e_ms - 1),
            }
        )
    return pd.DataFrame(rows)


def amd_products(data: Path, model: TileModel) -> pd.DataFrame:
    """Errors on AMD's product shapes; no AMD product was ever fitted."""
    rows = []
    for stem in ("bmm", "linear"):
        samples = load_samples(data / f"amd/test_kernels/{stem}.parquet")
        for name in np.unique(samples.device).tolist():
            mine = samples.take(samples.device == name)
            error = 100 * (model.seconds(mine.ops, load_device(name)) / mine.seconds - 1)
            rows.append(
                {
                    "device": name,
                    "family": stem,
                    "n": len(mine),
                    "mean": float(np.abs(error).mean()),
                    "bias": float(np.median(error)),
                }
            )
    return pd.DataFrame(rows)


def throughput(graphs: Graphs, runs: pd.DataFrame, model: TileModel) -> dict[str, float]:
    """Unique rows a second of one core, and seconds for all labelled runs."""
    ops = concatenate([graph.ops for graph in graphs.values()])
    device = load_device("h100-sxm")
    repeats = int(np.ceil(200_000 / len(ops)))
    chance = np.random.default_rng(0)
    many = ops.take(np.tile(np.arange(len(ops)), repeats))
    jitter = np.ceil(many.m * chance.uniform(1, 2, len(many)))
    many = type(many)(**{**many.columns(), "m": jitter})  # type: ignore[arg-type]
    rates = {}
    for kind in np.unique(ops.kind).tolist():
        mine = many.take(many.kind == kind)
        start = time.perf_counter()
        model.seconds(mine, device)
        rates[f"{kind} rows/s"] = len(mine) / (time.perf_counter() - start)
    start = time.perf_counter()
    for name, mine in runs[KEY].groupby("device"):
        all_ops = [graphs[tuple(run)[1:]].ops for run in mine.itertuples(index=False)]
        model.seconds(concatenate(all_ops), load_device(str(name)))
    rates["all labelled runs, s"] = time.perf_counter() - start
    return rates


def _mean(values: pd.Series) -> float:
    return float(values.abs().mean())


def report(data: Path, model: TileModel) -> None:
    graphs = load_graphs(data / "e2e/opgraph.parquet")
    families = family_scores(data, graphs, model)
    print("(a) operator families summed per run, unseen GPUs: mean APE (ours signed beside)")
    print(f"    labels as summed by the authors within {_off(families):.2g}")
    for family, rows in families.groupby("family", sort=False):
        by = rows.groupby("device")
        each = "  ".join(
            f"{name} {_mean(r['ours']):.1f} ({r['ours'].mean():+.1f}; {_mean(r['neusight']):.1f})"
            for name, r in by
        )
        print(
            f"    {family:12} ours {_mean(rows['ours']):5.1f}  "
            f"NeuSight {_mean(rows['neusight']):5.1f}  n {len(rows)}  | {each}"
        )
    runs = end_to_end(data, graphs, model)
    sparse = runs["model"].str.startswith(SPARSE)
    dense = runs[(runs["option"] == "") & ~sparse]
    good = dense[dense["quality"].abs() <= NOISE]
    print("(b) end to end, dense runs: mean APE ours / NeuSight (n)")
    for title, chosen in (("all", dense), ("label quality within 10 %", good)):
        unseen = chosen["device"].isin(UNSEEN)
        train = chosen["mode"] == "train"
        for name, rows in (
            ("all", chosen),
            ("seen", chosen[~unseen]),
            ("unseen inference", chosen[unseen & ~train]),
            ("unseen training", chosen[unseen & train]),
        ):
            print(f"    {title}: {name:17} {_pair(rows)}")
    for (device, mode), rows in dense.groupby(["device", "mode"]):
        print(f"    {device:15} {mode:6} {_pair(rows)}  signed {rows['error'].mean():+.1f}")
    print("    with one measured run as a scalar:", with_one_run(dense).round(1).to_dict())
    fused = runs[runs["option"] == "fusion"]
    print(f"(c) fused: {_pair(fused)}  signed {fused['error'].mean():+.1f}")
    for device, rows in fused.groupby("device"):
        print(f"    {device:15} {_pair(rows)}  signed {rows['error'].mean():+.1f}")
    print(f"    experts (switchxl4): {_pair(runs[sparse])}")
    for run in runs[sparse].itertuples():
        print(
            f"    {run.device:14} b{run.batch} {run.mode:6} {run.error:+6.1f}"
            f"  NeuSight {run.neusight_error:+6.1f}"
        )
    four = distributed(data, model)
    print(f"(d) four GPUs: {_pair(four)}")
    for run in four.itertuples():
        print(
            f"    {run.device:14} {run.model} b{run.batch} {run.option:6} {run.error:+6.1f}"
            f"  NeuSight {run.neusight_error:+6.1f}  sent {1e3 * run.sent:.1f} ms"
        )
    print("(e) AMD products, none fitted")
    print(amd_products(data, model).round(1).to_string(index=False))
    print("(f) throughput", {k: round(v, 3) for k, v in throughput(graphs, runs, model).items()})


def _off(families: pd.DataFrame) -> float:
    return float((families["label_check"] - 1).abs().max())


def _pair(rows: pd.DataFrame) -> str:
    return f"{_mean(rows['error']):5.1f} / {_mean(rows['neusight_error']):5.1f} ({len(rows)})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("data", type=Path)
    arguments = parser.parse_args()
    report(arguments.data, shipped_tiles())
