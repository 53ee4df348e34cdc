"""A flow as an operator runs it: `treadle prefect up`, a tutor and a search service as processes, on a small disk."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.rollouts.scripted_environment import install_scripted_engine
from support.runs.command_line import TREADLE, environment
from support.runs.processes import Seen, end_family, everyone, family, look, until
from support.runs.small_disk import Disk, disk
from support.servers.prefect_api import ask, credentials
from support.tables.rl_tables import write_policy

from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.world_files import write_world

RUN = "chaos"
PREFECT_MODULES = {"server": "treadle.tasks.prefect.server_process", "worker": "treadle.tasks.prefect.worker"}
"""What the children of `treadle prefect up` run."""
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
HANG_S = 300.0
"""Only what hangs takes longer."""
MARK = "TREADLE_TEST_CHAOS"
"""In the environment of all that is started here: who still has it at the end was left behind."""
_CONFIG = """
seed = 7

[flow]
stages = [{stages}]
models = ["tutor"]

[models.tutor]
model = "treadle-tutor"
tokenizer = "{folder}/tokenizer"
endpoints = [{{ url = "{tutor}" }}]
hedge_floor_s = 3600.0  # What is asked twice because it takes long is not what is counted here.
probe_max_s = 1.0

[questions]
sources = [{{ path = "{folder}/world/questions.jsonl", source_field = "source", split_field = "split" }}]

[questions.domains]
world-lookup = "qa"
world-hops = "qa"
world-compare = "qa"
world-compute = "math"
world-arithmetic = "math"

[environment.search]
service = {{ endpoints = [{{ url = "{search}" }}] }}
top_n = 1
document_chars = 200

[environment.python]
time_limit_s = 120.0
sandbox = {{ packages = [], pool_size = 2, max_running = 2 }}

[pools]
rounds = 1
max_concurrent = 4
max_error_rate = 0.0
pending_pause_s = 1.0

[rollouts]
split = "heldout"
max_concurrent = 8
max_error_rate = 0.0
pending_pause_s = 1.0
sampling = {{ max_tokens = 256 }}

[scores]
symbolic = false

[curriculum]
phases = 1
rollouts = {{ max_questions = 4, samples_per_question = 4 }}

[selection]
max_questions = 2

[rl]
start = "{folder}/policy"
variant = "cpu"
group_size = 4
prompts_per_step = 1
mini_batch_prompts = 1
max_steps = 2
max_prompt_tokens = 10_000

[report]
bootstrap_samples = 100
"""
MOST_IN_FLIGHT = 4 * 3 + 1
"""Requests at one moment: questions of `pools` at once, each with the operators of one branch; and a verdict."""


@dataclass
class FlowRun:
    """A flow run and its process; `terminal` if a command line started it."""

    id: str
    process: Seen | None
    """None where it ended at once."""
    terminal: bool = False

    def lives(self) -> bool:
        """Return whether its process is alive."""
        return self.process is not None and self.process.lives()


@dataclass
class Site:
    """Everything that a run needs, as processes that can be killed and started again."""

    folder: Path
    disk: Disk
    env: dict[str, str]
    ports: Mapping[str, int]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.ports['prefect']}/api"

    # Processes.

    def begin(self, name: str, *argv: str, **env: str) -> subprocess.Popen[bytes]:
        """Start a process inside the mount; its output goes to a file of its name."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.disk.enter(self.folder, argv),
                env={**self.env, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return self.processes[name]

    def start_tutor(self) -> None:
        """Start the tutor as model; its request log is appended to the same file."""
        port, log = str(self.ports["tutor"]), str(self.folder / "requests.jsonl")
        argv = ("-m", "treadle.demo.tutor", "--persona", "noisy", "--latency-s", "0.02", "--jitter-s", "0.04")
        self.begin("tutor", sys.executable, *argv, "--port", port, "--request-log", log)
        self.wait_for("tutor", "/v1/models")

    def start_retriever(self) -> None:
        """Start the search service."""
        corpus = str(self.folder / "world/corpus.jsonl")
        self.begin("retriever", TREADLE, "retriever", "serve", "--corpus", corpus, "--port", str(self.ports["search"]))
        self.wait_for("search", "/health", "retriever")

    def begin_prefect(self) -> Callable[[], None]:
        """`treadle prefect up`; returns what waits until all is up."""
        log = self.folder / "up.log"
        before = log.stat().st_size if log.exists() else 0
        up = self.begin("up", TREADLE, "prefect", "up", "--port", str(self.ports["prefect"]), PREFECT_API_URL="")

        def wait() -> None:
            said = lambda: b"Ctrl-C" in log.read_bytes()[before:]  # noqa: E731
            until(lambda: said() or up.poll() is not None, "Prefect is up", HANG_S, 0.1)
            assert up.poll() is None, log.read_text()[-3000:]

        return wait

    def stop_prefect(self) -> None:
        """Ctrl-C."""
        up = self.processes["up"]
        up.send_signal(signal.SIGINT)
        assert up.wait(HANG_S) == 130, (self.folder / "up.log").read_text()[-3000:]

    def wait_for(self, port: str, path: str, name: str = "") -> None:
        """Wait until a service answers."""
        process, url = self.processes[name or port], f"http://127.0.0.1:{self.ports[port]}{path}"
        until(lambda: answers(url) or process.poll() is not None, f"{url} answers", HANG_S, 0.05)
        assert process.poll() is None, (self.folder / f"{name or port}.log").read_text()[-3000:]

    def child(self, part: str) -> Seen | None:
        """Return the process of Prefect's server, or of its worker; None if there is none."""
        if self.processes["up"].poll() is not None:
            return None
        for seen in family(self.processes["up"].pid):
            if command_of(seen.pid)[1:3] == ["-m", PREFECT_MODULES[part]]:
                return seen
        return None

    def strays(self) -> list[str]:
        """Return all processes ever started here that still run, except services and a running Prefect."""
        services = [self.processes[name] for name in ("tutor", "retriever", "up")]
        known = {process.pid for process in services if process.poll() is None}
        for child in (self.child("server"), self.child("worker")):
            known |= {child.pid, child.parent} if child is not None else set()
        return [
            " ".join(command_of(seen.pid))
            for seen in everyone()
            if seen.pid not in known and seen.state not in "ZX" and is_marked(seen.pid, self.env[MARK])
        ]

    def close(self) -> None:
        """Kill everything."""
        for process in self.processes.values():
            end_family(process)

    # Prefect's API.

    def ask(self, method: str, path: str, **body: Any) -> Any:
        """Ask Prefect's API."""
        password = (self.folder / "prefect/treadle.password").read_text()
        return ask(method, f"{self.api}/{path}", body or None, HANG_S, credentials(password))

    def state(self, flow_run: FlowRun | str) -> dict[str, Any]:
        """Return the state of a flow run in the UI."""
        wanted = flow_run if isinstance(flow_run, str) else flow_run.id
        return dict(self.ask("GET", f"flow_runs/{wanted}")["state"])

    def has_ended(self, flow_run: FlowRun) -> bool:
        """Return whether the UI shows it as ended."""
        return self.state(flow_run)["type"] in FINAL

    def is_over(self, flow_run: FlowRun) -> bool:
        """Return whether it has really ended: after a long server outage the UI may show an active one as ended."""
        return not flow_run.lives() and self.has_ended(flow_run)

    # Runs.

    def command(self, root: Path) -> tuple[str, ...]:
        """`treadle run` for a root on the disk."""
        return (TREADLE, "run", str(self.folder / "run.toml"), "--run", RUN, "--root", str(root))

    def run_alone(self, root: Path) -> None:
        """Run without Prefect, to the end."""
        process = self.begin("alone", *self.command(root), PREFECT_API_URL="")
        assert process.wait(HANG_S) == 0, (self.folder / "alone.log").read_text()[-3000:]

    def submit(self, root: Path) -> FlowRun:
        """Ask for a flow run of the deployment, and wait until it runs."""
        found = self.ask("GET", "deployments/name/flywheel/full")["id"]
        given = {"run_id": RUN, "config_file": str(self.folder / "run.toml"), "root": str(root)}
        asked = {"parameters": given, "state": {"type": "SCHEDULED"}}
        made = str(self.ask("POST", f"deployments/{found}/create_flow_run", **asked)["id"])
        until(lambda: self.state(made)["type"] in ("RUNNING", *FINAL), "the flow run begins", HANG_S, 0.1)
        return FlowRun(made, look(int(self.ask("GET", f"flow_runs/{made}")["infrastructure_pid"])))

    def run_in_terminal(self, root: Path) -> FlowRun:
        """`treadle run` as a flow run of its own process."""
        known = {item["id"] for item in self.flow_runs()}
        process = self.begin("terminal", *self.command(root))
        fresh = lambda: [item for item in self.flow_runs() if item["id"] not in known]  # noqa: E731
        until(lambda: bool(fresh()) or process.poll() is not None, "the flow run begins", HANG_S, 0.1)
        assert process.poll() in (None, 0), (self.folder / "terminal.log").read_text()[-3000:]
        return FlowRun(fresh()[0]["id"], look(process.pid), terminal=True)

    def flow_runs(self) -> list[dict[str, Any]]:
        """All flow runs of the run that began."""
        begun = {"name": {"any_": [RUN]}, "start_time": {"is_null_": False}}
        return list(self.ask("POST", "flow_runs/filter", flow_runs=begun))

    def open_task_runs(self) -> list[str]:
        """Return task runs that the UI shows as running."""
        asked = {"state": {"type": {"any_": ["PENDING", "RUNNING", "SCHEDULED"]}}}
        return [item["name"] for item in self.ask("POST", "task_runs/filter", task_runs=asked)]

    def progress(self, root: Path, begin: int) -> int:
        """Return the progress of a run: requests since a position in the log, and started instances, five each."""
        begun = list(self.seen(root).glob(f"runs/{RUN}/attempts/1/*/1"))
        return len(self.requests(begin)) + 5 * len(begun)

    def requests(self, begin: int) -> dict[int, int]:
        """Seed -> how often it was answered, of all requests since a place in the log of the tutor's lives."""
        found: dict[int, int] = {}
        arrived: dict[int, int] = {}
        for line in self._log.read_bytes()[begin:].splitlines(keepends=True):
            event = json.loads(line) if line.endswith(b"\n") else {}
            if event.get("event") == "arrived":
                arrived[event["serial"]] = event["seed"]
                found.setdefault(event["seed"], 0)
            # What a life of the tutor left unanswered has a number that its next life gives again.
            elif event.get("status") == "200":
                found[arrived.pop(event["serial"])] += 1
        found.pop(0, None)  # those of the preflight
        return found

    @property
    def log_size(self) -> int:
        """Length of the log of requests."""
        return self._log.stat().st_size

    @property
    def _log(self) -> Path:
        return self.folder / "requests.jsonl"

    def seen(self, root: Path) -> Path:
        """Return a root on the disk, from outside."""
        return self.disk.seen / root.relative_to(self.disk.path)


@contextmanager
def site(folder: Path, ports: Mapping[str, int], *, documents: int, questions: int, reinforce: bool) -> Iterator[Site]:
    """Everything started, for the length of a block; `reinforce` adds a phase with a scripted trainer."""
    write_world(folder / "world", documents=documents, questions=questions, heldout_questions=questions, tiers=(0, 1))
    write_byte_tokenizer(folder / "tokenizer")
    write_policy(folder / "policy")
    stages = ["pools", "sft_rows", *(["rl"] if reinforce else ["selection"]), "rollouts", "scores", "report"]
    url = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    text = _CONFIG.format(
        folder=folder, tutor=f"{url['tutor']}/v1", search=url["search"], stages=", ".join(f'"{one}"' for one in stages)
    )
    (folder / "run.toml").write_text(text)
    env = environment(
        PREFECT_HOME=str(folder / "prefect"),
        PREFECT_API_URL=f"{url['prefect']}/api",
        PREFECT_WORKER_QUERY_SECONDS="1",
        TREADLE_TRACEBACK="1",
        **{MARK: str(folder)},
        **install_scripted_engine(folder / "cache"),
    )
    with ExitStack() as stack:
        small = stack.enter_context(disk(folder / "disk"))
        made = Site(folder, small, env, ports)
        stack.callback(made.close)
        made.start_tutor()
        made.start_retriever()
        yield made


def answers(url: str) -> bool:
    """Return whether a GET succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def command_of(pid: int) -> list[str]:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def is_marked(pid: int, mark: str) -> bool:
    """Return whether a process has our mark in its environment."""
    try:
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
