"""What the catalogue refuses: each bad name, text and file gives one line with the remedy."""

import os
from pathlib import Path

import pytest

from estimator.catalog import __file__ as catalog_file
from estimator.catalog import load_cluster, load_device, load_link, load_model, load_stack, names

CATALOG = Path(catalog_file).parent


def fault(load, *arguments):
    """The one line that a bad input gives."""
    with pytest.raises(ValueError) as error:
        load(*arguments)
    line = str(error.value)
    assert "\n" not in line
    assert line.isprintable()
    assert len(line) < 600
    return line


def write(folder, text, name="mine.yaml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


BAD_TEXT = [
    ("h100-sxm:7", "h100-sxm comes in nodes of 8; try 4 or 8, or write a cluster file"),
    ("h100-sxm:3", "try 2 or 4"),
    ("h100-sxm:20", "try 16 or 24"),
    ("h100-sxm:0", "must have from 1 to 1,000,000 GPUs"),
    ("h100-sxm:1000008", "must have from 1 to 1,000,000 GPUs"),
    ("h100-sxm:-8", "whole number from 1, not '-8'"),
    ("h100-sxm:8.5", "whole number from 1, not '8.5'"),
    ("h100-sxm:", "whole number from 1, not ''"),
    ("h100-sxm:" + "9" * 5000, "whole number from 1"),
    ("h100-sxm", "say how many GPUs, for example h100-sxm:8"),
    ("cpu:16", "no scale_out link"),
    ("h10:8", "unknown cluster 'h10'; nearest: "),
    ("", "unknown cluster ''"),
    ("no\nsuch:8", "unknown cluster"),
    (8, "must be text such as h100-sxm:64, not 8"),
]


@pytest.mark.parametrize(("text", "rule"), BAD_TEXT, ids=range(len(BAD_TEXT)))
def test_bad_cluster_text(text, rule):
    assert rule in fault(load_cluster, text)


LINK = "{bandwidth: 50 GB/s, efficiency: 0.8, latency: 1 us, hop_latency: 1 us}"
CLUSTER = "name: mine\ndevice: h100-sxm\n"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("name: mine\ndevice: h10\n", "unknown device 'h10'; nearest: "),
        ("name: mine\ndevice: ../elsewhere.yaml\n", "leads out of"),
        ("name: mine\ndevice: /etc/hosts.yaml\n", "leads out of"),
        ("name: mine\ndevice: missing.yaml\n", "no such file"),
        ("name: mine\ndevice: 7\n", "device: must be a valid string, not 7"),
        (CLUSTER + "scale_up: nvlink9\n", "unknown link 'nvlink9'; nearest: "),
        (CLUSTER + "scale_out: null\nnodes: 2\n", "no scale_out link"),
        (CLUSTER + "nodes: 0\n", "nodes: must be greater than or equal to 1, not 0"),
        (CLUSTER + "nodes: 1000000\n", "exceeds 1,000,000"),
        (CLUSTER + "nodes: true\n", "nodes: must be a valid integer, not True"),
        (CLUSTER + "scale_up_domain: 3\n", "scale_up_domain=3 must be"),
        (CLUSTER + f"scale_out: {LINK.replace('50 GB/s', '50')}\n", "bandwidth: 50 has no unit"),
        (
            CLUSTER
            + f"scale_out: {LINK.replace('{', '{nics_per_node: 8, nic_bandwidth: 1 GB/s, ')}",
            "give exactly one of the two",
        ),
        (CLUSTER + f"scale_out: {LINK.replace('bandwidth: 50 GB/s, ', '')}", "exactly one"),
        (
            CLUSTER + f"scale_out: {LINK.replace('bandwidth: 50 GB/s', 'nics_per_node: 8')}",
            "exactly one",
        ),
    ],
)
def test_bad_cluster_files(tmp_path, text, rule):
    assert rule in fault(load_cluster, write(tmp_path, text))


def test_link_out_of_the_folder_is_refused_through_a_symbolic_link(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    write(outside, "name: x\n", "device.yaml")
    (inside / "device.yaml").symlink_to(outside / "device.yaml")
    path = write(inside, "name: mine\ndevice: device.yaml\n")
    assert "leads out of" in fault(load_cluster, path)


def test_inline_device_without_a_node_needs_one(tmp_path):
    device = (
        "{name: d, architecture: hopper, peaks: {bf16: 1 TFLOP/s}, memory: 80 GB, "
        "bandwidth: 1 TB/s, sms: 1, l2: 1 MB, tdp: 1 W}"
    )
    assert "names no usual node" in fault(
        load_cluster, write(tmp_path, f"name: c\ndevice: {device}\n")
    )
    ready = f"name: c\ndevice: {device}\ngpus_per_node: 2\nscale_up: {LINK}\n"
    assert load_cluster(write(tmp_path, ready)).gpus == 2


# Bad names and bad files.


BAD_NAMES = [
    (
        load_device,
        "h10",
        "unknown device 'h10'; nearest: a10, h200, h100-sxm; all: trainplan catalog",
    ),
    (load_device, "H100-SXM", "nearest: h100-sxm"),
    (load_model, "llama-3.1-7b", "nearest: llama-3.1-"),
    (load_model, "Mixtral-8x7B", "nearest: mixtral-8x7b"),
    (load_stack, "zzzz", "unknown stack 'zzzz'; all: trainplan catalog stacks"),
    (load_link, "nvlink", "unknown link 'nvlink'; nearest: nvlink"),
    (load_model, "", "unknown model ''"),
    (load_model, "..", "unknown model '..'"),
    (load_model, 7, "model must be a name or the path of a file, not 7"),
    (load_model, None, "model must be a name or the path of a file, not None"),
    (load_model, "a\x1b[31m\nb", "unknown model"),
    (load_model, "x" * 10_000, "unknown model"),
    (load_model, "missing.yaml", "no such file"),
    (load_model, "/" + "x" * 5000 + ".yaml", "check the path"),
    (load_model, "nul\0.yaml", "no such file"),
    (names, "gadgets", "unknown kind 'gadgets'; use one of models, devices"),
]


@pytest.mark.parametrize(("load", "name", "rule"), BAD_NAMES, ids=range(len(BAD_NAMES)))
def test_bad_names(load, name, rule):
    assert rule in fault(load, name)


DEVICE = (CATALOG / "devices" / "a100-sxm-80gb.yaml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("memory: 79.15 GiB", "memory: 80", "memory: 80 has no unit; write for example '80 GB'"),
        ("memory: 79.15 GiB", "memory: .nan", "memory: nan has no unit"),
        ("memory: 79.15 GiB", "memory: nan GB", "memory: 'nan GB' is not a finite number"),
        ("memory: 79.15 GiB", "memory: -80 GB", "memory: '-80 GB' is negative"),
        ("memory: 79.15 GiB", "memory: 0 GB", "memory: must be greater than 0"),
        ("memory: 79.15 GiB\n", "", "memory: is missing; add it"),
        ("2039 GB/s", "80 GB", "bandwidth: '80 GB' is bytes, not bytes/s"),
        (
            "  bf16: 312",
            "  bf17: 312",
            "peaks.bf17: must be 'fp32', 'tf32', 'fp16', 'bf16', 'fp8' or 'fp4'",
        ),
        ("312 TFLOP/s", "0 TFLOP/s", "peaks.fp16: must be greater than 0"),
        ("sms: 108", "sms: 108.5", "sms: must be a valid integer, not 108.5"),
        ("sms: 108", "sms: '108'", "sms: must be a valid integer, not '108'"),
        ("sms: 108", "sms: 0", "sms: must be greater than or equal to 1, not 0"),
        ("sms: 108", "smz: 108", "smz: is not a field here; did you mean sms?"),
        ("sms: 108", "sms: 108\nsms: 109", "line 11: field 'sms' is given twice"),
        ("sms: 108", "sms: &a 108", "anchors and aliases are not allowed"),
        ("sms: 108", "sms: *a", "alias"),
        ("sms: 108", "sms: !!python/object:os.system 1", "could not determine a constructor"),
        ("ampere", "amper", "architecture: must be 'cpu', 'volta', 'ampere'"),
        ("name: a100-sxm-80gb", "name: 80", "name: must be a valid string, not 80"),
        ("name: a100-sxm-80gb", "name: a b", "name: must be one word without spaces, not 'a b'"),
        ("name: a100-sxm-80gb", 'name: "a\\n"', "name: must be one word"),
        ("value: 1.30", "value: .inf", "dollars_per_hour.value: must be a finite number"),
        ("value: 1.30", "value: .nan", "dollars_per_hour.value: must be"),
    ],
)
def test_bad_device_files(tmp_path, old, new, rule):
    assert old in DEVICE
    path = write(tmp_path, DEVICE.replace(old, new, 1))
    line = fault(load_device, path)
    assert line.startswith(f"{path}: ")
    assert rule in line


BAD_FILES = [
    ("", "holds nothing"),
    ("- a\n- b\n", "holds a list"),
    ("just words", "holds a str"),
    ("1: 2\n", "field name 1 must be a word"),
    ("a: [1, 2\n", "line 2: "),
    ("a: 1\n--- \nb: 2\n", "line 2: "),
    ("<<: {a: 1}\n", "is given twice or merged"),
    ("? [a, b]\n: 1\n", "line 1: "),
    ("a: \x07\n", "not YAML that can be read"),
    ("[" * 100_000, "is nested too deeply"),
    ("a: " + "9" * 5000, "not YAML that can be read"),
    ("a: 0x" + "f" * 9000, "and"),
    ("x" * 1_000_001, "is larger than 1 MB"),
    ("a: &a [x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", "anchors and aliases are not allowed"),
    ("a: 2024-13-45\n", "not YAML that can be read"),
    ("".join(f"field{i}: 1\n" for i in range(5000)), "and 50"),
    ("'a\\n\\e[31mb': 1\n", "is not a field here"),
]


@pytest.mark.parametrize(("text", "rule"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_bad_files(tmp_path, text, rule):
    path = write(tmp_path, text)
    line = fault(load_model, path)
    assert line.startswith(f"{path}: ")
    assert rule in line


def test_files_that_are_not_text(tmp_path):
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00name")
    assert "is not UTF-8 text" in fault(load_model, binary)
    assert "is not a regular file" in fault(load_model, tmp_path)
    assert "is not a regular file" in fault(load_cluster, f"{tmp_path}/:8")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.yaml")
        assert "is not a regular file" in fault(load_model, tmp_path / "pipe.yaml")


MODEL = (CATALOG / "models" / "llama-3.1-70b.yaml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("kv_heads: 8", "kv_heads: 7", "kv_heads=7 must divide the 64 attention heads"),
        ("layers: 80", "layers: 0", "layers: must be greater than or equal to 1, not 0"),
        ("layers: 80", "layers: 80.0", "layers: must be a valid integer, not 80.0"),
        ("layers: 80", "layers: 1" + "0" * 30, "layers: "),
        ("tied: false", "tied: 'no'", "tied: must be a valid boolean, not 'no'"),
        ("swiglu", "silu", "activation: must be 'gelu', 'geglu', 'relu2' or 'swiglu', not 'silu'"),
        ("tied: false", "tied: false\nshared_norm: true", "shared_norm: is not a field here"),
        ("tied: false", "tied: false\nnorms_per_layer: 3", "norms_per_layer: must be 1, 2 or 4"),
        ("tied: false", "tied: false\nnorms_per_layer: 1", "needs parallel_residual"),
        ("tied: false", "tied: false\nwindowed_layers: 4", "need a window of at least 1"),
        ("tied: false", "tied: false\nwindow: 0", "window: must be greater than or equal to 1"),
        ("tied: false", "tied: false\nmtp_layers: -1", "mtp_layers: must be greater than"),
        ("tied: false", "tied: false\nexperts: 8", "experts: "),
        ("tied: false", "tied: false\nexperts: {count: 8, top_k: 2}", "experts.ffn: is missing"),
        (
            "tied: false",
            "tied: false\nexperts: {count: 8, top_k: 9, ffn: 1}",
            "experts.top_k=9 must be at most the 8 experts",
        ),
        (
            "tied: false",
            "tied: false\nexperts: {count: 8, top_k: 2, ffn: 1, first_dense: 80}",
            "experts.first_dense=80 of llama-3.1-70b must leave one of its 80 layers",
        ),
        (
            "tied: false",
            "tied: false\nexperts: {count: 8, top_k: 2, ffn: 1, width: 2}",
            "experts.width: is not a field here",
        ),
        (
            "tied: false",
            "tied: false\nlatent: {kv_rank: 0, nope_dim: 1, rope_dim: 1, v_dim: 1}",
            "latent.kv_rank: must be greater than or equal to 1, not 0",
        ),
        ("hidden: 8192", "hidden: [8192]", "hidden: must be a valid integer, not [8192]"),
    ],
)
def test_bad_model_files(tmp_path, old, new, rule):
    assert old in MODEL
    assert rule in fault(load_model, write(tmp_path, MODEL.replace(old, new, 1)))


STACK = (CATALOG / "stacks" / "megatron.yaml").read_text().split("\n# Fitted to published")[0]


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("value: 1.2 ms", "value: 1.2", "launch_forward: 1.2 has no unit"),
        ("value: 1.2 ms", "value: 1.2 ms\n  note: x", "launch_forward: takes a value and a source"),
        ("value: 1.048", "value: 0.9", "reserved_ratio: must be greater than or equal to 1"),
        ("value: 0.62", "value: 1.62", "gradient_accumulation_traffic: must be less than or equal"),
        ("{analytic: 1.06, learned: 1.06}", "{}", "in_situ: "),
        ("{analytic: 1.06, learned: 1.06}", "{analytic: .nan}", "in_situ.analytic: "),
        ("[norm, bias_activation", "[norms", "fused.0: must be 'norm'"),
        ("zero: [0, 1]", "zero: [0, 4]", "zero.1: must be 0, 1, 2 or 3, not 4"),
        ("name: megatron", "name: mine\nextends: megatro", "extends: unknown stack 'megatro'"),
        ("name: megatron", "name: mine\nextends: ./mine.yaml", "extends: unknown stack"),
        ("name: megatron", "name: mine\nextends: [1]", "extends: unknown stack"),
    ],
)
def test_bad_stack_files(tmp_path, old, new, rule):
    assert old in STACK
    assert rule in fault(load_stack, write(tmp_path, STACK.replace(old, new, 1)))


CALIBRATION = """
calibration:
  cost: analytic
  collectives: [links]
  devices: [h100-sxm]
  precisions: [bf16]
  sources: [here]
  rows: 3
  configurations: 3
  scalars:
    in_situ: {value: 1.1, prior: 1.0, sd: 0.03, identified: true}
  error_before: 0.2
  error_after: 0.1
  residuals: [-0.1, 0.05]
"""


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("  rows: 3\n", "", "calibration.rows: is missing"),
        ("rows: 3", "rows: 0", "calibration.rows: must be greater than or equal to 1"),
        ("value: 1.1", "value: .inf", "calibration.scalars.in_situ.value: must be a finite number"),
        ("sd: 0.03", "sd: -1", "calibration.scalars.in_situ.sd: must be greater than or equal to"),
        ("[-0.1, 0.05]", "[.nan]", "calibration.residuals.0: must be a finite number"),
        ("[-0.1, 0.05]", "{}", "calibration.residuals: must be a valid list"),
        ("error_after", "error", "calibration.error: is not a field here"),
        ("\n  cost", "\n  costs", "calibration.costs: is not a field here"),
    ],
)
def test_bad_calibrations(tmp_path, old, new, rule):
    assert old in CALIBRATION
    path = write(tmp_path, STACK + CALIBRATION.replace(old, new, 1))
    assert rule in fault(load_stack, path)


def test_what_was_fitted_is_not_inherited_and_stands_once(tmp_path):
    """A child starts from its parent's own numbers; two calibrations are a contradiction."""
    fitted = "calibrated:\n  step_seconds: {value: 50 ms, source: runs}\n  uncertainty: 0.07\n"
    whole = load_stack(write(tmp_path, STACK + fitted))
    bare = load_stack(write(tmp_path, STACK))
    assert (whole.step_seconds, whole.uncertainty) == (0.05, 0.07)
    assert load_stack(write(tmp_path, STACK + fitted), calibrated=False) == bare
    child = load_stack(write(tmp_path, "name: mine\nextends: composer\n"))
    assert child.calibration is None
    assert child.step_seconds == load_stack("composer", calibrated=False).step_seconds
    assert child.step_seconds != load_stack("composer").step_seconds
    assert "calibrated: takes fields of a stack" in fault(
        load_stack, write(tmp_path, STACK + "calibrated: 3\n")
    )
    inner = CALIBRATION.strip().replace("\n", "\n  ")
    twice = f"{STACK}{CALIBRATION}calibrated:\n  {inner}\n"
    assert "calibrated: calibration stands outside of it as well" in fault(
        load_stack, write(tmp_path, twice)
    )
