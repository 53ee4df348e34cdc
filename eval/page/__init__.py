"""One page for a browser: sections of tables and charts in a single file that needs nothing beside it."""
