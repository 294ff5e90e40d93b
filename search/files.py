"""Files that are whole or not there."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


def save(data: bytes, target: str) -> None:
    """Write UTF-8 text to a file (whole or not at all) or, for ``-``, to standard output.

    Raises ``ValueError`` where the file cannot be written.
    """
    if target == "-":
        sys.stdout.write(data.decode())
        return
    path = Path(os.path.realpath(target))  # through links: replace what they point to
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a pipe or a device cannot be replaced
            return
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ValueError(f"cannot write {target}: {error.strerror}; name another file") from None


def save_all(texts: Mapping[str, str]) -> None:
    """Write all files or, where one cannot be, none."""
    ready: list[tuple[str, Path]] = []
    try:
        for target, text in texts.items():
            path = Path(os.path.realpath(target))
            if path.is_dir():
                raise ValueError(f"cannot write {target}: it is a folder; name a file")
            try:
                handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
                ready.append((name, path))
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
                os.chmod(name, mode)
            except OSError as error:
                raise ValueError(
                    f"cannot write {target}: {error.strerror}; name another file"
                ) from None
        while ready:
            name, path = ready[0]
            os.replace(name, path)
            ready.pop(0)
    finally:
        for name, _ in ready:
            os.unlink(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
