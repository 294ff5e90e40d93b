"""Boosted oblivious trees: every level of a tree asks all rows one question.

A row's leaf is then a number of D bits, which a few comparisons of whole tables give for all rows
and trees, where trees of free shape need a gather per row, tree and level. The idea is
CatBoost's (Dorogush et al., arXiv 1810.11363).

Suffixes: N rows, F features, T trees, D levels, L = 2^D leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from estimator.operators import FloatArray

BINS = 64
"""Levels that a feature is cut into, at its quantiles."""
BLOCK = 512
"""Rows that all trees are asked of at a time."""
DEPTH = 6
RATE = 0.1
"""Share of what is left that each tree takes."""
SHARE = 0.3
"""Share of the features that each tree may ask about."""
PRIOR_ROWS = 3.0
"""Rows of value zero that every leaf is averaged with."""

Codes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObliviousTrees:
    """A sum of trees; half precision, whose rounding is far below any error of a fit."""

    edges: NDArray[np.float32]
    """(F, BINS - 1) ascending cuts of each feature; infinite where it has fewer."""
    feature: Codes
    """(T, D) which feature a level asks for."""
    cut: Codes
    """(T, D) which of its edges the feature must pass for the level's bit."""
    leaves: NDArray[np.float16]
    """(T, L)."""

    def predict(self, features: FloatArray) -> FloatArray:
        """Values of rows, shape (N,), from features of shape (N, F)."""
        found = np.empty(len(features))
        values = self.leaves.astype(np.float32).ravel()
        first_leaf = (np.arange(len(self.leaves)) * self.leaves.shape[1])[:, None]
        questions, asked = self._questions()
        for start in range(0, len(features), BLOCK):
            columns = features[start : start + BLOCK].T.astype(np.float32)
            passed = np.empty((sum(map(len, questions)), columns.shape[1]), dtype=bool)
            end = 0
            for column, edges in zip(columns, questions, strict=True):
                first, end = end, end + len(edges)
                np.greater(column, edges, out=passed[first:end])
            bits = passed.view(np.uint8)
            leaf = bits[asked[0]]
            for level in asked[1:]:
                leaf += leaf
                leaf += bits[level]
            found[start : start + BLOCK] = values[first_leaf + leaf].sum(axis=0)
        return found

    def _questions(self) -> tuple[list[NDArray[np.float32]], NDArray[np.int64]]:
        """Distinct edges that are asked for, (Q_f, 1) of each feature; which of all, (D, T).

        Trees share many: asking each of them once of a block is most of what makes this fast.
        """
        bins = self.edges.shape[1]
        pairs = self.feature.T.astype(np.int64) * bins + self.cut.T
        distinct, asked = np.unique(pairs, return_inverse=True)
        edges = self.edges.reshape(-1, 1)[distinct]
        ends = np.searchsorted(distinct, np.arange(1, len(self.edges)) * bins)
        return np.split(edges, ends), asked.reshape(pairs.shape)


def _codes(features: FloatArray, edges: NDArray[np.float32]) -> Codes:
    """How many edges each value passes, shape (F, N)."""
    columns = features.T.astype(np.float32)
    found = [
        np.searchsorted(edge, column, side="left")
        for edge, column in zip(edges, columns, strict=True)
    ]
    return np.array(found, dtype=np.uint8)


def fit_trees(
    features: FloatArray, values: FloatArray, *, trees: int, seed: int = 0
) -> ObliviousTrees:
    """Boost ``trees`` on squared errors of ``values`` (N,) over ``features`` (N, F)."""
    draw = np.random.default_rng(seed)
    edges = _edges(features)
    codes = _codes(features, edges)
    wide = codes.astype(np.int64)
    left = values.astype(np.float64).copy()
    asked = np.zeros((trees, DEPTH), dtype=np.uint8)
    cuts = np.zeros((trees, DEPTH), dtype=np.uint8)
    leaves = np.zeros((trees, 1 << DEPTH), dtype=np.float16)
    few = max(1, round(SHARE * len(wide)))
    for tree in range(trees):
        candidates = draw.permutation(len(wide))[:few].tolist()
        leaf = np.zeros(len(left), dtype=np.int64)
        for level in range(DEPTH):
            feature, cut = _best_split(wide, left, leaf, 1 << level, candidates)
            asked[tree, level], cuts[tree, level] = feature, cut
            leaf = 2 * leaf + (wide[feature] > cut)
        total = np.bincount(leaf, left, 1 << DEPTH)
        count = np.bincount(leaf, minlength=1 << DEPTH)
        leaves[tree] = RATE * total / (count + PRIOR_ROWS)
        left -= leaves[tree].astype(np.float64)[leaf]
    return ObliviousTrees(edges=edges, feature=asked, cut=cuts, leaves=leaves)


def _edges(features: FloatArray) -> NDArray[np.float32]:
    edges = np.full((features.shape[1], BINS - 1), np.inf, dtype=np.float32)
    levels = np.linspace(0, 1, BINS + 1)[1:-1]
    for row, column in zip(edges, features.T, strict=True):
        found = np.unique(np.quantile(column, levels).astype(np.float32))
        row[: len(found)] = found
    return edges


def _best_split(
    codes: NDArray[np.int64],
    left: FloatArray,
    leaf: NDArray[np.int64],
    parts: int,
    candidates: Sequence[int],
) -> tuple[int, int]:
    """The question that, asked of every part, takes most of the squared errors."""
    best, found = -1.0, (candidates[0], 0)
    for feature in candidates:
        cell = leaf * BINS + codes[feature]
        total = np.bincount(cell, left, parts * BINS).reshape(parts, BINS).cumsum(axis=1)
        count = np.bincount(cell, minlength=parts * BINS).reshape(parts, BINS).cumsum(axis=1)
        over, over_count = total[:, -1:] - total, count[:, -1:] - count
        gain = total**2 / (count + PRIOR_ROWS) + over**2 / (over_count + PRIOR_ROWS)
        summed = gain.sum(axis=0)[:-1]
        cut = int(summed.argmax())
        if summed[cut] > best:
            best, found = float(summed[cut]), (feature, cut)
    return found
