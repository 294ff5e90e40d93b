"""Traced modules against FLOPs and bytes that are counted by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from estimator import Plan, Plans, Workload
from estimator.catalog import load_cluster, load_model, load_stack
from estimator.lower.keys import layer_keys
from estimator.lower.module import trace_module
from estimator.lower.transformer import lower_layers
from tests.estimator.traced import Runs, leaf, only, product_flops, products, ran

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional


# Products


def test_an_mlp_has_one_product_forward_and_two_backward() -> None:
    mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 96))
    trace = trace_module(mlp, torch.zeros(2, 16, 64), training=True)
    assert products(trace, backward=False) == {(1, 32, 256, 64): 1, (1, 32, 96, 256): 1}
    # The input needs no gradient, so the first layer has only that of its weights.
    backward = {(1, 96, 256, 32): 1, (1, 32, 256, 96): 1, (1, 256, 64, 32): 1}
    assert products(trace, backward=True) == backward
    assert set(trace.ops.phase[trace.ops.kind == "linear"]) == {"forward"}, "one product a row"
    assert trace.parameters == 64 * 256 + 256 + 256 * 96 + 96
    assert trace.unrecognised == {} and trace.assumed == {}
    gelu, derivative = only(trace, "gelu"), only(trace, "gelu_backward")
    assert (gelu["kind"], gelu["m"], gelu["n"]) == ("elementwise", 32, 256)
    assert (gelu["reads"], gelu["writes"], gelu["in_backward"]) == (1, 1, False)
    assert (derivative["reads"], derivative["writes"]) == (2, 1)
    assert (derivative["phase"], derivative["in_backward"]) == ("backward", True)
    biases = trace.ops.name == "sum"
    assert sorted(trace.ops.n[biases]) == [96, 256] and trace.in_backward[biases].all()
    assert trace.ops.writes[biases] == pytest.approx([1 / 32, 1 / 32])


def test_an_input_that_needs_a_gradient_has_one() -> None:
    trace = trace_module(nn.Linear(8, 4), leaf(5, 8), training=True)
    assert products(trace, backward=True) == {(1, 5, 8, 4): 1, (1, 4, 8, 5): 1}


def eager_attention(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.transpose(-1, -2) / 4
    return torch.softmax(scores, -1) @ v


def test_eager_attention_is_two_products_and_four_backward() -> None:
    b, h, s, d = 2, 3, 10, 16
    trace = ran(eager_attention, *(leaf(b, h, s, d) for _ in range(3)), training=True)
    assert products(trace, backward=False) == {(6, s, s, d): 1, (6, s, d, s): 1}
    back = {(6, s, d, s): 2, (6, s, s, d): 1, (6, d, s, s): 1}
    assert products(trace, backward=True) == back
    softmax, derivative = only(trace, "softmax"), only(trace, "softmax_backward_data")
    assert (softmax["kind"], softmax["m"], softmax["n"]) == ("softmax", b * h * s, s)
    assert (softmax["reads"], softmax["writes"], softmax["phase"]) == (1, 1, "forward")
    assert (derivative["reads"], derivative["writes"], derivative["phase"]) == (2, 1, "backward")


@pytest.mark.parametrize(
    ("g", "masked", "kernel"),
    [
        (2, False, "flash_attention"),
        (8, True, "efficient_attention"),
        (2, True, "cudnn_attention"),
    ],
)
def test_fused_attention_is_one_kernel_each_way(g: int, masked: bool, kernel: str) -> None:
    b, h, s, d = 2, 8, 64, 16
    q, k, v = leaf(b, h, s, d), leaf(b, g, s, d), leaf(b, g, s, d)

    def attend(q: Any, k: Any, v: Any) -> Any:
        mask = torch.zeros(b, 1, s, s) if masked else None
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=not masked, enable_gqa=True
        )

    trace = ran(attend, q, k, v, training=True)
    forward, backward = only(trace, kernel), only(trace, f"{kernel}_backward")
    for row in (forward, backward):
        assert (row["kind"], row["batch"], row["m"], row["n"], row["k"]) == (
            "attention",
            b,
            s,
            s,
            d,
        )
        assert (row["heads"], row["kv_heads"], row["causal"]) == (h, g, 0 if masked else 1)
    assert (forward["phase"], backward["phase"]) == ("forward", "backward")
    assert (forward["in_backward"], backward["in_backward"]) == (False, True)
    pairs = s * s if masked else s * (s + 1) / 2
    work = product_flops(trace, backward=False)
    assert work == pytest.approx(4 * b * h * d * pairs)
    assert product_flops(trace, backward=True) == pytest.approx(2.5 * work)


def test_attention_inside_torch_modules_is_fused_too() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    trace = trace_module(layer, torch.zeros(2, 16, 64), training=False)
    assert only(trace, "flash_attention")["heads"] == 4
    assert "bmm" not in trace.ops.kind


def test_attention_that_no_fused_kernel_takes_is_not_fused() -> None:
    attend = functional.scaled_dot_product_attention
    trace = ran(attend, leaf(3, 8, 16), leaf(3, 8, 16), leaf(3, 8, 16))
    assert products(trace, backward=False) == {(3, 8, 8, 16): 1, (3, 8, 16, 8): 1}


@pytest.mark.parametrize(
    ("layer", "shape", "work", "batch"),
    [
        # 2 x output elements x input channels of a group x kernel places
        (nn.Conv2d(6, 8, 3, padding=1), (2, 6, 10, 12), 2 * (2 * 8 * 10 * 12) * 6 * 9, 1),
        (nn.Conv2d(6, 8, 3, stride=2), (2, 6, 11, 11), 2 * (2 * 8 * 5 * 5) * 6 * 9, 1),
        (nn.Conv2d(8, 8, 3, groups=8), (2, 8, 10, 10), 2 * (2 * 8 * 8 * 8) * 1 * 9, 8),
        (nn.Conv1d(4, 6, 5), (3, 4, 20), 2 * (3 * 6 * 16) * 4 * 5, 1),
        # A transposed convolution: 2 x input elements x output channels x kernel places
        (nn.ConvTranspose2d(8, 4, 2, stride=2), (2, 8, 5, 5), 2 * (2 * 8 * 5 * 5) * 4 * 4, 1),
    ],
)
def test_a_convolution_is_its_implicit_gemm(
    layer: Any, shape: tuple[int, ...], work: float, batch: int
) -> None:
    trace = trace_module(layer, leaf(*shape), training=True)
    assert product_flops(trace, backward=False) == work
    assert product_flops(trace, backward=True) == 2 * work, "of the input and of the weights"
    assert only(trace, "convolution")["batch"] == batch
    bias = only(trace, "sum")
    assert bias["in_backward"] and bias["m"] * bias["n"] * bias["writes"] == layer.bias.numel()


@pytest.mark.parametrize(
    ("a", "b", "size"),
    [
        ((64, 32), (4, 32, 16), (4, 16, 16, 32)),  # 64 tokens for 4 experts: forward
        ((16, 64), (64, 32), (4, 16, 32, 16)),  # the gradient of their weights
    ],
)
def test_experts_share_their_tokens_equally(
    a: tuple[int, ...], b: tuple[int, ...], size: tuple[int, ...]
) -> None:
    def run(a: Any, b: Any, ends: Any) -> Any:
        return torch._grouped_mm(a, b, offs=ends)

    tensors = (torch.zeros(a).bfloat16(), torch.zeros(b).bfloat16())
    trace = ran(run, *tensors, torch.zeros(4, dtype=torch.int32))
    assert products(trace, backward=False) == {size: 1}
    assert product_flops(trace, backward=False) == 2 * 64 * 32 * 16


def test_torch_counts_the_same_flops() -> None:
    """``FlopCounterMode``: torch's formulas, over its own run of both passes."""
    from torch.utils.flop_counter import FlopCounterMode

    class Net(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 32, 4, stride=4)
            self.block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
            self.grow = nn.ConvTranspose2d(32, 8, 2, stride=2)
            self.rest = nn.LSTM(32, 16, batch_first=True)

        def forward(self, image: Any) -> Any:
            grid = self.stem(image)
            words = self.block(grid.flatten(2).transpose(1, 2))
            return self.grow(grid), self.rest(words)[0]

    with torch.device("meta"):
        net = Net()
    trace = trace_module(net, leaf(2, 3, 32, 32), training=True)
    with FlopCounterMode(display=False) as counter:
        outputs = net(leaf(2, 3, 32, 32))
        forward = counter.get_total_flops()
        torch.autograd.backward(outputs, [torch.empty_like(output) for output in outputs])
    backward = counter.get_total_flops() - forward
    assert product_flops(trace, backward=False) == forward
    # Fused attention makes its scores again: five products where the unfused have four.
    attention = only(trace, "flash_attention")
    product = 2 * attention["m"] * attention["n"] * attention["k"] * attention["heads"] * 2
    assert product_flops(trace, backward=True) == backward + product


def test_a_product_needs_a_dtype_with_a_rate() -> None:
    double = nn.Linear(4, 4).double()
    with pytest.raises(ValueError, match="addmm in float64: matrix products are priced in float32"):
        trace_module(double, torch.zeros(2, 4, dtype=torch.float64), training=False)
    half = trace_module(nn.Linear(4, 4).bfloat16(), leaf(2, 4, dtype=torch.bfloat16), training=True)
    assert set(half.ops.dtype) == {"bf16"}


# Memory


def test_a_layer_norm_moves_its_rows_weights_and_statistics() -> None:
    trace = trace_module(nn.LayerNorm(32), leaf(4, 8, 32), training=True)
    forward = only(trace, "native_layer_norm")
    size = 32 * 32
    assert (forward["kind"], forward["m"], forward["n"]) == ("layer_norm", 32, 32)
    assert forward["reads"] == (size + 32 + 32) / size
    assert forward["writes"] == (size + 32 + 32) / size
    backward = only(trace, "native_layer_norm_backward")
    assert backward["phase"] == "backward"
    assert backward["reads"] == pytest.approx((2 * size + 2 * 32 + 2 * 32) / size)


def test_rms_norm_is_one_kernel_each_way() -> None:
    trace = trace_module(nn.RMSNorm(32), leaf(8, 32), training=True)
    assert trace.ops.kind.tolist() == ["rms_norm", "rms_norm"]
    assert trace.ops.phase.tolist() == ["forward", "backward"]
    assert trace.ops.reads.tolist() == [1 + 1 / 8, 2 + 1 / 8]


def test_dropout_writes_a_mask_of_bytes_and_runs_in_training_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))
    trace = trace_module(model, torch.zeros(4, 8), training=True)
    assert only(trace, "native_dropout")["writes"] == 1.25
    assert only(trace, "native_dropout_backward")["reads"] == 1.25
    assert trace_module(model, torch.zeros(4, 8), training=False).ops.name.tolist() == ["addmm"]
    trace = trace_module(model.eval(), torch.zeros(4, 8), training=True)
    assert "native_dropout" not in trace.ops.name, "the module's own modes count"


def test_embedding_and_cross_entropy() -> None:
    model = Runs(
        lambda self, ids: functional.cross_entropy(self.table(ids), ids),
        table=nn.Embedding(100, 16),
    )
    trace = trace_module(model, torch.zeros(12, dtype=torch.long), training=True)
    forward, backward = only(trace, "embedding"), only(trace, "embedding_dense_backward")
    for row, phase in ((forward, "forward"), (backward, "backward")):
        assert (row["kind"], row["m"], row["n"], row["k"]) == ("embedding", 12, 16, 100)
        assert row["phase"] == phase
    assert only(trace, "log_softmax")["kind"] == "cross_entropy"
    picked = only(trace, "nll_loss_forward")
    # 12 logits of 4 bytes and 12 targets of 8; a loss and a weight of 4 bytes each
    assert picked["reads"] * 12 * 16 * 4 == pytest.approx(12 * 4 + 12 * 8)
    assert picked["writes"] * 12 * 16 * 4 == pytest.approx(8)
    assert only(trace, "log_softmax_backward_data")["reads"] == 2


@pytest.mark.parametrize(
    ("run", "shapes", "name", "reads", "writes"),
    [
        (lambda x, y: x + y, [(8, 16), (8, 16)], "add", 2, 1),
        (lambda x: x * x, [(8, 16)], "mul", 1, 1),
        (lambda x, bias: x + bias, [(8, 16), (16,)], "add", 1 + 1 / 8, 1),
        (lambda x, y: x + y.expand(8, 16), [(8, 16), (1, 16)], "add", 1 + 1 / 8, 1),
        (lambda x: torch.relu_(x), [(8, 16)], "relu", 1, 1),
        (lambda x: x.transpose(0, 1).contiguous(), [(8, 16)], "clone", 1, 1),
        (lambda x: x.mean(-1), [(8, 16)], "mean", 1, 1 / 16),
        (lambda x: x > 0, [(8, 16)], "gt", 1, 0.25),
        (lambda x: x.bfloat16(), [(8, 16)], "to_copy", 2, 1),
        (lambda x: torch.zeros_like(x), [(8, 16)], "zeros_like", 0, 1),
        (lambda x: torch.cat([x, x], -1), [(8, 16)], "cat", 0.5, 1),
        (lambda x, y: x.copy_(y), [(8, 16), (8, 16)], "copy", 1, 1),
        (lambda x: x.unfold(0, 4, 1) * 2, [(8,)], "mul", 8 / 20, 1),
        (lambda x: x[torch.zeros(2, dtype=torch.long)], [(8, 16)], "index", 1.125, 1),
    ],
)
def test_memory_is_counted_by_distinct_tensors(
    run: Callable[..., Any],
    shapes: list[tuple[int, ...]],
    name: str,
    reads: float,
    writes: float,
) -> None:
    row = only(ran(run, *(torch.zeros(shape) for shape in shapes)), name)
    assert (row["reads"], row["writes"]) == (reads, writes)


def test_views_are_free() -> None:
    def run(x: Any) -> Any:
        first, second = x.view(4, 2, 16).transpose(0, 1).unsqueeze(0).chunk(2, dim=-1)
        return first.expand(3, 2, 4, 8).detach() * 2, second

    trace = ran(run, torch.zeros(8, 16))
    assert trace.ops.name.tolist() == ["mul"]


def test_what_is_not_recognised_is_a_copy_and_said_so() -> None:
    trace = ran(lambda x: torch.linalg.qr(x), torch.zeros(8, 8))
    assert trace.unrecognised == {"linalg_qr": 1}
    row = only(trace, "linalg_qr")
    assert (row["kind"], row["reads"], row["writes"]) == ("copy", 1, 2)


def test_gradients_that_are_there_are_added_to() -> None:
    model = nn.Linear(8, 4)
    first = trace_module(model, torch.zeros(2, 8), training=True)
    assert "add" not in first.ops.name
    later = trace_module(model, torch.zeros(2, 8), training=True, accumulate=True)
    added = later.ops.name == "add"
    assert sorted((later.ops.m * later.ops.n)[added]) == [4, 32]
    assert later.in_backward[added].all()


def test_a_tied_weight_counts_once_and_its_gradients_are_added() -> None:
    model = Runs(
        lambda self, ids: self.head(self.table(ids)),
        table=nn.Embedding(100, 16),
        head=nn.Linear(16, 100, bias=False),
    )
    model.head.weight = model.table.weight
    trace = trace_module(model, torch.zeros(12, dtype=torch.long), training=True)
    assert trace.parameters == 1600
    assert only(trace, "add")["in_backward"]


def test_recomputed_forward_runs_in_backward() -> None:
    from torch.utils.checkpoint import checkpoint

    def run(self: Any, x: Any) -> Any:
        return checkpoint(self.layer, x, use_reentrant=False)

    layer = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    trace = trace_module(Runs(run, layer=layer), leaf(4, 8), training=True)
    forward = product_flops(trace, backward=False)
    # The second product saves nothing but its operands, so it is not made again.
    assert product_flops(trace, backward=True) == (2 + 1 / 2) * forward


# What the module is left as, and what it cannot be asked


def test_the_module_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for training in (False, True):
        trace_module(model, torch.zeros(2, 3, 8, 8), training=training)
    assert [part.training for part in model.modules()] == [True, True, True, False]
    assert all(value.grad is None for value in model.parameters())
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert functional.dropout.__module__ == "torch.nn.functional", "nothing stays replaced"


def test_checks_of_values_are_taken_to_pass_and_counted() -> None:
    def run(x: Any) -> Any:
        if (x == 1).all():
            x = x + 1
        if (x == 1).sum() == x.numel():  # as transformers asks it
            x = x / 2
        return x * 2 if torch.isnan(x).any() else x - 2

    trace = ran(run, torch.zeros(4))
    assert trace.assumed == {"all": 2, "any": 1}
    assert {"add", "div", "sub"} <= set(trace.ops.name) and "mul" not in trace.ops.name


@pytest.mark.parametrize(
    ("run", "inputs", "training", "message"),
    [
        (lambda x: x if x.sum().item() else -x, torch.zeros(4), False, "RuntimeError on meta"),
        (lambda x: x @ x, torch.zeros(3, 4), False, "forward of the module raised RuntimeError"),
        (lambda x: x + 1, torch.zeros(4), True, "no output of the module needs a gradient"),
        (lambda x: x + 1, torch.zeros(0, 4), False, r"an input has shape \(0, 4\)"),
        (lambda x: x + 1, "words", False, "example inputs are a str; give a tensor"),
        (lambda x: x, torch.zeros(4), False, "runs no operator"),
    ],
)
def test_what_cannot_be_traced_is_one_line(
    run: Callable[..., Any], inputs: Any, training: bool, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        trace_module(Runs(lambda self, x: run(x)), inputs, training=training)
    assert "\n" not in str(raised.value)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match=r"pip install 'trainplan\[learn\]'"):
        trace_module(nn.Linear(2, 2), torch.zeros(2, 2), training=False)


# The project's own lowering


class Block(nn.Module):  # type: ignore[misc,name-defined]
    """A layer of GPT-2: eager attention, as its lowering counts it without flash."""

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Any) -> Any:
        b, s, hidden = x.shape
        parts = self.qkv(self.norms[0](x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(eager_attention(*parts).transpose(1, 2).reshape(b, s, hidden))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


def test_a_traced_block_has_the_products_of_the_lowering() -> None:
    model, b, s = load_model("gpt2"), 4, 512
    block = Block(model.hidden, model.heads, model.ffn)
    trace = trace_module(block, leaf(b, s, model.hidden), training=True)
    workload = Workload(global_batch=b, sequence=s, precision="fp32", attention="eager")
    stack = load_stack("megatron")
    keys, _ = layer_keys(Plans.of([replace(Plan(), micro_batch=b)]), stack)
    ops = lower_layers(model, workload, load_cluster("a100-sxm-80gb:1"), keys, stack)
    lowered = {"forward": 0.0, "backward": 0.0}
    for i, slot in enumerate(ops.slots):
        if slot.place == "layer" and slot.kind == "gemm":
            each = "forward" if slot.phase == "forward" else "backward"
            lowered[each] += float(ops.flops[i, 0] * ops.count[i, 0])
    assert product_flops(trace, backward=False) == pytest.approx(lowered["forward"], 1e-12)
    assert product_flops(trace, backward=True) == pytest.approx(lowered["backward"], 1e-12)
