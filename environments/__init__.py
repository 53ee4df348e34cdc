"""Environments: what a rollout interacts with, one folder or module per type, and the stage that rolls out in them."""
