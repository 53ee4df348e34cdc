"""Reinforcement learning on selected questions: selection, rewards, plans, group rollouts, and TRL or verl as the engine."""
