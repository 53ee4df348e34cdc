"""Run Treadle under Prefect: task runs, helper flow runs, UI artifacts, and server setup."""
