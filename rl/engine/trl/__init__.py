"""The process that trains with TRL."""
