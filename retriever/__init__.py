"""Search over a corpus."""
