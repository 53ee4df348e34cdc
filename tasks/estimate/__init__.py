"""Estimate what the instances to run will use, before anything is spent."""
