"""The viewer of a run whose root is an object store."""

from __future__ import annotations

from starlette.testclient import TestClient
from support.tables.viewer_run import example_run, traced

from treadle.core.runs.run import Run
from treadle.viewer.app import make_app


def test_viewer_shows_trajectories_of_an_object_store(object_root: str) -> None:
    example_run(object_root)
    viewer = TestClient(make_app(Run.open(object_root, "test"), traced), base_url="http://127.0.0.1")
    assert "11 trajectories" in viewer.get("/").text
    for path in ("/trajectory/1/rollouts@base/r1", "/changes/1/pools/p2", "/lineage/1/pools/p2", "/?q=vorna"):
        assert viewer.get(path).status_code == 200
