"""NeuSight's operator graphs as rows of ``estimator.operators``: forward, backward and traffic.

A graph holds the nodes of one layer (``torch.fx`` of a Hugging Face model, eager attention, fp32)
and of what lies around the layers; fused graphs hold all layers. A node's shapes say which kernels
PyTorch's autograd runs for it, which is not always what NeuSight's own list says: the backward of
an addition runs none, of layer norm two.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from estimator.operators import NameArray, Operators, operators

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

MARKERS: Mapping[str, tuple[str, str]] = {
    "bert": ("bert_encoder_layer_0_attention_self_query", "bert_encoder_layer_0_output_layer_norm"),
    "gpt": ("transformer_h_0_ln_1", "transformer_ln_f"),
    "opt": ("model_decoder_layers_0_self_attn_layer_norm", "model_decoder_final_layer_norm"),
}
"""First node of the layer, and its last (bert) or the first one after it."""
LAYERS: Mapping[str, int] = {
    "bert_large": 24,
    "gpt2_large": 36,
    "gpt3_xl": 24,
    "gpt3_27": 32,
    "opt_13": 24,
}
MASK = 0.25
"""Bytes of a dropout mask's element over those of fp32."""
FAMILY: Mapping[str, str] = {
    "Linear": "linear",
    "BMM": "bmm",
    "VECsoftmax": "softmax",
    "VECln": "layer_norm",
}
"""Families of NeuSight's table; all other VEC nodes are element-wise, the rest belong to none."""
BACKWARD: Mapping[str, tuple[float, float]] = {
    "VECaddu": (0, 0),
    "VECmulu": (1, 1),
    "VECdivu": (1, 1),
    "VECdiv": (1, 1),
    "VECmul": (4, 2),
    "VECpowu": (4, 3),
    "VECtanh": (2, 1),
    "VECgelu": (2, 1),
    "VECrelu": (2, 1),
    "VECadd": (0, 0),
    "where": (1, 1),
    "dropout": (1 + MASK, 1),
}
"""Arrays that autograd's kernels read and write. The divisor is a scalar; a power's gradient is
three kernels; both factors of a product get one."""
SMALLEST = 65536
"""Elements of the smallest activation that counts: masks and positions have no gradient."""
WITHOUT_GRADIENT = ("size", "getattr", "dim", "output")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One graph's kernels with how often they run; arrays have shape (N,)."""

    ops: Operators
    family: NameArray
    """linear, bmm, elementwise, softmax, layer_norm or other."""
    part: NameArray
    """forward, backward, or accumulate (gradients added to those that are there)."""
    between: NDArray[np.bool_]
    """Kernels between nodes, which no node timed alone runs: copies of permuted operands and of
    their gradients, and the additions of gradients where an output has several consumers."""
    traffic: tuple[tuple[str, str, float, float], ...]
    """(collective, forward or backward, bytes, count)."""
    last_backward: NDArray[np.bool_]
    """Rows of the output layer: their backward comes before any gradient can be sent."""


@cache
def _parsed(text: str) -> Any:
    return ast.literal_eval(text)


def lower(nodes: pd.DataFrame, model: str, mode: str, option: str) -> Graph:
    """The rows of one graph, ``nodes`` in the columns of ``opgraph.parquet``."""
    whole = option == "fusion" or model not in LAYERS
    counts = np.ones(len(nodes)) if whole else _counts(nodes, model)
    rows: list[Row] = []
    traffic = []
    before = ""
    for node, count in zip(nodes.itertuples(), counts.tolist(), strict=True):
        mine = [*_node(node, before), *(_fan_out(node) if mode == "train" else ())]
        rows += [{**row, "count": count, "node": str(node.Name)} for row in mine]
        traffic += [(*sent, count) for sent in _traffic(node)]
        if str(node.OpName) != "misc":
            before = str(node.OpName)
    text = {name: np.array([row.pop(name) for row in rows]) for name in ("family", "part", "node")}
    between = np.array([row.pop("between", False) for row in rows])
    shapes = ("batch", "m", "n", "k", "reads", "writes", "count")
    ops = operators(
        [row["kind"] for row in rows],
        dtype="fp32",
        phase=[row.get("phase", "forward") for row in rows],
        **{shape: [float(row.get(shape, 1)) for row in rows] for shape in shapes},
    )
    return Graph(
        ops=ops,
        family=text["family"],
        part=text["part"],
        between=between,
        traffic=tuple(traffic),
        last_backward=(text["node"] == "lm_head") & (text["part"] == "backward"),
    )


def layer_counts(names: list[str], model: str) -> NDArray[np.float64]:
    """How often each node of a one-layer graph runs, shape (nodes,)."""
    first, last = next(marks for family, marks in MARKERS.items() if model.startswith(family))
    start, end = names.index(first), names.index(last) + (model.startswith("bert"))
    counts = np.ones(len(names))
    counts[start:end] = LAYERS[model]
    return counts


def _counts(nodes: pd.DataFrame, model: str) -> NDArray[np.float64]:
    return layer_counts(nodes["Name"].astype(str).tolist(), model)


def _traffic(node: Any) -> Iterator[tuple[str, str, float]]:
    for part, listed in (("forward", node.FwOps), ("backward", node.BwOps)):
        for name, shape in _parsed(str(listed)):
            if name in ("ALLREDUCE", "ALLREDUCE_ASYNC", "SENDRECV"):
                kind = "send_recv" if name == "SENDRECV" else "all_reduce"
                yield kind, part, 4.0 * shape[0]


def _node(node: Any, before: str) -> Iterator[Row]:
    """Kernels of one node; views, sizes and what is listed without a kernel give none."""
    op, listed = str(node.OpName), _parsed(str(node.FwOps))
    trains = bool(_parsed(str(node.BwOps)))
    if op in ("misc", "getitem", "output", "allreduce", "sendrecv") or not listed:
        return
    inputs = [np.prod(shape) for shape in _parsed(str(node.InputShapes))]
    output = float(np.prod(_parsed(str(node.OutputShape))))
    if op in ("Linear", "BMM"):
        yield from _product(op, listed[0][1], node, trains)
    elif op in ("VECsoftmax", "VECln"):
        family = FAMILY[op]
        shape = {"kind": family, "family": family, "m": listed[0][1][0], "n": listed[0][1][1]}
        yield {**shape, "part": "forward"}
        if trains:
            # Two kernels each. Softmax: its gradient times its output, then the row sums. Layer
            # norm: the input's gradient, then those of scale and shift, which only read.
            elements = float(np.prod(listed[0][1]))
            yield {**shape, "part": "backward", "reads": 2}
            yield _vector(family, "backward", elements, 2, 1 if op == "VECsoftmax" else 0)
    elif op == "EMBEDDING":
        rows, width = (int(x) for x in (inputs[0], output / inputs[0]))
        yield _vector("other", "forward", rows * width, 1, 1)
        if trains:
            table = float(np.prod(_parsed(str(node.BwOps))[0][1][0]))
            yield _vector("other", "backward", table, 2 * output / table, 1 + output / table)
    elif op == "contiguous":
        if before != "Linear":
            yield _vector("other", "forward", output, 1, 1)
            if trains:
                yield {**_vector("other", "backward", output, 1, 1), "between": True}
    elif op == "dropout":
        yield _vector("other", "forward", output, 1, 1 + MASK * trains)
        if trains:
            yield _vector("other", "backward", output, *BACKWARD[op])
    else:
        yield from _elementwise(op, listed, inputs, output, trains)
    for _, shape in _parsed(str(node.AccOps)):
        family = FAMILY.get(op, "elementwise" if op.startswith("VEC") else "other")
        yield _vector(family, "accumulate", float(np.prod(shape)), 2, 1)


def _fan_out(node: Any) -> Iterator[Row]:
    """Autograd adds the gradients of an activation that several nodes consume, two at a time."""
    output = float(np.prod(_parsed(str(node.OutputShape))))
    if output < SMALLEST or str(node.OpName) == "getitem":
        return
    consumers = [n for n in _parsed(str(node.Next)) if not n.startswith(WITHOUT_GRADIENT)]
    for _ in consumers[1:]:
        yield {**_vector("other", "backward", output, 2, 1), "between": True}


def _product(op: str, shape: tuple[int, ...], node: Any, trains: bool) -> Iterator[Row]:
    """A linear (m, k, n) or a batched product (b, m, k, n), its two gradients and its bias's."""
    batch, m, k, n = (1, *shape) if op == "Linear" else shape
    row = {"kind": FAMILY[op], "family": FAMILY[op], "batch": batch, "m": m, "n": n, "k": k}
    yield {**row, "part": "forward"}
    if trains:
        yield {**row, "part": "backward", "phase": "backward"}
    if trains and len(_parsed(str(node.AccOps))) == 2:
        yield _vector("linear", "backward", m * n, 1, 1 / m)
    operands = _parsed(str(node.InputShapes))[:2]
    if op == "BMM" and len(operands[0]) == 4 and operands[0][0] > 1:
        # Heads are a permuted view; scores (of as many rows as columns) are not.
        for operand in operands:
            if operand[-1] != operand[-2]:
                elements = float(np.prod(operand))
                for part in ("forward", "backward") if trains else ("forward",):
                    yield {**_vector("other", part, elements, 1, 1), "between": True}


def _elementwise(
    op: str, listed: list[Any], inputs: list[Any], output: float, trains: bool
) -> Iterator[Row]:
    """One kernel (or a fused chain): each distinct input is read once, the output written."""
    family = "elementwise" if op.startswith("VEC") else "other"
    elements = output
    if op.startswith("VEC"):
        elements = float(np.prod(listed[0][1]))
    reads = sum(float(size) for size in inputs) / output
    if op.startswith("VEC") and len(inputs) == 2 and 1 < min(inputs) < output:
        # A broadcast operand is fetched for every element: PyTorch's kernel is not vectorised then.
        reads = 2.0
    yield _vector(family, "forward", elements, reads, 1)
    both = op == "VECmul" and len(inputs) == 2 and inputs[0] == inputs[1]
    read, written = BACKWARD.get(op, (1, 1)) if op != "VECmul" or both else (2, 1)
    if trains and written:
        yield _vector(family, "backward", elements, read, written)


def _vector(family: str, part: str, elements: float, reads: float, writes: float) -> Row:
    shape = {"m": 1, "n": elements, "reads": reads, "writes": writes}
    return {"kind": "elementwise", "family": family, "part": part, **shape}
