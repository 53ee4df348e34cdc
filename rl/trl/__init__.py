"""Configuration of TRL."""
