"""Configuration and data of verl."""
