"""Leases between real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from treadle.core.errors import RunError
from treadle.core.store.locks import hold, live_holder

HOLDER = """
import sys, time
from pathlib import Path
from treadle.core.store.locks import FileLease
lease = FileLease(Path(sys.argv[1]), "it")
print(lease.token, flush=True)
sys.stdin.read()
"""


def test_lease_of_a_live_process_is_respected_and_of_a_killed_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "1\n"
        with pytest.raises(RunError, match=f"process {child.pid} "), hold(path, "it"):
            pass
        holder = live_holder(path)
        assert holder is not None
        assert holder.pid == child.pid
        child.kill()
        child.wait()
    assert live_holder(path) is None
    with hold(path, "it") as lease:
        assert lease.token == 2
