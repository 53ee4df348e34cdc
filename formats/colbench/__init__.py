"""Files of ColBench (arXiv 2503.15478): programming tasks, and dialogues about them that another program collected."""
