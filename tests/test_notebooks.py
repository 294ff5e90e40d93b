"""Every notebook runs from top to bottom, and is committed without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
SECONDS_PER_CELL = 120
"""Only ends a cell that hangs; the whole of a notebook takes some seconds."""

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def stored(notebook: nbformat.NotebookNode) -> list[int]:
    """Positions of cells that hold an output or an execution count."""
    return [
        position
        for position, cell in enumerate(notebook.cells)
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count is not None)
    ]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def test_stored_outputs_are_found() -> None:
    cells = [
        nbformat.v4.new_markdown_cell("words"),
        nbformat.v4.new_code_cell("1 + 1"),
        nbformat.v4.new_code_cell("1 + 1", execution_count=1),
        nbformat.v4.new_code_cell("1 + 1", outputs=[nbformat.v4.new_output("stream", text="2")]),
    ]
    assert stored(nbformat.v4.new_notebook(cells=cells)) == [2, 3]


@each_notebook
def test_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not stored(notebook)


# The kernel's machinery warns of its own affairs; the notebook runs in another process.
@pytest.mark.filterwarnings("ignore")
@each_notebook
def test_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    NotebookClient(
        notebook, timeout=SECONDS_PER_CELL, kernel_name="python3", resources=where
    ).execute()
    assert any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
