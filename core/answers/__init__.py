"""Extraction of answers from trajectories, and their comparison with gold answers; one implementation for all uses."""
