"""One way to run a Transformer (:class:`Plan`) and many of them as columns (:class:`Plans`)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray = NDArray[np.int64]

Schedule = Literal["gpipe", "1f1b", "zb-h1", "zb-h2"]
Recompute = Literal["none", "selective", "mlp", "full"]
Offload = Literal["none", "optimizer", "checkpoints", "both"]
Order = Literal["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]

CHOICES: dict[str, tuple[str, ...]] = {
    "schedule": ("gpipe", "1f1b", "zb-h1", "zb-h2"),
    "recompute": ("none", "selective", "mlp", "full"),
    "offload": ("none", "optimizer", "checkpoints", "both"),
    "order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
}
"""Words of the categorical fields; a column holds the word's index."""

HOST_OPTIMIZER = tuple(CHOICES["offload"].index(word) for word in ("optimizer", "both"))
HOST_CHECKPOINTS = tuple(CHOICES["offload"].index(word) for word in ("checkpoints", "both"))
"""Indices of the words of ``offload`` with which host memory holds either."""

OPTIONAL = {
    "etp",
    "first_stage_layers",
    "last_stage_layers",
    "recompute_layers",
    "shard_size",
    "overlap_grad",
    "overlap_param",
    "overlap_tp",
    "overlap_ep",
    "overlap_p2p",
}
"""Fields that may be ``None`` (decided by the others or by the stack); a column holds -1."""

FLAGS = {
    "sequence_parallel",
    "overlap_grad",
    "overlap_param",
    "overlap_tp",
    "overlap_ep",
    "overlap_p2p",
}
ALIASES = {"mbs": "micro_batch", "vpp": "interleave", "sp": "sequence_parallel"}
UNSET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to run a model. Every degree counts devices along its axis."""

    dp: int = 1
    """Data parallel: replicas of the model (shards of its states with ``zero``)."""
    tp: int = 1
    """Tensor parallel: devices that share each layer's matrices."""
    cp: int = 1
    """Context parallel: devices that share each sequence."""
    pp: int = 1
    """Pipeline parallel: stages."""
    ep: int = 1
    """Expert parallel: devices that share the experts (on the ranks of the other axes)."""
    etp: int | None = None
    """Tensor parallel degree of experts; ``None`` follows the stack."""
    micro_batch: int = 1
    """Sequences that one model replica handles at a time."""
    interleave: int = 1
    """Model chunks per pipeline stage (virtual stages)."""
    schedule: Schedule = "1f1b"
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    """Layers of the end stages; ``None`` splits as evenly as the layer count allows."""
    recompute: Recompute = "none"
    """What runs again in backward: nothing, the attention core, the MLP (or experts), or layers."""
    recompute_layers: int | None = None
    """With ``full``: layers per stage that are recomputed; ``None`` is all of them."""
    sequence_parallel: bool = False
    """Norms and residuals are split along the sequence over the tp ranks."""
    zero: int = 0
    """0 nothing sharded, 1 optimizer states, 2 and gradients, 3 and weights."""
    shard_size: int | None = None
    """Ranks of a sharding group; ``None`` is all of dp x cp (smaller is hybrid sharding)."""
    overlap_grad: bool | None = None
    overlap_param: bool | None = None
    overlap_tp: bool | None = None
    overlap_ep: bool | None = None
    overlap_p2p: bool | None = None
    """Communication that runs beside compute; ``None`` is the stack's habit."""
    offload: Offload = "none"
    """What host memory holds: optimizer states, which it updates; inputs of layers that run again,
    cut over tp (DeepSpeed's ``partition_activations`` and ``cpu_checkpointing``); or both."""
    order: Order = "tp-cp-ep-dp-pp"
    """Axes from innermost rank stride to outermost."""

    def __post_init__(self) -> None:
        for name, words in CHOICES.items():
            if getattr(self, name) not in words:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} must be one of {', '.join(words)}"
                )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in CHOICES or (value is None and field.name in OPTIONAL):
                continue
            least = 0 if field.name in FLAGS | {"zero", "recompute_layers"} else 1
            if not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{field.name}={value!r} must be a whole number from {least}")
        if self.zero > 3:
            raise ValueError(f"zero={self.zero} must be 0, 1, 2 or 3")

    @property
    def world(self) -> int:
        """Devices of a dense plan: dp x tp x cp x pp."""
        return self.dp * self.tp * self.cp * self.pp

    @classmethod
    def parse(cls, text: str, *, world: int | None = None) -> Plan:
        """Read ``tp=4,pp=8,mbs=1,...``; a missing ``dp`` is what is left of ``world``.

        Raises ``ValueError`` for an unknown field, a value of the wrong kind, or degrees that do
        not divide the world.
        """
        given: dict[str, Any] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, separator, value = (part.strip() for part in item.partition("="))
            if not separator:
                raise ValueError(f"plan item {item!r} must be written field=value")
            field = ALIASES.get(name, name)
            if field not in Plan.__dataclass_fields__:
                close = difflib.get_close_matches(name, [*Plan.__dataclass_fields__, *ALIASES], 3)
                hint = f"; did you mean {' or '.join(close)}?" if close else ""
                raise ValueError(f"{name!r} is not a field of a plan{hint}")
            if field in given:
                raise ValueError(f"plan field {field} is given twice")
            given[field] = parse_value(field, value)
        if "dp" not in given and world is not None:
            used = cls(**given).world
            if world % used:
                raise ValueError(
                    f"tp x cp x pp = {used} must divide the {world} GPUs of the cluster"
                )
            given["dp"] = world // used
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Every field by name, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """The plan as ``Plan.parse`` reads it, defaults left out."""
        default = Plan()
        return ",".join(
            f"{field.name}={format_value(getattr(self, field.name))}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
            or field.name in ("dp", "tp", "pp", "micro_batch")
        )


def parse_value(field: str, text: str) -> Any:
    """One plan value from its text; ``ValueError`` says which words or numbers are allowed."""
    if field in CHOICES:
        if text not in CHOICES[field]:
            raise ValueError(f"{field}={text} must be one of {', '.join(CHOICES[field])}")
        return text
    if field in OPTIONAL and text.lower() == "none":
        return None
    if field in FLAGS:
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if text.lower() not in words:
            raise ValueError(f"{field}={text} must be true or false")
        return words[text.lower()]
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{field}={text} must be a whole number") from None


def format_value(value: Any) -> str:
    """The text that :func:`parse_value` reads back."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plans:
    """Columns of plans, each of shape (P,), int64. Words are indices of ``CHOICES``; -1 is None."""

    dp: IntArray
    tp: IntArray
    cp: IntArray
    pp: IntArray
    ep: IntArray
    etp: IntArray
    micro_batch: IntArray
    interleave: IntArray
    schedule: IntArray
    first_stage_layers: IntArray
    last_stage_layers: IntArray
    recompute: IntArray
    recompute_layers: IntArray
    sequence_parallel: IntArray
    zero: IntArray
    shard_size: IntArray
    overlap_grad: IntArray
    overlap_param: IntArray
    overlap_tp: IntArray
    overlap_ep: IntArray
    overlap_p2p: IntArray
    offload: IntArray
    order: IntArray

    @classmethod
    def build(cls, **columns: ArrayLike) -> Plans:
        """Columns (broadcast against each other) for the given fields, defaults for the rest."""
        unknown = set(columns) - set(NAMES)
        if unknown:
            raise ValueError(f"{', '.join(sorted(unknown))} is not a field of a plan")
        arrays = {name: np.asarray(column, dtype=np.int64) for name, column in columns.items()}
        shape = np.broadcast_shapes((1,), *(array.shape for array in arrays.values()))
        return cls(
            **{
                name: np.broadcast_to(arrays[name], shape)
                if name in arrays
                else np.full(shape, code(name, getattr(_DEFAULT, name)), dtype=np.int64)
                for name in NAMES
            }
        )

    @classmethod
    def of(cls, plans: Iterable[Plan]) -> Plans:
        """Lift single plans to columns; ``ValueError`` when there is none."""
        rows = list(plans)
        if not rows:
            raise ValueError("no plan given")
        return cls.build(
            **{name: [code(name, getattr(row, name)) for row in rows] for name in NAMES}
        )

    @classmethod
    def concat(cls, parts: Iterable[Plans]) -> Plans:
        """One table from several, in order."""
        tables = list(parts)
        return cls(**{name: np.concatenate([getattr(t, name) for t in tables]) for name in NAMES})

    def __len__(self) -> int:
        return len(self.dp)

    def __iter__(self) -> Iterator[Plan]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice | NDArray[Any]) -> Plans: ...
    def __getitem__(self, index: int | slice | NDArray[Any]) -> Plan | Plans:
        """A row as a :class:`Plan`, or the selected rows as columns."""
        if isinstance(index, int | np.integer):
            return Plan(**{name: word(name, int(getattr(self, name)[index])) for name in NAMES})
        return Plans(**{name: getattr(self, name)[index] for name in NAMES})

    @property
    def world(self) -> IntArray:
        """Devices of each plan, shape (P,)."""
        world: IntArray = self.dp * self.tp * self.cp * self.pp
        return world


def code(field: str, value: Any) -> int:
    """The integer that a column holds for ``value``."""
    if value is None:
        return UNSET
    return CHOICES[field].index(value) if field in CHOICES else int(value)


def word(field: str, number: int) -> Any:
    """The value of a plan's field from its column's integer."""
    if field in CHOICES:
        return CHOICES[field][number]
    if number == UNSET and field in OPTIONAL:
        return None
    return bool(number) if field in FLAGS else number


NAMES = tuple(field.name for field in fields(Plan))
_DEFAULT = Plan()
