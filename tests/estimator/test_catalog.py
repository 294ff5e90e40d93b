"""The catalogue: every entry loads, data-sheet rows by hand, every bad input is one line."""

import math
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from estimator.catalog import __file__ as catalog_file
from estimator.catalog import (
    load_cluster,
    load_device,
    load_link,
    load_model,
    load_stack,
    names,
    stack_yaml,
)
from estimator.catalog.reading import read_mapping
from estimator.cost import __file__ as cost_file
from estimator.cost.roofline import roofline
from estimator.stack import Calibration, FittedScalar

CATALOG = Path(catalog_file).parent
ROOFLINE = Path(cost_file).parent / "data" / "roofline.yaml"


def write(folder, text, name="mine.yaml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


# Entries.


@pytest.mark.parametrize("kind", ["models", "devices", "stacks", "links"])
def test_every_entry_loads_under_its_own_name_and_has_a_source(kind):
    load = {
        "models": load_model,
        "devices": load_device,
        "stacks": load_stack,
        "links": load_link,
    }[kind]
    assert names(kind)
    for name in names(kind):
        assert load(name).name == name
        assert len(read_mapping(CATALOG / kind / f"{name}.yaml")["source"]) > 20


@pytest.mark.parametrize(
    ("name", "bf16", "fp16", "fp32", "bandwidth", "memory"),
    [
        ("v100-sxm-32gb", None, 125e12, 15.7e12, 900e9, 32e9),
        ("a100-sxm-80gb", 312e12, 312e12, 19.5e12, 2039e9, 80e9),
        ("h100-sxm", 989.4e12, 989.4e12, 66.9e12, 3352e9, 80e9),
        ("h200", 989.4e12, 989.4e12, 66.9e12, 4800e9, 141e9),
        ("b200", 2250e12, 2250e12, 75e12, 8000e9, 180e9),
        ("v100-sxm-16gb", None, 125e12, 15.7e12, 900e9, 16e9),
        ("a100-sxm-40gb", 312e12, 312e12, 19.5e12, 1555e9, 40e9),
        ("h100-sxm-96gb", 989.4e12, 989.4e12, 66.9e12, 2400e9, 96e9),
        ("h200-nvl", 1671e12 / 2, 1671e12 / 2, 60e12, 4800e9, 141e9),
        ("gh200-96gb", 989.4e12, 989.4e12, 66.9e12, 4000e9, 96e9),
        ("b300", 36e15 / 2 / 8, 36e15 / 2 / 8, 0.6e15 / 8, 8000e9, 270e9),
        ("gb200", 360e15 / 2 / 72, 360e15 / 2 / 72, 5.76e15 / 72, 576e12 / 72, 186e9),
        ("gb300", 360e15 / 2 / 72, 360e15 / 2 / 72, 5.76e15 / 72, 576e12 / 72, 288e9),
        ("l40s", 366.4e12, 366.4e12, 91.6e12, 864e9, 48e9),
        ("mi300x", 1307.4e12, 1307.4e12, 163.4e12, 5325e9, 192e9),
        ("mi325x", 1307.4e12, 1307.4e12, 163.4e12, 6000e9, 256e9),
        ("mi350x", 2306.9e12, 2306.9e12, 144.2e12, 8000e9, 288e9),
        ("mi355x", 2516.6e12, 2516.6e12, 157.3e12, 8000e9, 288e9),
        ("cpu", 60 * 1.9e9 * 2048, None, 60 * 1.9e9 * 64, 8 * 4.8e9 * 8, 512e9),
    ],
)
def test_data_sheets_by_hand(name, bf16, fp16, fp32, bandwidth, memory):
    device = load_device(name)
    peaks = {"bf16": bf16, "fp16": fp16, "fp32": fp32}
    for dtype, peak in peaks.items():
        assert device.peaks.get(dtype) == (peak and pytest.approx(peak, rel=1e-9))
    assert device.bandwidth == pytest.approx(bandwidth, rel=1e-9)
    assert device.memory_bytes == pytest.approx(memory, rel=0.1)


@pytest.mark.parametrize(
    ("name", "tf32", "fp8", "sms", "l2", "tdp"),
    [
        ("v100-sxm-32gb", None, None, 80, 6 * 2**20, 300),
        ("a100-sxm-80gb", 156e12, None, 108, 40 * 2**20, 400),
        ("h100-sxm", 494.7e12, 1978.9e12, 132, 50 * 2**20, 700),
        ("h200", 494.7e12, 1978.9e12, 132, 50 * 2**20, 700),
        ("b200", 1125e12, 4500e12, 148, 126 * 2**20, 1000),
        ("v100-sxm-16gb", None, None, 80, 6 * 2**20, 300),
        ("a100-sxm-40gb", 156e12, None, 108, 40 * 2**20, 400),
        ("h100-sxm-96gb", 494.7e12, 1978.9e12, 132, 50 * 2**20, 500),
        ("h200-nvl", 1671e12 / 4, 1671e12, 132, 50 * 2**20, 600),
        ("gh200-96gb", 494.7e12, 1978.9e12, 132, 50 * 2**20, 1000),
        ("b300", 1125e12, 4500e12, 148, 126 * 2**20, 1100),
        ("gb200", 1250e12, 5000e12, 152, 126 * 2**20, 1200),
        ("gb300", 1250e12, 5000e12, 152, 126 * 2**20, 1400),
        ("l40s", 183.2e12, 732.8e12, 142, 96 * 2**20, 350),
        ("mi300x", 653.7e12, 2614.9e12, 304, 256 * 2**20, 750),
        ("mi325x", 653.7e12, 2614.9e12, 304, 256 * 2**20, 1000),
        ("mi350x", None, 4613.7e12, 256, 256 * 2**20, 1000),
        ("mi355x", None, 5033.2e12, 256, 256 * 2**20, 1400),
        ("cpu", None, None, 60, 112.5 * 2**20, 350),
    ],
)
def test_rest_of_the_data_sheets_by_hand(name, tf32, fp8, sms, l2, tdp):
    device = load_device(name)
    assert device.peaks.get("tf32") == (tf32 and pytest.approx(tf32, rel=1e-9))
    assert device.peaks.get("fp8") == (fp8 and pytest.approx(fp8, rel=1e-9))
    assert (device.sms, device.l2_bytes, device.tdp_watts) == (sms, l2, tdp)


@pytest.mark.parametrize(
    ("name", "units", "hertz", "bf16_per_cycle"),
    [
        ("mi300x", 304, 2.1e9, 2048),
        ("mi325x", 304, 2.1e9, 2048),
        ("mi350x", 256, 2.2e9, 4096),
        ("mi355x", 256, 2.4e9, 4096),
        ("l40s", 142, 2.52e9, 1024),
    ],
)
def test_peaks_are_units_times_clock(name, units, hertz, bf16_per_cycle):
    device = load_device(name)
    assert device.sms == units
    assert device.peaks["bf16"] == pytest.approx(units * hertz * bf16_per_cycle, rel=1e-4)


def test_tensor_core_peaks_halve_from_fp8_to_bf16_to_tf32():
    for name in names("devices"):
        peaks = load_device(name).peaks
        if "fp8" in peaks:
            assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=1e-4)
        if "tf32" in peaks:
            assert peaks["bf16"] == pytest.approx(2 * peaks["tf32"], rel=1e-9)


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("nvlink2", 6 * 25e9),
        ("nvlink3", 12 * 25e9),
        ("nvlink4", 18 * 25e9),
        ("nvlink5", 18 * 50e9),
        ("infiniband-edr", 4 * 100e9 / 8 / 8),
        ("infiniband-hdr", 200e9 / 8),
        ("infiniband-ndr", 400e9 / 8),
        ("infiniband-xdr", 800e9 / 8),
        ("xgmi-mi300", 7 * 64e9),
        ("xgmi-mi350", 7 * 153.6e9 / 2),
        ("pcie-gen4", 32e9),
        ("host-memory", 307.2e9 / 2),
    ],
)
def test_links_by_hand(name, bandwidth):
    assert load_link(name).bandwidth == pytest.approx(bandwidth, rel=1e-9)


def test_stack_numbers_carry_unit_and_source():
    stack = load_stack("megatron")
    assert stack.context_bytes == 2 * 2**30
    assert stack.launch_forward == pytest.approx(1.2e-3, rel=1e-9)
    assert stack.step_seconds == pytest.approx(8e-3, rel=1e-9)
    assert stack.zero == (0, 1)
    assert "cross_entropy" in stack.fused
    for name in names("stacks"):
        loaded = load_stack(name)
        known = {field.name for field in fields(loaded)} - {"name", "sources", "calibration"}
        assert set(loaded.sources) == known
        assert all(loaded.sources.values())
        for field, given in read_mapping(CATALOG / "stacks" / f"{name}.yaml").items():
            if isinstance(given, dict) and field not in ("calibration", "calibrated"):
                assert set(given) == {"value", "source"}, field
            else:
                assert isinstance(given, str | bool | list | dict), (
                    f"{name}: {field} lacks a source"
                )


def test_a_stack_that_extends_another_states_only_what_differs(tmp_path):
    mine = load_stack(write(tmp_path, "name: mine\nextends: fsdp\nmax_tp: 8\n"))
    fsdp, megatron = load_stack("fsdp"), load_stack("megatron")
    assert (mine.max_tp, mine.gradient_bytes, mine.zero) == (8, 4.0, (0, 1, 2, 3))
    assert fsdp.hiding_dp == megatron.hiding_dp
    assert fsdp.sources["hiding_dp"] == megatron.sources["hiding_dp"]
    assert mine.sources["max_tp"] == "stated without a source"


# Clusters.


@pytest.mark.parametrize(
    ("text", "nodes", "per_node", "domain", "up", "out"),
    [
        ("h100-sxm:64", 8, 8, 8, 450e9, 50e9),
        ("h100-sxm:8", 1, 8, 8, 450e9, 50e9),
        ("h100-sxm:4", 1, 4, 4, 450e9, 50e9),
        ("h100-sxm:1", 1, 1, 1, 450e9, 50e9),
        ("a100-sxm-80gb:16", 2, 8, 8, 300e9, 25e9),
        ("dgx-h100", 1, 8, 8, 450e9, 50e9),
        ("dgx-h100:128", 16, 8, 8, 450e9, 50e9),
        ("dgx-a100:1000000", 125_000, 8, 8, 300e9, 25e9),
        ("gb200:8", 2, 4, 8, 900e9, 50e9),
        ("gb300:144", 36, 4, 72, 900e9, 100e9),
        ("h200-nvl:16", 2, 8, 4, 450e9, 50e9),
        ("gh200-96gb:4", 4, 1, 1, 450e9, 50e9),
        ("mi355x:16", 2, 8, 8, 537.6e9, 50e9),
        ("perlmutter:16", 4, 4, 4, 300e9, 25e9),
        ("vista:8", 8, 1, 1, 450e9, 50e9),
        ("jean-zay-v100:8", 2, 4, 4, 150e9, 12.5e9),
    ],
)
def test_cluster_text(text, nodes, per_node, domain, up, out):
    cluster = load_cluster(text)
    assert (cluster.nodes, cluster.gpus_per_node) == (nodes, per_node)
    assert cluster.scale_up_domain == domain
    assert cluster.scale_up.bandwidth == up
    assert cluster.scale_out is not None
    assert cluster.scale_out.bandwidth == out
    assert cluster.name == text


@pytest.mark.parametrize("name", [*names("devices"), *names("clusters")])
def test_every_device_and_cluster_makes_a_node(name):
    assert load_cluster(f"{name}:8").gpus == 8


@pytest.mark.parametrize(
    ("name", "reached"), [("perlmutter", 1.2e9), ("vista", 48e9), ("jean-zay-v100", 3.1e9)]
)
def test_networks_of_published_runs_reach_what_was_measured(name, reached):
    out = load_cluster(name).scale_out
    assert out is not None
    assert out.bandwidth * out.efficiency == pytest.approx(reached, rel=0.03)


# Kernel efficiencies of what the catalogue holds.


@pytest.mark.parametrize("name", names("devices"))
def test_every_device_has_a_share_for_each_of_its_dtypes(name):
    device = load_device(name)
    costs = roofline(device)
    assert set(device.peaks) <= set(costs.gemm_efficiency)
    assert all(0 < costs.gemm_efficiency[dtype] < 1 for dtype in device.peaks)
    assert set(costs.attention) <= {"flash1", "flash2", "cudnn"}


def test_only_devices_with_tables_of_their_own_count_as_analytic():
    origins = {name: roofline(load_device(name)).origin for name in names("devices")}
    measured = {name for name, origin in origins.items() if origin == "analytic"}
    table = yaml.safe_load(ROOFLINE.read_text("utf-8"))
    assert measured == set(table["measured"])
    assert set(origins.values()) == {"analytic", "extrapolated"}
    assert origins["gb300"] == origins["mi300x"] == "extrapolated"


def test_constants_of_a_device_are_for_a_device_and_have_a_source():
    table = yaml.safe_load(ROOFLINE.read_text("utf-8"))
    assert set(table["devices"]) <= set(names("devices"))
    for part in [*table["architectures"].values(), *table["devices"].values()]:
        kernels = [*part.get("attention", {}).values()]
        blocks = [part[key] for key in ("gemm", "memory") if key in part]
        assert all(len(block["source"]) > 10 for block in [*kernels, *blocks])


def test_power_moves_the_share_of_one_peak():
    bf16 = {
        name: roofline(load_device(name)).gemm_efficiency["bf16"]
        for name in ("h100-sxm-96gb", "h100-sxm", "gb200", "gb300", "mi300x", "mi325x")
    }
    assert bf16["h100-sxm-96gb"] == pytest.approx(bf16["h100-sxm"] * 0.67 / 0.70, rel=0.01)
    assert 1.17 < bf16["gb300"] / bf16["gb200"] < 1.28
    assert bf16["mi300x"] < bf16["mi325x"]


def test_cluster_file_shares_its_nics_between_the_devices_of_a_node(tmp_path):
    path = write(
        tmp_path,
        """
name: mine
device: h100-sxm
nodes: 4
gpus_per_node: 4
scale_up: nvlink4
scale_out:
  nics_per_node: 2
  nic_bandwidth: 400 Gb/s
  efficiency: 0.8
  latency: 20 us
  hop_latency: 5 us
""",
    )
    cluster = load_cluster(path)
    assert (cluster.gpus, cluster.scale_up_domain) == (16, 4)
    assert cluster.scale_out is not None
    assert cluster.scale_out.bandwidth == pytest.approx(2 * 50e9 / 4, rel=1e-9)
    assert load_cluster(f"{path}:32").nodes == 8


def test_cluster_file_may_leave_the_node_to_the_device(tmp_path):
    cluster = load_cluster(write(tmp_path, "name: mine\ndevice: h200\nnodes: 2\n"))
    assert (cluster.gpus, cluster.scale_up.name) == (16, "nvlink4")


def test_device_file_serves_as_a_cluster_and_inside_one(tmp_path):
    text = (CATALOG / "devices" / "h100-sxm.yaml").read_text().replace("h100-sxm", "mine", 1)
    path = write(tmp_path, text, "device.yaml")
    assert load_device(path).name == "mine"
    assert load_device(Path(path)).name == "mine"
    assert load_cluster(f"{path}:16").gpus == 16
    inside = write(tmp_path, "name: pod\ndevice: device.yaml\nnodes: 3\n", "pod.yaml")
    assert load_cluster(inside).gpus == 24


def test_written_stacks_read_back_equal(tmp_path):
    for name in names("stacks"):
        stack = load_stack(name)
        assert load_stack(write(tmp_path, stack_yaml(stack))) == stack
        fitted = replace(stack, hiding_dp=np.float64(1 / 3), launch_forward=np.float64(1e-4 / 3))
        assert load_stack(write(tmp_path, stack_yaml(fitted))) == fitted


FITTED = Calibration(
    cost="analytic",
    collectives=("links", "a table: of two words"),
    devices=("h100-sxm",),
    precisions=("bf16", "fp8"),
    sources=("here",),
    rows=4,
    configurations=3,
    scalars={"in_situ": FittedScalar(value=np.float64(1.1), prior=1.0, sd=0.03, identified=True)},
    error_before=0.2,
    error_after=0.1,
    residuals=(-0.1, np.float64(0.05), 0.3),
)


def test_a_calibration_reads_back_equal(tmp_path):
    for calibration in (FITTED, replace(FITTED, error_after=None, residuals=())):
        stack = replace(load_stack("megatron"), calibration=calibration)
        read = load_stack(write(tmp_path, stack_yaml(stack)))
        assert read == stack
        assert read.calibration.helps is (calibration is FITTED)


def test_a_calibration_is_not_inherited(tmp_path, monkeypatch):
    folder = tmp_path / "stacks"
    folder.mkdir()
    calibrated = replace(load_stack("megatron"), calibration=FITTED)
    write(folder, stack_yaml(calibrated), "megatron.yaml")
    monkeypatch.setattr("estimator.catalog.loader._HERE", tmp_path)
    assert load_stack("megatron").calibration == FITTED
    extended = load_stack(
        write(tmp_path, "name: mine\nextends: megatron\nin_situ: {analytic: 1.1}")
    )
    assert extended.calibration is None


def test_importing_the_catalogue_is_light():
    code = (
        "import sys, estimator.catalog as c\n"
        "heavy = {'pydantic', 'yaml', 'scipy', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "c.load_cluster('h100-sxm:64')\n"
        "heavy = {'scipy', 'pandas', 'optuna'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CATALOG.parent.parent)


def test_numbers_are_finite():
    for name in names("stacks"):
        stack = load_stack(name)
        assert all(
            math.isfinite(value)
            for field in fields(stack)
            if isinstance(value := getattr(stack, field.name), int | float)
        )
