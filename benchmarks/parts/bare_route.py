"""Answer one POST of JSON with FastAPI and uvicorn, as the environment service does, and nothing else.

    python bare_route.py

Prints its port.
"""

from __future__ import annotations

import socket

import orjson
import uvicorn
from fastapi import FastAPI, Request, Response

from treadle.core import steady_loop

app = FastAPI()


@app.post("/step")
async def step(request: Request) -> Response:
    """Return a state with the content of the action."""
    body = orjson.loads(await request.body())
    message = {"role": "user", "content": body["messages"]["content"]}
    state = {"state": [message], "reward": 0.0, "is_terminated": False, "info": {}}
    return Response(orjson.dumps({"success": True, "data": state}), media_type="application/json")


async def serve(listener: socket.socket) -> None:
    """Serve until a signal."""
    await uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).serve(sockets=[listener])


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as own:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(own.getsockname()[1], flush=True)
        steady_loop.run(serve(own))
