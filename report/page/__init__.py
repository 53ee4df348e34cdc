"""Build a self-contained HTML page of sections with tables and charts."""
