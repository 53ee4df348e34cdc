"""Retrieval over a corpus: indexes, encoders, and clients of search services."""
