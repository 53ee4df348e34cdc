"""The guide's flow of a user's own, with a stage and a flow of ours as tasks, and the server that Prefect starts."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

from treadle.api import open_run

ROOT = Path(__file__).resolve().parents[2]


def test_flow_of_a_user_runs_a_stage_and_a_flow_of_ours_as_tasks(sample_run_config: Path, tmp_path: Path) -> None:
    guide = (ROOT / "docs/guides/prefect.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    script = tmp_path / "nightly.py"
    script.write_text(f"{code}    nightly()\n")  # again: continues the finished run
    (tmp_path / "run.toml").write_text(sample_run_config.read_text())
    home = tmp_path / "prefect"
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")},
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with sqlite3.connect(home / "prefect.db") as database:
        flows = database.execute("select state_type from flow_run").fetchall()
        tasks = database.execute("select name, state_type from task_run order by start_time").fetchall()
    assert flows == [("COMPLETED",), ("COMPLETED",)]
    assert [state for _, state in tasks] == ["COMPLETED"] * 4
    assert [name for name, _ in tasks[::2]] == ["1/questions"] * 2
    # The first flow finds the questions that the task made, the second everything, questions twice.
    num_instances = len(open_run("nightly", tmp_path / "outputs").instances)
    assert done.stderr.count("(unchanged, reused)") == 1 + 1 + num_instances
