"""Run the experience service in uvicorn, from start to shutdown."""

from __future__ import annotations

from collections.abc import Callable

import uvicorn

from treadle.retriever.service.listening import KEEP_ALIVE_S, listen, url_of
from treadle.rl.experience.entry import experience_roles
from treadle.rl.experience.service.app import make_app
from treadle.rl.experience.service.config import ExperienceServiceConfig


def serve(config: ExperienceServiceConfig, on_listening: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; requests in flight are finished.

    `on_listening` is called with the URL. Raises ConfigError (models, no token, port in use), DataError for a pool that
    cannot be read, and EndpointUnavailable for a model that cannot be reached.
    """
    options, settings = config.experience, config.service
    roles = experience_roles(config.models, options, "") if options.summariser.model is not None else None
    app = make_app(config, roles)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=settings.shutdown_s,
        )
    )
    with listen(settings) as listener:
        on_listening(url_of(listener))
        server.run(sockets=[listener])
    if app.state.failure is not None:
        raise app.state.failure
