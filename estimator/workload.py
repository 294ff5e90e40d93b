"""What the user fixes before any choice is made: batch, sequence, precision, optimizer, budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]
Mode = Literal["train", "forward"]
Attention = Literal["flash", "eager"]
Optimizer = Literal["adam", "adam-bf16", "adam-8bit", "sgd", "sgd-momentum"]
LoraTargets = Literal["attention", "all"]
Fp8Scaling = Literal["tensor", "row"]

CAST_PRECISIONS = ("fp8", "fp4")
"""Precisions that only GEMMs with weights run in, after a cast."""
OPTIMIZER_STATE_BYTES: dict[str, float] = {
    "adam": 8.0,
    "adam-bf16": 4.0,
    "adam-8bit": 2.0 + 2 * 4 / 2048,
    "sgd-momentum": 4.0,
    "sgd": 0.0,
}
"""Bytes of moments per parameter: two of Adam in fp32; in bf16 (DeepSeek-V3, arXiv 2412.19437,
section 3.3.2); or in 8 bits with an fp32 scale per block of 2,048 (arXiv 2110.02861)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training (or forward-only) job. Batches are global, in sequences.

    Raises ``ValueError`` for a batch, sequence or budget below one.
    """

    global_batch: int
    sequence: int
    """Tokens per sequence."""
    document: int | None = None
    """Mean tokens of the documents packed into a sequence, each of which attends to itself alone
    (flash attention of variable length); ``None`` where a sequence is one document."""
    precision: Precision = "bf16"
    """Of the GEMMs. fp8 and fp4 keep bf16 activations in memory and cast before each GEMM."""
    fp8_scaling: Fp8Scaling = "tensor"
    """Of fp8: ``row`` has a scale for each row of a GEMM's left and column of its right operand
    (torchao's recipe ``rowwise``), ``tensor`` one for each tensor, or for blocks of it."""
    mode: Mode = "train"
    attention: Attention = "flash"
    """``eager`` writes the sequence x sequence scores to memory, ``flash`` does not."""
    optimizer: Optimizer = "adam"
    dropout: bool = False
    """Whether dropout runs (masks take time and memory)."""
    lora_rank: int | None = None
    """Rank of adapters; every other weight is frozen."""
    lora_targets: LoraTargets = "attention"
    """Which projections have adapters: attention's, or those of dense MLPs as well."""
    expert_imbalance: float = 1.2
    """Tokens of the busiest expert rank over the mean; 1 where routing is forced to balance."""
    token_budget: float | None = None
    """Tokens of the whole run, for days and cost; ``None`` when not asked."""

    def __post_init__(self) -> None:
        for field in ("global_batch", "sequence"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)} must be at least 1")
        if self.attention == "flash" and self.activation_bytes == 4:
            raise ValueError(
                f"flash attention runs in half precision, not {self.precision}; "
                "use attention eager, or fp16, bf16, fp8 or fp4"
            )
        if self.fp8_scaling != "tensor" and self.precision != "fp8":
            raise ValueError(
                f"fp8_scaling={self.fp8_scaling} needs precision fp8, not {self.precision}; "
                "use fp8, or leave it at tensor"
            )
        if self.document is not None and not 1 <= self.document <= self.sequence:
            raise ValueError(
                f"document={self.document} must lie from 1 to the {self.sequence} tokens of a "
                "sequence"
            )
        if self.document not in (None, self.sequence) and self.attention == "eager":
            raise ValueError(
                f"document={self.document} needs attention flash: eager attention computes the "
                "whole square of scores"
            )
        if self.lora_rank is not None and self.lora_rank < 1:
            raise ValueError(f"lora_rank={self.lora_rank} must be at least 1")
        if self.lora_rank is None and self.lora_targets != "attention":
            raise ValueError(f"lora_targets={self.lora_targets} needs lora_rank, of the adapters")
        if not 1 <= self.expert_imbalance <= 100:
            raise ValueError(f"expert_imbalance={self.expert_imbalance} must lie from 1 to 100")
        if self.token_budget is not None and not 0 < self.token_budget < float("inf"):
            raise ValueError(
                f"token_budget={self.token_budget} must be a positive number of tokens"
            )

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.global_batch * self.sequence

    @property
    def gemm_bytes(self) -> float:
        """Bytes of one element of a GEMM's inputs, without its share of a scale."""
        return {"fp8": 1.0, "fp4": 0.5}.get(self.precision, float(self.activation_bytes))

    @property
    def activation_bytes(self) -> int:
        """Bytes of one stored activation element."""
        return 4 if self.precision in ("fp32", "tf32") else 2
