"""YAML that people wrote, read safely: bounded, no aliases, no duplicate keys, one-line errors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

LARGEST_FILE = 1_000_000
"""Bytes; the catalogue's own files have two thousand."""


def read_mapping(path: Path) -> dict[str, Any]:
    """The top-level mapping of a YAML file, of plain values only.

    Raises:
        ValueError: one line ``file: rule; remedy`` for a file that is missing, no regular file,
            too large, not UTF-8, not YAML, no mapping, or that uses aliases or repeats a key.
    """
    import yaml

    text = read_text(path)
    try:
        content = yaml.load(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise fault(path, f"{where}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise fault(path, f"not YAML that can be read: {error}") from None
    except RecursionError:
        raise fault(path, "is nested too deeply; an entry needs three levels") from None
    if not isinstance(content, dict):
        found = "nothing" if content is None else f"a {type(content).__name__}"
        raise fault(path, f"holds {found}; it must hold fields, one 'field: value' a line")
    for key in content:
        if not isinstance(key, str):
            raise fault(path, f"field name {short(key)} must be a word")
    return content


def fault(path: Path, rule: str) -> ValueError:
    """The error that a file earns: ``file: rule``, on one line, a long path cut at its front."""
    name = str(path)
    return ValueError(one_line(f"{name if len(name) <= 200 else '...' + name[-197:]}: {rule}"))


def one_line(text: str) -> str:
    """The text on one line that a terminal shows as it is: no newline, no control character."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def short(value: object) -> str:
    """The value as Python writes it, cut to fit into an error."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."


def read_text(path: Path, wanted: str = "a .yaml file") -> str:
    """The text of a file that people wrote.

    Raises:
        ValueError: one line that asks for what is ``wanted``, for a file that is missing, no
            regular file, too large or not UTF-8.
    """
    try:
        if not path.exists():
            raise fault(path, "no such file; check the path, or use a catalogue name")
        if not path.is_file():
            raise fault(path, f"is not a regular file; name {wanted}")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise fault(path, f"{reason}; check the path") from None
    if len(content) > LARGEST_FILE:
        raise fault(path, f"is larger than {LARGEST_FILE // 10**6} MB; name {wanted}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise fault(path, f"is not UTF-8 text; name {wanted}") from None


def _loader() -> type[yaml.SafeLoader]:
    """A ``SafeLoader`` without anchors (so no alias bombs), merge keys and repeated keys.

    Made on demand, so that importing the catalogue does not import yaml.
    """
    import yaml

    class Strict(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            event = self.peek_event()  # type: ignore[no-untyped-call]
            if getattr(event, "anchor", None) is not None:
                raise yaml.composer.ComposerError(
                    None,
                    None,
                    "anchors and aliases are not allowed; write it out",
                    event.start_mark,
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = set()
            for key, _ in node.value:
                if key.value == "<<" or str(key.value) in keys:
                    raise yaml.constructor.ConstructorError(
                        None,
                        None,
                        f"field {str(key.value)!r} is given twice or merged; write it once",
                        key.start_mark,
                    )
                keys.add(str(key.value))
            return super().construct_mapping(node, deep)

    return Strict
