"""What both halves of a layer are framed by: norms, residuals, tensor-parallel collectives."""

from __future__ import annotations

import numpy as np

from estimator.lower.lowering import Lowering
from estimator.lower.slots import FloatArray, Place

FUSED_NORM = (2.0, 3.0)
"""Passes over the rows, forward and backward, of a norm that is one kernel each way."""
EAGER_NORM = {"layernorm": (2.6, 8.4), "rmsnorm": (8.7, 41.0)}
"""The same of PyTorch's operations one by one: measured time over one pass's, A100, fp16 samples of
estimate-train-time (arXiv 2509.22832); on GH200 2.4 forward, and 11 and 45."""


def norm(low: Lowering, name: str, place: Place) -> None:
    """A norm over a rank's part of the tokens; its backward reads gradient and input."""
    row = low.split * low.model.hidden * low.element
    fused = "norm" in low.stack.fused
    forward, backward = FUSED_NORM if fused else EAGER_NORM[low.model.norm]
    low.memory(name, place, forward=forward * row, backward=backward * row)


def residual(low: Lowering, name: str) -> None:
    """The sum of a block's output and its input, with dropout where it runs."""
    row = low.split * low.model.hidden * low.element
    mask = 0.5 * low.workload.dropout
    saved = 1.0 if "norm_residual" in low.stack.fused else 0.0
    low.memory(name, "layer", forward=(3 + mask - saved) * row, backward=(2 + mask) * row)


def adapter(low: Lowering, name: str, inputs: FloatArray, outputs: FloatArray) -> None:
    """Two thin GEMMs beside a frozen one (Hu et al., arXiv 2106.09685, section 4).

    The adapter's output is added to the frozen one's, and in backward its input gradient to theirs.
    """
    if low.workload.lora_rank is None:
        return
    rank = np.full_like(low.tokens, low.workload.lora_rank)
    low.gemm(f"{name} adapter down", "layer", m=low.tokens, n=rank, k=inputs)
    low.gemm(f"{name} adapter up", "layer", m=low.tokens, n=outputs, k=rank)
    element = low.tokens * low.element
    low.memory(
        f"{name} adapter sums",
        "layer",
        forward=3 * element * outputs,
        backward=3 * element * inputs,
    )


def tp_enter(low: Lowering, name: str, place: Place) -> None:
    """Into a column-parallel GEMM: gathers the sequence, or sums input gradients in backward.

    With sequence parallelism Megatron-LM gathers the input again for the weight gradient.
    Backward's collectives depend on one of the layer's two backward GEMMs only and may run beside
    the other.
    """
    sp = (low.keys.sequence_parallel == 1).astype(float)
    low.tp_collectives(
        f"{name} input",
        place,
        (
            ("all_gather", "forward", sp),
            ("reduce_scatter", "backward_input", sp),
            ("all_gather", "backward_weight", sp * low.stack.regathers_inputs),
            ("all_reduce", "backward_input", 1 - sp),
        ),
        asynchronous=place == "layer",
    )


def tp_leave(low: Lowering, name: str, place: Place) -> None:
    """Out of a row-parallel GEMM: partial sums are reduced, or scattered along the sequence."""
    sp = (low.keys.sequence_parallel == 1).astype(float)
    low.tp_collectives(
        f"{name} output",
        place,
        (
            ("reduce_scatter", "forward", sp),
            ("all_gather", "backward_input", sp),
            ("all_reduce", "forward", 1 - sp),
        ),
    )
