"""The journal under SIGKILL: acknowledged records survive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from treadle.core.journal.journal import Journal

WRITER = """
import sys
from pathlib import Path
from treadle.core.journal.journal import Journal
journal = Journal(Path(sys.argv[1]), segment_bytes=50_000)
for index in range(1_000_000):
    journal.append(f"o{index}", "llm-0", b"x" * (index % 3000))
    journal.finish(f"o{index}", str(index).encode() * 100)
    print(index, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [0, 7, 150])
def test_kill_loses_no_acknowledged_record(tmp_path: Path, acknowledged: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == acknowledged:
                break
        child.kill()
        last = [acknowledged, *map(int, filter(str.strip, child.stdout))][-1]
    with Journal(tmp_path) as journal:
        for index in range(last + 1):
            assert journal.finished(f"o{index}") == str(index).encode() * 100
        # At most the record being written survives without having been acknowledged.
        assert journal.num_finished in (last + 1, last + 2)
        assert journal.num_damaged == 0
