"""Ensembles of regression trees as flat arrays, predicted with numpy alone.

Every tree is padded to one depth D and laid out as a heap: the children of node i are 2i + 1 and
2i + 2, so that a level costs two gathers and a comparison, whatever the row. Where a tree ends
early its leaf is repeated below it.

Suffixes: R rows, F features, T trees, N = 2^D - 1 inner nodes, L = 2^D leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.operators import FloatArray

BLOCK = 4096
"""Rows at a time: their features stay in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """A sum of trees: ``base`` plus one leaf of each.

    A row goes right where its feature is over the threshold.
    """

    base: float
    feature: NDArray[np.int8]
    """Which feature a node asks for, shape (T, N)."""
    threshold: NDArray[np.float32]
    """Shape (T, N)."""
    value: NDArray[np.float16]
    """What a leaf adds, shape (T, L): half precision, whose rounding is far under any error."""

    @property
    def depth(self) -> int:
        """D."""
        return int(self.value.shape[1]).bit_length() - 1

    def predict(self, features: FloatArray) -> FloatArray:
        """Values of rows, shape (R,), from features of shape (F, R)."""
        found = np.empty(features.shape[1])
        for start in range(0, features.shape[1], BLOCK):
            part = slice(start, start + BLOCK)
            found[part] = self._block(np.asarray(features[:, part], dtype=np.float32, order="C"))
        return found

    def _block(self, features: NDArray[np.float32]) -> FloatArray:
        rows = np.arange(features.shape[1])
        flat = features.ravel()
        offset = self.feature.astype(np.intp) * features.shape[1]
        total = np.full(len(rows), self.base)
        leaves = self.value.astype(np.float32)
        for tree in range(len(self.value)):
            starts, cuts = offset[tree], self.threshold[tree]
            node = (features[self.feature[tree, 0]] > cuts[0]).astype(np.intp)
            for level in range(1, self.depth):
                at = node + ((1 << level) - 1)
                right = flat.take(starts.take(at, mode="clip") + rows, mode="clip") > cuts.take(
                    at, mode="clip"
                )
                node = 2 * node + right
            total += leaves[tree].take(node, mode="clip")
        return total


def heap(trees: Sequence[Any], *, base: float, scale: float) -> Trees:
    """Trees of scikit-learn (their ``tree_``) as heaps; each leaf times ``scale``."""
    depth = max(1, *(int(tree.max_depth) for tree in trees))
    nodes = (1 << depth) - 1
    feature = np.zeros((len(trees), nodes), dtype=np.int8)
    threshold = np.full((len(trees), nodes), np.inf, dtype=np.float32)
    value = np.zeros((len(trees), nodes + 1), dtype=np.float16)
    for row, tree in enumerate(trees):
        places = np.zeros(2 * nodes + 1, dtype=np.intp)
        for at in range(nodes):
            node = places[at]
            if tree.children_left[node] < 0:
                places[2 * at + 1 : 2 * at + 3] = node
                continue
            feature[row, at] = tree.feature[node]
            threshold[row, at] = _down(float(tree.threshold[node]))
            places[2 * at + 1] = tree.children_left[node]
            places[2 * at + 2] = tree.children_right[node]
        value[row] = scale * tree.value[places[nodes:], 0, 0]
    return Trees(base=base, feature=feature, threshold=threshold, value=value)


def _down(threshold: float) -> np.float32:
    """The largest float32 at or under a threshold: float32 features compare as they did."""
    near = np.float32(threshold)
    return near if near <= threshold else np.nextafter(near, np.float32(-np.inf))
