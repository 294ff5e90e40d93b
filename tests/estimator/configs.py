"""Stored configurations with some keys changed, and the one line that a bad one gives."""

import json
from pathlib import Path

import pytest

from estimator.huggingface import model_of

CONFIGS = Path(__file__).parents[1] / "data" / "huggingface"

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 128,
    "max_position_embeddings": 32,
    "vocab_size": 100,
}


def config(name):
    return json.loads((CONFIGS / f"{name}.json").read_text("utf-8"))


def read(name, /, **changes):
    """The model of a stored configuration with some keys changed."""
    return model_of({**config(name), **changes})


def without(name, *keys):
    return {key: value for key, value in config(name).items() if key not in keys}


def fault(given):
    """The one line that a bad configuration gives."""
    with pytest.raises(ValueError) as error:
        model_of(given)
    line = str(error.value)
    assert "\n" not in line
    assert line.isprintable()
    assert len(line) < 600
    return line
