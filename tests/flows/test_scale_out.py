"""A stage shared by flow runs on several workers, on a folder and on an object root: killed, preempted, and with
Prefect's database gone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.runs.crash_bench import TUTOR_CONFIG, CrashBench, crash_bench
from support.runs.gate import Gate, gate
from support.runs.processes import end_family, look, until
from support.servers.object_server import in_environment, object_server
from support.servers.ports import free_port
from support.servers.prefect_api import ask

from treadle.core.runs.address import Address
from treadle.core.runs.run import Run, list_runs
from treadle.core.runs.shards import ShardPlan, Shards
from treadle.core.store.leases import holder_of
from treadle.core.store.locks import Holder

from .conftest import BIN, ROOT, PrefectHome, answers, checked, wait_until

ROLLOUTS = Address.parse("1/rollouts@tutor")
NUM_SHARDS = 12
CONCURRENCY = 2
CONFIG = """
[environment]
search.enabled = false
python.enabled = false

[flow]
stages = ["rollouts"]
workers = 2

[rollouts]
shards = {num_shards}
max_concurrent = {concurrency}
sampling = {{ max_tokens = 256 }}
"""
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@dataclass
class Cluster:
    """A Prefect server, and workers that share nothing but the roots: each has folders of its own."""

    folder: Path
    env: dict[str, str]
    port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def start_server(self) -> None:
        (self.folder / "server").mkdir()
        self.start("server", "prefect", "server", "start", "--port", str(self.port))

    def deploy(self) -> None:
        """Once the server answers."""
        wait_until(lambda: answers(f"{self.api}/health"), "the Prefect server", self.folder / "server.log")
        home = str(self.folder / "server")
        prefect = PrefectHome(self.api, {**self.env, "PREFECT_HOME": home}, self.folder)
        self.post("work_pools/", name="local-process", type="process", base_job_template={})
        deployments = [word for name in ("full", "shards") for word in ("--name", name)]
        checked(prefect.run("prefect", "--no-prompt", "deploy", *deployments))

    def start_worker(self, name: str) -> None:
        (self.folder / name).mkdir(exist_ok=True)
        # Neither has room for all flow runs of a test.
        self.start(name, "prefect", "worker", "start", "--pool", "local-process", "--name", name, "--limit", "3")

    def start(self, name: str, *argv: str) -> None:
        folder = self.folder / name
        own = {"PREFECT_HOME": str(folder), "TREADLE_WORK": str(folder / "work"), "TMPDIR": str(self.folder)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / argv[0]), *argv[1:]],
                cwd=folder, env={**self.env, **own}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def end(self) -> None:
        """Kill everything, and what it started."""
        for process in self.processes.values():
            end_family(process)

    def post(self, path: str, **body: Any) -> Any:
        """Ask the API."""
        return ask("POST", f"{self.api}/{path}", body)

    def submit(self, deployment: str, **parameters: Any) -> str:
        found = ask("GET", f"{self.api}/deployments/name/{deployment}")
        made = self.post(
            f"deployments/{found['id']}/create_flow_run", parameters=parameters, state={"type": "SCHEDULED"}
        )
        return str(made["id"])

    def state(self, flow_run: str) -> str:
        return str(ask("GET", f"{self.api}/flow_runs/{flow_run}")["state"]["type"])

    def message(self, flow_run: str) -> str:
        return str(ask("GET", f"{self.api}/flow_runs/{flow_run}")["state"]["message"])

    def helpers(self, run_id: str) -> list[dict[str, Any]]:
        """Flow runs that were started to help a run."""
        found = self.post("flow_runs/filter", flow_runs={"tags": {"all_": [f"run:{run_id}", "stage:rollouts"]}})
        assert {one["name"] for one in found} <= {f"{run_id} {ROLLOUTS} worker"}
        return list(found)

    def states(self, run_id: str) -> list[tuple[str, str]]:
        """States of those, with what they say."""
        return sorted((one["state"]["type"], one["state"]["message"]) for one in self.helpers(run_id))

    def have_ended(self, run_id: str) -> bool:
        """Return whether all of them have ended."""
        return all(state in ENDED for state, _ in self.states(run_id))


@dataclass
class Bench:
    """Everything, and what one process makes of the same configuration."""

    cluster: Cluster
    tutor: CrashBench
    gate: Gate
    config: Path
    object_root: str
    alone: dict[str, Any]
    seeds: set[int]

    def held(self, root: str, run_id: str) -> dict[int, Holder]:
        """Return the holder of each shard."""
        if run_id not in list_runs(root):
            return {}
        shards, plan = shards_of(root, run_id)
        if plan is None:
            return {}
        found = {index: holder_of(shards.storage, shards.lock_key(index)) for index in range(plan.num_shards)}
        return {index: holder for index, holder in found.items() if holder is not None}

    def wait_for(self, run_id: str, root: str, num_processes: int) -> None:
        """Wait until this number of processes hold a shard each."""
        until(lambda: len(self.held(root, run_id)) == num_processes, f"{num_processes} are at {run_id}", 300, 0.2)

    def submit(self, run_id: str, root: str, *, workers: int, concurrency: int = CONCURRENCY) -> str:
        """Ask for a flow run of all stages; returns its id."""
        config = {"flow": {"workers": workers}, "rollouts": {"max_concurrent": concurrency}}
        more = {"config_file": str(self.config), "config": config}
        return self.cluster.submit("flywheel/full", run_id=run_id, root=root, **more)

    def finish(self, *arguments: str, with_prefect: bool = False) -> None:
        """Run `treadle` to its end."""
        hidden = () if with_prefect else ("PREFECT_API_URL",)
        env = {name: value for name, value in self.cluster.env.items() if name not in hidden}
        done = subprocess.run([BIN / "treadle", *arguments], env=env, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def shards_of(root: str, run_id: str) -> tuple[Shards, ShardPlan | None]:
    run = Run.open(root, run_id)
    attempts = run.attempts(ROLLOUTS)
    shards = run.shards(ROLLOUTS, attempts[-1].journal_name if attempts else "none")
    return shards, shards.plan()


def share_in_step(bench: Bench, root: str, run_id: str, num_asking: int) -> dict[int, int]:
    """Let processes continue one request at a time, evenly, until under half of a run's shards
    are left, at least one for each; return how many shards each process has held.
    """
    held: dict[int, set[int]] = defaultdict(set)
    while True:
        until(lambda: bench.gate.num_waiting == num_asking, f"{num_asking} processes ask", 120, 0.02)
        for index, holder in bench.held(root, run_id).items():
            held[holder.pid].add(index)
        shards, plan = shards_of(root, run_id)
        assert plan is not None
        if len(list(shards.open(plan))) < NUM_SHARDS / 2:
            return {pid: len(indices) for pid, indices in held.items()}
        bench.gate.let_through(num_asking)


def made(root: str, run_id: str) -> dict[str, Any]:
    record = Run.open(root, run_id).record(ROLLOUTS)
    assert record is not None
    return {kind: ref.digest for kind, ref in record.outputs.items()}


def starter(root: str, run_id: str) -> Holder:
    """Return the process that began the stage."""
    holder = holder_of(Run.open(root, run_id).storage, f"runs/{run_id}/locks/{ROLLOUTS}.lock")
    assert holder is not None
    return holder


def worker_logs(root: str, run_id: str) -> list[str]:
    """Return the log of each process that helped."""
    run = Run.open(root, run_id)
    keys = [key for key in run.storage.keys(f"runs/{run_id}/attempts") if "/workers/" in key]
    return [(run.storage.get(key) or b"").decode() for key in keys]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("scale")
    with ExitStack() as stack:
        objects = stack.enter_context(object_server())
        stack.enter_context(in_environment({**objects.environment, "TREADLE_WORK": str(folder / "test-work")}))
        tutor = stack.enter_context(crash_bench(folder, documents=100, questions=40))
        door = stack.enter_context(gate(tutor.url))
        config = folder / "run.toml"
        text = TUTOR_CONFIG.format(folder=folder, url=door.url)
        config.write_text(text + CONFIG.format(num_shards=NUM_SHARDS, concurrency=CONCURRENCY))
        port = free_port()
        env = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_COLORS": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "DO_NOT_TRACK": "1",
        }
        cluster = Cluster(folder, env, port)
        stack.callback(cluster.end)
        cluster.start_server()
        made_of = Bench(cluster, tutor, door, config, objects.new_root(), {}, set())
        door.open()
        first = tutor.log_size()
        made_of.finish("run", str(config), "--run", "alone", "--root", str(folder / "alone"))
        door.close()
        made_of.alone = made(str(folder / "alone"), "alone")
        made_of.seeds = {arrival.seed for arrival in tutor.arrivals(first, tutor.log_end())}
        cluster.deploy()
        for name in ("worker-a", "worker-b"):
            cluster.start_worker(name)
        yield made_of


@pytest.mark.sweep
def test_two_flows_share_workers_and_survive_losing_some(bench: Bench, tmp_path: Path) -> None:
    """Each process takes its part. One on a folder loses a worker to SIGKILL, one on an object root its only one to
    SIGTERM, which gives its shard back at once."""
    cluster, roots = bench.cluster, {"folder": str(tmp_path / "root"), "object": bench.object_root}
    num_workers, first = {"folder": 2, "object": 1}, bench.tutor.log_size()
    flows = {
        run_id: bench.submit(run_id, root, workers=num_workers[run_id], concurrency=1) for run_id, root in roots.items()
    }
    for run_id, root in roots.items():
        bench.wait_for(run_id, root, 1 + num_workers[run_id])
    parts = share_in_step(bench, roots["folder"], "folder", num_asking=3 + 2)
    assert len(parts) == 3 and min(parts.values()) >= 2, f"shards that each took: {parts}"
    parents = set()
    for run_id, root in roots.items():
        own = starter(root, run_id).pid
        helpers = {index: one.pid for index, one in bench.held(root, run_id).items() if one.pid != own}
        assert len(helpers) == num_workers[run_id]
        parents |= {seen.parent for pid in (*helpers.values(), own) if (seen := look(pid)) is not None}
        lost = min(helpers)
        os.kill(helpers[lost], signal.SIGKILL if run_id == "folder" else signal.SIGTERM)
        until(
            lambda run_id=run_id, root=root, lost=lost: lost not in bench.held(root, run_id), "its shard is free", 120
        )
    assert parents == {process.pid for name, process in cluster.processes.items() if name.startswith("worker")}
    bench.gate.open()
    for run_id, flow_run in flows.items():
        until(lambda flow_run=flow_run: cluster.state(flow_run) in ENDED, f"{run_id} ends", 300, 0.2)
        assert cluster.state(flow_run) == "COMPLETED"
        assert made(roots[run_id], run_id) == bench.alone
        until(lambda run_id=run_id: cluster.have_ended(run_id), "its workers end", 300, 0.2)
    bench.gate.close()
    assert [state for state, _ in cluster.states("folder")] == ["COMPLETED", "CRASHED"]
    assert [state for state, _ in cluster.states("object")] == ["CRASHED"]
    assert "processed here" in cluster.states("folder")[0][1]
    late = cluster.submit("work/shards", run_id="folder", instance=str(ROLLOUTS), root=roots["folder"])
    done = sum(log.count("finished shard") for log in worker_logs(roots["folder"], "folder"))
    assert 1 <= done < NUM_SHARDS, "so say the logs of those that came to help"
    asked = Counter(arrival.seed for arrival in bench.tutor.arrivals(first, bench.tutor.log_end()))
    assert asked.keys() == bench.seeds
    # Two runs, and in each what one process had in flight.
    assert sum(count - 2 for count in asked.values()) <= 2
    until(lambda: cluster.state(late) in ENDED, "one that comes late ends", 300, 0.2)
    assert (cluster.state(late), cluster.message(late)) == ("COMPLETED", "nothing left to help with")


@pytest.mark.sweep
def test_run_survives_loss_of_the_prefect_database(bench: Bench, tmp_path: Path) -> None:
    """Run last: it ends with another server, which at first has no worker."""
    cluster, root, first = bench.cluster, str(tmp_path / "root"), bench.tutor.log_size()
    begun = bench.submit("lost", root, workers=1)
    bench.wait_for("lost", root, 2)
    bench.gate.let_through(12)
    until(lambda: bench.gate.is_blocked and shards_of(root, "lost")[0].count_finished() > 0, "some are finished", 120)
    os.kill(starter(root, "lost").pid, signal.SIGTERM)
    until(lambda: cluster.state(begun) in ENDED, "its process ends", 300, 0.2)
    assert cluster.state(begun) == "CRASHED"
    assert Run.open(root, "lost").attempts(ROLLOUTS)[-1].state == "interrupted"
    assert [state for state, _ in cluster.states("lost")] == ["RUNNING"], "a running flow continues"
    cluster.end()
    shutil.rmtree(cluster.folder / "server")
    cluster.start_server()
    cluster.deploy()
    bench.gate.open()
    bench.finish("run", "--run", "lost", "--root", root, "--prefect", with_prefect=True)
    assert made(root, "lost") == bench.alone
    assert [state for state, _ in cluster.states("lost")] == ["CANCELLED"]
    asked = Counter(arrival.seed for arrival in bench.tutor.arrivals(first, bench.tutor.log_end()))
    assert asked.keys() == bench.seeds
    assert sum(count - 1 for count in asked.values()) <= 2 * CONCURRENCY
