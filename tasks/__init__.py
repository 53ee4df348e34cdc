"""Stage catalogue, and everything that runs, inspects and reports stages: command-line logic and Prefect tasks."""
