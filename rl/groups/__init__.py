"""Rollouts of groups, as reinforcement learning needs them."""
