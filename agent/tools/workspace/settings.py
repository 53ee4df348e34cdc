"""Settings of the tools of type `workspace`. Rules: docs/behaviour/workspace.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from treadle.agent.sandbox.config import SandboxSettings
from treadle.agent.tools.settings import ToolResources, ToolSettings
from treadle.agent.tools.workspace.tools import ToolName
from treadle.core.config import Operational

if TYPE_CHECKING:
    from treadle.agent.tools.workspace.source import WorkspaceSource

_ALL: tuple[ToolName, ...] = ("shell", "read_file", "write_file", "edit_file", "list_files")


class WorkspaceSettings(ToolSettings):
    """A workspace per rollout, with a shell and tools for files."""

    type: Literal["workspace"] = "workspace"
    tools: tuple[ToolName, ...] = Field(default=_ALL, min_length=1)
    """The tools that the model gets."""
    time_limit_s: float = Field(default=60.0, gt=0)
    """Wall time limit of one command, in seconds."""
    max_output_chars: int = Field(default=4000, ge=100)
    """Longest result in characters. A longer one keeps its head and its tail."""
    size_mb: int = Field(default=256, ge=1)
    """Size of the workspace in MiB; a command that exceeds it is killed."""
    sandbox: SandboxSettings = SandboxSettings()
    """Limits of commands. `packages` can be imported by its `python`; hidden tests often need `pytest`."""
    backend: Literal["sandbox", "container"] = "sandbox"
    """`container` runs each workspace in a container of Podman or Docker."""
    image: str | None = Field(default=None, min_length=1)
    """Image of the containers; it needs `sh`, `tar` and the usual commands, and must be present on the machine."""
    engine: Operational[Literal["auto", "podman", "docker"]] = "auto"
    """Program that runs the containers; `auto` takes the first that works."""
    network: bool = False
    """Whether commands in containers reach the network."""
    cpus: float = Field(default=1.0, gt=0)
    """Processors that a container may use."""
    folder: Operational[Path | None] = None
    """Folder of the host for the workspaces of sandboxes; default: the system's folder for temporary files."""

    @model_validator(mode="after")
    def _check_backend(self) -> Self:
        if len(set(self.tools)) < len(self.tools):
            raise ValueError("tools names one twice")
        if self.backend == "container":
            if self.image is None:
                raise ValueError('backend = "container" needs an image')
            return self
        if self.sandbox.kind != "bubblewrap":
            raise ValueError(
                f'a workspace needs sandbox.kind = "bubblewrap", not {self.sandbox.kind!r}; or set backend = '
                '"container"'
            )
        if self.network or self.image is not None:
            raise ValueError('network and image belong to backend = "container"')
        return self

    def with_interpreter(self, interpreter: Path) -> Self:
        """See `ToolSettings`."""
        if self.sandbox.interpreter is not None:
            return self
        return self.model_copy(update={"sandbox": self.sandbox.model_copy(update={"interpreter": interpreter})})

    def source(self, name: str, resources: ToolResources) -> WorkspaceSource:
        """Return the source; `name` is no part of the tools' names."""
        from treadle.agent.tools.workspace.backend import Workspaces
        from treadle.agent.tools.workspace.source import WorkspaceSource

        workspaces: Workspaces
        if self.backend == "container":
            from treadle.agent.tools.workspace.container import ContainerOptions, ContainerWorkspaces

            options = ContainerOptions(
                self.image or "", self.engine, self.network, self.cpus, self.size_mb, self.sandbox
            )
            workspaces = ContainerWorkspaces(options, self.folder)
        else:
            from treadle.agent.tools.workspace.sandboxed import SandboxedWorkspaces

            workspaces = SandboxedWorkspaces(self.sandbox, self.size_mb, self.folder)
        return WorkspaceSource(
            workspaces, self.tools, time_limit_s=self.time_limit_s, max_output_chars=self.max_output_chars
        )
