"""Reading config.json: published counts, and every trap of its keys."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from estimator.catalog import load_model, names, published_parameters
from estimator.huggingface import model_of
from estimator.model import Experts, LatentAttention
from tests.estimator.configs import CONFIGS, LLAMA, config, fault, read, without

ROOT = Path(__file__).parents[2]


# Whole configurations.


@pytest.mark.parametrize("name", sorted(p.stem for p in CONFIGS.glob("*.json")))
def test_a_file_and_the_object_it_holds_are_the_same_model(name):
    path = CONFIGS / f"{name}.json"
    model = model_of(path)
    assert model == load_model(str(path)) == load_model(path)
    assert replace(model, name="") == replace(model_of(config(name)), name="")
    assert model.name == name


SHARED = sorted({p.stem for p in CONFIGS.glob("*.json")} & set(names("models")))


@pytest.mark.parametrize("name", SHARED)
def test_the_catalogue_says_the_same(name):
    assert model_of(CONFIGS / f"{name}.json") == load_model(name)


def test_the_catalogue_is_compared_widely():
    assert len(SHARED) >= 19


@pytest.mark.parametrize(
    ("name", "published", "beyond"),
    [
        # Counts of the classes of transformers 5.24; beyond: what a Transformer leaves out.
        ("starcoderbase-1b", 1_137_207_296, 0),
        ("qwen2-57b-a14b", 57_408_658_944, 28 * 3584),  # the shared expert's gate
        ("gemma-3-4b", 3_880_263_168, 0),
        ("llama-4-scout", 107_769_861_120, 0),
        ("llama-4-maverick", 400_711_848_960, 0),
        ("deepseek-v2-lite", 15_706_484_224, 0),
        ("glm-4.5-air", 106_852_245_504, 0),
        ("glm-4-9b", 9_399_951_360, 0),
        ("dbrx", 131_596_523_520, -(2 * 40 + 1) * 6144),  # norms without biases
        ("mpt-7b", 6_649_286_656, -(2 * 32 + 1) * 4096),
        ("starcoder2-3b", 3_030_371_328, 0),
        ("phi-2", 2_779_683_840, 51_200),  # a bias of the output projection
        ("command-r", 34_980_831_232, -(40 + 1) * 8192),
        ("minimax-m2", 228_689_748_992, 62 * (47 * 128 + 7 * 128)),  # one norm over all heads
    ],
)
def test_published_counts(name, published, beyond):
    # minimax: its published count leaves out the routers' correction bias too.
    assert model_of(CONFIGS / f"{name}.json").parameters + beyond == published


def test_file_gives_no_published_count():
    assert published_parameters(CONFIGS / "gpt2.json") is None


# Traps.


@pytest.mark.parametrize(
    ("changes", "kv_heads", "norms"),
    [
        ({}, 1, 1),
        ({"multi_query": False}, 71, 1),
        ({"parallel_attn": False}, 1, 2),
        ({"new_decoder_architecture": True, "num_kv_heads": 71}, 71, 2),
        ({"new_decoder_architecture": True, "num_kv_heads": 1}, 1, 2),
        ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, 71, 1),
    ],
)
def test_falcon_heads_and_norms(changes, kv_heads, norms):
    model = read("falcon-7b", **changes)
    assert (model.kv_heads, model.norms_per_layer) == (kv_heads, norms)


@pytest.mark.parametrize(
    ("name", "changes", "ffn"),
    [
        ("gpt2", {}, 4 * 768),
        ("gpt2", {"n_inner": 1000}, 1000),
        ("bloom-176b", {}, 4 * 14336),
        ("opt-1.3b", {}, 8192),
        ("falcon-7b", {"ffn_hidden_size": 5000}, 5000),
        ("mpt-7b", {"expansion_ratio": 3}, 3 * 4096),
        ("glm-4-9b", {}, 13696),
    ],
)
def test_width_of_the_mlp(name, changes, ffn):
    assert read(name, **changes).ffn == ffn


@pytest.mark.parametrize(
    ("name", "head_dim", "from_width"),
    [("qwen3-8b", 128, 128), ("gemma-2-9b", 256, 224), ("gpt-oss-20b", 64, 45), ("gpt2", 64, 64)],
)
def test_size_of_a_head_is_its_own(name, head_dim, from_width):
    model = read(name)
    assert (model.head_dim, model.hidden // model.heads) == (head_dim, from_width)


def test_missing_head_size_is_the_class_default():
    assert model_of(without("gemma-2-9b", "head_dim")).head_dim == 256
    assert model_of(without("qwen3-8b", "head_dim")).head_dim == 128
    assert model_of({**LLAMA}).head_dim == 8
    assert "must divide hidden_size" in fault({**LLAMA, "num_attention_heads": 7})


@pytest.mark.parametrize(
    ("name", "kv_heads"),
    [
        ("llama-3.2-1b", 32),
        ("mistral-7b", 8),
        ("mixtral-8x7b", 8),
        ("gpt-oss-20b", 8),
        ("qwen3-30b-a3b", 4),
        ("starcoder2-3b", 2),
        ("gemma-2-9b", 4),
    ],
)
def test_missing_key_heads_are_the_class_default(name, kv_heads):
    assert model_of(without(name, "num_key_value_heads")).kv_heads == kv_heads


def test_key_heads_of_null_are_all_heads():
    assert read("mistral-7b", num_key_value_heads=None).kv_heads == 32


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        *((name, True) for name in ("gpt2", "opt-1.3b", "bloom-176b", "falcon-7b", "bert-large")),
        *((name, True) for name in ("gemma-2-9b", "starcoder2-3b", "command-r", "mpt-7b")),
        *((name, False) for name in ("llama-2-7b", "gpt-neox-20b", "mistral-7b", "qwen2.5-7b")),
        *((name, False) for name in ("mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "phi-2")),
    ],
)
def test_missing_tie_is_the_class_default(name, tied):
    given = without(name, "tie_word_embeddings")
    assert model_of(given).tied is tied
    assert model_of({**given, "tie_word_embeddings": not tied}).tied is not tied


def test_tie_of_a_model_of_several_parts():
    inner = {**LLAMA, "tie_word_embeddings": False}
    assert model_of({"text_config": LLAMA, "tie_word_embeddings": True}).tied
    assert not model_of({"text_config": inner, "tie_word_embeddings": True}).tied


@pytest.mark.parametrize("part", ["text_config", "llm_config", "language_config"])
def test_language_model_of_several_parts(part):
    given = {"model_type": "some_vision_model", part: LLAMA, "vision_config": {"hidden_size": 9}}
    assert replace(model_of(given), name="") == replace(model_of(LLAMA), name="")
    inner = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert model_of({"model_type": "llama", part: inner}).hidden == 64


# Experts.


@pytest.mark.parametrize(
    ("name", "experts", "ffn"),
    [
        ("mixtral-8x7b", Experts(count=8, top_k=2, ffn=14336), 14336),
        ("gpt-oss-20b", Experts(count=32, top_k=4, ffn=2880), 2880),
        ("qwen3-30b-a3b", Experts(count=128, top_k=8, ffn=768), 6144),
        ("qwen2-57b-a14b", Experts(count=64, top_k=8, ffn=2560, shared_ffn=20480), 18944),
        ("llama-4-scout", Experts(count=16, top_k=1, ffn=8192, shared_ffn=8192), 16384),
        (
            "llama-4-maverick",
            Experts(count=128, top_k=1, ffn=8192, shared_ffn=8192, every=2),
            16384,
        ),
        (
            "deepseek-v2-lite",
            Experts(count=64, top_k=6, ffn=1408, shared_ffn=2816, first_dense=1),
            10944,
        ),
        ("dbrx", Experts(count=16, top_k=4, ffn=10752), 10752),
    ],
)
def test_experts(name, experts, ffn):
    model = read(name)
    assert (model.experts, model.ffn) == (experts, ffn)


def test_both_spellings_of_the_number_of_experts():
    old = config("qwen3-30b-a3b")
    new = without("qwen3-30b-a3b", "num_experts")
    assert model_of({**new, "num_local_experts": 128}) == model_of(old)
    assert "num_local_experts or num_experts" in fault(new)
    assert read("deepseek-v3", n_routed_experts=None).experts is None


@pytest.mark.parametrize(
    ("name", "changes", "first_dense", "every", "moe_layers"),
    [
        ("qwen3-30b-a3b", {"decoder_sparse_step": 2}, 0, 2, 24),
        ("qwen3-30b-a3b", {"decoder_sparse_step": 5}, 0, 5, 9),
        ("qwen3-30b-a3b", {"mlp_only_layers": [0, 1, 2]}, 3, 1, 45),
        ("qwen3-30b-a3b", {"mlp_only_layers": [1], "decoder_sparse_step": 2}, 2, 2, 23),
        ("deepseek-v3", {"first_k_dense_replace": 0}, 0, 1, 61),
        ("deepseek-v3", {"moe_layer_freq": [0] * 5 + [1] * 56}, 5, 1, 56),
        ("deepseek-v3", {"moe_layer_freq": 2, "first_k_dense_replace": 1}, 1, 2, 30),
        ("glm-4.5-air", {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 44}, 2, 1, 44),
    ],
)
def test_which_layers_have_experts(name, changes, first_dense, every, moe_layers):
    model = read(name, **changes)
    assert (model.experts.first_dense, model.experts.every) == (first_dense, every)
    assert model.moe_layers == moe_layers


def test_dense_where_no_layer_has_experts():
    assert read("qwen3-30b-a3b", mlp_only_layers=list(range(48))).experts is None


def test_listed_layers_with_experts():
    text = config("llama-4-scout")["text_config"]
    model = model_of({**text, "moe_layers": list(range(3, 48, 4))})
    assert (model.experts.first_dense, model.experts.every, model.moe_layers) == (0, 4, 12)


def test_missing_leading_dense_layers_are_the_class_default():
    assert model_of(without("deepseek-v3", "first_k_dense_replace")).experts.first_dense == 3
    assert model_of(without("deepseek-v2-lite", "first_k_dense_replace")).experts.first_dense == 0


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"mlp_only_layers": [5]}, "not evenly spaced"),
        ({"mlp_only_layers": 5}, "mlp_only_layers=5 must list layers"),
        ({"moe_layer_freq": [1, 0]}, "must list each of the 48 layers"),
        ({"mlp_layer_types": ["wide"] * 48}, "mlp_layer_types has ['wide']"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step=0 must lie from 1"),
        ({"num_experts_per_tok": None}, "num_experts_per_tok is missing"),
        ({"num_experts_per_tok": 129}, "top_k=129 must be at most the 128 experts"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size is missing"),
    ],
)
def test_experts_that_cannot_be_read(changes, rule):
    assert rule in fault({**config("qwen3-30b-a3b"), **changes})


# Attention.


def test_latent_attention():
    latent = LatentAttention(kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128, q_rank=1536)
    model = read("deepseek-v3")
    assert model.latent == latent
    assert (model.head_dim, model.kv_heads) == (192, 128)
    assert read("deepseek-v2-lite").latent == replace(latent, q_rank=0)
    assert "qk_rope_head_dim is missing" in fault(without("deepseek-v3", "qk_rope_head_dim"))


@pytest.mark.parametrize(
    ("name", "changes", "window", "windowed"),
    [
        ("mistral-7b", {}, 4096, 32),
        ("mistral-7b", {"sliding_window": None}, None, 0),
        ("mixtral-8x7b", {}, None, 0),
        ("mixtral-8x7b", {"sliding_window": 4096}, 4096, 32),
        ("qwen2.5-7b", {}, None, 0),
        ("qwen2.5-7b", {"use_sliding_window": True}, None, 0),
        ("qwen2.5-7b", {"use_sliding_window": True, "max_window_layers": 21}, 131072, 7),
        ("qwen2-57b-a14b", {}, None, 0),
        ("mimo-7b", {}, None, 0),
        ("gemma-2-9b", {}, 4096, 21),
        ("gemma-3-27b", {}, 1024, 52),
        ("gemma-3-4b", {}, 1024, 29),
        ("gpt-oss-20b", {}, 128, 12),
        ("gpt-oss-20b", {"layer_types": None}, 128, 12),
        ("gpt-oss-20b", {"layer_types": ["full_attention"] * 24}, None, 0),
        ("llama-4-scout", {}, 8192, 36),
        ("minimax-m2", {}, None, 0),
    ],
)
def test_windows(name, changes, window, windowed):
    model = read(name, **changes)
    assert (model.window, model.windowed_layers) == (window, windowed)


def test_window_without_its_key_is_the_class_default():
    assert model_of(without("mistral-7b", "sliding_window")).window == 4096
    assert model_of(without("gpt-oss-20b", "sliding_window")).window == 128
    assert model_of(without("qwen2.5-7b", "use_sliding_window")).window is None
    assert read("gemma-2-9b", sliding_window_pattern=6).windowed_layers == 42 - 7
    text = config("llama-4-scout")["text_config"]
    assert model_of({**text, "attention_chunk_size": None}).window is None
    layers = [0, 1] * 24
    assert model_of({**text, "no_rope_layers": layers}).windowed_layers == 24


@pytest.mark.parametrize(
    ("name", "changes", "rule"),
    [
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "must list each of the 24 layers"),
        ("gpt-oss-20b", {"layer_types": ["ring"] * 24}, "layer_types has 'ring' layers"),
        ("qwen3-8b", {"layer_types": ["linear_attention"] * 36}, "'linear_attention' layers"),
        ("gpt-oss-20b", {"sliding_window": None}, "sliding_window is missing; add it"),
        ("llama-2-7b", {"sliding_window": 4096}, "sliding_window=4096 does not say which layers"),
        ("minimax-m2", {"attn_type_list": [0] * 62}, "attn_type_list has linear attention"),
    ],
)
def test_windows_that_cannot_be_read(name, changes, rule):
    assert rule in fault({**config(name), **changes})


# Biases, norms, activations.


@pytest.mark.parametrize(
    ("name", "changes", "bias"),
    [
        ("llama-2-7b", {}, "none"),
        ("llama-2-7b", {"attention_bias": True}, "qkv"),
        ("llama-2-7b", {"attention_bias": True, "mlp_bias": True}, "all"),
        ("qwen2.5-7b", {}, "qkv"),
        ("qwen2-57b-a14b", {"qkv_bias": False}, "none"),
        ("qwen3-8b", {}, "none"),
        ("glm-4.5-air", {}, "qkv"),
        ("glm-4-9b", {}, "qkv"),
        ("mimo-7b", {}, "qkv"),
        ("gpt-oss-20b", {}, "all"),
        ("gpt-neox-20b", {}, "all"),
        ("starcoder2-3b", {}, "all"),
        ("starcoder2-3b", {"use_bias": False}, "none"),
        ("falcon-7b", {}, "none"),
        ("falcon-7b", {"bias": True}, "all"),
        ("mpt-7b", {}, "none"),
        ("mpt-7b", {"no_bias": False}, "all"),
        ("opt-1.3b", {}, "all"),
        ("opt-1.3b", {"enable_bias": False}, "none"),
    ],
)
def test_biases(name, changes, bias):
    assert read(name, **changes).bias == bias


@pytest.mark.parametrize(
    ("name", "parallel", "norms", "norm"),
    [
        ("gpt-neox-20b", True, 2, "layernorm"),
        ("falcon-7b", True, 1, "layernorm"),
        ("falcon-40b", True, 2, "layernorm"),
        ("phi-2", True, 1, "layernorm"),
        ("command-r", True, 1, "layernorm"),
        ("gpt2", False, 2, "layernorm"),
        ("gemma-2-9b", False, 4, "rmsnorm"),
        ("gemma-3-27b", False, 4, "rmsnorm"),
        ("llama-2-7b", False, 2, "rmsnorm"),
    ],
)
def test_blocks_side_by_side_and_norms(name, parallel, norms, norm):
    model = read(name)
    assert (model.parallel_residual, model.norms_per_layer, model.norm) == (parallel, norms, norm)
    if name == "gpt-neox-20b":
        assert not read(name, use_parallel_residual=False).parallel_residual


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("gpt2", "gelu"),
        ("opt-1.3b", "gelu"),
        ("llama-2-7b", "swiglu"),
        ("dbrx", "swiglu"),
        ("gemma-2-9b", "geglu"),
        ("gemma-3-4b", "geglu"),
        ("nemotron-4-15b", "relu2"),
    ],
)
def test_activations(name, activation):
    assert read(name).activation == activation


def test_other_habits():
    assert not read("bert-large").causal
    assert read("bert-large").positions == "learned"
    assert read("qwen3-8b").qk_norm
    assert not read("qwen2.5-7b").qk_norm
    assert read("glm-4.5-air", use_qk_norm=True).qk_norm
    assert read("glm-4-9b").kv_heads == 2
    assert read("starcoderbase-1b").kv_heads == 1
    assert read("starcoderbase-1b", multi_query=False).kv_heads == 16


@pytest.mark.parametrize(
    ("name", "changes", "layers"),
    [
        ("deepseek-v3", {}, 1),
        ("kimi-k2", {}, 0),
        ("mimo-7b", {}, 1),
        ("minimax-m2", {}, 3),
        ("minimax-m2", {"use_mtp": False}, 0),
        ("llama-2-7b", {}, 0),
    ],
)
def test_multi_token_prediction(name, changes, layers):
    assert read(name, **changes).mtp_layers == layers


def test_name_of_a_model(tmp_path):
    folder = tmp_path / "my model"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert model_of(path).name == "my-model"
    assert model_of({**LLAMA, "_name_or_path": "meta-llama/Llama-9"}).name == "Llama-9"
    assert model_of({**LLAMA, "_name_or_path": ""}).name == "llama"


def test_a_model_of_a_file_needs_nothing_else():
    code = (
        "import sys, json\n"
        "from estimator.catalog import load_model\n"
        f"load_model({str(CONFIGS / 'gpt2.json')!r})\n"
        "heavy = {'transformers', 'torch', 'pydantic', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
