"""Training data: question ingest, and the operators of the self-evolving flywheel."""
