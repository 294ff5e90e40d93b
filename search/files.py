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
    save_all({target: data})


def save_all(files: Mapping[str, bytes]) -> None:
    """Write all files or, where one cannot be, none; links are followed, pipes written to.

    ``-`` is standard output, written when the files are.

    Raises ``ValueError`` naming the file that cannot be written.
    """
    ready: list[tuple[str, Path]] = []
    target = ""
    try:
        for target, data in files.items():
            if target == "-":
                continue
            path = Path(os.path.realpath(target))  # through links: replace what they point to
            if path.exists() and not path.is_file():
                path.write_bytes(data)  # a pipe or a device cannot be replaced
                continue
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            ready.append((name, path))
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(name, 0o666 & ~_umask())
        while ready:
            target = str(ready[0][1])
            os.replace(*ready[0])
            ready.pop(0)
    except OSError as error:
        raise ValueError(f"cannot write {target}: {error.strerror}; name another file") from None
    finally:
        for name, _ in ready:
            os.unlink(name)
    if "-" in files:
        sys.stdout.write(files["-"].decode())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
