"""Define the errors of a training that every engine can raise in its process."""

from __future__ import annotations

_OUT_OF_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")


class Diverged(Exception):
    """Error for a loss, a gradient, a weight or policy logits that are nan or inf."""


class NothingLearned(Exception):
    """Error for a training that ended with unchanged weights, or without any gradient."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the machine or a GPU ran out of memory."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY_TEXTS)
