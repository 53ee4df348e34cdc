"""Pages about dialogues: tests of an answer, and information that only the partner and the scorer have."""
