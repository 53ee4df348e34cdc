"""The guide's flow of a user's own, with a stage and a flow of ours as tasks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.runs.processes import until
from support.servers.prefect_api import ask

from treadle.api import open_run

ROOT = Path(__file__).resolve().parents[2]


def test_flow_of_a_user_runs_a_stage_and_a_flow_of_ours_as_tasks(
    prefect_home, sample_run_config: Path, tmp_path: Path
) -> None:
    guide = (ROOT / "docs/guides/prefect.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    script = tmp_path / "nightly.py"
    script.write_text(f"{code}    nightly()\n")  # again: continues the finished run
    (tmp_path / "run.toml").write_text(sample_run_config.read_text())
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=prefect_home.env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ours = {"flows": {"name": {"any_": ["nightly"]}}}
    flow_runs = ask("POST", f"{prefect_home.url}/flow_runs/filter", ours)
    assert [flow_run["state_type"] for flow_run in flow_runs] == ["COMPLETED"] * 2

    def task_runs() -> list[dict[str, str]]:
        found = ask("POST", f"{prefect_home.url}/task_runs/filter", ours)
        return sorted(found, key=lambda task_run: task_run["start_time"])

    # Prefect's client sends the states of tasks as events, which the server writes down a little later.
    until(lambda: [one["state_type"] for one in task_runs()] == ["COMPLETED"] * 4, "four tasks completed")
    assert [one["name"] for one in task_runs()[::2]] == ["1/questions"] * 2
    # The first flow finds the questions that the task made, the second everything, questions twice.
    num_instances = len(open_run("nightly", tmp_path / "outputs").instances)
    assert done.stderr.count("(unchanged, reused)") == 1 + 1 + num_instances
