"""The notebook of the docs, executed by a real kernel."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[3] / "docs/notebooks/evaluate.ipynb"


def output_of(notebook: nbformat.NotebookNode, source: str, kind: str) -> str:
    """Return the outputs, in a format such as `text/html`, of the only cell of code with this in its source."""
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    shown = [one["data"].get(kind, "") if "data" in one else one.get("text", "") for one in cell.outputs]
    return "".join(shown)


def test_notebook_evaluates_a_file_and_shows_its_rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Settings of the user's own Jupyter and IPython play no part.
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the committed notebook has no outputs"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert "<search>town of Dilzeta people</search>" in output_of(notebook, "chat.completions", "text/plain")
    assert "1/rollouts@treadle-tutor" in output_of(notebook, "evaluate(", "text/html"), "the run"
    frame = output_of(notebook, "run.rollouts()", "text/html")
    assert "How many people live in the town of Merzaru?" in frame and "8002" in frame
    assert "accuracy" in output_of(notebook, "run.report()", "text/html")
    trajectory = output_of(notebook, "run.trajectory", "text/html")
    assert "<details>" in trajectory and "lies on the river Vizkomo" in trajectory, "results of tools are folded"
    assert output_of(notebook, "%matplotlib", "image/png")
    assert "18 trajectories" in output_of(notebook, "run.action_space()", "text/html")
    assert sorted(os.listdir(tmp_path / "first-notebook")) == ["corpus.jsonl", "outputs", "questions.jsonl"]
