"""Secrets stay out of Prefect, and nothing remains of a flow run whose own process, or whose worker, is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.runs.endless_agent import NAME
from support.runs.processes import Seen, family, remaining, until
from support.servers.prefect_api import ask
from support.sweep import sampled

from treadle.core.llm.client import KEY_MARK

TESTS = Path(__file__).resolve().parents[1]
CANARIES = {
    name: f"canary/{name.lower()}/0123456789"
    for name in ("OPENAI_API_KEY", "MY_MODEL", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN")
}
CONFIG = """
[models.it]
{model}

[questions]
sources = [{{ path = "{folder}/questions.jsonl", dataset = "sums", domain = "math" }}]

[rollouts]
pending_retries = 0

[environment]
search.enabled = false
python = {{ time_limit_s = 600, sandbox = {{ packages = [], pool_size = 1 }} }}
"""
ENDLESS = 'model = "treadle-tutor"\nserver = { type = "tutor", module = "support.runs.endless_agent" }'


class Echo(BaseHTTPRequestHandler):
    """Takes the three requests of the check before the run is made; then refuses in words that repeat the key."""

    asked = 0

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Echo.asked += 1
        if Echo.asked <= 3:
            usage = {"prompt_tokens": 1, "completion_tokens": 1}
            self.answer(200, {"choices": [{"text": "xyz", "finish_reason": "stop"}], "usage": usage})
        else:
            self.answer(401, {"error": {"message": f"Incorrect API key: {self.headers['Authorization']}"}})

    def answer(self, status: int, value: object) -> None:
        body = json.dumps(value).replace("/", "\\/").encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def echo() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


@pytest.fixture(scope="module")
def deployment(prefect_home) -> str:
    """Create a second deployment of the whole flow, on a pool of its own."""
    ask("POST", f"{prefect_home.url}/work_pools/", {"name": "doomed", "type": "process", "base_job_template": {}})
    full = ask("GET", f"{prefect_home.url}/deployments/name/flywheel/full")
    copied = ("flow_id", "entrypoint", "path", "pull_steps", "parameter_openapi_schema", "job_variables")
    body = {"name": "doomed", "work_pool_name": "doomed", **{name: full[name] for name in copied}}
    return str(ask("POST", f"{prefect_home.url}/deployments/", body)["id"])


@pytest.fixture(scope="module")
def worker(prefect_home, background, deployment) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a worker of that pool, with secrets in its environment."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    argv = ("prefect", "worker", "start", "--pool", "doomed")
    with background(prefect_home, *argv, log="doomed.log", PYTHONPATH=path, **CANARIES) as process:
        yield process


def submit(prefect_home, deployment: str, folder: Path, model: str) -> str:
    """Ask for a run of the flow in a folder; returns the id of the flow run."""
    (folder / "questions.jsonl").write_text('{"question": "How much is 2 plus 3?", "answer": "5"}\n')
    (folder / "run.toml").write_text(CONFIG.format(folder=folder, model=model))
    parameters = {"run_id": "r", "config_file": str(folder / "run.toml"), "root": str(folder / "outputs")}
    asked = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
    return str(ask("POST", f"{prefect_home.url}/deployments/{deployment}/create_flow_run", asked)["id"])


def test_no_secret_reaches_prefect_or_the_root(prefect_home, deployment, worker, echo: str, tmp_path: Path) -> None:
    endpoint = f'{{ url = "{echo}", api_key_env = "MY_MODEL" }}'
    flow_run = submit(prefect_home, deployment, tmp_path, f'model = "m"\nendpoints = [{endpoint}]')

    def state() -> str:
        return str(ask("GET", f"{prefect_home.url}/flow_runs/{flow_run}")["state"]["type"])

    until(lambda: state() in ("FAILED", "CRASHED", "COMPLETED"), "the flow run ends", 60.0, 0.1)
    until(lambda: not family(worker.pid), "its process ends", 60.0, 0.05)
    assert state() == "FAILED"
    message = ask("GET", f"{prefect_home.url}/flow_runs/{flow_run}")["state"]["message"]
    assert "Incorrect API key" in message and "\n" not in message
    ours = {"logs": {"flow_run_id": {"any_": [flow_run]}}, "limit": 200}
    errors = [log["message"] for log in ask("POST", f"{prefect_home.url}/logs/filter", ours) if log["level"] >= 40]
    assert errors and not any("Traceback" in error for error in errors), errors
    database = {path: path.read_bytes() for path in prefect_home.logs.glob("*.db*")}
    # The key would appear in these if it leaked: state, log lines, the attempt.
    assert any(b"Incorrect API key: Bearer " + KEY_MARK in content for content in database.values())
    files = {path: path.read_bytes() for path in (tmp_path / "outputs").rglob("*") if path.is_file()}
    assert any(path.name == "log.txt" and KEY_MARK in content for path, content in files.items())
    for path, content in {**database, **files, **logs(prefect_home)}.items():
        for canary in CANARIES.values():
            assert canary.encode() not in content and canary.replace("/", "\\/").encode() not in content, path


def logs(prefect_home) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in prefect_home.logs.glob("*.log")}


def at_work(pid: int) -> list[Seen]:
    """Return all descendants of a worker once a program of the model runs there; empty until then."""
    members = family(pid)
    return members if sum(seen.name == NAME for seen in members) >= 2 else []


@pytest.mark.parametrize("victim", sampled(["flow run", "worker"], ["worker"]))
def test_no_process_remains_10_s_after_a_kill(prefect_home, deployment, worker, tmp_path: Path, victim: str) -> None:
    """The last ones here: the worker is killed in the end."""
    submit(prefect_home, deployment, tmp_path, ENDLESS)
    until(lambda: bool(at_work(worker.pid)), "a program is at work", 60.0, 0.05)
    members = family(worker.pid)
    (flow_run,) = [seen.pid for seen in members if seen.parent == worker.pid]
    killed = {"flow run": flow_run, "worker": worker.pid}[victim]
    os.kill(killed, signal.SIGKILL)
    # Of both, the worker lives on in one case, in the flow run's own group.
    living = worker.pid if victim == "flow run" else 0
    until(lambda: not remaining(members, but=living), f"the end of {[seen.name for seen in members]}", 10.0)
