"""Describe pictures for planning agents, by asking a vision model.

Papers: arXiv 2508.13167 (Agent Foundation Models). The picture is stored under its digest, which the note of the call
names.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from treadle.agent.call_cache import NullCache
from treadle.agent.role import RoleModel
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.core.errors import ConfigError, ContextTooLong, DeadlineExceeded, EndpointUnavailable, ModelError
from treadle.core.llm.wire import image_message
from treadle.core.store.keyed_store import KeyedStore
from treadle.core.untrusted.prompt_text import as_data
from treadle.core.untrusted.sanitize import one_line
from treadle.core.work_clock import work_clock
from treadle.environments.planning.tools.fences import find_fences
from treadle.environments.planning.tools.picture_sources import (
    MAX_PATH_CHARS,
    NoPicture,
    fetch_picture,
    picture_fetcher,
    picture_url,
    read_file,
)
from treadle.environments.planning.tools.pictures import (
    PICTURE_URLS,
    PICTURES,
    NotAPicture,
    Picture,
    PictureStore,
    read_picture,
)
from treadle.environments.planning.tools.settings import VISION, VisualInspectorSettings
from treadle.web.log_once import warn_once

MAX_QUESTION_CHARS = 4000
MAX_REQUEST_CHARS = 16_384
_log = logging.getLogger(__name__)

_JSON_LANGUAGES = ("", "json")
_KEYS = ("file_path", "question")
_NO_QUESTION = "Describe this image."
_ABOUT = "Describe this image with regard to the question below, without answering it."


@dataclass(frozen=True, slots=True)
class InspectorCall:
    """Picture that a call names by URL or path, and what it asks; `question` may be empty."""

    file_path: str
    question: str = ""


def parse_call(text: str) -> InspectorCall:
    """Read the text of a call: a JSON object with `file_path` and perhaps `question`, in a fenced block or bare.

    Raises ValueError, with a message for the model, for anything else.
    """
    if len(text) > MAX_REQUEST_CHARS:
        raise ValueError(f"the call is longer than {MAX_REQUEST_CHARS} characters")
    blocks = [fence.text for fence in find_fences(text) if fence.language in _JSON_LANGUAGES]
    if len(blocks) > 1:
        raise ValueError("the call has several JSON blocks; write one per call")
    try:
        given = json.loads(blocks[0] if blocks else text)
    except (ValueError, RecursionError):
        raise ValueError('the call is not JSON; write {"file_path": "...", "question": "..."}') from None
    if not isinstance(given, dict):
        raise ValueError("the call is no JSON object")
    if unknown := [name for name in given if name not in _KEYS]:
        raise ValueError(f"unknown key {unknown[0][:40]!r}; known: {', '.join(_KEYS)}")
    path, question = given.get("file_path"), given.get("question")
    question = "" if question is None else question
    if not isinstance(path, str) or not path.strip():
        raise ValueError("file_path is missing; it is the path or the URL of an image")
    if not isinstance(question, str):
        raise ValueError("question is no text")
    if len(path) > MAX_PATH_CHARS or len(question) > MAX_QUESTION_CHARS:
        raise ValueError("file_path or question is too long")
    return InspectorCall(path.strip(), question.strip())


@cache
def inspector_prompt() -> tuple[str, ...]:
    """Return the fixed texts of all requests, for digests."""
    system = files(__package__).joinpath("visual_inspector_system.txt").read_text(encoding="utf-8").rstrip("\n")
    return system, _NO_QUESTION, _ABOUT


def inspector_messages(question: str, picture: Picture) -> list[dict[str, Any]]:
    """Return the messages of one request; the question is data in a block of its own."""
    system, no_question, about = inspector_prompt()
    inner = as_data(question).replace("</question", "&lt;/question")
    text = f"{about}\n\n<question>\n{inner}\n</question>" if question else no_question
    return [{"role": "system", "content": system}, image_message(text, picture.data, picture.media_type)]


class VisualInspector:
    """Tool `visual_inspector`; see `treadle.agent.tools.outcome.Tool`."""

    name = "visual_inspector"

    def __init__(
        self,
        settings: VisualInspectorSettings,
        model: RoleModel | None,
        store: Callable[[str], KeyedStore] | None = None,
    ) -> None:
        """Prepare the tool. `store` returns a store of the run by its name; without one pictures are not stored.

        Raises ConfigError without a model.
        """
        if model is None:
            raise ConfigError(
                f"the tool visual_inspector asks a model in the role {VISION}, which the stage was not given"
            )
        self._settings, self._model = settings, model
        self._store = None if store is None else PictureStore(store(PICTURES), store(PICTURE_URLS))
        self._fetcher = picture_fetcher(settings)

    async def __aenter__(self) -> VisualInspector:
        """Open the HTTP session."""
        await self._fetcher.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the fetcher."""
        await self._fetcher.close()

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        """Describe a picture until `deadline`, a time of the work clock; `note` has the digest of the picture.

        Raises StorageError, and EndpointUnavailable or DeadlineExceeded, of which the picture is not the cause. If the
        server refuses the request, the reason may be this picture: the outcome is an error, and is logged once.
        """
        clock = asyncio.get_running_loop()
        began = clock.time()
        try:
            asked = parse_call(argument)
        except ValueError as error:
            return ToolOutcome("invalid", f"Error: {error}.", note="unreadable")
        try:
            picture = await self._picture(asked.file_path, clock.time() + max(0.0, deadline - work_clock().time()))
        except (NoPicture, NotAPicture) as error:
            return ToolOutcome("error", f"Error: {error}.", clock.time() - began, note="no picture")
        note = picture.note
        if self._store is not None:
            await asyncio.to_thread(self._store.add, picture)
        try:
            reply = await self._model.ask(
                inspector_messages(asked.question, picture),
                cache=NullCache(),
                unit=VISION,
                seed=0 if context is None else context.seed,
                session="",
                deadline=deadline,
            )
        except ContextTooLong:
            return ToolOutcome("error", "Error: the picture is too large for the model that describes it.", note=note)
        except ModelError as error:
            if isinstance(error, (EndpointUnavailable, DeadlineExceeded)):
                raise
            warn_once(_log, f"a picture was not described: {one_line(str(error))}")
            text = "Error: the model that describes pictures could not read this one."
            return ToolOutcome("error", text, clock.time() - began, note=f"{note}, refused")
        text = reply.text.rpartition("</think>")[2].strip()
        return ToolOutcome(
            "ok" if text else "empty",
            text,
            clock.time() - began,
            note=note,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
        )

    async def _picture(self, name: str, deadline: float) -> Picture:
        """Return a picture by its path or URL; the same URL gives the same picture in a run."""
        settings = self._settings
        if "://" not in name:
            data = await asyncio.to_thread(read_file, settings.folder, name, settings.max_bytes)
            return read_picture(data, settings.max_pixels)
        url = picture_url(name)
        if self._store is not None:
            stored = await asyncio.to_thread(self._store.of_url, url)
            if stored is not None:
                return stored
        data = await fetch_picture(self._fetcher, url, deadline=deadline)
        picture = read_picture(data, settings.max_pixels)
        return picture if self._store is None else await asyncio.to_thread(self._store.add_url, url, picture)
