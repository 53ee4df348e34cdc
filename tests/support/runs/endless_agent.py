"""A server that a run starts as its own, in place of the tutor: its model calls Python with a program without end."""

from __future__ import annotations

import argparse
import asyncio

from support.servers.scripted_server import ScriptedServer

NAME = "endless"
"""What its processes are called."""
PROGRAM = f"""
import ctypes, os, time
ctypes.CDLL(None).prctl(15, b"{NAME}")
if os.fork() == 0:
    os.setsid()
while True:
    time.sleep(1)
"""


async def serve(port: int) -> None:
    """Reply until killed."""
    async with ScriptedServer(lambda request: f"<python>{PROGRAM}</python>", model="treadle-tutor", port=port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--persona")
    asyncio.run(serve(parser.parse_args().port))
