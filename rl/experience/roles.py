"""Open the models that write and check experience."""

from __future__ import annotations

from treadle.agent.model_sessions import ModelSessions
from treadle.agent.role import RoleModel
from treadle.agent.role_settings import RoleSettings
from treadle.rl.experience.author import Author
from treadle.rl.experience.settings import AuthorOptions

SUMMARISER, VALIDATOR = "summariser", "validator"


async def open_author(
    sessions: ModelSessions, roles: tuple[RoleSettings, RoleSettings], options: AuthorOptions, seed: int
) -> Author:
    """Open summariser and validator, and check their servers. Raises ConfigError and EndpointUnavailable."""
    summariser, validator = [
        await _open(sessions, name, role) for name, role in zip((SUMMARISER, VALIDATOR), roles, strict=True)
    ]
    return Author(summariser, validator, options, seed)


async def _open(sessions: ModelSessions, name: str, role: RoleSettings) -> RoleModel:
    session = await sessions.model(role.name, role.model, role.tokenizer_digest)
    return session.for_role(name, role.sampling, only_messages=True)
