"""Summarize finished stages for terminal, UI and report."""
