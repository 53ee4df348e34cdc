"""Keeping secrets of the environment out of what is written down."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable

from treadle.core.errors import ConfigError

_SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)(?:_ID)?$", re.IGNORECASE)
_SHORTEST = 12
"""A shorter value may stand in a text by chance."""


def refuse_secrets(texts: Iterable[str], named: Collection[str] = ()) -> None:
    """Raise ConfigError if a text, which is about to be kept, holds the value of a secret environment variable.

    Secret are those in `named`, and those whose name says so (`..._KEY`, `..._TOKEN`, `..._SECRET`, `..._PASSWORD`).
    """
    kept = list(texts)
    for name, value in os.environ.items():
        is_secret = name in named or _SECRET_NAME.search(name)
        if is_secret and len(value) >= _SHORTEST and any(value in text for text in kept):
            raise ConfigError(
                f"the configuration holds the value of environment variable {name}; a run keeps its configuration in "
                "plain files, so take it out, comments included, and name the variable where a key is needed"
            )
