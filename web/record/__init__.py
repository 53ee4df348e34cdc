"""Record web searches and pages of a run, and replay them."""
