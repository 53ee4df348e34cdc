"""Scores, statistics and reports."""
