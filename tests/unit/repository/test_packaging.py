"""The folder names are in three places; these tests keep them equal."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
HEAVY = (
    "prefect",
    "pydantic",
    "torch",
    "datasets",
    "tantivy",
    "faiss",
    "bm25s",
    "math_verify",
    "sympy",
    "datasketch",
    "pyarrow",
    "rich.progress",
    "matplotlib",
    "yaml",
)


def test_every_python_folder_is_packaged() -> None:
    on_disk = {
        "treadle." + ".".join(init.parent.relative_to(ROOT).parts)
        for folder in SETUPTOOLS["package-dir"].values()
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert on_disk == set(SETUPTOOLS["packages"])


def test_type_checker_links_match() -> None:
    links = {link.name: link.resolve() for link in (ROOT / "typings" / "treadle").iterdir() if link.is_symlink()}
    assert links == {name.removeprefix("treadle."): ROOT / d for name, d in SETUPTOOLS["package-dir"].items()}


def test_every_package_is_marked_as_typed() -> None:
    for folder in SETUPTOOLS["package-dir"].values():
        assert (ROOT / folder / "py.typed").exists(), folder


def test_no_flow_file_is_named_like_a_package() -> None:
    """Prefect loads `flows/x.py:f` as a top-level module called `x`."""
    stems = {path.stem for path in (ROOT / "flows").glob("*.py")} - {"__init__"}
    assert not stems & {"treadle", "datasets", "prefect", "torch", "trl", "verl", "vllm", *SETUPTOOLS["package-dir"]}


def test_the_command_line_starts_without_heavy_modules() -> None:
    code = f"import sys, treadle.cli.main; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"


def test_lock_names_no_index_and_pins_every_line() -> None:
    lines = (ROOT / "requirements.lock").read_text().split("\n")
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 150 and all(
        re.fullmatch(r"[\w.-]+==[\w.!]+( --hash=sha256:[0-9a-f]{64})+", line) for line in pins
    )
