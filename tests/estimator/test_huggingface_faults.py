"""What a reader of config.json refuses: each bad file and key gives one line with the remedy."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.catalog import load_model
from estimator.huggingface import model_of
from estimator.model import Transformer
from tests.estimator.configs import CONFIGS, LLAMA, config, fault


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "has an encoder beside its decoder"),
        ({"ssm_state_size": 128}, "has state-space layers (ssm_state_size)"),
        ({"linear_attn_config": {"a": 1}}, "has linear attention (linear_attn_config)"),
        ({"index_topk": 2048}, "has sparse attention (index_topk)"),
        ({"block_configs": [{}]}, "has layers of different shapes (block_configs)"),
        ({"cross_attention_layers": [3]}, "has cross-attention (cross_attention_layers)"),
        ({"num_experts": 8}, "keys 'num_experts' are not understood in model_type llama"),
        ({"n_extra_heads": 2}, "keys 'n_extra_heads' are not understood"),
        ({"model_type": "llama5"}, "unknown model_type 'llama5', nearest: llama"),
        (
            {"model_type": "qwen9_moe", "fold_size": 7},
            "unknown model_type 'qwen9_moe', nearest: qwen3_moe, qwen2_moe, qwen3; keys",
        ),
        ({"model_type": None}, "model_type=None must name an architecture; add it"),
        ({"model_type": 7}, "model_type=7 must name an architecture; add it"),
        ({"model_type": ["llama"]}, "model_type=['llama'] must name an architecture"),
        ({"hidden_size": None}, "hidden_size (or n_embd, d_model) is missing; add it"),
        ({"hidden_size": "64"}, "hidden_size='64' must be a whole number"),
        ({"hidden_size": 64.0}, "hidden_size=64.0 must be a whole number"),
        ({"hidden_size": True}, "hidden_size=True must be a whole number"),
        ({"hidden_size": 0}, "hidden_size=0 must lie from 1 to 10000000"),
        ({"hidden_size": 10**30}, "must lie from 1 to 10000000"),
        ({"num_key_value_heads": 3}, "kv_heads=3 must divide the 8 attention heads"),
        ({"intermediate_size": None}, "intermediate_size is missing; add it"),
        ({"vocab_size": None}, "vocab_size (or padded_vocab_size) is missing; add it"),
        ({"max_position_embeddings": None}, "max_position_embeddings (or "),
        ({"hidden_act": "xielu"}, "hidden_act='xielu' is no activation"),
        ({"hidden_act": "relu2"}, "hidden_act='relu2' is no activation"),
        ({"hidden_act": ["silu"]}, "hidden_act=['silu'] is no activation"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings='no' must be true or false"),
        ({"mlp_bias": True}, "biases in the MLP but not in attention"),
        ({"model_type": "opt", "word_embed_proj_dim": 32}, "word_embed_proj_dim must be the 64"),
    ],
)
def test_refused_configurations(changes, rule):
    line = fault({**LLAMA, **changes})
    assert line.startswith("config: ")
    assert rule.partition(";")[0] in line


def test_unknown_model_type_names_the_keys_not_understood():
    line = fault({**LLAMA, "model_type": "mystery", "fold_size": 7, "num_folds": 3})
    assert "keys not understood: 'fold_size'" in line
    assert "hidden_size" not in line


def test_keys_that_change_no_shape_are_passed_over():
    extra = {
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 7},
        "num_return_sequences": 4,
        "pretraining_tp": 2,
        "id2label": {"0": "a"},
        "mamba_num_heads": 0,
        "cross_attention_hidden_size": None,
        "eos_token_id": [1, 2, 3],
    }
    assert model_of({**LLAMA, **extra}) == model_of(LLAMA)


BAD_FILES = [
    (b"", "is not JSON"),
    (b"model_type: llama\n", "is not JSON"),
    (b"[1, 2]", "holds [1, 2]; a config.json holds one object"),
    (b"null", "holds None"),
    (b"\xff\xfe\x00", "is not JSON"),
    (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON"),
    (b"[" * 200_000, "is nested too deeply"),
    (b" " * 5_000_001, "is larger than 5 MB"),
    (b"{}", "model_type=None must name an architecture"),
    (b'{"model_type": "a\\u001b[31m\\nb"}', "unknown model_type"),
]


@pytest.mark.parametrize(("content", "rule"), BAD_FILES, ids=range(len(BAD_FILES)))
@pytest.mark.parametrize("load", [model_of, load_model])
def test_bad_files(tmp_path, content, rule, load):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    line = fault(path) if load is model_of else None
    with pytest.raises(ValueError) as error:
        load(str(path))
    assert line in (None, str(error.value))
    assert str(error.value).startswith(f"{path}: ")
    assert rule in str(error.value)


def test_paths_that_are_no_files(tmp_path):
    assert "is a directory; name the config.json inside it" in fault(tmp_path)
    assert "no such regular file" in fault(tmp_path / "missing.json")
    assert "no such regular file" in fault("nul\0.json")
    assert "check the path" in fault("/" + "x" * 5000 + ".json")
    os.mkfifo(tmp_path / "pipe.json")
    assert "no such regular file" in fault(tmp_path / "pipe.json")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from([10**7, 10**40, 0.5, float("nan"), "", "silu", "llama", "mixtral", "\n"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(p.stem for p in CONFIGS.glob("*.json"))), st.data())
def test_any_value_gives_a_model_or_one_line(name, data):
    content = config(name)
    for _ in range(data.draw(st.integers(1, 3))):
        inner = content.get("text_config")
        target = inner if isinstance(inner, dict) else content
        target[data.draw(st.sampled_from(sorted(target) or ["model_type"]))] = data.draw(VALUES)
    try:
        model = model_of(content)
    except ValueError as error:
        assert str(error).isprintable()
        assert str(error).startswith("config: ")
    else:
        assert isinstance(model, Transformer)
        assert model.parameters > 0
