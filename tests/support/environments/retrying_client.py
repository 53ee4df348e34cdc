"""A client process that steps several instances, repeats every request, and reports what it was told.

    python retrying_client.py URL LOG NUM_INSTANCES NUM_STEPS

Each step makes the environment append a line to LOG. Every request is sent twice at once, and again if its connection
breaks. Prints one line of JSON: by instance the number of steps that were answered, and the code of the error that
ended them. A reply that does not follow from the steps so far is an assertion error.
"""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp

TRIES = 3


async def play(session: aiohttp.ClientSession, url: str, log: str, name: str, num_steps: int) -> tuple[int, str]:
    """Step an instance; return the steps that were answered, and what ended them."""
    answered = 0
    try:
        await post(session, f"{url}/create", {"task_id": "plain", "instance_id": name, "request_id": name})
        for number in range(num_steps):
            action = {"role": "assistant", "content": f"log {log} {name}.{number}"}
            body = {"instance_id": name, "messages": action, "request_id": f"{name}.{number}"}
            body["params"] = {"timeout_s": 10.0}
            first, second = await asyncio.gather(*(post(session, f"{url}/step", body) for _ in range(2)))
            assert first == second and json.loads(first)["state"][0]["content"] == f"log {number + 1}", first
            answered += 1
        await post(session, f"{url}/release", {"instance_id": name})
    except ToldError as told:
        return answered, told.args[0]
    return answered, ""


class ToldError(Exception):
    """A structured error, or a connection that stays broken."""


async def post(session: aiohttp.ClientSession, url: str, body: object) -> str:
    """Return the data of a reply as JSON; try again if the connection breaks."""
    for _ in range(TRIES):
        try:
            async with session.post(url, json=body) as response:
                reply = json.loads(await response.read())
        except (aiohttp.ClientError, ConnectionError):
            continue
        if not reply["success"] and "error" in reply:
            raise ToldError(reply["error"]["code"])
        return json.dumps(reply["data"])
    raise ToldError("no connection")


async def main(url: str, log: str, num_instances: str, num_steps: str) -> None:
    """Play all instances at once."""
    names = [f"one-{number}" for number in range(int(num_instances))]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
        ends = await asyncio.gather(*(play(session, url, log, name, int(num_steps)) for name in names))
    print(json.dumps(dict(zip(names, ends, strict=True))))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
