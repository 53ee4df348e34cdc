"""Fixtures of the stage tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support.servers.object_server import ObjectServer, in_environment, object_server

if TYPE_CHECKING:
    from support.runs.failing_disk import FailingDisk, Undisturbed


@pytest.fixture(scope="session")
def objects() -> Iterator[ObjectServer]:
    """Yield an object store on loopback."""
    with object_server() as server:
        yield server


@pytest.fixture
def object_root(objects: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield an empty root on it, and a machine that never saw it."""
    with in_environment({**objects.environment, "TREADLE_WORK": str(tmp_path_factory.mktemp("work"))}):
        yield objects.new_root()


@pytest.fixture(scope="module")
def disk() -> Iterator[FailingDisk]:
    """Yield a desk on a disk that can be made to fail, with a world and its tutor."""
    from support.runs.failing_disk import in_memory

    with in_memory() as disk:
        yield disk


@pytest.fixture(scope="module")
def undisturbed(disk: FailingDisk) -> Undisturbed:
    """Return the results and files of a run in which nothing fails."""
    from support.runs.failing_disk import undisturbed_run

    return undisturbed_run(disk)
