"""Traced models of ``transformers`` against the graphs that NeuSight's authors published.

They traced one layer of each model with fx and wrote the operators of backward by hand
(ASPLOS'25; graphs of sitar-lab/NeuSight). ``TRAINPLAN_NEUSIGHT`` names a folder with their
``model_configs/*.json`` and the parsed graphs ``e2e/opgraph.parquet`` (columns model, mode, batch,
seqlen, option, OpName, FwOps, BwOps).

Products agree exactly. The traffic of all else does not, and is not expected to:

- forward, theirs is more: a scalar operand counts as a whole array (GPT-2 divides its scores by
  one), so do broadcast masks, dropout of probability 0 and a ``contiguous`` that copies nothing
  (OPT's logits); BERT without a mask adds none in transformers 5.
- backward, ours has what theirs leaves out: gradients of biases, sums of gradients where branches
  join and of tied embeddings (theirs are in AccOps), a softmax that reads two arrays. Theirs has
  what autograd does not do: a gradient for the scalar, two passes over the table of an embedding.
"""

from __future__ import annotations

import ast
import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from estimator.lower.module import ModuleTrace, trace_module
from estimator.lower.operators import moved_bytes

FOLDER = Path(os.environ.get("TRAINPLAN_NEUSIGHT", "absent"))
pytestmark = pytest.mark.skipif(
    not (FOLDER / "e2e" / "opgraph.parquet").is_file(),
    reason="TRAINPLAN_NEUSIGHT names no folder with e2e/opgraph.parquet",
)
MODELS = ("bert_large", "gpt2_large", "gpt3_xl", "gpt3_27", "opt_13")
TWO_ARRAYS = ("VECadd", "VECsub", "VECmul", "VECdiv", "VECpow")
FORWARD_RATIO, BACKWARD_RATIO = (0.7, 1.0), (0.65, 1.55)
"""Our bytes over theirs outside products."""
Product = tuple[str, int, int, int, int]


def graphs(name: str) -> Iterator[tuple[str, int, int, Any]]:
    """(mode, batch, sequence, nodes) of one model, without their fused graphs."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pandas.read_parquet(FOLDER / "e2e" / "opgraph.parquet")
    table = table[(table["model"].astype(str) == name) & (table["option"].astype(str) == "")]
    keys = ["mode", "batch", "seqlen"]
    for (mode, batch, sequence), nodes in table.groupby(keys, observed=True):
        yield str(mode), int(batch), int(sequence), nodes


def traced(name: str, mode: str, batch: int, sequence: int) -> ModuleTrace:
    """One layer of the model with eager attention in fp32, as the authors traced it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = json.loads((FOLDER / "model_configs" / f"{name}.json").read_text("utf-8"))
    kind = config.pop("model_type")
    config |= {key: 1 for key in ("n_layer", "num_hidden_layers") if key in config}
    bert = "BertForPreTraining" if mode == "train" else "BertForSequenceClassification"
    made, of = {
        "bert": (transformers.BertConfig, bert),
        "gpt2": (transformers.GPT2Config, "GPT2LMHeadModel"),
        "opt": (transformers.OPTConfig, "OPTForCausalLM"),
    }[kind]
    with torch.device("meta"):
        model = getattr(transformers, of)(made(**config, attn_implementation="eager"))
        inputs = {"input_ids": torch.zeros(batch, sequence, dtype=torch.long)}
    cache = {} if kind == "bert" else {"use_cache": False}
    return trace_module(model, inputs | cache, training=mode == "train")


def our_products(trace: ModuleTrace) -> Counter[Product]:
    found: Counter[Product] = Counter()
    ops = trace.ops
    for row in np.flatnonzero(np.isin(ops.kind, ("linear", "bmm"))):
        small, large = sorted((int(ops.m[row]), int(ops.n[row])))
        phase = "BwOps" if trace.in_backward[row] else "FwOps"
        found[phase, int(ops.batch[row]), small, large, int(ops.k[row])] += int(ops.count[row])
    return found


def their_operators(nodes: Any, mode: str) -> Iterator[tuple[str, str, Any]]:
    for phase in ("FwOps", "BwOps") if mode == "train" else ("FwOps",):
        for text in nodes[phase].astype(str):
            for name, shape in ast.literal_eval(text):
                yield phase, name, shape


def their_products(nodes: Any, mode: str) -> Counter[Product]:
    """Their (M, N, K) is M x N times N x K; which of M and K comes first is a transposition."""
    found: Counter[Product] = Counter()
    for phase, name, shape in their_operators(nodes, mode):
        if name in ("Linear", "BMM"):
            batch, rows, inner, columns = (1, *shape) if name == "Linear" else shape
            found[phase, batch, *sorted((rows, columns)), inner] += 1  # type: ignore[index]
    return found


def their_bytes(nodes: Any, mode: str) -> Counter[str]:
    """fp32 bytes outside products: every array of an operator whole."""
    found: Counter[str] = Counter()
    for phase, name, shape in their_operators(nodes, mode):
        if name == "MEM":
            found[phase] += 4 * sum(math.prod(part) for part in shape)
        elif name not in ("Linear", "BMM"):
            found[phase] += 4 * math.prod(shape) * (3 if name in TWO_ARRAYS else 2)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_products_are_theirs_and_traffic_is_near(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = 0
    for mode, batch, sequence, nodes in graphs(name):
        trace = traced(name, mode, batch, sequence)
        assert trace.unrecognised == {}
        ours = our_products(trace)
        assert ours == their_products(nodes, mode)
        moved = moved_bytes(trace.ops) * trace.ops.count
        moved[np.isin(trace.ops.kind, ("linear", "bmm"))] = 0
        theirs = their_bytes(nodes, mode)
        ratios = [float(moved[~trace.in_backward].sum()) / theirs["FwOps"]]
        assert FORWARD_RATIO[0] <= ratios[0] <= FORWARD_RATIO[1]
        if mode == "train":
            ratios.append(float(moved[trace.in_backward].sum()) / theirs["BwOps"])
            assert BACKWARD_RATIO[0] <= ratios[1] <= BACKWARD_RATIO[1]
        with capsys.disabled():
            shares = " and ".join(f"{ratio:.2f}" for ratio in ratios)
            print(
                f"\n{name} {mode} x{batch}: {ours.total()} products equal, "
                f"other bytes {shares} of theirs",
                end="",
            )
        runs += 1
    assert runs == 4
