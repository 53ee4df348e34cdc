"""Build the report of runs as one web page; each module gathers one section from records and tables."""
