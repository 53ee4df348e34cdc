"""The processes that train with verl."""
