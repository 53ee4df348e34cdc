"""Define the viewer's web application: routes and server-side rendered pages. See docs/behaviour/viewer.md."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from treadle.core.errors import TreadleError
from treadle.core.runs.run import Run
from treadle.core.untrusted.sanitize import one_line, sanitize, sanitized_json
from treadle.environments.planning.tools.pictures import PICTURES, read_picture
from treadle.viewer import pages
from treadle.viewer.catalogue import Catalogue, Snapshot
from treadle.viewer.dialogue.hidden import hidden
from treadle.viewer.guard import Guard
from treadle.viewer.markup import printed, visible
from treadle.viewer.metrics import metrics_text
from treadle.viewer.preferences.page import preferences
from treadle.viewer.reading import LoadedTrajectory, read_trajectory
from treadle.viewer.selection import Selection

_log = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent / "templates"
_COLOURS = Path(str(files("treadle.core"))) / "colours.css"
"""Style sheet with the colours, which the report's page uses too."""
_STATIC = {
    "colours.css": "text/css",
    "viewer.css": "text/css",
    "viewer.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_REFRESH_S = 3.0
_NO_STORE = {"cache-control": "no-store"}
"""Headers that keep browsers from caching the contents of a run."""
MAX_SHOWN_PIXELS = 40_000_000
"""Pixels of the largest picture that is served; browsers decode all of them."""
_TRAJECTORY_PATH = "/{iteration}/{stage}/{key:path}"
_PageValues = Callable[[Snapshot, LoadedTrajectory, Selection], Mapping[str, Any]]


def make_app(run: Run, trace_back: pages.TraceBack, *, refresh_s: float = _REFRESH_S) -> Starlette:
    """Return the viewer application of a run. `refresh_s`: seconds before finished instances are listed again."""
    viewer = _Viewer(run, refresh_s)
    lineage = partial(pages.lineage, trace_back)
    shown: dict[str, _PageValues] = {"trajectory": pages.trajectory, "changes": pages.changes, "lineage": lineage}
    shown |= {"hidden": hidden, "preferences": preferences}
    routes = [
        Route("/", _handle_errors(viewer.overview)),
        Route("/static/{name}", _static),
        *(
            Route(f"/{name}" + _TRAJECTORY_PATH, _handle_errors(partial(viewer.trajectory_page, name, values)))
            for name, values in shown.items()
        ),
        Route("/json" + _TRAJECTORY_PATH, _handle_errors(viewer.json)),
        Route("/text" + _TRAJECTORY_PATH, _handle_errors(viewer.text)),
        Route("/metrics", _handle_errors(viewer.metrics)),
        Route("/picture/{digest}", _handle_errors(viewer.picture)),
        Route("/{path:path}", _not_found),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard)],
        exception_handlers={HTTPException: viewer.refused, TreadleError: viewer.failed},  # type: ignore[dict-item]
    )


class _Viewer:
    """Request handlers. Each request runs in a separate thread."""

    def __init__(self, run: Run, refresh_s: float) -> None:
        self._run, self._run_id = run, run.run_id
        self._pictures = run.store(PICTURES)
        self._catalogue = Catalogue(run, refresh_s=refresh_s)
        self._templates = _templates()

    def overview(self, request: Request) -> Response:
        """Show the list of trajectories that match a selection, with the filters."""
        snapshot, selection = self._asked(request)
        return self._page("overview.html.jinja", snapshot, pages.overview(snapshot, selection))

    def trajectory_page(self, name: str, values: _PageValues, request: Request) -> Response:
        """Show a page of one trajectory; `values` returns what its template shows."""
        snapshot, one, selection = self._one(request)
        return self._page(f"{name}.html.jinja", snapshot, values(snapshot, one, selection))

    def json(self, request: Request) -> Response:
        """Return everything that is shown about a trajectory, as JSON."""
        _, one, _ = self._one(request)
        shown = {
            "instance": one.facts["instance"],
            "key": one.facts["key"],
            "facts": one.facts,
            "row": one.row,
            "segments": one.segments,
            "tool_calls": one.calls,
            "question": one.question,
            "score": one.score,
            "judgements": one.judgements,
        }
        return Response(sanitized_json(shown, indent=True), 200, _NO_STORE, "application/json")

    def metrics(self, request: Request) -> Response:
        """Return the states of the model servers in use, for Prometheus."""
        return Response(metrics_text(self._run), 200, _NO_STORE, "text/plain; version=0.0.4")

    def text(self, request: Request) -> Response:
        """Return the full text of one segment, for segments that the page truncates."""
        _, one, _ = self._one(request)
        place = request.query_params.get("place", "")
        if not (place.isascii() and place.isdecimal() and len(place) < 10) or int(place) >= len(one.segments):
            raise HTTPException(404, "There is no such segment.")
        return PlainTextResponse(sanitize(one.segments[int(place)]["text"]), 200, _NO_STORE)

    def picture(self, request: Request) -> Response:
        """Return a picture of the run's store, with the type that its bytes show; other files are not served."""
        digest = request.path_params["digest"]
        try:
            data = self._pictures.get(digest)
            found = None if data is None else read_picture(data, MAX_SHOWN_PIXELS)
        except ValueError:
            found = None
        # Check the digest, so that the page cannot show another picture than the one that it names.
        if found is None or found.digest != digest:
            raise HTTPException(404, "There is no such picture in this run.")
        return Response(found.data, 200, {**_NO_STORE, "content-disposition": "inline"}, found.media_type)

    def refused(self, request: Request, error: HTTPException) -> Response:
        """Show an error page for an HTTP error."""
        return self._problem(error.status_code, error.detail)

    def failed(self, request: Request, error: TreadleError) -> Response:
        """Show an error page for damaged or unreachable data."""
        return self._problem(500, str(error))

    def _asked(self, request: Request) -> tuple[Snapshot, Selection]:
        return self._catalogue.snapshot(), Selection.of(request.query_params.multi_items())

    def _one(self, request: Request) -> tuple[Snapshot, LoadedTrajectory, Selection]:
        snapshot, selection = self._asked(request)
        place = request.path_params
        instance = f"{place['iteration']}/{place['stage']}"
        one = read_trajectory(snapshot, instance, place["key"])
        if one is None:
            raise HTTPException(404, f"There is no finished trajectory {place['key']} of {instance} in this run.")
        return snapshot, one, selection

    def _page(self, template: str, snapshot: Snapshot, shown: Mapping[str, Any]) -> Response:
        facts = {"total": len(snapshot.index), "unfinished": snapshot.unfinished, "problems": snapshot.problems}
        return self._html(200, template, {**facts, **shown})

    def _problem(self, status: int, detail: str) -> Response:
        return self._html(status, "problem.html.jinja", {"status": status, "detail": detail})

    def _html(self, status: int, template: str, shown: Mapping[str, Any]) -> Response:
        page = self._templates.get_template(template).render(run_id=self._run_id, **shown)
        # Data sets may contain lone surrogates, which cannot be encoded.
        content = page.encode("utf-8", "replace")
        return Response(content, status, _NO_STORE, "text/html")


def _handle_errors(endpoint: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """Wrap an endpoint so that an unexpected exception is logged, sanitized, and answered with an error page."""

    def answer(request: Request) -> Response:
        try:
            return endpoint(request)
        except (HTTPException, TreadleError):
            raise
        except Exception as error:
            # A warning, because errors are reserved for failures that end a command.
            _log.warning("a page failed: %s: %s", type(error).__name__, one_line(str(error)))
            raise TreadleError("this page could not be rendered; the viewer's output says why") from error

    return answer


def _not_found(request: Request) -> Response:
    raise HTTPException(404, "There is no such page.")


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404, "There is no such file.")
    # The URLs of these files contain a digest of their content, so they can be cached.
    return Response(_static_bytes(name), 200, {"cache-control": "max-age=86400"}, _STATIC[name])


@cache
def _static_bytes(name: str) -> bytes:
    return (_COLOURS if name == _COLOURS.name else _FOLDER / name).read_bytes()


def _static_url(name: str) -> str:
    return f"/static/{name}?{hashlib.sha256(_static_bytes(name)).hexdigest()[:12]}"


def list_url(selection: Selection) -> str:
    """Return the URL of the list."""
    return "/" + selection.query()


def trajectory_url(instance: str, key: str, selection: Selection, page: str = "trajectory") -> str:
    """Return the URL of a page of one trajectory, such as `changes`, `hidden` or `json`, with the selection."""
    return f"/{page}/{_quoted(instance)}/{_quoted(key)}{selection.query()}"


def segment_url(instance: str, key: str, place: int) -> str:
    """Return the URL of the full text of one segment."""
    return f"/text/{_quoted(instance)}/{_quoted(key)}?place={place}"


def _quoted(text: str) -> str:
    return quote(text, safe="/@", errors="surrogatepass")


def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["visible"] = visible
    templates.globals.update(
        list_url=list_url, trajectory_url=trajectory_url, segment_url=segment_url, static_url=_static_url
    )
    return templates
