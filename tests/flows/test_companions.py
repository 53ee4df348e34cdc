"""A flow run of Prefect starts the companions of its run and stops them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

COMPANION = """
import os, sys, time
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
print("ready", flush=True)
time.sleep(600)
"""


def test_flow_run_has_its_companions(prefect_home, sample_run_config: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    command = json.dumps([sys.executable, "-S", "-c", COMPANION, str(tmp_path / "pids")])
    companion = f'[[companions]]\nname = "desk"\ncommand = {command}\nready_text = "ready"\n'
    file.write_text(f"{sample_run_config.read_text()}\n{companion}")
    root = str(tmp_path / "outputs")
    done = prefect_home.run("treadle", "run", str(file), "--run", "companions", "--root", root, "--prefect")
    assert done.returncode == 0, done.stderr
    # The command starts it for its checks, and the flow that it calls finds it.
    assert done.stderr.count("companion desk is ready") == 1
    prefect_home.run_deployment("flywheel/full", run_id="companions", root=root)
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)
