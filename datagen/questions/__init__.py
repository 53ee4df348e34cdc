"""The stage `questions`: read, recognize, check and deduplicate questions."""
