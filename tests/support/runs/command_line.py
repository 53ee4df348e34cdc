"""The installed `treadle` as its users see it: processes, exit codes, streams."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from support.runs.processes import end_family

TREADLE = str(Path(sys.executable).with_name("treadle"))
END_S = 120.0
"""Only a command that hangs takes longer."""
_HIDDEN = ("PREFECT_API_URL", "TREADLE_ROOT", "TREADLE_CACHE", "COLUMNS", "NO_COLOR", "FORCE_COLOR")

CONFIG = """
[models.tutor]
model = "treadle-tutor"
endpoints = [{{ url = "{url}" }}]

[questions]
sources = [{{ path = "questions.jsonl", dataset = "sums", domain = "math" }}]

[environment]
python.enabled = {python}
python.sandbox = {{ packages = [], pool_size = 1 }}
search.enabled = false

[scores]
symbolic = false
"""
QUESTIONS = [
    {"question": f"Divrubu lays {rows} rows of 12 tiles and {rows} more tiles. How many tiles is that?", "answer": "1"}
    for rows in (3, 4, 5)
]


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Return its output parsed as JSON."""
        return json.loads(self.out)

    def failed(self, *words: str, code: int | None = None) -> str:
        """Check the error line: it starts with the program, contains the words, and is the last one."""
        lines = [line for line in self.err.splitlines() if line.startswith("treadle:")]
        assert len(lines) == 1 and self.err.splitlines()[-1] == lines[0], self.err
        assert "Traceback" not in self.err and "unexpected" not in lines[0] and "\x1b" not in self.err, self.err
        assert self.code != 0 and code in (None, self.code), (self.code, lines)
        for word in words:
            assert word in lines[0], lines[0]
        return lines[0]

    def succeeded(self) -> Done:
        """Itself, if it did."""
        assert self.code == 0, self.err
        return self


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a command: ours, without what changes how it behaves."""
    return {**{name: value for name, value in os.environ.items() if name not in _HIDDEN}, **more}


@cache
def _warm() -> subprocess.Popen[str]:
    """Return the forking process; it ends with ours, by the end of its input."""
    script = Path(__file__).with_name("warm_treadle.py")
    return subprocess.Popen(
        [sys.executable, str(script)], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@dataclass(frozen=True)
class Desk:
    """A folder in which a user works, with a config file and questions."""

    folder: Path

    def treadle(self, *arguments: str, file_bytes: int = 0, **env: str) -> Done:
        """Run a command to its end in a fork of a process that has imported it; `file_bytes` limits its files."""
        request = {
            "argv": arguments, "folder": str(self.folder), "env": environment(**env), "file_bytes": file_bytes,
        }  # fmt: skip
        server = _warm()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return Done(code, (self.folder / ".out").read_bytes().decode(), (self.folder / ".err").read_bytes().decode())

    def alone(self, *arguments: str, prepare: Callable[[], None] | None = None, **env: str) -> Done:
        """Run the installed program to its end; `prepare` is called in the new process before it."""
        ended = subprocess.run(
            [TREADLE, *arguments],
            cwd=self.folder, env=environment(**env), preexec_fn=prepare, capture_output=True, timeout=END_S,
        )  # fmt: skip
        return Done(ended.returncode, ended.stdout.decode(), ended.stderr.decode())

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Yield a command that is still running; its streams go to files `out` and `err`."""
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [TREADLE, *arguments], cwd=self.folder, env=environment(), stdout=out, stderr=err
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    end_family(process)

    def ended(self, process: subprocess.Popen[bytes], limit_s: float = END_S) -> Done:
        """Return the end of a started command."""
        code = process.wait(timeout=limit_s)
        return Done(code, (self.folder / "out").read_text(), (self.folder / "err").read_text())

    def write(self, name: str, *rows: dict[str, Any] | bytes) -> None:
        """Write a JSON Lines file; bytes are written verbatim."""
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        (self.folder / name).write_bytes(b"".join(line + b"\n" for line in lines))

    def tree(self) -> set[str]:
        """All files and folders below."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}

    def rows(self, run_id: str, address: str, kind: str) -> list[dict[str, Any]]:
        """Rows of a table that a stage wrote."""
        import pyarrow.parquet as pq

        record = json.loads((self.folder / f"outputs/runs/{run_id}/records/{address}.json").read_text())
        folder = self.folder / "outputs/artifacts" / kind / record["outputs"][kind]["digest"]
        return [
            row
            for part in sorted(folder.glob("data/part-*.parquet"))
            for row in pq.ParquetFile(part).read().to_pylist()
        ]


def set_up(folder: Path, url: str, *, python: bool = False) -> Desk:
    """Return a desk whose configuration names a server."""
    folder.mkdir(exist_ok=True)
    desk = Desk(folder)
    (folder / "run.toml").write_text(CONFIG.format(url=url, python=str(python).lower()))
    desk.write("questions.jsonl", *QUESTIONS)
    return desk


@contextmanager
def tutor(*arguments: str) -> Iterator[str]:
    """Start a tutor process; yield its URL."""
    command = [TREADLE, "tutor", "--persona", "strong", *arguments]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.send_signal(signal.SIGTERM)


def num_requests(url: str) -> int:
    """Return how many completions a tutor has been asked for."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/log/counts", timeout=120) as response:
        return int(json.load(response)["requests"])


def without_override() -> None:
    """In a child: give up root's right to pass over permissions, so that a read-only folder is one for root too."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
