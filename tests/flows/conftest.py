"""A real Prefect server and process worker, in a home of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.scripted_environment import install_scripted_engine
from support.runs.processes import until
from support.servers.ports import free_port
from support.servers.prefect_api import ask

ROOT = Path(__file__).resolve().parents[2]
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
USED = ("full", "scores", *(["rl", "shards"] if os.environ.get("TREADLE_SWEEP") else []))
"""Deployments that tests run; the server takes a second of CPU time for each one that is created."""
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class PrefectHome:
    """A running server; `env` makes every Prefect command talk to it."""

    url: str
    env: dict[str, str]
    logs: Path

    def run(self, *argv: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / argv[0]), *argv[1:]],
            env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s,
        )  # fmt: skip

    def submit(self, deployment: str, **parameters: Any) -> str:
        """Ask for a flow run as `prefect deployment run` does, which takes four CPU seconds; return its id."""
        found = ask("GET", f"{self.url}/deployments/name/{deployment}")["id"]
        asked = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return str(ask("POST", f"{self.url}/deployments/{found}/create_flow_run", asked)["id"])

    def wait_for(self, flow_run: str, *states: str) -> dict[str, Any]:
        """Wait until a flow run is in one of some states, by their types; return its state."""

        def state() -> dict[str, Any]:
            return dict(ask("GET", f"{self.url}/flow_runs/{flow_run}")["state"])

        until(lambda: state()["type"] in states, f"the flow run is {states}", 600.0, 0.2)
        return state()

    def run_deployment(self, deployment: str, **parameters: Any) -> str:
        """Run a deployment to its end; return the flow run's id."""
        flow_run = self.submit(deployment, **parameters)
        ended = self.wait_for(flow_run, *ENDED)
        assert ended["type"] == "COMPLETED", ended
        return flow_run


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectHome]:
    """Yield a dedicated server with a worker on the pool of prefect.yaml, and the deployments that tests run."""
    home = tmp_path_factory.mktemp("prefect")
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    env = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOGGING_COLORS": "false",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "COLUMNS": "200",
        **install_scripted_engine(home / "engines"),
    }
    server = PrefectHome(url, env, home)
    with contextlib.ExitStack() as stack:
        stack.enter_context(process(server, "prefect", "server", "start", "--port", str(port)))
        wait_until(lambda: answers(f"{url}/health"), "the Prefect server", home / "prefect-server.log")
        pool = {"name": "local-process", "type": "process", "base_job_template": {}}
        ask("POST", f"{url}/work_pools/", pool)
        checked(server.run("prefect", "--no-prompt", "deploy", *(part for name in USED for part in ("--name", name))))
        stack.enter_context(process(server, "prefect", "worker", "start", "--pool", "local-process"))
        yield server


@contextlib.contextmanager
def process(server: PrefectHome, *argv: str, log: str = "", **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a background process, and end its whole group afterwards; `env` is added to the server's."""
    with (server.logs / (log or f"{argv[0]}-{argv[1]}.log")).open("wb") as output:
        child = subprocess.Popen(
            [str(BIN / argv[0]), *argv[1:]],
            env={**server.env, **env}, cwd=ROOT, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            yield child
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, 15)
            try:
                child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, 9)
                child.wait()


def checked(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.status == 200
    except OSError:
        return False


def wait_until(condition, what: str, log: Path, timeout_s: float = 300) -> None:
    """Poll until something holds; the bound only ends a test that hangs."""
    ends = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > ends:
            tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            raise AssertionError(f"{what} did not come up: {tail}")
        time.sleep(0.2)


@pytest.fixture(scope="session")
def sample_run_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small run over the sample world, whose tutor the run starts itself."""
    from treadle.demo.byte_tokenizer import write_byte_tokenizer
    from treadle.demo.world_files import write_world

    folder = tmp_path_factory.mktemp("world")
    world = write_world(folder, documents=100, questions=10, heldout_questions=10)
    tokenizer = write_byte_tokenizer(folder / "tokenizer")
    config = folder / "run.toml"
    config.write_text(f"""
[models.tutor]
model = "treadle-tutor"
server = {{ type = "tutor", persona = "noisy", tokenizer = "{tokenizer}" }}

[questions]
sources = [{{ path = "{world.questions}", source_field = "source", split_field = "split" }}]
domains = {{ world-lookup = "qa", world-compute = "math" }}

[environment]
search = {{ corpus = ["{world.corpus}"] }}
python = {{ sandbox = {{ packages = [], pool_size = 1 }} }}

[scores]
symbolic = false
""")
    return config


@pytest.fixture(scope="session")
def background() -> Callable[..., contextlib.AbstractContextManager[subprocess.Popen[bytes]]]:
    """Return a function that starts a further background process: see `process`."""
    return process
