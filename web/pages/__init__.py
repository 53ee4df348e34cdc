"""Fetch pages and extract their text in confined worker processes."""
