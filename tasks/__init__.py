"""The stage catalogue and its Prefect task wrappers."""
