"""Requests to judge models in the stage `scores`: choices among attempts, and the open judge models."""
