"""Create training data: ingest questions and run the operators of the self-evolving flywheel."""
