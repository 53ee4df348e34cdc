"""Reinforcement learning: select questions, roll out groups and compute rewards; TRL or verl trains the policy."""
