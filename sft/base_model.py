"""Moved to `core.engines.base_model`."""

from treadle.core.engines.base_model import folder_digest as folder_digest
