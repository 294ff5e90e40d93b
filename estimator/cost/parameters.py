"""Files of fitted parameters: one .npz of arrays with a header of all scalars, and no pickle.

The header is JSON, as bytes in the array ``header``. The same arrays and scalars give the same
bytes: neither a clock nor an order of hashing enters.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from estimator.cost.kernels import KernelModel

Arrays = Mapping[str, NDArray[Any]]
BROKEN = (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile)
"""What reading a file of something else may raise."""


def pack(form: str, header: Mapping[str, Any], arrays: Arrays) -> bytes:
    """The bytes of a file; ``form`` says which model it is of."""
    text = json.dumps({"form": form, **header}, sort_keys=True)
    file = io.BytesIO()
    scalars = np.frombuffer(text.encode(), dtype=np.uint8)
    np.savez_compressed(file, header=scalars, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def unpack(path: str | Path, form: str) -> tuple[dict[str, Any], Arrays]:
    """Header and arrays of a file, each array read when it is asked for.

    Raises:
        ValueError: the file is not one of this form.
    """
    header, arrays = _open(path)
    if header["form"] != form:
        raise ValueError(f"{path} has parameters of form {header['form']}, not {form}")
    return header, arrays


def load_kernels(path: str | Path) -> KernelModel:
    """The kernel model of a file that ``trainplan fit kernels`` wrote, whichever its form.

    Raises:
        ValueError: the file is not one of these.
    """
    form = _open(path)[0]["form"]
    if form == "surfaces":
        from estimator.cost.surface import load_surfaces

        return load_surfaces(path)
    if form == "regression":
        from estimator.cost.regression import load_regression

        return load_regression(path)
    if form == "tiles":
        from estimator.cost.tiles import load_tiles

        return load_tiles(path)
    raise ValueError(f"{path} has parameters of unknown form {form}")


def _open(path: str | Path) -> tuple[dict[str, Any], Arrays]:
    try:
        with open(path, "rb") as opened:
            arrays: Arrays = np.load(io.BytesIO(opened.read()), allow_pickle=False)
        header = json.loads(arrays["header"].tobytes())
        if not isinstance(header.get("form"), str):
            raise ValueError("its header names no form")
    except FileNotFoundError:
        raise ValueError(f"{path} is not a file; write one with trainplan fit kernels") from None
    except (*BROKEN, AttributeError) as error:
        raise ValueError(f"{path} is not a file of kernel parameters: {error}") from error
    return header, arrays


def load_torch() -> Any:
    """PyTorch, which fitting networks needs; ``ValueError`` says how to get it."""
    try:
        import torch
    except ImportError as error:
        raise ValueError("fitting needs torch; pip install 'trainplan[learn]'") from error
    # One thread: the sums of more come in no fixed order, and small layers gain nothing.
    torch.set_num_threads(1)
    return torch
