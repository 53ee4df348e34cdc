"""`treadle work` as clusters use it: started before the run, preempted by SIGTERM, on machines that share a bucket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.runs.crash_bench import ROLLOUTS, RUN, TREADLE, TUTOR_CONFIG, crash_bench
from support.runs.gate import gate
from support.runs.processes import end_family, until

from treadle.core.runs.run import Run, list_runs
from treadle.core.runs.shards import Shards
from treadle.core.store.leases import holder_of

CONFIG = """
[environment]
search.enabled = false
python.enabled = false

[flow]
stages = ["rollouts"]

[rollouts]
shards = 6
max_concurrent = 2
sampling = { max_tokens = 256 }
"""


class Machine:
    """A `treadle` command with a working folder of its own."""

    def __init__(self, folder: Path, *words: str) -> None:
        folder.mkdir()
        self.said = folder / "said.txt"
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [TREADLE, *words, "--run", RUN],
                env={**os.environ, "TREADLE_WORK": str(folder / "work")}, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip

    def end(self) -> tuple[int, str]:
        return self.process.wait(timeout=300), self.said.read_text()


def held(root: str) -> dict[int, int]:
    """Shard -> process that holds it."""
    shards = _shards(root)
    plan = shards.plan() if shards is not None else None
    if shards is None or plan is None:
        return {}
    found = {index: holder_of(shards.storage, shards.lock_key(index)) for index in range(plan.num_shards)}
    return {index: holder.pid for index, holder in found.items() if holder is not None}


def _shards(root: str) -> Shards | None:
    if RUN not in list_runs(root):
        return None
    run = Run.open(root, RUN)
    attempts = run.attempts(ROLLOUTS)
    return run.shards(ROLLOUTS, attempts[-1].journal_name) if attempts else None


@pytest.mark.sweep
def test_helper_waits_for_the_run_and_releases_its_shard_when_preempted(object_root: str, tmp_path: Path) -> None:
    machines = dict[str, Machine]()
    with crash_bench(tmp_path / "bench", documents=100, questions=40) as tutor, gate(tutor.url) as door:
        config = tmp_path / "run.toml"
        config.write_text(TUTOR_CONFIG.format(folder=tutor.folder, url=door.url) + CONFIG)
        work = ("work", "--wait", "--root", object_root)
        try:
            machines["early"] = Machine(tmp_path / "early", *work)
            until(lambda: "waiting for run" in machines["early"].said.read_text(), "it waits for the run")
            machines["run"] = Machine(tmp_path / "run", "run", str(config), "--root", object_root)
            preempted = machines["early"].process
            until(lambda: preempted.pid in held(object_root).values(), "the early one has a shard", 120, 0.2)
            shard = next(index for index, pid in held(object_root).items() if pid == preempted.pid)
            preempted.send_signal(signal.SIGTERM)
            code, said = machines["early"].end()
            assert code == 130 and said.splitlines()[-1].startswith("treadle: interrupted")
            shards = _shards(object_root)
            assert shards is not None
            assert json.loads(shards.storage.get(shards.lock_key(shard)) or b"")["released"]
            machines["late"] = Machine(tmp_path / "late", *work)
            until(lambda: machines["late"].process.pid in held(object_root).values(), "another one helps", 120, 0.2)
            door.open()
            for name in ("run", "late"):
                code, said = machines[name].end()
                assert code == 0, said
            unshared = ("work", "1/questions", "--wait", "--root", object_root)
            ended = [Machine(tmp_path / f"then{number}", *words) for number, words in enumerate((work, unshared))]
            machines |= {str(number): machine for number, machine in enumerate(ended)}
            assert [machine.end() for machine in ended] == [
                (0, f"run {RUN}: nothing to help with\n"),
                (1, "treadle: 1/questions: a stage questions is not sharded; `treadle work` cannot join it\n"),
            ]
        finally:
            for machine in machines.values():
                if machine.process.poll() is None:
                    end_family(machine.process)
    assert f"{ROLLOUTS}: " in machines["late"].said.read_text()
    assert "processed here" in machines["late"].said.read_text()
