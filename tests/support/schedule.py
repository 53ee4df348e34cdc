"""How tests are divided among the processes of `pytest --dist loadfile`."""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling

SPREAD = ("test_docs_commands.py",)
"""Files whose tests share nothing that takes long to make."""
PREFECT = (
    "test_curriculum_deployments.py",
    "test_deployments.py",
    "test_docs_prefect.py",
    "test_own_flow.py",
    "test_schedules.py",
    "test_secrets_and_kills.py",
)
"""Files whose tests use one Prefect server."""
VLLM = ("test_played_vllm.py", "test_pools.py", "test_scored_by_vllm.py", "test_serving.py")
"""Files whose tests use one vLLM server."""


class SharedServers(LoadScopeScheduling):
    """A scheduler that gives all tests which share servers and fixtures to one process, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        name = PurePath(file).name
        if name in PREFECT or test.startswith("test_demo_on_a_given_server"):
            return "prefect_home"
        if name in VLLM:
            return "served_embedded_model"
        return nodeid if name in SPREAD else file
