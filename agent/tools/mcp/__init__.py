"""Tools of MCP servers: stdio servers in the sandbox, and streamable HTTP, through the official client package."""
