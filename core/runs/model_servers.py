"""Show what the model servers of a running stage do: its process writes their states into the attempt's work folder.

The file is a view for `treadle status` and `/metrics`, and no part of any result.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from treadle.core.runs.records import ModelServerStatus

_FILE = "model-servers.json"
_STATES = TypeAdapter(tuple[ModelServerStatus, ...])
_log = logging.getLogger(__name__)


def write_model_servers(scratch: Path, states: Sequence[ModelServerStatus]) -> None:
    """Replace the states in the scratch folder of an attempt. A failure is logged: the work does not depend on them."""
    try:
        # Nobody needs them after a crash, so the event loop does not wait for the disk.
        (new := scratch / f"{_FILE}.new").write_bytes(orjson.dumps([one.model_dump() for one in states]))
        os.replace(new, scratch / _FILE)
    except OSError as error:
        _log.debug("the states of the model servers cannot be written: %s", error)


def read_model_servers(scratch: Path) -> tuple[ModelServerStatus, ...]:
    """Return the last states in the scratch folder of an attempt, none if nothing readable is there."""
    try:
        return _STATES.validate_json((scratch / _FILE).read_bytes())
    except (OSError, ValidationError):
        return ()
