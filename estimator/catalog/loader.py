"""One loader for catalogue entries and for a user's own files."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from estimator.catalog.reading import fault, read_mapping, short
from estimator.cluster import Device, Link
from estimator.model import Transformer
from estimator.stack import Stack

if TYPE_CHECKING:
    from estimator.catalog.schema import TransformerEntry

Kind = Literal["models", "devices", "clusters", "stacks", "links", "collectives"]
Reference = str | os.PathLike[str]
"""The name of a catalogue entry, or the path of a YAML file (of a model, also a config.json)."""

_HERE = Path(__file__).parent


def names(kind: str) -> list[str]:
    """The catalogue's entries of a kind, sorted; ``ValueError`` for an unknown kind."""
    if kind not in get_args(Kind):
        raise ValueError(f"unknown kind {short(kind)}; use one of {', '.join(get_args(Kind))}")
    return sorted(path.stem for path in (_HERE / kind).glob("*.yaml"))


def load_model(name_or_path: Reference) -> Transformer:
    """A model by name or file; a ``.json`` file is read as Hugging Face's ``config.json``.

    Every fault is a ``ValueError`` of one line.
    """
    if _is_config(name_or_path):
        from estimator.huggingface import model_of

        return model_of(name_or_path)
    entry, path = _model_entry(name_or_path)
    try:
        return entry.noun()
    except ValueError as error:
        raise fault(path, str(error)) from None


def published_parameters(name_or_path: Reference) -> int | None:
    """Parameters as the model's publisher counts them; ``None`` where the file does not say."""
    if _is_config(name_or_path):
        return None
    return _model_entry(name_or_path)[0].published_parameters


def published_active_parameters(name_or_path: Reference) -> int | None:
    """Parameters that one token visits, likewise; whether embeddings count differs."""
    if _is_config(name_or_path):
        return None
    return _model_entry(name_or_path)[0].published_active_parameters


def load_device(name_or_path: Reference) -> Device:
    """A device by name or file. Every fault is a ``ValueError`` of one line."""
    from estimator.catalog.check import check
    from estimator.catalog.schema import DeviceEntry

    path = locate("devices", name_or_path)
    return check(read_mapping(path), DeviceEntry, path).noun()


def load_link(name_or_path: Reference, *, gpus_per_node: int = 8) -> Link:
    """A link by name or file; ``gpus_per_node`` share its NICs where it counts NICs."""
    from estimator.catalog.check import check
    from estimator.catalog.schema import LinkEntry

    path = locate("links", name_or_path)
    return check(read_mapping(path), LinkEntry, path).noun(gpus_per_node)


def load_stack(name_or_path: Reference, *, calibrated: bool = True) -> Stack:
    """A framework's habits by name or file. Every fault is a ``ValueError`` of one line.

    A file may say ``extends: megatron`` and state only what differs. What it has under
    ``calibrated`` was fitted to runs: no other file inherits it, and ``calibrated=False`` leaves it
    out.
    """
    from estimator.catalog.check import check
    from estimator.catalog.schema import StackEntry

    path = locate("stacks", name_or_path)
    values, sources = _stack_fields(path, calibrated)
    return check(values, StackEntry, path).noun(sources)


def locate(kind: Kind, given: Reference, folder: Path | None = None) -> Path:
    """The file of an entry; a path inside another file starts, and stays, in its ``folder``.

    Raises:
        ValueError: for an unknown name (with the nearest ones), or a path that leaves ``folder``.
    """
    if not isinstance(given, str | os.PathLike):
        raise ValueError(f"{kind[:-1]} must be a name or the path of a file, not {short(given)}")
    if isinstance(given, str) and not is_path(given):
        if given not in names(kind):
            raise ValueError(unknown(kind, given, names(kind)))
        return _HERE / kind / f"{given}.yaml"
    if folder is None:
        return Path(given)
    try:
        path = folder / given
        stays = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):
        stays = False
    if not stays:
        raise ValueError(f"path {short(str(given))} leads out of {folder}; keep the file inside")
    return path


def is_path(text: str) -> bool:
    """Whether a reference is a path rather than a name."""
    return text.lower().endswith((".yaml", ".yml")) or "/" in text or os.sep in text


def unknown(kind: Kind, given: str, known: list[str]) -> str:
    """What to say of a name that the catalogue does not have."""
    near = difflib.get_close_matches(given.lower(), known, 3, 0.4)
    hint = f"nearest: {', '.join(near)}; " if near else ""
    listed = f"trainplan catalog {kind}"
    if kind in ("links", "collectives"):
        listed = ", ".join(known)
    return f"unknown {kind[:-1]} {short(given)}; {hint}all: {listed}"


def _is_config(given: Reference) -> bool:
    """Whether it is the path of a ``config.json`` rather than an entry."""
    return isinstance(given, str | os.PathLike) and os.fspath(given).lower().endswith(".json")


def _model_entry(given: Reference) -> tuple[TransformerEntry, Path]:
    from estimator.catalog.check import check
    from estimator.catalog.schema import TransformerEntry

    path = locate("models", given)
    return check(read_mapping(path), TransformerEntry, path), path


def _stack_fields(path: Path, calibrated: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a stack's fields, and where each comes from."""
    from estimator.catalog.schema import UNSAID

    content = read_mapping(path)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if "extends" in content:
        base = content.pop("extends")
        if base not in names("stacks"):
            hint = unknown("stacks", str(base), names("stacks"))
            raise fault(path, f"extends: {hint}")
        values, sources = _stack_fields(_HERE / "stacks" / f"{base}.yaml", calibrated=False)
        values.pop("calibration", None)  # of the base's own numbers, which may differ here
    general = content.pop("source", UNSAID)
    fitted = content.pop("calibrated", {})
    if not isinstance(fitted, dict):
        raise fault(path, "calibrated: takes fields of a stack")
    if calibrated:
        twice = sorted({"calibration"} & content.keys() & fitted.keys())
        if twice:
            raise fault(path, f"calibrated: {twice[0]} stands outside of it as well; keep one")
        content |= fitted
    for field, given in content.items():
        if isinstance(given, dict) and "value" in given:
            source = given.get("source")
            if set(given) != {"value", "source"} or not isinstance(source, str) or not source:
                raise fault(path, f"{field}: takes a value and a source in words")
            values[field], sources[field] = given["value"], source
        else:
            values[field], sources[field] = given, str(general)
    for field in ("name", "calibration"):
        sources.pop(field, None)
    return values, sources
