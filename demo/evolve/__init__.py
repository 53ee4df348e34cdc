"""A demo of agents that make their own tasks, remember, and share credit, on the ledger."""
