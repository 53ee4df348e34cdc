"""Start Chromium in a sandbox: no network, no files of this machine but the system's programs and fonts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from treadle.agent.browser.devtools import BrowserLost, CommandFailed, DevTools
from treadle.agent.browser.settings import BrowserSettings
from treadle.agent.sandbox.guardian import Guardian
from treadle.agent.sandbox.server_process import ServerProcess
from treadle.agent.sandbox.servers import ServerLauncher, ServerSettings
from treadle.agent.sandbox.usage import UsageWatch
from treadle.core.errors import SandboxError

_NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
"""Names of Chromium on the search path, tried in this order.

A headless shell is Chromium without windows; it starts pages in half the time.
"""
_REAL_FOLDERS = ("/usr/lib/chromium", "/usr/lib/chromium-browser", "/opt/google/chrome")
"""Folders of the real Chromium, used if the program on the search path is a shell script that starts it.

Such a script reads files that are not in the sandbox.
"""
_FONTS = Path("/etc/fonts")
_START_S = 60.0
_MESSAGE_BYTES = 256 << 20
"""Longest message of Chromium in bytes: it can contain a picture of `max_height`, in base64."""
_ON_PIPES = 'exec "$0" "$@" 3<&0 4>&1 1>&2'
"""Shell command that starts a program with stdin and stdout as descriptors 3 and 4, which the protocol uses."""
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # Its own sandbox needs namespaces, which programs in this one cannot make.
    "--user-data-dir=/tmp/profile",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-features=Translate,MediaRouter,OptimizationHints,PaintHolding",
    "--disable-sync",
    "--no-first-run",
    "--mute-audio",
    "--blink-settings=lazyLoadEnabled=false",  # Pictures far below the window are drawn, too.
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--js-flags=--max-old-space-size=512",
)


def find_chromium(settings: BrowserSettings) -> Path:
    """Return the path of the Chromium program; raise SandboxError, with a remedy, if there is none."""
    if settings.program is not None:
        if not os.access(settings.program, os.X_OK):
            raise SandboxError(f"environment.browser.program: {settings.program} is no program")
        return settings.program
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            return _behind_script(Path(found))
    raise SandboxError(
        "there is no Chromium to draw pages with: install the system's package `chromium`, or name the program as "
        "environment.browser.program"
    )


def _behind_script(path: Path) -> Path:
    with path.open("rb") as file:
        is_script = file.read(2) == b"#!"
    real = [place for folder in _REAL_FOLDERS if os.access(place := Path(folder, path.name), os.X_OK)]
    return real[0] if is_script and real else path


class ChromiumLauncher:
    """Launcher of browsers. Its constructor blocks for about a second and raises SandboxError if it fails."""

    def __init__(self, settings: BrowserSettings) -> None:
        program = find_chromium(settings)
        size = f"--window-size={settings.width},{settings.height}"
        command = ("/bin/sh", "-c", _ON_PIPES, str(program), *_FLAGS, size, "about:blank")
        folder = program.resolve().parent
        own = () if folder.is_relative_to("/usr") else (folder,)
        read = (*((_FONTS,) if _FONTS.is_dir() else ()), *own)
        self._launcher = ServerLauncher(ServerSettings(command, read=read, memory_mb=settings.memory_mb))

    @contextlib.asynccontextmanager
    async def running(self, guardian: Guardian, usage: UsageWatch) -> AsyncIterator[Chromium]:
        """Run a browser for the duration of the block, and end all its processes afterwards. Raises SandboxError."""
        process = await ServerProcess.start(guardian, self._launcher, _MESSAGE_BYTES, lambda num_bytes: None)
        devtools = DevTools(process)
        watching = asyncio.create_task(self._watch(process, usage))
        try:
            yield await _greeted(devtools, process)
        finally:
            watching.cancel()
            await devtools.close()
            await asyncio.shield(process.close(grace=False))

    async def _watch(self, process: ServerProcess, usage: UsageWatch) -> None:
        await process.watch(usage, self._launcher.memory_bytes)
        process.kill()


class Chromium:
    """Running browser.

    Attributes:
        devtools: Client of its DevTools protocol.
        product: Its name and version.
    """

    def __init__(self, devtools: DevTools, product: str) -> None:
        self.devtools, self.product = devtools, product


async def _greeted(devtools: DevTools, process: ServerProcess) -> Chromium:
    try:
        async with asyncio.timeout(_START_S):
            facts = await devtools.call("Browser.getVersion")
    except TimeoutError:
        raise SandboxError(f"Chromium did not answer within {_START_S:g} s{_last_words(process)}") from None
    except (BrowserLost, CommandFailed) as error:
        raise SandboxError(f"Chromium does not run in the sandbox: {error}{_last_words(process)}") from None
    return Chromium(devtools, str(facts.get("product", "")))


def _last_words(process: ServerProcess) -> str:
    lines = [line for line in process.errors().splitlines() if line.strip() and "dbus" not in line]
    return f"; it wrote: {lines[-1][:300]}" if lines else ""
