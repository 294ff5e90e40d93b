"""A user's own PyTorch module, found by name and priced on one device."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from estimator.cluster import Device
from estimator.cost.analytic_kernels import AnalyticKernels
from estimator.cost.best import all_kernels
from estimator.cost.kernels import PRODUCTS, KernelModel
from estimator.cost.parameters import load_kernels
from estimator.lower.module import INSTALL, ModuleTrace, trace_module
from estimator.lower.operators import flops, moved_bytes
from estimator.operators import FloatArray, NameArray, Operators
from estimator.pricers import check_cost_model
from estimator.workload import Mode

if TYPE_CHECKING:
    import torch

INPUT_DTYPES = ("float32", "bfloat16", "float16", "int64", "int32", "bool")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleEstimate:
    """What a module costs: N rows of operators, each array of shape (N,), counts included."""

    name: str
    device: Device
    cost: str
    mode: str
    """train (forward and backward) or forward."""
    fused: bool
    trace: ModuleTrace
    seconds: FloatArray
    flops: FloatArray
    bytes: FloatArray
    origin: NameArray

    @property
    def ops(self) -> Operators:
        """The rows."""
        return self.trace.ops

    @property
    def forward_seconds(self) -> float:
        """Of the forward pass."""
        return float(self.seconds[~self.trace.in_backward].sum())

    @property
    def backward_seconds(self) -> float:
        """Of the backward pass; 0 where none was asked for."""
        return float(self.seconds[self.trace.in_backward].sum())

    def kinds(self) -> list[dict[str, Any]]:
        """Calls, seconds, FLOP and bytes of each kind of operator, the longest first."""
        rows = {kind: self.ops.kind == kind for kind in np.unique(self.ops.kind).tolist()}
        return sorted(
            (
                {
                    "kind": kind,
                    "calls": int(self.ops.count[mine].sum()),
                    "seconds": float(self.seconds[mine].sum()),
                    "flops": float(self.flops[mine].sum()),
                    "bytes": float(self.bytes[mine].sum()),
                }
                for kind, mine in rows.items()
            ),
            key=lambda row: -row["seconds"],
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, the device and each operator whole."""
        columns = {name: array.tolist() for name, array in self.ops.columns().items()}
        for name in ("seconds", "flops", "bytes", "origin"):
            columns[name] = getattr(self, name).tolist()
        columns["in_backward"] = self.trace.in_backward.tolist()
        rows = zip(*columns.values(), strict=True)
        return {
            "module": self.name,
            "device": self.device,
            "cost": self.cost,
            "mode": self.mode,
            "fused": self.fused,
            "parameters": self.trace.parameters,
            "seconds": float(self.seconds.sum()),
            "forward_seconds": self.forward_seconds,
            "backward_seconds": self.backward_seconds,
            "kinds": self.kinds(),
            "operators": [dict(zip(columns, row, strict=True)) for row in rows],
            "unrecognised": self.trace.unrecognised,
            "assumed": self.trace.assumed,
        }

    def slowest(self, most: int) -> NDArray[np.int64]:
        """Rows by their seconds, the longest first, at most so many."""
        return np.argsort(-self.seconds, kind="stable")[:most]


def kernels_of(cost: str, device: Device) -> KernelModel:
    """The kernel model of a cost model by name; ``ValueError`` for one that prices plans only."""
    check_cost_model(cost)
    if cost == "amped":
        raise ValueError("cost=amped prices plans of a --model alone; use analytic or learned")
    if cost == "analytic":
        return AnalyticKernels()
    return all_kernels(device, [] if cost == "learned" else [load_kernels(cost)])


def price_module(
    name: str,
    *,
    inputs: Sequence[str] = (),
    device: Device,
    model: KernelModel,
    mode: str = "train",
    fuse: bool = False,
    tf32: bool = False,
) -> ModuleEstimate:
    """The cost of the module that ``package:factory`` gives, on one device.

    This runs the user's code: the import, the factory and the module's Python.

    Raises:
        ValueError: the mode is unknown, torch is absent, the name gives no module, the module
            fails on these inputs, or an operator has no price on this device.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode={mode} must be one of {', '.join(get_args(Mode))}")
    shapes = [parse_input(text) for text in inputs]
    with contextlib.redirect_stdout(sys.stderr):  # standard output is the answer's alone
        module, example = load_module(name)
        if shapes:
            example = tuple(_meta_input(shape, dtype) for shape, dtype in shapes)
        if example is None:
            raise ValueError(
                f"{name} gives a module without inputs; add --input 8,1024:int64 (once for each "
                "argument), or return (module, inputs)"
            )
        trace = trace_module(module, example, training=mode == "train", fuse=fuse)
    ops = trace.ops
    if tf32:
        rounded = np.isin(ops.kind, PRODUCTS) & (ops.dtype == "fp32")
        ops = replace(ops, dtype=np.where(rounded, "tf32", ops.dtype))
    return ModuleEstimate(
        name=name,
        device=device,
        cost=model.name,
        mode=mode,
        fused=fuse,
        trace=replace(trace, ops=ops),
        seconds=model.seconds(ops, device),
        flops=flops(ops) * ops.count,
        bytes=moved_bytes(ops) * ops.count,
        origin=model.origin(ops, device),
    )


def load_module(name: str) -> tuple[torch.nn.Module, Any]:
    """The module that ``package:factory`` names or makes, and its example inputs or ``None``.

    The factory is called with no argument on the meta device, so that no weight takes memory. It
    returns a module, or a module and its inputs; a module itself may be named instead.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ValueError(INSTALL) from error
    found = _attribute(name)
    if isinstance(found, torch.nn.Module):
        return found, None
    if not callable(found):
        raise ValueError(
            f"{name} is a {type(found).__name__}; it must be a torch.nn.Module or a function that "
            "returns one"
        )
    with torch.device("meta"), _told(f"{name} raised"):
        made = found()
    module, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise ValueError(
            f"{name} returned a {type(module).__name__}; it must return a torch.nn.Module, or a "
            "module and its inputs"
        )
    return module, example


def _attribute(name: str) -> Any:
    path, colon, attribute = name.partition(":")
    if not (path and colon and attribute):
        raise ValueError(f"module={name} must be package:factory, as in my_package.models:tiny")
    with _current_folder(), _told(f"importing {path} raised"):
        found: Any = importlib.import_module(path)
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = ", ".join(word for word in vars(found) if not word.startswith("_"))
            raise ValueError(f"{path} has no {attribute}; it has {known or 'no public name'}")
        found = getattr(found, part)
    return found


def parse_input(text: str) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of ``8,1024:int64``; the dtype is float32 where none is given.

    Raises:
        ValueError: a size is no positive integer, or the dtype is unknown.
    """
    sizes, _, dtype = text.partition(":")
    dtype = dtype or "float32"
    if dtype not in INPUT_DTYPES:
        raise ValueError(f"input={text}: dtype {dtype} must be one of {', '.join(INPUT_DTYPES)}")
    shape = []
    for size in sizes.split(","):
        if not size.strip().isdecimal() or int(size) < 1:
            raise ValueError(
                f"input={text}: size {size.strip()!r} must be a positive integer, as in "
                "8,1024:int64"
            )
        shape.append(int(size))
    return tuple(shape), dtype


def _meta_input(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


@contextlib.contextmanager
def _current_folder() -> Iterator[None]:
    """Modules of the current folder can be imported too, after all that is installed."""
    before = list(sys.path)
    sys.path.append("")
    try:
        yield
    finally:
        sys.path[:] = before


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Whatever the user's code raises, and its attempts to exit, in one line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        first = str(error).strip().partition("\n")[0]
        raise ValueError(f"{what} {type(error).__name__}: {first}") from error
