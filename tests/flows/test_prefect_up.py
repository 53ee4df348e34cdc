"""`treadle prefect up` from a folder of its own, on PostgreSQL: what it sets up, and what is left when it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

import httpx
import pytest
from support.flow_chaos import true_within_s
from support.flow_site import PREFECT_MODULES, answers, command_of
from support.runs.command_line import TREADLE
from support.runs.endless_agent import NAME
from support.runs.processes import Seen, end_family, family, look, remaining, until
from support.servers.ports import free_port
from support.servers.postgres import Postgres, postgres_server
from support.servers.prefect_api import ask, credentials

from treadle.tasks.prefect.automations import FAILED, SILENT, STUCK
from treadle.tasks.prefect.server import _MIN_UPTIME_S
from treadle.tasks.prefect.settings import HEARTBEAT_TIMEOUT_S, START_TIMEOUT_S

TESTS = Path(__file__).resolve().parents[1]
SILENCE = float(os.environ.get("TREADLE_TEST_SILENCE_S", "10"))
"""How long a killed flow run has been silent when the server says so; the default is the least that Prefect takes."""
ENDLESS = """
[models.it]
model = "treadle-tutor"
server = {{ type = "tutor", module = "support.runs.endless_agent" }}

[questions]
sources = [{{ path = "{folder}/questions.jsonl", dataset = "sums", domain = "math" }}]

[environment]
search.enabled = false
python = {{ time_limit_s = 600, sandbox = {{ packages = [], pool_size = 1 }} }}
"""
BLOCK = """
import os, sys
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.blocks.system import Secret
from treadle.cli.commands.prefect import prefect
from treadle.tasks.config import TreadleConfig
from treadle.tasks.prefect.automations import install_automations
from treadle.tasks.prefect.flow_runs import begin_flow_run

hook = CustomWebhookNotificationBlock(name="hook", url=sys.argv[1], json_data={"text": "{{body}}"})
hook.save("hook", overwrite=True)
Secret(value="key-of-a-block").save("my-model", overwrite=True)
prefect(["deploy", "--notify-block", "custom-webhook/hook"], standalone_mode=False)
install_automations("custom-webhook/hook")
os.environ["GIVEN"] = "key-of-the-environment"
Secret(value="key-of-a-block").save("given", overwrite=True)
names = ("MY_MODEL", "GIVEN", "IN_NO_PLACE")
endpoints = [{"url": "http://127.0.0.1:9/v1", "api_key_env": name} for name in names]
begin_flow_run(TreadleConfig(models={"m": {"model": "m", "endpoints": endpoints}}), "r")
print(*(os.environ.get(name) for name in names))
"""


@dataclass(frozen=True)
class Up:
    """A started `treadle prefect up`."""

    process: subprocess.Popen[str]
    api: httpx.Client
    folder: Path
    env: dict[str, str]
    began: float
    """When its children had been started, by the monotonic clock."""

    @property
    def said(self) -> str:
        """Return what the command has printed."""
        return (self.folder / "up.log").read_text()

    def child(self, part: str) -> Seen:
        """Return the process of its server, or of its worker."""
        words = ["-m", PREFECT_MODULES[part]]
        (found,) = [seen for seen in family(self.process.pid) if command_of(seen.pid)[1:3] == words]
        return found

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Ask the API."""
        password = credentials(self.env["PREFECT_API_AUTH_STRING"])
        return ask("POST", f"{self.api.base_url}".rstrip("/") + path, body, auth=password)

    def submit(self, deployment: str, **parameters: Any) -> str:
        """Ask for a flow run; returns its id."""
        found = self.api.get(f"/deployments/name/{deployment}").json()["id"]
        asked = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return str(self.post(f"/deployments/{found}/create_flow_run", asked)["id"])

    def flow_run(self, flow_run: str) -> dict[str, Any]:
        return dict(self.api.get(f"/flow_runs/{flow_run}").json())

    def wait_for(self, flow_run: str, *states: str, limit_s: float = 120.0) -> dict[str, Any]:
        until(lambda: self.flow_run(flow_run)["state"]["name"] in states, f"{flow_run} is {states}", limit_s, 0.1)
        return self.flow_run(flow_run)


def start(
    folder: Path, home: Path, port: int, *options: str, output: IO[str] | int = subprocess.PIPE
) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """Return the command as a process, with its environment."""
    hidden = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_HOME", "TREADLE_ROOT")
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"PREFECT_HOME": str(home), "PYTHONPATH": path, "PREFECT_WORKER_QUERY_SECONDS": "1"}
    argv = [TREADLE, "prefect", "up", "--port", str(port), *options]
    process = subprocess.Popen(argv, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT, text=True)
    return process, env


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with postgres_server(free_port()) as server:
        yield server


@pytest.fixture(scope="module")
def up(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("elsewhere")
    port = free_port()
    log = folder / "up.log"
    with log.open("w") as output:
        process, env = start(folder, folder / "home", port, "--database", postgres.url, output=output)
    try:
        until(lambda: "Ctrl-C" in log.read_text() or process.poll() is not None, "Prefect is up", 300.0, 0.1)
        assert process.poll() is None, log.read_text()
        url = f"http://127.0.0.1:{port}/api"
        password = (folder / "home/treadle.password").read_text()
        with httpx.Client(base_url=url, timeout=30, auth=credentials(password)) as api:
            env |= {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": password}
            yield Up(process, api, folder, env, time.monotonic())
    finally:
        end_family(process)


@pytest.fixture(scope="module")
def edited(up: Up) -> dict[str, str]:
    """Edit deployments as users do in the UI, and spoil what Treadle sets of them; return their ids by name."""
    edited = {}
    for name, schedule in (("stage/report", {}), ("stage/scores", {"slug": "nightly"})):
        deployment = str(up.api.get(f"/deployments/name/{name}").json()["id"])
        patch = {"description": "spoilt", "parameters": {"run_id": "mine"}}
        assert up.api.patch(f"/deployments/{deployment}", json=patch).is_success
        daily = {"schedule": {"interval": 86400}, "active": False}
        up.post(f"/deployments/{deployment}/schedules", [daily | schedule])
        edited[name] = deployment
    return edited


@pytest.fixture(scope="module")
def messages(up: Up, edited: dict[str, str]) -> Iterator[list[str]]:
    """Return what the server's notification block has sent; the first reports how Secret blocks were used."""
    received: list[str] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/hook"
        done = subprocess.run(
            [sys.executable, "-c", BLOCK, url],
            cwd=up.folder, env=up.env, check=True, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert "notifications of failed and crashed flow runs go to custom-webhook/hook" in done.stdout
        received.append(done.stdout.splitlines()[-1])
        yield received
        server.shutdown()


def test_deployments_have_queues_typed_parameters_and_a_tag(up: Up) -> None:
    made = {item["name"]: item for item in up.post("/deployments/filter", {})}
    queues = {name: item["work_queue_name"] for name, item in made.items()}
    assert {name for name, queue in queues.items() if queue == "gpu"} == {
        "pools",
        "conversion",
        "exploration",
        "experience",
        "candidates",
        "advantages",
        "guided_rollouts",
        "dpo",
        "sft",
        "rl",
        "rollouts",
        "full-on-gpu",
    }
    assert {queues[name] for name in ("full", "questions", "report")} == {"default"}
    assert all(item["tags"] == ["treadle"] and item["status"] for item in made.values())
    assert all(item["enforce_parameter_schema"] for item in made.values())
    schema = made["full"]["parameter_openapi_schema"]
    assert "required" not in schema and {"run_id", "config_file"} <= schema["properties"].keys()
    assert made["questions"]["parameter_openapi_schema"]["required"] == ["run_id", "instance"]
    assert "TreadleConfig" in schema["definitions"]
    types = schema["definitions"]["AnyEnvironment"]["anyOf"]
    assert "search" in types[0]["properties"] and types[-2]["additionalProperties"]


def test_deploying_again_keeps_schedules_and_parameters(up: Up, edited: dict[str, str], messages: list[str]) -> None:
    for name, deployment in edited.items():
        made = up.api.get(f"/deployments/{deployment}").json()
        assert made["description"] not in ("", "spoilt"), name
        assert made["parameters"] == {"run_id": "mine"}
        (schedule,) = made["schedules"]
        assert schedule["schedule"]["interval"] == 86400
        assert (made["work_pool_name"], made["work_queue_name"]) == ("local-process", "default")


def test_second_start_reports_where_the_first_runs(up: Up) -> None:
    again, _ = start(up.folder, up.folder / "home", free_port())
    said, _ = again.communicate(timeout=60)
    address = str(up.api.base_url).removesuffix("/api/")
    assert again.returncode == 0 and said == f"already running: {address} (process {up.process.pid})\n"


def test_killed_flow_run_is_reported_and_resumes_on_retry(up: Up, messages: list[str], sample_run_config: Path) -> None:
    (up.folder / "run.toml").write_text(sample_run_config.read_text())
    flow_run = up.submit("flywheel/full", run_id="first", config_file="run.toml")
    os.kill(int(up.wait_for(flow_run, "Running")["infrastructure_pid"]), signal.SIGKILL)
    up.wait_for(flow_run, "Crashed")
    until(lambda: len(messages) > 1, "a message is sent", 60.0, 0.1)
    assert "first of flow flywheel is Crashed" in messages[1] and f"/{flow_run}" in messages[1]
    # The worker looks at its end a second time, and then means whatever runs under this id by that time.
    log = up.folder / "home/logs/worker.log"
    until(
        lambda: log.read_text().count("Check whether the flow run exceeded") == 2,
        "the worker is done with it",
        60.0,
        0.1,
    )
    # What the button "Retry" of the UI asks for.
    up.post(f"/flow_runs/{flow_run}/set_state", {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}})
    done = up.wait_for(flow_run, "Completed", "Failed")
    assert done["state"]["name"] == "Completed", done["state"]
    assert {"treadle", "run:first"} == set(done["tags"])
    assert (up.folder / "outputs/runs/first").is_dir()


def test_secret_block_replaces_an_unset_variable(messages: list[str]) -> None:
    assert messages[0] == "key-of-a-block key-of-the-environment None"


def test_repeated_installs_create_each_automation_once(up: Up, messages: list[str]) -> None:
    found = up.post("/automations/filter", {})
    assert sorted(item["name"] for item in found) == sorted([SILENT, STUCK, FAILED])
    within = {item["name"]: item["trigger"]["within"] for item in found}
    assert (within[SILENT], within[STUCK]) == (HEARTBEAT_TIMEOUT_S, START_TIMEOUT_S)


def test_flow_run_becomes_crashed_when_its_process_is_lost(up: Up) -> None:
    """One that no worker looks after; what Prefect itself never finds out."""
    (silent,) = [item for item in up.post("/automations/filter", {}) if item["name"] == SILENT]
    renew(up, silent, SILENCE)
    argv = [TREADLE, "run", str(endless(up.folder)), "--run", "lost"]
    process = subprocess.Popen(argv, cwd=up.folder, env=up.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asked = {"flow_runs": {"name": {"any_": ["lost"]}, "state": {"name": {"any_": ["Running"]}}}}
        until(lambda: bool(up.post("/flow_runs/filter", asked)), "the flow run begins", 120.0, 0.1)
        (flow_run,) = up.post("/flow_runs/filter", asked)
        assert "treadle" in flow_run["tags"]
        until(lambda: heartbeats(up, flow_run["id"]) > 0, "a sign of life", 60.0, 0.1)
    finally:
        end_family(process)
    crashed = up.wait_for(flow_run["id"], "Crashed", limit_s=true_within_s(SILENCE))
    assert "No heartbeat for" in crashed["state"]["message"]
    renew(up, silent, HEARTBEAT_TIMEOUT_S)


def test_flow_run_becomes_crashed_when_its_worker_crashes_before_start(up: Up) -> None:
    """Prefect's workers take none that another has taken."""
    (stuck,) = [item for item in up.post("/automations/filter", {}) if item["name"] == STUCK]
    renew(up, stuck, SILENCE)
    flow = up.api.get("/flows/name/flywheel").json()["id"]
    made = {
        tags: up.post("/flow_runs/", {"flow_id": flow, "tags": list(tags), "state": {"type": "PENDING"}})["id"]
        for tags in (("treadle",), ("another",))
    }
    crashed = up.wait_for(made["treadle",], "Crashed", limit_s=true_within_s(SILENCE))
    assert "Not started" in crashed["state"]["message"]
    assert up.flow_run(made["another",])["state"]["name"] == "Pending"
    renew(up, stuck, START_TIMEOUT_S)


HARMFUL: dict[str, dict[str, Any]] = {
    "a pull step that is a script": {
        "entrypoint": "treadle.flows.flywheel.flywheel",
        "pull_steps": [{"prefect.deployments.steps.run_shell_script": {"script": "touch {mark}"}}],
    },
    "a step after ours": {
        "entrypoint": "treadle.flows.flywheel.flywheel",
        "pull_steps": [
            {"prefect.deployments.steps.set_working_directory": {"directory": "{folder}"}},
            {"prefect.deployments.steps.run_shell_script": {"script": "touch {mark}"}},
        ],
    },
    "a file": {"entrypoint": "{folder}/harm.py:harm", "pull_steps": []},
    "a command": {
        "entrypoint": "treadle.flows.flywheel.flywheel",
        "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": "{folder}"}}],
        "job_variables": {"command": "touch {mark}"},
    },
    "a variable": {
        "entrypoint": "treadle.flows.flywheel.flywheel",
        "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": "{folder}"}}],
        "job_variables": {"env": {"PYTHONPATH": "{folder}"}},
    },
}


@pytest.mark.parametrize("name", HARMFUL)
def test_worker_refuses_foreign_deployments(up: Up, tmp_path: Path, name: str) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "harm.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    (tmp_path / "sitecustomize.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    text = json.dumps(HARMFUL[name]).replace("{mark}", str(mark)).replace("{folder}", str(tmp_path))
    flow = up.api.get("/flows/name/flywheel").json()["id"]
    made = {"flow_id": flow, "name": name, "work_pool_name": "local-process", "work_queue_name": "default"}
    deployment = up.post("/deployments/", made | json.loads(text))["id"]
    asked = {"parameters": {"run_id": "harm"}, "state": {"type": "SCHEDULED"}}
    flow_run = up.post(f"/deployments/{deployment}/create_flow_run", asked)["id"]
    ended = up.wait_for(flow_run, "Crashed", "Completed", "Failed")
    assert "this worker runs only what `treadle prefect deploy` sets up" in ended["state"]["message"]
    assert not mark.exists() and not (tmp_path / "outputs").exists()


def renew(up: Up, silent: dict[str, Any], heartbeat_timeout_s: float) -> None:
    """Change how long the automation waits."""
    kept = {name: silent[name] for name in ("name", "description", "enabled", "actions")}
    body = {**kept, "trigger": {**silent["trigger"], "within": heartbeat_timeout_s}}
    answer = up.api.put(f"/automations/{silent['id']}", json=body)
    assert answer.status_code == 204, answer.text


def heartbeats(up: Up, flow_run: str) -> int:
    names = {"name": ["prefect.flow-run.heartbeat"]}
    found = up.post(
        "/events/filter", {"filter": {"event": names, "any_resource": {"id": [f"prefect.flow-run.{flow_run}"]}}}
    )
    return int(found["total"])


def endless(folder: Path) -> Path:
    (folder / "questions.jsonl").write_text('{"question": "How much is 2 plus 3?", "answer": "5"}\n')
    (folder / "endless.toml").write_text(ENDLESS.format(folder=folder))
    return folder / "endless.toml"


def test_flow_run_continues_after_its_server_is_killed_and_restarted(up: Up, sample_run_config: Path) -> None:
    until(
        lambda: time.monotonic() - up.began > _MIN_UPTIME_S,
        "a server that may be started again",
        _MIN_UPTIME_S + 1,
        0.1,
    )
    server, worker = up.child("server"), up.child("worker")
    (up.folder / "run.toml").write_text(sample_run_config.read_text())
    flow_run = up.submit("flywheel/full", run_id="unserved", config_file="run.toml")
    begun = up.folder / "outputs/runs/unserved/attempts"
    until(lambda: begun.exists(), "a stage begins", 120.0, 0.01)
    process = look(int(up.flow_run(flow_run)["infrastructure_pid"]))
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not server.lives(), "its end", 10.0)
    assert process is not None and process.lives()
    until(lambda: "Prefect server ended with code" in up.said, "it is started again", 60.0, 0.1)
    assert "started again (log: " in up.said
    until(lambda: answers(f"{up.api.base_url}health"), "it answers again", 300.0, 0.2)
    done = up.wait_for(flow_run, "Completed", "Failed", "Crashed")
    assert (done["state"]["name"], done["run_count"]) == ("Completed", 1), done["state"]
    assert up.child("server").pid != server.pid and up.child("worker").pid == worker.pid


def test_killed_start_leaves_nothing_behind(up: Up, tmp_path: Path) -> None:
    process, _ = start(tmp_path, tmp_path / "home", free_port())
    try:
        until(lambda: len(family(process.pid)) >= 2, "the server starts", 60.0, 0.02)
        members = family(process.pid)
    finally:
        process.kill()
        process.communicate()
    until(lambda: not remaining(members), f"the end of {[seen.name for seen in members]}", 10.0)


def test_ctrl_c_stops_everything_and_cancels_the_flow_run(up: Up, postgres: Postgres) -> None:
    """The last one."""
    flow_run = up.submit("flywheel/full", run_id="cut", config_file=str(endless(up.folder)))
    at_work = lambda: sum(seen.name == NAME for seen in family(up.process.pid)) >= 2  # noqa: E731
    until(at_work, "a program is at work", 120.0, 0.05)
    members = family(up.process.pid)
    up.process.send_signal(signal.SIGINT)
    up.process.communicate(timeout=60)
    assert up.process.returncode == 130
    assert not remaining(members)
    state = "select s.name, s.message from flow_run f join flow_run_state s on s.id = f.state_id"
    query = f"{state} where f.id = '{flow_run}'"
    ((name, message),) = postgres.ask(query)
    assert name == "Crashed" and "termination signal" in message
