"""Serve environments over HTTP, and use environments that others serve."""
