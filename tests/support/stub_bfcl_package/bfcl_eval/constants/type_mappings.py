"""Names of types."""

GORILLA_TO_OPENAPI = {"integer": "integer", "dict": "object"}
