"""FlashRAG in an environment of its own, below Treadle's cache, and its answers over a folder.

python tests/parity/environment.py FOLDER       # make all that FlashRAG makes, from corpus.jsonl and job.json
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treadle.core.engines.cache import cache_lock, cache_root

_HERE = Path(__file__).parent
_REQUIREMENTS = _HERE / "requirements-flashrag.txt"
METHODS = ("e5", "bge", "bm25")


def python_of_flashrag() -> Path:
    """Return the interpreter of the environment, which is built first if it is missing (1.8 GB)."""
    digest = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()[:12]
    home = cache_root() / "envs" / f"flashrag-{digest}"
    python, done = home / "bin" / "python", home / ".complete"
    with cache_lock(home):
        if not done.exists():
            print(f"installing FlashRAG into {home}", file=sys.stderr, flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True, env=_environ())
            install = ["-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
            subprocess.run([str(python), *install, "-r", str(_REQUIREMENTS)], check=True, env=_environ())
            done.touch()
    return python


def flashrag(folder: Path, task: str, names: Sequence[str]) -> dict[str, Any]:
    """Let FlashRAG `build` indexes or answer questions (`ask`); see flashrag_side.py."""
    command = [str(python_of_flashrag()), str(_HERE / "flashrag_side.py"), str(folder), task, *names]
    with tempfile.TemporaryDirectory() as cache:
        own = {"HF_HOME": cache, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**_environ(), **own})
    if done.returncode:
        raise RuntimeError(f"FlashRAG cannot {task} {' '.join(names)}:\n{done.stderr[-4000:]}")
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def answer_all(folder: Path) -> dict[str, Any]:
    """Build every index and answer every question of `job.json`."""
    flashrag(folder, "build", METHODS)
    return flashrag(folder, "ask", list(json.loads((folder / "job.json").read_text())))


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def main() -> None:
    """Regenerate what tests/unit compares with."""
    folder = Path(sys.argv[1])
    answers = answer_all(folder)
    lines = [f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, found)) + "\n]" for name, found in answers.items()]
    (folder / "answers.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
