"""GPT-NeoX on DeepSpeed as operators: what one micro-batch runs on a rank, layer by layer.

GPT-NeoX's ``ParallelTransformerLayer`` with unfused softmax mask and RoPE, one bias add and one
residual add for each of attention and MLP where they have a bias; every layer recomputed in the
backward pass (arXiv 2509.22832, whose operator list leaves out the bias adds, the copy behind
attention and the accumulation of gradients).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from estimator.operators import Operators, concatenate, operators

VOCABULARY = 50257
MICRO_BATCH = 4
HALF = 2.0
"""Bytes of fp16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run; ``layers`` by stage."""

    name: str
    pp: int
    tp: int
    dp: int
    hidden: int
    heads: int
    sequence: int
    layers: tuple[int, ...]
    micro_batches: int
    bucket: float
    """Elements that one gradient all-reduce takes at most."""
    llama: bool
    """RMS norms one after the other, an unfused bias, activations cut over tp while they are kept;
    else GPT-20B: layer norms, attention and MLP side by side, the bias fused with GELU."""
    flash: bool

    @property
    def tokens(self) -> float:
        """Of one micro-batch."""
        return MICRO_BATCH * self.sequence

    @property
    def vocabulary(self) -> float:
        """Padded to 128 rows a rank; of one rank."""
        return 128.0 * math.ceil(VOCABULARY / (128 * self.tp))

    @property
    def reductions(self) -> int:
        """All-reduces over tp in a layer's forward pass; each pass has them."""
        return 2 if self.llama else 1

    def parameters(self, stage: int) -> float:
        """Of one rank of a stage."""
        matrices = 12 * self.hidden**2 * self.layers[stage] / self.tp
        ends = stage in (0, self.pp - 1)
        return matrices + (self.vocabulary * self.hidden if ends else 0.0)


RUNS = (
    *(
        Run(
            name=f"GPT-20B {pp}-{tp}-{dp}",
            pp=pp,
            tp=tp,
            dp=dp,
            hidden=6144,
            heads=64,
            sequence=2048,
            layers=layers,
            micro_batches=16,
            bucket=1.26e9,
            llama=False,
            flash=False,
        )
        for pp, tp, dp, layers in (
            (4, 4, 8, (11, 12, 12, 9)),
            (4, 8, 4, (11, 12, 12, 9)),
            (8, 4, 4, (5, 6, 6, 6, 6, 6, 6, 3)),
        )
    ),
    Run(
        name="LLaMA-13B 4-8-2",
        pp=4,
        tp=8,
        dp=2,
        hidden=5120,
        heads=40,
        sequence=2048,
        layers=(10, 11, 11, 8),
        micro_batches=16,
        bucket=5e8,
        llama=True,
        flash=False,
    ),
    Run(
        name="Llemma-7B 4-2-2",
        pp=4,
        tp=2,
        dp=2,
        hidden=4096,
        heads=32,
        sequence=4096,
        layers=(8, 9, 9, 6),
        micro_batches=8,
        bucket=1.26e9,
        llama=True,
        flash=True,
    ),
)


Rows = Callable[..., Operators]


def _of(phase: str) -> Rows:
    def row(kind: str, name: str = "", **shape: float) -> Operators:
        return operators(kind, name=name, phase=phase, dtype="fp16", **shape)

    return row


def layer(run: Run, phase: str) -> Operators:
    """Operators of one layer in a pass, without recompute and reductions."""
    row, back = _of(phase), phase == "backward"
    norm, norms = ("rms_norm", "RMSlayernorm") if run.llama else ("layer_norm", "layernorm")
    wide, tokens, hidden = 4 * run.hidden / run.tp, run.tokens, run.hidden
    reads = 2.0 if back else 1.0
    parts = [
        row(norm, norms, m=tokens, n=hidden, reads=reads, count=2),
        row("linear", "linear1", m=tokens, n=3 * hidden / run.tp, k=hidden),
        row(
            "rope",
            "RoPE",
            m=tokens * run.heads / run.tp,
            n=hidden / run.heads,
            reads=2,
            writes=2,
        ),
        *attention(run, phase),
        # The copy behind attention has no samples: another pass that reads and writes once.
        _of("forward")("elementwise", "gelu", m=tokens, n=hidden / run.tp),
        row("linear", "linear2", m=tokens, n=hidden, k=hidden / run.tp),
        row("linear", "linear3", m=tokens, n=wide, k=hidden),
        row("elementwise", "gelu", m=tokens, n=wide, reads=reads),
        row("linear", "linear4", m=tokens, n=hidden, k=wide),
    ]
    return concatenate([*parts, *additions(run, phase)])


def attention(run: Run, phase: str) -> list[Operators]:
    """Flash attention, or two batched products with a masked softmax between."""
    row, local = _of(phase), run.heads / run.tp
    length, head = run.sequence, run.hidden / run.heads
    if run.flash:
        shape = {"m": length, "n": length, "k": head, "heads": local, "kv_heads": local}
        return [row("attention", "flash2", batch=MICRO_BATCH, causal=1, **shape)]
    batch = MICRO_BATCH * local
    reads = 2.0 if phase == "backward" else 1.0
    return [
        row("bmm", "baddbmm", batch=batch, m=length, n=length, k=head),
        row("softmax", "ScaledUpperTriangMaskedSoftmax", m=batch * length, n=length, reads=reads),
        row("bmm", "bmm", batch=batch, m=length, n=head, k=length),
    ]


def additions(run: Run, phase: str) -> list[Operators]:
    """Adds of biases and residuals; backward, of two gradients where a tensor is used twice, and
    of a micro-batch's weight gradients to those of the micro-batches before it.

    All have the efficiency of the sampled residual add, for there are no samples of the others.
    """
    row = _of("forward")
    size = {"m": run.tokens, "n": float(run.hidden), "reads": 2.0}
    if phase == "forward":
        # GPT-20B: two biases, two residuals. The others have no bias behind attention.
        adds = [row("elementwise", "res_add", **size, count=3 if run.llama else 4)]
        if run.llama:
            wide = 4 * run.hidden / run.tp
            adds.append(row("elementwise", "res_add", m=run.tokens, n=wide, reads=1))
        return adds
    again = (run.micro_batches - 1) / run.micro_batches
    weights = 12 * run.hidden / run.tp
    return [
        row("elementwise", "res_add", **size, count=2),
        row("elementwise", "res_add", m=weights, n=run.hidden, reads=2, count=again),
    ]


def ends(run: Run, stage: int, phase: str) -> Operators | None:
    """What the first and the last stage run besides layers; ``None`` for the others."""
    row = _of(phase)
    reads = 2.0 if phase == "backward" else 1.0
    if stage == 0:
        return row("embedding", "embedding", m=run.tokens, n=run.hidden, k=run.vocabulary)
    if stage != run.pp - 1:
        return None
    norm, norms = ("rms_norm", "RMSlayernorm") if run.llama else ("layer_norm", "layernorm")
    return concatenate(
        [
            row(norm, norms, m=run.tokens, n=run.hidden, reads=reads),
            row("linear", "linear_final", m=run.tokens, n=run.vocabulary, k=run.hidden),
            row("cross_entropy", "parallel_cross_entropy_128", m=run.tokens, n=run.vocabulary),
        ]
    )
