"""The MLP of a configuration: its width, its activation, and the experts that replace it."""

from __future__ import annotations

import itertools

from estimator.catalog.reading import short
from estimator.huggingface.families import Family
from estimator.huggingface.fields import Fields
from estimator.model import Activation, Experts

_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "relu")
_SILU = ("silu", "swish", "swiglu")
_RELU2 = ("relu2", "relu_squared")
_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k")
_WIDTHS = ("moe_intermediate_size", "expert_intermediate_size")


def dense_ffn(fields: Fields, family: Family, hidden: int, routed: Experts | None) -> int:
    """Width of the dense MLP; where all layers have experts and none is given, that of one."""
    names = [name for name in (family.dense_ffn, "n_inner", "ffn_hidden_size") if name]
    width = fields.whole(*names)
    if width is None and routed is not None:
        width = fields.whole("dense_intermediate_size") or routed.ffn
    if width is None and not family.gated:
        _, ratio = fields.given("expansion_ratio")
        width = hidden * (ratio if isinstance(ratio, int) and 0 < ratio < 100 else 4)
    if width is None:
        raise ValueError(f"{family.dense_ffn} is missing; add it")
    return width


def activation(fields: Fields, family: Family) -> Activation:
    """The activation, with the gate that the family has or has not."""
    key, said = fields.given(
        "hidden_activation", "hidden_act", "activation_function", "activation", "mlp_hidden_act"
    )
    name = said if key else family.act
    if name in _GELU or (name in _SILU and not family.gated):
        return "geglu" if family.gated else "gelu"
    if name in _SILU:
        return "swiglu"
    if name in _RELU2 and not family.gated:
        return "relu2"
    raise ValueError(
        f"{key}={short(name)} is no activation of this model_type that is known; try "
        f"{'silu or gelu' if family.gated else 'gelu, relu or relu2'}"
    )


def experts(fields: Fields, family: Family, layers: int) -> Experts | None:
    """The mixture of experts, if any layer has one."""
    if not family.moe:
        return None
    count = fields.whole(*_COUNTS, least=0)
    sparse = _sparse_layers(fields, layers)
    ffn = fields.whole(family.expert_ffn, *_WIDTHS)
    top_k = fields.whole(*_CHOSEN)
    shared = _shared_ffn(fields, family, ffn or 0)
    if count is None and not fields.has(*_COUNTS):
        raise ValueError(f"{' or '.join(_COUNTS)} is missing; add it")
    if not count or not any(sparse):
        return None
    if ffn is None or top_k is None:
        missing = family.expert_ffn if ffn is None else _CHOSEN[0]
        raise ValueError(f"{missing} is missing; add it")
    first_dense, every = _spacing(sparse)
    return Experts(
        count=count,
        top_k=top_k,
        ffn=ffn,
        shared_ffn=shared,
        first_dense=first_dense,
        every=every,
    )


def _shared_ffn(fields: Fields, family: Family, ffn: int) -> int:
    """Width of the expert that every token visits: its own, or so many times a routed one's."""
    number = fields.whole("n_shared_experts", "num_shared_experts", least=0) or 0
    width = fields.whole("shared_expert_intermediate_size", "shared_intermediate_size", least=0)
    if family.shared_ffn:
        width = fields.whole(family.shared_ffn)
    return width or number * ffn


def _sparse_layers(fields: Fields, layers: int) -> list[bool]:
    """For each layer whether it has experts."""
    first = fields.whole("first_k_dense_replace", least=0) or 0
    step = fields.whole("decoder_sparse_step", "interleave_moe_layer_step") or 1
    sparse = [i >= first and (i + 1) % step == 0 for i in range(layers)]
    _, frequency = fields.given("moe_layer_freq")
    if isinstance(frequency, list):
        listed = fields.per_layer("moe_layer_freq", layers) or sparse
        sparse = [bool(each) for each in listed]
    else:
        frequency = fields.whole("moe_layer_freq") or 1
        sparse = [each and i % frequency == 0 for i, each in enumerate(sparse)]
    if kinds := fields.per_layer("mlp_layer_types", layers):
        if unknown := {str(each) for each in kinds} - {"dense", "sparse"}:
            raise ValueError(f"mlp_layer_types has {short(sorted(unknown))}; not understood")
        sparse = [each == "sparse" for each in kinds]
    for name, among in (("moe_layers", True), ("mlp_only_layers", False)):
        _, chosen = fields.given(name)
        if chosen is not None and not isinstance(chosen, list):
            raise ValueError(f"{name}={short(chosen)} must list layers")
        if chosen:
            named = [i in chosen for i in range(layers)]
            sparse = named if among else [a and not b for a, b in zip(sparse, named, strict=True)]
    return sparse


def _spacing(sparse: list[bool]) -> tuple[int, int]:
    """Leading dense layers, and that one layer in how many after them has experts."""
    at = [i for i, each in enumerate(sparse) if each]
    every = at[1] - at[0] if len(at) > 1 else len(sparse) - at[0]
    even = all(b - a == every for a, b in itertools.pairwise(at))
    for leading in (at[0] - every + 1, at[0]):
        if even and leading >= 0 and (len(sparse) - leading) // every == len(at):
            return leading, every
    raise ValueError(
        f"layers {short(at)} have experts, which are not evenly spaced after leading dense ones; "
        "only such are modelled"
    )
