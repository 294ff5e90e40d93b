"""Any PyTorch module as operator rows: forward and backward, with no weights and no GPU.

The module runs once on tensors of the meta device (shapes without data) while a dispatch mode
writes down each ATen call, and so does autograd's backward pass. ``torch.export`` and ``fx`` would
need a module that they can trace whole, and give a graph of forward alone, from which backward
must be derived by rules; here Python control flow on shapes just runs, and the calls of backward
are those that autograd makes: two products for a linear, one where the input needs no gradient.

Where PyTorch has another kernel on a GPU than on the meta device, the GPU's is put in its place:
fused attention for ``scaled_dot_product_attention``, the fused dropout and the fused RMS norm.
What a module does by the values of its tensors (``.item()``, ``nonzero``) cannot be followed; it
is an error, but for checks: ``all()`` is taken to hold and ``any()`` not to, and ``assumed`` counts
them (transformers asks so whether a mask masks anything). The optimizer is not traced, casts of
``torch.autocast`` are not made: build the module in the dtype that it runs in.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from estimator.lower.aten import Row, recognised, rows_of
from estimator.lower.fusion import fused_rows
from estimator.operators import Operators, operators

if TYPE_CHECKING:
    import torch

INSTALL = "torch is not installed: pip install 'trainplan[learn]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTrace:
    """What one pass of a module runs; N rows, equal ones counted together."""

    ops: Operators
    in_backward: NDArray[np.bool_]
    """Rows of the backward pass, shape (N,). ``ops.phase`` says which kernel it is instead: a
    product that computes a gradient is one product like any other, with phase forward."""
    parameters: int
    """Elements of distinct parameters."""
    unrecognised: Mapping[str, int]
    """ATen operators that no rule knows, with their calls: counted as copies of their tensors."""
    assumed: Mapping[str, int]
    """Checks of tensors' values by what was asked: ``all`` was taken to hold, ``any`` not to."""


def trace_module(
    module: torch.nn.Module,
    example_inputs: Any,
    *,
    training: bool,
    fuse: bool = False,
    accumulate: bool = False,
) -> ModuleTrace:
    """The operators that a module runs on inputs of these shapes.

    Args:
        module: on any device; its parameters and buffers are neither read nor changed.
        example_inputs: a tensor, a sequence of arguments or a mapping of keyword arguments; only
            shapes and dtypes of tensors matter.
        training: forward and backward with the module's own modes (dropout runs where a part is in
            training mode), from its ``loss`` if the output has one, else from every floating-point
            output. Otherwise forward alone, in evaluation mode, without autograd.
        fuse: chains of element-wise calls as one kernel each, as ``torch.compile`` makes them.
        accumulate: gradients are there already and the new ones are added.

    Raises:
        ValueError: torch is absent, the module fails on meta tensors, or nothing needs a gradient.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ValueError(INSTALL) from error
    from estimator.lower.recorder import OnePass, Recorder

    recorder = Recorder()
    run = OnePass(module, recorder, backward=training)
    state = {name: _meta(value) for name, value in [*run.named_parameters(), *run.named_buffers()]}
    parameters = [state[name] for name, _ in run.named_parameters()]
    args, kwargs = _arguments(example_inputs)
    if accumulate:
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
    with _modes_kept(module, training), torch.device("meta"):
        differentiable = torch.func.functional_call(run, state, args, kwargs)
    if training and not differentiable:
        raise ValueError(
            "no output of the module needs a gradient, so it has no backward pass; "
            "price forward alone"
        )
    calls = recorder.calls
    rows = fused_rows(calls) if fuse else [row for call in calls for row in rows_of(call)]
    if not rows:
        raise ValueError("the module runs no operator on these inputs")
    unrecognised = Counter(call.name for call in calls if not recognised(call) and rows_of(call))
    counts = Counter(rows)
    names = [field.name for field in fields(Row)]
    columns = dict(zip(names, zip(*map(astuple, counts), strict=True), strict=True))
    in_backward = np.array(columns.pop("in_backward"), dtype=bool)
    return ModuleTrace(
        ops=operators(**columns, count=list(counts.values())),
        in_backward=in_backward,
        parameters=sum(value.numel() for value in parameters),
        unrecognised=dict(sorted(unrecognised.items())),
        assumed=dict(recorder.assumed),
    )


def _meta(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape, dtype and need of a gradient that holds nothing."""
    import torch

    made = torch.empty_like(value, device="meta")
    return made.requires_grad_(value.requires_grad)


def _arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch
    from torch.utils import _pytree

    for leaf in _pytree.tree_leaves(example_inputs):
        if isinstance(leaf, torch.Tensor) and not leaf.numel():
            raise ValueError(
                f"an input has shape {tuple(leaf.shape)}: every dimension must be 1 or more"
            )
    moved = _pytree.tree_map_only(torch.Tensor, _meta, example_inputs)
    if isinstance(moved, torch.Tensor):
        return (moved,), {}
    if isinstance(moved, Mapping):
        return (), dict(moved)
    if isinstance(moved, Sequence) and not isinstance(moved, str):
        return tuple(moved), {}
    raise ValueError(
        f"example inputs are a {type(example_inputs).__name__}; give a tensor, a sequence of "
        "arguments or a mapping of keyword arguments"
    )


@contextlib.contextmanager
def _modes_kept(module: torch.nn.Module, training: bool) -> Iterator[None]:
    """Evaluation mode for forward alone; each part has its own mode again afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        if not training:
            module.train(False)
        yield
    finally:
        for part, mode in modes:
            part.training = mode
