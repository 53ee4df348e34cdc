"""Import and export files of the program published with ET-Agent (arXiv 2601.06860)."""
