"""Roles of the tutor around the environment `ledger`: who explores, writes tasks, works on them and judges."""
