"""What a ``model_type`` fixes without writing it into its ``config.json``.

Each row restates the class behind a ``model_type``: its blocks and the defaults of its keys.
Source: the configuration and modelling files of transformers 5.24 (Apache-2.0), and the modelling
code beside the weights for ``chatglm``, ``kimi_k2`` and ``mimo``, which transformers does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from estimator.model import Bias, Norm, Positions

Windows = Literal["refused", "all", "late"] | int
"""Which layers have the window where no ``layer_types`` says: refused (the family does not say
either), all, those from ``max_window_layers`` on, or all but each n-th."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The habits that models of one ``model_type`` share. The defaults are LLaMA's."""

    act: str = "silu"
    gated: bool = True
    """Three matrices in the MLP rather than two."""
    norm: Norm = "rmsnorm"
    norms_per_layer: int = 2
    positions: Positions = "rotary"
    """ALiBi holds no table either."""
    bias: Bias = "none"
    tied: bool = False
    parallel_residual: bool = False
    qk_norm: bool = False
    causal: bool = True
    windows: Windows = "refused"
    windows_on: bool = True
    """What ``use_sliding_window`` is where it is missing."""
    moe: bool = False
    dense_ffn: str = "intermediate_size"
    expert_ffn: str = "moe_intermediate_size"
    shared_ffn: str = ""
    """The key whose width one more, shared, expert has in every layer with experts."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Of keys that a file of this family may leave out."""


_LLAMA = Family()
_MOE = Family(moe=True)
_FEW_WIDE = Family(moe=True, expert_ffn="intermediate_size")
_GPT = Family(act="gelu", gated=False, norm="layernorm", positions="learned", bias="all", tied=True)
_BERT = replace(_GPT, causal=False)
_PARALLEL = replace(_GPT, positions="rotary", tied=False, parallel_residual=True)
_QWEN2 = Family(
    bias="qkv",
    windows="late",
    windows_on=False,
    defaults={"num_key_value_heads": 32, "max_window_layers": 28},
)
_QWEN3 = replace(_QWEN2, bias="none", qk_norm=True, defaults={**_QWEN2.defaults, "head_dim": 128})
_QWEN3_MOE = replace(_QWEN3, moe=True, windows="all", defaults={"num_key_value_heads": 4})
_GEMMA = Family(act="gelu", tied=True, defaults={"head_dim": 256, "num_key_value_heads": 16})
_GEMMA2 = replace(
    _GEMMA,
    norms_per_layer=4,
    windows=2,
    defaults={"head_dim": 256, "num_key_value_heads": 4, "sliding_window": 4096},
)
_GEMMA3 = replace(
    _GEMMA2,
    qk_norm=True,
    windows=6,
    defaults={
        **_GEMMA2.defaults,
        "num_attention_heads": 8,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
)
_COHERE = Family(norm="layernorm", norms_per_layer=1, tied=True, parallel_residual=True)
_GLM = Family(bias="qkv", defaults={"num_key_value_heads": 2, "head_dim": 128})
_OLMO2 = Family(qk_norm=True)

FAMILIES: dict[str, Family] = {
    # The GPT line: learned positions, two matrices, biases everywhere.
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "opt": replace(_GPT, act="relu", dense_ffn="ffn_dim"),
    "bert": _BERT,
    "roberta": _BERT,
    "bloom": replace(_GPT, positions="alibi", defaults={"max_position_embeddings": 2048}),
    "mpt": replace(_GPT, positions="alibi", bias="none"),
    "gpt_neox": _PARALLEL,
    "gptj": replace(_PARALLEL, norms_per_layer=1),
    "phi": replace(_PARALLEL, norms_per_layer=1),
    "falcon": replace(
        _PARALLEL,
        bias="none",
        tied=True,
        norms_per_layer=1,
        defaults={"max_position_embeddings": 2048},
    ),
    "starcoder2": replace(
        _GPT, positions="rotary", windows="all", defaults={"num_key_value_heads": 2}
    ),
    "nemotron": Family(act="relu2", gated=False, norm="layernorm"),
    # The LLaMA line: rotary, three matrices, no biases.
    "llama": _LLAMA,
    "granite": _LLAMA,
    "mistral": Family(windows="all", defaults={"num_key_value_heads": 8, "sliding_window": 4096}),
    "phi3": Family(windows="all"),
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl_text": replace(_QWEN3, windows="refused"),
    "mimo": replace(_QWEN2, bias="none"),
    "stablelm": Family(norm="layernorm", defaults={"num_key_value_heads": 32}),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, windows=4, defaults={"sliding_window": 4096}),
    "glm": _GLM,
    "glm4": replace(_GLM, norms_per_layer=4),
    "chatglm": Family(dense_ffn="ffn_hidden_size"),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, windows=4, defaults={"sliding_window": 4096}),
    # Mixtures of experts.
    "mixtral": replace(_FEW_WIDE, windows="all", defaults={"num_key_value_heads": 8}),
    "gpt_oss": replace(
        _FEW_WIDE,
        bias="all",
        windows=2,
        defaults={"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128},
    ),
    "minimax_m2": replace(
        _FEW_WIDE, qk_norm=True, defaults={"num_key_value_heads": 8, "head_dim": 128}
    ),
    "olmoe": replace(_FEW_WIDE, qk_norm=True),
    "granitemoe": _FEW_WIDE,
    "dbrx": Family(
        norm="layernorm",
        moe=True,
        dense_ffn="",
        expert_ffn="ffn_hidden_size",
        defaults={"kv_n_heads": 1},
    ),
    "llama4_text": Family(
        moe=True,
        windows=4,
        dense_ffn="intermediate_size_mlp",
        expert_ffn="intermediate_size",
        shared_ffn="intermediate_size",
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "interleave_moe_layer_step": 1,
            "attention_chunk_size": 8192,
        },
    ),
    "qwen2_moe": replace(_QWEN2, moe=True, windows="refused", defaults={"num_key_value_heads": 16}),
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_moe_text": replace(
        _QWEN3_MOE, windows="refused", defaults={"num_key_value_heads": 16, "head_dim": 128}
    ),
    "glm4_moe": replace(_MOE, defaults={"num_key_value_heads": 8, "first_k_dense_replace": 1}),
    "deepseek_v2": replace(_MOE, defaults={"first_k_dense_replace": 0}),
    "deepseek_v3": replace(_MOE, defaults={"first_k_dense_replace": 3}),
    "kimi_k2": replace(_MOE, defaults={"first_k_dense_replace": 3}),
}
"""By ``model_type``; of a model of several parts, by that of its language model."""
