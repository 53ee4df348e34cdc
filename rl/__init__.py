"""Reinforcement learning: selection of questions, rewards, plans, group rollouts; TRL or verl as the engine."""
