"""The catalogue's models: parameters, and those one token visits, against what is published."""

import pytest

from estimator.catalog import (
    load_model,
    names,
    published_active_parameters,
    published_parameters,
)

BEYOND = {
    "opt-1.3b": 2 * 2048,  # two further rows of its position table
    "opt-13b": 2 * 5120,
    "bloom-176b": 2 * 14336,  # the norm of its embedding
    "bert-large": (1024 * 1024 + 1024) + 2 * 1024,  # the pooler, the token types
    "deepseek-v3": 58 * 256,  # the router's correction bias
    "kimi-k2": 60 * 384,
    "gpt-oss-20b": 24 * (64 + 32),  # the sinks of its heads, the router's bias
    "gpt-oss-120b": 36 * (64 + 128),
}
"""Parameters that a published count has and a ``Transformer`` leaves out."""

WITHOUT_EMBEDDING = {"grok-1"}
"""Whose printed size leaves out the embedding."""

WITHOUT_INPUT_EMBEDDING = {
    "deepseek-v2",
    "deepseek-v3",
    "kimi-k2",
    "gpt-oss-20b",
    "gpt-oss-120b",
}
"""Whose printed active parameters do: a token reads one row of it."""

MEGATRON = ("1.7b", "3.6b", "7.5b", "18b", "39b", "76b", "145b", "310b", "530b", "1t")
FAMILIES = (
    *("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-175b", "mt-nlg-530b", "gpt-neox-20b"),
    *(f"megatron-{size}" for size in MEGATRON),
    *("opt-1.3b", "opt-13b", "opt-66b", "opt-175b", "bloom-176b"),
    *("falcon-7b", "falcon-40b", "falcon-180b", "bert-large", "grok-1"),
    *("llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b", "llama-3-70b"),
    *("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3.2-1b", "llama-3.2-3b"),
    *("mistral-7b", "mixtral-8x7b", "mixtral-8x22b", "nemotron-4-15b", "nemotron-4-340b"),
    *("qwen2.5-7b", "qwen2.5-32b", "qwen2.5-72b", "qwen3-8b", "qwen3-32b"),
    *("qwen3-30b-a3b", "qwen3-235b-a22b", "gemma-2-9b", "gemma-2-27b", "gemma-3-27b"),
    *("deepseek-v2", "deepseek-v3", "gpt-oss-20b", "gpt-oss-120b", "kimi-k2"),
)


def printed_unit(published):
    """What one of the last printed digit is worth; sizes are printed to billions or finer."""
    digits = str(published)
    return 10 ** min(len(digits) - len(digits.rstrip("0")), 9)


def test_every_family_is_there():
    assert set(FAMILIES) <= set(names("models"))
    assert set(BEYOND) | WITHOUT_EMBEDDING | WITHOUT_INPUT_EMBEDDING <= set(FAMILIES)


@pytest.mark.parametrize("name", names("models"))
def test_parameters_are_the_published_ones(name):
    model, published = load_model(name), published_parameters(name)
    counted = model.parameters + BEYOND.get(name, 0)
    if name in WITHOUT_EMBEDDING:
        counted -= model.embedding_parameters
    unit = printed_unit(published)
    if unit < 10_000_000:
        assert counted == published
    else:
        assert name not in BEYOND
        assert abs(counted - published) <= max(published / 200, unit / 2)


@pytest.mark.parametrize("name", [n for n in names("models") if load_model(n).experts])
def test_active_parameters_are_the_published_ones(name):
    model, published = load_model(name), published_active_parameters(name)
    if published is None:
        assert name == "grok-1"  # of which only a share of the weights is published, a quarter
        routed = model.moe_layers * model.experts.count * model.expert_parameters
        assert model.active_parameters == model.parameters - routed * 3 // 4
        return
    active = model.active_parameters
    if name in WITHOUT_INPUT_EMBEDDING:
        active -= model.embedding_parameters
    unit = printed_unit(published)
    if name == "qwen3-30b-a3b":  # printed as 3.3, cut rather than rounded
        assert active // unit * unit == published
    else:
        assert abs(active - published) <= max(published / 200, unit / 2)


@pytest.mark.parametrize(
    ("name", "per_layer", "layers", "rest"),
    [
        (
            "mixtral-8x7b",
            2 * 4096 * 4096 + 2 * 4096 * 1024 + 8 * 4096 + 2 * 3 * 4096 * 14336 + 2 * 4096,
            32,
            2 * 32000 * 4096 + 4096,
        ),
        (
            "qwen3-30b-a3b",
            2048 * (32 + 4 + 4) * 128
            + 32 * 128 * 2048
            + 2 * 128
            + 128 * 2048
            + 8 * 3 * 2048 * 768
            + 2 * 2048,
            48,
            2 * 151936 * 2048 + 2048,
        ),
        (
            "deepseek-v3",
            7168 * 1536
            + 1536 * 128 * 192
            + 7168 * (512 + 64)
            + 512 * 128 * 256
            + 128 * 128 * 7168
            + (1536 + 512 + 2 * 7168),
            61,
            58 * (256 * 7168 + (8 + 1) * 3 * 7168 * 2048)
            + 3 * 3 * 7168 * 18432
            + 2 * 129280 * 7168
            + 7168,
        ),
    ],
)
def test_active_parameters_by_hand(name, per_layer, layers, rest):
    assert load_model(name).active_parameters == layers * per_layer + rest


def test_dense_models_visit_all_their_parameters():
    for name in names("models"):
        model = load_model(name)
        if model.experts is None:
            assert model.active_parameters == model.parameters
            assert published_active_parameters(name) is None


def test_layer_of_multi_token_prediction():
    """DeepSeek-V3's README_WEIGHTS.md prints 11.5 billion, without its embedding and output."""
    model = load_model("deepseek-v3")
    experts = 256 * 7168 + (256 + 1) * 3 * 7168 * 2048
    attention = 7168 * (1536 + 576) + 1536 * 24576 + 512 * 32768 + 16384 * 7168 + 1536 + 512
    projection = 2 * 7168 * 7168
    assert model.mtp_layers == 1
    assert model.mtp_parameters == experts + attention + projection + 5 * 7168
    assert model.mtp_parameters == pytest.approx(11.5e9, rel=0.01)


def test_windows():
    models = [load_model(name) for name in names("models")]
    windowed = {m.name: (m.window, m.windowed_layers, m.layers) for m in models if m.window}
    assert windowed == {
        "mistral-7b": (4096, 32, 32),
        "gemma-2-9b": (4096, 21, 42),
        "gemma-2-27b": (4096, 23, 46),
        "gemma-3-27b": (1024, 52, 62),
        "gpt-oss-20b": (128, 12, 24),
        "gpt-oss-120b": (128, 18, 36),
    }


@pytest.mark.parametrize(
    ("name", "moe_layers", "shared"),
    [
        ("mixtral-8x7b", 32, 0),
        ("deepseek-v2", 59, 2 * 1536),
        ("deepseek-v3", 58, 2048),
        ("kimi-k2", 60, 2048),
        ("grok-1", 64, 0),
    ],
)
def test_layers_with_experts(name, moe_layers, shared):
    model = load_model(name)
    assert (model.moe_layers, model.experts.shared_ffn) == (moe_layers, shared)


def test_only_the_encoder_sees_both_ways():
    assert [n for n in names("models") if not load_model(n).causal] == ["bert-large"]
