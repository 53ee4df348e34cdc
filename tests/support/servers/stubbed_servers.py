"""Model servers of a flow without engines: a running tutor serves every model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from treadle.core.engines.config import VllmServer
from treadle.core.engines.serving import TUTOR_MODEL
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.tables import CHECKPOINTS, MODEL_FOLDER
from treadle.tasks.serving import servers

UrlOf = Callable[[VllmServer], str]
"""What is to be served -> the URL of the tutor that stands for it."""


@contextmanager
def stubbed_servers(url_of: UrlOf) -> Iterator[list[str]]:
    """Within the block no engine is started; yields what was asked to be served, a folder or name each time."""
    served: list[str] = []

    @contextmanager
    def serve(server: VllmServer, **more: Any) -> Iterator[SimpleNamespace]:
        served.append(server.model)
        child = SimpleNamespace(poll=lambda: None, name="stub")
        yield SimpleNamespace(url=url_of(server), model=TUTOR_MODEL, tokenizer_folder=None, child=child)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "serve", serve)
        patch.setattr(servers, "still_answers", lambda served: True)
        yield served


def model_folder(run: Run, address: str) -> Path:
    """Folder of the model that an instance made."""
    record = run.record(Address.parse(address))
    assert record is not None, address
    return run.rows(record.outputs[CHECKPOINTS.kind]).folder(MODEL_FOLDER)
