"""FLOPs and bytes of operators as rows; the rows themselves are ``estimator.operators``.

GEMM: 2 batch m n k FLOP; both operands are read and the result is written once. Attention: two
products (scores, values), half of each where causal: the lower triangle's. Backward of a GEMM is
the two GEMMs of its gradients; of fused attention, five products where forward has two (it computes
the scores again: FlashAttention, arXiv 2205.14135, algorithm 4).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from estimator.operators import DTYPE_BYTES, FloatArray, Operators, concatenate

ATTENTION_BACKWARD = 2.5
"""Products of attention backward over forward: five to two."""
GEMM_BACKWARD = 2.0
"""GEMMs of a linear's backward: for the input's gradient and for the weights'."""


def element_bytes(ops: Operators) -> FloatArray:
    """Bytes of one element, shape (N,)."""
    sizes = np.zeros(len(ops))
    for dtype, size in DTYPE_BYTES.items():
        sizes[ops.dtype == dtype] = size
    return sizes


def flops(ops: Operators) -> FloatArray:
    """FLOP of one run of each operator, shape (N,); a multiply-add is two."""
    attention = ops.kind == "attention"
    gemm = (ops.kind == "linear") | (ops.kind == "bmm")
    backward = ops.phase == "backward"
    count = ops.work * ops.m * ops.n
    product = 2 * ops.batch * ops.m * ops.n * ops.k
    count = np.where(gemm, product * np.where(backward, GEMM_BACKWARD, 1.0), count)
    both = 2 * product * ops.heads * attended_share(ops)
    count = np.where(attention, both * np.where(backward, ATTENTION_BACKWARD, 1.0), count)
    return np.asarray(count, dtype=np.float64)


def attended_share(ops: Operators) -> FloatArray:
    """Share of (query, key) pairs that attention works on, shape (N,): a half where causal.

    The last query sees all keys; the first of m queries sees ``n - m + 1``.
    """
    square = np.minimum(ops.m, ops.n)
    return np.asarray(1 - ops.causal * (square - 1) / (2 * ops.n), dtype=np.float64)


def moved_bytes(ops: Operators) -> FloatArray:
    """Bytes that one run of each operator must move, shape (N,): inputs and outputs once.

    Attention moves queries, keys, values and outputs; its backward those, their gradients and the
    output's. Embedding reads and writes the rows it takes; its backward zeroes the table as well.
    """
    backward = ops.phase == "backward"
    elements = (ops.reads + ops.writes) * ops.m * ops.n
    operands = ops.batch * (ops.m * ops.k + ops.k * ops.n + ops.m * ops.n)
    gemm = (ops.kind == "linear") | (ops.kind == "bmm")
    elements = np.where(gemm, operands * np.where(backward, GEMM_BACKWARD, 1.0), elements)
    queries = ops.batch * ops.m * ops.heads * ops.k
    keys = ops.batch * ops.n * ops.kv_heads * ops.k
    attention = 2 * (queries + keys) + np.where(backward, 2 * (queries + keys), 0.0)
    elements = np.where(ops.kind == "attention", attention, elements)
    rows = 2 * ops.m * ops.n + np.where(backward, ops.k * ops.n, 0.0)
    elements = np.where(ops.kind == "embedding", rows, elements)
    return np.asarray(element_bytes(ops) * elements, dtype=np.float64)


def as_run(ops: Operators) -> tuple[Operators, NDArray[np.int64]]:
    """Kernels that run, and the row of ``ops`` of each: a backward product is two forward ones.

    Of Y (m, n) = X (m, k) W (k, n): dX = dY W' reduces over n, dW = X' dY over m. All other rows
    stay as they are.
    """
    rows = np.arange(len(ops), dtype=np.int64)
    both = np.isin(ops.kind, ("linear", "bmm")) & (ops.phase == "backward")
    if not both.any():
        return ops, rows
    phase = np.where(both, "forward", ops.phase)
    n, k = np.where(both, ops.k, ops.n), np.where(both, ops.n, ops.k)
    inputs = replace(ops, phase=phase, n=n, k=k)
    weights = replace(ops, phase=phase, m=ops.k, k=ops.m).take(both)
    return concatenate([inputs, weights]), np.concatenate([rows, rows[both]])


def query_rows(ops: Operators) -> FloatArray:
    """Rows of queries over all sequences and heads of attention, which its blocks divide; (N,)."""
    rows: FloatArray = ops.batch * ops.heads * ops.m
    return rows
