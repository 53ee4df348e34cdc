"""Treadle under Prefect: task runs, helpers, what the UI shows, and setting a server up."""
