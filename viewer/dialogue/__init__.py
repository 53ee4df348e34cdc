"""Pages about dialogues: tests of an answer, and what only the partner and the scorer know."""
