"""What the lowering of a model writes with: GEMMs, element-wise kernels and collectives as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from estimator.cluster import Cluster
from estimator.lower.keys import Keys
from estimator.lower.slots import (
    CORE,
    FULL,
    MLP,
    NEVER,
    Builder,
    Collective,
    FloatArray,
    IntArray,
    Phase,
    Place,
    Slot,
    Stream,
    above_leaf,
)
from estimator.model import Transformer
from estimator.stack import Stack
from estimator.workload import Workload

BACKWARD: tuple[Phase, Phase] = ("backward_input", "backward_weight")
MATRIX_PHASES: tuple[Phase, ...] = ("forward", *BACKWARD)
PASS_PHASES: tuple[Phase, ...] = ("forward", "backward_input")


@dataclass(slots=True)
class Lowering:
    """The builder with the sizes that most slots need."""

    model: Transformer
    workload: Workload
    stack: Stack
    cluster: Cluster
    keys: Keys
    rows: Builder
    element: float
    """Bytes of an activation."""
    tokens: FloatArray
    """Tokens of a rank."""
    split: FloatArray
    """Tokens of a rank in norms and residuals, which sequence parallelism splits."""
    tp_inside: FloatArray
    """Ranks of a tensor-parallel group inside one scale-up domain."""
    tp_leaf: FloatArray
    """Ranks of it below one leaf switch."""
    layer: int = 0
    """Index of the kind of layer being lowered."""
    again: frozenset[str] = FULL
    """Kinds of recompute that run again what is being lowered."""

    @property
    def around(self) -> frozenset[str]:
        """The same of kernels between GEMMs: XLA keeps the outputs of GEMMs alone."""
        return MLP if self.stack.recompute_style == "unsaved" else FULL

    @property
    def core(self) -> frozenset[str]:
        """The same of the attention core."""
        return CORE | MLP if self.stack.recompute_style == "unsaved" else CORE

    def gemm(
        self,
        name: str,
        place: Place,
        *,
        m: FloatArray,
        n: FloatArray,
        k: FloatArray,
        batch: FloatArray | float = 1.0,
        starts: FloatArray | float = 1.0,
        weights: bool = True,
        frozen: bool = False,
        column_parallel: bool = False,
    ) -> None:
        """A GEMM (m, k) x (k, n) and its two backward GEMMs, which cost as many FLOPs.

        ``batch`` products of one shape are one launch, which ``starts`` so many times. Frozen
        weights need no gradient.
        """
        shapes = ((m, n, k), (m, k, n), (k, n, m))
        for (rows, columns, inner), phase in zip(shapes, MATRIX_PHASES, strict=True):
            self.rows.add(
                Slot(
                    name=name,
                    kind="gemm",
                    place=place,
                    phase=phase,
                    recomputed_by=self.again if phase == "forward" else NEVER,
                    layer=self.layer,
                    low_precision=weights and place == "layer",
                    shields=column_parallel and phase != "forward",
                ),
                count=0.0 if frozen and phase == "backward_weight" else 1.0,
                starts=starts,
                flops=2 * batch * rows * columns * inner,
                bytes=self.element * batch * (rows * inner + inner * columns + rows * columns),
                m=rows,
                n=columns,
                k=inner,
            )

    def memory(
        self,
        name: str,
        place: Place,
        *,
        forward: FloatArray | float,
        backward: FloatArray | float,
    ) -> None:
        """An element-wise kernel by the bytes that it moves, forward and backward."""
        for phase, moved in zip(PASS_PHASES, (forward, backward), strict=True):
            self.rows.add(
                Slot(
                    name=name,
                    kind="memory",
                    place=place,
                    phase=phase,
                    layer=self.layer,
                    recomputed_by=self.again if phase == "forward" else NEVER,
                ),
                bytes=moved,
            )

    def collective(
        self,
        name: str,
        place: Place,
        kind: Collective,
        *,
        stream: Stream,
        phase: Phase,
        size: FloatArray,
        group: IntArray,
        inside: FloatArray,
        leaf: FloatArray,
        chain: IntArray | None = None,
        between: FloatArray | float = 0.0,
        count: FloatArray | float = 1.0,
        recomputed: frozenset[str] = NEVER,
        asynchronous: bool = False,
    ) -> None:
        """A collective over ``group`` ranks on a buffer of ``size`` bytes; none for one rank.

        Of the ranks, ``inside`` share a scale-up domain and ``leaf`` a leaf switch (those of the
        ``chain``, where the group is a pair of neighbours in one).
        Of an all-to-all, ``size`` stays inside a rank's scale-up domain and ``between`` leaves it.
        """
        self.rows.add(
            Slot(
                name=name,
                kind="collective",
                place=place,
                phase=phase,
                stream=stream,
                collective=kind,
                layer=self.layer,
                recomputed_by=recomputed if phase == "forward" else NEVER,
                asynchronous=asynchronous,
            ),
            count=np.asarray(count * (group > 1), dtype=np.float64),
            bytes=size,
            between=between,
            group=group,
            inside=inside,
            above_leaf=above_leaf(kind, group if chain is None else chain, inside, leaf),
        )

    def tp_collectives(
        self,
        name: str,
        place: Place,
        rows: Sequence[tuple[Collective, Phase, FloatArray]],
        *,
        asynchronous: bool = False,
    ) -> None:
        """Tensor-parallel collectives on a rank's whole activations, each with its count."""
        keys = self.keys
        # What a GEMM reads may be cast before it is gathered; sums stay in half precision.
        cast = self.stack.casts_before_gather and place == "layer"
        # Scales by row are found after the gather (torchtitan, docs/float8.md).
        cast = cast and self.workload.fp8_scaling == "tensor"
        for kind, phase, count in rows:
            width = self.workload.gemm_bytes if cast and kind == "all_gather" else self.element
            self.collective(
                name,
                place,
                kind,
                stream="tp",
                phase=phase,
                size=self.tokens * self.model.hidden * width,
                group=keys.tp,
                inside=self.tp_inside,
                leaf=self.tp_leaf,
                count=count,
                recomputed=self.again if place == "layer" else NEVER,
                asynchronous=asynchronous and phase != "forward",
            )
