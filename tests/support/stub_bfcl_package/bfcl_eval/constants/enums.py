"""Enumerations."""

from enum import Enum


class ModelStyle(Enum):
    OPENAI_COMPLETIONS = "openai-completions"
