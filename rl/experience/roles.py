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

    async def opened(name: str, role: RoleSettings) -> RoleModel:
        session = await sessions.model(role.name, role.model, role.tokenizer_digest)
        return session.for_role(name, role.sampling, only_messages=True)

    summariser, validator = roles
    return Author(await opened(SUMMARISER, summariser), await opened(VALIDATOR, validator), options, seed)
