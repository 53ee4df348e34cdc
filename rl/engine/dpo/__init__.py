"""The process that trains on preferences with TRL."""
