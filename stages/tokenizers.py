"""Load the tokenizer that counts or encodes texts from a folder, or the embedded one."""

from __future__ import annotations

from pathlib import Path

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.config import EMBEDDED
from treadle.core.engines.serving import embedded_folder
from treadle.core.errors import ConfigError


def load_tokenizer(folder: Path, digest: str = "") -> ChatTokenizer:
    """Return the tokenizer of a folder, which may be `embedded`.

    Raises ConfigError if it is not the one with `digest`; an empty digest accepts any.
    """
    tokenizer = ChatTokenizer.load(embedded_folder("tokenizer") if folder == Path(EMBEDDED) else folder)
    if digest not in ("", tokenizer.digest):
        raise ConfigError(
            f"the tokenizer in {folder} is not the one that this run was made with; restore its files, or "
            "start a new run"
        )
    return tokenizer
