"""Chains of ATen calls that a compiler runs as one kernel.

The rule is that of NeuSight (ASPLOS'25, section 4.4) and of what TorchInductor does at least: a
call joins the chain of the call that produced its operand, where nothing else of the same pass
takes that operand. So a chain is a tree of calls whose last one alone is seen from outside; it
reads what comes from outside once and writes its result, and whatever the backward pass needs.
Matrix products, fused attention, embeddings and gathers stay on their own (Inductor calls
libraries for products), and a reduction across rows ends its chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from estimator.lower.aten import (
    DTYPES,
    ELEMENTWISE,
    NORMS,
    PICKS,
    Call,
    Row,
    Value,
    distinct,
    memory_row,
    rows_and_columns,
    rows_of,
    spanned,
)
from estimator.operators import DTYPE_BYTES

LAYOUTS = frozenset({"clone", "_to_copy"})
"""Copies that the kernel beside them makes on the way."""
ALONE = PICKS | {"sort", "topk", "argsort", "cumsum", "cumprod"}
"""Not element by element, whatever torch's tags say."""


def fused_rows(calls: Sequence[Call]) -> list[Row]:
    """Rows of calls in order, chains as one row at the place of their last call."""
    chains = _chains(calls)
    outside = _used_outside(calls, chains)
    members: dict[int, list[Call]] = {}
    for call, chain in zip(calls, chains, strict=True):
        members.setdefault(chain, []).append(call)
    rows: list[Row] = []
    for index, (call, chain) in enumerate(zip(calls, chains, strict=True)):
        if index != chain:
            continue
        group = members[chain]
        rows.extend(rows_of(call) if len(group) == 1 else [_chain_row(group, outside)])
    return rows


def _fuses(call: Call) -> bool:
    if call.name in ALONE:
        return False
    known = call.pointwise or call.reduction or call.name in LAYOUTS | NORMS.keys()
    dropout = call.name in ELEMENTWISE and "dropout" in call.name
    return (known or dropout) and any(value.elements for value in call.writes)


def _by_row(call: Call) -> bool:
    """Whether each row of the result needs one row of the operands: the chain may go on."""
    if not call.reduction:
        return True
    source, result = spanned(call.reads), call.writes[0]
    return bool(source.shape) and result.size * source.shape[-1] == source.size


def _chains(calls: Sequence[Call]) -> list[int]:
    """For each call the index of its chain's last call, shape (N,)."""
    uses = Counter(
        (call.backward, key) for call in calls for key in {_key(value) for value in call.reads}
    )
    made: dict[tuple[int, int], int] = {}
    root = list(range(len(calls)))
    for index, call in enumerate(calls):
        if _fuses(call):
            for key in {_key(value) for value in call.reads}:
                maker = made.get(key)
                if maker is None or not _fuses(calls[maker]) or not _by_row(calls[maker]):
                    continue
                same_pass = calls[maker].backward == call.backward
                if same_pass and uses[call.backward, key] == 1:
                    root[maker] = index
        for value in call.writes:
            made[_key(value)] = index
    # A chain grows forward only, so the last calls are settled first.
    for index in reversed(range(len(calls))):
        root[index] = root[root[index]]
    return root


def _key(value: Value) -> tuple[int, int]:
    return value.storage, value.version


def _used_outside(calls: Sequence[Call], chains: Sequence[int]) -> set[tuple[int, int]]:
    """Values that a call outside the chain that makes them reads."""
    maker = {
        _key(value): chain
        for call, chain in zip(calls, chains, strict=True)
        for value in call.writes
    }
    return {
        _key(value)
        for call, chain in zip(calls, chains, strict=True)
        for value in call.reads
        if maker.get(_key(value), chain) != chain
    }


def _chain_row(group: Sequence[Call], outside: set[tuple[int, int]]) -> Row:
    """One row for a chain: what it reads from outside and what is seen of it, in bytes."""
    inside = {_key(value) for call in group for value in call.writes}
    read = {_key(value) for call in group for value in call.reads}
    reads = distinct(tuple(v for call in group for v in call.reads if _key(v) not in inside))
    writes = tuple(
        v for call in group for v in call.writes if _key(v) in outside or _key(v) not in read
    )
    widest = spanned(tuple(v for call in group for v in (*call.writes, *call.reads)))
    dtype = DTYPES.get(widest.dtype, "fp32")
    m, n = rows_and_columns(widest.shape)
    whole = m * n * DTYPE_BYTES[dtype]
    parts = [memory_row(call) for call in group]
    norms = [part for part in parts if part.kind in NORMS.values()]
    return Row(
        kind=norms[-1].kind if norms else "elementwise",
        name=f"fused({'+'.join(part.name for part in parts)})",
        dtype=dtype,
        in_backward=group[-1].backward,
        phase=norms[-1].phase if norms else parts[-1].phase,
        m=m,
        n=n,
        reads=sum(value.bytes for value in reads) / whole,
        writes=sum(value.bytes for value in writes) / whole,
        work=sum(part.work * part.m * part.n for part in parts) / (m * n),
    )
