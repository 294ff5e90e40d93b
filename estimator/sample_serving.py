"""Layouts of aiconfigurator's systems data (Apache-2.0): serving kernels, milliseconds.

Rows of experts hold a whole MLP of experts, as serving runs it: the product up (both halves where
gated), the activation, the product down, and the permutations around them. They become one product
per expert of as many FLOPs and weights, ``n`` being three widths of an expert (two where it is not
gated); what the activation moves is in their time and not in their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from estimator.operators import operators
from estimator.sample_columns import Layout, named, sizes, without, words
from estimator.samples import Samples, samples

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

EXPERTS = "experts"
"""Name of a product of experts' rows: not a product alone, so no model of products fits it."""
UNGATED = "moe_torch_flow_nongated"
UNGATED_MODELS = ((2048, 5120), (2688, 1856), (4096, 2688), (8192, 5120))
"""Hidden size and width of experts that have no gate; not all tables of them say if one was run."""
WHOLE_VISITS = ("vllm_fused_moe", "vllm_unquantizedfusedmoe_triton_tritonexperts")
"""Kernels that also walk over the visits of other ranks' experts."""
AIC_DEVICES: Mapping[str, str] = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "gb200": "gb200",
    "l40s": "l40s",
}
AIC_DTYPES: Mapping[str, str] = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "fp4",
}
AIC_ATTENTION: Mapping[str, str] = {
    "flash_attention": "flash2",
    "vllm_flash_attn": "flash2",
    "vllm_flash_attn_fa2": "flash2",
    "vllm_vit_flash_attn_fa2": "flash2",
    "fa3": "cudnn",
    "vllm_flash_attn_fa3": "cudnn",
    "vllm_vit_flash_attn_fa3": "cudnn",
}
"""Training's name for the class of a serving kernel (FlashAttention 3 is of the class of cuDNN's
fused attention on Hopper); other kernels keep their own."""


def serving_gemm(frame: pd.DataFrame, stem: str) -> Samples:
    """Products, forward."""
    return samples(
        operators(
            "linear",
            dtype=named(words(frame, "dtype"), AIC_DTYPES, "dtype"),
            m=sizes(frame, "m"),
            n=sizes(frame, "n"),
            k=sizes(frame, "k"),
        ),
        device=named(words(frame, "system"), AIC_DEVICES, "system"),
        seconds=sizes(frame, "latency_ms") * 1e-3,
        source=f"aiconfigurator/{stem}",
        library=words(frame, "table"),
    )


def serving_attention(frame: pd.DataFrame, stem: str) -> Samples:
    """Fused attention of whole sequences, forward: causal where the table tells key heads apart."""
    causal = "num_key_value_heads" in frame.columns
    kernels = words(frame, "kernel_source")
    length = sizes(frame, "isl")
    heads = sizes(frame, "num_heads")
    made = samples(
        operators(
            "attention",
            dtype="bf16",
            name=[AIC_ATTENTION.get(kernel, kernel) for kernel in kernels.tolist()],
            batch=sizes(frame, "batch_size"),
            m=length,
            n=length,
            k=sizes(frame, "head_dim"),
            heads=heads,
            kv_heads=sizes(frame, "num_key_value_heads") if causal else heads,
            causal=float(causal),
        ),
        device=named(words(frame, "system"), AIC_DEVICES, "system"),
        seconds=sizes(frame, "latency_ms") * 1e-3,
        source=f"aiconfigurator/{stem}",
        library=words(frame, "table"),
    )
    if not causal:
        return made
    return without(made, {"attention-window": sizes(frame, "window_size") > 0})


def serving_experts(frame: pd.DataFrame, stem: str) -> Samples:
    """MLPs of experts on one rank of ``moe_ep_size`` x ``moe_tp_size``, tokens spread evenly."""
    kernel = words(frame, "kernel_source")
    experts = sizes(frame, "num_experts") / sizes(frame, "moe_ep_size")
    visits = sizes(frame, "num_tokens") * sizes(frame, "topk") / sizes(frame, "moe_ep_size")
    parts = np.where(kernel == UNGATED, 2, 3)
    made = samples(
        operators(
            "linear",
            dtype=named(words(frame, "moe_dtype"), AIC_DTYPES, "dtype"),
            name=EXPERTS,
            batch=experts,
            m=visits / experts,
            n=parts * sizes(frame, "inter_size") / sizes(frame, "moe_tp_size"),
            k=sizes(frame, "hidden_size"),
        ),
        device=named(words(frame, "system"), AIC_DEVICES, "system"),
        seconds=sizes(frame, "latency_ms") * 1e-3,
        source=f"aiconfigurator/{stem}",
        library=words(frame, "table"),
    )
    return without(made, broken_experts(made, words(frame, "distribution"), kernel, frame))


def broken_experts(
    made: Samples, distribution: NDArray[np.str_], kernel: NDArray[np.str_], frame: pd.DataFrame
) -> dict[str, NDArray[np.bool_]]:
    """Rows whose shape is not what ran, by rule.

    Tokens drawn by a power law leave the rows of the busiest expert unsaid; with fewer visits than
    experts, some weights are never read; some kernels of expert parallelism take as long as all
    ranks' visits do; models without a gate were timed with or without one.
    """
    sizes_of = zip(sizes(frame, "hidden_size"), sizes(frame, "inter_size"), strict=True)
    ungated = np.array([size in UNGATED_MODELS for size in sizes_of], dtype=bool)
    return {
        "experts-skewed": distribution != "balanced",
        "experts-unvisited": made.ops.m < 1,
        "experts-of-other-ranks": np.isin(kernel, WHOLE_VISITS) & (sizes(frame, "moe_ep_size") > 1),
        "experts-gate-unsaid": ungated & (kernel != UNGATED),
    }


SERVING_LAYOUTS = (
    Layout(columns=frozenset({"system", "dtype", "m", "n", "k", "latency_ms"}), read=serving_gemm),
    Layout(
        columns=frozenset({"system", "isl", "num_heads", "head_dim", "latency_ms"}),
        read=serving_attention,
    ),
    Layout(
        columns=frozenset({"system", "moe_ep_size", "num_experts", "topk", "latency_ms"}),
        read=serving_experts,
    ),
)
