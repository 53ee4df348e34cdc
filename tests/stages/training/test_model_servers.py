"""Model servers of a flow: shared by stages, stopped if they are in the way, restarted after a crash.

vLLM is a scripted process, GPUs are numbers, and "training" is a stage that checks which servers run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.runs.command_line import set_up
from support.runs.counting_stage import NUMBERS
from support.runs.processes import look, until
from support.training.scripted_vllm import BROKEN, STARTS, install_scripted_vllm

from treadle.cli.views.tables import status_table
from treadle.core.config import Section
from treadle.core.engines.config import VllmServer
from treadle.core.engines.gpu_claims import GpuClaims, occupied_gpus
from treadle.core.errors import ConfigError, EngineError, StageFailed
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address
from treadle.core.runs.records import InstanceStatus
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.sft.config import SftOptions, SftSettings
from treadle.tasks.run_instances import run_instance
from treadle.tasks.serving import servers
from treadle.tasks.serving.device_shares import check_devices_fit
from treadle.tasks.serving.servers import ModelServers

HOLDER = """
import sys, time
from treadle.core.engines.gpu_claims import GpuClaims
claims = GpuClaims()
assert claims.take(sys.argv[1:], "1/rl@phase-1 of run other") is None
print("held", flush=True)
time.sleep(600)
"""


class Both(SftSettings):
    """Settings of a stage that trains and asks a model meanwhile."""

    judge: ModelSettings


class Asks(Section):
    """Settings of a stage that asks models."""

    models: dict[str, ModelSettings] = {}


@dataclass
class Flow:
    """A run of instances that note which servers lived while they were made."""

    run: Run
    instances: list[Instance] = field(default_factory=list)
    lived: dict[str, list[str]] = field(default_factory=dict)
    """Stage -> names of the models whose servers lived while it was made."""
    said: list[str] = field(default_factory=list)
    elsewhere: str = ""
    """GPUs that another process has meanwhile."""
    before: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """Stage -> what happens before it is made."""

    def asks(self, stage: str, **models: VllmServer) -> None:
        """Add an instance that asks these models."""
        settings = Asks(models={name: ModelSettings(model=name, server=server) for name, server in models.items()})
        self._add(stage, settings)

    def trains(self, stage: str, **options: Any) -> None:
        """Add an instance that trains on GPUs."""
        self._add(stage, SftSettings(options=SftOptions(**{"variant": "cuda", **options})))

    def _add(self, name: str, settings: Section) -> None:
        stage = Stage(name=name, version=1, settings=type(settings), produces=(NUMBERS,), run=self._body)
        self.instances.append(Instance(address=Address(1, name), stage=stage, settings=settings))

    def _body(self, context: StageContext) -> Mapping[str, Any]:
        for model in getattr(context.settings, "models", {}).values():
            assert answers(model.endpoints[0].url), model
        self.lived[context.address.stage] = sorted(start["name"] for start in starts() if alive(start["pid"]))
        context.write("numbers", [{"number": len(self.lived)}])
        return {}

    def make(self, **more: Any) -> list[str]:
        """Make all instances; returns the names of the models that were served, one for each start."""
        known = len(starts())
        options = {"wait_s": 60.0, "notify": self.said.append, **more}
        with ModelServers(self.run, self.instances, **options) as of_flow:
            for item in self.instances:
                self.before.get(item.address.stage, lambda: None)()
                run_instance(item, self.run, force=item.address in more.get("forced", ()), servers=of_flow)
        assert not any(alive(start["pid"]) for start in starts()), "no server outlives its flow"
        assert all(are_free(gpu) for gpu in "0123" if gpu not in self.elsewhere), "and no claim"
        return [start["name"] for start in starts()[known:]]

    def heard(self, *words: str) -> bool:
        """Return whether a message contained all these words."""
        return any(all(word in line for word in words) for line in self.said)


def starts() -> list[dict[str, Any]]:
    """All starts of servers so far."""
    return [json.loads(line) for line in Path(os.environ[STARTS]).read_text().splitlines()]


def alive(pid: int) -> bool:
    seen = look(pid)
    return seen is not None and seen.state not in "ZX"


def are_free(*gpus: str) -> bool:
    claims = GpuClaims()
    try:
        return claims.take(gpus, "a look") is None
    finally:
        claims.keep(())


def answers(url: str) -> bool:
    request = urllib.request.Request(f"{url}/completions", b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return bool(response.status == 200)


def kill_servers() -> None:
    """As the system does when memory runs out."""
    for start in starts():
        seen = look(start["pid"])
        if seen is not None and seen.lives():
            os.kill(start["pid"], signal.SIGKILL)
            until(lambda parent=seen.parent: not alive(parent), "its supervisor has noticed")


def on(*devices: int, **more: Any) -> VllmServer:
    """Return a server on these GPUs; on all of them by default."""
    return VllmServer(**{"variant": "cuda", "model": "some/model", "devices": devices, **more})


@contextmanager
def holder(*gpus: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has these GPUs."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, *gpus], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flow:
    """Make a run on a machine with four simulated GPUs."""
    for name, value in install_scripted_vllm(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setattr(servers, "_POLL_S", 0.02)
    return Flow(Run.create(tmp_path / "root", "r", {}, {}))


def test_stages_with_the_same_model_share_a_server_until_the_last(flow: Flow) -> None:
    flow.asks("one", base=on())
    flow.asks("none")
    flow.asks("two", base=on())
    flow.asks("last")
    assert flow.make() == ["base"]
    assert flow.lived == {"one": ["base"], "none": ["base"], "two": ["base"], "last": []}


def test_same_model_with_other_settings_gets_its_own_server(flow: Flow) -> None:
    flow.asks("one", base=on(0))
    flow.asks("two", base=on(0, max_model_len=4096))
    flow.asks("three", base=on(0, max_model_len=4096), judge=on(1))
    assert flow.make() == ["base", "base", "judge"]


def test_serving_and_training_alternate_on_the_whole_machine(flow: Flow) -> None:
    flow.asks("before", base=on())
    flow.trains("training")
    flow.asks("after", base=on())
    assert flow.make() == ["base", "base"]
    assert flow.lived == {"before": ["base"], "training": [], "after": ["base"]}
    assert flow.heard("stopping vllm server for base", "1/training needs GPU 0, 1, 2, 3")


def test_serving_and_training_alternate_on_a_cpu(flow: Flow) -> None:
    flow.asks("before", base=on(variant="cpu"))
    flow.trains("training", variant="cpu")
    flow.asks("after", base=on(variant="cpu"), judge=on(variant="cpu"))
    assert flow.make() == ["base", "base", "judge"], "several that are asked at once are there at once"
    assert flow.lived["training"] == [] and flow.heard("1/training needs the CPU")


def test_serving_and_training_run_concurrently_on_separate_gpus(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    flow.asks("before", base=on(0, 1), judge=on(2))
    flow.trains("training", devices=(3, 2), num_devices=1)
    flow.asks("after", base=on(0, 1), judge=on(2))
    assert flow.make() == ["base", "judge"]
    assert flow.lived == dict.fromkeys(("before", "training", "after"), ["base", "judge"])
    base, judge = starts()
    assert (base["gpus"], judge["gpus"]) == ("4,5", "6")
    assert base["args"][base["args"].index("--tensor-parallel-size") + 1] == "2"
    assert "--tensor-parallel-size" not in judge["args"]


def test_servers_that_do_not_fit_one_gpu_alternate_and_others_stay(flow: Flow) -> None:
    for stage, model in (("one", "base"), ("two", "tuned"), ("three", "base")):
        flow.asks(stage, **{model: on(0)})
    assert flow.make() == ["base", "tuned", "base"]
    flow.instances.clear()
    for stage, model in (("four", "base"), ("five", "tuned"), ("six", "base")):
        flow.asks(stage, **{model: on(0, gpu_memory_share=0.4)})
    assert flow.make() == ["base", "tuned"]


def test_rejects_servers_of_one_stage_that_do_not_fit_before_any_work(flow: Flow) -> None:
    flow.asks("one", base=on(0))
    flow.asks("two", base=on(0), judge=on(0, 1))
    with pytest.raises(ConfigError, match=r"1/two: the servers of base, judge would share GPU 0, .* add up to 1\.7"):
        flow.make()
    assert not flow.lived
    flow.instances.pop()
    flow.trains("two", devices=(4,))
    with pytest.raises(ConfigError, match=r"devices = \[4\]: there is no GPU 4; those .* are 0 to 3"):
        flow.make()
    assert not flow.lived


def test_server_used_during_training_needs_its_own_devices(flow: Flow) -> None:
    def both(*devices: int) -> Instance:
        judge = ModelSettings(model="judge", server=on(*devices))
        settings = Both(options=SftOptions(variant="cuda", devices=(0, 1)), judge=judge)
        stage = Stage(name="one", version=1, settings=Both, produces=(NUMBERS,), run=flow._body)
        return Instance(address=Address(1, "one"), stage=stage, settings=settings)

    check_devices_fit(both(2))
    with pytest.raises(ConfigError, match=r"1/one trains on GPU 1, where the servers of judge,.*separate `devices`"):
        check_devices_fit(both(1, 2))


def test_finished_stages_are_neither_refused_nor_served(flow: Flow) -> None:
    flow.asks("one", base=on(0))
    flow.asks("two", base=on(1))
    flow.make()
    flow.elsewhere = "01"
    with holder("0", "1"):
        assert flow.make(wait_s=0.0) == []
    flow.elsewhere = ""
    assert flow.make(forced=[Address(1, "one")]) == ["base"]


def test_two_servers_on_one_port_alternate(flow: Flow) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flow.asks("one", base=on(0, port=port))
    flow.asks("two", judge=on(1, port=port))
    flow.asks("three", base=on(0, port=port))
    assert flow.make() == ["base", "judge", "base"] and flow.heard("1/two needs its port")


def test_server_that_crashed_between_stages_is_restarted(flow: Flow) -> None:
    flow.asks("one", base=on())
    flow.asks("two", base=on())
    flow.before = {"two": kill_servers}
    assert flow.make() == ["base", "base"]
    assert flow.heard("vllm server for base exited with code 137")


def test_server_that_stopped_responding_between_stages_is_restarted(flow: Flow) -> None:
    flow.asks("one", base=on())
    flow.asks("two", base=on())
    flow.before = {"two": lambda: Path(os.environ[BROKEN]).touch()}
    assert flow.make() == ["base", "base"]
    assert flow.heard("stopping vllm server for base: it no longer answers and is started again")


def test_server_crash_within_a_stage_is_reported_and_the_retry_gets_another(flow: Flow) -> None:
    flow.asks("one", base=on())
    (item,) = flow.instances
    tries: list[int] = []

    def body(context: StageContext) -> Mapping[str, Any]:
        tries.append(1)
        if len(tries) == 1:
            kill_servers()
            raise StageFailed("no answer")
        return flow._body(context)

    again = replace(item, stage=replace(item.stage, run=body))
    with ModelServers(flow.run, [again], notify=flow.said.append) as of_flow:
        with pytest.raises(StageFailed, match="no answer"):
            run_instance(again, flow.run, servers=of_flow)
        assert flow.heard("exited with code 137 while 1/one was running; log: ")
        run_instance(again, flow.run, servers=of_flow)
    assert len(starts()) == 2


def test_gpu_used_by_another_process_is_named_with_its_holder(flow: Flow) -> None:
    flow.trains("training", devices=(1,))
    with holder("1", "2") as other:
        held = f"GPU 1 is held by process {other.pid} for 1/rl@phase-1 of run other since"
        with pytest.raises(EngineError, match=f"1/training of run r waited 0 s .*: {held}"):
            flow.make(wait_s=0.0)
        assert not flow.lived
        assert [one.gpu for one in occupied_gpus(["0", "1", "2"])] == ["1", "2"]
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert flow.make(wait_s=0.0) == [] and "training" in flow.lived, "a claim dies with its process"


def test_waiting_for_a_gpu_holds_none_and_continues_when_free(flow: Flow) -> None:
    flow.asks("one", base=on(0))
    flow.asks("two", base=on(0), judge=on(1))
    shown: list[InstanceStatus] = []
    with holder("1") as other:

        def hear(line: str) -> None:
            flow.said.append(line)
            if "1/two of run r waits: GPU 1 is held by process" in line:
                assert are_free("0"), "the server on GPU 0 was stopped"
                shown.append(flow.run.status(Address(1, "two")))
                other.kill()
                other.wait()

        with ModelServers(flow.run, flow.instances, wait_s=60.0, notify=hear) as of_flow:
            for item in flow.instances:
                run_instance(item, flow.run, servers=of_flow)
    assert [start["name"] for start in starts()] == ["base", "base", "judge"]
    assert flow.heard("stopping vllm server for base", "has to wait")
    assert [status.waits_for for status in shown] == [f"GPU 1 of process {other.pid}"]
    assert flow.run.status(Address(1, "two")).waits_for == ""
    console = Console(width=160)
    with console.capture() as capture:
        console.print(status_table(flow.run, shown, forced=False))
    assert f"not started, waits for GPU 1 of process {other.pid}" in capture.get()


def test_waiting_stops_when_another_process_has_done_the_work(flow: Flow) -> None:
    flow.asks("one", base=on(0))
    (item,), asked = flow.instances, iter([True, False])
    with (
        holder("0"),
        ModelServers(flow.run, notify=flow.said.append) as of_flow,
        of_flow.serving(item, lambda: next(asked)) as served,
    ):
        assert served is item
    assert flow.heard("1/one of run r waits: GPU 0") and not starts()


def test_manually_started_server_reports_who_holds_its_gpu(flow: Flow) -> None:
    with holder("0") as other, pytest.raises(EngineError, match=f"GPU 0 is held by process {other.pid} .*CUDA_VISIBLE"):
        servers.serve_until_interrupted(on(0), notify=flow.said.append)


def write_nvidia_smi(folder: Path, uuids: Sequence[str]) -> None:
    folder.mkdir()
    lines = 'echo asked >> "$0.log"\n' + "".join(f"echo '{n}, {uuid}'\n" for n, uuid in enumerate(uuids))
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{lines}")
    (folder / "nvidia-smi").chmod(0o755)


def test_gpu_is_identified_by_driver_id_not_number(flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.environ["PATH"]
    write_nvidia_smi(tmp_path / "all", ["GPU-a", "GPU-b"])
    write_nvidia_smi(tmp_path / "job", ["GPU-b"])
    monkeypatch.setenv("PATH", f"{tmp_path / 'all'}:{path}")
    with holder("1"):
        monkeypatch.setenv("PATH", f"{tmp_path / 'job'}:{path}")
        assert str(GpuClaims().take(["0"], "")).startswith("GPU 0 is held by process")
        monkeypatch.setenv("PATH", f"{tmp_path / 'all'}:{path}")
        assert are_free("0")
        assert str(GpuClaims().take(["GPU-b"], "")).startswith("GPU GPU-b is held by process")
    asked = (tmp_path / "all" / "nvidia-smi.log").read_text()
    assert asked.count("asked") == 2, "by the holder and by this process, each once"


def test_command_line_shares_a_server_between_the_stages_of_a_run(tmp_path: Path) -> None:
    desk = set_up(tmp_path, "http://127.0.0.1:9/v1")
    config = (tmp_path / "run.toml").read_text()
    served = re.sub(r"endpoints = .*", 'server = { type = "tutor" }', config)
    judged = served.replace("[scores]\n", '[scores]\njudges.models = ["tutor"]\njudges.domains = ["math"]\n')
    (tmp_path / "run.toml").write_text('flow.models = ["tutor"]\n' + judged)
    done = desk.treadle("run", "run.toml", "--run", "r").succeeded()
    assert done.err.count("starting tutor server") == 1
    scored = desk.treadle("stage", "1/scores@tutor", "--run", "r", "--force", "--json").succeeded()
    assert scored.err.count("starting tutor server") == 1, "alone it needs one too, and logs that next to the JSON"
    assert "starting" not in desk.treadle("run", "--run", "r").succeeded().err
