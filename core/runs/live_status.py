"""Show what a running stage does now: its process writes its status into the attempt's work folder.

The file is a view for `treadle status` and `/metrics`, and no part of any result.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import orjson
from pydantic import ValidationError

from treadle.core.runs.records import LiveStatus

_FILE = "live-status.json"
_log = logging.getLogger(__name__)


def write_live_status(scratch: Path, status: LiveStatus) -> None:
    """Replace the status in the scratch folder of an attempt. A failure is logged: the work does not depend on it."""
    try:
        # It is of no use after a crash, so the event loop does not wait for the disk.
        (new := scratch / f"{_FILE}.new").write_bytes(orjson.dumps(status.model_dump()))
        os.replace(new, scratch / _FILE)
    except OSError as error:
        _log.debug("the status of the stage cannot be written: %s", error)


def read_live_status(scratch: Path) -> LiveStatus:
    """Return the last status in the scratch folder of an attempt, an empty one if nothing readable is there."""
    try:
        return LiveStatus.model_validate_json((scratch / _FILE).read_bytes())
    except (OSError, ValidationError):
        return LiveStatus()
