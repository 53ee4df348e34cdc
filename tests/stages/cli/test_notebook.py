"""The notebook of the docs, executed by a real kernel."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[3] / "docs/notebooks/evaluate.ipynb"


def output_of(cell: nbformat.NotebookNode, kind: str) -> str:
    """Return a cell's result in a format such as `text/html`."""
    return "".join(one["data"][kind] for one in cell.outputs if kind in one.get("data", {}))


def test_notebook_evaluates_a_file_and_shows_its_rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the committed notebook has no outputs"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (reply,) = [cell for cell in notebook.cells if "chat.completions" in cell.source]
    assert "<search>book Vorna written by</search>" in output_of(reply, "text/plain")
    (frame,) = [cell for cell in notebook.cells if "run.rollouts()" in cell.source]
    assert "Who wrote the book Vorna?" in output_of(frame, "text/html") and "Ilme" in output_of(frame, "text/html")
    (plot,) = [cell for cell in notebook.cells if "matplotlib" in cell.source]
    assert output_of(plot, "image/png")
    (trajectory,) = [cell for cell in notebook.cells if "run.trajectory" in cell.source]
    shown = output_of(trajectory, "text/html")
    assert "&lt;search&gt;" in shown and "<search>" not in shown
