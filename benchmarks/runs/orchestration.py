"""Measure the cost of orchestration: the whole flow with no-op engines, on a dedicated Prefect server with one worker.

    python -m benchmarks.runs.orchestration [--iterations 2] [--phases 3] [--questions 24] [--json]

All stages run: tutors replace the models, and a no-op engine the training. The same run is made by `treadle run`
without Prefect (twice, the first time to warm caches) and by the deployment `flywheel/full`. Counted are the task runs
of the flow, and the growth of the server's SQLite database (pages in use) between the start of the flow and some
seconds after its end, since events are written late. Then an hour of heartbeats of a flow run is posted, as copies of
its first one, and the growth is measured again. Time between stages is the time without a running stage, from the start
of the first stage to the end of the last one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.parts.figures import Figure, add_json_option, publish

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.tables.rl_tables import write_policy
from support.training.scripted_rl_engine import SCRIPT

from treadle.core.engines import environments
from treadle.demo.world_files import write_world
from treadle.tasks.prefect.settings import HEARTBEAT_S

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
READY_S = 180.0
SETTLED_S = 12.0
"""Prefect writes events some seconds after they happen."""
MB = 1e6
HEARTBEATS = 3600 // HEARTBEAT_S
RUN = "noop"

CONFIG = """
[flow]
stages = ["pools", "sft_rows", "sft", "selection", "rl", "rollouts", "scores", "report"]
models = ["noisy", "strong"]
iterations = {iterations}

[models.noisy]
model = "treadle-tutor"
server = {{ type = "tutor", persona = "noisy", tokenizer = {policy} }}

[models.strong]
model = "treadle-tutor"
server = {{ type = "tutor", persona = "strong", tokenizer = {policy} }}

[questions]
sources = [{{ path = {questions}, source_field = "source", split_field = "split" }}]
domains = {{ world-lookup = "qa", world-compute = "math" }}

[environment]
python.enabled = false
search.corpus = [{corpus}]

[pools]
rounds = 1
datasets = ["world-lookup"]

[sft]
model = {policy}
variant = "cpu"

[curriculum]
phases = {phases}
rollouts = {{ samples_per_question = 6, datasets = ["world-lookup"] }}

[selection]
max_questions = 4

[rl]
start = {policy}
variant = "cpu"
group_size = 4
prompts_per_step = 1
mini_batch_prompts = 1
max_steps = 2
max_prompt_tokens = 10_000

[rollouts]
split = "heldout"

[scores]
symbolic = false
"""


def prepare(folder: Path, options: argparse.Namespace) -> tuple[Path, dict[str, str]]:
    """Return the configuration of the run, and the environment variables with which its engines are found."""
    world = write_world(
        folder / "world", documents=400, questions=options.questions, heldout_questions=options.questions
    )
    policy = write_policy(_made(folder / "policy"))
    config = folder / "run.toml"
    config.write_text(
        CONFIG.format(
            iterations=options.iterations,
            phases=options.phases,
            policy=json.dumps(str(policy)),
            questions=json.dumps(str(world.questions)),
            corpus=json.dumps(str(world.corpus)),
        )
    )
    cache = _made(folder / "cache")
    variables = {"TREADLE_CACHE": str(cache), SCRIPT: str(cache / "script.json")}
    (cache / "script.json").write_text("{}")
    with patch.dict("os.environ", variables):
        for engine in ("sft", "trl"):
            _install_noop(environments.environment_path(engine, "cpu"))
    return config, variables


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _install_noop(folder: Path) -> None:
    python = _made(folder / "bin") / "python"
    python.write_text(
        f'#!/bin/sh\nexec {shlex.join([sys.executable, str(ROOT / "benchmarks" / "parts" / "noop_engine.py")])} "$@"\n'
    )
    python.chmod(0o755)
    (folder / ".complete").touch()


def without_prefect(config: Path, root: Path, variables: dict[str, str]) -> None:
    """Make the run with `treadle run`."""
    command = ["run", str(config), "--run", RUN, "--root", str(root)]
    environ = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"} | variables
    subprocess.run([str(BIN / "treadle"), *command], env=environ, check=True, stdout=sys.stderr)


def times(root: Path) -> tuple[float, float]:
    """Return seconds from the start of the first stage to the end of the last, and those without a running stage."""
    records = [json.loads(path.read_text()) for path in (root / "runs" / RUN / "records").rglob("*.json")]
    spans = [
        tuple(datetime.fromisoformat(record[name]).timestamp() for name in ("started_at", "finished_at"))
        for record in records
    ]
    whole = max(end for _, end in spans) - min(start for start, _ in spans)
    return whole, whole - sum(end - start for start, end in spans)


class PrefectServer:
    """A dedicated Prefect server with its worker, whose database is inspected."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._home = _made(folder / "prefect")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        self._url = f"http://127.0.0.1:{port}/api"
        self._environ = {
            **os.environ,
            **variables,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(self._home),
            "PREFECT_API_URL": self._url,
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> PrefectServer:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._background("server", "start"))
            self._wait(lambda: self._asked("GET", "/health") is not None, "the Prefect server")
            self._prefect("work-pool", "create", "local-process", "--type", "process")
            self._prefect("--no-prompt", "deploy", "--all")
            stack.enter_context(self._background("worker", "start", "--pool", "local-process"))
            self._wait(lambda: bool(self._asked("POST", "/work_pools/local-process/workers/filter", {})), "the worker")
            time.sleep(SETTLED_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def run_flow(self, config: Path, root: Path) -> None:
        """Run the deployment `flywheel/full` to completion."""
        given = {"run_id": RUN, "config_file": str(config), "root": str(root)}
        parameters = [part for name, value in given.items() for part in ("--param", f"{name}={value}")]
        self._prefect("deployment", "run", "flywheel/full", "--watch", *parameters)
        time.sleep(SETTLED_S)

    def num_task_runs(self) -> int:
        """Return the number of task runs of all flow runs."""
        return int(self._asked("POST", "/task_runs/count", {}))

    def live_an_hour(self) -> None:
        """Post the heartbeats that a flow run sends in an hour, as copies of an existing one."""
        wanted = {"filter": {"event": {"name": ["prefect.flow-run.heartbeat"]}}, "limit": 1}
        given = self._asked("POST", "/events/filter", wanted)["events"][0]
        first = datetime.fromisoformat(given["occurred"]) - timedelta(hours=1)
        copies = [
            {
                **{name: given[name] for name in ("event", "resource", "related", "payload")},
                "id": str(uuid.uuid4()),
                "occurred": (first + number * timedelta(seconds=HEARTBEAT_S)).isoformat(),
            }
            for number in range(HEARTBEATS)
        ]
        self._asked("POST", "/events", copies)
        time.sleep(SETTLED_S)

    def num_rows(self, table: str) -> int:
        """Return the number of rows of a database table."""
        return self._number(f"SELECT count(*) FROM {table}")

    def database_bytes(self) -> int:
        """Return the size of the pages in use."""
        size, total, free = (self._number(f"PRAGMA {name}") for name in ("page_size", "page_count", "freelist_count"))
        return size * (total - free)

    def _number(self, query: str) -> int:
        with contextlib.closing(sqlite3.connect(f"file:{self._home / 'prefect.db'}?mode=ro", uri=True)) as database:
            return int(database.execute(query).fetchone()[0])

    @contextlib.contextmanager
    def _background(self, *arguments: str) -> Iterator[None]:
        with (self._home / f"{arguments[0]}.log").open("wb") as log:
            child = subprocess.Popen(
                [str(BIN / "prefect"), *arguments],
                env=self._environ, cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                yield
            finally:
                child.terminate()
                try:
                    child.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()

    def _prefect(self, *arguments: str) -> None:
        subprocess.run([str(BIN / "prefect"), *arguments], env=self._environ, cwd=ROOT, check=True, stdout=sys.stderr)

    def _wait(self, condition: Any, what: str) -> None:
        ends = time.monotonic() + READY_S
        while not condition():
            if time.monotonic() > ends:
                raise SystemExit(f"{what} did not come up within {READY_S:g} s; see {self._home}")
            time.sleep(0.2)

    def _asked(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return json.loads(response.read() or b"null")
        except OSError:
            return None


def measure(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Measure both runs and return the figures per iteration."""
    config, variables = prepare(folder, options)
    for number in range(2):
        without_prefect(config, folder / f"plain-{number}", variables)
    with PrefectServer(folder, variables) as server:
        before, events_before = server.database_bytes(), server.num_rows("events")
        server.run_flow(config, folder / "flow")
        after, tasks = server.database_bytes(), server.num_task_runs()
        events, artifacts = server.num_rows("events") - events_before, server.num_rows("artifact")
        server.live_an_hour()
        alive = server.num_rows("events") - events_before - events
        lived = server.database_bytes() - after
    (plain_s, plain_between_s), (flow_s, flow_between_s) = (times(folder / name) for name in ("plain-1", "flow"))
    number = options.iterations
    return [
        Figure(name="task runs per iteration", value=tasks / number, unit="task runs", at_most=40.0),
        Figure(
            name="growth of the database per iteration", value=(after - before) / number / MB, unit="MB", at_most=1.0
        ),
        Figure(name="of which per task run", value=(after - before) / tasks / 1e3, unit="kB"),
        Figure(name="events per task run", value=events / tasks, unit="events"),
        Figure(name="artifacts per task run", value=artifacts / tasks, unit="artifacts"),
        Figure(name="growth per heartbeat of a flow run", value=lived / alive / 1e3, unit="kB"),
        Figure(name="treadle run without Prefect", value=plain_s, unit="s"),
        Figure(name="of which between stages, per stage", value=plain_between_s / tasks * 1e3, unit="ms"),
        Figure(name="the flow", value=flow_s, unit="s"),
        Figure(name="of which between stages, per task run", value=flow_between_s / tasks * 1e3, unit="ms"),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--phases", type=int, default=3)
    parser.add_argument("--questions", type=int, default=24, help="of each split of the sample world")
    add_json_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options)
    publish(figures, options.json)


if __name__ == "__main__":
    main()
