"""The process that reads a data set with `datasets`: `python -P -m treadle.datagen.questions.dataset_worker`.

Its memory is limited, so that a folder of a few kB cannot exhaust the machine's memory. It keeps access to files and,
for the hub, to network and keys, because it needs them. Rows are sent in frames (`core/untrusted/row_frames.py`).
"""

from __future__ import annotations

import json
import os
import sys

from treadle.core.untrusted.process_confinement import limit_memory
from treadle.core.untrusted.worker_frames import open_frames

_ROWS_AT_ONCE = 256


def main(arguments: list[str]) -> int:
    """Read a data set and send its rows to standard output.

    The argument is JSON: `memory_bytes`, `where` (folder or hub id), `config`, `split`, `revision`.
    """
    job = json.loads(arguments[0])
    frames = open_frames()
    limit_memory(job["memory_bytes"], may_write=True)
    from treadle.core.untrusted import row_frames, row_sending

    try:
        import datasets

        rows = datasets.load_dataset(
            job["where"], job["config"], split=job["split"], revision=job["revision"], streaming=True
        )
        for table in rows.with_format("arrow").iter(_ROWS_AT_ONCE):
            schema = row_sending.send_schema(frames, table.schema)
            for batch in table.to_batches():
                row_sending.send_rows(frames, batch, schema)
        row_sending.send(frames, row_frames.END, b"")
    except BrokenPipeError:
        os._exit(0)  # The parent has closed the pipe: it needs no more rows.
    except Exception as error:  # noqa: BLE001 - whatever it is, the data set is the cause
        row_sending.send(frames, row_frames.PROBLEM, row_sending.problem(error))
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
