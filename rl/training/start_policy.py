"""Locate the policy that a phase starts from; all attempts use the same files."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.base_model import base_model
from treadle.core.engines.model_hub import fetch_model
from treadle.core.runs.stage import StageContext
from treadle.core.store.storage import storage_errors
from treadle.rl.config import RlSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """Start policy in Hugging Face format.

    Attributes:
        digest: Digest of the policy's files.
    """

    folder: Path
    tokenizer: ChatTokenizer
    digest: str


def find_start(context: StageContext, pinned: Path) -> StartPolicy:
    """Return the start policy; a hub id stays at the commit that the first attempt wrote to the file `pinned`."""
    settings: RlSettings = context.settings
    options, checkpoints, key = settings.options, context.inputs.get("checkpoint", ()), "rl.start"
    start, commit = base_model(options.start, checkpoints, _log.info, key=key), ""
    if isinstance(start, str):
        known = pinned.read_text(encoding="utf-8") if pinned.is_file() else options.revision
        start = fetch_model(start, known, _log.info, key=key)
        with storage_errors("write", pinned):
            pinned.parent.mkdir(parents=True, exist_ok=True)
            pinned.write_text(start.name, encoding="utf-8")
        commit = start.name
    digest = checkpoints[0].digest if checkpoints else settings.model_digest or commit
    return StartPolicy(start, ChatTokenizer.load(start), digest)
