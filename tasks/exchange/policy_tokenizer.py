"""Load the tokenizer of the policy that imported rows are made for."""

from __future__ import annotations

from pathlib import Path

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.config import EMBEDDED
from treadle.core.engines.serving import embedded_folder
from treadle.core.llm.config import ModelSettings
from treadle.stages.models import served_tokenizer, tokenizer_folder


def policy_tokenizer(model: ModelSettings) -> ChatTokenizer | None:
    """Return the policy's tokenizer, as `sft_rows` uses it; None without a local one, so that rows have only text."""
    folder = tokenizer_folder(model) or served_tokenizer(model)
    if folder is None:
        return None
    return ChatTokenizer.load(embedded_folder("tokenizer") if folder == Path(EMBEDDED) else folder)
