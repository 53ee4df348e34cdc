"""Manage what the requests of a rollout show of its context."""
