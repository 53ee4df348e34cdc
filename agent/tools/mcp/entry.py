"""Define the type `mcp` of entries of `environment.tools`."""

from __future__ import annotations

from treadle.agent.tools.mcp.settings import McpServerSettings
from treadle.agent.tools.settings import ToolResources
from treadle.agent.tools.source import ToolSource


class McpSettings(McpServerSettings):
    """MCP server whose tools an agent may call, under the names `NAME_tool`."""

    def source(self, name: str, resources: ToolResources) -> ToolSource:
        """Return the source of the server's tools."""
        from treadle.agent.tools.mcp.source import McpSource

        return McpSource(name, self, resources)
