"""What is trained: the shapes of a Transformer and the parameters that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["gelu", "relu2", "swiglu"]
Positions = Literal["learned", "rotary"]
Norm = Literal["layernorm", "rmsnorm"]
Bias = Literal["none", "qkv", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A dense decoder: sizes in elements, counts in units. No parallel degree, no price.

    Raises ``ValueError`` where the sizes contradict each other.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    """Width of the MLP between its two projections (of one of the two halves when gated)."""
    heads: int
    kv_heads: int
    """Key/value heads: ``heads`` is multi-head attention, fewer is grouped-query attention."""
    head_dim: int
    vocab: int
    max_positions: int
    """Longest sequence the positions allow; with learned positions also rows of a table."""
    activation: Activation
    positions: Positions
    norm: Norm
    bias: Bias
    tied: bool
    """Whether the output projection shares the embedding's weights."""
    parallel_residual: bool = False
    """Attention and MLP both read the layer's input and are added together (GPT-NeoX, Falcon)."""
    shared_norm: bool = False
    """With a parallel residual: both read one norm's output (GPT-J, Falcon-7B)."""

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab"):
            if getattr(self, field) < 1:
                raise ValueError(
                    f"{field}={getattr(self, field)} of {self.name} must be at least 1"
                )
        if self.max_positions < 1:
            raise ValueError(
                f"max_positions={self.max_positions} of {self.name} must be at least 1"
            )
        if self.shared_norm and not self.parallel_residual:
            raise ValueError(f"shared_norm of {self.name} needs parallel_residual")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads={self.kv_heads} must divide the {self.heads} attention heads of "
                f"{self.name}"
            )

    @property
    def gated(self) -> bool:
        """Whether the MLP multiplies two projections of its input (three matrices, not two)."""
        return self.activation == "swiglu"

    @property
    def attention_width(self) -> int:
        """Elements of all query heads together (``heads * head_dim``)."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of all key heads together (values have as many)."""
        return self.kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Output width of the fused query, key and value projection."""
        return self.attention_width + 2 * self.kv_width

    @property
    def up_width(self) -> int:
        """Output width of the MLP's first projection (both halves when gated)."""
        return self.ffn * (2 if self.gated else 1)

    @property
    def layer_matrix_parameters(self) -> int:
        """Weights of the four GEMMs of a layer: what tensor parallelism divides."""
        return (
            self.hidden * self.qkv_width
            + self.attention_width * self.hidden
            + self.hidden * self.up_width
            + self.ffn * self.hidden
        )

    @property
    def layer_sharded_bias_parameters(self) -> int:
        """Biases of the column-parallel GEMMs (QKV and MLP up), divided like their weights."""
        return (self.qkv_width if self.bias != "none" else 0) + (
            self.up_width if self.bias == "all" else 0
        )

    @property
    def layer_replicated_parameters(self) -> int:
        """Norms and the biases of row-parallel GEMMs: a copy on every tensor-parallel rank."""
        return self.norms_per_layer * self.norm_parameters + (
            2 * self.hidden if self.bias == "all" else 0
        )

    @property
    def norms_per_layer(self) -> int:
        """Norms of a layer."""
        return 1 if self.shared_norm else 2

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm."""
        return self.hidden * (2 if self.norm == "layernorm" else 1)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        return (
            self.layer_matrix_parameters
            + self.layer_sharded_bias_parameters
            + self.layer_replicated_parameters
        )

    def adapter_parameters(self, rank: int) -> int:
        """Parameters of a layer's low-rank adapters on its QKV and output projections."""
        return rank * (self.hidden + self.qkv_width + self.attention_width + self.hidden)

    @property
    def position_parameters(self) -> int:
        """Rows of the learned position table times their width; none when rotary."""
        return self.max_positions * self.hidden if self.positions == "learned" else 0

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, as published counts give them (tied weights once)."""
        return (
            self.layers * self.layer_parameters
            + self.embedding_parameters * (1 if self.tied else 2)
            + self.position_parameters
            + self.norm_parameters
        )
