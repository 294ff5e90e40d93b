"""``config.json`` to :class:`Transformer`, offline: no download, no code from the model."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from estimator.catalog.reading import fault, short
from estimator.huggingface.families import FAMILIES, Family
from estimator.huggingface.fields import Fields, content_of
from estimator.huggingface.mlp import activation, dense_ffn, experts
from estimator.model import Bias, LatentAttention, Transformer

_WINDOWED = {"full_attention": False, "sliding_attention": True, "chunked_attention": True}


def model_of(config: str | os.PathLike[str] | Mapping[str, Any]) -> Transformer:
    """The language model of a ``config.json``, given as a path or as the object it holds.

    Of a model of several parts (vision, audio) it is the language model alone. A window in chunks
    (Llama 4) is read as a sliding one of that size. Left out, since a ``Transformer`` has no place
    for them: BERT's pooler and token types (0.3 % of its parameters) and, below 0.01 %, sinks of
    attention, biases of routers and of the output, the gate of Qwen2's shared expert, the norm of
    BLOOM's embedding, OPT's two further positions. Likewise norms without biases (Cohere, DBRX,
    MPT) count some, and norms over all heads at once (OLMo 2, MiniMax) are taken per head.

    Raises:
        ValueError: one line with the rule, the value and the remedy, for a file that is no
            configuration, a key that is missing or wrong, a ``model_type`` that is not known, and
            keys that would change shapes but are not understood.
    """
    if isinstance(config, Mapping):
        path, content = Path("config"), config
    else:
        path = Path(config)
        content = content_of(path)
    fields = Fields(content)
    try:
        fields.unmodelled()
        kind = _known_type(fields)
        fields.defaults = FAMILIES[kind].defaults
        model = _model(fields, kind, _name(content, path, kind), FAMILIES[kind])
        if left := fields.unread():
            raise ValueError(
                f"keys {short(', '.join(left))} are not understood in model_type {kind} and may "
                "change shapes; remove them if they do not"
            )
    except ValueError as error:
        raise fault(path, str(error)) from None
    return model


def _known_type(fields: Fields) -> str:
    _, inner = fields.given("model_type")
    kind = inner or fields.outer.get("model_type")
    if not isinstance(kind, str):
        raise ValueError(f"model_type={short(kind)} must name an architecture; add it")
    if kind in FAMILIES:
        return kind
    for moe in (True, False):  # mark what a reader of any decoder would understand
        with suppress(ValueError):
            _model(fields, "llama", kind, Family(moe=moe))
    left = fields.unread()
    keys = f", keys not understood: {short(', '.join(left))}" if left else ""
    near = difflib.get_close_matches(kind, FAMILIES, 3, 0.5) or ["llama"]
    raise ValueError(
        f"unknown model_type {short(kind)}, nearest: {', '.join(near)}{keys}; write its sizes as "
        "a .yaml model"
    )


def _name(content: Mapping[str, Any], path: Path, kind: str) -> str:
    """The name that the file gives, else the folder's or the file's own."""
    said = content.get("_name_or_path")
    if isinstance(said, str) and said.strip("/. "):
        name = said.rstrip("/").rpartition("/")[2]
    elif path.name == "config.json":
        name = path.absolute().parent.name or kind
    else:
        name = path.stem if path.suffix else kind
    return re.sub(r"[^\x21-\x7e]+", "-", name)[:80]


def _model(fields: Fields, kind: str, name: str, family: Family) -> Transformer:
    layers = fields.need("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    hidden = fields.need("hidden_size", "n_embd", "d_model")
    heads = fields.need("num_attention_heads", "n_head", "n_heads")
    latent = _latent(fields)
    kv_heads, head_dim = _heads(fields, kind, hidden, heads)
    if latent is not None:
        kv_heads, head_dim = heads, latent.nope_dim + latent.rope_dim
    if (fields.whole("word_embed_proj_dim") or hidden) != hidden:
        raise ValueError(f"word_embed_proj_dim must be the {hidden} of hidden_size")
    routed = experts(fields, family, layers)
    parallel = fields.flag(
        "use_parallel_residual", "parallel_attn", default=family.parallel_residual
    )
    window, windowed = _window(fields, family, layers)
    return Transformer(
        name=name,
        layers=layers,
        hidden=hidden,
        ffn=dense_ffn(fields, family, hidden, routed),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=fields.need("vocab_size", "padded_vocab_size"),
        max_positions=fields.need(
            "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"
        ),
        activation=activation(fields, family),
        positions=family.positions,
        norm=family.norm,
        bias=_bias(fields, family),
        tied=_tied(fields, family),
        parallel_residual=parallel,
        norms_per_layer=_norms(fields, kind, family, parallel),
        qk_norm=_qk_norm(fields, kind, family),
        causal=family.causal,
        window=window,
        windowed_layers=windowed,
        experts=routed,
        latent=latent,
        mtp_layers=_mtp(fields),
    )


# Attention.


def _heads(fields: Fields, kind: str, hidden: int, heads: int) -> tuple[int, int]:
    """Key/value heads and the size of a head."""
    head_dim = fields.whole("head_dim", "attention_head_dim", "kv_channels")
    if head_dim is None:
        if hidden % heads:
            raise ValueError(
                f"num_attention_heads={heads} must divide hidden_size={hidden} where no head_dim "
                "is given"
            )
        head_dim = hidden // heads
    if kind == "falcon":  # num_kv_heads counts only in the new architecture
        multi_query = fields.flag("multi_query", default=True)
        if fields.flag("new_decoder_architecture", default=False):
            return fields.whole("num_kv_heads", "n_head_kv", default=heads) or heads, head_dim
        return (1 if multi_query else heads), head_dim
    if kind == "gpt_bigcode":
        return (1 if fields.flag("multi_query", default=True) else heads), head_dim
    groups = fields.whole("multi_query_group_num")
    if kind == "chatglm":
        grouped = fields.flag("multi_query_attention", default=False)
        return (groups or 1 if grouped else heads), head_dim
    kv_heads = fields.whole("num_key_value_heads", "num_kv_heads", "kv_n_heads", default=heads)
    if kind == "mpt" and fields.given("attn_type")[1] == "multiquery_attention":
        kv_heads = 1
    return kv_heads or heads, head_dim


def _latent(fields: Fields) -> LatentAttention | None:
    kv_rank = fields.whole("kv_lora_rank")
    if kv_rank is None:
        return None
    return LatentAttention(
        kv_rank=kv_rank,
        nope_dim=fields.need("qk_nope_head_dim"),
        rope_dim=fields.need("qk_rope_head_dim"),
        v_dim=fields.need("v_head_dim"),
        q_rank=fields.whole("q_lora_rank", default=0, least=0) or 0,
    )


def _window(fields: Fields, family: Family, layers: int) -> tuple[int | None, int]:
    """The window and how many layers have it; ``(None, 0)`` where all see everything."""
    key = "attention_chunk_size" if "attention_chunk_size" in family.defaults else "sliding_window"
    window = fields.whole(key, least=0) or None
    used = fields.flag("use_sliding_window", default=family.windows_on)
    pattern = family.windows
    for name in ("sliding_window_pattern", "_sliding_window_pattern", "no_rope_layer_interval"):
        if isinstance(pattern, int):
            pattern = fields.whole(name) or pattern
    kinds = _attention_kinds(fields, layers)
    if window is None or not used:
        if kinds is not None and any(kinds) and used:
            raise ValueError(f"layer_types has windows, but {key} is missing; add it")
        return None, 0
    if kinds is not None:
        count = sum(kinds)
    elif isinstance(pattern, int):
        count = layers - layers // pattern
    elif pattern == "late":
        count = max(layers - (fields.whole("max_window_layers", least=0) or 0), 0)
    elif pattern == "all":
        count = layers
    else:
        raise ValueError(
            f"{key}={window} does not say which layers have it; add layer_types, or remove it"
        )
    return (window, count) if count else (None, 0)


def _attention_kinds(fields: Fields, layers: int) -> list[bool] | None:
    """For each layer whether it has a window, where the file lists them."""
    rotary = fields.per_layer("no_rope_layers", layers)  # Llama 4: a layer with rope is chunked
    full = fields.per_layer("attn_type_list", layers)  # MiniMax: 1 sees everything
    if full and any(each != 1 for each in full):
        raise ValueError("attn_type_list has linear attention, which is not modelled")
    if kinds := fields.per_layer("layer_types", layers):
        for each in kinds:
            if not isinstance(each, str) or each not in _WINDOWED:
                raise ValueError(
                    f"layer_types has {short(each)} layers, which are not modelled; known: "
                    f"{', '.join(_WINDOWED)}"
                )
        return [_WINDOWED[each] for each in kinds]
    return [bool(each) for each in rotary] if rotary else None


def _qk_norm(fields: Fields, kind: str, family: Family) -> bool:
    said = fields.flag("use_qk_norm", "qk_layernorm", default=family.qk_norm)
    return said and kind != "llama4_text"  # whose norm has no weights


# The rest.


def _bias(fields: Fields, family: Family) -> Bias:
    """One of three choices; a bias of the output projection alone is left out."""
    key, _ = fields.given("use_bias", "bias", "enable_bias", "add_bias_linear", "no_bias")
    if key and key != "add_bias_linear":
        said = fields.flag(key, default=False)
        return "all" if said != (key == "no_bias") else "none"
    attention = fields.flag(
        "attention_bias",
        "qkv_bias",
        "add_qkv_bias",
        "use_qkv_bias",
        default=family.bias != "none",
    )
    mlp = fields.flag("mlp_bias", "add_bias_linear", default=family.bias == "all")
    if mlp and not attention:
        raise ValueError("biases in the MLP but not in attention are not modelled")
    return "all" if mlp else "qkv" if attention else "none"


def _tied(fields: Fields, family: Family) -> bool:
    outer = fields.outer.get("tie_word_embeddings")
    default = outer if isinstance(outer, bool) else family.tied
    return fields.flag("tie_word_embeddings", default=default)


def _norms(fields: Fields, kind: str, family: Family, parallel: bool) -> int:
    """Norms per layer: blocks side by side may share one."""
    if not parallel:
        return max(family.norms_per_layer, 2)
    if kind == "falcon":
        new = fields.flag("new_decoder_architecture", default=False)
        return fields.whole("num_ln_in_parallel_attn") or (2 if new else 1)
    return 1 if kind == "stablelm" else family.norms_per_layer


def _mtp(fields: Fields) -> int:
    """Further layers of multi-token prediction."""
    each = fields.whole("mtp_transformer_layers") or 1
    modules = fields.whole("num_mtp_modules", least=0) or 0
    further = fields.whole("num_nextn_predict_layers", least=0) or modules * each
    return further if fields.flag("use_mtp", default=True) else 0
