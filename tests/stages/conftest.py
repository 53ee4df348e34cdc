"""What the stage tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.object_server import ObjectServer, in_environment, object_server


@pytest.fixture(scope="session")
def objects() -> Iterator[ObjectServer]:
    """An object store on loopback."""
    with object_server() as server:
        yield server


@pytest.fixture
def object_root(objects: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An empty root on it, and a machine that never saw it."""
    with in_environment({**objects.environment, "TREADLE_WORK": str(tmp_path_factory.mktemp("work"))}):
        yield objects.new_root()
