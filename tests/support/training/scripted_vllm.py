"""A scripted vLLM for its own environment: answers every completion, and logs the arguments of each start."""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

STARTS = "TREADLE_SCRIPTED_STARTS"
"""Environment variable with the file that takes a JSON line per start: pid, name, model, gpus, args."""

BROKEN = "TREADLE_SCRIPTED_BROKEN"
"""Environment variable with a file; servers that were started before it appeared fail from then on."""


class Answers(BaseHTTPRequestHandler):
    """Answers "one" to everything."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"choices": [{"text": "one"}]}).encode()
        self.send_response(500 if _is_broken() and not BORN_LATE else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def _is_broken() -> bool:
    return Path(os.environ[BROKEN]).exists()


BORN_LATE = BROKEN in os.environ and _is_broken()


def main(arguments: list[str]) -> None:
    """Serve; `arguments` are those of `python`, in place of vLLM's server."""
    given = {name: value for name, value in zip(arguments, arguments[1:], strict=False) if name.startswith("--")}
    server = ThreadingHTTPServer(("127.0.0.1", int(given["--port"])), Answers)
    start = {
        "pid": os.getpid(),
        "name": given["--served-model-name"],
        "model": given["--model"],
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "args": arguments,
    }
    with Path(os.environ[STARTS]).open("a") as file:
        file.write(json.dumps(start) + "\n")
    server.serve_forever()


def install_scripted_vllm(cache: Path) -> dict[str, str]:
    """Let it be the engine `serve` of a cache of engines, in both builds; returns the variables that lead there."""
    from support.rollouts.scripted_environment import write_python

    from treadle.core.engines import environments

    files = {STARTS: str(cache / "starts.jsonl"), BROKEN: str(cache / "broken")}
    variables = {"TREADLE_CACHE": str(cache), **files}
    with patch.dict("os.environ", variables):
        folders = [environments.environment_path("serve", variant) for variant in ("cpu", "cuda")]
    for folder in folders:
        (folder / "bin").mkdir(parents=True)
        write_python(folder / "bin" / "python", SimpleNamespace(__name__="support.training.scripted_vllm"))  # type: ignore[arg-type]
        (folder / ".complete").touch()
    (cache / "starts.jsonl").touch()
    return variables


if __name__ == "__main__":
    main(sys.argv[1:])
