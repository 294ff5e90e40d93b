"""Writing down what PyTorch's dispatcher runs. Imports torch: only ``module.py`` imports this."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from estimator.lower.aten import Call, Value

ANSWERS = {"all": True, "any": False}
"""What a check of values says when all is well: ``isfinite(x).all()``, ``isnan(x).any()``."""


class Recorder:
    """Calls in the order in which they run."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.assumed: Counter[str] = Counter()
        """Answers given to questions about values, by what was asked."""
        self._backward = False
        self._maker: dict[int, Call] = {}
        self._versions: dict[int, int] = {}
        self._storages: list[torch.UntypedStorage] = []
        """Held, so that no two have the same address; tensors are not, so that autograd may
        take a gradient over instead of copying it."""

    @contextlib.contextmanager
    def recording(self, *, backward: bool) -> Iterator[None]:
        """Record what runs inside as the forward or the backward pass."""
        self._backward = backward
        kernels = _KernelsOfGpus(self)
        with _Dispatch(self), kernels, kernels.looked_up():
            yield

    def keep(self, output: Any) -> None:
        """What the module returns is seen from outside, whatever else reads it."""
        self.note("output", tuple(t for t in _tensors(output)), ())

    def note(
        self, name: str, reads: tuple[torch.Tensor, ...], writes: tuple[torch.Tensor, ...]
    ) -> None:
        """Write down a kernel that stands for several calls."""
        operands, results = tuple(map(self.value, reads)), tuple(map(self.value, writes))
        self.add(
            Call(
                name=name,
                arguments={},
                reads=operands,
                writes=results,
                backward=self._backward,
            )
        )

    def answer(self, tensor: torch.Tensor) -> bool | None:
        """``ANSWERS`` to whether all or any elements are true; ``None`` to other questions."""
        maker = self._maker.get(self.value(tensor).storage)
        asked = "" if maker is None else maker.name
        if maker is not None and maker.name == "eq" and self._counts_true(maker.reads[0]):
            asked = "all"
        if tensor.dtype != torch.bool or asked not in ANSWERS:
            return None
        self.assumed[asked] += 1
        return ANSWERS[asked]

    def _counts_true(self, value: Value) -> bool:
        """Whether it is a sum of booleans: transformers asks ``mask.sum() == mask.numel()``."""
        maker = self._maker.get(value.storage)
        return maker is not None and maker.name == "sum" and maker.reads[0].dtype == "bool"

    def add(self, call: Call) -> None:
        """Write down a call."""
        self.calls.append(call)
        self._maker.update((value.storage, call) for value in call.writes)

    def value(self, tensor: torch.Tensor) -> Value:
        """A tensor as it is now."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._versions:
            self._versions[address] = 0
            self._storages.append(storage)
        shape = tuple(int(size) for size in tensor.shape)
        elements = 1
        for size, stride in zip(shape, tensor.stride(), strict=True):
            elements *= size if stride or not size else 1
        # Windows over a storage may show an element several times.
        elements = min(elements, storage.nbytes() // tensor.element_size())
        return Value(
            storage=address,
            version=self._versions[address],
            offset=int(tensor.storage_offset()),
            shape=shape,
            elements=elements,
            dtype=str(tensor.dtype).removeprefix("torch."),
            itemsize=tensor.element_size(),
        )

    def written(self, tensor: torch.Tensor) -> Value:
        """A tensor that a call has changed in place."""
        self.value(tensor)
        self._versions[tensor.untyped_storage()._cdata] += 1
        return self.value(tensor)


class OnePass(torch.nn.Module):
    """Runs a module forward, and backward if asked, as one call.

    Backward runs inside, where a checkpoint that runs forward again finds the same parameters.
    """

    def __init__(self, module: torch.nn.Module, recorder: Recorder, *, backward: bool) -> None:
        super().__init__()
        self.module, self.recorder, self.backward = module, recorder, backward

    def forward(self, *args: Any, **kwargs: Any) -> bool:
        """Whether any output needs a gradient."""
        with (
            _told("forward"),
            torch.set_grad_enabled(self.backward),
            self.recorder.recording(backward=False),
        ):
            output = self.module(*args, **kwargs)
        self.recorder.keep(output)
        loss = output.get("loss") if isinstance(output, Mapping) else None
        ends = [t for t in _tensors(output if loss is None else loss) if t.requires_grad]
        if self.backward and ends:
            gradients = [torch.empty_like(end) for end in ends]
            with _told("backward"), self.recorder.recording(backward=True):
                torch.autograd.backward(ends, gradients)
        return bool(ends)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Whatever the module raises, as one line that says where."""
    try:
        yield
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{what} of the module raised {type(error).__name__} on meta tensors (shapes without "
            f"values): {first}"
        ) from error


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class _Dispatch(TorchDispatchMode):
    """Records each call below autograd; views, which share storage with an operand, are free."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        if name == "_local_scalar_dense":
            answer = self.recorder.answer(args[0])
            if answer is not None:
                return answer
        bound = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | kwargs
        value = self.recorder.value
        arguments = _pytree.tree_map_only(torch.Tensor, value, bound)
        reads = tuple(leaf for leaf in _pytree.tree_leaves(arguments) if isinstance(leaf, Value))
        result = func(*args, **kwargs)
        taken = {read.storage for read in reads}
        made = [new for new in map(value, _tensors(result)) if new.storage not in taken]
        made += map(self.recorder.written, _tensors([bound.get(n) for n in _changed(func)]))
        if made:
            self.recorder.add(
                Call(
                    name=name,
                    arguments=arguments,
                    reads=reads,
                    writes=tuple(made),
                    backward=self.recorder._backward,
                    pointwise=torch.Tag.pointwise in func.tags,
                    reduction=_is_reduction(func),
                )
            )
        return result


def _changed(func: Any) -> list[str]:
    """Arguments that an operator writes to."""
    every = func._schema.arguments
    return [a.name for a in every if a.alias_info is not None and a.alias_info.is_write]


REDUCTIONS = frozenset(
    {"sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all", "var", "var_mean", "std"}
    | {"std_mean", "argmax", "argmin", "norm", "linalg_vector_norm"}
)


def _is_reduction(func: Any) -> bool:
    """By torch's tag where it has one (2.10 and later), by name before."""
    tag = getattr(torch.Tag, "reduction", None)
    return tag in func.tags or func._schema.name.partition("::")[2] in REDUCTIONS


class _KernelsOfGpus(TorchFunctionMode):
    """Calls that are one kernel on a GPU and several on the meta device, as the one kernel.

    The mode alone would miss calls inside functions that it is asked about first, such as
    ``multi_head_attention_forward``: those look the functions up in ``torch.nn.functional``.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        functional = torch.nn.functional
        self.kernels: dict[Any, Any] = {
            functional.scaled_dot_product_attention: partial(
                _fused_attention, functional.scaled_dot_product_attention
            ),
            functional.dropout: _fused_dropout,
            torch.dropout: _fused_dropout,
            functional.rms_norm: partial(_fused_rms_norm, recorder),
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.kernels.get(func, func)(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def looked_up(self) -> Iterator[None]:
        """The kernels under their names in ``torch.nn.functional`` as well."""
        names = ("scaled_dot_product_attention", "dropout", "rms_norm")
        originals = {name: getattr(torch.nn.functional, name) for name in names}
        try:
            for name, original in originals.items():
                setattr(torch.nn.functional, name, self.kernels[original])
            yield
        finally:
            for name, original in originals.items():
                setattr(torch.nn.functional, name, original)


def _fused_dropout(
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    train: bool | None = None,
) -> torch.Tensor:
    if not (training if train is None else train) or p == 0:
        return input
    return torch.native_dropout(input, p, True)[0]


def _fused_attention(
    unfused: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """FlashAttention; under a mask the memory-efficient kernel, or cuDNN's where heads share keys.

    Unfused where none of them fits.
    """
    if query.dim() != 4 or query.shape[-1] != value.shape[-1]:
        return unfused(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    aten = torch.ops.aten
    if attn_mask is None:
        call = aten._scaled_dot_product_flash_attention
        return call(query, key, value, dropout_p, is_causal, scale=scale)[0]
    graded = torch.is_grad_enabled()
    if query.shape[1] == key.shape[1]:
        call = aten._scaled_dot_product_efficient_attention
        return call(query, key, value, attn_mask, graded, dropout_p, is_causal, scale=scale)[0]
    call = aten._scaled_dot_product_cudnn_attention
    return call(query, key, value, attn_mask, graded, dropout_p, is_causal, scale=scale)[0]


def _fused_rms_norm(
    recorder: Recorder,
    input: torch.Tensor,
    normalized_shape: Any,
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """One kernel forward and one backward, as torch 2.9 and later have on GPUs."""
    weights = () if weight is None else (weight,)
    made: torch.Tensor = _RmsNorm.apply(recorder, input, *weights)  # type: ignore[no-untyped-call]
    return made


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recorder: Recorder, *operands: torch.Tensor) -> torch.Tensor:
        ctx.recorder = recorder
        ctx.save_for_backward(*operands)
        result = torch.empty_like(operands[0])
        recorder.note("rms_norm", operands, (result,))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        operands = ctx.saved_tensors
        results = tuple(torch.empty_like(operand) for operand in operands)
        ctx.recorder.note("rms_norm_backward", (gradient, *operands), results)
        return None, *results
