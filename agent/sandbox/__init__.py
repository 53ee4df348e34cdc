"""Isolation of model-written programs."""
