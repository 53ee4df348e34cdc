"""The retrieval service: one index behind HTTP."""
