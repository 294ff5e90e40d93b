"""What is trained: the shapes of a Transformer and the parameters that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["gelu", "geglu", "relu2", "swiglu"]
Positions = Literal["learned", "rotary", "alibi"]
Norm = Literal["layernorm", "rmsnorm"]
Bias = Literal["none", "qkv", "all"]
LayerKind = Literal["dense", "moe"]

GATED: tuple[Activation, ...] = ("swiglu", "geglu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture of experts that replaces the MLP in some layers."""

    count: int
    top_k: int
    """Experts that each token visits."""
    ffn: int
    """Width of one expert, as ``Transformer.ffn`` is of the dense MLP."""
    shared_ffn: int = 0
    """Width of the expert that every token visits (all shared experts together)."""
    first_dense: int = 0
    """Leading layers that keep the dense MLP."""
    every: int = 1
    """After these, one layer in ``every`` has experts."""

    def __post_init__(self) -> None:
        for field in ("count", "top_k", "ffn", "every"):
            if getattr(self, field) < 1:
                raise ValueError(f"experts.{field}={getattr(self, field)} must be at least 1")
        for field in ("shared_ffn", "first_dense"):
            if getattr(self, field) < 0:
                raise ValueError(f"experts.{field}={getattr(self, field)} must not be negative")
        if self.top_k > self.count:
            raise ValueError(f"experts.top_k={self.top_k} must be at most the {self.count} experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

    kv_rank: int
    """Width of the latent that keys and values are made from."""
    nope_dim: int
    """Of a query or key head, the part without positions."""
    rope_dim: int
    """The rotary part; one key of it serves all heads."""
    v_dim: int
    """Size of a value head."""
    q_rank: int = 0
    """Width of the queries' latent; 0 projects queries directly."""

    def __post_init__(self) -> None:
        for field in ("kv_rank", "nope_dim", "rope_dim", "v_dim"):
            if getattr(self, field) < 1:
                raise ValueError(f"latent.{field}={getattr(self, field)} must be at least 1")
        if self.q_rank < 0:
            raise ValueError(f"latent.q_rank={self.q_rank} must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A stack of Transformer layers: sizes in elements, counts in units. No degree, no price.

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
    norms_per_layer: int = 2
    """1 where a parallel residual shares one (GPT-J, Falcon-7B), 4 with norms after each block."""
    qk_norm: bool = False
    """Queries and keys are normalised per head."""
    causal: bool = True
    """False for encoders, whose attention sees the whole sequence."""
    window: int | None = None
    """Positions that windowed layers attend to."""
    windowed_layers: int = 0
    """Layers with that window, spread evenly; the others see everything."""
    experts: Experts | None = None
    latent: LatentAttention | None = None
    mtp_layers: int = 0
    """Multi-token prediction: further layers after the last, each with its own loss."""

    def __post_init__(self) -> None:
        sizes = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab")
        for field in (*sizes, "max_positions"):
            if getattr(self, field) < 1:
                raise ValueError(
                    f"{field}={getattr(self, field)} of {self.name} must be at least 1"
                )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads={self.kv_heads} must divide the {self.heads} attention heads of "
                f"{self.name}"
            )
        if self.norms_per_layer not in (1, 2, 4):
            raise ValueError(
                f"norms_per_layer={self.norms_per_layer} of {self.name} must be 1, 2 or 4"
            )
        if self.norms_per_layer == 1 and not self.parallel_residual:
            raise ValueError(f"norms_per_layer=1 of {self.name} needs parallel_residual")
        if not 0 <= self.windowed_layers <= self.layers:
            raise ValueError(
                f"windowed_layers={self.windowed_layers} of {self.name} must lie from 0 to its "
                f"{self.layers} layers"
            )
        if self.windowed_layers and (self.window is None or self.window < 1):
            raise ValueError(f"windowed_layers of {self.name} need a window of at least 1")
        if self.mtp_layers < 0:
            raise ValueError(f"mtp_layers={self.mtp_layers} of {self.name} must not be negative")
        if self.experts is not None and self.experts.first_dense >= self.layers:
            raise ValueError(
                f"experts.first_dense={self.experts.first_dense} of {self.name} must leave one of "
                f"its {self.layers} layers for experts"
            )
        if self.experts is not None and self.moe_layers == 0:
            raise ValueError(
                f"experts.every={self.experts.every} of {self.name} leaves no layer for experts"
            )

    @property
    def gated(self) -> bool:
        """Whether the MLP multiplies two projections of its input (three matrices, not two)."""
        return self.activation in GATED

    @property
    def moe_layers(self) -> int:
        """Layers with experts (without the further ones of multi-token prediction)."""
        if self.experts is None:
            return 0
        return (self.layers - self.experts.first_dense) // self.experts.every

    # Attention.

    @property
    def query_dim(self) -> int:
        """Size of a query (and key) head."""
        if self.latent is not None:
            return self.latent.nope_dim + self.latent.rope_dim
        return self.head_dim

    @property
    def value_dim(self) -> int:
        """Size of a value head."""
        return self.latent.v_dim if self.latent is not None else self.head_dim

    @property
    def attention_width(self) -> int:
        """Elements that all heads put out together: the input of the output projection."""
        return self.heads * self.value_dim

    @property
    def query_width(self) -> int:
        """Elements of all query heads together."""
        return self.heads * self.query_dim

    @property
    def kv_width(self) -> int:
        """Elements of all key heads together (of grouped-query attention; values have as many)."""
        return self.kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Output width of the fused query, key and value projection."""
        return self.query_width + 2 * self.kv_width

    @property
    def attention_projections(self) -> tuple[tuple[int, int, bool], ...]:
        """The GEMMs before the attention core: inputs, outputs, and whether tp divides the outputs.

        One fused projection, or the down- and up-projections of latent attention.
        """
        if self.latent is None:
            return ((self.hidden, self.qkv_width, True),)
        latent = self.latent
        down = latent.kv_rank + latent.rope_dim
        queries: tuple[tuple[int, int, bool], ...] = ((self.hidden, self.query_width, True),)
        if latent.q_rank:
            queries = (
                (self.hidden, latent.q_rank, False),
                (latent.q_rank, self.query_width, True),
            )
        up = self.heads * (latent.nope_dim + latent.v_dim)
        return (*queries, (self.hidden, down, False), (latent.kv_rank, up, True))

    # Parameters.

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden size."""
        return self.hidden * (2 if self.norm == "layernorm" else 1)

    @property
    def matrices_of_mlp(self) -> int:
        """Weight matrices of an MLP."""
        return 3 if self.gated else 2

    def up_width(self, ffn: int) -> int:
        """Output width of the first projection of an MLP of width ``ffn``."""
        return ffn * (2 if self.gated else 1)

    @property
    def attention_sharded_parameters(self) -> int:
        """Of a layer's attention, what tensor parallelism divides."""
        sharded = sum(a * b for a, b, divided in self.attention_projections if divided)
        bias = self.qkv_width if self.bias != "none" and self.latent is None else 0
        return sharded + self.attention_width * self.hidden + bias

    @property
    def attention_replicated_parameters(self) -> int:
        """Of a layer's attention, what every tensor-parallel rank holds."""
        down = sum(a * b for a, b, divided in self.attention_projections if not divided)
        norms = 0
        if self.latent is not None:
            norms = self.latent.kv_rank + self.latent.q_rank
        elif self.qk_norm:
            norms = 2 * self.head_dim
        return down + norms + (self.hidden if self.bias == "all" else 0)

    @property
    def mlp_sharded_parameters(self) -> int:
        """Of a dense MLP, what tensor parallelism divides."""
        bias = self.up_width(self.ffn) if self.bias == "all" else 0
        return self.matrices_of_mlp * self.hidden * self.ffn + bias

    @property
    def shared_expert_parameters(self) -> int:
        """The expert that every token visits, divided like a dense MLP."""
        shared = self.experts.shared_ffn if self.experts is not None else 0
        return self.matrices_of_mlp * self.hidden * shared

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert."""
        width = self.experts.ffn if self.experts is not None else 0
        bias = self.up_width(width) + self.hidden if self.bias == "all" else 0
        return self.matrices_of_mlp * self.hidden * width + (bias if width else 0)

    def layer_sharded_parameters(self, kind: LayerKind) -> int:
        """Of a layer without its routed experts, what tensor parallelism divides."""
        mlp = self.mlp_sharded_parameters if kind == "dense" else self.shared_expert_parameters
        return self.attention_sharded_parameters + mlp

    def layer_replicated_parameters(self, kind: LayerKind) -> int:
        """Of a layer, what every tensor-parallel rank holds: norms, router, biases after sums."""
        norms = self.norms_per_layer * self.norm_parameters
        mlp_bias = self.hidden if self.bias == "all" and kind == "dense" else 0
        router = self.hidden * self.experts.count if kind == "moe" and self.experts else 0
        return self.attention_replicated_parameters + norms + mlp_bias + router

    def layer_parameters(self, kind: LayerKind = "dense") -> int:
        """Parameters of one layer, experts included."""
        routed = self.experts.count if kind == "moe" and self.experts is not None else 0
        return (
            self.layer_sharded_parameters(kind)
            + self.layer_replicated_parameters(kind)
            + routed * self.expert_parameters
        )

    def adapter_parameters(self, rank: int, targets: str = "attention") -> int:
        """Parameters of a layer's low-rank adapters: on attention, or all of a dense model's."""
        projections = sum(a + b for a, b, _ in self.attention_projections)
        widths = projections + self.attention_width + self.hidden
        if targets == "all" and self.experts is None:
            widths += 2 * self.hidden + self.up_width(self.ffn) + self.ffn
        return rank * widths

    @property
    def position_parameters(self) -> int:
        """Rows of the learned position table times their width; none when rotary."""
        return self.max_positions * self.hidden if self.positions == "learned" else 0

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding."""
        return self.vocab * self.hidden

    @property
    def mtp_parameters(self) -> int:
        """One further layer of multi-token prediction: a projection of two states, two norms."""
        kind: LayerKind = "moe" if self.experts is not None else "dense"
        joined = 2 * self.hidden * self.hidden + 3 * self.norm_parameters
        return self.layer_parameters(kind) + joined

    @property
    def parameters(self) -> int:
        """All parameters, as published counts give them.

        Tied weights count once, and further layers of multi-token prediction not at all.
        """
        moe = self.moe_layers
        return (
            (self.layers - moe) * self.layer_parameters("dense")
            + moe * (self.layer_parameters("moe") if moe else 0)
            + self.embedding_parameters * (1 if self.tied else 2)
            + self.position_parameters
            + self.norm_parameters
        )

    @property
    def active_parameters(self) -> int:
        """Parameters that one token visits."""
        if self.experts is None:
            return self.parameters
        idle = self.experts.count - self.experts.top_k
        return self.parameters - self.moe_layers * idle * self.expert_parameters
