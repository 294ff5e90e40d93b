"""Published layouts of measured operators, each with its unit, its devices and its broken rows.

- NeuSight (ASPLOS'25, github sitar-lab/NeuSight, MIT): fp32, milliseconds; ``N`` of a GEMM is the
  reduction, ``B x H`` rows and columns of the rest.
- Operator-level models (arXiv 2509.22832, github DebarghaG/estimate-train-time, MIT): fp16,
  microseconds of forward and backward, one file an operator; optimizer steps of a stage.
- aiconfigurator: ``sample_serving.py``. SimuMax: ``sample_training.py``.

``excluded`` counts what a rule leaves out; the rules are the functions named ``broken_*`` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from estimator.catalog import load_device
from estimator.cost.kernels import light_seconds
from estimator.lower.operators import flops
from estimator.operators import FloatArray, operators
from estimator.sample_columns import Layout, named, sizes, without, words
from estimator.sample_serving import SERVING_LAYOUTS
from estimator.sample_training import TRAINING_LAYOUTS
from estimator.samples import Samples, pooled, samples

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]


NEUSIGHT_DEVICES: Mapping[str, str] = {
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA L4": "l4",
    "Tesla P100-PCIE-16GB": "p100-pcie",
    "Tesla P4": "p4",
    "Tesla T4": "t4",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
    "AMD Instinct MI100": "mi100",
    "AMD Instinct MI210": "mi210",
}
OPLEVEL_DEVICES: Mapping[str, str] = {
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "GH200-120GB": "gh200-96gb",
    "GH200": "gh200-96gb",
}
VECTOR_READS: Mapping[str, tuple[float, float]] = {
    "add": (2.0, 1.0),
    "sub": (2.0, 1.0),
    "mul": (2.0, 1.0),
    "div": (2.0, 1.0),
    "pow": (2.0, 1.0),
}
"""Arrays read and written by operators of two arrays; all others read one and write one."""


def _neusight(frame: pd.DataFrame, stem: str) -> Samples:
    op = words(frame, "op")
    device = named(words(frame, "device"), NEUSIGHT_DEVICES, "device")
    if "M" in frame.columns:
        kind = np.where(op == "bmm", "bmm", "linear")
        ops = operators(
            kind,
            dtype="fp32",
            name=op,
            batch=sizes(frame, "B"),
            m=sizes(frame, "M"),
            n=sizes(frame, "K"),
            k=sizes(frame, "N"),
        )
    else:
        kind = np.select([op == "softmax", op == "ln"], ["softmax", "layer_norm"], "elementwise")
        reads, writes = np.array([VECTOR_READS.get(o, (1.0, 1.0)) for o in op.tolist()]).T
        ops = operators(
            kind,
            dtype="fp32",
            name=op,
            m=sizes(frame, "B"),
            n=sizes(frame, "H"),
            reads=reads,
            writes=writes,
        )
    made = samples(
        ops, device=device, seconds=sizes(frame, "latency_ms") * 1e-3, source=f"neusight/{stem}"
    )
    return without(made, {"p4-linear-slow": broken_p4_linear(made)})


def broken_p4_linear(made: Samples) -> NDArray[np.bool_]:
    """P4's linear rows where large ones reach under ``P4_LEAST`` of its peak.

    NeuSight's training rows reach 0.18 and the test rows of the same board 0.72: its clock fell.
    """
    mine = (made.device == "p4") & (made.ops.kind == "linear")
    large = mine & (flops(made.ops) > 1e9)
    if not large.any():
        return np.zeros(len(made), dtype=bool)
    peak = load_device("p4").peaks["fp32"]
    slow = bool(np.median(flops(made.ops)[large] / made.seconds[large] / peak) < P4_LEAST)
    return np.asarray(mine & slow)


LINEARS: Mapping[str, Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]] = {
    "linear1": lambda d, tp: (3 * d / tp, d),
    "linear2": lambda d, tp: (d, d / tp),
    "linear3": lambda d, tp: (4 * d / tp, d),
    "linear4": lambda d, tp: (d, 4 * d / tp),
}
"""(n, k) of the linear operators by hidden size and tensor parallelism."""
OPLEVEL_NAMES: Mapping[str, str] = {"flash_atten": "flash2"}
"""The project's names of operators that other layouts also have; the rest keep their own."""
VOCABULARY = 50257
P4_LEAST = 0.4
SPLIT_OVER_2_GIB = ("fillmask", "gelu", "res_add", "parallel_cross_entropy_128")


def _padded_vocabulary(tp: FloatArray) -> FloatArray:
    multiple = 128 * tp
    return np.ceil(VOCABULARY / multiple) * multiple


def _oplevel(frame: pd.DataFrame, stem: str) -> Samples:
    op = str(frame["op"].iloc[0])
    device = named(words(frame, "device"), OPLEVEL_DEVICES, "device")
    shapes = _oplevel_shapes(frame, op)
    parts = []
    for phase, column in (("forward", "F_dur(us)"), ("backward", "B_dur(us)")):
        measured = frame[column].notna().to_numpy()
        made = samples(
            operators(
                dtype="fp16", name=OPLEVEL_NAMES.get(op, op), phase=phase, **shapes[phase]
            ).take(measured),
            device=device[measured],
            seconds=sizes(frame, column)[measured] * 1e-6,
            source=f"estimate-train-time/{stem}",
        )
        tp = sizes(frame, "mp")[measured] if "mp" in frame.columns else np.ones(len(made))
        parts.append(without(made, broken_oplevel(made, op, phase, tp)))
    return pooled(parts)


def broken_oplevel(
    made: Samples, op: str, phase: str, tp: FloatArray
) -> dict[str, NDArray[np.bool_]]:
    """Rows of operator-level samples whose time is not the operator's, by rule.

    Kernels that the profiler missed leave a backward far under forward, copies leave it equal, and
    no operator can pass the speed of light. On GH200 most optimizer steps do, and others of the
    same size take a thousand times as long. PyTorch runs an element-wise operator over more than
    2 GiB as several kernels, of which the GH200 rows have one: half or a quarter of the time.
    """
    gh200 = made.device == "gh200-96gb"
    none = np.zeros(len(made), dtype=bool)
    light = np.zeros(len(made))
    for name in np.unique(made.device).tolist():
        mine = made.device == name
        light[mine] = light_seconds(made.ops.take(mine), load_device(name))
    return {
        "gh200-flash-backward": gh200 if (op, phase) == ("flash_atten", "backward") else none,
        "gh200-embedding-forward": gh200 if (op, phase) == ("embedding", "forward") else none,
        "gh200-norm-backward": gh200
        if op in ("layernorm", "softmax") and phase == "backward"
        else none,
        "gh200-one-of-several-kernels": gh200 & (2 * made.ops.m * made.ops.n > 2**31)
        if op in SPLIT_OVER_2_GIB and (op, phase) != ("fillmask", "backward")
        else none,
        "gh200-optimizer": gh200 if op == "optimizer" else none,
        "residual-backward-copied": ~none if (op, phase) == ("res_add", "backward") else none,
        "a100-linear2-tp": (made.device == "a100-sxm-80gb") & (tp > 1) if op == "linear2" else none,
        "faster-than-light": made.seconds < light,
    }


def _oplevel_optimizer(frame: pd.DataFrame, stem: str) -> Samples:
    """Steps of Adam over a GPT's stage, all in fp32: weights, gradients and two moments.

    ``encoders`` layers of 12 squares and 13 rows of the hidden size, cut over ``mp`` but for the
    rows; the first and last stage hold the embedding as well.
    """
    stage = str(frame["op"].iloc[0]).removesuffix("_optimizer")
    if stage not in ("firstStage", "middleStage", "lastStage"):
        raise ValueError(f"unknown stage {stage!r}; known are firstStage, middleStage, lastStage")
    tp, hidden, layers = (sizes(frame, name) for name in ("mp", "dim", "encoders"))
    parameters = layers * (12 * hidden**2 / tp + 13 * hidden)
    if stage != "middleStage":
        parameters = parameters + _padded_vocabulary(tp) / tp * hidden
    made = samples(
        operators("optimizer", name="adam", dtype="fp32", m=parameters, reads=4, writes=3),
        device=named(words(frame, "device"), OPLEVEL_DEVICES, "device"),
        seconds=sizes(frame, "dur(us)") * 1e-6,
        source=f"estimate-train-time/{stem}",
    )
    return without(made, broken_oplevel(made, "optimizer", "forward", tp))


def _oplevel_shapes(frame: pd.DataFrame, op: str) -> dict[str, dict[str, Any]]:
    """Columns of ``operators`` by phase; arrays moved by unfused chains as their kernels do it."""
    column = {name: sizes(frame, name) for name in ("mp", "b", "h", "l", "dim") if name in frame}
    tp = column.get("mp", np.ones(len(frame)))
    b, length = column["b"], column["l"]
    tokens = b * length
    hidden = column.get("dim", np.ones(len(frame)))
    local = column.get("h", np.ones(len(frame))) / tp
    if op in LINEARS or op == "linear_final":
        vocabulary = _padded_vocabulary(tp) / tp
        n, k = LINEARS[op](hidden, tp) if op in LINEARS else (vocabulary, hidden)
        both = {"kind": "linear", "m": tokens, "n": n, "k": k}
        return {"forward": both, "backward": both}
    if op in ("baddbmm", "bmm"):
        head = hidden / (local * tp)
        n, k = (length, head) if op == "baddbmm" else (head, length)
        both = {"kind": "bmm", "batch": b * local, "m": length, "n": n, "k": k}
        return {"forward": both, "backward": both}
    if op == "flash_atten":
        head = hidden / (local * tp)
        both = {"kind": "attention", "batch": b, "m": length, "n": length, "k": head}
        both |= {"heads": local, "kv_heads": local}
        return {"forward": both, "backward": both}
    if op == "embedding":
        both = {"kind": "embedding", "m": tokens, "n": hidden, "k": _padded_vocabulary(tp) / tp}
        return {"forward": both, "backward": both}
    kind, rows, width, forward, backward = {
        "layernorm": ("layer_norm", tokens, hidden, (1, 1), (2, 1)),
        "RMSlayernorm": ("rms_norm", tokens, hidden, (1, 1), (2, 1)),
        "RoPE": ("rope", tokens * local, hidden / (local * tp), (2, 2), (2, 2)),
        "softmax": ("softmax", b * local * length, length, (1, 1), (2, 1)),
        "ScaledUpperTriangMaskedSoftmax": ("softmax", b * local * length, length, (1, 1), (2, 1)),
        "fillmask": ("elementwise", b * local * length, length, (1, 1), (1, 1)),
        "gelu": ("elementwise", tokens, 4 * hidden / tp, (1, 1), (2, 1)),
        "res_add": ("elementwise", tokens, hidden, (2, 1), (1, 0)),
        "parallel_cross_entropy_128": (
            "cross_entropy",
            tokens,
            _padded_vocabulary(tp) / tp,
            (1, 1),
            (1, 1),
        ),
    }[op]
    return {
        phase: {"kind": kind, "m": rows, "n": width, "reads": float(r), "writes": float(w)}
        for phase, (r, w) in (("forward", forward), ("backward", backward))
    }


LAYOUTS = (
    Layout(columns=frozenset({"op", "latency_ms", "device", "B"}), read=_neusight),
    *SERVING_LAYOUTS,
    *TRAINING_LAYOUTS,
    Layout(columns=frozenset({"op", "F_dur(us)", "B_dur(us)", "l"}), read=_oplevel),
    Layout(columns=frozenset({"op", "mp", "dim", "encoders", "dur(us)"}), read=_oplevel_optimizer),
)
