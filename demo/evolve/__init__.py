"""A demo of AgentEvolver in the environment `ledger`: agents make their own tasks and learn from lessons.

A model attributes the credit for a rollout to its steps.
"""
