"""ATen calls as operator rows: which family of kernels each is, and its size.

A call is what PyTorch's dispatcher sees: a name, its arguments, the tensors that it reads and
writes. This file needs no torch.

- ``mm``, ``addmm``, ``mv`` are linear, ``bmm``, ``baddbmm`` batched products; a bias rides along.
- A grouped product (experts of a mixture) has equal groups: its FLOPs do not depend on them.
- A convolution is its implicit GEMM, (pixels, in x kernel) x (in x kernel, out) in each group:
  its FLOPs are exact, its bytes count an input once for each place of the kernel, as im2col does.
- Fused attention is one row; its backward another, of phase backward.
- All else moves memory: ``reads`` and ``writes`` are the bytes of the distinct tensors, in units of
  the largest tensor of the call. A broadcast operand counts by its own size, so both are fractions
  where a bias, a mask of bytes or a reduced result takes part. ``work`` is 1 for each element.

``phase`` says which kernel it is: backward only for those that autograd alone runs (softmax,
normalisation, attention, embedding, element-wise derivatives). The GEMMs of a backward pass are
GEMMs like others, one row each and phase forward; which pass they run in is ``Call.backward``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from estimator.operators import DTYPE_BYTES

DTYPES: Mapping[str, str] = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2fnuz": "fp8",
}
"""torch's dtypes that kernels have rates for; sizes of all others are counted in fp32 elements."""
NORMS: Mapping[str, str] = {
    "_softmax": "softmax",
    "_safe_softmax": "softmax",
    "_softmax_backward_data": "softmax",
    "_log_softmax": "cross_entropy",
    "_log_softmax_backward_data": "cross_entropy",
    "nll_loss_forward": "cross_entropy",
    "nll_loss_backward": "cross_entropy",
    "nll_loss2d_forward": "cross_entropy",
    "nll_loss2d_backward": "cross_entropy",
    "native_layer_norm": "layer_norm",
    "native_layer_norm_backward": "layer_norm",
    "rms_norm": "rms_norm",
    "rms_norm_backward": "rms_norm",
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


COPIES = _names("""
    clone copy copy_ _to_copy cat stack fill fill_ zero_ zeros zeros_like ones ones_like full
    full_like scalar_tensor new_zeros new_ones new_full arange linspace eye constant_pad_nd
    reflection_pad2d repeat roll flip tril triu tril_ triu_ select_backward slice_backward
    unfold_backward as_strided_scatter slice_scatter select_scatter diagonal_scatter
    split_with_sizes_copy index index_select gather take index_put index_put_ _index_put_impl_
    index_add index_add_ scatter scatter_ scatter_add scatter_add_ masked_scatter im2col col2im
    _unsafe_index _unsafe_index_put upsample_nearest2d pixel_shuffle
""")
ELEMENTWISE = _names("""
    native_dropout native_dropout_backward bernoulli bernoulli_ uniform_ normal_ rand randn
    rand_like randn_like randint where masked_fill masked_fill_ max_pool2d_with_indices
    max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d
    _adaptive_avg_pool2d_backward native_batch_norm native_batch_norm_backward cudnn_batch_norm
    _native_batch_norm_legit _native_batch_norm_legit_no_training native_group_norm
    native_group_norm_backward mse_loss mse_loss_backward glu glu_backward cumsum cumprod sort
    topk argsort logsumexp dot softplus_backward floor_divide histc binary_cross_entropy
    binary_cross_entropy_backward smooth_l1_loss smooth_l1_loss_backward huber_loss
    huber_loss_backward
""")
"""Of no ``pointwise`` or ``reduction`` tag in torch, and known all the same."""
GATHERS = _names("index index_select gather take _unsafe_index")
"""Read no more of a table than they return."""
PICKS = frozenset(name for name in NORMS if name.startswith("nll_loss"))
"""Read one element of each row, as ``target`` says."""
SCATTERS = _names("index_put_ _index_put_impl_ index_add_ scatter_ scatter_add_")
"""Touch no more of what they change than they are given."""
FILLS = _names("""
    fill_ zero_ bernoulli_ uniform_ normal_ zeros_like ones_like full_like rand_like randn_like
    new_zeros new_ones new_full
""")
"""Read no tensor: only the shape of their operand matters."""
FREE = _names("""
    empty empty_like empty_strided new_empty new_empty_strided lift lift_fresh set_ resize_
""")
"""Launch no kernel."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor as a call sees it."""

    storage: int
    version: int
    """Rises when the storage is written in place: another value at the same place."""
    offset: int
    shape: tuple[int, ...]
    elements: int
    """Of distinct memory: an expanded dimension counts once."""
    dtype: str
    """As torch spells it: float32, bool, ..."""
    itemsize: int

    @property
    def bytes(self) -> int:
        """Bytes of distinct memory."""
        return self.elements * self.itemsize

    @property
    def size(self) -> int:
        """Elements that the shape spans, repeats included."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of an ATen operator."""

    name: str
    """Without namespace and overload: ``mm``, ``add_``."""
    arguments: Mapping[str, Any]
    """By the schema's names; tensors as ``Value``."""
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    backward: bool
    """Whether the backward pass runs it."""
    pointwise: bool = False
    """torch tags it as one: each element of the result needs one element of each operand."""
    reduction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of ``Operators``; its columns say what the fields are."""

    kind: str
    name: str
    dtype: str
    in_backward: bool
    phase: str = "forward"
    batch: float = 1.0
    m: float = 1.0
    n: float = 1.0
    k: float = 1.0
    heads: float = 1.0
    kv_heads: float = 1.0
    causal: float = 0.0
    reads: float = 1.0
    writes: float = 1.0
    work: float = 1.0


def rows_of(call: Call) -> tuple[Row, ...]:
    """The kernels of a call: one row, none for an empty tensor, up to three for a convolution.

    Raises:
        ValueError: a matrix product in a dtype that no device has a rate for.
    """
    if call.name in FREE or not any(value.elements for value in call.writes):
        return ()
    if call.name in PRODUCTS:
        return PRODUCTS[call.name](call)
    return (memory_row(call),)


def recognised(call: Call) -> bool:
    """Whether the operator is known; others count as copies of what they read and write."""
    known = call.name in COPIES | ELEMENTWISE | FREE | NORMS.keys() | PRODUCTS.keys()
    return known or call.pointwise or call.reduction


# Products


def _product(call: Call, kind: str, a: Value, **sizes: float) -> Row:
    if a.dtype not in DTYPES:
        raise ValueError(
            f"{call.name} in {a.dtype}: matrix products are priced in {', '.join(DTYPES)}; "
            "convert the module"
        )
    dtype = DTYPES[a.dtype]
    name = call.name.removeprefix("_scaled_dot_product").strip("_")
    return Row(kind=kind, name=name, dtype=dtype, in_backward=call.backward, **sizes)  # type: ignore[arg-type]


def _matrix_product(left: str, right: str) -> Callable[[Call], tuple[Row, ...]]:
    def rows(call: Call) -> tuple[Row, ...]:
        a, b = call.arguments[left], call.arguments[right]
        kind = "bmm" if len(a.shape) == 3 else "linear"
        n = b.shape[-1] if len(b.shape) > 1 else 1
        batch = a.shape[0] if kind == "bmm" else 1
        if not a.elements or not b.elements:
            return ()
        return (_product(call, kind, a, batch=batch, m=a.shape[-2], n=n, k=a.shape[-1]),)

    return rows


def _grouped_product(call: Call) -> tuple[Row, ...]:
    """Experts of a mixture, with equal shares of the tokens: the dimension that the groups cut."""
    a, b, ends = call.arguments["self"], call.arguments["mat2"], call.arguments.get("offs")
    groups = ends.size if ends is not None else a.shape[0]
    m, k, n = float(a.shape[-2]), float(a.shape[-1]), float(b.shape[-1])
    ranks = len(a.shape), len(b.shape)
    if ranks == (2, 3):
        m /= groups
    elif ranks == (3, 2):
        n /= groups
    elif ranks == (2, 2):
        k /= groups
    return (_product(call, "linear", a, batch=groups, m=m, n=n, k=k),)


def _convolution_sizes(call: Call, out: Value) -> tuple[int, int, int, int]:
    """(groups, pixels, columns, reduction) of the implicit GEMM of forward."""
    weight, groups = call.arguments["weight"], int(call.arguments["groups"])
    source = call.arguments["input"]
    transposed = bool(call.arguments["transposed"])
    kernel = math.prod(weight.shape[2:])
    grid = source if transposed else out
    pixels = grid.shape[0] * math.prod(grid.shape[2:])
    if transposed:
        return groups, pixels, weight.shape[1] * kernel, weight.shape[0] // groups
    return groups, pixels, weight.shape[0] // groups, weight.shape[1] * kernel


def _convolution(call: Call) -> tuple[Row, ...]:
    groups, pixels, columns, depth = _convolution_sizes(call, call.writes[0])
    a = call.arguments["input"]
    return (_product(call, "linear", a, batch=groups, m=pixels, n=columns, k=depth),)


def _convolution_backward(call: Call) -> tuple[Row, ...]:
    gradient = call.arguments["grad_output"]
    groups, pixels, columns, depth = _convolution_sizes(call, gradient)
    wanted = call.arguments["output_mask"]
    made = []
    if wanted[0]:
        made.append(_product(call, "linear", gradient, batch=groups, m=pixels, n=depth, k=columns))
    if wanted[1]:
        made.append(_product(call, "linear", gradient, batch=groups, m=columns, n=depth, k=pixels))
    if wanted[2]:
        m, n = rows_and_columns(gradient.shape)
        share = gradient.shape[1] / gradient.size
        dtype = DTYPES[gradient.dtype]
        made.append(
            Row(
                kind="elementwise",
                name="sum",
                dtype=dtype,
                in_backward=call.backward,
                m=m,
                n=n,
                writes=share,
            )
        )
    return tuple(made)


def _attention(call: Call) -> tuple[Row, ...]:
    query, key = call.arguments["query"], call.arguments["key"]
    row = _product(
        call,
        "attention",
        query,
        batch=query.shape[0],
        heads=query.shape[1],
        kv_heads=key.shape[1],
        m=query.shape[2],
        n=key.shape[2],
        k=query.shape[3],
        causal=float(bool(call.arguments.get("is_causal", False))),
    )
    return (replace(row, phase="backward") if "backward" in call.name else row,)


def _embedding(call: Call) -> tuple[Row, ...]:
    backward = "backward" in call.name
    indices = call.arguments["indices"]
    table = call.writes[0].shape if backward else call.arguments["weight"].shape
    width, dtype = table[1], call.writes[0].dtype
    row = Row(
        kind="embedding",
        name=call.name,
        dtype=DTYPES.get(dtype, "fp32"),
        in_backward=call.backward,
        m=indices.size,
        n=width,
        k=table[0],
    )
    return (replace(row, phase="backward") if backward else row,)


PRODUCTS: Mapping[str, Callable[[Call], tuple[Row, ...]]] = {
    "mm": _matrix_product("self", "mat2"),
    "addmm": _matrix_product("mat1", "mat2"),
    "bmm": _matrix_product("self", "mat2"),
    "baddbmm": _matrix_product("batch1", "batch2"),
    "mv": _matrix_product("self", "vec"),
    "addmv": _matrix_product("mat", "vec"),
    "_scaled_mm": _matrix_product("self", "mat2"),
    "_grouped_mm": _grouped_product,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding,
    **{
        f"_scaled_dot_product_{kernel}_attention{phase}": _attention
        for kernel in ("flash", "efficient", "cudnn")
        for phase in ("", "_backward")
    },
}
"""Operators whose size is not that of the tensors they move."""


# Memory


def rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor: the last dimension is the row."""
    columns = shape[-1] if shape else 1
    return math.prod(shape[:-1]), columns


def distinct(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Each value once: ``x * x`` reads one array."""
    return tuple(dict.fromkeys(values))


def moved(call: Call) -> tuple[int, int]:
    """Bytes that a call reads and writes."""
    reads, writes = distinct(call.reads), distinct(call.writes)
    if call.name in FILLS:
        reads = ()
    if call.name == "copy_":
        reads = tuple(value for value in reads if value.storage != writes[0].storage)
    written = sum(value.bytes for value in writes)
    if call.name in PICKS:
        rows = call.arguments["target"].elements
        return sum(min(value.elements, rows) * value.itemsize for value in reads), written
    if call.name in GATHERS:
        return sum(min(value.bytes, written) for value in reads), written
    if call.name in SCATTERS:
        target = writes[0].storage
        given = sum(value.bytes for value in reads if value.storage != target)
        return given + min(given, written), min(given, written)
    return sum(value.bytes for value in reads), written


def spanned(values: tuple[Value, ...]) -> Value:
    """The largest value, the first of floating point if several are; its shape is the row's."""
    return max(values, key=lambda value: (value.size, value.dtype in DTYPES))


def memory_row(call: Call) -> Row:
    """A call that is bound by what it moves."""
    read, written = moved(call)
    touched = call.writes if call.name in GATHERS | FILLS else (*call.writes, *call.reads)
    widest = spanned(touched)
    dtype = DTYPES.get(widest.dtype, "fp32")
    m, n = rows_and_columns(widest.shape)
    whole = m * n * DTYPE_BYTES[dtype]
    kind = NORMS.get(call.name, "elementwise")
    if not recognised(call) or call.name in COPIES:
        kind = "copy"
    return Row(
        kind=kind,
        name=call.name.strip("_"),
        dtype=dtype,
        in_backward=call.backward,
        phase="backward" if "_backward" in call.name else "forward",
        m=m,
        n=n,
        reads=read / whole,
        writes=written / whole,
        work=0.0 if kind == "copy" else 1.0,
    )
