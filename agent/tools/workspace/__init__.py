"""A workspace per episode: a shell and tools for files, and hidden tests that run on it afterwards."""
