"""The last lines of a log, which may be large and still written to."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.tasks.inspection import attempt_logs


@given(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=9), st.booleans(), st.data())
def test_last_lines_are_found_from_the_end(lines: list[bytes], is_cut: bool, data: st.DataObject) -> None:
    content = b"".join(line + b"\n" for line in lines) + (b"begun" if is_cut else b"")
    count = data.draw(st.integers(0, 10))
    file = io.BytesIO(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt_logs, "_BLOCK_BYTES", data.draw(st.integers(1, 20)))
        assert attempt_logs._last_lines(file, count) == lines[len(lines) - min(count, len(lines)) :]
    # What follows is read from the begin of the line that is not complete.
    assert file.read() == (b"begun" if is_cut else b"")
