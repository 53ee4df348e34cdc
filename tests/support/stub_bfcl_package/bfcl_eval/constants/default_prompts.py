"""Prompts and limits."""

DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC = "I have updated some more functions you can choose from."
MAXIMUM_STEP_LIMIT = 2
