"""Sanity laws over all devices, links and clusters of the catalogue."""

from pathlib import Path
from typing import get_args

import pytest
import yaml

from estimator.catalog import __file__ as catalog_file
from estimator.catalog import load_cluster, load_device, load_link, names
from estimator.catalog.reading import read_mapping
from estimator.cluster import Architecture
from estimator.cost import __file__ as cost_file
from estimator.cost.roofline import roofline

CATALOG = Path(catalog_file).parent
TABLE = yaml.safe_load((Path(cost_file).parent / "data" / "roofline.yaml").read_text("utf-8"))
DEVICES = {name: load_device(name) for name in names("devices")}
LINKS = {name: load_link(name) for name in names("links")}
CLUSTERS = {name: load_cluster(name) for name in names("clusters")}
GPUS = {name: device for name, device in DEVICES.items() if device.architecture != "cpu"}
TENSOR_CORES_WITH_BF16 = {"ampere", "ada", "hopper", "blackwell"}
NO_BF16 = {"pascal", "volta", "turing"}


# Devices.


@pytest.mark.parametrize(
    ("name", "bf16", "fp16", "fp32", "bandwidth", "memory", "sms", "l2", "tdp"),
    [
        ("p4", None, None, 5.5, 192, 8, 20, 2, 75),
        ("p100-sxm", None, 21.2, 10.6, 732, 16, 56, 4, 300),
        ("t4", None, 65, 8.1, 320, 16, 40, 4, 70),
        ("a10", 125, 125, 31.2, 600, 24, 72, 6, 150),
        ("a100-pcie-40gb", 312, 312, 19.5, 1555, 40, 108, 40, 250),
        ("a100-pcie-80gb", 312, 312, 19.5, 1935, 80, 108, 40, 300),
        ("l4", 121, 121, 30.3, 300, 24, 58, 48, 72),
        ("h100-pcie", 756.5, 756.5, 51.2, 2039, 80, 114, 50, 350),
        ("rtx-4090", 165.2, 165.2, 82.6, 1008, 24, 128, 72, 450),
        ("mi100", 92.3, 184.6, 46.1, 1228.8, 32, 120, 8, 300),
        ("mi210", 181, 181, 45.3, 1638.4, 64, 104, 8, 300),
        ("mi250x", 383 / 2, 383 / 2, 95.7 / 2, 3276.8 / 2, 128 / 2, 220 // 2, 16 // 2, 560 / 2),
    ],
)
def test_data_sheets_by_hand(name, bf16, fp16, fp32, bandwidth, memory, sms, l2, tdp):
    device = DEVICES[name]
    for dtype, peak in {"bf16": bf16, "fp16": fp16, "fp32": fp32}.items():
        assert device.peaks.get(dtype) == (peak and pytest.approx(peak * 1e12, rel=2e-3))
    assert device.bandwidth == pytest.approx(bandwidth * 1e9, rel=1e-9)
    assert device.memory_bytes == pytest.approx(memory * 1e9, rel=0.1)
    assert (device.sms, device.l2_bytes, device.tdp_watts) == (sms, l2 * 2**20, tdp)


@pytest.mark.parametrize(
    ("name", "dtype", "megahertz", "per_cycle"),
    [
        ("p4", "fp32", 1063, 256),
        ("p100-sxm", "fp32", 1480, 128),
        ("p100-sxm", "fp16", 1480, 256),
        ("t4", "fp32", 1590, 128),
        ("t4", "fp16", 1590, 1024),
        ("a10", "bf16", 1695, 1024),
        ("a100-pcie-80gb", "bf16", 1410, 2048),
        ("l4", "bf16", 2040, 1024),
        ("h100-pcie", "bf16", 1620, 4096),
        ("rtx-4090", "bf16", 2520, 512),
        ("mi100", "fp16", 1502, 1024),
        ("mi210", "bf16", 1700, 1024),
        ("mi250x", "bf16", 1700, 1024),
    ],
)
def test_peaks_are_units_times_clock(name, dtype, megahertz, per_cycle):
    device = DEVICES[name]
    assert device.peaks[dtype] == pytest.approx(device.sms * megahertz * 1e6 * per_cycle, rel=0.02)


@pytest.mark.parametrize("name", DEVICES)
def test_sizes_are_plausible(name):
    device = DEVICES[name]
    assert device.peaks
    assert all(peak > 0 for peak in device.peaks.values())
    assert device.peaks["fp32"] == min(device.peaks.values())
    assert 4 * 2**30 < device.memory_bytes < 1e12
    assert 2**20 <= device.l2_bytes < device.memory_bytes
    assert device.dollars_per_hour is None or 0 < device.dollars_per_hour < 20


@pytest.mark.parametrize("name", GPUS)
def test_balance_of_compute_and_memory(name):
    """FLOP per byte at the fastest dtype of 16 bits or more: Pascal has 29, RTX and L4 400."""
    device = GPUS[name]
    peak = max(rate for dtype, rate in device.peaks.items() if dtype not in ("fp8", "fp4"))
    assert 15 < peak / device.bandwidth < 700
    assert 0.05e12 < peak / device.tdp_watts < 3e12


@pytest.mark.parametrize("name", GPUS)
def test_dtypes_are_those_of_the_architecture(name):
    device = GPUS[name]
    if device.architecture in NO_BF16:
        assert not {"bf16", "tf32", "fp8", "fp4"} & set(device.peaks)
    if device.architecture in TENSOR_CORES_WITH_BF16:
        assert device.peaks["fp16"] == device.peaks["bf16"]
        assert "tf32" in device.peaks
    assert ("fp8" in device.peaks) == (
        device.architecture in {"ada", "hopper", "blackwell", "cdna3", "cdna4"}
    )
    assert ("fp4" not in device.peaks) or device.architecture in {"blackwell", "cdna4"}


def test_a_device_of_an_mi250x_is_half_a_package():
    half, whole = DEVICES["mi250x"], DEVICES["mi210"]
    assert half.memory_bytes == whole.memory_bytes
    assert half.bandwidth == whole.bandwidth
    assert "GCD" in (CATALOG / "devices" / "mi250x.yaml").read_text("utf-8")


# Kernel efficiencies.


def test_every_architecture_has_a_block_and_a_device():
    assert set(TABLE["architectures"]) == set(get_args(Architecture))
    assert {device.architecture for device in DEVICES.values()} == set(get_args(Architecture))


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_has_a_share_of_every_peak_it_claims(name):
    costs = roofline(DEVICES[name])
    assert all(0.2 < costs.gemm_efficiency[dtype] <= 1 for dtype in DEVICES[name].peaks)
    assert 0.3 < costs.memory_bandwidth <= 1
    assert 0.3 < costs.gemm_bandwidth <= 1
    assert all(0.1 < kernel.efficiency <= 1 for kernel in costs.attention.values())
    assert all(2 < kernel.backward_over_forward < 5 for kernel in costs.attention.values())


@pytest.mark.parametrize("name", DEVICES)
def test_fused_attention_is_only_where_its_kernels_run(name):
    eager = {"pascal", "volta", "turing", "cdna1"}
    assert bool(roofline(DEVICES[name]).attention) == (DEVICES[name].architecture not in eager)


def test_a_card_with_less_power_reaches_less_of_the_same_peak():
    shares = [
        roofline(DEVICES[name]).gemm_efficiency["bf16"]
        for name in ("a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm-80gb")
    ]
    assert shares == sorted(set(shares))
    assert roofline(DEVICES["h100-pcie"]).gemm_efficiency["bf16"] < 0.77
    assert roofline(DEVICES["l4"]).gemm_efficiency["bf16"] < 0.58


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("p4", "analytic"),
        ("a100-pcie-80gb", "analytic"),
        ("p100-sxm", "extrapolated"),
        ("t4", "extrapolated"),
        ("a100-pcie-40gb", "extrapolated"),
        ("l4", "extrapolated"),
        ("mi250x", "extrapolated"),
        ("rtx-4090", "extrapolated"),
    ],
)
def test_where_the_constants_come_from(name, origin):
    assert roofline(DEVICES[name]).origin == origin


# Links and clusters.


@pytest.mark.parametrize("name", LINKS)
def test_links_are_plausible(name):
    link = LINKS[name]
    assert 0 < link.efficiency <= 1
    assert 1e9 < link.bandwidth < 2e12
    assert 0 < link.latency < 2e-3
    assert 0 <= link.hop_latency < 50e-6
    assert len(link.source) > 20


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("nvlink1", 4 * 20e9),
        ("pcie-gen3", 16e9),
        ("pcie-gen5", 64e9),
        ("xgmi-mi100", 3 * 92e9 / 2),
        ("xgmi-mi210", 3 * 100e9 / 2),
        ("xgmi-mi250x", 4 * 50e9),
        ("slingshot-11", 4 * 200e9 / 8 / 8),
        ("efa-p4d", 400e9 / 8 / 8),
        ("efa-p5", 3200e9 / 8 / 8),
        ("tcpx-a3-high", 800e9 / 8 / 8),
        ("tcpxo-a3-mega", 1600e9 / 8 / 8),
    ],
)
def test_links_by_hand(name, bandwidth):
    assert LINKS[name].bandwidth == pytest.approx(bandwidth, rel=1e-9)


@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters_are_plausible(name):
    cluster = CLUSTERS[name]
    assert cluster.name == name
    assert cluster.scale_up_domain % cluster.gpus_per_node == 0
    for link in filter(None, (cluster.scale_up, cluster.scale_out)):
        assert 0 < link.efficiency <= 1
        assert len(link.source) > 20
    assert cluster.scale_out is not None
    assert cluster.scale_out.bandwidth <= cluster.scale_up.bandwidth
    assert len(read_mapping(CATALOG / "clusters" / f"{name}.yaml")["source"]) > 20


@pytest.mark.parametrize(
    ("name", "device", "per_node", "domain", "out"),
    [
        ("dgx-1v", "v100-sxm-32gb", 8, 8, 6.25e9),
        ("dgx-a100", "a100-sxm-80gb", 8, 8, 25e9),
        ("dgx-h100", "h100-sxm", 8, 8, 50e9),
        ("hgx-b200", "b200", 8, 8, 50e9),
        ("gb200-nvl72", "gb200", 4, 72, 50e9),
        ("p4d", "a100-sxm-40gb", 8, 8, 6.25e9),
        ("p5", "h100-sxm", 8, 8, 50e9),
        ("a3-high", "h100-sxm", 8, 8, 12.5e9),
        ("a3-mega", "h100-sxm", 8, 8, 25e9),
        ("a3-ultra", "h200", 8, 8, 50e9),
        ("pcie-box", "a100-pcie-80gb", 8, 8, 6.25e9),
    ],
)
def test_clusters_by_hand(name, device, per_node, domain, out):
    cluster = CLUSTERS[name]
    assert (cluster.device.name, cluster.gpus_per_node) == (device, per_node)
    assert cluster.scale_up_domain == domain
    assert cluster.scale_out is not None
    assert cluster.scale_out.bandwidth == pytest.approx(out, rel=1e-9)


def test_a_rack_holds_72():
    assert CLUSTERS["gb200-nvl72"].gpus == 72
    assert load_cluster("gb200-nvl72:144").nodes == 36


@pytest.mark.parametrize("kind", ["devices", "links", "clusters"])
def test_every_entry_says_where_its_numbers_come_from(kind):
    for name in names(kind):
        entry = read_mapping(CATALOG / kind / f"{name}.yaml")
        assert len(entry["source"].strip()) > 20, name
        for field in ("scale_up", "scale_out", "dollars_per_hour"):
            if isinstance(inner := entry.get(field), dict):
                assert len(inner["source"].strip()) > 20, f"{name}: {field}"
